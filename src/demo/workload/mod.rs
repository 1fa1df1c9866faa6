//! A process that knows nothing of the daemon: it touches memory in a known
//! pattern and counts which node served each access.
//!
//! Its buffer is private and anonymous, first touched on a chosen node and
//! under no memory policy afterwards, like the heap of any program. `hot`
//! sweeps over a scattered part of it, one cache line per page in random order,
//! beside a few stray accesses to everything, and jumps to fresh places with
//! each phase. The truth about a daemon's work is what is counted here (see
//! [`memory`]), never what the daemon says.

mod churn;
mod hotset;
pub mod lines;
mod memory;
mod random;
mod workers;

use std::io::{self, BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use self::churn::Churn;
use self::hotset::{Chooser, Class, ClassSpec, Layout};
use self::lines::{ByNode, ClassLine, Line};
use self::memory::{Census, Memory};
use self::workers::{LINES_PER_PAGE, Phase, Shared, Stray};
use super::size::parse_bytes;
use crate::sys::numa::{Buffer, HugePages, WORDS_PER_PAGE};
use crate::sys::process::pin_thread;
use crate::sys::root::Root;
use crate::units::{Bytes, HUGE_PAGE_BYTES, NodeId, PAGE_BYTES, PageRange, VirtAddr};

/// Time between two sample lines.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// Pages of 4 KiB in a huge page.
const HUGE_PAGE_PAGES: usize = 512;
/// How often a line on stdin is looked for.
const LOOK_FOR_STEP: Duration = Duration::from_millis(50);
/// Ballast is taken in steps of this, so that what stays free is that exact.
const BALLAST_STEP: Bytes = Bytes(HUGE_PAGE_BYTES);

/// What the workload does with its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Pattern {
    /// Sweeps over a scattered hot set that jumps.
    Hot,
    /// Several sets of different hotness (`--class`).
    Classes,
    /// Checks every byte of pages in random order and rewrites them.
    Verify,
    /// Touches nothing after the start.
    Idle,
    /// Sweeps over the hot part and does nothing else, so that no translation
    /// of a small one ever leaves the TLB: no samples are printed.
    Burn,
    /// Fills `--start-node` until `--leave` bytes are free there, and waits.
    Ballast,
}

/// Options of `hmkeeper workload`.
#[derive(Clone, Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct Args {
    /// What to do with the buffer.
    #[arg(long, value_enum, default_value_t = Pattern::Hot)]
    pub pattern: Pattern,
    /// Size of the buffer.
    #[arg(long, default_value = "1GiB", value_parser = parse_bytes)]
    pub bytes: Bytes,
    /// Share of the buffer that is hot.
    #[arg(long, default_value_t = 0.1)]
    pub hot: f64,
    /// Chunks that each class lies scattered in.
    #[arg(long, default_value_t = 64)]
    pub chunks: usize,
    /// Where what is hot lies, from phase to phase.
    #[arg(long, value_enum, default_value_t)]
    pub layout: Layout,
    /// Chunks begin on multiples of this.
    #[arg(long, default_value = "4KiB", value_parser = parse_bytes)]
    pub align: Bytes,
    /// A class of `--pattern classes`: share of the buffer, and the seconds in
    /// which each of its pages is touched once (0: swept all the time).
    #[arg(long = "class", value_name = "SHARE:SECONDS", value_parser = parse_class)]
    pub classes: Vec<(f64, f64)>,
    /// From the first so much of the buffer `hot` and `classes` only read.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub read_only: f64,
    /// Of the rest one in so many accesses writes.
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    pub write_one_in: u64,
    /// Cache lines of a page that each access goes through, one after the other.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub lines: u64,
    /// Share of accesses that go anywhere in the buffer, at most.
    #[arg(long, default_value_t = 0.03)]
    pub stray: f64,
    /// Such an access finds each page (with `--thp` each huge page) once in so
    /// many seconds at most, on average.
    #[arg(long, default_value_t = 20.0)]
    pub stray_seconds: f64,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Threads that touch memory.
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// CPUs to run on, one thread after the other; all, if none is named.
    #[arg(long, value_delimiter = ',')]
    pub cpus: Vec<u32>,
    /// The node on which the buffer is first touched.
    #[arg(long)]
    pub start_node: Option<u32>,
    /// Ask for transparent huge pages (otherwise they are refused).
    #[arg(long)]
    pub thp: bool,
    /// Cut the buffer into so many mappings.
    #[arg(long, default_value_t = 1)]
    pub mappings: usize,
    /// Beside the buffer, map so much per second without touching it and so much
    /// that is touched once, and unmap it a second later.
    #[arg(long, value_name = "UNTOUCHED:TOUCHED", value_parser = parse_churn)]
    pub churn: Option<Churn>,
    /// Number of phases; the hot set jumps with each.
    #[arg(long, default_value_t = 3)]
    pub phases: u32,
    /// Length of a phase.
    #[arg(long, default_value_t = 30.0)]
    pub phase_seconds: f64,
    /// Begin the first phase only when a line, or the end, comes on stdin.
    #[arg(long)]
    pub wait: bool,
    /// End each phase when a line comes on stdin, and everything when it ends,
    /// instead of after `--phase-seconds`.
    #[arg(long)]
    pub step: bool,
    /// For ballast: bytes to leave free on the node.
    #[arg(long, default_value = "256MiB", value_parser = parse_bytes)]
    pub leave: Bytes,
    /// For ballast: lock it, or the kernel may demote it.
    #[arg(long)]
    pub lock: bool,
    /// For ballast: take what lies on CPUs' lists for free, but leave half of `--leave` beside it.
    #[arg(long)]
    pub lists: bool,
}

fn parse_class(text: &str) -> Result<(f64, f64), String> {
    let wrong = || format!("{text:?} is not SHARE:SECONDS, as 0.2:1.5");
    let (share, seconds) = text.split_once(':').ok_or_else(wrong)?;
    let share: f64 = share.parse().map_err(|_| wrong())?;
    let seconds: f64 = seconds.parse().map_err(|_| wrong())?;
    if share > 0.0 && share <= 1.0 && (0.0..1e6).contains(&seconds) {
        Ok((share, seconds))
    } else {
        Err(wrong())
    }
}

fn parse_churn(text: &str) -> Result<Churn, String> {
    let wrong = || format!("{text:?} is not UNTOUCHED:TOUCHED, as 1GiB:64MiB");
    let (untouched, touched) = text.split_once(':').ok_or_else(wrong)?;
    Ok(Churn {
        untouched: parse_bytes(untouched)?,
        touched: parse_bytes(touched)?,
    })
}

/// Runs the workload to its end.
///
/// # Errors
/// When the buffer cannot be had, or `verify` found a difference.
pub fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(args.threads > 0, "--threads 0: at least one is needed");
    ensure!(args.chunks > 0, "--chunks 0: at least one is needed");
    ensure!(
        args.phase_seconds > 0.0 && args.phase_seconds < 1e6,
        "--phase-seconds {}: must be above 0",
        args.phase_seconds
    );
    ensure!(
        args.stray_seconds > 0.0 && args.stray_seconds < 1e6 && (0.0..1.0).contains(&args.stray),
        "--stray is a share below 1 and --stray-seconds a time above 0"
    );
    ensure!(
        (0.0..=1.0).contains(&args.read_only),
        "--read-only {}: a share, 0 to 1",
        args.read_only
    );
    ensure!(
        (1..=LINES_PER_PAGE).contains(&args.lines),
        "--lines {}: 1 to {LINES_PER_PAGE}, as many as a page has",
        args.lines
    );
    ensure!(
        args.write_one_in > 0,
        "--write-one-in 0: at least 1, with which all write"
    );
    if !args.cpus.is_empty() {
        pin_thread(&args.cpus).with_context(|| format!("cannot run on CPUs {:?}", args.cpus))?;
    }
    if args.pattern == Pattern::Ballast {
        return ballast(args);
    }
    Driver::new(args)?.run()
}

fn emit(line: &Line) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, line)?;
    out.write_all(b"\n")?;
    out.flush().context("stdout")
}

/// Holds memory of a node until stdin ends.
fn ballast(args: &Args) -> anyhow::Result<()> {
    let node = NodeId(
        args.start_node
            .context("--pattern ballast needs --start-node")?,
    );
    let root = Root::host();
    let listed_beside = args.lists.then_some(Bytes(args.leave.0 / 2));
    let free = || {
        memory::free_on(&root, node, listed_beside)
            .with_context(|| format!("cannot read what is free on memory node {node}"))
    };
    let wanted = free()?.saturating_sub(args.leave);
    let buffer = Buffer::new(wanted, HugePages::Wanted).context("mapping the ballast")?;
    buffer
        .bind(node)
        .with_context(|| format!("binding the ballast to memory node {node}"))?;
    let step = usize::try_from(BALLAST_STEP.pages())?;
    let mut taken = 0;
    // Page tables and other programs take from the node as well: watch it.
    while taken < buffer.page_count() && free()? > args.leave {
        let end = (taken + step).min(buffer.page_count());
        for page in taken..end {
            fill_zero(&buffer, page);
        }
        taken = end;
    }
    if args.lock {
        buffer.lock(taken).context("locking the ballast")?;
    }
    let range = buffer.range();
    let held = PageRange::new(
        range.start(),
        VirtAddr(range.start().0 + (taken.max(1) as u64) * PAGE_BYTES),
    )
    .context("empty ballast")?;
    let mut pages = ByNode::default();
    pages.add(node, taken as u64);
    emit(&Line::Ready {
        pid: std::process::id(),
        range: held,
        pages,
        free: Some(free()?),
    })?;
    // Its content is of no interest, only that it stays.
    io::copy(&mut io::stdin().lock(), &mut io::sink()).context("stdin")?;
    Ok(())
}

fn fill_zero(buffer: &Buffer, page: usize) {
    buffer.words()[page * WORDS_PER_PAGE].store(1, Ordering::Relaxed);
}

/// Leads the workload through its phases.
struct Driver {
    shared: Arc<Shared>,
    chooser: Option<Chooser>,
    census: Census,
    stray: Option<Stray>,
    pattern: Pattern,
    phases: u32,
    phase_length: Duration,
    threads: Vec<std::thread::JoinHandle<()>>,
    /// Where lines on stdin end phases: how many came, and `u32::MAX` at its end.
    steps: Option<Arc<AtomicU32>>,
    started: Instant,
    hot: Vec<usize>,
}

impl Driver {
    fn new(args: &Args) -> anyhow::Result<Self> {
        let huge = if args.thp {
            HugePages::Wanted
        } else {
            HugePages::Refused
        };
        let verify = args.pattern == Pattern::Verify;
        let seed = args.seed;
        let node = args.start_node.map(NodeId);
        let memory = Memory::new(args.bytes, huge, node, |buffer, page| {
            if verify {
                workers::fill(buffer, seed, page);
            } else {
                fill_zero(buffer, page);
            }
        })
        .context("cannot place the buffer")?;
        memory.buffer().cut(args.mappings).with_context(|| {
            format!(
                "cutting the buffer into {} mappings (vm.max_map_count?)",
                args.mappings
            )
        })?;
        let pages = memory.buffer().page_count();
        let chooser = match specs(args)? {
            specs if specs.is_empty() => None,
            specs => {
                let align = usize::try_from(args.align.pages().max(1))?;
                ensure!(
                    args.layout == Layout::Scattered || specs.len() == 1,
                    "--layout other than scattered is for one class"
                );
                let chooser = Chooser::new(pages, specs, args.chunks, align, seed)?;
                Some(chooser.with_layout(args.layout))
            }
        };
        let census = Census::new(&memory).context("asking where the buffer is")?;
        emit(&Line::Ready {
            pid: std::process::id(),
            range: memory.buffer().range(),
            pages: memory.located(0..pages),
            free: None,
        })?;
        if args.wait {
            let mut line = String::new();
            io::stdin().lock().read_line(&mut line).context("stdin")?;
        }
        let mut shared = Shared::new(memory, seed, args.threads, verify);
        shared.only_read_below(args.read_only);
        shared.go_through(args.lines);
        shared.write_one_in(args.write_one_in);
        let shared = Arc::new(shared);
        let threads = (0..args.threads)
            .map(|index| {
                let shared = Arc::clone(&shared);
                let cpu = (!args.cpus.is_empty()).then(|| args.cpus[index % args.cpus.len()]);
                std::thread::Builder::new()
                    .name(format!("touch-{index}"))
                    .spawn(move || {
                        if let Some(cpu) = cpu
                            && let Err(error) = pin_thread(&[cpu])
                        {
                            eprintln!("hmkeeper workload: CPU {cpu}: {error}");
                        }
                        shared.work(index);
                    })
            })
            .collect::<Result<_, _>>()
            .context("starting a thread")?;
        if let Some(churn) = args.churn {
            std::thread::Builder::new()
                .name("churn".into())
                .spawn(move || churn.run())
                .context("starting a thread")?;
        }
        let steps = args.step.then(count_steps).transpose()?;
        let stray = matches!(args.pattern, Pattern::Hot | Pattern::Classes)
            .then(|| Stray {
                share: args.stray,
                period: Duration::from_secs_f64(args.stray_seconds),
                unit: if args.thp { HUGE_PAGE_PAGES } else { 1 },
            })
            .filter(|s| s.share > 0.0);
        Ok(Self {
            shared,
            chooser,
            census,
            stray,
            pattern: args.pattern,
            phases: args.phases,
            phase_length: Duration::from_secs_f64(args.phase_seconds),
            threads,
            steps,
            started: Instant::now(),
            hot: Vec::new(),
        })
    }

    fn elapsed(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    fn run(mut self) -> anyhow::Result<()> {
        self.started = Instant::now();
        for phase in 1..=self.phases {
            self.phase(phase)?;
            if self.steps_seen() == Some(u32::MAX) {
                break;
            }
        }
        self.shared.stop();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                bail!("a thread of the workload panicked");
            }
        }
        self.shared.check_all();
        self.report_mismatches()?;
        let mismatches = self.shared.mismatch_count();
        emit(&Line::End {
            elapsed_seconds: self.elapsed(),
            accesses: self.shared.memory.accesses(),
            mismatches,
        })?;
        ensure!(
            mismatches == 0,
            "{mismatches} words did not hold what was written to them"
        );
        Ok(())
    }

    fn steps_seen(&self) -> Option<u32> {
        self.steps.as_ref().map(|s| s.load(Ordering::Acquire))
    }

    fn phase(&mut self, phase: u32) -> anyhow::Result<()> {
        let begin = Instant::now();
        let classes = self.chooser.as_mut().map(Chooser::next).unwrap_or_default();
        self.census.watch(&classes);
        self.hot = classes
            .iter()
            .flat_map(|c| c.order.iter().map(|&p| p as usize))
            .collect();
        emit(&Line::Phase {
            phase,
            elapsed_seconds: self.elapsed(),
            classes: classes.iter().map(|c| self.class_line(c)).collect(),
        })?;
        self.shared.enter(Phase {
            classes,
            stray: self.stray,
            verify: self.pattern == Pattern::Verify,
        });
        let at_start = self.shared.memory.accesses();
        let (end, last_quarter) = (
            begin + self.phase_length,
            begin + self.phase_length.mul_f64(0.75),
        );
        let mut before_last_quarter = None;
        let mut last = (begin, at_start.clone());
        let mut next_sample = begin + SAMPLE_EVERY;
        loop {
            let now = Instant::now();
            if now >= last_quarter && before_last_quarter.is_none() {
                before_last_quarter = Some(self.shared.memory.accesses());
            }
            let over = match self.steps_seen() {
                Some(steps) => steps >= phase,
                None => now >= end,
            };
            if over {
                break;
            }
            let quiet = self.pattern == Pattern::Burn;
            if now >= next_sample && !quiet {
                self.sample(phase, &mut last)?;
                // Never catches up on missed ones.
                next_sample = (next_sample + SAMPLE_EVERY).max(now);
            }
            if now >= self.census.due() && !quiet {
                self.census
                    .step(&self.shared.memory)
                    .context("asking where the buffer is")?;
            }
            let quarter = before_last_quarter.is_none().then_some(last_quarter);
            let end = if self.steps.is_some() {
                now + LOOK_FOR_STEP
            } else {
                end
            };
            let busy = (!quiet).then(|| next_sample.min(self.census.due()));
            let due = [busy, quarter]
                .into_iter()
                .flatten()
                .fold(end, Instant::min);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        let now = self.shared.memory.accesses();
        emit(&Line::PhaseEnd {
            phase,
            elapsed_seconds: self.elapsed(),
            last_quarter: difference(&now, before_last_quarter.as_ref().unwrap_or(&at_start)),
            accesses: difference(&now, &at_start),
            hot_pages: self.shared.memory.located(self.hot.iter().copied()),
        })
    }

    fn sample(&self, phase: u32, last: &mut (Instant, ByNode)) -> anyhow::Result<()> {
        let now = Instant::now();
        let counts = self.shared.memory.accesses();
        let accesses = difference(&counts, &last.1);
        let seconds = now.duration_since(last.0).as_secs_f64();
        *last = (now, counts);
        self.report_mismatches()?;
        emit(&Line::Sample {
            elapsed_seconds: self.elapsed(),
            phase,
            accesses_per_second: accesses.total() as f64 / seconds.max(1e-9),
            accesses,
            hot_pages: self.shared.memory.located(self.hot.iter().copied()),
            staleness_seconds: self.census.staleness(now).as_secs_f64(),
        })
    }

    fn report_mismatches(&self) -> anyhow::Result<()> {
        for m in self.shared.take_mismatches() {
            emit(&Line::Mismatch {
                page: m.page,
                word: m.word,
                expected: m.expected,
                found: m.found,
            })?;
        }
        Ok(())
    }

    fn class_line(&self, class: &Class) -> ClassLine {
        let start = self.shared.memory.buffer().range().start().0;
        let at = |page: usize| VirtAddr(start + page as u64 * PAGE_BYTES);
        ClassLine {
            period_seconds: class.period.map_or(0.0, |p| p.as_secs_f64()),
            ranges: class
                .chunks
                .iter()
                .filter_map(|&(first, count)| PageRange::new(at(first), at(first + count)))
                .collect(),
        }
    }
}

/// Counts lines on stdin, in a thread of its own.
fn count_steps() -> io::Result<Arc<AtomicU32>> {
    let steps = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&steps);
    std::thread::Builder::new()
        .name("stdin".into())
        .spawn(move || {
            for line in io::stdin().lock().lines() {
                if line.is_err() {
                    break;
                }
                counter.fetch_add(1, Ordering::Release);
            }
            counter.store(u32::MAX, Ordering::Release);
        })?;
    Ok(steps)
}

/// The classes that a pattern touches; none for those that touch no hot set.
fn specs(args: &Args) -> anyhow::Result<Vec<ClassSpec>> {
    let swept = |share| ClassSpec {
        share,
        period: None,
    };
    Ok(match args.pattern {
        Pattern::Hot | Pattern::Burn => {
            ensure!(
                args.hot > 0.0 && args.hot <= 1.0,
                "--hot {}: a share above 0 and at most 1",
                args.hot
            );
            vec![swept(args.hot)]
        }
        Pattern::Classes => {
            ensure!(
                !args.classes.is_empty(),
                "--pattern classes needs at least one --class SHARE:SECONDS"
            );
            args.classes
                .iter()
                .map(|&(share, seconds)| ClassSpec {
                    share,
                    period: (seconds > 0.0).then(|| Duration::from_secs_f64(seconds)),
                })
                .collect()
        }
        Pattern::Verify | Pattern::Idle | Pattern::Ballast => Vec::new(),
    })
}

/// What was added since `before`.
fn difference(now: &ByNode, before: &ByNode) -> ByNode {
    let mut all = ByNode::default();
    for (node, count) in now.iter() {
        all.add(node, count.saturating_sub(before.get(node)));
    }
    all
}
