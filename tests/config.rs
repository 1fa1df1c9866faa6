//! The configuration file: its documentation, its faults, its limits.

use std::path::Path;

use hmkeeper::config::{Config, ConfigError, raw};
use hmkeeper::ports::{MappingFilter, Selector};
use hmkeeper::tiering::observation::TargetKind;
use hmkeeper::units::{Bytes, NodeId, Pid};

const SHIPPED: &str = include_str!("../config/hmkeeper.toml");
const MANUAL: &str = include_str!("../docs/configuration.md");

/// The shipped file with its examples switched on: they are written `#key`,
/// prose is written `# text`.
fn with_examples() -> String {
    SHIPPED
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(rest) if !rest.is_empty() && !rest.starts_with(' ') => rest,
            _ => line,
        })
        .flat_map(|line| [line, "\n"])
        .collect()
}

fn faults(text: &str) -> Vec<String> {
    let error = Config::parse(text, Some(Path::new("t.toml"))).unwrap_err();
    error.to_string().lines().map(str::to_owned).collect()
}

#[test]
fn the_shipped_file_equals_the_defaults() {
    assert_eq!(Config::parse(SHIPPED, None).unwrap(), Config::default());
}

#[test]
fn the_examples_in_the_shipped_file_are_valid() {
    let config = Config::parse(&with_examples(), None).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(config.tiers.unwrap()[1].capacity, Some(Bytes(64 << 30)));
    assert_eq!(config.targets.len(), 5);
    assert_eq!(config.targets[1].selector, Selector::Pid(Pid(4711)));
}

#[test]
fn every_key_is_in_the_shipped_file_and_in_the_manual() {
    let text = with_examples();
    let mut section = String::new();
    let mut written = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("[[") {
            section = format!("{}[]", name.trim_end_matches(']'));
        } else if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']').to_owned();
        } else if let Some((key, _)) = line.split_once(" = ")
            && !line.starts_with('#')
        {
            written.push(format!("{section}.{key}"));
        }
    }
    let keys = raw::keys();
    assert!(keys.len() >= 40, "{keys:?}");
    for key in &keys {
        assert!(written.contains(key), "config/hmkeeper.toml lacks {key}");
        assert!(
            MANUAL.contains(&format!("| `{key}` |")),
            "docs/configuration.md lacks {key}"
        );
    }
    let rows = MANUAL.lines().filter(|l| l.starts_with("| `")).count();
    assert_eq!(
        rows,
        keys.len(),
        "docs/configuration.md has keys of its own"
    );
}

#[test]
fn presets_are_valid() {
    let mut seen = 0;
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/config/presets")).unwrap()
    {
        let path = entry.unwrap().path();
        Config::load(Some(&path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        seen += 1;
    }
    assert!(seen > 0);
}

#[test]
fn all_faults_come_at_once_with_place_and_remedy() {
    let text = r#"
[profiling]
intervall = "10s"
interval = "10 parsecs"
scans = 0
overhead_limit = 1.5
sampler = "psychic"
initial_region = "64KiB"
minimum_region = "3MiB"

[policy]
name = "magic"

[migration]
bytes_per_second = 200
threads = "many"

[[tiers]]
name = "fast"
nodes = [0, 0]

[[targets]]
name = "db"
comm = "redis-server"
pid = 1

[[targets]]
name = "db"
comm = "a-name-of-more-than-15-bytes"

[[targets]]
kind = "batch"
"#;
    assert_eq!(
        faults(text),
        [
            "t.toml:3:1: profiling.intervall: unknown key; did you mean \"interval\"?",
            "t.toml:4:12: profiling.interval: \"10 parsecs\" is not a length of time; write a number and a unit: \"500ms\", \"10s\", \"2min\"",
            "t.toml:5:9: profiling.scans: 0 is not a whole number from 1 to 20; HM-Keeper uses 3",
            "t.toml:6:18: profiling.overhead_limit: 1.5 is not a number above 0, at most 1; write a share such as 0.05",
            "t.toml:7:11: profiling.sampler: \"psychic\" is not known here; choose \"auto\" or \"idle\" or \"damon\" or \"damon-paddr\" or \"referenced\"",
            "t.toml:9:18: profiling.minimum_region: is not a power of two up to 1 GiB; write \"4KiB\", \"8KiB\" … \"2MiB\" … \"1GiB\"",
            "t.toml:12:8: policy.name: \"magic\" is not known here; choose \"adaptive\" or \"hm-keeper\" or \"hm-keeper-hierarchical\" or \"ial\" or \"heat\" or \"age\" or \"hemem\" or \"thermostat\" or \"autonuma\" or \"memory-tiering\" or \"autotiering\" or \"first-touch\"",
            "t.toml:15:20: migration.bytes_per_second: 200 is not a size; write a number and a unit: \"64KiB\", \"200MiB\", \"1.5GiB\"",
            "t.toml:16:11: migration.threads: \"many\" is not a whole number from 1 to 64; or write \"auto\"",
            "t.toml:20:9: tiers[0].nodes: a list is not a list of nodes; write [0, 1] or \"0-1\", each node once",
            "t.toml:25:7: targets[0]: has 2 selectors: pid, comm; keep one of them",
            "t.toml:28:8: targets[1].name: targets[0] is named \"db\" too; give each its own name",
            "t.toml:29:8: targets[1].comm: \"a-name-of-more-than-15-bytes\" is longer than 15 bytes, where the kernel cuts names; write a glob, or use cmdline",
            "t.toml:31:1: targets[2]: selects nobody; write one of pid, comm, cmdline, cgroup, unit",
            "t.toml:32:8: targets[2].kind: \"batch\" is not known here; choose \"generic\" or \"dnn-training\"",
        ]
    );
}

#[test]
fn contradictions_are_found() {
    let one = |text: &str| {
        let faults = faults(text);
        assert_eq!(faults.len(), 1, "{faults:?}");
        faults.into_iter().next().unwrap()
    };
    let regions = one("[profiling]\nminimum_region = \"4MiB\"\n");
    assert!(regions.contains("2:18") && regions.contains("above initial_region \"2MiB\""));
    let regions = one("[profiling]\ninitial_region = \"32KiB\"\n");
    assert!(
        regions.contains("above initial_region \"32KiB\""),
        "{regions}"
    );
    let thresholds = one("[profiling]\nmerge_threshold = 0.9\n");
    assert!(thresholds.contains("above split_threshold"), "{thresholds}");
    let node = one("[[tiers]]\nname=\"a\"\nnodes=\"0-1\"\n[[tiers]]\nname=\"b\"\nnodes=[1]\n");
    assert!(node.contains("node 1 is in tier \"a\" already"), "{node}");
    let twice = one("[[targets]]\npid = 7\n[[targets]]\npid = 7\n");
    assert!(twice.contains("same processes as targets[0]"), "{twice}");
    let short = one("[profiling]\ninterval = \"99ms\"\n");
    assert!(short.contains("choose from 100ms to 1h"), "{short}");
}

#[test]
fn broken_toml_is_a_fault_with_a_place_and_the_others_are_still_found() {
    let faults = faults("[profiling]\ninterval = 10s\nscans = 99\n[targets\n");
    assert!(faults[0].starts_with("t.toml:2:"), "{faults:?}");
    assert!(faults[0].contains("write \"10s\""), "{faults:?}");
    assert!(
        faults
            .iter()
            .any(|f| f.starts_with("t.toml:3:9: profiling.scans")),
        "{faults:?}"
    );
    assert!(
        faults.iter().any(|f| f.starts_with("t.toml:4:")),
        "{faults:?}"
    );
}

#[test]
fn targets_are_read_whole() {
    let text = r#"
[[targets]]
name = "db"
cgroup = "/sys/fs/cgroup/system.slice/redis.service/"
kind = "dnn-training"
follow_children = true
include = ["[heap]", "0x1000-0x3000"]
exclude = ["*/libc*"]
move_bound = true
[[tiers]]
name = "all"
nodes = "0-2,4"
"#;
    let config = Config::parse(text, None).unwrap();
    let target = &config.targets[0];
    assert_eq!(
        target.selector,
        Selector::Cgroup("/system.slice/redis.service".into())
    );
    assert_eq!(target.kind, TargetKind::DnnTraining);
    assert!(target.follow_children && target.move_bound && !target.move_locked);
    assert_eq!(target.include[0], MappingFilter::Name("[heap]".into()));
    assert_eq!(
        config.tiers.as_ref().unwrap()[0].nodes,
        [0, 1, 2, 4].map(NodeId)
    );
    let warnings = config.warnings();
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].contains("target db"), "{warnings:?}");
}

#[test]
fn listening_can_be_switched_off() {
    let config = Config::parse(
        "[metrics]\nlisten = \"off\"\n[control]\nsocket = \"\"\n",
        None,
    );
    let config = config.unwrap();
    assert_eq!((config.listen, config.socket), (None, None));
    let wrong = faults("[metrics]\nlisten = \"localhost\"\n[control]\nsocket = \"run/x\"\n");
    assert_eq!(wrong.len(), 2, "{wrong:?}");
}

#[test]
fn no_kernel_keeps_less_or_more_of_a_pages_time() {
    let of = |bits: u32| format!("[policy.memory-tiering]\ntime_bits = {bits}\n");
    for bits in [12, 31] {
        let config = Config::parse(&of(bits), None).unwrap();
        assert_eq!(u32::from(config.policy.memory_tiering.time_bits), bits);
    }
    for bits in [11, 32] {
        let wrong = faults(&of(bits));
        assert!(wrong[0].contains("from 12 to 31"), "{wrong:?}");
        assert!(wrong[0].contains("time_bits"), "{wrong:?}");
    }
}

#[test]
fn a_named_file_must_exist() {
    let error = Config::load(Some(Path::new("/nonexistent/h.toml"))).unwrap_err();
    assert!(matches!(error, ConfigError::Unreadable { .. }));
    assert!(error.to_string().contains("/nonexistent/h.toml"), "{error}");
}

#[test]
fn what_the_manual_says_needs_a_restart_is_named_at_a_reload() {
    let text = "[daemon]\nseed = 9\nstate_dir = \"/run/other\"\n\
                [profiling]\nsampler = \"idle\"\nwrites = true\n\
                [metrics]\nlisten = \"off\"\n[control]\nsocket = \"off\"\n";
    let new = Config::parse(text, None).unwrap();
    let mut named = Config::default().restart_needed(&new);
    named.sort_unstable();
    // A reload does not apply it: the next one says so again.
    let reloaded = Config::default().reloaded(new.clone());
    let mut again = reloaded.restart_needed(&new);
    again.sort_unstable();
    assert_eq!(again, named);
    let rows = MANUAL.lines().filter(|line| line.starts_with("| `"));
    let mut documented: Vec<&str> = rows
        .filter(|line| line.contains("*restart*"))
        .filter_map(|line| line.split('`').nth(1))
        .collect();
    documented.sort_unstable();
    assert_eq!(named, documented);
}
