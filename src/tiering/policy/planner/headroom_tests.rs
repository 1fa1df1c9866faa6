use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::tiering::observation::{Sample, Tally, TargetId};
use crate::tiering::plan::{Direction, Move, Reason};
use crate::tiering::policy::testing::{self, MIB, Scene, brief, regions};
use crate::tiering::policy::{Adaptive, Budget, Done, Policy};
use crate::tiering::region::{Region, RegionMap, Thresholds};
use crate::tiering::report::PauseReason;
use crate::tiering::settings::AdaptiveSettings;
use crate::units::{Bytes, Nanos, NodeId, PageRange, Pid, VirtAddr};

fn adaptive() -> Adaptive {
    Adaptive::new(AdaptiveSettings::default())
}

fn mib(mib: u64) -> Budget {
    Budget {
        bytes: Bytes::from_mib(mib),
    }
}

const ALL: Budget = Budget {
    bytes: Bytes(u64::MAX),
};

/// Of a scene in which node 0 lacks so many MiB.
fn decide(regions: &[Region], room: [u64; 4], lacking: u64) -> Vec<Move> {
    let scene = Scene {
        lacking: [lacking, 0, 0, 0],
        ..Scene::of(regions, room)
    };
    testing::decide(&mut adaptive(), scene, ALL)
}

fn for_headroom(moves: &[Move]) -> impl Iterator<Item = &Move> {
    moves.iter().filter(|m| m.reason == Reason::Headroom)
}

fn sum<'a>(moves: impl Iterator<Item = &'a Move>) -> Bytes {
    moves.map(|m| m.limit).sum()
}

#[test]
fn what_is_cold_gives_back_what_is_lacking_one_tier_down() {
    let regions = regions(&[(3.0, 0), (0.0, 0), (0.0, 0), (0.0, 0), (0.0, 1)]);
    let moves = decide(&regions, [0, 10, 10, 10], 3);
    assert_eq!(brief(&moves), [(2, 0, 1, 2), (4, 0, 1, 1)]);
    for m in &moves {
        assert_eq!(
            (m.direction, m.reason),
            (Direction::Demotion, Reason::Headroom)
        );
    }
    assert!(decide(&regions, [0, 10, 10, 10], 0).is_empty());
    // Where the next tier is full, the one after it will do.
    let moves = decide(&regions, [0, 0, 10, 10], 2);
    assert_eq!(brief(&moves), [(2, 0, 2, 2)]);
    assert!(decide(&regions, [0; 4], 2).is_empty());
}

#[test]
fn what_is_accessed_stays_however_much_is_lacking() {
    // Below what is promoted, but all of it would be waited for.
    let warm = regions(&[(3.0, 0), (1.0, 0), (0.7, 0), (0.3, 0)]);
    assert!(decide(&warm, [0, 100, 100, 100], 100).is_empty());
    // Of a target that hardly waits for anything that would cost nothing, and what is warm
    // stays all the same.
    let scene = Scene {
        load: 1e-2,
        lacking: [100, 0, 0, 0],
        ..Scene::of(&warm, [0, 100, 100, 100])
    };
    let moves = testing::decide(&mut adaptive(), scene, ALL);
    assert!(moves.iter().all(|m| m.range.start().0 >= 4 * MIB));
}

#[test]
fn what_is_hardly_known_stays() {
    let after = |samples| {
        let mut regions = regions(&[(0.0, 0)]);
        regions[0].rest_on(samples);
        decide(&regions, [0, 10, 10, 10], 2).len()
    };
    // One sample in each epoch, the average of an epoch counting half: after one, two, three.
    assert_eq!([after(1.0), after(1.5), after(1.75)], [0, 0, 1]);
}

#[test]
fn slower_nodes_have_no_headroom_to_restore() {
    let regions = regions(&[(0.0, 0), (0.0, 1), (0.0, 2)]);
    let scene = Scene {
        lacking: [0, 10, 10, 10],
        ..Scene::of(&regions, [0, 0, 0, 10])
    };
    assert!(testing::decide(&mut adaptive(), scene, ALL).is_empty());
}

#[test]
fn what_is_hot_now_comes_before_what_may_be_allocated() {
    let regions = regions(&[(0.0, 0), (0.0, 0), (0.0, 0), (3.0, 3), (3.0, 3)]);
    let moves = decide(&regions, [0, 100, 100, 100], 4);
    // Two exchanges, and only then what is left, though more is lacking.
    let first = [(0, 0, 1, 2), (6, 3, 0, 2), (2, 0, 1, 2), (8, 3, 0, 2)];
    assert_eq!(brief(&moves[..4]), first);
    assert!(for_headroom(&moves[..4]).next().is_none());
    assert_eq!(brief(&moves[4..]), [(4, 0, 1, 2)]);
    assert_eq!(sum(for_headroom(&moves)), Bytes::from_mib(2));
}

#[test]
fn a_quarter_of_the_bytes_may_go_for_it() {
    let regions = regions(&[(0.0, 0); 40]);
    let scene = Scene {
        lacking: [80, 0, 0, 0],
        ..Scene::of(&regions, [0, 100, 100, 100])
    };
    let moves = testing::decide(&mut adaptive(), scene, mib(32));
    assert_eq!(sum(moves.iter()), Bytes::from_mib(8));
    // And of what the targets pay for: an idle one for nothing.
    let idle = Scene { load: 0.0, ..scene };
    assert!(testing::decide(&mut adaptive(), idle, ALL).is_empty());
}

#[test]
fn it_says_nothing_of_whether_exchanges_pay() {
    let regions = regions(&[(3.0, 0), (0.0, 0), (0.0, 0), (3.0, 3)]);
    let mut policy = adaptive();
    let scene = Scene {
        lacking: [2, 0, 0, 0],
        load: 1e-5,
        ..Scene::of(&regions, [0, 0, 100, 100])
    };
    let moves = testing::decide(&mut policy, scene, ALL);
    assert!(moves.iter().all(|m| m.reason == Reason::Headroom));
    assert!(!moves.is_empty());
    assert_eq!(policy.holds_back(), Some(PauseReason::NoGain));
}

#[test]
fn it_neither_grows_nor_shrinks_what_exchanges_may_move() {
    let settings = AdaptiveSettings {
        first_bytes: Bytes::from_mib(16),
        ..AdaptiveSettings::default()
    };
    let mut policy = Adaptive::new(settings);
    let (cold, hot) = ([(0.0, 0); 40], [(3.0, 3); 40]);
    let cold_only = regions(&cold);
    let mut done = Done::default();
    for epoch in 1..20 {
        let scene = Scene {
            epoch,
            done,
            lacking: [40, 0, 0, 0],
            ..Scene::of(&cold_only, [0, 100, 100, 100])
        };
        let moves = testing::decide(&mut policy, scene, ALL);
        assert_eq!(sum(moves.iter()), Bytes::from_mib(4), "{epoch}");
        done.given_back = sum(moves.iter());
        done.cost = Nanos(done.given_back.0 / 2);
    }
    let both = regions(&[cold, hot].concat());
    let scene = Scene {
        epoch: 20,
        ..Scene::of(&both, [0, 100, 100, 100])
    };
    let moves = testing::decide(&mut policy, scene, ALL);
    assert_eq!(sum(moves.iter()), Bytes::from_mib(16));
}

/// A target on nodes of which the fastest has so many MiB, of which 8 are to stay free.
struct World {
    map: RegionMap,
    counts: Vec<(PageRange, u8)>,
    size: i64,
    rest: [u64; 3],
}

const HEADROOM: i64 = 8;

impl World {
    /// Regions of 2 MiB that do not touch: (count, node).
    fn of(list: &[(u8, u32)], free: u64, rest: [u64; 3]) -> Self {
        let mut map = RegionMap::default();
        let range = |at: u64| {
            let start = at * 4 * MIB;
            PageRange::new(VirtAddr(start), VirtAddr(start + 2 * MIB)).unwrap()
        };
        let ranges: Vec<PageRange> = (0..list.len() as u64).map(range).collect();
        map.sync(&ranges, Bytes(2 * MIB));
        for (range, &(_, node)) in ranges.iter().zip(list) {
            map.record_count(*range, &[(NodeId(node), 512)]);
        }
        let on_first = list.iter().filter(|(_, node)| *node == 0).count();
        let counts = ranges.into_iter().zip(list.iter().map(|of| of.0)).collect();
        Self {
            map,
            counts,
            size: i64::try_from(2 * on_first as u64 + free).unwrap(),
            rest,
        }
    }

    fn watch(&mut self) {
        let seen = self.counts.iter().map(|&(range, accessed)| {
            let sample = Sample {
                target: TargetId(1),
                pid: Pid(1),
                addr: range.start(),
            };
            let tally = Tally {
                accessed,
                known: 3,
                ..Tally::default()
            };
            (sample, tally)
        });
        let seen: Vec<_> = seen.collect();
        self.map.adapt_to(&seen, 3, Thresholds::FOR_TESTS);
    }

    fn mib_on(&self, node: u32) -> i64 {
        let pages = self
            .map
            .regions()
            .iter()
            .map(|r| r.pages().on(NodeId(node)));
        i64::try_from(pages.sum::<u64>() / 256).unwrap()
    }

    fn free(&self) -> i64 {
        self.size - self.mib_on(0)
    }

    fn has_cold(&self) -> bool {
        let is_cold = |range| self.counts.iter().any(|&(of, c)| of == range && c == 0);
        let mut regions = self.map.regions().iter();
        regions.any(|r| r.pages().on(NodeId(0)) > 0 && is_cold(r.range()))
    }

    /// One epoch.
    fn turn(&mut self, policy: &mut Adaptive, epoch: u64) -> Vec<Move> {
        self.watch();
        let whole = |mib: i64| u64::try_from(mib.max(0)).unwrap();
        let [a, b, c] = self.rest;
        let scene = Scene {
            epoch,
            lacking: [whole(HEADROOM - self.free()), 0, 0, 0],
            ..Scene::of(self.map.regions(), [whole(self.free() - HEADROOM), a, b, c])
        };
        let moves = testing::decide(policy, scene, ALL);
        for m in &moves {
            let at = (epoch, m.direction);
            self.map
                .record_move(m.range, m.from, m.to, m.limit.pages(), at);
            for (node, sign) in [(m.from, 1_i64), (m.to, -1)] {
                if let Some(rest) = self.rest.get_mut((node.0 as usize).wrapping_sub(1)) {
                    *rest = rest
                        .checked_add_signed(sign * (m.limit.0 / MIB).cast_signed())
                        .unwrap();
                }
            }
        }
        moves
    }
}

#[test]
fn what_allocations_take_is_given_back_time_and_again_while_there_is_cold_memory() {
    // A MiB of the fastest node is taken in each epoch.
    let mut world = World::of(&[(0, 0); 16], 8, [100; 3]);
    let mut policy = adaptive();
    for epoch in 10..50 {
        world.size -= 1;
        world.turn(&mut policy, epoch);
        let lowest = if world.has_cold() { HEADROOM } else { 0 };
        // The first epochs do not know yet that it is cold.
        assert!(
            epoch < 14 || world.free() >= lowest,
            "{epoch}: {}",
            world.free()
        );
    }
    assert!(!world.has_cold());
}

#[test]
fn what_becomes_hot_after_it_was_demoted_is_promoted_once_it_has_rested() {
    let mut world = World::of(&[(3, 0), (0, 0), (0, 3)], 6, [100; 3]);
    let mut policy = adaptive();
    let mut epoch = 10;
    while for_headroom(&world.turn(&mut policy, epoch))
        .next()
        .is_none()
    {
        epoch += 1;
        assert!(epoch < 20, "never demoted");
    }
    world.counts[1].1 = 3;
    world.size += 4;
    let back = (epoch + 1..epoch + 20).find(|&epoch| {
        let moves = world.turn(&mut policy, epoch);
        moves.iter().any(|m| m.direction == Direction::Promotion)
    });
    let after = back.expect("promoted") - epoch;
    assert!((2..6).contains(&after), "{after}");
}

proptest! {
    #[test]
    fn it_is_bounded_and_nothing_hot_goes(
        list in prop::collection::vec((0.0_f32..=3.0, 0_u32..4), 1..40),
        cold in prop::collection::vec(0_u32..4, 0..20),
        room in prop::array::uniform4(0_u64..30),
        lacking in prop::array::uniform4(0_u64..30),
        budget in 0_u64..100,
    ) {
        let cold = cold.into_iter().map(|node| (0.0, node));
        let list: Vec<(f32, u32)> = list.into_iter().chain(cold).collect();
        let regions = regions(&list);
        let scene = Scene { lacking, ..Scene::of(&regions, room) };
        let moves = testing::decide(&mut adaptive(), scene, mib(budget));
        let all = sum(for_headroom(&moves));
        prop_assert!(all.0 <= budget * MIB / 4);
        prop_assert!(all.0 <= lacking[0] * MIB);
        // Others may be a page beyond it.
        prop_assert!(sum(moves.iter()).0 <= budget * MIB + 4096);
        for m in for_headroom(&moves) {
            let at = regions.iter().find(|r| r.range() == m.range).unwrap();
            prop_assert!(at.heat() < 0.75, "{}", at.heat());
            prop_assert_eq!((m.from, m.direction), (NodeId(0), Direction::Demotion));
        }
        // Whatever else is moved leaves the fastest node as full as before, or takes its room.
        let others = || moves.iter().filter(|m| m.reason != Reason::Headroom);
        let came = sum(others().filter(|m| m.to == NodeId(0)));
        let left = sum(others().filter(|m| m.from == NodeId(0)));
        prop_assert!(came.0 <= left.0 + room[0] * MIB);
    }

    #[test]
    fn on_what_stays_as_it_is_it_comes_to_rest_and_nothing_comes_back(
        list in prop::collection::vec((0_u8..=3, 0_u32..4), 1..40),
        free in 0_u64..16,
        rest in prop::array::uniform3(0_u64..60),
    ) {
        let mut world = World::of(&list, free, rest.map(|mib| mib / 2 * 2));
        let mut policy = adaptive();
        let mut demoted = BTreeSet::new();
        for epoch in 10..50 {
            let before = world.free();
            let moves = world.turn(&mut policy, epoch);
            prop_assert!(world.free() >= before.min(HEADROOM), "{epoch}: fills the headroom");
            for m in &moves {
                let page = m.range.start();
                match m.reason {
                    Reason::Headroom => {
                        prop_assert!(before < HEADROOM, "{epoch}: nothing is lacking");
                        demoted.insert(page);
                    }
                    Reason::Hot => prop_assert!(!demoted.contains(&page), "{epoch}: back again"),
                    _ => {}
                }
            }
            let again = for_headroom(&moves).count();
            prop_assert!(epoch < 40 || again == 0, "{epoch}: no rest");
        }
        let has_room = world.rest.iter().any(|&mib| mib > 0);
        prop_assert!(world.free() >= HEADROOM || !world.has_cold() || !has_room);
    }
}
