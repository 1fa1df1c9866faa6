//! What the kernel's DAMON tells after each check, by its tracepoint.

use std::io;

use super::Watch;
use crate::sys::root::Root;
use crate::sys::trace::{Field, Tracepoint};
use crate::units::{Pid, VirtAddr};

/// The tracepoint that tells of each region after a check, since Linux 6.7.
const EVENT: &str = "damon/damos_before_apply";

/// The tracepoint and the fields of its events that matter.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) tracepoint: Tracepoint,
    pid: Field,
    target: Field,
    start: Field,
    accesses: Field,
}

impl Told {
    pub(super) fn open(root: &Root) -> io::Result<Self> {
        let tracepoint = Tracepoint::open(root, EVENT)?;
        let field = |name: &str| {
            tracepoint
                .field(name)
                .ok_or_else(|| io::Error::other(format!("{EVENT} has no field {name}")))
        };
        Ok(Self {
            pid: field("common_pid")?,
            target: field("target_idx")?,
            start: field("start")?,
            accesses: field("nr_accesses")?,
            tracepoint,
        })
    }

    /// Enters into the watches what `kdamond` has told since the last time;
    /// returns how many pages are told of for the first time.
    pub(super) fn read(&mut self, kdamond: Pid, watches: &mut [Watch]) -> io::Result<usize> {
        let (pid, target, start, accesses) = (self.pid, self.target, self.start, self.accesses);
        let mut new = 0;
        self.tracepoint.drain(|event| {
            let get = |field: Field| field.get(event);
            // Of an earlier scan, or of somebody else's kdamond.
            if get(pid) != u64::try_from(kdamond.0).ok() {
                return;
            }
            let (Some(target), Some(start), Some(accesses)) =
                (get(target), get(start), get(accesses))
            else {
                return;
            };
            let watch = usize::try_from(target)
                .ok()
                .and_then(|i| watches.get_mut(i));
            if let Some(watch) = watch
                && let Ok(index) = watch.pages.binary_search(&VirtAddr(start))
            {
                // It counts on from check to check.
                let count = u32::try_from(accesses).unwrap_or(u32::MAX);
                let accessed = count > std::mem::replace(&mut watch.counts[index], count);
                let told = &mut watch.told[index];
                new += usize::from(told.is_none());
                *told = Some(accessed || *told == Some(true));
            }
        })?;
        Ok(new)
    }
}
