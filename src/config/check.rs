//! From what was written to what is meant: each value's type and bounds, and
//! what contradicts what. Notes every fault and goes on with the default.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use toml::{Spanned, Value};

use super::checker::{Checker, is_auto, is_off};
use super::fault::Faults;
use super::policy::policy;
use super::raw::{
    Entry, RawConfig, RawDaemon, RawMigration, RawPageOut, RawProfiling, RawTarget, RawTier,
};
use super::value::{parse_mapping, parse_node, parse_nodes, print_bytes};
use super::{Config, DaemonConfig, LogLevel, MigrationConfig};
use crate::ports::{MappingFilter, SamplerKind, Selector, TargetSpec};
use crate::tiering::observation::TargetKind;
use crate::tiering::settings::{
    LookRule, PageOutSettings, Placement, ProfilingSettings, SplitRule, WindowRule,
};
use crate::tiering::tier::Tier;
use crate::units::{Bandwidth, Bytes, Nanos, NodeId, PAGE_BYTES, Pid};

/// Shorter epochs cost more than 5 % of a CPU for reading `/proc` alone.
const INTERVAL_MIN: Nanos = Nanos::from_millis(100);
const INTERVAL_MAX: Nanos = Nanos::from_secs(3600);
/// Counts of an epoch are kept in 8 bits, and more scans than that no longer
/// tell regions apart better (HM-Keeper §1.6 uses 3).
const SCANS_MAX: i64 = 20;
/// Slower than this nothing useful arrives within an epoch.
const RATE_MIN: Bytes = Bytes::from_mib(1);
const THREADS_MAX: i64 = 64;
/// What is paged out after seconds is wanted again.
const IDLE_MIN: Nanos = Nanos::from_secs(10);
const IDLE_MAX: Nanos = Nanos::from_secs(30 * 86_400);
/// A call's worth each epoch.
const PAGE_OUT_RATE_MIN: Bytes = Bytes::from_kib(64);
const CALL_TIME_MIN: Nanos = Nanos(100_000);
const CALL_TIME_MAX: Nanos = Nanos::from_secs(1);
/// The kernel's `PID_MAX_LIMIT` on 64-bit machines.
const PID_MAX: i64 = 4_194_304;
/// `TASK_COMM_LEN` without the closing zero.
const COMM_MAX: usize = 15;
/// `sun_path` without the closing zero.
const SOCKET_PATH_MAX: usize = 107;

impl TryFrom<RawConfig> for Config {
    type Error = Faults;

    fn try_from(raw: RawConfig) -> Result<Self, Faults> {
        let mut check = Checker::default();
        let default = Self::default();
        let (profiling, sampler) = profiling(&mut check, &raw.profiling, default.profiling);
        let config = Self {
            daemon: daemon(&mut check, &raw.daemon, default.daemon),
            profiling,
            sampler,
            policy: policy(&mut check, &raw.policy),
            migration: migration(&mut check, &raw.migration, &default.migration),
            page_out: page_out(&mut check, &raw.pageout),
            tiers: tiers(&mut check, &raw.tiers),
            targets: targets(&mut check, &raw.targets),
            listen: listen(&mut check, raw.metrics.listen.as_ref(), default.listen),
            socket: socket(&mut check, raw.control.socket.as_ref(), default.socket),
        };
        if check.faults.is_empty() {
            Ok(config)
        } else {
            Err(Faults::unlocated(check.faults))
        }
    }
}

fn daemon(check: &mut Checker, raw: &RawDaemon, default: DaemonConfig) -> DaemonConfig {
    let levels = LogLevel::ALL.map(|level| (level.as_str(), level));
    let remedy = "write an absolute path in quotes";
    let state_dir = check.read(
        raw.state_dir.as_ref(),
        "daemon.state_dir",
        "an absolute path",
        remedy,
        |v| v.as_str().map(PathBuf::from).filter(|p| p.is_absolute()),
    );
    let seed = check.integer(
        raw.seed.as_ref(),
        "daemon.seed",
        0,
        i64::MAX,
        "any number does",
    );
    DaemonConfig {
        log: check
            .one_of(raw.log.as_ref(), "daemon.log", &levels)
            .unwrap_or(default.log),
        seed: seed
            .and_then(|n| u64::try_from(n).ok())
            .unwrap_or(default.seed),
        state_dir: state_dir.unwrap_or(default.state_dir),
    }
}

fn profiling(
    check: &mut Checker,
    raw: &RawProfiling,
    default: ProfilingSettings,
) -> (ProfilingSettings, Option<SamplerKind>) {
    let key = "profiling.interval";
    let interval = check.time(raw.interval.as_ref(), key, INTERVAL_MIN, INTERVAL_MAX);
    let scans = check.integer(
        raw.scans.as_ref(),
        "profiling.scans",
        1,
        SCANS_MAX,
        "HM-Keeper uses 3",
    );
    let settings = ProfilingSettings {
        interval: interval.unwrap_or(default.interval),
        scans: scans
            .and_then(|n| u8::try_from(n).ok())
            .unwrap_or(default.scans),
        overhead_limit: check
            .ratio(
                raw.overhead_limit.as_ref(),
                "profiling.overhead_limit",
                true,
                1.0,
            )
            .unwrap_or(default.overhead_limit),
        initial_region: check
            .region(raw.initial_region.as_ref(), "profiling.initial_region")
            .unwrap_or(default.initial_region),
        minimum_region: check
            .region(raw.minimum_region.as_ref(), "profiling.minimum_region")
            .unwrap_or(default.minimum_region),
        merge_threshold: check
            .ratio(
                raw.merge_threshold.as_ref(),
                "profiling.merge_threshold",
                false,
                1.0,
            )
            .unwrap_or(default.merge_threshold),
        split_threshold: check
            .ratio(
                raw.split_threshold.as_ref(),
                "profiling.split_threshold",
                false,
                1.0,
            )
            .unwrap_or(default.split_threshold),
        split: check
            .one_of(raw.split.as_ref(), "profiling.split", &SplitRule::CHOICES)
            .unwrap_or(default.split),
        placement: check
            .one_of(
                raw.samples.as_ref(),
                "profiling.samples",
                &Placement::CHOICES,
            )
            .unwrap_or(default.placement),
        looks: check
            .one_of(raw.looks.as_ref(), "profiling.looks", &LookRule::CHOICES)
            .unwrap_or(default.looks),
        windows: check
            .one_of(
                raw.windows.as_ref(),
                "profiling.windows",
                &WindowRule::CHOICES,
            )
            .unwrap_or(default.windows),
        writes: check
            .asking(raw.writes.as_ref(), "profiling.writes")
            .unwrap_or(default.writes),
        latency: check
            .asking(raw.latency.as_ref(), "profiling.latency")
            .unwrap_or(default.latency),
        write_fault: default.write_fault,
        overhead_control: check
            .boolean(raw.overhead_control.as_ref(), "profiling.overhead_control")
            .unwrap_or(default.overhead_control),
    };
    if settings.minimum_region > settings.initial_region
        && let Some(entry) = raw.minimum_region.as_ref().or(raw.initial_region.as_ref())
    {
        let message = format!(
            "minimum_region \"{}\" is above initial_region \"{}\"",
            print_bytes(settings.minimum_region),
            print_bytes(settings.initial_region)
        );
        let remedy =
            "regions begin with the initial size, and are not split when they have the minimum";
        check.fault(entry, "profiling.minimum_region", message, remedy);
    }
    if settings.merge_threshold > settings.split_threshold {
        let entry = raw.merge_threshold.as_ref();
        if let Some(entry) = entry.or(raw.split_threshold.as_ref()) {
            let message = format!(
                "merge_threshold {} is above split_threshold {}",
                settings.merge_threshold, settings.split_threshold
            );
            let remedy = "what was split would be merged at once; HM-Keeper uses 1/3 and 2/3";
            check.fault(entry, "profiling.merge_threshold", message, remedy);
        }
    }
    (settings, sampler(check, raw.sampler.as_ref()))
}

fn sampler(check: &mut Checker, entry: Option<&Entry>) -> Option<SamplerKind> {
    let key = "profiling.sampler";
    let [idle, damon, paddr, referenced] = [
        SamplerKind::Idle,
        SamplerKind::Damon,
        SamplerKind::DamonPaddr,
        SamplerKind::Referenced,
    ]
    .map(|kind| (kind.as_str(), Some(kind)));
    let choices = [("auto", None), idle, damon, paddr, referenced];
    check.one_of(entry, key, &choices).flatten()
}

fn migration(
    check: &mut Checker,
    raw: &RawMigration,
    default: &MigrationConfig,
) -> MigrationConfig {
    let rate = raw.bytes_per_second.as_ref();
    let threads = raw.threads.as_ref();
    MigrationConfig {
        enabled: check
            .boolean(raw.enabled.as_ref(), "migration.enabled")
            .unwrap_or(default.enabled),
        bytes_per_second: if is_auto(rate) {
            None
        } else {
            check
                .bytes(rate, "migration.bytes_per_second", RATE_MIN)
                .map(|b| Bandwidth(b.0))
        },
        threads: if is_auto(threads) {
            None
        } else {
            check
                .integer(
                    threads,
                    "migration.threads",
                    1,
                    THREADS_MAX,
                    "or write \"auto\"",
                )
                .and_then(|n| usize::try_from(n).ok())
        },
        call_time: check
            .time(
                raw.call_time.as_ref(),
                "migration.call_time",
                CALL_TIME_MIN,
                CALL_TIME_MAX,
            )
            .unwrap_or(default.call_time),
        headroom: check
            .ratio(raw.headroom.as_ref(), "migration.headroom", false, 0.5)
            .unwrap_or(default.headroom),
        page_cache: check
            .boolean(raw.page_cache.as_ref(), "migration.page_cache")
            .unwrap_or(default.page_cache),
        share: check
            .ratio(raw.share.as_ref(), "migration.share", true, 1.0)
            .unwrap_or(default.share),
    }
}

/// Read, and with it checked, whether it is enabled or not.
fn page_out(check: &mut Checker, raw: &RawPageOut) -> Option<PageOutSettings> {
    let default = PageOutSettings::default();
    let settings = PageOutSettings {
        idle: check
            .time(raw.idle.as_ref(), "pageout.idle", IDLE_MIN, IDLE_MAX)
            .unwrap_or(default.idle),
        rate: check
            .bytes(
                raw.bytes_per_second.as_ref(),
                "pageout.bytes_per_second",
                PAGE_OUT_RATE_MIN,
            )
            .map_or(default.rate, |b| Bandwidth(b.0)),
        any_swap: check
            .one_of(
                raw.swap.as_ref(),
                "pageout.swap",
                &[("memory", false), ("any", true)],
            )
            .unwrap_or(default.any_swap),
    };
    let is_enabled = check.boolean(raw.enabled.as_ref(), "pageout.enabled");
    is_enabled.unwrap_or(false).then_some(settings)
}

fn listen(
    check: &mut Checker,
    entry: Option<&Entry>,
    default: Option<SocketAddr>,
) -> Option<SocketAddr> {
    let Some(entry) = entry else { return default };
    if is_off(entry) {
        return None;
    }
    let remedy = "write \"127.0.0.1:9477\", \"[::]:9477\" or \"off\"";
    check.read(
        Some(entry),
        "metrics.listen",
        "an address with a port",
        remedy,
        |v| v.as_str()?.parse().ok(),
    )
}

fn socket(check: &mut Checker, entry: Option<&Entry>, default: Option<PathBuf>) -> Option<PathBuf> {
    let Some(entry) = entry else { return default };
    if is_off(entry) {
        return None;
    }
    let what = format!("an absolute path of at most {SOCKET_PATH_MAX} bytes");
    let remedy = "write such as \"/run/hmkeeper/control.sock\", or \"off\"";
    check.read(Some(entry), "control.socket", &what, remedy, |v| {
        let path = v.as_str().filter(|p| p.len() <= SOCKET_PATH_MAX)?;
        Some(PathBuf::from(path)).filter(|p| p.is_absolute())
    })
}

fn nodes(value: &Value) -> Option<Vec<NodeId>> {
    if let Some(text) = value.as_str() {
        return parse_nodes(text);
    }
    let mut nodes: Vec<NodeId> = value
        .as_array()?
        .iter()
        .map(|v| v.as_integer().and_then(parse_node))
        .collect::<Option<_>>()?;
    let count = nodes.len();
    nodes.sort_unstable();
    nodes.dedup();
    (count > 0 && nodes.len() == count).then_some(nodes)
}

/// What memory can have: on the package at least, behind switches at most.
const LATENCY_LEAST: Nanos = Nanos(10);
const LATENCY_MOST: Nanos = Nanos(50_000);

fn tiers(check: &mut Checker, raw: &[Spanned<RawTier>]) -> Option<Vec<Tier>> {
    let mut names: HashMap<String, usize> = HashMap::new();
    let mut owners: HashMap<NodeId, String> = HashMap::new();
    let mut tiers = Vec::new();
    for (i, section) in raw.iter().enumerate() {
        let raw = section.get_ref();
        let key = |name: &str| format!("tiers[{i}].{name}");
        for (name, entry) in [("name", &raw.name), ("nodes", &raw.nodes)] {
            if entry.is_none() {
                let remedy = "a tier needs a name and its nodes";
                check.at(section.span(), &key(name), "is missing", remedy);
            }
        }
        let name = check.name(raw.name.as_ref(), &key("name"));
        if let (Some(name), Some(entry)) = (&name, &raw.name)
            && let Some(first) = names.insert(name.clone(), i)
        {
            let message = format!("tiers[{first}] is named \"{name}\" too");
            check.fault(entry, &key("name"), message, "give each its own name");
        }
        let remedy = "write [0, 1] or \"0-1\", each node once";
        let list = check.read(
            raw.nodes.as_ref(),
            &key("nodes"),
            "a list of nodes",
            remedy,
            nodes,
        );
        let shown_name = name.clone().unwrap_or_else(|| format!("tiers[{i}]"));
        if let (Some(list), Some(entry)) = (&list, &raw.nodes) {
            for node in list {
                if let Some(first) = owners.insert(*node, shown_name.clone()) {
                    let message = format!("node {node} is in tier \"{first}\" already");
                    check.fault(entry, &key("nodes"), message, "a node is in one tier only");
                }
            }
        }
        let capacity = raw.capacity.as_ref();
        let capacity = if is_auto(capacity) {
            None
        } else {
            check.bytes(capacity, &key("capacity"), Bytes(PAGE_BYTES))
        };
        let latency = raw.latency.as_ref();
        let latency = if is_auto(latency) {
            None
        } else {
            check.time(latency, &key("latency"), LATENCY_LEAST, LATENCY_MOST)
        };
        if let (Some(name), Some(nodes)) = (name, list) {
            tiers.push(Tier {
                name,
                nodes,
                capacity,
                latency,
            });
        }
    }
    (!raw.is_empty()).then_some(tiers)
}

fn targets(check: &mut Checker, raw: &[Spanned<RawTarget>]) -> Vec<TargetSpec> {
    let mut names: HashMap<String, usize> = HashMap::new();
    let mut specs: Vec<(usize, TargetSpec)> = Vec::new();
    for (i, section) in raw.iter().enumerate() {
        let raw = section.get_ref();
        let key = |name: &str| format!("targets[{i}].{name}");
        let name = check.name(raw.name.as_ref(), &key("name"));
        if let (Some(name), Some(entry)) = (&name, &raw.name)
            && let Some(first) = names.insert(name.clone(), i)
        {
            let message = format!("targets[{first}] is named \"{name}\" too");
            check.fault(entry, &key("name"), message, "give each its own name");
        }
        let kinds = [
            ("generic", TargetKind::Generic),
            ("dnn-training", TargetKind::DnnTraining),
        ];
        let kind = check
            .one_of(raw.kind.as_ref(), &key("kind"), &kinds)
            .unwrap_or_default();
        let mut flag = |entry: &Option<Entry>, name: &str, default| {
            (check.boolean(entry.as_ref(), &key(name))).unwrap_or(default)
        };
        let follow_children = flag(&raw.follow_children, "follow_children", false);
        let move_bound = flag(&raw.move_bound, "move_bound", false);
        let move_locked = flag(&raw.move_locked, "move_locked", false);
        let move_shared = flag(&raw.move_shared, "move_shared", true);
        let remedy = "write 1, and more for who shall have more";
        let weight = check.integer(raw.weight.as_ref(), &key("weight"), 1, 10_000, remedy);
        let floor = check.bytes(raw.floor.as_ref(), &key("floor"), Bytes(PAGE_BYTES));
        let include = mappings(check, raw.include.as_ref(), &key("include"));
        let exclude = mappings(check, raw.exclude.as_ref(), &key("exclude"));
        let Some(selector) = selector(check, section, i) else {
            continue;
        };
        if let Some((first, _)) = specs.iter().find(|(_, s)| s.selector == selector) {
            let message = format!("selects the same processes as targets[{first}]");
            let place = format!("targets[{i}]");
            check.at(section.span(), &place, message, "leave one of them out");
        }
        let spec = TargetSpec {
            name,
            selector,
            kind,
            follow_children,
            include,
            exclude,
            move_bound,
            move_locked,
            move_shared,
            weight: weight.and_then(|weight| u16::try_from(weight).ok()),
            floor: floor.unwrap_or_default(),
        };
        specs.push((i, spec));
    }
    specs.into_iter().map(|(_, spec)| spec).collect()
}

fn mappings(check: &mut Checker, entry: Option<&Entry>, key: &str) -> Vec<MappingFilter> {
    let remedy = "write [\"0x7f0000000000-0x7f0040000000\", \"[heap]\", \"*/libc*\"]";
    let Some(list) = check.read(entry, key, "a list of strings", remedy, |v| {
        let list = v.as_array()?.iter().map(|v| v.as_str().map(str::to_owned));
        list.collect::<Option<Vec<_>>>()
    }) else {
        return Vec::new();
    };
    let mut filters = Vec::new();
    for text in list {
        match parse_mapping(&text) {
            Ok(filter) => filters.push(filter),
            Err(why) => {
                if let Some(entry) = entry {
                    check.fault(entry, key, format!("\"{text}\" {why}"), remedy);
                }
            }
        }
    }
    filters
}

/// The one selector of a target.
fn selector(check: &mut Checker, section: &Spanned<RawTarget>, i: usize) -> Option<Selector> {
    let raw = section.get_ref();
    let given: Vec<(&str, &Entry)> = [
        ("pid", &raw.pid),
        ("comm", &raw.comm),
        ("cmdline", &raw.cmdline),
        ("cgroup", &raw.cgroup),
        ("unit", &raw.unit),
    ]
    .into_iter()
    .filter_map(|(name, entry)| entry.as_ref().map(|e| (name, e)))
    .collect();
    let place = format!("targets[{i}]");
    let (name, entry) = match given.as_slice() {
        [] => {
            let remedy = "write one of pid, comm, cmdline, cgroup, unit";
            check.at(section.span(), &place, "selects nobody", remedy);
            return None;
        }
        [one] => *one,
        [first, rest @ ..] => {
            let last = rest.iter().fold(first.1, |last, (_, entry)| {
                if entry.span().start > last.span().start {
                    entry
                } else {
                    last
                }
            });
            let names: Vec<&str> = given.iter().map(|(name, _)| *name).collect();
            let message = format!("has {} selectors: {}", given.len(), names.join(", "));
            check.fault(last, &place, message, "keep one of them");
            return None;
        }
    };
    let key = format!("{place}.{name}");
    if name == "pid" {
        let pid = check.integer(Some(entry), &key, 1, PID_MAX, "write a process id")?;
        return i32::try_from(pid).ok().map(|pid| Selector::Pid(Pid(pid)));
    }
    let text = check.text(Some(entry), &key)?;
    let is_glob = text.contains(['*', '?', '[']);
    let wrong = match name {
        _ if text.is_empty() => Some(("is empty".to_owned(), "it would match nothing")),
        "comm" if !is_glob && text.len() > COMM_MAX => Some((
            format!("\"{text}\" is longer than {COMM_MAX} bytes, where the kernel cuts names"),
            "write a glob, or use cmdline",
        )),
        "unit" if !text.contains('.') => Some((
            format!("\"{text}\" has no unit type"),
            "write such as \"redis.service\"",
        )),
        _ => None,
    };
    if let Some((message, remedy)) = wrong {
        check.fault(entry, &key, message, remedy);
        return None;
    }
    Some(match name {
        "comm" => Selector::Comm(text),
        "cmdline" => Selector::Cmdline(text),
        "cgroup" => Selector::Cgroup(cgroup(&text)),
        _ => Selector::Unit(text),
    })
}

/// A path under the cgroup root, with or without the mount point.
fn cgroup(text: &str) -> String {
    let path = text.strip_prefix("/sys/fs/cgroup").unwrap_or(text);
    format!("/{}", path.trim_matches('/'))
}
