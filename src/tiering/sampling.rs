//! Which pages to watch, of as many as the governor allots.
//!
//! **Unit.** Quotas are samples per epoch.
//!
//! **Problem.** `num_ps` samples (HM-Keeper, Eq. 8.1;
//! [`governor`](super::governor)) may be watched over all regions. They have to
//! find both the edges of what is hot and a hot set that jumped to where nothing
//! was hot before.
//!
//! **Approach.**
//! [`deal`] keeps one sample of each region at a page that was seen accessed and gives
//! what merges freed to the five regions whose count changed
//! most (§1.2), at most one sample per [`DENSEST`] pages each, and spreads the
//! rest by length, so that a jump into a large cold region is seen too.
//! [`deal_to_edges`] gives up to half of what is to spare to the gaps in which
//! the edges between hot and cold lie.
//! [`draw`] divides a region into as many equal strata as it has samples and
//! takes a random page of each, anew in every epoch: a fixed sample can
//! neither split a region nor notice that the hot set moved; [`deal`]'s is one of
//! several, where there are several. Only one page in
//! every [`DENSEST`] is ever drawn: an idle mark on cold memory stays, and a
//! read of the bitmap walks the page tables of all marked frames of its word,
//! 64 of them in the end if every page had its turn, so 4.
//!
//! **Properties** (proptest below): the quotas sum to at most `num_ps`;
//! samples are distinct, sorted and inside their region.

use super::observation::{Sample, TargetId};
use super::region::{Region, RegionMap, Thresholds};
use super::rng::Rng;
use crate::units::{PAGE_BYTES, Pid, VirtAddr};

/// Regions that get what merges freed (HM-Keeper §1.2).
const CHANGED_MOST: usize = 5;
/// No region is watched more closely than one page in so many: neighbours
/// that near are hot or cold together, and another region learns more.
const DENSEST: u64 = 16;
/// Regions of at most so many pages are sampled anywhere.
const FREELY_DRAWN: u64 = 4 * DENSEST;

/// The most samples that a region can use.
pub(super) fn most(region: &Region) -> u64 {
    let unit = region.folio_bytes().max(PAGE_BYTES);
    let folios = region.range().bytes().0.div_ceil(unit);
    if unit > PAGE_BYTES {
        folios
    } else {
        folios.div_ceil(DENSEST)
    }
}

/// Deals `total` samples out to the regions. `turn` rotates who goes without
/// when there are more regions than samples.
pub(super) fn deal(map: &mut RegionMap, total: u64, turn: u64) {
    let regions = map.regions_mut();
    let count = regions.len() as u64;
    let aims = |region: &Region| [false, false, region.doubted().is_some()];
    if count == 0 || count >= total {
        take_turns(regions, total, turn, aims);
        return;
    }
    // Everybody keeps its share, as far as it can use it and the total allows.
    let mut sum = 0;
    for region in regions.iter_mut() {
        region.aims = aims(region);
        let quota = u64::from(region.quota).clamp(1, most(region));
        region.quota = saturate(quota);
        sum += quota;
    }
    if sum > total {
        // Everybody has one; what is above that shrinks in proportion.
        let (above, room) = (sum - count, total - count);
        sum = 0;
        for region in regions.iter_mut() {
            let extra = u64::from(region.quota - 1);
            let kept = u128::from(extra) * u128::from(room) / u128::from(above.max(1));
            region.quota = 1 + u32::try_from(kept).unwrap_or(0);
            sum += u64::from(region.quota);
        }
    }
    let mut free = total - sum;

    // A running list of the few that changed most; nothing is sorted.
    let mut changed: Vec<usize> = Vec::with_capacity(CHANGED_MOST + 1);
    for (i, region) in regions.iter().enumerate() {
        let at = changed.partition_point(|&j| regions[j].change() >= region.change());
        if region.change() > 0.0 && at < CHANGED_MOST {
            changed.insert(at, i);
            changed.truncate(CHANGED_MOST);
        }
    }
    let share = free / (CHANGED_MOST as u64);
    for i in changed {
        let region = &mut regions[i];
        let more = share.min(most(region).saturating_sub(u64::from(region.quota)));
        region.quota = saturate(u64::from(region.quota) + more);
        free -= more;
    }
    spread(regions, free);
}

/// Deals `total` samples out to the regions where the hotness of neighbours
/// differs: one to each, then one to each page in doubt and to each side of an edge
/// that is not yet known as closely as regions are split, as long as these take no more
/// than half of what is left, then the rest by length.
pub(super) fn deal_to_edges(map: &mut RegionMap, total: u64, turn: u64, thresholds: Thresholds) {
    let regions = map.regions_mut();
    let count = regions.len() as u64;
    if count == 0 || count >= total {
        take_turns(regions, total, turn, |_| [false; 3]);
        return;
    }
    for region in regions.iter_mut() {
        region.aims = [false; 3];
        region.quota = 1;
    }
    let doubts = regions.iter().enumerate();
    let mut edges: Vec<(usize, usize)> = doubts
        .filter(|(_, region)| region.doubted().is_some())
        .map(|(i, _)| (i, 2))
        .collect();
    for i in 1..regions.len() {
        let (low, high) = (&regions[i - 1], &regions[i]);
        let touch = low.range().end() == high.range().start();
        if !touch || (low.latest() - high.latest()).abs() < thresholds.merge {
            continue;
        }
        for (region, side) in [(i - 1, 1), (i, 0)] {
            let r = &regions[region];
            let unit = thresholds.minimum.0.max(r.folio_bytes());
            let unit = unit.max(DENSEST * PAGE_BYTES);
            if r.gaps()[side].is_some_and(|gap| gap.bytes().0 >= unit) {
                edges.push((region, side));
            }
        }
    }
    let free = total - count;
    let all = edges.len() as u64;
    let share = all.min(free / 2);
    for (k, (region, side)) in (0..).zip(edges) {
        if turn.wrapping_mul(share).wrapping_add(k) % all < share {
            regions[region].aims[side] = true;
            regions[region].quota += 1;
        }
    }
    spread(regions, free - share);
}

/// Deals each of `total` samples to the region of a page drawn from all pages:
/// the ablation of HM-Keeper §1.6.
pub(super) fn deal_at_random(map: &mut RegionMap, total: u64, rng: &mut Rng) {
    let regions = map.regions_mut();
    let pages: u64 = regions.iter().map(|r| r.range().pages()).sum();
    if pages == 0 {
        return;
    }
    let mut drawn: Vec<u64> = (0..total).map(|_| rng.below(pages)).collect();
    drawn.sort_unstable();
    let (mut end, mut taken) = (0, 0);
    for region in regions.iter_mut() {
        end += region.range().pages();
        let until = drawn.partition_point(|&page| page < end);
        region.aims = [false; 3];
        region.quota = saturate((until - taken) as u64);
        taken = until;
    }
}

/// With more regions than samples everybody has one now and then, with its aims.
fn take_turns(regions: &mut [Region], total: u64, turn: u64, aims: impl Fn(&Region) -> [bool; 3]) {
    let count = regions.len() as u64;
    if count == 0 {
        return;
    }
    let start = turn.wrapping_mul(total) % count;
    for (i, region) in (0_u64..).zip(regions.iter_mut()) {
        let is_next = (i + count - start) % count < total;
        region.quota = u32::from(is_next);
        region.aims = if is_next { aims(region) } else { [false; 3] };
    }
}

/// Adds `free` samples by length.
fn spread(regions: &mut [Region], mut free: u64) {
    // What a full region cannot take is left for others
    // in the next round; a few rounds suffice.
    for _ in 0..3 {
        let open: u64 = regions
            .iter()
            .filter(|r| u64::from(r.quota) < most(r))
            .map(|r| r.range().pages())
            .sum();
        if free == 0 || open == 0 {
            break;
        }
        // Error diffusion: what one region's share lacks to a whole sample
        // the next one gets.
        let (pool, mut due) = (free, 0_u64);
        for region in regions.iter_mut() {
            let room = most(region).saturating_sub(u64::from(region.quota));
            if room == 0 {
                continue;
            }
            // Samples times pages are far from 2^64.
            due = due.saturating_add(pool.saturating_mul(region.range().pages()));
            let more = (due / open).min(room).min(free);
            due %= open;
            region.quota = saturate(u64::from(region.quota) + more);
            free -= more;
        }
    }
}

fn saturate(quota: u64) -> u32 {
    u32::try_from(quota).unwrap_or(u32::MAX)
}

/// Draws this epoch's samples, sorted by address: one random folio in each
/// stratum of each region; of small pages one in every [`DENSEST`]. `expected` says of each
/// whether its region is at least as hot as `hot`.
pub(super) fn draw(
    map: &RegionMap,
    (target, pid): (TargetId, Pid),
    hot: f32,
    rng: &mut Rng,
    out: &mut Vec<Sample>,
    expected: &mut Vec<bool>,
) {
    for region in map.regions() {
        let range = region.range();
        let unit = region.folio_bytes().max(PAGE_BYTES) / PAGE_BYTES;
        let first = range.start().page_index();
        let last = first + range.pages() - 1;
        let is_coarse = unit == 1 && range.pages() > FREELY_DRAWN;
        // Places that a sample may come from, on a grid from `origin` on.
        let grid = if is_coarse { DENSEST } else { unit };
        let origin = if is_coarse {
            first / DENSEST * DENSEST
        } else {
            first
        };
        let places = (last - origin) / grid + 1;
        let mine = out.len();
        let aimed = region.gaps().into_iter().zip(region.aims);
        let doubted = region.doubted().filter(|_| region.aims[2]);
        out.extend(doubted.map(|page| Sample {
            target,
            pid,
            addr: VirtAddr(page * PAGE_BYTES),
        }));
        for gap in aimed.filter_map(|(gap, aimed)| gap.filter(|_| aimed)) {
            // Somewhere in its middle half.
            let pages = gap.pages();
            let page = gap.start().page_index() + pages / 4 + rng.below(pages / 2 + 1);
            let page = if is_coarse {
                representative(page / DENSEST)
                    .clamp(gap.start().page_index(), gap.end().page_index() - 1)
            } else {
                page
            };
            let addr = VirtAddr(page.clamp(first, last) * PAGE_BYTES);
            out.push(Sample { target, pid, addr });
        }
        let quota = u64::from(region.quota()).saturating_sub((out.len() - mine) as u64);
        let quota = quota.min(places);
        for stratum in 0..quota {
            let low = stratum * places / quota;
            let high = (stratum + 1) * places / quota;
            let place = low + rng.below(high - low);
            let page = if is_coarse {
                representative(origin / DENSEST + place)
            } else {
                // Any page of a huge one: where only some of the region is
                // huge, the others are to be seen too.
                origin + place * unit + if unit > 1 { rng.below(unit) } else { 0 }
            };
            let addr = VirtAddr(page.clamp(first, last) * PAGE_BYTES);
            out.push(Sample { target, pid, addr });
        }
        let drawn = &mut out[mine..];
        drawn.sort_unstable_by_key(|sample| sample.addr);
        // What was aimed at may have been drawn as well.
        let mut kept = 0;
        for at in 1..drawn.len() {
            if drawn[at] != drawn[kept] {
                kept += 1;
                drawn[kept] = drawn[at];
            }
        }
        if !drawn.is_empty() {
            out.truncate(mine + kept + 1);
        }
        expected.resize(out.len(), region.heat() >= hot);
    }
}

/// The page that is watched for a group of [`DENSEST`] of them, always the same
/// one, at a place that no stride of a program follows.
fn representative(group: u64) -> u64 {
    group * DENSEST + Rng::new(group).below(DENSEST)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tiering::observation::Tally;
    use crate::tiering::rng::Rng;
    use crate::tiering::settings::SplitRule;
    use crate::units::{Bytes, PageRange};

    fn map(lengths: &[u64]) -> RegionMap {
        let mut at = 1;
        let ranges: Vec<PageRange> = lengths
            .iter()
            .map(|&pages| {
                let start = VirtAddr(at * PAGE_BYTES);
                at += pages + 1;
                PageRange::new(start, VirtAddr((at - 1) * PAGE_BYTES)).unwrap()
            })
            .collect();
        let mut map = RegionMap::default();
        map.sync(&ranges, Bytes(1 << 40));
        map
    }

    const THRESHOLDS: Thresholds = Thresholds {
        rule: SplitRule::Edges,
        ..Thresholds::FOR_TESTS
    };

    fn tally(accessed: bool) -> Tally {
        Tally {
            accessed: if accessed { 3 } else { 0 },
            known: 3,
            ..Tally::default()
        }
    }

    fn drawn(map: &RegionMap, rng: &mut Rng, out: &mut Vec<Sample>) {
        let mut expected = Vec::new();
        draw(map, (TargetId(0), Pid(1)), 1.5, rng, out, &mut expected);
        assert_eq!(expected.len(), out.len());
        for (sample, expected) in out.iter().zip(expected) {
            let regions = map.regions();
            let at = regions.partition_point(|r| r.range().end() <= sample.addr);
            assert_eq!(expected, regions[at].heat() >= 1.5);
        }
    }

    fn total(map: &RegionMap) -> u64 {
        map.regions().iter().map(|r| u64::from(r.quota())).sum()
    }

    #[test]
    fn what_is_left_is_spread_by_length() {
        let mut map = map(&[16_000, 48_000]);
        deal(&mut map, 402, 0);
        let quotas: Vec<u32> = map.regions().iter().map(Region::quota).collect();
        // One each, then 400 as 1 : 3.
        assert_eq!(quotas, [101, 301]);
    }

    #[test]
    fn by_halves_a_page_that_was_seen_accessed_is_looked_at_again() {
        let mut map = map(&[4096]);
        let sample = |page: u64| Sample {
            target: TargetId(0),
            pid: Pid(1),
            addr: VirtAddr(page * PAGE_BYTES),
        };
        let next = |map: &mut RegionMap, seen: &[(Sample, Tally)]| {
            map.adapt(seen, 3, Thresholds::FOR_TESTS);
            deal(map, 4, 0);
            let mut out = Vec::new();
            drawn(map, &mut Rng::new(1), &mut out);
            assert_eq!(out.len(), 4);
            out
        };
        let (hot, cold) = ((sample(1234), tally(true)), (sample(3000), tally(false)));
        assert!(next(&mut map, &[hot, cold]).contains(&hot.0));
        let idle = (hot.0, tally(false));
        assert!(!next(&mut map, &[idle, cold]).contains(&hot.0));
    }

    #[test]
    fn edges_are_looked_for_from_both_sides() {
        let mut map = map(&[4096]);
        let page = |page: u64| Sample {
            target: TargetId(0),
            pid: Pid(1),
            addr: VirtAddr(page * PAGE_BYTES),
        };
        let seen = [(page(1000), tally(true)), (page(2000), tally(false))];
        map.adapt(&seen, 3, THRESHOLDS);
        assert_eq!(map.regions().len(), 2, "{:?}", map.regions());
        deal_to_edges(&mut map, 12, 0, THRESHOLDS);
        assert_eq!(total(&map), 12);
        let mut out = Vec::new();
        drawn(&map, &mut Rng::new(1), &mut out);
        let between = |low, high| {
            out.iter()
                .filter(|s| (low..high).contains(&s.addr.page_index()))
                .count()
        };
        // The edge is between 1001 and 2000, cut in the middle.
        assert!(between(1100, 1500) >= 1, "{out:?}");
        assert!(between(1500, 1900) >= 1, "{out:?}");
    }

    #[test]
    fn with_more_regions_than_samples_they_take_turns() {
        let mut map = map(&[4; 10]);
        let mut watched = [0; 10];
        for turn in 0..5 {
            deal(&mut map, 4, turn);
            assert_eq!(total(&map), 4);
            for (n, region) in watched.iter_mut().zip(map.regions()) {
                *n += region.quota();
            }
        }
        assert_eq!(watched, [2; 10]);
    }

    #[test]
    fn samples_lie_in_strata_and_differ_between_epochs() {
        // Regions begin at page 1: 50 strata of two groups of 16 each.
        let mut map = map(&[1599]);
        deal(&mut map, 50, 0);
        let mut rng = Rng::new(1);
        let mut epochs = Vec::new();
        for _ in 0..2 {
            let mut out = Vec::new();
            drawn(&map, &mut rng, &mut out);
            assert_eq!(out.len(), 50);
            for (i, sample) in (0..).zip(&out) {
                assert_eq!(sample.addr.page_index() / 32, i);
            }
            epochs.push(out);
        }
        assert_ne!(epochs[0], epochs[1]);
    }

    #[test]
    fn few_pages_of_a_large_region_are_ever_marked() {
        let mut map = map(&[1599]);
        let mut rng = Rng::new(1);
        let mut pages = std::collections::BTreeSet::new();
        for turn in 0..200 {
            deal(&mut map, 50, turn);
            let mut out = Vec::new();
            drawn(&map, &mut rng, &mut out);
            pages.extend(out.iter().map(|sample| sample.addr.page_index()));
        }
        assert_eq!(pages.len(), 100, "one in 16, and in time each of them");
        let places: std::collections::BTreeSet<_> = pages.iter().map(|page| page % 16).collect();
        assert!(places.len() > 8, "at no fixed stride: {places:?}");
    }

    #[test]
    fn what_is_drawn_comes_behind_what_others_drew() {
        let (mut out, mut expected) = (Vec::new(), Vec::new());
        let mut rng = Rng::new(1);
        for (id, accessed) in [(0, true), (1, false), (2, true)] {
            let mut map = map(&[40]);
            let whole: Vec<_> = (1..41)
                .map(|page| Sample {
                    target: TargetId(id),
                    pid: Pid(1),
                    addr: VirtAddr(page * PAGE_BYTES),
                })
                .map(|sample| (sample, tally(accessed)))
                .collect();
            map.adapt(&whole, 3, Thresholds::FOR_TESTS);
            // As many as there are pages: the one in doubt is drawn once more.
            map.regions_mut()[0].quota = 40;
            map.regions_mut()[0].aims[2] = accessed;
            draw(
                &map,
                (TargetId(id), Pid(1)),
                1.5,
                &mut rng,
                &mut out,
                &mut expected,
            );
            assert_eq!(expected.len(), out.len());
            let mine = || out.iter().zip(&expected).filter(|(s, _)| s.target.0 == id);
            assert!(mine().all(|(_, expected)| *expected == accessed));
            let pages: Vec<u64> = mine().map(|(s, _)| s.addr.page_index()).collect();
            assert!(
                pages.len() >= 38 && pages.is_sorted_by(|a, b| a < b),
                "{pages:?}"
            );
        }
        assert!(out.is_sorted_by_key(|sample| sample.target));
    }

    proptest! {
        #[test]
        fn quotas_never_exceed_the_total(
            lengths in prop::collection::vec(1_u64..5000, 1..60),
            totals in prop::collection::vec(1_u64..3000, 1..5),
            to_edges: bool,
            order in prop::sample::select(vec![0_u8, 9]),
            seed: u64,
        ) {
            let rule = if to_edges { SplitRule::Edges } else { SplitRule::Halves };
            let thresholds = Thresholds { rule, ..THRESHOLDS };
            let mut map = map(&lengths);
            let mut rng = Rng::new(seed);
            for (turn, total) in (0..).zip(totals) {
                if to_edges {
                    deal_to_edges(&mut map, total, turn, thresholds);
                } else {
                    deal(&mut map, total, turn);
                }
                let sum: u64 = map.regions().iter().map(|r| u64::from(r.quota())).sum();
                prop_assert!(sum <= total);
                let mut out = Vec::new();
                drawn(&map, &mut rng, &mut out);
                prop_assert!(out.len() as u64 <= total);
                prop_assert!(out.windows(2).all(|w| w[0].addr < w[1].addr));
                // Heat in blocks, for edges to be there.
                let counted: Vec<_> = out
                    .iter()
                    .map(|s| (*s, tally(s.addr.page_index() / 300 % 2 == 0)))
                    .map(|(s, tally)| (s, Tally { order, ..tally }))
                    .collect();
                map.adapt(&counted, 3, thresholds);
                for s in &out {
                    prop_assert!(map.regions().iter().any(|r| r.range().contains(s.addr)));
                }
            }
        }
    }
}
