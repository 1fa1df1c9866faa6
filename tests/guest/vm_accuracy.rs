//! How well what is hot is told from what is not, on a real kernel, against what
//! the workload says that it does: ours, its switches, and others beside it.
//!
//! The long form takes every case with what is held to a bound; `make accuracy`
//! prints the whole table. Nothing is moved: a move would change what the next
//! epoch sees of the one and not of the other. `HMKEEPER_ACCURACY` as
//! `CASE/SYSTEM`, a part of each one's name or several with a `|` between them, is for
//! a look at these alone: `/` is the whole table.
//!
// vm: topology=4tier timeout=400 long-timeout=10000

mod accuracy;

use std::thread::sleep;
use std::time::{Duration, Instant};

use accuracy::damon::{self, Attributes, Damon};
use accuracy::score::{Belief, Score, Truth, score};
use accuracy::thermostat::Thermostat;
use hmkeeper::record::{Replay, file::Reader};
use hmkeeper::tiering::region::RegionMap;

use crate::common::{
    Daemon, INTERVAL, Site, Workload, body_as_shipped, hmkeeper, in_guest, number, percent, pid_of,
    seconds, short_or_full,
};

/// Epochs at the end over which the steady state is taken.
const STEADY: usize = 6;
/// F1 from which on a change is followed.
const FOLLOWED: f64 = 0.8;
/// Epochs in which we have to follow a jump.
const FOLLOWED_WITHIN: usize = 3;
/// Accesses per scan from which on a page is hot, and scans per epoch.
const HOT: f64 = 2.0;
const SCANS: f64 = 3.0;
/// The interval that we ship, for what is paid a fifth as much.
const SHIPPED: Duration = Duration::from_secs(10);
/// F1 that this has to reach where a bound holds.
const LEAST_AT_ONE_PERCENT: f64 = 0.85;
/// Of what is touched so often in one epoch others would make another: all look at the same.
const WHOLE_EPOCHS: &str = "[policy.adaptive]\npace = 1.0";
/// Share of the target's CPU time.
const LIMIT: f64 = 0.05;
/// Of the short form, twice as much: a host that does other things leaves a guest fewer samples.
const SHORT_LIMIT: &str = "overhead_limit = 0.1";
/// Of DAMON's checks, that call a region hot; one for all.
const DAMON_HOT: f64 = 0.25;

/// A process to be watched.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    workload: &'static [&'static str],
    /// Share of the buffer, and the time in which each page is touched once (0: all the
    /// time) at [`INTERVAL`], of each class; none: a tenth is hot.
    classes: &'static [(f64, f64)],
    /// The epoch in which what is hot jumps; `None` where it stays.
    jump: Option<usize>,
    /// Whether it goes on with each epoch.
    moves: bool,
    /// Whether its edges are so many that at 1 % all are known only after three times as
    /// many epochs.
    slowly: bool,
    /// F1 that we have to reach: mean of the last epochs. `None`: no bound holds, and
    /// nothing is learnt at 1 %.
    least: Option<f64>,
}

const STILL: Case = Case {
    name: "",
    workload: &[],
    classes: &[],
    jump: None,
    moves: false,
    slowly: false,
    least: None,
};

const CASES: &[Case] = &[
    Case {
        name: "64 chunks, jumping",
        workload: &["--chunks=64"],
        jump: Some(9),
        least: Some(0.95),
        ..STILL
    },
    Case {
        name: "contiguous",
        workload: &["--chunks=1"],
        least: Some(0.95),
        ..STILL
    },
    Case {
        name: "1000 chunks",
        workload: &["--chunks=1000"],
        ..STILL
    },
    Case {
        name: "huge pages, jumping",
        // 24 whole huge pages of 256.
        workload: &["--hot=0.09375", "--chunks=24", "--thp", "--align=2MiB"],
        jump: Some(9),
        least: Some(0.95),
        ..STILL
    },
    Case {
        name: "4096 mappings",
        workload: &["--chunks=64", "--mappings=4096"],
        least: Some(0.95),
        ..STILL
    },
    Case {
        name: "three classes",
        workload: &["--pattern=classes", "--chunks=16"],
        classes: &[(0.05, 0.0), (0.1, 4.0), (0.2, 20.0)],
        least: Some(0.95),
        ..STILL
    },
    Case {
        name: "Zipf in octaves",
        // The block of rank r of 512, 1 MiB each, 20 / r times a second, and that of the
        // first all the time: an idle process pays for few samples.
        workload: &["--pattern=classes", "--chunks=4"],
        classes: &[
            (1.0 / 512.0, 0.0),
            (2.0 / 512.0, 0.12),
            (4.0 / 512.0, 0.27),
            (8.0 / 512.0, 0.55),
            (16.0 / 512.0, 1.1),
            (32.0 / 512.0, 2.3),
            (64.0 / 512.0, 4.6),
        ],
        ..STILL
    },
    Case {
        name: "sparse",
        // 256 KiB of every 2.5 MiB.
        workload: &["--chunks=204"],
        slowly: true,
        ..STILL
    },
    Case {
        name: "growing",
        workload: &["--layout=growing"],
        moves: true,
        ..STILL
    },
    Case {
        name: "a sweep",
        workload: &["--layout=sliding"],
        moves: true,
        ..STILL
    },
];

/// Who watches.
#[derive(Clone, Copy)]
enum System {
    /// The daemon with these lines in `[profiling]`, and epochs so long.
    Daemon(&'static str, &'static str, Duration),
    /// DAMON with so many regions, at what it costs or as it comes.
    Damon(&'static str, u64, bool),
    /// One sample per 2 MiB.
    Thermostat(&'static str),
}

impl System {
    fn name(&self) -> &'static str {
        match *self {
            Self::Daemon(name, ..) | Self::Damon(name, ..) | Self::Thermostat(name) => name,
        }
    }
}

/// HM-Keeper's own rules, and those without regions that adapt, as memtierd's do not.
const HALVES: &str = "split = \"halves\"\nwindows = \"equal\"\nminimum_region = \"4KiB\"";
const FIXED: &str = "split = \"fixed\"\nwindows = \"equal\"";

const SYSTEMS: &[System] = &[
    System::Daemon("hmkeeper", "", INTERVAL),
    System::Daemon("at 1 %", "overhead_limit = 0.01", SHIPPED),
    System::Daemon("repeated looks", "looks = \"repeated\"", INTERVAL),
    System::Daemon("equal windows", "windows = \"equal\"", INTERVAL),
    System::Daemon("by DAMON", "sampler = \"damon\"", INTERVAL),
    System::Daemon("halves", HALVES, INTERVAL),
    System::Daemon("fixed", FIXED, INTERVAL),
    System::Damon("DAMON at 5 %", 1_000, true),
    System::Damon("10,000 at 5 %", 10_000, true),
    System::Damon("DAMON as it comes", 1_000, false),
    System::Thermostat("one per 2 MiB"),
];

/// What came of one.
struct Outcome {
    scores: Vec<Score>,
    /// The first epoch after the jump.
    jumped: Option<usize>,
    /// Share of the target's CPU time that it took.
    cpu: f64,
    /// How much slower the target was.
    slower: f64,
    regions: usize,
    /// In the last epoch, if that is counted.
    samples: Option<u64>,
}

/// What is true from a moment on.
struct Timeline {
    changes: Vec<(u64, Truth)>,
    /// Accesses per second from which on a page is hot.
    hot: f64,
}

impl Timeline {
    fn note(&mut self, workload: &Workload) {
        let rate = |period: f64| if period > 0.0 { 1.0 / period } else { 1000.0 };
        let classes = workload.classes.iter();
        let truth = Truth {
            buffer: workload.range,
            rates: classes
                .flat_map(|c| c.ranges.iter().map(move |&r| (r, rate(c.period_seconds))))
                .collect(),
            hot: self.hot,
        };
        self.changes.push((monotonic(), truth));
    }

    fn at(&self, moment: u64) -> &Truth {
        let after = self.changes.partition_point(|(from, _)| *from <= moment);
        &self.changes[after.saturating_sub(1)].1
    }
}

fn monotonic() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("the clock");
    u64::try_from(time.tv_sec()).unwrap() * 1_000_000_000 + u64::try_from(time.tv_nsec()).unwrap()
}

fn start(case: &Case, interval: Duration) -> (Workload, Timeline) {
    let mut args = vec![
        "--bytes=512MiB",
        "--cpus=0",
        "--start-node=3",
        "--phases=1000",
        "--phase-seconds=100000",
        "--wait",
        "--step",
    ];
    args.extend(case.workload);
    let scale = interval.as_secs_f64() / INTERVAL.as_secs_f64();
    let class = |&(share, seconds): &(f64, f64)| format!("--class={share}:{}", seconds * scale);
    let classes: Vec<String> = case.classes.iter().map(class).collect();
    args.extend(classes.iter().map(String::as_str));
    let mut workload = Workload::start(&args);
    let mut timeline = Timeline {
        changes: Vec::new(),
        hot: HOT * SCANS / interval.as_secs_f64(),
    };
    workload.go();
    workload.phase();
    timeline.note(&workload);
    (workload, timeline)
}

/// Lets what is hot go on where it does so after `epoch`.
fn advance(case: &Case, workload: &mut Workload, timeline: &mut Timeline, epoch: usize) {
    if case.moves || case.jump == Some(epoch) {
        workload.go();
        workload.phase();
        timeline.note(workload);
    }
}

fn epochs(case: &Case, interval: Duration) -> usize {
    match case.jump {
        Some(_) => 18,
        None if case.slowly && interval == SHIPPED => 48,
        None => 16,
    }
}

/// CPU seconds of the daemon and its kdamonds.
fn spent(daemon: &Daemon) -> f64 {
    let kdamonds = [("kind", "kdamonds")];
    let kdamonds = daemon
        .metrics()
        .sum("hmkeeper_own_cpu_seconds_total", &kdamonds);
    seconds(daemon.pid()) + kdamonds.unwrap_or(0.0)
}

/// Runs the daemon, and scores what it has recorded.
fn daemon(case: &Case, profiling: &str, interval: Duration) -> Outcome {
    let (mut workload, mut timeline) = start(case, interval);
    let before = workload.throughput(4);
    let site = Site::new().every(interval);
    let more = format!("{profiling}\n{WHOLE_EPOCHS}");
    site.write_config(&body_as_shipped(interval, workload.pid(), &more));
    let recording = site.path("a.rec");
    let mut command = hmkeeper();
    command.args(["run", "--dry-run", "--config"]);
    command.arg(site.config()).arg("--record").arg(&recording);
    let mut daemon = site.start_as(command);
    daemon.until_watching(workload.pid());
    let mut begin = (0.0, 0.0);
    for epoch in 1..=epochs(case, interval) {
        daemon.epochs(1);
        if epoch == 4 {
            begin = (spent(&daemon), seconds(workload.pid()));
        }
        advance(case, &mut workload, &mut timeline, epoch);
    }
    let end = (spent(&daemon), seconds(workload.pid()));
    let after = workload.throughput(4);
    let status = daemon.status();
    let samples = number(&status, workload.pid(), "samples");
    daemon.stop();

    let mut replay = Replay::new(Reader::open(&recording).expect("the recording"));
    let (mut scores, mut regions, mut last) = (Vec::new(), 0, None);
    let (mut jumped, first) = (None, timeline.changes[0].0);
    while let Some(epoch) = replay.next_epoch().expect("an epoch") {
        let (at, target) = (epoch.seen.at.0, &epoch.seen.targets);
        let Some(from) = last.replace(at) else {
            continue;
        };
        // The epoch that lies mostly after a change is the first of it.
        let middle = u64::midpoint(from, at).max(first);
        let map = target.first().and_then(|t| epoch.engine.regions(t.id));
        let scans = f64::from(epoch.engine.scans());
        let beliefs: Vec<Belief> = map
            .map(RegionMap::regions)
            .unwrap_or_default()
            .iter()
            .map(|region| Belief {
                start: region.range().start().0,
                end: region.range().end().0,
                heat: f64::from(region.heat()) / scans,
            })
            .collect();
        if case.jump.is_some()
            && jumped.is_none()
            && timeline.changes.get(1).is_some_and(|t| t.0 <= middle)
        {
            jumped = Some(scores.len());
        }
        regions = beliefs.len();
        scores.push(score(timeline.at(middle), &beliefs, 0.5));
    }
    Outcome {
        scores,
        jumped,
        cpu: (end.0 - begin.0) / (end.1 - begin.1),
        slower: 1.0 - after / before,
        regions,
        samples: Some(samples),
    }
}

/// DAMON's intervals at which it takes [`LIMIT`] of the target's CPU time: more
/// seldom by as much as it takes too much. Found in two steps, since the number of
/// its regions sets its pace.
fn paid_for(workload: &Workload, most: u64) -> Attributes {
    let mut attributes = Attributes {
        max_regions: most,
        sample_us: 20_000,
        ..damon::DEFAULT
    };
    for _ in 0..2 {
        let damon = Damon::start(workload.pid(), attributes);
        sleep(INTERVAL);
        let begin = (damon.seconds(), seconds(workload.pid()));
        sleep(3 * INTERVAL);
        let end = (damon.seconds(), seconds(workload.pid()));
        let share = (end.0 - begin.0) / (end.1 - begin.1);
        let times = (share / LIMIT).clamp(0.25, 20.0);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        {
            attributes.sample_us = (attributes.sample_us as f64 * times) as u64;
        }
        attributes.sample_us = attributes.sample_us.clamp(5_000, 400_000);
    }
    attributes
}

fn damon(case: &Case, most: u64, is_paid_for: bool) -> Outcome {
    let (mut workload, mut timeline) = start(case, INTERVAL);
    let attributes = if is_paid_for {
        paid_for(&workload, most)
    } else {
        damon::DEFAULT
    };
    let before = workload.throughput(4);
    let damon = Damon::start(workload.pid(), attributes);
    let (mut scores, mut regions, mut jumped) = (Vec::new(), 0, None);
    let (mut begin, mut spent) = ((0.0, 0.0), (0.0, 0.0));
    for epoch in 1..=epochs(case, INTERVAL) {
        // What it tells is of its last aggregation.
        let aggregation = Duration::from_micros(attributes.sample_us * attributes.checks);
        let until = Instant::now() + INTERVAL.max(aggregation);
        sleep(until.saturating_duration_since(Instant::now()));
        let moment = monotonic();
        let beliefs = damon.regions();
        if epoch >= 4 {
            let now = (damon.seconds(), seconds(workload.pid()));
            if epoch > 4 {
                spent = (now.0 - begin.0, now.1 - begin.1);
            } else {
                begin = now;
            }
        }
        regions = beliefs.len();
        scores.push(score(timeline.at(moment), &beliefs, DAMON_HOT));
        if case.jump == Some(epoch) {
            jumped = Some(scores.len());
        }
        advance(case, &mut workload, &mut timeline, epoch);
    }
    let after = workload.throughput(4);
    println!("  {attributes:?}");
    Outcome {
        scores,
        jumped,
        cpu: spent.0 / spent.1,
        slower: 1.0 - after / before,
        regions,
        samples: None,
    }
}

fn thermostat(case: &Case) -> Outcome {
    let (mut workload, mut timeline) = start(case, INTERVAL);
    let before = workload.throughput(4);
    let mut thermostat = Thermostat::start(pid_of(workload.pid()), workload.range);
    let (mut scores, mut regions, mut jumped) = (Vec::new(), 0, None);
    let mut begin = (0.0, 0.0);
    for epoch in 1..=epochs(case, INTERVAL) {
        let beliefs = thermostat.watch(INTERVAL);
        if epoch == 4 {
            begin = (thermostat.seconds, seconds(workload.pid()));
        }
        regions = beliefs.len();
        scores.push(score(timeline.at(monotonic()), &beliefs, 0.5));
        if case.jump == Some(epoch) {
            jumped = Some(scores.len());
        }
        advance(case, &mut workload, &mut timeline, epoch);
    }
    let end = (thermostat.seconds, seconds(workload.pid()));
    let after = workload.throughput(4);
    Outcome {
        scores,
        jumped,
        cpu: (end.0 - begin.0) / (end.1 - begin.1),
        slower: 1.0 - after / before,
        regions,
        samples: None,
    }
}

fn steady(scores: &[Score], of: impl Fn(&Score) -> f64) -> f64 {
    let last = &scores[scores.len().saturating_sub(STEADY)..];
    last.iter().map(of).sum::<f64>() / last.len().max(1) as f64
}

/// Epochs until a change is followed, from 1 on.
fn followed(outcome: &Outcome) -> Option<usize> {
    let from = outcome.jumped.unwrap_or(0);
    let at = outcome.scores[from..].iter().position(|s| s.f1 >= FOLLOWED);
    at.map(|n| n + 1)
}

fn row(case: &Case, name: &str, outcome: &Outcome) {
    let of = |of: fn(&Score) -> f64| steady(&outcome.scores, of);
    println!(
        "{:<20} {name:<16} F1 {:.3} precision {:.3} recall {:.3} order {:.3} followed {:>2} regions \
         {:>5} samples {:>5} cpu {:>6} slower {:>6}",
        case.name,
        of(|s| s.f1),
        of(|s| s.precision),
        of(|s| s.recall),
        of(|s| s.order.unwrap_or(0.0)),
        followed(outcome).map_or_else(|| "-".to_owned(), |n| n.to_string()),
        outcome.regions,
        outcome
            .samples
            .map_or_else(|| "-".to_owned(), |n| n.to_string()),
        percent(outcome.cpu),
        percent(outcome.slower),
    );
    let course: Vec<String> = outcome
        .scores
        .iter()
        .map(|s| format!("{:.2}", s.f1))
        .collect();
    println!("  {}", course.join(" "));
}

/// Whether one of the parts in `wanted`, separated by `|`, is part of `name`.
fn is_named(name: &str, wanted: &str) -> bool {
    wanted.split('|').any(|part| name.contains(part))
}

#[test]
fn hot_pages_are_told_from_cold_ones() {
    if !in_guest() {
        return;
    }
    let only = std::env::var("HMKEEPER_ACCURACY");
    let (only_case, only_system) = only
        .as_deref()
        .map_or(("", ""), |only| only.split_once('/').unwrap_or((only, "")));
    let (mut failed, mut rows) = (Vec::new(), 0);
    for (index, case) in CASES.iter().enumerate() {
        for (turn, system) in SYSTEMS.iter().enumerate() {
            let wanted = if only.is_ok() {
                is_named(case.name, only_case) && is_named(system.name(), only_system)
            } else {
                turn <= 1 && short_or_full(turn == 0 && index == 0, true)
            };
            let wanted = wanted && (turn != 1 || only.is_ok() || case.least.is_some());
            if !wanted {
                continue;
            }
            let (name, outcome) = match *system {
                System::Daemon(name, profiling, interval) => {
                    let profiling = if only.is_err() && turn == 0 {
                        short_or_full(SHORT_LIMIT, profiling)
                    } else {
                        profiling
                    };
                    (name, daemon(case, profiling, interval))
                }
                System::Damon(name, most, paid) => (name, damon(case, most, paid)),
                System::Thermostat(name) => (name, thermostat(case)),
            };
            row(case, name, &outcome);
            rows += 1;
            // The table shows what is; who asks for a part of it wants to see that.
            let least = case
                .least
                .filter(|_| only.is_err())
                .map(|least| match turn {
                    0 => least,
                    _ => LEAST_AT_ONE_PERCENT,
                });
            let slack = short_or_full(0.1, 0.0);
            let f1 = steady(&outcome.scores, |s| s.f1);
            if let Some(least) = least.filter(|least| f1 < least - slack) {
                failed.push(format!("{}, {name}: F1 {f1:.3}, not {least}", case.name));
            }
            let is_late = outcome.jumped.is_none()
                || followed(&outcome).is_none_or(|epochs| epochs > FOLLOWED_WITHIN);
            let has_to_follow = least.is_some() && turn == 0 && case.jump.is_some();
            if has_to_follow && short_or_full(false, is_late) {
                failed.push(format!("{}, {name}: the jump is not followed", case.name));
            }
            let limit = if turn == 1 { LIMIT / 5.0 } else { LIMIT };
            // Held on the average of more epochs than are measured here.
            let limit = limit * short_or_full(2.0 * 1.3, 1.1);
            if only.is_err() && outcome.cpu > limit {
                let cost = percent(outcome.cpu);
                failed.push(format!("{}, {name}: cost {cost}", case.name));
            }
        }
    }
    assert!(rows > 0, "HMKEEPER_ACCURACY names no case or system");
    assert!(failed.is_empty(), "{failed:?}");
}
