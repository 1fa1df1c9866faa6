//! The daemon's own view, for comparison with the truth: what it says through
//! its control socket.

use std::path::Path;

use crate::control::{Request, client};
use crate::telemetry::status::{Status, TargetStatus};
use crate::units::{NodeId, Pid};

/// Asks the daemon behind this socket; `None` while it does not answer.
pub(super) fn ask(socket: &Path) -> Option<Status> {
    let reply = client::call(socket, Request::Status).ok()?;
    reply.status.map(|status| *status)
}

/// What it says of a process.
pub(super) fn target(status: &Status, pid: u32) -> Option<&TargetStatus> {
    let pid = Pid(i32::try_from(pid).ok()?);
    status.targets.iter().find(|t| t.pid == pid)
}

/// Estimated share of the accesses of `pid` that these nodes serve; `None`
/// while nothing was seen accessed.
pub(super) fn share(status: &Status, pid: u32, nodes: &[NodeId]) -> Option<f64> {
    let on = |name: &str| {
        let tier = status.tiers.iter().find(|t| t.name == name);
        tier.is_some_and(|t| t.nodes.iter().any(|&n| nodes.contains(&NodeId(n))))
    };
    let tiers = &target(status, pid)?.tiers;
    let total: f64 = tiers.iter().map(|s| s.access_ratio).sum();
    let part: f64 = tiers
        .iter()
        .filter(|s| on(&s.tier))
        .map(|s| s.access_ratio)
        .sum();
    (total > 0.0).then(|| part / total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_the_fastest_tier_is_read() {
        let status: Status = serde_json::from_value(serde_json::json!({
            "version": "0", "pid": 1, "uptime_seconds": 1.0, "sampler": "idle",
            "policy": "hm-keeper", "interval_seconds": 2.0, "epoch": 4, "paused": [],
            "tiers": [
                {"name": "dram0", "nodes": [0], "total_bytes": 1, "free_bytes": 1},
                {"name": "mem3", "nodes": [3], "total_bytes": 1, "free_bytes": 1}],
            "targets": [{
                "name": "demo", "pid": 7, "kind": "generic", "ranking": [["dram0"], ["mem3"]],
                "eligible_bytes": 1, "excluded": [], "hot_bytes": 1, "regions": 1,
                "samples": 1, "samples_accessed": 1, "samples_unknown": 0,
                "tiers": [
                    {"tier": "dram0", "resident_bytes": 1, "access_ratio": 0.75},
                    {"tier": "mem3", "resident_bytes": 1, "access_ratio": 0.25}],
                "moves": [], "promoted_bytes": 10, "demoted_bytes": 0,
                "overhead": {"profiling": 0.0, "migration": 0.0, "target": 0.0, "total": 0.0},
                "paused": null}],
            "absent": [],
            "cost": {"limit": 0.05, "cpus": 0.0, "profiling_seconds": 0.0,
                "kdamonds_seconds": 0.0, "migration_seconds": 0.0, "other_seconds": 0.0,
                "longest_move_call_seconds": 0.0},
            "reloads": {"ok": 0, "failed": 0}
        }))
        .unwrap();
        assert_eq!(share(&status, 7, &[NodeId(0)]), Some(0.75));
        assert_eq!(share(&status, 7, &[NodeId(0), NodeId(3)]), Some(1.0));
        assert_eq!(share(&status, 8, &[NodeId(0)]), None);
        assert_eq!(target(&status, 7).unwrap().promoted_bytes, 10);
    }
}
