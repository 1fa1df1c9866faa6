//! One decision over many regions: `cargo bench --bench engine`.
//!
//! A target of 2 MiB regions, every other hot and on the slowest node, the cold ones on
//! the fastest, which is full; watched by as many samples as regions. Each iteration is one
//! `Engine::step` that plans as many moves as it may. Such numbers are those of HM-Keeper's
//! own rules at terabytes: ours begin with fewer.

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use hmkeeper::tiering::engine::Engine;
use hmkeeper::tiering::observation::{
    AccessSet, EpochCost, Mapped, NodeUsage, Observation, RangeResidency, Sample, Seen, Share,
    TargetId, TargetKind, TargetMap,
};
use hmkeeper::tiering::pageout::Paging;
use hmkeeper::tiering::plan::MoveOutcome;
use hmkeeper::tiering::settings::{EngineSettings, LookRule, SplitRule};
use hmkeeper::tiering::tier::{Figure, MemoryKind, Node, Path, Source, TierTable};
use hmkeeper::tiering::windows::SHORTEST_AT_ONCE;
use hmkeeper::units::{Bytes, HUGE_PAGE_BYTES, Nanos, NodeId, PageRange, Pid, VirtAddr};

fn tiers() -> TierTable {
    let nodes: Vec<Node> = (0..4)
        .map(|id| Node {
            id: NodeId(id),
            kind: MemoryKind::Dram,
            size: Bytes(1 << 40),
            cpus: if id == 0 { vec![0] } else { Vec::new() },
            kernel_tier: None,
        })
        .collect();
    let paths = (0..)
        .zip([90, 145, 275, 340])
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
    TierTable::new(TierTable::default_tiers(&nodes), nodes, paths).expect("a valid table")
}

/// Alternating blocks, so that neighbours do not all merge.
fn is_hot(addr: VirtAddr) -> bool {
    (addr.0 / HUGE_PAGE_BYTES).is_multiple_of(2)
}

/// Where each region is.
fn residency(bytes: u64) -> Vec<RangeResidency> {
    let starts = (0..bytes).step_by(usize::try_from(HUGE_PAGE_BYTES).expect("2 MiB"));
    let ranges =
        starts.filter_map(|at| PageRange::new(VirtAddr(at), VirtAddr(at + HUGE_PAGE_BYTES)));
    ranges
        .map(|range| RangeResidency {
            target: TargetId(0),
            range,
            pages_by_node: vec![(
                NodeId(if is_hot(range.start()) { 3 } else { 0 }),
                range.pages(),
            )],
        })
        .collect()
}

fn observation(turn: u64, bytes: u64, cpus: u64, samples: Vec<Sample>) -> Observation {
    let mut accesses = AccessSet::new(samples);
    for _ in 0..3 {
        for i in 0..accesses.samples().len() {
            let seen = if is_hot(accesses.samples()[i].addr) {
                Seen::Accessed
            } else {
                Seen::Idle
            };
            accesses.record(i, seen);
        }
        accesses.end_scan();
    }
    Observation {
        at: Nanos::from_secs(10 * turn),
        targets: vec![TargetMap {
            id: TargetId(0),
            pid: Pid(1),
            name: "bench".into(),
            sharers: 0,
            kind: TargetKind::Generic,
            eligible: PageRange::new(VirtAddr(0), VirtAddr(bytes))
                .into_iter()
                .collect(),
            cpu_time: Nanos::from_secs(10 * cpus * turn),
            memory_time: Nanos::from_secs(10 * cpus * turn),
            cpu_share: vec![(NodeId(0), 1.0)],
            allowed_nodes: None,
            excluded: Vec::new(),
            mapped: Mapped::default(),
            share: Share::default(),
        }],
        accesses,
        residency: Vec::new(),
        forgotten: Vec::new(),
        nodes: (0..4)
            .map(|node| NodeUsage {
                node: NodeId(node),
                total: Bytes(1 << 40),
                free: Bytes(if node == 0 { 0 } else { 1 << 38 }),
                reserve: Bytes::ZERO,
                latency: None,
                cache: None,
            })
            .collect(),
        cost: EpochCost {
            elapsed: Nanos::from_secs(10),
            ..EpochCost::default()
        },
        idle: Nanos::ZERO,
        capacity: u64::MAX,
        shortest: SHORTEST_AT_ONCE,
        outcome: MoveOutcome::default(),
        paging: Paging::default(),
    }
}

fn decisions(c: &mut Criterion) {
    // A hundred CPUs, so that moves pay at any size; and one, so that none does.
    step(c, "step", 100, LookRule::Repeated);
    step(c, "step-no-gain", 1, LookRule::Repeated);
    // Two scouts beside each sample, all of them looked at: as much as there can be.
    step(c, "step-sequential", 100, LookRule::Sequential);
}

fn step(c: &mut Criterion, name: &str, cpus: u64, looks: LookRule) {
    let mut group = c.benchmark_group(name);
    group.sample_size(10);
    for regions in [10_000_u64, 100_000, 1_000_000] {
        let bytes = regions * HUGE_PAGE_BYTES;
        let mut settings = EngineSettings::default();
        // So that there are as many regions as this says, and remain: with 2 MiB each
        // at first, none merged, and a sample for each.
        settings.profiling.split = SplitRule::Fixed;
        settings.profiling.looks = looks;
        settings.profiling.overhead_control = false;
        let mut engine = Engine::new(settings, tiers(), 1);
        let mut turn = 1;
        let mut plan = engine.step(&observation(turn, bytes, cpus, Vec::new()));
        assert!(plan.samples.len() as u64 >= regions);
        // Where all of it is, once.
        turn += 1;
        let mut seen = observation(turn, bytes, cpus, std::mem::take(&mut plan.samples));
        seen.residency = residency(bytes);
        plan = engine.step(&seen);
        group.throughput(Throughput::Elements(regions));
        group.bench_function(BenchmarkId::from_parameter(regions), |b| {
            b.iter_custom(|turns| {
                let mut spent = Duration::ZERO;
                for _ in 0..turns {
                    turn += 1;
                    let samples = std::mem::take(&mut plan.samples);
                    let seen = observation(turn, bytes, cpus, samples);
                    let begin = Instant::now();
                    plan = engine.step(&seen);
                    engine.recycle(seen.accesses.into_samples());
                    spent += begin.elapsed();
                    assert!(
                        cpus == 1 || plan.moves.len() > 1,
                        "something is to be moved"
                    );
                }
                spent
            });
        });
    }
    group.finish();
}

criterion_group!(benches, decisions);
criterion_main!(benches);
