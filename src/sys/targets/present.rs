//! What of a target's mappings is there.
//!
//! **Need.** Programs map far more than they use: a heap of 64 TiB of which 64 MiB were ever
//! touched. Regions over all of it are a million times as long as what is in them, and no
//! sample meets a page.
//!
//! **Approach.** Eligible ranges of [`LEAST`] and more are cut down to what is in the page
//! tables, in memory or in swap (`PAGEMAP_SCAN`, Linux 6.7, which passes over holes; before
//! that the page map is read, mapping by mapping, where `smaps` says that there is any).
//! Three walks do that:
//! - one *survey* when the target is new, which asks for each block of [`BLOCK`] whether
//!   there is anything.
//! - one *pass* after the other through everything. A range that is gone stays until two
//!   passes have not found it: a heap that is collected comes back to the same addresses.
//! - one through the *holes* only, so that what is new is found in the next epoch, however
//!   long a pass takes.
//!
//! Where nearly all of it is there ([`DENSE`]) it stays as it is, and is looked at again
//! after [`REFRESH`] or when much of it has come or gone. What the first walk has not come to
//! yet stays as well.
//!
//! **Bounds.** A walk takes [`SLICE`] at a time, which all targets share, and then rests for
//! [`REST`] times as long as it took. One call looks at [`PAGES_AT_ONCE`]: the target's
//! address space is held for no longer. A cover is at most [`cover::MOST`] ranges, so what
//! comes out is no more than that for each mapping and all of them together.

use std::fs;
use std::io;

use crate::sys::clock::thread_cpu_time;
use crate::sys::pagemap::{Entry, Pagemap};
use crate::sys::root::Root;
use crate::sys::smaps;
use crate::units::{Bytes, HUGE_PAGE_BYTES, Nanos, PAGE_BYTES, PageRange, Pid, VirtAddr};

mod cover;

use cover::{Cover, holes, intersection, join};

/// Shorter ranges stay as they are: they are one region anyway.
const LEAST: u64 = HUGE_PAGE_BYTES;
/// The same of all longer ranges together.
const WORTH: Bytes = Bytes::from_mib(16);
/// Nearly all: where at most one in so many bytes is a hole.
const DENSE: u64 = 5;
/// What was dense is looked at again after that, or when one in [`CHANGE`] bytes has come
/// or gone.
const REFRESH: Nanos = Nanos::from_secs(60);
const CHANGE: u64 = 16;
/// The survey tells blocks of so many bytes apart: a TiB takes 32,768 calls.
const BLOCK: u64 = 16 * HUGE_PAGE_BYTES;
/// CPU time that a walk takes at once at most, all targets together.
const SLICE: Nanos = Nanos::from_millis(100);
/// A walk rests so many times as long as it took: passes and holes take half a percent of the time.
const REST: u64 = 400;
/// Pages of 4 KiB that one call looks at: about a millisecond.
const PAGES_AT_ONCE: u64 = 1 << 15;

/// What is known of where a target's pages are.
#[derive(Debug, Default)]
pub(super) struct Presence {
    /// What the last two whole passes found, and the one under way.
    older: Cover,
    before: Cover,
    now: Cover,
    /// The blocks in which the survey found something.
    surveyed: Cover,
    survey: Walk,
    pass: Walk,
    in_holes: Walk,
    /// Whether the survey, and a pass, have come to their end.
    is_surveyed: bool,
    is_whole: bool,
    dense: Option<Dense>,
    /// Whether the kernel has no `PAGEMAP_SCAN`.
    must_read: bool,
}

/// When nearly all of what is mapped was found to be there.
#[derive(Clone, Copy, Debug)]
struct Dense {
    until: Nanos,
    mapped: Bytes,
    resident: Bytes,
}

/// A way through the addresses, some at a time.
#[derive(Clone, Copy, Debug)]
struct Walk {
    /// Where it goes on.
    at: VirtAddr,
    /// Not before.
    next: Nanos,
}

impl Default for Walk {
    fn default() -> Self {
        Self {
            at: VirtAddr(0),
            next: Nanos::ZERO,
        }
    }
}

/// When a walk is made, and how much of the time for it this target has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) now: Nanos,
    /// Targets that share the time.
    pub(super) sharers: usize,
    /// What the target has in memory and in swap.
    pub(super) resident: Bytes,
}

impl Terms {
    fn sharers(self) -> u64 {
        u64::try_from(self.sharers.max(1)).unwrap_or(u64::MAX)
    }
}

/// Adds the ranges with pages in a range, so many pages at most; returns up to where it
/// looked, and what it cost.
type Look<'a> =
    &'a mut dyn FnMut(PageRange, u64, &mut Vec<PageRange>) -> io::Result<(VirtAddr, Nanos)>;

impl Presence {
    /// Leaves of `ranges` (sorted, disjoint), which may be moved of `pid`, what is there.
    /// `open` opens its page map, if it still is the process that is meant.
    pub(super) fn narrow(
        &mut self,
        ranges: &mut Vec<PageRange>,
        (root, pid): (&Root, Pid),
        terms: Terms,
        open: impl FnOnce() -> Option<Pagemap>,
    ) {
        let long = |range: &&PageRange| range.bytes().0 >= LEAST;
        let long: Vec<PageRange> = ranges.iter().filter(long).copied().collect();
        let mapped: Bytes = long.iter().map(|r| r.bytes()).sum();
        if mapped < WORTH {
            *self = Self::default();
            return;
        }
        if !self.is_to_look(mapped, terms) {
            self.apply(ranges);
            return;
        }
        let Some(map) = open() else { return };
        let looked = if self.must_read {
            let mut entries = Vec::new();
            let spans = match with_pages(root, pid) {
                Ok(some) => intersection(&long, &some),
                Err(_) => spans(&long),
            };
            self.look(&spans, (&long, mapped), terms, &mut |range, most, out| {
                timed(|| read(&map, range, most, &mut entries, out))
            })
        } else {
            self.look(
                &spans(&long),
                (&long, mapped),
                terms,
                &mut |range, most, out| timed(|| map.present(range, most, out)),
            )
        };
        if let Err(error) = looked {
            let must_read = self.must_read || error.raw_os_error() == Some(libc::ENOTTY);
            let rests = must_read == self.must_read;
            tracing::debug!(%pid, %error, "what of its mappings is there cannot be told");
            *self = Self {
                must_read,
                ..Self::default()
            };
            if rests {
                self.survey.next = terms.now + REFRESH;
                self.pass.next = self.survey.next;
            }
        }
        self.apply(ranges);
    }

    /// Whether a walk is due.
    fn is_to_look(&mut self, mapped: Bytes, terms: Terms) -> bool {
        if let Some(dense) = self.dense {
            let differs = mapped.0.abs_diff(dense.mapped.0) > dense.mapped.0 / CHANGE;
            let kept = dense.resident.0 - dense.resident.0 / CHANGE;
            if differs || terms.resident.0 < kept {
                self.dense = None;
                self.pass.at = VirtAddr(0);
                self.now = Cover::default();
            } else if terms.now < dense.until {
                return false;
            }
        }
        if !self.is_surveyed && !self.must_read {
            return terms.now >= self.survey.next;
        }
        terms.now >= self.pass.next || !self.must_read && terms.now >= self.in_holes.next
    }

    /// Makes the walks that are due, through `spans`; of what is `long`, so much is mapped.
    fn look(
        &mut self,
        spans: &[PageRange],
        (long, mapped): (&[PageRange], Bytes),
        terms: Terms,
        look: Look<'_>,
    ) -> io::Result<()> {
        if self.must_read {
            // Holes cost as much as what is there.
        } else if !self.is_surveyed {
            let (found, is_over) = self.survey.go(spans, Some(BLOCK), terms, look)?;
            self.surveyed = self.surveyed.union(&found);
            self.is_surveyed = is_over;
            if !is_over {
                return Ok(());
            }
        } else if terms.now >= self.in_holes.next {
            let holes = holes(spans, self.known().ranges(), LEAST);
            let (found, _) = self.in_holes.go(&holes, None, terms, look)?;
            self.before = self.before.union(&found);
        }
        if terms.now < self.pass.next {
            return Ok(());
        }
        let (found, is_over) = self.pass.go(spans, None, terms, look)?;
        self.now = self.now.union(&found);
        if is_over {
            self.older = std::mem::take(&mut self.before);
            self.before = std::mem::take(&mut self.now);
            self.is_whole = true;
            self.surveyed = Cover::default();
            let there = intersection(long, self.before.ranges());
            let there: Bytes = there.iter().map(|r| r.bytes()).sum();
            let holes = mapped.saturating_sub(there);
            self.dense = (holes.0 <= mapped.0 / DENSE).then_some(Dense {
                until: terms.now + REFRESH,
                mapped,
                resident: terms.resident,
            });
        }
        Ok(())
    }

    /// What may be there, as far as walks have come.
    fn known(&self) -> Cover {
        let ahead = self.surveyed.from(self.pass.at);
        let found = self.older.union(&self.before).union(&self.now);
        found.union(&ahead)
    }

    /// From where on no walk has come.
    fn unseen(&self) -> VirtAddr {
        if self.is_whole || self.is_surveyed {
            VirtAddr(u64::MAX)
        } else if self.must_read {
            self.pass.at
        } else {
            self.survey.at
        }
    }

    /// Cuts long ranges down to what is there.
    fn apply(&self, ranges: &mut Vec<PageRange>) {
        if self.dense.is_some() {
            return;
        }
        let (known, unseen) = (self.known(), self.unseen());
        let known = known.ranges();
        let mut left = Vec::with_capacity(ranges.len() + known.len());
        let mut from = 0;
        for &range in &*ranges {
            if range.bytes().0 < LEAST {
                left.push(range);
                continue;
            }
            from += known[from..].partition_point(|k| k.end() <= range.start());
            let inside = known[from..].iter().take_while(|k| k.start() < range.end());
            let inside = inside.filter_map(|k| {
                PageRange::new(k.start(), k.end().min(unseen)).and_then(|k| k.intersect(range))
            });
            left.extend(inside);
            left.extend(PageRange::new(range.start().max(unseen), range.end()));
        }
        *ranges = left;
    }
}

impl Walk {
    /// Goes on through `spans` (sorted, disjoint) until its slice is over, then rests. What
    /// was found, and whether it came to the end, from where it begins anew. With `block` one
    /// page tells for all of a block of so many bytes.
    fn go(
        &mut self,
        spans: &[PageRange],
        block: Option<u64>,
        terms: Terms,
        look: Look<'_>,
    ) -> io::Result<(Cover, bool)> {
        let slice = Nanos((SLICE.0 / terms.sharers()).max(1));
        let (mut cover, mut found) = (Cover::default(), Vec::new());
        let mut spent = Nanos::ZERO;
        let first = spans.partition_point(|span| span.end() <= self.at);
        let mut stopped = None;
        'walk: for span in &spans[first..] {
            let mut at = span.start().max(self.at);
            while let Some(rest) = PageRange::new(at, span.end()) {
                if spent >= slice {
                    stopped = Some(at);
                    break 'walk;
                }
                let most = if block.is_some() { 1 } else { PAGES_AT_ONCE };
                let (mut reached, took) = look(rest, most, &mut found)?;
                spent += took;
                for range in found.drain(..) {
                    let whole = block.and_then(|block| block_of(range, block));
                    let range = whole.unwrap_or(range);
                    reached = reached.max(range.end());
                    cover.add(range);
                }
                at = reached.max(VirtAddr(at.0 + PAGE_BYTES));
            }
        }
        self.at = stopped.unwrap_or(VirtAddr(0));
        let rest = spent.0.saturating_mul(REST).saturating_mul(terms.sharers());
        self.next = terms.now + Nanos(rest);
        Ok((cover, stopped.is_none()))
    }
}

/// The block of so many bytes that a range begins in.
fn block_of(range: PageRange, bytes: u64) -> Option<PageRange> {
    let start = range.start().align_down(bytes);
    PageRange::new(start, start.checked_add(Bytes(bytes))?)
}

/// Ranges that are near each other become one: to look at what lies between costs less than
/// another call.
fn spans(ranges: &[PageRange]) -> Vec<PageRange> {
    let mut spans = Vec::with_capacity(ranges.len());
    for &range in ranges {
        join(&mut spans, range, LEAST);
    }
    spans
}

/// Where a look came to, with the CPU time that it took.
fn timed(look: impl FnOnce() -> io::Result<VirtAddr>) -> io::Result<(VirtAddr, Nanos)> {
    let before = thread_cpu_time();
    let reached = look()?;
    Ok((reached, thread_cpu_time().saturating_sub(before)))
}

/// Mappings of which something is in memory.
fn with_pages(root: &Root, pid: Pid) -> io::Result<Vec<PageRange>> {
    let text = fs::read(root.proc(format!("{pid}/smaps")))?;
    let mappings = smaps::mappings(&text).filter(|m| !m.present.is_zero());
    Ok(mappings.map(|m| m.range).collect())
}

/// The same as [`Pagemap::present`] by reading the page map.
fn read(
    map: &Pagemap,
    range: PageRange,
    most: u64,
    entries: &mut Vec<Entry>,
    out: &mut Vec<PageRange>,
) -> io::Result<VirtAddr> {
    let end = VirtAddr(range.start().0.saturating_add(most * PAGE_BYTES));
    let end = end.min(range.end());
    let Some(part) = PageRange::new(range.start(), end) else {
        return Ok(end);
    };
    map.read(part, entries)?;
    let there = entries.iter().zip(part.iter_pages());
    for (_, page) in there.filter(|(e, _)| e.present() || e.swapped()) {
        if let Some(page) = PageRange::new(page, VirtAddr(page.0 + PAGE_BYTES)) {
            join(out, page, 0);
        }
    }
    Ok(end)
}

#[cfg(test)]
mod tests;
