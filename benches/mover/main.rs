//! Moving pages by the mover, beside a bare loop of `move_pages(2)` on the same pages:
//! `tests/vm/bench mover`, in a guest with several memory nodes.
//!
//! **Unit.** MiB per second of wall-clock time, of pages moved.
//!
//! **Approach.** A child process has its pages on nodes 0 and 3, and a thread that
//! touches them at random all the time (busy) or once a millisecond (light). In each
//! round the mover and a bare loop move the same pages, in turns (A B B A), so that
//! what else the host does meets both; their ratio is taken round by round, and the
//! median of the rounds counts, with the interval that holds it 95 times of 100, whatever
//! the rounds' distribution, if they do not depend on each other: they lie far apart where the host is shared. The
//! bare loop knows the addresses beforehand, and calls with 2 MiB each time: 512 small pages,
//! or a huge one. For both directions at once it calls for one and the other in turns.
//! At the end is, for each number of threads, the geometric mean of its rows.

#![allow(unsafe_code)]

mod target;

use std::time::{Duration, Instant};

use hmkeeper::ports::{MoveLimits, PageMover, Residency, Threads};
use hmkeeper::sys::mover::SysMover;
use hmkeeper::sys::residency::SysResidency;
use hmkeeper::sys::root::Root;
use hmkeeper::tiering::observation::TargetId;
use hmkeeper::tiering::plan::{Direction, Move, Reason};
use hmkeeper::tiering::settings::Asking;
use hmkeeper::units::{Bandwidth, Bytes, HUGE_PAGE_BYTES, Nanos, NodeId, PAGE_BYTES, PageRange};
use nix::time::{ClockId, clock_gettime};
use target::{Shape, Stalls, Target};

const SLOW: NodeId = NodeId(3);
const FAST: NodeId = NodeId(0);
/// Of a move in a plan: a region of the size that regions begin with.
const REGION: u64 = HUGE_PAGE_BYTES;
/// Rounds beside the first, which warms up.
const ROUNDS: usize = 25;
/// So many rounds, in order, lie outside the median's interval at each end. The median itself does with
/// a probability of 4.3 %, twice that of 7 heads or fewer in 25 throws of a coin.
const OUTSIDE: usize = 7;
/// Rounds of the mover alone in which it finds out how many threads are best: of small pages in one
/// direction they are two stretches each way, and it is done after 192 of these.
const TRIALS: usize = 48;
/// How many threads are compared.
const THREADS: [Threads; 3] = [Threads::Exactly(1), Threads::Exactly(2), Threads::Measured];

/// One piece of work: each range goes from the first node to the second.
type Ways = Vec<(PageRange, NodeId, NodeId)>;

/// Who moves.
enum Mover {
    Bare,
    Ours {
        mover: Box<SysMover>,
        threads: Threads,
    },
}

/// What a mover brought in one half of a round.
#[derive(Clone, Copy)]
struct Leg {
    took: Duration,
    cpu: Duration,
    stalls: Stalls,
    longest_call: Duration,
    calls: u64,
}

fn own_cpu() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock");
    time.into()
}

/// The system call, and nothing else: on arrays that are there already.
fn bare_call(target: &Target, pages: &[u64], to: NodeId, status: &mut [i32]) {
    let nodes = [i32::try_from(to.0).expect("a node"); 512];
    assert!(pages.len() <= nodes.len() && pages.len() <= status.len());
    // SAFETY: the arrays hold as many entries as there are pages; the addresses are
    // another process's and never followed here.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            target.pid().0,
            pages.len(),
            pages.as_ptr(),
            nodes.as_ptr(),
            status.as_mut_ptr(),
            hmkeeper::sys::move_pages::MPOL_MF_MOVE,
        )
    };
    assert_eq!(rc, 0, "pages that did not move");
}

/// The addresses that are named: one for each folio.
fn folios(range: PageRange, huge: bool) -> Vec<u64> {
    let step = if huge { HUGE_PAGE_BYTES } else { PAGE_BYTES };
    let all = range.start().0..range.end().0;
    all.step_by(usize::try_from(step).expect("a size"))
        .collect()
}

fn regions(range: PageRange) -> impl Iterator<Item = PageRange> {
    let starts = (range.start().0..range.end().0).step_by(usize::try_from(REGION).expect("small"));
    starts.map(|start| {
        let end = hmkeeper::units::VirtAddr(start + REGION);
        PageRange::new(hmkeeper::units::VirtAddr(start), end).expect("a region")
    })
}

impl Mover {
    fn ours(threads: Threads) -> Self {
        Self::Ours {
            mover: Box::new(SysMover::new(&Root::host())),
            threads,
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Bare => "bare loop".to_owned(),
            Self::Ours {
                threads: Threads::Exactly(threads),
                ..
            } => format!("mover, {threads}"),
            Self::Ours { .. } => "mover, auto".to_owned(),
        }
    }

    /// Moves it all.
    fn run(&mut self, target: &mut Target, ways: &Ways, huge: bool) -> Leg {
        // Regions of all ways in turns, as a plan has each demotion before its promotion.
        let lists: Vec<Vec<PageRange>> = ways.iter().map(|w| regions(w.0).collect()).collect();
        let turns = (0..lists[0].len()).flat_map(|at| {
            ways.iter()
                .zip(&lists)
                .map(move |(way, list)| (list[at], way))
        });
        match self {
            Self::Bare => {
                let work: Vec<(Vec<u64>, NodeId)> = turns
                    .map(|(region, way)| (folios(region, huge), way.2))
                    .collect();
                let mut status = vec![0; 512];
                let mut longest_call = Duration::ZERO;
                target.stalls();
                let (begin, before) = (Instant::now(), own_cpu());
                for (pages, to) in &work {
                    let call = Instant::now();
                    bare_call(target, pages, *to, &mut status);
                    longest_call = longest_call.max(call.elapsed());
                }
                let (took, used) = (begin.elapsed(), own_cpu().saturating_sub(before));
                Leg {
                    took,
                    cpu: used,
                    stalls: target.stalls(),
                    longest_call,
                    calls: work.len() as u64,
                }
            }
            Self::Ours { mover, threads } => {
                let moves: Vec<Move> = turns
                    .map(|(range, &(_, from, to))| Move {
                        target: TargetId(1),
                        pid: target.pid(),
                        range,
                        from,
                        to,
                        limit: range.bytes(),
                        direction: if to == FAST {
                            Direction::Promotion
                        } else {
                            Direction::Demotion
                        },
                        reason: Reason::Hot,
                    })
                    .collect();
                let limits = MoveLimits {
                    time: Nanos::from_secs(120),
                    rate: Bandwidth(u64::MAX),
                    bytes: Bytes(u64::MAX),
                    call_time: Nanos::from_millis(20),
                    threads: *threads,
                };
                let (cpu, calls) = (mover.cpu_time(), mover.calls());
                target.stalls();
                let begin = Instant::now();
                let outcome = mover.apply(&moves, limits).expect("a mover");
                let took = begin.elapsed();
                let stalls = target.stalls();
                for result in &outcome.results {
                    let pages = result.pages;
                    assert_eq!(pages.moved, result.asked.range.pages(), "{pages:?}");
                }
                Leg {
                    took,
                    cpu: mover.cpu_time().saturating_sub(cpu).into(),
                    stalls,
                    longest_call: outcome.longest_call.into(),
                    calls: mover.calls() - calls,
                }
            }
        }
    }
}

/// The middle and the greatest.
fn middle_and_most(mut of: Vec<f64>) -> (f64, f64) {
    of.sort_by(f64::total_cmp);
    (of[of.len() / 2], of[of.len() - 1])
}

/// The median of all rounds, and the interval that holds it 95 times of 100.
fn median_between(mut rounds: Vec<f64>) -> (f64, f64, f64) {
    assert_eq!(rounds.len(), ROUNDS, "OUTSIDE is for as many");
    rounds.sort_by(f64::total_cmp);
    (
        rounds[ROUNDS / 2],
        rounds[OUTSIDE],
        rounds[ROUNDS - 1 - OUTSIDE],
    )
}

/// Each mover does `there` and `back`, in turns with the bare loop; prints a line for
/// each and direction, and keeps its ratio.
fn compare(
    what: &str,
    target: &mut Target,
    huge: bool,
    (there, back): (&Ways, &Ways),
    ratios_of: &mut Vec<(String, f64)>,
) {
    for threads in THREADS {
        let mut movers = [Mover::Bare, Mover::ours(threads)];
        // By mover and way.
        let mut legs: [[Vec<Leg>; 2]; 2] = Default::default();
        let both = there.len() > 1;
        if threads == Threads::Measured {
            for _ in 0..TRIALS {
                movers[1].run(target, there, huge);
                movers[1].run(target, back, huge);
            }
        }
        for round in 0..=ROUNDS {
            for at in [0, 1, 1, 0] {
                for (leg, ways) in [there, back].into_iter().enumerate() {
                    let done = movers[at].run(target, ways, huge);
                    if round > 0 {
                        legs[at][if both { 0 } else { leg }].push(done);
                    }
                }
            }
        }
        let bytes: Bytes = there.iter().map(|w| w.0.bytes()).sum();
        let names: &[&str] = if both {
            &["both"]
        } else {
            &["3 to 0", "0 to 3"]
        };
        for (leg, name) in names.iter().enumerate() {
            let of = [&legs[0][leg], &legs[1][leg]];
            let per_round = of[0].len() / ROUNDS;
            let times = of.map(|of| -> Vec<f64> {
                let sum = |legs: &[Leg]| legs.iter().map(|l| l.took.as_secs_f64()).sum();
                of.chunks(per_round).map(sum).collect()
            });
            let ratios = times[0]
                .iter()
                .zip(&times[1])
                .map(|(bare, ours)| bare / ours);
            let (ratio, least, most) = median_between(ratios.collect());
            println!(
                "{what}, {name:>6}, {}: {ratio:.2} times the bare loop ({least:.2} to {most:.2})",
                movers[1].name()
            );
            ratios_of.push((movers[1].name(), ratio));
            for (mover, of) in movers.iter().zip(of) {
                let middle =
                    |value: fn(&Leg) -> f64| middle_and_most(of.iter().map(value).collect());
                let millis = |time: fn(&Leg) -> f64| middle(time).0 * 1e3;
                let speed =
                    bytes.as_f64() / f64::from(1 << 20) / middle(|l| l.took.as_secs_f64()).0;
                let worst = middle(|l| l.stalls.longest.as_secs_f64()).1 * 1e3;
                println!(
                    "    {:<11} {speed:>6.1} MiB/s, CPU {:.2}, {:>2.0} calls, the longest {:>5.1} ms; touches: longest {:>5.1} ms, of all rounds {worst:>5.1} ms, p99.9 {:>5.2} ms",
                    mover.name(),
                    middle(|l| l.cpu.as_secs_f64() / l.took.as_secs_f64()).0,
                    middle(|l| l.calls as f64).0,
                    millis(|l| l.longest_call.as_secs_f64()),
                    millis(|l| l.stalls.longest.as_secs_f64()),
                    millis(|l| l.stalls.most.as_secs_f64()),
                );
            }
        }
        if let (Mover::Ours { mover, .. }, Threads::Measured) = (&movers[1], threads) {
            let pace = mover.pace().expect("measured")[usize::from(huge)];
            println!(
                "    learnt: {} threads, {:.0} us a call and {:.0} us a folio of CPU time",
                pace.threads,
                pace.call.as_secs_f64() * 1e6,
                pace.folio.as_secs_f64() * 1e6
            );
        }
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let Some(shape) = Target::shape(&args) {
        return target::live(shape);
    }
    if args.iter().any(|arg| arg == "--test") {
        return;
    }
    let nodes = SysResidency::new(&Root::host())
        .nodes(Asking::Never)
        .unwrap_or_default();
    if !nodes.iter().any(|n| n.node == SLOW) {
        println!("skipped: this machine has no memory node {SLOW}");
        return;
    }
    let mib: u64 = if args.iter().any(|arg| arg == "--long") {
        64
    } else {
        32
    };
    let only = |word: &str| args.iter().any(|arg| arg == word);
    let mut ratios: Vec<(String, f64)> = Vec::new();
    for huge in [false, true] {
        if only(if huge { "--small" } else { "--huge" }) {
            continue;
        }
        for busy in [true, false] {
            let bytes = Bytes::from_mib(if huge { 2 * mib } else { mib });
            let mut target = Target::start(Shape { huge, busy, bytes });
            let what = format!(
                "{}, {}",
                if huge { "2 MiB" } else { "4 KiB" },
                if busy { "busy " } else { "light" }
            );
            std::thread::sleep(Duration::from_secs(1));
            let quiet = target.stalls();
            println!(
                "{what}, nobody moves: longest stall {:.1} ms, p99.9 {:.2} ms",
                quiet.longest.as_secs_f64() * 1e3,
                quiet.most.as_secs_f64() * 1e3
            );
            let [near, far] = target.buffers;
            let one = vec![(far, SLOW, FAST)];
            let home = vec![(far, FAST, SLOW)];
            compare(&what, &mut target, huge, (&one, &home), &mut ratios);
            let swap = vec![(near, FAST, SLOW), (far, SLOW, FAST)];
            let undo = vec![(far, FAST, SLOW), (near, SLOW, FAST)];
            compare(&what, &mut target, huge, (&swap, &undo), &mut ratios);
        }
    }
    for name in THREADS.map(|threads| Mover::ours(threads).name()) {
        let of: Vec<f64> = ratios.iter().filter(|r| r.0 == name).map(|r| r.1).collect();
        let mean = (of.iter().map(|r| r.ln()).sum::<f64>() / of.len() as f64).exp();
        let worst = of.iter().copied().fold(f64::INFINITY, f64::min);
        println!(
            "{name}: {mean:.3} times the bare loop in geometric mean of {} rows, the worst {worst:.2}",
            of.len()
        );
    }
}
