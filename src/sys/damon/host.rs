//! DAMON on this host: whether it works, whose it is, and what a crashed run
//! of ours left in it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::sysfs::{Admin, SHRINK};
use super::{DamonSampler, MAX_REGIONS, Space};
use crate::ports::{AccessSampler, PortError};
use crate::sys::own_pages::{OwnPages, own_pid};
use crate::sys::root::Root;
use crate::sys::state::{Owner, StateDir};
use crate::sys::trace;
use crate::tiering::observation::{AccessSet, Sample, TargetId};
use crate::units::{Nanos, PAGE_BYTES, Pid};

/// The modules of DAMON that, while they run, forbid all kdamonds but their own.
const EXCLUSIVE: [&str; 3] = ["damon_stat", "damon_reclaim", "damon_lru_sort"];

/// Open files that the rest of the daemon may need.
const OTHER_FILES: u64 = 512;
/// How long two pages of our own are watched.
const TRIAL_MILLIS: u64 = 20;

/// Removes the kdamonds that a crashed run left, as noted in `state_dir`, and
/// the note. Those of anybody else stay.
///
/// # Errors
/// `Busy` when the writer of the note still runs; `Failed` when the note cannot
/// be read or the kdamonds not be removed.
pub fn clean_up(root: &Root, state_dir: &Path) -> Result<(), PortError> {
    trace::sweep(root);
    let state = StateDir::new(state_dir);
    let failed = |source| PortError::Failed {
        what: state.path().display().to_string(),
        source,
    };
    let note = match state.read() {
        Ok(None) => return Ok(()),
        Ok(Some(note)) => note,
        Err(e) if e.kind() == io::ErrorKind::InvalidData => {
            tracing::warn!(error = %e, "the note of kernel settings is broken; removed");
            return state.remove().map_err(failed);
        }
        Err(e) => return Err(failed(e)),
    };
    if note.owner.is_alive(root) && note.owner != Owner::this(root) {
        return Err(PortError::Busy {
            what: "DAMON".into(),
            remedy: format!("hmkeeper runs already, as process {}", note.owner.pid()),
        });
    }
    let admin = Admin::new(root);
    let kdamond = admin.first();
    let is_on = || kdamond.is_on().unwrap_or(false);
    let mark = kdamond.mark();
    // The making may have been cut short, before the mark was written.
    let unfinished = || (kdamond.is_bare() || mark == Some(0)) && !is_on();
    let ours = !note.owner.is_of_earlier_boot(root)
        && admin.count().is_ok_and(|count| count == 1)
        && (mark == Some(note.kdamond_mark) || unfinished());
    if ours {
        if is_on() {
            kdamond.command("off").map_err(failed)?;
        }
        admin.set_count(0).map_err(failed)?;
        tracing::info!("removed the kdamond of a run that did not end orderly");
    }
    state.remove().map_err(failed)
}

/// Tries DAMON on two pages of our own, of which one is touched, and leaves
/// nothing behind. Returns what was seen, in one line.
///
/// # Errors
/// As for [`DamonSampler::open`]; `Failed` where it did not see what it should.
pub fn try_own_page(root: &Root, space: Space) -> Result<String, PortError> {
    let mut sampler = DamonSampler::with_state(root, space, None);
    sampler.try_own_page()
}

impl DamonSampler {
    /// The same, noted and undone as every kdamond of this sampler is.
    pub(in crate::sys) fn try_own_page(&mut self) -> Result<String, PortError> {
        self.check_free()?;
        let failed = |source| PortError::Failed {
            what: "DAMON".into(),
            source,
        };
        let mut own = OwnPages::new(64).map_err(failed)?;
        let Some(range) = own.range() else {
            return Err(failed(io::Error::other("no page of our own")));
        };
        let pages: Vec<_> = range.iter_pages().collect();
        let samples: Vec<_> = pages
            .iter()
            .take(2)
            .map(|&addr| Sample {
                target: TargetId(0),
                pid: own_pid(),
                addr,
            })
            .collect();
        let mut seen = AccessSet::new(samples.clone());
        let window = Nanos::from_millis(TRIAL_MILLIS);
        self.arm(&samples, window)?;
        let until = Instant::now() + window.into();
        while Instant::now() < until {
            own.protect_and_touch(0).map_err(failed)?;
            thread::sleep(Duration::from_millis(1));
        }
        self.collect(&mut seen)?;
        self.release();
        let accessed = seen.tallies().iter().map(|tally| tally.accessed);
        if accessed.clone().ne([1, 0]) {
            return Err(failed(io::Error::other(format!(
                "of two pages of our own the first was touched; seen: {:?}",
                seen.tallies()
            ))));
        }
        Ok(format!(
            "a kdamond told a touched page of {PAGE_BYTES} bytes of ours from an idle one"
        ))
    }
}

/// The switches of those modules of DAMON that run.
pub(in crate::sys) fn running_modules(root: &Root) -> impl Iterator<Item = PathBuf> {
    EXCLUSIVE
        .iter()
        .map(|module| root.sys(format!("module/{module}/parameters/enabled")))
        .filter(|path| fs::read_to_string(path).is_ok_and(|text| text.trim() == "Y"))
}

/// How many kdamonds are set up, by whomever.
pub(in crate::sys) fn kdamond_count(root: &Root) -> u64 {
    Admin::new(root).count().unwrap_or(0)
}

/// What to do about `EBUSY`.
pub(super) fn busy_remedy(root: &Root) -> String {
    let running: Vec<_> = running_modules(root)
        .map(|path| format!("write N to {}", path.display()))
        .collect();
    if running.is_empty() {
        "stop whoever else runs a kdamond (damo stop)".into()
    } else {
        running.join(", ")
    }
}

/// Samples that the limit of open files allows; raises the limit first, as far
/// as the administrator lets us. Each takes two files, a target keeps those of
/// [`SHRINK`] times as many as it has now, and one more is for chance.
pub(super) fn most_regions() -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let others = OTHER_FILES + cpus;
    let files = 2 * SHRINK as u64 + 1;
    let wanted = files * MAX_REGIONS as u64 + others;
    let limit = match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((soft, _)) if soft >= wanted => soft,
        Ok((soft, hard)) => {
            // Above the hard limit with CAP_SYS_RESOURCE only.
            let tries = [(wanted, wanted.max(hard)), (wanted.min(hard), hard)];
            let set =
                |&(soft, hard): &(u64, u64)| setrlimit(Resource::RLIMIT_NOFILE, soft, hard).is_ok();
            tries.iter().find(|t| set(t)).map_or(soft, |t| t.0)
        }
        Err(_) => 1024,
    };
    let most = limit.saturating_sub(others) / files;
    usize::try_from(most)
        .unwrap_or(MAX_REGIONS)
        .clamp(1, MAX_REGIONS)
}

/// Time that a thread has run, from `/proc/PID/schedstat` in nanoseconds;
/// `stat` counts ticks of 10 ms, longer than a kdamond runs in a scan.
pub(super) fn run_time(root: &Root, pid: Pid) -> Option<Nanos> {
    let text = fs::read_to_string(root.proc(pid.to_string()).join("schedstat")).ok()?;
    text.split_ascii_whitespace()
        .next()?
        .parse()
        .ok()
        .map(Nanos)
}

/// Whether a process exists and has memory of its own.
pub(super) fn has_memory(root: &Root, pid: Pid) -> bool {
    fs::read_to_string(root.proc(pid.to_string()).join("statm"))
        .is_ok_and(|text| text.split_ascii_whitespace().next() != Some("0"))
}
