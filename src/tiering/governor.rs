//! What watching may cost, and what that buys: samples, sweeps, and how long the
//! next epoch is.
//!
//! **Unit.** CPU nanoseconds of ours, against CPU nanoseconds of the targets.
//!
//! **Problem.** HM-Keeper, Eq. 8.1:
//! `num_ps = t_mi × overhead_limit / (one_scan_overhead × num_scans)` takes all
//! that profiling costs for the cost of its scans. But reading the mappings,
//! counting where pages are, deciding, and answering `status` and `/metrics`
//! cost too, and come in bursts; and a share of a target's CPU time that is
//! small enough is used up by them alone.
//!
//! **Approach.**
//! - The cost of a scan of a sample ([`Governor::scan_nanos`]), with what the
//!   target pays to set the bit again, the cost of counting a page, and all the
//!   rest are measured in every epoch, a scan also on pages of our own before the first
//!   ([`calibrate`](crate::ports::AccessSampler::calibrate)), and foreseen as the median
//!   of the last three, so that a burst is not taken for a habit. Of two prices of a scan the
//!   latter counts: pages of our own cost less than those of a program.
//! - What was spent beyond the limit is a debt, paid back a quarter in each
//!   epoch. What was left unspent is not saved up. So a burst costs the next
//!   epochs a few of their samples, and on average the limit holds. What is spent before
//!   pages were counted for the first time, with that, is no debt: what it costs was a guess,
//!   it is paid once, and it would cost the first epochs their samples, when nothing is known yet.
//! - When what an epoch costs however few pages it watches takes more than half
//!   of its allowance, or the rest does not buy [`FEW_SAMPLES`], the epoch is
//!   stretched, up to [`LONGEST_STRETCH`] times, but to no more than [`LONGEST_EPOCH`]:
//!   whoever reads `status` must know what is, not what was. An interval that is
//!   configured longer stays as it is.
//!
//! **Limits.** A tenth of the limit always goes to samples, or the cost of a scan
//! would never be measured again. What an epoch costs however few pages it
//! watches may exceed the limit all the same where even the longest stretch does
//! not pay for it: the allotment says so ([`Allotment::is_unpaid`]). A target that is idle counts as using a tenth of a CPU
//! ([`IDLE_LOAD`]), or it would never be seen to wake: at 5 % it costs 0.5 % of
//! one CPU. Watching is one thread, and never takes more than a quarter of a CPU
//! whatever the targets use.

use super::observation::EpochCost;
use crate::units::Nanos;

/// CPUs that an idle target counts as using.
pub const IDLE_LOAD: f64 = 0.1;
/// An epoch is at most so many times the configured interval.
pub const LONGEST_STRETCH: f64 = 16.0;
/// No epoch is stretched beyond this: a minute is what an operator waits for an answer, and
/// 0.3 s of a CPU is what an idle target pays for in it.
pub const LONGEST_EPOCH: Nanos = Nanos::from_secs(60);
/// Samples below which an epoch is rather stretched, if there are as many regions.
pub const FEW_SAMPLES: u64 = 128;

/// Share of the limit that is aimed at: what comes is never quite what was
/// foreseen, and the average should be below the limit, not around it.
pub const AIM: f64 = 0.95;

/// Cost of one scan of one sample until it is measured. High, so that the
/// first epoch errs on the cheap side: 25 µs is what an emulated machine
/// needs, a real one 1 to 2 µs.
const FIRST_GUESS: f64 = 30_000.0;
/// What few scans cost says little of what many will, since some of it is paid but
/// once: what is expected counts as so many scans.
const DOUBTED_SCANS: f64 = 300.0;
/// The first guess, behind which nothing was measured, counts as so many shared by the
/// scans that were, at most as [`DOUBTED_SCANS`]: 18 beside the 512 of a calibration.
const GUESSED_SCANS: f64 = 9_000.0;
/// Cost of counting one page until it is measured: 41 ns on a real machine.
const FIRST_GUESS_COUNTED: f64 = 100.0;
/// What the target pays for one accessed bit that it has to set again: tens
/// of ns on bare metal, 450 to 500 ns under shadow paging.
const BIT_SET_AGAIN: Nanos = Nanos(100);
/// What the target pays for a moved page of 4 KiB: flush, refault of the
/// translation, and now and then a wait for the migration entry.
const PAGE_MOVED: Nanos = Nanos(1_000);
/// Share of an allowance that always goes to samples.
const LEAST_SHARE: f64 = 0.1;
/// Shares of an allowance that counting where pages are may take: as long as
/// there are regions of which nothing is known, and after that, when only the
/// kernel and the target themselves could have moved them.
const COUNT_SHARE: f64 = 0.2;
const RECOUNT_SHARE: f64 = 0.05;
/// CPUs that watching may keep busy, however large its allowance: it is one
/// thread, and has to be done before the epoch is over.
const BUSIEST: f64 = 0.25;
/// Epochs in which a debt is paid back.
const PAID_BACK_IN: f64 = 4.0;
/// The largest debt, in allowances: what is beyond is forgiven.
const DEBT_MAX: f64 = 2.0;
/// A stretch changes only by more than this share of itself.
const STRETCH_STEP: f64 = 0.25;

/// What targets had to do again on our account in an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Again {
    /// Accessed bits set.
    pub accessed: u64,
    /// Pages of 4 KiB found elsewhere.
    pub moved: u64,
    /// Page table entries made writable.
    pub written: u64,
    /// What each of these faults takes.
    pub write_fault: Nanos,
}

impl Again {
    /// What they paid for it: a model, since nothing measures it from outside.
    pub fn cost(self) -> Nanos {
        let cost = |count: u64, each: Nanos| Nanos(count.saturating_mul(each.0));
        cost(self.accessed, BIT_SET_AGAIN)
            + cost(self.moved, PAGE_MOVED)
            + cost(self.written, self.write_fault)
    }
}

/// The last three of something that comes in bursts.
#[derive(Clone, Copy, Debug, Default)]
struct Habit {
    last: [f64; 3],
    seen: usize,
}

impl Habit {
    fn learn(&mut self, value: f64) {
        self.last[self.seen % 3] = value;
        self.seen += 1;
    }

    /// The median of three, what was not yet seen being zero: what happened once
    /// is no habit.
    fn usual(&self) -> f64 {
        let mut last = self.last;
        last.sort_by(f64::total_cmp);
        last[1]
    }

    /// The median of three; of fewer the least; of none nothing.
    fn known(&self) -> Option<f64> {
        let mut last = self.last;
        let known = &mut last[..self.seen.min(3)];
        known.sort_by(f64::total_cmp);
        known.get(known.len() / 3).copied()
    }

    /// The same where the first was a trial: of two the latter.
    fn since_trial(&self) -> Option<f64> {
        match self.seen {
            2 => Some(self.last[1]),
            _ => self.known(),
        }
    }
}

/// What all targets together are worth, and what may be asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// CPUs that the targets use, each at least [`IDLE_LOAD`].
    pub load: f64,
    /// Share of that which watching may cost.
    pub limit: f64,
    /// One epoch, unless it is stretched.
    pub interval: Nanos,
    /// Scans per epoch.
    pub scans: u8,
    /// Regions of all targets.
    pub regions: u64,
    /// Pages that they have mapped.
    pub pages: u64,
    /// Of these, in regions of which nothing is known yet.
    pub uncounted: u64,
}

/// What the next epoch may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allotment {
    /// Samples of all targets together (`num_ps` of Eq. 8.1), at least one.
    pub samples: u64,
    /// Pages whose place may be counted.
    pub sweep_pages: u64,
    /// How long it is.
    pub interval: Nanos,
    /// Whether the limit does not pay for what an epoch costs however few pages it watches,
    /// not even in one of this length.
    pub is_unpaid: bool,
}

/// Keeps what watching costs below its limit. See the module.
#[derive(Clone, Debug)]
pub struct Governor {
    /// Nanoseconds of a scan of a sample, and of counting a page.
    scan: Habit,
    count: Habit,
    /// Nanoseconds per epoch that are spent however few pages are watched.
    fixed: Habit,
    /// Nanoseconds per second of the rest of the process.
    running: Habit,
    debt: f64,
    stretch: f64,
}

impl Default for Governor {
    fn default() -> Self {
        Self {
            scan: Habit::default(),
            count: Habit::default(),
            fixed: Habit::default(),
            running: Habit::default(),
            debt: 0.0,
            stretch: 1.0,
        }
    }
}

impl Governor {
    /// CPU time of one scan of one sample (`one_scan_overhead`) with the
    /// target's part in it, never zero.
    pub fn scan_nanos(&self) -> f64 {
        self.scan.since_trial().unwrap_or(FIRST_GUESS).max(1.0)
    }

    /// Whether pages were counted yet: what is spent from then on is held to the limit.
    pub fn is_priced(&self) -> bool {
        self.count.known().is_some()
    }

    /// Learns what an epoch cost, ourselves and the targets. Moves are not watching.
    pub fn learn(&mut self, cost: &EpochCost, again: Again, terms: Terms) {
        let side = Again { moved: 0, ..again };
        let is_priced = self.is_priced();
        if cost.scanned > 0 {
            let side = Again { written: 0, ..side };
            let spent = cost.scanning + cost.kdamonds + side.cost();
            let doubted = match self.scan.known() {
                Some(_) => DOUBTED_SCANS,
                None => DOUBTED_SCANS.min(GUESSED_SCANS / cost.scanned as f64),
            };
            let expected = self.scan_nanos() * doubted;
            let scans = cost.scanned as f64 + doubted;
            self.scan.learn((spent.0 as f64 + expected) / scans);
        }
        if cost.swept > 0 {
            self.count.learn(cost.sweeping.0 as f64 / cost.swept as f64);
        }
        let elapsed = cost.elapsed.as_secs_f64();
        // One that was cut short, since somebody was attached, is no habit.
        if elapsed >= terms.interval.as_secs_f64() / 2.0 {
            let paid = cost.scanning + cost.sweeping + cost.forgetting;
            let fixed = cost.profiling.saturating_sub(paid);
            self.fixed.learn(fixed.0 as f64);
            self.running.learn(cost.other.0 as f64 / elapsed);
        }

        let spent = (cost.profiling + cost.kdamonds + cost.other + side.cost()).0 as f64;
        let allowed = |seconds: f64| terms.load * terms.limit * seconds * 1e9;
        let most = DEBT_MAX * allowed(elapsed.max(terms.interval.as_secs_f64()));
        if is_priced {
            self.debt = (self.debt + spent - allowed(elapsed)).clamp(0.0, most);
        }
    }

    /// How many times as long as meant an epoch has to be for what every epoch costs, and what its
    /// few samples do, to be paid for: 1 or less where that is so in one as long as meant.
    pub fn needed_stretch(&self, terms: Terms) -> f64 {
        let allowance = allowance(terms);
        let running = self.running.usual() * terms.interval.as_secs_f64();
        let fixed = self.fixed.usual();
        let few = FEW_SAMPLES.min(terms.regions) as f64 * self.sample_nanos(terms);
        let lasting = (allowance * (1.0 - RECOUNT_SHARE) - running).max(allowance * LEAST_SHARE);
        (2.0 * fixed / allowance).max((fixed + few) / lasting)
    }

    /// Of all scans of a sample.
    fn sample_nanos(&self, terms: Terms) -> f64 {
        self.scan_nanos() * f64::from(terms.scans.max(1))
    }

    /// What the next epoch may do.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn allot(&mut self, terms: Terms) -> Allotment {
        let seconds = terms.interval.as_secs_f64();
        let allowance = allowance(terms);
        let running = self.running.usual() * seconds;
        let per_sample = self.sample_nanos(terms);
        let fixed = self.fixed.usual();
        let longest = longest_stretch(terms.interval);
        let stretch = self.needed_stretch(terms).clamp(1.0, longest);
        let is_step = (stretch - self.stretch).abs() > STRETCH_STEP * self.stretch;
        if is_step || stretch <= 1.0 || stretch >= longest {
            self.stretch = stretch;
        }
        // The interval may have become longer by a reload.
        self.stretch = self.stretch.min(longest);
        if terms.load <= 0.0 {
            self.stretch = 1.0;
        }

        let whole = allowance * self.stretch;
        let counted = self.count.known().unwrap_or(FIRST_GUESS_COUNTED).max(1.0);
        let first = (terms.uncounted as f64).min(whole * COUNT_SHARE / counted);
        let sweep_pages = first.max(whole * RECOUNT_SHARE / counted);
        let sweep_pages = sweep_pages.min(terms.pages as f64);
        let left = whole
            - fixed
            - running * self.stretch
            - sweep_pages * counted
            - self.debt / PAID_BACK_IN;
        let samples = left.max(whole * LEAST_SHARE) / per_sample;
        // `as` saturates.
        Allotment {
            samples: (samples as u64).max(1),
            sweep_pages: (sweep_pages as u64).max(1),
            interval: Nanos::from_secs_f64(seconds * self.stretch),
            is_unpaid: terms.load > 0.0
                && fixed + running * self.stretch + whole * LEAST_SHARE > whole / AIM,
        }
    }
}

/// How many times as long as meant an epoch may be.
fn longest_stretch(interval: Nanos) -> f64 {
    let longest = LONGEST_EPOCH.as_secs_f64() / interval.as_secs_f64().max(1e-3);
    longest.clamp(1.0, LONGEST_STRETCH)
}

/// Nanoseconds that an epoch which is not stretched may take of us.
fn allowance(terms: Terms) -> f64 {
    // With nobody to watch there is somebody to wait for.
    let cpus = (terms.load.max(IDLE_LOAD) * terms.limit * AIM).min(BUSIEST);
    (cpus * terms.interval.as_secs_f64() * 1e9).max(1.0)
}

#[cfg(test)]
impl Terms {
    /// Of one busy CPU.
    pub(crate) const FOR_TESTS: Self = Self {
        load: 1.0,
        limit: 0.05,
        interval: Nanos::from_secs(10),
        scans: 3,
        regions: 100_000,
        pages: 1 << 20,
        uncounted: 0,
    };
}

#[cfg(test)]
mod tests;
