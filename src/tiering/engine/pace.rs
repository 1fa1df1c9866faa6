//! How long epochs are meant to be: as configured, or shorter where the policy asks for that.
//!
//! A policy that gains by it may have epochs that are shorter than configured ([`Policy::pace`]).
//! It has them where that costs nothing else: where it decides for anybody; where the limit pays
//! for what every epoch costs also in a shorter one; where windows can be as much shorter; where
//! every region has a look, by what the next epoch buys; and where much of all accesses goes to
//! what is accessed twice in a shorter one, too ([`CLEAR`]): what is seen once in two of them is
//! not told from what is cold. To begin with half as much again is asked for of looks and of such
//! accesses, so that the length does not change to and fro. Whenever it changes, what was counted
//! is restated: a shorter epoch sees less.
//!
//! [`Policy::pace`]: crate::tiering::policy::Policy::pace

use super::Engine;
use super::survey::Survey;
use crate::tiering::governor::Terms;
use crate::units::Nanos;

/// So many times the looks and the share of accesses that short epochs need have to be there
/// before they begin.
const PLENTY: f64 = 1.5;
/// Of folios that are accessed so often in an epoch six of seven are seen accessed in it.
const CLEAR: f64 = 2.0;
/// Of the accesses of all targets this share has to go to such memory, three fifths to begin with.
const CLEAR_SHARE: f64 = 0.4;

/// A share of what is configured, above 0, at most 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pace(f64);

impl Pace {
    /// As configured.
    pub(super) const WHOLE: Self = Self(1.0);

    pub(super) fn share(self) -> f64 {
        self.0
    }

    /// An epoch, where it is as long as this when it is whole.
    pub(super) fn of(self, whole: Nanos) -> Nanos {
        Nanos::from_secs_f64(whole.as_secs_f64() * self.0)
    }

    fn is_short(self) -> bool {
        self.0 < 1.0
    }
}

impl Engine {
    /// How long the next epoch is to be. `terms` and `surveys` are those of the one that ends;
    /// `decides`: whether the policy decides for anybody.
    pub(super) fn next_pace(&self, terms: Terms, surveys: &[Survey], decides: bool) -> Pace {
        let pace = Pace(self.policy.pace());
        let profiling = &self.settings.profiling;
        let interval = pace.of(profiling.interval);
        let shorter = pace.0 / self.pace.0;
        let wanted = if self.pace.is_short() { 1.0 } else { PLENTY };
        let short = Terms { interval, ..terms };
        let is_paid = self.governor.needed_stretch(short) <= 1.0;
        // Not what this one bought: the first one has bought nothing yet.
        let samples = self.governor.clone().allot(short).samples;
        let looks = (samples * u64::from(self.pages_per_sample())) as f64;
        let clear = Survey::share_above(surveys, &self.rates, CLEAR / shorter);
        let is_free = is_paid
            && decides
            && clear.is_none_or(|share| share >= wanted * CLEAR_SHARE)
            && looks >= wanted * terms.regions as f64
            && self.span.fits_in(&self.windowed(interval));
        if is_free { pace } else { Pace::WHOLE }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ID, MIB, observation, slow, tiers};
    use super::*;
    use crate::tiering::policy;
    use crate::tiering::region::Region;
    use crate::tiering::settings::{EngineSettings, WindowRule};
    use crate::tiering::tier::TierTable;
    use crate::units::{Bytes, NodeId, PageRange, VirtAddr};

    const TERMS: Terms = Terms {
        regions: 1000,
        ..Terms::FOR_TESTS
    };

    fn half() -> EngineSettings {
        let mut settings = EngineSettings::default();
        settings.policy.adaptive.pace = 0.5;
        settings
    }

    fn engine() -> Engine {
        let engine = Engine::new(half(), tiers(None), 1);
        assert_eq!(engine.next_pace(TERMS, &[], true), Pace(0.5));
        engine
    }

    /// Of as much memory each that has such counts.
    fn survey(counts: &[f32]) -> [Survey; 1] {
        let mut survey = Survey::new(3, 1);
        for &count in counts {
            survey.add(&region(count));
        }
        [survey]
    }

    fn region(count: f32) -> Region {
        let range = PageRange::new(VirtAddr(0), VirtAddr(2 * MIB)).unwrap();
        Region::for_test(range, count, &[(NodeId(0), 512)])
    }

    /// The hottest region.
    fn heat(engine: &Engine) -> f32 {
        let regions = engine.targets[&ID].map.regions();
        regions.iter().map(Region::latest).fold(0.0, f32::max)
    }

    #[test]
    fn in_half_an_epoch_half_as_much_is_moved() {
        let of = |table: TierTable| {
            let settings = EngineSettings {
                move_bytes: Bytes::from_mib(4),
                ..half()
            };
            let mut engine = Engine::new(settings, table, 1);
            let first = engine.step(&observation(10, Vec::new(), 0));
            let mut second = observation(20, first.samples.clone(), 8 * MIB);
            second.residency = slow(&first);
            let plan = engine.step(&second);
            let moved: Bytes = plan.moves.iter().map(|m| m.limit).sum();
            (plan.interval, moved)
        };
        let half = (Nanos::from_secs(5), Bytes::from_mib(2));
        assert_eq!(of(tiers(None)), half);
        // Where nothing can be decided nothing is gained by it.
        let all = tiers(None);
        let only = TierTable::new(
            vec![all.tiers()[0].clone()],
            vec![all.nodes()[0].clone()],
            vec![all.paths()[0]],
        );
        assert_eq!(of(only.unwrap()), (Nanos::from_secs(10), Bytes::ZERO));
    }

    #[test]
    fn hit_rates_are_those_of_two_half_epochs() {
        // All is accessed on node 3 in one epoch, and on node 0 in the next one.
        let on_node_3 = |seconds: u64| {
            let mut engine = Engine::new(half(), tiers(None), 1);
            let mut plan = engine.step(&observation(10, Vec::new(), 0));
            let mut told = 0.0;
            for (second, node) in [(10 + seconds, 3), (10 + 2 * seconds, 0)] {
                let mut seen = observation(second, plan.samples.clone(), 8 * MIB);
                seen.residency = slow(&plan);
                for range in &mut seen.residency {
                    range.pages_by_node[0].0 = NodeId(node);
                }
                plan = engine.step(&seen);
                told = plan.report.targets[0].accesses.ratio[1];
            }
            told
        };
        assert!(on_node_3(10) < 0.01);
        let half = on_node_3(5);
        assert!((0.4..0.6).contains(&half), "{half}");
    }

    #[test]
    fn what_was_counted_is_restated_when_epochs_become_shorter_or_longer() {
        let mut engine = Engine::new(half(), tiers(None), 1);
        let mut plan = engine.step(&observation(10, Vec::new(), 0));
        engine.pace = Pace::WHOLE;
        let mut seen = |engine: &mut Engine, second| {
            plan = engine.step(&observation(second, plan.samples.clone(), 8 * MIB));
            heat(engine)
        };
        let half = seen(&mut engine, 20);
        assert!((2.0..3.0).contains(&half), "{half}");
        assert!(seen(&mut engine, 25) >= 3.0);
        // As a policy does that has none.
        engine.policy = policy::build(&crate::tiering::settings::PolicySettings {
            name: crate::tiering::settings::PolicyName::HmKeeper,
            ..engine.settings.policy
        });
        assert!((engine.policy.pace() - 1.0).abs() < 1e-9);
        assert!(seen(&mut engine, 30) >= 2.9);
        assert_eq!(engine.interval(), Nanos::from_secs(10));
    }

    #[test]
    fn epochs_stay_as_configured_where_shorter_ones_cost_anything() {
        let whole = |engine: &Engine, terms, decides| {
            assert_eq!(engine.next_pace(terms, &[], decides), Pace::WHOLE);
        };
        whole(&engine(), TERMS, false);
        // Nothing is left for samples once what every epoch costs is paid for.
        let limit = 1e-7;
        whole(&engine(), Terms { limit, ..TERMS }, true);
        // Windows cannot be shorter.
        let mut brief = engine();
        brief.settings.profiling.interval = Nanos::from_millis(500);
        whole(&brief, TERMS, true);
        // Looks for all, and to begin with some more.
        let mut engine = engine();
        let short = Terms {
            interval: Nanos::from_secs(5),
            ..TERMS
        };
        let looks = engine.governor.clone().allot(short).samples;
        for (regions, before, after) in [
            (looks * 2 / 3, 1.0, 0.5),
            (looks * 2 / 3 + 1, 1.0, 1.0),
            (looks, 0.5, 0.5),
            (looks + 1, 0.5, 1.0),
        ] {
            engine.pace = Pace(before);
            let terms = Terms { regions, ..TERMS };
            assert_eq!(engine.next_pace(terms, &[], true), Pace(after), "{regions}");
        }
    }

    #[test]
    fn the_first_epoch_is_short_only_if_that_buys_looks_for_all() {
        let first = |limit: f64| {
            let mut settings = half();
            settings.profiling.overhead_limit = limit;
            let mut seen = observation(10, Vec::new(), 0);
            let all = PageRange::new(VirtAddr(0), VirtAddr(512 * MIB)).unwrap();
            seen.targets[0].eligible = vec![all];
            let plan = Engine::new(settings, tiers(None), 1).step(&seen);
            assert_eq!(plan.report.targets[0].regions, 256);
            plan.interval
        };
        assert_eq!(first(0.05), Nanos::from_secs(5));
        assert_eq!(first(0.005), Nanos::from_secs(10));
    }

    #[test]
    #[allow(clippy::cast_possible_truncation)]
    fn what_only_a_whole_epoch_tells_apart_keeps_epochs_whole() {
        let mut engine = engine();
        let pace = |engine: &Engine, counts: &[f32]| engine.next_pace(TERMS, &survey(counts), true);
        engine.pace = Pace::WHOLE;
        let counts = |rate: f64| engine.rates.count(rate) as f32;
        // Twice and a bit in half an epoch; once and a bit.
        let (often, seldom) = (counts(5.0), counts(3.0));
        assert_eq!(pace(&engine, &[often, 0.0]), Pace(0.5));
        assert_eq!(pace(&engine, &[seldom, 0.0]), Pace::WHOLE);
        // Of all accesses enough go to what is accessed often; in a short epoch fewer are enough.
        assert_eq!(pace(&engine, &[often, seldom]), Pace(0.5));
        assert_eq!(pace(&engine, &[often, seldom, seldom]), Pace::WHOLE);
        engine.pace = Pace(0.5);
        let (often, seldom) = (counts(2.5), counts(1.5));
        assert_eq!(pace(&engine, &[often, seldom, seldom]), Pace(0.5));
        assert_eq!(pace(&engine, &[often, seldom, seldom, seldom]), Pace::WHOLE);
        // Nothing is known yet.
        assert_eq!(pace(&engine, &[0.0]), Pace(0.5));
    }

    #[test]
    #[allow(clippy::cast_possible_truncation)]
    fn accesses_of_a_huge_page_are_those_of_one_page() {
        let mut engine = engine();
        engine.pace = Pace::WHOLE;
        let counts = |rate: f64| engine.rates.count(rate) as f32;
        let mut huge = region(counts(5.0));
        huge.of_folios(9);
        let mut survey = Survey::new(3, 1);
        survey.add(&huge);
        survey.add(&region(counts(3.0)));
        assert_eq!(engine.next_pace(TERMS, &[survey], true), Pace::WHOLE);
    }

    #[test]
    fn where_counts_tell_of_no_higher_rate_what_is_full_is_accessed_often() {
        let mut settings = half();
        settings.profiling.scans = 1;
        settings.profiling.windows = WindowRule::Equal;
        let engine = Engine::new(settings, tiers(None), 1);
        let mut survey = Survey::new(1, 1);
        survey.add(&region(1.0));
        assert_eq!(engine.next_pace(TERMS, &[survey], true), Pace(0.5));
    }
}
