//! One program on one machine under one policy, to its end.
//!
//! **Unit.** Seconds of the virtual clock.
//!
//! `total_seconds` is from the program's first access to its last. Of these it ran for
//! `application_seconds`, slowed down by where its memory was and by what moves took of
//! the nodes' bandwidth; for the rest it was held up: by accessed bits to be set again,
//! by pages on their way, and, where its threads keep all CPUs of the machine busy, by
//! our own CPU time. `profiling_seconds` and `migration_seconds` are our own CPU time, and
//! count for nothing else.

use serde::Serialize;

use super::file::FileError;
use super::hardware::Hardware;
use super::machine::{Machine, Process, Shared, Touch};
use super::oracle::Oracle;
use super::program::Program;
use super::workload::{Start, Workload};
use crate::epoch::{EpochLoop, LoopSettings};
use crate::ports::{PortError, TargetSpec};
use crate::tiering::observation::TargetId;
use crate::tiering::settings::PolicyName;
use crate::tiering::tier::MemoryKind;
use crate::units::{Bytes, Nanos, NodeId, PageRange, Pid, VirtAddr};

const PID: Pid = Pid(1);
const TARGET: TargetId = TargetId(0);
/// Where the program's memory begins: aligned to whatever folio.
const BEGIN: VirtAddr = VirtAddr(1 << 40);
/// A program that needs more than all of the memory is made to fit this share of it.
const FITS: f64 = 0.8;
/// Epochs after which a run is given up: each is remembered.
const EPOCHS_AT_MOST: usize = 1 << 17;
/// Virtual time after which a run is given up: a policy must not make it last for ever.
const TIMES_AT_MOST: f64 = 100.0;

/// Who decides where memory lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Nobody: pages stay where they were first touched.
    FirstTouch,
    /// The daemon's engine with this policy.
    Engine(PolicyName),
    /// The hardware: the fastest memory is a cache of the others.
    MemoryMode,
    /// Nobody, but pages lie from the beginning where they are best on the whole.
    OracleStatic,
    /// One who knows the next interval.
    Oracle,
}

impl Policy {
    /// The names of `--policy`.
    pub fn all() -> Vec<(&'static str, Self)> {
        let mut all = vec![
            ("first-touch", Self::FirstTouch),
            ("memory-mode", Self::MemoryMode),
        ];
        // Without a daemon that watches.
        let moving = (PolicyName::CHOICES.into_iter()).filter(|c| c.1 != PolicyName::FirstTouch);
        all.extend(moving.map(|(name, policy)| (name, Self::Engine(policy))));
        all.push(("oracle-static", Self::OracleStatic));
        all.push(("oracle", Self::Oracle));
        all
    }
}

/// What is to be run.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// On what.
    pub hardware: &'a Hardware,
    /// What.
    pub workload: &'a Workload,
    /// With whom.
    pub policy: Policy,
    /// How the engine is set, its policy apart.
    pub settings: &'a LoopSettings,
    /// The fastest tier's size as a share of the program's; `None`: as the machine has it.
    pub fast_share: Option<f64>,
    /// Folios of the program that the model takes for one, as log2: so much faster, and less
    /// fine.
    pub coarse: u8,
    /// Of all random choices.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    /// The fastest tier's size as a share of the program's.
    pub fast_share: f64,
    /// See the module.
    pub total_seconds: f64,
    /// See the module.
    pub application_seconds: f64,
    /// See the module.
    pub profiling_seconds: f64,
    /// See the module.
    pub migration_seconds: f64,
    /// Accesses to memory that each node served, fastest first.
    pub tier_accesses: Vec<f64>,
    /// Bytes that went to a faster node.
    pub promoted_bytes: Bytes,
    /// Bytes that went to a slower node.
    pub demoted_bytes: Bytes,
    /// The program's memory.
    pub bytes: Bytes,
    /// Whether that is less than its file says, since the machine has no room for more.
    pub scaled: bool,
    /// Whether it came to its end, and was not given up.
    pub finished: bool,
    /// Epoch by epoch.
    pub epochs: Vec<Epoch>,
}

/// What one epoch was like.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Epoch {
    /// When it ended.
    pub at: f64,
    /// Accesses in it that each node served, fastest first.
    pub tier_accesses: Vec<f64>,
    /// Our CPU time in it.
    pub profiling_seconds: f64,
    /// Our CPU time in it.
    pub migration_seconds: f64,
    /// Bytes that went to a faster node.
    pub promoted_bytes: Bytes,
    /// Bytes that went to a slower node.
    pub demoted_bytes: Bytes,
}

/// Why a run gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Machine and program do not go together.
    #[error("{0}")]
    File(#[from] FileError),
    /// The model failed.
    #[error("{0}")]
    Port(#[from] PortError),
}

/// What happened up to a moment.
#[derive(Clone, Debug)]
struct Tally {
    at: Nanos,
    served: Vec<f64>,
    cpu: Nanos,
    moving: Nanos,
    promoted: Bytes,
    demoted: Bytes,
    is_done: bool,
}

impl Tally {
    fn of(machine: &mut Machine, ranking: &Ranking) -> Option<Self> {
        let at = machine.now();
        let (cpu, moving) = machine.spent();
        let (promoted, demoted) = ranking.directions(machine);
        let program = machine.program(PID)?;
        let served = program.served();
        Some(Self {
            at,
            served: ranking.nodes.iter().map(|&(at, _)| served[at]).collect(),
            cpu,
            moving,
            promoted,
            demoted,
            is_done: program.is_done(),
        })
    }

    /// What happened since.
    fn since(&self, before: &Self) -> Epoch {
        let served = self.served.iter().zip(&before.served);
        let moving = self.moving.saturating_sub(before.moving);
        let cpu = self.cpu.saturating_sub(before.cpu);
        Epoch {
            at: self.at.as_secs_f64(),
            tier_accesses: served.map(|(now, before)| now - before).collect(),
            profiling_seconds: cpu.saturating_sub(moving).as_secs_f64(),
            migration_seconds: moving.as_secs_f64(),
            promoted_bytes: self.promoted.saturating_sub(before.promoted),
            demoted_bytes: self.demoted.saturating_sub(before.demoted),
        }
    }
}

/// The nodes as the program sees them.
struct Ranking {
    /// By their place in the file and number, fastest first.
    nodes: Vec<(usize, NodeId)>,
}

impl Ranking {
    fn of(hardware: &Hardware) -> Self {
        let links = hardware.links();
        let mut order: Vec<usize> = (0..links.len()).collect();
        order.sort_by_key(|&node| links[node].latency);
        let nodes = order.into_iter().map(|at| (at, hardware.nodes[at].id));
        Self {
            nodes: nodes.collect(),
        }
    }

    fn fastest(&self) -> usize {
        self.nodes[0].0
    }

    /// Bytes that went up and down.
    fn directions(&self, machine: &Machine) -> (Bytes, Bytes) {
        let rank = |node: NodeId| self.nodes.iter().position(|&(_, id)| id == node);
        let (mut up, mut down) = (Bytes::ZERO, Bytes::ZERO);
        for (&(from, to), &bytes) in machine.traffic() {
            if rank(to) < rank(from) {
                up += bytes;
            } else {
                down += bytes;
            }
        }
        (up, down)
    }
}

/// What makes its decision once per interval.
enum Decider {
    Nobody,
    Engine(Box<EpochLoop>),
    Oracle(Oracle),
}

impl Decider {
    fn turn(&mut self, machine: &Shared, interval: Nanos) -> Result<(), PortError> {
        match self {
            Self::Nobody => machine.borrow_mut().wait(interval),
            Self::Engine(engine) => {
                engine.turn()?;
                machine.borrow_mut().fault(engine.take_hint_faults());
            }
            Self::Oracle(oracle) => {
                let mut machine = machine.borrow_mut();
                let ends = machine.now() + interval;
                oracle.turn(&mut machine, PID, BEGIN);
                let left = ends.saturating_sub(machine.now());
                machine.wait(left);
            }
        }
        Ok(())
    }
}

impl Case<'_> {
    /// Runs it to its end.
    ///
    /// # Errors
    /// When the program does not fit the machine.
    pub fn run(&self) -> Result<Run, RunError> {
        let ranking = Ranking::of(self.hardware);
        let whole = self.workload.clone().coarser(self.coarse);
        let size = whole.size();
        let workload = self.fitting(whole, ranking.fastest());
        let scaled = workload.size() < size;
        let hardware = self.sized(workload.size(), ranking.fastest());
        let bytes = workload.size();
        let fast_share = hardware.nodes[ranking.fastest()].size.as_f64() / bytes.as_f64();
        let most = workload.seconds * TIMES_AT_MOST;
        let interval = self.settings.engine.profiling.interval;

        let mut machine = Machine::of(&hardware, self.seed);
        self.start(&mut machine, &hardware, &ranking, workload)?;
        let machine = machine.shared();
        let mut decider = self.decider(&hardware, &ranking, &machine)?;
        let mut epochs = Vec::new();
        let mut before = Tally::of(&mut machine.borrow_mut(), &ranking);
        while let Some(last) = before.take() {
            decider.turn(&machine, interval)?;
            let Some(now) = Tally::of(&mut machine.borrow_mut(), &ranking) else {
                break;
            };
            epochs.push(now.since(&last));
            let goes_on = now.at.as_secs_f64() <= most && epochs.len() < EPOCHS_AT_MOST;
            if !now.is_done && goes_on {
                before = Some(now);
                continue;
            }
            let (ran, held) = (machine.borrow_mut())
                .program(PID)
                .map_or((0.0, 0.0), |program| program.seconds());
            return Ok(Run {
                fast_share,
                total_seconds: ran + held,
                application_seconds: ran,
                profiling_seconds: now.cpu.saturating_sub(now.moving).as_secs_f64(),
                migration_seconds: now.moving.as_secs_f64(),
                tier_accesses: now.served,
                promoted_bytes: now.promoted,
                demoted_bytes: now.demoted,
                bytes,
                scaled,
                finished: now.is_done,
                epochs,
            });
        }
        Err(FileError::at("objects", "the program was never there").into())
    }

    fn decider(
        &self,
        hardware: &Hardware,
        ranking: &Ranking,
        machine: &Shared,
    ) -> Result<Decider, RunError> {
        Ok(match self.policy {
            Policy::FirstTouch | Policy::OracleStatic | Policy::MemoryMode => Decider::Nobody,
            Policy::Engine(name) => {
                let mut settings = self.settings.clone();
                settings.engine.policy.name = name;
                let (ports, tiers) = (super::ports(machine), hardware.tiers()?);
                let mut engine = EpochLoop::new(ports, tiers, settings, self.seed);
                engine.select(&[TargetSpec::of_pid(PID)]);
                Decider::Engine(Box::new(engine))
            }
            Policy::Oracle => {
                let engine = &self.settings.engine;
                let interval = engine.profiling.interval;
                let links = hardware.links();
                let nodes = ranking.nodes.iter();
                let order = nodes.map(|&(at, node)| {
                    let place = u8::try_from(at).unwrap_or(u8::MAX);
                    (place, node, links[at].latency.as_secs_f64())
                });
                Decider::Oracle(Oracle {
                    order: order.collect(),
                    moved: engine.move_bytes,
                    moving: Nanos::from_secs_f64(
                        interval.as_secs_f64() * self.settings.migration_share,
                    ),
                    interval,
                })
            }
        })
    }

    /// Folios that the program has there, each by itself.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn folios(&self) -> u64 {
        let scale = self.scale(self.workload, Ranking::of(self.hardware).fastest());
        let all = self.workload.size().0 / self.workload.folio.0;
        scale.map_or(all, |scale| (all as f64 * scale) as u64)
    }

    /// The program, made smaller if the machine has not enough memory for it.
    fn fitting(&self, workload: Workload, fastest: usize) -> Workload {
        match self.scale(&workload, fastest) {
            Some(scale) => workload.scaled(scale),
            None => workload,
        }
    }

    /// By what it has to be made smaller, if so.
    fn scale(&self, workload: &Workload, fastest: usize) -> Option<f64> {
        let size = workload.size().as_f64();
        let all = self.hardware.size();
        let others = all.saturating_sub(self.hardware.nodes[fastest].size);
        // With the fastest node as a share of the program, the others hold the rest.
        let room = |fits: f64| match self.fast_share {
            Some(share) => fits * others.as_f64() / (1.0 - fits * share).max(f64::MIN_POSITIVE),
            None => fits * all.as_f64(),
        };
        // No node is filled with a part of a folio.
        let lost = (self.hardware.nodes.len() as u64 * workload.folio.0) as f64;
        (size + lost > room(1.0)).then(|| room(FITS) / size)
    }

    /// The machine, with as much of the fastest memory as was asked for.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn sized(&self, size: Bytes, fastest: usize) -> Hardware {
        let mut hardware = self.hardware.clone();
        hardware.costs = hardware.costs.coarser(self.coarse);
        if let Some(share) = self.fast_share {
            hardware.nodes[fastest].size = Bytes((size.as_f64() * share) as u64);
        }
        hardware
    }

    /// Starts the program with its memory where the kernel would have put it, or where it
    /// is best.
    fn start(
        &self,
        machine: &mut Machine,
        hardware: &Hardware,
        ranking: &Ranking,
        workload: Workload,
    ) -> Result<(), FileError> {
        let in_cache = self.policy == Policy::MemoryMode;
        let mut nodes: Vec<NodeId> = (ranking.nodes.iter())
            .filter(|&&(at, _)| !in_cache || is_behind(hardware, at))
            .map(|&(_, node)| node)
            .collect();
        let (size, folio) = (workload.size(), workload.folio.0);
        let room = hardware
            .nodes
            .iter()
            .filter(|node| nodes.contains(&node.id));
        let room: u64 = room.map(|node| node.size.0 / folio * folio).sum();
        if size.0 > room {
            let behind = if in_cache {
                " behind a cache of DRAM or HBM"
            } else {
                ""
            };
            let message = format!("no room for {size}: there are {}{behind}", Bytes(room));
            return Err(FileError::at("nodes", message));
        }
        let name = workload.name.as_str().into();
        let workload_start = workload.start;
        let program = Program::new(workload, hardware, self.seed);
        let best = (self.policy == Policy::OracleStatic).then(|| missed_most_first(&program));
        if workload_start == Start::Slowest && best.is_none() {
            nodes.reverse();
        }
        let range = PageRange::new(BEGIN, VirtAddr(BEGIN.0 + size.0))
            .ok_or_else(|| FileError::at("objects", "there is no memory in them"))?;
        let process = Process {
            id: TARGET,
            pid: PID,
            name,
            range,
            touch: Touch::Program(Box::new(program)),
            home: hardware.home,
        };
        machine.start_on(process, &nodes);
        if let Some(best) = best {
            machine.arrange(PID, &best, &nodes);
        }
        if let (true, Some(program)) = (in_cache, machine.program(PID)) {
            let cache = ranking.fastest();
            program.put_behind(cache, hardware.nodes[cache].size);
        }
        Ok(())
    }
}

/// Whether a node's memory is behind the fastest in Memory Mode: that is DRAM or HBM, and
/// what is behind it of another kind.
fn is_behind(hardware: &Hardware, at: usize) -> bool {
    let kind = hardware.nodes[Ranking::of(hardware).fastest()].kind;
    let is_cache = matches!(kind, MemoryKind::Dram | MemoryKind::Hbm);
    is_cache && hardware.nodes[at].kind != kind
}

/// A program's folios by how often they are missed from its beginning to its end.
fn missed_most_first(program: &Program) -> Vec<usize> {
    let missed = program.upcoming(program.accesses());
    let mut order: Vec<usize> = (0..missed.len()).collect();
    order.sort_unstable_by(|&a, &b| missed[b].total_cmp(&missed[a]).then(a.cmp(&b)));
    order
}
