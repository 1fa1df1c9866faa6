//! What the kernel's DAMON tells after each check, by its tracepoint.

use std::io;

use super::watch::Watch;
use crate::sys::root::Root;
use crate::sys::trace::{Field, Tracepoint};
use crate::units::Pid;

/// The tracepoint that tells of each region after a check, since Linux 6.7.
const EVENT: &str = "damon/damos_before_apply";

/// The tracepoint and the fields of its events that matter.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) tracepoint: Tracepoint,
    pid: Field,
    target: Field,
    scheme: Field,
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
            scheme: field("scheme_idx")?,
            start: field("start")?,
            accesses: field("nr_accesses")?,
            tracepoint,
        })
    }

    /// Enters into the watches what `kdamond` has told since the last time;
    /// returns how many pages are told of for the first time.
    pub(super) fn read(&mut self, kdamond: Pid, watches: &mut [Watch]) -> io::Result<usize> {
        let Self {
            pid,
            target,
            scheme,
            start,
            accesses,
            ..
        } = *self;
        let mut new = 0;
        self.tracepoint.drain(|event| {
            let get = |field: Field| field.get(event);
            // Of an earlier scan, or of somebody else's kdamond.
            if get(pid) != u64::try_from(kdamond.0).ok() {
                return;
            }
            let (Some(target), Some(scheme), Some(start), Some(accesses)) =
                (get(target), get(scheme), get(start), get(accesses))
            else {
                return;
            };
            // Kernels before 6.13 give the two in each other's place; with a
            // single scheme one of them is 0.
            let watch = usize::try_from(target + scheme)
                .ok()
                .and_then(|i| watches.get_mut(i));
            new += usize::from(watch.is_some_and(|w| enter(w, start, accesses)));
        })?;
        Ok(new)
    }
}

/// Enters that a page was seen accessed so many times since the kdamond was
/// started; returns whether it is the first that is told of the page in this scan.
fn enter(watch: &mut Watch, page: u64, accesses: u64) -> bool {
    let Ok(index) = watch.pages.binary_search(&page) else {
        return false;
    };
    let count = u32::try_from(accesses).unwrap_or(u32::MAX);
    // Buffers are read CPU by CPU: an older check may come later.
    let last = &mut watch.counts[index];
    let accessed = count > *last;
    *last = count.max(*last);
    let told = &mut watch.told[index];
    let is_first = told.is_none();
    *told = Some(accessed || *told == Some(true));
    is_first
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::damon::sysfs::Admin;

    #[test]
    fn what_is_told_counts_on_from_check_to_check() {
        let mut watch = Watch::new(Admin::new(&Root::host()).first().regions(0));
        watch.set(0..2, vec![8192, 4096, 8192]);
        assert!(enter(&mut watch, 4096, 1));
        assert!(enter(&mut watch, 8192, 0));
        assert!(!enter(&mut watch, 1 << 60, 0), "a spare region");
        assert_eq!(watch.told, [Some(true), Some(false)]);
        // The next scan: nothing new of the first, an access of the second,
        // whose earlier check comes late from another CPU.
        watch.told.fill(None);
        assert!(enter(&mut watch, 4096, 1));
        assert!(enter(&mut watch, 8192, 1));
        assert!(!enter(&mut watch, 8192, 0));
        assert_eq!(watch.told, [Some(false), Some(true)]);
        watch.told.fill(None);
        assert!(enter(&mut watch, 8192, 1));
        assert_eq!(watch.told[1], Some(false));
    }
}
