//! What sysfs tells: nodes, sizes, CPUs, SLIT, HMAT, the kernel's own tiers.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::{Facts, Reading, device};
use crate::ports::PortError;
use crate::sys::root::Root;
use crate::sys::text;
use crate::tiering::tier::{MemoryKind, Node};
use crate::units::{Bandwidth, Nanos, NodeId};

pub(super) const NODES: &str = "devices/system/node";
const TIERS: &str = "devices/virtual/memory_tiering";

/// Reads everything. A file that firmware or kernel does not provide is a
/// gap; only the list of nodes must be there.
pub(super) fn read(root: &Root) -> Result<Facts, PortError> {
    let online = text::read_list(&root.sys(NODES).join("online"))?;
    let has_memory =
        text::read_list(&root.sys(NODES).join("has_memory")).unwrap_or_else(|_| online.clone());
    let kernel_tiers = kernel_tiers(root);
    let kinds = dax_kinds(root);
    let mut facts = Facts::default();
    for &id in &online {
        let dir = root.sys(NODES).join(format!("node{id}"));
        let node = NodeId(id);
        distances(&dir, node, &online, &mut facts)?;
        let cpus = text::read_list(&dir.join("cpulist")).unwrap_or_default();
        let size = if has_memory.contains(&id) {
            let path = dir.join("meminfo");
            let meminfo = text::read(&path)?;
            text::kib_field(&meminfo, "MemTotal").ok_or_else(|| PortError::Malformed {
                what: path.display().to_string(),
                detail: "no line \"MemTotal\"".into(),
            })?
        } else {
            crate::units::Bytes::ZERO
        };
        if size.is_zero() && cpus.is_empty() {
            continue;
        }
        if !size.is_zero() {
            readings(&dir, node, &mut facts);
        }
        facts.nodes.push(Node {
            id: node,
            kind: match kinds.get(&node) {
                Some(&Some(kind)) => kind,
                _ if cpus.is_empty() => MemoryKind::Unknown,
                _ => MemoryKind::Dram,
            },
            size,
            cpus,
            kernel_tier: kernel_tiers.get(&node).copied(),
        });
    }
    let of_dax: Vec<NodeId> = kinds.into_keys().collect();
    device::find(root, &of_dax, &mut facts);
    Ok(facts)
}

/// The row of the SLIT: one number for each online node, in order.
fn distances(dir: &Path, from: NodeId, online: &[u32], facts: &mut Facts) -> Result<(), PortError> {
    let path = dir.join("distance");
    let Ok(text) = fs::read_to_string(&path) else {
        return Ok(());
    };
    let row: Option<Vec<u32>> = text.split_whitespace().map(|d| d.parse().ok()).collect();
    match row {
        Some(row) if row.len() == online.len() => {
            let pairs = online.iter().map(|&to| (from, NodeId(to)));
            facts.distances.extend(pairs.zip(row));
            Ok(())
        }
        _ => Err(PortError::Malformed {
            what: path.display().to_string(),
            detail: format!(
                "{:?} is not one distance for each of the {} online nodes",
                text.trim(),
                online.len()
            ),
        }),
    }
}

/// HMAT figures. `access1` counts CPUs only; `access0` may name an
/// accelerator as the nearest, so it comes second.
fn readings(dir: &Path, to: NodeId, facts: &mut Facts) {
    for class in ["access1", "access0"] {
        let initiators = dir.join(class).join("initiators");
        // The kernel writes 0 for what the HMAT leaves out.
        let figure = |name| text::read_number(&initiators.join(name)).filter(|&v| v > 0);
        let reading = Reading {
            latency: figure("read_latency").map(Nanos),
            bandwidth: figure("read_bandwidth").map(Bandwidth::from_mb_per_s),
        };
        if reading == Reading::default() {
            continue;
        }
        let Ok(entries) = fs::read_dir(&initiators) else {
            continue;
        };
        for entry in entries.flatten() {
            if let Some(from) = numbered(&entry.file_name().to_string_lossy(), "node") {
                facts.readings.entry((NodeId(from), to)).or_insert(reading);
            }
        }
    }
}

/// `node12` with the prefix `node` is 12.
fn numbered(name: &str, prefix: &str) -> Option<u32> {
    name.strip_prefix(prefix)?.parse().ok()
}

/// The kernel's own tier of each node.
fn kernel_tiers(root: &Root) -> BTreeMap<NodeId, u32> {
    let mut tiers = BTreeMap::new();
    // Absent before Linux 6.1.
    for entry in fs::read_dir(root.sys(TIERS))
        .into_iter()
        .flatten()
        .flatten()
    {
        let Some(tier) = numbered(&entry.file_name().to_string_lossy(), "memory_tier") else {
            continue;
        };
        let nodes = text::read_list(&entry.path().join("nodelist")).unwrap_or_default();
        tiers.extend(nodes.into_iter().map(|n| (NodeId(n), tier)));
    }
    tiers
}

/// What stands behind nodes that a DAX device was turned into: the device's
/// path names the bus. `None` for a device of which it does not.
fn dax_kinds(root: &Root) -> BTreeMap<NodeId, Option<MemoryKind>> {
    let mut kinds: BTreeMap<NodeId, Option<MemoryKind>> = BTreeMap::new();
    for entry in fs::read_dir(root.sys("bus/dax/devices"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let node = text::read_number(&entry.path().join("target_node"))
            .and_then(|n| u32::try_from(n).ok());
        let device = fs::canonicalize(entry.path()).unwrap_or_default();
        let kind = device.components().find_map(|part| {
            let part = part.as_os_str().to_string_lossy();
            if part.starts_with("ndbus") {
                Some(MemoryKind::Pmm)
            } else if part.starts_with("ACPI0017") || part.starts_with("decoder") {
                Some(MemoryKind::Cxl)
            } else {
                None
            }
        });
        if let Some(node) = node {
            let known = kinds.entry(NodeId(node)).or_default();
            *known = known.or(kind);
        }
    }
    kinds
}
