//! The shipped unit: start, reload, stop, and a watchdog that restarts a hung
//! daemon.
//!
// vm: topology=4tier systemd timeout=300

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::common::{
    self, PATIENCE, Signal, Workload, in_guest, number, output_of, sh, show, wait_for,
};

const PORT: u16 = 9477;

fn install(config: &str) {
    let root = env!("CARGO_MANIFEST_DIR");
    // Whatever is installed on the host is not what is tested.
    fs::copy(env!("CARGO_BIN_EXE_hmkeeper"), "/usr/bin/hmkeeper").expect("installing the program");
    fs::set_permissions("/usr/bin/hmkeeper", fs::Permissions::from_mode(0o755)).expect("chmod");
    fs::create_dir_all("/etc/hmkeeper").expect("/etc/hmkeeper");
    fs::write("/etc/hmkeeper/hmkeeper.toml", config).expect("the configuration");
    fs::create_dir_all("/etc/systemd/system/hmkeeper.service.d").expect("drop-ins");
    sh(&format!(
        "cp {root}/systemd/hmkeeper.service /etc/systemd/system/ && \
         mkdir -p /etc/sysusers.d && cp {root}/systemd/hmkeeper.sysusers /etc/sysusers.d/hmkeeper.conf && \
         systemd-sysusers /etc/sysusers.d/hmkeeper.conf && systemctl daemon-reload"
    ));
}

fn config(pid: u32, interval: &str) -> String {
    format!("[profiling]\ninterval = \"{interval}\"\n[[targets]]\nname = \"w\"\npid = {pid}\n")
}

fn show_unit(property: &str) -> String {
    sh(&format!("systemctl show -p {property} --value hmkeeper"))
        .trim()
        .to_owned()
}

fn journal() -> String {
    sh(
        "journalctl -u hmkeeper --no-pager -n 60 2>&1 || true; systemctl status hmkeeper 2>&1 || true",
    )
}

fn status() -> Result<Value, String> {
    let output = output_of(&["status", "--json"]);
    if !output.status.success() {
        return Err(format!("{}\n{}", show(&output), journal()));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| e.to_string())
}

#[test]
fn start_reload_stop_and_the_watchdog() {
    if !in_guest() {
        return;
    }
    let mut workload = Workload::start(&[
        "--bytes=128MiB",
        "--hot=0.25",
        "--cpus=0",
        "--start-node=3",
        "--phases=1",
        "--phase-seconds=100000",
    ]);
    let pid = workload.pid();
    install(&config(pid, "2s"));

    // systemctl waits for READY=1.
    sh("systemctl start hmkeeper || { journalctl -u hmkeeper --no-pager -n 60 >&2; exit 1; }");
    assert_eq!(show_unit("ActiveState"), "active", "{}", journal());
    let main_pid = show_unit("MainPID");
    // Within the unit's sandbox it sees accesses and may move.
    wait_for("something promoted under systemd", PATIENCE, || {
        let now = status()?;
        if common::target(&now, pid).is_some() && number(&now, pid, "promoted_bytes") > 0 {
            Ok(())
        } else {
            Err(format!("{now:#}\n{}", journal()))
        }
    });
    let socket = fs::metadata("/run/hmkeeper/control.sock").expect("the control socket");
    assert_eq!(
        socket.permissions().mode() & 0o007,
        0,
        "others may not use the socket"
    );

    // The unit's filters let all its threads let others go first (SCHED_BATCH is 3), and the unit's
    // nice value stays.
    let threads = sh(&format!("cut -d' ' -f19,41 /proc/{main_pid}/task/*/stat"));
    assert!(threads.lines().all(|thread| thread == "5 3"), "{threads}");

    // A good file is applied, by the same process.
    fs::write("/etc/hmkeeper/hmkeeper.toml", config(pid, "3s")).expect("the configuration");
    sh("systemctl reload hmkeeper");
    wait_for("the new interval", PATIENCE, || {
        let now = status()?;
        if now["interval_seconds"].as_f64() == Some(3.0) {
            Ok(())
        } else {
            Err(format!("{now:#}"))
        }
    });
    // A broken one is not, and the old stays.
    fs::write(
        "/etc/hmkeeper/hmkeeper.toml",
        "[profiling]\ninterval = \"3\"\n",
    )
    .expect("written");
    sh("systemctl reload hmkeeper");
    wait_for("the refused reload counted", PATIENCE, || {
        let now = status()?;
        if now["reloads"]["failed"].as_u64() == Some(1) {
            assert_eq!(now["interval_seconds"].as_f64(), Some(3.0), "{now:#}");
            Ok(())
        } else {
            Err(format!("{now:#}"))
        }
    });
    assert_eq!(show_unit("MainPID"), main_pid, "reload restarted it");
    fs::write("/etc/hmkeeper/hmkeeper.toml", config(pid, "2s")).expect("the configuration");

    sh("systemctl stop hmkeeper");
    assert_eq!(show_unit("ActiveState"), "inactive", "{}", journal());
    assert_eq!(show_unit("Result"), "success", "{}", journal());
    assert_eq!(show_unit("ExecMainStatus"), "0", "{}", journal());
    assert!(
        std::net::TcpStream::connect(("127.0.0.1", PORT)).is_err(),
        "the port is still open"
    );

    // A hung daemon.
    fs::write(
        "/etc/systemd/system/hmkeeper.service.d/quick.conf",
        "[Service]\nWatchdogSec=4s\nTimeoutStopSec=10s\nRestartSec=1s\n",
    )
    .expect("a drop-in");
    sh("systemctl daemon-reload && systemctl start hmkeeper");
    let hung: u32 = show_unit("MainPID").parse().expect("a pid");
    // Not hung yet: it outlives its watchdog's time.
    std::thread::sleep(std::time::Duration::from_secs(9));
    assert_eq!(
        show_unit("NRestarts"),
        "0",
        "restarted although alive: {}",
        journal()
    );
    hmkeeper::sys::process::signal(hung, Signal::SIGSTOP).expect("SIGSTOP");
    wait_for("a restart by the watchdog", PATIENCE, || {
        let now = show_unit("MainPID");
        let state = show_unit("ActiveState");
        if now != hung.to_string() && now != "0" && state == "active" {
            Ok(())
        } else {
            Err(format!("MainPID {now}, {state}\n{}", journal()))
        }
    });
    assert_ne!(show_unit("NRestarts"), "0");
    wait_for("the target watched again", PATIENCE, || {
        let now = status()?;
        common::target(&now, pid)
            .map(|_| ())
            .ok_or_else(|| format!("{now:#}"))
    });
    workload.assert_alive();
    sh("systemctl stop hmkeeper");
}
