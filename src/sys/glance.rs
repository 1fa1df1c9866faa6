//! What nodes have free, read often: `nodeN/meminfo`, kept open, beside watermarks of lately.
//!
//! What others can have of a node is what is free above its high watermarks. What waits in the lists of each CPU is not
//! told there: much of what has just left a node does, and the kernel empties these lists before it gives up. So where
//! little seems to be left they are looked up in `/proc/zoneinfo`, which takes longer. Beside it stands half of the page cache that has not to be written
//! first (`Active(file)`, `Inactive(file)`): it gives that back at once when somebody needs it, but for programs that
//! run from it and files that are read all the time, of which nobody can tell how much that is.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use super::residency;
use super::root::Root;
use super::text;
use crate::tiering::shortage::{self, Glance};
use crate::units::{Bytes, NodeId};

/// Watermarks change with the size of the machine's memory and by its operator's hand.
const MARKS_LAST: Duration = Duration::from_secs(10);
/// Lists of CPUs are read again after so long at the soonest, and after so many times as long as that took.
const LISTS_LAST: Duration = Duration::from_millis(50);
const LISTS_SELDOM: u32 = 40;
/// More than any node's file has.
const LONGEST: usize = 4096;

/// Reads them.
#[derive(Debug)]
pub(super) struct Glances {
    root: Root,
    files: BTreeMap<NodeId, File>,
    /// What each node has in all, must keep, and has in lists; since when that is known, and how long it took.
    marks: BTreeMap<NodeId, Marks>,
    since: Option<Instant>,
    took: Duration,
}

/// What `/proc/zoneinfo` says of a node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Marks {
    pub(super) total: Bytes,
    pub(super) reserve: Bytes,
    /// In the lists of each CPU.
    pub(super) listed: Bytes,
}

/// What a node's file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Meminfo {
    total: Bytes,
    free: Bytes,
    /// Of page cache, what is given back at once.
    cache: Bytes,
}

impl Glances {
    pub(super) fn new(root: &Root) -> Self {
        Self {
            root: root.clone(),
            files: BTreeMap::new(),
            marks: BTreeMap::new(),
            since: None,
            took: Duration::ZERO,
        }
    }

    /// `None` of a node that cannot be read.
    pub(super) fn at(&mut self, node: NodeId) -> Option<Glance> {
        let told = self.read(node)?;
        self.read_marks(MARKS_LAST);
        let glance = |marks: Marks, listed: Bytes| Glance {
            node,
            total: marks.total,
            room: (told.free + listed).saturating_sub(marks.reserve) + told.cache,
        };
        // Hidden, as in some containers: then without a reserve.
        let Some(&marks) = self.marks.get(&node) else {
            let total = told.total;
            let marks = Marks {
                total,
                ..Marks::default()
            };
            return Some(glance(marks, Bytes::ZERO));
        };
        let seems = glance(marks, Bytes::ZERO);
        if seems.room >= shortage::least(seems.total) {
            return Some(seems);
        }
        self.read_marks(LISTS_LAST.max(self.took * LISTS_SELDOM));
        let marks = self.marks.get(&node).copied().unwrap_or(marks);
        Some(glance(marks, marks.listed))
    }

    /// Unless they are known for less than so long.
    fn read_marks(&mut self, lasts: Duration) {
        if self.since.is_some_and(|since| since.elapsed() < lasts) {
            return;
        }
        let begin = Instant::now();
        self.marks = residency::marks(&self.root);
        self.since = Some(Instant::now());
        self.took = begin.elapsed();
    }

    /// Of a node's page cache, what is given back at once.
    pub(super) fn cache_at(&mut self, node: NodeId) -> Bytes {
        self.read(node).map_or(Bytes::ZERO, |told| told.cache)
    }

    fn read(&mut self, node: NodeId) -> Option<Meminfo> {
        if let Some(told) = self.files.get(&node).and_then(read) {
            return Some(told);
        }
        // Not open yet, or of a node that was gone meanwhile.
        let path = self
            .root
            .sys(format!("devices/system/node/node{node}/meminfo"));
        let file = File::open(path).ok()?;
        let told = read(&file);
        self.files.insert(node, file);
        told
    }
}

fn read(file: &File) -> Option<Meminfo> {
    let mut buffer = [0; LONGEST];
    let length = file.read_at(&mut buffer, 0).ok()?;
    parse(std::str::from_utf8(&buffer[..length]).ok()?)
}

fn parse(text: &str) -> Option<Meminfo> {
    let field = |key: &str| text::kib_field(text, key);
    let or_none = |key: &str| field(key).unwrap_or(Bytes::ZERO);
    let files = or_none("Active(file)") + or_none("Inactive(file)");
    let unwritten = or_none("Dirty") + or_none("Writeback");
    Some(Meminfo {
        total: field("MemTotal")?,
        free: field("MemFree")?,
        cache: Bytes(files.saturating_sub(unwritten).0 / 2),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const NODE: NodeId = NodeId(3);

    #[test]
    fn half_of_the_clean_page_cache_is_as_good_as_free() {
        let text = "Node 3 MemTotal:      36000 kB\nNode 3 MemFree:  4000 kB\n\
                    Node 3 Active(file):   300 kB\nNode 3 Inactive(file):   500 kB\n\
                    Node 3 Dirty:   150 kB\nNode 3 Writeback:      50 kB\n";
        let kib = |kib: u64| Bytes(kib << 10);
        let told = Meminfo {
            total: kib(36_000),
            free: kib(4000),
            cache: kib(300),
        };
        assert_eq!(parse(text), Some(told));
        assert_eq!(parse("Node 3 MemTotal: 36000 kB\n"), None);
    }

    #[test]
    fn room_is_what_is_free_above_the_high_watermarks() {
        let dir = tempfile::tempdir().unwrap();
        let node = dir.path().join("sys/devices/system/node/node3");
        fs::create_dir_all(&node).unwrap();
        fs::create_dir_all(dir.path().join("proc")).unwrap();
        let zoneinfo = "Node 3, zone Normal\n  pages free 900\n min 50\n high 100\n managed 9000\n \
                        protection: (0, 20)\n count: 40\n";
        let meminfo = |pages: u64| {
            let kib = pages * 4;
            let text = format!("Node 3 MemTotal: 40000 kB\nNode 3 MemFree: {kib} kB\n");
            fs::write(node.join("meminfo"), text).unwrap();
        };
        let mut glances = Glances::new(&Root::at(dir.path()));
        assert_eq!(glances.at(NODE), None);
        meminfo(1000);
        let glance = glances.at(NODE).unwrap();
        // Without watermarks, as where a container hides them.
        assert_eq!((glance.total.0, glance.room.pages()), (40_000 << 10, 1000));
        fs::write(dir.path().join("proc/zoneinfo"), zoneinfo).unwrap();
        let mut glances = Glances::new(&Root::at(dir.path()));
        let glance = glances.at(NODE).unwrap();
        // Below 1125, an eighth of it, lists count as well.
        assert_eq!((glance.total.pages(), glance.room.pages()), (9000, 920));
        meminfo(2000);
        assert_eq!(glances.at(NODE).unwrap().room.pages(), 1880);
        meminfo(5);
        assert_eq!(glances.at(NODE).unwrap().room.pages(), 0);
        assert_eq!(glances.at(NodeId(1)), None);
    }

    #[test]
    fn this_machines_nodes_are_read() {
        let root = Root::host();
        let mut glances = Glances::new(&root);
        for usage in residency::usage(&root).unwrap() {
            let glance = glances.at(usage.node).unwrap();
            assert!(
                glance.room <= glance.total && glance.total <= usage.total,
                "{glance:?}"
            );
        }
    }
}
