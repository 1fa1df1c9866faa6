//! `report`: a recording as a table.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::{End, Failure, print};
use crate::daemon::code;
use crate::record::Replay;
use crate::record::csv::{self, CsvError};
use crate::record::file::Reader;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A recording of `run --record`
    file: PathBuf,
    /// Where to: X.csv, one row per epoch and region
    #[arg(long, value_name = "X.csv")]
    out: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, End> {
    let out = &args.out;
    if out.extension().is_none_or(|e| e != "csv") {
        let text = format!("--out {}: this version writes X.csv only", out.display());
        return Err(Failure::new(code::USAGE, text).into());
    }
    let failed = |what: &Path, error: &dyn Display| {
        Failure::new(code::FAILED, format!("{}: {error}", what.display()))
    };
    let reader = Reader::open(&args.file).map_err(|e| Failure::new(code::FAILED, e))?;
    let mut replay = Replay::new(reader);
    let there = std::fs::canonicalize(out);
    if there.is_ok_and(|there| std::fs::canonicalize(&args.file).is_ok_and(|file| file == there)) {
        let text = format!(
            "--out {}: is the recording itself; name another",
            out.display()
        );
        return Err(Failure::new(code::USAGE, text).into());
    }
    // Written beside it first: whatever goes wrong, what is there stays. Addresses
    // of a process are nobody else's business, as in the recording.
    let part = out.with_extension("csv.part");
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&part)
        .map_err(|e| failed(&part, &e))?;
    let written = csv::write(&mut replay, &mut BufWriter::new(file))
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
        })?;
    let mut notes = Vec::new();
    if replay.torn() > 0 {
        let torn = replay.torn();
        notes.push(format!(
            "its last {torn} bytes are half a record, and left out"
        ));
    }
    if let Some(version) = replay.other_version() {
        notes.push(format!(
            "hmkeeper {version} wrote it: what this version makes of it may differ"
        ));
    }
    for note in notes {
        // Nobody to tell if stderr is closed.
        let _ = writeln!(
            io::stderr(),
            "hmkeeper: note: {}: {note}",
            args.file.display()
        );
    }
    print(&format!(
        "{} epochs, {} rows\n",
        written.epochs, written.rows
    ))?;
    Ok(ExitCode::SUCCESS)
}
