//! How moves are carried out: how many folios a call takes, and how many threads call.
//!
//! **Unit.** Nanoseconds; folios, of one kind for each value of a type here.
//!
//! **Problem.** A call of `move_pages(2)` has a fixed cost and one for each folio, and
//! both differ by ten times between machines and between small and huge pages. A call
//! must not hold its pages for too long, and many small calls pay the fixed cost often.
//! Two threads that call at once may move twice as much, or nothing more: they share
//! memory, locks of the kernel, and CPUs with the program whose pages they move. More
//! than two cost a program 30 % (WarpX-PM §4).
//!
//! **Approach.** [`CallCost`] is a line through what calls took, older ones counting less
//! and less: its slope by least squares over what a call took more than the one before it,
//! of another size. Calls far apart in time say nothing of size. [`ThreadChoice`] tries both numbers on stretches of
//! real work in turns (1 2 2 1 …), so that what else the machine does meets both, until
//! the ratio is known surely enough; and again later, ever more rarely while the answer
//! stays the same. It begins with one, and tries two only once there was much to move: a second thread
//! takes a CPU that may be the program's and makes it wait longer for pages, which a gain
//! has to be worth.
//!
//! **Properties.** No clock: times are told. A batch is of one folio at least. Two
//! threads are chosen only when they are surely faster by [`WORTH`].

use crate::units::Nanos;

/// Folios in one call at most, however fast they go.
pub const LARGEST_BATCH: usize = 4096;
/// What a call counts for after another one.
const KEPT: f64 = 0.95;
/// Two calls tell the fixed cost from the rest when their folios differ by this share of
/// the mean.
const SPREAD: f64 = 0.1;
/// A batch is no larger than so many times the largest of late: what a few small calls
/// say of a large one is a guess.
const GROWTH: f64 = 2.0;
/// What is left of a bad experience after a call that was not too long.
const CAUTION_KEPT: f64 = 0.7;
/// And what one counts for at most.
const CAUTION_MOST: f64 = 4.0;
/// Two threads take twice the CPU time while they move: they must bring this much.
pub const WORTH: f64 = 1.1;
/// Pairs of stretches before a trial can end: as many as must all be alike to make sure.
const PAIRS_MIN: usize = 5;
/// Pairs after which it ends.
const PAIRS_MAX: usize = 64;
/// Standard deviations that make sure ([`signed_rank`]). As that is asked after each pair, one trial in seven takes two
/// where they are faster by exactly [`WORTH`], and one in thirty or fewer where they are no faster
/// (docs/results/thread-trials.txt). With more, trials would miss oftener that two are faster.
const SURE: f64 = 2.0;
/// Stretches before the first trial and between two, at first and at most.
const REST: (u64, u64) = (64, 4096);

/// What a call costs: a fixed part, and so much for each of its folios.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallCost {
    /// Weighted sums over calls: of one, folios, time.
    sums: [f64; 3],
    /// And over pairs of calls of different size, one after the other: of the squares of
    /// how many folios more, of these times how much longer.
    pairs: [f64; 2],
    /// Folios of the last call, and its time.
    last: Option<(f64, f64)>,
    fixed: f64,
    each: f64,
    /// How many times longer than they should have calls took of late, at least 1.
    caution: f64,
    /// Folios of the largest call of late.
    largest: f64,
}

impl CallCost {
    /// Before anything is known: 300 µs a page, so that the first batch is
    /// small; a real machine needs 2 to 4, an emulated one 20 to 100.
    pub fn of_small_pages() -> Self {
        Self::guess(300_000.0)
    }

    /// Before anything is known: one huge page at a time.
    pub fn of_huge_pages() -> Self {
        Self::guess(20_000_000.0)
    }

    fn guess(each: f64) -> Self {
        Self {
            sums: [0.0; 3],
            pairs: [0.0; 2],
            last: None,
            fixed: 0.0,
            each,
            caution: 1.0,
            largest: f64::INFINITY,
        }
    }

    /// Folios that a call of `time` can take; at least one.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn batch(&self, time: Nanos) -> usize {
        let folios = (time.0 as f64 / self.caution - self.fixed) / self.each.max(1.0);
        // `as` saturates.
        (folios.min(GROWTH * self.largest) as usize).clamp(1, LARGEST_BATCH)
    }

    /// A call of so many folios took so much, and should have taken no more than `most`.
    pub fn learn(&mut self, folios: usize, took: Nanos, most: Nanos) {
        let (x, y) = (folios.max(1) as f64, took.0 as f64);
        let known = self.sums[0] > 0.0;
        // A call that was too long teaches at once, others slowly. One that was longer
        // than foreseen, but not too long, is no reason for smaller ones.
        let ratio = y / (most.0 as f64).max(1.0);
        self.caution = if folios > 1 && ratio > 1.0 {
            self.caution.max(1.0) * ratio.min(CAUTION_MOST)
        } else {
            1.0 + CAUTION_KEPT * (self.caution - 1.0)
        };
        self.caution = self.caution.min(CAUTION_MOST);
        self.largest = if known { x.max(KEPT * self.largest) } else { x };
        decay(&mut self.sums, [1.0, x, y]);
        let [count, folios, time] = self.sums;
        let (mean, cost) = (folios / count, time / count);
        let step = self.last.replace((x, y)).map(|(x0, y0)| (x - x0, y - y0));
        if let Some((dx, dy)) = step.filter(|(dx, _)| dx.abs() > SPREAD * mean) {
            decay(&mut self.pairs, [dx * dx, dx * dy]);
            self.fixed = cost - self.pairs[1] / self.pairs[0] * mean;
        }
        // The folios are never for nothing.
        self.fixed = self.fixed.clamp(0.0, 0.5 * cost);
        self.each = (cost - self.fixed) / mean;
    }

    /// What every call costs.
    pub fn fixed(&self) -> Nanos {
        Nanos::from_secs_f64(self.fixed / 1e9)
    }

    /// What a folio costs beyond that.
    pub fn each(&self) -> Nanos {
        Nanos::from_secs_f64(self.each / 1e9)
    }
}

fn decay<const N: usize>(sums: &mut [f64; N], new: [f64; N]) {
    for (sum, new) in sums.iter_mut().zip(new) {
        *sum = KEPT * *sum + new;
    }
}

/// Whether one thread calls or two.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadChoice {
    chosen: usize,
    /// Stretches until the next trial.
    rest: u64,
    /// Stretches between the last trial and the next one.
    length: u64,
    /// Logarithms of how much faster two were, of the pairs of the trial under way.
    pairs: Vec<f64>,
    /// The speed of the first half of a pair.
    half: Option<f64>,
}

impl Default for ThreadChoice {
    /// One, until two were tried.
    fn default() -> Self {
        Self {
            chosen: 1,
            rest: REST.0,
            length: REST.0,
            pairs: Vec::new(),
            half: None,
        }
    }
}

impl ThreadChoice {
    /// What was found best so far: 1 or 2.
    pub fn chosen(&self) -> usize {
        self.chosen
    }

    /// How many the next stretch is to have: 1 or 2.
    pub fn next(&self) -> usize {
        if self.rest > 0 {
            return self.chosen;
        }
        // 1 2, 2 1, 1 2 …
        let second = usize::from(self.half.is_some());
        1 + (self.pairs.len() + second) % 2
    }

    /// A stretch of so many pages took so much, with so many threads. One with other
    /// than the wanted number says nothing.
    pub fn learn(&mut self, threads: usize, pages: u64, took: Nanos) {
        if threads != self.next() || pages == 0 || took == Nanos::ZERO {
            return;
        }
        if self.rest > 0 {
            self.rest -= 1;
            return;
        }
        let speed = pages as f64 / took.0 as f64;
        let Some(first) = self.half.take() else {
            self.half = Some(speed);
            return;
        };
        let (one, two) = if threads == 2 {
            (first, speed)
        } else {
            (speed, first)
        };
        self.pairs.push((two / one).ln());
        self.decide();
    }

    fn decide(&mut self) {
        if self.pairs.len() < PAIRS_MIN {
            return;
        }
        let surely = signed_rank(&self.pairs, WORTH.ln());
        if self.pairs.len() < PAIRS_MAX && surely.abs() <= SURE {
            return;
        }
        let chosen = 1 + usize::from(surely > SURE);
        self.length = if chosen == self.chosen {
            (self.length * 2).min(REST.1)
        } else {
            REST.0
        };
        self.chosen = chosen;
        self.rest = self.length;
        self.pairs.clear();
    }
}

/// By how many standard deviations the values lie above `middle`: Wilcoxon's signed-rank statistic
/// (Biometrics Bulletin 1945), whatever their distribution, if it is as wide on both sides: what holds stretches up
/// meets one thread and two alike. Where others use the machine a
/// few stretches take many times as long as all else, which a mean with its error does not survive.
fn signed_rank(values: &[f64], middle: f64) -> f64 {
    let mut far: Vec<f64> = values.iter().map(|value| value - middle).collect();
    far.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
    let ranks = far.iter().zip(1_u32..);
    let above: f64 = ranks
        .filter(|(far, _)| **far > 0.0)
        .map(|(_, rank)| f64::from(rank))
        .sum();
    let count = values.len() as f64;
    let mean = count * (count + 1.0) / 4.0;
    (above - mean) / (mean * (2.0 * count + 1.0) / 6.0).sqrt()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CALL: Nanos = Nanos::from_millis(20);

    fn told(cost: &mut CallCost, fixed: u64, each: u64, folios: usize) {
        cost.learn(folios, Nanos(fixed + each * folios as u64), CALL);
    }

    #[test]
    fn batches_are_sized_by_time() {
        let mut cost = CallCost::of_small_pages();
        // 20 ms at 300 us a page.
        assert_eq!(cost.batch(CALL), 66);
        // 40 us a page in truth: twice as many in each call, up to 500.
        let mut sizes = vec![];
        for _ in 0..6 {
            let batch = cost.batch(CALL);
            sizes.push(batch);
            told(&mut cost, 0, 40_000, batch);
        }
        assert_eq!(sizes, [66, 132, 264, 500, 500, 500]);
        // Held up once, three times as long: a third at once, and slowly back.
        cost.learn(500, Nanos::from_millis(60), CALL);
        assert!(cost.batch(CALL) < 200);
        for _ in 0..200 {
            let batch = cost.batch(CALL);
            told(&mut cost, 0, 40_000, batch);
        }
        assert!(cost.batch(CALL) > 490);
        assert_eq!(CallCost::of_huge_pages().batch(Nanos::from_millis(1)), 1);
        cost.learn(1000, Nanos::ZERO, CALL);
        assert!(cost.batch(Nanos::from_secs(100)) <= LARGEST_BATCH);
    }

    #[test]
    fn the_fixed_cost_is_told_apart_where_batches_differ() {
        let mut cost = CallCost::of_small_pages();
        for size in [100, 200, 50, 400, 100, 300] {
            told(&mut cost, 2_000_000, 40_000, size);
        }
        assert!(cost.fixed().0.abs_diff(2_000_000) < 10, "{cost:?}");
        assert!(cost.each().0.abs_diff(40_000) < 10, "{cost:?}");
        // All alike from now on, and dearer: the fixed cost stays about what it was, since
        // one pair of calls alone lies across the change.
        for _ in 0..300 {
            told(&mut cost, 2_000_000, 80_000, 100);
        }
        assert!(cost.fixed().0 < 3_500_000, "{:?}", cost.fixed());
        assert!(cost.each().0.abs_diff(80_000) < 15_000, "{:?}", cost.each());
    }

    /// Trials and rests of `count` stretches where two threads are `gain` times as fast.
    fn after(choice: &mut ThreadChoice, count: usize, mut gain: impl FnMut(usize) -> f64) {
        for at in 0..count {
            let threads = choice.next();
            let speed = if threads == 2 { gain(at) } else { 1.0 };
            choice.learn(threads, 1000, Nanos::from_secs_f64(0.01 / speed));
        }
    }

    #[test]
    fn two_threads_are_taken_where_they_are_faster_and_given_up_where_not() {
        let mut choice = ThreadChoice::default();
        for _ in 0..REST.0 {
            assert_eq!(choice.next(), 1);
            after(&mut choice, 1, |_| 1.6);
        }
        assert_eq!(choice.chosen(), 1);
        let order: Vec<usize> = (0..10)
            .map(|_| {
                let next = choice.next();
                after(&mut choice, 1, |_| 1.6);
                next
            })
            .collect();
        assert_eq!(order, [1, 2, 2, 1, 1, 2, 2, 1, 1, 2]);
        assert_eq!((choice.chosen(), choice.next()), (2, 2));
        // They no longer are: found out at the next trial.
        after(&mut choice, 64 + 10, |_| 0.9);
        assert_eq!((choice.chosen(), choice.next()), (1, 1));
    }

    #[test]
    fn stretches_that_were_held_up_do_not_hide_what_two_threads_bring() {
        let mut choice = ThreadChoice::default();
        // Every fifth takes ten times as long, with one thread and with two.
        let stretches = 64 + 2 * PAIRS_MAX;
        for at in 0..stretches {
            let threads = choice.next();
            let held_up = if at % 5 == 0 { 10.0 } else { 1.0 };
            let speed = if threads == 2 { 1.3 } else { 1.0 };
            choice.learn(threads, 1000, Nanos::from_secs_f64(0.01 * held_up / speed));
            if choice.chosen() == 2 {
                return;
            }
        }
        panic!("{choice:?}");
    }

    #[test]
    fn ranks_tell_by_how_far_and_on_which_side_values_lie() {
        let five = [0.2, 0.3, 0.1, 0.4, 9.0];
        // 15 of 15 against 7.5, whose variance is 5 * 6 * 11 / 24.
        let surely = signed_rank(&five, 0.0);
        assert!((surely - 7.5 / 13.75_f64.sqrt()).abs() < 1e-12, "{surely}");
        let opposite = signed_rank(&five.map(|value| -value), 0.0);
        assert!((surely + opposite).abs() < 1e-12);
        assert!(signed_rank(&[-2.0, 1.0, 0.5, 0.6, -0.1, -0.2], 0.0).abs() < SURE);
    }

    #[test]
    fn one_thread_is_preferred_when_equal() {
        let mut choice = ThreadChoice::default();
        after(&mut choice, 2064, |at| if at % 3 == 0 { 0.7 } else { 1.2 });
        assert_eq!(choice.chosen(), 1);
        // Trials have become rare.
        assert!(choice.length >= 512, "{choice:?}");
    }

    #[test]
    fn what_was_done_with_another_number_says_nothing() {
        let mut choice = ThreadChoice::default();
        choice.learn(2, 1000, Nanos::from_millis(1));
        choice.learn(1, 0, Nanos::from_millis(1));
        choice.learn(1, 10, Nanos::ZERO);
        assert_eq!(choice, ThreadChoice::default());
    }

    proptest! {
        #[test]
        fn a_batch_is_bounded_whatever_calls_took(
            calls in prop::collection::vec((0_usize..5000, 0_u64..10_000_000_000), 0..100),
            time in 0_u64..10_000_000_000,
        ) {
            let mut cost = CallCost::of_small_pages();
            for (folios, took) in calls {
                cost.learn(folios, Nanos(took), Nanos(time));
                prop_assert!(cost.fixed >= 0.0 && cost.each >= 0.0, "{cost:?}");
                prop_assert!(cost.caution >= 1.0 && cost.caution.is_finite(), "{cost:?}");
            }
            prop_assert!((1..=LARGEST_BATCH).contains(&cost.batch(Nanos(time))));
        }

        #[test]
        fn a_call_is_as_long_as_it_may_be_and_no_longer(
            fixed in 0_u64..3_000_000, each in 1_000_u64..3_000_000, ends in 1_usize..60,
        ) {
            let mut cost = CallCost::of_small_pages();
            for call in 0..400 {
                // Now and then the rest of something.
                let batch = cost.batch(CALL);
                let batch = if call % 4 == 0 { batch.min(ends) } else { batch };
                told(&mut cost, fixed, each, batch);
            }
            let batch = cost.batch(CALL);
            let took = fixed + each * batch as u64;
            prop_assert!(took <= CALL.0 * 11 / 10 || batch == 1, "{took} of {batch}");
            let more = fixed + each * (batch as u64 + batch as u64 / 3 + 1);
            prop_assert!(more >= CALL.0 || batch == LARGEST_BATCH, "{batch} could be more");
        }

        #[test]
        fn noise_does_not_hide_what_is_much_faster(
            noise in prop::collection::vec(0.7_f64..1.4, 464), is_faster: bool,
        ) {
            let gain = if is_faster { 2.0 } else { 0.8 };
            let mut choice = ThreadChoice::default();
            after(&mut choice, 464, |at| gain * noise[at]);
            prop_assert_eq!(choice.chosen() == 2, is_faster);
        }
    }
}
