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
//! Where to split there are two rules. [`SplitRule::Halves`] is HM-Keeper's;
//! where it is silent we chose: a split bisects again at once while the samples
//! of a half still contradict each other, since every sample knows its address.
//! [`SplitRule::Edges`] is ours (the module `edges`). With both a child's
//! hotness continues the parent's average with the child's own count; a region
//! merges at most once per epoch; and one whose samples contradict each other
//! never merges, nor what is mostly written with what is mostly not.
//!
//! [`SplitRule::Halves`]: crate::tiering::settings::SplitRule::Halves
//! [`SplitRule::Edges`]: crate::tiering::settings::SplitRule::Edges
//!
//! **Properties** (proptest below): regions are sorted and disjoint; they
//! cover exactly the eligible ranges; splits and merges conserve bytes, pages
//! and, by halves, quota (a merge halves the quota, never below one).

mod adapt;
mod aside;
mod counting;
mod edges;
mod held;
mod known;
mod lone;
#[cfg(test)]
mod made;
mod moves;
mod pages;
mod parted;
mod quiet;
mod rebuild;
mod scars;
mod told;

pub use adapt::{Adapted, Thresholds};
pub use counting::Recount;
pub use lone::Alike;
pub use pages::Pages;
pub use told::Asked;

use aside::Aside;
pub(super) use known::Aim;
use known::{Doubt, Known};
use scars::{Scars, Step};
use told::{Part, share_of};

use super::observation::Looked;
use super::plan::Direction;
use crate::units::{Bytes, NodeId, PAGE_BYTES, PageRange, VirtAddr};

/// Epochs without any verdict after which what was seen of a region is of the past.
const FORGOTTEN_AFTER: u8 = 4;

/// What the last epoch weighs in a region's heat. With a half, what was seen in all of three
/// scans and then in the longest window only, having cooled early in it, is neither hot nor
/// cold: the last epoch is to decide.
const LATEST_COUNTS: f32 = 0.51;
/// Weight of the newest count in how hot a region usually is.
const USUAL_EMA: f32 = 0.02;

/// An epoch, or a count of pages, in half the room: there are a million regions. At one
/// epoch each 100 ms it lasts for 13 years, and longer ones count as that.
fn short(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Adjacent pages watched and moved as one.
#[allow(
    clippy::struct_excessive_bools,
    reason = "facts that have nothing to do with each other, and there are a million regions"
)]
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
    /// Smoothed over many epochs.
    usual: f32,
    /// Samples that `hotness` rests on, older ones counting less.
    evidence: f32,
    /// Whether it was ever watched.
    watched: bool,
    /// Whether any epoch could tell.
    seen: bool,
    /// Whether the last epoch could tell something of it.
    fresh: bool,
    /// Epochs in a row in which it was watched and nothing could be told.
    untold: u8,
    known: Known,
    /// Whether its samples of the last epoch contradict each other.
    is_mixed: bool,
    /// Largest folio seen among its samples in the last epoch, as log2 of pages.
    order: u8,
    /// Folios per page of its samples, 0 to 1, smoothed.
    folios: f32,
    pages: Pages,
    /// Whether its pages were counted to the end since it came to be, not only derived.
    is_counted: bool,
    /// What few regions have.
    aside: Option<Box<Aside>>,
    /// What of it to look at again.
    doubt: Option<Doubt>,
    /// At which of its ends the next samples look for the edge, and whether one looks
    /// again at what is in doubt.
    pub(super) aims: [Aim; 3],
    /// When it was last moved, if it was, and which way.
    moved_at: u32,
    moved: Option<Direction>,
    /// Seconds without an access that was seen.
    quiet: f32,
    /// How often it was moved back at once, of late.
    flips: u8,
    /// Epochs since its last move, or since `flips` became less.
    calm: u8,
    /// The epoch until which it is left alone since nothing of it could be moved, and
    /// whether that is for nothing but sharing: until its samples are not shared.
    stuck_until: u32,
    stuck_by_sharing: bool,
    /// Share of its samples that another process maps too, as last seen, in parts.
    shared: u8,
    /// Share of its samples that were written in an epoch, smoothed, and of those that were accessed.
    written: Part,
    writing: Part,
    /// Whether hotness once changed at its first page.
    start: Option<Step>,
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
            usual: 0.0,
            evidence: 0.0,
            watched: false,
            seen: false,
            fresh: false,
            untold: 0,
            known: Known::NOTHING,
            is_mixed: false,
            order: 0,
            folios: 1.0,
            pages: Pages::default(),
            is_counted: false,
            aside: None,
            doubt: None,
            aims: [Aim::None; 3],
            moved_at: 0,
            moved: None,
            quiet: 0.0,
            flips: 0,
            calm: 0,
            stuck_until: 0,
            stuck_by_sharing: false,
            shared: 0,
            written: Part::NOT_KNOWN,
            writing: Part::NOT_KNOWN,
            start: None,
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

    /// Whether its hotness is that of its pages: it was ever seen, and not so long ago that
    /// samples of it could tell anything. Where nothing can be told, nothing is cold.
    pub fn is_known(&self) -> bool {
        self.seen && self.untold < FORGOTTEN_AFTER
    }

    /// The hotness that may be counted on: as if `prior` samples more had seen nothing.
    /// What rests on few samples, as in a large region when little may be spent, is
    /// chance as likely as heat.
    pub fn assured(&self, prior: f32) -> f32 {
        if !self.is_known() {
            0.0
        } else if prior > 0.0 {
            self.hotness / (1.0 + prior / self.evidence)
        } else {
            self.hotness
        }
    }

    /// Of its hotness, as if that were the mean of its evidence: binomial, with one look
    /// of either result before the first, since of few little is certain. While as many
    /// samples come in each epoch the average is better than that by a half.
    pub(super) fn variance(&self, scans: f32) -> f32 {
        let looks = self.evidence * scans;
        let p = (self.hotness * self.evidence + 1.0) / (looks + 2.0);
        scans * p * (1.0 - p) / self.evidence
    }

    /// Whether the last epoch could tell something of it.
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// The same for the last epoch alone.
    pub fn latest(&self) -> f32 {
        self.latest
    }

    /// The same for the epoch before the last one that could tell.
    pub fn previous(&self) -> f32 {
        self.previous
    }

    /// How hot to hold it now, in scans: its average and its last epoch count alike, but
    /// for ties ([`LATEST_COUNTS`]). The average alone holds what has just become hot and
    /// what has just cooled to be the same.
    pub fn heat(&self) -> f32 {
        LATEST_COUNTS * self.latest + (1.0 - LATEST_COUNTS) * self.hotness
    }

    /// How hot it was over the last fifty epochs or so, as if it had been idle before it was
    /// first watched: what a program comes back to it has used before.
    pub fn usual(&self) -> f32 {
        self.usual
    }

    /// How much the last two epochs differ.
    pub fn change(&self) -> f32 {
        (self.latest - self.previous).abs()
    }

    /// Where its pages are, as far as known.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Share of its pages, 0 to 1, that are written in an epoch; `None` when that was
    /// never asked ([`writes`](super::writes)).
    pub fn written(&self) -> Option<f32> {
        self.written.share()
    }

    /// Share of what is accessed of it, 0 to 1, that is written too, whenever that is; `None`
    /// while none of it was accessed when that was asked.
    pub fn writing(&self) -> Option<f32> {
        self.writing.share()
    }

    /// Bytes that are present, as far as known.
    pub fn resident(&self) -> Bytes {
        Bytes::from_pages(self.pages.total())
    }

    /// Pages at its lower and its upper end between the end and the nearest page
    /// that is known to be as the region is; none where nothing is known.
    pub(super) fn gaps(&self) -> [Option<PageRange>; 2] {
        if self.known.is_empty() {
            return [None; 2];
        }
        let (start, end) = (self.range.start(), self.range.end());
        let addr = |page: u64| VirtAddr(page * PAGE_BYTES);
        [
            PageRange::new(start, addr(self.known.first)),
            PageRange::new(addr(self.known.last + 1), end),
        ]
    }

    /// The page to be looked at again.
    pub(super) fn doubted(&self) -> Option<u64> {
        let inside = |page: &u64| self.range.contains(VirtAddr(page * PAGE_BYTES));
        self.doubt.map(Doubt::page).filter(inside)
    }

    /// Samples that it gets in the next epoch.
    pub fn quota(&self) -> u32 {
        self.quota
    }

    /// Bytes of the folios that it is made of, as far as seen.
    pub fn folio_bytes(&self) -> u64 {
        PAGE_BYTES << self.order.min(20)
    }

    /// What a rate of accesses to one of its folios is for a page of it: where folios of
    /// different size are, by the mean over those that were seen.
    pub fn per_page(&self, of_a_folio: f64) -> f64 {
        of_a_folio * f64::from(self.folios)
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
            // What was seen of all of it tells as much of a part as that is long.
            evidence: self.evidence * (range.pages() as f32 / self.range.pages() as f32),
            known: self.known.within(range),
            aside: Aside::part(self.aside.as_deref(), range.pages(), self.range.pages()),
            is_counted: false,
            start: self.start.filter(|_| range.start() == self.range.start()),
            ..self.clone()
        }
    }

    /// Folds in one epoch's mean count, of so many samples; one that was looked at in
    /// some of the scans only is as much less of one.
    fn fold(&mut self, latest: f32, samples: f32, ema: f32) {
        if self.seen {
            self.evidence = (1.0 - ema) * self.evidence + samples;
            self.before = self.hotness;
            self.previous = self.latest;
            self.usual += USUAL_EMA * (latest - self.usual);
        } else {
            // The first count is the average (WHI_0 = HI_0).
            self.before = latest;
            self.previous = latest;
            self.usual = USUAL_EMA * latest;
            self.evidence = samples;
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

    /// Folds in the folios of an epoch's samples, as log2 of their pages.
    fn fold_folios(&mut self, orders: impl Iterator<Item = u8> + Clone, ema: f32) {
        let count = orders.clone().count();
        let Some(largest) = orders.clone().max() else {
            return;
        };
        let sum: f32 = orders.map(|order| 0.5_f32.powi(order.into())).sum();
        let folios = sum / count as f32;
        self.folios = if self.seen {
            ema * folios + (1.0 - ema) * self.folios
        } else {
            folios
        };
        self.order = largest;
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
        self.usual = mean(self.usual, next.usual);
        self.evidence += next.evidence;
        self.seen |= next.seen;
        self.untold = self.untold.min(next.untold);
        self.written = self.written.join(next.written, mean);
        self.writing = self.writing.join(next.writing, mean);
        self.known = self.known.join(next.known);
        self.is_mixed |= next.is_mixed;
        self.order = self.order.max(next.order);
        self.folios = mean(self.folios, next.folios);
        self.doubt = self.doubt.or(next.doubt);
        // HM-Keeper §1.2: the combined quota is halved.
        self.quota = u32::midpoint(self.quota, next.quota).max(1);
        self.is_counted &= next.is_counted;
        for (node, count) in next.pages.iter() {
            self.pages.add(node, count);
        }
        // A small part that was moved of late does not make the whole rest.
        if theirs > mine {
            (self.moved_at, self.moved) = (next.moved_at, next.moved);
            self.flips = next.flips;
            self.calm = next.calm;
            self.fresh = next.fresh;
        }
        // What is not stuck should not have to wait for what is.
        self.stuck_until = self.stuck_until.min(next.stuck_until);
        self.stuck_by_sharing &= next.stuck_by_sharing;
        self.quiet = self.quiet.min(next.quiet);
        self.shared = held::in_parts(mean(self.shared.into(), next.shared.into()));
        self.aside = Aside::join(self.aside.as_deref(), next.aside.as_deref());
        self.range = range;
    }
}

/// One target's regions, sorted and disjoint.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RegionMap {
    regions: Vec<Region>,
    /// What they cover.
    covered: Vec<PageRange>,
    /// Where regions that differed have merged.
    scars: Scars,
}

impl RegionMap {
    /// In order of address.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Pages that they cover.
    pub fn page_count(&self) -> u64 {
        self.covered.iter().map(|range| range.pages()).sum()
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
        if coalesce(eligible).eq(self.covered.iter().copied()) {
            return;
        }
        self.covered.clear();
        self.covered.extend(coalesce(eligible));
        self.scars.clip(&self.covered);
        let mut old = std::mem::take(&mut self.regions).into_iter().peekable();
        let mut new = Vec::with_capacity(old.len());
        for &piece in &self.covered {
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

    /// Counts mean something else from now on: each becomes what `restated` says.
    pub fn restate(&mut self, restated: impl Fn(f32) -> f32) {
        for region in &mut self.regions {
            for count in [
                &mut region.latest,
                &mut region.previous,
                &mut region.hotness,
                &mut region.before,
                &mut region.usual,
            ] {
                *count = restated(*count);
            }
        }
    }

    /// The pages of `range` were counted; tells of a region that is done with that what was held of
    /// it before.
    pub fn record_count(&mut self, range: PageRange, pages: &[(NodeId, u64)]) -> Option<Recount> {
        let [region] = self.within(range) else {
            return None;
        };
        let before = region.pages.clone();
        let is_first = !region.is_counted && before.total() == 0;
        region.count(range, pages).then(|| Recount {
            before,
            after: region.pages.clone(),
            pages: region.range.pages(),
            is_first,
        })
    }
}

/// Of the samples in `rest`, those in `range`; leaves those that come after. One after the
/// other: to find them by halves misses the cache each time.
pub(super) fn take_in<'a>(rest: &mut Looked<'a>, range: PageRange) -> Looked<'a> {
    let until = |end| {
        let before = rest.samples().iter().take_while(|s| s.addr < end);
        before.count()
    };
    let (first, last) = (until(range.start()), until(range.end()));
    let (before, after) = rest.split_at(last);
    *rest = after;
    before.split_at(first).1
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
mod tests;
