//! The daemon's tokio side: signals, the control socket, HTTP, systemd.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use nix::sys::signal::Signal;
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::error::{DaemonError, code};
use super::worker::{self, Command, Handle, Plan};
use crate::config::{Config, ConfigError};
use crate::control::server::Socket;
use crate::control::{Call, Reply, Request};
use crate::sys::process::ignore;
use crate::sys::root::Root;
use crate::telemetry::http;
use crate::telemetry::log::LevelHandle;
use crate::telemetry::status::Status;
use crate::units::Pid;

/// The loop's sleep is interrupted this often, so that its heart beats.
const NUDGE: Duration = Duration::from_secs(5);
/// Requests that may wait to be looked at.
const CALLS_MAX: usize = 64;
/// After a signal the loop ends at once, or when the call that moves pages is
/// over; a loop that does not is hung.
const GOODBYE: Duration = Duration::from_secs(60);

/// What the tasks share.
struct Service {
    handle: Handle,
    level: LevelHandle,
    file: Option<PathBuf>,
    /// What is in force; locked while a reload is under way.
    config: Mutex<Config>,
}

/// Runs the daemon until it ends.
pub(super) async fn run(
    plan: Plan,
    file: Option<PathBuf>,
    level: LevelHandle,
    http: Option<TcpListener>,
    control: Option<Socket>,
) -> Result<(), DaemonError> {
    // Before the loop changes anything in the kernel: from now on a signal
    // does not end us without undoing it.
    let listen = |kind| signal(kind).context("cannot handle signals");
    let mut terminate = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut hangup = listen(SignalKind::hangup())?;
    let mut quit = listen(SignalKind::quit())?;
    for number in meaningless() {
        let heard = listen(SignalKind::from_raw(number))?;
        tokio::spawn(disregard(number, heard));
    }
    ignore(libc::SIGRTMAX()).context("cannot handle signals")?;

    let config = plan.config.clone();
    let start = tokio::task::spawn_blocking(|| worker::start(plan));
    let (handle, mut ended) = start.await.context("the loop's start")??;
    let service = Arc::new(Service {
        handle,
        level,
        file,
        config: Mutex::new(config),
    });
    let stop = CancellationToken::new();
    let (calls, mut called) = mpsc::channel(CALLS_MAX);
    if let Some(socket) = control {
        tokio::spawn(log_end("control socket", socket.serve(calls, stop.clone())));
    } else {
        drop(calls);
    }
    if let Some(listener) = http {
        let listener = tokio::net::TcpListener::from_std(listener).context("metrics.listen")?;
        let heart = Arc::clone(&service.handle.heart);
        let source = http::Source {
            snapshots: service.handle.snapshots.subscribe(),
            healthy: Arc::new(move || heart.is_alive(Instant::now())),
        };
        let end = stop.clone().cancelled_owned();
        tokio::spawn(http::serve(listener, source, end));
    }
    tokio::spawn(watch(Arc::clone(&service), stop.clone()));
    notify(&[NotifyState::Ready]);
    info!("ready");

    let result = loop {
        tokio::select! {
            result = &mut ended => break result,
            _ = terminate.recv() => break service.end("SIGTERM", ended).await,
            _ = interrupt.recv() => break service.end("SIGINT", ended).await,
            _ = quit.recv() => break service.end("SIGQUIT", ended).await,
            _ = hangup.recv() => {
                let service = Arc::clone(&service);
                tokio::spawn(async move { service.reload().await });
            }
            Some(call) = called.recv() => {
                let service = Arc::clone(&service);
                tokio::spawn(async move { service.answer(call).await });
            }
        }
    };
    notify(&[NotifyState::Stopping]);
    stop.cancel();
    result.unwrap_or_else(|_| {
        Err(DaemonError::Failed(anyhow!(
            "the loop ended without a word"
        )))
    })
}

/// Signals that would end a program which does not handle them, and that ask
/// nothing of this one. The kernel sends none of them for a fault of ours. SIGPIPE is not
/// among them: it is ignored from the start, and comes whenever a client goes away.
fn meaningless() -> impl Iterator<Item = i32> {
    let plain = [
        Signal::SIGUSR1,
        Signal::SIGUSR2,
        Signal::SIGALRM,
        Signal::SIGVTALRM,
        Signal::SIGPROF,
        Signal::SIGIO,
        Signal::SIGPWR,
        Signal::SIGSTKFLT,
        Signal::SIGXCPU,
        // Instead, writing a recording fails.
        Signal::SIGXFSZ,
    ];
    let plain = plain.into_iter().map(|signal| signal as i32);
    // The very last one tokio cannot hear.
    plain.chain(libc::SIGRTMIN()..libc::SIGRTMAX())
}

/// Says that a signal came, and that it does nothing: once as a warning.
async fn disregard(number: i32, mut heard: tokio::signal::unix::Signal) {
    let name = Signal::try_from(number).map_or_else(
        |_| format!("signal {number}"),
        |signal| signal.as_str().to_owned(),
    );
    let mut told = false;
    while heard.recv().await.is_some() {
        if std::mem::replace(&mut told, true) {
            debug!("{name}: disregarded again");
        } else {
            warn!(
                "{name}: disregarded, it asks nothing of hmkeeper; SIGHUP has it reload its \
                 configuration, SIGTERM ends it"
            );
        }
    }
}

/// A server that ends by itself is worth a line, but not the daemon's end.
async fn log_end(what: &str, server: impl Future<Output = std::io::Result<()>>) {
    if let Err(error) = server.await {
        error!("{what} failed: {error}");
    }
}

/// Tells systemd; without systemd there is nobody to tell.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        warn!("cannot reach systemd: {error}");
    }
}

/// Keeps the loop's heart beating, and tells systemd that it does.
async fn watch(service: Arc<Service>, stop: CancellationToken) {
    let watchdog = sd_notify::watchdog_enabled();
    let period = watchdog.map_or(NUDGE, |limit| NUDGE.min(limit / 4));
    let mut ticks = tokio::time::interval(period);
    let mut shown = None;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let handle = &service.handle;
        if watchdog.is_some() && handle.heart.is_alive(Instant::now()) {
            notify(&[NotifyState::Watchdog]);
        }
        handle.nudge();
        let snapshot = Arc::clone(&handle.snapshots.borrow());
        let line = one_line(&snapshot);
        if shown.as_ref() != Some(&line) {
            notify(&[NotifyState::Status(&line)]);
            shown = Some(line);
        }
    }
}

/// For `systemctl status`.
fn one_line(snapshot: &crate::telemetry::Snapshot) -> String {
    let paused: Vec<&str> = snapshot.paused().iter().map(|r| r.as_str()).collect();
    let state = if paused.is_empty() {
        "moving".to_owned()
    } else {
        format!("paused ({})", paused.join(", "))
    };
    format!(
        "{state}, {} targets, epoch {}, sampler {}",
        snapshot.report.targets.len(),
        snapshot.report.epoch,
        snapshot.sampler.as_str()
    )
}

impl Service {
    /// Has the loop end, and waits for it.
    async fn end(
        &self,
        signal: &str,
        ended: oneshot::Receiver<Result<(), DaemonError>>,
    ) -> Result<Result<(), DaemonError>, oneshot::error::RecvError> {
        info!("{signal}: stopping");
        notify(&[NotifyState::Stopping]);
        self.handle.send(Command::Stop);
        tokio::time::timeout(GOODBYE, ended)
            .await
            .unwrap_or_else(|_| {
                Ok(Err(DaemonError::Failed(anyhow!(
                    "the loop did not end within {} s; the next start undoes what it left",
                    GOODBYE.as_secs()
                ))))
            })
    }

    async fn answer(&self, call: Call) {
        let reply = match call.request {
            Request::Status => {
                let snapshot = Arc::clone(&self.handle.snapshots.borrow());
                Reply {
                    ok: true,
                    status: Some(Box::new(Status::new(&snapshot, snapshot.started.elapsed()))),
                    ..Reply::default()
                }
            }
            Request::Attach { pid } => self.attach(Pid(pid)).await,
            Request::Detach { pid } => self.detach(Pid(pid)).await,
            Request::Pause => self.pause(true).await,
            Request::Resume => self.pause(false).await,
            Request::Reload => self.reload().await,
        };
        // A client that has gone away wants no answer.
        let _ = call.reply.send(reply);
    }

    /// Sends the loop a command and waits for its answer.
    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Option<T> {
        let (done, answer) = oneshot::channel();
        self.handle.send(command(done));
        answer.await.ok()
    }

    async fn attach(&self, pid: Pid) -> Reply {
        match self.ask(|done| Command::Attach(pid, done)).await {
            Some(Ok(name)) => Reply::done(format!("watching {pid} ({name})")),
            Some(Err(why)) => {
                let error = DaemonError::from(why);
                Reply::failed(error.code(), error.to_string())
            }
            None => stopping(),
        }
    }

    async fn detach(&self, pid: Pid) -> Reply {
        match self.ask(|done| Command::Detach(pid, done)).await {
            Some(true) => Reply::done(format!("{pid} is let go")),
            Some(false) => Reply::failed(
                code::NO_TARGET,
                format!(
                    "pid {pid}: was not attached; what the configuration selects is let go by \
                     changing it there"
                ),
            ),
            None => stopping(),
        }
    }

    async fn pause(&self, paused: bool) -> Reply {
        match self.ask(|done| Command::Pause(paused, done)).await {
            Some(()) if paused => Reply::done("nothing is moved until `hmkeeper resume`"),
            Some(()) => Reply::done("moving again"),
            None => stopping(),
        }
    }

    /// Applies the file as a whole or not at all, and counts which.
    async fn reload(&self) -> Reply {
        let mut current = self.config.lock().await;
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            notify(&[NotifyState::Reloading, now]);
        }
        let reply = self.apply(&mut current).await;
        self.handle.snapshots.send_modify(|shared| {
            let reloads = &mut Arc::make_mut(shared).reloads;
            if reply.ok {
                reloads.ok += 1;
            } else {
                reloads.failed += 1;
            }
        });
        match &reply.error {
            None => info!("{}", reply.message.as_deref().unwrap_or_default()),
            Some(error) => {
                error!("configuration not reloaded: {error}");
                for fault in &reply.faults {
                    error!("{fault}");
                }
            }
        }
        notify(&[NotifyState::Ready]);
        reply
    }

    async fn apply(&self, current: &mut Config) -> Reply {
        let file = self.file.clone();
        let read = tokio::task::spawn_blocking(move || {
            let (config, _) = Config::load(file.as_deref())?;
            let tiers = worker::read_tiers(&Root::host(), &config)?;
            Ok::<_, DaemonError>((config, tiers))
        });
        let (config, tiers) = match read.await {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => return refused(&error),
            Err(error) => return Reply::failed(code::FAILED, error.to_string()),
        };
        for warning in config.warnings() {
            warn!("{warning}");
        }
        let restart_needed = current.restart_needed(&config);
        let config = current.reloaded(config);
        let applied = Box::new(config.clone());
        let applied = self.ask(|done| Command::Configure(applied, tiers, done));
        if applied.await.is_none() {
            return stopping();
        }
        self.level.set(config.daemon.log.as_str());
        *current = config;
        let message = if restart_needed.is_empty() {
            "configuration reloaded".to_owned()
        } else {
            let keys = restart_needed.join(", ");
            format!("configuration reloaded; restart hmkeeper to apply {keys}")
        };
        Reply {
            restart_needed: restart_needed.into_iter().map(str::to_owned).collect(),
            ..Reply::done(message)
        }
    }
}

fn stopping() -> Reply {
    Reply::failed(code::FAILED, "the daemon is stopping")
}

/// The answer to a reload that cannot be applied.
fn refused(error: &DaemonError) -> Reply {
    let DaemonError::Config(ConfigError::Faults(faults)) = error else {
        return Reply::failed(error.code(), error.to_string());
    };
    let lines: Vec<String> = faults.lines().collect();
    let summary = match faults.count() {
        1 => "the configuration has a fault; the old one stays in force".to_owned(),
        count => format!("the configuration has {count} faults; the old one stays in force"),
    };
    Reply {
        faults: lines,
        ..Reply::failed(error.code(), summary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_signal_that_asks_nothing_ends_nothing() {
        for number in meaningless() {
            tokio::spawn(disregard(
                number,
                signal(SignalKind::from_raw(number)).unwrap(),
            ));
        }
        let mut count = 0;
        for number in meaningless() {
            let kill = format!("kill -{number} {}", std::process::id());
            let sent = std::process::Command::new("sh")
                .args(["-c", &kill])
                .status();
            assert!(sent.unwrap().success(), "signal {number}");
            count += 1;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(count > 11, "{count}");
    }
}
