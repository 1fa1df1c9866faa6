//! What a destination can take.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::super::glance::Glances;
use super::super::residency;
use super::super::root::Root;
use crate::ports::Keep;
use crate::units::{Bytes, NodeId};

/// What is free is read again after so long at least.
const ROOM_LASTS: Duration = Duration::from_millis(50);
/// What others take of it at most, in bytes per second: some threads that touch new memory.
const TAKEN_PER_SECOND: f64 = 4e9;
/// Beyond that it makes no difference.
const TAKEN_MOST: f64 = 1e12;
/// Watermarks change with the size of the machine's memory and by its operator's hand.
const RESERVE_LASTS: Duration = Duration::from_secs(10);

/// What a destination can take, as last read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) left: Bytes,
    read_at: Instant,
    /// How long that holds, since others use memory too.
    lasts: Duration,
}

impl Room {
    /// Whether so much is known to go there still.
    pub(super) fn holds(&self, wanted: Bytes) -> bool {
        self.left >= wanted && self.read_at.elapsed() < self.lasts
    }
}

/// Reads rooms.
#[derive(Debug)]
pub(super) struct Rooms {
    root: Root,
    /// What each node keeps back, and since when that is known.
    reserves: HashMap<NodeId, (Bytes, Instant)>,
    /// What is to stay free beyond that, and whether page cache may have to go for what comes.
    keeps: Vec<Keep>,
    in_haste: bool,
    glances: Glances,
    looked_at: Option<Instant>,
}

impl Rooms {
    pub(super) fn new(root: &Root) -> Self {
        Self {
            root: root.clone(),
            reserves: HashMap::new(),
            keeps: Vec::new(),
            in_haste: false,
            glances: Glances::new(root),
            looked_at: None,
        }
    }

    /// What is left of nodes from now on.
    pub(super) fn keep(&mut self, nodes: &[Keep], in_haste: bool) {
        self.keeps = nodes.to_vec();
        self.in_haste = in_haste;
        self.looked_at = None;
    }

    /// Whether a node has less than that by which the turn is to end; looks seldom.
    pub(super) fn is_short(&mut self) -> bool {
        if self.looked_at.is_some_and(|at| at.elapsed() < ROOM_LASTS) {
            return false;
        }
        self.looked_at = Some(Instant::now());
        let glances = &mut self.glances;
        let mut keeps = self.keeps.iter().filter(|keep| !keep.ends_below.is_zero());
        keeps.any(|keep| {
            let glance = glances.at(keep.node);
            glance.is_some_and(|glance| glance.room < keep.ends_below)
        })
    }

    /// Of what is free beyond the reserve, what may be filled.
    fn beyond_kept(&mut self, node: NodeId, free: Bytes) -> Bytes {
        let Some(keep) = self.keeps.iter().find(|keep| keep.node == node) else {
            return free;
        };
        let (kept, cache) = (keep.free, self.glances.cache_at(node));
        let most = (free + cache).saturating_sub(kept);
        if self.in_haste { most } else { most.min(free) }
    }

    /// What a node can take now, when so much is wanted.
    pub(super) fn read(&mut self, to: NodeId, wanted: Bytes, known: Option<Room>) -> Room {
        let begin = Instant::now();
        let left = match self.at_a_glance(to).filter(|left| *left >= wanted) {
            Some(left) => left,
            None => self.exactly(to).unwrap_or_else(|| {
                // A node that cannot be read is left to the kernel's own answer.
                known.map_or(Bytes(u64::MAX), |room| room.left)
            }),
        };
        let read_at = Instant::now();
        // A machine of many CPUs tells of each: that is to be no more than a quarter of one per
        // cent for each node, unless there is so little that others may have taken it.
        let taken = Duration::from_secs_f64(left.as_f64().min(TAKEN_MOST) / TAKEN_PER_SECOND);
        let lasts = ROOM_LASTS.max(taken.min(400 * (read_at - begin)));
        Room {
            left,
            read_at,
            lasts,
        }
    }

    /// What is free without the lists of each CPU, and so no more than there is, beyond
    /// the reserve of lately: a tenth of the work, or less.
    fn at_a_glance(&mut self, node: NodeId) -> Option<Bytes> {
        let &(reserve, asked) = self.reserves.get(&node)?;
        if asked.elapsed() >= RESERVE_LASTS {
            return None;
        }
        let usage = residency::of_meminfo(&self.root, node).ok()?;
        Some(self.beyond_kept(node, usage.free.saturating_sub(reserve)))
    }

    fn exactly(&mut self, node: NodeId) -> Option<Bytes> {
        let usage = residency::usage_of(&self.root, node).ok()?;
        self.reserves.insert(node, (usage.reserve, Instant::now()));
        Some(self.beyond_kept(node, usage.free.saturating_sub(usage.reserve)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const NODE: NodeId = NodeId(3);

    #[test]
    fn a_glance_is_enough_where_there_is_much_and_little_is_looked_at_closely() {
        let dir = tempfile::tempdir().unwrap();
        let node = dir.path().join("sys/devices/system/node/node3");
        fs::create_dir_all(&node).unwrap();
        fs::create_dir_all(dir.path().join("proc")).unwrap();
        let zones = |free: u64, listed: u64| {
            let zoneinfo = format!(
                "Node 3, zone Normal\n  pages free {free}\n min 50\n high 100\n managed 9000\n \
                 protection: (0, 0)\n count: {listed}\n"
            );
            fs::write(dir.path().join("proc/zoneinfo"), zoneinfo).unwrap();
            let kib = free * 4;
            let meminfo = format!("Node 3 MemTotal: 36000 kB\nNode 3 MemFree: {kib} kB\n");
            fs::write(node.join("meminfo"), meminfo).unwrap();
        };
        let mut rooms = Rooms::new(&Root::at(dir.path()));
        let mut room = |wanted| {
            let read = rooms.read(NODE, Bytes::from_pages(wanted), None);
            read.left.pages()
        };
        zones(1000, 40);
        assert_eq!(room(500), 940, "the first time with its reserve");
        assert_eq!(room(500), 900, "without the lists, which is enough");
        assert_eq!(room(920), 940, "and is not");
        zones(110, 40);
        assert_eq!(room(500), 50);
        fs::remove_dir_all(dir.path().join("sys")).unwrap();
        assert_eq!(room(1), 50);
        fs::remove_dir_all(dir.path().join("proc")).unwrap();
        assert!(room(1) >= 1 << 50, "the kernel will say");
    }
}
