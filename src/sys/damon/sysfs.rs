//! DAMON's directory of files, `/sys/kernel/mm/damon/admin`
//! (`Documentation/admin-guide/mm/damon/usage.rst`).

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::sys::root::Root;
use crate::units::{PAGE_BYTES, Pid, VirtAddr};

/// How often a file that says `EBUSY` is tried again, and after what pause: in
/// all a tenth of a second.
const BUSY_RETRIES: usize = 20;
const BUSY_PAUSE: Duration = Duration::from_millis(5);

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

/// The files of one kdamond with one context, and in it as many schemes as
/// targets.
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

    /// Makes `count` targets, and for each a scheme that only counts its
    /// regions accessed at least once, marked as ours by an upper bound of
    /// sizes that is no bound. Replaces what was there.
    pub(super) fn make_targets(&self, count: usize, mark: u64) -> io::Result<()> {
        put(&self.context.join("schemes/nr_schemes"), count as u64)?;
        for index in 0..count {
            let scheme = self.scheme(index);
            let pattern = scheme.join("access_pattern");
            put(&pattern.join("sz/max"), mark)?;
            put(&pattern.join("nr_accesses/min"), 1)?;
            put(&pattern.join("nr_accesses/max"), u64::from(u32::MAX))?;
            put(&pattern.join("age/max"), u64::from(u32::MAX))?;
            put_text(&scheme.join("action"), "stat")?;
            if count > 1 {
                // Linux 6.14 put filters of the core apart.
                let core = scheme.join("core_filters");
                let filters = if core.exists() {
                    core
                } else {
                    scheme.join("filters")
                };
                put(&filters.join("nr_filters"), 1)?;
                put_text(&filters.join("0/type"), "target")?;
                put(&filters.join("0/damon_target_idx"), index as u64)?;
                // Out with what does not match.
                put_text(&filters.join("0/matching"), "N")?;
            }
        }
        put(&self.context.join("targets/nr_targets"), count as u64)
    }

    /// The mark that [`make_targets`](Self::make_targets) left; `None` without a scheme.
    pub(super) fn mark(&self) -> Option<u64> {
        number(&self.scheme(0).join("access_pattern/sz/max")).ok()
    }

    /// Whether it has no scheme and no target yet.
    pub(super) fn is_bare(&self) -> bool {
        !self.scheme(0).exists() && !self.target(0).exists()
    }

    /// `schemes` is how many there are.
    pub(super) fn set_intervals(&self, intervals: Intervals, schemes: usize) -> io::Result<()> {
        let dir = self.context.join("monitoring_attrs/intervals");
        put(&dir.join("sample_us"), intervals.sample)?;
        put(&dir.join("aggr_us"), intervals.aggregation)?;
        (0..schemes)
            .try_for_each(|s| put(&self.scheme(s).join("apply_interval_us"), intervals.sample))
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

    /// Watches these pages of a target, one region each, where it watched `before`.
    pub(super) fn set_pages(
        &self,
        target: usize,
        pages: &[VirtAddr],
        before: &[VirtAddr],
    ) -> io::Result<()> {
        let regions = self.target(target).join("regions");
        let anew = pages.len() != before.len();
        if anew {
            put(&regions.join("nr_regions"), pages.len() as u64)?;
        }
        for (index, page) in pages.iter().enumerate() {
            if anew || before[index] != *page {
                let region = regions.join(index.to_string());
                put(&region.join("start"), page.0)?;
                put(&region.join("end"), page.0 + PAGE_BYTES)?;
            }
        }
        Ok(())
    }

    fn target(&self, index: usize) -> PathBuf {
        self.context.join("targets").join(index.to_string())
    }

    fn scheme(&self, index: usize) -> PathBuf {
        self.context.join("schemes").join(index.to_string())
    }

    /// Tells it `on`, `off`, `update_schemes_tried_regions`…
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

    /// Adds the first addresses of a target's regions that its scheme matched
    /// when it was last updated, in no order. The kernel numbers their directories
    /// neither from 0 nor without gaps.
    pub(super) fn tried_regions(&self, target: usize, out: &mut Vec<VirtAddr>) -> io::Result<()> {
        for entry in fs::read_dir(self.scheme(target).join("tried_regions"))? {
            let path = entry?.path();
            match number(&path.join("start")) {
                Ok(start) => out.push(VirtAddr(start)),
                // The one file in there, total_bytes, has nothing below it.
                Err(e) if matches!(errno(&e), Some(libc::ENOTDIR | libc::ENOENT)) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

fn number(path: &Path) -> io::Result<u64> {
    let mut text = [0; 32];
    let count = fs::File::open(path)?.read(&mut text)?;
    std::str::from_utf8(&text[..count])
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a number"))
}

fn put(path: &Path, value: u64) -> io::Result<()> {
    put_text(path, &value.to_string())
}

/// Unlike `fs::write` this never tries to create a file.
fn put_text(path: &Path, text: &str) -> io::Result<()> {
    patiently(|| {
        OpenOptions::new()
            .write(true)
            .open(path)?
            .write_all(text.as_bytes())
    })
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
