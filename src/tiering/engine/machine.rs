//! What the machine is like now, whoever the targets are.

use super::spare::Spare;
use crate::tiering::observation::Observation;
use crate::tiering::page_cache::PageCache;
use crate::tiering::pressure::Pressure;
use crate::tiering::shortage::Rests;
use crate::tiering::windows::SHORTEST_AT_ONCE;
use crate::units::Nanos;

/// See the module.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) pressure: Pressure,
    pub(super) page_cache: PageCache,
    pub(super) spare: Spare,
    /// Nodes that nothing is promoted to, since others need their memory.
    pub(super) rests: Rests,
    /// The shortest window that the sampler can keep.
    pub(super) shortest: Nanos,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            pressure: Pressure::default(),
            page_cache: PageCache::default(),
            spare: Spare::default(),
            rests: Rests::default(),
            shortest: SHORTEST_AT_ONCE,
        }
    }
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
        self.rests.follow(seen.at, &seen.outcome);
        self.shortest = seen.shortest;
    }
}
