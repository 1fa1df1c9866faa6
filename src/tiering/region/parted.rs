//! Parts a region where what is written ends and what is only read begins.
//!
//! **Unit.** Samples that a scan saw accessed; what of them was written in the epoch.
//!
//! **Problem.** Regions are cut where hotness changes. Two arrays that are touched alike become one region, of
//! which it is not known any more that one half is written and the other one read.
//!
//! **Approach.** Of all places between two samples the one where the shares that are written on either side
//! differ most, weighted by how many samples they are of (variance between groups). It is cut there if they differ by [`PARTED`] and
//! there are [`EACH`] samples on either side, in the middle between two of them; once per region and asked epoch. Of so
//! few samples some part by chance: what moves waits for what the next epoch says of either side.
//!
//! **Limits.** Of what alternates in small pieces no one place parts most of it: that stays together.

use super::told::{Part, UNDECIDED, share_of};
use super::{Region, adapt, take_in};
use crate::tiering::observation::Looked;
use crate::units::{Bytes, VirtAddr};

/// So much more of what lies on one side has to be written.
const PARTED: f32 = 0.6;
/// Samples on either side at least.
const EACH: usize = 4;
/// Weight of that epoch: it alone makes neither side written nor read, but keeps them apart.
const BELIEVED: f32 = 0.6;

/// Where to cut, as the number of samples before that, and the shares that are written before and after it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Place {
    after: usize,
    shares: [f32; 2],
}

impl Region {
    /// Both parts of it, none smaller than `least`, with the edge where others may lie, if its samples, of an epoch about which it was asked what is
    /// written, part it so.
    pub(super) fn parted(&self, samples: Looked<'_>, least: Bytes) -> Option<[Self; 2]> {
        let used = samples.iter().filter(|(_, tally)| tally.accessed > 0);
        let used: Vec<(VirtAddr, bool)> = used.map(|(s, tally)| (s.addr, tally.written)).collect();
        let place = place(&used)?;
        let [before, after] = [place.after - 1, place.after].map(|at| used[at].0.0);
        // No folio is cut.
        let unit = adapt::unit_of(least, self.folio_bytes());
        let middle = VirtAddr(u64::midpoint(before, after + 1)).align_down(unit);
        let (low, high) = self.range.split_at(middle)?;
        if low.bytes().min(high.bytes()) < least {
            return None;
        }
        let mut rest = samples;
        let mut part = |range, share| Self {
            written: Part::of(f32::midpoint(
                self.written().unwrap_or(UNDECIDED),
                share_of(take_in(&mut rest, range), |tally| tally.written),
            )),
            writing: Part::of(UNDECIDED + BELIEVED * (share - UNDECIDED)),
            doubt: None,
            quota: self.quota.div_ceil(2),
            ..self.part(range)
        };
        Some([part(low, place.shares[0]), part(high, place.shares[1])])
    }
}

/// The place that parts samples, sorted by address, best, if that is good enough.
fn place(used: &[(VirtAddr, bool)]) -> Option<Place> {
    let all = used.iter().filter(|(_, written)| *written).count();
    if used.len() < 2 * EACH || all == 0 || all == used.len() {
        return None;
    }
    let mut written = 0;
    let mut best: Option<(f32, Place)> = None;
    for (at, (_, is_written)) in used.iter().enumerate() {
        let (low, high) = (at, used.len() - at);
        if low >= EACH && high >= EACH {
            let shares = [
                written as f32 / low as f32,
                (all - written) as f32 / high as f32,
            ];
            let apart = shares[0] - shares[1];
            let between = apart * apart * low as f32 * high as f32;
            if apart.abs() >= PARTED && best.is_none_or(|(most, _)| between > most) {
                best = Some((between, Place { after: at, shares }));
            }
        }
        written += usize::from(*is_written);
    }
    best.map(|(_, place)| place)
}

#[cfg(test)]
mod tests {
    use super::super::{Asked, RegionMap, Thresholds};
    use super::*;
    use crate::tiering::observation::{Sample, Tally, TargetId};
    use crate::units::{Bytes, PageRange, Pid};

    fn used(text: &str) -> Vec<(VirtAddr, bool)> {
        let each = (0_u64..).zip(text.chars());
        each.map(|(at, c)| (VirtAddr(at << 20), c == 'w')).collect()
    }

    #[test]
    fn what_is_touched_alike_is_parted_and_stays_so() {
        const MIB: u64 = 1 << 20;
        let mut map = RegionMap::default();
        let all = PageRange::new(VirtAddr(0), VirtAddr(16 * MIB)).unwrap();
        map.sync(&[all], Bytes::from_mib(16));
        let seen: Vec<(Sample, Tally)> = (0..16)
            .map(|at| {
                let sample = Sample {
                    target: TargetId(1),
                    pid: Pid(1),
                    addr: VirtAddr(at * MIB),
                };
                let tally = Tally {
                    known: 3,
                    accessed: 3,
                    written: at >= 6,
                    ..Tally::default()
                };
                (sample, tally)
            })
            .collect();
        map.adapt_to(&seen, 3, Thresholds::FOR_TESTS);
        assert_eq!(map.regions().len(), 1);
        let asked = |writes| Asked {
            writes,
            parts: Some(Bytes::from_mib(1)),
            ..Asked::default()
        };
        map.record_of(&seen, asked(false));
        assert_eq!(map.regions().len(), 1, "nobody asked");
        let too_small = Asked {
            parts: Some(Bytes::from_mib(8)),
            ..asked(true)
        };
        map.record_of(&seen, too_small);
        assert_eq!(map.regions().len(), 1, "of less than 8 MiB");
        map.forget_writes();
        for shares in [[0.2, 0.8], [0.1, 0.9], [0.05, 0.95]] {
            map.record_of(&seen, asked(true));
            map.adapt_to(&seen, 3, Thresholds::FOR_TESTS);
            let found = map.regions().iter();
            let found: Vec<_> = found.map(|r| (r.range().end().0, r.writing())).collect();
            let half = 5 * MIB + MIB / 2;
            let [low, high] = shares.map(Some);
            assert_eq!(found, [(half, low), (16 * MIB, high)]);
        }
    }

    #[test]
    fn the_place_is_where_both_sides_differ_most() {
        let at = |text| place(&used(text)).map(|place| (place.after, place.shares));
        assert_eq!(at("rrrrrrwwwwww"), Some((6, [0.0, 1.0])));
        assert_eq!(at("wwwwrrrrrrrr"), Some((4, [1.0, 0.0])));
        assert_eq!(at("rrwrrrrrwwwwwwww"), Some((8, [0.125, 1.0])));
        // Too few on one side, all alike, or here and there.
        for text in [
            "rrwwwwwwwwww",
            "wwwwwwww",
            "rrrrrrrr",
            "",
            "rwrwrwrwrwrwrwrw",
        ] {
            assert_eq!(at(text), None, "{text}");
        }
    }
}
