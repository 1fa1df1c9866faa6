//! Where the pages of a range are, and in which folios.
//!
//! From the page map where frames are shown and the kernel tells which frame
//! belongs to which node: some 40 ns a page. Else by asking `move_pages(2)`,
//! which costs three times as much and tells nothing of folios.

use std::io;
use std::ops::ControlFlow;

use super::kpageflags::{Flags, KpageFlags};
use super::move_pages::{self, Status};
use super::pagemap::{self, Entry, Pagemap, Pfn, PfnNodes};
use super::root::Root;
use crate::units::{Bytes, NodeId, PAGE_SHIFT, PageRange, Pid, VirtAddr};

/// Pages looked at in one read: 32 KiB of page map.
const CHUNK_PAGES: u64 = 4096;
/// Ranges after which the map of frames to nodes is read again, in case
/// memory was added or removed.
const NODE_MAP_USES: u32 = 4096;

/// Frames whose flags one read fetches: as many as [`KpageFlags::read`] takes.
const RUN: usize = 64;
/// `KPF_ZERO_PAGE` of `include/uapi/linux/kernel-page-flags.h`.
const ZERO_PAGE: u32 = 24;

/// What is asked about pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    /// Their nodes.
    Nodes,
    /// Their folios as well.
    Folios,
}

/// A page that is present.
#[derive(Clone, Copy, Debug)]
struct Page {
    addr: VirtAddr,
    node: NodeId,
    /// No other process maps it.
    exclusive: bool,
    /// Where they were read.
    frame: Option<(Pfn, Flags)>,
}

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
    /// Flags of the run of frames under way.
    frames: Vec<Option<Flags>>,
    /// A zero page that was met.
    zero: Option<Pfn>,
}

impl Locator {
    pub(super) fn new(root: &Root) -> Self {
        Self {
            root: root.clone(),
            flags: KpageFlags::open(root).ok(),
            nodes: PfnNodes::default(),
            uses_left: 0,
            entries: Vec::new(),
            frames: Vec::new(),
            zero: None,
        }
    }

    /// Calls `each` for every page of `range` that is present, in order of
    /// address as far as frames are shown, until it breaks. The zero page,
    /// which untouched memory reads from, is nobody's and left out. Flags are
    /// read for every frame, or only where the zero page may hide. A process
    /// that has ended has no pages.
    fn pages(
        &mut self,
        pid: Pid,
        range: PageRange,
        want: Want,
        mut each: impl FnMut(Page) -> ControlFlow<()>,
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
        let mut unplaced: Vec<(VirtAddr, bool)> = Vec::new();
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
            let mut index = 0;
            while index < self.entries.len() {
                let run = self.run(index, want)?;
                for (offset, flags) in (0..run).zip(self.frames.iter().copied()) {
                    let entry = self.entries[index + offset];
                    let addr = VirtAddr(start.0 + (((index + offset) as u64) << PAGE_SHIFT));
                    if flags.is_some_and(|f| f.0 >> ZERO_PAGE & 1 == 1) {
                        self.zero = entry.pfn();
                    }
                    if !entry.present() || (entry.pfn().is_some() && entry.pfn() == self.zero) {
                        continue;
                    }
                    let placed = entry.pfn().and_then(|p| Some((p, self.nodes.node(p)?)));
                    let Some((pfn, node)) = placed else {
                        unplaced.push((addr, entry.exclusive()));
                        continue;
                    };
                    let page = Page {
                        addr,
                        node,
                        exclusive: entry.exclusive(),
                        frame: flags.map(|flags| (pfn, flags)),
                    };
                    if each(page).is_break() {
                        return Ok(());
                    }
                }
                index += run;
            }
            if ask(pid, &unplaced, &mut each)?.is_break() {
                return Ok(());
            }
            start = end;
        }
        Ok(())
    }

    /// How many entries from `index` on lie on adjacent frames, at least one.
    /// Leaves their flags in `self.frames`, where they are wanted and can be had.
    fn run(&mut self, index: usize, want: Want) -> io::Result<usize> {
        let entries = &self.entries[index..];
        let first = entries[0].pfn();
        let length = first.map_or(1, |first| {
            let frames = (first.0..).map(|pfn| Some(Pfn(pfn)));
            let run = entries.iter().zip(frames).take(RUN);
            run.take_while(|(e, pfn)| e.pfn() == *pfn).count()
        });
        self.frames.clear();
        self.frames.resize(length, None);
        // Only a page that others may map too can be the zero page.
        let wanted = want == Want::Folios || entries[..length].iter().any(|e| !e.exclusive());
        if let (Some(first), Some(flags), true) = (first, &self.flags, wanted)
            && self.zero != Some(first)
        {
            let mut read = [Flags::default(); RUN];
            flags.read(first, &mut read[..length])?;
            for (frame, flags) in self.frames.iter_mut().zip(read) {
                *frame = Some(flags);
            }
        }
        Ok(length)
    }

    /// Counts the present pages of a range per node.
    pub(super) fn count(&mut self, pid: Pid, range: PageRange) -> io::Result<Vec<(NodeId, u64)>> {
        let mut counts: Vec<(NodeId, u64)> = Vec::new();
        self.pages(pid, range, Want::Nodes, |page| {
            match counts.iter_mut().find(|(n, _)| *n == page.node) {
                Some((_, count)) => *count += 1,
                None => counts.push((page.node, 1)),
            }
            ControlFlow::Continue(())
        })?;
        counts.sort_unstable();
        Ok(counts)
    }

    /// Adds to `out` the folios of a range that are on `from`, in order of address,
    /// until they hold `limit` pages. The last one counts whole. One that `skip` gives a
    /// reason for, by its first page and whether no other process maps that, is left
    /// out. Returns the pages found, and those left out by reason.
    pub(super) fn folios_on<R: Copy + PartialEq>(
        &mut self,
        pid: Pid,
        range: PageRange,
        from: NodeId,
        limit: u64,
        skip: impl Fn(VirtAddr, bool) -> Option<R>,
        out: &mut Vec<Found>,
    ) -> io::Result<(u64, Vec<(R, u64)>)> {
        let mut last: Option<(VirtAddr, Pfn)> = None;
        let mut pages = 0;
        let mut skipped: Vec<(R, u64)> = Vec::new();
        let mut skipping = None;
        self.pages(pid, range, Want::Folios, |page| {
            if page.node != from {
                last = None;
                return ControlFlow::Continue(());
            }
            // A tail that lies on, page by page and frame by frame.
            let follows = matches!((last, page.frame), (Some((a, p)), Some((pfn, flags)))
                if a.page_index() + 1 == page.addr.page_index()
                    && p.0 + 1 == pfn.0
                    && flags.tail());
            last = page.frame.map(|(pfn, _)| (page.addr, pfn));
            if !follows {
                if pages >= limit {
                    return ControlFlow::Break(());
                }
                skipping = skip(page.addr, page.exclusive);
            }
            if let Some(why) = skipping {
                match skipped.iter_mut().find(|(w, _)| *w == why) {
                    Some((_, sum)) => *sum += 1,
                    None => skipped.push((why, 1)),
                }
                return ControlFlow::Continue(());
            }
            match out.last_mut() {
                Some(found) if follows => found.pages += 1,
                _ => out.push(Found {
                    addr: page.addr,
                    node: page.node,
                    pages: 1,
                }),
            }
            pages += 1;
            ControlFlow::Continue(())
        })?;
        Ok((pages, skipped))
    }
}

/// Asks the kernel for pages whose frame tells nothing.
fn ask(
    pid: Pid,
    pages: &[(VirtAddr, bool)],
    each: &mut impl FnMut(Page) -> ControlFlow<()>,
) -> io::Result<ControlFlow<()>> {
    let addresses: Vec<VirtAddr> = pages.iter().map(|&(addr, _)| addr).collect();
    let status = match move_pages::query(pid, &addresses) {
        Ok(status) => status,
        // EINVAL: it is ending, and has given its memory back already.
        Err(e) if pagemap::is_gone(&e) || e.raw_os_error() == Some(libc::EINVAL) => {
            return Ok(ControlFlow::Continue(()));
        }
        Err(e) => return Err(e),
    };
    for (&(addr, exclusive), status) in pages.iter().zip(status) {
        if let Status::On(node) = status {
            let page = Page {
                addr,
                node,
                exclusive,
                frame: None,
            };
            if each(page).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
    }
    Ok(ControlFlow::Continue(()))
}
