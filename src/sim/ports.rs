//! The ports over the model.

use std::rc::Rc;

use super::machine::{MOVE_COST, Machine, SCAN_COST, Shared};
use crate::ports::{
    AccessSampler, Calibration, Clock, MoveLimits, PageMover, PortError, Ports, Residency,
    SamplerKind, Selector, TargetEvent, TargetSpec, Targets, Wake,
};
use crate::tiering::observation::{
    AccessSet, NodeUsage, RangeResidency, Sample, Seen, TargetKind, TargetMap,
};
use crate::tiering::plan::{Move, MoveOutcome, MoveResult, PageCounts, Sweep};
use crate::units::{Nanos, Pid};

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
        }),
        writes: None,
        residency: Box::new(SimMemory(Rc::clone(machine))),
        mover: Box::new(SimMemory(Rc::clone(machine))),
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
                kind: TargetKind::Generic,
                eligible: vec![process.range],
                // The model's processes never wait.
                cpu_time: machine.now,
                cpu_share: vec![(process.home, 1.0)],
                allowed_nodes: None,
                excluded: Vec::new(),
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
}

impl AccessSampler for SimSampler {
    fn kind(&self) -> SamplerKind {
        SamplerKind::Simulated
    }

    fn arm(&mut self, _samples: &[Sample], _window: Nanos) -> Result<(), PortError> {
        self.armed = self.machine.borrow().now;
        Ok(())
    }

    fn calibrate(&mut self) -> Result<Option<Calibration>, PortError> {
        const SCANS: u64 = 512;
        let took = Nanos(SCAN_COST.0 * SCANS);
        self.machine.borrow_mut().charge(took);
        Ok(Some(Calibration { scans: SCANS, took }))
    }

    fn collect(&mut self, seen: &mut AccessSet) -> Result<(), PortError> {
        let mut machine = self.machine.borrow_mut();
        let window = machine.now.saturating_sub(self.armed);
        for i in 0..seen.samples().len() {
            let Sample { pid, addr, .. } = seen.samples()[i];
            let verdict = match machine.accessed(pid, addr, window) {
                Some(true) => Seen::Accessed,
                Some(false) => Seen::Idle,
                None => Seen::Unknown,
            };
            seen.record(i, verdict);
            seen.place(i, machine.order, machine.node_of(pid, addr));
        }
        seen.end_scan();
        Ok(())
    }
}

struct SimMemory(Shared);

impl Residency for SimMemory {
    fn sweep(&mut self, sweep: Sweep) -> Result<RangeResidency, PortError> {
        let machine = self.0.borrow();
        let mut counts = std::collections::BTreeMap::new();
        for (run, node) in machine.placed(sweep.pid, sweep.range) {
            *counts.entry(node).or_insert(0) += run.end - run.start;
        }
        Ok(RangeResidency {
            target: sweep.target,
            range: sweep.range,
            pages_by_node: counts.into_iter().collect(),
        })
    }

    fn nodes(&mut self) -> Result<Vec<NodeUsage>, PortError> {
        Ok(self.0.borrow().usage())
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
            for (run, node) in machine.placed(asked.pid, asked.range) {
                if node != asked.from {
                    continue;
                }
                let count = (run.end - run.start).min(limit);
                limit -= count;
                // A call under way is not cut short by the time.
                let time = limits
                    .time
                    .saturating_sub(machine.now.saturating_sub(start));
                let in_time = time.0.div_ceil(MOVE_COST.0).min(count).min(left);
                left -= in_time;
                pages.deferred += count - in_time;
                let moved = machine.move_pages(asked.pid, run.start..run.start + in_time, asked.to);
                pages.moved += moved.done;
                pages.busy += moved.busy;
                pages.no_room += moved.no_room;
            }
            outcome.results.push(MoveResult {
                asked: asked.clone(),
                pages,
                is_whole: limit > 0,
            });
        }
        outcome.elapsed = machine.now.saturating_sub(start);
        outcome.longest_call = MOVE_COST;
        Ok(outcome)
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

    fn sleep_until(&mut self, at: Nanos) -> Wake {
        let mut machine = self.0.borrow_mut();
        machine.now = machine.now.max(at);
        if let Some((from, long)) = machine.pause.filter(|pause| machine.now >= pause.0) {
            machine.now = machine.now.max(from + long);
            machine.pause = None;
        }
        Wake::Due
    }
}
