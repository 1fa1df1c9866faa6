//! Page cache that makes room: `/sys/devices/system/node/nodeN/reclaim` (Linux 6.17), which takes a number of bytes
//! and a swappiness. With 0 of that the kernel takes files only, and of these what was
//! idle longest first; dirty pages it begins to write, and takes others.
//!
//! What the kernel's source says beyond its documentation (6.18, `user_proactive_reclaim`): it goes on until all of it was
//! given back or sixteen passes in a row found nothing (`EAGAIN`: some may have been); one caller at a time and node
//! (`EBUSY`); a signal ends it (`EINTR`). Without `CONFIG_MEMCG` it ignores the swappiness (fixed in
//! 2026), so that it would swap: [`is_there`] says no then.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;

use super::super::residency;
use super::super::root::Root;
use super::super::text;
use crate::tiering::plan::Reclaim;
use crate::units::{Bytes, NodeId};

/// Asked for at once at least: some milliseconds, beside which reading what is free is little.
const CHUNK: Bytes = Bytes::from_mib(8);

/// Whether the kernel can be asked for page cache of a node, without swapping anything.
pub(in crate::sys) fn is_there(root: &Root, node: NodeId) -> bool {
    file(root, node).exists() && has_memory_cgroups(root)
}

/// Whether the kernel has `CONFIG_MEMCG`, in use or not: since Linux 6.14 `/proc/cgroups` names no
/// controller that is of version 2 only.
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
        Ok(format!("may make room on node {node}, and on others"))
    } else {
        Err("the kernel, without CONFIG_MEMCG, would swap as well".into())
    })
}

fn file(root: &Root, node: NodeId) -> PathBuf {
    root.sys(format!("devices/system/node/node{node}/reclaim"))
}

fn ask(root: &Root, node: NodeId, bytes: Bytes) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(file(root, node))?;
    // In one call: each is a request of its own.
    let request = format!("{} swappiness=0", bytes.0);
    file.write(request.as_bytes()).map(|_| ())
}

/// What page cache still has to give, and what it gave.
#[derive(Debug)]
pub(super) struct Cache {
    root: Root,
    left: Vec<Reclaim>,
    given: Vec<Reclaim>,
    /// Not ours to ask: said once.
    is_forbidden: bool,
}

impl Cache {
    pub(super) fn new(root: &Root) -> Self {
        Self {
            root: root.clone(),
            left: Vec::new(),
            given: Vec::new(),
            is_forbidden: false,
        }
    }

    /// So much may be asked for until the end of the turn.
    pub(super) fn begin(&mut self, may: &[Reclaim]) {
        self.left = may.to_vec();
    }

    /// What was given back in this turn.
    pub(super) fn end(&mut self) -> Vec<Reclaim> {
        self.left.clear();
        std::mem::take(&mut self.given)
    }

    /// Has some given back ahead of so much that goes to this node; `false` where nothing is left to ask for.
    pub(super) fn give_back(&mut self, to: NodeId, wanted: Bytes) -> bool {
        let mut left = self.left.iter_mut().filter(|left| left.node == to);
        let Some(left) = left.find(|left| !left.bytes.is_zero()) else {
            return false;
        };
        let bytes = left.bytes.min(wanted.max(CHUNK));
        left.bytes = left.bytes.saturating_sub(bytes);
        if self.is_forbidden {
            return false;
        }
        let free = |root: &Root| residency::usage_of(root, to).map(|usage| usage.free);
        let before = free(&self.root);
        match ask(&self.root, to, bytes) {
            Ok(()) => self.count(to, bytes),
            Err(error) => {
                if matches!(
                    error.kind(),
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
                ) {
                    tracing::warn!(node = %to, %error, "page cache makes no room: the kernel lets nobody ask for it here");
                    self.is_forbidden = true;
                }
                if let (Ok(before), Ok(after)) = (before, free(&self.root)) {
                    self.count(to, after.saturating_sub(before).min(bytes));
                }
            }
        }
        true
    }

    fn count(&mut self, node: NodeId, bytes: Bytes) {
        match self.given.iter_mut().find(|given| given.node == node) {
            Some(given) => given.bytes += bytes,
            None => self.given.push(Reclaim { node, bytes }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const NODE: NodeId = NodeId(2);

    #[test]
    fn what_may_is_asked_for_piece_by_piece_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let node = dir.path().join("sys/devices/system/node/node2");
        fs::create_dir_all(&node).unwrap();
        fs::create_dir_all(dir.path().join("proc")).unwrap();
        let root = Root::at(dir.path());
        assert!(!is_there(&root, NODE));
        fs::write(node.join("reclaim"), "").unwrap();
        let cgroups = "#subsys_name hierarchy num_cgroups enabled\ncpu 0 9 1\n";
        fs::write(dir.path().join("proc/cgroups"), cgroups).unwrap();
        assert!(!is_there(&root, NODE), "it would swap");
        let old = format!("{cgroups}memory 0 9 1\n");
        fs::write(dir.path().join("proc/cgroups"), old).unwrap();
        assert!(is_there(&root, NODE));
        fs::write(dir.path().join("proc/cgroups"), cgroups).unwrap();
        let cgroup2 = dir.path().join("sys/fs/cgroup");
        fs::create_dir_all(&cgroup2).unwrap();
        fs::write(cgroup2.join("cgroup.controllers"), "cpu io memory pids\n").unwrap();
        assert!(is_there(&root, NODE));

        let mut cache = Cache::new(&root);
        let asked = || fs::read_to_string(node.join("reclaim")).unwrap();
        let may = |mib| Reclaim {
            node: NODE,
            bytes: Bytes::from_mib(mib),
        };
        cache.begin(&[may(40)]);
        assert!(!cache.give_back(NodeId(1), Bytes::from_mib(1)));
        assert!(cache.give_back(NODE, Bytes::from_mib(1)));
        assert_eq!(asked(), "8388608 swappiness=0");
        assert!(cache.give_back(NODE, Bytes::from_mib(30)));
        assert!(cache.give_back(NODE, Bytes::from_mib(30)));
        assert!(asked().starts_with("2097152 swappiness=0"));
        assert!(!cache.give_back(NODE, Bytes::from_mib(1)));
        assert_eq!(cache.end(), [may(40)]);
        assert_eq!(cache.end(), []);
        cache.begin(&[may(8)]);
        fs::remove_file(node.join("reclaim")).unwrap();
        cache.give_back(NODE, Bytes::from_mib(8));
        assert_eq!(cache.end(), []);
    }
}
