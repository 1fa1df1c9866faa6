//! Edges that are gone.
//!
//! **Unit.** Pages of 4 KiB by number.
//!
//! **Problem.** Where hot memory lay beside cold and both have become alike, their regions
//! merge, and what bisection took epochs to find is forgotten. What a program touches in
//! turns comes back within the same edges.
//!
//! **Approach.** A region remembers whether its first page was where memory became hotter
//! or colder ([`Step`]). When it merges with the region before it, that page is kept as a
//! *scar*; so are the guesses by which an edge was bisected. A cut that has to lie
//! somewhere between two samples goes to the nearest scar there, if hotness changed the
//! same way round at it, and, for what was cut out by few samples, if its other end has
//! one, too.
//!
//! **Properties** (tests below): at most [`MOST`] are kept, the latest; ascending.

use std::ops::Range;

use crate::units::PageRange;

/// Most that are kept of a target: half a MiB at most.
const MOST: usize = 16_384;
/// Share of the scans by which neighbours have to differ to lie at a step: what few samples
/// have seen of cold memory differs by a third by chance.
const LEAST_STEP: f32 = 2.0 / 3.0;

/// How hotness changes at a page, seen from lower addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Up,
    Down,
}

impl Step {
    /// Between neighbours of so many counts out of `scans`; none where they are alike.
    pub(super) fn between(low: f32, high: f32, scans: f32) -> Option<Self> {
        if (high - low).abs() < LEAST_STEP * scans {
            None
        } else if high > low {
            Some(Self::Up)
        } else {
            Some(Self::Down)
        }
    }
}

/// An edge that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scar {
    /// The first page above it.
    pub(super) page: u64,
    pub(super) step: Step,
    /// When it was kept.
    turn: u32,
}

/// All of a target, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Scars {
    kept: Vec<Scar>,
    turn: u32,
}

impl Scars {
    /// Those at `pages`.
    pub(super) fn within(&self, pages: Range<u64>) -> &[Scar] {
        let at = |page| self.kept.partition_point(|scar| scar.page < page);
        let (first, last) = (at(pages.start), at(pages.end));
        &self.kept[first..last.max(first)]
    }

    /// Keeps more of them, ascending; one at the same page gives way.
    pub(super) fn keep(&mut self, new: &[(u64, Step)]) {
        if new.is_empty() {
            return;
        }
        self.turn += 1;
        let turn = self.turn;
        let is_new = |page: u64| new.binary_search_by_key(&page, |(at, _)| *at).is_ok();
        self.kept.retain(|scar| !is_new(scar.page));
        // Of a flood some pairs, from everywhere.
        let each = new.len().div_ceil(MOST / 2);
        let new = new.iter().enumerate().filter(|(at, _)| at / 2 % each == 0);
        self.kept
            .extend(new.map(|(_, &(page, step))| Scar { page, step, turn }));
        if self.kept.len() > MOST {
            self.kept
                .sort_unstable_by_key(|scar| std::cmp::Reverse(scar.turn));
            self.kept.truncate(MOST / 2);
        }
        self.kept.sort_unstable_by_key(|scar| scar.page);
    }

    /// Forgets what is not in `covered`, ascending.
    pub(super) fn clip(&mut self, covered: &[PageRange]) {
        self.kept.retain(|scar| {
            let after = covered.partition_point(|r| r.start().page_index() <= scar.page);
            let range = after.checked_sub(1).map(|at| covered[at]);
            range.is_some_and(|r| scar.page < r.start().page_index() + r.pages())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{PAGE_BYTES, VirtAddr};

    fn pages(scars: &[Scar]) -> Vec<u64> {
        scars.iter().map(|scar| scar.page).collect()
    }

    #[test]
    fn the_latest_are_kept_in_order() {
        let mut scars = Scars::default();
        scars.keep(&[(10, Step::Up), (30, Step::Down)]);
        scars.keep(&[(20, Step::Up), (30, Step::Up)]);
        assert_eq!(pages(scars.within(0..100)), [10, 20, 30]);
        assert_eq!(scars.within(30..31)[0].step, Step::Up);
        assert_eq!(pages(scars.within(11..30)), [20]);
        let many: Vec<(u64, Step)> = (0..MOST as u64).map(|n| (1000 + n, Step::Up)).collect();
        scars.keep(&many);
        assert_eq!(pages(scars.within(0..1000)), [10, 20, 30]);
        for round in 1..4 {
            let later: Vec<(u64, Step)> = (many.iter().step_by(4))
                .map(|&(page, step)| (page + round * MOST as u64, step))
                .collect();
            scars.keep(&later);
            let all = scars.within(0..u64::MAX);
            assert!(all.len() <= MOST && all.is_sorted_by(|a, b| a.page < b.page));
            // The latest are all there.
            let last = later.last().map(|(page, _)| *page);
            assert_eq!(all.last().map(|scar| scar.page), last);
        }
        assert_eq!(scars.within(0..1000), []);
    }

    #[test]
    fn what_is_unmapped_is_forgotten() {
        let mut scars = Scars::default();
        scars.keep(&[(10, Step::Up), (20, Step::Up), (30, Step::Up)]);
        let range = |first: u64, end: u64| {
            PageRange::new(VirtAddr(first * PAGE_BYTES), VirtAddr(end * PAGE_BYTES)).unwrap()
        };
        scars.clip(&[range(5, 10), range(20, 30), range(30, 31)]);
        assert_eq!(pages(scars.within(0..100)), [20, 30]);
    }

    #[test]
    fn small_differences_are_no_steps() {
        assert_eq!(Step::between(0.0, 1.9, 3.0), None);
        assert_eq!(Step::between(0.0, 2.1, 3.0), Some(Step::Up));
        assert_eq!(Step::between(3.0, 0.5, 3.0), Some(Step::Down));
    }
}
