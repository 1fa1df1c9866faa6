//! What a scan of a sample costs, beside a bare loop of the same system calls:
//! `cargo bench --bench scan`, in a guest whose kernel has idle-page tracking:
//! `tests/vm/bench scan`.
//!
//! **Unit.** Nanoseconds per sample and scan: its page map read, its mark set,
//! the mark read back, the bitmap read, the page map read again, and the flags
//! of its frame where it was accessed. (Ours does not read the page map the first time of what was in the
//! scan before.)
//!
//! **Approach.** Both do the same to the same pages, in turns, so that what else
//! the host does meets both; the median round of each counts. The bare loop
//! knows the frames beforehand and calls once per sample and step: no batches,
//! no verdict, no bookkeeping. Half of the pages are touched between the two
//! halves of a scan, by neither's account. `fresh`: each scan has other pages than
//! the one before, as it is by default, and the flags of each frame are read once
//! more, to learn its folio; `repeated`: always the same, as HM-Keeper and DAMON.

use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use hmkeeper::ports::AccessSampler;
use hmkeeper::sys::numa::{Buffer, HugePages, WORDS_PER_PAGE};
use hmkeeper::sys::page_idle::{IdleSampler, try_own_page};
use hmkeeper::sys::pagemap::{Entry, Pagemap};
use hmkeeper::sys::root::Root;
use hmkeeper::tiering::observation::{AccessSet, Sample, TargetId};
use hmkeeper::units::{Bytes, Nanos, PAGE_BYTES, Pid, VirtAddr};

const BUFFER: Bytes = Bytes::from_mib(256);
const ROUNDS: usize = 21;

/// The files that a scan goes through, and nothing else.
struct Bare {
    pagemap: File,
    bitmap: File,
    flags: File,
}

impl Bare {
    fn open() -> Self {
        let open = |path: &str| {
            let file = OpenOptions::new()
                .read(true)
                .write(path.contains("bitmap"))
                .open(path);
            file.unwrap_or_else(|e| panic!("{path}: {e}"))
        };
        Self {
            pagemap: open("/proc/self/pagemap"),
            bitmap: open("/sys/kernel/mm/page_idle/bitmap"),
            flags: open("/proc/kpageflags"),
        }
    }

    fn read(file: &File, offset: u64) -> u64 {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, offset).expect("a word");
        u64::from_ne_bytes(word)
    }

    /// The first half of a scan, of `(page, frame)`.
    fn arm(&self, samples: &[(u64, u64)], fresh: bool) {
        for &(page, frame) in samples {
            black_box(Self::read(&self.pagemap, page * 8));
            if fresh {
                black_box(Self::read(&self.flags, frame * 8));
            }
        }
        for &(_, frame) in samples {
            let mark = (1_u64 << (frame % 64)).to_ne_bytes();
            self.bitmap
                .write_all_at(&mark, frame / 64 * 8)
                .expect("a mark");
            black_box(Self::read(&self.flags, frame * 8));
        }
    }

    fn collect(&self, samples: &[(u64, u64)]) {
        for &(_, frame) in samples {
            let word = Self::read(&self.bitmap, frame / 64 * 8);
            if word >> (frame % 64) & 1 == 0 {
                black_box(Self::read(&self.flags, frame * 8));
            }
        }
        for &(page, _) in samples {
            black_box(Self::read(&self.pagemap, page * 8));
        }
    }
}

fn timed(work: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    work();
    begin.elapsed()
}

fn median(mut of: Vec<Duration>) -> Duration {
    of.sort();
    of[of.len() / 2]
}

fn touch(buffer: &Buffer, every: usize) {
    for page in buffer.words().chunks(WORDS_PER_PAGE).step_by(every) {
        page[0].fetch_add(1, Relaxed);
    }
}

/// Pages with their frames.
struct Set {
    samples: Vec<Sample>,
    by_frame: Vec<(u64, u64)>,
}

/// One random page of each of so many equal parts.
fn choose(buffer: &Buffer, count: u64, seed: u64) -> Set {
    let pid = Pid(i32::try_from(std::process::id()).expect("a pid"));
    let first = buffer.range().start().page_index();
    let pages = buffer.range().pages();
    let map = Pagemap::open(&Root::host(), pid).expect("our own page map");
    let mut random = seed;
    let (mut samples, mut by_frame) = (Vec::new(), Vec::new());
    for part in 0..count {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let page = first + part * pages / count + (random >> 33) % (pages / count);
        samples.push(Sample {
            target: TargetId(0),
            pid,
            addr: VirtAddr(page * PAGE_BYTES),
        });
        let mut entry = [Entry::default()];
        map.read_into(page, &mut entry).expect("an entry");
        by_frame.push((page, entry[0].pfn().expect("a frame").0));
    }
    by_frame.sort_unstable_by_key(|&(_, frame)| frame);
    Set { samples, by_frame }
}

fn measure(buffer: &Buffer, count: u64, fresh: bool) {
    let sets = [choose(buffer, count, 1), choose(buffer, count, 99)];
    let mut sampler = IdleSampler::open(&Root::host()).expect("idle-page tracking");
    let bare = Bare::open();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    // The first round warms up.
    for round in 0..=ROUNDS {
        let set = &sets[if fresh { round % 2 } else { 0 }];
        let mut seen = AccessSet::new(set.samples.clone());
        let half = timed(|| sampler.arm(&set.samples, Nanos::ZERO).expect("arming"));
        touch(buffer, 2);
        let whole = half + timed(|| sampler.collect(&mut seen).expect("collecting"));
        let told = seen.tallies().iter().filter(|t| t.known > 0).count() as u64;
        assert!(told * 10 > count * 9, "only {told} of {count} samples told");

        let half = timed(|| bare.arm(&set.by_frame, fresh));
        touch(buffer, 2);
        let least = half + timed(|| bare.collect(&set.by_frame));
        if round > 0 {
            ours.push(whole);
            theirs.push(least);
        }
    }
    let each = |of: Duration| of.as_secs_f64() * 1e9 / count as f64;
    let (ours, theirs) = (each(median(ours)), each(median(theirs)));
    println!(
        "{count:>6} samples, {}: {ours:>6.0} ns per sample and scan, bare loop {theirs:>6.0} ns, ratio {:.2}",
        if fresh { "fresh   " } else { "repeated" },
        ours / theirs
    );
}

fn main() {
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    if let Err(why) = try_own_page(&Root::host()) {
        println!("skipped: {why}");
        return;
    }
    let buffer = Buffer::new(BUFFER, HugePages::Refused).expect("a buffer");
    touch(&buffer, 1);
    for count in [500, 2_000, 8_000] {
        for fresh in [true, false] {
            measure(&buffer, count, fresh);
        }
    }
}
