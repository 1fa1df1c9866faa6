use proptest::prelude::*;

use super::super::testing::{self, MIB, Scene, regions};
use super::*;
use crate::tiering::observation::Share;
use crate::tiering::plan::Direction;
use crate::tiering::settings::LookRule;
use crate::tiering::tier::TierView;
use crate::tiering::windows::{Rates, SPAN};
use crate::units::{PageRange, Pid, VirtAddr};

/// Regions of so many MiB each, one after the other, on one node: (hotness, node).
fn large(list: &[(f32, u32)], mib: u64) -> Vec<Region> {
    let pages = mib * MIB / 4096;
    (0..)
        .zip(list)
        .map(|(i, &(hotness, node))| {
            let start = VirtAddr(i * mib * MIB);
            let range = PageRange::new(start, VirtAddr(start.0 + mib * MIB)).unwrap();
            Region::for_test(range, hotness, &[(NodeId(node), pages)])
        })
        .collect()
}

/// Of a kernel that keeps so many bits of a page's time, and a program with workers.
fn kernel(time_bits: u8) -> MemoryTiering {
    let by_worker = true;
    MemoryTiering::new(MemoryTieringSettings {
        time_bits,
        by_worker,
    })
}

fn decide(policy: &mut MemoryTiering, regions: &[Region], room: [u64; 4]) -> Vec<Move> {
    let all = Budget {
        bytes: Bytes(u64::MAX),
    };
    testing::decide(policy, Scene::of(regions, room), all)
}

fn mib(moves: &[Move], direction: Direction) -> u64 {
    let which = moves.iter().filter(|m| m.direction == direction);
    which.map(|m| m.limit.0).sum::<u64>() / MIB
}

#[test]
fn what_is_touched_within_a_second_goes_straight_to_the_top() {
    // Hot, warm and cold, of 64 MiB each, in epochs of 10 s: the whole is gone through three
    // times in the first.
    let regions = large(&[(3.0, 3), (1.0, 3), (0.0, 2)], 64);
    let moves = decide(&mut kernel(21), &regions, [900, 0, 0, 0]);
    assert!(moves.iter().all(|m| m.to == NodeId(0)), "{moves:?}");
    let of = |at: usize| -> u64 {
        let mine = moves.iter().filter(|m| m.range == regions[at].range());
        mine.map(|m| m.limit.0).sum::<u64>() / MIB
    };
    assert_eq!((of(0), of(2)), (64, 0), "{moves:?}");
    assert!((5..60).contains(&of(1)), "{}", of(1));
}

#[test]
fn what_is_touched_on_slow_memory_faults_once_each_time_it_is_looked_at() {
    let pages = 64.0 * MIB as f64 / 4096.0;
    let faults = |list: &[(f32, u32)]| {
        let mut policy = kernel(21);
        decide(&mut policy, &large(list, 64), [900, 0, 0, 0]);
        let faults = policy.take_hint_faults();
        assert!(policy.take_hint_faults() <= 0.0, "told twice");
        faults
    };
    // Whether it can be brought or not; three times in ten seconds.
    let hot = faults(&[(3.0, 0), (3.0, 3), (0.0, 2)]);
    assert!((hot / pages - 3.0).abs() < 0.01, "{hot}");
    let warm = faults(&[(1.0, 3), (0.0, 2), (0.0, 2)]);
    assert!(warm > 0.0 && warm < hot, "{warm}");
    assert!(faults(&[(3.0, 0), (0.0, 3)]) < 1.0);
}

#[test]
fn the_top_tier_is_left_alone_and_what_is_touched_all_the_time_does_not_give_way() {
    let regions = large(&[(3.0, 0), (3.0, 3)], 64);
    let mut policy = kernel(21);
    for _ in 0..4 {
        let moves = decide(&mut policy, &regions, [0, 900, 900, 900]);
        assert!(moves.is_empty(), "{moves:?}");
    }
    // What is cold does, to the next tier below.
    let regions = large(&[(0.0, 0), (3.0, 3)], 64);
    let moves = decide(&mut policy, &regions, [0, 900, 900, 900]);
    let down: Vec<_> = moves
        .iter()
        .filter(|m| m.direction == Direction::Demotion)
        .collect();
    assert!(down.iter().all(|m| m.to == NodeId(1)), "{down:?}");
    assert!(mib(&moves, Direction::Promotion) > 60, "{moves:?}");
}

#[test]
fn passes_become_longer() {
    // 1 GiB is four windows and a bit; each takes twice as long as in the pass before.
    let regions = large(&[(3.0, 3); 16], 64);
    let mut policy = kernel(21);
    let mut windows: Vec<u64> = Vec::new();
    for _ in 0..24 {
        // As if none of it had been moved: another set is hot.
        let moves = decide(&mut policy, &regions, [4000, 0, 0, 0]);
        windows.push(mib(&moves, Direction::Promotion) / 256);
    }
    // Two passes of 5 windows, 1 and 2 s each, are over after 16 s; what is gone through twice
    // in an epoch is promoted once. The third has one in 4 s, and eleven of what nobody watches,
    // the fourth, after 76 s, one in 8.
    assert_eq!(windows[..4], [4, 3, 2, 1], "{windows:?}");
    assert_eq!(windows[4..8], [0; 4], "{windows:?}");
    assert_eq!(windows[8..11].iter().sum::<u64>(), 4, "{windows:?}");
    assert_eq!(windows[11..20], [0; 9], "{windows:?}");
}

#[test]
fn a_large_process_is_gone_through_slowly_at_first_and_fast_then() {
    // A terabyte: 256 MiB a second, and ten times as much after the first pass.
    let regions = large(&[(3.0, 3); 64], 16 << 10);
    let mut policy = kernel(21);
    let mut of_epoch = || {
        let moves = decide(&mut policy, &regions, [2 << 20, 0, 0, 0]);
        mib(&moves, Direction::Promotion)
    };
    assert_eq!(of_epoch(), 2560);
    let first: u64 = (1..410).map(|_| of_epoch()).sum();
    assert!(first + 2560 >= 1 << 20, "{first}");
    let next = of_epoch();
    assert!((20_000..25_900).contains(&next), "{next}");
}

#[test]
fn a_time_that_wraps_round_makes_late_faults_seem_early() {
    // Cold for long, and hot in an epoch that has no window (see above): all of it has waited.
    let promoted = |time_bits| {
        let mut policy = kernel(time_bits);
        let mut list = [(3.0, 3); 16];
        list[12].0 = 0.0;
        let mut regions = large(&list, 64);
        for _ in 0..12 {
            decide(&mut policy, &regions, [900, 0, 0, 0]);
        }
        regions[12].turns_hot(3.0);
        let moves = decide(&mut policy, &regions, [900, 0, 0, 0]);
        let mine = moves.iter().filter(|m| m.range == regions[12].range());
        mine.map(|m| m.limit.0).sum::<u64>() as f64 / (64 * MIB) as f64
    };
    assert!(promoted(21) < 1e-3);
    // 1.25 of 4.096 s, two minutes after it was begun.
    let share = promoted(12);
    assert!((0.2..0.35).contains(&share), "{share}");
}

proptest! {
    #[test]
    fn no_node_is_overfilled_and_nothing_moves_that_is_not_there(
        list in prop::collection::vec((0.0_f32..3.0, 0_u32..4), 1..40),
        room in prop::array::uniform4(0_u64..20),
    ) {
        let regions = regions(&list);
        let moves = decide(&mut kernel(21), &regions, room);
        let mut free = room.map(|mib| i128::from(mib * MIB));
        let mut here: HashMap<_, u64> = HashMap::new();
        for m in &moves {
            free[m.to.0 as usize] -= i128::from(m.limit.0);
            prop_assert!(free[m.to.0 as usize] >= 0, "{moves:?}");
            free[m.from.0 as usize] += i128::from(m.limit.0);
            let gone = here.entry((m.range.start(), m.from)).or_default();
            *gone += m.limit.0;
            let region = regions.iter().find(|r| r.range() == m.range).unwrap();
            prop_assert!(region.pages().on(m.from) * 4096 >= *gone);
            if m.direction == Direction::Promotion {
                prop_assert!(m.to == NodeId(0) && m.from != NodeId(0));
            }
        }
    }
}

/// One region of such pages on nodes.
fn one(start: u64, pages: u64, hotness: f32, on: &[(u32, u64)]) -> Region {
    let range = PageRange::new(VirtAddr(start), VirtAddr(start + pages * 4096)).unwrap();
    let on: Vec<_> = on
        .iter()
        .map(|&(node, pages)| (NodeId(node), pages))
        .collect();
    Region::for_test(range, hotness, &on)
}

#[test]
fn what_could_not_be_moved_is_not_owed_to_what_is_cold() {
    let hot = large(&[(3.0, 3); 4], 64);
    let mut policy = kernel(21);
    let little = Budget {
        bytes: Bytes(4096 * 10),
    };
    let moves = testing::decide(&mut policy, Scene::of(&hot, [900, 0, 0, 0]), little);
    assert_eq!(moves.iter().map(|m| m.limit.0).sum::<u64>(), 4096 * 10);
    let cold = large(&[(0.0, 3); 4], 64);
    let moves = decide(&mut policy, &cold, [900, 0, 0, 0]);
    assert!(moves.is_empty(), "{moves:?}");
}

#[test]
fn a_tier_without_room_for_a_folio_is_passed_over() {
    let mut regions = [
        one(0, 512, 0.0, &[(0, 512)]),
        one(2 * MIB, 512, 3.0, &[(3, 512)]),
    ];
    for region in &mut regions {
        region.of_folios(9);
    }
    let moves = decide(&mut kernel(21), &regions, [0, 1, 10, 10]);
    assert_eq!(
        testing::brief(&moves),
        [(0, 0, 2, 2), (2, 3, 0, 2)],
        "{moves:?}"
    );
}

#[test]
fn what_was_not_touched_since_the_last_pass_is_not_hot() {
    let regions = large(&[(0.3, 3); 16], 64);
    let moves = decide(&mut kernel(21), &regions, [900, 0, 0, 0]);
    let rate = Rates::new(SPAN, 3, LookRule::Repeated).of(0.3) / 10.0;
    // Windows of a second: by the first pass, and in the second what is touched in both.
    let (first, others) = (1024.0 * rate, 1024.0 * rate * rate * 5.0);
    let promoted = mib(&moves, Direction::Promotion) as f64;
    let range = 0.9 * first..1.02 * (first + others);
    assert!(range.contains(&promoted), "{promoted}, {range:?}");
    assert!(others < first / 2.0, "{rate}");
}

#[test]
fn where_there_is_room_what_is_late_is_brought_whatever_its_time() {
    let promoted = |time_bits, room| {
        let mut policy = kernel(time_bits);
        let mut list = [(3.0, 3); 16];
        list[12].0 = 0.0;
        let mut regions = large(&list, 64);
        for _ in 0..12 {
            decide(&mut policy, &regions, [room, 0, 0, 0]);
        }
        regions[12].turns_hot(3.0);
        let moves = decide(&mut policy, &regions, [room, 0, 0, 0]);
        let mine = moves.iter().filter(|m| m.range == regions[12].range());
        mine.map(|m| m.limit.0).sum::<u64>() / MIB
    };
    assert_eq!(promoted(21, 4000), 64);
    assert_eq!(promoted(12, 4000), 64);
    assert_eq!(promoted(21, 900), 0);
}

#[test]
fn of_a_large_region_only_what_was_looked_at_is_late() {
    let mut regions = large(&[(0.0, 3)], 16 << 10);
    let mut policy = kernel(12);
    decide(&mut policy, &regions, [900, 0, 0, 0]);
    regions[0].turns_hot(3.0);
    let moves = decide(&mut policy, &regions, [900, 0, 0, 0]);
    // Ten windows were looked at in each epoch of ten seconds: a quarter of ten is late, and
    // ten are new.
    let promoted = mib(&moves, Direction::Promotion);
    assert!(promoted <= 10 * 256 + 10 * 256 * 30 / 100, "{promoted}");
}

#[test]
fn a_programs_first_thread_begins_with_all_of_it() {
    let regions = large(&[(3.0, 3); 64], 1024);
    let mut policy = MemoryTiering::new(MemoryTieringSettings::default());
    let moves = decide(&mut policy, &regions, [65_536, 0, 0, 0]);
    let most = mib(&moves, Direction::Promotion);
    assert!((20_000..25_900).contains(&most), "{most}");
}

#[test]
fn what_lies_on_a_slower_node_with_cpus_is_in_the_top_tier_too() {
    // Ranks of a machine with two sockets, of which the second is slower from here.
    let cpus = |ids: &[u32]| testing::tiers_with_cpus(ids);
    let regions = [(3.0, 1), (3.0, 2), (3.0, 3)];
    let regions = testing::regions(&regions);
    let slow_on = |tiers: &TierView| -> Vec<bool> {
        let target = TargetView {
            id: TargetId(1),
            pid: Pid(1),
            tiers,
            regions: &regions,
            load: 1.0,
            share: Share::default(),
            prior: 0.0,
        };
        let from = slow_from(&target);
        let is_slow = |region| from.is_some_and(|from| !slow(&target, from, region).is_zero());
        regions.iter().map(is_slow).collect()
    };
    assert_eq!(slow_on(&cpus(&[0])), [true, true, true]);
    assert_eq!(slow_on(&cpus(&[0, 1])), [false, true, true]);
    assert_eq!(slow_on(&cpus(&[0, 2])), [false, false, true]);
    // Nothing is below it.
    assert_eq!(slow_on(&cpus(&[0, 3])), [false; 3]);
}
