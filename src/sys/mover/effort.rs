//! What tries in vain may cost.
//!
//! **Unit.** CPU time of ours, wall-clock time between.
//!
//! **Problem.** Nobody tells which pages are pinned before they are tried, and to try one costs
//! as much as many moves. A program that pins other pages all the time would cost a CPU.
//!
//! **Approach.** Calls with pages that stayed are counted by the share of these. All processes together
//! have [`SHARE`] of a CPU for it, each as much as any other of those that need it, and may save up
//! [`SAVED`]. A process that has spent more is left alone until that is paid back.

use std::collections::HashMap;
use std::time::Instant;

use crate::units::{Nanos, Pid};

/// Of one CPU.
const SHARE: f64 = 0.02;
/// Saved up by a process at most.
const SAVED: Nanos = Nanos::from_millis(250);

/// CPU time that is left to a process for tries in vain, seconds; below 0: to be paid back.
#[derive(Debug)]
pub(super) struct Effort {
    at: Instant,
    left: HashMap<Pid, f64>,
}

impl Effort {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            at: now,
            left: HashMap::new(),
        }
    }

    /// Time has passed. Who has saved up all is no longer counted.
    pub(super) fn next_turn(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
        let each = passed * SHARE / self.left.len().max(1) as f64;
        self.left.retain(|_, left| {
            *left += each;
            *left < SAVED.as_secs_f64()
        });
    }

    /// So much was in vain. Whether there is no more for this process now.
    pub(super) fn spend(&mut self, pid: Pid, time: Nanos) -> bool {
        let left = self.left.entry(pid).or_insert(SAVED.as_secs_f64());
        *left -= time.as_secs_f64();
        *left <= 0.0
    }

    pub(super) fn is_spent(&self, pid: Pid) -> bool {
        self.left.get(&pid).is_some_and(|left| *left <= 0.0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn tries_in_vain_cost_their_share_and_nobody_pays_for_another() {
        let mut now = Instant::now();
        let mut effort = Effort::new(now);
        let (bad, good) = (Pid(1), Pid(2));
        let mut spent = Nanos::ZERO;
        for _ in 0..600 {
            now += Duration::from_secs(1);
            effort.next_turn(now);
            while !effort.is_spent(bad) {
                effort.spend(bad, Nanos::from_millis(10));
                spent += Nanos::from_millis(10);
            }
            assert!(!effort.is_spent(good));
        }
        let most = 600.0 * SHARE + SAVED.as_secs_f64() + 0.01;
        assert!(spent.as_secs_f64() <= most, "{spent:?}");
        // Then it is not counted any more.
        effort.next_turn(now + Duration::from_secs(60));
        assert!(effort.left.is_empty());
    }
}
