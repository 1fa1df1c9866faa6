//! Between which bounds the share of a target's accesses lies that each tier serves.
//!
//! **Unit.** Accesses that go to memory in the epochs that are added up: misses of the CPU's caches.
//!
//! **Problem.** An estimate of shares ([`Estimates`](super::estimates::Estimates)) is off for two
//! reasons. Few samples stand for much memory. And accessed bits saturate: what is seen in all
//! windows is accessed as often as fills the shortest one, or ten thousand times as often; and
//! what is accessed all the time may be what the caches hold, and hardly ever missed.
//!
//! **Approach.** Memory is taken in *strata*: by tier, and by the class of hotness that its region
//! was in before this epoch, so that no sample chooses its own stratum. What a stratum's samples
//! stand for has a variance, and what rests on few of them counts as it does in any stratified
//! sample: `Σ variance × pages² / samples`, with one access more in one sample more, since
//! of few that saw nothing little is certain. Where there are too few in a stratum, that of its
//! class in all tiers is taken, and with too few there, the square of the mean. How far a count's
//! number is off on average, whatever the rate, is known ([`Reading::doubt`]), and [`UNEVEN`]
//! is added for where samples lie.
//!
//! Counts that are *full* are not all saturated: what is accessed ten times per epoch has
//! one now and then, and one short of it more often. So full counts beyond those that the ones
//! one short explain are held to be saturated, if they are more than chance brings in the latest
//! epochs together ([`Saturation`]); and then what is one short of it as well, for in a short
//! window a target may not have run, or the TLB held the page. In this part of a tier's memory misses are anything from
//! none to what is possible at most ([`Limit`]): the target's CPU time, divided by the latency of
//! that memory with as many misses under way as a core can have, and the bandwidth of the way
//! there.
//!
//! A share is lowest where all of the tier's own saturated memory is found in the caches and
//! others' is missed as often as can be, and highest the other way round. Sampling's error is
//! added at each of these two.
//!
//! **Limits.** What is not saturated is held to be missed each time, once per visit. Only memory
//! that may be moved is looked at.
//!
//! **Properties** (proptest below): bounds are from 0 to 1 and the estimate is between them, so
//! that lower ones sum to 1 at most and upper ones to 1 at least, if anything was accessed; where
//! nothing is saturated CPU time does not matter, and where something is, less of it never raises
//! the upper bound of its tier, nor lowers the lower one of another.

use serde::{Deserialize, Serialize};

use crate::units::{Bandwidth, Nanos};

/// Classes of hotness, by their upper ends as shares of the scans.
const CLASS_ENDS: [f64; 4] = [0.1, 0.35, 0.6, 0.8];
const CLASSES: usize = CLASS_ENDS.len() + 1;
/// So many standard errors on each side. Nine times out of ten would be 1.6 of a normal
/// distribution, were the variance known and samples drawn evenly. But it is an estimate of a few
/// skewed numbers, and samples go where edges are: beside the latency plugin 2 held 35 to 38 of 40.
const ERRORS: f64 = 2.5;
/// How far a tier's accesses may be off however many samples there are: they are not drawn
/// evenly, but where edges are looked for, and an edge between two of them is a guess. On the
/// model of tests/loop_on_sim.rs it is 3 to 18 % of a tier's.
const UNEVEN: f64 = 0.15;
/// Samples from which a variance can be told.
const ENOUGH: f64 = 3.0;
/// What an epoch's counts are worth in the next one.
const KEPT: f64 = 0.8;
/// So many standard errors more full counts than are explained are not chance: a lone
/// sample that is full all the time is beyond it in the fourth epoch.
const BEYOND_CHANCE: f64 = 1.7;
/// Bytes that a miss brings.
const LINE_BYTES: f64 = 64.0;
/// Misses that a CPU has under way at most: lines that the second-level cache of a core
/// waits for (48 in the largest of today's server cores, 16 to 32 in older ones).
const UNDER_WAY: f64 = 48.0;
/// What firmware says of latency and bandwidth is no better than that.
const SLACK: f64 = 1.25;

/// How near to all of the scans that could tell saw it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fullness {
    /// All of them.
    Full,
    /// One less; so many full counts go with one such at the highest rate that is told apart.
    Almost(f64),
    /// Fewer.
    Less,
}

/// What one sample stands for, per page of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Accesses per epoch.
    pub rate: f64,
    /// Those of the lowest count but none.
    pub least: f64,
    /// How far `rate` is off on average.
    pub doubt: f64,
    /// Whether it says how often, or only that it is often.
    pub fullness: Fullness,
}

/// The mean of some readings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mean {
    samples: f64,
    rate: f64,
    near_rate: f64,
    doubt: f64,
}

impl Mean {
    /// Adds one.
    pub fn add(&mut self, reading: &Reading) {
        self.samples += 1.0;
        self.rate += reading.rate;
        self.doubt += reading.doubt;
        if reading.fullness != Fullness::Less {
            self.near_rate += reading.rate;
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.samples <= 0.0
    }
}

/// What is known of the memory of one class on one tier.
#[derive(Clone, Copy, Debug, Default)]
struct Stratum {
    /// Samples of it, and sums over them: all, and of counts that are full or one short of it.
    samples: f64,
    rate: f64,
    square: f64,
    near_rate: f64,
    near_square: f64,
    least: f64,
    full: f64,
    /// Full counts that those one short of it explain.
    explained: f64,
    /// Accesses that go to it by the estimate, and those of counts near to full.
    accesses: f64,
    near_accesses: f64,
    doubt: f64,
    pages: f64,
    /// Σ pages² / samples.
    weight: f64,
}

impl Stratum {
    /// Adds the samples of another one.
    fn join(&mut self, other: &Self) {
        self.samples += other.samples;
        self.rate += other.rate;
        self.square += other.square;
        self.near_rate += other.near_rate;
        self.near_square += other.near_square;
        self.least += other.least;
    }

    /// Adds the samples and the memory of another one.
    fn join_all(&mut self, other: &Self) {
        self.join(other);
        self.full += other.full;
        self.explained += other.explained;
        self.accesses += other.accesses;
        self.near_accesses += other.near_accesses;
        self.doubt += other.doubt;
        self.pages += other.pages;
        self.weight += other.weight;
    }

    /// Of what single samples stand for, with so much of those near to full left out.
    fn variance(&self, left_out: f64) -> Option<f64> {
        if self.samples < ENOUGH {
            return None;
        }
        let least = self.least / self.samples;
        let mean = (self.rate - left_out * self.near_rate) / self.samples;
        let square = self.square - left_out * self.near_square;
        let spread = (square - self.samples * mean * mean).max(0.0) / (self.samples - 1.0);
        Some(spread + least * least / self.samples)
    }
}

/// One target's memory and its samples, by class and tier.
#[derive(Clone, Debug)]
pub struct Strata {
    tiers: usize,
    /// Class by class, in each the tiers.
    each: Vec<Stratum>,
    /// Of each tier.
    pages: Vec<f64>,
}

/// The class of a region that had such a mean count before this epoch.
pub fn class_of(count: f64, scans: u8) -> usize {
    let share = count / f64::from(scans.max(1));
    CLASS_ENDS.iter().take_while(|&&end| share >= end).count()
}

impl Strata {
    /// Nothing, on so many tiers.
    pub fn new(tiers: usize) -> Self {
        Self {
            tiers,
            each: vec![Stratum::default(); CLASSES * tiers],
            pages: vec![0.0; tiers],
        }
    }

    /// Adds what was seen in another epoch, of as many tiers.
    pub fn join(&mut self, other: &Self) {
        debug_assert_eq!(self.tiers, other.tiers);
        for (mine, theirs) in self.each.iter_mut().zip(&other.each) {
            mine.join_all(theirs);
        }
        for (mine, theirs) in self.pages.iter_mut().zip(&other.pages) {
            *mine += theirs;
        }
    }

    fn at(&mut self, class: usize, tier: usize) -> &mut Stratum {
        &mut self.each[class.min(CLASSES - 1) * self.tiers + tier]
    }

    /// A sample of memory of this class, on this tier.
    ///
    /// # Panics
    /// When there is no such tier.
    pub fn sample(&mut self, class: usize, tier: usize, reading: &Reading) {
        let stratum = self.at(class, tier);
        let square = reading.rate * reading.rate;
        stratum.samples += 1.0;
        stratum.rate += reading.rate;
        stratum.square += square;
        stratum.least += reading.least;
        match reading.fullness {
            Fullness::Full => stratum.full += 1.0,
            Fullness::Almost(explains) => stratum.explained += explains,
            Fullness::Less => return,
        }
        stratum.near_rate += reading.rate;
        stratum.near_square += square;
    }

    /// So many pages of this class on this tier are as these samples say.
    ///
    /// # Panics
    /// When there is no such tier.
    pub fn memory(&mut self, class: usize, tier: usize, pages: u64, as_in: &Mean) {
        let pages = pages as f64;
        self.pages[tier] += pages;
        let stratum = self.at(class, tier);
        let each = pages / as_in.samples.max(1.0);
        stratum.accesses += each * as_in.rate;
        stratum.near_accesses += each * as_in.near_rate;
        stratum.doubt += each * as_in.doubt;
        stratum.pages += pages;
        stratum.weight += pages * each;
    }
}

/// What of each stratum is saturated, by the latest epochs; older ones count less.
#[derive(Clone, Debug, Default)]
pub struct Saturation {
    each: Vec<Counts>,
}

/// Full counts, those that are explained, and by how many there were more than that: epoch by
/// epoch, since a target that did not run in the shortest window has none in all of one.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    full: f64,
    explained: f64,
    beyond: f64,
}

impl Counts {
    /// Which share of what is near to full is saturated.
    fn saturated(self) -> f64 {
        if self.beyond > BEYOND_CHANCE * (self.full + self.explained).sqrt() {
            (self.beyond / self.full).min(1.0)
        } else {
            0.0
        }
    }
}

impl Saturation {
    /// Windows are others now, and counts stand for something else.
    pub fn forget(&mut self) {
        self.each.clear();
    }

    /// Adds an epoch.
    pub fn learn(&mut self, strata: &Strata) {
        if self.each.len() != strata.each.len() {
            self.each.clear();
            self.each.resize(strata.each.len(), Counts::default());
        }
        for (counts, stratum) in self.each.iter_mut().zip(&strata.each) {
            let beyond = (stratum.full - stratum.explained).max(0.0);
            counts.full = KEPT * counts.full + stratum.full;
            counts.explained = KEPT * counts.explained + stratum.explained;
            counts.beyond = KEPT * counts.beyond + beyond;
        }
    }
}

/// Misses that a tier can serve at most.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limit {
    /// In the target's CPU time.
    by_cpu: f64,
    /// And over the way there.
    most: f64,
}

impl Limit {
    /// In so much CPU time at such a latency, in such a time, over a way of
    /// such a bandwidth where that is known.
    pub fn new(cpu: Nanos, latency: Nanos, elapsed: Nanos, way: Option<Bandwidth>) -> Self {
        let by_cpu = SLACK * UNDER_WAY * cpu.0 as f64 / latency.0.max(1) as f64;
        let by_way = way.map_or(f64::INFINITY, |way| {
            SLACK * way.over(elapsed).as_f64() / LINE_BYTES
        });
        Self {
            by_cpu,
            most: by_cpu.min(by_way),
        }
    }
}

/// Which share of a target's accesses each tier serves, by its place in the table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shares {
    /// The estimate; sums to 1, or all 0 if nothing was accessed.
    pub ratio: Vec<f64>,
    /// It is this at least.
    pub low: Vec<f64>,
    /// And this at most.
    pub high: Vec<f64>,
}

/// What is known of one tier's accesses.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// By the estimate.
    estimate: f64,
    /// Of that what is not saturated, its variance, and how far its numbers may be off.
    told: f64,
    variance: f64,
    doubt: f64,
    /// Beyond that, at most; and in the CPU time alone.
    beyond: f64,
    by_cpu: f64,
}

/// The shares with their bounds; `limits` are those of the tiers.
pub fn shares(strata: &Strata, saturation: &Saturation, limits: &[Limit]) -> Shares {
    let mut known = vec![Known::default(); strata.tiers];
    for class in 0..CLASSES {
        let mine = &strata.each[class * strata.tiers..(class + 1) * strata.tiers];
        let mut all = Stratum::default();
        for stratum in mine {
            all.join(stratum);
        }
        for (tier, (stratum, known)) in mine.iter().zip(&mut known).enumerate() {
            let counts = saturation.each.get(class * strata.tiers + tier);
            let left_out = counts.map_or(0.0, |counts| counts.saturated());
            let beyond = left_out * stratum.near_accesses;
            let told = stratum.accesses - beyond;
            known.estimate += stratum.accesses;
            known.told += told;
            if beyond > 0.0 {
                let limit = limits.get(tier).copied().unwrap_or_default();
                known.beyond = known.beyond.max(limit.most).max(beyond);
                known.by_cpu = limit.by_cpu.max(known.beyond);
            }
            if stratum.weight > 0.0 {
                let variance = stratum.variance(left_out).or(all.variance(left_out));
                let variance = variance.unwrap_or_else(|| {
                    (told / stratum.pages).powi(2) + (all.least / all.samples.max(1.0)).powi(2)
                });
                known.variance += variance * stratum.weight;
                let part = told / stratum.accesses.max(f64::MIN_POSITIVE);
                known.doubt += stratum.doubt * part.clamp(0.0, 1.0);
            }
        }
    }
    for known in &mut known {
        known.doubt += UNEVEN * known.told.max(0.0);
    }
    let sum = |of: fn(&Known) -> f64| known.iter().map(of).sum::<f64>();
    let (estimate, told) = (sum(|k| k.estimate), sum(|k| k.told));
    let (variance, doubt) = (sum(|k| k.variance), sum(|k| k.doubt * k.doubt));
    let mut shares = Shares::default();
    for (tier, mine) in known.iter().enumerate() {
        let ratio = if estimate > 0.0 {
            mine.estimate / estimate
        } else {
            0.0
        };
        let others = || known.iter().enumerate().filter(|(t, _)| *t != tier);
        // All of them together have no more CPU time than the target.
        let beyond: f64 = others().map(|(_, k)| k.beyond).sum();
        let by_cpu = others().map(|(_, k)| k.by_cpu).fold(0.0, f64::max);
        let beyond = beyond.min(by_cpu);
        // Half of the width that the errors of samples and of what counts stand for make
        // where this tier has such a share of so many accesses.
        let error = |share: f64, total: f64| {
            let of = |mine: f64, all: f64| {
                (1.0 - share).powi(2) * mine + share.powi(2) * (all - mine).max(0.0)
            };
            let random = ERRORS * ERRORS * of(mine.variance, variance);
            (random + of(mine.doubt * mine.doubt, doubt)).sqrt() / total
        };
        let at = |part: f64, total: f64, none: f64| {
            if total > 0.0 {
                let share = part / total;
                (share, error(share, total))
            } else {
                (none, 0.0)
            }
        };
        let (low, high) = if strata.pages[tier] > 0.0 {
            let (low, below) = at(mine.told, told + beyond, 0.0);
            let (high, above) = at(mine.told + mine.beyond, told + mine.beyond, 1.0);
            (low - below, high + above)
        } else {
            (0.0, 0.0)
        };
        shares.ratio.push(ratio);
        shares.low.push(low.clamp(0.0, 1.0).min(ratio));
        shares.high.push(high.clamp(0.0, 1.0).max(ratio));
    }
    shares
}

#[cfg(test)]
mod tests;
