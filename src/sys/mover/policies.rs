//! Memory policies of what is about to move.
//!
//! **Problem.** What binds a mapping is read with the targets, but seldom: the kernel walks all of
//! a process's pages for it. A program that binds its memory in between (`mbind`,
//! `set_mempolicy`, a cpuset that changes both) means what it says at once.
//!
//! **Approach.** Before its pages are moved a process's `numa_maps` is read again, for no more than
//! one part in [`COST_SHARE`] of the time. In between the last reading counts. Memory that is bound
//! and was to be moved is deferred, and whoever finds the targets is told to look again: it
//! then is left out of plans, with its reason.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::time::{Duration, Instant};

use crate::sys::root::Root;
use crate::sys::targets::policies;
use crate::units::{Pid, VirtAddr};

/// Reading policies of one process may take this share of elapsed time: 1 in so many.
const COST_SHARE: u32 = 50;
/// Of the text of `numa_maps`: more than 60,000 mappings.
const MOST_TEXT: u64 = 16 << 20;

#[derive(Debug)]
struct OfProcess {
    read_at: Instant,
    cost: Duration,
    /// From each of these addresses on memory is bound, or is not.
    bound: Vec<(VirtAddr, bool)>,
}

/// What is known of the policies of processes whose pages move.
#[derive(Debug, Default)]
pub(super) struct Policies(HashMap<Pid, OfProcess>);

impl Policies {
    /// Reads those of a process, if it is time to.
    pub(super) fn look(&mut self, root: &Root, pid: Pid) {
        let now = Instant::now();
        let last = self.0.get(&pid);
        if last.is_some_and(|of| now - of.read_at < of.cost * COST_SHARE) {
            return;
        }
        // Where it cannot be read nothing new is known.
        let Ok(text) = read(root, pid) else { return };
        let mut bound: Vec<(VirtAddr, bool)> = Vec::new();
        for (start, is_bound) in policies(&text) {
            if bound.last().is_none_or(|&(_, before)| before != is_bound) {
                bound.push((start, is_bound));
            }
        }
        let of = OfProcess {
            read_at: now,
            cost: now.elapsed(),
            bound,
        };
        self.0.insert(pid, of);
    }

    /// Whether the memory at this address was bound when last looked at.
    pub(super) fn is_bound(&self, pid: Pid, addr: VirtAddr) -> bool {
        let Some(of) = self.0.get(&pid) else {
            return false;
        };
        let next = of.bound.partition_point(|&(start, _)| start <= addr);
        next.checked_sub(1).is_some_and(|at| of.bound[at].1)
    }

    /// Only these processes are still there.
    pub(super) fn keep(&mut self, is_there: impl Fn(Pid) -> bool) {
        self.0.retain(|&pid, _| is_there(pid));
    }
}

fn read(root: &Root, pid: Pid) -> io::Result<Vec<u8>> {
    let file = File::open(root.proc(format!("{pid}/numa_maps")))?;
    let mut text = Vec::new();
    file.take(MOST_TEXT).read_to_end(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_bound_is_told_by_the_mapping_that_an_address_lies_in() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        std::fs::create_dir_all(root.proc("7")).unwrap();
        let put = |text: &str| std::fs::write(root.proc("7/numa_maps"), text).unwrap();
        put("1000 default anon=1 N0=1\n3000 bind:3 anon=1 N3=1\n\
             5000 prefer (many):0,3 anon=1\n7000 local anon=1\n9000 weighted interleave:0-3\n");
        let mut policies = Policies::default();
        let pid = Pid(7);
        let bound = |policies: &Policies| {
            [0, 0x1000, 0x3000, 0x4000, 0x5000, 0x8000, 0x9000]
                .map(|at| policies.is_bound(pid, VirtAddr(at)))
        };
        assert_eq!(bound(&policies), [false; 7], "nothing is known");
        policies.look(&root, pid);
        let want = [false, false, true, true, true, false, true];
        assert_eq!(bound(&policies), want);
        // Not before that is paid for.
        policies.0.get_mut(&pid).unwrap().cost = Duration::from_secs(9);
        put("1000 bind:3\n");
        policies.look(&root, pid);
        assert_eq!(bound(&policies), want);
        policies.0.get_mut(&pid).unwrap().cost = Duration::ZERO;
        policies.look(&root, pid);
        assert!(policies.is_bound(pid, VirtAddr(0x1000)));
        policies.keep(|_| false);
        assert!(policies.0.is_empty());
    }
}
