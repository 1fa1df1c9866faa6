//! The guests of the host's side: which machine they are, and what they are told to do.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::guest;
use crate::results::{BOUND, Job, Measured};
use crate::sets::Set;

/// Of memory on node 0, the fastest.
const FAST_NODE: &str = "320M";
/// The same where everything shall fit there.
const FAST_NODE_BOUND: &str = "2G";
/// The modelled machine (`tests/vm/tierlat`).
pub(crate) const MACHINE: &str = "hm-keeper";
/// CPUs of each socket: one for the workload, and one of node 0 for what the kernel and the
/// daemon do beside it (kswapd runs on its node's CPUs only).
const CPUS: &str = "2";
/// Seconds after which a guest is given up: in which a time is taken, and one for several short runs.
const TIMEOUT: &str = "1800";
const SHORT_TIMEOUT: &str = "600";
/// What vm-run says when a guest died: now and then one does when it boots, as tests/vm/run-tests
/// has it, and is started once more.
const GUEST_DIED: i32 = 126;

/// Runs these, one after the other, in one guest: the result of each. `shares`: with what the daemon
/// says meanwhile.
pub(crate) fn measure(
    jobs: &[&Job],
    set: &Set,
    shares: bool,
) -> Result<Vec<Result<Measured, String>>, String> {
    let node = if jobs.iter().any(|job| job.system == BOUND) {
        FAST_NODE_BOUND
    } else {
        FAST_NODE
    };
    let timeout = if set.is_timed() {
        TIMEOUT
    } else {
        SHORT_TIMEOUT
    };
    let mut args = vec![
        "guest".to_owned(),
        "--size".to_owned(),
        guest::size_name(set.size).to_owned(),
    ];
    if shares {
        args.push("--shares".to_owned());
    }
    args.extend(jobs.iter().map(|job| {
        let run = guest::Run {
            workload: job.workload.to_owned(),
            system: job.system.to_owned(),
            pace: job.pace,
        };
        run.to_string()
    }));
    let output = in_guest(node, timeout, &args)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut results = Vec::new();
    for line in text.lines() {
        let result: Result<Measured, String> =
            serde_json::from_str(line).map_err(|e| format!("result {line:?}: {e}"))?;
        results.push(result);
    }
    if results.len() < jobs.len() {
        results.resize(jobs.len(), Err(failure(&output)));
    }
    Ok(results)
}

/// Which of these systems the guest's kernel lacks something for, and what.
pub(crate) fn missing(systems: &[&'static str]) -> Result<Vec<(&'static str, String)>, String> {
    if systems.is_empty() {
        return Ok(Vec::new());
    }
    let args = ["missing"].iter().chain(systems).map(|&a| a.to_owned());
    let output = in_guest(FAST_NODE, SHORT_TIMEOUT, &args.collect::<Vec<_>>())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let whys: Vec<Option<String>> = text
        .lines()
        .map(|line| {
            let why = serde_json::from_str(line);
            why.map_err(|e| format!("{line:?}: {e}: {}", failure(&output)))
        })
        .collect::<Result<_, _>>()?;
    if whys.len() < systems.len() {
        return Err(failure(&output));
    }
    let all = systems.iter().copied().zip(whys);
    Ok(all.filter_map(|(name, why)| Some((name, why?))).collect())
}

/// This program with these arguments, in a guest.
fn in_guest(node: &str, timeout: &str, args: &[String]) -> Result<Output, String> {
    let me = std::env::current_exe().map_err(|e| format!("this program: {e}"))?;
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vm/vm-run"));
    command
        .args(["--latency", MACHINE, "--timeout", timeout, "--cpus", CPUS])
        .args(["--uncounted", "--node-size", &format!("0={node}"), "--"])
        .arg(me)
        .args(args)
        .stdin(Stdio::null());
    let mut run = || {
        let output = command.output();
        output.map_err(|e| format!("tests/vm/vm-run: {e}"))
    };
    let output = run()?;
    if output.status.code() == Some(GUEST_DIED) {
        return run();
    }
    Ok(output)
}

/// What it said last, and how it ended.
fn failure(output: &Output) -> String {
    // What the plugin counted comes last, and tells nothing of the failure.
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = said.lines().filter(|l| !l.starts_with("node ")).collect();
    let tail = lines[lines.len().saturating_sub(12)..].join("\n");
    format!("{}: {tail}", output.status)
}
