//! The time of a picture: from the beginning of the first epoch on, over all runs.
//!
//! The monotonic clock goes on while no daemon runs, and begins anew when the machine
//! does: a run whose clock is behind follows at once on the one before.

use crate::units::Nanos;

/// A part of the picture's time: half-open, never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// When the epoch began.
    pub from: Nanos,
    /// When its scans had ended.
    pub to: Nanos,
}

/// Lays epochs one behind the other.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    run: u64,
    /// The clock at the last observation, and the picture's time then.
    last: Option<(Nanos, Nanos)>,
}

impl Timeline {
    /// When the epoch was that `run` observed at `at` and that had taken `elapsed`.
    pub fn next(&mut self, run: u64, at: Nanos, elapsed: Nanos) -> Stretch {
        let from = match self.last {
            None => Nanos::ZERO,
            Some((_, shown)) if run == self.run => shown,
            // Somebody else's clock is as good as long as it goes on.
            Some((clock, shown)) => shown + at.saturating_sub(elapsed).saturating_sub(clock),
        };
        let length = match self.last {
            Some((clock, _)) if run == self.run => at.saturating_sub(clock),
            _ => elapsed,
        };
        let stretch = Stretch {
            from,
            // Also one that took no time is to be seen.
            to: from + length.max(Nanos(1)),
        };
        self.run = run;
        self.last = Some((at, stretch.to));
        stretch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(n: u64) -> Nanos {
        Nanos::from_secs(n)
    }

    fn stretch(from: u64, to: u64) -> Stretch {
        Stretch {
            from: s(from),
            to: s(to),
        }
    }

    #[test]
    fn epochs_follow_each_other_from_zero_on() {
        let mut time = Timeline::default();
        assert_eq!(time.next(1, s(1010), s(10)), stretch(0, 10));
        // What moving took is the epoch's too.
        assert_eq!(time.next(1, s(1022), s(11)), stretch(10, 22));
        // Another daemon, 20 s later; and one after a boot.
        assert_eq!(time.next(2, s(1047), s(5)), stretch(42, 47));
        assert_eq!(time.next(3, s(30), s(10)), stretch(47, 57));
        assert_eq!(time.next(3, s(40), s(9)), stretch(57, 67));
    }

    #[test]
    fn a_clock_that_stands_or_goes_back_still_shows_something() {
        let mut time = Timeline::default();
        let first = time.next(1, s(5), Nanos::ZERO);
        let second = time.next(1, s(4), Nanos::ZERO);
        assert_eq!((first.from, first.to), (Nanos(0), Nanos(1)));
        assert_eq!((second.from, second.to), (Nanos(1), Nanos(2)));
    }
}
