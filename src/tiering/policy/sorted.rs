//! A million regions in order, in one pass.

/// One that comes before another is at most so many times as large, where the least are first.
pub(super) const SORTED_TO: f64 = 1.25;

/// Positive numbers in order, to a quarter of their size.
pub(super) struct Sorted<T>(Vec<Vec<T>>);

impl<T> Sorted<T> {
    /// Of a float's bits all but its exponent and two more.
    const SHIFT: u32 = 21;

    pub(super) fn new() -> Self {
        let buckets = (f32::INFINITY.to_bits() >> Self::SHIFT) + 1;
        Self((0..buckets).map(|_| Vec::new()).collect())
    }

    #[allow(clippy::cast_possible_truncation)]
    pub(super) fn add(&mut self, number: f64, item: T) {
        // Without a sign a float's bits grow with it; NaN is nothing.
        let bits = (number as f32).max(0.0).to_bits();
        self.0[(bits >> Self::SHIFT) as usize].push(item);
    }

    /// The least first; equals as they came.
    pub(super) fn ascending(self) -> impl Iterator<Item = T> {
        self.0.into_iter().flatten()
    }

    /// The largest first; equals as they came, too.
    pub(super) fn descending(self) -> impl Iterator<Item = T> {
        self.0.into_iter().rev().flatten()
    }
}
