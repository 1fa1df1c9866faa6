//! The targets of the tests of refusals: this test program, run again as another process
//! that has memory of every kind.
//!
//! Each touches all of its memory all the time, says on stdout what happens to it, and
//! does on stdin's lines what they name.

#![allow(unreachable_pub, reason = "like the common part of these tests")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use hmkeeper::ports::Residency;
use hmkeeper::sys::move_pages::locate;
use hmkeeper::sys::numa::{Buffer, HugePages, WORDS_PER_PAGE, node_free};
use hmkeeper::sys::process::{end_with_parent, pin_thread};
use hmkeeper::sys::residency::SysResidency;
use hmkeeper::sys::root::Root;
use hmkeeper::tiering::settings::Asking;
use hmkeeper::units::{Bytes, NodeId, PageRange, VirtAddr};
use nix::sys::signal::Signal;

use crate::common::{PATIENCE, sh};

/// Names what the program is to do when it runs as a target.
const ROLE: &str = "HMKEEPER_TEST_ROLE";
/// Where all memory begins.
pub const SLOW: NodeId = NodeId(3);
/// The other node of the cpuset.
const FAST: NodeId = NodeId(0);
/// What begins a line on stdout that is ours and not the test harness's.
const MARK: &str = "@ ";
/// Pages that a pipe holds at most for root, and so pins.
pub const PINNED_PAGES: usize = 256;
/// Pages that a CPU's list is filled up with at once, at least.
const LISTED: usize = 64;
/// Of each kind of memory.
pub const EACH: Bytes = Bytes::from_mib(2);

/// A running target; dropping it kills it.
pub struct Target {
    process: Child,
    lines: Receiver<String>,
}

impl Target {
    /// Runs this program again in that role, in a cgroup if one is named.
    pub fn start(role: &str, cpu: u32, group: Option<&Path>) -> Self {
        let program = std::env::current_exe().expect("this program");
        let enter = group.map_or(String::new(), |g| {
            format!("echo $$ >{}/cgroup.procs && ", g.display())
        });
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{enter}exec taskset -c {cpu} \"$0\" \"$@\"")]);
        command
            .arg(program)
            .args([
                "--exact",
                "vm_refusals::as_a_target",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        end_with_parent(&mut command, Signal::SIGKILL);
        let mut process = command.spawn().expect("starting a target");
        let out = process.stdout.take().expect("piped");
        let (send, lines) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(out).lines().map_while(Result::ok);
            for line in lines {
                // The harness leaves its own line unfinished.
                if let Some((_, ours)) = line.split_once(MARK)
                    && send.send(ours.to_owned()).is_err()
                {
                    break;
                }
            }
        });
        Self { process, lines }
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The rest of the next line that begins so.
    pub fn said(&self, what: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|e| {
                let kernel = sh("dmesg | grep -v '^$' | tail -n 60");
                panic!("the target did not say {what}: {e}; the kernel's log ends:\n{kernel}")
            });
            if let Some(rest) = line.strip_prefix(what) {
                return rest.trim().to_owned();
            }
        }
    }

    /// The range that it says it has of this kind.
    pub fn range(&self, kind: &str) -> PageRange {
        let text = self.said(kind);
        let (start, end) = text.split_once('-').expect("START-END");
        let at = |text| VirtAddr(u64::from_str_radix(text, 16).expect("an address"));
        PageRange::new(at(start), at(end)).expect("a range")
    }

    pub fn tell(&mut self, command: &str) {
        let stdin = self.process.stdin.as_mut().expect("piped");
        writeln!(stdin, "{command}").expect("telling the target");
    }

    /// The code with which it ended.
    pub fn wait(&mut self) -> Option<i32> {
        self.process.wait().expect("waiting for the target").code()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Both fail when it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The program as a target, when it was started as one; else nothing.
pub fn run_as_target() {
    match std::env::var(ROLE).as_deref() {
        Ok("every-kind") => every_kind(),
        Ok(role @ ("unmap" | "exit" | "fill")) => surprise(role),
        Ok(role) => panic!("{ROLE}={role}"),
        Err(_) => {}
    }
}

fn say(line: &str) {
    // Past the harness, which captures what is printed.
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{MARK}{line}").and_then(|()| out.flush());
    written.expect("stdout");
}

/// Our memory on the slow node, without a policy that says so.
fn slow_buffer(bytes: Bytes) -> Buffer {
    let buffer = Buffer::new(bytes, HugePages::Refused).expect("memory");
    buffer.bind(SLOW).expect("binding");
    sweep(buffer.words());
    buffer.unbind().expect("unbinding");
    buffer
}

/// Touches each page.
fn sweep(words: &[std::sync::atomic::AtomicU64]) {
    for word in words.iter().step_by(WORDS_PER_PAGE) {
        word.fetch_add(1, Relaxed);
    }
}

fn start_of(buffer: &Buffer) -> *mut libc::c_void {
    let start = usize::try_from(buffer.range().start().0).expect("64 bits");
    std::ptr::with_exposed_provenance_mut(start)
}

/// No child of ours shall have it.
fn keep_from_children(buffer: &Buffer) {
    let len = buffer.words().len() * 8;
    // SAFETY: the range is the buffer's; the advice changes no content.
    let rc = unsafe { libc::madvise(start_of(buffer), len, libc::MADV_DONTFORK) };
    assert_eq!(rc, 0, "MADV_DONTFORK");
}

/// Anonymous memory mapped with other flags; never unmapped.
fn mapped(flags: i32) -> &'static [std::sync::atomic::AtomicU64] {
    let len = usize::try_from(EACH.0).expect("64 bits");
    // SAFETY: a new mapping at an address of the kernel's choice, for good; all zero
    // bytes are atomic words.
    unsafe {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let start = libc::mmap(
            std::ptr::null_mut(),
            len,
            prot,
            flags | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(
            start,
            libc::MAP_FAILED,
            "{}",
            std::io::Error::last_os_error()
        );
        let start = NonNull::new(start.cast()).expect("mapped");
        std::slice::from_raw_parts(start.as_ptr(), len / 8)
    }
}

/// Has the first pages held by a pipe. Returns its ends.
fn pin(buffer: &Buffer) -> [i32; 2] {
    let mut pipe = [0; 2];
    let bytes = PINNED_PAGES * 4096;
    let pages = libc::iovec {
        iov_base: start_of(buffer),
        iov_len: bytes,
    };
    // SAFETY: two descriptors fit; nobody writes to the pages through the pipe.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        let size = i32::try_from(bytes).expect("small");
        assert!(libc::fcntl(pipe[1], libc::F_SETPIPE_SZ, size) >= size);
        let spliced = libc::vmsplice(pipe[1], &raw const pages, 1, 0);
        assert_eq!(spliced, isize::try_from(bytes).expect("small"));
    }
    pipe
}

/// Its pages come from the fastest node and the slowest in turn.
fn interleave(buffer: &Buffer) {
    let nodes = 1_u64 << FAST.0 | 1_u64 << SLOW.0;
    let bytes = usize::try_from(buffer.range().bytes().0).expect("small");
    // SAFETY: the range is this buffer's; the kernel reads one bit less than it is told.
    let rc = unsafe {
        let mode = libc::MPOL_INTERLEAVE;
        libc::syscall(
            libc::SYS_mbind,
            start_of(buffer),
            bytes,
            mode,
            &raw const nodes,
            65,
            0,
        )
    };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}

/// Has memory of every kind; "unfork" ends the child that shares some of it, "unpin"
/// lets go of what is pinned.
fn every_kind() {
    let plain = slow_buffer(EACH + EACH);
    let pinned = slow_buffer(Bytes::from_pages(PINNED_PAGES as u64));
    let locked = slow_buffer(EACH);
    locked.lock(locked.page_count()).expect("mlock");
    let bound = Buffer::new(EACH, HugePages::Refused).expect("memory");
    bound.bind(SLOW).expect("binding");
    let interleaved = Buffer::new(EACH, HugePages::Refused).expect("memory");
    interleave(&interleaved);
    let forked = slow_buffer(EACH);
    let own = [&plain, &pinned, &locked, &bound, &interleaved];
    for buffer in own {
        keep_from_children(buffer);
    }
    let shared = mapped(libc::MAP_SHARED);
    let hugetlb = mapped(libc::MAP_PRIVATE | libc::MAP_HUGETLB);
    let pipe = pin(&pinned);
    // SAFETY: the child makes system calls only.
    let child = match unsafe { nix::unistd::fork() }.expect("fork") {
        // SAFETY: ends with its parent, and does nothing.
        nix::unistd::ForkResult::Child => unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            loop {
                libc::pause();
            }
        },
        nix::unistd::ForkResult::Parent { child } => child,
    };
    for (kind, buffer) in [
        ("plain", &plain),
        ("pinned", &pinned),
        ("locked", &locked),
        ("bound", &bound),
        ("interleaved", &interleaved),
        ("forked", &forked),
    ] {
        let range = buffer.range();
        say(&format!("{kind} {:x}-{:x}", range.start().0, range.end().0));
    }
    let start = shared.as_ptr().addr() as u64;
    say(&format!("shared {start:x}-{:x}", start + EACH.0));
    let commands = commands();
    loop {
        for buffer in own {
            sweep(buffer.words());
        }
        // Only read: a write would make a copy of our own.
        for word in forked.words().iter().step_by(WORDS_PER_PAGE) {
            std::hint::black_box(word.load(Relaxed));
        }
        sweep(shared);
        sweep(hugetlb);
        match commands.try_recv().as_deref() {
            Ok("unfork") => {
                nix::sys::signal::kill(child, Signal::SIGKILL).expect("killing the child");
                nix::sys::wait::waitpid(child, None).expect("waiting for the child");
                say("unforked");
            }
            Ok("unpin") => {
                // SAFETY: ours to close, once.
                unsafe {
                    libc::close(pipe[0]);
                    libc::close(pipe[1]);
                }
                say("unpinned");
            }
            Ok(other) => panic!("no command: {other}"),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return,
        }
    }
}

fn commands() -> Receiver<String> {
    let (send, commands) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                break;
            }
        }
    });
    commands
}

/// As soon as some of its memory has moved and some has not, unmaps it, ends, or fills
/// the node where it goes.
fn surprise(role: &str) {
    // So much that moving it takes longer than any of these.
    let buffer = slow_buffer(Bytes::from_mib(96));
    say("ready");
    let probes: Vec<VirtAddr> = buffer.range().iter_pages().step_by(64).collect();
    let (moved, node) = loop {
        sweep(buffer.words());
        let nodes: Vec<NodeId> = locate(None, &probes)
            .expect("where our pages are")
            .into_iter()
            .flatten()
            .collect();
        let moved = nodes.iter().filter(|&&node| node != SLOW).count();
        if let Some(&node) = nodes.iter().find(|&&node| node != SLOW)
            && moved <= probes.len() / 2
        {
            break (moved, node);
        }
    };
    let told = format!("surprised {moved} of {}", probes.len());
    match role {
        "unmap" => {
            drop(buffer);
            say(&told);
            let rest = slow_buffer(EACH);
            loop {
                sweep(rest.words());
            }
        }
        "exit" => {
            say(&told);
            // SAFETY: ends the process as it is.
            unsafe { libc::_exit(7) }
        }
        _ => {
            let taken = fill(node);
            say(&format!("{told} node {node}"));
            loop {
                sweep(buffer.words());
                std::hint::black_box(&taken);
            }
        }
    }
}

/// Keeps what each CPU holds in its list of free pages small until it is dropped. Unless that is set the
/// kernel fills a list up with 8 MiB at once after much was freed: what one CPU then lacks another has.
pub struct ShortLists;

impl ShortLists {
    const FILE: &str = "/proc/sys/vm/percpu_pagelist_high_fraction";

    pub fn set() -> Self {
        std::fs::write(Self::FILE, "1000000").expect("making lists short");
        Self
    }
}

impl Drop for ShortLists {
    fn drop(&mut self) {
        // The kernel's own choice.
        let _ = std::fs::write(Self::FILE, "0");
    }
}

/// Takes what is free on a node, just into what must stay free for the kernel: much
/// more, and it would kill somebody. Each CPU has a list of free pages, up to an eighth of the node
/// after much was freed before they were [`ShortLists`], that the others cannot have: these as well.
fn fill(node: NodeId) -> Buffer {
    let root = Root::host();
    let usage = || {
        let nodes = SysResidency::new(&root).nodes(Asking::Never);
        let mut nodes = nodes.expect("the nodes' memory").into_iter();
        nodes.find(|u| u.node == node).expect("the node")
    };
    let has_room = || {
        let now = usage();
        now.free > now.reserve
    };
    let total = usage().total;
    // Small pages: the last huge ones of a node are long in coming.
    let buffer = Buffer::new(total, HugePages::Refused).expect("memory");
    buffer.bind(node).expect("binding");
    let mut parts = buffer.words().chunks(LISTED * WORDS_PER_PAGE);
    while has_room() && parts.len() > 0 {
        parts.by_ref().take(8).for_each(sweep);
    }
    let free = || node_free(&root, node).expect("the node's meminfo");
    let refill = Bytes::from_pages(LISTED as u64 / 2);
    let most = usize::try_from(total.pages() / 8).expect("few") / LISTED;
    // SAFETY: asks for a number.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    for cpu in 0..u32::try_from(cpus).expect("how many CPUs there are") {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pin_thread(&[cpu]).expect("pinning");
                for part in parts.by_ref().take(most) {
                    let before = free();
                    sweep(part);
                    // From the node, and not from the list.
                    if free() + refill < before {
                        break;
                    }
                }
            });
        });
    }
    while has_room() && parts.len() > 0 {
        parts.by_ref().take(8).for_each(sweep);
    }
    buffer
}
