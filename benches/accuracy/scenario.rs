//! Processes whose true access rate of every page is known at every moment.

use hmkeeper::tiering::rng::Rng;

/// Pages of each process: 4 GiB.
pub(crate) const PAGES: u64 = 1 << 20;
/// Seconds of an epoch, and its scans: HM-Keeper's.
pub(crate) const INTERVAL: f64 = 10.0;
pub(crate) const SCANS: u8 = 3;
/// Accesses per second of a hot page and of a cold one: seen in every scan, also
/// in DAMON's of 5 ms, and in one of thirty of ours.
const HOT: f64 = 2000.0;
const COLD: f64 = 0.01;
/// Accesses per second to what is cold but for strays: one in twenty seconds.
const STRAY: f64 = 0.05;
/// Share of the pages that is hot.
const SHARE: u64 = 10;

/// Accesses per second of a page in an epoch.
type Rate = Box<dyn Fn(u64, u64) -> f64>;

/// A process.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Epochs that it is watched.
    pub(crate) epochs: u64,
    /// The epoch in which its hot set jumps, if it does.
    pub(crate) jump: Option<u64>,
    /// Folios that its memory is made of, as log2 of their pages.
    pub(crate) order: u8,
    rate: Rate,
}

impl Scenario {
    /// Of a page; a folio is accessed as often as its busiest pages together,
    /// which here are alike.
    pub(crate) fn rate(&self, page: u64, epoch: u64) -> f64 {
        (self.rate)(page >> self.order << self.order, epoch)
    }

    /// Whether a page is hot: accessed at least twice per scan on average.
    pub(crate) fn is_hot(&self, page: u64, epoch: u64) -> bool {
        self.rate(page, epoch) * INTERVAL >= 2.0 * f64::from(SCANS)
    }
}

/// All of them.
pub(crate) fn all() -> Vec<Scenario> {
    let still = |name, rate: Rate| Scenario {
        name,
        epochs: 24,
        jump: None,
        order: 0,
        rate,
    };
    vec![
        still("contiguous", Box::new(|page, _| heat(page < PAGES / SHARE))),
        still("chunks-64", chunks(64, 1, |_| 0)),
        still("chunks-1000", chunks(1000, 1, |_| 0)),
        still("stray", stray(chunks(64, 1, |_| 0))),
        Scenario {
            jump: Some(16),
            epochs: 32,
            ..still("jump-64", chunks(64, 1, |epoch| epoch / 16))
        },
        Scenario {
            jump: Some(16),
            epochs: 32,
            order: 9,
            ..still("jump-64-thp", chunks(64, 512, |epoch| epoch / 16))
        },
        // Two sets in turns: the last time that one comes, it was seen before.
        Scenario {
            jump: Some(36),
            epochs: 48,
            ..still("in-turns", chunks(64, 1, |epoch| epoch / 12 % 2))
        },
        // One huge page in ten, each alone, among strays.
        Scenario {
            jump: Some(16),
            epochs: 32,
            order: 9,
            ..still("stray-thp", stray(chunks(208, 512, |epoch| epoch / 16)))
        },
        still(
            "growing",
            // From a twentieth to a fifth of the memory, and back.
            Box::new(|page, epoch| {
                let step = epoch.min(24 - epoch.min(24)).min(12);
                heat(page < PAGES / 20 + step * PAGES / 80)
            }),
        ),
        still(
            "sweep",
            // A window of a tenth goes over everything, a twentieth per epoch.
            Box::new(|page, epoch| {
                let at = epoch * PAGES / 20 % PAGES;
                heat((page + PAGES - at) % PAGES < PAGES / SHARE)
            }),
        ),
        still("zipf", zipf()),
        still("sparse", Box::new(|page, _| heat(page / 64 % 10 == 0))),
        // Chunks of the same size that begin at any page.
        still("sparse-any", chunks(1632, 1, |_| 0)),
    ]
}

/// Blocks of 1 MiB in any order, the one of rank r accessed 20 / r times a
/// second: 33 of 4096 are hot.
fn zipf() -> Rate {
    const BLOCK: u64 = 256;
    let mut ranks: Vec<u64> = (1..=PAGES / BLOCK).collect();
    let mut rng = Rng::new(5);
    for i in (1..ranks.len()).rev() {
        let other = usize::try_from(rng.below(i as u64 + 1)).unwrap_or(0);
        ranks.swap(i, other);
    }
    Box::new(move |page, _| {
        let block = usize::try_from(page / BLOCK).unwrap_or(0);
        20.0 / ranks[block.min(ranks.len() - 1)] as f64
    })
}

/// The same, but what is cold is touched now and then: by a garbage collector, say.
fn stray(rate: Rate) -> Rate {
    Box::new(move |page, epoch| rate(page, epoch).max(STRAY))
}

fn heat(hot: bool) -> f64 {
    if hot { HOT } else { COLD }
}

/// `count` chunks, aligned to `align` pages, that are a tenth of all pages
/// together, drawn anew for each phase.
fn chunks(count: u64, align: u64, phase: impl Fn(u64) -> u64 + 'static) -> Rate {
    let slot = PAGES / count;
    let length = (slot / SHARE).next_multiple_of(align);
    let sets: Vec<Vec<u64>> = (0..4)
        .map(|phase| {
            let mut rng = Rng::new(phase + 7);
            let draw = |i| i * slot + rng.below((slot - length) / align) * align;
            (0..count).map(draw).collect()
        })
        .collect();
    Box::new(move |page, epoch| {
        let set = &sets[usize::try_from(phase(epoch)).unwrap_or(0) % sets.len()];
        let start = set[usize::try_from(page / slot).unwrap_or(0).min(set.len() - 1)];
        heat((start..start + length).contains(&page))
    })
}
