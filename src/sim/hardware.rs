//! Machines to simulate, as files say them.
//!
//! **Unit.** Latencies and costs in nanoseconds, bandwidths in bytes per second.
//!
//! A file names its nodes with what each *initiator* (a node with CPUs) sees of them, and
//! what watching and moving cost there; each figure with its source beside it. Those that
//! come with hmkeeper are in `config/machines`.

use serde::Deserialize;

use super::file::{self, FileError, Size, Speed, Time};
use crate::tiering::tier::{Figure, MemoryKind, Node, Path, Source, TierTable};
use crate::units::{Bandwidth, Bytes, Nanos, NodeId};

/// Nodes and initiators that a file may have at most.
const NODES_MAX: usize = 16;
/// Bytes that a node may have at most: 64 TiB.
const NODE_BYTES_MAX: u64 = 64 << 40;
/// A cost at most.
const COST_MAX: Nanos = Nanos::from_secs(1);
/// Pages of a huge page beyond the first.
const HUGE_PAGES_LESS_ONE: f64 = 511.0;
/// SLIT distances: of a node itself, and of any other.
const LOCAL: u32 = 10;
const ELSEWHERE: u32 = 20;

/// The machines that come with hmkeeper, by name.
pub const PRESETS: [(&str, &str); 6] = [
    (
        "optane-4tier",
        include_str!("../../config/machines/optane-4tier.toml"),
    ),
    (
        "emulated-4tier",
        include_str!("../../config/machines/emulated-4tier.toml"),
    ),
    (
        "sentinel-2tier",
        include_str!("../../config/machines/sentinel-2tier.toml"),
    ),
    (
        "autotm-2tier",
        include_str!("../../config/machines/autotm-2tier.toml"),
    ),
    (
        "cxl-2tier",
        include_str!("../../config/machines/cxl-2tier.toml"),
    ),
    (
        "cxl-3tier",
        include_str!("../../config/machines/cxl-3tier.toml"),
    ),
];

/// Those that have to be asked for by name: no machine to have findings on.
pub const OF_TESTS: [(&str, &str); 1] = [(
    "vm-4tier",
    include_str!("../../config/machines/vm-4tier.toml"),
)];

/// What one initiator sees of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Of a read, idle.
    pub latency: Nanos,
    /// Bytes read per second at most.
    pub read: Bandwidth,
    /// Bytes written per second at most.
    pub write: Bandwidth,
}

/// Memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryNode {
    /// Which.
    pub id: NodeId,
    /// What it is made of.
    pub kind: MemoryKind,
    /// How much.
    pub size: Bytes,
    /// As each initiator sees it.
    pub links: Vec<Link>,
}

/// What watching and moving cost, in CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// One scan of one sample, of ours.
    pub scan: Nanos,
    /// Finding out where a folio is, of ours.
    pub count: Nanos,
    /// Moving a page of 4 KiB, of ours.
    pub small_move: Nanos,
    /// Moving a huge page of 2 MiB, of ours.
    pub huge_move: Nanos,
    /// A hint fault, of the application's: where a policy stands for a kernel that has such.
    pub hint_fault: Nanos,
    /// Setting an accessed bit again that was cleared, of the application's.
    pub accessed: Nanos,
    /// Folios that each folio of the model stands for, as log2.
    pub coarse: u8,
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hardware {
    /// As `--machine` names it.
    pub name: String,
    /// What it stands for, and the source.
    pub about: String,
    /// The node whose CPUs the application runs on.
    pub home: NodeId,
    /// CPUs altogether, and those that the application keeps busy.
    pub cores: u32,
    /// Threads of the application.
    pub threads: u32,
    /// The last-level cache in front of the application.
    pub cache: Bytes,
    /// What watching and moving cost.
    pub costs: Costs,
    /// Ascending by number.
    pub nodes: Vec<MemoryNode>,
    initiators: Vec<NodeId>,
}

impl Costs {
    /// Of a machine of which nothing is known: `move_pages` of warm pages takes 1.5 to 4 µs
    /// for one of 4 KiB and 150 to 400 µs for a huge one, a hint fault 0.6 to 1.5 µs.
    pub const PLAIN: Self = Self {
        scan: Nanos(2_000),
        count: Nanos(0),
        small_move: Nanos(2_500),
        huge_move: Nanos(250_000),
        hint_fault: Nanos(1_000),
        accessed: Nanos(100),
        coarse: 0,
    };

    /// Of moving a folio of 2^`order` pages: a part for each folio, and one for each of its
    /// pages, such that a small and a huge one cost what they cost.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn of_move(&self, order: u8) -> Nanos {
        let (small, huge) = (self.small_move.0 as f64, self.huge_move.0 as f64);
        let each = ((huge - small) / HUGE_PAGES_LESS_ONE).max(0.0);
        let order = order.saturating_sub(self.coarse);
        let more = f64::from(order).exp2() - 1.0;
        Nanos((self.alike() * (small + each * more)).round() as u64)
    }

    /// Folios that each folio of the model stands for.
    pub fn alike(&self) -> f64 {
        f64::from(self.coarse).exp2()
    }

    /// The same where each folio of the model stands for 2^`coarse` of them: what is done to
    /// one of them is done to all.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn coarser(mut self, coarse: u8) -> Self {
        self.coarse += coarse;
        let all = f64::from(coarse).exp2();
        for cost in [
            &mut self.scan,
            &mut self.count,
            &mut self.accessed,
            &mut self.hint_fault,
        ] {
            *cost = Nanos((cost.0 as f64 * all) as u64);
        }
        self
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNode {
    id: u32,
    kind: MemoryKind,
    size: Size,
    latency: Vec<Time>,
    read: Vec<Speed>,
    write: Vec<Speed>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCosts {
    scan: Time,
    count: Time,
    small_move: Time,
    huge_move: Time,
    hint_fault: Time,
    accessed: Time,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    name: String,
    #[serde(default)]
    about: String,
    initiators: Vec<u32>,
    home: u32,
    cores: u32,
    threads: u32,
    cache: Size,
    costs: RawCosts,
    nodes: Vec<RawNode>,
}

impl Hardware {
    /// From a file's text.
    ///
    /// # Errors
    /// When it is no such file, or contradicts itself.
    pub fn parse(text: &str) -> Result<Self, FileError> {
        let raw: Raw = file::read(text)?;
        if raw.initiators.is_empty() || raw.initiators.len() > NODES_MAX {
            let message = format!("name 1 to {NODES_MAX} nodes that have CPUs");
            return Err(FileError::at("initiators", message));
        }
        if raw.nodes.is_empty() || raw.nodes.len() > NODES_MAX {
            let message = format!("write 1 to {NODES_MAX} of them");
            return Err(FileError::at("nodes", message));
        }
        if !raw.nodes.is_sorted_by(|a, b| a.id < b.id) {
            return Err(FileError::at("nodes", "write each id once, ascending"));
        }
        if !raw.initiators.contains(&raw.home) {
            let message = format!("choose one of initiators, {:?}", raw.initiators);
            return Err(FileError::at("home", message));
        }
        if raw.threads == 0 || raw.cores < raw.threads {
            let message = "write at least one, and no more than there are cores";
            return Err(FileError::at("threads", message));
        }
        let nodes: Result<Vec<MemoryNode>, FileError> = raw
            .nodes
            .iter()
            .map(|node| memory_node(node, raw.initiators.len()))
            .collect();
        let costs = Costs {
            scan: raw.costs.scan.0,
            count: raw.costs.count.0,
            small_move: raw.costs.small_move.0,
            huge_move: raw.costs.huge_move.0,
            hint_fault: raw.costs.hint_fault.0,
            accessed: raw.costs.accessed.0,
            coarse: 0,
        };
        for (name, cost, least) in [
            ("scan", costs.scan, 1),
            ("count", costs.count, 0),
            ("small_move", costs.small_move, 1),
            ("huge_move", costs.huge_move, 1),
            ("hint_fault", costs.hint_fault, 0),
            ("accessed", costs.accessed, 0),
        ] {
            if !(least..=COST_MAX.0).contains(&cost.0) {
                let message = format!("write at least \"{least}ns\", at most \"1s\"");
                return Err(FileError::at(format!("costs.{name}"), message));
            }
        }
        Ok(Self {
            name: file::name(raw.name)?,
            about: raw.about,
            home: NodeId(raw.home),
            cores: raw.cores,
            threads: raw.threads,
            cache: raw.cache.0,
            costs,
            nodes: nodes?,
            initiators: raw.initiators.into_iter().map(NodeId).collect(),
        })
    }

    /// All its memory.
    pub fn size(&self) -> Bytes {
        self.nodes.iter().map(|node| node.size).sum()
    }

    /// What the application sees of each node, in the order of [`nodes`](Self::nodes).
    pub fn links(&self) -> Vec<Link> {
        let at = self.initiators.iter().position(|&node| node == self.home);
        let at = at.unwrap_or(0);
        self.nodes.iter().map(|node| node.links[at]).collect()
    }

    /// Its tiers: each node one, its figures from the file.
    ///
    /// # Errors
    /// When the nodes contradict each other.
    pub fn tiers(&self) -> Result<TierTable, FileError> {
        let nodes: Vec<Node> = self
            .nodes
            .iter()
            .map(|node| Node {
                id: node.id,
                kind: node.kind,
                size: node.size,
                cpus: if self.initiators.contains(&node.id) {
                    vec![node.id.0]
                } else {
                    Vec::new()
                },
                kernel_tier: None,
            })
            .collect();
        let mut paths = Vec::new();
        for (at, &from) in self.initiators.iter().enumerate() {
            for node in &self.nodes {
                let link = node.links[at];
                paths.push(Path {
                    from,
                    to: node.id,
                    distance: if from == node.id { LOCAL } else { ELSEWHERE },
                    latency: Figure {
                        value: link.latency,
                        source: Source::Config,
                    },
                    bandwidth: Some(Figure {
                        value: link.read,
                        source: Source::Config,
                    }),
                });
            }
        }
        TierTable::new(TierTable::default_tiers(&nodes), nodes, paths)
            .map_err(|error| FileError::at("nodes", error.to_string()))
    }
}

fn memory_node(raw: &RawNode, initiators: usize) -> Result<MemoryNode, FileError> {
    let key = |name: &str| format!("nodes, id {}, {name}", raw.id);
    if raw.size.0.is_zero() || raw.size.0.0 > NODE_BYTES_MAX {
        return Err(FileError::at(
            key("size"),
            "write more than 0, at most \"64TiB\"",
        ));
    }
    let lists = [
        ("latency", raw.latency.len()),
        ("read", raw.read.len()),
        ("write", raw.write.len()),
    ];
    for (name, count) in lists {
        if count != initiators {
            let message = format!("write {initiators} values, one for each of initiators");
            return Err(FileError::at(key(name), message));
        }
    }
    let links: Vec<Link> = (0..initiators)
        .map(|at| Link {
            latency: raw.latency[at].0,
            read: raw.read[at].0,
            write: raw.write[at].0,
        })
        .collect();
    let zero = |name, is_zero: fn(&Link) -> bool| {
        let message = "write more than 0";
        let is = links.iter().any(is_zero);
        is.then(|| FileError::at(key(name), message))
    };
    let faults = [
        zero("latency", |link| link.latency.0 == 0),
        zero("read", |link| link.read.0 == 0),
        zero("write", |link| link.write.0 == 0),
    ];
    if let Some(fault) = faults.into_iter().flatten().next() {
        return Err(fault);
    }
    Ok(MemoryNode {
        id: NodeId(raw.id),
        kind: raw.kind,
        size: raw.size.0,
        links,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn preset(name: &str) -> &'static str {
        PRESETS
            .iter()
            .find(|preset| preset.0 == name)
            .expect("a preset")
            .1
    }

    #[test]
    fn those_that_come_along_are_read() {
        for (name, text) in PRESETS.into_iter().chain(OF_TESTS) {
            let hardware = Hardware::parse(text).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(hardware.name, name);
            assert!(!hardware.about.is_empty(), "{name}");
            let tiers = hardware.tiers().unwrap_or_else(|e| panic!("{name}: {e}"));
            let ranks = tiers.view(&[(hardware.home, 1.0)], None).ranks().len();
            assert_eq!(ranks, hardware.nodes.len(), "{name}: each node a rank");
        }
    }

    #[test]
    fn the_four_tiers_are_those_of_the_paper() {
        // HM-Keeper §1.6, as its first socket sees them.
        let hardware = Hardware::parse(preset("optane-4tier")).expect("a machine");
        let links = hardware.links();
        let latency: Vec<u64> = links.iter().map(|link| link.latency.0).collect();
        assert_eq!(latency, [90, 145, 275, 340]);
        let read: Vec<u64> = links
            .iter()
            .map(|link| link.read.0 / 1_000_000_000)
            .collect();
        assert_eq!(read, [95, 35, 35, 1]);
    }

    #[test]
    fn faults_name_their_place_and_the_remedy() {
        for (part, other, says) in [
            ("id = 1\n", "id = 0\n", "nodes: write each id once"),
            (
                "[\"90ns\", \"145ns\"]",
                "[\"90ns\"]",
                "nodes, id 0, latency: write 2 values",
            ),
            ("\"90ns\"", "\"0ns\"", "nodes, id 0, latency"),
            ("home = 0", "home = 2", "home: choose one of initiators"),
            ("threads = 8", "threads = 80", "threads"),
            (
                "scan = \"1.27us\"",
                "scan = \"0s\"",
                "costs.scan: write at least",
            ),
            (
                "\"13.9GB/s\"",
                "\"0GB/s\"",
                "nodes, id 2, write: write more than 0",
            ),
            ("name = \"optane-4tier\"", "name = \"a b\"", "name: write"),
            ("cores = 48", "cores = 48\ncors = 1", "cors"),
        ] {
            let text = preset("optane-4tier").replace(part, other);
            let fault = Hardware::parse(&text).expect_err(part).to_string();
            assert!(fault.contains(says), "{part}: {fault}");
        }
    }

    #[test]
    fn a_larger_folio_costs_more_but_less_per_page() {
        let costs = Costs::PLAIN;
        assert_eq!(costs.of_move(0), costs.small_move);
        assert_eq!(costs.of_move(9), costs.huge_move);
        // Sixteen of each for one.
        let coarse = costs.coarser(4);
        for order in 0..=9 {
            let each = 16 * costs.of_move(order).0;
            assert!(coarse.of_move(order + 4).0.abs_diff(each) <= 16, "{order}");
        }
        assert_eq!(coarse.scan.0, 16 * costs.scan.0);
        for order in 0..12 {
            let (small, large) = (costs.of_move(order), costs.of_move(order + 1));
            assert!(small < large && large.0 <= 2 * small.0, "{order}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(at in 0..2000_usize, text in "\\PC{0,12}") {
            let mut file = preset("optane-4tier").to_owned();
            if file.is_char_boundary(at) {
                file.insert_str(at, &text);
            }
            let _ = Hardware::parse(&file);
        }
    }
}
