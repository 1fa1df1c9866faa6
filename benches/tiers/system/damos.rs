//! DAMON-based schemes for tiering, as `scripts/mem_tier.sh` of damo and the kernel's
//! `samples/damon/mtier.c` set them up: page frames are watched, by one thread for the fastest node,
//! whose cold pages are demoted, and one for the others, whose hot pages are promoted, each at
//! most 200 MB a second and as the fastest node's free memory asks for; the last check
//! is whether a page was accessed lately. Intervals tune themselves from 5 ms to 10 s.
//!
//! Both sources know two nodes. Here cold pages go to node 1, the next by latency, and hot
//! ones come from nodes 1 to 3.

use std::path::{Path, PathBuf};

use hmkeeper::units::PAGE_BYTES;

use super::{System, write};

const ADMIN: &str = "/sys/kernel/mm/damon/admin/kdamonds";
/// At a pace of 1, in microseconds.
const SAMPLE: f64 = 5000.0;
const AGGREGATION: f64 = 100_000.0;
const LONGEST_SAMPLE: f64 = 10_000_000.0;
const APPLY: f64 = 1_000_000.0;
/// Of a second at that pace.
const QUOTA_BYTES: f64 = 200_000_000.0;
const UNBOUNDED: &str = "4294967295";

/// DAMOS with paces.
pub(super) struct Damos {
    pub(super) pace: f64,
}

/// What one thread does.
struct Scheme {
    nodes: &'static [u32],
    action: &'static str,
    to: u32,
    /// Of 20 checks, those that see an access: at least, at most.
    accesses: [&'static str; 2],
    goal: [&'static str; 2],
    /// Whether what was accessed lately is moved, or what was not.
    young: &'static str,
}

const SCHEMES: [Scheme; 2] = [
    Scheme {
        nodes: &[0],
        action: "migrate_cold",
        to: 1,
        accesses: ["0", "0"],
        goal: ["node_mem_free_bp", "50"],
        young: "N",
    },
    Scheme {
        nodes: &[1, 2, 3],
        action: "migrate_hot",
        to: 0,
        accesses: ["1", UNBOUNDED],
        goal: ["node_mem_used_bp", "9970"],
        young: "Y",
    },
];

impl System for Damos {
    fn start(&mut self, _: u32) -> Result<(), String> {
        let zones = std::fs::read_to_string("/proc/zoneinfo").map_err(|e| e.to_string())?;
        write(&format!("{ADMIN}/nr_kdamonds"), &SCHEMES.len().to_string())?;
        for (i, scheme) in SCHEMES.iter().enumerate() {
            let dir = PathBuf::from(format!("{ADMIN}/{i}"));
            put(&dir, "contexts/nr_contexts", "1")?;
            let context = dir.join("contexts/0");
            put(&context, "operations", "paddr")?;
            self.intervals(&context.join("monitoring_attrs"))?;
            targets(&context.join("targets"), &frames(&zones, scheme.nodes))?;
            put(&context, "schemes/nr_schemes", "1")?;
            self.scheme(&context.join("schemes/0"), scheme)?;
        }
        for i in 0..SCHEMES.len() {
            write(&format!("{ADMIN}/{i}/state"), "on")?;
        }
        Ok(())
    }
}

impl Damos {
    fn us(&self, at_pace_one: f64) -> String {
        format!("{:.0}", (at_pace_one * self.pace).max(1.0))
    }

    fn intervals(&self, attrs: &Path) -> Result<(), String> {
        put(attrs, "intervals/sample_us", &self.us(SAMPLE))?;
        put(attrs, "intervals/aggr_us", &self.us(AGGREGATION))?;
        put(attrs, "nr_regions/min", "10")?;
        put(attrs, "nr_regions/max", "1000")?;
        let goal = attrs.join("intervals/intervals_goal");
        put(&goal, "access_bp", "400")?;
        put(&goal, "aggrs", "3")?;
        put(&goal, "min_sample_us", &self.us(SAMPLE))?;
        put(&goal, "max_sample_us", &self.us(LONGEST_SAMPLE))
    }

    fn scheme(&self, dir: &Path, scheme: &Scheme) -> Result<(), String> {
        put(dir, "action", scheme.action)?;
        put(dir, "target_nid", &scheme.to.to_string())?;
        put(dir, "apply_interval_us", &self.us(APPLY))?;
        put(dir, "access_pattern/sz/min", "4096")?;
        put(dir, "access_pattern/sz/max", &u64::MAX.to_string())?;
        put(dir, "access_pattern/nr_accesses/min", scheme.accesses[0])?;
        put(dir, "access_pattern/nr_accesses/max", scheme.accesses[1])?;
        put(dir, "access_pattern/age/min", "0")?;
        put(dir, "access_pattern/age/max", UNBOUNDED)?;
        let bytes = format!("{:.0}", QUOTA_BYTES * self.pace);
        put(dir, "quotas/bytes", &bytes)?;
        let milliseconds = (APPLY * self.pace / 1000.0).max(1.0);
        put(
            dir,
            "quotas/reset_interval_ms",
            &format!("{milliseconds:.0}"),
        )?;
        put(dir, "quotas/weights/sz_permil", "0")?;
        put(dir, "quotas/weights/nr_accesses_permil", "100")?;
        put(dir, "quotas/weights/age_permil", "100")?;
        put(dir, "quotas/goals/nr_goals", "1")?;
        put(dir, "quotas/goals/0/target_metric", scheme.goal[0])?;
        put(dir, "quotas/goals/0/target_value", scheme.goal[1])?;
        put(dir, "quotas/goals/0/nid", "0")?;
        put(dir, "filters/nr_filters", "1")?;
        put(dir, "filters/0/type", "young")?;
        put(dir, "filters/0/matching", "Y")?;
        put(dir, "filters/0/allow", scheme.young)
    }
}

fn put(dir: &Path, file: &str, value: &str) -> Result<(), String> {
    write(&dir.join(file).to_string_lossy(), value)
}

/// One target with these regions.
fn targets(dir: &Path, regions: &[(u64, u64)]) -> Result<(), String> {
    put(dir, "nr_targets", "1")?;
    put(dir, "0/regions/nr_regions", &regions.len().to_string())?;
    for (i, (start, end)) in regions.iter().enumerate() {
        put(dir, &format!("0/regions/{i}/start"), &start.to_string())?;
        put(dir, &format!("0/regions/{i}/end"), &end.to_string())?;
    }
    Ok(())
}

/// The physical addresses of these nodes' zones, ascending, neighbours joined.
fn frames(zoneinfo: &str, nodes: &[u32]) -> Vec<(u64, u64)> {
    let mut all: Vec<(u64, u64)> = Vec::new();
    let mut is_wanted = false;
    let mut pages = 0;
    for line in zoneinfo.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["Node", node, "zone", _] => {
                let node = node.trim_end_matches(',').parse();
                is_wanted = node.is_ok_and(|n| nodes.contains(&n));
                pages = 0;
            }
            ["spanned", count] => pages = count.parse().unwrap_or(0),
            ["start_pfn:", frame] if is_wanted && pages > 0 => {
                let start: u64 = frame.parse().unwrap_or(0);
                all.push((start * PAGE_BYTES, (start + pages) * PAGE_BYTES));
            }
            _ => {}
        }
    }
    all.sort_unstable();
    all.dedup_by(|next, last| {
        let joins = next.0 <= last.1;
        if joins {
            last.1 = last.1.max(next.1);
        }
        joins
    });
    all
}
