//! The configuration: what `hmkeeper.toml` says, checked.
//!
//! A file goes through three steps. [`raw`] reads names and places, [`check`]
//! turns values into typed ones and finds contradictions, and both note
//! faults instead of stopping, so that [`Config::parse`] reports all of them
//! at once, each with line, column and remedy. What comes out is whole: the
//! daemon never sees half of a file.
//!
//! Defaults live with the settings themselves (`tiering::settings`); the
//! commented file `config/hmkeeper.toml` repeats them and a test compares.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use crate::epoch::LoopSettings;
use crate::files;
use crate::ports::{SamplerKind, TargetSpec, Threads};
use crate::tiering::observation::TargetKind;
use crate::tiering::settings::{
    EngineSettings, PageOutSettings, PolicySettings, ProfilingSettings,
};
use crate::tiering::tier::Tier;
use crate::units::{Bandwidth, Nanos};

mod check;
mod checker;
mod fault;
mod policy;
pub mod raw;
pub mod value;

pub use fault::{Fault, Faults};

/// Where the configuration is looked for unless told otherwise.
pub const DEFAULT_FILE: &str = "/etc/hmkeeper/hmkeeper.toml";
/// The control socket unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/hmkeeper/control.sock";
/// Where changes of kernel settings are noted unless told otherwise. Below
/// `/run`, which a reboot empties along with the kernel's settings.
pub const DEFAULT_STATE_DIR: &str = "/run/hmkeeper";

/// The largest configuration file: some 10,000 targets.
const SIZE_MAX: u64 = 1 << 20;

/// `[daemon]`
#[derive(Clone, Debug, PartialEq)]
pub struct DaemonConfig {
    /// Least severe events that are logged.
    pub log: LogLevel,
    /// Of the engine's random choices.
    pub seed: u64,
    /// Where changes of kernel settings are noted, to undo them after a crash.
    pub state_dir: PathBuf,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// What failed.
    Error,
    /// And what is not as it should be.
    Warn,
    /// And what happened to targets, and what was moved.
    Info,
    /// And each epoch.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// Every level, quietest first.
    pub const ALL: [Self; 5] = [
        Self::Error,
        Self::Warn,
        Self::Info,
        Self::Debug,
        Self::Trace,
    ];

    /// The name in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// `[migration]`
#[derive(Clone, Debug, PartialEq)]
pub struct MigrationConfig {
    /// Whether plans are carried out.
    pub enabled: bool,
    /// Bytes per second at most; `None`: as the policy's budget says.
    pub bytes_per_second: Option<Bandwidth>,
    /// Threads that may move at once; `None`: one or two, as measured.
    pub threads: Option<usize>,
    /// A single `move_pages` call should stay below this.
    pub call_time: Nanos,
    /// Share of each node that stays free beyond the kernel's watermarks.
    pub headroom: f64,
    /// Whether idle page cache makes room.
    pub page_cache: bool,
    /// Share of an interval that moving may take.
    pub share: f64,
}

/// All that can be configured.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `[daemon]`
    pub daemon: DaemonConfig,
    /// `[profiling]`, as the engine wants it.
    pub profiling: ProfilingSettings,
    /// `profiling.sampler`; `None`: the best that this kernel has.
    pub sampler: Option<SamplerKind>,
    /// `[policy]`
    pub policy: PolicySettings,
    /// `[migration]`
    pub migration: MigrationConfig,
    /// `[pageout]`; `None`: not enabled.
    pub page_out: Option<PageOutSettings>,
    /// `[[tiers]]`; `None`: discovered.
    pub tiers: Option<Vec<Tier>>,
    /// `[[targets]]`
    pub targets: Vec<TargetSpec>,
    /// `metrics.listen`; `None`: off.
    pub listen: Option<SocketAddr>,
    /// `control.socket`; `None`: off.
    pub socket: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            daemon: DaemonConfig {
                log: LogLevel::Info,
                seed: 1,
                state_dir: DEFAULT_STATE_DIR.into(),
            },
            profiling: ProfilingSettings::default(),
            sampler: None,
            policy: PolicySettings::default(),
            migration: MigrationConfig {
                enabled: true,
                bytes_per_second: None,
                threads: None,
                // A target that touches a page under way waits for the call at
                // worst; 20 ms is what interactive services bear.
                call_time: Nanos::from_millis(20),
                headroom: EngineSettings::default().headroom,
                page_cache: EngineSettings::default().page_cache,
                share: 0.5,
            },
            page_out: None,
            tiers: None,
            targets: Vec::new(),
            listen: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 9477))),
            socket: Some(DEFAULT_SOCKET.into()),
        }
    }
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {source}; name another with --config", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It says something that cannot be.
    #[error(transparent)]
    Faults(#[from] Faults),
}

impl Config {
    /// What `source` says, or everything that is wrong with it. `file` is
    /// named in faults.
    ///
    /// # Errors
    /// With all faults, in the order of their places.
    pub fn parse(source: &str, file: Option<&Path>) -> Result<Self, Faults> {
        let (raw, mut faults) = raw::read(source);
        match Self::try_from(raw) {
            Ok(config) if faults.is_empty() => return Ok(config),
            Ok(_) => {}
            Err(more) => faults.extend(more.faults),
        }
        Err(Faults::unlocated(faults).locate(source, file))
    }

    /// Reads `named`, or else the default file where there is one, or else
    /// takes the defaults. Also tells which file it was.
    ///
    /// # Errors
    /// When a file that was named is missing, or any cannot be read or has
    /// faults.
    pub fn load(named: Option<&Path>) -> Result<(Self, Option<PathBuf>), ConfigError> {
        let file = named.unwrap_or(Path::new(DEFAULT_FILE));
        match files::read_text(file, SIZE_MAX) {
            Ok(source) => Ok((Self::parse(&source, Some(file))?, Some(file.to_owned()))),
            Err(e) if named.is_none() && e.kind() == io::ErrorKind::NotFound => {
                Ok((Self::default(), None))
            }
            Err(source) => Err(ConfigError::Unreadable {
                file: file.to_owned(),
                source,
            }),
        }
    }

    /// What the loop is told, on a machine with `cpus` CPUs.
    pub fn loop_settings(&self, cpus: usize, dry_run: bool) -> LoopSettings {
        let migration = &self.migration;
        let mut engine = EngineSettings {
            profiling: self.profiling,
            policy: self.policy.clone(),
            headroom: migration.headroom,
            page_cache: migration.page_cache,
            page_out: self.page_out,
            ..EngineSettings::default()
        };
        if let Some(rate) = migration.bytes_per_second {
            // No more is planned than can be moved before the next plan.
            let time = self.profiling.interval.as_secs_f64() * migration.share;
            engine.move_bytes = rate.over(Nanos::from_secs_f64(time));
        }
        LoopSettings {
            engine,
            moving: migration.enabled && !dry_run,
            rate: migration.bytes_per_second,
            threads: (migration.threads).map_or_else(|| auto_threads(cpus), Threads::Exactly),
            call_time: migration.call_time,
            migration_share: migration.share,
        }
    }

    /// What is accepted but does not do all that it says.
    pub fn warnings(&self) -> Vec<String> {
        self.targets
            .iter()
            .filter(|t| t.kind == TargetKind::DnnTraining)
            .map(|t| {
                format!(
                    "target {}: kind \"dnn-training\" is treated as \"generic\" by this version",
                    t.name.as_deref().unwrap_or("without a name"),
                )
            })
            .collect()
    }

    /// The keys in which `new` differs and that only a restart applies.
    pub fn restart_needed(&self, new: &Self) -> Vec<&'static str> {
        [
            ("daemon.seed", self.daemon.seed != new.daemon.seed),
            (
                "daemon.state_dir",
                self.daemon.state_dir != new.daemon.state_dir,
            ),
            ("profiling.sampler", self.sampler != new.sampler),
            (
                "profiling.writes",
                self.profiling.writes != new.profiling.writes,
            ),
            ("metrics.listen", self.listen != new.listen),
            ("control.socket", self.socket != new.socket),
        ]
        .into_iter()
        .filter_map(|(key, differs)| differs.then_some(key))
        .collect()
    }

    /// What is in force once `new` was loaded: what waits for a restart stays as it is, to be
    /// compared with what is loaded next.
    #[must_use]
    pub fn reloaded(&self, new: Self) -> Self {
        let mut config = Self {
            daemon: DaemonConfig {
                log: new.daemon.log,
                ..self.daemon.clone()
            },
            sampler: self.sampler,
            listen: self.listen,
            socket: self.socket.clone(),
            ..new
        };
        config.profiling.writes = self.profiling.writes;
        config
    }
}

/// Where there is but one CPU a second mover has nothing to run on.
fn auto_threads(cpus: usize) -> Threads {
    if cpus < 2 {
        Threads::Exactly(1)
    } else {
        Threads::Measured
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Bytes;

    #[test]
    fn nothing_written_is_the_default() {
        assert_eq!(Config::parse("", None), Ok(Config::default()));
        assert_eq!(Config::parse("[policy]\n", None), Ok(Config::default()));
    }

    #[test]
    fn a_rate_bounds_what_is_planned() {
        let text = "[profiling]\ninterval = \"4s\"\n\
                    [migration]\nbytes_per_second = \"100MiB\"\nshare = 0.25\n";
        let settings = Config::parse(text, None).unwrap().loop_settings(16, false);
        // 100 MiB/s for a quarter of 4 s.
        assert_eq!(settings.engine.move_bytes, Bytes::from_mib(100));
        assert_eq!(settings.rate, Some(Bandwidth(100 << 20)));
        assert_eq!(settings.threads, Threads::Measured);
        assert!(settings.moving);
    }

    #[test]
    fn a_dry_run_and_disabled_migration_do_not_move() {
        assert!(!Config::default().loop_settings(2, true).moving);
        let off = Config::parse("[migration]\nenabled = false\n", None).unwrap();
        assert!(!off.loop_settings(2, false).moving);
        assert_eq!(off.loop_settings(1, false).threads, Threads::Exactly(1));
    }

    #[test]
    fn what_needs_a_restart_is_named() {
        let old = Config::default();
        let new = Config::parse(
            "[metrics]\nlisten = \"off\"\n[profiling]\ninterval = \"1s\"\n[control]\nsocket = \"\"\n",
            None,
        )
        .unwrap();
        assert_eq!(
            old.restart_needed(&new),
            ["metrics.listen", "control.socket"]
        );
        assert!(old.restart_needed(&old).is_empty());
    }
}
