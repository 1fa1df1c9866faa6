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
//! gains `payback` times what it costs; what a byte costs is measured, and CPU time that a core
//! had left counts an eighth. If nothing that
//! is worth while lasts, or nothing is worth less than what would come up, it only watches, says so ([`PauseReason::NoGain`]), and goes
//! on looking up what it would have gained.
//!
//! Targets with weights or floors have what they are due ([`shares`](super::shares)).
//!
//! Where allocations have used up what is to stay free of the fastest nodes, what is cold
//! there, and no exchange wants the place of, gives it back ([`headroom`](super::planner)), for
//! up to a quarter of the bytes that an epoch may move, and of what may be paid for. That is
//! no exchange: it promises nothing, and nothing is learnt from it but what moving costs.
//!
//! How much is moved per epoch begins with `first_bytes`. It grows when all of it was moved
//! and what two plans promised was still there an epoch later, is halved where it was not for what
//! seemed hot had cooled down (what gave way may become hot by chance, as part of a sweep), and stays below what there is time for and what `moving_limit` of the targets' CPU time
//! pays. Where nothing pays it stays as it is, and nothing is moved: what changes then is
//! followed at once.
//!
//! What is written leaves nodes that answer late for the place of what is read ([`relief`](super::planner)), with a
//! budget of its own, which grows as long as that goes on.
//!
//! Epochs are shorter than configured (`pace`) at first, and while there is something to exchange that
//! is clearly hotter and still worth something an epoch later: what has just become hot is moved
//! sooner, and what is hot for less than an epoch is seen. Where all of it is gone, as where a program sweeps, a short epoch
//! would take for lasting what only looks so; and where nothing is to be exchanged nothing is gained.
//!
//! What was moved rests before it may go the other way; what comes back up twice as long
//! each time that it was moved back at once: regions inherit that when they split.
//!
//! **Source.** Cost against benefit as in ARMS, exchange as in Nimble; none of their code.
//!
//! **Properties** (tests below): no node is filled beyond its room; each demotion stands
//! before its promotion; equals are never exchanged; nor is what gains less than it costs.

use super::lasting::{Lasting, Margin, Plan, Trade};
use super::planner::{Lists, Planner, Steps, Terms};
use super::worth::{FactLists, Loads, Worth};
use super::{Budget, Done, Policy, View};
use crate::tiering::observation::TargetId;
use crate::tiering::plan::{Move, Reason};
use crate::tiering::report::PauseReason;
use crate::tiering::settings::AdaptiveSettings;
use crate::units::{Bytes, PAGE_BYTES};

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
/// Share of the CPU time of moving that counts where a core has nothing to do: what is held up
/// while its folio is on its way, flushed translations and bandwidth are the target's all the same.
const HELD_UP: f64 = 0.125;
/// The budget grows so many times at once: from what tries a machine out to all that there is
/// time for in two or three epochs that lasted.
const GROWS: u64 = 8;
/// It shrinks when less was left of what one of the last two plans promised, and what seemed hot has cooled down.
const DISAPPOINTS: f64 = 0.3;
/// Epochs become long when no more than this was left of what one of the last two plans promised, and less
/// than [`COOLS`] of what seemed hot, and short again when of both at least [`STAYS`] of what they promised was.
const GONE: f64 = 0.0;
const STAYS: f64 = 0.2;
/// What seemed hot has cooled down when less is left of it.
const COOLS: f64 = 0.5;
/// As well while less than this share of what is to be gained is by exchanges of what is clearly
/// hotter: of what is a little hotter a short epoch tells too little.
const CLEAR: f64 = 0.5;
/// They are long as well once next to nothing was to be moved for so many: at most one in [`LITTLE`] of the
/// bytes that are moved to begin with, and one in [`LITTLE_OF_WARM`] of all that is hot, by a short
/// epoch. All but a little lies where it should then, and of that little a short epoch would tell less.
const CALM: u8 = 8;
const LITTLE: u64 = 8;
const LITTLE_OF_WARM: u64 = 32;
/// One in so many of the bytes that may be moved may go for headroom.
const FOR_HEADROOM: u64 = 4;
/// The budget never falls below this share of what it begins with, whatever moving costs:
/// something must be tried for its cost to be known.
const LEAST_SHARE: u64 = 8;
/// Epochs for which it is said that nothing pays after it last was so: as long as exchanges
/// are looked up.
const SAYS_SO: u8 = 8;

/// What was not moved of late though something would have gained by it.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// Epochs for which that is still said.
    says_so: u8,
    /// Whether the last plan held back since it would have cost more than it gained.
    is_dear: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Adaptive {
    settings: AdaptiveSettings,
    lasting: Lasting,
    /// Bytes that the next plan may move.
    budget: Bytes,
    /// Seconds that moving a byte takes.
    cost: f64,
    /// Share of the CPU time of moving that nobody else would use.
    spare: f64,
    /// Bytes that the targets' CPU time pays for, in one plan, where idle cores pay for most.
    pays_for: Bytes,
    /// Bytes that the next plan may move so that what is written leaves nodes that answer late; that the
    /// last one might have moved for that; and was to move.
    relief: Bytes,
    may_relieve: Bytes,
    relieves: Bytes,
    /// Bytes that the exchanges of the last plan were to move.
    asked: Bytes,
    /// The share of these which was, as far as is known, to be worth while for an epoch.
    lasts: f64,
    held: Held,
    /// Whether epochs are short, unless nodes answer late.
    is_quick: bool,
    is_loaded: bool,
    /// Whether what was to be exchanged last was clearly hotter.
    is_clear: bool,
    /// Epochs since more than a little was to be exchanged.
    calm: u8,
    loads: Loads,
    steps: Steps,
    lists: Lists,
    facts: FactLists,
}

impl Adaptive {
    /// With these settings.
    pub fn new(settings: AdaptiveSettings) -> Self {
        Self {
            settings,
            lasting: Lasting::default(),
            budget: settings.first_bytes,
            cost: COST_AT_FIRST,
            spare: 0.0,
            pays_for: Bytes::ZERO,
            relief: settings.first_bytes,
            may_relieve: Bytes::ZERO,
            relieves: Bytes::ZERO,
            asked: Bytes::ZERO,
            lasts: 1.0,
            held: Held::default(),
            is_quick: true,
            is_loaded: false,
            is_clear: true,
            calm: 0,
            loads: Loads::default(),
            steps: Steps::default(),
            lists: Lists::default(),
            facts: FactLists::default(),
        }
    }

    /// What the last plan's moves cost, and how much may be moved next.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn learn(&mut self, view: &View<'_>) {
        let Done {
            moved,
            given_back,
            relieved,
            deferred,
            cost,
        } = view.done;
        let all = moved + given_back + relieved;
        let first = self.settings.first_bytes;
        let least = Bytes(first.0 / LEAST_SHARE);
        if self.held.is_dear && all.is_zero() {
            self.cost *= COST_FADES;
            self.cost = self.cost.max(COST_LEAST * COST_AT_FIRST);
        }
        if all.is_zero() {
            // Nothing was learnt.
        } else if cost.0 > 0 {
            // Of a few pages it is looking for them that costs, and says little of a byte.
            let weight = COST_EMA * (all.as_f64() / least.as_f64()).sqrt().min(1.0);
            let cost = (cost.as_secs_f64() / all.as_f64()).min(COST_JUMPS * self.cost);
            self.cost += weight * (cost - self.cost);
        }
        self.spare = view.spare;
        // Back to what it begins with it comes more easily than beyond.
        let enough = if self.budget < first { 0.2 } else { 0.5 };
        let told = self.lasting.told(view.epoch);
        // What was looked up long ago is no reason to go on halving.
        let disappoints =
            told.is_some_and(|told| told.is_new && told.left < DISAPPOINTS && told.hot < COOLS);
        let (left, asked) = (told.map_or(0.0, |told| told.left), self.asked.0);
        if !self.asked.is_zero() && disappoints {
            self.budget = Bytes(self.budget.0 / 2).max(first.min(self.budget));
        } else if deferred.0 > asked / 8 {
            self.budget = moved.max(Bytes(self.budget.0 / 2));
        } else if asked > self.budget.0 / 8 * 7
            && moved.0 >= asked / 2
            && self.lasts.min(left) >= enough
        {
            self.budget = Bytes(self.budget.0.saturating_mul(GROWS));
        }
        self.relief = if self.relieves.is_zero() || relieved.0 < self.relieves.0 / 2 {
            // What is wanted no more, or there was no time for.
            Bytes(self.relief.0 / 2).max(first)
        } else if self.relieves.0 >= self.may_relieve.0 / 2 {
            // More follows: what is written does not cease to be.
            Bytes(self.relief.0.saturating_mul(GROWS))
        } else {
            self.relief
        };
        // How late nodes answer is smoothed over epochs: steps must not be quicker than that.
        self.is_loaded = !view.loaded.is_empty() || !self.relieves.is_zero();
        self.is_quick = match told {
            Some(told) if told.left <= GONE && told.hot < COOLS => false,
            Some(told) if told.left >= STAYS => true,
            _ => self.is_quick,
        };
        let interval = view.interval.as_secs_f64();
        let counted = self.settings.moving_limit * self.loads.sum() * interval;
        // What nobody else uses goes first.
        let free = self.spare * interval;
        let seconds = (counted / HELD_UP).min(counted + free * (1.0 - HELD_UP));
        // `as` saturates.
        self.pays_for = Bytes((seconds / self.cost) as u64);
        self.relief = self.relief.min(self.pays_for).max(first);
        self.budget = self.budget.min(self.pays_for).max(least);
    }

    /// Seconds that moving a byte costs: what nobody else would use counts for [`HELD_UP`], but what
    /// is cheap anyway is not made cheaper.
    fn price(&self) -> f64 {
        let counted = 1.0 - self.spare * (1.0 - HELD_UP);
        let least = (COST_LEAST * COST_AT_FIRST).min(self.cost);
        (self.cost * counted).max(least)
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

    fn weighs_load(&self) -> bool {
        true
    }

    fn holds_back(&self) -> Option<PauseReason> {
        (self.held.says_so > 0).then_some(PauseReason::NoGain)
    }

    fn pace(&self) -> f64 {
        if self.is_quick && self.is_clear && !self.is_loaded && self.calm < CALM {
            self.settings.pace
        } else {
            1.0
        }
    }

    fn decide(&mut self, view: &View<'_>, budget: Budget) -> Vec<Move> {
        let loads = self.loads.follow(view);
        let idle = view;
        let tiers = idle.tiers_under_load();
        let view = &idle.with_tiers(&tiers);
        let facts = std::mem::take(&mut self.facts);
        let worth = Worth::of(view, idle, self.settings, &loads, facts);
        let ids: Vec<TargetId> = view.targets.iter().map(|target| target.id).collect();
        self.lasting.keep(&ids);
        self.lasting
            .follow(view.epoch, |target, addr| worth.latest(target, addr));
        self.learn(view);
        let left = self.budget.min(budget.bytes);
        let relief = self.relief.min(self.pays_for).min(budget.bytes);
        let all = self.pays_for.min(budget.bytes);
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
            cost: self.price(),
            left,
            thought: left,
            headroom: Bytes(left.min(self.pays_for).0 / FOR_HEADROOM),
            relief,
            all,
        };
        let mut planner = Planner::new(
            &worth,
            idle,
            &self.steps,
            terms,
            std::mem::take(&mut self.lists),
        );
        planner.plan();
        let warm = worth.warm;
        let Planner {
            moves,
            trades,
            is_in_vain,
            is_delayed,
            lasts,
            lists,
            relieved,
            ..
        } = planner;
        (self.lists, self.facts) = (lists, worth.facts);
        self.steps.follow(&idle.loaded, &moves);
        let is_exchange =
            |m: &&Move| matches!(m.reason, Reason::Hot | Reason::Spread | Reason::Room);
        let exchanges = moves.iter().filter(is_exchange);
        self.asked = exchanges.map(|m| m.limit).sum();
        (self.relieves, self.may_relieve) = (relieved, relief);
        // What drifts is moved bit by bit, as much in a second whatever epochs are.
        let of_short = if self.pace() < 1.0 {
            1.0
        } else {
            self.settings.pace
        };
        let little = (self.settings.first_bytes.0 / LITTLE).min(warm.0 / LITTLE_OF_WARM);
        // Where nothing is hot nothing is to be moved.
        self.calm = if self.asked.as_f64() * of_short <= little as f64 {
            self.calm.saturating_add(1)
        } else {
            0
        };
        self.held.is_dear = self.asked.is_zero() && !trades.is_empty();
        self.held.says_so = match (
            self.asked.is_zero() && relieved.is_zero(),
            self.held.is_dear || (is_in_vain && !is_delayed),
        ) {
            (true, true) => SAYS_SO,
            (true, false) => self.held.says_so.saturating_sub(1),
            (false, _) => 0,
        };
        self.lasts = lasts / self.asked.as_f64().max(1.0);
        let gains = |trade: &Trade| trade.bytes * trade.promised;
        let all: f64 = trades.iter().map(gains).sum();
        let clear = trades.iter().filter(|t| t.margin != Margin::Small);
        if all > 0.0 {
            self.is_clear = clear.map(gains).sum::<f64>() >= CLEAR * all;
        }
        self.lasting.note(Plan {
            epoch: view.epoch,
            trades,
            allowed: left.as_f64().max(1.0),
            is_telling: self.asked.0 >= left.0 / 4,
        });
        moves
    }
}

#[cfg(test)]
#[path = "adaptive_cost_tests.rs"]
mod cost_tests;
#[cfg(test)]
#[path = "adaptive_tests.rs"]
mod tests;
