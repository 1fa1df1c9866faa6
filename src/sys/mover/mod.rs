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
//! up ([`cache`]). Every page that did not move is remembered at once, and left alone for longer each
//! time ([`refused`]); a few that were busy are tried once more at the end. Tries in vain may cost
//! a fiftieth of a CPU ([`effort`]). Pages that are shared with others than
//! the target's own processes are not asked for, and so moved as soon as they are not.
//!
//! **Properties.** Never more bytes than the limit, nor more time or bytes per
//! second, give or take one batch of each thread. Every page asked for and found is counted exactly
//! once. Nothing that happens to a page or a process is an error.

mod batch;
mod cache;
mod carry;
mod effort;
mod policies;
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
use self::effort::Effort;
use self::policies::Policies;
use self::refused::{Held, Refused};
use self::room::{Room, Rooms};
use self::slices::stretches;
use super::clock::thread_cpu_time;
use super::denied;
use super::locate::{Locator, Mappers, Place, Whose};
use super::own_pages::OwnPages;
use super::root::Root;
use crate::ports::{FolioPace, Keep, MoveLimits, PageMover, PortError, Sharing};
use crate::tiering::observation::TargetId;
use crate::tiering::plan::{Move, MoveOutcome, MoveResult, PageCounts, Reclaim};
use crate::units::{Bytes, Nanos, NodeId, PageRange, Pid, VirtAddr};

/// Addresses looked through for one move at most, some 20 ms. Of a longer range it is
/// never known that all was looked through.
const LONGEST_WALK: Bytes = Bytes::from_mib(1024);
/// Busy pages that are tried once more in a turn, each by a call.
const TRIED_AGAIN: usize = 16;
/// Walks remembered at most, of a process and a node each.
const MOST_WALKS: usize = 4096;

/// The kernel's page mover.
#[derive(Debug)]
pub struct SysMover {
    root: Root,
    locator: Locator,
    rooms: Rooms,
    cache: Cache,
    refused: Refused,
    effort: Effort,
    policies: Policies,
    /// Where a walk through a process for pages on a node goes on.
    walks: HashMap<(Pid, TargetId, NodeId), VirtAddr>,
    small: Kind,
    huge: Kind,
    cpu: Nanos,
    calls: u64,
    /// Whether `move_pages` is denied to us, once that was tried: nothing changes it.
    is_denied: Option<bool>,
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
    /// Processes of which too much was tried in vain.
    spent: HashSet<Pid>,
    longest: Duration,
    counts: Vec<PageCounts>,
    /// Whether all of each move's range was looked through.
    whole: Vec<bool>,
    room: HashMap<NodeId, Room>,
    /// Where the search for the last move of a range and node ended, since the next one
    /// wants other pages, and whether it had begun where the range does. So nothing is
    /// found twice.
    ends: HashMap<(TargetId, PageRange, NodeId), (VirtAddr, bool)>,
    /// Some that were busy, to be tried once more.
    busy: Vec<(Pid, NodeId, Item)>,
    is_last_try: bool,
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
            root: root.clone(),
            locator: Locator::new(root),
            rooms: Rooms::new(root),
            cache: Cache::new(root),
            refused: Refused::default(),
            effort: Effort::new(Instant::now()),
            policies: Policies::default(),
            walks: HashMap::new(),
            small: Kind::small(),
            huge: Kind::huge(),
            cpu: Nanos::ZERO,
            calls: 0,
            is_denied: None,
            halt: Arc::default(),
        }
    }

    /// Ends a turn early, the rest deferred, while this is set.
    #[must_use]
    pub fn halted_by(mut self, halt: Arc<AtomicBool>) -> Self {
        self.halt = halt;
        self
    }

    /// Tries now whether we may move at all, and says so if not.
    #[must_use]
    pub fn tried(mut self) -> Self {
        self.try_own();
        self
    }

    /// Tries it on a page of our own, once.
    fn try_own(&mut self) {
        if self.is_denied.is_some() {
            return;
        }
        let tried = OwnPages::new(1).and_then(|own| own.move_first(None));
        let error = tried.err().filter(denied::may_be);
        self.is_denied = Some(error.is_some());
        if let Some(error) = error {
            tracing::warn!(
                "nothing is moved: move_pages(2) is denied to hmkeeper itself ({error}) by {}; allow it \
                 there and start hmkeeper again",
                denied::by_whom(&self.root)
            );
        }
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
            let search = (asked.target, asked.range, asked.from);
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
            let held = |place: Place, mappers| match mappers {
                Mappers::Others => Some(Held::Shared),
                Mappers::Alone | Mappers::Pool => refused.rests(place.pid, place.addr),
            };
            let whose = Whose {
                target: asked.target,
                pid: asked.pid,
            };
            let (pages, held) = self
                .locator
                .folios_on(whose, part, asked.from, limit, held, &mut found)?;
            for (why, pages) in held {
                why.count(pages, &mut turn.counts[index]);
            }
            let is_enough = pages >= limit;
            let key = (asked.pid, asked.target, asked.from);
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
                pid: f.place.pid,
                addr: f.place.addr,
                pages: f.pages,
                shared: f.shared,
            }));
        }
        Ok(items)
    }

    /// Where to look through a move's range: a long walk that found too little goes on
    /// where it ended.
    fn walk_start(&self, asked: &Move) -> VirtAddr {
        let start = self
            .walks
            .get(&(asked.pid, asked.target, asked.from))
            .copied();
        start
            .filter(|&addr| asked.range.contains(addr))
            .unwrap_or(asked.range.start())
    }

    /// Whoever has this pid next is another one.
    fn forget_process(&mut self, pid: Pid) {
        self.refused.forget_process(pid);
        self.walks.retain(|&(of, ..), _| of != pid);
        self.policies.keep(|of| of != pid);
    }

    /// Walks through processes that are no longer watched.
    fn forget_walks(&mut self) {
        let holds = self.root.holds();
        self.walks.retain(|&(pid, ..), _| holds.is_meant(pid));
        self.policies.keep(|pid| holds.is_meant(pid));
        if self.walks.len() > MOST_WALKS {
            // They begin anew.
            self.walks.clear();
        }
    }

    /// Looks up what a group is about, unless the turn is over: then it is deferred. One
    /// queue for each process through which pages are moved.
    fn queue(&mut self, moves: &[Move], group: &[usize], turn: &mut Turn) -> Vec<Queue> {
        let first = &moves[group[0]];
        let pid = first.pid;
        if !turn.gone.contains(&pid) && !self.root.holds().is_meant(pid) {
            turn.gone.insert(pid);
            self.forget_process(pid);
        }
        if turn.gone.contains(&pid) {
            return Vec::new();
        }
        let items = if self.is_denied == Some(true)
            || turn.is_over()
            || self.effort.is_spent(first.pid)
        {
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
        let mut queues = Vec::new();
        for (pid, mut items) in by_process(pid, items.unwrap_or_default()) {
            if !self.root.holds().is_meant(pid) {
                turn.gone.insert(pid);
                self.forget_process(pid);
                continue;
            }
            self.leave_bound(pid, &mut items, turn);
            // What may well be pinned comes after what is not.
            items.sort_by_key(|item| self.refused.is_suspect(pid, item.addr));
            queues.push(Queue::new(pid, first.to, items));
        }
        queues
    }

    /// Takes out what its program has bound since the plan was made.
    fn leave_bound(&mut self, pid: Pid, items: &mut Vec<Item>, turn: &mut Turn) {
        let holds = self.root.holds();
        if items.is_empty() || !holds.leaves_bound(pid) {
            return;
        }
        self.policies.look(&self.root, pid);
        let policies = &self.policies;
        let before = items.len();
        items.retain(|item| {
            let is_bound = policies.is_bound(pid, item.addr);
            if is_bound {
                turn.counts[item.index].deferred += item.pages;
                turn.whole[item.index] = false;
            }
            !is_bound
        });
        if items.len() < before {
            holds.doubt(pid);
        }
    }

    /// Tries some that were busy once more, now that some time has passed.
    fn retry(&mut self, turn: &mut Turn) {
        turn.is_last_try = true;
        for (pid, to, item) in std::mem::take(&mut turn.busy) {
            if turn.is_over() || turn.bytes_left() < Bytes::from_pages(item.pages) {
                break;
            }
            if self.refused.is_one_of_many(pid, item.addr) {
                continue;
            }
            let bytes = Bytes::from_pages(item.pages);
            if self.room_for(pid, to, bytes, turn) < bytes {
                continue;
            }
            let call = Call {
                root: &self.root.clone(),
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
    }
}

impl PageMover for SysMover {
    fn apply(&mut self, moves: &[Move], limits: MoveLimits) -> Result<MoveOutcome, PortError> {
        let cpu = thread_cpu_time();
        self.forget_walks();
        self.refused.next_turn();
        self.effort.next_turn(Instant::now());
        let mut turn = Turn {
            start: Instant::now(),
            halt: Arc::clone(&self.halt),
            limits,
            moved: Bytes::ZERO,
            full: HashSet::new(),
            forbidden: HashSet::new(),
            gone: HashSet::new(),
            spent: HashSet::new(),
            longest: Duration::ZERO,
            counts: vec![PageCounts::default(); moves.len()],
            whole: vec![false; moves.len()],
            room: HashMap::new(),
            ends: HashMap::new(),
            busy: Vec::new(),
            is_last_try: false,
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
                .flat_map(|group| self.queue(moves, group, &mut turn))
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

    fn relate(&mut self, sharing: &Sharing) {
        self.locator.relate(sharing);
    }

    fn cpu_time(&self) -> Nanos {
        self.cpu
    }

    fn pace(&self) -> Option<[FolioPace; 2]> {
        Some([self.small.pace(), self.huge.pace()])
    }
}

/// Folios by the process through which they are moved: nearly always all by one.
fn by_process(first: Pid, items: Vec<Item>) -> Vec<(Pid, Vec<Item>)> {
    if items.iter().all(|item| item.pid == first) {
        return vec![(first, items)];
    }
    let mut all: Vec<(Pid, Vec<Item>)> = Vec::new();
    for item in items {
        match all.iter_mut().find(|(pid, _)| *pid == item.pid) {
            Some((_, items)) => items.push(item),
            None => all.push((item.pid, vec![item])),
        }
    }
    all
}

/// What to look through of a range now, from `start` on; `None` at its end.
fn part_from(start: VirtAddr, range: PageRange) -> Option<PageRange> {
    let end = start.checked_add(LONGEST_WALK).unwrap_or(range.end());
    PageRange::new(start, end.min(range.end()))
}

#[cfg(test)]
mod tests;
