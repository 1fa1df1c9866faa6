//! Recordings and traces as workloads of `hmkeeper simulate`: the binary itself, held
//! against the programs that they are of.

use std::path::Path;
use std::process::{Command, Output};

use hmkeeper::config::Config;
use hmkeeper::epoch::{EpochLoop, LoopSettings};
use hmkeeper::ports::TargetSpec;
use hmkeeper::record::file::Writer;
use hmkeeper::sim::hardware::Hardware;
use hmkeeper::sim::workload::Workload;
use hmkeeper::sim::{self, Machine, Process, Program, Touch};
use hmkeeper::tiering::observation::TargetId;
use hmkeeper::units::{NodeId, PageRange, Pid, VirtAddr};
use serde_json::Value;

const PID: Pid = Pid(7);
const BASE: u64 = 0x7f00_0000_0000;

/// With 1 GiB of fast memory and 8 GiB of slow.
fn machine() -> String {
    include_str!("fixtures/two-nodes.toml")
        .replacen("48MiB", "1GiB", 1)
        .replacen("48MiB", "8GiB", 1)
}

/// A sixth is hot, in pieces, somewhere else in each half.
const PROGRAM: &str = r#"
name = "jumps"
folio = "2MiB"
time = "20min"
compute = "50ns"
[[objects]]
name = "table"
size = "4GiB"
parallel = 4
pattern = { kind = "hot", share = 0.16, accesses = 0.9999995, chunks = 16, moves = true }
[[phases]]
length = 1
accesses = { table = 1 }
[[phases]]
length = 1
accesses = { table = 1 }
"#;

fn settings() -> LoopSettings {
    Config::default().loop_settings(1, false)
}

/// Runs the program under the daemon's loop, recorded in `file`; returns the share of its
/// accesses that the fastest node served, and its seconds.
fn record(file: &Path) -> (f64, f64) {
    let hardware = Hardware::parse(&machine()).unwrap();
    let workload = Workload::parse(PROGRAM).unwrap();
    let range = PageRange::new(VirtAddr(BASE), VirtAddr(BASE + workload.size().0)).unwrap();
    let mut machine = Machine::of(&hardware, 1);
    machine.start_on(
        Process {
            id: TargetId(0),
            pid: PID,
            name: "jumps".into(),
            range,
            touch: Touch::Program(Box::new(Program::new(workload, &hardware, 1))),
            home: hardware.home,
        },
        &[NodeId(0), NodeId(1)],
    );
    let machine = machine.shared();
    let tiers = hardware.tiers().unwrap();
    let mut epochs = EpochLoop::new(sim::ports(&machine), tiers, settings(), 1);
    epochs.select(&[TargetSpec::of_pid(PID)]);
    epochs.record(Box::new(Writer::append(file, 1).unwrap()));
    loop {
        epochs.turn().unwrap();
        let mut machine = machine.borrow_mut();
        let program = machine.program(PID).unwrap();
        if program.is_done() {
            let served = program.served();
            let (ran, held) = program.seconds();
            return (served[0] / served.iter().sum::<f64>(), ran + held);
        }
    }
}

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
    let output = simulate(&[&["--machine", &machine, "--json"], more].concat());
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn fast_share(run: &Value) -> f64 {
    let accesses = run["tier_accesses"].as_array().unwrap().iter();
    let accesses: Vec<f64> = accesses.filter_map(Value::as_f64).collect();
    accesses[0] / accesses.iter().sum::<f64>()
}

fn seconds(run: &Value) -> f64 {
    run["total_seconds"].as_f64().unwrap()
}

#[test]
fn a_recording_is_served_as_the_program_was_that_it_is_of() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("jumps.rec");
    let (share, took) = record(&file);
    let program = write(dir.path(), "jumps.toml", PROGRAM);
    let file = file.display().to_string();
    let policies = ["--policy", "first-touch,adaptive"];
    let both = format!("{program},{file}");
    let runs = runs(
        dir.path(),
        &[&["--workload", &both], &policies[..]].concat(),
    );
    let [untouched, _, first_touch, ours] = &runs[..] else {
        panic!("{runs:?}");
    };
    assert_eq!(ours["workload"], "jumps");
    assert_eq!(ours["bytes"].as_u64(), Some(4 << 30));
    // The recorded program was slowed down by slow memory, and its recording lasts so long.
    assert!(
        seconds(first_touch) > took,
        "{} {took}",
        seconds(first_touch)
    );
    let (again, nobody) = (fast_share(ours), fast_share(first_touch));
    assert!((again - share).abs() < 0.04, "{again} and {share}");
    let real = fast_share(untouched);
    assert!((nobody - real).abs() < 0.05, "{nobody} and {real}");
    assert!(share > real + 0.3, "{share} {real}");
}

/// Sixteen MiB, of which a quarter gets nearly all accesses, the other one in each half.
fn trace() -> String {
    use std::fmt::Write as _;

    const PAGES: u64 = 4096;
    let mut text = String::from("# a hot set that jumps\nseconds,address,count,writes\n");
    for second in 0..120_u64 {
        let first = if second < 60 { 3072 } else { 1024 };
        for page in 0..PAGES {
            let is_hot = (first..first + 1024).contains(&page);
            // What is cold is touched every other minute.
            let count = match (is_hot, (page + second) % 120 == 0) {
                (true, _) => 20,
                (false, true) => 1,
                (false, false) => continue,
            };
            let _ = writeln!(text, "{second}.5,{:#x},{count},0", BASE + page * 4096);
        }
    }
    text
}

#[test]
fn the_hot_set_of_a_trace_is_served_by_the_fastest_node() {
    let dir = tempfile::tempdir().unwrap();
    let trace = write(dir.path(), "jump.csv", &trace());
    let config = "[profiling]\ninterval = \"1s\"\n";
    let config = write(dir.path(), "short.toml", config);
    let args = [
        "--workload",
        &trace,
        "--fast-share",
        "0.3",
        "--config",
        &config,
        "--policy",
        "first-touch,adaptive,oracle",
    ];
    let once = runs(dir.path(), &args);
    let [first_touch, ours, knows] = &once[..] else {
        panic!("{once:?}");
    };
    assert_eq!(ours["workload"], "jump");
    assert_eq!(ours["bytes"].as_u64(), Some(4096 * 4096));
    // What lies first is hot in no half.
    assert!(
        fast_share(first_touch) < 0.15,
        "{}",
        fast_share(first_touch)
    );
    assert!(fast_share(ours) > 0.9, "{}", fast_share(ours));
    assert!(fast_share(knows) > 0.95, "{}", fast_share(knows));
    assert!(seconds(knows) < seconds(ours) && seconds(ours) < seconds(first_touch));
    // At best it takes as long as it was.
    assert!(
        (120.0..140.0).contains(&seconds(knows)),
        "{}",
        seconds(knows)
    );
    assert_eq!(runs(dir.path(), &args), once);
    let other = runs(dir.path(), &[&args[..], &["--seed", "2"]].concat());
    assert_ne!(other[1]["epochs"], ours["epochs"]);
}

#[test]
fn a_trace_may_come_from_a_pipe() {
    use std::io::Write as _;
    use std::process::Stdio;

    let dir = tempfile::tempdir().unwrap();
    let machine = write(dir.path(), "machine.toml", &machine());
    let mut child = Command::new(env!("CARGO_BIN_EXE_hmkeeper"))
        .args(["simulate", "--machine", &machine, "--json"])
        .args(["--workload", "/dev/stdin", "--policy", "first-touch"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    // Longer than what is looked at to tell what it is.
    for second in 0..20_000 {
        writeln!(input, "{second},{:#x}", BASE + 4096 * (second % 100)).unwrap();
    }
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let runs: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(runs[0]["bytes"].as_u64(), Some(100 * 4096));
    assert!(
        (seconds(&runs[0]) - 20_000.0).abs() < 20.0,
        "{}",
        runs[0]["total_seconds"]
    );
}

#[test]
fn what_cannot_be_played_is_said_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let machine = write(dir.path(), "machine.toml", &machine());
    let recording = dir.path().join("empty.rec");
    drop(Writer::append(&recording, 1).unwrap());
    let mut torn = std::fs::read(&recording).unwrap();
    torn[20] ^= 1;
    let other = dir.path().join("other.rec");
    std::fs::write(&other, torn).unwrap();
    let csv = write(dir.path(), "bad.csv", "seconds,address\n1,0x5000\n1,fee\n");
    let (recording, other) = (recording.display().to_string(), other.display().to_string());
    for (file, says, exits) in [
        (
            csv.as_str(),
            "bad.csv:3: \"fee\" is no address; write it as 0x",
            2,
        ),
        (
            &recording,
            "empty.rec: tells of no accesses; record for longer",
            2,
        ),
        (&other, "of the format, this hmkeeper has", 1),
    ] {
        let output = simulate(&["--machine", &machine, "--workload", file]);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(errors.contains(says), "{errors}");
        assert_eq!(output.status.code(), Some(exits), "{errors}");
    }
}
