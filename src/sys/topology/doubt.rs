//! Figures that cannot be, and figures that contradict each other.
//!
//! **Problem.** Firmware fills the HMAT in wrongly: 0 or all ones, DRAM and CXL exchanged.
//! Believed, it has hot data moved to the slow memory.
//!
//! **Approach.** A figure out of bounds is dropped. Of two nodes that one initiator has
//! latencies of, four may speak: these latencies, the SLIT distances, the kernel's own tiers,
//! and the bandwidths. Where distances or tiers are against the latencies, a warning names the
//! figures, and the latencies are used unless most are against them.
//!
//! Less latency with less bandwidth is what DRAM beside HBM has, and the kernel's tiers count
//! both: these two against the latencies of an initiator's own or nearer memory are no
//! contradiction.

use super::{Facts, HBM_BANDWIDTH_RATIO, Readings};
use crate::tiering::tier::{Node, SAME_RANK};
use crate::units::{Bandwidth, Nanos, NodeId};

/// Memory answers in this time: on the package at least, behind switches at most.
pub(super) const LATENCIES: std::ops::RangeInclusive<Nanos> = Nanos(10)..=Nanos(50_000);
/// Nodes serve so much: 10 MB/s to 100 TB/s.
const BANDWIDTHS: std::ops::RangeInclusive<Bandwidth> =
    Bandwidth(10_000_000)..=Bandwidth(100_000_000_000_000);
/// How to end a contradiction.
const REMEDY: &str = "set latency in [[tiers]] if that is wrong";

/// Drops what is not to be believed, and says so.
pub(super) fn weed(facts: &mut Facts, second: &mut Readings) {
    let mut warnings = Vec::new();
    bound(&mut facts.readings, &mut warnings);
    bound(second, &mut Vec::new());
    let initiators: Vec<NodeId> = facts.initiators().collect();
    for &from in &initiators {
        match contradiction(facts, second, from) {
            Some((warning, true)) => {
                let wrong = |all: &mut Readings| {
                    for (_, reading) in all.iter_mut().filter(|((f, _), _)| *f == from) {
                        reading.latency = None;
                    }
                };
                wrong(&mut facts.readings);
                wrong(second);
                warnings.push(warning);
            }
            Some((warning, false)) => warnings.push(warning),
            None => warnings.extend(tiers_against_distances(facts, second, from)),
        }
    }
    facts.warnings.append(&mut warnings);
}

/// Drops what no memory has.
fn bound(readings: &mut Readings, warnings: &mut Vec<String>) {
    for (&(from, to), reading) in readings {
        if let Some(latency) = reading.latency.take_if(|l| !LATENCIES.contains(l)) {
            warnings.push(format!(
                "latency from node {from} to node {to}: firmware says {} ns, which cannot be: it is \
                 ignored; set latency in [[tiers]]",
                latency.0
            ));
        }
        if let Some(bandwidth) = reading.bandwidth.take_if(|b| !BANDWIDTHS.contains(b)) {
            warnings.push(format!(
                "bandwidth from node {from} to node {to}: firmware says {} MB/s, which cannot be: \
                 it is ignored",
                bandwidth.0 / 1_000_000
            ));
        }
    }
}

/// Whether `a` is less than `b` by more than what figures are good for.
fn less(a: u64, b: u64) -> bool {
    (a as f64) * (1.0 + SAME_RANK) < b as f64
}

/// What others say of `near`, which latencies hold to be faster than `far`.
#[derive(Clone, Copy, Default)]
struct Votes {
    distance: i32,
    tier: i32,
    bandwidth: i32,
    /// Whether `near` is the initiator's own memory.
    own: bool,
}

impl Votes {
    fn of(
        facts: &Facts,
        from: NodeId,
        (near, far): (&Node, &Node),
        width: [Option<u64>; 2],
    ) -> Self {
        let distance = |to: &Node| u64::from(facts.distance(from, to.id));
        let vote = |near: u64, far: u64| i32::from(less(near, far)) - i32::from(less(far, near));
        Self {
            distance: vote(distance(near), distance(far)),
            tier: match (near.kernel_tier, far.kernel_tier) {
                (Some(near), Some(far)) => i32::from(near < far) - i32::from(near > far),
                _ => 0,
            },
            bandwidth: match width {
                [Some(near), Some(far)] => {
                    i32::from(near >= far.saturating_mul(HBM_BANDWIDTH_RATIO))
                        - i32::from(far >= near.saturating_mul(HBM_BANDWIDTH_RATIO))
                }
                _ => 0,
            },
            own: near.id == from,
        }
    }

    fn contradict(self) -> bool {
        let is_wider = self.bandwidth < 0 && (self.distance > 0 || self.own);
        self.distance < 0 || (self.tier < 0 && !is_wider)
    }

    /// Whether most are against the latencies, which count for themselves.
    fn overrule(self) -> bool {
        1 + self.distance + self.tier + self.bandwidth < 0
    }
}

/// Two latencies of one initiator that others contradict, with what becomes of them; one that is overruled first.
fn contradiction(facts: &Facts, second: &Readings, from: NodeId) -> Option<(String, bool)> {
    let reading = |to: NodeId| {
        let both = [&facts.readings, second].map(|all| all.get(&(from, to)).copied());
        let [first, second] = both.map(Option::unwrap_or_default);
        (
            first.latency.or(second.latency),
            first.bandwidth.or(second.bandwidth),
        )
    };
    let known: Vec<(&Node, Nanos, Option<u64>)> = facts
        .memory()
        .filter_map(|node| {
            let (latency, bandwidth) = reading(node.id);
            Some((node, latency?, bandwidth.map(|b| b.0)))
        })
        .collect();
    let mut found: Option<(String, bool)> = None;
    for &(near, least, near_width) in &known {
        for &(far, most, far_width) in &known {
            if !less(least.0, most.0) {
                continue;
            }
            let votes = Votes::of(facts, from, (near, far), [near_width, far_width]);
            let overruled = votes.overrule();
            if !votes.contradict()
                || found
                    .as_ref()
                    .is_some_and(|(_, worse)| *worse || !overruled)
            {
                continue;
            }
            let mut against = Vec::new();
            if votes.distance < 0 {
                let distance = |node: &Node| facts.distance(from, node.id);
                against.push(format!(
                    "SLIT distances {} and {}",
                    distance(near),
                    distance(far)
                ));
            }
            if let (true, Some(a), Some(b)) = (votes.tier < 0, near.kernel_tier, far.kernel_tier) {
                against.push(format!("the kernel's tiers {a} and {b}"));
            }
            if let (true, Some(a), Some(b)) = (votes.bandwidth < 0, near_width, far_width) {
                let mega = |width: u64| width / 1_000_000;
                against.push(format!("bandwidths {} and {} MB/s", mega(a), mega(b)));
            }
            let used = if overruled { "distances" } else { "latencies" };
            let text = format!(
                "node {from}: firmware says latency {} ns to node {} and {} ns to node {}, against \
                 {}; the {used} are used; {REMEDY}",
                least.0,
                near.id,
                most.0,
                far.id,
                against.join(", ")
            );
            found = Some((text, overruled));
        }
    }
    found
}

/// Two nodes nearest to this initiator of which only distances tell, and the kernel's tiers say otherwise.
fn tiers_against_distances(facts: &Facts, second: &Readings, from: NodeId) -> Option<String> {
    let has_latency = |to: NodeId| {
        let all = [&facts.readings, second];
        all.iter()
            .any(|all| all.get(&(from, to)).is_some_and(|r| r.latency.is_some()))
    };
    let is_nearest = |to: NodeId| {
        let distances = facts.initiators().map(|i| facts.distance(i, to));
        distances.min() == Some(facts.distance(from, to))
    };
    let mine: Vec<&Node> = facts
        .memory()
        .filter(|node| is_nearest(node.id) && !has_latency(node.id))
        .collect();
    let distance = |node: &Node| facts.distance(from, node.id);
    mine.iter().find_map(|near| {
        mine.iter().find_map(|far| {
            let (first, last) = (near.kernel_tier?, far.kernel_tier?);
            let apart = less(distance(near).into(), distance(far).into()) && first > last;
            apart.then(|| {
                format!(
                    "node {from}: SLIT distances {} to node {} and {} to node {}, against the kernel's tiers {first} and \
                     {last}; the distances are used; {REMEDY}",
                    distance(near),
                    near.id,
                    distance(far),
                    far.id,
                )
            })
        })
    })
}
