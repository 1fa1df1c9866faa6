//! Regions by hotness: a histogram with its members (HM-Keeper §1.3).
//!
//! Buckets are equal steps over 0 to `num_scans`. One pass fills them; nothing
//! is sorted, so a decision over a million regions stays linear.

/// Members by hotness, coldest bucket first.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram<T> {
    buckets: Vec<Vec<T>>,
    scale: f32,
}

impl<T> Histogram<T> {
    /// `buckets` empty ones over hotness 0 to `scans`.
    pub fn new(buckets: usize, scans: u8) -> Self {
        let count = buckets.max(2);
        Self {
            buckets: (0..count).map(|_| Vec::new()).collect(),
            scale: count as f32 / f32::from(scans.max(1)),
        }
    }

    /// The bucket that a hotness falls into.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn bucket_of(&self, hotness: f32) -> usize {
        // `as` saturates: NaN and negatives are the coldest.
        ((hotness * self.scale) as usize).min(self.buckets.len() - 1)
    }

    /// Adds a member.
    pub fn add(&mut self, hotness: f32, member: T) {
        let at = self.bucket_of(hotness);
        self.buckets[at].push(member);
    }

    /// The buckets, coldest first.
    pub fn buckets(&self) -> &[Vec<T>] {
        &self.buckets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_equal_steps() {
        let mut histogram = Histogram::new(16, 3);
        // 16 buckets over 3 scans: steps of 0.1875.
        for (hotness, bucket) in [
            (0.0, 0),
            (0.18, 0),
            (0.19, 1),
            (1.5, 8),
            (2.9, 15),
            (3.0, 15),
        ] {
            assert_eq!(histogram.bucket_of(hotness), bucket, "{hotness}");
            histogram.add(hotness, hotness);
        }
        assert_eq!(histogram.buckets()[0], [0.0, 0.18]);
        assert_eq!(histogram.bucket_of(f32::NAN), 0);
    }
}
