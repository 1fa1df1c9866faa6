use proptest::prelude::*;

use super::super::testing::{self, MIB, Scene, regions};
use super::*;
use crate::tiering::plan::Direction;
use crate::tiering::settings::LookRule;
use crate::tiering::windows::{Rates, SPAN};
use crate::units::{PageRange, VirtAddr};

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
    // Hot, warm and cold, of 64 MiB each, in epochs of 10 s: the whole is gone through ten
    // times in the first.
    let regions = large(&[(3.0, 3), (1.0, 3), (0.0, 2)], 64);
    let moves = decide(&mut MemoryTiering::default(), &regions, [900, 0, 0, 0]);
    assert!(moves.iter().all(|m| m.to == NodeId(0)), "{moves:?}");
    let of = |at: usize| -> u64 {
        let mine = moves.iter().filter(|m| m.range == regions[at].range());
        mine.map(|m| m.limit.0).sum::<u64>() / MIB
    };
    assert_eq!((of(0), of(2)), (64, 0), "{moves:?}");
    assert!((10..60).contains(&of(1)), "{}", of(1));
}

#[test]
fn the_top_tier_is_left_alone_and_what_is_touched_all_the_time_does_not_give_way() {
    let regions = large(&[(3.0, 0), (3.0, 3)], 64);
    let mut policy = MemoryTiering::default();
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
fn passes_become_longer_and_a_large_process_takes_its_time() {
    // 1 GiB is four windows; each pass takes twice as long as the one before.
    let regions = large(&[(3.0, 3); 16], 64);
    let mut policy = MemoryTiering::default();
    let mut bytes: Vec<u64> = Vec::new();
    for _ in 0..14 {
        // As if none of it had been moved: another set is hot.
        let moves = decide(&mut policy, &regions, [4000, 0, 0, 0]);
        bytes.push(mib(&moves, Direction::Promotion));
    }
    assert!(bytes[0] > 900, "{bytes:?}");
    // A pass a minute.
    let last: u64 = bytes[8..].iter().sum();
    assert!((768..=1280).contains(&last), "{bytes:?}");

    // 2560 MB a second at most.
    let regions = large(&[(3.0, 3); 64], 1024);
    let moves = decide(&mut MemoryTiering::default(), &regions, [65_536, 0, 0, 0]);
    let most = mib(&moves, Direction::Promotion);
    assert!((20_000..25_700).contains(&most), "{most}");
}

proptest! {
    #[test]
    fn no_node_is_overfilled_and_nothing_moves_that_is_not_there(
        list in prop::collection::vec((0.0_f32..3.0, 0_u32..4), 1..40),
        room in prop::array::uniform4(0_u64..20),
    ) {
        let regions = regions(&list);
        let moves = decide(&mut MemoryTiering::default(), &regions, room);
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
    let mut policy = MemoryTiering::default();
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
    let moves = decide(&mut MemoryTiering::default(), &regions, [0, 1, 10, 10]);
    assert_eq!(
        testing::brief(&moves),
        [(0, 0, 2, 2), (2, 3, 0, 2)],
        "{moves:?}"
    );
}

#[test]
fn what_was_not_touched_since_the_last_pass_is_not_hot() {
    let regions = large(&[(0.3, 3); 16], 64);
    let moves = decide(&mut MemoryTiering::default(), &regions, [900, 0, 0, 0]);
    let rate = Rates::new(SPAN, 3, LookRule::Repeated).of(0.3) / 10.0;
    // By the first pass; each of the others, of 2 and 4 s, brings what is touched in both.
    let (first, others) = (1024.0 * rate, 1024.0 * rate * rate * 6.0);
    let promoted = mib(&moves, Direction::Promotion) as f64;
    let range = 0.7 * first..1.1 * (first + others);
    assert!(range.contains(&promoted), "{promoted}, {range:?}");
    assert!(others < first / 2.0, "{rate}");
}
