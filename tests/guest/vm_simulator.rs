//! The simulator against the real thing: the same program on the model of this virtual
//! machine (`config/machines/vm-4tier.toml`) as the daemon runs beside here, or the kernel's
//! own tiering, and what the model says of the fastest tier's share and of the bytes moved.
//! What scans, counting and moves cost is measured in the same run: it follows the host.
//!
// vm: topology=4tier timeout=400

use hmkeeper::demo::workload::lines::{ByNode, Line};
use hmkeeper::sim::hardware::OF_TESTS;
use hmkeeper::units::{Bytes, NodeId};
use serde_json::Value;

use crate::common::{
    INTERVAL, Site, Workload, ballast, hmkeeper, in_guest, locked_ballast, long, output_of,
    short_or_full, show,
};

const BUFFER: Bytes = Bytes::from_mib(1024);
const PHASES: u32 = 3;
const PHASE_SECONDS: u32 = 20;
/// Of the kernel, of which the mean is held against the model's.
const RUNS: usize = 3;
/// Share of the buffer for which the fastest node has room: one and a half hot sets.
const ROOM: f64 = 0.15;
/// How far the model may be off: in the share, and relatively in the bytes. The short form
/// runs wherever CI does, on hosts that stop the guest to do other things.
fn may_be_off() -> (f64, f64) {
    short_or_full((0.1, 0.4), (0.05, 0.25))
}

/// What `hmkeeper workload` does by itself: a tenth is swept all the time, in 64 pieces;
/// beside that each page is touched once in twenty seconds. `ACCESSES` and `COMPUTE` are
/// counted here: how fast this machine is.
const PROGRAM: &str = r#"
name = "demo"
folio = "4KiB"
time = "60s"
compute = "COMPUTE"
start = "slowest"
cycles = 3
[[objects]]
name = "buffer"
size = "1GiB"
writes = 0.25
parallel = 1024
pattern = { kind = "hot", share = 0.1, accesses = ACCESSES, chunks = 64, moves = true }
[[phases]]
length = 1
accesses = { buffer = 1 }
"#;

/// What a run came to.
#[derive(Debug)]
struct Outcome {
    fast_share: f64,
    promoted: f64,
    demoted: f64,
}

#[test]
fn the_model_says_what_happens() {
    if !in_guest() {
        return;
    }
    let site = Site::new().every(INTERVAL);
    let (real, pace, room) = real(&site);
    let model = model(&site, pace, room, ("hm-keeper", INTERVAL.as_secs()));
    compare(&real, &model, may_be_off());
}

/// The kernel's own tiering, and ours that is to do the same, once a second since the kernel
/// decides at any time.
#[test]
fn the_model_says_what_the_kernel_does() {
    if !in_guest() {
        return;
    }
    if !long() {
        println!("skipped: four minutes, in the long form");
        return;
    }
    // From run to run the kernel's share differs by up to thirteen points: how many windows fall
    // into a phase is chance.
    let site = Site::new();
    let (mut real, mut models) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let (run, pace) = kernel();
        real.push(run);
        models.push(model(&site, pace, ROOM, ("memory-tiering", 1)));
    }
    let (real, model) = (mean(&real), mean(&models));
    compare(&real, &model, may_be_off());
}

fn mean(runs: &[Outcome]) -> Outcome {
    let of = |what: fn(&Outcome) -> f64| runs.iter().map(what).sum::<f64>() / runs.len() as f64;
    println!("of {runs:?}");
    Outcome {
        fast_share: of(|run| run.fast_share),
        promoted: of(|run| run.promoted),
        demoted: of(|run| run.demoted),
    }
}

fn compare(real: &Outcome, model: &Outcome, (share_off, bytes_off): (f64, f64)) {
    println!("real: {real:?}\nmodel: {model:?}");
    let off = (model.fast_share - real.fast_share).abs();
    assert!(off <= share_off, "{off}: {model:?}, {real:?}");
    for (model, real) in [
        (model.promoted, real.promoted),
        (model.demoted, real.demoted),
    ] {
        assert!((model / real - 1.0).abs() <= bytes_off, "{model}, {real}");
    }
}

/// How fast this machine is.
#[derive(Clone, Copy, Debug)]
struct Pace {
    accesses_per_second: f64,
    /// Nanoseconds of a scan, of counting a page, of moving one.
    scan: f64,
    count: f64,
    small_move: f64,
}

/// Seconds and count of `12.3ms for 456 {of}`, over all lines.
fn total(log: &str, of: &str) -> (f64, f64) {
    let (mut seconds, mut count) = (0.0, 0.0);
    for line in log.lines() {
        let Some((before, _)) = line.split_once(of) else {
            continue;
        };
        let mut words = before.split_whitespace().rev();
        let (Some(n), Some("for"), Some(time)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        count += n.parse::<f64>().expect("a count");
        let time = time.trim_start_matches('(');
        let unit = time.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let number: f64 = time[..time.len() - unit.len()].parse().expect("a time");
        let scale = match unit {
            "ns" => 1e-9,
            "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            _ => panic!("{time}"),
        };
        seconds += number * scale;
    }
    (seconds, count)
}

fn workload() -> Workload {
    Workload::start(&[
        "--wait",
        &format!("--phases={PHASES}"),
        &format!("--phase-seconds={PHASE_SECONDS}"),
        "--start-node=3",
        "--cpus=0",
        &format!("--bytes={}", BUFFER.0),
    ])
}

/// The accesses of each phase.
fn phases(workload: &mut Workload) -> Vec<ByNode> {
    workload.go();
    let mut all = Vec::new();
    for _ in 0..PHASES {
        let end = workload.next("a phase's end", |line| {
            matches!(line, Line::PhaseEnd { .. })
        });
        if let Line::PhaseEnd { accesses, .. } = end {
            all.push(accesses);
        }
    }
    all
}

/// Together.
fn sum(phases: &[ByNode]) -> ByNode {
    let mut sum = ByNode::default();
    for phase in phases {
        sum.add_all(phase);
    }
    sum
}

/// Bytes that the ballast leaves on the fastest node.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn left() -> Bytes {
    Bytes((BUFFER.as_f64() * ROOM) as u64)
}

/// Runs it here. Also tells how much room there was in the end, as a share of the buffer: in a
/// guest that has run for long the kernel gives back some of what it held when the ballast was
/// filled.
fn real(site: &Site) -> (Outcome, Pace, f64) {
    let _ballast = ballast(0, left());
    let mut workload = workload();
    // Its moves do not hang on what they cost, which follows the host.
    let as_there = "overhead_limit = 0.05\n[policy]\nname = \"hm-keeper\"";
    site.write_config_of(workload.pid(), as_there);
    let mut command = hmkeeper();
    command.args(["run", "--config"]).arg(site.config());
    // What each epoch cost, for the figures of the machine's file.
    command.env("HMKEEPER_LOG", "debug");
    let mut daemon = site.start_as(command);
    daemon.until_watching(workload.pid());
    let accesses = sum(&phases(&mut workload));
    let (metrics, log) = (daemon.metrics(), daemon.log());
    daemon.stop();
    let of = |name| metrics.sum(name, &[]).unwrap_or(0.0);
    let pages = metrics.value("hmkeeper_move_pages_total", &[("result", "moved")]);
    let migration = metrics.value("hmkeeper_own_cpu_seconds_total", &[("kind", "migration")]);
    let nanos = |(seconds, count): (f64, f64)| seconds / count.max(1.0) * 1e9;
    let pace = Pace {
        accesses_per_second: accesses.total() as f64 / f64::from(PHASES * PHASE_SECONDS),
        scan: nanos(total(&log, " scans of a sample")),
        count: nanos(total(&log.replace("for counting ", "for "), " pages)")),
        small_move: nanos((migration, pages)),
    };
    let resident = metrics.value("hmkeeper_tier_resident_bytes", &[("tier", "dram0")]);
    let room = (resident / BUFFER.as_f64()).max(ROOM);
    println!("{pace:?}, room for {room:.3} of the buffer");
    let outcome = Outcome {
        fast_share: accesses.share(&[NodeId(0)]).expect("accesses"),
        promoted: of("hmkeeper_promoted_bytes_total"),
        demoted: of("hmkeeper_demoted_bytes_total"),
    };
    (outcome, pace, room)
}

fn read(file: &str) -> String {
    std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// A counter of `/proc/vmstat`, in bytes.
fn counted(name: &str) -> f64 {
    let text = read("/proc/vmstat");
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    let pages = lines.filter(|(counter, _)| counter.starts_with(name));
    pages
        .map(|(_, n)| n.parse::<f64>().expect("a number"))
        .sum::<f64>()
        * 4096.0
}

/// A setting of the kernel that is what it was when this goes.
struct Setting {
    file: &'static str,
    before: String,
}

impl Setting {
    fn set(file: &'static str, value: &str) -> Self {
        let before = read(file);
        std::fs::write(file, value).unwrap_or_else(|e| panic!("{file}: {e}"));
        Self { file, before }
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        if let Err(error) = std::fs::write(self.file, self.before.trim()) {
            eprintln!("{}: {error}", self.file);
        }
    }
}

/// Runs it here without a daemon, under the kernel's tiering.
fn kernel() -> (Outcome, Pace) {
    // It would demote a ballast that nobody uses.
    let _ballast = locked_ballast(0, left());
    let mut workload = workload();
    let before = (counted("pgpromote_success"), counted("pgdemote_"));
    let demotion = Setting::set("/sys/kernel/mm/numa/demotion_enabled", "1");
    let balancing = Setting::set("/proc/sys/kernel/numa_balancing", "2");
    let phases = phases(&mut workload);
    drop((balancing, demotion));
    let fast = |by_node: &ByNode| by_node.share(&[NodeId(0)]).expect("accesses");
    let of_phases: Vec<f64> = phases.iter().map(fast).collect();
    println!("fast share of each phase: {of_phases:.3?}");
    let accesses = sum(&phases);
    let pace = Pace {
        accesses_per_second: accesses.total() as f64 / f64::from(PHASES * PHASE_SECONDS),
        // What the profiler of the model costs is of no interest.
        scan: 1000.0,
        count: 10.0,
        small_move: 20_000.0,
    };
    let outcome = Outcome {
        fast_share: fast(&accesses),
        promoted: counted("pgpromote_success") - before.0,
        demoted: counted("pgdemote_") - before.1,
    };
    println!("{pace:?}");
    (outcome, pace)
}

/// Bits of the time that this kernel keeps of a page (`LAST_CPUPID_SHIFT`).
fn time_bits() -> u32 {
    let most = read("/sys/devices/system/cpu/kernel_max");
    let cpus: u32 = most.trim().parse::<u32>().expect("a number") + 1;
    (8 + cpus.next_power_of_two().ilog2()).max(12)
}

/// Runs it on the model.
fn model(site: &Site, pace: Pace, room: f64, (policy, interval): (&str, u64)) -> Outcome {
    let stray = BUFFER.as_f64() / 4096.0 / 20.0 / pace.accesses_per_second;
    let nanos = 1e9 / pace.accesses_per_second;
    let mut machine = OF_TESTS[0].1.to_owned();
    for (key, nanos) in [
        ("scan", pace.scan),
        ("count", pace.count),
        ("small_move", pace.small_move),
        // What they cost is in how fast the program was under the kernel.
        ("hint_fault", 1.0),
    ] {
        let lines = machine.lines().map(|line| match line.split_once(" = ") {
            Some((name, _)) if name == key => format!("{key} = \"{nanos:.0}ns\"\n"),
            _ => format!("{line}\n"),
        });
        machine = lines.collect();
    }
    let machine_file = site.path("machine.toml");
    std::fs::write(&machine_file, machine).expect("writing");
    let program = PROGRAM
        .replace("ACCESSES", &format!("{}", 1.0 - stray))
        .replace("COMPUTE", &format!("{nanos:.0}ns"));
    let (program_file, config) = (site.path("program.toml"), site.path("simulate.toml"));
    std::fs::write(&program_file, program).expect("writing");
    let settings = format!(
        "[profiling]\ninterval = \"{interval}s\"\n\
         [policy.memory-tiering]\ntime_bits = {}\nby_worker = true\n",
        time_bits()
    );
    std::fs::write(&config, settings).expect("writing");
    let output = output_of(&[
        "simulate",
        &format!("--machine={}", machine_file.display()),
        &format!("--workload={}", program_file.display()),
        &format!("--policy={policy}"),
        &format!("--config={}", config.display()),
        &format!("--fast-share={room:.3}"),
        "--json",
    ]);
    assert!(output.status.success(), "{}", show(&output));
    let runs: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let run = &runs[0];
    let of = |value: &Value| value.as_f64().expect("a number");
    let accesses: Vec<f64> = (run["tier_accesses"].as_array().expect("an array").iter())
        .map(of)
        .collect();
    Outcome {
        fast_share: accesses[0] / accesses.iter().sum::<f64>(),
        promoted: of(&run["promoted_bytes"]),
        demoted: of(&run["demoted_bytes"]),
    }
}
