//! Room per node, as a plan fills and empties it.

use super::View;
use crate::tiering::tier::Rank;
use crate::units::{Bytes, NodeId};

/// Bytes that can still go to each node. Of these there are few, and it is asked for each
/// of a million regions: a list is searched sooner than a tree.
#[derive(Clone, Debug, Default)]
pub struct Ledger(Vec<(NodeId, Bytes)>);

impl Ledger {
    /// What is free now.
    pub fn free(view: &View<'_>) -> Self {
        Self(view.room.clone())
    }

    /// Page cache that may make more room.
    pub fn cache(view: &View<'_>) -> Self {
        Self(view.cache.clone())
    }

    /// Room on one node.
    pub fn on(&self, node: NodeId) -> Bytes {
        let mut entries = self.0.iter();
        entries
            .find(|(n, _)| *n == node)
            .map_or(Bytes::ZERO, |(_, bytes)| *bytes)
    }

    /// The node of a rank with the most room, the nearest among equals.
    pub fn roomiest(&self, rank: &Rank) -> Option<(NodeId, Bytes)> {
        let mut best: Option<(NodeId, Bytes)> = None;
        for &node in &rank.nodes {
            let room = self.on(node);
            if best.is_none_or(|(_, most)| room > most) {
                best = Some((node, room));
            }
        }
        best.filter(|(_, room)| !room.is_zero())
    }

    /// More room.
    pub fn give(&mut self, node: NodeId, bytes: Bytes) {
        *self.entry(node) += bytes;
    }

    /// Less room, never below none.
    pub fn take(&mut self, node: NodeId, bytes: Bytes) {
        let room = self.entry(node);
        *room = room.saturating_sub(bytes);
    }

    fn entry(&mut self, node: NodeId) -> &mut Bytes {
        let at = self.0.iter().position(|(n, _)| *n == node);
        let at = at.unwrap_or_else(|| {
            self.0.push((node, Bytes::ZERO));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }
}
