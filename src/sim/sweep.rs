//! Whether the order of two policies survives other figures than the machine's.
//!
//! **Unit.** Latencies and bandwidths of the slowest node as multiples of the fastest's,
//! costs in CPU time.
//!
//! **Problem.** What a machine's file says of latencies, bandwidths and costs is in part
//! assumed, and in part true of that one machine. An order of policies that turns when such a
//! figure does is no finding.
//!
//! **Approach.** Each figure goes through its values, one at a time, all else as the file has
//! it (a *corner* each), and then all together through their lowest and through their highest.
//! Latencies keep the fastest node's and change in the logarithm, so that the slowest has the
//! value asked for and all keep their order; bandwidths likewise. An order *survives* if the
//! one that is ahead as the file has it is behind in no corner.
//!
//! **Properties** (tests below): a corner changes what it names and nothing else; nodes keep
//! their order; an order is told from both sides alike.

use super::hardware::{Hardware, Link};
use crate::units::{Bandwidth, Nanos};

/// Latency of the slowest node: CXL of one hop to remote PMM, in published measurements 1.5
/// to 4.5 times that of local DRAM.
const LATENCY: [f64; 4] = [1.5, 2.2, 3.0, 4.5];
/// Its bandwidth.
const BANDWIDTH: [f64; 3] = [0.1, 0.25, 0.5];
/// Moving a page of 4 KiB; a huge one in proportion.
const MOVE: [Nanos; 3] = [Nanos(1_000), Nanos(2_500), Nanos(10_000)];
/// A scan of one sample: from a bare walk of the page tables to ten times HM-Keeper's
/// 1.27 µs (§1.1).
const SCAN: [Nanos; 3] = [Nanos(300), Nanos(1_270), Nanos(12_700)];
/// Setting an accessed bit again: some tens of ns on bare metal, 500 ns under shadow paging.
const ACCESSED: [Nanos; 3] = [Nanos(20), Nanos(100), Nanos(500)];
/// A hint fault without a migration: 0.6 to 1.5 µs.
const HINT_FAULT: [Nanos; 3] = [Nanos(600), Nanos(1_000), Nanos(1_500)];
/// What is less apart is level: runs differ by as much with the seed.
pub const LEVEL: f64 = 0.01;
/// The first corner: the file's own figures.
pub const NOMINAL: &str = "as it is";

/// A figure of a machine.
#[derive(Clone, Copy, Debug)]
enum Figure {
    Latency(f64),
    Bandwidth(f64),
    Move(Nanos),
    Scan(Nanos),
    Accessed(Nanos),
    HintFault(Nanos),
}

impl Figure {
    /// All of them with their values, ascending.
    fn all() -> [Vec<Self>; 6] {
        [
            LATENCY.map(Self::Latency).to_vec(),
            BANDWIDTH.map(Self::Bandwidth).to_vec(),
            MOVE.map(Self::Move).to_vec(),
            SCAN.map(Self::Scan).to_vec(),
            ACCESSED.map(Self::Accessed).to_vec(),
            HINT_FAULT.map(Self::HintFault).to_vec(),
        ]
    }

    fn name(self) -> String {
        match self {
            Self::Latency(times) => format!("latency {times}x"),
            Self::Bandwidth(times) => format!("bandwidth {times}x"),
            Self::Move(cost) => format!("move {cost}"),
            Self::Scan(cost) => format!("scan {cost}"),
            Self::Accessed(cost) => format!("accessed {cost}"),
            Self::HintFault(cost) => format!("hint fault {cost}"),
        }
    }

    /// Changes the machine to it.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn set(self, hardware: &mut Hardware) {
        match self {
            Self::Latency(times) => each_initiator(hardware, |links| {
                let fastest = least(links.iter().map(|link| link.latency.0 as f64));
                let slowest = most(links.iter().map(|link| link.latency.0 as f64));
                let power = power(slowest / fastest, times);
                for link in links {
                    let now = (link.latency.0 as f64 / fastest).powf(power) * fastest;
                    link.latency = Nanos(now.round() as u64);
                }
            }),
            Self::Bandwidth(times) => each_initiator(hardware, |links| {
                let fastest = most(links.iter().map(|link| link.read.0 as f64));
                let slowest = least(links.iter().map(|link| link.read.0 as f64));
                let power = power(slowest / fastest, times);
                for link in links {
                    let read = link.read.0 as f64;
                    let now = (read / fastest).powf(power) * fastest;
                    // What writing takes beside reading stays.
                    let write = link.write.0 as f64 * now / read;
                    link.read = Bandwidth((now as u64).max(1));
                    link.write = Bandwidth((write as u64).max(1));
                }
            }),
            Self::Move(cost) => {
                let costs = &mut hardware.costs;
                let times = cost.as_secs_f64() / costs.small_move.as_secs_f64();
                let huge = costs.huge_move.as_secs_f64() * times;
                costs.small_move = cost;
                costs.huge_move = Nanos::from_secs_f64(huge).max(Nanos(1));
            }
            Self::Scan(cost) => hardware.costs.scan = cost,
            Self::Accessed(cost) => hardware.costs.accessed = cost,
            Self::HintFault(cost) => hardware.costs.hint_fault = cost,
        }
    }
}

/// The power to which `from` has to be raised to be `to`; 1 where none does.
fn power(from: f64, to: f64) -> f64 {
    let power = to.ln() / from.ln();
    if power.is_finite() { power } else { 1.0 }
}

fn least(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::INFINITY, f64::min)
}

fn most(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::MIN_POSITIVE, f64::max)
}

/// Changes what each initiator sees of all nodes.
fn each_initiator(hardware: &mut Hardware, change: impl Fn(&mut [Link])) {
    let initiators = hardware.nodes.first().map_or(0, |node| node.links.len());
    for at in 0..initiators {
        let mut links: Vec<Link> = hardware.nodes.iter().map(|node| node.links[at]).collect();
        change(&mut links);
        for (node, link) in hardware.nodes.iter_mut().zip(links) {
            node.links[at] = link;
        }
    }
}

/// A machine with figures that are not all its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corner {
    /// What is not its own.
    pub name: String,
    /// The machine.
    pub hardware: Hardware,
}

/// A machine as it is, and in all other corners. Values that it has anyway are left out.
pub fn corners(hardware: &Hardware) -> Vec<Corner> {
    let figures = Figure::all();
    let mut corners = vec![Corner {
        name: NOMINAL.to_owned(),
        hardware: hardware.clone(),
    }];
    let mut add = |name: String, figures: &[Figure]| {
        let mut changed = hardware.clone();
        for figure in figures {
            figure.set(&mut changed);
        }
        if changed != *hardware {
            corners.push(Corner {
                name,
                hardware: changed,
            });
        }
    };
    for figure in figures.iter().flatten() {
        add(figure.name(), &[*figure]);
    }
    let at_end = |end: fn(&Vec<Figure>) -> Option<&Figure>| -> Vec<Figure> {
        figures.iter().filter_map(end).copied().collect()
    };
    add("all lowest".to_owned(), &at_end(|values| values.first()));
    add("all highest".to_owned(), &at_end(|values| values.last()));
    corners
}

/// What became of the order of two.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// Whether the second one is ahead as the machine is, and told first.
    pub is_swapped: bool,
    /// How much longer the one behind takes as the machine is: 0.1 is a tenth more.
    pub ahead: f64,
    /// The least and most of that over all corners; below 0 where it is faster.
    pub least: f64,
    /// See `least`.
    pub most: f64,
    /// What to make of it.
    pub verdict: Verdict,
}

/// What to make of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Who is ahead is behind nowhere.
    Survives,
    /// Who is ahead is behind at these corners.
    Turns(Vec<usize>),
    /// They are level; at these corners they are not.
    Level(Vec<usize>),
}

/// The order of two by the times that they take, corner by corner, the nominal one first;
/// `None` without any.
pub fn order(first: &[f64], second: &[f64]) -> Option<Order> {
    let is_swapped = second.first()? < first.first()?;
    let (ahead, behind) = if is_swapped {
        (second, first)
    } else {
        (first, second)
    };
    let ratios: Vec<f64> = (behind.iter().zip(ahead))
        .map(|(behind, ahead)| behind / ahead)
        .collect();
    let at = |is: &dyn Fn(f64) -> bool| -> Vec<usize> {
        let all = ratios.iter().enumerate();
        all.filter(|(_, ratio)| is(**ratio))
            .map(|(at, _)| at)
            .collect()
    };
    let is_behind = |ratio: f64| ratio * (1.0 + LEVEL) < 1.0;
    let is_ahead = |ratio: f64| ratio > 1.0 + LEVEL;
    let nominal = *ratios.first()?;
    let verdict = if is_ahead(nominal) {
        let turns = at(&is_behind);
        if turns.is_empty() {
            Verdict::Survives
        } else {
            Verdict::Turns(turns)
        }
    } else {
        Verdict::Level(at(&|ratio| is_ahead(ratio) || is_behind(ratio)))
    };
    Some(Order {
        is_swapped,
        ahead: nominal - 1.0,
        least: least(ratios.iter().copied()) - 1.0,
        most: most(ratios.iter().copied()) - 1.0,
        verdict,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sim::hardware::PRESETS;

    fn machine() -> Hardware {
        Hardware::parse(PRESETS[0].1).expect("a machine")
    }

    fn corner(name: &str) -> Hardware {
        let all = corners(&machine());
        let found = all.iter().find(|corner| corner.name == name);
        found
            .unwrap_or_else(|| panic!("no {name}"))
            .hardware
            .clone()
    }

    #[test]
    fn a_corner_changes_what_it_names() {
        let nominal = machine();
        // 90, 145, 275 and 340 ns: the slowest is 3.8 times as slow.
        let latency = corner("latency 1.5x");
        let of = |hardware: &Hardware| -> Vec<u64> {
            hardware.links().iter().map(|link| link.latency.0).collect()
        };
        assert_eq!(of(&latency), [90, 104, 127, 135]);
        assert_eq!(of(&corner("latency 4.5x"))[3], 405);
        assert_eq!(latency.costs, nominal.costs);
        let bandwidth = corner("bandwidth 0.5x");
        let links = bandwidth.links();
        assert_eq!(of(&bandwidth), of(&nominal));
        assert_eq!(links[0], nominal.links()[0]);
        assert!(links[3].read.0.abs_diff(47_500_000_000) < 10);
        assert!(links[2].read > links[3].read && links[2].write < links[2].read);
        let moving = corner("move 10µs");
        assert_eq!(moving.costs.small_move, Nanos(10_000));
        assert_eq!(moving.costs.huge_move, Nanos(1_600_000));
        assert_eq!(moving.nodes, nominal.nodes);
        let lowest = corner("all lowest");
        assert_eq!(lowest.costs.scan, Nanos(300));
        assert_eq!(lowest.costs.accessed, Nanos(20));
        assert_eq!(of(&lowest), of(&latency));
    }

    #[test]
    fn what_a_machine_has_anyway_is_left_out() {
        let all = corners(&machine());
        let names: Vec<&str> = all.iter().map(|corner| corner.name.as_str()).collect();
        assert_eq!(names[0], NOMINAL);
        assert_eq!(all[0].hardware, machine());
        // 2.5 us, 1.27 us, 100 ns and 1 us are its own.
        assert_eq!(names.len(), 1 + 4 + 3 + 2 + 2 + 2 + 2 + 2, "{names:?}");
        let mut unique = names.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), names.len(), "{names:?}");
    }

    #[test]
    fn nodes_keep_their_order_on_all_machines() {
        for (name, text) in PRESETS {
            let hardware = Hardware::parse(text).expect("a machine");
            let order = |hardware: &Hardware, at: usize| -> Vec<usize> {
                let mut order: Vec<usize> = (0..hardware.nodes.len()).collect();
                order.sort_by_key(|&node| hardware.nodes[node].links[at].latency);
                order
            };
            for corner in corners(&hardware) {
                corner.hardware.tiers().expect("tiers");
                for at in 0..hardware.nodes[0].links.len() {
                    let same = order(&corner.hardware, at) == order(&hardware, at);
                    assert!(same, "{name}, {}", corner.name);
                }
            }
        }
    }

    #[test]
    fn an_order_that_turns_says_where() {
        let of = |first: &[f64], second: &[f64]| order(first, second).expect("an order");
        let survives = of(&[10.0, 10.0, 10.0], &[11.0, 10.05, 20.0]);
        assert_eq!(survives.verdict, Verdict::Survives);
        assert!((survives.ahead - 0.1).abs() < 1e-9 && !survives.is_swapped);
        assert!((survives.least - 0.005).abs() < 1e-9 && (survives.most - 1.0).abs() < 1e-9);
        let turns = of(&[11.0, 9.0, 12.0], &[10.0, 10.0, 10.0]);
        assert_eq!(turns.verdict, Verdict::Turns(vec![1]));
        assert!(turns.is_swapped);
        let level = of(&[10.0, 10.0, 10.0], &[10.05, 11.0, 9.0]);
        assert_eq!(level.verdict, Verdict::Level(vec![1, 2]));
        assert!(order(&[], &[]).is_none());
    }

    proptest! {
        #[test]
        fn it_does_not_matter_who_is_named_first(
            times in prop::collection::vec((1.0_f64..100.0, 1.0_f64..100.0), 1..9),
        ) {
            let (first, second): (Vec<f64>, Vec<f64>) = times.into_iter().unzip();
            let (one, other) = (order(&first, &second), order(&second, &first));
            let (one, other) = (one.expect("an order"), other.expect("an order"));
            prop_assert_eq!(&one.verdict, &other.verdict);
            let is_tie = (first[0] - second[0]).abs() <= 0.0;
            prop_assert!(one.is_swapped != other.is_swapped || is_tie);
            prop_assert!(one.least <= one.ahead && one.ahead <= one.most);
        }
    }
}
