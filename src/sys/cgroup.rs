//! Where control groups (v2) lie, and whether one of ours limits our CPU time.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::root::Root;

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
    let groups = fs::read_to_string(root.proc("self/cgroup")).unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"));
    let Some(own) = own.and_then(|path| directory(root, path)) else {
        return false;
    };
    let top = top(root);
    let above = own.ancestors().take_while(|dir| dir.starts_with(&top));
    let is_limited = |dir: &Path| {
        let quota = fs::read_to_string(dir.join("cpu.max")).unwrap_or_default();
        !quota.is_empty() && !quota.starts_with("max")
    };
    above.into_iter().any(is_limited)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_also_that_of_a_group_above() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert!(!has_cpu_quota(&root));
        put("proc/self/cgroup", "1:cpu:/old\n0::/pod/keeper\n");
        assert!(!has_cpu_quota(&root));
        put("sys/fs/cgroup/pod/keeper/cpu.max", "max 100000\n");
        put("sys/fs/cgroup/cpu.max.burst", "7\n");
        assert!(!has_cpu_quota(&root));
        put("sys/fs/cgroup/pod/cpu.max", "200000 100000\n");
        assert!(has_cpu_quota(&root));
    }
}
