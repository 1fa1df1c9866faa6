//! What is asked beside which pages are accessed: how late nodes answer, and what targets write.

use super::tracked::Tracked;
use super::{Engine, Told};
use crate::tiering::observation::{Observation, TargetId};
use crate::tiering::plan::Reason;
use crate::tiering::report::PauseReason;
use crate::tiering::settings::Asking;
use crate::tiering::tier::TierView;
use crate::tiering::writes::LONGEST_WALK;
use crate::units::{Nanos, NodeId, Pid};

impl Engine {
    /// Whether nodes are to be asked how late they answer, and how often: where that is left to us, if there are
    /// several and it may also be asked what is written, which is what follows from it.
    pub fn asks_nodes(&self) -> Asking {
        let profiling = &self.settings.profiling;
        let is_of_use = self.tiers.used().count() > 1 && self.policy.asks(profiling.writes);
        match profiling.latency {
            asking if !self.policy.asks(asking) => Asking::Never,
            Asking::Auto if !is_of_use => Asking::Never,
            asking => asking,
        }
    }

    /// Whom to ask what it writes in the next epoch: where that is left to us, whoever has memory on a slow node
    /// that has answered late for a while, as long as something comes of it. All walks of an epoch together
    /// are no longer than one may be.
    pub(super) fn ask_next(
        &mut self,
        seen: &Observation,
        told: &[Told],
        (views, paused): (&[TierView], &[Option<PauseReason>]),
        interval: Nanos,
    ) -> Vec<(TargetId, Pid)> {
        let profiling = &self.settings.profiling;
        let mut asked = Vec::new();
        if !self.policy.asks(profiling.writes) {
            self.targets.values_mut().for_each(Tracked::forget_writes);
            return asked;
        }
        let lasting = self.machine.pressure.lasting();
        let mut left = LONGEST_WALK;
        let all = seen.targets.iter().zip(told).zip(views.iter().zip(paused));
        // Each is the first in its turn.
        let first = usize::try_from(self.epoch).unwrap_or(0) % seen.targets.len().max(1);
        for ((target, told), (view, paused)) in all.clone().skip(first).chain(all.take(first)) {
            let Some(tracked) = self.targets.get_mut(&target.id) else {
                continue;
            };
            if target.sharers > 0 {
                // Each who shares it would have to be asked.
                tracked.forget_writes();
                continue;
            }
            if profiling.writes == Asking::Auto {
                let mut moved = seen.outcome.results.iter();
                let was_of_use = moved.any(|moved| {
                    moved.asked.target == target.id
                        && moved.asked.reason == Reason::Written
                        && moved.pages.moved > 0
                });
                let is_slow = |node: &NodeId| view.rank_of(*node).is_some_and(|rank| rank > 0);
                let late: Vec<NodeId> = lasting.iter().copied().filter(is_slow).collect();
                let may = tracked.patience.lasts(was_of_use) && paused.is_none();
                if !may || !tracked.has_on(&late) {
                    tracked.forget_writes();
                    continue;
                }
            }
            let cpus = told.weight() * profiling.overhead_limit;
            let allowance = Nanos::from_secs_f64(cpus * interval.as_secs_f64());
            let (extent, fault) = (tracked.extent, profiling.write_fault);
            if tracked.is_counted() && (tracked.savings).is_due(allowance, extent, fault, &mut left)
            {
                tracked.is_asked = true;
                asked.push((target.id, target.pid));
            }
        }
        asked
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{MIB, observation, slow, tiers};
    use super::*;
    use crate::tiering::observation::{Forgotten, ReadLatency};
    use crate::tiering::settings::{EngineSettings, PolicyName};
    use crate::units::Bytes;

    /// How often it is asked what is written in so many epochs, in which slow memory answers so many times as
    /// late as when idle; and what is known of that at the end.
    fn run(settings: EngineSettings, epochs: u64, late: u64) -> (usize, Option<Bytes>) {
        let mut engine = Engine::new(settings, tiers(None), 1);
        let mut plan = engine.step(&observation(10, Vec::new(), 0));
        let mut asked = 0;
        for second in (2..2 + epochs).map(|epoch| 10 * epoch) {
            let mut seen = observation(second, plan.samples.clone(), 8 * MIB);
            seen.residency = slow(&plan);
            seen.nodes[1].latency = (engine.asks_nodes() != Asking::Never).then_some(ReadLatency {
                now: Nanos(100 * late),
                idle: Nanos(100),
            });
            for i in 0..seen.accesses.samples().len() {
                if seen.accesses.samples()[i].addr.0 < 2 * MIB {
                    seen.accesses.note_written(i);
                }
            }
            asked += plan.forget.len();
            seen.forgotten = (plan.forget.iter())
                .map(|&(target, _)| Forgotten {
                    target,
                    took: Nanos::from_millis(1),
                    cost: Nanos::from_millis(1),
                })
                .collect();
            plan = engine.step(&seen);
        }
        (asked, plan.report.targets[0].written)
    }

    /// Of 8 MiB; edges lie between samples.
    fn is_a_quarter(written: Option<Bytes>) -> bool {
        written.is_some_and(|bytes| bytes.0.abs_diff(2 * MIB) < MIB / 8)
    }

    fn asking(writes: Asking, policy: PolicyName) -> EngineSettings {
        let mut settings = EngineSettings::default();
        settings.profiling.writes = writes;
        settings.policy.name = policy;
        settings
    }

    #[test]
    fn what_is_written_is_asked_when_it_is_paid_for_and_told() {
        let run = |writes| run(asking(writes, PolicyName::Adaptive), 18, 1);
        assert_eq!(run(Asking::Never), (0, None));
        let (asked, written) = run(Asking::Always);
        assert!(asked > 2, "{asked}");
        assert!(is_a_quarter(written), "{written:?}");
    }

    #[test]
    fn left_to_us_it_is_asked_while_slow_memory_answers_late_and_something_comes_of_it() {
        let auto = |policy, epochs, late| run(asking(Asking::Auto, policy), epochs, late);
        assert_eq!(auto(PolicyName::Adaptive, 18, 1), (0, None));
        assert_eq!(
            auto(PolicyName::HmKeeper, 18, 3),
            (0, None),
            "weighs it not"
        );
        let (asked, written) = auto(PolicyName::Adaptive, 12, 3);
        assert!((4..10).contains(&asked), "{asked}");
        assert!(is_a_quarter(written), "{written:?}");
        // Nothing is read on fast memory, so nothing may change places.
        let (asked, written) = auto(PolicyName::Adaptive, 60, 3);
        assert_eq!(written, None, "asked {asked} times");
        assert!((10..20).contains(&asked), "{asked}");
    }
}
