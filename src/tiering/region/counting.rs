//! Where a region's pages are: counted by sweeps that may take several epochs.

use super::{Pages, Region};
use crate::units::{Bytes, NodeId, PageRange, VirtAddr};

/// A sweep of a region that takes more than one epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counting {
    next: VirtAddr,
    pub(super) pages: Pages,
}

/// A region whose pages were counted to the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recount {
    /// Where they were held to be.
    pub before: Pages,
    /// Where they are.
    pub after: Pages,
    /// Pages of its range.
    pub pages: u64,
    /// Whether nothing was known of it before.
    pub is_first: bool,
}

impl Region {
    /// Whether its residency was ever counted, not only derived.
    pub(in crate::tiering) fn is_counted(&self) -> bool {
        self.is_counted
    }

    fn counting(&self) -> Option<&Counting> {
        self.aside.as_ref()?.counting.as_ref()
    }

    /// Where its pages are, as far as a count under way has seen.
    pub(super) fn pages_so_far(&mut self) -> Option<&mut Pages> {
        let counting = self.aside.as_mut()?.counting.as_mut()?;
        Some(&mut counting.pages)
    }

    /// It is to be counted from its start.
    pub(super) fn count_anew(&mut self) {
        self.is_counted = false;
        self.aside_mut(|aside| aside.counting = None);
    }

    /// What of it to count next, at most `limit` pages.
    pub(in crate::tiering) fn next_sweep(&self, limit: u64) -> PageRange {
        let start = self.counting().map_or(self.range.start(), |c| c.next);
        let end = start
            .checked_add(Bytes::from_pages(limit.max(1)))
            .map_or(self.range.end(), |e| e.min(self.range.end()));
        PageRange::new(start, end).unwrap_or(self.range)
    }

    /// Folds in a count of `range`, if it is the one that was due; tells whether it was the last.
    pub(super) fn count(&mut self, range: PageRange, pages: &[(NodeId, u64)]) -> bool {
        let due = self.counting().map_or(self.range.start(), |c| c.next);
        if range.start() != due || !self.range.covers(range) {
            return false;
        }
        let is_last = range.end() == self.range.end();
        if self.aside.is_none() && is_last {
            // Nearly all regions: counted at once.
            self.pages = Pages::from_counts(pages);
            self.is_counted = true;
            return true;
        }
        let mut counted = self.pages_so_far().map(std::mem::take).unwrap_or_default();
        for &(node, count) in pages {
            counted.add(node, count);
        }
        let under_way = if is_last {
            self.pages = counted;
            self.is_counted = true;
            None
        } else {
            Some(Counting {
                next: range.end(),
                pages: counted,
            })
        };
        self.aside_mut(|aside| aside.counting = under_way);
        is_last
    }
}
