//! For how long something is left alone that did harm: half a minute at first, and twice as long
//! each time.

use crate::units::Nanos;

/// How long the first rest is and the longest; each is twice as long as the one before, unless that
/// ended so long ago.
pub(super) const REST: Nanos = Nanos::from_secs(30);
const LONGEST: Nanos = Nanos::from_secs(32 * 60);
const FORGIVEN: Nanos = Nanos::from_secs(15 * 60);

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rest {
    until: Nanos,
    length: Nanos,
}

impl Rest {
    pub(super) fn is_on(self, at: Nanos) -> bool {
        at < self.until
    }

    /// From now on; one that is on lasts for its whole length again.
    pub(super) fn begin(&mut self, at: Nanos) {
        if !self.is_on(at) {
            self.length = if self.length == Nanos::ZERO || at >= self.until + FORGIVEN {
                REST
            } else {
                Nanos(self.length.0 * 2).min(LONGEST)
            };
        }
        self.until = at + self.length;
    }
}
