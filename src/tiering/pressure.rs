//! How much later than when idle each node answers.
//!
//! **Unit.** A factor on the idle latency: 1 is idle.
//!
//! **Problem.** Firmware tells latencies of idle memory. A node of which more bandwidth is
//! asked than it has answers several times later: it is not the best one any more, however
//! near it is, and what is on a slow one costs more than it seems.
//!
//! **Approach.** What a probe measured of each node over what it measures when nothing else
//! runs, smoothed over epochs. A little later than idle counts as idle: probes are noisy, and
//! latency grows steeply only where bandwidth ends. In an epoch in which nobody was asked, for that is dear,
//! all is as it was: an answer counts once.
//!
//! **Source.** Colloid, which takes latencies as the measure of where memory should lie, and
//! reads them from counters of the CPU. We ask the memory itself: no counter, no privilege.
//!
//! **Properties** (tests below): never less than 1; a node that nobody can probe is idle.

use super::observation::{NodeUsage, ReadLatency};
use crate::units::NodeId;

/// Weight of the newest epoch.
const WEIGHT: f64 = 0.5;
/// So many times the idle latency still counts as idle.
const CALM: f64 = 1.5;
/// The same where little is lost by a mistake. Nodes that nobody uses mostly answer up to 1.05 times as late.
const ON_TIME: f64 = 1.1;
/// What counts as an epoch in which it was late, of those that are late for a while, and as one in which it was on
/// time: one in between is an eighth of the latter.
const LATE: f64 = 1.15;
const AGAIN_ON_TIME: f64 = 1.05;

/// Eighths of epochs: who was late in so many more than it was on time has been for a while.
const LASTS: u32 = 4 * 8;
/// As many are remembered at most.
const LONGEST: u32 = 16 * 8;
/// Epochs in a row in which nobody was asked, after which nobody can be.
const UNASKED: u32 = 32;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Pressure {
    of: Vec<Answers>,
    /// Epochs since any node answered.
    unasked: u32,
}

#[derive(Clone, Copy, Debug)]
struct Answers {
    node: NodeId,
    /// What it said last, if it could be asked.
    latest: Option<ReadLatency>,
    /// How many times as late as when idle, smoothed.
    ratio: f64,
    /// Eighths of epochs in which it was late beyond those in which it was on time, of late.
    late_for: u32,
}

impl Pressure {
    /// What probes measured in the epoch that ends.
    pub fn follow(&mut self, nodes: &[NodeUsage]) {
        self.of.retain(|a| nodes.iter().any(|u| u.node == a.node));
        self.unasked = if nodes.iter().any(|usage| usage.latency.is_some()) {
            0
        } else {
            self.unasked.saturating_add(1)
        };
        if (1..UNASKED).contains(&self.unasked) {
            return;
        }
        for usage in nodes {
            // Whom nobody can ask any more is forgotten bit by bit.
            let now = usage.latency.map_or(1.0, |latency| {
                latency.now.0.max(1) as f64 / latency.idle.0.max(1) as f64
            });
            let at = self.of.iter().position(|a| a.node == usage.node);
            let at = at.unwrap_or_else(|| {
                self.of.push(Answers {
                    node: usage.node,
                    latest: None,
                    ratio: 1.0,
                    late_for: 0,
                });
                self.of.len() - 1
            });
            let answers = &mut self.of[at];
            answers.latest = usage.latency;
            answers.ratio += WEIGHT * (now - answers.ratio);
            answers.late_for = if answers.ratio > LATE {
                (answers.late_for + 8).min(LONGEST)
            } else {
                let is_on_time = answers.ratio < AGAIN_ON_TIME;
                answers
                    .late_for
                    .saturating_sub(if is_on_time { 8 } else { 1 })
            };
        }
    }

    /// The same nodes, and how late each answered when it was asked last.
    pub fn told(&self, nodes: &[NodeUsage]) -> Vec<NodeUsage> {
        let told = |usage: &NodeUsage| {
            let mut of = self.of.iter();
            let latest = of.find(|a| a.node == usage.node).and_then(|a| a.latest);
            NodeUsage {
                latency: usage.latency.or(latest),
                ..*usage
            }
        };
        nodes.iter().map(told).collect()
    }

    /// Those that answer later than when idle, and how many times as late.
    pub fn loaded(&self) -> Vec<(NodeId, f64)> {
        let factor = |a: &Answers| (a.node, 1.0 + (a.ratio - CALM).max(0.0));
        let all = self.of.iter().map(factor);
        all.filter(|&(_, factor)| factor > 1.0).collect()
    }

    /// Those that answer a little later than when idle as well, and how many times as late.
    pub fn late(&self) -> Vec<(NodeId, f64)> {
        let late = self.of.iter().filter(|a| a.ratio > ON_TIME);
        late.map(|a| (a.node, a.ratio)).collect()
    }

    /// Those that have answered late for a while.
    pub fn lasting(&self) -> Vec<NodeId> {
        let lasting = self.of.iter().filter(|a| a.late_for >= LASTS);
        lasting.map(|a| a.node).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{Bytes, Nanos};

    fn probed(latencies: &[Option<(u64, u64)>]) -> Vec<NodeUsage> {
        (0..)
            .zip(latencies)
            .map(|(node, latency)| NodeUsage {
                node: NodeId(node),
                total: Bytes::from_mib(1),
                free: Bytes::ZERO,
                reserve: Bytes::ZERO,
                latency: latency.map(|(now, idle)| ReadLatency {
                    now: Nanos(now),
                    idle: Nanos(idle),
                }),
                cache: None,
            })
            .collect()
    }

    #[test]
    fn who_answers_late_is_loaded_and_who_cannot_be_asked_is_not() {
        let mut pressure = Pressure::default();
        pressure.follow(&probed(&[Some((180, 100)), None, Some((1000, 250))]));
        assert_eq!(pressure.loaded(), [(NodeId(2), 2.0)]);
        assert_eq!(pressure.late(), [(NodeId(0), 1.4), (NodeId(2), 2.5)]);
    }

    #[test]
    fn one_late_answer_is_half_believed_and_forgotten() {
        let mut pressure = Pressure::default();
        pressure.follow(&probed(&[Some((100, 100))]));
        pressure.follow(&probed(&[Some((400, 100))]));
        assert_eq!(pressure.loaded(), [(NodeId(0), 2.0)]);
        pressure.follow(&probed(&[None, Some((100, 100))]));
        assert_eq!(pressure.loaded(), [(NodeId(0), 1.25)], "cannot be asked");
        for _ in 0..3 {
            pressure.follow(&probed(&[Some((100, 100))]));
        }
        assert_eq!(pressure.loaded(), []);
        pressure.follow(&[]);
        pressure.follow(&probed(&[Some((400, 100))]));
        assert_eq!(pressure.loaded(), [(NodeId(0), 2.0)], "another node now");
    }

    #[test]
    fn an_answer_counts_once_however_long_it_stands() {
        let mut pressure = Pressure::default();
        pressure.follow(&probed(&[Some((100, 100))]));
        pressure.follow(&probed(&[Some((400, 100))]));
        for _ in 1..UNASKED {
            pressure.follow(&probed(&[None]));
            assert_eq!(pressure.loaded(), [(NodeId(0), 2.0)]);
            assert_eq!(pressure.lasting(), []);
            let told = pressure.told(&probed(&[None]))[0].latency;
            assert_eq!(told.map(|latency| latency.now), Some(Nanos(400)));
        }
        pressure.follow(&probed(&[None]));
        assert_eq!(
            pressure.loaded(),
            [(NodeId(0), 1.25)],
            "nobody can be asked"
        );
        assert_eq!(pressure.told(&probed(&[None]))[0].latency, None);
    }

    #[test]
    fn who_is_late_for_a_while_is_so_until_it_is_on_time_for_a_while() {
        let mut pressure = Pressure::default();
        let mut after = |epochs: usize, now: u64| {
            for _ in 0..epochs {
                pressure.follow(&probed(&[Some((now, 100))]));
            }
            !pressure.lasting().is_empty()
        };
        assert!(!after(3, 150));
        assert!(after(1, 150));
        // One epoch on time is not enough once it has been late for long.
        assert!(after(40, 150) && after(4, 100));
        // A little late is on time again as well, but slowly.
        assert!(after(80, 110));
        assert!(!after(40, 110));
        assert!(!after(40, 113), "a little is on time");
    }
}
