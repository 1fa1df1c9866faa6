//! What an epoch's samples tell of regions beside how hot they are.

use super::{Region, RegionMap, take_in};
#[cfg(test)]
use crate::tiering::observation::{AccessSet, Sample};
use crate::tiering::observation::{Looked, Tally};
use crate::units::Nanos;

/// What to learn from an epoch's samples beside how hot regions are, and who shares them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// For how long regions are quiet; this is how long the epoch was.
    pub quiet: Option<Nanos>,
    /// What is written: samples tell since the epoch's begin.
    pub writes: bool,
}

impl RegionMap {
    /// What `samples` of this target, sorted, tell beside how hot it is; shows `each` of
    /// the regions with its own. In one pass: a million of them do not fit into a cache.
    pub fn record(
        &mut self,
        samples: Looked<'_>,
        asked: Asked,
        mut each: impl FnMut(&Region, Looked<'_>),
    ) {
        let mut rest = samples;
        for region in &mut self.regions {
            let mine = take_in(&mut rest, region.range);
            if mine.tallies().iter().any(|tally| tally.known > 0) {
                region.record_shared(mine);
                if let Some(elapsed) = asked.quiet {
                    region.record_quiet(mine, elapsed);
                }
                if asked.writes {
                    region.record_writes(mine);
                }
            }
            each(region, mine);
        }
    }
}

#[cfg(test)]
impl RegionMap {
    /// For tests: these pairs are what was seen.
    pub(crate) fn record_of(&mut self, seen: &[(Sample, Tally)], asked: Asked) {
        self.record(AccessSet::of(seen).looked(), asked, |_, _| ());
    }
}

impl Region {
    /// All of these samples, of which some could tell, say whether they were written.
    fn record_writes(&mut self, samples: Looked<'_>) {
        let share = share_of(samples, |tally| tally.written);
        self.written = match self.written() {
            Some(before) => f32::midpoint(before, share),
            None => share,
        };
    }
}

/// The share of samples for which something is true, of those that could tell.
pub(super) fn share_of(samples: Looked<'_>, is: impl Fn(&Tally) -> bool) -> f32 {
    let (mut all, mut such) = (0_u32, 0_u32);
    for tally in samples.tallies().iter().filter(|tally| tally.known > 0) {
        all += 1;
        such += u32::from(is(tally));
    }
    such as f32 / all.max(1) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiering::observation::TargetId;
    use crate::tiering::region::Thresholds;
    use crate::units::{Bytes, PageRange, Pid, VirtAddr};

    const MIB: u64 = 1 << 20;

    /// How many regions are left of two that are as hot, of which one is written and the other
    /// one as well, or not.
    fn left(is_other_written: bool, thresholds: Thresholds) -> usize {
        let mut map = RegionMap::default();
        let range = PageRange::new(VirtAddr(0), VirtAddr(4 * MIB)).unwrap();
        map.sync(&[range], Bytes::from_mib(2));
        let seen = [(0, true), (2 * MIB, is_other_written)].map(|(addr, written)| {
            let sample = Sample {
                target: TargetId(1),
                pid: Pid(1),
                addr: VirtAddr(addr),
            };
            let tally = Tally {
                known: 3,
                accessed: 1,
                written,
                ..Tally::default()
            };
            (sample, tally)
        });
        let asked = Asked {
            writes: true,
            ..Asked::default()
        };
        map.record_of(&seen, asked);
        map.adapt_to(&seen, 3, thresholds);
        map.regions().len()
    }

    #[test]
    fn what_is_written_and_what_is_read_stay_apart() {
        let usual = Thresholds::FOR_TESTS;
        assert_eq!((left(true, usual), left(false, usual)), (1, 2));
        // Of too many regions all may merge.
        let raised = Thresholds {
            apart_in_writes: f32::INFINITY,
            ..usual
        };
        assert_eq!(left(false, raised), 1);
    }
}
