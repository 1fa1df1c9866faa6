//! What runs brought: rows, the file that keeps them, and what a table and a chart take
//! from them. Pure but for [`load`] and [`save`].
//!
//! Times are wall-clock seconds of the guest, in which time is stretched: they say something
//! only beside each other.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::shares::Share;
use crate::stats::{interval, median};

/// The system that all others are compared with.
pub(crate) const FIRST_TOUCH: &str = "first-touch";

/// First touch on a machine whose node 0 holds all: as fast as it can be. And of its misses those that
/// this node has to serve: the rest are of what a program maps from files that lie elsewhere already.
pub(crate) const BOUND: &str = "bound";
const ALL: f64 = 0.97;

/// Systems that are this project's daemon, by its policies.
pub(crate) const OURS: [&str; 3] = ["adaptive", "hm-keeper", "ial"];

/// Workloads of whose memory nothing is accessed more than the rest: there is nothing to gain by
/// what lies where.
const WITHOUT_GAIN: [&str; 2] = ["stream", "uniform"];

/// Others may take so much of a CPU of the host.
const DISTURBED: f64 = 0.1;

/// A count per memory node.
pub(crate) type ByNode = BTreeMap<u32, u64>;

/// Nodes are strings as keys in JSON, which a flattened struct does not turn back by itself.
mod by_node {
    use std::collections::BTreeMap;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<T: Serialize, S: Serializer>(
        map: &BTreeMap<u32, T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_map(map.iter().map(|(node, value)| (node.to_string(), value)))
    }

    pub(super) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<u32, T>, D::Error> {
        let map = BTreeMap::<String, T>::deserialize(from)?;
        map.into_iter()
            .map(|(node, value)| Ok((node.parse().map_err(D::Error::custom)?, value)))
            .collect()
    }
}

/// What the guest measured of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Of the measured phase, as the workload timed it.
    pub(crate) seconds: f64,
    /// What the workload did in it, in its own unit.
    pub(crate) operations: u64,
    /// Misses of the modelled cache by the workload's own code, by the node that served them.
    #[serde(with = "by_node")]
    pub(crate) misses_by_node: ByNode,
    /// Milliseconds of the modelled machine for which it waited for these nodes.
    #[serde(with = "by_node")]
    pub(crate) waited_ms_by_node: BTreeMap<u32, f64>,
    /// Misses of the kernel, whoever it worked for.
    #[serde(with = "by_node")]
    pub(crate) kernel_misses_by_node: ByNode,
    /// By whom it was that moved: the daemon's own count, or the kernel's.
    pub(crate) moved_bytes: u64,
    /// The part of it that went to a faster node, where that is told.
    pub(crate) promoted_bytes: Option<u64>,
    /// What the kernel says that was moved, by whomever (`pgmigrate_success`).
    pub(crate) kernel_moved_bytes: u64,
    /// Of the daemon and of the kernel's threads that watch and demote.
    pub(crate) daemon_cpu_seconds: f64,
    /// Of the workload in the measured phase: its own code, and the kernel for it.
    pub(crate) workload_user_seconds: f64,
    /// See above.
    pub(crate) workload_system_seconds: f64,
    /// What the daemon says of itself at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) daemon: Option<Daemon>,
    /// What it says that each node serves, time after time, where it was asked (`--shares`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) shares: Vec<Vec<Share>>,
    /// What DAMON says of its schemes at the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) schemes: Vec<Scheme>,
    /// Percentiles of one operation's time, where the workload takes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) latency: Option<Latency>,
}

/// What the daemon knew of the workload in its last epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Daemon {
    /// Since its start.
    pub(crate) epochs: u64,
    /// How long they are now: longer than asked for where less could not be paid for.
    pub(crate) epoch_seconds: f64,
    /// In which it watches the workload.
    pub(crate) regions: u64,
    /// Pages that it watched.
    pub(crate) samples: u64,
    /// Hot in at least half of its scans.
    pub(crate) hot_bytes: u64,
    /// Why it moved nothing, if it said so.
    pub(crate) paused: Vec<String>,
}

/// What DAMON tells of one scheme (Documentation/admin-guide/mm/damon/usage.rst, `stats`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Scheme {
    /// Whose pages it moves.
    pub(crate) node: u32,
    /// What it does.
    pub(crate) action: String,
    /// The sampling interval, as it is or has tuned itself.
    pub(crate) sample_us: u64,
    /// Of regions that fit the scheme, within its quota.
    pub(crate) tried_bytes: u64,
    /// The part that a filter had not excluded.
    pub(crate) passed_bytes: u64,
    /// The part that was moved.
    pub(crate) applied_bytes: u64,
    /// How often the quota ended an interval's moves.
    pub(crate) quota_exceeded: u64,
    /// The quota at the end; zero: unlimited.
    pub(crate) quota_bytes: u64,
}

/// Microseconds of the guest.
#[allow(clippy::struct_field_names, reason = "their unit")]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latency {
    /// Half of the operations took no longer.
    pub(crate) p50_us: f64,
    /// 99 of 100.
    pub(crate) p99_us: f64,
    /// The longest.
    pub(crate) max_us: f64,
}

/// One run of one workload under one system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The run set.
    pub(crate) set: String,
    /// What ran.
    pub(crate) workload: String,
    /// Who placed its memory.
    pub(crate) system: String,
    /// The system's periods are so many times their defaults.
    pub(crate) pace: f64,
    /// From 1.
    pub(crate) run: u32,
    /// Seconds by those of first touch in the same run; `None` while that is not there.
    pub(crate) relative_to_first_touch: Option<f64>,
    /// CPU seconds that others took of the host meanwhile: its guest had so much less.
    pub(crate) host_others_cpu_seconds: f64,
    /// The commit that was measured, with `+` where the tree had changes.
    pub(crate) commit: String,
    /// The machine that it ran on; empty where that was not kept.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) host: String,
    /// The measurement.
    #[serde(flatten)]
    pub(crate) measured: Measured,
}

impl Row {
    /// Whether it is this run, on this machine.
    pub(crate) fn is(&self, job: &Job, host: &str) -> bool {
        self.host == host
            && self.set == job.set
            && self.workload == job.workload
            && self.system == job.system
            && (self.pace - job.pace).abs() < 1e-9
            && self.run == job.run
    }

    /// What cannot be, if anything: a result that nobody should take for one.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        let m = &self.measured;
        let misses: u64 = m.misses_by_node.values().sum();
        match () {
            () if !(m.seconds.is_finite() && m.seconds > 0.0) => Some("no time"),
            () if m.operations == 0 => Some("no operations"),
            () if misses == 0 => Some("no misses"),
            () if m.daemon_cpu_seconds < 0.0 => Some("CPU time below zero"),
            () if self.system == BOUND && self.share_of(0) < ALL => {
                Some("not everything was in the fastest tier")
            }
            () => None,
        }
    }

    /// Whether others took so much of the host's time that the figures say little.
    pub(crate) fn is_disturbed(&self) -> bool {
        self.host_others_cpu_seconds > DISTURBED * self.measured.seconds
    }

    /// Nanoseconds of the modelled machine that a miss of the workload waited on average: how
    /// good the placement was, whatever it cost and whatever else the host did.
    pub(crate) fn wait_ns(&self) -> f64 {
        let misses: u64 = self.measured.misses_by_node.values().sum();
        let waited: f64 = self.measured.waited_ms_by_node.values().sum();
        waited * 1e6 / misses.max(1) as f64
    }

    /// Seconds of the guest in which the workload waited for memory: of the modelled machine's
    /// `stretch` times as long.
    fn waited(&self, stretch: f64) -> f64 {
        self.measured.waited_ms_by_node.values().sum::<f64>() / 1e3 * stretch
    }

    /// The part of the misses that this node served.
    pub(crate) fn share_of(&self, node: u32) -> f64 {
        let all: u64 = self.measured.misses_by_node.values().sum();
        let part = self.measured.misses_by_node.get(&node).copied();
        part.unwrap_or(0) as f64 / all.max(1) as f64
    }
}

/// A run that is to be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Job {
    /// See [`Row`].
    pub(crate) set: &'static str,
    /// See [`Row`].
    pub(crate) workload: &'static str,
    /// See [`Row`].
    pub(crate) system: &'static str,
    /// See [`Row`].
    pub(crate) pace: f64,
    /// See [`Row`].
    pub(crate) run: u32,
}

/// What a file holds; nothing when it is not there.
pub(crate) fn load(path: &Path) -> io::Result<Vec<Row>> {
    match std::fs::read_to_string(path) {
        Ok(text) => serde_json::from_str(&text)
            .map_err(|e| io::Error::other(format!("{}: {e}", path.display()))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(io::Error::new(e.kind(), format!("{}: {e}", path.display()))),
    }
}

/// Writes all rows, one a line, aside and then in place.
pub(crate) fn save(path: &Path, rows: &[Row]) -> io::Result<()> {
    let lines: Vec<String> = rows
        .iter()
        .map(serde_json::to_string)
        .collect::<Result<_, _>>()?;
    let text = format!("[\n{}\n]\n", lines.join(",\n"));
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let aside = path.with_extension("json.new");
    std::fs::write(&aside, text)?;
    std::fs::rename(&aside, path)
}

/// Sets each row's relation to first touch anew, which must have done the same work on the same
/// machine.
pub(crate) fn relate(rows: &mut [Row]) {
    let key = |r: &Row| {
        let work = (r.workload.clone(), r.measured.operations);
        (r.set.clone(), r.host.clone(), work, r.run)
    };
    let first: BTreeMap<_, f64> = rows
        .iter()
        .filter(|r| r.system == FIRST_TOUCH)
        .map(|r| (key(r), r.measured.seconds))
        .collect();
    for row in rows {
        row.relative_to_first_touch = first.get(&key(row)).map(|f| row.measured.seconds / f);
    }
}

/// All runs of one workload under one system at one pace: medians.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cell {
    /// See [`Row`].
    pub(crate) workload: String,
    /// See [`Row`].
    pub(crate) system: String,
    /// See [`Row`].
    pub(crate) pace: f64,
    /// How many.
    pub(crate) runs: usize,
    /// Of the guest.
    pub(crate) seconds: f64,
    /// See [`Row`].
    pub(crate) relative: Option<f64>,
    /// The 95 % interval of its mean over such runs.
    pub(crate) interval: Option<(f64, f64)>,
    /// See [`modelled`].
    pub(crate) modelled: Option<f64>,
    /// The part of the misses that each node served.
    pub(crate) shares: BTreeMap<u32, f64>,
    /// See [`Row::wait_ns`].
    pub(crate) wait_ns: f64,
    /// See [`Measured`].
    pub(crate) moved_bytes: f64,
    /// See [`Measured`].
    pub(crate) daemon_cpu_seconds: f64,
    /// Of the workload's time, in the kernel.
    pub(crate) system_seconds: f64,
}

/// A row's time relative to first touch in the same run, had its own code computed as fast as
/// there: the time in which first touch did not wait, with the waiting of this row and what the
/// kernel did for it. Leaves out what the host did meanwhile, and what moves cost the
/// workload elsewhere than in memory and the kernel.
fn modelled(row: &Row, rows: &[Row], stretch: f64) -> Option<f64> {
    let first = rows.iter().find(|r| {
        r.system == FIRST_TOUCH
            && r.set == row.set
            && r.host == row.host
            && r.workload == row.workload
            && r.run == row.run
            && r.measured.operations == row.measured.operations
    })?;
    let kernel = |r: &Row| r.measured.workload_system_seconds;
    let computed = first.measured.seconds - first.waited(stretch) - kernel(first);
    Some((computed + row.waited(stretch) + kernel(row)) / first.measured.seconds)
}

impl Cell {
    /// The system, with its pace where that is not its own.
    pub(crate) fn name(&self) -> String {
        named(&self.system, self.pace)
    }

    /// Whether a system can gain by what it places where.
    pub(crate) fn has_gain(&self) -> bool {
        !WITHOUT_GAIN.contains(&self.workload.as_str())
    }
}

/// A system and its pace.
pub(crate) fn named(system: &str, pace: f64) -> String {
    if (pace - 1.0).abs() < 1e-9 {
        system.to_owned()
    } else {
        format!("{system} x{pace}")
    }
}

/// The machine whose rows are to be shown: this one, or else the one that has most of them.
pub(crate) fn shown_host(rows: &[Row], here: &str) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for row in rows {
        *counts.entry(&row.host).or_default() += 1;
    }
    let most = counts.iter().max_by_key(|(_, count)| **count);
    match most {
        Some((host, _)) if !counts.contains_key(here) => (*host).to_owned(),
        _ => here.to_owned(),
    }
}

/// Commits that were measured, the first ones first, with how many rows each has.
pub(crate) fn commits(rows: &[Row]) -> Vec<(&str, usize)> {
    let mut commits: Vec<(&str, usize)> = Vec::new();
    for row in rows {
        match commits.iter_mut().find(|(commit, _)| *commit == row.commit) {
            Some((_, count)) => *count += 1,
            None => commits.push((&row.commit, 1)),
        }
    }
    commits
}

/// Cells in the order in which their first rows come. A second of the modelled machine is
/// `stretch` of the guest.
pub(crate) fn cells(rows: &[Row], stretch: f64) -> Vec<Cell> {
    let mut groups: Vec<Vec<&Row>> = Vec::new();
    for row in rows {
        let same = |r: &Row| {
            r.workload == row.workload && r.system == row.system && (r.pace - row.pace).abs() < 1e-9
        };
        match groups.iter_mut().find(|g| same(g[0])) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups
        .iter()
        .map(|group| cell(group, rows, stretch))
        .collect()
}

fn cell(group: &[&Row], all: &[Row], stretch: f64) -> Cell {
    let of = |get: &dyn Fn(&Row) -> f64| {
        median(group.iter().map(|r| get(r)).collect()).unwrap_or_default()
    };
    let nodes: std::collections::BTreeSet<u32> = group
        .iter()
        .flat_map(|r| r.measured.misses_by_node.keys().copied())
        .collect();
    let related = group.iter().filter_map(|r| r.relative_to_first_touch);
    let related: Vec<f64> = related.collect();
    let modelled = group.iter().filter_map(|r| modelled(r, all, stretch));
    Cell {
        workload: group[0].workload.clone(),
        system: group[0].system.clone(),
        pace: group[0].pace,
        runs: group.len(),
        seconds: of(&|r| r.measured.seconds),
        interval: interval(&related),
        relative: median(related),
        modelled: median(modelled.collect()),
        shares: nodes.iter().map(|&n| (n, of(&|r| r.share_of(n)))).collect(),
        wait_ns: of(&Row::wait_ns),
        moved_bytes: of(&|r| r.measured.moved_bytes as f64),
        daemon_cpu_seconds: of(&|r| r.measured.daemon_cpu_seconds),
        system_seconds: of(&|r| r.measured.workload_system_seconds),
    }
}

/// Of several paces of a system the one that is fastest over all workloads (by the geometric
/// mean of its times, on the workloads that all its paces have run).
pub(crate) fn best_paces(cells: &[Cell]) -> Vec<Cell> {
    let mut best: Vec<(&str, f64)> = Vec::new();
    let mut systems: Vec<&str> = cells.iter().map(|c| c.system.as_str()).collect();
    systems.dedup();
    for system in systems {
        if best.iter().any(|(s, _)| *s == system) {
            continue;
        }
        let own: Vec<&Cell> = cells.iter().filter(|c| c.system == system).collect();
        let mut paces: Vec<f64> = own.iter().map(|c| c.pace).collect();
        paces.sort_by(f64::total_cmp);
        paces.dedup();
        let everywhere =
            |workload: &str| own.iter().filter(|c| c.workload == workload).count() == paces.len();
        let cost = |pace: f64| -> f64 {
            own.iter()
                .filter(|c| c.pace.total_cmp(&pace).is_eq() && everywhere(&c.workload))
                .map(|c| c.seconds.ln())
                .sum()
        };
        let fastest = paces
            .iter()
            .copied()
            .min_by(|a, b| cost(*a).total_cmp(&cost(*b)));
        best.push((system, fastest.unwrap_or(1.0)));
    }
    cells
        .iter()
        .filter(|c| {
            best.iter()
                .any(|(s, pace)| *s == c.system && pace.total_cmp(&c.pace).is_eq())
        })
        .cloned()
        .collect()
}
