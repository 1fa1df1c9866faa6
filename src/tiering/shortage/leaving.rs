//! What leaves a node that lacks free memory, and whereto.
//!
//! **Unit.** Bytes that are present, as far as known.
//!
//! **Problem.** A decision on all regions takes longer than there is time, and where pages are is known as of the
//! last one.
//!
//! **Approach.** With the first node that lacks something all regions with pages on the watched nodes are put in
//! order, once until the next decision: what is cold, what nobody knows of, what is hot, the coldest first; where they
//! lie as the last decision knew it, with all moves since. Each plan then takes of them as much as lacks, to the
//! nearest place with room beyond its own reserve: a node as fast, the next slower one, and where none has room the
//! next faster one. Last come the addresses of whatever else the targets have, of which nothing is known to be
//! there: it may be all the same.
//!
//! What was tried is not tried again until the next decision, unless there was no time or room for it.

use std::collections::HashMap;

use super::Lack;
use crate::tiering::observation::TargetId;
use crate::tiering::plan::{Direction, Move, MoveResult, Reason};
use crate::tiering::region::Region;
use crate::tiering::tier::TierView;
use crate::units::{Bytes, NodeId, PageRange, Pid, VirtAddr};

/// Up to this share of the scans it is cold.
const COLD: f32 = 0.05;
/// So hot is what nobody knows of held to be, as a share of the scans.
const UNKNOWN: f32 = 0.5;
/// Moves of one plan: none takes long.
const MOVES_MOST: usize = 4096;
/// A region leaves in such pieces: to look through a long one for some of its pages may take longer than there is time.
const PIECE: Bytes = Bytes::from_mib(8);
/// And what nothing is known of.
const UNSEEN_PIECE: Bytes = Bytes::from_mib(64);

/// A target that has memory on nodes.
#[derive(Clone, Debug)]
pub struct Holder<'a> {
    /// Who.
    pub id: TargetId,
    /// Its process.
    pub pid: Pid,
    /// The nodes that it may use.
    pub tiers: TierView,
    /// Its regions, sorted by address.
    pub regions: &'a [Region],
}

/// A configured capacity: so much may still come to these nodes together.
pub type Capacity = (Vec<NodeId>, Bytes);

#[derive(Clone, Copy, Debug)]
struct Entry {
    target: usize,
    range: PageRange,
    left: Bytes,
    /// It leaves in folios of so many bytes.
    folio: u64,
    is_cold: bool,
}

/// A node's, in the order in which they leave it.
#[derive(Clone, Debug)]
struct Queue {
    node: NodeId,
    entries: Vec<Entry>,
    /// Those before have nothing left.
    next: usize,
}

#[derive(Clone, Debug)]
struct Mover {
    id: TargetId,
    pid: Pid,
    tiers: TierView,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Leaving {
    targets: Vec<Mover>,
    queues: Vec<Queue>,
    capacities: Vec<Capacity>,
    /// The entry of each move of the last plan.
    asked: Vec<(usize, usize)>,
    /// Nodes that turned out to be full.
    full: Vec<NodeId>,
}

impl Leaving {
    /// Of targets as the last decision left them, whose looks are so many an epoch, with what was `done` since;
    /// from these nodes.
    pub fn of(
        holders: &[Holder<'_>],
        scans: u8,
        done: &[MoveResult],
        nodes: &[NodeId],
        capacities: Vec<Capacity>,
    ) -> Self {
        let changes = changes(done);
        let most = f32::from(scans.max(1));
        let queue = |&node: &NodeId| {
            let mut entries: Vec<(f32, Entry)> = Vec::new();
            let mut others: Vec<Entry> = Vec::new();
            let holders = holders.iter().enumerate();
            for (target, holder) in holders.filter(|(_, holder)| may_leave(holder, node)) {
                for region in holder.regions {
                    let left = there(region, holder.id, node, &changes);
                    let entry = |left| Entry {
                        target,
                        range: region.range(),
                        left,
                        folio: region.folio_bytes(),
                        is_cold: false,
                    };
                    if left.is_zero() {
                        add_unseen(&mut others, entry(region.range().bytes()));
                        continue;
                    }
                    let (heat, is_cold) = if region.is_known() {
                        let heat = region.heat().max(region.hotness());
                        (heat, heat <= COLD * most)
                    } else {
                        (UNKNOWN * most, false)
                    };
                    let entry = Entry {
                        is_cold,
                        ..entry(left)
                    };
                    // Of some only nobody knows in which of them.
                    entries.extend(pieces(entry, PIECE).map(|piece| (heat, piece)));
                }
            }
            entries.sort_by(|a, b| a.0.total_cmp(&b.0));
            let known = entries.into_iter().map(|(_, entry)| entry);
            Queue {
                node,
                entries: known
                    .chain(
                        others
                            .into_iter()
                            .flat_map(|entry| pieces(entry, UNSEEN_PIECE)),
                    )
                    .collect(),
                next: 0,
            }
        };
        Self {
            queues: nodes.iter().map(queue).collect(),
            targets: holders
                .iter()
                .map(|holder| Mover {
                    id: holder.id,
                    pid: holder.pid,
                    tiers: holder.tiers.clone(),
                })
                .collect(),
            capacities,
            asked: Vec::new(),
            full: Vec::new(),
        }
    }

    /// What leaves now, where so much has room beyond its own reserve.
    pub fn plan(&mut self, lacks: &[Lack], room: &[(NodeId, Bytes)]) -> Vec<Move> {
        self.asked.clear();
        let mut room: Vec<(NodeId, Bytes)> = room.to_vec();
        room.retain(|(node, _)| {
            !self.full.contains(node) && lacks.iter().all(|lack| lack.node != *node)
        });
        let mut moves = Vec::new();
        for lack in lacks {
            let Some(at) = self.queues.iter().position(|q| q.node == lack.node) else {
                continue;
            };
            self.plan_for(*lack, at, &mut room, &mut moves);
        }
        moves
    }

    fn plan_for(
        &mut self,
        lack: Lack,
        at: usize,
        room: &mut [(NodeId, Bytes)],
        moves: &mut Vec<Move>,
    ) {
        let mut given = Bytes::ZERO;
        let first = self.queues[at].next;
        let mut is_first = true;
        for index in first..self.queues[at].entries.len() {
            let entry = self.queues[at].entries[index];
            let wanted = if entry.is_cold { lack.cold } else { lack.hot };
            // All that follow are no colder.
            if given >= wanted || moves.len() >= MOVES_MOST {
                return;
            }
            if entry.left.is_zero() {
                if is_first {
                    self.queues[at].next = index + 1;
                }
                continue;
            }
            let folios = |bytes: Bytes| Bytes(bytes.0.div_ceil(entry.folio) * entry.folio);
            let mut left = entry.left.min(folios(wanted.saturating_sub(given)));
            while !left.is_zero() && moves.len() < MOVES_MOST {
                let Some((to, most)) = self.place_for(entry, lack.node, room) else {
                    // Others may have other nodes, unless there is none at all.
                    if room.iter().all(|(_, bytes)| bytes.is_zero()) {
                        return;
                    }
                    break;
                };
                let bytes = left.min(most);
                moves.push(self.leave((at, index), to, bytes));
                take(room, to, bytes);
                left = left.saturating_sub(bytes);
                given += bytes;
            }
            let rest = self.queues[at].entries[index].left;
            is_first &= rest.is_zero();
            if is_first {
                self.queues[at].next = index + 1;
            }
        }
    }

    /// The nearest node with room for a folio, and how much of it may go there.
    fn place_for(
        &self,
        entry: Entry,
        from: NodeId,
        room: &[(NodeId, Bytes)],
    ) -> Option<(NodeId, Bytes)> {
        let ranks = self.targets[entry.target].tiers.ranks();
        let here = ranks.iter().position(|rank| rank.nodes.contains(&from))?;
        let slower = ranks[here..].iter();
        let all = slower.chain(ranks[..here].iter().rev());
        let most = |node: NodeId| {
            let room = room.iter().find(|(n, _)| *n == node)?.1;
            let capacity = self.capacities.iter().find(|(of, _)| of.contains(&node));
            let room = capacity.map_or(room, |(_, left)| room.min(*left));
            Some(Bytes(room.0 / entry.folio * entry.folio)).filter(|bytes| !bytes.is_zero())
        };
        all.into_iter().find_map(|rank| {
            let nodes = rank.nodes.iter().filter(|node| **node != from);
            let open = nodes.filter_map(|&node| Some((node, most(node)?)));
            // The first of equals is the nearest.
            open.reduce(|best, one| if one.1 > best.1 { one } else { best })
        })
    }

    fn leave(&mut self, (at, index): (usize, usize), to: NodeId, bytes: Bytes) -> Move {
        let queue = &mut self.queues[at];
        let (from, entry) = (queue.node, &mut queue.entries[index]);
        entry.left = entry.left.saturating_sub(bytes);
        let target = &self.targets[entry.target];
        let rank = |node| target.tiers.rank_of(node);
        let direction = if rank(to) < rank(from) {
            Direction::Promotion
        } else {
            Direction::Demotion
        };
        let mut capacities = self.capacities.iter_mut();
        if let Some((_, left)) = capacities.find(|(nodes, _)| nodes.contains(&to)) {
            *left = left.saturating_sub(bytes);
        }
        self.asked.push((at, index));
        Move {
            target: target.id,
            pid: target.pid,
            range: entry.range,
            from,
            to,
            limit: bytes,
            direction,
            reason: Reason::Shortage,
        }
    }

    /// What became of the last plan, in its order.
    pub fn told(&mut self, results: &[MoveResult]) {
        for (&(at, index), result) in self.asked.iter().zip(results) {
            let (asked, pages) = (&result.asked, result.pages);
            if pages.no_room > 0 && !self.full.contains(&asked.to) {
                self.full.push(asked.to);
            }
            let again = Bytes::from_pages(pages.no_room + pages.deferred);
            let queue = &mut self.queues[at];
            let entry = &mut queue.entries[index];
            if result.is_whole {
                // There was no more.
                entry.left = Bytes::ZERO;
            }
            entry.left = (entry.left + again).min(entry.range.bytes());
            if !entry.left.is_zero() {
                queue.next = queue.next.min(index);
            }
        }
        self.asked.clear();
    }
}

/// Whether there is another node for what a target has on this one. Of what may go nowhere nothing was brought.
fn may_leave(holder: &Holder<'_>, node: NodeId) -> bool {
    let mut nodes = holder.tiers.ranks().iter().flat_map(|rank| &rank.nodes);
    holder.tiers.rank_of(node).is_some() && nodes.any(|other| *other != node)
}

/// Pages that came to nodes with moves, or left them, by target and range.
type Changes = HashMap<(TargetId, VirtAddr, NodeId), i64>;

fn changes(done: &[MoveResult]) -> Changes {
    let mut changes = Changes::new();
    for result in done.iter().filter(|result| result.pages.moved > 0) {
        let asked = &result.asked;
        let pages = i64::try_from(result.pages.moved).unwrap_or(i64::MAX);
        for (node, change) in [(asked.from, -pages), (asked.to, pages)] {
            let key = (asked.target, asked.range.start(), node);
            let sum = changes.entry(key).or_default();
            *sum = sum.saturating_add(change);
        }
    }
    changes
}

fn there(region: &Region, target: TargetId, node: NodeId, changes: &Changes) -> Bytes {
    let key = (target, region.range().start(), node);
    let change = changes.get(&key).copied().unwrap_or(0);
    let pages = region.pages().on(node).saturating_add_signed(change);
    Bytes::from_pages(pages.min(region.range().pages()))
}

/// What lies beside the last one is looked through with it.
fn add_unseen(others: &mut Vec<Entry>, entry: Entry) {
    if let Some(last) = others.last_mut().filter(|last| last.target == entry.target)
        && let Some(both) = last.range.join(entry.range)
    {
        last.range = both;
        last.left = both.bytes();
        last.folio = last.folio.max(entry.folio);
        return;
    }
    others.push(entry);
}

/// An entry in pieces, none with more left than all of it.
fn pieces(entry: Entry, size: Bytes) -> impl Iterator<Item = Entry> {
    let mut rest = Some(entry.range);
    std::iter::from_fn(move || {
        let range = rest.take()?;
        let cut = range.start().checked_add(size);
        let (piece, next) = match cut.and_then(|cut| range.split_at(cut)) {
            Some((piece, next)) => (piece, Some(next)),
            None => (range, None),
        };
        rest = next;
        Some(Entry {
            range: piece,
            left: piece.bytes().min(entry.left),
            ..entry
        })
    })
}

fn take(room: &mut [(NodeId, Bytes)], node: NodeId, bytes: Bytes) {
    if let Some((_, left)) = room.iter_mut().find(|(n, _)| *n == node) {
        *left = left.saturating_sub(bytes);
    }
}
