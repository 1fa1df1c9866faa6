//! Where control groups (v2) lie, whether one of ours limits our CPU time, and what those of a target
//! let it swap.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::root::Root;
use crate::units::{Bytes, Pid};

/// The directory of a path; `None` where it leads out or nowhere.
pub(super) fn directory(root: &Root, path: &str) -> Option<PathBuf> {
    let relative = Path::new(path.trim_start_matches('/'));
    let inside = relative
        .components()
        .all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
    let dir = top(root).join(relative);
    (inside && dir.is_dir()).then_some(dir)
}

/// Where they are mounted: beside v1 one directory down.
pub(super) fn top(root: &Root) -> PathBuf {
    let unified = root.sys("fs/cgroup/unified");
    if unified.join("cgroup.controllers").exists() {
        unified
    } else {
        root.sys("fs/cgroup")
    }
}

/// Whether our own group or one above it has a quota of CPU time (`cpu.max`): then what we use is
/// taken from the others in it, however idle the machine is.
pub(super) fn has_cpu_quota(root: &Root) -> bool {
    let is_limited = |dir: &PathBuf| {
        let quota = fs::read_to_string(dir.join("cpu.max")).unwrap_or_default();
        !quota.is_empty() && !quota.starts_with("max")
    };
    groups_of(root, "self").iter().any(is_limited)
}

/// What the groups of a process still let it swap (`memory.swap.max`); `None`: as much as there is.
pub(super) fn swap_room(root: &Root, pid: Pid) -> Option<Bytes> {
    let number = |dir: &Path, file: &str| -> Option<u64> {
        let text = fs::read_to_string(dir.join(file)).ok()?;
        // "max" is none.
        text.trim().parse().ok()
    };
    let groups = groups_of(root, &pid.to_string());
    let rooms = groups.iter().filter_map(|dir| {
        let most = number(dir, "memory.swap.max")?;
        let used = number(dir, "memory.swap.current").unwrap_or(0);
        Some(Bytes(most.saturating_sub(used)))
    });
    rooms.min()
}

/// The group of a process and those above it; none where that cannot be told.
fn groups_of(root: &Root, process: &str) -> Vec<PathBuf> {
    let groups = fs::read_to_string(root.proc(format!("{process}/cgroup"))).unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"));
    let Some(own) = own.and_then(|path| directory(root, path)) else {
        return Vec::new();
    };
    let top = top(root);
    let above = own.ancestors().take_while(|dir| dir.starts_with(&top));
    above.map(Path::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(dir: &Path, path: &str, text: &str) {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_quota_is_also_that_of_a_group_above() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        let put = |path: &str, text: &str| put(dir.path(), path, text);
        assert!(!has_cpu_quota(&root));
        put("proc/self/cgroup", "1:cpu:/old\n0::/pod/keeper\n");
        assert!(!has_cpu_quota(&root));
        put("sys/fs/cgroup/pod/keeper/cpu.max", "max 100000\n");
        put("sys/fs/cgroup/cpu.max.burst", "7\n");
        assert!(!has_cpu_quota(&root));
        put("sys/fs/cgroup/pod/cpu.max", "200000 100000\n");
        assert!(has_cpu_quota(&root));
    }

    #[test]
    fn what_may_be_swapped_is_what_the_tightest_group_leaves() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        let put = |path: &str, text: &str| put(dir.path(), path, text);
        let room = || swap_room(&root, Pid(7));
        assert_eq!(room(), None);
        put("proc/7/cgroup", "0::/pod/db\n");
        put("sys/fs/cgroup/pod/db/memory.swap.max", "max\n");
        put("sys/fs/cgroup/pod/db/memory.swap.current", "4096\n");
        assert_eq!(room(), None);
        put("sys/fs/cgroup/pod/memory.swap.max", "1048576\n");
        put("sys/fs/cgroup/pod/memory.swap.current", "1040384\n");
        assert_eq!(room(), Some(Bytes(8192)));
        put("sys/fs/cgroup/pod/db/memory.swap.max", "0\n");
        assert_eq!(room(), Some(Bytes::ZERO));
    }
}
