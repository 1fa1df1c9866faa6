//! Results as text: a line as each run ends, and a table of all. Pure.

use crate::results::{Cell, FIRST_TOUCH, Row};
use crate::stats::geometric_mean;

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
        &system(&row.system, row.pace),
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
            &system(&cell.system, cell.pace),
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
    let mut systems: Vec<&str> = Vec::new();
    for cell in cells {
        if !systems.contains(&cell.system.as_str()) {
            systems.push(&cell.system);
        }
    }
    let mut text = means_line("geometric means", "where placement matters", "elsewhere");
    for system in systems {
        let mean = |gains: bool| {
            let own = cells
                .iter()
                .filter(|c| c.system == system && c.has_gain() == gains);
            let relative: Vec<f64> = own.filter_map(|c| c.relative).collect();
            geometric_mean(&relative).map_or("-".to_owned(), |m| format!("{m:.3}"))
        };
        text += &means_line(system, &mean(true), &mean(false));
    }
    text
}

fn means_line(system: &str, gain: &str, none: &str) -> String {
    format!("  {system:<16} {gain:>23} {none:>9}\n")
}

fn system(name: &str, pace: f64) -> String {
    if (pace - 1.0).abs() < 1e-9 {
        name.to_owned()
    } else {
        format!("{name} x{pace}")
    }
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
