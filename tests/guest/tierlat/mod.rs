//! The latency plugin as its guest sees it: what the preset asks for, the
//! counters and the switch, and programs whose accesses are known.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use hmkeeper::sys::numa::{Buffer, HugePages, WORDS_PER_PAGE};
use hmkeeper::sys::process::pin_thread;
use hmkeeper::units::{Bytes, NodeId, PageRange};

/// One at a time: the counters and the switch are the whole guest's.
pub(crate) static ALONE: Mutex<()> = Mutex::new(());

const FILE: &str = "/run/vm/tierlat";
/// The words of that file: `enum word` in `tests/vm/tierlat/tierlat.c`.
const WORDS: usize = 512;
const MAGIC: u64 = 0x7461_6c72_6569_7403;
const FIRST_NODE: usize = 16;
const NODE_WORDS: usize = 16;
const CHARGING: u64 = 256;
const WATCH: u64 = 272;

pub(crate) const LINE_BYTES: f64 = 64.0;
const WORDS_PER_LINE: usize = 8;
/// Four to eight times the modelled cache: nothing is found there again in order.
pub(crate) const BUFFER: Bytes = Bytes(8 << 20);

/// What a preset asks for on the way from a CPU's node to a memory node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) cpu: u32,
    pub(crate) node: NodeId,
    pub(crate) read_ns: f64,
    pub(crate) write_ns: f64,
    /// Bytes per nanosecond.
    pub(crate) read_gbs: f64,
    pub(crate) write_gbs: f64,
    /// Whether reads and writes have a link each.
    pub(crate) full_duplex: bool,
}

/// The preset of this guest, read by other eyes than the harness's.
#[derive(Debug)]
pub(crate) struct Preset {
    pub(crate) name: String,
    pub(crate) scale: f64,
    pub(crate) paths: Vec<Asked>,
}

impl Preset {
    /// `None`, and says so, where this is no guest with latencies.
    pub(crate) fn here() -> Option<Self> {
        let Ok(name) = std::env::var("HMKEEPER_VM_LATENCY") else {
            println!("skipped: runs in a virtual machine with latencies only (make test-vm)");
            return None;
        };
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vm/tierlat");
        let text = std::fs::read_to_string(path.join(format!("{name}.preset"))).expect("a preset");
        let mut preset = Self {
            name,
            scale: 0.0,
            paths: Vec::new(),
        };
        let mut full_duplex = Vec::new();
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            let word = words.next();
            let n: Vec<f64> = words.map_while(|w| w.parse().ok()).collect();
            match word {
                Some("scale") => preset.scale = n[0],
                Some("duplex") => full_duplex.push(node_id(n[0])),
                Some("path") => preset.paths.push(Asked {
                    cpu: node_id(n[0]).0,
                    node: node_id(n[1]),
                    read_ns: n[2],
                    write_ns: n[3],
                    read_gbs: n[4],
                    write_gbs: n[5],
                    full_duplex: false,
                }),
                _ => {}
            }
        }
        for path in &mut preset.paths {
            path.full_duplex = full_duplex.contains(&path.node);
        }
        Some(preset)
    }

    pub(crate) fn path(&self, cpu: u32, node: u32) -> Asked {
        *self
            .paths
            .iter()
            .find(|p| p.cpu == cpu && p.node.0 == node)
            .expect("a path of the preset")
    }

    pub(crate) fn nodes(&self) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.paths.iter().map(|p| p.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// A time in the guest as that of the machine which is modelled, in ns.
    pub(crate) fn modelled_ns(&self, guest: Duration) -> f64 {
        guest.as_secs_f64() * 1e9 / self.scale
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small and whole"
)]
fn node_id(n: f64) -> NodeId {
    NodeId(n as u32)
}

/// What one node served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Served {
    pub(crate) user_reads: u64,
    pub(crate) user_writes: u64,
    pub(crate) kernel_reads: u64,
    pub(crate) kernel_writes: u64,
    pub(crate) user_ns: u64,
    pub(crate) kernel_ns: u64,
    pub(crate) streamed: u64,
    pub(crate) written_back: u64,
    pub(crate) watched_reads: u64,
    pub(crate) watched_writes: u64,
    pub(crate) watched_ns: u64,
}

/// What a node served so far.
pub(crate) fn served(node: NodeId) -> Served {
    let mut bytes = vec![0; WORDS * 8];
    File::open(FILE)
        .and_then(|f| f.read_exact_at(&mut bytes, 0))
        .expect("the counters");
    let words: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|b| u64::from_le_bytes(b.try_into().expect("8 bytes")))
        .collect();
    assert_eq!(words[0], MAGIC, "{FILE}");
    let n = &words[FIRST_NODE + NODE_WORDS * node.0 as usize..][..NODE_WORDS];
    Served {
        user_reads: n[0],
        user_writes: n[1],
        kernel_reads: n[2],
        kernel_writes: n[3],
        user_ns: n[4],
        kernel_ns: n[5],
        streamed: n[6],
        written_back: n[7],
        watched_reads: n[8],
        watched_writes: n[9],
        watched_ns: n[10],
    }
}

/// What a node served while `what` ran.
pub(crate) fn served_while(node: NodeId, what: impl FnOnce()) -> Served {
    let before = served(node);
    what();
    let after = served(node);
    Served {
        user_reads: after.user_reads - before.user_reads,
        user_writes: after.user_writes - before.user_writes,
        kernel_reads: after.kernel_reads - before.kernel_reads,
        kernel_writes: after.kernel_writes - before.kernel_writes,
        user_ns: after.user_ns - before.user_ns,
        kernel_ns: after.kernel_ns - before.kernel_ns,
        streamed: after.streamed - before.streamed,
        written_back: after.written_back - before.written_back,
        watched_reads: after.watched_reads - before.watched_reads,
        watched_writes: after.watched_writes - before.watched_writes,
        watched_ns: after.watched_ns - before.watched_ns,
    }
}

fn put(word: u64, values: &[u64]) {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    OpenOptions::new()
        .write(true)
        .open(FILE)
        .and_then(|f| f.write_all_at(&bytes, word * 8))
        .expect("the plugin's switch");
}

/// Switches charging.
pub(crate) fn charge(on: bool) {
    put(CHARGING, &[u64::from(on)]);
}

/// Charges, or does not, while `what` runs; off afterwards.
pub(crate) fn charged<T>(on: bool, what: impl FnOnce() -> T) -> T {
    charge(on);
    let result = what();
    charge(false);
    result
}

/// Has the misses of user code at these addresses counted apart.
pub(crate) fn watch(range: PageRange) {
    put(WATCH, &[range.start().0, range.end().0]);
}

/// Runs `what` on a thread that stays on this CPU.
pub(crate) fn on_cpu<T: Send>(cpu: u32, what: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            pin_thread(&[cpu]).expect("pinning");
            what()
        });
        match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// A buffer with all pages on one node, whose lines are linked in one ring of
/// pseudo-random order.
pub(crate) struct Lines {
    pub(crate) buffer: Buffer,
    count: usize,
    /// Where the last walk along the ring ended: lines that were visited are in the cache.
    at: AtomicUsize,
}

impl Lines {
    pub(crate) fn on(node: NodeId, bytes: Bytes, huge: HugePages) -> Self {
        let buffer = Buffer::new(bytes, huge).expect("a buffer");
        buffer.bind(node).expect("binding to the node");
        let count = buffer.page_count() * WORDS_PER_PAGE / WORDS_PER_LINE;
        let lines = Self {
            buffer,
            count,
            at: AtomicUsize::new(0),
        };
        for line in 0..count {
            lines.word(line).store(lines.after(line) as u64, Relaxed);
        }
        lines.buffer.unbind().expect("unbinding");
        lines
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    fn word(&self, line: usize) -> &AtomicU64 {
        &self.buffer.words()[line * WORDS_PER_LINE]
    }

    /// The next in the ring: a linear congruential generator of full period.
    fn after(&self, line: usize) -> usize {
        (line.wrapping_mul(1_664_525).wrapping_add(1_013_904_223)) % self.count.next_power_of_two()
    }

    /// Follows the ring from where the last walk ended, each load needing the one before.
    pub(crate) fn chase(&self, steps: usize) {
        let mut line = self.at.load(Relaxed);
        for _ in 0..steps {
            line = usize::try_from(self.word(line).load(Relaxed)).expect("an index");
        }
        self.at.store(line, Relaxed);
    }

    /// Stores along the ring, on from there; what is stored is what was there.
    pub(crate) fn store_along(&self, steps: usize) {
        let mut line = self.at.load(Relaxed);
        for _ in 0..steps {
            let after = self.after(line);
            self.word(line).store(after as u64, Relaxed);
            line = after;
        }
        self.at.store(line, Relaxed);
    }

    /// Loads the first word of every line of a part, in order.
    pub(crate) fn read(&self, part: std::ops::Range<usize>) {
        for line in part {
            std::hint::black_box(self.word(line).load(Relaxed));
        }
    }

    /// Stores to every line of a part, in order.
    pub(crate) fn write(&self, part: std::ops::Range<usize>) {
        for line in part {
            self.word(line).store(self.after(line) as u64, Relaxed);
        }
    }
}

/// Fills the cache of this CPU's socket with other lines.
pub(crate) fn evict() {
    std::hint::black_box(vec![1_u8; 4 << 20]);
}

/// The median, the lower of two.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() - 1) / 2]
}

/// How long each of some pieces of work takes in the guest: the median.
/// What the timer and other processes take of the CPU is in a few pieces only.
pub(crate) fn median_time(pieces: usize, mut piece: impl FnMut()) -> Duration {
    let times = (0..pieces)
        .map(|_| {
            let start = Instant::now();
            piece();
            start.elapsed().as_secs_f64()
        })
        .collect();
    Duration::from_secs_f64(median(times))
}

/// Tries `what` a few times: other work on the host spoils some.
pub(crate) fn within_tries(what: impl Fn() -> Result<(), String>) {
    const TRIES: u32 = 5;
    for attempt in 1..=TRIES {
        match what() {
            Ok(()) => return,
            Err(why) if attempt < TRIES => println!("  again: {why}"),
            Err(why) => panic!("{why}"),
        }
    }
}
