//! What the daemon says that it costs agrees with `/proc`, and the target's real
//! slowdown stands beside the estimate.
//!
// vm: topology=4tier timeout=300

mod common;

use std::fs;

use common::{
    Daemon, PATIENCE, Site, Workload, body, in_guest, percent, short_or_full, target, wait_for,
};
use hmkeeper::sys::process::cpu_time;
use hmkeeper::sys::root::Root;

/// How well the two must agree.
const AGREE: f64 = 0.1;
/// The clock tick in which `/proc` counts, twice: at the start and at the end.
const TICKS: f64 = 0.02;

/// Epochs after which little is moved any more.
const SETTLED: u64 = 8;

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
fn both(daemon: &Daemon, kernel: &[u32]) -> [(f64, f64); 2] {
    daemon.epochs(1);
    let metrics = daemon.metrics();
    let proc = seconds(daemon.pid());
    let proc_kernel: f64 = kernel.iter().map(|&pid| seconds(pid)).sum();
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
    let wanted = usize::from(sampler == "damon");
    let kernel = wait_for("its kdamonds", PATIENCE, || {
        let found = kdamonds();
        if found.len() == wanted {
            Ok(found)
        } else {
            Err(format!("{found:?}"))
        }
    });

    // Both ends of the measurement are quiet: what the daemon does after an
    // epoch's end, above all moving, is in its metrics an epoch later.
    daemon.epochs(SETTLED);
    let first = both(&daemon, &kernel);
    workload.go();
    let during = workload.throughput(short_or_full(12, 60));
    daemon.epochs(SETTLED);
    let last = both(&daemon, &kernel);
    for (what, index) in [("its threads", 0), ("its kdamonds", 1)] {
        let said = last[index].0 - first[index].0;
        let is = last[index].1 - first[index].1;
        println!("{sampler}: {what}: {said:.3} s by its metrics, {is:.3} s by /proc");
        assert!(
            (said - is).abs() <= is * AGREE + TICKS,
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
