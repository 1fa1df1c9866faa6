//! The process whose pages are moved: this program once more, with two buffers on two
//! nodes, and a thread that touches their pages at random and times each touch.
//!
//! It prints the addresses of its buffers, and from then on answers each line: the
//! touches since the line before.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use hmkeeper::sys::numa::{Buffer, HugePages, WORDS_PER_PAGE};
use hmkeeper::sys::process::end_with_parent;
use hmkeeper::units::{Bytes, NodeId, PAGE_BYTES, PageRange, Pid, VirtAddr};
use nix::sys::signal::Signal;

/// The argument that makes this program the target.
pub(crate) const ARGUMENT: &str = "--target";
/// Steps of the histogram for each doubling of time.
const STEPS: f64 = 8.0;

/// How a target uses its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) huge: bool,
    /// Touches all the time; else a thousand times a second at most.
    pub(crate) busy: bool,
    /// Of each buffer.
    pub(crate) bytes: Bytes,
}

/// Touches, counted by how long they took.
#[derive(Clone, Debug, Default)]
struct Touches {
    count: u64,
    longest: Duration,
    /// By [`STEPS`] times the logarithm of the nanoseconds.
    by_time: Vec<u64>,
}

impl Touches {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn add(&mut self, took: Duration) {
        let step = ((took.as_secs_f64() * 1e9).max(1.0).log2() * STEPS) as usize;
        if self.by_time.len() <= step {
            self.by_time.resize(step + 1, 0);
        }
        self.by_time[step] += 1;
        self.count += 1;
        self.longest = self.longest.max(took);
    }

    /// Nanoseconds below which 999 of 1000 lie.
    fn most(&self) -> f64 {
        let mut above = self.count / 1000;
        for (step, &count) in self.by_time.iter().enumerate().rev() {
            if count > above {
                return ((step + 1) as f64 / STEPS).exp2();
            }
            above -= count;
        }
        0.0
    }
}

fn buffer_on(node: u32, shape: Shape) -> Buffer {
    let huge = if shape.huge {
        HugePages::Wanted
    } else {
        HugePages::Refused
    };
    let buffer = Buffer::new(shape.bytes, huge).expect("a buffer");
    buffer.bind(NodeId(node)).expect("the node");
    for page in buffer.words().chunks(WORDS_PER_PAGE) {
        page[0].store(1, Relaxed);
    }
    buffer.unbind().expect("no policy");
    buffer
}

fn touch(buffers: &[Buffer; 2], busy: bool, touches: &Mutex<Touches>) -> ! {
    let mut random = 1_u64;
    loop {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let buffer = &buffers[usize::from(random >> 63 == 1)];
        let page = (random >> 33) % buffer.page_count() as u64;
        let word = usize::try_from(page).expect("a page") * WORDS_PER_PAGE;
        let begin = Instant::now();
        buffer.words()[word].fetch_add(1, Relaxed);
        let took = begin.elapsed();
        touches.lock().expect("never poisoned").add(took);
        if !busy {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The target's life.
pub(crate) fn live(shape: Shape) {
    let buffers = [buffer_on(0, shape), buffer_on(3, shape)];
    let starts = buffers.each_ref().map(|b| b.range().start().0);
    println!("{} {}", starts[0], starts[1]);
    let touches = Mutex::new(Touches::default());
    std::thread::scope(|scope| {
        scope.spawn(|| touch(&buffers, shape.busy, &touches));
        for _ in std::io::stdin().lines() {
            let told = std::mem::take(&mut *touches.lock().expect("never poisoned"));
            println!("{} {}", told.longest.as_nanos(), told.most());
        }
        std::process::exit(0)
    });
}

/// A target as its parent sees it. Ends when dropped.
pub(crate) struct Target {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    pub(crate) buffers: [PageRange; 2],
}

/// How long touches took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stalls {
    pub(crate) longest: Duration,
    /// The 99.9th percentile.
    pub(crate) most: Duration,
}

impl Target {
    pub(crate) fn start(shape: Shape) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("our own path"));
        let kind = if shape.huge { "huge" } else { "small" };
        let pace = if shape.busy { "busy" } else { "light" };
        command
            .args([ARGUMENT, kind, pace, &shape.bytes.0.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        end_with_parent(&mut command, Signal::SIGKILL);
        let mut child = command.spawn().expect("a child");
        let commands = child.stdin.take().expect("piped");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        let mut this = Self {
            child,
            commands,
            answers,
            buffers: [PageRange::new(VirtAddr(0), VirtAddr(PAGE_BYTES)).expect("a page"); 2],
        };
        let starts = this.line();
        this.buffers = [0, 1].map(|at| {
            let start: u64 = starts[at].parse().expect("an address");
            PageRange::new(VirtAddr(start), VirtAddr(start + shape.bytes.0)).expect("a range")
        });
        this
    }

    /// What the arguments of a target mean.
    pub(crate) fn shape(args: &[String]) -> Option<Shape> {
        let at = args.iter().position(|arg| arg == ARGUMENT)?;
        Some(Shape {
            huge: args[at + 1] == "huge",
            busy: args[at + 2] == "busy",
            bytes: Bytes(args[at + 3].parse().expect("bytes")),
        })
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid(i32::try_from(self.child.id()).expect("a pid"))
    }

    fn line(&mut self) -> Vec<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("an answer");
        line.split_whitespace().map(ToOwned::to_owned).collect()
    }

    /// The touches since this was last asked.
    pub(crate) fn stalls(&mut self) -> Stalls {
        writeln!(self.commands).expect("a reader");
        let told = self.line();
        let nanos = |at: usize| told[at].parse::<f64>().expect("nanoseconds") / 1e9;
        Stalls {
            longest: Duration::from_secs_f64(nanos(0)),
            most: Duration::from_secs_f64(nanos(1)),
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
