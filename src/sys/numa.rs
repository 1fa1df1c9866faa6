//! Memory that the demo and its workload place for themselves: a buffer on a
//! chosen node. Nothing here is used on a target.

use std::io;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use super::root::Root;
use crate::units::{Bytes, HUGE_PAGE_BYTES, NodeId, PAGE_BYTES, PageRange, VirtAddr};

/// Words of 8 bytes in a page of 4 KiB.
pub const WORDS_PER_PAGE: usize = 512;
/// The kernel's `MAX_NUMNODES` at most (`CONFIG_NODES_SHIFT` ≤ 10).
const MAX_NODES: usize = 1024;

/// Whether the kernel may back a buffer with huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugePages {
    /// `MADV_HUGEPAGE`.
    Wanted,
    /// `MADV_NOHUGEPAGE`.
    Refused,
}

/// Private anonymous memory, aligned to 2 MiB, unmapped on drop. Its content
/// is atomic words, so any number of threads may read and write it at once.
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is reached only through atomics and belongs to no thread.
unsafe impl Send for Buffer {}
// SAFETY: as above; shared access goes through `&[AtomicU64]`.
unsafe impl Sync for Buffer {}

/// This node alone.
fn mask(node: NodeId) -> io::Result<[u64; MAX_NODES / 64]> {
    let index = node.0 as usize;
    if index >= MAX_NODES {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut mask = [0_u64; MAX_NODES / 64];
    mask[index / 64] |= 1 << (index % 64);
    Ok(mask)
}

impl Buffer {
    /// Maps `bytes`, rounded up to whole pages; nothing of it is touched yet.
    ///
    /// # Errors
    /// What `mmap(2)` or `madvise(2)` says. A kernel without transparent huge
    /// pages is no error: it has only small ones.
    pub fn new(bytes: Bytes, huge: HugePages) -> io::Result<Self> {
        let len = to_usize(bytes.pages().max(1) * PAGE_BYTES)?;
        let align = to_usize(HUGE_PAGE_BYTES)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let raw = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len + align,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if raw == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let before = raw.addr().next_multiple_of(align) - raw.addr();
        let start = raw.wrapping_byte_add(before);
        // SAFETY: both ends lie within the mapping made above, page-aligned,
        // and nothing refers to them.
        unsafe {
            if before > 0 {
                libc::munmap(raw, before);
            }
            libc::munmap(start.wrapping_byte_add(len), align - before);
        }
        let buffer = Self {
            start: NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?,
            len,
        };
        let advice = match huge {
            HugePages::Wanted => libc::MADV_HUGEPAGE,
            HugePages::Refused => libc::MADV_NOHUGEPAGE,
        };
        // SAFETY: the range is this buffer's; the advice changes no content.
        let rc = unsafe { libc::madvise(start, len, advice) };
        let error = io::Error::last_os_error();
        if rc != 0 && error.raw_os_error() != Some(libc::EINVAL) {
            return Err(error);
        }
        Ok(buffer)
    }

    /// Its addresses.
    ///
    /// # Panics
    /// Never: a buffer is page-aligned and not empty.
    pub fn range(&self) -> PageRange {
        let start = self.start.as_ptr().addr() as u64;
        PageRange::new(VirtAddr(start), VirtAddr(start + self.len as u64))
            .expect("page-aligned and not empty")
    }

    /// Pages of 4 KiB.
    pub fn page_count(&self) -> usize {
        self.len / (WORDS_PER_PAGE * 8)
    }

    /// Its content.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is readable, writable, aligned, zeroed by the
        // kernel, lives as long as `self`, and is only ever seen as atomics.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.len / 8) }
    }

    /// Pages touched from now on come from `node` alone (`MPOL_BIND`). When it
    /// is full the kernel's OOM killer comes: ask [`node_free`] before.
    ///
    /// # Errors
    /// What `mbind(2)` says: `EINVAL` for a node that is not there.
    pub fn bind(&self, node: NodeId) -> io::Result<()> {
        self.set_policy(libc::MPOL_BIND, &mask(node)?)
    }

    /// Pages touched from now on come from `node` where it has any that nobody has to be
    /// reclaimed for, and else from another one (`MPOL_PREFERRED`).
    ///
    /// # Errors
    /// What `mbind(2)` says: `EINVAL` for a node that is not there.
    pub fn prefer(&self, node: NodeId) -> io::Result<()> {
        self.set_policy(libc::MPOL_PREFERRED, &mask(node)?)
    }

    /// Back to the thread's own policy: no policy of this buffer's remains.
    ///
    /// # Errors
    /// What `mbind(2)` says.
    pub fn unbind(&self) -> io::Result<()> {
        self.set_policy(libc::MPOL_DEFAULT, &[])
    }

    fn set_policy(&self, mode: i32, mask: &[u64]) -> io::Result<()> {
        let (pointer, bits) = if mask.is_empty() {
            (std::ptr::null(), 0)
        } else {
            // The kernel reads one bit less than it is told.
            (mask.as_ptr(), mask.len() * 64 + 1)
        };
        // SAFETY: the range is this buffer's, the mask outlives the call and
        // holds the bits that are announced.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.start.as_ptr(),
                self.len,
                mode,
                pointer,
                bits,
                0,
            )
        };
        if rc == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Cuts it into so many mappings, or as many as it has pages: every other one
    /// is left out of core dumps, which changes nothing else.
    ///
    /// # Errors
    /// What `madvise(2)` says: `ENOMEM` above `vm.max_map_count`.
    pub fn cut(&self, mappings: usize) -> io::Result<()> {
        let (pages, page) = (self.page_count(), WORDS_PER_PAGE * 8);
        let mappings = mappings.clamp(1, pages);
        for odd in (1..mappings).step_by(2) {
            let (from, to) = (odd * pages / mappings, (odd + 1) * pages / mappings);
            let start = self.start.as_ptr().wrapping_add(from * page);
            // SAFETY: the range is this buffer's; the advice changes no content.
            let rc =
                unsafe { libc::madvise(start.cast(), (to - from) * page, libc::MADV_DONTDUMP) };
            if rc != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }

    /// Keeps its first pages from being reclaimed, as far as the limits allow.
    ///
    /// # Errors
    /// What `mlock(2)` says.
    pub fn lock(&self, pages: usize) -> io::Result<()> {
        let len = self.len.min(pages.saturating_mul(to_usize(PAGE_BYTES)?));
        // SAFETY: the range is this buffer's.
        match unsafe { libc::mlock(self.start.as_ptr().cast(), len) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the mapping is this buffer's own and nothing borrows it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

fn to_usize(n: u64) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::ErrorKind::OutOfMemory.into())
}

/// Free bytes on a node, from its `meminfo`.
///
/// # Errors
/// When the node is not there or its file cannot be read.
pub fn node_free(root: &Root, node: NodeId) -> io::Result<Bytes> {
    let path = root.sys(format!("devices/system/node/node{node}/meminfo"));
    let text = std::fs::read_to_string(&path)?;
    parse_free(&text).ok_or_else(|| malformed(&path))
}

fn parse_free(meminfo: &str) -> Option<Bytes> {
    let line = meminfo.lines().find(|l| l.contains(" MemFree:"))?;
    let kib: u64 = line.split_whitespace().nth(3)?.parse().ok()?;
    Some(Bytes(kib * 1024))
}

fn malformed(path: &Path) -> io::Error {
    io::Error::other(format!("{}: no MemFree line", path.display()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::sys::move_pages;

    #[test]
    fn a_buffer_is_aligned_and_its_pages_appear_when_touched() {
        let buffer = Buffer::new(Bytes::from_mib(4), HugePages::Refused).unwrap();
        let range = buffer.range();
        assert!(range.start().0.is_multiple_of(HUGE_PAGE_BYTES));
        assert_eq!(range.bytes(), Bytes::from_mib(4));
        buffer.words()[WORDS_PER_PAGE].store(7, Ordering::Relaxed);
        let pages: Vec<VirtAddr> = range.iter_pages().take(3).collect();
        let Ok(nodes) = move_pages::locate(None, &pages) else {
            eprintln!("skipped: move_pages is not allowed here");
            return;
        };
        assert_eq!(nodes[0], None, "never touched");
        assert!(nodes[1].is_some(), "touched");
        assert_eq!(nodes[2], None, "never touched");
        assert_eq!(buffer.words()[WORDS_PER_PAGE].load(Ordering::Relaxed), 7);
    }

    #[test]
    fn a_node_that_is_not_there_is_an_error() {
        let buffer = Buffer::new(Bytes(PAGE_BYTES), HugePages::Refused).unwrap();
        assert!(buffer.bind(NodeId(1023)).is_err());
        assert!(buffer.bind(NodeId(5000)).is_err());
    }

    #[test]
    fn free_memory_is_read_from_meminfo() {
        let text = "\nNode 2 MemTotal:        2063940 kB\nNode 2 MemFree:         2052324 kB\n";
        assert_eq!(parse_free(text), Some(Bytes(2_052_324 * 1024)));
        assert_eq!(parse_free("Node 2 MemTotal: 1 kB\n"), None);
    }
}
