//! Having memory paged out, after moves, in what is left of their time.

use super::{EpochLoop, migration_time};
use crate::tiering::observation::TargetMap;
use crate::tiering::pageout::Paging;
use crate::tiering::plan::Plan;

impl EpochLoop {
    /// What became of the last plan's, and what more may be.
    pub(super) fn look_at_paging(&mut self, targets: &[TargetMap]) -> Paging {
        let results = std::mem::take(&mut self.paged_out);
        if self.settings.engine.page_out.is_none() {
            return Paging::default();
        }
        let Some(pager) = &mut self.ports.pager else {
            return Paging::default();
        };
        let (swap, targets) = pager.look(targets);
        Paging {
            results,
            targets,
            swap: Some(swap),
        }
    }

    /// Carries out what the plan pages out.
    pub(super) fn page_out(&mut self, plan: &Plan) {
        let Some(pager) = &mut self.ports.pager else {
            return;
        };
        if plan.page_outs.is_empty() || self.paused || !self.settings.moving {
            return;
        }
        let time =
            migration_time(&self.settings, plan.interval).saturating_sub(self.outcome.elapsed);
        let cpu = self.ports.clock.thread_cpu_time();
        self.paged_out = pager.page_out(&plan.page_outs, time);
        self.cost.paging += self.ports.clock.thread_cpu_time().saturating_sub(cpu);
    }
}
