//! Programs to simulate, as files say them.
//!
//! **Unit.** Shares of accesses 0 to 1, times in seconds.
//!
//! A program has objects, allocated and first touched in their order, and goes through
//! phases; in each phase a share of its accesses goes to each object, and falls on its
//! pages in a pattern. All accesses are those that miss the first-level caches; those of
//! objects that are used again (`cached`) pass the machine's last-level cache. Those that
//! come with hmkeeper are in `config/workloads`. Others play what a recording or a trace
//! tells ([`Played`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use super::file::{self, FileError, Size, Time};
use super::played::Played;
use crate::units::{Bytes, HUGE_PAGE_BYTES, PAGE_BYTES};

/// Objects and phases that a file may have at most.
const OBJECTS_MAX: usize = 64;
const PHASES_MAX: usize = 256;
const CYCLES_MAX: u32 = 10_000;
/// Steps of one phase in which something sweeps, at most.
const STEPS_MAX: u32 = 1000;
/// The smallest window.
const WINDOW_MIN: f64 = 0.01;
/// Share of its window by which a sweep moves on at a time, if its file says nothing.
const SWEEP_STEP: f64 = 0.5;
/// Steps of all phases and cycles at most.
const STEPS_ALL_MAX: u64 = 1 << 20;
/// The shortest phase, as a share of a cycle.
const PHASE_MIN: f64 = 1e-6;
/// Folios that a program may have at most: what is remembered of each is some 20 bytes,
/// and some 100 while an oracle decides.
pub(super) const FOLIOS_MAX: u64 = 1 << 24;
/// Steps times folios of a program at most: some minutes' work.
pub(super) const WORK_MAX: u64 = 1 << 36;
/// A day.
const SECONDS_MAX: f64 = 86_400.0;

/// The programs that come with hmkeeper, by name.
pub const PRESETS: [(&str, &str); 11] = [
    ("voltdb", include_str!("../../config/workloads/voltdb.toml")),
    (
        "cassandra",
        include_str!("../../config/workloads/cassandra.toml"),
    ),
    ("bfs", include_str!("../../config/workloads/bfs.toml")),
    ("sssp", include_str!("../../config/workloads/sssp.toml")),
    (
        "terasort",
        include_str!("../../config/workloads/terasort.toml"),
    ),
    ("gups", include_str!("../../config/workloads/gups.toml")),
    ("ycsb", include_str!("../../config/workloads/ycsb.toml")),
    ("graph", include_str!("../../config/workloads/graph.toml")),
    ("stream", include_str!("../../config/workloads/stream.toml")),
    ("phases", include_str!("../../config/workloads/phases.toml")),
    (
        "uniform",
        include_str!("../../config/workloads/uniform.toml"),
    ),
];

/// How accesses fall on the pages of an object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pattern {
    /// On all alike.
    Uniform,
    /// By Zipf's law: the item of rank r gets 1 / r^`theta`.
    Zipf {
        /// Its exponent.
        theta: f64,
        /// Bytes of an item.
        item: Bytes,
        /// Whether items lie anywhere, and not by rank.
        scattered: bool,
    },
    /// Most on few.
    Hot {
        /// Share of the object that is hot.
        share: f64,
        /// Share of the accesses that it gets.
        accesses: f64,
        /// Chunks that it is made of.
        chunks: u64,
        /// Whether each phase has other ones.
        moves: bool,
    },
    /// On a window only, that goes over all of it once in each phase.
    Sweep {
        /// Share of the object that the window is.
        window: f64,
        /// Share of the window by which it moves on at a time, or less where another one of the
        /// same phase has more steps.
        step: f64,
    },
}

/// A part of a program's memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// Its name.
    pub name: String,
    /// How much.
    pub size: Bytes,
    /// Share of its accesses that write.
    pub writes: f64,
    /// Accesses that a thread has under way at once: 1 where each waits for the one
    /// before, 16 and more in a stream.
    pub parallel: f64,
    /// Whether what it touches it touches again, so that a cache helps.
    pub cached: bool,
    /// Where its accesses fall.
    pub pattern: Pattern,
}

/// What a program does for a while.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// Share of the accesses of a cycle.
    pub length: f64,
    /// Share of its accesses that goes to each object.
    pub accesses: Vec<f64>,
}

/// Where a program touches its memory first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// On the fastest node while there is room, then on the next: as the kernel does it.
    #[default]
    Fastest,
    /// On the slowest first: as a test does it that wants to see something move.
    Slowest,
}

/// A program.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// As `--workload` names it.
    pub name: String,
    /// What it stands for, what is known of it, and what is assumed.
    pub about: String,
    /// Bytes of the folios that its memory is made of.
    pub folio: Bytes,
    /// How long it takes where all memory is as the fastest.
    pub seconds: f64,
    /// Seconds that a thread computes for each access.
    pub compute: f64,
    /// Where it begins.
    pub start: Start,
    /// In order of allocation.
    pub objects: Vec<Object>,
    /// Gone through `cycles` times.
    pub phases: Vec<Phase>,
    /// How often.
    pub cycles: u32,
    /// What a file tells of its accesses, in place of patterns and phases.
    pub played: Option<Arc<Played>>,
}

/// A while in which accesses fall on the same pages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Which phase, and how many there were before.
    pub phase: usize,
    /// Phases gone through before this one.
    pub turn: u64,
    /// How far it has come in the phase, 0 to 1.
    pub position: f64,
    /// Share of all accesses.
    pub share: f64,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
enum RawPattern {
    Uniform {},
    Zipf {
        theta: f64,
        item: Size,
        scattered: bool,
    },
    Hot {
        share: f64,
        accesses: f64,
        chunks: u64,
        #[serde(default)]
        moves: bool,
    },
    Sweep {
        window: f64,
        #[serde(default = "sweep_step")]
        step: f64,
    },
}

const fn sweep_step() -> f64 {
    SWEEP_STEP
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawObject {
    name: String,
    size: Size,
    #[serde(default)]
    writes: f64,
    parallel: f64,
    #[serde(default)]
    cached: bool,
    pattern: RawPattern,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPhase {
    length: f64,
    accesses: BTreeMap<String, f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    name: String,
    #[serde(default)]
    about: String,
    folio: Size,
    time: Time,
    compute: Time,
    #[serde(default)]
    start: Start,
    #[serde(default = "once")]
    cycles: u32,
    objects: Vec<RawObject>,
    phases: Vec<RawPhase>,
}

fn once() -> u32 {
    1
}

impl Workload {
    /// From a file's text.
    ///
    /// # Errors
    /// When it is no such file, or contradicts itself.
    pub fn parse(text: &str) -> Result<Self, FileError> {
        let raw: Raw = file::read(text)?;
        let folio = raw.folio.0;
        if !folio.0.is_power_of_two() || folio.0 < PAGE_BYTES || folio.0 > HUGE_PAGE_BYTES {
            let message = "write a power of two from \"4KiB\" to \"2MiB\"";
            return Err(FileError::at("folio", message));
        }
        let seconds = raw.time.0.as_secs_f64();
        if !(seconds > 0.0 && seconds <= SECONDS_MAX) {
            return Err(FileError::at("time", "write more than 0, at most \"24h\""));
        }
        let compute = raw.compute.0.as_secs_f64();
        if !(compute > 0.0 && compute <= 1.0) {
            return Err(FileError::at(
                "compute",
                "write more than 0, at most \"1s\"",
            ));
        }
        if raw.objects.is_empty() || raw.objects.len() > OBJECTS_MAX {
            let message = format!("write 1 to {OBJECTS_MAX} of them");
            return Err(FileError::at("objects", message));
        }
        if raw.phases.is_empty() || raw.phases.len() > PHASES_MAX || raw.cycles == 0 {
            let message = format!("write 1 to {PHASES_MAX} of them, and at least one cycle");
            return Err(FileError::at("phases", message));
        }
        if raw.cycles > CYCLES_MAX {
            let message = format!("write at most {CYCLES_MAX}");
            return Err(FileError::at("cycles", message));
        }
        let objects = raw.objects.into_iter().map(|raw| object(raw, folio));
        let objects: Vec<Object> = objects.collect::<Result<_, FileError>>()?;
        for (at, object) in objects.iter().enumerate() {
            if objects[..at].iter().any(|other| other.name == object.name) {
                let key = format!("object \"{}\"", object.name);
                return Err(FileError::at(key, "choose a name for each"));
            }
        }
        let folios: u64 = objects.iter().map(|o| o.size.0.div_ceil(folio.0)).sum();
        if folios > FOLIOS_MAX {
            let message = format!("{folios} folios are too many: choose a larger folio");
            return Err(FileError::at("objects", message));
        }
        let phases = raw.phases.iter().zip(0..);
        let phases = phases.map(|(raw, at)| phase(raw, at, &objects));
        let mut phases: Vec<Phase> = phases.collect::<Result<_, FileError>>()?;
        let whole: f64 = phases.iter().map(|phase| phase.length).sum();
        if !whole.is_finite() {
            return Err(FileError::at("phases", "their lengths have no sum"));
        }
        for (phase, at) in phases.iter_mut().zip(1..) {
            phase.length /= whole;
            if phase.length < PHASE_MIN {
                let key = format!("phase {at}");
                return Err(FileError::at(key, "is too short beside the others"));
            }
        }
        let workload = Self {
            name: file::name(raw.name)?,
            about: raw.about,
            folio,
            seconds,
            compute,
            start: raw.start,
            objects,
            phases,
            cycles: raw.cycles,
            played: None,
        };
        let steps = workload.phases.iter().map(|phase| workload.steps_of(phase));
        let steps = u64::from(steps.sum::<u32>()) * u64::from(workload.cycles);
        if steps > STEPS_ALL_MAX || steps * folios > WORK_MAX {
            let message =
                "fewer phases, fewer cycles or larger folios: each step weighs all folios";
            return Err(FileError::at("cycles", message));
        }
        Ok(workload)
    }

    /// All its memory.
    pub fn size(&self) -> Bytes {
        self.objects.iter().map(|object| object.size).sum()
    }

    /// The same with each object's size times `scale`, whole folios.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn scaled(mut self, scale: f64) -> Self {
        for object in &mut self.objects {
            let folios = (object.size.as_f64() * scale / self.folio.as_f64()).round() as u64;
            object.size = Bytes(folios.max(1) * self.folio.0);
        }
        if let Some(played) = &self.played {
            let folios = self.size().0 / self.folio.0;
            self.played = Some(Arc::new(played.over(self.folio, folios)));
        }
        self
    }

    /// The same in folios that each stand for 2^`coarse` of its own, which are touched alike;
    /// so items are as much larger and fewer, and chunks are a folio at least.
    #[must_use]
    pub fn coarser(mut self, coarse: u8) -> Self {
        self.folio = Bytes(self.folio.0 << coarse);
        for object in &mut self.objects {
            match &mut object.pattern {
                Pattern::Zipf { item, .. } => *item = Bytes(item.0 << coarse),
                Pattern::Hot { chunks, .. } => {
                    *chunks = (*chunks).min((object.size.0 / self.folio.0).max(1));
                }
                Pattern::Uniform | Pattern::Sweep { .. } => {}
            }
        }
        self.scaled(1.0)
    }

    /// What it does, in order: the shares sum to 1.
    pub fn steps(&self) -> Vec<Step> {
        if let Some(played) = &self.played {
            return played.steps();
        }
        let mut steps = Vec::new();
        for cycle in 0..self.cycles {
            for (phase, what) in self.phases.iter().enumerate() {
                let count = self.steps_of(what);
                let turn = u64::from(cycle) * self.phases.len() as u64 + phase as u64;
                steps.extend((0..count).map(|step| Step {
                    phase,
                    turn,
                    position: f64::from(step) / f64::from(count),
                    share: what.length / f64::from(count) / f64::from(self.cycles),
                }));
            }
        }
        steps
    }

    /// Steps that a phase has: so many that windows follow each other.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn steps_of(&self, phase: &Phase) -> u32 {
        let touched = self.objects.iter().zip(&phase.accesses);
        let steps = touched.filter_map(|(object, &share)| match object.pattern {
            Pattern::Sweep { window, step } if share > 0.0 => {
                Some((1.0 / (window * step)).ceil() as u32)
            }
            _ => None,
        });
        steps.max().unwrap_or(1).clamp(1, STEPS_MAX)
    }
}

fn object(raw: RawObject, folio: Bytes) -> Result<Object, FileError> {
    let key = |name: &str| format!("object \"{}\", {name}", raw.name);
    let is_share = |share: f64| share > 0.0 && share <= 1.0;
    if !raw.size.0.0.is_multiple_of(folio.0) || raw.size.0.is_zero() {
        let message = "write a multiple of folio";
        return Err(FileError::at(key("size"), message));
    }
    if !(0.0..=1.0).contains(&raw.writes) {
        return Err(FileError::at(key("writes"), "write a share from 0 to 1"));
    }
    if !(1.0..=1024.0).contains(&raw.parallel) {
        return Err(FileError::at(key("parallel"), "write 1 to 1024"));
    }
    let pattern = match raw.pattern {
        RawPattern::Uniform {} => Pattern::Uniform,
        RawPattern::Zipf {
            theta,
            item,
            scattered,
        } => {
            if !(0.0..=4.0).contains(&theta) {
                return Err(FileError::at(key("pattern.theta"), "write 0 to 4"));
            }
            if item.0.is_zero() || item.0 > raw.size.0 {
                let message = "write a size of at most the object's";
                return Err(FileError::at(key("pattern.item"), message));
            }
            Pattern::Zipf {
                theta,
                item: item.0,
                scattered,
            }
        }
        RawPattern::Hot {
            share,
            accesses,
            chunks,
            moves,
        } => {
            if !is_share(share) || !is_share(accesses) {
                let message = "share and accesses are more than 0, at most 1";
                return Err(FileError::at(key("pattern"), message));
            }
            if chunks == 0 || chunks > raw.size.0.0 / folio.0 {
                let message = "write at least 1, and no more than it has folios";
                return Err(FileError::at(key("pattern.chunks"), message));
            }
            Pattern::Hot {
                share,
                accesses,
                chunks,
                moves,
            }
        }
        RawPattern::Sweep { window, step } => {
            if !(WINDOW_MIN..=1.0).contains(&window) {
                let message = "write a share from 0.01 to 1";
                return Err(FileError::at(key("pattern.window"), message));
            }
            let least = 1.0 / (window * f64::from(STEPS_MAX));
            if !(least..=1.0).contains(&step) {
                let message = format!(
                    "write a share of the window up to 1 that takes {STEPS_MAX} steps at most"
                );
                return Err(FileError::at(key("pattern.step"), message));
            }
            Pattern::Sweep { window, step }
        }
    };
    Ok(Object {
        size: raw.size.0,
        writes: raw.writes,
        parallel: raw.parallel,
        cached: raw.cached,
        pattern,
        name: raw.name,
    })
}

fn phase(raw: &RawPhase, at: usize, objects: &[Object]) -> Result<Phase, FileError> {
    let key = format!("phase {}", at + 1);
    if !(raw.length > 0.0 && raw.length.is_finite()) {
        return Err(FileError::at(key, "length is more than 0"));
    }
    let known = |name: &String| objects.iter().any(|object| object.name == *name);
    if let Some(name) = raw.accesses.keys().find(|name| !known(name)) {
        let message = format!("accesses names \"{name}\", which is no object");
        return Err(FileError::at(key, message));
    }
    let of = |object: &Object| raw.accesses.get(&object.name).copied().unwrap_or(0.0);
    let accesses: Vec<f64> = objects.iter().map(of).collect();
    let sum: f64 = accesses.iter().sum();
    if accesses.iter().any(|share| *share < 0.0) || !(sum > 0.0 && sum.is_finite()) {
        return Err(FileError::at(key, "accesses are 0 or more, and some are"));
    }
    Ok(Phase {
        length: raw.length,
        accesses: accesses.into_iter().map(|share| share / sum).collect(),
    })
}

#[cfg(test)]
#[path = "workload_tests.rs"]
mod tests;
