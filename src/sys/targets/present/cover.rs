//! Ranges that hold all that is there, and little else.
//!
//! **Unit.** Bytes of addresses, in whole pages.
//!
//! **Problem.** Regions lie within what is there. Exactly that may be a million single pages,
//! of which each would be a region; and it changes with every page that comes or goes.
//!
//! **Approach.** What is there is one range with what is not further from it than a *gap*:
//! at first [`GAP`], and twice as much as often as there would be more than [`MOST`] ranges.
//!
//! **Properties** (proptest below): ranges are sorted and disjoint, and at most [`MOST`];
//! they cover all that was added, in whatever order; none begins or ends where nothing was
//! added; what lies further apart than the gap is apart; adding what is covered changes
//! nothing.

use crate::units::{PAGE_BYTES, PageRange, VirtAddr};

/// Holes up to this long are taken along: as long as what one sample of cold memory stands
/// for.
pub(super) const GAP: u64 = 16 * PAGE_BYTES;
/// Ranges at most: as many regions, of 128 bytes each.
pub(super) const MOST: usize = 1 << 14;

/// Ranges that hold all that was added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cover {
    ranges: Vec<PageRange>,
    gap: u64,
}

impl Default for Cover {
    fn default() -> Self {
        Self {
            ranges: Vec::new(),
            gap: GAP,
        }
    }
}

impl Cover {
    /// Of these ranges, sorted by where they begin.
    pub(super) fn of(sorted: impl IntoIterator<Item = PageRange>) -> Self {
        let mut this = Self::default();
        for range in sorted {
            this.add(range);
        }
        this
    }

    /// What is in either.
    pub(super) fn union(&self, other: &Self) -> Self {
        if other.ranges.is_empty() {
            return self.clone();
        }
        let (mut a, mut b) = (
            self.ranges.iter().peekable(),
            other.ranges.iter().peekable(),
        );
        let both = std::iter::from_fn(move || match (a.peek(), b.peek()) {
            (Some(x), Some(y)) if x.start() <= y.start() => a.next(),
            (Some(_), None) => a.next(),
            _ => b.next(),
        });
        Self::of(both.copied())
    }

    /// What of it lies at or after `start`.
    pub(super) fn from(&self, start: VirtAddr) -> Self {
        let rest = |r: &PageRange| PageRange::new(r.start().max(start), r.end());
        Self::of(self.ranges.iter().filter_map(rest))
    }

    pub(super) fn ranges(&self) -> &[PageRange] {
        &self.ranges
    }

    /// Adds one that begins nowhere before those that were added.
    pub(super) fn add(&mut self, range: PageRange) {
        join(&mut self.ranges, range, self.gap);
        while self.ranges.len() > MOST {
            self.gap = self.gap.saturating_mul(2);
            let mut fewer = Vec::with_capacity(MOST);
            for &range in &self.ranges {
                join(&mut fewer, range, self.gap);
            }
            self.ranges = fewer;
        }
    }
}

/// Appends a range, or lets the last one reach to its end.
pub(super) fn join(ranges: &mut Vec<PageRange>, range: PageRange, gap: u64) {
    if let Some(last) = ranges.last_mut()
        && range.start().0.saturating_sub(last.end().0) <= gap
    {
        let whole = PageRange::new(last.start(), last.end().max(range.end()));
        *last = whole.unwrap_or(*last);
    } else {
        ranges.push(range);
    }
}

/// What is in both of these, sorted and disjoint each.
pub(super) fn intersection(a: &[PageRange], b: &[PageRange]) -> Vec<PageRange> {
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    let mut both = Vec::new();
    while let (Some(&&x), Some(&&y)) = (a.peek(), b.peek()) {
        both.extend(x.intersect(y));
        if x.end() <= y.end() {
            a.next();
        } else {
            b.next();
        }
    }
    both
}

/// The parts of `spans` that lie in none of `covered` and are `least` bytes long, both
/// sorted and disjoint.
pub(super) fn holes(spans: &[PageRange], covered: &[PageRange], least: u64) -> Vec<PageRange> {
    let mut holes = Vec::new();
    let mut covered = covered.iter().copied().peekable();
    for span in spans {
        let mut at = span.start();
        let mut push = |from: VirtAddr, to: VirtAddr| {
            holes.extend(PageRange::new(from, to).filter(|hole| hole.bytes().0 >= least));
        };
        while let Some(&next) = covered.peek() {
            if next.start() >= span.end() {
                break;
            }
            push(at, next.start());
            at = at.max(next.end());
            if next.end() > span.end() {
                // Its rest may lie in the next span.
                break;
            }
            covered.next();
        }
        push(at, span.end());
    }
    holes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range((start, pages): (u64, u64)) -> PageRange {
        let at = |page: u64| VirtAddr(page * PAGE_BYTES);
        PageRange::new(at(start), at(start + pages)).unwrap()
    }

    fn pages(ranges: &[PageRange]) -> Vec<(u64, u64)> {
        let of = |r: &PageRange| (r.start().page_index(), r.pages());
        ranges.iter().map(of).collect()
    }

    #[test]
    fn short_holes_are_taken_along_and_long_ones_are_not() {
        let cover = Cover::of([(0, 1), (17, 1), (35, 2), (36, 4)].map(range));
        assert_eq!(pages(cover.ranges()), [(0, 18), (35, 5)]);
    }

    #[test]
    fn of_too_many_islands_the_nearest_become_one() {
        // Pairs of pages 20 apart, each pair 1000 from the next.
        let islands = |count: u64| {
            let starts = (0..count).flat_map(|i| [1000 * i, 1000 * i + 20]);
            starts.map(|at| range((at, 1)))
        };
        let few = MOST as u64 / 2;
        assert_eq!(Cover::of(islands(few)).ranges().len(), MOST);
        let more = Cover::of(islands(few + 1));
        assert_eq!(more.ranges().len(), MOST / 2 + 1);
        assert_eq!(pages(&more.ranges()[..2]), [(0, 21), (1000, 21)]);
    }

    #[test]
    fn holes_are_what_is_not_covered() {
        let spans = [(0, 100), (200, 100), (400, 10)].map(range);
        let covered = [(10, 10), (90, 120), (250, 200)].map(range);
        let found = holes(&spans, &covered, 2 * PAGE_BYTES);
        assert_eq!(pages(&found), [(0, 10), (20, 70), (210, 40)]);
        assert_eq!(holes(&spans, &[], 11 * PAGE_BYTES), spans[..2]);
        let both = intersection(&spans, &covered);
        assert_eq!(
            pages(&both),
            [(10, 10), (90, 10), (200, 10), (250, 50), (400, 10)]
        );
    }

    /// Sorted by where they begin; may overlap.
    fn some() -> impl Strategy<Value = Vec<PageRange>> {
        prop::collection::vec((0_u64..2000, 1_u64..40), 0..60).prop_map(|mut all| {
            all.sort_unstable();
            all.into_iter().map(range).collect()
        })
    }

    fn is_covered(what: &[PageRange], by: &[PageRange]) -> bool {
        what.iter().all(|r| by.iter().any(|c| c.covers(*r)))
    }

    proptest! {
        #[test]
        fn a_cover_holds_all_that_was_added_and_nothing_long_that_was_not(
            a in some(), b in some(),
        ) {
            let (first, second) = (Cover::of(a.clone()), Cover::of(b.clone()));
            let both = first.union(&second);
            prop_assert_eq!(&both, &second.union(&first));
            prop_assert!(is_covered(&a, both.ranges()) && is_covered(&b, both.ranges()));
            for pair in both.ranges().windows(2) {
                prop_assert!(pair[0].end().0 + GAP < pair[1].start().0);
            }
            let ends = |of: fn(&PageRange) -> VirtAddr| {
                a.iter().chain(&b).map(of).collect::<Vec<_>>()
            };
            let (starts, ends) = (ends(|r| r.start()), ends(|r| r.end()));
            for range in both.ranges() {
                prop_assert!(starts.contains(&range.start()) && ends.contains(&range.end()));
            }
            // Twice is once.
            prop_assert_eq!(&Cover::of(both.ranges().iter().copied()), &both);
            prop_assert_eq!(&both.union(&first), &both);
            // Every hole is long, and none is covered.
            let span = [range((0, 3000))];
            let holes = holes(&span, both.ranges(), 1);
            prop_assert!(intersection(&holes, both.ranges()).is_empty());
            let sum = |all: &[PageRange]| all.iter().map(|r| r.pages()).sum::<u64>();
            prop_assert_eq!(sum(&holes) + sum(both.ranges()), 3000);
        }

        #[test]
        fn however_many_there_are_they_are_bounded(
            gaps in prop::collection::vec(17_u64..100, 0..8), times in 0_usize..9000,
        ) {
            let mut at = 0;
            let mut all = Vec::new();
            for gap in gaps.iter().cycle().take(gaps.len() * times) {
                all.push(range((at, 1)));
                at += 1 + gap;
            }
            let cover = Cover::of(all.clone());
            prop_assert!(cover.ranges().len() <= MOST);
            let pages: u64 = intersection(&all, cover.ranges()).iter().map(|r| r.pages()).sum();
            prop_assert_eq!(pages, all.len() as u64);
            let again = Cover::of(cover.ranges().iter().copied());
            prop_assert_eq!(again.ranges(), cover.ranges());
        }
    }
}
