//! Charts as SVG: lying bars, one for each system, in groups by workload. Pure.
//!
//! Nothing in a chart refers to anything outside of it.

use std::fmt::Write as _;

use crate::results::{Cell, OURS};

/// Pixels, where nobody scales it: of all, beside the bars for their names and their values,
/// and of a bar with the gap below it.
const WIDTH: f64 = 760.0;
const LEFT: f64 = 130.0;
const RIGHT: f64 = 90.0;
const ROW: f64 = 18.0;
const BAR: f64 = 13.0;
/// Above the first group, of a group's name, and below the last.
const TOP: f64 = 54.0;
const NAME: f64 = 24.0;
const BOTTOM: f64 = 16.0;
/// Told apart also by the colour-blind (Okabe and Ito 2008).
const COLOURS: [&str; 8] = [
    "#0072b2", "#56b4e9", "#e69f00", "#d55e00", "#009e73", "#cc79a7", "#f0e442", "#999999",
];
/// Of bars of one part: ours, and all others.
const BLUE: &str = "#0072b2";
const GREY: &str = "#999999";

/// One picture.
struct Chart<'a> {
    title: &'a str,
    /// What the colours of a bar's parts stand for; one part needs none.
    parts: &'a [String],
    /// A line across all bars, such as what they are relative to.
    mark: Option<f64>,
    /// The lengths of a bar's parts; `None`: there is none.
    value: &'a dyn Fn(&Cell) -> Option<Vec<f64>>,
    /// What is written behind a bar.
    label: &'a dyn Fn(f64) -> String,
}

/// All charts of these results: what their files are called, and their content.
pub(crate) fn all(cells: &[Cell]) -> Vec<(&'static str, String)> {
    let nodes: std::collections::BTreeSet<u32> = cells
        .iter()
        .flat_map(|c| c.shares.keys().copied())
        .collect();
    let names: Vec<String> = nodes.iter().map(|n| format!("node {n}")).collect();
    let mib = f64::from(1 << 20);
    let shares = |c: &Cell| Some(c.shares.values().copied().collect());
    let charts = [
        (
            "time",
            Chart {
                title: "Time relative to first touch (shorter is better)",
                parts: &[],
                mark: Some(1.0),
                value: &|c| c.relative.map(|r| vec![r]),
                label: &|v| format!("{v:.2}"),
            },
        ),
        (
            "misses",
            Chart {
                title: "Share of the workload's misses that each node served",
                parts: &names,
                mark: None,
                value: &shares,
                label: &|_| String::new(),
            },
        ),
        (
            "moved",
            Chart {
                title: "Moved, MiB",
                parts: &[],
                mark: None,
                value: &|c| Some(vec![c.moved_bytes / mib]),
                label: &|v| format!("{v:.0}"),
            },
        ),
        (
            "cpu",
            Chart {
                title: "CPU time of the daemon and the kernel's threads, by the workload's time",
                parts: &[],
                mark: None,
                value: &|c| Some(vec![c.daemon_cpu_seconds / c.seconds]),
                label: &|v| format!("{:.1} %", v * 100.0),
            },
        ),
    ];
    charts
        .iter()
        .map(|(name, chart)| (*name, draw(chart, cells)))
        .collect()
}

/// Workloads in the order in which they come, each with its systems.
fn groups(cells: &[Cell]) -> Vec<(&str, Vec<&Cell>)> {
    let mut groups: Vec<(&str, Vec<&Cell>)> = Vec::new();
    for cell in cells {
        match groups.iter_mut().find(|(name, _)| *name == cell.workload) {
            Some((_, group)) => group.push(cell),
            None => groups.push((&cell.workload, vec![cell])),
        }
    }
    groups
}

fn draw(chart: &Chart<'_>, cells: &[Cell]) -> String {
    let groups = groups(cells);
    let height = TOP + BOTTOM + groups.len() as f64 * NAME + cells.len() as f64 * ROW;
    let sums = cells
        .iter()
        .filter_map(|c| Some((chart.value)(c)?.iter().sum()));
    let greatest = sums.chain(chart.mark).fold(0.0_f64, f64::max);
    let scale = (WIDTH - LEFT - RIGHT) / if greatest > 0.0 { greatest } else { 1.0 };
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"11\" fill=\"#222\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"10\" y=\"20\" font-size=\"14\">{}</text>\n",
        escaped(chart.title)
    );
    legend(&mut out, chart.parts);
    let mut y = TOP;
    for (workload, group) in groups {
        let line = y + NAME - 8.0;
        let _ = writeln!(
            out,
            "<text x=\"10\" y=\"{line}\" font-weight=\"bold\">{}</text>",
            escaped(workload)
        );
        y += NAME;
        for cell in group {
            bar(&mut out, chart, cell, y, scale);
            y += ROW;
        }
    }
    if let Some(mark) = chart.mark {
        let (x, end) = (LEFT + mark * scale, y);
        let _ = writeln!(
            out,
            "<path d=\"M{x:.1} {TOP}V{end}\" stroke=\"#222\" stroke-dasharray=\"3 3\"/>"
        );
    }
    out.push_str("</svg>\n");
    out
}

fn legend(out: &mut String, parts: &[String]) {
    for (i, part) in parts.iter().enumerate() {
        let x = LEFT + i as f64 * 100.0;
        let colour = COLOURS[i % COLOURS.len()];
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"32\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"42\">{}</text>",
            x + 17.0,
            escaped(part)
        );
    }
}

fn bar(out: &mut String, chart: &Chart<'_>, cell: &Cell, y: f64, scale: f64) {
    let (name_x, text_y) = (LEFT - 8.0, y + 10.0);
    let _ = writeln!(
        out,
        "<text x=\"{name_x}\" y=\"{text_y}\" text-anchor=\"end\">{}</text>",
        escaped(&cell.name())
    );
    let Some(parts) = (chart.value)(cell) else {
        return;
    };
    let mut x = LEFT;
    for (i, part) in parts.iter().enumerate() {
        let colour = match chart.parts {
            [] if OURS.contains(&cell.system.as_str()) => BLUE,
            [] => GREY,
            _ => COLOURS[i % COLOURS.len()],
        };
        let width = part * scale;
        let _ = writeln!(
            out,
            "<rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>"
        );
        x += width;
    }
    let label = (chart.label)(parts.iter().sum());
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{text_y}\">{}</text>",
        x + 5.0,
        escaped(&label)
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
