//! From touches as they come to what is played, in bounded memory.

use std::ops::Range;

use super::runs::{Run, extend, into_blocks, push, sum, union};
use super::{PlayError, Played, Touched};
use crate::sim::workload::{FOLIOS_MAX, WORK_MAX};
use crate::units::{Bytes, PAGE_BYTES, PageRange};

/// Runs of all steps that are kept at most: 72 MB, and for a moment three times as much.
const RUNS_MAX: usize = 3 << 20;
/// Steps that are kept at most, and those that are still told apart when blocks become larger.
const STEPS_MAX: usize = 4096;
const STEPS_FEW: usize = 64;
/// Blocks grow to huge pages.
const ORDER_MAX: u8 = 9;
/// Touches that were taken and not sorted yet: as many as there are runs, but at least and at
/// most so many.
const UNSORTED: (usize, usize) = (1 << 16, RUNS_MAX / 4);
/// Times that what overlaps in part is set aside, before that would take too long.
const LAYERS: usize = 4;
/// Pages that a process has at most, as log2: five levels of page tables reach to 2^57.
const SPACE_ORDER: u32 = 45;
/// Touches of a page in a step that are less are none: an average that has faded.
const TOUCHES_MIN: f64 = 1e-9;
/// 30 days.
const SECONDS_MAX: f64 = 30.0 * 86_400.0;
#[derive(Clone, Debug, Default)]
struct Step {
    seconds: f64,
    /// Ascending, disjoint.
    runs: Vec<Run>,
}

/// Takes what a file tells, in the order of time.
#[derive(Clone, Debug, Default)]
pub struct Collector {
    order: u8,
    steps: Vec<Step>,
    /// All of their runs.
    kept: usize,
    /// The blocks that were ever there: ascending, disjoint, apart; without the last ones.
    memory: Vec<Range<u64>>,
    last: Vec<Run>,
    /// The step under way, without what was touched since it was last sorted.
    open: Step,
    /// Touches of the step under way, and those for which no time has gone by yet.
    pending: Vec<Run>,
    unsorted: Vec<Run>,
    /// From where on `unsorted` is so.
    sorted: usize,
    /// Steps are no shorter than this.
    shortest: f64,
    seconds: f64,
}

/// Where the memory of process number `space` begins, in pages.
fn pages_of(space: u16, range: PageRange) -> Range<u64> {
    let first = (u64::from(space) << SPACE_ORDER) + range.start().page_index();
    first..first + range.pages()
}

/// How many touches are to be sorted together with so many runs: so that it costs little
/// of each.
fn due(runs: usize) -> usize {
    runs + runs.clamp(UNSORTED.0, UNSORTED.1)
}

/// Touches as runs that ascend and are disjoint.
fn sorted(mut left: Vec<Run>) -> Vec<Run> {
    left.sort_unstable_by_key(|run| (run.first, run.end));
    let mut all: Vec<Run> = Vec::new();
    // What overlaps in part has its turn after the rest: no process has such regions.
    for _ in 0..LAYERS {
        if left.is_empty() {
            return all;
        }
        let (mut apart, mut over): (Vec<Run>, Vec<Run>) = (Vec::new(), Vec::new());
        for run in left {
            match apart.last_mut() {
                Some(last) if (last.first, last.end) == (run.first, run.end) => {
                    last.each += run.each;
                }
                Some(last) if run.first < last.end => over.push(run),
                _ => apart.push(run),
            }
        }
        all = sum(&all, &apart);
        left = over;
    }
    sum(&all, &halves(&left))
}

/// The same of touches that all overlap: each half by itself.
fn halves(touches: &[Run]) -> Vec<Run> {
    match touches {
        [] | [_] => touches.to_vec(),
        _ => {
            let (one, other) = touches.split_at(touches.len() / 2);
            sum(&halves(one), &halves(other))
        }
    }
}

impl Collector {
    /// These pages of process number `space` are each touched so often until the next
    /// [`pass`](Self::pass); also if that is never.
    ///
    /// # Errors
    /// When there is more than can be kept.
    pub fn touch(&mut self, space: u16, range: PageRange, per_page: f64) -> Result<(), PlayError> {
        let pages = pages_of(space, range);
        into_blocks(
            Run {
                first: pages.start,
                end: pages.end,
                each: if per_page >= TOUCHES_MIN {
                    per_page
                } else {
                    0.0
                },
            },
            self.order,
            &mut self.unsorted,
        );
        if self.unsorted.len() >= due(self.sorted) {
            self.sort();
            self.make_room()?;
        }
        Ok(())
    }

    /// So much time goes by in which that happens.
    ///
    /// # Errors
    /// When there is more than can be kept.
    pub fn pass(&mut self, seconds: f64) -> Result<(), PlayError> {
        self.seconds += seconds;
        if self.seconds.is_nan() || self.seconds > SECONDS_MAX {
            return Err(PlayError::TooLong);
        }
        if self.open.seconds > 0.0 && seconds >= self.shortest {
            self.close();
        }
        self.pending.append(&mut self.unsorted);
        self.sorted = 0;
        // Not each time, which for ticks much shorter than steps would take for ever.
        if self.pending.len() >= due(self.open.runs.len()) {
            self.gather();
        }
        self.open.seconds += seconds;
        if self.open.seconds >= self.shortest {
            self.close();
        }
        self.make_room()
    }

    /// Ends the step under way.
    fn close(&mut self) {
        self.gather();
        let step = std::mem::take(&mut self.open);
        self.last.extend_from_slice(&step.runs);
        if self.last.len() >= due(self.memory.len()) {
            self.unite();
        }
        self.kept += step.runs.len();
        self.steps.push(step);
    }

    /// Adds the last ones to the blocks that were ever there.
    fn unite(&mut self) {
        let last = sorted(std::mem::take(&mut self.last));
        self.memory = union(&self.memory, &last);
    }

    fn sort(&mut self) {
        self.unsorted = sorted(std::mem::take(&mut self.unsorted));
        self.sorted = self.unsorted.len();
    }

    /// Adds what is pending to the step under way.
    fn gather(&mut self) {
        let now = sorted(std::mem::take(&mut self.pending));
        self.open.runs = sum(&self.open.runs, &now);
    }

    /// All that is kept.
    fn held(&self) -> usize {
        let open = self.open.runs.len() + self.pending.len() + self.unsorted.len();
        self.kept + self.memory.len() + self.last.len() + open
    }

    fn make_room(&mut self) -> Result<(), PlayError> {
        while self.steps.len() > STEPS_MAX {
            self.halve_steps();
        }
        if self.held() > RUNS_MAX {
            self.unite();
            self.gather();
            self.sort();
        }
        while self.held() > RUNS_MAX {
            self.give_up_detail(STEPS_FEW)?;
        }
        Ok(())
    }

    /// Fewer steps, as long as there are more than `few`, or larger blocks.
    fn give_up_detail(&mut self, few: usize) -> Result<(), PlayError> {
        if self.steps.len() > few {
            self.halve_steps();
        } else if self.order < ORDER_MAX {
            self.coarsen();
        } else if self.steps.len() > 1 {
            self.halve_steps();
        } else {
            return Err(PlayError::TooMuch);
        }
        Ok(())
    }

    /// Of two neighbouring steps one.
    fn halve_steps(&mut self) {
        let steps = std::mem::take(&mut self.steps);
        for pair in steps.chunks(2) {
            self.steps.push(Step {
                seconds: pair.iter().map(|step| step.seconds).sum(),
                runs: match pair {
                    [one, other] => sum(&one.runs, &other.runs),
                    _ => pair[0].runs.clone(),
                },
            });
        }
        let closed: f64 = self.steps.iter().map(|step| step.seconds).sum();
        self.shortest = closed / self.steps.len().max(1) as f64;
        self.kept = self.steps.iter().map(|step| step.runs.len()).sum();
    }

    /// Of two neighbouring blocks one.
    fn coarsen(&mut self) {
        self.order += 1;
        let larger = |runs: &[Run]| {
            let mut blocks = Vec::new();
            for run in runs {
                into_blocks(*run, 1, &mut blocks);
            }
            let mut larger: Vec<Run> = Vec::new();
            for run in blocks {
                match larger.last_mut() {
                    // Two ends in one block: the last one's.
                    Some(last) if run.first < last.end => {
                        let (each, end) = (last.each + run.each, last.end);
                        last.end -= 1;
                        if last.first == last.end {
                            larger.pop();
                        }
                        push(&mut larger, end - 1..end, each);
                    }
                    _ => push(&mut larger, run.first..run.end, run.each),
                }
            }
            larger
        };
        self.gather();
        self.sort();
        for step in self.steps.iter_mut().chain([&mut self.open]) {
            step.runs = larger(&step.runs);
        }
        self.unsorted = larger(&self.unsorted);
        self.sorted = self.unsorted.len();
        self.unite();
        let memory = std::mem::take(&mut self.memory);
        for range in memory {
            extend(&mut self.memory, range.start >> 1..range.end.div_ceil(2));
        }
        self.kept = self.steps.iter().map(|step| step.runs.len()).sum();
    }

    /// All of it, in folios of at least 2^`order` pages, up to a huge page; `writes` is the
    /// share of all accesses that write. What goes before the first touch is left out.
    ///
    /// # Errors
    /// When there are no accesses, or more memory than can be kept.
    #[allow(clippy::cast_possible_truncation)]
    pub fn finish(mut self, order: u8, writes: f64) -> Result<Played, PlayError> {
        if self.open.seconds > 0.0 {
            self.close();
        }
        // What was not followed by any time was never there.
        self.unsorted.clear();
        self.unite();
        let is_idle = |step: &Step| step.runs.iter().all(|run| run.each <= 0.0);
        let begins = self.steps.iter().position(|step| !is_idle(step));
        self.steps.drain(..begins.ok_or(PlayError::Empty)?);
        while self.order < order.min(ORDER_MAX) {
            self.coarsen();
        }
        let folios = |memory: &[Range<u64>]| -> u64 {
            memory.iter().map(|range| range.end - range.start).sum()
        };
        while folios(&self.memory) > FOLIOS_MAX {
            // Fewer steps are no help.
            self.give_up_detail(self.steps.len())?;
        }
        while folios(&self.memory) * self.steps.len() as u64 > WORK_MAX {
            self.give_up_detail(STEPS_FEW)?;
        }
        let mut dense = Vec::new();
        let mut steps = Vec::new();
        for step in &self.steps {
            let begins = dense.len();
            let (mut at, mut before) = (0, 0);
            for run in step.runs.iter().filter(|run| run.each > 0.0) {
                // Each lies in one of the ranges.
                while self.memory[at].end <= run.first {
                    before += self.memory[at].end - self.memory[at].start;
                    at += 1;
                }
                let place = |block: u64| (before + block - self.memory[at].start) as u32;
                dense.push(Touched {
                    first: place(run.first),
                    end: place(run.end),
                    each: run.each as f32,
                });
            }
            steps.push((step.seconds, begins..dense.len()));
        }
        Ok(Played {
            folio: Bytes(PAGE_BYTES << self.order),
            folios: folios(&self.memory),
            writes: writes.clamp(0.0, 1.0),
            steps,
            runs: dense,
        })
    }
}

#[cfg(test)]
impl Collector {
    /// As if there were too much for what is kept.
    pub(super) fn lose_detail(&mut self, halvings: usize, coarsenings: usize) {
        for _ in 0..halvings {
            self.halve_steps();
        }
        for _ in 0..coarsenings.min(usize::from(ORDER_MAX)) {
            self.coarsen();
        }
    }
}
