//! `replay`: recorded observations through any policy of the daemon.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;

use super::simulate::{ALL, all};
use super::{End, Failure, print, print_json, report};
use crate::daemon::code;
use crate::record::Replay;
use crate::record::compare::{self, Summary};
use crate::record::file::{Reader, RecordError};
use crate::tiering::plan::{Direction, Reason};
use crate::tiering::settings::PolicyName;
use crate::units::Bytes;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Under another policy than the recorded one the observations stay those of \
                  the recorded run: pages are where it has moved them, and its samples were \
                  watched. What a policy wants and does not get it wants again in the next \
                  epoch, and the bytes count again; compare policies by `simulate`."
)]
pub(super) struct Args {
    /// A recording of `run --record`
    file: PathBuf,
    /// Policies: names, or `all` [default: as recorded]
    #[arg(long, value_name = "P", value_delimiter = ',')]
    policy: Vec<String>,
    /// As JSON, stable and documented
    #[arg(long)]
    json: bool,
}

/// One policy.
#[derive(Serialize)]
struct Line {
    policy: String,
    as_recorded: bool,
    runs: u64,
    epochs: u64,
    moves: u64,
    promoted_bytes: Bytes,
    demoted_bytes: Bytes,
    ways: Vec<Way>,
    compared_epochs: u64,
    same_moves_epochs: u64,
    same_plan_epochs: u64,
    agreement: Option<f64>,
}

/// Bytes planned between two tiers.
#[derive(Serialize)]
struct Way {
    from_tier: String,
    to_tier: String,
    direction: Direction,
    reason: Reason,
    bytes: Bytes,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, End> {
    let policies = policies(&args.policy)?;
    // Once before all else: a fault of the file is told once.
    open(&args.file)?;
    let done = all(policies.len(), |at| {
        let mut replay = Replay::under(Reader::open(&args.file)?, policies[at]);
        compare::summarise(&mut replay)
    });
    let mut lines = Vec::new();
    let mut notes = Vec::new();
    for (policy, sum) in policies.iter().zip(done) {
        let sum = sum.map_err(failed)?;
        if lines.is_empty() {
            notes = crate::record::notes(sum.torn, sum.other_version.as_deref());
        }
        let line = line(*policy, sum);
        if line.as_recorded && line.same_plan_epochs < line.compared_epochs {
            notes.push(format!(
                "{} of {} plans differ from what the daemon did: its build decided otherwise",
                line.compared_epochs - line.same_plan_epochs,
                line.compared_epochs
            ));
        }
        lines.push(line);
    }
    if args.json {
        print_json(&lines)?;
    } else {
        print(&table(&lines))?;
    }
    report::tell(&args.file, &notes);
    Ok(ExitCode::SUCCESS)
}

fn open(file: &std::path::Path) -> Result<(), Failure> {
    Reader::open(file).map(drop).map_err(failed)
}

fn failed(error: RecordError) -> Failure {
    Failure::new(code::FAILED, error)
}

/// `None`: as recorded.
fn policies(asked: &[String]) -> Result<Vec<Option<PolicyName>>, Failure> {
    let mut chosen = Vec::new();
    for name in asked {
        if name == ALL {
            chosen.extend(PolicyName::CHOICES.iter().map(|(_, policy)| Some(*policy)));
        } else if let Some(policy) = PolicyName::named(name) {
            chosen.push(Some(policy));
        } else {
            let names: Vec<&str> = PolicyName::CHOICES.iter().map(|(name, _)| *name).collect();
            return Err(super::simulate::unknown(
                "--policy", name, "several", &names,
            ));
        }
    }
    if chosen.is_empty() {
        chosen.push(None);
    }
    Ok(chosen)
}

fn line(policy: Option<PolicyName>, sum: Summary) -> Line {
    let recorded: Vec<&str> = sum.recorded.iter().map(|name| name.as_str()).collect();
    let as_recorded = policy.is_none_or(|policy| sum.recorded == [policy]);
    Line {
        policy: policy.map_or_else(|| recorded.join(","), |policy| policy.as_str().to_owned()),
        as_recorded,
        runs: sum.runs,
        epochs: sum.epochs,
        moves: sum.moves,
        promoted_bytes: sum.bytes(Direction::Promotion),
        demoted_bytes: sum.bytes(Direction::Demotion),
        compared_epochs: sum.compared,
        same_moves_epochs: sum.same_moves,
        same_plan_epochs: sum.same_plans,
        agreement: sum.agreement(),
        ways: sum
            .planned
            .into_iter()
            .map(|(way, bytes)| Way {
                from_tier: way.from,
                to_tier: way.to,
                direction: way.direction,
                reason: way.reason,
                bytes,
            })
            .collect(),
    }
}

fn table(lines: &[Line]) -> String {
    let mut text = format!(
        "{:<24} {:>7} {:>9} {:>10} {:>10} {:>11} {:>7}\n",
        "POLICY", "EPOCHS", "MOVES", "PROMOTED", "DEMOTED", "AS RECORDED", "AGREES"
    );
    for line in lines {
        let same = if line.as_recorded {
            line.same_plan_epochs
        } else {
            line.same_moves_epochs
        };
        let agrees = line
            .agreement
            .map_or_else(|| "-".into(), |share| format!("{:.1}%", share * 100.0));
        let _ = writeln!(
            text,
            "{:<24} {:>7} {:>9} {:>10} {:>10} {:>11} {:>7}",
            format!("{}{}", line.policy, if line.as_recorded { "*" } else { "" }),
            line.epochs,
            line.moves,
            line.promoted_bytes.to_string(),
            line.demoted_bytes.to_string(),
            format!("{same}/{}", line.compared_epochs),
            agrees,
        );
    }
    if lines.iter().any(|line| line.as_recorded) {
        text.push_str("* the recorded policy\n");
    }
    if lines.iter().any(|line| !line.ways.is_empty()) {
        let _ = writeln!(
            text,
            "\n{:<24} {:<16} {:<16} {:<8} {:>10} {:>10}",
            "POLICY", "FROM", "TO", "WHY", "PROMOTED", "DEMOTED"
        );
    }
    for line in lines {
        for way in &line.ways {
            let bytes = way.bytes.to_string();
            let (up, down) = match way.direction {
                Direction::Promotion => (bytes.as_str(), ""),
                Direction::Demotion => ("", bytes.as_str()),
            };
            let row = format!(
                "{:<24} {:<16} {:<16} {:<8} {up:>10} {down:>10}",
                line.policy,
                way.from_tier,
                way.to_tier,
                way.reason.as_str()
            );
            text.push_str(row.trim_end());
            text.push('\n');
        }
    }
    text
}
