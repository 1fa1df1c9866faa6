//! Below the slowest tier: what nobody uses goes to compressed memory, what is hot stays, and
//! a program that wants it back is left alone.
//!
// vm: topology=4tier timeout=300

use std::fs;
use std::process::Command;

use hmkeeper::units::Bytes;

use crate::common::{
    self, PATIENCE, Site, Workload, body, checked, in_guest, locate, percent, sh, target, wait_for,
};

/// Of which a tenth is hot; the rest is never touched again.
const BUFFER: Bytes = Bytes::from_mib(128);
/// So much of it has to go.
const GONE: Bytes = Bytes::from_mib(80);

/// A group whose processes may swap nothing.
const GROUPS: &str = "/sys/fs/cgroup";
const GROUP: &str = "/sys/fs/cgroup/hmkeeper-pageout";

/// Swap on compressed memory, until it is dropped.
struct Zram;

impl Zram {
    fn new(bytes: Bytes) -> Self {
        fs::write("/sys/block/zram0/disksize", bytes.0.to_string()).expect("the size of zram0");
        for program in ["mkswap", "swapon"] {
            let output = Command::new(program).arg("/dev/zram0").output();
            let output = output.unwrap_or_else(|e| panic!("{program}: {e}"));
            assert!(output.status.success(), "{program}: {output:?}");
        }
        Self
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        // Other tests may follow in this guest.
        let _ = Command::new("swapoff").arg("/dev/zram0").status();
        let _ = fs::write("/sys/block/zram0/reset", "1");
    }
}

/// A line of `/proc/PID/status`.
fn kib(pid: u32, key: &str) -> Bytes {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let line = text.lines().find_map(|l| l.strip_prefix(key));
    let number = line.and_then(|l| l.trim_start_matches(':').split_whitespace().next());
    Bytes::from_kib(number.and_then(|n| n.parse().ok()).unwrap_or(0))
}

#[test]
fn what_nobody_uses_goes_to_swap_and_what_is_hot_stays() {
    if !in_guest() {
        return;
    }
    // It is born in the group, so that its memory is the group's.
    let into = |group: &str| {
        sh(&format!(
            "echo {} >{group}/cgroup.procs",
            std::process::id()
        ))
    };
    sh(&format!(
        "echo +memory >{GROUPS}/cgroup.subtree_control && mkdir -p {GROUP} \
         && echo 0 >{GROUP}/memory.swap.max"
    ));
    into(GROUP);
    let mut workload = Workload::start(&[
        "--pattern=hot",
        "--hot=0.1",
        "--stray=0",
        "--chunks=4",
        &format!("--bytes={}", BUFFER.0),
        "--cpus=0",
        "--start-node=3",
        "--phases=2",
        "--step",
    ]);
    workload.phase();
    into(GROUPS);
    let site = Site::new();
    let wanted = "[pageout]\nenabled = true\nidle = \"10s\"\nbytes_per_second = \"64MiB\"";
    site.write_config(&body(workload.pid(), wanted));
    let mut daemon = site.start();
    daemon.until_watching(workload.pid());
    let rests = |daemon: &common::Daemon, reason| {
        let on = daemon
            .metrics()
            .sum("hmkeeper_page_out_rests", &[("reason", reason)]);
        on == Some(1.0)
    };
    let paged_out = |daemon: &common::Daemon| {
        let bytes = daemon.metrics().sum("hmkeeper_paged_out_bytes_total", &[]);
        bytes.unwrap_or(0.0)
    };

    // There is no swap yet, and that is said.
    assert_eq!(checked("page-out"), "missing");
    let status = daemon.epochs(1);
    assert!(rests(&daemon, "no-swap"), "{status:#}");
    let entry = target(&status, workload.pid()).expect("the target").clone();
    assert_eq!(entry["page_out_rests"], "no-swap", "{entry:#}");
    assert!(paged_out(&daemon) < 1.0);

    // There is, but its control group has none of it.
    let _swap = Zram::new(Bytes::from_mib(256));
    assert_eq!(checked("page-out"), "present");
    wait_for("its group's limit to be told", PATIENCE, || {
        let is_told = rests(&daemon, "group-limit") && !rests(&daemon, "no-swap");
        is_told
            .then_some(())
            .ok_or_else(|| format!("{:#}", daemon.status()))
    });
    assert!(paged_out(&daemon) < 1.0);
    sh(&format!("echo max >{GROUP}/memory.swap.max"));
    wait_for("memory to be paged out", PATIENCE, || {
        let bytes = paged_out(&daemon);
        if bytes >= GONE.as_f64() {
            Ok(())
        } else {
            Err(format!("{bytes} bytes\n{:#}", daemon.status()))
        }
    });
    // The last calls are told an epoch later.
    wait_for("the count to be that of the kernel", PATIENCE, || {
        let (told, swapped) = (paged_out(&daemon), kib(workload.pid(), "VmSwap"));
        let seen = format!("{} MiB, and in swap are {swapped}", told / 1_048_576.0);
        if (told - swapped.as_f64()).abs() <= 0.02 * told {
            println!("paged out {seen}");
            Ok(())
        } else {
            Err(seen)
        }
    });
    let hot = workload.classes[0].ranges.clone();
    let pages: u64 = hot.iter().map(|range| range.pages()).sum();
    let present = locate(workload.pid(), &hot).total();
    println!(
        "of the hot pages {} are present",
        percent(present as f64 / pages as f64)
    );
    assert!(
        present as f64 >= 0.99 * pages as f64,
        "{present} of {pages}"
    );
    assert!(!rests(&daemon, "no-swap") && !rests(&daemon, "comes-back"));

    // Another tenth is hot now: it comes back, and no more of it is taken.
    workload.go();
    workload.phase();
    wait_for("the target to be left alone", PATIENCE, || {
        if rests(&daemon, "comes-back") {
            Ok(())
        } else {
            let swapped = kib(workload.pid(), "VmSwap");
            Err(format!("{swapped} in swap\n{:#}", daemon.status()))
        }
    });
    let before = paged_out(&daemon);
    daemon.epochs(3);
    let more = paged_out(&daemon) - before;
    assert!(more < 1.0, "{more} bytes more");
    workload.assert_alive();
    daemon.stop();
    drop(workload);
    sh(&format!("rmdir {GROUP}"));
}
