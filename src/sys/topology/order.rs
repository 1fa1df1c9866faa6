//! Which memory is faster where figures do not tell, and where the operator does.
//!
//! [`hint`] takes apart what has one distance, by the kernel's own tiers and by kind.
//! [`obey`] applies `[[tiers]]`: a tier's `latency` is that from the nearest CPUs, and tiers
//! without one are as fast as their order says, the first the fastest. Figures keep their sizes: the
//! smallest goes to the first tier. Each socket still has its own view.

use super::{Facts, scale};
use crate::tiering::tier::{Figure, MemoryKind, Node, Path, SAME_RANK, Source, Tier};
use crate::units::{Nanos, NodeId};

/// Memory that is known to be slower, and not by how much, counts as that much slower: less
/// than CXL is behind DRAM of the other socket, and more than [`SAME_RANK`].
const STEP: f64 = 1.25;

/// What stands in for a figure: slower classes are greater.
fn class(node: &Node) -> (u32, u8) {
    let kind = match node.kind {
        // Unknown is no reason to hold it to be slow.
        MemoryKind::Dram | MemoryKind::Hbm | MemoryKind::Unknown => 0,
        MemoryKind::Cxl => 1,
        MemoryKind::Pmm => 2,
        MemoryKind::Device => 3,
    };
    (node.kernel_tier.unwrap_or(0), kind)
}

fn times(latency: Nanos, factor: f64) -> Nanos {
    Nanos::from_secs_f64(latency.as_secs_f64() * factor)
}

/// Whether the two differ by less than figures are good for.
fn same(a: Nanos, b: Nanos) -> bool {
    a.max(b).0 as f64 <= a.min(b).0 as f64 * (1.0 + SAME_RANK)
}

/// Takes nodes apart that have one distance, as far as something else tells.
pub(super) fn hint(facts: &mut Facts, paths: &mut [Path]) {
    let is_guess = |path: &Path| {
        matches!(
            path.latency.source,
            Source::ScaledByDistance | Source::Distance
        )
    };
    let mut told = false;
    for from in facts.initiators().collect::<Vec<_>>() {
        let class_of = |to: NodeId| facts.nodes.iter().find(|n| n.id == to).map(class);
        let mut mine: Vec<&mut Path> = (paths.iter_mut())
            .filter(|path| path.from == from && is_guess(path))
            .collect();
        mine.sort_by_key(|path| (path.latency.value, path.to));
        for tied in mine.chunk_by_mut(|a, b| same(a.latency.value, b.latency.value)) {
            let mut classes: Vec<_> = tied.iter().map(|path| class_of(path.to)).collect();
            classes.sort_unstable();
            classes.dedup();
            if classes.len() < 2 {
                continue;
            }
            if !told {
                let listed = tied.iter().map(|p| p.to.to_string()).collect::<Vec<_>>();
                facts.warnings.push(format!(
                    "node {from}: the distances to nodes {} are alike: the kernel's tiers and the kinds of memory \
                     rank them; set latency in [[tiers]] if that is wrong",
                    listed.join(", ")
                ));
                told = true;
            }
            for path in tied {
                let behind = classes.iter().position(|&c| c == class_of(path.to));
                let steps = i32::try_from(behind.unwrap_or(0)).unwrap_or(i32::MAX);
                path.latency.value = times(path.latency.value, STEP.powi(steps));
            }
        }
    }
}

/// What the operator says of the tiers.
pub(super) fn obey(tiers: &[Tier], facts: &mut Facts, paths: &mut [Path]) {
    for tier in tiers {
        if let Some(latency) = tier.latency {
            set(tier, latency, facts, paths);
        }
    }
    let before: Vec<(&Tier, Nanos)> = (tiers.iter())
        .filter(|tier| tier.latency.is_none())
        .filter_map(|tier| Some((tier, nearest(tier, paths)?)))
        .collect();
    let mut wanted: Vec<Nanos> = before.iter().map(|&(_, latency)| latency).collect();
    let turned =
        (wanted.iter().zip(wanted.iter().skip(1))).position(|(a, b)| a > b && !same(*a, *b));
    if let Some(at) = turned {
        let ((first, slow), (second, fast)) = (before[at], before[at + 1]);
        facts.warnings.push(format!(
            "[[tiers]] names \"{}\" before \"{}\", though figures say {} ns and {} ns: the order of [[tiers]] is \
             used; set latency there if that is wrong",
            first.name, second.name, slow.0, fast.0
        ));
        wanted.sort_unstable();
    }
    for at in 1..wanted.len() {
        let (first, second) = (before[at - 1].0, before[at].0);
        let alike = same(wanted[at - 1], wanted[at]) || wanted[at] < wanted[at - 1];
        if alike && kind(first, facts) != kind(second, facts) {
            wanted[at] = times(wanted[at - 1], STEP);
        }
    }
    for ((tier, was), wanted) in before.into_iter().zip(wanted) {
        if was == wanted || same(was, wanted) && turned.is_none() {
            continue;
        }
        for path in paths.iter_mut().filter(|p| tier.nodes.contains(&p.to)) {
            let value = path.latency.value.0 as f64 * wanted.0 as f64 / was.0.max(1) as f64;
            path.latency = Figure {
                value: Nanos::from_secs_f64(value / 1e9),
                source: Source::Config,
            };
        }
    }
    let end: Vec<(&Tier, Nanos)> = tiers
        .iter()
        .filter_map(|tier| Some((tier, nearest(tier, paths)?)))
        .collect();
    for pair in end.windows(2) {
        let [(first, slow), (second, fast)] = pair else {
            continue;
        };
        if slow > fast && !same(*slow, *fast) {
            facts.warnings.push(format!(
                "[[tiers]] names \"{}\" ({} ns) before \"{}\" ({} ns): their latency is used, not their order",
                first.name, slow.0, second.name, fast.0
            ));
        }
    }
}

/// The kind of its first node.
fn kind(tier: &Tier, facts: &Facts) -> Option<MemoryKind> {
    let first = tier.nodes.first()?;
    let mut nodes = facts.nodes.iter();
    nodes.find(|n| n.id == *first).map(|n| n.kind)
}

/// The least latency that anybody sees of a tier.
fn nearest(tier: &Tier, paths: &[Path]) -> Option<Nanos> {
    let own = paths.iter().filter(|path| tier.nodes.contains(&path.to));
    own.map(|path| path.latency.value).min()
}

/// Gives a tier this latency from the nearest CPUs, and as much more from others as they are farther away.
fn set(tier: &Tier, latency: Nanos, facts: &Facts, paths: &mut [Path]) {
    for path in paths.iter_mut().filter(|p| tier.nodes.contains(&p.to)) {
        let distances = facts.initiators().map(|i| facts.distance(i, path.to));
        let near = distances.min().unwrap_or(path.distance);
        path.latency = Figure {
            value: Nanos(scale(latency.0, path.distance, near)),
            source: Source::Config,
        };
    }
}
