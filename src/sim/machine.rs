//! The model.

mod eating;
mod looking;
mod moving;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

pub use self::eating::Eater;
use super::extents::Extents;
use super::hardware::{Costs, Hardware, Link};
use super::program::Program;
use crate::ports::Keep;
use crate::tiering::observation::{NodeUsage, ReadLatency, TargetId};
use crate::tiering::rng::Rng;
use crate::tiering::tier::{Figure, MemoryKind, Node, Path, Source, TierTable, TierTableError};
use crate::units::{Bytes, Nanos, NodeId, PAGE_BYTES, PageRange, Pid, VirtAddr};

/// Accesses per second of the page at an address, at a time.
pub type Rate = Box<dyn Fn(VirtAddr, Nanos) -> f64>;

/// CPUs of a machine that is not described, and leaves as many idle as anybody asks for.
const CORES: f64 = 64.0;

/// How the pages of a process are accessed.
pub enum Touch {
    /// At given rates, whatever happens to it. Its processes never wait.
    Rate(Rate),
    /// As fast as its memory allows. Its range is as long as its memory.
    Program(Box<Program>),
}

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
    pub touch: Touch,
    /// Where its CPUs are.
    pub home: NodeId,
}

impl Process {
    /// The folio of a program that a page, by number, is in.
    fn folio(&self, order: u8, page: u64) -> usize {
        let first = self.range.start().page_index();
        usize::try_from((page - first) >> order).unwrap_or(usize::MAX)
    }
}

/// CPU time of asking one node how late it answers.
const ASKING: Nanos = Nanos(100_000);

/// The machine: nodes, processes, pages and the time.
pub struct Machine {
    pub(super) now: Nanos,
    pub(super) cpu: Nanos,
    pub(super) mover_cpu: Nanos,
    pub(super) rng: Rng,
    pub(super) processes: Vec<Process>,
    /// What watching and moving cost.
    pub(super) costs: Costs,
    /// The nodes, ascending.
    ids: Vec<NodeId>,
    capacity: BTreeMap<NodeId, u64>,
    used: BTreeMap<NodeId, u64>,
    pages: BTreeMap<Pid, Extents>,
    /// As programs see the nodes, in the order of their numbers; empty without.
    links: Vec<Link>,
    /// CPUs that programs leave idle, and what of their time nobody has used so far.
    idle: f64,
    idled: Nanos,
    /// Bytes that were moved from one node to another.
    traffic: BTreeMap<(NodeId, NodeId), Bytes>,
    /// Until when programs have run, and what we had used of the CPUs then.
    settled: Nanos,
    settled_cpu: Nanos,
    /// Makes the sampler see nothing, as a CPU without an aging TLB would.
    pub blind: bool,
    /// From when on, and for how long, the loop does not get to run, as on a
    /// machine that is overloaded; its processes go on.
    pub pause: Option<(Nanos, Nanos)>,
    /// Folios that memory is made of, as log2 of their pages, but for that of programs,
    /// which know their own. A folio is accessed as its first page is.
    pub order: u8,
    /// CPU time of reading the mappings of a process.
    pub map_cost: Nanos,
    /// Pages that the kernel will not move.
    pub pinned: Vec<(Pid, PageRange)>,
    /// Who allocates beside its processes.
    eaters: Vec<Eater>,
    /// What a mover leaves of each node.
    pub(super) keeps: Vec<Keep>,
}

/// The machine, shared by its ports.
pub type Shared = Rc<RefCell<Machine>>;

impl Machine {
    /// Nodes of so many bytes, empty, at time zero.
    pub fn new(nodes: &[(NodeId, Bytes)], seed: u64) -> Self {
        let mut ids: Vec<NodeId> = nodes.iter().map(|&(node, _)| node).collect();
        ids.sort_unstable();
        Self {
            ids,
            now: Nanos::ZERO,
            cpu: Nanos::ZERO,
            mover_cpu: Nanos::ZERO,
            rng: Rng::new(seed),
            processes: Vec::new(),
            costs: Costs::PLAIN,
            capacity: nodes.iter().map(|&(n, b)| (n, b.0 / PAGE_BYTES)).collect(),
            used: nodes.iter().map(|&(n, _)| (n, 0)).collect(),
            pages: BTreeMap::new(),
            links: Vec::new(),
            idle: f64::INFINITY,
            idled: Nanos::ZERO,
            traffic: BTreeMap::new(),
            settled: Nanos::ZERO,
            settled_cpu: Nanos::ZERO,
            blind: false,
            pause: None,
            order: 0,
            map_cost: Nanos::ZERO,
            pinned: Vec::new(),
            eaters: Vec::new(),
            keeps: Vec::new(),
        }
    }

    /// As a file describes it, empty, at time zero.
    pub fn of(hardware: &Hardware, seed: u64) -> Self {
        let nodes = hardware.nodes.iter().map(|node| (node.id, node.size));
        Self {
            costs: hardware.costs,
            links: hardware.links(),
            idle: f64::from(hardware.cores.saturating_sub(hardware.threads)),
            ..Self::new(&nodes.collect::<Vec<_>>(), seed)
        }
    }

    /// The virtual time.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// CPU time that we have used, and of that for moving.
    pub fn spent(&self) -> (Nanos, Nanos) {
        (self.cpu, self.mover_cpu)
    }

    /// Bytes that were moved from one node to another, so far.
    pub fn traffic(&self) -> &BTreeMap<(NodeId, NodeId), Bytes> {
        &self.traffic
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
        self.start_on(process, &[on]);
    }

    /// Starts a process: its pages, in ascending order, fill the nodes one after the
    /// other, as far as there is room.
    ///
    /// # Panics
    /// When they have no room for it.
    pub fn start_on(&mut self, mut process: Process, nodes: &[NodeId]) {
        let all = numbers(process.range);
        let mut extents = Extents::default();
        let order = self.order_of(&process);
        let mut at = all.start;
        for &node in nodes {
            // Whole folios.
            let room = self.room(node) >> order << order;
            let end = all.end.min(at + room);
            match &mut process.touch {
                Touch::Program(program) => {
                    let index = index_of(&self.ids, node).expect("a node of the machine");
                    for folio in (at - all.start) >> order..(end - all.start) >> order {
                        program.place(usize::try_from(folio).expect("in memory"), index);
                    }
                }
                Touch::Rate(_) => extents.add(at..end, node),
            }
            *self.used.entry(node).or_default() += end - at;
            at = end;
        }
        assert!(at == all.end, "nodes {nodes:?} are full");
        if let Touch::Rate(_) = process.touch {
            self.pages.insert(process.pid, extents);
        }
        self.processes.push(process);
    }

    /// A process that is no program maps so much more behind what it has and touches it:
    /// on the first of these nodes as far as that has room, then on the next.
    ///
    /// # Panics
    /// When they have no room for it, and when there is no such process.
    pub fn grow(&mut self, pid: Pid, more: Bytes, nodes: &[NodeId]) {
        let mut processes = self.processes.iter_mut();
        let process = processes.find(|p| p.pid == pid).expect("a process");
        let mut at = process.range.end().page_index();
        let last = at + more.pages();
        let end = VirtAddr(last * PAGE_BYTES);
        process.range = PageRange::new(process.range.start(), end).expect("a longer range");
        for &node in nodes {
            let room = self.room(node) >> self.order << self.order;
            let end = last.min(at + room);
            let extents = self.pages.get_mut(&pid).expect("no program");
            extents.add(at..end, node);
            *self.used.entry(node).or_default() += end - at;
            at = end;
        }
        assert!(at == last, "nodes {nodes:?} are full");
    }

    fn order_of(&self, process: &Process) -> u8 {
        match &process.touch {
            Touch::Rate(_) => self.order,
            Touch::Program(program) => program.order(),
        }
    }

    /// Of the folios of a process, as log2 of pages.
    pub(super) fn order(&self, pid: Pid) -> u8 {
        let process = self.processes.iter().find(|p| p.pid == pid);
        process.map_or(self.order, |process| self.order_of(process))
    }

    /// Ends a process.
    pub fn end(&mut self, pid: Pid) {
        let Some(at) = self.processes.iter().position(|p| p.pid == pid) else {
            return;
        };
        let range = self.processes[at].range;
        for (run, node) in self.placed(pid, range) {
            *self.used.entry(node).or_default() -= run.end - run.start;
        }
        self.processes.remove(at);
        self.pages.remove(&pid);
    }

    /// The program of a process, if it is one.
    pub fn program(&mut self, pid: Pid) -> Option<&mut Program> {
        self.settle();
        let process = self.processes.iter_mut().find(|p| p.pid == pid)?;
        match &mut process.touch {
            Touch::Program(program) => Some(program),
            Touch::Rate(_) => None,
        }
    }

    fn programs(&mut self) -> impl Iterator<Item = &mut Program> {
        self.processes
            .iter_mut()
            .filter_map(|p| match &mut p.touch {
                Touch::Program(program) => Some(&mut **program),
                Touch::Rate(_) => None,
            })
    }

    /// Programs run until now.
    fn settle(&mut self) {
        let seconds = self.now.saturating_sub(self.settled).as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        let ours = self.cpu.saturating_sub(self.settled_cpu).as_secs_f64();
        // What idle CPUs have no time for comes out of the programs'.
        let taken = (ours - self.idle * seconds).max(0.0);
        let idled = (self.idle.min(CORES) * seconds - ours).max(0.0);
        self.idled += Nanos::from_secs_f64(idled);
        self.settled = self.now;
        self.settled_cpu = self.cpu;
        for program in self.programs() {
            program.hold(taken / program.threads());
            program.advance(seconds);
        }
    }

    /// For how long cores have been idle so far, all together.
    pub fn idle_time(&mut self) -> Nanos {
        self.settle();
        self.idled
    }

    /// Nobody does anything for a while but the processes.
    pub fn wait(&mut self, time: Nanos) {
        self.now += time;
        self.settle();
        self.eat();
    }

    /// So many folios' hint faults came, which its programs' threads take, all alike.
    pub(super) fn fault(&mut self, folios: f64) {
        let seconds = folios * self.costs.hint_fault.as_secs_f64();
        for program in self.programs() {
            program.hold(seconds / program.threads());
        }
    }

    /// Puts a program's folios, the first ones first, on the nodes one after the other, at
    /// no cost.
    pub fn arrange(&mut self, pid: Pid, folios: &[usize], nodes: &[NodeId]) {
        let room: Vec<u64> = nodes.iter().map(|node| self.capacity[node]).collect();
        let Some(process) = self.processes.iter_mut().find(|p| p.pid == pid) else {
            return;
        };
        let Touch::Program(program) = &mut process.touch else {
            return;
        };
        let pages = 1 << program.order();
        let mut left = folios.iter();
        for (&node, room) in nodes.iter().zip(room) {
            let Some(index) = index_of(&self.ids, node) else {
                continue;
            };
            let mut count = 0;
            for &folio in left
                .by_ref()
                .take(usize::try_from(room / pages).unwrap_or(usize::MAX))
            {
                program.place(folio, index);
                count += pages;
            }
            self.used.insert(node, count);
        }
    }

    /// Free pages of a node.
    fn room(&self, node: NodeId) -> u64 {
        let all = self.capacity.get(&node).copied().unwrap_or(0);
        all - self.used.get(&node).copied().unwrap_or(0)
    }

    /// Free bytes of a node.
    pub(super) fn free(&self, node: NodeId) -> Bytes {
        Bytes::from_pages(self.room(node))
    }

    /// Memory per node. Of a program it can be asked how late nodes answer, of what is touched at
    /// given rates not.
    pub fn usage(&mut self, asks_latency: bool) -> Vec<NodeUsage> {
        self.eat();
        let latencies = (self.programs().next().filter(|_| asks_latency)).map(Program::latencies);
        if latencies.is_some() {
            self.charge(Nanos(ASKING.0 * self.ids.len() as u64));
        }
        let latency = |at: usize| {
            let &(now, idle) = latencies.as_ref()?.get(at)?;
            Some(ReadLatency {
                now: Nanos::from_secs_f64(now),
                idle: Nanos::from_secs_f64(idle),
            })
        };
        let nodes = self.capacity.iter().enumerate();
        nodes
            .map(|(at, (&node, &pages))| NodeUsage {
                node,
                total: Bytes::from_pages(pages),
                free: Bytes::from_pages(self.room(node)),
                reserve: Bytes::ZERO,
                latency: latency(at),
                cache: None,
            })
            .collect()
    }

    /// Where a page is.
    pub fn node_of(&self, pid: Pid, addr: VirtAddr) -> Option<NodeId> {
        let process = self.processes.iter().find(|p| p.pid == pid)?;
        match &process.touch {
            Touch::Rate(_) => self.pages.get(&pid)?.node(addr.page_index()),
            Touch::Program(program) => {
                let inside = process.range.contains(addr);
                let folio = inside.then(|| process.folio(program.order(), addr.page_index()))?;
                Some(self.ids[usize::from(program.node_of(folio))])
            }
        }
    }

    /// The pages of a range that are anywhere, by number, in runs on one node.
    pub fn placed(&self, pid: Pid, range: PageRange) -> Vec<(Range<u64>, NodeId)> {
        let Some(process) = self.processes.iter().find(|p| p.pid == pid) else {
            return Vec::new();
        };
        let Touch::Program(program) = &process.touch else {
            let extents = self.pages.get(&pid);
            return extents.map_or_else(Vec::new, |e| e.within(numbers(range)).collect());
        };
        let Some(range) = range.intersect(process.range) else {
            return Vec::new();
        };
        let order = program.order();
        let asked = numbers(range);
        let mut runs: Vec<(Range<u64>, NodeId)> = Vec::new();
        let mut at = asked.start;
        while at < asked.end {
            let node = self.ids[usize::from(program.node_of(process.folio(order, at)))];
            let first = process.range.start().page_index();
            let end = first + ((((at - first) >> order) + 1) << order);
            let end = end.min(asked.end);
            match runs.last_mut() {
                Some((run, on)) if *on == node => run.end = end,
                _ => runs.push((at..end, node)),
            }
            at = end;
        }
        runs
    }

    /// A process with the page at an address.
    fn owner(&self, pid: Pid, addr: VirtAddr) -> Option<usize> {
        let at = self.processes.iter().position(|p| p.pid == pid)?;
        self.processes[at].range.contains(addr).then_some(at)
    }

    /// How often a page was accessed up to now, to tell from when it is asked again how
    /// often it was in between; `None` where that is known by its rate.
    pub(super) fn touches(&self, pid: Pid, addr: VirtAddr) -> Option<f64> {
        let process = &self.processes[self.owner(pid, addr)?];
        let Touch::Program(program) = &process.touch else {
            return None;
        };
        Some(program.touches(process.folio(program.order(), addr.page_index())))
    }

    /// Our own CPU time goes on, and the clock with it.
    pub(super) fn charge(&mut self, cost: Nanos) {
        self.cpu += cost;
        self.now += cost;
    }

    /// Share of a process's accesses that each node serves now, by the rates
    /// themselves: the truth that estimates are held against.
    pub fn true_shares(&self, pid: Pid) -> BTreeMap<NodeId, f64> {
        let mut shares = BTreeMap::new();
        let Some(process) = self.processes.iter().find(|p| p.pid == pid) else {
            return shares;
        };
        let rate = |addr: VirtAddr| match &process.touch {
            Touch::Rate(rate) => rate(addr, self.now),
            Touch::Program(program) => {
                program.misses(process.folio(program.order(), addr.page_index()))
            }
        };
        let mut total = 0.0;
        for addr in process.range.iter_pages() {
            if let Some(node) = self.node_of(pid, addr) {
                let rate = rate(addr);
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

/// The place of a node in the list that programs know them by.
fn index_of(ids: &[NodeId], node: NodeId) -> Option<u8> {
    let at = ids.iter().position(|&n| n == node)?;
    u8::try_from(at).ok()
}

fn page_range(pages: &Range<u64>) -> Option<PageRange> {
    PageRange::new(
        VirtAddr(pages.start * PAGE_BYTES),
        VirtAddr(pages.end * PAGE_BYTES),
    )
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
