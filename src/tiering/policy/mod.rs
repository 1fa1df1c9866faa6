//! Policies: which pages to move where. Pure; a [`View`] goes in, moves come out.

pub mod hm_keeper;
mod ledger;

pub use hm_keeper::HmKeeper;
pub use ledger::Ledger;

use super::observation::TargetId;
use super::plan::Move;
use super::region::Region;
use super::settings::PolicySettings;
use super::tier::TierView;
use crate::units::{Bytes, NodeId, Pid};

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
}

/// What a plan may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Bytes in all moves together.
    pub bytes: Bytes,
}

/// Decides, once per epoch.
pub trait Policy: Send {
    /// The name in the configuration.
    fn name(&self) -> &'static str;
    /// Weight of the newest count in a region's hotness.
    fn ema(&self) -> f32;
    /// The moves to make now: the most urgent first, each demotion before the
    /// promotion that it makes room for.
    fn decide(&mut self, view: &View<'_>, budget: Budget) -> Vec<Move>;
}

/// The policy that the settings name.
pub fn build(settings: &PolicySettings) -> Box<dyn Policy> {
    match settings {
        PolicySettings::HmKeeper(settings) => Box::new(HmKeeper::new(*settings)),
        PolicySettings::HmKeeperHierarchical(settings) => {
            Box::new(HmKeeper::new(*settings).tier_by_tier())
        }
    }
}
