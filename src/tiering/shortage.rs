//! What a node that targets fill lacks of free memory between two decisions, and who gives it back.
//!
//! **Unit.** Bytes beyond the kernel's watermarks, free or page cache that the kernel gives back at
//! once: what others can still have of a node. Rates are bytes per second.
//!
//! **Problem.** A program that may allocate on one node only (`mbind`, a cpuset) cannot go elsewhere when that
//! node is full: the kernel ends a program, and mostly the largest there, which is the target whose memory we
//! brought. That takes a second or two, and an epoch is up to a minute.
//!
//! **Approach.** Between two decisions nodes with targets' memory are looked at once a second, and up to ten times
//! where a burst of [`BURST`] would soon have used up what is left ([`Watch::next`]). What a
//! node is to have free at least is what such a burst takes until we have looked and begun to move
//! ([`least`]); the room for promotions ends above it. Where a quarter of a second of what others take now would leave
//! less than seven eighths of that, what is cold leaves until all of it is there; less than half, what is hot leaves as
//! well, until three quarters are ([`Watch::lacks`]). A node that had less when we came is owed no more than that: who
//! fills it did so without us. Who leaves, and whereto: [`leaving`].
//! After that nothing is promoted to the node for half a minute, and longer each time ([`Rests`]).
//!
//! **Limits.** A burst that takes more than pages can be moved. Memory that cannot leave: locked by
//! configuration, pinned, or with every other node full. Nobody can tell who is bound to the node and who could as
//! well go elsewhere, so hot memory makes room for either.
//!
//! **Properties** (tests below and of [`leaving`]): nothing is lacking where a burst leaves enough; what is cold goes
//! before what is hot; never more than is lacking but for a folio, nor to a node without room.

pub mod leaving;

use super::plan::{MoveOutcome, Reason};
use super::rest::{REST, Rest};
use crate::units::{Bandwidth, Bytes, Nanos, NodeId};

/// What is held to take no more, all others together, before it was looked at.
pub const BURST: Bandwidth = Bandwidth(100 << 20);
/// From when it begins to when we have looked and have begun to move.
const REACTION: Nanos = Nanos::from_millis(500);
/// On a small node one in so many bytes at most is kept for it.
const PART: u64 = 8;
/// A node that never had more than one in so many bytes of what it is to have is owed none.
const LITTLE: u64 = 4;
/// Looks are no less than this apart.
pub const SOONEST: Nanos = Nanos::from_millis(100);
/// The same, at most.
pub const LATEST: Nanos = Nanos::from_secs(1);
/// Between two looks while room is being made.
const BESIDE: Nanos = Nanos::from_millis(20);
/// What others take is told from looks that are so far apart.
const TOLD_BY: Nanos = Nanos::from_millis(50);
/// Seconds for which they are held to go on.
const AHEAD: f64 = 0.25;
/// Seconds after which what they took counts half.
const HALF_LIFE: f64 = 0.5;
/// An episode ends when nothing was lacking for so long.
pub const CALM: Nanos = REST;

/// What is to stay free on a node of this size, however short an epoch's own headroom is.
pub fn least(total: Bytes) -> Bytes {
    BURST.over(REACTION).min(Bytes(total.0 / PART))
}

/// A node's memory at a glance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glance {
    /// Which.
    pub node: NodeId,
    /// All that the kernel manages there.
    pub total: Bytes,
    /// What others can have before the kernel's watermarks are touched.
    pub room: Bytes,
}

/// What is lacking on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lack {
    /// Where.
    pub node: NodeId,
    /// What is cold goes for it until so much is there.
    pub cold: Bytes,
    /// What is hot as well until so much is; no more than `cold`.
    pub hot: Bytes,
}

/// A node that is being watched.
#[derive(Clone, Copy, Debug)]
struct Watched {
    now: Glance,
    /// What it was when that was told apart last, and what we made of it since.
    before: (Nanos, Bytes),
    given: Bytes,
    /// What others take per second.
    taken: f64,
    /// The most that it was seen to have: of a node that never had more than a little nothing more is owed.
    most: Bytes,
    /// What it was before tells nothing of others.
    is_new: bool,
    /// Nothing more can leave it.
    is_stuck: bool,
}

impl Watched {
    fn new(at: Nanos, glance: Glance) -> Self {
        Self {
            now: glance,
            before: (at, glance.room),
            given: Bytes::ZERO,
            taken: 0.0,
            most: glance.room,
            is_new: false,
            is_stuck: false,
        }
    }

    fn follow(&mut self, at: Nanos, glance: Glance) {
        self.now = glance;
        self.most = self.most.max(glance.room);
        if std::mem::take(&mut self.is_new) {
            (self.before, self.given) = ((at, glance.room), Bytes::ZERO);
            return;
        }
        let passed = at.saturating_sub(self.before.0);
        if passed < TOLD_BY {
            return;
        }
        let seconds = passed.as_secs_f64();
        let gone = (self.before.1 + self.given).as_f64() - glance.room.as_f64();
        let of_late = self.taken * 0.5_f64.powf(seconds / HALF_LIFE);
        self.taken = (gone / seconds).max(of_late);
        self.before = (at, glance.room);
        self.given = Bytes::ZERO;
    }

    /// What others are going to take until we can have reacted: no more than is ever kept for it.
    fn ahead(&self) -> Bytes {
        let most = Bytes(self.now.total.0 / PART);
        floored(self.taken * AHEAD).min(most)
    }

    /// What it is to have, if it ever had as much; of little nothing: that goes up and down by itself.
    fn owed(&self, least: Bytes) -> Bytes {
        if self.most.0 < least.0 / LITTLE {
            Bytes::ZERO
        } else {
            least.min(self.most)
        }
    }

    fn lack(&self, least: Bytes) -> Option<Lack> {
        let least = self.owed(least);
        if least.is_zero() {
            return None;
        }
        let ahead = self.ahead();
        let until = |wanted: u64| Bytes(wanted + ahead.0).saturating_sub(self.now.room);
        // No more than an eighth is missed: what is free goes up and down by itself.
        let lacks = |share: u64| self.now.room.0 < least.0 / 8 * share + ahead.0;
        lacks(7).then(|| Lack {
            node: self.now.node,
            cold: until(least.0),
            hot: if lacks(4) {
                until(least.0 / 4 * 3)
            } else {
                Bytes::ZERO
            },
        })
    }

    fn next(&self, at: Nanos, least: Bytes) -> Nanos {
        if self.is_stuck {
            return at + LATEST;
        }
        if self.lack(least).is_some_and(|lack| !lack.hot.is_zero()) {
            return at + BESIDE;
        }
        let left = (self.now.room).saturating_sub(Bytes(self.owed(least).0 / 2));
        let rate = BURST.0.max(floored(2.0 * self.taken).0);
        let seconds = left.as_f64() / rate as f64;
        at + Nanos::from_secs_f64(seconds).clamp(SOONEST, LATEST)
    }
}

/// Nodes between two decisions.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    nodes: Vec<Watched>,
    /// When they were looked at last.
    at: Nanos,
}

impl Watch {
    /// These from now on; what is known of those that stay is kept. What could not leave may now.
    pub fn only(&mut self, nodes: &[NodeId]) {
        self.nodes.retain(|of| nodes.contains(&of.now.node));
        for of in &mut self.nodes {
            of.is_stuck = false;
        }
    }

    /// What they are like at this time.
    pub fn follow(&mut self, at: Nanos, glances: &[Glance]) {
        self.at = at;
        for &glance in glances {
            let node = glance.node;
            match self.nodes.iter_mut().find(|of| of.now.node == node) {
                Some(of) => of.follow(at, glance),
                None => self.nodes.push(Watched::new(at, glance)),
            }
        }
    }

    /// So much left a node for it.
    pub fn gave(&mut self, node: NodeId, bytes: Bytes) {
        if let Some(of) = self.nodes.iter_mut().find(|of| of.now.node == node) {
            of.given += bytes;
            of.now.room += bytes;
        }
    }

    /// Nothing of a node can leave it, until the next decision.
    pub fn stuck(&mut self, node: NodeId) {
        if let Some(of) = self.nodes.iter_mut().find(|of| of.now.node == node) {
            of.is_stuck = true;
        }
    }

    /// We moved memory ourselves: what went or came since the last look is not what others took.
    pub fn forget_taken(&mut self) {
        for of in &mut self.nodes {
            of.is_new = true;
        }
    }

    /// When to look again; `None` where nothing is watched. `least` says what a node of some size keeps.
    pub fn next(&self, least: impl Fn(Bytes) -> Bytes) -> Option<Nanos> {
        let all = self.nodes.iter();
        all.map(|of| of.next(self.at, least(of.now.total))).min()
    }

    /// What is lacking, of nodes that something can leave.
    pub fn lacks(&self, least: impl Fn(Bytes) -> Bytes) -> Vec<Lack> {
        let all = self.nodes.iter().filter(|of| !of.is_stuck);
        all.filter_map(|of| of.lack(least(of.now.total))).collect()
    }

    /// What a node had when it was looked at last, and what others take of it per second.
    pub fn state_of(&self, node: NodeId) -> Option<(Bytes, Bandwidth)> {
        let of = self.nodes.iter().find(|of| of.now.node == node)?;
        Some((of.now.room, Bandwidth(floored(of.taken).0)))
    }

    /// What a node is to have, if it ever had as much; nothing where nothing can leave it.
    pub fn owed(&self, node: NodeId, least: impl Fn(Bytes) -> Bytes) -> Bytes {
        let mut able = self.nodes.iter().filter(|of| !of.is_stuck);
        let of = able.find(|of| of.now.node == node);
        of.map_or(Bytes::ZERO, |of| of.owed(least(of.now.total)))
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn floored(bytes: f64) -> Bytes {
    // Negative ones are none, and none is as large as its type.
    Bytes(bytes.max(0.0) as u64)
}

/// Nodes that nothing is promoted to for now, since what was there had to make room.
#[derive(Clone, Debug, Default)]
pub struct Rests {
    at: Nanos,
    of: Vec<(NodeId, Rest)>,
}

impl Rests {
    /// What was done in the epoch that ends at this time.
    pub fn follow(&mut self, at: Nanos, outcome: &MoveOutcome) {
        self.at = at;
        for result in &outcome.results {
            let asked = &result.asked;
            if asked.reason != Reason::Shortage || result.pages.moved == 0 {
                continue;
            }
            let found = self.of.iter().position(|(node, _)| *node == asked.from);
            let rest = found.unwrap_or_else(|| {
                self.of.push((asked.from, Rest::default()));
                self.of.len() - 1
            });
            self.of[rest].1.begin(at);
        }
    }

    /// Whether nothing is promoted to it.
    pub fn holds(&self, node: NodeId) -> bool {
        let mut of = self.of.iter().filter(|(n, _)| *n == node);
        of.any(|(_, rest)| rest.is_on(self.at))
    }

    /// All of these.
    pub fn nodes(&self) -> Vec<NodeId> {
        let on = self.of.iter().filter(|(_, rest)| rest.is_on(self.at));
        on.map(|(node, _)| *node).collect()
    }
}

#[cfg(test)]
#[path = "shortage_tests.rs"]
mod tests;
