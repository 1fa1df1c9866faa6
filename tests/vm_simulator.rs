//! The simulator against the real thing: the same program on the model of this virtual
//! machine (`config/machines/vm-4tier.toml`) as the daemon runs beside here, and what the
//! model says of the fastest tier's share and of the bytes moved.
//!
// vm: topology=4tier timeout=400

mod common;

use common::{INTERVAL, Site, Workload, ballast, hmkeeper, in_guest, output_of, show};
use hmkeeper::demo::workload::lines::{ByNode, Line};
use hmkeeper::units::{Bytes, NodeId};
use serde_json::Value;

const BUFFER: Bytes = Bytes::from_mib(1024);
const PHASES: u32 = 3;
const PHASE_SECONDS: u32 = 20;
/// Percent of the buffer for which the fastest node has room: one and a half hot sets.
const FAST_PERCENT: u64 = 15;
/// How far the model may be off: points of the share, and of the bytes.
const SHARE_OFF: f64 = 0.05;
const BYTES_OFF: f64 = 0.25;

/// What `hmkeeper workload` does by itself: a tenth is swept all the time, in 64 pieces;
/// beside that each page is touched once in twenty seconds. `ACCESSES` and `COMPUTE` are
/// counted here: how fast this machine is.
const PROGRAM: &str = r#"
name = "demo"
folio = "4KiB"
time = "60s"
compute = "COMPUTE"
start = "slowest"
cycles = 3
[[objects]]
name = "buffer"
size = "1GiB"
writes = 0.25
parallel = 1024
pattern = { kind = "hot", share = 0.1, accesses = ACCESSES, chunks = 64, moves = true }
[[phases]]
length = 1
accesses = { buffer = 1 }
"#;

/// What a run came to.
#[derive(Debug)]
struct Outcome {
    fast_share: f64,
    promoted: f64,
    demoted: f64,
}

#[test]
fn the_model_says_what_happens() {
    if !in_guest() {
        return;
    }
    let site = Site::new();
    let (real, per_second) = real(&site);
    let model = model(&site, per_second);
    println!("real: {real:?}\nmodel: {model:?}");
    let off = (model.fast_share - real.fast_share).abs();
    assert!(off <= SHARE_OFF, "{off}: {model:?}, {real:?}");
    for (model, real) in [
        (model.promoted, real.promoted),
        (model.demoted, real.demoted),
    ] {
        assert!((model / real - 1.0).abs() <= BYTES_OFF, "{model}, {real}");
    }
}

/// Runs it here. Returns the accesses per second, too.
fn real(site: &Site) -> (Outcome, f64) {
    let _ballast = ballast(0, Bytes(BUFFER.0 / 100 * FAST_PERCENT));
    let mut workload = Workload::start(&[
        "--wait",
        &format!("--phases={PHASES}"),
        &format!("--phase-seconds={PHASE_SECONDS}"),
        "--start-node=3",
        "--cpus=0",
        &format!("--bytes={}", BUFFER.0),
    ]);
    site.write_config_of(workload.pid(), "");
    let mut command = hmkeeper();
    command.args(["run", "--config"]).arg(site.config());
    // What each epoch cost, for the figures of the machine's file.
    command.env("HMKEEPER_LOG", "debug");
    let mut daemon = site.start_as(command);
    daemon.until_watching(workload.pid());
    workload.go();
    let mut accesses = ByNode::default();
    for _ in 0..PHASES {
        let end = workload.next("a phase's end", |line| {
            matches!(line, Line::PhaseEnd { .. })
        });
        if let Line::PhaseEnd { accesses: more, .. } = end {
            accesses.add_all(&more);
        }
    }
    let (metrics, log) = (daemon.metrics(), daemon.log());
    daemon.stop();
    let of = |name| metrics.sum(name, &[]).unwrap_or(0.0);
    let samples = metrics.value("hmkeeper_samples", &[("target", "w")]);
    let pages = metrics.value("hmkeeper_move_pages_total", &[("result", "moved")]);
    let cpu = |kind| metrics.value("hmkeeper_own_cpu_seconds_total", &[("kind", kind)]);
    println!(
        "{samples} samples in the last epoch, profiling {:.3} s, {pages} pages moved in {:.3} s, \
         {} accesses",
        cpu("profiling"),
        cpu("migration"),
        accesses.total()
    );
    let costs: Vec<&str> = (log.lines())
        .filter_map(|line| line.split_once(" elapsed: "))
        .map(|(_, costs)| costs)
        .collect();
    println!("{}", costs.join("\n"));
    let outcome = Outcome {
        fast_share: accesses.share(&[NodeId(0)]).expect("accesses"),
        promoted: of("hmkeeper_promoted_bytes_total"),
        demoted: of("hmkeeper_demoted_bytes_total"),
    };
    let per_second = accesses.total() as f64 / f64::from(PHASES * PHASE_SECONDS);
    (outcome, per_second)
}

/// Runs it on the model.
fn model(site: &Site, per_second: f64) -> Outcome {
    let stray = BUFFER.as_f64() / 4096.0 / 20.0 / per_second;
    let nanos = 1e9 / per_second;
    let program = PROGRAM
        .replace("ACCESSES", &format!("{}", 1.0 - stray))
        .replace("COMPUTE", &format!("{nanos:.0}ns"));
    let (program_file, config) = (site.path("program.toml"), site.path("simulate.toml"));
    std::fs::write(&program_file, program).expect("writing");
    let interval = format!("[profiling]\ninterval = \"{}s\"\n", INTERVAL.as_secs());
    std::fs::write(&config, interval).expect("writing");
    let output = output_of(&[
        "simulate",
        "--machine=vm-4tier",
        &format!("--workload={}", program_file.display()),
        "--policy=hm-keeper",
        &format!("--config={}", config.display()),
        &format!("--fast-share=0.{FAST_PERCENT}"),
        "--json",
    ]);
    assert!(output.status.success(), "{}", show(&output));
    let runs: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let run = &runs[0];
    let of = |value: &Value| value.as_f64().expect("a number");
    let accesses: Vec<f64> = (run["tier_accesses"].as_array().expect("an array").iter())
        .map(of)
        .collect();
    Outcome {
        fast_share: accesses[0] / accesses.iter().sum::<f64>(),
        promoted: of(&run["promoted_bytes"]),
        demoted: of(&run["demoted_bytes"]),
    }
}
