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
//! Epochs that are shorter than configured ([`pace`]) have fewer samples, each of which saw less.
//! So shares are those of the [`Latest`] epochs that last as long as a whole one, together.
//!
//! [`pace`]: super::pace
//! [`Estimates`]: crate::tiering::estimates::Estimates

use std::collections::VecDeque;

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

/// What a target could do: CPU time for its memory, and in how long.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Time {
    pub(super) cpu: Nanos,
    pub(super) elapsed: Nanos,
}

/// Part of the configured interval that epochs last together which tell as much as a whole one: it
/// takes a little more or less.
const WHOLE: f64 = 0.9;

/// What the shares of one target rest on.
#[derive(Debug, Default)]
pub(super) struct Latest {
    /// The fewest epochs that last as long as the configured interval together; the latest first.
    /// What was only guessed says nothing of another epoch, and is not kept.
    epochs: VecDeque<(Strata, Time)>,
    /// What of its memory accessed bits say no more of than that it is accessed often.
    saturation: Saturation,
}

impl Latest {
    /// Tiers are others now, or windows: counts stand for something else, and which of them
    /// are saturated has to be found out anew.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Adds an epoch, of which something `is_seen`: all of them together.
    fn add(
        &mut self,
        strata: Strata,
        is_seen: bool,
        time: Time,
        interval: Nanos,
    ) -> (Strata, Time) {
        self.saturation.learn(&strata);
        let (mut all, mut lasted) = (strata.clone(), time);
        let is_whole =
            |lasted: Time| lasted.elapsed.as_secs_f64() >= WHOLE * interval.as_secs_f64();
        let mut used = 0;
        for (strata, time) in &self.epochs {
            if is_whole(lasted) {
                break;
            }
            all.join(strata);
            lasted.cpu += time.cpu;
            lasted.elapsed += time.elapsed;
            used += 1;
        }
        self.epochs.truncate(used);
        if is_seen {
            self.epochs.push_front((strata, time));
        }
        (all, lasted)
    }
}

/// What counts stand for, and where memory is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lens<'a> {
    pub(super) tiers: &'a TierTable,
    pub(super) estimates: &'a Estimates,
    pub(super) rates: &'a Rates,
    /// How long an epoch is meant to be, if it is a whole one.
    pub(super) interval: Nanos,
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
    /// Whether any sample told anything.
    is_seen: bool,
    gathered: Gathered,
    survey: Survey,
}

impl<'a> Tracing<'a> {
    /// Of no region yet.
    pub(super) fn new(lens: Lens<'a>) -> Self {
        Self {
            lens,
            strata: Strata::new(lens.tiers.tiers().len()),
            is_seen: false,
            gathered: Gathered::default(),
            survey: Survey::new(lens.scans, lens.epoch),
        }
    }

    /// Adds a region with what its samples saw.
    pub(super) fn add(&mut self, region: &Region, samples: Looked<'_>) {
        self.survey.add(region);
        let class = bounds::class_of(self.before(region), self.lens.scans);
        self.gather(samples, class);
        self.is_seen |= !self.gathered.all.is_empty();
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

    /// The shares with their bounds, of a target that runs on these nodes, over the `latest`
    /// epochs that last as long as a whole one.
    pub(super) fn finish(
        self,
        runs_on: &[(NodeId, f64)],
        time: Time,
        latest: &mut Latest,
    ) -> (Shares, Survey) {
        let (strata, time) = latest.add(self.strata, self.is_seen, time, self.lens.interval);
        let limits = limits(self.lens.tiers, runs_on, time);
        let shares = bounds::shares(&strata, &latest.saturation, &limits);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiering::bounds::Fullness;

    const INTERVAL: Nanos = Nanos::from_secs(10);

    /// Of ten samples each, how often pages of two tiers are accessed.
    fn seen(rates: [f64; 2]) -> Strata {
        let mut strata = guessed(rates);
        for (tier, rate) in rates.into_iter().enumerate() {
            (0..10).for_each(|i| strata.sample(0, tier, &reading(rate * f64::from(i % 2) * 2.0)));
        }
        strata
    }

    /// The same without a sample.
    fn guessed(rates: [f64; 2]) -> Strata {
        let mut strata = Strata::new(2);
        for (tier, rate) in rates.into_iter().enumerate() {
            let mut mean = Mean::default();
            (0..10).for_each(|_| mean.add(&reading(rate)));
            strata.memory(0, tier, 10, &mean);
        }
        strata
    }

    fn reading(rate: f64) -> Reading {
        Reading {
            rate,
            least: 0.0,
            doubt: 0.0,
            fullness: Fullness::Less,
        }
    }

    /// Epochs of such a length, one after the other: what is told after the last.
    fn told(epochs: &[(Strata, bool, u64)]) -> (Shares, Time) {
        let mut latest = Latest::default();
        let mut told = (Strata::new(2), Time::default());
        for (strata, is_seen, seconds) in epochs {
            let elapsed = Nanos::from_secs(*seconds);
            let time = Time {
                cpu: elapsed,
                elapsed,
            };
            told = latest.add(strata.clone(), *is_seen, time, INTERVAL);
        }
        let shares = bounds::shares(&told.0, &latest.saturation, &[Limit::default(); 2]);
        (shares, told.1)
    }

    #[test]
    fn short_epochs_are_told_of_together_and_whole_ones_alone() {
        let [first, second, third] = [[4.0, 0.0], [1.0, 1.0], [0.0, 2.0]].map(seen);
        let ratio = |epochs: &[(Strata, bool, u64)], ratio: f64, seconds| {
            let (shares, time) = told(epochs);
            assert!((shares.ratio[0] - ratio).abs() < 1e-9, "{shares:?}");
            let seconds = Nanos::from_secs(seconds);
            assert_eq!((time.cpu, time.elapsed), (seconds, seconds));
        };
        let all = |seconds: [u64; 3]| {
            let mut seconds = seconds.into_iter();
            [&first, &second, &third].map(|s| (s.clone(), true, seconds.next().expect("three")))
        };
        ratio(&all([5, 5, 5])[..1], 1.0, 5);
        ratio(&all([5, 5, 5])[..2], 5.0 / 6.0, 10);
        ratio(&all([5, 5, 5]), 0.25, 10);
        ratio(&all([10, 10, 10]), 0.0, 10);
        ratio(&all([10, 5, 5]), 0.25, 10);
        ratio(&all([5, 5, 20]), 0.0, 20);
        // Nearly whole, as a timer has it.
        ratio(&all([9, 9, 9]), 0.0, 9);
        let guess = (guessed([4.0, 0.0]), false, 5);
        ratio(&[guess, (third.clone(), true, 5)], 0.0, 5);
    }

    #[test]
    fn two_short_epochs_tell_more_than_one() {
        let width = |epochs: usize| {
            let (shares, _) = told(&vec![(seen([4.0, 4.0]), true, 5); epochs]);
            shares.high[0] - shares.low[0]
        };
        let (one, two) = (width(1), width(2));
        // As of twice as many samples, but for what does not depend on their number.
        assert!(two < 0.8 * one && two > 0.6 * one, "{one} {two}");
    }
}
