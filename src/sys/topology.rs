//! Which tiers there are: sysfs and hwloc, checked against each other.

use super::root::Root;
use crate::ports::{PortError, Topology};
use crate::tiering::tier::{Tier, TierTable};

/// The machine's memory below `root`.
pub struct SysTopology {}

impl SysTopology {
    /// With the tiers that the configuration names; `None`: one per node.
    pub fn new(_root: &Root, _tiers: Option<Vec<Tier>>) -> Self {
        Self {}
    }
}

impl Topology for SysTopology {
    fn read(&self) -> Result<TierTable, PortError> {
        unreachable!("being written")
    }
}
