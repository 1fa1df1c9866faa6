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

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::targets::Handle;
use crate::units::Pid;

/// A process that is watched.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    pid: Pid,
    handle: Arc<Handle>,
    /// Memory that it bound itself is moved as well.
    moves_bound: bool,
}

impl Hold {
    pub(super) fn new(pid: Pid, handle: &Arc<Handle>, moves_bound: bool) -> Self {
        Self {
            pid,
            handle: Arc::clone(handle),
            moves_bound,
        }
    }
}

#[derive(Debug, Default)]
struct All {
    /// `None`: nobody ever said who is watched.
    held: Option<HashMap<Pid, Hold>>,
    /// Processes that have bound memory since that was last looked at.
    doubted: HashSet<Pid>,
}

/// The processes that are watched, as whoever finds them holds them. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Holds(Arc<Mutex<All>>);

impl Holds {
    fn all(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These are all that are watched from now on.
    pub(super) fn set(&self, holds: impl Iterator<Item = Hold>) {
        let held: HashMap<Pid, Hold> = holds.map(|hold| (hold.pid, hold)).collect();
        let mut all = self.all();
        all.doubted.retain(|pid| held.contains_key(pid));
        all.held = Some(held);
    }

    /// What is known of a pid: `Err` when nobody ever said who is meant.
    fn of(&self, pid: Pid) -> Result<Option<Hold>, ()> {
        let all = self.all();
        let held = all.held.as_ref().ok_or(())?;
        Ok(held.get(&pid).cloned())
    }

    /// Whether a plan's pid still is the process that the plan was made for.
    pub(super) fn is_meant(&self, pid: Pid) -> bool {
        match self.of(pid) {
            Ok(hold) => hold.is_some_and(|hold| hold.handle.is_there()),
            Err(()) => true,
        }
    }

    /// Whether this is the pid of a target that is no longer there: by now perhaps another
    /// one's.
    pub(super) fn is_lost(&self, pid: Pid) -> bool {
        matches!(self.of(pid), Ok(Some(hold)) if !hold.handle.is_there())
    }

    /// Whether memory that a target has bound is left where it is.
    pub(super) fn leaves_bound(&self, pid: Pid) -> bool {
        matches!(self.of(pid), Ok(Some(hold)) if !hold.moves_bound)
    }

    /// A target has bound memory that was to be moved.
    pub(super) fn doubt(&self, pid: Pid) {
        self.all().doubted.insert(pid);
    }

    /// Whether its policies are to be looked at anew.
    pub(super) fn is_doubted(&self, pid: Pid) -> bool {
        self.all().doubted.contains(&pid)
    }

    /// They were.
    pub(super) fn is_settled(&self, pid: Pid) {
        self.all().doubted.remove(&pid);
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
        (root.clone().holds()).set([Hold::new(PID, &handle, false)].into_iter());
        assert!(root.holds().is_meant(PID) && !root.holds().is_lost(PID));
        assert!(Pagemap::open(&root, PID).is_ok());
        assert!(root.holds().leaves_bound(PID));
        root.holds().doubt(PID);
        assert!(root.holds().is_doubted(PID));
        root.holds().is_settled(PID);
        assert!(!root.holds().is_doubted(PID));
        // Another one is not watched; its files may be read all the same.
        assert!(!root.holds().is_meant(Pid(8)) && !root.holds().is_lost(Pid(8)));
        begin(&root, 78);
        assert!(!root.holds().is_meant(PID) && root.holds().is_lost(PID));
        let error = Pagemap::open(&root, PID).unwrap_err();
        assert!(crate::sys::pagemap::is_gone(&error), "{error}");
        // Until it is watched itself.
        let handle = Arc::new(Handle::open(&root, PID).unwrap());
        (root.holds()).set([Hold::new(PID, &handle, true)].into_iter());
        assert!(root.holds().is_meant(PID) && Pagemap::open(&root, PID).is_ok());
    }
}
