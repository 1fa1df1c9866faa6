//! A tenth of a buffer on the slowest node is hot, in scattered chunks that
//! jump three times, and the fastest node has room for one and a half such hot
//! sets: within eight epochs after each jump at least 90 % of the hot pages are
//! there, asked for from outside of daemon and workload.
//!
// vm: topology=4tier timeout=500 long-timeout=2400

use std::time::Duration;

use hmkeeper::units::Bytes;

use crate::common::{
    self, Site, Workload, ballast, epoch, in_guest, interval, number, percent, share,
};

/// What differs between the forms of this test.
struct Form {
    name: &'static str,
    workload: &'static [&'static str],
    profiling: &'static str,
    /// The nodes of the first rank as the workload's CPUs see them.
    fast: &'static [u32],
}

const BUFFER: Bytes = Bytes::from_mib(1024);
const CHUNKS: u32 = 64;
const REACHED: f64 = 0.9;

/// Epochs, and how long each is, within which a jumped hot set must have arrived.
/// The long form has the interval that we ship. A fifth of it, as in the short form,
/// buys a fifth of the samples and allows a fifth of the bytes; and that form runs
/// wherever CI does, on hosts that do other things beside an emulated guest.
fn epochs(form: &Form) -> (u64, Duration) {
    // In a fifth of the interval DAMON finds some thirty regions at times: chance.
    let short = if form.profiling.contains("damon") {
        (16, Duration::from_secs(5))
    } else {
        (24, interval())
    };
    common::short_or_full(short, (8, Duration::from_secs(10)))
}

/// How often the hot set jumps.
fn jumps() -> u32 {
    common::short_or_full(1, 3)
}

fn follows(form: &Form) {
    if !in_guest() {
        return;
    }
    let hot = BUFFER.0 / 10;
    let room = Bytes(hot * 3 / 2 / form.fast.len() as u64);
    let _ballast: Vec<_> = form.fast.iter().map(|&node| ballast(node, room)).collect();
    let bytes = format!("--bytes={}", BUFFER.0);
    let chunks = format!("--chunks={CHUNKS}");
    let phases = format!("--phases={}", jumps() + 1);
    let mut args = vec![
        "--wait",
        "--step",
        "--phase-seconds=100000",
        "--start-node=3",
        "--hot=0.1",
    ];
    args.extend([bytes.as_str(), chunks.as_str(), phases.as_str()]);
    args.extend(form.workload);
    let mut workload = Workload::start(&args);
    assert!(
        share(&workload.start, &[3]) > 0.99,
        "the buffer should begin on node 3, but is on {:?}",
        workload.start
    );
    if form.workload.contains(&"--thp") {
        assert_huge(workload.pid());
    }
    let (epochs, interval) = epochs(form);
    let site = Site::new().every(interval);
    site.write_config_of(workload.pid(), form.profiling);
    let mut daemon = site.start();
    daemon.until_watching(workload.pid());
    for jump in 0..=jumps() {
        workload.go();
        workload.phase();
        let begin = epoch(&daemon.status());
        let mut course = Vec::new();
        loop {
            // One more than was: the epoch that the jump fell into is not whole.
            let status = daemon.epochs(1);
            let now = epoch(&status) - begin;
            let reached = share(&workload.located(0), form.fast);
            let metrics = daemon.metrics();
            let pages = |result| {
                let found = metrics.sum("hmkeeper_move_pages_total", &[("result", result)]);
                format!("{result} {:.0}", found.unwrap_or(0.0))
            };
            let results = ["moved", "busy", "absent", "no_room", "refused", "deferred"].map(pages);
            course.push(format!(
                "epoch {now}: {} of the hot pages on {:?}, {} samples in {} regions; so far {} MiB \
                 promoted, {} MiB demoted; pages {}",
                percent(reached),
                form.fast,
                number(&status, workload.pid(), "samples"),
                number(&status, workload.pid(), "regions"),
                number(&status, workload.pid(), "promoted_bytes") >> 20,
                number(&status, workload.pid(), "demoted_bytes") >> 20,
                results.join(", "),
            ));
            if reached >= REACHED {
                break;
            }
            assert!(
                now < epochs + 1,
                "{}: jump {jump}: below {} after {} epochs:\n{}\npages: {:?}\nstatus: {status:#}",
                form.name,
                percent(REACHED),
                epochs,
                common::lines(course),
                workload.located(0),
            );
        }
        println!("{}: jump {jump}:\n{}", form.name, common::lines(course));
    }
    // What is moved while the pages are looked at is counted when the next epoch ends.
    daemon.epochs(1);
    let metrics = daemon.metrics();
    let demoted = metrics.sum("hmkeeper_demoted_bytes_total", &[("target", "w")]);
    // Two nodes have room for all that was hot so far, and now and then for what else came.
    assert!(
        form.fast.len() > 1 || demoted.is_some_and(|bytes| bytes > 0.0),
        "nothing was demoted:\n{}",
        metrics.0
    );
    workload.assert_alive();
    daemon.stop();
}

/// Most of the buffer lies on huge pages, or the test would test something else.
fn assert_huge(pid: u32) {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("smaps");
    let kib: u64 = rollup
        .lines()
        .find_map(|l| l.strip_prefix("AnonHugePages:"))
        .and_then(|l| l.split_whitespace().next()?.parse().ok())
        .expect("AnonHugePages");
    assert!(
        kib * 1024 > BUFFER.0 / 2,
        "only {kib} KiB of {BUFFER} are on huge pages"
    );
}

#[test]
fn small_pages() {
    if !common::long() {
        println!("skipped: in the long form only (make test-long)");
        return;
    }
    follows(&Form {
        name: "small pages",
        workload: &["--cpus=0"],
        profiling: "",
        fast: &[0],
    });
}

#[test]
fn huge_pages() {
    follows(&Form {
        name: "huge pages",
        // A chunk of 1.6 MiB to a huge page: the hot set takes 128 MiB of the
        // 154 for which there is room.
        workload: &["--cpus=0", "--thp", "--align=2MiB"],
        profiling: "",
        fast: &[0],
    });
}

#[test]
fn threads_on_both_sockets() {
    follows(&Form {
        name: "two threads on both sockets",
        workload: &["--cpus=0,1", "--threads=2"],
        profiling: "",
        fast: &[0, 1],
    });
}

#[test]
fn damon() {
    follows(&Form {
        name: "DAMON",
        workload: &["--cpus=0"],
        profiling: "sampler = \"damon\"",
        fast: &[0],
    });
    if in_guest() {
        assert_eq!(common::kdamond_count(), 0, "kdamonds left after SIGTERM");
    }
}
