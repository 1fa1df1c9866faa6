//! Moving pages of the model, and what that costs.
//!
//! A folio is moved as a whole, by one thread of ours. That takes the machine's cost for
//! it, or the time that its bytes take from node to node where that is longer; meanwhile
//! both nodes have so much less time for others.

use std::ops::Range;

use super::{Machine, Touch, index_of, numbers, page_range};
use crate::units::{Bytes, Nanos, NodeId, PAGE_BYTES, Pid, VirtAddr};

/// What became of some pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::sim) struct Moved {
    pub(in crate::sim) done: u64,
    pub(in crate::sim) busy: u64,
    pub(in crate::sim) no_room: u64,
}

impl Machine {
    /// Moves pages, by number, which are all on one node: the first of them as far
    /// as there is room.
    pub(in crate::sim) fn move_pages(&mut self, pid: Pid, pages: Range<u64>, to: NodeId) -> Moved {
        let pages = self.whole_folios(pid, pages);
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
                self.pay(pid, at..end, None);
                at = end;
                continue;
            }
            let next = pinned.iter().map(|p| p.start).filter(|&start| start > at);
            let end = next.min().map_or(pages.end, |start| start.min(pages.end));
            let order = self.order(pid);
            let fits = match self.room_to_fill(to) {
                room if room >= end - at => end - at,
                room => room >> order << order,
            };
            self.pay(pid, at..at + fits, Some(to));
            self.place(pid, at..at + fits, to);
            moved.done += fits;
            moved.no_room += end - at - fits;
            at = end;
        }
        moved
    }

    /// A folio of a program moves as a whole.
    fn whole_folios(&self, pid: Pid, pages: Range<u64>) -> Range<u64> {
        let process = self.processes.iter().find(|p| p.pid == pid);
        let Some((process, Touch::Program(program))) = process.map(|p| (p, &p.touch)) else {
            return pages;
        };
        let (all, order) = (numbers(process.range), program.order());
        let down = |page: u64| all.start + ((page - all.start) >> order << order);
        let (start, end) = (pages.start.max(all.start), pages.end.min(all.end));
        down(start)..down(end + (1 << order) - 1).min(all.end)
    }

    /// What a move costs us, the nodes, and those who touch what is on its way.
    fn pay(&mut self, pid: Pid, pages: Range<u64>, to: Option<NodeId>) {
        let count = pages.end - pages.start;
        if count == 0 {
            return;
        }
        let order = self.order(pid);
        let cost = Nanos((self.costs.of_move(order).0 * count) >> order);
        let from = self.node_of(pid, VirtAddr(pages.start * PAGE_BYTES));
        let index = |node: Option<NodeId>| index_of(&self.ids, node?).map(usize::from);
        let (from, to) = (index(from), index(to));
        let (Some(from), Some(to), false) = (from, to, self.links.is_empty()) else {
            self.charge(cost);
            self.mover_cpu += cost;
            return;
        };
        self.settle();
        let busy = self.transfer(from, to, Bytes::from_pages(count));
        let seconds = cost.as_secs_f64().max(busy.0).max(busy.1);
        let time = Nanos::from_secs_f64(seconds);
        let mut taken = vec![0.0; self.links.len()];
        taken[from] += busy.0 / seconds;
        taken[to] += busy.1 / seconds;
        self.charge(time);
        self.mover_cpu += time;
        let none = vec![0.0; self.links.len()];
        for program in self.programs() {
            program.share_nodes(&taken);
        }
        self.stall(pid, &pages, seconds);
        self.settle();
        for program in self.programs() {
            program.share_nodes(&none);
        }
    }

    /// Seconds of their time that two nodes, by their places, need for so many bytes.
    fn transfer(&self, from: usize, to: usize, bytes: Bytes) -> (f64, f64) {
        let read = self.links[from].read.0 as f64;
        let write = self.links[to].write.0 as f64;
        (bytes.as_f64() / read, bytes.as_f64() / write)
    }

    /// Seconds that moving one folio of a program takes, from node to node by their places.
    pub(in crate::sim) fn folio_time(&self, order: u8, from: usize, to: usize) -> f64 {
        let busy = self.transfer(from, to, Bytes::from_pages(1 << order));
        let cost = self.costs.of_move(order).as_secs_f64();
        cost.max(busy.0).max(busy.1)
    }

    /// Threads that touch a folio on its way wait for it.
    fn stall(&mut self, pid: Pid, pages: &Range<u64>, seconds: f64) {
        let Some(process) = self.processes.iter_mut().find(|p| p.pid == pid) else {
            return;
        };
        let first = process.range.start().page_index();
        let Touch::Program(program) = &mut process.touch else {
            return;
        };
        let order = program.order();
        let folios = (pages.start - first) >> order..(pages.end - first).div_ceil(1 << order);
        let each = seconds / (folios.end - folios.start) as f64;
        let rate = program.rate();
        let waits = |folio: u64| {
            let folio = usize::try_from(folio).unwrap_or(usize::MAX);
            program.waits_for(folio, rate, each)
        };
        let held: f64 = folios.map(waits).sum();
        program.hold(held);
    }

    fn place(&mut self, pid: Pid, pages: Range<u64>, to: NodeId) {
        let (Some(index), Some(range)) = (index_of(&self.ids, to), page_range(&pages)) else {
            return;
        };
        for (run, node) in self.placed(pid, range) {
            let count = run.end - run.start;
            *self.used.entry(node).or_default() -= count;
            *self.used.entry(to).or_default() += count;
            *self.traffic.entry((node, to)).or_default() += Bytes::from_pages(count);
        }
        if let Some(extents) = self.pages.get_mut(&pid) {
            extents.set(pages, to);
        } else if let Some(process) = self.processes.iter_mut().find(|p| p.pid == pid) {
            let first = process.range.start().page_index();
            let Touch::Program(program) = &mut process.touch else {
                return;
            };
            let order = program.order();
            for folio in (pages.start - first) >> order..(pages.end - first) >> order {
                program.place(usize::try_from(folio).unwrap_or(usize::MAX), index);
            }
        }
    }
}
