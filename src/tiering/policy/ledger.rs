//! Room per node, as a plan fills and empties it.

use std::collections::BTreeMap;

use super::View;
use crate::tiering::tier::Rank;
use crate::units::{Bytes, NodeId};

/// Bytes that can still go to each node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger(BTreeMap<NodeId, Bytes>);

impl Ledger {
    /// What is free now.
    pub fn free(view: &View<'_>) -> Self {
        Self(view.room.iter().copied().collect())
    }

    /// What the targets could have altogether: free, or theirs already.
    pub fn capacity(view: &View<'_>) -> Self {
        let mut ledger = Self::free(view);
        for target in &view.targets {
            for region in target.regions {
                for (node, pages) in region.pages().iter() {
                    ledger.give(node, Bytes::from_pages(pages));
                }
            }
        }
        ledger
    }

    /// Room on one node.
    pub fn on(&self, node: NodeId) -> Bytes {
        self.0.get(&node).copied().unwrap_or_default()
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
        *self.0.entry(node).or_default() += bytes;
    }

    /// Less room, never below none.
    pub fn take(&mut self, node: NodeId, bytes: Bytes) {
        let room = self.0.entry(node).or_default();
        *room = room.saturating_sub(bytes);
    }
}
