//! What one epoch was like, for people: `status`, metrics and logs are made
//! from this alone.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::bounds::Shares;
use super::observation::{EpochCost, Exclusion, NodeUsage, TargetId, TargetKind};
use super::pageout::PagingRest;
use super::plan::{Direction, PageCounts, Reason, Reclaimed};
use crate::units::{Bytes, Nanos, NodeId, Pid, TierId};

/// Why nothing is moved although a plan could be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PauseReason {
    /// The operator said so.
    Operator,
    /// `migration.enabled = false` or `--dry-run`.
    DryRun,
    /// A target burns CPU while no sample is ever seen accessed.
    SamplerBlind,
    /// There is only one tier of memory.
    OneTier,
    /// No exchange would pay for its move in the time that it lasts.
    NoGain,
    /// Cpusets leave a target no second tier, though there are some.
    Cpuset,
}

impl PauseReason {
    /// Every reason, for registering metrics.
    pub const ALL: [Self; 6] = [
        Self::Operator,
        Self::DryRun,
        Self::SamplerBlind,
        Self::OneTier,
        Self::NoGain,
        Self::Cpuset,
    ];

    /// The label in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::DryRun => "dry-run",
            Self::SamplerBlind => "sampler-blind",
            Self::OneTier => "one-tier",
            Self::NoGain => "no-gain",
            Self::Cpuset => "cpuset",
        }
    }
}

/// Why memory that may be moved cannot be for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hold {
    /// Another process maps it too, as after a fork. Estimated from samples.
    Shared,
    /// The kernel kept it where it was when it was last to be moved, as for I/O.
    Pinned,
}

impl Hold {
    /// The label in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Pinned => "pinned",
        }
    }
}

/// Why much of what a target has in memory is not watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unwatched {
    /// As much as half of it lies in mappings that are never moved.
    Excluded(Exclusion),
    /// It was not found in what is mapped.
    NotFound,
}

/// What a target has in memory, but for files, and what of that its regions are known to hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watched {
    /// Counted, or derived from samples, in regions.
    pub known: Bytes,
    /// Private and shared memory as the kernel counts it.
    pub resident: Bytes,
    /// Why more than a tenth has not been watched for some epochs, if so.
    pub lacks: Option<Unwatched>,
}

/// Bytes that went one way in one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// The tier they left.
    pub from: TierId,
    /// The tier they went to.
    pub to: TierId,
    /// Up or down in the target's view.
    pub direction: Direction,
    /// Why.
    pub reason: Reason,
    /// Planned in this epoch.
    pub planned: Bytes,
    /// Moved by the plan before this one.
    pub moved: Bytes,
}

/// What we cost one target, as shares of CPU time that it used or counts as using.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Overhead {
    /// CPU time of the target in the last epoch.
    pub target_cpu: Nanos,
    /// What the shares are of: its CPU time as the limit counts it, an idle one's as a tenth of
    /// a CPU, over the time of the average.
    #[serde(default)]
    pub counted: Nanos,
    /// Our threads, but for the movers, and our kdamonds.
    pub profiling: f64,
    /// Our movers, and modelled: flushes and stalls of the target by what was moved.
    pub migration: f64,
    /// Modelled: what the target itself pays, in bits and page table entries set again.
    pub target_side: f64,
}

impl Overhead {
    /// All of it.
    pub fn total(self) -> f64 {
        self.watching() + self.migration
    }

    /// What the configured limit holds for.
    pub fn watching(self) -> f64 {
        self.profiling + self.target_side
    }
}

/// One target in one epoch. Per-tier vectors are indexed by [`TierId`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetReport {
    /// Who.
    pub id: TargetId,
    /// Its process.
    pub pid: Pid,
    /// Its name.
    pub name: Arc<str>,
    /// Processes that share it; 0: it is a process.
    pub sharers: u32,
    /// How it is treated.
    pub kind: TargetKind,
    /// Tiers as its CPUs see them, fastest first; equals share a rank.
    pub ranking: Vec<Vec<TierId>>,
    /// Bytes that may be moved.
    pub eligible: Bytes,
    /// Mapped but never moved, by why.
    pub excluded: Vec<(Exclusion, Bytes)>,
    /// What of it is in memory, and what of that is watched.
    pub watched: Watched,
    /// Of what may be moved, what cannot be for now, by why; both kinds.
    pub held: [(Hold, Bytes); 2],
    /// The nodes that its cpuset allows; `None` when all are.
    pub allowed_nodes: Option<Vec<NodeId>>,
    /// Present bytes on each tier.
    pub resident: Vec<Bytes>,
    /// It is so much more or less, without what is moved since the observation.
    #[serde(default)]
    pub resident_error: Vec<Bytes>,
    /// How long before the observation the oldest of what it adds up was counted.
    #[serde(default)]
    pub resident_age: Nanos,
    /// Estimated share of its accesses that each tier serves, and between what it is.
    pub accesses: Shares,
    /// Bytes of the regions whose hotness is at least half of the scans.
    pub hot: Bytes,
    /// Bytes present that are written in an epoch; `None` when that was never asked.
    pub written: Option<Bytes>,
    /// Regions now.
    pub regions: u64,
    /// Pages watched in the epoch.
    pub samples: u64,
    /// Of these, seen accessed at least once.
    pub samples_accessed: u64,
    /// Of these, never known.
    pub samples_unknown: u64,
    /// Regions split in this epoch.
    pub splits: u64,
    /// Pairs of regions merged in this epoch.
    pub merges: u64,
    /// Bytes by way and reason.
    pub flows: Vec<Flow>,
    /// Pages of the last plan's moves by result.
    pub move_pages: PageCounts,
    /// Paged out by the plan before this one.
    pub paged_out: Bytes,
    /// Why nothing of it is paged out, where that is wanted and held back.
    pub paging_rests: Option<PagingRest>,
    /// What we cost it, as the limit counts it: on average, an idle target's tenth of a CPU.
    pub overhead: Overhead,
    /// The same in the last epoch alone, as shares of the CPU time that it used itself.
    #[serde(default)]
    pub last_overhead: Overhead,
    /// Why it alone is left alone, if it is.
    pub paused: Option<PauseReason>,
}

/// One epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochReport {
    /// Turns of the loop so far, from 1.
    pub epoch: u64,
    /// When the observation was made.
    pub at: Nanos,
    /// Each target that was there.
    pub targets: Vec<TargetReport>,
    /// Memory per node.
    pub nodes: Vec<NodeUsage>,
    /// What it cost.
    pub cost: EpochCost,
    /// How long the next epoch is: the configured interval, longer where its limit pays for
    /// less, shorter where the policy gains by it.
    pub interval: Nanos,
    /// Whether even the longest epoch costs more than the limit pays for.
    #[serde(default)]
    pub is_unpaid: bool,
    /// Samples that the overhead limit pays for (`num_ps` of Eq. 8.1).
    pub sample_quota: u64,
    /// Time that the last plan's moves took.
    pub migration_elapsed: Nanos,
    /// The longest system call among them.
    pub longest_call: Nanos,
    /// Share of the CPU time of moving that nobody else would use, of late; 0 where nobody can tell.
    pub spare: f64,
    /// Page cache that was to give way to them.
    pub reclaimed: Vec<Reclaimed>,
    /// Whether no more of it does for now, since too much is read back or too little given back.
    pub cache_rests: bool,
    /// Nodes that nothing is promoted to for now, since others needed their memory.
    #[serde(default)]
    pub resting: Vec<NodeId>,
    /// Why nothing was planned for anybody, if so.
    pub paused: Vec<PauseReason>,
}
