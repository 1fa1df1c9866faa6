//! Which processes the selectors mean now.
//!
//! One pass over `/proc` reads one small file per process, two where a
//! command line is asked for; cgroups and single processes need no pass.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::glob;
use super::process::{self, Stat};
use crate::ports::{PortError, Selector, TargetSpec};
use crate::sys::cgroup;
use crate::sys::root::Root;
use crate::units::Pid;

/// Directories that a search below the cgroup root looks at, at most: the
/// kernel's own default for `cgroup.max.descendants` is none, so a bound of ours.
const CGROUPS: usize = 100_000;

/// A process that a selector means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) pid: Pid,
    /// Index of the first selector that means it.
    pub(super) spec: usize,
    /// Only as the child of one.
    pub(super) child: bool,
}

/// Everything that `specs` mean. `watched` are roots for children too.
pub(super) fn find(
    root: &Root,
    specs: &[TargetSpec],
    watched: &BTreeMap<Pid, usize>,
) -> Result<Vec<Found>, PortError> {
    let mut found: BTreeMap<Pid, Found> = BTreeMap::new();
    let mut put = |pid: Pid, spec: usize| {
        found.entry(pid).or_insert(Found {
            pid,
            spec,
            child: false,
        });
    };
    let everyone = if specs.iter().any(needs_everyone) {
        everyone(root)?
    } else {
        BTreeMap::new()
    };
    for (index, spec) in specs.iter().enumerate() {
        match &spec.selector {
            Selector::Pid(pid) => put(*pid, index),
            Selector::Comm(pattern) => everyone
                .iter()
                .filter(|(_, stat)| glob::matches(pattern, stat.comm.as_bytes()))
                .for_each(|(&pid, _)| put(pid, index)),
            Selector::Cmdline(pattern) => everyone
                .iter()
                .filter(|(_, stat)| !stat.kernel_thread && !stat.is_dead())
                .filter(|&(&pid, _)| {
                    let line = process::command_line(root, pid);
                    !line.is_empty() && glob::matches(pattern, &line)
                })
                .for_each(|(&pid, _)| put(pid, index)),
            Selector::Cgroup(path) => {
                if let Some(dir) = cgroup::directory(root, path) {
                    for pid in members(&dir) {
                        put(pid, index);
                    }
                }
            }
            Selector::Unit(unit) => {
                for dir in unit_cgroups(root, unit) {
                    for pid in members(&dir) {
                        put(pid, index);
                    }
                }
            }
        }
    }
    add_children(specs, &everyone, watched, &mut found);
    Ok(found.into_values().collect())
}

fn needs_everyone(spec: &TargetSpec) -> bool {
    spec.follow_children || matches!(spec.selector, Selector::Comm(_) | Selector::Cmdline(_))
}

fn everyone(root: &Root) -> Result<BTreeMap<Pid, Stat>, PortError> {
    let pids = process::all(root).map_err(|source| PortError::Failed {
        what: root.proc("").display().to_string(),
        source,
    })?;
    // One that ended since the listing is left out.
    Ok(pids
        .into_iter()
        .filter_map(|pid| Some((pid, Stat::of(root, pid)?)))
        .collect())
}

/// Descendants of what is found or watched, for specs that follow.
fn add_children(
    specs: &[TargetSpec],
    everyone: &BTreeMap<Pid, Stat>,
    watched: &BTreeMap<Pid, usize>,
    found: &mut BTreeMap<Pid, Found>,
) {
    let mut spec_of: BTreeMap<Pid, usize> = watched.clone();
    spec_of.extend(found.values().map(|f| (f.pid, f.spec)));
    for &pid in everyone.keys() {
        if found.contains_key(&pid) {
            continue;
        }
        // Up the chain to the first one that is meant. A chain is a tree's,
        // but between two reads it may seem to loop.
        let mut seen = BTreeSet::from([pid]);
        let mut parent = everyone.get(&pid).map(|s| s.parent);
        while let Some(up) = parent {
            if let Some(&spec) = spec_of.get(&up) {
                if specs[spec].follow_children {
                    found.insert(
                        pid,
                        Found {
                            pid,
                            spec,
                            child: true,
                        },
                    );
                }
                break;
            }
            parent = seen
                .insert(up)
                .then(|| everyone.get(&up).map(|s| s.parent))
                .flatten();
        }
    }
}

/// Processes in a cgroup and below.
fn members(dir: &Path) -> Vec<Pid> {
    let mut pids = Vec::new();
    walk(dir, &mut |dir| {
        // A threaded cgroup refuses; its processes are listed in its domain.
        if let Ok(text) = fs::read_to_string(dir.join("cgroup.procs")) {
            pids.extend(text.lines().filter_map(|l| l.parse().ok().map(Pid)));
        }
    });
    // 0 is a process outside of our pid namespace.
    pids.retain(|pid| pid.0 > 0);
    pids
}

/// Cgroups that systemd made for a unit: directories of its name. There may be
/// several, one per user manager. Without a suffix it is a service.
fn unit_cgroups(root: &Root, unit: &str) -> Vec<PathBuf> {
    let name = if unit.contains('.') {
        unit.to_owned()
    } else {
        format!("{unit}.service")
    };
    let mut found = Vec::new();
    walk(&cgroup::top(root), &mut |dir| {
        if dir.file_name().is_some_and(|f| *f == *name) {
            found.push(dir.to_owned());
        }
    });
    found
}

/// Visits a directory and those below, at most [`CGROUPS`].
fn walk(top: &Path, visit: &mut dyn FnMut(&Path)) {
    let mut waiting = vec![top.to_owned()];
    let mut visited = 0;
    while let Some(dir) = waiting.pop() {
        visit(&dir);
        visited += 1;
        if visited >= CGROUPS {
            return;
        }
        let entries = fs::read_dir(&dir).into_iter().flatten().flatten();
        waiting.extend(
            entries
                .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
                .map(|e| e.path()),
        );
    }
}
