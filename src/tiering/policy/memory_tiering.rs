//! The kernel's memory tiering: `numa_balancing=2`, and demotion by reclaim.
//!
//! **Unit.** Rates are accesses of a page per second, times seconds.
//!
//! **Approach** (Linux 6.18). Pages on slow memory are made to fault, window by window
//! ([`Scan`]); one that is touched within a second after that is hot, and is brought straight to
//! the node of the CPU that touched it (`should_numa_migrate_memory`). While fewer candidates come
//! than the rate limit of 64 GB/s allows, as ever, the second becomes longer with each minute, two at
//! most (`numa_promotion_adjust_threshold`); while the node has much room, any page is brought that is touched
//! (`pgdat_free_space_enough`). A node that is full has kswapd demote what was not
//! touched between two of its looks, to the next tier below.
//!
//! Here faults are not seen, but each region's rate of accesses is, as the counts of its samples
//! stand for one: of pages that are touched by chance at a rate, so many are touched within a time
//! as Poisson's law says, and so many are brought. The top tier is all nodes up to the last that
//! has CPUs, as the kernel takes it.
//!
//! **Assumed.** That kswapd's looks are a second apart; what faults and scans cost is not in it.
//! It decides once per epoch, so that it is late by one.
//!
//! **Properties** (tests below): no node is filled beyond its room; what lies in the top tier
//! is never promoted; what is touched all the time never gives way.

mod scan;

use std::collections::HashMap;

use scan::{Piece, Scan};

use super::place::{Place, numbered};
use super::{Budget, Ledger, Policy, TargetView, View};
use crate::tiering::observation::TargetId;
use crate::tiering::plan::{Move, Reason};
use crate::tiering::region::Region;
use crate::units::{Bytes, NodeId};

/// Seconds within which a page that faults is hot (`hot_threshold_ms`), how much longer that is
/// after each minute, and how long it becomes.
const HOT_WITHIN: f64 = 1.0;
const LONGER_BY: f64 = 0.125;
const LONGER_AFTER: f64 = 60.0;
const HOT_WITHIN_MOST: f64 = 2.0;
/// With so much room on a node any page is promoted to it that is touched.
const ROOM_ENOUGH: Bytes = Bytes(1 << 30);
/// Seconds from one of kswapd's looks at a page to the next.
const RECLAIM_LOOKS: f64 = 1.0;

/// Decides as the kernel does.
#[derive(Clone, Debug, Default)]
pub struct MemoryTiering {
    scans: HashMap<TargetId, Scan>,
    /// Seconds since it was begun.
    seconds: f64,
    /// Parts of pages that are still to be promoted, and demoted.
    owed: Owed,
}

/// Bytes that are less than a folio, kept for the next one.
#[derive(Clone, Copy, Debug, Default)]
struct Owed {
    up: f64,
    down: f64,
}

impl Policy for MemoryTiering {
    fn name(&self) -> &'static str {
        "memory-tiering"
    }

    fn ema(&self) -> f32 {
        1.0
    }

    fn decide(&mut self, view: &View<'_>, budget: Budget) -> Vec<Move> {
        let is_there = |id: TargetId| view.targets.iter().any(|target| target.id == id);
        self.scans.retain(|&id, _| is_there(id));
        let interval = view.interval.as_secs_f64();
        self.seconds += interval;
        let longer = LONGER_BY * (self.seconds / LONGER_AFTER).floor();
        let mut draft = Draft {
            view,
            interval,
            hot_within: (HOT_WITHIN + longer).min(HOT_WITHIN_MOST),
            free: Ledger::free(view),
            left: budget.bytes,
            gone: HashMap::new(),
            found: HashMap::new(),
            coldest: None,
            cursors: Vec::new(),
            owed: self.owed,
            moves: Vec::new(),
        };
        for (target, t) in numbered(&view.targets) {
            let Some(slow_from) = slow_from(t) else {
                continue;
            };
            let scan = self.scans.entry(t.id).or_default();
            scan.begin(interval);
            while !draft.left.is_zero() {
                let slow = |region: &Region| slow(t, slow_from, region);
                let Some(window) = scan.next(t, slow) else {
                    break;
                };
                let pass = scan.pass(t);
                for piece in window {
                    if draft.promote((target, piece), slow_from, pass) {
                        scan.promoted();
                    }
                }
            }
        }
        self.owed = draft.owed;
        draft.moves
    }
}

/// The first rank below the top tier; none if there is none.
fn slow_from(target: &TargetView<'_>) -> Option<usize> {
    let ranks = target.tiers.ranks();
    let last = ranks.iter().rposition(|rank| rank.has_cpus).unwrap_or(0);
    (last + 1 < ranks.len()).then_some(last + 1)
}

/// What of a region lies on slow memory.
fn slow(target: &TargetView<'_>, slow_from: usize, region: &Region) -> Bytes {
    let pages = region.pages().iter().filter(|&(node, _)| {
        let rank = target.tiers.rank_of(node);
        rank.is_some_and(|rank| rank >= slow_from)
    });
    Bytes::from_pages(pages.map(|(_, pages)| pages).sum())
}

/// A plan in the making.
struct Draft<'a, 'v> {
    view: &'a View<'v>,
    interval: f64,
    hot_within: f64,
    free: Ledger,
    left: Bytes,
    /// What of regions leaves nodes by this plan.
    gone: HashMap<(u32, u32, NodeId), Bytes>,
    /// What of regions was there when the scan came to them.
    found: HashMap<(u32, u32, NodeId), Bytes>,
    /// All that may give way, when that was asked for.
    coldest: Option<Vec<Place>>,
    /// How far the search for it has come on each node.
    cursors: Vec<(NodeId, usize)>,
    owed: Owed,
    moves: Vec<Move>,
}

impl Draft<'_, '_> {
    /// Accesses per second of a page of a region, as far as one can see.
    fn rate(&self, region: &Region) -> f64 {
        let of_a_folio = self.view.rates.of(f64::from(region.heat())) / self.interval;
        if of_a_folio.is_finite() {
            of_a_folio
        } else {
            0.0
        }
    }

    /// Brings what of this piece of a region, on slow memory, is touched soon after it was looked
    /// at. Returns whether anything was.
    fn promote(&mut self, (target, piece): (u32, Piece), slow_from: usize, pass: f64) -> bool {
        let place = Place {
            target,
            region: piece.region,
        };
        let (target, region) = (place.target_in(self.view), place.region_in(self.view));
        if !region.is_known() || self.view.epoch < region.stuck_until() {
            return false;
        }
        let rate = self.rate(region);
        let folio = region.folio_bytes();
        let ranks = target.tiers.ranks();
        let mut has_promoted = false;
        for (from, _) in region.pages().iter() {
            if target
                .tiers
                .rank_of(from)
                .is_none_or(|rank| rank < slow_from)
            {
                continue;
            }
            let here = self.left_on(place, from);
            let key = (place.target, place.region, from);
            let found = *if piece.is_first {
                self.found.entry(key).insert_entry(here).into_mut()
            } else {
                self.found.entry(key).or_insert(here)
            };
            let Some(&to) = ranks.first().and_then(|rank| rank.nodes.first()) else {
                continue;
            };
            let within = if self.free.on(to) >= ROOM_ENOUGH {
                pass
            } else {
                self.hot_within
            };
            let touched = 1.0 - (-rate * within).exp();
            self.owed.up += piece.share * touched * found.as_f64();
            let want = whole(self.owed.up, folio).min(here).min(self.left);
            if want.is_zero() {
                continue;
            }
            self.owed.up -= want.as_f64();
            if self.free.on(to) < want {
                self.make_room(to, want, place, slow_from);
            }
            let bytes = whole(want.min(self.free.on(to)).as_f64(), folio);
            has_promoted |= self.go(place, (from, to), bytes, Reason::Hot);
        }
        has_promoted
    }

    /// Demotes what was not touched of late until so much is free.
    fn make_room(&mut self, node: NodeId, want: Bytes, hot: Place, slow_from: usize) {
        let at = self.cursors.iter().position(|c| c.0 == node);
        let slot = at.unwrap_or_else(|| {
            self.cursors.push((node, 0));
            self.cursors.len() - 1
        });
        let coldest = self.coldest.take();
        let coldest = coldest.unwrap_or_else(|| coldest_first(self.view));
        while self.free.on(node) < want && !self.left.is_zero() {
            let Some(&place) = coldest.get(self.cursors[slot].1) else {
                break;
            };
            let (target, region) = (place.target_in(self.view), place.region_in(self.view));
            let here = self.left_on(place, node);
            let mut slower = target.tiers.ranks().iter().skip(slow_from);
            let down = slower.find_map(|rank| self.free.roomiest(rank));
            let Some((to, room)) = down.filter(|_| !here.is_zero() && place != hot) else {
                self.cursors[slot].1 += 1;
                continue;
            };
            let all = Bytes::from_pages(region.pages().on(node)).as_f64();
            let untouched = (-self.rate(region) * RECLAIM_LOOKS).exp();
            // That share of all of it, of which some may have gone.
            let due = self.owed.down + here.as_f64() - (1.0 - untouched) * all;
            let folio = region.folio_bytes();
            let may_go = whole(due, folio).min(here);
            let lack = want.saturating_sub(self.free.on(node));
            let lack = Bytes(lack.0.div_ceil(folio) * folio);
            let most = may_go.min(lack).min(room).min(self.left);
            let bytes = whole(most.as_f64(), folio);
            self.go(place, (node, to), bytes, Reason::Room);
            if bytes == may_go {
                self.cursors[slot].1 += 1;
                self.owed.down = (due - may_go.as_f64()).clamp(0.0, folio as f64);
            } else if bytes.is_zero() {
                break;
            }
        }
        self.coldest = Some(coldest);
    }

    /// Bytes of a region on a node that do not leave it yet.
    fn left_on(&self, place: Place, node: NodeId) -> Bytes {
        let gone = self.gone.get(&(place.target, place.region, node));
        let pages = place.region_in(self.view).pages().on(node);
        Bytes::from_pages(pages).saturating_sub(gone.copied().unwrap_or_default())
    }

    /// One move, if there is anything to be moved.
    fn go(
        &mut self,
        place: Place,
        (from, to): (NodeId, NodeId),
        bytes: Bytes,
        reason: Reason,
    ) -> bool {
        if bytes.is_zero() {
            return false;
        }
        self.free.take(to, bytes);
        self.free.give(from, bytes);
        self.left = self.left.saturating_sub(bytes);
        let gone = self.gone.entry((place.target, place.region, from));
        *gone.or_default() += bytes;
        let target = place.target_in(self.view);
        self.moves.push(Move {
            target: target.id,
            pid: target.pid,
            range: place.region_in(self.view).range(),
            from,
            to,
            limit: bytes,
            direction: reason.direction(),
            reason,
        });
        true
    }
}

/// Whole folios of so many bytes.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole(bytes: f64, folio: u64) -> Bytes {
    Bytes(bytes.max(0.0) as u64 / folio * folio)
}

/// What is known of, the coldest first.
fn coldest_first(view: &View<'_>) -> Vec<Place> {
    let mut order: Vec<(f32, Place)> = Vec::new();
    for (target, t) in numbered(&view.targets) {
        for (region, r) in numbered(t.regions) {
            if r.is_known() {
                order.push((r.heat(), Place { target, region }));
            }
        }
    }
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    order.into_iter().map(|(_, place)| place).collect()
}

#[cfg(test)]
mod tests;
