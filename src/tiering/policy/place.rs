//! Regions of all targets, by their place in a view.

use super::{TargetView, View};
use crate::tiering::plan::{Move, Reason};
use crate::tiering::region::Region;
use crate::units::{Bytes, NodeId};

/// A region by its place in the view.
///
/// Small, since there may be a million of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) target: u32,
    pub(super) region: u32,
}

impl Place {
    pub(super) fn target_in<'a, 'v>(self, view: &'a View<'v>) -> &'a TargetView<'v> {
        &view.targets[self.target as usize]
    }

    pub(super) fn region_in<'v>(self, view: &View<'v>) -> &'v Region {
        &self.target_in(view).regions[self.region as usize]
    }

    /// A move of up to so much of it from one node to another.
    pub(super) fn moved(
        self,
        view: &View<'_>,
        (from, to): (NodeId, NodeId),
        limit: Bytes,
        reason: Reason,
    ) -> Move {
        let target = self.target_in(view);
        Move {
            target: target.id,
            pid: target.pid,
            range: self.region_in(view).range(),
            from,
            to,
            limit,
            direction: reason.direction(),
            reason,
        }
    }
}

/// Numbered as far as a [`Place`] can tell; of what would be beyond, some 8 PiB in
/// regions of 2 MiB, nothing is moved.
pub(super) fn numbered<T>(items: &[T]) -> impl Iterator<Item = (u32, &T)> {
    (0..u32::MAX).zip(items)
}
