//! The target never notices: every byte that it wrote stays what it was
//! while its pages are moved among all four nodes, and while the daemon is
//! killed at random moments.
//!
// vm: topology=4tier timeout=400 long-timeout=1800 once

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hmkeeper::demo::workload::lines::Line;
use hmkeeper::sys::move_pages::{Status, Which, move_to};
use hmkeeper::units::{Bytes, NodeId, PAGE_BYTES, VirtAddr};

use crate::common::{
    PATIENCE, Site, Workload, body, in_guest, kdamond_count, locate, pid_of, short_or_full,
    wait_for,
};

/// A small seeded generator (Numerical Recipes' constants).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

#[test]
fn every_byte_survives_forced_moves() {
    if !in_guest() {
        return;
    }
    let bytes = Bytes::from_mib(256);
    let seconds = short_or_full(20, 600);
    let mut workload = Workload::start(&[
        "--pattern=verify",
        &format!("--bytes={}", bytes.0),
        "--threads=2",
        "--cpus=0,1",
        "--start-node=3",
        "--phases=1",
        &format!("--phase-seconds={seconds}"),
        "--wait",
    ]);
    let site = Site::new();
    site.write_config(&body(workload.pid(), ""));
    let mut daemon = site.start();
    daemon.until_watching(workload.pid());
    workload.go();
    let (over, tried, failed) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let (pid, range) = (pid_of(workload.pid()), workload.range);
    let (end, status, pages, by_daemon) = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(1);
            while !over.load(Ordering::Relaxed) {
                let first = random.below(range.pages() - 256);
                let pages: Vec<VirtAddr> = (0..256)
                    .map(|i| VirtAddr(range.start().0 + (first + i) * 4096))
                    .collect();
                let to = NodeId(u32::try_from(random.below(4)).expect("a node"));
                match move_to(pid, &pages, to, Which::Alone) {
                    Ok((_, status)) => {
                        let left = status.iter().filter(|&&s| s != Status::On(to)).count();
                        tried.fetch_add(256, Ordering::Relaxed);
                        failed.fetch_add(left as u64, Ordering::Relaxed);
                    }
                    Err(_) if over.load(Ordering::Relaxed) => break,
                    Err(e) => panic!("moving pages of {pid}: {e}"),
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let half = Duration::from_secs(seconds) / 2;
        std::thread::sleep(half);
        let pages = locate(workload.pid(), &[workload.range]);
        std::thread::sleep(
            Duration::from_secs(seconds).saturating_sub(half + Duration::from_secs(2)),
        );
        let by_daemon = daemon.metrics().moved_bytes() / PAGE_BYTES as f64;
        over.store(true, Ordering::Relaxed);
        let (end, status) = workload.finish();
        (end, status, pages, by_daemon)
    });
    let Line::End {
        accesses,
        mismatches,
        ..
    } = &end
    else {
        unreachable!("asked for the end")
    };
    let moved = tried.load(Ordering::Relaxed) - failed.load(Ordering::Relaxed);
    println!(
        "{moved} pages moved by force and {by_daemon} by the daemon, {} pages checked, in \
         between on {pages:?}",
        accesses.total()
    );
    assert_eq!(*mismatches, 0, "memory is damaged");
    assert!(status.success(), "the workload ended with {status}");
    assert!(
        moved > bytes.pages() / 4,
        "only {moved} pages were moved: this proved nothing"
    );
    assert!(by_daemon > 0.0, "the daemon moved nothing");
    for node in 0..4 {
        assert!(
            pages.get(NodeId(node)) > 0,
            "node {node} had no page in between: {pages:?}"
        );
    }
    assert!(
        accesses.total() > bytes.pages(),
        "only {} pages were checked",
        accesses.total()
    );
    daemon.stop();
}

#[test]
fn a_killed_daemon_leaves_nothing_behind() {
    if !in_guest() {
        return;
    }
    assert_eq!(kdamond_count(), 0, "somebody else uses DAMON here");
    let mut workload = Workload::start(&[
        "--pattern=verify",
        "--bytes=128MiB",
        "--cpus=0",
        "--start-node=3",
        "--phases=1",
        "--step",
    ]);
    let site = Site::new();
    let mut random = Random(7);
    let mut left_behind = 0;
    for round in 0..short_or_full(4, 20) {
        // The one leaves something in the kernel, the other cleans it up, and the other
        // way round.
        let (sampler, kdamonds) = [("damon", 1), ("idle", 0)][round % 2];
        site.write_config(&body(workload.pid(), &format!("sampler = \"{sampler}\"")));
        let mut daemon = site.start();
        daemon.until_watching(workload.pid());
        wait_for(
            &format!("{kdamonds} kdamonds with {sampler}, after a crash too"),
            PATIENCE,
            || match kdamond_count() {
                count if count == kdamonds => Ok(()),
                count => Err(count.to_string()),
            },
        );
        std::thread::sleep(Duration::from_millis(random.below(6000)));
        daemon.kill();
        left_behind += u64::from(kdamond_count() > 0);
        workload.assert_alive();
    }
    assert!(
        left_behind > 0,
        "no kill left anything: this proved nothing"
    );
    // And at the end nothing is left of any of them.
    site.write_config(&body(workload.pid(), "sampler = \"idle\""));
    let mut daemon = site.start();
    daemon.until_watching(workload.pid());
    assert_eq!(kdamond_count(), 0, "the next start did not clean up");
    daemon.epochs(2);
    daemon.stop();
    workload.go();
    let (end, status) = workload.finish();
    assert!(
        matches!(end, Line::End { mismatches: 0, .. }) && status.success(),
        "{end:?}, {status}"
    );
}
