//! One plan of policy [`adaptive`](super::adaptive): exchanges of what is worth more for
//! what is worth less, as long as they pay. What is cold, and left, gives back headroom
//! ([`headroom`]). What is written leaves nodes that answer late ([`relief`]).
//!
//! **Order.** What gains most first. For each, the fastest rank where there is room or where
//! something is worth less; what gives way goes one rank down, before it. Where nothing is, page cache
//! that may makes room ([`page_cache`](crate::tiering::page_cache)). Of what gains about as much what is read comes before
//! what is mostly written ([`WRITTEN_LATER`]).
//!
//! **Properties** (tests of [`adaptive`](super::adaptive)): no node is filled beyond its
//! room; each demotion stands before its promotion; equals are never exchanged.

mod brink;
mod headroom;
mod relief;
mod room;

use std::collections::HashMap;

use self::brink::Brink;
pub(super) use self::brink::Steps;
use super::lasting::{Margin, Trade};
use super::place::{Place, numbered};
use super::shares::{GiveWay, Shares};
use super::sorted::{SORTED_TO, Sorted};
use super::worth::{Worth, latency};
use super::{Ledger, View};
use crate::tiering::plan::{Direction, Move, Reason};
use crate::units::{Bytes, NodeId, PAGE_BYTES, VirtAddr};

/// More than this share of its pages is written in an epoch of what is mostly written.
const MOSTLY: f32 = 0.5;
/// What is mostly written comes with what gains so many times less, and is put off with that where time or bytes run
/// out. HM-Keeper copies what is read while it is in use, what is written only while nobody may use it (§1.4): from
/// outside a process all are copied in the second way, and what is left to choose is what comes first.
const WRITTEN_LATER: f64 = 1.25;
/// Exchanges of one plan that are looked up later.
const TRADES: usize = 64;

/// What a plan reckons with.
pub(super) struct Terms {
    /// For how long a move gains what it promises, in seconds: per target and margin.
    pub(super) seconds: Vec<[f64; Margin::ALL.len()]>,
    /// What share of it an epoch later.
    pub(super) first: Vec<[f64; Margin::ALL.len()]>,
    /// Of moving a byte, in seconds.
    pub(super) cost: f64,
    /// Bytes that may be moved, and of what does not pay, that may be remembered.
    pub(super) left: Bytes,
    pub(super) thought: Bytes,
    /// Bytes of `left` that may go for headroom.
    pub(super) headroom: Bytes,
    /// Bytes that may be moved so that what is written leaves nodes that answer late, and bytes that
    /// all moves together may be.
    pub(super) relief: Bytes,
    pub(super) all: Bytes,
}

/// Something that may be promoted.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    place: Place,
    from: NodeId,
}

/// How far the search for what gives way on a node has come, for those with the same right
/// to it.
struct Cursor {
    node: NodeId,
    class: usize,
    at: usize,
}

/// Who gives way to whom.
#[derive(Clone, Copy)]
struct Victim {
    place: Place,
    to: NodeId,
    bytes: Bytes,
    /// Whatever it loses: the other target is due it.
    is_due: bool,
}

/// What became of an exchange.
enum Exchange {
    Made,
    /// What gives way would lose more.
    Loses,
    /// It gains less than it costs.
    CostsMore,
}

/// Regions in order, of which there may be a million: kept for their memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Lists {
    by_worth: Sorted<Place>,
    /// What may be promoted, by what that gains.
    gains: Sorted<Candidate>,
    /// Every region, what is worth least first, now and usually.
    coldest: Vec<Place>,
}

/// A plan in the making.
pub(super) struct Planner<'a, 'v> {
    worth: &'a Worth<'a, 'v>,
    /// Its latencies are those under load.
    view: &'a View<'v>,
    /// The same with latencies as when idle: these say what is up and down.
    idle: &'a View<'a>,
    /// What may still be added to nodes that answer late, or taken off them.
    brink: Brink,
    terms: Terms,
    free: Ledger,
    /// What page cache may make room for beyond that.
    cache: Ledger,
    pub(super) lists: Lists,
    cursors: Vec<Cursor>,
    /// Bytes of regions that leave a node already.
    taken: HashMap<(u32, u32, NodeId), Bytes>,
    shares: Shares,
    /// What is to move.
    pub(super) moves: Vec<Move>,
    /// Bytes of moves that are going to be worth while for an epoch, each as far as it is.
    pub(super) lasts: f64,
    /// Exchanges to be looked up later.
    pub(super) trades: Vec<Trade>,
    /// Whether something would have paid, had anything been worth less than it where it was to go;
    /// and whether something was that may not, or cannot, leave now.
    pub(super) is_in_vain: bool,
    pub(super) is_delayed: bool,
    /// Bytes of the moves that are for [`relief`].
    pub(super) relieved: Bytes,
    /// Every so many bytes one exchange is looked up later.
    each: u64,
    until_next: u64,
}

impl<'a, 'v> Planner<'a, 'v> {
    pub(super) fn new(
        worth: &'a Worth<'a, 'v>,
        idle: &'a View<'a>,
        steps: &Steps,
        terms: Terms,
        lists: Lists,
    ) -> Self {
        let each = (terms.left.0 / TRADES as u64).max(1);
        Self {
            worth,
            view: worth.view,
            idle,
            brink: Brink::of(worth, steps),
            terms,
            free: Ledger::free(worth.view),
            cache: Ledger::cache(worth.view),
            lists,
            cursors: Vec::new(),
            taken: HashMap::new(),
            shares: Shares::of(idle, |place| worth.is_hot(place)),
            moves: Vec::new(),
            lasts: 0.0,
            trades: Vec::new(),
            is_in_vain: false,
            is_delayed: false,
            relieved: Bytes::ZERO,
            each,
            until_next: 0,
        }
    }

    pub(super) fn plan(&mut self) {
        let seconds = self.terms.seconds.iter().flatten();
        let longest = seconds.copied().fold(0.0, f64::max);
        self.sort();
        let mut gains = std::mem::take(&mut self.lists.gains);
        for candidate in gains.descending() {
            if self.terms.left.is_zero() {
                break;
            }
            // What follows gains less, give or take a quarter for either, and there may be a million.
            let is_learnt = self.terms.thought.is_zero();
            if is_learnt && !self.pays_within(candidate, WRITTEN_LATER * SORTED_TO * longest) {
                break;
            }
            self.promote(candidate);
        }
        self.lists.gains = gains;
        self.restore_headroom();
        self.relieve();
    }

    /// What lies slower than it could, what would gain most first; and all regions, for the
    /// search for what gives way.
    fn sort(&mut self) {
        let mut lists = std::mem::take(&mut self.lists);
        lists.by_worth.clear();
        lists.gains.clear();
        lists.coldest.clear();
        for (target, t) in numbered(&self.view.targets) {
            let Some(best) = t.tiers.ranks().first() else {
                continue;
            };
            for (region, r) in numbered(t.regions) {
                let place = Place { target, region };
                if self.worth.is_empty(place) {
                    continue;
                }
                lists.by_worth.add(self.worth.usual(place), place);
                if !self.worth.is_warm(place) {
                    continue;
                }
                let mut worth = self.worth.believed(place);
                if self.is_written(place) {
                    worth /= WRITTEN_LATER;
                }
                let mut may_come = |from| {
                    let saved = latency(t, from) - best.latency_ns;
                    if saved > 0.0 {
                        lists.gains.add(worth * saved, Candidate { place, from });
                    }
                };
                match self.worth.only_node(place) {
                    Some(node) => may_come(node),
                    None => r.pages().iter().for_each(|(node, _)| may_come(node)),
                }
            }
        }
        lists.coldest.extend(lists.by_worth.ascending());
        self.lists = lists;
    }

    /// What a region is worth at least, and at most.
    fn surely(&self, place: Place) -> f64 {
        self.worth.beside(place, -self.worth.settings.certainty)
    }

    fn at_most(&self, place: Place) -> f64 {
        self.worth.beside(place, self.worth.settings.certainty)
    }

    /// Brings what of a region lies on a node to the fastest one where it may be.
    fn promote(&mut self, candidate: Candidate) {
        let Candidate { place, from } = candidate;
        let target = place.target_in(self.view);
        let Some(rank) = target.tiers.rank_of(from) else {
            return;
        };
        // Of a million that cannot pay, enough to learn from is looked at.
        if self.terms.thought.is_zero() && !self.may_pay(candidate) {
            return;
        }
        if self.has_given_up(candidate, &target.tiers.ranks()[..rank]) {
            return;
        }
        let worth = self.surely(place);
        let mut left = self.left_on(place, from);
        for better in &target.tiers.ranks()[..rank] {
            if !self.may_go(place, from, better.nodes[0]) {
                continue;
            }
            let mut no_victim = false;
            while !left.is_zero() && !self.terms.left.is_zero() {
                let Some(room) = self.room_on(better, (place, worth), left, no_victim) else {
                    let is_ours = |&node: &NodeId| self.worth.traffic(node) > 0.0;
                    self.is_in_vain |= better.nodes.iter().any(is_ours) && self.may_pay(candidate);
                    break;
                };
                let (to, victim) = (room.to, room.victim);
                let bytes = left.min(room.bytes).min(self.bears(candidate, to));
                if bytes.is_zero() {
                    break;
                }
                // No more gives way than comes.
                let victim = victim.map(|victim| {
                    let folio = victim.place.region_in(self.view).folio_bytes();
                    let most = Bytes(bytes.0.div_ceil(folio) * folio);
                    Victim {
                        bytes: victim.bytes.min(most),
                        ..victim
                    }
                });
                match self.exchange((candidate, to, bytes), victim) {
                    Exchange::Made if room.is_cache => self.cache.take(to, bytes),
                    Exchange::Made => {}
                    Exchange::Loses | Exchange::CostsMore
                        if victim.is_some() && self.cache.roomiest(better).is_some() =>
                    {
                        no_victim = true;
                        continue;
                    }
                    Exchange::Loses => {
                        self.is_in_vain |= self.may_pay(candidate);
                        break;
                    }
                    Exchange::CostsMore => return,
                }
                left = left.saturating_sub(bytes);
            }
        }
    }

    /// Whether it would pay to bring it to the fastest node if nobody had to give way, and if
    /// it lasted as what lasts longest.
    fn may_pay(&self, candidate: Candidate) -> bool {
        let seconds = self.terms.seconds[candidate.place.target as usize];
        self.pays_within(candidate, seconds.into_iter().fold(0.0, f64::max))
    }

    /// The same if it lasted for so many seconds.
    fn pays_within(&self, Candidate { place, from }: Candidate, seconds: f64) -> bool {
        let target = place.target_in(self.view);
        let best = target.tiers.ranks().first();
        let saved = best.map_or(0.0, |best| latency(target, from) - best.latency_ns);
        let gained = self.worth.believed(place) * saved * seconds;
        gained >= self.worth.settings.payback * self.terms.cost
    }

    /// Makes the exchange if it pays.
    fn exchange(
        &mut self,
        (candidate, to, bytes): (Candidate, NodeId, Bytes),
        victim: Option<Victim>,
    ) -> Exchange {
        let Candidate { place, from } = candidate;
        // What a byte gains per second, and what gives way loses.
        let target = place.target_in(self.view);
        let saved = latency(target, from) - latency(target, to);
        let gain = self.worth.believed(place) * saved * bytes.as_f64();
        let loser = victim.filter(|victim| !victim.is_due);
        let lost = loser.map_or(0.0, |victim| self.lost(victim, to));
        if gain <= lost {
            return Exchange::Loses;
        }
        let margin = self.margin(place, loser);
        let kind = (place.target as usize, margin as usize);
        let moved = bytes + victim.map_or(Bytes::ZERO, |victim| victim.bytes);
        let cost = self.terms.cost * moved.as_f64();
        let seconds = self.terms.seconds[kind.0][kind.1];
        if (gain - lost) * seconds < self.worth.settings.payback * cost {
            if !self.terms.thought.is_zero() {
                self.remember((place, loser), bytes, margin, false);
            }
            self.terms.thought = self.terms.thought.saturating_sub(moved);
            return Exchange::CostsMore;
        }
        self.remember((place, loser), bytes, margin, true);
        self.lasts += self.terms.first[kind.0][kind.1] * moved.as_f64();
        if let Some(Victim {
            place,
            to: down,
            bytes,
            ..
        }) = victim
        {
            self.go(place, (to, down), bytes, Reason::Room);
        }
        let reason = match self.way(place, from, to) {
            Direction::Promotion => Reason::Hot,
            Direction::Demotion => Reason::Spread,
        };
        self.borne(candidate, to, bytes);
        self.go(place, (from, to), bytes, reason);
        Exchange::Made
    }

    fn margin(&self, place: Place, victim: Option<Victim>) -> Margin {
        let heat = |place: Place| place.region_in(self.view).heat();
        let less = victim.map_or(0.0, |victim| heat(victim.place));
        Margin::of((heat(place) - less) / f32::from(self.view.scans.max(1)))
    }

    /// What a victim loses per second.
    fn lost(&self, victim: Victim, from: NodeId) -> f64 {
        let target = victim.place.target_in(self.view);
        let longer = latency(target, victim.to) - latency(target, from);
        self.worth.mean(victim.place) * longer * victim.bytes.as_f64()
    }

    /// One move.
    fn go(&mut self, place: Place, (from, to): (NodeId, NodeId), bytes: Bytes, reason: Reason) {
        if reason != Reason::Hot {
            let key = (place.target, place.region, from);
            *self.taken.entry(key).or_default() += bytes;
        }
        if self.worth.is_warm(place) {
            self.shares.left(place.target, from, bytes);
            self.shares.came(place.target, to, bytes);
        }
        self.free.take(to, bytes);
        // What is given back to the headroom is no room.
        if reason != Reason::Headroom {
            self.free.give(from, bytes);
        }
        self.terms.left = self.terms.left.saturating_sub(bytes);
        let moved = place.moved(self.view, (from, to), bytes, reason);
        self.moves.push(moved);
    }

    /// Whether most of it is known to be written.
    fn is_written(&self, place: Place) -> bool {
        let written = place.region_in(self.view).written();
        written.is_some_and(|share| share > MOSTLY)
    }

    /// Whether what is hot may go this way now.
    fn may_go(&self, place: Place, from: NodeId, to: NodeId) -> bool {
        let region = place.region_in(self.view);
        let way = self.way(place, from, to);
        // What is slow when idle is mostly slower still at writing.
        let is_written = self.is_written(place);
        let tiers = place.target_in(self.idle).tiers;
        let stays = is_written && tiers.rank_of(to) > tiers.rank_of(from);
        !stays && !self.worth.rests(region, way)
    }

    /// Up or down, whoever answers late now; between equals by their numbers, so that the way
    /// back is the other one.
    fn way(&self, place: Place, from: NodeId, to: NodeId) -> Direction {
        let tiers = place.target_in(self.idle).tiers;
        if (tiers.rank_of(to), to) < (tiers.rank_of(from), from) {
            Direction::Promotion
        } else {
            Direction::Demotion
        }
    }

    /// What gives way on one of these nodes to a region that is worth so much at least:
    /// up to `bytes` of what is worth least there, and where it goes.
    fn victim(
        &mut self,
        nodes: &[NodeId],
        hotter: Place,
        worth: f64,
        bytes: Bytes,
    ) -> Option<(NodeId, Victim)> {
        let mut found = nodes.iter().filter_map(|&node| {
            let victim = self.coldest_on(node, hotter, worth, bytes)?;
            Some((node, victim))
        });
        found.next()
    }

    fn coldest_on(
        &mut self,
        node: NodeId,
        hotter: Place,
        worth: f64,
        bytes: Bytes,
    ) -> Option<Victim> {
        let slot = self.cursor(node, self.shares.class(hotter.target));
        loop {
            let at = self.cursors[slot].at;
            let &place = self.lists.coldest.get(at).filter(|_| !bytes.is_zero())?;
            let is_short = self.shares.is_short(hotter.target);
            if self.worth.usual(place) >= worth && !is_short {
                // All that follow are worth more, give or take a quarter.
                return None;
            }
            let found = self.give_way(place, node, hotter, worth, bytes);
            if found.is_some() {
                return found;
            }
            self.cursors[slot].at = at + 1;
        }
    }

    /// What of a region on a node gives way to a hotter one.
    fn give_way(
        &mut self,
        place: Place,
        node: NodeId,
        hotter: Place,
        worth: f64,
        bytes: Bytes,
    ) -> Option<Victim> {
        let region = place.region_in(self.view);
        let here = self.left_on(place, node);
        if here.is_zero() || place == hotter || !region.is_known() {
            return None;
        }
        let give_way = if self.worth.is_warm(place) {
            self.shares.between(hotter.target, place.target, node)
        } else {
            GiveWay::ByGain
        };
        // A folio leaves as a whole.
        let folio = region.folio_bytes();
        let folios = |most: Bytes| Bytes(most.0 / folio * folio);
        let (most, is_due) = match give_way {
            GiveWay::ByGain => (here, false),
            GiveWay::Spare(most) => (folios(most), false),
            GiveWay::Due(most) => (folios(most), true),
        };
        if !is_due && self.at_most(place) >= worth {
            return None;
        }
        let down = self.next_down(place, node);
        let down = down.filter(|&(to, _)| !self.worth.rests(region, self.way(place, node, to)));
        let Some((to, room)) = down else {
            self.is_delayed = true;
            return None;
        };
        let lack = Bytes(bytes.0.div_ceil(folio) * folio);
        let bytes = here.min(lack).min(room).min(most).min(self.terms.left);
        if bytes.is_zero() {
            return None;
        }
        Some(Victim {
            place,
            to,
            bytes,
            is_due,
        })
    }

    /// Bytes of a region on a node that do not leave it yet.
    fn left_on(&self, place: Place, node: NodeId) -> Bytes {
        let key = (place.target, place.region, node);
        let taken = self.taken.get(&key).copied().unwrap_or_default();
        let pages = place.region_in(self.view).pages().on(node);
        Bytes::from_pages(pages).saturating_sub(taken)
    }

    fn cursor(&mut self, node: NodeId, class: usize) -> usize {
        let same = |c: &Cursor| c.node == node && c.class == class;
        if let Some(slot) = self.cursors.iter().position(same) {
            return slot;
        }
        self.cursors.push(Cursor { node, class, at: 0 });
        self.cursors.len() - 1
    }

    /// The next slower rank with room, and its roomiest node. What is cold asks for no
    /// bandwidth, so that it goes where it would if all were idle; but from the slowest node to
    /// one that is slower under load.
    fn next_down(&self, place: Place, node: NodeId) -> Option<(NodeId, Bytes)> {
        let below = |view: &View<'_>| {
            let tiers = place.target_in(view).tiers;
            let rank = tiers.rank_of(node)?;
            let mut slower = tiers.ranks()[rank + 1..].iter();
            slower.find_map(|rank| self.free.roomiest(rank))
        };
        below(self.idle).or_else(|| below(self.view))
    }

    /// Notes an exchange, made or not, to be looked up later, every so many bytes.
    fn remember(
        &mut self,
        (place, victim): (Place, Option<Victim>),
        bytes: Bytes,
        margin: Margin,
        is_made: bool,
    ) {
        if self.until_next > bytes.0 {
            self.until_next -= bytes.0;
            return;
        }
        let times = (1 + (bytes.0 - self.until_next) / self.each).min(TRADES as u64);
        self.until_next = (self.until_next + times * self.each).saturating_sub(bytes.0);
        let cold = victim.map(|victim| victim.place);
        // Each time another page: a large region is not as hot everywhere a while later.
        let page = |place: Place, time: u64| {
            let range = place.region_in(self.view).range();
            let pages = range.pages() * (2 * time + 1) / (2 * times);
            let page = VirtAddr(range.start().0 + pages * PAGE_BYTES);
            (place.target_in(self.view).id, page)
        };
        let less = cold.map_or(0.0, |cold| self.worth.mean(cold));
        let worth = self.worth.mean(place);
        let trades = (0..times).map(|time| Trade {
            hot: page(place, time),
            cold: cold.map(|cold| page(cold, time)),
            bytes: bytes.0.max(self.each) as f64 / times as f64,
            worth,
            promised: worth - less,
            margin,
            is_made,
        });
        self.trades.extend(trades);
    }
}
