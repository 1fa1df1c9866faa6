//! The host's clocks, and a sleep that can be interrupted.
//!
//! A wake is a token, not an edge: it stays until a sleep has taken it, so one
//! that comes between two sleeps ends the next one, and none is lost. Tokens
//! do not pile up: three wakes before a sleep are one interruption.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::idle_cores::IdleCores;
use super::root::Root;
use crate::ports::{Clock, Wake};
use crate::units::Nanos;

/// The token and what announces it.
#[derive(Debug, Default)]
struct Bell {
    rung: Mutex<bool>,
    ring: Condvar,
}

/// `CLOCK_MONOTONIC`, the CPU clocks, and the machine's idle time.
#[derive(Debug)]
pub struct SysClock {
    bell: Arc<Bell>,
    cores: IdleCores,
}

/// Interrupts the sleep of a [`SysClock`], from any thread.
#[derive(Clone, Debug)]
pub struct Waker {
    bell: Arc<Bell>,
}

impl Waker {
    /// The sleep under way, or else the next one, ends at once.
    pub fn wake(&self) {
        // A thread that panicked with the lock held has left a plain bool.
        *self
            .bell
            .rung
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = true;
        self.bell.ring.notify_one();
    }
}

impl SysClock {
    /// A clock, and what interrupts its sleeps.
    pub fn new(root: &Root) -> (Self, Waker) {
        let bell = Arc::new(Bell::default());
        (
            Self {
                bell: Arc::clone(&bell),
                cores: IdleCores::new(root.clone()),
            },
            Waker { bell },
        )
    }
}

/// Reads one of the kernel's clocks, none of which is ever negative.
pub(super) fn read(clock: ClockId) -> Nanos {
    let time = clock_gettime(clock);
    let secs = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Nanos::from_secs(secs) + Nanos(nanos)
}

/// CPU time of the calling thread.
pub(super) fn thread_cpu_time() -> Nanos {
    read(ClockId::ThreadCPUTime)
}

/// CPU time of all threads that this process has or had.
pub(super) fn process_cpu_time() -> Nanos {
    read(ClockId::ProcessCPUTime)
}

/// `CLOCK_MONOTONIC` now.
pub(super) fn monotonic() -> Nanos {
    read(ClockId::Monotonic)
}

impl Clock for SysClock {
    fn now(&self) -> Nanos {
        monotonic()
    }

    fn thread_cpu_time(&self) -> Nanos {
        thread_cpu_time()
    }

    fn process_cpu_time(&self) -> Nanos {
        process_cpu_time()
    }

    fn idle_time(&mut self) -> Nanos {
        self.cores.read()
    }

    fn sleep_until(&mut self, at: Nanos) -> Wake {
        let mut rung = self
            .bell
            .rung
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        loop {
            if std::mem::take(&mut *rung) {
                return Wake::Interrupted;
            }
            let left = at.saturating_sub(monotonic());
            if left == Nanos::ZERO {
                return Wake::Due;
            }
            // May end early or spuriously: the loop looks at the clock again.
            rung = self
                .bell
                .ring
                .wait_timeout(rung, Duration::from(left))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_lasts_until_it_is_time() {
        let (mut clock, _waker) = SysClock::new(&Root::host());
        let due = clock.now() + Nanos::from_millis(20);
        assert_eq!(clock.sleep_until(due), Wake::Due);
        assert!(clock.now() >= due);
        assert_eq!(clock.sleep_until(Nanos::ZERO), Wake::Due);
    }

    #[test]
    fn one_wake_is_one_interruption_also_when_nobody_sleeps() {
        let (mut clock, waker) = SysClock::new(&Root::host());
        waker.wake();
        waker.wake();
        let far = clock.now() + Nanos::from_secs(3600);
        assert_eq!(clock.sleep_until(far), Wake::Interrupted);
        let near = clock.now() + Nanos::from_millis(5);
        assert_eq!(clock.sleep_until(near), Wake::Due);
    }

    #[test]
    fn a_wake_from_another_thread_ends_the_sleep() {
        let (mut clock, waker) = SysClock::new(&Root::host());
        let far = clock.now() + Nanos::from_secs(3600);
        let (ready, started) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            started.recv().unwrap();
            waker.wake();
        });
        ready.send(()).unwrap();
        assert_eq!(clock.sleep_until(far), Wake::Interrupted);
        other.join().unwrap();
    }

    #[test]
    fn cpu_clocks_advance_with_work_and_the_process_has_the_most() {
        let (clock, _waker) = SysClock::new(&Root::host());
        let before = clock.thread_cpu_time();
        let started = clock.now();
        let mut x = 1_u64;
        while clock.now().saturating_sub(started) < Nanos::from_millis(30) {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        let used = clock.thread_cpu_time().saturating_sub(before);
        assert!(used > Nanos::ZERO);
        assert!(clock.process_cpu_time() >= clock.thread_cpu_time());
    }
}
