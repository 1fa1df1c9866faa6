//! `hmkeeper simulate`, the binary itself, on a small machine and a small program, and in coarse tables on
//! those that come along.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// With 2 GiB of fast memory and 8 GiB of slow.
fn machine() -> String {
    include_str!("fixtures/two-nodes.toml")
        .replacen("48MiB", "2GiB", 1)
        .replacen("48MiB", "8GiB", 1)
}

/// What is touched first is cold: first-touch puts it on the fastest node.
const PROGRAM: &str = r#"
name = "cold-first"
folio = "2MiB"
time = "5min"
compute = "10ns"
[[objects]]
name = "cold"
size = "3GiB"
parallel = 4
pattern = { kind = "uniform" }
[[objects]]
name = "hot"
size = "1GiB"
writes = 0.3
parallel = 2
pattern = { kind = "uniform" }
[[phases]]
length = 1
accesses = { cold = 0.0000005, hot = 1 }
"#;

fn simulate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hmkeeper"))
        .arg("simulate")
        .args(args)
        .output()
        .unwrap()
}

fn write(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

fn runs(dir: &Path, more: &[&str]) -> Vec<Value> {
    let machine = write(dir, "machine.toml", &machine());
    let program = write(dir, "program.toml", PROGRAM);
    let mut args = vec!["--machine", &machine, "--workload", &program, "--json"];
    args.extend(more);
    let output = simulate(&args);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(run: &Value, key: &str) -> f64 {
    run[key]
        .as_f64()
        .unwrap_or_else(|| panic!("no {key} in {run}"))
}

#[test]
fn placement_is_worth_what_it_is_worth() {
    let dir = tempfile::tempdir().unwrap();
    let runs = runs(
        dir.path(),
        &["--policy", "first-touch,hm-keeper,oracle,oracle-static"],
    );
    let names: Vec<&str> = runs
        .iter()
        .filter_map(|run| run["policy"].as_str())
        .collect();
    assert_eq!(
        names,
        ["first-touch", "hm-keeper", "oracle", "oracle-static"]
    );
    let seconds: Vec<f64> = runs
        .iter()
        .map(|run| number(run, "total_seconds"))
        .collect();
    let [first_touch, ours, knows, best] = seconds[..] else {
        panic!("{seconds:?}");
    };
    assert!(best < knows && knows < ours, "{seconds:?}");
    assert!(ours < 0.8 * first_touch, "{seconds:?}");
    for run in &runs {
        assert_eq!(run["machine"], "small");
        assert_eq!(run["workload"], "cold-first");
        assert_eq!(run["seed"], 1);
        let accesses = run["tier_accesses"].as_array().unwrap();
        assert_eq!(accesses.len(), 2);
        let parts = number(run, "total_seconds") - number(run, "application_seconds");
        assert!((0.0..10.0).contains(&parts), "{run}");
    }
    assert!(number(&runs[0], "promoted_bytes") <= 0.0);
    assert!(number(&runs[0], "profiling_seconds") <= 0.0);
    // All that is hot was brought up, and what was in its way brought down.
    assert!(number(&runs[1], "promoted_bytes") >= 0.9 * f64::from(1 << 30));
    assert!(number(&runs[1], "demoted_bytes") > 0.0);
    assert!(number(&runs[1], "migration_seconds") > 0.0);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let dir = tempfile::tempdir().unwrap();
    let once = runs(dir.path(), &["--policy", "hm-keeper", "--seed", "7"]);
    let again = runs(dir.path(), &["--policy", "hm-keeper", "--seed", "7"]);
    assert_eq!(once, again);
    let other = runs(dir.path(), &["--policy", "hm-keeper", "--seed", "8"]);
    assert_ne!(once[0]["epochs"], other[0]["epochs"]);
}

#[test]
fn coarser_is_nearly_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let policies = ["--policy", "first-touch,hm-keeper,adaptive,oracle-static"];
    let fine = runs(dir.path(), &policies);
    let coarse = runs(dir.path(), &[&policies[..], &["--coarse", "2"]].concat());
    for (fine, coarse) in fine.iter().zip(&coarse) {
        assert_eq!((&fine["coarse"], &coarse["coarse"]), (&1.into(), &2.into()));
        for (key, near) in [
            ("total_seconds", 0.03),
            ("bytes", 0.01),
            ("profiling_seconds", 0.3),
            ("promoted_bytes", 0.5),
        ] {
            let (fine, coarse) = (number(fine, key), number(coarse, key));
            let differs = (fine - coarse).abs() / fine.max(1.0);
            assert!(differs <= near, "{key}: {fine} {coarse}");
        }
    }
}

#[test]
fn the_fast_share_is_that_of_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let runs = runs(
        dir.path(),
        &["--policy", "oracle-static", "--fast-share", "0.125"],
    );
    assert!((number(&runs[0], "fast_share") - 0.125).abs() < 0.001);
    let accesses: Vec<f64> = (runs[0]["tier_accesses"].as_array().unwrap().iter())
        .filter_map(Value::as_f64)
        .collect();
    // An eighth is half of what is hot.
    let share = accesses[0] / accesses.iter().sum::<f64>();
    assert!((share - 0.5).abs() < 0.01, "{share}");
}

#[test]
fn who_knows_the_future_has_the_same_time_and_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let promoted = |more: &[&str]| -> Vec<f64> {
        let runs = runs(dir.path(), &[&["--policy", "oracle"], more].concat());
        let epochs = runs[0]["epochs"].as_array().unwrap();
        epochs
            .iter()
            .map(|epoch| number(epoch, "promoted_bytes"))
            .collect()
    };
    let folio = f64::from(2 << 20);
    // In 10 ms of each epoch 48 folios of 210 us each: half of them make room.
    let config = write(dir.path(), "short.toml", "[migration]\nshare = 0.001\n");
    let all = promoted(&["--config", &config]);
    assert!(all.iter().all(|bytes| *bytes <= 25.0 * folio), "{all:?}");
    assert!(all[0] >= 20.0 * folio, "{all:?}");
    assert!(promoted(&[])[0] > 400.0 * folio);
    // A rate counts what makes room, too.
    let config = "[migration]\nbytes_per_second = \"4MiB\"\n";
    let config = write(dir.path(), "slow.toml", config);
    let slow = promoted(&["--config", &config]);
    let most = 4.0 * 1_048_576.0 * 10.0 * 0.5;
    assert!(slow.iter().all(|bytes| *bytes <= most / 2.0), "{slow:?}");
    assert!(slow[0] > 0.0, "{slow:?}");
}

#[test]
fn memory_mode_needs_memory_behind_a_cache() {
    let dir = tempfile::tempdir().unwrap();
    let there = runs(dir.path(), &["--policy", "memory-mode"]);
    // A gigabyte is hot and fits, but what is cold shares its places.
    let accesses = there[0]["tier_accesses"].as_array().unwrap();
    let accesses: Vec<f64> = accesses.iter().filter_map(Value::as_f64).collect();
    assert!(
        accesses[0] > 0.99 * (accesses[0] + accesses[1]),
        "{accesses:?}"
    );
    let dram = machine().replace("\"cxl\"", "\"dram\"");
    let (machine, program) = (
        write(dir.path(), "dram.toml", &dram),
        write(dir.path(), "program.toml", PROGRAM),
    );
    let common = ["--machine", &machine, "--workload", &program, "--policy"];
    let named = simulate(&[&common[..], &["memory-mode"]].concat());
    assert_eq!(named.status.code(), Some(1), "{named:?}");
    let errors = String::from_utf8_lossy(&named.stderr).into_owned();
    assert!(errors.contains("behind a cache"), "{errors}");
    let all = simulate(&[&common[..], &["all"]].concat());
    assert!(all.status.success(), "{all:?}");
    let errors = String::from_utf8_lossy(&all.stderr).into_owned();
    assert!(
        errors.starts_with("left out: cold-first on small under memory-mode"),
        "{errors}"
    );
    let table = String::from_utf8_lossy(&all.stdout).into_owned();
    assert!(
        table.contains("hm-keeper") && !table.contains("memory-mode"),
        "{table}"
    );
}

#[test]
fn what_cannot_be_simulated_is_said_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let broken = write(
        dir.path(),
        "broken.toml",
        &machine().replace("\"2GiB\"", "\"2 gigs\""),
    );
    for (args, needle) in [
        (
            ["--machine", "optane", "--workload", "gups"],
            "--machine: \"optane\" is not known here; choose all, a file, or of optane-4tier",
        ),
        (
            ["--machine", "cxl-2tier", "--workload", "nothing.toml"],
            "nothing.toml: No such file",
        ),
        (
            ["--machine", &broken, "--workload", "gups"],
            "broken.toml:20:8: \"2 gigs\" is not a size",
        ),
    ] {
        let output = simulate(&args);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(errors.contains(needle), "{errors}");
        assert!(!output.status.success());
    }
    let output = simulate(&["--machine", "all", "--workload", "all", "--fast-share", "2"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

/// The order of two that differ in nothing but what they do, over all corners.
#[test]
fn a_sweep_says_which_orders_survive() {
    let dir = tempfile::tempdir().unwrap();
    let machine = write(dir.path(), "machine.toml", &machine());
    let program = write(dir.path(), "program.toml", PROGRAM);
    let args = ["--machine", &machine, "--workload", &program, "--sweep"];
    let policies = ["--coarse", "8", "--policy", "first-touch,hemem,adaptive"];
    let output = simulate(&[&args[..], &policies, &["--json"]].concat());
    assert!(output.status.success(), "{output:?}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let orders = found["orders"].as_array().unwrap();
    assert_eq!(orders.len(), 3, "{orders:?}");
    for policy in ["hemem", "adaptive"] {
        let order = orders
            .iter()
            .find(|order| order["first"] == policy && order["second"] == "first-touch");
        let order = order.unwrap_or_else(|| panic!("{policy} is not ahead: {orders:?}"));
        // Whatever the figures are, what is hot lies on the slow node without them.
        assert_eq!(order["verdict"], "survives", "{order}");
        assert!(number(order, "least") > 0.01, "{order}");
        assert!(
            number(order, "most") > number(order, "least") + 0.1,
            "{order}"
        );
    }
    let runs = found["runs"].as_array().unwrap();
    assert_eq!(runs.len() % 3, 0);
    let plain = runs.iter().find(|run| run["corner"] == "as it is").unwrap();
    let alone = simulate(
        &[
            &args[..4],
            &["--coarse", "8", "--policy", "first-touch", "--json"],
        ]
        .concat(),
    );
    let alone: Value = serde_json::from_slice(&alone.stdout).unwrap();
    assert_eq!(plain["total_seconds"], alone[0]["total_seconds"]);
    assert_eq!(
        (&plain["coarse"], &alone[0]["coarse"]),
        (&8.into(), &8.into())
    );

    let table = simulate(&[&args[..], &policies].concat());
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    // A head, the orders, and how coarse it was.
    assert_eq!(table.lines().count(), 5, "{table}");
    assert!(table.contains("\n8 folios are taken for one"), "{table}");
    assert!(table.contains("survives"), "{table}");
    let one = simulate(&[&args[..], &["--policy", "hemem"]].concat());
    assert_eq!(one.status.code(), Some(2), "{one:?}");
}

/// Seconds that a program, of the fixtures if it is a file, takes under `adaptive`, with such a profiling, as a
/// share of what it takes under first-touch.
fn where_bandwidth_is_short(machine: &str, workload: &str, profiling: &str) -> f64 {
    let dir = tempfile::tempdir().unwrap();
    let config = write(
        dir.path(),
        "config.toml",
        &format!("[profiling]\n{profiling}\n"),
    );
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let [machine, workload] = [machine, workload].map(|name| {
        if Path::new(name).extension().is_some() {
            fixtures.join(name).display().to_string()
        } else {
            name.to_owned()
        }
    });
    let mut args = vec!["--machine", &machine, "--workload", &workload, "--json"];
    args.extend(["--policy=first-touch,adaptive", "--coarse=32"]);
    args.extend(["--config", &config]);
    let output = simulate(&args);
    assert!(output.status.success(), "{output:?}");
    let runs: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let seconds = |at: usize| runs[at]["total_seconds"].as_f64().unwrap();
    seconds(1) / seconds(0)
}

#[test]
fn what_one_node_has_no_bandwidth_for_is_spread_over_two() {
    let took = |profiling| where_bandwidth_is_short("narrow.toml", "fits.toml", profiling);
    let (with, without) = (took("latency = true"), took("latency = false"));
    assert!(with < 0.75, "{with}");
    assert!((without - 1.0).abs() < 0.01, "{without}");
}

#[test]
fn what_is_written_leaves_the_node_that_has_no_bandwidth_for_it() {
    let took = |profiling| where_bandwidth_is_short("cxl-2tier", "halves.toml", profiling);
    assert!(took("latency = true\nwrites = true") < 0.7);
    let not_asked = took("latency = true\nwrites = false");
    assert!((not_asked - 1.0).abs() < 0.01, "{not_asked}");
    // Where both nodes are at their limits as it is, nothing is made worse.
    let took = where_bandwidth_is_short(
        "autotm-2tier",
        "halves.toml",
        "latency = true\nwrites = true",
    );
    assert!(took < 1.01, "{took}");
}

#[test]
fn what_a_sweep_writes_leaves_it_too() {
    let took = |machine, profiling| where_bandwidth_is_short(machine, "stream", profiling);
    for (machine, most) in [
        ("optane-4tier", 0.85),
        ("sentinel-2tier", 0.9),
        ("autotm-2tier", 0.7),
        ("cxl-2tier", 0.75),
    ] {
        // By default.
        let took = took(machine, "");
        assert!(took < most, "{machine}: {took}");
    }
    let not_asked = took("cxl-2tier", "writes = false");
    assert!(not_asked > 0.98, "{not_asked}");
}

/// Seconds of a machine and a program under each policy.
type Pair = BTreeMap<String, f64>;

/// How many times as long one policy takes as another, in geometric mean over these pairs.
fn times_as_long(pairs: &[&Pair], one: &str, other: &str) -> f64 {
    let logs = pairs.iter().map(|pair| (pair[one] / pair[other]).ln());
    (logs.sum::<f64>() / pairs.len() as f64).exp()
}

/// What docs/policies.md says of the machines and programs that we ship: of three machines on a coarser model than its tables
/// are of, in the long form of all on the same.
#[test]
fn what_is_said_of_all_machines_and_programs_holds() {
    let is_long = std::env::var_os("HMKEEPER_LONG").is_some();
    // As coarse as the tables of docs/policies.md; in the short form twice as coarse, where a unit is more than
    // `stream` moves at once, so that peers are not compared.
    let (machines, count, coarse) = if is_long {
        ("all", 66, "32")
    } else {
        ("optane-4tier,sentinel-2tier,cxl-2tier", 33, "64")
    };
    // Those that come nearest.
    let others = ["hemem", "ial", "memory-tiering"];
    let mut policies = "first-touch,adaptive,hm-keeper,oracle".to_owned();
    if is_long {
        policies.extend(others.map(|other| format!(",{other}")));
    }
    let output = simulate(&[
        "--machine",
        machines,
        "--workload",
        "all",
        "--policy",
        &policies,
        "--coarse",
        coarse,
        "--json",
    ]);
    assert!(output.status.success(), "{output:?}");
    let runs: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let mut pairs: BTreeMap<(String, String), Pair> = BTreeMap::new();
    for run in &runs {
        let text = |key: &str| run[key].as_str().unwrap().to_owned();
        let pair = pairs
            .entry((text("machine"), text("workload")))
            .or_default();
        pair.insert(text("policy"), number(run, "total_seconds"));
    }
    assert_eq!(pairs.len(), count);
    for (names, pair) in &pairs {
        let by = pair["adaptive"] / pair["first-touch"];
        assert!(by <= 1.01, "{names:?}: {by} times as long as first touch");
        for other in others.iter().filter(|_| is_long) {
            let by = pair["adaptive"] / pair[*other];
            assert!(by <= 1.02, "{names:?}: {by} times as long as {other}");
        }
    }
    let all: Vec<&Pair> = pairs.values().collect();
    // Where placement matters.
    let gains = (all.iter().copied()).filter(|p| p["oracle"] < 0.95 * p["first-touch"]);
    let gains: Vec<&Pair> = gains.collect();
    let behind_oracle = times_as_long(&all, "adaptive", "oracle");
    let ahead = times_as_long(&gains, "hm-keeper", "adaptive");
    println!(
        "{} pairs matter; adaptive takes {behind_oracle:.3} times as long as oracle, hm-keeper \
         {ahead:.3} times as long as adaptive",
        gains.len()
    );
    assert!(behind_oracle <= 1.1 && ahead >= 1.1, "{pairs:#?}");
}

/// Share of the accesses that the fastest tier serves of one that has epochs of 3.3 s, under `adaptive`, from
/// one second to another.
fn share_while(workload: &str, machine: &str, seed: u64, (from, to): (f64, f64)) -> f64 {
    let dir = tempfile::tempdir().unwrap();
    let config = write(dir.path(), "c.toml", "[profiling]\ninterval = \"3.3s\"\n");
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let fixture = |name| fixtures.join(name).display().to_string();
    let (machine, workload, seed) = (fixture(machine), fixture(workload), seed.to_string());
    let mut args = vec!["--machine", &machine, "--workload", &workload, "--json"];
    args.extend(["--policy=adaptive", "--config", &config, "--seed", &seed]);
    let output = simulate(&args);
    assert!(output.status.success(), "{output:?}");
    let runs: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let epochs = runs[0]["epochs"].as_array().unwrap().iter();
    let then = epochs.filter(|e| (from..to).contains(&number(e, "at")));
    let (mut fast, mut all) = (0.0, 0.0);
    for epoch in then {
        let accesses = epoch["tier_accesses"].as_array().unwrap();
        fast += accesses[0].as_f64().unwrap();
        all += accesses.iter().filter_map(Value::as_f64).sum::<f64>();
    }
    fast / all
}

/// Of 32 MiB that are hot another one is each half second, and pays for its moves by little.
#[test]
fn what_drifts_is_followed_to_the_end() {
    for seed in [1, 4, 6] {
        for (from, to) in [(10.0, 20.0), (20.0, 30.0), (30.0, 40.0), (40.0, f64::MAX)] {
            let share = share_while("drift.toml", "dear-moves.toml", seed, (from, to));
            assert!(share > 0.5, "seed {seed}, from {from} s: {share}");
        }
    }
}

/// Windows see little of pages that are used once a second. What is given back at first to have an eighth of the node
/// free takes of the time for what is followed: without that it is 0.66.
#[test]
fn what_is_seldom_used_is_followed_if_it_stands_out() {
    let share = |seed| share_while("visits-drift.toml", "visits.toml", seed, (8.0, 29.0));
    let mean = (1..=8).map(share).sum::<f64>() / 8.0;
    assert!(mean > 0.64, "{mean}");
}
