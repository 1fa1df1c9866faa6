//! The words of the bitmap that hold samples: their marks set, and read a window later.
//!
//! **Problem.** Marking a thousand pages takes some milliseconds, and so does looking at them. In a
//! window no longer than that each page would have waited as long as both take, whatever was asked for.
//!
//! **Approach.** Where the window is long, all are marked before the first is looked at. Where it is
//! short, a few are marked at a time ([`Words::glance`]): as many as can be in half of the window. Each
//! is looked at when its own window has passed.
//!
//! **Properties.** What was looked at more than two windows after it was marked cannot be told, and where
//! that happens to many, longer windows are asked for ([`Words::shortest`]). CPU time is that of one scan;
//! it lasts about four times as long as marking takes, and little more than [`LONGEST`] at most: what is left
//! then cannot be told either.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;

use super::super::clock::monotonic;
use super::super::kpageflags::{Flags, KpageFlags};
use super::super::pagemap::Pfn;
use super::bitmap::{Bitmap, CALL_WORDS, WORD_FRAMES};
use crate::tiering::windows::SHORTEST_AT_ONCE;
use crate::units::Nanos;

/// From so many heads in a word on, the flags of all of its frames are read by
/// one call (64 entries cost about as much as four calls).
const DENSE_HEADS: u32 = 4;
/// A glance lasts no longer. What is left cannot be told.
const LONGEST: Nanos = Nanos::from_secs(2);
/// A sleep this short is left out: the kernel makes it that much longer by itself (timer slack).
const NO_SLEEP: Nanos = Nanos(50_000);
/// The longest window in which pages are marked a few at a time, where marking all takes half of it.
const BRIEF: Nanos = Nanos::from_millis(100);
/// Where more than one in so many words is late, windows have to be longer.
const LATE: usize = 4;
/// After so many scans shorter ones are tried again; after twice as many if that was too short again.
const PATIENCE: u32 = 64;
const PATIENCE_MOST: u32 = 1 << 14;

/// One word.
#[derive(Clone, Copy, Debug)]
struct Word {
    index: u64,
    /// The heads of samples.
    wanted: u64,
    /// Of these, those whose marks read back as set.
    armed: u64,
    /// Of these, those still set at the end.
    idle: u64,
}

/// What a window has told of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// It did not have its mark, or was looked at too late.
    Untold,
    /// It still has it.
    Set,
    /// It no longer has it.
    Gone,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Words {
    /// In order.
    all: Vec<Word>,
    /// What marking one takes; zero until that is known.
    each: Nanos,
    /// The shortest window in which there is anything to be seen.
    least: Nanos,
    shortest: Nanos,
    /// Scans since windows had to be longer, and how many there have to be until shorter ones are tried.
    scans: u32,
    patience: u32,
    /// Whether windows are shorter than they had to be before, and have not been late since.
    is_trying: bool,
    /// The word that the next glance begins with.
    first: usize,
    buffer: Vec<u64>,
}

impl Words {
    pub(super) fn new() -> Self {
        Self {
            all: Vec::new(),
            each: Nanos::ZERO,
            least: SHORTEST_AT_ONCE,
            shortest: SHORTEST_AT_ONCE,
            scans: 0,
            patience: PATIENCE,
            is_trying: false,
            first: 0,
            buffer: Vec::new(),
        }
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
    }

    /// Adds a head, none of which is before the last one; the place of its word.
    pub(super) fn add(&mut self, head: u64) -> usize {
        let index = head / WORD_FRAMES;
        if self.all.last().is_none_or(|word| word.index != index) {
            self.all.push(Word {
                index,
                wanted: 0,
                armed: 0,
                idle: 0,
            });
        }
        let at = self.all.len() - 1;
        self.all[at].wanted |= bit(head);
        at
    }

    /// What became of the mark of a head, whose word is at `at`.
    pub(super) fn mark_of(&self, at: usize, head: u64) -> Mark {
        match self.all.get(at) {
            Some(word) if word.idle & bit(head) != 0 => Mark::Set,
            Some(word) if word.armed & bit(head) != 0 => Mark::Gone,
            _ => Mark::Untold,
        }
    }

    /// Windows may be so short from now on.
    pub(super) fn keep(&mut self, least: Nanos) {
        (self.least, self.shortest) = (least, least);
        (self.scans, self.patience, self.is_trying) = (0, PATIENCE, false);
    }

    /// The shortest window that can be kept.
    pub(super) fn shortest(&self) -> Nanos {
        if self.marking().0 > LONGEST.0 / 4 {
            // Time would run out for some.
            return SHORTEST_AT_ONCE;
        }
        self.shortest
    }

    /// What marking all takes.
    fn marking(&self) -> Nanos {
        Nanos(self.each.0.saturating_mul(self.all.len() as u64))
    }

    /// Whether in such a window a few have to be marked at a time: where it is short, so that each waits
    /// for as long as it is meant to, or where marking all takes much of it.
    pub(super) fn is_brief(&self, window: Nanos) -> bool {
        let all = self.marking();
        let takes_much = all.0 > window.0 / 2 && all.0 <= LONGEST.0 / 4;
        let is_short = window < SHORTEST_AT_ONCE || takes_much;
        window > Nanos::ZERO && window <= BRIEF && is_short
    }

    /// Sets all marks.
    pub(super) fn mark_all(&mut self, bitmap: &Bitmap, flags: &KpageFlags) -> io::Result<()> {
        self.count_scan();
        self.mark(bitmap, flags, 0..self.all.len(), CALL_WORDS)
    }

    /// Reads which of them are left.
    pub(super) fn look_at_all(&mut self, bitmap: &Bitmap) -> io::Result<()> {
        self.look(bitmap, 0..self.all.len())
    }

    /// Sets them and reads which are left, each after such a window.
    pub(super) fn glance(
        &mut self,
        bitmap: &Bitmap,
        flags: &KpageFlags,
        window: Nanos,
    ) -> io::Result<()> {
        for word in &mut self.all {
            (word.armed, word.idle) = (0, 0);
        }
        self.count_scan();
        // Should time run out, it is not always for the same ones.
        let (count, end) = (self.all.len(), monotonic() + LONGEST);
        let from = if self.first < count { self.first } else { 0 };
        let (mut asked, mut late) = (0, 0);
        for part in [from..count, 0..from] {
            let (done, of_these) = self.glance_at(bitmap, flags, (part.clone(), window, end))?;
            (asked, late) = (asked + done, late + of_these);
            self.first = part.start + done;
            if done < part.len() {
                break;
            }
        }
        // What time ran out for was late as well.
        self.learn(window, late + count - asked, count);
        Ok(())
    }

    /// The same with a part of them, until `end`. How many of them were marked, and how many of these looked at
    /// too late.
    fn glance_at(
        &mut self,
        bitmap: &Bitmap,
        flags: &KpageFlags,
        (part, window, end): (Range<usize>, Nanos, Nanos),
    ) -> io::Result<(usize, usize)> {
        // A fraction of those that are marked in half a window.
        let few = usize::try_from(window.0 / 8 / self.each.0.max(1)).unwrap_or(CALL_WORDS);
        let few = few.clamp(1, CALL_WORDS);
        let (mut next, mut late) = (part.start, 0);
        let mut waiting: VecDeque<(Nanos, Nanos, Range<usize>)> = VecDeque::new();
        while next < part.end && monotonic() < end {
            let began = monotonic();
            while next < part.end && monotonic().saturating_sub(began).0 < window.0 / 2 {
                let few = next..part.end.min(next + few);
                next = few.end;
                let before = monotonic();
                self.mark(bitmap, flags, few.clone(), few.len())?;
                waiting.push_back((before, monotonic() + window, few));
            }
            for (before, due, few) in waiting.drain(..) {
                let left = due.saturating_sub(monotonic());
                if left > NO_SLEEP {
                    std::thread::sleep(left.into());
                }
                self.look(bitmap, few.clone())?;
                // Whatever it was that took so long.
                if monotonic().saturating_sub(before).0 > 2 * window.0 {
                    late += few.len();
                    let words = self.all[few].iter_mut();
                    words.for_each(|word| (word.armed, word.idle) = (0, 0));
                }
            }
        }
        Ok((next - part.start, late))
    }

    /// What a glance at so many words, of which so many were late, says of the windows that can be kept.
    fn learn(&mut self, window: Nanos, late: usize, asked: usize) {
        if late * LATE > asked {
            let longer = self.shortest.max(window + window).min(SHORTEST_AT_ONCE);
            if longer > self.shortest && std::mem::take(&mut self.is_trying) {
                self.patience = self.patience.saturating_mul(2).min(PATIENCE_MOST);
            }
            self.shortest = longer;
            self.scans = 0;
        }
    }

    /// One more since windows had to be longer: at last shorter ones are tried again.
    fn count_scan(&mut self) {
        if self.shortest <= self.least {
            return;
        }
        self.scans += 1;
        if self.scans >= self.patience {
            self.shortest = self.least.max(Nanos(self.shortest.0 / 2));
            self.scans = 0;
            if std::mem::replace(&mut self.is_trying, true) {
                // The one before has held for so long.
                self.patience = PATIENCE;
            }
        }
    }

    /// Sets marks, run by run of so many words at most, and looks at the page flags whether they stuck.
    fn mark(
        &mut self,
        bitmap: &Bitmap,
        flags: &KpageFlags,
        part: Range<usize>,
        most: usize,
    ) -> io::Result<()> {
        let (count, began) = (part.len() as u64, monotonic());
        for run in runs_mut(&mut self.all[part], most.max(1)) {
            self.buffer.clear();
            self.buffer.extend(run.iter().map(|word| word.wanted));
            bitmap.write(run[0].index, &self.buffer)?;
            for word in run {
                word.idle = 0;
                word.armed = marked(flags, word.index, word.wanted)?;
                let missing = word.wanted & !word.armed;
                if missing != 0 {
                    bitmap.write(word.index, &[missing])?;
                    word.armed |= marked(flags, word.index, missing)?;
                }
            }
        }
        if let Some(each) = monotonic().saturating_sub(began).0.checked_div(count) {
            self.each = match self.each {
                Nanos::ZERO => Nanos(each),
                // One word that was slow is not the measure of all.
                known => Nanos((7 * known.0 + each.min(8 * known.0)) / 8),
            };
        }
        Ok(())
    }

    /// Reads which marks are left.
    fn look(&mut self, bitmap: &Bitmap, part: Range<usize>) -> io::Result<()> {
        for run in runs_mut(&mut self.all[part], CALL_WORDS) {
            self.buffer.clear();
            self.buffer.resize(run.len(), 0);
            bitmap.read(run[0].index, &mut self.buffer)?;
            for (word, &read) in run.iter_mut().zip(&self.buffer) {
                word.idle = word.armed & read;
            }
        }
        Ok(())
    }
}

/// A head's bit in its word.
fn bit(head: u64) -> u64 {
    1 << (head % WORD_FRAMES)
}

/// Which of the heads in `wanted`, of the word at `index`, have their mark now.
fn marked(flags: &KpageFlags, index: u64, wanted: u64) -> io::Result<u64> {
    let first = index * WORD_FRAMES;
    let mut found = 0;
    if wanted.count_ones() >= DENSE_HEADS {
        let mut all = [Flags::default(); 64];
        flags.read(Pfn(first), &mut all)?;
        for (bit, flags) in all.iter().enumerate() {
            found |= u64::from(flags.idle()) << bit;
        }
    } else {
        let mut rest = wanted;
        while rest != 0 {
            let bit = rest.trailing_zeros();
            let flags = flags.get(Pfn(first + u64::from(bit)))?;
            found |= u64::from(flags.idle()) << bit;
            rest &= rest - 1;
        }
    }
    Ok(found & wanted)
}

/// Cuts words, sorted by index, into runs of adjacent ones, so many at most.
fn runs_mut(words: &mut [Word], most: usize) -> impl Iterator<Item = &mut [Word]> {
    let mut rest = words;
    std::iter::from_fn(move || {
        let words = std::mem::take(&mut rest);
        if words.is_empty() {
            return None;
        }
        let adjacent = words
            .windows(2)
            .take(most - 1)
            .take_while(|pair| pair[0].index + 1 == pair[1].index)
            .count();
        let (run, tail) = words.split_at_mut(adjacent + 1);
        rest = tail;
        Some(run)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(heads: u64) -> Words {
        let mut words = Words::new();
        for head in 0..heads {
            assert_eq!(words.add(head * 512) as u64, head);
        }
        words
    }

    #[test]
    fn heads_of_one_word_share_it_and_tell_their_own() {
        let mut words = Words::new();
        assert_eq!([3, 63, 64, 200].map(|head| words.add(head)), [0, 0, 1, 2]);
        words.all[0].armed = bit(3) | bit(63);
        words.all[0].idle = bit(63);
        let marks = [3, 4, 63].map(|head| words.mark_of(0, head));
        assert_eq!(marks, [Mark::Gone, Mark::Untold, Mark::Set]);
        assert_eq!(words.mark_of(7, 3), Mark::Untold);
    }

    #[test]
    fn a_window_is_brief_where_it_is_short_or_marking_takes_half_of_it() {
        let mut words = words(1000);
        assert!(words.is_brief(Nanos::from_millis(19)));
        assert!(!words.is_brief(SHORTEST_AT_ONCE));
        words.each = Nanos(20_000);
        assert!(words.is_brief(Nanos::from_millis(39)));
        assert!(!words.is_brief(Nanos::from_millis(40)));
        words.each = Nanos(500_000);
        assert!(words.is_brief(BRIEF) && !words.is_brief(BRIEF + Nanos(1)));
        words.keep(Nanos(500_000));
        assert_eq!(words.shortest(), Nanos(500_000));
        // So many that time would run out: as long windows as ever, and all at once.
        words.each = Nanos(500_001);
        assert_eq!(words.shortest(), SHORTEST_AT_ONCE);
        assert!(!words.is_brief(BRIEF));
        // No window at all.
        assert!(!words.is_brief(Nanos::ZERO));
    }

    #[test]
    fn where_windows_are_not_kept_longer_ones_are_asked_for() {
        let mut words = words(100);
        assert_eq!(words.shortest(), SHORTEST_AT_ONCE);
        let least = Nanos(500_000);
        words.keep(least);
        words.learn(least, 25, 100);
        assert_eq!(words.shortest(), least);
        words.learn(least, 26, 100);
        assert_eq!(words.shortest(), least + least);
        // One that was longer than the shortest was not kept either.
        words.learn(Nanos::from_millis(4), 100, 100);
        assert_eq!(words.shortest(), Nanos::from_millis(8));
        words.learn(Nanos::from_millis(15), 100, 100);
        assert_eq!(words.shortest(), SHORTEST_AT_ONCE);
        // They are tried again, after twice as many scans of any kind where that fails.
        let scans = |words: &mut Words, count| (0..count).for_each(|_| words.count_scan());
        let half = Nanos(SHORTEST_AT_ONCE.0 / 2);
        for failed in 0..3 {
            scans(&mut words, (PATIENCE << failed) - 1);
            assert_eq!(words.shortest(), SHORTEST_AT_ONCE);
            scans(&mut words, 1);
            assert_eq!(words.shortest(), half);
            words.learn(half, 100, 100);
        }
        assert_eq!(words.patience, 8 * PATIENCE);
        // Where it holds, soon again, and they are no shorter than can be.
        for halvings in 1..10 {
            let patience = words.patience;
            scans(&mut words, patience);
            let half = Nanos(SHORTEST_AT_ONCE.0 >> halvings).max(least);
            assert_eq!(words.shortest(), half);
        }
        assert_eq!(words.patience, PATIENCE);
    }

    /// On files that keep what is written to them, as no kernel would.
    #[test]
    fn a_glance_waits_for_each_and_begins_elsewhere_if_it_ends_early() {
        let dir = tempfile::tempdir().unwrap();
        let root = crate::sys::root::Root::at(dir.path());
        let bitmap = root.sys(super::super::bitmap::BITMAP);
        std::fs::create_dir_all(bitmap.parent().unwrap()).unwrap();
        std::fs::write(&bitmap, vec![0; 1 << 16]).unwrap();
        std::fs::create_dir_all(dir.path().join("proc")).unwrap();
        // KPF_IDLE of every frame.
        let idle = (1_u64 << 25).to_ne_bytes().repeat(1 << 16);
        std::fs::write(root.proc("kpageflags"), idle).unwrap();
        let (bitmap, flags) = (
            Bitmap::open(&root).unwrap(),
            KpageFlags::open(&root).unwrap(),
        );
        let mut words = words(100);
        words.keep(Nanos(500_000));
        let window = Nanos::from_millis(5);
        let began = monotonic();
        words.glance(&bitmap, &flags, window).unwrap();
        assert!(monotonic().saturating_sub(began) >= window);
        let marks = (0..100).map(|at| words.mark_of(at, 512 * at as u64));
        // A host that is busy may have held some of them up.
        assert!(marks.clone().all(|mark| mark != Mark::Gone));
        assert_eq!(words.first, 0);
        // It goes round.
        words.first = 60;
        words.glance(&bitmap, &flags, window).unwrap();
        assert_eq!(words.first, 60);
        let set = (0..100).filter(|&at| words.mark_of(at, 512 * at as u64) == Mark::Set);
        assert!(set.count() > 50);
        // No time at all: none is marked.
        let none = words.glance_at(&bitmap, &flags, (7..100, window, Nanos::ZERO));
        assert_eq!(none.unwrap(), (0, 0));
        // Looked at far too late: nothing can be told of any.
        words.glance(&bitmap, &flags, Nanos(1)).unwrap();
        let mut marks = (0..100).map(|at| words.mark_of(at, 512 * at as u64));
        assert!(marks.all(|mark| mark == Mark::Untold));
    }
}
