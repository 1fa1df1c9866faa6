use proptest::prelude::*;

use super::*;
use crate::tiering::observation::{Sample, Tally, TargetId};
use crate::tiering::settings::SplitRule;
use crate::units::Pid;

const MIB: u64 = 1 << 20;
const FAST: NodeId = NodeId(0);
const SLOW: NodeId = NodeId(3);

fn range(start: u64, end: u64) -> PageRange {
    PageRange::new(VirtAddr(start), VirtAddr(end)).unwrap()
}

fn sample(addr: u64, accessed: u8) -> (Sample, Tally) {
    let sample = Sample {
        target: TargetId(1),
        pid: Pid(1),
        addr: VirtAddr(addr),
    };
    let tally = Tally {
        accessed,
        known: 3,
        ..Tally::default()
    };
    (sample, tally)
}

const THRESHOLDS: Thresholds = Thresholds::FOR_TESTS;

fn map(ranges: &[PageRange]) -> RegionMap {
    let mut map = RegionMap::default();
    map.sync(ranges, Bytes(2 * MIB));
    map
}

fn ranges(map: &RegionMap) -> Vec<(u64, u64)> {
    map.regions()
        .iter()
        .map(|r| (r.range().start().0, r.range().end().0))
        .collect()
}

#[test]
fn what_is_written_is_told_from_what_is_only_read() {
    let mut map = map(&[range(0, 4 * MIB)]);
    let tell = |written: bool| {
        let at = |addr, written, known| {
            let mut told = sample(addr, 3);
            (told.1.written, told.1.known) = (written, known);
            told
        };
        [
            at(0, written, 3),
            at(MIB, false, 3),
            // Of what moved meanwhile nothing can be told.
            at(2 * MIB, true, 0),
        ]
    };
    let asked = Asked {
        writes: true,
        ..Asked::default()
    };
    assert_eq!(map.regions()[0].written(), None);
    map.record_of(&tell(true), asked);
    assert_eq!(map.regions()[0].written(), Some(0.5));
    map.record_of(&tell(false), asked);
    assert_eq!(map.regions()[0].written(), Some(0.25));
    assert_eq!(map.regions()[1].written(), None);
}

#[test]
fn regions_begin_as_aligned_2_mib() {
    let map = map(&[range(MIB, 5 * MIB)]);
    assert_eq!(
        ranges(&map),
        [(MIB, 2 * MIB), (2 * MIB, 4 * MIB), (4 * MIB, 5 * MIB)]
    );
}

#[test]
fn what_is_still_mapped_is_remembered() {
    let mut map = map(&[range(0, 4 * MIB)]);
    let hot = [sample(0, 3), sample(3 * MIB, 0)];
    map.adapt_to(&hot, 3, THRESHOLDS);
    map.record_count(range(0, 2 * MIB), &[(SLOW, 512)]);
    map.sync(
        &[range(MIB, 4 * MIB), range(8 * MIB, 9 * MIB)],
        Bytes(2 * MIB),
    );
    assert_eq!(
        ranges(&map),
        [(MIB, 2 * MIB), (2 * MIB, 4 * MIB), (8 * MIB, 9 * MIB)]
    );
    let first = &map.regions()[0];
    assert!((first.hotness() - 3.0).abs() < 1e-6);
    // Half of it went: half of the pages, and it asks to be counted again.
    assert_eq!(first.pages().on(SLOW), 256);
    assert!(!first.is_counted());
}

#[test]
fn a_hole_in_the_middle_makes_two_of_one() {
    let mut map = map(&[range(0, 2 * MIB)]);
    map.sync(&[range(0, MIB / 2), range(MIB, 2 * MIB)], Bytes(2 * MIB));
    assert_eq!(ranges(&map), [(0, MIB / 2), (MIB, 2 * MIB)]);
}

#[test]
fn contradicting_samples_split_down_to_their_edge() {
    // Hot: the first 256 KiB of 2 MiB, a sample every 128 KiB.
    let mut map = map(&[range(0, 2 * MIB)]);
    let samples: Vec<_> = (0..16)
        .map(|i| sample(i * 128 * 1024, if i < 2 { 3 } else { 0 }))
        .collect();
    let adapted = map.adapt_to(&samples, 3, THRESHOLDS);
    // 2 MiB -> 1 + 1 -> 512 + 512 -> 256 + 256: three splits.
    assert_eq!(adapted.splits, 3);
    let quarter = 256 * 1024;
    assert_eq!(
        ranges(&map),
        [
            (0, quarter),
            (quarter, 2 * quarter),
            (2 * quarter, 4 * quarter),
            (4 * quarter, 8 * quarter)
        ]
    );
    assert!((map.regions()[0].latest() - 3.0).abs() < 1e-6);
    assert!(map.regions()[1].latest() < 1e-6);
}

#[test]
fn a_contrast_of_two_thirds_does_not_split() {
    // tau2 = 2 at three scans: only 0 against 3 splits.
    let mut map = map(&[range(0, 2 * MIB)]);
    let adapted = map.adapt_to(&[sample(0, 2), sample(MIB, 0)], 3, THRESHOLDS);
    assert_eq!(adapted, Adapted::default());
}

#[test]
fn folios_are_never_split() {
    let mut map = map(&[range(0, 2 * MIB)]);
    let mut samples = [sample(0, 3), sample(MIB, 0)];
    for (_, tally) in &mut samples {
        tally.order = 9;
    }
    map.adapt_to(&samples, 3, THRESHOLDS);
    assert_eq!(ranges(&map), [(0, 2 * MIB)]);
}

#[test]
fn neighbours_alike_merge_once_per_epoch_with_half_the_quota() {
    let mut map = map(&[range(0, 8 * MIB)]);
    for region in map.regions_mut() {
        region.quota = 4;
    }
    let samples: Vec<_> = (0..4).map(|i| sample(i * 2 * MIB, 0)).collect();
    let adapted = map.adapt_to(&samples, 3, THRESHOLDS);
    assert_eq!(adapted.merges, 2);
    assert_eq!(ranges(&map), [(0, 4 * MIB), (4 * MIB, 8 * MIB)]);
    assert_eq!(map.regions()[0].quota(), 4);
}

#[test]
fn what_cannot_be_told_changes_nothing() {
    let mut map = map(&[range(0, 2 * MIB)]);
    map.adapt_to(&[sample(0, 3)], 3, THRESHOLDS);
    let mut blind = sample(0, 0);
    blind.1.known = 0;
    map.adapt_to(&[blind], 3, THRESHOLDS);
    assert!((map.regions()[0].hotness() - 3.0).abs() < 1e-6);
    // One scan of three could tell, and saw it: as good as three of three.
    let partly = Tally {
        accessed: 1,
        known: 1,
        ..Tally::default()
    };
    map.adapt_to(&[(blind.0, partly)], 3, THRESHOLDS);
    assert!((map.regions()[0].latest() - 3.0).abs() < 1e-6);
}

#[test]
fn hotness_is_assured_by_samples() {
    let mut map = map(&[range(0, 2 * MIB)]);
    let mut seen = Vec::new();
    for epoch in 0..8 {
        // A sample in each epoch weighs like two with those before it.
        map.adapt_to(&[sample(epoch << 12, 3)], 3, THRESHOLDS);
        seen.push(map.regions()[0].assured(1.0));
    }
    assert!((seen[0] - 1.5).abs() < 1e-6, "{seen:?}");
    assert!((seen[7] - 2.0).abs() < 0.01, "{seen:?}");
    assert!(seen.is_sorted(), "{seen:?}");
    assert!((map.regions()[0].assured(0.0) - 3.0).abs() < 1e-6);
    // What was cut out is not there by chance.
    let edges = Thresholds {
        rule: SplitRule::Edges,
        ..THRESHOLDS
    };
    map.adapt_to(&[sample(0, 3), sample(MIB, 0)], 3, edges);
    let hot = map.regions()[0].assured(1.0);
    assert_eq!(map.regions().len(), 2, "{:?}", map.regions());
    assert!(hot > 2.2, "{hot} {:?}", map.regions());
}

#[test]
fn hotness_is_the_moving_average() {
    // Eq. 8.2 with alpha = 0.5: 3; then 0.5*0 + 0.5*3; then 0.5*0 + 0.5*1.5.
    let mut map = map(&[range(0, 2 * MIB)]);
    for (count, want) in [(3, 3.0), (0, 1.5), (0, 0.75)] {
        map.adapt_to(&[sample(0, count)], 3, THRESHOLDS);
        assert!((map.regions()[0].hotness() - want).abs() < 1e-6);
    }
}

#[test]
fn a_child_continues_the_average_with_its_own_count() {
    let mut map = map(&[range(0, 2 * MIB)]);
    map.adapt_to(&[sample(0, 0)], 3, THRESHOLDS);
    map.adapt_to(&[sample(0, 3), sample(MIB, 0)], 3, THRESHOLDS);
    let hotness: Vec<f32> = map.regions().iter().map(Region::hotness).collect();
    assert_eq!(hotness, [1.5, 0.0]);
}

#[test]
fn moves_and_counts_change_residency() {
    let mut map = map(&[range(0, 4 * MIB)]);
    map.record_count(range(0, 2 * MIB), &[(SLOW, 500)]);
    map.record_move(
        range(0, 2 * MIB),
        SLOW,
        FAST,
        300,
        (5, Direction::Promotion),
    );
    let region = &map.regions()[0];
    assert_eq!(
        (region.pages().on(FAST), region.pages().on(SLOW)),
        (300, 200)
    );
    assert_eq!(region.moved(), Some((5, Direction::Promotion)));
    assert_eq!(map.regions()[1].moved(), None);
}

#[test]
fn what_a_region_usually_is_follows_slowly() {
    let mut map = map(&[range(0, 2 * MIB)]);
    let mut see = |count: u8| {
        map.adapt_to(&[sample(MIB, count)], 3, Thresholds::FOR_TESTS);
        map.regions()[0].usual()
    };
    let hot = (0..50).map(|_| see(3)).last().unwrap();
    assert!((1.8..2.0).contains(&hot), "{hot}");
    let cold = (0..50).map(|_| see(0)).last().unwrap();
    assert!((0.6..0.8).contains(&cold), "{cold}");
}

#[test]
fn a_large_region_is_counted_in_pieces() {
    let mut map = map(&[range(0, 2 * MIB)]);
    let first = map.regions()[0].next_sweep(300);
    assert_eq!(first.pages(), 300);
    map.record_count(first, &[(SLOW, 300)]);
    // Not yet: only a part is known.
    assert_eq!(map.regions()[0].resident(), Bytes::ZERO);
    let second = map.regions()[0].next_sweep(300);
    assert_eq!(second, range(first.end().0, 2 * MIB));
    map.record_count(second, &[(SLOW, 200), (FAST, 12)]);
    assert_eq!(map.regions()[0].pages().total(), 512);
    assert!(map.regions()[0].is_counted());
}

/// Disjoint sorted ranges within 256 pages.
fn eligible() -> impl Strategy<Value = Vec<PageRange>> {
    prop::collection::btree_set(0_u64..256, 0..12).prop_map(|cuts| {
        let cuts: Vec<u64> = cuts.into_iter().collect();
        cuts.chunks_exact(2)
            .map(|c| range(c[0] * PAGE_BYTES, c[1] * PAGE_BYTES))
            .collect()
    })
}

fn covered(ranges: impl Iterator<Item = PageRange>) -> Vec<u64> {
    ranges
        .flat_map(|r| r.iter_pages().map(VirtAddr::page_index).collect::<Vec<_>>())
        .collect()
}

const EDGES: Thresholds = Thresholds {
    rule: SplitRule::Edges,
    ..THRESHOLDS
};

#[test]
fn what_is_not_there_is_forgotten_and_counted_first() {
    let mut map = map(&[range(0, 2 * MIB), range(4 * MIB, 6 * MIB)]);
    let second = range(4 * MIB, 6 * MIB);
    map.record_count(second, &[(FAST, 300), (SLOW, 212)]);
    let half = PageRange::new(second.start(), VirtAddr(5 * MIB)).unwrap();
    // All that was held to be there may still be.
    map.record_left(second, FAST, 300);
    assert!(map.regions()[1].is_counted());
    // A count under way goes on.
    map.record_count(half, &[(SLOW, 256)]);
    map.record_left(second, FAST, 7);
    let pages = Pages::from_counts(&[(FAST, 7), (SLOW, 212)]);
    assert_eq!(*map.regions()[1].pages(), pages);
    assert!(!map.regions()[1].is_counted());
    assert_eq!(map.regions()[1].next_sweep(512).start(), half.end());
}

#[test]
fn what_is_surely_warmer_stays_apart() {
    let thresholds = |surely| Thresholds { surely, ..EDGES };
    // Four samples of each in each epoch: 2 MiB never accessed, 2 MiB in every other
    // scan at first, and then by chance in less.
    let told = |warm: [u8; 4]| {
        let at = |i: usize| i as u64 * MIB / 2;
        let cold = (0..4).map(move |i| sample(at(i), 0));
        cold.chain((0..4).map(move |i| sample(at(4 + i), warm[i])))
            .collect::<Vec<_>>()
    };
    let merged = |surely| {
        let mut map = map(&[range(0, 4 * MIB)]);
        for warm in [[1, 2, 2, 1], [2, 1, 1, 2], [1, 1, 1, 0], [0, 1, 1, 1]] {
            map.adapt_to(&told(warm), 3, thresholds(surely));
        }
        map.regions().len() == 1
    };
    // By less than a third of the scans, and yet not by chance.
    assert!(!merged(2.5));
    assert!(merged(f32::INFINITY));
    assert!(merged(10.0));
}

#[test]
fn an_edge_is_found_by_bisection_over_epochs() {
    // Hot: from 5 MiB + 200 KiB on. Every epoch tells one page of each gap.
    let edge = 5 * MIB + 200 * 1024;
    let mut map = map(&[range(0, 8 * MIB)]);
    let told = |addr: u64| sample(addr, if addr < edge { 0 } else { 3 });
    map.adapt_to(&[told(MIB), told(7 * MIB)], 3, EDGES);
    for _ in 0..12 {
        let mut samples = Vec::new();
        for region in map.regions() {
            let body = region.range().start().0 / PAGE_BYTES + region.range().pages() / 2;
            samples.push(body);
            let gaps = region.gaps().into_iter().flatten();
            samples.extend(gaps.map(|gap| gap.start().page_index() + gap.pages() / 2));
        }
        samples.sort_unstable();
        samples.dedup();
        let samples: Vec<_> = samples.iter().map(|page| told(page * PAGE_BYTES)).collect();
        map.adapt_to(&samples, 3, EDGES);
    }
    let [cold, hot] = map.regions() else {
        panic!("{:?}", ranges(&map));
    };
    assert!(cold.hotness() < 0.1 && hot.hotness() > 2.9);
    let found = hot.range().start().0;
    assert!(found.abs_diff(edge) <= 64 << 10, "{found:#x} for {edge:#x}");
}

#[test]
fn what_a_mixed_region_was_on_average_does_not_hide_its_folios() {
    const HOT: [u64; 4] = [1, 4, 7, 10];
    // Another page of each in each epoch.
    let told = |turn: u64, i: u64, count: u8| {
        let page = (i * 7 + turn * 31) % 512;
        let mut told = sample(i * 2 * MIB + page * PAGE_BYTES, count);
        told.1.order = 9;
        told
    };
    let mut map = RegionMap::default();
    map.sync(&[range(0, 22 * MIB)], Bytes(32 * MIB));
    // Alike at first; then some are hot and the others cold, in every epoch.
    let first: Vec<_> = (0..11).map(|i| told(0, i, 1)).collect();
    map.adapt_to(&first, 3, EDGES);
    for turn in 1..5 {
        let count = |i| if HOT.contains(&i) { 3 } else { 0 };
        let epoch: Vec<_> = (0..11).map(|i| told(turn, i, count(i))).collect();
        map.adapt_to(&epoch, 3, EDGES);
    }
    let hot = map.regions().iter().filter(|r| r.latest > 2.9);
    let hot: Vec<u64> = hot.map(|r| r.range().start().0 / (2 * MIB)).collect();
    assert_eq!(hot, HOT, "{:?}", ranges(&map));
}

#[test]
fn among_strays_a_contradiction_is_believed_when_it_is_seen_again() {
    // Huge pages, of which strays find one in nine looks, others each time.
    let epoch = |turn: u64, hot: u8| {
        let told = |i: u64| {
            let stray = u8::from((i + turn).is_multiple_of(3));
            let count = if i == 4 { hot } else { stray };
            let mut told = sample(i * 2 * MIB + i * PAGE_BYTES, count);
            told.1.order = 9;
            told
        };
        (0..8).map(told).collect::<Vec<_>>()
    };
    let once = || {
        let mut map = RegionMap::default();
        map.sync(&[range(0, 16 * MIB)], Bytes(16 * MIB));
        for turn in 0..3 {
            map.adapt_to(&epoch(turn, 0), 3, EDGES);
            assert_eq!(map.regions().len(), 1);
        }
        map.adapt_to(&epoch(3, 3), 3, EDGES);
        assert_eq!(map.regions().len(), 1, "chance brings that");
        let page = (8 * MIB + 4 * PAGE_BYTES) / PAGE_BYTES;
        assert_eq!(map.regions()[0].doubted(), Some(page));
        map
    };
    let mut again = once();
    again.adapt_to(&epoch(4, 3), 3, EDGES);
    assert_eq!(
        ranges(&again),
        [(0, 8 * MIB), (8 * MIB, 10 * MIB), (10 * MIB, 16 * MIB)]
    );
    let mut not_again = once();
    not_again.adapt_to(&epoch(4, 0), 3, EDGES);
    assert_eq!(not_again.regions().len(), 1);
    assert_eq!(not_again.regions()[0].doubted(), None);
}

#[test]
fn a_lone_contradiction_is_believed_as_far_as_it_reaches() {
    let mut map = map(&[range(0, 64 * MIB)]);
    let cold: Vec<_> = (0..64).map(|i| sample(i * MIB, 0)).collect();
    for _ in 0..8 {
        map.adapt_to(&cold, 3, EDGES);
    }
    assert_eq!(map.regions().len(), 1);
    map.adapt_to(&[sample(32 * MIB, 3)], 3, EDGES);
    assert_eq!(
        ranges(&map),
        [(0, 31 * MIB), (31 * MIB, 33 * MIB), (33 * MIB, 64 * MIB)]
    );
    assert!((map.regions()[1].latest() - 3.0).abs() < 1e-6);
    assert!(map.regions()[0].latest() < 1e-6);
}

#[test]
fn what_all_samples_contradict_is_forgotten() {
    let mut map = map(&[range(0, 2 * MIB)]);
    map.adapt_to(&[sample(0, 0), sample(MIB, 0)], 3, EDGES);
    map.adapt_to(&[sample(4096, 3), sample(MIB + 4096, 3)], 3, EDGES);
    assert_eq!(ranges(&map), [(0, 2 * MIB)]);
    assert!((map.regions()[0].latest() - 3.0).abs() < 1e-6);
}

proptest! {
    /// After any sequence of map, unmap, split and merge the regions are
    /// sorted, disjoint, and cover exactly what is eligible; no page is lost.
    #[test]
    fn regions_cover_exactly_what_is_eligible(
        steps in prop::collection::vec(
            (eligible(), prop::collection::vec((0_u64..256, 0_u8..4), 0..40), 0_usize..3),
            1..8,
        ),
        surely in prop::sample::select(vec![0.0, 2.5, f32::INFINITY]),
    ) {
        let mut map = RegionMap::default();
        for (ranges, counts, rule) in steps {
            // The rule may be another one after a reload.
            let thresholds = Thresholds {
                minimum: Bytes(PAGE_BYTES),
                reach: Bytes(8 * PAGE_BYTES),
                rule: SplitRule::CHOICES[rule].1,
                surely,
                ..THRESHOLDS
            };
            map.sync(&ranges, Bytes(16 * PAGE_BYTES));
            for r in &ranges {
                for region in map.regions().to_vec() {
                    if r.covers(region.range()) {
                        map.record_count(region.range(), &[(SLOW, region.range().pages())]);
                    }
                }
            }
            let present: u64 = map.regions().iter().map(|r| r.pages().total()).sum();
            let mut samples: Vec<_> = counts.iter().map(|&(page, n)| sample(page * PAGE_BYTES, n)).collect();
            samples.sort_by_key(|(s, _)| s.addr);
            map.adapt_to(&samples, 3, thresholds);

            prop_assert!(map.regions().windows(2).all(|w| w[0].range().end() <= w[1].range().start()));
            prop_assert_eq!(
                covered(map.regions().iter().map(Region::range)),
                covered(ranges.iter().copied())
            );
            prop_assert_eq!(map.regions().iter().map(|r| r.pages().total()).sum::<u64>(), present);
            for region in map.regions() {
                prop_assert!((0.0..=3.0).contains(&region.hotness()));
                prop_assert!(region.quota() >= 1);
                for gap in region.gaps().into_iter().flatten() {
                    prop_assert!(region.range().covers(gap));
                }
            }
        }
    }
}

#[test]
fn an_edge_lies_at_any_page_but_within_no_folio_and_what_is_small_stays_whole() {
    let page = |page: u64, accessed, order| {
        let mut told = sample(page * PAGE_BYTES, accessed);
        told.1.order = order;
        told
    };
    let edges = |samples: &[(Sample, Tally)], bytes, minimum| {
        let mut map = map(&[range(0, bytes)]);
        let thresholds = Thresholds { minimum, ..EDGES };
        map.adapt_to(samples, 3, thresholds);
        let ends = ranges(&map).into_iter().map(|(_, end)| end / PAGE_BYTES);
        ends.collect::<Vec<_>>()
    };
    let small = Bytes(64 << 10);
    // Between 101 and 106, next to none of the pages in which a multiple of 64 KiB begins.
    let step = [page(100, 0, 0), page(106, 3, 0)];
    assert_eq!(edges(&step, 2 * MIB, small), [103, 512]);
    // To a sixteenth of the least that is split: no multiple of 16 pages lies between them.
    assert_eq!(edges(&step, 2 * MIB, Bytes(MIB)), [512]);
    assert_eq!(edges(&step, 2 * MIB, Bytes(2 * MIB)), [512]);
    let folios = [page(100, 0, 5), page(170, 3, 5)];
    assert_eq!(edges(&folios, 2 * MIB, small), [128, 512]);
    let tiny = [page(3, 0, 0), page(9, 3, 0)];
    assert_eq!(edges(&tiny, 64 << 10, small), [16]);
}

#[test]
fn one_look_that_found_what_was_idle_accessed_is_in_doubt_and_changes_nothing() {
    let thresholds = Thresholds {
        full_counts_more: 1.0,
        ..EDGES
    };
    let cold = || {
        let mut map = map(&[range(0, 2 * MIB)]);
        map.adapt_to(&[sample(0, 0), sample(MIB, 0)], 3, thresholds);
        map
    };
    let lone = |known| {
        let mut told = sample(MIB, known);
        told.1.known = known;
        told
    };
    let mut one = cold();
    one.adapt_to(&[lone(1)], 3, thresholds);
    assert!(one.regions()[0].latest() <= 0.0, "{:?}", one.regions());
    assert_eq!(one.regions()[0].doubted(), Some(MIB / PAGE_BYTES));
    // Two looks are believed.
    let mut two = cold();
    two.adapt_to(&[lone(2)], 3, thresholds);
    let hottest = two.regions().iter().map(Region::latest).fold(0.0, f32::max);
    assert!(hottest > 2.0, "{:?}", two.regions());
}

#[test]
fn what_comes_back_comes_back_within_its_old_edges() {
    let thresholds = Thresholds {
        rule: SplitRule::Edges,
        ..THRESHOLDS
    };
    let mut map = RegionMap::default();
    map.sync(&[range(0, 64 * MIB)], Bytes(64 * MIB));
    let every_mib = |hot: std::ops::Range<u64>| -> Vec<(Sample, Tally)> {
        (0..64)
            .map(|at| sample(at * MIB, if hot.contains(&at) { 3 } else { 0 }))
            .collect()
    };
    map.adapt_to(&every_mib(16..24), 3, thresholds);
    let edges = ranges(&map);
    assert_eq!(edges.len(), 3, "{edges:?}");
    for _ in 0..8 {
        map.adapt_to(&every_mib(0..0), 3, thresholds);
    }
    assert_eq!(ranges(&map), [(0, 64 * MIB)]);
    // One sample is believed for a MiB around it where nothing was ever known of an edge,
    // and up to its edges where they were.
    let lone = |map: &RegionMap, at: u64| {
        let mut map = map.clone();
        let mut samples = [4, at, 60].map(|at| sample(at * MIB, 0));
        samples[1].1.accessed = 3;
        map.adapt_to(&samples, 3, thresholds);
        ranges(&map)
    };
    assert_eq!(lone(&map, 20), edges);
    let elsewhere = lone(&map, 40);
    assert_eq!(elsewhere[1], (39 * MIB, 41 * MIB), "{elsewhere:?}");
    // Nor is one edge without another believed: what lay above it is gone.
    map.sync(&[range(0, 22 * MIB)], Bytes(64 * MIB));
    let mut samples = [4, 20].map(|at| sample(at * MIB, 0));
    samples[1].1.accessed = 3;
    map.adapt_to(&samples, 3, thresholds);
    assert_eq!(ranges(&map)[1].0, 19 * MIB, "{:?}", ranges(&map));
}
