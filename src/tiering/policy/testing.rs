//! What the tests of policies share.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::{Budget, Done, Policy, TargetView, View};
use crate::tiering::observation::{Share, TargetId};
use crate::tiering::plan::Move;
use crate::tiering::region::{Region, RegionMap};
use crate::tiering::settings::LookRule;
use crate::tiering::tier::{Figure, MemoryKind, Node, Path, Source, TierTable, TierView};
use crate::tiering::windows::{Rates, SPAN};
use crate::units::{Bytes, Nanos, NodeId, PageRange, Pid, VirtAddr};

pub(super) const MIB: u64 = 1 << 20;

/// Four nodes at 90, 145, 275 and 340 ns from the only initiator.
pub(super) fn tiers() -> TierView {
    tiers_with_cpus(&[0])
}

/// The same with CPUs on these nodes, as seen from the first.
pub(super) fn tiers_with_cpus(with: &[u32]) -> TierView {
    let nodes: Vec<Node> = (0..4)
        .map(|id| Node {
            id: NodeId(id),
            kind: MemoryKind::Dram,
            size: Bytes::from_mib(1024),
            cpus: with.iter().copied().filter(|&node| node == id).collect(),
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
                source: Source::Sysfs,
            },
            bandwidth: None,
        })
        .collect();
    let table = TierTable::new(TierTable::default_tiers(&nodes), nodes, paths).unwrap();
    table.view(&[(NodeId(0), 1.0)], None)
}

/// Regions of 2 MiB, one after the other: (hotness, node).
pub(super) fn regions(list: &[(f32, u32)]) -> Vec<Region> {
    (0..)
        .zip(list)
        .map(|(i, &(hotness, node))| {
            let start = i * 2 * MIB;
            let range = PageRange::new(VirtAddr(start), VirtAddr(start + 2 * MIB)).unwrap();
            Region::for_test(range, hotness, &[(NodeId(node), 512)])
        })
        .collect()
}

/// (first MiB of the range, from, to, MiB).
pub(super) fn brief(moves: &[Move]) -> Vec<(u64, u32, u32, u64)> {
    moves
        .iter()
        .map(|m| {
            let start = m.range.start().0 / MIB;
            (start, m.from.0, m.to.0, m.limit.0 / MIB)
        })
        .collect()
}

/// What a policy is shown of one target.
#[derive(Clone, Copy)]
pub(super) struct Scene<'a> {
    pub(super) epoch: u64,
    pub(super) regions: &'a [Region],
    /// Per node in MiB.
    pub(super) room: [u64; 4],
    pub(super) lacking: [u64; 4],
    pub(super) cache: [u64; 4],
    pub(super) loaded: &'a [(NodeId, f64)],
    pub(super) late: &'a [(NodeId, f64)],
    pub(super) load: f64,
    pub(super) spare: f64,
    pub(super) prior: f32,
    pub(super) done: Done,
}

impl<'a> Scene<'a> {
    /// In epoch 10, of a target that uses one CPU, the only one.
    pub(super) fn of(regions: &'a [Region], room: [u64; 4]) -> Self {
        Self {
            epoch: 10,
            regions,
            room,
            lacking: [0; 4],
            cache: [0; 4],
            loaded: &[],
            late: &[],
            load: 1.0,
            spare: 0.0,
            prior: 0.0,
            done: Done::default(),
        }
    }
}

/// What it makes of that.
pub(super) fn decide(policy: &mut dyn Policy, scene: Scene<'_>, budget: Budget) -> Vec<Move> {
    decide_beside(policy, scene, Share::default(), &[], budget)
}

/// The same of several targets: the scene's, and others beside it.
pub(super) fn decide_beside(
    policy: &mut dyn Policy,
    scene: Scene<'_>,
    share: Share,
    others: &[(&[Region], Share)],
    budget: Budget,
) -> Vec<Move> {
    let (tiers, rates) = (tiers(), Rates::new(SPAN, 3, LookRule::Repeated));
    let first = std::iter::once((scene.regions, share));
    let targets = (1..).zip(first.chain(others.iter().copied()));
    let each_node = |mib: [u64; 4]| -> Vec<(NodeId, Bytes)> {
        let bytes = mib.into_iter().map(Bytes::from_mib);
        (0..).map(NodeId).zip(bytes).collect()
    };
    let view = View {
        epoch: scene.epoch,
        scans: 3,
        targets: targets
            .map(|(number, (regions, share))| TargetView {
                id: TargetId(number),
                pid: Pid(i32::try_from(number).unwrap()),
                tiers: &tiers,
                regions,
                load: scene.load,
                share,
                prior: scene.prior,
            })
            .collect(),
        room: each_node(scene.room),
        lacking: each_node(scene.lacking),
        cache: each_node(scene.cache),
        loaded: scene.loaded.to_vec(),
        late: scene.late.to_vec(),
        interval: Nanos::from_secs(10),
        spare: scene.spare,
        rates: &rates,
        done: scene.done,
    };
    policy.decide(&view, budget)
}

/// Carried out in order, no move overfills a node or takes more than is there. Done again
/// on the result, it comes to rest: what was demoted into a slower tier's room may have to
/// give way there once more, rank by rank, and then no more.
pub(super) fn comes_to_rest(
    mut decide: impl FnMut(&[Region], [u64; 4]) -> Vec<Move>,
    list: &[(f32, u32)],
    room: [u64; 4],
) -> Result<(), TestCaseError> {
    let mut regions = regions(list);
    let mut room = room.map(|mib| mib / 2 * 2);
    let total: u64 = room.iter().sum();
    for turn in 0..6 {
        let moves = decide(&regions, room);
        if turn == 5 {
            prop_assert!(moves.is_empty(), "again: {:?}", brief(&moves));
        }
        let mut after = room.map(|mib| i64::try_from(mib * MIB).unwrap());
        for m in &moves {
            let bytes = i64::try_from(m.limit.0).unwrap();
            after[m.to.0 as usize] -= bytes;
            prop_assert!(after[m.to.0 as usize] >= 0, "overfilled: {after:?}");
            after[m.from.0 as usize] += bytes;
            let at = regions.iter().position(|r| r.range() == m.range).unwrap();
            prop_assert!(regions[at].pages().on(m.from) * 4096 >= m.limit.0);
            let mut map = RegionMap::default();
            map.sync(&[m.range], Bytes(2 * MIB));
            let mut pages = regions[at].pages().clone();
            pages.shift(m.from, m.to, m.limit.pages());
            let counts: Vec<_> = pages.iter().collect();
            regions[at] = Region::for_test(m.range, regions[at].hotness(), &counts);
        }
        room = after.map(|b| u64::try_from(b).unwrap() / MIB);
        prop_assert_eq!(room.iter().sum::<u64>(), total);
    }
    Ok(())
}
