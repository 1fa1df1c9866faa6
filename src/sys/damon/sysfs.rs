//! DAMON's directory of files, `/sys/kernel/mm/damon/admin`
//! (`Documentation/admin-guide/mm/damon/usage.rst`).

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use crate::sys::root::Root;
use crate::sys::text::write_existing;
use crate::units::{PAGE_BYTES, Pid};

/// How often a file that says `EBUSY` is tried again, and after what pause: in
/// all a tenth of a second.
const BUSY_RETRIES: usize = 20;
const BUSY_PAUSE: Duration = Duration::from_millis(5);

/// One spare region for so many that are used: making all of them anew costs
/// twice what an epoch's scans do.
const SPARE: usize = 2;
/// Regions are made anew when fewer than one in so many is used.
pub(super) const SHRINK: usize = 4;
/// Where spare regions are: above the memory of any process, 2^56 at most, and of any
/// machine, 2^52.
const BEYOND: u64 = 1 << 60;

/// The intervals of a kdamond, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Intervals {
    pub(super) sample: u64,
    pub(super) aggregation: u64,
}

/// The administrator's files.
#[derive(Clone, Debug)]
pub(super) struct Admin {
    kdamonds: PathBuf,
}

impl Admin {
    pub(super) fn new(root: &Root) -> Self {
        Self {
            kdamonds: root.sys("kernel/mm/damon/admin/kdamonds"),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.kdamonds
    }

    /// How many kdamonds there are, whoever made them.
    pub(super) fn count(&self) -> io::Result<u64> {
        number(&self.kdamonds.join("nr_kdamonds"))
    }

    /// Makes `count` kdamonds in place of all there are. `EBUSY` while one runs.
    pub(super) fn set_count(&self, count: u64) -> io::Result<()> {
        put(&self.kdamonds.join("nr_kdamonds"), count)
    }

    /// The first kdamond.
    pub(super) fn first(&self) -> Kdamond {
        let dir = self.kdamonds.join("0");
        Kdamond {
            context: dir.join("contexts/0"),
            dir,
        }
    }
}

/// The files of one kdamond with one context and one scheme.
#[derive(Clone, Debug)]
pub(super) struct Kdamond {
    dir: PathBuf,
    context: PathBuf,
}

impl Kdamond {
    /// Makes its one context.
    pub(super) fn make_context(&self) -> io::Result<()> {
        put(&self.dir.join("contexts/nr_contexts"), 1)
    }

    /// The operations that the kernel offers, by name.
    pub(super) fn operations(&self) -> io::Result<Vec<String>> {
        let text = fs::read_to_string(self.context.join("avail_operations"))?;
        Ok(text.split_ascii_whitespace().map(str::to_owned).collect())
    }

    pub(super) fn set_operations(&self, name: &str) -> io::Result<()> {
        put_text(&self.context.join("operations"), name)
    }

    /// Makes `count` targets, and one scheme that only passes by all of their
    /// regions, marked as ours by an upper bound of sizes that is no bound.
    /// Replaces what was there.
    pub(super) fn make_targets(&self, count: usize, mark: u64) -> io::Result<()> {
        put(&self.context.join("schemes/nr_schemes"), 1)?;
        let scheme = self.scheme();
        let pattern = scheme.join("access_pattern");
        put(&pattern.join("sz/max"), mark)?;
        put(&pattern.join("nr_accesses/max"), u64::from(u32::MAX))?;
        put(&pattern.join("age/max"), u64::from(u32::MAX))?;
        put_text(&scheme.join("action"), "stat")?;
        put(&self.context.join("targets/nr_targets"), count as u64)
    }

    /// The mark that [`make_targets`](Self::make_targets) left; `None` without a scheme.
    pub(super) fn mark(&self) -> Option<u64> {
        number(&self.scheme().join("access_pattern/sz/max")).ok()
    }

    /// Whether it has no scheme and no target yet.
    pub(super) fn is_bare(&self) -> bool {
        !self.scheme().exists() && !self.target(0).exists()
    }

    /// The scheme is applied after every check.
    pub(super) fn set_intervals(&self, intervals: Intervals) -> io::Result<()> {
        let dir = self.context.join("monitoring_attrs/intervals");
        put(&dir.join("sample_us"), intervals.sample)?;
        put(&dir.join("aggr_us"), intervals.aggregation)?;
        put(&self.scheme().join("apply_interval_us"), intervals.sample)
    }

    /// Bounds the number of all regions.
    pub(super) fn set_limits(&self, regions: usize) -> io::Result<()> {
        let limits = self.context.join("monitoring_attrs/nr_regions");
        // The least is 3, as the kernel wants.
        put(&limits.join("max"), (regions as u64).max(1000))?;
        put(&limits.join("min"), 3)
    }

    /// Has a target be this process.
    pub(super) fn set_process(&self, target: usize, pid: Pid) -> io::Result<()> {
        put_text(&self.target(target).join("pid_target"), &pid.to_string())
    }

    /// The regions of a target, as yet none.
    pub(super) fn regions(&self, target: usize) -> Regions {
        Regions {
            dir: self.target(target).join("regions"),
            slots: Vec::new(),
        }
    }

    fn target(&self, index: usize) -> PathBuf {
        self.context.join("targets").join(index.to_string())
    }

    fn scheme(&self) -> PathBuf {
        self.context.join("schemes/0")
    }

    /// Tells it `on`, `off`.
    pub(super) fn command(&self, command: &str) -> io::Result<()> {
        put_text(&self.dir.join("state"), command)
    }

    /// Whether it runs.
    pub(super) fn is_on(&self) -> io::Result<bool> {
        let text = patiently(|| fs::read_to_string(self.dir.join("state")))?;
        Ok(text.trim() == "on")
    }

    /// The kernel thread while it runs.
    pub(super) fn pid(&self) -> Option<Pid> {
        let text = patiently(|| fs::read_to_string(self.dir.join("pid"))).ok()?;
        let pid = text.trim().parse().ok()?;
        (pid > 0).then_some(Pid(pid))
    }
}

/// A target's regions of one page each, their files held open: finding and
/// opening a file of sysfs costs the kernel ten times as much as writing to it.
#[derive(Debug)]
pub(super) struct Regions {
    dir: PathBuf,
    slots: Vec<Slot>,
}

/// One region's files and what they hold.
#[derive(Debug)]
struct Slot {
    start: File,
    end: File,
    page: u64,
}

impl Regions {
    /// Watches the pages at these addresses, sorted, in place of those of before.
    /// Regions that are not needed now are kept beyond all memory, so that the number of
    /// regions, whose change makes the kernel forget all of them, seldom changes. One at
    /// least is: what the kernel found at the last region it takes for true of the first
    /// one of its next check where both lie in one folio. Returns how many regions there
    /// are.
    pub(super) fn watch(&mut self, pages: &[u64]) -> io::Result<usize> {
        let count = pages.len();
        if count >= self.slots.len() || count < self.slots.len() / SHRINK {
            self.resize(count + count / SPARE + 1)?;
        }
        let spare = (0..).map(|i| BEYOND + i * 2 * PAGE_BYTES);
        for (slot, page) in self
            .slots
            .iter_mut()
            .zip(pages.iter().copied().chain(spare))
        {
            if slot.page != page {
                rewrite(&slot.start, page)?;
                rewrite(&slot.end, page + PAGE_BYTES)?;
                slot.page = page;
            }
        }
        Ok(self.slots.len())
    }

    fn resize(&mut self, count: usize) -> io::Result<()> {
        self.slots.clear();
        put(&self.dir.join("nr_regions"), count as u64)?;
        let dir = File::open(&self.dir)?;
        let open = |name: String| -> io::Result<File> {
            let flags = OFlag::O_WRONLY | OFlag::O_CLOEXEC;
            Ok(openat(&dir, name.as_str(), flags, Mode::empty())?.into())
        };
        for index in 0..count {
            self.slots.push(Slot {
                start: open(format!("{index}/start"))?,
                end: open(format!("{index}/end"))?,
                page: 0,
            });
        }
        Ok(())
    }
}

fn rewrite(file: &File, value: u64) -> io::Result<()> {
    let mut text = [0; 20];
    let mut rest = &mut text[..];
    write!(rest, "{value}")?;
    let unused = rest.len();
    file.write_all_at(&text[..text.len() - unused], 0)
}

fn number(path: &Path) -> io::Result<u64> {
    let mut text = [0; 32];
    let count = File::open(path)?.read(&mut text)?;
    std::str::from_utf8(&text[..count])
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a number"))
}

fn put(path: &Path, value: u64) -> io::Result<()> {
    put_text(path, &value.to_string())
}

fn put_text(path: &Path, text: &str) -> io::Result<()> {
    patiently(|| write_existing(path, text))
        .map_err(|e| io::Error::new(e.kind(), Annotated::new(e, path, text)))
}

/// Tries again for a while on `EBUSY`: the files share one lock, which is not
/// waited for, and a reader elsewhere may hold it for the moment.
fn patiently<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..BUSY_RETRIES {
        match attempt() {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => thread::sleep(BUSY_PAUSE),
            other => return other,
        }
    }
    attempt()
}

/// A write that the kernel refused, with what was written where.
#[derive(Debug, thiserror::Error)]
#[error("writing {text:?} to {path}: {source}")]
pub(super) struct Annotated {
    path: String,
    text: String,
    source: io::Error,
}

impl Annotated {
    fn new(source: io::Error, path: &Path, text: &str) -> Self {
        Self {
            path: path.display().to_string(),
            text: text.to_owned(),
            source,
        }
    }
}

/// The error number, also of a refused write.
pub(super) fn errno(error: &io::Error) -> Option<i32> {
    let inner = error.get_ref().and_then(|e| e.downcast_ref::<Annotated>());
    inner.map_or(error, |e| &e.source).raw_os_error()
}
