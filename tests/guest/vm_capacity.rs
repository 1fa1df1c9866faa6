//! More hot data than the fastest node holds: the hottest goes there, the next
//! tier takes the rest, and then it is still.
//!
// vm: topology=4tier timeout=300

use hmkeeper::units::Bytes;

use crate::common::{
    self, Site, Workload, ballast, body, epoch, in_guest, percent, share, short_or_full,
};

const BUFFER: Bytes = Bytes::from_mib(512);
/// Room for the hotter class of 64 MiB and part of the next.
const ROOM: Bytes = Bytes::from_mib(96);
/// Each in its place within so many epochs.
const PLACED_WITHIN: u64 = 25;
/// Beyond those that are to be still, so many at most; on a quiet host it takes five.
const STILL_WITHIN: usize = 40;
/// Below this share of the buffer is moved in an epoch, on average over those that are to
/// be still. Regions of the next class are as hot as each other, and now and then two change
/// places that only seemed not to be.
const STILL: f64 = 0.01;

#[test]
fn the_hottest_first_the_rest_next_and_then_still() {
    if !in_guest() {
        return;
    }
    let _ballast = ballast(0, ROOM);
    let bytes = format!("--bytes={}", BUFFER.0);
    // 64 MiB swept all the time, 128 MiB with each page touched every 1.2 s, so
    // that about half of the scans see it.
    let mut workload = Workload::start(&[
        "--pattern=classes",
        "--class=0.125:0",
        "--class=0.25:1.2",
        "--chunks=16",
        &bytes,
        "--cpus=0",
        "--start-node=3",
        "--phases=1",
        "--phase-seconds=100000",
    ]);
    workload.phase();
    let site = Site::new();
    site.write_config(&body(workload.pid(), ""));
    let mut daemon = site.start();
    daemon.until_watching(workload.pid());

    let begin = epoch(&daemon.status());
    let mut course = Vec::new();
    loop {
        let status = daemon.epochs(1);
        let now = epoch(&status) - begin;
        let hottest = share(&workload.located(0), &[0]);
        let rest = share(&workload.located(1), &[0, 1]);
        course.push(format!(
            "epoch {now}: {} of the hottest on node 0, {} of the next on 0 and 1",
            percent(hottest),
            percent(rest)
        ));
        if hottest >= 0.9 && rest >= 0.9 {
            break;
        }
        assert!(
            now < PLACED_WITHIN,
            "not placed after {PLACED_WITHIN} epochs:\n{}\nhottest {:?}\nnext {:?}\n{status:#}",
            common::lines(course),
            workload.located(0),
            workload.located(1),
        );
    }
    println!("{}", common::lines(course));

    let footprint = BUFFER.as_f64();
    let mut before = daemon.metrics().moved_bytes();
    let mut moved_in_epoch = || {
        daemon.epochs(1);
        let now = daemon.metrics().moved_bytes();
        let moved = (now - before) / footprint;
        before = now;
        moved
    };
    let rest = short_or_full(8, 30);
    let mut seen = Vec::new();
    let is_still = |seen: &[f64]| {
        let last = seen.len().checked_sub(rest).map(|from| &seen[from..]);
        last.is_some_and(|last| last.iter().sum::<f64>() < STILL * last.len() as f64)
    };
    while !is_still(&seen) {
        assert!(
            seen.len() < rest + STILL_WITHIN,
            "never still for {rest} epochs; shares of the footprint moved per epoch: {seen:?}"
        );
        seen.push(moved_in_epoch());
    }
    println!("share of the footprint moved per epoch: {seen:?}");
    // It did not get there by giving up what it had reached.
    let hottest = share(&workload.located(0), &[0]);
    assert!(hottest >= 0.85, "the hottest left: {}", percent(hottest));
    workload.assert_alive();
    daemon.stop();
}
