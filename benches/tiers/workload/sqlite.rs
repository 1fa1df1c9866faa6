//! SQLite, in memory, with a working set that drifts: records by their key, most of them from a
//! window that moves on through the table, and now and then one is changed.
//!
//! The library is the system's own; a page of it is a page of memory, so that records of
//! neighbouring keys lie beside each other, and what is above them in the tree among them.

use std::time::Instant;

use rusqlite::{Connection, Statement};

use super::random::{Random, mix};
use super::{Latencies, Size, Workload};

/// Two of them fill a page: 640 MiB.
const RECORDS: usize = 320_000;
const BODY: usize = 1900;
/// The window: 32 MiB.
const WINDOW: usize = 16_000;
/// Windows' widths that it moves on in all.
const WIDTHS: usize = 2;
/// So many of 256 operations are in the window: nine of ten.
const HOT_OF_256: u64 = 230;
/// And so many of 256 change a record.
const CHANGES_OF_256: u64 = 13;
const OPERATIONS: usize = 350_000;
/// That one statement adds, which takes the guest less than one for each.
const AT_ONCE: usize = 50;
const LINE: usize = 64;

/// The database and what is to be asked.
pub(super) struct Sqlite {
    database: Connection,
    records: usize,
    operations: usize,
    changes: u64,
    faults: u64,
}

impl Sqlite {
    pub(super) fn new(size: Size) -> Result<Self, String> {
        let records = size.memory(RECORDS);
        Ok(Self {
            database: filled(records).map_err(|e| format!("SQLite: {e}"))?,
            records,
            operations: size.work(OPERATIONS),
            changes: 0,
            faults: 0,
        })
    }

    fn ask(&mut self, latencies: &mut Latencies) -> rusqlite::Result<()> {
        let mut read = self
            .database
            .prepare("SELECT version, body FROM records WHERE key = ?1")?;
        let mut change = self
            .database
            .prepare("UPDATE records SET version = version + 1 WHERE key = ?1")?;
        let mut random = Random::new(8);
        // Somewhere in the middle: neither what was touched first nor last.
        let from = self.records / 2;
        let mut begin = Instant::now();
        for done in 0..self.operations {
            let x = random.next();
            let key = if x & 0xff < HOT_OF_256 {
                let moved = done * WIDTHS * WINDOW / self.operations;
                (from + moved + random.below(WINDOW)) % self.records
            } else {
                random.below(self.records)
            };
            if x >> 8 & 0xff < CHANGES_OF_256 {
                change.execute([signed(key)])?;
                self.changes += 1;
            } else if !is_right(&mut read, key)? {
                self.faults += 1;
            }
            let end = Instant::now();
            latencies.add(end - begin);
            begin = end;
        }
        Ok(())
    }

    fn versions(&self) -> rusqlite::Result<i64> {
        self.database
            .query_row("SELECT sum(version) FROM records", [], |row| row.get(0))
    }
}

/// Rows as they will be for ever but for their versions.
fn filled(records: usize) -> rusqlite::Result<Connection> {
    let database = Connection::open_in_memory()?;
    database.execute_batch(
        "PRAGMA page_size = 4096; PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;
         CREATE TABLE records (key INTEGER PRIMARY KEY, version INTEGER NOT NULL, body BLOB NOT NULL);
         BEGIN",
    )?;
    // Else there would be more.
    assert_eq!(records % AT_ONCE, 0);
    {
        let rows = vec!["(?, 0, ?)"; AT_ONCE].join(", ");
        let mut add = database.prepare(&format!("INSERT INTO records VALUES {rows}"))?;
        let mut body = vec![0; BODY];
        for first in (0..records).step_by(AT_ONCE) {
            for i in 0..AT_ONCE {
                mark(&mut body, first + i);
                add.raw_bind_parameter(2 * i + 1, signed(first + i))?;
                add.raw_bind_parameter(2 * i + 2, &body)?;
            }
            add.raw_execute()?;
        }
    }
    database.execute_batch("COMMIT")?;
    Ok(database)
}

/// As SQLite's integers are.
fn signed(key: usize) -> i64 {
    i64::try_from(key).unwrap_or(i64::MAX)
}

/// Each line of a record tells whose it is.
fn mark(body: &mut [u8], key: usize) {
    for (line, chunk) in body.chunks_exact_mut(LINE).enumerate() {
        let word = mix((key * BODY + line) as u64);
        chunk[..8].copy_from_slice(&word.to_le_bytes());
    }
}

/// Reads a record, and whether each of its lines is its own.
fn is_right(read: &mut Statement<'_>, key: usize) -> rusqlite::Result<bool> {
    read.query_row([signed(key)], |row| {
        let body = row.get_ref(1)?.as_blob()?;
        let mut lines = body.chunks_exact(LINE).enumerate();
        Ok(body.len() == BODY
            && lines
                .all(|(line, chunk)| chunk[..8] == mix((key * BODY + line) as u64).to_le_bytes()))
    })
}

impl Workload for Sqlite {
    fn work(&mut self, latencies: &mut Latencies) -> u64 {
        if self.ask(latencies).is_err() {
            self.faults += 1;
        }
        self.operations as u64
    }

    fn check(&mut self) -> Result<(), String> {
        let versions = self.versions().map_err(|e| e.to_string())?;
        if self.faults > 0 {
            return Err(format!("{} records were not what was written", self.faults));
        }
        if u64::try_from(versions) != Ok(self.changes) {
            return Err(format!("{} changes, {versions} in the table", self.changes));
        }
        Ok(())
    }
}
