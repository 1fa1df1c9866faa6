use proptest::prelude::*;

use crate::tiering::plan::{Direction, Move, Reason};
use crate::tiering::policy::testing::{self, MIB, Scene, brief, regions};
use crate::tiering::policy::{Adaptive, Budget};
use crate::tiering::region::Region;
use crate::tiering::settings::AdaptiveSettings;
use crate::units::{Bytes, NodeId};

fn decide(regions: &[Region], room: [u64; 4], loaded: &[(NodeId, f64)]) -> Vec<Move> {
    let scene = Scene {
        loaded,
        ..Scene::of(regions, room)
    };
    let all = Budget {
        bytes: Bytes(u64::MAX),
    };
    let mut policy = Adaptive::new(AdaptiveSettings::default());
    testing::decide(&mut policy, scene, all)
}

/// Nodes answer after 90, 145, 275 and 340 ns when idle.
#[test]
fn what_is_hot_leaves_a_node_that_answers_later_than_the_next() {
    let regions = regions(&[(3.0, 0); 16]);
    assert_eq!(
        decide(&regions, [0, 100, 100, 100], &[(NodeId(0), 1.5)]),
        []
    );
    let moves = decide(&regions, [0, 100, 100, 100], &[(NodeId(0), 4.0)]);
    // A quarter of the time by which the other answers sooner: 145 instead of 360 ns.
    let all: Bytes = moves.iter().map(|m| m.limit).sum();
    let most = 0.25 * (1.0 - 145.0 / 360.0) * 32.0 * MIB as f64;
    assert!(all.as_f64() <= most && all.as_f64() > 0.99 * most, "{all}");
    for m in &moves {
        let way = (m.from, m.to, m.direction, m.reason);
        let spread = (Direction::Demotion, Reason::Spread);
        assert_eq!(way, (NodeId(0), NodeId(1), spread.0, spread.1));
    }
}

#[test]
fn a_node_that_answers_late_is_filled_step_by_step() {
    let list: Vec<(f32, u32)> = (0..32)
        .map(|at| (3.0, if at < 16 { 0 } else { 3 }))
        .collect();
    let regions = regions(&list);
    let moved = |loaded: &[(NodeId, f64)]| -> u64 {
        let moves = decide(&regions, [100, 0, 0, 0], loaded);
        assert!(moves.iter().all(|m| m.reason == Reason::Hot), "{moves:?}");
        moves.iter().map(|m| m.limit.0 / MIB).sum()
    };
    assert_eq!(moved(&[]), 32);
    // 180 instead of 340 ns: a quarter of nearly a half of what is there.
    assert_eq!(moved(&[(NodeId(0), 2.0)]), 3);
    // What is slow and loaded is left as fast as can be.
    assert_eq!(moved(&[(NodeId(3), 4.0)]), 32);
}

#[test]
fn where_bandwidth_is_short_what_is_written_is_worth_more() {
    let mut regions = regions(&[(3.0, 3), (3.0, 3)]);
    regions[1].writes(1.0);
    let first = |loaded| brief(&decide(&regions, [2, 0, 0, 0], loaded))[0];
    assert_eq!(first(&[]), (0, 3, 0, 2));
    assert_eq!(first(&[(NodeId(3), 4.0)]), (2, 3, 0, 2));
}

#[test]
fn what_is_read_gives_way_to_what_is_written_as_often() {
    let mut regions = regions(&[(3.0, 0), (3.0, 3)]);
    regions[1].writes(1.0);
    assert_eq!(decide(&regions, [0, 0, 0, 10], &[]), []);
    let moves = decide(&regions, [0, 0, 0, 10], &[(NodeId(3), 4.0)]);
    assert_eq!(brief(&moves), [(0, 0, 3, 2), (2, 3, 0, 2)]);
}

#[test]
fn of_what_gains_as_much_what_is_read_comes_before_what_is_written() {
    let mut regions = regions(&[(3.0, 3), (3.0, 3), (0.5, 3)]);
    let order = |regions: &[Region]| brief(&decide(regions, [2, 0, 0, 0], &[]));
    let (first, second) = ((0, 3, 0, 2), (2, 3, 0, 2));
    assert_eq!(order(&regions)[0], first);
    // Half of it is no more than mostly read.
    regions[0].writes(0.5);
    assert_eq!(order(&regions)[0], first);
    regions[0].writes(0.6);
    assert_eq!(order(&regions)[0], second);
    // But not before what gains more.
    regions[1].turns_hot(1.5);
    assert_eq!(order(&regions)[0], first);
}

proptest! {
    /// Whatever answers late, what is hot goes to where it is answered sooner; up and down are
    /// those of idle nodes.
    #[test]
    fn all_go_where_they_are_answered_sooner(
        list in prop::collection::vec((0.0_f32..3.0, 0_u32..4), 1..24),
        room in prop::array::uniform4(0_u64..40),
        node in 0_u32..4,
        factor in 1.01_f64..6.0,
    ) {
        const IDLE: [f64; 4] = [90.0, 145.0, 275.0, 340.0];
        let regions = regions(&list);
        let moves = decide(&regions, room, &[(NodeId(node), factor)]);
        let latency = |n: NodeId| {
            IDLE[n.0 as usize] * if n.0 == node { factor } else { 1.0 }
        };
        let mut gone = vec![0; list.len()];
        let mut room = room.map(|mib| i64::try_from(mib * MIB).unwrap());
        for m in &moves {
            match m.reason {
                Reason::Hot | Reason::Spread => prop_assert!(latency(m.to) < latency(m.from)),
                Reason::Room => {}
                Reason::Headroom | Reason::Shortage => prop_assert!(false, "nothing is lacking"),
                Reason::Written | Reason::Read => prop_assert!(false, "nobody was asked"),
            }
            let is_down = IDLE[m.to.0 as usize] > IDLE[m.from.0 as usize];
            let at = usize::try_from(m.range.start().0 / (2 * MIB)).unwrap();
            prop_assert_eq!(m.from.0, list[at].1);
            gone[at] += m.limit.0;
            prop_assert!(gone[at] <= 2 * MIB, "leaves twice");
            prop_assert_eq!(m.reason == Reason::Spread, is_down && m.reason != Reason::Room);
            let bytes = i64::try_from(m.limit.0).unwrap();
            room[m.to.0 as usize] -= bytes;
            room[m.from.0 as usize] += bytes;
            prop_assert!(room[m.to.0 as usize] >= 0, "overfilled");
        }
    }
}
