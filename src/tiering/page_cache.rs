//! Page cache on fast nodes: how much of it makes room for what is hot.
//!
//! **Unit.** Bytes; pages of 4 KiB that were read back.
//!
//! **Problem.** Files take whatever memory is free, first on the node of the CPU that reads them. Of a machine
//! that has been up for a day the fastest node has none left: what a program allocates then goes to slower
//! nodes, and where no target has cold memory on the fastest one nothing could ever be promoted.
//!
//! **Approach.** What the kernel itself would give up next, its idle and clean page cache, may make room where
//! nothing colder of the targets does: up to a half of it with each plan. The mover has the kernel give it back
//! ahead of the moves that need it. Whether that was a mistake shows: what is read back soon after it was given
//! back the kernel counts as a refault. Where more than an eighth of it comes back, or the cache is fought for
//! without us, it is left alone, twice as long each time.
//!
//! **Source.** TPP (ASPLOS '23) for free memory on the fastest node by demotion before it is needed; ours takes
//! page cache only, and only what a promotion is about to fill. Refaults as the measure of too much are
//! those of Linux' own working set detection (`mm/workingset.c`).
//!
//! **Properties** (tests below): no more than half of what is idle; nothing while it rests; what fits
//! in free memory needs none.

use super::observation::NodeUsage;
use super::plan::{Move, Reclaim};
use crate::units::{Bytes, NodeId, PAGE_BYTES};

/// So much that is idle stays on each node, and one in so many bytes of the node.
const KEPT: Bytes = Bytes::from_mib(16);
const KEPT_PART: u64 = 64;
/// One in so many bytes of the rest may go with one plan.
const PART: u64 = 2;
/// What gave way is remembered for some epochs, less with each.
const FADES: f64 = 0.9;
/// Share of that which may be read back in one epoch, and bytes that may be whatever gave way.
const MAY_RETURN: f64 = 0.125;
const STRAY: f64 = (4 << 20) as f64;
/// Epochs that it rests, doubled so often at most; of so many that were quiet one takes a doubling back.
const RESTS: u64 = 8;
const DOUBLINGS: u8 = 6;
const FORGIVEN: u64 = 32;

/// Whether page cache may make room. See the module.
#[derive(Clone, Debug, Default)]
pub struct PageCache {
    /// Bytes that gave way of late.
    given: f64,
    /// Refaults since boot, as last told.
    refaults: Option<u64>,
    /// Epochs for which it is left alone yet, of so many.
    rest: u64,
    length: u64,
    doublings: u8,
    /// Epochs in a row in which little was read back.
    quiet: u64,
}

impl PageCache {
    /// What the epoch that ends brought: `reclaimed` is what gave way in it.
    pub fn follow(&mut self, nodes: &[NodeUsage], reclaimed: &[Reclaim]) {
        let told = nodes.iter().filter_map(|usage| usage.cache);
        // Wherever it was, it may be read back to another node.
        let now = told.map(|cache| cache.refaults).reduce(u64::saturating_add);
        let before = std::mem::replace(&mut self.refaults, now);
        let back = (now.zip(before)).map_or(0, |(now, before)| now.saturating_sub(before));
        let given: Bytes = reclaimed.iter().map(|reclaim| reclaim.bytes).sum();
        self.given = FADES * self.given + given.as_f64();
        self.rest = self.rest.saturating_sub(1);
        if back as f64 * PAGE_BYTES as f64 <= STRAY.max(MAY_RETURN * self.given) {
            if self.rest == 0 {
                self.quiet += 1;
            }
            if self.quiet == FORGIVEN {
                self.quiet = 0;
                self.doublings = self.doublings.saturating_sub(1);
            }
            return;
        }
        self.quiet = 0;
        if self.rest == 0 {
            self.length = RESTS << self.doublings;
            self.doublings = DOUBLINGS.min(self.doublings + 1);
        }
        self.rest = self.length;
    }

    /// Whether it is left alone, since too much was read back.
    pub fn rests(&self) -> bool {
        self.rest > 0
    }

    /// Bytes that may make room on a node now.
    pub fn room(&self, usage: &NodeUsage) -> Bytes {
        match usage.cache {
            Some(cache) if self.rest == 0 => {
                let kept = KEPT.max(Bytes(usage.total.0 / KEPT_PART));
                Bytes(cache.idle.saturating_sub(kept).0 / PART)
            }
            _ => Bytes::ZERO,
        }
    }
}

/// What has to give way for these moves: of each node what comes to it beyond what leaves it and its room, and
/// what it lacks of its reserve, for the mover fills no node below that. Never more than may.
pub fn wanted(
    moves: &[Move],
    nodes: &[NodeUsage],
    room: &[(NodeId, Bytes)],
    cache: &[(NodeId, Bytes)],
) -> Vec<Reclaim> {
    let of = |list: &[(NodeId, Bytes)], node: NodeId| {
        let mut list = list.iter();
        let found = list.find(|(n, _)| *n == node);
        found.map_or(Bytes::ZERO, |(_, bytes)| *bytes)
    };
    let sum = |is: &dyn Fn(&Move) -> bool| -> Bytes {
        let moves = moves.iter().filter(|m| is(m));
        moves.map(|m| m.limit).sum()
    };
    let may = cache.iter().filter(|(_, may)| !may.is_zero());
    may.filter_map(|&(node, may)| {
        let usage = nodes.iter().find(|usage| usage.node == node)?;
        let comes = sum(&|m| m.to == node);
        let short = comes
            .saturating_sub(sum(&|m| m.from == node))
            .saturating_sub(of(room, node));
        let lacks = usage.reserve.saturating_sub(usage.free);
        let bytes = (short + lacks).min(may);
        (!short.is_zero()).then_some(Reclaim { node, bytes })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiering::observation::{CacheUsage, TargetId};
    use crate::tiering::plan::Reason;
    use crate::units::{PageRange, Pid, VirtAddr};

    const NODE: NodeId = NodeId(0);

    fn usage(free: u64, idle: u64, refaults: u64) -> NodeUsage {
        NodeUsage {
            node: NODE,
            total: Bytes::from_mib(1024),
            free: Bytes::from_mib(free),
            reserve: Bytes::from_mib(10),
            latency: None,
            cache: Some(CacheUsage {
                idle: Bytes::from_mib(idle),
                refaults,
            }),
        }
    }

    fn asked(mib: u64, from: u32, to: u32) -> Move {
        let reason = if to == 0 { Reason::Hot } else { Reason::Room };
        Move {
            target: TargetId(0),
            pid: Pid(1),
            range: PageRange::new(VirtAddr(0), VirtAddr(mib << 20)).unwrap(),
            from: NodeId(from),
            to: NodeId(to),
            limit: Bytes::from_mib(mib),
            direction: reason.direction(),
            reason,
        }
    }

    fn given(mib: u64) -> [Reclaim; 1] {
        [Reclaim {
            node: NODE,
            bytes: Bytes::from_mib(mib),
        }]
    }

    #[test]
    fn half_of_what_is_idle_may_give_way_but_for_a_little() {
        let cache = PageCache::default();
        assert_eq!(cache.room(&usage(0, 416, 0)), Bytes::from_mib(200));
        assert_eq!(cache.room(&usage(0, 16, 0)), Bytes::ZERO);
        let untold = NodeUsage {
            cache: None,
            ..usage(0, 416, 0)
        };
        assert_eq!(cache.room(&untold), Bytes::ZERO);
    }

    #[test]
    fn what_is_needed_is_what_comes_beyond_what_leaves_and_is_free() {
        let wanted = |moves: &[Move], free: u64, room: u64| {
            let room = [(NODE, Bytes::from_mib(room))];
            let may = [(NODE, Bytes::from_mib(100))];
            let wanted = super::wanted(moves, &[usage(free, 500, 0)], &room, &may);
            wanted.first().map_or(0, |reclaim| reclaim.bytes.0 >> 20)
        };
        let (up, down) = (asked(40, 2, 0), asked(30, 0, 2));
        assert_eq!(wanted(std::slice::from_ref(&up), 60, 50), 0);
        assert_eq!(wanted(std::slice::from_ref(&up), 35, 25), 15);
        assert_eq!(wanted(&[down.clone(), up.clone()], 10, 0), 10);
        // Below the reserve nothing would be let in.
        assert_eq!(wanted(std::slice::from_ref(&up), 4, 0), 46);
        assert_eq!(wanted(&[down], 4, 0), 0);
        assert_eq!(wanted(&[up.clone(), up.clone(), up], 10, 0), 100);
    }

    #[test]
    fn what_is_read_back_is_left_alone_longer_each_time() {
        let mut cache = PageCache::default();
        let mut refaults = 1_000_000;
        cache.follow(&[usage(0, 400, refaults)], &[]);
        assert!(
            !cache.rests(),
            "what was read back before counts for nothing"
        );
        // An eighth of it may come back.
        refaults += 10 * 256;
        cache.follow(&[usage(0, 400, refaults)], &given(100));
        assert!(!cache.rests());
        let mut rests = |quiet: u64| {
            for _ in 0..quiet {
                cache.follow(&[usage(0, 400, refaults)], &[]);
                assert!(!cache.rests());
            }
            refaults += 40 * 256;
            cache.follow(&[usage(0, 400, refaults)], &given(100));
            let mut epochs = 0;
            while cache.rests() {
                assert_eq!(cache.room(&usage(0, 400, refaults)), Bytes::ZERO);
                epochs += 1;
                cache.follow(&[usage(0, 400, refaults)], &[]);
            }
            epochs
        };
        assert_eq!(rests(0), 8);
        assert_eq!(rests(0), 16);
        assert_eq!(rests(0), 32);
        assert_eq!(rests(40), 32, "one doubling is forgiven");
    }

    #[test]
    fn where_files_fight_for_it_anyway_nothing_is_taken() {
        let mut cache = PageCache::default();
        for epoch in 0..50 {
            cache.follow(&[usage(0, 400, 4096 * epoch)], &[]);
            assert_eq!(cache.rests(), epoch > 0);
        }
        // Quiet again, it is tried after a while.
        let quiet = (0..).take_while(|_| {
            cache.follow(&[usage(0, 400, 4096 * 49)], &[]);
            cache.rests()
        });
        assert!(quiet.count() < 9);
    }
}
