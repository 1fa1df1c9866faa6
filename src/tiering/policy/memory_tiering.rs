//! The kernel's memory tiering: `numa_balancing=2`, and demotion by reclaim.
//!
//! **Unit.** Rates are accesses of a page per second, times are seconds.
//!
//! **Approach** (Linux 6.18). Pages on slow memory are made to fault, window by window
//! ([`Scan`]); one that is touched within a second after that is hot, and is brought straight to
//! the node of the CPU that touched it (`should_numa_migrate_memory`). While fewer candidates come
//! than the rate limit of 64 GB/s allows, as ever, the second becomes longer with each minute, two
//! at most (`numa_promotion_adjust_threshold`); while the node has much room, any page is brought
//! that is touched (`pgdat_free_space_enough`). A node that is full has kswapd demote what was not
//! touched between two of its looks, to the next tier below.
//!
//! A page that was not touched since it was made to fault keeps the time of that, and is late when
//! it is touched at last. But that time has few bits where `CONFIG_NR_CPUS` is small, and wraps
//! round ([`MemoryTieringSettings`]): of 16 CPUs in four seconds, so that a quarter of all late
//! pages seem to be hot.
//!
//! Here faults are not seen, but each region's rate of accesses is, as the counts of its samples
//! stand for one: of pages that are touched by chance at a rate, so many are touched within a time
//! as Poisson's law says, and so many are brought. The top tier is all nodes up to the last that
//! has CPUs, as the kernel takes it.
//!
//! **Assumed.** That kswapd's looks are a second apart, and take nothing for cold by mistake; that
//! much room is 1 GiB (the kernel: or a sixteenth of the node). What scans cost is not
//! in it; faults are counted ([`Policy::take_hint_faults`]). It decides once per epoch, so that it is late by one. What was seen in all windows counts
//! as touched all the time.
//!
//! **Properties** (tests below): no node is filled beyond its room; what lies in the top tier
//! is never promoted; what is touched all the time never gives way.

mod scan;

use std::collections::HashMap;

use scan::{Piece, Scan};

use super::place::{Place, numbered};
use super::sorted::Sorted;
use super::{Budget, Ledger, Policy, TargetView, View, touched_in};
use crate::tiering::observation::TargetId;
use crate::tiering::plan::{Move, Reason};
use crate::tiering::region::Region;
use crate::tiering::settings::MemoryTieringSettings;
use crate::units::{Bytes, NodeId};

/// Seconds within which a page that faults is hot (`hot_threshold_ms`), how much longer that is
/// after each minute, and how long it becomes.
const HOT_WITHIN: f64 = 1.0;
const LONGER_BY: f64 = 0.125;
const LONGER_AFTER: f64 = 60.0;
const HOT_WITHIN_MOST: f64 = 2.0;
/// With so much room on a node any page is promoted to it that is touched.
const ROOM_ENOUGH: Bytes = Bytes(1 << 30);
/// A smaller share of late faults is not looked for.
const SELDOM: f64 = 1e-2;
/// Seconds from one of kswapd's looks at a page to the next.
const RECLAIM_LOOKS: f64 = 1.0;

/// Decides as the kernel does.
#[derive(Clone, Debug)]
pub struct MemoryTiering {
    settings: MemoryTieringSettings,
    scans: HashMap<TargetId, Scan>,
    /// Seconds since it was begun.
    seconds: f64,
    owed: Owed,
    /// Not told yet.
    faults: f64,
}

/// Parts of a folio, 0 to 1, that were to be promoted and demoted so far: the next region has
/// one folio more when its own part makes it whole.
#[derive(Clone, Copy, Debug, Default)]
struct Owed {
    up: f64,
    down: f64,
}

impl MemoryTiering {
    /// With these settings.
    pub fn new(settings: MemoryTieringSettings) -> Self {
        Self {
            settings,
            scans: HashMap::new(),
            seconds: 0.0,
            owed: Owed::default(),
            faults: 0.0,
        }
    }
}

impl Policy for MemoryTiering {
    fn name(&self) -> &'static str {
        "memory-tiering"
    }

    fn ema(&self) -> f32 {
        1.0
    }

    fn take_hint_faults(&mut self) -> f64 {
        std::mem::take(&mut self.faults)
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
            // Of milliseconds.
            wrap: f64::from(self.settings.time_bits).exp2() / 1e3,
            free: Ledger::free(view),
            left: budget.bytes,
            gone: HashMap::new(),
            found: HashMap::new(),
            coldest: None,
            cursors: Vec::new(),
            owed: self.owed,
            has_room: false,
            faults: 0.0,
            moves: Vec::new(),
        };
        for (target, t) in numbered(&view.targets) {
            let Some(slow_from) = slow_from(t) else {
                continue;
            };
            let scan = self.scans.entry(t.id);
            let scan = scan.or_insert_with(|| Scan::new(self.settings.by_worker));
            scan.begin(t, interval);
            let late_are_hot = draft.seems_new() >= SELDOM || draft.has_room_on_top(t);
            for (region, r) in numbered(t.regions) {
                let Some(piece) = scan.waiting(region, r) else {
                    continue;
                };
                draft.count((target, piece), slow_from, Fault::Late);
                let may_go = late_are_hot && !draft.left.is_zero();
                if may_go && draft.promote((target, piece), slow_from, Fault::Late) {
                    scan.promoted();
                }
            }
            while !draft.left.is_zero() {
                let slow = |region: &Region| slow(t, slow_from, region);
                let Some(window) = scan.next(t, slow) else {
                    break;
                };
                for piece in window {
                    draft.count((target, piece), slow_from, Fault::New);
                    if draft.promote((target, piece), slow_from, Fault::New) {
                        scan.promoted();
                    }
                }
            }
        }
        self.owed = draft.owed;
        self.faults += draft.faults;
        if draft.has_room {
            // The kernel's threshold begins anew then.
            self.seconds = 0.0;
        }
        draft.moves
    }
}

/// The first rank below the top tier; none if there is none.
fn slow_from(target: &TargetView<'_>) -> Option<usize> {
    let ranks = target.tiers.ranks();
    let last = ranks.iter().rposition(|rank| rank.has_cpus).unwrap_or(0);
    (last + 1 < ranks.len()).then_some(last + 1)
}

/// The node of the CPU that touches a page.
fn top(target: &TargetView<'_>) -> Option<NodeId> {
    target.tiers.ranks().first()?.nodes.first().copied()
}

/// What of a region lies on slow memory.
fn slow(target: &TargetView<'_>, slow_from: usize, region: &Region) -> Bytes {
    let pages = region.pages().iter().filter(|&(node, _)| {
        let rank = target.tiers.rank_of(node);
        rank.is_some_and(|rank| rank >= slow_from)
    });
    Bytes::from_pages(pages.map(|(_, pages)| pages).sum())
}

/// When a page faults that was made to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// After the window that made it.
    New,
    /// In a later epoch.
    Late,
}

/// How far the search for what gives way on a node has come.
struct Cursor {
    node: NodeId,
    at: usize,
    /// What of the region there may still go, when that was found out.
    may_go: Option<Bytes>,
}

/// A plan in the making.
struct Draft<'a, 'v> {
    view: &'a View<'v>,
    interval: f64,
    hot_within: f64,
    /// Seconds after which a page's time seems new again.
    wrap: f64,
    free: Ledger,
    left: Bytes,
    /// What of regions leaves nodes by this plan.
    gone: HashMap<(u32, u32, NodeId), Bytes>,
    /// What of regions was there when the scan came to them.
    found: HashMap<(u32, u32, NodeId), Bytes>,
    /// All that may give way, when that was asked for.
    coldest: Option<Vec<Place>>,
    /// How far the search for it has come on each node.
    cursors: Vec<Cursor>,
    owed: Owed,
    /// Whether there was so much room that any page was promoted that is touched.
    has_room: bool,
    /// Folios that faulted.
    faults: f64,
    moves: Vec<Move>,
}

impl Draft<'_, '_> {
    /// Counts the folios of this piece of a region, on slow memory, that fault.
    fn count(&mut self, (target, piece): (u32, Piece), slow_from: usize, fault: Fault) {
        let place = Place {
            target,
            region: piece.region,
        };
        let region = place.region_in(self.view);
        if region.is_known() {
            let (touched, _) = self.faults(region, &piece, fault);
            let here = slow(place.target_in(self.view), slow_from, region);
            self.faults += piece.share * touched * here.as_f64() / region.folio_bytes() as f64;
        }
    }

    /// Brings what of this piece of a region, on slow memory, seems hot when it faults. Returns
    /// whether anything was.
    fn promote(&mut self, (target, piece): (u32, Piece), slow_from: usize, fault: Fault) -> bool {
        let place = Place {
            target,
            region: piece.region,
        };
        let (target, region) = (place.target_in(self.view), place.region_in(self.view));
        if !region.is_known() || self.view.epoch < region.stuck_until() {
            return false;
        }
        let (touched, hot) = self.faults(region, &piece, fault);
        let folio = region.folio_bytes();
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
            let found = match fault {
                Fault::Late => here,
                Fault::New if piece.is_first => {
                    *self.found.entry(key).insert_entry(here).into_mut()
                }
                Fault::New => *self.found.entry(key).or_insert(here),
            };
            let Some(to) = top(target) else {
                continue;
            };
            let has_room = self.has_room_on_top(target);
            self.has_room |= has_room;
            let share = piece.share * if has_room { touched } else { hot } * found.as_f64();
            let want = folios(&mut self.owed.up, share, folio);
            let want = whole(want.min(here).min(self.left), folio);
            if want.is_zero() {
                continue;
            }
            if self.free.on(to) < want {
                self.make_room(to, want, place);
            }
            let bytes = whole(want.min(self.free.on(to)), folio);
            has_promoted |= self.go(place, (from, to), bytes, Reason::Hot);
        }
        has_promoted
    }

    /// The share of a region's pages that fault, and that of those which seem hot then.
    fn faults(&self, region: &Region, piece: &Piece, fault: Fault) -> (f64, f64) {
        let rate = self.view.rate(region.heat());
        match fault {
            Fault::New => {
                // What was not touched since it was made to fault last keeps the time of that.
                let has_new_time = piece.waited.map_or(1.0, |waited| touched_in(rate, waited));
                let hot = has_new_time * touched_in(rate, self.hot_within);
                (touched_in(rate, piece.pass), hot)
            }
            // It faults once, and says no more while nobody looks.
            Fault::Late if !region.is_fresh() => (0.0, 0.0),
            Fault::Late => {
                let before = self.view.rate(region.previous());
                let waits = 1.0 - touched_in(before, piece.waited.unwrap_or(0.0));
                let faults = waits * touched_in(rate, self.interval);
                (faults, faults * self.seems_new())
            }
        }
    }

    /// Whether the fastest node has so much room that any page is promoted to it that is touched.
    fn has_room_on_top(&self, target: &TargetView<'_>) -> bool {
        top(target).is_some_and(|node| self.free.on(node) >= ROOM_ENOUGH)
    }

    /// The share of late faults that seem to come soon, since the time wrapped round.
    fn seems_new(&self) -> f64 {
        (self.hot_within / self.wrap).min(1.0)
    }

    /// Demotes what was not touched of late until so much is free.
    fn make_room(&mut self, node: NodeId, want: Bytes, hot: Place) {
        let at = self.cursors.iter().position(|cursor| cursor.node == node);
        let slot = at.unwrap_or_else(|| {
            let (at, may_go) = (0, None);
            self.cursors.push(Cursor { node, at, may_go });
            self.cursors.len() - 1
        });
        let coldest = self.coldest.take();
        let coldest = coldest.unwrap_or_else(|| coldest_first(self.view));
        while self.free.on(node) < want && !self.left.is_zero() {
            let Some(&place) = coldest.get(self.cursors[slot].at) else {
                break;
            };
            let known = self.cursors[slot].may_go;
            let may_go = known.unwrap_or_else(|| self.untouched(place, node));
            let folio = place.region_in(self.view).folio_bytes();
            let lack = want.saturating_sub(self.free.on(node));
            let lack = Bytes(lack.0.div_ceil(folio) * folio);
            let down = self.next_down(place, node, folio).filter(|_| place != hot);
            let bytes = down.map_or(Bytes::ZERO, |(_, room)| {
                whole(may_go.min(lack).min(room).min(self.left), folio)
            });
            if let Some((to, _)) = down {
                self.go(place, (node, to), bytes, Reason::Room);
            }
            let rest = may_go.saturating_sub(bytes);
            let cursor = &mut self.cursors[slot];
            if bytes.is_zero() || rest.is_zero() {
                cursor.at += 1;
                cursor.may_go = None;
            } else {
                cursor.may_go = Some(rest);
            }
        }
        self.coldest = Some(coldest);
    }

    /// What of a region on a node was not touched between two looks, and may leave it.
    fn untouched(&mut self, place: Place, node: NodeId) -> Bytes {
        let region = place.region_in(self.view);
        if self.view.epoch < region.stuck_until() {
            return Bytes::ZERO;
        }
        let untouched = (-self.view.rate(region.heat()) * RECLAIM_LOOKS).exp();
        let here = self.left_on(place, node);
        let share = untouched * here.as_f64();
        folios(&mut self.owed.down, share, region.folio_bytes()).min(here)
    }

    /// The next tier below the top that has room for a folio, as who owns the region sees it.
    fn next_down(&self, place: Place, node: NodeId, folio: u64) -> Option<(NodeId, Bytes)> {
        let target = place.target_in(self.view);
        let mut slower = target.tiers.ranks().iter().skip(slow_from(target)?);
        slower.find_map(|rank| {
            let roomiest = self.free.roomiest(rank);
            roomiest.filter(|&(to, room)| to != node && room.0 >= folio)
        })
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
        let moved = place.moved(self.view, (from, to), bytes, reason);
        self.moves.push(moved);
        true
    }
}

/// Whole folios of so many bytes.
fn whole(bytes: Bytes, folio: u64) -> Bytes {
    Bytes(bytes.0 / folio * folio)
}

/// The same of a mean, and what is owed of a folio after that.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn folios(owed: &mut f64, bytes: f64, folio: u64) -> Bytes {
    let all = *owed + bytes / folio as f64;
    *owed = all.fract();
    // `as` saturates.
    Bytes((all.trunc() as u64).saturating_mul(folio))
}

/// What is known of, the coldest first.
fn coldest_first(view: &View<'_>) -> Vec<Place> {
    let mut order = Sorted::new();
    for (target, t) in numbered(&view.targets) {
        for (region, r) in numbered(t.regions) {
            if r.is_known() {
                order.add(r.heat().into(), Place { target, region });
            }
        }
    }
    order.ascending().collect()
}

#[cfg(test)]
mod tests;
