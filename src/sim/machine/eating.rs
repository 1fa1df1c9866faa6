//! Others who allocate on a node, and cannot go elsewhere.

use super::Machine;
use crate::ports::Keep;
use crate::tiering::shortage::Glance;
use crate::units::{Bandwidth, Bytes, Nanos, NodeId};

/// A program that is bound to a node and touches new memory there, steadily.
#[derive(Clone, Copy, Debug)]
pub struct Eater {
    /// Where.
    pub node: NodeId,
    /// From when on.
    pub from: Nanos,
    /// How fast.
    pub rate: Bandwidth,
    /// How much in all.
    pub bytes: Bytes,
    /// What it has.
    pub has: Bytes,
    /// Whether the node was full when it wanted more: the kernel would have ended a program.
    pub starved: bool,
}

impl Eater {
    /// One that has nothing yet.
    pub fn new(node: NodeId, from: Nanos, rate: Bandwidth, bytes: Bytes) -> Self {
        Self {
            node,
            from,
            rate,
            bytes,
            has: Bytes::ZERO,
            starved: false,
        }
    }
}

impl Machine {
    /// One more.
    pub fn add_eater(&mut self, eater: Eater) {
        self.eaters.push(eater);
    }

    /// All of them, as of now.
    pub fn eaters(&mut self) -> &[Eater] {
        self.eat();
        &self.eaters
    }

    /// They take what they want until now.
    pub(in crate::sim) fn eat(&mut self) {
        for at in 0..self.eaters.len() {
            let mut eater = self.eaters[at];
            let passed = self.now.saturating_sub(eater.from);
            let wanted = eater.rate.over(passed).min(eater.bytes);
            let more = wanted.pages().saturating_sub(eater.has.pages());
            let got = more.min(self.room(eater.node));
            *self.used.entry(eater.node).or_default() += got;
            eater.has += Bytes::from_pages(got);
            eater.starved |= got < more;
            self.eaters[at] = eater;
        }
    }

    /// What a node has free now.
    pub(in crate::sim) fn glance(&mut self, node: NodeId) -> Option<Glance> {
        self.eat();
        let total = *self.capacity.get(&node)?;
        Some(Glance {
            node,
            total: Bytes::from_pages(total),
            room: Bytes::from_pages(self.room(node)),
        })
    }

    /// Whether others need the memory of a node now, so that a turn of moves ends.
    pub(in crate::sim) fn is_short(&mut self) -> bool {
        self.eat();
        let mut keeps = self.keeps.iter();
        keeps.any(|keep| Bytes::from_pages(self.room(keep.node)) < keep.ends_below)
    }

    /// Pages that may be moved to a node.
    pub(super) fn room_to_fill(&self, node: NodeId) -> u64 {
        let of_node = |keep: &&Keep| keep.node == node;
        let kept = self.keeps.iter().find(of_node);
        let kept = kept.map_or(0, |keep| keep.free.pages());
        self.room(node).saturating_sub(kept)
    }
}
