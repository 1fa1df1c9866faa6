//! What the machine is like now, whoever the targets are.

use super::spare::Spare;
use crate::tiering::observation::Observation;
use crate::tiering::page_cache::PageCache;
use crate::tiering::pressure::Pressure;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Machine {
    pub(super) pressure: Pressure,
    pub(super) page_cache: PageCache,
    pub(super) spare: Spare,
}

impl Machine {
    /// An epoch has ended. How late nodes answer counts only where that is asked for.
    pub(super) fn follow(&mut self, seen: &Observation, latency: bool) {
        if latency {
            self.pressure.follow(&seen.nodes);
        } else {
            self.pressure = Pressure::default();
        }
        self.page_cache.follow(seen.at, &seen.nodes, &seen.outcome);
        self.spare.follow(seen);
    }
}
