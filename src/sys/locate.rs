//! Where the pages of a range are, and in which folios.
//!
//! From the page map where frames are shown and the kernel tells which frame
//! belongs to which node: some 40 ns a page. Else by asking `move_pages(2)`,
//! which costs three times as much and tells nothing of folios.

use std::io;

use super::kpageflags::KpageFlags;
use super::move_pages::{self, Status};
use super::pagemap::{self, Entry, Pagemap, Pfn, PfnNodes};
use super::root::Root;
use crate::units::{Bytes, NodeId, PageRange, Pid, VirtAddr};

/// Pages looked at in one read: 32 KiB of page map.
const CHUNK_PAGES: u64 = 4096;
/// Ranges after which the map of frames to nodes is read again, in case
/// memory was added or removed.
const NODE_MAP_USES: u32 = 4096;

/// A folio, or the part of it that a range holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Its first page within the range.
    pub(super) addr: VirtAddr,
    /// Where it is.
    pub(super) node: NodeId,
    /// Pages of 4 KiB within the range.
    pub(super) pages: u64,
}

/// Looks pages up. Holds the page map of the process that was asked for last.
#[derive(Debug)]
pub(super) struct Locator {
    root: Root,
    flags: Option<KpageFlags>,
    nodes: PfnNodes,
    uses_left: u32,
    entries: Vec<Entry>,
}

impl Locator {
    pub(super) fn new(root: &Root) -> Self {
        Self {
            root: root.clone(),
            flags: KpageFlags::open(root).ok(),
            nodes: PfnNodes::default(),
            uses_left: 0,
            entries: Vec::new(),
        }
    }

    /// Calls `each` for every page of `range` that is present, with its frame
    /// where that is known. A process that has ended has none.
    fn pages(
        &mut self,
        pid: Pid,
        range: PageRange,
        mut each: impl FnMut(VirtAddr, NodeId, Option<Pfn>),
    ) -> io::Result<()> {
        if self.uses_left == 0 {
            self.nodes = PfnNodes::read(&self.root);
            self.uses_left = NODE_MAP_USES;
        }
        self.uses_left -= 1;
        let map = match Pagemap::open(&self.root, pid) {
            Ok(map) => map,
            Err(e) if pagemap::is_gone(&e) => return Ok(()),
            Err(e) => return Err(e),
        };
        let mut unplaced: Vec<VirtAddr> = Vec::new();
        let mut start = range.start();
        while start < range.end() {
            let end = start
                .checked_add(Bytes::from_pages(CHUNK_PAGES))
                .map_or(range.end(), |e| e.min(range.end()));
            let Some(chunk) = PageRange::new(start, end) else {
                break;
            };
            map.read(chunk, &mut self.entries)?;
            if self.entries.is_empty() {
                return Ok(());
            }
            unplaced.clear();
            for (addr, entry) in chunk.iter_pages().zip(&self.entries) {
                match entry.pfn().map(|pfn| (pfn, self.nodes.node(pfn))) {
                    Some((pfn, Some(node))) => each(addr, node, Some(pfn)),
                    _ if entry.present() => unplaced.push(addr),
                    _ => {}
                }
            }
            ask(pid, &unplaced, &mut each)?;
            start = end;
        }
        Ok(())
    }

    /// Counts the present pages of a range per node.
    pub(super) fn count(&mut self, pid: Pid, range: PageRange) -> io::Result<Vec<(NodeId, u64)>> {
        let mut counts: Vec<(NodeId, u64)> = Vec::new();
        self.pages(pid, range, |_, node, _| {
            match counts.iter_mut().find(|(n, _)| *n == node) {
                Some((_, count)) => *count += 1,
                None => counts.push((node, 1)),
            }
        })?;
        counts.sort_unstable();
        Ok(counts)
    }

    /// Adds to `out` the folios of a range that are on `from`, in order of
    /// address, until they hold `limit` pages. The last one counts whole.
    pub(super) fn folios_on(
        &mut self,
        pid: Pid,
        range: PageRange,
        from: NodeId,
        limit: u64,
        out: &mut Vec<Found>,
    ) -> io::Result<u64> {
        let flags = self.flags.take();
        // The folio under way, as frames: first, one past the last.
        let mut folio = (0, 0);
        let mut last: Option<(VirtAddr, Pfn)> = None;
        let mut pages = 0;
        let mut trouble = None;
        let result = self.pages(pid, range, |addr, node, pfn| {
            if node != from || trouble.is_some() {
                return;
            }
            let follows = matches!((last, pfn), (Some((a, p)), Some(pfn))
                if a.page_index() + 1 == addr.page_index() && p.0 + 1 == pfn.0 && pfn.0 < folio.1);
            last = pfn.map(|p| (addr, p));
            if follows {
                if let Some(found) = out.last_mut() {
                    found.pages += 1;
                    pages += 1;
                }
                return;
            }
            if pages >= limit {
                return;
            }
            folio = match (pfn, &flags) {
                (Some(pfn), Some(flags)) => match flags.folio(pfn) {
                    Ok(Some(f)) => (f.head.0, f.head.0 + (1 << f.order)),
                    // It is changing under our eyes: leave it this time.
                    Ok(None) => return,
                    Err(e) => {
                        trouble = Some(e);
                        return;
                    }
                },
                _ => (0, 0),
            };
            pages += 1;
            out.push(Found {
                addr,
                node,
                pages: 1,
            });
        });
        self.flags = flags;
        result?;
        trouble.map_or(Ok(pages), Err)
    }
}

/// Asks the kernel for pages whose frame tells nothing.
fn ask(
    pid: Pid,
    pages: &[VirtAddr],
    each: &mut impl FnMut(VirtAddr, NodeId, Option<Pfn>),
) -> io::Result<()> {
    let status = match move_pages::query(pid, pages) {
        Ok(status) => status,
        Err(e) if pagemap::is_gone(&e) => return Ok(()),
        Err(e) => return Err(e),
    };
    for (&addr, status) in pages.iter().zip(status) {
        if let Status::On(node) = status {
            each(addr, node, None);
        }
    }
    Ok(())
}
