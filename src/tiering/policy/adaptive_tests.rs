use proptest::prelude::*;

use super::super::testing::{self, MIB, Scene, brief, regions};
use super::*;
use crate::tiering::observation::{Sample, Share, Tally, TargetId};
use crate::tiering::plan::{Direction, Reason};
use crate::tiering::region::{Region, RegionMap, Thresholds};
use crate::units::{Nanos, NodeId, PageRange, Pid, VirtAddr};

fn adaptive() -> Adaptive {
    Adaptive::new(AdaptiveSettings::default())
}

const ALL: Budget = Budget {
    bytes: Bytes(u64::MAX),
};

fn decide(regions: &[Region], room: [u64; 4]) -> Vec<Move> {
    testing::decide(&mut adaptive(), Scene::of(regions, room), ALL)
}

#[test]
fn hot_goes_straight_to_the_fastest_and_cold_stays() {
    let regions = regions(&[(3.0, 3), (0.0, 3), (2.8, 2), (0.0, 1)]);
    let moves = decide(&regions, [100; 4]);
    assert_eq!(brief(&moves), [(0, 3, 0, 2), (4, 2, 0, 2)]);
}

#[test]
fn what_gains_most_goes_first_and_that_is_not_what_is_hottest() {
    let regions = regions(&[(3.0, 1), (2.9, 3)]);
    let budget = Budget {
        bytes: Bytes(2 * MIB),
    };
    let moves = testing::decide(&mut adaptive(), Scene::of(&regions, [100; 4]), budget);
    assert_eq!(brief(&moves), [(2, 3, 0, 2)]);
}

#[test]
fn what_is_worth_less_gives_way_one_tier_down() {
    let regions = regions(&[(1.0, 0), (0.0, 0), (3.0, 3)]);
    let moves = decide(&regions, [0, 10, 10, 10]);
    assert_eq!(brief(&moves), [(2, 0, 1, 2), (4, 3, 0, 2)]);
    assert_eq!(moves[0].reason, Reason::Room);
}

#[test]
fn of_what_is_cold_what_is_usually_hot_gives_way_last() {
    let mut regions = regions(&[(0.0, 0), (0.0, 0), (3.0, 3), (3.0, 3)]);
    regions[0].usually(2.0);
    regions[1].usually(0.5);
    let one = Budget {
        bytes: Bytes(4 * MIB),
    };
    let room = [0, 10, 10, 10];
    let moves = testing::decide(&mut adaptive(), Scene::of(&regions, room), one);
    assert_eq!(brief(&moves)[0], (2, 0, 1, 2));
    // However long it was hot, at last it does.
    regions[0].usually(3.0);
    let moves = brief(&decide(&regions, room));
    assert!(moves.contains(&(0, 0, 1, 2)), "{moves:?}");
}

#[test]
fn where_the_fastest_holds_what_is_as_hot_the_next_will_do() {
    let regions = regions(&[(3.0, 0), (3.0, 3)]);
    let moves = decide(&regions, [0, 10, 10, 10]);
    assert_eq!(brief(&moves), [(2, 3, 1, 2)]);
    assert!(decide(&regions, [0; 4]).is_empty());
}

#[test]
fn where_hot_pages_lie_among_cold_ones_only_what_is_hot_all_over_is_moved() {
    let mut regions = regions(&[(3.0, 3), (1.5, 3), (0.0, 0), (0.0, 0)]);
    for region in &mut regions {
        region.rest_on(4.0);
    }
    let scene = Scene::of(&regions, [0, 10, 10, 10]);
    let moved = |prior| {
        let scene = Scene { prior, ..scene };
        brief(&testing::decide(&mut adaptive(), scene, ALL))
    };
    assert_eq!(moved(9.0), [(4, 0, 1, 2), (0, 3, 0, 2)]);
    assert_eq!(moved(0.5).len(), 4);
}

#[test]
fn what_may_be_as_hot_by_chance_does_not_give_way() {
    let mut regions = regions(&[(1.5, 0), (2.0, 3)]);
    assert_eq!(decide(&regions, [0, 0, 0, 10]).len(), 2);
    for region in &mut regions {
        region.rest_on(2.0);
    }
    assert!(decide(&regions, [0, 0, 0, 10]).is_empty());
}

#[test]
fn what_is_hot_for_a_moment_is_moved_for_a_while_only() {
    // So that one region is much of what may be moved, and tells.
    let mut policy = Adaptive::new(AdaptiveSettings {
        first_bytes: Bytes::from_mib(4),
        ..AdaptiveSettings::default()
    });
    let is_quick = |policy: &Adaptive| policy.pace() < 1.0;
    assert!(is_quick(&policy));
    let mut moved = Vec::new();
    for epoch in 1..40 {
        // Another one each time.
        let list: Vec<(f32, u32)> = (0..8)
            .map(|at| (if at == epoch % 8 { 3.0 } else { 0.0 }, 3))
            .collect();
        let regions = regions(&list);
        let scene = Scene {
            epoch,
            ..Scene::of(&regions, [2, 0, 0, 100])
        };
        moved.push(testing::decide(&mut policy, scene, ALL).len());
    }
    assert_eq!(moved[0], 1);
    assert!(moved[10..].iter().all(|&moves| moves == 0), "{moved:?}");
    assert_eq!(policy.holds_back(), Some(PauseReason::NoGain));
    assert!(!is_quick(&policy));
    // It goes on looking: what stays hot is moved in the end.
    let regions = regions(&[(3.0, 3), (0.0, 3)]);
    let mut decided = |epoch| {
        let scene = Scene {
            epoch,
            ..Scene::of(&regions, [2, 0, 0, 100])
        };
        let moves = testing::decide(&mut policy, scene, ALL).len();
        (moves, is_quick(&policy))
    };
    let again = (40..60).find(|&epoch| decided(epoch).0 > 0);
    let again = again.expect("something is moved");
    // And once that is known to stay hot, it looks more often again.
    assert!((again + 1..again + 4).any(|epoch| decided(epoch).1));
}

#[test]
fn epochs_are_as_configured_where_nodes_answer_late_or_little_is_to_be_gained() {
    let hot = regions(&[(3.0, 3), (0.0, 3)]);
    let pace = |policy: &mut Adaptive, scene| {
        testing::decide(policy, scene, ALL);
        policy.pace()
    };
    let mut policy = adaptive();
    let idle = Scene::of(&hot, [2, 0, 0, 100]);
    assert!(pace(&mut policy, idle) < 1.0);
    let late = [(NodeId(0), 3.0)];
    let loaded = Scene {
        loaded: &late,
        ..idle
    };
    assert!(pace(&mut policy, loaded) >= 1.0);
    // What is to be exchanged is a little hotter.
    let lukewarm = regions(&[(0.9, 3), (0.0, 3)]);
    assert!(pace(&mut adaptive(), Scene::of(&lukewarm, [2, 0, 0, 100])) >= 1.0);
    // All of it lies where it should, or all but a little. One region is little beside forty, and all
    // there is where it is the only one.
    let there = regions(&[(3.0, 0), (0.0, 3)]);
    let mut most = vec![(3.0, 0); 40];
    most.extend([(3.0, 3), (0.0, 3)]);
    for (regions, after) in [(&there, false), (&regions(&most), false), (&hot, true)] {
        let mut policy = adaptive();
        let mut is_quick = |epoch| {
            let scene = Scene {
                epoch,
                ..Scene::of(regions, [2, 0, 0, 100])
            };
            pace(&mut policy, scene) < 1.0
        };
        let paces: Vec<bool> = (20..30).map(&mut is_quick).collect();
        assert!(paces[0] && paces[9] == after, "{paces:?}");
    }
}

#[test]
fn the_budget_grows_while_all_of_it_is_moved_and_that_lasts() {
    let settings = AdaptiveSettings {
        first_bytes: Bytes::from_mib(4),
        moving_limit: 1.0,
        ..AdaptiveSettings::default()
    };
    let mut policy = Adaptive::new(settings);
    let regions = regions(&[(3.0, 3); 400]);
    let mut planned = Bytes::ZERO;
    let mut sizes = Vec::new();
    for (epoch, deferred) in [(1, false), (2, false), (3, false), (4, true), (5, false)] {
        let moved = if deferred {
            Bytes::from_mib(200)
        } else {
            planned
        };
        let done = Done {
            moved,
            deferred: planned.saturating_sub(moved),
            cost: Nanos(moved.0 / 4),
            ..Done::default()
        };
        let scene = Scene {
            epoch,
            done,
            ..Scene::of(&regions, [1000; 4])
        };
        let moves = testing::decide(&mut policy, scene, ALL);
        planned = moves.iter().map(|m| m.limit).sum();
        sizes.push(planned.0 / MIB);
    }
    // In the third there was time for 200 of 256; 800 are all that could move.
    assert_eq!(sizes, [4, 32, 256, 200, 800]);
    // A target that hardly runs any more pays for little.
    let mut last = Bytes::ZERO;
    for epoch in 6..60 {
        let scene = Scene {
            epoch,
            load: 1e-4,
            ..Scene::of(&regions, [1000; 4])
        };
        let moves = testing::decide(&mut policy, scene, ALL);
        last = moves.iter().map(|m| m.limit).sum();
    }
    assert!(last < Bytes::from_mib(4), "{last}");
}

/// What is planned in each epoch, in MiB, of a target whose regions are as `heat` says, where
/// `moved` tells how much of a plan was moved. Nothing stays where it was moved.
fn budgets(
    epochs: std::ops::Range<u64>,
    heat: impl Fn(u64) -> Vec<(f32, u32)>,
    moved: impl Fn(Bytes) -> Bytes,
) -> Vec<u64> {
    let settings = AdaptiveSettings {
        first_bytes: Bytes::from_mib(4),
        moving_limit: 1.0,
        ..AdaptiveSettings::default()
    };
    let mut policy = Adaptive::new(settings);
    let mut done = Done::default();
    epochs
        .map(|epoch| {
            let regions = regions(&heat(epoch));
            let scene = Scene {
                epoch,
                done,
                ..Scene::of(&regions, [1000; 4])
            };
            let moves = testing::decide(&mut policy, scene, ALL);
            let planned: Bytes = moves.iter().map(|m| m.limit).sum();
            done = Done {
                moved: moved(planned),
                deferred: Bytes::ZERO,
                cost: Nanos(planned.0 / 4),
                ..Done::default()
            };
            planned.0 / MIB
        })
        .collect()
}

#[test]
fn the_budget_does_not_grow_on_what_was_not_moved() {
    let hot = |_| vec![(3.0, 3); 400];
    let all = budgets(1..6, hot, |planned| planned);
    assert_eq!(all, [4, 32, 256, 800, 800]);
    // Every node is full: what would have lasted says nothing of the budget.
    assert_eq!(budgets(1..6, hot, |_| Bytes::ZERO), [4; 5]);
}

#[test]
fn one_plan_that_disappoints_does_not_take_the_budget_away_for_ever() {
    let heat = |epoch| {
        let all = if (4..5).contains(&epoch) { 3.0 } else { 0.0 };
        let big = if epoch < 4 { 3.0 } else { all };
        let big = if epoch > 12 { 3.0 } else { big };
        let mut list = vec![(big, 3); 400];
        list.push((3.0, 3));
        list
    };
    let planned = budgets(1..16, heat, |planned| planned);
    // The plan of the fourth epoch is gone in the fifth; one region goes on.
    assert_eq!(planned[4..12], [2; 8], "{planned:?}");
    // It is halved for that plan, and not again for each one after it.
    assert!(planned[12] >= 100, "{planned:?}");
}

#[test]
fn a_page_that_was_dear_does_not_keep_a_hot_set_where_it_is() {
    let mut policy = adaptive();
    let regions = regions(&[(3.0, 3), (0.0, 0)]);
    for epoch in 1..100 {
        // A page each time, looked for in all of the target.
        let done = Done {
            moved: Bytes(PAGE_BYTES),
            deferred: Bytes::ZERO,
            cost: Nanos::from_millis(50),
            ..Done::default()
        };
        let scene = Scene {
            epoch,
            done,
            ..Scene::of(&regions, [0, 10, 10, 10])
        };
        assert_eq!(testing::decide(&mut policy, scene, ALL).len(), 2, "{epoch}");
    }
}

#[test]
fn what_was_moved_back_rests_longer_each_time() {
    let range = PageRange::new(VirtAddr(0), VirtAddr(2 * MIB)).unwrap();
    let mut map = RegionMap::default();
    map.sync(&[range], Bytes(2 * MIB));
    map.record_count(range, &[(NodeId(3), 512)]);
    let sample = Sample {
        target: TargetId(1),
        pid: Pid(1),
        addr: VirtAddr(0),
    };
    let tally = Tally {
        accessed: 3,
        known: 3,
        ..Tally::default()
    };
    for _ in 0..8 {
        map.adapt_to(&[(sample, tally)], 3, Thresholds::FOR_TESTS);
    }
    let (up, down) = (Direction::Promotion, Direction::Demotion);
    // As soon as it is promoted it has to go again.
    let mut promoted = Vec::new();
    let mut policy = adaptive();
    for epoch in 10..200 {
        let scene = Scene {
            epoch,
            ..Scene::of(map.regions(), [10; 4])
        };
        if !testing::decide(&mut policy, scene, ALL).is_empty() {
            map.record_move(range, NodeId(3), NodeId(0), 512, (epoch, up));
            map.record_move(range, NodeId(0), NodeId(3), 512, (epoch, down));
            promoted.push(epoch);
        }
        map.adapt_to(&[(sample, tally)], 3, Thresholds::FOR_TESTS);
    }
    let rests: Vec<u64> = promoted.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(rests, [4, 16, 32, 32, 32, 32, 32]);
    // That is not for ever.
    for _ in 0..200 {
        map.adapt_to(&[(sample, tally)], 3, Thresholds::FOR_TESTS);
    }
    assert_eq!(map.regions()[0].flips(), 0);
}

#[test]
fn what_does_not_last_does_not_take_the_place_of_what_does() {
    let mut policy = adaptive();
    // Much hotter for a moment each, and of all that may be moved; less hot for long.
    let mut moved = Vec::new();
    for epoch in 1..60_usize {
        let hot = |at: usize| if at / 100 == epoch % 8 { 3.0 } else { 0.0 };
        let mut list: Vec<(f32, u32)> = (0..800).map(|at| (hot(at), 3)).collect();
        list.extend([(1.5, 3); 4]);
        let regions = regions(&list);
        let scene = Scene {
            epoch: epoch as u64,
            ..Scene::of(&regions, [4000, 0, 0, 0])
        };
        let moves = testing::decide(&mut policy, scene, ALL);
        let lasts = |m: &&Move| m.range.start().0 >= 800 * 2 * MIB;
        moved.push((moves.len(), moves.iter().filter(lasts).count()));
    }
    assert!(
        moved[40..].iter().all(|&moves| moves == (4, 4)),
        "{moved:?}"
    );
}

#[test]
fn what_one_target_does_says_nothing_of_another() {
    let mut policy = adaptive();
    let lasting = regions(&[(3.0, 3), (3.0, 3)]);
    for epoch in 1..60_usize {
        let hot = |at: usize| if at == epoch % 8 { 3.0 } else { 0.0 };
        let list: Vec<(f32, u32)> = (0..8).map(|at| (hot(at), 3)).collect();
        let jumping = regions(&list);
        let scene = Scene {
            epoch: epoch as u64,
            ..Scene::of(&jumping, [100, 0, 0, 0])
        };
        let beside = [(lasting.as_slice(), Share::default())];
        let moves = testing::decide_beside(&mut policy, scene, Share::default(), &beside, ALL);
        if epoch > 40 {
            let whose: Vec<TargetId> = moves.iter().map(|m| m.target).collect();
            assert_eq!(whose, [TargetId(2); 2], "{epoch}");
        }
    }
}

#[test]
fn what_is_not_worth_moving_of_one_target_does_not_shrink_the_budget_of_another() {
    let mut policy = Adaptive::new(AdaptiveSettings {
        first_bytes: Bytes::from_mib(4),
        moving_limit: 1.0,
        ..AdaptiveSettings::default()
    });
    let lasting = regions(&[(3.0, 3); 400]);
    let mut done = Done::default();
    let mut most = Bytes::ZERO;
    for epoch in 1..60_usize {
        let hot = |at: usize| if at / 50 == epoch % 8 { 3.0 } else { 0.0 };
        let list: Vec<(f32, u32)> = (0..400).map(|at| (hot(at), 3)).collect();
        let jumping = regions(&list);
        let scene = Scene {
            epoch: epoch as u64,
            done,
            ..Scene::of(&jumping, [2000, 0, 0, 0])
        };
        // There is nothing to do for it until the other has been understood.
        let hot_now = if epoch > 40 {
            lasting.as_slice()
        } else {
            &lasting[..1]
        };
        let beside = [(hot_now, Share::default())];
        let moves = testing::decide_beside(&mut policy, scene, Share::default(), &beside, ALL);
        let planned: Bytes = moves.iter().map(|m| m.limit).sum();
        done = Done {
            moved: planned,
            deferred: Bytes::ZERO,
            cost: Nanos(planned.0 / 4),
            ..Done::default()
        };
        if epoch > 40 {
            most = most.max(planned);
        }
    }
    assert!(most >= Bytes::from_mib(800), "{most}");
}

#[test]
fn what_was_too_dear_is_tried_again() {
    let mut policy = adaptive();
    let regions = regions(&[(3.0, 3); 40]);
    let mut tried = Vec::new();
    let mut done = Done::default();
    for epoch in 1..400 {
        let scene = Scene {
            epoch,
            done,
            ..Scene::of(&regions, [100, 0, 0, 0])
        };
        let moves = testing::decide(&mut policy, scene, ALL);
        // Ten seconds for each MiB: far more than it ever gains.
        let moved: Bytes = moves.iter().map(|m| m.limit).sum();
        done = Done {
            moved,
            deferred: Bytes::ZERO,
            cost: Nanos::from_secs(10 * moved.0 / MIB),
            ..Done::default()
        };
        if !moves.is_empty() {
            tried.push(epoch);
        }
    }
    // Now and then.
    assert!(tried.iter().any(|&epoch| epoch > 200), "{tried:?}");
    assert!(tried.len() < 60, "{tried:?}");
}

proptest! {
    #[test]
    fn no_more_is_moved_than_the_budget_and_a_folio(
        list in prop::collection::vec((0.0_f32..=3.0, 0_u32..4), 1..40),
        room in prop::array::uniform4(0_u64..30),
        mib in 0_u64..40,
    ) {
        let budget = Budget { bytes: Bytes(mib * MIB) };
        let regions = regions(&list);
        let scene = Scene::of(&regions, room);
        let moves = testing::decide(&mut adaptive(), scene, budget);
        let moved: u64 = moves.iter().map(|m| m.limit.0).sum();
        // Of pages of 4 KiB.
        prop_assert!(moved <= mib * MIB + 4096, "{moved}");
    }

    #[test]
    fn plans_can_be_carried_out_and_come_to_rest(
        list in prop::collection::vec((0.0_f32..=3.0, 0_u32..4), 1..40),
        room in prop::array::uniform4(0_u64..30),
    ) {
        testing::comes_to_rest(decide, &list, room)?;
    }

    #[test]
    fn each_demotion_is_followed_by_what_it_makes_room_for(
        list in prop::collection::vec((0.0_f32..=3.0, 0_u32..4), 1..40),
        room in prop::array::uniform4(0_u64..30),
    ) {
        let moves = decide(&regions(&list), room);
        for (at, m) in moves.iter().enumerate() {
            if m.direction == Direction::Demotion {
                let next = &moves[at + 1];
                prop_assert_eq!((next.direction, next.to), (Direction::Promotion, m.from));
            }
        }
    }
}

/// Of an entry with a weight, or with a floor of so many MiB.
fn share(entry: u32, weight: Option<u16>, floor: u64) -> Share {
    Share {
        entry,
        weight,
        floor: Bytes::from_mib(floor),
    }
}

/// MiB that go to node 0, and that leave it, of each of two targets.
fn went(moves: &[Move]) -> [(u64, u64); 2] {
    [1, 2].map(|target| {
        let of_it = || moves.iter().filter(|m| m.target == TargetId(target));
        let sum = |node: &dyn Fn(&Move) -> NodeId| {
            let those = of_it().filter(|m| node(m) == NodeId(0));
            those.map(|m| m.limit.0 / MIB).sum()
        };
        (sum(&|m| m.to), sum(&|m| m.from))
    })
}

#[test]
fn weights_divide_the_fastest_node() {
    // Equally hot, and the second one was there first.
    let (late, early) = (regions(&[(3.0, 3); 16]), regions(&[(3.0, 0); 8]));
    let plan = |shares: [Share; 2]| {
        let scene = Scene::of(&late, [0, 100, 100, 100]);
        let beside = [(early.as_slice(), shares[1])];
        went(&testing::decide_beside(
            &mut adaptive(),
            scene,
            shares[0],
            &beside,
            ALL,
        ))
    };
    // By gain alone equals are not exchanged, nor where all are one entry's.
    assert_eq!(plan([share(0, None, 0), share(1, None, 0)]), [(0, 0); 2]);
    assert_eq!(
        plan([share(0, Some(3), 0), share(0, Some(3), 0)]),
        [(0, 0); 2]
    );
    assert_eq!(
        plan([share(0, Some(3), 0), share(1, Some(1), 0)]),
        [(12, 0), (0, 12)]
    );
    // One that names no weight has one.
    assert_eq!(
        plan([share(0, Some(3), 0), share(1, None, 0)]),
        [(12, 0), (0, 12)]
    );
    assert_eq!(
        plan([share(0, None, 6), share(1, None, 0)]),
        [(6, 0), (0, 6)]
    );
    assert_eq!(
        plan([share(0, None, 6), share(1, None, 14)]),
        [(4, 0), (0, 4)]
    );
}

#[test]
fn who_has_its_part_is_left_alone_whoever_gains_more() {
    // Six to two, as it is due. Each of the second one's few is waited for longer.
    let first = regions(&[(3.0, 0), (3.0, 0), (3.0, 0), (3.0, 3), (3.0, 3)]);
    let second = regions(&[(1.5, 0), (1.5, 3), (1.5, 3)]);
    let plan = |weights: [Option<u16>; 2]| {
        let scene = Scene::of(&first, [0, 100, 100, 100]);
        let beside = [(second.as_slice(), share(1, weights[1], 0))];
        let mut policy = adaptive();
        went(&testing::decide_beside(
            &mut policy,
            scene,
            share(0, weights[0], 0),
            &beside,
            ALL,
        ))
    };
    assert_eq!(plan([Some(3), Some(1)]), [(0, 0); 2]);
    assert_eq!(plan([None, None]), [(0, 4), (4, 0)]);
}

#[test]
fn what_is_cold_belongs_to_nobody() {
    let first = regions(&[(3.0, 3), (3.0, 3)]);
    let second = regions(&[(0.0, 0), (0.0, 0)]);
    let scene = Scene::of(&first, [0, 100, 100, 100]);
    let beside = [(second.as_slice(), share(1, Some(9), 100))];
    let moves = testing::decide_beside(&mut adaptive(), scene, share(0, Some(1), 0), &beside, ALL);
    assert_eq!(went(&moves), [(4, 0), (0, 4)]);
}
