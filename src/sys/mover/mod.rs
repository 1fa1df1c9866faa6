//! Moving pages in batches.
//!
//! **Unit.** Pages of 4 KiB; a folio moves as a whole and is named once.
//!
//! **Problem.** Each call has a fixed cost, holds up whoever touches its pages
//! meanwhile, and answers page by page; the pages asked for may be elsewhere,
//! pinned, gone, or the destination full.
//!
//! **Approach.** The plan is taken in slices, so that a turn that ends early has
//! promoted the most urgent, and not only made room for it. In a slice demotions
//! come first. Moves of one process, source and destination are grouped and
//! their folios looked up, so that nothing is "moved" to where it is. Small
//! and huge folios go in batches of their own, each sized by what a page of its kind
//! took lately so that a call stays below its time. Before each batch the
//! destination must have room for it beyond its reserve. What was busy is tried once more at the
//! end; what was refused is remembered and left alone for longer each time. Pages that the
//! page map shows to be shared are not asked for, and so moved as soon as they are not.
//!
//! **Properties.** Never more bytes than the limit, nor more time or bytes per
//! second, give or take one batch. Every page asked for and found is counted exactly
//! once. Nothing that happens to a page or a process is an error.

mod batch;
mod refused;

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use self::batch::{Fate, Item, Pace};
use self::refused::{Held, Refused};
use super::clock::thread_cpu_time;
use super::locate::Locator;
use super::residency;
use super::root::Root;
use crate::ports::{MoveLimits, PageMover, PortError};
use crate::tiering::plan::{Direction, Move, MoveOutcome, MoveResult, PageCounts};
use crate::units::{Bytes, Nanos, NodeId, PageRange, Pid, VirtAddr};

/// Bytes of moves from which on a slice of the plan ends before its next demotion.
const SLICE_BYTES: Bytes = Bytes::from_mib(4);
/// Bytes of moves that are looked up and carried out together.
const GROUP_BYTES: Bytes = Bytes::from_mib(16);
/// Others use memory too: what is free is read again after this long.
const ROOM_LASTS: Duration = Duration::from_millis(50);
/// No batch has more bytes than the rate lets through in so much time.
const RATE_SLICE: Nanos = Nanos::from_millis(100);
/// Addresses looked through for one move at most, some 20 ms. Of a longer range it is
/// never known that all was looked through.
const LONGEST_WALK: Bytes = Bytes::from_mib(1024);
/// Pages of a folio from which on it counts as huge: its copy dominates.
const HUGE_PAGES: u64 = 64;

/// The kernel's page mover.
#[derive(Debug)]
pub struct SysMover {
    root: Root,
    locator: Locator,
    refused: Refused,
    /// Where a walk through a process for pages on a node goes on.
    walks: HashMap<(Pid, NodeId), VirtAddr>,
    small: Pace,
    huge: Pace,
    cpu: Nanos,
    /// Somebody waits for the end of the turn.
    halt: Arc<AtomicBool>,
}

/// One call of [`PageMover::apply`] under way.
struct Turn {
    start: Instant,
    halt: Arc<AtomicBool>,
    limits: MoveLimits,
    moved: Bytes,
    /// Destinations that are full, and pairs that the kernel forbids.
    full: HashSet<NodeId>,
    forbidden: HashSet<(Pid, NodeId)>,
    gone: HashSet<Pid>,
    longest: Duration,
    counts: Vec<PageCounts>,
    /// Whether all of each move's range was looked through.
    whole: Vec<bool>,
    room: HashMap<NodeId, Room>,
    busy: Vec<(Pid, NodeId, Item)>,
}

/// What a destination can take, as last read.
#[derive(Clone, Copy, Debug)]
struct Room {
    left: Bytes,
    read_at: Instant,
}

impl Turn {
    /// What the limit leaves.
    fn bytes_left(&self) -> Bytes {
        self.limits.bytes.saturating_sub(self.moved)
    }

    /// Whether a limit says to stop, or somebody waits.
    fn is_over(&self) -> bool {
        self.halt.load(Ordering::Relaxed)
            || Nanos::from(self.start.elapsed()) >= self.limits.time
            || self.moved >= self.limits.bytes
    }
}

impl SysMover {
    /// A mover that has moved nothing yet.
    pub fn new(root: &Root) -> Self {
        Self {
            root: root.clone(),
            locator: Locator::new(root),
            refused: Refused::default(),
            walks: HashMap::new(),
            small: Pace::small(),
            huge: Pace::huge(),
            cpu: Nanos::ZERO,
            halt: Arc::default(),
        }
    }

    /// Ends a turn early, the rest deferred, while this is set.
    #[must_use]
    pub fn halted_by(mut self, halt: Arc<AtomicBool>) -> Self {
        self.halt = halt;
        self
    }

    /// Looks up what a group's moves are about; each item knows its move. What is
    /// shared, or rests after a refusal, is counted and left alone.
    fn find(&mut self, moves: &[Move], group: &[usize], turn: &mut Turn) -> io::Result<Vec<Item>> {
        let mut items = Vec::new();
        let mut found = Vec::new();
        // Where the search for the last move of a range ended, since the next one wants
        // other pages, and whether it had begun where the range does.
        let mut ends: HashMap<PageRange, (VirtAddr, bool)> = HashMap::new();
        for &index in group {
            let asked = &moves[index];
            let (start, from_start) = ends.get(&asked.range).copied().unwrap_or_else(|| {
                let start = self.walk_start(asked);
                (start, start == asked.range.start())
            });
            let Some(part) = part_from(start, asked.range) else {
                turn.whole[index] = from_start;
                continue;
            };
            found.clear();
            let (limit, refused) = (asked.limit.pages(), &self.refused);
            // The kernel would refuse these (MPOL_MF_MOVE), page by page.
            let held = |addr, exclusive| {
                if exclusive {
                    refused.rests(asked.pid, addr)
                } else {
                    Some(Held::Shared)
                }
            };
            let (pages, held) = self
                .locator
                .folios_on(asked.pid, part, asked.from, limit, held, &mut found)?;
            for (why, pages) in held {
                why.count(pages, &mut turn.counts[index]);
            }
            let is_enough = pages >= limit;
            let key = (asked.pid, asked.from);
            if !is_enough && part.end() < asked.range.end() {
                self.walks.insert(key, part.end());
            } else {
                self.walks.remove(&key);
                turn.whole[index] = from_start && !is_enough;
            }
            let last = found.last().filter(|_| is_enough);
            let end = last.and_then(|f| f.addr.checked_add(Bytes::from_pages(f.pages)));
            ends.insert(asked.range, (end.unwrap_or(part.end()), from_start));
            items.extend(found.iter().map(|f| Item {
                index,
                addr: f.addr,
                pages: f.pages,
            }));
        }
        Ok(items)
    }

    /// Where to look through a move's range: a long walk that found too little goes on
    /// where it ended.
    fn walk_start(&self, asked: &Move) -> VirtAddr {
        let start = self.walks.get(&(asked.pid, asked.from)).copied();
        start
            .filter(|&addr| asked.range.contains(addr))
            .unwrap_or(asked.range.start())
    }

    /// Carries out one group: the same process, source and destination.
    fn carry_out(&mut self, pid: Pid, to: NodeId, items: Vec<Item>, turn: &mut Turn) {
        let (huge, small): (Vec<Item>, Vec<Item>) =
            items.into_iter().partition(|i| i.pages >= HUGE_PAGES);
        for (items, is_huge) in [(small, false), (huge, true)] {
            let mut rest = items.as_slice();
            while !rest.is_empty() {
                let pace = if is_huge { &self.huge } else { &self.small };
                let size = pace.batch(turn.limits.call_time) * turn.limits.threads;
                let wanted = &rest[..size.min(rest.len())];
                let room = self.room_for(pid, to, wanted, turn);
                // A slow rate is kept by small batches too, of a folio at least.
                let slice = turn.limits.rate.over(RATE_SLICE);
                let slice = slice.max(Bytes::from_pages(wanted[0].pages));
                let bytes = room.min(turn.bytes_left()).min(slice);
                let (batch, after) = rest.split_at(fitting(wanted, bytes));
                if batch.is_empty() {
                    break;
                }
                self.carry_out_batch(pid, to, batch, is_huge, turn);
                rest = after;
            }
            let fate = if turn.gone.contains(&pid) {
                Fate::Absent
            } else if turn.forbidden.contains(&(pid, to)) {
                Fate::Refused
            } else if turn.is_over()
                || rest
                    .first()
                    .is_none_or(|i| turn.bytes_left() < Bytes::from_pages(i.pages))
            {
                Fate::Deferred
            } else {
                Fate::NoRoom
            };
            for item in rest {
                fate.count(item.pages, &mut turn.counts[item.index]);
            }
        }
    }

    /// Bytes that may go to a node now, when so many folios want to.
    fn room_for(&self, pid: Pid, to: NodeId, wanted: &[Item], turn: &mut Turn) -> Bytes {
        if turn.is_over()
            || turn.gone.contains(&pid)
            || turn.forbidden.contains(&(pid, to))
            || turn.full.contains(&to)
        {
            return Bytes::ZERO;
        }
        let bytes: Bytes = wanted.iter().map(|i| Bytes::from_pages(i.pages)).sum();
        // A node that cannot be read is left to the kernel's own answer.
        let Some(room) = turn.room.get_mut(&to) else {
            return Bytes(u64::MAX);
        };
        if room.left < bytes || room.read_at.elapsed() >= ROOM_LASTS {
            if let Ok(usage) = residency::usage_of(&self.root, to) {
                room.left = usage.free.saturating_sub(usage.reserve);
            }
            room.read_at = Instant::now();
        }
        room.left
    }

    fn carry_out_batch(
        &mut self,
        pid: Pid,
        to: NodeId,
        batch: &[Item],
        is_huge: bool,
        turn: &mut Turn,
    ) {
        let done = batch::run(pid, to, batch, turn.limits.threads);
        self.cpu += done.workers_cpu;
        turn.longest = turn.longest.max(done.elapsed);
        let pace = if is_huge {
            &mut self.huge
        } else {
            &mut self.small
        };
        // Each thread's call had its part of the batch.
        pace.learn(batch.len().div_ceil(turn.limits.threads), done.worked);
        for (item, fate) in batch.iter().zip(&done.fates) {
            fate.count(item.pages, &mut turn.counts[item.index]);
            match fate {
                Fate::Moved => {
                    let bytes = Bytes::from_pages(item.pages);
                    turn.moved += bytes;
                    if let Some(room) = turn.room.get_mut(&to) {
                        room.left = room.left.saturating_sub(bytes);
                    }
                    self.refused.forget(pid, item.addr);
                }
                Fate::Busy => turn.busy.push((pid, to, *item)),
                Fate::NoRoom => {
                    turn.full.insert(to);
                }
                Fate::Shared => self.refused.remember(pid, item.addr, Held::Shared),
                // The destination is forbidden, and the page no worse for another one.
                Fate::Refused if done.forbidden => {}
                Fate::Refused => self.refused.remember(pid, item.addr, Held::Refused),
                Fate::Absent | Fate::Deferred => {}
            }
        }
        if done.gone {
            turn.gone.insert(pid);
            self.refused.forget_process(pid);
        }
        if done.forbidden {
            turn.forbidden.insert((pid, to));
        }
        pace_to_rate(turn);
    }

    /// What was busy once more, now that some time has passed.
    fn retry(&mut self, turn: &mut Turn) {
        let busy = std::mem::take(&mut turn.busy);
        for (pid, to, item) in busy {
            if turn.is_over() || turn.bytes_left() < Bytes::from_pages(item.pages) {
                break;
            }
            if self.room_for(pid, to, &[item], turn) < Bytes::from_pages(item.pages) {
                continue;
            }
            let done = batch::run(pid, to, &[item], 1);
            turn.longest = turn.longest.max(done.elapsed);
            if done.fates == [Fate::Moved] {
                let counts = &mut turn.counts[item.index];
                counts.busy = counts.busy.saturating_sub(item.pages);
                counts.moved += item.pages;
                turn.moved += Bytes::from_pages(item.pages);
            } else {
                // Pinned for long, it seems.
                self.refused.remember(pid, item.addr, Held::Pinned);
            }
        }
    }
}

impl PageMover for SysMover {
    fn apply(&mut self, moves: &[Move], limits: MoveLimits) -> Result<MoveOutcome, PortError> {
        let cpu = thread_cpu_time();
        self.refused.next_turn();
        let mut turn = Turn {
            start: Instant::now(),
            halt: Arc::clone(&self.halt),
            limits,
            moved: Bytes::ZERO,
            full: HashSet::new(),
            forbidden: HashSet::new(),
            gone: HashSet::new(),
            longest: Duration::ZERO,
            counts: vec![PageCounts::default(); moves.len()],
            whole: vec![false; moves.len()],
            room: rooms(&self.root),
            busy: Vec::new(),
        };
        for slice in slices(moves) {
            // What the slice before filled, demotions of this one may empty.
            turn.full.clear();
            for group in groups(moves, slice) {
                let first = &moves[group[0]];
                let items = if turn.is_over() {
                    None
                } else {
                    self.find(moves, &group, &mut turn)
                        .inspect_err(|e| {
                            tracing::warn!(pid = %first.pid, error = %e, "cannot see where its pages are: they stay");
                        })
                        .ok()
                };
                match items {
                    Some(items) => self.carry_out(first.pid, first.to, items, &mut turn),
                    None => {
                        for index in group {
                            let asked = &moves[index];
                            turn.whole[index] = false;
                            turn.counts[index].deferred +=
                                asked.limit.pages().min(asked.range.pages());
                        }
                    }
                }
            }
        }
        self.retry(&mut turn);
        self.cpu += thread_cpu_time().saturating_sub(cpu);
        Ok(MoveOutcome {
            results: moves
                .iter()
                .zip(turn.counts.into_iter().zip(turn.whole))
                .map(|(asked, (pages, is_whole))| MoveResult {
                    asked: asked.clone(),
                    pages,
                    is_whole,
                })
                .collect(),
            elapsed: turn.start.elapsed().into(),
            longest_call: turn.longest.into(),
        })
    }

    fn cpu_time(&self) -> Nanos {
        self.cpu
    }
}

/// What to look through of a range now, from `start` on; `None` at its end.
fn part_from(start: VirtAddr, range: PageRange) -> Option<PageRange> {
    let end = start.checked_add(LONGEST_WALK).unwrap_or(range.end());
    PageRange::new(start, end.min(range.end()))
}

/// How many of these folios, from the first on, hold no more than `bytes`.
fn fitting(items: &[Item], bytes: Bytes) -> usize {
    items
        .iter()
        .scan(Bytes::ZERO, |sum, item| {
            *sum += Bytes::from_pages(item.pages);
            Some(*sum)
        })
        .take_while(|sum| *sum <= bytes)
        .count()
}

/// What every node can take now.
fn rooms(root: &Root) -> HashMap<NodeId, Room> {
    let read_at = Instant::now();
    let nodes = residency::usage(root).unwrap_or_default();
    nodes
        .into_iter()
        .map(|usage| {
            let left = usage.free.saturating_sub(usage.reserve);
            (usage.node, Room { left, read_at })
        })
        .collect()
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

/// The plan in pieces: first the promotions for which there is room already, then
/// some [`SLICE_BYTES`] each, with all demotions that its promotions need, since a
/// demotion stands before its promotion.
fn slices(moves: &[Move]) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let left = &moves[start..];
        let mut bytes = Bytes::ZERO;
        let has_room = left
            .first()
            .is_some_and(|m| m.direction == Direction::Promotion);
        let ends = |pair: &[Move]| {
            bytes += pair[0].limit;
            let turns = pair[0].direction == Direction::Promotion
                && pair[1].direction == Direction::Demotion;
            turns && (has_room || bytes >= SLICE_BYTES)
        };
        let length = left
            .windows(2)
            .position(ends)
            .map_or(left.len(), |at| at + 1);
        let slice = start..start + length;
        start = slice.end;
        (!slice.is_empty()).then_some(slice)
    })
}

/// Indices of moves to carry out together: one direction, process, source and
/// destination; in the order of the first of each, at most [`GROUP_BYTES`].
fn groups(moves: &[Move], slice: Range<usize>) -> Vec<Vec<usize>> {
    let mut groups: Vec<(Bytes, Vec<usize>)> = Vec::new();
    // Groups that may still grow, by key.
    let mut open: std::collections::HashMap<_, usize> = std::collections::HashMap::new();
    for (index, m) in slice.clone().zip(&moves[slice]) {
        let key = (m.direction, m.pid, m.from, m.to);
        match open.get(&key).map(|&at| &mut groups[at]) {
            Some((bytes, group)) if *bytes < GROUP_BYTES => {
                *bytes += m.limit;
                group.push(index);
            }
            _ => {
                open.insert(key, groups.len());
                groups.push((m.limit, vec![index]));
            }
        }
    }
    // Demotions first: they make the room.
    groups.sort_by_key(|(_, group)| moves[group[0]].direction);
    groups.into_iter().map(|(_, group)| group).collect()
}

#[cfg(test)]
mod tests;
