//! One turn of the loop, over any ports: the daemon's kernel or the
//! simulator's model.
//!
//! ```text
//!  arm ─ window ─ collect, arm ─ window ─ collect … ─► Targets, Residency
//!                                                          │ Observation
//!               PageMover, in the first window ◄─ Plan ─ Engine::step
//! ```
//!
//! Scans are spread over the interval. An epoch begins where the last one ended. What is to be
//! moved is moved in its first window, where it is so long that moving fits in: windows are as long whatever
//! moving takes, or counts of epochs in which much is moved would stand for other rates. A sample whose page
//! goes elsewhere meanwhile cannot be told, and is looked at again. Where moving may take longer, or where
//! all scans have to look at the same pages, it comes before, and its time is taken off the windows. An
//! interval that was missed is not caught up with; an epoch of which three quarters would be over begins anew.
//! While the loop waits it looks at nodes that targets fill (the module `guarding`).

use crate::ports::{
    Calibration, FolioPace, PortError, Ports, Recorder, SamplerKind, Sharing, TargetEvent,
    TargetSpec, Threads, Wake,
};
use crate::tiering::engine::Engine;
use crate::tiering::looks::Looks;
use crate::tiering::observation::{
    AccessSet, EpochCost, Forgotten, Observation, RangeResidency, TargetId,
};
use crate::tiering::pageout::PagedOut;
use crate::tiering::plan::{MoveOutcome, Plan};
use crate::tiering::region::RegionMap;
use crate::tiering::report::{EpochReport, PauseReason};
use crate::tiering::settings::{Asking, EngineSettings, LookRule, WindowRule};
use crate::tiering::tier::TierTable;
use crate::tiering::windows::{self, Lateness, SHORTEST_AT_ONCE};
use crate::units::{Bandwidth, Bytes, Nanos};

mod acting;
mod guarding;
mod paging;
use guarding::Guard;

/// The longest that the loop moves without looking up: its part of an interval, however
/// long that is, for an end that was asked for should not have to wait longer.
pub fn longest_migration(settings: &LoopSettings) -> Nanos {
    migration_time(settings, settings.engine.profiling.interval)
}

/// The same where the epoch is this long.
fn migration_time(settings: &LoopSettings, interval: Nanos) -> Nanos {
    const MOST: Nanos = Nanos::from_secs(10);
    let interval = interval.min(settings.engine.profiling.interval);
    Nanos::from_secs_f64(interval.as_secs_f64() * settings.migration_share).min(MOST)
}

/// Everything that the loop can be told, at the start or by a reload.
#[derive(Clone, Debug, PartialEq)]
pub struct LoopSettings {
    /// What decides.
    pub engine: EngineSettings,
    /// Whether plans are carried out; if not, they are made and counted.
    pub moving: bool,
    /// Bytes per second that may be moved; `None`: as the policy's budget says.
    pub rate: Option<Bandwidth>,
    /// Threads that may move at once.
    pub threads: Threads,
    /// A single `move_pages` call should stay below this.
    pub call_time: Nanos,
    /// Share of an interval that moving may take.
    pub migration_share: f64,
}

/// What one turn brought.
#[derive(Clone, Debug)]
pub struct Turn {
    /// The epoch; `None` when the turn was interrupted before it was over.
    pub report: Option<EpochReport>,
    /// What happened to targets.
    pub events: Vec<TargetEvent>,
}

/// The epoch under way.
struct Running {
    looks: Looks,
    /// When the window under way ends.
    due: Nanos,
    /// How long each is, the first one first.
    windows: Vec<Nanos>,
    /// How long the epoch is meant to be.
    interval: Nanos,
    /// Whether that is longer than configured, since the limit pays for no more.
    stretched: bool,
    /// When the scan under way began to wait.
    armed: Nanos,
    /// How many times as long as the last window the first one is.
    span: f64,
    /// Whether a scan is missing among others that are not like it.
    spoilt: bool,
}

/// How the waiting ended.
enum Scanned {
    Done(AccessSet),
    Interrupted(Box<Running>),
}

/// CPU clocks at the last observation.
#[derive(Clone, Copy)]
struct Clocks {
    at: Nanos,
    process: Nanos,
    mover: Nanos,
    kernel: Nanos,
    /// The machine's idle time.
    idle: Nanos,
}

/// The loop with all its state. One ordinary thread owns it.
pub struct EpochLoop {
    ports: Ports,
    engine: Engine,
    settings: LoopSettings,
    paused: bool,
    running: Option<Running>,
    /// The plan of the epoch under way, whose sweeps are due at its end.
    plan: Option<Plan>,
    /// What kept the last turn's plan from being carried out, or the next epoch from beginning.
    trouble: Option<PortError>,
    /// What became of the plan, and of what had to leave its node between two decisions.
    outcome: MoveOutcome,
    /// Nodes that targets fill.
    guard: Guard,
    /// CPU time that is told apart from profiling, of a stretch that counts for that.
    aside: Nanos,
    paged_out: Vec<PagedOut>,
    /// End of the epoch before: where the next one begins.
    last_due: Option<Nanos>,
    clocks: Clocks,
    cost: EpochCost,
    lateness: Lateness,
    /// Targets that forgot what they wrote when the epoch under way began.
    forgotten: Vec<Forgotten>,
    /// Somebody was attached: do not wait out an interval in which nothing is
    /// watched.
    hurry: bool,
    recorder: Option<Box<dyn Recorder>>,
    sharing: Sharing,
}

impl EpochLoop {
    /// Ready for its first turn.
    pub fn new(ports: Ports, tiers: TierTable, settings: LoopSettings, seed: u64) -> Self {
        let mut this = Self {
            engine: Engine::new(engine_settings(&settings, &ports), tiers, seed),
            clocks: Clocks {
                at: ports.clock.now(),
                process: ports.clock.process_cpu_time(),
                mover: ports.mover.cpu_time(),
                kernel: Nanos::ZERO,
                idle: Nanos::ZERO,
            },
            ports,
            settings,
            paused: false,
            running: None,
            plan: None,
            trouble: None,
            outcome: MoveOutcome::default(),
            guard: Guard::default(),
            aside: Nanos::ZERO,
            paged_out: Vec::new(),
            last_due: None,
            cost: EpochCost::default(),
            lateness: Lateness::default(),
            forgotten: Vec::new(),
            hurry: true,
            recorder: None,
            sharing: Sharing::default(),
        };
        this.clocks.kernel = this.ports.sampler.kernel_cpu_time();
        this.clocks.idle = this.ports.clock.idle_time();
        this.calibrate();
        this
    }

    /// What a scan costs goes into the first epoch's cost.
    fn calibrate(&mut self) {
        let cpu = self.ports.clock.thread_cpu_time();
        match self.ports.sampler.calibrate() {
            Ok(Some(Calibration { scans, took })) => {
                self.cost.scanning += took;
                self.cost.scanned += scans;
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "what a scan costs is found out later"),
        }
        self.profiled(cpu);
    }

    /// Tells `recorder` all that the engine is told.
    pub fn record(&mut self, mut recorder: Box<dyn Recorder>) {
        let settings = engine_settings(&self.settings, &self.ports);
        recorder.configured(&settings, self.engine.tiers());
        self.recorder = Some(recorder);
    }

    /// Watches these from now on.
    pub fn select(&mut self, specs: &[TargetSpec]) {
        self.ports.targets.select(specs);
        self.hurry = true;
    }

    /// New settings, from the next epoch that begins on; what was learnt is kept.
    pub fn configure(&mut self, settings: LoopSettings, tiers: TierTable) {
        let engine = engine_settings(&settings, &self.ports);
        if let Some(recorder) = &mut self.recorder {
            recorder.configured(&engine, &tiers);
        }
        if tiers != *self.engine.tiers() {
            self.ports.targets.retier(&tiers);
            self.ports.residency.retier(&tiers);
        }
        self.engine.configure(engine, tiers);
        // What it was planned for no longer holds.
        if let Some(plan) = self.plan.as_mut() {
            plan.interval = self.engine.interval();
            plan.span = self.engine.span();
        }
        self.hurry |= self.running.as_ref().is_some_and(|r| r.stretched);
        self.settings = settings;
    }

    /// Observes and plans, but moves nothing, for as long as this is set.
    pub fn pause(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// The regions of one target.
    pub fn regions(&self, target: TargetId) -> Option<&RegionMap> {
        self.engine.regions(target)
    }

    /// The last plan, whose moves were made and whose samples are being watched; `None` before
    /// the first.
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    /// The tiers that it plans for.
    pub fn tiers(&self) -> &TierTable {
        self.engine.tiers()
    }

    /// Which mechanism watches, and how finely it can tell.
    pub fn sampler(&self) -> (SamplerKind, String) {
        (self.ports.sampler.kind(), self.ports.sampler.resolution())
    }

    /// What the mover has learnt of small folios and of huge ones.
    pub fn pace(&self) -> Option<[FolioPace; 2]> {
        self.ports.mover.pace()
    }

    /// One epoch: scans spread over the interval, decision, moves, in the first window of the
    /// next one where they fit in. Returns
    /// early, without a report, when the clock's sleep is interrupted; call
    /// again to go on where it was.
    ///
    /// # Errors
    /// When a port fails as a whole. The epoch is given up; the next call
    /// begins another one.
    pub fn turn(&mut self) -> Result<Turn, PortError> {
        let mut events = Vec::new();
        let result = match self.trouble.take() {
            Some(error) => Err(error),
            None => self.epoch(&mut events),
        };
        if result.is_err() {
            self.running = None;
            self.plan = None;
            self.last_due = None;
            self.ports.sampler.rest();
        }
        result.map(|report| Turn { report, events })
    }

    fn epoch(&mut self, events: &mut Vec<TargetEvent>) -> Result<Option<EpochReport>, PortError> {
        let cpu = self.ports.clock.thread_cpu_time();
        let running = match self.running.take() {
            Some(running) => running,
            None => self.begin()?,
        };
        let seen = match self.scan(running)? {
            Scanned::Done(seen) => seen,
            Scanned::Interrupted(running) => {
                self.running = Some(*running);
                self.profiled(cpu);
                return Ok(None);
            }
        };
        let observation = self.observe(seen, cpu, events)?;
        if let Some(recorder) = &mut self.recorder {
            recorder.observed(&observation);
        }
        let cpu = self.ports.clock.thread_cpu_time();
        let mut plan = self.engine.step(&observation);
        let any_target = !observation.targets.is_empty();
        self.engine.recycle(observation.accesses.into_samples());
        self.profiled(cpu);
        self.note_pauses(&mut plan.report, any_target);
        let report = plan.report.clone();
        self.guard_nodes(&plan);
        self.plan = Some(plan);
        // The report is there whatever comes of it.
        self.trouble = self.carry_on().err();
        Ok(Some(report))
    }

    /// Arms the samples that the last plan asked for.
    fn begin(&mut self) -> Result<Running, PortError> {
        // What that takes is off the windows.
        self.forget();
        let now = self.ports.clock.now();
        let (samples, roles) = self
            .plan
            .as_ref()
            .map(|plan| (plan.samples.clone(), plan.roles.clone()))
            .unwrap_or_default();
        let hurry = std::mem::take(&mut self.hurry) && samples.is_empty();
        let profiling = &self.settings.engine.profiling;
        let interval = (self.plan.as_ref()).map_or(profiling.interval, |plan| plan.interval);
        // What is left of an epoch may be too little: whatever kept us so long, this one begins now.
        let recent = |due: &Nanos| now.saturating_sub(*due) <= Nanos(interval.0 / 4 * 3);
        let start = self.last_due.filter(recent).unwrap_or(now);
        let end = if hurry { now } else { start + interval };
        let scans = profiling.scans.max(1);
        let whole = end.saturating_sub(now);
        let span = self.plan.as_ref().map_or(1.0, |plan| plan.span);
        let shortest = self.ports.sampler.shortest();
        let windows: Vec<Nanos> = (0..scans)
            .map(|scan| windows::length(span, whole, scans, scan).max(shortest))
            .map(|window| if hurry { Nanos::ZERO } else { window })
            .collect();
        self.last_due = Some(now + windows.iter().copied().sum());
        let stretched = interval > profiling.interval;
        let (each, rule, turn) = self.plan.as_ref().map_or_else(Default::default, |plan| {
            (plan.looks, plan.rule, plan.report.epoch)
        });
        let mut looks = Looks::new(samples, roles, (profiling.scans, each), rule, turn);
        self.arm(&mut looks, windows[0])?;
        let armed = self.ports.clock.now();
        Ok(Running {
            looks,
            due: now + windows[0],
            windows,
            interval,
            stretched,
            armed,
            span,
            spoilt: false,
        })
    }

    /// Has the targets that the plan names forget what they wrote.
    fn forget(&mut self) {
        self.forgotten.clear();
        let asking = self.settings.engine.profiling.writes;
        if asking == Asking::Auto && (self.paused || !self.settings.moving) {
            // Nothing would come of it.
            return;
        }
        let wanted = self.plan.as_ref().map(|plan| plan.forget.clone());
        for (target, pid) in wanted.unwrap_or_default() {
            let Some(writes) = &mut self.ports.writes else {
                return;
            };
            let cpu = self.ports.clock.thread_cpu_time();
            let done = writes.forget(pid, asking);
            let cost = self.ports.clock.thread_cpu_time().saturating_sub(cpu);
            self.cost.forgetting += cost;
            match done {
                Ok(Some(took)) => self.forgotten.push(Forgotten { target, took, cost }),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%error, "no more is learnt of what targets write");
                    self.ports.writes = None;
                }
            }
        }
    }

    /// Waits out the windows.
    fn scan(&mut self, mut running: Running) -> Result<Scanned, PortError> {
        loop {
            if self.hurry && (running.looks.is_empty() || running.stretched) {
                self.hurry = false;
                self.last_due = Some(self.ports.clock.now());
                self.ports.sampler.rest();
                // Half an epoch's looks would not be comparable.
                return Ok(Scanned::Done(AccessSet::default()));
            }
            if self.wait_until(running.due)? == Wake::Interrupted {
                return Ok(Scanned::Interrupted(Box::new(running)));
            }
            let waited = self.ports.clock.now().saturating_sub(running.armed);
            // As long as it would be had nothing been taken off it.
            let (scan, scans) = (running.looks.scans(), running.windows.len());
            let scans = u8::try_from(scans).unwrap_or(u8::MAX);
            let epoch = running.interval;
            let window = windows::length(running.span, epoch, scans, scan);
            let believed = self.lateness.believes(scan, waited, window, epoch);
            running.spoilt |= !believed && running.span > 1.0;
            self.collect(&mut running.looks, believed)?;
            let Some(&window) = running.windows.get(usize::from(running.looks.scans())) else {
                let cpu = self.ports.clock.thread_cpu_time();
                self.ports.sampler.rest();
                self.scanned(cpu, 0);
                let mut seen = running.looks.into_seen();
                if running.spoilt {
                    seen.forget();
                }
                return Ok(Scanned::Done(seen));
            };
            // What the last scan took is off this one's window, up to a half; nothing where
            // that would be all of it.
            let now = self.ports.clock.now();
            let least = Nanos(window.0 / 2).max(window.min(SHORTEST_AT_ONCE));
            let next = (running.due + window).max(now + least);
            self.arm(&mut running.looks, next.saturating_sub(now))?;
            running.due = next;
            running.armed = self.ports.clock.now();
        }
    }

    fn arm(&mut self, looks: &mut Looks, window: Nanos) -> Result<(), PortError> {
        if looks.is_empty() {
            return Ok(());
        }
        let cpu = self.ports.clock.thread_cpu_time();
        let samples = looks.begin();
        let count = samples.len();
        let result = self.ports.sampler.arm(samples, window);
        self.scanned(cpu, count);
        result
    }

    /// Ends a scan; what it saw is to be believed, or it is as if it could not tell.
    fn collect(&mut self, looks: &mut Looks, believed: bool) -> Result<(), PortError> {
        let cpu = self.ports.clock.thread_cpu_time();
        let result = if looks.is_empty() {
            Ok(())
        } else {
            self.ports.sampler.collect(looks.part())
        };
        looks.end(believed);
        self.scanned(cpu, 0);
        result
    }

    /// Adds the time of an arm or a collect; a pair of both is one scan.
    fn scanned(&mut self, since: Nanos, samples: usize) {
        let spent = self.ports.clock.thread_cpu_time().saturating_sub(since);
        self.cost.scanning += spent;
        self.cost.scanned += samples as u64;
    }

    fn profiled(&mut self, since: Nanos) {
        let spent = self.ports.clock.thread_cpu_time().saturating_sub(since);
        self.cost.profiling += spent.saturating_sub(std::mem::take(&mut self.aside));
    }

    /// Reads all that a decision may depend on.
    fn observe(
        &mut self,
        accesses: AccessSet,
        cpu: Nanos,
        events: &mut Vec<TargetEvent>,
    ) -> Result<Observation, PortError> {
        let targets = self.ports.targets.read(events)?;
        let sharing = self.ports.targets.sharing();
        if sharing != self.sharing {
            self.ports.sampler.relate(&sharing);
            self.ports.residency.relate(&sharing);
            self.ports.mover.relate(&sharing);
            self.sharing = sharing;
        }
        let mut residency: Vec<RangeResidency> = Vec::new();
        let before = self.ports.clock.thread_cpu_time();
        for sweep in self.plan.iter().flat_map(|p| &p.sweeps) {
            residency.push(self.ports.residency.sweep(*sweep)?);
            self.cost.swept += sweep.range.pages();
        }
        self.cost.sweeping += self.ports.clock.thread_cpu_time().saturating_sub(before);
        let nodes = self.ports.residency.nodes(self.engine.asks_nodes())?;
        let paging = self.look_at_paging(&targets);
        self.profiled(cpu);
        let last = self.clocks;
        let cost = self.take_cost();
        Ok(Observation {
            at: self.ports.clock.now(),
            targets,
            accesses,
            residency,
            forgotten: std::mem::take(&mut self.forgotten),
            nodes,
            cost,
            idle: self.clocks.idle.saturating_sub(last.idle),
            capacity: self.ports.sampler.capacity(),
            shortest: self.ports.sampler.shortest(),
            outcome: std::mem::take(&mut self.outcome),
            paging,
        })
    }

    /// The epoch's cost so far; what follows counts for the next one.
    fn take_cost(&mut self) -> EpochCost {
        let now = Clocks {
            // Takes time itself, of this epoch.
            idle: self.ports.clock.idle_time(),
            at: self.ports.clock.now(),
            process: self.ports.clock.process_cpu_time(),
            mover: self.ports.mover.cpu_time(),
            kernel: self.ports.sampler.kernel_cpu_time(),
        };
        let last = std::mem::replace(&mut self.clocks, now);
        let mut cost = std::mem::take(&mut self.cost);
        cost.elapsed = now.at.saturating_sub(last.at);
        cost.set_again = self.ports.sampler.take_set_again();
        cost.migration = now.mover.saturating_sub(last.mover);
        cost.kdamonds = now.kernel.saturating_sub(last.kernel);
        let process = now.process.saturating_sub(last.process);
        cost.other = process
            .saturating_sub(cost.profiling)
            .saturating_sub(cost.migration)
            .saturating_sub(cost.paging);
        cost
    }

    /// Adds why nothing will be carried out.
    fn note_pauses(&self, report: &mut EpochReport, any_target: bool) {
        let mut add = |condition: bool, reason: PauseReason| {
            if condition && !report.paused.contains(&reason) {
                report.paused.push(reason);
            }
        };
        add(self.paused, PauseReason::Operator);
        add(!self.settings.moving, PauseReason::DryRun);
        let one_tier = !any_target && self.engine.tiers().view(&[], None).is_flat();
        add(one_tier, PauseReason::OneTier);
        report.paused.sort_unstable();
    }

    /// See [`Policy::take_hint_faults`](crate::tiering::policy::Policy::take_hint_faults).
    pub fn take_hint_faults(&mut self) -> f64 {
        self.engine.take_hint_faults()
    }

    /// Undoes every kernel setting.
    pub fn release(&mut self) {
        self.ports.sampler.release();
    }
}

/// Bytes that the configured rate allows in one interval.
fn move_bytes(settings: &LoopSettings) -> Bytes {
    settings.rate.map_or(settings.engine.move_bytes, |rate| {
        rate.over(settings.engine.profiling.interval)
            .min(settings.engine.move_bytes)
    })
}

/// What the engine is told of `settings`, with this sampler: it plans no more than
/// the rate lets through.
fn engine_settings(settings: &LoopSettings, ports: &Ports) -> EngineSettings {
    let mut engine = EngineSettings {
        move_bytes: move_bytes(settings),
        ..settings.engine.clone()
    };
    if ports.sampler.repeats() {
        engine.profiling.looks = LookRule::Repeated;
        engine.profiling.windows = WindowRule::Equal;
    }
    match &ports.writes {
        Some(writes) => engine.profiling.write_fault = writes.fault(),
        None => engine.profiling.writes = Asking::Never,
    }
    engine
}
