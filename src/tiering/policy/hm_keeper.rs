//! Policy `hm-keeper`: fast promotion, slow demotion (HM-Keeper §1.3).
//!
//! **Unit.** Hotness in scans per epoch; volumes in bytes that are present.
//!
//! **Problem.** With more than two tiers a hot page should reach the best
//! tier at once, and what has to leave should not fall to the slowest.
//!
//! **Approach.** All regions of all targets go into one histogram. Walked from
//! the hottest, they fill the first rank's capacity, then the second's, and so
//! on: where a region's bytes land is its *ideal* rank. Then, hottest first
//! and at most N bytes per epoch, a region that lies slower than its ideal is
//! promoted straight there. Where there is no room, the coldest regions on
//! that node go to the next slower rank with room.
//!
//! As `hm-keeper-hierarchical` it promotes tier by tier: each epoch to the next faster one.
//!
//! Where the paper is silent we chose:
//! - A region below `promotion_threshold`, or in the coldest bucket, is never
//!   promoted: what stray accesses do to a cold page is no hotness. Nor is one that
//!   would be below if `prior_samples` more had seen nothing of it: where little may be
//!   spent a large region has one sample, and that is chance.
//! - Within a bucket, what is fast already comes first, so that equals do not
//!   change places.
//! - A region gives way only to one that is hotter by `eviction_margin`, and
//!   what was moved rests for `rest_epochs` before it may go the other way.
//!
//! **Properties** (tests below): no node is filled beyond its room; promoted
//! bytes stay within N, all bytes within the budget; each demotion stands before
//! the promotion that it makes room for, and goes only as far down as there is
//! room; with hotness still, moves come to rest.

use super::place::{Place, numbered};
use super::{Budget, Ledger, Policy, TargetView, View};
use crate::tiering::hotness::Histogram;
use crate::tiering::plan::{Direction, Move, Reason};
use crate::tiering::region::Region;
use crate::tiering::settings::HmKeeperSettings;
use crate::units::{Bytes, NodeId};

/// HM-Keeper's strategy. Holds no state between epochs: hotness and the time
/// of the last move are the regions' own.
#[derive(Clone, Debug)]
pub struct HmKeeper {
    settings: HmKeeperSettings,
    /// Whether promotion skips no tier.
    tier_by_tier: bool,
}

impl HmKeeper {
    /// With these settings.
    pub fn new(settings: HmKeeperSettings) -> Self {
        Self {
            settings,
            tier_by_tier: false,
        }
    }

    /// The same, but promotion skips no tier.
    #[must_use]
    pub fn tier_by_tier(self) -> Self {
        Self {
            tier_by_tier: true,
            ..self
        }
    }
}

/// Bytes of a region that should be on a node.
#[derive(Clone, Copy, Debug)]
struct Ideal {
    place: Place,
    rank: u32,
    node: NodeId,
    bytes: Bytes,
}

impl Policy for HmKeeper {
    fn name(&self) -> &'static str {
        if self.tier_by_tier {
            "hm-keeper-hierarchical"
        } else {
            "hm-keeper"
        }
    }

    #[allow(clippy::cast_possible_truncation)]
    fn ema(&self) -> f32 {
        self.settings.ema as f32
    }

    fn decide(&mut self, view: &View<'_>, budget: Budget) -> Vec<Move> {
        let census = Census::of(view, self.settings.buckets);
        let threshold = share(self.settings.promotion_threshold, view.scans);
        let prior = f32::from(self.settings.prior_samples);
        let ideals = ideals(view, &census, threshold, prior);
        Planner::new(view, &census, self, &ideals, budget).plan()
    }
}

/// All regions in one pass: each costs more to be fetched than to be looked at.
struct Census {
    /// Those with pages on the first rank, and the others, of the same hotness.
    fast: Histogram<Place>,
    slow: Histogram<Place>,
    /// What the targets could have altogether: free, or theirs already.
    capacity: Ledger,
}

impl Census {
    fn of(view: &View<'_>, buckets: usize) -> Self {
        let mut census = Self {
            fast: Histogram::new(buckets, view.scans),
            slow: Histogram::new(buckets, view.scans),
            capacity: Ledger::free(view),
        };
        for (target, t) in numbered(&view.targets) {
            let first = t.tiers.ranks().first();
            for (region, r) in numbered(t.regions) {
                let (mut is_anywhere, mut is_fast) = (false, false);
                for (node, pages) in r.pages().iter() {
                    census.capacity.give(node, Bytes::from_pages(pages));
                    is_anywhere = true;
                    is_fast |= first.is_some_and(|rank| rank.nodes.contains(&node));
                }
                if is_anywhere {
                    let histogram = if is_fast {
                        &mut census.fast
                    } else {
                        &mut census.slow
                    };
                    histogram.add(r.hotness(), Place { target, region });
                }
            }
        }
        census
    }

    /// All of them, coldest first but for what shares a bucket.
    fn coldest_first(&self) -> Vec<Place> {
        let buckets = || self.fast.buckets().iter().zip(self.slow.buckets());
        let mut all = Vec::with_capacity(buckets().map(|(f, s)| f.len() + s.len()).sum());
        for (fast, slow) in buckets() {
            all.extend_from_slice(fast);
            all.extend_from_slice(slow);
        }
        all
    }
}

/// Where the bytes of each region land when the hottest choose first. A
/// region may land on several ranks. One of which too little was seen stays where it is.
fn ideals(view: &View<'_>, census: &Census, threshold: f32, prior: f32) -> Vec<Ideal> {
    let mut capacity = census.capacity.clone();
    let buckets = census.fast.buckets().iter().zip(census.slow.buckets());
    // The coldest bucket has no ideal: it lies where it is until displaced.
    let buckets: Vec<_> = buckets.skip(1).collect();
    let mut ideals = Vec::with_capacity(buckets.iter().map(|(f, s)| f.len() + s.len()).sum());
    for (fast, slow) in buckets.into_iter().rev() {
        for &place in fast.iter().chain(slow) {
            let r = place.region_in(view);
            if r.hotness() < threshold {
                continue;
            }
            let is_sure = r.assured(prior) >= threshold;
            let mut left = r.resident();
            for (rank, nodes) in (0..).zip(place.target_in(view).tiers.ranks()) {
                // First the nodes where it is already, then the roomiest.
                let here = nodes.nodes.iter().map(|&n| (n, r.pages().on(n)));
                for (node, pages) in here.filter(|&(_, pages)| pages > 0) {
                    let bytes = left.min(capacity.on(node)).min(Bytes::from_pages(pages));
                    land(
                        &mut ideals,
                        &mut capacity,
                        &mut left,
                        (place, rank, node),
                        bytes,
                    );
                }
                while let Some((node, room)) = capacity.roomiest(nodes).filter(|_| is_sure) {
                    let bytes = left.min(room);
                    if bytes.is_zero() {
                        break;
                    }
                    land(
                        &mut ideals,
                        &mut capacity,
                        &mut left,
                        (place, rank, node),
                        bytes,
                    );
                }
                if left.is_zero() {
                    break;
                }
            }
        }
    }
    ideals
}

fn land(
    ideals: &mut Vec<Ideal>,
    capacity: &mut Ledger,
    left: &mut Bytes,
    (place, rank, node): (Place, u32, NodeId),
    bytes: Bytes,
) {
    if bytes.is_zero() {
        return;
    }
    capacity.take(node, bytes);
    *left = left.saturating_sub(bytes);
    let mut mine = ideals.iter_mut().rev().take_while(|i| i.place == place);
    if let Some(same) = mine.find(|i| i.node == node) {
        same.bytes += bytes;
        return;
    }
    ideals.push(Ideal {
        place,
        rank,
        node,
        bytes,
    });
}

/// Beyond all ideals.
const NO_IDEAL: u32 = u32::MAX;

/// A plan in the making.
struct Planner<'a, 'v> {
    view: &'a View<'v>,
    settings: &'a HmKeeperSettings,
    tier_by_tier: bool,
    free: Ledger,
    /// Bytes that may still be promoted, and moved at all.
    promotions_left: Bytes,
    left: Bytes,
    /// Every region, coldest first, and how far each node's search for victims
    /// has come.
    coldest: Vec<Place>,
    cursors: Vec<(NodeId, usize, Bytes)>,
    ideals: &'a [Ideal],
    /// Per target and region where its ideals begin; [`NO_IDEAL`] if it has none.
    ideals_of: Vec<Vec<u32>>,
    moves: Vec<Move>,
}

impl<'a, 'v> Planner<'a, 'v> {
    fn new(
        view: &'a View<'v>,
        census: &Census,
        policy: &'a HmKeeper,
        ideals: &'a [Ideal],
        budget: Budget,
    ) -> Self {
        let regions = view.targets.iter().map(|t| t.regions.len());
        let mut ideals_of: Vec<Vec<u32>> = regions.map(|n| vec![NO_IDEAL; n]).collect();
        for (at, ideal) in numbered(ideals) {
            let place = ideal.place;
            let first = &mut ideals_of[place.target as usize][place.region as usize];
            *first = at.min(*first);
        }
        Self {
            view,
            settings: &policy.settings,
            tier_by_tier: policy.tier_by_tier,
            free: Ledger::free(view),
            promotions_left: policy.settings.promotion_bytes.min(budget.bytes),
            left: budget.bytes,
            coldest: census.coldest_first(),
            cursors: Vec::new(),
            ideals,
            ideals_of,
            moves: Vec::new(),
        }
    }

    fn plan(mut self) -> Vec<Move> {
        for ideal in self.ideals {
            if self.promotions_left.is_zero() || self.left.is_zero() {
                break;
            }
            self.promote(*ideal);
        }
        self.moves
    }

    /// Brings to `ideal.node`, or one tier nearer to it, what of the region lies slower.
    fn promote(&mut self, ideal: Ideal) {
        let target = ideal.place.target_in(self.view);
        let r = ideal.place.region_in(self.view);
        if self.rests(r, Direction::Promotion) {
            return;
        }
        let here = Bytes::from_pages(r.pages().on(ideal.node));
        let mut need = ideal.bytes.saturating_sub(here);
        let ranks = target.tiers.ranks();
        let slower = ranks.len().saturating_sub(ideal.rank as usize + 1);
        for at in 0..slower {
            // The slowest first: they gain most. Tier by tier the fastest, so that what
            // has just gone up a tier does not go on.
            let rank = if self.tier_by_tier {
                ideal.rank as usize + 1 + at
            } else {
                ranks.len() - 1 - at
            };
            let nodes = &ranks[rank];
            let Some(to) = self.step_up(target, rank, ideal) else {
                continue;
            };
            for &from in &nodes.nodes {
                let there = Bytes::from_pages(r.pages().on(from));
                let want = need.min(there).min(self.promotions_left).min(self.left);
                if want.is_zero() {
                    continue;
                }
                self.make_room(to, want, r.hotness());
                // What could not be freed is not promoted.
                let bytes = want.min(self.free.on(to)).min(self.left);
                if bytes.is_zero() {
                    // Of the next rank something else may be in the way.
                    break;
                }
                need = need.saturating_sub(bytes);
                self.free.take(to, bytes);
                self.free.give(from, bytes);
                self.promotions_left = self.promotions_left.saturating_sub(bytes);
                self.left = self.left.saturating_sub(bytes);
                let moved = ideal.place.moved(self.view, (from, to), bytes, Reason::Hot);
                self.moves.push(moved);
            }
        }
    }

    /// Where what lies on a rank goes on its way to its ideal.
    fn step_up(&self, target: &TargetView<'_>, rank: usize, ideal: Ideal) -> Option<NodeId> {
        if !self.tier_by_tier || rank - 1 == ideal.rank as usize {
            return Some(ideal.node);
        }
        let next = target.tiers.ranks().get(rank - 1)?;
        let roomiest = self.free.roomiest(next).map(|(node, _)| node);
        roomiest.or_else(|| next.nodes.first().copied())
    }

    /// Demotes the coldest of `node` until `bytes` are free there, as long as
    /// they are colder than `hotness` by the margin.
    fn make_room(&mut self, node: NodeId, bytes: Bytes, hotness: f32) {
        while self.free.on(node) < bytes && !self.left.is_zero() {
            let lack = bytes.saturating_sub(self.free.on(node));
            if !self.demote_one(node, lack, hotness) {
                return;
            }
        }
    }

    /// Demotes up to `lack` bytes of the coldest region on `node` that may go.
    /// Returns whether there was one.
    fn demote_one(&mut self, node: NodeId, lack: Bytes, hotness: f32) -> bool {
        let slot = self.cursor(node);
        let (_, mut at, mut taken) = self.cursors[slot];
        let margin = share(self.settings.eviction_margin, self.view.scans);
        let mut done = false;
        while let Some(&place) = self.coldest.get(at) {
            let victim = place.region_in(self.view);
            if victim.pages().on(node) == 0 {
                // It says nothing of those that are there.
                at += 1;
                taken = Bytes::ZERO;
                continue;
            }
            if victim.hotness() + margin > hotness {
                // All that follow are hotter, give or take a bucket.
                break;
            }
            let target = place.target_in(self.view);
            let here = Bytes::from_pages(victim.pages().on(node)).saturating_sub(taken);
            let may_go = here.saturating_sub(self.kept(place, node));
            let rests = self.rests(victim, Direction::Demotion);
            let down = if may_go.is_zero() || rests || !victim.is_known() {
                None
            } else {
                self.next_down(target.tiers, node)
            };
            let Some((to, room)) = down else {
                at += 1;
                taken = Bytes::ZERO;
                continue;
            };
            // A folio leaves as a whole.
            let folio = victim.folio_bytes();
            let lack = Bytes(lack.0.div_ceil(folio) * folio);
            let bytes = may_go.min(lack).min(room).min(self.left);
            self.free.give(node, bytes);
            self.free.take(to, bytes);
            self.left = self.left.saturating_sub(bytes);
            taken += bytes;
            let moved = place.moved(self.view, (node, to), bytes, Reason::Room);
            self.moves.push(moved);
            done = true;
            break;
        }
        self.cursors[slot] = (node, at, taken);
        done
    }

    /// Bytes of a region that should be on `node`.
    fn kept(&self, place: Place, node: NodeId) -> Bytes {
        let first = self.ideals_of[place.target as usize][place.region as usize];
        let from = self.ideals.get(first as usize..).unwrap_or_default();
        // Those of one region stand beside each other.
        let mine = from.iter().take_while(|ideal| ideal.place == place);
        mine.filter(|ideal| ideal.node == node)
            .map(|ideal| ideal.bytes)
            .sum()
    }

    fn cursor(&mut self, node: NodeId) -> usize {
        if let Some(slot) = self.cursors.iter().position(|c| c.0 == node) {
            return slot;
        }
        self.cursors.push((node, 0, Bytes::ZERO));
        self.cursors.len() - 1
    }

    /// The next slower rank with room, and its roomiest node.
    fn next_down(
        &self,
        tiers: &crate::tiering::tier::TierView,
        node: NodeId,
    ) -> Option<(NodeId, Bytes)> {
        let rank = tiers.rank_of(node)?;
        tiers.ranks()[rank + 1..]
            .iter()
            .find_map(|slower| self.free.roomiest(slower))
    }

    /// Whether a region was moved the other way too recently, or could not be.
    fn rests(&self, r: &Region, direction: Direction) -> bool {
        self.view.epoch < r.stuck_until()
            || r.moved().is_some_and(|(epoch, last)| {
                last != direction && self.view.epoch < epoch + self.settings.rest_epochs
            })
    }
}

/// A share of the scans, in scans.
#[allow(clippy::cast_possible_truncation)]
fn share(of_scans: f64, scans: u8) -> f32 {
    of_scans as f32 * f32::from(scans)
}

#[cfg(test)]
#[path = "hm_keeper_tests.rs"]
mod tests;
