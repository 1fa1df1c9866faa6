use proptest::prelude::*;

use crate::tiering::observation::Share;
use crate::tiering::plan::{Move, Reason};
use crate::tiering::policy::testing::{self, MIB, Scene, brief, regions};
use crate::tiering::policy::{Adaptive, Budget};
use crate::tiering::region::Region;
use crate::tiering::settings::AdaptiveSettings;
use crate::units::Bytes;

const ALL: Budget = Budget {
    bytes: Bytes(u64::MAX),
};

/// With so many MiB of page cache on each node.
fn decide(regions: &[Region], room: [u64; 4], cache: [u64; 4]) -> Vec<Move> {
    let scene = Scene {
        cache,
        ..Scene::of(regions, room)
    };
    let mut adaptive = Adaptive::new(AdaptiveSettings::default());
    testing::decide(&mut adaptive, scene, ALL)
}

#[test]
fn page_cache_makes_room_where_nothing_colder_does() {
    let hot = regions(&[(3.0, 3), (3.0, 3), (3.0, 3)]);
    assert!(decide(&hot, [0; 4], [0; 4]).is_empty());
    let moves = decide(&hot, [0; 4], [4, 0, 0, 0]);
    assert_eq!(brief(&moves), [(0, 3, 0, 2), (2, 3, 0, 2)]);
    assert!(moves.iter().all(|m| m.reason == Reason::Hot));
    // Free memory first, and then as much of the cache as there is.
    let moves = decide(&hot, [2, 0, 0, 0], [3, 0, 0, 0]);
    assert_eq!(brief(&moves), [(0, 3, 0, 2), (2, 3, 0, 2), (4, 3, 0, 1)]);
    // The fastest node's, rather than room on the next one.
    let moves = decide(&hot, [0, 100, 0, 0], [2, 0, 0, 0]);
    assert_eq!(brief(&moves), [(0, 3, 0, 2), (2, 3, 1, 2), (4, 3, 1, 2)]);
}

#[test]
fn what_is_cold_gives_way_before_page_cache_does() {
    let regions = regions(&[(3.0, 3), (3.0, 3), (0.0, 0)]);
    let moves = decide(&regions, [0, 0, 10, 10], [10, 0, 0, 0]);
    assert_eq!(brief(&moves), [(4, 0, 2, 2), (0, 3, 0, 2), (2, 3, 0, 2)]);
}

#[test]
fn page_cache_gives_way_before_what_another_target_has_warm() {
    let share = |entry, floor| Share {
        entry,
        weight: None,
        floor: Bytes::from_mib(floor),
    };
    let (own, others) = (regions(&[(3.0, 3)]), regions(&[(3.0, 0)]));
    let decide = |cache| {
        let scene = Scene {
            cache: [cache, 0, 0, 0],
            ..Scene::of(&own, [0, 0, 0, 10])
        };
        let mut adaptive = Adaptive::new(AdaptiveSettings::default());
        let beside = [(&others[..], share(2, 0))];
        testing::decide_beside(&mut adaptive, scene, share(1, 2), &beside, ALL)
    };
    let from = |moves: &[Move]| moves.iter().map(|m| m.from.0).collect::<Vec<_>>();
    assert_eq!(from(&decide(0)), [0, 3]);
    assert_eq!(from(&decide(4)), [3]);
}

#[test]
fn what_is_cold_takes_no_page_cache() {
    let cold = regions(&[(0.0, 3), (0.0, 3)]);
    assert!(decide(&cold, [0; 4], [10; 4]).is_empty());
}

proptest! {
    #[test]
    fn no_more_comes_to_a_node_than_leaves_it_and_has_room(
        list in prop::collection::vec((0.0_f32..=3.0, 0_u32..4), 1..40),
        room in prop::array::uniform4(0_u64..20),
        cache in prop::array::uniform4(0_u64..20),
    ) {
        let regions = regions(&list);
        let room = room.map(|mib| mib / 2 * 2);
        let moves = decide(&regions, room, cache);
        for node in 0..4 {
            let sum = |is: fn(&Move) -> u32| -> u64 {
                let moves = moves.iter().filter(|m| is(m) == node);
                moves.map(|m| m.limit.0).sum()
            };
            let (came, left) = (sum(|m| m.to.0), sum(|m| m.from.0));
            let most = (room[node as usize] + cache[node as usize]) * MIB;
            prop_assert!(came <= left + most, "node {node}: {came} beside {left}: {:?}", brief(&moves));
        }
    }
}
