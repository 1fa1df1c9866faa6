//! Random updates of a table (GUPS): evenly, or most of them in a hot set that jumps.
//!
//! The hot set is made of chunks of 2 MiB, scattered over the table. An update is an exclusive
//! or: a digest of the table changes by the same in whatever order they come, which is the check.

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
/// Words of a page.
const PAGE: usize = 4096 / 8;

/// The table and what is to be done to it.
pub(super) struct Gups {
    table: Vec<u64>,
    plan: Plan,
}

/// Which updates there are.
struct Plan {
    /// Of the table.
    words: usize,
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
        Self::of(Plan {
            words,
            updates: size.work(UPDATES),
            places,
        })
    }

    pub(super) fn uniform(size: Size) -> Self {
        Self::of(Plan {
            words: size.memory(TABLE),
            updates: size.even_work(UPDATES / 2),
            places: Vec::new(),
        })
    }

    /// Each page touched, none of it zero.
    fn of(plan: Plan) -> Self {
        Self {
            table: (0..plan.words as u64).collect(),
            plan,
        }
    }
}

impl Plan {
    /// One update after the other: of which word, and with what.
    #[inline]
    fn each(&self, mut update: impl FnMut(usize, u64)) {
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
                    _ => random.below(self.words),
                };
                update(at, x);
            }
        }
    }
}

/// An exclusive or of all words, but that none counts alike on two pages: each page has its own sum and is turned
/// by so much that no other page has both.
struct Digest(Vec<u64>);

impl Digest {
    /// Primes: with [`Self::TURNS`] more pages than any table has.
    const SUMS: usize = 4327;
    const TURNS: usize = 61;

    fn new() -> Self {
        Self(vec![0; Self::SUMS])
    }

    #[inline]
    fn add(&mut self, word: u64, at: usize) {
        let page = at / PAGE;
        self.0[page % Self::SUMS] ^= word.rotate_left((page % Self::TURNS) as u32);
    }
}

impl Workload for Gups {
    fn work(&mut self, _: &mut Latencies) -> u64 {
        let Self { table, plan } = self;
        plan.each(|at, x| table[at] ^= x);
        plan.updates as u64
    }

    /// Not by the same updates once more, which undo them: that takes the guest twice as long.
    fn check(&mut self) -> Result<(), String> {
        let (mut wanted, mut found) = (Digest::new(), Digest::new());
        self.plan.each(|at, x| wanted.add(x, at));
        for (page, words) in self.table.chunks(PAGE).enumerate() {
            let first = page * PAGE;
            let changes = (first as u64..).zip(words);
            let changes = changes.fold(0, |all, (i, &word)| all ^ i ^ word);
            found.add(changes, first);
        }
        let differ = found.0.iter().zip(&wanted.0).filter(|(a, b)| a != b);
        match differ.count() {
            0 => Ok(()),
            n => Err(format!(
                "{n} of {} sums are not what they should be",
                Digest::SUMS
            )),
        }
    }
}
