//! Buffers, children and moves for the tests of the real mover.
#![allow(unsafe_code, clippy::unwrap_used)]

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hmkeeper::ports::{MoveLimits, PageMover, Residency, Threads};
use hmkeeper::sys::move_pages::locate;
use hmkeeper::sys::mover::SysMover;
use hmkeeper::sys::numa::{Buffer, HugePages, WORDS_PER_PAGE};
use hmkeeper::sys::residency::SysResidency;
use hmkeeper::sys::root::Root;
use hmkeeper::tiering::observation::{NodeUsage, TargetId};
use hmkeeper::tiering::plan::{Direction, Move, PageCounts, Reason};
use hmkeeper::tiering::settings::Asking;
use hmkeeper::units::{Bandwidth, Bytes, Nanos, NodeId, PageRange, Pid, VirtAddr};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The nodes, when there are several and we may do everything.
pub(crate) fn nodes() -> Option<(MutexGuard<'static, ()>, Vec<NodeUsage>)> {
    let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return None;
    }
    let nodes = usage();
    if nodes.len() < 2 {
        eprintln!("skipped: this machine has one memory node");
        return None;
    }
    Some((guard, nodes))
}

/// Memory of each node now.
pub(crate) fn usage() -> Vec<NodeUsage> {
    let mut residency = SysResidency::new(&Root::host());
    residency.nodes(Asking::Never).unwrap()
}

pub(crate) fn us() -> Pid {
    Pid(i32::try_from(std::process::id()).unwrap())
}

/// A buffer whose pages are all on `node`, without a policy that says so.
pub(crate) fn buffer_on(node: NodeId, bytes: Bytes, huge: HugePages) -> Buffer {
    let buffer = Buffer::new(bytes, huge).unwrap();
    buffer.bind(node).unwrap();
    touch(&buffer);
    buffer.unbind().unwrap();
    assert_eq!(count(&buffer, node), buffer.page_count());
    buffer
}

/// Writes each page its own number.
pub(crate) fn touch(buffer: &Buffer) {
    for (i, page) in buffer.words().chunks(WORDS_PER_PAGE).enumerate() {
        page[0].store(i as u64 + 1, Relaxed);
    }
}

pub(crate) fn check_content(buffer: &Buffer) {
    for (i, page) in buffer.words().chunks(WORDS_PER_PAGE).enumerate() {
        assert_eq!(page[0].load(Relaxed), i as u64 + 1, "page {i}");
    }
}

/// Pages on a node, asked of the kernel by the tests' own call.
pub(crate) fn count(buffer: &Buffer, node: NodeId) -> usize {
    let pages: Vec<VirtAddr> = buffer.range().iter_pages().collect();
    let found = locate(None, &pages).unwrap();
    found.iter().filter(|&&n| n == Some(node)).count()
}

pub(crate) fn limits() -> MoveLimits {
    MoveLimits {
        time: Nanos::from_secs(120),
        rate: Bandwidth(u64::MAX),
        bytes: Bytes(u64::MAX),
        call_time: Nanos::from_millis(20),
        threads: Threads::Exactly(1),
    }
}

pub(crate) fn asked(pid: Pid, range: PageRange, from: NodeId, to: NodeId) -> Move {
    Move {
        target: TargetId(1),
        pid,
        range,
        from,
        to,
        limit: range.bytes(),
        direction: Direction::Promotion,
        reason: Reason::Hot,
    }
}

pub(crate) fn move_all(buffer: &Buffer, from: NodeId, to: NodeId) -> PageCounts {
    let outcome = SysMover::new(&Root::host())
        .apply(&[asked(us(), buffer.range(), from, to)], limits())
        .unwrap();
    outcome.results[0].pages
}

pub(crate) fn moved(pages: usize) -> PageCounts {
    PageCounts {
        moved: pages as u64,
        ..PageCounts::default()
    }
}

pub(crate) fn pages(counts: PageCounts) -> u64 {
    counts.labelled().iter().map(|(_, n)| n).sum()
}

/// Bytes of huge pages behind a buffer.
pub(crate) fn huge_bytes(buffer: &Buffer) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let start = format!("{:x}-", buffer.range().start().0);
    let mut lines = smaps.lines().skip_while(|l| !l.starts_with(&start));
    let line = lines.find(|l| l.starts_with("AnonHugePages:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

/// A file that is put back as it was.
pub(crate) struct Setting(&'static str, String);

impl Setting {
    pub(crate) fn new(path: &'static str, value: &str) -> std::io::Result<Self> {
        let text = std::fs::read_to_string(path)?;
        let before = text
            .split(['[', ']'])
            .nth(1)
            .unwrap_or(text.trim())
            .to_owned();
        std::fs::write(path, value)?;
        Ok(Self(path, before))
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0, &self.1);
    }
}

/// Pages of a buffer, held by a pipe until it is dropped: 16 at most.
pub(crate) struct Pinned([i32; 2]);

impl Pinned {
    /// The first pages.
    pub(crate) fn new(buffer: &Buffer, pages: usize) -> Self {
        Self::every(buffer, 1, pages)
    }

    /// So many, the first of each `step`.
    pub(crate) fn every(buffer: &Buffer, step: usize, pages: usize) -> Self {
        const PAGE: usize = 4096;
        let mut pipe = [0; 2];
        let start = usize::try_from(buffer.range().start().0).unwrap();
        let pinned: Vec<libc::iovec> = (0..pages)
            .map(|at| libc::iovec {
                iov_base: std::ptr::with_exposed_provenance_mut(start + at * step * PAGE),
                iov_len: PAGE,
            })
            .collect();
        // SAFETY: two descriptors fit; the pipe does not write to the pages.
        unsafe {
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            assert_eq!(
                libc::vmsplice(pipe[1], pinned.as_ptr(), pages, 0),
                isize::try_from(pages * PAGE).unwrap()
            );
        }
        Self(pipe)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: ours to close.
        unsafe {
            libc::close(self.0[0]);
            libc::close(self.0[1]);
        }
    }
}

/// Bytes that `mmap` maps as shared, not touched yet.
pub(crate) fn shared_memory(length: usize) -> &'static [AtomicU8] {
    // SAFETY: a mapping of our own that stays; zeros are what atomics may hold.
    unsafe {
        let addr = libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(addr, libc::MAP_FAILED);
        std::slice::from_raw_parts(addr.cast(), length)
    }
}

/// Pages of a buffer, pinned for good as `io_uring` and RDMA do, until it is dropped.
pub(crate) struct Registered(i32);

impl Registered {
    /// `run` pages of each `step`, over so many pages.
    pub(crate) fn every(buffer: &Buffer, step: usize, run: usize, pages: usize) -> Self {
        const PAGE: usize = 4096;
        // `IORING_REGISTER_BUFFERS` of linux/io_uring.h.
        const REGISTER_BUFFERS: u32 = 0;
        let start = usize::try_from(buffer.range().start().0).unwrap();
        let parts: Vec<libc::iovec> = (0..pages)
            .step_by(step)
            .map(|at| libc::iovec {
                iov_base: std::ptr::with_exposed_provenance_mut(start + at * PAGE),
                iov_len: run * PAGE,
            })
            .collect();
        // As large as `struct io_uring_params`, all of it zero.
        let mut params = [0_u64; 15];
        // SAFETY: the parameters and the parts outlive the calls; nothing is ever read or
        // written through the ring.
        let ring = unsafe {
            let ring = libc::syscall(libc::SYS_io_uring_setup, 8, params.as_mut_ptr());
            assert!(ring >= 0, "io_uring: {}", std::io::Error::last_os_error());
            let done = libc::syscall(
                libc::SYS_io_uring_register,
                ring,
                REGISTER_BUFFERS,
                parts.as_ptr(),
                parts.len(),
            );
            assert_eq!(done, 0, "registering: {}", std::io::Error::last_os_error());
            ring
        };
        Self(i32::try_from(ring).unwrap())
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: ours to close.
        unsafe { libc::close(self.0) };
    }
}

static TO_BIND: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// In a child: binds a buffer to a node when it is told to ([`Fork::tell`]).
pub(crate) fn bind_when_told(buffer: &Buffer, node: NodeId) {
    extern "C" fn bind(_: i32) {
        let [start, bytes, nodes] = [0, 1, 2].map(|at| TO_BIND[at].load(Relaxed));
        // SAFETY: the range is the buffer's, the mask outlives the call; a system call is
        // all that is done in the handler.
        unsafe {
            let mode = libc::MPOL_BIND;
            libc::syscall(libc::SYS_mbind, start, bytes, mode, &raw const nodes, 65, 0);
        }
    }
    let range = buffer.range();
    let told = [range.start().0, range.bytes().0, 1 << node.0];
    for (place, value) in TO_BIND.iter().zip(told) {
        place.store(value, Relaxed);
    }
    let handler = bind as extern "C" fn(i32);
    // SAFETY: the handler only makes a system call.
    unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
}

/// A forked copy of us that has pages of its own in `buffer`, and waits.
pub(crate) struct Fork(nix::unistd::Pid);

impl Fork {
    /// `then` runs in the child, which has one thread and may not allocate.
    pub(crate) fn new(then: impl FnOnce()) -> Self {
        Self::working(|| {
            then();
            || {
                // SAFETY: waits.
                unsafe { libc::pause() };
            }
        })
    }

    /// The same, and then what `begin` gives over and over.
    pub(crate) fn working<W: FnMut()>(begin: impl FnOnce() -> W) -> Self {
        let mut ready = [0; 2];
        // SAFETY: two descriptors fit.
        assert_eq!(unsafe { libc::pipe(ready.as_mut_ptr()) }, 0);
        // SAFETY: the child makes system calls and writes to memory only.
        match unsafe { nix::unistd::fork() }.unwrap() {
            nix::unistd::ForkResult::Child => {
                let mut work = begin();
                // SAFETY: ends with its parent; says that it is ready.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    libc::write(ready[1], [1_u8].as_ptr().cast(), 1);
                }
                loop {
                    work();
                }
            }
            nix::unistd::ForkResult::Parent { child } => {
                let mut byte = [0_u8];
                // SAFETY: one byte fits; the descriptors are ours to close.
                unsafe {
                    assert_eq!(libc::read(ready[0], byte.as_mut_ptr().cast(), 1), 1);
                    libc::close(ready[0]);
                    libc::close(ready[1]);
                }
                Self(child)
            }
        }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid(self.0.as_raw())
    }

    /// Has it do what it is to do when told, and waits until it has.
    pub(crate) fn tell(&self) {
        nix::sys::signal::kill(self.0, nix::sys::signal::Signal::SIGUSR1).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(500));
    }

    pub(crate) fn end(&self) {
        let _ = nix::sys::signal::kill(self.0, nix::sys::signal::Signal::SIGKILL);
        let _ = nix::sys::wait::waitpid(self.0, None);
    }
}

impl Drop for Fork {
    fn drop(&mut self) {
        self.end();
    }
}
