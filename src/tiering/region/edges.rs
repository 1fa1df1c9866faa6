//! Cuts a region where its samples say that it changes.
//!
//! **Unit.** Points are pages of 4 KiB by number, with accessed of known scans.
//!
//! **Problem.** Halving, as HM-Keeper §1.2 does, meets an edge only by chance,
//! and forgets with each epoch where memory was seen hot or cold: a hot chunk
//! of a large cold region has to be met by several samples of one epoch.
//!
//! **Approach.** A region remembers between which pages it is known to be as it
//! is ([`Known`]). These two join the epoch's samples, and all together are cut
//! into the segments of greatest likelihood, counts being binomial, each cut
//! paid for by a penalty (optimal partitioning, Jackson et al. 2005, pruned as in
//! PELT, Killick et al. 2012). A cut lies in the middle between the samples that
//! it tells apart, at any page, but within no folio. That is where
//! [`sampling`](crate::tiering::sampling) has the
//! next one drawn: an edge is found by bisection over epochs, at one sample each.
//!
//! What contradicts a region's past by a sample of its own is believed for
//! `reach` around it and no further, or up to where an edge was once ([`Scars`]). What
//! contradicts it, but not enough for a cut, is looked at again in the next epoch, and the
//! looks of both count together ([`Doubt`]): a sequential test, for lone pages among stray
//! accesses. So is what one look alone found accessed where nothing was: it changes
//! nothing before.
//!
//! **Properties** (proptest in the parent): pieces cover the region; what is
//! known of a piece lies in it.

use super::adapt::Thresholds;
use super::scars::{Scars, Step};
use super::{Doubt, Known, Region};
use crate::tiering::observation::Looked;
use crate::units::{PAGE_BYTES, PageRange, VirtAddr};

/// Most beginnings of a segment that are kept open while the cuts are sought: it
/// bounds the work, and the length of a segment to so many runs of equal samples.
const MOST_OPEN: usize = 512;
/// Least price of a cut. A sample of 3 of 3 scans beside one of 0 gains 4.16, and
/// one between two such gains 5.73 by two cuts: both are to pay. One of 2 beside
/// one of 0 gains 1.91, one of 1 among twenty of 0 gains 3.2 by two: chance.
const CUT_PENALTY: f64 = 2.5;
/// What chance gains grows with the logarithm of all looks, and so does the price.
/// By Schwarz's criterion it would be one of these, a cut being two parameters; but
/// then 2 of 2 in much cold memory are not cut out where there is one stray access
/// more.
const PER_LOG_LOOKS: f64 = 0.75;
/// Samples that a piece counts as having at least that was cut out: by the penalty, it
/// is not there by chance.
pub(super) const CUT_EVIDENCE: f32 = 3.0;
/// Looks at a page that make sure of it: one alone may have met a stray access.
const SURE: f64 = 2.0;

/// What is known of one page.
#[derive(Clone, Copy, Debug)]
struct Point {
    page: u64,
    accessed: f64,
    known: f64,
    /// Of its folio, as log2 of pages.
    order: u8,
    /// Of this epoch; otherwise remembered.
    fresh: bool,
    /// What it weighs in an average.
    weight: f64,
}

impl Point {
    /// In scans of an epoch.
    fn count(self, scans: f64) -> f64 {
        self.accessed * scans / self.known
    }

    /// Whether `page` is of the same folio.
    fn shares_folio(self, page: u64) -> bool {
        self.page >> self.order == page >> self.order
    }

    /// Whether it was looked at often enough to be believed alone.
    fn is_sure(self, scans: f64) -> bool {
        self.known >= scans.min(SURE)
    }

    /// Whether it tells of something else than `past`, in scans of an epoch.
    fn surprises(self, past: f64, scans: f64, split: f64) -> bool {
        (self.count(scans) - past).abs() > split
    }

    /// The same for sure.
    fn contradicts(self, past: f64, scans: f64, split: f64) -> bool {
        self.is_sure(scans) && self.surprises(past, scans, split)
    }

    /// Whether it may be a stray access: one look alone, where nothing was.
    fn may_stray(self, past: f64, scans: f64, split: f64) -> bool {
        self.accessed > 0.0 && !self.is_sure(scans) && self.surprises(past, scans, split)
    }
}

/// Appends the pieces of `region`, updated by this epoch's `samples` of it.
pub(super) fn cut(
    mut region: Region,
    samples: Looked<'_>,
    scans: u8,
    thresholds: Thresholds,
    scars: &Scars,
    out: &mut Vec<Region>,
) {
    let scans = f64::from(scans);
    let told = samples.iter().filter(|(_, tally)| tally.known > 0);
    let mut points: Vec<Point> = told
        .map(|(sample, tally)| {
            // Seen in the shortest window, too: that is worth more than one look.
            let is_full = tally.accessed == tally.known && f64::from(tally.known) >= scans;
            let more = if is_full {
                thresholds.full_counts_more
            } else {
                0.0
            };
            (sample, tally, more)
        })
        .map(|(sample, tally, more)| Point {
            page: sample.addr.page_index(),
            accessed: f64::from(tally.accessed) + more,
            known: f64::from(tally.known) + more,
            order: tally.order.min(20),
            fresh: true,
            weight: thresholds.coverage.of(tally.known).into(),
        })
        .collect();
    if points.is_empty() {
        out.push(region);
        return;
    }
    region.fold_folios(points.iter().map(|point| point.order), thresholds.ema);
    // Two samples of one folio saw the same.
    points.dedup_by(|b, a| a.shares_folio(b.page));
    if let Some(doubt) = region.doubt.take()
        && let Some(again) = points.iter_mut().find(|p| p.shares_folio(doubt.page()))
    {
        again.accessed += doubt.accessed();
        again.known += doubt.known();
    }
    let reach = thresholds.reach.pages();
    remember(&region, &mut points, scans, thresholds.split.into(), reach);
    let least = thresholds.minimum.pages();
    let starts = if region.range.pages() > least {
        segments(&points, scans)
    } else {
        vec![0]
    };
    let unit = (thresholds.unit(region.folio_bytes()) / PAGE_BYTES).max(1);

    let whole = region.range;
    let end = whole.end().page_index();
    let mut begin = whole.start().page_index();
    let mut first = 0;
    for (i, &start) in starts.iter().enumerate() {
        let next = starts.get(i + 1).copied().unwrap_or(points.len());
        let edge = if next == points.len() {
            end
        } else {
            let after = starts.get(i + 2).copied().unwrap_or(points.len());
            let sides = (&points[start..next], &points[next..after]);
            match edge(
                sides,
                &region,
                scars,
                (scans, thresholds.split.into()),
                (reach, unit),
            ) {
                Some(edge) => edge,
                // Too near: one region that contradicts itself.
                None => continue,
            }
        };
        let mine = &points[first..next];
        let range = PageRange::new(VirtAddr(begin * PAGE_BYTES), VirtAddr(edge * PAGE_BYTES));
        debug_assert!(range.is_some(), "cuts ascend");
        if let Some(range) = range {
            let mut piece = piece(&region, range, mine, scans, thresholds);
            piece.doubt = doubt(&piece, mine, scans, thresholds);
            if range != whole {
                piece.evidence = piece.evidence.max(CUT_EVIDENCE);
            }
            out.push(piece);
            (begin, first) = (edge, next);
        }
    }
}

/// Adds what is remembered to this epoch's points, as far as these leave it
/// believable.
fn remember(region: &Region, points: &mut Vec<Point>, scans: f64, split: f64, reach: u64) {
    if region.known.is_empty() {
        return;
    }
    let past = f64::from(region.latest);
    let contradicts = |p: &Point| p.contradicts(past, scans, split);
    let is_mixed = region.is_mixed;
    // Several samples, all sure, and not one that agrees: it is all different now. Two do
    // where they speak for all of it.
    let several = points.len() > 2 || (points.len() == 2 && region.range.pages() <= 4 * reach);
    if several && points.iter().all(contradicts) {
        return;
    }
    let Known { first, last } = region.known;
    let inside = |p: &&Point| contradicts(p) && (first..=last).contains(&p.page);
    let doubts: Vec<u64> = points.iter().filter(inside).map(|p| p.page).collect();
    for page in [first, last] {
        let doubted = doubts.iter().any(|d| d.abs_diff(page) <= reach);
        let at = points.partition_point(|p| p.page < page);
        // In a region that contradicts itself the average is true of no folio: one that
        // was looked at again speaks for itself, or it would never be cut out.
        let mut beside = points[at.saturating_sub(1)..].iter().take(2);
        let is_told = beside.any(|p| p.page == page || is_mixed && p.shares_folio(page));
        if !doubted && !is_told {
            let point = Point {
                page,
                accessed: past,
                known: scans,
                order: 0,
                fresh: false,
                weight: 1.0,
            };
            points.insert(at, point);
        }
    }
}

/// Where the next of two neighbouring segments begins, as a page number; `None`
/// when no multiple of `unit` lies between them.
fn edge(
    (low, high): (&[Point], &[Point]),
    region: &Region,
    scars: &Scars,
    (scans, split): (f64, f64),
    (reach, unit): (u64, u64),
) -> Option<u64> {
    let (last, first) = (low.last()?.page, high.first()?.page);
    let is_odd = |points: &[Point]| {
        let past = f64::from(region.latest);
        region.seen && mean(points.iter(), scans).is_some_and(|is| (is - past).abs() > split)
    };
    let middle = u64::midpoint(last + 1, first);
    let is_up = mean(high.iter(), scans) > mean(low.iter(), scans);
    let step = if is_up { Step::Up } else { Step::Down };
    let gap = scars.within(last + 1..first + 1);
    // What lies between two old edges is believed to be as it was; of one alone nobody
    // knows how far it reaches.
    let (start, end) = (
        region.range.start().page_index(),
        region.range.end().page_index(),
    );
    let (scar, guess) = match (is_odd(low), is_odd(high)) {
        (true, false) => {
            let below = scars.within(start..low.first()?.page + 1).last();
            let paired = gap
                .first()
                .filter(|_| below.is_some_and(|s| s.step != step));
            (paired, middle.min(last.saturating_add(reach)))
        }
        (false, true) => {
            let above = scars.within(high.last()?.page + 1..end).first();
            let paired = gap.last().filter(|_| above.is_some_and(|s| s.step != step));
            (paired, middle.max(first.saturating_sub(reach)))
        }
        _ => {
            let alike = gap.iter().filter(|s| s.step == step);
            (alike.min_by_key(|s| s.page.abs_diff(middle)), middle)
        }
    };
    let edge = scar.filter(|s| s.step == step).map_or(guess, |s| s.page);
    let (lowest, highest) = ((last / unit + 1) * unit, first / unit * unit);
    (lowest <= highest).then(|| (edge / unit * unit).clamp(lowest, highest))
}

/// The part of a region in `range`, with the points in it.
fn piece(
    region: &Region,
    range: PageRange,
    points: &[Point],
    scans: f64,
    thresholds: Thresholds,
) -> Region {
    let mut piece = region.part(range);
    let Known { first, last } = region.known;
    let was_known =
        region.known.is_empty() || points.iter().any(|p| (first..=last).contains(&p.page));
    if !was_known {
        // Nothing was ever seen of it: it lay in its region by guess, and was
        // moved with it by guess.
        piece.seen = false;
        piece.moved = None;
        piece.flips = 0;
    }
    // Also where it is one look that found it idle: a region that gets no more has nothing
    // else to go by. One that found what was idle accessed is in doubt.
    let (past, split) = (f64::from(region.latest), thresholds.split.into());
    let strays = |p: &Point| region.seen && p.may_stray(past, scans, split);
    let fresh = || points.iter().filter(|p| p.fresh && !strays(p));
    piece.fresh = fresh().next().is_some();
    if let Some(latest) = mean(fresh(), scans) {
        let samples: f64 = fresh().map(|p| (p.known / scans).min(1.0)).sum();
        #[allow(clippy::cast_possible_truncation)]
        piece.fold(latest as f32, samples as f32, thresholds.ema);
    }
    let sure = points.iter().filter(|p| p.is_sure(scans));
    let counts = sure.map(|p| p.count(scans));
    let (low, high) = counts.fold((f64::INFINITY, 0.0_f64), |(low, high), count| {
        (low.min(count), high.max(count))
    });
    piece.is_mixed = high - low > split;
    // One look says too little to cut, but enough not to be held to be like the rest.
    let now = f64::from(piece.latest);
    let agrees = |p: &&Point| p.is_sure(scans) || (p.count(scans) - now).abs() <= scans / 2.0;
    let mut agree = points.iter().filter(agrees);
    let first = agree.next();
    piece.known = match (first, agree.next_back().or(first)) {
        (Some(first), Some(last)) => Known {
            first: first.page,
            last: last.page,
        },
        _ => Known::NOTHING,
    };
    piece
}

/// Which of its points contradicts a piece most, if one does.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn doubt(piece: &Region, points: &[Point], scans: f64, thresholds: Thresholds) -> Option<Doubt> {
    let past = f64::from(piece.latest);
    let weight = |p: &Point| (p.count(scans) - past).abs() * p.known;
    // What is warm is seen in every scan now and then. Of huge folios one sample says it
    // all, and with tapered windows chance seldom does that.
    let tells = |p: &Point| p.order > 0 || thresholds.full_counts_more > 0.0;
    let split = thresholds.split.into();
    let contradicts = |p: &&Point| {
        let is_odd = p.contradicts(past, scans, split) || p.may_stray(past, scans, split);
        p.fresh && tells(p) && is_odd
    };
    let most =
        (points.iter().filter(contradicts)).max_by(|a, b| weight(a).total_cmp(&weight(b)))?;
    // Of older looks so many as have their say for two epochs, all of them small.
    let kept = (2.0 * scans / most.known).min(1.0);
    Doubt::new(
        most.page,
        (most.accessed * kept).round() as u8,
        (most.known * kept).round() as u8,
    )
}

/// Mean count of some points: a page does not weigh more for being looked at more often
/// since it surprised, but less where it was looked at in short windows only, in which
/// little is seen of what is cold.
fn mean<'a>(points: impl Iterator<Item = &'a Point>, scans: f64) -> Option<f64> {
    let (sum, n) = points.fold((0.0, 0.0), |(sum, n), p| {
        (sum + p.count(scans) * p.weight, n + p.weight)
    });
    (n > 0.0).then(|| sum / n)
}

fn sums(points: &[Point]) -> (f64, f64) {
    points
        .iter()
        .fold((0.0, 0.0), |(a, k), p| (a + p.accessed, k + p.known))
}

/// Indices at which the segments of greatest penalised likelihood begin; the
/// first is 0.
fn segments(points: &[Point], scans: f64) -> Vec<usize> {
    // A best cut never lies between equal points: runs of them are taken as one.
    let same = |a: &Point, b: &Point| (a.accessed / a.known - b.accessed / b.known).abs() < 1e-9;
    let mut runs: Vec<usize> = (0..points.len())
        .filter(|&i| i == 0 || !same(&points[i - 1], &points[i]))
        .collect();
    if runs.len() <= 1 {
        return vec![0];
    }
    runs.push(points.len());
    let mut sums: Vec<(f64, f64)> = vec![(0.0, 0.0)];
    for run in runs.windows(2) {
        let (a, k) = sums[sums.len() - 1];
        let (more_a, more_k) = self::sums(&points[run[0]..run[1]]);
        sums.push((a + more_a, k + more_k));
    }
    // best[j]: cost of the first j runs, and where the last segment begins.
    let looks = sums[sums.len() - 1].1;
    let penalty = CUT_PENALTY.max(PER_LOG_LOOKS * looks.ln());
    let mut best: Vec<(f64, usize)> = vec![(-penalty, 0)];
    let mut open: Vec<usize> = Vec::new();
    for j in 1..runs.len() {
        open.push(j - 1);
        let between = |i: usize| (sums[j].0 - sums[i].0, sums[j].1 - sums[i].1);
        let is_short = |i: usize| between(i).1 < scans.min(SURE);
        let cost = |i: usize| {
            let (accessed, known) = between(i);
            if is_short(i) {
                f64::INFINITY
            } else {
                best[i].0 + misfit(accessed, known)
            }
        };
        let costs: Vec<f64> = open.iter().map(|&i| cost(i)).collect();
        let (at, least) = costs
            .iter()
            .enumerate()
            .min_by(|a, b| a.1.total_cmp(b.1))
            .map_or((0, f64::INFINITY), |(at, &least)| (at, least));
        best.push((least + penalty, open[at]));
        // What is worse than a cut here never begins a best segment later on; what
        // is too short yet may.
        let mut costs = costs.into_iter();
        open.retain(|&i| {
            let cost = costs.next().unwrap_or(f64::INFINITY);
            is_short(i) || cost <= least + penalty
        });
        if open.len() == MOST_OPEN {
            open.remove(0);
        }
    }
    let mut starts = Vec::new();
    let mut j = runs.len() - 1;
    while j > 0 {
        j = best[j].1;
        starts.push(runs[j]);
    }
    starts.reverse();
    starts
}

/// Minus the logarithm of the likelihood of so many accesses, at its greatest.
fn misfit(accessed: f64, known: f64) -> f64 {
    let term = |part: f64| {
        if part > 0.0 {
            part * (part / known).ln()
        } else {
            0.0
        }
    };
    -term(accessed) - term(known - accessed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(counts: &[u8]) -> Vec<Point> {
        let point = |(page, &count): (u64, &u8)| Point {
            page,
            accessed: count.into(),
            known: 3.0,
            order: 0,
            fresh: true,
            weight: 1.0,
        };
        (0..).zip(counts).map(point).collect()
    }

    #[test]
    fn a_lone_contradiction_is_cut_out() {
        assert_eq!(segments(&points(&[0, 0]), 3.0), [0]);
        assert_eq!(segments(&points(&[3, 0]), 3.0), [0, 1]);
        assert_eq!(segments(&points(&[0, 0, 0, 3, 0, 0]), 3.0), [0, 3, 4]);
        let mut many = [0; 200];
        many[77] = 3;
        assert_eq!(segments(&points(&many), 3.0), [0, 77, 78]);
    }

    #[test]
    fn what_chance_explains_is_not_cut() {
        // Warm memory: about every second scan sees it.
        assert_eq!(
            segments(&points(&[1, 2, 2, 1, 0, 2, 1, 3, 1, 2, 1, 1]), 3.0),
            [0]
        );
        assert_eq!(segments(&points(&[2, 0]), 3.0), [0]);
        // One stray access is no edge.
        assert_eq!(segments(&points(&[0, 0, 1, 0, 0, 0, 0, 0]), 3.0), [0]);
    }

    #[test]
    fn a_step_is_cut_once() {
        assert_eq!(segments(&points(&[3, 3, 2, 3, 0, 0, 1, 0]), 3.0), [0, 4]);
    }
}
