use proptest::prelude::*;

use super::*;

const TERMS: Terms = Terms::FOR_TESTS;

/// What an epoch of so many samples costs at 2 µs a scan, 50 ns a page
/// counted, and so much besides.
fn epoch(given: Allotment, fixed: Nanos, other: Nanos) -> EpochCost {
    let scanned = given.samples * 3;
    let scanning = Nanos(scanned * 2_000);
    let sweeping = Nanos(given.sweep_pages * 50);
    EpochCost {
        profiling: scanning + sweeping + fixed,
        scanning,
        scanned,
        sweeping,
        swept: given.sweep_pages,
        other,
        elapsed: given.interval,
        ..EpochCost::default()
    }
}

#[test]
fn the_quota_is_equation_8_1_where_nothing_else_costs() {
    // 10 s x 5 % / (1.27 us x 3) = 131,233: the paper's machine (§1.2).
    let mut governor = Governor::default();
    let cost = EpochCost {
        profiling: Nanos(127_000_000_000),
        scanning: Nanos(127_000_000_000),
        scanned: 100_000_000,
        elapsed: Nanos::from_secs(1_000_000),
        ..EpochCost::default()
    };
    governor.learn(&cost, Again::default(), TERMS);
    let swept = governor.allot(TERMS).sweep_pages as f64 * FIRST_GUESS_COUNTED;
    let want = (0.5e9 * AIM - swept) / (1_270.0 * 3.0);
    let samples = governor.allot(TERMS).samples as f64;
    assert!((samples - want).abs() < 20.0, "{samples}, not {want}");
    // An idle target is watched as if it used a tenth of a CPU.
    let idle = Terms {
        load: IDLE_LOAD,
        ..TERMS
    };
    let few = governor.allot(idle).samples as f64;
    assert!((few - samples / 10.0).abs() < 2.0, "{few} of {samples}");
}

#[test]
fn the_cost_of_a_scan_follows_what_is_measured() {
    const MANY: u64 = 100_000_000;
    let near = |governor: &Governor, want: f64| {
        let is = governor.scan_nanos();
        assert!((is - want).abs() < 1.0, "{is}, not {want}");
    };
    let mut governor = Governor::default();
    near(&governor, FIRST_GUESS);
    let cost = |nanos: u64, scanned: u64| EpochCost {
        scanning: Nanos(nanos * scanned),
        scanned,
        ..EpochCost::default()
    };
    for (nanos, want) in [
        (2_000, 2_000.0),
        (3_000, 3_000.0),
        (90_000, 3_000.0),
        (3_000, 3_000.0),
    ] {
        governor.learn(&cost(nanos, MANY), Again::default(), TERMS);
        near(&governor, want);
    }
    // An epoch without scans teaches nothing, and what the target pays counts.
    governor.learn(&EpochCost::default(), Again::default(), TERMS);
    near(&governor, 3_000.0);
    let again = Again {
        accessed: MANY,
        ..Again::default()
    };
    governor.learn(&cost(3_200, MANY), again, TERMS);
    near(&governor, 3_300.0);
}

#[test]
fn a_few_dear_scans_are_doubted() {
    let mut governor = Governor::default();
    let cost = EpochCost {
        scanning: Nanos::from_millis(28),
        scanned: 30,
        ..EpochCost::default()
    };
    governor.learn(&cost, Again::default(), TERMS);
    assert!(governor.scan_nanos() < 4.0 * FIRST_GUESS);
}

#[test]
fn what_was_calibrated_weighs_more_than_a_guess() {
    let mut governor = Governor::default();
    // 512 scans of pages of our own, before there is any epoch.
    let cost = EpochCost {
        scanning: Nanos(512 * 1_500),
        scanned: 512,
        ..EpochCost::default()
    };
    governor.learn(&cost, Again::default(), TERMS);
    let nanos = governor.scan_nanos();
    assert!((1_500.0..2_500.0).contains(&nanos), "{nanos}");
}

#[test]
fn a_burst_costs_few_samples_and_only_for_a_while() {
    let mut governor = Governor::default();
    let mut given = governor.allot(TERMS);
    let mut course = Vec::new();
    for turn in 0..20 {
        let other = Nanos::from_millis(if turn == 10 { 1_000 } else { 20 });
        let cost = epoch(given, Nanos::from_millis(30), other);
        governor.learn(&cost, Again::default(), TERMS);
        given = governor.allot(TERMS);
        course.push(given.samples);
    }
    let usual = course[9];
    assert!(course[10] > usual / 3, "{course:?}");
    assert!(course[19] > usual * 85 / 100, "{course:?}");
}

#[test]
fn what_the_first_count_takes_is_no_debt_and_what_later_ones_take_is() {
    // One in which a target was attached, and two in which its pages were counted.
    let dear = |swept: u64| EpochCost {
        profiling: Nanos::from_secs(2),
        sweeping: Nanos(100 * swept),
        swept,
        elapsed: Nanos::from_millis(50),
        ..EpochCost::default()
    };
    let mut governor = Governor::default();
    let before = governor.allot(TERMS);
    for swept in [0, 1000] {
        governor.learn(&dear(swept), Again::default(), TERMS);
        assert_eq!(governor.allot(TERMS), before);
    }
    governor.learn(&dear(1000), Again::default(), TERMS);
    assert!(governor.allot(TERMS).samples < before.samples * 4 / 5);
}

#[test]
fn bursts_of_an_allowance_in_every_third_epoch_keep_the_limit() {
    let mut governor = Governor::default();
    let mut given = governor.allot(TERMS);
    let (mut spent, mut allowed) = (0.0, 0.0);
    for turn in 0..300 {
        let burst = Nanos::from_millis(if turn % 3 == 0 { 500 } else { 0 });
        let cost = epoch(given, Nanos::ZERO, burst);
        if turn >= 30 {
            spent += (cost.profiling + cost.other).as_secs_f64();
            allowed += TERMS.limit * TERMS.load * cost.elapsed.as_secs_f64();
        }
        governor.learn(&cost, Again::default(), TERMS);
        given = governor.allot(TERMS);
    }
    assert!(spent <= allowed * 1.01, "{spent} of {allowed}");
}

#[test]
fn an_epoch_cut_short_is_no_habit() {
    let mut governor = Governor::default();
    let cost = EpochCost {
        profiling: Nanos::from_millis(40),
        other: Nanos::from_millis(12),
        elapsed: Nanos::from_millis(50),
        ..EpochCost::default()
    };
    let before = governor.allot(TERMS);
    governor.learn(&cost, Again::default(), TERMS);
    let after = governor.allot(TERMS);
    assert_eq!(after.interval, TERMS.interval);
    assert!(after.samples > before.samples * 9 / 10, "{after:?}");
}

#[test]
fn with_nobody_to_watch_epochs_are_not_stretched() {
    let nobody = Terms {
        load: 0.0,
        regions: 0,
        pages: 0,
        ..TERMS
    };
    let mut governor = Governor::default();
    for _ in 0..5 {
        let cost = EpochCost {
            profiling: Nanos::from_secs(1),
            elapsed: TERMS.interval,
            ..EpochCost::default()
        };
        governor.learn(&cost, Again::default(), nobody);
        assert_eq!(governor.allot(nobody).interval, TERMS.interval);
    }
}

#[test]
fn a_stretch_reaches_its_end_and_no_more() {
    let mut governor = Governor::default();
    for fixed in [3.0, 3.4, 3.8, 4.2, 5.0, 100.0, 100.0] {
        let cost = EpochCost {
            profiling: Nanos::from_secs_f64(fixed * 0.5),
            elapsed: TERMS.interval,
            ..EpochCost::default()
        };
        governor.learn(&cost, Again::default(), TERMS);
        governor.allot(TERMS);
    }
    assert_eq!(governor.allot(TERMS).interval, LONGEST_EPOCH);
}

#[test]
fn no_epoch_is_stretched_beyond_a_minute_whatever_the_interval() {
    // However dear: reading the mappings takes 40 s.
    let dear = |governor: &mut Governor, interval: Nanos| {
        let terms = Terms { interval, ..TERMS };
        let mut given = governor.allot(terms);
        for _ in 0..6 {
            let cost = epoch(given, Nanos::from_secs(40), Nanos::ZERO);
            governor.learn(&cost, Again::default(), terms);
            given = governor.allot(terms);
        }
        given
    };
    for (interval, longest) in [(1, 16), (5, 60), (10, 60), (50, 60), (60, 60), (300, 300)] {
        let given = dear(&mut Governor::default(), Nanos::from_secs(interval));
        assert_eq!(given.interval, Nanos::from_secs(longest), "{interval}");
        assert!(given.is_unpaid);
    }
    // Nor after a reload to an interval that leaves less.
    let mut governor = Governor::default();
    dear(&mut governor, Nanos::from_secs(5));
    let given = dear(&mut governor, Nanos::from_secs(45));
    assert_eq!(given.interval, LONGEST_EPOCH);
}

#[test]
fn what_an_idle_target_does_not_pay_for_in_a_minute_is_told() {
    let idle = Terms {
        load: IDLE_LOAD,
        ..TERMS
    };
    // A tenth of a CPU at 5 % pays 300 ms a minute.
    for (fixed, is_unpaid) in [(10, false), (100, false), (200, false), (400, true)] {
        let mut governor = Governor::default();
        let mut given = governor.allot(idle);
        let (mut spent, mut allowed) = (0.0, 0.0);
        for turn in 0..40 {
            let cost = epoch(given, Nanos::from_millis(fixed), Nanos::ZERO);
            if turn >= 4 {
                spent += cost.profiling.as_secs_f64();
                allowed += idle.limit * idle.load * cost.elapsed.as_secs_f64();
            }
            governor.learn(&cost, Again::default(), idle);
            given = governor.allot(idle);
        }
        assert!(given.interval <= LONGEST_EPOCH, "{fixed} ms: {given:?}");
        assert_eq!(given.is_unpaid, is_unpaid, "{fixed} ms");
        let keeps = spent <= allowed * 1.03;
        assert_eq!(keeps, !is_unpaid, "{fixed} ms: {spent} of {allowed}");
    }
}

#[test]
fn a_share_that_reading_the_mappings_uses_up_stretches_the_epoch() {
    let small = Terms {
        limit: 0.005,
        ..TERMS
    };
    let mut governor = Governor::default();
    let mut given = governor.allot(small);
    // 50 ms per epoch of 10 s; the mappings alone take 80.
    for _ in 0..10 {
        let cost = epoch(given, Nanos::from_millis(80), Nanos::ZERO);
        governor.learn(&cost, Again::default(), small);
        given = governor.allot(small);
    }
    assert!(given.interval >= Nanos::from_secs(30), "{given:?}");
    let cost = epoch(given, Nanos::from_millis(80), Nanos::ZERO);
    let share = cost.profiling.as_secs_f64() / cost.elapsed.as_secs_f64();
    assert!(share <= 0.005, "{share} of {given:?}");
    // Once there is enough again it is as before.
    for _ in 0..4 {
        let cost = epoch(given, Nanos::from_millis(1), Nanos::ZERO);
        governor.learn(&cost, Again::default(), TERMS);
        given = governor.allot(TERMS);
    }
    assert_eq!(given.interval, TERMS.interval);
}

proptest! {
    /// Whatever profiling costs besides, as long as the stretch can make
    /// room for it, the average of many epochs keeps the limit.
    #[test]
    fn on_average_the_limit_holds(
        limit in 0.005_f64..0.1,
        load in 0.1_f64..16.0,
        fixed in 0.0_f64..2.0,
        bursts in prop::collection::vec(0.0_f64..1.0, 40),
    ) {
        let terms = Terms { load, limit, ..TERMS };
        let allowance = limit * load * 10.0;
        let mut governor = Governor::default();
        let mut given = governor.allot(terms);
        let (mut spent, mut allowed) = (0.0, 0.0);
        for (turn, burst) in (0..).zip(&bursts) {
            // Now and then a burst of up to an allowance.
            let burst = if *burst > 0.8 { *burst } else { 0.0 };
            let cost = epoch(
                given,
                Nanos::from_secs_f64(fixed * allowance),
                Nanos::from_secs_f64(burst * allowance * 0.5),
            );
            if turn >= 4 {
                spent += (cost.profiling + cost.other).as_secs_f64();
                allowed += limit * load * cost.elapsed.as_secs_f64();
            }
            governor.learn(&cost, Again::default(), terms);
            given = governor.allot(terms);
        }
        prop_assert!(spent <= allowed * 1.03, "{spent} of {allowed}");
    }
}
