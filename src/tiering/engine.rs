//! One decision per epoch: [`Engine::step`] takes an [`Observation`] and gives
//! a [`Plan`].
//!
//! The engine owns all that is remembered between epochs: regions with their
//! hotness and residency, the measured cost of a scan, the generator that
//! draws samples. The same observations and seed give the same plans.
//!
//! One step, in order:
//! 1. what became of the last plan's moves, and what its sweeps counted, goes
//!    into the regions that it was made for;
//! 2. regions follow the mappings, then the accesses (split and merge);
//! 3. the policy plans moves for the targets that may be moved;
//! 4. samples and sweeps for the next epoch are chosen;
//! 5. the report is written.

use std::collections::BTreeMap;

use super::bounds::Shares;
use super::estimates::Estimates;
use super::governor::{Again, Allotment, Governor, IDLE_LOAD, Terms};
use super::observation::{Observation, Sample, TargetId, TargetMap};
use super::plan::{Plan, Sweep};
use super::policy::{self, Policy};
use super::region::{Adapted, Asked, RegionMap, Thresholds};
use super::report::{PauseReason, Watched};
use super::rng::Rng;
use super::sampling::{self, Drawing, Drawn};
use super::settings::{
    Asking, EngineSettings, LookRule, Placement, ProfilingSettings, SplitRule, WindowRule,
};
use super::tier::{TierTable, TierView};
use super::windows::{self, Coverage, Rates, Span};
use crate::units::{Bytes, Nanos};

mod accesses;
mod asking;
mod charging;
mod counted;
mod deciding;
mod giving;
mod machine;
mod outcome;
mod pace;
mod paging;
mod reporting;
mod spare;
mod stays;
mod survey;
mod tracked;
mod watched;
use accesses::{Lens, Time, Tracing};
use machine::Machine;
use pace::Pace;
use reporting::Ratios;
use survey::Survey;
use tracked::{Totals, Tracked};

/// Share of one CPU above which a target surely touches memory.
const BUSY: f64 = 0.1;
/// Samples that must have been watched before their silence means anything.
const ENOUGH_SAMPLES: u64 = 16;
/// Epochs of silence before a sampler counts as blind.
const BLIND_EPOCHS: u32 = 2;
/// Epochs for which a region is left alone of which nothing could be moved: its pages
/// are pinned or forbidden, and that lasts; or shared, for as long as its samples are.
const STUCK_EPOCHS: u64 = 16;
/// By how much of the scans τ1 rises per epoch while there are more regions
/// than samples (HM-Keeper §1.2 leaves the step open).
const MERGE_STEP: f32 = 0.1;
/// So many standard errors apart neighbours stay apart: few merges are held back by chance
/// alone, and what is held back may merge in a later epoch.
const APART: f32 = 2.5;

/// Pages of all targets that are expected to be looked at before any were dealt out:
/// about what a busy one affords.
const SAMPLES_AT_FIRST: u64 = 4096;

/// Pieces that new mappings are cut into at most: of 2 MiB they are 2 TiB. A program may map
/// far more than there is memory (AddressSanitizer does), and each region takes 128 bytes.
const REGIONS_AT_FIRST: u64 = 1 << 20;
/// Pages that are watched in one epoch at most, whatever a scan seems to cost.
const SAMPLES_MOST: u64 = 1 << 22;

/// What one epoch told of one target, on the way to its report.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    cpu: Nanos,
    /// CPUs that were used for its memory.
    load: f64,
    /// Whether it has memory that may be moved.
    is_watchable: bool,
    samples: u64,
    accessed: u64,
    unknown: u64,
    /// What it had to do again for us, but for what was moved.
    again: Again,
    adapted: Adapted,
    quota: u64,
    watched: Watched,
}

impl Told {
    /// CPUs that it uses, or counts as using; none if there is nothing to watch.
    fn weight(&self) -> f64 {
        if self.is_watchable {
            self.load.max(IDLE_LOAD)
        } else {
            0.0
        }
    }
}

/// Decides. See the module.
pub struct Engine {
    settings: EngineSettings,
    tiers: TierTable,
    policy: Box<dyn Policy>,
    rng: Rng,
    epoch: u64,
    at: Option<Nanos>,
    /// How long the epoch under way is meant to be.
    pace: Pace,
    governor: Governor,
    /// How the windows of the epoch under way differ, and what their counts stand for.
    span: Span,
    rates: Rates,
    estimates: Estimates,
    coverage: Coverage,
    machine: Machine,
    /// Pages of all targets that could be looked at in the last epoch.
    afforded: u64,
    targets: BTreeMap<TargetId, Tracked>,
    /// Samples that were looked at: kept for its memory.
    spent: Vec<Sample>,
}

impl Engine {
    /// Knows nothing yet.
    pub fn new(settings: EngineSettings, tiers: TierTable, seed: u64) -> Self {
        let span = Span::new(settings.profiling.window_rule());
        Self {
            policy: policy::build(&settings.policy),
            pace: Pace::WHOLE,
            rates: rates(span, &settings.profiling),
            coverage: coverage(span, &settings.profiling),
            machine: Machine::default(),
            estimates: estimates(span, &settings.profiling),
            span,
            settings,
            tiers,
            rng: Rng::new(seed),
            epoch: 0,
            at: None,
            governor: Governor::default(),
            afforded: SAMPLES_AT_FIRST,
            targets: BTreeMap::new(),
            spent: Vec::new(),
        }
    }

    /// Takes samples of an observation back, to draw the next ones where they were.
    pub fn recycle(&mut self, mut samples: Vec<Sample>) {
        samples.clear();
        self.spent = samples;
    }

    /// New settings and tiers; what was learnt of the targets is kept.
    pub fn configure(&mut self, settings: EngineSettings, tiers: TierTable) {
        if !settings.policy.decides_as(&self.settings.policy) {
            self.policy = policy::build(&settings.policy);
        }
        let (new, old) = (settings.profiling, self.settings.profiling);
        let before = self.span.get();
        if new.window_rule() != old.window_rule() {
            self.span = Span::new(new.window_rule());
        }
        let span = self.span.get();
        let differs = new.scans != old.scans || new.look_rule() != old.look_rule();
        self.settings = settings;
        if tiers != self.tiers {
            self.tiers = tiers;
            self.targets.values_mut().for_each(|t| t.latest.forget());
        }
        if differs || span < before || span > before {
            self.restate(1.0);
        }
    }

    /// How many times as long as the last window of the next epoch the first one is.
    pub fn span(&self) -> f64 {
        self.span.get()
    }

    /// How long an epoch is meant to be now, if it is not stretched.
    pub fn interval(&self) -> Nanos {
        self.pace.of(self.settings.profiling.interval)
    }

    /// The tiers that it plans for.
    pub fn tiers(&self) -> &TierTable {
        &self.tiers
    }

    /// What counts of regions stand for.
    pub fn rates(&self) -> &Rates {
        &self.rates
    }

    /// Scans per epoch: the most that a region's hotness can be.
    pub fn scans(&self) -> u8 {
        self.settings.profiling.scans
    }

    /// The regions of one target.
    pub fn regions(&self, target: TargetId) -> Option<&RegionMap> {
        self.targets.get(&target).map(|t| &t.map)
    }

    /// One decision.
    pub fn step(&mut self, seen: &Observation) -> Plan {
        self.epoch += 1;
        self.targets
            .retain(|id, _| seen.targets.iter().any(|t| t.id == *id));
        self.record(seen);
        self.machine
            .follow(seen, self.asks_nodes() != Asking::Never);
        let elapsed = self
            .at
            .map_or(seen.cost.elapsed, |at| seen.at.saturating_sub(at));
        self.at = Some(seen.at);

        let initial = self.initial_region(&seen.targets);
        let followed: Vec<_> = seen
            .targets
            .iter()
            .map(|target| self.follow(target, seen, elapsed, initial))
            .collect();
        let (mut told, surveyed): (Vec<Told>, Vec<_>) = followed.into_iter().unzip();
        let (accesses, surveys): (Vec<Shares>, Vec<Survey>) = surveyed.into_iter().unzip();
        let views: Vec<TierView> = seen
            .targets
            .iter()
            .map(|t| {
                let share = self.targets[&t.id].stays.view();
                self.tiers.view(share, t.allowed_nodes.as_deref())
            })
            .collect();
        let paused: Vec<Option<PauseReason>> = seen
            .targets
            .iter()
            .zip(&views)
            .map(|(t, view)| self.paused(t.id, view))
            .collect();
        let charges = self.charge(seen, &told);
        let doubts = self.doubts(seen, &surveys);
        let before = self.pace;
        let allotted = self.allot(seen, &told, &surveys, paused.iter().any(Option::is_none));
        self.afforded = allotted.samples * u64::from(self.pages_per_sample());
        self.deal(seen, &mut told);
        let moves = self.decide(seen, &told, &views, &paused, allotted.interval);
        let (page_outs, paging) = self.page_out(seen, &views, elapsed, allotted.interval);
        let (drawn, sweeps) = self.look_next(seen, &told, allotted.sweep_pages);
        let looks = if self.settings.profiling.overhead_control {
            allotted.samples
        } else {
            // Each region has its sample whatever that costs.
            let all = drawn.samples.len() as u64;
            let first = drawn.roles.iter().filter(|role| role.is_first()).count() as u64;
            let of_a_scan = match self.settings.profiling.look_rule() {
                LookRule::Sequential => first,
                LookRule::Fresh => all.div_ceil(self.pages_per_sample().into()),
                LookRule::Repeated => all,
            };
            allotted.samples.max(of_a_scan)
        };
        let forget = self.ask_next(seen, &told, (&views, &paused), allotted.interval);
        let ratios = Ratios {
            accesses,
            surveys,
            told,
            charges,
            interval: allotted.interval,
            is_unpaid: allotted.is_unpaid && self.settings.profiling.overhead_control,
            views,
            paused,
            moves: &moves,
            paging,
            doubts,
        };
        let report = reporting::report(self, seen, &ratios);
        let longer = self.pace.share() / before.share();
        self.widen(
            seen,
            &ratios.views,
            &ratios.surveys,
            allotted.interval,
            longer,
        );
        Plan {
            reclaims: self.reclaims(seen, &moves),
            moves,
            page_outs,
            samples: drawn.samples,
            roles: drawn.roles,
            looks,
            rule: self.settings.profiling.look_rule(),
            span: self.span.get(),
            sweeps,
            forget,
            interval: allotted.interval,
            report,
        }
    }

    /// Brings one target's regions up to date; also which share of its accesses each tier
    /// serves, and what its regions come to.
    fn follow(
        &mut self,
        target: &TargetMap,
        seen: &Observation,
        elapsed: Nanos,
        initial: Bytes,
    ) -> (Told, (Shares, Survey)) {
        let raised = self.targets.get(&target.id).map_or(0.0, |t| t.raised);
        let thresholds = self.thresholds(raised);
        let profiling = &self.settings.profiling;
        let (tracked, passed) = (self.targets.entry(target.id).or_default(), elapsed);
        let mine = seen.accesses.looked_at(target.id);

        // Of one that is new nothing says how busy it is: take it for busy
        // through a whole interval, since that is what its samples are for.
        let now = (target.cpu_time, target.memory_time);
        let (cpu, busy, elapsed) = match tracked.cpu_time.replace(now) {
            Some((cpu, busy)) => {
                let (cpu, busy) = (now.0.saturating_sub(cpu), now.1.saturating_sub(busy));
                (cpu, busy, elapsed)
            }
            None => (profiling.interval, profiling.interval, profiling.interval),
        };

        tracked.stays.learn(&target.cpu_share, elapsed);
        tracked.pid = target.pid;
        tracked.allowed_nodes.clone_from(&target.allowed_nodes);
        tracked.map.sync(&target.eligible, initial);
        tracked.learn_reach(mine.len() as u64, profiling.scans);
        let mut adapted = tracked.adapt(mine, profiling.scans, thresholds);
        let asks = self.policy.asks(profiling.writes);
        let asked = Asked {
            quiet: self.settings.page_out.is_some().then_some(passed),
            writes: asks && tracked.has_forgotten(target.id, &seen.forgotten),
            parts: (profiling.split == SplitRule::Edges).then_some(profiling.minimum_region),
        };
        let mut tracing = Tracing::new(Lens {
            tiers: &self.tiers,
            estimates: &self.estimates,
            rates: &self.rates,
            interval: profiling.interval,
            ema: thresholds.ema,
            scans: profiling.scans,
            epoch: self.epoch,
        });
        let measures = asks.then_some(target.mapped);
        adapted.splits += tracked.record(mine, asked, measures, |region, mine| {
            tracing.add(region, mine);
        });
        let time = Time { cpu: busy, elapsed };
        let surveyed: (Shares, Survey) =
            tracing.finish(tracked.stays.view(), time, &mut tracked.latest);
        let totals = Totals::of(mine);
        let again = Again {
            accessed: totals.looks,
            written: (tracked.extent.written)
                .filter(|_| asked.writes)
                .unwrap_or(0),
            write_fault: profiling.write_fault,
            moved: 0,
        };

        let told = Told {
            cpu,
            load: busy.0 as f64 / elapsed.0.max(1) as f64,
            is_watchable: !tracked.map.regions().is_empty(),
            samples: mine.len() as u64,
            accessed: totals.accessed,
            unknown: totals.unknown,
            again,
            adapted,
            quota: 0,
            watched: tracked
                .lack
                .follow(target, surveyed.1.total(), &seen.targets),
        };
        if told.accessed > 0 {
            tracked.silent = 0.0;
        } else if told.load >= BUSY && told.samples - told.unknown >= ENOUGH_SAMPLES {
            // Of many regions an epoch may look at those only that are cold.
            let regions = tracked.map.regions().len().max(1);
            tracked.silent += ((told.samples - told.unknown) as f64 / regions as f64).min(1.0);
        }
        (told, surveyed)
    }

    /// What new mappings are cut into. HM-Keeper begins with 2 MiB, of which a
    /// terabyte has more than there are samples, so that most are not watched for
    /// many epochs (§1.2 leaves it to τ1). Where a region is cut at its edges it
    /// may as well begin so large that each gets two samples.
    fn initial_region(&self, targets: &[TargetMap]) -> Bytes {
        let profiling = &self.settings.profiling;
        let ranges = targets.iter().flat_map(|t| &t.eligible);
        let bytes: Bytes = ranges.map(|range| range.bytes()).sum();
        let pieces = match profiling.split {
            SplitRule::Edges => (self.afforded / 2).clamp(1, REGIONS_AT_FIRST),
            SplitRule::Halves | SplitRule::Fixed => REGIONS_AT_FIRST,
        };
        // No address space is so large that it would overflow.
        let each = (bytes.0 / pieces).min(1 << 62);
        Bytes(each.next_power_of_two()).max(profiling.initial_region)
    }

    /// When regions split and merge, with τ1 raised by so much.
    #[allow(clippy::cast_possible_truncation)]
    fn thresholds(&self, raised: f32) -> Thresholds {
        let profiling = &self.settings.profiling;
        let scans = f32::from(profiling.scans);
        let (merge, split) = if profiling.overhead_control {
            let merge = profiling.merge_threshold as f32 + raised;
            (merge, profiling.split_threshold as f32)
        } else {
            (0.0, 0.0)
        };
        Thresholds {
            merge: merge * scans,
            surely: match profiling.split {
                // Of too many regions all may merge.
                SplitRule::Edges => APART / (1.0 - raised),
                SplitRule::Halves | SplitRule::Fixed => f32::INFINITY,
            },
            split: split * scans,
            minimum: profiling.minimum_region,
            reach: Bytes(profiling.initial_region.0 / 2),
            rule: profiling.split,
            ema: self.policy.ema(),
            full_counts_more: match profiling.window_rule() {
                WindowRule::Tapered if profiling.scans > 1 => windows::FULL_COUNTS_MORE,
                WindowRule::Tapered | WindowRule::Equal => 0.0,
            },
            coverage: self.coverage,
            // The same here.
            apart_in_writes: Thresholds::APART_IN_WRITES / (1.0 - raised),
        }
    }

    /// What watching may do until the next step.
    fn allot(
        &mut self,
        seen: &Observation,
        told: &[Told],
        surveys: &[Survey],
        decides: bool,
    ) -> Allotment {
        let profiling = &self.settings.profiling;
        let maps = || self.targets.values().map(|t| &t.map);
        let terms = Terms {
            load: load(told),
            limit: profiling.overhead_limit,
            interval: self.pace.of(profiling.interval),
            scans: profiling.scans,
            regions: maps().map(|map| map.regions().len() as u64).sum(),
            pages: maps().map(RegionMap::page_count).sum(),
            uncounted: self.targets.values().map(|t| t.uncounted).sum(),
        };
        let again = Again {
            accessed: told.iter().map(|t| t.again.accessed).sum::<u64>() + seen.cost.set_again,
            written: told.iter().map(|t| t.again.written).sum(),
            write_fault: profiling.write_fault,
            moved: 0,
        };
        self.governor.learn(&seen.cost, again, terms);
        self.pace = self.next_pace(terms, surveys, decides);
        let terms = Terms {
            interval: self.interval(),
            ..terms
        };
        let mut allotted = self.governor.allot(terms);
        if !profiling.overhead_control {
            allotted.interval = terms.interval;
        }
        allotted
    }

    /// Pages that may be looked at for each sample that is afforded: where every scan
    /// looks at pages of its own there are as many more of them.
    fn pages_per_sample(&self) -> u8 {
        match self.settings.profiling.look_rule() {
            LookRule::Fresh => self.settings.profiling.scans.max(1),
            LookRule::Repeated | LookRule::Sequential => 1,
        }
    }

    /// Pages that are drawn beside each sample, for looks that are left.
    fn scouts_per_sample(&self) -> u64 {
        match self.settings.profiling.look_rule() {
            LookRule::Sequential => u64::from(self.settings.profiling.scans.max(1)) - 1,
            LookRule::Fresh | LookRule::Repeated => 0,
        }
    }

    /// Deals the samples out: to targets by their load, as far as they have
    /// memory to watch, then to their regions.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn deal(&mut self, seen: &Observation, told: &mut [Told]) {
        let all = load(told);
        let profiling = self.settings.profiling;
        let samples = self.afforded.min(seen.capacity);
        let scouts = self.scouts_per_sample();
        let mut left = seen.capacity.min(SAMPLES_MOST / (1 + scouts));
        for (target, told) in seen.targets.iter().zip(told) {
            let Some(raised) = self.targets.get(&target.id).map(|t| t.raised) else {
                continue;
            };
            let thresholds = self.thresholds(raised);
            let Some(tracked) = self.targets.get_mut(&target.id) else {
                continue;
            };
            let regions = tracked.map.regions().len() as u64;
            // A share of 0 to 1 of the samples: no loss that matters.
            let share = samples as f64 * told.weight() / all.max(IDLE_LOAD);
            let mut quota = (share as u64).max(1).min(tracked.useful).min(left);
            if !profiling.overhead_control {
                quota = quota.max(regions).min(left);
            }
            left -= quota;
            tracked.quota = quota;
            tracked.raised = if regions > tracked.reached() {
                (tracked.raised + MERGE_STEP).min(1.0)
            } else {
                (tracked.raised - MERGE_STEP).max(0.0)
            };
            let map = &mut tracked.map;
            match (profiling.placement, profiling.split) {
                (Placement::Random, _) => sampling::deal_at_random(map, quota, &mut self.rng),
                (Placement::Aimed, SplitRule::Edges) => {
                    let scouts = quota * scouts;
                    sampling::deal_to_edges(map, (quota, scouts), self.epoch, thresholds);
                }
                (Placement::Aimed, SplitRule::Halves | SplitRule::Fixed) => {
                    sampling::deal(map, quota, self.epoch);
                }
            }
            told.quota = quota;
        }
    }

    /// What to watch, what is expected of it, and what to count until the next step.
    fn look_next(&mut self, seen: &Observation, told: &[Told], pages: u64) -> (Drawn, Vec<Sweep>) {
        let mut sweeps = Vec::new();
        let mut drawn = Drawn {
            samples: std::mem::take(&mut self.spent),
            roles: Vec::new(),
        };
        let hot = f32::from(self.settings.profiling.scans) / 2.0;
        let each = self.scouts_per_sample();
        let all: u64 = self.targets.values().map(Tracked::sweep_weight).sum();
        let mut targets: Vec<(&TargetMap, &Told)> = seen.targets.iter().zip(told).collect();
        targets.sort_by_key(|(target, _)| target.id);
        for (target, told) in targets {
            let how = Drawing {
                hot,
                scouts: (each > 0).then_some(told.quota * each),
            };
            let Some(tracked) = self.targets.get_mut(&target.id) else {
                continue;
            };
            let wanted = usize::try_from(told.quota * (1 + each)).unwrap_or(0);
            drawn.samples.reserve(wanted);
            drawn.roles.reserve(wanted);
            sampling::draw(
                &tracked.map,
                (target.id, target.pid),
                how,
                &mut self.rng,
                &mut drawn,
            );
            let share = u128::from(pages) * u128::from(tracked.sweep_weight());
            let share = u64::try_from(share / u128::from(all.max(1))).unwrap_or(pages);
            tracked.sweep(target.id, target.pid, hot, share.max(1), &mut sweeps);
        }
        (drawn, sweeps)
    }
}

/// What counts stand for.
fn rates(span: Span, profiling: &ProfilingSettings) -> Rates {
    Rates::new(span.get(), profiling.scans, profiling.look_rule())
}

/// The same of counts of single samples.
fn estimates(span: Span, profiling: &ProfilingSettings) -> Estimates {
    Estimates::new(span.get(), profiling.scans, profiling.look_rule())
}

/// What samples weigh that were looked at in some scans only. Where what surprises is looked
/// at more often, that must not weigh more.
fn coverage(span: Span, profiling: &ProfilingSettings) -> Coverage {
    match profiling.look_rule() {
        LookRule::Sequential => Coverage::new(span.get(), profiling.scans),
        LookRule::Fresh | LookRule::Repeated => Coverage::WHOLE,
    }
}

/// CPUs that all of them use, or count as using.
fn load(told: &[Told]) -> f64 {
    told.iter().map(Told::weight).sum()
}

#[cfg(test)]
mod tests;
