//! What the engine is told once per epoch: plain values, no handles.
//!
//! An [`Observation`] holds everything that a decision may depend on, so that
//! a recorded one gives the same plan again.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::pageout::Paging;
use super::plan::MoveOutcome;
use crate::units::{Bytes, Nanos, NodeId, PAGE_BYTES, PageRange, Pid, VirtAddr};

/// One watched process, from attach to detach. Unlike a [`Pid`] it is never
/// used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TargetId(pub u32);

/// How a target's memory is treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TargetKind {
    /// Any process.
    #[default]
    Generic,
    /// A process that trains a neural network, step by step.
    DnnTraining,
}

/// A target as it was when the epoch's scans had ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetMap {
    /// Who.
    pub id: TargetId,
    /// Its process.
    pub pid: Pid,
    /// The configured name, or the command's name for one attached by hand.
    pub name: Arc<str>,
    /// Processes that share it; 0: it is a process, and all of it is its own. What is shared
    /// is one target beside them, known by the process that has most of it.
    pub sharers: u32,
    /// How to treat it.
    pub kind: TargetKind,
    /// What may be moved: sorted, disjoint. Mappings that touch may be one
    /// range or several.
    pub eligible: Vec<PageRange>,
    /// CPU time used by all its threads since it started.
    pub cpu_time: Nanos,
    /// CPU time since it is watched that counts for its eligible memory: its own, without
    /// what went to memory that it shares. Of what is shared: what all who share it spent on it.
    pub memory_time: Nanos,
    /// The share of its CPU time that each node with CPUs gave lately; sums
    /// to 1. The weights of its view of the tiers.
    pub cpu_share: Vec<(NodeId, f64)>,
    /// The nodes that its cpuset allows; `None` when all are.
    pub allowed_nodes: Option<Vec<NodeId>>,
    /// What is mapped but never touched by us, by why.
    pub excluded: Vec<(Exclusion, Bytes)>,
    /// What its page tables hold.
    pub mapped: Mapped,
    /// What it is due of the fastest memory beside others.
    pub share: Share,
}

/// What page tables hold, eligible or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapped {
    /// Private memory that is present.
    pub anonymous: Bytes,
    /// Pages of files.
    pub files: Bytes,
    /// Shared memory, whoever moves it.
    pub shared: Bytes,
    /// What is swapped out.
    pub swapped: Bytes,
}

/// A target's claim to the fastest memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Targets with the same number have one claim together.
    pub entry: u32,
    /// Its part beside others', 1 where any of them has one; `None`: what gains most goes
    /// first.
    pub weight: Option<u16>,
    /// So much of its warm memory lies on the fastest nodes, whatever others want.
    pub floor: Bytes,
}

/// Why a mapping is never moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exclusion {
    /// Shared with, or backed by, something outside of the target.
    Shared,
    /// A private mapping of a file.
    File,
    /// `mlock`ed: its owner asked for no stalls.
    Locked,
    /// From the hugetlb pool.
    Hugetlb,
    /// Bound, preferred or interleaved by the application's own policy.
    Policy,
    /// Excluded, or not included, by our configuration.
    Configured,
    /// vdso, device memory and the like.
    Special,
}

impl Exclusion {
    /// The label in metrics and logs, and the name in the status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::File => "file",
            Self::Locked => "locked",
            Self::Hugetlb => "hugetlb",
            Self::Policy => "policy",
            Self::Configured => "configured",
            Self::Special => "special",
        }
    }
}

/// A page watched for its region in one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Whose page.
    pub target: TargetId,
    /// Its process.
    pub pid: Pid,
    /// The page's first byte.
    pub addr: VirtAddr,
}

/// What one scan says of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Touched since it was armed.
    Accessed,
    /// Not touched since it was armed.
    Idle,
    /// Cannot be told: not mapped, moved meanwhile, or off the LRU, where the
    /// idle bit does not stick. Never counted as either.
    Unknown,
}

/// The scans of one sample in one epoch, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Scans that saw it accessed, at most `known`.
    pub accessed: u8,
    /// Scans that could tell.
    pub known: u8,
    /// log2 of the pages in the folio that held it: 0 for a page of 4 KiB, 9
    /// for a transparent huge page. One accessed bit covers all of a folio
    /// that is mapped as one.
    pub order: u8,
    /// Where it was at the last scan, where that is known.
    pub node: Option<NodeId>,
    /// Whether it was written since its process was told to forget.
    pub written: bool,
    /// Whether another process mapped it too at the last scan that could tell, as after
    /// a fork.
    pub shared: bool,
}

impl Tally {
    /// Bytes of the folio that held the sample.
    pub fn folio_bytes(self) -> Bytes {
        Bytes(PAGE_BYTES << self.order.min(30))
    }
}

/// The samples of one epoch with what was seen of each.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "SeenParts")]
pub struct AccessSet {
    samples: Vec<Sample>,
    tallies: Vec<Tally>,
    scans: u8,
}

/// An [`AccessSet`] that somebody else wrote, not checked yet.
#[derive(Deserialize)]
struct SeenParts {
    samples: Vec<Sample>,
    tallies: Vec<Tally>,
    scans: u8,
}

impl TryFrom<SeenParts> for AccessSet {
    type Error = &'static str;

    fn try_from(parts: SeenParts) -> Result<Self, Self::Error> {
        if parts.samples.len() != parts.tallies.len() {
            return Err("samples and what was seen of them are not as many");
        }
        Ok(Self {
            samples: parts.samples,
            tallies: parts.tallies,
            scans: parts.scans,
        })
    }
}

impl AccessSet {
    /// Nothing seen yet of any of these.
    pub fn new(samples: Vec<Sample>) -> Self {
        let tallies = vec![Tally::default(); samples.len()];
        Self {
            samples,
            tallies,
            scans: 0,
        }
    }

    /// The samples, in the order in which the engine asked for them.
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// The samples alone.
    pub fn into_samples(self) -> Vec<Sample> {
        self.samples
    }

    /// What was seen, in the same order.
    pub fn tallies(&self) -> &[Tally] {
        &self.tallies
    }

    /// Scans done.
    pub fn scans(&self) -> u8 {
        self.scans
    }

    /// Closes one scan; every sample has had its [`record`](Self::record).
    pub fn end_scan(&mut self) {
        self.scans = self.scans.saturating_add(1);
    }

    /// Adds the verdict of the scan under way for the sample at `index`.
    ///
    /// # Panics
    /// When `index` is not that of a sample.
    pub fn record(&mut self, index: usize, seen: Seen) {
        let tally = &mut self.tallies[index];
        match seen {
            Seen::Accessed => {
                tally.accessed = tally.accessed.saturating_add(1);
                tally.known = tally.known.saturating_add(1);
            }
            Seen::Idle => tally.known = tally.known.saturating_add(1),
            Seen::Unknown => {}
        }
    }

    /// Notes the folio order and, where known, the node of the page behind
    /// the sample at `index`.
    ///
    /// # Panics
    /// When `index` is not that of a sample.
    pub fn place(&mut self, index: usize, order: u8, node: Option<NodeId>) {
        let tally = &mut self.tallies[index];
        tally.order = order;
        tally.node = node.or(tally.node);
    }

    /// Notes that the page behind the sample at `index` was written since its process
    /// was told to forget.
    ///
    /// # Panics
    /// When `index` is not that of a sample.
    pub fn note_written(&mut self, index: usize) {
        self.tallies[index].written = true;
    }

    /// Notes whether another process maps the page behind the sample at `index` too.
    ///
    /// # Panics
    /// When `index` is not that of a sample.
    pub fn note_shared(&mut self, index: usize, shared: bool) {
        self.tallies[index].shared = shared;
    }

    /// As if no scan could tell anything of these pages.
    pub fn forget(&mut self) {
        for tally in &mut self.tallies {
            (tally.accessed, tally.known) = (0, 0);
        }
    }

    /// Becomes those of `from` at these indices, with nothing seen of them yet.
    ///
    /// # Panics
    /// When an index is not that of a sample.
    pub fn pick(&mut self, from: &Self, indices: &[usize]) {
        self.samples.clear();
        self.samples
            .extend(indices.iter().map(|&i| from.samples[i]));
        self.tallies.clear();
        self.tallies.resize(indices.len(), Tally::default());
        self.scans = 0;
    }

    /// Adds what one scan saw of those at these indices.
    ///
    /// # Panics
    /// When an index is not that of a sample.
    pub fn add(&mut self, part: &Self, indices: &[usize]) {
        for (&i, seen) in indices.iter().zip(&part.tallies) {
            let tally = &mut self.tallies[i];
            tally.accessed = tally.accessed.saturating_add(seen.accessed);
            tally.known = tally.known.saturating_add(seen.known);
            if seen.known > 0 {
                tally.order = seen.order;
                tally.node = seen.node.or(tally.node);
                tally.written |= seen.written;
                tally.shared = seen.shared;
            }
        }
        self.end_scan();
    }

    /// As if no scan could have told anything of one.
    pub fn forget_of(&mut self, index: usize) {
        if let Some(tally) = self.tallies.get_mut(index) {
            (tally.accessed, tally.known) = (0, 0);
        }
    }

    /// Takes a sample for accessed, or not, in a scan that could not tell.
    pub fn assume(&mut self, index: usize, accessed: bool) {
        if let Some(tally) = self.tallies.get_mut(index) {
            tally.known = tally.known.saturating_add(1);
            tally.accessed = tally.accessed.saturating_add(accessed.into());
        }
    }

    /// What was idle in all of its looks is held to be idle in the scans after the first one
    /// that could tell, which is said of each sample, `None` of one without any.
    pub fn settle(&mut self, first: &[Option<u8>]) {
        for (tally, first) in self.tallies.iter_mut().zip(first) {
            if let Some(first) = first.filter(|_| tally.accessed == 0 && tally.known > 0) {
                tally.known = tally.known.max(self.scans.saturating_sub(first));
            }
        }
    }

    /// Only the samples that `keep` names, in their order.
    pub fn retain(&mut self, keep: &[bool]) {
        let mut kept = keep.iter();
        self.samples
            .retain(|_| kept.next().copied().unwrap_or(false));
        let mut kept = keep.iter();
        self.tallies
            .retain(|_| kept.next().copied().unwrap_or(false));
    }

    /// Samples with what was seen of them.
    pub fn looked(&self) -> Looked<'_> {
        Looked {
            samples: &self.samples,
            tallies: &self.tallies,
        }
    }

    /// Those of one target, where they are sorted by target.
    pub fn looked_at(&self, target: TargetId) -> Looked<'_> {
        let first = self.samples.partition_point(|s| s.target < target);
        let mine = &self.samples[first..];
        let count = mine.partition_point(|s| s.target == target);
        let (_, mine) = self.looked().split_at(first);
        mine.split_at(count).0
    }
}

/// Samples that follow each other, with what was seen of each. Not in pairs: of millions each
/// pass reads what it needs, and nothing is copied.
#[derive(Clone, Copy, Debug, Default)]
pub struct Looked<'a> {
    samples: &'a [Sample],
    tallies: &'a [Tally],
}

impl<'a> Looked<'a> {
    /// How many there are.
    pub fn len(self) -> usize {
        self.samples.len()
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.samples.is_empty()
    }

    /// The samples alone.
    pub fn samples(self) -> &'a [Sample] {
        self.samples
    }

    /// What was seen of each.
    pub fn tallies(self) -> &'a [Tally] {
        self.tallies
    }

    /// Each with what was seen of it.
    pub fn iter(self) -> impl Iterator<Item = (&'a Sample, &'a Tally)> + Clone {
        self.samples.iter().zip(self.tallies)
    }

    /// The first so many, and the others.
    ///
    /// # Panics
    /// When there are not so many.
    #[must_use]
    pub fn split_at(self, count: usize) -> (Self, Self) {
        let (samples, tallies) = (self.samples.split_at(count), self.tallies.split_at(count));
        let part = |samples, tallies| Self { samples, tallies };
        (part(samples.0, tallies.0), part(samples.1, tallies.1))
    }
}

#[cfg(test)]
impl AccessSet {
    /// For tests: these were seen.
    pub(crate) fn of(pairs: &[(Sample, Tally)]) -> Self {
        let (samples, tallies) = pairs.iter().copied().unzip();
        Self {
            samples,
            tallies,
            scans: 0,
        }
    }
}

/// Where the pages of one range are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeResidency {
    /// Whose range.
    pub target: TargetId,
    /// The range that was looked at.
    pub range: PageRange,
    /// Present pages of 4 KiB per node; nodes without any may be missing.
    pub pages_by_node: Vec<(NodeId, u64)>,
}

/// A target that was told to forget what it had written, when the epoch began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forgotten {
    /// Who.
    pub target: TargetId,
    /// How long that took: its address space was held no longer.
    pub took: Nanos,
    /// Our CPU time for it, and for finding out whether it may be asked.
    pub cost: Nanos,
}

/// One node's memory now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeUsage {
    /// Which.
    pub node: NodeId,
    /// All that the kernel manages there.
    pub total: Bytes,
    /// Free now.
    pub free: Bytes,
    /// What must stay free so that the kernel does not begin to reclaim, nor lets
    /// whoever allocates do so.
    pub reserve: Bytes,
    /// How late it answers; `None` where nobody asked in this epoch. In reports what it said last.
    pub latency: Option<ReadLatency>,
    /// Its page cache; `None` where the kernel cannot be asked to give some of it back.
    pub cache: Option<CacheUsage>,
}

/// Page cache of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheUsage {
    /// What the kernel holds to be idle, and can give back without writing anything.
    pub idle: Bytes,
    /// Pages since boot that were read back soon after they had been given back.
    pub refaults: u64,
}

/// How long a read from a node takes that no cache holds, asked by the CPUs nearest to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadLatency {
    /// Beside all that runs now.
    pub now: Nanos,
    /// Beside nothing, as far as that was ever seen.
    pub idle: Nanos,
}

/// What this epoch cost, in CPU time. Kinds add up to all that we spend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochCost {
    /// Our scanning, reading of maps and deciding.
    pub profiling: Nanos,
    /// Of that, the scans alone: the numerator of one scan's cost (Eq. 8.1).
    pub scanning: Nanos,
    /// Sample × scan pairs behind `scanning`.
    pub scanned: u64,
    /// Of `profiling`, counting where pages are.
    pub sweeping: Nanos,
    /// Pages behind `sweeping`.
    pub swept: u64,
    /// Of `profiling`, having targets forget what they wrote.
    pub forgetting: Nanos,
    /// Accessed bits that targets had to set again beyond those of samples, where the
    /// sampler clears them all.
    pub set_again: u64,
    /// Our kdamonds.
    pub kdamonds: Nanos,
    /// Our movers.
    pub migration: Nanos,
    /// Having targets' memory paged out.
    pub paging: Nanos,
    /// The rest of our process: control socket, metrics, signals, recording.
    pub other: Nanos,
    /// Wall-clock time of the epoch that this was spent in.
    pub elapsed: Nanos,
}

/// Everything that one decision may depend on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// When the scans had ended.
    pub at: Nanos,
    /// The targets then.
    pub targets: Vec<TargetMap>,
    /// What the scans saw of the samples that the last plan asked for.
    pub accesses: AccessSet,
    /// The ranges that the last plan asked to sweep.
    pub residency: Vec<RangeResidency>,
    /// The targets of whose samples it is known whether they were written in the epoch.
    pub forgotten: Vec<Forgotten>,
    /// Memory per node.
    pub nodes: Vec<NodeUsage>,
    /// What the epoch cost us.
    pub cost: EpochCost,
    /// CPU time for which whole cores of the machine had nothing to do in the epoch, all
    /// together; none where nobody can tell.
    pub idle: Nanos,
    /// Samples that the sampler can watch at most, of all targets together.
    pub capacity: u64,
    /// The shortest window that it can keep.
    pub shortest: Nanos,
    /// What became of the last plan's moves.
    pub outcome: MoveOutcome,
    /// What became of what it paged out, and what more may be.
    pub paging: Paging,
}
