use proptest::prelude::*;

use crate::tiering::plan::{Move, Reason};
use crate::tiering::policy::testing::{self, MIB, Scene, regions};
use crate::tiering::policy::{Adaptive, Budget, Done};
use crate::tiering::region::Region;
use crate::tiering::settings::AdaptiveSettings;
use crate::units::{Bytes, Nanos, NodeId};

const LATE: &[(NodeId, f64)] = &[(NodeId(3), 4.0)];

fn policy(first_mib: u64) -> Adaptive {
    Adaptive::new(AdaptiveSettings {
        first_bytes: Bytes::from_mib(first_mib),
        ..AdaptiveSettings::default()
    })
}

fn scene<'a>(regions: &'a [Region], room: [u64; 4], late: &'a [(NodeId, f64)]) -> Scene<'a> {
    Scene {
        late,
        ..Scene::of(regions, room)
    }
}

fn decide(policy: &mut Adaptive, scene: Scene<'_>) -> Vec<Move> {
    let all = Budget {
        bytes: Bytes(u64::MAX),
    };
    testing::decide(policy, scene, all)
}

fn once(regions: &[Region], room: [u64; 4], late: &[(NodeId, f64)]) -> Vec<Move> {
    decide(&mut policy(200), scene(regions, room, late))
}

/// (first MiB of the range, from, to, KiB).
fn brief(moves: &[Move]) -> Vec<(u64, u32, u32, u64)> {
    let brief = |m: &Move| (m.range.start().0 / MIB, m.from.0, m.to.0, m.limit.0 >> 10);
    moves.iter().map(brief).collect()
}

/// Regions that are all idle now and usually as hot, but for a last one on node 0 that is hot: where each
/// is, and what share of its accesses writes.
fn swept(list: &[(u32, Option<f32>)]) -> Vec<Region> {
    let mut all: Vec<(f32, u32)> = list.iter().map(|&(node, _)| (0.0, node)).collect();
    all.push((3.0, 0));
    let mut all = regions(&all);
    for (region, &(_, share)) in all.iter_mut().zip(list) {
        region.usually(1.0);
        if let Some(share) = share {
            region.writes(share);
        }
    }
    all
}

#[test]
fn a_part_of_what_is_written_changes_places_with_what_is_read_as_often() {
    let regions = swept(&[
        (0, Some(0.0)),
        (0, Some(0.0)),
        (3, Some(1.0)),
        (3, Some(1.0)),
    ]);
    let once = |late| brief(&once(&regions, [0, 0, 0, 10], late));
    // A quarter of it: of each region as much.
    let part = [
        (0, 0, 3, 512),
        (4, 3, 0, 512),
        (2, 0, 3, 512),
        (6, 3, 0, 512),
    ];
    assert_eq!(once(LATE), part);
    // Less where the other node is nearly as late: a tenth.
    let tenth = [
        (0, 0, 3, 204),
        (4, 3, 0, 204),
        (2, 0, 3, 204),
        (6, 3, 0, 204),
    ];
    assert_eq!(once(&[(NodeId(3), 2.0), (NodeId(0), 1.8)]), tenth);
    // While all answer in time, or the other one is later, nothing is gained.
    assert_eq!(once(&[]), []);
    assert_eq!(once(&[(NodeId(3), 2.0), (NodeId(0), 2.5)]), []);
}

#[test]
fn where_both_nodes_are_full_a_little_makes_room_on_a_slower_one() {
    let list: Vec<(u32, Option<f32>)> = (0..32)
        .map(|at| {
            if at < 16 {
                (0, Some(0.0))
            } else {
                (1, Some(1.0))
            }
        })
        .collect();
    let late: &[(NodeId, f64)] = &[(NodeId(1), 4.0)];
    let of = |room, late| {
        let moves = once(&swept(&list), room, late);
        let sum = |from: u32, to: u32| -> u64 {
            let these = moves.iter().filter(|m| (m.from.0, m.to.0) == (from, to));
            these.map(|m| m.limit.0 >> 10).sum()
        };
        (sum(0, 1), sum(0, 3), sum(1, 0))
    };
    // Of each region 512 KiB: what of the first one leaves is enough for the others.
    assert_eq!(of([0, 0, 0, 8], late), (7680, 512, 8192));
    assert_eq!(of([0, 8, 0, 8], late), (8192, 0, 8192), "it has room");
    assert_eq!(of([0, 0, 0, 0], late), (0, 0, 0), "nothing has");
    // What is later still gets nothing.
    let later = [late, &[(NodeId(3), 5.0)]].concat();
    assert_eq!(of([0, 0, 0, 8], &later), (0, 0, 0));
}

#[test]
fn of_what_nobody_knows_what_it_writes_nothing_moves() {
    for list in [
        [(0, Some(0.0)), (3, None)],
        [(0, None), (3, Some(1.0))],
        [(0, Some(1.0)), (3, Some(1.0))],
        [(0, Some(0.0)), (3, Some(0.0))],
        [(0, Some(0.4)), (3, Some(0.6))],
    ] {
        let moves = once(&swept(&list), [0, 0, 0, 10], LATE);
        assert_eq!(brief(&moves), [], "{list:?}");
    }
}

#[test]
fn what_is_hotter_stays_and_what_is_as_hot_goes_beside_it() {
    let mut regions = swept(&[(0, Some(0.0)), (0, Some(0.0)), (3, Some(1.0))]);
    regions[0].usually(2.9);
    let moves = once(&regions, [0, 0, 0, 10], LATE);
    assert_eq!(brief(&moves), [(2, 0, 3, 512), (4, 3, 0, 512)]);
    regions[1].usually(2.9);
    assert_eq!(once(&regions, [0, 0, 0, 10], LATE), []);
}

#[test]
fn what_is_hot_for_now_is_not_held_back_by_what_is_written_and_cold() {
    let mut regions = swept(&[(0, Some(0.0)), (3, Some(1.0)), (3, Some(1.0))]);
    regions[2].usually(0.0);
    let moves = once(&regions, [0, 0, 0, 10], LATE);
    assert_eq!(brief(&moves), [(0, 0, 3, 512), (2, 3, 0, 512)]);
}

#[test]
fn where_it_does_not_pay_nothing_moves() {
    let regions = swept(&[(0, Some(0.0)), (3, Some(1.0))]);
    let dear = Scene {
        load: 1e-6,
        ..scene(&regions, [0, 0, 0, 10], LATE)
    };
    assert_eq!(decide(&mut policy(200), dear), []);
}

#[test]
fn more_follows_as_long_as_it_is_moved() {
    let list: Vec<(u32, Option<f32>)> = (0..64)
        .map(|at| {
            if at < 32 {
                (0, Some(0.0))
            } else {
                (3, Some(1.0))
            }
        })
        .collect();
    let regions = swept(&list);
    let mut policy = policy(8);
    let mut done = Done::default();
    let mut moved = |all_moved: bool| -> u64 {
        let seen = Scene {
            done,
            ..scene(&regions, [0, 0, 0, 200], LATE)
        };
        let moves = decide(&mut policy, seen);
        let sum: u64 = moves.iter().map(|m| m.limit.0).sum();
        done = Done {
            relieved: Bytes(if all_moved { sum } else { 0 }),
            cost: Nanos(1_000),
            ..Done::default()
        };
        sum / MIB
    };
    // A quarter of 64 MiB, there and back.
    assert_eq!([(); 6].map(|()| moved(true)), [8, 32, 32, 32, 32, 32]);
    // Where nothing is moved, as there is no time, it becomes less, down to what it began with.
    let less = [32, 32, 32, 32, 32, 16, 8, 8];
    assert_eq!([(); 8].map(|()| moved(false)), less);
}

#[test]
fn all_moves_together_stay_within_the_budget() {
    // Ordinary exchanges, too.
    let mut list: Vec<(u32, Option<f32>)> = vec![(0, Some(0.0)); 32];
    list.extend([(3, Some(1.0)); 32]);
    let mut regions = swept(&list);
    for region in &mut regions[32..40] {
        region.turns_hot(3.0);
    }
    let bytes = Bytes::from_mib(20);
    let scene = scene(&regions, [0, 0, 0, 200], LATE);
    let moves = testing::decide(&mut policy(200), scene, Budget { bytes });
    let sum = |is: fn(Reason) -> bool| -> Bytes {
        let such = moves.iter().filter(|m| is(m.reason));
        such.map(|m| m.limit).sum()
    };
    assert!(sum(|_| true) <= bytes, "{moves:?}");
    assert!(sum(|r| r == Reason::Hot) >= Bytes::from_mib(8), "{moves:?}");
}

proptest! {
    /// Whatever lies where: no node is filled beyond its room, nothing leaves twice, what comes off the late
    /// node is written and what goes there is read, as much at any time.
    #[test]
    fn only_what_is_written_comes_and_only_what_is_read_goes(
        list in prop::collection::vec(
            (0_u32..4, prop::option::of(0.0_f32..=1.0), 0.0_f32..3.0, any::<bool>()),
            1..24,
        ),
        room in prop::array::uniform4(0_u64..20),
    ) {
        let told: Vec<_> = list.iter().map(|&(node, share, ..)| (node, share)).collect();
        let mut regions = swept(&told);
        for (region, &(_, _, usual, is_huge)) in regions.iter_mut().zip(&list) {
            region.usually(usual);
            if is_huge {
                region.of_folios(9);
            }
        }
        let moves = once(&regions, room, LATE);
        let mut room = room.map(|mib| i64::try_from(mib * MIB).unwrap());
        let mut left = vec![2 * MIB; list.len()];
        for m in &moves {
            let bytes = i64::try_from(m.limit.0).unwrap();
            room[m.to.0 as usize] -= bytes;
            prop_assert!(room[m.to.0 as usize] >= 0, "overfilled");
            room[m.from.0 as usize] += bytes;
            let at = usize::try_from(m.range.start().0 / (2 * MIB)).unwrap();
            prop_assert!(m.limit.0 <= left[at], "leaves twice");
            left[at] -= m.limit.0;
            let (_, share, _, is_huge) = list[at];
            let share = share.unwrap();
            prop_assert!(!is_huge || m.limit.0 == 2 * MIB, "a part of a folio");
            match m.reason {
                Reason::Written => prop_assert!(share > 0.79 && m.from == NodeId(3)),
                Reason::Read => prop_assert!(share < 0.21 && m.to == NodeId(3)),
                _ => prop_assert!(false, "{m:?}"),
            }
        }
        for pair in moves.chunks(2) {
            prop_assert_eq!(pair.len(), 2, "one alone");
            prop_assert_eq!((pair[0].reason, pair[1].reason), (Reason::Read, Reason::Written));
            prop_assert_eq!(pair[0].limit, pair[1].limit);
        }
    }
}
