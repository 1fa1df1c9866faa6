//! One batch: the calls, and what became of each folio.

use std::io;
use std::time::{Duration, Instant};

use crate::sys::clock::{process_cpu_time, thread_cpu_time};
use crate::sys::denied;
use crate::sys::move_pages::{self, Status, Which};
use crate::sys::root::Root;
use crate::tiering::plan::PageCounts;
use crate::units::{Nanos, NodeId, Pid, VirtAddr};

/// A folio to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item {
    /// The move that it belongs to.
    pub(super) index: usize,
    /// The process through whose page table it is moved.
    pub(super) pid: Pid,
    /// Its first page there.
    pub(super) addr: VirtAddr,
    /// Its pages of 4 KiB.
    pub(super) pages: u64,
    /// Whether several processes of its pool map it: it moves for all.
    pub(super) shared: bool,
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

/// A call to be: folios of one process that go to one node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    pub(super) root: &'a Root,
    pub(super) pid: Pid,
    pub(super) to: NodeId,
    pub(super) items: &'a [Item],
    /// How many of them are out of the process' reach together.
    pub(super) held: usize,
}

/// What a call brought.
#[derive(Debug)]
pub(super) struct Done {
    /// One per item, as far as the kernel came.
    pub(super) fates: Vec<Fate>,
    /// System calls: none where no thread could make it.
    pub(super) calls: u64,
    /// Wall-clock time.
    pub(super) elapsed: Duration,
    /// CPU time. What a call waits for (each begins
    /// by waiting for every CPU's kernel worker, behind whatever runs there)
    /// does not shrink with its pages: were it counted, batches on a busy
    /// machine would dwindle to single pages.
    pub(super) worked: Nanos,
    /// The process has ended.
    pub(super) gone: bool,
    /// The kernel forbids this destination to this process.
    pub(super) forbidden: bool,
    /// It may not be allowed to us at all.
    pub(super) denied: bool,
}

/// Makes all calls at once: the first one by this thread, each other one by another. Also the CPU time
/// that others took for it.
pub(super) fn run(calls: &[Call<'_>]) -> (Vec<Done>, Nanos) {
    let Some((first, others)) = calls.split_first() else {
        return (Vec::new(), Nanos::ZERO);
    };
    if others.is_empty() {
        return (vec![call(first)], Nanos::ZERO);
    }
    // To start a thread and to end it costs as much as moving some pages, which no clock of its own
    // tells. What else this process does meanwhile is little.
    let (process, own) = (process_cpu_time(), thread_cpu_time());
    let all = std::thread::scope(|scope| {
        let helpers: Vec<_> = others
            .iter()
            .map(|one| {
                let helper = move || call(one);
                // Where no more threads can be had this one makes all the calls.
                (std::thread::Builder::new().spawn_scoped(scope, helper), one)
            })
            .collect();
        let mut all = vec![call(first)];
        for (helper, one) in helpers {
            all.push(match helper {
                Ok(helper) => helper
                    .join()
                    .unwrap_or_else(|_| Done::all(Fate::Busy, one.items.len())),
                Err(_) => call(one),
            });
        }
        all
    });
    let (process, own) = (
        process_cpu_time().saturating_sub(process),
        thread_cpu_time().saturating_sub(own),
    );
    (all, process.saturating_sub(own))
}

impl Done {
    fn gone(count: usize) -> Self {
        Self {
            gone: true,
            ..Self::all(Fate::Absent, count)
        }
    }

    fn all(fate: Fate, count: usize) -> Self {
        Self {
            fates: vec![fate; count],
            calls: 0,
            elapsed: Duration::ZERO,
            worked: Nanos::ZERO,
            gone: false,
            forbidden: false,
            denied: false,
        }
    }
}

/// Makes one call. Where a folio cannot move the kernel ends it with that folio's group: fates
/// are fewer than items then, but never none.
pub(super) fn call(call: &Call<'_>) -> Done {
    let &Call {
        root,
        pid,
        to,
        items,
        held,
    } = call;
    if !root.holds().is_meant(pid) {
        return Done::gone(items.len());
    }
    let which = if items.iter().any(|i| i.shared) {
        Which::All
    } else {
        Which::Alone
    };
    let pages: Vec<VirtAddr> = items.iter().map(|i| i.addr).collect();
    let (start, cpu) = (Instant::now(), thread_cpu_time());
    let answer = move_pages::move_in_groups(pid, &pages, held, to, which);
    let (elapsed, worked) = (start.elapsed(), thread_cpu_time().saturating_sub(cpu));
    let mut done = match answer {
        Ok(status) => Done {
            fates: fates(pid, to, &pages, status),
            ..Done::all(Fate::Moved, 0)
        },
        Err(e) => failed(pid, to, &pages, &e),
    };
    if !root.holds().is_meant(pid) {
        // In the middle of the call: what it did was the last.
        done = Done::gone(items.len());
    }
    if done.fates.is_empty() {
        // Or the same would be asked for again and again.
        done.fates.push(Fate::Busy);
    }
    Done {
        calls: 1,
        elapsed,
        worked,
        ..done
    }
}

/// Statuses as fates; what the kernel did not tell is asked for.
fn fates(pid: Pid, to: NodeId, pages: &[VirtAddr], mut status: Vec<Status>) -> Vec<Fate> {
    // A status is what was found when the page was looked at, and one that
    // says "elsewhere" or nothing was not brought up to date after the move.
    let moved = Status::On(to);
    if status.iter().all(|status| *status == moved) {
        // As nearly always.
        return vec![Fate::Moved; status.len()];
    }
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
            return Done::gone(pages.len());
        }
        Some(libc::EPERM | libc::EACCES | libc::ENODEV | libc::ENOSYS) => Fate::Refused,
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
        denied: denied::may_be(error),
        ..Done::all(Fate::Moved, 0)
    }
}
