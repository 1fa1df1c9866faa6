//! Which row of a picture shows which addresses.
//!
//! **Problem.** A process has its memory at a few places of an address space of 2^47
//! bytes and more; drawn to scale nothing of it would be seen.
//!
//! **Approach.** What was ever eligible is laid end to end, the gaps left out, and cut
//! into rows of as many bytes each, the last one of what is left.
//!
//! **Bounds.** At most [`SEGMENTS_MOST`] pieces: where there are more, the smallest gaps
//! are shown as if they were mapped. At most [`ROWS`] rows.
//!
//! **Properties** (proptest below): every eligible byte is in exactly one row; rows ascend.

use std::collections::BTreeMap;

use crate::units::{Bytes, PAGE_BYTES, PageRange, VirtAddr};

/// Rows of a picture at most.
pub const ROWS: usize = 384;
/// Pieces of an address space that are told apart at most.
const SEGMENTS_MOST: usize = 2048;

/// What a target had eligible in the course of time.
#[derive(Clone, Debug, Default)]
pub struct Spread {
    /// First byte, and the one past the last; disjoint, not touching.
    pieces: BTreeMap<u64, u64>,
    /// The ranges added last: from epoch to epoch they seldom change.
    last: Vec<PageRange>,
}

impl Spread {
    /// Adds what is eligible in one epoch.
    pub fn add(&mut self, eligible: &[PageRange]) {
        if self.last == eligible {
            return;
        }
        for range in eligible {
            self.join(range.start().0, range.end().0);
            if self.pieces.len() > 2 * SEGMENTS_MOST {
                self.close_gaps();
            }
        }
        self.last = eligible.to_vec();
    }

    fn join(&mut self, mut start: u64, mut end: u64) {
        if let Some((&before, &until)) = self.pieces.range(..=start).next_back()
            && until >= start
        {
            start = before;
            end = end.max(until);
        }
        while let Some((&next, &until)) = self.pieces.range(start..=end).next() {
            end = end.max(until);
            self.pieces.remove(&next);
        }
        self.pieces.insert(start, end);
    }

    /// Leaves the largest gaps only.
    fn close_gaps(&mut self) {
        let pieces: Vec<(u64, u64)> = std::mem::take(&mut self.pieces).into_iter().collect();
        let mut gaps: Vec<u64> = pieces.windows(2).map(|p| p[1].0 - p[0].1).collect();
        gaps.sort_unstable_by(|a, b| b.cmp(a));
        let least = gaps.get(SEGMENTS_MOST - 1).copied().unwrap_or(0);
        // Of equal gaps no more than fit.
        let mut left = SEGMENTS_MOST - 1;
        let mut open: Option<(u64, u64)> = None;
        for (start, end) in pieces {
            match &mut open {
                Some((_, until)) if start - *until <= least || left == 0 => *until = end,
                _ => {
                    if let Some((start, end)) = open.replace((start, end)) {
                        self.pieces.insert(start, end);
                        left -= 1;
                    }
                }
            }
        }
        self.pieces.extend(open);
    }

    /// The rows for it.
    pub fn layout(mut self) -> Layout {
        if self.pieces.len() > SEGMENTS_MOST {
            self.close_gaps();
        }
        let mut segments = Vec::new();
        let mut total = 0;
        for (start, end) in self.pieces {
            segments.push(Segment {
                start,
                end,
                offset: total,
            });
            total += end - start;
        }
        let pages = (total / PAGE_BYTES).max(1);
        let row_bytes = pages.div_ceil(ROWS as u64) * PAGE_BYTES;
        Layout {
            segments,
            total,
            row_bytes,
        }
    }
}

/// Addresses without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    start: u64,
    end: u64,
    /// Bytes of the segments before it.
    offset: u64,
}

impl Segment {
    /// Its first byte.
    pub fn start(&self) -> VirtAddr {
        VirtAddr(self.start)
    }

    /// Bytes in it.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.end - self.start)
    }

    /// Bytes in the picture before it.
    pub fn offset(&self) -> Bytes {
        Bytes(self.offset)
    }
}

/// Rows of addresses, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    segments: Vec<Segment>,
    total: u64,
    row_bytes: u64,
}

impl Layout {
    /// The pieces between gaps, ascending.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// All bytes shown.
    pub fn total(&self) -> Bytes {
        Bytes(self.total)
    }

    /// Bytes of each row but the last.
    pub fn row_bytes(&self) -> Bytes {
        Bytes(self.row_bytes)
    }

    /// How many rows there are, at most [`ROWS`].
    pub fn rows(&self) -> usize {
        usize::try_from(self.total.div_ceil(self.row_bytes)).unwrap_or(ROWS)
    }

    /// The address that is shown after so many bytes; at the end the last one's end.
    pub fn address(&self, offset: Bytes) -> VirtAddr {
        let at = self.segments.partition_point(|s| s.offset <= offset.0);
        let segment = self.segments[..at].last();
        segment.map_or(VirtAddr(0), |s| {
            VirtAddr((s.start + (offset.0 - s.offset)).min(s.end))
        })
    }

    /// Bytes of each row in `start..end`, rows ascending. `from` is where to look for the
    /// segment, and becomes where to go on for a range that comes after this one.
    pub fn split(&self, range: PageRange, from: &mut usize, mut to: impl FnMut(usize, u64)) {
        let (start, end) = (range.start().0, range.end().0);
        while self.segments.get(*from).is_some_and(|s| s.end <= start) {
            *from += 1;
        }
        for segment in &self.segments[*from..] {
            if segment.start >= end {
                return;
            }
            let first = segment.offset + (start.max(segment.start) - segment.start);
            let last = segment.offset + (end.min(segment.end) - segment.start);
            let mut at = first;
            while at < last {
                let row = at / self.row_bytes;
                let next = ((row + 1) * self.row_bytes).min(last);
                // Fewer than ROWS.
                to(usize::try_from(row).unwrap_or(ROWS), next - at);
                at = next;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(first: u64, pages: u64) -> PageRange {
        let at = |page: u64| VirtAddr(page * PAGE_BYTES);
        PageRange::new(at(first), at(first + pages)).unwrap()
    }

    fn pieces(spread: &Spread) -> Vec<(u64, u64)> {
        let pages = |(start, end): (&u64, &u64)| (start / PAGE_BYTES, end / PAGE_BYTES);
        spread.pieces.iter().map(pages).collect()
    }

    #[test]
    fn what_overlaps_or_touches_is_one_piece() {
        let mut spread = Spread::default();
        spread.add(&[range(10, 5), range(30, 5)]);
        spread.add(&[range(15, 5), range(50, 1)]);
        assert_eq!(pieces(&spread), [(10, 20), (30, 35), (50, 51)]);
        spread.add(&[range(0, 60)]);
        assert_eq!(pieces(&spread), [(0, 60)]);
        spread.add(&[range(20, 5)]);
        assert_eq!(pieces(&spread), [(0, 60)]);
    }

    #[test]
    fn gaps_take_no_rows() {
        let mut spread = Spread::default();
        // A heap, and far above it a mapping.
        spread.add(&[range(16, 384), range(1 << 34, 384)]);
        let layout = spread.layout();
        assert_eq!(layout.total(), Bytes::from_pages(768));
        assert_eq!((layout.rows(), layout.row_bytes()), (384, Bytes(8192)));
        assert_eq!(layout.address(Bytes(0)), range(16, 1).start());
        let above = range(1 << 34, 384);
        assert_eq!(layout.address(Bytes::from_pages(384)), above.start());
        assert_eq!(layout.address(layout.total()), above.end());
        let mut rows = Vec::new();
        layout.split(range((1 << 34) + 3, 2), &mut 0, |row, bytes| {
            rows.push((row, bytes));
        });
        assert_eq!(rows, [(193, 4096), (194, 4096)]);
    }

    #[test]
    fn the_smallest_gaps_close_when_there_are_too_many() {
        let mut spread = Spread::default();
        let many: Vec<PageRange> = (0..6000).map(|i| range(i * 3, 1)).collect();
        spread.add(&many);
        spread.add(&[range(1 << 30, 1)]);
        let layout = spread.layout();
        assert!(layout.segments().len() <= SEGMENTS_MOST);
        let far = layout.segments().last().unwrap();
        assert_eq!(far.start(), range(1 << 30, 1).start());
        let mut bytes = 0;
        let mut from = 0;
        for piece in &many {
            layout.split(*piece, &mut from, |_, b| bytes += b);
        }
        assert_eq!(bytes, 6000 * PAGE_BYTES);
    }

    proptest! {
        #[test]
        fn each_byte_is_in_one_row(
            parts in prop::collection::vec((1_u64..5000, 1_u64..5000), 1..40),
            cut in 1_u64..300,
        ) {
            let mut at = 0;
            let mut ranges = Vec::new();
            for (gap, pages) in parts {
                ranges.push(range(at + gap, pages));
                at += gap + pages;
            }
            let mut spread = Spread::default();
            spread.add(&ranges);
            let layout = spread.layout();
            prop_assert!(layout.rows() <= ROWS);
            let mut rows = vec![0; layout.rows()];
            let mut from = 0;
            for whole in &ranges {
                // In pieces as regions are.
                let mut start = whole.start();
                while start < whole.end() {
                    let end = VirtAddr(start.0 + cut * PAGE_BYTES).min(whole.end());
                    let piece = PageRange::new(start, end).unwrap();
                    layout.split(piece, &mut from, |row, bytes| rows[row] += bytes);
                    start = end;
                }
            }
            let all: u64 = ranges.iter().map(|r| r.bytes().0).sum();
            prop_assert_eq!(rows.iter().sum::<u64>(), all);
            prop_assert_eq!(layout.total().0, all);
            let (last, full) = rows.split_last().unwrap();
            prop_assert!(full.iter().all(|bytes| *bytes == layout.row_bytes().0));
            prop_assert!(*last <= layout.row_bytes().0);
        }
    }
}
