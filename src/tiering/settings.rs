//! What can be set of the decisions. The configuration fills these in; their
//! defaults are the configuration's defaults.

use serde::{Deserialize, Serialize};

use super::writes::WRITE_FAULT;
use crate::units::{Bandwidth, Bytes, HUGE_PAGE_BYTES, Nanos};

/// Where a region is split whose samples contradict each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SplitRule {
    /// At the edge that its samples, and what is remembered of it, suggest;
    /// further samples go to where the edge may be. Ours.
    #[default]
    Edges,
    /// In half, and samples go to what changed most (HM-Keeper §1.2).
    Halves,
    /// Nowhere: regions stay as they began, and are never merged (the ablation
    /// of HM-Keeper §1.6).
    Fixed,
}

impl SplitRule {
    /// The names in the configuration.
    pub const CHOICES: [(&'static str, Self); 3] = [
        ("edges", Self::Edges),
        ("halves", Self::Halves),
        ("fixed", Self::Fixed),
    ];
}

/// Where samples go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Placement {
    /// Where they tell most.
    #[default]
    Aimed,
    /// Anywhere: each to a page drawn from all (the ablation of HM-Keeper §1.6).
    Random,
}

impl Placement {
    /// The names in the configuration.
    pub const CHOICES: [(&'static str, Self); 2] =
        [("aimed", Self::Aimed), ("random", Self::Random)];
}

/// What the scans of an epoch look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LookRule {
    /// Each at pages of its own, and again at what surprised. Sees smaller chunks, but what is warm less
    /// steadily.
    Fresh,
    /// Each at every sample (HM-Keeper §1.2).
    Repeated,
    /// Again at what was accessed; what was idle in a long window leaves its other looks
    /// to pages that nobody looked at yet ([`looks`](super::looks)). Where windows are
    /// equal, as `Repeated`: none of them tells what another one would.
    #[default]
    Sequential,
}

impl LookRule {
    /// The names in the configuration.
    pub const CHOICES: [(&'static str, Self); 3] = [
        ("sequential", Self::Sequential),
        ("repeated", Self::Repeated),
        ("fresh", Self::Fresh),
    ];
}

/// How long the scans of an epoch wait for accesses ([`windows`](super::windows)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WindowRule {
    /// Each shorter than the one before, so that the count tells rates apart which
    /// all show in long windows. Where each scan looks at pages of its own, they are equal
    /// all the same.
    #[default]
    Tapered,
    /// Each until the next (HM-Keeper §1.2).
    Equal,
}

impl WindowRule {
    /// The names in the configuration.
    pub const CHOICES: [(&'static str, Self); 2] =
        [("equal", Self::Equal), ("tapered", Self::Tapered)];
}

/// Whether to ask for something that is not free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Asking {
    /// Never.
    Never,
    /// Where the policy weighs it, and as far as it is likely to gain by it.
    #[default]
    Auto,
    /// Always.
    Always,
}

/// How memory is watched.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfilingSettings {
    /// One epoch (HM-Keeper's `t_mi`, §1.2; 10 s in its evaluation).
    pub interval: Nanos,
    /// Scans per epoch (HM-Keeper's `num_scans`), 1 to 20.
    pub scans: u8,
    /// Share of a target's CPU time that watching it may cost, moving apart
    /// (HM-Keeper's 5 %, §1.6).
    pub overhead_limit: f64,
    /// Regions begin with this many bytes, a power of two: what one last-level
    /// page directory entry maps.
    pub initial_region: Bytes,
    /// Regions of up to this are not split, a power of two of at least one page. Where they
    /// are cut at edges, these lie at multiples of a sixteenth of it, or between folios.
    pub minimum_region: Bytes,
    /// Adjacent regions merge when their hotness differs by less than this
    /// share of the scans (HM-Keeper's τ1 = n/3).
    pub merge_threshold: f64,
    /// A region splits when the counts of its samples differ by more than this
    /// share of the scans (HM-Keeper's τ2 = 2n/3).
    pub split_threshold: f64,
    /// Where it splits.
    pub split: SplitRule,
    /// Where samples go.
    pub placement: Placement,
    /// What each scan looks at.
    pub looks: LookRule,
    /// How long each scan waits.
    pub windows: WindowRule,
    /// Whether to learn what targets write ([`writes`](super::writes)).
    pub writes: Asking,
    /// What a page's first write after it was asked for costs the target.
    pub write_fault: Nanos,
    /// Whether to reckon with how late nodes answer under load
    /// ([`pressure`](super::pressure)).
    pub latency: Asking,
    /// Whether samples, and with them regions, are held to the overhead limit;
    /// if not, each region has its sample, nothing merges and, by halves, every
    /// contradiction splits (the ablation of HM-Keeper §1.6: τ1 = τ2 = 0, no
    /// `num_ps`).
    pub overhead_control: bool,
}

impl ProfilingSettings {
    /// The rule that holds: [`LookRule::Fresh`] wants equal windows.
    pub fn window_rule(&self) -> WindowRule {
        match self.looks {
            LookRule::Fresh => WindowRule::Equal,
            LookRule::Repeated | LookRule::Sequential => self.windows,
        }
    }

    /// The rule that holds: [`LookRule::Sequential`] wants tapered windows.
    pub fn look_rule(&self) -> LookRule {
        match (self.looks, self.windows) {
            (LookRule::Sequential, WindowRule::Equal) => LookRule::Repeated,
            (looks, _) => looks,
        }
    }
}

impl Default for ProfilingSettings {
    fn default() -> Self {
        Self {
            interval: Nanos::from_secs(10),
            scans: 3,
            overhead_limit: 0.05,
            initial_region: Bytes(HUGE_PAGE_BYTES),
            minimum_region: Bytes(64 << 10),
            merge_threshold: 1.0 / 3.0,
            split_threshold: 2.0 / 3.0,
            split: SplitRule::default(),
            placement: Placement::default(),
            looks: LookRule::default(),
            windows: WindowRule::default(),
            writes: Asking::Auto,
            write_fault: WRITE_FAULT,
            latency: Asking::Auto,
            overhead_control: true,
        }
    }
}

/// Policy `hm-keeper` (HM-Keeper §1.3).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HmKeeperSettings {
    /// Weight of the newest count in the moving average (Eq. 8.2: α = 0.5).
    pub ema: f64,
    /// Bytes promoted per epoch at most (its N).
    pub promotion_bytes: Bytes,
    /// Buckets of the hotness histogram.
    pub buckets: usize,
    /// A region is promoted only when its hotness reaches this share of the
    /// scans. The paper promotes whatever is hottest; stray accesses alone
    /// would then keep filling the tiers.
    pub promotion_threshold: f64,
    /// A region is promoted as if so many samples more had seen nothing of it, at most
    /// 255.
    pub prior_samples: u8,
    /// A region only gives way to one that is hotter by this share of the
    /// scans. The paper states no such margin; without one, noise swaps equals.
    pub eviction_margin: f64,
    /// Epochs for which a region that was moved is not moved the other way.
    pub rest_epochs: u64,
}

impl Default for HmKeeperSettings {
    fn default() -> Self {
        Self {
            ema: 0.5,
            promotion_bytes: Bytes(200_000_000),
            buckets: 16,
            promotion_threshold: 1.0 / 4.0,
            prior_samples: 1,
            eviction_margin: 1.0 / 3.0,
            rest_epochs: 3,
        }
    }
}

/// Policy `adaptive` ([`adaptive`](super::policy::adaptive)).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdaptiveSettings {
    /// Weight of the newest count in the moving average.
    pub ema: f64,
    /// Share of a target's CPU time that it is held to wait for memory.
    pub memory_bound: f64,
    /// What is moved has to gain so many times what moving it costs, in the time that it
    /// is expected to stay hot. CPU time that a core had left counts an eighth.
    pub payback: f64,
    /// Standard errors by which a region has to be hotter than what gives way to it.
    pub certainty: f64,
    /// A region is promoted only when its hotness reaches this share of the scans: what
    /// stray accesses do to a cold page is no hotness, and there is much of it. Or a part of this share, if it
    /// stands out of its target's memory (`policy::worth`).
    pub promotion_threshold: f64,
    /// The longest time, in epochs, in which a move may pay for itself.
    pub horizon: u64,
    /// Epochs for which a region that was moved is not moved the other way; twice as many
    /// each time that it is moved back.
    pub rest_epochs: u64,
    /// Bytes per epoch that are moved to begin with.
    pub first_bytes: Bytes,
    /// Share of the targets' CPU time that moving may cost, reckoned alike.
    pub moving_limit: f64,
    /// How long epochs are at first and while what is moved lasts, as a share of the configured
    /// interval, where that costs nothing else.
    pub pace: f64,
}

impl Default for AdaptiveSettings {
    fn default() -> Self {
        Self {
            ema: 0.5,
            memory_bound: 0.3,
            payback: 2.0,
            certainty: 1.0,
            promotion_threshold: 1.0 / 4.0,
            horizon: 64,
            rest_epochs: 2,
            first_bytes: Bytes(200_000_000),
            moving_limit: 0.1,
            pace: 0.33,
        }
    }
}

/// Which policy decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PolicyName {
    /// Ours: moves what pays for its move, as much as pays.
    #[default]
    Adaptive,
    /// HM-Keeper's own: promotes straight to the best tier.
    HmKeeper,
    /// The same, but it promotes tier by tier, as those do that HM-Keeper is held against
    /// (§1.3): for comparison.
    HmKeeperHierarchical,
    /// As a [`Peer`](super::policy::peers::Peer) does.
    Ial,
    /// The same.
    Heat,
    /// The same.
    Age,
    /// The same.
    HeMem,
    /// The same.
    Thermostat,
    /// The same.
    AutoNuma,
    /// The same.
    MemoryTiering,
    /// The same.
    AutoTiering,
    /// Watches only.
    FirstTouch,
}

impl PolicyName {
    /// The names in the configuration.
    pub const CHOICES: [(&'static str, Self); 12] = [
        ("adaptive", Self::Adaptive),
        ("hm-keeper", Self::HmKeeper),
        ("hm-keeper-hierarchical", Self::HmKeeperHierarchical),
        ("ial", Self::Ial),
        ("heat", Self::Heat),
        ("age", Self::Age),
        ("hemem", Self::HeMem),
        ("thermostat", Self::Thermostat),
        ("autonuma", Self::AutoNuma),
        ("memory-tiering", Self::MemoryTiering),
        ("autotiering", Self::AutoTiering),
        ("first-touch", Self::FirstTouch),
    ];

    /// The name in the configuration.
    pub fn as_str(self) -> &'static str {
        let mut choices = Self::CHOICES.iter();
        choices.find(|c| c.1 == self).map_or("", |c| c.0)
    }

    /// The policy of that name.
    pub fn named(name: &str) -> Option<Self> {
        let mut choices = Self::CHOICES.iter();
        choices.find(|c| c.0 == name).map(|c| c.1)
    }
}

/// Which policy decides, and what is set of each.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PolicySettings {
    /// Which.
    pub name: PolicyName,
    /// Of `adaptive`.
    pub adaptive: AdaptiveSettings,
    /// Of `hm-keeper` and its relatives.
    pub hm_keeper: HmKeeperSettings,
    /// Of `memory-tiering`.
    pub memory_tiering: MemoryTieringSettings,
}

impl PolicySettings {
    /// Whether a policy made of these decides as one of those does.
    pub fn decides_as(&self, other: &Self) -> bool {
        self.name == other.name
            && match self.name {
                PolicyName::Adaptive => self.adaptive == other.adaptive,
                PolicyName::HmKeeper | PolicyName::HmKeeperHierarchical => {
                    self.hm_keeper == other.hm_keeper
                }
                PolicyName::MemoryTiering => self.memory_tiering == other.memory_tiering,
                _ => true,
            }
    }
}

/// The kernel, and the program under it, that policy `memory-tiering` is a model of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryTieringSettings {
    /// Bits in which it notes, in milliseconds, when it made a page fault
    /// (`PAGE_ACCESS_TIME_MASK`): 8, and those of a CPU's number up to `CONFIG_NR_CPUS`, but
    /// 12 at least.
    pub time_bits: u8,
    /// Whether a thread that the program made touches its memory: it begins more slowly than
    /// the program's first thread.
    pub by_worker: bool,
}

impl Default for MemoryTieringSettings {
    fn default() -> Self {
        Self {
            // Of 8192 CPUs, as distributions have it: 35 minutes.
            time_bits: 21,
            by_worker: false,
        }
    }
}

/// What goes below the slowest tier ([`pageout`](super::pageout)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageOutSettings {
    /// What was not seen accessed for so long.
    pub idle: Nanos,
    /// At most so much.
    pub rate: Bandwidth,
    /// To a disk, too; if not, only where it stays in memory.
    pub any_swap: bool,
}

impl Default for PageOutSettings {
    fn default() -> Self {
        Self {
            idle: Nanos::from_secs(300),
            rate: Bandwidth(10 << 20),
            any_swap: false,
        }
    }
}

/// Everything that the engine can be told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineSettings {
    /// How memory is watched.
    pub profiling: ProfilingSettings,
    /// Which policy decides.
    pub policy: PolicySettings,
    /// Share of each node that stays free beyond the kernel's watermarks, so
    /// that we never push a node into reclaim.
    pub headroom: f64,
    /// Bytes that all moves of one epoch may have together.
    pub move_bytes: Bytes,
    /// Whether idle page cache makes room where nothing colder does.
    pub page_cache: bool,
    /// What is paged out; `None`: nothing.
    pub page_out: Option<PageOutSettings>,
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            profiling: ProfilingSettings::default(),
            policy: PolicySettings::default(),
            headroom: 0.02,
            move_bytes: Bytes(u64::MAX),
            page_cache: true,
            page_out: None,
        }
    }
}
