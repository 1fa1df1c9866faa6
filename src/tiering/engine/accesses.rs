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
//!
//! [`Estimates`]: crate::tiering::estimates::Estimates

use super::Engine;
use crate::tiering::observation::{Sample, Tally};
use crate::tiering::region::{Region, RegionMap};
use crate::units::NodeId;

/// What samples told, added up.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    samples: u32,
    rate: f64,
}

impl Sum {
    fn add(&mut self, rate: f64) {
        self.samples += 1;
        self.rate += rate;
    }

    fn mean(self) -> Option<f64> {
        (self.samples > 0).then(|| self.rate / f64::from(self.samples))
    }
}

/// Of each tier, by its place in the table; sums to 1, or all 0 if nothing was accessed.
/// `samples` are the target's, sorted.
pub(super) fn shares(engine: &Engine, map: &RegionMap, samples: &[(Sample, Tally)]) -> Vec<f64> {
    let mut accesses = vec![0.0; engine.tiers.tiers().len()];
    let mut rest = samples;
    let mut on: Vec<(NodeId, Sum)> = Vec::new();
    for region in map.regions() {
        let range = region.range();
        let begin = rest.partition_point(|(s, _)| s.addr < range.start());
        let end = rest.partition_point(|(s, _)| s.addr < range.end());
        let all = gather(engine, &rest[begin..end], &mut on);
        rest = &rest[end..];
        let mean = all.mean().unwrap_or_else(|| known(engine, region));
        for (node, pages) in region.pages().iter() {
            let Some(tier) = engine.tiers.tier_of(node) else {
                continue;
            };
            let there = on.iter().find(|(n, _)| *n == node);
            let rate = there.and_then(|(_, sum)| sum.mean()).unwrap_or(mean);
            accesses[tier.index()] += pages as f64 * rate;
        }
    }
    let total: f64 = accesses.iter().sum();
    if total > 0.0 {
        for share in &mut accesses {
            *share /= total;
        }
    }
    accesses
}

/// Adds up what samples tell, in accesses of a page of 4 KiB: all together, and node by node.
fn gather(engine: &Engine, samples: &[(Sample, Tally)], on: &mut Vec<(NodeId, Sum)>) -> Sum {
    on.clear();
    let mut all = Sum::default();
    for (_, tally) in samples {
        let Some(rate) = engine.estimates.of(tally.accessed, tally.known) else {
            continue;
        };
        // An access of a huge page is one of one of its pages.
        let rate = rate / f64::from(1_u32 << tally.order.min(20));
        all.add(rate);
        let Some(node) = tally.node else { continue };
        if let Some((_, sum)) = on.iter_mut().find(|(n, _)| *n == node) {
            sum.add(rate);
        } else {
            let mut sum = Sum::default();
            sum.add(rate);
            on.push((node, sum));
        }
    }
    all
}

/// By what was known of it last.
fn known(engine: &Engine, region: &Region) -> f64 {
    let count = f64::from(region.latest());
    region.per_page(engine.rates.of(count))
}
