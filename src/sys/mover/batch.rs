//! One batch: the calls, and what became of each folio.

use std::io;
use std::time::{Duration, Instant};

use crate::sys::clock::thread_cpu_time;
use crate::sys::move_pages::{self, Status};
use crate::tiering::plan::PageCounts;
use crate::units::{Nanos, NodeId, Pid, VirtAddr};

/// Folios in one call at most, however fast they go.
const LARGEST_BATCH: usize = 1024;
/// Weight of the newest measurement.
const EMA: f64 = 0.3;

/// A folio to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item {
    /// The move that it belongs to.
    pub(super) index: usize,
    /// Its first page.
    pub(super) addr: VirtAddr,
    /// Its pages of 4 KiB.
    pub(super) pages: u64,
}

/// What became of a folio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Moved,
    Busy,
    Absent,
    NoRoom,
    Shared,
    Refused,
    Deferred,
}

impl Fate {
    pub(super) fn count(self, pages: u64, counts: &mut PageCounts) {
        *match self {
            Self::Moved => &mut counts.moved,
            Self::Busy => &mut counts.busy,
            Self::Absent => &mut counts.absent,
            Self::NoRoom => &mut counts.no_room,
            Self::Shared => &mut counts.shared,
            Self::Refused => &mut counts.refused,
            Self::Deferred => &mut counts.deferred,
        } += pages;
    }
}

/// How long a folio of one kind takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pace {
    nanos: f64,
}

impl Pace {
    /// Before anything is known: 300 µs a page, so that the first batch is
    /// small; a real machine needs 2 to 4, an emulated one 20 to 100.
    pub(super) fn small() -> Self {
        Self { nanos: 300_000.0 }
    }

    /// Before anything is known: one huge page at a time.
    pub(super) fn huge() -> Self {
        Self {
            nanos: 20_000_000.0,
        }
    }

    /// Folios that a call of `time` can take; at least one.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub(super) fn batch(self, time: Nanos) -> usize {
        // `as` saturates.
        ((time.0 as f64 / self.nanos.max(1.0)) as usize).clamp(1, LARGEST_BATCH)
    }

    pub(super) fn learn(&mut self, folios: usize, elapsed: Duration) {
        let new = elapsed.as_secs_f64() * 1e9 / folios.max(1) as f64;
        // A call that was held up teaches at once, a quick one slowly.
        self.nanos = if new > self.nanos {
            new
        } else {
            EMA * new + (1.0 - EMA) * self.nanos
        };
    }
}

/// What a batch brought.
#[derive(Debug)]
pub(super) struct Done {
    /// One per item.
    pub(super) fates: Vec<Fate>,
    /// Of the longest call.
    pub(super) elapsed: Duration,
    /// CPU time of the call that took most. What a call waits for (each begins
    /// by waiting for every CPU's kernel worker, behind whatever runs there)
    /// does not shrink with its pages: were it counted, batches on a busy
    /// machine would dwindle to single pages.
    pub(super) worked: Duration,
    /// CPU time of threads other than the caller's.
    pub(super) workers_cpu: Nanos,
    /// The process has ended.
    pub(super) gone: bool,
    /// The kernel forbids this destination to this process.
    pub(super) forbidden: bool,
}

/// Moves the folios, by several threads if wanted, each with its own call.
pub(super) fn run(pid: Pid, to: NodeId, items: &[Item], threads: usize) -> Done {
    if threads < 2 || items.len() < threads {
        return call(pid, to, items);
    }
    let part = items.len().div_ceil(threads);
    let parts: Vec<(Done, Nanos)> = std::thread::scope(|scope| {
        let workers: Vec<_> = items
            .chunks(part)
            .map(|chunk| scope.spawn(move || (call(pid, to, chunk), thread_cpu_time())))
            .collect();
        workers
            .into_iter()
            .zip(items.chunks(part))
            .map(|(worker, chunk)| {
                worker
                    .join()
                    .unwrap_or_else(|_| (Done::all(Fate::Busy, chunk.len()), Nanos::ZERO))
            })
            .collect()
    });
    let mut whole = Done::all(Fate::Moved, 0);
    for (done, cpu) in parts {
        whole.fates.extend(done.fates);
        whole.elapsed = whole.elapsed.max(done.elapsed);
        whole.worked = whole.worked.max(done.worked);
        whole.workers_cpu += cpu;
        whole.gone |= done.gone;
        whole.forbidden |= done.forbidden;
    }
    whole
}

impl Done {
    fn all(fate: Fate, count: usize) -> Self {
        Self {
            fates: vec![fate; count],
            elapsed: Duration::ZERO,
            worked: Duration::ZERO,
            workers_cpu: Nanos::ZERO,
            gone: false,
            forbidden: false,
        }
    }
}

fn call(pid: Pid, to: NodeId, items: &[Item]) -> Done {
    let pages: Vec<VirtAddr> = items.iter().map(|i| i.addr).collect();
    let (start, cpu) = (Instant::now(), thread_cpu_time());
    let answer = move_pages::move_to(pid, &pages, to);
    let (elapsed, worked) = (start.elapsed(), thread_cpu_time().saturating_sub(cpu));
    let mut done = match answer {
        Ok((_, status)) => Done {
            fates: fates(pid, to, &pages, status),
            ..Done::all(Fate::Moved, 0)
        },
        Err(e) => failed(pid, to, &pages, &e),
    };
    done.elapsed = elapsed;
    done.worked = worked.into();
    done
}

/// Statuses as fates; what the kernel did not tell is asked for.
fn fates(pid: Pid, to: NodeId, pages: &[VirtAddr], mut status: Vec<Status>) -> Vec<Fate> {
    // A status is what was found when the page was looked at, and one that
    // says "elsewhere" or nothing was not brought up to date after the move.
    let untold: Vec<usize> = (0..status.len())
        .filter(|&i| match status[i] {
            Status::Untold => true,
            Status::On(node) => node != to,
            _ => false,
        })
        .collect();
    if !untold.is_empty() {
        let again: Vec<VirtAddr> = untold.iter().map(|&i| pages[i]).collect();
        if let Ok(told) = move_pages::query(pid, &again) {
            for (i, told) in untold.into_iter().zip(told) {
                status[i] = told;
            }
        }
    }
    status
        .into_iter()
        .map(|status| match status {
            Status::On(node) if node == to => Fate::Moved,
            // Still where it was, and nobody says why: as good as pinned.
            Status::On(_) | Status::Busy | Status::Untold => Fate::Busy,
            Status::Absent => Fate::Absent,
            Status::NoRoom => Fate::NoRoom,
            Status::Shared => Fate::Shared,
            Status::Refused => Fate::Refused,
        })
        .collect()
}

/// A call that failed as a whole: some of its pages may have moved.
fn failed(pid: Pid, to: NodeId, pages: &[VirtAddr], error: &io::Error) -> Done {
    let rest = match error.raw_os_error() {
        // EINVAL: it has no memory any more, though it has not yet ended. Of
        // its other causes none is possible here: the flags are constant.
        Some(libc::ESRCH | libc::EINVAL) => {
            return Done {
                gone: true,
                ..Done::all(Fate::Absent, pages.len())
            };
        }
        Some(libc::EPERM | libc::EACCES | libc::ENODEV) => Fate::Refused,
        Some(libc::ENOMEM) => Fate::NoRoom,
        _ => Fate::Busy,
    };
    let asked = fates(pid, to, pages, vec![Status::Untold; pages.len()]);
    Done {
        fates: asked
            .into_iter()
            .map(|fate| if fate == Fate::Busy { rest } else { fate })
            .collect(),
        forbidden: rest == Fate::Refused,
        ..Done::all(Fate::Moved, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_sized_by_time() {
        let mut pace = Pace::small();
        // 20 ms at 300 us a page.
        assert_eq!(pace.batch(Nanos::from_millis(20)), 66);
        for _ in 0..50 {
            pace.learn(66, Duration::from_micros(66 * 40));
        }
        assert_eq!(pace.batch(Nanos::from_millis(20)), 499);
        // Held up once: smaller at once.
        pace.learn(100, Duration::from_millis(100));
        assert_eq!(pace.batch(Nanos::from_millis(20)), 20);
        assert_eq!(Pace::huge().batch(Nanos::from_millis(1)), 1);
        pace.learn(1000, Duration::ZERO);
        assert!(pace.batch(Nanos::from_secs(100)) <= LARGEST_BATCH);
    }
}
