//! Whether a process that somebody names can be watched at all.

use std::fs::File;

use procfs::ProcError;
use procfs::process::Process;

use crate::sys::pagemap::is_gone;
use crate::sys::root::Root;
use crate::sys::targets::headless;
use crate::units::Pid;
use crate::units::text::printable;

/// `PF_KTHREAD` of `include/linux/sched.h`, in field 9 of `/proc/PID/stat`.
const PF_KTHREAD: u32 = 0x0020_0000;

/// Why a pid is no target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTarget {
    /// There is none.
    #[error("pid {0}: no such process; see `ps`")]
    Absent(Pid),
    /// It belongs to the kernel.
    #[error("pid {0}: is a kernel thread; name a process")]
    KernelThread(Pid),
    /// It is one thread of a process.
    #[error("pid {0}: is a thread of process {1}; name the process")]
    Thread(Pid, Pid),
    /// It has ended and waits for its parent.
    #[error("pid {0}: has ended already")]
    Zombie(Pid),
    /// Its main thread has ended, and others live on.
    #[error("pid {0}: {1}")]
    Headless(Pid, String),
    /// It is this program.
    #[error("pid {0}: is hmkeeper itself; name another process")]
    Ourselves(Pid),
    /// It is not ours to watch.
    #[error(
        "pid {0}: no permission to watch it ({1}); run hmkeeper as root, or with CAP_SYS_PTRACE \
         and CAP_DAC_READ_SEARCH"
    )]
    Unreadable(Pid, String),
}

/// The command's name of a process that can be watched, as it is shown.
///
/// # Errors
/// When it cannot.
pub fn check(root: &Root, pid: Pid) -> Result<String, NoTarget> {
    if pid.0 <= 0 {
        return Err(NoTarget::Absent(pid));
    }
    let failed = |error: ProcError| match error {
        ProcError::NotFound(_) => NoTarget::Absent(pid),
        ProcError::Io(e, _) if e.raw_os_error() == Some(libc::ESRCH) => NoTarget::Absent(pid),
        other => NoTarget::Unreadable(pid, other.to_string()),
    };
    let process = Process::new_with_root(root.proc(pid.to_string())).map_err(failed)?;
    let stat = process.stat().map_err(failed)?;
    if stat.flags & PF_KTHREAD != 0 {
        return Err(NoTarget::KernelThread(pid));
    }
    if matches!(stat.state, 'Z' | 'X') {
        return Err(
            headless(root, pid).map_or(NoTarget::Zombie(pid), |why| NoTarget::Headless(pid, why))
        );
    }
    // /proc/TID is there for every thread, but not listed.
    let leader = process.status().map_err(failed)?.tgid;
    if leader != pid.0 {
        return Err(NoTarget::Thread(pid, Pid(leader)));
    }
    if u32::try_from(pid.0) == Ok(std::process::id()) {
        return Err(NoTarget::Ourselves(pid));
    }
    let pagemap = root.proc(format!("{pid}/pagemap"));
    match File::open(&pagemap) {
        Err(error) if is_gone(&error) => return Err(NoTarget::Absent(pid)),
        Err(error) => {
            let what = format!("{}: {error}", pagemap.display());
            return Err(NoTarget::Unreadable(pid, what));
        }
        Ok(_) => {}
    }
    Ok(printable(&stat.comm).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_we_nor_our_threads_are_targets() {
        let root = Root::host();
        let me = Pid(i32::try_from(std::process::id()).unwrap());
        assert_eq!(check(&root, me), Err(NoTarget::Ourselves(me)));
        // Kept alive while it is looked at.
        let (send, receive) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let alive = std::thread::spawn(move || {
            tell.send(nix::unistd::gettid().as_raw()).unwrap();
            let _ = receive.recv();
        });
        let other = Pid(told.recv().unwrap());
        assert_eq!(check(&root, other), Err(NoTarget::Thread(other, me)));
        drop(send);
        alive.join().unwrap();
    }

    #[test]
    fn nobody_has_these_ids() {
        let root = Root::host();
        for pid in [0, -1, i32::MAX].map(Pid) {
            assert_eq!(check(&root, pid), Err(NoTarget::Absent(pid)));
        }
    }

    #[test]
    fn a_process_that_ended_is_no_target() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid(i32::try_from(child.id()).unwrap());
        // Not waited for yet: once it has ended it is a zombie.
        let became_zombie = (0..500).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            check(&Root::host(), pid) == Err(NoTarget::Zombie(pid))
        });
        child.wait().unwrap();
        assert!(became_zombie, "`true` did not end within 5 s");
        assert_eq!(check(&Root::host(), pid), Err(NoTarget::Absent(pid)));
    }
}
