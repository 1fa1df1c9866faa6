//! A small seeded generator (xorshift64*, Vigna 2016), and skewed choices: what a workload
//! does repeats with its seed.

/// Spreads any 64 bits evenly (the finaliser of splitmix64).
pub(crate) const fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The generator's state, never zero.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Equal seeds give equal sequences.
    pub(crate) fn new(seed: u64) -> Self {
        Self(mix(seed).max(1))
    }

    /// The next 64 bits.
    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Evenly below `n`, which is not zero.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "less than n")]
    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    /// Evenly from 0 to 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A random order (Fisher-Yates).
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

/// Ranks from 0 with Zipf's law, the way of Gray et al. (SIGMOD 1994) that YCSB uses too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Zipf {
    count: usize,
    theta: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    /// `theta` between 0 (even) and 1, without.
    pub(crate) fn new(count: usize, theta: f64) -> Self {
        let zeta = |n: usize| (1..=n).map(|i| (i as f64).powf(-theta)).sum::<f64>();
        // Beyond the first few thousand terms the sum is its integral, to a millionth.
        let exact = count.min(10_000);
        let integral = |x: f64| x.powf(1.0 - theta) / (1.0 - theta);
        let tail = integral(count as f64 + 0.5) - integral(exact as f64 + 0.5);
        let all = zeta(exact) + tail.max(0.0);
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - theta)) / (1.0 - zeta(2) / all);
        Self {
            count,
            theta,
            zeta: all,
            eta,
        }
    }

    /// The next rank, below the count.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive, and bounded by the count"
    )]
    pub(crate) fn draw(&self, random: &mut Random) -> usize {
        let unit = random.unit();
        let scaled = unit * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5_f64.powf(self.theta) {
            return 1;
        }
        let base = (self.eta * unit - self.eta + 1.0).max(0.0);
        let rank = self.count as f64 * base.powf(1.0 / (1.0 - self.theta));
        (rank as usize).min(self.count - 1)
    }
}
