//! What is allocated in a burst lies on the fastest node at once where headroom was kept
//! for it: what went cold has left.
//!
// vm: topology=4tier timeout=300

use hmkeeper::ports::Residency;
use hmkeeper::sys::residency::SysResidency;
use hmkeeper::sys::root::Root;
use hmkeeper::tiering::observation::NodeUsage;
use hmkeeper::tiering::settings::Asking;
use hmkeeper::units::{Bytes, NodeId};

use crate::common::{
    Daemon, PATIENCE, Site, Workload, ballast, body, in_guest, percent, share, short_or_full,
    target, wait_for,
};

/// Of a program that touches a tenth of it, the rest never again.
const BUFFER: Bytes = Bytes::from_mib(448);
/// What another one allocates and touches all the time.
const BURST: Bytes = Bytes::from_mib(160);
/// Share of the node that is to stay free: more than the burst, though an eighth of it is
/// missing.
const HEADROOM: f64 = 0.3;

fn usage() -> NodeUsage {
    let nodes = SysResidency::new(&Root::host()).nodes(Asking::Never);
    let mut nodes = nodes.expect("the nodes' memory").into_iter();
    nodes.find(|u| u.node == NodeId(0)).expect("node 0")
}

/// Bytes that went for headroom so far, with the next plan or, the last of it, at once.
fn given_back(daemon: &Daemon) -> f64 {
    let name = "hmkeeper_demoted_bytes_total";
    let metrics = daemon.metrics();
    let of = |reason| metrics.sum(name, &[("reason", reason)]).unwrap_or(0.0);
    of("headroom") + of("shortage")
}

/// Share of the burst that lies on node 0 when it was just allocated.
fn burst(headroom: f64) -> f64 {
    let mut workload = Workload::start(&[
        "--pattern=hot",
        "--hot=0.1",
        "--stray=0",
        "--chunks=8",
        &format!("--bytes={}", BUFFER.0),
        "--cpus=0",
        "--start-node=0",
        "--phases=1",
        "--phase-seconds=100000",
    ]);
    workload.phase();
    let _ballast = ballast(0, Bytes::ZERO);
    let site = Site::new();
    let migration = format!("[migration]\nheadroom = {headroom}");
    site.write_config(&body(workload.pid(), &migration));
    let mut daemon = site.start();
    daemon.until_watching(workload.pid());
    let total = usage().total.as_f64();
    if headroom > 0.0 {
        wait_for("the headroom", PATIENCE, || {
            let usage = usage();
            let wanted = usage.reserve.as_f64() + 7.0 / 8.0 * headroom * total;
            let status = daemon.status();
            if usage.free.as_f64() >= wanted {
                Ok(())
            } else {
                Err(format!("{usage:?}\n{status:#}"))
            }
        });
    } else {
        daemon.epochs(short_or_full(4, 8));
    }
    // And no more than that, nor anything else.
    daemon.epochs(2);
    let (given, metrics) = (given_back(&daemon), daemon.metrics());
    let hot = workload.located(0);
    println!(
        "headroom {headroom}: {given} bytes given back, {} of what is hot on node 0",
        percent(share(&hot, &[0]))
    );
    assert!(share(&hot, &[0]) >= 0.98, "what is hot left: {hot:?}");
    assert!(given <= 1.5 * headroom * total, "{given} bytes given back");
    assert!(metrics.moved_bytes() <= given + 0.02 * BUFFER.as_f64());
    if headroom > 0.0 {
        let status = daemon.status();
        let moves = &target(&status, workload.pid()).expect("the target")["moves"];
        let mut moves = moves.as_array().expect("a list").iter();
        assert!(moves.any(|way| way["reason"] == "headroom"), "{status:#}");
    }

    let mut new = Workload::start(&[
        "--pattern=hot",
        "--hot=1",
        "--chunks=1",
        "--stray=0",
        &format!("--bytes={}", BURST.0),
        "--cpus=0",
        "--phases=1",
        "--phase-seconds=100000",
    ]);
    new.phase();
    let there = share(&new.located(0), &[0]);
    println!(
        "headroom {headroom}: {} of the burst on node 0",
        percent(there)
    );
    workload.assert_alive();
    daemon.stop();
    there
}

#[test]
fn a_burst_lies_on_the_fastest_node_where_what_is_cold_has_left() {
    if !in_guest() {
        return;
    }
    let without = burst(0.0);
    let with = burst(HEADROOM);
    assert!(without <= 0.7, "without: {}", percent(without));
    assert!(with >= 0.97, "with: {}", percent(with));
}
