//! What the tests in the guest share: the daemon, workloads and ballast as
//! child processes, and where a foreign process's pages are.

#![allow(unreachable_pub, reason = "shared by several modules")]

mod workload;

pub use workload::{Workload, ballast, halves, locked_ballast, settled};

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use hmkeeper::control::{Request, client};
use hmkeeper::demo::workload::lines::ByNode;
use hmkeeper::sys::move_pages;
use hmkeeper::sys::process::{cpu_time, end_with_parent, signal};
use hmkeeper::sys::root::Root;
use hmkeeper::units::{NodeId, PageRange, Pid, VirtAddr};
pub use nix::sys::signal::Signal;
use serde_json::Value;

/// The control socket in a site's directory.
const SOCKET: &str = "control.sock";
/// Anything in the guest may take this long: it computes 20 times slower.
pub const PATIENCE: Duration = Duration::from_secs(90);
/// How often something that is waited for is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The interval of tests in which nothing hangs on how long it is.
pub fn interval() -> Duration {
    short_or_full(Duration::from_millis(1500), INTERVAL)
}

/// The same in long forms; also of tests that compare with figures which were measured with it.
pub const INTERVAL: Duration = Duration::from_secs(2);

/// Whether this is the guest that such a test needs; says so when not.
pub fn in_guest() -> bool {
    let here = std::env::var_os("HMKEEPER_VM").is_some();
    if !here {
        println!("skipped: runs in the virtual machine only (make test-vm)");
    }
    here
}

/// Whether the long forms are wanted.
pub fn long() -> bool {
    std::env::var_os("HMKEEPER_LONG").is_some()
}

/// `short` or, where long forms are wanted, `full`.
pub fn short_or_full<T>(short: T, full: T) -> T {
    if long() { full } else { short }
}

/// The program under test.
pub fn hmkeeper() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hmkeeper"));
    command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
    command
}

/// Runs the program to its end.
pub fn output_of(args: &[&str]) -> Output {
    hmkeeper().args(args).output().expect("running hmkeeper")
}

/// Both streams and the exit code, for messages.
pub fn show(output: &Output) -> String {
    format!(
        "exit {:?}\nstdout: {}\nstderr: {}",
        output.status.code(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// What `hmkeeper check` says of one thing: `present`, `missing`, …
pub fn checked(name: &str) -> String {
    let output = output_of(&["check", "--json"]);
    let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| {
        panic!("{e}: {}", show(&output));
    });
    let mut list = said["findings"].as_array().expect("findings").iter();
    let one = list.find(|f| f["name"] == name);
    let one = one.unwrap_or_else(|| panic!("nothing of {name}"));
    one["state"].as_str().expect("a state").to_owned()
}

/// Waits until `done` says something, or fails with what was seen last.
pub fn wait_for<T>(
    what: &str,
    at_most: Duration,
    mut done: impl FnMut() -> Result<T, String>,
) -> T {
    let until = Instant::now() + at_most;
    loop {
        match done() {
            Ok(value) => return value,
            Err(seen) if Instant::now() >= until => {
                panic!("{what}: not within {at_most:?}; seen last: {seen}")
            }
            Err(_) => std::thread::sleep(LOOK_EVERY),
        }
    }
}

/// A directory, a port and a socket for one daemon after the other.
pub struct Site {
    dir: tempfile::TempDir,
    port: u16,
    interval: Duration,
}

impl Site {
    pub fn new() -> Self {
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|l| l.local_addr())
            .expect("a free port")
            .port();
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("state")).expect("a directory");
        Self {
            dir,
            port,
            interval: interval(),
        }
    }

    /// Its daemon's epochs are so long.
    pub fn every(self, interval: Duration) -> Self {
        Self { interval, ..self }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn config(&self) -> PathBuf {
        self.path("hmkeeper.toml")
    }

    /// A whole configuration: `[daemon]`, `[metrics]` and `[control]` of this
    /// site, then `body`.
    pub fn write_config(&self, body: &str) {
        let text = format!(
            "[daemon]\nstate_dir = \"{}\"\n[metrics]\nlisten = \"127.0.0.1:{}\"\n\
             [control]\nsocket = \"{}\"\n{body}",
            self.path("state").display(),
            self.port,
            self.path(SOCKET).display(),
        );
        fs::write(self.config(), text).expect("writing the configuration");
    }

    /// The same for one target, with `more` lines in `[profiling]`.
    pub fn write_config_of(&self, pid: u32, more: &str) {
        self.write_config(&body_every(self.interval, pid, more));
    }

    /// `hmkeeper run` with what was written.
    pub fn start(&self) -> Daemon {
        let mut command = hmkeeper();
        command.args(["run", "--config"]).arg(self.config());
        self.start_as(command)
    }

    /// The same through another command line.
    pub fn start_as(&self, mut command: Command) -> Daemon {
        let log = self.path("daemon.log");
        let file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .expect("the log");
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("the log"))
            .stderr(file);
        end_with_parent(&mut command, Signal::SIGKILL);
        Daemon {
            process: command.spawn().expect("starting hmkeeper"),
            socket: self.path(SOCKET),
            port: self.port,
            log,
            interval: self.interval,
        }
    }
}

/// A guest computes twenty times slower than its host, and no node of it is slower than
/// another: what moves cost is real, what they gain is not. So where placement is looked
/// at, a move is held to gain as much as it does where memory is slow: the workload only
/// waits for memory, and moves cost a tenth of what they do here.
pub const WHERE_MOVES_PAY: &str =
    "[policy.adaptive]\nmemory_bound = 1.0\npayback = 0.2\nmoving_limit = 0.5\n";

/// Beside a busy process of its host a guest's system calls cost two to three times as much,
/// and of the default 5 % hardly anything is left for samples. Not in long forms, whose figures
/// are those of the default; who holds the daemon to its limit names one.
const LIMIT: &str = "overhead_limit = 0.1";

/// The configuration's body for one target; moves pay, and there is overhead to spare unless
/// `more`, which begins in `[profiling]`, says how much.
pub fn body(pid: u32, more: &str) -> String {
    body_every(interval(), pid, more)
}

fn body_every(interval: Duration, pid: u32, more: &str) -> String {
    let limit = if more.contains("overhead_limit") {
        ""
    } else {
        short_or_full(LIMIT, "")
    };
    let more = format!("{limit}\n{more}\n{WHERE_MOVES_PAY}");
    body_as_shipped(interval, pid, &more)
}

/// The same with the policy's own defaults.
pub fn body_as_shipped(interval: Duration, pid: u32, more: &str) -> String {
    format!(
        "[profiling]\ninterval = \"{}ms\"\n{more}\n[[targets]]\nname = \"w\"\npid = {pid}\n",
        interval.as_millis()
    )
}

/// A running daemon; dropping it kills it.
pub struct Daemon {
    process: Child,
    socket: PathBuf,
    port: u16,
    log: PathBuf,
    interval: Duration,
}

impl Daemon {
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// One of the verbs that go through the control socket.
    pub fn control(&self, verb: &[&str]) -> Output {
        hmkeeper()
            .args(verb)
            .arg("--socket")
            .arg(&self.socket)
            .output()
            .expect("running hmkeeper")
    }

    /// What `status --json` shows, asked for without starting a program: in the
    /// guest that costs more than the daemon itself.
    pub fn try_status(&self) -> Result<Value, String> {
        let reply = client::call(&self.socket, Request::Status).map_err(|e| e.to_string())?;
        serde_json::to_value(reply.status).map_err(|e| e.to_string())
    }

    pub fn status(&self) -> Value {
        self.try_status()
            .unwrap_or_else(|e| panic!("status: {e}\nlog: {}", self.log()))
    }

    /// Waits until it watches `pid`.
    pub fn until_watching(&mut self, pid: u32) {
        let log = self.log.clone();
        let told = || fs::read_to_string(&log).unwrap_or_default();
        wait_for(&format!("watching {pid}"), PATIENCE, || {
            if let Ok(Some(status)) = self.process.try_wait() {
                panic!("the daemon ended ({status}): {}", told());
            }
            let status = self.try_status()?;
            let found = target(&status, pid).is_some();
            found
                .then_some(())
                .ok_or_else(|| format!("{status}\nlog: {}", told()))
        });
    }

    /// Waits until so many more epochs have ended; gives the status then. Looks
    /// seldom: an answer costs the daemon CPU time, which it then has not for
    /// samples, and what it stretches its epochs for.
    pub fn epochs(&self, more: u64) -> Value {
        let mut status = self.status();
        let from = epoch(&status);
        let count = u32::try_from(more).unwrap_or(100);
        let patience = PATIENCE + self.interval * 3 * count;
        let until = Instant::now() + patience;
        let length = |status: &Value| {
            let seconds = status["epoch_seconds"].as_f64().unwrap_or(0.0);
            Duration::from_secs_f64(seconds).max(self.interval)
        };
        std::thread::sleep((length(&status) * count * 7 / 8).min(patience));
        loop {
            match self.try_status() {
                Ok(now) if epoch(&now) >= from + more => return now,
                Ok(now) => status = now,
                Err(_) => {}
            }
            assert!(
                Instant::now() < until,
                "{more} epochs after epoch {from}: not within {patience:?}; seen last: {status:#}\nlog: {}",
                self.log()
            );
            std::thread::sleep((length(&status) / 16).max(LOOK_EVERY));
        }
    }

    /// `/metrics`.
    pub fn metrics(&self) -> Metrics {
        Metrics(self.get("/metrics").unwrap_or_else(|e| {
            panic!("GET /metrics: {e}\nlog: {}", self.log());
        }))
    }

    /// The body of a page, when it is there.
    pub fn get(&self, path: &str) -> Result<String, String> {
        let text = |e: std::io::Error| e.to_string();
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).map_err(text)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(text)?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        .map_err(text)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(text)?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("no header")?;
        if head.starts_with("HTTP/1.1 200") {
            Ok(body.to_owned())
        } else {
            Err(head.to_owned())
        }
    }

    pub fn signal(&self, with: Signal) {
        signal(self.pid(), with).expect("signalling the daemon");
    }

    /// How it ended, when it does.
    pub fn wait(&mut self) -> ExitStatus {
        let log = self.log.clone();
        wait_for("the daemon's end", PATIENCE, || {
            let ended = self.process.try_wait().map_err(|e| e.to_string())?;
            ended.ok_or_else(|| fs::read_to_string(&log).unwrap_or_default())
        })
    }

    /// Asks it to end and expects that it does so well.
    pub fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        let status = self.wait();
        assert!(status.success(), "SIGTERM: {status}\nlog: {}", self.log());
    }

    /// `kill -9`.
    pub fn kill(mut self) {
        self.signal(Signal::SIGKILL);
        self.wait();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("-- the daemon's log:\n{}", self.log());
        }
        // Both fail when it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// CPU time of a process so far, by the kernel, in seconds.
pub fn seconds(pid: u32) -> f64 {
    let time = cpu_time(&Root::host(), pid);
    time.unwrap_or_else(|e| panic!("CPU time of {pid}: {e}"))
        .as_secs_f64()
}

/// Epochs so far.
pub fn epoch(status: &Value) -> u64 {
    status["epoch"].as_u64().unwrap_or(0)
}

/// A target in the status.
pub fn target(status: &Value, pid: u32) -> Option<&Value> {
    let targets = status["targets"].as_array()?;
    targets
        .iter()
        .find(|t| t["pid"].as_u64() == Some(pid.into()))
}

/// A number of a target in the status.
pub fn number(status: &Value, pid: u32, key: &str) -> u64 {
    let found = target(status, pid).and_then(|t| t[key].as_u64());
    found.unwrap_or_else(|| panic!("no {key} of {pid} in {status}"))
}

/// Prometheus' text.
pub struct Metrics(pub String);

impl Metrics {
    /// The sum of all series of this name that have these labels.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let wanted: Vec<String> = labels.iter().map(|(k, v)| format!("{k}=\"{v}\"")).collect();
        let values: Vec<f64> = self
            .0
            .lines()
            .filter_map(|line| {
                let rest = line.strip_prefix(name)?;
                let (labels, value) = match rest.strip_prefix('{') {
                    Some(rest) => rest.split_once("} ")?,
                    None => ("", rest.strip_prefix(' ')?),
                };
                let all = wanted.iter().all(|w| labels.split(',').any(|l| l == w));
                all.then(|| value.trim().parse().ok())?
            })
            .collect();
        (!values.is_empty()).then(|| values.iter().sum())
    }

    /// The same, where it must be there.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.sum(name, labels)
            .unwrap_or_else(|| panic!("no {name}{labels:?} in\n{}", self.0))
    }

    /// Bytes that were moved, in either direction.
    pub fn moved_bytes(&self) -> f64 {
        let of = |name| self.sum(name, &[]).unwrap_or(0.0);
        of("hmkeeper_promoted_bytes_total") + of("hmkeeper_demoted_bytes_total")
    }
}

/// Where the pages of some ranges of a process are.
pub fn locate(pid: u32, ranges: &[PageRange]) -> ByNode {
    let pages: Vec<VirtAddr> = ranges.iter().flat_map(|r| r.iter_pages()).collect();
    let mut all = ByNode::default();
    for slice in pages.chunks(4096) {
        let nodes = move_pages::locate(Some(pid_of(pid)), slice)
            .unwrap_or_else(|e| panic!("asking for the pages of {pid}: {e}"));
        for node in nodes.into_iter().flatten() {
            all.add(node, 1);
        }
    }
    all
}

pub fn pid_of(pid: u32) -> Pid {
    Pid(i32::try_from(pid).expect("a pid"))
}

/// Share of these pages on these nodes.
pub fn share(pages: &ByNode, nodes: &[u32]) -> f64 {
    let nodes: Vec<NodeId> = nodes.iter().copied().map(NodeId).collect();
    pages.share(&nodes).unwrap_or(0.0)
}

/// Waits until nearly all of what is hot is on these nodes.
pub fn until_hot_on(nodes: &[u32], workload: &Workload, daemon: &Daemon) {
    wait_for(&format!("the hot pages on {nodes:?}"), PATIENCE, || {
        let pages = workload.located(0);
        if share(&pages, nodes) >= 0.9 {
            Ok(())
        } else {
            Err(format!("{pages:?}\n{:#}", daemon.status()))
        }
    });
}

/// One line for a person.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A number of the kernel.
pub fn read_number(path: impl AsRef<Path>) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Contexts that DAMON has now.
pub fn kdamond_count() -> u64 {
    read_number("/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds").expect("a kernel with DAMON")
}

/// A command line by the shell, which must succeed.
pub fn sh(command: &str) -> String {
    let output = Command::new("sh")
        .args(["-c", command])
        .output()
        .expect("running sh");
    assert!(output.status.success(), "{command}: {}", show(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Pieces of a message, one a line.
pub fn lines(items: impl IntoIterator<Item = String>) -> String {
    items.into_iter().fold(String::new(), |mut all, item| {
        let _ = writeln!(all, "  {item}");
        all
    })
}
