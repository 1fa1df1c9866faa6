//! Tiers, and how each socket sees them.
//!
//! A **tier** is a machine-wide name for a set of memory nodes. How fast it is
//! depends on who asks: a node's own DRAM is the first tier for its CPUs and
//! the second for the other socket's (HM-Keeper §1.3, "NUMA"). So a table
//! holds, for each pair of *initiator* (a node with CPUs) and memory node,
//! latency and bandwidth with the source of each figure, and a target gets a
//! [`TierView`]: the nodes by mean latency, weighted with the share of its CPU
//! time that it spent on each initiator.
//!
//! Nodes whose mean latency differs by less than [`SAME_RANK`] share a rank: a
//! program that runs on both sockets evenly has no reason to move data from
//! one socket's DRAM to the other's.

use serde::{Deserialize, Serialize};

use crate::units::{Bandwidth, Bytes, Nanos, NodeId, TierId};

/// Relative difference of latency below which two nodes share a rank. HMAT and
/// SLIT figures are no better than that.
pub const SAME_RANK: f64 = 0.05;

/// Where a figure comes from, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// `[[tiers]]` of the configuration.
    Config,
    /// The firmware's HMAT through `/sys/devices/system/node/*/access0`.
    Sysfs,
    /// hwloc's memory attributes.
    Hwloc,
    /// A figure of the nearest initiator, or of the initiator's own memory, scaled by the
    /// SLIT distances.
    ScaledByDistance,
    /// Nothing but the SLIT distance, with 10 taken for [`LOCAL_LATENCY`].
    Distance,
}

/// Latency that a SLIT distance of 10 stands for where firmware says nothing
/// better: local DDR4 to DDR5, 85 to 115 ns.
pub const LOCAL_LATENCY: Nanos = Nanos(100);

/// A figure with its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figure<T> {
    /// The figure.
    pub value: T,
    /// Where it comes from.
    pub source: Source,
}

/// What kind of memory a node is, as far as it can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryKind {
    /// Beside CPUs.
    Dram,
    /// Persistent memory used as system memory.
    Pmm,
    /// Behind a CXL link.
    Cxl,
    /// On the package, faster than DRAM.
    Hbm,
    /// Without CPUs, and nothing tells what it is.
    Unknown,
    /// An accelerator's own memory. Its driver may want it back whole: it is used only
    /// where a tier names it.
    Device,
}

impl MemoryKind {
    /// The beginning of a discovered tier's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dram => "dram",
            Self::Pmm => "pmm",
            Self::Cxl => "cxl",
            Self::Hbm => "hbm",
            Self::Unknown => "mem",
            Self::Device => "device",
        }
    }
}

/// A tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tier {
    /// Its name in configuration and metrics: unique.
    pub name: String,
    /// Its nodes, ascending, at least one. A node is in one tier at most.
    pub nodes: Vec<NodeId>,
    /// At most so much of it is used for targets; `None`: all that is free.
    pub capacity: Option<Bytes>,
    /// Read latency as the nearest CPUs see it, where the operator says. It is in the
    /// paths of the table already.
    #[serde(skip)]
    pub latency: Option<Nanos>,
}

/// A node with memory, or with CPUs, or with both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Which.
    pub id: NodeId,
    /// What kind of memory.
    pub kind: MemoryKind,
    /// All its memory; zero where there are only CPUs.
    pub size: Bytes,
    /// Its CPUs, ascending; empty for memory only.
    pub cpus: Vec<u32>,
    /// The kernel's own tier (`memory_tierN`), where it has one.
    pub kernel_tier: Option<u32>,
}

/// What one initiator sees of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Path {
    /// A node with CPUs.
    pub from: NodeId,
    /// A node with memory.
    pub to: NodeId,
    /// The kernel's SLIT distance: 10 is local.
    pub distance: u32,
    /// Read latency.
    pub latency: Figure<Nanos>,
    /// Read bandwidth, where anybody says.
    pub bandwidth: Option<Figure<Bandwidth>>,
}

/// The memory of one machine. Unchecked: [`TierTable::new`] checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Parts")]
pub struct TierTable {
    tiers: Vec<Tier>,
    nodes: Vec<Node>,
    paths: Vec<Path>,
    /// The tier of each node: it is asked for a million regions.
    #[serde(skip)]
    by_node: Vec<(NodeId, TierId)>,
}

/// A table that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TierTableError {
    /// A tier names a node that the machine does not have.
    #[error(
        "tier \"{tier}\" names node {node}, which this machine does not have: it has {present}"
    )]
    NoSuchNode {
        /// The tier.
        tier: String,
        /// The node.
        node: NodeId,
        /// The nodes with memory.
        present: String,
    },
    /// A node is in two tiers.
    #[error(
        "node {node} is in tier \"{first}\" and in tier \"{second}\": a node belongs to one tier"
    )]
    NodeTwice {
        /// The node.
        node: NodeId,
        /// One tier.
        first: String,
        /// The other.
        second: String,
    },
    /// Two tiers of one name.
    #[error("two tiers are named \"{0}\": names are unique")]
    NameTwice(String),
    /// A tier without nodes.
    #[error("tier \"{0}\" has no nodes")]
    Empty(String),
    /// No memory at all.
    #[error("no node with memory was found")]
    NoNodes,
    /// More of something than a kernel can have.
    #[error("{count} {what}: a machine has {most} at most")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
        /// And how many there can be.
        most: usize,
    },
}

/// Nodes that a kernel can have (`CONFIG_NODES_SHIFT` is 10 at most).
const NODES_MOST: usize = 1024;

/// A table that somebody else wrote, not checked yet.
#[derive(Deserialize)]
struct Parts {
    tiers: Vec<Tier>,
    nodes: Vec<Node>,
    paths: Vec<Path>,
}

impl TryFrom<Parts> for TierTable {
    type Error = TierTableError;

    fn try_from(parts: Parts) -> Result<Self, TierTableError> {
        let named = |tier: &Tier| tier.nodes.len();
        for (what, count, most) in [
            ("nodes", parts.nodes.len(), NODES_MOST),
            ("tiers", parts.tiers.len(), NODES_MOST),
            (
                "nodes in tiers",
                parts.tiers.iter().map(named).sum(),
                NODES_MOST,
            ),
            ("paths", parts.paths.len(), NODES_MOST * NODES_MOST),
        ] {
            if count > most {
                return Err(TierTableError::TooMany { what, count, most });
            }
        }
        Self::new(parts.tiers, parts.nodes, parts.paths)
    }
}

impl TierTable {
    /// A checked table. Nodes that are in no tier are never moved to or from.
    ///
    /// # Errors
    /// When tiers and nodes contradict each other.
    pub fn new(
        tiers: Vec<Tier>,
        mut nodes: Vec<Node>,
        paths: Vec<Path>,
    ) -> Result<Self, TierTableError> {
        nodes.sort_by_key(|n| n.id);
        let has_memory = |n: &&Node| !n.size.is_zero();
        if !nodes.iter().any(|n| has_memory(&n)) {
            return Err(TierTableError::NoNodes);
        }
        for (i, tier) in tiers.iter().enumerate() {
            if tier.nodes.is_empty() {
                return Err(TierTableError::Empty(tier.name.clone()));
            }
            if tiers[..i].iter().any(|t| t.name == tier.name) {
                return Err(TierTableError::NameTwice(tier.name.clone()));
            }
            for &node in &tier.nodes {
                let mut with_memory = nodes.iter().filter(has_memory);
                if !with_memory.any(|n| n.id == node) {
                    let present = nodes.iter().filter(has_memory);
                    let present: Vec<String> = present.map(|n| n.id.to_string()).collect();
                    return Err(TierTableError::NoSuchNode {
                        tier: tier.name.clone(),
                        node,
                        present: present.join(", "),
                    });
                }
                if let Some(other) = tiers[..i].iter().find(|t| t.nodes.contains(&node)) {
                    return Err(TierTableError::NodeTwice {
                        node,
                        first: other.name.clone(),
                        second: tier.name.clone(),
                    });
                }
            }
        }
        let by_node = tiers.iter().zip(0..).flat_map(|(tier, id)| {
            let nodes = tier.nodes.iter();
            nodes.map(move |&node| (node, TierId(id)))
        });
        Ok(Self {
            by_node: by_node.collect(),
            tiers,
            nodes,
            paths,
        })
    }

    /// One tier per node, named after its kind and number: `dram0`, `cxl3`. Nodes without
    /// memory and accelerators' own memory are in none.
    pub fn default_tiers(nodes: &[Node]) -> Vec<Tier> {
        let mut tiers: Vec<Tier> = nodes
            .iter()
            .filter(|n| n.kind != MemoryKind::Device && !n.size.is_zero())
            .map(|n| Tier {
                name: format!("{}{}", n.kind.as_str(), n.id),
                nodes: vec![n.id],
                capacity: None,
                latency: None,
            })
            .collect();
        tiers.sort_by_key(|t| t.nodes[0]);
        tiers
    }

    /// All tiers, by [`TierId`].
    pub fn tiers(&self) -> &[Tier] {
        &self.tiers
    }

    /// All nodes, ascending; some may be in no tier.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The nodes that are in a tier, ascending: no other is moved to or from.
    pub fn used(&self) -> impl Iterator<Item = &Node> {
        (self.nodes.iter()).filter(|node| self.tier_of(node.id).is_some())
    }

    /// All paths.
    pub fn paths(&self) -> &[Path] {
        &self.paths
    }

    /// Every tier's id.
    pub fn ids(&self) -> impl Iterator<Item = TierId> + use<> {
        (0..u16::try_from(self.tiers.len()).unwrap_or(u16::MAX)).map(TierId)
    }

    /// The tier that a node is in.
    pub fn tier_of(&self, node: NodeId) -> Option<TierId> {
        let mut found = self.by_node.iter();
        found.find(|(n, _)| *n == node).map(|(_, tier)| *tier)
    }

    /// A tier's name.
    ///
    /// # Panics
    /// When `tier` is not of this table.
    pub fn name(&self, tier: TierId) -> &str {
        &self.tiers[tier.index()].name
    }

    /// What `from` sees of `to`.
    pub fn path(&self, from: NodeId, to: NodeId) -> Option<&Path> {
        self.paths.iter().find(|p| p.from == from && p.to == to)
    }

    /// Nodes with CPUs.
    pub fn initiators(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|n| !n.cpus.is_empty())
    }

    /// The node that a CPU belongs to.
    pub fn node_of_cpu(&self, cpu: u32) -> Option<NodeId> {
        self.initiators()
            .find(|n| n.cpus.contains(&cpu))
            .map(|n| n.id)
    }

    /// The tiers as a program sees them that spends `cpu_share` of its CPU
    /// time on each initiator, on the nodes that it may use (`None`: all).
    /// Shares need not sum to one; without any, all initiators count alike.
    pub fn view(&self, cpu_share: &[(NodeId, f64)], allowed: Option<&[NodeId]>) -> TierView {
        let known: Vec<(NodeId, f64)> = cpu_share
            .iter()
            .copied()
            .filter(|&(n, w)| w > 0.0 && self.paths.iter().any(|p| p.from == n))
            .collect();
        let weights = if known.is_empty() {
            self.initiators().map(|n| (n.id, 1.0)).collect()
        } else {
            known
        };
        let total: f64 = weights.iter().map(|&(_, w)| w).sum();
        let nodes: Vec<(f64, NodeId, bool)> = self
            .nodes
            .iter()
            .filter(|n| self.tier_of(n.id).is_some())
            .filter(|n| allowed.is_none_or(|a| a.contains(&n.id)))
            .map(|n| {
                let sum: f64 = weights
                    .iter()
                    .map(|&(from, w)| {
                        let latency = self
                            .path(from, n.id)
                            .map_or(LOCAL_LATENCY, |p| p.latency.value);
                        w * latency.0 as f64
                    })
                    .sum();
                let latency = sum / total.max(f64::MIN_POSITIVE);
                (latency, n.id, !n.cpus.is_empty())
            })
            .collect();
        TierView::of(ranked(nodes))
    }
}

/// Nodes with the latency of each, and whether it has CPUs, in ranks.
fn ranked(mut nodes: Vec<(f64, NodeId, bool)>) -> Vec<Rank> {
    nodes.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut ranks: Vec<Rank> = Vec::new();
    for (latency_ns, node, has_cpus) in nodes {
        match ranks.last_mut() {
            Some(rank) if latency_ns <= rank.latency_ns * (1.0 + SAME_RANK) => {
                rank.nodes.push(node);
                rank.has_cpus |= has_cpus;
            }
            _ => ranks.push(Rank {
                nodes: vec![node],
                latency_ns,
                has_cpus,
            }),
        }
    }
    ranks
}

/// Nodes that are equally fast for somebody.
#[derive(Clone, Debug, PartialEq)]
pub struct Rank {
    /// Nearest first.
    pub nodes: Vec<NodeId>,
    /// Mean read latency of the nearest, in nanoseconds.
    pub latency_ns: f64,
    /// Whether one of them has CPUs of its own.
    pub has_cpus: bool,
}

/// The nodes that a program may use, fastest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TierView {
    ranks: Vec<Rank>,
    /// The rank of each node: it is asked for a million regions.
    by_node: Vec<(NodeId, usize)>,
}

impl TierView {
    fn of(ranks: Vec<Rank>) -> Self {
        let by_node = ranks.iter().enumerate().flat_map(|(at, rank)| {
            let nodes = rank.nodes.iter();
            nodes.map(move |&node| (node, at))
        });
        Self {
            by_node: by_node.collect(),
            ranks,
        }
    }

    /// Ranks, fastest first.
    pub fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    /// The rank of a node, 0 the fastest; `None` for one that may not be used.
    pub fn rank_of(&self, node: NodeId) -> Option<usize> {
        let mut found = self.by_node.iter();
        found.find(|(n, _)| *n == node).map(|(_, rank)| *rank)
    }

    /// The same while some nodes answer so many times as late as when idle: which is fastest
    /// now, and how fast.
    #[must_use]
    pub fn under_load(&self, loaded: &[(NodeId, f64)]) -> Self {
        let factor = |node: NodeId| {
            let mut found = loaded.iter();
            found.find(|(n, _)| *n == node).map_or(1.0, |(_, f)| *f)
        };
        let nodes = self.ranks.iter().flat_map(|rank| {
            let nodes = rank.nodes.iter();
            nodes.map(|&node| (rank.latency_ns * factor(node), node, rank.has_cpus))
        });
        Self::of(ranked(nodes.collect()))
    }

    /// Whether there is any other place to go.
    pub fn is_flat(&self) -> bool {
        self.ranks.len() < 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: u32, cpus: &[u32]) -> Node {
        Node {
            id: NodeId(id),
            kind: if cpus.is_empty() {
                MemoryKind::Unknown
            } else {
                MemoryKind::Dram
            },
            size: Bytes::from_mib(1024),
            cpus: cpus.to_vec(),
            kernel_tier: None,
        }
    }

    /// HM-Keeper's Optane machine (§1.6): 90, 145, 275, 340 ns, mirrored.
    fn optane() -> TierTable {
        let nodes = vec![node(0, &[0]), node(1, &[1]), node(2, &[]), node(3, &[])];
        let ns = [[90, 145, 275, 340], [145, 90, 340, 275]];
        let mut paths = Vec::new();
        for (from, row) in (0..).zip(ns) {
            for (to, value) in (0..).zip(row) {
                paths.push(Path {
                    from: NodeId(from),
                    to: NodeId(to),
                    distance: 10,
                    latency: Figure {
                        value: Nanos(value),
                        source: Source::Sysfs,
                    },
                    bandwidth: None,
                });
            }
        }
        TierTable::new(TierTable::default_tiers(&nodes), nodes, paths).unwrap()
    }

    fn order(view: &TierView) -> Vec<Vec<u32>> {
        view.ranks()
            .iter()
            .map(|r| r.nodes.iter().map(|n| n.0).collect())
            .collect()
    }

    #[test]
    fn each_socket_ranks_for_itself() {
        let table = optane();
        let first = table.view(&[(NodeId(0), 1.0)], None);
        assert_eq!(order(&first), [[0], [1], [2], [3]]);
        let second = table.view(&[(NodeId(1), 1.0)], None);
        assert_eq!(order(&second), [[1], [0], [3], [2]]);
    }

    #[test]
    fn nodes_joined_in_one_tier_are_still_told_apart() {
        let apart = optane();
        let joined = vec![Tier {
            name: "all".into(),
            nodes: apart.nodes().iter().map(|n| n.id).collect(),
            capacity: None,
            latency: None,
        }];
        let table = TierTable::new(joined, apart.nodes().to_vec(), apart.paths().to_vec()).unwrap();
        assert_eq!(table.tiers().len(), 1);
        let view = table.view(&[(NodeId(0), 1.0)], None);
        assert_eq!(order(&view), [[0], [1], [2], [3]]);
        assert!(!view.is_flat());
    }

    #[test]
    fn a_program_on_both_sockets_sees_two_ranks() {
        let view = optane().view(&[(NodeId(0), 0.5), (NodeId(1), 0.5)], None);
        assert_eq!(order(&view), [vec![0, 1], vec![2, 3]]);
        // Without knowing where it runs it is the same.
        assert_eq!(order(&optane().view(&[], None)), [vec![0, 1], vec![2, 3]]);
    }

    #[test]
    fn a_cpuset_hides_nodes() {
        let view = optane().view(&[(NodeId(0), 1.0)], Some(&[NodeId(1), NodeId(3)]));
        assert_eq!(order(&view), [[1], [3]]);
        assert_eq!(view.rank_of(NodeId(0)), None);
    }

    #[test]
    fn a_node_whose_bandwidth_is_exhausted_is_not_the_fastest() {
        let view = optane().view(&[(NodeId(0), 1.0)], None);
        let loaded = view.under_load(&[(NodeId(0), 2.0), (NodeId(2), 1.25)]);
        assert_eq!(order(&loaded), [vec![1], vec![0], vec![3, 2]]);
        let latencies: Vec<f64> = loaded.ranks().iter().map(|r| r.latency_ns).collect();
        assert_eq!(latencies, [145.0, 180.0, 340.0]);
        assert_eq!(view.under_load(&[]), view);
    }

    #[test]
    fn contradictions_are_named() {
        let nodes = || vec![node(0, &[0]), node(2, &[])];
        let tier = |name: &str, ids: &[u32]| Tier {
            name: name.into(),
            nodes: ids.iter().copied().map(NodeId).collect(),
            capacity: None,
            latency: None,
        };
        let error = |tiers| {
            TierTable::new(tiers, nodes(), vec![])
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            error(vec![tier("fast", &[7])]),
            "tier \"fast\" names node 7, which this machine does not have: it has 0, 2"
        );
        assert!(error(vec![tier("a", &[0]), tier("b", &[0])]).contains("belongs to one tier"));
        assert!(error(vec![tier("a", &[0]), tier("a", &[2])]).contains("unique"));
        assert!(error(vec![tier("a", &[])]).contains("no nodes"));
    }
}
