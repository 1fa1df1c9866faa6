//! The model.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::extents::Extents;
use crate::tiering::observation::{NodeUsage, TargetId};
use crate::tiering::rng::Rng;
use crate::tiering::tier::{Figure, MemoryKind, Node, Path, Source, TierTable, TierTableError};
use crate::units::{Bytes, Nanos, NodeId, PAGE_BYTES, PageRange, Pid, VirtAddr};

/// CPU time of one scan of one sample.
pub(super) const SCAN_COST: Nanos = Nanos(2_000);
/// CPU time of moving one page of 4 KiB.
pub(super) const MOVE_COST: Nanos = Nanos(2_500);

/// Accesses per second of the page at an address, at a time.
pub type Rate = Box<dyn Fn(VirtAddr, Nanos) -> f64>;

/// A process of the model.
pub struct Process {
    /// Who, for the engine.
    pub id: TargetId,
    /// Its process id.
    pub pid: Pid,
    /// Its name.
    pub name: Arc<str>,
    /// What it has mapped.
    pub range: PageRange,
    /// How its pages are accessed.
    pub rate: Rate,
    /// Where its CPUs are.
    pub home: NodeId,
}

/// The machine: nodes, processes, pages and the time.
pub struct Machine {
    pub(super) now: Nanos,
    pub(super) cpu: Nanos,
    pub(super) mover_cpu: Nanos,
    pub(super) rng: Rng,
    pub(super) processes: Vec<Process>,
    capacity: BTreeMap<NodeId, u64>,
    used: BTreeMap<NodeId, u64>,
    pages: BTreeMap<Pid, Extents>,
    /// Makes the sampler see nothing, as a CPU without an aging TLB would.
    pub blind: bool,
    /// From when on, and for how long, the loop does not get to run, as on a
    /// machine that is overloaded; its processes go on.
    pub pause: Option<(Nanos, Nanos)>,
    /// Folios that all memory is made of, as log2 of their pages. A folio is
    /// accessed as its first page is.
    pub order: u8,
    /// CPU time of reading the mappings of a process.
    pub map_cost: Nanos,
    /// Pages that the kernel will not move.
    pub pinned: Vec<(Pid, PageRange)>,
}

/// The machine, shared by its ports.
pub type Shared = Rc<RefCell<Machine>>;

impl Machine {
    /// Nodes of so many bytes, empty, at time zero.
    pub fn new(nodes: &[(NodeId, Bytes)], seed: u64) -> Self {
        Self {
            now: Nanos::ZERO,
            cpu: Nanos::ZERO,
            mover_cpu: Nanos::ZERO,
            rng: Rng::new(seed),
            processes: Vec::new(),
            capacity: nodes.iter().map(|&(n, b)| (n, b.0 / PAGE_BYTES)).collect(),
            used: nodes.iter().map(|&(n, _)| (n, 0)).collect(),
            pages: BTreeMap::new(),
            blind: false,
            pause: None,
            order: 0,
            map_cost: Nanos::ZERO,
            pinned: Vec::new(),
        }
    }

    /// The virtual time.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// To be shared by its ports.
    pub fn shared(self) -> Shared {
        Rc::new(RefCell::new(self))
    }

    /// Two initiators, latencies in nanoseconds from each to every node.
    ///
    /// # Errors
    /// When there are no nodes.
    pub fn tiers(&self, latencies: [&[u64]; 2]) -> Result<TierTable, TierTableError> {
        let nodes: Vec<Node> = self
            .capacity
            .iter()
            .map(|(&id, &pages)| Node {
                id,
                kind: if id.0 < 2 {
                    MemoryKind::Dram
                } else {
                    MemoryKind::Unknown
                },
                size: Bytes::from_pages(pages),
                cpus: if id.0 < 2 { vec![id.0] } else { Vec::new() },
                kernel_tier: None,
            })
            .collect();
        let mut paths = Vec::new();
        for (from, row) in (0..).zip(latencies) {
            for (node, &ns) in nodes.iter().zip(row) {
                paths.push(Path {
                    from: NodeId(from),
                    to: node.id,
                    distance: 10,
                    latency: Figure {
                        value: Nanos(ns),
                        source: Source::Config,
                    },
                    bandwidth: None,
                });
            }
        }
        TierTable::new(TierTable::default_tiers(&nodes), nodes, paths)
    }

    /// Starts a process with all its pages on one node.
    ///
    /// # Panics
    /// When the node has no room for it.
    pub fn start(&mut self, process: Process, on: NodeId) {
        let count = process.range.pages();
        assert!(self.room(on) >= count, "node {on} is full");
        *self.used.entry(on).or_default() += count;
        self.pages
            .insert(process.pid, Extents::on(numbers(process.range), on));
        self.processes.push(process);
    }

    /// Ends a process.
    pub fn end(&mut self, pid: Pid) {
        self.processes.retain(|p| p.pid != pid);
        let Some(extents) = self.pages.remove(&pid) else {
            return;
        };
        for (run, node) in extents.within(0..u64::MAX) {
            *self.used.entry(node).or_default() -= run.end - run.start;
        }
    }

    /// Free pages of a node.
    fn room(&self, node: NodeId) -> u64 {
        let all = self.capacity.get(&node).copied().unwrap_or(0);
        all - self.used.get(&node).copied().unwrap_or(0)
    }

    /// Memory per node.
    pub fn usage(&self) -> Vec<NodeUsage> {
        self.capacity
            .iter()
            .map(|(&node, &pages)| NodeUsage {
                node,
                total: Bytes::from_pages(pages),
                free: Bytes::from_pages(self.room(node)),
                reserve: Bytes::ZERO,
            })
            .collect()
    }

    /// Where a page is.
    pub fn node_of(&self, pid: Pid, addr: VirtAddr) -> Option<NodeId> {
        self.pages.get(&pid)?.node(addr.page_index())
    }

    /// The pages of a range that are anywhere, by number, in runs on one node.
    pub fn placed(&self, pid: Pid, range: PageRange) -> Vec<(Range<u64>, NodeId)> {
        let extents = self.pages.get(&pid);
        extents.map_or_else(Vec::new, |e| e.within(numbers(range)).collect())
    }

    /// Whether a page was accessed in the window that ends now; draws.
    pub(super) fn accessed(&mut self, pid: Pid, addr: VirtAddr, window: Nanos) -> Option<bool> {
        self.charge(SCAN_COST);
        self.node_of(pid, addr)?;
        let process = self.processes.iter().find(|p| p.pid == pid)?;
        let folio = addr.align_down(PAGE_BYTES << self.order);
        let rate = (process.rate)(folio, self.now);
        // Poisson: none in the window with probability e^(-rate x window).
        let idle = (-rate * window.as_secs_f64()).exp();
        let draw = self.rng.next_u64() as f64 / u64::MAX as f64;
        Some(!self.blind && draw >= idle)
    }

    /// Our own CPU time goes on, and the clock with it.
    pub(super) fn charge(&mut self, cost: Nanos) {
        self.cpu += cost;
        self.now += cost;
    }

    /// Moves pages, by number, which are all on one node: the first of them as far
    /// as there is room. How many were moved, pinned, and left for want of room.
    pub(super) fn move_pages(&mut self, pid: Pid, pages: Range<u64>, to: NodeId) -> Moved {
        let count = pages.end - pages.start;
        self.charge(Nanos(MOVE_COST.0 * count));
        self.mover_cpu += Nanos(MOVE_COST.0 * count);
        let mut moved = Moved::default();
        let pinned: Vec<Range<u64>> = self
            .pinned
            .iter()
            .filter(|(owner, _)| *owner == pid)
            .map(|(_, range)| numbers(*range))
            .collect();
        let mut at = pages.start;
        while at < pages.end {
            let hold = pinned.iter().find(|p| p.contains(&at));
            if let Some(hold) = hold {
                let end = hold.end.min(pages.end);
                moved.busy += end - at;
                at = end;
                continue;
            }
            let next = pinned.iter().map(|p| p.start).filter(|&start| start > at);
            let end = next.min().map_or(pages.end, |start| start.min(pages.end));
            let fits = (end - at).min(self.room(to));
            self.place(pid, at..at + fits, to);
            moved.done += fits;
            moved.no_room += end - at - fits;
            at = end;
        }
        moved
    }

    fn place(&mut self, pid: Pid, pages: Range<u64>, to: NodeId) {
        let Some(extents) = self.pages.get_mut(&pid) else {
            return;
        };
        for (run, node) in extents.within(pages.clone()) {
            let count = run.end - run.start;
            *self.used.entry(node).or_default() -= count;
            *self.used.entry(to).or_default() += count;
        }
        extents.set(pages, to);
    }

    /// Share of a process's accesses that each node serves now, by the rates
    /// themselves: the truth that estimates are held against.
    pub fn true_shares(&self, pid: Pid) -> BTreeMap<NodeId, f64> {
        let mut shares = BTreeMap::new();
        let Some(process) = self.processes.iter().find(|p| p.pid == pid) else {
            return shares;
        };
        let mut total = 0.0;
        for addr in process.range.iter_pages() {
            if let Some(node) = self.node_of(pid, addr) {
                let rate = (process.rate)(addr, self.now);
                *shares.entry(node).or_insert(0.0) += rate;
                total += rate;
            }
        }
        for share in shares.values_mut() {
            *share /= f64::max(total, f64::MIN_POSITIVE);
        }
        shares
    }
}

fn numbers(range: PageRange) -> Range<u64> {
    let first = range.start().page_index();
    first..first + range.pages()
}

/// What became of some pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) done: u64,
    pub(super) busy: u64,
    pub(super) no_room: u64,
}
