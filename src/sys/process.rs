//! Child processes of the demo: they end with their parent, run on chosen
//! CPUs, and are signalled by name.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::{Pid as NixPid, getppid};

/// Makes the kernel send `signal` to the child that `command` starts when the
/// thread that starts it ends, in whatever way; start it from a thread that
/// lives as long as the child may. The child begins without blocked signals.
pub fn end_with_parent(command: &mut Command, signal: Signal) {
    let parent = std::process::id();
    // SAFETY: between fork and exec the closure calls only async-signal-safe
    // functions (prctl, getppid, sigprocmask) and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            SigSet::empty().thread_set_mask()?;
            if libc::prctl(libc::PR_SET_PDEATHSIG, signal as libc::c_ulong) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have ended before the call above.
            if u32::try_from(getppid().as_raw()) != Ok(parent) {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        });
    }
}

/// Keeps the calling thread, and threads that it starts later, on these CPUs.
///
/// # Errors
/// `EINVAL` when none of them is online or allowed.
pub fn pin_thread(cpus: &[u32]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu as usize)?;
    }
    Ok(sched_setaffinity(NixPid::from_raw(0), &set)?)
}

/// Sends a signal to a process.
///
/// # Errors
/// `ESRCH` when it has ended, `EPERM` when it is not ours.
pub fn signal(pid: u32, signal: Signal) -> io::Result<()> {
    let pid = i32::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    Ok(kill(NixPid::from_raw(pid), signal)?)
}
