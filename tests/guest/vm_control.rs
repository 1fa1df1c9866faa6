//! What an operator asks of a running daemon is done to the target, as seen from outside
//! of both: nothing moves in a dry run or while paused, and who is detached is let go.
//!
// vm: topology=4tier timeout=600

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use hmkeeper::sys::move_pages::{self, Which};
use hmkeeper::units::NodeId;
use serde_json::Value;

use crate::common::{
    Daemon, PATIENCE, Site, Workload, body, hmkeeper, in_guest, locate, long, pid_of, share, show,
    target, until_hot_on, wait_for,
};

/// One that has begun.
fn workload() -> Workload {
    let mut workload = Workload::small();
    workload.phase();
    workload
}

/// Whether `reason` is why nothing is moved for anybody.
fn is_paused(daemon: &Daemon, reason: &str) -> bool {
    let metrics = daemon.metrics();
    metrics.value("hmkeeper_paused", &[("reason", reason)]) > 0.0
}

/// Every page of it is where it began.
fn assert_unmoved(workload: &Workload) {
    let pages = locate(workload.pid(), &[workload.range]);
    assert!(share(&pages, &[3]) > 0.999, "pages moved: {pages:?}");
}

fn tell(daemon: &Daemon, verb: &[&str]) {
    let output = daemon.control(verb);
    assert!(output.status.success(), "{verb:?}: {}", show(&output));
}

#[test]
fn a_dry_run_plans_and_moves_nothing() {
    if !in_guest() {
        return;
    }
    let mut workload = workload();
    let site = Site::new();
    site.write_config(&body(workload.pid(), ""));
    let mut command = hmkeeper();
    command.args(["run", "--dry-run", "--config"]);
    command.arg(site.config());
    let mut daemon = site.start_as(command);
    daemon.until_watching(workload.pid());
    let planned = |status: &serde_json::Value| {
        let moves = target(status, workload.pid()).and_then(|t| t["moves"].as_array());
        let bytes = moves.into_iter().flatten().map(|m| &m["planned_bytes"]);
        bytes.filter_map(serde_json::Value::as_u64).sum::<u64>()
    };
    wait_for("a plan", PATIENCE, || {
        let status = daemon.epochs(1);
        (planned(&status) > 0)
            .then_some(())
            .ok_or_else(|| format!("{status:#}"))
    });
    // An operator sees it, with why, and the log has it too.
    let output = daemon.control(&["status"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        text.contains("PLANNED is what would be moved now"),
        "{text}"
    );
    let is_row = |line: &str| line.starts_with("  promoted") && line.contains("MiB");
    assert!(text.lines().any(is_row), "{text}");
    let log = daemon.log();
    assert!(log.contains("would move") && log.contains("(hot "), "{log}");
    daemon.epochs(3);
    assert!(is_paused(&daemon, "dry-run"));
    let moved = daemon.metrics().moved_bytes();
    assert!(moved < 1.0, "{moved} bytes moved");
    assert_unmoved(&workload);
    workload.assert_alive();
    daemon.stop();
}

/// Bytes of a process's own memory on each node, as the kernel counts them.
fn numa_maps(pid: u32) -> BTreeMap<u32, u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/numa_maps")).expect("numa_maps");
    let mut nodes = BTreeMap::new();
    for line in text.lines() {
        if line.contains(" file=") || !line.contains(" anon=") {
            continue;
        }
        for word in line.split(' ') {
            let on = word.strip_prefix('N').and_then(|word| {
                let (node, pages) = word.split_once('=')?;
                Some((node.parse::<u32>().ok()?, pages.parse::<u64>().ok()?))
            });
            if let Some((node, pages)) = on {
                *nodes.entry(node).or_insert(0) += pages * 4096;
            }
        }
    }
    nodes
}

/// By how many bytes more the status is wrong than it says, on the tier where that is worst;
/// 2 % of all is near enough.
fn beyond(status: &Value, pid: u32, is: &BTreeMap<u32, u64>) -> i128 {
    let all: u64 = is.values().sum();
    let tiers = target(status, pid).and_then(|t| t["tiers"].as_array());
    let nodes_of = |name: &Value| -> Vec<u32> {
        let tiers = status["tiers"].as_array().expect("tiers");
        let tier = tiers.iter().find(|t| t["name"] == *name).expect("a tier");
        let nodes = tier["nodes"].as_array().expect("nodes");
        let nodes = nodes.iter().filter_map(Value::as_u64);
        nodes.filter_map(|n| u32::try_from(n).ok()).collect()
    };
    let worst = tiers.into_iter().flatten().map(|tier| {
        let bytes = |key: &str| i128::from(tier[key].as_u64().expect("bytes"));
        let there = nodes_of(&tier["tier"])
            .iter()
            .filter_map(|n| is.get(n))
            .sum::<u64>();
        let wrong = (bytes("resident_bytes") - i128::from(there)).abs();
        wrong - bytes("resident_error_bytes").max(i128::from(all / 50))
    });
    worst.max().expect("tiers of the target")
}

#[test]
fn where_memory_lies_agrees_with_the_kernel_or_is_told_with_its_error() {
    if !in_guest() {
        return;
    }
    let mut workload = workload();
    let pid = workload.pid();
    let site = Site::new();
    site.write_config(&body(pid, ""));
    let mut daemon = site.start();
    daemon.until_watching(pid);
    // While it is moved.
    let until = Instant::now() + Duration::from_secs(12);
    let (mut looks, mut last) = (0, Value::Null);
    while Instant::now() < until {
        // Between two looks at the status: pages may go on moving, to where the plan says.
        let status = daemon.status();
        let is = numa_maps(pid);
        if target(&status, pid).is_some() && daemon.status()["epoch"] == status["epoch"] {
            let beyond = beyond(&status, pid, &is);
            assert!(beyond <= 0, "{beyond} bytes beyond: {is:?}, {status:#}");
            looks += 1;
        }
        last = status;
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(looks >= 5, "{looks} looks; seen last: {last:#}");
    // When it has settled what is told is near, however it is told.
    until_hot_on(&[0], &workload, &daemon);
    let exact = |status: &Value| {
        let error: u64 = (target(status, pid).and_then(|t| t["tiers"].as_array()))
            .into_iter()
            .flatten()
            .filter_map(|tier| tier["resident_error_bytes"].as_u64())
            .sum();
        let is = numa_maps(pid);
        let near = beyond(status, pid, &is) <= 0 && error < 64 << 20;
        near.then_some(())
            .ok_or_else(|| format!("{is:?}, {status:#}"))
    };
    wait_for("a settled target", PATIENCE, || exact(&daemon.epochs(1)));
    if long() {
        // Somebody else moves a quarter of it away: within a round of recounts that is seen.
        let pages: Vec<_> = workload.range.iter_pages().collect();
        let quarter = &pages[pages.len() / 2..pages.len() * 3 / 4];
        for slice in quarter.chunks(1024) {
            move_pages::move_to(pid_of(pid), slice, NodeId(1), Which::All)
                .expect("moving its pages");
        }
        wait_for("what somebody else moved", PATIENCE, || {
            let status = daemon.epochs(1);
            let is = numa_maps(pid);
            let beyond = beyond(&status, pid, &is);
            (beyond <= 0)
                .then_some(())
                .ok_or_else(|| format!("{beyond}: {is:?}, {status:#}"))
        });
    }
    workload.assert_alive();
    daemon.stop();
}

/// A file of the kernel that is put back.
struct PutBack {
    file: &'static str,
    text: String,
}

impl PutBack {
    fn write(file: &'static str, text: &str) -> Self {
        let before = fs::read_to_string(file).unwrap_or_else(|e| panic!("{file}: {e}"));
        fs::write(file, text).unwrap_or_else(|e| panic!("{file}: {e}"));
        Self { file, text: before }
    }
}

impl Drop for PutBack {
    fn drop(&mut self) {
        let _ = fs::write(self.file, &self.text);
    }
}

#[test]
fn who_else_moves_pages_and_who_takes_damon_is_told() {
    if !in_guest() {
        return;
    }
    let mut workload = workload();
    let pid = workload.pid();
    let site = Site::new();
    site.write_config(&body(pid, "sampler = \"damon\""));
    let mut daemon = site.start();
    daemon.until_watching(pid);
    let samples =
        |status: &Value| target(status, pid).map_or(0, |t| t["samples"].as_u64().unwrap_or(0));
    wait_for("samples", PATIENCE, || {
        let status = daemon.epochs(1);
        (samples(&status) > 0)
            .then_some(())
            .ok_or_else(|| format!("{status:#}"))
    });
    assert_eq!(daemon.status()["other_movers"], serde_json::json!([]));

    let balancing = PutBack::write("/proc/sys/kernel/numa_balancing", "2");
    wait_for("the kernel's balancing", PATIENCE, || {
        let status = daemon.epochs(1);
        let told = status["other_movers"][0]["name"] == "numa-balancing";
        told.then_some(()).ok_or_else(|| format!("{status:#}"))
    });
    daemon.epochs(2);
    let series = [("mover", "numa-balancing")];
    let other = daemon.metrics().value("hmkeeper_other_movers", &series);
    assert!(other > 0.0);
    let text = daemon.control(&["status"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(
        text.contains("moves pages too: the kernel's NUMA balancing (mode 2)"),
        "{text}"
    );
    let log = daemon.log();
    assert_eq!(
        log.matches("NUMA balancing (mode 2) moves pages too")
            .count(),
        1,
        "{log}"
    );
    drop(balancing);
    wait_for("its end", PATIENCE, || {
        let status = daemon.epochs(1);
        let gone = status["other_movers"] == serde_json::json!([]);
        gone.then_some(()).ok_or_else(|| format!("{status:#}"))
    });

    // Only while none runs: between two sets of scans.
    let kdamonds = "/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds";
    let until = Instant::now() + PATIENCE;
    while fs::write(kdamonds, "2").is_err() {
        assert!(Instant::now() < until, "it always runs");
        std::thread::sleep(Duration::from_millis(1));
    }
    wait_for("why nothing is observed", PATIENCE, || {
        let status = daemon.status();
        let why = status["trouble"].as_str().unwrap_or_default();
        let told = why.contains("somebody else has set up kdamonds (2)");
        told.then_some(()).ok_or_else(|| format!("{status:#}"))
    });
    let text = daemon.control(&["status"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("nothing is observed: "), "{text}");
    fs::write(kdamonds, "0").expect("giving DAMON back");
    wait_for("samples again", PATIENCE, || {
        let status = daemon.status();
        let again = samples(&status) > 0 && status["trouble"].is_null();
        again.then_some(()).ok_or_else(|| format!("{status:#}"))
    });
    workload.assert_alive();
    daemon.stop();
}

#[test]
fn who_pauses_resumes_and_detaches_is_obeyed() {
    if !in_guest() {
        return;
    }
    let (mut first, mut second) = (workload(), workload());
    let site = Site::new();
    // Nobody is watched before it is paused: what it sees of the first epochs is enough to move something.
    let pid = format!("pid = {}", first.pid());
    site.write_config(&body(first.pid(), "").replace(&pid, "comm = \"nobody\""));
    let mut daemon = site.start();
    wait_for("a daemon that pauses", PATIENCE, || {
        let output = daemon.control(&["pause"]);
        let done = output.status.success().then_some(());
        done.ok_or_else(|| show(&output))
    });
    tell(&daemon, &["attach", &first.pid().to_string()]);
    daemon.until_watching(first.pid());
    daemon.epochs(1);
    let before = daemon.metrics().moved_bytes();
    let status = daemon.epochs(4);
    assert!(is_paused(&daemon, "operator"), "{status:#}");
    let moved = daemon.metrics().moved_bytes() - before;
    assert!(moved < 1.0, "{moved} bytes moved while paused");
    assert_unmoved(&first);
    tell(&daemon, &["resume"]);
    until_hot_on(&[0], &first, &daemon);
    // What is said is of the last epoch, and pages move in the one after it.
    daemon.epochs(1);
    assert!(!is_paused(&daemon, "operator"));

    // Watched while paused, and let go before it could be moved.
    tell(&daemon, &["pause"]);
    let pid = second.pid().to_string();
    tell(&daemon, &["attach", &pid]);
    daemon.until_watching(second.pid());
    daemon.epochs(2);
    tell(&daemon, &["detach", &pid]);
    tell(&daemon, &["resume"]);
    let status = daemon.epochs(4);
    assert!(target(&status, second.pid()).is_none(), "{status:#}");
    assert!(target(&status, first.pid()).is_some(), "{status:#}");
    assert_unmoved(&second);
    first.assert_alive();
    second.assert_alive();
    daemon.stop();
}
