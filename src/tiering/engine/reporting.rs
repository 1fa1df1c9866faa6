//! The report of one step.

use super::charging::Charge;
use super::counted::Doubt;
use super::survey::Survey;
use super::{Engine, Told};
use crate::tiering::bounds::Shares;
use crate::tiering::observation::{Observation, TargetMap};
use crate::tiering::pageout::PagingRest;
use crate::tiering::plan::{Move, PageCounts};
use crate::tiering::report::{EpochReport, Flow, Hold, PauseReason, TargetReport};
use crate::tiering::tier::{Tier, TierTable, TierView};
use crate::units::{Bytes, Nanos, NodeId, TierId};

/// What a step found out, one entry per target of the observation.
pub(super) struct Ratios<'a> {
    pub(super) told: Vec<Told>,
    pub(super) accesses: Vec<Shares>,
    pub(super) surveys: Vec<Survey>,
    pub(super) charges: Vec<Charge>,
    pub(super) interval: Nanos,
    pub(super) is_unpaid: bool,
    pub(super) views: Vec<TierView>,
    pub(super) paused: Vec<Option<PauseReason>>,
    pub(super) moves: &'a [Move],
    pub(super) paging: Vec<Option<PagingRest>>,
    pub(super) doubts: Vec<Doubt>,
}

pub(super) fn report(engine: &Engine, seen: &Observation, ratios: &Ratios<'_>) -> EpochReport {
    let targets = (0..seen.targets.len())
        .map(|i| {
            let target = &seen.targets[i];
            let told = &ratios.told[i];
            let map = &engine.targets[&target.id].map;
            let survey = &ratios.surveys[i];
            let flows = flows(&engine.tiers, target, seen, ratios.moves);
            let pages = pages(target, seen);
            let out = seen.paging.pages_of(target.id);
            TargetReport {
                id: target.id,
                pid: target.pid,
                name: target.name.clone(),
                sharers: target.sharers,
                kind: target.kind,
                ranking: ranking(&engine.tiers, &ratios.views[i]),
                eligible: target.eligible.iter().map(|r| r.bytes()).sum(),
                excluded: target.excluded.clone(),
                watched: told.watched,
                held: [(Hold::Shared, survey.shared), (Hold::Pinned, survey.kept)],
                allowed_nodes: target.allowed_nodes.clone(),
                resident: by_tier(&engine.tiers, |nodes| survey.on(nodes)),
                resident_error: by_tier(&engine.tiers, |nodes| ratios.doubts[i].on(nodes)),
                resident_age: ratios.doubts[i].age,
                accesses: ratios.accesses[i].clone(),
                hot: survey.hot,
                written: survey.written(),
                regions: map.regions().len() as u64,
                samples: told.samples,
                samples_accessed: told.accessed,
                samples_unknown: told.unknown,
                splits: told.adapted.splits,
                merges: told.adapted.merges,
                flows,
                move_pages: pages,
                paged_out: Bytes::from_pages(out),
                paging_rests: ratios.paging[i],
                overhead: ratios.charges[i].average,
                last_overhead: ratios.charges[i].last,
                paused: ratios.paused[i],
            }
        })
        .collect();
    let mut paused: Vec<PauseReason> = ratios.paused.iter().flatten().copied().collect();
    // With nobody to decide for it was not asked.
    if ratios.paused.iter().any(Option::is_none) {
        paused.extend(engine.policy.holds_back());
    }
    paused.sort_unstable();
    paused.dedup();
    EpochReport {
        epoch: engine.epoch,
        at: seen.at,
        targets,
        nodes: engine.machine.pressure.told(&seen.nodes),
        cost: seen.cost,
        interval: ratios.interval,
        is_unpaid: ratios.is_unpaid,
        sample_quota: ratios.told.iter().map(|t| t.quota).sum(),
        migration_elapsed: seen.outcome.elapsed,
        longest_call: seen.outcome.longest_call,
        reclaimed: seen.outcome.reclaimed.clone(),
        spare: engine.machine.spare.share(),
        resting: engine.machine.rests.nodes(),
        cache_rests: engine.settings.page_cache && engine.machine.page_cache.rests(),
        paused,
    }
}

fn ranking(tiers: &TierTable, view: &TierView) -> Vec<Vec<TierId>> {
    view.ranks()
        .iter()
        .map(|rank| {
            let mut ids: Vec<TierId> = Vec::new();
            for tier in rank.nodes.iter().filter_map(|&n| tiers.tier_of(n)) {
                if !ids.contains(&tier) {
                    ids.push(tier);
                }
            }
            ids
        })
        .collect()
}

/// Bytes of a target on the nodes of each tier.
fn by_tier(tiers: &TierTable, on: impl Fn(&[NodeId]) -> Bytes) -> Vec<Bytes> {
    let tiers = tiers.tiers().iter();
    tiers.map(|tier: &Tier| on(&tier.nodes)).collect()
}

fn pages(target: &TargetMap, seen: &Observation) -> PageCounts {
    let mut pages = PageCounts::default();
    for result in &seen.outcome.results {
        if result.asked.target == target.id {
            pages.add(result.pages);
        }
    }
    pages
}

/// Moves planned now and done since the last plan, by way and reason.
fn flows(tiers: &TierTable, target: &TargetMap, seen: &Observation, moves: &[Move]) -> Vec<Flow> {
    let mut flows: Vec<Flow> = Vec::new();
    let mut add = |m: &Move, planned: Bytes, moved: Bytes| {
        let (Some(from), Some(to)) = (tiers.tier_of(m.from), tiers.tier_of(m.to)) else {
            return;
        };
        let at = flows.iter().position(|f| {
            (f.from, f.to, f.direction, f.reason) == (from, to, m.direction, m.reason)
        });
        let at = at.unwrap_or_else(|| {
            flows.push(Flow {
                from,
                to,
                direction: m.direction,
                reason: m.reason,
                planned: Bytes::ZERO,
                moved: Bytes::ZERO,
            });
            flows.len() - 1
        });
        let flow = &mut flows[at];
        flow.planned += planned;
        flow.moved += moved;
    };
    for m in moves.iter().filter(|m| m.target == target.id) {
        add(m, m.limit, Bytes::ZERO);
    }
    for result in seen
        .outcome
        .results
        .iter()
        .filter(|r| r.asked.target == target.id)
    {
        add(
            &result.asked,
            Bytes::ZERO,
            Bytes::from_pages(result.pages.moved),
        );
    }
    flows
}
