//! What NUMA balancing looks at in an epoch.
//!
//! **Approach** (kernel/sched/fair.c of Linux 6.18: `task_numa_work`, `task_scan_min`,
//! `task_scan_max`, `update_task_scan_period`). An address space is gone through in windows of
//! 256 MB (`scan_size_mb`) in which something lies on slow memory, or of eight times as much in
//! which nothing does.
//! So many windows as the process has resident are a pass; each waits for a period that begins
//! with a second for all of them, a tenth of a second at least. Faults on slow memory are neither
//! counted as local nor as shared, and where none is either, a period becomes twice as long: with
//! each pass that promoted something, until a pass takes a minute.

use crate::tiering::policy::TargetView;
use crate::tiering::region::Region;
use crate::units::{Bytes, VirtAddr};

/// Of addresses that have something on slow memory, in a window (`scan_size_mb`).
const WINDOW: u64 = 256 << 20;
/// As many times as much is gone through where nothing is on slow memory.
const THROUGH: u64 = 8;
/// Seconds that a pass takes at least and at most (`scan_period_min_ms`, `scan_period_max_ms`),
/// and one window at least, 2560 MB a second being the most.
const PASS_LEAST: f64 = 1.0;
const PASS_MOST: f64 = 60.0;
const PERIOD_LEAST: f64 = 0.1;
/// Seconds before the first window of a process (`scan_delay_ms`).
const DELAY: f64 = 1.0;
/// Passes in one epoch at most: what was touched in none of so many is not going to be.
const PASSES_MOST: u32 = 16;

/// How far it has come with one process.
#[derive(Clone, Copy, Debug, PartialEq)]
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
    /// What is resident, in windows.
    windows: f64,
}

/// So much of a region, in order of address.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Piece {
    pub(super) region: u32,
    /// 0 to 1.
    pub(super) share: f64,
    /// Whether it begins with the region.
    pub(super) is_first: bool,
}

impl Default for Scan {
    fn default() -> Self {
        Self {
            period: 0.0,
            at: VirtAddr(0),
            wait: DELAY,
            has_promoted: false,
            is_over: false,
            passes: 0,
            of_epoch: 0,
            windows: 1.0,
        }
    }
}

impl Scan {
    /// An epoch of so many seconds begins.
    pub(super) fn begin(&mut self, target: &TargetView<'_>, seconds: f64) {
        let resident: Bytes = target.regions.iter().map(Region::resident).sum();
        self.windows = resident.0.div_ceil(WINDOW).max(1) as f64;
        self.of_epoch = 0;
        // What was not looked at for want of time is not made up for.
        self.wait = self.wait.max(-self.period) - seconds;
    }

    /// Something of the last window was promoted.
    pub(super) fn promoted(&mut self) {
        self.has_promoted = true;
    }

    /// Seconds from one look at a page to the next one.
    pub(super) fn pass(&self) -> f64 {
        self.period * self.windows
    }

    /// Whether this is the first pass.
    pub(super) fn is_first(&self) -> bool {
        self.passes == 0
    }

    /// The next window of the epoch, if there is one; `slow` is what of a region lies on
    /// slow memory.
    pub(super) fn next(
        &mut self,
        target: &TargetView<'_>,
        slow: impl Fn(&Region) -> Bytes,
    ) -> Option<Vec<Piece>> {
        let least = (PASS_LEAST / self.windows).max(PERIOD_LEAST);
        let most = (PASS_MOST / self.windows).max(least);
        if std::mem::take(&mut self.is_over) {
            self.passes = self.passes.saturating_add(1);
            self.of_epoch += 1;
            if std::mem::take(&mut self.has_promoted) {
                self.period *= 2.0;
            }
        }
        self.period = self.period.clamp(least, most);
        if self.wait > 0.0 || self.of_epoch >= PASSES_MOST || target.regions.is_empty() {
            return None;
        }
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
            // Where one page was found, all that was gone through counts.
            let is_slow = !slow(region).is_zero();
            let fits = if is_slow { window } else { through };
            let looked = left.min(fits).min(through);
            if let Ok(region) = u32::try_from(place) {
                pieces.push(Piece {
                    region,
                    share: looked / all,
                    is_first: begin == range.start().0,
                });
            }
            if looked < left {
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                let bytes = looked as u64;
                self.at = VirtAddr(begin + bytes.max(1));
                return Some(pieces);
            }
            self.at = range.end();
            if is_slow {
                window -= looked;
            }
            through -= looked;
            if window < 1.0 || through < 1.0 {
                return Some(pieces);
            }
        }
        // The end of the address space ends a window, too.
        self.at = VirtAddr(0);
        self.is_over = true;
        Some(pieces)
    }
}
