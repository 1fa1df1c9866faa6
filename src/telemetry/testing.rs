//! A small machine and what an epoch on it was like, for tests.

use std::sync::Arc;
use std::time::Instant;

use super::Snapshot;
use crate::ports::{FolioPace, SamplerKind};
use crate::tiering::bounds::Shares;
use crate::tiering::observation::{
    EpochCost, Exclusion, NodeUsage, ReadLatency, TargetId, TargetKind,
};
use crate::tiering::plan::{Direction, PageCounts, Reason, Reclaimed};
use crate::tiering::report::{EpochReport, Flow, Hold, Overhead, TargetReport, Watched};
use crate::tiering::tier::{MemoryKind, Node, TierTable};
use crate::units::{Bytes, Nanos, NodeId, Pid, TierId};

/// `dram0` and `cxl1`.
pub(crate) fn table() -> TierTable {
    let node = |id, kind, cpus: &[u32]| Node {
        id: NodeId(id),
        kind,
        size: Bytes::from_mib(1024),
        cpus: cpus.to_vec(),
        kernel_tier: None,
    };
    let nodes = vec![
        node(0, MemoryKind::Dram, &[0, 1]),
        node(1, MemoryKind::Cxl, &[]),
    ];
    TierTable::new(TierTable::default_tiers(&nodes), nodes, vec![]).unwrap()
}

pub(crate) fn target(id: u32, name: &str) -> TargetReport {
    let flow = |from, to, direction, reason, mib| Flow {
        from: TierId(from),
        to: TierId(to),
        direction,
        reason,
        planned: Bytes::from_mib(mib + 1),
        moved: Bytes::from_mib(mib),
    };
    TargetReport {
        id: TargetId(id),
        pid: Pid(4000 + i32::try_from(id).unwrap()),
        name: name.into(),
        sharers: 0,
        kind: TargetKind::Generic,
        ranking: vec![vec![TierId(0)], vec![TierId(1)]],
        eligible: Bytes::from_mib(1024),
        excluded: vec![
            (Exclusion::File, Bytes::from_mib(3)),
            (Exclusion::Locked, Bytes::from_mib(5)),
        ],
        watched: Watched {
            known: Bytes::from_mib(1024),
            resident: Bytes::from_mib(1040),
            lacks: None,
        },
        held: [
            (Hold::Shared, Bytes::from_mib(6)),
            (Hold::Pinned, Bytes::ZERO),
        ],
        allowed_nodes: None,
        resident: vec![Bytes::from_mib(96), Bytes::from_mib(928)],
        resident_error: vec![Bytes::from_mib(1), Bytes::from_mib(3)],
        resident_age: Nanos::from_secs(40),
        accesses: Shares {
            ratio: vec![0.912, 0.088],
            low: vec![0.875, 0.042],
            high: vec![0.958, 0.125],
        },
        hot: Bytes::from_mib(100),
        written: Some(Bytes::from_mib(60)),
        regions: 512,
        samples: 900,
        samples_accessed: 90,
        samples_unknown: 9,
        splits: 5,
        merges: 7,
        flows: vec![
            flow(0, 1, Direction::Demotion, Reason::Room, 4),
            flow(0, 1, Direction::Demotion, Reason::Headroom, 2),
            flow(1, 0, Direction::Promotion, Reason::Hot, 8),
        ],
        move_pages: PageCounts {
            moved: 3072,
            busy: 2,
            ..PageCounts::default()
        },
        paged_out: Bytes::ZERO,
        paging_rests: None,
        overhead: Overhead {
            target_cpu: Nanos::from_secs(10),
            profiling: 0.012,
            migration: 0.004,
            target_side: 0.001,
            counted: Nanos::from_secs(100),
        },
        last_overhead: Overhead {
            target_cpu: Nanos::from_secs(10),
            profiling: 0.030,
            migration: 0.010,
            target_side: 0.002,
            counted: Nanos::from_secs(10),
        },
        paused: None,
    }
}

pub(crate) fn report(epoch: u64, targets: Vec<TargetReport>) -> EpochReport {
    let usage = |node, free| NodeUsage {
        node: NodeId(node),
        total: Bytes::from_mib(1024),
        free: Bytes::from_mib(free),
        reserve: Bytes::from_mib(8),
        latency: (node == 0).then_some(ReadLatency {
            now: Nanos(210),
            idle: Nanos(95),
        }),
        cache: None,
    };
    EpochReport {
        epoch,
        at: Nanos::from_secs(10 * epoch),
        targets,
        nodes: vec![usage(0, 640), usage(1, 80)],
        cost: EpochCost {
            profiling: Nanos::from_millis(30),
            scanning: Nanos::from_millis(20),
            scanned: 2700,
            kdamonds: Nanos::from_millis(4),
            migration: Nanos::from_millis(5),
            other: Nanos::from_millis(1),
            elapsed: Nanos::from_secs(10),
            ..EpochCost::default()
        },
        interval: Nanos::from_secs(10),
        is_unpaid: false,
        sample_quota: 1000,
        migration_elapsed: Nanos::from_millis(250),
        longest_call: Nanos::from_millis(3),
        reclaimed: vec![Reclaimed {
            node: NodeId(0),
            asked: Bytes::from_mib(32),
            given: Bytes::from_mib(24),
        }],
        spare: 0.75,
        cache_rests: false,
        resting: Vec::new(),
        paused: vec![],
    }
}

pub(crate) fn snapshot() -> Snapshot {
    let mut snapshot = Snapshot::new(Instant::now(), SamplerKind::Idle, Arc::new(table()));
    snapshot.policy = "hm-keeper";
    snapshot.interval = Nanos::from_secs(10);
    snapshot.overhead_limit = 0.05;
    snapshot.configured = vec!["absent".into(), "db".into()];
    let pace = |call, folio| FolioPace {
        threads: 1,
        call: Nanos(call),
        folio: Nanos(folio),
    };
    snapshot.mover = Some([pace(20_000, 2_500), pace(20_000, 250_000)]);
    snapshot.record(report(1, vec![target(1, "db")]));
    snapshot.recorded = Some(snapshot.started);
    snapshot
}
