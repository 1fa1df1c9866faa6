//! Accessed mappings by `clear_refs` and `smaps`: the last resort, for kernels that
//! have neither idle-page tracking nor DAMON
//! (`Documentation/filesystems/proc.rst`).
//!
//! **Unit.** One mapping of a process, and one verdict for all samples in it.
//!
//! **Approach.** `1` in `/proc/PID/clear_refs` clears the accessed bits of all of a
//! process's pages. `smaps` then tells of each mapping how much of it is present and
//! how much of that was referenced since. Where that is nearly all, every page of the
//! mapping counts as accessed; where it is next to nothing, as idle; in between, as
//! where a heap has hot and cold parts, nothing can be told.
//!
//! **Limits.** The kernel walks all of a process to clear, and holds its address space
//! for writing meanwhile: a fault or an `mmap` of the target waits so long. A walk that
//! is foreseen to take longer than [`LONGEST_WALK`] is not begun, and nothing is told
//! of that process. Its accessed bits are also what the kernel's reclaim goes by: under
//! memory pressure it knows less of what is in use. So this sampler is never chosen
//! unless it is asked for.
//!
//! Nothing is left to undo: what is touched is marked again.

use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::Range;

use super::clock::thread_cpu_time;
use super::frames::{Frames, by_target};
use super::kpageflags::KpageFlags;
use super::own_pages::{OwnPages, own_pid};
use super::pagemap::{PfnNodes, is_gone};
use super::root::Root;
use super::text::hex;
use crate::ports::{AccessSampler, PortError, SamplerKind};
use crate::tiering::observation::{AccessSet, Sample, Seen};
use crate::units::{Bytes, Nanos, PageRange, Pid, VirtAddr};

/// The longest that a fault of a target may have to wait for us.
const LONGEST_WALK: Nanos = Nanos::from_millis(10);
/// Cost of a walk per present page until it is measured (35 to 63 ns on bare metal).
const FIRST_GUESS: f64 = 50.0;
/// Share of a mapping that must have been touched for all of it to count as accessed.
const NEARLY_ALL: f64 = 0.75;
/// Share that may have been touched where it still counts as idle: next to nothing, for
/// it may be what is touched all the time.
const NEXT_TO_NOTHING: f64 = 1.0 / 64.0;
/// "Clear the accessed bits of all pages."
const FORGET: &str = "1";
/// Pages of our own that it is tried on.
const TRIAL_PAGES: usize = 64;
/// What a verdict means.
pub(super) const RESOLUTION: &str = "one verdict per mapping, and none where between a 64th and \
                                     three quarters of it were touched, nor of processes that \
                                     take over 10 ms to walk";

/// One process and how it is watched.
#[derive(Clone, Debug)]
struct Watch {
    pid: Pid,
    samples: Range<usize>,
    /// Whether its bits were cleared for this scan.
    armed: bool,
}

/// `clear_refs` and `smaps` as a sampler.
#[derive(Debug)]
pub struct ReferencedSampler {
    root: Root,
    flags: Option<KpageFlags>,
    nodes: PfnNodes,
    frames: Frames,
    watches: Vec<Watch>,
    /// Of `smaps`, kept between scans.
    text: Vec<u8>,
    /// What a walk costs per present page, as measured last, nanoseconds.
    per_page: f64,
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
            nodes: PfnNodes::read(root),
            frames: Frames::new(root),
            watches: Vec::new(),
            text: Vec::new(),
            per_page: FIRST_GUESS,
        })
    }

    /// Clears a process's accessed bits; `false` where it has ended or is too large.
    fn forget(&mut self, pid: Pid) -> Result<bool, PortError> {
        let Some(pages) = present_pages(&self.root, pid) else {
            return Ok(false);
        };
        if self.per_page * pages as f64 > LONGEST_WALK.0 as f64 {
            tracing::debug!(%pid, pages, "too large to clear its accessed bits");
            return Ok(false);
        }
        let begin = thread_cpu_time();
        let done = clear(&self.root, pid)?;
        let took = thread_cpu_time().saturating_sub(begin);
        // The call itself costs something, too: of few pages nothing is learnt.
        if done && pages >= 4096 {
            self.per_page = took.0 as f64 / pages as f64;
        }
        Ok(done)
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
        }
        for index in 0..self.watches.len() {
            self.watches[index].armed = self.forget(self.watches[index].pid)?;
        }
        Ok(())
    }

    fn collect(&mut self, seen: &mut AccessSet) -> Result<(), PortError> {
        self.frames.locate();
        for watch in self.watches.iter().filter(|watch| watch.armed) {
            if !read_mappings(&self.root, watch.pid, &mut self.text)? {
                continue;
            }
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
                if verdict == Seen::Unknown {
                    continue;
                }
                let folio = match (&self.flags, entry.pfn()) {
                    (Some(flags), Some(pfn)) => flags.folio(pfn).unwrap_or(None),
                    _ => None,
                };
                let node = entry.pfn().and_then(|pfn| self.nodes.node(pfn));
                seen.place(index, folio.map_or(0, |folio| folio.order), node);
                if entry.soft_dirty() {
                    seen.note_written(index);
                }
            }
        }
        seen.end_scan();
        Ok(())
    }

    fn repeats(&self) -> bool {
        // A walk costs the same, whatever is looked at.
        true
    }

    fn resolution(&self) -> String {
        RESOLUTION.into()
    }
}

/// A mapping, as `smaps` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapping {
    range: PageRange,
    /// Bytes that are present.
    present: Bytes,
    /// Of these, those that were touched.
    referenced: Bytes,
}

impl Mapping {
    fn verdict(self) -> Seen {
        let share = self.referenced.as_f64() / self.present.as_f64();
        if self.present.is_zero() {
            Seen::Unknown
        } else if share >= NEARLY_ALL {
            Seen::Accessed
        } else if share <= NEXT_TO_NOTHING {
            Seen::Idle
        } else {
            Seen::Unknown
        }
    }
}

/// The mappings in the text of `smaps`, in order. What cannot be read is left out.
fn mappings(text: &[u8]) -> impl Iterator<Item = Mapping> {
    let mut lines = text.split(|&b| b == b'\n').peekable();
    let mut reached = VirtAddr(0);
    std::iter::from_fn(move || {
        loop {
            // "7f1c6a000000-7f1c6a021000 rw-p 00000000 00:00 0"
            let range = lines.find_map(header)?;
            let mut mapping = Mapping {
                range,
                present: Bytes::ZERO,
                referenced: Bytes::ZERO,
            };
            while let Some(line) = lines.next_if(|line| header(line).is_none()) {
                if let Some(rest) = line.strip_prefix(b"Rss:") {
                    mapping.present = kib(rest);
                } else if let Some(rest) = line.strip_prefix(b"Referenced:") {
                    mapping.referenced = kib(rest);
                }
            }
            // Between two of the kernel's buffers the target may remap.
            if range.start() >= reached {
                reached = range.end();
                return Some(mapping);
            }
        }
    })
}

/// The range of a mapping's first line; `None` of the lines that follow it, which begin
/// with a capital letter.
fn header(line: &[u8]) -> Option<PageRange> {
    let range = line.split(|&b| b == b' ').next()?;
    let dash = range.iter().position(|&b| b == b'-')?;
    let (start, end) = (hex(&range[..dash])?, hex(&range[dash + 1..])?);
    PageRange::new(VirtAddr(start), VirtAddr(end))
}

/// "       132 kB".
fn kib(text: &[u8]) -> Bytes {
    let digits = text.trim_ascii().split(|&b| b == b' ').next();
    let number = digits.and_then(|digits| std::str::from_utf8(digits).ok());
    let kib: u64 = number.and_then(|n| n.parse().ok()).unwrap_or(0);
    Bytes(kib.saturating_mul(1024))
}

/// Reads `smaps` into `text`; `false` where the process has ended.
fn read_mappings(root: &Root, pid: Pid, text: &mut Vec<u8>) -> Result<bool, PortError> {
    text.clear();
    let path = root.proc(pid.to_string()).join("smaps");
    match File::open(&path).and_then(|mut file| file.read_to_end(text)) {
        Ok(_) => Ok(true),
        Err(error) if is_gone(&error) => Ok(false),
        Err(source) => Err(failed(&path.display(), source)),
    }
}

/// Clears a process's accessed bits; `false` where it has ended.
fn clear(root: &Root, pid: Pid) -> Result<bool, PortError> {
    let path = root.proc(pid.to_string()).join("clear_refs");
    match fs::write(&path, FORGET) {
        Ok(()) => Ok(true),
        Err(error) if is_gone(&error) => Ok(false),
        Err(source) => Err(failed(&path.display(), source)),
    }
}

/// Pages of a process that are present; `None` where it has ended.
fn present_pages(root: &Root, pid: Pid) -> Option<u64> {
    let text = fs::read_to_string(root.proc(pid.to_string()).join("statm")).ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok()
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
    let own = OwnPages::new(TRIAL_PAGES).map_err(|e| failed(&"pages of our own", e))?;
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
        if !matches!(clear(root, own_pid()), Ok(true)) {
            return Err(missing("/proc/PID/clear_refs".into()));
        }
        if touch {
            for index in 0..TRIAL_PAGES {
                // Its translation may still be in a TLB.
                (own.protect_and_touch(index)).map_err(|e| failed(&"pages of our own", e))?;
            }
        }
        read_mappings(root, own_pid(), &mut text)?;
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
        "a touched mapping of {} of ours was told from an idle one",
        range.bytes()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &[u8] =
        b"7f0000000000-7f0000010000 rw-p 00000000 00:00 0                          [anon:a b]\n\
        Size:                 64 kB\n\
        Rss:                  64 kB\n\
        Pss:                  64 kB\n\
        Referenced:           48 kB\n\
        Anonymous:            64 kB\n\
        VmFlags: rd wr mr mw me ac sd\n\
        7f0000010000-7f0000020000 r--p 00000000 08:02 173521 /usr/lib/Rss: 7 kB\n\
        Rss:                   0 kB\n\
        Referenced:            0 kB\n\
        7f0000008000-7f0000030000 rw-p 00000000 00:00 0\n\
        Rss:                  64 kB\n";

    #[test]
    fn mappings_are_read_with_what_was_touched_of_them() {
        let all: Vec<Mapping> = mappings(TEXT).collect();
        assert_eq!(all.len(), 2, "one that goes back is left out");
        assert_eq!(all[0].range.start(), VirtAddr(0x7f00_0000_0000));
        assert_eq!(all[0].present, Bytes(64 << 10));
        assert_eq!(all[0].referenced, Bytes(48 << 10));
        assert_eq!(all[0].verdict(), Seen::Accessed);
        assert_eq!(all[1].verdict(), Seen::Unknown, "nothing of it is there");
    }

    #[test]
    fn a_mapping_of_which_a_part_was_touched_tells_nothing() {
        let verdict = |present: u64, referenced: u64| {
            let mapping = Mapping {
                range: PageRange::new(VirtAddr(0), VirtAddr(1 << 30)).unwrap(),
                present: Bytes(present << 10),
                referenced: Bytes(referenced << 10),
            };
            mapping.verdict()
        };
        assert_eq!(verdict(1024, 1024), Seen::Accessed);
        assert_eq!(verdict(1024, 767), Seen::Unknown);
        assert_eq!(verdict(1024, 17), Seen::Unknown);
        assert_eq!(verdict(1024, 16), Seen::Idle);
    }

    proptest! {
        #[test]
        fn garbage_never_panics_and_stays_sorted(
            text in proptest::collection::vec(any::<u8>(), 0..400),
            at in 0..TEXT.len(),
        ) {
            let mixed = [&TEXT[..at], &text, &TEXT[at..]].concat();
            let mut end = VirtAddr(0);
            for mapping in mappings(&mixed) {
                prop_assert!(mapping.range.start() >= end);
                end = mapping.range.end();
            }
        }
    }
}
