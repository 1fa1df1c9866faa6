//! What people and machines see of the daemon.
//!
//! Everything is made from one value: the [`Snapshot`] that the loop publishes
//! after each epoch, on a `watch` channel. [`metrics`] renders it for
//! Prometheus, [`status`] for `hmkeeper status`, [`http`] serves both. None of
//! them keeps state of its own: what is not in the snapshot is not shown, and
//! the series of a target that is gone vanish with it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::ports::{FolioPace, OtherMover, SamplerKind};
use crate::tiering::report::{EpochReport, PauseReason};
use crate::tiering::tier::TierTable;
use crate::units::Nanos;

pub mod http;
pub mod log;
pub mod metrics;
pub mod status;
#[cfg(test)]
pub(crate) mod testing;
pub mod totals;

use totals::Totals;

/// Configuration reloads by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reloads {
    /// Applied.
    pub ok: u64,
    /// Refused; the old configuration stayed.
    pub failed: u64,
}

/// Epochs without a failure after which the last one is of the past, even where nobody has a sample.
const CALM: u32 = 3;

/// The daemon as it was after its last epoch.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When the daemon started.
    pub started: Instant,
    /// The sampler in use.
    pub sampler: SamplerKind,
    /// What its verdicts can and cannot tell.
    pub resolution: Arc<str>,
    /// The policy in use.
    pub policy: &'static str,
    /// The configured interval.
    pub interval: Nanos,
    /// The configured limit of what watching costs.
    pub overhead_limit: f64,
    /// The tiers of this machine.
    pub tiers: Arc<TierTable>,
    /// Names of configured targets, watched or not.
    pub configured: Vec<Arc<str>>,
    /// What holds whatever the last epoch says: the operator, a dry run, a
    /// machine with one tier.
    pub standing: Vec<PauseReason>,
    /// What keeps some of the machine from being used, each in one line.
    pub notes: Vec<String>,
    /// The last epoch; number 0 before the first.
    pub report: EpochReport,
    /// When it was taken in; `None` before the first.
    pub recorded: Option<Instant>,
    /// Why the loop could not observe of late; `None` where it could.
    pub trouble: Option<String>,
    /// Epochs since that without another failure.
    pub calm: u32,
    /// Who else moves pages on this machine.
    pub others: Vec<OtherMover>,
    /// Sums over all epochs.
    pub totals: Totals,
    /// What the mover has learnt of small folios and of huge ones.
    pub mover: Option<[FolioPace; 2]>,
    /// Configuration reloads.
    pub reloads: Reloads,
}

impl Snapshot {
    /// Before the first epoch.
    pub fn new(started: Instant, sampler: SamplerKind, tiers: Arc<TierTable>) -> Self {
        Self {
            started,
            sampler,
            resolution: "".into(),
            policy: "",
            interval: Nanos::ZERO,
            overhead_limit: 0.0,
            tiers,
            configured: Vec::new(),
            standing: Vec::new(),
            notes: Vec::new(),
            report: EpochReport::default(),
            recorded: None,
            trouble: None,
            calm: 0,
            others: Vec::new(),
            totals: Totals::default(),
            mover: None,
            reloads: Reloads::default(),
        }
    }

    /// What the mover has learnt, by the kind of folio, as labels say it.
    pub fn mover(&self) -> impl Iterator<Item = (&'static str, FolioPace)> {
        ["small", "huge"]
            .into_iter()
            .zip(self.mover.into_iter().flatten())
    }

    /// How long an epoch is now: as configured before there was one.
    pub fn epoch_interval(&self) -> Nanos {
        match self.report.interval {
            Nanos::ZERO => self.interval,
            interval => interval,
        }
    }

    /// Takes in the epoch that ended.
    pub fn record(&mut self, report: EpochReport) {
        self.totals.add(&report, &self.tiers);
        self.recorded = Some(Instant::now());
        self.calm = self.calm.saturating_add(1);
        // An epoch that follows a failure has nothing to watch yet, and says nothing of it.
        let is_watched = report.targets.iter().any(|t| t.samples > 0);
        if is_watched || report.targets.is_empty() || self.calm >= CALM {
            self.trouble = None;
        }
        self.report = report;
    }

    /// An epoch failed.
    pub fn fail(&mut self, why: String) {
        self.trouble = Some(why);
        self.calm = 0;
    }

    /// How old the last epoch's figures are so long after the start; `None` before the first.
    pub fn age(&self, uptime: Duration) -> Option<Duration> {
        let recorded = self.recorded?.saturating_duration_since(self.started);
        Some(uptime.saturating_sub(recorded))
    }

    /// Whether what is planned is carried out.
    pub fn carries_out(&self) -> bool {
        let paused = self.paused();
        !paused.contains(&PauseReason::Operator) && !paused.contains(&PauseReason::DryRun)
    }

    /// Why nothing is moved, for everybody or for one target: each reason
    /// once, in order.
    pub fn all_pauses(&self) -> Vec<PauseReason> {
        let mut reasons = self.paused();
        reasons.extend(self.report.targets.iter().filter_map(|t| t.paused));
        reasons.sort_unstable();
        reasons.dedup();
        reasons
    }

    /// Why nothing is moved, for everybody: each reason once, in order.
    pub fn paused(&self) -> Vec<PauseReason> {
        let mut reasons = self.standing.clone();
        reasons.extend(&self.report.paused);
        reasons.sort_unstable();
        reasons.dedup();
        reasons
    }
}
