//! Paging out: `process_madvise(2)` with `MADV_PAGEOUT`, and what swap there is.
//!
//! **Unit.** A call takes 2 MiB of addresses at most, aligned, so that no huge page is
//! split for half of it and the target's address space is held (for reading) for as long
//! as 512 pages take.
//!
//! What the manual pages leave out (seen on 6.12 and 6.18):
//! - Pages that other processes map, too, and pages that are pinned stay, and nothing tells
//!   which: what went is the difference of present pages in the page map.
//! - `mlock`ed, hugetlb and device mappings are `EINVAL`, holes `ENOMEM`: both are skipped.
//! - The right needed is that to read the target's memory (`CAP_SYS_PTRACE`) and, since it
//!   is made slower, `CAP_SYS_NICE`.
//! - The caller compresses, in its own CPU time, where swap is zram or zswap.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{PidfdFlags, pidfd_open};

use super::cgroup::swap_room;
use super::clock::monotonic;
use super::denied;
use super::own_pages::{OwnPages, own_pid};
use super::pagemap::{Entry, Pagemap};
use super::root::Root;
use super::targets::Stat;
use crate::ports::Pager;
use crate::tiering::observation::TargetMap;
use crate::tiering::pageout::{PageOut, Pageable, PagedOut, Swap};
use crate::units::{Bytes, HUGE_PAGE_BYTES, Nanos, PageRange, Pid, VirtAddr};

/// Paging out as the kernel does it.
#[derive(Debug)]
pub struct SysPager {
    root: Root,
    /// Set when the turn is to end.
    halt: Arc<AtomicBool>,
    /// Whose memory the kernel refuses to page out.
    refused: BTreeSet<Pid>,
    /// Whether it is denied to us altogether, once that was tried: nothing changes it.
    is_denied: Option<bool>,
    entries: Vec<Entry>,
}

impl SysPager {
    /// Over the kernel below `root`; a turn ends early while `halt` is set.
    pub fn new(root: &Root, halt: Arc<AtomicBool>) -> Self {
        Self {
            root: root.clone(),
            halt,
            refused: BTreeSet::new(),
            is_denied: None,
            entries: Vec::new(),
        }
    }

    /// Pages out one range, until `end`.
    fn one(&mut self, process: &Process, asked: &PageOut, end: Nanos) -> PagedOut {
        let mut out = PagedOut {
            asked: asked.clone(),
            pages: 0,
            is_whole: false,
        };
        for part in parts(asked.range) {
            let is_over = monotonic() >= end || self.halt.load(Ordering::Relaxed);
            if is_over || Bytes::from_pages(out.pages) >= asked.limit {
                return out;
            }
            let Some(before) = self.present(process, part) else {
                return out;
            };
            if before == 0 {
                continue;
            }
            match advise(&process.pidfd, part) {
                Ok(()) => {}
                Err(error) => match error.raw_os_error() {
                    Some(libc::ESRCH) => return out,
                    Some(libc::EPERM | libc::ENOSYS) => {
                        self.refuse(asked.pid, &error);
                        return out;
                    }
                    // Some of it cannot be paged out, or the kernel has too much to do.
                    _ => {}
                },
            }
            let Some(after) = self.present(process, part) else {
                return out;
            };
            out.pages += before.saturating_sub(after);
        }
        out.is_whole = true;
        out
    }

    /// Of this process nothing is paged out any more. Says so: once where that is so of all.
    fn refuse(&mut self, pid: Pid, error: &io::Error) {
        self.refused.insert(pid);
        if self.is_denied.is_none() {
            let denied = try_own(&self.root).err().filter(denied::may_be);
            self.is_denied = Some(denied.is_some());
            if let Some(error) = denied {
                tracing::warn!(
                    "nothing is paged out: process_madvise(2) or pidfd_open(2) is denied to hmkeeper itself \
                     ({error}) by {}, or CAP_SYS_NICE is missing; they need Linux 5.10: allow them and start hmkeeper \
                     again",
                    denied::by_whom(&self.root)
                );
            }
        }
        if self.is_denied == Some(false) {
            tracing::warn!(
                %pid, %error,
                "nothing of it is paged out: process_madvise needs CAP_SYS_NICE and CAP_SYS_PTRACE"
            );
        }
    }

    /// Present pages of a range; `None` when the process has ended, or is not ours to read.
    fn present(&mut self, process: &Process, range: PageRange) -> Option<u64> {
        let read = process.pagemap.read(range, &mut self.entries);
        read.ok()?;
        Some(self.entries.iter().filter(|e| e.present()).count() as u64)
    }
}

impl Pager for SysPager {
    fn look(&mut self, targets: &[TargetMap]) -> (Swap, Vec<Pageable>) {
        let swap = read_swap(&self.root);
        (self.refused).retain(|pid| targets.iter().any(|t| t.pid == *pid));
        let told = |target: &TargetMap| {
            let stat = Stat::of(&self.root, target.pid)?;
            Some(Pageable {
                target: target.id,
                faults: stat.major_faults,
                is_permitted: self.is_denied != Some(true) && !self.refused.contains(&target.pid),
                room: swap_room(&self.root, target.pid),
            })
        };
        (swap, targets.iter().filter_map(told).collect())
    }

    fn page_out(&mut self, wanted: &[PageOut], time: Nanos) -> Vec<PagedOut> {
        let end = monotonic() + time;
        let mut open: Option<(Pid, Option<Process>)> = None;
        let mut results = Vec::new();
        for asked in wanted {
            if open.as_ref().is_none_or(|(pid, _)| *pid != asked.pid) {
                // One process's trouble is no reason to give up the others.
                let process = Process::open(&self.root, asked.pid).inspect_err(|error| {
                    tracing::debug!(pid = %asked.pid, %error, "cannot be paged out");
                    if denied::may_be(error) {
                        self.refuse(asked.pid, error);
                    }
                });
                open = Some((asked.pid, process.ok()));
            }
            if let Some((_, Some(process))) = &open {
                results.push(self.one(process, asked, end));
            }
        }
        results
    }
}

/// A target, held so that no other with the same pid is taken for it.
#[derive(Debug)]
struct Process {
    pidfd: OwnedFd,
    pagemap: Pagemap,
}

impl Process {
    fn open(root: &Root, pid: Pid) -> io::Result<Self> {
        let handle = rustix::process::Pid::from_raw(pid.0).ok_or(io::ErrorKind::InvalidInput)?;
        let pidfd = pidfd_open(handle, PidfdFlags::empty())?;
        let pagemap = Pagemap::open(root, pid)?;
        // After both were opened: they stay with their process.
        if root.holds().is_lost(pid) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(Self { pidfd, pagemap })
    }
}

/// A range cut at multiples of 2 MiB.
fn parts(range: PageRange) -> impl Iterator<Item = PageRange> {
    let mut at = range.start();
    std::iter::from_fn(move || {
        let next = VirtAddr(at.align_down(HUGE_PAGE_BYTES).0 + HUGE_PAGE_BYTES).min(range.end());
        let part = PageRange::new(at, next)?;
        at = next;
        Some(part)
    })
}

fn advise(pidfd: &OwnedFd, range: PageRange) -> io::Result<()> {
    let bytes = usize::try_from(range.bytes().0).map_err(|_| io::ErrorKind::InvalidInput)?;
    let start = usize::try_from(range.start().0).map_err(|_| io::ErrorKind::InvalidInput)?;
    let part = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(start),
        iov_len: bytes,
    };
    // SAFETY: the one iovec outlives the call; its address is looked up in the other process
    // and never followed here. MADV_PAGEOUT changes where pages are, never what they hold.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            pidfd.as_raw_fd(),
            &raw const part,
            1_usize,
            libc::MADV_PAGEOUT,
            0_u32,
        )
    };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Whether the calls are allowed at all: on our own memory, where they need no right.
fn try_own(root: &Root) -> io::Result<()> {
    let own = OwnPages::new(1)?;
    let range = own.range().ok_or(io::ErrorKind::InvalidInput)?;
    advise(&Process::open(root, own_pid())?.pidfd, range)
}

/// Pages out a page of our own; what was seen, in one line, if it works and if not.
pub(super) fn try_own_page(root: &Root) -> io::Result<Result<String, String>> {
    let swap = read_swap(root);
    if swap.total.is_zero() {
        return Ok(Err("there is no swap".to_owned()));
    }
    let own = OwnPages::new(1)?;
    let range = own.range().ok_or(io::ErrorKind::InvalidInput)?;
    advise(&Process::open(root, own_pid())?.pidfd, range)?;
    let is_out = own.entries(root)?.first().is_some_and(|e| e.swapped());
    let kind = if swap.is_memory {
        "in memory"
    } else {
        "on a disk: `pageout.swap = \"any\"` takes it"
    };
    Ok(if is_out {
        Ok(format!(
            "a page of ours went to swap, {}, {kind}",
            swap.total
        ))
    } else {
        Err(format!(
            "a page of ours stayed, of swap {} is free",
            swap.free
        ))
    })
}

/// Swap as it is now; without `/proc/swaps` there is none.
fn read_swap(root: &Root) -> Swap {
    let swaps = fs::read_to_string(root.proc("swaps")).unwrap_or_default();
    let zswap = fs::read_to_string(root.sys("module/zswap/parameters/enabled"));
    parse(&swaps, zswap.is_ok_and(|text| text.starts_with(['Y', '1'])))
}

/// What `/proc/swaps` says: a line for each, sizes in KiB.
fn parse(swaps: &str, has_zswap: bool) -> Swap {
    let mut swap = Swap {
        total: Bytes::ZERO,
        free: Bytes::ZERO,
        is_memory: true,
    };
    for line in swaps.lines().skip(1) {
        // Blanks in a name are written as \040.
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, _, size, used, ..] = words[..] else {
            continue;
        };
        let kib = |word: &str| Bytes::from_kib(word.parse().unwrap_or(0));
        swap.total += kib(size);
        swap.free += kib(size).saturating_sub(kib(used));
        swap.is_memory &= has_zswap || name.starts_with("/dev/zram");
    }
    swap
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiering::observation::TargetId;

    const SWAPS: &str = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
        /dev/zram0                              partition\t524284\t\t1024\t\t100\n";

    #[test]
    fn swap_is_memory_where_nothing_of_it_is_a_disk() {
        let disk = format!("{SWAPS}/dev/nvme0n1p3 partition 1000 0 -2\n");
        let zram = parse(SWAPS, false);
        assert_eq!(zram.total, Bytes::from_kib(524_284));
        assert_eq!(zram.free, Bytes::from_kib(523_260));
        assert!(zram.is_memory);
        assert!(!parse(&disk, false).is_memory);
        assert!(parse(&disk, true).is_memory);
        assert_eq!(parse("", true).total, Bytes::ZERO);
        assert_eq!(parse("Filename Type\nnonsense\n", true).total, Bytes::ZERO);
    }

    #[test]
    fn ranges_are_cut_where_huge_pages_begin() {
        let mib =
            |from: u64, to: u64| PageRange::new(VirtAddr(from << 20), VirtAddr(to << 20)).unwrap();
        let cut: Vec<PageRange> = parts(mib(1, 7)).collect();
        assert_eq!(cut, [mib(1, 2), mib(2, 4), mib(4, 6), mib(6, 7)]);
        assert_eq!(parts(mib(2, 3)).collect::<Vec<_>>(), [mib(2, 3)]);
    }

    #[test]
    fn nobody_is_paged_out_when_nobody_is_there() {
        let halt = Arc::new(AtomicBool::new(false));
        let mut pager = SysPager::new(&Root::host(), halt);
        let asked = PageOut {
            target: TargetId(1),
            pid: Pid(i32::MAX),
            range: PageRange::new(VirtAddr(4096), VirtAddr(8192)).unwrap(),
            limit: Bytes(4096),
        };
        assert_eq!(pager.page_out(&[asked], Nanos::from_secs(1)), []);
    }
}
