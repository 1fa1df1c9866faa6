//! A million regions in order, in one pass.

/// One that comes before another is at most so many times as large, where the least are first.
pub(super) const SORTED_TO: f64 = 1.25;

/// Positive numbers in order, to a quarter of their size. Emptied it keeps its memory: of a
/// million items the kernel would have to clear it anew each time.
#[derive(Clone, Debug)]
pub(super) struct Sorted<T>(Vec<Vec<T>>);

impl<T> Default for Sorted<T> {
    fn default() -> Self {
        Self::new()
    }
}

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

    pub(super) fn clear(&mut self) {
        self.0.iter_mut().for_each(Vec::clear);
    }

    /// The least first; equals as they came. What is not taken stays.
    pub(super) fn ascending(&mut self) -> impl Iterator<Item = T> + '_ {
        self.0.iter_mut().flat_map(|bucket| bucket.drain(..))
    }

    /// The largest first; equals as they came, too.
    pub(super) fn descending(&mut self) -> impl Iterator<Item = T> + '_ {
        self.0.iter_mut().rev().flat_map(|bucket| bucket.drain(..))
    }
}
