//! What regions are worth, for [`adaptive`](super::adaptive).
//!
//! **Unit.** The *worth* of a region is the thread-seconds that its target waits per second,
//! per byte of it and per nanosecond of latency.
//!
//! What comes up is as hot as it is believed to be ([`Region::believed`]): where pages of one region are not alike, a lone hot one says
//! little of the others. What gives way is as hot as it seems, and what is looked up later is compared with that.
//!
//! **Hot enough** to come up is what the settings' threshold says, and what stands out. Short epochs see little of a page that is
//! used once in two seconds, though each use is a hundred misses; if that is several times the average of its target's memory it is
//! hot all the same. Where all memory is about as hot, as in a sweep, what is a little hotter is so by chance.

use std::collections::HashMap;

use super::place::Place;
use super::{TargetView, View};
use crate::tiering::observation::TargetId;
use crate::tiering::plan::Direction;
use crate::tiering::region::Region;
use crate::tiering::settings::AdaptiveSettings;
use crate::units::{Bytes, NodeId, PAGE_BYTES, VirtAddr};

/// Certainty that what goes for headroom is cold, in those of an exchange: of what one sample
/// in each epoch looks at, three that saw nothing. What is new is so little known that it stays.
const DOUBT: f64 = 1.5;
/// What is below the threshold stands out if its count is so many times the average of its target's memory,
/// and this share of the threshold at least: never what is a fifth of that memory or more.
const STANDS_OUT: f64 = 5.0;
const THRESHOLD_LEAST: f64 = 0.4;
/// Weight of the newest epoch in a target's load.
const LOAD_EMA: f64 = 0.3;

/// CPUs that each target uses, smoothed: what waits for a moment is not idle.
#[derive(Clone, Debug, Default)]
pub(super) struct Loads(HashMap<TargetId, f64>);

impl Loads {
    /// Of each target in the view, by its place.
    pub(super) fn follow(&mut self, view: &View<'_>) -> Vec<f64> {
        let is_there = |id: TargetId| view.targets.iter().any(|target| target.id == id);
        self.0.retain(|&id, _| is_there(id));
        let smooth = view.targets.iter().map(|target| {
            let load = self.0.entry(target.id).or_insert(target.load);
            *load += LOAD_EMA * (target.load - *load);
            *load
        });
        smooth.collect()
    }

    /// Of all together.
    pub(super) fn sum(&self) -> f64 {
        self.0.values().sum()
    }
}

/// What regions are worth.
pub(super) struct Worth<'a, 'v> {
    pub(super) view: &'a View<'v>,
    pub(super) settings: AdaptiveSettings,
    /// Per target: the worth of a page that is accessed once per epoch, times its bytes.
    scale: Vec<f64>,
    /// By how much more what is written is worth than what is read as often.
    written: f64,
    /// Per node: worth of all that lies there.
    traffic: Vec<(NodeId, f64)>,
    /// All that is hot enough to be promoted, wherever it lies.
    pub(super) warm: Bytes,
    /// Per target and region. A million regions are far from any cache, these are near.
    pub(super) facts: FactLists,
}

/// What is asked of each region most often, by target and region.
#[derive(Clone, Debug, Default)]
pub(super) struct FactLists(Vec<Vec<Facts>>);

/// What is asked of a region most often.
#[allow(
    clippy::struct_excessive_bools,
    reason = "facts that have nothing to do with each other, and there are a million regions"
)]
#[derive(Clone, Copy, Debug)]
struct Facts {
    /// Accesses per byte and epoch, as hot as it is, as it is believed to be, and as [`Worth::usual`] has it.
    mean: f64,
    believed: f64,
    usual: f64,
    /// The count that it is believed to have; none of what is not known.
    count: f32,
    /// The first node on which any of it lies, and whether more does on others.
    node: NodeId,
    is_apart: bool,
    is_empty: bool,
    /// By the threshold alone, whatever the target's other memory is like.
    is_hot: bool,
    is_warm: bool,
    /// Whether it is cold beyond doubt and may leave; asked only where headroom is lacking.
    is_idle: bool,
}

impl<'a, 'v> Worth<'a, 'v> {
    /// Of targets with this load, in CPUs, each by its place in the view.
    /// `idle` is the view with latencies as when idle: by these a target waits the share of its
    /// time that it is held to, and longer under load. `facts` is for its memory.
    pub(super) fn of(
        view: &'a View<'v>,
        idle: &View<'_>,
        settings: AdaptiveSettings,
        loads: &[f64],
        mut facts: FactLists,
    ) -> Self {
        let mut worth = Self {
            view,
            settings,
            scale: Vec::with_capacity(view.targets.len()),
            written: queued(view),
            traffic: Vec::new(),
            warm: Bytes::ZERO,
            facts: FactLists::default(),
        };
        facts.0.resize_with(view.targets.len(), Vec::new);
        for ((target, load), facts) in idle.targets.iter().zip(loads).zip(&mut facts.0) {
            let mut accesses: Vec<(NodeId, f64)> = Vec::new();
            let mut warm = Bytes::ZERO;
            // Counts of bytes, and bytes.
            let mut all = (0.0, 0.0);
            let look_at = |region: &Region| {
                let facts = worth.look_at(target, region);
                let resident = region.resident();
                if facts.is_warm {
                    warm += resident;
                }
                if region.is_known() {
                    all.0 += f64::from(region.heat()) * resident.as_f64();
                    all.1 += resident.as_f64();
                }
                for (node, pages) in region.pages().iter() {
                    let bytes = (pages * PAGE_BYTES) as f64;
                    *entry(&mut accesses, node) += facts.mean * bytes;
                }
                facts
            };
            facts.clear();
            facts.extend(target.regions.iter().map(look_at));
            let stands_out = worth.stands_out(all.0 / all.1.max(1.0));
            if stands_out < worth.least_count() {
                // These are near, unlike the regions.
                for (facts, region) in facts.iter_mut().zip(target.regions) {
                    if !facts.is_warm && f64::from(facts.count) >= stands_out {
                        (facts.is_warm, facts.is_idle) = (true, false);
                        warm += region.resident();
                    }
                }
            }
            worth.warm += warm;
            let waited = accesses
                .iter()
                .map(|&(node, sum)| sum * latency(target, node));
            let waited: f64 = waited.sum();
            let scale = if waited > 0.0 {
                load * settings.memory_bound / waited
            } else {
                0.0
            };
            for (node, sum) in accesses {
                *entry(&mut worth.traffic, node) += scale * sum;
            }
            worth.scale.push(scale);
        }
        worth.facts = facts;
        worth
    }

    fn look_at(&self, target: &TargetView<'_>, region: &Region) -> Facts {
        let of = |count: f32| self.density(region, self.view.rates.of(f64::from(count)));
        let (heat, usual) = (region.heat(), region.usual() / 2.0);
        let believed = region.believed(target.prior, self.view.scans);
        let mean = of(heat);
        let is_warm = region.is_known() && f64::from(believed) >= self.least_count();
        let mut nodes = region.pages().iter().map(|(node, _)| node);
        let node = nodes.next();
        Facts {
            mean,
            believed: if believed < heat { of(believed) } else { mean },
            usual: if usual > heat { of(usual) } else { mean },
            node: node.unwrap_or(NodeId(0)),
            is_apart: nodes.next().is_some(),
            is_empty: node.is_none(),
            count: if region.is_known() { believed } else { 0.0 },
            is_hot: is_warm,
            is_warm,
            is_idle: !is_warm && !self.view.lacking.is_empty() && self.is_cold(target, region),
        }
    }

    /// Whether a region is cold beyond doubt, and not moved for it of late.
    fn is_cold(&self, target: &TargetView<'_>, region: &Region) -> bool {
        let doubt = DOUBT * self.settings.certainty;
        region.is_known()
            && region.flips() == 0
            && !self.rests(region, Direction::Demotion)
            && f64::from(self.count_beside(target, region, doubt)) < self.least_count()
    }

    fn facts(&self, place: Place) -> &Facts {
        &self.facts.0[place.target as usize][place.region as usize]
    }

    /// Of a region of the target at this place, with such a count.
    fn at(&self, target: usize, region: &Region, count: f32) -> f64 {
        let rate = self.view.rates.of(f64::from(count));
        self.scale[target] * self.density(region, rate)
    }

    /// Accesses per byte of a region whose folios are accessed so often each. Where accesses
    /// wait for bandwidth, what is written takes more of that: each line goes back as well.
    fn density(&self, region: &Region, rate: f64) -> f64 {
        let read = region.per_page(rate) / PAGE_BYTES as f64;
        match region.written() {
            Some(written) => read * (1.0 + self.written * f64::from(written)),
            None => read,
        }
    }

    /// Of all that lies on any node.
    pub(super) fn all_traffic(&self) -> f64 {
        self.traffic.iter().map(|(_, sum)| sum).sum()
    }

    /// Of all that lies on a node.
    pub(super) fn traffic(&self, node: NodeId) -> f64 {
        let mut nodes = self.traffic.iter();
        nodes.find(|(n, _)| *n == node).map_or(0.0, |(_, sum)| *sum)
    }

    /// From which count on a region is hot enough whatever others are.
    fn least_count(&self) -> f64 {
        self.settings.promotion_threshold * f64::from(self.view.scans)
    }

    /// From which count on it is hot enough where all of its target's memory has this one on average.
    fn stands_out(&self, average: f64) -> f64 {
        let threshold = self.least_count();
        let least = THRESHOLD_LEAST * threshold;
        (STANDS_OUT * average).clamp(least, threshold)
    }

    pub(super) fn mean(&self, place: Place) -> f64 {
        self.scale[place.target as usize] * self.facts(place).mean
    }

    /// The same if it is as hot as it is believed to be.
    pub(super) fn believed(&self, place: Place) -> f64 {
        self.scale[place.target as usize] * self.facts(place).believed
    }

    /// As hot as it is, or half as hot as it usually is, whichever is more: what is cold, but
    /// what a program comes back to, gives way after what is lukewarm. Half, so that what was
    /// hot for hours still gives way to what is hot now.
    pub(super) fn usual(&self, place: Place) -> f64 {
        self.scale[place.target as usize] * self.facts(place).usual
    }

    /// As hot as it usually is, if all that is accessed of it were read only.
    pub(super) fn steady(&self, place: Place) -> f64 {
        let region = place.region_in(self.view);
        let rate = self.view.rates.of(f64::from(region.usual()));
        self.scale[place.target as usize] * region.per_page(rate) / PAGE_BYTES as f64
    }

    /// Whether none of a region is in memory.
    pub(super) fn is_empty(&self, place: Place) -> bool {
        self.facts(place).is_empty
    }

    /// The node on which all of a region lies that is in memory; `None` where it lies on several.
    pub(super) fn only_node(&self, place: Place) -> Option<NodeId> {
        let facts = self.facts(place);
        (!facts.is_apart).then_some(facts.node)
    }

    /// Whether a region is hot enough to be promoted.
    pub(super) fn is_warm(&self, place: Place) -> bool {
        self.facts(place).is_warm
    }

    /// The same by the threshold alone: what targets claim of each other's memory is not for what stands out of
    /// little.
    pub(super) fn is_hot(&self, place: Place) -> bool {
        self.facts(place).is_hot
    }

    /// Whether a region is cold beyond doubt, where headroom is lacking, and was not moved for
    /// it of late.
    pub(super) fn is_idle(&self, place: Place) -> bool {
        self.facts(place).is_idle
    }

    /// As if it were so many standard errors hotter, or colder, than it seems.
    pub(super) fn beside(&self, place: Place, errors: f64) -> f64 {
        let region = place.region_in(self.view);
        let count = self.count_beside(place.target_in(self.view), region, errors);
        self.at(place.target as usize, region, count)
    }

    /// Its count as if it were so many standard errors hotter.
    #[allow(clippy::cast_possible_truncation)]
    fn count_beside(&self, target: &TargetView<'_>, region: &Region, errors: f64) -> f32 {
        let scans = f32::from(self.view.scans);
        let error = region.variance(scans).sqrt();
        // What is not believed to be hot is not surely cold.
        let middle = if errors > 0.0 {
            region.heat()
        } else {
            region.believed(target.prior, self.view.scans)
        };
        (middle + errors as f32 * error).clamp(0.0, scans)
    }

    /// By the last epoch alone; `None` where that tells nothing.
    pub(super) fn latest(&self, target: TargetId, addr: VirtAddr) -> Option<f64> {
        let at = self.view.targets.iter().position(|t| t.id == target)?;
        if self.scale[at] <= 0.0 {
            return None;
        }
        // What is no longer mapped is worth nothing any more.
        let Some(region) = self.view.targets[at].region_at(addr) else {
            return Some(0.0);
        };
        let count = region.is_fresh().then(|| region.latest())?;
        Some(self.at(at, region, count))
    }

    /// Whether a region was moved the other way too recently, or could not be. What comes
    /// back again and again has to wait longer each time; what is cold may always leave.
    pub(super) fn rests(&self, region: &Region, direction: Direction) -> bool {
        let flips = match direction {
            Direction::Promotion => region.flips(),
            Direction::Demotion => 0,
        };
        let rest = self.settings.rest_epochs << flips;
        self.view.epoch < region.stuck_until()
            || region
                .moved()
                .is_some_and(|(epoch, last)| last != direction && self.view.epoch < epoch + rest)
    }
}

/// The share of the time of accesses that they wait for bandwidth where most is asked of it.
fn queued(view: &View<'_>) -> f64 {
    let factors = view.loaded.iter().map(|&(_, factor)| factor);
    1.0 - 1.0 / factors.fold(1.0, f64::max)
}

/// The sum of a node, of which there are few.
fn entry(sums: &mut Vec<(NodeId, f64)>, node: NodeId) -> &mut f64 {
    let at = sums.iter().position(|(n, _)| *n == node);
    let at = at.unwrap_or_else(|| {
        sums.push((node, 0.0));
        sums.len() - 1
    });
    &mut sums[at].1
}

/// Of the rank that a node is on; what is on none costs nothing.
pub(super) fn latency(target: &TargetView<'_>, node: NodeId) -> f64 {
    let rank = target.tiers.rank_of(node);
    rank.map_or(0.0, |rank| target.tiers.ranks()[rank].latency_ns)
}
