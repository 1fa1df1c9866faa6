//! Where the demo puts what: pure, from the machine's tiers.

use crate::tiering::observation::NodeUsage;
use crate::tiering::shortage;
use crate::tiering::tier::TierTable;
use crate::units::{Bytes, NodeId};

/// Room on the fastest tier, in hot sets: so little that what was hot must be
/// demoted before what is hot now can be promoted.
pub(super) const ROOM_IN_HOT_SETS: f64 = 1.5;
/// A ballast larger than this takes too long to fill, and too much from others.
pub(super) const LARGEST_BALLAST: Bytes = Bytes::from_mib(4096);
/// Part of a node that the daemon leaves free (`migration.headroom`), if that is no less than what a burst takes.
const HEADROOM: f64 = 0.02;
/// Threads of the workload at most.
const MOST_THREADS: usize = 4;

/// The demo cannot run on this machine.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// There is no second tier.
    #[error(
        "this machine has one tier of memory ({0}), so there is nothing to show: \
         `make demo` runs the demo in a virtual machine with four"
    )]
    OneTier(String),
    /// No node has CPUs.
    #[error("no memory node has CPUs: the demo does not know where to run")]
    NoCpus,
}

/// What the demo chose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// CPUs of one socket that the workload runs on.
    pub cpus: Vec<u32>,
    /// The fastest nodes as these CPUs see them.
    pub fast: Vec<NodeId>,
    /// The slowest node as these CPUs see it: where the buffer begins.
    pub slow: NodeId,
    /// All nodes with their tiers' names, fastest first.
    pub nodes: Vec<(NodeId, String)>,
}

/// The socket with the lowest number, its fastest and its slowest node.
pub(super) fn choose(table: &TierTable) -> Result<Place, Unfit> {
    let socket = table.initiators().next().ok_or(Unfit::NoCpus)?;
    let view = table.view(&[(socket.id, 1.0)], None);
    let name = |node: NodeId| {
        table
            .tier_of(node)
            .map_or_else(|| format!("node{node}"), |tier| table.name(tier).to_owned())
    };
    let nodes: Vec<(NodeId, String)> = view
        .ranks()
        .iter()
        .flat_map(|rank| &rank.nodes)
        .map(|&node| (node, name(node)))
        .collect();
    let (Some(first), Some(last)) = (view.ranks().first(), view.ranks().last()) else {
        return Err(Unfit::NoCpus);
    };
    if view.is_flat() {
        let names: Vec<String> = nodes.into_iter().map(|(_, name)| name).collect();
        return Err(Unfit::OneTier(names.join(", ")));
    }
    let slow = last.nodes[last.nodes.len() - 1];
    Ok(Place {
        cpus: socket.cpus.iter().copied().take(MOST_THREADS).collect(),
        fast: first.nodes.clone(),
        slow,
        nodes,
    })
}

/// How the fastest tier is made small.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// Memory is taken until so much is free on the fastest node.
    Ballast {
        /// That node.
        node: NodeId,
        /// Free bytes to leave there.
        leave: Bytes,
    },
    /// The daemon is told to use no more than this of the fastest tier.
    Capacity(Bytes),
}

/// `share` of `bytes`.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a small positive multiple of a size, which saturates"
)]
pub(super) fn times(bytes: Bytes, share: f64) -> Bytes {
    Bytes((bytes.as_f64() * share) as u64)
}

/// Makes room for [`ROOM_IN_HOT_SETS`] of `hot` bytes.
pub(super) fn room(place: &Place, hot: Bytes, usage: &[NodeUsage]) -> Room {
    let wanted = times(hot, ROOM_IN_HOT_SETS);
    let only = match place.fast[..] {
        [node] => usage.iter().find(|u| u.node == node),
        // A ballast on each would leave holes of unequal size.
        _ => None,
    };
    if let Some(usage) = only {
        let headroom = times(usage.total, HEADROOM).max(shortage::least(usage.total));
        let leave = wanted + usage.reserve + headroom;
        if usage.free.saturating_sub(leave) <= LARGEST_BALLAST {
            return Room::Ballast {
                node: usage.node,
                leave,
            };
        }
    }
    Room::Capacity(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiering::tier::{Figure, MemoryKind, Node, Path, Source};
    use crate::units::Nanos;

    /// Two sockets with DRAM, 85 and 145 ns; memory behind each, 275 and 340 ns.
    fn table(nodes: u32) -> TierTable {
        let latency = [[85, 145, 275, 340], [145, 85, 340, 275]];
        let all: Vec<Node> = (0..nodes)
            .map(|id| Node {
                id: NodeId(id),
                kind: MemoryKind::Dram,
                size: Bytes::from_mib(768),
                cpus: if id < 2 { vec![id] } else { Vec::new() },
                kernel_tier: None,
            })
            .collect();
        let paths = (0..2.min(nodes))
            .flat_map(|from| (0..nodes).map(move |to| (from, to)))
            .map(|(from, to)| Path {
                from: NodeId(from),
                to: NodeId(to),
                distance: 10,
                latency: Figure {
                    value: Nanos(latency[from as usize][to as usize]),
                    source: Source::Sysfs,
                },
                bandwidth: None,
            })
            .collect();
        TierTable::new(TierTable::default_tiers(&all), all, paths).unwrap()
    }

    fn usage(free: u64, total: u64) -> NodeUsage {
        NodeUsage {
            node: NodeId(0),
            total: Bytes::from_mib(total),
            free: Bytes::from_mib(free),
            reserve: Bytes::from_mib(4),
            latency: None,
            cache: None,
        }
    }

    #[test]
    fn the_slowest_and_the_fastest_of_the_first_socket() {
        let place = choose(&table(4)).unwrap();
        assert_eq!(place.cpus, [0]);
        assert_eq!(place.fast, [NodeId(0)]);
        assert_eq!(place.slow, NodeId(3));
        let names: Vec<&str> = place.nodes.iter().map(|(_, n)| n.as_str()).collect();
        assert_eq!(names, ["dram0", "dram1", "dram2", "dram3"]);
    }

    #[test]
    fn one_node_is_told_with_the_way_out() {
        let error = choose(&table(1)).unwrap_err();
        assert_eq!(error, Unfit::OneTier("dram0".into()));
        assert!(error.to_string().contains("make demo"));
    }

    #[test]
    fn room_is_made_by_ballast_where_that_is_small() {
        let place = choose(&table(4)).unwrap();
        let hot = Bytes::from_mib(100);
        // 150 for the hot set, 4 the kernel's reserve, 50 for a burst, more than 2 % of 800.
        assert_eq!(
            room(&place, hot, &[usage(700, 800)]),
            Room::Ballast {
                node: NodeId(0),
                leave: Bytes::from_mib(204)
            }
        );
        assert_eq!(
            room(&place, hot, &[usage(60_000, 64_000)]),
            Room::Capacity(Bytes::from_mib(150))
        );
    }
}
