//! One process as `/proc/PID` shows it.

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Once;

use nix::time::{clock_getcpuclockid, clock_gettime};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, pidfd_open};

use crate::sys::denied;
use crate::sys::root::Root;
use crate::sys::text;
use crate::tiering::observation::Mapped;
use crate::units::{Bytes, Nanos, NodeId, Pid};

/// `PF_KTHREAD` of include/linux/sched.h.
const PF_KTHREAD: u64 = 0x0020_0000;
/// `USER_HZ`: the unit of the times in `/proc/stat` and `/proc/PID/stat`, 100 on every
/// architecture that we run on.
pub(in crate::sys) const NANOS_PER_TICK: u64 = 1_000_000_000 / 100;

/// What `/proc/PID/stat` (or a thread's) tells in one read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::sys) struct Stat {
    pub(super) comm: String,
    pub(super) state: u8,
    pub(super) parent: Pid,
    pub(super) kernel_thread: bool,
    /// User and system time, in whole ticks.
    pub(in crate::sys) ticks: Nanos,
    /// Ticks after boot at which it began: with the pid, its identity.
    pub(in crate::sys) start_time: u64,
    /// Faults that had to read the page, from swap or a file.
    pub(in crate::sys) major_faults: u64,
    /// The CPU that it ran on last.
    pub(super) processor: u32,
}

impl Stat {
    /// The fields are those of proc(5). The name may hold blanks and brackets,
    /// so that it ends at the last bracket.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let open = text.find('(')?;
        let close = text.rfind(')')?;
        let comm = text.get(open + 1..close)?.to_owned();
        let fields: Vec<&str> = text.get(close + 1..)?.split_ascii_whitespace().collect();
        // Field 3 of proc(5), the state, is the first here.
        let number = |field: usize| -> Option<u64> { fields.get(field - 3)?.parse().ok() };
        Some(Self {
            comm,
            state: *fields.first()?.as_bytes().first()?,
            parent: Pid(fields.get(1)?.parse().ok()?),
            kernel_thread: number(9)? & PF_KTHREAD != 0,
            ticks: Nanos((number(14)? + number(15)?).saturating_mul(NANOS_PER_TICK)),
            start_time: number(22)?,
            major_faults: number(12)?,
            processor: u32::try_from(number(39)?).ok()?,
        })
    }

    /// Of a process; `None` when there is none.
    pub(in crate::sys) fn of(root: &Root, pid: Pid) -> Option<Self> {
        Self::read(root, &format!("{pid}/stat"))
    }

    /// Of a thread; `None` when there is none.
    pub(super) fn of_thread(root: &Root, pid: Pid, tid: i32) -> Option<Self> {
        Self::read(root, &format!("{pid}/task/{tid}/stat"))
    }

    fn read(root: &Root, path: &str) -> Option<Self> {
        let bytes = fs::read(root.proc(path)).ok()?;
        Self::parse(&String::from_utf8_lossy(&bytes))
    }

    /// Ended, and only its entry is left.
    pub(in crate::sys) fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// What `/proc/PID/status` tells that `stat` does not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Status {
    /// The process that this thread belongs to.
    pub(super) process: Option<Pid>,
    /// Nodes that its cpuset allows.
    pub(super) mems_allowed: Option<Vec<NodeId>>,
    /// How much of its memory is locked, in KiB.
    pub(super) locked_kib: u64,
    /// How much of what it maps as shared memory is present, in KiB.
    pub(super) shared_kib: u64,
    /// The same of its anonymous memory.
    pub(super) anonymous_kib: u64,
    /// The same of files, and how much is swapped out, in KiB.
    pub(super) files_kib: u64,
    pub(super) swapped_kib: u64,
}

impl Status {
    pub(super) fn parse(text: &str) -> Self {
        let mut status = Self::default();
        for line in text.lines() {
            let Some((key, value)) = line.split_once(':') else {
                continue;
            };
            match key {
                "Tgid" => status.process = value.trim().parse().ok().map(Pid),
                "Mems_allowed_list" => {
                    status.mems_allowed =
                        text::parse_list(value).map(|l| l.into_iter().map(NodeId).collect());
                }
                "VmLck" => status.locked_kib = kib(value),
                "RssAnon" => status.anonymous_kib = kib(value),
                "RssShmem" => status.shared_kib = kib(value),
                "RssFile" => status.files_kib = kib(value),
                "VmSwap" => status.swapped_kib = kib(value),
                _ => {}
            }
        }
        status
    }

    /// What its page tables hold.
    pub(super) fn mapped(&self) -> Mapped {
        let bytes = |kib: u64| Bytes(kib.saturating_mul(1024));
        Mapped {
            anonymous: bytes(self.anonymous_kib),
            files: bytes(self.files_kib),
            shared: bytes(self.shared_kib),
            swapped: bytes(self.swapped_kib),
        }
    }

    pub(super) fn of(root: &Root, pid: Pid) -> Option<Self> {
        let bytes = fs::read(root.proc(format!("{pid}/status"))).ok()?;
        Some(Self::parse(&String::from_utf8_lossy(&bytes)))
    }
}

/// Nodes that a process's cpuset allows; `None` where the kernel does not tell.
pub(in crate::sys) fn mems_allowed(root: &Root, pid: Pid) -> Option<Vec<NodeId>> {
    Status::of(root, pid)?.mems_allowed
}

fn kib(value: &str) -> u64 {
    let number = value.trim().trim_end_matches("kB").trim();
    number.parse().unwrap_or(0)
}

/// Arguments joined by blanks, as bytes.
pub(super) fn command_line(root: &Root, pid: Pid) -> Vec<u8> {
    let mut bytes = fs::read(root.proc(format!("{pid}/cmdline"))).unwrap_or_default();
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    for byte in &mut bytes {
        if *byte == 0 {
            *byte = b' ';
        }
    }
    bytes
}

/// Every process's number, ascending.
pub(super) fn all(root: &Root) -> io::Result<Vec<Pid>> {
    let mut pids: Vec<Pid> = fs::read_dir(root.proc(""))?
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse().ok().map(Pid))
        .collect();
    pids.sort_unstable();
    Ok(pids)
}

/// A hold on one process that no other can be mistaken for.
#[derive(Debug)]
pub(in crate::sys) struct Handle {
    /// `None` below a root that is not the host's.
    pidfd: Option<OwnedFd>,
    /// Stays with the address space that it was opened on: after an exec it
    /// reads nothing.
    maps: File,
    /// What tells processes apart below such a root.
    recorded: Option<(Root, Pid, u64)>,
}

/// Why there is no hold on a process.
#[derive(Debug)]
pub(in crate::sys) enum NoHandle {
    /// `pidfd_open` failed.
    Pidfd(io::Error),
    /// Its mappings cannot be opened.
    Maps(io::Error),
    /// These can, but its page map cannot.
    Pagemap(io::Error),
}

impl NoHandle {
    /// Whether it is because the process has ended.
    pub(super) fn is_gone(&self) -> bool {
        let (Self::Pidfd(error) | Self::Maps(error) | Self::Pagemap(error)) = self;
        error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
    }

    /// What is in the way, and the remedy.
    pub(super) fn explained(&self) -> String {
        match self {
            Self::Pidfd(error) => format!("pidfd_open: {error}"),
            Self::Maps(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                "its memory may not be looked at: run hmkeeper as root or with CAP_SYS_PTRACE"
                    .into()
            }
            Self::Pagemap(_) => "its page map may not be read: run hmkeeper as root with all \
                 capabilities, or with CAP_DAC_READ_SEARCH"
                .into(),
            Self::Maps(error) => format!("its mappings cannot be read: {error}"),
        }
    }
}

impl Handle {
    pub(in crate::sys) fn open(root: &Root, pid: Pid) -> Result<Self, NoHandle> {
        let pidfd = if *root == Root::host() {
            let gone = || NoHandle::Maps(io::ErrorKind::NotFound.into());
            let pid = rustix::process::Pid::from_raw(pid.0).ok_or_else(gone)?;
            hold(root, pid).map_err(NoHandle::Pidfd)?
        } else {
            None
        };
        let start = || Stat::of(root, pid).map_or(0, |stat| stat.start_time);
        let recorded = pidfd.is_none().then(|| (root.apart(), pid, start()));
        let maps = File::open(root.proc(format!("{pid}/maps"))).map_err(NoHandle::Maps)?;
        // Its mode shuts out whoever may look at the process but is not its user.
        match File::open(root.proc(format!("{pid}/pagemap"))) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                return Err(NoHandle::Pagemap(e));
            }
            _ => {}
        }
        Ok(Self {
            pidfd,
            maps,
            recorded,
        })
    }

    /// Whether the process is there and runs the program that it was opened on.
    pub(in crate::sys) fn is_there(&self) -> bool {
        let is_same = self.recorded.as_ref().is_none_or(|(root, pid, start)| {
            Stat::of(root, *pid).is_some_and(|stat| stat.start_time == *start)
        });
        is_same && self.has_memory() && !self.has_ended()
    }

    /// Whether the process, all its threads, has ended.
    pub(super) fn has_ended(&self) -> bool {
        let Some(pidfd) = &self.pidfd else {
            return false;
        };
        let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // An error would be ours (EINTR); the next epoch asks again.
        poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
    }

    /// Whether the address space that it was opened on is still there.
    pub(super) fn has_memory(&self) -> bool {
        self.maps.read_at(&mut [0], 0).is_ok_and(|n| n > 0)
    }

    /// Its mappings as text, into a buffer that is used again. Empty when the
    /// address space is gone: it has ended, or runs another program.
    pub(super) fn read_maps(&self, into: &mut Vec<u8>) -> io::Result<()> {
        into.clear();
        let mut maps = &self.maps;
        maps.rewind()?;
        match maps.read_to_end(into) {
            Ok(_) => Ok(()),
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {
                into.clear();
                Ok(())
            }
            Err(e) => Err(e),
        }
    }
}

/// A pidfd. It takes no right: who denies it denies it altogether, and a process is known by
/// its start time then.
fn hold(root: &Root, pid: rustix::process::Pid) -> io::Result<Option<OwnedFd>> {
    static SAID: Once = Once::new();
    match pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from) {
        Ok(pidfd) => Ok(Some(pidfd)),
        Err(error) if denied::may_be(&error) => {
            SAID.call_once(|| {
                tracing::warn!(
                    "pidfd_open(2) is denied to hmkeeper itself ({error}) by {}: processes are told apart by \
                     their start times, and nothing is paged out; allow it there and start hmkeeper again",
                    denied::by_whom(root)
                );
            });
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// CPU time of all threads, ended ones included, since the process began.
///
/// The process's own CPU clock counts nanoseconds and needs no permission;
/// `stat` counts ticks of 10 ms, which is all that a recorded `/proc` has.
pub(super) fn cpu_time(root: &Root, pid: Pid, stat: &Stat) -> Nanos {
    if *root != Root::host() {
        return stat.ticks;
    }
    clock_getcpuclockid(nix::unistd::Pid::from_raw(pid.0))
        .and_then(clock_gettime)
        .map_or(stat.ticks, |time| {
            Nanos::from(std::time::Duration::from(time))
        })
}

/// CPU time of one thread: from `schedstat` in nanoseconds, else in ticks.
pub(super) fn thread_time(root: &Root, pid: Pid, tid: i32, stat: &Stat) -> Nanos {
    fs::read_to_string(root.proc(format!("{pid}/task/{tid}/schedstat")))
        .ok()
        .and_then(|text| text.split_ascii_whitespace().next()?.parse().ok())
        .map_or(stat.ticks, Nanos)
}

/// Why a process cannot be watched whose main thread has ended and others have not: the
/// kernel shows memory through the main thread only. `None` where none is left.
pub fn headless(root: &Root, pid: Pid) -> Option<String> {
    let others = threads(root, pid).into_iter().filter(|&tid| tid != pid.0);
    let alive = others.filter_map(|tid| Stat::of_thread(root, pid, tid));
    let count = alive.filter(|stat| !stat.is_dead()).count();
    (count > 0).then(|| {
        format!(
            "its main thread has ended, through which the kernel shows its memory; {count} other \
             threads live on: its program would have to keep the main thread"
        )
    })
}

/// The threads of a process.
pub(super) fn threads(root: &Root, pid: Pid) -> Vec<i32> {
    fs::read_dir(root.proc(format!("{pid}/task")))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_blanks_is_no_trouble() {
        let text = "2590 (a) R (b) S 85 0 0 0 -1 4194304 56 0 0 0 3 4 0 0 20 0 1 0 8622 3080192 304 \
                    18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 5 0 0 0 0 0 0 0 0 0 0 0 0 0";
        let stat = Stat::parse(text).unwrap();
        assert_eq!(stat.comm, "a) R (b");
        assert_eq!(stat.state, b'S');
        assert_eq!(stat.parent, Pid(85));
        assert_eq!(stat.ticks, Nanos(70_000_000));
        assert_eq!(stat.start_time, 8622);
        assert_eq!(stat.processor, 5);
        assert!(!stat.kernel_thread);
        assert!(Stat::parse("12 (x) R").is_none());
    }

    #[test]
    fn status_tells_nodes_and_locked_memory() {
        let status = Status::parse(
            "Name:\tx\nTgid:\t12\nVmLck:\t       8 kB\nRssAnon:\t 9 kB\nRssFile:\t 4 kB\nRssShmem:\t  12 kB\nVmSwap:\t 1 kB\nMems_allowed_list:\t0,2-3\n",
        );
        assert_eq!(status.process, Some(Pid(12)));
        let kib = [status.locked_kib, status.anonymous_kib, status.shared_kib];
        assert_eq!(kib, [8, 9, 12]);
        assert_eq!([status.files_kib, status.swapped_kib], [4, 1]);
        assert_eq!(
            status.mems_allowed,
            Some(vec![NodeId(0), NodeId(2), NodeId(3)])
        );
        assert_eq!(Status::parse("VmLck:\t       0 kB\n").locked_kib, 0);
    }

    #[test]
    fn our_own_cpu_clock_is_finer_than_a_tick() {
        let root = Root::host();
        let pid = Pid(i32::try_from(std::process::id()).unwrap());
        let stat = Stat::of(&root, pid).unwrap();
        let first = cpu_time(&root, pid, &stat);
        let mut now = first;
        while now == first {
            now = cpu_time(&root, pid, &stat);
        }
        assert!(now.saturating_sub(first) < Nanos::from_millis(10));
    }
}
