//! What an operator asks of a running daemon is done to the target, as seen from outside
//! of both: nothing moves in a dry run or while paused, and who is detached is let go.
//!
// vm: topology=4tier timeout=400

use crate::common::{
    Daemon, PATIENCE, Site, Workload, body, hmkeeper, in_guest, locate, share, show, target,
    until_hot_on, wait_for,
};

/// One that has begun.
fn workload() -> Workload {
    let mut workload = Workload::small();
    workload.phase();
    workload
}

/// Whether `reason` is why nothing is moved for anybody.
fn is_paused(daemon: &Daemon, reason: &str) -> bool {
    let metrics = daemon.metrics();
    metrics.value("hmkeeper_paused", &[("reason", reason)]) > 0.0
}

/// Every page of it is where it began.
fn assert_unmoved(workload: &Workload) {
    let pages = locate(workload.pid(), &[workload.range]);
    assert!(share(&pages, &[3]) > 0.999, "pages moved: {pages:?}");
}

fn tell(daemon: &Daemon, verb: &[&str]) {
    let output = daemon.control(verb);
    assert!(output.status.success(), "{verb:?}: {}", show(&output));
}

#[test]
fn a_dry_run_plans_and_moves_nothing() {
    if !in_guest() {
        return;
    }
    let mut workload = workload();
    let site = Site::new();
    site.write_config(&body(workload.pid(), ""));
    let mut command = hmkeeper();
    command.args(["run", "--dry-run", "--config"]);
    command.arg(site.config());
    let mut daemon = site.start_as(command);
    daemon.until_watching(workload.pid());
    let planned = |status: &serde_json::Value| {
        let moves = target(status, workload.pid()).and_then(|t| t["moves"].as_array());
        let bytes = moves.into_iter().flatten().map(|m| &m["planned_bytes"]);
        bytes.filter_map(serde_json::Value::as_u64).sum::<u64>()
    };
    wait_for("a plan", PATIENCE, || {
        let status = daemon.epochs(1);
        (planned(&status) > 0)
            .then_some(())
            .ok_or_else(|| format!("{status:#}"))
    });
    daemon.epochs(3);
    assert!(is_paused(&daemon, "dry-run"));
    let moved = daemon.metrics().moved_bytes();
    assert!(moved < 1.0, "{moved} bytes moved");
    assert_unmoved(&workload);
    workload.assert_alive();
    daemon.stop();
}

#[test]
fn who_pauses_resumes_and_detaches_is_obeyed() {
    if !in_guest() {
        return;
    }
    let (mut first, mut second) = (workload(), workload());
    let site = Site::new();
    // Nobody is watched before it is paused: what it sees of the first epochs is enough to move something.
    let pid = format!("pid = {}", first.pid());
    site.write_config(&body(first.pid(), "").replace(&pid, "comm = \"nobody\""));
    let mut daemon = site.start();
    wait_for("a daemon that pauses", PATIENCE, || {
        let output = daemon.control(&["pause"]);
        let done = output.status.success().then_some(());
        done.ok_or_else(|| show(&output))
    });
    tell(&daemon, &["attach", &first.pid().to_string()]);
    daemon.until_watching(first.pid());
    daemon.epochs(1);
    let before = daemon.metrics().moved_bytes();
    let status = daemon.epochs(4);
    assert!(is_paused(&daemon, "operator"), "{status:#}");
    let moved = daemon.metrics().moved_bytes() - before;
    assert!(moved < 1.0, "{moved} bytes moved while paused");
    assert_unmoved(&first);
    tell(&daemon, &["resume"]);
    until_hot_on(&[0], &first, &daemon);
    // What is said is of the last epoch, and pages move in the one after it.
    daemon.epochs(1);
    assert!(!is_paused(&daemon, "operator"));

    // Watched while paused, and let go before it could be moved.
    tell(&daemon, &["pause"]);
    let pid = second.pid().to_string();
    tell(&daemon, &["attach", &pid]);
    daemon.until_watching(second.pid());
    daemon.epochs(2);
    tell(&daemon, &["detach", &pid]);
    tell(&daemon, &["resume"]);
    let status = daemon.epochs(4);
    assert!(target(&status, second.pid()).is_none(), "{status:#}");
    assert!(target(&status, first.pid()).is_some(), "{status:#}");
    assert_unmoved(&second);
    first.assert_alive();
    second.assert_alive();
    daemon.stop();
}
