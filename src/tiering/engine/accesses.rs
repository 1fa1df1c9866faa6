//! Which share of a target's accesses each tier serves: its hit rates.
//!
//! **Problem.** What is hot and what is cold may lie on several nodes within one region,
//! above all where the two are so near to each other that they were never cut apart.
//! Were the region's rate dealt out by where its pages lie, the hot ones' accesses would
//! be held to be the other node's.
//!
//! **Approach.** Samples know the node of their page. So each region is taken node by node:
//! the mean of what its samples there stand for ([`Estimates`]), times its pages there. A node
//! without a sample has the region's mean, a region without one what was known of it last.
//! Between which bounds that may be wrong is told by [`bounds`].
//!
//! [`Estimates`]: crate::tiering::estimates::Estimates

use super::Engine;
use super::survey::Survey;
use super::tracked::Tracked;
use crate::tiering::bounds::{self, Limit, Mean, Reading, Saturation, Shares, Strata};
use crate::tiering::observation::{Looked, Tally};
use crate::tiering::region::{Region, take_in};
use crate::tiering::tier::LOCAL_LATENCY;
use crate::units::{Bandwidth, Nanos, NodeId};

/// What the samples of one region say: all of them, and node by node.
#[derive(Default)]
struct Gathered {
    all: Mean,
    on: Vec<(NodeId, Mean)>,
}

/// What a target could do in an epoch: CPU time for its memory, and how long the epoch was.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Time {
    pub(super) cpu: Nanos,
    pub(super) elapsed: Nanos,
}

/// The shares with their bounds. `samples` are the target's, sorted; of `saturation` see
/// there. In the same pass what regions come to is added up: a million of them do not fit
/// into a cache.
pub(super) fn shares(
    engine: &Engine,
    tracked: &Tracked,
    samples: Looked<'_>,
    time: Time,
    saturation: &mut Saturation,
) -> (Shares, Survey) {
    let tiers = engine.tiers.tiers().len();
    let scans = engine.settings.profiling.scans;
    let mut strata = Strata::new(tiers);
    let mut rest = samples;
    let mut gathered = Gathered::default();
    let mut survey = Survey::new(scans, engine.epoch);
    for region in tracked.map.regions() {
        survey.add(region);
        let range = region.range();
        let mine = take_in(&mut rest, range);
        let class = bounds::class_of(before(engine, region), scans);
        gather(engine, mine, class, &mut gathered, &mut strata);
        if gathered.all.is_empty() {
            gathered.all.add(&known(engine, region));
        }
        for (node, pages) in region.pages().iter() {
            let Some(tier) = engine.tiers.tier_of(node) else {
                continue;
            };
            let there = gathered.on.iter().find(|(n, _)| *n == node);
            let mean = there.map_or(&gathered.all, |(_, mean)| mean);
            strata.memory(class, tier.index(), pages, mean);
        }
    }
    saturation.learn(&strata);
    let limits = limits(engine, tracked, time);
    (bounds::shares(&strata, saturation, &limits), survey)
}

/// Adds up what samples tell of a page of 4 KiB.
fn gather(
    engine: &Engine,
    samples: Looked<'_>,
    class: usize,
    gathered: &mut Gathered,
    strata: &mut Strata,
) {
    gathered.on.clear();
    gathered.all = Mean::default();
    // One that was looked at in short windows only is right on average, too, but says little
    // beside one that was looked at in all.
    let whole = engine.settings.profiling.scans;
    let is_told = samples.tallies().iter().any(|tally| tally.known >= whole);
    let telling = |tally: &Tally| tally.known >= whole || !is_told;
    for tally in samples.tallies().iter().filter(|tally| telling(tally)) {
        let (accessed, known) = (tally.accessed, tally.known);
        let Some(reading) = engine.estimates.reading(accessed, known, tally.order) else {
            continue;
        };
        gathered.all.add(&reading);
        let Some(node) = tally.node else { continue };
        if let Some(tier) = engine.tiers.tier_of(node) {
            strata.sample(class, tier.index(), &reading);
        }
        if let Some((_, mean)) = gathered.on.iter_mut().find(|(n, _)| *n == node) {
            mean.add(&reading);
        } else {
            let mut mean = Mean::default();
            mean.add(&reading);
            gathered.on.push((node, mean));
        }
    }
}

/// The mean count that a region had before this epoch's was folded in; where an average
/// does not reach back that far, in the epoch before.
fn before(engine: &Engine, region: &Region) -> f64 {
    let ema = f64::from(engine.policy.ema());
    let (now, latest) = (f64::from(region.hotness()), f64::from(region.latest()));
    if !region.is_fresh() {
        now
    } else if ema < 1.0 {
        (now - ema * latest) / (1.0 - ema)
    } else {
        f64::from(region.previous())
    }
}

/// What was known of it last, as a sample would say it.
fn known(engine: &Engine, region: &Region) -> Reading {
    let count = f64::from(region.latest());
    let rate = region.per_page(engine.rates.of(count));
    engine.estimates.remembered(count, rate)
}

/// What each tier can serve at most.
fn limits(engine: &Engine, tracked: &Tracked, time: Time) -> Vec<Limit> {
    let tiers = &engine.tiers;
    let runs_on = |node: NodeId| {
        let mut shares = tracked.view_share.iter();
        shares.any(|&(n, share)| n == node && share > 0.0)
    };
    let anywhere = !tiers.paths().iter().any(|path| runs_on(path.from));
    let ways = |node: NodeId| {
        let all = tiers.paths().iter().filter(move |path| path.to == node);
        all.filter(move |path| anywhere || runs_on(path.from))
    };
    let limit = |nodes: &[NodeId]| {
        let ways = || nodes.iter().flat_map(|&node| ways(node));
        let latency = ways().map(|way| way.latency.value).min();
        // Where it is not known of each way it is not known.
        let bandwidth = ways().try_fold(0_u64, |sum, way| {
            way.bandwidth.map(|b| sum.saturating_add(b.value.0))
        });
        let bandwidth = bandwidth.filter(|&sum| sum > 0).map(Bandwidth);
        Limit::new(
            time.cpu,
            latency.unwrap_or(LOCAL_LATENCY),
            time.elapsed,
            bandwidth,
        )
    };
    tiers.tiers().iter().map(|t| limit(&t.nodes)).collect()
}
