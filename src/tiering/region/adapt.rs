//! Splits and merges regions by an epoch's counts.

use super::aside::Aside;
use super::lone::FollowUp;
use super::rebuild::Rebuild;
use super::scars::Step;
use super::{Doubt, Known, Pages, Region, RegionMap, edges, take_in};
use crate::tiering::observation::Looked;
#[cfg(test)]
use crate::tiering::observation::{AccessSet, Sample, Tally};
use crate::tiering::settings::SplitRule;
use crate::tiering::windows::Coverage;
use crate::units::{Bytes, PageRange, VirtAddr};

/// Share of the scans by which neighbours have to differ to be kept apart at all, however
/// sure it is: where many samples are, any two regions differ by something.
const LEAST_APART: f32 = 1.0 / 12.0;

/// Thresholds of one adaptation, in scans.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// τ1: merge below.
    pub merge: f32,
    /// Neighbours whose averages are further apart than so many standard errors stay
    /// apart; infinite: only τ1 counts, as in HM-Keeper.
    pub surely: f32,
    /// τ2: split above.
    pub split: f32,
    /// No region of up to so many bytes, a power of two, is split; see [`Self::unit`].
    pub minimum: Bytes,
    /// How far around a lone sample what it tells is believed.
    pub reach: Bytes,
    /// Where to split.
    pub rule: SplitRule,
    /// Weight of the newest count in the average.
    pub ema: f32,
    /// So many looks more a sample counts that was seen in all scans: where the last
    /// window is much shorter than the others, chance seldom does that.
    pub full_counts_more: f64,
    /// What a sample weighs in an average by the number of scans that looked at it.
    pub coverage: Coverage,
    /// Neighbours stay apart of which the one is written by more than this share of its pages
    /// more than the other.
    pub apart_in_writes: f32,
}

/// Edges lie at multiples of such a part of the least region that is not split, or between
/// folios: what programs touch begins at any page.
const EDGES_WITHIN: u64 = 16;

impl Thresholds {
    /// [`Self::apart_in_writes`] to begin with: mostly written, and mostly not.
    pub(in crate::tiering) const APART_IN_WRITES: f32 = 0.5;

    /// Bytes at multiples of which edges of a region of such folios lie.
    pub(in crate::tiering) fn unit(&self, folio_bytes: u64) -> u64 {
        unit_of(self.minimum, folio_bytes)
    }
}

/// The same where regions are no smaller than `minimum`.
pub(super) fn unit_of(minimum: Bytes, folio_bytes: u64) -> u64 {
    folio_bytes.max(minimum.0 / EDGES_WITHIN)
}

#[cfg(test)]
impl Thresholds {
    /// HM-Keeper's at three scans.
    pub(crate) const FOR_TESTS: Self = Self {
        merge: 1.0,
        surely: f32::INFINITY,
        split: 2.0,
        minimum: Bytes(64 << 10),
        reach: Bytes(1 << 20),
        rule: SplitRule::Halves,
        ema: 0.5,
        full_counts_more: 0.0,
        coverage: Coverage::WHOLE,
        apart_in_writes: Self::APART_IN_WRITES,
    };
}

/// What one adaptation did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Adapted {
    /// Regions added by splitting.
    pub splits: u64,
    /// Regions taken away by merging.
    pub merges: u64,
    /// What became of those of which one page was known.
    pub lone: FollowUp,
}

impl RegionMap {
    /// Splits and merges by one epoch's `samples` of this target, sorted by
    /// address, with their tallies over `scans` scans.
    pub fn adapt(&mut self, samples: Looked<'_>, scans: u8, thresholds: Thresholds) -> Adapted {
        let mut done = Adapted::default();
        if thresholds.rule == SplitRule::Fixed {
            let mut rest = samples;
            for region in &mut self.regions {
                let mine = take_in(&mut rest, region.range);
                region.watch(mine);
                fold(region, mine, scans, thresholds);
            }
            return done;
        }
        let mut rebuild = Rebuild::new(std::mem::take(&mut self.regions));
        // Whether the last of the new ones may still take in its neighbour.
        let mut open = false;
        let mut rest = samples;
        let mut parts: Vec<Region> = Vec::new();
        let mut scars = Vec::new();
        while let Some(mut region) = rebuild.take() {
            let mine = take_in(&mut rest, region.range);
            done.lone.add(&region, mine, scans);
            region.watch(mine);
            parts.clear();
            if thresholds.rule == SplitRule::Edges {
                edges::cut(region, mine, scans, thresholds, &self.scars, &mut parts);
            } else {
                halve(region, mine, scans, thresholds, &mut parts);
            }
            done.splits += parts.len() as u64 - 1;
            // An edge that moved makes its neighbour grow at once.
            let grows = parts.len() == 1 || thresholds.rule == SplitRule::Edges;
            for mut part in parts.drain(..) {
                // What contradicts itself is alike with nothing.
                let settled = grows && !part.is_mixed;
                match rebuild.last_mut() {
                    Some(last) if open && settled && alike(last, &part, scans, thresholds) => {
                        let page = part.range.start().page_index();
                        if thresholds.rule == SplitRule::Edges {
                            scars.extend(part.start.map(|step| (page, step)));
                        }
                        last.absorb(&part);
                        done.merges += 1;
                        open = false;
                    }
                    last => {
                        let step = last.and_then(|last| step(last, &part, scans));
                        part.start = step.or(part.start);
                        rebuild.put(part);
                        open = settled;
                    }
                }
            }
        }
        self.regions = rebuild.finish();
        self.scars.keep(&scars);
        done
    }
}

#[cfg(test)]
impl RegionMap {
    /// For tests: these pairs are what was seen.
    pub(crate) fn adapt_to(
        &mut self,
        seen: &[(Sample, Tally)],
        scans: u8,
        thresholds: Thresholds,
    ) -> Adapted {
        self.adapt(AccessSet::of(seen).looked(), scans, thresholds)
    }
}

impl Region {
    /// One more epoch, in which these samples of it were looked at.
    fn watch(&mut self, samples: Looked<'_>) {
        self.calm_down();
        self.watched |= !samples.is_empty();
        self.fresh = samples.tallies().iter().any(|tally| tally.known > 0);
        if self.fresh {
            self.untold = 0;
        } else if !samples.is_empty() {
            self.untold = self.untold.saturating_add(1);
        }
    }
}

/// Whether two neighbours may become one: they touch, both were watched, and
/// neither the last epoch nor the average tells them apart. Memory that was
/// watched and never present is alike, too.
fn alike(a: &Region, b: &Region, scans: u8, thresholds: Thresholds) -> bool {
    a.range.end() == b.range.start()
        && a.watched
        && b.watched
        && a.seen == b.seen
        // What is moved to and fro would lose that in a neighbour.
        && a.flips == b.flips
        && !differ_in_writes(a, b, thresholds.apart_in_writes)
        && (a.latest - b.latest).abs() < thresholds.merge
        && (a.hotness - b.hotness).abs() < thresholds.merge
        && !differ(a, b, f32::from(scans), thresholds.surely)
}

/// Whether one is mostly written and the other mostly not: of both together it would no longer
/// be known which, and what is written lies elsewhere where bandwidth is short.
fn differ_in_writes(a: &Region, b: &Region, apart: f32) -> bool {
    let are_apart = |share: fn(&Region) -> Option<f32>| {
        let shares = share(a).zip(share(b));
        shares.is_some_and(|(a, b)| (a - b).abs() > apart)
    };
    are_apart(Region::written) || are_apart(Region::writing)
}

/// How hotness changes from one region to the next, if they touch and it does.
fn step(low: &Region, high: &Region, scans: u8) -> Option<Step> {
    let is_told = low.range.end() == high.range.start() && low.seen && high.seen;
    is_told
        .then(|| Step::between(low.latest, high.latest, scans.into()))
        .flatten()
}

/// Whether the averages of two regions are further apart than chance explains. By chance
/// warm memory is within τ1 of cold now and then: it went into a cold neighbour, and with
/// that out of its tier.
fn differ(a: &Region, b: &Region, scans: f32, errors: f32) -> bool {
    let error = (a.variance(scans) + b.variance(scans)).sqrt();
    (a.hotness - b.hotness).abs() > (errors * error).max(LEAST_APART * scans)
}

/// The samples of one region, added up.
struct Stats {
    mean: f32,
    /// Those that could tell, each by the share of scans in which it could.
    samples: f32,
    contrast: f32,
}

impl Stats {
    /// `None` when no sample of it could tell anything. A sample that could
    /// tell in some scans only counts in proportion.
    fn of(samples: Looked<'_>, scans: u8) -> Option<Self> {
        let (mut sum, mut n, mut whole) = (0.0_f32, 0.0_f32, 0.0_f32);
        let (mut low, mut high) = (f32::INFINITY, 0.0_f32);
        for tally in samples.tallies().iter().filter(|tally| tally.known > 0) {
            let count = f32::from(tally.accessed) * f32::from(scans) / f32::from(tally.known);
            sum += count;
            n += 1.0;
            whole += f32::from(tally.known) / f32::from(scans);
            // One look of several may have met a stray access.
            if tally.known >= scans.min(2) {
                low = low.min(count);
                high = high.max(count);
            }
        }
        (n > 0.0).then(|| Self {
            mean: sum / n,
            samples: whole,
            contrast: (high - low).max(0.0),
        })
    }
}

/// A page that was seen accessed, to be looked at again. HM-Keeper watches all pages of a
/// new region for an interval and draws its first sample among those that were accessed
/// (§1.2), which takes 512 looks for one; of what is drawn anew in each epoch, this is
/// what keeps that sample.
fn accessed(samples: Looked<'_>) -> Option<Doubt> {
    let seen = || samples.iter().filter(|(_, tally)| tally.accessed > 0);
    let (sample, tally) = seen().nth(seen().count() / 2)?;
    Doubt::new(sample.addr.page_index(), tally.accessed, tally.known)
}

/// Folds in the counts of `region` by the rules that remember no places.
fn fold(region: &mut Region, samples: Looked<'_>, scans: u8, thresholds: Thresholds) {
    region.known = Known::NOTHING;
    if let Some(stats) = Stats::of(samples, scans) {
        let told = samples.tallies().iter().filter(|tally| tally.known > 0);
        let orders = told.map(|tally| tally.order.min(20));
        region.fold_folios(orders, thresholds.ema);
        region.fold(stats.mean, stats.samples, thresholds.ema);
        region.is_mixed = stats.contrast > thresholds.split;
    }
}

/// Folds in the counts of `region`, and splits it in half if its samples
/// contradict each other.
fn halve(
    mut region: Region,
    samples: Looked<'_>,
    scans: u8,
    thresholds: Thresholds,
    out: &mut Vec<Region>,
) {
    fold(&mut region, samples, scans, thresholds);
    region.doubt = accessed(samples);
    if region.is_mixed {
        bisect(region, samples, scans, thresholds, out);
    } else {
        out.push(region);
    }
}

/// Splits `region` in half, and halves again while their own samples
/// contradict each other, down to `minimum` bytes or the folio size.
fn bisect(
    mut region: Region,
    samples: Looked<'_>,
    scans: u8,
    thresholds: Thresholds,
    out: &mut Vec<Region>,
) {
    let stats = Stats::of(samples, scans);
    if let Some(stats) = &stats {
        region.refold(stats.mean, thresholds.ema);
        region.is_mixed = stats.contrast > thresholds.split;
    } else {
        // No sample fell into this part: it keeps the parent's count, and
        // is not known to contradict itself.
        region.is_mixed = false;
        region.fresh = false;
    }
    let unit = thresholds.minimum.0.max(region.folio_bytes());
    let range = region.range;
    let middle = VirtAddr(u64::midpoint(range.start().0, range.end().0)).align_down(unit);
    let halves = region
        .is_mixed
        .then(|| range.split_at(middle))
        .flatten()
        .filter(|(low, high)| low.bytes().0 >= unit && high.bytes().0 >= unit);
    let Some((low, high)) = halves else {
        out.push(region);
        return;
    };
    let (pages_low, pages_high) = region.pages.divide(low.pages(), range.pages());
    let half = |range: PageRange, pages: Pages, quota| Region {
        range,
        pages,
        quota,
        evidence: region.evidence / 2.0,
        is_counted: false,
        aside: Aside::part(region.aside.as_deref(), range.pages(), region.range.pages()),
        start: region
            .start
            .filter(|_| range.start() == region.range.start()),
        ..region.clone()
    };
    // "Quota divided evenly; the global total unchanged", but a region without
    // any would never be seen again: the odd or missing one is dealt out with
    // the next quotas.
    let quota = region.quota;
    let low = half(low, pages_low, quota.div_ceil(2));
    let high = half(high, pages_high, (quota / 2).max(1));
    let at = samples.samples().partition_point(|s| s.addr < middle);
    let (samples_low, samples_high) = samples.split_at(at);
    bisect(low, samples_low, scans, thresholds, out);
    bisect(high, samples_high, scans, thresholds, out);
}
