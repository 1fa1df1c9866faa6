//! Which process a shared mapping is watched and moved through.
//!
//! **Problem.** Several processes of one target map the same memory (PostgreSQL's buffers,
//! a pool's memfd). Were it eligible in each, its pages would be sampled, counted and
//! planned several times; yet what may be seen of it and moved is only what a process has
//! in its own page table, and that is what it touched itself.
//!
//! **Approach.** One of them owns it: the one with most shared memory present, which has
//! touched most of it. It stays the owner until it no longer maps it or another has twice
//! as much, so that what is known of its regions is not lost by every change. The time in
//! which the others work counts for it, as far as what they have present is shared: it is
//! their accesses, too, that are seen there ([`Lent`]).

use std::collections::HashMap;

use super::maps::Line;
use crate::units::{Nanos, Pid};

/// Mappings kept track of at most; further ones are left out.
const MOST: usize = 4096;
/// So much more must another one have present.
const ADVANTAGE: u64 = 2;

/// What stands behind a shared mapping, among the processes of one `[[targets]]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Memory {
    pub(super) entry: u32,
    pub(super) device: u64,
    pub(super) inode: u64,
}

/// Whether a mapping is of shared memory that only processes map, and no file of a disk:
/// `mmap(MAP_SHARED | MAP_ANONYMOUS)`, System V, memfd, POSIX.
pub(super) fn is_shared_memory(line: Line<'_>) -> bool {
    let names: [&[u8]; 4] = [b"/dev/zero", b"/SYSV", b"/memfd:", b"/dev/shm/"];
    line.perms[3] == b's' && names.iter().any(|name| line.name.starts_with(name))
}

/// Who has claimed one in this round.
#[derive(Debug)]
struct Claim {
    owner: Pid,
    /// What the owner has present, if it claimed it.
    held: Option<u64>,
    /// Who has most, and how much.
    most: Option<(Pid, u64)>,
}

/// The owners of all.
#[derive(Debug, Default)]
pub(super) struct Owners {
    claims: HashMap<Memory, Claim>,
}

impl Owners {
    /// A process maps it and has so much shared memory present. Who is the owner; `None`:
    /// there are too many.
    pub(super) fn claim(&mut self, memory: Memory, pid: Pid, present: u64) -> Option<Pid> {
        if self.claims.len() >= MOST && !self.claims.contains_key(&memory) {
            return None;
        }
        let claim = self.claims.entry(memory).or_insert(Claim {
            owner: pid,
            held: None,
            most: None,
        });
        if claim.owner == pid {
            claim.held = Some(present);
        }
        if claim.most.is_none_or(|(_, most)| present > most) {
            claim.most = Some((pid, present));
        }
        Some(claim.owner)
    }

    /// All have claimed theirs: who owns what in the next round.
    pub(super) fn settle(&mut self) {
        self.claims.retain(|_, claim| {
            let Some((pid, most)) = claim.most.take() else {
                return false;
            };
            let held = claim.held.take();
            if held.is_none_or(|held| most > held.saturating_mul(ADVANTAGE)) {
                claim.owner = pid;
            }
            true
        });
    }
}

/// A process's CPU time, and the part that works on memory that another one owns.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lent {
    /// When it was looked at before.
    before: Option<Nanos>,
    /// What counts for its own memory so far, what others lend it included.
    counted: Nanos,
}

impl Lent {
    /// It has used so much CPU time by now, of which `share` counts for others from
    /// now on. Returns what it lends.
    pub(super) fn work(&mut self, now: Nanos, share: f64) -> Nanos {
        let new = now.saturating_sub(self.before.unwrap_or(now));
        self.before = Some(now);
        let lent = Nanos::from_secs_f64(new.as_secs_f64() * share).min(new);
        self.counted += new.saturating_sub(lent);
        lent
    }

    /// Another one lends it so much.
    pub(super) fn take(&mut self, lent: Nanos) {
        self.counted += lent;
    }

    /// What counts for its memory since it was looked at first.
    pub(super) fn counted(&self) -> Nanos {
        self.counted
    }
}

#[cfg(test)]
mod tests {
    use super::super::maps;
    use super::*;

    const BUFFERS: Memory = Memory {
        entry: 0,
        device: 1,
        inode: 7,
    };

    /// The owner of a round in which these claim it, by process and pages.
    fn round(owners: &mut Owners, claims: &[(i32, u64)]) -> Option<i32> {
        let owns: Vec<i32> = claims
            .iter()
            .filter(|&&(pid, present)| owners.claim(BUFFERS, Pid(pid), present) == Some(Pid(pid)))
            .map(|&(pid, _)| pid)
            .collect();
        owners.settle();
        assert!(owns.len() <= 1, "{owns:?} own it");
        owns.first().copied()
    }

    #[test]
    fn one_owns_it_and_stays_until_another_has_twice_as_much() {
        let mut owners = Owners::default();
        assert_eq!(round(&mut owners, &[(1, 10), (2, 15), (3, 20)]), Some(1));
        assert_eq!(round(&mut owners, &[(1, 10), (2, 15), (3, 21)]), Some(1));
        assert_eq!(round(&mut owners, &[(1, 10), (2, 15), (3, 21)]), Some(3));
        assert_eq!(round(&mut owners, &[(1, 40), (2, 15), (3, 21)]), Some(3));
        assert_eq!(round(&mut owners, &[(1, 40), (2, 15)]), None, "3 has ended");
        assert_eq!(round(&mut owners, &[(2, 15), (1, 40)]), Some(1));
        assert_eq!(round(&mut owners, &[]), None);
        assert!(owners.claims.is_empty());
    }

    #[test]
    fn what_one_lends_another_has_and_none_is_lost() {
        let (mut worker, mut owner) = (Lent::default(), Lent::default());
        let s = Nanos::from_secs;
        assert_eq!(worker.work(s(100), 0.75), s(0), "before it was watched");
        assert_eq!(owner.work(s(7), 0.0), s(0));
        for second in 1..=8 {
            owner.take(worker.work(s(100 + second), 0.75));
            owner.work(s(7), 0.0);
        }
        assert_eq!((worker.counted(), owner.counted()), (s(2), s(6)));
    }

    #[test]
    fn memory_is_bounded() {
        let mut owners = Owners::default();
        let memory = |inode| Memory { inode, ..BUFFERS };
        let claimed = (0..2 * MOST as u64)
            .filter(|&inode| owners.claim(memory(inode), Pid(1), 1).is_some())
            .count();
        assert_eq!(claimed, MOST);
        assert!(
            owners.claim(memory(0), Pid(1), 1).is_some(),
            "one that is known"
        );
    }

    #[test]
    fn files_of_a_disk_are_no_shared_memory() {
        let text = b"1000-2000 rw-s 00000000 00:01 1 /dev/zero (deleted)\n\
            2000-3000 rw-s 00000000 00:01 2 /SYSV00000000 (deleted)\n\
            3000-4000 rw-s 00000000 00:01 3 /memfd:pool (deleted)\n\
            4000-5000 rw-s 00000000 00:19 4 /dev/shm/buffers\n\
            5000-6000 rw-s 00000000 08:01 5 /var/lib/db/file\n\
            6000-7000 rw-p 00000000 00:01 3 /memfd:pool (deleted)\n";
        let shared: Vec<u64> = maps::lines(text)
            .filter(|&line| is_shared_memory(line))
            .map(|line| line.inode)
            .collect();
        assert_eq!(shared, [1, 2, 3, 4]);
    }
}
