//! Carrying a plan out: before the next epoch begins, or in its first window.

use super::{EpochLoop, migration_time, move_bytes};
use crate::ports::{MoveLimits, PortError};
use crate::tiering::plan::{MoveOutcome, MoveResult, PageCounts, Plan};
use crate::tiering::windows;
use crate::units::Bandwidth;

impl EpochLoop {
    /// Carries the plan out, after the next epoch has begun where that is possible.
    pub(super) fn carry_on(&mut self) -> Result<(), PortError> {
        if !self.moves_while_waiting() {
            return self.act();
        }
        let cpu = self.ports.clock.thread_cpu_time();
        let running = self.begin();
        self.profiled(cpu);
        self.act()?;
        self.running = Some(running?);
        Ok(())
    }

    /// Whether moving fits in the first window, and whether what it makes unknown may be looked at again.
    fn moves_while_waiting(&self) -> bool {
        self.plan.as_ref().is_some_and(|plan| {
            let scans = self.settings.engine.profiling.scans.max(1);
            let first = windows::length(plan.span, plan.interval, scans, 0);
            !self.ports.sampler.repeats() && migration_time(&self.settings, plan.interval) <= first
        })
    }

    /// Carries out what the last plan says.
    fn act(&mut self) -> Result<(), PortError> {
        let Some(plan) = self.plan.take() else {
            return Ok(());
        };
        self.apply(&plan)?;
        self.page_out(&plan);
        self.plan = Some(plan);
        Ok(())
    }

    fn apply(&mut self, plan: &Plan) -> Result<(), PortError> {
        if plan.moves.is_empty() {
            return Ok(());
        }
        if self.paused || !self.settings.moving {
            // Planned and counted, not tried.
            let results = plan
                .moves
                .iter()
                .map(|m| MoveResult {
                    asked: m.clone(),
                    pages: PageCounts {
                        deferred: m.limit.pages(),
                        ..PageCounts::default()
                    },
                    is_whole: false,
                })
                .collect();
            self.outcome.add(MoveOutcome {
                results,
                ..MoveOutcome::default()
            });
            return Ok(());
        }
        let limits = MoveLimits {
            time: migration_time(&self.settings, plan.interval),
            rate: self.settings.rate.unwrap_or(Bandwidth(u64::MAX)),
            bytes: move_bytes(&self.settings),
            call_time: self.settings.call_time,
            threads: self.settings.threads,
        };
        // What others took meanwhile comes first, and while it does.
        let cpu = self.ports.clock.thread_cpu_time();
        self.look_at_nodes()?;
        self.profiled(cpu);
        self.ports.mover.keep(&self.keeps(), false);
        self.ports.mover.may_reclaim(&plan.reclaims);
        let done = self.ports.mover.apply(&plan.moves, limits)?;
        self.outcome.add(done);
        self.guard.moved();
        Ok(())
    }
}
