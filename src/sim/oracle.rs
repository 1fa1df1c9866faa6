//! Who knows the future: `oracle`.
//!
//! **Approach.** Before each interval it knows how often every folio is going to be missed
//! by the caches in it. The folios that are missed most belong on the fastest node, as far
//! as there is room, the next on the second, and so on. Those that lie slower than they
//! belong are moved straight there, the ones that gain most first; where there is no room,
//! what is going to be missed least there goes where it belongs. It pays for its moves
//! like anybody else and may promote no more bytes per interval than the policy that it is
//! held against; a folio is only moved if what that gains in the coming interval is more
//! than the program waits for it meanwhile.
//!
//! It is greedy and sees one interval: no optimum and, where few bytes may be moved, no
//! bound either. What is touched most for a moment it brings in before what is touched
//! much for long.

use super::machine::Machine;
use crate::units::{Bytes, Nanos, NodeId, PAGE_BYTES, Pid, VirtAddr};

/// What it knows of the machine.
pub(super) struct Oracle {
    /// Nodes by their place in the machine's list, fastest first, with their latencies.
    pub(super) order: Vec<(u8, NodeId, f64)>,
    /// Bytes promoted per interval at most.
    pub(super) budget: Bytes,
    /// Length of an interval.
    pub(super) interval: Nanos,
}

impl Oracle {
    /// Moves what is worth moving before the coming interval.
    pub(super) fn turn(&self, machine: &mut Machine, pid: Pid, first: VirtAddr) {
        let costs = machine.costs;
        let rooms: Vec<Bytes> = (self.order.iter())
            .map(|&(_, node, _)| machine.free(node))
            .collect();
        let Some(program) = machine.program(pid) else {
            return;
        };
        let (_, folio) = program.folios();
        let per_second = program.rate();
        let coming = program.upcoming(per_second * self.interval.as_secs_f64());
        let mut rank_of = vec![usize::MAX; usize::from(u8::MAX)];
        for (rank, &(node, ..)) in self.order.iter().enumerate() {
            rank_of[usize::from(node)] = rank;
        }
        let is_on: Vec<usize> = (0..coming.len())
            .map(|at| rank_of[usize::from(program.node_of(at))])
            .collect();
        let mut free: Vec<u64> = rooms.iter().map(|room| room.0 / folio.0).collect();
        let belongs = self.belongs(&coming, &is_on, &free);
        let pages = folio.0 / PAGE_BYTES;
        let stall = costs.of_move(program.order()).as_secs_f64() * pages as f64 / 2.0;
        let in_parallel = program.threads();

        // What gains most first; what is in the way, least missed first.
        let gain = |at: usize| {
            let slower = self.order[is_on[at]].2 - self.order[belongs[at]].2;
            f64::from(coming[at]) * slower
        };
        let mut rising: Vec<usize> = (0..coming.len())
            .filter(|&at| belongs[at] < is_on[at])
            .collect();
        rising.sort_by(|&a, &b| gain(b).total_cmp(&gain(a)));
        let mut sinking: Vec<Vec<usize>> = vec![Vec::new(); self.order.len()];
        for at in (0..coming.len()).filter(|&at| belongs[at] > is_on[at]) {
            sinking[is_on[at]].push(at);
        }
        for rank in &mut sinking {
            rank.sort_by(|&a, &b| coming[b].total_cmp(&coming[a]));
        }
        let mut left = self.budget.0 / folio.0;
        let mut moves: Vec<(usize, usize)> = Vec::new();
        for at in rising {
            if left == 0 {
                break;
            }
            let to = belongs[at];
            // As often as it is touched while it is on its way, somebody waits for it.
            let waits = f64::from(coming[at]) / self.interval.as_secs_f64() * stall * 2.0;
            if gain(at) <= waits.min(in_parallel) * stall {
                continue;
            }
            if free[to] == 0 {
                let Some(victim) = sinking[to].pop() else {
                    continue;
                };
                let down = (belongs[victim]..free.len()).chain(to + 1..belongs[victim]);
                let Some(down) = down.into_iter().find(|&rank| free[rank] > 0) else {
                    continue;
                };
                free[down] -= 1;
                free[to] += 1;
                moves.push((victim, down));
            }
            free[to] -= 1;
            free[is_on[at]] += 1;
            left -= 1;
            moves.push((at, to));
        }
        let begin = first.page_index();
        for (at, to) in moves {
            let page = begin + at as u64 * pages;
            machine.move_pages(pid, page..page + pages, self.order[to].1);
        }
    }

    /// The rank where each folio belongs.
    fn belongs(&self, coming: &[f32], is_on: &[usize], free: &[u64]) -> Vec<usize> {
        let mut rooms = free.to_vec();
        for &rank in is_on {
            rooms[rank] += 1;
        }
        let mut belongs = vec![self.order.len() - 1; coming.len()];
        let mut rest: Vec<usize> = (0..coming.len()).collect();
        for (rank, room) in rooms.into_iter().enumerate() {
            let room = usize::try_from(room).unwrap_or(usize::MAX);
            if room == 0 {
                continue;
            }
            // Of equals, those that are there already.
            let better = |&a: &usize, &b: &usize| {
                let is_there = |at: usize| is_on[at] != rank;
                coming[b]
                    .total_cmp(&coming[a])
                    .then(is_there(a).cmp(&is_there(b)))
            };
            if room < rest.len() {
                rest.select_nth_unstable_by(room, better);
            }
            let here = rest.len().min(room);
            for at in rest.drain(..here) {
                belongs[at] = rank;
            }
        }
        belongs
    }
}
