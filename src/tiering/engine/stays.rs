//! On which nodes a target's threads run, and for how long they stay there.
//!
//! **Unit.** Seconds; shares of a target's CPU time, which sum to one.
//!
//! **Problem.** The scheduler moves threads from socket to socket quicker than memory can
//! follow. Memory that goes after them from one socket's DRAM to the other's is moved for
//! nothing if they do not stay: for two nodes that differ only by who is near, a move pays by
//! how long the threads remain.
//!
//! **Approach.** A *stay* lasts from one change of the node with most of the CPU time to the
//! next. A target that has stayed for a mean of `D` seconds is expected to stay as long again,
//! and to be anywhere after that as it was in the long run. So over a horizon `H` it is
//! expected where it is now for `min(D, H)`, and as in the long run for the rest. A socket counts
//! as its own only if it is expected there for most of the horizon ([`DECIDED`]); else the
//! nodes where it runs count alike, and their DRAM shares a rank.
//!
//! **Properties.** A target that never changes is where it is, from its first epoch on. One that
//! changes more often than the horizon is long has one view that does not change with it. One that
//! stays elsewhere is followed once it has stayed for as long as the horizon, or for longer than
//! it was away.

use std::collections::BTreeMap;

use crate::units::{Nanos, NodeId};

/// `H`: what a move between sockets must pay back in, seconds.
const HORIZON: f64 = 120.0;
/// What is older than this counts for little, seconds.
const MEMORY: f64 = 600.0;
/// Expected share of the CPU time from which on a node is a target's own.
const DECIDED: f64 = 0.8;
/// A view changes only when some share of it does by more than this.
const CHANGE: f64 = 0.2;
/// A node that gives less than this part of what the busiest one gives is not one of those
/// that count alike.
const SOME: f64 = 0.25;

/// What is remembered of where a target ran.
#[derive(Debug, Default)]
pub(super) struct Stays {
    /// Seconds on each node, of late.
    spent: BTreeMap<NodeId, f64>,
    /// Changes of the node with most of the time, of late, and that node now.
    changes: f64,
    now: Option<NodeId>,
    view: Vec<(NodeId, f64)>,
}

impl Stays {
    /// Shares of its CPU time by which it sees the tiers; empty before the first epoch.
    pub(super) fn view(&self) -> &[(NodeId, f64)] {
        &self.view
    }

    /// Learns where it ran in an epoch of this length; nothing of one in which it did not.
    pub(super) fn learn(&mut self, now: &[(NodeId, f64)], elapsed: Nanos) {
        let most = now.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        let Some(&(most, _)) = most else { return };
        let seconds = elapsed.as_secs_f64();
        let kept = (-seconds / MEMORY).exp();
        self.spent.values_mut().for_each(|spent| *spent *= kept);
        self.changes *= kept;
        for &(node, share) in now {
            *self.spent.entry(node).or_default() += share * seconds;
        }
        if self.now.replace(most).is_some_and(|before| before != most) {
            self.changes += 1.0;
        }
        let expected = self.expected(now);
        let old = |node| {
            self.view
                .iter()
                .find(|(n, _)| *n == node)
                .map_or(0.0, |s| s.1)
        };
        let differs = |&(node, share): &(NodeId, f64)| (share - old(node)).abs() > CHANGE;
        if self.view.is_empty() || expected.iter().any(differs) {
            self.view = expected;
        }
    }

    /// Shares to be expected over the horizon, decided.
    fn expected(&self, now: &[(NodeId, f64)]) -> Vec<(NodeId, f64)> {
        let all: f64 = self.spent.values().sum();
        // Before any change: it may stay for ever.
        let stay = match self.changes {
            changes if changes > 0.0 => (all / (changes + 1.0)).min(HORIZON),
            _ => HORIZON,
        };
        let here = stay / HORIZON;
        let shares = self.spent.iter().map(|(&node, spent)| {
            let now = now.iter().find(|(n, _)| *n == node).map_or(0.0, |s| s.1);
            (
                node,
                here * now + (1.0 - here) * spent / all.max(f64::MIN_POSITIVE),
            )
        });
        let mut shares: Vec<(NodeId, f64)> = shares.collect();
        let most = shares.iter().map(|(_, share)| *share).fold(0.0, f64::max);
        if most < DECIDED {
            let counts = |share: f64| share >= SOME * most;
            let count = shares.iter().filter(|(_, share)| counts(*share)).count();
            for (_, share) in &mut shares {
                *share = if counts(*share) {
                    1.0 / count as f64
                } else {
                    0.0
                };
            }
        }
        shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn on(node: u32) -> [(NodeId, f64); 1] {
        [(NodeId(node), 1.0)]
    }

    /// Its view after so many epochs of 10 s on each of these, and how often it changed.
    fn view_after(course: &[(u32, u32)]) -> (Vec<(u32, f64)>, u32) {
        let (mut stays, mut changes) = (Stays::default(), 0);
        for &(node, epochs) in course {
            for _ in 0..epochs {
                let before = stays.view().to_vec();
                stays.learn(&on(node), Nanos::from_secs(10));
                changes += u32::from(!before.is_empty() && before != stays.view());
            }
        }
        let view = stays.view().iter().map(|&(node, share)| (node.0, share));
        (view.collect(), changes)
    }

    #[test]
    fn who_stays_is_where_it_is_from_the_first_epoch_on() {
        assert_eq!(view_after(&[(1, 1)]), (vec![(1, 1.0)], 0));
        assert_eq!(view_after(&[(1, 100)]).1, 0);
    }

    #[test]
    fn who_goes_to_and_fro_has_one_view() {
        // As the scheduler moves an unpinned thread: stays of 20 to 40 s.
        let course = [0, 1].repeat(20);
        for epochs in [2, 3, 4] {
            let course: Vec<(u32, u32)> = course.iter().map(|&node| (node, epochs)).collect();
            let (view, changes) = view_after(&course);
            assert_eq!(view, [(0, 0.5), (1, 0.5)], "{epochs}");
            assert!(changes <= 3, "{changes} for stays of {epochs}");
        }
    }

    #[test]
    fn who_has_moved_for_good_is_followed() {
        // After five minutes elsewhere, at once; after one epoch, within a minute or two.
        let node_1 = |course: &[(u32, u32)]| {
            let view = view_after(course).0;
            view.iter()
                .find(|(node, _)| *node == 1)
                .map_or(0.0, |s| s.1)
        };
        assert!(node_1(&[(0, 30), (1, 2)]) > DECIDED);
        assert!(node_1(&[(0, 1), (1, 12)]) > DECIDED);
        // Also after much going about.
        let mut course = [(0, 2), (1, 2)].repeat(10);
        course.push((1, 60));
        assert!(node_1(&course) > DECIDED);
    }

    #[test]
    fn threads_on_both_sockets_see_both_alike() {
        let mut stays = Stays::default();
        for turn in 0..20_u32 {
            let first = if turn % 2 == 0 { 0.55 } else { 0.45 };
            let now = [(NodeId(0), first), (NodeId(1), 1.0 - first)];
            stays.learn(&now, Nanos::from_secs(10));
            assert_eq!(stays.view(), [(NodeId(0), 0.5), (NodeId(1), 0.5)]);
        }
    }

    proptest! {
        /// Wherever it runs, shares are shares.
        #[test]
        fn shares_sum_to_one(
            course in proptest::collection::vec(
                (proptest::collection::vec(0.01_f64..1.0, 1..5), 1_u64..100), 1..40),
        ) {
            let mut stays = Stays::default();
            for (weights, seconds) in course {
                let all: f64 = weights.iter().sum();
                let now: Vec<(NodeId, f64)> =
                    (0..).map(NodeId).zip(weights.iter().map(|w| w / all)).collect();
                stays.learn(&now, Nanos::from_secs(seconds));
                let sum: f64 = stays.view().iter().map(|(_, share)| share).sum();
                prop_assert!((sum - 1.0).abs() < 1e-9, "{sum}");
            }
        }
    }
}
