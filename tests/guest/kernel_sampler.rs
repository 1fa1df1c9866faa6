//! Idle-page tracking, and what probing finds, on a real kernel: a child touches known
//! pages, and we check what was seen. Each test says why it skips where the kernel lacks
//! something.

use std::ops::Range;
use std::time::Instant;

use hmkeeper::ports::{AccessSampler, SamplerKind};
use hmkeeper::sys::move_pages::{Status, Which, move_to};
use hmkeeper::sys::probe::{State, probe};
use hmkeeper::sys::root::Root;
use hmkeeper::tiering::observation::{AccessSet, Sample, TargetId};
use hmkeeper::units::{Nanos, NodeId, VirtAddr};

use crate::watched::{Target, count, open, scan, tells_what_a_fork_shares, wait};

/// The idle sampler, or `None` (and says so) where this kernel has none.
fn idle() -> Option<Box<dyn AccessSampler>> {
    open(SamplerKind::Idle)
}

/// Pages that sit in a CPU's page batch on their way from list to list for a moment, of
/// which then nothing can be known.
const BATCH: usize = 31;

/// What was seen of some pages, told apart from what could not be known for a moment:
/// (accessed, idle, more unknown than a batch).
fn beyond_a_batch((accessed, idle, unknown): (usize, usize, usize)) -> (bool, bool, bool) {
    (accessed > 0, idle > 0, unknown > BATCH)
}

const ACCESSED: (bool, bool, bool) = (true, false, false);
const IDLE: (bool, bool, bool) = (false, true, false);

#[test]
fn idle_tracking_sees_exactly_the_half_that_is_touched() {
    let Some(mut sampler) = idle() else { return };
    let mut target = Target::start(4096, "small");
    target.tell("touch 1024 3072");
    let samples = target.samples(4096, 1);
    for _ in 0..3 {
        let seen = scan(&mut *sampler, &samples, wait);
        assert_eq!(beyond_a_batch(count(&seen, 1024..3072)), ACCESSED);
        assert_eq!(beyond_a_batch(count(&seen, 0..1024)), IDLE);
        assert_eq!(beyond_a_batch(count(&seen, 3072..4096)), IDLE);
        assert!(seen.tallies()[..3072].iter().all(|t| t.order == 0));
        let known = seen.tallies().iter().filter(|t| t.node.is_some());
        assert!(known.count() >= 4096 - 3 * BATCH);
    }
}

/// Windows in which not all of the samples can be marked before the first is looked at.
#[test]
fn the_shortest_window_tells_what_is_touched_all_the_time() {
    let Some(mut sampler) = idle() else { return };
    let shortest = sampler.shortest();
    for (kind, pages, step) in [("small", 1 << 14, 2), ("huge", 1 << 15, 128)] {
        let mut target = Target::start(pages, kind);
        target.tell(&format!("spin 0 {}", pages / 2));
        let samples = target.samples(pages, step);
        let half = samples.len() / 2;
        // What marking takes is known from then on.
        scan(&mut *sampler, &samples, wait);
        let mut look = |times: f64| {
            let window = Nanos::from_secs_f64(shortest.as_secs_f64() * times);
            let mut seen = AccessSet::new(samples.clone());
            let start = Instant::now();
            sampler.arm(&samples, window).unwrap();
            std::thread::sleep(window.into());
            sampler.collect(&mut seen).unwrap();
            let took = start.elapsed();
            let [hot, cold] = [0..half, half..samples.len()].map(|part| count(&seen, part));
            eprintln!("{kind}, {window} of {shortest}: {took:?}, touched {hot:?}, others {cold:?}");
            assert_eq!(cold.0, 0);
            hot
        };
        for times in [0.25, 0.5] {
            look(times);
        }
        for times in [1.0, 2.0] {
            // A host that does other things may keep the target from touching anything meanwhile.
            let mut looks = (0..5).map(|_| look(times));
            let is_told = looks.any(|hot| hot.0 * 10 >= (hot.0 + hot.1) * 9 && hot.0 * 2 > half);
            assert!(is_told, "{kind}: never in {times} of the shortest window");
        }
    }
}

#[test]
fn of_a_page_that_moves_nothing_is_known_until_the_next_scan() {
    let Some(mut sampler) = idle() else { return };
    let mut target = Target::start(1024, "small");
    target.tell("touch 0 512");
    let samples = target.samples(1024, 4);
    let seen = scan(&mut *sampler, &samples, wait);
    let node = |seen: &AccessSet| seen.tallies().iter().find_map(|tally| tally.node);
    let Some(home) = node(&seen) else {
        panic!("no page has a node");
    };
    if move_samples(&samples[..1], NodeId(home.0 ^ 1)).is_err() {
        eprintln!("skipped: this machine has no second node");
        return;
    }
    let mut check = |between: &mut dyn FnMut(), moved: Range<usize>| {
        let seen = scan(&mut *sampler, &samples, between);
        let beyond = |part| beyond_a_batch(count(&seen, part));
        assert_eq!(count(&seen, moved.clone()), (0, 0, moved.len()));
        assert_eq!(beyond(0..64), ACCESSED);
        assert_eq!(beyond(192..256), IDLE);
        if moved.is_empty() {
            assert_eq!(beyond(64..128), ACCESSED);
            assert_eq!(beyond(128..192), IDLE);
        }
    };
    let moves = |to: u32| move_samples(&samples[64..192], NodeId(to)).unwrap();
    // Between two scans of an epoch, when it is not asked again where pages are.
    moves(home.0 ^ 1);
    check(&mut wait, 64..192);
    check(&mut wait, 0..0);
    // While a scan waits.
    let mut meanwhile = || {
        moves(home.0);
        wait();
    };
    check(&mut meanwhile, 64..192);
    check(&mut wait, 0..0);
}

/// The child keeps the page with its mark, and the parent writes to another one.
#[test]
fn what_is_written_after_a_fork_is_not_idle() {
    let Some(mut sampler) = idle() else { return };
    let mut target = Target::start(1024, "small");
    let samples = target.samples(1024, 4);
    let seen = scan(&mut *sampler, &samples, || {
        target.tell("fork");
        target.tell("touch 0 1024");
        wait();
    });
    let (_, idle, unknown) = count(&seen, 0..samples.len());
    assert_eq!(idle, 0, "{unknown} are unknown");
    target.tell("reap");
}

/// Moves pages behind the sampler's back.
fn move_samples(samples: &[Sample], to: NodeId) -> std::io::Result<()> {
    let pages: Vec<VirtAddr> = samples.iter().map(|sample| sample.addr).collect();
    let (_, status) = move_to(samples[0].pid, &pages, to, Which::Alone)?;
    assert!(status.iter().all(|status| *status == Status::On(to)));
    Ok(())
}

#[test]
fn what_a_scan_costs_is_learnt_on_pages_of_our_own() {
    let Some(mut sampler) = idle() else { return };
    let learnt = sampler.calibrate().unwrap().expect("idle tracking can");
    eprintln!("{} scans took {}", learnt.scans, learnt.took);
    // Enough to be believed, and no nonsense.
    assert!(learnt.scans >= 300);
    let each = learnt.took.0 / learnt.scans;
    assert!((100..1_000_000).contains(&each), "{each} ns");
    // And others are seen as before.
    let target = Target::start(256, "small");
    let seen = scan(&mut *sampler, &target.samples(128, 1), || ());
    assert_eq!(beyond_a_batch(count(&seen, 0..128)), IDLE);
}

#[test]
fn idle_tracking_sees_huge_pages_as_one() {
    let Some(mut sampler) = idle() else { return };
    // 32 huge pages, of which one byte in each of the first 16 is touched.
    let mut target = Target::start(32 * 512, "huge");
    target.tell("touch 0 8192");
    // 100 lies inside of a huge page, so that most samples are tails.
    let samples = target.samples(32 * 512, 100);
    let seen = scan(&mut *sampler, &samples, wait);
    let hot = 8192_usize.div_ceil(100);
    let huge = seen.tallies().iter().filter(|t| t.order == 9).count();
    if huge == 0 {
        eprintln!("skipped: no huge page was given");
        return;
    }
    assert_eq!(huge, samples.len());
    assert_eq!(count(&seen, 0..hot), (hot, 0, 0));
    assert_eq!(
        count(&seen, hot..samples.len()),
        (0, samples.len() - hot, 0)
    );
}

#[test]
fn idle_tracking_sees_folios_of_middle_orders() {
    const KNOB: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled";
    const HUGE_KNOB: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled";
    let Some(mut sampler) = idle() else { return };
    let (Ok(before), Ok(huge)) = (
        std::fs::read_to_string(KNOB),
        std::fs::read_to_string(HUGE_KNOB),
    ) else {
        eprintln!("skipped: this kernel has no folios of 64 KiB");
        return;
    };
    if std::env::var_os("HMKEEPER_TEST_SETTINGS").is_none() {
        eprintln!("skipped: HMKEEPER_TEST_SETTINGS is not set, and the test changes {KNOB}");
        return;
    }
    let chosen = |text: &str| {
        let from = text.find('[').unwrap() + 1;
        text[from..text.find(']').unwrap()].to_owned()
    };
    std::fs::write(KNOB, "madvise").unwrap();
    std::fs::write(HUGE_KNOB, "never").unwrap();
    let mut target = Target::start(2048, "huge");
    std::fs::write(KNOB, chosen(&before)).unwrap();
    std::fs::write(HUGE_KNOB, chosen(&huge)).unwrap();
    target.tell("touch 1024 2048");
    let samples = target.samples(2048, 1);
    let seen = scan(&mut *sampler, &samples, wait);
    assert!(
        seen.tallies().iter().all(|t| t.order == 4),
        "orders: {:?}",
        seen.tallies().iter().map(|t| t.order).collect::<Vec<_>>()
    );
    assert_eq!(beyond_a_batch(count(&seen, 0..1024)), IDLE);
    assert_eq!(beyond_a_batch(count(&seen, 1024..2048)), ACCESSED);
}

#[test]
fn a_page_that_moved_meanwhile_is_unknown() {
    let Some(mut sampler) = idle() else { return };
    if !std::path::Path::new("/sys/devices/system/node/node1").exists() {
        eprintln!("skipped: one node");
        return;
    }
    let mut target = Target::start(256, "small");
    let mut samples = target.samples(256, 1);
    target.tell("move 1");
    let seen = scan(&mut *sampler, &samples, || target.tell("move 0"));
    assert_eq!(count(&seen, 0..256), (0, 0, 256));
    // The next scan finds them where they are now.
    let seen = scan(&mut *sampler, &samples, || ());
    assert_eq!(beyond_a_batch(count(&seen, 0..256)), IDLE);
    let nodes = || seen.tallies().iter().filter_map(|t| t.node);
    assert!(nodes().all(|node| node.0 == 0));
    assert!(nodes().count() >= 256 - BATCH);
    samples.truncate(10);
    let seen = scan(&mut *sampler, &samples, || ());
    assert_eq!(count(&seen, 0..10), (0, 10, 0), "another sample set");
}

#[test]
fn an_unmapped_page_and_a_killed_process_are_unknown() {
    let Some(mut sampler) = idle() else { return };
    let mut target = Target::start(256, "small");
    let samples = target.samples(256, 1);
    let seen = scan(&mut *sampler, &samples, || target.tell("unmap"));
    assert_eq!(count(&seen, 0..256), (0, 0, 256));

    let mut target = Target::start(256, "small");
    target.tell("touch 0 256");
    let samples = target.samples(256, 1);
    let seen = scan(&mut *sampler, &samples, || {
        target.child.kill().unwrap();
        target.child.wait().unwrap();
    });
    assert_eq!(count(&seen, 0..256), (0, 0, 256));
    for _ in 0..2 {
        let seen = scan(&mut *sampler, &samples, || ());
        assert_eq!(count(&seen, 0..256), (0, 0, 256), "long gone");
    }
}

/// Prints what one sample costs per scan; judged by eye and by `docs`.
#[test]
fn idle_tracking_costs_little() {
    let Some(mut sampler) = idle() else { return };
    let target = Target::start(65536, "small");
    // Thin first: marks that earlier scans left on neighbours cost walks.
    for step in [512, 64, 16, 1, 64] {
        let samples = target.samples(65536, step);
        scan(&mut *sampler, &samples, || ());
        let mut seen = AccessSet::new(samples.clone());
        let start = Instant::now();
        for _ in 0..5 {
            // All at once.
            sampler.arm(&samples, Nanos::ZERO).unwrap();
            sampler.collect(&mut seen).unwrap();
        }
        let nanos = start.elapsed().as_nanos() / (5 * samples.len() as u128);
        eprintln!(
            "{} samples, one in {step} pages: {nanos} ns per sample and scan",
            samples.len()
        );
        assert!(seen.tallies().iter().filter(|t| t.known == 5).count() >= samples.len() * 9 / 10);
    }
}

#[test]
fn referenced_tells_mappings_that_are_touched_from_those_that_are_not() {
    let Some(mut sampler) = open(SamplerKind::Referenced) else {
        return;
    };
    let (mut whole, mut part) = (Target::start(4096, "small"), Target::start(4096, "small"));
    whole.tell("touch 0 4096");
    part.tell("touch 0 1024");
    let mut samples = whole.samples(4096, 64);
    samples.extend(part.samples(4096, 64).into_iter().map(|mut sample| {
        sample.target = TargetId(2);
        sample
    }));
    for _ in 0..2 {
        let seen = scan(&mut *sampler, &samples, wait);
        assert_eq!(count(&seen, 0..64), (64, 0, 0));
        assert_eq!(
            count(&seen, 64..128),
            (0, 0, 64),
            "a part of it was touched"
        );
        assert!(seen.tallies()[..64].iter().all(|t| t.node.is_some()));
    }
    whole.tell("stop");
    part.tell("touch 0 4096");
    let seen = scan(&mut *sampler, &samples, wait);
    assert_eq!(count(&seen, 0..64), (0, 64, 0));
    assert_eq!(count(&seen, 64..128), (64, 0, 0));
    let seen = scan(&mut *sampler, &samples, || {
        part.child.kill().unwrap();
        part.child.wait().unwrap();
    });
    assert_eq!(count(&seen, 0..64), (0, 64, 0));
    assert_eq!(count(&seen, 64..128), (0, 0, 64), "gone");
}

#[test]
fn what_a_fork_shares_is_told_until_the_child_ends() {
    for kind in [SamplerKind::Idle, SamplerKind::Referenced] {
        if let Some(mut sampler) = open(kind) {
            tells_what_a_fork_shares(&mut *sampler);
        }
    }
}

/// On the host of any developer this only shows that probing is harmless; in
/// the tests' guest, whose kernel has all, that everything is found.
#[test]
fn probing_finds_what_the_kernel_has_and_leaves_it_so() {
    let before = kdamonds_if_any();
    let findings = probe(&Root::host());
    for finding in &findings {
        eprintln!("{finding:?}");
    }
    assert_eq!(kdamonds_if_any(), before);
    if std::env::var_os("HMKEEPER_TEST_SETTINGS").is_none() {
        eprintln!("the rest skipped: HMKEEPER_TEST_SETTINGS is not set, this is not the guest");
        return;
    }
    for finding in findings {
        // No swap here: tests/guest/vm_pageout.rs sets it up and sees it found.
        let expected = match finding.name {
            "page-out" => State::Missing,
            _ => State::Present,
        };
        assert_eq!(finding.state, expected, "{finding:?}");
    }
}

fn kdamonds_if_any() -> Option<String> {
    std::fs::read_to_string("/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds").ok()
}
