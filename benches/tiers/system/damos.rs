//! DAMON-based schemes for tiering: page frames are watched, by a thread for each node. Of the
//! fastest cold pages are demoted, to node 1, which is the next by latency; of the others hot ones are
//! promoted. Both sources know two nodes, and say nothing of which of several are meant.
//!
//! `damos` is `scripts/mem_tier.sh` of damo, which the kernel's `samples/damon/mtier.c` follows:
//! intervals that tune themselves, 200 MB a second, and whether a page was accessed lately as the
//! last check. Its goals are left out, 0.5 % of node 0 free for demotion and 99.7 % used for
//! promotion: with them it moves nothing here. A quota with a goal grows from one byte on, by
//! the share of the goal that is missing (`damon_feed_loop_next_input`). On a node so small the kernel
//! keeps 3 % free by itself, so the first is always met, and the second but for a
//! hundredth.
//!
//! `hmsdk` is what `tools/gen_migpol.py` of HMSDK writes with `-g`: fixed intervals, what is idle for
//! 30 s is demoted, as last check the same. Its limit to one and two seconds of CPU time in twenty
//! is left out: a move takes 20 times as long here, so that it would allow a 20th.

use std::path::{Path, PathBuf};

use hmkeeper::units::PAGE_BYTES;

use super::{System, write};
use crate::results::Scheme;

const ADMIN: &str = "/sys/kernel/mm/damon/admin/kdamonds";
const UNBOUNDED: &str = "4294967295";

/// DAMOS with paces.
pub(super) struct Damos {
    pub(super) pace: f64,
    pub(super) settings: &'static Settings,
}

/// What a tool writes; times in microseconds at a pace of 1.
pub(super) struct Settings {
    sample: f64,
    aggregation: f64,
    apply: f64,
    /// The longest sampling interval, where the first two tune themselves.
    longest_sample: Option<f64>,
    /// At least, at most.
    regions: [&'static str; 2],
    /// For how long what is to be demoted was idle.
    idle: f64,
    /// That may be moved in one period, and how long that is.
    quota_bytes: f64,
    quota_period: f64,
    /// What goes first where the quota is too small: by accesses and by age, in thousandths.
    weights: [&'static str; 2],
    /// The file of a context that came last of those that it writes, and with which Linux.
    youngest: (&'static str, &'static str),
}

/// damo's, changed as told above.
pub(super) static DAMO: Settings = Settings {
    sample: 5000.0,
    aggregation: 100_000.0,
    apply: 1_000_000.0,
    longest_sample: Some(10_000_000.0),
    regions: ["10", "1000"],
    idle: 0.0,
    quota_bytes: 200_000_000.0,
    quota_period: 1_000_000.0,
    weights: ["100", "100"],
    youngest: ("monitoring_attrs/intervals/intervals_goal", "6.15"),
};

/// HMSDK's.
pub(super) static HMSDK: Settings = Settings {
    sample: 100_000.0,
    aggregation: 2_000_000.0,
    apply: 2_000_000.0,
    longest_sample: None,
    regions: ["100", "10000"],
    idle: 30_000_000.0,
    quota_bytes: 50e9,
    quota_period: 20_000_000.0,
    weights: ["0", "10"],
    youngest: ("schemes/0/filters/0/allow", "6.14"),
};

/// Whose pages go where.
struct Rule {
    node: u32,
    action: &'static str,
    to: u32,
    /// Of 20 checks, those that see an access: at least, at most.
    accesses: [&'static str; 2],
    /// Whether a page that was accessed lately is moved at last, or one that was not.
    young: &'static str,
}

const COLD: Rule = Rule {
    node: 0,
    action: "migrate_cold",
    to: 1,
    accesses: ["0", "0"],
    young: "N",
};

const fn hot(node: u32) -> Rule {
    Rule {
        node,
        action: "migrate_hot",
        to: 0,
        accesses: ["1", UNBOUNDED],
        young: "Y",
    }
}

/// One thread each.
const RULES: [Rule; 4] = [COLD, hot(1), hot(2), hot(3)];

impl System for Damos {
    fn missing(&self) -> Result<Option<String>, String> {
        let (file, linux) = self.settings.youngest;
        let context = Path::new(ADMIN).join("0/contexts/0");
        let is_there = Path::new(ADMIN).exists() && {
            write(&format!("{ADMIN}/nr_kdamonds"), "1")?;
            put(Path::new(ADMIN), "0/contexts/nr_contexts", "1")?;
            put(&context, "schemes/nr_schemes", "1")?;
            put(&context, "schemes/0/filters/nr_filters", "1")?;
            let is_there = context.join(file).exists();
            write(&format!("{ADMIN}/nr_kdamonds"), "0")?;
            is_there
        };
        let why = format!("it needs DAMON as of Linux {linux}: this kernel's has no {file}");
        Ok((!is_there).then_some(why))
    }

    fn start(&mut self, _: u32) -> Result<(), String> {
        let zones = std::fs::read_to_string("/proc/zoneinfo").map_err(|e| e.to_string())?;
        write(&format!("{ADMIN}/nr_kdamonds"), &RULES.len().to_string())?;
        for (i, rule) in RULES.iter().enumerate() {
            let dir = PathBuf::from(format!("{ADMIN}/{i}"));
            put(&dir, "contexts/nr_contexts", "1")?;
            let context = dir.join("contexts/0");
            put(&context, "operations", "paddr")?;
            self.intervals(&context.join("monitoring_attrs"))?;
            targets(&context.join("targets"), &frames(&zones, rule.node))?;
            put(&context, "schemes/nr_schemes", "1")?;
            self.scheme(&context.join("schemes/0"), rule)?;
        }
        for i in 0..RULES.len() {
            write(&format!("{ADMIN}/{i}/state"), "on")?;
        }
        Ok(())
    }

    fn stop(&mut self) -> Result<(), String> {
        for i in 0..RULES.len() {
            write(&format!("{ADMIN}/{i}/state"), "off")?;
        }
        write(&format!("{ADMIN}/nr_kdamonds"), "0")
    }

    fn schemes(&self) -> Result<Vec<Scheme>, String> {
        RULES
            .iter()
            .enumerate()
            .map(|(i, rule)| self.told(&PathBuf::from(format!("{ADMIN}/{i}")), rule))
            .collect()
    }
}

impl Damos {
    fn us(&self, at_pace_one: f64) -> String {
        format!("{:.0}", (at_pace_one * self.pace).max(1.0))
    }

    fn ms(&self, at_pace_one: f64) -> String {
        format!("{:.0}", at_pace_one * self.pace)
    }

    fn intervals(&self, attrs: &Path) -> Result<(), String> {
        let settings = self.settings;
        put(attrs, "intervals/sample_us", &self.us(settings.sample))?;
        put(attrs, "intervals/aggr_us", &self.us(settings.aggregation))?;
        put(attrs, "nr_regions/max", settings.regions[1])?;
        put(attrs, "nr_regions/min", settings.regions[0])?;
        let Some(longest) = settings.longest_sample else {
            return Ok(());
        };
        let goal = attrs.join("intervals/intervals_goal");
        put(&goal, "access_bp", "400")?;
        put(&goal, "aggrs", "3")?;
        put(&goal, "min_sample_us", &self.us(settings.sample))?;
        put(&goal, "max_sample_us", &self.us(longest))
    }

    fn scheme(&self, dir: &Path, rule: &Rule) -> Result<(), String> {
        let settings = self.settings;
        let is_cold = rule.action == COLD.action;
        put(dir, "action", rule.action)?;
        put(dir, "target_nid", &rule.to.to_string())?;
        put(dir, "apply_interval_us", &self.us(settings.apply))?;
        put(dir, "access_pattern/sz/min", "4096")?;
        put(dir, "access_pattern/sz/max", &u64::MAX.to_string())?;
        put(dir, "access_pattern/nr_accesses/min", rule.accesses[0])?;
        put(dir, "access_pattern/nr_accesses/max", rule.accesses[1])?;
        // In aggregation intervals, which are as much longer or shorter as the pace says.
        let idle = if is_cold { settings.idle } else { 0.0 };
        let age = format!("{:.0}", idle / settings.aggregation);
        put(dir, "access_pattern/age/min", &age)?;
        put(dir, "access_pattern/age/max", UNBOUNDED)?;
        let bytes = format!("{:.0}", settings.quota_bytes * self.pace);
        put(dir, "quotas/bytes", &bytes)?;
        let period = self.ms(settings.quota_period / 1000.0);
        put(dir, "quotas/reset_interval_ms", &period)?;
        put(dir, "quotas/weights/sz_permil", "0")?;
        put(
            dir,
            "quotas/weights/nr_accesses_permil",
            settings.weights[0],
        )?;
        put(dir, "quotas/weights/age_permil", settings.weights[1])?;
        put(dir, "filters/nr_filters", "1")?;
        put(dir, "filters/0/type", "young")?;
        put(dir, "filters/0/matching", "Y")?;
        put(dir, "filters/0/allow", rule.young)
    }

    /// What a thread says of its scheme.
    fn told(&self, dir: &Path, rule: &Rule) -> Result<Scheme, String> {
        put(dir, "state", "update_schemes_stats")?;
        put(dir, "state", "update_schemes_effective_quotas")?;
        if self.settings.longest_sample.is_some() {
            put(dir, "state", "update_tuned_intervals")?;
        }
        let get = |file: &str| -> Result<u64, String> {
            let path = dir.join("contexts/0").join(file);
            let text =
                std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            let number = text.trim().parse();
            number.map_err(|e| format!("{}: {text:?}: {e}", path.display()))
        };
        Ok(Scheme {
            node: rule.node,
            action: rule.action.to_owned(),
            sample_us: get("monitoring_attrs/intervals/sample_us")?,
            tried_bytes: get("schemes/0/stats/sz_tried")?,
            passed_bytes: get("schemes/0/stats/sz_ops_filter_passed")?,
            applied_bytes: get("schemes/0/stats/sz_applied")?,
            quota_exceeded: get("schemes/0/stats/qt_exceeds")?,
            quota_bytes: get("schemes/0/quotas/effective_bytes")?,
        })
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

/// The physical addresses of a node's zones, ascending, neighbours joined.
fn frames(zoneinfo: &str, wanted: u32) -> Vec<(u64, u64)> {
    let mut all: Vec<(u64, u64)> = Vec::new();
    let mut is_wanted = false;
    let mut pages = 0;
    for line in zoneinfo.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["Node", node, "zone", _] => {
                is_wanted = node.trim_end_matches(',').parse() == Ok(wanted);
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
