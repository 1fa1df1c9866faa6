//! A small seeded generator (xorshift64*, Vigna 2016): the workload's choices
//! repeat with its seed and cost a few instructions each.

/// The generator's state, never zero.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

/// Spreads any 64 bits evenly (the finaliser of splitmix64).
pub(super) const fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Random {
    /// Equal seeds give equal sequences.
    pub(super) fn new(seed: u64) -> Self {
        Self(mix(seed).max(1))
    }

    /// The next 64 bits.
    #[inline]
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Evenly below `n`, which is not zero; the bias is below `n` / 2^32 for
    /// the sizes in use here.
    #[inline]
    pub(super) fn below(&mut self, n: usize) -> usize {
        let wide = u128::from(self.next()) * n as u128;
        usize::try_from(wide >> 64).unwrap_or(0)
    }

    /// A random order (Fisher-Yates).
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_repeat_and_others_differ() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..8).map(|_| random.next()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn below_covers_its_range_evenly() {
        let mut random = Random::new(1);
        let mut counts = [0_u32; 10];
        for _ in 0..10_000 {
            counts[random.below(10)] += 1;
        }
        assert!(
            counts.iter().all(|&c| (850..1150).contains(&c)),
            "{counts:?}"
        );
    }

    #[test]
    fn a_shuffle_keeps_every_item() {
        let mut items: Vec<u32> = (0..100).collect();
        Random::new(3).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
