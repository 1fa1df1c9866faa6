//! The command line: one variant per verb, exit codes and one-line errors.
//!
//! Only verbs that work are listed.

use std::ffi::OsString;
use std::fmt::{Display, Write as _};
use std::io::{self, IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use serde::Serialize;

use crate::config::{Config, ConfigError, DEFAULT_SOCKET};
use crate::control::{self, Reply, Request};
use crate::daemon::{self, DaemonError, code};
use crate::demo;
use crate::files;
use crate::ports::SamplerKind;
use crate::sys::probe::{self, Finding, State};
use crate::sys::process::undisturbed;
use crate::sys::root::Root;
use crate::sys::topology::SysTopology;
use crate::tiering::tier::{Figure, Source, TierTable};
use crate::units::text::{printable, printable_json, printable_lines};
use crate::units::{Bandwidth, Nanos, Pid};

/// A machine of thousands of CPUs takes some 10 MiB.
const XML_MAX: u64 = 64 << 20;

mod replay;
mod report;
mod simulate;

/// Moves the hot pages of running processes to the fastest memory that the
/// machine has, and the cold ones out of the way.
#[derive(Debug, Parser)]
#[command(name = "hmkeeper", version, about, arg_required_else_help = true)]
#[command(
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, \
                        3 the host lacks something required, 4 no such target."
)]
pub struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// The daemon, in the foreground
    Run(RunArgs),
    /// What this host offers: present, missing (with the remedy) or forbidden
    Check(Json),
    /// Tiers as each socket sees them, with the source of each figure
    Topology(TopologyArgs),
    /// The running daemon: targets, tier residency, moves and why, own cost
    Status(StatusArgs),
    /// Have the running daemon watch a process
    Attach(PidArgs),
    /// Have the running daemon let go of an attached process
    Detach(PidArgs),
    /// Have the running daemon move nothing until `resume`
    Pause(SocketArgs),
    /// Have the running daemon move again
    Resume(SocketArgs),
    /// Have the running daemon apply its configuration file
    Reload(SocketArgs),
    /// Recorded observations through any policy: what it would have had moved
    Replay(replay::Args),
    /// A recording as a picture or a table: address over time
    Report(report::Args),
    /// Policies on a model of a machine, side by side
    Simulate(simulate::Args),
    /// A workload with a moving hot set, the daemon, and what each tier serves
    Demo(demo::Args),
    /// The demo's workload alone
    #[command(hide = true)]
    Workload(demo::workload::Args),
    /// Man page and shell completions, for packages
    #[command(hide = true)]
    Generate(GenerateArgs),
}

#[derive(Debug, clap::Args)]
struct RunArgs {
    /// Configuration file [default: /etc/hmkeeper/hmkeeper.toml, where it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Watch this process, besides those of the configuration
    #[arg(long, value_name = "PID")]
    pid: Vec<i32>,
    /// End after so many epochs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    epochs: Option<u64>,
    /// Plan and count, but move nothing
    #[arg(long)]
    dry_run: bool,
    /// Record what each decision was made of in FILE, for `replay` and `report`;
    /// goes on at the end of a recording that is there
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct Json {
    /// As JSON, stable and documented
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct TopologyArgs {
    #[command(flatten)]
    json: Json,
    /// Take `[[tiers]]` from this configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Show another machine, exported by `lstopo FILE.xml`
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    xml: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct SocketArgs {
    /// The daemon's control socket [default: as the configuration says]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct StatusArgs {
    #[command(flatten)]
    json: Json,
    #[command(flatten)]
    socket: SocketArgs,
}

#[derive(Debug, clap::Args)]
struct PidArgs {
    /// Process id
    pid: i32,
    #[command(flatten)]
    socket: SocketArgs,
}

#[derive(Debug, clap::Args)]
struct GenerateArgs {
    #[command(subcommand)]
    what: Generate,
}

#[derive(Debug, Subcommand)]
enum Generate {
    /// The man page of `hmkeeper`
    Man,
    /// Completions for a shell
    Completions {
        /// Which
        shell: Shell,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// An error with its exit code. Its text has one line per error: what, where,
/// remedy.
#[derive(Debug)]
struct Failure {
    code: u8,
    /// As they come: they are made printable when they are printed.
    lines: Vec<String>,
}

impl Failure {
    fn new(code: u8, text: impl Display) -> Self {
        let lines = vec![text.to_string()];
        Self { code, lines }
    }
}

impl From<DaemonError> for Failure {
    fn from(error: DaemonError) -> Self {
        match error {
            DaemonError::Config(ConfigError::Faults(faults)) => Self {
                code: code::USAGE,
                lines: faults.lines().collect(),
            },
            error => Self::new(error.code(), error),
        }
    }
}

/// Why a verb ended early.
enum End {
    Failure(Failure),
    /// Whoever read our output has gone: not an error.
    ReaderGone,
}

impl<F: Into<Failure>> From<F> for End {
    fn from(failure: F) -> Self {
        Self::Failure(failure.into())
    }
}

/// Does what the arguments say; the exit code is that of design §3.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    match dispatch(cli.verb) {
        Ok(code) => code,
        Err(End::ReaderGone) => ExitCode::SUCCESS,
        Err(End::Failure(failure)) => {
            for line in &failure.lines {
                say(line);
            }
            ExitCode::from(failure.code)
        }
    }
}

/// One line on stderr, whatever is in it.
fn say(line: &str) {
    // Nobody to tell if stderr is closed.
    let _ = writeln!(io::stderr(), "hmkeeper: {}", printable(line));
}

/// Help and version as clap prints them; what is wrong, in one line.
fn usage(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind;
    let text = error.render().to_string();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A reader that has gone wants no help.
            let _ = print_own(&text);
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = write!(io::stderr(), "{}", printable_lines(&text));
            ExitCode::from(code::USAGE)
        }
        _ => {
            let first = text.lines().next().unwrap_or_default();
            let what = first.trim_start_matches("error: ").trim_end_matches(':');
            // clap lists what is missing on lines of their own.
            let list = text.lines().skip(1).take_while(|l| l.starts_with("  "));
            let list: Vec<&str> = list.map(str::trim).collect();
            let list = if list.is_empty() {
                String::new()
            } else {
                format!(": {}", list.join(", "))
            };
            say(&format!("{what}{list}; see `hmkeeper --help`"));
            ExitCode::from(code::USAGE)
        }
    }
}

fn dispatch(verb: Verb) -> Result<ExitCode, End> {
    match verb {
        Verb::Run(args) => {
            let options = daemon::Options {
                config: args.config,
                pids: args.pid.into_iter().map(Pid).collect(),
                epochs: args.epochs,
                dry_run: args.dry_run,
                record: args.record,
            };
            daemon::run(&options).map_err(Failure::from)?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::Check(args) => check(&args),
        Verb::Topology(args) => topology(&args),
        Verb::Status(args) => status(&args),
        Verb::Attach(args) => tell(&args.socket, Request::Attach { pid: args.pid }),
        Verb::Detach(args) => tell(&args.socket, Request::Detach { pid: args.pid }),
        Verb::Pause(args) => tell(&args, Request::Pause),
        Verb::Resume(args) => tell(&args, Request::Resume),
        Verb::Reload(args) => tell(&args, Request::Reload),
        Verb::Replay(args) => replay::run(&args),
        Verb::Report(args) => report::run(&args),
        Verb::Simulate(args) => simulate::run(&args),
        Verb::Demo(args) => showing(demo::run(&args)),
        Verb::Workload(args) => showing(demo::workload::run(&args)),
        Verb::Generate(args) => generate(&args.what),
    }
}

/// The demo's errors: a machine that has nothing to show lacks something.
fn showing(result: anyhow::Result<()>) -> Result<ExitCode, End> {
    match result {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            let code = if error.is::<demo::Unfit>() {
                code::HOST
            } else {
                code::FAILED
            };
            Err(Failure::new(code, format!("{error:#}")).into())
        }
    }
}

/// Writes lines to stdout; a reader that has gone ends us quietly.
fn print(text: &str) -> Result<(), End> {
    print_own(&printable_lines(text))
}

/// Text that has nothing from outside.
fn print_own(text: &str) -> Result<(), End> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|e| match e.kind() {
            io::ErrorKind::BrokenPipe => End::ReaderGone,
            _ => End::from(Failure::new(code::FAILED, format!("stdout: {e}"))),
        })
}

fn print_json(value: &impl Serialize) -> Result<(), End> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| Failure::new(code::FAILED, format!("cannot write JSON: {e}")))?;
    print_own(&(printable_json(&text) + "\n"))
}

/// `check --json`.
#[derive(Serialize)]
struct CheckReport<'a> {
    findings: &'a [Finding],
    /// What `sampler = "auto"` takes.
    sampler: Option<SamplerKind>,
}

/// What each sampler needs, best first: the findings' names.
const SAMPLERS: [(&str, SamplerKind); 3] = [
    ("idle-page-tracking", SamplerKind::Idle),
    ("damon-vaddr", SamplerKind::Damon),
    ("damon-paddr", SamplerKind::DamonPaddr),
];

fn check(args: &Json) -> Result<ExitCode, End> {
    let findings = undisturbed(|| probe::probe(&Root::host()))
        .map_err(|e| Failure::new(code::FAILED, format!("cannot hold signals back: {e}")))?;
    let present = |name: &str| {
        let mut found = findings.iter();
        found.any(|f| f.name == name && f.state == State::Present)
    };
    let chosen = SAMPLERS.iter().find(|(name, _)| present(name));
    let sampler = chosen.map(|(_, kind)| *kind);
    if args.json {
        print_json(&CheckReport {
            findings: &findings,
            sampler,
        })?;
    } else {
        let mut text = String::new();
        for finding in &findings {
            let state = match finding.state {
                State::Present => "present",
                State::Missing => "missing",
                State::Forbidden => "forbidden",
                State::Busy => "busy",
            };
            let detail = printable(&finding.detail);
            let _ = writeln!(text, "{:<22} {state:<10} {detail}", finding.name);
            if !finding.remedy.is_empty() {
                let weight = if finding.required { "required: " } else { "" };
                let remedy = printable(&finding.remedy);
                let _ = writeln!(text, "{:<33} {weight}{remedy}", "");
            }
        }
        print(&text)?;
    }
    let lacking = findings
        .iter()
        .filter(|f| f.required && f.state != State::Present)
        .map(|f| f.name);
    let lacking: Vec<&str> = lacking.collect();
    if lacking.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let text = format!(
        "this host lacks {}; `hmkeeper check` tells the remedy of each",
        lacking.join(", ")
    );
    Err(Failure::new(code::HOST, text).into())
}

fn topology(args: &TopologyArgs) -> Result<ExitCode, End> {
    let (table, warnings) = if let Some(xml) = &args.xml {
        // hwloc's own word for a missing file is a panic, and it waits for a pipe.
        readable(xml).map_err(|e| {
            let text = format!("{}: cannot be read: {e}; name another", xml.display());
            Failure::new(code::FAILED, text)
        })?;
        SysTopology::from_xml(xml).read_with_warnings()
    } else {
        let (config, _) = Config::load(args.config.as_deref())
            .map_err(DaemonError::from)
            .map_err(Failure::from)?;
        // What the tiers contradict is the configuration's fault.
        daemon::read_tiers(&Root::host(), &config).map_err(Failure::from)?;
        SysTopology::new(&Root::host(), config.tiers).read_with_warnings()
    }
    .map_err(DaemonError::from)
    .map_err(Failure::from)?;
    for warning in warnings {
        say(&format!("note: {warning}"));
    }
    if args.json.json {
        print_json(&table)?;
    } else {
        print(&topology_text(&table))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether a file is one that hwloc may read at all.
fn readable(xml: &Path) -> io::Result<()> {
    if files::open(xml)?.metadata()?.len() > XML_MAX {
        return Err(io::Error::other(format!(
            "it has more than {XML_MAX} bytes"
        )));
    }
    Ok(())
}

fn topology_text(table: &TierTable) -> String {
    let mut text = format!("{:<16} {:<12} {:>10}\n", "TIER", "NODES", "SIZE");
    for tier in table.tiers() {
        let nodes: Vec<String> = tier.nodes.iter().map(ToString::to_string).collect();
        let members = table.nodes().iter().filter(|n| tier.nodes.contains(&n.id));
        let size = members.map(|n| n.size).sum::<crate::units::Bytes>();
        let _ = writeln!(text, "{:<16} {:<12} {size:>10}", tier.name, nodes.join(","));
    }
    for from in table.initiators() {
        let _ = writeln!(
            text,
            "\nas the CPUs of node {} see it, fastest first:\n{:<6} {:<16} {:>6} {:>10} {:<24} BANDWIDTH",
            from.id, "NODE", "TIER", "DIST", "LATENCY", ""
        );
        let view = table.view(&[(from.id, 1.0)], None);
        for node in view.ranks().iter().flat_map(|rank| &rank.nodes) {
            let Some(path) = table.path(from.id, *node) else {
                continue;
            };
            let tier = table.tier_of(*node).map_or("-", |t| table.name(t));
            let latency = path.latency;
            let _ = writeln!(
                text,
                "{node:<6} {tier:<16} {:>6} {:>10} {:<24} {}",
                path.distance,
                latency_text(latency.value),
                source(latency.source),
                path.bandwidth.map_or_else(|| "-".into(), bandwidth_text)
            );
        }
    }
    if table.view(&[], None).is_flat() {
        text += "\nall memory is equally fast: there is nothing to move to\n";
    }
    text
}

fn latency_text(latency: Nanos) -> String {
    format!("{} ns", latency.0)
}

fn bandwidth_text(figure: Figure<Bandwidth>) -> String {
    let gigabytes = figure.value.0 as f64 / 1e9;
    format!("{gigabytes:.1} GB/s {}", source(figure.source))
}

fn source(source: Source) -> &'static str {
    match source {
        Source::Config => "(configured)",
        Source::Sysfs => "(sysfs)",
        Source::Hwloc => "(hwloc)",
        Source::ScaledByDistance => "(scaled by distance)",
        Source::Distance => "(distance only)",
    }
}

/// Where the daemon listens: as told, or as the default configuration says.
fn socket(args: &SocketArgs) -> PathBuf {
    let configured = || Config::load(None).ok()?.0.socket;
    let named = args.socket.clone().or_else(configured);
    named.unwrap_or_else(|| DEFAULT_SOCKET.into())
}

fn ask(socket: &Path, request: Request) -> Result<Reply, Failure> {
    let reply = control::client::call(socket, request)
        .map_err(|error| Failure::new(code::FAILED, error))?;
    if reply.ok {
        return Ok(reply);
    }
    let code = reply.code.unwrap_or(code::FAILED);
    let mut lines = reply.faults;
    lines.extend(reply.error);
    Err(Failure { code, lines })
}

fn tell(args: &SocketArgs, request: Request) -> Result<ExitCode, End> {
    let reply = ask(&socket(args), request)?;
    let message = reply.message.unwrap_or_default();
    print(&format!("{}\n", printable(&message)))?;
    Ok(ExitCode::SUCCESS)
}

fn status(args: &StatusArgs) -> Result<ExitCode, End> {
    let reply = ask(&socket(&args.socket), Request::Status)?;
    let Some(status) = reply.status else {
        let text = "the daemon's answer has no status; is it of another version?";
        return Err(Failure::new(code::FAILED, text).into());
    };
    if args.json.json {
        print_json(&status)?;
    } else {
        let text = if io::stdout().is_terminal() {
            status.screen()
        } else {
            status.text()
        };
        print(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn generate(what: &Generate) -> Result<ExitCode, End> {
    let mut command = Cli::command();
    let mut out = Vec::new();
    match what {
        Generate::Man => clap_mangen::Man::new(command)
            .render(&mut out)
            .map_err(|e| Failure::new(code::FAILED, e))?,
        Generate::Completions { shell } => {
            let shell = match shell {
                Shell::Bash => clap_complete::Shell::Bash,
                Shell::Zsh => clap_complete::Shell::Zsh,
                Shell::Fish => clap_complete::Shell::Fish,
            };
            clap_complete::generate(shell, &mut command, "hmkeeper", &mut out);
        }
    }
    print_own(&String::from_utf8_lossy(&out))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
