//! When to ask a target which pages it writes.
//!
//! **Unit.** Nanoseconds, ours and the target's: of a walk those that passed, since nobody can tell how long of
//! these it held the target; else CPU time. Pages are of 4 KiB.
//!
//! **Problem.** Telling written pages apart means that the kernel write-protects all
//! of a process in one walk, during which a fault of the target waits, and that each
//! page's next write faults. That costs in proportion to the target, however few
//! samples we look at.
//!
//! **Approach.** An epoch is asked about now and then: each target saves up
//! [`SHARE`] of what watching it may cost, until that pays for the walk, as long as
//! walks of it took, and for as many faults as pages were seen written the last time
//! (at first: all). A walk that would take longer than [`LONGEST_WALK`] is not begun,
//! whatever was saved; what that is foreseen by fades to the guess.
//!
//! Walks of one epoch together are not foreseen to be longer than that either. What finding out takes
//! whether it may be asked is paid for afterwards by who may, and who may not, or has ended, or is paused, is let alone for [`REFUSED`] epochs.
//!
//! **Limits.** How long the first walk of a target takes is a guess. Of a target that
//! large nothing is learnt: at 10 to 20 ns a page on bare
//! metal that is 2 to 4 GiB in small pages, and a TiB in huge ones. What a fault costs
//! is a model.

use crate::tiering::observation::Forgotten;
use crate::units::Nanos;

/// Part of what watching a target may cost.
pub const SHARE: f64 = 0.1;
/// The longest that a fault of a target may have to wait for us.
pub const LONGEST_WALK: Nanos = Nanos::from_millis(10);
/// What a page's first write after the walk costs the target, where nobody measured it.
pub const WRITE_FAULT: Nanos = Nanos(1_000);
/// Cost of a walk per entry of the page tables until it is measured.
const FIRST_GUESS: f64 = 20.0;
/// What is kept in each epoch of how much slower a walk was that is not begun again for that.
const FADES: f64 = 0.99;

/// Who was not to be asked is let alone for so many epochs.
const REFUSED: u64 = 16;

/// Whoever was asked so often in vain is let alone for so many epochs, twice as many each time, at most so many.
const IN_VAIN: u32 = 16;
const RESTS: u64 = 64;
const RESTS_MOST: u64 = 1024;

/// What a walk has to look at, and what came of the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Entries of page tables: a huge page is one.
    pub entries: u64,
    /// Pages that are written in an epoch; `None`: not known yet.
    pub written: Option<u64>,
}

/// One target's savings.
#[derive(Clone, Debug, Default)]
pub struct Savings {
    saved: f64,
    /// Nanoseconds of a walk per entry.
    per_entry: Option<f64>,
    /// Epochs for which it is let alone.
    rests: u64,
}

impl Savings {
    /// Learns what came of a walk of so many entries.
    pub fn learn(&mut self, forgotten: &Forgotten, entries: u64) {
        let Forgotten { took, cost, .. } = forgotten;
        let per_entry = took.0 as f64 / entries.max(1) as f64;
        // One that seems to have been much slower than the last was interrupted or had to wait.
        let most = self.per_entry.map_or(f64::INFINITY, |last| 2.0 * last);
        self.per_entry = Some(per_entry.min(most));
        self.saved -= cost.saturating_sub(*took).0 as f64;
    }

    /// It was asked, and was not to be.
    pub fn refused(&mut self) {
        self.rests = REFUSED;
    }

    /// Saves a part of `allowance`, what watching the target may cost in an epoch;
    /// tells whether to ask about the next one, and pays for it if so. `fault` is what a page's
    /// first write then costs; what is `left` for walks is less after that.
    pub fn is_due(
        &mut self,
        allowance: Nanos,
        extent: Extent,
        fault: Nanos,
        left: &mut Nanos,
    ) -> bool {
        if self.rests > 0 {
            self.rests -= 1;
            return false;
        }
        let walk = self.per_entry.unwrap_or(FIRST_GUESS) * extent.entries as f64;
        if extent.entries == 0 || walk > LONGEST_WALK.0 as f64 {
            self.saved = 0.0;
            // One slow walk, as of a host that was busy, is not held against it for ever.
            if let Some(per_entry) = &mut self.per_entry
                && *per_entry > FIRST_GUESS
            {
                *per_entry = FADES * *per_entry + (1.0 - FADES) * FIRST_GUESS;
            }
            return false;
        }
        let written = extent.written.unwrap_or(extent.entries);
        let cost = walk + fault.0.saturating_mul(written) as f64;
        self.saved += allowance.0 as f64 * SHARE;
        if self.saved < cost {
            return false;
        }
        if walk > left.0 as f64 {
            // Next time: more than one is never saved.
            self.saved = cost;
            return false;
        }
        *left = left.saturating_sub(Nanos::from_secs_f64(walk / 1e9));
        self.saved = 0.0;
        true
    }
}

/// Whether it is of use to ask one target, where that is left to us: asked for some epochs and nothing done
/// about it, it is let alone for longer each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// How often it was asked since anything was done about it.
    asked: u32,
    /// Epochs for which it is let alone now, and the next time.
    rests: u64,
    next: u64,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            asked: 0,
            rests: 0,
            next: RESTS,
        }
    }
}

impl Patience {
    /// An epoch is over, of which something `was_of_use` or not: whether it may be asked about the next one.
    pub fn lasts(&mut self, was_of_use: bool) -> bool {
        if was_of_use {
            *self = Self::default();
        }
        self.rests = self.rests.saturating_sub(1);
        self.rests == 0
    }

    /// It is asked.
    pub fn asks(&mut self) {
        self.asked += 1;
        if self.asked >= IN_VAIN {
            (self.asked, self.rests) = (0, self.next);
            self.next = (2 * self.next).min(RESTS_MOST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiering::observation::TargetId;

    const SMALL: Extent = Extent {
        entries: 16_384,
        written: Some(1_000),
    };

    fn walk(took: Nanos) -> Forgotten {
        Forgotten {
            target: TargetId(1),
            took,
            cost: took,
        }
    }

    #[test]
    fn it_is_asked_as_often_as_is_paid_for() {
        let mut savings = Savings::default();
        savings.learn(&walk(Nanos(16_384 * 20)), 16_384);
        // A walk of 0.33 ms and a thousand faults, of 0.5 ms an epoch.
        let allowance = Nanos::from_millis(5);
        let asked = (0..300)
            .filter(|_| savings.is_due(allowance, SMALL, WRITE_FAULT, &mut { LONGEST_WALK }))
            .count();
        assert_eq!(asked, 100);
    }

    #[test]
    fn finding_out_whether_it_may_be_asked_is_paid_for() {
        let mut savings = Savings::default();
        let allowance = Nanos::from_millis(50);
        let mut epochs_until_due = || {
            let due =
                |_: &u32| savings.is_due(allowance, SMALL, WRITE_FAULT, &mut { LONGEST_WALK });
            let epoch = (0..100).find(due);
            // A walk of 0.3 ms, after 20 ms of looking.
            let mut seen = walk(Nanos(16_384 * 20));
            seen.cost = seen.took + Nanos::from_millis(20);
            savings.learn(&seen, SMALL.entries);
            epoch
        };
        assert_eq!(epochs_until_due(), Some(0));
        assert_eq!(epochs_until_due(), Some(4));
    }

    #[test]
    fn who_is_not_to_be_asked_is_let_alone_for_a_while() {
        let mut savings = Savings::default();
        let mut asked = Vec::new();
        let mut left = LONGEST_WALK;
        for epoch in 0..40 {
            if savings.is_due(Nanos::from_secs(1), SMALL, WRITE_FAULT, &mut left) {
                asked.push(epoch);
                savings.refused();
            }
        }
        assert_eq!(asked, [0, 17, 34]);
        let each = LONGEST_WALK.saturating_sub(left).0 as f64 / 3.0;
        assert!((each - 16_384.0 * FIRST_GUESS).abs() < 10.0, "{each}");
    }

    #[test]
    fn a_walk_that_was_interrupted_is_believed_in_part() {
        let mut savings = Savings::default();
        savings.learn(&walk(Nanos::from_millis(4)), 200_000);
        savings.learn(&walk(Nanos::from_millis(24)), 200_000);
        let extent = Extent {
            entries: 200_000,
            written: Some(0),
        };
        let allowance = Nanos::from_secs(1);
        assert!(savings.is_due(allowance, extent, WRITE_FAULT, &mut { LONGEST_WALK }));
    }

    #[test]
    fn one_slow_walk_is_not_held_against_it_for_ever() {
        let mut savings = Savings::default();
        // 60 ms, and 0.3 as it is guessed.
        savings.learn(&walk(Nanos::from_millis(60)), SMALL.entries);
        let allowance = Nanos::from_millis(50);
        let first = (0..1000)
            .find(|_| savings.is_due(allowance, SMALL, WRITE_FAULT, &mut { LONGEST_WALK }));
        assert!(
            first.is_some_and(|at| (150..250).contains(&at)),
            "{first:?}"
        );
    }

    #[test]
    fn as_long_as_it_is_not_known_all_may_be_written() {
        let mut savings = Savings::default();
        let new = Extent {
            written: None,
            ..SMALL
        };
        let allowance = Nanos::from_millis(50);
        let first = (0..100)
            .find(|_| savings.is_due(allowance, new, WRITE_FAULT, &mut { LONGEST_WALK }))
            .unwrap();
        // 16.4 ms of faults and 0.3 ms of a walk, of 5 ms an epoch.
        assert_eq!(first, 3);
    }

    #[test]
    fn a_walk_that_would_take_too_long_is_not_begun() {
        let mut savings = Savings::default();
        let large = Extent {
            entries: 1 << 20,
            written: Some(0),
        };
        assert!((0..1000).all(|_| !savings.is_due(
            Nanos::from_secs(1),
            large,
            WRITE_FAULT,
            &mut { LONGEST_WALK }
        )));
        // One that was quicker than thought is.
        savings.learn(&walk(Nanos::from_millis(2)), 1 << 19);
        assert!(
            savings.is_due(Nanos::from_secs(1), large, WRITE_FAULT, &mut {
                LONGEST_WALK
            })
        );
        assert!(
            !savings.is_due(Nanos::from_secs(1), Extent::default(), WRITE_FAULT, &mut {
                LONGEST_WALK
            })
        );
    }

    /// In which of so many epochs it is asked, if nothing else stands against it.
    fn asked_in(epochs: u64, is_of_use: impl Fn(u64) -> bool) -> Vec<u64> {
        let mut patience = Patience::default();
        let is_asked = |&epoch: &u64| {
            let asks = patience.lasts(is_of_use(epoch));
            if asks {
                patience.asks();
            }
            asks
        };
        (0..epochs).filter(is_asked).collect()
    }

    #[test]
    fn who_is_asked_in_vain_is_let_alone_for_longer_each_time() {
        let asked = asked_in(1100, |_| false);
        let gaps = asked.windows(2).map(|two| two[1] - two[0]);
        let gaps: Vec<u64> = gaps.filter(|&gap| gap > 1).collect();
        assert_eq!(gaps, [64, 128, 256, 512]);
        assert_eq!(asked.len(), 5 * IN_VAIN as usize);
        // As long as something comes of it at times it is asked on.
        let asked = asked_in(1000, |epoch| epoch % u64::from(IN_VAIN) == 3);
        assert_eq!(asked.len(), 1000);
    }

    #[test]
    fn walks_of_one_epoch_are_no_longer_than_one_may_be() {
        const COUNT: usize = 40;
        let mut all = vec![Savings::default(); COUNT];
        let mut asked = [0; COUNT];
        for epoch in 0..COUNT {
            let mut left = LONGEST_WALK;
            // Of 0.33 ms each: thirty in one epoch.
            for at in (0..COUNT).map(|i| (i + epoch) % COUNT) {
                let due = all[at].is_due(Nanos::from_secs(1), SMALL, WRITE_FAULT, &mut left);
                asked[at] += usize::from(due);
            }
        }
        assert!(asked.iter().all(|&times| times == 30), "{asked:?}");
    }
}
