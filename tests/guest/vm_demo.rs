//! The demo: the fastest tier serves what is hot, with the daemon and only
//! with it; and it cleans up, also when it is interrupted.
//!
// vm: topology=4tier timeout=300

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hmkeeper::sys::process::signal;
use serde_json::Value;

use crate::common::{
    PATIENCE, Signal, hmkeeper, in_guest, output_of, short_or_full, show, wait_for,
};

fn demo(more: &[&str]) -> Value {
    let begin = Instant::now();
    let output = output_of(&[&["demo", "--json"], more].concat());
    assert!(output.status.success(), "{}", show(&output));
    println!(
        "demo {more:?}, {:?}: {}",
        begin.elapsed(),
        String::from_utf8_lossy(&output.stdout)
    );
    assert!(
        begin.elapsed() < Duration::from_secs(180),
        "it took {:?}",
        begin.elapsed()
    );
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("not one JSON object: {e}: {}", show(&output)))
}

fn fast_shares(outcome: &Value) -> Vec<f64> {
    let phases = outcome["phases"].as_array().expect("phases");
    let share = |p: &Value| p["true_fast_share"].as_f64().expect("true_fast_share");
    phases.iter().map(share).collect()
}

#[test]
fn with_the_daemon_the_fastest_tier_serves_90_percent() {
    if !in_guest() {
        return;
    }
    // README's command, but that the short form has one jump of the hot set.
    let phases = short_or_full(2, 3);
    let outcome = demo(short_or_full(&["--phases", "2"][..], &[]));
    let shares = fast_shares(&outcome);
    assert_eq!(shares.len(), phases, "{outcome:#}");
    assert!(shares.iter().all(|&s| s >= 0.9), "{shares:?}: {outcome:#}");
    for phase in outcome["phases"].as_array().expect("phases") {
        assert!(phase["epochs"].as_u64() > Some(4), "{phase:#}");
        let estimate = phase["estimated_fast_share"].as_f64();
        assert!(
            estimate.is_some_and(|e| (0.0..=1.0).contains(&e)),
            "{phase:#}"
        );
    }
    let last = &outcome["phases"][phases - 1];
    assert!(last["demoted_bytes"].as_u64() > Some(0), "{outcome:#}");
}

#[test]
fn without_it_below_35_percent() {
    if !in_guest() {
        return;
    }
    let (phases, seconds) = short_or_full(("1", "10"), ("3", "20"));
    let outcome = demo(&["--baseline", "--phases", phases, "--phase-seconds", seconds]);
    let shares = fast_shares(&outcome);
    assert!(shares.iter().all(|&s| s < 0.35), "{shares:?}: {outcome:#}");
}

/// Processes below this one, with their command lines.
fn descendants(pid: u32) -> Vec<(u32, String)> {
    let mut all = Vec::new();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    for child in children.unwrap_or_default().split_whitespace() {
        let child: u32 = child.parse().expect("a pid");
        let line = fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
        all.push((child, line.replace('\0', " ")));
        all.extend(descendants(child));
    }
    all
}

fn start_and_wait_for_all_three() -> (Child, Vec<(u32, String)>, String) {
    let mut demo = hmkeeper()
        .args(["demo", "--phases", "9"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starting the demo");
    let children = wait_for("ballast, workload and daemon", PATIENCE, || {
        if let Ok(Some(status)) = demo.try_wait() {
            panic!("the demo ended: {status}");
        }
        let all = descendants(demo.id());
        let has = |word: &str| all.iter().any(|(_, line)| line.contains(word));
        if has("ballast") && has("--wait") && has(" run ") {
            Ok(all)
        } else {
            Err(format!("{all:?}"))
        }
    });
    let dir = std::env::temp_dir().join(format!("hmkeeper-demo-{}", demo.id()));
    let dir = dir.to_str().expect("a path").to_owned();
    assert!(Path::new(&dir).exists(), "{dir}");
    (demo, children, dir)
}

fn assert_gone(children: &[(u32, String)]) {
    wait_for("the children's end", PATIENCE, || {
        let left: Vec<_> = children
            .iter()
            .filter(|(pid, _)| {
                let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
                // Nobody waits for an orphan here but the guest's first process.
                stat.is_ok_and(|s| !s.contains(") Z "))
            })
            .collect();
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("{left:?}"))
        }
    });
}

#[test]
fn interrupted_it_cleans_up() {
    if !in_guest() {
        return;
    }
    let (mut demo, children, dir) = start_and_wait_for_all_three();
    signal(demo.id(), Signal::SIGINT).expect("SIGINT");
    let status = wait_for("the demo's end", PATIENCE, || {
        let ended = demo.try_wait().map_err(|e| e.to_string())?;
        ended.ok_or_else(|| "it runs".to_owned())
    });
    assert_eq!(status.code(), Some(1), "{status}");
    assert_gone(&children);
    assert!(!Path::new(&dir).exists(), "{dir} is left");
}

#[test]
fn killed_it_takes_its_children_along() {
    if !in_guest() {
        return;
    }
    let (mut demo, children, dir) = start_and_wait_for_all_three();
    signal(demo.id(), Signal::SIGKILL).expect("SIGKILL");
    demo.wait().expect("waiting for the demo");
    assert_gone(&children);
    // What no process can do any more.
    let status = Command::new("rm").args(["-r", &dir]).status();
    assert!(status.expect("rm").success());
}
