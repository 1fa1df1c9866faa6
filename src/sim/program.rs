//! A program of the model that takes as long as where its memory lies makes it take.
//!
//! **Unit.** Accesses are those that miss the first-level caches, of all threads; seconds.
//!
//! **Approach.** Each folio has its share of the accesses in the step under way, and the
//! part of it that the last-level cache does not hold. Sums of these per object and node
//! are kept up with every move, so that the program's speed ([`speed`]) never takes a pass
//! over its memory.
//!
//! The last-level cache holds what is touched most of what is used again: by Che's approximation a
//! line that is touched at a rate r misses with probability e^(-rT), where T is the time
//! that the cache takes to be filled anew.

mod cache;
mod written;

use self::written::Forgotten;
use super::behind::Behind;
use super::hardware::{Hardware, Link};
use super::speed::{self, Demand, LINE, Supply};
use super::weights;
use super::workload::{Pattern, Step, Workload};
use crate::units::{Bytes, PAGE_BYTES};

/// Share of a while that a program runs at least, whatever it owes.
const RUNS_AT_LEAST: f64 = 0.05;

/// An object, in folios.
#[derive(Clone, Debug)]
struct Part {
    first: usize,
    end: usize,
    writes: f64,
    parallel: f64,
    cached: bool,
}

/// A program under way.
#[derive(Clone, Debug)]
pub struct Program {
    workload: Workload,
    parts: Vec<Part>,
    links: Vec<Link>,
    threads: f64,
    /// Folios that each of these stands for.
    alike: f64,
    cache_lines: f64,
    seed: u64,
    steps: Vec<Step>,
    step: usize,
    /// Accesses in which the step under way ends.
    step_end: f64,
    /// Per object: the share of its accesses of each of its folios, where that stays.
    still: Vec<Option<Vec<f32>>>,
    /// Share of the accesses, and of those that reach memory, of each folio.
    touched: Vec<f32>,
    missed: Vec<f32>,
    /// Touches of each folio before the step under way; empty while there was none.
    before: Vec<f64>,
    /// Accesses in the step under way that are one touch, as an accessed bit sees them.
    per_touch: f64,
    /// Accesses at which the step under way began.
    began: f64,
    /// The node of each folio, as its place in the hardware's list.
    node: Vec<u8>,
    /// Per object and node: what reaches memory there of all accesses.
    sums: Vec<Vec<f64>>,
    /// The node that is a cache of the others.
    behind: Option<Behind>,
    /// Per object: what that has to be filled with, of all accesses.
    fills: Vec<f64>,
    /// Per node: the share of its time that moves take now.
    taken: Vec<f64>,
    total: f64,
    done: f64,
    /// Accesses per second; `None` when it has to be found anew.
    rate: Option<f64>,
    /// Seconds that it owes to others.
    owed: f64,
    /// Seconds that it ran, and that it was held up.
    ran: f64,
    held: f64,
    /// Accesses that each node has served.
    served: Vec<f64>,
    /// When it was last to forget what it had written.
    forgotten: Option<Forgotten>,
}

impl Program {
    /// Begins on a machine, with nothing anywhere: [`Program::place`] says where.
    #[allow(clippy::cast_possible_truncation)]
    pub fn new(workload: Workload, hardware: &Hardware, seed: u64) -> Self {
        let mut parts = Vec::new();
        let mut end = 0;
        for object in &workload.objects {
            let first = end;
            end += (object.size.0 / workload.folio.0) as usize;
            parts.push(Part {
                first,
                end,
                writes: object.writes,
                parallel: object.parallel,
                cached: object.cached,
            });
        }
        let nodes = hardware.nodes.len();
        let mut program = Self {
            parts,
            links: hardware.links(),
            threads: f64::from(hardware.threads),
            alike: hardware.costs.alike(),
            cache_lines: hardware.cache.as_f64() / LINE,
            seed,
            steps: workload.steps(),
            step: 0,
            step_end: 0.0,
            still: Vec::new(),
            touched: vec![0.0; end],
            missed: vec![0.0; end],
            before: Vec::new(),
            per_touch: 1.0,
            began: 0.0,
            node: vec![0; end],
            sums: Vec::new(),
            behind: None,
            fills: Vec::new(),
            taken: vec![0.0; nodes],
            total: 0.0,
            done: 0.0,
            rate: None,
            owed: 0.0,
            ran: 0.0,
            held: 0.0,
            served: vec![0.0; nodes],
            forgotten: None,
            workload,
        };
        program.still = program.still_weights();
        let best = program.seconds_at_best();
        program.total = program.workload.seconds / best;
        if let Some(played) = &program.workload.played {
            let idle = program.workload.compute / program.threads;
            let (total, shares) = played.work(best, idle);
            program.total = total;
            for (step, share) in program.steps.iter_mut().zip(shares) {
                step.share = share;
            }
        }
        program.weigh();
        program.step_end = program.total * program.steps.first().map_or(1.0, |step| step.share);
        program
    }

    /// Folios, and bytes of each.
    pub fn folios(&self) -> (usize, Bytes) {
        (self.node.len(), self.workload.folio)
    }

    /// As log2 of pages.
    pub fn order(&self) -> u8 {
        let pages = self.workload.folio.0 / PAGE_BYTES;
        u8::try_from(pages.trailing_zeros()).unwrap_or(0)
    }

    /// Threads that are busy.
    pub fn threads(&self) -> f64 {
        self.threads
    }

    /// Whether it has done all its work.
    pub fn is_done(&self) -> bool {
        self.done >= self.total
    }

    /// Seconds that it ran, and that it was held up by others.
    pub fn seconds(&self) -> (f64, f64) {
        (self.ran, self.held)
    }

    /// Accesses to memory that each node has served, in the hardware's order.
    pub fn served(&self) -> &[f64] {
        &self.served
    }

    /// The node of a folio, as its place in the hardware's list.
    pub fn node_of(&self, folio: usize) -> u8 {
        self.node[folio]
    }

    /// Touches of a folio since the beginning; of several that are alike, of one of them.
    pub fn touches(&self, folio: usize) -> f64 {
        let before = self.before.get(folio).copied().unwrap_or(0.0);
        let touches = (self.done - self.began) / self.per_touch;
        (before + f64::from(self.touched[folio]) * touches) / self.alike
    }

    /// Share of the accesses that go to a folio now.
    pub fn touched(&self, folio: usize) -> f64 {
        self.touched[folio].into()
    }

    /// The part of them that reaches memory.
    pub fn misses(&self, folio: usize) -> f64 {
        self.missed[folio].into()
    }

    /// Accesses to its object that a thread has under way at once.
    pub fn parallel(&self, folio: usize) -> f64 {
        self.parts[self.part_of(folio)].parallel
    }

    fn part_of(&self, folio: usize) -> usize {
        self.parts.partition_point(|part| part.end <= folio)
    }

    /// Seconds that it is held up by a folio that cannot be touched for `seconds`, at so
    /// many accesses per second: a thread waits from its first touch on.
    pub fn waits_for(&self, folio: usize, rate: f64, seconds: f64) -> f64 {
        // Those that are alike go one after the other.
        let (rate, seconds) = (rate / self.alike / self.per_touch, seconds / self.alike);
        let touches = self.touched(folio) * rate * seconds / self.threads;
        let waits = if touches < 1e-6 {
            touches / 2.0
        } else {
            1.0 + (-touches).exp_m1() / touches
        };
        waits * seconds * self.alike
    }

    /// Folio `folio` is on the node at `to` from now on.
    pub fn place(&mut self, folio: usize, to: u8) {
        let from = std::mem::replace(&mut self.node[folio], to);
        if from == to {
            return;
        }
        let part = self.part_of(folio);
        let missed = f64::from(self.missed[folio]);
        let sums = &mut self.sums[part];
        sums[usize::from(from)] = (sums[usize::from(from)] - missed).max(0.0);
        sums[usize::from(to)] += missed;
        self.rate = None;
    }

    /// The node at `node` is a direct-mapped cache of this size in front of the others, on
    /// which its memory lies and stays.
    #[allow(clippy::cast_possible_truncation)]
    pub fn put_behind(&mut self, node: usize, size: Bytes) {
        let places = (size.0 / self.workload.folio.0) as usize;
        self.behind = Some(Behind::new(node, places, self.node.len()));
        self.add_up();
    }

    /// Accesses in the step under way, by the lines of a folio.
    fn per_line(&self) -> f64 {
        (self.step_end - self.began) / (self.workload.folio.as_f64() / LINE)
    }

    /// How often each folio is going to be missed by the caches in the next so many
    /// accesses.
    #[allow(clippy::cast_possible_truncation)]
    pub fn upcoming(&self, accesses: f64) -> Vec<f32> {
        let mut upcoming = vec![0.0_f32; self.node.len()];
        let add = |upcoming: &mut [f32], program: &Self, accesses: f64| {
            for (sum, missed) in upcoming.iter_mut().zip(&program.missed) {
                *sum += missed * accesses as f32;
            }
        };
        let mut left = accesses.min(self.total - self.done);
        let to_end = self.step_end - self.done;
        if left <= to_end {
            add(&mut upcoming, self, left);
            return upcoming;
        }
        let mut future = self.clone();
        while left > 0.0 && !future.is_done() {
            let takes = (future.step_end - future.done).min(left);
            add(&mut upcoming, &future, takes);
            left -= takes;
            future.done = future.step_end.min(future.total);
            future.next_step();
        }
        upcoming
    }

    /// All its accesses.
    pub fn accesses(&self) -> f64 {
        self.total
    }

    /// Share of each node's time that others take from now on.
    pub fn share_nodes(&mut self, taken: &[f64]) {
        if self.taken != taken {
            self.taken.copy_from_slice(taken);
            self.rate = None;
        }
    }

    /// It owes so many seconds, in which none of its threads gets on.
    pub fn hold(&mut self, seconds: f64) {
        self.owed += seconds;
    }

    /// Accesses per second now.
    pub fn rate(&mut self) -> f64 {
        if let Some(rate) = self.rate {
            return rate;
        }
        let nodes = self.nodes();
        let rate = speed::rate(self.workload.compute, self.threads, &nodes);
        self.rate = Some(rate);
        rate
    }

    /// Seconds that a read takes from each node now, and idle.
    pub fn latencies(&mut self) -> Vec<(f64, f64)> {
        let rate = self.rate();
        let nodes = self.nodes();
        let now = speed::latencies(self.workload.compute, self.threads, &nodes, rate);
        let idle = self.links.iter().map(|link| link.latency.as_secs_f64());
        now.into_iter().zip(idle).collect()
    }

    /// Seconds per access if all memory were as the fastest, and there were no cache.
    fn seconds_at_best(&self) -> f64 {
        let fastest = (0..self.links.len()).min_by_key(|&node| self.links[node].latency);
        let supply = self.supply(fastest.unwrap_or(0));
        let phases = self.workload.phases.iter();
        let seconds = phases.map(|phase| {
            let writes = |part: usize| self.parts[part].writes;
            let node = (self.demand(|part| phase.accesses[part], writes), supply);
            phase.length / speed::rate(self.workload.compute, self.threads, &[node])
        });
        seconds.sum()
    }

    /// What is asked of a node that gets so much of each object: of what is written a share
    /// `writes` is read first and written back later.
    fn demand(&self, share: impl Fn(usize) -> f64, writes: impl Fn(usize) -> f64) -> Demand {
        let mut demand = Demand::default();
        for (at, part) in self.parts.iter().enumerate() {
            let share = share(at);
            demand.waits += share / part.parallel;
            demand.read += share * LINE;
            demand.written += share * writes(at) * LINE;
        }
        demand
    }

    /// What is asked of a node now.
    fn demand_of(&self, node: usize) -> Demand {
        let share = |part: usize| self.sums[part][node];
        let Some(cache) = &self.behind else {
            return self.demand(share, |part| self.parts[part].writes);
        };
        if cache.node != node {
            // A line goes back if it was written while it was in the cache.
            return self.demand(share, |part| {
                let all: f64 = self.sums[part].iter().sum();
                let touches = all / self.fills[part].max(f64::MIN_POSITIVE);
                1.0 - (1.0 - self.parts[part].writes).powf(touches)
            });
        }
        let mut demand = self.demand(share, |part| self.parts[part].writes);
        // What is not there was looked for there first, is put there and written there.
        let looked = self.demand(
            |part| self.fills[part],
            |part| 1.0 + self.parts[part].writes,
        );
        demand.waits += looked.waits;
        demand.read += looked.read;
        demand.written += looked.written;
        demand
    }

    /// What is asked of each node now, and what it offers.
    fn nodes(&self) -> Vec<(Demand, Supply)> {
        let nodes = 0..self.links.len();
        nodes
            .map(|node| (self.demand_of(node), self.supply(node)))
            .collect()
    }

    fn supply(&self, node: usize) -> Supply {
        let link = self.links[node];
        Supply {
            latency: link.latency.as_secs_f64(),
            read: link.read.0 as f64,
            write: link.write.0 as f64,
            taken: self.taken[node],
        }
    }

    /// Goes on for so many seconds of the clock, or until its work is done. Returns the
    /// seconds that it took.
    pub fn advance(&mut self, seconds: f64) -> f64 {
        if self.is_done() {
            return 0.0;
        }
        let held = self.owed.min(seconds * (1.0 - RUNS_AT_LEAST));
        self.owed -= held;
        self.held += held;
        let mut left = seconds - held;
        while left > 0.0 && !self.is_done() {
            let rate = self.rate();
            let to_end = (self.step_end.min(self.total) - self.done).max(0.0);
            let takes = (to_end / rate).min(left);
            let accesses = rate * takes;
            for node in 0..self.served.len() {
                let share: f64 = self.sums.iter().map(|part| part[node]).sum();
                self.served[node] += accesses * share;
            }
            self.ran += takes;
            left -= takes;
            if to_end <= accesses * (1.0 + 1e-12) {
                // Exactly: rounding must not leave a step that never ends.
                self.done = self.step_end.min(self.total);
                self.next_step();
            } else {
                self.done += accesses;
            }
        }
        seconds - left
    }

    fn next_step(&mut self) {
        if self.step + 1 >= self.steps.len() {
            self.done = self.total;
            return;
        }
        if self.before.is_empty() {
            self.before = vec![0.0; self.node.len()];
        }
        let per_line = self.per_line();
        if let Some(cache) = &mut self.behind {
            cache.end_step(&self.missed, per_line);
        }
        let touches = (self.done - self.began) / self.per_touch;
        for (before, touched) in self.before.iter_mut().zip(&self.touched) {
            *before += f64::from(*touched) * touches;
        }
        self.began = self.done;
        self.step += 1;
        self.step_end = self.done + self.total * self.steps[self.step].share;
        self.weigh();
    }

    /// The weights of objects on which accesses fall the same way in each step.
    fn still_weights(&self) -> Vec<Option<Vec<f32>>> {
        let of = |(at, part): (usize, &Part)| {
            let pattern = self.workload.objects[at].pattern;
            let moves = matches!(
                pattern,
                Pattern::Sweep { .. } | Pattern::Hot { moves: true, .. }
            );
            (!moves && self.workload.played.is_none()).then(|| {
                let mut weights = vec![0.0; part.end - part.first];
                let seed = self.seed.wrapping_add(at as u64);
                let folio = self.workload.folio;
                weights::spread(&mut weights, pattern, folio, 1.0, (0, 0.0), seed);
                weights
            })
        };
        self.parts.iter().enumerate().map(of).collect()
    }

    /// Weighs all folios anew, as the step under way has it.
    #[allow(clippy::cast_possible_truncation)]
    fn weigh(&mut self) {
        let step = self.steps[self.step];
        let phase = &self.workload.phases[step.phase];
        self.touched.fill(0.0);
        if let Some(played) = &self.workload.played {
            let touches = played.weigh(step.turn, &mut self.touched);
            let accesses = self.total * step.share;
            self.per_touch = if touches > 0.0 {
                accesses / touches
            } else {
                1.0
            };
            self.filter();
            self.add_up();
            return;
        }
        for (at, part) in self.parts.iter().enumerate() {
            let share = phase.accesses[at];
            let touched = &mut self.touched[part.first..part.end];
            if let Some(still) = &self.still[at] {
                for (touched, still) in touched.iter_mut().zip(still) {
                    *touched = (f64::from(*still) * share) as f32;
                }
                continue;
            }
            weights::spread(
                touched,
                self.workload.objects[at].pattern,
                self.workload.folio,
                share,
                (step.turn, step.position),
                self.seed.wrapping_add(at as u64),
            );
        }
        self.filter();
        self.add_up();
    }

    /// Adds up anew what reaches which node.
    fn add_up(&mut self) {
        self.sums = vec![vec![0.0; self.links.len()]; self.parts.len()];
        self.fills = vec![0.0; self.parts.len()];
        self.rate = None;
        let behind = self.behind.as_ref();
        let hits = behind.map(|cache| (cache.node, cache.hits(&self.missed, self.per_line())));
        for (at, part) in self.parts.iter().enumerate() {
            let sums = &mut self.sums[at];
            for folio in part.first..part.end {
                let mut missed = f64::from(self.missed[folio]);
                if let Some((cache, hits)) = &hits {
                    let there = missed * f64::from(hits[folio]);
                    sums[*cache] += there;
                    missed -= there;
                    self.fills[at] += missed;
                }
                sums[usize::from(self.node[folio])] += missed;
            }
        }
    }
}

#[cfg(test)]
#[path = "program_tests.rs"]
mod tests;
