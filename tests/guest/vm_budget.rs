//! What watching costs, by the kernel's accounting, keeps the limit: at the
//! small shares, with 100,000 mappings, and while mappings come and go.
//!
//! Nothing is moved here (`--dry-run`), so that all CPU time of the daemon is
//! watching; and nobody asks it anything while it is measured.
//!
// vm: topology=4tier timeout=500

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use crate::common::{
    Daemon, Site, Workload, body, hmkeeper, in_guest, long, percent, seconds, short_or_full,
    target, wait_for,
};

/// Until what the first epochs cost is paid back, in the short form and the long one.
const SETTLE: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(24)];
/// The same where epochs are stretched, to 32 s at most: in the long form's case of so
/// many mappings.
const SETTLE_STRETCHED: Duration = Duration::from_secs(100);
/// By how much a window of a few epochs may exceed the limit: costs change with
/// what else the host does.
const WINDOW: f64 = 1.35;

struct Case {
    name: &'static str,
    limit: f64,
    workload: &'static [&'static str],
    /// Mappings that it should have at least.
    mappings: usize,
}

fn start(site: &Site) -> Daemon {
    let mut command = hmkeeper();
    command
        .args(["run", "--dry-run", "--config"])
        .arg(site.config());
    site.start_as(command)
}

/// Asks once a second, which costs it some milliseconds each time, until an epoch ends.
fn until_next_epoch(daemon: &Daemon) {
    let epoch = || daemon.status()["epoch"].as_u64().expect("epoch");
    let now = epoch();
    wait_for("the end of an epoch", SETTLE_STRETCHED, || {
        sleep(Duration::from_secs(1));
        let is_over = epoch() != now;
        is_over.then_some(()).ok_or_else(|| format!("epoch {now}"))
    });
}

fn holds(case: &Case) {
    if !in_guest() {
        return;
    }
    let mut args = vec![
        "--cpus=0",
        "--start-node=3",
        "--phases=1",
        "--phase-seconds=100000",
        "--step",
    ];
    args.extend(case.workload);
    let workload = Workload::start(&args);
    let maps = || fs::read_to_string(format!("/proc/{}/maps", workload.pid())).expect("maps");
    let before = maps();
    assert!(before.lines().count() >= case.mappings, "too few mappings");
    let site = Site::new();
    let limit = format!("overhead_limit = {}", case.limit);
    site.write_config(&body(workload.pid(), &limit));
    let mut daemon = start(&site);
    daemon.until_watching(workload.pid());
    sleep(if case.mappings < 100_000 {
        short_or_full(SETTLE[0], SETTLE[1])
    } else {
        SETTLE_STRETCHED
    });
    if case.workload.iter().any(|arg| arg.starts_with("--churn")) {
        assert_ne!(maps(), before, "nothing comes and goes");
    }
    // Where epochs are long, one that began before the window would be paid for in it.
    let settled = || {
        if case.mappings >= 15_000 {
            until_next_epoch(&daemon);
        }
    };
    settled();
    let begin = (seconds(daemon.pid()), seconds(workload.pid()));
    sleep(short_or_full(
        Duration::from_secs(16),
        Duration::from_secs(192),
    ));
    settled();
    let end = (seconds(daemon.pid()), seconds(workload.pid()));
    let (ours, theirs) = (end.0 - begin.0, end.1 - begin.1);
    let share = ours / theirs;
    let status = daemon.status();
    let now = target(&status, workload.pid()).expect("the target");
    println!(
        "{}: watching cost {} ({ours:.3} of {theirs:.1} s), limit {}; epochs of {:.1} s, {} samples \
         in {} regions, {} MiB eligible",
        case.name,
        percent(share),
        percent(case.limit),
        status["epoch_seconds"].as_f64().expect("epoch_seconds"),
        now["samples"],
        now["regions"],
        now["eligible_bytes"].as_u64().unwrap_or(0) >> 20,
    );
    assert!(
        now["samples"].as_u64() > Some(0),
        "it does not watch: {now}"
    );
    assert!(
        share <= case.limit * WINDOW,
        "{}: watching cost {} of the target's CPU time, limit {}\n{}",
        case.name,
        percent(share),
        percent(case.limit),
        daemon.log()
    );
    daemon.stop();
}

/// A small share of a plain target, in the long form.
fn holds_small(name: &'static str, limit: f64) {
    if long() {
        holds(&Case {
            name,
            limit,
            workload: &["--bytes=512MiB"],
            mappings: 1,
        });
    } else {
        println!("skipped: in the long form only (make test-long)");
    }
}

#[test]
fn one_percent() {
    holds_small("1 %", 0.01);
}

#[test]
fn half_a_percent() {
    holds_small("0.5 %", 0.005);
}

#[test]
fn many_mappings() {
    if in_guest() {
        // Nothing else in the guest minds.
        fs::write("/proc/sys/vm/max_map_count", "300000").expect("vm.max_map_count");
    }
    // To read so many once per longest epoch takes an emulated guest 4 % of a CPU, and
    // one on a busy host more than the limit: the short form has fewer.
    holds(&short_or_full(
        Case {
            name: "15,000 mappings",
            limit: 0.05,
            workload: &["--bytes=512MiB", "--mappings=15000"],
            mappings: 15_000,
        },
        Case {
            name: "100,000 mappings",
            limit: 0.05,
            workload: &["--bytes=512MiB", "--mappings=100000"],
            mappings: 100_000,
        },
    ));
}

#[test]
fn mappings_that_come_and_go() {
    holds(&Case {
        name: "mapping and unmapping",
        limit: 0.05,
        workload: &["--bytes=512MiB", "--churn=1GiB:64MiB"],
        mappings: 1,
    });
}
