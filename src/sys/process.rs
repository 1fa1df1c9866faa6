//! Child processes of the demo: they end with their parent, run on chosen
//! CPUs, are signalled, and their CPU time is read.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill};
use nix::unistd::{Pid as NixPid, getppid};
use rustix::process::{Resource, getrlimit, setrlimit};

use super::root::Root;
use super::targets::Stat;
use crate::units::Pid;

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

fn end_signals() -> SigSet {
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]
        .into_iter()
        .collect()
}

/// Does `work` as a whole: SIGINT, SIGTERM, SIGHUP and SIGQUIT, which would end this
/// program in its midst, in which it may have changed settings of the kernel, are
/// delivered after it.
///
/// # Errors
/// When the signals cannot be held back; then nothing was done.
pub fn undisturbed<T>(work: impl FnOnce() -> T) -> io::Result<T> {
    let mut set = end_signals();
    set.add(Signal::SIGQUIT);
    let before = set.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let done = work();
    before.thread_set_mask()?;
    Ok(done)
}

/// Keeps signals that end a program from ending this one: they are blocked in
/// the calling thread and in all that it starts later, and `tell` is called, in
/// a thread of its own, for each that comes.
///
/// # Errors
/// When a thread cannot be had.
pub fn catch_end_signals(tell: impl Fn(Signal) + Send + 'static) -> io::Result<()> {
    let set = end_signals();
    set.thread_block()?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            while let Ok(signal) = set.wait() {
                tell(signal);
            }
        })?;
    Ok(())
}

/// Keeps a signal from doing anything.
///
/// # Errors
/// `EINVAL` when there is none of this number, or it cannot be ignored.
pub fn ignore(signal: i32) -> io::Result<()> {
    // SAFETY: SIG_IGN installs no handler, so that no code of ours runs in one.
    let before = unsafe { libc::signal(signal, libc::SIG_IGN) };
    if before == libc::SIG_ERR {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Lets this process have as many descriptors as it may: each target takes a few.
///
/// # Errors
/// When the kernel refuses.
pub fn raise_descriptors() -> io::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return Ok(());
    }
    limit.current = limit.maximum;
    Ok(setrlimit(Resource::Nofile, limit)?)
}

/// CPU time that a process and all its threads have used, ended ones
/// included, to the kernel's 10 ms.
///
/// # Errors
/// When the process is not there.
pub fn cpu_time(root: &Root, pid: u32) -> io::Result<Duration> {
    let pid = i32::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    let stat = Stat::of(root, Pid(pid)).ok_or(io::ErrorKind::NotFound)?;
    Ok(stat.ticks.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_cpu_time_is_there_and_nobodys_is_not() {
        assert!(cpu_time(&Root::host(), std::process::id()).is_ok());
        assert!(cpu_time(&Root::host(), u32::MAX).is_err());
    }
}
