//! Without the guest's ticker the emulated TLB never ages, and pages in use
//! look idle. A daemon that believed it would demote what is hottest.
//!
// vm: tick=0 filter=without_ticker timeout=200 once
// vm: filter=with_ticker timeout=200

use std::time::Duration;

use hmkeeper::sys::process::{cpu_time, pin_thread};
use hmkeeper::sys::root::Root;

use crate::common::{
    self, PATIENCE, Site, Workload, body, in_guest, number, share, until_hot_on, wait_for,
};

/// 256 KiB of 4 MiB are swept all the time, by a target that does nothing else,
/// on CPU 0 alone, and fit into the emulated TLB; everything else is on CPU 1.
fn burning() -> (Workload, common::Daemon, Site) {
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
    let used = || cpu_time(&Root::host(), pid).expect("its CPU time");
    let before = used();
    std::thread::sleep(Duration::from_secs(2));
    let more = used().saturating_sub(before);
    assert!(
        more > Duration::from_millis(500),
        "{pid} used only {more:?} in 2 s"
    );
}

#[test]
fn without_ticker_the_sampler_is_blind_and_nothing_moves() {
    if !in_guest() {
        return;
    }
    let (workload, daemon, _site) = burning();
    let blind = [("reason", "sampler-blind")];
    wait_for("paused{reason=\"sampler-blind\"}", PATIENCE, || {
        let metrics = daemon.metrics();
        if metrics.value("hmkeeper_paused", &blind) > 0.0 {
            Ok(())
        } else {
            Err(format!("{}\n{:#}", metrics.0, daemon.status()))
        }
    });
    // It stays so, and nothing has moved before or since.
    daemon.epochs(4);
    let metrics = daemon.metrics();
    assert!(
        (metrics.value("hmkeeper_paused", &blind) - 1.0).abs() < 1e-9,
        "{}",
        metrics.0
    );
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
