//! Nodes whose memory is an accelerator's own.
//!
//! **Problem.** Some GPUs show their memory as NUMA nodes without CPUs (NVIDIA's GB200 and
//! GH200, POWER9). The GPU's programs count on that memory, and the driver
//! takes the node offline when it resets the device. No data of others belongs there.
//!
//! **Approach.** Memory that the DAX driver made a node of is nobody else's: persistent
//! memory, HBM, CXL. Of the other nodes without CPUs it is an accelerator's where
//!
//! 1. `/proc/iomem` says that a driver added it: `System RAM (NVIDIA)`;
//! 2. the firmware puts a device that accesses memory by itself on the same node
//!    (`has_generic_initiator`, ACPI 6.3);
//! 3. the nearest CPUs are [`FAR`], and firmware says nothing better of it.

use std::fs;
use std::ops::RangeInclusive;

use super::sysfs::NODES;
use super::{Facts, LOCAL_DISTANCE};
use crate::sys::root::Root;
use crate::sys::text;
use crate::tiering::tier::MemoryKind;
use crate::units::NodeId;

/// SLIT distance of a GPU's memory on GB200, GH200 and POWER9. That of sockets, persistent
/// memory and CXL is 11 to 40.
const FAR: u32 = 80;
/// Drivers that add memory for everybody (`mm/memory_hotplug.c`: "System RAM (NAME)").
const FOR_EVERYBODY: [&str; 2] = ["kmem", "virtio_mem"];
/// Lines of `/proc/iomem` that are read at most.
const LINES_MOST: usize = 1 << 16;

/// Finds them, and notes why each is one.
pub(super) fn find(root: &Root, of_dax: &[NodeId], facts: &mut Facts) {
    let alone = |n: &crate::tiering::tier::Node| {
        n.cpus.is_empty() && !n.size.is_zero() && !of_dax.contains(&n.id)
    };
    if !facts.nodes.iter().any(alone) {
        return;
    }
    let added = added_by_drivers(root);
    let path = root.sys(NODES).join("has_generic_initiator");
    let initiators = text::read_list(&path).unwrap_or_default();
    let found: Vec<(NodeId, String)> = facts
        .nodes
        .iter()
        .filter(|node| alone(node))
        .filter_map(|node| {
            let id = node.id;
            let driver = added.iter().find(|(_, blocks)| has_block(root, id, blocks));
            let why = if let Some((driver, _)) = driver {
                format!("the driver {driver} added it, so it is a device's own memory")
            } else if initiators.contains(&id.0) {
                "firmware has a device on it that accesses memory (has_generic_initiator), so \
                 it is that device's own memory"
                    .to_owned()
            } else {
                let distance = far(facts, id)?;
                format!(
                    "its SLIT distance of {distance} is that of a GPU's own memory (local is {LOCAL_DISTANCE})"
                )
            };
            Some((id, format!("{} that no CPU is near: {why}", node.size)))
        })
        .collect();
    for (id, why) in found {
        for node in facts.nodes.iter_mut().filter(|n| n.id == id) {
            node.kind = MemoryKind::Device;
        }
        facts.left_out.push((id, why));
    }
}

/// The distance of the nearest CPUs, where it is [`FAR`] and all that is known.
fn far(facts: &Facts, node: NodeId) -> Option<u32> {
    let known = facts.readings.iter().any(|(&(from, to), reading)| {
        to == node && reading.latency.is_some() && facts.initiators().any(|i| i == from)
    });
    let distances = facts.initiators().map(|from| facts.distance(from, node));
    distances.min().filter(|&d| d >= FAR && !known)
}

/// Memory that drivers added, but those that add it for everybody: name and blocks.
fn added_by_drivers(root: &Root) -> Vec<(String, RangeInclusive<u64>)> {
    let size = fs::read_to_string(root.sys("devices/system/memory/block_size_bytes"));
    let size = size
        .ok()
        .and_then(|text| u64::from_str_radix(text.trim(), 16).ok())
        .filter(|&size| size > 0);
    let Some(size) = size else { return Vec::new() };
    let Ok(iomem) = fs::read_to_string(root.proc("iomem")) else {
        return Vec::new();
    };
    let lines = iomem.lines().take(LINES_MOST);
    let added = lines.filter_map(|line| {
        // "  100000000-17fffffff : System RAM (NVIDIA)"; addresses read 0 without CAP_SYS_ADMIN.
        let (range, what) = line.trim().split_once(" : ")?;
        let driver = what.strip_prefix("System RAM (")?.strip_suffix(')')?;
        let (first, last) = range.split_once('-')?;
        let first = u64::from_str_radix(first, 16).ok()?;
        let last = u64::from_str_radix(last, 16).ok()?;
        let is_device = last > first && !FOR_EVERYBODY.contains(&driver);
        is_device.then(|| (driver.to_owned(), first / size..=last / size))
    });
    added.collect()
}

/// Whether one of these blocks of memory is the node's.
fn has_block(root: &Root, node: NodeId, blocks: &RangeInclusive<u64>) -> bool {
    let dir = root.sys(NODES).join(format!("node{node}"));
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| {
        let name = entry.file_name();
        name.to_str()?.strip_prefix("memory")?.parse::<u64>().ok()
    });
    numbers.into_iter().any(|number| blocks.contains(&number))
}
