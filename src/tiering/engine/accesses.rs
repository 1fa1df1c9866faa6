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

use super::survey::Survey;
use crate::tiering::bounds::{self, Limit, Mean, Reading, Saturation, Shares, Strata};
use crate::tiering::estimates::Estimates;
use crate::tiering::observation::{Looked, Tally};
use crate::tiering::region::Region;
use crate::tiering::tier::{LOCAL_LATENCY, TierTable};
use crate::tiering::windows::Rates;
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

/// What counts stand for, and where memory is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lens<'a> {
    pub(super) tiers: &'a TierTable,
    pub(super) estimates: &'a Estimates,
    pub(super) rates: &'a Rates,
    /// Weight of the newest count in a region's average.
    pub(super) ema: f32,
    pub(super) scans: u8,
    pub(super) epoch: u64,
}

/// Accesses of one target, added up region by region, with what its regions come to: in the
/// pass that learns from its samples, since a million regions do not fit into a cache.
pub(super) struct Tracing<'a> {
    lens: Lens<'a>,
    strata: Strata,
    gathered: Gathered,
    survey: Survey,
}

impl<'a> Tracing<'a> {
    /// Of no region yet.
    pub(super) fn new(lens: Lens<'a>) -> Self {
        Self {
            lens,
            strata: Strata::new(lens.tiers.tiers().len()),
            gathered: Gathered::default(),
            survey: Survey::new(lens.scans, lens.epoch),
        }
    }

    /// Adds a region with what its samples saw.
    pub(super) fn add(&mut self, region: &Region, samples: Looked<'_>) {
        self.survey.add(region);
        let class = bounds::class_of(self.before(region), self.lens.scans);
        self.gather(samples, class);
        if self.gathered.all.is_empty() {
            let known = self.known(region);
            self.gathered.all.add(&known);
        }
        for (node, pages) in region.pages().iter() {
            let Some(tier) = self.lens.tiers.tier_of(node) else {
                continue;
            };
            let there = self.gathered.on.iter().find(|(n, _)| *n == node);
            let mean = there.map_or(&self.gathered.all, |(_, mean)| mean);
            self.strata.memory(class, tier.index(), pages, mean);
        }
    }

    /// The shares with their bounds, of a target that runs on these nodes; of `saturation` see
    /// there.
    pub(super) fn finish(
        self,
        runs_on: &[(NodeId, f64)],
        time: Time,
        saturation: &mut Saturation,
    ) -> (Shares, Survey) {
        saturation.learn(&self.strata);
        let limits = limits(self.lens.tiers, runs_on, time);
        let shares = bounds::shares(&self.strata, saturation, &limits);
        (shares, self.survey)
    }

    /// Adds up what samples tell of a page of 4 KiB.
    fn gather(&mut self, samples: Looked<'_>, class: usize) {
        let gathered = &mut self.gathered;
        gathered.on.clear();
        gathered.all = Mean::default();
        // One that was looked at in short windows only is right on average, too, but says little
        // beside one that was looked at in all.
        let whole = self.lens.scans;
        let is_told = samples.tallies().iter().any(|tally| tally.known >= whole);
        let telling = |tally: &Tally| tally.known >= whole || !is_told;
        for tally in samples.tallies().iter().filter(|tally| telling(tally)) {
            let (accessed, known) = (tally.accessed, tally.known);
            let reading = self.lens.estimates.reading(accessed, known, tally.order);
            let Some(reading) = reading else { continue };
            gathered.all.add(&reading);
            let Some(node) = tally.node else { continue };
            if let Some(tier) = self.lens.tiers.tier_of(node) {
                self.strata.sample(class, tier.index(), &reading);
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
    fn before(&self, region: &Region) -> f64 {
        let ema = f64::from(self.lens.ema);
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
    fn known(&self, region: &Region) -> Reading {
        let count = f64::from(region.latest());
        let rate = region.per_page(self.lens.rates.of(count));
        self.lens.estimates.remembered(count, rate)
    }
}

/// What each tier can serve at most.
fn limits(tiers: &TierTable, runs_on: &[(NodeId, f64)], time: Time) -> Vec<Limit> {
    let runs_on = |node: NodeId| {
        let mut shares = runs_on.iter();
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
