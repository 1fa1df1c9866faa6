//! The host's clocks, and a sleep that can be interrupted.

use crate::ports::{Clock, Wake};
use crate::units::Nanos;

/// `CLOCK_MONOTONIC` and the CPU clocks.
pub struct SysClock {}

/// Interrupts the sleep of a [`SysClock`], from any thread.
#[derive(Clone)]
pub struct Waker {}

impl Waker {
    /// The sleep under way, or else the next one, ends at once.
    pub fn wake(&self) {}
}

impl SysClock {
    /// A clock, and what interrupts its sleeps.
    pub fn new() -> (Self, Waker) {
        (Self {}, Waker {})
    }
}

impl Clock for SysClock {
    fn now(&self) -> Nanos {
        unreachable!("being written")
    }
    fn thread_cpu_time(&self) -> Nanos {
        unreachable!("being written")
    }
    fn process_cpu_time(&self) -> Nanos {
        unreachable!("being written")
    }
    fn sleep_until(&mut self, _at: Nanos) -> Wake {
        unreachable!("being written")
    }
}
