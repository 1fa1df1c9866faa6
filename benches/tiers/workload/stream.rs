//! Streaming: `a = b + s c` over three arrays, again and again (STREAM's triad). Nothing is
//! hotter than anything else, so nobody can gain by moving.

use super::{Latencies, Size, Workload};

/// Words of each array: 256 MiB.
const WORDS: usize = 256 << 20 >> 3;
const PASSES: usize = 6;
const SCALAR: u64 = 3;

/// The arrays.
pub(super) struct Triad {
    a: Vec<u64>,
    b: Vec<u64>,
    c: Vec<u64>,
    passes: usize,
}

impl Triad {
    pub(super) fn new(size: Size) -> Self {
        let words = size.memory(WORDS) as u64;
        Self {
            a: (0..words).map(|_| 1).collect(),
            b: (0..words).collect(),
            c: (0..words).map(|i| i ^ 0x55).collect(),
            passes: size.even_work(PASSES).max(1),
        }
    }
}

impl Workload for Triad {
    fn work(&mut self, _: &mut Latencies) -> u64 {
        for pass in 0..self.passes as u64 {
            let scalar = SCALAR + pass;
            for ((a, &b), &c) in self.a.iter_mut().zip(&self.b).zip(&self.c) {
                *a = b.wrapping_add(scalar.wrapping_mul(c));
            }
        }
        (self.passes * self.a.len()) as u64
    }

    fn check(&mut self) -> Result<(), String> {
        let scalar = SCALAR + self.passes as u64 - 1;
        let right = |i: u64| i.wrapping_add(scalar.wrapping_mul(i ^ 0x55));
        let wrong = (0..).zip(&self.a).filter(|&(i, &a)| right(i) != a);
        match wrong.count() {
            0 => Ok(()),
            n => Err(format!("{n} words are not b + {scalar} c")),
        }
    }
}
