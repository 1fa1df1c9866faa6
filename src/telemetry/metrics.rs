//! The metrics of `/metrics`: one declaration each, rendered from a
//! [`Snapshot`] whenever somebody asks.
//!
//! A registry is filled anew for each scrape. That costs microseconds for the
//! few hundred series there are, and no series can be forgotten: what is gone
//! from the snapshot is gone from the page.

use std::collections::BTreeMap;

use prometheus::{CounterVec, GaugeVec, Opts, Registry, TextEncoder};

use super::Snapshot;
use super::status::resident_error;
use super::totals::tier_name;
use crate::ports::{FolioPace, OtherMover};
use crate::tiering::observation::NodeUsage;
use crate::tiering::pageout::PagingRest;
use crate::tiering::plan::Direction;
use crate::tiering::report::{PauseReason, TargetReport};
use crate::units::{Bytes, Nanos, NodeId};

/// Which way a metric goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Up and down.
    Gauge,
    /// Only up, from the daemon's start.
    Counter,
}

/// A metric's declaration.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its full name, with the unit.
    pub name: &'static str,
    /// Which way it goes.
    pub kind: Kind,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// What it says.
    pub help: &'static str,
}

macro_rules! metrics {
    ($($id:ident = $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(static $id: Metric = Metric {
            name: $name,
            kind: Kind::$kind,
            labels: &[$($label),*],
            help: $help,
        };)*
        /// Every metric.
        pub static ALL: &[&Metric] = &[$(&$id),*];
    };
}

metrics! {
    RESIDENT = Gauge "hmkeeper_tier_resident_bytes" ["target", "tier"]
        "Movable memory of the target that lies on the tier.";
    ACCESS = Gauge "hmkeeper_tier_access_ratio" ["target", "tier"]
        "Estimated share of the target's accesses that the tier serves: its hit rate.";
    ACCESS_LOW = Gauge "hmkeeper_tier_access_ratio_low" ["target", "tier"]
        "What that share is at least, by what samples and accessed bits can tell: nine times out of ten.";
    ACCESS_HIGH = Gauge "hmkeeper_tier_access_ratio_high" ["target", "tier"]
        "What that share is at most.";
    RESIDENT_ERROR = Gauge "hmkeeper_tier_resident_error_bytes" ["target", "tier"]
        "It is so much more or less: what is not counted anew, and what is moved since the last epoch.";
    FREE = Gauge "hmkeeper_tier_free_bytes" ["tier", "node"]
        "Free memory of the node.";
    LATENCY = Gauge "hmkeeper_node_latency_seconds" ["tier", "node"]
        "How long a read takes from the node now that no cache holds, as a probe near it measured in the last epoch.";
    LATENCY_IDLE = Gauge "hmkeeper_node_idle_latency_seconds" ["tier", "node"]
        "The least mean of eight turns in a row that was ever measured of it.";
    PROMOTED = Counter "hmkeeper_promoted_bytes_total" ["target", "from_tier", "to_tier", "reason"]
        "Bytes moved to a faster tier.";
    DEMOTED = Counter "hmkeeper_demoted_bytes_total" ["target", "from_tier", "to_tier", "reason"]
        "Bytes moved to a slower tier.";
    MOVE_PAGES = Counter "hmkeeper_move_pages_total" ["target", "result"]
        "Pages of 4 KiB that were to be moved, by what became of them.";
    PAGED_OUT = Counter "hmkeeper_paged_out_bytes_total" ["target"]
        "Bytes that went to swap, below the slowest tier.";
    PAGING_RESTS = Gauge "hmkeeper_page_out_rests" ["reason"]
        "1 where pageout is enabled and, for this reason, nothing of at least one target is paged out.";
    EXCLUDED = Gauge "hmkeeper_excluded_bytes" ["target", "reason"]
        "Mapped memory of the target that is never moved.";
    HELD = Gauge "hmkeeper_held_bytes" ["target", "reason"]
        "Movable memory of the target that cannot be moved for now.";
    ALLOWED = Gauge "hmkeeper_allowed_nodes" ["target"]
        "Memory nodes among which the target is moved, where its cpuset does not allow all.";
    REGIONS = Gauge "hmkeeper_regions" ["target"]
        "Regions in which the target's memory is watched.";
    SAMPLES = Gauge "hmkeeper_samples" ["target"]
        "Pages watched in the last epoch.";
    WRITTEN = Gauge "hmkeeper_written_bytes" ["target"]
        "Memory of the target that is written in an epoch, as far as that was asked.";
    SPLITS = Counter "hmkeeper_region_splits_total" []
        "Regions split.";
    MERGES = Counter "hmkeeper_region_merges_total" []
        "Pairs of regions merged.";
    EPOCHS = Counter "hmkeeper_epochs_total" []
        "Turns of the loop.";
    EPOCH_DURATION = Gauge "hmkeeper_epoch_duration_seconds" ["phase"]
        "Length of the last epoch: total and migration in wall-clock time, profiling in the loop's CPU time.";
    INTERVAL = Gauge "hmkeeper_epoch_interval_seconds" []
        "How long an epoch is to be: the configured interval, longer where the overhead limit pays for less, shorter while what `adaptive` moves stays hot.";
    AGE = Gauge "hmkeeper_data_age_seconds" []
        "How long ago the last epoch ended, of which all figures are; before the first one, since the start.";
    OTHERS = Gauge "hmkeeper_other_movers" ["mover"]
        "1 for each that moves pages on this machine beside hmkeeper.";
    TROUBLE = Gauge "hmkeeper_loop_trouble" []
        "1 where the last try to observe failed: status and log say why.";
    OVERHEAD = Gauge "hmkeeper_overhead_ratio" ["target", "kind"]
        "What we cost the target as the limit counts it: as a share of its CPU time, an idle one's a tenth of a CPU, averaged over some ten minutes.";
    OVERHEAD_LIMIT = Gauge "hmkeeper_overhead_limit_ratio" []
        "The configured limit of what watching costs: of hmkeeper_overhead_ratio without migration.";
    OWN_CPU = Counter "hmkeeper_own_cpu_seconds_total" ["kind"]
        "CPU time of our threads and of our kdamonds, up to the last epoch.";
    SPARE = Gauge "hmkeeper_spare_cpu_ratio" []
        "Share of the CPU time of moving that nobody else would use, of late: that of idle cores.";
    LONGEST_CALL = Gauge "hmkeeper_longest_move_call_seconds" []
        "The longest single system call that moved pages since the start: bounds any stall.";
    CACHE_RECLAIMED = Counter "hmkeeper_page_cache_reclaimed_bytes_total" ["tier", "node"]
        "Idle page cache that made room for what was promoted.";
    CACHE_RESTS = Gauge "hmkeeper_page_cache_rests" []
        "1 where page cache makes no room for now: too much of it was read back, or the kernel gave back too little.";
    MOVER_THREADS = Gauge "hmkeeper_mover_threads" ["pages"]
        "Threads that move pages of this kind.";
    MOVER_CALL = Gauge "hmkeeper_mover_call_seconds" ["pages"]
        "CPU time of a system call that moves pages of this kind, whatever it moves, as measured.";
    MOVER_FOLIO = Gauge "hmkeeper_mover_folio_seconds" ["pages"]
        "CPU time of each folio of this kind that such a call moves, as measured.";
    UP = Gauge "hmkeeper_target_up" ["target"]
        "Processes of this name that are watched; 0 for a configured target that is not there.";
    SAMPLER = Gauge "hmkeeper_sampler_info" ["kind"]
        "1 for the mechanism that tells accessed pages apart.";
    RELOADS = Counter "hmkeeper_config_reloads_total" ["result"]
        "Configuration reloads.";
    PAUSED = Gauge "hmkeeper_paused" ["reason"]
        "1 where nothing is moved for this reason, for everybody or for at least one target.";
    BUILD = Gauge "hmkeeper_build_info" ["version"]
        "1 for the version that runs.";
}

/// The MIME type of [`render`]'s text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A page of metrics under construction.
struct Page {
    registry: Registry,
}

impl Page {
    /// Adds the series of one metric: label values in the declared order.
    fn add<L: AsRef<str> + std::fmt::Debug>(
        &self,
        metric: &Metric,
        series: impl IntoIterator<Item = (Vec<L>, f64)>,
    ) -> Result<(), prometheus::Error> {
        let opts = Opts::new(metric.name, metric.help);
        match metric.kind {
            Kind::Gauge => {
                let family = GaugeVec::new(opts, metric.labels)?;
                for (labels, value) in series {
                    family.get_metric_with_label_values(&labels)?.set(value);
                }
                self.registry.register(Box::new(family))
            }
            Kind::Counter => {
                let family = CounterVec::new(opts, metric.labels)?;
                for (labels, value) in series {
                    family.get_metric_with_label_values(&labels)?.inc_by(value);
                }
                self.registry.register(Box::new(family))
            }
        }
    }

    /// Adds a metric without labels.
    fn one(&self, metric: &Metric, value: f64) -> Result<(), prometheus::Error> {
        self.add::<&str>(metric, [(vec![], value)])
    }
}

/// The page, in Prometheus' text format.
///
/// # Errors
/// Never with the declarations above; the library's errors are passed on.
pub fn render(snapshot: &Snapshot) -> Result<String, prometheus::Error> {
    let page = Page {
        registry: Registry::new(),
    };
    per_target(&page, snapshot)?;
    moves(&page, snapshot)?;
    own(&page, snapshot)?;
    let tiers = &snapshot.tiers;
    let labels = |node: NodeId| {
        let tier = tiers.tier_of(node);
        let name = tier.map_or_else(|| "".into(), |t| tier_name(tiers, t));
        vec![name.to_string(), node.to_string()]
    };
    let of_nodes = |what: fn(&NodeUsage) -> Option<f64>| {
        let nodes = snapshot.report.nodes.iter();
        nodes.filter_map(move |usage| Some((labels(usage.node), what(usage)?)))
    };
    page.add(&FREE, of_nodes(|usage| Some(usage.free.as_f64())))?;
    let reclaimed = snapshot.totals.reclaimed.iter();
    page.add(
        &CACHE_RECLAIMED,
        reclaimed.map(|(&node, bytes)| (labels(node), bytes.as_f64())),
    )?;
    page.add(&LATENCY, of_nodes(|u| Some(u.latency?.now.as_secs_f64())))?;
    page.add(
        &LATENCY_IDLE,
        of_nodes(|u| Some(u.latency?.idle.as_secs_f64())),
    )?;
    TextEncoder::new().encode_to_string(&page.registry.gather())
}

/// All processes of one name as one.
fn by_name(targets: &[TargetReport]) -> BTreeMap<&str, Vec<&TargetReport>> {
    let mut names: BTreeMap<&str, Vec<&TargetReport>> = BTreeMap::new();
    for target in targets {
        names.entry(&target.name).or_default().push(target);
    }
    names
}

/// The mean of a share over processes of one name, weighted with their CPU
/// time, or evenly where none ran.
fn mean(targets: &[&TargetReport], share: impl Fn(&TargetReport) -> f64) -> f64 {
    weighed(targets, share, |t| t.overhead.target_cpu)
}

/// The same of what we cost them, weighted with the time that it is a share of.
fn cost(targets: &[&TargetReport], share: impl Fn(&TargetReport) -> f64) -> f64 {
    weighed(targets, share, |t| t.overhead.counted)
}

fn weighed(
    targets: &[&TargetReport],
    share: impl Fn(&TargetReport) -> f64,
    weight: fn(&TargetReport) -> Nanos,
) -> f64 {
    let time = |t: &TargetReport| weight(t).as_secs_f64();
    let total: f64 = targets.iter().map(|t| time(t)).sum();
    if total > 0.0 {
        targets.iter().map(|t| share(t) * time(t)).sum::<f64>() / total
    } else {
        targets.iter().map(|t| share(t)).sum::<f64>() / targets.len().max(1) as f64
    }
}

/// Bytes by target and reason.
fn by_reason<'a>(
    names: &BTreeMap<&'a str, Vec<&'a TargetReport>>,
    of: impl Fn(&TargetReport) -> Vec<(&'static str, Bytes)>,
) -> Vec<(Vec<&'a str>, f64)> {
    let mut sums: BTreeMap<(&str, &str), Bytes> = BTreeMap::new();
    for (&name, targets) in names {
        for (why, bytes) in targets.iter().flat_map(|t| of(t)) {
            *sums.entry((name, why)).or_default() += bytes;
        }
    }
    sums.into_iter()
        .map(|((name, why), bytes)| (vec![name, why], bytes.as_f64()))
        .collect()
}

fn per_target(page: &Page, snapshot: &Snapshot) -> Result<(), prometheus::Error> {
    let names = by_name(&snapshot.report.targets);
    let tiers = &snapshot.tiers;
    let mut resident = Vec::new();
    let mut errors = Vec::new();
    let mut access = [const { Vec::new() }; 3];
    let mut overhead = Vec::new();
    for (&name, targets) in &names {
        for tier in tiers.ids() {
            let labels = vec![name.to_owned(), tier_name(tiers, tier).to_string()];
            let bytes = targets.iter().filter_map(|t| t.resident.get(tier.index()));
            resident.push((labels.clone(), bytes.map(|b| b.as_f64()).sum()));
            let error = targets.iter().map(|t| resident_error(t, tier, snapshot));
            errors.push((labels.clone(), error.sum::<Bytes>().as_f64()));
            let shares = |t: &TargetReport| {
                let of = |shares: &[f64]| shares.get(tier.index()).copied().unwrap_or(0.0);
                [&t.accesses.ratio, &t.accesses.low, &t.accesses.high].map(|s| of(s))
            };
            for (at, series) in access.iter_mut().enumerate() {
                series.push((labels.clone(), mean(targets, |t| shares(t)[at])));
            }
        }
        for (kind, share) in [
            ("profiling", cost(targets, |t| t.overhead.profiling)),
            ("migration", cost(targets, |t| t.overhead.migration)),
            ("target", cost(targets, |t| t.overhead.target_side)),
        ] {
            overhead.push((vec![name, kind], share));
        }
    }
    page.add(&RESIDENT, resident)?;
    page.add(&RESIDENT_ERROR, errors)?;
    for (metric, series) in [&ACCESS, &ACCESS_LOW, &ACCESS_HIGH].into_iter().zip(access) {
        page.add(metric, series)?;
    }
    page.add(&OVERHEAD, overhead)?;
    let sum = |of: fn(&TargetReport) -> u64| {
        names
            .iter()
            .map(move |(name, targets)| {
                let sum: u64 = targets.iter().map(|t| of(t)).sum();
                (vec![*name], sum as f64)
            })
            .collect::<Vec<_>>()
    };
    page.add(
        &EXCLUDED,
        by_reason(&names, |t| {
            t.excluded
                .iter()
                .map(|(why, b)| (why.as_str(), *b))
                .collect()
        }),
    )?;
    page.add(
        &HELD,
        by_reason(&names, |t| {
            t.held.iter().map(|(why, b)| (why.as_str(), *b)).collect()
        }),
    )?;
    let allowed = names.iter().filter_map(|(&name, targets)| {
        let counts = targets.iter().filter_map(|t| t.allowed_nodes.as_ref());
        let least = counts.map(Vec::len).min()?;
        Some((vec![name], least as f64))
    });
    page.add(&ALLOWED, allowed)?;
    page.add(&REGIONS, sum(|t| t.regions))?;
    page.add(&SAMPLES, sum(|t| t.samples))?;
    let known = |targets: &[&TargetReport]| -> Option<f64> {
        let known: Vec<f64> = (targets.iter().filter_map(|t| t.written))
            .map(Bytes::as_f64)
            .collect();
        (!known.is_empty()).then(|| known.iter().sum())
    };
    let written = names
        .iter()
        .filter_map(|(&name, targets)| Some((vec![name], known(targets)?)));
    page.add(&WRITTEN, written)?;
    let mut up: BTreeMap<&str, f64> = BTreeMap::new();
    up.extend(snapshot.configured.iter().map(|name| (&**name, 0.0)));
    up.extend(names.iter().map(|(n, t)| (*n, t.len() as f64)));
    page.add(&UP, up.into_iter().map(|(name, count)| (vec![name], count)))
}

fn moves(page: &Page, snapshot: &Snapshot) -> Result<(), prometheus::Error> {
    let names = &snapshot.totals.names;
    for (metric, direction) in [
        (&PROMOTED, Direction::Promotion),
        (&DEMOTED, Direction::Demotion),
    ] {
        let series = names.iter().flat_map(|(name, totals)| {
            let ways = totals.moved.iter();
            ways.filter(|(way, _)| way.direction == direction)
                .map(|(way, bytes)| {
                    let labels = vec![&**name, &*way.from, &*way.to, way.reason.as_str()];
                    (labels, bytes.as_f64())
                })
        });
        page.add(metric, series)?;
    }
    page.add(
        &MOVE_PAGES,
        names.iter().flat_map(|(name, totals)| {
            let results = totals.pages.labelled().into_iter();
            results.map(|(result, count)| (vec![&**name, result], count as f64))
        }),
    )?;
    page.add(
        &PAGED_OUT,
        (names.iter()).map(|(name, totals)| (vec![&**name], totals.paged_out.as_f64())),
    )?;
    let targets = &snapshot.report.targets;
    page.add(
        &PAGING_RESTS,
        PagingRest::ALL.map(|why| {
            let on = targets.iter().any(|t| t.paging_rests == Some(why));
            (vec![why.as_str()], f64::from(u8::from(on)))
        }),
    )
}

fn own(page: &Page, snapshot: &Snapshot) -> Result<(), prometheus::Error> {
    let totals = &snapshot.totals;
    page.one(&SPLITS, totals.splits as f64)?;
    page.one(&MERGES, totals.merges as f64)?;
    page.one(&EPOCHS, totals.epochs as f64)?;
    page.one(&OVERHEAD_LIMIT, snapshot.overhead_limit)?;
    page.one(&SPARE, snapshot.report.spare)?;
    page.one(&LONGEST_CALL, totals.longest_call.as_secs_f64())?;
    page.one(
        &CACHE_RESTS,
        f64::from(u8::from(snapshot.report.cache_rests)),
    )?;
    let learnt = |of: fn(FolioPace) -> f64| {
        let each = snapshot.mover();
        each.map(move |(pages, pace)| (vec![pages], of(pace)))
    };
    page.add(&MOVER_THREADS, learnt(|pace| pace.threads as f64))?;
    page.add(&MOVER_CALL, learnt(|pace| pace.call.as_secs_f64()))?;
    page.add(&MOVER_FOLIO, learnt(|pace| pace.folio.as_secs_f64()))?;
    let report = &snapshot.report;
    let uptime = snapshot.started.elapsed();
    let age = snapshot.age(uptime).unwrap_or(uptime);
    page.one(&AGE, age.as_secs_f64())?;
    page.add(
        &OTHERS,
        OtherMover::NAMES.map(|name| {
            let on = snapshot.others.iter().any(|other| other.name == name);
            (vec![name], f64::from(u8::from(on)))
        }),
    )?;
    page.one(&TROUBLE, f64::from(u8::from(snapshot.trouble.is_some())))?;
    page.one(&INTERVAL, snapshot.epoch_interval().as_secs_f64())?;
    page.add(
        &EPOCH_DURATION,
        [
            ("total", report.cost.elapsed),
            ("profiling", report.cost.profiling),
            ("migration", report.migration_elapsed),
        ]
        .map(|(phase, time)| (vec![phase], time.as_secs_f64())),
    )?;
    page.add(
        &OWN_CPU,
        totals
            .cpu
            .labelled()
            .map(|(kind, time)| (vec![kind], time.as_secs_f64())),
    )?;
    page.add(&SAMPLER, [(vec![snapshot.sampler.as_str()], 1.0)])?;
    page.add(
        &RELOADS,
        [
            ("ok", snapshot.reloads.ok),
            ("failed", snapshot.reloads.failed),
        ]
        .map(|(result, count)| (vec![result], count as f64)),
    )?;
    let paused = snapshot.all_pauses();
    page.add(
        &PAUSED,
        PauseReason::ALL.map(|reason| {
            let on = paused.contains(&reason);
            (vec![reason.as_str()], f64::from(u8::from(on)))
        }),
    )?;
    page.add(&BUILD, [(vec![env!("CARGO_PKG_VERSION")], 1.0)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::testing::{report, snapshot, target};

    fn value(page: &str, series: &str) -> Option<f64> {
        page.lines()
            .find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
    }

    #[test]
    fn every_declared_metric_is_rendered_with_its_kind_and_help() {
        let mut snapshot = snapshot();
        let mut confined = target(1, "db");
        confined.allowed_nodes = Some(vec![NodeId(0)]);
        snapshot.record(report(2, vec![confined]));
        let page = render(&snapshot).unwrap();
        for metric in ALL {
            let kind = match metric.kind {
                Kind::Gauge => "gauge",
                Kind::Counter => "counter",
            };
            let name = metric.name;
            assert!(page.contains(&format!("# TYPE {name} {kind}\n")), "{name}");
            assert!(page.contains(&format!("# HELP {name} {}\n", metric.help)));
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
        }
        let types = page.lines().filter(|l| l.starts_with("# TYPE")).count();
        assert_eq!(types, ALL.len());
    }

    #[test]
    fn processes_of_one_name_are_one_series() {
        let mut snapshot = snapshot();
        let mut busy = target(1, "db");
        busy.accesses.ratio = vec![1.0, 0.0];
        busy.accesses.low = vec![0.8, 0.0];
        busy.accesses.high = vec![1.0, 0.2];
        busy.overhead.target_cpu = crate::units::Nanos::from_secs(3);
        let mut quiet = target(2, "db");
        quiet.accesses.ratio = vec![0.0, 1.0];
        quiet.accesses.low = vec![0.0, 0.4];
        quiet.accesses.high = vec![0.6, 1.0];
        quiet.overhead.target_cpu = crate::units::Nanos::from_secs(1);
        snapshot.record(report(2, vec![busy, quiet]));
        let page = render(&snapshot).unwrap();
        let at = |series: &str| value(&page, series);
        assert_eq!(
            at("hmkeeper_tier_access_ratio{target=\"db\",tier=\"dram0\"}"),
            Some(0.75)
        );
        // Between 0.6 and 0.9, as each is weighed alike.
        for (series, want) in [("low", 0.6), ("high", 0.9)] {
            let series =
                format!("hmkeeper_tier_access_ratio_{series}{{target=\"db\",tier=\"dram0\"}}");
            assert!((at(&series).unwrap() - want).abs() < 1e-9, "{series}");
        }
        assert_eq!(
            at("hmkeeper_tier_resident_bytes{target=\"db\",tier=\"dram0\"}"),
            Some(2.0 * 96.0 * 1_048_576.0)
        );
        assert_eq!(at("hmkeeper_target_up{target=\"db\"}"), Some(2.0));
        assert_eq!(
            at("hmkeeper_excluded_bytes{reason=\"locked\",target=\"db\"}"),
            Some(2.0 * 5.0 * 1_048_576.0)
        );
        assert_eq!(
            at("hmkeeper_held_bytes{reason=\"shared\",target=\"db\"}"),
            Some(2.0 * 6.0 * 1_048_576.0)
        );
        assert_eq!(at("hmkeeper_target_up{target=\"absent\"}"), Some(0.0));
    }

    #[test]
    fn series_of_a_target_that_is_gone_are_gone() {
        let mut snapshot = snapshot();
        assert!(render(&snapshot).unwrap().contains("target=\"db\""));
        snapshot.record(report(2, vec![]));
        let page = render(&snapshot).unwrap();
        let left: Vec<&str> = page.lines().filter(|l| l.contains("\"db\"")).collect();
        // It is configured, so that it is worth saying that it is not there.
        assert_eq!(left, ["hmkeeper_target_up{target=\"db\"} 0"]);
    }

    #[test]
    fn nodes_are_counted_where_a_cpuset_forbids_some() {
        let mut snapshot = snapshot();
        let series = "hmkeeper_allowed_nodes{target=\"db\"}";
        assert_eq!(value(&render(&snapshot).unwrap(), series), None);
        let [mut one, mut other, third] = [1, 2, 3].map(|id| target(id, "db"));
        one.allowed_nodes = Some(vec![NodeId(0), NodeId(1), NodeId(3)]);
        other.allowed_nodes = Some(vec![NodeId(0), NodeId(3)]);
        snapshot.record(report(2, vec![one, other, third]));
        assert_eq!(value(&render(&snapshot).unwrap(), series), Some(2.0));
    }

    #[test]
    fn a_target_that_is_left_alone_shows_as_paused() {
        let mut snapshot = snapshot();
        let blind = "hmkeeper_paused{reason=\"sampler-blind\"}";
        assert_eq!(value(&render(&snapshot).unwrap(), blind), Some(0.0));
        let mut one = target(1, "db");
        one.paused = Some(PauseReason::SamplerBlind);
        snapshot.record(report(2, vec![one]));
        assert_eq!(value(&render(&snapshot).unwrap(), blind), Some(1.0));
    }

    #[test]
    fn the_manual_lists_every_metric_and_no_other() {
        let manual = include_str!("../../docs/metrics.md");
        let mut rows: Vec<&str> = manual
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
            .collect();
        let mut declared: Vec<String> = ALL
            .iter()
            .map(|m| {
                if m.labels.is_empty() {
                    m.name.to_owned()
                } else {
                    format!("{}{{{}}}", m.name, m.labels.join(","))
                }
            })
            .collect();
        rows.sort_unstable();
        declared.sort_unstable();
        assert_eq!(rows, declared);
    }
}
