//! What of the CPU time of moving pages nobody else would have used.
//!
//! **Unit.** Share, from 0 to 1. Times are seconds.
//!
//! **Problem.** The kernel tells for how long cores had nothing to do in an epoch, in ticks of
//! 10 ms. Epochs last from milliseconds (the first) to minutes; in what one tells, movers have
//! taken part; and sixty cores that idle while a program waits at a barrier say nothing
//! about the minute in which it uses them all.
//!
//! **Approach.** Of each epoch no more counts than movers can use: a core for each that works at a
//! time. What we used was idle only where as much more was: on a machine with nothing left it
//! was somebody's. The loop watches and moves in turn, so what it watches with is idle while it
//! moves; kdamonds are not. The mean of the last [`MEMORY`], by how long epochs are, is what
//! counts. Before a second has been seen nothing is spare.
//!
//! **Limits.** Cores add up: of a hundred that are busy for 99 % one counts, and mostly one of them
//! is free at any moment, but not always. What we used on the second thread of a busy core is held
//! to be idle as well, where as much more was.
//!
//! **Properties** (tests below): between 0 and 1; how epochs are cut changes little; what idled
//! beyond what movers can use does not count later.

use crate::tiering::observation::Observation;
use crate::units::Nanos;

/// Seconds after which a third of what was seen still counts.
const MEMORY: f64 = 20.0;
/// Seconds that have to be seen.
const LEAST: f64 = 1.0;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spare {
    seconds: f64,
    /// Of these, weighed by what of movers' time was idle.
    idle: f64,
    /// In which pages were being moved, by one mover at least.
    moving: f64,
    /// CPU time of these.
    movers: f64,
}

impl Spare {
    /// An epoch has ended.
    pub(super) fn follow(&mut self, seen: &Observation) {
        let elapsed = seen.cost.elapsed.as_secs_f64();
        let keeps = (-elapsed / MEMORY).exp();
        for sum in [
            &mut self.seconds,
            &mut self.idle,
            &mut self.moving,
            &mut self.movers,
        ] {
            *sum *= keeps;
        }
        self.moving += seen.outcome.elapsed.as_secs_f64();
        self.movers += seen.cost.migration.as_secs_f64();
        let at_once = (self.movers / self.moving.max(1e-9)).max(1.0);
        let cost = &seen.cost;
        let ours = [cost.profiling, cost.migration, cost.paging, cost.other];
        let ours: Nanos = ours.into_iter().sum();
        let idle = seen.idle + ours.min(seen.idle);
        let usable = elapsed * at_once;
        if usable > 0.0 {
            self.seconds += elapsed;
            self.idle += elapsed * (idle.as_secs_f64() / usable).min(1.0);
        }
    }

    /// See the module.
    pub(super) fn share(&self) -> f64 {
        if self.seconds < LEAST {
            return 0.0;
        }
        self.idle / self.seconds
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tiering::engine::tests::observation;

    /// An epoch of `elapsed` in which cores idled for `idle` and movers worked for `moving`, with so many
    /// at once; milliseconds.
    fn epoch(elapsed: u64, idle: u64, moving: u64, at_once: u64) -> Observation {
        let mut seen = observation(0, Vec::new(), 0);
        seen.cost.elapsed = Nanos::from_millis(elapsed);
        seen.idle = Nanos::from_millis(idle);
        seen.cost.migration = Nanos::from_millis(moving * at_once);
        seen.outcome.elapsed = Nanos::from_millis(moving);
        seen
    }

    fn after(epochs: impl IntoIterator<Item = Observation>) -> f64 {
        let mut spare = Spare::default();
        epochs.into_iter().for_each(|seen| spare.follow(&seen));
        spare.share()
    }

    fn is(found: f64, wanted: f64) -> bool {
        (found - wanted).abs() < 0.01
    }

    #[test]
    fn what_we_used_was_idle_where_as_much_more_was() {
        let of = |idle, moving| after([epoch(10_000, idle, moving, 1)]);
        for (idle, moving, share) in [
            (10_000, 0, 1.0),
            (7_000, 3_000, 1.0),
            (4_000, 2_000, 0.6),
            (1_000, 9_000, 0.2),
            (0, 9_000, 0.0),
        ] {
            let found = of(idle, moving);
            assert!(is(found, share), "{idle} and {moving} ms: {found}");
        }
    }

    #[test]
    fn two_movers_need_two_cores() {
        let of = |cores: u64| after([epoch(10_000, 10_000 * cores, 1_000, 2)]);
        assert!(is(of(1), 0.6) && is(of(2), 1.0), "{} {}", of(1), of(2));
    }

    #[test]
    fn sixty_cores_that_idled_count_for_no_longer_than_one() {
        let of = |cores: u64| {
            let before = [(); 20].map(|()| epoch(10_000, 10_000 * cores, 0, 1));
            let now = [(); 3].map(|()| epoch(10_000, 0, 0, 1));
            after(before.into_iter().chain(now))
        };
        assert!(is(of(64), of(1)) && of(64) < 0.25, "{}", of(64));
    }

    #[test]
    fn a_moment_says_nothing() {
        let tick = || epoch(5, 10, 0, 1);
        assert!(is(after([tick()]), 0.0));
        let busy = epoch(3_300, 0, 0, 1);
        assert!(is(after([tick(), busy.clone()]), 0.0));
        assert!(is(after([busy, tick()]), 0.0));
        assert!(is(after([epoch(0, 0, 0, 1)]), 0.0));
    }

    proptest! {
        #[test]
        fn a_share_however_epochs_are(epochs in prop::collection::vec(
            (0_u64..100_000, 0_u64..10_000_000, 0_u64..100_000, 0_u64..64), 0..20,
        )) {
            let share = after(epochs.into_iter().map(|(e, i, m, n)| epoch(e, i, m, n)));
            prop_assert!((0.0..=1.0).contains(&share), "{share}");
        }

        #[test]
        fn how_an_epoch_is_cut_changes_little(idle in 0_u64..10_000, pieces in 1_u64..10) {
            let rest = || epoch(10_000, 5_000, 0, 1);
            let whole = after([rest(), epoch(10_000, idle, 0, 1)]);
            let cut = (0..pieces).map(|_| epoch(10_000 / pieces, idle / pieces, 0, 1));
            let cut = after(std::iter::once(rest()).chain(cut));
            prop_assert!((whole - cut).abs() < 0.05, "{whole}, cut {cut}");
        }
    }
}
