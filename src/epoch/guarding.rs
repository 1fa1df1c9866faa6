//! Looking at nodes that targets fill while the loop waits, and having room given back there in time
//! ([`shortage`]).

use super::EpochLoop;
use crate::ports::{Keep, MoveLimits, PortError, Wake};
use crate::tiering::plan::{MoveOutcome, Plan};
use crate::tiering::shortage::leaving::Leaving;
use crate::tiering::shortage::{self, Lack, Watch};
use crate::units::{Bandwidth, Bytes, Nanos, NodeId};

/// So much makes room at a time, and then nodes are looked at again: a part is moved as soon as its pages were looked
/// up, however slow that is.
const PIECE: Bytes = Bytes::from_mib(4);
/// No further piece after so long, until what else is due was done; and none takes longer than that.
const TURN: Nanos = Nanos::from_millis(500);
const PIECE_TIME: Nanos = Nanos::from_secs(5);

/// What is remembered between two looks.
#[derive(Debug, Default)]
pub(super) struct Guard {
    watch: Watch,
    /// Those that are looked at, and all that memory may go to.
    nodes: Vec<NodeId>,
    all: Vec<NodeId>,
    /// When nodes are looked at again; `None`: nobody has anything there.
    next: Option<Nanos>,
    /// What may leave them; made when it is needed, once between two decisions.
    leaving: Option<Leaving>,
    episodes: Vec<Episode>,
}

/// A while in which others need a node's memory.
#[derive(Debug)]
struct Episode {
    node: NodeId,
    began: Nanos,
    last: Nanos,
    given: Bytes,
    /// Whether it was said that nothing can leave it.
    is_told: bool,
}

impl Guard {
    /// Memory was moved by a plan.
    pub(super) fn moved(&mut self) {
        self.watch.forget_taken();
        self.leaving = None;
        self.next = self.next.map(|_| Nanos::ZERO);
    }

    fn episode(&mut self, node: NodeId, now: Nanos) -> (&mut Episode, bool) {
        let found = self.episodes.iter().position(|of| of.node == node);
        let at = found.unwrap_or_else(|| {
            self.episodes.push(Episode {
                node,
                began: now,
                last: now,
                given: Bytes::ZERO,
                is_told: false,
            });
            self.episodes.len() - 1
        });
        (&mut self.episodes[at], found.is_none())
    }

    /// Says what became of those that are over.
    fn end_episodes(&mut self, now: Nanos) {
        self.episodes.retain(|of| {
            let goes_on = now < of.last + shortage::CALM;
            if !goes_on && !of.given.is_zero() {
                let took = of.last.saturating_sub(of.began);
                tracing::info!(
                    "node {}: {} of targets' memory made room for other programs within {:.1} s",
                    of.node,
                    of.given,
                    took.as_secs_f64()
                );
            }
            goes_on
        });
    }
}

impl EpochLoop {
    /// The nodes to be looked at until the next decision: where targets that may be moved have memory, or are to
    /// have some.
    pub(super) fn guard_nodes(&mut self, plan: &Plan) {
        let tiers = self.engine.tiers().tiers();
        let mut nodes: Vec<NodeId> = plan.moves.iter().map(|m| m.to).collect();
        let all: Vec<NodeId> = tiers.iter().flat_map(|tier| &tier.nodes).copied().collect();
        for target in &plan.report.targets {
            let has_memory = target.resident.iter().zip(tiers);
            let filled = has_memory.filter(|(bytes, _)| !bytes.is_zero());
            nodes.extend(filled.flat_map(|(_, tier)| &tier.nodes));
        }
        nodes.sort_unstable();
        nodes.dedup();
        if all.len() < 2 {
            nodes.clear();
        }
        let guard = &mut self.guard;
        guard.watch.only(&nodes);
        guard.leaving = None;
        guard.next = (!nodes.is_empty()).then_some(guard.next.unwrap_or(Nanos::ZERO));
        (guard.nodes, guard.all) = (nodes, all);
        guard.end_episodes(self.ports.clock.now());
    }

    /// Waits, and looks at the nodes meanwhile.
    pub(super) fn wait_until(&mut self, due: Nanos) -> Result<Wake, PortError> {
        loop {
            let next = self.next_look().map_or(due, |at| at.min(due));
            if self.ports.clock.sleep_until(next) == Wake::Interrupted {
                return Ok(Wake::Interrupted);
            }
            self.look_at_nodes()?;
            if self.ports.clock.now() >= due {
                return Ok(Wake::Due);
            }
        }
    }

    fn next_look(&self) -> Option<Nanos> {
        let may_move = self.settings.moving && !self.paused;
        self.guard.next.filter(|_| may_move)
    }

    /// Looks at the nodes if it is time, and has memory leave those that lack some.
    pub(super) fn look_at_nodes(&mut self) -> Result<(), PortError> {
        let now = self.ports.clock.now();
        if self.next_look().is_none_or(|next| now < next) {
            return Ok(());
        }
        loop {
            let at = self.ports.clock.now();
            let glances = self.ports.residency.glance(&self.guard.nodes);
            self.guard.watch.follow(at, &glances);
            let lacks = self
                .guard
                .watch
                .lacks(|total| self.engine.least_free(total));
            let is_over = at.saturating_sub(now) >= TURN;
            if lacks.is_empty() || is_over || !self.give_back(&lacks)? {
                break;
            }
        }
        let least = |total| self.engine.least_free(total);
        let next = self.guard.watch.next(least);
        // Whom nobody can look at is looked for again.
        let latest = self.ports.clock.now() + shortage::LATEST;
        self.guard.next = Some(next.unwrap_or(latest));
        Ok(())
    }

    /// Has a piece leave; whether something did.
    fn give_back(&mut self, lacks: &[Lack]) -> Result<bool, PortError> {
        let glances = self.ports.residency.glance(&self.guard.all);
        let room: Vec<(NodeId, Bytes)> = glances
            .iter()
            .map(|glance| {
                let headroom = self.engine.headroom(glance.total);
                (glance.node, glance.room.saturating_sub(headroom))
            })
            .collect();
        let (engine, done) = (&self.engine, &self.outcome.results);
        let nodes = &self.guard.nodes;
        let leaving = self.guard.leaving.take();
        let mut leaving = leaving.unwrap_or_else(|| engine.leaving(done, nodes));
        let piece = |lack: &Lack| Lack {
            cold: lack.cold.min(PIECE),
            hot: lack.hot.min(PIECE),
            ..*lack
        };
        let pieces: Vec<Lack> = lacks.iter().map(piece).collect();
        let moves = leaving.plan(&pieces, &room);
        let outcome = if moves.is_empty() {
            MoveOutcome::default()
        } else {
            let keeps = glances.iter().map(|glance| Keep {
                node: glance.node,
                free: self.engine.headroom(glance.total),
                ends_below: Bytes::ZERO,
            });
            let keeps: Vec<Keep> = keeps.collect();
            self.ports.mover.keep(&keeps, true);
            let cpu = self.ports.clock.thread_cpu_time();
            let limits = MoveLimits {
                time: PIECE_TIME,
                rate: Bandwidth(u64::MAX),
                bytes: Bytes(u64::MAX),
                call_time: self.settings.call_time,
                threads: self.settings.threads,
            };
            let outcome = self.ports.mover.apply(&moves, limits);
            // That is migration.
            self.aside += self.ports.clock.thread_cpu_time().saturating_sub(cpu);
            outcome?
        };
        leaving.told(&outcome.results);
        self.guard.leaving = Some(leaving);
        for lack in lacks {
            let was_tried = moves.iter().any(|m| m.from == lack.node);
            self.told_of(*lack, was_tried, &outcome);
        }
        let has_left = outcome.results.iter().any(|r| r.pages.moved > 0);
        self.outcome.add(outcome);
        Ok(has_left)
    }

    /// Takes note of what left a node, and says what an operator should know.
    fn told_of(&mut self, lack: Lack, was_tried: bool, outcome: &MoveOutcome) {
        let now = self.ports.clock.now();
        let node = lack.node;
        let results = outcome.results.iter().filter(|r| r.asked.from == node);
        let given = Bytes::from_pages(results.map(|r| r.pages.moved).sum());
        let (room, taken) = self.guard.watch.state_of(node).unwrap_or_default();
        if given.is_zero() && lack.hot.is_zero() {
            // Nothing cold is there, and nobody is in need.
            return;
        }
        let (episode, is_new) = self.guard.episode(node, now);
        episode.last = now;
        episode.given += given;
        if is_new && taken.0 > 0 {
            tracing::warn!(
                "node {node} has {room} left for other programs, which take {} a second of it: \
                 what targets have there makes room, what is cold first",
                Bytes(taken.0)
            );
        } else if is_new {
            tracing::info!(
                "node {node} has {room} left for other programs: what targets have there makes room, \
                 what is cold first"
            );
        }
        if !was_tried && !episode.is_told {
            episode.is_told = true;
            tracing::warn!(
                "node {node} has {room} left for other programs, and nothing of the targets can leave it: \
                 every other node that they may use is full, or their pages cannot be moved"
            );
        }
        self.guard.watch.gave(node, given);
        if !was_tried {
            self.guard.watch.stuck(node);
        }
    }

    /// What a plan's moves leave of each node.
    pub(super) fn keeps(&self) -> Vec<Keep> {
        let all = self.engine.tiers().nodes().iter();
        let least = |total| self.engine.least_free(total);
        all.map(|node| {
            let ends_below = Bytes(self.guard.watch.owed(node.id, least).0 / 2);
            Keep {
                node: node.id,
                free: self.engine.headroom(node.size),
                ends_below,
            }
        })
        .collect()
    }
}
