//! Moving pages in batches.
//!
//! **Unit.** Pages of 4 KiB; a folio moves as a whole and is named once.
//!
//! **Problem.** Each call has a fixed cost, holds up whoever touches its pages
//! meanwhile, and answers page by page; the pages asked for may be elsewhere,
//! pinned, gone, or the destination full.
//!
//! **Approach.** The plan is taken in slices, so that a turn that ends early has
//! promoted the most urgent, and not only made room for it ([`slices`]). In a slice
//! demotions come first. Moves of one process, source and destination are grouped and
//! their folios looked up, so that nothing is "moved" to where it is. Small
//! and huge folios go in batches of their own, each as large as its call may be long
//! ([`carry`]); how large that is, and whether one thread calls or two, is learnt from
//! what calls took ([`tiering::moving`](crate::tiering::moving)). Of a call only so many folios
//! are out of reach at once as take 4 ms, 32 at least: whoever touches one waits for these.
//! Two threads take both
//! directions at once: promotions, for which there is room by now, and the demotions
//! that make room for the next. Before each batch the destination must have room for it
//! beyond its reserve, and beyond what is to stay free there ([`Keep`]); where others take so much of a node that
//! little is left the turn ends. What page cache has to make of that the kernel is asked for when the rest is used
//! up ([`cache`]). What was busy is tried once more at the end; what was refused is
//! remembered and left alone for longer each time. Pages that are shared with others than
//! the target's own processes are not asked for, and so moved as soon as they are not.
//!
//! **Properties.** Never more bytes than the limit, nor more time or bytes per
//! second, give or take one batch of each thread. Every page asked for and found is counted exactly
//! once. Nothing that happens to a page or a process is an error.

mod batch;
mod cache;
mod carry;
mod refused;
mod room;
mod slices;

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use self::batch::{Call, Item};
use self::cache::Cache;
pub(super) use self::cache::{is_there, try_page_cache};
use self::carry::{Kind, Queue};
use self::refused::{Held, Refused};
use self::room::{Room, Rooms};
use self::slices::stretches;
use super::clock::thread_cpu_time;
use super::locate::{Locator, Mappers};
use super::root::Root;
use crate::ports::{Families, FolioPace, Keep, MoveLimits, PageMover, PortError};
use crate::tiering::plan::{Move, MoveOutcome, MoveResult, PageCounts, Reclaim};
use crate::units::{Bytes, Nanos, NodeId, PageRange, Pid, VirtAddr};

/// Addresses looked through for one move at most, some 20 ms. Of a longer range it is
/// never known that all was looked through.
const LONGEST_WALK: Bytes = Bytes::from_mib(1024);

/// The kernel's page mover.
#[derive(Debug)]
pub struct SysMover {
    locator: Locator,
    rooms: Rooms,
    cache: Cache,
    refused: Refused,
    /// Where a walk through a process for pages on a node goes on.
    walks: HashMap<(Pid, NodeId), VirtAddr>,
    small: Kind,
    huge: Kind,
    cpu: Nanos,
    calls: u64,
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
    /// Where the search for the last move of a range and node ended, since the next one
    /// wants other pages, and whether it had begun where the range does. So nothing is
    /// found twice.
    ends: HashMap<(Pid, PageRange, NodeId), (VirtAddr, bool)>,
    busy: Vec<(Pid, NodeId, Item)>,
    /// Others need the memory of a node now.
    is_short: bool,
}

impl Turn {
    /// What the limit leaves.
    fn bytes_left(&self) -> Bytes {
        self.limits.bytes.saturating_sub(self.moved)
    }

    /// Whether a limit says to stop, or somebody waits.
    fn is_over(&self) -> bool {
        self.is_short
            || self.halt.load(Ordering::Relaxed)
            || Nanos::from(self.start.elapsed()) >= self.limits.time
            || self.moved >= self.limits.bytes
    }
}

impl SysMover {
    /// A mover that has moved nothing yet.
    pub fn new(root: &Root) -> Self {
        Self {
            locator: Locator::new(root),
            rooms: Rooms::new(root),
            cache: Cache::new(root),
            refused: Refused::default(),
            walks: HashMap::new(),
            small: Kind::small(),
            huge: Kind::huge(),
            cpu: Nanos::ZERO,
            calls: 0,
            halt: Arc::default(),
        }
    }

    /// Ends a turn early, the rest deferred, while this is set.
    #[must_use]
    pub fn halted_by(mut self, halt: Arc<AtomicBool>) -> Self {
        self.halt = halt;
        self
    }

    /// System calls that moved, or tried to, since the start.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// Looks up what a group's moves are about; each item knows its move. What is
    /// shared, or rests after a refusal, is counted and left alone.
    fn find(&mut self, moves: &[Move], group: &[usize], turn: &mut Turn) -> io::Result<Vec<Item>> {
        let mut items = Vec::new();
        let mut found = Vec::new();
        for &index in group {
            let asked = &moves[index];
            let search = (asked.pid, asked.range, asked.from);
            let (start, from_start) = turn.ends.get(&search).copied().unwrap_or_else(|| {
                let start = self.walk_start(asked);
                (start, start == asked.range.start())
            });
            let Some(part) = part_from(start, asked.range) else {
                turn.whole[index] = from_start;
                continue;
            };
            found.clear();
            let (limit, refused) = (asked.limit.pages(), &self.refused);
            // What strangers map is not ours to move.
            let held = |addr, mappers| match mappers {
                Mappers::Others => Some(Held::Shared),
                Mappers::Alone | Mappers::Family => refused.rests(asked.pid, addr),
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
            (turn.ends).insert(search, (end.unwrap_or(part.end()), from_start));
            items.extend(found.iter().map(|f| Item {
                index,
                addr: f.addr,
                pages: f.pages,
                shared: f.shared,
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

    /// Looks up what a group is about, unless the turn is over: then it is deferred.
    fn queue(&mut self, moves: &[Move], group: &[usize], turn: &mut Turn) -> Option<Queue> {
        let first = &moves[group[0]];
        let items = if turn.is_over() {
            None
        } else {
            self.find(moves, group, turn)
                .inspect_err(|e| {
                    tracing::warn!(pid = %first.pid, error = %e, "cannot see where its pages are: they stay");
                })
                .ok()
        };
        if items.is_none() {
            for &index in group {
                let asked = &moves[index];
                turn.whole[index] = false;
                turn.counts[index].deferred += asked.limit.pages().min(asked.range.pages());
            }
        }
        Some(Queue::new(first.pid, first.to, items?))
    }

    /// What was busy once more, now that some time has passed.
    fn retry(&mut self, turn: &mut Turn) {
        let busy = std::mem::take(&mut turn.busy);
        for (pid, to, item) in busy {
            if turn.is_over() || turn.bytes_left() < Bytes::from_pages(item.pages) {
                break;
            }
            let bytes = Bytes::from_pages(item.pages);
            if self.room_for(pid, to, bytes, turn) < bytes {
                continue;
            }
            let call = Call {
                pid,
                to,
                items: &[item],
                held: 1,
            };
            let done = batch::call(&call);
            self.calls += done.calls;
            turn.longest = turn.longest.max(done.elapsed);
            let counts = &mut turn.counts[item.index];
            counts.busy = counts.busy.saturating_sub(item.pages);
            self.take_in(&call, &done, turn);
        }
        for (pid, _, item) in std::mem::take(&mut turn.busy) {
            // Pinned for long, it seems.
            self.refused.remember(pid, item.addr, Held::Pinned);
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
            room: HashMap::new(),
            ends: HashMap::new(),
            busy: Vec::new(),
            is_short: false,
        };
        self.locator.hold();
        for stretch in stretches(moves) {
            if stretch.begins_slice {
                // What the slice before filled, demotions of this one may empty.
                turn.full.clear();
            }
            let groups = stretch.groups.iter();
            let queues = groups
                .filter_map(|group| self.queue(moves, group, &mut turn))
                .collect();
            self.carry_out(queues, &mut turn);
            turn.is_short |= self.rooms.is_short();
        }
        self.locator.let_go();
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
            reclaimed: self.cache.end(),
        })
    }

    fn may_reclaim(&mut self, cache: &[Reclaim]) {
        self.cache.begin(cache);
    }

    fn keep(&mut self, nodes: &[Keep], in_haste: bool) {
        self.rooms.keep(nodes, in_haste);
    }

    fn relate(&mut self, families: &Families) {
        self.locator.relate(families);
    }

    fn cpu_time(&self) -> Nanos {
        self.cpu
    }

    fn pace(&self) -> Option<[FolioPace; 2]> {
        Some([self.small.pace(), self.huge.pace()])
    }
}

/// What to look through of a range now, from `start` on; `None` at its end.
fn part_from(start: VirtAddr, range: PageRange) -> Option<PageRange> {
    let end = start.checked_add(LONGEST_WALK).unwrap_or(range.end());
    PageRange::new(start, end.min(range.end()))
}

#[cfg(test)]
mod tests;
