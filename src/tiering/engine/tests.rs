use super::*;
use crate::tiering::observation::{
    AccessSet, EpochCost, Mapped, NodeUsage, RangeResidency, Seen, Share, TargetKind,
};
use crate::tiering::pageout::Paging;
use crate::tiering::plan::{Move, MoveOutcome, MoveResult, PageCounts};
use crate::tiering::report::Hold;
use crate::tiering::tier::{Figure, MemoryKind, Node, Path, Source, Tier};
use crate::units::{NodeId, PageRange, Pid, VirtAddr};

pub(super) const MIB: u64 = 1 << 20;
pub(super) const ID: TargetId = TargetId(4);
const PID: Pid = Pid(44);

pub(super) fn tiers(capacity: Option<Bytes>) -> TierTable {
    let nodes: Vec<Node> = [(0, vec![0]), (3, vec![])]
        .into_iter()
        .map(|(id, cpus)| Node {
            id: NodeId(id),
            kind: MemoryKind::Dram,
            size: Bytes::from_mib(1024),
            cpus,
            kernel_tier: None,
        })
        .collect();
    let paths = [(0, 90), (3, 340)]
        .into_iter()
        .map(|(to, ns)| Path {
            from: NodeId(0),
            to: NodeId(to),
            distance: 10,
            latency: Figure {
                value: Nanos(ns),
                source: Source::Config,
            },
            bandwidth: None,
        })
        .collect();
    let tier = |name: &str, node, capacity| Tier {
        name: name.into(),
        nodes: vec![NodeId(node)],
        capacity,
        latency: None,
    };
    let tiers = vec![tier("fast", 0, capacity), tier("slow", 3, None)];
    TierTable::new(tiers, nodes, paths).unwrap()
}

pub(super) fn usage(free: [u64; 2]) -> Vec<NodeUsage> {
    let usage = |node, free| NodeUsage {
        node: NodeId(node),
        total: Bytes::from_mib(1000),
        free: Bytes::from_mib(free),
        reserve: Bytes::from_mib(10),
        latency: None,
        cache: None,
    };
    vec![usage(0, free[0]), usage(3, free[1])]
}

/// One target with 8 MiB, observed `second` seconds after the start.
pub(super) fn observation(second: u64, samples: Vec<Sample>, hot_below: u64) -> Observation {
    let mut accesses = AccessSet::new(samples);
    for _ in 0..3 {
        for i in 0..accesses.samples().len() {
            let hot = accesses.samples()[i].addr.0 < hot_below;
            accesses.record(i, if hot { Seen::Accessed } else { Seen::Idle });
        }
        accesses.end_scan();
    }
    Observation {
        at: Nanos::from_secs(second),
        targets: vec![TargetMap {
            id: ID,
            pid: PID,
            name: "t".into(),
            sharers: 0,
            kind: TargetKind::Generic,
            eligible: vec![PageRange::new(VirtAddr(0), VirtAddr(8 * MIB)).unwrap()],
            cpu_time: Nanos::from_secs(second),
            memory_time: Nanos::from_secs(second),
            cpu_share: vec![(NodeId(0), 1.0)],
            allowed_nodes: None,
            excluded: Vec::new(),
            mapped: Mapped::default(),
            share: Share::default(),
        }],
        accesses,
        residency: Vec::new(),
        forgotten: Vec::new(),
        nodes: usage([500, 500]),
        cost: EpochCost {
            elapsed: Nanos::from_secs(10),
            ..EpochCost::default()
        },
        idle: Nanos::ZERO,
        capacity: u64::MAX,
        shortest: windows::SHORTEST_AT_ONCE,
        outcome: MoveOutcome::default(),
        paging: Paging::default(),
    }
}

/// The answer to a plan's sweeps: everything on node 3.
pub(super) fn slow(plan: &Plan) -> Vec<RangeResidency> {
    plan.sweeps
        .iter()
        .map(|s| RangeResidency {
            target: s.target,
            range: s.range,
            pages_by_node: vec![(NodeId(3), s.range.pages())],
        })
        .collect()
}

/// Two epochs: the target is found, then its first 2 MiB are seen hot.
fn warmed_up(tiers: TierTable) -> (Engine, Plan) {
    let mut engine = Engine::new(EngineSettings::default(), tiers, 1);
    let first = engine.step(&observation(10, Vec::new(), 0));
    assert!(first.moves.is_empty());
    let mut second = observation(20, first.samples.clone(), 2 * MIB);
    second.residency = slow(&first);
    let plan = engine.step(&second);
    (engine, plan)
}

fn bytes(moves: &[Move]) -> Bytes {
    moves.iter().map(|m| m.limit).sum()
}

#[test]
fn hot_memory_is_promoted_and_the_report_says_why() {
    let (_, plan) = warmed_up(tiers(None));
    assert_eq!(bytes(&plan.moves), Bytes::from_mib(2));
    let target = &plan.report.targets[0];
    assert_eq!(target.resident, [Bytes::ZERO, Bytes::from_mib(8)]);
    assert_eq!(target.flows.len(), 1);
    let flow = target.flows[0];
    let bytes = (flow.planned, flow.moved);
    assert_eq!(bytes, (Bytes::from_mib(2), Bytes::ZERO));
    assert_eq!(flow.reason, crate::tiering::plan::Reason::Hot);
    // All accesses were seen on the slow tier.
    assert_eq!(target.accesses.ratio, [0.0, 1.0]);
}

#[test]
fn what_moved_is_known_at_once_and_not_moved_again() {
    let (mut engine, plan) = warmed_up(tiers(None));
    let mut third = observation(30, plan.samples.clone(), 2 * MIB);
    third.outcome.results = plan
        .moves
        .iter()
        .map(|m| MoveResult {
            asked: m.clone(),
            pages: PageCounts {
                moved: m.limit.pages(),
                ..PageCounts::default()
            },
            is_whole: false,
        })
        .collect();
    let plan = engine.step(&third);
    assert!(plan.moves.is_empty(), "{:?}", plan.moves);
    let target = &plan.report.targets[0];
    assert_eq!(target.resident, [Bytes::from_mib(2), Bytes::from_mib(6)]);
    assert_eq!(target.flows[0].moved, Bytes::from_mib(2));
    assert_eq!(target.accesses.ratio, [1.0, 0.0]);
}

#[test]
fn what_was_looked_for_and_not_found_is_not_planned_again() {
    let (mut engine, plan) = warmed_up(tiers(None));
    let asked = plan.moves[0].clone();
    let mut third = observation(30, plan.samples.clone(), 2 * MIB);
    let part = |moved, busy, is_whole| MoveResult {
        asked: asked.clone(),
        pages: PageCounts {
            moved,
            busy,
            ..PageCounts::default()
        },
        is_whole,
    };
    // Of 512 pages it had 100: 7 of them will not go.
    third.outcome.results = vec![part(60, 4, false), part(33, 3, true)];
    let plan = engine.step(&third);
    assert_eq!(bytes(&plan.moves), Bytes::from_pages(7));
}

#[test]
fn what_came_meanwhile_is_not_forgotten() {
    let (_, plan) = warmed_up(tiers(None));
    let asked = plan.moves[0].clone();
    let back = Move {
        from: asked.to,
        to: asked.from,
        ..asked.clone()
    };
    let result = |asked, moved, refused, is_whole| MoveResult {
        asked,
        pages: PageCounts {
            moved,
            refused,
            ..PageCounts::default()
        },
        is_whole,
    };
    let outcome = MoveOutcome {
        results: vec![
            result(asked.clone(), 60, 0, false),
            result(asked.clone(), 0, 1, true),
            result(back, 20, 0, false),
        ],
        ..MoveOutcome::default()
    };
    let ranges = outcome.of_ranges();
    let there = ranges.iter().find(|r| r.from == asked.from).unwrap();
    // One refused, and twenty that came.
    assert!(there.is_whole && there.left == 21, "{there:?}");
    // The last of its pages alone will not go: that does not make it stuck.
    assert!(!there.is_stuck(), "{there:?}");
}

#[test]
fn what_had_no_room_or_time_is_not_stuck() {
    let (_, plan) = warmed_up(tiers(None));
    let of = |shared, no_room, deferred| {
        let pages = PageCounts {
            no_room,
            shared,
            deferred,
            ..PageCounts::default()
        };
        let result = MoveResult {
            asked: plan.moves[0].clone(),
            pages,
            is_whole: true,
        };
        let outcome = MoveOutcome {
            results: vec![result],
            ..MoveOutcome::default()
        };
        let range = outcome.of_ranges()[0];
        (range.is_stuck(), range.is_shared())
    };
    assert_eq!(of(512, 0, 0), (true, true));
    assert_eq!(of(1, 511, 0), (false, false));
    assert_eq!(of(1, 0, 511), (false, false));
}

#[test]
fn neighbours_that_are_surely_apart_merge_only_when_there_are_too_many() {
    let engine = Engine::new(EngineSettings::default(), tiers(None), 1);
    assert!(engine.thresholds(0.0).surely < 3.0);
    assert!(engine.thresholds(1.0).surely.is_infinite());
    let mut settings = EngineSettings::default();
    settings.profiling.split = SplitRule::Halves;
    let paper = Engine::new(settings, tiers(None), 1);
    assert!(paper.thresholds(0.0).surely.is_infinite());
}

#[test]
fn a_refused_move_is_planned_again_later() {
    let (mut engine, plan) = warmed_up(tiers(None));
    let mut third = observation(30, plan.samples.clone(), 2 * MIB);
    third.outcome.results = vec![MoveResult {
        asked: plan.moves[0].clone(),
        pages: PageCounts {
            refused: 512,
            ..PageCounts::default()
        },
        is_whole: true,
    }];
    let mut plan = engine.step(&third);
    assert_eq!(plan.report.targets[0].move_pages.refused, 512);
    // Not at once: what could not be moved is left alone for a while.
    for second in (40..40 + 10 * STUCK_EPOCHS).step_by(10) {
        assert!(plan.moves.is_empty(), "{second} s");
        plan = engine.step(&observation(second, plan.samples, 2 * MIB));
    }
    assert_eq!(bytes(&plan.moves), Bytes::from_mib(2));
}

#[test]
fn what_was_shared_is_planned_again_when_its_samples_are_not() {
    let (mut engine, plan) = warmed_up(tiers(None));
    let step = |engine: &mut Engine, second, plan: &Plan, shared| {
        let mut seen = observation(second, plan.samples.clone(), 2 * MIB);
        for i in 0..seen.accesses.samples().len() {
            let hot = seen.accesses.samples()[i].addr.0 < 2 * MIB;
            seen.accesses.note_shared(i, shared && hot);
        }
        seen.outcome.results = (plan.moves.iter())
            .map(|asked| MoveResult {
                asked: asked.clone(),
                pages: PageCounts {
                    shared: 512,
                    ..PageCounts::default()
                },
                is_whole: true,
            })
            .collect();
        engine.step(&seen)
    };
    let mut plan = step(&mut engine, 30, &plan, true);
    for second in [40, 50, 60] {
        assert!(plan.moves.is_empty(), "{second} s");
        let held = plan.report.targets[0].held[0];
        assert_eq!(held, (Hold::Shared, Bytes::from_mib(2)), "{second} s");
        plan = step(&mut engine, second, &plan, true);
    }
    let plan = step(&mut engine, 70, &plan, false);
    assert_eq!(bytes(&plan.moves), Bytes::from_mib(2));
    assert_eq!(plan.report.targets[0].held[0].1, Bytes::ZERO);
}

#[test]
fn what_the_kernel_keeps_is_reported_until_it_is_tried_again() {
    let (mut engine, plan) = warmed_up(tiers(None));
    let mut third = observation(30, plan.samples.clone(), 2 * MIB);
    let asked = plan.moves[0].clone();
    let part = |pages| MoveResult {
        asked: asked.clone(),
        pages,
        is_whole: true,
    };
    // Two moves of one range.
    third.outcome.results = vec![
        part(PageCounts {
            moved: 500,
            busy: 4,
            ..PageCounts::default()
        }),
        part(PageCounts {
            pinned: 6,
            refused: 2,
            ..PageCounts::default()
        }),
    ];
    let plan = engine.step(&third);
    let kept = (Hold::Pinned, Bytes::from_pages(12));
    assert_eq!(plan.report.targets[0].held[1], kept);
    // Not tried, and then found to be gone.
    let again = |second, samples, pages| {
        let mut seen = observation(second, samples, 2 * MIB);
        seen.outcome.results = vec![part(pages)];
        seen
    };
    let deferred = PageCounts {
        deferred: 512,
        ..PageCounts::default()
    };
    let plan = engine.step(&again(40, plan.samples, deferred));
    assert_eq!(plan.report.targets[0].held[1], kept);
    let plan = engine.step(&again(50, plan.samples, PageCounts::default()));
    assert_eq!(plan.report.targets[0].held[1].1, Bytes::ZERO);
}

#[test]
fn a_tiers_capacity_and_the_headroom_bound_what_goes_there() {
    let (_, plan) = warmed_up(tiers(Some(Bytes::from_mib(1))));
    assert_eq!(bytes(&plan.moves), Bytes::from_mib(1));
    // 61 MiB free, less 10 of watermarks, less 50 for a burst, more than 2 % of 1000: one is left.
    let mut engine = Engine::new(EngineSettings::default(), tiers(None), 1);
    let first = engine.step(&observation(10, Vec::new(), 0));
    let mut second = observation(20, first.samples.clone(), 2 * MIB);
    second.residency = slow(&first);
    second.nodes = usage([61, 500]);
    assert_eq!(bytes(&engine.step(&second).moves), Bytes::from_mib(1));
}

#[test]
fn a_target_that_is_gone_is_forgotten() {
    let (mut engine, plan) = warmed_up(tiers(None));
    let mut third = observation(30, plan.samples, 2 * MIB);
    third.targets.clear();
    let plan = engine.step(&third);
    assert!(plan.moves.is_empty() && plan.samples.is_empty() && plan.sweeps.is_empty());
    assert!(engine.regions(ID).is_none());
}

#[test]
fn one_tier_is_a_reason_to_do_nothing() {
    let table = tiers(None);
    let only = TierTable::new(
        vec![table.tiers()[0].clone()],
        vec![table.nodes()[0].clone()],
        vec![table.paths()[0]],
    )
    .unwrap();
    let (_, plan) = warmed_up(only);
    assert!(plan.moves.is_empty());
    assert_eq!(plan.report.paused, [PauseReason::OneTier]);
}

#[test]
fn silence_of_a_busy_target_means_a_blind_sampler() {
    let mut engine = Engine::new(EngineSettings::default(), tiers(None), 1);
    let mut plan = engine.step(&observation(10, Vec::new(), 0));
    for epoch in 0..7 {
        assert_eq!(plan.report.paused, []);
        plan = engine.step(&observation(20 + 4 * epoch, plan.samples, 0));
    }
    assert_eq!(plan.report.paused, [PauseReason::SamplerBlind]);
    // One that sleeps is silent for a reason.
    let mut engine = Engine::new(EngineSettings::default(), tiers(None), 1);
    let mut plan = engine.step(&observation(10, Vec::new(), 0));
    for second in [20, 30, 40] {
        let mut seen = observation(second, plan.samples, 0);
        seen.targets[0].memory_time = Nanos::from_secs(10);
        plan = engine.step(&seen);
        assert_eq!(plan.report.paused, []);
    }
}

#[test]
fn merging_is_made_easier_while_there_are_more_regions_than_samples() {
    let mut settings = EngineSettings::default();
    settings.profiling.overhead_limit = 1e-9;
    settings.profiling.looks = LookRule::Repeated;
    let mut engine = Engine::new(settings, tiers(None), 1);
    let mut plan = engine.step(&observation(10, Vec::new(), 0));
    assert_eq!(plan.report.sample_quota, 1);
    for second in (20..120).step_by(10) {
        assert_eq!(plan.samples.len(), 1);
        plan = engine.step(&observation(second, plan.samples, 2 * MIB));
    }
    assert!(plan.report.targets[0].regions <= 2);
}

/// The same target again, under another name, with so much memory and CPU time.
fn another(seen: &mut Observation, id: u32, mib: u64, cpu: Nanos) {
    let mut target = seen.targets[0].clone();
    target.id = TargetId(id);
    target.pid = Pid(100 + i32::try_from(id).unwrap());
    target.eligible = PageRange::new(VirtAddr(0), VirtAddr(mib * MIB))
        .into_iter()
        .collect();
    (target.cpu_time, target.memory_time) = (cpu, cpu);
    seen.targets.push(target);
}

#[test]
fn a_target_without_memory_to_watch_takes_nothing_from_others() {
    let quota = |cpu_of_other| {
        let mut engine = Engine::new(EngineSettings::default(), tiers(None), 1);
        let mut last = 0;
        for second in [10, 20, 30] {
            let mut seen = observation(second, Vec::new(), 0);
            seen.targets[0].eligible =
                vec![PageRange::new(VirtAddr(0), VirtAddr(MIB << 20)).unwrap()];
            another(
                &mut seen,
                9,
                0,
                Nanos(Nanos::from_secs(second).0 * cpu_of_other),
            );
            last = engine.step(&seen).report.sample_quota;
        }
        last
    };
    assert_eq!(quota(64), quota(0));
    assert!(quota(64) > 1000, "{}", quota(64));
}

#[test]
fn no_more_samples_than_the_sampler_can_watch() {
    for capacity in [0, 1, 3, 10] {
        for overhead_control in [true, false] {
            let mut settings = EngineSettings::default();
            settings.profiling.overhead_control = overhead_control;
            // As where the sampler can watch so many only.
            settings.profiling.looks = LookRule::Repeated;
            let mut engine = Engine::new(settings, tiers(None), 1);
            for second in [10, 20] {
                let mut seen = observation(second, Vec::new(), 0);
                seen.capacity = capacity;
                for id in 5..10 {
                    let cpu = Nanos(Nanos::from_secs(second).0 * u64::from(id));
                    another(&mut seen, id, 64, cpu);
                }
                let plan = engine.step(&seen);
                assert!(plan.samples.len() as u64 <= capacity, "{capacity}");
                assert!(plan.report.sample_quota <= capacity, "{capacity}");
            }
        }
    }
}

#[test]
fn without_overhead_control_each_region_has_its_sample_and_none_merges() {
    let mut settings = EngineSettings::default();
    settings.profiling.overhead_control = false;
    settings.profiling.overhead_limit = 1e-9;
    settings.profiling.split = SplitRule::Halves;
    let mut engine = Engine::new(settings, tiers(None), 1);
    let mut samples = Vec::new();
    for second in (10..100).step_by(10) {
        let plan = engine.step(&observation(second, samples, 3 * MIB));
        let regions = plan.report.targets[0].regions;
        assert!(regions >= 4, "{regions}");
        let first = plan.roles.iter().filter(|role| role.is_first()).count();
        assert_eq!(first as u64, regions);
        assert!(plan.looks >= regions);
        samples = plan.samples;
    }
}

#[test]
fn random_samples_are_dealt_by_length_alone() {
    let mut settings = EngineSettings::default();
    settings.profiling.placement = Placement::Random;
    settings.profiling.split = SplitRule::Fixed;
    let mut engine = Engine::new(settings, tiers(None), 1);
    let mut low = 0;
    let mut all = 0;
    for second in (10..400).step_by(10) {
        let mut seen = observation(second, Vec::new(), 0);
        seen.capacity = 16;
        let plan = engine.step(&seen);
        low += plan.samples.iter().filter(|s| s.addr.0 < 2 * MIB).count();
        all += plan.samples.len();
    }
    let share = low as f64 / all as f64;
    assert!((0.15..0.35).contains(&share), "a quarter: {share}");
}

#[test]
fn a_terabyte_begins_with_as_many_regions_as_there_are_samples_for() {
    let whole = |bytes| PageRange::new(VirtAddr(0), VirtAddr(bytes)).unwrap();
    let first = |split, bytes| {
        let mut settings = EngineSettings::default();
        settings.profiling.split = split;
        let mut engine = Engine::new(settings, tiers(None), 1);
        let mut seen = observation(1, Vec::new(), 0);
        seen.targets[0].eligible = vec![whole(bytes)];
        engine.step(&seen);
        engine.regions(ID).unwrap().regions().len() as u64
    };
    assert!(first(SplitRule::Edges, 1536 << 30) <= SAMPLES_AT_FIRST / 2);
    // As the paper has it, and where there are enough samples: 2 MiB.
    assert_eq!(first(SplitRule::Halves, 1536 << 30), 786_432);
    assert_eq!(first(SplitRule::Edges, 1 << 30), 512);
}
