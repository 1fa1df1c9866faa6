//! The file of a recording.
//!
//! ```text
//! "hmkeeper recording\n"  version: u32                     the head, 23 bytes
//! length: u32  CRC-32 of that: u32  CRC-32 of the payload: u32  payload
//!                                                          a record, and so on
//! ```
//!
//! Numbers are little-endian. A payload is a [`Frame`] as `postcard` has it, some
//! 14 bytes for each sample. A record is written by one `write` and counts when it
//! is whole: a file that ends in half a record, or in zeros, since the daemon was
//! killed, the disk was full or the power failed, is read up to there, and goes on
//! from there when the same file is named again.
//!
//! Addresses of a process are nobody else's business: only its owner may read
//! the file. Only one daemon writes to it at a time.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use serde::{Deserialize, Serialize};

use super::sound;
use crate::files;
use crate::ports::Recorder;
use crate::tiering::observation::Observation;
use crate::tiering::settings::EngineSettings;
use crate::tiering::tier::TierTable;

/// What a recording begins with.
pub const MAGIC: &[u8; 19] = b"hmkeeper recording\n";
/// Of the format; a change of any type in a [`Frame`] needs the next one.
pub const VERSION: u32 = 26;
const HEAD: usize = MAGIC.len() + 4;
/// Length and checksums before a payload.
const RECORD_HEAD: usize = 12;
/// A record longer than this is none: 131,000 samples take 2 MB. What is read of it may
/// take 15 times as much.
const LONGEST: u32 = 1 << 27;

/// One record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Frame {
    /// A daemon began, knowing nothing.
    Started {
        /// Its version.
        hmkeeper: String,
        /// Its settings.
        settings: EngineSettings,
        /// The tiers that it plans for.
        tiers: TierTable,
        /// Of its random choices.
        seed: u64,
    },
    /// From here on with these.
    Configured {
        /// Its settings.
        settings: EngineSettings,
        /// The tiers that it plans for.
        tiers: TierTable,
    },
    /// What the engine was told at the end of an epoch.
    Observed(Box<Observation>),
}

/// A [`Frame`] as it is written, which needs nothing of its own.
#[derive(Serialize)]
enum Written<'a> {
    Started {
        hmkeeper: &'a str,
        settings: &'a EngineSettings,
        tiers: &'a TierTable,
        seed: u64,
    },
    Configured {
        settings: &'a EngineSettings,
        tiers: &'a TierTable,
    },
    Observed(&'a Observation),
}

/// Why a recording cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The system says no.
    #[error("{}: {source}; name a file that can be read and written", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// It is something else.
    #[error("{}: is not a recording of hmkeeper; name another file", file.display())]
    Foreign {
        /// The file.
        file: PathBuf,
    },
    /// Somebody else writes to it.
    #[error("{}: another hmkeeper records there; name another file", file.display())]
    Busy {
        /// The file.
        file: PathBuf,
    },
    /// Another version wrote it.
    #[error("{}: has version {version} of the format, this hmkeeper has {VERSION}; read it with the hmkeeper that wrote it, and record to another file", file.display())]
    Version {
        /// The file.
        file: PathBuf,
        /// What it has.
        version: u32,
    },
    /// A whole record makes no sense.
    #[error("{}: byte {at}: {why}; the file was damaged: {}", file.display(), remedy(*at))]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Where the record begins.
        at: u64,
        /// What is wrong.
        why: String,
    },
}

/// How to have what is before a damaged record.
fn remedy(at: u64) -> String {
    if at <= 2 * HEAD as u64 {
        return "nothing is before that; keep it, and record to another file".into();
    }
    format!("what is before can be had from a copy that is cut there (cp, then truncate -s {at})")
}

/// Reads a recording, record by record.
pub struct Reader {
    file: PathBuf,
    input: BufReader<File>,
    length: u64,
    /// Where the next record begins.
    at: u64,
    /// Where the record read last begins.
    last: u64,
    torn: bool,
}

impl Reader {
    /// Opens it and reads its head.
    ///
    /// # Errors
    /// When it cannot be read or is not of this format.
    pub fn open(file: &Path) -> Result<Self, RecordError> {
        let opened = files::open(file).and_then(|f| Ok((f.metadata()?.len(), f)));
        let (length, opened) = opened.map_err(|e| failed(file, e))?;
        Self::of(file, opened, length)
    }

    fn of(file: &Path, opened: File, length: u64) -> Result<Self, RecordError> {
        let mut input = BufReader::new(opened);
        let mut head = [0; HEAD];
        input.read_exact(&mut head).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => RecordError::Foreign { file: file.into() },
            _ => failed(file, e),
        })?;
        let (magic, version) = head.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(RecordError::Foreign { file: file.into() });
        }
        let version = number(version);
        if version != VERSION {
            return Err(RecordError::Version {
                file: file.into(),
                version,
            });
        }
        // Where a file system errs about the end, older versions wrote it twice.
        let again = input.fill_buf().map_err(|e| failed(file, e))?;
        let at = if again.starts_with(&head) {
            input.consume(HEAD);
            2 * HEAD as u64
        } else {
            HEAD as u64
        };
        Ok(Self {
            file: file.into(),
            input,
            length,
            at,
            last: at,
            torn: false,
        })
    }

    /// The next record; `None` after the last whole one.
    ///
    /// # Errors
    /// When the file cannot be read, or a whole record cannot be understood.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, RecordError> {
        let Some((length, sum)) = self.head()? else {
            return Ok(None);
        };
        let mut payload = vec![0; length as usize];
        self.input
            .read_exact(&mut payload)
            .map_err(|e| failed(&self.file, e))?;
        let end = self.at + RECORD_HEAD as u64 + u64::from(length);
        if crc32fast::hash(&payload) != sum {
            // The last one may have been announced and never been written.
            if end < self.length {
                return Err(self.damaged("its checksum is wrong".into()));
            }
            self.torn = true;
            return Ok(None);
        }
        let (frame, rest) = postcard::take_from_bytes::<Frame>(&payload)
            .map_err(|_| self.damaged("it is no record of this version".into()))?;
        if !rest.is_empty() {
            return Err(self.damaged("it goes on after its end".into()));
        }
        sound::frame(&frame).map_err(|why| self.damaged(why))?;
        self.last = self.at;
        self.at = end;
        Ok(Some(frame))
    }

    /// Length and checksum of the next record's payload, if all of it is there.
    fn head(&mut self) -> Result<Option<(u32, u32)>, RecordError> {
        let left = self.length.saturating_sub(self.at);
        if self.torn || left == 0 {
            return Ok(None);
        }
        if left < RECORD_HEAD as u64 {
            self.torn = true;
            return Ok(None);
        }
        let mut head = [0; RECORD_HEAD];
        self.input
            .read_exact(&mut head)
            .map_err(|e| failed(&self.file, e))?;
        let length = number(&head[..4]);
        // What was never written reads as zeros.
        if head == [0; RECORD_HEAD] {
            self.torn = true;
            return Ok(None);
        }
        if crc32fast::hash(&head[..4]) != number(&head[4..8]) || length > LONGEST {
            return Err(self.damaged("the checksum of its length is wrong".into()));
        }
        if u64::from(length) > left - RECORD_HEAD as u64 {
            self.torn = true;
            return Ok(None);
        }
        Ok(Some((length, number(&head[8..]))))
    }

    /// Goes behind the last whole record without reading what is in all others.
    fn skip(&mut self) -> Result<(), RecordError> {
        loop {
            let before = self.at;
            let Some((length, _)) = self.head()? else {
                return Ok(());
            };
            let end = before + RECORD_HEAD as u64 + u64::from(length);
            if end == self.length {
                // It may be announced only.
                let io = |e| failed(&self.file, e);
                self.input.seek(SeekFrom::Start(before)).map_err(io)?;
                self.next_frame()?;
                return Ok(());
            }
            self.input
                .seek_relative(i64::from(length))
                .map_err(|e| failed(&self.file, e))?;
            self.at = end;
        }
    }

    /// Bytes at the end that are no whole record; known once all are read.
    pub fn torn(&self) -> u64 {
        if self.torn { self.length - self.at } else { 0 }
    }

    /// The record read last cannot be, after those before it.
    pub(super) fn refused(&self, why: &str) -> RecordError {
        RecordError::Damaged {
            file: self.file.clone(),
            at: self.last,
            why: why.into(),
        }
    }

    fn damaged(&self, why: String) -> RecordError {
        RecordError::Damaged {
            file: self.file.clone(),
            at: self.at,
            why,
        }
    }
}

fn number(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .rev()
        .fold(0, |sum, &byte| (sum << 8) | u32::from(byte))
}

fn failed(file: &Path, source: io::Error) -> RecordError {
    RecordError::Io {
        file: file.into(),
        source,
    }
}

/// Appends to a recording. One that cannot be written any more says so in the
/// log, once, and the daemon goes on without it.
pub struct Writer {
    path: PathBuf,
    file: Option<File>,
    /// Where the next record goes. Not where the system says that the file ends:
    /// some network file systems err about that.
    at: u64,
    seed: u64,
    has_started: bool,
}

impl Writer {
    /// Begins a recording, or goes on after the last whole record of one that is
    /// there. `seed` is that of the engine.
    ///
    /// # Errors
    /// When the file cannot be written, or is there and something else: it is
    /// left as it is.
    pub fn append(path: &Path, seed: u64) -> Result<Self, RecordError> {
        let io = |e| failed(path, e);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            // A pipe that nobody reads would hold up the daemon.
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(path)
            .map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        if !metadata.is_file() {
            return Err(RecordError::Foreign { file: path.into() });
        }
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| RecordError::Busy { file: path.into() })?;
        let length = metadata.len();
        let mut head = MAGIC.to_vec();
        head.extend(VERSION.to_le_bytes());
        let mut there = vec![0; HEAD.min(usize::try_from(length).unwrap_or(HEAD))];
        file.read_exact(&mut there).map_err(io)?;
        // Also one that was cut off in its head begins anew.
        let at = if there.len() < HEAD && head.starts_with(&there) {
            file.set_len(0).map_err(io)?;
            file.write_all_at(&head, 0).map_err(io)?;
            HEAD as u64
        } else {
            file.seek(SeekFrom::Start(0)).map_err(io)?;
            let again = file.try_clone().map_err(io)?;
            let mut reader = Reader::of(path, again, length)?;
            reader.skip()?;
            if reader.at < length {
                tracing::warn!(
                    "{}: its last {} bytes are half a record: cut off",
                    path.display(),
                    length - reader.at
                );
                file.set_len(reader.at).map_err(io)?;
            }
            reader.at
        };
        // It may have been there before, open to others.
        file.set_permissions(Permissions::from_mode(0o600))
            .map_err(io)?;
        Ok(Self {
            path: path.into(),
            file: Some(file),
            at,
            seed,
            has_started: false,
        })
    }

    fn put(&mut self, frame: &Written<'_>) {
        let Some(file) = &mut self.file else { return };
        let result = record(frame).and_then(|bytes| {
            file.write_all_at(&bytes, self.at)?;
            self.at += bytes.len() as u64;
            Ok(())
        });
        if let Err(error) = result {
            tracing::error!("{}: {error}; nothing more is recorded", self.path.display());
            self.file = None;
        }
    }
}

/// A frame with its head.
fn record(frame: &Written<'_>) -> io::Result<Vec<u8>> {
    let mut bytes = postcard::to_extend(frame, vec![0; RECORD_HEAD]).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len() - RECORD_HEAD).unwrap_or(u32::MAX);
    if length > LONGEST {
        return Err(io::Error::other("an epoch is too large to be recorded"));
    }
    let sum = crc32fast::hash(&bytes[RECORD_HEAD..]);
    let length = length.to_le_bytes();
    bytes[..4].copy_from_slice(&length);
    bytes[4..8].copy_from_slice(&crc32fast::hash(&length).to_le_bytes());
    bytes[8..RECORD_HEAD].copy_from_slice(&sum.to_le_bytes());
    Ok(bytes)
}

impl Recorder for Writer {
    fn configured(&mut self, settings: &EngineSettings, tiers: &TierTable) {
        let frame = if std::mem::replace(&mut self.has_started, true) {
            Written::Configured { settings, tiers }
        } else {
            Written::Started {
                hmkeeper: env!("CARGO_PKG_VERSION"),
                settings,
                tiers,
                seed: self.seed,
            }
        };
        self.put(&frame);
    }

    fn observed(&mut self, seen: &Observation) {
        self.put(&Written::Observed(seen));
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "hostile_tests.rs"]
mod hostile;
