//! The threads that touch memory.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::hotset::Class;
use super::memory::Memory;
use super::random::{Random, mix};
use crate::sys::numa::{Buffer, WORDS_PER_PAGE};

/// Accesses between two looks at clock and phase: below a millisecond, even
/// where a guest is emulated.
const BATCH: usize = 1024;
/// Pages that `verify` checks between two such looks.
const VERIFY_BATCH: usize = 16;
/// Words in a cache line of 64 bytes.
const LINE_WORDS: u64 = 8;
/// Cache lines of a page.
pub(super) const LINES_PER_PAGE: u64 = WORDS_PER_PAGE as u64 / LINE_WORDS;
/// Mismatches that are reported one by one.
const REPORTED: u64 = 10;
/// How often a thread that has nothing to touch looks for a new phase.
const NOTHING_TO_DO: Duration = Duration::from_millis(20);

/// Accesses to pages anywhere in the buffer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stray {
    /// Their share of all accesses at most.
    pub share: f64,
    /// A page is visited once in this time at most, on average: what is
    /// touched every second is no cold page.
    pub period: Duration,
    /// Pages of 4 KiB that count as one in this, as they share one accessed
    /// bit: 512 where huge pages are wanted.
    pub unit: usize,
}

/// What a thread does in a phase.
#[derive(Clone, Debug, Default)]
pub(super) struct Phase {
    /// Touched in the order given, again and again or at their pace.
    pub classes: Vec<Class>,
    /// Beside these.
    pub stray: Option<Stray>,
    /// Check and rewrite pages in random order instead.
    pub verify: bool,
}

/// A word that did not hold what was written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mismatch {
    pub page: usize,
    pub word: usize,
    pub expected: u64,
    pub found: u64,
}

/// What all threads share.
#[derive(Debug)]
pub(super) struct Shared {
    pub memory: Memory,
    /// Seeds order and content.
    pub seed: u64,
    threads: usize,
    /// Pages before this one are only read.
    read_only: usize,
    /// Lines of each access, and one in how many of them writes.
    lines: u64,
    write_one_in: u64,
    phase: Mutex<Phase>,
    generation: AtomicU32,
    stop: AtomicBool,
    /// How often each page was rewritten, for `verify`.
    versions: Vec<AtomicU32>,
    mismatch_count: AtomicU64,
    mismatches: Mutex<Vec<Mismatch>>,
}

/// The word at `index` of a page as its `version`th writing left it.
#[inline]
fn content(base: u64, index: usize) -> u64 {
    base.wrapping_add((index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

fn content_base(seed: u64, page: usize, version: u32) -> u64 {
    mix(mix(seed ^ page as u64).wrapping_add(u64::from(version)))
}

/// Writes what version 0 of a page holds.
pub(super) fn fill(buffer: &Buffer, seed: u64, page: usize) {
    write_page(buffer, page, content_base(seed, page, 0));
}

fn write_page(buffer: &Buffer, page: usize, base: u64) {
    let at = page * WORDS_PER_PAGE;
    for (i, word) in buffer.words()[at..at + WORDS_PER_PAGE].iter().enumerate() {
        word.store(content(base, i), Ordering::Relaxed);
    }
}

impl Shared {
    /// From here on the first `share` of the pages, 0 to 1, are only read.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub(super) fn only_read_below(&mut self, share: f64) {
        self.read_only = (self.memory.buffer().page_count() as f64 * share) as usize;
    }

    /// From here on each access goes through so many lines of its page, 1 to [`LINES_PER_PAGE`].
    pub(super) fn go_through(&mut self, lines: u64) {
        self.lines = lines;
    }

    /// From here on one in so many accesses, at least 1, writes.
    pub(super) fn write_one_in(&mut self, count: u64) {
        self.write_one_in = count;
    }

    pub(super) fn new(memory: Memory, seed: u64, threads: usize, verify: bool) -> Self {
        let versions = if verify {
            memory.buffer().page_count()
        } else {
            0
        };
        Self {
            memory,
            seed,
            threads,
            read_only: 0,
            lines: 1,
            write_one_in: 4,
            phase: Mutex::default(),
            generation: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            versions: (0..versions).map(|_| AtomicU32::new(0)).collect(),
            mismatch_count: AtomicU64::new(0),
            mismatches: Mutex::default(),
        }
    }

    /// All threads turn to this phase within a batch.
    pub(super) fn enter(&self, phase: Phase) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// All threads end within a batch.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.generation.fetch_add(1, Ordering::Release);
    }

    pub(super) fn mismatch_count(&self) -> u64 {
        self.mismatch_count.load(Ordering::Relaxed)
    }

    /// The mismatches found since the last call.
    pub(super) fn take_mismatches(&self) -> Vec<Mismatch> {
        std::mem::take(
            &mut *self
                .mismatches
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    /// One thread, until told to stop.
    pub(super) fn work(&self, index: usize) {
        let mut random = Random::new(self.seed ^ mix(index as u64));
        let mut local = vec![0_u64; self.memory.counter_count()];
        while !self.stop.load(Ordering::Acquire) {
            let generation = self.generation.load(Ordering::Acquire);
            let phase = self
                .phase
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            let mut turn = Turn {
                shared: self,
                index,
                random: &mut random,
                local: &mut local,
            };
            if phase.verify {
                turn.verify(generation);
            } else {
                turn.touch(&phase, generation);
            }
        }
    }

    /// Checks all pages once more, after the threads have ended.
    pub(super) fn check_all(&self) {
        for page in 0..self.versions.len() {
            self.check(page);
        }
    }

    /// Checks every word of a page; returns its version.
    fn check(&self, page: usize) -> u32 {
        let version = self.versions[page].load(Ordering::Relaxed);
        let base = content_base(self.seed, page, version);
        let at = page * WORDS_PER_PAGE;
        let words = &self.memory.buffer().words()[at..at + WORDS_PER_PAGE];
        for (word, cell) in words.iter().enumerate() {
            let (expected, found) = (content(base, word), cell.load(Ordering::Relaxed));
            if expected != found && self.mismatch_count.fetch_add(1, Ordering::Relaxed) < REPORTED {
                self.mismatches
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(Mismatch {
                        page,
                        word,
                        expected,
                        found,
                    });
            }
        }
        version
    }
}

/// One thread in one phase.
struct Turn<'a> {
    shared: &'a Shared,
    index: usize,
    random: &'a mut Random,
    local: &'a mut [u64],
}

impl Turn<'_> {
    fn goes_on(&mut self, generation: u32) -> bool {
        self.shared.memory.flush(self.local);
        self.shared.generation.load(Ordering::Acquire) == generation
    }

    /// Some cache lines of the page, read or written.
    #[inline]
    fn visit(&mut self, page: usize) {
        let draw = self.random.next();
        let first = draw % (LINES_PER_PAGE + 1 - self.shared.lines);
        let page_at = page * WORDS_PER_PAGE;
        let words = &self.shared.memory.buffer().words()[page_at..page_at + WORDS_PER_PAGE];
        let is_written =
            page >= self.shared.read_only && (draw >> 32).is_multiple_of(self.shared.write_one_in);
        for line in first..first + self.shared.lines {
            let word = &words[usize::try_from(line * LINE_WORDS).unwrap_or(0)];
            if is_written {
                word.store(draw, Ordering::Relaxed);
            } else {
                black_box(word.load(Ordering::Relaxed));
            }
        }
        self.local[self.shared.memory.counter(page)] += 1;
    }

    fn touch(&mut self, phase: &Phase, generation: u32) {
        let threads = self.shared.threads;
        let pages = self.shared.memory.buffer().page_count();
        let begin = Instant::now();
        let (swept, timed): (Vec<&Class>, Vec<&Class>) =
            phase.classes.iter().partition(|c| c.period.is_none());
        let swept: Vec<u32> = swept.iter().flat_map(|c| c.order.iter().copied()).collect();
        // Threads begin at different places of the same round.
        let mut at = swept.len() * self.index / threads;
        let mut timed: Vec<(&Class, usize)> = timed.into_iter().map(|c| (c, 0)).collect();
        let (mut swept_count, mut stray_count) = (0_usize, 0_usize);
        if swept.is_empty() && timed.is_empty() && phase.stray.is_none() {
            while self.goes_on(generation) {
                std::thread::sleep(NOTHING_TO_DO);
            }
            return;
        }
        while self.goes_on(generation) {
            if swept.is_empty() {
                std::thread::sleep(Duration::from_millis(1));
            }
            for _ in 0..BATCH.min(swept.len() * BATCH) {
                self.visit(swept[at] as usize);
                at += 1;
                if at == swept.len() {
                    at = 0;
                }
            }
            swept_count += BATCH;
            let elapsed = begin.elapsed();
            for (class, done) in &mut timed {
                let period = class.period.unwrap_or(Duration::MAX);
                // Each thread has its own part of the class.
                let own = class.order.len().div_ceil(threads).max(1);
                let due = visits_due(own, elapsed, period).min(*done + 4 * BATCH);
                while *done < due {
                    let place = (*done % own) * threads + self.index;
                    if let Some(&page) = class.order.get(place) {
                        self.visit(page as usize);
                    }
                    *done += 1;
                }
            }
            if let Some(stray) = phase.stray {
                let units = pages.div_ceil(stray.unit);
                let paced = visits_due(units, elapsed, stray.period) / threads;
                let shared = super::hotset::share_of(swept_count, stray.share);
                let due = paced.min(shared).min(stray_count + BATCH);
                while stray_count < due {
                    let page = self.random.below(pages);
                    self.visit(page);
                    stray_count += 1;
                }
            }
        }
    }

    /// Checks and rewrites this thread's pages in random order.
    fn verify(&mut self, generation: u32) {
        let threads = self.shared.threads;
        let buffer = self.shared.memory.buffer();
        let own = buffer.page_count() / threads;
        while self.goes_on(generation) {
            for _ in 0..VERIFY_BATCH {
                let page = self.random.below(own.max(1)) * threads + self.index;
                if page >= buffer.page_count() {
                    continue;
                }
                let version = self.shared.check(page).wrapping_add(1);
                write_page(buffer, page, content_base(self.shared.seed, page, version));
                self.shared.versions[page].store(version, Ordering::Relaxed);
                self.local[self.shared.memory.counter(page)] += 1;
            }
        }
    }
}

/// Visits that are due after `elapsed` when each of `pages` is visited once per
/// `period`.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a positive number of visits, far below 2^53"
)]
fn visits_due(pages: usize, elapsed: Duration, period: Duration) -> usize {
    (pages as f64 * elapsed.as_secs_f64() / period.as_secs_f64().max(1e-3)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::numa::HugePages;
    use crate::units::Bytes;

    fn shared(verify: bool) -> Shared {
        let memory = Memory::new(Bytes::from_mib(1), HugePages::Refused, None, |b, page| {
            fill(b, 9, page);
        })
        .unwrap();
        Shared::new(memory, 9, 1, verify)
    }

    #[test]
    fn pace_follows_the_clock() {
        let second = Duration::from_secs(1);
        assert_eq!(visits_due(1000, second, second * 2), 500);
        assert_eq!(visits_due(1000, second * 3, second), 3000);
        assert_eq!(visits_due(1000, Duration::ZERO, second), 0);
    }

    #[test]
    fn what_was_written_is_found_and_a_flipped_bit_is_told() {
        let shared = shared(true);
        shared.check_all();
        assert_eq!(shared.mismatch_count(), 0);
        let word = &shared.memory.buffer().words()[3 * WORDS_PER_PAGE + 17];
        let good = word.fetch_xor(1 << 40, Ordering::Relaxed);
        shared.check_all();
        assert_eq!(
            shared.take_mismatches(),
            [Mismatch {
                page: 3,
                word: 17,
                expected: good,
                found: good ^ 1 << 40,
            }]
        );
    }

    #[test]
    fn a_page_of_an_older_version_is_told() {
        let shared = shared(true);
        shared.versions[5].store(1, Ordering::Relaxed);
        shared.check_all();
        assert_eq!(shared.mismatch_count(), WORDS_PER_PAGE as u64);
        assert_eq!(shared.take_mismatches().len() as u64, REPORTED);
    }

    #[test]
    fn rewriting_keeps_the_content_true() {
        let shared = shared(true);
        shared.enter(Phase {
            verify: true,
            ..Phase::default()
        });
        std::thread::scope(|scope| {
            scope.spawn(|| shared.work(0));
            while shared
                .versions
                .iter()
                .all(|v| v.load(Ordering::Relaxed) == 0)
            {
                std::thread::yield_now();
            }
            shared.stop();
        });
        shared.check_all();
        assert_eq!(shared.mismatch_count(), 0);
    }
}
