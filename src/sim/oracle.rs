//! Who knows the future: `oracle`.
//!
//! **Unit.** Seconds of the program's time.
//!
//! **Approach.** Before each interval it knows how often every folio is going to be missed
//! by the caches in it, and so how long threads are going to wait for it. The folios that
//! are waited for most belong on the fastest node, as far as there is room, the next on the
//! second, and so on. Those that lie slower than they belong are moved straight there, the
//! ones that gain most first; where there is no room, what matters least there goes where
//! it belongs. It pays for its moves like anybody else, with the bytes and the time that
//! the engine has; a folio is only moved if what that gains in the coming interval is more
//! than the program waits for it meanwhile.
//!
//! It is greedy, sees one interval and reckons with latency alone: no optimum and, where
//! there is little time for moves, no bound either. What is touched most for a moment it
//! brings in before what is touched much for long.

use super::machine::Machine;
use crate::units::{Bytes, Nanos, NodeId, PAGE_BYTES, Pid, VirtAddr};

/// What it may do, and what it knows of the machine.
pub(super) struct Oracle {
    /// Nodes by their place in the machine's list, fastest first, with their latencies.
    pub(super) order: Vec<(u8, NodeId, f64)>,
    /// Bytes moved per interval at most.
    pub(super) moved: Bytes,
    /// Time for moves per interval at most.
    pub(super) moving: Nanos,
    /// Length of an interval.
    pub(super) interval: Nanos,
}

/// What it knows of a folio before an interval.
struct Coming {
    /// Threads' seconds that it is waited for, per second of latency.
    waits: Vec<f32>,
    /// The rank that it is on.
    is_on: Vec<usize>,
}

impl Oracle {
    /// Moves what is worth moving before the coming interval.
    pub(super) fn turn(&self, machine: &mut Machine, pid: Pid, first: VirtAddr) {
        let rooms = self.order.iter().map(|&(_, node, _)| machine.free(node));
        let rooms: Vec<Bytes> = rooms.collect();
        let Some(program) = machine.program(pid) else {
            return;
        };
        let (_, folio) = program.folios();
        let (order, threads) = (program.order(), program.threads());
        let rate = program.rate();
        let free: Vec<u64> = rooms.iter().map(|room| room.0 / folio.0).collect();
        let coming = self.coming(program, rate * self.interval.as_secs_f64());
        let belongs = self.belongs(&coming, &free);
        // Most of all folios stay: what the others would have to wait is asked of few.
        let rises = |&at: &usize| belongs[at] < coming.is_on[at];
        let mut rising: Vec<usize> = (0..belongs.len()).filter(rises).collect();
        let held: Vec<f64> = rising
            .iter()
            .map(|&at| {
                let (from, to) = (self.order[coming.is_on[at]].0, self.order[belongs[at]].0);
                let time = machine.folio_time(order, from.into(), to.into());
                let program = machine.program(pid);
                program.map_or(0.0, |program| program.waits_for(at, rate, time))
            })
            .collect();
        let gain = |at: usize| {
            let faster = self.order[coming.is_on[at]].2 - self.order[belongs[at]].2;
            f64::from(coming.waits[at]) * faster / threads
        };
        let mut worth: Vec<(usize, f64)> = rising
            .drain(..)
            .zip(held)
            .map(|(at, held)| (at, gain(at) - held))
            .filter(|&(_, worth)| worth > 0.0)
            .collect();
        worth.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let moves = self.moves(worth, &coming, &belongs, free, folio);

        let pages = folio.0 / PAGE_BYTES;
        let begin = first.page_index();
        let ends = machine.now() + self.moving;
        for (at, to) in moves {
            if machine.now() >= ends {
                break;
            }
            let page = begin + at as u64 * pages;
            machine.move_pages(pid, page..page + pages, self.order[to].1);
        }
    }

    fn coming(&self, program: &super::Program, accesses: f64) -> Coming {
        let mut rank_of = vec![usize::MAX; usize::from(u8::MAX) + 1];
        for (rank, &(node, ..)) in self.order.iter().enumerate() {
            rank_of[usize::from(node)] = rank;
        }
        let mut waits = program.upcoming(accesses);
        #[allow(clippy::cast_possible_truncation)]
        for (at, waits) in waits.iter_mut().enumerate() {
            *waits /= program.parallel(at) as f32;
        }
        let is_on = (0..waits.len()).map(|at| rank_of[usize::from(program.node_of(at))]);
        let is_on = is_on.collect();
        Coming { waits, is_on }
    }

    /// Which folio to which rank, in order: what rises, each after what makes room for it.
    fn moves(
        &self,
        worth: Vec<(usize, f64)>,
        coming: &Coming,
        belongs: &[usize],
        mut free: Vec<u64>,
        folio: Bytes,
    ) -> Vec<(usize, usize)> {
        // What is in the way, what matters least last.
        let mut sinking: Vec<Vec<usize>> = vec![Vec::new(); self.order.len()];
        for at in (0..belongs.len()).filter(|&at| belongs[at] > coming.is_on[at]) {
            sinking[coming.is_on[at]].push(at);
        }
        for rank in &mut sinking {
            rank.sort_by(|&a, &b| coming.waits[b].total_cmp(&coming.waits[a]));
        }
        let mut moved = self.moved.0 / folio.0;
        let mut moves = Vec::new();
        for (at, _) in worth {
            let to = belongs[at];
            let needs = 1 + u64::from(free[to] == 0);
            if moved < needs {
                break;
            }
            if free[to] == 0 {
                let Some(victim) = sinking[to].pop() else {
                    continue;
                };
                let mut down = (belongs[victim]..free.len()).chain(to + 1..belongs[victim]);
                let Some(down) = down.find(|&rank| free[rank] > 0) else {
                    continue;
                };
                free[down] -= 1;
                free[to] += 1;
                moves.push((victim, down));
            }
            free[to] -= 1;
            free[coming.is_on[at]] += 1;
            moved -= needs;
            moves.push((at, to));
        }
        moves
    }

    /// The rank where each folio belongs.
    fn belongs(&self, coming: &Coming, free: &[u64]) -> Vec<usize> {
        let Coming { waits, is_on } = coming;
        let mut rooms = free.to_vec();
        for &rank in is_on {
            rooms[rank] += 1;
        }
        let mut belongs = vec![self.order.len() - 1; waits.len()];
        let mut rest: Vec<usize> = (0..waits.len()).collect();
        for (rank, room) in rooms.into_iter().enumerate() {
            let room = usize::try_from(room).unwrap_or(usize::MAX);
            if room == 0 {
                continue;
            }
            // Of equals, those that are there already.
            let better = |&a: &usize, &b: &usize| {
                let is_away = |at: usize| is_on[at] != rank;
                waits[b]
                    .total_cmp(&waits[a])
                    .then(is_away(a).cmp(&is_away(b)))
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
