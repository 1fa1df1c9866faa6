//! Without the guest's ticker the emulated TLB never ages, and pages in use
//! look idle. A daemon that believed it would demote what is hottest.
//!
// vm: tick=0 filter=without_ticker timeout=600 once
// vm: filter=with_ticker timeout=300

use std::time::Duration;

use hmkeeper::sys::process::{cpu_time, pin_thread};
use hmkeeper::sys::root::Root;

use crate::common::{
    self, Daemon, PATIENCE, Site, Workload, body, in_guest, number, share, until_hot_on, wait_for,
};

/// 256 KiB of 4 MiB are swept all the time, by a target that does nothing else,
/// on CPU 0 alone, and fit into the emulated TLB; everything else is on CPU 1.
fn burning() -> (Workload, Daemon, Site) {
    pin_thread(&[1]).expect("CPU 1");
    let mut workload = Workload::start(&[
        "--pattern=burn",
        "--bytes=4MiB",
        "--hot=0.0625",
        "--chunks=1",
        "--cpus=0",
        "--start-node=3",
        "--phases=1",
        "--phase-seconds=10000",
    ]);
    workload.phase();
    assert!(share(&workload.start, &[3]) > 0.99, "{:?}", workload.start);
    let site = Site::new();
    site.write_config(&body(workload.pid(), "sampler = \"idle\""));
    let mut daemon = site.start();
    daemon.until_watching(workload.pid());
    (workload, daemon, site)
}

/// It uses its CPU: a daemon that sees nothing of it sees wrong.
fn assert_burns(pid: u32) {
    const WITHIN: Duration = Duration::from_secs(10);
    let used = || cpu_time(&Root::host(), pid).expect("its CPU time");
    let before = used();
    wait_for("half a second of its CPU time", WITHIN, || {
        let more = used().saturating_sub(before);
        if more > Duration::from_millis(500) {
            Ok(())
        } else {
            Err(format!("{pid} used {more:?}"))
        }
    });
}

/// Follows the daemon until it has been blind for some epochs, in which nothing may have moved. Tells
/// why it may not be blind: it saw something, as whatever makes the guest's CPU 0 change to another address
/// space empties its emulated TLB; or it may have in an epoch that ended between two looks.
fn until_blind_for(epochs: u64, pid: u32, daemon: &Daemon) -> Result<(), String> {
    let mut since = None;
    let mut last = None;
    wait_for("some epochs paused as sampler-blind", 2 * PATIENCE, || {
        let status = daemon.status();
        let accessed = number(&status, pid, "samples_accessed");
        if accessed > 0 {
            return Ok(Err(format!("{accessed} samples seen accessed")));
        }
        let epoch = status["epoch"].as_u64().expect("an epoch");
        if last.replace(epoch).is_some_and(|last| epoch > last + 1) {
            return Ok(Err(format!("not looked at before epoch {epoch}")));
        }
        let moved = ["promoted_bytes", "demoted_bytes"].map(|key| number(&status, pid, key));
        assert_eq!(moved, [0, 0], "moved blindly: {status:#}");
        let paused = &common::target(&status, pid).expect("watched")["paused"];
        if paused == "sampler-blind" {
            let since = *since.get_or_insert(epoch);
            if epoch >= since + epochs {
                return Ok(Ok(()));
            }
        } else {
            assert_eq!(since, None, "it does not stay so: {status:#}");
        }
        Err(format!("{status:#}"))
    })
}

#[test]
fn without_ticker_the_sampler_is_blind_and_nothing_moves() {
    if !in_guest() {
        return;
    }
    for attempt in 1..=3 {
        let (workload, daemon, _site) = burning();
        if let Err(seen) = until_blind_for(4, workload.pid(), &daemon) {
            eprintln!("attempt {attempt}: {seen}, so the sampler may not be blind");
            daemon.stop();
            continue;
        }
        let metrics = daemon.metrics();
        let blind = metrics.value("hmkeeper_paused", &[("reason", "sampler-blind")]);
        assert!((blind - 1.0).abs() < 1e-9, "{}", metrics.0);
        assert!(metrics.moved_bytes() < 1.0, "moved:\n{}", metrics.0);
        let pages = common::locate(workload.pid(), &[workload.range]);
        assert!(share(&pages, &[3]) > 0.999, "pages moved: {pages:?}");
        let text = daemon.control(&["status"]);
        let text = String::from_utf8_lossy(&text.stdout).into_owned();
        assert!(
            text.contains("sampler-blind"),
            "status says nothing: {text}"
        );
        assert_burns(workload.pid());
        daemon.stop();
        return;
    }
    panic!("in each attempt something was seen accessed, or an epoch not looked at");
}

#[test]
fn with_ticker_the_same_target_is_seen_and_promoted() {
    if !in_guest() {
        return;
    }
    let (workload, daemon, _site) = burning();
    until_hot_on(&[0], &workload, &daemon);
    let blind = daemon
        .metrics()
        .value("hmkeeper_paused", &[("reason", "sampler-blind")]);
    assert!(blind < 1.0, "called blind though it sees");
    let status = daemon.status();
    assert!(
        number(&status, workload.pid(), "samples_accessed") > 0,
        "{status:#}"
    );
    assert_burns(workload.pid());
    daemon.stop();
}
