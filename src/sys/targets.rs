//! Finding the targets and their mappings.

use super::root::Root;
use crate::ports::{PortError, TargetEvent, TargetSpec, Targets};
use crate::tiering::observation::TargetMap;
use crate::tiering::tier::TierTable;

/// Processes below `/proc`.
pub struct SysTargets {}

impl SysTargets {
    /// Over the kernel below `root`; `tiers` tells which CPU is on which node.
    pub fn new(_root: &Root, _tiers: &TierTable) -> Self {
        Self {}
    }
}

impl Targets for SysTargets {
    fn select(&mut self, _specs: &[TargetSpec]) {}
    fn read(&mut self, _events: &mut Vec<TargetEvent>) -> Result<Vec<TargetMap>, PortError> {
        unreachable!("being written")
    }
}
