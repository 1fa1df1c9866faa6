//! `simulate --sweep`: which orders of policies survive other figures of the machine.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;

use serde::Serialize;

use super::{ALL, Asked, all};
use crate::cli::{End, Failure, print, print_json};
use crate::daemon::code;
use crate::sim::run::{Run, RunError};
use crate::sim::sweep::{self, Corner, Order, Verdict};

/// What is said of it all.
#[derive(Serialize)]
struct Findings<'a> {
    runs: Vec<Line<'a>>,
    orders: Vec<Pair<'a>>,
}

/// One run.
#[derive(Serialize)]
struct Line<'a> {
    machine: &'a str,
    corner: &'a str,
    workload: &'a str,
    policy: &'a str,
    seed: u64,
    /// Folios that were taken for one.
    coarse: u8,
    total_seconds: f64,
    finished: bool,
}

/// Two policies.
#[derive(Serialize)]
struct Pair<'a> {
    machine: &'a str,
    /// `all`: the geometric mean over all of them.
    workload: &'a str,
    first: &'a str,
    second: &'a str,
    ahead: f64,
    least: f64,
    most: f64,
    verdict: &'static str,
    /// Where it turns, or where those that are level are not.
    corners: Vec<&'a str>,
}

pub(super) fn run(asked: &Asked<'_>, json: bool) -> Result<ExitCode, End> {
    if asked.policies.len() < 2 {
        let text = "--sweep: compares policies; name two with --policy, or more";
        return Err(Failure::new(code::USAGE, text).into());
    }
    let machines: Vec<Vec<Corner>> = asked.machines.iter().map(sweep::corners).collect();
    let mut cases = Vec::new();
    for corners in &machines {
        for workload in asked.workloads {
            for &(_, policy) in asked.policies {
                let each = corners.iter();
                cases.extend(each.map(|corner| asked.case(&corner.hardware, workload, policy)));
            }
        }
    }
    let mut done = all(cases.len(), |at| cases[at].run()).into_iter();
    let (mut runs, mut orders, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
    for (machine, corners) in asked.machines.iter().zip(&machines) {
        let machine = machine.name.as_str();
        let mut of_all: Vec<Times<'_>> = Vec::new();
        for workload in asked.workloads {
            let workload = workload.name.as_str();
            let mut times: Vec<Times<'_>> = Vec::new();
            for &(policy, _) in asked.policies {
                let of_policy: Vec<Result<Run, RunError>> =
                    done.by_ref().take(corners.len()).collect();
                match of_policy.into_iter().collect::<Result<Vec<Run>, _>>() {
                    Ok(of_policy) => {
                        let seconds = of_policy.iter().map(|run| run.total_seconds);
                        times.push((policy, seconds.collect()));
                        let lines = corners.iter().zip(&of_policy);
                        runs.extend(lines.map(|(corner, run)| Line {
                            machine,
                            corner: &corner.name,
                            workload,
                            policy,
                            seed: asked.seed,
                            coarse: 1 << asked.coarse,
                            total_seconds: run.total_seconds,
                            finished: run.finished,
                        }));
                    }
                    Err(error) => {
                        left_out.push(format!("{workload} on {machine} under {policy}: {error}"));
                    }
                }
            }
            orders.extend(pairs((machine, workload), corners, &times));
            add_to(&mut of_all, times);
        }
        // Only of those that ran all of them.
        of_all.retain(|(_, logs)| logs.len() == corners.len() * asked.workloads.len());
        if asked.workloads.len() > 1 {
            let means = of_all.iter().map(|(policy, seconds)| {
                let mean = |at| {
                    let each = seconds.iter().skip(at).step_by(corners.len());
                    let logs: f64 = each.map(|seconds| seconds.ln()).sum();
                    (logs / asked.workloads.len() as f64).exp()
                };
                (*policy, (0..corners.len()).map(mean).collect())
            });
            let means: Vec<Times<'_>> = means.collect();
            orders.extend(pairs((machine, ALL), corners, &means));
        }
    }
    if orders.is_empty() {
        return Err(Failure::new(code::FAILED, left_out.join("\n")).into());
    }
    let findings = Findings { runs, orders };
    if json {
        print_json(&findings)?;
    } else {
        print(&(table(&findings) + &asked.note()))?;
    }
    for text in left_out {
        // Nobody to tell if stderr is closed.
        let _ = writeln!(io::stderr(), "left out: {text}");
    }
    Ok(ExitCode::SUCCESS)
}

/// A policy and its seconds, corner by corner.
type Times<'a> = (&'a str, Vec<f64>);

fn add_to<'a>(all: &mut Vec<Times<'a>>, times: Vec<Times<'a>>) {
    for (policy, seconds) in times {
        if let Some((_, before)) = all.iter_mut().find(|(name, _)| *name == policy) {
            before.extend(seconds);
        } else {
            all.push((policy, seconds));
        }
    }
}

/// Every two of them.
fn pairs<'a>(
    (machine, workload): (&'a str, &'a str),
    corners: &'a [Corner],
    times: &[Times<'a>],
) -> Vec<Pair<'a>> {
    let mut pairs = Vec::new();
    for (at, first) in times.iter().enumerate() {
        for second in &times[at + 1..] {
            let Some(order) = sweep::order(&first.1, &second.1) else {
                continue;
            };
            let (first, second) = if order.is_swapped {
                (second.0, first.0)
            } else {
                (first.0, second.0)
            };
            pairs.push(pair((machine, workload), (first, second), corners, &order));
        }
    }
    pairs
}

fn pair<'a>(
    (machine, workload): (&'a str, &'a str),
    (first, second): (&'a str, &'a str),
    corners: &'a [Corner],
    order: &Order,
) -> Pair<'a> {
    let (verdict, at): (_, &[usize]) = match &order.verdict {
        Verdict::Survives => ("survives", &[]),
        Verdict::Turns(at) => ("turns", at),
        Verdict::Level(at) => ("level", at),
    };
    Pair {
        machine,
        workload,
        first,
        second,
        ahead: order.ahead,
        least: order.least,
        most: order.most,
        verdict,
        corners: at.iter().map(|&at| corners[at].name.as_str()).collect(),
    }
}

fn table(findings: &Findings<'_>) -> String {
    let mut text = format!(
        "{:<14} {:<10} {:<22} {:<22} {:>7} {:>7} {:>7}  ORDER\n",
        "MACHINE", "WORKLOAD", "AHEAD", "BEHIND", "BY", "LEAST", "MOST"
    );
    for pair in &findings.orders {
        let percent = |share: f64| format!("{:.1}%", share * 100.0);
        let at = pair.corners.join(", ");
        let order = match (pair.verdict, at.as_str()) {
            ("turns", at) => format!("turns at {at}"),
            ("level", at) if !at.is_empty() => format!("level, but not at {at}"),
            (verdict, _) => verdict.to_owned(),
        };
        let _ = writeln!(
            text,
            "{:<14} {:<10} {:<22} {:<22} {:>7} {:>7} {:>7}  {order}",
            pair.machine,
            pair.workload,
            pair.first,
            pair.second,
            percent(pair.ahead),
            percent(pair.least),
            percent(pair.most),
        );
    }
    if findings.runs.iter().any(|run| !run.finished) {
        text.push_str("some runs were given up: their times are too short\n");
    }
    text
}
