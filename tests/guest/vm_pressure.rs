//! Whoever may allocate on the fastest node only does not find it full of what was promoted there: it makes room in
//! time, and nobody is killed for want of memory.
//!
// vm: topology=4tier node0=256M timeout=300 long-timeout=1800

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hmkeeper::sys::numa::{Buffer, HugePages};
use hmkeeper::units::{Bytes, NodeId};

use crate::common::{
    Daemon, Site, Workload, body, in_guest, long, percent, settled, share, until_hot_on,
};

/// A third of it is hot, more than half of what node 0 has free. It is larger than what is eaten: the kernel would end
/// this one.
const BUFFER: Bytes = Bytes::from_mib(320);
const HOT: &str = "--hot=0.35";
/// What is eaten beyond what is free when it begins: it has to leave for that.
const BEYOND: Bytes = Bytes::from_mib(64);
const CHUNK: Bytes = Bytes::from_mib(1);

/// How an eater is kept to node 0.
#[derive(Clone, Copy, Debug)]
enum Bound {
    /// By the policy of its memory.
    Policy,
    /// By its cpuset.
    Cpuset,
}

/// This process in a cgroup that may use node 0 only, until it is dropped.
struct Cpuset(PathBuf);

impl Cpuset {
    fn enter() -> Self {
        let root = PathBuf::from("/sys/fs/cgroup");
        let group = root.join("hmk-pressure");
        fs::write(root.join("cgroup.subtree_control"), "+cpuset").expect("cpusets");
        fs::create_dir_all(&group).expect("a cgroup");
        fs::write(group.join("cpuset.mems"), "0").expect("a cpuset");
        let this = std::process::id().to_string();
        fs::write(group.join("cgroup.procs"), this).expect("entering it");
        Self(group)
    }
}

impl Drop for Cpuset {
    fn drop(&mut self) {
        let this = std::process::id().to_string();
        let _ = fs::write("/sys/fs/cgroup/cgroup.procs", this);
        let _ = fs::remove_dir(&self.0);
    }
}

/// Touches so much new memory of node 0, at so many MiB a second.
fn eat(bytes: Bytes, rate: u64, bound: Bound) {
    let buffer = Buffer::new(bytes, HugePages::Refused).expect("address space");
    let _cpuset = match bound {
        Bound::Policy => {
            buffer.bind(NodeId(0)).expect("binding it");
            None
        }
        Bound::Cpuset => Some(Cpuset::enter()),
    };
    let begin = Instant::now();
    let words = usize::try_from(CHUNK.0 / 8).expect("small");
    for (chunk, at) in buffer.words().chunks(words).zip(1_u32..) {
        for page in chunk.chunks(512) {
            page[0].store(1, Ordering::Relaxed);
        }
        let due = Duration::from_secs_f64(f64::from(at) / rate as f64);
        std::thread::sleep(due.saturating_sub(begin.elapsed()));
    }
}

fn made_room(daemon: &Daemon) -> f64 {
    let name = "hmkeeper_demoted_bytes_total";
    let bytes = daemon.metrics().sum(name, &[("reason", "shortage")]);
    bytes.unwrap_or(0.0)
}

/// With what is hot on node 0, by a daemon that knows nothing of the time before.
fn eaten_at(workload: &mut Workload, rate: u64, bound: Bound) {
    let site = Site::new();
    site.write_config(&body(workload.pid(), ""));
    let mut daemon = site.start();
    daemon.until_watching(workload.pid());
    until_hot_on(&[0], workload, &daemon);
    let bytes = settled(0).free + BEYOND;
    eat(bytes, rate, bound);
    workload.assert_alive();
    let status = daemon.epochs(2);
    let (given, left) = (made_room(&daemon), workload.located(0));
    println!(
        "{bytes} at {rate} MiB/s ({bound:?}): {:.0} MiB made room, {} of what is hot on node 0",
        given / 1_048_576.0,
        percent(share(&left, &[0]))
    );
    assert!(given >= BEYOND.as_f64() / 2.0, "{given}: {status:#}");
    // What it brought back is not what nobody missed.
    assert!(given <= 3.0 * BEYOND.as_f64() + 5e7, "{given}: {status:#}");
    assert_eq!(status["resting_nodes"][0].as_u64(), Some(0), "{status:#}");
    let told = daemon
        .log()
        .matches("left for other programs, which take")
        .count();
    assert_eq!(told, 1, "{}", daemon.log());
    workload.assert_alive();
    daemon.stop();
}

#[test]
fn who_is_bound_to_the_fastest_node_finds_room_there() {
    if !in_guest() {
        return;
    }
    let mut workload = Workload::start(&[
        "--pattern=hot",
        HOT,
        "--stray=0",
        "--chunks=8",
        &format!("--bytes={}", BUFFER.0),
        "--cpus=0",
        "--start-node=3",
        "--phases=1",
        "--phase-seconds=100000",
    ]);
    workload.phase();
    eaten_at(&mut workload, 100, Bound::Policy);
    eaten_at(&mut workload, 20, Bound::Policy);
    if long() {
        eaten_at(&mut workload, 50, Bound::Policy);
        eaten_at(&mut workload, 5, Bound::Policy);
        eaten_at(&mut workload, 100, Bound::Cpuset);
    }
}
