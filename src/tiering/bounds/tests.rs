//! Bounds on memory whose accesses are known.

use proptest::prelude::*;

use super::*;
use crate::tiering::estimates::Estimates;
use crate::tiering::rng::Rng;
use crate::tiering::settings::LookRule;
use crate::tiering::windows;

const SCANS: u8 = 3;
/// Pages of a region of these tests.
const PAGES: u64 = 256;

/// Memory whose pages are accessed so often, on one tier, in so many regions.
#[derive(Clone, Copy, Debug)]
struct Part {
    tier: usize,
    rate: f64,
    regions: u64,
}

const fn part(tier: usize, rate: f64, regions: u64) -> Part {
    Part {
        tier,
        rate,
        regions,
    }
}

fn chance(rng: &mut Rng) -> f64 {
    rng.below(1 << 32) as f64 / f64::from(u32::MAX)
}

/// The count of a page that is accessed so often, by chance.
fn count(rng: &mut Rng, rate: f64) -> u8 {
    let seen = |scan| {
        let share = windows::share(windows::SPAN, SCANS, scan);
        u8::from(chance(rng) < 1.0 - (-rate * share).exp())
    };
    (0..SCANS).map(seen).sum()
}

/// A target that is looked at for some epochs, a sample for each region.
struct Looks {
    estimates: Estimates,
    saturation: Saturation,
    rng: Rng,
}

impl Looks {
    fn new(seed: u64) -> Self {
        Self {
            estimates: Estimates::new(windows::SPAN, SCANS, LookRule::Repeated),
            saturation: Saturation::default(),
            rng: Rng::new(seed),
        }
    }

    fn epoch(&mut self, parts: &[Part], limits: &[Limit]) -> Shares {
        let mut strata = Strata::new(limits.len());
        for part in parts {
            let share = |scan| windows::share(windows::SPAN, SCANS, scan);
            let seen = |scan| 1.0 - (-part.rate * share(scan)).exp();
            let class = class_of((0..SCANS).map(seen).sum(), SCANS);
            for _ in 0..part.regions {
                let count = count(&mut self.rng, part.rate);
                let reading = self.estimates.reading(count, SCANS, 0).unwrap();
                let mut mean = Mean::default();
                mean.add(&reading);
                strata.sample(class, part.tier, &reading);
                strata.memory(class, part.tier, PAGES, &mean);
            }
        }
        self.saturation.learn(&strata);
        shares(&strata, &self.saturation, limits)
    }
}

/// Of memory of 100 ns, in an epoch of a second with so much CPU time.
fn limit(millis: u64) -> Limit {
    let cpu = Nanos::from_millis(millis);
    Limit::new(cpu, Nanos(100), Nanos::from_secs(1), None)
}

/// Where accesses go, if saturated memory is missed so often.
fn truth(parts: &[Part], tiers: usize, saturated: &[f64]) -> Vec<f64> {
    let mut sums = vec![0.0; tiers];
    for part in parts {
        let told = part.rate < 50.0;
        sums[part.tier] += if told {
            part.rate * (part.regions * PAGES) as f64
        } else {
            saturated[part.tier]
        };
    }
    let all: f64 = sums.iter().sum();
    sums.iter().map(|sum| sum / all).collect()
}

fn assert_sane(shares: &Shares) {
    for ((ratio, low), high) in shares.ratio.iter().zip(&shares.low).zip(&shares.high) {
        assert!(0.0 <= *low && low <= ratio && ratio <= high && *high <= 1.0);
    }
    let (low, high) = (
        shares.low.iter().sum::<f64>(),
        shares.high.iter().sum::<f64>(),
    );
    let all: f64 = shares.ratio.iter().sum();
    assert!(low <= 1.0 + 1e-9 && (high >= 1.0 - 1e-9 || all <= 0.0));
}

#[test]
fn bounds_cover_nine_times_out_of_ten_and_are_narrow_where_nothing_is_saturated() {
    // As in tests/guest/vm_hit_rate.rs: three classes on four tiers.
    let parts = [
        part(0, 2.0, 21),
        part(3, 2.0, 9),
        part(0, 0.5, 60),
        part(2, 0.5, 60),
        part(1, 0.1, 60),
        part(3, 0.1, 240),
    ];
    let truth = truth(&parts, 4, &[]);
    let (mut covered, mut all, mut width) = (0, 0, 0.0);
    for seed in 0..60 {
        let mut looks = Looks::new(seed);
        for _ in 0..5 {
            let shares = looks.epoch(&parts, &[limit(1000); 4]);
            assert_sane(&shares);
            for (tier, truth) in truth.iter().enumerate() {
                let (low, high) = (shares.low[tier], shares.high[tier]);
                covered += u32::from(low <= *truth && *truth <= high);
                width += high - low;
                all += 1;
            }
        }
    }
    let width = width / f64::from(all);
    println!("{covered} of {all}, {width:.3} wide on average");
    assert!(covered * 10 >= all * 9, "{covered} of {all}");
    assert!(width < 0.25, "{width}");
}

#[test]
fn what_is_saturated_is_missed_hardly_ever_or_as_often_as_can_be() {
    let parts = [
        part(0, 1e4, 20),
        part(1, 1.0, 100),
        part(0, 0.3, 50),
        part(1, 1e4, 4),
    ];
    let limits = [limit(100), limit(100)];
    let most = limits[0].most;
    for cpu in [0.0, 0.01, 0.2, 1.0] {
        for of_it in [0.0, 0.1, 0.5, 1.0] {
            let saturated = [most * cpu * of_it, most * cpu * (1.0 - of_it)];
            let truth = truth(&parts, 2, &saturated);
            let mut looks = Looks::new(7);
            (0..6).for_each(|_| assert_sane(&looks.epoch(&parts, &limits)));
            let shares = looks.epoch(&parts, &limits);
            for (tier, truth) in truth.iter().enumerate() {
                let (low, high) = (shares.low[tier], shares.high[tier]);
                assert!(low <= *truth && *truth <= high, "{low} {truth} {high}");
            }
        }
    }
}

#[test]
fn little_cpu_time_and_a_narrow_way_hold_saturated_memory_down() {
    let parts = [part(0, 1e4, 20), part(1, 1.0, 200)];
    let high = |limit: Limit| {
        let mut looks = Looks::new(1);
        (0..6).for_each(|_| drop(looks.epoch(&parts, &[limit; 2])));
        let shares = looks.epoch(&parts, &[limit; 2]);
        assert_sane(&shares);
        (shares.low[1], shares.high[0])
    };
    // 51,200 accesses of what is not saturated. In 20 us of CPU time 12,000 misses.
    let little = Limit::new(Nanos(20_000), Nanos(100), Nanos::from_secs(1), None);
    assert!((little.most - 12_000.0).abs() < 1e-6);
    // But what is seen in all windows, at the least.
    let (low, most) = high(little);
    assert!(low > 0.2 && most < 0.8, "{low} {most}");
    // 64 MB in a second are a million lines, and a quarter more.
    let narrow = Bandwidth::from_mb_per_s(64);
    let second = Nanos::from_secs(1);
    let narrow = Limit::new(second, Nanos(100), second, Some(narrow));
    assert!((narrow.most - 1.25e6).abs() < 1e-6);
    assert!(high(limit(1000)).1 > high(narrow).1);
}

#[test]
fn a_lone_saturated_sample_is_found_in_the_fourth_epoch() {
    let parts = [part(0, 1e4, 1), part(1, 0.5, 200)];
    let mut looks = Looks::new(3);
    let highs: Vec<bool> = (0..5)
        .map(|_| looks.epoch(&parts, &[limit(1000); 2]).high[0] > 0.9)
        .collect();
    assert_eq!(highs, [false, false, false, true, true]);
    // Windows that changed begin anew.
    looks.saturation.forget();
    assert!(looks.epoch(&parts, &[limit(1000); 2]).high[0] < 0.9);
}

#[test]
fn without_any_memory_or_access_nothing_is_claimed() {
    let none = shares(&Strata::new(2), &Saturation::default(), &[]);
    assert_eq!((none.low, none.high), (vec![0.0; 2], vec![0.0; 2]));
    let mut looks = Looks::new(1);
    let idle = looks.epoch(&[part(1, 0.0, 9)], &[limit(1); 2]);
    assert_eq!(idle.ratio, [0.0, 0.0]);
    assert_eq!((idle.low[1], idle.high[1]), (0.0, 1.0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_estimate_is_between_bounds_that_fit_together(
        seed: u64, cpu in 0_u64..10_000, bandwidth in 0_u64..1_000_000,
        parts in proptest::collection::vec((0_usize..3, -3.0_f64..5.0, 0_u64..40), 0..8),
    ) {
        let parts: Vec<Part> = parts
            .into_iter()
            .map(|(tier, level, regions)| part(tier, 10_f64.powf(level), regions))
            .collect();
        let second = Nanos::from_secs(1);
        let way = Some(Bandwidth::from_mb_per_s(bandwidth)).filter(|b| b.0 > 0);
        let limit = Limit::new(Nanos::from_millis(cpu), Nanos(100), second, way);
        let mut looks = Looks::new(seed);
        for _ in 0..4 {
            let shares = looks.epoch(&parts, &[limit; 3]);
            assert_sane(&shares);
            prop_assert!(shares.ratio.len() == 3 && shares.low.len() == 3);
        }
    }

    /// Rates that windows tell apart: what the CPU could do says nothing of them.
    #[test]
    fn cpu_time_matters_only_where_something_is_saturated(
        seed: u64, cpu in 0_u64..10_000, saturated: bool,
    ) {
        let mut parts = vec![part(0, 1.0, 50), part(1, 0.2, 200)];
        parts.extend(saturated.then_some(part(0, 1e4, 30)));
        let of = |cpu| {
            let mut looks = Looks::new(seed);
            looks.epoch(&parts, &[limit(cpu); 2])
        };
        let (this, most) = (of(cpu), of(10_000));
        if !saturated {
            prop_assert_eq!(&this, &most);
        }
        prop_assert!(this.high[0] <= most.high[0] + 1e-9);
        prop_assert!(this.low[1] >= most.low[1] - 1e-9);
    }
}
