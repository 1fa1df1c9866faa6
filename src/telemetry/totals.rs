//! Sums over epochs: the counters behind metrics and status.
//!
//! Kept twice: by process, which `status` shows, and by name, which labels
//! metrics. Several processes may share a name, and a counter must not fall
//! when one of them ends; once the last is gone, its sums are dropped.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::tiering::observation::TargetId;
use crate::tiering::plan::{Direction, PageCounts, Reason};
use crate::tiering::report::{EpochReport, TargetReport};
use crate::tiering::tier::TierTable;
use crate::units::{Bytes, Nanos, NodeId, TierId};

/// One way that bytes went. By tier names, which outlive a reload that
/// renumbers tiers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Way {
    /// Up or down in the target's view; demotions come first.
    pub direction: Direction,
    /// The tier they left.
    pub from: Arc<str>,
    /// The tier they went to.
    pub to: Arc<str>,
    /// Why.
    pub reason: Reason,
}

/// Moves of one process, or of all of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MoveTotals {
    /// Bytes moved, by way.
    pub moved: BTreeMap<Way, Bytes>,
    /// Pages tried, by result.
    pub pages: PageCounts,
    /// Bytes paged out.
    pub paged_out: Bytes,
}

impl MoveTotals {
    fn add(&mut self, target: &TargetReport, tiers: &TierTable) {
        for flow in &target.flows {
            let way = Way {
                from: tier_name(tiers, flow.from),
                to: tier_name(tiers, flow.to),
                direction: flow.direction,
                reason: flow.reason,
            };
            *self.moved.entry(way).or_default() += flow.moved;
        }
        self.pages.add(target.move_pages);
        self.paged_out += target.paged_out;
    }

    /// Bytes moved in one direction.
    pub fn bytes(&self, direction: Direction) -> Bytes {
        let ways = self.moved.iter().filter(|(w, _)| w.direction == direction);
        ways.map(|(_, bytes)| *bytes).sum()
    }
}

/// A tier's name, or its number where the table does not have it.
pub fn tier_name(tiers: &TierTable, tier: TierId) -> Arc<str> {
    tiers.tiers().get(tier.index()).map_or_else(
        || format!("tier{}", tier.0).into(),
        |t| t.name.as_str().into(),
    )
}

/// Our own CPU time by what it was spent on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnCpu {
    /// Scanning, reading maps, deciding.
    pub profiling: Nanos,
    /// Our kdamonds.
    pub kdamonds: Nanos,
    /// Movers, and having memory paged out.
    pub migration: Nanos,
    /// Control socket, metrics, signals.
    pub other: Nanos,
}

impl OwnCpu {
    /// Each with its label.
    pub fn labelled(self) -> [(&'static str, Nanos); 4] {
        [
            ("profiling", self.profiling),
            ("kdamonds", self.kdamonds),
            ("migration", self.migration),
            ("other", self.other),
        ]
    }

    /// All of it.
    pub fn total(self) -> Nanos {
        self.labelled().into_iter().map(|(_, time)| time).sum()
    }
}

/// Sums over all epochs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Epochs.
    pub epochs: u64,
    /// Our CPU time.
    pub cpu: OwnCpu,
    /// The longest system call that moved pages.
    pub longest_call: Nanos,
    /// Page cache that gave way, by node.
    pub reclaimed: BTreeMap<NodeId, Bytes>,
    /// Regions split.
    pub splits: u64,
    /// Pairs of regions merged.
    pub merges: u64,
    /// Moves by name, of names with a process.
    pub names: BTreeMap<Arc<str>, MoveTotals>,
    /// Moves by process, of those that are there.
    pub targets: BTreeMap<TargetId, MoveTotals>,
}

impl Totals {
    /// Adds an epoch.
    pub fn add(&mut self, report: &EpochReport, tiers: &TierTable) {
        self.epochs += 1;
        self.cpu.profiling += report.cost.profiling;
        self.cpu.kdamonds += report.cost.kdamonds;
        self.cpu.migration += report.cost.migration + report.cost.paging;
        self.cpu.other += report.cost.other;
        self.longest_call = self.longest_call.max(report.longest_call);
        for reclaimed in &report.reclaimed {
            *self.reclaimed.entry(reclaimed.node).or_default() += reclaimed.given;
        }
        for target in &report.targets {
            self.splits += target.splits;
            self.merges += target.merges;
            let name = self.names.entry(Arc::clone(&target.name)).or_default();
            name.add(target, tiers);
            let process = self.targets.entry(target.id).or_default();
            process.add(target, tiers);
        }
        let there = &report.targets;
        self.names.retain(|n, _| there.iter().any(|t| t.name == *n));
        self.targets
            .retain(|id, _| there.iter().any(|t| t.id == *id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::testing::{report, table, target};

    #[test]
    fn sums_by_name_survive_one_of_two_processes() {
        let tiers = table();
        let mut totals = Totals::default();
        let both = report(1, vec![target(1, "db"), target(2, "db")]);
        totals.add(&both, &tiers);
        let after_both = totals.names["db"].bytes(Direction::Promotion);
        totals.add(&report(2, vec![target(2, "db")]), &tiers);
        let after_one = totals.names["db"].bytes(Direction::Promotion);
        // Each target() promotes 8 MiB.
        assert_eq!(after_both, Bytes::from_mib(16));
        assert_eq!(after_one, Bytes::from_mib(24));
        assert_eq!(totals.targets.len(), 1);
        assert_eq!(
            totals.targets[&TargetId(2)].bytes(Direction::Promotion),
            Bytes::from_mib(16)
        );
        totals.add(&report(3, vec![]), &tiers);
        assert!(totals.names.is_empty() && totals.targets.is_empty());
        assert_eq!(totals.epochs, 3);
        assert_eq!(totals.splits, 3 * 5);
    }

    #[test]
    fn our_own_time_adds_up() {
        let tiers = table();
        let mut totals = Totals::default();
        totals.add(&report(1, vec![]), &tiers);
        totals.add(&report(2, vec![]), &tiers);
        // report(): 30 + 4 + 5 + 1 ms, and a longest call of 3 ms.
        assert_eq!(totals.cpu.total(), Nanos::from_millis(80));
        assert_eq!(totals.cpu.kdamonds, Nanos::from_millis(8));
        assert_eq!(totals.longest_call, Nanos::from_millis(3));
        // Of 24 MiB in each.
        assert_eq!(totals.reclaimed, [(NodeId(0), Bytes::from_mib(48))].into());
    }
}
