//! Nodes and CPUs that come and go while the daemon runs: CXL regions, memory taken offline,
//! balloons, CPUs.

use std::collections::BTreeMap;
use std::fs;

use super::sysfs::NODES;
use crate::sys::root::Root;
use crate::sys::text;
use crate::tiering::tier::Tier;
use crate::units::{Bytes, NodeId};

/// A node whose size changed by less than one part in so many is the same: balloons breathe.
const SAME_SIZE: u64 = 8;

/// What of a machine's memory and CPUs may change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Nodes with memory, and how much.
    nodes: BTreeMap<NodeId, Bytes>,
    /// CPUs that are online, as the kernel lists them.
    cpus: String,
}

/// The machine below `root` as it is now; what cannot be read is missing.
pub fn layout(root: &Root) -> Layout {
    let dir = root.sys(NODES);
    let with_memory = text::read_list(&dir.join("has_memory"));
    let nodes = with_memory.or_else(|_| text::read_list(&dir.join("online")));
    let size = |node: u32| {
        let meminfo = text::read(&dir.join(format!("node{node}/meminfo"))).ok()?;
        text::kib_field(&meminfo, "MemTotal").filter(|size| !size.is_zero())
    };
    let cpus = fs::read_to_string(root.sys("devices/system/cpu/online"));
    Layout {
        nodes: (nodes.unwrap_or_default().into_iter())
            .filter_map(|node| Some((NodeId(node), size(node)?)))
            .collect(),
        cpus: cpus.unwrap_or_default().trim().to_owned(),
    }
}

impl Layout {
    /// Whether the tiers of `other` hold here.
    pub fn is_like(&self, other: &Self) -> bool {
        self.cpus == other.cpus
            && self.nodes.keys().eq(other.nodes.keys())
            && self.resized(other).next().is_none()
    }

    /// Nodes of both whose size differs, with both sizes: here and there.
    fn resized<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = (NodeId, Bytes, Bytes)> + 'a {
        self.nodes.iter().filter_map(|(&node, &here)| {
            let there = *other.nodes.get(&node)?;
            let (less, more) = (here.min(there), here.max(there));
            let differs = more.saturating_sub(less).0 > more.0 / SAME_SIZE;
            differs.then_some((node, here, there))
        })
    }

    /// What is different in `now`, in words.
    pub fn change(&self, now: &Self) -> String {
        let list = |of: &Self, without: &Self| {
            let nodes = of.nodes.keys().filter(|n| !without.nodes.contains_key(n));
            nodes
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        };
        let (came, went) = (list(now, self), list(self, now));
        let mut parts = Vec::new();
        if !came.is_empty() {
            parts.push(format!("memory came online on node {came}"));
        }
        if !went.is_empty() {
            parts.push(format!("node {went} has no memory any more"));
        }
        for (node, was, is) in self.resized(now) {
            parts.push(format!("node {node} has {is} instead of {was}"));
        }
        if self.cpus != now.cpus {
            parts.push(format!(
                "CPUs {} are online instead of {}",
                now.cpus, self.cpus
            ));
        }
        parts.join(", ")
    }

    /// These tiers with the nodes that are there; those that have none left are dropped.
    pub fn keep(&self, tiers: Vec<Tier>) -> Vec<Tier> {
        let left = tiers.into_iter().map(|mut tier| {
            tier.nodes.retain(|node| self.nodes.contains_key(node));
            tier
        });
        left.filter(|tier| !tier.nodes.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(nodes: &[(u32, u64)], cpus: &str) -> Layout {
        Layout {
            nodes: (nodes.iter())
                .map(|&(node, mib)| (NodeId(node), Bytes::from_mib(mib)))
                .collect(),
            cpus: cpus.into(),
        }
    }

    #[test]
    fn nodes_sizes_and_cpus_that_change_are_named() {
        let before = of(&[(0, 1024), (1, 1024)], "0-3");
        assert!(
            before.is_like(&of(&[(0, 1000), (1, 1024)], "0-3")),
            "a balloon"
        );
        for (now, words) in [
            (
                of(&[(0, 1024), (1, 1024), (2, 64)], "0-3"),
                "memory came online on node 2",
            ),
            (of(&[(0, 1024)], "0-3"), "node 1 has no memory any more"),
            (
                of(&[(0, 1024), (1, 4096)], "0-3"),
                "node 1 has 4.0 GiB instead of 1.0 GiB",
            ),
            (
                of(&[(0, 1024), (1, 1024)], "0-2"),
                "CPUs 0-2 are online instead of 0-3",
            ),
        ] {
            assert!(!now.is_like(&before) && !before.is_like(&now));
            assert_eq!(before.change(&now), words);
        }
    }

    #[test]
    fn tiers_lose_nodes_that_went() {
        let tier = |name: &str, nodes: &[u32]| Tier {
            name: name.into(),
            nodes: nodes.iter().copied().map(NodeId).collect(),
            capacity: None,
            latency: None,
        };
        let now = of(&[(0, 1), (2, 1)], "0");
        let kept = now.keep(vec![tier("a", &[0, 1]), tier("b", &[3]), tier("c", &[2])]);
        assert_eq!(kept, [tier("a", &[0]), tier("c", &[2])]);
    }

    #[test]
    fn a_machine_is_read_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join("sys/devices/system").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let root = Root::at(dir.path());
        assert_eq!(layout(&root), Layout::default());
        put("node/has_memory", "0-1\n");
        put("node/node0/meminfo", "Node 0 MemTotal: 1048576 kB\n");
        // Listed, and nothing of it is online.
        put("node/node1/meminfo", "Node 1 MemTotal: 0 kB\n");
        put("cpu/online", "0-3\n");
        assert_eq!(layout(&root), of(&[(0, 1024)], "0-3"));
    }
}
