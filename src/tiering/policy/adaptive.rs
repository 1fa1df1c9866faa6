//! Policy `adaptive`: moves what pays for its move, as much as pays. Ours.
//!
//! **Unit.** What regions are worth: [`worth`](super::worth). Costs are thread-seconds per byte.
//!
//! **Problem.** HM-Keeper moves what is hottest, 200 MB per epoch, whether or not that pays:
//! it follows what is hot for a moment, is late where much is hot for long, and spends its
//! bytes on what is hottest even if that lies on the second-best tier already.
//!
//! **Approach.** A target waits for memory some share of its CPU time (`memory_bound`, an
//! assumption); what it waits for are its regions, by the rates that their counts stand for
//! and the latency of where they lie. So a region's worth, times the latency that it would
//! save, is what a move gains per second. Candidates are the regions that gain most; each
//! goes straight to the fastest node where there is room, or where what is coldest is worth
//! less by more than both are uncertain. That goes one tier down, as in HM-Keeper §1.3. The
//! exchange is made if in the time that it is going to last ([`lasting`](super::lasting)) it
//! gains `payback` times what it costs; what a byte costs is measured. If nothing that
//! is worth while lasts, it only watches, says so ([`PauseReason::NoGain`]), and goes
//! on looking up what it would have gained.
//!
//! Targets with weights or floors have what they are due ([`shares`](super::shares)).
//!
//! How much is moved per epoch begins with `first_bytes`. It doubles when all of it was
//! moved and what was promised is still there an epoch later, is halved when nothing pays,
//! and stays below what there is time for and what `moving_limit` of the targets' CPU time pays.
//!
//! What was moved rests before it may go the other way; what comes back up twice as long
//! each time that it was moved back at once: regions inherit that when they split.
//!
//! **Source.** Cost against benefit as in ARMS, exchange as in Nimble; none of their code.
//!
//! **Properties** (tests below): no node is filled beyond its room; each demotion stands
//! before its promotion; equals are never exchanged; nor is what gains less than it costs.

use std::collections::HashMap;

use super::lasting::{Lasting, Margin, Trade};
use super::place::{Place, numbered};
use super::shares::{GiveWay, Shares};
use super::sorted::Sorted;
use super::worth::{Loads, Worth, latency};
use super::{Budget, Done, Ledger, Policy, View};
use crate::tiering::observation::TargetId;
use crate::tiering::plan::{Direction, Move, Reason};
use crate::tiering::report::PauseReason;
use crate::tiering::settings::AdaptiveSettings;
use crate::units::{Bytes, NodeId, PAGE_BYTES, VirtAddr};

/// Seconds that moving a byte costs before any was moved: 2.5 us for a page of 4 KiB.
const COST_AT_FIRST: f64 = 2.5e-6 / PAGE_BYTES as f64;
/// Weight of the newest epoch in what a byte costs, and how many times as much as before it
/// is held to be at once.
const COST_EMA: f64 = 0.3;
const COST_JUMPS: f64 = 4.0;
/// While nothing is moved because it costs too much, it is held to cost so much less with each
/// epoch, down to a share of what it is at first: until something is tried, and measured.
const COST_FADES: f64 = 0.99;
const COST_LEAST: f64 = 1.0 / 16.0;
/// Exchanges of one plan that are looked up later.
const TRADES: usize = 64;
/// The budget never falls below this share of what it begins with, whatever moving costs:
/// something must be tried for its cost to be known.
const LEAST_SHARE: u64 = 8;
/// Epochs for which it is said that nothing pays after it last was so: as long as exchanges
/// are looked up.
const SAYS_SO: u8 = 8;

/// See the module.
#[derive(Clone, Debug)]
pub struct Adaptive {
    settings: AdaptiveSettings,
    lasting: Lasting,
    /// Bytes that the next plan may move.
    budget: Bytes,
    /// Seconds that moving a byte takes.
    cost: f64,
    /// Bytes that the last plan was to move.
    asked: Bytes,
    /// The share of that which was, as far as is known, to be worth while for an epoch.
    lasts: f64,
    /// Epochs for which it goes on saying so once it has held back.
    holds_back: u8,
    loads: Loads,
}

impl Adaptive {
    /// With these settings.
    pub fn new(settings: AdaptiveSettings) -> Self {
        Self {
            settings,
            lasting: Lasting::default(),
            budget: settings.first_bytes,
            cost: COST_AT_FIRST,
            asked: Bytes::ZERO,
            lasts: 1.0,
            holds_back: 0,
            loads: Loads::default(),
        }
    }

    /// What the last plan's moves cost, and how much may be moved next.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn learn(&mut self, view: &View<'_>) {
        let Done {
            moved,
            deferred,
            cost,
        } = view.done;
        let first = self.settings.first_bytes;
        let least = Bytes(first.0 / LEAST_SHARE);
        if self.holds_back == SAYS_SO {
            self.cost *= COST_FADES;
            self.cost = self.cost.max(COST_LEAST * COST_AT_FIRST);
        }
        if moved.is_zero() {
            // Nothing was learnt.
        } else if cost.0 > 0 {
            // Of a few pages it is looking for them that costs, and says little of a byte.
            let weight = COST_EMA * (moved.as_f64() / least.as_f64()).sqrt().min(1.0);
            let cost = (cost.as_secs_f64() / moved.as_f64()).min(COST_JUMPS * self.cost);
            self.cost += weight * (cost - self.cost);
        }
        // Back to what it begins with it comes more easily than beyond.
        let enough = if self.budget < first { 0.2 } else { 0.5 };
        if self.holds_back == SAYS_SO {
            // What changes next finds as much as there was at first.
            self.budget = Bytes(self.budget.0 / 2).max(first.min(self.budget));
        } else if deferred.0 > self.asked.0 / 8 {
            self.budget = moved.max(Bytes(self.budget.0 / 2));
        } else if self.asked.0 > self.budget.0 / 8 * 7 && self.lasts >= enough {
            self.budget = Bytes(self.budget.0.saturating_mul(2));
        }
        let load = self.loads.sum();
        let seconds = self.settings.moving_limit * load * view.interval.as_secs_f64();
        // `as` saturates.
        let most = Bytes((seconds / self.cost) as u64);
        self.budget = self.budget.min(most).max(least);
    }
}

impl Policy for Adaptive {
    fn name(&self) -> &'static str {
        "adaptive"
    }

    #[allow(clippy::cast_possible_truncation)]
    fn ema(&self) -> f32 {
        self.settings.ema as f32
    }

    fn holds_back(&self) -> Option<PauseReason> {
        (self.holds_back > 0).then_some(PauseReason::NoGain)
    }

    fn decide(&mut self, view: &View<'_>, budget: Budget) -> Vec<Move> {
        let loads = self.loads.follow(view);
        let worth = Worth::of(view, self.settings, &loads);
        let ids: Vec<TargetId> = view.targets.iter().map(|target| target.id).collect();
        self.lasting.keep(&ids);
        self.lasting
            .follow(view.epoch, |target, addr| worth.latest(target, addr));
        self.learn(view);
        let left = self.budget.min(budget.bytes);
        let (lasting, horizon) = (&self.lasting, self.settings.horizon);
        let interval = view.interval.as_secs_f64();
        let seconds = |id, margin| lasting.epochs(id, margin, horizon) * interval;
        let of_each = |what: &dyn Fn(TargetId, Margin) -> f64| {
            let of = |&id: &TargetId| Margin::ALL.map(|margin| what(id, margin));
            ids.iter().map(of).collect()
        };
        let terms = Terms {
            seconds: of_each(&seconds),
            first: of_each(&|id, margin| lasting.first(id, margin)),
            cost: self.cost,
            left,
            thought: left,
        };
        let mut planner = Planner::new(&worth, terms);
        planner.plan();
        let Planner {
            moves,
            trades,
            lasts,
            ..
        } = planner;
        self.holds_back = match (moves.is_empty(), trades.is_empty()) {
            (true, false) => SAYS_SO,
            (true, true) => self.holds_back.saturating_sub(1),
            (false, _) => 0,
        };
        self.asked = moves.iter().map(|m| m.limit).sum();
        self.lasts = lasts / self.asked.as_f64().max(1.0);
        self.lasting.note(view.epoch, trades);
        moves
    }
}

/// What a plan reckons with.
struct Terms {
    /// For how long a move gains what it promises, in seconds: per target and margin.
    seconds: Vec<[f64; Margin::ALL.len()]>,
    /// What share of it an epoch later.
    first: Vec<[f64; Margin::ALL.len()]>,
    /// Of moving a byte, in seconds.
    cost: f64,
    /// Bytes that may be moved, and of what does not pay, that may be remembered.
    left: Bytes,
    thought: Bytes,
}

/// Something that may be promoted.
#[derive(Clone, Copy)]
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

/// A plan in the making.
struct Planner<'a, 'v> {
    worth: &'a Worth<'a, 'v>,
    view: &'a View<'v>,
    terms: Terms,
    free: Ledger,
    /// Every region, what is worth least first.
    coldest: Vec<Place>,
    cursors: Vec<Cursor>,
    /// Bytes of regions that leave a node already.
    taken: HashMap<(u32, u32, NodeId), Bytes>,
    shares: Shares,
    moves: Vec<Move>,
    /// Bytes of moves that are going to be worth while for an epoch, each as far as it is.
    lasts: f64,
    trades: Vec<Trade>,
    /// Every so many bytes one exchange is looked up later.
    each: u64,
    until_next: u64,
}

impl<'a, 'v> Planner<'a, 'v> {
    fn new(worth: &'a Worth<'a, 'v>, terms: Terms) -> Self {
        let each = (terms.left.0 / TRADES as u64).max(1);
        Self {
            worth,
            view: worth.view,
            terms,
            free: Ledger::free(worth.view),
            coldest: Vec::new(),
            cursors: Vec::new(),
            taken: HashMap::new(),
            shares: Shares::of(worth.view, |region| worth.is_warm(region)),
            moves: Vec::new(),
            lasts: 0.0,
            trades: Vec::new(),
            each,
            until_next: 0,
        }
    }

    fn plan(&mut self) {
        for candidate in self.candidates() {
            if self.terms.left.is_zero() {
                return;
            }
            self.promote(candidate);
        }
    }

    /// What lies slower than it could, what would gain most first. Sorts all regions for
    /// the search for what gives way, too.
    fn candidates(&mut self) -> Vec<Candidate> {
        let (mut coldest, mut gains) = (Sorted::new(), Sorted::new());
        for (target, t) in numbered(&self.view.targets) {
            let Some(best) = t.tiers.ranks().first() else {
                continue;
            };
            for (region, r) in numbered(t.regions) {
                if r.pages().total() == 0 {
                    continue;
                }
                let place = Place { target, region };
                coldest.add(self.worth.mean(place), place);
                if !self.worth.is_warm(r) || self.worth.rests(r, Direction::Promotion) {
                    continue;
                }
                let mut surely = None;
                for (from, _) in r.pages().iter() {
                    let saved = latency(t, from) - best.latency_ns;
                    if saved > 0.0 {
                        let worth = *surely.get_or_insert_with(|| self.surely(place));
                        gains.add(worth * saved, Candidate { place, from });
                    }
                }
            }
        }
        self.coldest = coldest.ascending().collect();
        gains.ascending().rev().collect()
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
        let (target, region) = (place.target_in(self.view), place.region_in(self.view));
        let Some(rank) = target.tiers.rank_of(from) else {
            return;
        };
        // Of a million that cannot pay, enough to learn from is looked at.
        if self.terms.thought.is_zero() && !self.may_pay(candidate) {
            return;
        }
        let worth = self.surely(place);
        let mut left = Bytes::from_pages(region.pages().on(from));
        for better in &target.tiers.ranks()[..rank] {
            while !left.is_zero() && !self.terms.left.is_zero() {
                let (to, victim) = if let Some((to, _)) = self.free.roomiest(better) {
                    (to, None)
                } else {
                    // What gives way is moved, too.
                    let want = left.min(Bytes(self.terms.left.0 / 2));
                    match self.victim(better.nodes.as_slice(), place, worth, want) {
                        Some((to, victim)) => (to, Some(victim)),
                        None => break,
                    }
                };
                let bytes = match victim {
                    Some(victim) => left.min(victim.bytes),
                    None => left.min(self.free.on(to)).min(self.terms.left),
                };
                match self.exchange((candidate, to, bytes), victim) {
                    Exchange::Made => {}
                    Exchange::Loses => break,
                    Exchange::CostsMore => return,
                }
                left = left.saturating_sub(bytes);
            }
        }
    }

    /// Whether it would pay to bring it to the fastest node if nobody had to give way, and if
    /// it lasted as what lasts longest.
    fn may_pay(&self, Candidate { place, from }: Candidate) -> bool {
        let target = place.target_in(self.view);
        let best = target.tiers.ranks().first();
        let saved = best.map_or(0.0, |best| latency(target, from) - best.latency_ns);
        let seconds = self.terms.seconds[place.target as usize];
        let gained = self.worth.mean(place) * saved * seconds.into_iter().fold(0.0, f64::max);
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
        let gain = self.worth.mean(place) * saved * bytes.as_f64();
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
                self.remember(place, loser, bytes, margin);
            }
            self.terms.thought = self.terms.thought.saturating_sub(moved);
            return Exchange::CostsMore;
        }
        self.remember(place, loser, bytes, margin);
        self.lasts += self.terms.first[kind.0][kind.1] * moved.as_f64();
        if let Some(Victim {
            place,
            to: down,
            bytes,
            ..
        }) = victim
        {
            let key = (place.target, place.region, to);
            *self.taken.entry(key).or_default() += bytes;
            self.go(place, (to, down), bytes, Direction::Demotion);
        }
        self.go(place, (from, to), bytes, Direction::Promotion);
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
    fn go(
        &mut self,
        place: Place,
        (from, to): (NodeId, NodeId),
        bytes: Bytes,
        direction: Direction,
    ) {
        let target = place.target_in(self.view);
        if self.worth.is_warm(place.region_in(self.view)) {
            self.shares.left(place.target, from, bytes);
            self.shares.came(place.target, to, bytes);
        }
        self.free.take(to, bytes);
        self.free.give(from, bytes);
        self.terms.left = self.terms.left.saturating_sub(bytes);
        self.moves.push(Move {
            target: target.id,
            pid: target.pid,
            range: place.region_in(self.view).range(),
            from,
            to,
            limit: bytes,
            direction,
            reason: match direction {
                Direction::Promotion => Reason::Hot,
                Direction::Demotion => Reason::Room,
            },
        });
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
            let &place = self.coldest.get(at).filter(|_| !bytes.is_zero())?;
            let is_short = self.shares.is_short(hotter.target);
            if self.worth.mean(place) >= worth && !is_short {
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
        &self,
        place: Place,
        node: NodeId,
        hotter: Place,
        worth: f64,
        bytes: Bytes,
    ) -> Option<Victim> {
        let region = place.region_in(self.view);
        let key = (place.target, place.region, node);
        let taken = self.taken.get(&key).copied().unwrap_or_default();
        let here = Bytes::from_pages(region.pages().on(node)).saturating_sub(taken);
        if here.is_zero()
            || place == hotter
            || !region.is_known()
            || self.worth.rests(region, Direction::Demotion)
        {
            return None;
        }
        let give_way = if self.worth.is_warm(region) {
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
        let (to, room) = self.next_down(place, node)?;
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

    fn cursor(&mut self, node: NodeId, class: usize) -> usize {
        let same = |c: &Cursor| c.node == node && c.class == class;
        if let Some(slot) = self.cursors.iter().position(same) {
            return slot;
        }
        self.cursors.push(Cursor { node, class, at: 0 });
        self.cursors.len() - 1
    }

    /// The next slower rank with room, and its roomiest node.
    fn next_down(&self, place: Place, node: NodeId) -> Option<(NodeId, Bytes)> {
        let tiers = place.target_in(self.view).tiers;
        let rank = tiers.rank_of(node)?;
        tiers.ranks()[rank + 1..]
            .iter()
            .find_map(|slower| self.free.roomiest(slower))
    }

    /// Notes an exchange to be looked up later, every so many bytes.
    fn remember(&mut self, place: Place, victim: Option<Victim>, bytes: Bytes, margin: Margin) {
        if self.until_next > bytes.0 {
            self.until_next -= bytes.0;
            return;
        }
        self.until_next = self.each;
        let cold = victim.map(|victim| victim.place);
        let page = |place: Place| {
            let range = place.region_in(self.view).range();
            let middle = range.start().0 + range.bytes().0 / 2;
            (place.target_in(self.view).id, VirtAddr(middle))
        };
        let less = cold.map_or(0.0, |cold| self.worth.mean(cold));
        self.trades.push(Trade {
            hot: page(place),
            cold: cold.map(page),
            bytes: bytes.0.max(self.each) as f64,
            promised: self.worth.mean(place) - less,
            margin,
        });
    }
}

#[cfg(test)]
#[path = "adaptive_tests.rs"]
mod tests;
