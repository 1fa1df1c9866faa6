//! What the engine was told, epoch by epoch, in a file: enough to make every
//! decision again.
//!
//! The same observations, settings and seed give the same regions and plans, so
//! a recording ([`mod@file`]) holds observations only, and [`Replay`] puts them
//! through the engine once more. [`csv`] writes what it finds as a table.

pub mod csv;
pub mod file;

use crate::tiering::engine::Engine;
use crate::tiering::observation::Observation;
use crate::tiering::plan::Plan;

use file::{Frame, Reader, RecordError};

/// Puts a recording through the engine again.
pub struct Replay {
    frames: Reader,
    engine: Option<Engine>,
    other: Option<String>,
}

/// One epoch of a recording, decided once more.
pub struct Epoch<'a> {
    /// What the engine was told.
    pub seen: Observation,
    /// What it made of it.
    pub plan: Plan,
    /// The engine after that.
    pub engine: &'a Engine,
}

impl Replay {
    /// Of the recording that `frames` reads.
    pub fn new(frames: Reader) -> Self {
        Self {
            frames,
            engine: None,
            other: None,
        }
    }

    /// The next epoch; `None` at the end of what was recorded as a whole.
    ///
    /// # Errors
    /// When the file cannot be read, or holds what no recording can.
    pub fn next_epoch(&mut self) -> Result<Option<Epoch<'_>>, RecordError> {
        while let Some(frame) = self.frames.next_frame()? {
            match frame {
                Frame::Started {
                    hmkeeper,
                    settings,
                    tiers,
                    seed,
                } => {
                    if hmkeeper != env!("CARGO_PKG_VERSION") {
                        self.other = Some(hmkeeper);
                    }
                    self.engine = Some(Engine::new(settings, tiers, seed));
                }
                Frame::Configured { settings, tiers } => {
                    let engine = self.engine.as_mut().ok_or_else(|| self.frames.early())?;
                    engine.configure(settings, tiers);
                }
                Frame::Observed(seen) => {
                    let engine = self.engine.as_mut().ok_or_else(|| self.frames.early())?;
                    let plan = engine.step(&seen);
                    let seen = *seen;
                    return Ok(Some(Epoch { seen, plan, engine }));
                }
            }
        }
        Ok(None)
    }

    /// The version of hmkeeper that wrote it, if it was another: what this one
    /// decides may differ from what that one did.
    pub fn other_version(&self) -> Option<&str> {
        self.other.as_deref()
    }

    /// Bytes at the end that are no whole record: the daemon was killed while
    /// it wrote them.
    pub fn torn(&self) -> u64 {
        self.frames.torn()
    }
}
