//! What marks of pages of our own tell of this machine.
//!
//! A processor walks a page's table, and so marks it accessed, only where its TLB does not hold the
//! page. Of pages that are touched in turn and do not fit there every touch walks; but an emulated processor, or
//! one with a larger TLB, may hold all of them, until something else flushes it. (Of a program with
//! some very hot pages among many these stay in a TLB, which this does not tell: no more than it has
//! entries.)

use std::sync::atomic::{AtomicBool, Ordering};

use super::super::own_pages::OwnPages;
use super::{IdleSampler, own_samples};
use crate::ports::{AccessSampler, PortError};
use crate::tiering::observation::{AccessSet, Sample};
use crate::tiering::windows::{SHORTEST, SHORTEST_AT_ONCE};
use crate::units::Nanos;

/// Pages that are touched all the time: more than the TLBs that are known hold (1536 to 4096), few enough for
/// all to be touched in [`SHORTEST`]. Where they do fit, windows are longer than they need be.
const TOUCHED: usize = 8192;
/// One in so many of them is watched: no more than it takes to tell, as each try marks them all.
const WATCHED_EACH: usize = 63;
/// So long they are touched before: the TLB of an emulated processor grows by use.
const WARM_UP: Nanos = Nanos::from_millis(50);
/// Each window is tried so often: something else may have flushed TLBs.
const TRIES: usize = 2;
/// Of a hundred that could be told so many have to be seen.
const SEEN: usize = 98;

/// The shortest window, doubled from [`SHORTEST`] on, in which as good as all of such pages are seen.
/// Takes a tenth of a second, and a second thread.
///
/// # Errors
/// Where pages or a thread cannot be had, or as the sampler's.
pub(super) fn shortest(sampler: &mut IdleSampler) -> Result<Nanos, PortError> {
    let own = OwnPages::new(TOUCHED).map_err(|e| sampler.failed(e))?;
    let samples = own_samples(&own, TOUCHED, WATCHED_EACH);
    let is_over = Over::default();
    let touch = || {
        while !is_over.0.load(Ordering::Relaxed) {
            (0..TOUCHED).for_each(|index| own.touch(index));
        }
    };
    let found = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("hmkeeper-trial".into());
        // However this ends, or nobody would ever have waited for the thread long enough.
        let _over = is_over.at_last();
        thread
            .spawn_scoped(scope, touch)
            .map_err(|e| sampler.failed(e))?;
        try_windows(sampler, &samples)
    });
    // So that nothing of them is held on to.
    sampler.arm(&[], Nanos::ZERO)?;
    found
}

/// Tells a thread to end.
#[derive(Default)]
struct Over(AtomicBool);

impl Over {
    /// When what is returned is dropped.
    fn at_last(&self) -> impl Drop + '_ {
        struct Tells<'a>(&'a AtomicBool);
        impl Drop for Tells<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        Tells(&self.0)
    }
}

fn try_windows(sampler: &mut IdleSampler, samples: &[Sample]) -> Result<Nanos, PortError> {
    std::thread::sleep(WARM_UP.into());
    // Opens files and takes memory, for which the kernel flushes TLBs.
    are_seen(sampler, samples, SHORTEST)?;
    let mut window = SHORTEST;
    while window < SHORTEST_AT_ONCE {
        let mut tries = (0..TRIES).map(|_| are_seen(sampler, samples, window));
        if tries.try_fold(true, |all, seen| seen.map(|seen| all && seen))? {
            return Ok(window);
        }
        window = window + window;
    }
    Ok(SHORTEST_AT_ONCE)
}

/// Whether as good as all are, in one such window, for which the sampler waits itself.
fn are_seen(
    sampler: &mut IdleSampler,
    samples: &[Sample],
    window: Nanos,
) -> Result<bool, PortError> {
    let mut seen = AccessSet::new(samples.to_vec());
    sampler.arm(samples, window)?;
    sampler.collect(&mut seen)?;
    let known = seen.tallies().iter().filter(|tally| tally.known > 0);
    let (known, accessed) = known.fold((0, 0), |(known, accessed), tally| {
        (known + 1, accessed + usize::from(tally.accessed))
    });
    Ok(2 * known > samples.len() && 100 * accessed >= SEEN * known)
}
