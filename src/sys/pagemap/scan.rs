//! What `PAGEMAP_SCAN` tells (Linux 6.7): which ranges of a process have pages of a kind.
//!
//! The kernel passes over what has no page tables, so that a hole of a terabyte costs as
//! little as one of a gigabyte: a scan costs what is there, and not what is mapped.
//!
//! The kernel's `walk_end` is not to be relied upon (6.18): when it gathered more than 512
//! ranges and then came to the end, it still names where it paused last. A call that gave
//! less than there was room for has seen all.

use std::io;
use std::os::fd::AsRawFd;

use super::Pagemap;
use crate::units::{HUGE_PAGE_BYTES, PAGE_SHIFT, PageRange, VirtAddr};

/// `PAGEMAP_SCAN` of `linux/fs.h`: `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::Ioctl = 0xc060_6610_u32 as libc::Ioctl;
/// `PAGE_IS_PRESENT`: in memory and mapped.
const PAGE_IS_PRESENT: u64 = 1 << 3;
/// `PAGE_IS_SWAPPED`: in swap, or being moved.
const PAGE_IS_SWAPPED: u64 = 1 << 4;
/// `PAGE_IS_HUGE`: mapped by one entry of 2 MiB.
const PAGE_IS_HUGE: u64 = 1 << 6;
/// Ranges that one call fetches: of huge pages, and of what is there.
const HUGE_REGIONS: usize = 16;
const REGIONS: usize = 512;

/// `struct pm_scan_arg` of `linux/fs.h`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const _: () = assert!(size_of::<Scan>() == 0x60);

/// `struct page_region` of `linux/fs.h`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

impl Pagemap {
    /// The first pages of the huge pages (mapped as such, of 2 MiB) that lie within
    /// `range` as a whole, in order.
    ///
    /// # Errors
    /// `ENOTTY` before Linux 6.7, which has no `PAGEMAP_SCAN`.
    pub fn huge_pages(&self, range: PageRange) -> io::Result<Vec<VirtAddr>> {
        let mut found = Vec::new();
        let mut regions = [Region::default(); HUGE_REGIONS];
        let mut start = range.start().0;
        while start < range.end().0 {
            let wanted = Scan {
                start,
                end: range.end().0,
                category_mask: PAGE_IS_HUGE,
                return_mask: PAGE_IS_HUGE,
                ..Scan::default()
            };
            let count = self.scan(wanted, &mut regions)?;
            for region in &regions[..count] {
                let first = region.start.next_multiple_of(HUGE_PAGE_BYTES);
                let last = region.end - region.end % HUGE_PAGE_BYTES;
                let step = usize::try_from(HUGE_PAGE_BYTES).map_err(io::Error::other)?;
                found.extend((first..last).step_by(step).map(VirtAddr));
            }
            if count < HUGE_REGIONS {
                break;
            }
            start = regions[count - 1].end;
        }
        Ok(found)
    }

    /// Adds to `out`, in order, the ranges within `range` that have pages, in memory or in
    /// swap: of one call, and of at most `most` pages, so that the address space is not
    /// held for long. Returns up to where it has looked.
    ///
    /// # Errors
    /// `ENOTTY` before Linux 6.7.
    pub(in crate::sys) fn present(
        &self,
        range: PageRange,
        most: u64,
        out: &mut Vec<PageRange>,
    ) -> io::Result<VirtAddr> {
        let mut regions = [Region::default(); REGIONS];
        let most = most.max(1);
        let wanted = Scan {
            start: range.start().0,
            end: range.end().0,
            max_pages: most,
            category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
            ..Scan::default()
        };
        let count = self.scan(wanted, &mut regions)?;
        let regions = &regions[..count];
        let ranges = regions.iter().map(|r| (VirtAddr(r.start), VirtAddr(r.end)));
        out.extend(ranges.filter_map(|(start, end)| PageRange::new(start, end)));
        let pages: u64 = regions
            .iter()
            .map(|r| (r.end - r.start) >> PAGE_SHIFT)
            .sum();
        Ok(match regions.last() {
            Some(last) if count == REGIONS || pages >= most => VirtAddr(last.end).min(range.end()),
            _ => range.end(),
        })
    }

    /// One call; how many of `regions` it filled.
    fn scan(&self, wanted: Scan, regions: &mut [Region]) -> io::Result<usize> {
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            vec: regions.as_mut_ptr().expose_provenance() as u64,
            vec_len: regions.len() as u64,
            ..wanted
        };
        // SAFETY: the kernel reads `scan`, writes back its `walk_end`, and writes
        // `vec_len` regions at most, for which there is room.
        let count = unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, &raw mut scan) };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::sys::numa::{Buffer, HugePages, WORDS_PER_PAGE};
    use crate::sys::own_pages::own_pid;
    use crate::sys::root::Root;
    use crate::units::{Bytes, PAGE_BYTES};

    fn own_map() -> Pagemap {
        Pagemap::open(&Root::host(), own_pid()).unwrap()
    }

    #[test]
    fn huge_pages_are_told_by_a_scan() {
        let bytes = Bytes(4 * HUGE_PAGE_BYTES);
        let touched = |huge| {
            let buffer = Buffer::new(bytes, huge).unwrap();
            for word in buffer.words().iter().step_by(WORDS_PER_PAGE) {
                word.store(1, Relaxed);
            }
            buffer
        };
        let (huge, small) = (touched(HugePages::Wanted), touched(HugePages::Refused));
        let map = own_map();
        let Ok(none) = map.huge_pages(small.range()) else {
            eprintln!("skipped: this kernel has no PAGEMAP_SCAN");
            return;
        };
        assert_eq!(none, []);
        let start = huge.range().start().0;
        // From the middle of the first on, as far as the middle of the last.
        let part = PageRange::new(
            VirtAddr(start + HUGE_PAGE_BYTES / 2),
            VirtAddr(start + 7 * HUGE_PAGE_BYTES / 2),
        );
        let found = map.huge_pages(part.unwrap()).unwrap();
        let whole = [1, 2].map(|at| VirtAddr(start + at * HUGE_PAGE_BYTES));
        if found.is_empty() {
            eprintln!("skipped: no transparent huge pages to be had");
        } else {
            assert_eq!(found, whole);
            // One page of them is told alone, and all as one.
            let (mut one, mut all) = (Vec::new(), Vec::new());
            let reached = map.present(huge.range(), 1, &mut one).unwrap();
            assert_eq!((one[0].start(), one[0].pages()), (huge.range().start(), 1));
            assert_eq!(reached, one[0].end());
            map.present(huge.range(), 1 << 15, &mut all).unwrap();
            assert_eq!(all, [huge.range()]);
        }
    }

    #[test]
    fn what_is_there_is_found_in_a_reservation_of_a_tebibyte_call_by_call() {
        let buffer = Buffer::new(Bytes(1 << 40), HugePages::Refused).unwrap();
        let start = buffer.range().start().0;
        // More ranges than a call fetches, and a long one.
        let mut touched = Vec::new();
        for island in 0..700 {
            touched.push(island * (1 << 29));
        }
        touched.extend((0..300).map(|page| (1 << 39) + (1 << 20) + page * PAGE_BYTES));
        touched.sort_unstable();
        for &at in &touched {
            let word = usize::try_from(at / PAGE_BYTES).unwrap() * WORDS_PER_PAGE;
            buffer.words()[word].store(1, Relaxed);
        }
        let map = own_map();
        let (mut found, mut at) = (Vec::new(), buffer.range().start());
        let mut calls = 0;
        while let Some(rest) = PageRange::new(at, buffer.range().end()) {
            at = match map.present(rest, 256, &mut found) {
                Ok(at) => at,
                Err(error) => {
                    eprintln!("skipped: PAGEMAP_SCAN: {error}");
                    return;
                }
            };
            calls += 1;
        }
        let pages: Vec<u64> = found
            .iter()
            .flat_map(|range| range.iter_pages())
            .map(|page| page.0 - start)
            .collect();
        assert_eq!(pages, touched);
        assert!((4..=8).contains(&calls), "{calls}");
    }
}
