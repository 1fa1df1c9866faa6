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
//! all of it: a fault or an `mmap` of the target waits so long. Whoever else uses
//! these bits (CRIU's incremental dumps do) loses what they knew. Both are why
//! [`writes`](crate::tiering::writes) bounds the walk, and why it is asked for only where something comes of it.
//!
//! Nothing is left to undo: bits that are set at the end are as the kernel makes them
//! for new pages.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use super::own_pages::{OwnPages, own_pid};
use super::pagemap::is_gone;
use super::root::Root;
use crate::ports::{PortError, WriteWatch};
use crate::tiering::writes::WRITE_FAULT;
use crate::units::{Nanos, Pid};

/// "Clear the soft-dirty bits."
const FORGET: &str = "4";

/// Soft-dirty bits.
#[derive(Debug)]
pub struct SoftDirty {
    root: Root,
    fault: Nanos,
    /// Whether it was said that some targets may not be asked.
    said_so: bool,
}

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
                fault: time_faults(root).unwrap_or(WRITE_FAULT),
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

    fn forget(&mut self, pid: Pid) -> Result<bool, PortError> {
        let path = self.root.proc(pid.to_string()).join("clear_refs");
        match fs::write(&path, FORGET) {
            Ok(()) => Ok(true),
            Err(error) if is_gone(&error) => Ok(false),
            // Of others it may be allowed.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                if !std::mem::replace(&mut self.said_so, true) {
                    tracing::info!(
                        %pid,
                        "what targets of other users write is not asked: that takes CAP_DAC_OVERRIDE"
                    );
                }
                Ok(false)
            }
            Err(source) => Err(PortError::Failed {
                what: path.display().to_string(),
                source,
            }),
        }
    }
}

/// What the first write to a page takes after it was forgotten, on pages of our own: of several rounds the
/// quickest, which nothing interrupted.
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
