//! The command line's end of the control socket.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Reply, Request};

/// The loop answers between two steps, of which moving is the longest.
const PATIENCE: Duration = Duration::from_secs(120);

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
    /// The connection broke.
    #[error("{}: {source}; see the daemon's log", path.display())]
    Failed {
        /// The socket.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Asks the daemon at `socket`.
///
/// # Errors
/// When it cannot be reached or does not answer; what it refuses is a
/// [`Reply`].
pub fn call(socket: &Path, request: Request) -> Result<Reply, ClientError> {
    let path = socket.to_owned();
    exchange(socket, request).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ClientError::NotRunning(path),
        io::ErrorKind::PermissionDenied => ClientError::Forbidden(path),
        _ => ClientError::Failed { path, source },
    })
}

fn exchange(socket: &Path, request: Request) -> io::Result<Reply> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut text = serde_json::to_vec(&request)?;
    text.push(b'\n');
    stream.write_all(&text)?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    if line.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the daemon closed the connection",
        ));
    }
    Ok(serde_json::from_str(&line)?)
}
