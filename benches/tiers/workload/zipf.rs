//! A key-value table in memory: an index by hash, and records of 512 bytes in the order of their
//! insertion. 95 of 100 operations read a record, the others write one; keys are
//! chosen by Zipf's law (0.99, as YCSB does), and hot keys lie anywhere.
//!
//! A record holds its key, a version, and words that follow from both: each read checks its
//! sum, and at the end the versions add up to the writes.

use std::time::Instant;

use super::random::{Random, Zipf, mix};
use super::{Latencies, Size, Workload};

/// Of 8 bytes.
const WORDS: usize = 64;
const RECORDS: usize = 1_500_000;
const OPERATIONS: usize = 1_600_000;
const THETA: f64 = 0.99;
const READS_OF_100: u64 = 95;
/// Key and version.
const HEAD: usize = 2;

/// The table, and the keys that will be asked for.
pub(super) struct Table {
    /// Number of a record plus one, by the hash of its key; 0 is empty. A power of two long.
    index: Vec<u32>,
    records: Vec<u64>,
    /// Keys in order; the highest bit says that it is written.
    trace: Vec<u32>,
    writes: u64,
    faults: u64,
}

const WRITE: u32 = 1 << 31;

impl Table {
    pub(super) fn new(size: Size) -> Self {
        let count = size.memory(RECORDS);
        let mut random = Random::new(3);
        let mut keys: Vec<u32> = (0..count).filter_map(|k| u32::try_from(k).ok()).collect();
        random.shuffle(&mut keys);
        let mut table = Self {
            index: vec![0; (count * 2).next_power_of_two()],
            records: Vec::with_capacity(count * WORDS),
            trace: Vec::new(),
            writes: 0,
            faults: 0,
        };
        for (number, &key) in (1..).zip(&keys) {
            let slot = table.slot(key);
            table.index[slot] = number;
            table.records.extend([u64::from(key), 0]);
            table.records.extend(body(key, 0));
        }
        // Rank r is key r: the hottest keys are anywhere in the order of insertion.
        let zipf = Zipf::new(count, THETA);
        table.trace = (0..size.work(OPERATIONS))
            .map(|_| {
                let key = u32::try_from(zipf.draw(&mut random)).unwrap_or(0);
                let is_read = random.below(100) < READS_OF_100 as usize;
                if is_read { key } else { key | WRITE }
            })
            .collect();
        table
    }

    /// Where a key's record is told, or would be.
    fn slot(&self, key: u32) -> usize {
        let mask = self.index.len() - 1;
        let mut slot = mix(u64::from(key)) as usize & mask;
        loop {
            let number = self.index[slot] as usize;
            if number == 0 || self.records[(number - 1) * WORDS] == u64::from(key) {
                return slot;
            }
            slot = (slot + 1) & mask;
        }
    }

    fn operate(&mut self, asked: u32) {
        let key = asked & !WRITE;
        let slot = self.slot(key);
        let from = (self.index[slot] as usize).wrapping_sub(1) * WORDS;
        let Some(record) = self.records.get_mut(from..from + WORDS) else {
            self.faults += 1;
            return;
        };
        if asked & WRITE != 0 {
            self.writes += 1;
            record[1] += 1;
            let version = record[1];
            for (word, new) in record[HEAD..].iter_mut().zip(body(key, version)) {
                *word = new;
            }
        } else {
            let sum = record[HEAD..].iter().fold(0_u64, |s, &w| s.wrapping_add(w));
            self.faults += u64::from(sum != sum_of(key, record[1]));
        }
    }
}

fn seed(key: u32, version: u64) -> u64 {
    mix(u64::from(key) << 32 ^ version)
}

/// A record's words behind its head.
fn body(key: u32, version: u64) -> impl Iterator<Item = u64> {
    let seed = seed(key, version);
    (0..(WORDS - HEAD) as u64).map(move |i| seed.wrapping_add(i))
}

/// Their sum.
fn sum_of(key: u32, version: u64) -> u64 {
    let n = (WORDS - HEAD) as u64;
    seed(key, version)
        .wrapping_mul(n)
        .wrapping_add(n * (n - 1) / 2)
}

impl Workload for Table {
    fn work(&mut self, latencies: &mut Latencies) -> u64 {
        let trace = std::mem::take(&mut self.trace);
        let mut begin = Instant::now();
        for &asked in &trace {
            self.operate(asked);
            let end = Instant::now();
            latencies.add(end - begin);
            begin = end;
        }
        trace.len() as u64
    }

    fn check(&mut self) -> Result<(), String> {
        let versions: u64 = self.records.chunks(WORDS).map(|r| r[1]).sum();
        if self.faults > 0 {
            return Err(format!("{} records were not what was written", self.faults));
        }
        if versions != self.writes {
            return Err(format!("{} writes, {versions} in the table", self.writes));
        }
        Ok(())
    }
}
