//! What an epoch's samples tell of regions beside how hot they are.

use super::{Region, RegionMap, take_in};
#[cfg(test)]
use crate::tiering::observation::{AccessSet, Sample};
use crate::tiering::observation::{Looked, Tally};
use crate::units::{Bytes, Nanos};

/// What a region that was never accessed is held to write, so that one epoch alone says little.
pub(super) const UNDECIDED: f32 = 0.5;

/// What to learn from an epoch's samples beside how hot regions are, and who shares them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// For how long regions are quiet; this is how long the epoch was.
    pub quiet: Option<Nanos>,
    /// What is written: samples tell since the epoch's begin.
    pub writes: bool,
    /// Regions are parted where what is written ends, in parts of no less than this; `None`: never.
    pub parts: Option<Bytes>,
}

/// A share, 0 to 1, as far as known: in a byte, as there are a million regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part(u8);

impl Part {
    pub(super) const NOT_KNOWN: Self = Self(u8::MAX);
    const ALL: u8 = 200;

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub(super) fn of(share: f32) -> Self {
        Self((share.clamp(0.0, 1.0) * f32::from(Self::ALL)).round() as u8)
    }

    pub(super) fn share(self) -> Option<f32> {
        (self != Self::NOT_KNOWN).then(|| f32::from(self.0) / f32::from(Self::ALL))
    }

    /// Of both together.
    pub(super) fn join(self, other: Self, mean: impl Fn(f32, f32) -> f32) -> Self {
        match (self.share(), other.share()) {
            (Some(a), Some(b)) => Self::of(mean(a, b)),
            (None, None) => Self::NOT_KNOWN,
            (Some(_), None) => self,
            (None, Some(_)) => other,
        }
    }
}

impl RegionMap {
    /// What `samples` of this target, sorted, tell beside how hot it is; shows `each` of
    /// the regions with its own, and tells how many were parted. In one pass: a million of them do not fit into a cache.
    pub fn record(
        &mut self,
        samples: Looked<'_>,
        asked: Asked,
        mut each: impl FnMut(&Region, Looked<'_>),
    ) -> u64 {
        let mut rest = samples;
        let mut parted: Vec<(usize, [Region; 2])> = Vec::new();
        for (at, region) in self.regions.iter_mut().enumerate() {
            let mine = take_in(&mut rest, region.range);
            if mine.tallies().iter().any(|tally| tally.known > 0) {
                region.record_shared(mine);
                if let Some(elapsed) = asked.quiet {
                    region.record_quiet(mine, elapsed);
                }
                if asked.writes {
                    region.record_writes(mine);
                    let parts = asked.parts.and_then(|least| region.parted(mine, least));
                    parted.extend(parts.map(|parts| (at, parts)));
                }
            }
            each(region, mine);
        }
        let count = parted.len() as u64;
        self.put_parts(parted);
        count
    }

    /// In the place of these regions, by their number, their parts.
    fn put_parts(&mut self, parted: Vec<(usize, [Region; 2])>) {
        if parted.is_empty() {
            return;
        }
        let whole = std::mem::take(&mut self.regions);
        self.regions.reserve(whole.len() + parted.len());
        let mut parted = parted.into_iter().peekable();
        for (at, region) in whole.into_iter().enumerate() {
            match parted.next_if(|(place, _)| *place == at) {
                Some((_, parts)) => self.regions.extend(parts),
                None => self.regions.push(region),
            }
        }
    }

    /// Forgets what is written.
    pub fn forget_writes(&mut self) {
        for region in &mut self.regions {
            (region.written, region.writing) = (Part::NOT_KNOWN, Part::NOT_KNOWN);
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
        let before = self.written().unwrap_or(share);
        self.written = Part::of(f32::midpoint(before, share));
        // What is idle for a while is written no less when it is used again.
        if let Some(share) = written_of_accessed(samples) {
            let before = self.writing().unwrap_or(UNDECIDED);
            self.writing = Part::of(f32::midpoint(before, share));
        }
    }
}

/// Of samples that a scan saw accessed the share that was written in that epoch, if any was: each write in
/// an epoch counts, as writes are told of all of it, but of pages that scans miss as well it says nothing.
fn written_of_accessed(samples: Looked<'_>) -> Option<f32> {
    let tallies = samples.tallies().iter().filter(|tally| tally.known > 0);
    let used = tallies.filter(|tally| tally.accessed > 0);
    let (all, such) = used.fold((0_u32, 0_u32), |(all, such), tally| {
        (all + 1, such + u32::from(tally.written))
    });
    (all > 0).then(|| such as f32 / all as f32)
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
    use crate::units::{PageRange, Pid, VirtAddr};

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

    #[test]
    fn what_is_swept_is_written_as_ever_when_it_is_idle_for_a_while() {
        let mut map = RegionMap::default();
        let range = PageRange::new(VirtAddr(0), VirtAddr(2 * MIB)).unwrap();
        map.sync(&[range], Bytes::from_mib(2));
        let sample = Sample {
            target: TargetId(1),
            pid: Pid(1),
            addr: VirtAddr(0),
        };
        let asked = Asked {
            writes: true,
            ..Asked::default()
        };
        let mut epoch = |accessed, written| {
            let tally = Tally {
                known: 3,
                accessed,
                written,
                ..Tally::default()
            };
            map.record_of(&[(sample, tally)], asked);
            let region = &map.regions()[0];
            (region.written(), region.writing())
        };
        assert_eq!(epoch(0, false), (Some(0.0), None));
        // Written outside of the scans.
        assert_eq!(epoch(0, true), (Some(0.5), None));
        assert_eq!(epoch(3, true), (Some(0.75), Some(0.75)));
        assert_eq!(epoch(2, true), (Some(0.875), Some(0.875)));
        assert_eq!(epoch(0, false), (Some(0.44), Some(0.875)));
        assert_eq!(epoch(1, false), (Some(0.22), Some(0.44)));
    }
}
