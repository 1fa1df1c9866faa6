//! What of a region cannot be moved now, and when that is over.
//!
//! **Problem.** A region of which nothing could be moved is left alone for some epochs,
//! so that no plan is made in vain. Pages that were shared by a fork can be moved as soon
//! as the child has ended, or runs another program, which nobody tells.
//!
//! **Approach.** The samples tell: each scan reads from the page map whether a page is
//! mapped by its process alone. A region that is stuck for nothing but sharing comes
//! free with the first epoch in which no sample of it is shared.

use super::{Region, RegionMap, share_of, short};
use crate::tiering::observation::Looked;
use crate::units::{Bytes, PageRange};

/// The whole, of which one is the least share that is told: halves, thirds, quarters are exact.
const PARTS: u8 = 252;

/// So many parts: none only where it is none.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(super) fn in_parts(share: f32) -> u8 {
    // `as` saturates.
    let parts = (share.round() as u8).min(PARTS);
    parts.max(u8::from(share > 0.0))
}

impl Region {
    /// The epoch until which it is left alone because nothing of it could be
    /// moved; 0: never.
    pub fn stuck_until(&self) -> u64 {
        self.stuck_until.into()
    }

    /// Present bytes of it that another process maps too, by its samples.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn shared(&self) -> Bytes {
        // `as` saturates, and a byte more or less is nothing.
        Bytes((f64::from(self.shared) / f64::from(PARTS) * self.resident().as_f64()) as u64)
    }

    /// Bytes that the kernel kept where they were when they were last to be moved, as far
    /// as they are there in this epoch and that is not long ago.
    pub fn kept(&self, epoch: u64) -> Bytes {
        let (pages, until) = self.aside.as_ref().map_or((0, 0), |aside| aside.kept);
        if epoch > u64::from(until) {
            return Bytes::ZERO;
        }
        Bytes::from_pages(pages.into()).min(self.resident())
    }

    /// What its samples, of which some could tell, say of others that map its pages too.
    pub(super) fn record_shared(&mut self, samples: Looked<'_>) {
        self.shared = in_parts(share_of(samples, |tally| tally.shared) * f32::from(PARTS));
        if self.shared == 0 && self.stuck_by_sharing {
            (self.stuck_until, self.stuck_by_sharing) = (0, false);
        }
    }
}

impl RegionMap {
    /// Nothing of `range` could be moved: leave it alone until `epoch`, or, where that is
    /// for nothing but sharing, until its samples are not shared.
    pub fn record_stuck(&mut self, range: PageRange, epoch: u64, by_sharing: bool) {
        for region in self.within(range) {
            region.stuck_until = short(epoch);
            region.stuck_by_sharing = by_sharing;
        }
    }

    /// Of what was to be moved of `range`, the kernel kept so many pages. That is held to be
    /// so until `epoch`, unless it is to be moved again before.
    pub fn record_kept(&mut self, range: PageRange, pages: u64, epoch: u64) {
        let mut left = pages;
        for region in self.within(range) {
            let here = left.min(region.range.pages());
            let kept = if here > 0 {
                (short(here), short(epoch))
            } else {
                (0, 0)
            };
            region.aside_mut(|aside| aside.kept = kept);
            left -= here;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiering::observation::{Sample, Tally, TargetId};
    use crate::tiering::region::Asked;
    use crate::units::{NodeId, Pid, VirtAddr};

    const MIB: u64 = 1 << 20;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange::new(VirtAddr(start * MIB), VirtAddr(end * MIB)).unwrap()
    }

    /// Two regions of 2 MiB, all there on node 0.
    fn map() -> RegionMap {
        let mut map = RegionMap::default();
        map.sync(&[range(0, 4)], Bytes::from_mib(2));
        for start in [0, 2] {
            map.record_count(range(start, start + 2), &[(NodeId(0), 512)]);
        }
        map
    }

    /// Four samples, 1 MiB apart.
    fn samples(shared: [bool; 4]) -> Vec<(Sample, Tally)> {
        let sample = |mib| Sample {
            target: TargetId(1),
            pid: Pid(1),
            addr: VirtAddr(mib * MIB),
        };
        let tally = |shared| Tally {
            known: 1,
            shared,
            ..Tally::default()
        };
        (0..).map(sample).zip(shared.map(tally)).collect()
    }

    fn stuck(map: &RegionMap) -> Vec<u64> {
        map.regions().iter().map(Region::stuck_until).collect()
    }

    #[test]
    fn what_is_stuck_for_sharing_comes_free_when_its_samples_are_its_own() {
        let mut map = map();
        map.record_stuck(range(0, 4), 20, true);
        map.record_of(&samples([true, true, true, false]), Asked::default());
        assert_eq!(stuck(&map), [20, 20]);
        let shared: Vec<_> = map.regions().iter().map(Region::shared).collect();
        assert_eq!(shared, [Bytes::from_mib(2), Bytes::from_mib(1)]);
        // Nothing was told of them: nothing changes.
        let mut untold = samples([false; 4]);
        for (_, tally) in &mut untold {
            tally.known = 0;
        }
        map.record_of(&untold, Asked::default());
        assert_eq!(stuck(&map), [20, 20]);
        map.record_of(&samples([false, true, false, false]), Asked::default());
        assert_eq!(stuck(&map), [20, 0]);
        map.record_of(&samples([false; 4]), Asked::default());
        assert_eq!(stuck(&map), [0, 0]);
    }

    #[test]
    fn what_is_stuck_for_another_reason_stays_so() {
        let mut map = map();
        map.record_stuck(range(0, 4), 20, false);
        map.record_of(&samples([false; 4]), Asked::default());
        assert_eq!(stuck(&map), [20, 20]);
    }

    #[test]
    fn what_the_kernel_keeps_is_that_of_the_last_try() {
        let mut map = map();
        let kept = |map: &RegionMap| -> Vec<u64> {
            map.regions().iter().map(|r| r.kept(9).pages()).collect()
        };
        map.record_kept(range(0, 4), 600, 9);
        assert_eq!(kept(&map), [512, 88]);
        map.record_kept(range(0, 2), 0, 9);
        assert_eq!(kept(&map), [0, 88]);
        assert!(map.regions().iter().all(|r| r.kept(10).is_zero()));
    }
}
