use proptest::prelude::*;

use super::*;
use crate::tiering::looks::Role;
use crate::tiering::observation::{Sample, Tally, TargetId};
use crate::tiering::rng::Rng;
use crate::tiering::settings::SplitRule;
use crate::units::{Bytes, PageRange, Pid, VirtAddr};

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

fn with_scouts(map: &RegionMap, scouts: Option<u64>, rng: &mut Rng) -> Drawn {
    let mut out = Drawn::default();
    let how = Drawing { hot: 1.5, scouts };
    draw(map, (TargetId(0), Pid(1)), how, rng, &mut out);
    assert_eq!(out.samples.len(), out.roles.len());
    out
}

fn drawn(map: &RegionMap, rng: &mut Rng, out: &mut Vec<Sample>) {
    let all = with_scouts(map, None, rng);
    for (sample, role) in all.samples.iter().zip(all.roles) {
        let regions = map.regions();
        let at = regions.partition_point(|r| r.range().end() <= sample.addr);
        let is_hot = regions[at].heat() >= 1.5;
        assert_eq!(role, if is_hot { Role::Hot } else { Role::Cold });
    }
    out.extend(all.samples);
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
        map.adapt_to(seen, 3, Thresholds::FOR_TESTS);
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
    map.adapt_to(&seen, 3, THRESHOLDS);
    assert_eq!(map.regions().len(), 2, "{:?}", map.regions());
    deal_to_edges(&mut map, (12, 0), 0, THRESHOLDS);
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
    let mut out = Drawn::default();
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
        map.adapt_to(&whole, 3, Thresholds::FOR_TESTS);
        // As many as there are pages: the one in doubt is drawn once more.
        map.regions_mut()[0].quota = 40;
        if accessed {
            map.regions_mut()[0].aims[2] = Aim::Sample;
        }
        let how = Drawing {
            hot: 1.5,
            scouts: None,
        };
        draw(&map, (TargetId(id), Pid(1)), how, &mut rng, &mut out);
        assert_eq!(out.roles.len(), out.samples.len());
        let role = if accessed { Role::Hot } else { Role::Cold };
        let all = || out.samples.iter().zip(&out.roles);
        let mine = || all().filter(|(s, _)| s.target.0 == id);
        assert!(mine().all(|(_, r)| *r == role));
        let pages: Vec<u64> = mine().map(|(s, _)| s.addr.page_index()).collect();
        assert!(
            pages.len() >= 38 && pages.is_sorted_by(|a, b| a < b),
            "{pages:?}"
        );
    }
    assert!(out.samples.is_sorted_by_key(|sample| sample.target));
}

/// A region of 20,000 pages, cut in two by what is hot below.
fn cut_in_two() -> RegionMap {
    let mut map = map(&[20_000]);
    let page = |index: u64| Sample {
        target: TargetId(0),
        pid: Pid(1),
        addr: VirtAddr(index * PAGE_BYTES),
    };
    let seen = [(page(6000), tally(true)), (page(14_000), tally(false))];
    map.adapt_to(&seen, 3, THRESHOLDS);
    assert_eq!(map.regions().len(), 2);
    map
}

#[test]
fn scouts_divide_gaps_and_search_what_is_cold() {
    let mut map = cut_in_two();
    let edge = map.regions()[0].range().end().page_index();
    deal_to_edges(&mut map, (6, 12), 0, THRESHOLDS);
    let all = with_scouts(&map, Some(30), &mut Rng::new(1));
    let of = |role: Role| -> Vec<u64> {
        let all = all.samples.iter().zip(&all.roles);
        all.filter(|(_, r)| **r == role)
            .map(|(s, _)| s.addr.page_index())
            .collect()
    };
    let edges = of(Role::Edge);
    let between = |low, high| edges.iter().filter(|p| (low..high).contains(*p)).count();
    assert_eq!(between(6001, edge), 3, "{edges:?}");
    assert_eq!(between(edge, 14_001), 3, "{edges:?}");
    let scouts = of(Role::Scout);
    assert!(scouts.len() > 20 && scouts.iter().all(|&page| page >= edge));
    assert_eq!(of(Role::Cold).len() + of(Role::Hot).len(), 6);
}

/// Epochs in which these pages of 1..=1024 are hot, and what is not `present` cannot be told; what was
/// drawn in each.
fn epochs_of_one_chunk(
    (hot, present): (std::ops::Range<u64>, std::ops::Range<u64>),
    scouts: u64,
    turns: u64,
) -> (RegionMap, Vec<Drawn>) {
    let mut map = map(&[1024]);
    let mut rng = Rng::new(1);
    let mut all = Vec::new();
    for turn in 0..turns {
        deal_to_edges(&mut map, (64, scouts), turn, THRESHOLDS);
        let drawn = with_scouts(&map, (scouts > 0).then_some(scouts), &mut rng);
        let told = |sample: &Sample| {
            let page = sample.addr.page_index();
            let known = if present.contains(&page) { 3 } else { 0 };
            let tally = tally(hot.contains(&page));
            let accessed = tally.accessed.min(known);
            Tally {
                accessed,
                known,
                ..tally
            }
        };
        let seen: Vec<_> = drawn.samples.iter().map(|s| (*s, told(s))).collect();
        map.adapt_to(&seen, 3, THRESHOLDS);
        all.push(drawn);
    }
    (map, all)
}

fn count_of(drawn: &Drawn, role: Role) -> usize {
    drawn.roles.iter().filter(|r| **r == role).count()
}

#[test]
fn where_there_are_looks_to_spare_an_edge_is_found_to_the_page() {
    for (scouts, turns) in [(0, 20), (64, 10)] {
        let (map, all) = epochs_of_one_chunk((437..501, 1..1025), scouts, turns);
        let ends = map.regions().iter().map(|r| r.range().end().page_index());
        assert_eq!(
            ends.collect::<Vec<_>>(),
            [437, 501, 1025],
            "{scouts} scouts"
        );
        assert_eq!(
            all.iter().any(|one| count_of(one, Role::Narrow) > 0),
            scouts > 0
        );
        // Then all search again.
        assert_eq!(count_of(all.last().unwrap(), Role::Narrow), 0);
    }
}

#[test]
fn what_is_absent_is_not_looked_into_for_ever() {
    let (_, all) = epochs_of_one_chunk((437..501, 1..501), 64, 40);
    let narrow = all[20..].iter().map(|one| count_of(one, Role::Narrow));
    assert_eq!(narrow.sum::<usize>(), 0);
}

#[test]
fn beside_an_edge_few_more_pages_are_ever_marked() {
    let (_, all) = epochs_of_one_chunk((437..501, 1..1025), 64, 200);
    let pages = all.iter().flat_map(|one| &one.samples);
    let cold = pages
        .map(|sample| sample.addr.page_index())
        .filter(|page| !(437..501).contains(page))
        .collect::<std::collections::BTreeSet<_>>();
    // One in 16, and at each edge what divides its gap.
    assert!(cold.len() <= 60 + 2 * 12, "{}", cold.len());
}

#[test]
fn regions_without_a_sample_come_late() {
    let mut map = map(&[4; 10]);
    let mut late = [0; 10];
    for turn in 0..5 {
        deal_to_edges(&mut map, (4, 4), turn, THRESHOLDS);
        let all = with_scouts(&map, Some(4), &mut Rng::new(turn));
        for (sample, role) in all.samples.iter().zip(&all.roles) {
            let has = |r: &Region| r.range().contains(sample.addr);
            let at = map.regions().iter().position(has).unwrap();
            assert!(*role != Role::Late || map.regions()[at].quota() == 0);
            late[at] += u32::from(*role == Role::Late);
        }
    }
    // Four of ten have a sample, the next four a scout.
    assert_eq!(late, [2; 10]);
}

proptest! {
    #[test]
    fn quotas_never_exceed_the_total(
        lengths in prop::collection::vec(1_u64..5000, 1..60),
        totals in prop::collection::vec(1_u64..3000, 1..5),
        to_edges: bool,
        has_scouts: bool,
        order in prop::sample::select(vec![0_u8, 9]),
        seed: u64,
    ) {
        let rule = if to_edges { SplitRule::Edges } else { SplitRule::Halves };
        let thresholds = Thresholds { rule, ..THRESHOLDS };
        let mut map = map(&lengths);
        let mut rng = Rng::new(seed);
        for (turn, total) in (0..).zip(totals) {
            if to_edges {
                let scouts = if has_scouts { 2 * total } else { 0 };
                    deal_to_edges(&mut map, (total, scouts), turn, thresholds);
            } else {
                deal(&mut map, total, turn);
            }
            let sum: u64 = map.regions().iter().map(|r| u64::from(r.quota())).sum();
            prop_assert!(sum <= total);
            let scouts = has_scouts.then_some(2 * total);
            let all = with_scouts(&map, scouts, &mut rng);
            let later = [Role::Late, Role::Edge, Role::Narrow, Role::Scout];
            let first = all.roles.iter().filter(|r| !later.contains(r)).count() as u64;
            prop_assert!(first <= total);
            prop_assert!(all.samples.len() as u64 <= total + scouts.unwrap_or(0));
            let out = all.samples;
            prop_assert!(out.windows(2).all(|w| w[0].addr < w[1].addr));
            // Heat in blocks, for edges to be there.
            let counted: Vec<_> = out
                .iter()
                .map(|s| (*s, tally(s.addr.page_index() / 300 % 2 == 0)))
                .map(|(s, tally)| (s, Tally { order, ..tally }))
                .collect();
            map.adapt_to(&counted, 3, thresholds);
            for s in &out {
                prop_assert!(map.regions().iter().any(|r| r.range().contains(s.addr)));
            }
        }
    }
}
