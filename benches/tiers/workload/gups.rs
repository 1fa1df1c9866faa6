//! Random updates of a table (GUPS): evenly, or most of them in a hot set that jumps.
//!
//! The hot set is made of chunks of 2 MiB, scattered over the table. An update is an exclusive
//! or, so that the same updates once more undo it: that is the check.

use super::random::Random;
use super::{Latencies, Size, Workload};

const MIB: usize = 1 << 20;
/// Of the table: 8-byte words.
const TABLE: usize = 1024 * MIB / 8;
const CHUNK: usize = 2 * MIB / 8;
/// Hot chunks: 64 MiB. A guest's minute is three seconds of the machine: in a larger set each
/// page is accessed too seldom in that time to pay for any move.
const HOT_CHUNKS: usize = 32;
/// So many of 256 updates are of the hot set: nine of ten.
const HOT_OF_256: u64 = 230;
const UPDATES: usize = 8_000_000;
/// The hot set is in so many places, one after the other.
const PLACES: usize = 2;

/// The table and what is to be done to it.
pub(super) struct Gups {
    table: Vec<u64>,
    updates: usize,
    /// First words of the hot chunks in each place; none: evenly.
    places: Vec<Vec<usize>>,
}

impl Gups {
    pub(super) fn with_hot_set(size: Size) -> Self {
        let words = size.memory(TABLE);
        let hot = size.memory(HOT_CHUNKS);
        let mut chunks: Vec<usize> = (0..words / CHUNK).map(|c| c * CHUNK).collect();
        Random::new(1).shuffle(&mut chunks);
        let places = chunks.chunks(hot).take(PLACES).map(<[_]>::to_vec).collect();
        Self {
            table: filled(words),
            updates: size.work(UPDATES),
            places,
        }
    }

    pub(super) fn uniform(size: Size) -> Self {
        Self {
            table: filled(size.memory(TABLE)),
            updates: size.work(UPDATES / 2),
            places: Vec::new(),
        }
    }

    fn update_all(&mut self) {
        let mut random = Random::new(2);
        let phases = self.places.len().max(1);
        for phase in 0..phases {
            let place = self.places.get(phase);
            for _ in 0..self.updates / phases {
                let x = random.next();
                let at = match place {
                    Some(chunks) if x & 0xff < HOT_OF_256 => {
                        chunks[(x >> 8) as usize % chunks.len()] + (x >> 32) as usize % CHUNK
                    }
                    _ => random.below(self.table.len()),
                };
                self.table[at] ^= x;
            }
        }
    }
}

/// Each page touched, none of it zero.
fn filled(words: usize) -> Vec<u64> {
    (0..words as u64).collect()
}

impl Workload for Gups {
    fn work(&mut self, _: &mut Latencies) -> u64 {
        self.update_all();
        self.updates as u64
    }

    fn check(&mut self) -> Result<(), String> {
        self.update_all();
        // Without a branch for each word: the guest takes some seconds less.
        let differ = (0..)
            .zip(&self.table)
            .fold(0, |all, (i, &word): (u64, _)| all | (i ^ word));
        if differ == 0 {
            return Ok(());
        }
        let wrong = (0..).zip(&self.table).filter(|&(i, &w): &(u64, _)| i != w);
        Err(format!("{} words are not what they were", wrong.count()))
    }
}
