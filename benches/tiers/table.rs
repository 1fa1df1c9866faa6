//! Results as text: a line as each run ends, and a table of all. Pure.

use crate::results::{Cell, FIRST_TOUCH, Latency, Row, named};
use crate::shares::{Share, Sum, summary};
use crate::stats::{geometric_mean, median};

/// Above the lines of [`line`].
pub(crate) fn head(wide: usize) -> String {
    format!(
        "{:wide$}  {:<9} {:<16} {:>3} {:>8} {:>6}  {:<19} {:>7} {:>9} {:>7} {:>7}",
        "",
        "workload",
        "system",
        "run",
        "seconds",
        "rel.",
        "misses by node, %",
        "ns/miss",
        "moved MiB",
        "own CPU",
        "in kern."
    )
}

/// One row: percentages of the misses that nodes 0, 1, … served, how long a miss waited, the
/// daemon's CPU seconds, and those that the kernel took of the workload's own time.
pub(crate) fn line(row: &Row) -> String {
    let m = &row.measured;
    let shares = m.misses_by_node.keys().map(|&n| row.share_of(n));
    values(
        &row.workload,
        &named(&row.system, row.pace),
        &row.run.to_string(),
        m.seconds,
        row.relative_to_first_touch,
        shares,
        [
            row.wait_ns(),
            m.moved_bytes as f64,
            m.daemon_cpu_seconds,
            m.workload_system_seconds,
        ],
    )
}

/// The medians of all runs, by workload.
pub(crate) fn all(cells: &[Cell]) -> String {
    let mut sorted: Vec<&Cell> = cells.iter().collect();
    let first = |w: &str| cells.iter().position(|c| c.workload == w);
    sorted.sort_by_key(|c| first(&c.workload));
    let mut text = head(0) + "  95 % of rel.   model\n";
    for cell in sorted {
        text += "  ";
        text += &values(
            &cell.workload,
            &cell.name(),
            &format!("x{}", cell.runs),
            cell.seconds,
            cell.relative,
            cell.shares.values().copied(),
            [
                cell.wait_ns,
                cell.moved_bytes,
                cell.daemon_cpu_seconds,
                cell.system_seconds,
            ],
        );
        let interval = cell.interval.filter(|_| cell.system != FIRST_TOUCH);
        text += &interval.map_or_else(
            || format!("  {:<13}", "-"),
            |(low, high)| format!("  {low:.3}..{high:<6.3}"),
        );
        text += &cell
            .modelled
            .map_or_else(|| format!("  {:>5}\n", "-"), |m| format!("  {m:.3}\n"));
    }
    text
}

/// Each system's geometric mean of its times relative to first touch, over the workloads where
/// placement matters and over those where nothing is to be gained.
pub(crate) fn means(cells: &[Cell]) -> String {
    let mut systems: Vec<String> = Vec::new();
    for cell in cells {
        if !systems.contains(&cell.name()) {
            systems.push(cell.name());
        }
    }
    let mut text = means_line("geometric means", "where placement matters", "elsewhere");
    for system in systems {
        let mean = |gains: bool| {
            let own = cells
                .iter()
                .filter(|c| c.name() == system && c.has_gain() == gains);
            let relative: Vec<f64> = own.filter_map(|c| c.relative).collect();
            geometric_mean(&relative).map_or("-".to_owned(), |m| format!("{m:.3}"))
        };
        text += &means_line(&system, &mean(true), &mean(false));
    }
    text
}

/// Of workloads that take them: the medians over all runs of the percentiles of an operation's
/// time, and the longest of all. Empty where none does.
pub(crate) fn latencies(rows: &[Row]) -> String {
    let mut groups: Vec<(&str, String, Vec<Latency>)> = Vec::new();
    for row in rows {
        let Some(latency) = row.measured.latency else {
            continue;
        };
        let system = named(&row.system, row.pace);
        let is_one = |g: &&mut (&str, String, _)| g.0 == row.workload && g.1 == system;
        match groups.iter_mut().find(is_one) {
            Some(group) => group.2.push(latency),
            None => groups.push((&row.workload, system, vec![latency])),
        }
    }
    if groups.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "\n  {:<9} {:<16} {:>3} {:>8} {:>8} {:>11}\n",
        "workload", "system", "run", "p50, us", "p99, us", "longest, ms"
    );
    for (workload, system, all) in groups {
        let of = |get: fn(&Latency) -> f64| median(all.iter().map(get).collect()).unwrap_or(0.0);
        let longest = all.iter().map(|l| l.max_us).fold(0.0, f64::max) / 1e3;
        let runs = format!("x{}", all.len());
        let line = format!(
            "  {workload:<9} {system:<16} {runs:>3} {:>8.0} {:>8.0} {longest:>11.0}\n",
            of(|l| l.p50_us),
            of(|l| l.p99_us),
        );
        text += &line;
    }
    text
}

/// Of runs in which the daemon was asked: which share of the accesses each node served, as it said,
/// beside its share of the misses, over all runs. Empty where none was.
pub(crate) fn shares(rows: &[Row]) -> String {
    let mut groups: Vec<(&str, String, Vec<&[Share]>)> = Vec::new();
    for row in rows.iter().filter(|r| !r.measured.shares.is_empty()) {
        let system = named(&row.system, row.pace);
        let times = row.measured.shares.iter().map(Vec::as_slice);
        match (groups.iter_mut()).find(|g| g.0 == row.workload && g.1 == system) {
            Some(group) => group.2.extend(times),
            None => groups.push((&row.workload, system, times.collect())),
        }
    }
    if groups.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "\n  {:<9} {:<16} {:<25} {:<25} {:>12} {:>7}\n",
        "workload", "system", "counted by node, %", "told, %", "within", "wide, %"
    );
    for (workload, system, times) in groups {
        let Some(all) = summary(times.into_iter()) else {
            continue;
        };
        let of = |get: fn(&Sum) -> f64| -> String {
            let shares = all
                .nodes
                .values()
                .map(|n| format!("{:5.1}", get(n) * 100.0));
            shares.collect::<Vec<_>>().join(" ")
        };
        let line = format!(
            "  {workload:<9} {system:<16} {:<25} {:<25} {:>12} {:>7.1}\n",
            of(|n| n.counted),
            of(|n| n.told),
            format!("{} of {}", all.held, all.all),
            all.width * 100.0
        );
        text += &line;
    }
    text
}

fn means_line(system: &str, gain: &str, none: &str) -> String {
    format!("  {system:<16} {gain:>23} {none:>9}\n")
}

fn values(
    workload: &str,
    system: &str,
    run: &str,
    seconds: f64,
    relative: Option<f64>,
    shares: impl Iterator<Item = f64>,
    [wait, moved, own, kernel]: [f64; 4],
) -> String {
    let relative = relative.map_or("-".to_owned(), |r| format!("{r:.3}"));
    let shares: Vec<String> = shares.map(|s| format!("{:4.1}", s * 100.0)).collect();
    let moved = moved / f64::from(1 << 20);
    format!(
        "{workload:<9} {system:<16} {run:>3} {seconds:>8.2} {relative:>6}  {:<19} {wait:>7.0} {moved:>9.0} {own:>7.2} {kernel:>7.2}",
        shares.join(" ")
    )
}
