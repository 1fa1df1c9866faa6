//! Where the axes of a picture have their marks.

use super::layout::Layout;
use crate::units::{Bytes, Nanos, VirtAddr};

/// Marks of an axis at most, roughly.
const MARKS: f64 = 8.0;

/// The smallest of 1, 2, 5, 10 … that needs no more than [`MARKS`] for `span`, and its
/// decimals.
fn step(span: f64) -> (f64, usize) {
    let least = (span / MARKS).max(f64::MIN_POSITIVE);
    let power = least.log10().floor();
    let unit = 10_f64.powf(power);
    let times = [1.0, 2.0, 5.0, 10.0];
    let times = times.iter().find(|times| *times * unit >= least * 0.999);
    let step = times.unwrap_or(&10.0) * unit;
    let decimals = (0..18).find(|d| step >= 0.999 * 10_f64.powi(-d));
    (step, usize::try_from(decimals.unwrap_or(18)).unwrap_or(0))
}

/// Marks of a time that begins at zero: where, as a share of it, and seconds as text.
pub(super) fn seconds(span: Nanos) -> Vec<(f64, String)> {
    let all = span.as_secs_f64();
    let (step, decimals) = step(all);
    let places = (0..=20_u32).map(|i| f64::from(i) * step);
    places
        .take_while(|at| *at <= all * 1.000_001)
        .map(|at| (at / all, format!("{at:.decimals$}")))
        .collect()
}

/// Marks of a size that begins at zero: where, as a share of `most`, and a size as text.
pub(super) fn sizes(most: f64) -> Vec<(f64, String)> {
    let mut unit = 1.0;
    while most / unit >= 1024.0 {
        unit *= 1024.0;
    }
    // Of what is left, in decimal steps of the unit.
    let (step, _) = step(most / unit * 2.0);
    let places = (0..=20_u32).map(|i| f64::from(i) * step * unit);
    places
        .take_while(|at| *at <= most * 1.000_001)
        .map(|at| {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let bytes = Bytes(at.round() as u64);
            (at / most.max(f64::MIN_POSITIVE), bytes.to_string())
        })
        .collect()
}

/// Addresses to write beside `pixels` of a layout, no two nearer than `apart`: pixels from
/// its beginning. First the ends, then where the largest segments begin, then others.
pub(super) fn addresses(layout: &Layout, pixels: f64, apart: f64) -> Vec<(f64, VirtAddr)> {
    let total = layout.total();
    let mut marks: Vec<(f64, VirtAddr)> = Vec::new();
    let mut place = |offset: Bytes, address: VirtAddr| {
        let at = offset.as_f64() / total.as_f64().max(1.0) * pixels;
        if marks.iter().all(|(other, _)| (other - at).abs() >= apart) {
            marks.push((at, address));
        }
    };
    place(Bytes::ZERO, layout.address(Bytes::ZERO));
    place(total, layout.address(total));
    let mut segments: Vec<_> = layout.segments().iter().collect();
    segments.sort_by_key(|s| std::cmp::Reverse(s.bytes()));
    for segment in segments.iter().take(64) {
        place(segment.offset(), segment.start());
    }
    // Whole rows, since a picture shows nothing between.
    for part in 1..8 {
        let offset = total.0 / 8 * part / layout.row_bytes().0 * layout.row_bytes().0;
        place(Bytes(offset), layout.address(Bytes(offset)));
    }
    marks.sort_by(|a, b| a.0.total_cmp(&b.0));
    marks
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::layout::Spread;
    use super::*;
    use crate::units::{PAGE_BYTES, PageRange};

    fn texts(marks: &[(f64, String)]) -> Vec<&str> {
        marks.iter().map(|(_, text)| text.as_str()).collect()
    }

    #[test]
    fn times_are_marked_in_round_seconds() {
        let at = |millis| seconds(Nanos::from_millis(millis));
        assert_eq!(texts(&at(10_000)), ["0", "2", "4", "6", "8", "10"]);
        assert!((at(10_000)[1].0 - 0.2).abs() < 1e-9);
        assert_eq!(texts(&at(450)), ["0.0", "0.1", "0.2", "0.3", "0.4"]);
        // A week.
        let week = at(604_800_000);
        assert_eq!(texts(&week)[..3], ["0", "100000", "200000"]);
    }

    #[test]
    fn sizes_are_marked_in_their_unit() {
        let most = Bytes::from_mib(300).as_f64();
        let marks = sizes(most);
        assert_eq!(
            texts(&marks),
            ["0 B", "100.0 MiB", "200.0 MiB", "300.0 MiB"]
        );
        assert_eq!(texts(&sizes(0.0)), ["0 B"]);
    }

    proptest! {
        #[test]
        fn marks_are_few_and_inside(span in 960_u64..) {
            let marks = seconds(Nanos(span));
            prop_assert!((1..=10).contains(&marks.len()), "{:?}", marks);
            prop_assert!(marks.iter().all(|(at, _)| (0.0..=1.001).contains(at)));
            let mut texts = texts(&marks);
            texts.dedup();
            prop_assert_eq!(texts.len(), marks.len());
        }

        #[test]
        fn addresses_keep_apart(parts in prop::collection::vec((1_u64..99, 1_u64..99), 1..300)) {
            let mut at = 0;
            let mut spread = Spread::default();
            for (gap, pages) in parts {
                at += gap;
                let end = at + pages;
                let range = PageRange::new(VirtAddr(at * PAGE_BYTES), VirtAddr(end * PAGE_BYTES));
                spread.add(&[range.unwrap()]);
                at = end;
            }
            let marks = addresses(&spread.layout(), 384.0, 14.0);
            for pair in marks.windows(2) {
                prop_assert!(pair[1].0 - pair[0].0 >= 14.0);
                prop_assert!(pair[1].1 > pair[0].1);
            }
        }
    }
}
