//! What NUMA balancing looks at in an epoch.
//!
//! **Approach** (kernel/sched/fair.c of Linux 6.18: `init_numa_balancing`, `task_tick_numa`,
//! `task_numa_work`, `task_scan_min`, `task_scan_max`, `update_task_scan_period`). An address space
//! is gone through in windows of 256 MB (`scan_size_mb`) in which something lies on slow memory, or
//! of eight times as much in which nothing does. A program's first thread begins with a pass a
//! second, one that it made with a window a second, whatever it has resident. Faults on slow memory
//! are neither counted as local nor as shared, and where none is either, a period becomes twice as
//! long: with each pass that promoted something, until what is resident would take a minute, but a
//! period a tenth of a second at least. What no thread touched of late (its libraries' data, its
//! stacks) is passed over from the third pass on, and then looked at after all, each mapping in a
//! window of its own.
//!
//! **Assumed.** That these are [`OTHERS`] mappings, as of a small program, and that its threads
//! run all the time. That of what waits to be touched as much is looked at again as of what does
//! not; the kernel passes over windows in which all waits.

use crate::tiering::policy::TargetView;
use crate::tiering::region::Region;
use crate::units::{Bytes, VirtAddr};

/// Of addresses that have something on slow memory, in a window (`scan_size_mb`).
const WINDOW: u64 = 256 << 20;
/// As many times as much is gone through where nothing is on slow memory.
const THROUGH: u64 = 8;
/// Seconds that a pass takes at least and at most (`scan_period_min_ms`, `scan_period_max_ms`),
/// and a window at least, 2560 MB a second being the most.
const PASS_LEAST: f64 = 1.0;
const PASS_MOST: f64 = 60.0;
const PERIOD_LEAST: f64 = 0.1;
/// Seconds before the first window of a process, and for a thread that it made from each to the
/// next in its first pass (`scan_delay_ms`).
const DELAY: f64 = 1.0;
/// Passes in which all is gone through, touched or not, and how many mappings cost a window each
/// in later ones.
const ALL_IN: u32 = 2;
const OTHERS: u32 = 10;
/// Passes in one epoch at most: what was touched in none of so many is not going to be.
const PASSES_MOST: u32 = 16;

/// How far it has come with one process.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scan {
    /// Seconds from one window to the next.
    period: f64,
    /// Where the next one begins.
    at: VirtAddr,
    /// Seconds until then.
    wait: f64,
    /// Whether this pass promoted something, and is at its end.
    has_promoted: bool,
    is_over: bool,
    /// Passes that ended, ever and in this epoch.
    passes: u32,
    of_epoch: u32,
    state: State,
    /// What is resident, in windows.
    windows: f64,
    /// Seconds since it was begun with; where windows of this pass and of the one before ended,
    /// and when.
    now: f64,
    ends: Vec<(VirtAddr, f64)>,
    before: Vec<(VirtAddr, f64)>,
}

/// Whether anything was ever resident, and if not, whose period it begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// That of the program's first thread.
    ByFirst,
    /// That of one which the program made.
    ByWorker,
    Begun,
}

/// So much of a region, in order of address.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Piece {
    pub(super) region: u32,
    /// 0 to 1.
    pub(super) share: f64,
    /// Whether it begins with the region.
    pub(super) is_first: bool,
    /// Seconds since it was looked at last, if ever.
    pub(super) waited: Option<f64>,
    /// Seconds until it is looked at again.
    pub(super) pass: f64,
}

impl Scan {
    /// Of a process whose memory its first thread touches, or one that it made.
    pub(super) fn new(by_worker: bool) -> Self {
        Self {
            period: DELAY,
            at: VirtAddr(0),
            wait: DELAY,
            has_promoted: false,
            is_over: false,
            passes: 0,
            of_epoch: 0,
            state: if by_worker {
                State::ByWorker
            } else {
                State::ByFirst
            },
            windows: 1.0,
            now: 0.0,
            ends: Vec::new(),
            before: Vec::new(),
        }
    }

    /// An epoch of so many seconds begins.
    pub(super) fn begin(&mut self, target: &TargetView<'_>, seconds: f64) {
        let resident: Bytes = target.regions.iter().map(Region::resident).sum();
        // Its code and stacks, which nobody watches, begin a window.
        self.windows = (resident.0 / WINDOW + 1) as f64;
        if !resident.is_zero() {
            if self.state == State::ByFirst {
                self.period = (PASS_LEAST / self.windows).max(PERIOD_LEAST);
            }
            self.state = State::Begun;
        }
        self.of_epoch = 0;
        self.now += seconds;
        // What was not looked at for want of time is not made up for.
        self.wait = if self.state == State::Begun {
            self.wait.max(-self.period) - seconds
        } else {
            (self.wait - seconds).max(0.0)
        };
    }

    /// Something of the last window was promoted.
    pub(super) fn promoted(&mut self) {
        self.has_promoted = true;
    }

    /// Seconds from one look at a page to the next one.
    pub(super) fn pass(&self) -> f64 {
        self.period * (self.windows + self.others())
    }

    /// Windows of this pass in which nothing lies that is watched, but for the first one.
    fn others(&self) -> f64 {
        let others = if self.passes < ALL_IN { 0 } else { OTHERS };
        others.into()
    }

    /// Seconds until this time since what lies at an address was looked at, if ever.
    fn waited(&self, at: VirtAddr, until: f64) -> Option<f64> {
        let window = |ends: &[(VirtAddr, f64)]| {
            let place = ends.partition_point(|&(end, _)| end <= at);
            ends.get(place).map(|&(_, when)| until - when)
        };
        window(&self.ends).or_else(|| window(&self.before))
    }

    /// What was looked at in earlier epochs of a region that stands at this place.
    pub(super) fn waiting(&self, place: u32, region: &Region) -> Option<Piece> {
        let range = region.range();
        let waited = self.waited(range.start(), self.now)?;
        // In the first pass a region may have been looked at in part.
        let looked = if self.before.is_empty() && !self.is_over {
            self.at.0.saturating_sub(range.start().0) as f64 / range.bytes().as_f64()
        } else {
            1.0
        };
        Some(Piece {
            region: place,
            share: looked.min(1.0),
            is_first: true,
            waited: Some(waited),
            pass: self.pass(),
        })
    }

    /// The next window of the epoch, if there is one; `slow` is what of a region lies on
    /// slow memory.
    pub(super) fn next(
        &mut self,
        target: &TargetView<'_>,
        slow: impl Fn(&Region) -> Bytes,
    ) -> Option<Vec<Piece>> {
        if self.is_over && self.wait <= 0.0 {
            self.is_over = false;
            self.passes = self.passes.saturating_add(1);
            self.of_epoch += 1;
            self.before = std::mem::take(&mut self.ends);
            if std::mem::take(&mut self.has_promoted) {
                let most = (PASS_MOST / self.windows).max(PERIOD_LEAST);
                self.period = (2.0 * self.period).min(most);
            }
        }
        let is_due = self.state == State::Begun && self.wait <= 0.0 && self.of_epoch < PASSES_MOST;
        if !is_due || target.regions.is_empty() {
            return None;
        }
        // When it was due, in this epoch.
        let when = self.now + self.wait;
        self.wait += self.period;

        let regions = target.regions;
        let first = regions.partition_point(|region| region.range().end() <= self.at);
        let (mut window, mut through) = (WINDOW as f64, (THROUGH * WINDOW) as f64);
        let mut pieces = Vec::new();
        for (place, region) in (first..).zip(&regions[first..]) {
            let range = region.range();
            let all = range.bytes().as_f64();
            let begin = self.at.0.max(range.start().0);
            let left = (range.end().0 - begin) as f64;
            // Where one page was found, all that was gone through counts. The kernel knows where
            // they lie, we do only after an epoch or two.
            let is_not_counted = region.resident().is_zero() && !region.is_counted();
            let is_slow = is_not_counted || !slow(region).is_zero();
            let fits = if is_slow { window } else { through };
            let looked = left.min(fits).min(through);
            if let Ok(region) = u32::try_from(place) {
                pieces.push(Piece {
                    region,
                    share: looked / all,
                    is_first: begin == range.start().0,
                    waited: self.waited(VirtAddr(begin), when),
                    pass: self.pass(),
                });
            }
            if looked < left {
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                let bytes = looked as u64;
                self.at = VirtAddr(begin + bytes.max(1));
                self.ends.push((self.at, when));
                return Some(pieces);
            }
            self.at = range.end();
            if is_slow {
                window -= looked;
            }
            through -= looked;
            if window < 1.0 || through < 1.0 {
                self.ends.push((self.at, when));
                return Some(pieces);
            }
        }
        // The end of the address space ends a window, too.
        self.at = VirtAddr(0);
        self.ends.push((VirtAddr(u64::MAX), when));
        self.is_over = true;
        self.wait += (1.0 + self.others()) * self.period;
        Some(pieces)
    }
}
