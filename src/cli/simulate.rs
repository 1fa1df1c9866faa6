//! `simulate`: policies on a model of a machine, side by side.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

mod files;
mod sweep;

use super::{End, Failure, print, print_json};
use crate::config::Config;
use crate::daemon::{DaemonError, code};
use crate::epoch::LoopSettings;
use crate::files::Stream;
use crate::sim::FileError;
use crate::sim::hardware::{self, Hardware};
use crate::sim::run::{Case, Policy, Run};
use crate::sim::sweep::corners;
use crate::sim::workload::{self, Workload};

/// Bytes that a file may have that describes a machine or a workload.
const FILE_MAX: u64 = 1 << 20;
/// Of 2 MiB each these are regions of 128 MiB.
const COARSE_MAX: u8 = 64;
/// Of all runs together: what two cores have done in some minutes. A table of more is coarser.
const FOLIOS_OF_A_TABLE: u64 = 50_000_000;
/// What stands for every name.
pub(super) const ALL: &str = "all";

#[derive(Debug, clap::Args)]
#[command(
    after_help = "A trace of accesses has a line for each, seconds,address,count,writes, where count \
                  and writes may be left out: perf script -F time,period,addr | awk '{sub(\":\", \
                  \"\", $1); print $1 \",0x\" $3 \",\" $2}'. Recordings and traces are played \
                  once, step by step as long as they were where all memory is fast."
)]
pub(super) struct Args {
    /// Machines: names, files, or `all`
    #[arg(long, value_name = "M", value_delimiter = ',', required = true)]
    machine: Vec<String>,
    /// Workloads: names, files (programs, recordings of `run --record`, traces of accesses),
    /// or `all`
    #[arg(long, value_name = "W", value_delimiter = ',', required = true)]
    workload: Vec<String>,
    /// Policies: names, or `all`
    #[arg(long, value_name = "P", value_delimiter = ',', default_value = ALL)]
    policy: Vec<String>,
    /// Size of the fastest tier, as a share of the workload's memory
    #[arg(long, value_name = "X")]
    fast_share: Option<f64>,
    /// How the daemon is set, as for `run` (default: as it comes)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Folios that are taken for one, a power of two up to 64: as much faster, less fine (default:
    /// 1, and for a large table as many as have it done in minutes)
    #[arg(long, value_name = "N")]
    coarse: Option<u8>,
    /// Of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Which orders of policies survive other latencies, bandwidths and costs than the
    /// machine's: each through its values, one at a time and all together (up to 22 times the runs)
    #[arg(long)]
    sweep: bool,
    /// As JSON, stable and documented
    #[arg(long)]
    json: bool,
}

/// What there is to run.
struct Asked<'a> {
    machines: &'a [Hardware],
    workloads: &'a [Workload],
    policies: &'a [(&'static str, Policy)],
    settings: &'a LoopSettings,
    fast_share: Option<f64>,
    /// Folios that are taken for one, as a power of two.
    coarse: u8,
    seed: u64,
}

impl<'a> Asked<'a> {
    fn case(&self, hardware: &'a Hardware, workload: &'a Workload, policy: Policy) -> Case<'a> {
        Case {
            hardware,
            workload,
            policy,
            settings: self.settings,
            fast_share: self.fast_share,
            coarse: self.coarse,
            seed: self.seed,
        }
    }

    /// How many folios are to be taken for one, that all of it is done in minutes; 1 for a run by
    /// itself.
    fn coarse_enough(&self, sweeps: bool) -> u8 {
        let (_, policy) = self.policies[0];
        let (mut runs, mut folios) = (0, 0_u64);
        for machine in self.machines {
            let corners = if sweeps { corners(machine).len() } else { 1 };
            let each = (corners * self.policies.len()) as u64;
            for workload in self.workloads {
                let of_one = self.case(machine, workload, policy).folios();
                folios = folios.saturating_add(of_one.saturating_mul(each));
                runs += each;
            }
        }
        let needed = folios.div_ceil(FOLIOS_OF_A_TABLE).max(1);
        let needed = needed.checked_next_power_of_two();
        let needed = needed.and_then(|needed| u8::try_from(needed).ok());
        if runs < 2 {
            1
        } else {
            needed.map_or(COARSE_MAX, |needed| needed.min(COARSE_MAX))
        }
    }

    /// What a table says below of how coarse it is.
    fn note(&self) -> String {
        match 1_u32 << self.coarse {
            1 => String::new(),
            coarse => format!("{coarse} folios are taken for one (--coarse 1: each by itself)\n"),
        }
    }
}

/// One line of the table.
#[derive(Serialize)]
struct Line<'a> {
    machine: &'a str,
    workload: &'a str,
    policy: &'a str,
    seed: u64,
    /// Folios that were taken for one.
    coarse: u8,
    #[serde(flatten)]
    run: Run,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, End> {
    if args
        .fast_share
        .is_some_and(|share| !(share > 0.0 && share <= 1.0))
    {
        let text = "--fast-share: write a share of more than 0, at most 1, such as 0.2";
        return Err(Failure::new(code::USAGE, text).into());
    }
    if args
        .coarse
        .is_some_and(|coarse| !coarse.is_power_of_two() || coarse > COARSE_MAX)
    {
        let text = format!("--coarse: write 1, 2, 4 and so on up to {COARSE_MAX}");
        return Err(Failure::new(code::USAGE, text).into());
    }
    let machines = chosen(
        "--machine",
        &args.machine,
        (&hardware::PRESETS, &hardware::OF_TESTS),
        Hardware::parse,
        |name| {
            let file = Stream::open(Path::new(name)).map_err(|e| failed(name, &e))?;
            Hardware::parse(&text(name, file)?).map_err(|e| fault(name, &e))
        },
    )?;
    let workloads = chosen(
        "--workload",
        &args.workload,
        (&workload::PRESETS, &[]),
        Workload::parse,
        files::workload,
    )?;
    let policies = policies(&args.policy)?;
    let settings = settings(args.config.as_deref())?;
    let mut all_of_it = Asked {
        machines: &machines,
        workloads: &workloads,
        policies: &policies,
        settings: &settings,
        fast_share: args.fast_share,
        coarse: 0,
        seed: args.seed,
    };
    let coarse = args.coarse;
    let coarse = coarse.unwrap_or_else(|| all_of_it.coarse_enough(args.sweep));
    all_of_it.coarse = u8::try_from(coarse.trailing_zeros()).unwrap_or(0);
    if args.sweep {
        return sweep::run(&all_of_it, args.json);
    }
    let mut asked = Vec::new();
    for machine in &machines {
        for workload in &workloads {
            for &(name, policy) in &policies {
                asked.push((machine, workload, name, policy));
            }
        }
    }
    let done = all(asked.len(), |at| {
        let (hardware, workload, _, policy) = asked[at];
        all_of_it.case(hardware, workload, policy).run()
    });
    let mut lines = Vec::new();
    let mut failed = Vec::new();
    for (run, &(machine, workload, policy, _)) in done.into_iter().zip(&asked) {
        let (machine, workload) = (machine.name.as_str(), workload.name.as_str());
        match run {
            Ok(run) => lines.push(Line {
                machine,
                workload,
                policy,
                seed: args.seed,
                coarse,
                run,
            }),
            Err(error) => {
                let text = format!("{workload} on {machine} under {policy}: {error}");
                // What cannot be is an error only for who asked for it by name.
                let by_name = args.policy.iter().any(|name| name == policy);
                failed.push((by_name, text));
            }
        }
    }
    if args.json {
        print_json(&lines)?;
    } else {
        print(&(table(&lines) + &all_of_it.note()))?;
    }
    let is_error = lines.is_empty() || failed.iter().any(|(by_name, _)| *by_name);
    let texts: Vec<String> = failed.into_iter().map(|(_, text)| text).collect();
    if is_error {
        return Err(Failure::new(code::FAILED, texts.join("\n")).into());
    }
    for text in texts {
        // Nobody to tell if stderr is closed.
        let _ = writeln!(io::stderr(), "left out: {text}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `count` cases on all CPUs; what came of each, in order.
pub(super) fn all<T: Send>(count: usize, run: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done: Vec<Mutex<Option<T>>> = (0..count).map(|_| Mutex::new(None)).collect();
    let shows = io::stderr().is_terminal();
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers.min(count) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(slot) = done.get(at) else {
                        return;
                    };
                    if shows {
                        // Nobody to tell if stderr is closed.
                        let _ = write!(io::stderr(), "\r{} of {count} ", at + 1);
                    }
                    let result = run(at);
                    if let Ok(mut slot) = slot.lock() {
                        *slot = Some(result);
                    }
                }
            });
        }
    });
    if shows {
        let _ = write!(io::stderr(), "\r{:20}\r", "");
    }
    let results = done
        .into_iter()
        .map(|slot| slot.into_inner().ok().flatten());
    // Each was run: a worker that panicked has ended the scope with it.
    results.flatten().collect()
}

/// Names and texts.
type Presets<'a> = &'a [(&'a str, &'a str)];

/// Those that names, files and `all` stand for.
fn chosen<T>(
    option: &str,
    asked: &[String],
    (presets, by_name): (Presets<'_>, Presets<'_>),
    parse: impl Fn(&str) -> Result<T, FileError>,
    open: impl Fn(&str) -> Result<T, Failure>,
) -> Result<Vec<T>, Failure> {
    let mut chosen = Vec::new();
    let known = || presets.iter().chain(by_name);
    for name in asked {
        if name == ALL {
            for (name, text) in presets {
                chosen.push(parse(text).map_err(|e| fault(name, &e))?);
            }
        } else if let Some((_, text)) = known().find(|(preset, _)| preset == name) {
            chosen.push(parse(text).map_err(|e| fault(name, &e))?);
        } else if name.contains('/') || Path::new(name).extension().is_some() {
            chosen.push(open(name)?);
        } else {
            let names: Vec<&str> = known().map(|(name, _)| *name).collect();
            return Err(unknown(option, name, "a file", &names));
        }
    }
    Ok(chosen)
}

fn policies(asked: &[String]) -> Result<Vec<(&'static str, Policy)>, Failure> {
    let mut chosen = Vec::new();
    for name in asked {
        if name == ALL {
            chosen.extend(Policy::all());
        } else if let Some(policy) = Policy::all().iter().find(|(policy, _)| policy == name) {
            chosen.push(*policy);
        } else {
            let names: Vec<&str> = Policy::all().iter().map(|(name, _)| *name).collect();
            return Err(unknown("--policy", name, "several", &names));
        }
    }
    Ok(chosen)
}

/// Those of a daemon's file. Whatever that says, the model moves with one thread.
fn settings(file: Option<&Path>) -> Result<LoopSettings, Failure> {
    let config = match file {
        Some(file) => Config::load(Some(file)).map_err(DaemonError::from)?.0,
        None => Config::default(),
    };
    Ok(config.loop_settings(1, false))
}

pub(super) fn unknown(option: &str, name: &str, or: &str, known: &[&str]) -> Failure {
    let text = format!(
        "{option}: \"{name}\" is not known here; choose {ALL}, {or}, or of {}",
        known.join(", ")
    );
    Failure::new(code::USAGE, text)
}

fn fault(file: &str, error: &FileError) -> Failure {
    Failure::new(code::USAGE, format!("{file}:{error}"))
}

fn failed(name: &str, error: &io::Error) -> Failure {
    Failure::new(code::FAILED, format!("{name}: {error}"))
}

/// What is in a file that describes a machine or a workload.
fn text(name: &str, file: impl Read) -> Result<String, Failure> {
    let mut text = String::new();
    // What it says of its size may be wrong: a device has none.
    let read = file.take(FILE_MAX + 1).read_to_string(&mut text);
    if read.map_err(|e| failed(name, &e))? as u64 > FILE_MAX {
        let text = format!("{name}: is larger than {FILE_MAX} bytes: no machine or workload");
        return Err(Failure::new(code::USAGE, text));
    }
    Ok(text)
}

fn table(lines: &[Line<'_>]) -> String {
    let mut text = format!(
        "{:<14} {:<10} {:<22} {:>8} {:>8} {:>6} {:>9} {:>9} {:>10} {:>10}\n",
        "MACHINE",
        "WORKLOAD",
        "POLICY",
        "SECONDS",
        "RAN",
        "FAST",
        "PROFILING",
        "MIGRATION",
        "PROMOTED",
        "DEMOTED"
    );
    let (mut scaled, mut given_up) = (false, false);
    for line in lines {
        let run = &line.run;
        let accesses: f64 = run.tier_accesses.iter().sum();
        let fast = run.tier_accesses.first().copied().unwrap_or(0.0);
        let fast = if accesses > 0.0 {
            format!("{:.1}%", fast / accesses * 100.0)
        } else {
            "-".to_owned()
        };
        scaled |= run.scaled;
        given_up |= !run.finished;
        let _ = writeln!(
            text,
            "{:<14} {:<10} {:<22} {:>8} {:>8.1} {:>6} {:>9.1} {:>9.1} {:>10} {:>10}",
            line.machine,
            format!("{}{}", line.workload, if run.scaled { "*" } else { "" }),
            line.policy,
            format!(
                "{}{:.1}",
                if run.finished { "" } else { ">" },
                run.total_seconds
            ),
            run.application_seconds,
            fast,
            run.profiling_seconds,
            run.migration_seconds,
            run.promoted_bytes.to_string(),
            run.demoted_bytes.to_string(),
        );
    }
    if scaled {
        text.push_str("* made smaller: the machine has no room for all of it\n");
    }
    if given_up {
        text.push_str("> given up\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coarse(machines: &[&str], workloads: &[&str], policy: &str, sweeps: bool) -> u8 {
        let known = || hardware::PRESETS.iter().chain(&hardware::OF_TESTS);
        let machines: Vec<Hardware> = known()
            .filter(|(name, _)| machines.contains(name) || machines == [ALL])
            .map(|(_, text)| Hardware::parse(text).unwrap())
            .collect();
        let workloads: Vec<Workload> = workload::PRESETS
            .iter()
            .filter(|(name, _)| workloads.contains(name) || workloads == [ALL])
            .map(|(_, text)| Workload::parse(text).unwrap())
            .collect();
        let asked = Asked {
            machines: &machines,
            workloads: &workloads,
            policies: &policies(&[policy.to_owned()]).unwrap(),
            settings: &settings(None).unwrap(),
            fast_share: None,
            coarse: 0,
            seed: 1,
        };
        asked.coarse_enough(sweeps)
    }

    #[test]
    fn only_a_large_table_is_coarse() {
        assert_eq!(coarse(&["optane-4tier"], &[ALL], "adaptive", false), 1);
        assert_eq!(coarse(&["optane-4tier"], &["voltdb"], ALL, false), 1);
        assert_eq!(coarse(&["optane-4tier"], &[ALL], ALL, false), 8);
        assert_eq!(coarse(&[ALL], &[ALL], ALL, false), 32);
        // A program is not larger than its machine.
        assert_eq!(coarse(&["vm-4tier"], &[ALL], ALL, false), 1);
        let swept = coarse(&["optane-4tier"], &[ALL], "adaptive", true);
        assert!(swept > 4, "{swept}");
        // However large: nobody asked for a table.
        assert_eq!(coarse(&["optane-4tier"], &["gups"], "adaptive", false), 1);
    }
}
