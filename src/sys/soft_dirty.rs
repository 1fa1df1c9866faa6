//! Written pages by soft-dirty bits: `/proc/PID/clear_refs`
//! (`Documentation/admin-guide/mm/soft-dirty.rst`).
//!
//! **Unit.** One process: what is told to forget is all of its pages.
//!
//! **Approach.** `4` in `clear_refs` makes the kernel write-protect what is mapped
//! and clear the bit 55 of its page map entries; the next write to a page faults, and
//! sets it. The samplers read these entries anyway.
//!
//! **Limits.** The kernel holds the target's address space for writing while it walks
//! all of it: a fault or an `mmap` of the target waits so long, which is why
//! [`writes`](crate::tiering::writes) bounds the walk. Whoever else uses these bits loses what they knew:
//! `bits_in_use` tells who must not be asked.
//!
//! Nothing is left to undo: bits that are set at the end are as the kernel makes them
//! for new pages.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use super::bits_in_use::{self, InUse};
use super::own_pages::{OwnPages, own_pid};
use super::pagemap::is_gone;
use super::root::Root;
use super::targets::Stat;
use crate::ports::{PortError, WriteWatch};
use crate::tiering::settings::Asking;
use crate::tiering::writes::WRITE_FAULT;
use crate::units::{Nanos, Pid};

/// "Clear the soft-dirty bits."
const FORGET: &str = "4";

/// Soft-dirty bits.
#[derive(Debug)]
pub struct SoftDirty {
    root: Root,
    fault: Nanos,
    /// Processes that were looked at.
    known: HashMap<Pid, Known>,
    /// With so many of them those that have ended are dropped.
    most_known: usize,
    /// Whether it was said that some targets may not be asked.
    said_so: bool,
}

/// What is known of a process.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// When it began, as the kernel counts it.
    start: u64,
    /// Whether we had it forget, so that cleared bits are our doing.
    is_ours: bool,
    /// Why it was not asked when it was looked at last.
    why_not: Option<InUse>,
}

/// Processes that are remembered before anyone is dropped.
const KNOWN: usize = 1024;

impl SoftDirty {
    /// Tries them on a page of our own.
    ///
    /// # Errors
    /// `Missing` where the kernel does not have them.
    pub fn open(root: &Root) -> Result<Self, PortError> {
        let missing = |what: String| PortError::Missing {
            what,
            remedy: "use a kernel with CONFIG_MEM_SOFT_DIRTY=y, or set profiling.writes = false"
                .into(),
        };
        match try_own_page(root) {
            Ok(Ok(_)) => Ok(Self {
                root: root.clone(),
                fault: time_faults(root).map_or(WRITE_FAULT, |fault| fault.max(WRITE_FAULT)),
                known: HashMap::new(),
                most_known: KNOWN,
                said_so: false,
            }),
            Ok(Err(seen)) => Err(missing(format!(
                "telling written pages (soft-dirty: {seen})"
            ))),
            Err(source) => Err(PortError::Failed {
                what: "trying soft-dirty bits".into(),
                source,
            }),
        }
    }
}

impl WriteWatch for SoftDirty {
    fn fault(&self) -> Nanos {
        self.fault
    }

    fn forget(&mut self, pid: Pid, asking: Asking) -> Result<Option<Nanos>, PortError> {
        let path = self.root.proc(pid.to_string()).join("clear_refs");
        let done = self.may_ask(pid, asking).and_then(|may| {
            let began = Instant::now();
            let done = may.then(|| clear(&self.root, pid, FORGET)).transpose()?;
            Ok(done.map(|()| began.elapsed().into()))
        });
        match done {
            Ok(took) => Ok(took),
            Err(error) if is_gone(&error) => Ok(None),
            // Of others it may be allowed.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let said_so = std::mem::replace(&mut self.said_so, true);
                let why =
                    "what targets of other users write is not asked: that takes CAP_DAC_OVERRIDE";
                match asking {
                    _ if said_so => {}
                    Asking::Always => tracing::warn!(%pid, "profiling.writes: {why}"),
                    _ => tracing::info!(%pid, "{why}"),
                }
                Ok(None)
            }
            Err(source) => Err(PortError::Failed {
                what: path.display().to_string(),
                source,
            }),
        }
    }
}

/// Writes to a process's `clear_refs`, if it is the one that is meant.
pub(super) fn clear(root: &Root, pid: Pid, what: &str) -> io::Result<()> {
    let path = root.proc(pid.to_string()).join("clear_refs");
    let mut file = OpenOptions::new().write(true).open(path)?;
    // After it was opened: it stays with its process.
    if root.holds().is_lost(pid) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    file.write_all(what.as_bytes())
}

impl SoftDirty {
    /// Whether the bits of a process are ours to clear; says once if not.
    fn may_ask(&mut self, pid: Pid, asking: Asking) -> io::Result<bool> {
        let Some(start) = Stat::of(&self.root, pid).map(|stat| stat.start_time) else {
            return Ok(false);
        };
        let known = self.known.get(&pid).copied();
        let known = known.filter(|known| known.start == start);
        let (is_ours, said) = known.map_or((false, None), |known| (known.is_ours, known.why_not));
        let why_not = match said {
            Some(InUse::ForGood(_)) => said,
            _ => self.why_not(pid, asking, is_ours)?,
        };
        if why_not != said
            && let Some(InUse::Now(why) | InUse::ForGood(why)) = why_not
        {
            tracing::info!(%pid, "what it writes is not asked: {why}");
        }
        let may = why_not.is_none();
        let now = Known {
            start,
            is_ours: is_ours || may,
            why_not,
        };
        self.remember(pid, now);
        Ok(may)
    }

    fn why_not(&self, pid: Pid, asking: Asking, is_ours: bool) -> io::Result<Option<InUse>> {
        let by_files = bits_in_use::by_open_files(&self.root, pid)?;
        // Else somebody has said that it may be asked.
        if by_files.is_some() || asking != Asking::Auto {
            return Ok(by_files);
        }
        if bits_in_use::has_criu(Path::new("/")) {
            let why = "CRIU is installed, whose incremental dumps need to know";
            return Ok(Some(InUse::Now(why)));
        }
        let were_cleared = !is_ours && bits_in_use::were_cleared(&self.root, pid)?;
        Ok(were_cleared.then_some(InUse::ForGood("somebody has asked it before us")))
    }

    fn remember(&mut self, pid: Pid, now: Known) {
        if self.known.len() >= self.most_known && !self.known.contains_key(&pid) {
            let root = &self.root;
            let began = |pid: Pid| Stat::of(root, pid).map(|stat| stat.start_time);
            self.known
                .retain(|&pid, known| began(pid) == Some(known.start));
            self.most_known = (2 * self.known.len()).max(KNOWN);
        }
        self.known.insert(pid, now);
    }
}

/// What the first write to a page takes after it was forgotten, on pages of our own: of several rounds the
/// quickest, which nothing interrupted. That is the least it takes: nobody else waits for our page tables here.
fn time_faults(root: &Root) -> io::Result<Nanos> {
    const PAGES: u32 = 64;
    const ROUNDS: usize = 5;
    let own = OwnPages::new(PAGES as usize)?;
    let mut least = Duration::MAX;
    for _ in 0..ROUNDS {
        fs::write(root.proc(own_pid().to_string()).join("clear_refs"), FORGET)?;
        let began = Instant::now();
        for page in 0..PAGES as usize {
            own.touch(page);
        }
        least = least.min(began.elapsed());
    }
    Ok((least / PAGES).into())
}

/// Has a page of ours forget, writes to it and looks; what was seen, in one line,
/// if they work and if not.
pub(super) fn try_own_page(root: &Root) -> io::Result<Result<String, String>> {
    let own = OwnPages::new(1)?;
    let bit =
        || -> io::Result<bool> { Ok(own.entries(root)?.first().is_some_and(|e| e.soft_dirty())) };
    fs::write(root.proc(own_pid().to_string()).join("clear_refs"), FORGET)?;
    let cleared = !bit()?;
    own.touch(0);
    let set = bit()?;
    Ok(match (cleared, set) {
        (true, true) => Ok("a page of ours was cleared, written and seen written".into()),
        (true, false) => Err("a written page does not read as soft-dirty".into()),
        (false, _) => Err("soft-dirty bits cannot be cleared".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// One mapping of a process, whose only page was cleared and not written since.
    const CLEARED: &str = "1000-2000 rw-p 00000000 00:00 0 \n";

    #[test]
    fn who_is_not_asked_for_a_while_is_still_ours_after_it_and_who_looks_itself_is_not() {
        if bits_in_use::has_criu(Path::new("/")) {
            println!("skipped: CRIU is installed here");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        let begin = |pid: u32, maps: &str| {
            let files = root.proc(format!("{pid}/fd"));
            fs::create_dir_all(&files).unwrap();
            let put = |file: &str, bytes: &[u8]| {
                fs::write(root.proc(format!("{pid}/{file}")), bytes).unwrap();
            };
            let zeros = " 0".repeat(17);
            let stat = format!("{pid} (a) S 1{zeros} 77{zeros}");
            put("stat", stat.as_bytes());
            put("maps", maps.as_bytes());
            put("pagemap", &[[0; 8], (1_u64 << 63).to_ne_bytes()].concat());
            files
        };
        let mut watch = SoftDirty {
            root: root.clone(),
            fault: WRITE_FAULT,
            known: HashMap::new(),
            most_known: KNOWN,
            said_so: false,
        };
        let mut may = |pid: i32| watch.may_ask(Pid(pid), Asking::Auto).unwrap();
        begin(6, CLEARED);
        assert!(!may(6), "somebody asked it before us");
        let files = begin(7, "");
        assert!(may(7));
        // As we leave it.
        fs::write(root.proc("7/maps"), CLEARED).unwrap();
        assert!(may(7));
        for (to, may_after) in [("anon_inode:kvm-vm", true), ("/proc/7/pagemap", false)] {
            symlink(to, files.join("3")).unwrap();
            assert!(!may(7), "{to}");
            fs::remove_file(files.join("3")).unwrap();
            assert_eq!(may(7), may_after, "{to}");
        }
    }
}
