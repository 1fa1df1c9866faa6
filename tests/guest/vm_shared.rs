//! What several processes share is found and placed once, for all of them, and then left.
//!
// vm: topology=4tier timeout=400
#![allow(unsafe_code, clippy::unwrap_used)]

use std::ffi::CStr;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hmkeeper::sys::numa::HugePages;
use hmkeeper::units::{Bytes, NodeId, Pid, VirtAddr};

use crate::common::{
    self, Daemon, Site, WHERE_MOVES_PAY, in_guest, lines, locate, share, wait_for,
};
use crate::place::{Fork, buffer_on, shared_memory};

/// The command's name of those that are watched.
const NAME: &CStr = c"hmk-test-crew";
/// Where all begins.
const SLOW: NodeId = NodeId(3);
/// All of it is on a fast node within this time.
const WITHIN: Duration = Duration::from_secs(150);
/// How long it is watched whether it stays.
const STAYS: u64 = 16;
/// A hundredth of the hot set in so many epochs at most, and a page or two.
const MOVED_MOST: f64 = 0.01;

/// A worker on this CPU that touches these pages over and over.
fn worker(start: VirtAddr, pages: Range<usize>, cpu: usize, writes: bool) -> Fork {
    Fork::working(|| {
        // SAFETY: a name that stays, and a set of CPUs on the stack.
        unsafe {
            libc::prctl(libc::PR_SET_NAME, NAME.as_ptr());
            let mut cpus: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpu, &mut cpus);
            libc::sched_setaffinity(0, size_of_val(&cpus), &raw const cpus);
        }
        move || {
            for page in pages.clone() {
                let word = (start.0 + page as u64 * 4096 + 8) as *mut u64;
                // SAFETY: within what the parent mapped before the fork.
                unsafe {
                    if writes {
                        word.write_volatile(1);
                    } else {
                        word.read_volatile();
                    }
                }
            }
            // SAFETY: a call without memory.
            unsafe { libc::usleep(2000) };
        }
    })
}

/// One `[[targets]]` for all of them, with the daemon's other defaults.
fn start(site: &Site, one: Pid) -> Daemon {
    site.write_config(&format!(
        "[profiling]\ninterval = \"{}ms\"\noverhead_limit = 0.1\n{WHERE_MOVES_PAY}\
         [[targets]]\nname = \"crew\"\ncomm = \"{}\"\n",
        common::interval().as_millis(),
        NAME.to_str().unwrap()
    ));
    let mut daemon = site.start();
    daemon.until_watching(u32::try_from(one.0).unwrap());
    daemon
}

/// The hot pages come to a node with CPUs, for all of these, and stay.
fn comes_to_rest(daemon: &Daemon, pids: &[Pid], hot: &[VirtAddr]) {
    let pages = |pid: Pid| {
        let ranges: Vec<_> = hot.iter().map(|&addr| page(addr)).collect();
        locate(u32::try_from(pid.0).unwrap(), &ranges)
    };
    wait_for("what they share on a fast node", WITHIN, || {
        let all: Vec<_> = pids.iter().map(|&pid| pages(pid)).collect();
        let is_there = all.iter().all(|pages| share(pages, &[0, 1]) >= 0.9);
        is_there.then_some(()).ok_or_else(|| {
            let told = all.iter().map(|pages| format!("{pages:?}"));
            format!("{}{:#}", lines(told), daemon.status())
        })
    });
    daemon.epochs(4);
    let before = daemon.metrics().moved_bytes();
    daemon.epochs(STAYS);
    let moved = daemon.metrics().moved_bytes() - before;
    let size = Bytes::from_pages(hot.len() as u64).as_f64();
    println!("{moved} bytes moved of {size} in {STAYS} epochs");
    assert!(
        moved <= MOVED_MOST * size + 8192.0,
        "{moved} bytes: {:#}",
        daemon.status()
    );
}

/// What is touched first from now on comes from this node.
fn policy(node: Option<NodeId>) {
    let mask = node.map_or(0, |node| 1_u64 << node.0);
    let mode = if node.is_some() {
        libc::MPOL_BIND
    } else {
        libc::MPOL_DEFAULT
    };
    // SAFETY: a mask of 64 bits that outlives the call.
    let rc = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, &raw const mask, 64) };
    assert_eq!(rc, 0);
}

fn page(addr: VirtAddr) -> hmkeeper::units::PageRange {
    hmkeeper::units::PageRange::new(addr, VirtAddr(addr.0 + 4096)).unwrap()
}

fn addresses(start: VirtAddr, pages: Range<usize>) -> Vec<VirtAddr> {
    pages
        .map(|page| VirtAddr(start.0 + page as u64 * 4096))
        .collect()
}

/// Two workers, one on each socket, read what their parent, which is not watched, left.
#[test]
fn what_workers_on_two_sockets_share_since_a_fork_comes_to_rest() {
    if !in_guest() {
        return;
    }
    let buffer = buffer_on(SLOW, Bytes::from_mib(60), HugePages::Refused);
    let (start_at, hot) = (buffer.range().start(), 2560..7680);
    // An idle one as servers have it, which maps all as well.
    let boss = worker(start_at, 0..0, 0, false);
    let workers = [0, 1].map(|cpu| worker(start_at, hot.clone(), cpu, false));
    // The parent's own mapping would make it nobody's.
    let hot = addresses(start_at, hot);
    drop(buffer);
    let site = Site::new();
    let daemon = start(&site, workers[0].pid());
    comes_to_rest(&daemon, &[workers[0].pid(), workers[1].pid()], &hot);
    let status = daemon.status();
    let shared: Vec<_> = status["targets"].as_array().unwrap().iter().collect();
    let pools = shared
        .iter()
        .filter(|t| t["sharers"].as_u64() > Some(1) && t["hot_bytes"].as_u64() > Some(0))
        .count();
    assert_eq!(pools, 1, "{status:#}");
    // Who writes has a copy of its own, which is its own to move.
    drop((boss, workers));
    daemon.stop();
}

/// Shared memory that an idle owner made, of which each worker touches a part.
#[test]
fn shared_memory_is_seen_through_those_who_touch_it() {
    if !in_guest() {
        return;
    }
    let memory = shared_memory(48 << 20);
    let start_at = VirtAddr(memory.as_ptr().addr() as u64);
    policy(Some(SLOW));
    for byte in memory.iter().step_by(4096) {
        byte.store(1, Relaxed);
    }
    policy(None);
    let boss = worker(start_at, 0..0, 0, false);
    let parts = [1000..3500, 3000..5000, 8000..10000];
    let workers: Vec<Fork> = (parts.iter().zip([0, 1, 1]))
        .map(|(part, cpu)| worker(start_at, part.clone(), cpu, true))
        .collect();
    let hot: Vec<Vec<VirtAddr>> = (parts.into_iter())
        .map(|part| addresses(start_at, part))
        .collect();
    // SAFETY: nobody here uses it any more; the children have mappings of their own.
    unsafe { libc::munmap(memory.as_ptr().cast_mut().cast(), memory.len()) };
    let site = Site::new();
    let daemon = start(&site, workers[0].pid());
    for (worker, hot) in workers.iter().zip(&hot) {
        comes_to_rest(&daemon, &[worker.pid()], hot);
    }
    drop((boss, workers));
    daemon.stop();
}
