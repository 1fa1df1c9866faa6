//! What others do, on the same observations: for comparison.
//!
//! Each peer is a row of a table: which regions it takes for hot, which for cold, in which
//! order it goes through them, where it puts them, and how many bytes it moves. What it is
//! in truth has a profiler and a mover of its own, which cost what they cost; here all see
//! what [`sampling`](crate::tiering::sampling) sees, and only decide. So a comparison is one of
//! strategies. Where a source gives times, they count in epochs here, and where it goes by
//! single accesses, in scans that saw one.
//!
//! **Properties** (tests below): no node is filled beyond its room; none moves what it
//! does not take for hot up, nor what it does not take for cold down.

use std::collections::HashMap;

use super::place::{Place, numbered};
use super::{Budget, Ledger, Policy, View, touched_in};
use crate::tiering::hotness::Histogram;
use crate::tiering::observation::TargetId;
use crate::tiering::plan::{Move, Reason};
use crate::tiering::region::Region;
use crate::units::{Bandwidth, Bytes, NodeId};

/// What is seen of a region, in shares of the scans.
#[derive(Clone, Copy, Debug)]
struct Seen {
    latest: f32,
    previous: f32,
    /// Smoothed, with the peer's own weight.
    hotness: f32,
}

/// In which order regions are gone through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// By hotness: the hottest first up, the coldest first down.
    Hotness,
    /// By address, each time on from where it ended: a list, or a clock.
    Turn,
    /// The same, but only so much per second is looked at, and at least one region.
    Window(Bandwidth),
}

/// Where what is hot goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Straight to the fastest tier.
    Straight,
    /// To the tier of its hotness: as many classes as tiers, of the same width.
    Class,
}

/// What makes room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// Nothing: what is hot goes where there is room.
    Free,
    /// As much that is cold as is needed for what is hot.
    Exchange,
    /// All that is cold leaves the fastest tier, needed or not.
    Sweep,
}

/// One who does it otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    name: &'static str,
    ema: f32,
    is_hot: fn(Seen) -> bool,
    is_cold: fn(Seen) -> bool,
    order: Order,
    way: Way,
    room: Room,
    /// Moved per second at most.
    rate: Option<Bandwidth>,
}

/// Weight of the newest epoch that leaves of what is older what memtierd's heat retains in
/// ten seconds: 0.9513 per second.
const HEAT_EMA: f32 = 0.393;
/// Of heat and age (memtierd's mover: 100 MB/s).
const MEMTIERD_RATE: Bandwidth = Bandwidth(100_000_000);
/// What AutoNUMA and those that build on it look at (`scan_size_mb`, once per second).
const SCAN_RATE: Bandwidth = Bandwidth(256 << 20);

/// Two lists per node, active and inactive: active is what was accessed in two looks one
/// after the other, and what is active on slow memory changes places with what is inactive
/// on fast. Nimble's improved active list (dissertation §2.2), which knows one fast and one
/// slow node; its period of 5 s is the epoch here.
pub const IAL: Peer = Peer {
    name: "ial",
    ema: 1.0,
    is_hot: |seen| seen.latest >= TOUCHED && seen.previous >= TOUCHED,
    is_cold: |seen| seen.latest < TOUCHED,
    order: Order::Turn,
    way: Way::Straight,
    room: Room::Exchange,
    rate: None,
};

/// memtierd's policy `heat`: ten classes of decaying heat, mapped to tiers.
pub const HEAT: Peer = Peer {
    name: "heat",
    ema: HEAT_EMA,
    is_hot: |_| true,
    is_cold: |_| true,
    order: Order::Hotness,
    way: Way::Class,
    room: Room::Sweep,
    rate: Some(MEMTIERD_RATE),
};

/// memtierd's policy `age`: what was idle for two epochs goes down, what was active in both
/// goes up.
pub const AGE: Peer = Peer {
    name: "age",
    ema: 1.0,
    is_hot: |seen| seen.latest >= TOUCHED && seen.previous >= TOUCHED,
    is_cold: |seen| seen.latest <= 0.0 && seen.previous <= 0.0,
    order: Order::Turn,
    way: Way::Straight,
    room: Room::Sweep,
    rate: Some(MEMTIERD_RATE),
};

/// HeMem: hot is what crosses a threshold, cold is what is below; a hot page in slow memory
/// changes places with a cold one in fast memory, in the order of their lists.
pub const HEMEM: Peer = Peer {
    name: "hemem",
    ema: 0.5,
    is_hot: |seen| seen.hotness >= 2.0 / 3.0,
    is_cold: |seen| seen.hotness < 2.0 / 3.0,
    order: Order::Turn,
    way: Way::Straight,
    room: Room::Exchange,
    rate: None,
};

/// Thermostat: what is accessed so seldom that all of it together slows the program by
/// little goes to slow memory; of what is there, what is accessed most comes back first.
pub const THERMOSTAT: Peer = Peer {
    name: "thermostat",
    ema: 0.5,
    is_hot: |seen| seen.hotness >= 1.0 / 3.0,
    is_cold: |seen| seen.hotness < 0.05,
    order: Order::Hotness,
    way: Way::Straight,
    room: Room::Sweep,
    rate: None,
};

/// The kernel's `numa_balancing=1`: what its threads touch twice of 256 MB per second, one
/// window after the other, comes to their node while there is room.
pub const AUTONUMA: Peer = Peer {
    name: "autonuma",
    ema: 1.0,
    is_hot: |seen| seen.latest >= TOUCHED && seen.previous >= TOUCHED,
    is_cold: |_| false,
    order: Order::Window(SCAN_RATE),
    way: Way::Straight,
    room: Room::Free,
    rate: None,
};

/// AutoTiering (OPM with background demotion): what of the same windows was touched more
/// often than the least accessed pages goes to the best tier that has such.
pub const AUTOTIERING: Peer = Peer {
    name: "autotiering",
    // A history of eight looks.
    ema: 0.25,
    is_hot: |seen| seen.hotness >= 1.0 / 2.0,
    is_cold: |seen| seen.hotness < 1.0 / 4.0,
    order: Order::Window(SCAN_RATE),
    way: Way::Straight,
    room: Room::Exchange,
    rate: None,
};

/// Seen accessed by one scan of three: once in a long while by all of its pages, or by
/// single scans of some.
const TOUCHED: f32 = 1.0 / 3.0;

/// Decides as a [`Peer`] does.
#[derive(Clone, Debug)]
pub struct PeerPolicy {
    peer: Peer,
    /// Where the turn through each target goes on: with the first region at or above this
    /// address.
    turns: HashMap<TargetId, u64>,
    /// Where the turn through all of them does.
    turn: Option<(TargetId, u64)>,
    /// Hint faults that were not told yet.
    faults: f64,
}

impl PeerPolicy {
    /// As this one.
    pub fn new(peer: Peer) -> Self {
        Self {
            peer,
            turns: HashMap::new(),
            turn: None,
            faults: 0.0,
        }
    }

    /// The same, for the list of policies.
    pub fn boxed(peer: Peer) -> Box<dyn Policy> {
        Box::new(Self::new(peer))
    }

    fn seen(view: &View<'_>, region: &Region) -> Seen {
        let scans = f32::from(view.scans.max(1));
        Seen {
            latest: region.latest() / scans,
            previous: region.previous() / scans,
            hotness: region.hotness() / scans,
        }
    }

    /// All regions in the order in which they are to be gone through for promotion.
    fn order(&mut self, view: &View<'_>) -> Vec<Place> {
        if self.peer.order == Order::Hotness {
            let mut order = coldest_first(view);
            order.reverse();
            return order;
        }
        let Order::Window(each) = self.peer.order else {
            return self.one_after_the_other(view);
        };
        let is_there = |id: TargetId| view.targets.iter().any(|target| target.id == id);
        self.turns.retain(|&id, _| is_there(id));
        let mut order = Vec::new();
        for (target, t) in numbered(&view.targets) {
            let turn = self.turns.entry(t.id).or_default();
            let from = t.regions.partition_point(|r| r.range().start().0 < *turn);
            let mut left = each.over(view.interval);
            for step in 0..t.regions.len() {
                if left.is_zero() {
                    break;
                }
                let at = (from + step) % t.regions.len();
                let region = &t.regions[at];
                // Of what is in the window. A region that is longer is looked at whole.
                let looked = left.min(region.range().bytes());
                let share = looked.as_f64() / region.range().bytes().as_f64();
                let touched = touched_in(view.rate(region.heat()), view.interval.as_secs_f64());
                let folios = region.resident().as_f64() / region.folio_bytes() as f64;
                self.faults += share * touched * folios;
                left = left.saturating_sub(region.range().bytes());
                *turn = region.range().end().0;
                if let Ok(region) = u32::try_from(at) {
                    order.push(Place { target, region });
                }
            }
        }
        order
    }

    /// All regions of all targets, from where the last plan had to stop.
    fn one_after_the_other(&self, view: &View<'_>) -> Vec<Place> {
        let mut order = Vec::new();
        let mut first = 0;
        for (target, t) in numbered(&view.targets) {
            if let Some((id, addr)) = self.turn
                && id == t.id
            {
                first = order.len() + t.regions.partition_point(|r| r.range().start().0 < addr);
            }
            let places = numbered(t.regions).map(|(region, _)| Place { target, region });
            order.extend(places);
        }
        // At the end of the last target's.
        let first = first.min(order.len());
        order.rotate_left(first);
        order
    }
}

fn coldest_first(view: &View<'_>) -> Vec<Place> {
    let mut histogram = Histogram::new(64, view.scans);
    for (target, t) in numbered(&view.targets) {
        for (region, r) in numbered(t.regions) {
            histogram.add(r.hotness(), Place { target, region });
        }
    }
    histogram.buckets().concat()
}

impl Policy for PeerPolicy {
    fn name(&self) -> &'static str {
        self.peer.name
    }

    fn ema(&self) -> f32 {
        self.peer.ema
    }

    fn take_hint_faults(&mut self) -> f64 {
        std::mem::take(&mut self.faults)
    }

    fn decide(&mut self, view: &View<'_>, budget: Budget) -> Vec<Move> {
        let order = self.order(view);
        let allowed = self.peer.rate.map(|rate| rate.over(view.interval));
        let mut draft = Draft {
            view,
            peer: self.peer,
            free: Ledger::free(view),
            left: allowed.map_or(budget.bytes, |bytes| bytes.min(budget.bytes)),
            cold: if self.peer.room == Room::Free {
                Vec::new()
            } else {
                coldest_first(view)
            },
            cursors: Vec::new(),
            moves: Vec::new(),
        };
        if self.peer.room == Room::Sweep {
            draft.sweep();
        }
        let mut turn = None;
        for place in order {
            if draft.left.is_zero() {
                let start = place.region_in(view).range().start();
                turn = Some((place.target_in(view).id, start.0));
                break;
            }
            draft.promote(place);
        }
        self.turn = turn;
        draft.moves
    }
}

/// A plan in the making.
struct Draft<'a, 'v> {
    view: &'a View<'v>,
    peer: Peer,
    free: Ledger,
    left: Bytes,
    cold: Vec<Place>,
    /// How far the search for what is cold has come on each node.
    cursors: Vec<(NodeId, usize, Bytes)>,
    moves: Vec<Move>,
}

impl Draft<'_, '_> {
    fn is(&self, place: Place, what: fn(Seen) -> bool) -> bool {
        let region = place.region_in(self.view);
        region.is_known()
            && self.view.epoch >= region.stuck_until()
            && what(PeerPolicy::seen(self.view, region))
    }

    /// The rank where a region belongs that is on one.
    fn goal(&self, place: Place, ranks: usize) -> usize {
        match self.peer.way {
            Way::Straight => 0,
            Way::Class => {
                let seen = PeerPolicy::seen(self.view, place.region_in(self.view));
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                let class = ((1.0 - seen.hotness) * ranks as f32) as usize;
                class.min(ranks - 1)
            }
        }
    }

    /// All that is cold goes down.
    fn sweep(&mut self) {
        for at in 0..self.cold.len() {
            let place = self.cold[at];
            if !self.is(place, self.peer.is_cold) {
                continue;
            }
            let target = place.target_in(self.view);
            let ranks = target.tiers.ranks();
            for (node, pages) in place.region_in(self.view).pages().iter() {
                let Some(rank) = target.tiers.rank_of(node) else {
                    continue;
                };
                let down = match self.peer.way {
                    // To its class, or nowhere.
                    Way::Class => {
                        let class = self.goal(place, ranks.len());
                        let is_slower = class > rank;
                        is_slower
                            .then(|| self.free.roomiest(&ranks[class]))
                            .flatten()
                    }
                    // From the fastest to the first that has room.
                    Way::Straight if rank == 0 => {
                        let mut slower = ranks.iter().skip(1);
                        slower.find_map(|slower| self.free.roomiest(slower))
                    }
                    Way::Straight => None,
                };
                if let Some((to, room)) = down {
                    let bytes = Bytes::from_pages(pages).min(room);
                    self.go(place, (node, to), bytes, Reason::Room);
                }
            }
        }
    }

    fn promote(&mut self, place: Place) {
        if self.left.is_zero() || !self.is(place, self.peer.is_hot) {
            return;
        }
        let target = place.target_in(self.view);
        let ranks = target.tiers.ranks();
        for (from, pages) in place.region_in(self.view).pages().iter() {
            let Some(rank) = target.tiers.rank_of(from) else {
                continue;
            };
            let goal = self.goal(place, ranks.len());
            if goal >= rank {
                continue;
            }
            let want = Bytes::from_pages(pages).min(self.left);
            if self.peer.room == Room::Exchange {
                for &node in &ranks[goal].nodes {
                    let roomiest = self.free.roomiest(&ranks[goal]);
                    if roomiest.is_none_or(|(_, room)| room < want) {
                        self.make_room(node, want, place);
                    }
                }
            }
            if let Some((to, room)) = self.free.roomiest(&ranks[goal]) {
                self.go(place, (from, to), want.min(room), Reason::Hot);
            }
        }
    }

    /// Demotes what is cold until so much is free.
    fn make_room(&mut self, node: NodeId, want: Bytes, hot: Place) {
        let slot = self.cursor(node);
        while self.free.on(node) < want && !self.left.is_zero() {
            let (_, at, taken) = self.cursors[slot];
            let Some(&place) = self.cold.get(at) else {
                return;
            };
            let region = place.region_in(self.view);
            let here = Bytes::from_pages(region.pages().on(node)).saturating_sub(taken);
            let may_go = !here.is_zero() && place != hot && self.is(place, self.peer.is_cold);
            // As whose memory it is sees the nodes.
            let tiers = place.target_in(self.view).tiers;
            let ranks = tiers.ranks();
            let rank = tiers.rank_of(node).unwrap_or(ranks.len());
            let mut slower = ranks.iter().skip(rank + 1);
            let down = slower.find_map(|slower| self.free.roomiest(slower));
            let Some((to, room)) = down.filter(|_| may_go) else {
                self.cursors[slot] = (node, at + 1, Bytes::ZERO);
                continue;
            };
            let lack = want.saturating_sub(self.free.on(node));
            let folio = region.folio_bytes();
            let lack = Bytes(lack.0.div_ceil(folio) * folio);
            let bytes = here.min(lack).min(room).min(self.left);
            self.cursors[slot].2 += bytes;
            self.go(place, (node, to), bytes, Reason::Room);
        }
    }

    fn cursor(&mut self, node: NodeId) -> usize {
        let at = self.cursors.iter().position(|c| c.0 == node);
        at.unwrap_or_else(|| {
            self.cursors.push((node, 0, Bytes::ZERO));
            self.cursors.len() - 1
        })
    }

    fn go(&mut self, place: Place, (from, to): (NodeId, NodeId), bytes: Bytes, reason: Reason) {
        let bytes = bytes.min(self.left);
        if bytes.is_zero() {
            return;
        }
        self.free.take(to, bytes);
        self.free.give(from, bytes);
        self.left = self.left.saturating_sub(bytes);
        let moved = place.moved(self.view, (from, to), bytes, reason);
        self.moves.push(moved);
    }
}

#[cfg(test)]
#[path = "peers_tests.rs"]
mod tests;
