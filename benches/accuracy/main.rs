//! How well each profiler tells hot pages from cold ones, on processes whose
//! every page's access rate is known: `cargo bench --bench accuracy`.
//!
//! Prints a table, and writes every epoch's score to the file that is named by
//! `HMKEEPER_ACCURACY_JSON`, if any. Deterministic: the same on every machine.

mod profiler;
mod scenario;

use std::collections::BTreeMap;

use hmkeeper::tiering::rng::Rng;
use hmkeeper::tiering::settings::{LookRule, Placement, ProfilingSettings, SplitRule, WindowRule};
use hmkeeper::units::{Bytes, Nanos, PAGE_BYTES};
use profiler::{Belief, Bits, Damon, Fixed, Ours, Profiler};
use scenario::{PAGES, SCANS, Scenario};

/// Samples per epoch: 250 and 1000 per GiB. HM-Keeper's own budget gives it 87
/// on its machine of 1.5 TB (Eq. 8.1).
const BUDGETS: [u64; 2] = [1000, 4000];
/// Epochs at the end over which the steady state is taken.
const STEADY: usize = 6;
/// F1 from which on a jump is followed.
const FOLLOWED: f64 = 0.8;

/// One epoch's score.
#[derive(Clone, Copy, Debug, serde::Serialize)]
struct Score {
    precision: f64,
    recall: f64,
    f1: f64,
    regions: usize,
    checks: u64,
    /// How well the order of its heats is that of the rates (Spearman), of the
    /// last epoch.
    order: Option<f64>,
}

/// Ranks from 0, equals sharing their mean.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_unstable_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; values.len()];
    let mut first = 0;
    for equals in order.chunk_by(|&a, &b| values[a].total_cmp(&values[b]).is_eq()) {
        for &i in equals {
            ranks[i] = first as f64 + (equals.len() - 1) as f64 / 2.0;
        }
        first += equals.len();
    }
    ranks
}

/// Spearman's rank correlation of the belief with the true rates; none where
/// either is the same everywhere.
fn order(scenario: &Scenario, epoch: u64, belief: &[Belief]) -> Option<f64> {
    let heats: Vec<f64> = belief
        .iter()
        .flat_map(|b| (0..b.pages).map(|_| b.heat))
        .collect();
    let rates: Vec<f64> = (0..heats.len() as u64)
        .map(|page| scenario.rate(page, epoch))
        .collect();
    let (x, y) = (ranks(&heats), ranks(&rates));
    let mean = (x.len() as f64 - 1.0) / 2.0;
    let (mut xy, mut xx, mut yy) = (0.0, 0.0, 0.0);
    for (x, y) in x.iter().zip(&y) {
        let (x, y) = (x - mean, y - mean);
        xy += x * y;
        xx += x * x;
        yy += y * y;
    }
    (xx > 0.0 && yy > 0.0).then(|| xy / (xx * yy).sqrt())
}

fn score(scenario: &Scenario, epoch: u64, belief: &[Belief], threshold: f64, checks: u64) -> Score {
    let (mut hit, mut called, mut hot) = (0_u64, 0_u64, 0_u64);
    let mut page = 0;
    for stretch in belief {
        let is_called = stretch.heat >= threshold;
        for page in page..page + stretch.pages {
            let is_hot = scenario.is_hot(page, epoch);
            hot += u64::from(is_hot);
            called += u64::from(is_called);
            hit += u64::from(is_hot && is_called);
        }
        page += stretch.pages;
    }
    assert!(page <= PAGES, "{page} pages are more than there are");
    let share = |of: u64| if of == 0 { 0.0 } else { hit as f64 / of as f64 };
    let (precision, recall) = (share(called), share(hot));
    let sum = precision + recall;
    Score {
        precision,
        recall,
        f1: if sum > 0.0 {
            2.0 * precision * recall / sum
        } else {
            0.0
        },
        regions: belief.len(),
        checks,
        order: None,
    }
}

fn profilers(samples: u64, order: u8) -> Vec<Box<dyn Profiler>> {
    let checks = samples * u64::from(SCANS);
    let default = ProfilingSettings::default();
    let fresh = ProfilingSettings {
        looks: LookRule::Fresh,
        ..default
    };
    let repeated = ProfilingSettings {
        looks: LookRule::Repeated,
        ..default
    };
    let every = |seconds| ProfilingSettings {
        interval: Nanos::from_secs(seconds),
        ..default
    };
    let equal = ProfilingSettings {
        windows: WindowRule::Equal,
        ..default
    };
    let halves = ProfilingSettings {
        split: SplitRule::Halves,
        minimum_region: Bytes(PAGE_BYTES),
        ..equal
    };
    let ours = |name, profiling| -> Box<dyn Profiler> {
        Box::new(Ours::new(name, profiling, samples, order))
    };
    vec![
        ours("hmkeeper", default),
        ours("repeated-looks", repeated),
        ours("equal-windows", equal),
        ours("fresh-looks", fresh),
        ours("every-5s", every(5)),
        ours("every-20s", every(20)),
        ours("halves", halves),
        // HM-Keeper's ablations (§1.6), of its own rules.
        ours(
            "fixed-regions",
            ProfilingSettings {
                split: SplitRule::Fixed,
                ..equal
            },
        ),
        ours(
            "random-samples",
            ProfilingSettings {
                placement: Placement::Random,
                ..halves
            },
        ),
        ours(
            "no-control",
            ProfilingSettings {
                overhead_control: false,
                ..halves
            },
        ),
        Box::new(Damon::new("damon", 1000, Some(checks))),
        Box::new(Damon::new("damon-10000", 10_000, Some(checks))),
        Box::new(Damon::new("damon-default", 1000, None)),
        Box::new(Fixed::new("thermostat", samples)),
    ]
}

fn main() {
    // `cargo test --benches` runs it without: nothing to check there.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    let mut all = BTreeMap::new();
    for samples in BUDGETS {
        println!(
            "\n{samples} samples per epoch of {SCANS} scans, {} MiB",
            PAGES / 256
        );
        println!(
            "{:<14} {:<14} {:>6} {:>6} {:>6} {:>7} {:>7} {:>9} {:>9}",
            "scenario", "profiler", "F1", "prec", "recall", "order", "epochs", "regions", "checks"
        );
        for scenario in scenario::all() {
            for mut profiler in profilers(samples, scenario.order) {
                let scores = run(&scenario, &mut *profiler);
                print(&scenario, &profiler.name(), &scores);
                all.insert(
                    format!("{samples}/{}/{}", scenario.name, profiler.name()),
                    scores,
                );
            }
        }
    }
    if let Some(path) = std::env::var_os("HMKEEPER_ACCURACY_JSON") {
        let text = serde_json::to_string(&all).expect("numbers");
        std::fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
}

fn run(scenario: &Scenario, profiler: &mut dyn Profiler) -> Vec<Score> {
    let mut bits = Bits {
        scenario,
        epoch: 0,
        rng: Rng::new(11),
        checks: 0,
    };
    (0..scenario.epochs)
        .map(|epoch| {
            bits.epoch = epoch;
            bits.checks = 0;
            let belief = profiler.watch(&mut bits);
            let mut score = score(scenario, epoch, &belief, profiler.threshold(), bits.checks);
            if epoch + 1 == scenario.epochs {
                score.order = order(scenario, epoch, &belief);
            }
            score
        })
        .collect()
}

fn print(scenario: &Scenario, name: &str, scores: &[Score]) {
    let steady = &scores[scores.len().saturating_sub(STEADY)..];
    let mean = |of: fn(&Score) -> f64| steady.iter().map(of).sum::<f64>() / steady.len() as f64;
    let since = usize::try_from(scenario.jump.unwrap_or(0)).unwrap_or(0);
    let followed = scores[since..].iter().position(|s| s.f1 >= FOLLOWED);
    println!(
        "{:<14} {:<14} {:>6.3} {:>6.3} {:>6.3} {:>7} {:>7} {:>9} {:>9}",
        scenario.name,
        name,
        mean(|s| s.f1),
        mean(|s| s.precision),
        mean(|s| s.recall),
        steady[steady.len() - 1]
            .order
            .map_or_else(|| "-".to_owned(), |order| format!("{order:.3}")),
        followed.map_or_else(|| "-".to_owned(), |n| (n + 1).to_string()),
        steady[steady.len() - 1].regions,
        steady[steady.len() - 1].checks,
    );
}
