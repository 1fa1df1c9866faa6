//! What was moved of a region, and how often it was moved back.

use super::{Region, RegionMap, short};
use crate::tiering::plan::Direction;
use crate::units::{NodeId, PageRange};

/// Epochs within which it counts that a region is moved back, and without any move after
/// which one time is forgotten: twice as many for each time, as a policy lets it rest longer.
const FLIPS_WITHIN: u8 = 6;
/// Times that are counted at most.
const FLIPS_MAX: u8 = 4;

impl Region {
    /// The epoch and direction of its last move.
    pub fn moved(&self) -> Option<(u64, Direction)> {
        self.moved.map(|way| (self.moved_at.into(), way))
    }

    /// How often it was moved back, the other way than the time before, soon after that; with
    /// time that is forgotten.
    pub fn flips(&self) -> u8 {
        self.flips
    }

    /// Epochs without a move after which one time less is remembered that it was moved back.
    fn calms_after(&self) -> u8 {
        FLIPS_WITHIN << self.flips
    }

    /// One more epoch without a move.
    pub(super) fn calm_down(&mut self) {
        self.calm = self.calm.saturating_add(1);
        if self.flips > 0 && self.calm > self.calms_after() {
            self.flips -= 1;
            self.calm = 0;
        }
    }
}

impl RegionMap {
    /// Pages of `range` went from one node to another; tells of how many it did not hold them to be
    /// on the first one.
    pub fn record_move(
        &mut self,
        range: PageRange,
        from: NodeId,
        to: NodeId,
        pages: u64,
        at: (u64, Direction),
    ) -> u64 {
        let mut left = pages;
        for region in self.within(range) {
            let count = left.min(region.pages.on(from));
            region.pages.shift(from, to, count);
            left -= count;
            if count > 0 {
                let is_back = region.moved().is_some_and(|(before, direction)| {
                    direction != at.1 && at.0 <= before + u64::from(region.calms_after())
                });
                if is_back {
                    region.flips = (region.flips + 1).min(FLIPS_MAX);
                }
                region.calm = 0;
                (region.moved_at, region.moved) = (short(at.0), Some(at.1));
                // A count under way has seen them where they no longer are.
                if let Some(pages) = region.pages_so_far() {
                    pages.shift(from, to, count);
                }
            }
        }
        left
    }

    /// All of `range` was looked through for pages on `node`, and no more than `most` are
    /// left. What came of a split or merge and was held to have more, by its share of the
    /// whole, is to be counted.
    pub fn record_left(&mut self, range: PageRange, node: NodeId, most: u64) {
        for region in self.within(range) {
            if range.covers(region.range) && region.pages.cap(node, most) {
                region.is_counted = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiering::observation::{Sample, Tally, TargetId};
    use crate::tiering::region::Thresholds;
    use crate::tiering::settings::SplitRule;
    use crate::units::{Bytes, Pid, VirtAddr};

    const MIB: u64 = 1 << 20;
    const SMALL: u64 = 2 * MIB;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange::new(VirtAddr(start), VirtAddr(end)).unwrap()
    }

    fn sample(addr: u64, order: u8) -> (Sample, Tally) {
        let sample = Sample {
            target: TargetId(1),
            pid: Pid(1),
            addr: VirtAddr(addr),
        };
        let tally = Tally {
            known: 3,
            order,
            ..Tally::default()
        };
        (sample, tally)
    }

    /// A small region beside a large one, both cold.
    fn cold() -> (RegionMap, [(Sample, Tally); 2]) {
        let mut map = RegionMap::default();
        map.sync(&[range(0, SMALL)], Bytes(SMALL));
        map.sync(&[range(0, 64 * MIB)], Bytes(1 << 30));
        (map, [sample(0, 0), sample(32 * MIB, 0)])
    }

    fn flap(map: &mut RegionMap, epoch: u64) {
        let (fast, slow) = (NodeId(0), NodeId(3));
        map.record_count(range(0, SMALL), &[(slow, 512)]);
        map.record_move(
            range(0, SMALL),
            slow,
            fast,
            512,
            (epoch, Direction::Promotion),
        );
        map.record_move(
            range(0, SMALL),
            fast,
            slow,
            512,
            (epoch, Direction::Demotion),
        );
    }

    #[test]
    fn what_flaps_is_not_lost_in_a_cold_neighbour_until_it_is_calm() {
        for rule in [SplitRule::Edges, SplitRule::Halves] {
            let thresholds = Thresholds {
                rule,
                ..Thresholds::FOR_TESTS
            };
            let (mut map, samples) = cold();
            flap(&mut map, 1);
            for epoch in 2..10 {
                map.adapt_to(&samples, 3, thresholds);
                assert_eq!(map.regions()[0].flips(), 1, "{epoch}");
                assert_eq!(map.regions().len(), 2, "{epoch}");
            }
            for _ in 10..30 {
                map.adapt_to(&samples, 3, thresholds);
            }
            assert_eq!(map.regions().len(), 1);
        }
    }

    #[test]
    fn the_pieces_of_what_flapped_remember_it() {
        for rule in [SplitRule::Edges, SplitRule::Halves] {
            let thresholds = Thresholds {
                rule,
                ..Thresholds::FOR_TESTS
            };
            let mut map = RegionMap::default();
            map.sync(&[range(0, SMALL)], Bytes(SMALL));
            flap(&mut map, 1);
            let mut samples = [sample(0, 0), sample(SMALL / 2, 0)];
            map.adapt_to(&samples, 3, thresholds);
            assert_eq!(map.regions().len(), 1);
            // Its second half becomes hot.
            samples[1].1.accessed = 3;
            for _ in 0..4 {
                map.adapt_to(&samples, 3, thresholds);
            }
            assert!(map.regions().len() > 1, "{rule:?}");
            for region in map.regions() {
                assert_eq!(region.flips(), 1, "{rule:?}: {}", region.range());
            }
        }
    }

    #[test]
    fn a_huge_page_among_small_ones_does_not_make_them_all_huge() {
        let thresholds = Thresholds {
            rule: SplitRule::Edges,
            ..Thresholds::FOR_TESTS
        };
        let mut map = RegionMap::default();
        map.sync(&[range(0, 64 * MIB)], Bytes(1 << 30));
        let small: Vec<_> = (0..8).map(|at| sample(at * 8 * MIB, 0)).collect();
        map.adapt_to(&small, 3, thresholds);
        let mut mixed = small.clone();
        mixed[3] = sample(24 * MIB, 9);
        map.adapt_to(&mixed, 3, thresholds);
        let [region] = map.regions() else {
            panic!("{:?}", map.regions());
        };
        assert!((0.9..1.0).contains(&region.per_page(1.0)));
        let huge: Vec<_> = (0..8).map(|at| sample(at * 8 * MIB, 9)).collect();
        let mut map = RegionMap::default();
        map.sync(&[range(0, 64 * MIB)], Bytes(1 << 30));
        map.adapt_to(&huge, 3, thresholds);
        assert!((map.regions()[0].per_page(512.0) - 1.0).abs() < 1e-3);
    }
}
