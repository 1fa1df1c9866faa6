//! A list of regions made anew in its own place.
//!
//! A million regions are 128 MB, and a second list beside the first takes the
//! kernel longer to provide than it takes us to fill.

use std::collections::VecDeque;

use super::Region;

/// Takes regions from the front of a list and puts others in their places.
pub(super) struct Rebuild {
    regions: Vec<Region>,
    /// Places that hold what was put, and those that were taken from.
    put: usize,
    taken: usize,
    /// What was put before there was a place for it.
    waiting: VecDeque<Region>,
}

impl Rebuild {
    /// Of this list.
    pub(super) fn new(regions: Vec<Region>) -> Self {
        Self {
            regions,
            put: 0,
            taken: 0,
            waiting: VecDeque::new(),
        }
    }

    /// The next of the old regions.
    pub(super) fn take(&mut self) -> Option<Region> {
        let place = self.regions.get_mut(self.taken)?;
        let left = Region::new(place.range);
        let region = std::mem::replace(place, left);
        self.taken += 1;
        if let Some(first) = self.waiting.pop_front() {
            self.regions[self.put] = first;
            self.put += 1;
        }
        Some(region)
    }

    /// Appends to the new ones.
    pub(super) fn put(&mut self, region: Region) {
        if self.waiting.is_empty() && self.put < self.taken {
            self.regions[self.put] = region;
            self.put += 1;
        } else {
            self.waiting.push_back(region);
        }
    }

    /// The last of the new ones.
    pub(super) fn last_mut(&mut self) -> Option<&mut Region> {
        match self.waiting.back_mut() {
            Some(last) => Some(last),
            None => self.regions[..self.put].last_mut(),
        }
    }

    /// The new list, all old ones being taken.
    pub(super) fn finish(mut self) -> Vec<Region> {
        self.regions.truncate(self.put);
        self.regions.extend(self.waiting);
        // What is no longer needed by far is given back.
        if self.regions.len() < self.regions.capacity() / 4 {
            self.regions.shrink_to(2 * self.regions.len());
        }
        self.regions
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::units::{PAGE_BYTES, PageRange, VirtAddr};

    fn region(page: u64) -> Region {
        let at = VirtAddr(page * PAGE_BYTES);
        Region::new(PageRange::new(at, VirtAddr(at.0 + PAGE_BYTES)).unwrap())
    }

    proptest! {
        /// As if into a second list, however many come of each.
        #[test]
        fn it_is_what_a_second_list_would_be(counts in prop::collection::vec(0_u64..5, 0..60)) {
            let mut rebuild = Rebuild::new((0..counts.len() as u64).map(region).collect());
            let mut second = Vec::new();
            for (old, &count) in (0..).zip(&counts) {
                prop_assert_eq!(rebuild.take(), Some(region(old)));
                for part in 0..count {
                    let new = region(1000 * (old + 1) + part);
                    rebuild.put(new.clone());
                    second.push(new);
                    prop_assert_eq!(rebuild.last_mut().cloned(), second.last().cloned());
                }
            }
            prop_assert_eq!(rebuild.take(), None);
            prop_assert_eq!(rebuild.finish(), second);
        }
    }
}
