//! Redis, the system's own server, asked over a Unix socket by one client: 19 of 20 requests get
//! sixteen values at once, the others set one; keys are chosen by Zipf's law (0.99), and
//! hot keys lie anywhere. One request at a time: a stall of the server is one long request.
//!
//! Client and server share one CPU: hardly ever do both have anything to do. On two of the guest's, with the daemon or a thread
//! of the kernel on a third, requests waited for the host's CPUs, of which there are two (benches/results/redis-waits.txt).
//!
//! The server's own timer runs once a second, as seldom as it can ([`HZ`]).
//!
//! The server is what is measured and placed. It fills itself (`DEBUG POPULATE`, as its own
//! tests do), because half a million requests would take longer than what is measured. Its client is
//! ours, of the three commands that are needed: it compares every value with what was last set.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hmkeeper::sys::process::end_with_parent;
use nix::sys::signal::Signal;

use super::random::{Random, Zipf};
use super::{Latencies, Size, Workload};

/// With what the server keeps beside each: 620 MiB.
const RECORDS: usize = 560_000;
const VALUE: usize = 1000;
const REQUESTS: usize = 24_000;
/// Values asked for at once.
const BATCH: usize = 16;
/// One request of so many sets a value.
const SETS: usize = 20;
const THETA: f64 = 0.99;
/// How often a second the server's timer looks after its clients, its tables and its statistics. By default it is ten times: in this
/// guest that takes 4 ms each time, and 13 in 1,000 requests or more wait for it, so that the 99th percentile would be how long it takes.
/// The guest computes 20 times slower than its host, so what goes by the clock comes 20 times as often beside a program's work.
const HZ: &str = "1";
/// Of a guest that starts a program from the host's files.
const PATIENCE: Duration = Duration::from_secs(60);
/// The server, by where Debian and others have it. Debian's `redis-tools` has the same program
/// as a checker of files, and goes by the name that it is called; `redis-server` would
/// start a service too.
const PROGRAMS: [&str; 3] = [
    "/usr/bin/redis-server",
    "/usr/local/bin/redis-server",
    "/usr/bin/redis-check-rdb",
];

/// Where the server is, or why there is none.
pub(super) fn program() -> Result<&'static str, String> {
    let program = PROGRAMS.into_iter().find(|p| Path::new(p).exists());
    program.ok_or_else(|| "there is no redis-server here: apt-get install redis-tools".to_owned())
}

/// A server, its client, and what it should hold.
pub(super) struct Redis {
    server: Server,
    client: Client,
    /// Keys from the most wanted to the least.
    keys: Vec<usize>,
    /// How often each was set.
    versions: Vec<u32>,
    requests: usize,
    faults: u64,
}

impl Redis {
    pub(super) fn new(size: Size) -> Result<Self, String> {
        let count = size.memory(RECORDS);
        let mut keys: Vec<usize> = (0..count).collect();
        Random::new(11).shuffle(&mut keys);
        // The server inherits it.
        hmkeeper::sys::process::pin_thread(&super::cpus_of_first_node()[..1])
            .map_err(|e| format!("redis: pinning: {e}"))?;
        let server = Server::start().map_err(|e| format!("redis: {e}"))?;
        let mut client = server.connect().map_err(|e| format!("redis: {e}"))?;
        client
            .fill(count)
            .map_err(|e| format!("redis: DEBUG POPULATE: {e}"))?;
        Ok(Self {
            server,
            client,
            keys,
            versions: vec![0; count],
            requests: size.work(REQUESTS),
            faults: 0,
        })
    }

    fn ask(&mut self, latencies: &mut Latencies) -> io::Result<()> {
        let mut random = Random::new(12);
        let zipf = Zipf::new(self.keys.len(), THETA);
        let mut wanted = [0; BATCH];
        for _ in 0..self.requests {
            let sets = random.below(SETS) == 0;
            wanted.fill_with(|| self.keys[zipf.draw(&mut random)]);
            let begin = Instant::now();
            if sets {
                let key = wanted[0];
                self.versions[key] += 1;
                self.client.set(key, self.versions[key])?;
            } else {
                self.faults += self.client.get(&wanted, &self.versions)?;
            }
            latencies.add(begin.elapsed());
        }
        Ok(())
    }

    /// How many of the values that were set are not what they should be.
    fn wrong(&mut self) -> io::Result<u64> {
        let set = (0..self.versions.len()).filter(|&key| self.versions[key] > 0);
        let set: Vec<usize> = set.collect();
        set.chunks(BATCH)
            .map(|keys| self.client.get(keys, &self.versions))
            .sum()
    }
}

impl Workload for Redis {
    fn pid(&self) -> u32 {
        self.server.process.id()
    }

    fn work(&mut self, latencies: &mut Latencies) -> u64 {
        if let Err(e) = self.ask(latencies) {
            eprintln!("redis: {e}");
            self.faults += 1;
        }
        self.requests as u64
    }

    fn check(&mut self) -> Result<(), String> {
        let wrong = self.wrong().map_err(|e| e.to_string())? + self.faults;
        if wrong > 0 {
            return Err(format!("{wrong} values were not what was set"));
        }
        Ok(())
    }
}

/// The process, which ends with this.
struct Server {
    process: Child,
    socket: PathBuf,
}

impl Server {
    fn start() -> io::Result<Self> {
        let program = program().map_err(io::Error::other)?;
        let socket = std::env::temp_dir().join(format!("tiers-{}.sock", std::process::id()));
        let mut command = Command::new(program);
        command
            .arg0("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no"])
            .args(["--hz", HZ])
            .args(["--enable-debug-command", "local", "--loglevel", "warning"])
            .arg("--unixsocket")
            .arg(&socket)
            .stdin(Stdio::null())
            // Ours is for the protocol.
            .stdout(io::stderr().as_fd().try_clone_to_owned()?);
        end_with_parent(&mut command, Signal::SIGKILL);
        let process = command.spawn()?;
        Ok(Self { process, socket })
    }

    fn connect(&self) -> io::Result<Client> {
        let until = Instant::now() + PATIENCE;
        loop {
            match UnixStream::connect(&self.socket) {
                Ok(stream) => return Ok(Client::new(stream)),
                Err(e) if Instant::now() > until => {
                    let socket = self.socket.display();
                    return Err(io::Error::new(e.kind(), format!("{socket}: {e}")));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// What is spoken with a server (RESP), as much of it as is needed here.
struct Client {
    stream: BufReader<UnixStream>,
    request: Vec<u8>,
    /// A value as it should be, and as it came.
    expected: Vec<u8>,
    came: Vec<u8>,
}

impl Client {
    fn new(stream: UnixStream) -> Self {
        Self {
            stream: BufReader::with_capacity(64 << 10, stream),
            request: Vec::new(),
            expected: Vec::new(),
            came: vec![0; VALUE],
        }
    }

    /// `k:0` and so on, each as [`value`] has it.
    fn fill(&mut self, count: usize) -> io::Result<()> {
        self.begin(5);
        for word in [
            "DEBUG",
            "POPULATE",
            &count.to_string(),
            "k",
            &VALUE.to_string(),
        ] {
            self.word(word);
        }
        self.send()?;
        self.expect("+OK")
    }

    fn set(&mut self, key: usize, version: u32) -> io::Result<()> {
        self.begin(3);
        self.word("SET");
        self.word(&format!("k:{key}"));
        value(key, version, &mut self.expected);
        let _ = write!(self.request, "${VALUE}\r\n");
        self.request.extend_from_slice(&self.expected);
        self.request.extend_from_slice(b"\r\n");
        self.send()?;
        self.expect("+OK")
    }

    /// How many of the values are not what they should be.
    fn get(&mut self, keys: &[usize], versions: &[u32]) -> io::Result<u64> {
        self.begin(keys.len() + 1);
        self.word("MGET");
        for key in keys {
            self.word(&format!("k:{key}"));
        }
        self.send()?;
        self.expect(&format!("*{}", keys.len()))?;
        let mut wrong = 0;
        for &key in keys {
            self.expect(&format!("${VALUE}"))?;
            self.stream.read_exact(&mut self.came)?;
            self.expect("")?;
            value(key, versions[key], &mut self.expected);
            wrong += u64::from(self.came != self.expected);
        }
        Ok(wrong)
    }

    fn begin(&mut self, words: usize) {
        self.request.clear();
        let _ = write!(self.request, "*{words}\r\n");
    }

    fn word(&mut self, word: &str) {
        let _ = write!(self.request, "${}\r\n{word}\r\n", word.len());
    }

    fn send(&mut self) -> io::Result<()> {
        self.stream.get_mut().write_all(&self.request)
    }

    /// The next line, which must be this one.
    fn expect(&mut self, wanted: &str) -> io::Result<()> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let line = line.trim_end();
        (line == wanted)
            .then_some(())
            .ok_or_else(|| io::Error::other(format!("the server said {line:?}, not {wanted:?}")))
    }
}

/// What a key has after so many times that it was set: as `DEBUG POPULATE` fills it, and
/// then the number behind.
fn value(key: usize, version: u32, into: &mut Vec<u8>) {
    into.clear();
    let _ = write!(into, "value:{key}");
    if version > 0 {
        let _ = write!(into, ":{version}");
    }
    into.resize(VALUE, 0);
}
