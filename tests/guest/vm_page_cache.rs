//! A fastest node that is full of what files left there takes promotions: what is idle of that makes
//! room, the kernel reclaims nothing else for it, and what is read back ends it.
//!
// vm: topology=4tier timeout=300

use std::fs::{self, File};
use std::ops::Range;
use std::process::Command;

use hmkeeper::ports::Residency;
use hmkeeper::sys::residency::SysResidency;
use hmkeeper::sys::root::Root;
use hmkeeper::tiering::observation::NodeUsage;
use hmkeeper::tiering::settings::Asking;
use hmkeeper::units::{Bytes, NodeId};

use crate::common::{
    Daemon, PATIENCE, Site, Workload, body, checked, in_guest, percent, settled, share,
    until_hot_on, wait_for,
};

/// A quarter of it is hot.
const BUFFER: Bytes = Bytes::from_mib(256);
const HOT: Bytes = Bytes::from_mib(64);
/// More than node 0 has; so much of its room is left free.
const DEVICE_BYTES: Bytes = Bytes::from_mib(1024);
const LEFT: Bytes = Bytes::from_mib(8);
const NEARLY: Bytes = Bytes::from_mib(10);
const DEVICE: &str = "/dev/zram0";

/// A device that reads as zeros, for its page cache, until it is dropped. Once nobody has it open any
/// more its page cache is gone.
struct Disk(Option<File>);

impl Disk {
    fn new() -> Self {
        let bytes = DEVICE_BYTES.0.to_string();
        fs::write("/sys/block/zram0/disksize", bytes).expect("the size of zram0");
        Self(Some(File::open(DEVICE).expect("zram0")))
    }

    /// Reads these of its MiB, on a CPU of node 0.
    fn read(&self, mib: Range<u64>) {
        assert!(self.0.is_some(), "it is open");
        let status = Command::new("taskset")
            .args(["-c", "0", "dd", "bs=1M", "of=/dev/null", "status=none"])
            .arg(format!("if={DEVICE}"))
            .args([
                format!("skip={}", mib.start),
                format!("count={}", mib.end - mib.start),
            ])
            .status();
        assert!(status.expect("taskset and dd").success());
    }

    /// Reads on from its MiB `file` until node 0 is full, and says how it looks there.
    fn fill(&self, file: &mut u64) -> NodeUsage {
        let room = |usage: &NodeUsage| usage.free.saturating_sub(usage.reserve);
        let before = scanned();
        let mut full = usage();
        // What lies on CPUs' lists after much was freed goes first, and does not count as room.
        for _ in 0..8 {
            if room(&full) <= NEARLY {
                break;
            }
            let more = room(&full).saturating_sub(LEFT).0 >> 20;
            self.read(*file..*file + more);
            (full, *file) = (usage(), *file + more);
        }
        assert!(room(&full) <= NEARLY, "not full: {full:?}");
        assert_eq!(scanned(), before, "something has left: {full:?}");
        full
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.0 = None;
        // Other tests may follow in this guest.
        let _ = fs::write("/sys/block/zram0/reset", "1");
    }
}

fn usage() -> NodeUsage {
    let nodes = SysResidency::new(&Root::host()).nodes(Asking::Never);
    let mut nodes = nodes.expect("the nodes' memory").into_iter();
    nodes.find(|u| u.node == NodeId(0)).expect("node 0")
}

fn vmstat(key: &str) -> u64 {
    let text = fs::read_to_string("/proc/vmstat").expect("/proc/vmstat");
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    line.and_then(|n| n.parse().ok())
        .unwrap_or_else(|| panic!("no {key}"))
}

/// Pages that the kernel looked at to reclaim them by itself.
fn scanned() -> u64 {
    vmstat("pgscan_kswapd") + vmstat("pgscan_direct")
}

/// Pages that it took of these.
fn stolen() -> u64 {
    vmstat("pgsteal_kswapd") + vmstat("pgsteal_direct")
}

fn reclaimed(daemon: &Daemon) -> f64 {
    let name = "hmkeeper_page_cache_reclaimed_bytes_total";
    daemon.metrics().sum(name, &[("node", "0")]).unwrap_or(0.0)
}

/// A program on the slowest node.
fn start() -> Workload {
    let mut workload = Workload::start(&[
        "--pattern=hot",
        "--hot=0.25",
        "--stray=0",
        "--chunks=4",
        &format!("--bytes={}", BUFFER.0),
        "--cpus=0",
        "--start-node=3",
        "--phases=1",
        "--phase-seconds=100000",
    ]);
    workload.phase();
    workload
}

#[test]
fn what_files_left_makes_room_until_it_is_read_back() {
    if !in_guest() {
        return;
    }
    if !fs::exists("/sys/devices/system/node/node0/reclaim").expect("sysfs") {
        assert_eq!(checked("page-cache"), "missing");
        println!("skipped: this kernel gives back no page cache of a node (Linux 6.17 does)");
        return;
    }
    assert_eq!(checked("page-cache"), "present");
    // What earlier tests have read.
    fs::write("/proc/sys/vm/drop_caches", "3").expect("giving caches back");
    let empty = settled(0);
    let disk = Disk::new();
    let mut file = 0;
    let full = disk.fill(&mut file);
    let cache = full.cache.expect("its page cache");
    assert!(
        cache.idle >= Bytes(3 * HOT.0),
        "little of it is idle: {full:?}, before {empty:?}"
    );

    let workload = start();
    let site = Site::new();
    site.write_config(&body(workload.pid(), "[migration]\npage_cache = false"));
    let mut daemon = site.start();
    daemon.until_watching(workload.pid());
    daemon.epochs(6);
    let without = share(&workload.located(0), &[0]);
    println!("without: {} of what is hot on node 0", percent(without));
    assert!(without <= 0.25, "{}", percent(without));
    assert!(reclaimed(&daemon) < 1.0);
    daemon.stop();
    drop(workload);
    // What it had there is free now.
    disk.fill(&mut file);

    let mut workload = start();
    let site = Site::new();
    site.write_config(&body(workload.pid(), ""));
    let mut daemon = site.start();
    let (before, stolen_before) = (scanned(), stolen());
    daemon.until_watching(workload.pid());
    until_hot_on(&[0], &workload, &daemon);
    // The last calls are told an epoch later.
    let status = daemon.epochs(2);
    let given = reclaimed(&daemon);
    let by_itself = scanned() - before;
    let taken = Bytes::from_pages(stolen() - stolen_before);
    println!(
        "{:.0} MiB of page cache made room for {HOT}, the kernel's own reclaim for {taken}",
        given / 1_048_576.0
    );
    assert!(given >= 0.5 * HOT.as_f64(), "{given}: {status:#}");
    let all = given + taken.as_f64();
    assert!(all >= 0.7 * HOT.as_f64(), "{given} and {taken}: {status:#}");
    assert!(given <= 2.0 * HOT.as_f64(), "{given}: {status:#}");
    let told = status["page_cache"]["reclaimed_bytes"].as_u64();
    assert!(told.is_some_and(|told| told > 0), "{status:#}");
    assert!(by_itself * 4096 <= HOT.0 / 2, "{by_itself} pages");
    workload.assert_alive();

    // With the program gone there is room for what made way: the kernel counts it as
    // read back, and so do we.
    workload.kill();
    let refaults = vmstat("workingset_refault_file");
    disk.read(0..file);
    let back = Bytes::from_pages(vmstat("workingset_refault_file") - refaults);
    println!("{back} of it were read back");
    assert!(back >= Bytes(HOT.0 / 2), "{back} of it were read back");
    wait_for("page cache to be left alone", PATIENCE, || {
        let rests = daemon.metrics().sum("hmkeeper_page_cache_rests", &[]);
        if rests == Some(1.0) {
            Ok(())
        } else {
            Err(format!("{:?}\n{:#}", usage(), daemon.status()))
        }
    });
    daemon.stop();
}
