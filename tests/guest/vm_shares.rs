//! Targets that want more of the fastest node than there is have what their weights and
//! floors say, also once another one has come.
//!
// vm: topology=4tier timeout=300

use std::fmt::Write as _;

use hmkeeper::units::{Bytes, NodeId};

use crate::common::{self, Daemon, Site, WHERE_MOVES_PAY, Workload, ballast, in_guest, lines};

/// Each wants more than all of it, also where the guest leaves half as much again.
const ROOM: Bytes = Bytes::from_mib(80);
/// Of the third one: more than its weight would give it.
const FLOOR: Bytes = Bytes::from_mib(40);
/// Divided as it should be within so many epochs.
const WITHIN: usize = 30;
/// And then for so many.
const STAYS: usize = 5;
/// So near to it, as a share of what all have.
const NEAR: f64 = 0.08;

/// 128 MiB of 192 are hot, on the slowest node.
fn workload() -> Workload {
    let mut workload = Workload::start(&[
        "--bytes=192MiB",
        "--hot=0.6667",
        "--chunks=8",
        "--cpus=0",
        "--start-node=3",
        "--phases=1",
        "--phase-seconds=100000",
    ]);
    workload.phase();
    workload
}

/// A configuration in which these have so much weight, and the third a floor.
fn body(pids: &[(u32, u16)]) -> String {
    // What files left would make room for all that one wants.
    let mut text = format!(
        "[profiling]\ninterval = \"{}ms\"\n[migration]\npage_cache = false\n{WHERE_MOVES_PAY}",
        common::interval().as_millis()
    );
    for (at, (pid, weight)) in pids.iter().enumerate() {
        let _ = write!(
            text,
            "[[targets]]\nname = \"t{at}\"\npid = {pid}\nweight = {weight}\n"
        );
        if at == 2 {
            let _ = writeln!(text, "floor = \"{}B\"", FLOOR.0);
        }
    }
    text
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn bytes(number: f64) -> Bytes {
    // `as` saturates.
    Bytes(number as u64)
}

/// Waits until what each has on node 0 is this share of the bytes that all have there, and
/// stays so.
fn until_divided(daemon: &Daemon, workloads: &[&Workload], want: impl Fn(f64) -> Vec<f64>) {
    let mut course = Vec::new();
    let mut good = 0;
    while good < STAYS {
        assert!(
            course.len() < WITHIN,
            "not as it is due for {STAYS} epochs within {WITHIN}:\n{}\n{:#}",
            lines(course),
            daemon.status()
        );
        daemon.epochs(1);
        let have: Vec<f64> = (workloads.iter())
            .map(|w| Bytes::from_pages(w.located(0).get(NodeId(0))).as_f64())
            .collect();
        let all: f64 = have.iter().sum();
        let want = want(all);
        let shares: Vec<f64> = have.iter().map(|have| have / all).collect();
        course.push(format!("{}: {shares:.3?} of {want:.3?}", bytes(all)));
        let near = |(have, want): (&f64, &f64)| (have - want).abs() <= NEAR.min(want / 3.0);
        let is_good = all >= 0.7 * ROOM.as_f64() && shares.iter().zip(&want).all(near);
        good = if is_good { good + 1 } else { 0 };
    }
    println!("{}", lines(course));
}

#[test]
fn by_weights_and_floors() {
    if !in_guest() {
        return;
    }
    let _ballast = ballast(0, ROOM);
    let (mut heavy, mut light) = (workload(), workload());
    let site = Site::new();
    let two = [(heavy.pid(), 3), (light.pid(), 1)];
    site.write_config(&body(&two));
    let mut daemon = site.start();
    for (pid, _) in two {
        daemon.until_watching(pid);
    }
    until_divided(&daemon, &[&heavy, &light], |_| vec![0.75, 0.25]);

    // One more, which is due its floor before the others' weights count.
    let mut third = workload();
    site.write_config(&body(&[two[0], two[1], (third.pid(), 1)]));
    let reloaded = daemon.control(&["reload"]);
    assert!(reloaded.status.success(), "{}", common::show(&reloaded));
    daemon.until_watching(third.pid());
    until_divided(&daemon, &[&heavy, &light, &third], |all| {
        let floor = FLOOR.as_f64() / all.max(1.0);
        vec![0.75 * (1.0 - floor), 0.25 * (1.0 - floor), floor]
    });
    for workload in [&mut heavy, &mut light, &mut third] {
        workload.assert_alive();
    }
    daemon.stop();
}
