//! This project's daemon with one of its policies, as it is shipped but for its interval.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hmkeeper::control::{Request, client};
use hmkeeper::sys::process::end_with_parent;
use hmkeeper::telemetry::status::{Status, TargetStatus};
use hmkeeper::units::Pid;
use nix::sys::signal::Signal;

use super::{System, Told};
use crate::guest::wait_for;
use crate::results::Daemon;

/// Of an epoch, in seconds, at a pace of 1: the default.
const INTERVAL: f64 = 10.0;
/// Starting a program takes long in the guest.
const PATIENCE: Duration = Duration::from_secs(90);
/// The paper's own settings, for its policy.
const PRESET: &str = include_str!("../../../config/presets/hm-keeper.toml");

/// The daemon.
pub(super) struct Ours {
    policy: &'static str,
    pace: f64,
    dir: PathBuf,
    process: Option<Child>,
}

impl Ours {
    pub(super) fn new(policy: &'static str, pace: f64) -> Self {
        Self {
            policy,
            pace,
            dir: PathBuf::from("/run/hmkeeper-tiers"),
            process: None,
        }
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("control.sock")
    }

    fn asked(&self) -> Result<Box<Status>, String> {
        let reply = client::call(&self.socket(), Request::Status).map_err(|e| e.to_string())?;
        reply
            .status
            .ok_or_else(|| "the daemon says nothing of itself".to_owned())
    }

    fn config(&self, pid: u32) -> String {
        let interval = format!("interval = \"{:.0}ms\"", INTERVAL * self.pace * 1000.0);
        let settings = if self.policy == "hm-keeper" {
            PRESET.replace("interval = \"10s\"", &interval)
        } else {
            format!(
                "[profiling]\n{interval}\n[policy]\nname = \"{}\"\n",
                self.policy
            )
        };
        format!(
            "[daemon]\nstate_dir = \"{}\"\n[metrics]\nlisten = \"off\"\n\
             [control]\nsocket = \"{}\"\n{settings}\n[[targets]]\nname = \"workload\"\npid = {pid}\n",
            self.dir.join("state").display(),
            self.socket().display(),
        )
    }
}

fn put(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

impl System for Ours {
    fn start(&mut self, pid: u32) -> Result<(), String> {
        std::fs::create_dir_all(self.dir.join("state")).map_err(|e| e.to_string())?;
        let config = self.dir.join("hmkeeper.toml");
        put(&config, &self.config(pid))?;
        let log = std::fs::File::create(self.dir.join("log")).map_err(|e| e.to_string())?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_hmkeeper"));
        command
            .args(["run", "--config"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        end_with_parent(&mut command, Signal::SIGKILL);
        let process = command.spawn().map_err(|e| format!("hmkeeper: {e}"))?;
        let process = self.process.insert(process);
        let mut ended = None;
        let socket = self.dir.join("control.sock");
        let waited = wait_for("the daemon's start", PATIENCE, || {
            ended = process.try_wait().map_err(|e| e.to_string())?;
            let reply = client::call(&socket, Request::Status).ok();
            let watches = reply
                .and_then(|r| r.status)
                .is_some_and(|s| !s.targets.is_empty());
            Ok(watches || ended.is_some())
        });
        match (waited, ended) {
            (Ok(()), None) => Ok(()),
            (waited, ended) => {
                let log = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
                Err(format!("hmkeeper run: {waited:?} {ended:?}: {log}"))
            }
        }
    }

    fn stop(&mut self) -> Result<(), String> {
        if let Some(mut process) = self.process.take() {
            process.kill().map_err(|e| e.to_string())?;
            process.wait().map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    fn daemon(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    fn status(&self, pid: u32) -> Result<Option<(u64, u64, Daemon)>, String> {
        let status = self.asked()?;
        let target = of(&status, pid)?;
        let paused = status.paused.iter().chain(&target.paused);
        let daemon = Daemon {
            epochs: status.epoch,
            epoch_seconds: status.epoch_seconds,
            regions: target.regions,
            samples: target.samples,
            hot_bytes: target.hot_bytes,
            paused: paused.map(|reason| format!("{reason:?}")).collect(),
        };
        Ok(Some((target.promoted_bytes, target.demoted_bytes, daemon)))
    }

    fn told(&self, pid: u32) -> Result<Option<Told>, String> {
        let status = self.asked()?;
        // Here each tier has one node.
        let node = |name: &str| status.tiers.iter().find(|t| t.name == name)?.nodes.first();
        let shares = of(&status, pid)?.tiers.iter().filter_map(|s| {
            let bounds = [s.access_ratio, s.access_ratio_low, s.access_ratio_high];
            Some((*node(&s.tier)?, bounds))
        });
        Ok(Some(Told {
            epochs: status.epoch,
            epoch: Duration::from_secs_f64(status.epoch_seconds),
            of: Duration::from_secs_f64(status.interval_seconds.max(status.epoch_seconds)),
            nodes: shares.collect(),
        }))
    }
}

/// What it says of the workload.
fn of(status: &Status, pid: u32) -> Result<&TargetStatus, String> {
    let own = Pid(i32::try_from(pid).map_err(|e| e.to_string())?);
    let target = status.targets.iter().find(|t| t.pid == own);
    target.ok_or_else(|| "the daemon does not watch the workload".to_owned())
}
