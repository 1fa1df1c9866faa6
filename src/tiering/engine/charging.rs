//! What watching and moving cost each target, as the limit counts it.
//!
//! **Unit.** CPU seconds of ours, and modelled ones of the target, over CPU seconds that it used
//! or counts as using.
//!
//! The limit holds for all targets together and on average ([`governor`](crate::tiering::governor)):
//! an idle target counts as using a tenth of a CPU, and what was spent before pages were counted
//! for the first time is no debt. What is shown beside the limit counts the same, averaged over
//! [`WINDOW`], or a burst that is paid back in the next epochs would look like a broken promise.
//! - Scans are shared by samples, which are dealt by CPU time; what every epoch costs is shared by
//!   CPU time itself, movers by pages. So no target is above the limit while all together are below.
//! - What pages that were moved cost the target counts as moving, for which the limit does not hold.

use super::{Engine, Told};
use crate::tiering::governor::{Again, IDLE_LOAD};
use crate::tiering::observation::{Observation, TargetMap};
use crate::tiering::report::Overhead;
use crate::units::Nanos;

/// Costs are averaged over about this much time, older ones counting less: the governor pays a
/// burst back within it even where epochs take a minute.
const WINDOW: Nanos = Nanos::from_secs(600);

/// CPU seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Charged {
    profiling: f64,
    migration: f64,
    target_side: f64,
    /// That the target used, or counts as having used.
    counted: f64,
}

impl Charged {
    /// Takes in an epoch that was so long.
    fn add(&mut self, epoch: Self, elapsed: Nanos) {
        let window = WINDOW.as_secs_f64();
        let keep = window / (window + elapsed.as_secs_f64());
        self.profiling = self.profiling * keep + epoch.profiling;
        self.migration = self.migration * keep + epoch.migration;
        self.target_side = self.target_side * keep + epoch.target_side;
        self.counted = self.counted * keep + epoch.counted;
    }

    /// As shares of so much CPU time of the target; nothing where that is none.
    fn shares(self, of: f64) -> Overhead {
        let share = |spent: f64| if of > 0.0 { spent / of } else { 0.0 };
        Overhead {
            target_cpu: Nanos::ZERO,
            counted: Nanos::from_secs_f64(self.counted),
            profiling: share(self.profiling),
            migration: share(self.migration),
            target_side: share(self.target_side),
        }
    }
}

/// What one target is charged.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Charge {
    /// As the limit counts it, on average.
    pub(super) average: Overhead,
    /// The last epoch alone, as shares of the CPU time that it used itself.
    pub(super) last: Overhead,
}

impl Engine {
    /// Charges the epoch to its targets, one after the other. Before the governor learns of it.
    pub(super) fn charge(&mut self, seen: &Observation, told: &[Told]) -> Vec<Charge> {
        let is_counted = self.governor.is_priced();
        let each = charges(seen, told);
        let of = seen.targets.iter().zip(told).zip(each);
        of.map(|((target, told), epoch)| {
            let mut charged = Charged::default();
            if let Some(tracked) = self.targets.get_mut(&target.id) {
                if is_counted {
                    tracked.charged.add(epoch, seen.cost.elapsed);
                }
                charged = tracked.charged;
            }
            let with_cpu = |overhead| Overhead {
                target_cpu: told.cpu,
                ..overhead
            };
            // One that used nothing counts as if it had used a millisecond.
            let own = told.cpu.max(Nanos::from_millis(1)).as_secs_f64();
            Charge {
                average: with_cpu(charged.shares(charged.counted)),
                last: with_cpu(epoch.shares(own)),
            }
        })
        .collect()
    }
}

/// What one epoch cost each.
fn charges(seen: &Observation, told: &[Told]) -> Vec<Charged> {
    let cost = &seen.cost;
    let samples: u64 = told.iter().map(|t| t.samples).sum();
    let weights: f64 = told.iter().map(Told::weight).sum();
    let moved_of = |target: &TargetMap| -> u64 {
        let mine = seen.outcome.results.iter();
        let mine = mine.filter(|result| result.asked.target == target.id);
        mine.map(|result| result.pages.moved).sum()
    };
    let moved: u64 = seen.outcome.results.iter().map(|r| r.pages.moved).sum();
    let out: u64 = seen.paging.results.iter().map(|r| r.pages).sum();
    let forgetting: Nanos = seen.forgotten.iter().map(|f| f.cost).sum();
    let scanning = cost.scanning + cost.kdamonds;
    let rest = (cost.profiling + cost.other)
        .saturating_sub(cost.scanning)
        .saturating_sub(forgetting);
    let equal = 1.0 / seen.targets.len().max(1) as f64;
    let part = |mine: u64, all: u64| match all {
        0 => equal,
        _ => mine as f64 / all as f64,
    };
    let of = seen.targets.iter().zip(told);
    of.map(|(target, told)| {
        let weight = if weights > 0.0 {
            told.weight() / weights
        } else {
            equal
        };
        let forgot = seen.forgotten.iter().filter(|f| f.target == target.id);
        let forgot: Nanos = forgot.map(|f| f.cost).sum();
        let pages = moved_of(target);
        // What is not told apart by target is shared by samples.
        let beside = cost.set_again * told.samples / samples.max(1);
        let again = Again {
            accessed: told.again.accessed + beside,
            moved: 0,
            ..told.again
        };
        let moving = Again {
            moved: pages,
            ..Again::default()
        };
        let paged = seen.paging.pages_of(target.id);
        let counted = if weights > 0.0 {
            told.weight()
        } else {
            IDLE_LOAD
        };
        Charged {
            profiling: scanning.as_secs_f64() * part(told.samples, samples)
                + rest.as_secs_f64() * weight
                + forgot.as_secs_f64(),
            migration: cost.migration.as_secs_f64() * part(pages, moved)
                + cost.paging.as_secs_f64() * part(paged, out)
                + moving.cost().as_secs_f64(),
            target_side: again.cost().as_secs_f64(),
            counted: counted * cost.elapsed.as_secs_f64(),
        }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{observation, tiers};
    use super::*;
    use crate::tiering::observation::{EpochCost, TargetId};
    use crate::tiering::settings::EngineSettings;
    use crate::units::Pid;

    fn told(load: f64, samples: u64) -> Told {
        Told {
            load,
            is_watchable: true,
            samples,
            ..Told::default()
        }
    }

    /// An epoch of 10 s in which scans took so long, and the rest so long.
    fn epoch(scanning: u64, rest: u64, targets: usize) -> Observation {
        let mut seen = observation(10, Vec::new(), 0);
        let one = seen.targets[0].clone();
        seen.targets = (1..=targets)
            .map(|id| {
                let mut target = one.clone();
                target.id = TargetId(u32::try_from(id).unwrap());
                target.pid = Pid(i32::try_from(id).unwrap());
                target
            })
            .collect();
        seen.cost = EpochCost {
            profiling: Nanos::from_millis(scanning + rest),
            scanning: Nanos::from_millis(scanning),
            elapsed: Nanos::from_secs(10),
            ..EpochCost::default()
        };
        seen
    }

    #[test]
    fn an_idle_target_counts_as_a_tenth_of_a_cpu() {
        // 50 ms are 5 % of the second that an idle one counts as using in 10.
        let [charged] = charges(&epoch(40, 10, 1), &[told(0.0, 100)])[..] else {
            panic!("one");
        };
        let overhead = charged.shares(charged.counted);
        assert!((overhead.total() - 0.05).abs() < 1e-9, "{overhead:?}");
    }

    #[test]
    fn nobody_is_above_the_limit_where_all_together_are_not() {
        // A busy one with hardly any memory, and an idle one with the samples that are its due.
        let all = [told(1.0, 10), told(0.0, 9)];
        let charged = charges(&epoch(10, 45, 2), &all);
        for charged in charged {
            // 55 ms of 11 s.
            let total = charged.shares(charged.counted).total();
            assert!(total < 0.01, "{charged:?}");
        }
    }

    #[test]
    fn a_burst_that_is_paid_back_stays_below_the_limit() {
        let mut charged = Charged::default();
        for turn in 0..200 {
            // 5 % of a CPU in 10 s are 500 ms: as much again in one, and the less in the next four.
            let millis = match turn % 10 {
                0 => 1000,
                1..=4 => 360,
                _ => 480,
            };
            let [epoch] = charges(&epoch(millis, 0, 1), &[told(1.0, 100)])[..] else {
                panic!("one");
            };
            charged.add(epoch, Nanos::from_secs(10));
            if turn > 60 {
                let total = charged.shares(charged.counted).total();
                assert!(total < 0.05, "{turn}: {total}");
            }
        }
        // In time all of it is forgotten.
        for _ in 0..600 {
            let [epoch] = charges(&epoch(0, 0, 1), &[told(1.0, 100)])[..] else {
                panic!("one");
            };
            charged.add(epoch, Nanos::from_secs(10));
        }
        assert!(charged.shares(charged.counted).total() < 1e-4);
    }

    #[test]
    fn what_is_spent_before_anything_was_counted_is_no_debt_and_is_told_beside() {
        let mut engine = Engine::new(EngineSettings::default(), tiers(None), 1);
        let mut seen = observation(10, Vec::new(), 0);
        seen.cost.profiling = Nanos::from_secs(2);
        let report = engine.step(&seen).report;
        let target = &report.targets[0];
        assert!(target.overhead.total() <= 0.0, "{target:?}");
        assert!(target.last_overhead.total() > 0.1, "{target:?}");
    }
}
