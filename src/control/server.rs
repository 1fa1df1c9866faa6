//! The daemon's end of the control socket. Everything a client can do is
//! bounded: length of a line, time between lines, number of clients.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{Call, LINE_MAX, Reply, Request, client as caller};
use crate::clients::{self, Busy};
use crate::units::text::printable;

/// Clients at once; more wait for a place, and one that asks nothing gives its
/// own up.
const CLIENTS_MAX: usize = 32;
/// A client that asks nothing for so long, or does not read, is let go.
const IDLE: Duration = Duration::from_secs(30);
/// Who may use the socket besides root, where that group exists.
const GROUP: &str = "hmkeeper";
/// Root and the group.
const MODE: u32 = 0o660;

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another daemon answers there.
    #[error(
        "{}: another hmkeeper answers there; stop it, or give this one its own control.socket",
        .0.display()
    )]
    Live(PathBuf),
    /// There is something else.
    #[error("{}: is there and is not a socket; remove it or change control.socket", .0.display())]
    NotASocket(PathBuf),
    /// The directory is missing.
    #[error("{}: the directory is missing; create it or change control.socket", .0.display())]
    NoDirectory(PathBuf),
    /// The system refused.
    #[error("{}: {source}; check the directory's rights or change control.socket", path.display())]
    Failed {
        /// The socket.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A bound socket; its file goes with it.
#[derive(Debug)]
pub struct Socket {
    listener: StdListener,
    path: PathBuf,
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Already gone is as good.
        let _ = fs::remove_file(&self.path);
    }
}

impl Socket {
    /// Binds `path`, in place of a socket that a dead daemon left.
    ///
    /// # Errors
    /// When somebody answers there or the file system refuses.
    pub fn bind(path: &Path) -> Result<Self, BindError> {
        let failed = |source| BindError::Failed {
            path: path.to_owned(),
            source,
        };
        match fs::symlink_metadata(path) {
            Ok(meta) if !meta.file_type().is_socket() => {
                return Err(BindError::NotASocket(path.to_owned()));
            }
            // A stopped daemon's queue may be full.
            Ok(_) => match caller::connect(path, Duration::from_millis(1)) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    return Err(BindError::Live(path.to_owned()));
                }
                Ok(_) => return Err(BindError::Live(path.to_owned())),
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                    fs::remove_file(path).map_err(failed)?;
                }
                Err(e) => return Err(failed(e)),
            },
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                if !path.parent().is_some_and(Path::is_dir) {
                    return Err(BindError::NoDirectory(path.to_owned()));
                }
            }
            Err(e) => return Err(failed(e)),
        }
        let listener = StdListener::bind(path).map_err(failed)?;
        let socket = Self {
            listener,
            path: path.to_owned(),
        };
        fs::set_permissions(path, fs::Permissions::from_mode(MODE)).map_err(failed)?;
        if let Ok(Some(group)) = nix::unistd::Group::from_name(GROUP)
            && let Err(e) = chown(path, None, Some(group.gid.as_raw()))
        {
            warn!("{}: cannot be given to group {GROUP}: {e}", path.display());
        }
        socket.listener.set_nonblocking(true).map_err(failed)?;
        Ok(socket)
    }

    /// Passes on what clients ask, until `stop`.
    ///
    /// # Errors
    /// When the listener cannot be polled.
    pub async fn serve(self, calls: mpsc::Sender<Call>, stop: CancellationToken) -> io::Result<()> {
        let listener = UnixListener::from_std(self.listener.try_clone()?)?;
        let places = clients::places(CLIENTS_MAX);
        let stopped = stop.cancelled();
        clients::serve(
            listener,
            "control.socket",
            places,
            stopped,
            |stream, busy| {
                let calls = calls.clone();
                async move {
                    // A client that goes away is its own affair.
                    let _ = client(stream, calls, busy).await;
                }
            },
        )
        .await;
        Ok(())
    }
}

/// One client, from its first line to its last.
async fn client(stream: UnixStream, calls: mpsc::Sender<Call>, busy: Busy) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    loop {
        line.clear();
        // One more than allowed, so that the longest line and one that is too
        // long can be told apart.
        let limit = LINE_MAX as u64 + 1;
        let mut bounded = (&mut reader).take(limit);
        match timeout(IDLE, bounded.read_until(b'\n', &mut line)).await {
            Ok(Ok(0)) | Err(_) => return Ok(()),
            Ok(read) => read?,
        };
        let too_long = line.len() > LINE_MAX;
        let reply = if too_long {
            Reply::failed(2, format!("a request has at most {LINE_MAX} bytes"))
        } else {
            match serde_json::from_slice::<Request>(&line) {
                Ok(request) => busy.during(ask(&calls, request)).await,
                Err(e) => {
                    let what = e.to_string();
                    let what = printable(&what);
                    Reply::failed(2, format!("not a request: {what}; see docs/control.md"))
                }
            }
        };
        let mut text = serde_json::to_vec(&reply)?;
        text.push(b'\n');
        timeout(IDLE, writer.write_all(&text))
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        if too_long {
            // Where the next request begins cannot be told.
            return Ok(());
        }
    }
}

async fn ask(calls: &mpsc::Sender<Call>, request: Request) -> Reply {
    let (reply, answer) = oneshot::channel();
    let sent = calls.send(Call { request, reply }).await;
    let answer = match sent {
        Ok(()) => answer.await.ok(),
        Err(_) => None,
    };
    answer.unwrap_or_else(|| Reply::failed(1, "the daemon is stopping"))
}
