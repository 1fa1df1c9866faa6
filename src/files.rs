//! Files that a user names: opened without waiting, and read within bounds.
//!
//! A name may be that of a pipe that nobody writes to, of a device without end
//! or of a directory. Each is an error that says so, at once.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;

/// A pipe that is silent for so long is given up.
const SILENCE_SECONDS: i64 = 10;

/// Opens a regular file for reading.
///
/// # Errors
/// When it cannot be read, or is of another kind; the text says of which.
pub fn open(path: &Path) -> io::Result<File> {
    let file = open_any(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() {
        return Ok(file);
    }
    Err(wrong_kind(kind))
}

fn open_any(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        // A pipe without a writer would hold us up, as would some devices.
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
}

fn wrong_kind(kind: std::fs::FileType) -> io::Error {
    let what = if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    io::Error::other(format!("it is {what}, not a regular file"))
}

/// The text of a regular file of at most `most` bytes.
///
/// # Errors
/// When it cannot be read, or is longer, of another kind or no text; the text
/// says which.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    // What it says of its size may be wrong: files of /proc have none.
    open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("it has more than {most} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        io::Error::other(format!("its byte {at} is not of UTF-8 text"))
    })
}

/// A regular file, or a pipe that somebody writes to.
#[derive(Debug)]
pub struct Stream {
    file: File,
    is_pipe: bool,
}

impl Stream {
    /// Opens it.
    ///
    /// # Errors
    /// When it cannot be read, or is neither.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = open_any(path)?;
        let kind = file.metadata()?.file_type();
        if kind.is_file() || kind.is_fifo() {
            let is_pipe = kind.is_fifo();
            return Ok(Self { file, is_pipe });
        }
        Err(wrong_kind(kind))
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.is_pipe {
            let silence = Timespec {
                tv_sec: SILENCE_SECONDS,
                tv_nsec: 0,
            };
            let mut readable = [PollFd::new(&self.file, PollFlags::IN)];
            if poll(&mut readable, Some(&silence))? == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("it is a pipe, and nobody wrote to it for {SILENCE_SECONDS} s"),
                ));
            }
        }
        self.file.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn refused(path: &str) -> String {
        read_text(Path::new(path), 100).unwrap_err().to_string()
    }

    #[test]
    fn only_regular_files_within_the_bound_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "x".repeat(100)).unwrap();
        assert_eq!(read_text(&path, 100).unwrap().len(), 100);
        std::fs::write(&path, "x".repeat(101)).unwrap();
        assert_eq!(
            refused(path.to_str().unwrap()),
            "it has more than 100 bytes"
        );
        std::fs::write(&path, b"ab\xff").unwrap();
        assert_eq!(
            refused(path.to_str().unwrap()),
            "its byte 2 is not of UTF-8 text"
        );
        assert_eq!(refused("/"), "it is a directory, not a regular file");
        assert_eq!(refused("/dev/zero"), "it is a device, not a regular file");
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(
            refused(fifo.to_str().unwrap()),
            "it is a pipe, not a regular file"
        );
    }

    #[test]
    fn a_pipe_is_read_to_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut stream = Stream::open(&fifo).unwrap();
        let writer = std::thread::spawn(move || {
            let mut pipe = OpenOptions::new().write(true).open(fifo).unwrap();
            pipe.write_all(b"one ").unwrap();
            std::thread::sleep(std::time::Duration::from_millis(50));
            pipe.write_all(b"two").unwrap();
        });
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert_eq!(text, "one two");
        writer.join().unwrap();
        assert!(Stream::open(Path::new("/dev/zero")).is_err());
    }
}
