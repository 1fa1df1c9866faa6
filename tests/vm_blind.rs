//! Without the guest's ticker the emulated TLB never ages, and pages in use
//! look idle. A daemon that believed it would demote what is hottest.
//!
// vm: tick=0 filter=without_ticker timeout=200
// vm: filter=with_ticker timeout=200

mod common;

use common::{PATIENCE, Site, Workload, body, in_guest, number, share, wait_for};
use hmkeeper::sys::process::pin_thread;

/// A buffer that is swept all the time and fits into the emulated TLB, on CPU
/// 0 alone; everything else on CPU 1.
fn all_hot() -> (Workload, common::Daemon, Site) {
    pin_thread(&[1]).expect("CPU 1");
    let workload = Workload::start(&[
        "--bytes=2MiB",
        "--hot=1",
        "--chunks=1",
        "--stray=0",
        "--cpus=0",
        "--start-node=3",
        "--phases=1",
        "--phase-seconds=10000",
    ]);
    let site = Site::new();
    site.write_config(&body(workload.pid(), "sampler = \"idle\""));
    let mut daemon = site.start();
    daemon.until_watching(workload.pid());
    (workload, daemon, site)
}

#[test]
fn without_ticker_the_sampler_is_blind_and_nothing_moves() {
    if !in_guest() {
        return;
    }
    let (mut workload, daemon, _site) = all_hot();
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
    workload.assert_alive();
    daemon.stop();
}

#[test]
fn with_ticker_the_same_target_is_seen_and_promoted() {
    if !in_guest() {
        return;
    }
    let (mut workload, daemon, _site) = all_hot();
    wait_for("the buffer on node 0", PATIENCE, || {
        let pages = common::locate(workload.pid(), &[workload.range]);
        if share(&pages, &[0]) >= 0.9 {
            Ok(())
        } else {
            Err(format!("{pages:?}\n{:#}", daemon.status()))
        }
    });
    let blind = daemon
        .metrics()
        .value("hmkeeper_paused", &[("reason", "sampler-blind")]);
    assert!(blind < 1.0, "called blind though it sees");
    let status = daemon.status();
    assert!(
        number(&status, workload.pid(), "samples_accessed") > 0,
        "{status:#}"
    );
    workload.assert_alive();
    daemon.stop();
}
