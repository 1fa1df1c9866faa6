//! Where accesses fall: the share of an object's accesses that each of its folios gets.
//!
//! **Properties** (tests below): shares sum to 1 and are not negative; the same seed gives
//! the same shares.

use super::workload::Pattern;
use crate::tiering::rng::Rng;
use crate::units::Bytes;

/// Items of a Zipf pattern that lie each at a place of its own; the many behind are spread
/// evenly: no folio has few of them.
const HEAD: u64 = 1 << 20;
/// Terms of a sum that are added up one by one; the rest is an integral.
const EXACT: u64 = 64;

/// Adds `share`, in the given pattern, to the weights of an object's folios.
pub(super) fn spread(
    weights: &mut [f32],
    pattern: Pattern,
    folio: Bytes,
    share: f64,
    (turn, position): (u64, f64),
    seed: u64,
) {
    if share <= 0.0 || weights.is_empty() {
        return;
    }
    match pattern {
        Pattern::Uniform => even(weights, share),
        Pattern::Zipf {
            theta,
            item,
            scattered,
        } => {
            let items = (weights.len() as u64 * folio.0 / item.0).max(1);
            if scattered {
                scatter(weights, share, theta, items, seed);
            } else {
                by_rank(weights, share, theta, items);
            }
        }
        Pattern::Hot {
            share: hot,
            accesses,
            chunks,
            moves,
        } => {
            let seed = if moves {
                seed ^ ((turn + 1) << 32)
            } else {
                seed
            };
            concentrate(weights, share, (hot, accesses), chunks, seed);
        }
        Pattern::Sweep { window, .. } => sweep(weights, share, window, position),
    }
}

#[allow(clippy::cast_possible_truncation)]
fn even(weights: &mut [f32], share: f64) {
    let each = (share / weights.len() as f64) as f32;
    for weight in weights {
        *weight += each;
    }
}

/// Sums of 1 / k^theta from k = 1 on.
struct Harmonic {
    theta: f64,
    /// Of the first terms.
    exact: Vec<f64>,
}

impl Harmonic {
    fn new(theta: f64) -> Self {
        let mut exact = vec![0.0];
        for k in 1..=EXACT {
            exact.push(exact[exact.len() - 1] + (k as f64).powf(-theta));
        }
        Self { theta, exact }
    }

    /// Of the first `x` terms; where that is no whole number, of the next a part.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn upto(&self, x: f64) -> f64 {
        let whole = x.max(0.0).floor();
        if whole < EXACT as f64 {
            let at = whole as usize;
            return self.exact[at] + (self.exact[at + 1] - self.exact[at]) * (x - whole);
        }
        let first = EXACT as f64 + 0.5;
        let integral = if (self.theta - 1.0).abs() < 1e-9 {
            ((x + 0.5) / first).ln()
        } else {
            let power = |x: f64| x.powf(1.0 - self.theta);
            (power(x + 0.5) - power(first)) / (1.0 - self.theta)
        };
        self.exact[self.exact.len() - 1] + integral
    }
}

/// Items that lie anywhere. Where they are as large as a folio or larger, each has a place
/// of its own; smaller ones share folios as chance has it.
#[allow(clippy::cast_possible_truncation)]
fn scatter(weights: &mut [f32], share: f64, theta: f64, items: u64, seed: u64) {
    let harmonic = Harmonic::new(theta);
    let all = harmonic.upto(items as f64);
    let mut rng = Rng::new(seed);
    let folios = weights.len();
    if items <= folios as u64 {
        let items = items as usize;
        let mut places: Vec<usize> = (0..items).collect();
        for at in (1..items).rev() {
            places.swap(at, rng.below(at as u64 + 1) as usize);
        }
        let mut before = 0.0;
        for (rank, place) in places.into_iter().enumerate() {
            let sum = harmonic.upto((rank + 1) as f64);
            let mine = &mut weights[place * folios / items..(place + 1) * folios / items];
            even(mine, (sum - before) / all * share);
            before = sum;
        }
        return;
    }
    let mut left = 1.0;
    for rank in 1..=items.min(HEAD) {
        let part = (rank as f64).powf(-theta) / all;
        let at = rng.below(folios as u64) as usize;
        weights[at] += (part * share) as f32;
        left -= part;
    }
    even(weights, left.max(0.0) * share);
}

#[allow(clippy::cast_possible_truncation)]
fn by_rank(weights: &mut [f32], share: f64, theta: f64, items: u64) {
    let harmonic = Harmonic::new(theta);
    let all = harmonic.upto(items as f64);
    let each = items as f64 / weights.len() as f64;
    let mut before = 0.0;
    for (at, weight) in weights.iter_mut().enumerate() {
        let sum = harmonic.upto((at + 1) as f64 * each);
        *weight += ((sum - before) / all * share) as f32;
        before = sum;
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn concentrate(
    weights: &mut [f32],
    share: f64,
    (hot, accesses): (f64, f64),
    chunks: u64,
    seed: u64,
) {
    let folios = weights.len() as u64;
    let chunks = chunks.clamp(1, folios);
    let slot = folios as f64 / chunks as f64;
    let mut rng = Rng::new(seed);
    let mut is_hot = vec![false; weights.len()];
    for chunk in 0..chunks {
        let first = (chunk as f64 * slot) as u64;
        let length = ((slot * hot).round() as u64).clamp(1, slot as u64);
        let start = first + rng.below(slot as u64 - length + 1);
        let end = (start + length).min(folios);
        is_hot[start as usize..end as usize].fill(true);
    }
    let count = is_hot.iter().filter(|hot| **hot).count();
    let cold = weights.len() - count;
    let accesses = if cold == 0 { 1.0 } else { accesses };
    let each = [
        ((1.0 - accesses) * share / cold.max(1) as f64) as f32,
        (accesses * share / count.max(1) as f64) as f32,
    ];
    for (weight, hot) in weights.iter_mut().zip(is_hot) {
        *weight += each[usize::from(hot)];
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn sweep(weights: &mut [f32], share: f64, window: f64, position: f64) {
    let folios = weights.len();
    let length = ((folios as f64 * window).round() as usize).clamp(1, folios);
    let first = (folios as f64 * position) as usize;
    let each = (share / length as f64) as f32;
    for at in first..first + length {
        weights[at % folios] += each;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(folios: usize, pattern: Pattern) -> Vec<f32> {
        let mut weights = vec![0.0; folios];
        spread(&mut weights, pattern, Bytes(4096), 1.0, (0, 0.0), 1);
        weights
    }

    fn top(weights: &[f32], share: f64) -> f64 {
        let mut sorted: Vec<f64> = weights.iter().map(|w| f64::from(*w)).collect();
        sorted.sort_by(|a, b| b.total_cmp(a));
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let count = (weights.len() as f64 * share) as usize;
        sorted[..count].iter().sum()
    }

    #[test]
    fn zipf_is_that_of_a_sum() {
        // 4 M objects of 1 KiB, Zipf 0.99, counted one by one: by rank, and by pages of 4 KiB
        // that they are scattered in.
        let zipf = |scattered| Pattern::Zipf {
            theta: 0.99,
            item: Bytes(1024),
            scattered,
        };
        let pages = 1 << 20;
        let by_rank = top(&of(pages, zipf(false)), 0.125);
        assert!((by_rank - 0.859).abs() < 0.005, "{by_rank}");
        let scattered = top(&of(pages, zipf(true)), 0.125);
        assert!((scattered - 0.793).abs() < 0.02, "{scattered}");
    }

    #[test]
    fn a_hot_set_moves_with_its_turn() {
        let pattern = Pattern::Hot {
            share: 0.1,
            accesses: 0.9,
            chunks: 4,
            moves: true,
        };
        let at = |turn| {
            let mut weights = vec![0.0; 1000];
            spread(&mut weights, pattern, Bytes(4096), 1.0, (turn, 0.0), 1);
            weights
        };
        assert_ne!(at(0), at(1));
        assert!((top(&at(0), 0.1) - 0.9).abs() < 1e-3);
    }

    #[test]
    fn a_sweep_goes_round() {
        let mut weights = vec![0.0; 10];
        let pattern = Pattern::Sweep {
            window: 0.2,
            step: 0.5,
        };
        spread(&mut weights, pattern, Bytes(4096), 1.0, (0, 0.9), 1);
        assert!((weights[9] - 0.5).abs() < 1e-6);
        assert!((weights[0] - 0.5).abs() < 1e-6);
    }

    proptest! {
        #[test]
        fn shares_sum_to_one(
            folios in 1_usize..3000,
            kind in 0..5,
            theta in 0.0..2.0_f64,
            share in 0.001..1.0_f64,
            chunks in 1_u64..40,
            position in 0.0..1.0_f64,
        ) {
            let item = Bytes(1024);
            let pattern = match kind {
                0 => Pattern::Uniform,
                1 => Pattern::Zipf { theta, item, scattered: true },
                2 => Pattern::Zipf { theta, item, scattered: false },
                3 => Pattern::Hot { share, accesses: 0.9, chunks, moves: true },
                _ => Pattern::Sweep {
                    window: share,
                    step: 0.5,
                },
            };
            let mut weights = vec![0.0; folios];
            spread(&mut weights, pattern, Bytes(4096), 1.0, (3, position), 7);
            let sum: f64 = weights.iter().map(|w| f64::from(*w)).sum();
            prop_assert!((sum - 1.0).abs() < 1e-3, "{}", sum);
            prop_assert!(weights.iter().all(|w| *w >= 0.0));
        }
    }
}
