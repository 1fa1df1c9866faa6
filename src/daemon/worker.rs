//! The loop's thread: builds the ports, owns the loop, takes commands between
//! two steps and publishes a snapshot after each epoch.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use tokio::sync::{oneshot, watch};
use tracing::{error, info, warn};

use super::error::DaemonError;
use super::heart::Heart;
use super::inbox::Inbox;
use super::process::{self, NoTarget};
use crate::config::Config;
use crate::epoch::{EpochLoop, LoopSettings, longest_migration};
use crate::ports::{
    AccessSampler, OtherMover, Ports, Selector, TargetEvent, TargetSpec, Topology, WriteWatch,
};
use crate::record::file::Writer;
use crate::sys::clock::{SysClock, Waker};
use crate::sys::mover::SysMover;
use crate::sys::others::others;
use crate::sys::own_nodes;
use crate::sys::pager::SysPager;
use crate::sys::probe;
use crate::sys::residency::SysResidency;
use crate::sys::root::Root;
use crate::sys::sampler;
use crate::sys::soft_dirty::SoftDirty;
use crate::sys::targets::SysTargets;
use crate::sys::topology::{self, Layout, SysTopology};
use crate::telemetry::{Snapshot, log};
use crate::tiering::report::PauseReason;
use crate::tiering::settings::Asking;
use crate::tiering::tier::TierTable;
use crate::units::{NodeId, Pid};

/// Turns that may fail in a row before the daemon gives up.
const FAILURES_MAX: u32 = 5;
/// Between a turn that failed and the next.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);

/// What the loop is asked to do between two steps.
#[derive(Debug)]
pub(super) enum Command {
    /// Watch a process.
    Attach(Pid, oneshot::Sender<Result<String, NoTarget>>),
    /// Let a process go that was attached; tells whether it was.
    Detach(Pid, oneshot::Sender<bool>),
    /// Move nothing, or go on.
    Pause(bool, oneshot::Sender<()>),
    /// New settings.
    Configure(Box<Config>, TierTable, oneshot::Sender<()>),
    /// The end.
    Stop,
}

/// What the loop is built from.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// The configuration.
    pub(super) config: Config,
    /// Processes named on the command line.
    pub(super) pids: Vec<Pid>,
    /// Ends after so many epochs.
    pub(super) epochs: Option<u64>,
    /// Moves nothing.
    pub(super) dry_run: bool,
    /// Records what the engine is told.
    pub(super) record: Option<PathBuf>,
    /// When the daemon started.
    pub(super) started: Instant,
}

/// How to talk to the running loop.
#[derive(Clone)]
pub(super) struct Handle {
    inbox: Arc<Inbox<Command>>,
    waker: Waker,
    /// What it publishes.
    pub(super) snapshots: Arc<watch::Sender<Arc<Snapshot>>>,
    /// Its pulse.
    pub(super) heart: Arc<Heart>,
}

impl Handle {
    /// Has `command` looked at soon. A loop that has ended drops it, and with
    /// it the sender of its answer.
    pub(super) fn send(&self, command: Command) {
        self.inbox.put(command);
        self.waker.wake();
    }

    /// Interrupts the sleep, for a beat of the heart.
    pub(super) fn nudge(&self) {
        self.waker.wake();
    }
}

/// Reads the tiers as configured. A machine that can be read without
/// `[[tiers]]` but not with them means that these are wrong.
///
/// # Errors
/// As said.
pub(crate) fn read_tiers(root: &Root, config: &Config) -> Result<TierTable, DaemonError> {
    let named = config.tiers.clone();
    let is_named = named.is_some();
    let read = SysTopology::new(root, named).read_with_warnings();
    let (tiers, warnings) = read.map_err(|error| {
        if is_named && SysTopology::new(root, None).read().is_ok() {
            DaemonError::Tiers(error)
        } else {
            DaemonError::Port(error)
        }
    })?;
    for warning in warnings {
        warn!("topology: {warning}");
    }
    Ok(tiers)
}

/// Starts the loop's thread and waits until it is set up. The receiver gets
/// how it ended.
///
/// # Errors
/// When it could not be set up; nothing is left behind then.
pub(super) fn start(
    plan: Plan,
) -> Result<(Handle, oneshot::Receiver<Result<(), DaemonError>>), DaemonError> {
    let (ready, is_ready) = mpsc::channel();
    let (ended, has_ended) = oneshot::channel();
    std::thread::Builder::new()
        .name("hmkeeper-loop".into())
        .spawn(move || {
            let run = catch_unwind(AssertUnwindSafe(|| Worker::build(plan)));
            let mut worker = match run {
                Ok(Ok((worker, handle))) => {
                    let _ = ready.send(Ok(handle));
                    worker
                }
                Ok(Err(error)) => {
                    let _ = ready.send(Err(error));
                    return;
                }
                Err(_) => return,
            };
            let run = catch_unwind(AssertUnwindSafe(|| worker.run()));
            let result = run.unwrap_or_else(|_| {
                Err(DaemonError::Failed(anyhow!(
                    "the loop panicked; the log says where: please report it"
                )))
            });
            // Also after a panic: the kernel's settings are not ours to keep.
            let release = catch_unwind(AssertUnwindSafe(|| worker.looping.release()));
            if release.is_err() {
                error!("undoing kernel settings failed; the next start does it");
            }
            worker.inbox.close();
            let _ = ended.send(result);
        })
        .map_err(|e| anyhow!(e).context("cannot start the loop's thread"))?;
    let handle = is_ready
        .recv()
        .map_err(|_| anyhow!("the loop panicked at its start; the log says where"))??;
    Ok((handle, has_ended))
}

/// What targets write is good to know, but nothing depends on it.
fn open_writes(root: &Root, asking: Asking) -> Option<Box<dyn WriteWatch>> {
    if asking == Asking::Never {
        return None;
    }
    match SoftDirty::open(root) {
        Ok(watch) => Some(Box::new(watch)),
        Err(error) if asking == Asking::Auto => {
            info!("what targets write is not asked: {error}");
            None
        }
        Err(error) => {
            warn!("profiling.writes has no effect: {error}");
            None
        }
    }
}

struct Worker {
    root: Root,
    looping: EpochLoop,
    config: Config,
    /// Attached by hand or on the command line.
    attached: Vec<TargetSpec>,
    operator_paused: bool,
    /// Reasons that were logged.
    pauses: Vec<PauseReason>,
    /// Why memory stays where it is, as far as logged.
    told: log::Told,
    /// The machine's nodes and CPUs when its tiers were last read.
    layout: Layout,
    /// Nodes that our own cpuset lacks, as far as logged.
    denied: Vec<NodeId>,
    /// What a dry run would move, as far as logged.
    planned: log::Planned,
    dry_run: bool,
    epochs: Option<u64>,
    cpus: usize,
    inbox: Arc<Inbox<Command>>,
    snapshots: Arc<watch::Sender<Arc<Snapshot>>>,
    heart: Arc<Heart>,
}

impl Worker {
    fn build(plan: Plan) -> Result<(Self, Handle), DaemonError> {
        let root = Root::host();
        let config = plan.config;
        let tiers = read_tiers(&root, &config)?;
        let layout = topology::layout(&root);
        for warning in probe::start_warnings(&root) {
            warn!("{warning}");
        }
        let sampler = sampler::open(&root, config.sampler, &config.daemon.state_dir)?;
        let kind = AccessSampler::kind(&*sampler);
        let (clock, waker) = SysClock::new(&root);
        let inbox = Arc::new(Inbox::new());
        let ports = Ports {
            targets: Box::new(SysTargets::new(&root, &tiers)),
            sampler,
            writes: open_writes(&root, config.profiling.writes),
            residency: Box::new(SysResidency::new(&root).probing(tiers.clone())),
            mover: Box::new(SysMover::new(&root).halted_by(inbox.halt()).tried()),
            pager: Some(Box::new(SysPager::new(&root, inbox.halt()))),
            clock: Box::new(clock),
        };
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let settings = config.loop_settings(cpus, plan.dry_run);
        // The loop accounts for what follows; starting was not free either.
        let before = ports.clock.process_cpu_time();
        let mut looping = EpochLoop::new(ports, tiers.clone(), settings, config.daemon.seed);
        if let Some(file) = &plan.record {
            let writer = Writer::append(file, config.daemon.seed).map_err(|e| anyhow!(e))?;
            looping.record(Box::new(writer));
        }
        let names: Vec<&str> = tiers.tiers().iter().map(|t| t.name.as_str()).collect();
        info!("sampler {}, tiers {}", kind.as_str(), names.join(", "));
        let mut snapshot = Snapshot::new(plan.started, kind, Arc::new(tiers));
        snapshot.resolution = looping.sampler().1.into();
        snapshot.totals.cpu.other = before;
        let snapshots = Arc::new(watch::Sender::new(Arc::new(snapshot)));
        let heart = Arc::new(Heart::new(plan.started));
        let mut worker = Self {
            root,
            looping,
            config,
            attached: plan.pids.into_iter().map(TargetSpec::of_pid).collect(),
            operator_paused: false,
            pauses: Vec::new(),
            told: log::Told::default(),
            layout,
            denied: Vec::new(),
            planned: log::Planned::default(),
            dry_run: plan.dry_run,
            epochs: plan.epochs,
            cpus,
            inbox: Arc::clone(&inbox),
            snapshots: Arc::clone(&snapshots),
            heart: Arc::clone(&heart),
        };
        worker.select();
        worker.show_settings();
        worker.look_at_own_nodes();
        let handle = Handle {
            inbox,
            waker,
            snapshots,
            heart,
        };
        Ok((worker, handle))
    }

    /// Turns until told to stop, or until the wanted epochs are over.
    fn run(&mut self) -> Result<(), DaemonError> {
        let mut failures = 0;
        let mut left = self.epochs;
        loop {
            let commands = self.inbox.take();
            if self.obey_all(commands) {
                return Ok(());
            }
            if left == Some(0) {
                return Ok(());
            }
            self.heart.beat();
            let turn = self.looping.turn();
            self.heart.beat();
            match turn {
                Ok(turn) => {
                    log::events(&turn.events);
                    self.forget_ended(&turn.events);
                    if let Some(report) = turn.report {
                        failures = 0;
                        // The first one only finds the targets.
                        if report.epoch > 1 {
                            left = left.map(|n| n - 1);
                        }
                        log::epoch(&report, self.looping.tiers());
                        self.told.log(&report);
                        let mover = self.looping.pace();
                        let others = self.look_at_others();
                        self.planned.log(&report, self.looping.tiers());
                        self.snapshots.send_modify(|shared| {
                            let shared = Arc::make_mut(shared);
                            shared.mover = mover;
                            shared.others = others;
                            shared.record(report);
                        });
                        self.log_pauses();
                        self.look_at_machine();
                        self.look_at_own_nodes();
                    }
                }
                Err(error) => {
                    failures += 1;
                    let trouble = error.to_string();
                    self.snapshots.send_modify(|shared| {
                        Arc::make_mut(shared).fail(trouble);
                    });
                    if failures >= FAILURES_MAX {
                        return Err(error.into());
                    }
                    warn!("an epoch failed, {failures} in a row: {error}");
                    if self.wait(FAILURE_PAUSE) {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Waits, at most until a command comes. Tells whether to stop.
    fn wait(&mut self, time: Duration) -> bool {
        let commands = self.inbox.wait(time);
        self.obey_all(commands)
    }

    /// Does what is asked, up to the end. Tells whether to stop.
    fn obey_all(&mut self, commands: Vec<Command>) -> bool {
        commands.into_iter().any(|command| self.obey(command))
    }

    /// Does what is asked. Tells whether to stop. Who asked may have gone away
    /// since, so that nobody takes the answer.
    fn obey(&mut self, command: Command) -> bool {
        match command {
            Command::Attach(pid, done) => {
                let outcome = process::check(&self.root, pid);
                if outcome.is_ok() && !self.attached.iter().any(|s| is_pid(s, pid)) {
                    self.attached.push(TargetSpec::of_pid(pid));
                    self.select();
                }
                let _ = done.send(outcome);
            }
            Command::Detach(pid, done) => {
                let count = self.attached.len();
                self.attached.retain(|s| !is_pid(s, pid));
                let was_attached = self.attached.len() < count;
                if was_attached {
                    self.select();
                }
                let _ = done.send(was_attached);
            }
            Command::Pause(paused, done) => {
                self.operator_paused = paused;
                self.looping.pause(paused);
                self.show_settings();
                let _ = done.send(());
            }
            Command::Configure(config, tiers, done) => {
                let settings = config.loop_settings(self.cpus, self.dry_run);
                self.use_tiers(settings, tiers);
                self.config = *config;
                self.select();
                self.show_settings();
                let _ = done.send(());
            }
            Command::Stop => return true,
        }
        false
    }

    /// Reads the tiers anew where nodes or CPUs came or went.
    fn look_at_machine(&mut self) {
        let now = topology::layout(&self.root);
        if now.is_like(&self.layout) {
            return;
        }
        let before = std::mem::replace(&mut self.layout, now);
        let change = before.change(&self.layout);
        let mut config = self.config.clone();
        config.tiers = config.tiers.map(|tiers| self.layout.keep(tiers));
        if config.tiers.as_ref().is_some_and(Vec::is_empty) {
            warn!("{change}: no node of [[tiers]] is left; nothing is moved until one is back");
            return;
        }
        let tiers = match read_tiers(&self.root, &config) {
            Ok(tiers) => tiers,
            Err(error) => {
                warn!("{change}, and the tiers could not be read anew: {error}; the old ones hold");
                return;
            }
        };
        let names: Vec<&str> = tiers.tiers().iter().map(|t| t.name.as_str()).collect();
        warn!("{change}: tiers are {} now", names.join(", "));
        let settings = self.config.loop_settings(self.cpus, self.dry_run);
        self.use_tiers(settings, tiers);
        self.show_settings();
    }

    fn use_tiers(&mut self, settings: LoopSettings, tiers: TierTable) {
        self.looping.configure(settings, tiers.clone());
        self.snapshots.send_if_modified(|shared| {
            Arc::make_mut(shared).tiers = Arc::new(tiers);
            false
        });
    }

    /// Says once which nodes our own cpuset lacks, and when it allows them.
    fn look_at_own_nodes(&mut self) {
        let denied = own_nodes::lacking(&self.root, self.looping.tiers());
        if denied == self.denied {
            return;
        }
        let notes = if denied.is_empty() {
            info!("hmkeeper's own cpuset allows all nodes now");
            Vec::new()
        } else {
            let note = own_nodes::explained(&denied);
            warn!("{note}");
            vec![note]
        };
        self.denied = denied;
        self.snapshots.send_if_modified(|shared| {
            Arc::make_mut(shared).notes = notes;
            false
        });
    }

    fn select(&mut self) {
        let mut specs = self.config.targets.clone();
        specs.extend(self.attached.iter().cloned());
        self.looping.select(&specs);
    }

    /// Who else moves pages now; says what changed about that.
    fn look_at_others(&self) -> Vec<OtherMover> {
        let now = others(&self.root);
        log::other_movers(&self.snapshots.borrow().others, &now);
        now
    }

    /// Says what changed about why nothing is moved.
    fn log_pauses(&mut self) {
        let now = self.snapshots.borrow().all_pauses();
        log::pauses(&self.pauses, &now);
        self.pauses = now;
    }

    /// A process that ended is not attached any more: its id may become
    /// somebody else's.
    fn forget_ended(&mut self, events: &[TargetEvent]) {
        let count = self.attached.len();
        self.attached.retain(|spec| {
            !events
                .iter()
                .any(|e| matches!(e, TargetEvent::Ended { pid, .. } | TargetEvent::Unwatchable { pid, .. } if is_pid(spec, *pid)))
        });
        if self.attached.len() < count {
            self.select();
        }
    }

    /// Publishes what the settings say.
    fn show_settings(&mut self) {
        let moving = self.config.migration.enabled && !self.dry_run;
        let settings = self.config.loop_settings(self.cpus, self.dry_run);
        self.heart.allow(longest_migration(&settings).into());
        self.snapshots.send_modify(|shared| {
            let snapshot = Arc::make_mut(shared);
            snapshot.policy = self.config.policy.name.as_str();
            if snapshot.interval != self.config.profiling.interval {
                // Until the next report, as if nothing were stretched.
                snapshot.report.interval = self.config.profiling.interval;
            }
            snapshot.interval = self.config.profiling.interval;
            snapshot.overhead_limit = self.config.profiling.overhead_limit;
            let names = self.config.targets.iter();
            snapshot.configured = names
                .filter_map(|t| t.name.as_deref().map(Arc::from))
                .collect();
            snapshot.standing.clear();
            for (holds, reason) in [
                (self.operator_paused, PauseReason::Operator),
                (!moving, PauseReason::DryRun),
                (
                    snapshot.tiers.view(&[], None).is_flat(),
                    PauseReason::OneTier,
                ),
            ] {
                if holds {
                    snapshot.standing.push(reason);
                }
            }
        });
        self.log_pauses();
    }
}

fn is_pid(spec: &TargetSpec, pid: Pid) -> bool {
    spec.selector == Selector::Pid(pid)
}
