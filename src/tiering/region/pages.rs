//! Where the pages of a region are.

use super::short;
use crate::units::NodeId;

/// Pages of one region per node, ascending by node.
///
/// Nearly all regions lie on one node, and there are a million of them: the
/// first node stands in the region itself, and only more than one needs memory
/// of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pages {
    /// The first node that has any; none has if the count is zero. Up to 16 TiB of one
    /// region, in half the room.
    first: (NodeId, u32),
    /// The others.
    rest: Option<Box<Rest>>,
}

const NOWHERE: (NodeId, u32) = (NodeId(0), 0);

/// Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rest(Vec<(NodeId, u64)>);

impl Default for Pages {
    fn default() -> Self {
        Self {
            first: NOWHERE,
            rest: None,
        }
    }
}

impl Pages {
    /// From counts in any order; a node may occur more than once.
    pub fn from_counts(counts: &[(NodeId, u64)]) -> Self {
        let mut pages = Self::default();
        for &(node, count) in counts {
            pages.add(node, count);
        }
        pages
    }

    fn rest(&self) -> &[(NodeId, u64)] {
        self.rest.as_ref().map_or(&[], |rest| &rest.0)
    }

    /// On one node.
    pub fn on(&self, node: NodeId) -> u64 {
        self.iter()
            .find(|(n, _)| *n == node)
            .map_or(0, |(_, count)| count)
    }

    /// On all nodes: the pages that are present.
    pub fn total(&self) -> u64 {
        self.iter().map(|(_, count)| count).sum()
    }

    /// Each node that has any, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, u64)> + '_ {
        let (node, count) = self.first;
        let first = (count > 0).then_some((node, count.into()));
        first.into_iter().chain(self.rest().iter().copied())
    }

    /// `count` more on `node`.
    pub fn add(&mut self, node: NodeId, count: u64) {
        if count == 0 {
            return;
        }
        if self.first.1 == 0 {
            self.first = (node, short(count));
            return;
        }
        if node == self.first.0 {
            self.first.1 = self.first.1.saturating_add(short(count));
            return;
        }
        // What stands first gives way to a node before it.
        let (node, count) = if node < self.first.0 {
            let (node, count) = std::mem::replace(&mut self.first, (node, short(count)));
            (node, count.into())
        } else {
            (node, count)
        };
        let rest = &mut self
            .rest
            .get_or_insert_with(|| Box::new(Rest(Vec::new())))
            .0;
        match rest.binary_search_by_key(&node, |&(n, _)| n) {
            Ok(at) => rest[at].1 += count,
            Err(at) => rest.insert(at, (node, count)),
        }
    }

    /// `count` pages go from one node to another, as far as there are any.
    pub fn shift(&mut self, from: NodeId, to: NodeId, count: u64) {
        let count = count.min(self.on(from));
        if count > 0 && from != to {
            self.take(from, count);
            self.add(to, count);
        }
    }

    /// There are no more than `most` on `node`. Returns whether more were held to be.
    pub fn cap(&mut self, node: NodeId, most: u64) -> bool {
        let surplus = self.on(node).saturating_sub(most);
        if surplus > 0 {
            self.take(node, surplus);
        }
        surplus > 0
    }

    /// `count` fewer on a node that has so many.
    fn take(&mut self, node: NodeId, count: u64) {
        if node == self.first.0 {
            self.first.1 -= short(count);
            if self.first.1 > 0 {
                return;
            }
            self.first = NOWHERE;
            if let Some(mut rest) = self.rest.take() {
                let (node, count) = rest.0.remove(0);
                self.first = (node, short(count));
                self.rest = Some(rest).filter(|rest| !rest.0.is_empty());
            }
            return;
        }
        if let Some(mut rest) = self.rest.take() {
            if let Some(there) = rest.0.iter_mut().find(|(n, _)| *n == node) {
                there.1 -= count;
            }
            rest.0.retain(|&(_, count)| count > 0);
            self.rest = Some(rest).filter(|rest| !rest.0.is_empty());
        }
    }

    /// The share `part/whole` of it, and the rest. Rounded per node; nothing
    /// is lost.
    pub(super) fn divide(&self, part: u64, whole: u64) -> (Self, Self) {
        let (mut first, mut second) = (Self::default(), Self::default());
        for (node, count) in self.iter() {
            let share = u128::from(count) * u128::from(part) / u128::from(whole.max(1));
            let share = u64::try_from(share).unwrap_or(count).min(count);
            first.add(node, share);
            second.add(node, count - share);
        }
        (first, second)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// As a plain map would have it, whatever is done, and in one form only.
        #[test]
        fn pages_are_a_map(
            steps in prop::collection::vec((0_u32..4, 0_u32..4, 0_u64..5, 0..3), 0..40),
        ) {
            let (mut pages, mut plain) = (Pages::default(), BTreeMap::<NodeId, u64>::new());
            for (from, to, count, step) in steps {
                let (from, to) = (NodeId(from), NodeId(to));
                if step == 0 {
                    pages.add(to, count);
                    *plain.entry(to).or_default() += count;
                } else if step == 1 {
                    let there = plain.entry(from).or_default();
                    prop_assert_eq!(pages.cap(from, count), *there > count);
                    *there = count.min(*there);
                } else {
                    pages.shift(from, to, count);
                    let there = plain.entry(from).or_default();
                    let count = count.min(*there);
                    *there -= count;
                    *plain.entry(to).or_default() += count;
                }
                plain.retain(|_, count| *count > 0);
                let list: Vec<_> = plain.iter().map(|(&node, &count)| (node, count)).collect();
                prop_assert_eq!(pages.iter().collect::<Vec<_>>(), list.clone());
                prop_assert_eq!(pages.total(), list.iter().map(|(_, count)| count).sum::<u64>());
                prop_assert_eq!(&pages, &Pages::from_counts(&list));
            }
        }
    }
}
