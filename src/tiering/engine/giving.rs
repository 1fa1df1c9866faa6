//! What the loop may have leave nodes between two steps. Nothing is changed by it: what became of it is in the next
//! observation.

use super::Engine;
use crate::tiering::plan::MoveResult;
use crate::tiering::shortage::leaving::{Capacity, Holder, Leaving};
use crate::units::NodeId;

impl Engine {
    /// What may leave these nodes until the next step, with what was `done` since the last one.
    pub fn leaving(&self, done: &[MoveResult], nodes: &[NodeId]) -> Leaving {
        let holders: Vec<Holder<'_>> = self
            .targets
            .iter()
            .map(|(&id, tracked)| Holder {
                id,
                pid: tracked.pid,
                tiers: (self.tiers).view(tracked.stays.view(), tracked.allowed_nodes.as_deref()),
                regions: tracked.map.regions(),
            })
            .collect();
        let with_capacity = self.tiers.ids().zip(self.tiers.tiers());
        let capacities: Vec<Capacity> = with_capacity
            .filter_map(|(id, tier)| {
                let left = tier.capacity?.saturating_sub(self.resident_on(id));
                Some((tier.nodes.clone(), left))
            })
            .collect();
        let scans = self.settings.profiling.scans;
        Leaving::of(&holders, scans, done, nodes, capacities)
    }
}
