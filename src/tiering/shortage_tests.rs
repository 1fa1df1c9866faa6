use proptest::prelude::*;

use super::leaving::{Holder, Leaving};
use super::*;
use crate::tiering::observation::{Sample, Tally, TargetId};
use crate::tiering::plan::{Direction, Move, MoveResult, PageCounts};
use crate::tiering::region::{RegionMap, Thresholds};
use crate::tiering::tier::{Figure, MemoryKind, Node, Path, Source, TierTable};
use crate::units::{PageRange, Pid, VirtAddr};

const MIB: u64 = 1 << 20;
const NODE: NodeId = NodeId(0);

fn mib(mib: u64) -> Bytes {
    Bytes::from_mib(mib)
}

fn glance(room: u64) -> Glance {
    Glance {
        node: NODE,
        total: mib(800),
        room: mib(room),
    }
}

/// What is lacking of 50 MiB, and when it is looked again, with so much left after so many milliseconds each.
fn watched(looks: &[(u64, u64)]) -> (Vec<(u64, u64)>, u64) {
    let mut watch = Watch::default();
    // Once it had as much.
    watch.follow(Nanos::ZERO, &[glance(500)]);
    watch.forget_taken();
    for &(ms, room) in looks {
        watch.follow(Nanos::from_millis(ms), &[glance(room)]);
    }
    let lacks = watch.lacks(least).into_iter();
    let next = watch.next(least).unwrap();
    let last = Nanos::from_millis(looks[looks.len() - 1].0);
    (
        lacks.map(|l| (l.cold.0 / MIB, l.hot.0 / MIB)).collect(),
        next.saturating_sub(last).0 / 1_000_000,
    )
}

#[test]
fn half_a_second_of_a_burst_is_kept_and_an_eighth_of_a_small_node() {
    assert_eq!(least(mib(64 << 10)), mib(50));
    assert_eq!(least(mib(400)), mib(50));
    assert_eq!(least(mib(80)), mib(10));
    assert_eq!(least(Bytes::ZERO), Bytes::ZERO);
}

#[test]
fn what_is_cold_goes_for_an_eighth_of_it_and_what_is_hot_for_a_half() {
    assert_eq!(watched(&[(0, 44)]).0, []);
    assert_eq!(watched(&[(0, 43)]).0, [(7, 0)]);
    assert_eq!(watched(&[(0, 26)]).0, [(24, 0)]);
    // Three quarters of it come back.
    assert_eq!(watched(&[(0, 20)]).0, [(30, 17)]);
    assert_eq!(watched(&[(0, 0)]).0, [(50, 37)]);
}

#[test]
fn a_node_that_never_had_as_much_is_owed_less() {
    let mut watch = Watch::default();
    let mut lacks = |ms: u64, room: u64| {
        watch.follow(Nanos::from_millis(ms), &[glance(room)]);
        watch.forget_taken();
        let lacks = watch.lacks(least);
        (lacks.len(), watch.owed(NODE, least).0 / MIB)
    };
    assert_eq!(lacks(0, 12), (0, 0));
    assert_eq!(lacks(1000, 0), (0, 0));
    assert_eq!(lacks(2000, 30), (0, 30));
    assert_eq!(lacks(3000, 90), (0, 50));
    assert_eq!(lacks(4000, 30), (1, 50));
}

#[test]
fn what_others_take_is_held_to_go_on_for_a_quarter_of_a_second() {
    // 100 MiB a second: 25 until then.
    assert_eq!(watched(&[(0, 80), (100, 70)]).0, []);
    assert_eq!(watched(&[(0, 78), (100, 68)]).0, [(7, 0)]);
    assert_eq!(watched(&[(0, 50), (100, 40)]).0, [(35, 22)]);
    // Halved after half a second in which nobody took any.
    assert_eq!(watched(&[(0, 50), (100, 40), (600, 40)]).0, [(22, 0)]);
    // No more than an eighth of the node.
    assert_eq!(watched(&[(0, 400), (100, 100)]).0, [(50, 37)]);
}

#[test]
fn it_is_looked_at_as_often_as_a_burst_could_matter() {
    assert_eq!(watched(&[(0, 500)]).1, 1000);
    assert_eq!(watched(&[(0, 75)]).1, 500);
    assert_eq!(watched(&[(0, 50)]).1, 250);
    assert_eq!(watched(&[(0, 30)]).1, 100);
    // What is in need at once.
    assert_eq!(watched(&[(0, 20)]).1, 20);
    // 400 MiB a second are held to become twice as many.
    assert_eq!(watched(&[(0, 385), (100, 345)]).1, 400);
    assert_eq!(Watch::default().next(least), None);
}

#[test]
fn what_we_gave_or_moved_is_not_what_others_took() {
    let mut watch = Watch::default();
    let at = |watch: &mut Watch, ms: u64, room: u64| {
        watch.follow(Nanos::from_millis(ms), &[glance(room)]);
        watch.state_of(NODE).unwrap().1.0 / MIB
    };
    at(&mut watch, 0, 100);
    watch.gave(NODE, mib(20));
    assert_eq!(watch.state_of(NODE).unwrap().0, mib(120));
    assert_eq!(at(&mut watch, 1000, 110), 10);
    watch.forget_taken();
    assert_eq!(at(&mut watch, 2000, 50), 10);
    // What is gone is forgotten, and what is stuck lacks nothing until the next decision.
    at(&mut watch, 2500, 1);
    watch.stuck(NODE);
    assert_eq!(watch.lacks(least), []);
    assert_eq!(watch.next(least), Some(Nanos::from_millis(3500)));
    watch.only(&[NODE]);
    assert_eq!(watch.lacks(least).len(), 1);
    watch.only(&[NodeId(1)]);
    assert_eq!(watch.lacks(least), []);
}

#[test]
fn nothing_comes_to_a_node_for_half_a_minute_and_longer_each_time() {
    let mut rests = Rests::default();
    let mut at = |second: u64, moved: u64| {
        let map = map(&[(0, 0)]);
        let mut leaving = leaving(&map);
        let moves = leaving.plan(&lack(2, 2), &room([0, 9, 0, 0]));
        let results = moves.into_iter().map(|m| result(m, moved)).collect();
        let outcome = MoveOutcome {
            results,
            ..MoveOutcome::default()
        };
        rests.follow(Nanos::from_secs(second), &outcome);
        rests.holds(NODE)
    };
    assert!(!at(5, 0), "nothing left it");
    assert!(at(10, 1) && at(39, 0) && !at(40, 0));
    assert!(at(100, 1) && at(110, 1) && at(169, 0) && !at(170, 0));
    assert!(!rests.holds(NodeId(1)));
}

/// Regions of 2 MiB beside each other: (accesses of 3, node).
fn map(list: &[(u8, u32)]) -> RegionMap {
    let mut map = RegionMap::default();
    let range = |at: u64| {
        let start = VirtAddr(at * 4 * MIB);
        PageRange::new(start, VirtAddr(start.0 + 2 * MIB)).unwrap()
    };
    let ranges: Vec<PageRange> = (0..list.len() as u64).map(range).collect();
    map.sync(&ranges, mib(2));
    let seen = ranges.iter().zip(list).map(|(range, &(accessed, _))| {
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
    map.adapt_to(&seen.collect::<Vec<_>>(), 3, Thresholds::FOR_TESTS);
    for (range, &(_, node)) in ranges.iter().zip(list) {
        map.record_count(*range, &[(NodeId(node), 512)]);
    }
    map
}

fn tiers(allowed: Option<&[NodeId]>) -> crate::tiering::tier::TierView {
    let nodes: Vec<Node> = (0..4)
        .map(|id| Node {
            id: NodeId(id),
            kind: MemoryKind::Unknown,
            size: mib(800),
            cpus: if id == 0 { vec![0] } else { Vec::new() },
            kernel_tier: None,
        })
        .collect();
    let path = |(to, ns): (u32, u64)| Path {
        from: NODE,
        to: NodeId(to),
        distance: 10,
        latency: Figure {
            value: Nanos(ns),
            source: Source::Config,
        },
        bandwidth: None,
    };
    let paths = (0..).zip([90, 145, 275, 340]).map(path).collect();
    let table = TierTable::new(TierTable::default_tiers(&nodes), nodes, paths).unwrap();
    table.view(&[(NODE, 1.0)], allowed)
}

fn holder<'a>(map: &'a RegionMap, allowed: Option<&[NodeId]>) -> Holder<'a> {
    Holder {
        id: TargetId(1),
        pid: Pid(1),
        tiers: tiers(allowed),
        regions: map.regions(),
    }
}

const ALL: [NodeId; 4] = [NodeId(0), NodeId(1), NodeId(2), NodeId(3)];

fn leaving(map: &RegionMap) -> Leaving {
    Leaving::of(&[holder(map, None)], 3, &[], &ALL, Vec::new())
}

fn lack(cold: u64, hot: u64) -> [Lack; 1] {
    [Lack {
        node: NODE,
        cold: mib(cold),
        hot: mib(hot),
    }]
}

fn room(room: [u64; 4]) -> Vec<(NodeId, Bytes)> {
    ALL.into_iter().zip(room.map(mib)).collect()
}

/// (at, to, MiB)
fn brief(moves: &[Move]) -> Vec<(u64, u32, u64)> {
    let of = |m: &Move| (m.range.start().0 / (4 * MIB), m.to.0, m.limit.0 / MIB);
    moves.iter().map(of).collect()
}

fn result(asked: Move, moved: u64) -> MoveResult {
    MoveResult {
        asked,
        pages: PageCounts {
            moved,
            ..PageCounts::default()
        },
        is_whole: false,
    }
}

#[test]
fn the_coldest_leaves_first_and_what_is_hot_only_in_need() {
    let map = map(&[(3, 0), (0, 0), (1, 0), (0, 1), (2, 0)]);
    let plan = |cold, hot| brief(&leaving(&map).plan(&lack(cold, hot), &room([0, 99, 99, 99])));
    assert_eq!(plan(9, 0), [(1, 1, 2)]);
    assert_eq!(plan(1, 0), [(1, 1, 1)]);
    assert_eq!(plan(9, 3), [(1, 1, 2), (2, 1, 1)]);
    // Then addresses of which nothing is known to be there.
    let all = [(1, 1, 2), (2, 1, 2), (4, 1, 2), (0, 1, 2), (3, 1, 1)];
    assert_eq!(plan(9, 9), all);
    for m in leaving(&map).plan(&lack(9, 9), &room([0, 99, 99, 99])) {
        assert_eq!((m.from, m.direction), (NODE, Direction::Demotion));
        assert_eq!(m.reason, Reason::Shortage);
    }
}

#[test]
fn it_goes_where_there_is_room_and_where_it_may() {
    let map = map(&[(0, 0), (0, 0), (0, 0)]);
    let plan = |free| brief(&leaving(&map).plan(&lack(6, 6), &room(free)));
    assert_eq!(
        plan([0, 3, 0, 9]),
        [(0, 1, 2), (1, 1, 1), (1, 3, 1), (2, 3, 2)]
    );
    assert_eq!(plan([9, 0, 0, 0]), []);
    let allowed = [NodeId(0), NodeId(2)];
    let mut some = Leaving::of(&[holder(&map, Some(&allowed))], 3, &[], &ALL, Vec::new());
    let moves = some.plan(&lack(6, 6), &room([0, 99, 3, 99]));
    assert_eq!(brief(&moves), [(0, 2, 2), (1, 2, 1)]);
    // Of whom may use this node only nothing leaves.
    let mut none = Leaving::of(&[holder(&map, Some(&[NODE]))], 3, &[], &ALL, Vec::new());
    assert_eq!(none.plan(&lack(6, 6), &room([0, 99, 99, 99])), []);
    // A tier's capacity holds for it, too.
    let capacity = vec![(vec![NodeId(1)], mib(3))];
    let mut some = Leaving::of(&[holder(&map, None)], 3, &[], &ALL, capacity);
    let moves = some.plan(&lack(6, 6), &room([0, 99, 0, 0]));
    assert_eq!(brief(&moves), [(0, 1, 2), (1, 1, 1)]);
}

#[test]
fn what_lies_on_the_slowest_node_goes_to_a_faster_one() {
    let map = map(&[(0, 3)]);
    let lack = [Lack {
        node: NodeId(3),
        ..lack(2, 2)[0]
    }];
    let moves = leaving(&map).plan(&lack, &room([9, 9, 0, 0]));
    assert_eq!(brief(&moves), [(0, 1, 2)]);
    assert_eq!(moves[0].direction, Direction::Promotion);
}

#[test]
fn what_moved_since_the_last_decision_is_known() {
    let map = map(&[(3, 3), (0, 0), (0, 0)]);
    let of = |at: usize, from: u32, to: u32| {
        let m = Move {
            target: TargetId(1),
            pid: Pid(1),
            range: map.regions()[at].range(),
            from: NodeId(from),
            to: NodeId(to),
            limit: mib(2),
            direction: Direction::Promotion,
            reason: Reason::Hot,
        };
        result(m, 512)
    };
    // What was hot came, and of what was cold something left.
    let done = [of(0, 3, 0), of(1, 0, 1)];
    let mut leaving = Leaving::of(&[holder(&map, None)], 3, &done, &ALL, Vec::new());
    let moves = leaving.plan(&lack(9, 4), &room([0, 99, 99, 99]));
    assert_eq!(brief(&moves), [(2, 1, 2), (0, 1, 2)]);
}

#[test]
fn what_was_tried_is_not_tried_again_unless_for_want_of_time_or_room() {
    let map = map(&[(0, 0), (0, 0), (0, 0)]);
    let mut leaving = leaving(&map);
    let free = room([0, 99, 99, 99]);
    let moves = leaving.plan(&lack(6, 6), &free);
    let mut results: Vec<MoveResult> = moves.into_iter().map(|m| result(m, 0)).collect();
    results[0].pages.refused = 512;
    results[1].pages.deferred = 256;
    results[2].pages.no_room = 512;
    leaving.told(&results);
    // Node 1 is full, whatever it seems to have.
    let moves = leaving.plan(&lack(6, 6), &free);
    assert_eq!(brief(&moves), [(1, 2, 1), (2, 2, 2)]);
    let gone = moves
        .into_iter()
        .map(|m| result(m, 512))
        .collect::<Vec<_>>();
    leaving.told(&gone);
    assert_eq!(leaving.plan(&lack(6, 6), &free), []);
}

proptest! {
    #[test]
    fn never_more_than_lacks_nor_to_a_full_node_and_what_is_hot_last(
        list in prop::collection::vec((0_u8..=3, 0_u32..4), 1..40),
        free in prop::array::uniform4(0_u64..30),
        (cold, hot) in (0_u64..60, 0_u64..60),
        short in 0_u32..4,
    ) {
        let map = map(&list);
        let hot = hot.min(cold);
        let lack = [Lack { node: NodeId(short), ..lack(cold, hot)[0] }];
        let mut left = room(free);
        let mut leaving = leaving(&map);
        let moves = leaving.plan(&lack, &left);
        let mut given = 0;
        let mut last = 0;
        let mut is_known = true;
        for m in &moves {
            prop_assert_eq!(m.from, NodeId(short));
            prop_assert!(m.to != m.from && !m.limit.is_zero());
            let at = usize::try_from(m.range.start().0 / (4 * MIB)).unwrap();
            let (accessed, node) = list[at];
            is_known &= node == short;
            prop_assert!(is_known == (node == short), "what is known to be there goes first");
            if is_known {
                prop_assert!(accessed >= last, "the coldest first");
                last = accessed;
            }
            let wanted = if is_known && accessed == 0 { cold } else { hot };
            prop_assert!(given < wanted * MIB);
            given += m.limit.0;
            let room = &mut left.iter_mut().find(|(n, _)| *n == m.to).unwrap().1;
            prop_assert!(m.limit <= *room, "a full node");
            *room = room.saturating_sub(m.limit);
        }
        prop_assert!(given <= cold * MIB);
        // And as much as lacks where there is so much that may go, and room.
        let there = |is: &dyn Fn(u8) -> bool| {
            list.iter().filter(|(a, n)| *n == short && is(*a)).count() as u64 * 2
        };
        let may: u64 = (0..4).filter(|&n| n != short).map(|n| free[n as usize]).sum();
        prop_assert!(given / MIB >= cold.min(there(&|a| a == 0)).min(may));
        prop_assert!(given / MIB >= hot.min(there(&|_| true)).min(may));
    }
}
