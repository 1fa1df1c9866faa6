//! Regions of which one page was seen, and what such a page says of the others around it.
//!
//! **Problem.** A lone sample that contradicts its region is believed for some way around it ([`edges`](super::edges)):
//! where what is hot lies together that finds it an epoch sooner. Where hot pages lie among cold ones, as the records of a
//! hash table do, the next sample finds another page, which is cold; by then all of it was moved.
//!
//! **Approach.** Whichever it is shows with the next sample: what those found of such regions, at other pages, as a share of what
//! the first ones promised, tells how alike pages of a region are ([`Alike`]). Where they are not, what one page promises is worth
//! that share of it, and so is what several pages contradict each other about; where several are all hot, as in the one
//! table among the records, it is believed. It is learnt of each target apart, from all such regions, moved or not. To begin with they are held
//! to be alike.
//!
//! **Properties** (tests below): where pages are alike a region is as hot as it is; nothing is hotter than it is.

use super::Region;
use crate::tiering::observation::Looked;

/// Of the scans: what is seen in fewer promises nothing.
const PROMISES: f32 = 1.0 / 3.0;
/// Samples of what was seen in all scans that are held to have kept their promise before any did.
const PRIOR: f32 = 2.0;
/// What is known already when an epoch's samples are added.
const KEPT: f32 = 0.8;

/// What other pages of regions of which one was known turned out to be, in shares of the scans, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FollowUp {
    promised: f32,
    found: f32,
}

impl FollowUp {
    /// Adds this epoch's samples of a region, as it was before them.
    pub(super) fn add(&mut self, region: &Region, samples: Looked<'_>, scans: u8) {
        let promise = region.heat() / f32::from(scans);
        if !region.is_lone() || promise < PROMISES {
            return;
        }
        let page = region.known.first;
        let others = samples.iter().filter(|(sample, tally)| {
            let order = tally.order.min(20);
            tally.known > 0 && sample.addr.page_index() >> order != page >> order
        });
        for (_, tally) in others {
            self.promised += promise;
            self.found += f32::from(tally.accessed) / f32::from(tally.known);
        }
    }
}

/// How alike pages of a region are.
#[derive(Clone, Copy, Debug)]
pub struct Alike(FollowUp);

impl Default for Alike {
    fn default() -> Self {
        Self(FollowUp {
            promised: PRIOR,
            found: PRIOR,
        })
    }
}

impl Alike {
    /// Learns from an epoch.
    pub fn learn(&mut self, epoch: FollowUp) {
        if epoch.promised > 0.0 {
            let add = |known: &mut f32, new| *known = KEPT * *known + new;
            add(&mut self.0.promised, epoch.promised);
            add(&mut self.0.found, epoch.found);
        }
    }

    /// What other pages have of what one has, as a share: 0 to 1.
    pub fn share(self) -> f32 {
        (self.0.found / self.0.promised).min(1.0)
    }
}

impl Region {
    /// Whether what is known of it was seen at one of its folios alone.
    fn is_lone(&self) -> bool {
        let known = self.known;
        !known.is_empty() && known.first == known.last && !self.is_one_folio()
    }

    /// Whether it is no larger than one of its folios.
    fn is_one_folio(&self) -> bool {
        self.range.bytes().0 <= self.folio_bytes()
    }

    /// How hot to hold it ([`heat`](Self::heat)) where pages of a region are alike to such a share ([`Alike::share`]): as
    /// hot as it is where one sample tells all of it, or several were hot in all of so many scans.
    pub fn believed(&self, alike: f32, scans: u8) -> f32 {
        let heat = self.heat();
        if alike >= 1.0 || self.is_one_folio() {
            return heat;
        }
        let agree = if self.is_lone() {
            0.0
        } else {
            // None where half of the looks found them idle.
            (2.0 * heat / f32::from(scans) - 1.0).max(0.0).powi(2)
        };
        heat * (alike + (1.0 - alike) * agree)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tiering::observation::{AccessSet, Sample, Tally, TargetId};
    use crate::tiering::region::{Known, RegionMap, Thresholds};
    use crate::tiering::settings::SplitRule;
    use crate::units::{Bytes, PAGE_BYTES, PageRange, Pid, VirtAddr};

    const PAGES: u64 = 1 << 14;
    const RULE: Thresholds = Thresholds {
        rule: SplitRule::Edges,
        ..Thresholds::FOR_TESTS
    };

    fn pages(start: u64, end: u64) -> PageRange {
        let at = |page| VirtAddr(page * PAGE_BYTES);
        PageRange::new(at(start), at(end)).unwrap()
    }

    /// A sample that was seen in so many of three scans.
    fn sample(page: u64, accessed: u8) -> (Sample, Tally) {
        let sample = Sample {
            target: TargetId(1),
            pid: Pid(1),
            addr: VirtAddr(page * PAGE_BYTES),
        };
        let tally = Tally {
            accessed,
            known: 3,
            ..Tally::default()
        };
        (sample, tally)
    }

    fn region(heat: f32, first: u64, last: u64) -> Region {
        Region {
            known: Known { first, last },
            ..Region::for_test(pages(0, 512), heat, &[])
        }
    }

    /// How alike pages are after eight epochs in which these were hot; of all pages those in regions that are warm, and those in such
    /// as are believed to be.
    fn watched(is_hot: impl Fn(u64) -> bool) -> (f32, u64, u64) {
        let mut map = RegionMap::default();
        map.sync(&[pages(0, PAGES)], Bytes(PAGES * PAGE_BYTES / 32));
        let mut alike = Alike::default();
        for epoch in 0..8 {
            // Others in each epoch, of each region.
            let samples: Vec<_> = (0..128_u64)
                .map(|i| i * 128 + (epoch * 37 + i * 11) % 128)
                .map(|page| sample(page, if is_hot(page) { 3 } else { 0 }))
                .collect();
            alike.learn(map.adapt_to(&samples, 3, RULE).lone);
        }
        let warm = |heat: &dyn Fn(&Region) -> f32| {
            let regions = map.regions().iter().filter(|r| heat(r) >= 1.0);
            regions.map(|region| region.range().pages()).sum()
        };
        let alike = alike.share();
        let believed = warm(&|region| region.believed(alike, 3));
        (alike, warm(&Region::heat), believed)
    }

    #[test]
    fn hot_pages_among_cold_ones_promise_nothing_of_these() {
        let (alike, warm, believed) = watched(|page| page.wrapping_mul(0x9E37_79B9) >> 5 & 15 == 0);
        assert!(alike < 0.3, "{alike}");
        assert!(believed < warm / 4, "{believed} of {warm}");
    }

    #[test]
    fn what_lies_together_is_as_hot_as_it_is() {
        let (alike, warm, believed) = watched(|page| page / 1024 % 4 == 1);
        assert!(alike > 0.8, "{alike}");
        assert!(
            believed == warm && warm >= PAGES / 4,
            "{believed} of {warm}"
        );
    }

    #[test]
    fn only_other_pages_keep_a_promise() {
        let after = |region: &Region, seen: &[(Sample, Tally)]| {
            let mut epoch = FollowUp::default();
            epoch.add(region, AccessSet::of(seen).looked(), 3);
            let mut alike = Alike::default();
            alike.learn(epoch);
            alike.share()
        };
        let lone = region(3.0, 7, 7);
        let broken = [sample(8, 0); 2];
        assert!(after(&lone, &broken) < 0.5);
        for (region, seen) in [
            (&lone, [sample(7, 0), sample(9, 3)]),
            (&region(3.0, 7, 8), broken),
            (&region(0.5, 7, 7), broken),
        ] {
            assert!((after(region, &seen) - 1.0).abs() < 1e-6);
        }
    }

    #[test]
    fn several_hot_pages_are_believed_and_so_is_a_folio() {
        assert!(region(3.0, 7, 7).believed(0.1, 3) < 0.5);
        assert!((region(3.0, 7, 300).believed(0.1, 3) - 3.0).abs() < 1e-6);
        assert!(region(1.5, 7, 300).believed(0.1, 3) < 0.5);
        let mut huge = region(3.0, 7, 7);
        huge.of_folios(9);
        assert!((huge.believed(0.1, 3) - 3.0).abs() < 1e-6);
    }

    proptest! {
        #[test]
        fn nothing_is_hotter_than_it_is(heat in 0.0_f32..=3.0, alike in 0.0_f32..=1.0, last in 7_u64..9) {
            let region = region(heat, 7, last);
            let believed = region.believed(alike, 3);
            prop_assert!(believed <= heat * (1.0 + 1e-5) && believed >= alike * heat * (1.0 - 1e-5));
            prop_assert!((region.believed(1.0, 3) - heat).abs() < 1e-6);
        }
    }
}
