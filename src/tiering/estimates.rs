//! How often memory was accessed, from how many scans saw a sample of it.
//!
//! **Unit.** Accesses of a folio per epoch.
//!
//! **Problem.** [`Rates`](super::windows::Rates) turns a *mean* count back into a rate. Of a
//! few samples of memory that is not all alike that says too little or too much: the
//! rate grows faster than the count, so that what one count stands for must not be taken of
//! a mean, nor the mean of what single counts stand for. Shares of accesses are sums over
//! memory of every kind, so what is wanted of a single sample is a number that is right
//! *on average*, whatever its rate.
//!
//! **Approach.** A folio accessed `r` times per epoch is seen in `k` of the windows with a
//! probability `P(k, r)`. Programs touch memory by chance (Poisson) and in turns (at equal
//! intervals, so that what was in one window is not in the next). Each count gets
//! the number `f(k)`, none for none, with which `Σ P(k, r) f(k)` comes next to `r`, relative to it,
//! for both, over all rates that the windows tell apart: linear least squares, hardly held (ridge)
//! to smooth values, since with many windows neighbouring counts could swing against each other.
//! Of three windows that taper by 16 to 1 they are 1, 3.2 and 21. Where what is idle in the first
//! window is not looked at again ([`LookRule::Sequential`]), `P` is another, and they are 1.3, 2.9
//! and 21.
//!
//! What it is off by in spite of that, over all these rates and both ways, is the count's *doubt*:
//! the mean, by how probable the count is at each.
//!
//! **Limits.** Beyond one access or two in the shortest window all counts are full: the sum
//! says at least so much. Accesses that come in bursts are taken for fewer. What is accessed
//! in turns, three times per epoch and more, may be taken for a third more; which of
//! the two it is, counts cannot tell.
//!
//! **Properties** (tests below): with three windows what is accessed up to twice per epoch is
//! right to a tenth, and all that windows tell apart to a half; counts of every kind of
//! memory add up.

use super::bounds::{Fullness, Reading};
use super::settings::LookRule;
use super::windows;

/// The lowest rate that is fitted.
const LEAST: f64 = 0.02;
/// The highest: so many accesses in the shortest window.
const MOST: f64 = 1.5;
/// Rates that are fitted, at equal steps of their logarithm.
const POINTS: i32 = 40;
/// Where the first of accesses in turns may fall: as many places.
const PHASES: u16 = 256;
/// Accesses in the shortest window up to which full counts are explained by counts one short
/// of it: about what the ridge and [`MOST`] leave right on average. There it is half of them.
const TOLD_APART: f64 = 0.7;
/// A mean count this near to all scans is full.
const FULL_FROM: f64 = 0.25;
/// How hard it is held to what it begins with.
const RIDGE: f64 = 0.03;

/// What counts of scans stand for, one by one.
#[derive(Clone, Debug)]
pub struct Estimates {
    /// Of each number of scans that could tell, from 1 on.
    by_known: Vec<Numbers>,
}

/// Of so many scans that could tell.
#[derive(Clone, Debug)]
struct Numbers {
    /// Of each count, from 1 on: what it stands for, and how far that is off.
    counts: Vec<(f64, f64)>,
    /// Full counts that go with one that is one short of it, at the highest rate that
    /// is told apart.
    explains: f64,
}

impl Estimates {
    /// Of so many scans in windows of such a span, which choose by this rule what to look at.
    pub fn new(span: f64, scans: u8, rule: LookRule) -> Self {
        let scans = scans.max(1);
        let by_known = (1..=scans).map(|known| {
            let shares: Vec<f64> = if known == scans || rule == LookRule::Sequential {
                // What was looked at later had the last ones.
                (scans - known..scans)
                    .map(|scan| windows::share(span, scans, scan))
                    .collect()
            } else {
                // Which of them could tell is not known.
                vec![1.0 / f64::from(scans); known.into()]
            };
            Numbers::new(&shares, rule)
        });
        Self {
            by_known: by_known.collect(),
        }
    }

    /// What was seen in `accessed` of the `known` scans that could tell says of a page, where
    /// that is of a folio of so many (as log2); `None` if none could.
    pub fn reading(&self, accessed: u8, known: u8, order: u8) -> Option<Reading> {
        let last = self.by_known.len().checked_sub(1)?;
        let numbers = &self.by_known[usize::from(known).checked_sub(1)?.min(last)];
        // An access of a huge page is one of one of its pages.
        let pages = f64::from(1_u32 << order.min(20));
        let (rate, doubt) = numbers.of(accessed);
        Some(Reading {
            rate: rate / pages,
            least: numbers.of(1).0 / pages,
            doubt: doubt / pages,
            fullness: if accessed >= known {
                Fullness::Full
            } else if accessed + 1 == known {
                Fullness::Almost(numbers.explains)
            } else {
                Fullness::Less
            },
        })
    }

    /// The same of a page that had such a mean count when it was last looked at, and is held
    /// to be accessed so often.
    pub fn remembered(&self, count: f64, rate: f64) -> Reading {
        let scans = self.by_known.len() as f64;
        let (number, doubt) = self.by_known.last().map_or((0.0, 0.0), |n| n.of(1));
        Reading {
            rate,
            least: number,
            // As that of the lowest count.
            doubt: if number > 0.0 {
                rate * doubt / number
            } else {
                0.0
            },
            fullness: if count > scans - FULL_FROM {
                Fullness::Full
            } else {
                Fullness::Less
            },
        }
    }
}

impl Numbers {
    fn new(shares: &[f64], rule: LookRule) -> Self {
        let shortest = shares.iter().copied().fold(1.0, f64::min);
        let counts = by_chance(shares, rule, TOLD_APART / shortest);
        let [.., almost, full] = counts[..] else {
            unreachable!("there is a scan")
        };
        Self {
            counts: fit(shares, rule),
            explains: full / almost,
        }
    }

    /// What a count stands for, and how far that is off.
    fn of(&self, accessed: u8) -> (f64, f64) {
        let Some(at) = usize::from(accessed).checked_sub(1) else {
            return (0.0, 0.0);
        };
        let counts = &self.counts;
        (counts.get(at).or(counts.last()).copied()).unwrap_or((0.0, 0.0))
    }
}

/// How probable each count is, from none on, of what is accessed by chance.
fn by_chance(shares: &[f64], rule: LookRule, rate: f64) -> Vec<f64> {
    let mut all = vec![1.0];
    let mut idle = 0.0;
    for (scan, share) in shares.iter().enumerate() {
        let seen = 1.0 - (-rate * share).exp();
        all.push(0.0);
        for k in (0..all.len()).rev() {
            let below = if k > 0 { all[k - 1] } else { 0.0 };
            all[k] = all[k] * (1.0 - seen) + below * seen;
        }
        if scan == 0 && rule == LookRule::Sequential {
            // Not looked at again.
            idle = std::mem::take(&mut all[0]);
        }
    }
    all[0] += idle;
    all
}

/// The same of what is accessed at equal intervals, in windows that follow each other,
/// wherever the first access falls.
fn in_turns(shares: &[f64], rule: LookRule, rate: f64) -> Vec<f64> {
    let mut all = vec![0.0; shares.len() + 1];
    for phase in 0..PHASES {
        // In intervals between two accesses, the first of which is at 0.
        let mut end = -(f64::from(phase) + 0.5) / f64::from(PHASES);
        let mut count = 0;
        for (scan, share) in shares.iter().enumerate() {
            let begin = end;
            end += share * rate;
            count += usize::from(begin.ceil() < end);
            if scan == 0 && count == 0 && rule == LookRule::Sequential {
                break;
            }
        }
        all[count] += 1.0 / f64::from(PHASES);
    }
    all
}

/// The number of each count, from 1 on, and how far it is off.
fn fit(shares: &[f64], rule: LookRule) -> Vec<(f64, f64)> {
    let n = shares.len();
    let shortest = shares.iter().copied().fold(1.0, f64::min);
    let most = MOST / shortest;
    // What they begin with: about what the counts stand for.
    let begin: Vec<f64> = (1..=n)
        .map(|k| k as f64 + most * (k as f64 / n as f64).powi(2))
        .collect();
    let step = (most / LEAST).ln() / f64::from(POINTS - 1);
    let rates = (0..POINTS).map(|i| LEAST * (step * f64::from(i)).exp());
    let rows: Vec<(Vec<f64>, f64)> = rates
        .flat_map(|rate| {
            // In turns, all that is accessed in each of the windows looks the same.
            let in_turns = (rate * shortest <= 1.0).then(|| in_turns(shares, rule, rate));
            let ways = [Some(by_chance(shares, rule, rate)), in_turns];
            ways.into_iter().flatten().map(move |counts| (rate, counts))
        })
        .map(|(rate, counts)| {
            let row = counts[1..].iter().zip(&begin);
            (row.map(|(p, begin)| p * begin / rate).collect(), rate)
        })
        .collect();
    // The normal equations, of factors on what they begin with; the last column is the
    // right-hand side.
    let mut equations: Vec<Vec<f64>> = (0..n)
        .map(|i| {
            let product = |j: usize| rows.iter().map(|(row, _)| row[i] * row[j]).sum::<f64>();
            let mut equation: Vec<f64> = (0..n).map(product).collect();
            equation[i] += RIDGE;
            equation.push(rows.iter().map(|(row, _)| row[i]).sum::<f64>() + RIDGE);
            equation
        })
        .collect();
    solve(&mut equations);
    let factors: Vec<f64> = equations
        .iter()
        .map(|equation| equation[n].max(0.0))
        .collect();
    // Of each row how far it is from right, and then of each count that of the rows in which it
    // is met.
    let off = |row: &[f64]| {
        let found: f64 = row.iter().zip(&factors).map(|(p, x)| p * x).sum();
        (found - 1.0).abs()
    };
    let mut met = vec![(0.0, 0.0); n];
    for (row, rate) in &rows {
        let off = off(row);
        for ((sum, all), (p, begin)) in met.iter_mut().zip(row.iter().zip(&begin)) {
            let probable = p * rate / begin;
            *sum += probable * off;
            *all += probable;
        }
    }
    let doubts = met
        .into_iter()
        .map(|(sum, all): (f64, f64)| sum / all.max(f64::MIN_POSITIVE));
    let numbers = factors.iter().zip(&begin).map(|(x, begin)| x * begin);
    numbers
        .zip(doubts)
        .map(|(number, doubt)| (number, number * doubt))
        .collect()
}

/// Solves equations of a positive definite matrix in place: the last column becomes the
/// solution. Such a matrix needs no pivoting.
fn solve(equations: &mut [Vec<f64>]) {
    for i in 0..equations.len() {
        let (before, rest) = equations.split_at_mut(i);
        let Some((row, after)) = rest.split_first_mut() else {
            return;
        };
        let pivot = row[i];
        for value in &mut row[i..] {
            *value /= pivot;
        }
        for other in before.iter_mut().chain(after) {
            let factor = other[i];
            for (value, mine) in other[i..].iter_mut().zip(&row[i..]) {
                *value -= factor * mine;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What such a count stands for.
    fn of(estimates: &Estimates, accessed: u8, known: u8) -> Option<f64> {
        let reading = estimates.reading(accessed, known, 0);
        reading.map(|reading| reading.rate)
    }

    /// What the estimate is on average of memory whose counts are so probable.
    fn mean(estimates: &Estimates, counts: &[f64]) -> f64 {
        let known = u8::try_from(counts.len() - 1).unwrap();
        (0..)
            .zip(counts)
            .map(|(k, p): (u8, &f64)| p * of(estimates, k, known).unwrap())
            .sum()
    }

    #[test]
    fn three_windows_are_right_on_average() {
        let spans = [1.0, 16.0, 64.0].map(|span| (span, LookRule::Repeated));
        let others = [16.0, 64.0].map(|span| (span, LookRule::Sequential));
        for (span, rule) in spans.into_iter().chain(others) {
            let estimates = Estimates::new(span, 3, rule);
            let shares: Vec<f64> = (0..3).map(|scan| windows::share(span, 3, scan)).collect();
            let most = 0.6 / shares[2];
            for rate in [0.02, 0.1, 0.3, 1.0, 2.0, 3.0, most] {
                let found = mean(&estimates, &by_chance(&shares, rule, rate)) / rate;
                assert!((0.7..1.1).contains(&found), "{span}: {rate} {found}");
                assert!(
                    span < 2.0 || rate > 2.0 || found > 0.9,
                    "{span}: {rate} {found}"
                );
                if rate * shares[2] <= 1.0 {
                    let found = mean(&estimates, &in_turns(&shares, rule, rate)) / rate;
                    assert!((0.75..1.5).contains(&found), "{span}: {rate} {found}");
                    // The shorter the windows after it, the less the first one leaves them.
                    let least = if rule == LookRule::Sequential {
                        0.85
                    } else {
                        0.9
                    };
                    let is_close = (least..1.1).contains(&found);
                    assert!(
                        span < 2.0 || rate > 2.0 || is_close,
                        "{span}: {rate} {found}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_could_not_be_told_says_nothing() {
        let estimates = Estimates::new(16.0, 3, LookRule::Repeated);
        assert_eq!(of(&estimates, 0, 0), None);
        assert_eq!(of(&estimates, 0, 3), Some(0.0));
        // One that was looked at once, in a third of the epoch.
        assert!((2.0..4.0).contains(&of(&estimates, 1, 1).unwrap()));
    }

    #[test]
    fn doubts_are_small_where_windows_tell_rates_apart() {
        let estimates = Estimates::new(16.0, 3, LookRule::Sequential);
        for (accessed, most) in [(0, 0.01), (1, 0.15), (2, 0.3), (3, 0.6)] {
            let reading = estimates.reading(accessed, 3, 0).unwrap();
            let off = reading.doubt / reading.rate.max(1e-9);
            println!("{accessed}: {:.2}, off by {off:.3}", reading.rate);
            assert!(off <= most, "{accessed}: {off}");
        }
        // Of a huge page it is one of 512.
        let huge = estimates.reading(3, 3, 9).unwrap();
        let small = estimates.reading(3, 3, 0).unwrap();
        assert!((huge.rate * 512.0 - small.rate).abs() < 1e-9);
        assert_eq!(small.fullness, Fullness::Full);
        assert_eq!(estimates.reading(1, 3, 0).unwrap().fullness, Fullness::Less);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Hot and cold memory together: the sum is that of both.
        #[test]
        fn sums_are_right_whatever_is_mixed(
            scans in 2_u8..20, span in 1.0_f64..200.0, is_sequential: bool,
            parts in proptest::collection::vec((0.0_f64..1.0, 0.02_f64..1.0), 1..6),
        ) {
            let rule = if is_sequential { LookRule::Sequential } else { LookRule::Repeated };
            let estimates = Estimates::new(span, scans, rule);
            let shares: Vec<f64> = (0..scans).map(|s| windows::share(span, scans, s)).collect();
            let most = 1.0 / shares[usize::from(scans) - 1];
            let (mut true_sum, mut found) = (0.0, 0.0);
            for (weight, level) in parts {
                let rate = LEAST * (most / LEAST).powf(level);
                true_sum += weight * rate;
                found += weight * mean(&estimates, &by_chance(&shares, rule, rate));
            }
            // On a grid of rates and spans the extremes were 0.55 with two windows, 0.62 with more, and 1.25.
            let least = if scans == 2 { 0.5 } else { 0.6 };
            prop_assert!(
                found <= 1.3 * true_sum && found >= least * true_sum,
                "{found} {true_sum}"
            );
        }

        #[test]
        fn numbers_are_sane(scans in 1_u8..=20, span in 1.0_f64..1e4, accessed: u8, known: u8) {
            let estimates = Estimates::new(span, scans, LookRule::Sequential);
            let told = of(&estimates, accessed, known);
            prop_assert_eq!(told.is_none(), known == 0);
            prop_assert!(told.is_none_or(|rate| rate.is_finite() && rate >= 0.0));
        }
    }
}
