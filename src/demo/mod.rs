//! `hmkeeper demo`: a workload whose hot set moves, the daemon, and how much of
//! the workload's accesses the fastest tier serves.
//!
//! The workload is a process of its own ([`workload`]) that begins on the
//! slowest node and counts by itself which node serves it; the daemon is a
//! process of its own with an ordinary configuration. The demo only starts
//! them, shows what both say, and ends them. On the fastest tier there is room
//! for one and a half hot sets: taken up by a ballast where the node is small,
//! else told to the daemon as the tier's capacity.

mod children;
mod place;
pub mod size;
mod status;
mod table;
pub mod workload;

use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::sys::signal::Signal;

use self::children::{Child, Role, WorkDir};
pub use self::place::Unfit;
use self::place::{Place, Room};
use self::size::parse_bytes;
use self::table::{Outcome, PhaseResult, Row, TierNode};
use self::workload::lines::{ByNode, Line};
use crate::ports::{Residency, Topology};
use crate::sys::process::{catch_end_signals, cpu_time};
use crate::sys::residency::SysResidency;
use crate::sys::root::Root;
use crate::sys::topology::SysTopology;
use crate::telemetry::status::{Status, TargetStatus};
use crate::tiering::observation::NodeUsage;
use crate::tiering::settings::Asking;
use crate::units::Bytes;
use crate::units::text::{printable_json, printable_lines};

/// The daemon's control socket in the work directory.
const SOCKET: &str = "control.sock";
/// The daemon's state directory there.
const STATE_DIR: &str = "state";
/// The daemon's interval in the demo: ten epochs in a phase at least.
const INTERVAL: Duration = Duration::from_secs(2);
/// Time between two rows.
const ROW_EVERY: Duration = Duration::from_secs(2);
/// How long a child may take until it is ready: a large buffer is touched.
const READY_WITHIN: Duration = Duration::from_secs(300);
/// Silence of the workload after which it must be stuck.
const SILENCE: Duration = Duration::from_secs(60);
/// The hot part of the buffer.
const HOT_SHARE: f64 = 0.1;
/// Chunks that it lies scattered in.
const CHUNKS: usize = 64;

/// Options of `hmkeeper demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Run the workload without the daemon, for comparison
    #[arg(long)]
    pub baseline: bool,
    /// Print one JSON object at the end, and nothing else
    #[arg(long)]
    pub json: bool,
    /// Size of the workload's buffer; a tenth of it is hot
    #[arg(long, default_value = "1GiB", value_parser = parse_bytes)]
    pub bytes: Bytes,
    /// How often the hot set lies somewhere else
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub phases: u32,
    /// Length of a phase
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(4..))]
    pub phase_seconds: u32,
    /// Seed of the workload's random choices
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// What the demo waits for.
#[derive(Debug)]
enum Event {
    /// A child said something.
    Line(Role, Line),
    /// A child said something that cannot be read.
    Garbled(Role, String),
    /// A child's output ended.
    Closed(Role),
    /// Somebody wants the demo to end.
    Signal(Signal),
}

/// Runs the demo to its end.
///
/// # Errors
/// [`Unfit`] where the machine has nothing to show; else when a child cannot
/// be started or ends too early.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let root = Root::host();
    let place = place::choose(&SysTopology::new(&root, None).read()?)?;
    let usage = SysResidency::new(&root).nodes(Asking::Never)?;
    let (events, incoming) = channel();
    let signals = events.clone();
    // A demo that is over has nobody to tell.
    catch_end_signals(move |signal| drop(signals.send(Event::Signal(signal))))
        .context("catching signals")?;
    let demo = Demo {
        args,
        root,
        place,
        dir: WorkDir::new()?,
        events,
        incoming,
    };
    let outcome = demo.play(&usage)?;
    if args.json {
        println!("{}", printable_json(&serde_json::to_string(&outcome)?));
    }
    Ok(())
}

struct Demo<'a> {
    args: &'a Args,
    root: Root,
    place: Place,
    dir: WorkDir,
    events: Sender<Event>,
    incoming: Receiver<Event>,
}

/// The daemon with what is needed to ask it.
struct Daemon {
    child: Child,
    socket: PathBuf,
    /// Its last answer.
    status: Status,
}

impl Demo<'_> {
    fn say(&self, text: &str) {
        if !self.args.json {
            println!("{}", printable_lines(text));
        }
    }

    fn play(&self, usage: &[NodeUsage]) -> anyhow::Result<Outcome> {
        let hot = place::times(self.args.bytes, HOT_SHARE);
        let room = place::room(&self.place, hot, usage);
        let names: Vec<&str> = self.place.nodes.iter().map(|(_, n)| n.as_str()).collect();
        let slow = self.place.nodes.iter().find(|(n, _)| *n == self.place.slow);
        self.say(&format!(
            "Tiers as CPU {} sees them, fastest first: {}",
            self.place.cpus[0],
            names.join(", ")
        ));
        let (ballast, room_by) = match &room {
            Room::Ballast { node, leave } => {
                self.say(&format!(
                    "Ballast fills node {node} until {leave} are free: room for {} hot sets",
                    place::ROOM_IN_HOT_SETS
                ));
                (Some(self.start_ballast(node.0, *leave)?), "ballast")
            }
            Room::Capacity(bytes) => {
                self.say(&format!(
                    "The node is large: the daemon may use {bytes} of {}, room for {} hot sets",
                    names[0],
                    place::ROOM_IN_HOT_SETS
                ));
                (None, "capacity")
            }
        };
        self.say(&format!(
            "The workload touches {} on {}; {hot} in {CHUNKS} scattered chunks are hot and jump every {} s",
            self.args.bytes,
            slow.map_or("the slowest node", |(_, name)| name),
            self.args.phase_seconds
        ));
        let mut workload = self.start_workload()?;
        let mut daemon = if self.args.baseline {
            self.say("No daemon (--baseline)");
            None
        } else {
            let daemon = self.start_daemon(workload.pid(), &room)?;
            self.say(&format!(
                "The daemon watches it with sampler \"{}\", an epoch of at most {} s",
                daemon.status.sampler,
                INTERVAL.as_secs()
            ));
            Some(daemon)
        };
        let begin = Instant::now();
        let cpu_before = self.daemon_cpu(daemon.as_ref());
        workload.go()?;
        self.say("");
        self.say(&table::heading(&self.place, daemon.is_some()));
        let phases = self.watch(&mut workload, daemon.as_mut())?;
        let cpu = self.daemon_cpu(daemon.as_ref()).saturating_sub(cpu_before);
        let outcome = Outcome {
            daemon: daemon.is_some(),
            sampler: daemon.as_ref().map(|d| d.status.sampler.clone()),
            bytes: self.args.bytes.0,
            hot_bytes: hot.0,
            room_bytes: place::times(hot, place::ROOM_IN_HOT_SETS).0,
            room_by,
            tiers: self
                .place
                .nodes
                .iter()
                .map(|(node, tier)| TierNode {
                    tier: tier.clone(),
                    node: *node,
                })
                .collect(),
            fast_count: self.place.fast.len(),
            daemon_cpus: cpu.as_secs_f64() / begin.elapsed().as_secs_f64(),
            phases,
        };
        // In this order: nobody is watched any more when the memory goes.
        drop(daemon);
        drop(workload);
        drop(ballast);
        Ok(outcome)
    }

    fn start(&self, role: Role, args: &[String]) -> anyhow::Result<Child> {
        Child::start(role, args, self.dir.path(), &self.events)
    }

    fn start_ballast(&self, node: u32, leave: Bytes) -> anyhow::Result<Child> {
        let mut child = self.start(
            Role::Ballast,
            &strings(&[
                "workload",
                "--pattern=ballast",
                "--lists",
                &format!("--start-node={node}"),
                &format!("--leave={}", leave.0),
            ]),
        )?;
        self.until_ready(&mut child, Role::Ballast)?;
        Ok(child)
    }

    fn start_workload(&self) -> anyhow::Result<Child> {
        let cpus: Vec<String> = self.place.cpus.iter().map(u32::to_string).collect();
        let mut child = self.start(
            Role::Workload,
            &strings(&[
                "workload",
                "--wait",
                &format!("--bytes={}", self.args.bytes.0),
                &format!("--hot={HOT_SHARE}"),
                &format!("--chunks={CHUNKS}"),
                &format!("--seed={}", self.args.seed),
                &format!("--threads={}", cpus.len()),
                &format!("--cpus={}", cpus.join(",")),
                &format!("--start-node={}", self.place.slow),
                &format!("--phases={}", self.args.phases),
                &format!("--phase-seconds={}", self.args.phase_seconds),
            ]),
        )?;
        self.until_ready(&mut child, Role::Workload)?;
        Ok(child)
    }

    fn start_daemon(&self, target: u32, room: &Room) -> anyhow::Result<Daemon> {
        let config = self.dir.path().join("hmkeeper.toml");
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|l| l.local_addr())
            .context("finding a free port")?
            .port();
        let text = daemon_config(&self.place, room, target, port, self.dir.path())?;
        let state = self.dir.path().join(STATE_DIR);
        std::fs::create_dir(&state).with_context(|| format!("creating {}", state.display()))?;
        std::fs::write(&config, text).with_context(|| format!("writing {}", config.display()))?;
        let args = ["run", "--config"].map(str::to_owned);
        let args: Vec<String> = args
            .into_iter()
            .chain([config.display().to_string()])
            .collect();
        let mut child = self.start(Role::Daemon, &args)?;
        let socket = self.dir.path().join(SOCKET);
        let until = Instant::now() + READY_WITHIN;
        loop {
            if let Some(status) =
                status::ask(&socket).filter(|s| status::target(s, target).is_some())
            {
                return Ok(Daemon {
                    child,
                    socket,
                    status,
                });
            }
            if child.ended()?.is_some() {
                return Err(child.died());
            }
            if let Ok(Event::Signal(signal)) = self.incoming.try_recv() {
                bail!("ended by {signal}");
            }
            if Instant::now() >= until {
                bail!("the daemon does not watch the workload after {READY_WITHIN:?}");
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn until_ready(&self, child: &mut Child, role: Role) -> anyhow::Result<()> {
        loop {
            match self.incoming.recv_timeout(READY_WITHIN) {
                Ok(Event::Line(of, Line::Ready { .. })) if of == role => return Ok(()),
                Ok(Event::Line(..)) => {}
                Ok(Event::Closed(_)) => return Err(child.died()),
                Ok(Event::Signal(signal)) => bail!("ended by {signal}"),
                Ok(Event::Garbled(of, line)) => bail!("the {} says {line:?}", of.as_str()),
                Err(_) => bail!("the {} is not ready after {READY_WITHIN:?}", role.as_str()),
            }
        }
    }

    fn daemon_cpu(&self, daemon: Option<&Daemon>) -> Duration {
        daemon
            .and_then(|d| cpu_time(&self.root, d.child.pid()).ok())
            .unwrap_or_default()
    }

    /// Shows what happens until the workload has ended.
    fn watch(
        &self,
        workload: &mut Child,
        mut daemon: Option<&mut Daemon>,
    ) -> anyhow::Result<Vec<PhaseResult>> {
        let pid = workload.pid();
        let mut results = Vec::new();
        let mut since_row = ByNode::default();
        let mut last_row = (Instant::now(), self.daemon_cpu(daemon.as_deref()));
        let mut at_phase_start = daemon.as_ref().map(|d| d.status.clone());
        let mut phase_began = 0.0;
        loop {
            match self.incoming.recv_timeout(SILENCE) {
                Ok(Event::Line(
                    Role::Workload,
                    Line::Sample {
                        elapsed_seconds,
                        phase,
                        accesses,
                        ..
                    },
                )) => {
                    since_row.add_all(&accesses);
                    // A sample comes every second, give or take.
                    if last_row.0.elapsed() < ROW_EVERY.mul_f64(0.8) {
                        continue;
                    }
                    let mut figures = Row {
                        seconds: elapsed_seconds,
                        phase,
                        ..Row::default()
                    };
                    if let Some(daemon) = daemon.as_deref_mut() {
                        daemon.ask()?;
                        let cpu = self.daemon_cpu(Some(daemon));
                        let wall = last_row.0.elapsed().as_secs_f64();
                        figures.daemon_cpus =
                            Some(cpu.saturating_sub(last_row.1).as_secs_f64() / wall);
                        figures.estimate = status::share(&daemon.status, pid, &self.place.fast);
                        if let Some(target) = status::target(&daemon.status, pid) {
                            figures.promoted = Bytes(target.promoted_bytes);
                            figures.demoted = Bytes(target.demoted_bytes);
                        }
                        last_row.1 = cpu;
                    }
                    last_row.0 = Instant::now();
                    self.say(&table::row(
                        &self.place,
                        &std::mem::take(&mut since_row),
                        figures,
                        daemon.is_some(),
                    ));
                }
                Ok(Event::Line(
                    Role::Workload,
                    Line::PhaseEnd {
                        phase,
                        elapsed_seconds,
                        last_quarter,
                        hot_pages,
                        ..
                    },
                )) => {
                    if let Some(daemon) = daemon.as_deref_mut() {
                        daemon.ask()?;
                    }
                    let now = daemon.as_ref().map(|d| d.status.clone());
                    let grown = |count: fn(&TargetStatus) -> u64| {
                        let of = |s: &Option<Status>| {
                            s.as_ref()
                                .and_then(|s| status::target(s, pid))
                                .map_or(0, count)
                        };
                        of(&now).saturating_sub(of(&at_phase_start))
                    };
                    let epoch = |s: &Option<Status>| s.as_ref().map_or(0, |s| s.epoch);
                    let result = PhaseResult {
                        phase,
                        seconds: elapsed_seconds - phase_began,
                        true_fast_share: last_quarter.share(&self.place.fast),
                        true_shares: table::shares(&self.place, &last_quarter),
                        estimated_fast_share: now
                            .as_ref()
                            .and_then(|s| status::share(s, pid, &self.place.fast)),
                        hot_pages_fast_share: hot_pages.share(&self.place.fast),
                        epochs: epoch(&now).saturating_sub(epoch(&at_phase_start)),
                        promoted_bytes: grown(|t| t.promoted_bytes),
                        demoted_bytes: grown(|t| t.demoted_bytes),
                    };
                    self.say(&table::summary(&self.place, &result, daemon.is_some()));
                    results.push(result);
                    at_phase_start = now;
                    phase_began = elapsed_seconds;
                }
                Ok(Event::Line(Role::Workload, Line::End { .. })) => return Ok(results),
                Ok(Event::Line(..)) => {}
                Ok(Event::Closed(Role::Workload)) => return Err(workload.died()),
                Ok(Event::Closed(role)) => bail!("the {} ended too early", role.as_str()),
                Ok(Event::Garbled(role, line)) => bail!("the {} says {line:?}", role.as_str()),
                Ok(Event::Signal(signal)) => bail!("ended by {signal}"),
                Err(RecvTimeoutError::Timeout) => {
                    bail!("the workload has said nothing for {SILENCE:?}")
                }
                Err(RecvTimeoutError::Disconnected) => bail!("nobody is left to hear from"),
            }
        }
    }
}

impl Daemon {
    /// Its newest answer; the last one stays when it is slow to answer.
    fn ask(&mut self) -> anyhow::Result<()> {
        if self.child.ended()?.is_some() {
            return Err(self.child.died());
        }
        if let Some(status) = status::ask(&self.socket) {
            self.status = status;
        }
        Ok(())
    }
}

fn strings(args: &[&str]) -> Vec<String> {
    args.iter().map(|&a| a.to_owned()).collect()
}

/// A path as a TOML string.
fn quoted(path: &Path) -> toml::Value {
    toml::Value::String(path.display().to_string())
}

/// The daemon's configuration: the defaults but for what is named here.
fn daemon_config(
    place: &Place,
    room: &Room,
    target: u32,
    port: u16,
    dir: &Path,
) -> anyhow::Result<String> {
    // The workload only waits for memory. Its phases are too short for moves to pay for
    // themselves in a virtual machine, where they cost ten times as much. So do system calls, and those that a
    // twentieth of its time pays for are too few for ten epochs where the host is busy, too.
    let mut text = format!(
        "[daemon]\nstate_dir = {}\n\n[profiling]\ninterval = \"{}s\"\noverhead_limit = 0.1\n\n\
         [policy.adaptive]\nmemory_bound = 1.0\npayback = 0.2\nmoving_limit = 0.5\n\n[metrics]\nlisten = \"127.0.0.1:{port}\"\n\n[control]\nsocket = {}\n\n\
         [[targets]]\nname = \"demo\"\npid = {target}\n",
        quoted(&dir.join(STATE_DIR)),
        INTERVAL.as_secs(),
        quoted(&dir.join(SOCKET)),
    );
    if let Room::Ballast { .. } = room {
        // What files hold there would be room as well, which the ballast knows nothing of.
        text.push_str("\n[migration]\npage_cache = false\n");
    }
    if let Room::Capacity(bytes) = room {
        let share = bytes.0 / place.fast.len().max(1) as u64;
        for (node, tier) in &place.nodes {
            write!(text, "\n[[tiers]]\nname = {tier:?}\nnodes = [{node}]\n")?;
            if place.fast.contains(node) {
                writeln!(text, "capacity = \"{}KiB\"", share / 1024)?;
            }
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::NodeId;

    fn config(room: &Room) -> toml::Table {
        let place = Place {
            cpus: vec![0],
            fast: vec![NodeId(0)],
            slow: NodeId(2),
            nodes: vec![(NodeId(0), "dram0".into()), (NodeId(2), "mem2".into())],
        };
        let text = daemon_config(&place, room, 42, 9999, Path::new("/run/d")).unwrap();
        text.parse().unwrap()
    }

    #[test]
    fn beside_a_ballast_only_what_it_leaves_is_room() {
        let value = config(&Room::Ballast {
            node: NodeId(0),
            leave: Bytes::from_mib(170),
        });
        assert_eq!(value["migration"]["page_cache"].as_bool(), Some(false));
        assert_eq!(value.get("tiers"), None);
    }

    #[test]
    fn a_large_node_is_capped_by_the_configuration() {
        let value = config(&Room::Capacity(Bytes::from_mib(150)));
        assert_eq!(value.get("migration"), None);
        let tiers = value["tiers"].as_array().unwrap();
        assert_eq!(tiers[0]["capacity"].as_str(), Some("153600KiB"));
        assert_eq!(tiers[1].get("capacity"), None);
        assert_eq!(value["targets"][0]["pid"].as_integer(), Some(42));
        assert_eq!(
            value["control"]["socket"].as_str(),
            Some("/run/d/control.sock")
        );
    }
}
