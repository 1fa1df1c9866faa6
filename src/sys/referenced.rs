//! Accessed mappings by `clear_refs` and `smaps`: the last resort, for kernels that
//! have neither idle-page tracking nor DAMON
//! (`Documentation/filesystems/proc.rst`).
//!
//! **Unit.** One mapping of a process, and one verdict for all samples in it.
//!
//! **Approach.** `2` in `/proc/PID/clear_refs` clears the accessed bits of a process's
//! anonymous memory, which is all that is ever moved. `smaps` then tells of each mapping
//! how much of it is present and how much of that was referenced since. Where that is
//! nearly all, every page of the mapping counts as accessed; where it is next to nothing,
//! as idle; in between, as where a heap has hot and cold parts, nothing can be told.
//!
//! **Limits.** The kernel walks all of that memory to clear, and holds the address space
//! for writing meanwhile: a fault or an `mmap` of the target waits so long. A walk that
//! is foreseen to take longer than [`LONGEST_WALK`] is not begun, and nothing is told
//! of that process; it is foreseen from its page table entries, as `smaps` counts them, the
//! size of its page tables, and how long it was held up before. Reading `smaps` holds the
//! address space for reading, one mapping at a time: an `mmap` waits, and faults behind
//! it. The accessed bits are also what the
//! kernel's reclaim goes by: under memory pressure it knows less of what is in use. So
//! this sampler is never chosen unless it is asked for. As with idle-page tracking no
//! TLB is flushed: what a processor never has to translate anew looks idle. Processes
//! of other users are open to `CAP_DAC_OVERRIDE` only.
//!
//! Nothing is left to undo: what is touched is marked again.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::Range;
use std::time::Instant;

use super::frames::{Frames, by_target};
use super::kpageflags::{Flags, KpageFlags};
use super::mounts;
use super::own_pages::{OwnPages, own_pid};
use super::pagemap::{PfnNodes, is_gone};
use super::root::Root;
use super::smaps::{Mapping, NEARLY_ALL, mappings};
use super::soft_dirty;
use super::text::kib_field;
use crate::ports::{AccessSampler, PortError, SamplerKind, Sharing};
use crate::tiering::observation::{AccessSet, Sample, Seen};
use crate::units::{Bytes, Nanos, PAGE_BYTES, Pid};

/// The longest that a fault of a target may have to wait for us to clear.
const LONGEST_WALK: Nanos = Nanos::from_millis(10);
/// How long reading `smaps` may be foreseen to take, all pages being small.
const LONGEST_READ: Nanos = Nanos::from_millis(50);
/// Cost of an entry, at most (35 to 63 ns on bare metal), and of one that maps nothing.
const PER_ENTRY: Nanos = Nanos(100);
const PER_SLOT: Nanos = Nanos(5);
/// Bytes of a page table per slot.
const SLOT_BYTES: u64 = 8;
/// Of so many scans for which a process is too large one reads its `smaps` again.
const ASK_AGAIN: u32 = 64;
/// Of the text of `smaps`: some 10,000 mappings.
const MOST_TEXT: u64 = 8 << 20;
/// "Clear the accessed bits of anonymous pages."
const FORGET: &str = "2";
/// Scans after which the kernel's memory is looked at anew: some may have been added.
const NODE_MAP_SCANS: u32 = 1000;
/// Processes of which is kept what walking them takes.
const MOST_WALKS: usize = 4096;
/// Pages of our own that it is tried on.
const TRIAL_PAGES: usize = 64;
/// What a verdict means.
const RESOLUTION: &str = "one verdict per mapping, and none where more than 64 KiB but less \
                          than three quarters of it were touched, nor of processes of more \
                          than 2 GiB or 100,000 page table entries; what stays in a TLB looks \
                          idle";

/// The samples of one process.
#[derive(Clone, Debug)]
struct Watch {
    pid: Pid,
    samples: Range<usize>,
    /// Whether its bits were cleared for this scan.
    armed: bool,
}

/// How large a process is.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    /// Anonymous pages of 4 KiB that are present.
    pages: u64,
    /// Slots of its page tables, whether they map anything or not.
    slots: u64,
}

impl Size {
    /// `None` where it has ended.
    fn of(root: &Root, pid: Pid) -> Option<Self> {
        let text = fs::read_to_string(root.proc(pid.to_string()).join("status")).ok()?;
        Some(Self {
            pages: kib_field(&text, "RssAnon")?.0 / PAGE_BYTES,
            slots: kib_field(&text, "VmPTE")?.0 / SLOT_BYTES,
        })
    }

    /// How long a walk over it takes that meets so many entries.
    fn walk(self, entries: u64) -> Nanos {
        let cost = |count: u64, each: Nanos| Nanos(count.saturating_mul(each.0));
        cost(entries, PER_ENTRY) + cost(self.slots, PER_SLOT)
    }
}

/// What walking a process takes.
#[derive(Clone, Copy, Debug, Default)]
struct Walk {
    /// Page table entries of its anonymous memory, as `smaps` counted them last, and the
    /// pages that were present then; `None`: not known.
    entries: Option<(u64, u64)>,
    /// How long it was held up last, by the clock: it waits also while we do not run.
    took: Nanos,
    /// Scans in a row for which it was held to take too long.
    refused: u32,
    warned: bool,
}

impl Walk {
    /// How long it takes, pages that came of late being small; `None`: not known.
    fn foreseen(&self, size: Size) -> Option<Nanos> {
        let (entries, pages) = self.entries?;
        let now = entries + size.pages.saturating_sub(pages);
        Some(size.walk(now).max(self.took))
    }

    fn is_too_long(&self, size: Size) -> bool {
        self.foreseen(size).is_none_or(|time| time > LONGEST_WALK)
    }

    /// Whether its entries are to be counted: not if that alone takes too long, and of
    /// what was refused now and then.
    fn is_due(&self, size: Size) -> bool {
        self.refused.is_multiple_of(ASK_AGAIN) && size.walk(size.pages) <= LONGEST_READ
    }
}

/// `clear_refs` and `smaps` as a sampler.
#[derive(Debug)]
pub struct ReferencedSampler {
    root: Root,
    flags: Option<KpageFlags>,
    nodes: PfnNodes,
    frames: Frames,
    watches: Vec<Watch>,
    walks: BTreeMap<Pid, Walk>,
    /// Of `smaps`, kept between scans.
    text: Vec<u8>,
    /// Bits that targets have set again since that was asked.
    set_again: u64,
    scans_to_node_map: u32,
}

impl ReferencedSampler {
    /// Tries it on pages of our own.
    ///
    /// # Errors
    /// `Missing` where the kernel does not have it.
    pub fn open(root: &Root) -> Result<Self, PortError> {
        try_own_pages(root)?;
        Ok(Self {
            root: root.clone(),
            flags: KpageFlags::open(root).ok(),
            nodes: PfnNodes::default(),
            frames: Frames::of_one(root),
            watches: Vec::new(),
            walks: BTreeMap::new(),
            text: Vec::new(),
            set_again: 0,
            scans_to_node_map: 0,
        })
    }

    /// Clears a process's accessed bits; `false` where it has ended, may not be watched
    /// or is too large.
    fn forget(&mut self, pid: Pid) -> bool {
        let Some(size) = Size::of(&self.root, pid) else {
            return false;
        };
        let mut walk = self.walks.get(&pid).copied().unwrap_or_default();
        if walk.is_too_long(size) && walk.is_due(size) {
            walk.took = Nanos::ZERO;
            walk.entries = self.count(pid, size);
        }
        let mut done = false;
        let mut why = "clearing its accessed bits would hold it up".to_owned();
        if walk.is_too_long(size) {
            walk.refused = walk.refused.wrapping_add(1);
        } else {
            walk.refused = 0;
            let begin = Instant::now();
            match clear(&self.root, pid) {
                Ok(()) => done = true,
                Err(error) => why = format!("its accessed bits cannot be cleared: {error}"),
            }
            walk.took = Nanos::from_secs_f64(begin.elapsed().as_secs_f64());
        }
        if !done && !walk.warned {
            walk.warned = true;
            tracing::warn!(%pid, pages = size.pages, "nothing will be seen of this process: {why}");
        }
        self.walks.insert(pid, walk);
        done
    }

    /// Reads a process's `smaps`, and counts its entries and the pages behind them;
    /// `None` where that cannot be done or would take too long.
    fn count(&mut self, pid: Pid, size: Size) -> Option<(u64, u64)> {
        let is_read =
            size.walk(size.pages) <= LONGEST_READ && read_mappings(&self.root, pid, &mut self.text);
        is_read.then(|| {
            let entries = mappings(&self.text).map(Mapping::entries).sum();
            (entries, size.pages)
        })
    }
}

impl AccessSampler for ReferencedSampler {
    fn kind(&self) -> SamplerKind {
        SamplerKind::Referenced
    }

    fn arm(&mut self, samples: &[Sample], _window: Nanos) -> Result<(), PortError> {
        if self.frames.adopt(samples) {
            self.watches = by_target(samples)
                .map(|range| Watch {
                    pid: samples[range.start].pid,
                    samples: range,
                    armed: false,
                })
                .collect();
            if self.walks.len() > MOST_WALKS {
                let watches = &self.watches;
                self.walks
                    .retain(|pid, _| watches.iter().any(|watch| watch.pid == *pid));
            }
        }
        for index in 0..self.watches.len() {
            self.watches[index].armed = self.forget(self.watches[index].pid);
        }
        Ok(())
    }

    fn collect(&mut self, seen: &mut AccessSet) -> Result<(), PortError> {
        if self.scans_to_node_map == 0 {
            self.nodes = PfnNodes::read(&self.root);
            self.scans_to_node_map = NODE_MAP_SCANS;
        }
        self.scans_to_node_map -= 1;
        self.frames.locate();
        let armed: Vec<Watch> = self.watches.iter().filter(|w| w.armed).cloned().collect();
        for watch in armed {
            // It may have grown since.
            let size = Size::of(&self.root, watch.pid).unwrap_or_default();
            let entries = self.count(watch.pid, size);
            if let Some(walk) = self.walks.get_mut(&watch.pid) {
                walk.entries = entries;
            }
            if entries.is_none() {
                continue;
            }
            let mut set_again: u64 = mappings(&self.text).map(Mapping::set_again).sum();
            let mut mappings = mappings(&self.text).peekable();
            for index in watch.samples.clone() {
                let (sample, entry) = (self.frames.samples()[index], self.frames.entries()[index]);
                while mappings
                    .next_if(|mapping| mapping.range.end() <= sample.addr)
                    .is_some()
                {}
                let mapping = mappings.peek().filter(|m| m.range.contains(sample.addr));
                let verdict = match mapping {
                    Some(mapping) if entry.present() => mapping.verdict(),
                    _ => Seen::Unknown,
                };
                seen.record(index, verdict);
                if verdict == Seen::Accessed {
                    set_again = set_again.saturating_sub(1);
                }
                if verdict == Seen::Unknown {
                    continue;
                }
                let folio = match (&self.flags, entry.pfn()) {
                    (Some(flags), Some(pfn)) => flags.folio(pfn).unwrap_or(None),
                    _ => None,
                };
                let node = entry.pfn().and_then(|pfn| self.nodes.node(pfn));
                seen.place(index, folio.map_or(0, |folio| folio.order), node);
                let is_zero = |pfn| {
                    let flags = self.flags.as_ref().map(|flags| flags.get(pfn));
                    flags.is_some_and(|flags| flags.is_ok_and(Flags::zero_page))
                };
                let shared = !entry.pfn().is_some_and(is_zero) && self.frames.is_shared(index);
                seen.note_shared(index, shared);
                if entry.soft_dirty() {
                    seen.note_written(index);
                }
            }
            self.set_again += set_again;
        }
        seen.end_scan();
        Ok(())
    }

    fn relate(&mut self, sharing: &Sharing) {
        self.frames.relate(sharing);
    }

    fn take_set_again(&mut self) -> u64 {
        std::mem::take(&mut self.set_again)
    }

    fn repeats(&self) -> bool {
        // A walk costs the same, whatever is looked at.
        true
    }

    fn resolution(&self) -> String {
        RESOLUTION.into()
    }
}

/// Reads `smaps` into `text`; `false` where the process has ended, or it cannot be read
/// or is too long.
fn read_mappings(root: &Root, pid: Pid, text: &mut Vec<u8>) -> bool {
    text.clear();
    let path = root.proc(pid.to_string()).join("smaps");
    let read = File::open(&path).and_then(|file| file.take(MOST_TEXT).read_to_end(text));
    match read {
        Ok(bytes) => (bytes as u64) < MOST_TEXT,
        Err(error) => {
            if !is_gone(&error) {
                tracing::debug!(%pid, %error, "reading its smaps");
            }
            false
        }
    }
}

/// Clears a process's accessed bits.
fn clear(root: &Root, pid: Pid) -> io::Result<()> {
    soft_dirty::clear(root, pid, FORGET)
}

fn failed(what: &impl ToString, source: io::Error) -> PortError {
    PortError::Failed {
        what: what.to_string(),
        source,
    }
}

/// Clears our own bits, touches pages of ours and looks, and once more without touching
/// them. Returns what was seen, in one line.
///
/// # Errors
/// `Missing` where the kernel does not tell the two apart.
pub(super) fn try_own_pages(root: &Root) -> Result<String, PortError> {
    let mut own = OwnPages::new(TRIAL_PAGES).map_err(|e| failed(&"pages of our own", e))?;
    let Some(range) = own.range() else {
        return Err(failed(
            &"pages of our own",
            io::ErrorKind::InvalidData.into(),
        ));
    };
    let mut text = Vec::new();
    let missing = |what: String| PortError::Missing {
        what,
        remedy: "use a kernel with CONFIG_PROC_PAGE_MONITOR=y".into(),
    };
    let mut look = |touch: bool| -> Result<Bytes, PortError> {
        match clear(root, own_pid()) {
            Err(e) if mounts::is_read_only(&e) => {
                let path = root.proc(own_pid().to_string()).join("clear_refs");
                return Err(mounts::read_only(root, &path));
            }
            Err(_) => return Err(missing("/proc/PID/clear_refs".into())),
            Ok(()) => {}
        }
        if touch {
            for index in 0..TRIAL_PAGES {
                // Its translation may still be in a TLB.
                (own.protect_and_touch(index)).map_err(|e| failed(&"pages of our own", e))?;
            }
        }
        if !read_mappings(root, own_pid(), &mut text) {
            return Err(missing("/proc/PID/smaps".into()));
        }
        // The kernel may have joined it with a neighbour.
        let found = mappings(&text).find(|mapping| mapping.range.covers(range));
        Ok(found.map_or(Bytes::ZERO, |mapping| mapping.referenced))
    };
    let (touched, idle) = (look(true)?, look(false)?);
    let more = touched.saturating_sub(idle);
    if more.as_f64() < range.bytes().as_f64() * NEARLY_ALL {
        return Err(missing(format!(
            "telling touched mappings (smaps: {touched} of {} touched, {idle} of them idle)",
            range.bytes()
        )));
    }
    Ok(format!(
        "a touched mapping of {} of ours was told from an idle one; profiling.sampler = \
         \"referenced\" gives {RESOLUTION}",
        range.bytes()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{PageRange, VirtAddr};

    #[test]
    fn a_walk_is_foreseen_from_entries_and_not_from_bytes() {
        let gib = |huge| Mapping {
            range: PageRange::new(VirtAddr(0), VirtAddr(1 << 30)).unwrap(),
            is_anonymous: true,
            present: Bytes(1 << 30),
            referenced: Bytes(1 << 29),
            huge,
        };
        let (small, huge) = (gib(Bytes::ZERO), gib(Bytes(1 << 30)));
        assert_eq!((small.entries(), small.set_again()), (1 << 18, 1 << 17));
        assert_eq!((huge.entries(), huge.set_again()), (512, 256));

        let size = |pages| Size {
            pages,
            slots: 1 << 10,
        };
        let mut walk = Walk::default();
        assert_eq!(walk.foreseen(size(1 << 18)), None);
        walk.entries = Some((huge.entries(), 1 << 18));
        assert!(!walk.is_too_long(size(1 << 18)));
        // What came since may be small pages.
        assert!(walk.is_too_long(size(2 << 18)));
        walk.entries = Some((small.entries(), 1 << 18));
        assert!(walk.is_too_long(size(1 << 18)));
        // Page tables that map nothing are walked as well, as those of swapped pages are.
        walk.entries = Some((1000, 1000));
        assert!(!walk.is_too_long(size(1000)));
        assert!(walk.is_too_long(Size {
            pages: 1000,
            slots: 16 << 20
        }));
        // And what took long will do so again.
        walk.took = Nanos::from_millis(11);
        assert!(walk.is_too_long(size(1000)));
    }

    #[test]
    fn what_was_too_much_is_counted_again_now_and_then() {
        let size = |pages| Size { pages, slots: 0 };
        let mut walk = Walk::default();
        assert!(walk.is_due(size(1 << 18)));
        walk.refused = 1;
        assert!(!walk.is_due(size(1 << 18)));
        walk.refused = ASK_AGAIN;
        assert!(walk.is_due(size(1 << 18)));
        assert!(!walk.is_due(size(1 << 20)), "4 GiB");
    }
}
