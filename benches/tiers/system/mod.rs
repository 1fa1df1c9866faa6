//! Who places memory: nobody, the kernel in its several ways, or this project's daemon. Each is set
//! up as its own documentation says; `pace` multiplies its periods.

mod damos;
mod ours;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::results::{BOUND, Daemon, OURS, Scheme};

/// All of them.
pub(crate) const NAMES: [&str; 10] = [
    "first-touch",
    BOUND,
    "interleave",
    "numab1",
    "numab2",
    "damos",
    "hmsdk",
    "adaptive",
    "hm-keeper",
    "ial",
];

/// Whether it does anything now and then.
pub(crate) fn has_periods(name: &str) -> bool {
    !["first-touch", BOUND, "interleave"].contains(&name)
}

/// Those that not every kernel has what they need for.
pub(crate) const BY_KERNEL: [&str; 2] = ["damos", "hmsdk"];

/// At which it does something in a few seconds. `damos` does so anyway, and takes more CPU
/// time the more often it looks.
pub(crate) fn short_pace(name: &str) -> f64 {
    match name {
        "damos" => 2.0,
        "hmsdk" => 0.5,
        _ if has_periods(name) => 0.1,
        _ => 1.0,
    }
}

/// What the daemon says of a process' accesses.
pub(crate) struct Told {
    /// Epochs that it has seen the end of.
    pub(crate) epochs: u64,
    /// How long they are now.
    pub(crate) epoch: Duration,
    /// The time that it speaks of, up to the end of the last one.
    pub(crate) of: Duration,
    /// By node: the share that it serves, and between what bounds that is.
    pub(crate) nodes: BTreeMap<u32, [f64; 3]>,
}

/// One of them, in the guest.
pub(crate) trait System: Sync {
    /// What this kernel lacks that it needs, if anything.
    fn missing(&self) -> Result<Option<String>, String> {
        Ok(None)
    }

    /// The command that the workload is started by, if any.
    fn wrapper(&self) -> Option<&'static [&'static str]> {
        None
    }

    /// Begins; the workload has its memory and does not work yet.
    fn start(&mut self, pid: u32) -> Result<(), String>;

    /// Ends: what runs next in this guest finds nothing of it that moves anything.
    fn stop(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// Its process, if it has one.
    fn daemon(&self) -> Option<u32> {
        None
    }

    /// Bytes that it says it has promoted and demoted of a process, and what else it says;
    /// `None`: ask the kernel.
    fn status(&self, _pid: u32) -> Result<Option<(u64, u64, Daemon)>, String> {
        Ok(None)
    }

    /// What it says that nodes serve of a process' accesses, if it says so.
    fn told(&self, _pid: u32) -> Result<Option<Told>, String> {
        Ok(None)
    }

    /// What it says of its schemes, where it is DAMON.
    fn schemes(&self) -> Result<Vec<Scheme>, String> {
        Ok(Vec::new())
    }
}

/// By its name.
pub(crate) fn named(name: &str, pace: f64) -> Option<Box<dyn System>> {
    Some(match name {
        "first-touch" | BOUND => Box::new(Nothing { wrapper: None }),
        "interleave" => Box::new(Nothing {
            wrapper: Some(&["numactl", "--interleave=all"]),
        }),
        "numab1" => Box::new(Balancing { mode: 1, pace }),
        "numab2" => Box::new(Balancing { mode: 2, pace }),
        "damos" => Box::new(damos::Damos {
            pace,
            settings: &damos::DAMO,
        }),
        "hmsdk" => Box::new(damos::Damos {
            pace,
            settings: &damos::HMSDK,
        }),
        _ => Box::new(ours::Ours::new(
            OURS.into_iter().find(|o| *o == name)?,
            pace,
        )),
    })
}

/// Writes a setting.
pub(crate) fn write(path: &str, value: &str) -> Result<(), String> {
    std::fs::write(path, value).map_err(|e| format!("{path}: writing {value}: {e}"))
}

/// Pages stay where they were touched first.
struct Nothing {
    wrapper: Option<&'static [&'static str]>,
}

impl System for Nothing {
    fn wrapper(&self) -> Option<&'static [&'static str]> {
        self.wrapper
    }

    fn start(&mut self, _: u32) -> Result<(), String> {
        Ok(())
    }
}

/// The kernel's NUMA balancing (Documentation/admin-guide/sysctl/kernel.rst): 1 moves pages to the
/// node of the CPU that uses them; 2 promotes them to a faster tier, for which demotion on
/// reclaim (Documentation/ABI/testing/sysfs-kernel-mm-numa) makes room. The periods are the
/// kernel's defaults, all in debugfs. Within how long what is touched is hot is shorter with shorter
/// periods, but not longer with longer ones: who looks more seldom for the sake of its cost does not
/// want more to be promoted.
struct Balancing {
    mode: u32,
    pace: f64,
}

const BALANCING: &str = "/proc/sys/kernel/numa_balancing";
const DEMOTION: &str = "/sys/kernel/mm/numa/demotion_enabled";
/// Milliseconds.
const PERIODS: [(&str, f64); 3] = [
    ("scan_delay_ms", 1000.0),
    ("scan_period_min_ms", 1000.0),
    ("scan_period_max_ms", 60_000.0),
];
const HOT_WITHIN: (&str, f64) = ("hot_threshold_ms", 1000.0);

impl System for Balancing {
    fn start(&mut self, _: u32) -> Result<(), String> {
        let periods = PERIODS.map(|(name, ms)| (name, ms * self.pace));
        let hot_within = (HOT_WITHIN.0, HOT_WITHIN.1 * self.pace.min(1.0));
        for (name, ms) in periods.into_iter().chain([hot_within]) {
            let value = format!("{:.0}", ms.max(1.0));
            write(
                &format!("/sys/kernel/debug/sched/numa_balancing/{name}"),
                &value,
            )?;
        }
        if self.mode == 2 {
            write(DEMOTION, "1")?;
        }
        write(BALANCING, &self.mode.to_string())
    }

    fn stop(&mut self) -> Result<(), String> {
        write(DEMOTION, "0")?;
        write(BALANCING, "0")
    }
}
