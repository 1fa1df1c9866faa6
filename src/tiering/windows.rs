//! How long each scan of an epoch waits for accesses, and what rate of accesses a
//! count of scans stands for.
//!
//! **Unit.** Windows are shares of an epoch. Rates are accesses of a page per epoch.
//!
//! **Problem.** An accessed bit tells at least one access from none. HM-Keeper
//! spreads its scans evenly and lets each wait until the next (§1.2): with 10 s and
//! three scans, whatever is touched every other second or more often counts alike,
//! and stray accesses, one in twenty seconds, show in every sixth look.
//!
//! **Approach.** The windows fill the epoch, but each is shorter than the one before,
//! the first one *span* times as long as the last. A page that is touched all the time is
//! seen in all of them, one that is touched now and then in the long ones only: the
//! count grows with the logarithm of the rate. Looks cost the same. [`Rates`] turns a
//! count back into the rate of a Poisson process that has it on average.
//!
//! Where more is seen in all windows than the fastest memory holds, it cannot be told what
//! of it belongs there: the span widens ([`Span`]) until the last window is the shortest that
//! the sampler can keep ([`AccessSampler::shortest`]), and narrows again when less is seen in all. What was counted under one
//! span is restated under the other.
//!
//! **Limits.** Looks of different windows cannot be compared one by one: where each
//! scan looks at pages of its own ([`looks`](super::looks)), windows are equal. A mean
//! count over pages of different rates stands for less than their mean rate. A
//! window misses what the CPU's TLB still holds, the shorter the more, so that the hottest may seem
//! less hot than it is. That is no more memory than a TLB reaches, and spans are wide only where more
//! is touched all the time than the fastest memory holds.
//!
//! **Properties** (proptest below): the windows fill the epoch and never grow; the
//! rate grows with the count; a count restated and restated again is what it was, as far as
//! both spans can tell.
//!
//! [`AccessSampler::shortest`]: crate::ports::AccessSampler::shortest

use super::settings::{LookRule, WindowRule};
use crate::units::{Bytes, Nanos};

/// How many times as long as the last window the first one is, where all can be told. On
/// the model, of 1, 4, 16 and 64, the one with which hot is told from warm best.
pub const SPAN: f64 = 16.0;
/// By how much the span widens and narrows at once.
const STEP: f64 = 4.0;
/// Shares of the fastest memory: it widens when more than this is seen in all windows, and
/// narrows when in narrower ones it would be less than that.
const WIDEN: f64 = 0.75;
const NARROW: f64 = 0.5;
/// The shortest window of a sampler that marks all of its samples before it looks at the first:
/// in about so long a thousand are marked.
pub const SHORTEST_AT_ONCE: Nanos = Nanos::from_millis(20);
/// The shortest of one that marks and looks at a few at a time. In a shorter one the sleep
/// between is no longer as long as it is meant to be.
pub const SHORTEST: Nanos = Nanos(500_000);
/// Looks that being seen in all windows is worth beyond their number: of three windows
/// what is touched once per epoch or less has all three by chance 5 times less often than
/// of equal ones (the product of their shares is 0.007 in place of 0.037), which at the
/// rates that matter is one look.
pub const FULL_COUNTS_MORE: f64 = 1.0;
/// Counts are told apart in so many steps.
const STEPS: usize = 256;
/// A count this near to all scans may be any rate above.
const FULL: f64 = 0.05;
/// A region whose mean count is this near to all scans is seen in all of them.
const FULL_FROM: f64 = 0.25;

/// The share of the epoch that scan number `scan` of `scans` waits.
pub fn share(span: f64, scans: u8, scan: u8) -> f64 {
    let last = f64::from(scans.max(2) - 1);
    let weight = |scan: u8| span.powf(-f64::from(scan) / last);
    weight(scan) / (0..scans.max(1)).map(weight).sum::<f64>()
}

/// How long scan number `scan` of `scans` waits in an epoch of such a length.
pub fn length(span: f64, epoch: Nanos, scans: u8, scan: u8) -> Nanos {
    Nanos::from_secs_f64(epoch.as_secs_f64() * share(span, scans, scan))
}

/// The span that is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    now: f64,
    least: f64,
}

impl Span {
    /// What the rule begins with.
    pub fn new(rule: WindowRule) -> Self {
        let least = match rule {
            WindowRule::Equal => 1.0,
            WindowRule::Tapered => SPAN,
        };
        Self { now: least, least }
    }

    /// How many times as long as the last window the first one is.
    pub fn get(self) -> f64 {
        self.now
    }

    /// Whether the last window of an `epoch` is not too short for the least span.
    pub fn fits_in(self, epoch: &Windowed) -> bool {
        epoch.fits(self.least)
    }

    /// The same one step wider and one step narrower, if there is such a one in such epochs.
    fn beside(self, epoch: &Windowed) -> (Option<f64>, Option<f64>) {
        if self.least <= 1.0 || epoch.scans < 2 {
            return (None, None);
        }
        (
            Some(self.now * STEP).filter(|&span| epoch.fits(span)),
            Some(self.now / STEP).filter(|&span| span >= self.least),
        )
    }

    /// Follows what is seen: `above(rate)` are bytes that are accessed more often than
    /// that per epoch, `fastest` those that the fastest memory holds. Returns whether it
    /// changed.
    pub fn follow(
        &mut self,
        epoch: &Windowed,
        fastest: Bytes,
        above: impl Fn(f64) -> Bytes,
    ) -> bool {
        let scans = epoch.scans;
        // Of what is seen in all windows both rules that taper them say the same.
        let rule = LookRule::Repeated;
        let full = |span| rate_of(&shares(span, scans), rule, f64::from(scans) - FULL_FROM);
        // Epochs may have become shorter since, or the sampler slower.
        let before = self.now;
        while self.now > self.least && !epoch.fits(self.now) {
            self.now = (self.now / STEP).max(self.least);
        }
        if self.now < before {
            return true;
        }
        let (wider, narrower) = self.beside(epoch);
        let most = fastest.as_f64();
        if above(full(self.now)).as_f64() > WIDEN * most {
            if let Some(wider) = wider.filter(|_| most > 0.0) {
                self.now = wider;
                return true;
            }
        } else if let Some(narrower) = narrower
            && above(full(narrower)).as_f64() < NARROW * most
        {
            self.now = narrower;
            return true;
        }
        false
    }
}

/// An epoch that is cut into windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windowed {
    /// How long it is.
    pub interval: Nanos,
    /// How many windows it has.
    pub scans: u8,
    /// How long each of them has to be at least.
    pub shortest: Nanos,
}

impl Windowed {
    /// Whether the last window of such a span is one that can be kept.
    fn fits(&self, span: f64) -> bool {
        length(
            span,
            self.interval,
            self.scans,
            self.scans.saturating_sub(1),
        ) >= self.shortest
    }
}

/// Whether what a scan saw is to be believed.
///
/// A guest that was paused, a machine that slept or where others had the CPU makes a
/// scan wait much longer than meant, and then what is hardly ever touched is seen, too.
/// Where that is how it always is, it must do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lateness {
    /// A bit for each scan of an epoch: whether it was late the last time.
    was_late: u32,
}

impl Lateness {
    /// Of scan number `scan`, up to 31, that waited for `waited` where its window is
    /// `window` long, in an epoch of `epoch`: not if that is more than twice as long, and
    /// by more than a sixteenth of the epoch, unless it was late in the last one as well.
    pub fn believes(&mut self, scan: u8, waited: Nanos, window: Nanos, epoch: Nanos) -> bool {
        let late = waited.saturating_sub(window);
        let is_late = late > window && late.0 > epoch.0 / 16;
        let bit = 1_u32.checked_shl(scan.into()).unwrap_or(0);
        let believed = !is_late || self.was_late & bit != 0;
        self.was_late = self.was_late & !bit | if is_late { bit } else { 0 };
        believed
    }
}

/// How much of an epoch is seen by the last scans of it, however many.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coverage([f32; SCANS_MOST]);

/// Scans of an epoch that may be configured.
const SCANS_MOST: usize = 20;

impl Coverage {
    /// As if each number of scans saw all of it.
    pub const WHOLE: Self = Self([1.0; SCANS_MOST]);

    /// Of so many scans.
    #[allow(clippy::cast_possible_truncation)]
    pub fn new(span: f64, scans: u8) -> Self {
        let mut this = Self::WHOLE;
        let mut sum = 0.0;
        for (known, scan) in (0..scans.max(1)).rev().enumerate() {
            sum += share(span, scans, scan);
            if let Some(covered) = this.0.get_mut(known) {
                *covered = sum as f32;
            }
        }
        this
    }

    /// The share of the epoch that the last `known` scans wait; 1 for all of them.
    pub fn of(&self, known: u8) -> f32 {
        let at = usize::from(known.max(1)) - 1;
        self.0.get(at).copied().unwrap_or(1.0)
    }
}

/// The rates that counts of scans stand for.
#[derive(Clone, Debug)]
pub struct Rates {
    scans: f64,
    /// Of the epoch that each scan waits.
    shares: Vec<f64>,
    rule: LookRule,
    /// At equal steps of the count, from none to all.
    table: Vec<f64>,
}

impl Rates {
    /// Of so many scans that choose by this rule what to look at.
    pub fn new(span: f64, scans: u8, rule: LookRule) -> Self {
        let scans = scans.max(1);
        let shares = shares(span, scans);
        let all = f64::from(scans);
        let table = (0..=STEPS)
            .map(|step| rate_of(&shares, rule, all * step as f64 / STEPS as f64))
            .collect();
        Self {
            scans: all,
            shares,
            rule,
            table,
        }
    }

    /// The count that a page has on average that is accessed so often per epoch.
    pub fn count(&self, rate: f64) -> f64 {
        expected(&self.shares, self.rule, rate)
    }

    /// Accesses per epoch of a page that is seen in `count` scans on average.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn of(&self, count: f64) -> f64 {
        let at = (count / self.scans).clamp(0.0, 1.0) * STEPS as f64;
        // At most STEPS, and the cast of NaN is 0.
        let below = (at as usize).min(STEPS - 1);
        let (low, high) = (self.table[below], self.table[below + 1]);
        low + (high - low) * (at - below as f64)
    }
}

/// The shares of the epoch that all of so many scans wait.
fn shares(span: f64, scans: u8) -> Vec<f64> {
    (0..scans.max(1)).map(|n| share(span, scans, n)).collect()
}

/// The rate at which `count` scans see an access on average; of nearly all or more, as
/// of nearly all.
fn rate_of(shares: &[f64], rule: LookRule, count: f64) -> f64 {
    if count <= 0.0 {
        return 0.0;
    }
    let count = count.min(shares.len() as f64 - FULL);
    // Of a function that grows: by halves.
    let (mut low, mut high) = (0.0, 1.0);
    while expected(shares, rule, high) < count {
        high *= 2.0;
    }
    for _ in 0..40 {
        let middle = f64::midpoint(low, high);
        if expected(shares, rule, middle) < count {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// In how many scans a page is seen on average that is accessed so often per epoch.
fn expected(shares: &[f64], rule: LookRule, rate: f64) -> f64 {
    let seen = |share: &f64| 1.0 - (-rate * share).exp();
    match (rule, shares) {
        // What the first scan finds idle is held to be idle in all.
        (LookRule::Sequential, [first, rest @ ..]) => {
            seen(first) * (1.0 + rest.iter().map(seen).sum::<f64>())
        }
        _ => shares.iter().map(seen).sum(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SPANS: [f64; 4] = [1.0, SPAN, 64.0, 256.0];
    const RULES: [LookRule; 2] = [LookRule::Repeated, LookRule::Sequential];

    #[test]
    fn a_rate_is_found_again_in_the_count_that_it_brings() {
        for (span, rule) in SPANS.into_iter().flat_map(|s| RULES.map(|rule| (s, rule))) {
            let rates = Rates::new(span, 3, rule);
            for rate in [0.03, 0.3, 1.0, 3.0, 6.0, 10.0] {
                let seen = |scan| 1.0 - f64::exp(-rate * share(span, 3, scan));
                let count = match rule {
                    LookRule::Sequential => seen(0) * (1.0 + seen(1) + seen(2)),
                    _ => (0..3).map(seen).sum(),
                };
                let found = rates.of(count);
                assert!((found / rate - 1.0).abs() < 0.05, "{span}: {rate} {found}");
            }
            assert!(rates.of(0.0) <= 0.0);
        }
    }

    #[test]
    fn tapered_windows_tell_high_rates_apart() {
        for rule in RULES {
            let top = |span| Rates::new(span, 3, rule).of(3.0);
            assert!(top(1.0) < 16.0);
            assert!(top(SPAN) > 50.0);
            assert!(top(16.0 * SPAN) > 500.0);
        }
    }

    #[test]
    fn the_span_follows_what_is_seen_in_all_windows() {
        let mut span = Span::new(WindowRule::Tapered);
        let of = |seconds| Windowed {
            interval: Nanos::from_secs(seconds),
            scans: 3,
            shortest: SHORTEST_AT_ONCE,
        };
        let fastest = Bytes(100);
        // Much that is accessed a thousand times per epoch, and as much hundreds of times.
        let above = |rate: f64| match rate {
            rate if rate < 200.0 => Bytes(160),
            rate if rate < 1000.0 => Bytes(60),
            _ => Bytes(0),
        };
        let mut spans = Vec::new();
        while span.follow(&of(10), fastest, above) {
            spans.push(span.get());
        }
        assert_eq!(spans, [64.0, 256.0]);
        // Of epochs that are shorter it cannot be as wide.
        let mut short = Span::new(WindowRule::Tapered);
        while short.follow(&of(2), fastest, |_| Bytes(160)) {}
        assert!((short.get() - 64.0).abs() < 1e-9);
        // Nor does it stay so when they become shorter.
        let mut shrunk = span;
        while shrunk.follow(&of(2), fastest, above) {}
        assert!((shrunk.get() - 64.0).abs() < 1e-9);
        let none = |_| Bytes(1);
        while span.follow(&of(10), fastest, none) {}
        assert!((span.get() - SPAN).abs() < 1e-9);
        let mut equal = Span::new(WindowRule::Equal);
        assert!(!equal.follow(&of(10), fastest, |_| Bytes(160)));
    }

    #[test]
    fn the_span_is_as_wide_as_the_sampler_can_keep() {
        let of = |shortest| Windowed {
            interval: Nanos::from_secs(10),
            scans: 3,
            shortest,
        };
        let (fastest, all) = (Bytes(100), |_: f64| Bytes(160));
        let mut span = Span::new(WindowRule::Tapered);
        while span.follow(&of(SHORTEST), fastest, all) {}
        assert!((span.get() - 16384.0).abs() < 1e-9, "{}", span.get());
        assert!(length(span.get(), Nanos::from_secs(10), 3, 2) >= SHORTEST);
        // The machine has become busy.
        assert!(span.follow(&of(SHORTEST_AT_ONCE), fastest, all));
        assert!((span.get() - 256.0).abs() < 1e-9, "{}", span.get());
    }

    #[test]
    fn what_is_late_once_is_not_believed_and_what_always_is_must_do() {
        let mut lateness = Lateness::default();
        let mut of = |scan, waited, window| {
            let secs = Nanos::from_secs;
            lateness.believes(scan, secs(waited), secs(window), secs(30))
        };
        let believed: Vec<bool> = [10, 19, 60, 10, 60, 60, 60, 20, 60]
            .map(|waited| of(0, waited, 10))
            .into();
        let want = [true, true, false, true, false, true, true, true, false];
        assert_eq!(believed, want);
        // Each scan of an epoch by itself.
        assert!(!of(2, 5, 1));
        assert!(of(0, 60, 10) && of(1, 10, 10) && of(2, 5, 1));
        // A short window may be longer by what is little of the epoch.
        assert!(of(3, 2, 1) && !of(3, 3, 1));
    }

    proptest! {
        #[test]
        fn windows_fill_the_epoch_and_never_grow(millis in 1_000_u64..1_000_000, scans in 1_u8..20) {
            let epoch = Nanos::from_millis(millis);
            for span in SPANS {
                let windows: Vec<Nanos> =
                    (0..scans).map(|scan| length(span, epoch, scans, scan)).collect();
                let all: Nanos = windows.iter().copied().sum();
                prop_assert!(all.0.abs_diff(epoch.0) <= u64::from(scans), "{all:?} of {epoch:?}");
                prop_assert!(windows.windows(2).all(|w| w[1] <= w[0]));
            }
        }

        #[test]
        fn the_rate_grows_with_the_count(scans in 1_u8..20, low in 0.0_f64..1.0, high in 0.0_f64..1.0) {
            let (low, high) = (low.min(high), low.max(high));
            for span in SPANS {
                let rates = Rates::new(span, scans, LookRule::Sequential);
                let of = |share| rates.of(share * f64::from(scans));
                prop_assert!(of(low) <= of(high));
                prop_assert!(of(high).is_finite() && of(low) >= 0.0);
            }
        }

        #[test]
        fn a_count_survives_being_restated(count in 0.0_f64..2.8) {
            for span in SPANS {
                let of = |span| Rates::new(span, 3, LookRule::Sequential);
                let (here, wider) = (of(span), of(4.0 * span));
                let there = wider.count(here.of(count));
                prop_assert!((0.0..=3.0).contains(&there));
                let back = here.count(wider.of(there));
                prop_assert!((back - count).abs() < 0.06, "{count}: {there}, {back}");
            }
        }
    }
}
