// NOTE FROM THE LEAD (04:41): I write move_pages.rs and residency.rs myself on main right now.
// Do NOT write them; finish targets and topology (+ VM tests for them), commit, and report.
//! Moving pages: `move_pages(2)` in batches.

use crate::ports::{MoveLimits, PageMover, PortError};
use crate::tiering::plan::{Move, MoveOutcome};
use crate::units::Nanos;

/// The kernel's page mover.
pub struct SysMover {}

impl SysMover {
    /// A mover that has moved nothing yet.
    pub fn new() -> Self {
        Self {}
    }
}

impl PageMover for SysMover {
    fn apply(&mut self, _moves: &[Move], _limits: MoveLimits) -> Result<MoveOutcome, PortError> {
        unreachable!("being written")
    }
    fn cpu_time(&self) -> Nanos {
        unreachable!("being written")
    }
}
