//! The programs that are measured: each does a fixed amount of work on memory of its own
//! and then checks what it did.
//!
//! **Protocol.** `tiers workload NAME` allocates and fills its memory, writes `ready PID` on
//! stdout with the process whose memory that is, waits for a line on stdin, works, writes one
//! line of JSON ([`Done`]), waits for another line, checks its result and ends; with exit code 1
//! and a word on stderr where it is wrong.
//!
//! **Placement.** It runs on the CPUs of node 0 and touches its memory from the first address
//! to the last, before it works. What is hot lies scattered over all of it, so that the node that
//! fills first gets its share of it, neither more nor less.

mod gc;
mod graph;
mod gups;
mod random;
mod redis;
mod sort;
mod sqlite;
mod stream;
mod zipf;

use std::io::{self, BufRead, Write};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::results::Latency;

/// All of them.
pub(crate) const NAMES: [&str; 10] = [
    "gups", "sqlite", "redis", "gc", "zipf", "stream", "uniform", "pagerank", "bfs", "sort",
];

/// Why a workload cannot run here: a program of others that is not installed.
pub(crate) fn missing(name: &str) -> Option<String> {
    match name {
        "redis" => redis::program().err(),
        "gc" => gc::program().err(),
        _ => None,
    }
}

/// How large a workload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Size {
    /// Whether it works at all.
    Smoke,
    /// What is compared in an hour: less work where nobody can gain anything by moving.
    Short,
    /// What is compared.
    Normal,
}

impl Size {
    /// `normal`, or three eighths of it: of most still more than the fastest node has.
    const fn memory(self, normal: usize) -> usize {
        match self {
            Self::Smoke => normal / 8 * 3,
            Self::Short | Self::Normal => normal,
        }
    }

    /// The same of a program that works through all of its memory, however little: a 32nd.
    const fn all(self, normal: usize) -> usize {
        match self {
            Self::Smoke => normal / 32,
            Self::Short | Self::Normal => normal,
        }
    }

    /// `normal`, or a 32nd of it.
    const fn work(self, normal: usize) -> usize {
        match self {
            Self::Smoke => normal / 32,
            Self::Short | Self::Normal => normal,
        }
    }

    /// The same of a program that nobody can make faster by moving its memory.
    const fn even_work(self, normal: usize) -> usize {
        match self {
            Self::Smoke => normal / 32,
            Self::Short => normal / 3 * 2,
            Self::Normal => normal,
        }
    }
}

/// What a workload says when it has worked.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Done {
    /// Of the work.
    pub(crate) seconds: f64,
    /// In its own unit.
    pub(crate) operations: u64,
    /// Of its operations, where it times them.
    pub(crate) latency: Option<Latency>,
}

/// A program that is measured.
trait Workload {
    /// Whose memory it works on: its own, unless it asks a program of others.
    fn pid(&self) -> u32 {
        std::process::id()
    }

    /// Works, and says how many operations that was.
    fn work(&mut self, latencies: &mut Latencies) -> u64;

    /// Whether the result is right, and if not what is wrong.
    fn check(&mut self) -> Result<(), String>;
}

fn build(name: &str, size: Size) -> Result<Box<dyn Workload>, String> {
    Ok(match name {
        "gups" => Box::new(gups::Gups::with_hot_set(size)),
        "uniform" => Box::new(gups::Gups::uniform(size)),
        "sqlite" => Box::new(sqlite::Sqlite::new(size)?),
        "redis" => Box::new(redis::Redis::new(size)?),
        "gc" => Box::new(gc::Gc::new(size)?),
        "zipf" => Box::new(zipf::Table::new(size)),
        "stream" => Box::new(stream::Triad::new(size)),
        "pagerank" => Box::new(graph::PageRank::new(size)),
        "bfs" => Box::new(graph::Bfs::new(size)),
        "sort" => Box::new(sort::Sort::new(size)),
        _ => return Err(format!("there is no workload {name}")),
    })
}

/// The program itself.
pub(crate) fn run(name: &str, size: Size) -> Result<(), String> {
    let cpus = cpus_of_first_node();
    hmkeeper::sys::process::pin_thread(&cpus).map_err(|e| format!("pinning: {e}"))?;
    let mut workload = build(name, size)?;
    let mut lines = io::stdin().lock().lines();
    say(&format!("ready {}", workload.pid()))?;
    let _ = lines.next();
    let mut latencies = Latencies::default();
    let begin = Instant::now();
    let operations = workload.work(&mut latencies);
    let done = Done {
        seconds: begin.elapsed().as_secs_f64(),
        operations,
        latency: latencies.percentiles(),
    };
    say(&serde_json::to_string(&done).map_err(|e| e.to_string())?)?;
    let _ = lines.next();
    workload.check().map_err(|e| format!("{name}: {e}"))
}

fn say(line: &str) -> Result<(), String> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(|e| format!("stdout: {e}"))
}

/// `0-1,4` as the kernel writes it; CPU 0 where it does not tell.
fn cpus_of_first_node() -> Vec<u32> {
    let list = std::fs::read_to_string("/sys/devices/system/node/node0/cpulist");
    let cpus: Vec<u32> = list
        .unwrap_or_default()
        .trim()
        .split(',')
        .filter_map(|part| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            Some(from.parse::<u32>().ok()?..=to.parse().ok()?)
        })
        .flatten()
        .collect();
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// Times of operations, in steps of a 16th of a doubling.
#[derive(Clone, Debug, Default)]
struct Latencies {
    counts: Vec<u64>,
    longest: Duration,
}

/// Steps in which a time doubles.
const STEPS: u32 = 16;

impl Latencies {
    /// One operation's.
    #[inline]
    fn add(&mut self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1);
        let power = nanos.ilog2();
        // The bits below the highest, as a part of STEPS.
        let below = ((u128::from(nanos) * u128::from(STEPS)) >> power) as usize - STEPS as usize;
        let step = (power * STEPS) as usize + below;
        if self.counts.len() <= step {
            self.counts.resize(step + 1, 0);
        }
        self.counts[step] += 1;
        self.longest = self.longest.max(took);
    }

    fn percentiles(&self) -> Option<Latency> {
        let total: u64 = self.counts.iter().sum();
        let at = |share: f64| {
            let mut left = total as f64 * share;
            for (step, &count) in self.counts.iter().enumerate() {
                left -= count as f64;
                if left <= 0.0 {
                    let (power, below) = (step / STEPS as usize, step % STEPS as usize);
                    let steps = f64::from(STEPS);
                    return (power as f64).exp2() * (steps + below as f64 + 1.0) / steps / 1e3;
                }
            }
            self.longest.as_secs_f64() * 1e6
        };
        (total > 0).then(|| Latency {
            p50_us: at(0.5),
            p99_us: at(0.99),
            max_us: self.longest.as_secs_f64() * 1e6,
        })
    }
}
