//! Merge sort of more than the fastest node holds: 40 Mi words and as many of scratch. Runs that
//! fit into the cache are sorted first; then each pass reads all and writes all, in order.

use super::random::Random;
use super::{Latencies, Size, Workload};

/// 320 MiB, and the same of scratch.
const WORDS: usize = 320 << 20 >> 3;
/// Words of a run that the modelled cache holds with its scratch: 256 KiB.
const RUN: usize = 1 << 15;

/// What is sorted.
pub(super) struct Sort {
    words: Vec<u64>,
    scratch: Vec<u64>,
    sum: u64,
    /// How often it is sorted, from the beginning.
    times: usize,
}

impl Sort {
    pub(super) fn new(size: Size) -> Self {
        let count = size.all(WORDS);
        let words = shuffled(count);
        Self {
            sum: sum(&words),
            scratch: vec![1; count],
            words,
            times: size.work(32) / 32,
        }
    }

    fn sort(&mut self) {
        for run in self.words.chunks_mut(RUN) {
            run.sort_unstable();
        }
        let mut width = RUN;
        while width < self.words.len() {
            let pairs = self.words.chunks(2 * width);
            for (pair, out) in pairs.zip(self.scratch.chunks_mut(2 * width)) {
                let (left, right) = pair.split_at(width.min(pair.len()));
                merge(left, right, out);
            }
            std::mem::swap(&mut self.words, &mut self.scratch);
            width *= 2;
        }
    }
}

fn shuffled(count: usize) -> Vec<u64> {
    let mut random = Random::new(5);
    (0..count).map(|_| random.next()).collect()
}

fn sum(words: &[u64]) -> u64 {
    words.iter().fold(0, |s, &w| s.wrapping_add(w))
}

/// `out` is as long as both together.
fn merge(left: &[u64], right: &[u64], out: &mut [u64]) {
    let (mut l, mut r) = (0, 0);
    for word in out {
        let from_left = r == right.len() || (l < left.len() && left[l] <= right[r]);
        if from_left {
            *word = left[l];
            l += 1;
        } else {
            *word = right[r];
            r += 1;
        }
    }
}

impl Workload for Sort {
    fn work(&mut self, _: &mut Latencies) -> u64 {
        for time in 0..self.times.max(1) {
            if time > 0 {
                let mut random = Random::new(5);
                self.words.iter_mut().for_each(|w| *w = random.next());
            }
            self.sort();
        }
        (self.times.max(1) * self.words.len()) as u64
    }

    fn check(&mut self) -> Result<(), String> {
        if !self.words.is_sorted() {
            return Err("not in order".into());
        }
        if sum(&self.words) != self.sum {
            return Err("not the words that were to be sorted".into());
        }
        Ok(())
    }
}
