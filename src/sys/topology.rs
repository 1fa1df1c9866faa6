//! Which tiers there are: sysfs and hwloc, checked against each other.
//!
//! **Problem.** The firmware's HMAT, as sysfs shows it, says how fast a node
//! is only for its *nearest* initiators; a second socket's view is missing.
//!
//! **Approach.** For each pair (node with CPUs, node with memory) the best
//! source that has it, and the figure says which one it was:
//!
//! 1. sysfs: `access1` (nearest initiators with CPUs), then `access0`;
//! 2. hwloc's memory attributes for the initiator's CPUs;
//! 3. the figure of the nearest initiator, times the ratio of the SLIT
//!    distances (bandwidth: divided by it);
//! 4. the initiator's figure for its own memory, times the SLIT distance over 10;
//! 5. the SLIT distance alone, with 10 taken for [`LOCAL_LATENCY`].
//!
//! Where both sysfs and hwloc speak and differ, sysfs wins and a warning says so.
//! Figures that cannot be are dropped, and those that contradict each other are weighed
//! ([`doubt`]). Distances that tell nothing apart are helped by the kernel's own tiers.
//! What the operator says in `[[tiers]]` comes last and wins ([`order`]).
//!
//! A node with CPUs and no memory ranks the others by its own figures. An accelerator's
//! own memory is in no tier unless one names it ([`device`]).
//!
//! hwloc of the host is never asked about a machine below another [`Root`].

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::root::Root;
use crate::ports::{PortError, Topology};
use crate::tiering::tier::{
    Figure, LOCAL_LATENCY, MemoryKind, Node, Path, SAME_RANK, Source, Tier, TierTable,
};
use crate::units::{Bandwidth, Nanos, NodeId};

mod change;
mod device;
mod doubt;
#[cfg(feature = "hwloc")]
mod hwloc;
mod order;
mod sysfs;

pub use change::{Layout, layout};

/// SLIT distance of a node to itself.
const LOCAL_DISTANCE: u32 = 10;
/// SLIT distance that the kernel assumes between nodes when firmware is silent.
const REMOTE_DISTANCE: u32 = 20;
/// A memory-only node with so many times the bandwidth of its initiator's own
/// memory sits on the package: HBM has two to eight times that of DRAM.
const HBM_BANDWIDTH_RATIO: u64 = 2;

/// What an initiator reads of a node, where somebody says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reading {
    latency: Option<Nanos>,
    bandwidth: Option<Bandwidth>,
}

/// Readings by (initiator, node).
type Readings = BTreeMap<(NodeId, NodeId), Reading>;

/// What one source tells about the machine.
#[derive(Clone, Debug, Default)]
struct Facts {
    nodes: Vec<Node>,
    distances: BTreeMap<(NodeId, NodeId), u32>,
    readings: Readings,
    /// Nodes that no tier gets by itself, each with the reason.
    left_out: Vec<(NodeId, String)>,
    warnings: Vec<String>,
}

impl Facts {
    fn distance(&self, from: NodeId, to: NodeId) -> u32 {
        let assumed = if from == to {
            LOCAL_DISTANCE
        } else {
            REMOTE_DISTANCE
        };
        self.distances.get(&(from, to)).copied().unwrap_or(assumed)
    }

    fn initiators(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes
            .iter()
            .filter(|n| !n.cpus.is_empty())
            .map(|n| n.id)
    }

    /// Says which nodes with memory no tier has, though none was named by hand.
    fn tell_left_out(&mut self, tiers: &[Tier]) {
        for (node, why) in &self.left_out {
            if !tiers.iter().any(|tier| tier.nodes.contains(node)) {
                self.warnings.push(left_out_text(*node, why));
            }
        }
    }

    /// Nodes with memory.
    fn memory(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|n| !n.size.is_zero())
    }
}

fn left_out_text(node: NodeId, why: &str) -> String {
    format!("node {node} is left out: {why}; name it in [[tiers]] to use it")
}

/// What is said of each node below `root` that is left out.
///
/// # Errors
/// When the nodes cannot be read.
pub fn left_out(root: &Root) -> Result<Vec<(NodeId, String)>, PortError> {
    let facts = sysfs::read(root)?;
    let all = facts.left_out.iter();
    Ok(all
        .map(|(node, why)| (*node, left_out_text(*node, why)))
        .collect())
}

/// Where the facts come from.
#[derive(Clone, Debug)]
enum Origin {
    Kernel(Root),
    Xml(PathBuf),
}

/// The machine's memory below `root`.
#[derive(Clone, Debug)]
pub struct SysTopology {
    origin: Origin,
    tiers: Option<Vec<Tier>>,
}

impl SysTopology {
    /// With the tiers that the configuration names; `None`: one per node.
    pub fn new(root: &Root, tiers: Option<Vec<Tier>>) -> Self {
        Self {
            origin: Origin::Kernel(root.clone()),
            tiers,
        }
    }

    /// A machine that `lstopo` exported to an XML file (needs the feature
    /// `hwloc`). One tier per node.
    pub fn from_xml(path: impl Into<PathBuf>) -> Self {
        Self {
            origin: Origin::Xml(path.into()),
            tiers: None,
        }
    }

    /// The same machine with these tiers; `None`: one per node.
    #[must_use]
    pub fn with_tiers(self, tiers: Option<Vec<Tier>>) -> Self {
        Self { tiers, ..self }
    }

    /// The table, and what an operator should know about it: sources that
    /// contradict each other, nodes that were left out.
    ///
    /// # Errors
    /// When the nodes cannot be read, or the tiers name what is not there.
    pub fn read_with_warnings(&self) -> Result<(TierTable, Vec<String>), PortError> {
        let (mut facts, mut second) = match &self.origin {
            Origin::Kernel(root) => {
                let mut facts = sysfs::read(root)?;
                let second = host_hwloc(root, &mut facts);
                (facts, second)
            }
            Origin::Xml(path) => (xml(path)?, Readings::new()),
        };
        let source = match &self.origin {
            Origin::Kernel(_) => Source::Sysfs,
            Origin::Xml(_) => Source::Hwloc,
        };
        compare(&mut facts, &second);
        doubt::weed(&mut facts, &mut second);
        let mut paths = paths(&facts, source, &second);
        find_hbm(&mut facts.nodes, &paths);
        order::hint(&mut facts, &mut paths);
        let tiers = if let Some(tiers) = &self.tiers {
            order::obey(tiers, &mut facts, &mut paths);
            tiers.clone()
        } else {
            TierTable::default_tiers(&facts.nodes)
        };
        facts.tell_left_out(&tiers);
        let table =
            TierTable::new(tiers, facts.nodes, paths).map_err(|e| PortError::Malformed {
                what: "tiers".into(),
                detail: e.to_string(),
            })?;
        Ok((table, facts.warnings))
    }
}

impl Topology for SysTopology {
    fn read(&self) -> Result<TierTable, PortError> {
        self.read_with_warnings().map(|(table, _)| table)
    }
}

#[cfg(feature = "hwloc")]
fn host_hwloc(root: &Root, facts: &mut Facts) -> Readings {
    if *root != Root::host() {
        return Readings::new();
    }
    match hwloc::host_readings(&facts.nodes) {
        Ok(readings) => readings,
        Err(why) => {
            // sysfs alone is enough to go on.
            facts.warnings.push(format!("hwloc: {why}"));
            Readings::new()
        }
    }
}

#[cfg(not(feature = "hwloc"))]
fn host_hwloc(_root: &Root, _facts: &mut Facts) -> Readings {
    Readings::new()
}

#[cfg(feature = "hwloc")]
fn xml(path: &std::path::Path) -> Result<Facts, PortError> {
    hwloc::xml_facts(path)
}

#[cfg(not(feature = "hwloc"))]
fn xml(path: &std::path::Path) -> Result<Facts, PortError> {
    Err(PortError::Missing {
        what: format!("reading {}", path.display()),
        remedy: "build hmkeeper with the feature \"hwloc\"".into(),
    })
}

/// Warns where both sources speak and do not agree.
fn compare(facts: &mut Facts, second: &Readings) {
    fn differ(a: u64, b: u64) -> bool {
        (a as f64 - b as f64).abs() > SAME_RANK * a.max(b) as f64
    }
    for (&(from, to), first) in &facts.readings {
        let Some(other) = second.get(&(from, to)) else {
            continue;
        };
        if let (Some(a), Some(b)) = (first.latency, other.latency)
            && differ(a.0, b.0)
        {
            facts.warnings.push(format!(
                "latency from node {from} to node {to}: sysfs says {} ns, hwloc {} ns; sysfs is used",
                a.0, b.0
            ));
        }
        if let (Some(a), Some(b)) = (first.bandwidth, other.bandwidth)
            && differ(a.0, b.0)
        {
            facts.warnings.push(format!(
                "bandwidth from node {from} to node {to}: sysfs says {} MB/s, hwloc {} MB/s; sysfs is used",
                a.0 / 1_000_000,
                b.0 / 1_000_000
            ));
        }
    }
}

/// One path for every pair of initiator and node.
fn paths(facts: &Facts, source: Source, second: &Readings) -> Vec<Path> {
    let initiators: Vec<NodeId> = facts.initiators().collect();
    // The best direct figure of a pair.
    let latency = |pair: (NodeId, NodeId)| -> Option<Figure<Nanos>> {
        let of = |r: &Readings| r.get(&pair).and_then(|r| r.latency);
        of(&facts.readings)
            .map(|value| Figure { value, source })
            .or_else(|| {
                of(second).map(|value| Figure {
                    value,
                    source: Source::Hwloc,
                })
            })
    };
    let bandwidth = |pair: (NodeId, NodeId)| -> Option<Figure<Bandwidth>> {
        let of = |r: &Readings| r.get(&pair).and_then(|r| r.bandwidth);
        of(&facts.readings)
            .map(|value| Figure { value, source })
            .or_else(|| {
                of(second).map(|value| Figure {
                    value,
                    source: Source::Hwloc,
                })
            })
    };
    let mut paths = Vec::with_capacity(initiators.len() * facts.nodes.len());
    for &from in &initiators {
        for to in facts.memory().map(|n| n.id) {
            let distance = facts.distance(from, to);
            // The nearest of the others that has a figure, if this one has none.
            let nearest = |has: &dyn Fn(NodeId) -> bool| {
                initiators
                    .iter()
                    .copied()
                    .filter(|&i| has(i))
                    .min_by_key(|&i| (facts.distance(i, to), i))
            };
            let scaled_latency = || {
                let near = nearest(&|i| latency((i, to)).is_some())?;
                let value = latency((near, to))?.value.0;
                Some(Figure {
                    value: Nanos(scale(value, distance, facts.distance(near, to))),
                    source: Source::ScaledByDistance,
                })
            };
            // Firmware that describes only some nodes: in one scale with these.
            let from_own = || {
                let own = latency((from, from))?.value.0;
                Some(Figure {
                    value: Nanos(scale(own, distance, facts.distance(from, from))),
                    source: Source::ScaledByDistance,
                })
            };
            let scaled_bandwidth = || {
                let near = nearest(&|i| bandwidth((i, to)).is_some())?;
                let value = bandwidth((near, to))?.value.0;
                Some(Figure {
                    value: Bandwidth(scale(value, facts.distance(near, to), distance)),
                    source: Source::ScaledByDistance,
                })
            };
            paths.push(Path {
                from,
                to,
                distance,
                latency: latency((from, to))
                    .or_else(scaled_latency)
                    .or_else(from_own)
                    .unwrap_or(Figure {
                        value: Nanos(scale(LOCAL_LATENCY.0, distance, LOCAL_DISTANCE)),
                        source: Source::Distance,
                    }),
                bandwidth: bandwidth((from, to)).or_else(scaled_bandwidth),
            });
        }
    }
    paths
}

/// `value × by / of`, rounded down; distances are at most 255.
fn scale(value: u64, by: u32, of: u32) -> u64 {
    value.saturating_mul(u64::from(by)) / u64::from(of.max(1))
}

/// Names memory-only nodes that are much wider than their initiator's own.
fn find_hbm(nodes: &mut [Node], paths: &[Path]) {
    let direct = |from: NodeId, to: NodeId| {
        paths
            .iter()
            .find(|p| p.from == from && p.to == to)
            .and_then(|p| p.bandwidth)
            .filter(|b| b.source != Source::ScaledByDistance)
            .map(|b| b.value.0)
    };
    let hbm: Vec<NodeId> = nodes
        .iter()
        .filter(|n| n.kind == MemoryKind::Unknown)
        .filter(|n| {
            paths.iter().filter(|p| p.to == n.id).any(|p| {
                match (direct(p.from, n.id), direct(p.from, p.from)) {
                    (Some(there), Some(own)) => there >= own.saturating_mul(HBM_BANDWIDTH_RATIO),
                    _ => false,
                }
            })
        })
        .map(|n| n.id)
        .collect();
    for node in nodes.iter_mut().filter(|n| hbm.contains(&n.id)) {
        node.kind = MemoryKind::Hbm;
    }
}

#[cfg(test)]
mod tests;
