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
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::bits_in_use;
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
    /// Processes that were looked at, by when they began.
    known: HashMap<Pid, (u64, Whose)>,
    /// With so many of them those that have ended are dropped.
    most_known: usize,
    /// Whether it was said that some targets may not be asked.
    said_so: bool,
}

/// Whose the bits of a process are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Ours,
    /// Somebody's who needs them now, and may let go of them.
    InUse,
    /// Somebody's who has cleared them.
    Others,
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
            let done = may.then(|| fs::write(&path, FORGET)).transpose()?;
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

impl SoftDirty {
    /// Whether the bits of a process are ours to clear; says once if not.
    fn may_ask(&mut self, pid: Pid, asking: Asking) -> io::Result<bool> {
        let Some(start) = Stat::of(&self.root, pid).map(|stat| stat.start_time) else {
            return Ok(false);
        };
        let known = self.known.get(&pid).filter(|known| known.0 == start);
        let known = known.map(|&(_, whose)| whose);
        let mut found = bits_in_use::by_open_files(&self.root, pid)?.map(|why| (Whose::InUse, why));
        // Else somebody has said so.
        if asking == Asking::Auto && found.is_none() {
            if bits_in_use::has_criu(Path::new("/")) {
                let why = "CRIU is installed, whose incremental dumps need to know";
                found = Some((Whose::InUse, why));
            } else if known == Some(Whose::Others)
                || known != Some(Whose::Ours) && bits_in_use::were_cleared(&self.root, pid)?
            {
                found = Some((Whose::Others, "somebody has asked it before us"));
            }
        }
        let whose = found.map_or(Whose::Ours, |(whose, _)| whose);
        if let Some((_, why)) = found
            && known != Some(whose)
        {
            tracing::info!(%pid, "what it writes is not asked: {why}");
        }
        if known != Some(whose) {
            self.remember(pid, (start, whose));
        }
        Ok(whose == Whose::Ours)
    }

    fn remember(&mut self, pid: Pid, known: (u64, Whose)) {
        if self.known.len() >= self.most_known {
            let root = &self.root;
            let lives = |pid: Pid| Stat::of(root, pid).map(|stat| stat.start_time);
            self.known.retain(|&pid, known| lives(pid) == Some(known.0));
            self.most_known = (2 * self.known.len()).max(KNOWN);
        }
        self.known.insert(pid, known);
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
