//! What the demo shows: a row every two seconds, a line at the end of each
//! phase, and at the end the whole as one object.

use std::fmt::Write as _;

use serde::Serialize;

use super::place::Place;
use super::workload::lines::ByNode;
use crate::units::{Bytes, NodeId};

/// One phase, from the workload's and from the daemon's side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct PhaseResult {
    /// From 1.
    pub phase: u32,
    /// Its length.
    pub seconds: f64,
    /// Share of the workload's accesses in the phase's last quarter that the
    /// fastest tier served, counted by the workload.
    pub true_fast_share: Option<f64>,
    /// The same for every tier, fastest first.
    pub true_shares: Vec<TierShare>,
    /// What the daemon thought of the fastest tier then.
    pub estimated_fast_share: Option<f64>,
    /// Share of the hot pages that were on the fastest tier at its end.
    pub hot_pages_fast_share: Option<f64>,
    /// Epochs of the daemon within the phase.
    pub epochs: u64,
    /// Moved to faster tiers in the phase.
    pub promoted_bytes: u64,
    /// Moved to slower tiers in the phase.
    pub demoted_bytes: u64,
}

/// One tier's share.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct TierShare {
    /// The tier.
    pub tier: String,
    /// From 0 to 1.
    pub share: f64,
}

/// `demo --json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Outcome {
    /// Whether the daemon ran.
    pub daemon: bool,
    /// The sampler that it used.
    pub sampler: Option<String>,
    /// Size of the workload's buffer.
    pub bytes: u64,
    /// Size of its hot set.
    pub hot_bytes: u64,
    /// Room on the fastest tier.
    pub room_bytes: u64,
    /// `ballast` or `capacity`: how that room was made.
    pub room_by: &'static str,
    /// The tiers' nodes, fastest first.
    pub tiers: Vec<TierNode>,
    /// How many of these, from the first, count as the fastest tier.
    pub fast_count: usize,
    /// CPU time of the daemon over the time of all phases, in CPUs.
    pub daemon_cpus: f64,
    /// All phases.
    pub phases: Vec<PhaseResult>,
}

/// A node by its tier's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct TierNode {
    /// The tier.
    pub tier: String,
    /// The node.
    pub node: NodeId,
}

/// Share of accesses per tier, fastest first; empty of none.
pub(super) fn shares(place: &Place, accesses: &ByNode) -> Vec<TierShare> {
    place
        .nodes
        .iter()
        .filter_map(|(node, tier)| {
            Some(TierShare {
                tier: tier.clone(),
                share: accesses.share(&[*node])?,
            })
        })
        .collect()
}

/// One row's figures beside the shares.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Row {
    pub seconds: f64,
    pub phase: u32,
    pub estimate: Option<f64>,
    pub promoted: Bytes,
    pub demoted: Bytes,
    pub daemon_cpus: Option<f64>,
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".into(), |s| format!("{:.1} %", s * 100.0))
}

/// The headings, in two lines.
pub(super) fn heading(place: &Place, daemon: bool) -> String {
    let width = place.nodes.len() * COLUMN;
    let title = "share of its accesses served by";
    let mut line = format!("{:>6} {:>5} |", "time", "phase");
    for (_, tier) in &place.nodes {
        let _ = write!(line, "{tier:>COLUMN$}");
    }
    if daemon {
        let _ = write!(
            line,
            " |{:>10} |{:>11}{:>11}{:>8}",
            "estimate", "promoted", "demoted", "its CPU"
        );
        format!(
            "{:>12} |{title:^width$} |{:>10} | the daemon\n{line}",
            "", place.nodes[0].1
        )
    } else {
        format!("{:>12} |{title:^width$}\n{line}", "")
    }
}

/// Characters of a column that holds a share.
const COLUMN: usize = 9;

/// One line of the table.
pub(super) fn row(place: &Place, accesses: &ByNode, row: Row, daemon: bool) -> String {
    let mut line = format!("{:>4.0} s {:>5} |", row.seconds, row.phase);
    for (node, _) in &place.nodes {
        let _ = write!(line, "{:>COLUMN$}", percent(accesses.share(&[*node])));
    }
    if daemon {
        let _ = write!(
            line,
            " |{:>10} |{:>11}{:>11}{:>8}",
            percent(row.estimate),
            row.promoted,
            row.demoted,
            percent(row.daemon_cpus)
        );
    }
    line
}

/// The line that ends a phase.
pub(super) fn summary(place: &Place, result: &PhaseResult, daemon: bool) -> String {
    let fast: Vec<&str> = place.nodes[..place.fast.len()]
        .iter()
        .map(|(_, tier)| tier.as_str())
        .collect();
    let mut line = format!(
        "  phase {} ends: {} served {} of the accesses of its last quarter",
        result.phase,
        fast.join(" and "),
        percent(result.true_fast_share)
    );
    if daemon {
        let _ = write!(
            line,
            " (the daemon's estimate: {}); {} epochs, {} promoted, {} demoted",
            percent(result.estimated_fast_share),
            result.epochs,
            Bytes(result.promoted_bytes),
            Bytes(result.demoted_bytes)
        );
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        Place {
            cpus: vec![0],
            fast: vec![NodeId(0)],
            slow: NodeId(3),
            nodes: vec![(NodeId(0), "dram0".into()), (NodeId(3), "mem3".into())],
        }
    }

    #[test]
    fn a_row_stands_below_its_heading() {
        let mut accesses = ByNode::default();
        accesses.add(NodeId(0), 1);
        accesses.add(NodeId(3), 3);
        let figures = Row {
            seconds: 12.0,
            phase: 2,
            estimate: Some(0.305),
            promoted: Bytes::from_mib(96),
            demoted: Bytes::ZERO,
            daemon_cpus: Some(0.021),
        };
        let line = row(&place(), &accesses, figures, true);
        assert_eq!(
            line,
            "  12 s     2 |   25.0 %   75.0 % |    30.5 % |   96.0 MiB        0 B   2.1 %"
        );
        for heading in heading(&place(), true).lines() {
            assert_eq!(heading.find('|'), line.find('|'), "{heading}");
        }
        assert_eq!(
            row(&place(), &accesses, figures, false),
            "  12 s     2 |   25.0 %   75.0 %"
        );
    }

    #[test]
    fn a_baseline_says_nothing_of_a_daemon() {
        let result = PhaseResult {
            phase: 1,
            seconds: 20.0,
            true_fast_share: Some(0.0),
            true_shares: Vec::new(),
            estimated_fast_share: None,
            hot_pages_fast_share: Some(0.0),
            epochs: 0,
            promoted_bytes: 0,
            demoted_bytes: 0,
        };
        assert_eq!(
            summary(&place(), &result, false),
            "  phase 1 ends: dram0 served 0.0 % of the accesses of its last quarter"
        );
    }
}
