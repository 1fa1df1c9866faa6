//! What became of a plan, folded into the regions that it was made for.

use super::{Engine, STUCK_EPOCHS};
use crate::tiering::observation::Observation;

/// Epochs for which what the kernel kept is told of a region that is not planned again: it is,
/// when it is hot and no longer left alone.
const KEPT_EPOCHS: u64 = 2 * STUCK_EPOCHS;

impl Engine {
    /// What became of the last plan.
    pub(super) fn record(&mut self, seen: &Observation) {
        let last = self.epoch - 1;
        for tracked in self.targets.values_mut() {
            tracked.trust.begin(seen.at);
        }
        for result in &seen.outcome.results {
            let (asked, pages) = (&result.asked, result.pages);
            let Some(tracked) = self.targets.get_mut(&asked.target) else {
                continue;
            };
            let at = (last, asked.direction);
            let missed =
                (tracked.map).record_move(asked.range, asked.from, asked.to, pages.moved, at);
            tracked.trust.missed(missed);
        }
        for (target, range, kept) in seen.outcome.kept() {
            if let Some(tracked) = self.targets.get_mut(&target) {
                let until = self.epoch + KEPT_EPOCHS;
                tracked.map.record_kept(range, kept, until);
            }
        }
        for told in seen.outcome.of_ranges() {
            let Some(tracked) = self.targets.get_mut(&told.target) else {
                continue;
            };
            if told.is_stuck() {
                let until = self.epoch + STUCK_EPOCHS;
                tracked
                    .map
                    .record_stuck(told.range, until, told.is_shared());
            }
            if told.is_whole {
                tracked.map.record_left(told.range, told.from, told.left);
            }
        }
        for out in &seen.paging.results {
            if let Some(tracked) = self.targets.get_mut(&out.asked.target) {
                let range = out.asked.range;
                tracked.map.record_paged_out(range, out.is_whole);
            }
        }
        for counted in &seen.residency {
            if let Some(tracked) = self.targets.get_mut(&counted.target) {
                let all = tracked.map.page_count();
                let recount = (tracked.map).record_count(counted.range, &counted.pages_by_node);
                if let Some(recount) = recount {
                    tracked.trust.learn(&recount, all);
                }
            }
        }
    }
}
