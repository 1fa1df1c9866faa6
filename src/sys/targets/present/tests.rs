use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;
const MIB: u64 = 1 << 20;

fn range(start: u64, bytes: u64) -> PageRange {
    PageRange::new(VirtAddr(start), VirtAddr(start + bytes)).unwrap()
}

/// A process's page tables.
struct Tables {
    there: Vec<PageRange>,
    /// What a call costs, and each of the pages in it.
    call: Nanos,
    page: Nanos,
    spent: Nanos,
}

impl Tables {
    fn of(there: &[PageRange]) -> Self {
        Self {
            there: there.to_vec(),
            call: Nanos(1_000),
            page: Nanos(20),
            spent: Nanos::ZERO,
        }
    }

    /// As the kernel looks: at so many pages that are there at most.
    fn look(&mut self, at: PageRange, most: u64, out: &mut Vec<PageRange>) -> (VirtAddr, Nanos) {
        let (mut left, mut reached) = (most, at.end());
        for found in intersection(&[at], &self.there) {
            if left == 0 {
                break;
            }
            let pages = found.pages().min(left);
            left -= pages;
            out.push(range(found.start().0, pages * PAGE_BYTES));
            if left == 0 {
                reached = out.last().unwrap().end();
            }
        }
        let pages = most - left;
        let took = Nanos(self.call.0 + pages * self.page.0);
        self.spent += took;
        (reached, took)
    }
}

/// A target that is looked at once a second.
#[derive(Default)]
struct Epochs {
    presence: Presence,
    seconds: u64,
}

impl Epochs {
    /// What is left of `mapped` in the next epoch.
    fn next(&mut self, mapped: &[PageRange], tables: &mut Tables) -> Vec<PageRange> {
        self.seconds += 1;
        let resident = tables.there.iter().map(|r| r.bytes()).sum();
        let terms = Terms {
            now: Nanos::from_secs(1000 + self.seconds),
            sharers: 1,
            resident,
        };
        let bytes = mapped.iter().map(|r| r.bytes()).sum();
        if self.presence.is_to_look(bytes, terms) {
            let spans = spans(mapped);
            let mut look =
                |at: PageRange, most: u64, out: &mut Vec<PageRange>| Ok(tables.look(at, most, out));
            let looked = self
                .presence
                .look(&spans, (mapped, bytes), terms, &mut look);
            looked.unwrap();
        }
        let mut left = mapped.to_vec();
        self.presence.apply(&mut left);
        let mut whole = Vec::new();
        for &range in &left {
            join(&mut whole, range, 0);
        }
        whole
    }
}

#[test]
fn of_a_reservation_what_was_touched_is_left_at_once_and_what_is_new_an_epoch_later() {
    for size in [8 * GIB, 512 * GIB, 20 * TIB, 64 * TIB] {
        let mapped = [range(TIB, size)];
        let heap = range(TIB + size / 3 / (2 * MIB) * (2 * MIB), 64 * MIB);
        let mut tables = Tables::of(&[heap]);
        let mut epochs = Epochs::default();
        assert_eq!(epochs.next(&mapped, &mut tables), [heap]);
        let new = range(TIB, MIB);
        tables.there = vec![new, heap];
        assert_eq!(epochs.next(&mapped, &mut tables), [new, heap]);
        assert!(tables.spent < Nanos::from_millis(2), "{}", tables.spent);
    }
}

#[test]
fn what_costs_much_is_looked_at_in_slices_and_what_is_new_is_found_meanwhile() {
    // A TiB in small pages takes 5 s: 50 slices, each of which has to rest for 40 s.
    let mapped = [range(0, TIB), range(2 * TIB, 20 * TIB)];
    let heap = range(0, TIB);
    let mut tables = Tables::of(&[heap]);
    let mut epochs = Epochs::default();
    assert_eq!(epochs.next(&mapped, &mut tables), [heap], "as surveyed");
    assert!(tables.spent < Nanos::from_millis(150));
    let first = range(22 * TIB - MIB, MIB);
    tables.there = vec![heap, first];
    assert_eq!(epochs.next(&mapped, &mut tables), [heap, first]);
    while !epochs.presence.is_whole {
        epochs.next(&mapped, &mut tables);
    }
    assert!((2000..2300).contains(&epochs.seconds), "{}", epochs.seconds);
    let new = range(3 * TIB, MIB);
    tables.there = vec![heap, new, first];
    assert_eq!(epochs.next(&mapped, &mut tables), [heap, new, first]);
    let share = tables.spent.as_secs_f64() / epochs.seconds as f64;
    assert!(share < 0.005, "{share}");
}

#[test]
fn memory_that_is_given_back_goes_after_two_passes_and_comes_back_at_once() {
    let mapped = [range(0, 64 * GIB)];
    let (old, young) = (range(GIB, 16 * MIB), range(2 * GIB, 32 * MIB));
    let mut tables = Tables::of(&[old, young]);
    let mut epochs = Epochs::default();
    assert_eq!(epochs.next(&mapped, &mut tables), [old, young]);
    tables.there = vec![old];
    assert_eq!(epochs.next(&mapped, &mut tables), [old, young]);
    assert_eq!(epochs.next(&mapped, &mut tables), [old]);
    tables.there = vec![old, young];
    assert_eq!(epochs.next(&mapped, &mut tables), [old, young]);
}

#[test]
fn what_is_nearly_full_stays_as_it_is_until_much_of_it_changes() {
    let mapped = [range(0, 1000 * MIB)];
    let mut tables = Tables::of(&[range(0, 500 * MIB), range(600 * MIB, 400 * MIB)]);
    let mut epochs = Epochs::default();
    assert_eq!(epochs.next(&mapped, &mut tables), mapped);
    let spent = tables.spent;
    for _ in 0..50 {
        assert_eq!(epochs.next(&mapped, &mut tables), mapped);
    }
    assert_eq!(tables.spent, spent);
    // Half of it is given back.
    tables.there = vec![range(0, 500 * MIB)];
    epochs.seconds += 10;
    epochs.next(&mapped, &mut tables);
    epochs.seconds += 10;
    assert_eq!(epochs.next(&mapped, &mut tables), tables.there);
    // A reservation comes beside it.
    let more = [mapped[0], range(TIB, TIB)];
    let new = range(2 * TIB - MIB, MIB);
    tables.there.push(new);
    assert_eq!(epochs.next(&more, &mut tables), tables.there);
}

#[test]
fn short_ranges_stay_as_they_are() {
    let mapped = [range(0, MIB), range(GIB, GIB), range(4 * GIB, MIB)];
    let mut tables = Tables::of(&[range(GIB + MIB, MIB)]);
    let left = Epochs::default().next(&mapped, &mut tables);
    assert_eq!(left, [mapped[0], tables.there[0], mapped[2]]);
}

#[test]
fn without_scans_the_page_map_tells_the_same() {
    use crate::sys::numa::{Buffer, HugePages, WORDS_PER_PAGE};
    use crate::sys::own_pages::own_pid;
    let buffer = Buffer::new(Bytes(GIB), HugePages::Refused).unwrap();
    let pages = [0, 1, 2, 70_000, 262_143];
    for page in pages {
        let word = &buffer.words()[page * WORDS_PER_PAGE];
        word.store(1, std::sync::atomic::Ordering::Relaxed);
    }
    let root = Root::host();
    let open = || Pagemap::open(&root, own_pid()).ok();
    let mut presence = Presence {
        must_read: true,
        ..Presence::default()
    };
    let terms = Terms {
        now: Nanos::from_secs(1),
        sharers: 1,
        resident: Bytes::ZERO,
    };
    let mut ranges = vec![buffer.range()];
    presence.narrow(&mut ranges, (&root, own_pid()), terms, open);
    let start = buffer.range().start().0;
    let found: Vec<(u64, u64)> = ranges
        .iter()
        .map(|r| ((r.start().0 - start) / PAGE_BYTES, r.pages()))
        .collect();
    assert_eq!(found, [(0, 3), (70_000, 1), (262_143, 1)]);
}

proptest! {
    /// Whatever comes and goes: what is left is sorted, disjoint, within what is mapped, and
    /// has all that is there.
    #[test]
    fn nothing_that_is_there_is_left_out(
        turns in prop::collection::vec(
            (prop::collection::vec((0_u64..4000, 1_u64..30), 0..12), 0_usize..4), 1..8),
    ) {
        let layouts = [
            vec![range(0, 64 * GIB)],
            vec![range(0, GIB), range(2 * GIB, 32 * GIB), range(50 * GIB, MIB)],
            vec![range(MIB, 3 * MIB), range(8 * MIB, 100 * GIB)],
            vec![range(0, 17 * MIB)],
        ];
        let mut epochs = Epochs::default();
        for (touched, layout) in turns {
            let mapped = &layouts[layout];
            let mut there: BTreeSet<PageRange> = BTreeSet::new();
            for (at, pages) in touched {
                there.insert(range(at * 16 * MIB, pages * PAGE_BYTES));
            }
            let all: Vec<PageRange> = Cover::of(there).ranges().to_vec();
            let mut tables = Tables::of(&intersection(&all, mapped));
            let left = epochs.next(mapped, &mut tables);
            prop_assert!(left.windows(2).all(|p| p[0].end() <= p[1].start()));
            prop_assert_eq!(&intersection(&left, mapped), &left);
            let missing = holes(&tables.there, &left, 1);
            // Holes are looked at where they are long; the rest by the next pass.
            epochs.seconds += 100;
            let left = epochs.next(mapped, &mut tables);
            prop_assert!(holes(&tables.there, &left, 1).is_empty(), "{missing:?}");
        }
    }
}
