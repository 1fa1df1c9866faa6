use proptest::prelude::*;

use super::*;
use crate::sim::hardware::Hardware;
use crate::sim::program::Program;
use crate::units::{PAGE_BYTES, PageRange, VirtAddr};

fn pages(first: u64, count: u64) -> PageRange {
    let at = |page: u64| VirtAddr(page * PAGE_BYTES);
    PageRange::new(at(first), at(first + count)).expect("a range")
}

/// Touches of each folio in each step.
fn touches(played: &Played) -> Vec<Vec<f64>> {
    let of = |step: &Step| {
        let mut weights = vec![0.0; usize::try_from(played.folios).expect("few")];
        let all = played.weigh(step.turn, &mut weights);
        weights.iter().map(|w| f64::from(*w) * all).collect()
    };
    played.steps().iter().map(of).collect()
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-4 * (1.0 + b.abs())
}

fn collected(steps: &[(f64, &[(PageRange, f64)])], order: u8) -> Played {
    let mut collector = Collector::default();
    for (seconds, touched) in steps {
        for (range, per_page) in *touched {
            collector.touch(0, *range, *per_page).expect("room");
        }
        collector.pass(*seconds).expect("room");
    }
    collector.finish(order, 0.0).expect("accesses")
}

#[test]
fn memory_lies_side_by_side_whatever_its_addresses() {
    let played = collected(
        &[
            (10.0, &[(pages(100, 2), 1.0), (pages(1 << 30, 1), 5.0)]),
            (20.0, &[(pages(101, 2), 2.0), (pages(50, 1), 0.0)]),
        ],
        0,
    );
    // 50, 100 to 102, and the one far away.
    assert_eq!(played.folios, 5);
    let [first, second] = &touches(&played)[..] else {
        panic!("{played:?}");
    };
    for (seen, want) in [
        (first, [0.0, 1.0, 1.0, 0.0, 5.0]),
        (second, [0.0, 0.0, 2.0, 2.0, 0.0]),
    ] {
        assert!(seen.iter().zip(want).all(|(a, b)| near(*a, b)), "{seen:?}");
    }
    assert!(near(played.seconds(), 30.0));
}

#[test]
fn a_folio_has_the_touches_of_its_pages() {
    let played = collected(
        &[(1.0, &[(pages(510, 4), 3.0), (pages(1024, 512), 1.0)])],
        9,
    );
    // Two pages at the end of the first, two at the beginning of the second; all of the third.
    assert_eq!(played.folio, Bytes::from_mib(2));
    let seen = &touches(&played)[0];
    assert!(
        near(seen[0], 6.0) && near(seen[1], 6.0) && near(seen[2], 512.0),
        "{seen:?}"
    );
}

#[test]
fn what_overlaps_like_stairs_is_added_up() {
    let stairs: Vec<_> = (0..300).map(|at| (pages(at, 50), 1.0)).collect();
    let played = collected(&[(1.0, &stairs)], 0);
    let touches = &touches(&played)[0];
    assert_eq!(touches.len(), 349);
    for (page, &touches) in (0_u16..).zip(touches) {
        let over = (page + 1).min(50).min(349 - page);
        assert!(near(touches, f64::from(over)), "{page}: {touches}");
    }
}

#[test]
fn processes_lie_apart() {
    let mut collector = Collector::default();
    collector.touch(0, pages(7, 1), 1.0).expect("room");
    collector.touch(1, pages(7, 1), 2.0).expect("room");
    collector.pass(1.0).expect("room");
    let played = collector.finish(0, 0.0).expect("accesses");
    let seen = &touches(&played)[0];
    assert!(near(seen[0], 1.0) && near(seen[1], 2.0), "{seen:?}");
}

#[test]
fn what_says_nothing_is_an_error() {
    assert_eq!(Collector::default().finish(0, 0.0), Err(PlayError::Empty));
    let mut collector = Collector::default();
    collector.touch(0, pages(7, 1), 0.0).expect("room");
    collector.pass(1.0).expect("room");
    assert_eq!(collector.clone().finish(0, 0.0), Err(PlayError::Empty));
    assert_eq!(collector.pass(1e9), Err(PlayError::TooLong));
    assert_eq!(collector.pass(f64::NAN), Err(PlayError::TooLong));
}

#[test]
fn of_many_steps_neighbours_become_one() {
    let mut collector = Collector::default();
    for step in 0..20_000_u64 {
        collector.touch(0, pages(step % 3, 1), 1.0).expect("room");
        collector.pass(0.5).expect("room");
    }
    let played = collector.finish(0, 0.0).expect("accesses");
    assert!(
        (1000..=4096).contains(&played.steps.len()),
        "{}",
        played.steps.len()
    );
    assert!(near(played.seconds(), 10_000.0));
    let all: f64 = touches(&played).iter().flatten().sum();
    assert!(near(all, 20_000.0), "{all}");
    // Late steps are no shorter than early ones.
    let (first, last) = (played.steps[0].0, played.steps[played.steps.len() - 2].0);
    assert!(near(first, last), "{first} {last}");
}

#[test]
fn of_very_many_pages_neighbours_become_one() {
    // Each second another million pages with gaps between them: no two runs are one.
    let mut collector = Collector::default();
    for step in 0..9_u64 {
        for page in 0..1 << 20 {
            let page = (step << 21) + 2 * page;
            collector.touch(0, pages(page, 1), 1.0).expect("room");
        }
        collector.pass(1.0).expect("room");
    }
    let played = collector.finish(0, 0.0).expect("accesses");
    assert!(played.runs.len() <= 1 << 22, "{}", played.runs.len());
    assert!(played.folio > Bytes(PAGE_BYTES), "{}", played.folio);
    assert_eq!(played.steps.len(), 9);
    let all: f64 = touches(&played).iter().flatten().sum();
    assert!((all / f64::from(9 << 20) - 1.0).abs() < 1e-3, "{all}");
}

#[test]
fn more_than_can_be_kept_is_an_error() {
    let mut collector = Collector::default();
    let mut result = Ok(());
    // A page in every fourth huge page, all over the addresses of several processes.
    'all: for process in 0..2 {
        for huge in 0..1 << 24 {
            result = collector.touch(process, pages(huge * 2048, 1), 1.0);
            if result.is_err() {
                break 'all;
            }
        }
    }
    assert_eq!(result, Err(PlayError::TooMuch));
}

fn machine() -> Hardware {
    Hardware::parse(crate::sim::TWO_NODES).expect("a machine")
}

#[test]
fn it_takes_as_long_as_it_did_if_all_is_fast_also_while_idle() {
    let hot: &[(PageRange, f64)] = &[(pages(0, 1000), 50.0)];
    let played = collected(&[(10.0, hot), (30.0, &[]), (10.0, hot)], 0);
    let mut program = Program::new(played.workload("p".into(), String::new()), &machine(), 1);
    for expected in [50_000.0, 50_000.0, 50_000.0, 50_000.0, 100_000.0] {
        let took = program.advance(10.0);
        assert!((took - 10.0).abs() < 0.05, "{took}");
        let all: f64 = (0..1000).map(|folio| program.touches(folio)).sum();
        assert!((all / expected - 1.0).abs() < 0.01, "{all} of {expected}");
    }
    assert!(program.advance(0.1) < 0.05 && program.is_done());
}

#[test]
fn on_slow_memory_it_takes_longer_and_is_touched_as_often() {
    let played = collected(&[(10.0, &[(pages(0, 1000), 50.0)])], 0);
    let mut program = Program::new(played.workload("p".into(), String::new()), &machine(), 1);
    for folio in 0..1000 {
        program.place(folio, 1);
    }
    let mut seconds = 0.0;
    while !program.is_done() {
        seconds += program.advance(1.0);
    }
    // 50 ns of computing and a quarter of 300 ns, in place of 50 and 25.
    assert!((16.0..20.0).contains(&seconds), "{seconds}");
    assert!(near(program.touches(3), 50.0), "{}", program.touches(3));
}

#[test]
fn coarser_and_smaller_ones_keep_their_touches() {
    let touched: &[(PageRange, f64)] = &[(pages(0, 100), 2.0), (pages(200, 60), 5.0)];
    let played = collected(&[(1.0, touched)], 0);
    let workload = played.workload("p".into(), String::new());
    let all = |workload: &Workload| -> (u64, f64) {
        let played = workload.played.as_ref().expect("played");
        assert_eq!(workload.size().0, played.folios * played.folio.0);
        (played.folios, touches(played).iter().flatten().sum())
    };
    assert_eq!(all(&workload).0, 160);
    let coarse = all(&workload.clone().coarser(3));
    assert!(coarse.0 == 20 && near(coarse.1, 500.0), "{coarse:?}");
    let half = all(&workload.scaled(0.5));
    assert!(half.0 == 80 && near(half.1, 500.0), "{half:?}");
}

proptest! {
    /// Whatever comes, also regions that overlap, nothing is lost and all is in order.
    #[test]
    fn touches_are_neither_lost_nor_made_up(
        steps in prop::collection::vec(
            (
                0.001_f64..100.0,
                prop::collection::vec((0_u16..3, 0_u64..4000, 1_u64..1500, 0.0_f64..100.0), 0..12),
            ),
            1..12,
        ),
        order in 0_u8..12,
        halvings in 0_usize..4,
        coarsenings in 0_usize..4,
    ) {
        let mut collector = Collector::default();
        let mut want = 0.0;
        for (seconds, touched) in &steps {
            for (process, first, count, each) in touched {
                collector.touch(*process, pages(*first, *count), *each).expect("room");
                want += *count as f64 * each;
            }
            collector.pass(*seconds).expect("room");
        }
        collector.lose_detail(halvings, coarsenings);
        let Ok(played) = collector.finish(order, 0.5) else {
            prop_assert!(want <= 0.0);
            return Ok(());
        };
        let seen = touches(&played);
        let all: f64 = seen.iter().flatten().sum();
        prop_assert!((all - want).abs() <= 1e-3 * (1.0 + want), "{} of {}", all, want);
        for (_, runs) in &played.steps {
            let runs = &played.runs[runs.clone()];
            prop_assert!(runs.windows(2).all(|pair| pair[0].end <= pair[1].first));
            prop_assert!(runs.iter().all(|run| run.first < run.end));
            prop_assert!(runs.iter().all(|run| u64::from(run.end) <= played.folios));
        }
        let (all, shares) = played.work(1e-9, 1e-10);
        prop_assert!(all > 0.0 && near(shares.iter().sum::<f64>(), 1.0));
    }
}
