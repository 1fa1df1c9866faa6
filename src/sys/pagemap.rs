//! Where a process's pages are in physical memory: `/proc/PID/pagemap`, and
//! which node a page frame belongs to.
//!
//! One entry of 64 bits per page of 4 KiB
//! (`Documentation/admin-guide/mm/pagemap.rst`), read for a whole span by one
//! `pread` into a buffer that is used again.
//!
//! An open [`Pagemap`] stays with the address space that it was opened on, not
//! with the pid: after an exit or an `exec` it reads nothing, and never the
//! pages of a process that was given the same pid since.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::root::Root;
use crate::units::{NodeId, PAGE_BYTES, PAGE_SHIFT, PageRange, Pid};

mod scan;

/// Bytes of one entry.
const ENTRY_BYTES: u64 = 8;

/// The number of a page frame: its physical address in pages of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pfn(pub u64);

impl Pfn {
    /// The first frame of the naturally aligned block of `1 << order` frames
    /// that holds this one.
    #[must_use]
    pub fn align_down(self, order: u8) -> Self {
        Self(self.0 & (u64::MAX << order))
    }
}

/// What the kernel says of one page of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Entry(pub u64);

impl Entry {
    const PFN_MASK: u64 = (1 << 55) - 1;

    /// In memory and mapped.
    pub fn present(self) -> bool {
        self.bit(63)
    }

    /// In swap, or being moved at this moment.
    pub fn swapped(self) -> bool {
        self.bit(62)
    }

    /// Of a file, or anonymous memory shared through one.
    pub fn file_or_shared(self) -> bool {
        self.bit(61)
    }

    /// A guard page (Linux 6.14 and later); touching it is a fault.
    pub fn guard(self) -> bool {
        self.bit(58)
    }

    /// Write-protected through userfaultfd.
    pub fn uffd_write_protected(self) -> bool {
        self.bit(57)
    }

    /// Mapped by this process only.
    pub fn exclusive(self) -> bool {
        self.bit(56)
    }

    /// Of memory that may be a pool's: shared by its mapping, or by several processes since a
    /// fork.
    pub(super) fn is_pooled(self) -> bool {
        self.present() && (self.file_or_shared() || !self.exclusive())
    }

    /// Written since `clear_refs` was last told to forget; never set by a kernel
    /// without soft-dirty support.
    pub fn soft_dirty(self) -> bool {
        self.bit(55)
    }

    /// Its frame; `None` where the page is not present, or where we lack
    /// `CAP_SYS_ADMIN`, in which case the kernel says 0.
    pub fn pfn(self) -> Option<Pfn> {
        let pfn = self.0 & Self::PFN_MASK;
        (self.present() && pfn != 0).then_some(Pfn(pfn))
    }

    /// Its frame if it is present and no other process maps it, as [`pfn`](Self::pfn) has it.
    pub(super) fn exclusive_frame(self) -> Option<Pfn> {
        const BOTH: u64 = 1 << 63 | 1 << 56;
        let pfn = self.frame();
        (self.0 & BOTH == BOTH && pfn != 0).then_some(Pfn(pfn))
    }

    /// What stands where a present page has its frame.
    pub(super) fn frame(self) -> u64 {
        self.0 & Self::PFN_MASK
    }

    fn bit(self, bit: u32) -> bool {
        self.0 >> bit & 1 == 1
    }
}

/// One process's page map, held open.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
}

impl Pagemap {
    /// Opens the map of `pid`.
    ///
    /// # Errors
    /// `NotFound` or `ESRCH` when there is no such process or it has no memory
    /// of its own (a zombie, a kernel thread), `ESRCH` also when the pid was a
    /// target's that is no longer there; `PermissionDenied` without the
    /// right to trace it. [`is_gone`] tells the first kind.
    pub fn open(root: &Root, pid: Pid) -> io::Result<Self> {
        let file = File::open(root.proc(pid.to_string()).join("pagemap"))?;
        // After it was opened: it stays with its address space.
        if root.holds().is_lost(pid) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(Self { file })
    }

    /// Fills `out`, after clearing it, with one entry per page of `range`, in
    /// order. Shorter than the range where the address space ends before it;
    /// empty when the process has ended or runs another program.
    ///
    /// # Errors
    /// What `pread` says; a process that has ended is no error.
    pub fn read(&self, range: PageRange, out: &mut Vec<Entry>) -> io::Result<()> {
        let pages = usize::try_from(range.pages()).map_err(io::Error::other)?;
        out.clear();
        out.resize(pages, Entry::default());
        let filled = self.read_into(range.start().page_index(), out);
        out.truncate(*filled.as_ref().unwrap_or(&0));
        filled.map(drop)
    }

    /// Fills `out` with the entries from page `first` (an address in pages of
    /// 4 KiB) on. Returns how many there were.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn read_into(&self, first: u64, out: &mut [Entry]) -> io::Result<usize> {
        let bytes = entry_bytes(out);
        let mut filled = 0;
        while filled < bytes.len() {
            let offset = first * ENTRY_BYTES + filled as u64;
            match self.file.read_at(&mut bytes[filled..], offset) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if is_gone(&e) => break,
                Err(e) => return Err(e),
            }
        }
        // The kernel deals in whole entries only.
        Ok(filled / size_of::<Entry>())
    }
}

/// The memory of `entries` as the kernel fills it.
fn entry_bytes(entries: &mut [Entry]) -> &mut [u8] {
    let len = size_of_val(entries);
    // SAFETY: an Entry is a transparent u64, so the slice is `len` initialised
    // bytes without padding, for which every bit pattern is valid; the borrow
    // of `entries` lasts as long as that of the bytes.
    unsafe { std::slice::from_raw_parts_mut(entries.as_mut_ptr().cast::<u8>(), len) }
}

/// Whether a system call failed because the process has ended.
pub fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT))
}

/// Which node each page frame belongs to, from the memory blocks that sysfs
/// lists per node, or from the zones' spans where the kernel has no memory
/// blocks. Changes only when memory is added or removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PfnNodes {
    /// First frame, one past the last, node; sorted and disjoint.
    spans: Vec<(u64, u64, NodeId)>,
}

impl PfnNodes {
    /// Reads the map below `root`. Empty where the kernel tells nothing.
    pub fn read(root: &Root) -> Self {
        let spans = memory_blocks(root)
            .or_else(|| {
                fs::read_to_string(root.proc("zoneinfo"))
                    .ok()
                    .map(|text| zone_spans(&text))
            })
            .unwrap_or_default();
        Self::from_spans(spans)
    }

    /// The node of a frame; `None` where it is not known, or where the frame
    /// lies in a block that two nodes share.
    pub fn node(&self, pfn: Pfn) -> Option<NodeId> {
        self.span(pfn).map(|(_, node)| node)
    }

    /// The same with all adjacent frames of that node, for looking many frames up:
    /// the next one mostly lies there too.
    pub fn span(&self, pfn: Pfn) -> Option<(Range<u64>, NodeId)> {
        let after = self.spans.partition_point(|&(start, ..)| start <= pfn.0);
        let &(start, end, node) = self.spans.get(after.checked_sub(1)?)?;
        (pfn.0 < end).then_some((start..end, node))
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Sorts, joins what touches on one node, and forgets what two nodes claim.
    fn from_spans(mut spans: Vec<(u64, u64, NodeId)>) -> Self {
        spans.sort_unstable();
        let mut disputed: Vec<(u64, u64)> = Vec::new();
        let mut reached = (0, NodeId(0));
        for &(start, end, node) in &spans {
            if start < reached.0 && node != reached.1 {
                disputed.push((start, end.min(reached.0)));
            }
            if end > reached.0 {
                reached = (end, node);
            }
        }
        let mut joined: Vec<(u64, u64, NodeId)> = Vec::new();
        for (mut start, end, node) in spans {
            for &(from, to) in &disputed {
                if from < end && start < to {
                    if start < from {
                        push_joined(&mut joined, (start, from, node));
                    }
                    start = start.max(to);
                }
            }
            if start < end {
                push_joined(&mut joined, (start, end, node));
            }
        }
        joined.sort_unstable();
        Self { spans: joined }
    }
}

fn push_joined(spans: &mut Vec<(u64, u64, NodeId)>, span: (u64, u64, NodeId)) {
    match spans.last_mut() {
        Some(last) if last.1 == span.0 && last.2 == span.2 => last.1 = span.1,
        _ => spans.push(span),
    }
}

/// From `node*/memory*`, each a block of `block_size_bytes` (hexadecimal).
fn memory_blocks(root: &Root) -> Option<Vec<(u64, u64, NodeId)>> {
    let size = fs::read_to_string(root.sys("devices/system/memory/block_size_bytes")).ok()?;
    let frames = u64::from_str_radix(size.trim(), 16).ok()? >> PAGE_SHIFT;
    let mut spans = Vec::new();
    for entry in fs::read_dir(root.sys("devices/system/node"))
        .ok()?
        .flatten()
    {
        let Some(node) = numbered(&entry.file_name(), "node") else {
            continue;
        };
        let node = NodeId(u32::try_from(node).ok()?);
        spans.extend(blocks_of(&entry.path()).map(|b| (b * frames, (b + 1) * frames, node)));
    }
    (!spans.is_empty()).then_some(spans)
}

fn blocks_of(node: &Path) -> impl Iterator<Item = u64> + use<> {
    fs::read_dir(node)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|e| numbered(&e.file_name(), "memory"))
}

/// `7` from `node7`.
fn numbered(name: &std::ffi::OsStr, prefix: &str) -> Option<u64> {
    name.to_str()?.strip_prefix(prefix)?.parse().ok()
}

/// From `/proc/zoneinfo`: `start_pfn` and `spanned` of each populated zone.
fn zone_spans(text: &str) -> Vec<(u64, u64, NodeId)> {
    let mut spans = Vec::new();
    let mut node = None;
    let mut spanned = 0;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("Node ") {
            node = rest.split(',').next().and_then(|n| n.parse().ok());
            spanned = 0;
            continue;
        }
        let mut words = line.split_ascii_whitespace();
        match (words.next(), words.next()) {
            (Some("spanned"), Some(count)) => spanned = count.parse().unwrap_or(0),
            (Some("start_pfn:"), Some(start)) => {
                if let (Some(node), Ok(start)) = (node, start.parse::<u64>())
                    && spanned > 0
                {
                    spans.push((start, start + spanned, NodeId(node)));
                }
            }
            _ => {}
        }
    }
    spans
}

const _: () = assert!(size_of::<Entry>() as u64 == ENTRY_BYTES && PAGE_BYTES == 4096);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::VirtAddr;

    fn map(spans: &[(u64, u64, u32)]) -> PfnNodes {
        PfnNodes::from_spans(spans.iter().map(|&(s, e, n)| (s, e, NodeId(n))).collect())
    }

    #[test]
    fn entries_decode_as_the_kernel_documents() {
        let entry = Entry(1 << 63 | 1 << 56 | 1 << 55 | 0x1234);
        assert!(entry.present() && entry.exclusive() && entry.soft_dirty());
        assert!(!entry.swapped() && !entry.file_or_shared() && !entry.guard());
        assert_eq!(entry.pfn(), Some(Pfn(0x1234)));
        assert_eq!(entry.exclusive_frame(), entry.pfn());
        assert_eq!(
            Entry(1 << 63 | 0x77).exclusive_frame(),
            None,
            "of others too"
        );
        assert_eq!(Entry(1 << 62 | 1 << 56 | 0x77).exclusive_frame(), None);
        assert_eq!(Entry(1 << 63 | 1 << 56).exclusive_frame(), None);
        assert_eq!(Entry(1 << 63).pfn(), None, "no CAP_SYS_ADMIN");
        assert_eq!(
            Entry(1 << 62 | 0x77).pfn(),
            None,
            "a swap entry is no frame"
        );
        assert!(Entry(1 << 62 | 0x77).swapped());
        assert!(Entry(1 << 61).file_or_shared());
        assert!(Entry(1 << 57).uffd_write_protected());
    }

    #[test]
    fn own_pages_are_present_after_the_touch() {
        let mut page = vec![0_u8; 8 * 4096];
        page.fill(1);
        let first = VirtAddr(page.as_ptr().addr() as u64 + 4095).page();
        let range = PageRange::new(first, VirtAddr(first.0 + 7 * 4096)).unwrap();
        let pid = Pid(i32::try_from(std::process::id()).unwrap());
        let map = Pagemap::open(&Root::host(), pid).unwrap();
        let mut entries = Vec::new();
        map.read(range, &mut entries).unwrap();
        assert_eq!(entries.len(), 7);
        assert!(entries.iter().all(|e| e.present()));
        // Address 0 is never mapped.
        let zero = PageRange::new(VirtAddr(0), VirtAddr(4096)).unwrap();
        map.read(zero, &mut entries).unwrap();
        assert_eq!(entries.len(), 1);
        assert!(!entries[0].present());
    }

    #[test]
    fn a_process_that_ended_reads_as_nothing() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = Pid(i32::try_from(child.id()).unwrap());
        let map = Pagemap::open(&Root::host(), pid).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let range = PageRange::new(VirtAddr(0), VirtAddr(4096)).unwrap();
        let mut entries = vec![Entry(7)];
        map.read(range, &mut entries).unwrap();
        assert_eq!(entries, []);
        assert!(is_gone(&Pagemap::open(&Root::host(), pid).unwrap_err()));
    }

    #[test]
    fn frames_are_found_by_span() {
        let nodes = map(&[(100, 200, 1), (0, 100, 0), (200, 300, 1), (400, 500, 2)]);
        assert_eq!(nodes.spans.len(), 3, "touching spans of a node are one");
        assert_eq!(nodes.node(Pfn(0)), Some(NodeId(0)));
        assert_eq!(nodes.node(Pfn(99)), Some(NodeId(0)));
        assert_eq!(nodes.node(Pfn(299)), Some(NodeId(1)));
        assert_eq!(nodes.node(Pfn(300)), None);
        assert_eq!(nodes.node(Pfn(499)), Some(NodeId(2)));
        assert_eq!(nodes.node(Pfn(500)), None);
        assert_eq!(PfnNodes::default().node(Pfn(1)), None);
    }

    #[test]
    fn a_block_of_two_nodes_belongs_to_none() {
        let nodes = map(&[(0, 100, 0), (100, 200, 0), (100, 200, 1), (200, 300, 1)]);
        assert_eq!(nodes.node(Pfn(50)), Some(NodeId(0)));
        assert_eq!(nodes.node(Pfn(150)), None);
        assert_eq!(nodes.node(Pfn(250)), Some(NodeId(1)));
    }

    #[test]
    fn zones_give_spans_where_there_are_no_blocks() {
        let text = "Node 0, zone      DMA\n  pages free     3840\n        spanned  4095\n        \
            present  3998\n  start_pfn:           1\nNode 0, zone  Movable\n        spanned  0\n  \
            start_pfn:           0\nNode 1, zone   Normal\n        spanned  1000\n  start_pfn:  8000\n";
        assert_eq!(
            zone_spans(text),
            [(1, 4096, NodeId(0)), (8000, 9000, NodeId(1))]
        );
    }

    #[test]
    fn blocks_are_read_from_sysfs() {
        let dir = tempfile::tempdir().unwrap();
        let sys = dir.path().join("sys/devices/system");
        for block in ["node0/memory0", "node0/memory1", "node3/memory40"] {
            fs::create_dir_all(sys.join("node").join(block)).unwrap();
        }
        fs::create_dir_all(sys.join("memory")).unwrap();
        fs::write(sys.join("memory/block_size_bytes"), "8000000\n").unwrap();
        let nodes = PfnNodes::read(&Root::at(dir.path()));
        let block = 0x800_0000 >> 12;
        assert_eq!(nodes.node(Pfn(2 * block - 1)), Some(NodeId(0)));
        assert_eq!(nodes.node(Pfn(2 * block)), None);
        assert_eq!(nodes.node(Pfn(40 * block)), Some(NodeId(3)));
    }
}
