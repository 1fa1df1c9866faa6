//! A few pages of our own, to try kernel features on.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, Ordering};

use super::pagemap::{Entry, Pagemap, Pfn};
use super::root::Root;
use crate::units::{PAGE_BYTES, PageRange, Pid, VirtAddr};

/// `linux/mempolicy.h`: pages of the caller only.
const MPOL_MF_MOVE: libc::c_int = 1 << 1;

/// Private anonymous pages of 4 KiB, all present; unmapped on drop.
#[derive(Debug)]
pub(super) struct OwnPages {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is no thread's own, stays as long as the value, is accessed atomically, and only protected
// by who has it alone.
unsafe impl Sync for OwnPages {}

impl OwnPages {
    /// `count` pages, each written to.
    pub(super) fn new(count: usize) -> io::Result<Self> {
        let bytes = count * page_bytes();
        // SAFETY: a new private mapping at an address of the kernel's choice
        // touches no memory that anybody uses.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(io::Error::last_os_error)?;
        let own = Self { base, bytes };
        // SAFETY: the mapping is `bytes` long and ours. The advice only keeps
        // it in small pages; it fails where the kernel has no huge ones.
        unsafe { libc::madvise(own.base.as_ptr().cast(), bytes, libc::MADV_NOHUGEPAGE) };
        for index in 0..count {
            own.touch(index);
        }
        Ok(own)
    }

    /// Their addresses.
    pub(super) fn range(&self) -> Option<PageRange> {
        let start = VirtAddr(self.base.as_ptr().addr() as u64);
        PageRange::new(start, VirtAddr(start.0 + self.bytes as u64))
    }

    /// The address of one of them.
    pub(super) fn address(&self, index: usize) -> *mut libc::c_void {
        assert!(index * page_bytes() < self.bytes);
        // SAFETY: within the mapping, as just checked.
        unsafe { self.base.as_ptr().add(index * page_bytes()).cast() }
    }

    /// Writes to one of them.
    pub(super) fn touch(&self, index: usize) {
        // SAFETY: a writable byte of our own mapping, only ever accessed so.
        let byte = unsafe { AtomicU8::from_ptr(self.address(index).cast()) };
        byte.store(1, Ordering::Relaxed);
    }

    /// Writes to one of them after its translation has left the TLB, so that
    /// the processor sets the accessed bit anew.
    pub(super) fn protect_and_touch(&mut self, index: usize) -> io::Result<()> {
        for protection in [libc::PROT_NONE, libc::PROT_READ | libc::PROT_WRITE] {
            // SAFETY: a whole page of our own mapping, to which no reference exists.
            let rc = unsafe { libc::mprotect(self.address(index), page_bytes(), protection) };
            if rc != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        self.touch(index);
        Ok(())
    }

    /// `move_pages(2)` of the first to a node, or with `None` the query where
    /// it is. Returns its node.
    pub(super) fn move_first(&self, to: Option<i32>) -> io::Result<i32> {
        let pages = [self.address(0)];
        let nodes = [to.unwrap_or(0)];
        let mut status = [-libc::ENODEV];
        let nodes = to.map_or(ptr::null(), |_| nodes.as_ptr());
        // SAFETY: arrays of one element each that outlive the call; the page is
        // a mapping of ours, whose content a move does not change.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                0,
                1_usize,
                pages.as_ptr(),
                nodes,
                status.as_mut_ptr(),
                MPOL_MF_MOVE,
            )
        };
        match (rc, status[0]) {
            (-1, _) => Err(io::Error::last_os_error()),
            (_, error @ ..0) => Err(io::Error::from_raw_os_error(-error)),
            (_, node) => Ok(node),
        }
    }

    /// What the kernel's page map says of each.
    pub(super) fn entries(&self, root: &Root) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        if let Some(range) = self.range() {
            Pagemap::open(root, own_pid())?.read(range, &mut entries)?;
        }
        Ok(entries)
    }

    /// The frame of each, where the kernel tells.
    pub(super) fn frames(&self, root: &Root) -> io::Result<Vec<Option<Pfn>>> {
        Ok(self.entries(root)?.iter().map(|e| e.pfn()).collect())
    }
}

impl Drop for OwnPages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing refers to it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// This process.
pub(super) fn own_pid() -> Pid {
    Pid(i32::try_from(std::process::id()).unwrap_or(0))
}

fn page_bytes() -> usize {
    usize::try_from(PAGE_BYTES).unwrap_or(4096)
}
