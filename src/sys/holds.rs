//! Which process a pid of a plan means.
//!
//! **Problem.** A plan names its targets' processes by pid. Until it is carried out a process may
//! have ended, and its pid be another one's; or it may run another program, at whose addresses
//! is something else.
//!
//! **Approach.** Who finds the targets holds each of them by a pidfd and by an open file of its
//! `/proc`, which stays with the address space that it was opened on. As long as the pidfd
//! tells of no end nobody else has the pid. Whoever acts on a process asks here right before
//! and right after; whoever opens a file of it asks after opening it, since what is open stays
//! with its process.
//!
//! **Properties.** A process that is not the one that was meant is gone: an outcome, not an error.
//! `move_pages(2)` takes a pid. Between the question and the call a pid could still change hands
//! within microseconds: that is seen after the call, and the call was the last one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::targets::Handle;
use crate::units::Pid;

/// The processes that are watched, as whoever finds them holds them. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Holds(Arc<Mutex<Option<HashMap<Pid, Arc<Handle>>>>>);

impl Holds {
    /// These are all that are watched from now on.
    pub(super) fn set(&self, all: impl Iterator<Item = (Pid, Arc<Handle>)>) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *held = Some(all.collect());
    }

    /// What is known of a pid: `Err` when nobody ever said who is meant.
    fn of(&self, pid: Pid) -> Result<Option<Arc<Handle>>, ()> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let held = held.as_ref().ok_or(())?;
        Ok(held.get(&pid).cloned())
    }

    /// Whether a plan's pid still is the process that the plan was made for.
    pub(super) fn is_meant(&self, pid: Pid) -> bool {
        match self.of(pid) {
            Ok(handle) => handle.is_some_and(|handle| handle.is_there()),
            Err(()) => true,
        }
    }

    /// Whether this is the pid of a target that is no longer there: by now perhaps another
    /// one's.
    pub(super) fn is_lost(&self, pid: Pid) -> bool {
        matches!(self.of(pid), Ok(Some(handle)) if !handle.is_there())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::sys::pagemap::Pagemap;
    use crate::sys::root::Root;

    const PID: Pid = Pid(7);

    /// Process 7, begun at this time.
    fn begin(root: &Root, at: u32) {
        let files = root.proc("7");
        fs::create_dir_all(&files).unwrap();
        let zeros = " 0".repeat(17);
        fs::write(files.join("stat"), format!("7 (a) S 1{zeros} {at}{zeros}")).unwrap();
        fs::write(files.join("maps"), "1000-2000 rw-p 00000000 00:00 0 \n").unwrap();
        fs::write(files.join("pagemap"), [0; 16]).unwrap();
    }

    #[test]
    fn who_has_the_pid_of_a_target_that_ended_is_not_taken_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        begin(&root, 77);
        assert!(root.holds().is_meant(PID), "nobody has said who is");
        let handle = Arc::new(Handle::open(&root, PID).unwrap());
        root.clone().holds().set([(PID, handle)].into_iter());
        assert!(root.holds().is_meant(PID) && !root.holds().is_lost(PID));
        assert!(Pagemap::open(&root, PID).is_ok());
        // Another one is not watched; its files may be read all the same.
        assert!(!root.holds().is_meant(Pid(8)) && !root.holds().is_lost(Pid(8)));
        begin(&root, 78);
        assert!(!root.holds().is_meant(PID) && root.holds().is_lost(PID));
        let error = Pagemap::open(&root, PID).unwrap_err();
        assert!(crate::sys::pagemap::is_gone(&error), "{error}");
        // Until it is watched itself.
        let handle = Arc::new(Handle::open(&root, PID).unwrap());
        root.holds().set([(PID, handle)].into_iter());
        assert!(root.holds().is_meant(PID) && Pagemap::open(&root, PID).is_ok());
    }
}
