//! For how long no sample of a region was seen accessed.
//!
//! An epoch that could tell nothing of it changes nothing. What merges was quiet for as
//! long as the part that was accessed last.

use super::{Region, RegionMap};
use crate::tiering::observation::Looked;
use crate::units::{Nanos, PageRange};

impl Region {
    /// For how long no sample of it was seen accessed, as far as that was asked, or since
    /// it was last paged out.
    pub fn quiet(&self) -> Nanos {
        Nanos::from_secs_f64(f64::from(self.quiet))
    }

    /// What its samples, of which some could tell, say of an epoch of this length.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "24 bits of seconds: 194 days"
    )]
    pub(super) fn record_quiet(&mut self, samples: Looked<'_>, elapsed: Nanos) {
        if samples.tallies().iter().any(|tally| tally.accessed > 0) {
            self.quiet = 0.0;
        } else {
            self.quiet += elapsed.as_secs_f64() as f32;
        }
    }

    /// As if it had been quiet for so long.
    #[cfg(test)]
    #[allow(clippy::cast_possible_truncation)]
    pub(crate) fn quiet_for(&mut self, time: Nanos) {
        self.quiet = time.as_secs_f64() as f32;
    }
}

impl RegionMap {
    /// Pages of `range` were paged out: it is to be counted. When all of it was gone through,
    /// it has to be quiet anew before that is done again.
    pub fn record_paged_out(&mut self, range: PageRange, is_whole: bool) {
        for region in self.within(range) {
            region.count_anew();
            if is_whole && range.covers(region.range) {
                region.quiet = 0.0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiering::observation::{Sample, Tally, TargetId};
    use crate::tiering::region::Asked;
    use crate::units::{Bytes, NodeId, Pid, VirtAddr};

    const MIB: u64 = 1 << 20;
    const EPOCH: Asked = Asked {
        quiet: Some(Nanos::from_secs(10)),
        writes: false,
        parts: None,
    };

    fn range(start: u64, end: u64) -> PageRange {
        PageRange::new(VirtAddr(start * MIB), VirtAddr(end * MIB)).unwrap()
    }

    fn sample(mib: u64, accessed: u8, known: u8) -> (Sample, Tally) {
        let sample = Sample {
            target: TargetId(1),
            pid: Pid(1),
            addr: VirtAddr(mib * MIB),
        };
        let tally = Tally {
            accessed,
            known,
            ..Tally::default()
        };
        (sample, tally)
    }

    fn quiet(map: &RegionMap) -> Vec<u64> {
        map.regions()
            .iter()
            .map(|r| r.quiet().0 / 1_000_000_000)
            .collect()
    }

    #[test]
    fn an_access_ends_it_and_what_cannot_be_told_changes_nothing() {
        let mut map = RegionMap::default();
        map.sync(&[range(0, 8)], Bytes::from_mib(2));
        map.record_of(&[sample(0, 0, 3), sample(2, 0, 3), sample(4, 0, 1)], EPOCH);
        assert_eq!(quiet(&map), [10, 10, 10, 0]);
        map.record_of(
            &[
                sample(0, 0, 3),
                sample(1, 1, 3),
                sample(2, 0, 0),
                sample(4, 0, 3),
            ],
            EPOCH,
        );
        assert_eq!(quiet(&map), [0, 10, 20, 0]);
    }

    #[test]
    fn what_was_paged_out_is_counted_and_has_to_be_quiet_anew() {
        let mut map = RegionMap::default();
        map.sync(&[range(0, 4)], Bytes::from_mib(2));
        for start in [0, 2] {
            map.record_count(range(start, start + 2), &[(NodeId(3), 512)]);
        }
        map.record_of(&[sample(0, 0, 3), sample(2, 0, 3)], EPOCH);
        map.record_paged_out(range(0, 2), true);
        map.record_paged_out(range(2, 4), false);
        assert_eq!(quiet(&map), [0, 10]);
        assert!(map.regions().iter().all(|r| !r.is_counted()));
    }
}
