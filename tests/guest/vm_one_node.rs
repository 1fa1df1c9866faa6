//! One memory node: everything works, and says that there is nothing to do.
//!
// vm: topology=1node timeout=200

use crate::common::{Site, Workload, body, in_guest, output_of, show};

#[test]
fn nothing_to_move_to() {
    if !in_guest() {
        return;
    }
    let topology = output_of(&["topology"]);
    assert!(topology.status.success(), "{}", show(&topology));
    assert!(
        String::from_utf8_lossy(&topology.stdout).contains("nothing to move to"),
        "{}",
        show(&topology)
    );
    let mut workload = Workload::start(&["--bytes=64MiB", "--phases=1", "--phase-seconds=100000"]);
    let site = Site::new();
    site.write_config(&body(workload.pid(), ""));
    let mut daemon = site.start();
    daemon.until_watching(workload.pid());
    daemon.epochs(3);
    let metrics = daemon.metrics();
    let paused = metrics.value("hmkeeper_paused", &[("reason", "one-tier")]);
    assert!((paused - 1.0).abs() < 1e-9, "{}", metrics.0);
    assert!(metrics.moved_bytes() < 1.0, "{}", metrics.0);
    let text = daemon.control(&["status"]);
    assert!(
        String::from_utf8_lossy(&text.stdout).contains("one-tier"),
        "{}",
        show(&text)
    );
    workload.assert_alive();
    daemon.stop();
}

#[test]
fn the_demo_says_what_is_missing() {
    if !in_guest() {
        return;
    }
    let output = output_of(&["demo"]);
    assert_eq!(output.status.code(), Some(3), "{}", show(&output));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("make demo"), "{}", show(&output));
}
