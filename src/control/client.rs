//! The command line's end of the control socket.
//!
//! A daemon that lives answers `status` at once, whatever its loop does: it has
//! the answer ready. So each request waits for that first, for [`ALIVE`]. Then
//! what needs the loop has [`PATIENCE`]: a stopped daemon is told from one that
//! is busy. What comes back is made printable here.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::socket::sockopt::{PeerCredentials, SendTimeout};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect as nix_connect, getsockopt, setsockopt,
    socket as nix_socket,
};
use nix::sys::time::TimeVal;
use serde_json::Value;

use super::{Reply, Request};
use crate::units::text::printable;

/// A daemon that lives answers `status` in some milliseconds; on a host that is
/// overcommitted a hundred times, within this.
const ALIVE: Duration = Duration::from_millis(2800);
/// The loop takes requests between two steps. Moving is the longest: it ends for
/// a request when its call does, on slow devices after seconds. A reload reads
/// the machine's tiers besides.
const PATIENCE: Duration = Duration::from_secs(120);
/// The longest answer: the status of 256 targets takes 1 MiB.
const REPLY_MAX: usize = 64 << 20;

/// A process as errors name it: ` (pid 7)`, or nothing where it is not known.
#[derive(Clone, Copy, Debug)]
pub struct Pid(Option<i32>);

impl std::fmt::Display for Pid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |pid| write!(f, " (pid {pid})"))
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error(
        "{}: no daemon answers there; start one with `systemctl start hmkeeper`, or name its \
         socket with --socket",
        .0.display()
    )]
    NotRunning(PathBuf),
    /// We may not.
    #[error("{}: permission denied; be root or in the group hmkeeper", .0.display())]
    Forbidden(PathBuf),
    /// It lives, or seems to, and says nothing.
    #[error(
        "{}: hmkeeper{pid} does not answer within {seconds} s; if it is stopped, `kill -CONT PID` \
         lets it go on; else see its log, and restart it: `systemctl restart hmkeeper`",
        path.display()
    )]
    Silent {
        /// The socket.
        path: PathBuf,
        /// Who listens there.
        pid: Pid,
        /// How long it was waited for.
        seconds: f64,
    },
    /// It lives, and its loop has not done what was asked.
    #[error(
        "{}: hmkeeper has not done it within {seconds} s, its loop is busy; it does it yet: see \
         `hmkeeper status` and its log",
        path.display()
    )]
    Late {
        /// The socket.
        path: PathBuf,
        /// How long it was waited for.
        seconds: u64,
    },
    /// The connection broke.
    #[error("{}: {source}; see the daemon's log", path.display())]
    Failed {
        /// The socket.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A connection to whoever listens at `socket`, within `time`.
///
/// # Errors
/// `WouldBlock` when its queue is full all the while; else as the kernel says.
pub(super) fn connect(socket: &Path, time: Duration) -> io::Result<UnixStream> {
    let address = UnixAddr::new(socket)?;
    let flags = SockFlag::SOCK_CLOEXEC;
    let stream = nix_socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    // It bounds how long the kernel waits for a place in the queue, too.
    let micros = i64::try_from(time.as_micros().max(1)).unwrap_or(i64::MAX);
    let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
    setsockopt(&stream, SendTimeout, &TimeVal::new(seconds, micros))?;
    nix_connect(std::os::fd::AsRawFd::as_raw_fd(&stream), &address)?;
    Ok(stream.into())
}

/// Asks the daemon at `socket`.
///
/// # Errors
/// When it cannot be reached or does not answer; what it refuses is a
/// [`Reply`].
pub fn call(socket: &Path, request: Request) -> Result<Reply, ClientError> {
    within(socket, request, ALIVE, PATIENCE)
}

fn within(
    socket: &Path,
    request: Request,
    alive: Duration,
    patience: Duration,
) -> Result<Reply, ClientError> {
    let path = || socket.to_owned();
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            ClientError::NotRunning(path())
        }
        io::ErrorKind::PermissionDenied => ClientError::Forbidden(path()),
        _ => ClientError::Failed {
            path: path(),
            source,
        },
    };
    let until = Instant::now() + alive;
    let silent = |pid: Option<i32>| ClientError::Silent {
        path: path(),
        pid: Pid(pid),
        seconds: alive.as_secs_f64().ceil(),
    };
    let mut stream = match connect(socket, alive) {
        Err(error) if is_late(&error) => return Err(silent(None)),
        other => other.map_err(failed)?,
    };
    // Whoever listens there: the daemon, stopped or not.
    let pid = getsockopt(&stream.as_fd(), PeerCredentials).ok();
    let pid = pid.map(|peer| peer.pid()).filter(|pid| *pid > 0);
    let first = exchange(&mut stream, Request::Status, until).map_err(|error| {
        if is_late(&error) {
            silent(pid)
        } else {
            failed(error)
        }
    })?;
    if request == Request::Status {
        return Ok(first);
    }
    exchange(&mut stream, request, Instant::now() + patience).map_err(|error| {
        if is_late(&error) {
            ClientError::Late {
                path: path(),
                seconds: patience.as_secs(),
            }
        } else {
            failed(error)
        }
    })
}

fn is_late(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// What is left until then, as a socket takes it: zero would be for ever.
fn left(until: Instant) -> io::Result<Option<Duration>> {
    match until.checked_duration_since(Instant::now()) {
        Some(left) if !left.is_zero() => Ok(Some(left)),
        _ => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// One request and its answer, all of it `until` then.
fn exchange(stream: &mut UnixStream, request: Request, until: Instant) -> io::Result<Reply> {
    let mut text = serde_json::to_vec(&request)?;
    text.push(b'\n');
    // A request fits into what any socket keeps.
    stream.set_write_timeout(left(until)?)?;
    stream.write_all(&text)?;
    let mut line = Vec::new();
    let mut part = [0; 16 << 10];
    while line.last() != Some(&b'\n') {
        stream.set_read_timeout(left(until)?)?;
        match stream.read(&mut part) {
            Ok(0) if line.is_empty() => {
                let text = "the daemon closed the connection";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
            }
            Ok(0) => break,
            Ok(read) => line.extend_from_slice(&part[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if line.len() > REPLY_MAX {
            let text = format!("its answer has more than {REPLY_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
    }
    let mut answer: Value = serde_json::from_slice(&line)?;
    make_printable(&mut answer);
    Ok(serde_json::from_value(answer)?)
}

/// Whatever listens there, and whatever names it knows.
fn make_printable(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let std::borrow::Cow::Owned(shown) = printable(text) {
                *text = shown;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(make_printable),
        Value::Object(entries) => entries.values_mut().for_each(make_printable),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    const SHORT: Duration = Duration::from_millis(200);

    fn at(listen: impl FnOnce(UnixListener) + Send + 'static) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.sock");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || listen(listener));
        (dir, path)
    }

    fn ask(path: &Path, request: Request) -> Result<Reply, ClientError> {
        within(path, request, SHORT, SHORT)
    }

    #[test]
    fn who_accepts_and_says_nothing_does_not_answer() {
        let (_dir, path) = at(|listener| {
            let mut kept = Vec::new();
            for stream in listener.incoming() {
                kept.push(stream);
            }
        });
        for request in [Request::Status, Request::Pause, Request::Reload] {
            let text = ask(&path, request).unwrap_err().to_string();
            let us = format!("hmkeeper (pid {}) does not answer", std::process::id());
            assert!(text.contains(&us) && text.contains("kill -CONT"), "{text}");
        }
    }

    #[test]
    fn bytes_that_drip_are_no_answer() {
        let (_dir, path) = at(|listener| {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                while stream.write_all(b" ").is_ok() {
                    std::thread::sleep(SHORT / 10);
                }
            }
        });
        let began = Instant::now();
        let error = ask(&path, Request::Status).unwrap_err();
        assert!(matches!(error, ClientError::Silent { .. }), "{error}");
        assert!(began.elapsed() < SHORT * 20);
    }

    #[test]
    fn a_full_queue_is_no_answer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        let mut kept = Vec::new();
        while let Ok(stream) = connect(&path, Duration::from_millis(20)) {
            kept.push(stream);
            assert!(kept.len() < 100_000);
        }
        let error = ask(&path, Request::Status).unwrap_err();
        assert!(matches!(error, ClientError::Silent { .. }), "{error}");
    }

    /// Answers `status` at once, and anything else after a while.
    #[allow(clippy::needless_pass_by_value)]
    fn slow(listener: UnixListener, pause: Duration) {
        use std::io::{BufRead, BufReader};
        for stream in listener.incoming().map_while(Result::ok) {
            let mut writer = stream.try_clone().unwrap();
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                if !line.contains("status") {
                    std::thread::sleep(pause);
                }
                let reply = r#"{"ok":true,"message":"a\n\u001b[2J\u009b"}"#;
                let _ = writeln!(writer, "{reply}");
            }
        }
    }

    #[test]
    fn a_busy_loop_is_waited_for_and_its_answer_is_printable() {
        let (_dir, path) = at(|listener| slow(listener, SHORT * 2));
        let reply = within(&path, Request::Reload, SHORT, SHORT * 50).unwrap();
        assert_eq!(reply.message.as_deref(), Some("a\\n\\u{1b}[2J\\u{9b}"));
        let error = ask(&path, Request::Pause).unwrap_err();
        assert!(matches!(error, ClientError::Late { .. }), "{error}");
    }
}
