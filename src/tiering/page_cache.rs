//! Page cache on fast nodes: how much of it makes room for what is hot.
//!
//! **Unit.** Bytes; pages of 4 KiB that were read back.
//!
//! **Problem.** Files take whatever memory is free, first on the node of the CPU that reads them.
//! Of a machine that has been up for a day the fastest node has none left: what a program allocates
//! then goes to slower nodes, and where no target has cold memory on the fastest one nothing could
//! ever be promoted.
//!
//! **Approach.** What the kernel itself would give up next, its idle and clean page cache, may make
//! room where nothing colder of the targets does: up to a quarter of it with each plan. The mover has
//! the kernel give it back when the moves have used up what needs none. Whether that was a mistake
//! shows: what is read back soon after it was given back the kernel counts as a refault. Where more
//! than an eighth of it comes back, or page cache is fought for without us, it is left alone for half a
//! minute, and twice as long each time. So is a node of which the kernel gives back less than half of
//! what it was asked for, or to which the moves did not come all the same.
//!
//! **Source.** TPP (ASPLOS '23) for free memory on the fastest node before it is needed; ours takes
//! page cache only, and only what a promotion is about to fill. Refaults as the measure of too much
//! are those of Linux' own working set detection (`mm/workingset.c`).
//!
//! **Limits.** With MGLRU idle is what is in old generations, and what is read back to another node
//! than it was on is no refault: then only a reader knows that it was slowed, once.
//!
//! **Properties** (tests below): no more than a quarter of what is idle; nothing while it rests; what
//! fits in free memory needs none.

use super::observation::NodeUsage;
use super::plan::{Move, MoveOutcome, Reason, Reclaim, Reclaimed};
use super::rest::Rest;
use crate::units::{Bytes, Nanos, NodeId};

/// So much that is idle stays on each node, one in so many bytes of it, and no less than its reserve:
/// with less than that the kernel would look for other memory.
const KEPT: Bytes = Bytes::from_mib(16);
const KEPT_PART: u64 = 64;
/// One in so many bytes of the rest may go with one plan.
const PART: u64 = 4;
/// What gave way counts half after so long, and so does what was read back.
const HALF_LIFE: Nanos = Nanos::from_secs(30);
/// Share of it that may be read back, beyond bytes per second that may be whatever gave way.
const MAY_RETURN: f64 = 0.125;
const STRAY: f64 = (1 << 20) as f64;
/// Whether page cache may make room. See the module.
#[derive(Clone, Debug, Default)]
pub struct PageCache {
    at: Nanos,
    /// Bytes that gave way of late, and that were read back beyond what may be anyway.
    given: f64,
    back: f64,
    /// Refaults since boot, as last told.
    refaults: Vec<(NodeId, u64)>,
    /// Of all nodes, and of those that gave back too little.
    rest: Rest,
    nodes: Vec<(NodeId, Rest)>,
}

impl PageCache {
    /// What the epoch that ends `at` this time brought, and what the last plan's moves made of it.
    pub fn follow(&mut self, at: Nanos, nodes: &[NodeUsage], outcome: &MoveOutcome) {
        let elapsed = at.saturating_sub(self.at).as_secs_f64();
        self.at = at;
        let back = Bytes::from_pages(self.read_back(nodes));
        let fades = 0.5_f64.powf(elapsed / HALF_LIFE.as_secs_f64());
        let given: Bytes = outcome.reclaimed.iter().map(|r| r.given).sum();
        self.given = fades * self.given + given.as_f64();
        self.back = fades * self.back + (back.as_f64() - STRAY * elapsed).max(0.0);
        if self.back > MAY_RETURN * self.given {
            // Else the same would go on extending it.
            self.back = 0.0;
            self.rest.begin(at);
        }
        let is_there = |node: NodeId| nodes.iter().any(|usage| usage.node == node);
        self.nodes.retain(|(node, _)| is_there(*node));
        for &Reclaimed { node, asked, given } in &outcome.reclaimed {
            let to = outcome.results.iter().filter(|r| r.asked.to == node);
            let no_room = Bytes::from_pages(to.map(|r| r.pages.no_room).sum());
            // What was given another took, or it is no place for these.
            let is_lost = no_room > Bytes(given.0 / 2);
            if is_there(node) && (given < Bytes(asked.0 / 2) || is_lost) {
                self.rest_of(node).begin(at);
            }
        }
    }

    /// Pages that were read back since this was last asked, of nodes that were there then: wherever
    /// they were, they may be read back to another node.
    fn read_back(&mut self, nodes: &[NodeUsage]) -> u64 {
        let told = nodes
            .iter()
            .filter_map(|u| Some((u.node, u.cache?.refaults)));
        let before = std::mem::replace(&mut self.refaults, told.collect());
        let back = self.refaults.iter().map(|(node, now)| {
            let then = before.iter().find(|(n, _)| n == node);
            then.map_or(0, |(_, then)| now.saturating_sub(*then))
        });
        back.fold(0, u64::saturating_add)
    }

    fn rest_of(&mut self, node: NodeId) -> &mut Rest {
        let found = self.nodes.iter().position(|(n, _)| *n == node);
        let at = found.unwrap_or_else(|| {
            self.nodes.push((node, Rest::default()));
            self.nodes.len() - 1
        });
        &mut self.nodes[at].1
    }

    /// Whether it is left alone, on any node: too much was read back, or too little given back.
    pub fn rests(&self) -> bool {
        let mut all = self.nodes.iter().map(|(_, rest)| *rest);
        self.rest.is_on(self.at) || all.any(|rest| rest.is_on(self.at))
    }

    /// Bytes that may make room on a node now, beyond what it lacks of its reserve.
    pub fn room(&self, usage: &NodeUsage) -> Bytes {
        let mut rests = self.nodes.iter().filter(|(node, _)| *node == usage.node);
        let rests = self.rest.is_on(self.at) || rests.any(|(_, rest)| rest.is_on(self.at));
        let Some(cache) = usage.cache.filter(|_| !rests) else {
            return Bytes::ZERO;
        };
        let kept = KEPT
            .max(Bytes(usage.total.0 / KEPT_PART))
            .max(usage.reserve);
        Bytes(cache.idle.saturating_sub(kept).0 / PART).saturating_sub(lacks(usage))
    }
}

/// What a node lacks of its reserve, below which the mover fills none.
fn lacks(usage: &NodeUsage) -> Bytes {
    usage.reserve.saturating_sub(usage.free)
}

/// What has to give way for these moves: of each node what comes to it beyond what makes place for
/// it and its room, and what it lacks of its reserve. Never more than may.
pub fn wanted(
    moves: &[Move],
    nodes: &[NodeUsage],
    room: &[(NodeId, Bytes)],
    cache: &[(NodeId, Bytes)],
) -> Vec<Reclaim> {
    let sum = |is: &dyn Fn(&Move) -> bool| -> Bytes {
        let moves = moves.iter().filter(|m| is(m));
        moves.map(|m| m.limit).sum()
    };
    let may = cache.iter().filter(|(_, may)| !may.is_zero());
    may.filter_map(|&(node, may)| {
        let usage = nodes.iter().find(|usage| usage.node == node)?;
        let free = room.iter().filter(|(n, _)| *n == node);
        let free: Bytes = free.map(|(_, bytes)| *bytes).sum();
        // What is given back to the headroom is no room.
        let after = free + sum(&|m| m.from == node && m.reason != Reason::Headroom);
        let short = sum(&|m| m.to == node).saturating_sub(after).min(may);
        (!short.is_zero()).then(|| Reclaim {
            node,
            bytes: short + lacks(usage),
            after,
        })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiering::observation::{CacheUsage, TargetId};
    use crate::tiering::plan::{MoveResult, PageCounts};
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

    fn asked(mib: u64, reason: Reason) -> Move {
        let (from, to) = match reason {
            Reason::Hot => (2, 0),
            _ => (0, 2),
        };
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

    fn given(asked: u64, given: u64) -> MoveOutcome {
        MoveOutcome {
            reclaimed: vec![Reclaimed {
                node: NODE,
                asked: Bytes::from_mib(asked),
                given: Bytes::from_mib(given),
            }],
            ..MoveOutcome::default()
        }
    }

    fn nothing() -> MoveOutcome {
        MoveOutcome::default()
    }

    #[test]
    fn a_quarter_of_what_is_idle_may_give_way_but_for_a_little() {
        let cache = PageCache::default();
        let room = |usage: NodeUsage| cache.room(&usage);
        assert_eq!(room(usage(10, 416, 0)), Bytes::from_mib(100));
        assert_eq!(room(usage(10, 16, 0)), Bytes::ZERO);
        // What is lacking of the reserve comes first.
        assert_eq!(room(usage(4, 416, 0)), Bytes::from_mib(94));
        let reserve = Bytes::from_mib(216);
        let (free, usual) = (reserve, usage(0, 416, 0));
        let much = NodeUsage {
            free,
            reserve,
            ..usual
        };
        assert_eq!(room(much), Bytes::from_mib(50));
        let untold = NodeUsage {
            cache: None,
            ..usual
        };
        assert_eq!(room(untold), Bytes::ZERO);
    }

    #[test]
    fn what_is_needed_is_what_comes_beyond_what_makes_place_and_is_free() {
        use Reason::{Headroom, Hot, Room};
        let wanted = |moves: &[(u64, Reason)], free: u64, room: u64| {
            let moves: Vec<Move> = moves.iter().map(|&(mib, why)| asked(mib, why)).collect();
            let room = [(NODE, Bytes::from_mib(room))];
            let may = [(NODE, Bytes::from_mib(100))];
            let wanted = super::wanted(&moves, &[usage(free, 500, 0)], &room, &may);
            let mib = |bytes: Bytes| bytes.0 >> 20;
            wanted
                .first()
                .map_or((0, 0), |r| (mib(r.bytes), mib(r.after)))
        };
        assert_eq!(wanted(&[(40, Hot)], 60, 50), (0, 0));
        assert_eq!(wanted(&[(40, Hot)], 35, 25), (15, 25));
        assert_eq!(wanted(&[(30, Room), (40, Hot)], 10, 0), (10, 30));
        // Headroom is no room.
        assert_eq!(wanted(&[(40, Hot), (30, Headroom)], 10, 0), (40, 0));
        // Below the reserve nothing would be let in.
        assert_eq!(wanted(&[(40, Hot)], 4, 0), (46, 0));
        assert_eq!(wanted(&[(30, Room)], 4, 0), (0, 0));
        assert_eq!(wanted(&[(400, Hot)], 10, 0), (100, 0));
    }

    /// Seconds of rest that follow, an epoch of ten each; what is left of a minute after it.
    fn rests(cache: &mut PageCache, at: &mut u64, refaults: u64) -> u64 {
        let begin = *at;
        while cache.rests() {
            assert_eq!(cache.room(&usage(10, 416, refaults)), Bytes::ZERO);
            *at += 10;
            cache.follow(
                Nanos::from_secs(*at),
                &[usage(10, 416, refaults)],
                &nothing(),
            );
        }
        *at - begin
    }

    #[test]
    fn what_is_read_back_is_left_alone_longer_each_time() {
        let mut cache = PageCache::default();
        let (mut at, mut refaults) = (10, 1_000_000);
        let second = Nanos::from_secs;
        cache.follow(second(at), &[usage(10, 416, refaults)], &nothing());
        assert!(
            !cache.rests(),
            "what was read back before counts for nothing"
        );
        // An eighth of it may come back.
        at += 10;
        refaults += 12 * 256;
        cache.follow(second(at), &[usage(10, 416, refaults)], &given(100, 100));
        assert!(!cache.rests());
        for want in [30, 60, 120] {
            at += 10;
            refaults += 60 * 256;
            cache.follow(second(at), &[usage(10, 416, refaults)], &given(100, 100));
            assert_eq!(rests(&mut cache, &mut at, refaults), want);
        }
        at += 2000;
        refaults += 3000 * 256;
        cache.follow(second(at), &[usage(10, 416, refaults)], &nothing());
        assert_eq!(
            rests(&mut cache, &mut at, refaults),
            30,
            "that was long ago"
        );
    }

    #[test]
    fn a_node_that_gives_back_little_is_left_alone_and_others_are_not() {
        let mut cache = PageCache::default();
        let mut at = 10;
        cache.follow(Nanos::from_secs(at), &[usage(10, 416, 0)], &given(8, 4));
        assert!(!cache.rests());
        cache.follow(Nanos::from_secs(at), &[usage(10, 416, 0)], &given(8, 3));
        let other = NodeUsage {
            node: NodeId(1),
            ..usage(10, 416, 0)
        };
        assert_eq!(cache.room(&other), Bytes::from_mib(100));
        assert_eq!(rests(&mut cache, &mut at, 0), 30);
        cache.follow(Nanos::from_secs(at), &[usage(10, 416, 0)], &given(8, 0));
        assert_eq!(rests(&mut cache, &mut at, 0), 60);
    }

    #[test]
    fn what_comes_back_epoch_by_epoch_adds_up() {
        // Of 100 MiB in each epoch, so many are read back.
        let ever_rests = |seconds: f64, back: u64| {
            let mut cache = PageCache::default();
            (1..100_u32).any(|epoch| {
                let at = Nanos::from_secs_f64(seconds * f64::from(epoch));
                let usage = usage(10, 416, u64::from(epoch) * back * 256);
                cache.follow(at, &[usage], &given(100, 100));
                cache.rests()
            })
        };
        for seconds in [3.3, 10.0, 30.0] {
            assert!(
                ever_rests(seconds, 100) && ever_rests(seconds, 50),
                "{seconds}"
            );
            assert!(!ever_rests(seconds, 10), "{seconds}");
        }
    }

    #[test]
    fn where_nothing_comes_for_all_that_was_given_it_rests() {
        let no_room = |mib: u64| MoveOutcome {
            results: vec![MoveResult {
                asked: asked(20, Reason::Hot),
                pages: PageCounts {
                    no_room: mib * 256,
                    ..PageCounts::default()
                },
                is_whole: true,
            }],
            ..given(20, 20)
        };
        let mut cache = PageCache::default();
        cache.follow(Nanos::from_secs(10), &[usage(10, 416, 0)], &no_room(10));
        assert!(!cache.rests());
        cache.follow(Nanos::from_secs(20), &[usage(10, 416, 0)], &no_room(11));
        assert!(cache.rests());
    }

    #[test]
    fn where_files_fight_for_it_anyway_nothing_is_taken() {
        let mut cache = PageCache::default();
        // Two megabytes a second.
        for epoch in 0..50 {
            let usage = usage(10, 416, 5120 * epoch);
            cache.follow(Nanos::from_secs(10 * epoch), &[usage], &nothing());
            assert_eq!(cache.rests(), epoch > 0);
        }
        let mut at = 490;
        assert_eq!(rests(&mut cache, &mut at, 5120 * 49), 30);
    }
}
