//! What the engine was told, epoch by epoch, in a file: enough to make every
//! decision again.
//!
//! The same observations, settings and seed give the same regions and plans, so
//! a recording ([`mod@file`]) holds observations only, and [`Replay`] puts them
//! through the engine once more, under the policy that was recorded or any other.
//! [`compare`] adds up what that plans, [`csv`] writes what it finds as a table, and
//! [`survey`] makes a picture of it for [`mod@svg`], [`html`] and [`mod@png`]; [`rates`] tells
//! how often memory was accessed, for the simulator.

pub mod compare;
pub mod csv;
pub mod file;
pub mod heatmap;
pub mod html;
pub mod layout;
pub mod png;
mod raster;
pub mod rates;
mod sound;
pub mod survey;
pub mod svg;
mod ticks;
pub mod timeline;

use crate::tiering::engine::Engine;
use crate::tiering::observation::Observation;
use crate::tiering::plan::Plan;
use crate::tiering::settings::{EngineSettings, PolicyName};

use file::{Frame, Reader, RecordError};

/// Regions that a recording may make of its targets' memory: four times as many as that
/// is cut into at first. They take 600 MB.
const REGIONS_MOST: u64 = 1 << 22;
const TOO_LARGE: &str = "its targets have more memory than can be watched";
const EARLY: &str = "it stands before the daemon's start";

/// Puts a recording through the engine again.
pub struct Replay {
    frames: Reader,
    policy: Option<PolicyName>,
    engine: Option<Engine>,
    runs: u64,
    recorded: Vec<PolicyName>,
    other: Option<String>,
}

/// One epoch of a recording, decided once more.
pub struct Epoch<'a> {
    /// Of which run of the daemon, from 1: one that begins anew knows nothing.
    pub run: u64,
    /// What the engine was told.
    pub seen: Observation,
    /// What it made of it.
    pub plan: Plan,
    /// The engine after that.
    pub engine: &'a Engine,
}

impl Replay {
    /// Of the recording that `frames` reads, as it was decided.
    pub fn new(frames: Reader) -> Self {
        Self::under(frames, None)
    }

    /// As `policy` would have decided, all else being as recorded; `None`: as it was.
    ///
    /// What was seen stays what was recorded: the pages are where the recorded policy
    /// has moved them, and its samples are the ones that were watched.
    pub fn under(frames: Reader, policy: Option<PolicyName>) -> Self {
        Self {
            frames,
            policy,
            engine: None,
            runs: 0,
            recorded: Vec::new(),
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
                    self.runs += 1;
                    let settings = self.decided_by(settings);
                    self.engine = Some(Engine::new(settings, tiers, seed));
                }
                Frame::Configured { settings, tiers } => {
                    let settings = self.decided_by(settings);
                    let Some(engine) = &mut self.engine else {
                        return Err(self.frames.refused(EARLY));
                    };
                    engine.configure(settings, tiers);
                }
                Frame::Observed(seen) => {
                    let Some(engine) = &mut self.engine else {
                        return Err(self.frames.refused(EARLY));
                    };
                    let plan = engine.step(&seen);
                    let regions = plan.report.targets.iter().map(|target| target.regions);
                    if regions.sum::<u64>() > REGIONS_MOST {
                        return Err(self.frames.refused(TOO_LARGE));
                    }
                    return Ok(Some(Epoch {
                        run: self.runs,
                        seen: *seen,
                        plan,
                        engine,
                    }));
                }
            }
        }
        Ok(None)
    }

    fn decided_by(&mut self, mut settings: EngineSettings) -> EngineSettings {
        let recorded = settings.policy.name;
        if !self.recorded.contains(&recorded) {
            self.recorded.push(recorded);
        }
        if let Some(policy) = self.policy {
            settings.policy.name = policy;
        }
        settings
    }

    /// The policies of the settings read so far, the first one first.
    pub fn recorded(&self) -> &[PolicyName] {
        &self.recorded
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

/// What to know of a recording that ends in `torn` bytes that are no whole record, and
/// that another version wrote: a sentence each.
pub fn notes(torn: u64, other_version: Option<&str>) -> Vec<String> {
    let mut notes = Vec::new();
    if torn > 0 {
        notes.push(format!(
            "its last {torn} bytes are half a record, and left out"
        ));
    }
    if let Some(version) = other_version {
        notes.push(format!(
            "hmkeeper {version} wrote it: what this version makes of it may differ"
        ));
    }
    notes
}
