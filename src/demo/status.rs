//! The daemon's own view, for comparison with the truth: what of
//! `hmkeeper status --json` the demo needs. All of it may be missing.

use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;

/// The part of the daemon's status that the demo shows.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    /// Epochs so far.
    pub epoch: u64,
    /// Why nothing is moved.
    pub paused: Vec<String>,
    /// The sampler in use.
    pub sampler: String,
    tiers: Vec<Tier>,
    targets: Vec<Target>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Tier {
    name: String,
    nodes: Vec<u32>,
}

/// The watched workload.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Target {
    pid: u32,
    tiers: Vec<Share>,
    /// Promoted so far.
    pub promoted_bytes: u64,
    /// Demoted so far.
    pub demoted_bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Share {
    tier: String,
    access_ratio: f64,
}

impl Status {
    /// Asks the daemon behind this socket; `None` while it does not answer.
    pub(super) fn ask(socket: &Path) -> Option<Self> {
        let output = Command::new(std::env::current_exe().ok()?)
            .args(["status", "--json", "--socket"])
            .arg(socket)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .ok()?;
        if !output.status.success() {
            return None;
        }
        serde_json::from_slice(&output.stdout).ok()
    }

    /// What it says of a process.
    pub(super) fn target(&self, pid: u32) -> Option<&Target> {
        self.targets.iter().find(|t| t.pid == pid)
    }

    /// Estimated share of the accesses of `pid` that these nodes serve.
    pub(super) fn share(&self, pid: u32, nodes: &[crate::units::NodeId]) -> Option<f64> {
        let target = self.target(pid)?;
        let on = |name: &str| {
            self.tiers.iter().any(|t| {
                t.name == name
                    && t.nodes
                        .iter()
                        .any(|&n| nodes.contains(&crate::units::NodeId(n)))
            })
        };
        let total: f64 = target.tiers.iter().map(|s| s.access_ratio).sum();
        let part: f64 = target
            .tiers
            .iter()
            .filter(|s| on(&s.tier))
            .map(|s| s.access_ratio)
            .sum();
        (total > 0.0).then(|| part / total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::NodeId;

    #[test]
    fn the_share_of_the_fastest_tier_is_read() {
        let status: Status = serde_json::from_str(
            r#"{"epoch": 4, "unknown": 1,
                "tiers": [{"name": "dram0", "nodes": [0]}, {"name": "mem3", "nodes": [3]}],
                "targets": [{"pid": 7, "promoted_bytes": 10, "tiers": [
                    {"tier": "dram0", "access_ratio": 0.75, "resident_bytes": 1},
                    {"tier": "mem3", "access_ratio": 0.25}]}]}"#,
        )
        .unwrap();
        assert_eq!(status.share(7, &[NodeId(0)]), Some(0.75));
        assert_eq!(status.share(8, &[NodeId(0)]), None);
        assert_eq!(status.target(7).unwrap().promoted_bytes, 10);
        assert_eq!(Status::default().share(7, &[NodeId(0)]), None);
    }
}
