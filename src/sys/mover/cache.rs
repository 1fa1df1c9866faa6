//! Page cache that makes room: `/sys/devices/system/node/nodeN/reclaim` (Linux 6.17), which takes a number
//! of bytes and a swappiness. With 0 of that the kernel takes files only, and of these what was idle
//! longest first; dirty pages it begins to write, and takes others. With each pass it also has those who
//! keep what is known of files (inodes, names) give back a part of that, which counts. Where demotion
//! is on (`/sys/kernel/mm/numa/demotion_enabled`) files go to a slower node instead.
//!
//! What its source says beyond the documentation (6.18, `user_proactive_reclaim`): it goes on until all
//! of it was given back, or for some passes that find nothing (`EAGAIN`: some may have been); one
//! caller at a time and node (`EBUSY`); only a signal ends it before (`EINTR`). Of the zone Movable it
//! takes nothing. Without `CONFIG_MEMCG` it ignores the swappiness (fixed in 2026), so that it would
//! swap: [`is_there`] says no then.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

use super::super::residency;
use super::super::root::Root;
use super::super::text;
use crate::tiering::plan::{Reclaim, Reclaimed};
use crate::units::{Bytes, NodeId};

/// Asked for at once: some milliseconds, and nobody can end it before.
const CHUNK: Bytes = Bytes::from_mib(8);

/// Whether we may ask the kernel for page cache of a node, without swapping anything.
pub(in crate::sys) fn is_there(root: &Root, node: NodeId) -> bool {
    open(root, node).is_ok() && has_memory_cgroups(root)
}

/// Whether the kernel has memory cgroups: since Linux 6.14 `/proc/cgroups` names no controller that is
/// of version 2 only.
fn has_memory_cgroups(root: &Root) -> bool {
    let read = |path: PathBuf| text::read(&path).unwrap_or_default();
    let all = read(root.proc("cgroups")) + &read(root.sys("fs/cgroup/cgroup.controllers"));
    all.split_whitespace().any(|word| word == "memory")
}

/// Asks for nothing. `Ok(Err)` says what this kernel lacks.
///
/// # Errors
/// When the file cannot be written.
pub(in crate::sys) fn try_page_cache(root: &Root, node: i32) -> io::Result<Result<String, String>> {
    let node = NodeId(u32::try_from(node).unwrap_or_default());
    ask(root, node, Bytes::ZERO)?;
    Ok(if has_memory_cgroups(root) {
        Ok(format!("node {node} can be asked for it"))
    } else {
        Err("the kernel, without CONFIG_MEMCG, would swap as well".into())
    })
}

fn open(root: &Root, node: NodeId) -> io::Result<File> {
    let path = root.sys(format!("devices/system/node/node{node}/reclaim"));
    OpenOptions::new().write(true).open(path)
}

fn ask(root: &Root, node: NodeId, bytes: Bytes) -> io::Result<()> {
    // In one call: each is a request of its own.
    let request = format!("{} swappiness=0", bytes.0);
    open(root, node)?.write(request.as_bytes()).map(|_| ())
}

/// What page cache still has to give in this turn, and what it gave.
#[derive(Debug)]
pub(super) struct Cache {
    root: Root,
    nodes: Vec<OfNode>,
}

#[derive(Debug)]
struct OfNode {
    wanted: Reclaim,
    /// Of that, not asked for yet.
    left: Bytes,
    /// What was moved there in this turn.
    came: Bytes,
    done: Reclaimed,
}

impl Cache {
    pub(super) fn new(root: &Root) -> Self {
        Self {
            root: root.clone(),
            nodes: Vec::new(),
        }
    }

    /// So much may be asked for until the end of the turn.
    pub(super) fn begin(&mut self, wanted: &[Reclaim]) {
        let of_node = |&wanted: &Reclaim| OfNode {
            wanted,
            left: wanted.bytes,
            came: Bytes::ZERO,
            done: Reclaimed {
                node: wanted.node,
                asked: Bytes::ZERO,
                given: Bytes::ZERO,
            },
        };
        self.nodes = wanted.iter().map(of_node).collect();
    }

    /// What was asked for and given back in this turn.
    pub(super) fn end(&mut self) -> Vec<Reclaimed> {
        let all = self.nodes.drain(..).map(|of| of.done);
        all.filter(|done| !done.asked.is_zero()).collect()
    }

    /// So much was moved to a node.
    pub(super) fn came(&mut self, to: NodeId, bytes: Bytes) {
        if let Some(of) = self.nodes.iter_mut().find(|of| of.wanted.node == to) {
            of.came += bytes;
        }
    }

    /// Whether some has to be given back, and may be asked for, before so much goes to a node that has
    /// this room: not as long as what needs none is not used up, nor while what was given is not.
    pub(super) fn is_short(&self, to: NodeId, wanted: Bytes, room: Bytes) -> bool {
        let mut nodes = self.nodes.iter();
        let found = nodes.find(|of| of.wanted.node == to && !of.left.is_zero());
        found.is_some_and(|of| room < wanted || of.came + wanted > of.wanted.after + of.done.given)
    }

    /// Of this room, what may be filled: what is free beyond what was planned and given is headroom.
    pub(super) fn within(&self, to: NodeId, room: Bytes) -> Bytes {
        let mut nodes = self.nodes.iter();
        nodes.find(|of| of.wanted.node == to).map_or(room, |of| {
            room.min((of.wanted.after + of.done.given).saturating_sub(of.came))
        })
    }

    /// Has some of it given back, and says how much was asked for. What the kernel does not give at once
    /// it is not asked for again in this turn: it has gone through all that it keeps of files, and more
    /// than once.
    pub(super) fn give_back(&mut self, to: NodeId) -> Bytes {
        let Some(of) = self.nodes.iter_mut().find(|of| of.wanted.node == to) else {
            return Bytes::ZERO;
        };
        let bytes = of.left.min(CHUNK);
        // With what waits in the lists of each CPU.
        let free = |root: &Root| residency::usage_of(root, to).map(|usage| usage.free);
        let before = free(&self.root);
        let done = ask(&self.root, to, bytes);
        of.left = of.left.saturating_sub(bytes);
        let given = match done {
            Ok(()) => bytes,
            Err(error) => {
                tracing::debug!(node = %to, %error, "page cache makes less room than it was to");
                of.left = Bytes::ZERO;
                if error.kind() == io::ErrorKind::Interrupted {
                    // That says nothing of the kernel's files.
                    return bytes;
                }
                match (before, free(&self.root)) {
                    (Ok(before), Ok(after)) => after.saturating_sub(before).min(bytes),
                    _ => Bytes::ZERO,
                }
            }
        };
        of.done.asked += bytes;
        of.done.given += given;
        bytes
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const NODE: NodeId = NodeId(2);

    fn mib(mib: u64) -> Bytes {
        Bytes::from_mib(mib)
    }

    fn wanted(bytes: u64, after: u64) -> Reclaim {
        Reclaim {
            node: NODE,
            bytes: mib(bytes),
            after: mib(after),
        }
    }

    fn done(asked: u64, given: u64) -> Reclaimed {
        Reclaimed {
            node: NODE,
            asked: mib(asked),
            given: mib(given),
        }
    }

    struct Host {
        dir: tempfile::TempDir,
        root: Root,
    }

    impl Host {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let root = Root::at(dir.path());
            let host = Self { dir, root };
            host.write("sys/devices/system/node/node2/reclaim", "");
            host
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn asked(&self) -> String {
            let path = "sys/devices/system/node/node2/reclaim";
            fs::read_to_string(self.dir.path().join(path)).unwrap()
        }
    }

    #[test]
    fn it_is_there_where_nothing_would_be_swapped_for_it() {
        let host = Host::new();
        assert!(!is_there(&host.root, NODE));
        let cgroups = "#subsys_name hierarchy num_cgroups enabled\ncpu 0 9 1\n";
        host.write("proc/cgroups", cgroups);
        assert!(!is_there(&host.root, NODE));
        host.write("proc/cgroups", &format!("{cgroups}memory 0 9 1\n"));
        assert!(is_there(&host.root, NODE));
        host.write("proc/cgroups", cgroups);
        host.write("sys/fs/cgroup/cgroup.controllers", "cpu io memory pids\n");
        assert!(is_there(&host.root, NODE));
        assert!(!is_there(&host.root, NodeId(0)));
    }

    #[test]
    fn it_is_asked_for_piece_by_piece_as_moves_need_it() {
        let host = Host::new();
        let mut cache = Cache::new(&host.root);
        let plenty = mib(1000);
        cache.begin(&[wanted(20, 10)]);
        assert_eq!(cache.within(NODE, plenty), mib(10));
        assert!(!cache.is_short(NodeId(1), mib(1), Bytes::ZERO), "not there");
        assert!(!cache.is_short(NODE, mib(10), plenty), "that needs none");
        assert!(cache.is_short(NODE, mib(10), mib(9)), "others took it");
        cache.came(NODE, mib(10));
        assert!(cache.is_short(NODE, mib(4), plenty));
        cache.give_back(NODE);
        assert!(host.asked().starts_with("8388608 swappiness=0"));
        assert!(!cache.is_short(NODE, mib(8), plenty));
        cache.came(NODE, mib(8));
        assert!(cache.is_short(NODE, mib(4), plenty));
        cache.give_back(NODE);
        assert!(cache.is_short(NODE, mib(9), plenty));
        cache.give_back(NODE);
        assert!(host.asked().starts_with("4194304 swappiness=0"));
        assert!(!cache.is_short(NODE, mib(100), Bytes::ZERO), "that was all");
        assert_eq!(cache.end(), [done(20, 20)]);
        assert_eq!(cache.end(), []);
    }

    #[test]
    fn what_the_kernel_does_not_give_is_not_asked_for_again() {
        let host = Host::new();
        let meminfo = |mib: u64| {
            let kib = mib * 1024;
            let text = format!("Node 2 MemTotal: 99999999 kB\nNode 2 MemFree: {kib} kB\n");
            host.write("sys/devices/system/node/node2/meminfo", &text);
        };
        meminfo(50);
        fs::remove_file(
            host.dir
                .path()
                .join("sys/devices/system/node/node2/reclaim"),
        )
        .unwrap();
        let mut cache = Cache::new(&host.root);
        cache.begin(&[wanted(40, 0)]);
        assert!(cache.is_short(NODE, mib(8), Bytes::ZERO));
        assert_eq!(cache.give_back(NODE), mib(8));
        assert!(!cache.is_short(NODE, mib(8), Bytes::ZERO));
        // Nor is the headroom filled instead.
        assert_eq!(cache.within(NODE, mib(20)), Bytes::ZERO);
        assert_eq!(cache.within(NodeId(0), mib(20)), mib(20));
        assert_eq!(cache.end(), [done(8, 0)]);
        // Nothing of it was needed.
        cache.begin(&[wanted(40, 0)]);
        assert_eq!(cache.end(), []);
    }
}
