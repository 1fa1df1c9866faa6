//! Where a region's pages are: counted by sweeps that may take several epochs.

use super::{Pages, Region};
use crate::units::{Bytes, NodeId, PageRange, VirtAddr};

/// A sweep of a region that takes more than one epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counting {
    next: VirtAddr,
    pub(super) pages: Pages,
}

impl Region {
    /// Whether its residency was ever counted, not only derived.
    pub(in crate::tiering) fn is_counted(&self) -> bool {
        self.is_counted
    }

    /// What of it to count next, at most `limit` pages.
    pub(in crate::tiering) fn next_sweep(&self, limit: u64) -> PageRange {
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
    pub(super) fn count(&mut self, range: PageRange, pages: &[(NodeId, u64)]) {
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
            self.is_counted = true;
        } else {
            self.counting = Some(counting);
        }
    }
}
