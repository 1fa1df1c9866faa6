//! Whether the loop makes progress.
//!
//! The loop beats before and after each turn and whenever its sleep is
//! interrupted. An interval may last an hour, so the service interrupts the
//! sleep every few seconds: a loop that sleeps answers, one that hangs does
//! not. Only moving takes long without a beat; its bound is part of what is
//! tolerated.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Beyond the longest move: for reading the maps of many targets on a machine
/// that is slow, such as an emulated one.
const MARGIN: Duration = Duration::from_secs(30);

/// The pulse of the loop, shared by its thread and the service.
#[derive(Debug)]
pub(super) struct Heart {
    origin: Instant,
    /// Milliseconds from `origin` to the last beat.
    last: AtomicU64,
    /// Milliseconds without a beat that are tolerated.
    tolerance: AtomicU64,
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Heart {
    /// Beats now for the first time.
    pub(super) fn new(origin: Instant) -> Self {
        Self {
            origin,
            last: AtomicU64::new(millis(origin.elapsed())),
            tolerance: AtomicU64::new(millis(MARGIN)),
        }
    }

    /// The loop is alive.
    pub(super) fn beat(&self) {
        self.last
            .store(millis(self.origin.elapsed()), Ordering::Relaxed);
    }

    /// Moving may take so long.
    pub(super) fn allow(&self, moving: Duration) {
        self.tolerance
            .store(millis(moving.saturating_add(MARGIN)), Ordering::Relaxed);
    }

    /// Whether the last beat is recent enough at `now`.
    pub(super) fn is_alive(&self, now: Instant) -> bool {
        let now = millis(now.saturating_duration_since(self.origin));
        let silence = now.saturating_sub(self.last.load(Ordering::Relaxed));
        silence <= self.tolerance.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_tolerated_as_long_as_moving_may_take() {
        let start = Instant::now();
        let heart = Heart::new(start);
        assert!(heart.is_alive(start + MARGIN));
        assert!(!heart.is_alive(start + MARGIN + Duration::from_secs(1)));
        heart.allow(Duration::from_secs(300));
        assert!(heart.is_alive(start + MARGIN + Duration::from_secs(299)));
        assert!(!heart.is_alive(start + MARGIN + Duration::from_secs(301)));
    }
}
