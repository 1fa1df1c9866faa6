//! Workloads from files: programs, recordings and traces of accesses.

use std::io::{self, BufReader, IsTerminal, Read, Write};
use std::path::Path;

use crate::cli::{Failure, report};
use crate::daemon::code;
use crate::files::Stream;
use crate::record::file::{MAGIC, Reader};
use crate::record::rates::Accesses;
use crate::sim::played::{Collector, PlayError};
use crate::sim::trace;
use crate::sim::workload::Workload;

/// What of a file is looked at to tell what it is.
const BEGIN: u64 = 64 << 10;
/// Letters of a workload's name.
const NAME_MAX: usize = 32;

/// Bytes of a trace, and epochs of a recording, after which a terminal is told.
const BYTES_SHOWN: u64 = 64 << 20;
const EPOCHS_SHOWN: u64 = 64;

/// How far a file was gone through, for whoever watches a terminal.
struct Progress {
    what: &'static str,
    every: u64,
    done: u64,
    shows: bool,
}

impl Progress {
    fn of(what: &'static str, every: u64) -> Self {
        Self {
            what,
            every,
            done: 0,
            shows: io::stderr().is_terminal(),
        }
    }

    fn add(&mut self, more: u64) {
        let before = self.done / self.every;
        self.done += more;
        if self.shows && self.done / self.every > before {
            // Nobody to tell if stderr is closed.
            let _ = write!(io::stderr(), "\r{} {} ", self.done, self.what);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shows && self.done >= self.every {
            let _ = write!(io::stderr(), "\r{:40}\r", "");
        }
    }
}

/// A file whose reader is told of.
struct Watched<R> {
    file: R,
    progress: Progress,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.progress.add(read as u64);
        Ok(read)
    }
}

/// What a file tells of a program, whatever kind of file it is.
pub(super) fn workload(name: &str) -> Result<Workload, Failure> {
    let failed = |error: io::Error| Failure::new(code::FAILED, format!("{name}: {error}"));
    let path = Path::new(name);
    let mut file = Stream::open(path).map_err(failed)?;
    let mut begin = Vec::new();
    let read = (&mut file).take(BEGIN).read_to_end(&mut begin);
    read.map_err(failed)?;
    if begin.starts_with(MAGIC) {
        return recording(path);
    }
    // A pipe cannot be read again.
    let all = begin.as_slice().chain(file);
    if trace::is_trace(&begin) {
        let watched = Watched {
            file: all,
            progress: Progress::of("bytes", BYTES_SHOWN),
        };
        let played = trace::read(BufReader::new(watched)).map_err(|error| match error {
            trace::TraceError::Io(error) => failed(error),
            trace::TraceError::Line { .. } => Failure::new(code::USAGE, format!("{name}:{error}")),
            trace::TraceError::Play(error) => unplayable(name, &error),
        })?;
        return Ok(played.workload(name_of(path), "a trace of accesses".into()));
    }
    let text = super::text(name, all)?;
    Workload::parse(&text).map_err(|error| super::fault(name, &error))
}

fn recording(path: &Path) -> Result<Workload, Failure> {
    let name = path.display().to_string();
    let unreadable = |error| Failure::new(code::FAILED, error);
    let mut accesses = Accesses::new(Reader::open(path).map_err(unreadable)?);
    let mut collector = Collector::default();
    let mut regions = Vec::new();
    let mut progress = Progress::of("epochs", EPOCHS_SHOWN);
    while let Some(seconds) = accesses.next_epoch(&mut regions).map_err(unreadable)? {
        let touches = regions
            .iter()
            .try_for_each(|seen| collector.touch(seen.process, seen.range, seen.per_page));
        touches
            .and_then(|()| collector.pass(seconds))
            .map_err(|error| unplayable(&name, &error))?;
        progress.add(1);
    }
    drop(progress);
    report::tell(path, &accesses.notes());
    // What a program writes is seldom recorded, and moves in no policy's reckoning.
    let played = collector.finish(accesses.order(), 0.0);
    let played = played.map_err(|error| unplayable(&name, &error))?;
    Ok(played.workload(name_of(path), "a recording of run --record".into()))
}

fn unplayable(name: &str, error: &PlayError) -> Failure {
    Failure::new(code::USAGE, format!("{name}: {error}"))
}

/// As the tables show it.
fn name_of(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || "._-".contains(c) {
            c
        } else {
            '_'
        }
    };
    let name: String = stem.chars().take(NAME_MAX).map(plain).collect();
    if name.is_empty() { "file".into() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_that_tables_can_show() {
        assert_eq!(name_of(Path::new("/tmp/db one.rec")), "db_one");
        assert_eq!(name_of(Path::new("a/ü.csv")), "_");
        assert_eq!(name_of(Path::new("/")), "file");
        assert_eq!(name_of(Path::new(&"x".repeat(99))).len(), NAME_MAX);
    }
}
