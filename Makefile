# hmkeeper: build, test, demonstrate, install. `make help` lists the targets.

CARGO      ?= $(shell command -v cargo || echo $$HOME/.cargo/bin/cargo)
PREFIX     ?= /usr/local
BINDIR     ?= $(PREFIX)/bin
SYSCONFDIR ?= /etc
UNITDIR    ?= $(PREFIX)/lib/systemd/system
SYSUSERSDIR ?= $(PREFIX)/lib/sysusers.d
DATADIR    ?= $(PREFIX)/share

MAN           := $(DATADIR)/man/man1/hmkeeper.1
COMPLETE_BASH := $(DATADIR)/bash-completion/completions/hmkeeper
COMPLETE_ZSH  := $(DATADIR)/zsh/site-functions/_hmkeeper
COMPLETE_FISH := $(DATADIR)/fish/vendor_completions.d/hmkeeper.fish

TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
HMKEEPER   := $(TARGET_DIR)/release/hmkeeper
# No list of every crate where nobody watches it go by.
QUIET      := $(if $(CI),--quiet)
# Nodes that hold memory: "0" on an ordinary machine, "0-1" or "0,2" on others.
TIERED     := $(findstring -,$(shell tr , - </sys/devices/system/node/has_memory 2>/dev/null))

# The release with assertions and overflow checks: one build for host and guest.
CHECKED    := --profile checked --locked
# Those of tests/guest that run on the host too run one after the other.
HOST_TESTS := --lib --bins $(patsubst tests/%.rs,--test %,$(wildcard tests/*.rs))

# The demo's guest and its arguments: make demo ARGS=--baseline
DEMO_VM ?= --topology 4tier --timeout 300
ARGS    ?=

export CARGO

# What `make bench` runs: smoke, default, latency or full.
SET ?= default

.PHONY: all build demo test test-long accuracy bench check test-host test-vm test-bench setup install uninstall clean help

all: build

## build: the release binary, target/release/hmkeeper
build:
	$(CARGO) build --release --locked $(QUIET)

## demo: set up, build, and show hot pages reach the fastest tier: on this
##       machine if it has several memory nodes, else in a virtual machine
ifneq ($(TIERED),)
demo:
	@scripts/setup
	@$(MAKE) --no-print-directory build
	$(HMKEEPER) demo $(ARGS)
else
demo:
	@scripts/setup vm
	@$(MAKE) --no-print-directory build
	@echo "This machine has one memory node: the demo runs in a virtual machine with four."
	tests/vm/vm-run $(DEMO_VM) -- $(HMKEEPER) demo $(ARGS)
endif

## test: set up, then every check and test, the virtual machine's in short form
test:
	@scripts/setup test vm
	@$(MAKE) --no-print-directory check
	@$(MAKE) --no-print-directory test-host
	@$(MAKE) --no-print-directory test-vm
	@$(MAKE) --no-print-directory test-bench

## test-long: the same with the full figures
test-long:
	@scripts/setup test vm
	@$(MAKE) --no-print-directory check
	@HMKEEPER_LONG=1 $(MAKE) --no-print-directory test-host
	@$(MAKE) --no-print-directory test-vm VM_ARGS=--long
	@$(MAKE) --no-print-directory test-bench

## accuracy: the table of docs/profiling.md: every scenario, every system (two hours)
accuracy:
	@scripts/setup test vm
	HMKEEPER_ACCURACY=/ tests/vm/run-tests --long vm_accuracy

## bench: programs under this daemon, the kernel's own tiering, and none, on an
##        emulated machine with four tiers (docs/benchmarks.md): SET=default takes
##        about an hour, SET=smoke minutes, SET=full three rounds of 5 hours,
##        SET=latency is Redis' percentiles; what ran on this machine is not run again
bench:
	@scripts/setup vm bench
	benches/tiers/run $(SET) $(ARGS)

## check: format, lints and documentation, warnings denied
check:
	$(CARGO) fmt --check
	shellcheck scripts/setup .ci/run tests/vm/vm-run tests/vm/guest-init tests/vm/build-kernel tests/vm/run-tests tests/vm/bench benches/tiers/run
	$(CARGO) clippy $(CHECKED) --all-targets $(QUIET) -- -D warnings
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc $(CHECKED) --no-deps --document-private-items $(QUIET)

## test-host: the tests that need no virtual machine
test-host:
	$(CARGO) test $(CHECKED) --no-run $(HOST_TESTS) --test guest $(QUIET)
	$(CARGO) test $(CHECKED) $(HOST_TESTS)
	$(CARGO) test $(CHECKED) --test guest $(QUIET) -- --test-threads=1 --skip vm_
	$(CARGO) test $(CHECKED) --doc $(QUIET)

## test-vm: the tests that need one (VM_ARGS: --long, or names of tests)
test-vm:
	tests/vm/run-tests $(VM_ARGS)

## test-bench: each workload and each system of `make bench` once, in short: whether they work
test-bench:
	benches/tiers/run smoke

## setup: install what all of this needs (Debian 12 or later)
setup:
	@scripts/setup test vm

## install: binary, unit, config, man page, completions (PREFIX=/usr/local, DESTDIR=)
install: $(HMKEEPER)
	install -D -m 755 $(HMKEEPER) $(DESTDIR)$(BINDIR)/hmkeeper
	install -d $(DESTDIR)$(UNITDIR)
	sed 's|/usr/bin/|$(BINDIR)/|; s|/etc/hmkeeper/|$(SYSCONFDIR)/hmkeeper/|' systemd/hmkeeper.service \
		>$(DESTDIR)$(UNITDIR)/hmkeeper.service
	install -D -m 644 systemd/hmkeeper.sysusers $(DESTDIR)$(SYSUSERSDIR)/hmkeeper.conf
	install -d $(DESTDIR)$(DATADIR)/man/man1 $(DESTDIR)$(DATADIR)/bash-completion/completions \
		$(DESTDIR)$(DATADIR)/zsh/site-functions $(DESTDIR)$(DATADIR)/fish/vendor_completions.d
	$(HMKEEPER) generate man >$(DESTDIR)$(MAN)
	$(HMKEEPER) generate completions bash >$(DESTDIR)$(COMPLETE_BASH)
	$(HMKEEPER) generate completions zsh >$(DESTDIR)$(COMPLETE_ZSH)
	$(HMKEEPER) generate completions fish >$(DESTDIR)$(COMPLETE_FISH)
	@# An operator's own config stays; ours goes beside it.
	if [ -e $(DESTDIR)$(SYSCONFDIR)/hmkeeper/hmkeeper.toml ]; then \
		install -m 644 config/hmkeeper.toml $(DESTDIR)$(SYSCONFDIR)/hmkeeper/hmkeeper.toml.dist; \
	else \
		install -D -m 644 config/hmkeeper.toml $(DESTDIR)$(SYSCONFDIR)/hmkeeper/hmkeeper.toml; \
	fi

	@# The group of the control socket; a package's scripts do this for a DESTDIR.
	if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ] && command -v systemd-sysusers >/dev/null; then \
		systemd-sysusers $(SYSUSERSDIR)/hmkeeper.conf; \
	fi

$(HMKEEPER):
	$(MAKE) --no-print-directory build

## uninstall: what install put there, except the config
uninstall:
	rm -f $(DESTDIR)$(BINDIR)/hmkeeper $(DESTDIR)$(UNITDIR)/hmkeeper.service \
		$(DESTDIR)$(SYSUSERSDIR)/hmkeeper.conf $(DESTDIR)$(MAN) \
		$(DESTDIR)$(COMPLETE_BASH) $(DESTDIR)$(COMPLETE_ZSH) $(DESTDIR)$(COMPLETE_FISH)

## clean: everything built here (the guest's kernel stays in its cache)
clean:
	$(CARGO) clean

## help: this list
help:
	@sed -n 's/^## \{0,1\}//p' Makefile
