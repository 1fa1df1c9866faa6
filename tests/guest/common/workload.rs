//! The workload, and memory taken from a node, as child processes.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use hmkeeper::demo::workload::lines::{ByNode, ClassLine, Line};
use hmkeeper::ports::Residency;
use hmkeeper::sys::process::end_with_parent;
use hmkeeper::sys::residency::SysResidency;
use hmkeeper::sys::root::Root;
use hmkeeper::tiering::observation::NodeUsage;
use hmkeeper::tiering::settings::Asking;
use hmkeeper::tiering::shortage;
use hmkeeper::units::{Bytes, NodeId, PAGE_BYTES, PageRange, VirtAddr};
use nix::sys::signal::Signal;

use super::{PATIENCE, hmkeeper, locate};

/// A running workload; dropping it kills it.
pub struct Workload {
    process: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    seen: VecDeque<String>,
    /// Its buffer.
    pub range: PageRange,
    /// Where the buffer was at the start.
    pub start: ByNode,
    /// The classes of the phase now.
    pub classes: Vec<ClassLine>,
}

impl Workload {
    /// Starts `hmkeeper workload` and waits until its memory is there.
    pub fn start(args: &[&str]) -> Self {
        let mut command = hmkeeper();
        command.arg("workload").args(args);
        Self::start_as(command)
    }

    /// 64 MiB of which a quarter is hot, on the slowest node, on CPU 0.
    pub fn small() -> Self {
        Self::start(&[
            "--bytes=64MiB",
            "--hot=0.25",
            "--chunks=8",
            "--cpus=0",
            "--start-node=3",
            "--phases=1",
            "--phase-seconds=100000",
        ])
    }

    /// The workload of another command line.
    pub fn start_as(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        end_with_parent(&mut command, Signal::SIGKILL);
        let mut process = command.spawn().expect("starting the workload");
        let stdin = process.stdin.take();
        let out = process.stdout.take().expect("piped");
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        let mut workload = Self {
            process,
            stdin,
            lines,
            seen: VecDeque::new(),
            range: PageRange::new(VirtAddr(0), VirtAddr(4096)).expect("a range"),
            start: ByNode::default(),
            classes: Vec::new(),
        };
        let Line::Ready { range, pages, .. } =
            workload.next("ready", |l| matches!(l, Line::Ready { .. }))
        else {
            unreachable!("asked for ready")
        };
        workload.range = range;
        workload.start = pages;
        workload
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Says this on its stdin: lets it begin, or ends the phase.
    pub fn go(&mut self) {
        let stdin = self.stdin.as_mut().expect("its stdin");
        stdin.write_all(b"\n").expect("telling the workload");
    }

    /// The next line of this kind; those before it are dropped.
    pub fn next(&mut self, what: &str, wanted: impl Fn(&Line) -> bool) -> Line {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let text = match self.lines.recv_timeout(left) {
                Ok(text) => text,
                Err(RecvTimeoutError::Timeout) => {
                    panic!(
                        "workload: no {what} within {PATIENCE:?}; it said {:?}",
                        self.seen
                    )
                }
                Err(RecvTimeoutError::Disconnected) => panic!(
                    "workload: ended ({:?}) before {what}; it said {:?}",
                    self.process.wait(),
                    self.seen
                ),
            };
            let line: Line =
                serde_json::from_str(&text).unwrap_or_else(|e| panic!("workload: {e}: {text}"));
            self.seen.push_back(text.chars().take(300).collect());
            if self.seen.len() > 8 {
                self.seen.pop_front();
            }
            if let Line::Phase { classes, .. } = &line {
                self.classes.clone_from(classes);
            }
            if let Line::Mismatch { .. } = &line {
                panic!("workload: its memory is damaged: {line:?}");
            }
            if wanted(&line) {
                return line;
            }
        }
    }

    /// Waits for the next phase.
    pub fn phase(&mut self) {
        self.next("phase", |l| matches!(l, Line::Phase { .. }));
    }

    /// Accesses per second in the next so many samples.
    pub fn throughput(&mut self, samples: u32) -> f64 {
        // The one under way is not whole.
        self.drain();
        self.next("sample", |l| matches!(l, Line::Sample { .. }));
        let mut sum = 0.0;
        for _ in 0..samples {
            if let Line::Sample {
                accesses_per_second,
                ..
            } = self.next("sample", |l| matches!(l, Line::Sample { .. }))
            {
                sum += accesses_per_second;
            }
        }
        sum / f64::from(samples)
    }

    /// Looks at everything it has said: none of it is bad.
    pub fn drain(&mut self) {
        while let Ok(text) = self.lines.try_recv() {
            assert!(!text.contains("\"mismatch\""), "workload: {text}");
        }
    }

    /// Whether it still runs and still says so.
    pub fn assert_alive(&mut self) {
        self.drain();
        self.next("sign of life", |l| matches!(l, Line::Sample { .. }));
    }

    /// Its last words, when its phases are over, and how it ended.
    pub fn finish(&mut self) -> (Line, ExitStatus) {
        let end = self.next("end", |l| matches!(l, Line::End { .. }));
        let status = self.process.wait().expect("waiting for the workload");
        (end, status)
    }

    /// Where the pages of one class are now, asked from outside.
    pub fn located(&self, class: usize) -> ByNode {
        locate(self.pid(), &self.classes[class].ranges)
    }

    pub fn kill(&mut self) {
        self.process.kill().expect("killing the workload");
        self.process.wait().expect("waiting for the workload");
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("-- the workload said: {:?}", self.seen);
        }
        // Both fail when it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Memory taken from a node until it is dropped.
pub struct Ballast(#[expect(dead_code, reason = "it only has to live")] Workload);

/// Tenths of a second for which memory of a node may go on becoming free.
const SETTLES_WITHIN: usize = 50;

/// Fills a node until `leave` is free there for the daemon to use: the
/// kernel's own reserve and the daemon's headroom come on top.
pub fn ballast(node: u32, leave: Bytes) -> Ballast {
    start_ballast(node, leave, &[])
}

/// The same of memory that the kernel cannot demote.
pub fn locked_ballast(node: u32, leave: Bytes) -> Ballast {
    start_ballast(node, leave, &["--lock"])
}

fn start_ballast(node: u32, leave: Bytes, more: &[&str]) -> Ballast {
    // What earlier tests have read lies on the fast nodes, and what the kernel remembers of their
    // files. It frees of both when it likes, and then there would be more room than was left.
    std::fs::write("/proc/sys/vm/drop_caches", "3").expect("giving caches back");
    let usage = settled(node);
    // `migration.headroom` is 2 % unless configured, and no less than what a burst takes.
    let headroom = Bytes(usage.total.0 / 50).max(shortage::least(usage.total));
    let leave = leave + usage.reserve + headroom;
    let node = format!("--start-node={node}");
    let leave = format!("--leave={}", leave.0);
    let mut args = vec!["--pattern=ballast", &node, &leave];
    args.extend(more);
    Ballast(Workload::start(&args))
}

/// Memory of one node, once no more of it becomes free: what an earlier test has ended may still be
/// giving its memory back.
pub fn settled(node: u32) -> NodeUsage {
    let mut usage = usage_of(node);
    for _ in 0..SETTLES_WITHIN {
        std::thread::sleep(Duration::from_millis(100));
        let now = usage_of(node);
        let is_steady = now.free.0.abs_diff(usage.free.0) < Bytes::from_mib(1).0;
        usage = now;
        if is_steady {
            break;
        }
    }
    usage
}

/// Memory of one node.
fn usage_of(node: u32) -> NodeUsage {
    SysResidency::new(&Root::host())
        .nodes(Asking::Never)
        .expect("the nodes' memory")
        .into_iter()
        .find(|u| u.node == NodeId(node))
        .unwrap_or_else(|| panic!("no node {node}"))
}

/// The first and the second half of a range, which `--read-only=0.5` only reads and writes.
pub fn halves(range: PageRange) -> (PageRange, PageRange) {
    let middle = VirtAddr(u64::midpoint(range.start().0, range.end().0));
    range
        .split_at(middle.align_down(PAGE_BYTES))
        .expect("two pages")
}
