//! The demo's child processes: each ends with the demo, however that ends, and
//! what it printed is there when it failed.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::Signal;

use super::Event;
use super::workload::lines::Line;
use crate::sys::process::{end_with_parent, signal};
use crate::units::text::printable;

/// Lines of a child's log that are shown when it failed.
const LOG_LINES: usize = 20;
/// How often an ending child is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A directory for sockets, logs and the configuration, removed on drop.
#[derive(Debug)]
pub(super) struct WorkDir(PathBuf);

impl WorkDir {
    pub(super) fn new() -> anyhow::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        let path = std::env::temp_dir().join(format!("hmkeeper-demo-{}", std::process::id()));
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("creating {}", path.display()))?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            let path = self.0.display().to_string();
            eprintln!("hmkeeper demo: removing {}: {error}", printable(&path));
        }
    }
}

/// Which child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Ballast,
    Workload,
    Daemon,
}

impl Role {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Ballast => "ballast",
            Self::Workload => "workload",
            Self::Daemon => "daemon",
        }
    }

    /// What ends it, and for how long it may clean up after that.
    fn end(self) -> (Signal, Duration) {
        match self {
            Self::Ballast | Self::Workload => (Signal::SIGKILL, Duration::from_secs(10)),
            // It leaves the host as it found it.
            Self::Daemon => (Signal::SIGTERM, Duration::from_secs(15)),
        }
    }
}

/// A running child; dropping it ends it.
#[derive(Debug)]
pub(super) struct Child {
    role: Role,
    process: std::process::Child,
    stdin: Option<ChildStdin>,
    log: PathBuf,
}

impl Child {
    /// Starts this program with `args`. Lines that a workload or ballast
    /// prints arrive as events, as does the end of its output.
    pub(super) fn start(
        role: Role,
        args: &[String],
        dir: &Path,
        events: &Sender<Event>,
    ) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("finding this program's file")?;
        let log = dir.join(format!("{}.log", role.as_str()));
        let stderr = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
        let mut command = Command::new(program);
        command.args(args).stderr(stderr.try_clone()?);
        if role == Role::Daemon {
            command.stdin(Stdio::null()).stdout(stderr);
            // Its log goes to its file, whoever started the demo.
            command
                .env_remove("NOTIFY_SOCKET")
                .env_remove("JOURNAL_STREAM");
        } else {
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
        }
        end_with_parent(&mut command, role.end().0);
        let mut process = command
            .spawn()
            .with_context(|| format!("starting the {}", role.as_str()))?;
        if let Some(out) = process.stdout.take() {
            let events = events.clone();
            std::thread::Builder::new()
                .name(role.as_str().into())
                .spawn(move || {
                    for line in BufReader::new(out).lines() {
                        let Ok(line) = line else { break };
                        let event = match serde_json::from_str::<Line>(&line) {
                            Ok(line) => Event::Line(role, line),
                            Err(_) => Event::Garbled(role, line),
                        };
                        if events.send(event).is_err() {
                            return;
                        }
                    }
                    // Nobody listens any more when the demo is over.
                    let _ = events.send(Event::Closed(role));
                })
                .context("starting a thread")?;
        }
        let stdin = process.stdin.take();
        Ok(Self {
            role,
            process,
            stdin,
            log,
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Lets a waiting workload begin.
    pub(super) fn go(&mut self) -> anyhow::Result<()> {
        let stdin = self
            .stdin
            .as_mut()
            .context("the workload's stdin is gone")?;
        stdin
            .write_all(b"\n")
            .context("telling the workload to begin")
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.process.try_wait()
    }

    /// Waits for its end, which should be near; then how it ended.
    pub(super) fn wait(&mut self, at_most: Duration) -> io::Result<Option<ExitStatus>> {
        let until = Instant::now() + at_most;
        loop {
            let status = self.ended()?;
            if status.is_some() || Instant::now() >= until {
                return Ok(status);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// That it ended too early, with the end of its log.
    pub(super) fn died(&mut self) -> anyhow::Error {
        let how = match self.wait(Duration::from_secs(2)) {
            Ok(Some(status)) => status.to_string(),
            Ok(None) => "it closed its output".into(),
            Err(error) => error.to_string(),
        };
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n  ");
        anyhow::anyhow!(
            "the {} ended too early ({how}):\n  {tail}",
            self.role.as_str()
        )
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let (with, grace) = self.role.end();
        if matches!(self.ended(), Ok(Some(_))) {
            return;
        }
        // It may have ended meanwhile; then there is nobody to signal.
        let _ = signal(self.pid(), with);
        if !matches!(self.wait(grace), Ok(Some(_))) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}
