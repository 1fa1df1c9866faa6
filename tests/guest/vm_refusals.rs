//! Every refusal, provoked for real, through the whole daemon: what it says of it in the
//! status, the metrics and the log, and that what can be lifted is.
//!
// vm: topology=4tier timeout=400
#![allow(unsafe_code)]

mod refusals;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use hmkeeper::sys::move_pages::{Which, move_to};
use hmkeeper::units::{Bytes, PageRange, Pid, VirtAddr};
use refusals::{EACH, PINNED_PAGES, SLOW, ShortLists, Target};
use serde_json::Value;

use crate::common::{
    Daemon, PATIENCE, Site, WHERE_MOVES_PAY, Workload, ballast, body, body_as_shipped, epoch,
    hmkeeper, in_guest, locate, output_of, sh, share, show, target, wait_for,
};

/// Not a test: what the others start as their target.
#[test]
fn as_a_target() {
    refusals::run_as_target();
}

const GROUP: &str = "/sys/fs/cgroup/hmkeeper-refusals";

/// Bytes of one reason in a list of the status.
fn bytes_of(status: &Value, pid: u32, list: &str, why: &str) -> u64 {
    let all = target(status, pid).and_then(|t| t[list].as_array());
    let one = all.and_then(|all| all.iter().find(|e| e["why"] == why));
    one.and_then(|e| e["bytes"].as_u64()).unwrap_or(0)
}

/// Pages with one result in the status.
fn pages_of(status: &Value, pid: u32, result: &str) -> u64 {
    let pages = target(status, pid).map(|t| &t["move_pages"][result]);
    pages
        .and_then(Value::as_u64)
        .unwrap_or_else(|| panic!("no pages {result} of {pid} in {status:#}"))
}

/// How many lines of the log hold these words.
fn logged(daemon: &Daemon, words: &str) -> usize {
    daemon.log().lines().filter(|l| l.contains(words)).count()
}

fn on_slow(pid: u32, range: PageRange) -> f64 {
    share(&locate(pid, &[range]), &[SLOW.0])
}

/// Waits until this holds of the status.
fn until(daemon: &Daemon, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    wait_for(what, PATIENCE, || {
        let status = daemon.try_status()?;
        if holds(&status) {
            Ok(status)
        } else {
            Err(format!("{status:#}"))
        }
    })
}

#[test]
fn what_cannot_be_moved_is_told_and_what_is_lifted_moves() {
    if !in_guest() {
        return;
    }
    sh(&format!(
        "echo 8 >/proc/sys/vm/nr_hugepages && echo +cpuset >/sys/fs/cgroup/cgroup.subtree_control \
         && mkdir -p {GROUP} && echo 0,3 >{GROUP}/cpuset.mems"
    ));
    let mut process = Target::start("every-kind", 0, Some(Path::new(GROUP)));
    let pid = process.pid();
    let kinds = [
        "plain",
        "pinned",
        "locked",
        "bound",
        "interleaved",
        "forked",
        "shared",
    ];
    let [plain, pinned, locked, bound, interleaved, forked, shared] =
        kinds.map(|kind| process.range(kind));
    let site = Site::new();
    // It hardly computes, so that hardly anything may be spent on watching it.
    let config = body(pid, "overhead_limit = 0.5");
    site.write_config(&format!("{config}move_shared = false\n"));
    let mut daemon = site.start();
    daemon.until_watching(pid);

    // What can be moved is, and the rest was asked for.
    wait_for("the plain memory on node 0", PATIENCE, || {
        let there = share(&locate(pid, &[plain]), &[0]);
        (there >= 0.9)
            .then_some(())
            .ok_or_else(|| format!("{there}\n{:#}", daemon.status()))
    });
    let pinned_bytes = PINNED_PAGES as u64 * 4096;
    let status = until(&daemon, "pinned and shared pages", |status| {
        bytes_of(status, pid, "held", "pinned") >= pinned_bytes * 9 / 10
            && bytes_of(status, pid, "held", "shared") >= EACH.0 * 9 / 10
            && pages_of(status, pid, "shared") >= EACH.pages() * 9 / 10
            && pages_of(status, pid, "busy") > 0
    });

    // The status.
    for why in ["locked", "policy", "shared"] {
        let bytes = bytes_of(&status, pid, "excluded", why);
        assert!(bytes >= EACH.0, "{why}: {bytes} in {status:#}");
    }
    assert!(bytes_of(&status, pid, "excluded", "policy") >= 2 * EACH.0);
    assert_eq!(bytes_of(&status, pid, "excluded", "hugetlb"), EACH.0);
    let target = target(&status, pid).expect("the target");
    assert_eq!(target["allowed_nodes"], serde_json::json!([0, 3]));
    assert_eq!(pages_of(&status, pid, "refused"), 0, "{status:#}");
    let socket = site.path("control.sock");
    let text = output_of(&["status", "--socket", socket.to_str().expect("a path")]);
    let shown = String::from_utf8_lossy(&text.stdout);
    for words in [
        "NOT MOVED",
        "`move_locked = true`",
        "`move_bound = true`",
        "hugetlb pool",
        "`move_shared = false`",
        "`follow_children` watches both",
        "held by the kernel",
        "among nodes 0,3 only",
        "pages so far: ",
    ] {
        assert!(shown.contains(words), "no {words:?}: {}", show(&text));
    }
    eprintln!("{shown}");

    // The metrics.
    let metrics = daemon.metrics();
    let value = |name: &str, label: &str, is: &str| metrics.value(name, &[(label, is)]);
    for why in ["locked", "policy", "shared", "hugetlb"] {
        let bytes = value("hmkeeper_excluded_bytes", "reason", why);
        assert!(bytes >= EACH.as_f64(), "{why}: {bytes}");
    }
    assert!(value("hmkeeper_held_bytes", "reason", "shared") >= 0.9 * EACH.as_f64());
    assert!(value("hmkeeper_held_bytes", "reason", "pinned") >= 0.9 * pinned_bytes as f64);
    let pages = |result| value("hmkeeper_move_pages_total", "result", result);
    assert!(pages("shared") >= 0.9 * EACH.pages() as f64);
    assert!(pages("busy") > 0.0);
    assert!(pages("refused") < 1.0);
    let allowed = metrics.sum("hmkeeper_allowed_nodes", &[]);
    assert_eq!(allowed, Some(2.0));

    // The log: once, however many epochs and pages.
    daemon.epochs(2);
    for words in [
        "not moved, locked",
        "not moved, policy",
        "not moved, shared",
        "not moved, hugetlb",
        "not moved for now, shared",
        "not moved for now, pinned",
        "among nodes 0,3 only",
    ] {
        assert_eq!(logged(&daemon, words), 1, "{words}: {}", daemon.log());
    }
    // And none of it moved.
    for (kind, range) in [
        ("pinned", pinned),
        ("locked", locked),
        ("bound", bound),
        ("forked", forked),
    ] {
        let there = on_slow(pid, range);
        assert!(there > 0.99, "{kind}: {there} left where it was");
    }
    let there = on_slow(pid, interleaved);
    assert!((there - 0.5).abs() < 0.01, "{there} of what is interleaved");

    // The child ends: at once, not after the 16 epochs for which a region rests.
    let from = epoch(&daemon.status());
    process.tell("unfork");
    process.said("unforked");
    let status = until(&daemon, "what was shared on node 0", |_| {
        on_slow(pid, forked) < 0.1
    });
    let took = epoch(&status) - from;
    eprintln!("what was shared moved {took} epochs after the child had ended");
    assert!(took <= 12, "{took} epochs after the child had ended");
    until(&daemon, "nothing shared", |status| {
        bytes_of(status, pid, "held", "shared") < EACH.0 / 10
    });
    assert!(on_slow(pid, locked) > 0.99 && on_slow(pid, bound) > 0.99);

    // The pipe lets go of its pages.
    assert!(on_slow(pid, pinned) > 0.99);
    process.tell("unpin");
    process.said("unpinned");
    until(&daemon, "what was pinned on node 0", |status| {
        on_slow(pid, pinned) < 0.1 && bytes_of(status, pid, "held", "pinned") < pinned_bytes / 10
    });

    // And what it maps as shared, as soon as that is allowed.
    let pages: Vec<VirtAddr> = shared.iter_pages().collect();
    let process_id = Pid(i32::try_from(pid).expect("a pid"));
    move_to(process_id, &pages, SLOW, Which::Alone).expect("putting it on the slow node");
    assert!(on_slow(pid, shared) > 0.9);
    daemon.epochs(4);
    assert!(
        on_slow(pid, shared) > 0.9,
        "moved against the configuration"
    );
    site.write_config(&config);
    sh(&format!("kill -HUP {}", daemon.pid()));
    until(&daemon, "shared memory on node 0", |status| {
        on_slow(pid, shared) < 0.1 && bytes_of(status, pid, "excluded", "shared") == 0
    });
    // All of that without the nodes that its cpuset does not have.
    let all = locate(pid, &[plain, pinned, locked, bound, forked, shared]);
    assert!(share(&all, &[0, 3]) >= 1.0, "{all:?}");
    daemon.stop();
    drop(process);
    sh(&format!("rmdir {GROUP}; echo 0 >/proc/sys/vm/nr_hugepages"));
}

#[test]
fn a_range_unmapped_and_a_process_gone_in_mid_batch() {
    if !in_guest() {
        return;
    }
    let unmaps = Target::start("unmap", 0, None);
    let mut ends = Target::start("exit", 1, None);
    unmaps.said("ready");
    ends.said("ready");
    let site = Site::new();
    let other = format!("[[targets]]\nname = \"other\"\npid = {}\n", ends.pid());
    // So slowly that there is a middle.
    let slowly = "[migration]\nbytes_per_second = \"20MiB\"";
    site.write_config(&format!("{}{other}", body(unmaps.pid(), slowly)));
    let daemon = site.start();
    eprintln!("unmapped: {}", unmaps.said("surprised"));
    eprintln!("ended: {}", ends.said("surprised"));
    assert_eq!(ends.wait(), Some(7));

    let status = until(&daemon, "pages that are absent", |status| {
        target(status, unmaps.pid()).is_some() && pages_of(status, unmaps.pid(), "absent") > 0
    });
    assert_eq!(pages_of(&status, unmaps.pid(), "refused"), 0, "{status:#}");
    let status = until(&daemon, "the other one gone", |status| {
        target(status, ends.pid()).is_none()
    });
    assert_eq!(status["absent"], serde_json::json!(["other"]), "{status:#}");

    let metrics = daemon.metrics();
    let of = |name, target, result| metrics.sum(name, &[("target", target), ("result", result)]);
    let name = "hmkeeper_move_pages_total";
    assert!(of(name, "w", "absent").unwrap_or(0.0) > 0.0);
    assert_eq!(of(name, "other", "moved"), None, "its series are gone");
    let up = [("target", "other")];
    assert!(metrics.value("hmkeeper_target_up", &up) < 0.5);

    daemon.epochs(2);
    let ended = format!("target other (pid {}) ended", ends.pid());
    assert_eq!(logged(&daemon, &ended), 1, "{}", daemon.log());
    let absent = format!("w (pid {}): ", unmaps.pid());
    let lines = daemon.log();
    let absent = lines
        .lines()
        .filter(|l| l.contains(&absent) && l.contains("pages not moved, absent"));
    assert_eq!(absent.count(), 1, "{lines}");
    // What a program does with its own memory is nobody's fault.
    let blamed = lines
        .lines()
        .filter(|l| l.contains("not moved") && !l.contains("INFO"));
    assert_eq!(blamed.count(), 0, "{lines}");
    daemon.stop();
}

/// Whatever the command runs gets this error for `move_pages`.
fn deny_move_pages(command: &mut Command, errno: i32) {
    // linux/seccomp.h, linux/bpf_common.h
    const RET_ERRNO: u32 = 0x0005_0000;
    const RET_ALLOW: u32 = 0x7fff_0000;
    const LOAD: u16 = 0x20;
    const IS_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let step = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
    let move_pages = u32::try_from(libc::SYS_move_pages).expect("a number");
    let errno = u32::try_from(errno).expect("positive");
    let filter = [
        step(LOAD, 0, 0),
        step(IS_EQUAL, 1, move_pages),
        step(RETURN, 0, RET_ERRNO | errno),
        step(RETURN, 0, RET_ALLOW),
    ];
    // SAFETY: system calls only; the program outlives them.
    unsafe {
        command.pre_exec(move || {
            let mut filter = filter;
            let program = libc::sock_fprog {
                len: 4,
                filter: filter.as_mut_ptr(),
            };
            let set = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(
                    libc::PR_SET_SECCOMP,
                    libc::SECCOMP_MODE_FILTER,
                    &raw const program,
                ) == 0;
            if set {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error())
            }
        })
    };
}

#[test]
fn move_pages_denied_by_seccomp_is_named_once_and_not_tried_again() {
    if !in_guest() {
        return;
    }
    let workload = Workload::small();
    let pid = workload.pid();
    for errno in [libc::EPERM, libc::ENOSYS] {
        let site = Site::new();
        site.write_config(&body(pid, "overhead_limit = 0.5"));
        let mut command = hmkeeper();
        command.args(["run", "--config"]).arg(site.config());
        deny_move_pages(&mut command, errno);
        let mut daemon = site.start_as(command);
        daemon.until_watching(pid);
        let status = daemon.epochs(4);
        let denied = "move_pages(2) is denied to hmkeeper itself";
        assert_eq!(logged(&daemon, denied), 1, "{}", daemon.log());
        assert_eq!(logged(&daemon, "a seccomp filter"), 1, "{}", daemon.log());
        assert_eq!(logged(&daemon, "cpuset"), 0, "{}", daemon.log());
        for result in ["moved", "busy", "pinned", "refused"] {
            assert_eq!(pages_of(&status, pid, result), 0, "{result}: {status:#}");
        }
        daemon.stop();
    }
}

#[test]
fn a_node_that_fills_in_mid_batch() {
    if !in_guest() {
        return;
    }
    let _lists = ShortLists::set();
    // Room for what wants to go there, until somebody else takes it.
    let _ballast = ballast(0, Bytes::from_mib(112));
    let process = Target::start("fill", 0, None);
    let pid = process.pid();
    process.said("ready");
    let site = Site::new().every(Duration::from_secs(10));
    // So slowly, and for so long, that the node fills in the middle of it.
    let slowly = "[migration]\nbytes_per_second = \"16MiB\"";
    let more = format!("{slowly}\n{WHERE_MOVES_PAY}pace = 1.0");
    site.write_config(&body_as_shipped(Duration::from_secs(10), pid, &more));
    let daemon = site.start();
    eprintln!("filled: {}", process.said("surprised"));
    let status = until(&daemon, "pages without room", |status| {
        target(status, pid).is_some() && pages_of(status, pid, "no_room") > 0
    });
    assert_eq!(pages_of(&status, pid, "refused"), 0, "{status:#}");
    let no_room = [("result", "no_room")];
    assert!(
        daemon
            .metrics()
            .value("hmkeeper_move_pages_total", &no_room)
            > 0.0
    );
    daemon.epochs(1);
    assert_eq!(logged(&daemon, "pages not moved, no_room"), 1);
    let killed = sh("grep -w oom_kill /proc/vmstat");
    assert_eq!(killed.trim(), "oom_kill 0", "somebody was killed");
    daemon.stop();
}
