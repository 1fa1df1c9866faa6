//! What the daemon says that it costs agrees with `/proc` and keeps its limit, and
//! the target's real slowdown stands beside the estimate.
//!
// vm: topology=4tier timeout=300

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use nix::sys::signal::Signal;

use crate::common::{
    Daemon, Site, Workload, body, in_guest, long, percent, seconds, short_or_full, target,
};

/// How well the two must agree.
const AGREE: f64 = 0.1;
/// What the daemon may have used since the end of its last epoch, which its
/// metrics do not hold yet, and the ticks in which `/proc` counts; seconds.
const NOT_YET: f64 = 0.15;

/// `profiling.overhead_limit` as it is by default.
const LIMIT: f64 = 0.05;
/// By how much a window of nine epochs, or 25 in the long form, may exceed it: it holds a jump of
/// the hot set, whose burst is paid back after it, and a guest's costs change with
/// what else its host does. `tiering::governor` tests that the average holds.
const WINDOW: f64 = 1.25;

/// Epochs after which little is moved any more.
const SETTLED: u64 = 8;
/// Epochs after the jump that the long form measures: the jump's burst is paid back in
/// them.
const AFTER: u64 = 24;

/// Adds up from outside what kdamonds use, each of which lives for one epoch:
/// the scheduler's own tracepoint tells when they get a CPU and when they leave it.
struct Onlooker {
    dir: PathBuf,
}

impl Onlooker {
    fn start() -> Self {
        let dir = PathBuf::from("/sys/kernel/tracing/instances/onlooker");
        if !dir.exists() {
            fs::create_dir(&dir).expect("an instance of the tracing system");
        }
        let put = |file: &str, text: &str| {
            fs::write(dir.join(file), text).unwrap_or_else(|e| panic!("{file}: {e}"));
        };
        let kdamonds = r#"prev_comm ~ "kdamond*" || next_comm ~ "kdamond*""#;
        put("buffer_size_kb", "4096");
        put("events/sched/sched_switch/filter", kdamonds);
        put("events/sched/sched_switch/enable", "1");
        Self { dir }
    }

    /// Seconds on a CPU since the start, of all of them.
    fn seconds(&self) -> f64 {
        let trace = fs::read_to_string(self.dir.join("trace")).expect("the trace");
        assert!(!trace.contains("LOST"), "events were lost");
        let mut since: HashMap<u64, f64> = HashMap::new();
        let mut sum = 0.0;
        for line in trace.lines().filter(|line| !line.starts_with('#')) {
            // "TASK-PID [CPU] FLAGS SECONDS: sched_switch: prev_comm=… prev_pid=… ==> next_comm=… …"
            let (head, event) = line.split_once(": sched_switch: ").expect("a switch");
            let at: f64 = head.rsplit(' ').next().unwrap().parse().expect("a time");
            let (prev, next) = event.split_once(" ==> ").expect("a switch");
            let pid = |side: &str, key: &str| -> Option<u64> {
                let rest = side.split_once(key)?.1;
                rest.split(' ').next()?.parse().ok()
            };
            if prev.contains("prev_comm=kdamond")
                && let Some(begin) = pid(prev, "prev_pid=").and_then(|pid| since.remove(&pid))
            {
                sum += at - begin;
            }
            if next.contains("next_comm=kdamond")
                && let Some(pid) = pid(next, "next_pid=")
            {
                since.insert(pid, at);
            }
        }
        sum
    }
}

impl Drop for Onlooker {
    fn drop(&mut self) {
        let _ = fs::write(self.dir.join("events/sched/sched_switch/enable"), "0");
        let _ = fs::remove_dir(&self.dir);
    }
}

/// What the daemon and `/proc` say of its CPU time now, right after an epoch:
/// its own threads, then its kdamonds.
fn both(daemon: &Daemon, kernel: Option<&Onlooker>) -> Vec<(f64, f64)> {
    daemon.epochs(1);
    let metrics = daemon.metrics();
    let proc = seconds(daemon.pid());
    let of = |kind| metrics.value("hmkeeper_own_cpu_seconds_total", &[("kind", kind)]);
    let threads = (of("profiling") + of("migration") + of("other"), proc);
    let kdamonds = kernel.map(|kernel| (of("kdamonds"), kernel.seconds()));
    [threads].into_iter().chain(kdamonds).collect()
}

/// CPU time that watching took so far, and the target's.
fn watching(daemon: &Daemon, target: u32) -> (f64, f64) {
    let metrics = daemon.metrics();
    let of = |kind| metrics.value("hmkeeper_own_cpu_seconds_total", &[("kind", kind)]);
    let ours = of("profiling") + of("kdamonds") + of("other");
    (ours, seconds(target))
}

/// By what share the target is slower with the daemon at work than with it
/// stopped, in so many pairs right after each other; sorted. The host's noise is
/// mostly slower than a pair.
fn slowdown(workload: &mut Workload, daemon: &Daemon, pairs: usize) -> Vec<f64> {
    let samples = short_or_full(4, 8);
    let mut slower: Vec<f64> = (0..pairs)
        .map(|_| {
            let with = workload.throughput(samples);
            daemon.signal(Signal::SIGSTOP);
            let without = workload.throughput(samples);
            daemon.signal(Signal::SIGCONT);
            1.0 - with / without
        })
        .collect();
    slower.sort_by(f64::total_cmp);
    slower
}

fn agrees(sampler: &str) {
    let mut workload = Workload::start(&[
        "--bytes=512MiB",
        "--cpus=0",
        "--start-node=3",
        "--phases=2",
        "--phase-seconds=100000",
        "--step",
    ]);
    let site = Site::new();
    let wanted = format!("sampler = \"{sampler}\"\noverhead_limit = {LIMIT}");
    site.write_config(&body(workload.pid(), &wanted));
    let mut daemon = site.start();
    daemon.until_watching(workload.pid());
    // Hooking into the scheduler rewrites its code, which an emulated CPU now and
    // then trips over: the short form, which is run often, goes without.
    let kernel = long().then(Onlooker::start);

    // Both ends of the measurement are quiet: what the daemon does after an
    // epoch's end, above all moving, is in its metrics an epoch later.
    daemon.epochs(SETTLED);
    let first = both(&daemon, kernel.as_ref());
    let watched = watching(&daemon, workload.pid());
    workload.go();
    workload.phase();
    daemon.epochs(short_or_full(SETTLED, AFTER));
    let last = both(&daemon, kernel.as_ref());
    let now = watching(&daemon, workload.pid());
    let slower = slowdown(&mut workload, &daemon, short_or_full(1, 15));
    let share = (now.0 - watched.0) / (now.1 - watched.1);
    println!(
        "{sampler}: watching cost {} of the target's CPU time",
        percent(share)
    );
    assert!(
        share <= LIMIT * WINDOW,
        "{sampler}: watching cost {} of the target's CPU time",
        percent(share)
    );
    let whose = [("its threads", NOT_YET), ("its kdamonds", 0.005)];
    for ((what, not_yet), (first, last)) in whose.into_iter().zip(first.iter().zip(&last)) {
        let (said, is) = (last.0 - first.0, last.1 - first.1);
        println!("{sampler}: {what}: {said:.3} s by its metrics, {is:.3} s by the kernel");
        assert!(
            (said - is).abs() <= is * AGREE + not_yet,
            "{sampler}: {what}: {said:.3} s by its metrics but {is:.3} s by the kernel"
        );
    }
    assert!(last[0].1 > first[0].1, "it used no CPU time at all");
    let status = daemon.status();
    // One CPU of several is the workload's.
    let spare = status["cost"]["spare"].as_f64().expect("cost.spare");
    assert!((0.1..=1.0).contains(&spare), "spare: {spare}");
    let overhead = &target(&status, workload.pid()).expect("the target")["overhead"];
    println!(
        "{sampler}: the target was slower by {} (median of pairs with the daemon and with it \
         stopped; all: {}); the daemon's estimate of its cost: {overhead}",
        percent(slower[slower.len() / 2]),
        slower
            .iter()
            .map(|&share| percent(share))
            .collect::<Vec<_>>()
            .join(", ")
    );
    let side = overhead["target"].as_f64().expect("overhead.target");
    assert!(side > 0.0, "the target pays nothing? {overhead}");
    let median = slower[slower.len() / 2];
    // The host is noisy: of one pair only that the target was not nearly stopped can be asked.
    let most = short_or_full(0.5, 0.2);
    assert!(
        median < most,
        "the target lost {} of its speed",
        percent(median)
    );
    workload.assert_alive();
    daemon.stop();
}

#[test]
fn of_idle_page_tracking() {
    if in_guest() {
        agrees("idle");
    }
}

#[test]
fn of_damon() {
    if !in_guest() {
        return;
    }
    if long() {
        agrees("damon");
    } else {
        // A minute that the short form lacks: it tells neither what kdamonds use, nor that
        // watching with DAMON keeps its limit.
        println!("skipped: in the long form only (make test-long)");
    }
}
