//! How much more a node bears that answers late already.
//!
//! **Unit.** Worth, as [`Worth`] has it: of all that lies on a node, what it is asked for.
//!
//! **Problem.** What is moved changes how late nodes answer, and by how much is not known
//! before. Without a bound all that is hot would go to the node that answers first now, which
//! then answers last.
//!
//! **Approach.** In one plan a node that answers late takes a part of what it is asked for, or
//! gives it up to a slower one: the less of it, the less sooner the other node answers. That part is halved when
//! what was moved last time has to go back, and grows slowly when more has to follow
//! ([`Steps`]). So both come to answer alike.
//!
//! **Properties** (tests of [`adaptive`](super::super::adaptive)): no plan moves more to or
//! off such a node; where all are idle there is no bound.

use super::{Candidate, Planner, latency};
use crate::tiering::plan::{Direction, Move, Reason};
use crate::tiering::policy::worth::Worth;
use crate::tiering::tier::Rank;
use crate::units::{Bytes, NodeId};

/// Part of what a node is asked for that one plan may change, at most and at least.
const STEP: f64 = 0.25;
const STEP_LEAST: f64 = STEP / 64.0;
/// By how much that part grows.
const GROWS: f64 = 1.2;
/// With such a factor, two and a half times as late as idle, a node has next to no bandwidth
/// left: what comes to it then only delays what is there, unless the node that it comes from
/// has even less.
const EXHAUSTED: f64 = 2.0;
/// A node is held to be asked for this share of all at least: others may ask it, too.
const LEAST: f64 = 1.0 / 16.0;

/// How large a step each node is good for.
#[derive(Clone, Debug, Default)]
pub(in crate::tiering::policy) struct Steps(Vec<Step>);

#[derive(Clone, Debug)]
struct Step {
    node: NodeId,
    part: f64,
    /// Whether something came to it last time, or left it; `None`: neither.
    came: Option<bool>,
}

impl Steps {
    fn of(&self, node: NodeId) -> f64 {
        let found = self.0.iter().find(|step| step.node == node);
        found.map_or(STEP, |step| step.part)
    }

    /// What a plan moves to and off nodes of which these answer late.
    pub(in crate::tiering::policy) fn follow(&mut self, loaded: &[(NodeId, f64)], moves: &[Move]) {
        for &(node, _) in loaded {
            if !self.0.iter().any(|step| step.node == node) {
                let (part, came) = (STEP, None);
                self.0.push(Step { node, part, came });
            }
        }
        for step in &mut self.0 {
            let sum = |is: fn(&Move, NodeId) -> bool| -> Bytes {
                // What gives way is cold, and changes nothing.
                let hot = |m: &&Move| matches!(m.reason, Reason::Hot | Reason::Spread);
                let moves = moves.iter().filter(hot).filter(|m| is(m, step.node));
                moves.map(|m| m.limit).sum()
            };
            let (came, left) = (sum(|m, node| m.to == node), sum(|m, node| m.from == node));
            let way = (came != left).then_some(came > left);
            step.part = if way.is_some() && step.came.is_some_and(|before| Some(before) != way) {
                (step.part / 2.0).max(STEP_LEAST)
            } else {
                (step.part * GROWS).min(STEP)
            };
            step.came = way.or(step.came);
        }
    }
}

/// What may still come to each node that answers late, or leave it.
#[derive(Clone, Debug, Default)]
pub(super) struct Brink(Vec<(NodeId, f64)>);

impl Brink {
    pub(super) fn of(worth: &Worth<'_, '_>, steps: &Steps) -> Self {
        let least = LEAST * worth.all_traffic();
        let loaded = worth.view.loaded.iter();
        let of = |&(node, _): &(NodeId, f64)| {
            let asked = worth.traffic(node).max(least);
            (node, steps.of(node) * asked)
        };
        Self(loaded.map(of).collect())
    }

    fn left(&self, node: NodeId) -> f64 {
        let mut nodes = self.0.iter();
        let found = nodes.find(|(n, _)| *n == node);
        found.map_or(f64::INFINITY, |(_, left)| *left)
    }

    fn take(&mut self, node: NodeId, worth: f64) {
        if let Some((_, left)) = self.0.iter_mut().find(|(n, _)| *n == node) {
            *left -= worth;
        }
    }
}

impl Planner<'_, '_> {
    /// Bytes of a candidate that may go to a node.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub(super) fn bears(&self, candidate: Candidate, to: NodeId) -> Bytes {
        let left = self.brink.left(to).min(self.leaves(candidate, to));
        if left.is_infinite() {
            return Bytes(u64::MAX);
        }
        let factor = self.view.factor(to);
        if factor > EXHAUSTED && factor > self.view.factor(candidate.from) {
            return Bytes::ZERO;
        }
        let worth = self.asked_for(candidate, to);
        let folio = candidate.place.region_in(self.view).folio_bytes();
        // `as` saturates.
        Bytes((left / worth.max(f64::MIN_POSITIVE)) as u64 / folio * folio)
    }

    /// Whether all that may leave its node for slower ones has left it, without a look at the
    /// region, of which there may be a million.
    pub(super) fn has_given_up(&self, candidate: Candidate, better: &[Rank]) -> bool {
        let Candidate { place, from } = candidate;
        let mut all = better.iter().flat_map(|rank| &rank.nodes);
        self.brink.left(from) <= 0.0
            && all.all(|&to| self.way(place, from, to) == Direction::Demotion)
    }

    /// Notes that so much of it goes there.
    pub(super) fn borne(&mut self, candidate: Candidate, to: NodeId, bytes: Bytes) {
        if self.brink.0.is_empty() {
            return;
        }
        let worth = self.asked_for(candidate, to) * bytes.as_f64();
        self.brink.take(to, worth);
        if self.way(candidate.place, candidate.from, to) == Direction::Demotion {
            self.brink.take(candidate.from, worth);
        }
    }

    /// What may leave the node that it is on: any, where that is the slower one when idle.
    fn leaves(&self, Candidate { place, from }: Candidate, to: NodeId) -> f64 {
        match self.way(place, from, to) {
            Direction::Promotion => f64::INFINITY,
            Direction::Demotion => self.brink.left(from),
        }
    }

    /// What each byte of it counts for: more, the less sooner the other node answers.
    fn asked_for(&self, Candidate { place, from }: Candidate, to: NodeId) -> f64 {
        let target = place.target_in(self.view);
        let sooner = 1.0 - latency(target, to) / latency(target, from).max(1.0);
        self.worth.mean(place) / sooner.max(f64::MIN_POSITIVE)
    }
}

#[cfg(test)]
#[path = "brink_tests.rs"]
mod tests;
