//! The ports over the model.

use std::rc::Rc;

use super::machine::{Machine, Process, Shared, Touch};
use crate::ports::{
    AccessSampler, Calibration, Clock, Keep, MoveLimits, PageMover, PortError, Ports, Residency,
    SamplerKind, Selector, TargetEvent, TargetSpec, Targets, Wake, WriteWatch,
};
use crate::tiering::observation::{
    AccessSet, Mapped, NodeUsage, RangeResidency, Sample, Seen, Share, TargetKind, TargetMap,
};
use crate::tiering::plan::{Move, MoveOutcome, MoveResult, PageCounts, Sweep};
use crate::tiering::settings::Asking;
use crate::tiering::shortage::Glance;
use crate::tiering::windows::SHORTEST;
use crate::tiering::writes::WRITE_FAULT;
use crate::units::{Nanos, NodeId, Pid};

/// All ports of one machine.
pub fn ports(machine: &Shared) -> Ports {
    Ports {
        targets: Box::new(SimTargets {
            machine: Rc::clone(machine),
            watched: Vec::new(),
            specs: Vec::new(),
        }),
        sampler: Box::new(SimSampler {
            machine: Rc::clone(machine),
            armed: Nanos::ZERO,
            before: Vec::new(),
        }),
        writes: Some(Box::new(SimMemory(Rc::clone(machine)))),
        residency: Box::new(SimMemory(Rc::clone(machine))),
        mover: Box::new(SimMemory(Rc::clone(machine))),
        pager: None,
        clock: Box::new(SimMemory(Rc::clone(machine))),
    }
}

struct SimTargets {
    machine: Shared,
    specs: Vec<TargetSpec>,
    watched: Vec<(Pid, String)>,
}

fn selects(spec: &TargetSpec, machine: &Machine, at: usize) -> bool {
    let process = &machine.processes[at];
    match &spec.selector {
        Selector::Pid(pid) => *pid == process.pid,
        Selector::Comm(name) | Selector::Cmdline(name) => **name == *process.name,
        Selector::Cgroup(_) | Selector::Unit(_) => false,
    }
}

/// The model's threads are always busy.
fn cpu_time(process: &Process, now: Nanos) -> Nanos {
    match &process.touch {
        Touch::Rate(_) => now,
        Touch::Program(program) => Nanos::from_secs_f64(now.as_secs_f64() * program.threads()),
    }
}

impl Targets for SimTargets {
    fn select(&mut self, specs: &[TargetSpec]) {
        self.specs = specs.to_vec();
    }

    fn read(&mut self, events: &mut Vec<TargetEvent>) -> Result<Vec<TargetMap>, PortError> {
        let mut machine = self.machine.borrow_mut();
        let watched = (0..machine.processes.len())
            .filter(|&at| self.specs.iter().any(|s| selects(s, &machine, at)))
            .count();
        let cost = Nanos(machine.map_cost.0 * watched as u64);
        machine.charge(cost);
        let mut maps = Vec::new();
        let mut now = Vec::new();
        for (at, process) in machine.processes.iter().enumerate() {
            if !self.specs.iter().any(|s| selects(s, &machine, at)) {
                continue;
            }
            now.push((process.pid, process.name.to_string()));
            maps.push(TargetMap {
                id: process.id,
                pid: process.pid,
                name: process.name.clone(),
                sharers: 0,
                kind: TargetKind::Generic,
                eligible: vec![process.range],
                cpu_time: cpu_time(process, machine.now),
                memory_time: cpu_time(process, machine.now),
                cpu_share: vec![(process.home, 1.0)],
                allowed_nodes: None,
                excluded: Vec::new(),
                mapped: Mapped::default(),
                share: Share::default(),
            });
        }
        for (pid, name) in self.watched.iter().filter(|w| !now.contains(w)).cloned() {
            events.push(TargetEvent::Ended { pid, name });
        }
        for (pid, name) in now.iter().filter(|n| !self.watched.contains(n)).cloned() {
            events.push(TargetEvent::Attached { pid, name });
        }
        self.watched = now;
        Ok(maps)
    }
}

struct SimSampler {
    machine: Shared,
    /// When the window under way began.
    armed: Nanos,
    /// How often each sample had been accessed then, where that is counted, and where it was.
    before: Vec<(Option<f64>, Option<NodeId>)>,
}

impl AccessSampler for SimSampler {
    fn kind(&self) -> SamplerKind {
        SamplerKind::Simulated
    }

    fn arm(&mut self, samples: &[Sample], _window: Nanos) -> Result<(), PortError> {
        let mut machine = self.machine.borrow_mut();
        machine.look_up();
        self.armed = machine.now;
        self.before.clear();
        let before = |s: &Sample| {
            let node = machine.node_of(s.pid, s.addr);
            (machine.touches(s.pid, s.addr), node)
        };
        let before = samples.iter().map(before);
        self.before.extend(before);
        Ok(())
    }

    /// The model's looks take no time.
    fn shortest(&self) -> Nanos {
        SHORTEST
    }

    fn calibrate(&mut self) -> Result<Option<Calibration>, PortError> {
        const SCANS: u64 = 512;
        let mut machine = self.machine.borrow_mut();
        let took = Nanos(machine.costs.scan.0 * SCANS);
        machine.charge(took);
        Ok(Some(Calibration { scans: SCANS, took }))
    }

    fn collect(&mut self, seen: &mut AccessSet) -> Result<(), PortError> {
        let mut machine = self.machine.borrow_mut();
        machine.look_up();
        let window = machine.now.saturating_sub(self.armed);
        for i in 0..seen.samples().len() {
            let Sample { pid, addr, .. } = seen.samples()[i];
            let (touches, node) = self.before.get(i).copied().unwrap_or_default();
            let look = machine.look(pid, addr, window, touches);
            // What is elsewhere now has another frame, of which nothing is known.
            let has_moved = node.is_some() && look.node != node;
            seen.record(i, if has_moved { Seen::Unknown } else { look.seen });
            seen.place(i, look.order, look.node);
            if look.is_written {
                seen.note_written(i);
            }
        }
        seen.end_scan();
        Ok(())
    }
}

struct SimMemory(Shared);

impl Residency for SimMemory {
    fn sweep(&mut self, sweep: Sweep) -> Result<RangeResidency, PortError> {
        let mut machine = self.0.borrow_mut();
        let mut counts = std::collections::BTreeMap::new();
        let mut pages = 0;
        for (run, node) in machine.placed(sweep.pid, sweep.range) {
            *counts.entry(node).or_insert(0) += run.end - run.start;
            pages += run.end - run.start;
        }
        let folios = pages.div_ceil(1 << machine.order(sweep.pid));
        let cost = Nanos(machine.costs.count.0 * folios);
        machine.charge(cost);
        Ok(RangeResidency {
            target: sweep.target,
            range: sweep.range,
            pages_by_node: counts.into_iter().collect(),
        })
    }

    fn nodes(&mut self, asks_latency: Asking) -> Result<Vec<NodeUsage>, PortError> {
        Ok(self.0.borrow_mut().usage(asks_latency != Asking::Never))
    }

    fn glance(&mut self, nodes: &[NodeId]) -> Vec<Glance> {
        let mut machine = self.0.borrow_mut();
        let nodes = nodes.iter();
        nodes.filter_map(|&node| machine.glance(node)).collect()
    }
}

impl WriteWatch for SimMemory {
    fn forget(&mut self, pid: Pid, _: Asking) -> Result<Option<Nanos>, PortError> {
        Ok(self.0.borrow_mut().forget_written(pid))
    }

    fn fault(&self) -> Nanos {
        WRITE_FAULT
    }
}

impl PageMover for SimMemory {
    fn apply(&mut self, moves: &[Move], limits: MoveLimits) -> Result<MoveOutcome, PortError> {
        let mut machine = self.0.borrow_mut();
        let start = machine.now;
        let mut left = limits.bytes.pages();
        let mut outcome = MoveOutcome::default();
        for asked in moves {
            let mut pages = PageCounts::default();
            let mut limit = asked.limit.pages();
            let order = machine.order(asked.pid);
            let folio = machine.costs.of_move(order);
            for (run, node) in machine.placed(asked.pid, asked.range) {
                if node != asked.from {
                    continue;
                }
                let count = (run.end - run.start).min(limit);
                limit -= count;
                // One call after the other, each as long as it may be: none is cut short.
                let call = (limits.call_time.0 / folio.0.max(1)).max(1) << order;
                let end = run.start + count.min(left);
                let mut at = run.start;
                while at < end
                    && machine.now.saturating_sub(start) < limits.time
                    && !machine.is_short()
                {
                    let began = machine.now;
                    // Whole folios, wherever the first begins.
                    let upto = end.min(((at + call) >> order) << order);
                    let moved = machine.move_pages(asked.pid, at..upto, asked.to);
                    pages.moved += moved.done;
                    pages.busy += moved.busy;
                    pages.no_room += moved.no_room;
                    left = left.saturating_sub(moved.done);
                    let took = machine.now.saturating_sub(began);
                    outcome.longest_call = outcome.longest_call.max(took);
                    at = upto;
                }
                pages.deferred += run.start + count - at;
            }
            outcome.results.push(MoveResult {
                asked: asked.clone(),
                pages,
                is_whole: limit > 0,
            });
        }
        outcome.elapsed = machine.now.saturating_sub(start);
        Ok(outcome)
    }

    fn keep(&mut self, nodes: &[Keep], _in_haste: bool) {
        self.0.borrow_mut().keeps = nodes.to_vec();
    }

    fn cpu_time(&self) -> Nanos {
        self.0.borrow().mover_cpu
    }
}

impl Clock for SimMemory {
    fn now(&self) -> Nanos {
        self.0.borrow().now
    }

    fn thread_cpu_time(&self) -> Nanos {
        self.0.borrow().cpu
    }

    fn process_cpu_time(&self) -> Nanos {
        self.0.borrow().cpu
    }

    fn idle_time(&mut self) -> Nanos {
        self.0.borrow_mut().idle_time()
    }

    fn sleep_until(&mut self, at: Nanos) -> Wake {
        let mut machine = self.0.borrow_mut();
        machine.now = machine.now.max(at);
        if let Some((from, long)) = machine.pause.filter(|pause| machine.now >= pause.0) {
            machine.now = machine.now.max(from + long);
            machine.pause = None;
        }
        machine.eat();
        Wake::Due
    }
}
