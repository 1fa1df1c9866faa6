//! A Python program with its garbage collector: the sessions of a service, as objects that lead to
//! each other (`sessions.py` beside this). Requests look at hot ones, which change slowly, some
//! leave cyclic garbage, and twice the collector walks through all that lives: to it
//! nothing is colder than anything else.
//!
//! Python is the system's own, and what is measured and placed is its process.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use hmkeeper::sys::process::end_with_parent;
use nix::sys::signal::Signal;

use super::{Latencies, Size, Workload};

/// Of 3.4 kB: 650 MiB.
const SESSIONS: usize = 190_000;
const REQUESTS: usize = 150_000;
const SCRIPT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/benches/tiers/workload/sessions.py"
);
/// By where Debian and others have it.
const PROGRAMS: [&str; 2] = ["/usr/bin/python3", "/usr/local/bin/python3"];

/// Where Python is, or why there is none.
pub(super) fn program() -> Result<&'static str, String> {
    let program = PROGRAMS.into_iter().find(|p| Path::new(p).exists());
    program.ok_or_else(|| "there is no python3 here: apt-get install python3".to_owned())
}

/// The program.
pub(super) struct Gc {
    process: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    requests: usize,
    faults: u64,
}

impl Gc {
    pub(super) fn new(size: Size) -> Result<Self, String> {
        let requests = size.work(REQUESTS);
        let mut command = Command::new(program()?);
        command
            // Only its own modules, and none of the site: starting takes long in the guest.
            .args(["-I", "-S", "-B", SCRIPT])
            .args([size.all(SESSIONS).to_string(), requests.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        end_with_parent(&mut command, Signal::SIGKILL);
        let mut process = command.spawn().map_err(|e| format!("python3: {e}"))?;
        let (Some(stdin), Some(stdout)) = (process.stdin.take(), process.stdout.take()) else {
            return Err("python3: no pipes".into());
        };
        let mut gc = Self {
            process,
            stdin,
            stdout: BufReader::new(stdout),
            requests,
            faults: 0,
        };
        match gc.line() {
            Ok(line) if line == "ready" => Ok(gc),
            Ok(line) => Err(format!(
                "sessions.py said {line:?} and not that it is ready"
            )),
            Err(e) => Err(format!("sessions.py: {e}")),
        }
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// The times of all requests.
    fn serve(&mut self) -> io::Result<Vec<Duration>> {
        writeln!(self.stdin, "go")?;
        let bytes = self.line()?.parse().map_err(io::Error::other)?;
        let mut times = vec![0; bytes];
        self.stdout.read_exact(&mut times)?;
        let words = times.chunks_exact(8).map(|word| {
            let nanos = word.try_into().map(u64::from_ne_bytes);
            Duration::from_nanos(nanos.unwrap_or_default())
        });
        Ok(words.collect())
    }
}

impl Workload for Gc {
    fn pid(&self) -> u32 {
        self.process.id()
    }

    fn work(&mut self, latencies: &mut Latencies) -> u64 {
        let times = self.serve().unwrap_or_else(|e| {
            eprintln!("sessions.py: {e}");
            Vec::new()
        });
        self.faults += u64::from(times.len() != self.requests);
        for &took in &times {
            latencies.add(took);
        }
        times.len() as u64
    }

    fn check(&mut self) -> Result<(), String> {
        if self.faults > 0 {
            return Err("not all requests were served".into());
        }
        writeln!(self.stdin, "go").map_err(|e| e.to_string())?;
        match self.line().map_err(|e| e.to_string())?.as_str() {
            "right" => Ok(()),
            wrong => Err(wrong.to_owned()),
        }
    }
}

impl Drop for Gc {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
