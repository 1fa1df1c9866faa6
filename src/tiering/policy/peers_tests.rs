use proptest::prelude::*;

use super::super::testing::{self, MIB, Scene, brief, regions};
use super::*;
use crate::tiering::observation::Share;

const ALL: [Peer; 7] = [IAL, HEAT, AGE, HEMEM, THERMOSTAT, AUTONUMA, AUTOTIERING];

fn decide(peer: Peer, list: &[(f32, u32)], room: [u64; 4]) -> Vec<(u64, u32, u32, u64)> {
    let budget = Budget {
        bytes: Bytes(u64::MAX),
    };
    let regions = regions(list);
    let scene = Scene::of(&regions, room);
    brief(&testing::decide(&mut PeerPolicy::new(peer), scene, budget))
}

#[test]
fn all_but_autonuma_exchange_hot_for_cold() {
    let list = [(0.0, 0), (3.0, 3)];
    for peer in ALL {
        let moves = decide(peer, &list, [0, 10, 10, 10]);
        let wanted: &[_] = match peer.name {
            "autonuma" => &[],
            // Its heat says that it belongs on the slowest.
            "heat" => &[(0, 0, 3, 2), (2, 3, 0, 2)],
            _ => &[(0, 0, 1, 2), (2, 3, 0, 2)],
        };
        assert_eq!(moves, wanted, "{}", peer.name);
    }
    assert_eq!(decide(AUTONUMA, &list, [10; 4]), [(2, 3, 0, 2)]);
}

#[test]
fn what_is_cold_goes_past_a_tier_that_is_full() {
    let list = [(0.0, 0), (3.0, 3)];
    for peer in [AGE, THERMOSTAT, IAL, HEMEM, AUTOTIERING] {
        let moves = decide(peer, &list, [0, 0, 10, 10]);
        assert_eq!(moves, [(0, 0, 2, 2), (2, 3, 0, 2)], "{}", peer.name);
    }
    // It belongs on one tier, and waits for that.
    assert_eq!(decide(HEAT, &list, [0, 10, 10, 0]), []);
}

#[test]
fn only_those_that_make_pages_fault_count_what_does() {
    let regions = regions(&[(3.0, 0), (3.0, 3), (0.0, 2)]);
    let budget = Budget {
        bytes: Bytes(u64::MAX),
    };
    for peer in ALL {
        let mut policy = PeerPolicy::new(peer);
        testing::decide(&mut policy, Scene::of(&regions, [0; 4]), budget);
        // Two regions of 512 pages.
        let wanted = if matches!(peer.order, Order::Window(_)) {
            1024.0
        } else {
            0.0
        };
        let faults = policy.take_hint_faults();
        assert!((faults - wanted).abs() < 1e-3, "{}: {faults}", peer.name);
        assert!(policy.take_hint_faults() <= 0.0, "{}", peer.name);
    }
}

#[test]
fn what_is_warm_is_hot_for_some() {
    let takes = |hotness: f32| -> Vec<&str> {
        let takes = |peer: &&Peer| !decide(**peer, &[(hotness, 3)], [10; 4]).is_empty();
        ALL.iter().filter(takes).map(|peer| peer.name).collect()
    };
    assert_eq!(takes(0.5), [""; 0]);
    assert_eq!(takes(1.2), ["ial", "heat", "age", "thermostat", "autonuma"]);
    assert_eq!(takes(3.0).len(), ALL.len());
}

#[test]
fn windows_and_lists_go_on_where_they_ended() {
    let regions = regions(&[(3.0, 3); 4]);
    let small = Peer {
        order: Order::Window(Bandwidth(4 * MIB / 10)),
        ..AUTOTIERING
    };
    let mut policy = PeerPolicy::new(small);
    let budget = Budget {
        bytes: Bytes(u64::MAX),
    };
    let mut turn = || {
        brief(&testing::decide(
            &mut policy,
            Scene::of(&regions, [100; 4]),
            budget,
        ))
    };
    assert_eq!(turn(), [(0, 3, 0, 2), (2, 3, 0, 2)]);
    assert_eq!(turn(), [(4, 3, 0, 2), (6, 3, 0, 2)]);
    assert_eq!(turn()[0], (0, 3, 0, 2));
}

#[test]
fn who_had_to_stop_goes_on_there() {
    let (first, second) = (regions(&[(3.0, 3); 2]), regions(&[(3.0, 3); 2]));
    let budget = Budget {
        bytes: Bytes(2 * MIB),
    };
    let mut policy = PeerPolicy::new(AGE);
    let mut turn = || {
        let scene = Scene::of(&first, [100; 4]);
        let beside = [(second.as_slice(), Share::default())];
        let moves = testing::decide_beside(&mut policy, scene, Share::default(), &beside, budget);
        let whose = moves.iter().map(|m| (m.target.0, m.range.start().0 / MIB));
        whose.collect::<Vec<_>>()
    };
    let turns: Vec<_> = (0..5).flat_map(|_| turn()).collect();
    assert_eq!(turns, [(1, 0), (1, 2), (2, 0), (2, 2), (1, 0)]);
}

#[test]
fn memtierd_moves_within_its_rate() {
    // A gigabyte per ten seconds.
    let moves = decide(HEAT, &[(3.0, 3); 600], [4000; 4]);
    let moved: u64 = moves.iter().map(|m| m.3).sum();
    assert!((952..=954).contains(&moved), "{moved}");
}

proptest! {
    #[test]
    fn no_node_is_filled_beyond_its_room(
        list in prop::collection::vec((0.0_f32..=3.0, 0_u32..4), 1..40),
        room in prop::array::uniform4(0_u64..30),
    ) {
        for peer in ALL {
            let room = room.map(|mib| mib / 2 * 2);
            let mut after = room.map(|mib| i64::try_from(mib).unwrap());
            for (_, from, to, mib) in decide(peer, &list, room) {
                let mib = i64::try_from(mib).unwrap();
                after[to as usize] -= mib;
                prop_assert!(after[to as usize] >= 0, "{}: {after:?}", peer.name);
                after[from as usize] += mib;
            }
        }
    }
}
