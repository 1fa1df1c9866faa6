//! Hosts that lack something or change: what the daemon says of its own cpuset, of nodes that
//! come and go, of capabilities and of processes that cannot be watched; each once.
//!
// vm: topology=4tier timeout=400
#![allow(unsafe_code)]

use std::fs;
use std::process::Command;

use crate::common::{
    Daemon, PATIENCE, Site, Workload, body, in_guest, output_of, sh, show, target, wait_for,
};

/// The daemon's own cgroup.
const GROUP: &str = "/sys/fs/cgroup/hmkeeper-itself";
/// The guest's own memory cannot be taken offline: the kernel keeps its tables there. So
/// its list of nodes is covered by one without the last.
const LIST: &str = "/sys/devices/system/node/has_memory";
/// Says that this program is to be a process without its main thread.
const HEADLESS: &str = "HMKEEPER_TEST_HEADLESS";

/// Waits until the log has these words, and tells how often.
fn until_logged(daemon: &Daemon, words: &str) -> usize {
    wait_for(words, PATIENCE, || {
        let log = daemon.log();
        match log.lines().filter(|line| line.contains(words)).count() {
            0 => Err(log),
            count => Ok(count),
        }
    })
}

#[test]
fn nodes_that_our_own_cpuset_lacks_are_told_once() {
    if !in_guest() {
        return;
    }
    sh(&format!(
        "echo +cpuset >/sys/fs/cgroup/cgroup.subtree_control && mkdir -p {GROUP} && \
         echo 0,3 >{GROUP}/cpuset.mems"
    ));
    let mut workload = Workload::small();
    let site = Site::new();
    site.write_config(&body(workload.pid(), ""));
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!(
        "echo $$ >{GROUP}/cgroup.procs && exec {} run --config {}",
        env!("CARGO_BIN_EXE_hmkeeper"),
        site.config().display()
    ));
    let mut daemon = site.start_as(command);
    daemon.until_watching(workload.pid());
    let status = daemon.epochs(3);
    let lacks = "own cpuset lacks nodes 1, 2";
    assert!(
        status["notes"][0]
            .as_str()
            .is_some_and(|n| n.contains(lacks)),
        "{status:#}"
    );
    let target = target(&status, workload.pid()).expect("the target");
    assert_eq!(target["allowed_nodes"], serde_json::json!([0, 3]));
    assert_eq!(until_logged(&daemon, lacks), 1, "{}", daemon.log());
    assert!(!daemon.log().contains("no_room"), "{}", daemon.log());
    sh(&format!("echo 0-3 >{GROUP}/cpuset.mems"));
    until_logged(&daemon, "own cpuset allows all nodes now");
    assert_eq!(daemon.epochs(1)["notes"], serde_json::json!([]));
    daemon.stop();
    workload.assert_alive();
    sh(&format!("rmdir {GROUP}"));
}

#[test]
fn memory_that_comes_and_goes_is_noticed() {
    if !in_guest() {
        return;
    }
    let mut workload = Workload::small();
    let site = Site::new();
    site.write_config(&body(workload.pid(), ""));
    let mut daemon = site.start();
    daemon.until_watching(workload.pid());
    let shorter = site.path("has_memory");
    let shorter = shorter.display();
    sh(&format!(
        "echo 0-2 >{shorter} && mount --bind {shorter} {LIST}"
    ));
    let gone = "node 3 has no memory any more";
    assert_eq!(until_logged(&daemon, gone), 1, "{}", daemon.log());
    let tiers = |status: &serde_json::Value| status["tiers"].as_array().map_or(0, Vec::len);
    assert_eq!(tiers(&daemon.epochs(2)), 3);
    sh(&format!("umount {LIST}"));
    let back = "memory came online on node 3";
    assert_eq!(until_logged(&daemon, back), 1, "{}", daemon.log());
    let status = daemon.epochs(2);
    assert_eq!(tiers(&status), 4);
    let last = &status["tiers"][3];
    assert!(last["total_bytes"].as_u64() > Some(1 << 20), "{status:#}");
    assert_eq!(until_logged(&daemon, gone), 1, "{}", daemon.log());
    daemon.stop();
    workload.assert_alive();
}

/// Not a test: a process whose main thread ends.
#[test]
fn as_a_process_without_its_main_thread() {
    if std::env::var_os(HEADLESS).is_none() {
        return;
    }
    // Of all threads there are, this one may not be the first.
    std::thread::spawn(|| std::thread::sleep(std::time::Duration::from_secs(600)));
    // SAFETY: ends the calling thread, whose stack nobody else refers to.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

#[test]
fn a_process_without_its_main_thread_is_told_once() {
    if !in_guest() {
        return;
    }
    let name = "vm_host::as_a_process_without_its_main_thread";
    let mut headless = Command::new(std::env::current_exe().expect("this program"))
        .args([name, "--exact", "--test-threads=1", "--nocapture"])
        .env(HEADLESS, "1")
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("starting it");
    let pid = headless.id();
    wait_for("its main thread gone", PATIENCE, || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).map_err(|e| e.to_string())?;
        if stat.contains(") Z ") {
            Ok(())
        } else {
            Err(stat)
        }
    });
    let by_hand = output_of(&["run", "--pid", &pid.to_string()]);
    let said = String::from_utf8_lossy(&by_hand.stderr);
    assert_eq!(by_hand.status.code(), Some(4), "{}", show(&by_hand));
    assert!(
        said.contains("its main thread has ended"),
        "{}",
        show(&by_hand)
    );
    let mut workload = Workload::small();
    let site = Site::new();
    // By its command's name, which a zombie keeps.
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).expect("its name");
    let more = format!(
        "[[targets]]\nname = \"headless\"\ncomm = \"{}\"\n",
        comm.trim()
    );
    site.write_config(&format!("{}{more}", body(workload.pid(), "")));
    let mut daemon = site.start();
    daemon.until_watching(workload.pid());
    daemon.epochs(3);
    let told = format!("pid {pid} cannot be watched: its main thread has ended");
    assert_eq!(until_logged(&daemon, &told), 1, "{}", daemon.log());
    daemon.stop();
    headless.kill().expect("killing it");
    headless.wait().expect("its end");
    workload.assert_alive();
}

#[test]
fn a_missing_capability_is_told_once_and_by_its_name() {
    if !in_guest() {
        return;
    }
    // Of another user, so that the page map's mode is in the way.
    let mut other = Command::new("setpriv")
        .args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "sleep",
            "600",
        ])
        .spawn()
        .expect("setpriv");
    let pid = other.id();
    wait_for("its start", PATIENCE, || {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).map_err(|e| e.to_string())?;
        if comm.trim() == "sleep" {
            Ok(())
        } else {
            Err(comm)
        }
    });
    let mut workload = Workload::small();
    let site = Site::new();
    let more = "[[targets]]\nname = \"other\"\ncomm = \"sleep\"\n";
    site.write_config(&format!("{}{more}", body(workload.pid(), "")));
    let without = "-sys_nice,-dac_read_search,-dac_override";
    let bounds = format!("--bounding-set={without}");
    let mut command = Command::new("setpriv");
    command.args([&bounds, "--inh-caps=-all"]);
    command
        .arg(env!("CARGO_BIN_EXE_hmkeeper"))
        .args(["run", "--config"])
        .arg(site.config());
    let mut daemon = site.start_as(command);
    daemon.until_watching(workload.pid());
    daemon.epochs(3);
    for words in [
        "CAP_SYS_NICE is missing".to_owned(),
        "CAP_DAC_READ_SEARCH is missing".to_owned(),
        format!("pid {pid} cannot be watched: its page map may not be read"),
    ] {
        assert_eq!(
            until_logged(&daemon, &words),
            1,
            "{words}: {}",
            daemon.log()
        );
    }
    let warnings = daemon.log().lines().filter(|l| l.contains("WARN")).count();
    assert!(warnings <= 10, "{}", daemon.log());
    daemon.stop();
    let mut check = Command::new("setpriv");
    check.args([&bounds, "--inh-caps=-all"]);
    check.arg(env!("CARGO_BIN_EXE_hmkeeper")).arg("check");
    let shown = check.output().expect("hmkeeper check");
    let text = String::from_utf8_lossy(&shown.stdout);
    for name in ["cap-sys-nice", "cap-dac-read-search"] {
        let line = text.lines().find(|line| line.starts_with(name));
        assert!(
            line.is_some_and(|l| l.contains("forbidden")),
            "{}",
            show(&shown)
        );
    }
    other.kill().expect("killing it");
    other.wait().expect("its end");
    workload.assert_alive();
}
