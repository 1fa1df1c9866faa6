//! DAMON over virtual addresses with regions of its own, driven through sysfs as
//! `damo` does.

use std::fs;
use std::path::PathBuf;

use super::score::Belief;

const ADMIN: &str = "/sys/kernel/mm/damon/admin/kdamonds";

/// How often it looks, and at how much.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes {
    pub(crate) sample_us: u64,
    /// Checks per aggregation.
    pub(crate) checks: u64,
    pub(crate) max_regions: u64,
}

/// `damo`'s defaults.
pub(crate) const DEFAULT: Attributes = Attributes {
    sample_us: 5_000,
    checks: 20,
    max_regions: 1_000,
};

/// A kdamond at work; dropping it ends it.
pub(crate) struct Damon {
    attributes: Attributes,
    thread: u32,
}

fn put(path: &str, text: &str) {
    fs::write(format!("{ADMIN}/{path}"), text).unwrap_or_else(|e| panic!("{path}: {e}"));
}

impl Damon {
    pub(crate) fn start(pid: u32, attributes: Attributes) -> Self {
        put("nr_kdamonds", "1");
        put("0/contexts/nr_contexts", "1");
        let context = "0/contexts/0";
        put(&format!("{context}/operations"), "vaddr");
        let attrs = format!("{context}/monitoring_attrs");
        let aggregation = attributes.sample_us * attributes.checks;
        put(
            &format!("{attrs}/intervals/sample_us"),
            &attributes.sample_us.to_string(),
        );
        put(
            &format!("{attrs}/intervals/aggr_us"),
            &aggregation.to_string(),
        );
        put(&format!("{attrs}/intervals/update_us"), "1000000");
        put(
            &format!("{attrs}/nr_regions/max"),
            &attributes.max_regions.to_string(),
        );
        put(&format!("{attrs}/nr_regions/min"), "10");
        put(&format!("{context}/targets/nr_targets"), "1");
        put(&format!("{context}/targets/0/pid_target"), &pid.to_string());
        // A scheme that only passes by all regions shows them.
        put(&format!("{context}/schemes/nr_schemes"), "1");
        let scheme = format!("{context}/schemes/0");
        put(&format!("{scheme}/action"), "stat");
        for bound in ["sz", "nr_accesses", "age"] {
            let max = if bound == "sz" {
                u64::MAX
            } else {
                u32::MAX.into()
            };
            put(
                &format!("{scheme}/access_pattern/{bound}/max"),
                &max.to_string(),
            );
        }
        put("0/state", "on");
        let thread = fs::read_to_string(format!("{ADMIN}/0/pid")).expect("pid");
        Self {
            attributes,
            thread: thread.trim().parse().expect("a pid"),
        }
    }

    /// CPU time of its thread so far, in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        let text = fs::read_to_string(format!("/proc/{}/schedstat", self.thread)).expect("stat");
        let nanos: f64 = text
            .split(' ')
            .next()
            .and_then(|n| n.parse().ok())
            .expect("a number");
        nanos / 1e9
    }

    /// Its regions with the share of checks that saw each accessed.
    pub(crate) fn regions(&self) -> Vec<Belief> {
        put("0/state", "update_schemes_tried_regions");
        let dir = PathBuf::from(format!("{ADMIN}/0/contexts/0/schemes/0/tried_regions"));
        let number = |path: PathBuf| -> u64 {
            let text =
                fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            text.trim().parse().expect("a number")
        };
        let mut all = Vec::new();
        for entry in fs::read_dir(&dir).expect("tried_regions").flatten() {
            let path = entry.path();
            if path.is_dir() {
                let accesses = number(path.join("nr_accesses"));
                all.push(Belief {
                    start: number(path.join("start")),
                    end: number(path.join("end")),
                    heat: accesses as f64 / self.attributes.checks as f64,
                });
            }
        }
        all
    }
}

impl Drop for Damon {
    fn drop(&mut self) {
        let _ = fs::write(format!("{ADMIN}/0/state"), "off");
        let _ = fs::write(format!("{ADMIN}/nr_kdamonds"), "0");
    }
}
