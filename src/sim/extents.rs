//! Where the pages of a process are, as runs of pages on one node: a terabyte
//! that lies in one piece costs as much as a page.
//!
//! **Properties** (proptest below): as a map with an entry per page has it,
//! whatever is moved; runs that touch on one node are one.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::units::NodeId;

/// Runs of pages, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Extents {
    /// First page: one past the last, and the node. Disjoint.
    runs: BTreeMap<u64, (u64, NodeId)>,
}

impl Extents {
    /// `pages`, which are nowhere yet, are on one node.
    pub(super) fn add(&mut self, pages: Range<u64>, node: NodeId) {
        if pages.is_empty() {
            return;
        }
        self.runs.insert(pages.start, (pages.end, node));
        self.join(pages.start);
        self.join(pages.end);
    }

    /// The node of a page.
    pub(super) fn node(&self, page: u64) -> Option<NodeId> {
        let (_, &(end, node)) = self.runs.range(..=page).next_back()?;
        (page < end).then_some(node)
    }

    /// The runs within `pages`, cut to it, ascending.
    pub(super) fn within(&self, pages: Range<u64>) -> impl Iterator<Item = (Range<u64>, NodeId)> {
        let before = self.runs.range(..=pages.start).next_back();
        let first = before.map_or(pages.start, |(&start, _)| start);
        self.runs
            .range(first..pages.end.max(first))
            .map(move |(&start, &(end, node))| (start.max(pages.start)..end.min(pages.end), node))
            .filter(|(run, _)| !run.is_empty())
    }

    /// Those of `pages` that are anywhere go to `node`.
    pub(super) fn set(&mut self, pages: Range<u64>, node: NodeId) {
        if pages.is_empty() {
            return;
        }
        let pieces: Vec<Range<u64>> = self.within(pages.clone()).map(|(run, _)| run).collect();
        self.cut(pages.start);
        self.cut(pages.end);
        for piece in &pieces {
            self.runs.insert(piece.start, (piece.end, node));
        }
        for piece in pieces {
            self.join(piece.start);
            self.join(piece.end);
        }
    }

    /// No run goes on over `page` any more.
    fn cut(&mut self, page: u64) {
        if let Some((&start, &(end, node))) = self.runs.range(..page).next_back()
            && page < end
        {
            self.runs.insert(start, (page, node));
            self.runs.insert(page, (end, node));
        }
    }

    /// The runs that end and begin at `page` become one, if they are alike.
    fn join(&mut self, page: u64) {
        let Some((&before, &(reach, left))) = self.runs.range(..page).next_back() else {
            return;
        };
        if let Some(&(end, right)) = self.runs.get(&page)
            && reach == page
            && left == right
        {
            self.runs.remove(&page);
            self.runs.insert(before, (end, left));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn extents_are_a_map_of_pages(
            moves in prop::collection::vec((0_u64..70, 0_u64..30, 0_u32..3), 0..30),
        ) {
            let mut extents = Extents::default();
            extents.add(30..64, NodeId(3));
            extents.add(5..30, NodeId(3));
            let mut plain: BTreeMap<u64, NodeId> = (5..64).map(|page| (page, NodeId(3))).collect();
            for (first, count, node) in moves {
                extents.set(first..first + count, NodeId(node));
                for (_, on) in plain.range_mut(first..first + count) {
                    *on = NodeId(node);
                }
                for page in 0..100 {
                    prop_assert_eq!(extents.node(page), plain.get(&page).copied());
                }
                let runs: Vec<_> = extents.within(0..100).collect();
                let alike = |pair: &[(Range<u64>, NodeId)]| {
                    pair[0].0.end == pair[1].0.start && pair[0].1 == pair[1].1
                };
                prop_assert!(!runs.windows(2).any(alike), "{:?}", runs);
                let part: u64 = extents.within(20..40).map(|(run, _)| run.end - run.start).sum();
                prop_assert_eq!(part, plain.range(20..40).count() as u64);
            }
        }
    }
}
