//! Regions as tests of policies want them.

use super::told::Part;
use super::{Pages, Region};
use crate::units::{NodeId, PageRange};

impl Region {
    /// A region for tests of policies.
    pub(crate) fn for_test(range: PageRange, hotness: f32, pages: &[(NodeId, u64)]) -> Self {
        Self {
            latest: hotness,
            previous: hotness,
            hotness,
            before: hotness,
            usual: hotness,
            evidence: 1e9,
            watched: true,
            seen: true,
            fresh: true,
            pages: Pages::from_counts(pages),
            is_counted: true,
            ..Self::new(range)
        }
    }

    /// The same, of which nothing is known.
    pub(crate) fn was_never_seen(&mut self) {
        self.seen = false;
    }

    /// The same with its hotness resting on so many samples.
    pub(crate) fn rest_on(&mut self, samples: f32) {
        self.evidence = samples;
    }

    /// The same with so much of it written in an epoch.
    pub(crate) fn writes(&mut self, share: f32) {
        (self.written, self.writing) = (Part::of(share), Part::of(share));
    }

    /// The same, made of folios of so many pages, as log2.
    pub(crate) fn of_folios(&mut self, order: u8) {
        (self.order, self.folios) = (order, 1.0 / f32::from(1_u16 << order));
    }

    /// The same, as hot as this in the last epoch only.
    pub(crate) fn turns_hot(&mut self, hotness: f32) {
        (self.latest, self.hotness) = (hotness, hotness);
    }

    /// The same, as hot as this over many epochs.
    pub(crate) fn usually(&mut self, hotness: f32) {
        self.usual = hotness;
    }
}
