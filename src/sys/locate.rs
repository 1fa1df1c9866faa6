//! Where the pages of a range are, and in which folios.
//!
//! From the page map where frames are shown and the kernel tells which frame
//! belongs to which node: some 40 ns a page. Else by asking `move_pages(2)`,
//! which costs three times as much and tells nothing of folios.

use std::collections::HashMap;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::kpageflags::{Flags, KpageFlags};
use super::large_folios::smallest_anonymous_order;
use super::move_pages::{self, Status};
use super::pagemap::{self, Entry, Pagemap, Pfn, PfnNodes};
use super::root::Root;
use super::sharers::{Asked, Sharers};
use crate::ports::Sharing;
use crate::tiering::observation::TargetId;
use crate::units::{Bytes, HUGE_PAGE_BYTES, NodeId, PAGE_SHIFT, PageRange, Pid, VirtAddr};

/// Pages looked at in one read: 32 KiB of page map.
const CHUNK_PAGES: u64 = 4096;
/// Ranges after which the map of frames to nodes is read again, in case
/// memory was added or removed.
const NODE_MAP_USES: u32 = 4096;

/// How small large folios may be is asked again after so long.
const ORDER_LASTS: Duration = Duration::from_secs(10);
/// Page maps held open at most.
const MAPS_HELD: usize = 64;
/// Chunks at most that are not asked for huge pages after others that had none.
const UNSCANNED_MOST: u32 = 32;
/// Frames whose flags one read fetches: as many as [`KpageFlags::read`] takes.
const RUN: usize = 64;
/// log2 of the pages of a folio from which on to ask for one of its frames costs less than for all: where
/// folios are smaller, the flags of all come in one read.
const SPARSE_ORDER: u8 = 5;
/// Pages of 4 KiB in a huge one.
const HUGE_PAGES: u64 = HUGE_PAGE_BYTES >> PAGE_SHIFT;

/// What is asked about pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    /// Their nodes.
    Nodes,
    /// Their folios as well.
    Folios,
}

/// Who maps a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mappers {
    /// This process alone.
    Alone,
    /// Others of the pool, and nobody else.
    Pool,
    /// Others too, as far as we know.
    Others,
}

impl Mappers {
    fn of(exclusive: bool, own: bool) -> Self {
        match (exclusive, own) {
            (true, _) => Self::Alone,
            (false, true) => Self::Pool,
            (false, false) => Self::Others,
        }
    }
}

/// Whose pages are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Whose {
    /// A process, or a pool that is known by one.
    pub(super) target: TargetId,
    /// The process.
    pub(super) pid: Pid,
}

/// A page in the page table through which it is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Whose page table.
    pub(super) pid: Pid,
    /// The address there.
    pub(super) addr: VirtAddr,
}

/// A page that is present.
#[derive(Clone, Copy, Debug)]
struct Page {
    addr: VirtAddr,
    place: Place,
    node: NodeId,
    mappers: Mappers,
    /// Where they were read.
    frame: Option<(Pfn, Flags)>,
    /// More than one: a huge page as a whole.
    pages: u64,
}

/// A folio, or the part of it that a range holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Its first page within the range.
    pub(super) addr: VirtAddr,
    /// Where that is to be moved.
    pub(super) place: Place,
    /// Where it is.
    pub(super) node: NodeId,
    /// Pages of 4 KiB within the range.
    pub(super) pages: u64,
    /// Whether several processes of its pool map it.
    pub(super) shared: bool,
}

/// Looks pages up.
#[derive(Debug)]
pub(super) struct Locator {
    root: Root,
    flags: Option<KpageFlags>,
    /// Whether the kernel can tell of huge pages, as far as known.
    scans: bool,
    /// Chunks that are not asked for huge pages, since the last had none, and how many
    /// it will be if the next has none either.
    unscanned: (u32, u32),
    nodes: PfnNodes,
    uses_left: u32,
    entries: Vec<Entry>,
    sharers: Sharers,
    /// Which of `entries` only a pool maps; empty: none.
    own: Vec<bool>,
    /// Through which of its views each is seen; empty: they are a process's.
    via: Vec<usize>,
    /// Flags of the run of frames under way.
    frames: Vec<Option<Flags>>,
    /// A zero page that was met.
    zero: Option<Pfn>,
    /// [`smallest_anonymous_order`], and when it was asked.
    order: Option<(u8, Instant)>,
    /// Page maps that stay open, from [`hold`](Locator::hold) on.
    held: Option<HashMap<Pid, Arc<Pagemap>>>,
}

impl Locator {
    pub(super) fn new(root: &Root) -> Self {
        Self {
            root: root.clone(),
            flags: KpageFlags::open(root).ok(),
            scans: true,
            unscanned: (0, 1),
            nodes: PfnNodes::default(),
            uses_left: 0,
            entries: Vec::new(),
            sharers: Sharers::new(root),
            own: Vec::new(),
            via: Vec::new(),
            frames: Vec::new(),
            zero: None,
            order: None,
            held: None,
        }
    }

    /// Opens each page map once until [`let_go`](Self::let_go). One that stays open tells
    /// nothing more once its process runs another program: not for long.
    pub(super) fn hold(&mut self) {
        self.held = Some(HashMap::new());
    }

    /// Closes what is held open.
    pub(super) fn let_go(&mut self) {
        self.held = None;
        self.sharers.let_go();
    }

    /// What is shared from now on.
    pub(super) fn relate(&mut self, sharing: &Sharing) {
        self.sharers.relate(sharing);
    }

    fn map_of(&mut self, pid: Pid) -> io::Result<Arc<Pagemap>> {
        let open = || Pagemap::open(&self.root, pid).map(Arc::new);
        let Some(held) = &mut self.held else {
            return open();
        };
        if let Some(map) = held.get(&pid) {
            return Ok(Arc::clone(map));
        }
        let map = open()?;
        if held.len() < MAPS_HELD {
            held.insert(pid, Arc::clone(&map));
        }
        Ok(map)
    }

    /// Calls `each` for every page of `range` that is present, in order of
    /// address as far as frames are shown, until it breaks. The zero page,
    /// which untouched memory reads from, is nobody's and left out. Flags are
    /// read for every frame, or only where the zero page may hide. A process
    /// that has ended has no pages.
    fn pages(
        &mut self,
        whose: Whose,
        range: PageRange,
        want: Want,
        mut each: impl FnMut(Page) -> ControlFlow<()>,
    ) -> io::Result<()> {
        if self.uses_left == 0 {
            self.nodes = PfnNodes::read(&self.root);
            self.uses_left = NODE_MAP_USES;
        }
        self.uses_left -= 1;
        let is_old = |&(_, asked): &(u8, Instant)| asked.elapsed() >= ORDER_LASTS;
        if want == Want::Folios && self.order.as_ref().is_none_or(is_old) {
            self.order = Some((smallest_anonymous_order(&self.root), Instant::now()));
        }
        let is_pool = self.sharers.is_pool(whose.target);
        let map = match self.map_of(whose.pid) {
            Ok(map) => map,
            Err(e) if pagemap::is_gone(&e) => return Ok(()),
            Err(e) => return Err(e),
        };
        let mut at = range.start();
        while at < range.end() {
            let end = at
                .checked_add(Bytes::from_pages(CHUNK_PAGES))
                .map_or(range.end(), |e| e.min(range.end()));
            // Huge pages first, each by one entry, and what lies between them.
            let huge_pages = if is_pool {
                Vec::new()
            } else {
                self.huge_pages(&map, at, end, want)
            };
            for huge in huge_pages {
                if (self.chunk(whose, &map, at, huge, want, &mut each)?).is_break() {
                    return Ok(());
                }
                let Some(after) = huge.checked_add(Bytes(HUGE_PAGE_BYTES)) else {
                    return Ok(());
                };
                at = after;
                let placed = self.huge_page(whose.pid, &map, huge)?;
                let flow = match placed {
                    Some(page) => each(page),
                    // Moved, split or gone since it was told of.
                    None => self.chunk(whose, &map, huge, after, want, &mut each)?,
                };
                if flow.is_break() {
                    return Ok(());
                }
            }
            if (self.chunk(whose, &map, at, end, want, &mut each)?).is_break() {
                return Ok(());
            }
            at = end;
        }
        Ok(())
    }

    /// The huge pages between two addresses, where folios are wanted and the kernel
    /// tells.
    fn huge_pages(
        &mut self,
        map: &Pagemap,
        start: VirtAddr,
        end: VirtAddr,
        want: Want,
    ) -> Vec<VirtAddr> {
        let Some(range) = PageRange::new(start, end) else {
            return Vec::new();
        };
        if want != Want::Folios || !self.scans {
            return Vec::new();
        }
        let (rest, next) = self.unscanned;
        if let Some(rest) = rest.checked_sub(1) {
            self.unscanned = (rest, next);
            return Vec::new();
        }
        let found = map.huge_pages(range).unwrap_or_else(|e| {
            // Not this kernel; any other trouble the entries will tell of.
            self.scans = e.raw_os_error() != Some(libc::ENOTTY);
            Vec::new()
        });
        // They are found either way: asking in vain is what is to be saved.
        self.unscanned = if found.is_empty() {
            (next, (next * 2).min(UNSCANNED_MOST))
        } else {
            (0, 1)
        };
        found
    }

    /// A huge page by its first entry; `None` if more has to be known.
    fn huge_page(&mut self, pid: Pid, map: &Pagemap, addr: VirtAddr) -> io::Result<Option<Page>> {
        let mut first = [Entry::default()];
        map.read_into(addr.page_index(), &mut first)?;
        let entry = first[0];
        // Of the huge zero page every frame is the zero page, and nobody's alone.
        let placed = entry.pfn().filter(|pfn| pfn.0.is_multiple_of(HUGE_PAGES));
        Ok(placed.filter(|_| entry.exclusive()).and_then(|pfn| {
            Some(Page {
                addr,
                place: Place { pid, addr },
                node: self.nodes.node(pfn)?,
                mappers: Mappers::Alone,
                frame: None,
                pages: HUGE_PAGES,
            })
        }))
    }

    /// The pages between two addresses, entry by entry.
    fn chunk(
        &mut self,
        whose: Whose,
        map: &Pagemap,
        start: VirtAddr,
        end: VirtAddr,
        want: Want,
        each: &mut impl FnMut(Page) -> ControlFlow<()>,
    ) -> io::Result<ControlFlow<()>> {
        let Some(chunk) = PageRange::new(start, end) else {
            return Ok(ControlFlow::Continue(()));
        };
        self.read(whose, map, chunk)?;
        if self.entries.is_empty() {
            return Ok(ControlFlow::Break(()));
        }
        self.own.clear();
        if want == Want::Folios {
            let first = start.page_index();
            (self.sharers).find_own(whose.target, first, &self.entries, &mut self.own);
        }
        let mut unplaced: Vec<(VirtAddr, Place, Mappers)> = Vec::new();
        // Where the last frame was found.
        let mut span = (0..0, NodeId(0));
        let mut index = 0;
        while index < self.entries.len() {
            if !self.entries[index].present() {
                index += 1;
                continue;
            }
            if self.alone(index).is_some_and(|pfn| span.0.contains(&pfn.0)) {
                // As most are.
                let addr = VirtAddr(start.0 + ((index as u64) << PAGE_SHIFT));
                let page = Page {
                    addr,
                    place: self.place(whose, index, addr),
                    node: span.1,
                    mappers: Mappers::Alone,
                    frame: None,
                    pages: 1,
                };
                if each(page).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                index += 1;
                continue;
            }
            let run = self.run(index, want)?;
            for (offset, flags) in (0..run).zip(self.frames.iter().copied()) {
                let entry = self.entries[index + offset];
                let own = self.own.get(index + offset).copied().unwrap_or(false);
                let mappers = Mappers::of(entry.exclusive(), own);
                let addr = VirtAddr(start.0 + (((index + offset) as u64) << PAGE_SHIFT));
                if flags.is_some_and(Flags::zero_page) {
                    self.zero = entry.pfn();
                }
                if entry.pfn().is_some() && entry.pfn() == self.zero {
                    continue;
                }
                let placed = entry.pfn().filter(|pfn| {
                    span.0.contains(&pfn.0)
                        || (self.nodes.span(*pfn)).is_some_and(|found| {
                            span = found;
                            true
                        })
                });
                let place = self.place(whose, index + offset, addr);
                let Some(pfn) = placed else {
                    unplaced.push((addr, place, mappers));
                    continue;
                };
                let page = Page {
                    addr,
                    place,
                    node: span.1,
                    mappers,
                    frame: flags.map(|flags| (pfn, flags)),
                    pages: 1,
                };
                if each(page).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            index += run;
        }
        ask(&unplaced, each)
    }

    /// Leaves in `self.entries` what the target has of a range.
    fn read(&mut self, whose: Whose, map: &Pagemap, range: PageRange) -> io::Result<()> {
        let first = range.start().page_index();
        self.via.clear();
        if !self.sharers.is_pool(whose.target) {
            map.read(range, &mut self.entries)?;
            self.sharers.hide(whose.pid, first, &mut self.entries);
            return Ok(());
        }
        let pages = usize::try_from(range.pages()).map_err(io::Error::other)?;
        self.entries.resize(pages, Entry::default());
        let (entries, via) = (&mut self.entries, &mut self.via);
        (self.sharers).gather(whose.target, first, Asked::Several, entries, via);
        Ok(())
    }

    /// Where the page of an entry is to be moved.
    fn place(&self, whose: Whose, index: usize, addr: VirtAddr) -> Place {
        let via = self.via.get(index);
        let there = via.and_then(|&via| self.sharers.through(whose.target, via, addr));
        let (pid, addr) = there.unwrap_or((whose.pid, addr));
        Place { pid, addr }
    }

    /// The frame of an exclusive page between two that lie elsewhere.
    fn alone(&self, index: usize) -> Option<Pfn> {
        let &[before, entry, after] = self.entries.get(index.checked_sub(1)?..index + 2)? else {
            return None;
        };
        let pfn = entry.exclusive_frame()?;
        // Of one that is not present it means something else, and is looked at more closely.
        let goes_on = before.frame() + 1 == pfn.0 || pfn.0 + 1 == after.frame();
        (!goes_on).then_some(pfn)
    }

    /// How many entries from `index` on lie on adjacent frames, at least one.
    /// Leaves their flags in `self.frames`, where they are wanted and can be had: a
    /// page between two that lie elsewhere is a folio by itself, or all that can be
    /// seen of one here, and its flags would tell nothing more.
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
        let is_cut = length == RUN || index + length == self.entries.len();
        let is_alone = length == 1 && !is_cut && !self.goes_on(index, first);
        // Only a page that others may map too can be the zero page.
        let may_be_zero = entries[..length].iter().any(|e| !e.exclusive());
        let wanted = want == Want::Folios && !is_alone || may_be_zero;
        let Some((first, flags)) = first.zip(self.flags.as_ref()).filter(|_| wanted) else {
            return Ok(length);
        };
        if self.zero == Some(first) {
            return Ok(length);
        }
        let is_anonymous = !may_be_zero && entries[..length].iter().all(|e| !e.file_or_shared());
        if is_anonymous
            && let Some((order, _)) = self.order
            && order >= SPARSE_ORDER
        {
            anonymous_flags(flags, first, order, &mut self.frames)?;
            return Ok(length);
        }
        let mut read = [Flags::default(); RUN];
        flags.read(first, &mut read[..length])?;
        for (frame, flags) in self.frames.iter_mut().zip(read) {
            *frame = Some(flags);
        }
        Ok(length)
    }

    /// Whether the entry before `index` lies on the frame before this one, or is of
    /// another chunk and so not known.
    fn goes_on(&self, index: usize, frame: Option<Pfn>) -> bool {
        let before = index.checked_sub(1).map(|at| self.entries[at].pfn());
        match (before, frame) {
            (Some(Some(before)), Some(frame)) => before.0 + 1 == frame.0,
            (Some(_), _) => false,
            (None, _) => true,
        }
    }

    /// Counts the present pages of a range per node.
    pub(super) fn count(
        &mut self,
        whose: Whose,
        range: PageRange,
    ) -> io::Result<Vec<(NodeId, u64)>> {
        let mut counts: Vec<(NodeId, u64)> = Vec::new();
        self.pages(whose, range, Want::Nodes, |page| {
            match counts.iter_mut().find(|(n, _)| *n == page.node) {
                Some((_, count)) => *count += page.pages,
                None => counts.push((page.node, page.pages)),
            }
            ControlFlow::Continue(())
        })?;
        counts.sort_unstable();
        Ok(counts)
    }

    /// Adds to `out` the folios of a range that are on `from`, in order of address,
    /// until they hold `limit` pages. The last one counts whole. One that `skip` gives a
    /// reason for, by a page and who maps that, is left out. Returns the pages found, and those left out by reason.
    pub(super) fn folios_on<R: Copy + PartialEq>(
        &mut self,
        whose: Whose,
        range: PageRange,
        from: NodeId,
        limit: u64,
        skip: impl Fn(Place, Mappers) -> Option<R>,
        out: &mut Vec<Found>,
    ) -> io::Result<(u64, Vec<(R, u64)>)> {
        let mut last: Option<(VirtAddr, Pfn)> = None;
        let mut pages = 0;
        let mut skipped: Vec<(R, u64)> = Vec::new();
        let mut skipping = None;
        self.pages(whose, range, Want::Folios, |page| {
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
                skipping = skip(page.place, page.mappers);
            } else if skipping.is_none()
                && page.mappers == Mappers::Others
                && let Some(why) = skip(page.place, page.mappers)
            {
                // It moves as a whole or not at all.
                skipping = Some(why);
                if let Some(found) = out.pop() {
                    pages -= found.pages;
                    leave_out(&mut skipped, why, found.pages);
                }
            }
            if let Some(why) = skipping {
                leave_out(&mut skipped, why, page.pages);
                return ControlFlow::Continue(());
            }
            let shared = page.mappers != Mappers::Alone;
            match out.last_mut() {
                Some(found) if follows => {
                    found.pages += 1;
                    found.shared |= shared;
                }
                _ => out.push(Found {
                    addr: page.addr,
                    place: page.place,
                    node: page.node,
                    pages: page.pages,
                    shared,
                }),
            }
            pages += page.pages;
            ControlFlow::Continue(())
        })?;
        Ok((pages, skipped))
    }
}

fn leave_out<R: PartialEq>(skipped: &mut Vec<(R, u64)>, why: R, pages: u64) {
    match skipped.iter_mut().find(|(w, _)| *w == why) {
        Some((_, sum)) => *sum += pages,
        None => skipped.push((why, pages)),
    }
}

/// Of adjacent frames of anonymous memory from `first` on, which are tails. Folios of
/// several are naturally aligned and have `1 << order` frames at least. So any frame of
/// a block of as many, but its first, tells for all of them but the first, which may be
/// the head.
fn anonymous_flags(
    flags: &KpageFlags,
    first: Pfn,
    order: u8,
    frames: &mut [Option<Flags>],
) -> io::Result<()> {
    let block = 1_u64 << order;
    let mut begin = first.0;
    let mut rest = frames;
    while !rest.is_empty() {
        let left = block - begin % block;
        let count = usize::try_from(left).map_or(rest.len(), |left| left.min(rest.len()));
        let (part, after) = rest.split_at_mut(count);
        // The block's first frame and another one, or just one.
        let mut read = [Flags::default(); 2];
        let told = if left == block { count.min(2) } else { 1 };
        flags.read(Pfn(begin), &mut read[..told])?;
        part.fill(Some(read[told - 1]));
        part[0] = Some(read[0]);
        begin += count as u64;
        rest = after;
    }
    Ok(())
}

/// Asks the kernel for pages whose frame tells nothing.
fn ask(
    pages: &[(VirtAddr, Place, Mappers)],
    each: &mut impl FnMut(Page) -> ControlFlow<()>,
) -> io::Result<ControlFlow<()>> {
    for run in pages.chunk_by(|a, b| a.1.pid == b.1.pid) {
        let addresses: Vec<VirtAddr> = run.iter().map(|(_, place, _)| place.addr).collect();
        let status = match move_pages::query(run[0].1.pid, &addresses) {
            Ok(status) => status,
            // EINVAL: it is ending, and has given its memory back already.
            Err(e) if pagemap::is_gone(&e) || e.raw_os_error() == Some(libc::EINVAL) => continue,
            Err(e) => return Err(e),
        };
        for (&(addr, place, mappers), status) in run.iter().zip(status) {
            if let Status::On(node) = status {
                let page = Page {
                    addr,
                    place,
                    node,
                    mappers,
                    frame: None,
                    pages: 1,
                };
                if each(page).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
    }
    Ok(ControlFlow::Continue(()))
}
