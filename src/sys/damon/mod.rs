//! Accessed pages by DAMON, where the kernel has no idle-page tracking
//! (`Documentation/mm/damon/design.rst`).
//!
//! **Unit.** One sample, a page of 4 KiB, per scan.
//!
//! **Problem.** DAMON's own regions split and merge at random over many
//! aggregations; our engine has regions of its own, and asks for pages that it
//! chose, at moments that it chose.
//!
//! **Approach.** DAMON as a reader of accessed bits, without its adaptation:
//! operations `fvaddr` (fixed virtual addresses), one region of one page per
//! sample, and an aggregation that never ends, so that no region is ever merged
//! or split. One kdamond, for all target processes, runs from arm to collect
//! only, and checks each page `CHECKS` times in between. For each process a
//! scheme of action `stat` matches regions with at least one access and is
//! applied after every check; at the end its matches are read. (Several
//! kdamonds would have to be asked one after the other, each at its own next
//! check, for all of DAMON's files share one lock.)
//!
//! ```text
//! arm                                                      collect
//!  on │ clear ── check, clear ── check, clear ── check, clear ── check │ read, off
//! ```
//!
//! A collect waits for the check under way, a few percent of the window where
//! nothing else delays the kdamond.
//!
//! The threshold is one access in any check: then a verdict means the same as
//! the idle bit's, "touched between arm and collect". More would ask how often
//! in the window, and lose pages whose translation stays in the TLB for long.
//!
//! **Properties.** Only a kdamond that we made is ever touched: it carries a
//! random mark, which is noted in the state directory before it is made and
//! looked for when a crashed run's is removed. Pages that moved, vanished or
//! left the LRU lists are unknown, as far as page maps and flags are open to
//! us. At most `MAX_REGIONS` samples per scan are watched, in turn; the
//! others are unknown in that scan.

mod host;
mod sysfs;

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::Range;
use std::path::Path;

use self::host::busy_remedy;
pub use self::host::{clean_up, operations, try_own_page};
pub(super) use self::host::{kdamond_count, running_modules};
use self::sysfs::{Admin, Intervals, errno};
use super::frames::Frames;
use super::kpageflags::{Folio, KpageFlags};
use super::own_pages::own_pid;
use super::pagemap::{Entry, PfnNodes};
use super::root::Root;
use super::state::{Note, Owner, StateDir};
use crate::ports::{AccessSampler, PortError, SamplerKind};
use crate::tiering::observation::{AccessSet, Sample, Seen};
use crate::units::{Nanos, Pid, VirtAddr};

/// Checks of each page per window. With one, a collect that comes a little late
/// would wait for another whole window; each costs the target a cleared
/// accessed bit.
const CHECKS: u64 = 4;
/// Least time between checks: DAMON's own default.
const MIN_CHECK_MICROS: u64 = 5_000;
/// Checks per aggregation: so many that none ends within a scan.
const AGGREGATION_CHECKS: u64 = 10_000;
/// Samples watched per scan: each is a directory of three files to the kernel.
const MAX_REGIONS: usize = 8192;
const OPERATIONS: &str = "fvaddr";
/// The mark's uppermost bit: above any size of a region.
const MARK_BIT: u64 = 1 << 63;

/// One process and what is watched of it.
#[derive(Debug)]
struct Watch {
    pid: Pid,
    /// Its samples.
    samples: Range<usize>,
    /// The pages in the kernel's files, sorted.
    pages: Vec<VirtAddr>,
    /// Those found accessed, sorted.
    accessed: Vec<VirtAddr>,
}

/// DAMON as a sampler.
#[derive(Debug)]
pub struct DamonSampler {
    root: Root,
    admin: Admin,
    state: Option<StateDir>,
    mark: u64,
    flags: Option<KpageFlags>,
    nodes: PfnNodes,
    frames: Frames,
    /// What the page maps said when armed.
    armed: Vec<Entry>,
    folios: Vec<Option<Folio>>,
    /// One per target that the kdamond has, in its order.
    watches: Vec<Watch>,
    /// Whether there is a kdamond because of us.
    made: bool,
    /// Whether it was started for the scan under way.
    running: bool,
    /// Scans so far: whose turn it is.
    turn: usize,
    /// CPU time of all its threads that have ended.
    cpu: Nanos,
}

impl DamonSampler {
    /// A sampler that has made nothing in the kernel yet, and notes in
    /// `state_dir` what it is going to make. Removes what a crashed run left.
    ///
    /// # Errors
    /// `Missing` where the kernel has no DAMON or not what we need of it, `Busy`
    /// where somebody else uses it, `Forbidden` without root.
    pub fn open(root: &Root, state_dir: &Path) -> Result<Self, PortError> {
        clean_up(root, state_dir)?;
        let sampler = Self::with_state(root, Some(StateDir::new(state_dir)));
        sampler.check_free()?;
        Ok(sampler)
    }

    fn with_state(root: &Root, state: Option<StateDir>) -> Self {
        Self {
            root: root.clone(),
            admin: Admin::new(root),
            state,
            mark: MARK_BIT | RandomState::new().hash_one(own_pid().0),
            flags: KpageFlags::open(root).ok(),
            nodes: PfnNodes::read(root),
            frames: Frames::new(root),
            armed: Vec::new(),
            folios: Vec::new(),
            watches: Vec::new(),
            made: false,
            running: false,
            turn: 0,
            cpu: Nanos::ZERO,
        }
    }

    /// Whether DAMON is there and nobody else's.
    fn check_free(&self) -> Result<(), PortError> {
        let count = self.admin.count().map_err(|e| self.explain(e))?;
        if count > 0 && !self.is_ours(count) {
            // Theirs tells what the kernel offers: no use in stopping it otherwise.
            if let Ok(names) = self.admin.first().operations()
                && !names.iter().any(|name| name == OPERATIONS)
            {
                return Err(self.explain(io::ErrorKind::Unsupported.into()));
            }
            return Err(PortError::Busy {
                what: self.admin.path().display().to_string(),
                remedy: format!(
                    "somebody else has set up kdamonds ({count}): stop their owner (damo stop), or \
                     write 0 to nr_kdamonds there"
                ),
            });
        }
        Ok(())
    }

    fn is_ours(&self, count: u64) -> bool {
        let kdamond = self.admin.first();
        self.made && count == 1 && (kdamond.mark() == Some(self.mark) || kdamond.is_bare())
    }

    /// Makes the kdamond unless it is there.
    fn make(&mut self) -> Result<(), PortError> {
        let count = self.admin.count().map_err(|e| self.explain(e))?;
        if self.is_ours(count) {
            return Ok(());
        }
        self.watches.clear();
        self.made = false;
        self.check_free()?;
        if let Some(state) = &self.state {
            let note = Note {
                owner: Owner::this(&self.root),
                kdamond_mark: self.mark,
            };
            state.write(&note).map_err(|source| PortError::Failed {
                what: format!("noting kernel settings in {}", state.path().display()),
                source,
            })?;
        }
        self.made = true;
        let kdamond = self.admin.first();
        let made = (|| {
            self.admin.set_count(1)?;
            kdamond.make_context()?;
            if !kdamond.operations()?.iter().any(|name| name == OPERATIONS) {
                return Err(io::ErrorKind::Unsupported.into());
            }
            kdamond.set_operations(OPERATIONS)
        })();
        made.map_err(|e| {
            self.unmake();
            self.explain(e)
        })
    }

    /// Removes our kdamond, and the note.
    fn unmake(&mut self) {
        if !self.made {
            return;
        }
        self.stop();
        let gone = match self.admin.count() {
            Ok(count) if self.is_ours(count) => self.admin.set_count(0),
            other => other.map(drop),
        };
        match gone.and_then(|()| self.state.as_ref().map_or(Ok(()), StateDir::remove)) {
            Ok(()) => {}
            Err(error) => tracing::warn!(%error, "cannot remove our kdamond"),
        }
        self.made = false;
        self.watches.clear();
    }

    /// Tells the kdamond which pages to watch; processes that have ended, and
    /// samples whose turn it is not, stay out.
    fn assign(&mut self) -> Result<(), PortError> {
        let samples = self.frames.samples();
        let targets: Vec<Range<usize>> = by_target(samples)
            .filter(|range| has_memory(&self.root, samples[range.start].pid))
            .collect();
        let kdamond = self.admin.first();
        let strides = samples.len().div_ceil(MAX_REGIONS).max(1);
        let assigned = (|| {
            if self.watches.len() != targets.len() {
                self.watches.clear();
                kdamond.make_targets(targets.len(), self.mark)?;
            }
            let mut regions = 0;
            for (index, range) in targets.into_iter().enumerate() {
                let pid = samples[range.start].pid;
                let mut pages: Vec<VirtAddr> = range
                    .clone()
                    .skip((self.turn + strides - range.start % strides) % strides)
                    .step_by(strides)
                    .map(|i| samples[i].addr.page())
                    .collect();
                pages.dedup();
                regions += pages.len();
                let before = self.watches.get(index);
                if before.is_none_or(|watch| watch.pid != pid) {
                    kdamond.set_process(index, pid)?;
                }
                kdamond.set_pages(index, &pages, before.map_or(&[], |watch| &watch.pages))?;
                let watch = Watch {
                    pid,
                    samples: range,
                    pages,
                    accessed: Vec::new(),
                };
                match self.watches.get_mut(index) {
                    Some(old) => *old = watch,
                    None => self.watches.push(watch),
                }
            }
            kdamond.set_limits(regions)
        })();
        assigned.map_err(|e| {
            // What the files hold now is not known: the next scan begins anew.
            self.watches.clear();
            self.explain(e)
        })
    }

    /// Looks up the folios behind the samples, where page flags are open to us.
    fn resolve(&mut self) {
        let entries = self.frames.entries();
        self.folios.resize(entries.len(), None);
        self.armed.resize(entries.len(), Entry::default());
        for (index, &entry) in entries.iter().enumerate() {
            if self.armed[index].pfn() != entry.pfn() || self.folios[index].is_none() {
                self.folios[index] = match (&self.flags, entry.pfn()) {
                    (Some(flags), Some(pfn)) => flags.folio(pfn).unwrap_or(None),
                    _ => None,
                };
            }
            self.armed[index] = entry;
        }
    }

    /// Starts the kdamond. Where a process ended since it was assigned, which
    /// the kernel refuses, goes on without it.
    fn start(&mut self, window: Nanos) -> Result<(), PortError> {
        // A little longer, so that the last check comes just after the window
        // has ended and not just before: then it would take a further one.
        let check = (window.0 / 1000 / CHECKS * 33 / 32).max(MIN_CHECK_MICROS);
        let intervals = Intervals {
            sample: check,
            aggregation: check * AGGREGATION_CHECKS,
        };
        let kdamond = self.admin.first();
        while !self.watches.is_empty() {
            let started = kdamond
                .set_intervals(intervals, self.watches.len())
                .and_then(|()| kdamond.command("on"));
            let Err(error) = started else {
                self.running = true;
                break;
            };
            let all_there = self
                .watches
                .iter()
                .all(|watch| has_memory(&self.root, watch.pid));
            if all_there {
                return Err(self.explain(error));
            }
            self.assign()?;
        }
        Ok(())
    }

    /// Has the kernel tell the accessed regions; it answers at the next check.
    fn read(&mut self) -> Result<(), PortError> {
        if !self.running {
            return Ok(());
        }
        let kdamond = self.admin.first();
        let read = (|| {
            kdamond.command("update_schemes_tried_regions")?;
            for (index, watch) in self.watches.iter_mut().enumerate() {
                watch.accessed.clear();
                kdamond.tried_regions(index, &mut watch.accessed)?;
                watch.accessed.sort_unstable();
            }
            kdamond.command("clear_schemes_tried_regions")
        })();
        match read {
            // It stops by itself when all of its processes have ended.
            Err(_) if !kdamond.is_on().unwrap_or(false) => self.running = false,
            Err(error) => return Err(self.explain(error)),
            Ok(()) => {}
        }
        Ok(())
    }

    /// Turns the kdamond off and adds up its CPU time. Verdicts stay readable.
    fn stop(&mut self) {
        let kdamond = self.admin.first();
        let ours = self.made && kdamond.mark() == Some(self.mark);
        if !ours || !kdamond.is_on().unwrap_or(false) {
            return;
        }
        if let Some(time) = kdamond.pid().and_then(|pid| run_time(&self.root, pid)) {
            self.cpu += time;
        }
        if let Err(error) = kdamond.command("off") {
            tracing::warn!(%error, "cannot stop our kdamond");
        }
    }

    fn verdict(&self, index: usize, watch: &Watch) -> Seen {
        let page = self.frames.samples()[index].addr.page();
        let (armed, now) = (self.armed[index], self.frames.entries()[index]);
        let told = self.running
            && armed.present()
            && now.present()
            && armed.pfn() == now.pfn()
            && watch.pages.binary_search(&page).is_ok();
        if !told {
            return Seen::Unknown;
        }
        if watch.accessed.binary_search(&page).is_ok() {
            return Seen::Accessed;
        }
        // DAMON passes over pages off the LRU lists without a word.
        if let (Some(flags), Some(folio)) = (&self.flags, self.folios[index])
            && !flags
                .get(folio.head)
                .is_ok_and(super::kpageflags::Flags::lru)
        {
            return Seen::Unknown;
        }
        Seen::Idle
    }

    fn explain(&self, error: io::Error) -> PortError {
        let what = self.admin.path().display().to_string();
        let missing = |remedy: &str| PortError::Missing {
            what: format!("DAMON ({what})"),
            remedy: remedy.into(),
        };
        if error.kind() == io::ErrorKind::Unsupported {
            return missing(
                "this kernel's DAMON has no virtual addresses: use one with CONFIG_DAMON_VADDR=y",
            );
        }
        match errno(&error) {
            Some(libc::ENOENT) if !self.admin.path().exists() => {
                missing("use a kernel with CONFIG_DAMON_SYSFS=y and CONFIG_DAMON_VADDR=y")
            }
            Some(libc::ENOENT) => {
                missing("use Linux 6.7 or later, whose schemes have an apply interval")
            }
            Some(libc::EACCES | libc::EPERM) => PortError::Forbidden {
                what,
                remedy: "run as root, outside of a container that hides it".into(),
            },
            Some(libc::EBUSY) => PortError::Busy {
                what,
                remedy: busy_remedy(&self.root),
            },
            _ => PortError::Failed {
                what,
                source: error,
            },
        }
    }
}

impl AccessSampler for DamonSampler {
    fn kind(&self) -> SamplerKind {
        SamplerKind::Damon
    }

    fn arm(&mut self, samples: &[Sample], window: Nanos) -> Result<(), PortError> {
        debug_assert!(samples.is_sorted_by_key(|s| (s.target, s.addr)));
        self.stop();
        if self.frames.adopt(samples) {
            self.armed.clear();
            self.folios.clear();
        }
        self.running = false;
        self.make()?;
        self.turn = self.turn.wrapping_add(1);
        self.assign()?;
        self.frames.locate();
        self.resolve();
        self.start(window)
    }

    fn collect(&mut self, seen: &mut AccessSet) -> Result<(), PortError> {
        let read = self.read();
        self.stop();
        read?;
        self.frames.locate();
        for watch in &self.watches {
            for index in watch.samples.clone() {
                if index >= seen.samples().len() {
                    break;
                }
                let verdict = self.verdict(index, watch);
                seen.record(index, verdict);
                if verdict != Seen::Unknown {
                    let order = self.folios[index].map_or(0, |folio| folio.order);
                    let pfn = self.frames.entries()[index].pfn();
                    seen.place(index, order, pfn.and_then(|pfn| self.nodes.node(pfn)));
                }
            }
        }
        seen.end_scan();
        Ok(())
    }

    fn kernel_cpu_time(&mut self) -> Nanos {
        let running = (self.made && self.admin.first().mark() == Some(self.mark))
            .then(|| self.admin.first().pid())
            .flatten()
            .and_then(|pid| run_time(&self.root, pid))
            .unwrap_or_default();
        self.cpu + running
    }

    fn release(&mut self) {
        self.unmake();
    }

    fn resolution(&self) -> String {
        format!(
            "per folio (4 KiB, or the huge page that holds the sample): touched since the scan \
             began in any of {CHECKS} checks by the kernel; at most {MAX_REGIONS} samples a scan"
        )
    }
}

impl Drop for DamonSampler {
    fn drop(&mut self) {
        self.unmake();
    }
}

/// The index ranges of samples of one target each.
fn by_target(samples: &[Sample]) -> impl Iterator<Item = Range<usize>> {
    let mut begin = 0;
    std::iter::from_fn(move || {
        let first = samples.get(begin)?;
        let count = samples[begin..]
            .iter()
            .take_while(|sample| sample.target == first.target)
            .count();
        let range = begin..begin + count;
        begin += count;
        Some(range)
    })
}

/// Time that a thread has run, from `/proc/PID/schedstat` in nanoseconds;
/// `stat` counts ticks of 10 ms, longer than a kdamond runs in a scan.
fn run_time(root: &Root, pid: Pid) -> Option<Nanos> {
    let text = fs::read_to_string(root.proc(pid.to_string()).join("schedstat")).ok()?;
    text.split_ascii_whitespace()
        .next()?
        .parse()
        .ok()
        .map(Nanos)
}

/// Whether a process exists and has memory of its own.
fn has_memory(root: &Root, pid: Pid) -> bool {
    fs::read_to_string(root.proc(pid.to_string()).join("statm"))
        .is_ok_and(|text| text.split_ascii_whitespace().next() != Some("0"))
}
