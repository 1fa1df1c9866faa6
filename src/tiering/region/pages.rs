//! Where the pages of a region are.

use crate::units::NodeId;

/// Pages of one region per node, ascending by node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pages(Vec<(NodeId, u64)>);

impl Pages {
    /// From counts in any order; a node may occur more than once.
    pub fn from_counts(counts: &[(NodeId, u64)]) -> Self {
        let mut pages = Self::default();
        for &(node, count) in counts {
            pages.add(node, count);
        }
        pages
    }

    /// On one node.
    pub fn on(&self, node: NodeId) -> u64 {
        self.0
            .iter()
            .find(|(n, _)| *n == node)
            .map_or(0, |&(_, count)| count)
    }

    /// On all nodes: the pages that are present.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|&(_, count)| count).sum()
    }

    /// Each node that has any, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, u64)> + '_ {
        self.0.iter().copied()
    }

    /// `count` more on `node`.
    pub fn add(&mut self, node: NodeId, count: u64) {
        if count == 0 {
            return;
        }
        match self.0.binary_search_by_key(&node, |&(n, _)| n) {
            Ok(at) => self.0[at].1 += count,
            Err(at) => self.0.insert(at, (node, count)),
        }
    }

    /// `count` pages go from one node to another, as far as there are any.
    pub fn shift(&mut self, from: NodeId, to: NodeId, count: u64) {
        if let Ok(at) = self.0.binary_search_by_key(&from, |&(n, _)| n) {
            let count = count.min(self.0[at].1);
            self.0[at].1 -= count;
            if self.0[at].1 == 0 {
                self.0.remove(at);
            }
            self.add(to, count);
        }
    }

    /// The share `part/whole` of it, and the rest. Rounded per node; nothing
    /// is lost.
    pub(super) fn divide(&self, part: u64, whole: u64) -> (Self, Self) {
        let (mut first, mut second) = (Self::default(), Self::default());
        for &(node, count) in &self.0 {
            let share = u128::from(count) * u128::from(part) / u128::from(whole.max(1));
            let share = u64::try_from(share).unwrap_or(count).min(count);
            first.add(node, share);
            second.add(node, count - share);
        }
        (first, second)
    }
}
