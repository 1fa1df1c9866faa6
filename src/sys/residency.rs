// NOTE FROM THE LEAD (04:41): I write move_pages.rs and residency.rs myself on main right now.
// Do NOT write them; finish targets and topology (+ VM tests for them), commit, and report.
//! Where pages are, and what is free.

use super::root::Root;
use crate::ports::{PortError, Residency};
use crate::tiering::observation::{NodeUsage, RangeResidency};
use crate::tiering::plan::Sweep;

/// Residency as the kernel tells it.
pub struct SysResidency {}

impl SysResidency {
    /// Over the kernel below `root`.
    pub fn new(_root: &Root) -> Self {
        Self {}
    }
}

impl Residency for SysResidency {
    fn sweep(&mut self, _sweep: Sweep) -> Result<RangeResidency, PortError> {
        unreachable!("being written")
    }
    fn nodes(&mut self) -> Result<Vec<NodeUsage>, PortError> {
        unreachable!("being written")
    }
}
