//! A child that touches known pages, and a scan of them by a sampler.
//!
//! The child is the test binary itself, started again with `HMKEEPER_CHILD` set.
#![allow(unsafe_code, reason = "the child maps and touches memory")]
#![allow(unreachable_pub, reason = "shared by several modules")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use hmkeeper::ports::{AccessSampler, PortError, SamplerKind};
use hmkeeper::sys::root::Root;
use hmkeeper::sys::sampler;
use hmkeeper::tiering::observation::{AccessSet, Sample, TargetId};
use hmkeeper::units::{Nanos, Pid, VirtAddr};

pub const PAGE: usize = 4096;
pub const HUGE: usize = 2 << 20;
pub const WINDOW: Duration = Duration::from_secs(1);
/// Between two rounds of touching.
const PAUSE: Duration = Duration::from_millis(2);

/// The child's side. Maps `pages` pages, in folios as advised, then obeys one
/// line at a time: `touch FROM TO` (over and over, until the next line), `spin FROM TO` (the
/// same without a pause), `stop`,
/// `move NODE`, `unmap`, `fork` (a child that has all of it too), `reap` (ends that).
/// Answers each with a line once it has begun.
#[test]
fn child() {
    let Ok(setup) = std::env::var("HMKEEPER_CHILD") else {
        return;
    };
    let (pages, advice) = setup.split_once(' ').unwrap();
    let bytes = pages.parse::<usize>().unwrap() * PAGE;
    // SAFETY: a new private mapping, checked before use; all pointers below
    // stay within its aligned part.
    unsafe {
        let base = libc::mmap(
            std::ptr::null_mut(),
            bytes + HUGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(base, libc::MAP_FAILED);
        let base = base.cast::<u8>();
        let base = base.add(base.align_offset(HUGE));
        let advice = match advice {
            "huge" => libc::MADV_HUGEPAGE,
            _ => libc::MADV_NOHUGEPAGE,
        };
        libc::madvise(base.cast(), bytes, advice);
        for page in 0..bytes / PAGE {
            base.add(page * PAGE).write_volatile(1);
        }
        let stdin = std::io::stdin();
        println!("\nready {}", base.addr());
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in stdin.lock().lines() {
                if sender.send(line.unwrap()).is_err() {
                    return;
                }
            }
            std::process::exit(0);
        });
        let (mut touched, mut pause) = (0..0, PAUSE);
        let mut forked = 0;
        loop {
            // Brief pauses let other processes on, as real programs do; TCG and
            // real processors alike then forget old translations.
            let line = lines.recv_timeout(pause);
            if let Ok(line) = line {
                let words: Vec<_> = line.split(' ').collect();
                match words[0] {
                    "touch" | "spin" => {
                        touched = words[1].parse().unwrap()..words[2].parse().unwrap();
                        pause = if words[0] == "spin" {
                            Duration::ZERO
                        } else {
                            PAUSE
                        };
                    }
                    "stop" => touched = 0..0,
                    "move" => move_all(base, bytes / PAGE, words[1].parse().unwrap()),
                    "unmap" => {
                        libc::munmap(base.cast(), bytes);
                    }
                    "fork" => {
                        forked = libc::fork();
                        if forked == 0 {
                            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                            loop {
                                libc::pause();
                            }
                        }
                    }
                    "reap" => {
                        libc::kill(forked, libc::SIGKILL);
                        libc::waitpid(forked, std::ptr::null_mut(), 0);
                    }
                    other => panic!("what is {other}?"),
                }
                println!("\ndone");
            }
            for page in touched.clone() {
                base.add(page * PAGE).write_volatile(2);
            }
        }
    }
}

/// Moves the pages from `base` on to a node.
fn move_all(base: *mut u8, pages: usize, node: i32) {
    let addresses: Vec<_> = (0..pages).map(|p| base.wrapping_add(p * PAGE)).collect();
    let nodes = vec![node; pages];
    let mut status = vec![-1_i32; pages];
    // SAFETY: three arrays of `pages` elements each, living through the call.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            pages,
            addresses.as_ptr(),
            nodes.as_ptr(),
            status.as_mut_ptr(),
            2, // MPOL_MF_MOVE of linux/mempolicy.h
        )
    };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    assert!(status.iter().all(|&s| s == node));
}

/// The child from outside.
pub struct Target {
    pub child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    base: u64,
}

impl Target {
    pub fn start(pages: usize, advice: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "watched::child", "--nocapture"])
            .env("HMKEEPER_CHILD", format!("{pages} {advice}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let base = answer(&mut stdout, "ready ").parse().unwrap();
        // Pages wait in per-CPU batches before they can be aged.
        std::thread::sleep(Duration::from_millis(200));
        Self {
            child,
            stdin,
            stdout,
            base,
        }
    }

    pub fn tell(&mut self, what: &str) {
        writeln!(self.stdin, "{what}").unwrap();
        answer(&mut self.stdout, "done");
    }

    pub fn pid(&self) -> Pid {
        Pid(i32::try_from(self.child.id()).unwrap())
    }

    /// One sample per `step` pages of the first `pages`.
    pub fn samples(&self, pages: usize, step: usize) -> Vec<Sample> {
        (0..pages)
            .step_by(step)
            .map(|page| Sample {
                target: TargetId(1),
                pid: self.pid(),
                addr: VirtAddr(self.base + (page * PAGE) as u64),
            })
            .collect()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for a line that begins so; the rest of it.
pub fn answer(from: &mut impl BufRead, prefix: &str) -> String {
    loop {
        let mut line = String::new();
        assert_ne!(from.read_line(&mut line).unwrap(), 0, "the child ended");
        if let Some(rest) = line.trim_end().strip_prefix(prefix) {
            return rest.to_owned();
        }
    }
}

/// Opens a sampler, or `None` (and says so) where this kernel has none.
pub fn open(kind: SamplerKind) -> Option<Box<dyn AccessSampler>> {
    let state = tempfile::tempdir().unwrap();
    match sampler::open(&Root::host(), Some(kind), state.path()) {
        Ok(sampler) => Some(sampler),
        Err(e @ (PortError::Missing { .. } | PortError::Forbidden { .. })) => {
            eprintln!("skipped: {e}");
            None
        }
        // Whoever uses it on somebody's machine; in the guest nobody does.
        Err(e @ PortError::Busy { .. }) if std::env::var_os("HMKEEPER_TEST_SETTINGS").is_none() => {
            eprintln!("skipped: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// One scan of a window, during which something happens.
pub fn scan(
    sampler: &mut dyn AccessSampler,
    samples: &[Sample],
    between: impl FnOnce(),
) -> AccessSet {
    let mut seen = AccessSet::new(samples.to_vec());
    let window = Nanos::from(WINDOW);
    let start = Instant::now();
    sampler.arm(samples, window).unwrap();
    let arm = start.elapsed();
    between();
    let start = Instant::now();
    sampler.collect(&mut seen).unwrap();
    let collect = start.elapsed();
    eprintln!(
        "{} samples: arm {arm:?}, collect {collect:?}",
        samples.len()
    );
    assert_eq!(seen.scans(), 1);
    seen
}

/// The pages of a target are shared from its fork until the child has ended.
pub fn tells_what_a_fork_shares(sampler: &mut dyn AccessSampler) {
    let mut target = Target::start(1024, "small");
    let samples = target.samples(1024, 4);
    let mut shared = |target: &mut Target, command: Option<&str>| {
        if let Some(command) = command {
            target.tell(command);
        }
        let seen = scan(sampler, &samples, wait);
        // Within an epoch it may be as it was before.
        sampler.rest();
        let known = || seen.tallies().iter().filter(|t| t.known == 1);
        assert!(known().count() >= 200, "{} known", known().count());
        let shared = known().filter(|t| t.shared).count();
        (shared, known().count() - shared)
    };
    assert_eq!(shared(&mut target, None).0, 0);
    assert_eq!(shared(&mut target, Some("fork")).1, 0);
    assert_eq!(shared(&mut target, Some("reap")).0, 0);
}

/// As long as a scan's window.
pub fn wait() {
    std::thread::sleep(WINDOW);
}

/// (accessed, idle, unknown) of the samples in `part`.
pub fn count(seen: &AccessSet, part: std::ops::Range<usize>) -> (usize, usize, usize) {
    let tallies = &seen.tallies()[part];
    let accessed = tallies.iter().filter(|t| t.accessed == 1).count();
    let known = tallies.iter().filter(|t| t.known == 1).count();
    (accessed, known - accessed, tallies.len() - known)
}
