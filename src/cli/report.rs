//! `report`: a recording as a picture or a table.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::{End, Failure, print};
use rustix::fs::OFlags;

use crate::daemon::code;
use crate::record::csv::{self, CsvError};
use crate::record::file::Reader;
use crate::record::heatmap::Picture;
use crate::record::{Replay, html, png, survey, svg};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The pictures show hotness by address and time. csv has one row per epoch and \
                  region: mono_ns,pid,start,end,hotness,max_hotness,tier (addresses in hex)."
)]
pub(super) struct Args {
    /// A recording of `run --record`
    file: PathBuf,
    /// Where to: X.svg, X.png, X.html (with working set and residency) or X.csv
    #[arg(long, value_name = "X")]
    out: PathBuf,
}

/// What the name asks for.
#[derive(Clone, Copy, Debug)]
enum Format {
    Csv,
    Svg,
    Png,
    Html,
}

const FORMATS: [(&str, Format); 4] = [
    ("svg", Format::Svg),
    ("png", Format::Png),
    ("html", Format::Html),
    ("csv", Format::Csv),
];

pub(super) fn run(args: &Args) -> Result<ExitCode, End> {
    let out = &args.out;
    let ending = out.extension().unwrap_or_default();
    let Some((ending, format)) = FORMATS.iter().find(|(name, _)| *name == ending) else {
        let text = format!(
            "--out {}: its ending says no format; write X.svg, X.png, X.html or X.csv",
            out.display()
        );
        return Err(Failure::new(code::USAGE, text).into());
    };
    let reader = Reader::open(&args.file).map_err(|e| Failure::new(code::FAILED, e))?;
    let there = std::fs::canonicalize(out);
    if there.is_ok_and(|there| std::fs::canonicalize(&args.file).is_ok_and(|file| file == there)) {
        let text = format!(
            "--out {}: is the recording itself; name another",
            out.display()
        );
        return Err(Failure::new(code::USAGE, text).into());
    }
    let mut progress = Progress::new();
    let done = match format {
        Format::Csv => table(reader, out)?,
        Format::Svg | Format::Png | Format::Html => {
            let picture = survey::picture(&args.file, || progress.epoch());
            progress.end();
            let picture = picture.map_err(|e| Failure::new(code::FAILED, e))?;
            let bytes = draw(&picture, *format).map_err(|e| Failure::new(code::FAILED, e))?;
            put(out, ending, |file| file.write_all(&bytes))?;
            Done {
                text: format!(
                    "{} epochs, {} targets\n",
                    picture.epochs,
                    picture.targets.len()
                ),
                notes: picture.notes,
            }
        }
    };
    tell(&args.file, &done.notes);
    print(&done.text)?;
    Ok(ExitCode::SUCCESS)
}

/// What to say in the end.
struct Done {
    text: String,
    notes: Vec<String>,
}

fn draw(picture: &Picture, format: Format) -> Result<Vec<u8>, ::png::EncodingError> {
    match format {
        Format::Svg => svg::draw(picture).map(String::into_bytes),
        Format::Html => html::draw(picture).map(String::into_bytes),
        Format::Png | Format::Csv => png::encode(&png::draw(picture)),
    }
}

fn table(reader: Reader, out: &Path) -> Result<Done, Failure> {
    let mut replay = Replay::new(reader);
    let written = put(out, "csv", |file| csv::write(&mut replay, file))?;
    Ok(Done {
        text: format!("{} epochs, {} rows\n", written.epochs, written.rows),
        notes: crate::record::notes(replay.torn(), replay.other_version()),
    })
}

/// Writes a file beside `out` first: whatever goes wrong, what is there stays. Addresses of
/// a process are nobody else's business, as in the recording.
fn put<T, E: Into<CsvError>>(
    out: &Path,
    ending: &str,
    write: impl FnOnce(&mut BufWriter<std::fs::File>) -> Result<T, E>,
) -> Result<T, Failure> {
    let failed = |what: &Path, error: &dyn Display| {
        Failure::new(code::FAILED, format!("{}: {error}", what.display()))
    };
    let part = out.with_extension(format!("{ending}.part"));
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        // A pipe that nobody reads would hold us up.
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(&part)
        .map_err(|e| failed(&part, &e))?;
    let mut file = BufWriter::new(file);
    let written = write(&mut file).map_err(Into::into);
    written
        .and_then(|written| {
            file.flush()?;
            Ok(written)
        })
        .map_err(|e| match e {
            CsvError::Record(e) => Failure::new(code::FAILED, e),
            CsvError::Write(_) => failed(&part, &e),
        })
        .and_then(|written| {
            std::fs::rename(&part, out).map_err(|e| failed(out, &e))?;
            Ok(written)
        })
        .inspect_err(|_| {
            let _ = std::fs::remove_file(&part);
        })
}

/// What to know of a recording, on stderr.
pub(super) fn tell(file: &Path, notes: &[String]) {
    for note in notes {
        super::say(&format!("note: {}: {note}", file.display()));
    }
}

/// Epochs gone through, for whoever watches a terminal.
struct Progress {
    epochs: u64,
    shows: bool,
}

impl Progress {
    fn new() -> Self {
        Self {
            epochs: 0,
            shows: io::stderr().is_terminal(),
        }
    }

    fn epoch(&mut self) {
        self.epochs += 1;
        if self.shows && self.epochs.is_multiple_of(64) {
            let _ = write!(io::stderr(), "\r{} epochs, in two turns ", self.epochs);
        }
    }

    fn end(&self) {
        if self.shows {
            let _ = write!(io::stderr(), "\r{:40}\r", "");
        }
    }
}
