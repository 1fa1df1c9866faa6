//! DAMON's directory of files, `/sys/kernel/mm/damon/admin`
//! (`Documentation/admin-guide/mm/damon/usage.rst`).

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::sys::root::Root;
use crate::units::{PAGE_BYTES, Pid, VirtAddr};

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

    /// One of the kdamonds.
    pub(super) fn kdamond(&self, index: usize) -> Kdamond {
        let dir = self.kdamonds.join(index.to_string());
        Kdamond {
            context: dir.join("contexts/0"),
            scheme: dir.join("contexts/0/schemes/0"),
            dir,
        }
    }
}

/// The files of one kdamond with one context and one scheme.
#[derive(Clone, Debug)]
pub(super) struct Kdamond {
    dir: PathBuf,
    context: PathBuf,
    scheme: PathBuf,
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

    /// Makes a scheme that only counts, for every region accessed at least
    /// once, looked at after every sample, and marked as ours by an upper
    /// bound of sizes that is no bound.
    pub(super) fn make_scheme(&self, mark: u64) -> io::Result<()> {
        put(&self.context.join("schemes/nr_schemes"), 1)?;
        let pattern = self.scheme.join("access_pattern");
        put(&pattern.join("sz/max"), mark)?;
        put(&pattern.join("nr_accesses/min"), 1)?;
        put(&pattern.join("nr_accesses/max"), u64::from(u32::MAX))?;
        put(&pattern.join("age/max"), u64::from(u32::MAX))?;
        put_text(&self.scheme.join("action"), "stat")
    }

    /// The mark that [`make_scheme`](Self::make_scheme) left; `None` without a scheme.
    pub(super) fn mark(&self) -> Option<u64> {
        number(&self.scheme.join("access_pattern/sz/max")).ok()
    }

    /// Whether it has no scheme and no target yet.
    pub(super) fn is_bare(&self) -> bool {
        !self.scheme.exists() && !self.target().exists()
    }

    pub(super) fn set_intervals(&self, intervals: Intervals) -> io::Result<()> {
        let dir = self.context.join("monitoring_attrs/intervals");
        put(&dir.join("sample_us"), intervals.sample)?;
        put(&dir.join("aggr_us"), intervals.aggregation)?;
        put(&self.scheme.join("apply_interval_us"), intervals.sample)
    }

    /// Watches this process.
    pub(super) fn set_target(&self, pid: Pid) -> io::Result<()> {
        if !self.target().exists() {
            put(&self.context.join("targets/nr_targets"), 1)?;
        }
        put_text(&self.target().join("pid_target"), &pid.to_string())
    }

    /// Watches these pages, one region each, where it watched `before`.
    pub(super) fn set_pages(&self, pages: &[VirtAddr], before: &[VirtAddr]) -> io::Result<()> {
        let limits = self.context.join("monitoring_attrs/nr_regions");
        let regions = self.target().join("regions");
        let anew = pages.len() != before.len();
        if anew {
            // The least is 3, as the kernel wants.
            put(&limits.join("max"), (pages.len() as u64).max(1000))?;
            put(&limits.join("min"), 3)?;
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

    fn target(&self) -> PathBuf {
        self.context.join("targets/0")
    }

    /// Tells it `on`, `off`, `update_schemes_tried_regions`…
    pub(super) fn command(&self, command: &str) -> io::Result<()> {
        put_text(&self.dir.join("state"), command)
    }

    /// Whether it runs.
    pub(super) fn is_on(&self) -> io::Result<bool> {
        Ok(fs::read_to_string(self.dir.join("state"))?.trim() == "on")
    }

    /// The kernel thread while it runs.
    pub(super) fn pid(&self) -> Option<Pid> {
        let text = fs::read_to_string(self.dir.join("pid")).ok()?;
        let pid = text.trim().parse().ok()?;
        (pid > 0).then_some(Pid(pid))
    }

    /// Adds the first addresses of the regions that the scheme matched when it
    /// was last updated, in no order. The kernel numbers their directories
    /// neither from 0 nor without gaps.
    pub(super) fn tried_regions(&self, out: &mut Vec<VirtAddr>) -> io::Result<()> {
        for entry in fs::read_dir(self.scheme.join("tried_regions"))? {
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
    OpenOptions::new()
        .write(true)
        .open(path)?
        .write_all(text.as_bytes())
        .map_err(|e| io::Error::new(e.kind(), Annotated::new(e, path, text)))
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
