//! Programs with nothing to gain: moving ends by itself, and it is said why.
//!
// vm: topology=4tier timeout=400 long-timeout=2400

use hmkeeper::units::Bytes;

use crate::common::{
    Site, Workload, ballast, body_as_shipped, in_guest, interval, long, short_or_full,
};

const BUFFER: Bytes = Bytes::from_mib(512);
/// Room on the fastest node, as everywhere else here a sixth of the buffer.
const ROOM: Bytes = Bytes::from_mib(96);
/// Epochs in which it may find out. Most runs have after half of them; what jumps lasts for three
/// short epochs, where moves are cheap.
const LEARNS: usize = 36;
/// In shares of the buffer: what may be moved until then, and what per epoch afterwards.
/// Where moving is quick `policy.adaptive.moving_limit` pays for more of it.
const MOST: f64 = 2.0;
const STILL: f64 = 0.01;

/// What came of one.
struct Outcome {
    /// Shares of the buffer that were moved, epoch by epoch.
    moved: Vec<f64>,
    /// Whether both the metric and the status said so in any epoch.
    no_gain: bool,
}

/// Not before it was said why.
fn run(args: &[&str]) -> Outcome {
    let _ballast = ballast(0, ROOM);
    let bytes = format!("--bytes={}", BUFFER.0);
    let mut all = vec!["--cpus=0", "--start-node=3", &bytes];
    all.extend(args);
    let mut workload = Workload::start(&all);
    workload.phase();
    let site = Site::new();
    site.write_config(&body_as_shipped(interval(), workload.pid(), ""));
    let mut daemon = site.start();
    daemon.until_watching(workload.pid());
    // Epochs after it has found out.
    let after = short_or_full(6, 30);
    let (mut before, mut moved, mut no_gain) = (0.0, Vec::new(), false);
    loop {
        let status = daemon.epochs(1);
        let metrics = daemon.metrics();
        let now = metrics.moved_bytes();
        moved.push((now - before) / BUFFER.as_f64());
        before = now;
        let paused = status["paused"].as_array().cloned().unwrap_or_default();
        let on = metrics.sum("hmkeeper_paused", &[("reason", "no-gain")]);
        no_gain |= on == Some(1.0) && paused.iter().any(|reason| reason == "no-gain");
        // The short form is content as soon as it has ended for so long.
        let last = moved.len().checked_sub(after).map(|at| &moved[at..]);
        let is_over = last.is_some_and(|last| mean(last) <= STILL);
        let is_over = is_over && moved.len() >= 2 * after && no_gain;
        let is_over = is_over && !long();
        if is_over || moved.len() >= LEARNS + after {
            break;
        }
    }
    workload.assert_alive();
    daemon.stop();
    println!("{args:?}: {moved:.3?}, no gain: {no_gain}");
    Outcome { moved, no_gain }
}

fn mean(moved: &[f64]) -> f64 {
    moved.iter().sum::<f64>() / moved.len() as f64
}

impl Outcome {
    fn assert_ends(&self) {
        let (first, then) = self.moved.split_at(self.moved.len() - short_or_full(6, 30));
        let all: f64 = first.iter().sum();
        assert!(all <= MOST, "moved {all} buffers: {:?}", self.moved);
        let still = mean(then);
        assert!(still <= STILL, "still moves {still}: {:?}", self.moved);
        assert!(self.no_gain, "nobody said why: {:?}", self.moved);
    }
}

const STAYS: [&str; 2] = ["--phases=1", "--phase-seconds=100000"];

#[test]
fn all_is_touched_alike() {
    if in_guest() {
        run(&[&STAYS[..], &["--hot=1", "--chunks=1", "--stray=0"]].concat()).assert_ends();
    }
}

#[test]
fn more_is_hot_than_the_fastest_node_holds() {
    if in_guest() {
        run(&[&STAYS[..], &["--hot=0.6"]].concat()).assert_ends();
    }
}

#[test]
fn what_is_hot_jumps_with_each_epoch() {
    if in_guest() {
        let seconds = format!("--phase-seconds={}", interval().as_secs_f64());
        run(&["--phases=1000", &seconds]).assert_ends();
    }
}
