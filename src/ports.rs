//! The seam between deciding and the machine: each trait is implemented by
//! [`sys`](crate::sys) over the kernel and by [`sim`](crate::sim) over a model.

use std::io;

use crate::tiering::observation::{
    AccessSet, NodeUsage, Observation, RangeResidency, Sample, TargetId, TargetKind, TargetMap,
};
use crate::tiering::pageout::{PageOut, Pageable, PagedOut, Swap};
use crate::tiering::plan::{Move, MoveOutcome, Reclaim, Sweep};
use crate::tiering::settings::{Asking, EngineSettings};
use crate::tiering::shortage::Glance;
use crate::tiering::tier::TierTable;
use crate::tiering::windows::SHORTEST_AT_ONCE;
use crate::units::{Bandwidth, Bytes, Nanos, NodeId, PageRange, Pid, VirtAddr};

/// How a port failed as a whole. What happens to single pages or processes is
/// data and never comes this way.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The kernel does not have it.
    #[error("{what} is not available: {remedy}")]
    Missing {
        /// The interface.
        what: String,
        /// What the operator can do.
        remedy: String,
    },
    /// We may not use it.
    #[error("{what}: permission denied: {remedy}")]
    Forbidden {
        /// The interface.
        what: String,
        /// What the operator can do.
        remedy: String,
    },
    /// It is there but somebody else uses it.
    #[error("{what} is in use: {remedy}")]
    Busy {
        /// The interface.
        what: String,
        /// What the operator can do.
        remedy: String,
    },
    /// It answered with an error.
    #[error("{what}: {source}")]
    Failed {
        /// System call or path, and of whom.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// It answered with something that cannot be read.
    #[error("{what}: {detail}")]
    Malformed {
        /// The path.
        what: String,
        /// Where and why.
        detail: String,
    },
}

/// Which processes to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// This process.
    Pid(Pid),
    /// Processes whose command name (`/proc/PID/comm`) matches this glob.
    Comm(String),
    /// Processes whose command line, arguments joined by blanks, matches this glob.
    Cmdline(String),
    /// Processes in this cgroup v2 and below, a path under the cgroup root.
    Cgroup(String),
    /// Processes of this systemd unit.
    Unit(String),
}

/// Which mappings of a target are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MappingFilter {
    /// Addresses.
    Range(PageRange),
    /// Mappings whose name in `/proc/PID/maps` matches this glob; mappings
    /// without a name are called `[anon]`.
    Name(String),
}

/// One `[[targets]]` of the configuration, or one `attach`.
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a key of the configuration"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetSpec {
    /// Its name in metrics; `None`: the command's name.
    pub name: Option<String>,
    /// Who.
    pub selector: Selector,
    /// How to treat it.
    pub kind: TargetKind,
    /// Watch its children too.
    pub follow_children: bool,
    /// Only these mappings; empty: all that are eligible.
    pub include: Vec<MappingFilter>,
    /// Never these.
    pub exclude: Vec<MappingFilter>,
    /// Move memory that the application bound by its own policy as well.
    pub move_bound: bool,
    /// Move `mlock`ed memory as well.
    pub move_locked: bool,
    /// Move memory that it maps as shared as well, as far as nobody but the processes
    /// found with it maps it.
    pub move_shared: bool,
    /// Its part of the fastest memory beside other targets' ([`Share`]).
    ///
    /// [`Share`]: crate::tiering::observation::Share
    pub weight: Option<u16>,
    /// So much of the fastest memory is its own when it wants it.
    pub floor: Bytes,
}

impl TargetSpec {
    /// Everything eligible of one process.
    pub fn of_pid(pid: Pid) -> Self {
        Self {
            name: None,
            selector: Selector::Pid(pid),
            kind: TargetKind::Generic,
            follow_children: false,
            include: Vec::new(),
            exclude: Vec::new(),
            move_bound: false,
            move_locked: false,
            move_shared: true,
            weight: None,
            floor: Bytes::ZERO,
        }
    }
}

/// Something ordinary that happened to a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetEvent {
    /// Found and watched from now on.
    Attached {
        /// Its process.
        pid: Pid,
        /// Its name.
        name: String,
    },
    /// It ended, or its pid is somebody else's now.
    Ended {
        /// Its process.
        pid: Pid,
        /// Its name.
        name: String,
    },
    /// It runs another program now; what was known of it is forgotten.
    Replaced {
        /// Its process.
        pid: Pid,
        /// Its name.
        name: String,
    },
    /// It cannot be watched: a kernel thread, or not ours to watch.
    Unwatchable {
        /// Its process.
        pid: Pid,
        /// Why.
        why: String,
    },
}

/// One process's way to memory that several page tables map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The process.
    pub pid: Pid,
    /// Addresses of the pool that it maps.
    pub range: PageRange,
    /// What is added, modulo 2^64, to an address of the pool to have it in this process.
    pub shift: u64,
}

impl View {
    /// Where a page of the pool is in this process.
    #[must_use]
    pub fn locate(&self, addr: VirtAddr) -> VirtAddr {
        VirtAddr(addr.0.wrapping_add(self.shift))
    }
}

/// Memory that several page tables map, watched and moved as one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Its target.
    pub target: TargetId,
    /// All ways to it. A page is looked at through the first one that has it.
    pub views: Vec<View>,
}

/// All pools, by target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sharing(Vec<Pool>);

impl Sharing {
    /// Of these pools.
    pub fn of(mut pools: Vec<Pool>) -> Self {
        pools.sort_by_key(|pool| pool.target);
        Self(pools)
    }

    /// All of them, by target.
    pub fn pools(&self) -> &[Pool] {
        &self.0
    }

    /// The ways to a target's memory; `None` where it is a process.
    pub fn views(&self, target: TargetId) -> Option<&[View]> {
        let at = self.0.binary_search_by_key(&target, |pool| pool.target);
        Some(&self.0[at.ok()?].views)
    }
}

/// Somebody else who moves pages on this machine.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct OtherMover {
    /// The label in metrics.
    pub name: std::borrow::Cow<'static, str>,
    /// Who.
    pub what: String,
    /// What would end it.
    pub remedy: String,
}

impl OtherMover {
    /// Every name, for registering metrics.
    pub const NAMES: [&str; 2] = ["numa-balancing", "damon-module"];
}

/// Finds the targets and their mappings.
pub trait Targets {
    /// Watches these from now on; those no longer named are let go.
    fn select(&mut self, specs: &[TargetSpec]);
    /// The machine has these nodes and CPUs from now on.
    fn retier(&mut self, _tiers: &TierTable) {}
    /// Looks at all of them now.
    ///
    /// # Errors
    /// Only when `/proc` itself cannot be read; a vanished process is an event.
    fn read(&mut self, events: &mut Vec<TargetEvent>) -> Result<Vec<TargetMap>, PortError>;
    /// The ways to what several of the targets that were read last share.
    fn sharing(&self) -> Sharing {
        Sharing::default()
    }
}

/// Which mechanism tells accessed pages apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SamplerKind {
    /// Idle-page tracking, per page.
    Idle,
    /// DAMON over virtual addresses, per page.
    Damon,
    /// DAMON over physical addresses, at the page frames that page maps name.
    DamonPaddr,
    /// `clear_refs` and `smaps`, per mapping.
    Referenced,
    /// The simulator's own.
    Simulated,
}

impl SamplerKind {
    /// The name in configuration, metrics and status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Damon => "damon",
            Self::DamonPaddr => "damon-paddr",
            Self::Referenced => "referenced",
            Self::Simulated => "simulated",
        }
    }
}

/// Tells which of a set of pages were touched between two moments.
pub trait AccessSampler {
    /// Which mechanism this is.
    fn kind(&self) -> SamplerKind;
    /// Forgets past accesses of these pages; sorted by target and address.
    /// `window` is how long it will be until [`collect`](Self::collect), which may wait itself instead, for
    /// each page in turn.
    fn arm(&mut self, samples: &[Sample], window: Nanos) -> Result<(), PortError>;
    /// Reports which of the armed pages were touched since, one verdict each,
    /// and closes the scan.
    fn collect(&mut self, seen: &mut AccessSet) -> Result<(), PortError>;
    /// Scans pages of our own, to learn what a scan costs here before any target is
    /// watched (HM-Keeper §1.2); `None` where that would say nothing of targets.
    fn calibrate(&mut self) -> Result<Option<Calibration>, PortError> {
        Ok(None)
    }
    /// Samples that one scan can watch at most.
    fn capacity(&self) -> u64 {
        u64::MAX
    }
    /// The shortest window for which it can wait, and in which it sees what is touched all the time.
    fn shortest(&self) -> Nanos {
        SHORTEST_AT_ONCE
    }
    /// Whether other samples are so dear to take up that all scans of an epoch had
    /// better look at the same.
    fn repeats(&self) -> bool {
        false
    }
    /// No scan follows for a while: what works between arm and collect stops.
    fn rest(&mut self) {}
    /// CPU time of kernel threads that work for us, since they were started.
    fn kernel_cpu_time(&mut self) -> Nanos {
        Nanos::ZERO
    }
    /// Undoes every kernel setting that it made.
    fn release(&mut self) {}
    /// Accessed bits that targets had to set again beyond those of samples, since this was
    /// last asked.
    fn take_set_again(&mut self) -> u64 {
        0
    }
    /// What is shared from now on.
    fn relate(&mut self, _sharing: &Sharing) {}
    /// What its verdicts can and cannot tell, in one honest line.
    fn resolution(&self) -> String {
        String::new()
    }
}

/// What scans of pages of our own cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calibration {
    /// Scans, each of one sample.
    pub scans: u64,
    /// CPU time of all of them.
    pub took: Nanos,
}

/// Tells pages that were written from others. The sampler says of each sample whether
/// it was written since.
pub trait WriteWatch {
    /// Forgets what a process has written so far, and for how long that held its address space; `None`
    /// when it has ended, or may not be asked. With [`Asking::Auto`] nobody has said that it is ours to ask.
    fn forget(&mut self, pid: Pid, asking: Asking) -> Result<Option<Nanos>, PortError>;
    /// What the first write to a page takes a process after that.
    fn fault(&self) -> Nanos;
}

/// Tells where pages are.
pub trait Residency {
    /// Counts present pages per node. A vanished process has none.
    fn sweep(&mut self, sweep: Sweep) -> Result<RangeResidency, PortError>;
    /// Memory per node now, and if asked for how late each answers: with [`Asking::Auto`] only as often
    /// as that costs little, and `None` of all nodes in the epochs between.
    fn nodes(&mut self, asks_latency: Asking) -> Result<Vec<NodeUsage>, PortError>;
    /// What is shared from now on.
    fn relate(&mut self, _sharing: &Sharing) {}
    /// The machine has these nodes from now on.
    fn retier(&mut self, _tiers: &TierTable) {}
    /// What these nodes have free now, in a few microseconds each; of those that cannot be read nothing.
    fn glance(&mut self, nodes: &[NodeId]) -> Vec<Glance>;
}

/// Tells which tiers there are.
pub trait Topology {
    /// Reads them now.
    fn read(&self) -> Result<TierTable, PortError>;
}

/// Bounds on one turn of the mover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveLimits {
    /// Stop, and defer the rest, after so much wall-clock time.
    pub time: Nanos,
    /// Never faster than this.
    pub rate: Bandwidth,
    /// Never more than this.
    pub bytes: Bytes,
    /// A single system call should stay below this.
    pub call_time: Nanos,
    /// Threads that may move at once.
    pub threads: Threads,
}

/// How many threads move at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// So many, at least one.
    Exactly(usize),
    /// One or two, whichever was measured to move more; one where that is alike.
    Measured,
}

/// What a mover has learnt of folios of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FolioPace {
    /// Threads that move them.
    pub threads: usize,
    /// CPU time of a system call, whatever it moves.
    pub call: Nanos,
    /// CPU time of each folio that it moves.
    pub folio: Nanos,
}

/// What a mover leaves of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Which.
    pub node: NodeId,
    /// So much stays free there beyond the kernel's watermarks.
    pub free: Bytes,
    /// With less than so much, free or page cache that the kernel gives back at once, a turn ends: somebody has
    /// to make room first.
    pub ends_below: Bytes,
}

/// Moves pages.
pub trait PageMover {
    /// Tries the moves in order. Per-page trouble is in the outcome.
    fn apply(&mut self, moves: &[Move], limits: MoveLimits) -> Result<MoveOutcome, PortError>;
    /// Page cache that may make room for the moves that are applied next, for these alone.
    fn may_reclaim(&mut self, _cache: &[Reclaim]) {}
    /// What it leaves of nodes from now on. While room is being made in haste it may fill what page cache has as
    /// well, where there is any: the kernel gives that back at once.
    fn keep(&mut self, _nodes: &[Keep], _in_haste: bool) {}
    /// What is shared from now on.
    fn relate(&mut self, _sharing: &Sharing) {}
    /// CPU time spent moving since the start, on all threads.
    fn cpu_time(&self) -> Nanos;
    /// What it has learnt of small folios and of huge ones; `None` where that is not
    /// measured.
    fn pace(&self) -> Option<[FolioPace; 2]> {
        None
    }
}

/// Has memory paged out, and tells what came back.
pub trait Pager {
    /// Swap now, and those of these targets that are still there.
    fn look(&mut self, targets: &[TargetMap]) -> (Swap, Vec<Pageable>);
    /// Tries them in order, for so long at most. A process that has ended has no result.
    fn page_out(&mut self, wanted: &[PageOut], time: Nanos) -> Vec<PagedOut>;
}

/// Why a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// It is time.
    Due,
    /// Somebody wants the loop's attention: a command, a reload, the end.
    Interrupted,
}

/// Time, of the host or of the model.
pub trait Clock {
    /// Monotonic, of any origin.
    fn now(&self) -> Nanos;
    /// CPU time of the calling thread.
    fn thread_cpu_time(&self) -> Nanos;
    /// CPU time of the whole process.
    fn process_cpu_time(&self) -> Nanos;
    /// CPU time for which cores of the machine had nothing to do at all, all together, from
    /// whenever on. It stands still where nobody can tell.
    fn idle_time(&mut self) -> Nanos;
    /// Waits; returns at once when `at` has passed.
    fn sleep_until(&mut self, at: Nanos) -> Wake;
}

/// Keeps what the engine is told, so that its decisions can be made again.
pub trait Recorder {
    /// The engine's settings and tiers, at its start and whenever they change.
    fn configured(&mut self, settings: &EngineSettings, tiers: &TierTable);
    /// What it is about to be told.
    fn observed(&mut self, seen: &Observation);
}

/// All that the loop needs from the machine.
pub struct Ports {
    /// Who is watched.
    pub targets: Box<dyn Targets>,
    /// What they touch.
    pub sampler: Box<dyn AccessSampler>,
    /// What of it they write, if anybody wants to know.
    pub writes: Option<Box<dyn WriteWatch>>,
    /// Where it lies.
    pub residency: Box<dyn Residency>,
    /// Moves it.
    pub mover: Box<dyn PageMover>,
    /// Has it paged out; `None`: there is no swap to speak of.
    pub pager: Option<Box<dyn Pager>>,
    /// Time.
    pub clock: Box<dyn Clock>,
}
