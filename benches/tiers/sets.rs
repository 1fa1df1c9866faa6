//! Run sets by name. Pure.

use crate::results::{Job, OURS, Row};
use crate::workload::Size;
use crate::{system, workload};

/// What is to be run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Set {
    /// Its name.
    pub(crate) name: &'static str,
    /// Of every workload in it.
    pub(crate) size: Size,
    workloads: &'static [&'static str],
    systems: &'static [(&'static str, &'static [f64])],
    runs: u32,
    /// Guests that run at the same time; more than one where no time is judged, and there
    /// several runs share a guest: to boot one takes as long as a short run.
    pub(crate) at_once: usize,
}

/// Names and what they are for.
static ALL: [Set; 4] = [
    // Whether everything works: each system once, each workload once. No time is judged.
    Set {
        name: "smoke",
        size: Size::Smoke,
        workloads: &workload::NAMES,
        systems: &[],
        runs: 1,
        at_once: 2,
    },
    // Under an hour on two cores. Runs are short: the daemon has a third of its period,
    // the kernel its own; `full` sweeps both.
    Set {
        name: "default",
        size: Size::Short,
        workloads: &["gups", "sqlite", "stream", "uniform"],
        systems: &[
            ("first-touch", &[1.0]),
            ("numab2", &[1.0]),
            ("adaptive", &[0.3]),
            ("hm-keeper", &[0.3]),
            ("ial", &[0.3]),
        ],
        runs: 3,
        at_once: 1,
    },
    // How long requests take, those while pages move among them.
    Set {
        name: "latency",
        size: Size::Normal,
        workloads: &["redis"],
        systems: &[
            ("first-touch", &[1.0]),
            ("numab2", &[1.0]),
            ("adaptive", &[0.3]),
        ],
        runs: 5,
        at_once: 1,
    },
    // Everything, with a sweep of periods, the same for all that have any: 170 runs a round.
    Set {
        name: "full",
        size: Size::Normal,
        workloads: &workload::NAMES,
        systems: &[
            ("first-touch", &[1.0]),
            ("bound", &[1.0]),
            ("interleave", &[1.0]),
            ("numab1", SWEEP),
            ("numab2", SWEEP),
            ("damos", SWEEP),
            ("hmsdk", SWEEP),
            ("adaptive", SWEEP),
            ("hm-keeper", SWEEP),
            ("ial", SWEEP),
        ],
        runs: 3,
        at_once: 1,
    },
];

/// Periods by their defaults, which are a second for NUMA balancing and 10 s for the daemon, and a third
/// of that: runs are short.
const SWEEP: &[f64] = &[1.0, 0.3];

impl Set {
    /// By its name.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|s| s.name == name)
    }

    /// Workloads that are asked for, also such as the set lacks; else its own.
    pub(crate) fn wanted(&self, choice: &Choice) -> Vec<&'static str> {
        let all = if choice.workloads.is_empty() {
            self.workloads
        } else {
            &workload::NAMES
        };
        let wanted = all.iter().copied();
        wanted.filter(|w| choice.has_workload(w)).collect()
    }

    /// What it runs.
    pub(crate) fn workloads(&self) -> impl Iterator<Item = &'static str> {
        self.workloads.iter().copied()
    }

    /// Its runs, in order: all of the first, then all of the second, so that what is there
    /// after any number of them is balanced, and what else the host does meets all alike.
    pub(crate) fn jobs(&self, choice: &Choice) -> Vec<Job> {
        if self.systems.is_empty() {
            return self.each_once(choice);
        }
        let systems: Vec<(&'static str, Vec<f64>)> = system::NAMES
            .into_iter()
            .filter_map(|system| Some((system, self.paces(system, choice)?)))
            .collect();
        let mut jobs = Vec::new();
        for run in 1..=choice.runs.unwrap_or(self.runs) {
            for workload in self.wanted(choice) {
                for (system, paces) in &systems {
                    let one = |&pace| self.job(workload, system, pace, run);
                    jobs.extend(paces.iter().map(one));
                }
            }
        }
        jobs
    }

    const fn job(&self, workload: &'static str, system: &'static str, pace: f64, run: u32) -> Job {
        Job {
            set: self.name,
            workload,
            system,
            pace,
            run,
        }
    }

    /// With which paces a system runs; `None`: it does not.
    fn paces(&self, system: &str, choice: &Choice) -> Option<Vec<f64>> {
        let own = self.systems.iter().find(|(name, _)| *name == system);
        let is_in = choice.has_system(system) && (own.is_some() || !choice.systems.is_empty());
        let paces = match own {
            _ if !system::has_periods(system) => vec![1.0],
            _ if !choice.paces.is_empty() => choice.paces.clone(),
            Some((_, paces)) => paces.to_vec(),
            None => vec![1.0],
        };
        is_in.then_some(paces)
    }

    /// Whether its times say anything.
    pub(crate) const fn is_timed(&self) -> bool {
        self.at_once == 1
    }

    /// Runs by the guest that they are in: each its own, or else those together that leave
    /// each other's alone. `bound` has a larger node 0 than what would move something.
    pub(crate) fn guests<'a>(&self, jobs: &[&'a Job]) -> Vec<Vec<&'a Job>> {
        if self.is_timed() {
            return jobs.iter().map(|&job| vec![job]).collect();
        }
        // What takes longest comes first.
        let kind = |job: &Job| match job.system {
            system if OURS.contains(&system) => 1,
            system if system::has_periods(system) => 0,
            _ => 2,
        };
        let of = |k| jobs.iter().copied().filter(move |job| kind(job) == k);
        let guests = (0..3).map(|k| of(k).collect::<Vec<_>>());
        guests.filter(|g| !g.is_empty()).collect()
    }

    /// Each system once and each workload once, as far as they are there.
    fn each_once(&self, choice: &Choice) -> Vec<Job> {
        let workloads: Vec<&'static str> = self
            .workloads()
            .filter(|w| !choice.absent.contains(w))
            .collect();
        let systems: Vec<&'static str> = system::NAMES
            .into_iter()
            .filter(|s| !choice.absent.contains(s))
            .collect();
        let count = workloads.len().max(systems.len());
        (0..count)
            .map(|i| (workloads[i % workloads.len()], systems[i % systems.len()]))
            .filter(|(workload, system)| choice.has_workload(workload) && choice.has_system(system))
            .map(|(workload, system)| self.job(workload, system, system::short_pace(system), 1))
            .collect()
    }
}

impl Set {
    /// Whether the rows of a set that has each system and each workload once have them all.
    pub(crate) fn covered_by(&self, rows: &[Row], choice: &Choice) -> Result<(), String> {
        if !self.systems.is_empty() || choice.is_part() {
            return Ok(());
        }
        let own = || rows.iter().filter(|r| r.set == self.name);
        let is_there = |name: &&str| own().any(|r| r.workload == **name || r.system == **name);
        let lost: Vec<&str> = self
            .workloads()
            .filter(|w| choice.has_workload(w))
            .chain(system::NAMES.into_iter().filter(|s| choice.has_system(s)))
            .filter(|name| !is_there(name))
            .collect();
        if lost.is_empty() {
            return Ok(());
        }
        Err(format!("{}: no results of {}", self.name, lost.join(", ")))
    }
}

/// What of a set is wanted; empty and `None`: all.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Choice {
    /// Only these workloads, also such as the set lacks
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    workloads: Vec<String>,
    /// Only these systems, also such as the set lacks
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    systems: Vec<String>,
    /// Periods by their defaults, instead of the set's
    #[arg(long, value_delimiter = ',', value_name = "FACTOR,...")]
    paces: Vec<f64>,
    /// Runs of each, instead of the set's
    #[arg(long)]
    runs: Option<u32>,
    /// Workloads whose program is not installed, and systems that the kernel lacks.
    #[arg(skip)]
    pub(crate) absent: Vec<&'static str>,
}

impl Choice {
    pub(crate) fn has_workload(&self, name: &str) -> bool {
        let is_wanted = self.workloads.is_empty() || self.workloads.iter().any(|n| n == name);
        is_wanted && !self.absent.contains(&name)
    }

    fn has_system(&self, name: &str) -> bool {
        let is_wanted = self.systems.is_empty() || self.systems.iter().any(|n| n == name);
        is_wanted && !self.absent.contains(&name)
    }

    /// Whether less is wanted than there is.
    fn is_part(&self) -> bool {
        !self.workloads.is_empty() || !self.systems.is_empty()
    }

    /// Names that nothing has.
    pub(crate) fn unknown(&self) -> Option<&str> {
        let is_workload = |n: &&String| workload::NAMES.contains(&n.as_str());
        let is_system = |n: &&String| system::NAMES.contains(&n.as_str());
        let workload = self.workloads.iter().find(|n| !is_workload(n));
        workload
            .or_else(|| self.systems.iter().find(|n| !is_system(n)))
            .map(String::as_str)
    }
}
