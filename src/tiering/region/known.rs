//! What a region remembers of single pages.

use std::num::NonZeroU8;

use crate::units::PageRange;

/// Between which pages, by number, a region is known to be as it is; both were
/// samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) first: u64,
    pub(super) last: u64,
}

impl Known {
    pub(super) const NOTHING: Self = Self {
        first: u64::MAX,
        last: 0,
    };

    pub(super) fn is_empty(self) -> bool {
        self.first > self.last
    }

    pub(super) fn join(self, other: Self) -> Self {
        Self {
            first: self.first.min(other.first),
            last: self.last.max(other.last),
        }
    }

    pub(super) fn within(self, range: PageRange) -> Self {
        let part = Self {
            first: self.first.max(range.start().page_index()),
            last: self.last.min(range.end().page_index() - 1),
        };
        if part.is_empty() { Self::NOTHING } else { part }
    }
}

/// What looks for the edge at one end of a region, or again at what is in doubt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::tiering) enum Aim {
    #[default]
    None,
    /// One of its samples.
    Sample,
    /// Scouts: of a region without a sample, anything in it.
    Scouts,
}

/// A page to be looked at again. At edges: it contradicted its region, but not enough to
/// cut it, and is then believed or forgotten. By halves: it was seen accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Doubt {
    pub(super) page: u64,
    /// Looks at it so far that found it accessed, and that could tell.
    pub(super) accessed: u8,
    pub(super) known: NonZeroU8,
}
