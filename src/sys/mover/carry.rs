//! Carrying out what was looked up: batches of folios, a system call each, by one
//! thread or several.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use super::batch::{self, Call, Done, Fate, Item};
use super::refused::Held;
use super::{SysMover, TRIED_AGAIN, Turn};
use crate::ports::{FolioPace, Threads};
use crate::tiering::moving::{CallCost, ThreadChoice};
use crate::units::{Bytes, Nanos, NodeId, Pid};

/// No batch has more bytes than the rate lets through in so much time.
const RATE_SLICE: Nanos = Nanos::from_millis(100);
/// Pages of a folio from which on it counts as huge: its copy dominates.
const HUGE_PAGES: u64 = 64;
/// Small folios for which another thread is worth its start.
const SMALL_PART: usize = 64;
/// Whoever touches a page waits for all that move together with it: for as many small folios as
/// take so much CPU time of ours, within [`HELD`]. Of fewer each group's flush costs too much (with half
/// of it moving is 3 % slower where a page takes 6 us); more than 512 pages the kernel does not take
/// together.
const HOLD: Nanos = Nanos::from_millis(4);
const HELD: RangeInclusive<usize> = 32..=512;

/// What was learnt of folios of one kind.
#[derive(Clone, Debug)]
pub(super) struct Kind {
    cost: CallCost,
    threads: ThreadChoice,
    /// As many were told for the last stretch.
    last_threads: usize,
    /// Folios for which a thread is worth its start.
    part: usize,
    /// How many move together.
    held: RangeInclusive<usize>,
}

impl Kind {
    pub(super) fn small() -> Self {
        Self::new(CallCost::of_small_pages(), SMALL_PART, HELD)
    }

    pub(super) fn huge() -> Self {
        Self::new(CallCost::of_huge_pages(), 1, 1..=1)
    }

    fn new(cost: CallCost, part: usize, held: RangeInclusive<usize>) -> Self {
        Self {
            cost,
            threads: ThreadChoice::default(),
            last_threads: 1,
            part,
            held,
        }
    }

    /// How many folios move together.
    fn held(&self) -> usize {
        let folios = HOLD.0 / self.cost.each().0.max(1);
        let folios = usize::try_from(folios).unwrap_or(usize::MAX);
        folios.clamp(*self.held.start(), *self.held.end())
    }

    pub(super) fn pace(&self) -> FolioPace {
        FolioPace {
            threads: self.last_threads,
            call: self.cost.fixed(),
            folio: self.cost.each(),
        }
    }
}

/// Folios of one process that go to one node.
#[derive(Debug)]
pub(super) struct Queue {
    pid: Pid,
    to: NodeId,
    items: Vec<Item>,
    /// How many of them were tried.
    tried: usize,
    /// No more of it is to be had now.
    ended: bool,
}

impl Queue {
    pub(super) fn new(pid: Pid, to: NodeId, items: Vec<Item>) -> Self {
        Self {
            pid,
            to,
            items,
            tried: 0,
            ended: false,
        }
    }

    fn rest(&self) -> &[Item] {
        &self.items[self.tried..]
    }

    /// Its folios of less and of more than [`HUGE_PAGES`].
    fn by_kind(self) -> [Self; 2] {
        // Mostly all are of one.
        let huge = self.items.iter().filter(|i| i.pages >= HUGE_PAGES).count();
        let none = Self::new(self.pid, self.to, Vec::new());
        if huge == 0 {
            return [self, none];
        }
        if huge == self.items.len() {
            return [none, self];
        }
        let (huge, small) = (self.items.into_iter()).partition(|i| i.pages >= HUGE_PAGES);
        [small, huge].map(|items| Self::new(self.pid, self.to, items))
    }
}

/// A call to be: so many of a queue's folios, from the first one not yet tried on.
struct Part {
    queue: usize,
    start: usize,
    end: usize,
}

impl SysMover {
    /// Carries out a stretch. Small folios and huge ones go apart.
    pub(super) fn carry_out(&mut self, queues: Vec<Queue>, turn: &mut Turn) {
        let (small, huge) = queues
            .into_iter()
            .map(Queue::by_kind)
            .map(|[small, huge]| (small, huge))
            .unzip();
        self.carry_out_kind(small, false, turn);
        self.carry_out_kind(huge, true, turn);
    }

    fn kind(&mut self, is_huge: bool) -> &mut Kind {
        if is_huge {
            &mut self.huge
        } else {
            &mut self.small
        }
    }

    fn carry_out_kind(&mut self, mut queues: Vec<Queue>, is_huge: bool, turn: &mut Turn) {
        queues.retain(|queue| !queue.items.is_empty());
        let folios: usize = queues.iter().map(|queue| queue.items.len()).sum();
        let kind = self.kind(is_huge);
        let threads = match turn.limits.threads {
            Threads::Exactly(threads) => threads.max(1),
            Threads::Measured => kind.threads.next(),
        };
        let (mut took, mut used, before) = (Duration::ZERO, 1, turn.moved);
        loop {
            let parts = self.parts(&mut queues, is_huge, threads, turn);
            if parts.is_empty() {
                break;
            }
            used = used.max(parts.len());
            took += self.carry_out_parts(&mut queues, &parts, is_huge, turn);
            turn.is_short |= self.rooms.is_short();
            pace_to_rate(turn);
        }
        let kind = self.kind(is_huge);
        // What two could not have shared says nothing of either.
        if folios >= 2 * kind.part {
            kind.last_threads = used;
            if turn.limits.threads == Threads::Measured {
                let moved = turn.moved.saturating_sub(before).pages();
                kind.threads.learn(used, moved, took.into());
                kind.last_threads = kind.threads.chosen();
            }
        }
        for queue in &queues {
            self.count_rest(queue, turn);
        }
    }

    /// The next calls, one for each thread at most: of each queue in turns.
    fn parts(
        &mut self,
        queues: &mut [Queue],
        is_huge: bool,
        threads: usize,
        turn: &mut Turn,
    ) -> Vec<Part> {
        let kind = self.kind(is_huge);
        let (size, least) = (kind.cost.batch(turn.limits.call_time), kind.part);
        let open = |queue: &Queue| !queue.ended && !queue.rest().is_empty();
        let live = queues.iter().filter(|q| open(q)).count();
        if live == 0 {
            return Vec::new();
        }
        // One thread ends one queue before the next.
        let (mut parts, width) = (Vec::new(), live.min(threads));
        let shares: Vec<usize> = queues
            .iter()
            .map(|queue| {
                let rest = queue.rest().len();
                let helpers = (threads / width).min(rest / least).max(1);
                // Calls of one size: no small one at the end.
                rest.div_ceil(rest.div_ceil(size).max(helpers).max(1))
            })
            .collect();
        let mut taken = Bytes::ZERO;
        let order: Vec<usize> = (0..queues.len()).filter(|&at| open(&queues[at])).collect();
        for &at in order.iter().take(width).cycle().take(threads) {
            let queue = &queues[at];
            if !open(queue) || parts.iter().any(|p: &Part| p.queue == at) && shares[at] < least {
                continue;
            }
            let reserved: Bytes = parts
                .iter()
                .filter(|part| queues[part.queue].to == queue.to)
                .map(|part| bytes(&queues[part.queue].items[part.start..part.end]))
                .sum();
            let wanted = &queue.rest()[..shares[at].min(queue.rest().len())];
            // A slow rate is kept by small batches too, of a folio at least.
            let slice = turn.limits.rate.over(RATE_SLICE);
            let slice = slice.max(Bytes::from_pages(wanted[0].pages));
            let limit = turn.bytes_left().min(slice).saturating_sub(taken);
            let sum = bytes(wanted);
            let asked = reserved + sum.min(limit);
            let room = self.room_for(queue.pid, queue.to, asked, turn);
            let most = room.saturating_sub(reserved).min(limit);
            let count = if sum <= most {
                wanted.len()
            } else {
                fitting(wanted, most)
            };
            if count == 0 {
                // Else what is under way is in its way, and may yet fail.
                queues[at].ended = taken == Bytes::ZERO || room < bytes(&wanted[..1]);
                continue;
            }
            taken += bytes(&wanted[..count]);
            let queue = &mut queues[at];
            parts.push(Part {
                queue: at,
                start: queue.tried,
                end: queue.tried + count,
            });
            queue.tried += count;
        }
        if parts.is_empty() && queues.iter().any(open) {
            // The next queue may go elsewhere.
            return self.parts(queues, is_huge, threads, turn);
        }
        parts
    }

    /// Makes the calls, at once, and takes in what they brought. Returns how long that
    /// took in all.
    fn carry_out_parts(
        &mut self,
        queues: &mut [Queue],
        parts: &[Part],
        is_huge: bool,
        turn: &mut Turn,
    ) -> Duration {
        let held = self.kind(is_huge).held();
        let root = self.root.clone();
        let calls: Vec<Call<'_>> = parts
            .iter()
            .map(|part| Call {
                root: &root,
                pid: queues[part.queue].pid,
                to: queues[part.queue].to,
                items: &queues[part.queue].items[part.start..part.end],
                held,
            })
            .collect();
        let begin = Instant::now();
        let (all, helpers) = batch::run(&calls);
        let took = begin.elapsed();
        self.cpu += helpers;
        let (mut untried, mut is_told) = (Vec::new(), false);
        for ((call, done), part) in calls.iter().zip(&all).zip(parts) {
            self.calls += done.calls;
            turn.longest = turn.longest.max(done.elapsed);
            let told = done.fates.len();
            if done.calls > 0 {
                let most = turn.limits.call_time;
                let cost = &mut self.kind(is_huge).cost;
                cost.learn(told, done.worked, most);
            }
            is_told |= self.take_in(call, done, turn);
            untried.push((part.queue, call.items[told..].to_vec()));
        }
        // Behind what a folio that cannot move ended the call for.
        for (queue, items) in untried {
            queues[queue].items.extend(items);
        }
        if is_told {
            for queue in queues {
                self.leave_pinned(queue, turn);
            }
        }
        took
    }

    /// Takes out of a queue what others told of.
    fn leave_pinned(&self, queue: &mut Queue, turn: &mut Turn) {
        let rest = queue.items.split_off(queue.tried);
        for item in rest {
            match self.refused.rests(queue.pid, item.addr) {
                Some(why) => why.count(item.pages, &mut turn.counts[item.index]),
                None => queue.items.push(item),
            }
        }
    }

    /// Counts and remembers what a call brought. Whether that tells of pages that were not tried.
    pub(super) fn take_in(&mut self, call: &Call<'_>, done: &Done, turn: &mut Turn) -> bool {
        let &Call { pid, to, items, .. } = call;
        let (mut moved, mut stayed, mut tells) = (Bytes::ZERO, 0, false);
        for (item, fate) in items.iter().zip(&done.fates) {
            fate.count(item.pages, &mut turn.counts[item.index]);
            stayed += u64::from(*fate != Fate::Moved);
            let why = match fate {
                Fate::Moved => {
                    moved += Bytes::from_pages(item.pages);
                    self.refused.forget(pid, item.addr, item.pages);
                    continue;
                }
                Fate::Busy => {
                    if turn.busy.len() < TRIED_AGAIN && !turn.is_last_try {
                        turn.busy.push((pid, to, *item));
                    }
                    Held::Pinned
                }
                Fate::NoRoom => {
                    turn.full.insert(to);
                    continue;
                }
                Fate::Shared => Held::Shared,
                // The destination is forbidden, and the page no worse for another one.
                Fate::Refused if done.forbidden => continue,
                Fate::Refused => Held::Refused,
                Fate::Absent => Held::Absent,
                Fate::Deferred => continue,
            };
            if !turn.is_last_try {
                tells |= self.refused.remember(pid, item.addr, item.pages, why);
            }
        }
        if !moved.is_zero() {
            self.refused.forget_node(pid, to);
        } else if turn.full.contains(&to) {
            self.refused.remember_node(pid, to, Fate::NoRoom);
        } else if done.forbidden {
            self.refused.remember_node(pid, to, Fate::Refused);
        }
        if stayed > 0 {
            let share = stayed as f64 / done.fates.len().max(1) as f64;
            let vain = Nanos::from_secs_f64(done.worked.as_secs_f64() * share);
            if self.effort.spend(pid, vain) {
                turn.spent.insert(pid);
            }
        }
        turn.moved += moved;
        self.cache.came(to, moved);
        if let Some(room) = turn.room.get_mut(&to) {
            room.left = room.left.saturating_sub(moved);
        }
        if done.denied {
            self.try_own();
        }
        if done.gone {
            turn.gone.insert(pid);
            self.forget_process(pid);
        }
        if done.forbidden {
            turn.forbidden.insert((pid, to));
        }
        tells
    }

    /// Counts folios that were not tried.
    fn count_rest(&self, queue: &Queue, turn: &mut Turn) {
        let rest = queue.rest();
        let fate = if turn.gone.contains(&queue.pid) {
            Fate::Absent
        } else if self.is_denied != Some(true) && turn.forbidden.contains(&(queue.pid, queue.to)) {
            Fate::Refused
        } else if turn.is_over()
            || turn.spent.contains(&queue.pid)
            || self.is_denied == Some(true)
            || rest
                .first()
                .is_none_or(|i| turn.bytes_left() < Bytes::from_pages(i.pages))
        {
            Fate::Deferred
        } else {
            let of_node = self.refused.node_rests(queue.pid, queue.to);
            of_node.unwrap_or(Fate::NoRoom)
        };
        for item in rest {
            fate.count(item.pages, &mut turn.counts[item.index]);
        }
    }

    /// Bytes that may go to a node now, when so many want to.
    pub(super) fn room_for(
        &mut self,
        pid: Pid,
        to: NodeId,
        wanted: Bytes,
        turn: &mut Turn,
    ) -> Bytes {
        if turn.is_over()
            || self.is_denied == Some(true)
            || turn.gone.contains(&pid)
            || turn.spent.contains(&pid)
            || self.refused.node_rests(pid, to).is_some()
            || turn.forbidden.contains(&(pid, to))
            || turn.full.contains(&to)
        {
            return Bytes::ZERO;
        }
        let mut known = turn.room.get(&to).copied();
        let mut asked = Bytes::ZERO;
        loop {
            let room = match known {
                Some(room) if room.holds(wanted) => room,
                _ => self.rooms.read(to, wanted, known),
            };
            // What others take at once is not asked for without end.
            let is_enough = asked >= wanted || !self.cache.is_short(to, wanted, room.left);
            if turn.is_over() || is_enough {
                turn.room.insert(to, room);
                return self.cache.within(to, room.left);
            }
            asked += self.cache.give_back(to);
            known = None;
        }
    }
}

fn bytes(items: &[Item]) -> Bytes {
    items.iter().map(|i| Bytes::from_pages(i.pages)).sum()
}

/// How many of these folios, from the first on, hold no more than `bytes`.
pub(super) fn fitting(items: &[Item], bytes: Bytes) -> usize {
    items
        .iter()
        .scan(Bytes::ZERO, |sum, item| {
            *sum += Bytes::from_pages(item.pages);
            Some(*sum)
        })
        .take_while(|sum| *sum <= bytes)
        .count()
}

/// Waits until what was moved is within the rate, or the turn is over.
fn pace_to_rate(turn: &Turn) {
    let rate = turn.limits.rate.0.max(1);
    let due = Nanos::from_secs_f64(turn.moved.as_f64() / rate as f64);
    let due = due.min(turn.limits.time);
    while !turn.is_over() {
        let now = Nanos::from(turn.start.elapsed());
        let wait = due.saturating_sub(now).min(RATE_SLICE);
        if wait == Nanos::ZERO {
            break;
        }
        std::thread::sleep(wait.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_together_is_held_for_four_milliseconds_within_bounds() {
        let held = |mut kind: Kind, each: u64| {
            for folios in [100, 100] {
                let took = Nanos(each * folios);
                kind.cost.learn(100, took, Nanos::from_secs(1));
            }
            kind.held()
        };
        assert_eq!(held(Kind::small(), 16_000), 250);
        assert_eq!(held(Kind::small(), 150_000), 32);
        assert_eq!(held(Kind::small(), 1_000), 512);
        // A huge one alone takes as long.
        assert_eq!(held(Kind::huge(), 100_000), 1);
    }
}
