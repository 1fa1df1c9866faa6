//! What a target writes is told from what it only reads, on a real kernel, for no more
//! than watching may cost; nobody's pages are touched unless that was asked for.
//!
// vm: topology=4tier timeout=240

use std::fs;
use std::process::{Child, Command};
use std::time::Duration;

use hmkeeper::ports::WriteWatch;
use hmkeeper::record::{Replay, file::Reader};
use hmkeeper::sys::root::Root;
use hmkeeper::sys::soft_dirty::SoftDirty;
use hmkeeper::tiering::region::RegionMap;
use hmkeeper::tiering::settings::Asking;
use hmkeeper::units::PageRange;

use crate::common::{self, Site, Workload, halves, in_guest, percent, pid_of, seconds, target};

/// What watching may cost: the default.
const LIMIT: f64 = 0.05;

/// Half of it is hot, in chunks; the first half is only read.
fn workload(bytes: &str) -> Workload {
    let mut workload = Workload::start(&[
        &format!("--bytes={bytes}"),
        "--hot=0.5",
        "--chunks=8",
        "--stray=0",
        "--read-only=0.5",
        "--cpus=0",
        "--start-node=0",
        "--phases=1",
        "--phase-seconds=100000",
    ]);
    workload.phase();
    workload
}

/// Share of `range` that the kernel says was written since somebody had it forget.
fn soft_dirty(pid: u32, range: PageRange) -> f64 {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; usize::try_from(range.pages() * 8).expect("small")];
    fs::File::open(format!("/proc/{pid}/pagemap"))
        .and_then(|file| file.read_exact_at(&mut bytes, range.start().page_index() * 8))
        .expect("its page map");
    let dirty = bytes.as_chunks::<8>().0.iter();
    let dirty = dirty.filter(|&&entry| u64::from_ne_bytes(entry) >> 55 & 1 == 1);
    dirty.count() as f64 / range.pages() as f64
}

/// Mean of shares, each of so many bytes. Of none it is NaN, which no bound admits.
fn mean(shares: &[(f64, f64)]) -> f64 {
    let bytes: f64 = shares.iter().map(|(_, bytes)| bytes).sum();
    shares
        .iter()
        .map(|(share, bytes)| share * bytes)
        .sum::<f64>()
        / bytes
}

#[test]
fn written_memory_is_told_from_read() {
    if !in_guest() {
        return;
    }
    let mut workload = workload("64MiB");
    let site = Site::new();
    let limit = format!("writes = true\noverhead_limit = {LIMIT}");
    site.write_config_of(workload.pid(), &limit);
    let recording = site.path("a.rec");
    let mut command = common::hmkeeper();
    command.args(["run", "--dry-run", "--config"]);
    command.arg(site.config()).arg("--record").arg(&recording);
    let mut daemon = site.start_as(command);
    daemon.until_watching(workload.pid());
    daemon.epochs(4);
    let begin = (seconds(daemon.pid()), seconds(workload.pid()));
    daemon.epochs(12);
    let end = (seconds(daemon.pid()), seconds(workload.pid()));
    let status = daemon.status();
    let metrics = daemon.metrics();
    workload.assert_alive();
    daemon.stop();

    let cost = (end.0 - begin.0) / (end.1 - begin.1);
    println!(
        "watching and asking cost {} of the target's CPU time",
        percent(cost)
    );
    assert!(cost < LIMIT * 1.25, "{}", percent(cost));
    let written = target(&status, workload.pid()).expect("the target")["written_bytes"]
        .as_f64()
        .expect("what is written");
    let (read, write) = halves(workload.range);
    let hot = workload.classes.iter().flat_map(|class| &class.ranges);
    let truth: f64 = (hot.filter_map(|range| range.intersect(write)))
        .map(|range| range.bytes().as_f64())
        .sum();
    assert!(
        (0.8..1.2).contains(&(written / truth)),
        "{written}, not {truth}"
    );
    assert!(metrics.value("hmkeeper_written_bytes", &[("target", "w")]) > 0.0);

    let mut replay = Replay::new(Reader::open(&recording).expect("the recording"));
    let (mut of_read, mut of_write, mut of_cold) = (Vec::new(), Vec::new(), Vec::new());
    while let Some(epoch) = replay.next_epoch().expect("an epoch") {
        let map = (epoch.seen.targets.first()).and_then(|t| epoch.engine.regions(t.id));
        let regions = map.map(RegionMap::regions).unwrap_or_default();
        (of_read, of_write, of_cold) = (Vec::new(), Vec::new(), Vec::new());
        for region in regions {
            let Some(share) = region.written() else {
                continue;
            };
            let share = (f64::from(share), region.range().bytes().as_f64());
            if region.heat() < f32::from(epoch.engine.scans()) / 2.0 {
                of_cold.push(share);
            } else if read.covers(region.range()) {
                of_read.push(share);
            } else if write.covers(region.range()) {
                of_write.push(share);
            }
        }
    }
    // Edges are known to within a gap: a hot region may have a cold end, and a cold one
    // a hot end. So by bytes.
    let [of_read, of_write, of_cold] = [&of_read, &of_write, &of_cold].map(|shares| mean(shares));
    println!(
        "written: {of_read:.3} of what is hot and only read, {of_write:.3} of what is hot \
         and written, {of_cold:.3} of what is cold"
    );
    assert!(of_read < 0.1 && of_write > 0.85 && of_cold < 0.1);
}

#[test]
fn unless_it_is_to_be_asked_the_kernels_marks_stay() {
    if !in_guest() {
        return;
    }
    let workload = workload("16MiB");
    let (read, _) = halves(workload.range);
    // Nor by default, where nobody says that a node answers late. As it was filled: nobody has had it forget that.
    for (setting, is_asked) in [("false", false), ("\"auto\"", false), ("true", true)] {
        let site = Site::new();
        // Paid for in one epoch.
        let limit = format!("latency = false\nwrites = {setting}\noverhead_limit = 0.5");
        site.write_config_of(workload.pid(), &limit);
        let mut daemon = site.start();
        daemon.until_watching(workload.pid());
        let status = daemon.epochs(4);
        let told = &target(&status, workload.pid()).expect("the target")["written_bytes"];
        assert_eq!(!told.is_null(), is_asked, "{setting}: {told}");
        let metrics = daemon.metrics();
        let told = metrics.sum("hmkeeper_written_bytes", &[]);
        assert_eq!(told.is_some(), is_asked, "{setting}");
        daemon.stop();
        let marked = soft_dirty(workload.pid(), read);
        assert_eq!(marked < 0.99, is_asked, "{setting}: {marked}");
    }
}

/// A program that waits, run by a shell after `first`.
struct Waiting(Child);

impl Waiting {
    fn after(first: &str) -> Self {
        let script = format!("{first} exec sleep 1000");
        let child = Command::new("sh").args(["-c", &script]).spawn();
        let child = child.expect("a shell");
        let is_there = || {
            fs::read_to_string(format!("/proc/{}/comm", child.id()))
                .is_ok_and(|name| name.trim() == "sleep")
        };
        while !is_there() {
            std::thread::sleep(Duration::from_millis(10));
        }
        Self(child)
    }

    /// Whether a daemon of this setting that begins now has it forget.
    fn forgets(&self, asking: Asking) -> bool {
        let mut watch = SoftDirty::open(&Root::host()).expect("soft-dirty bits");
        watch
            .forget(pid_of(self.0.id()), asking)
            .expect("asked")
            .is_some()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn marks_that_are_somebody_elses_stay() {
    if !in_guest() {
        return;
    }
    let own = Waiting::after("exec 3</proc/$$/pagemap;");
    assert!(!own.forgets(Asking::Always), "it looks at its own");
    let plain = Waiting::after("");
    assert!(plain.forgets(Asking::Auto));
    // What another daemon asks now was asked before, unless somebody says that it may be.
    assert!(!plain.forgets(Asking::Auto));
    assert!(plain.forgets(Asking::Always));
}
