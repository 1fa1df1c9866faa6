//! Regions: adjacent pages of one target that are watched and moved as one.
//!
//! **Unit.** Hotness and counts are in *scans of one epoch* (0 to
//! `num_scans`), residency in pages of 4 KiB, ranges are half-open.
//!
//! **Problem.** Watching every page of a terabyte costs seconds; watching
//! fixed blocks mixes hot and cold. So regions follow the accesses:
//! neighbours that behave alike become one, a region whose samples contradict
//! each other becomes two (HM-Keeper §1.2).
//!
//! **Approach.** A [`RegionMap`] is a sorted vector, rebuilt by one pass per
//! change: [`sync`](RegionMap::sync) cuts it to what is mapped and adds what is
//! new, [`adapt`](RegionMap::adapt) folds in an epoch's counts, splits and
//! merges.
//!
//! Where the paper is silent we chose: a split bisects again at once while the
//! samples of a half still contradict each other, since every sample knows its
//! address; a child's hotness continues the parent's average with the child's
//! own count; a region merges at most once per epoch; and one whose samples
//! contradict each other never merges.
//!
//! **Properties** (proptest below): regions are sorted and disjoint; they
//! cover exactly the eligible ranges; splits and merges conserve bytes, pages
//! and quota (a merge halves the quota, never below one).

use super::observation::{Sample, Tally};
use super::plan::Direction;
use crate::units::{Bytes, NodeId, PAGE_BYTES, PageRange, VirtAddr};

/// Pages of one region per node, ascending by node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pages(Vec<(NodeId, u64)>);

impl Pages {
    /// From counts in any order; a node may occur more than once.
    pub fn from_counts(counts: &[(NodeId, u64)]) -> Self {
        let mut pages = Self::default();
        for &(node, count) in counts {
            pages.add(node, count);
        }
        pages
    }

    /// On one node.
    pub fn on(&self, node: NodeId) -> u64 {
        self.0
            .iter()
            .find(|(n, _)| *n == node)
            .map_or(0, |&(_, count)| count)
    }

    /// On all nodes: the pages that are present.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|&(_, count)| count).sum()
    }

    /// Each node that has any, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, u64)> + '_ {
        self.0.iter().copied()
    }

    /// `count` more on `node`.
    pub fn add(&mut self, node: NodeId, count: u64) {
        if count == 0 {
            return;
        }
        match self.0.binary_search_by_key(&node, |&(n, _)| n) {
            Ok(at) => self.0[at].1 += count,
            Err(at) => self.0.insert(at, (node, count)),
        }
    }

    /// `count` pages go from one node to another, as far as there are any.
    pub fn shift(&mut self, from: NodeId, to: NodeId, count: u64) {
        if let Ok(at) = self.0.binary_search_by_key(&from, |&(n, _)| n) {
            let count = count.min(self.0[at].1);
            self.0[at].1 -= count;
            if self.0[at].1 == 0 {
                self.0.remove(at);
            }
            self.add(to, count);
        }
    }

    /// The share `part/whole` of it, and the rest. Rounded per node; nothing
    /// is lost.
    fn divide(&self, part: u64, whole: u64) -> (Self, Self) {
        let (mut first, mut second) = (Self::default(), Self::default());
        for &(node, count) in &self.0 {
            let share = u128::from(count) * u128::from(part) / u128::from(whole.max(1));
            let share = u64::try_from(share).unwrap_or(count).min(count);
            first.add(node, share);
            second.add(node, count - share);
        }
        (first, second)
    }
}

/// A sweep of a region that takes more than one epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Counting {
    next: VirtAddr,
    pages: Pages,
}

/// Adjacent pages watched and moved as one.
#[derive(Clone, Debug, PartialEq)]
pub struct Region {
    range: PageRange,
    /// Samples that it gets per epoch.
    pub(super) quota: u32,
    /// Mean count of its samples in the last epoch that could tell (HI).
    latest: f32,
    /// The same, one epoch earlier.
    previous: f32,
    /// Smoothed over epochs (WHI, Eq. 8.2).
    hotness: f32,
    /// `hotness` before the last epoch was folded in.
    before: f32,
    /// Whether it was ever watched.
    watched: bool,
    /// Whether any epoch could tell.
    seen: bool,
    /// Greatest minus smallest count among its samples in the last epoch.
    contrast: f32,
    /// Largest folio seen among its samples, as log2 of pages.
    order: u8,
    pages: Pages,
    /// Epoch of the last complete count of its pages; 0: only derived.
    counted: u64,
    counting: Option<Box<Counting>>,
    /// When and where to it was last moved.
    moved: Option<(u64, Direction)>,
    /// Until this epoch it is left alone: nothing of it could be moved.
    stuck_until: u64,
}

impl Region {
    fn new(range: PageRange) -> Self {
        Self {
            range,
            quota: 1,
            latest: 0.0,
            previous: 0.0,
            hotness: 0.0,
            before: 0.0,
            watched: false,
            seen: false,
            contrast: 0.0,
            order: 0,
            pages: Pages::default(),
            counted: 0,
            counting: None,
            moved: None,
            stuck_until: 0,
        }
    }

    /// A region for tests of policies.
    #[cfg(test)]
    pub(crate) fn for_test(range: PageRange, hotness: f32, pages: &[(NodeId, u64)]) -> Self {
        Self {
            latest: hotness,
            previous: hotness,
            hotness,
            before: hotness,
            watched: true,
            seen: true,
            pages: Pages::from_counts(pages),
            counted: 1,
            ..Self::new(range)
        }
    }

    /// Its addresses.
    pub fn range(&self) -> PageRange {
        self.range
    }

    /// Smoothed scans per epoch that see a page of it accessed, 0 to `num_scans`.
    pub fn hotness(&self) -> f32 {
        self.hotness
    }

    /// The same for the last epoch alone.
    pub fn latest(&self) -> f32 {
        self.latest
    }

    /// How much the last two epochs differ.
    pub fn change(&self) -> f32 {
        (self.latest - self.previous).abs()
    }

    /// Where its pages are, as far as known.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Bytes that are present, as far as known.
    pub fn resident(&self) -> Bytes {
        Bytes::from_pages(self.pages.total())
    }

    /// Samples that it gets in the next epoch.
    pub fn quota(&self) -> u32 {
        self.quota
    }

    /// Bytes of the folios that it is made of, as far as seen.
    pub fn folio_bytes(&self) -> u64 {
        PAGE_BYTES << self.order.min(20)
    }

    /// The epoch and direction of its last move.
    pub fn moved(&self) -> Option<(u64, Direction)> {
        self.moved
    }

    /// The epoch until which it is left alone because nothing of it could be
    /// moved; 0: never.
    pub fn stuck_until(&self) -> u64 {
        self.stuck_until
    }

    /// Whether its residency was ever counted, not only derived.
    pub(super) fn counted(&self) -> u64 {
        self.counted
    }

    /// What of it to count next, at most `limit` pages.
    pub(super) fn next_sweep(&self, limit: u64) -> PageRange {
        let start = self
            .counting
            .as_ref()
            .map_or(self.range.start(), |c| c.next);
        let end = start
            .checked_add(Bytes::from_pages(limit.max(1)))
            .map_or(self.range.end(), |e| e.min(self.range.end()));
        PageRange::new(start, end).unwrap_or(self.range)
    }

    /// Folds in a count of `range`, if it is the one that was due.
    fn count(&mut self, range: PageRange, pages: &[(NodeId, u64)], epoch: u64) {
        let due = self
            .counting
            .as_ref()
            .map_or(self.range.start(), |c| c.next);
        if range.start() != due || !self.range.covers(range) {
            return;
        }
        let mut counting = self.counting.take().unwrap_or_else(|| {
            Box::new(Counting {
                next: range.start(),
                pages: Pages::default(),
            })
        });
        for &(node, count) in pages {
            counting.pages.add(node, count);
        }
        counting.next = range.end();
        if range.end() == self.range.end() {
            self.pages = counting.pages;
            self.counted = epoch;
        } else {
            self.counting = Some(counting);
        }
    }

    /// The part of it in `range`; residency is prorated until counted again.
    fn part(&self, range: PageRange) -> Self {
        if range == self.range {
            return self.clone();
        }
        let (pages, _) = self.pages.divide(range.pages(), self.range.pages());
        Self {
            range,
            pages,
            counted: 0,
            counting: None,
            ..self.clone()
        }
    }

    /// Folds in one epoch's mean count.
    fn fold(&mut self, latest: f32, ema: f32) {
        if self.seen {
            self.before = self.hotness;
            self.previous = self.latest;
        } else {
            // The first count is the average (WHI_0 = HI_0).
            self.before = latest;
            self.previous = latest;
            self.seen = true;
        }
        self.latest = latest;
        self.hotness = ema * latest + (1.0 - ema) * self.before;
    }

    /// After a split: the child's own count in place of the parent's.
    fn refold(&mut self, latest: f32, ema: f32) {
        self.latest = latest;
        self.hotness = ema * latest + (1.0 - ema) * self.before;
    }

    fn absorb(&mut self, next: &Self) {
        let Some(range) = self.range.join(next.range) else {
            return;
        };
        let (mine, theirs) = (self.range.pages() as f32, next.range.pages() as f32);
        let mean = |a: f32, b: f32| (a * mine + b * theirs) / (mine + theirs);
        self.latest = mean(self.latest, next.latest);
        self.previous = mean(self.previous, next.previous);
        self.hotness = mean(self.hotness, next.hotness);
        self.before = mean(self.before, next.before);
        self.seen |= next.seen;
        self.contrast = self.contrast.max(next.contrast);
        self.order = self.order.max(next.order);
        // HM-Keeper §1.2: the combined quota is halved.
        self.quota = u32::midpoint(self.quota, next.quota).max(1);
        self.counted = self.counted.min(next.counted);
        self.counting = None;
        for (node, count) in next.pages.iter() {
            self.pages.add(node, count);
        }
        self.moved = self.moved.max(next.moved);
        // What is not stuck should not have to wait for what is.
        self.stuck_until = self.stuck_until.min(next.stuck_until);
        self.range = range;
    }
}

/// Thresholds of one adaptation, in scans.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// τ1: merge below.
    pub merge: f32,
    /// τ2: split above.
    pub split: f32,
    /// No region is split below so many bytes, a power of two.
    pub minimum: Bytes,
    /// Weight of the newest count in the average.
    pub ema: f32,
}

/// What one adaptation did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adapted {
    /// Regions added by splitting.
    pub splits: u64,
    /// Regions taken away by merging.
    pub merges: u64,
}

/// One target's regions, sorted and disjoint.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RegionMap {
    regions: Vec<Region>,
}

impl RegionMap {
    /// In order of address.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// For drawing samples and dealing out quotas.
    pub(super) fn regions_mut(&mut self) -> &mut [Region] {
        &mut self.regions
    }

    /// The regions that touch `range`.
    fn within(&mut self, range: PageRange) -> &mut [Region] {
        let first = self
            .regions
            .partition_point(|r| r.range.end() <= range.start());
        let last = self
            .regions
            .partition_point(|r| r.range.start() < range.end());
        &mut self.regions[first..last.max(first)]
    }

    /// Makes the regions cover exactly `eligible` (sorted, disjoint). What is
    /// still mapped keeps what is known of it; what is new becomes regions of
    /// `initial` bytes, a power of two, aligned to it.
    pub fn sync(&mut self, eligible: &[PageRange], initial: Bytes) {
        let mut old = std::mem::take(&mut self.regions).into_iter().peekable();
        let mut new = Vec::with_capacity(old.len());
        for piece in coalesce(eligible) {
            let mut at = piece.start();
            // Regions that end before the piece are gone.
            while old.next_if(|r| r.range.end() <= at).is_some() {}
            while let Some(region) = old.peek() {
                let Some(kept) = region.range.intersect(piece) else {
                    break;
                };
                fill(&mut new, at, kept.start(), initial);
                new.push(region.part(kept));
                at = kept.end();
                if region.range.end() > piece.end() {
                    // Its rest may lie in the next piece.
                    break;
                }
                old.next();
            }
            fill(&mut new, at, piece.end(), initial);
        }
        self.regions = new;
    }

    /// Pages of `range` went from one node to another.
    pub fn record_move(
        &mut self,
        range: PageRange,
        from: NodeId,
        to: NodeId,
        pages: u64,
        at: (u64, Direction),
    ) {
        let mut left = pages;
        for region in self.within(range) {
            let count = left.min(region.pages.on(from));
            region.pages.shift(from, to, count);
            left -= count;
            if count > 0 {
                region.moved = Some(at);
                // A count under way has seen them where they no longer are.
                if let Some(counting) = &mut region.counting {
                    counting.pages.shift(from, to, count);
                }
            }
        }
    }

    /// Nothing of `range` could be moved: leave it alone until `epoch`.
    pub fn record_stuck(&mut self, range: PageRange, epoch: u64) {
        for region in self.within(range) {
            region.stuck_until = epoch;
        }
    }

    /// The pages of `range` were counted.
    pub fn record_count(&mut self, range: PageRange, pages: &[(NodeId, u64)], epoch: u64) {
        if let [region] = self.within(range) {
            region.count(range, pages, epoch);
        }
    }

    /// Splits and merges by one epoch's `samples` of this target, sorted by
    /// address, with their tallies over `scans` scans.
    pub fn adapt(
        &mut self,
        samples: &[(Sample, Tally)],
        scans: u8,
        thresholds: Thresholds,
    ) -> Adapted {
        let mut done = Adapted::default();
        let mut new: Vec<Region> = Vec::with_capacity(self.regions.len());
        // Whether the last of `new` may still take in its neighbour.
        let mut open = false;
        let mut rest = samples;
        for mut region in std::mem::take(&mut self.regions) {
            let skip = rest.partition_point(|(s, _)| s.addr < region.range.start());
            rest = &rest[skip..];
            let take = rest.partition_point(|(s, _)| s.addr < region.range.end());
            let (mine, after) = rest.split_at(take);
            rest = after;

            region.watched |= !mine.is_empty();
            if let Some(stats) = Stats::of(mine, scans) {
                region.fold(stats.mean, thresholds.ema);
                region.contrast = stats.contrast;
                region.order = stats.order;
            }
            if region.contrast > thresholds.split {
                let before = new.len();
                bisect(region, mine, scans, thresholds, &mut new);
                let parts = (new.len() - before) as u64;
                done.splits += parts - 1;
                // Still contradicting itself: too small to split, and not
                // alike with anything.
                open = false;
                continue;
            }
            match new.last_mut() {
                Some(last) if open && alike(last, &region, thresholds.merge) => {
                    last.absorb(&region);
                    done.merges += 1;
                    open = false;
                }
                _ => {
                    new.push(region);
                    open = true;
                }
            }
        }
        self.regions = new;
        done
    }
}

/// Whether two neighbours may become one: they touch, both were watched, and
/// neither the last epoch nor the average tells them apart. Memory that was
/// watched and never present is alike, too.
fn alike(a: &Region, b: &Region, merge: f32) -> bool {
    a.range.end() == b.range.start()
        && a.watched
        && b.watched
        && a.seen == b.seen
        && (a.latest - b.latest).abs() < merge
        && (a.hotness - b.hotness).abs() < merge
}

/// The samples of one region, added up.
struct Stats {
    mean: f32,
    contrast: f32,
    order: u8,
}

impl Stats {
    /// `None` when no sample of it could tell anything. A sample that could
    /// tell in some scans only counts in proportion.
    fn of(samples: &[(Sample, Tally)], scans: u8) -> Option<Self> {
        let (mut sum, mut n) = (0.0_f32, 0.0_f32);
        let (mut low, mut high) = (f32::INFINITY, 0.0_f32);
        let mut order = 0;
        for (_, tally) in samples.iter().filter(|(_, t)| t.known > 0) {
            let count = f32::from(tally.accessed) * f32::from(scans) / f32::from(tally.known);
            sum += count;
            n += 1.0;
            low = low.min(count);
            high = high.max(count);
            order = order.max(tally.order);
        }
        (n > 0.0).then(|| Self {
            mean: sum / n,
            contrast: high - low,
            order,
        })
    }
}

/// Splits `region` in half, and halves again while their own samples
/// contradict each other, down to `minimum` bytes or the folio size.
fn bisect(
    mut region: Region,
    samples: &[(Sample, Tally)],
    scans: u8,
    thresholds: Thresholds,
    out: &mut Vec<Region>,
) {
    let stats = Stats::of(samples, scans);
    if let Some(stats) = &stats {
        region.refold(stats.mean, thresholds.ema);
        region.contrast = stats.contrast;
    } else {
        // No sample fell into this part: it keeps the parent's count, and its
        // contrast is unknown.
        region.contrast = 0.0;
    }
    let unit = thresholds.minimum.0.max(region.folio_bytes());
    let range = region.range;
    let middle = VirtAddr(u64::midpoint(range.start().0, range.end().0)).align_down(unit);
    let halves = (region.contrast > thresholds.split)
        .then(|| range.split_at(middle))
        .flatten()
        .filter(|(low, high)| low.bytes().0 >= unit && high.bytes().0 >= unit);
    let Some((low, high)) = halves else {
        out.push(region);
        return;
    };
    let (pages_low, pages_high) = region.pages.divide(low.pages(), range.pages());
    let half = |range, pages, quota| Region {
        range,
        pages,
        quota,
        counted: 0,
        counting: None,
        ..region.clone()
    };
    // "Quota divided evenly; the global total unchanged", but a region without
    // any would never be seen again: the odd or missing one is dealt out with
    // the next quotas.
    let quota = region.quota;
    let low = half(low, pages_low, quota.div_ceil(2));
    let high = half(high, pages_high, (quota / 2).max(1));
    let at = samples.partition_point(|(s, _)| s.addr < middle);
    let (samples_low, samples_high) = samples.split_at(at);
    bisect(low, samples_low, scans, thresholds, out);
    bisect(high, samples_high, scans, thresholds, out);
}

/// New regions over `start..end`, aligned to `initial` bytes.
fn fill(out: &mut Vec<Region>, start: VirtAddr, end: VirtAddr, initial: Bytes) {
    let mut at = start;
    while at < end {
        let next = at
            .align_down(initial.0)
            .checked_add(initial)
            .map_or(end, |n| n.min(end));
        match PageRange::new(at, next) {
            Some(range) => out.push(Region::new(range)),
            None => return,
        }
        at = next;
    }
}

/// Ranges that touch become one: a region may span mappings.
fn coalesce(ranges: &[PageRange]) -> impl Iterator<Item = PageRange> + '_ {
    let mut rest = ranges.iter().copied().peekable();
    std::iter::from_fn(move || {
        let mut whole = rest.next()?;
        while let Some(joined) = rest.peek().and_then(|next| whole.join(*next)) {
            whole = joined;
            rest.next();
        }
        Some(whole)
    })
}

#[cfg(test)]
#[path = "region_tests.rs"]
mod tests;
