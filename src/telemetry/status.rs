//! What `hmkeeper status` shows: [`Status`], serialised for `--json` and the
//! control socket, and one screen of text.
//!
//! The JSON is stable: keys are added, never renamed or removed. Sizes are in
//! bytes, times in seconds, shares from 0 to 1; `docs/control.md` lists it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

mod explained;
mod text;
pub(super) use explained::{excluded, explained, held, paging_rests, unwatched};
pub use text::{WIDTH, counted};

use super::Snapshot;
use super::totals::{MoveTotals, Way, tier_name};
use crate::ports::OtherMover;
use crate::tiering::governor::IDLE_LOAD;
use crate::tiering::observation::{Exclusion, TargetKind};
use crate::tiering::pageout::PagingRest;
use crate::tiering::plan::{Direction, PageCounts, Reason};
use crate::tiering::report::{Flow, Hold, Overhead, PauseReason, TargetReport, Unwatched};
use crate::tiering::tier::Tier;
use crate::units::{Bytes, Pid, TierId};

/// The daemon at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The daemon's version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Since its start.
    pub uptime_seconds: f64,
    /// The sampler in use.
    pub sampler: String,
    /// What its verdicts can and cannot tell.
    #[serde(default)]
    pub sampler_resolution: String,
    /// The policy in use.
    pub policy: String,
    /// The configured interval.
    pub interval_seconds: f64,
    /// How long an epoch is now: longer where the overhead limit pays for less.
    #[serde(default)]
    pub epoch_seconds: f64,
    /// Whether even in so long an epoch what it costs whatever is watched exceeds the limit.
    #[serde(default)]
    pub over_limit: bool,
    /// Epochs so far.
    pub epoch: u64,
    /// How long ago the last one ended, of which all figures are; `null` before the first.
    #[serde(default)]
    pub data_age_seconds: Option<f64>,
    /// Why the loop could not observe of late, or null.
    #[serde(default)]
    pub trouble: Option<String>,
    /// Who else moves pages on this machine.
    #[serde(default)]
    pub other_movers: Vec<OtherMover>,
    /// Why nothing is moved, for everybody; empty when moving.
    pub paused: Vec<PauseReason>,
    /// What keeps some of the machine from being used, each in one line.
    #[serde(default)]
    pub notes: Vec<String>,
    /// The machine's tiers.
    pub tiers: Vec<TierStatus>,
    /// Page cache that made room.
    #[serde(default)]
    pub page_cache: CacheStatus,
    /// Nodes that nothing is promoted to for now, since others needed their memory.
    #[serde(default)]
    pub resting_nodes: Vec<u32>,
    /// Who is watched.
    pub targets: Vec<TargetStatus>,
    /// Configured targets without a process.
    pub absent: Vec<String>,
    /// What we cost.
    pub cost: CostStatus,
    /// How pages are moved, by kind; empty before the first epoch.
    #[serde(default)]
    pub mover: Vec<MoverStatus>,
    /// Configuration reloads.
    pub reloads: ReloadStatus,
}

/// Page cache that made room for what was promoted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheStatus {
    /// So much since the start.
    pub reclaimed_bytes: u64,
    /// Whether it does not for now: too much was read back, or too little given back.
    pub rests: bool,
}

/// A tier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TierStatus {
    /// Its name.
    pub name: String,
    /// Its nodes.
    pub nodes: Vec<u32>,
    /// All memory of its nodes.
    pub total_bytes: u64,
    /// Free of it.
    pub free_bytes: u64,
    /// Nanoseconds that a read takes now, which no cache holds, from that of its nodes that
    /// answers latest; `null` where none is asked.
    pub latency_ns: Option<u64>,
    /// The same of that node when idle.
    pub idle_latency_ns: Option<u64>,
}

/// A watched process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetStatus {
    /// Its name.
    pub name: String,
    /// Its process.
    pub pid: Pid,
    /// Processes that share it, seen through all of them; 0: it is one process.
    #[serde(default)]
    pub sharers: u32,
    /// How it is treated.
    pub kind: TargetKind,
    /// Tiers as its CPUs see them, fastest first; equals share a rank.
    pub ranking: Vec<Vec<String>>,
    /// Memory that may be moved.
    pub eligible_bytes: u64,
    /// Memory that may not, by why.
    pub excluded: Vec<ExcludedStatus>,
    /// What it has in memory, private and shared, without files.
    #[serde(default)]
    pub resident_bytes: u64,
    /// Of that, what is known to be in the regions in which it is watched.
    #[serde(default)]
    pub covered_bytes: u64,
    /// Why more than a tenth is not, if so.
    #[serde(default)]
    pub not_covered: Option<Unwatched>,
    /// Memory that may be moved but cannot be for now, by why; both kinds.
    #[serde(default)]
    pub held: Vec<HeldStatus>,
    /// The nodes that its cpuset allows; `None` when all are.
    #[serde(default)]
    pub allowed_nodes: Option<Vec<u32>>,
    /// Pages of 4 KiB that were to be moved since it is watched, by result.
    #[serde(default)]
    pub move_pages: PageCounts,
    /// Memory hot in at least half of the scans.
    pub hot_bytes: u64,
    /// Memory written in an epoch; `None` when that was never asked.
    pub written_bytes: Option<u64>,
    /// Regions in which it is watched.
    pub regions: u64,
    /// Pages watched in the last epoch.
    pub samples: u64,
    /// Of these, seen accessed.
    pub samples_accessed: u64,
    /// Of these, never known.
    pub samples_unknown: u64,
    /// Where it lies, and what serves its accesses.
    pub tiers: Vec<ShareStatus>,
    /// What was moved and why.
    pub moves: Vec<MoveStatus>,
    /// Promoted since it is watched.
    pub promoted_bytes: u64,
    /// Demoted since it is watched.
    pub demoted_bytes: u64,
    /// Paged out since it is watched.
    #[serde(default)]
    pub paged_out_bytes: u64,
    /// Why nothing of it is paged out, where that is wanted.
    #[serde(default)]
    pub page_out_rests: Option<PagingRest>,
    /// What we cost it, as the limit counts it: as shares of its CPU time, an idle one's a tenth
    /// of a CPU, averaged over some ten minutes.
    pub overhead: OverheadStatus,
    /// What we cost it in the last epoch alone, as shares of the CPU time that it used itself.
    #[serde(default)]
    pub overhead_last_epoch: OverheadStatus,
    /// Whether it is so idle that it counts as using a tenth of a CPU.
    #[serde(default)]
    pub idle: bool,
    /// How long before the last epoch's end the oldest of what `resident_bytes` adds up was counted.
    #[serde(default)]
    pub resident_age_seconds: f64,
    /// Why it alone is left alone.
    pub paused: Option<PauseReason>,
}

/// Memory that is never moved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExcludedStatus {
    /// Why.
    pub why: Exclusion,
    /// How much.
    pub bytes: u64,
}

/// Memory that cannot be moved for now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldStatus {
    /// Why.
    pub why: Hold,
    /// How much.
    pub bytes: u64,
}

/// One tier's part in a target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShareStatus {
    /// The tier.
    pub tier: String,
    /// Memory of the target there.
    pub resident_bytes: u64,
    /// It is so much more or less: what was not counted anew, and what is moved since.
    #[serde(default)]
    pub resident_error_bytes: u64,
    /// Estimated share of its accesses that the tier serves.
    pub access_ratio: f64,
    /// It is this at least, as far as can be told.
    #[serde(default)]
    pub access_ratio_low: f64,
    /// And this at most.
    #[serde(default = "all")]
    pub access_ratio_high: f64,
}

/// All of the accesses: what an older daemon, which tells no bounds, leaves possible.
fn all() -> f64 {
    1.0
}

/// One way that bytes went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MoveStatus {
    /// The tier they left.
    pub from: String,
    /// The tier they went to.
    pub to: String,
    /// Up or down in the target's view.
    pub direction: Direction,
    /// Why.
    pub reason: Reason,
    /// Planned at the end of the last epoch.
    pub planned_bytes: u64,
    /// Moved in the last epoch.
    pub last_bytes: u64,
    /// Moved since the target is watched.
    pub total_bytes: u64,
}

/// What we cost one target, as shares of CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OverheadStatus {
    /// Our profiling threads and kdamonds.
    pub profiling: f64,
    /// Our movers.
    pub migration: f64,
    /// Modelled: what the target itself pays.
    pub target: f64,
    /// All of it; without migration it is held to the limit.
    pub total: f64,
}

/// What we cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CostStatus {
    /// The configured limit of a target's `overhead` without migration.
    pub limit: f64,
    /// Our CPU time over the time since the start, in CPUs.
    pub cpus: f64,
    /// CPU time of scanning, reading maps, deciding.
    pub profiling_seconds: f64,
    /// CPU time of our kdamonds.
    pub kdamonds_seconds: f64,
    /// CPU time of movers.
    pub migration_seconds: f64,
    /// CPU time of all else.
    pub other_seconds: f64,
    /// The longest system call that moved pages.
    pub longest_move_call_seconds: f64,
    /// Share of the CPU time of moving that nobody else would use, of late.
    #[serde(default)]
    pub spare: f64,
}

/// How folios of one kind are moved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MoverStatus {
    /// `small` (below 256 KiB) or `huge`.
    pub pages: String,
    /// Threads that move them.
    pub threads: u64,
    /// CPU time of a system call, whatever it moves, in seconds.
    pub call_seconds: f64,
    /// CPU time of each folio that it moves, in seconds.
    pub folio_seconds: f64,
}

/// Configuration reloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadStatus {
    /// Applied.
    pub ok: u64,
    /// Refused.
    pub failed: u64,
}

impl Status {
    /// What `snapshot` says, `uptime` after the start.
    pub fn new(snapshot: &Snapshot, uptime: Duration) -> Self {
        let report = &snapshot.report;
        let totals = &snapshot.totals;
        let cpu = totals.cpu;
        let since_start = uptime.as_secs_f64();
        let absent = snapshot.configured.iter();
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: uptime.as_secs_f64(),
            sampler: snapshot.sampler.as_str().to_owned(),
            sampler_resolution: snapshot.resolution.to_string(),
            policy: snapshot.policy.to_owned(),
            interval_seconds: snapshot.interval.as_secs_f64(),
            epoch_seconds: snapshot.epoch_interval().as_secs_f64(),
            over_limit: report.is_unpaid,
            epoch: report.epoch,
            data_age_seconds: snapshot.age(uptime).map(|age| age.as_secs_f64()),
            trouble: snapshot.trouble.clone(),
            other_movers: snapshot.others.clone(),
            paused: snapshot.paused(),
            notes: snapshot.notes.clone(),
            tiers: tiers(snapshot),
            page_cache: CacheStatus {
                reclaimed_bytes: totals.reclaimed.values().copied().sum::<Bytes>().0,
                rests: report.cache_rests,
            },
            resting_nodes: report.resting.iter().map(|node| node.0).collect(),
            targets: report
                .targets
                .iter()
                .map(|t| TargetStatus::new(t, totals.targets.get(&t.id), snapshot))
                .collect(),
            absent: absent
                .filter(|name| !report.targets.iter().any(|t| t.name == **name))
                .map(ToString::to_string)
                .collect(),
            cost: CostStatus {
                limit: snapshot.overhead_limit,
                cpus: if since_start > 0.0 {
                    cpu.total().as_secs_f64() / since_start
                } else {
                    0.0
                },
                profiling_seconds: cpu.profiling.as_secs_f64(),
                kdamonds_seconds: cpu.kdamonds.as_secs_f64(),
                migration_seconds: cpu.migration.as_secs_f64(),
                other_seconds: cpu.other.as_secs_f64(),
                longest_move_call_seconds: totals.longest_call.as_secs_f64(),
                spare: report.spare,
            },
            mover: snapshot
                .mover()
                .map(|(pages, pace)| MoverStatus {
                    pages: pages.to_owned(),
                    threads: pace.threads as u64,
                    call_seconds: pace.call.as_secs_f64(),
                    folio_seconds: pace.folio.as_secs_f64(),
                })
                .collect(),
            reloads: ReloadStatus {
                ok: snapshot.reloads.ok,
                failed: snapshot.reloads.failed,
            },
        }
    }
}

fn tiers(snapshot: &Snapshot) -> Vec<TierStatus> {
    let table = &snapshot.tiers;
    let sum = |tier: &Tier, of: fn(Bytes, Bytes) -> Bytes| {
        let usage = snapshot.report.nodes.iter();
        usage
            .filter(|u| tier.nodes.contains(&u.node))
            .map(|u| of(u.total, u.free))
            .sum::<Bytes>()
            .0
    };
    let latest = |tier: &Tier| {
        let nodes = snapshot.report.nodes.iter();
        let nodes = nodes.filter(|u| tier.nodes.contains(&u.node));
        let latencies = nodes.filter_map(|usage| usage.latency);
        latencies.max_by_key(|latency| latency.now)
    };
    table
        .tiers()
        .iter()
        .map(|tier| TierStatus {
            name: tier.name.clone(),
            nodes: tier.nodes.iter().map(|n| n.0).collect(),
            total_bytes: sum(tier, |total, _| total),
            free_bytes: sum(tier, |_, free| free),
            latency_ns: latest(tier).map(|latency| latency.now.0),
            idle_latency_ns: latest(tier).map(|latency| latency.idle.0),
        })
        .collect()
}

impl TargetStatus {
    fn new(target: &TargetReport, totals: Option<&MoveTotals>, snapshot: &Snapshot) -> Self {
        let table = &snapshot.tiers;
        let name = |tier| tier_name(table, tier).to_string();
        let sum = |direction| totals.map_or(0, |t| t.bytes(direction).0);
        let share = |of: &[f64], tier: TierId| of.get(tier.index()).copied().unwrap_or(0.0);
        Self {
            name: target.name.to_string(),
            pid: target.pid,
            sharers: target.sharers,
            kind: target.kind,
            ranking: target
                .ranking
                .iter()
                .map(|rank| rank.iter().map(|t| name(*t)).collect())
                .collect(),
            eligible_bytes: target.eligible.0,
            excluded: target
                .excluded
                .iter()
                .map(|(why, bytes)| ExcludedStatus {
                    why: *why,
                    bytes: bytes.0,
                })
                .collect(),
            resident_bytes: target.watched.resident.0,
            covered_bytes: target.watched.known.0,
            not_covered: target.watched.lacks,
            held: target
                .held
                .iter()
                .map(|(why, bytes)| HeldStatus {
                    why: *why,
                    bytes: bytes.0,
                })
                .collect(),
            allowed_nodes: (target.allowed_nodes.as_ref())
                .map(|nodes| nodes.iter().map(|n| n.0).collect()),
            move_pages: totals.map_or_else(PageCounts::default, |t| t.pages),
            hot_bytes: target.hot.0,
            written_bytes: target.written.map(|bytes| bytes.0),
            regions: target.regions,
            samples: target.samples,
            samples_accessed: target.samples_accessed,
            samples_unknown: target.samples_unknown,
            tiers: table
                .ids()
                .map(|tier| ShareStatus {
                    tier: name(tier),
                    resident_bytes: target.resident.get(tier.index()).map_or(0, |b| b.0),
                    resident_error_bytes: resident_error(target, tier, snapshot).0,
                    access_ratio: share(&target.accesses.ratio, tier),
                    access_ratio_low: share(&target.accesses.low, tier),
                    access_ratio_high: share(&target.accesses.high, tier),
                })
                .collect(),
            moves: moves(target, totals, snapshot),
            promoted_bytes: sum(Direction::Promotion),
            demoted_bytes: sum(Direction::Demotion),
            paged_out_bytes: totals.map_or(0, |t| t.paged_out.0),
            page_out_rests: target.paging_rests,
            overhead: target.overhead.into(),
            overhead_last_epoch: target.last_overhead.into(),
            idle: target.overhead.target_cpu.as_secs_f64()
                < IDLE_LOAD * snapshot.report.cost.elapsed.as_secs_f64(),
            resident_age_seconds: target.resident_age.as_secs_f64(),
            paused: target.paused,
        }
    }
}

impl From<Overhead> for OverheadStatus {
    fn from(overhead: Overhead) -> Self {
        Self {
            profiling: overhead.profiling,
            migration: overhead.migration,
            target: overhead.target_side,
            total: overhead.total(),
        }
    }
}

/// By how much what is told of a target's residency on a tier may be wrong now: with what the last
/// plan moves from there or to there, of which it is not known yet how far that is done.
pub(super) fn resident_error(target: &TargetReport, tier: TierId, snapshot: &Snapshot) -> Bytes {
    let counted = target.resident_error.get(tier.index()).copied();
    let touches = |flow: &&Flow| flow.from == tier || flow.to == tier;
    let moved = target.flows.iter().filter(touches).map(|flow| flow.planned);
    let moved: Bytes = if snapshot.carries_out() {
        moved.sum()
    } else {
        Bytes::ZERO
    };
    counted.unwrap_or_default() + moved
}

/// Every way that anything ever went, with what went there lately.
fn moves(
    target: &TargetReport,
    totals: Option<&MoveTotals>,
    snapshot: &Snapshot,
) -> Vec<MoveStatus> {
    let Some(totals) = totals else {
        return Vec::new();
    };
    let same = |way: &Way, flow: &Flow| {
        way.from == tier_name(&snapshot.tiers, flow.from)
            && way.to == tier_name(&snapshot.tiers, flow.to)
            && way.direction == flow.direction
            && way.reason == flow.reason
    };
    totals
        .moved
        .iter()
        .map(|(way, total)| {
            let flows = || target.flows.iter().filter(|flow| same(way, flow));
            MoveStatus {
                from: way.from.to_string(),
                to: way.to.to_string(),
                direction: way.direction,
                reason: way.reason,
                planned_bytes: flows().map(|f| f.planned).sum::<Bytes>().0,
                last_bytes: flows().map(|f| f.moved).sum::<Bytes>().0,
                total_bytes: total.0,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::testing::snapshot;

    #[test]
    fn the_json_reads_back_and_keeps_its_names() {
        let mut status = Status::new(&snapshot(), Duration::from_secs(123));
        status.pid = 99;
        status.version = "0.1.0".into();
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!(
            serde_json::from_value::<Status>(json.clone()).unwrap(),
            status
        );
        insta::assert_json_snapshot!(json);
    }
}
