//! What a file says of when which memory is touched: a recording, or a trace of accesses,
//! to be played as a program.
//!
//! **Unit.** Addresses are in pages of 4 KiB, those of several processes far apart; memory
//! in blocks of 2^order pages; touches are accesses as an accessed bit sees them; seconds.
//!
//! **Problem.** A file tells when and where, in as much detail as it likes. The model weighs
//! folios that lie side by side, step by step.
//!
//! **Approach.** A [`Collector`] takes touches as they come, as runs of blocks that are touched
//! alike. When there are more runs or steps than are kept, neighbouring steps become one, and
//! then neighbouring blocks, up to huge pages: so memory is bounded whatever the file holds.
//! In the end all blocks that were ever there are put side by side in their order: a
//! [`Played`].
//!
//! A file does not tell how much of its time its program waits for memory: that is assumed
//! ([`COMPUTE`], [`PARALLEL`]). A step takes as long as it did if all of its memory is as the
//! fastest, and longer where it is not; in it folios are touched as often as the file says,
//! however many accesses each touch then stands for.
//!
//! **Properties** (tests below): touches are neither lost nor made up, whatever becomes one;
//! bounds hold.

mod collector;
mod runs;

use std::ops::Range;
use std::sync::Arc;

use super::workload::{Object, Pattern, Phase, Start, Step, Workload};
use crate::units::Bytes;

pub use collector::Collector;

/// Seconds that a thread computes for each access to memory, and accesses that it has under way
/// at once: with local DRAM of 90 ns it waits for a third of its time, as
/// `policy.adaptive.memory_bound` assumes too.
const COMPUTE: f64 = 50e-9;
const PARALLEL: f64 = 4.0;

/// Why a file cannot be played.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlayError {
    /// More than is kept, even in huge pages and as one step.
    #[error("touches more separate pieces of memory than are simulated; take a part of it")]
    TooMuch,
    /// Longer than is simulated.
    #[error("lasts for more than 30 days; take a part of it")]
    TooLong,
    /// There is nothing to play.
    #[error("tells of no accesses; record for longer, or trace a program that runs")]
    Empty,
}

/// Folios that are touched alike in a step: half-open.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Touched {
    first: u32,
    end: u32,
    each: f32,
}

/// Accesses to be played, over folios that lie side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct Played {
    folio: Bytes,
    folios: u64,
    writes: f64,
    /// How long each step takes at best, and where in `runs` its own are.
    steps: Vec<(f64, Range<usize>)>,
    runs: Vec<Touched>,
}

impl Played {
    /// As a program. It is gone through once.
    pub fn workload(self, name: String, about: String) -> Workload {
        Workload {
            name,
            about,
            folio: self.folio,
            seconds: self.seconds(),
            compute: COMPUTE,
            start: Start::Fastest,
            objects: vec![Object {
                name: "memory".to_owned(),
                size: Bytes(self.folios * self.folio.0),
                writes: self.writes,
                parallel: PARALLEL,
                // What is told of has passed the caches.
                cached: false,
                pattern: Pattern::Uniform,
            }],
            phases: vec![Phase {
                length: 1.0,
                accesses: vec![1.0],
            }],
            cycles: 1,
            played: Some(Arc::new(self)),
        }
    }

    /// From the beginning to the end, at best.
    pub fn seconds(&self) -> f64 {
        self.steps.iter().map(|(seconds, _)| seconds).sum()
    }

    /// Over so many folios in place of its own.
    #[must_use]
    #[allow(clippy::cast_possible_truncation)]
    pub(super) fn over(&self, folio: Bytes, folios: u64) -> Self {
        let (from, to) = (self.folios.max(1), folios.max(1));
        let scaled = |at: u64| at * to / from;
        let mut scaled_to = self.clone();
        (scaled_to.folio, scaled_to.folios) = (folio, to);
        for run in &mut scaled_to.runs {
            let touches = f64::from(run.each) * f64::from(run.end - run.first);
            // At most 2^24 folios: all of this fits.
            let first = scaled(run.first.into()).min(to - 1);
            let end = (u64::from(run.end) * to)
                .div_ceil(from)
                .clamp(first + 1, to);
            *run = Touched {
                first: first as u32,
                end: end as u32,
                each: (touches / (end - first) as f64) as f32,
            };
        }
        scaled_to
    }

    /// All accesses, and the share of them that each step has, where an access takes
    /// `busy` seconds at best, and in a step without any touches `idle`.
    pub(super) fn work(&self, busy: f64, idle: f64) -> (f64, Vec<f64>) {
        let accesses = self.steps.iter().map(|(seconds, runs)| {
            let each = if runs.is_empty() { idle } else { busy };
            seconds / each
        });
        let accesses: Vec<f64> = accesses.collect();
        let all: f64 = accesses.iter().sum();
        (all, accesses.iter().map(|part| part / all).collect())
    }

    /// What it does, in order, as if all steps were as busy: [`work`](Self::work) knows.
    pub(super) fn steps(&self) -> Vec<Step> {
        let all = self.seconds();
        let steps = self.steps.iter().zip(0..);
        let steps = steps.map(|((seconds, _), turn)| Step {
            phase: 0,
            turn,
            position: 0.0,
            share: seconds / all,
        });
        steps.collect()
    }

    /// The share of a step's accesses that each folio gets. Returns all touches.
    #[allow(clippy::cast_possible_truncation)]
    pub(super) fn weigh(&self, turn: u64, weights: &mut [f32]) -> f64 {
        let runs = &self.runs[self.steps[turn as usize].1.clone()];
        let touches = runs
            .iter()
            .map(|run| f64::from(run.each) * f64::from(run.end - run.first));
        let all: f64 = touches.sum();
        if all <= 0.0 {
            return 0.0;
        }
        for run in runs {
            let share = (f64::from(run.each) / all) as f32;
            for weight in &mut weights[run.first as usize..run.end as usize] {
                *weight += share;
            }
        }
        all
    }
}

#[cfg(test)]
#[path = "played_tests.rs"]
mod tests;
