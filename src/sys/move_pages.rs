//! `move_pages(2)`: the system call, and what its answers mean.
//!
//! What the manual page leaves out (seen on 6.1 to 6.18):
//! - From 6.3 on pages of one destination are all unmapped before the first is copied, 512 at
//!   most: who touches one waits for those before it. A page that cannot move ends such a
//!   group ([`move_in_groups`]).
//! - A positive return is the number of pages that did not move. The call ends with the
//!   group in which one did not, and the statuses from there on are untouched: the array is
//!   filled beforehand with [`UNTOUCHED`], and the pages are asked for again.
//! - After an error nothing can be assumed about the batch.
//! - A "move" to where a page is already costs ten queries.

use std::io;

use crate::units::{NodeId, PAGE_BYTES, Pid, VirtAddr};

/// `MPOL_MF_MOVE` of `linux/mempolicy.h`, which libc does not have: move pages
/// that this process alone maps.
pub const MPOL_MF_MOVE: i32 = 1 << 1;
/// The same: also those that other processes map (`CAP_SYS_NICE`).
pub const MPOL_MF_MOVE_ALL: i32 = 1 << 2;
/// What a status is before the kernel writes it; no errno has this value.
const UNTOUCHED: i32 = i32::MIN;
/// Where no process has anything mapped: the last page of the kernel's half.
const NOWHERE: VirtAddr = VirtAddr(0u64.wrapping_sub(PAGE_BYTES));

/// Which pages move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Those that the process alone maps.
    Alone,
    /// Those that others map as well.
    All,
}

impl Which {
    fn flag(self) -> i32 {
        match self {
            Self::Alone => MPOL_MF_MOVE,
            Self::All => MPOL_MF_MOVE_ALL,
        }
    }
}

/// What the kernel says of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It is on this node now.
    On(NodeId),
    /// Not mapped, swapped, or the zero page.
    Absent,
    /// Pinned, under I/O or on its way.
    Busy,
    /// The node has no page free.
    NoRoom,
    /// Mapped by others too.
    Shared,
    /// Of a kind that does not move.
    Refused,
    /// The kernel wrote nothing.
    Untold,
}

impl Status {
    fn of(raw: i32) -> Self {
        if let Ok(node) = u32::try_from(raw) {
            return Self::On(NodeId(node));
        }
        // Negated below only after UNTOUCHED, the one value without a negative.
        match raw {
            UNTOUCHED => Self::Untold,
            _ => match -raw {
                libc::ENOENT | libc::EFAULT => Self::Absent,
                libc::EBUSY | libc::EAGAIN => Self::Busy,
                libc::ENOMEM => Self::NoRoom,
                libc::EACCES => Self::Shared,
                _ => Self::Refused,
            },
        }
    }
}

/// Where pages are: one status each, `On` or `Absent` for most.
///
/// # Errors
/// `ESRCH` when the process has ended; `EPERM` without the right to trace it.
pub fn query(pid: Pid, pages: &[VirtAddr]) -> io::Result<Vec<Status>> {
    call(pid, pages, None).map(|(_, status)| statuses(status))
}

/// The same as nodes: `None` for a page that is not present or on its way.
/// `None` for `pid` means this process.
///
/// # Errors
/// As for [`query`].
pub fn locate(pid: Option<Pid>, pages: &[VirtAddr]) -> io::Result<Vec<Option<NodeId>>> {
    let node = |status| match status {
        Status::On(node) => Some(node),
        _ => None,
    };
    let status = query(pid.unwrap_or(Pid(0)), pages)?;
    Ok(status.into_iter().map(node).collect())
}

/// Moves pages to one node, one address per folio. Returns whether the kernel
/// reported on all of them, and a status each.
///
/// # Errors
/// `ESRCH` when the process has ended; `EACCES` when its cpuset forbids the
/// node; `ENODEV` when there is no such node; `EPERM` without the right, for
/// [`Which::All`] without `CAP_SYS_NICE`.
pub fn move_to(
    pid: Pid,
    pages: &[VirtAddr],
    node: NodeId,
    which: Which,
) -> io::Result<(bool, Vec<Status>)> {
    let node = i32::try_from(node.0).map_err(|_| io::ErrorKind::InvalidInput)?;
    let (left, status) = call(pid, pages, Some((node, which)))?;
    Ok((left == 0, statuses(status)))
}

/// The same, `held` of them at a time: so many are unmapped together, and whoever touches one
/// waits for so many at most. Returns a status each, as far as the kernel came: it ends with the
/// group in which a page did not move.
///
/// Each call first waits for every CPU to empty its lists of pages, which costs as much as several
/// pages do. So groups are parted by an address where nothing is, which makes the kernel move
/// what it has gathered, and not by calls.
///
/// # Errors
/// As for [`move_to`].
pub fn move_in_groups(
    pid: Pid,
    pages: &[VirtAddr],
    held: usize,
    node: NodeId,
    which: Which,
) -> io::Result<Vec<Status>> {
    let held = held.clamp(1, pages.len().max(1));
    let raw_node = i32::try_from(node.0).map_err(|_| io::ErrorKind::InvalidInput)?;
    let (left, raw) = call(pid, &parted(pages, held), Some((raw_node, which)))?;
    let mut groups = raw
        .chunks(held + 1)
        .flat_map(|group| group.iter().take(held));
    if left == 0 && groups.all(|status| *status == raw_node) {
        // As nearly always.
        return Ok(vec![Status::On(node); pages.len()]);
    }
    Ok(unparted(statuses(raw), held, left == 0))
}

/// The statuses of pages, without those between groups, as far as the kernel came. Where it ended
/// a call nothing is told of the group in which a page did not move; what ended that group,
/// a page that it did not gather or the address between two, has the last status of all.
fn unparted(mut raw: Vec<Status>, held: usize, is_all: bool) -> Vec<Status> {
    let is_untold = |status: &Status| *status == Status::Untold;
    if let Some(failed) = raw.iter().position(is_untold).filter(|_| !is_all) {
        let after = raw[failed..].iter().position(|status| !is_untold(status));
        raw.truncate(after.map_or(raw.len(), |after| failed + after + 1));
    }
    let mut at = 0;
    raw.retain(|_| {
        at += 1;
        at % (held + 1) != 0
    });
    raw
}

/// The pages, with [`NOWHERE`] between each two groups of `held`.
fn parted(pages: &[VirtAddr], held: usize) -> Vec<VirtAddr> {
    let mut parted = Vec::with_capacity(pages.len() + pages.len() / held);
    for group in pages.chunks(held) {
        if !parted.is_empty() {
            parted.push(NOWHERE);
        }
        parted.extend_from_slice(group);
    }
    parted
}

fn statuses(raw: Vec<i32>) -> Vec<Status> {
    raw.into_iter().map(Status::of).collect()
}

/// How many did not move, and a status each, as the kernel tells them.
fn call(pid: Pid, pages: &[VirtAddr], to: Option<(i32, Which)>) -> io::Result<(i64, Vec<i32>)> {
    // An address is passed as a pointer.
    const { assert!(size_of::<VirtAddr>() == size_of::<*const libc::c_void>()) };
    if pages.is_empty() {
        return Ok((0, Vec::new()));
    }
    let nodes: Option<Vec<i32>> = to.map(|(node, _)| vec![node; pages.len()]);
    let mut status = vec![UNTOUCHED; pages.len()];
    // SAFETY: the arrays hold `pages.len()` entries and outlive the call; the
    // addresses are looked up in the other process and never followed here.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            pid.0,
            pages.len(),
            pages.as_ptr(),
            nodes
                .as_ref()
                .map_or(std::ptr::null(), |n: &Vec<i32>| n.as_ptr()),
            status.as_mut_ptr(),
            to.map_or(0, |(_, which)| which.flag()),
        )
    };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((rc, status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_are_the_kernels() {
        // include/uapi/linux/mempolicy.h
        assert_eq!((MPOL_MF_MOVE, MPOL_MF_MOVE_ALL), (2, 4));
    }

    #[test]
    fn statuses_are_told_apart() {
        for (raw, want) in [
            (0, Status::On(NodeId(0))),
            (3, Status::On(NodeId(3))),
            (-libc::ENOENT, Status::Absent),
            (-libc::EFAULT, Status::Absent),
            (-libc::EBUSY, Status::Busy),
            (-libc::ENOMEM, Status::NoRoom),
            (-libc::EACCES, Status::Shared),
            (-libc::ENODEV, Status::Refused),
            (UNTOUCHED, Status::Untold),
        ] {
            assert_eq!(Status::of(raw), want, "{raw}");
        }
    }

    #[test]
    fn groups_are_parted_and_none_is_empty() {
        let pages: Vec<VirtAddr> = (1..=4).map(|i| VirtAddr(i << 12)).collect();
        let [a, b, c, d] = pages[..] else {
            unreachable!()
        };
        assert_eq!(parted(&pages, 2), [a, b, NOWHERE, c, d]);
        assert_eq!(parted(&pages, 3), [a, b, c, NOWHERE, d]);
        assert_eq!(parted(&pages, 4), pages);
        assert!(parted(&[], 4).is_empty());
    }

    #[test]
    fn a_call_that_ends_early_tells_how_far_it_came() {
        let (told, absent, untold) = (Status::On(NodeId(1)), Status::Absent, Status::Untold);
        let cut = |raw: &[Status]| unparted(raw.to_vec(), 2, false).len();
        // Ended by the address between two groups, by a page within one, and by the end.
        let between = [untold, untold, absent, untold, untold];
        assert_eq!(cut(&between), 2);
        assert_eq!(
            cut(&[told, told, absent, untold, absent, untold, untold]),
            4
        );
        assert_eq!(cut(&[untold, absent, untold, untold, untold]), 2);
        assert_eq!(cut(&[told, told, absent, untold, untold]), 4);
        assert_eq!(cut(&[told, told, absent, told]), 3);
        // All was reported on.
        assert_eq!(unparted(between.to_vec(), 2, true).len(), 4);
        assert_eq!(unparted(vec![told, absent, told], 1, true), [told, told]);
    }

    #[test]
    fn our_own_pages_can_be_asked_for() {
        let value = Box::new([1_u8; 8192]);
        let here = VirtAddr(value.as_ptr().addr() as u64).page();
        let pid = Pid(i32::try_from(std::process::id()).unwrap());
        match query(pid, &[here, VirtAddr(0), NOWHERE]) {
            Ok(status) => {
                assert!(matches!(status[0], Status::On(_)), "{status:?}");
                assert_eq!(status[1..], [Status::Absent; 2]);
            }
            Err(e) => eprintln!("skipped: move_pages is not allowed here: {e}"),
        }
        assert!(query(pid, &[]).unwrap().is_empty());
    }
}
