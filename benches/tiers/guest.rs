//! In the guest: one workload under one system, measured.
//!
//! Memory is filled while nothing is counted or charged and no system runs; then the system starts, charging
//! begins, and the workload is told to work. So all begin with what first touch placed,
//! but for those that place at that moment (`interleave`, `bound`).

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hmkeeper::sys::process::end_with_parent;
use nix::sys::signal::Signal;

use crate::results::{Daemon, Measured};
use crate::shares::Share;
use crate::system::{self, System};
use crate::tierlat::{Counts, Tierlat};
use crate::workload::{Done, Size};

/// Of the kernel, in which it counts CPU time.
pub(crate) const TICKS_PER_SECOND: f64 = 100.0;
/// Threads of the kernel that watch, demote and make room.
const KERNEL_THREADS: [&str; 3] = ["kdamond", "kswapd", "kcompactd"];

/// A daemon is not asked for shares in the first seconds: were it to answer while it does most for
/// the first time, its first epochs would be long ones.
const UNASKED: Duration = Duration::from_secs(9);

/// One workload under one system, as the host asks for it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Run {
    pub(crate) workload: String,
    pub(crate) system: String,
    pub(crate) pace: f64,
}

impl fmt::Display for Run {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{},{},{}", self.workload, self.system, self.pace)
    }
}

impl FromStr for Run {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split(',').collect();
        let [workload, system, pace] = words[..] else {
            return Err("wanted WORKLOAD,SYSTEM,PACE".into());
        };
        Ok(Self {
            workload: workload.to_owned(),
            system: system.to_owned(),
            pace: pace.parse().map_err(|e| format!("pace {pace}: {e}"))?,
        })
    }
}

/// Each in turn; writes a line with what was measured, or with what went wrong. `shares`: the daemon is
/// asked meanwhile.
pub(crate) fn measure_all(runs: &[Run], size: Size, shares: bool) -> Result<(), String> {
    for run in runs {
        let measured = measure(run, size, shares);
        let text = serde_json::to_string(&measured).map_err(|e| e.to_string())?;
        println!("{text}");
    }
    Ok(())
}

/// Writes a line for each system: what this kernel lacks for it, or null.
pub(crate) fn missing_all(systems: &[String]) -> Result<(), String> {
    for name in systems {
        let system = system::named(name, 1.0).ok_or_else(|| format!("no system {name}"))?;
        let text = serde_json::to_string(&system.missing()?).map_err(|e| e.to_string())?;
        println!("{text}");
    }
    Ok(())
}

fn measure(run: &Run, size: Size, shares: bool) -> Result<Measured, String> {
    let workload = run.workload.as_str();
    let system = system::named(&run.system, run.pace);
    let mut system = system.ok_or_else(|| format!("no system {}", run.system))?;
    // Huge pages only where a program asks for them, and no page cache on the fastest node.
    system::write("/sys/kernel/mm/transparent_hugepage/enabled", "madvise")?;
    system::write("/proc/sys/vm/drop_caches", "3")?;
    let tierlat = Tierlat::start()?;
    let mut program = Program::start(workload, size, &mut *system)?;
    let pid = program.ready()?;
    // All code is translated anew for it: before anything is measured.
    tierlat.count()?;
    system.start(pid)?;
    tierlat.watch(pid)?;
    let before = Snapshot::take(pid, &*system, &tierlat)?;
    tierlat.charge(true)?;
    program.tell()?;
    let is_over = AtomicBool::new(false);
    let (done, after, shares) = std::thread::scope(|scope| {
        let told = shares.then(|| scope.spawn(|| told_shares(pid, &*system, &tierlat, &is_over)));
        let done = program.line();
        is_over.store(true, Ordering::Relaxed);
        let after = Snapshot::take(pid, &*system, &tierlat);
        let told = told.map(|thread| thread.join().expect("it does not panic"));
        (done, after, told.transpose())
    });
    let (done, after) = (done?, after?);
    tierlat.charge(false)?;
    let schemes = system.schemes()?;
    system.stop()?;
    let done: Done = serde_json::from_str(&done).map_err(|e| format!("{workload}: {done}: {e}"))?;
    program.tell()?;
    program.end()?;
    let misses_by_node = after.counts.watched_since(&before.counts);
    if misses_by_node.values().all(|misses| *misses == 0) {
        return Err(format!("{workload}: no miss was counted"));
    }
    let kernel_moved_bytes = (after.migrated - before.migrated) * hmkeeper::units::PAGE_BYTES;
    let moved = after.said.as_ref().map(|(up, down, _)| up + down);
    Ok(Measured {
        seconds: done.seconds,
        operations: done.operations,
        misses_by_node,
        waited_ms_by_node: after.counts.waited_since(&before.counts),
        kernel_misses_by_node: after.counts.kernel_since(&before.counts),
        moved_bytes: moved.unwrap_or(kernel_moved_bytes),
        promoted_bytes: after.said.as_ref().map(|(up, ..)| *up),
        kernel_moved_bytes,
        daemon_cpu_seconds: after.others_cpu - before.others_cpu,
        workload_user_seconds: after.own_cpu.0 - before.own_cpu.0,
        workload_system_seconds: after.own_cpu.1 - before.own_cpu.1,
        schemes,
        shares: shares?.unwrap_or_default(),
        latency: done.latency,
        daemon: after.said.map(|(.., daemon)| daemon),
    })
}

/// What the daemon says that each node serves, and what it has served in the same time, one such time
/// after the other until `is_over`. Nothing where nobody says so.
fn told_shares(
    pid: u32,
    system: &dyn System,
    tierlat: &Tierlat,
    is_over: &AtomicBool,
) -> Result<Vec<Vec<Share>>, String> {
    let mut times = Vec::new();
    let Some(mut told) = system.told(pid)? else {
        return Ok(times);
    };
    let began = Instant::now();
    // It speaks of the time up to the end of its last epoch: counters are read at such ends, which are
    // seen when it is asked twice in a row. To answer costs it samples, so it is left alone until
    // a quarter of an epoch before the end that is wanted.
    let mut since: Option<(Counts, Instant)> = None;
    let mut epochs = None;
    while !is_over.load(Ordering::Relaxed) {
        let is_early = |(_, at): &(Counts, Instant)| at.elapsed() + told.epoch / 4 < told.of;
        if began.elapsed() < UNASKED || since.as_ref().is_some_and(is_early) {
            std::thread::sleep(Duration::from_millis(50));
            epochs = None;
            continue;
        }
        let now = system.told(pid)?;
        told = now.ok_or("the daemon says nothing any more")?;
        let is_end = epochs.replace(told.epochs).is_some_and(|e| told.epochs > e);
        if !is_end {
            std::thread::sleep((told.epoch / 5).max(Duration::from_millis(200)));
            continue;
        }
        let counts = tierlat.counts()?;
        let is_known = told.nodes.values().any(|[ratio, ..]| *ratio > 0.0);
        if let Some((before, _)) = since.as_ref().filter(|_| is_known) {
            let share = |(node, misses)| {
                let [told, low, high] = told.nodes.get(&node).copied().unwrap_or([0.0, 0.0, 1.0]);
                Share {
                    node,
                    misses,
                    told,
                    low,
                    high,
                }
            };
            let misses = counts.watched_since(before);
            times.push(misses.into_iter().map(share).collect());
        }
        since = Some((counts, Instant::now()));
    }
    Ok(times)
}

/// The workload as a child process.
struct Program {
    name: String,
    process: Child,
    stdin: ChildStdin,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Program {
    fn start(name: &str, size: Size, system: &mut dyn System) -> Result<Self, String> {
        let me = std::env::current_exe().map_err(|e| format!("this program: {e}"))?;
        let mut command = match system.wrapper() {
            Some([program, args @ ..]) => {
                let mut command = Command::new(program);
                command.args(args).arg(me);
                command
            }
            _ => Command::new(me),
        };
        command
            .args(["workload", name, "--size", size_name(size)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        end_with_parent(&mut command, Signal::SIGKILL);
        let mut process = command.spawn().map_err(|e| format!("{name}: {e}"))?;
        let (Some(stdin), Some(stdout)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(format!("{name}: no pipes"));
        };
        Ok(Self {
            name: name.to_owned(),
            process,
            stdin,
            stdout: BufReader::new(stdout),
        })
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.stdout.read_line(&mut line) {
            Ok(n) if n > 0 => Ok(line.trim_end().to_owned()),
            Ok(_) => Err(format!("{}: ended too early", self.name)),
            Err(e) => Err(format!("{}: {e}", self.name)),
        }
    }

    /// Waits until its memory is filled: the process that has it.
    fn ready(&mut self) -> Result<u32, String> {
        let line = self.line()?;
        let pid = line.strip_prefix("ready ").and_then(|p| p.parse().ok());
        pid.ok_or_else(|| format!("{} said {line:?} and not that it is ready", self.name))
    }

    fn tell(&mut self) -> Result<(), String> {
        writeln!(self.stdin, "go").map_err(|e| format!("{}: {e}", self.name))
    }

    fn end(mut self) -> Result<(), String> {
        drop(self.stdin);
        let status = self.process.wait().map_err(|e| e.to_string())?;
        status
            .success()
            .then_some(())
            .ok_or_else(|| format!("{}: wrong result ({status})", self.name))
    }
}

pub(crate) fn size_name(size: Size) -> &'static str {
    match size {
        Size::Smoke => "smoke",
        Size::Short => "short",
        Size::Normal => "normal",
    }
}

/// All counters at one moment.
struct Snapshot {
    counts: Counts,
    /// Pages that the kernel has moved.
    migrated: u64,
    /// Of the workload: user and system.
    own_cpu: (f64, f64),
    /// Of the daemon and the kernel's threads.
    others_cpu: f64,
    /// What the daemon says: promoted, demoted, and more.
    said: Option<(u64, u64, Daemon)>,
}

impl Snapshot {
    fn take(pid: u32, system: &dyn System, tierlat: &Tierlat) -> Result<Self, String> {
        let daemon = system.daemon();
        let others = kernel_threads().into_iter().chain(daemon);
        let others_cpu = others
            .filter_map(|pid| cpu(pid).ok())
            .map(|(user, system)| user + system)
            .sum();
        Ok(Self {
            counts: tierlat.counts()?,
            migrated: vmstat("pgmigrate_success")?,
            own_cpu: cpu(pid)?,
            others_cpu,
            said: system.status(pid)?,
        })
    }
}

fn vmstat(name: &str) -> Result<u64, String> {
    let text = std::fs::read_to_string("/proc/vmstat").map_err(|e| format!("vmstat: {e}"))?;
    let line = text
        .lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|n| n.parse().ok())
        .ok_or_else(|| format!("/proc/vmstat has no {name}"))
}

/// Seconds of a process and all its threads in user code and in the kernel.
fn cpu(pid: u32) -> Result<(f64, f64), String> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
    // The fields behind the name, which may hold anything: state is the third.
    let fields = text.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let ticks = |field: usize| -> Option<f64> { fields.split(' ').nth(field - 3)?.parse().ok() };
    ticks(14)
        .zip(ticks(15))
        .map(|(user, system)| (user / TICKS_PER_SECOND, system / TICKS_PER_SECOND))
        .ok_or_else(|| format!("{path}: not understood"))
}

fn kernel_threads() -> Vec<u32> {
    let is_one = |pid: u32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        KERNEL_THREADS.iter().any(|t| name.starts_with(t))
    };
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&pid| is_one(pid))
        .collect()
}

/// Waits for something that takes a moment.
pub(crate) fn wait_for(
    what: &str,
    at_most: Duration,
    mut done: impl FnMut() -> Result<bool, String>,
) -> Result<(), String> {
    let until = Instant::now() + at_most;
    while !done()? {
        if Instant::now() > until {
            return Err(format!("{what}: not within {at_most:?}"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
