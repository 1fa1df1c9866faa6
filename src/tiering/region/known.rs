//! What a region remembers of single pages.

use std::num::NonZeroU64;

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
///
/// In one word, since there are a million regions: 52 bits of a page's number are all that
/// an address has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Doubt(NonZeroU64);

/// Looks are counted up to this: some epochs' of all.
const MOST_LOOKS: u8 = 63;

impl Doubt {
    /// Looks at it so far that found it accessed, and that could tell; none if none could.
    pub(super) fn new(page: u64, accessed: u8, known: u8) -> Option<Self> {
        let looks = |count: u8| u64::from(count.min(MOST_LOOKS));
        let word = page << 12 | looks(accessed) << 6 | looks(known);
        NonZeroU64::new(word).filter(|_| known > 0).map(Self)
    }

    pub(super) fn page(self) -> u64 {
        self.0.get() >> 12
    }

    pub(super) fn accessed(self) -> f64 {
        Self::looks(self.0.get() >> 6)
    }

    pub(super) fn known(self) -> f64 {
        Self::looks(self.0.get())
    }

    fn looks(word: u64) -> f64 {
        (word & u64::from(MOST_LOOKS)) as f64
    }
}
