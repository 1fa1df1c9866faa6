//! Accessed pages by idle-page tracking: `/sys/kernel/mm/page_idle/bitmap`
//! (`Documentation/admin-guide/mm/idle_page_tracking.rst`).
//!
//! **Unit.** One sample, a page of 4 KiB, per scan. What is seen is its folio,
//! since the processor's accessed bits of a folio are folded into one mark.
//!
//! **Problem.** The bitmap is indexed by page frame, knows heads of folios on
//! the LRU lists only, and reads 0 alike for "accessed" and "not a page that I
//! follow". Frames change owner behind our back.
//!
//! **Approach.** *Arm*: page maps give each sample's frame, page flags its
//! folio; the marks are set, unless the window is short ([`words`]), in the order of frames, adjacent words of 64 in one
//! call, and read back at once, from the page flags: these tell the mark alone,
//! while a read of the bitmap looks at the page tables and would take the mark
//! from a page that is touched in between, the hottest of all. *Collect*: read
//! the bitmap, then the page maps again, also of what kept its mark: after a fork
//! that may be the child's. Where a page is that the scan which has just ended looked at, too, is
//! not asked before it is marked: that collecting finds out.
//!
//! ```text
//! mark did not read back as set after arming, twice tried   unknown
//! frame changed, gone, swapped; folio split                 unknown
//! mark still set                                            idle
//! bitmap says 0, the page's flags still have the mark       unknown (left the LRU)
//! otherwise                                                 accessed
//! ```
//!
//! **Properties.** Only marks of samples are ever set (a write ORs). One
//! `pread` of a page map serves all samples that lie near each other. Nothing is
//! allocated but for a page map that is opened and a larger sample set. A target
//! that vanished gives unknown. What remains when we end are marks on idle pages, which
//! change nothing for anybody but another user of the bitmap.
//!
//! **Cost.** Two reverse-map walks per sample and scan, and six system calls, one more where it was
//! accessed and two fewer where the scan just before looked at it, too. Reading a word also walks for every *other* frame in it that still
//! has a mark from an earlier scan; marks cannot be taken back, only an access
//! or a free does that, so samples spread thinly over cold memory cost more
//! as their neighbours have been samples too: 64 walks at the worst.

use std::io;

use super::clock::thread_cpu_time;
use super::frames::Frames;
use super::kpageflags::{Folio, KpageFlags};
use super::mounts;
use super::own_pages::{OwnPages, own_pid};
use super::pagemap::{Entry, Pfn, PfnNodes};
use super::root::Root;
use crate::ports::{AccessSampler, Calibration, PortError, SamplerKind, Sharing};
use crate::tiering::observation::{AccessSet, Sample, Seen, TargetId};
use crate::units::{Nanos, VirtAddr};

mod bitmap;
mod trial;
mod words;

use bitmap::{BITMAP, Bitmap};
use words::{Mark, Words};

/// Scans after which the map of frames to nodes is read again, in case memory
/// was added.
const NODE_MAP_SCANS: u32 = 256;

/// Pages of our own that [`try_own_page`] tries: twice what the kernel's
/// batches per CPU hold (31).
const OWN_PAGES: usize = 64;

/// Of so many pages of our own each [`CALIBRATED_EACH`]th is scanned to learn what that
/// costs: so sparsely that none shares a call with another, neither of page maps nor,
/// as long as the frames are adjacent too, of the bitmap.
const CALIBRATED_PAGES: usize = 2048;
const CALIBRATED_EACH: usize = 128;
/// So many times, after one for nothing: that opens files and finds folios.
const CALIBRATED_SCANS: u64 = 32;

/// What a verdict means.
pub(super) const RESOLUTION: &str =
    "a folio is seen accessed if its page table was walked for it in the scan";

/// A sample's page.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Its frame; `None` where it has none, or its folio could not be told.
    pfn: Option<Pfn>,
    /// The number of its folio's first frame.
    head: u64,
    order: u8,
    /// Its place in `words`.
    word: u32,
}

impl Slot {
    fn folio(self) -> Folio {
        Folio {
            head: Pfn(self.head),
            order: self.order,
        }
    }

    fn is_tail(self) -> bool {
        self.pfn.is_some_and(|pfn| pfn.0 != self.head)
    }
}

/// Idle-page tracking as a sampler.
#[derive(Debug)]
pub struct IdleSampler {
    root: Root,
    bitmap: Bitmap,
    flags: KpageFlags,
    nodes: PfnNodes,
    scans_to_node_map: u32,
    frames: Frames,
    slots: Vec<Slot>,
    /// Of each sample that the last scan had as well: what was found then.
    kept: Vec<Option<(Entry, Slot)>>,
    /// Whether that was a moment ago.
    is_recent: bool,
    words: Words,
    /// The window of the scan under way, where it is so short that pages are marked and looked at
    /// a few at a time.
    brief: Option<Nanos>,
    /// Indices of slots in the order of their heads.
    order: Vec<u32>,
}

impl IdleSampler {
    /// Opens the bitmap and the page flags below `root`. Whether they work is
    /// for [`try_own_page`] to say.
    ///
    /// # Errors
    /// `Missing` without `CONFIG_IDLE_PAGE_TRACKING`, `Forbidden` without root.
    pub fn open(root: &Root) -> Result<Self, PortError> {
        let bitmap = Bitmap::open(root).map_err(|e| explain(root, BITMAP, e))?;
        let flags = KpageFlags::open(root).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => PortError::Missing {
                what: root.proc("kpageflags").display().to_string(),
                remedy: mounts::absent_in_proc(root, "CONFIG_PROC_PAGE_MONITOR=y"),
            },
            _ => forbidden_or_failed(root.proc("kpageflags").display().to_string(), e),
        })?;
        Ok(Self {
            root: root.clone(),
            bitmap,
            flags,
            nodes: PfnNodes::default(),
            scans_to_node_map: 0,
            frames: Frames::new(root),
            slots: Vec::new(),
            kept: Vec::new(),
            is_recent: false,
            words: Words::new(),
            brief: None,
            order: Vec::new(),
        })
    }

    /// Finds out how short windows may be on this machine.
    ///
    /// # Errors
    /// Where that could not be tried; then they are as long as they were.
    pub fn find_shortest(&mut self) -> Result<Nanos, PortError> {
        let found = trial::shortest(self)?;
        self.words.keep(found);
        Ok(found)
    }

    /// Takes a sample set over, and finds out where it is. Of what was in the last scan, too, that
    /// is known if it ended a moment ago.
    fn take_over(&mut self, samples: &[Sample]) {
        let is_recent = std::mem::take(&mut self.is_recent);
        let (before, entries) = (self.frames.samples(), self.frames.entries());
        let mut before = (0..).zip(before).peekable();
        self.kept.clear();
        self.kept.extend(samples.iter().map(|sample| {
            let key = |sample: &Sample| (sample.target, sample.addr);
            while before.next_if(|(_, s)| key(s) < key(sample)).is_some() {}
            let (at, _) = before.next_if(|(_, s)| *s == sample)?;
            let kept = (*entries.get(at)?, *self.slots.get(at)?);
            // What was on its way may have arrived.
            kept.0.pfn().is_some().then_some(kept)
        }));
        self.frames.adopt(samples);
        self.slots.clear();
        // A large folio may be split and stay where it is.
        let holds = |slot: &Slot| is_recent || slot.order == 0;
        let slot = |kept: &Option<(Entry, Slot)>| kept.map(|(_, slot)| slot).filter(holds);
        let slots = self.kept.iter().map(slot);
        self.slots.extend(slots.map(Option::unwrap_or_default));
        let kept = &self.kept;
        for (index, kept) in kept.iter().enumerate().filter(|_| is_recent) {
            if let Some((entry, _)) = *kept {
                self.frames.keep(index, entry);
            }
        }
        self.frames
            .locate_where(|index| !is_recent || kept[index].is_none());
    }

    /// Turns frames into slots; what was found in the scan before holds as long as the frame
    /// is the same.
    fn resolve(&mut self) -> Result<(), PortError> {
        for (slot, entry) in self.slots.iter_mut().zip(self.frames.entries()) {
            let frame = entry.pfn();
            if slot.pfn == frame {
                continue;
            }
            *slot = Slot::default();
            let Some(pfn) = frame else { continue };
            let folio = self.flags.folio(pfn).map_err(|source| PortError::Failed {
                what: format!("reading the flags of page frame {:#x}", pfn.0),
                source,
            })?;
            if let Some(folio) = folio {
                *slot = Slot {
                    pfn: Some(pfn),
                    head: folio.head.0,
                    order: folio.order,
                    word: 0,
                };
            }
        }
        Ok(())
    }

    /// Collects the words to write, in order.
    fn gather(&mut self) {
        let slots = &mut self.slots;
        self.order.clear();
        self.order.extend(
            (0_u32..)
                .zip(slots.iter())
                .filter(|(_, slot)| slot.pfn.is_some())
                .map(|(i, _)| i),
        );
        self.order.sort_unstable_by_key(|&i| slots[i as usize].head);
        self.words.clear();
        for &i in &self.order {
            let slot = &mut slots[i as usize];
            slot.word = u32::try_from(self.words.add(slot.head)).unwrap_or(u32::MAX);
        }
    }

    fn verdict(&self, slot: Slot, frame_now: Option<Pfn>) -> io::Result<Seen> {
        let mark = self.words.mark_of(slot.word as usize, slot.head);
        if slot.pfn.is_none() || slot.pfn != frame_now || mark == Mark::Untold {
            return Ok(Seen::Unknown);
        }
        if slot.is_tail() && !self.flags.is_still(slot.folio())? {
            return Ok(Seen::Unknown);
        }
        if mark == Mark::Set {
            return Ok(Seen::Idle);
        }
        // The mark itself can only be lost by an access; the bitmap also hides
        // it while the page is off the LRU lists.
        if self.flags.get(Pfn(slot.head))?.idle() {
            return Ok(Seen::Unknown);
        }
        Ok(Seen::Accessed)
    }

    fn refresh_node_map(&mut self) {
        if self.scans_to_node_map == 0 {
            self.nodes = PfnNodes::read(&self.root);
            self.scans_to_node_map = NODE_MAP_SCANS;
        }
        self.scans_to_node_map -= 1;
    }

    fn failed(&self, source: io::Error) -> PortError {
        PortError::Failed {
            what: self.root.sys(BITMAP).display().to_string(),
            source,
        }
    }
}

impl AccessSampler for IdleSampler {
    fn kind(&self) -> SamplerKind {
        SamplerKind::Idle
    }

    fn shortest(&self) -> Nanos {
        self.words.shortest()
    }

    fn arm(&mut self, samples: &[Sample], window: Nanos) -> Result<(), PortError> {
        debug_assert!(samples.is_sorted_by_key(|s| (s.target, s.addr)));
        self.refresh_node_map();
        self.take_over(samples);
        self.resolve()?;
        self.gather();
        self.brief = Some(window).filter(|window| self.words.is_brief(*window));
        if self.brief.is_some() {
            return Ok(());
        }
        let marked = self.words.mark_all(&self.bitmap, &self.flags);
        marked.map_err(|e| self.failed(e))
    }

    fn collect(&mut self, seen: &mut AccessSet) -> Result<(), PortError> {
        let (bitmap, words) = (&self.bitmap, &mut self.words);
        let looked = match self.brief.take() {
            Some(window) => words.glance(bitmap, &self.flags, window),
            None => words.look_at_all(bitmap),
        };
        looked.map_err(|e| self.failed(e))?;
        self.frames.locate();
        for index in 0..self.slots.len().min(seen.samples().len()) {
            let slot = self.slots[index];
            let verdict = self
                .verdict(slot, self.frames.entries()[index].pfn())
                .map_err(|source| PortError::Failed {
                    what: self.root.proc("kpageflags").display().to_string(),
                    source,
                })?;
            seen.record(index, verdict);
            if verdict == Seen::Unknown {
                // Its folio may have been split: look again at the next scan.
                self.slots[index].pfn = None;
            } else if let Some(pfn) = slot.pfn {
                let entry = self.frames.entries()[index];
                seen.place(index, slot.order, self.nodes.node(pfn));
                seen.note_shared(index, self.frames.is_shared(index));
                if entry.soft_dirty() {
                    seen.note_written(index);
                }
            }
        }
        self.is_recent = true;
        seen.end_scan();
        Ok(())
    }

    fn rest(&mut self) {
        self.is_recent = false;
    }

    fn relate(&mut self, sharing: &Sharing) {
        self.frames.relate(sharing);
    }

    fn calibrate(&mut self) -> Result<Option<Calibration>, PortError> {
        let own = OwnPages::new(CALIBRATED_PAGES).map_err(|e| self.failed(e))?;
        let samples = own_samples(&own, CALIBRATED_PAGES, CALIBRATED_EACH);
        let mut seen = AccessSet::new(samples.clone());
        let mut scan = |times| -> Result<Nanos, PortError> {
            let before = thread_cpu_time();
            for _ in 0..times {
                self.arm(&samples, Nanos::ZERO)?;
                self.collect(&mut seen)?;
                self.rest();
            }
            Ok(thread_cpu_time().saturating_sub(before))
        };
        let took = scan(1).and_then(|_| scan(CALIBRATED_SCANS));
        // So that nothing of them is held on to.
        self.arm(&[], Nanos::ZERO)?;
        Ok(Some(Calibration {
            scans: CALIBRATED_SCANS * samples.len() as u64,
            took: took?,
        }))
    }

    fn resolution(&self) -> String {
        RESOLUTION.into()
    }
}

/// One in `each` of `count` pages of our own.
fn own_samples(own: &OwnPages, count: usize, each: usize) -> Vec<Sample> {
    let sample = |index| Sample {
        target: TargetId(0),
        pid: own_pid(),
        addr: VirtAddr(own.address(index).addr() as u64),
    };
    (0..count).step_by(each).map(sample).collect()
}

/// Tries idle tracking on a page of our own: set its mark, read it back, touch
/// the page, see the mark gone. Returns what was seen, in one line.
///
/// # Errors
/// As for [`IdleSampler::open`]; `Forbidden` also where page frames are hidden
/// from us, `Failed` where the mark did not behave.
pub fn try_own_page(root: &Root) -> Result<String, PortError> {
    let what = || root.sys(BITMAP).display().to_string();
    let sampler = IdleSampler::open(root)?;
    let failed = |source| PortError::Failed {
        what: what(),
        source,
    };
    let mut own = OwnPages::new(OWN_PAGES).map_err(failed)?;
    let frames = own.frames(root).map_err(failed)?;
    if frames.iter().all(Option::is_none) {
        return Err(PortError::Forbidden {
            what: root.proc("self/pagemap").display().to_string(),
            remedy: "page frames read as 0: run with CAP_SYS_ADMIN".into(),
        });
    }
    // Fresh pages wait in a list of each CPU before they join the LRU: of a few
    // dozen the first have joined.
    let mut marked = 0;
    let mut seen = 0;
    for (index, frame) in frames.iter().enumerate() {
        let Some(pfn) = *frame else { continue };
        sampler.bitmap.mark(pfn).map_err(failed)?;
        if !sampler.bitmap.is_marked(pfn).map_err(failed)? {
            continue;
        }
        marked += 1;
        // A call in between makes the processor walk the page table again
        // where its TLB still held the page when the mark was set.
        own.protect_and_touch(index).map_err(failed)?;
        seen += usize::from(!sampler.bitmap.is_marked(pfn).map_err(failed)?);
    }
    if marked == 0 || seen < marked {
        return Err(PortError::Failed {
            what: what(),
            source: io::Error::other(format!(
                "of {} pages of our own, {marked} could be marked and {seen} were seen touched",
                frames.len()
            )),
        });
    }
    Ok(format!(
        "{marked} pages of our own marked, touched and seen touched"
    ))
}

fn explain(root: &Root, path: &str, error: io::Error) -> PortError {
    let path = root.sys(path);
    let what = path.display().to_string();
    match error.kind() {
        _ if mounts::is_read_only(&error) => mounts::read_only(root, &path),
        io::ErrorKind::NotFound => PortError::Missing {
            what,
            remedy: "use a kernel with CONFIG_IDLE_PAGE_TRACKING=y, or sampler = \"damon\"".into(),
        },
        _ => forbidden_or_failed(what, error),
    }
}

fn forbidden_or_failed(what: String, source: io::Error) -> PortError {
    match source.kind() {
        io::ErrorKind::PermissionDenied => PortError::Forbidden {
            what,
            remedy: "run as root with CAP_SYS_ADMIN, outside of a container that hides it".into(),
        },
        _ => PortError::Failed { what, source },
    }
}
