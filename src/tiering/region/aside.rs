//! What few regions have, kept beside the million of them.

use super::counting::Counting;
use super::{Region, short};

/// What few regions have.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Aside {
    pub(super) counting: Option<Counting>,
    /// Pages that the kernel kept where they were when they were last to be moved, and the
    /// epoch until which that is held to be so.
    pub(super) kept: (u32, u32),
}

impl Aside {
    /// Nothing, if that is what it says.
    fn boxed(self) -> Option<Box<Self>> {
        (self != Self::default()).then(|| Box::new(self))
    }

    /// That of a part of a region, so many pages of all: it is to be counted anew.
    pub(super) fn part(whole: Option<&Self>, pages: u64, of: u64) -> Option<Box<Self>> {
        let (kept, until) = whole?.kept;
        let kept = short(u64::from(kept) * pages / of.max(1));
        let part = Self {
            counting: None,
            kept: if kept > 0 { (kept, until) } else { (0, 0) },
        };
        part.boxed()
    }

    /// That of two regions together: they are to be counted anew.
    pub(super) fn join(one: Option<&Self>, other: Option<&Self>) -> Option<Box<Self>> {
        let (a, b) = (
            one.map_or((0, 0), |a| a.kept),
            other.map_or((0, 0), |a| a.kept),
        );
        let joined = Self {
            counting: None,
            kept: (a.0.saturating_add(b.0), a.1.max(b.1)),
        };
        joined.boxed()
    }
}

impl Region {
    /// Changes what is kept aside.
    pub(super) fn aside_mut(&mut self, change: impl FnOnce(&mut Aside)) {
        let mut aside = self.aside.take().unwrap_or_default();
        change(&mut aside);
        self.aside = Some(aside).filter(|aside| **aside != Aside::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_regions_fit_into_200_mb() {
        assert!(size_of::<Region>() <= 128, "{} bytes", size_of::<Region>());
    }
}
