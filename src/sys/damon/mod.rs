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
//! operations `fvaddr` (fixed virtual addresses) or `paddr` (page frames), one region
//! of one page per sample, and an aggregation that never ends, so that no region is
//! ever merged or split. One kdamond, for all target processes, runs through the scans
//! of one set of samples: it clears the accessed bits, sleeps for nearly the whole
//! window, checks, and begins anew. A scheme of action `stat`, applied after each
//! check, passes by every region, and its tracepoint `damon:damos_before_apply` tells
//! what was found.
//!
//! ```text
//! arm                              collect, arm                      collect, rest
//!  on │ clear ──────────────── check, tell, clear ──────────────── check, tell │ off
//! ```
//!
//! The kernel's other way to tell, a directory of files per region that a
//! scheme tried, costs forty times as much: in a guest under emulation 80 µs a
//! region against 2.
//!
//! What is told means the same as the idle bit: touched between arm and
//! collect. A page that nothing was told of in time is unknown. In physical
//! addresses a sample is the page frame that its page map named when it was armed.
//! DAMON's own regions over physical memory work only where hot memory is contiguous
//! there, and scattered pages of 4 KiB are not; single frames need not be.
//!
//! **Properties.** Only a kdamond that we made is ever touched: it carries a
//! random mark, which is noted in the state directory before it is made and
//! looked for when a crashed run's is removed. Pages that moved, vanished or
//! left the LRU lists are unknown, as far as page maps and flags are open to
//! us. At most `MAX_REGIONS` samples per scan are watched, fewer where the limit
//! of open files is low.

mod host;
mod sysfs;
mod told;
mod watch;

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use self::host::{busy_remedy, has_memory, most_regions, run_time};
pub use self::host::{clean_up, try_own_page};
pub(super) use self::host::{kdamond_count, running_modules};
use self::sysfs::{Admin, Intervals, errno};
use self::told::Told;
pub use self::watch::Space;
use self::watch::{Watch, address};
use super::clock::thread_cpu_time;
use super::frames::{Frames, by_target};
use super::kpageflags::{Folio, KpageFlags};
use super::mounts;
use super::own_pages::own_pid;
use super::pagemap::{Entry, PfnNodes};
use super::root::Root;
use super::state::{Note, Owner, StateDir};
use crate::ports::{AccessSampler, PortError, SamplerKind, Sharing};
use crate::tiering::observation::{AccessSet, Sample, Seen};
use crate::units::{Nanos, Pid};

/// Least time between clear and check: DAMON's own default.
const MIN_CHECK_MICROS: u64 = 5_000;
/// Checks per aggregation: so many that none ends within a scan.
const AGGREGATION_CHECKS: u64 = 10_000;
/// Samples watched per scan: each is a directory of files to the kernel.
const MAX_REGIONS: usize = 8192;
/// A tick of the slowest kernel clock, 100 Hz.
const TICK: Nanos = Nanos(10_000_000);
/// How often a late check is asked for, and for how long at most. On a machine
/// where every CPU is busy a kernel thread waits for a time slice or two.
const POLL: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_millis(100);
/// Bytes of a ring buffer per region: an event of 52 bytes and its header. Every
/// CPU has such a buffer, for the kdamond may run on any.
const EVENT_BYTES: u64 = 64;
/// The mark's uppermost bit: above any size of a region.
const MARK_BIT: u64 = 1 << 63;

/// DAMON as a sampler.
#[derive(Debug)]
pub struct DamonSampler {
    root: Root,
    space: Space,
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
    told: Option<Told>,
    /// Whether there is a kdamond because of us.
    made: bool,
    /// The kernel thread that was started for the scan under way.
    running: Option<Pid>,
    /// What it had used when it was last looked at.
    running_cpu: Nanos,
    /// Samples that may be watched per scan.
    most: usize,
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
    pub fn open(root: &Root, space: Space, state_dir: &Path) -> Result<Self, PortError> {
        clean_up(root, state_dir)?;
        let sampler = Self::with_state(root, space, Some(StateDir::new(state_dir)));
        sampler.check_free()?;
        Ok(sampler)
    }

    fn with_state(root: &Root, space: Space, state: Option<StateDir>) -> Self {
        Self {
            root: root.clone(),
            space,
            admin: Admin::new(root),
            state,
            mark: MARK_BIT | RandomState::new().hash_one(own_pid().0),
            flags: KpageFlags::open(root).ok(),
            nodes: PfnNodes::read(root),
            frames: match space {
                Space::Virtual => Frames::of_one(root),
                Space::Physical => Frames::new(root),
            },
            armed: Vec::new(),
            folios: Vec::new(),
            watches: Vec::new(),
            told: None,
            made: false,
            running: None,
            running_cpu: Nanos::ZERO,
            most: most_regions(),
            cpu: Nanos::ZERO,
        }
    }

    /// Whether DAMON is there and nobody else's.
    fn check_free(&self) -> Result<(), PortError> {
        let count = self.admin.count().map_err(|e| self.explain(e))?;
        if count > 0 && !self.is_ours(count) {
            // Theirs tells what the kernel offers: no use in stopping it otherwise.
            if let Ok(names) = self.admin.first().operations()
                && !names.iter().any(|name| name == self.space.operations())
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
            if self.told.is_none() {
                self.told = Some(Told::open(&self.root)?);
            }
            self.admin.set_count(1)?;
            kdamond.make_context()?;
            let wanted = self.space.operations();
            if !kdamond.operations()?.iter().any(|name| name == wanted) {
                return Err(io::ErrorKind::Unsupported.into());
            }
            kdamond.set_operations(wanted)
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
        self.told = None;
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

    /// Tells the kdamond which pages to watch. Processes that have ended stay out, as
    /// do, in physical addresses, samples without a page frame.
    fn assign(&mut self) -> Result<(), PortError> {
        let samples = self.frames.samples();
        let entry = |i: usize| self.frames.entries().get(i).copied().unwrap_or_default();
        let targets: Vec<Range<usize>> = match self.space {
            Space::Virtual => by_target(samples)
                .filter(|range| has_memory(&self.root, samples[range.start].pid))
                .collect(),
            Space::Physical if samples.is_empty() => Vec::new(),
            Space::Physical => std::iter::once(0..samples.len()).collect(),
        };
        let kdamond = self.admin.first();
        let mut left = self.most;
        let assigned = (|| {
            if self.watches.len() != targets.len() {
                self.watches.clear();
                kdamond.make_targets(targets.len(), self.mark)?;
            }
            let mut regions = 0;
            for (index, range) in targets.into_iter().enumerate() {
                if self.watches.len() == index {
                    self.watches.push(Watch::new(kdamond.regions(index)));
                }
                let watch = &mut self.watches[index];
                let pid = samples[range.start].pid;
                if self.space == Space::Virtual && watch.pid != Some(pid) {
                    kdamond.set_process(index, pid)?;
                    watch.pid = Some(pid);
                }
                // As armed last: page frames that are no longer theirs are told
                // apart when the verdict is asked for.
                let pages = (range.clone())
                    .filter_map(|i| address(self.space, &samples[i], entry(i)))
                    .take(left)
                    .collect();
                watch.set(range, pages);
                left -= watch.pages.len();
                regions += watch.regions.watch(&watch.pages)?;
            }
            if let Some(told) = &mut self.told {
                told.tracepoint.reserve(regions as u64 * EVENT_BYTES)?;
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
    fn start(&mut self, collected: Instant) -> Result<(), PortError> {
        // The kernel's timers are late by up to an eighth of their time and a
        // tick: with so much to spare the check is done when we collect.
        let left = Nanos::from(collected.saturating_duration_since(Instant::now()));
        let check = (left.0.saturating_sub(TICK.0) / 1000 / 9 * 8).max(MIN_CHECK_MICROS);
        let intervals = Intervals {
            sample: check,
            aggregation: check * AGGREGATION_CHECKS,
        };
        let kdamond = self.admin.first();
        while !self.watches.is_empty() {
            let started = kdamond
                .set_intervals(intervals)
                .and_then(|()| kdamond.command("on"));
            let Err(error) = started else {
                self.running = kdamond.pid();
                break;
            };
            let mut pids = self.watches.iter().filter_map(|watch| watch.pid);
            let all_there = pids.all(|pid| has_memory(&self.root, pid));
            if all_there {
                return Err(self.explain(error));
            }
            self.assign()?;
        }
        Ok(())
    }

    /// Reads what the kdamond found, and waits a little where its check is late.
    fn read(&mut self) -> Result<(), PortError> {
        let (Some(kdamond), Some(told)) = (self.running, &mut self.told) else {
            return Ok(());
        };
        let mut missing: usize = self.watches.iter().map(|watch| watch.pages.len()).sum();
        let until = Instant::now() + PATIENCE;
        loop {
            match told.read(kdamond, &mut self.watches) {
                Ok(new) => missing = missing.saturating_sub(new),
                Err(error) => return Err(self.explain(error)),
            }
            // It stops by itself when all of its processes have ended.
            let waits = missing > 0 && Instant::now() < until;
            if !waits || !self.admin.first().is_on().unwrap_or(false) {
                return Ok(());
            }
            thread::sleep(POLL);
        }
    }

    /// Whether the kdamond of the last scan still runs, and has been told apart
    /// from it what comes now.
    fn goes_on(&mut self) -> bool {
        let (Some(kdamond), Some(told)) = (self.running, &mut self.told) else {
            return false;
        };
        // A check that came late would be taken for the next one.
        let told_all = self
            .watches
            .iter()
            .all(|w| w.told.iter().all(Option::is_some));
        let runs = told_all
            && self.admin.first().mark() == Some(self.mark)
            && self.admin.first().is_on().unwrap_or(false)
            && told.read(kdamond, &mut self.watches).is_ok();
        if runs {
            for watch in &mut self.watches {
                watch.told.fill(None);
            }
        }
        runs
    }

    /// Turns the kdamond off and adds up its CPU time. Verdicts stay readable.
    fn stop(&mut self) {
        let kdamond = self.admin.first();
        let started = self.running.take();
        let last = std::mem::take(&mut self.running_cpu);
        // It ends by itself when all of its processes have.
        let now = started.and_then(|pid| run_time(&self.root, pid));
        self.cpu += now.unwrap_or(last);
        let ours = self.made && kdamond.mark() == Some(self.mark);
        if !ours || !kdamond.is_on().unwrap_or(false) {
            return;
        }
        // It takes its regions down while we wait, and is gone before anybody
        // could ask what that took: as long as we waited.
        let (since, cpu) = (Instant::now(), thread_cpu_time());
        if let Err(error) = kdamond.command("off") {
            tracing::warn!(%error, "cannot stop our kdamond");
        }
        let own = thread_cpu_time().saturating_sub(cpu);
        self.cpu += Nanos::from(since.elapsed()).saturating_sub(own);
    }

    fn verdict(&self, index: usize, watch: &Watch) -> Seen {
        let (armed, now) = (self.armed[index], self.frames.entries()[index]);
        if !armed.present() || !now.present() || armed.pfn() != now.pfn() {
            return Seen::Unknown;
        }
        let page = address(self.space, &self.frames.samples()[index], armed);
        match page.and_then(|page| watch.verdict(page)) {
            Some(true) => return Seen::Accessed,
            Some(false) => {}
            None => return Seen::Unknown,
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
        let config = self.space.config();
        if error.kind() == io::ErrorKind::Unsupported {
            let operations = self.space.operations();
            return missing(&format!(
                "this kernel's DAMON has no operations {operations}: use one with {config}"
            ));
        }
        match errno(&error) {
            Some(libc::ENOENT) if !self.admin.path().exists() => missing(&format!(
                "use a kernel with CONFIG_DAMON_SYSFS=y and {config}"
            )),
            Some(libc::ENOENT) => missing(
                "use Linux 6.7 or later with CONFIG_EVENT_TRACING=y, and mount its tracefs: mount -t \
                 tracefs tracefs /sys/kernel/tracing",
            ),
            Some(libc::EROFS) => {
                // Its tracing instance is on a mount of its own.
                let admin = self.admin.path();
                let tracing = self.root.sys("kernel/tracing");
                let is_it = mounts::is_read_only_mount(&self.root, admin).is_some();
                mounts::read_only(&self.root, if is_it { admin } else { &tracing })
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
        self.space.kind()
    }

    fn arm(&mut self, samples: &[Sample], window: Nanos) -> Result<(), PortError> {
        debug_assert!(samples.is_sorted_by_key(|s| (s.target, s.addr)));
        let collected = Instant::now() + window.into();
        if self.frames.adopt(samples) {
            self.armed.clear();
            self.folios.clear();
        } else if self.goes_on() {
            self.frames.locate();
            self.resolve();
            return Ok(());
        }
        self.stop();
        self.make()?;
        if self.space == Space::Physical {
            // Where they are is what is assigned.
            self.frames.locate();
            self.resolve();
            self.assign()?;
        } else {
            self.assign()?;
            self.frames.locate();
            self.resolve();
        }
        self.start(collected)
    }

    fn collect(&mut self, seen: &mut AccessSet) -> Result<(), PortError> {
        self.read()?;
        if let Some(time) = self.running.and_then(|pid| run_time(&self.root, pid)) {
            self.running_cpu = time;
        }
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
                    let entry = self.frames.entries()[index];
                    let node = entry.pfn().and_then(|pfn| self.nodes.node(pfn));
                    seen.place(index, order, node);
                    seen.note_shared(index, self.frames.is_shared(index));
                    if entry.soft_dirty() {
                        seen.note_written(index);
                    }
                }
            }
        }
        seen.end_scan();
        Ok(())
    }

    fn relate(&mut self, sharing: &Sharing) {
        self.frames.relate(sharing);
    }

    fn capacity(&self) -> u64 {
        self.most as u64
    }

    fn repeats(&self) -> bool {
        // Regions are files: one written for each sample costs more than a check.
        true
    }

    fn rest(&mut self) {
        self.stop();
    }

    fn kernel_cpu_time(&mut self) -> Nanos {
        let running = self.running.and_then(|pid| run_time(&self.root, pid));
        self.cpu + running.unwrap_or_default()
    }

    fn release(&mut self) {
        self.unmake();
    }

    fn resolution(&self) -> String {
        self.space.resolution().into()
    }
}

impl Drop for DamonSampler {
    fn drop(&mut self) {
        self.unmake();
    }
}
