//! DAMON as a sampler on a real kernel, over the addresses of processes and over page
//! frames: a child touches known pages, and we check what was seen. Each test says why
//! it skips where the kernel lacks something.

use std::io::BufReader;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hmkeeper::ports::{PortError, SamplerKind};
use hmkeeper::sys::root::Root;
use hmkeeper::sys::sampler;
use hmkeeper::tiering::observation::TargetId;
use hmkeeper::units::Nanos;

use crate::watched::{Target, answer, count, open, scan, tells_what_a_fork_shares, wait};

/// The kernel lets one of us use DAMON at a time.
fn alone() -> MutexGuard<'static, ()> {
    static DAMON: Mutex<()> = Mutex::new(());
    DAMON.lock().unwrap_or_else(PoisonError::into_inner)
}

fn sees_exactly_the_tenth_that_is_touched(kind: SamplerKind) {
    let _alone = alone();
    let Some(mut sampler) = open(kind) else {
        return;
    };
    let mut target = Target::start(65536, "small");
    let mut other = Target::start(1024, "small");
    target.tell("touch 32768 39322");
    let mut samples = target.samples(65536, 64);
    // Another target, whose addresses may well be the same, and not touched.
    samples.extend(other.samples(1024, 64).into_iter().map(|mut sample| {
        sample.target = TargetId(2);
        sample
    }));
    let hot = 512..615;
    let mut cpu = Nanos::ZERO;
    for _ in 0..3 {
        let seen = scan(&mut *sampler, &samples, wait);
        assert_eq!(count(&seen, hot.clone()), (103, 0, 0));
        assert_eq!(count(&seen, 0..512).0, 0);
        assert_eq!(count(&seen, 615..1040).0, 0);
        let (_, _, unknown) = count(&seen, 0..1040);
        assert!(unknown <= 2, "{unknown} unknown");
        let now = sampler.kernel_cpu_time();
        assert!(now > cpu, "the kdamonds' CPU time");
        cpu = now;
    }
    eprintln!(
        "kdamonds: {cpu} CPU time in 3 scans of {} samples",
        samples.len()
    );
    other.tell("touch 0 512");
    samples.drain(..1024);
    let seen = scan(&mut *sampler, &samples, wait);
    assert_eq!(count(&seen, 0..8), (8, 0, 0), "the target set changed");
    assert_eq!(count(&seen, 8..16).0, 0);
    assert!(sampler.kernel_cpu_time() > cpu, "never runs backwards");

    // One of three ends in the midst of a scan: the others are still told apart.
    let mut third = Target::start(1024, "small");
    third.tell("touch 256 768");
    let mut doomed = Target::start(1024, "small");
    doomed.tell("touch 0 1024");
    let mut three = doomed.samples(1024, 64);
    for (id, next) in [(2, &other), (3, &third)] {
        three.extend(next.samples(1024, 64).into_iter().map(|mut sample| {
            sample.target = TargetId(id);
            sample
        }));
    }
    for round in 0..2 {
        let seen = scan(&mut *sampler, &three, || {
            doomed.child.kill().unwrap();
            doomed.child.wait().unwrap();
            wait();
        });
        assert_eq!(count(&seen, 0..16), (0, 0, 16), "round {round}");
        assert_eq!(count(&seen, 16..24), (8, 0, 0), "round {round}");
        assert_eq!(count(&seen, 24..32).0, 0, "round {round}");
        assert_eq!(count(&seen, 32..36), (0, 4, 0), "round {round}");
        assert_eq!(count(&seen, 36..44), (8, 0, 0), "round {round}");
        assert_eq!(count(&seen, 44..48).0, 0, "round {round}");
    }

    // The last one ends in the midst of a scan, and the scans after it.
    let seen = scan(&mut *sampler, &samples, || {
        other.child.kill().unwrap();
        other.child.wait().unwrap();
        wait();
    });
    assert_eq!(count(&seen, 0..16), (0, 0, 16));
    let seen = scan(&mut *sampler, &samples, || ());
    assert_eq!(count(&seen, 0..16), (0, 0, 16));
    sampler.release();
    assert_eq!(kdamonds(), "0");
}

#[test]
fn addresses_of_processes_tell_the_tenth_that_is_touched() {
    sees_exactly_the_tenth_that_is_touched(SamplerKind::Damon);
}

#[test]
fn page_frames_tell_the_tenth_that_is_touched() {
    sees_exactly_the_tenth_that_is_touched(SamplerKind::DamonPaddr);
}

fn sees_huge_pages_as_one(kind: SamplerKind) {
    let _alone = alone();
    let Some(mut sampler) = open(kind) else {
        return;
    };
    let mut target = Target::start(32 * 512, "huge");
    target.tell("touch 0 8192");
    let samples = target.samples(32 * 512, 100);
    let seen = scan(&mut *sampler, &samples, wait);
    if seen.tallies().iter().all(|t| t.order != 9) {
        eprintln!("skipped: no huge page was given");
        return;
    }
    assert_eq!(count(&seen, 0..82), (82, 0, 0));
    assert_eq!(count(&seen, 82..164), (0, 82, 0));
    // Of one folio alone, twice: what the kernel found before is not told again.
    let one = &samples[..2];
    let seen = scan(&mut *sampler, one, wait);
    assert_eq!(count(&seen, 0..2), (2, 0, 0));
    target.tell("stop");
    // It may have gone on for a while after the last check, with which this scan began.
    scan(&mut *sampler, one, wait);
    for _ in 0..2 {
        let seen = scan(&mut *sampler, one, wait);
        assert_eq!(count(&seen, 0..2), (0, 2, 0));
    }
}

#[test]
fn what_a_fork_shares_is_told_until_the_child_ends() {
    let _alone = alone();
    if let Some(mut sampler) = open(SamplerKind::Damon) {
        tells_what_a_fork_shares(&mut *sampler);
    }
}

#[test]
fn addresses_of_processes_tell_huge_pages_as_one() {
    sees_huge_pages_as_one(SamplerKind::Damon);
}

#[test]
fn page_frames_tell_huge_pages_as_one() {
    sees_huge_pages_as_one(SamplerKind::DamonPaddr);
}

#[test]
fn a_page_that_moved_meanwhile_is_unknown() {
    let _alone = alone();
    if !std::path::Path::new("/sys/devices/system/node/node1").exists() {
        eprintln!("skipped: one node");
        return;
    }
    for kind in [SamplerKind::Damon, SamplerKind::DamonPaddr] {
        let Some(mut sampler) = open(kind) else {
            continue;
        };
        let mut target = Target::start(256, "small");
        target.tell("touch 0 128");
        let samples = target.samples(256, 1);
        target.tell("move 1");
        let seen = scan(&mut *sampler, &samples, || target.tell("move 0"));
        assert_eq!(count(&seen, 0..256), (0, 0, 256), "{kind:?}");
        // The next scan finds them where they are now.
        let seen = scan(&mut *sampler, &samples, wait);
        assert_eq!(count(&seen, 0..128), (128, 0, 0), "{kind:?}");
        assert_eq!(count(&seen, 128..256).0, 0, "{kind:?}");
    }
}

fn kdamonds() -> String {
    std::fs::read_to_string("/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds")
        .unwrap()
        .trim()
        .to_owned()
}

/// The side of [`kdamonds_of_a_killed_run_are_removed_at_the_next_start`] that is killed.
#[test]
fn damon_victim() {
    let Ok(state) = std::env::var("HMKEEPER_VICTIM") else {
        return;
    };
    let want = Some(SamplerKind::Damon);
    let mut sampler = sampler::open(&Root::host(), want, state.as_ref()).unwrap();
    let target = Target::start(256, "small");
    sampler
        .arm(&target.samples(256, 1), Nanos::from_secs(60))
        .unwrap();
    println!("\narmed {}", target.child.id());
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn kdamonds_of_a_killed_run_are_removed_at_the_next_start() {
    let _alone = alone();
    if open(SamplerKind::Damon).is_none() {
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kernel_damon::damon_victim", "--nocapture"])
        .env("HMKEEPER_VICTIM", state.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    answer(&mut BufReader::new(victim.stdout.take().unwrap()), "armed ");
    let want = Some(SamplerKind::Damon);
    let live = sampler::open(&Root::host(), want, state.path()).err();
    assert!(matches!(live, Some(PortError::Busy { .. })), "{live:?}");
    victim.kill().unwrap();
    victim.wait().unwrap();
    assert_eq!(kdamonds(), "1");
    // Without the note they are a stranger's.
    let elsewhere = tempfile::tempdir().unwrap();
    let stranger = sampler::open(&Root::host(), want, elsewhere.path()).err();
    assert!(
        matches!(stranger, Some(PortError::Busy { .. })),
        "{stranger:?}"
    );
    assert_eq!(kdamonds(), "1");
    let sampler = sampler::open(&Root::host(), None, state.path()).unwrap();
    assert_eq!(kdamonds(), "0");
    assert_eq!(
        std::fs::read_dir(state.path()).unwrap().count(),
        0,
        "the note"
    );
    let left = format!("/sys/kernel/tracing/instances/hmkeeper-{}", victim.id());
    assert!(!std::path::Path::new(&left).exists(), "{left}");
    drop(sampler);
}

#[test]
fn damon_stat_is_told_as_what_is_in_the_way() {
    const KNOB: &str = "/sys/module/damon_stat/parameters/enabled";
    let _alone = alone();
    if open(SamplerKind::Damon).is_none() {
        return;
    }
    if std::env::var_os("HMKEEPER_TEST_SETTINGS").is_none() || std::fs::write(KNOB, "Y").is_err() {
        eprintln!(
            "skipped: no DAMON_STAT, or HMKEEPER_TEST_SETTINGS is not set, and the test runs it"
        );
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let error = sampler::open(&Root::host(), Some(SamplerKind::Damon), state.path()).err();
    std::fs::write(KNOB, "N").unwrap();
    let error = error.unwrap();
    assert!(matches!(error, PortError::Busy { .. }), "{error}");
    assert!(error.to_string().contains(KNOB), "{error}");
    assert_eq!(kdamonds(), "0");
}
