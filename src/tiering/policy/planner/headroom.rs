//! Headroom that allocations have used up, given back by what is cold.
//!
//! **Unit.** Bytes.
//!
//! **Problem.** What a program allocates lies on the fastest node as long as that has free
//! memory, and what is new is mostly hot. No promotion takes the last of it, but allocations
//! do: those that come next lie on a slow node until they were seen to be hot, and moved.
//!
//! **Approach.** Exchanges come first: what is hot now gains more than what may be allocated.
//! What they leave of the bytes of an epoch may go for headroom, up to a part of all. Of each
//! node that is the fastest of a target, and lacks headroom, what is worth least goes to the
//! next slower rank with room, until nothing is lacking. Nobody waits for its place yet. So
//! it has to be cold beyond doubt: too cold to be promoted, also if it were half as far off again
//! as is allowed in an exchange; and so little waited for that it would not pay to
//! bring it back, at the price that promotions have, in all of the time that is looked
//! ahead. What was moved back of late stays, as does what was just promoted. What is given
//! back is no room, for nobody.
//!
//! **Properties** (tests of [`adaptive`](super::super::adaptive)): nothing hot goes, nothing
//! goes where nothing is lacking; no more goes than may, nor than is lacking but for a
//! folio. What stays cold goes once.

use super::{Place, Planner, View};
use crate::tiering::plan::Reason;
use crate::units::{Bytes, NodeId};

impl Planner<'_, '_> {
    /// Demotes what is cold on nodes that lack headroom.
    pub(super) fn restore_headroom(&mut self) {
        let (view, idle) = (self.view, self.idle);
        for &(node, lacking) in &view.lacking {
            let is_first = |view: &View<'_>, at: usize| {
                let first = view.targets[at].tiers.ranks().first();
                first.is_some_and(|rank| rank.nodes.contains(&node))
            };
            // Where it answers late allocations had better lie elsewhere.
            let mut all = 0..view.targets.len();
            if all.any(|at| is_first(view, at) && is_first(idle, at)) {
                self.restore_on(node, lacking);
            }
        }
    }

    fn restore_on(&mut self, node: NodeId, mut lacking: Bytes) {
        for at in 0..self.lists.coldest.len() {
            let most = self.terms.headroom.min(self.terms.left);
            if lacking.is_zero() || most.is_zero() {
                return;
            }
            let place = self.lists.coldest[at];
            // Without a look at the region, of which there may be a million.
            let only = self.worth.only_node(place);
            if !self.worth.is_idle(place) || only.is_some_and(|only| only != node) {
                continue;
            }
            let region = place.region_in(self.view);
            if region.pages().on(node) == 0 {
                continue;
            }
            let here = self.left_on(place, node);
            let Some((to, room)) = self.next_down(place, node) else {
                continue;
            };
            if self.is_missed(place, node, to) {
                continue;
            }
            // A folio leaves as a whole.
            let folio = region.folio_bytes();
            let lack = Bytes(lacking.0.div_ceil(folio) * folio);
            let most = Bytes(most.min(room).0 / folio * folio);
            let bytes = here.min(lack).min(most);
            if bytes.is_zero() {
                continue;
            }
            self.go(place, (node, to), bytes, Reason::Headroom);
            self.terms.headroom = self.terms.headroom.saturating_sub(bytes);
            lacking = lacking.saturating_sub(bytes);
        }
    }

    /// Whether it would pay to bring a region back from a slower node, in all of the time that
    /// is looked ahead.
    fn is_missed(&self, place: Place, node: NodeId, to: NodeId) -> bool {
        let settings = &self.worth.settings;
        let target = place.target_in(self.view);
        let longer = super::latency(target, to) - super::latency(target, node);
        let seconds = settings.horizon as f64 * self.view.interval.as_secs_f64();
        self.worth.mean(place) * longer * seconds >= settings.payback * self.terms.cost
    }
}

#[cfg(test)]
#[path = "headroom_tests.rs"]
mod tests;
