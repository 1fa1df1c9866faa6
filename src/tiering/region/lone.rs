//! Regions of which one page was seen, and what such a page says of the others around it.
//!
//! **Problem.** A lone sample that contradicts its region is believed for some way around it ([`edges`](super::edges)):
//! where what is hot lies together that finds it an epoch sooner. Where hot pages lie among cold ones, as the records of a
//! hash table do, the next sample finds another page, which is cold; by then all of it was moved.
//!
//! **Approach.** Whichever it is shows with the next sample: what those found of such regions, at other pages, as a share of what
//! the first ones promised, tells how alike the pages of a region are ([`Alike`]). Is it a tenth, a region is believed as
//! if nine pages more of it had been seen idle (the mean of a beta distribution of which one page tells so much); is it all, as it is.
//! So several pages are believed more than one, and where they were all hot, as in the one table among the records,
//! that is believed in any case. It is learnt of each target apart, from all such regions, moved or not. To
//! begin with pages are held to be alike. What was hot is not always so: of warm memory that is all alike some promise is broken, too,
//! and all of them when a hot set jumps. So a promise is of what regions kept in the same epoch in which several pages
//! had been hot, and none idle: what these lose is lost to time, and where they lose half nothing is learnt. And no epoch counts for
//! more than [`MOST`] samples.
//!
//! **Properties** (tests below): where pages are alike a region is as hot as it is; nothing is hotter than it is.

use super::Region;
use super::edges::CUT_EVIDENCE;
use crate::tiering::observation::Looked;

/// Of the scans: what is seen in fewer promises nothing.
const PROMISES: f32 = 1.0 / 3.0;
/// Several pages that were seen in this share of the scans are hot all over.
const HOT: f32 = 0.9;
/// A hot set has jumped of which no more is left.
const JUMPED: f32 = 0.5;
/// Samples of what was seen in all scans that are held to have kept their promise before any did.
const PRIOR: f32 = 2.0;
/// No epoch counts for more of them.
const MOST: f32 = 16.0;
/// Less of a promise is not told from nothing.
const LEAST_KEPT: f32 = 0.02;
/// What is known already when an epoch's samples are added.
const KEPT: f32 = 0.8;

/// What was promised of samples and what they found, in shares of the scans, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Promises {
    promised: f32,
    found: f32,
}

impl Promises {
    /// All of so many kept.
    const fn kept(samples: f32) -> Self {
        Self {
            promised: samples,
            found: samples,
        }
    }

    /// What was kept of them, at most all.
    fn share(self) -> f32 {
        (self.found / self.promised).min(1.0)
    }
}

/// What became in an epoch of what regions were before.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FollowUp {
    /// Of other pages than the one that was known.
    lone: Promises,
    /// Of those that were hot all over.
    others: Promises,
}

impl FollowUp {
    /// Adds this epoch's samples of a region, as it was before them.
    pub(super) fn add(&mut self, region: &Region, samples: Looked<'_>, scans: u8) {
        let promise = region.heat() / f32::from(scans);
        if region.known.is_empty() || promise < PROMISES {
            return;
        }
        let (is_lone, page) = (region.is_lone(), region.known.first);
        let is_hot = promise >= HOT && region.evidence > CUT_EVIDENCE;
        if !is_lone && !is_hot {
            return;
        }
        for (sample, tally) in samples.iter().filter(|(_, tally)| tally.known > 0) {
            let order = tally.order.min(20);
            let is_other = sample.addr.page_index() >> order != page >> order;
            let promises = match (is_lone, is_other) {
                (true, true) => &mut self.lone,
                (true, false) => continue,
                (false, _) => &mut self.others,
            };
            promises.promised += promise;
            promises.found += f32::from(tally.accessed) / f32::from(tally.known);
        }
    }
}

/// How alike pages of a region are.
#[derive(Clone, Copy, Debug)]
pub struct Alike(Promises);

impl Default for Alike {
    fn default() -> Self {
        Self(Promises::kept(PRIOR))
    }
}

impl Alike {
    /// Learns from an epoch.
    pub fn learn(&mut self, FollowUp { lone, others }: FollowUp) {
        let stays = Promises {
            promised: PRIOR + others.promised,
            found: PRIOR + others.found,
        };
        let promised = lone.promised * stays.share();
        if promised > 0.0 && stays.share() > JUMPED {
            let weight = (MOST / promised).min(1.0);
            let add = |known: &mut f32, new| *known = KEPT * *known + weight * new;
            add(&mut self.0.promised, promised);
            add(&mut self.0.found, lone.found.min(promised));
        }
    }

    /// So many pages more of each region are to be held to be idle: none where they are alike.
    pub fn prior(self) -> f32 {
        let kept = self.0.share().max(LEAST_KEPT);
        (1.0 - kept) / kept
    }
}

impl Region {
    /// Whether what is known of it was seen at one of its folios alone, and not before it was cut out of a larger one.
    fn is_lone(&self) -> bool {
        let (first, last) = (self.known.first, self.known.last);
        let order = self.order.min(20);
        !self.known.is_empty()
            && first >> order == last >> order
            && self.evidence <= CUT_EVIDENCE
            && !self.is_one_folio()
    }

    /// Whether it is no larger than one of its folios.
    fn is_one_folio(&self) -> bool {
        self.range.bytes().0 <= self.folio_bytes()
    }

    /// How hot to hold it ([`heat`](Self::heat)) if `prior` pages more of it had been seen idle ([`Alike::prior`]): as
    /// hot as it is where one sample tells all of it, or where several were hot in all of so many scans.
    pub fn believed(&self, prior: f32, scans: u8) -> f32 {
        let heat = self.heat();
        if prior <= 0.0 || self.is_one_folio() {
            return heat;
        }
        if self.is_lone() {
            return heat / (1.0 + prior);
        }
        let share = 1.0 / (1.0 + prior / self.evidence.max(1.0));
        // None where half of the looks found them idle.
        let agree = (2.0 * heat / f32::from(scans) - 1.0).max(0.0);
        heat * share.max(agree * agree)
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

    /// As one that was cut out.
    fn region(heat: f32, first: u64, last: u64) -> Region {
        Region {
            known: Known { first, last },
            evidence: CUT_EVIDENCE,
            ..Region::for_test(pages(0, 512), heat, &[])
        }
    }

    /// How alike pages are after eight epochs in which these were hot; of all pages those in regions that are warm, and those in such
    /// as are believed to be.
    fn watched(samples: u64, is_hot: impl Fn(u64) -> bool) -> (f32, u64, u64) {
        let mut map = RegionMap::default();
        map.sync(&[pages(0, PAGES)], Bytes(PAGES * PAGE_BYTES / 32));
        let mut alike = Alike::default();
        for epoch in 0..8 {
            // Others in each epoch, of each region.
            let each = PAGES / samples;
            let samples: Vec<_> = (0..samples)
                .map(|i| i * each + (epoch * 37 + i * 11) % each)
                .map(|page| sample(page, if is_hot(page) { 3 } else { 0 }))
                .collect();
            alike.learn(map.adapt_to(&samples, 3, RULE).lone);
        }
        let warm = |heat: &dyn Fn(&Region) -> f32| {
            let regions = map.regions().iter().filter(|r| heat(r) >= 1.0);
            regions.map(|region| region.range().pages()).sum()
        };
        let prior = alike.prior();
        let believed = warm(&|region| region.believed(prior, 3));
        (prior, warm(&Region::heat), believed)
    }

    #[test]
    fn hot_pages_among_cold_ones_promise_nothing_of_these() {
        // Also where several of few are hot by chance.
        for (samples, one_in) in [(128, 16), (2048, 8)] {
            let (prior, warm, believed) = watched(samples, |page| {
                (page.wrapping_mul(0x9E37_79B9) >> 5).is_multiple_of(one_in)
            });
            assert!(prior > 2.0, "{samples}: {prior}");
            assert!(believed < warm / 4, "{samples}: {believed} of {warm}");
        }
    }

    #[test]
    fn what_lies_together_is_as_hot_as_it_is() {
        let (prior, warm, believed) = watched(128, |page| page / 1024 % 4 == 1);
        assert!(prior < 0.25, "{prior}");
        assert!(
            believed == warm && warm >= PAGES / 4,
            "{believed} of {warm}"
        );
    }

    fn follow_up(lone: [f32; 2], others: [f32; 2]) -> FollowUp {
        let of = |[promised, found]: [f32; 2]| Promises { promised, found };
        FollowUp {
            lone: of(lone),
            others: of(others),
        }
    }

    #[test]
    fn what_is_broken_is_forgotten_soon() {
        let mut alike = Alike::default();
        alike.learn(follow_up([100.0, 0.0], [0.0; 2]));
        assert!(alike.prior() > 6.0, "{}", alike.prior());
        assert!(alike.prior() < 12.0, "{}", alike.prior());
        alike.learn(follow_up([100.0, 100.0], [0.0; 2]));
        assert!(alike.prior() < 1.0, "{}", alike.prior());
    }

    #[test]
    fn what_is_lost_of_all_that_was_hot_says_nothing_of_pages() {
        let after = |found, others| {
            let mut alike = Alike::default();
            alike.learn(follow_up([100.0, found], others));
            alike.prior()
        };
        // A hot set jumped.
        assert!(after(0.0, [100.0, 0.0]) < 1e-6);
        assert!(after(0.0, [4.0, 0.0]) < 1e-6);
        // Two fifths of everything have cooled down, of unlike pages more.
        assert!(after(60.0, [100.0, 60.0]) < 0.1);
        assert!(after(10.0, [100.0, 60.0]) > 2.0);
        // Warmer than it was, nothing is less alike.
        assert!((after(10.0, [100.0, 300.0]) - after(10.0, [0.0; 2])).abs() < 1e-6);
    }

    #[test]
    fn only_other_pages_keep_a_promise() {
        let after = |region: &Region, seen: &[(Sample, Tally)]| {
            let mut epoch = FollowUp::default();
            epoch.add(region, AccessSet::of(seen).looked(), 3);
            let mut alike = Alike::default();
            alike.learn(epoch);
            alike.prior()
        };
        let lone = region(3.0, 7, 7);
        let broken = [sample(8, 0); 2];
        assert!(after(&lone, &broken) > 1.0);
        for (region, seen) in [
            (&lone, [sample(7, 0), sample(9, 3)]),
            (&region(3.0, 7, 8), broken),
            (
                &Region {
                    evidence: 90.0,
                    ..lone.clone()
                },
                broken,
            ),
            (&region(0.5, 7, 7), broken),
        ] {
            assert!(after(region, &seen) < 1e-6);
        }
    }

    #[test]
    fn several_pages_are_believed_more_than_one_and_all_of_a_folio() {
        let many = |heat, samples| {
            let mut region = region(heat, 7, 300);
            region.rest_on(samples);
            region.believed(9.0, 3)
        };
        assert!((region(3.0, 7, 7).believed(9.0, 3) - 0.3).abs() < 1e-6);
        assert!((many(1.5, 3.0) - 0.375).abs() < 1e-6);
        assert!((many(1.5, 9.0) - 0.75).abs() < 1e-6);
        assert!((many(3.0, 3.0) - 3.0).abs() < 1e-6);
        // Two pages of one folio are as one.
        let mut large = region(3.0, 16, 31);
        large.of_folios(4);
        assert!((large.believed(9.0, 3) - 0.3).abs() < 1e-6);
        large.of_folios(9);
        assert!((large.believed(9.0, 3) - 3.0).abs() < 1e-6);
    }

    proptest! {
        #[test]
        fn nothing_is_hotter_than_it_is(
            heat in 0.0_f32..=3.0,
            (prior, more) in (0.0_f32..50.0, 0.0_f32..50.0),
            last in 7_u64..9,
            samples in 0.5_f32..50.0,
        ) {
            let mut region = region(heat, 7, last);
            region.rest_on(samples);
            let believed = region.believed(prior, 3);
            prop_assert!((0.0..=heat).contains(&believed));
            prop_assert!(region.believed(prior + more, 3) <= believed);
            prop_assert!((region.believed(0.0, 3) - heat).abs() < 1e-6);
        }
    }
}
