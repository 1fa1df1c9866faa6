//! The daemon: wires everything, and answers the outside while the loop turns.
//!
//! ```text
//!  SIGHUP ──► ┌─────────┐ ── Command, wake ──► ┌──────────┐
//!  SIGTERM ─► │ service │                      │  worker  │ owns EpochLoop
//!  socket ──► │ (tokio) │ ◄── Snapshot, beat ─ │ (thread) │
//!  HTTP ────► └─────────┘                      └──────────┘
//! ```
//!
//! The loop is one ordinary thread that owns all state, because its system
//! calls block. Commands reach it between two steps: the service wakes it
//! from its sleep. A configuration goes to it whole or not at all.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, anyhow};

use crate::config::{Config, DEFAULT_SOCKET, DEFAULT_STATE_DIR};
use crate::control::server::{BindError, Socket};
use crate::sys::process::raise_descriptors;
use crate::sys::root::Root;
use crate::sys::schedule;
use crate::telemetry::log;
use crate::units::Pid;

mod error;
mod heart;
mod inbox;
pub mod process;
mod service;
mod worker;

pub use error::{DaemonError, code};
pub(crate) use worker::read_tiers;

/// What `hmkeeper run` was told.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The configuration file; `None`: the default one, where there is one.
    pub config: Option<PathBuf>,
    /// Watch these too.
    pub pids: Vec<Pid>,
    /// End after so many epochs.
    pub epochs: Option<u64>,
    /// Move nothing.
    pub dry_run: bool,
    /// Record what the engine is told in this file.
    pub record: Option<PathBuf>,
}

/// Runs until a signal, the end of the wanted epochs, or a failure.
///
/// # Errors
/// With what failed and the remedy; [`DaemonError::code`] is the exit code.
pub fn run(options: &Options) -> Result<(), DaemonError> {
    let started = Instant::now();
    let (config, file) = Config::load(options.config.as_deref())?;
    let level = log::start(config.daemon.log.as_str()).map_err(DaemonError::Environment)?;
    if let Some(file) = &file {
        tracing::info!("configuration {}", file.display());
    } else {
        tracing::info!("no configuration file: the defaults hold");
    }
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    // All threads start from here.
    if let Err(error) = schedule::let_others_first() {
        tracing::debug!("this daemon does not let others go first: {error}");
    }
    // Before clients get their part of them.
    if let Err(error) = raise_descriptors() {
        tracing::debug!("the limit of descriptors stays as it is: {error}");
    }
    for pid in &options.pids {
        process::check(&Root::host(), *pid)?;
    }
    prepare_directories(&config)?;
    let http = config.listen.map(listen).transpose()?;
    let control = config.socket.as_deref().map(bind).transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("hmkeeper-io")
        .enable_all()
        .build()
        .context("cannot start the threads that answer")?;
    let plan = worker::Plan {
        config,
        pids: options.pids.clone(),
        epochs: options.epochs,
        dry_run: options.dry_run,
        record: options.record.clone(),
        started,
    };
    runtime.block_on(service::run(
        plan,
        options.config.clone(),
        level,
        http,
        control,
    ))
}

/// Where only root may bind by default, the remedy is to be root.
fn bind(path: &Path) -> Result<Socket, DaemonError> {
    Socket::bind(path).map_err(|error| match error {
        BindError::Failed { source, .. }
            if source.kind() == io::ErrorKind::PermissionDenied
                && path == Path::new(DEFAULT_SOCKET)
                && !nix::unistd::geteuid().is_root() =>
        {
            not_root(path)
        }
        other => other.into(),
    })
}

fn not_root(path: &Path) -> DaemonError {
    DaemonError::Host(format!(
        "{}: permission denied; run hmkeeper as root or through its systemd unit",
        path.display()
    ))
}

fn listen(address: SocketAddr) -> Result<TcpListener, DaemonError> {
    let listener = TcpListener::bind(address).map_err(|e| {
        let remedy = match e.kind() {
            io::ErrorKind::AddrInUse => "another program has the port: stop it, or ",
            _ => "",
        };
        anyhow!("metrics.listen {address}: {e}; {remedy}change metrics.listen or set it to \"off\"")
    })?;
    listener
        .set_nonblocking(true)
        .with_context(|| format!("metrics.listen {address}"))?;
    Ok(listener)
}

/// Creates the default directories, which a package or systemd would make.
/// Those that the configuration names are the operator's to make.
fn prepare_directories(config: &Config) -> Result<(), DaemonError> {
    let socket = config.socket.as_deref();
    let socket_dir = (socket == Some(Path::new(DEFAULT_SOCKET)))
        .then(|| Path::new(DEFAULT_SOCKET).parent())
        .flatten();
    let state_dir =
        Some(config.daemon.state_dir.as_path()).filter(|dir| *dir == Path::new(DEFAULT_STATE_DIR));
    for dir in socket_dir.into_iter().chain(state_dir) {
        let created = std::fs::DirBuilder::new().mode(0o755).create(dir);
        match created {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                return Err(not_root(dir));
            }
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                let text = format!("{}: cannot be created", dir.display());
                return Err(DaemonError::Failed(anyhow!(e).context(text)));
            }
            _ => {}
        }
    }
    Ok(())
}
