//! What is asked beside which pages are accessed: how late nodes answer, and what targets write.

use super::{Engine, Told};
use crate::tiering::observation::{Observation, TargetId};
use crate::tiering::plan::{Move, Reason};
use crate::tiering::settings::Asking;
use crate::units::{Nanos, Pid};

impl Engine {
    /// Whether nodes are to be asked how late they answer.
    pub fn asks_nodes(&self) -> bool {
        self.policy.asks(self.settings.profiling.latency)
    }

    /// Whom to ask what it writes in the next epoch: where that is left to us, whoever has memory on a node
    /// that has answered late for a while, as long as something is done about it.
    pub(super) fn ask_next(
        &mut self,
        seen: &Observation,
        told: &[Told],
        moves: &[Move],
        interval: Nanos,
    ) -> Vec<(TargetId, Pid)> {
        let profiling = &self.settings.profiling;
        let mut asked = Vec::new();
        if !self.policy.asks(profiling.writes) {
            return asked;
        }
        let lasting = self.machine.pressure.lasting();
        for (target, told) in seen.targets.iter().zip(told) {
            let Some(tracked) = self.targets.get_mut(&target.id) else {
                continue;
            };
            if profiling.writes == Asking::Auto {
                let mut moves = moves.iter().filter(|m| m.target == target.id);
                let was_of_use = moves.any(|m| m.reason == Reason::Written);
                if !tracked.patience.lasts(was_of_use) || !tracked.has_on(&lasting) {
                    // What is not weighed keeps no regions apart.
                    if tracked.extent.written.is_some() {
                        tracked.map.forget_writes();
                    }
                    continue;
                }
            }
            let cpus = told.weight() * profiling.overhead_limit;
            let allowance = Nanos::from_secs_f64(cpus * interval.as_secs_f64());
            if tracked.is_counted()
                && (tracked.savings).is_due(allowance, tracked.extent, profiling.write_fault)
            {
                tracked.patience.asks();
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
            seen.nodes[1].latency = engine.asks_nodes().then_some(ReadLatency {
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
