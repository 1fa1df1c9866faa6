//! The samplers on a real kernel: a child touches known pages, and we check
//! what was seen. Each test says why it skips where the kernel lacks something.
//!
//! The child is this very test binary, started again with `HMKEEPER_CHILD` set.
#![allow(unsafe_code)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use hmkeeper::ports::{AccessSampler, PortError, SamplerKind};
use hmkeeper::sys::probe::{State, probe};
use hmkeeper::sys::root::Root;
use hmkeeper::sys::sampler;
use hmkeeper::tiering::observation::{AccessSet, Sample, TargetId};
use hmkeeper::units::{Nanos, Pid, VirtAddr};

const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;
const WINDOW: Duration = Duration::from_secs(1);

/// The child's side. Maps `pages` pages, in folios as advised, then obeys one
/// line at a time: `touch FROM TO` (over and over, until the next line), `stop`,
/// `move NODE`, `unmap`. Answers each with a line once it has begun.
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
        let mut touched = 0..0;
        loop {
            // Brief pauses let other processes on, as real programs do; TCG and
            // real processors alike then forget old translations.
            let line = lines.recv_timeout(Duration::from_millis(2));
            if let Ok(line) = line {
                let words: Vec<_> = line.split(' ').collect();
                match words[0] {
                    "touch" => touched = words[1].parse().unwrap()..words[2].parse().unwrap(),
                    "stop" => touched = 0..0,
                    "move" => move_all(base, bytes / PAGE, words[1].parse().unwrap()),
                    "unmap" => {
                        libc::munmap(base.cast(), bytes);
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

struct Target {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    base: u64,
}

impl Target {
    fn start(pages: usize, advice: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
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

    fn tell(&mut self, what: &str) {
        writeln!(self.stdin, "{what}").unwrap();
        answer(&mut self.stdout, "done");
    }

    fn pid(&self) -> Pid {
        Pid(i32::try_from(self.child.id()).unwrap())
    }

    /// One sample per `step` pages of the first `pages`.
    fn samples(&self, pages: usize, step: usize) -> Vec<Sample> {
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

fn answer(from: &mut impl BufRead, prefix: &str) -> String {
    loop {
        let mut line = String::new();
        assert_ne!(from.read_line(&mut line).unwrap(), 0, "the child ended");
        if let Some(rest) = line.trim_end().strip_prefix(prefix) {
            return rest.to_owned();
        }
    }
}

/// The idle sampler, or `None` (and says so) where this kernel has none.
fn idle() -> Option<Box<dyn AccessSampler>> {
    open(SamplerKind::Idle)
}

fn open(kind: SamplerKind) -> Option<Box<dyn AccessSampler>> {
    let state = tempfile::tempdir().unwrap();
    match sampler::open(&Root::host(), Some(kind), state.path()) {
        Ok(sampler) => Some(sampler),
        Err(e @ (PortError::Missing { .. } | PortError::Forbidden { .. })) => {
            eprintln!("skipped: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

fn scan(sampler: &mut dyn AccessSampler, samples: &[Sample], between: impl FnOnce()) -> AccessSet {
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

fn wait() {
    std::thread::sleep(WINDOW);
}

/// (accessed, idle, unknown) of the samples in `part`.
fn count(seen: &AccessSet, part: std::ops::Range<usize>) -> (usize, usize, usize) {
    let tallies = &seen.tallies()[part];
    let accessed = tallies.iter().filter(|t| t.accessed == 1).count();
    let known = tallies.iter().filter(|t| t.known == 1).count();
    (accessed, known - accessed, tallies.len() - known)
}

#[test]
fn idle_tracking_sees_exactly_the_half_that_is_touched() {
    let Some(mut sampler) = idle() else { return };
    let mut target = Target::start(4096, "small");
    target.tell("touch 1024 3072");
    let samples = target.samples(4096, 1);
    for _ in 0..3 {
        let seen = scan(&mut *sampler, &samples, wait);
        assert_eq!(count(&seen, 1024..3072), (2048, 0, 0));
        // A neighbour on the same CPU may still fill its last page batch.
        assert_eq!(count(&seen, 0..1024), (0, 1024, 0));
        let (accessed, _, unknown) = count(&seen, 3072..4096);
        assert_eq!(accessed, 0);
        assert!(unknown <= 31, "{unknown} of the last pages unknown");
        assert!(seen.tallies()[..3072].iter().all(|t| t.order == 0));
        assert!(seen.tallies()[..3072].iter().all(|t| t.node.is_some()));
    }
}

#[test]
fn what_a_scan_costs_is_learnt_on_pages_of_our_own() {
    let Some(mut sampler) = idle() else { return };
    let learnt = sampler.calibrate().unwrap().expect("idle tracking can");
    eprintln!("{} scans took {}", learnt.scans, learnt.took);
    // Enough to be believed, and no nonsense.
    assert!(learnt.scans >= 300);
    let each = learnt.took.0 / learnt.scans;
    assert!((100..1_000_000).contains(&each), "{each} ns");
    // And others are seen as before.
    let target = Target::start(256, "small");
    let seen = scan(&mut *sampler, &target.samples(128, 1), || ());
    assert_eq!(count(&seen, 0..128), (0, 128, 0));
}

#[test]
fn idle_tracking_sees_huge_pages_as_one() {
    let Some(mut sampler) = idle() else { return };
    // 32 huge pages, of which one byte in each of the first 16 is touched.
    let mut target = Target::start(32 * 512, "huge");
    target.tell("touch 0 8192");
    // 100 lies inside of a huge page, so that most samples are tails.
    let samples = target.samples(32 * 512, 100);
    let seen = scan(&mut *sampler, &samples, wait);
    let hot = 8192_usize.div_ceil(100);
    let huge = seen.tallies().iter().filter(|t| t.order == 9).count();
    if huge == 0 {
        eprintln!("skipped: no huge page was given");
        return;
    }
    assert_eq!(huge, samples.len());
    assert_eq!(count(&seen, 0..hot), (hot, 0, 0));
    assert_eq!(
        count(&seen, hot..samples.len()),
        (0, samples.len() - hot, 0)
    );
}

#[test]
fn idle_tracking_sees_folios_of_middle_orders() {
    const KNOB: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled";
    const HUGE_KNOB: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled";
    let Some(mut sampler) = idle() else { return };
    let (Ok(before), Ok(huge)) = (
        std::fs::read_to_string(KNOB),
        std::fs::read_to_string(HUGE_KNOB),
    ) else {
        eprintln!("skipped: this kernel has no folios of 64 KiB");
        return;
    };
    if std::env::var_os("HMKEEPER_TEST_SETTINGS").is_none() {
        eprintln!("skipped: HMKEEPER_TEST_SETTINGS is not set, and the test changes {KNOB}");
        return;
    }
    let chosen = |text: &str| {
        let from = text.find('[').unwrap() + 1;
        text[from..text.find(']').unwrap()].to_owned()
    };
    std::fs::write(KNOB, "madvise").unwrap();
    std::fs::write(HUGE_KNOB, "never").unwrap();
    let mut target = Target::start(2048, "huge");
    std::fs::write(KNOB, chosen(&before)).unwrap();
    std::fs::write(HUGE_KNOB, chosen(&huge)).unwrap();
    target.tell("touch 1024 2048");
    let samples = target.samples(2048, 1);
    let seen = scan(&mut *sampler, &samples, wait);
    assert!(
        seen.tallies().iter().all(|t| t.order == 4),
        "orders: {:?}",
        seen.tallies().iter().map(|t| t.order).collect::<Vec<_>>()
    );
    assert_eq!(count(&seen, 0..1024), (0, 1024, 0));
    assert_eq!(count(&seen, 1024..2048), (1024, 0, 0));
}

#[test]
fn a_page_that_moved_meanwhile_is_unknown() {
    let Some(mut sampler) = idle() else { return };
    if !std::path::Path::new("/sys/devices/system/node/node1").exists() {
        eprintln!("skipped: one node");
        return;
    }
    let mut target = Target::start(256, "small");
    let mut samples = target.samples(256, 1);
    target.tell("move 1");
    let seen = scan(&mut *sampler, &samples, || target.tell("move 0"));
    assert_eq!(count(&seen, 0..256), (0, 0, 256));
    // The next scan finds them where they are now.
    let seen = scan(&mut *sampler, &samples, || ());
    assert_eq!(count(&seen, 0..256), (0, 256, 0));
    assert!(
        seen.tallies()
            .iter()
            .all(|t| t.node.is_some_and(|n| n.0 == 0))
    );
    samples.truncate(10);
    let seen = scan(&mut *sampler, &samples, || ());
    assert_eq!(count(&seen, 0..10), (0, 10, 0), "another sample set");
}

#[test]
fn an_unmapped_page_and_a_killed_process_are_unknown() {
    let Some(mut sampler) = idle() else { return };
    let mut target = Target::start(256, "small");
    let samples = target.samples(256, 1);
    let seen = scan(&mut *sampler, &samples, || target.tell("unmap"));
    assert_eq!(count(&seen, 0..256), (0, 0, 256));

    let mut target = Target::start(256, "small");
    target.tell("touch 0 256");
    let samples = target.samples(256, 1);
    let seen = scan(&mut *sampler, &samples, || {
        target.child.kill().unwrap();
        target.child.wait().unwrap();
    });
    assert_eq!(count(&seen, 0..256), (0, 0, 256));
    for _ in 0..2 {
        let seen = scan(&mut *sampler, &samples, || ());
        assert_eq!(count(&seen, 0..256), (0, 0, 256), "long gone");
    }
}

/// Prints what one sample costs per scan; judged by eye and by `docs`.
#[test]
fn idle_tracking_costs_little() {
    let Some(mut sampler) = idle() else { return };
    let target = Target::start(65536, "small");
    // Thin first: marks that earlier scans left on neighbours cost walks.
    for step in [512, 64, 16, 1, 64] {
        let samples = target.samples(65536, step);
        scan(&mut *sampler, &samples, || ());
        let mut seen = AccessSet::new(samples.clone());
        let start = Instant::now();
        for _ in 0..5 {
            sampler.arm(&samples, Nanos::from_millis(1)).unwrap();
            sampler.collect(&mut seen).unwrap();
        }
        let nanos = start.elapsed().as_nanos() / (5 * samples.len() as u128);
        eprintln!(
            "{} samples, one in {step} pages: {nanos} ns per sample and scan",
            samples.len()
        );
        assert!(seen.tallies().iter().filter(|t| t.known == 5).count() >= samples.len() * 9 / 10);
    }
}

#[test]
fn damon_sees_exactly_the_tenth_that_is_touched() {
    let Some(mut sampler) = open(SamplerKind::Damon) else {
        return;
    };
    let mut target = Target::start(65536, "small");
    let mut other = Target::start(1024, "small");
    target.tell("touch 32768 39322");
    let mut samples = target.samples(65536, 64);
    // Another target, whose addresses may well be the same, and not touched.
    samples.extend(other.samples(1024, 64).into_iter().map(|mut sample| {
        sample.target = TargetId(2);
        sample
    }));
    let hot = 512..615;
    let mut cpu = Nanos::ZERO;
    for _ in 0..3 {
        let seen = scan(&mut *sampler, &samples, wait);
        assert_eq!(count(&seen, hot.clone()), (103, 0, 0));
        assert_eq!(count(&seen, 0..512).0, 0);
        assert_eq!(count(&seen, 615..1040).0, 0);
        let (_, _, unknown) = count(&seen, 0..1040);
        assert!(unknown <= 2, "{unknown} unknown");
        let now = sampler.kernel_cpu_time();
        assert!(now > cpu, "the kdamonds' CPU time");
        cpu = now;
    }
    eprintln!(
        "kdamonds: {cpu} CPU time in 3 scans of {} samples",
        samples.len()
    );
    other.tell("touch 0 512");
    samples.drain(..1024);
    let seen = scan(&mut *sampler, &samples, wait);
    assert_eq!(count(&seen, 0..8), (8, 0, 0), "the target set changed");
    assert_eq!(count(&seen, 8..16).0, 0);
    assert!(sampler.kernel_cpu_time() > cpu, "never runs backwards");

    // One of three ends in the midst of a scan: the others are still told apart.
    let mut third = Target::start(1024, "small");
    third.tell("touch 256 768");
    let mut doomed = Target::start(1024, "small");
    doomed.tell("touch 0 1024");
    let mut three = doomed.samples(1024, 64);
    for (id, next) in [(2, &other), (3, &third)] {
        three.extend(next.samples(1024, 64).into_iter().map(|mut sample| {
            sample.target = TargetId(id);
            sample
        }));
    }
    for round in 0..2 {
        let seen = scan(&mut *sampler, &three, || {
            doomed.child.kill().unwrap();
            doomed.child.wait().unwrap();
            wait();
        });
        assert_eq!(count(&seen, 0..16), (0, 0, 16), "round {round}");
        assert_eq!(count(&seen, 16..24), (8, 0, 0), "round {round}");
        assert_eq!(count(&seen, 24..32).0, 0, "round {round}");
        assert_eq!(count(&seen, 32..36), (0, 4, 0), "round {round}");
        assert_eq!(count(&seen, 36..44), (8, 0, 0), "round {round}");
        assert_eq!(count(&seen, 44..48).0, 0, "round {round}");
    }

    // The last one ends in the midst of a scan, and the scans after it.
    let seen = scan(&mut *sampler, &samples, || {
        other.child.kill().unwrap();
        other.child.wait().unwrap();
        wait();
    });
    assert_eq!(count(&seen, 0..16), (0, 0, 16));
    let seen = scan(&mut *sampler, &samples, || ());
    assert_eq!(count(&seen, 0..16), (0, 0, 16));
    sampler.release();
    assert_eq!(kdamonds(), "0");
}

#[test]
fn damon_sees_huge_pages_as_one() {
    let Some(mut sampler) = open(SamplerKind::Damon) else {
        return;
    };
    let mut target = Target::start(32 * 512, "huge");
    target.tell("touch 0 8192");
    let samples = target.samples(32 * 512, 100);
    let seen = scan(&mut *sampler, &samples, wait);
    if seen.tallies().iter().all(|t| t.order != 9) {
        eprintln!("skipped: no huge page was given");
        return;
    }
    assert_eq!(count(&seen, 0..82), (82, 0, 0));
    assert_eq!(count(&seen, 82..164), (0, 82, 0));
}

fn kdamonds() -> String {
    std::fs::read_to_string("/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds")
        .unwrap()
        .trim()
        .to_owned()
}

/// The side of [`kdamonds_of_a_killed_run_are_removed_at_the_next_start`] that is killed.
#[test]
fn damon_victim() {
    let Ok(state) = std::env::var("HMKEEPER_VICTIM") else {
        return;
    };
    let want = Some(SamplerKind::Damon);
    let mut sampler = sampler::open(&Root::host(), want, state.as_ref()).unwrap();
    let target = Target::start(256, "small");
    sampler
        .arm(&target.samples(256, 1), Nanos::from_secs(60))
        .unwrap();
    println!("\narmed {}", target.child.id());
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn kdamonds_of_a_killed_run_are_removed_at_the_next_start() {
    if open(SamplerKind::Damon).is_none() {
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "damon_victim", "--nocapture"])
        .env("HMKEEPER_VICTIM", state.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    answer(&mut BufReader::new(victim.stdout.take().unwrap()), "armed ");
    let want = Some(SamplerKind::Damon);
    let live = sampler::open(&Root::host(), want, state.path()).err();
    assert!(matches!(live, Some(PortError::Busy { .. })), "{live:?}");
    victim.kill().unwrap();
    victim.wait().unwrap();
    assert_eq!(kdamonds(), "1");
    // Without the note they are a stranger's.
    let elsewhere = tempfile::tempdir().unwrap();
    let stranger = sampler::open(&Root::host(), want, elsewhere.path()).err();
    assert!(
        matches!(stranger, Some(PortError::Busy { .. })),
        "{stranger:?}"
    );
    assert_eq!(kdamonds(), "1");
    let sampler = sampler::open(&Root::host(), None, state.path()).unwrap();
    assert_eq!(kdamonds(), "0");
    assert_eq!(
        std::fs::read_dir(state.path()).unwrap().count(),
        0,
        "the note"
    );
    let left = format!("/sys/kernel/tracing/instances/hmkeeper-{}", victim.id());
    assert!(!std::path::Path::new(&left).exists(), "{left}");
    drop(sampler);
}

#[test]
fn damon_stat_is_told_as_what_is_in_the_way() {
    const KNOB: &str = "/sys/module/damon_stat/parameters/enabled";
    if open(SamplerKind::Damon).is_none() {
        return;
    }
    if std::env::var_os("HMKEEPER_TEST_SETTINGS").is_none() || std::fs::write(KNOB, "Y").is_err() {
        eprintln!(
            "skipped: no DAMON_STAT, or HMKEEPER_TEST_SETTINGS is not set, and the test runs it"
        );
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let error = sampler::open(&Root::host(), Some(SamplerKind::Damon), state.path()).err();
    std::fs::write(KNOB, "N").unwrap();
    let error = error.unwrap();
    assert!(matches!(error, PortError::Busy { .. }), "{error}");
    assert!(error.to_string().contains(KNOB), "{error}");
    assert_eq!(kdamonds(), "0");
}

/// On the host of any developer this only shows that probing is harmless; in
/// the tests' guest, whose kernel has all, that everything is found.
#[test]
fn probing_finds_what_the_kernel_has_and_leaves_it_so() {
    let before = kdamonds_if_any();
    let findings = probe(&Root::host());
    for finding in &findings {
        eprintln!("{finding:?}");
    }
    assert_eq!(kdamonds_if_any(), before);
    if std::env::var_os("HMKEEPER_TEST_SETTINGS").is_none() {
        eprintln!("the rest skipped: HMKEEPER_TEST_SETTINGS is not set, this is not the guest");
        return;
    }
    for finding in findings {
        assert_eq!(finding.state, State::Present, "{finding:?}");
    }
}

fn kdamonds_if_any() -> Option<String> {
    std::fs::read_to_string("/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds").ok()
}
