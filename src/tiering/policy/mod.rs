//! Policies: which pages to move where. Pure; a [`View`] goes in, moves come out.

pub mod adaptive;
mod first_touch;
pub mod hm_keeper;
mod lasting;
mod ledger;
mod memory_tiering;
pub mod peers;
mod place;
mod planner;
mod shares;
mod sorted;
#[cfg(test)]
mod testing;
mod worth;

pub use adaptive::Adaptive;
pub use first_touch::FirstTouch;
pub use hm_keeper::HmKeeper;
pub use ledger::Ledger;
pub use memory_tiering::MemoryTiering;
pub use peers::PeerPolicy;

use super::observation::{Share, TargetId};
use super::plan::Move;
use super::region::Region;
use super::report::PauseReason;
use super::settings::{Asking, PolicyName, PolicySettings};
use super::tier::TierView;
use super::windows::Rates;
use crate::units::{Bytes, Nanos, NodeId, Pid, VirtAddr};

/// Seen in all scans but for so much, by rounding.
const FULL: f32 = 1e-3;

/// One target as a policy sees it.
#[derive(Clone, Debug)]
pub struct TargetView<'a> {
    /// Who.
    pub id: TargetId,
    /// Its process.
    pub pid: Pid,
    /// The nodes that it may use, fastest first.
    pub tiers: &'a TierView,
    /// Its regions, sorted by address.
    pub regions: &'a [Region],
    /// CPUs that it used in the epoch.
    pub load: f64,
    /// What it is due beside others.
    pub share: Share,
    /// So many pages more of each region are to be held to be idle ([`Region::believed`]).
    pub prior: f32,
}

impl<'a> TargetView<'a> {
    /// The region that holds an address.
    pub fn region_at(&self, addr: VirtAddr) -> Option<&'a Region> {
        let at = self.regions.partition_point(|r| r.range().end() <= addr);
        let region = self.regions.get(at)?;
        region.range().contains(addr).then_some(region)
    }
}

/// What became of the last plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Bytes that its exchanges moved.
    pub moved: Bytes,
    /// Bytes that gave back headroom.
    pub given_back: Bytes,
    /// Bytes of what is written and of what is read that changed places.
    pub relieved: Bytes,
    /// Bytes of its exchanges for which there was no time.
    pub deferred: Bytes,
    /// CPU time of the threads that moved them.
    pub cost: Nanos,
}

/// Everything that a policy may look at.
#[derive(Clone, Debug)]
pub struct View<'a> {
    /// The epoch that ends.
    pub epoch: u64,
    /// Scans per epoch: the greatest hotness.
    pub scans: u8,
    /// The targets that may be moved.
    pub targets: Vec<TargetView<'a>>,
    /// Per node, each once: bytes that can be filled before the headroom is touched.
    pub room: Vec<(NodeId, Bytes)>,
    /// Per node, each at most once: bytes of the headroom that are not free any more.
    pub lacking: Vec<(NodeId, Bytes)>,
    /// Per node, each at most once: bytes of page cache that may make room there, where nothing
    /// colder does ([`page_cache`](super::page_cache)).
    pub cache: Vec<(NodeId, Bytes)>,
    /// Nodes that answer later than when idle, for the bandwidth that is asked of them, each
    /// once: how many times as late, more than 1 ([`pressure`](super::pressure)).
    pub loaded: Vec<(NodeId, f64)>,
    /// Nodes that answer later than when idle, also by a little: how many times as late.
    pub late: Vec<(NodeId, f64)>,
    /// How long an epoch is.
    pub interval: Nanos,
    /// Share of the CPU time of moving that nobody else would use, 0 to 1.
    pub spare: f64,
    /// What the counts of scans stand for.
    pub rates: &'a Rates,
    /// What became of the last plan.
    pub done: Done,
}

impl<'a> View<'a> {
    /// Each target's nodes as they answer now.
    pub fn tiers_under_load(&self) -> Vec<TierView> {
        let targets = self.targets.iter();
        targets.map(|t| t.tiers.under_load(&self.loaded)).collect()
    }

    /// Accesses per second of a page of a region with this count, as far as one can see: infinite
    /// where all scans saw one.
    pub fn rate(&self, count: f32) -> f64 {
        if count >= f32::from(self.scans) - FULL {
            return f64::INFINITY;
        }
        let of_a_folio = self.rates.of(f64::from(count)) / self.interval.as_secs_f64();
        if of_a_folio.is_finite() {
            of_a_folio
        } else {
            0.0
        }
    }

    /// How many times as late as when idle a node answers.
    pub fn factor(&self, node: NodeId) -> f64 {
        let mut nodes = self.loaded.iter();
        let found = nodes.find(|(n, _)| *n == node);
        found.map_or(1.0, |(_, factor)| *factor)
    }

    /// The same with these nodes of each target.
    #[must_use]
    pub fn with_tiers(&self, tiers: &'a [TierView]) -> Self {
        let mut view = self.clone();
        for (target, tiers) in view.targets.iter_mut().zip(tiers) {
            target.tiers = tiers;
        }
        view
    }
}

/// What a plan may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Bytes in all moves together.
    pub bytes: Bytes,
}

/// The share of pages accessed at this rate that are accessed within so many seconds, where that is
/// by chance.
fn touched_in(rate: f64, seconds: f64) -> f64 {
    if seconds > 0.0 {
        -(-rate * seconds).exp_m1()
    } else {
        0.0
    }
}

/// Decides, once per epoch.
pub trait Policy: Send {
    /// The name in the configuration.
    fn name(&self) -> &'static str;
    /// Weight of the newest count in a region's hotness.
    fn ema(&self) -> f32;
    /// Why it moves nothing although memory is hot where it should not be, if so.
    fn holds_back(&self) -> Option<PauseReason> {
        None
    }
    /// How long epochs had better be, as a share of what is configured: above 0, at most 1.
    fn pace(&self) -> f64 {
        1.0
    }
    /// Whether it weighs how late nodes answer, and what is written.
    fn weighs_load(&self) -> bool {
        false
    }
    /// Whether to ask for one of these where that is configured so.
    fn asks(&self, asking: Asking) -> bool {
        match asking {
            Asking::Never => false,
            Asking::Auto => self.weighs_load(),
            Asking::Always => true,
        }
    }
    /// Folios that have faulted in the epoch of the last decision so that the kernel it stands for learnt
    /// that they are touched (hint faults), each told once. None where it has the counts of a sampler.
    fn take_hint_faults(&mut self) -> f64 {
        0.0
    }
    /// The moves to make now: the most urgent first, each demotion before the
    /// promotion that it makes room for.
    fn decide(&mut self, view: &View<'_>, budget: Budget) -> Vec<Move>;
}

/// The policy that the settings name.
pub fn build(settings: &PolicySettings) -> Box<dyn Policy> {
    let hm_keeper = HmKeeper::new(settings.hm_keeper);
    match settings.name {
        PolicyName::Adaptive => Box::new(Adaptive::new(settings.adaptive)),
        PolicyName::HmKeeper => Box::new(hm_keeper),
        PolicyName::HmKeeperHierarchical => Box::new(hm_keeper.tier_by_tier()),
        PolicyName::Ial => PeerPolicy::boxed(peers::IAL),
        PolicyName::Heat => PeerPolicy::boxed(peers::HEAT),
        PolicyName::Age => PeerPolicy::boxed(peers::AGE),
        PolicyName::HeMem => PeerPolicy::boxed(peers::HEMEM),
        PolicyName::Thermostat => PeerPolicy::boxed(peers::THERMOSTAT),
        PolicyName::AutoNuma => PeerPolicy::boxed(peers::AUTONUMA),
        PolicyName::MemoryTiering => Box::new(MemoryTiering::new(settings.memory_tiering)),
        PolicyName::AutoTiering => PeerPolicy::boxed(peers::AUTOTIERING),
        PolicyName::FirstTouch => Box::new(FirstTouch),
    }
}
