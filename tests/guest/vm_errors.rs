//! What goes wrong on a machine with several tiers: a clear error with its exit
//! code, and nothing is lost.
//!
// vm: topology=4tier timeout=400

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use hmkeeper::sys::process::signal;
use hmkeeper::units::{Bytes, NodeId};

use crate::common::{
    self, PATIENCE, Signal, Site, Workload, ballast, body, hmkeeper, in_guest, locate, output_of,
    sh, show, target, until_hot_on, wait_for,
};

/// An error: this exit code, lines on stderr that begin with our name, and
/// among them all of these words.
fn assert_error(output: &Output, code: i32, words: &[&str]) {
    assert_eq!(output.status.code(), Some(code), "{}", show(output));
    let text = String::from_utf8_lossy(&output.stderr);
    let errors: Vec<&str> = text
        .lines()
        .filter(|l| l.starts_with("hmkeeper: "))
        .collect();
    assert!(!errors.is_empty(), "no line of ours: {}", show(output));
    for word in words {
        assert!(
            errors.iter().any(|l| l.contains(word)),
            "no {word:?} in {}",
            show(output)
        );
    }
    assert!(!text.contains("panicked"), "{}", show(output));
}

/// A daemon that should end by itself, with an error.
fn run(site: &Site, more: &[&str]) -> Output {
    let mut command = hmkeeper();
    command
        .args(["run", "--config"])
        .arg(site.config())
        .args(more);
    output_within(&command)
}

/// The output of a command that must not run for ever.
fn output_within(command: &Command) -> Output {
    let mut all = Command::new("timeout");
    all.args(["-k", "5", "60"])
        .arg(command.get_program())
        .args(command.get_args());
    all.stdin(std::process::Stdio::null());
    all.output().expect("running timeout")
}

#[test]
fn without_privileges() {
    if !in_guest() {
        return;
    }
    let mut workload = Workload::small();
    let site = Site::new();
    site.write_config(&body(workload.pid(), ""));
    for (path, mode) in [("", 0o755), ("state", 0o777), ("hmkeeper.toml", 0o644)] {
        let path = site.path(path);
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("chmod");
    }
    fs::set_permissions(site.path(""), fs::Permissions::from_mode(0o777)).expect("chmod");
    let as_nobody = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(env!("CARGO_BIN_EXE_hmkeeper"))
            .args(args);
        output_within(&command)
    };
    let config = site.config();
    let config = config.to_str().expect("a path");
    assert_error(
        &as_nobody(&["run", "--config", config]),
        3,
        &["permission", "root"],
    );
    let pid = workload.pid().to_string();
    assert_error(
        &as_nobody(&["run", "--pid", &pid]),
        3,
        &["permission", "root"],
    );
    workload.assert_alive();
}

#[test]
fn neither_idle_tracking_nor_damon() {
    if !in_guest() {
        return;
    }
    let mut workload = Workload::small();
    let site = Site::new();
    site.write_config(&body(workload.pid(), ""));
    // In mounts of its own, where the kernel's directories are covered by empty ones.
    let setup = "mount -t tmpfs none /sys/kernel/mm/page_idle && \
                 mount -t tmpfs none /sys/kernel/mm/damon";
    assert_error(
        &output_within(&in_own_mounts(&site, setup)),
        3,
        &["CONFIG_IDLE_PAGE_TRACKING", "CONFIG_DAMON_VADDR"],
    );
    workload.assert_alive();
}

/// A daemon in mounts of its own that `setup` has changed.
fn in_own_mounts(site: &Site, setup: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c"]).arg(format!(
        "{setup} && exec {} run --config {}",
        env!("CARGO_BIN_EXE_hmkeeper"),
        site.config().display()
    ));
    command
}

#[test]
fn a_read_only_sys_is_named_with_its_mount() {
    if !in_guest() {
        return;
    }
    let mut workload = Workload::small();
    let site = Site::new();
    site.write_config(&body(workload.pid(), ""));
    // As ProtectKernelTunables= of a unit does.
    let setup =
        "mount --make-rprivate / && mount --bind /sys /sys && mount -o remount,bind,ro /sys";
    assert_error(
        &output_within(&in_own_mounts(&site, setup)),
        3,
        &["/sys is mounted read-only", "ProtectKernelTunables=no"],
    );
    workload.assert_alive();
}

#[test]
fn a_check_that_is_interrupted_leaves_nothing() {
    if !in_guest() {
        return;
    }
    for millis in [0, 5, 10, 20, 40, 80, 160] {
        let mut check = hmkeeper()
            .arg("check")
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("hmkeeper check");
        std::thread::sleep(std::time::Duration::from_millis(millis));
        signal(check.id(), Signal::SIGINT).expect("SIGINT");
        check.wait().expect("its end");
        assert_eq!(common::kdamond_count(), 0, "after {millis} ms");
    }
}

#[test]
fn all_faults_of_a_configuration_at_once() {
    if !in_guest() {
        return;
    }
    let site = Site::new();
    fs::write(
        site.config(),
        "[profiling]\ninterval = \"10 parsecs\"\nscams = 3\n\
         [[tiers]]\nname = \"a\"\nnodes = [0]\n[[tiers]]\nname = \"b\"\nnodes = [0]\n\
         [[targets]]\nname = \"x\"\n",
    )
    .expect("writing the configuration");
    let output = run(&site, &[]);
    assert_error(
        &output,
        2,
        // Line and column of each; the unknown key; the unit; the contradiction.
        &[
            "toml:2:", "toml:3:", "scams", "parsecs", "node 0", "targets",
        ],
    );
}

#[test]
fn a_broken_file_does_not_replace_the_old() {
    if !in_guest() {
        return;
    }
    let mut workload = Workload::small();
    let site = Site::new();
    site.write_config(&body(workload.pid(), ""));
    let mut daemon = site.start();
    daemon.until_watching(workload.pid());
    site.write_config("[profiling]\ninterval = \"5\"\nscans = 99\n");
    let output = daemon.control(&["reload"]);
    assert_error(&output, 2, &["profiling.interval", "profiling.scans"]);
    daemon.signal(Signal::SIGHUP);
    wait_for("both refusals counted", PATIENCE, || {
        let status = daemon.try_status()?;
        if status["reloads"]["failed"].as_u64() == Some(2) {
            Ok(())
        } else {
            Err(format!("{status:#}"))
        }
    });
    let status = daemon.epochs(1);
    let kept = Some(common::interval().as_secs_f64());
    assert_eq!(status["interval_seconds"].as_f64(), kept, "{status:#}");
    assert!(target(&status, workload.pid()).is_some(), "{status:#}");
    let failed = [("result", "failed")];
    let counted = daemon
        .metrics()
        .value("hmkeeper_config_reloads_total", &failed);
    assert!((counted - 2.0).abs() < 1e-9, "{counted}");
    workload.assert_alive();
    daemon.stop();
}

#[test]
fn pids_that_are_no_targets() {
    if !in_guest() {
        return;
    }
    let mut workload = Workload::small();
    let site = Site::new();
    site.write_config("");
    assert_error(
        &run(&site, &["--pid", "4194303"]),
        4,
        &["4194303", "no such process"],
    );
    assert_error(&run(&site, &["--pid", "2"]), 4, &["kernel thread"]);
    site.write_config(&body(workload.pid(), ""));
    let mut daemon = site.start();
    daemon.until_watching(workload.pid());
    assert_error(
        &daemon.control(&["attach", "4194303"]),
        4,
        &["no such process"],
    );
    assert_error(&daemon.control(&["attach", "2"]), 4, &["kernel thread"]);
    assert_error(
        &daemon.control(&["attach", &daemon.pid().to_string()]),
        4,
        &["hmkeeper itself"],
    );
    assert_error(&daemon.control(&["detach", "4194303"]), 4, &["4194303"]);
    let other = Workload::small();
    let attached = daemon.control(&["attach", &other.pid().to_string()]);
    assert!(attached.status.success(), "{}", show(&attached));
    wait_for("the attached target", PATIENCE, || {
        let status = daemon.try_status()?;
        target(&status, other.pid())
            .map(|_| ())
            .ok_or_else(|| format!("{status:#}"))
    });
    workload.assert_alive();
    daemon.stop();
}

#[test]
fn a_target_that_ends_in_mid_epoch() {
    if !in_guest() {
        return;
    }
    let (mut short, mut long) = (Workload::small(), Workload::small());
    let site = Site::new();
    site.write_config(&format!(
        "{}[[targets]]\nname = \"other\"\npid = {}\n",
        body(short.pid(), ""),
        long.pid()
    ));
    let mut daemon = site.start();
    daemon.until_watching(short.pid());
    daemon.until_watching(long.pid());
    daemon.epochs(2);
    std::thread::sleep(common::interval() / 3);
    let gone = short.pid();
    short.kill();
    wait_for("target_up 0", PATIENCE, || {
        let metrics = daemon.metrics();
        if metrics.sum("hmkeeper_target_up", &[("target", "w")]) == Some(0.0) {
            Ok(())
        } else {
            Err(metrics.0)
        }
    });
    let status = daemon.epochs(2);
    assert!(target(&status, gone).is_none(), "{status:#}");
    assert!(target(&status, long.pid()).is_some(), "{status:#}");
    long.assert_alive();
    daemon.stop();
}

#[test]
fn a_port_in_use() {
    if !in_guest() {
        return;
    }
    let mut workload = Workload::small();
    let site = Site::new();
    site.write_config(&body(workload.pid(), ""));
    let _taken = TcpListener::bind(("127.0.0.1", site.port())).expect("the port");
    assert_error(
        &run(&site, &[]),
        1,
        &["metrics.listen", &site.port().to_string()],
    );
    workload.assert_alive();
}

#[test]
fn a_socket_directory_that_is_missing() {
    if !in_guest() {
        return;
    }
    let mut workload = Workload::small();
    let site = Site::new();
    site.write_config(&body(workload.pid(), ""));
    let text = fs::read_to_string(site.config()).expect("the configuration");
    let text = text.replace("control.sock", "nowhere/control.sock");
    fs::write(site.config(), text).expect("the configuration");
    assert_error(&run(&site, &[]), 1, &["nowhere"]);
    workload.assert_alive();
}

#[test]
fn a_tier_that_does_not_exist() {
    if !in_guest() {
        return;
    }
    let mut workload = Workload::small();
    let site = Site::new();
    let tiers = "[[tiers]]\nname = \"fast\"\nnodes = [0]\n[[tiers]]\nname = \"far\"\nnodes = [9]\n";
    site.write_config(&format!("{}{tiers}", body(workload.pid(), "")));
    let words = ["far", "node 9", "0, 1, 2, 3"];
    assert_error(&run(&site, &[]), 2, &words);
    let config = site.config();
    let topology = output_of(&["topology", "--config", config.to_str().expect("a path")]);
    assert_error(&topology, 2, &words);
    workload.assert_alive();
}

#[test]
fn a_node_that_is_full() {
    if !in_guest() {
        return;
    }
    // Nothing is free on node 0 beyond what the daemon leaves alone.
    let _ballast = ballast(0, Bytes::ZERO);
    let mut workload = Workload::small();
    workload.phase();
    let site = Site::new();
    site.write_config(&body(workload.pid(), ""));
    let mut daemon = site.start();
    daemon.until_watching(workload.pid());
    until_hot_on(&[0, 1], &workload, &daemon);
    daemon.epochs(3);
    let oom = sh("grep -w oom_kill /proc/vmstat");
    assert_eq!(oom.trim(), "oom_kill 0", "somebody was killed");
    workload.assert_alive();
    daemon.stop();
}

#[test]
fn a_cpuset_that_forbids_the_node() {
    if !in_guest() {
        return;
    }
    let group = Path::new("/sys/fs/cgroup/hmkeeper-test");
    sh(&format!(
        "echo +cpuset >/sys/fs/cgroup/cgroup.subtree_control && mkdir -p {0} && \
         echo 0-1 >{0}/cpuset.cpus && echo 1,3 >{0}/cpuset.mems",
        group.display()
    ));
    let mut command = Command::new("sh");
    command.args([
        "-c",
        &format!(
            "echo $$ >{}/cgroup.procs && exec {} workload --bytes=64MiB --hot=0.25 --chunks=8 \
             --cpus=0 --start-node=3 --phases=1 --phase-seconds=100000",
            group.display(),
            env!("CARGO_BIN_EXE_hmkeeper")
        ),
    ]);
    let mut workload = Workload::start_as(command);
    workload.phase();
    let site = Site::new();
    site.write_config(&body(workload.pid(), ""));
    let mut daemon = site.start();
    daemon.until_watching(workload.pid());
    until_hot_on(&[1], &workload, &daemon);
    daemon.epochs(3);
    let pages = locate(workload.pid(), &[workload.range]);
    for forbidden in [0, 2] {
        assert_eq!(
            pages.get(NodeId(forbidden)),
            0,
            "on a forbidden node: {pages:?}"
        );
    }
    let refused = daemon
        .metrics()
        .sum("hmkeeper_move_pages_total", &[("result", "refused")]);
    assert!(
        refused.unwrap_or(0.0) < 1.0,
        "it tried forbidden nodes: {refused:?}"
    );
    workload.assert_alive();
    daemon.stop();
    drop(workload);
    sh(&format!("rmdir {}", group.display()));
}
