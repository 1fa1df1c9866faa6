//! What hwloc tells: memory attributes, of the host or of an exported machine.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::path::Path;

use hwlocality::Topology as Hwloc;
use hwlocality::cpu::cpuset::CpuSet;
use hwlocality::memory::attribute::MemoryAttribute;
use hwlocality::object::TopologyObject;
use hwlocality::object::types::ObjectType;

use super::{Facts, LOCAL_DISTANCE, Reading, Readings, scale};
use crate::ports::PortError;
use crate::tiering::tier::{MemoryKind, Node};
use crate::units::{Bandwidth, Bytes, Nanos, NodeId};

/// What hwloc says of the host about the nodes that sysfs has found.
pub(super) fn host_readings(nodes: &[Node]) -> Result<Readings, String> {
    let topology = Hwloc::new().map_err(|e| e.to_string())?;
    Ok(readings(&topology, nodes))
}

/// A machine from an XML file of `lstopo`.
pub(super) fn xml_facts(path: &Path) -> Result<Facts, PortError> {
    let malformed = |detail: String| PortError::Malformed {
        what: path.display().to_string(),
        detail,
    };
    let topology = Hwloc::builder()
        .from_xml_file(path)
        .map_err(|e| malformed(e.to_string()))?
        .build()
        .map_err(|e| malformed(e.to_string()))?;
    let mut facts = Facts {
        nodes: numa_nodes(&topology),
        ..Facts::default()
    };
    give_cpus_to_nearest(&topology, &mut facts.nodes);
    facts.readings = readings(&topology, &facts.nodes);
    facts.distances = slit(&topology);
    if facts.distances.is_empty() {
        facts.distances = distances_of(&facts);
    }
    Ok(facts)
}

/// A node's number in the kernel.
fn id(object: &TopologyObject) -> Option<NodeId> {
    u32::try_from(object.os_index()?).ok().map(NodeId)
}

/// All NUMA nodes with memory. Memory without CPUs of its own shows those of
/// the package that it is attached to.
fn numa_nodes(topology: &Hwloc) -> Vec<Node> {
    topology
        .objects_with_type(ObjectType::NUMANode)
        .filter(|object| object.total_memory() > 0)
        .filter_map(|object| {
            let cpus = object.cpuset().map_or_else(Vec::new, |set| {
                set.iter_set()
                    .filter_map(|cpu| u32::try_from(usize::from(cpu)).ok())
                    .collect()
            });
            Some(Node {
                id: id(object)?,
                kind: kind(object),
                size: Bytes(object.total_memory()),
                cpus,
                kernel_tier: None,
            })
        })
        .collect()
}

/// hwloc's guess or annotation of what a node is.
fn kind(object: &TopologyObject) -> MemoryKind {
    match object.subtype().map(CStr::to_bytes) {
        Some(b"HBM" | b"MCDRAM") => MemoryKind::Hbm,
        Some(b"NVM") => MemoryKind::Pmm,
        Some(b"CXL" | b"CXL-DRAM") => MemoryKind::Cxl,
        Some(b"DRAM") => MemoryKind::Dram,
        _ => MemoryKind::Unknown,
    }
}

/// Leaves each CPU with one node: of those that show it the one with the
/// lowest latency from there, then the lowest number. That is its own DRAM.
fn give_cpus_to_nearest(topology: &Hwloc, nodes: &mut [Node]) {
    let all = readings(topology, nodes);
    let own: BTreeMap<NodeId, Nanos> = nodes
        .iter()
        .filter_map(|n| Some((n.id, all.get(&(n.id, n.id))?.latency?)))
        .collect();
    let mut owner: BTreeMap<u32, NodeId> = BTreeMap::new();
    let rank = |n: NodeId| (own.get(&n).copied().unwrap_or(Nanos(u64::MAX)), n);
    for node in nodes.iter().filter(|n| n.kind != MemoryKind::Hbm) {
        for &cpu in &node.cpus {
            let best = owner.entry(cpu).or_insert(node.id);
            if rank(node.id) < rank(*best) {
                *best = node.id;
            }
        }
    }
    for node in nodes.iter_mut() {
        node.cpus.retain(|cpu| owner.get(cpu) == Some(&node.id));
        if !node.cpus.is_empty() && node.kind == MemoryKind::Unknown {
            node.kind = MemoryKind::Dram;
        }
    }
}

/// Latency (ns) and bandwidth (MB/s) from each node's CPUs to each node.
/// Initiators are asked for as cpusets: asked as objects, hwloc 2.9 does not
/// find what was annotated by cpuset.
fn readings(topology: &Hwloc, nodes: &[Node]) -> Readings {
    let latency = MemoryAttribute::latency(topology);
    let bandwidth = MemoryAttribute::bandwidth(topology);
    let mut readings = Readings::new();
    for from in nodes {
        let mut set = CpuSet::new();
        for &cpu in &from.cpus {
            if let Ok(cpu) = usize::try_from(cpu) {
                set.set(cpu);
            }
        }
        if from.cpus.is_empty() {
            continue;
        }
        for object in topology.objects_with_type(ObjectType::NUMANode) {
            let Some(to) = id(object) else { continue };
            // An error means that hwloc does not know this pair.
            let ask = |attribute: &MemoryAttribute<'_>| {
                attribute
                    .value(Some((&set).into()), object)
                    .ok()
                    .flatten()
                    .filter(|&v| v > 0)
            };
            let reading = Reading {
                latency: ask(&latency).map(Nanos),
                bandwidth: ask(&bandwidth).map(Bandwidth::from_mb_per_s),
            };
            if reading != Reading::default() {
                readings.insert((from.id, to), reading);
            }
        }
    }
    readings
}

/// The SLIT, where the export has it.
fn slit(topology: &Hwloc) -> BTreeMap<(NodeId, NodeId), u32> {
    let mut all = BTreeMap::new();
    for matrix in topology
        .distances_with_name("NUMALatency")
        .into_iter()
        .flatten()
    {
        for ((from, to), value) in matrix.enumerate_distances() {
            let object = |index: usize| matrix.objects().nth(index).flatten().and_then(id);
            if let (Some(from), Some(to), Ok(value)) =
                (object(from), object(to), u32::try_from(value))
            {
                all.insert((from, to), value);
            }
        }
    }
    all
}

/// Without a SLIT: distances in the ratio of the latencies, 10 for the
/// initiator's own node.
fn distances_of(facts: &Facts) -> BTreeMap<(NodeId, NodeId), u32> {
    let latency = |from, to| facts.readings.get(&(from, to)).and_then(|r| r.latency);
    facts
        .readings
        .keys()
        .filter_map(|&(from, to)| {
            let own = u32::try_from(latency(from, from)?.0).ok()?;
            let far = scale(latency(from, to)?.0, LOCAL_DISTANCE, own);
            Some(((from, to), u32::try_from(far).ok()?))
        })
        .collect()
}
