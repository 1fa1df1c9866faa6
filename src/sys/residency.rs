//! Where pages are, and what is free.

use std::collections::BTreeMap;

use super::clock::{monotonic, thread_cpu_time};
use super::glance::{Glances, Marks};
use super::latency::LatencyProbe;
use super::locate::{Locator, Whose};
use super::mover::is_there;
use super::root::Root;
use super::text;
use crate::ports::{PortError, Residency, Sharing};
use crate::tiering::observation::{CacheUsage, NodeUsage, RangeResidency};
use crate::tiering::plan::Sweep;
use crate::tiering::settings::Asking;
use crate::tiering::shortage::Glance;
use crate::tiering::tier::TierTable;
use crate::units::{Bytes, Nanos, NodeId, PAGE_BYTES};

/// With [`Asking::Auto`], asking nodes how late they answer may take this share of elapsed time,
/// 1 in so many; where that is dear, as in an emulator, not each epoch asks. Making the probe is beside that.
const ASKING_SHARE: u64 = 400;
/// Epochs after which it is looked up again which nodes may be asked for page cache.
const CACHE_EPOCHS: u32 = 256;

/// Residency as the kernel tells it.
#[derive(Debug)]
pub struct SysResidency {
    root: Root,
    locator: Locator,
    glances: Glances,
    tiers: Option<TierTable>,
    probe: Option<LatencyProbe>,
    /// When nodes may be asked again.
    next_asking: Nanos,
    /// Whether each node may be asked for page cache, and for how many epochs that is held to be so.
    gives_cache: BTreeMap<NodeId, bool>,
    until_cache: u32,
}

impl SysResidency {
    /// Over the kernel below `root`.
    pub fn new(root: &Root) -> Self {
        Self {
            root: root.clone(),
            locator: Locator::new(root),
            glances: Glances::new(root),
            tiers: None,
            probe: None,
            next_asking: Nanos::ZERO,
            gives_cache: BTreeMap::new(),
            until_cache: 0,
        }
    }

    /// Can ask these nodes how late they answer, too. Takes memory for that when it is asked first.
    #[must_use]
    pub fn probing(mut self, tiers: TierTable) -> Self {
        self.tiers = Some(tiers);
        self
    }
}

impl Residency for SysResidency {
    fn sweep(&mut self, sweep: Sweep) -> Result<RangeResidency, PortError> {
        // One process's trouble is no reason to give up the others: where
        // nothing is known, nothing is moved.
        let whose = Whose {
            target: sweep.target,
            pid: sweep.pid,
        };
        let pages_by_node = self
            .locator
            .count(whose, sweep.range)
            .inspect_err(
                |e| tracing::debug!(pid = %sweep.pid, error = %e, "cannot see where its pages are"),
            )
            .unwrap_or_default();
        Ok(RangeResidency {
            target: sweep.target,
            range: sweep.range,
            pages_by_node,
        })
    }

    fn relate(&mut self, sharing: &Sharing) {
        self.locator.relate(sharing);
    }

    fn nodes(&mut self, asks_latency: Asking) -> Result<Vec<NodeUsage>, PortError> {
        let mut usage = usage(&self.root)?;
        if self.until_cache == 0 {
            self.gives_cache.clear();
            self.until_cache = CACHE_EPOCHS;
        }
        self.until_cache -= 1;
        for usage in &mut usage {
            let known = self.gives_cache.entry(usage.node);
            let gives = *known.or_insert_with(|| is_there(&self.root, usage.node));
            usage.cache = usage.cache.filter(|_| gives);
        }
        let Some(tiers) = (self.tiers.as_ref()).filter(|_| asks_latency != Asking::Never) else {
            self.probe = None;
            return Ok(usage);
        };
        let probe = self
            .probe
            .get_or_insert_with(|| LatencyProbe::new(tiers, &usage));
        if asks_latency == Asking::Always || monotonic() >= self.next_asking {
            let before = thread_cpu_time();
            probe.ask(&mut usage);
            let took = thread_cpu_time().saturating_sub(before);
            self.next_asking = monotonic() + Nanos(took.0.saturating_mul(ASKING_SHARE));
        }
        Ok(usage)
    }

    fn retier(&mut self, tiers: &TierTable) {
        if let Some(known) = &mut self.tiers {
            known.clone_from(tiers);
        }
        // Its buffers may be on a node that has gone, and none is on one that came.
        self.probe = None;
        self.until_cache = 0;
    }

    fn glance(&mut self, nodes: &[NodeId]) -> Vec<Glance> {
        let nodes = nodes.iter();
        nodes.filter_map(|&node| self.glances.at(node)).collect()
    }
}

/// Memory of every node that has any.
pub(super) fn usage(root: &Root) -> Result<Vec<NodeUsage>, PortError> {
    let zones = of_zones(&text::read(&root.proc("zoneinfo")).unwrap_or_default());
    let nodes = text::read_list(&root.sys("devices/system/node/has_memory"))?;
    nodes
        .into_iter()
        .map(|node| of_either(root, &zones, NodeId(node)))
        .collect()
}

/// Memory of one node.
pub(super) fn usage_of(root: &Root, node: NodeId) -> Result<NodeUsage, PortError> {
    let zones = of_zones(&text::read(&root.proc("zoneinfo")).unwrap_or_default());
    of_either(root, &zones, node)
}

fn of_either(root: &Root, zones: &[NodeUsage], node: NodeId) -> Result<NodeUsage, PortError> {
    match zones.iter().find(|usage| usage.node == node) {
        Some(&usage) => Ok(usage),
        // Hidden, as in some containers: then without a reserve.
        None => of_meminfo(root, node),
    }
}

/// Free memory of one node without the lists of each CPU, and no reserve: cheaper.
pub(super) fn of_meminfo(root: &Root, node: NodeId) -> Result<NodeUsage, PortError> {
    let path = root.sys(format!("devices/system/node/node{node}/meminfo"));
    let meminfo = text::read(&path)?;
    let field = |key: &str| {
        text::kib_field(&meminfo, key).ok_or_else(|| PortError::Malformed {
            what: path.display().to_string(),
            detail: format!("no line {key}"),
        })
    };
    Ok(NodeUsage {
        node,
        total: field("MemTotal")?,
        free: field("MemFree")?,
        reserve: Bytes::ZERO,
        latency: None,
        cache: None,
    })
}

/// What `/proc/zoneinfo` says of each node that has memory. Its lines are as many as CPUs
/// times nodes: one pass for all.
///
/// Free is also what waits in the lists of each CPU, which `MemFree` leaves out:
/// what a demotion frees goes there first, thousands of pages on a small
/// machine, and the promotion after it is served from there.
///
/// In reserve is what an ordinary page never gets without the kernel
/// reclaiming first: of each zone its high watermark, and its protection
/// against allocations that a higher zone could serve; at most what it has. And
/// as much more as is needed to stay above the least watermarks, below which
/// whoever allocates has to reclaim: the kernel compares these with what is free
/// without the lists, although it serves from them first.
fn of_zones(zoneinfo: &str) -> Vec<NodeUsage> {
    let nodes = pages_of(zoneinfo).into_iter();
    nodes.map(|(node, sum)| sum.usage(node)).collect()
}

/// What each node has in all, the reserve of its zones without what lists of CPUs add to it, and these lists.
pub(super) fn marks(root: &Root) -> BTreeMap<NodeId, Marks> {
    let zoneinfo = text::read(&root.proc("zoneinfo")).unwrap_or_default();
    let marks = |sum: Pages| Marks {
        total: Bytes::from_pages(sum.total),
        reserve: Bytes::from_pages(sum.reserve),
        listed: Bytes::from_pages(sum.listed),
    };
    let nodes = pages_of(&zoneinfo).into_iter();
    nodes.map(|(node, sum)| (node, marks(sum))).collect()
}

fn pages_of(zoneinfo: &str) -> BTreeMap<NodeId, Pages> {
    let mut nodes: BTreeMap<NodeId, Pages> = BTreeMap::new();
    let mut sum = &mut Pages::default();
    let (mut here, mut min, mut high, mut managed) = (0, 0, 0, 0);
    let mut is_movable = false;
    for line in zoneinfo.lines() {
        if let Some(rest) = line.strip_prefix("Node ") {
            let number = rest.split(',').next().and_then(|n| n.trim().parse().ok());
            if let Some(node) = number {
                sum = nodes.entry(NodeId(node)).or_default();
            }
            (here, min, high, managed) = (0, 0, 0, 0);
            is_movable = rest.ends_with("Movable");
            continue;
        }
        // "        high     1234", never "high:" of the per-CPU lists.
        let line = line.trim_start();
        let value = |key: &str| {
            let rest = line.strip_prefix(key)?;
            rest.starts_with(' ').then(|| number(rest))
        };
        if let Some(free) = value("pages free") {
            here = free;
            sum.free += here;
        } else if let Some(listed) = value("count:") {
            sum.listed += listed;
        } else if let Some(value) = value("min") {
            min = value;
        } else if let Some(value) = value("high") {
            high = value;
        } else if let Some(value) = value("managed") {
            managed = value;
            sum.total += managed;
        } else if line.starts_with("protection:") {
            // The last of the list is for pages that any zone may hold.
            let last = line.trim_end_matches(')').rsplit([' ', '(']).next();
            let protection = number(last.unwrap_or_default());
            sum.reserve += (high + protection).min(managed);
            sum.brink += here.saturating_sub(min + protection);
        } else if let Some(idle) = value("nr_zone_inactive_file").filter(|_| !is_movable) {
            sum.inactive_files += idle;
        } else if let Some(pages) = value("nr_dirty").or_else(|| value("nr_writeback")) {
            // This and what follows is of the whole node, and told in its first zone.
            sum.unwritten += pages;
        } else if let Some(refaults) = value("workingset_refault_file") {
            sum.refaults += refaults;
        }
    }
    nodes.retain(|_, sum| sum.total > 0);
    nodes
}

/// Sums over the zones of a node.
#[derive(Clone, Copy, Default)]
struct Pages {
    total: u64,
    free: u64,
    /// In the lists of each CPU.
    listed: u64,
    reserve: u64,
    /// Free above the least watermarks.
    brink: u64,
    /// Page cache that nobody used lately, but for the zone Movable, of which the kernel gives back
    /// nothing when asked; and of all page cache, what is dirty or being written.
    inactive_files: u64,
    unwritten: u64,
    refaults: u64,
}

impl Pages {
    fn usage(self, node: NodeId) -> NodeUsage {
        let free = self.free + self.listed;
        let room = free.saturating_sub(self.reserve).min(self.brink);
        let bytes = |pages: u64| Bytes(pages.saturating_mul(PAGE_BYTES));
        NodeUsage {
            node,
            total: bytes(self.total),
            free: bytes(free),
            reserve: bytes(self.reserve.max(free - room)),
            latency: None,
            cache: Some(CacheUsage {
                idle: bytes(self.inactive_files.saturating_sub(self.unwritten)),
                refaults: self.refaults,
            }),
        }
    }
}

fn number(text: &str) -> u64 {
    text.trim().parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_reserves_watermarks_and_protection_but_no_more_than_a_zone_has() {
        let zoneinfo = "\
Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 1
      nr_inactive_file 1000
      nr_dirty     40
      nr_writeback 10
      workingset_refault_anon 5
      workingset_refault_file 77
  pages free     3840
        nr_zone_inactive_file 100
        boost    0
        min      66
        high     98
        managed  3840
        protection: (0, 2934, 7000, 7000)
  pagesets
    cpu: 0
              count: 200
              high:  378
              batch: 63
    cpu: 1
              count: 11
              high:  378
Node 0, zone    DMA32
        high     500
        managed  700000
        protection: (0, 0, 4000, 4000)
Node 0, zone   Normal
  pages free     2000
        nr_zone_inactive_file 800
        min      800
        high     1000
        managed  100000
        protection: (0, 0, 0, 0)
Node 0, zone  Movable
        nr_zone_inactive_file 100
        managed  0
        protection: (0, 0, 0, 0)
Node 10, zone   Normal
        high     5
        managed  100
        protection: (0, 0, 0, 0)
";
        let pages = |n: u64| Bytes(n * 4096);
        let [first, last] = of_zones(zoneinfo)[..] else {
            panic!("two nodes");
        };
        assert_eq!((first.node, last.node), (NodeId(0), NodeId(10)));
        assert_eq!(first.reserve, pages(3840 + 4500 + 1000));
        assert_eq!(first.free, pages(3840 + 200 + 11 + 2000));
        assert_eq!(first.total, pages(3840 + 700_000 + 100_000));
        assert_eq!(last.reserve, pages(5));
        let cache = first.cache.unwrap();
        assert_eq!((cache.idle, cache.refaults), (pages(850), 77));
    }

    #[test]
    fn what_waits_in_lists_is_room_only_above_the_least_watermark() {
        let room = |free: u64, listed: u64| {
            let zoneinfo = format!(
                "Node 0, zone Normal\n  pages free {free}\n min 800\n high 1000\n \
                 managed 100000\n protection: (0, 0)\n count: {listed}\n"
            );
            let usage = of_zones(&zoneinfo)[0];
            usage.free.saturating_sub(usage.reserve).pages()
        };
        assert_eq!(room(2000, 300), 1200);
        assert_eq!(room(1500, 100), 600);
        assert_eq!(room(900, 5000), 100);
        assert_eq!(room(700, 5000), 0);
    }

    #[test]
    fn this_machines_nodes_are_read() {
        let nodes = usage(&Root::host()).unwrap();
        assert!(!nodes.is_empty());
        for usage in nodes {
            assert!(usage.free <= usage.total, "{usage:?}");
            assert!(usage.reserve <= usage.total, "{usage:?}");
        }
    }
}
