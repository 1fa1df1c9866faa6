//! Child processes of the demo: they end with their parent, run on chosen
//! CPUs, are signalled, and their CPU time is read.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::{Pid as NixPid, getppid};

use super::root::Root;

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

/// Keeps signals that end a program from ending this one: they are blocked in
/// the calling thread and in all that it starts later, and `tell` is called, in
/// a thread of its own, for each that comes.
///
/// # Errors
/// When a thread cannot be had.
pub fn catch_end_signals(tell: impl Fn(Signal) + Send + 'static) -> io::Result<()> {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        set.add(signal);
    }
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

/// CPU time that a process and all its threads have used, ended ones
/// included, to the kernel's 10 ms.
///
/// # Errors
/// When the process is not there.
pub fn cpu_time(root: &Root, pid: u32) -> io::Result<Duration> {
    let text = std::fs::read_to_string(root.proc(format!("{pid}/stat")))?;
    let ticks = parse_cpu_ticks(&text)
        .ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat: cannot be read")))?;
    let per_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)?
        .and_then(|n| u32::try_from(n).ok())
        .filter(|&n| n > 0)
        .unwrap_or(100);
    Ok(Duration::from_secs(ticks) / per_second)
}

/// `utime + stime`: the 14th and 15th fields. The second, the name in
/// brackets, may hold blanks and brackets itself.
fn parse_cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_ticks_are_read_past_an_odd_name() {
        let stat = "12 (a) b (c)) S 1 12 12 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 1 0 5 0 0";
        assert_eq!(parse_cpu_ticks(stat), Some(300));
        assert_eq!(parse_cpu_ticks("12 (a"), None);
    }

    #[test]
    fn own_cpu_time_is_there_and_nobodys_is_not() {
        assert!(cpu_time(&Root::host(), std::process::id()).is_ok());
        assert!(cpu_time(&Root::host(), u32::MAX).is_err());
    }
}
