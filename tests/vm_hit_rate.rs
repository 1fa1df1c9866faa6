//! The tier hit rates that we export, beside those that the latency plugin counts from
//! outside of the guest: misses of the target's own code, node by node. Rates are such that
//! accessed bits do not saturate, and hot and cold lie side by side on several nodes.
//!
// vm: topology=4tier latency=hm-keeper timeout=160

mod common;
mod tierlat;

use std::collections::BTreeMap;

use common::{Daemon, Site, Workload, body, hmkeeper, in_guest, percent, short_or_full, target};
use hmkeeper::sys::move_pages::{Which, move_to};
use hmkeeper::units::{NodeId, Pid, VirtAddr};
use tierlat::{served, watch};

const NODES: u32 = 4;
/// Epochs until regions are told apart, and those that are compared.
const SETTLES: u64 = 8;
/// How far a share may be from the truth.
const TOLERANCE: f64 = 0.05;

/// Misses of the target that each node has served so far.
fn truth() -> Vec<f64> {
    let of = |node| {
        let served = served(NodeId(node));
        (served.watched_reads + served.watched_writes) as f64
    };
    (0..NODES).map(of).collect()
}

/// Shares of nodes 0 to 3 by what the daemon exports, in the epoch just over.
fn exported(daemon: &Daemon, pid: u32) -> Vec<f64> {
    let status = daemon.epochs(1);
    let mut shares = vec![0.0; NODES as usize];
    let tiers = target(&status, pid).expect("the target")["tiers"].as_array();
    for tier in tiers.expect("tiers") {
        // As the guest's are named: by kind and their one node.
        let name = tier["tier"].as_str().expect("a name");
        let node = name.trim_start_matches(|c: char| !c.is_ascii_digit());
        let node: usize = node.parse().expect("a node");
        shares[node] = tier["access_ratio"].as_f64().expect("a ratio");
    }
    shares
}

fn parts(values: &[f64]) -> Vec<f64> {
    let all: f64 = values.iter().sum();
    values.iter().map(|v| v / all).collect()
}

/// Puts the first part of a class on one node and the rest on another.
fn place(workload: &Workload, class: usize, percent: usize, nodes: [u32; 2]) {
    let ranges = &workload.classes[class].ranges;
    let pages: Vec<VirtAddr> = ranges.iter().flat_map(|r| r.iter_pages()).collect();
    let pid = Pid(i32::try_from(workload.pid()).expect("a pid"));
    let (first, rest) = pages.split_at(pages.len() * percent / 100);
    for (pages, node) in [(first, nodes[0]), (rest, nodes[1])] {
        for batch in pages.chunks(1024) {
            move_to(pid, batch, NodeId(node), Which::Alone).expect("placing its pages");
        }
    }
}

fn compare(what: &str, more: &[&str]) -> BTreeMap<u32, (f64, f64)> {
    let mut args = vec![
        "--pattern=classes",
        "--bytes=320MiB",
        "--chunks=8",
        "--cpus=0",
        "--start-node=3",
        "--phases=1",
        "--phase-seconds=100000",
    ];
    args.extend(more);
    let mut workload = Workload::start(&args);
    workload.phase();
    place(&workload, 0, 70, [0, 3]);
    place(&workload, 1, 50, [0, 2]);
    place(&workload, 2, 20, [1, 3]);
    watch(workload.range);
    let site = Site::new();
    // It mostly sleeps, which pays for little; what is asked here is what scans can tell.
    // Of its own stack and heap, which are accessed all the time and mostly found in the
    // cache, nobody can tell how often they were missed: the buffer alone.
    let (start, end) = (workload.range.start().0, workload.range.end().0);
    let config = body(workload.pid(), "overhead_limit = 0.5");
    site.write_config(&format!("{config}include = [\"{start:#x}-{end:#x}\"]\n"));
    let mut command = hmkeeper();
    command
        .args(["run", "--dry-run", "--config"])
        .arg(site.config());
    let mut daemon = site.start_as(command);
    daemon.until_watching(workload.pid());
    daemon.epochs(SETTLES);
    let before = truth();
    let epochs = short_or_full(10, 60);
    let mut sums = vec![0.0; NODES as usize];
    for _ in 0..epochs {
        let now = exported(&daemon, workload.pid());
        for (sum, now) in sums.iter_mut().zip(now) {
            *sum += now;
        }
    }
    let truth: Vec<f64> = truth().iter().zip(before).map(|(a, b)| a - b).collect();
    println!("{what}: {truth:.0?} misses");
    let (truth, told) = (parts(&truth), parts(&sums));
    workload.assert_alive();
    daemon.stop();
    let found: BTreeMap<u32, (f64, f64)> = (0..).zip(truth.into_iter().zip(told)).collect();
    for (node, (truth, told)) in &found {
        println!(
            "  node {node}: {} by the plugin, {} exported",
            percent(*truth),
            percent(*told)
        );
    }
    found
}

#[test]
fn exported_shares_are_those_of_the_misses() {
    if !in_guest() {
        return;
    }
    let forms = [
        (
            "rates of 1 in 1, 4 and 40 s",
            ["--class=0.03:1", "--class=0.12:4", "--class=0.3:40"],
        ),
        (
            "rates of 1 in 0.3, 2 and 10 s",
            ["--class=0.03:0.3", "--class=0.12:2", "--class=0.3:10"],
        ),
    ];
    for (what, classes) in &forms[..short_or_full(1, 2)] {
        for (node, (truth, told)) in compare(what, classes) {
            assert!(
                (truth - told).abs() <= TOLERANCE,
                "{what}, node {node}: {truth} by the plugin, {told} exported"
            );
        }
    }
}
