//! What the daemon says that it costs agrees with `/proc`, and the target's real
//! slowdown stands beside the estimate.
//!
// vm: topology=4tier timeout=300

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Daemon, Site, Workload, body, in_guest, percent, short_or_full, target};
use hmkeeper::sys::process::cpu_time;
use hmkeeper::sys::root::Root;

/// How well the two must agree.
const AGREE: f64 = 0.1;
/// What the daemon may have used since the end of its last epoch, which its
/// metrics do not hold yet, and the ticks in which `/proc` counts; seconds.
const NOT_YET: f64 = 0.15;

/// Epochs after which little is moved any more.
const SETTLED: u64 = 8;

/// How well the kdamonds' time must agree: each lives for one scan window, and
/// what it uses after the last look at it is seen by nobody from outside.
const KDAMONDS_AGREE: f64 = 0.25;
/// Time between two looks at them.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Adds up from outside what kdamonds use that come and go.
struct Onlooker {
    seconds: Arc<Mutex<BTreeMap<u32, f64>>>,
    end: Arc<AtomicBool>,
}

impl Onlooker {
    fn start() -> Self {
        let this = Self {
            seconds: Arc::default(),
            end: Arc::default(),
        };
        let (seconds, end) = (Arc::clone(&this.seconds), Arc::clone(&this.end));
        std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                for pid in kdamonds() {
                    if let Some(time) = on_cpu(pid) {
                        seconds.lock().unwrap().insert(pid, time);
                    }
                }
                std::thread::sleep(LOOK_EVERY);
            }
        });
        this
    }

    fn seconds(&self) -> f64 {
        self.seconds.lock().unwrap().values().sum()
    }
}

/// Seconds that a thread was on a CPU, finer than the ticks of its `stat`.
fn on_cpu(pid: u32) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    let nanos: f64 = text.split_whitespace().next()?.parse().ok()?;
    Some(nanos / 1e9)
}

impl Drop for Onlooker {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
    }
}

/// Pids of DAMON's kernel threads.
fn kdamonds() -> Vec<u32> {
    let all = fs::read_dir("/proc").expect("/proc");
    all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| {
            let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            comm.starts_with("kdamond")
        })
        .collect()
}

fn seconds(pid: u32) -> f64 {
    let time = cpu_time(&Root::host(), pid);
    time.unwrap_or_else(|e| panic!("CPU time of {pid}: {e}"))
        .as_secs_f64()
}

/// What the daemon and `/proc` say of its CPU time now, right after an epoch:
/// its own threads, then its kdamonds.
fn both(daemon: &Daemon, kernel: &Onlooker) -> [(f64, f64); 2] {
    daemon.epochs(1);
    let metrics = daemon.metrics();
    let proc = seconds(daemon.pid());
    let proc_kernel = kernel.seconds();
    let of = |kind| metrics.value("hmkeeper_own_cpu_seconds_total", &[("kind", kind)]);
    [
        (of("profiling") + of("migration") + of("other"), proc),
        (of("kdamonds"), proc_kernel),
    ]
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
    let before = workload.throughput(short_or_full(8, 30));
    let site = Site::new();
    site.write_config(&body(workload.pid(), &format!("sampler = \"{sampler}\"")));
    let mut daemon = site.start();
    daemon.until_watching(workload.pid());
    let kernel = Onlooker::start();

    // Both ends of the measurement are quiet: what the daemon does after an
    // epoch's end, above all moving, is in its metrics an epoch later.
    daemon.epochs(SETTLED);
    let first = both(&daemon, &kernel);
    workload.go();
    let during = workload.throughput(short_or_full(12, 60));
    daemon.epochs(SETTLED);
    let last = both(&daemon, &kernel);
    for (what, index, agree) in [
        ("its threads", 0, AGREE),
        ("its kdamonds", 1, KDAMONDS_AGREE),
    ] {
        let said = last[index].0 - first[index].0;
        let is = last[index].1 - first[index].1;
        println!("{sampler}: {what}: {said:.3} s by its metrics, {is:.3} s by /proc");
        assert!(
            (said - is).abs() <= is * agree + NOT_YET,
            "{sampler}: {what}: {said:.3} s by its metrics but {is:.3} s by /proc"
        );
    }
    assert!(last[0].1 > first[0].1, "it used no CPU time at all");
    let status = daemon.status();
    let overhead = &target(&status, workload.pid()).expect("the target")["overhead"];
    println!(
        "{sampler}: the target did {before:.0} accesses/s without and {during:.0} with the daemon: \
         {} slower; the daemon's estimate of its cost: {overhead}",
        percent(1.0 - during / before)
    );
    let side = overhead["target"].as_f64().expect("overhead.target");
    assert!(side > 0.0, "the target pays nothing? {overhead}");
    assert!(during > before * 0.5, "the target lost half of its speed");
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
    if in_guest() {
        agrees("damon");
    }
}
