//! One turn of the loop, over any ports.

use crate::ports::{PortError, Ports, TargetEvent, TargetSpec};
use crate::tiering::report::EpochReport;
use crate::tiering::settings::EngineSettings;
use crate::tiering::tier::TierTable;
use crate::units::{Bandwidth, Nanos};

/// Everything that the loop can be told, at the start or by a reload.
#[derive(Clone, Debug, PartialEq)]
pub struct LoopSettings {
    /// What decides.
    pub engine: EngineSettings,
    /// Whether plans are carried out; if not, they are made and counted.
    pub moving: bool,
    /// Bytes per second that may be moved; `None`: as the policy's budget says.
    pub rate: Option<Bandwidth>,
    /// Threads that may move at once.
    pub threads: usize,
    /// A single `move_pages` call should stay below this.
    pub call_time: Nanos,
    /// Share of an interval that moving may take.
    pub migration_share: f64,
}

/// What one turn brought.
#[derive(Clone, Debug)]
pub struct Turn {
    /// The epoch; `None` when the turn was interrupted before it was over.
    pub report: Option<EpochReport>,
    /// What happened to targets.
    pub events: Vec<TargetEvent>,
}

/// The loop with all its state. One ordinary thread owns it.
pub struct EpochLoop {
    _ports: Ports,
}

impl EpochLoop {
    /// Ready for its first turn.
    pub fn new(ports: Ports, _tiers: TierTable, _settings: LoopSettings, _seed: u64) -> Self {
        Self { _ports: ports }
    }

    /// Watches these from now on.
    pub fn select(&mut self, _specs: &[TargetSpec]) {}

    /// New settings, from the next turn on; what was learnt is kept.
    pub fn configure(&mut self, _settings: LoopSettings, _tiers: TierTable) {}

    /// Observes and plans, but moves nothing, for as long as this is set.
    pub fn pause(&mut self, _paused: bool) {}

    /// One epoch: scans spread over the interval, decision, moves. Returns
    /// early, without a report, when the clock's sleep is interrupted; call
    /// again to go on where it was.
    pub fn turn(&mut self) -> Result<Turn, PortError> {
        unreachable!("being written")
    }

    /// Undoes every kernel setting.
    pub fn release(&mut self) {}
}
