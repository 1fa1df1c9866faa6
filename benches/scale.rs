//! The whole loop at the sizes of the papers, on the simulator's machine:
//! `cargo bench --bench scale`.
//!
//! Time is virtual and what watching costs is charged to it (a scan of a sample
//! 2 µs), so that overhead, epochs and accuracy are the same on every machine;
//! seconds of a decision and memory are this machine's. 5 % of one CPU, 10 s, 3
//! scans, as HM-Keeper has it (§1.6).

use std::time::Instant;

use hmkeeper::epoch::{EpochLoop, LoopSettings};
use hmkeeper::ports::TargetSpec;
use hmkeeper::sim::{self, Machine, Process, Touch};
use hmkeeper::tiering::observation::TargetId;
use hmkeeper::tiering::region::{Region, RegionMap};
use hmkeeper::tiering::settings::{EngineSettings, LookRule, SplitRule};
use hmkeeper::units::{Bytes, Nanos, NodeId, PAGE_BYTES, PageRange, Pid, VirtAddr};

const PID: Pid = Pid(7);
const GIB: u64 = 1 << 30;
/// Pages between two that are scored: half a MiB.
const STRIDE: u64 = 128;
const STEP: usize = 128;
const EPOCHS: u64 = 30;
/// Epochs at the end that count as the steady state.
const STEADY: usize = 6;

/// A process whose hot memory is known.
struct Case {
    name: &'static str,
    bytes: u64,
    /// Hot chunks, and the share of the memory that they are.
    chunks: u64,
    share: f64,
    /// Accesses per second of a hot and of a cold page.
    rates: (f64, f64),
    /// Folios, as log2 of pages.
    order: u8,
    jump: Option<u64>,
    /// Whether it is watched by HM-Keeper's own rules.
    by_the_paper: bool,
}

impl Case {
    fn is_hot(&self, page: u64, epoch: u64) -> bool {
        // Whole folios.
        let whole = |pages: u64| (pages >> self.order) << self.order;
        let slot = whole(self.bytes / PAGE_BYTES / self.chunks);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let length = whole((slot as f64 * self.share) as u64);
        let chunk = page / slot;
        if chunk >= self.chunks {
            return false;
        }
        let jumped = u64::from(self.jump.is_some_and(|at| epoch >= at));
        // Anywhere in its slot, by a hash.
        let mixed = (chunk + 1 + jumped * 1_000_003).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let offset = whole((mixed >> 20) % (slot - length));
        (offset..offset + length).contains(&(page % slot))
    }
}

fn cases() -> Vec<Case> {
    // 39 million updates a second (anchors of GUPS on real machines), nine of ten
    // on the hot fifth.
    let gups = Case {
        name: "GUPS, 512 GB",
        bytes: 477 * GIB,
        chunks: 1,
        share: 0.2,
        rates: (1.4, 0.04),
        order: 0,
        jump: None,
        by_the_paper: false,
    };
    let chunked = |name| Case {
        name,
        bytes: 1536 * GIB,
        chunks: 1000,
        share: 0.1,
        rates: (20.0, 0.01),
        order: 0,
        jump: Some(15),
        by_the_paper: false,
    };
    vec![
        gups,
        chunked("1.5 TiB, 1000 chunks, jumping"),
        Case {
            order: 9,
            ..chunked("the same, huge pages")
        },
        Case {
            by_the_paper: true,
            ..chunked("the same by HM-Keeper's own rules (2 MiB, halves, repeated looks)")
        },
    ]
}

fn score(case: &Case, epoch: u64, regions: &[Region], scans: f32) -> f64 {
    let (mut hit, mut called, mut hot) = (0_u64, 0_u64, 0_u64);
    for region in regions {
        let is_called = region.heat() >= scans / 2.0;
        let first = region.range().start().page_index();
        let last = first + region.range().pages();
        for page in (first.next_multiple_of(STRIDE)..last).step_by(STEP) {
            let is_hot = case.is_hot(page, epoch);
            hot += u64::from(is_hot);
            called += u64::from(is_called);
            hit += u64::from(is_hot && is_called);
        }
    }
    2.0 * hit as f64 / (called + hot).max(1) as f64
}

/// Most memory that this process had so far, in MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.split_ascii_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}

fn run(case: Case) {
    let name = case.name;
    let case = std::rc::Rc::new(case);
    let nodes = [
        (NodeId(0), Bytes(96 * GIB)),
        (NodeId(1), Bytes(96 * GIB)),
        (NodeId(2), Bytes(2048 * GIB)),
        (NodeId(3), Bytes(2048 * GIB)),
    ];
    let mut machine = Machine::new(&nodes, 1);
    machine.order = case.order;
    let mut engine = EngineSettings::default();
    if case.by_the_paper {
        engine.profiling.split = SplitRule::Halves;
        engine.profiling.looks = LookRule::Repeated;
    }
    let settings = LoopSettings {
        engine,
        moving: false,
        rate: None,
        threads: hmkeeper::ports::Threads::Exactly(1),
        call_time: Nanos::from_millis(20),
        migration_share: 0.5,
    };
    let interval = settings.engine.profiling.interval;
    let scans = f32::from(settings.engine.profiling.scans);
    let rates = std::rc::Rc::clone(&case);
    machine.start(
        Process {
            id: TargetId(0),
            pid: PID,
            name: "model".into(),
            range: PageRange::new(VirtAddr(0), VirtAddr(case.bytes)).expect("a range"),
            touch: Touch::Rate(Box::new(move |addr, at| {
                let epoch = at.0 / interval.0;
                let (hot, cold) = rates.rates;
                if rates.is_hot(addr.page_index(), epoch) {
                    hot
                } else {
                    cold
                }
            })),
            home: NodeId(0),
        },
        NodeId(3),
    );
    let tiers = machine
        .tiers([&[90, 145, 275, 340], &[145, 90, 340, 275]])
        .expect("tiers");
    let machine = machine.shared();
    let mut epochs = EpochLoop::new(sim::ports(&machine), tiers, settings, 1);
    epochs.select(&[TargetSpec::of_pid(PID)]);
    println!("\n{name}");
    println!("epoch     F1  regions  samples  overhead  epoch s  turn ms");
    let mut steady = Vec::new();
    let (mut spent, mut elapsed, mut longest) = (0.0, 0.0, 0.0_f64);
    for epoch in 1..=EPOCHS {
        let begin = Instant::now();
        let report = epochs.turn().expect("the model").report.expect("a report");
        let turn = begin.elapsed().as_secs_f64() * 1e3;
        let at = machine.borrow().now().0 / interval.0;
        let regions = epochs.regions(TargetId(0)).map(RegionMap::regions);
        let f1 = score(
            &case,
            at.saturating_sub(1),
            regions.unwrap_or_default(),
            scans,
        );
        steady.push(f1);
        let cost = report.cost.profiling.as_secs_f64();
        let seconds = report.cost.elapsed.as_secs_f64();
        if epoch > 1 {
            spent += cost;
            elapsed += seconds;
            longest = longest.max(seconds);
        }
        let target = report.targets.first();
        if epoch <= 6 || epoch % 5 == 0 || case.jump.is_some_and(|j| epoch >= j && epoch < j + 5) {
            // The first only finds out what there is, and takes next to no time.
            let overhead = match epoch {
                1 => "–".to_owned(),
                _ => format!("{:.2}%", cost / seconds * 100.0),
            };
            println!(
                "{epoch:>5} {f1:>6.3} {:>8} {:>8} {overhead:>9} {seconds:>8.2} {turn:>8.0}",
                target.map_or(0, |t| t.regions),
                target.map_or(0, |t| t.samples),
            );
        }
    }
    let last = &steady[steady.len() - STEADY..];
    println!(
        "F1 {:.3}; {:.2} % of a CPU on average; longest epoch {longest:.2} s; peak of this process so \
         far {} MiB",
        last.iter().sum::<f64>() / last.len() as f64,
        spent / elapsed * 100.0,
        peak_mib(),
    );
}

fn main() {
    if std::env::args().any(|arg| arg == "--bench") {
        for case in cases() {
            run(case);
        }
    }
}
