//! What each target is due of the fastest memory when there are several.
//!
//! **Unit.** Bytes on the nodes that are fastest for a target. An *entry* is what the
//! configuration names as one target: its processes share what it is due.
//!
//! **Problem.** By gain alone the target with the hottest pages gets all of the fastest
//! memory. Who runs two services on one machine may want one to have a part of it that
//! does not depend on what the other does, and no part that nobody uses.
//!
//! **Approach.** What an entry *wants* is what of it is warm, wherever that lies. Of that
//! it is due its floor; and if any entry has a weight, what remains is divided by
//! weights, up to what each wants (weighted max-min fairness). What is cold belongs to
//! nobody. Warm memory gives way to another entry's only as far as its own has more
//! than it is due, and then by gain; to an entry that has clearly less than it is due it
//! gives way though it is hotter.
//!
//! **Source.** Max-min fairness by water-filling; floors as cgroup v2's `memory.low`.
//!
//! **Properties** (tests below): nobody is due more than it wants, all together no more
//! than there is, and if somebody wants more than it is due nothing of it is left over.

use super::place::{Place, numbered};
use super::{TargetView, View};
use crate::units::{Bytes, NodeId};

/// An entry is helped to what it is due when it has less than this share of it: what is
/// warm changes a little with each epoch.
const SHORT: f64 = 0.9;
/// Halvings of the level to which weights are filled.
const STEPS: usize = 64;

/// How warm memory of one target may give way to another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GiveWay {
    /// If that gains.
    ByGain,
    /// In any case, at most so many bytes: the other is due them.
    Due(Bytes),
    /// If that gains, at most so many bytes.
    Spare(Bytes),
}

/// What one entry wants, has and is due on the nodes that are fastest for it.
#[derive(Clone, Debug)]
struct Claim {
    entry: u32,
    nodes: Vec<NodeId>,
    weight: f64,
    floor: f64,
    wants: f64,
    has: f64,
    due: f64,
    is_short: bool,
}

/// See the module. Empty where no target has a weight or a floor.
#[derive(Clone, Debug, Default)]
pub(super) struct Shares {
    claims: Vec<Claim>,
    /// The claim of each target, by its place in the view.
    of: Vec<usize>,
}

impl Shares {
    /// What the targets of a view are due.
    pub(super) fn of(view: &View<'_>, is_warm: impl Fn(Place) -> bool) -> Self {
        let shares = || view.targets.iter().map(|target| target.share);
        let has_weights = shares().any(|share| share.weight.is_some());
        if !has_weights && shares().all(|share| share.floor.is_zero()) {
            return Self::default();
        }
        let mut made = Self::default();
        for (at, target) in numbered(&view.targets) {
            let claim = made.claim_of(target);
            made.of.push(claim);
            let claim = &mut made.claims[claim];
            for (region, r) in numbered(target.regions) {
                if !is_warm(Place { target: at, region }) {
                    continue;
                }
                for (node, pages) in r.pages().iter() {
                    let bytes = Bytes::from_pages(pages).as_f64();
                    claim.wants += bytes;
                    if claim.nodes.contains(&node) {
                        claim.has += bytes;
                    }
                }
            }
        }
        made.divide(view, has_weights);
        made
    }

    fn claim_of(&mut self, target: &TargetView<'_>) -> usize {
        let nodes = target.tiers.ranks().first();
        let nodes = nodes.map_or(&[][..], |rank| &rank.nodes);
        let entry = target.share.entry;
        let same = |claim: &Claim| claim.entry == entry && claim.nodes == nodes;
        if let Some(at) = self.claims.iter().position(same) {
            return at;
        }
        self.claims.push(Claim {
            entry,
            nodes: nodes.to_vec(),
            weight: f64::from(target.share.weight.unwrap_or(1)),
            floor: target.share.floor.as_f64(),
            wants: 0.0,
            has: 0.0,
            due: 0.0,
            is_short: false,
        });
        self.claims.len() - 1
    }

    /// Divides what there is among those for whom the same nodes are fastest.
    fn divide(&mut self, view: &View<'_>, has_weights: bool) {
        for first in 0..self.claims.len() {
            let nodes = self.claims[first].nodes.clone();
            let group: Vec<usize> = (0..self.claims.len())
                .filter(|&at| self.claims[at].nodes == nodes)
                .collect();
            if group[0] != first {
                continue;
            }
            let demands: Vec<Demand> = group.iter().map(|&at| self.claims[at].demand()).collect();
            let dues = dues(&demands, capacity(view, &nodes), has_weights);
            for (at, due) in group.into_iter().zip(dues) {
                let claim = &mut self.claims[at];
                claim.due = due;
                claim.is_short = claim.has < SHORT * due;
            }
        }
    }

    /// Targets with the same number have the same right to what others have.
    pub(super) fn class(&self, target: u32) -> usize {
        self.of.get(target as usize).copied().unwrap_or(0)
    }

    /// Whether a target's entry has clearly less than it is due.
    pub(super) fn is_short(&self, target: u32) -> bool {
        let claim = self.claim(target);
        claim.is_some_and(|claim| claim.is_short && claim.has < claim.due)
    }

    /// How warm memory of `cold` on a node may give way to memory of `hot`, two targets by
    /// their places in the view.
    pub(super) fn between(&self, hot: u32, cold: u32, node: NodeId) -> GiveWay {
        let (Some(taker), Some(giver)) = (self.claim(hot), self.claim(cold)) else {
            return GiveWay::ByGain;
        };
        let is_own = self.class(hot) == self.class(cold);
        // Elsewhere nobody is due anything.
        if is_own || taker.nodes != giver.nodes || !giver.nodes.contains(&node) {
            return GiveWay::ByGain;
        }
        let spare = giver.has - giver.due;
        if taker.is_short && taker.has < taker.due {
            GiveWay::Due(whole(spare.min(taker.due - taker.has)))
        } else {
            GiveWay::Spare(whole(spare))
        }
    }

    /// So much warm memory of a target came to a node.
    pub(super) fn came(&mut self, target: u32, node: NodeId, bytes: Bytes) {
        self.change(target, node, bytes.as_f64());
    }

    /// So much warm memory of a target left a node.
    pub(super) fn left(&mut self, target: u32, node: NodeId, bytes: Bytes) {
        self.change(target, node, -bytes.as_f64());
    }

    fn change(&mut self, target: u32, node: NodeId, bytes: f64) {
        let claim = self.of.get(target as usize).copied();
        if let Some(claim) = claim.map(|at| &mut self.claims[at])
            && claim.nodes.contains(&node)
        {
            claim.has += bytes;
        }
    }

    fn claim(&self, target: u32) -> Option<&Claim> {
        self.of.get(target as usize).map(|&at| &self.claims[at])
    }
}

impl Claim {
    fn demand(&self) -> Demand {
        Demand {
            wants: self.wants,
            weight: self.weight,
            floor: self.floor,
        }
    }
}

/// What one asks for.
#[derive(Clone, Copy, Debug)]
struct Demand {
    wants: f64,
    weight: f64,
    floor: f64,
}

/// What each is due of so many bytes.
fn dues(demands: &[Demand], capacity: f64, has_weights: bool) -> Vec<f64> {
    let floor = |demand: &Demand| demand.floor.min(demand.wants);
    let floors: f64 = demands.iter().map(floor).sum();
    if floors >= capacity {
        let part = capacity / floors.max(1.0);
        return demands.iter().map(|demand| part * floor(demand)).collect();
    }
    if !has_weights {
        return demands.iter().map(floor).collect();
    }
    let at = |level: f64, demand: &Demand| {
        let share = level * demand.weight;
        share.max(floor(demand)).min(demand.wants)
    };
    let wants: f64 = demands.iter().map(|demand| demand.wants).sum();
    // With one byte or more for each of its weight's units nobody wants more.
    let (mut low, mut high) = (0.0, wants);
    if wants > capacity {
        for _ in 0..STEPS {
            let level = f64::midpoint(low, high);
            let sum: f64 = demands.iter().map(|demand| at(level, demand)).sum();
            if sum > capacity {
                high = level;
            } else {
                low = level;
            }
        }
        high = low;
    }
    demands.iter().map(|demand| at(high, demand)).collect()
}

/// What is free on these nodes, what page cache may make room for, and what targets have there.
fn capacity(view: &View<'_>, nodes: &[NodeId]) -> f64 {
    let free = view.room.iter().chain(&view.cache);
    let free = free.filter(|(node, _)| nodes.contains(node));
    let free: Bytes = free.map(|(_, bytes)| *bytes).sum();
    let regions = view.targets.iter().flat_map(|target| target.regions);
    let pages = regions.flat_map(|region| region.pages().iter());
    let there = pages.filter(|(node, _)| nodes.contains(node));
    let there: u64 = there.map(|(_, pages)| pages).sum();
    free.as_f64() + Bytes::from_pages(there).as_f64()
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole(bytes: f64) -> Bytes {
    // `as` saturates: below none is none.
    Bytes(bytes as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn demand(wants: f64, weight: f64, floor: f64) -> Demand {
        Demand {
            wants,
            weight,
            floor,
        }
    }

    fn check(demands: &[Demand], capacity: f64, weights: bool, want: &[f64]) {
        let got = dues(demands, capacity, weights);
        let near = |(got, want): (&f64, &f64)| (got - want).abs() < 1e-6 * capacity;
        assert!(got.iter().zip(want).all(near), "{got:?}, not {want:?}");
    }

    #[test]
    fn weights_divide_what_there_is() {
        let both = [demand(100.0, 3.0, 0.0), demand(100.0, 1.0, 0.0)];
        check(&both, 80.0, true, &[60.0, 20.0]);
        check(&both, 1000.0, true, &[100.0, 100.0]);
    }

    #[test]
    fn what_one_does_not_want_the_others_get() {
        let three = [
            demand(10.0, 8.0, 0.0),
            demand(100.0, 1.0, 0.0),
            demand(100.0, 2.0, 0.0),
        ];
        check(&three, 100.0, true, &[10.0, 30.0, 60.0]);
    }

    #[test]
    fn a_floor_comes_before_weights_as_far_as_it_is_wanted() {
        let floor = |wants| [demand(100.0, 3.0, 0.0), demand(wants, 1.0, 40.0)];
        check(&floor(100.0), 80.0, true, &[40.0, 40.0]);
        check(&floor(10.0), 80.0, true, &[70.0, 10.0]);
        check(&floor(100.0), 80.0, false, &[0.0, 40.0]);
        check(&floor(100.0), 20.0, true, &[0.0, 20.0]);
    }

    proptest! {
        #[test]
        fn all_is_divided_and_nobody_gets_more_than_it_wants(
            demands in prop::collection::vec(
                (0.0..1e12_f64, 1..10_000_u16, 0.0..1e12_f64)
                    .prop_map(|(wants, weight, floor)| demand(wants, f64::from(weight), floor)),
                1..6,
            ),
            capacity in 0.0..2e12_f64,
        ) {
            let got = dues(&demands, capacity, true);
            let sum: f64 = got.iter().sum();
            let wants: f64 = demands.iter().map(|demand| demand.wants).sum();
            prop_assert!((sum - capacity.min(wants)).abs() <= 1e-6 * wants.max(capacity));
            for (due, demand) in got.iter().zip(&demands) {
                prop_assert!(*due <= demand.wants && *due >= 0.0);
            }
        }
    }
}
