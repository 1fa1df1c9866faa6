//! What the workload says of itself: one JSON object per line on stdout. The
//! demo and the tests read the same types.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::units::{Bytes, NodeId, PageRange};

/// A count per node, as `{"0": 12, "3": 5}`. Nodes without any are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, u64>", into = "BTreeMap<String, u64>")]
pub struct ByNode(BTreeMap<NodeId, u64>);

impl ByNode {
    /// Of one node.
    pub fn get(&self, node: NodeId) -> u64 {
        self.0.get(&node).copied().unwrap_or(0)
    }

    /// Of all nodes.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// The part of it that these nodes have; `None` of nothing.
    pub fn share(&self, nodes: &[NodeId]) -> Option<f64> {
        let part: u64 = nodes.iter().map(|&n| self.get(n)).sum();
        let total = self.total();
        (total > 0).then(|| part as f64 / total as f64)
    }

    /// Adds to one node.
    pub fn add(&mut self, node: NodeId, count: u64) {
        if count > 0 {
            *self.0.entry(node).or_default() += count;
        }
    }

    /// Adds all of another.
    pub fn add_all(&mut self, other: &Self) {
        for (&node, &count) in &other.0 {
            self.add(node, count);
        }
    }

    /// Nodes with their counts, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, u64)> + '_ {
        self.0.iter().map(|(&node, &count)| (node, count))
    }
}

impl TryFrom<BTreeMap<String, u64>> for ByNode {
    type Error = std::num::ParseIntError;

    fn try_from(map: BTreeMap<String, u64>) -> Result<Self, Self::Error> {
        map.into_iter()
            .map(|(node, count)| Ok((NodeId(node.parse()?), count)))
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

impl From<ByNode> for BTreeMap<String, u64> {
    fn from(by_node: ByNode) -> Self {
        by_node
            .0
            .into_iter()
            .map(|(node, count)| (node.to_string(), count))
            .collect()
    }
}

/// Pages of one hotness.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassLine {
    /// Each page once in so many seconds; 0: swept all the time.
    pub period_seconds: f64,
    /// Its pages.
    pub ranges: Vec<PageRange>,
}

/// One line of the workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Line {
    /// Everything is touched; the phases begin now, or when told to.
    Ready {
        /// This process.
        pid: u32,
        /// The buffer.
        range: PageRange,
        /// Where its pages of 4 KiB are.
        pages: ByNode,
        /// For ballast: what it left free on its node.
        free: Option<Bytes>,
    },
    /// A phase begins.
    Phase {
        /// From 1.
        phase: u32,
        /// Since the first phase began.
        elapsed_seconds: f64,
        /// What is hot in it.
        classes: Vec<ClassLine>,
    },
    /// About once per second.
    Sample {
        /// Since the first phase began.
        elapsed_seconds: f64,
        /// The phase now.
        phase: u32,
        /// Accesses since the last sample, by the node of the page touched.
        accesses: ByNode,
        /// Accesses per second since the last sample.
        accesses_per_second: f64,
        /// Where the pages of the hot classes are, together.
        hot_pages: ByNode,
        /// How long ago the oldest of these answers was asked for: how exact
        /// the attribution is.
        staleness_seconds: f64,
    },
    /// A phase is over.
    PhaseEnd {
        /// Which.
        phase: u32,
        /// Since the first phase began.
        elapsed_seconds: f64,
        /// All accesses of the phase.
        accesses: ByNode,
        /// Accesses in its last quarter; in all of it, where stdin ended it early.
        last_quarter: ByNode,
        /// Where the pages of the hot classes are, together.
        hot_pages: ByNode,
    },
    /// A word did not hold what was written to it.
    Mismatch {
        /// The page's place in the buffer.
        page: usize,
        /// The word's place in the page.
        word: usize,
        /// What was written last.
        expected: u64,
        /// What was found.
        found: u64,
    },
    /// The last line.
    End {
        /// Since the first phase began.
        elapsed_seconds: f64,
        /// Accesses of all phases; for `verify`: pages checked.
        accesses: ByNode,
        /// Words that did not hold what was written to them.
        mismatches: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::VirtAddr;

    fn by_node(counts: &[(u32, u64)]) -> ByNode {
        let mut all = ByNode::default();
        for &(node, count) in counts {
            all.add(NodeId(node), count);
        }
        all
    }

    #[test]
    fn lines_survive_the_pipe() {
        let range = PageRange::new(VirtAddr(0x7f00_0000_0000), VirtAddr(0x7f00_4000_0000)).unwrap();
        for line in [
            Line::Ready {
                pid: 7,
                range,
                pages: by_node(&[(3, 262_144)]),
                free: None,
            },
            Line::Phase {
                phase: 1,
                elapsed_seconds: 0.0,
                classes: vec![ClassLine {
                    period_seconds: 0.0,
                    ranges: vec![range],
                }],
            },
            Line::End {
                elapsed_seconds: 1.5,
                accesses: by_node(&[(0, 1), (12, 2)]),
                mismatches: 0,
            },
        ] {
            let text = serde_json::to_string(&line).unwrap();
            assert_eq!(serde_json::from_str::<Line>(&text).unwrap(), line, "{text}");
        }
    }

    #[test]
    fn shares_are_of_all_nodes() {
        let counts = by_node(&[(0, 90), (3, 10)]);
        assert_eq!(counts.share(&[NodeId(0)]), Some(0.9));
        assert_eq!(counts.share(&[NodeId(0), NodeId(3)]), Some(1.0));
        assert_eq!(counts.share(&[NodeId(1)]), Some(0.0));
        assert_eq!(ByNode::default().share(&[NodeId(0)]), None);
    }
}
