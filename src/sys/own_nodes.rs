//! Nodes that this daemon's own cpuset allows.
//!
//! The kernel takes the page that a move goes to on behalf of whoever moves, so a node that
//! our cpuset lacks (a container's, a unit's `AllowedMemoryNodes=`) seems to be full, however
//! much of it is free.

use super::own_pages::own_pid;
use super::root::Root;
use super::targets::mems_allowed;
use crate::tiering::tier::TierTable;
use crate::units::NodeId;

/// Nodes of the table that are not allowed to us now, ascending.
pub fn lacking(root: &Root, tiers: &TierTable) -> Vec<NodeId> {
    // Where the kernel does not tell, there are no cpusets.
    let Some(allowed) = mems_allowed(root, own_pid()) else {
        return Vec::new();
    };
    let used = tiers.used().map(|node| node.id);
    used.filter(|node| !allowed.contains(node)).collect()
}

/// What these nodes mean, and the remedy.
pub fn explained(nodes: &[NodeId]) -> String {
    let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    let plural = if nodes.len() == 1 { "" } else { "s" };
    format!(
        "hmkeeper's own cpuset lacks node{plural} {}: nothing is moved there; allow all nodes in its \
         cgroup (cpuset.mems, AllowedMemoryNodes=), or run it outside of the container",
        nodes.join(", ")
    )
}
