//! What is mapped is not what is there: programs touch 32 MiB in reservations of up to 20 TiB,
//! and the hot quarter of it is found as soon as in 1 GiB, then promoted; so it is in islands, in
//! shared memory, and where memory is given back and grows elsewhere.
//!
//! A child is the test binary itself, started again with `HMKEEPER_SPARSE` set. Moves are held to
//! pay, as in other tests of placement; a limit of 0.1 in the short form.
// vm: topology=4tier timeout=400
#![allow(
    unsafe_code,
    reason = "the child maps memory and gives some of it back"
)]

use std::ffi::CStr;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hmkeeper::ports::PageMover;
use hmkeeper::sys::mover::SysMover;
use hmkeeper::sys::process::{end_with_parent, pin_thread};
use hmkeeper::sys::root::Root;
use hmkeeper::units::{NodeId, PageRange, VirtAddr};

use crate::common::{
    Daemon, Signal, Site, WHERE_MOVES_PAY, epoch, in_guest, interval, lines, locate, number,
    percent, pid_of, share, target,
};
use crate::place::{asked, limits};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Limit of what watching costs.
const LIMIT: f64 = 0.1;
/// Of the hot pages so many are known to be hot, and little else; and are on the fast nodes in
/// the end.
const REACHED: f64 = 0.9;
const TOO_MUCH: f64 = 1.25;
/// A reservation may take so many epochs longer than one of 1 GiB.
const LATER: u64 = 2;
const PATIENCE: u64 = 40;

/// What a program touches of what it has reserved.
#[derive(Clone, Copy)]
struct Form {
    name: &'static str,
    reserved: u64,
    /// So many islands of so many bytes, so far from each other.
    islands: u64,
    island: u64,
    every: u64,
    is_shared: bool,
}

const HEAP: Form = Form {
    name: "heap",
    reserved: GIB,
    islands: 1,
    island: 32 * MIB,
    every: 0,
    is_shared: false,
};

const fn heap(name: &'static str, reserved: u64) -> Form {
    Form {
        name,
        reserved,
        ..HEAP
    }
}

const FORMS: [Form; 8] = [
    heap("1g", GIB),
    heap("8g", 8 * GIB),
    heap("512g", 512 * GIB),
    heap("20t", 20 << 40),
    Form {
        name: "islands2m",
        reserved: 4 * GIB,
        islands: 64,
        island: 256 << 10,
        every: 2 * MIB,
        ..HEAP
    },
    Form {
        name: "islands1g",
        reserved: 64 * GIB,
        islands: 16,
        island: MIB,
        every: GIB,
        ..HEAP
    },
    Form {
        name: "memfd",
        reserved: 64 * GIB,
        is_shared: true,
        ..HEAP
    },
    Form {
        name: "moves",
        reserved: 256 * GIB,
        ..HEAP
    },
];

impl Form {
    fn of(name: &str) -> Self {
        let found = FORMS.into_iter().find(|form| form.name == name);
        found.expect("a form")
    }

    /// The islands of a reservation that begins at `base`, at a third of it or, when they
    /// have moved, at two thirds.
    fn touched(self, base: u64, moved: bool) -> Vec<PageRange> {
        let thirds = if moved { 2 } else { 1 };
        let first = base + self.reserved / 3 * thirds / (2 * MIB) * (2 * MIB);
        let at = |island: u64| first + island * self.every;
        let range = |start| PageRange::new(VirtAddr(start), VirtAddr(start + self.island));
        let all = (0..self.islands).map(|island| range(at(island)).expect("an island"));
        all.collect()
    }

    /// The first quarter of these.
    fn hot(self, touched: &[PageRange]) -> Vec<PageRange> {
        if self.islands >= 4 {
            return touched[..touched.len() / 4].to_vec();
        }
        let start = touched[0].start();
        let hot = PageRange::new(start, VirtAddr(start.0 + self.island / 4));
        vec![hot.expect("a quarter")]
    }
}

/// The child's side: touches what its form says, tells where its reservation begins, and goes on
/// touching what is hot. On a line it gives all back and goes on elsewhere.
#[test]
fn sparse_program() {
    let Ok(name) = std::env::var("HMKEEPER_SPARSE") else {
        return;
    };
    let form = Form::of(&name);
    pin_thread(&[0]).expect("CPU 0");
    let base = reserve(form);
    let base_address = base.addr() as u64;
    let word = |at: u64| {
        let offset = usize::try_from(at - base_address).expect("an offset");
        // SAFETY: an aligned word within the mapping, which lives as long as the process.
        unsafe { AtomicU64::from_ptr(base.add(offset).cast()) }
    };
    let touch = |ranges: &[PageRange]| {
        for page in ranges.iter().flat_map(|range| range.iter_pages()) {
            word(page.0).fetch_add(1, Relaxed);
        }
    };
    let mut touched = form.touched(base_address, false);
    touch(&touched);
    println!("\nready {base_address}");
    let moves = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&moves);
    std::thread::spawn(move || {
        let mut line = String::new();
        while std::io::stdin().read_line(&mut line).is_ok_and(|n| n > 0) {
            told.store(true, Relaxed);
        }
    });
    loop {
        if moves.swap(false, Relaxed) {
            for range in &touched {
                let len = usize::try_from(range.bytes().0).expect("a length");
                let offset = usize::try_from(range.start().0 - base_address).expect("an offset");
                // SAFETY: within the mapping; what is given back reads as zero.
                let rc =
                    unsafe { libc::madvise(base.add(offset).cast(), len, libc::MADV_DONTNEED) };
                assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
            }
            touched = form.touched(base_address, true);
            touch(&touched);
            println!("\nready {base_address}");
        }
        touch(&form.hot(&touched));
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Maps what a form reserves, in small pages.
fn reserve(form: Form) -> *mut u8 {
    let name: &CStr = c"sparse";
    let bytes = usize::try_from(form.reserved).expect("a size");
    // SAFETY: a new mapping, checked before use.
    unsafe {
        let (file, kind) = if form.is_shared {
            let file = libc::memfd_create(name.as_ptr(), 0);
            let size = libc::off_t::try_from(form.reserved).expect("a size");
            assert_eq!(libc::ftruncate(file, size), 0);
            (file, libc::MAP_SHARED)
        } else {
            (-1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS)
        };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = kind | libc::MAP_NORESERVE;
        let base = libc::mmap(std::ptr::null_mut(), bytes, protection, flags, file, 0);
        assert_ne!(
            base,
            libc::MAP_FAILED,
            "{}",
            std::io::Error::last_os_error()
        );
        libc::madvise(base, bytes, libc::MADV_NOHUGEPAGE);
        base.cast()
    }
}

/// A child from outside; dropping it kills it.
struct Program {
    form: Form,
    child: Child,
    out: BufReader<ChildStdout>,
    hot: Vec<PageRange>,
}

impl Program {
    /// Starts it and moves all that it has touched to the slowest node.
    fn start(form: Form) -> Self {
        let itself = std::env::current_exe().expect("the test binary");
        let mut command = Command::new(itself);
        command
            .args(["--exact", "vm_sparse::sparse_program", "--nocapture"])
            .env("HMKEEPER_SPARSE", form.name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        end_with_parent(&mut command, Signal::SIGKILL);
        let mut child = command.spawn().expect("starting a child");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let mut this = Self {
            form,
            child,
            out,
            hot: Vec::new(),
        };
        this.begin(false);
        this
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has touched what it touches, and moves that.
    fn begin(&mut self, moved: bool) {
        let mut seen = String::new();
        let base = loop {
            let mut line = String::new();
            let count = self.out.read_line(&mut line).expect("its output");
            assert!(count > 0, "{} ended: {seen}", self.form.name);
            if let Some(base) = line.strip_prefix("ready ") {
                break base.trim().parse().expect("an address");
            }
            seen.push_str(&line);
        };
        let touched = self.form.touched(base, moved);
        self.hot = self.form.hot(&touched);
        let slowest = |&range: &PageRange| asked(pid_of(self.pid()), range, NodeId(0), NodeId(3));
        let moves: Vec<_> = touched.iter().map(slowest).collect();
        let mut mover = SysMover::new(&Root::host());
        for moves in moves.chunks(64) {
            mover.apply(moves, limits()).expect("moves");
        }
        let there = locate(self.pid(), &touched);
        assert!(share(&there, &[3]) > 0.95, "{}: {there:?}", self.form.name);
    }

    /// Has it give all back and go on elsewhere.
    fn go_elsewhere(&mut self) {
        let stdin = self.child.stdin.as_mut().expect("piped");
        stdin.write_all(b"\n").expect("telling it");
        self.begin(true);
    }

    /// Share of its hot pages that are on the fast nodes.
    fn reached(&self) -> f64 {
        share(&locate(self.pid(), &self.hot), &[0, 1])
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Both fail when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A daemon that watches all of these.
fn watch(site: &Site, programs: &[Program]) -> Daemon {
    let mut body = format!(
        "[profiling]\ninterval = \"{}ms\"\noverhead_limit = {LIMIT}\n{WHERE_MOVES_PAY}",
        interval().as_millis()
    );
    for program in programs {
        let (name, pid) = (program.form.name, program.pid());
        let _ = writeln!(body, "[[targets]]\nname = \"{name}\"\npid = {pid}");
    }
    site.write_config(&body);
    let mut daemon = site.start();
    for program in programs {
        daemon.until_watching(program.pid());
    }
    daemon
}

/// In which epoch from now on the hot pages of each were found. Ends when all are on fast nodes.
fn follow(daemon: &Daemon, programs: &[Program]) -> (Vec<u64>, String) {
    let begin = epoch(&daemon.status());
    let (mut when, mut is_there) = (vec![None; programs.len()], false);
    let (mut course, mut spent) = (Vec::new(), vec![Vec::new(); programs.len()]);
    while !is_there || when.contains(&None) {
        let status = daemon.epochs(1);
        let now = epoch(&status) - begin;
        let mut line = format!("epoch {now}:");
        is_there = true;
        for (at, program) in programs.iter().enumerate() {
            let reached = program.reached();
            is_there &= reached >= REACHED;
            let of = |key| number(&status, program.pid(), key);
            let hot: u64 = program.hot.iter().map(|r| r.bytes().0).sum();
            let known = of("hot_bytes") as f64 / hot as f64;
            if (REACHED..TOO_MUCH).contains(&known) && when[at].is_none() {
                when[at] = Some(now);
            }
            let overhead = &target(&status, program.pid()).expect("a target")["overhead"];
            let cost = overhead["profiling"].as_f64().unwrap_or(0.0)
                + overhead["target"].as_f64().unwrap_or(0.0);
            spent[at].push(cost);
            let _ = write!(
                line,
                " {} {} ({} MiB hot of {} in {} regions, {} samples, costs {})",
                program.form.name,
                percent(reached),
                of("hot_bytes") >> 20,
                of("eligible_bytes") >> 20,
                of("regions"),
                of("samples"),
                percent(cost),
            );
        }
        println!("{line}");
        course.push(line);
        assert!(now < PATIENCE, "found: {when:?}\n{}", lines(course));
    }
    for (program, spent) in programs.iter().zip(&spent) {
        // The first epochs find out what a look costs.
        let later = &spent[spent.len() / 2..];
        let mean = later.iter().sum::<f64>() / later.len().max(1) as f64;
        println!("{}: costs {}", program.form.name, percent(mean));
        assert!(mean < LIMIT * 1.5, "{}: {spent:?}", program.form.name);
    }
    (when.into_iter().flatten().collect(), lines(course))
}

/// Watches these until all that is hot is on fast nodes. Returns when each was found, and the
/// course of it.
fn are_found(names: &[&str]) -> Option<(Vec<u64>, String)> {
    if !in_guest() {
        return None;
    }
    let mut programs: Vec<Program> = names.iter().map(|n| Program::start(Form::of(n))).collect();
    let site = Site::new();
    let daemon = watch(&site, &programs);
    let (when, course) = follow(&daemon, &programs);
    let status = daemon.status();
    for program in &programs {
        let of = |key| number(&status, program.pid(), key);
        let (eligible, covered) = (of("eligible_bytes"), of("covered_bytes"));
        let touched = program.form.islands * program.form.island;
        assert!(
            eligible < touched * 5 / 4 + 16 * MIB && covered > touched * 9 / 10,
            "{}: {status:#}",
            program.form.name
        );
    }
    if let Some(moves) = programs.iter_mut().find(|p| p.form.name == "moves") {
        moves.go_elsewhere();
        follow(&daemon, std::slice::from_ref(moves));
    }
    daemon.stop();
    Some((when, course))
}

#[test]
fn what_is_hot_is_found_in_reservations_of_any_size_as_soon_as_in_a_small_one() {
    let names = ["1g", "8g", "512g", "20t"];
    let Some((when, course)) = are_found(&names) else {
        return;
    };
    for (name, epochs) in names.iter().zip(&when) {
        assert!(*epochs <= when[0] + LATER, "{name}: {when:?}\n{course}");
    }
}

/// Not as soon: each island is a region of its own, and in an emulator few are looked at in an
/// epoch.
#[test]
fn islands_shared_memory_and_what_grows_elsewhere_are_found() {
    are_found(&["islands2m", "islands1g", "memfd", "moves"]);
}
