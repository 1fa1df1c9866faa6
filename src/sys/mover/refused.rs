//! Pages that the kernel did not move, and for how long they are left alone.
//!
//! **Unit.** Turns of the mover. Pages of 4 KiB, in blocks of 2 MiB.
//!
//! **Problem.** A pinned page costs more to try than many other pages cost to move. Programs pin
//! a few pages (a pipe) or many GiB (`io_uring`, RDMA), in one run or scattered, for a
//! millisecond or for good.
//!
//! **Approach.** A page that did not move rests for [`FIRST_REST`] turns, and is tried again. If
//! it still does not move it joins its block's other such pages: these rest together, twice as
//! long each time, and only [`PROBES`] of them are tried after a rest, others each time. When one
//! of them has moved, all of the block are tried. Where [`RUN`] pages of a block in a row were
//! busy in one turn, those behind them are taken to be pinned as well. The policy's moves of one
//! process to one node rest in the same way where the kernel refuses them all.
//!
//! **Bounds.** [`MOST`] blocks, some 4 MiB, which stand for 32 GiB. When there are more, each bit stands
//! for twice as many pages. What was not met again for long is forgotten.
//!
//! Pages that are shared as the page map tells it are not among them: it costs
//! nothing to look whether they still are.

use std::collections::HashMap;

use super::batch::Fate;
use crate::tiering::plan::PageCounts;
use crate::units::{NodeId, Pid, VirtAddr};

/// Blocks remembered at most.
const MOST: usize = 16_384;
/// Pages of a block, each as many of the kernel's as [`Refused::order`] says.
const BLOCK: u64 = 512;
/// Turns that the first rest lasts; each further refusal doubles it.
const FIRST_REST: u64 = 4;
/// The longest rest, in turns.
const LONGEST_REST: u64 = 256;
/// The longest rest of moves of one process to one node.
const LONGEST_NODE_REST: u64 = 16;
/// So many turns after its rest, at least, a block that was not met again is forgotten: more than
/// those for which a region of which nothing moved is left out of plans.
const FORGOTTEN_AFTER: u64 = 64;
/// Pages of a block that are tried after its rest.
const PROBES: usize = 4;
/// Pages of a block that were busy in a row, from which on the others are taken to be pinned.
const RUN: u32 = 32;

/// Why a page is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// Mapped by others too.
    Shared,
    /// Busy whenever it was tried.
    Pinned,
    /// The kernel will not.
    Refused,
    /// The page map shows it, the kernel does not find it.
    Absent,
}

impl Held {
    pub(super) fn count(self, pages: u64, counts: &mut PageCounts) {
        *match self {
            Self::Shared => &mut counts.shared,
            Self::Pinned => &mut counts.pinned,
            Self::Refused => &mut counts.refused,
            Self::Absent => &mut counts.absent,
        } += pages;
    }

    /// A page that is gone may be another one's place at once.
    fn first_rest(self) -> u64 {
        match self {
            Self::Absent => 1,
            _ => FIRST_REST,
        }
    }
}

/// A bit for each page of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mask([u64; 8]);

impl Mask {
    const ALL: Self = Self([u64::MAX; 8]);

    fn has(&self, bit: u64) -> bool {
        self.0[word(bit)] & (1 << (bit % 64)) != 0
    }

    fn set(&mut self, bit: u64) {
        self.0[word(bit)] |= 1 << (bit % 64);
    }

    fn clear(&mut self, bit: u64) {
        self.0[word(bit)] &= !(1 << (bit % 64));
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    fn bits(&self) -> impl Iterator<Item = u64> + '_ {
        (0..BLOCK).filter(|&bit| self.has(bit))
    }

    fn without(self, other: Self) -> Self {
        let mut left = self;
        for (word, other) in left.0.iter_mut().zip(other.0) {
            *word &= !other;
        }
        left
    }
}

#[allow(clippy::cast_possible_truncation)]
fn word(bit: u64) -> usize {
    (bit / 64) as usize
}

/// Pages that rest together.
#[derive(Clone, Copy, Debug, Default)]
struct Rest {
    pages: Mask,
    until: u64,
    length: u64,
}

/// What is known of a block.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// Did not move once, and did not move again.
    once: Rest,
    again: Rest,
    why: Held,
    /// The turn of the last refusal, and how many pages in a row did not move in it.
    at: u64,
    run: u32,
    /// Whether the second rest has grown in that turn.
    has_grown: bool,
    /// From which on those of `again` are tried that are.
    probe: u64,
    probes: [u64; PROBES],
}

impl Block {
    fn new(why: Held, at: u64) -> Self {
        Self {
            once: Rest::default(),
            again: Rest::default(),
            why,
            at,
            run: 0,
            has_grown: false,
            probe: 0,
            probes: [BLOCK; PROBES],
        }
    }

    fn rests(&self, bit: u64, turn: u64) -> bool {
        if self.once.pages.has(bit) {
            return turn < self.once.until;
        }
        self.again.pages.has(bit) && (turn < self.again.until || !self.probes.contains(&bit))
    }

    /// A turn begins: those that are tried in it. False when nothing is known any more.
    fn next_turn(&mut self, turn: u64) -> bool {
        let forgotten = |rest: &Rest| {
            rest.pages.is_empty() || turn > rest.until + rest.length.max(FORGOTTEN_AFTER)
        };
        if forgotten(&self.again) {
            self.again = Rest::default();
        } else if turn >= self.again.until {
            let count = self.again.pages.count();
            let wanted: [u64; PROBES] =
                std::array::from_fn(|at| (self.probe + at as u64 * count / PROBES as u64) % count);
            self.probes = [BLOCK; PROBES];
            for (rank, bit) in (0..).zip(self.again.pages.bits()) {
                if let Some(at) = wanted.iter().position(|&wanted| wanted == rank) {
                    self.probes[at] = bit;
                }
            }
            self.probe = (self.probe + 1) % count;
        }
        !forgotten(&self.once) || !self.again.pages.is_empty()
    }

    fn remember(&mut self, bit: u64, why: Held, turn: u64) {
        if self.at != turn {
            (self.at, self.run, self.has_grown) = (turn, 0, false);
        }
        self.why = why;
        let (once, again) = (&mut self.once, &mut self.again);
        if again.pages.has(bit) {
            if !self.has_grown {
                again.length = (again.length * 2).clamp(why.first_rest(), LONGEST_REST);
                again.until = turn + again.length;
                self.has_grown = true;
            }
        } else if once.pages.has(bit) && turn >= once.until {
            once.pages.clear(bit);
            if again.pages.is_empty() {
                again.length = (once.length * 2).min(LONGEST_REST);
                again.until = turn + again.length;
                self.has_grown = true;
            }
            again.pages.set(bit);
        } else {
            if turn >= once.until {
                once.length = why.first_rest();
                once.until = turn + once.length;
            }
            once.pages.set(bit);
        }
    }

    /// So many pages lie behind one bit as behind two before.
    fn coarser(&self, is_upper: bool) -> Self {
        let halved = |mask: &Mask| {
            let mut half = Mask::default();
            let offset = if is_upper { BLOCK / 2 } else { 0 };
            for bit in mask.bits() {
                half.set(offset + bit / 2);
            }
            half
        };
        let mut coarse = *self;
        coarse.once.pages = halved(&self.once.pages);
        coarse.again.pages = halved(&self.again.pages);
        coarse.probes = [BLOCK; PROBES];
        coarse
    }

    fn join(&mut self, other: &Self) {
        let join = |rest: &mut Rest, other: &Rest| {
            for (word, other) in rest.pages.0.iter_mut().zip(other.pages.0) {
                *word |= other;
            }
            rest.until = rest.until.max(other.until);
            rest.length = rest.length.max(other.length);
        };
        join(&mut self.once, &other.once);
        join(&mut self.again, &other.again);
        self.once.pages = self.once.pages.without(self.again.pages);
    }
}

/// Moves of one process to one node, none of which was made.
#[derive(Clone, Copy, Debug)]
struct OfNode {
    until: u64,
    length: u64,
    fate: Fate,
}

/// The memory of refusals.
#[derive(Debug, Default)]
pub(super) struct Refused {
    turn: u64,
    /// log2 of the pages for which a bit of a block stands.
    order: u32,
    blocks: HashMap<(Pid, u64), Block>,
    nodes: HashMap<(Pid, NodeId), OfNode>,
}

impl Refused {
    /// Time passes.
    pub(super) fn next_turn(&mut self) {
        self.turn += 1;
        let turn = self.turn;
        self.blocks.retain(|_, block| block.next_turn(turn));
        (self.nodes).retain(|_, of| turn <= of.until + FORGOTTEN_AFTER);
        if self.order > 0 && self.blocks.len() < MOST / 16 {
            // Few are soon found again, each by itself.
            self.blocks.clear();
            self.order = 0;
        }
    }

    fn place(&self, addr: VirtAddr) -> (u64, u64) {
        let at = addr.page_index() >> self.order;
        (at / BLOCK, at % BLOCK)
    }

    /// Why a page is to be left alone in this turn, if it is.
    pub(super) fn rests(&self, pid: Pid, addr: VirtAddr) -> Option<Held> {
        if self.blocks.is_empty() {
            // As nearly always: not even hashed.
            return None;
        }
        let (block, bit) = self.place(addr);
        let block = self.blocks.get(&(pid, block))?;
        block.rests(bit, self.turn).then_some(block.why)
    }

    /// Whether pages near this one did not move of late: others go first.
    pub(super) fn is_suspect(&self, pid: Pid, addr: VirtAddr) -> bool {
        !self.blocks.is_empty() && self.blocks.contains_key(&(pid, self.place(addr).0))
    }

    /// Whether a page that did not move now stands for many of its block.
    pub(super) fn is_one_of_many(&self, pid: Pid, addr: VirtAddr) -> bool {
        let block = self.blocks.get(&(pid, self.place(addr).0));
        block.is_some_and(|block| block.run >= RUN || !block.again.pages.is_empty())
    }

    /// A folio did not move now. Whether that tells of others, which rest from now on too.
    pub(super) fn remember(&mut self, pid: Pid, addr: VirtAddr, pages: u64, why: Held) -> bool {
        let turn = self.turn;
        let (mut first, mut is_known) = (None, false);
        let last = addr.page_index() + pages.max(1) - 1;
        for page in addr.page_index()..=last {
            let at = page >> self.order;
            if first == Some(at) {
                continue;
            }
            first = Some(at);
            let key = (pid, at / BLOCK);
            is_known = self.blocks.contains_key(&key);
            let block = (self.blocks.entry(key)).or_insert_with(|| Block::new(why, turn));
            block.remember(at % BLOCK, why, turn);
        }
        let mut tells = false;
        let key = (pid, (last >> self.order) / BLOCK);
        if why == Held::Pinned
            && let Some(block) = self.blocks.get_mut(&key)
        {
            block.run += 1;
            if block.run == RUN {
                block.once.pages = Mask::ALL.without(block.again.pages);
                block.once.length = FIRST_REST;
                block.once.until = block.once.until.max(turn + FIRST_REST);
                tells = true;
            }
        }
        if !is_known {
            self.bound();
        }
        tells
    }

    fn bound(&mut self) {
        while self.blocks.len() > MOST && self.order < u64::BITS - 1 {
            self.order += 1;
            let mut coarse: HashMap<(Pid, u64), Block> = HashMap::new();
            for ((pid, at), block) in self.blocks.drain() {
                let half = block.coarser(at % 2 == 1);
                (coarse.entry((pid, at / 2)))
                    .and_modify(|other| other.join(&half))
                    .or_insert(half);
            }
            self.blocks = coarse;
        }
    }

    /// It moved after all.
    pub(super) fn forget(&mut self, pid: Pid, addr: VirtAddr, pages: u64) {
        if self.blocks.is_empty() {
            return;
        }
        let last = addr.page_index() + pages.max(1) - 1;
        let (first, last) = (addr.page_index() >> self.order, last >> self.order);
        for at in first / BLOCK..=last / BLOCK {
            let Some(block) = self.blocks.get_mut(&(pid, at)) else {
                continue;
            };
            block.run = 0;
            let bits = first.max(at * BLOCK)..=last.min(at * BLOCK + BLOCK - 1);
            let mut is_probe = false;
            for bit in bits.map(|at| at % BLOCK) {
                block.once.pages.clear(bit);
                is_probe |= block.again.pages.has(bit);
            }
            if is_probe {
                // Whoever held them may have let go of all.
                block.again = Rest::default();
            }
        }
    }

    /// None of these moves was made, for the reason of this fate.
    pub(super) fn remember_node(&mut self, pid: Pid, to: NodeId, fate: Fate) {
        let turn = self.turn;
        let of = self.nodes.entry((pid, to)).or_insert(OfNode {
            until: 0,
            length: 0,
            fate,
        });
        if of.until <= turn {
            of.length = (of.length * 2).clamp(1, LONGEST_NODE_REST);
            (of.until, of.fate) = (turn + of.length, fate);
        }
    }

    /// Some were made.
    pub(super) fn forget_node(&mut self, pid: Pid, to: NodeId) {
        if !self.nodes.is_empty() {
            self.nodes.remove(&(pid, to));
        }
    }

    /// What becomes of moves to a node that are not to be tried in this turn.
    pub(super) fn node_rests(&self, pid: Pid, to: NodeId) -> Option<Fate> {
        if self.nodes.is_empty() {
            return None;
        }
        let of = self.nodes.get(&(pid, to))?;
        // In the turn of the refusal itself the turn knows better.
        (of.until.saturating_sub(of.length) < self.turn && self.turn < of.until).then_some(of.fate)
    }

    /// The process has ended: its number may become another one's.
    pub(super) fn forget_process(&mut self, pid: Pid) {
        self.blocks.retain(|&(of, _), _| of != pid);
        self.nodes.retain(|&(of, _), _| of != pid);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PID: Pid = Pid(1);

    fn page(index: u64) -> VirtAddr {
        VirtAddr(index << 12)
    }

    fn remember(refused: &mut Refused, index: u64) -> bool {
        refused.remember(PID, page(index), 1, Held::Pinned)
    }

    fn rests(refused: &Refused, index: u64) -> bool {
        refused.rests(PID, page(index)).is_some()
    }

    /// Turns until it may be tried again.
    fn rest(refused: &mut Refused) -> u64 {
        remember(refused, 1);
        let mut turns = 0;
        while let Some(why) = refused.rests(PID, page(1)) {
            assert_eq!(why, Held::Pinned);
            refused.next_turn();
            turns += 1;
        }
        turns
    }

    #[test]
    fn each_rest_is_twice_as_long_up_to_a_bound() {
        let mut refused = Refused::default();
        refused.next_turn();
        let rests: Vec<u64> = (0..9).map(|_| rest(&mut refused)).collect();
        assert_eq!(rests, [4, 8, 16, 32, 64, 128, 256, 256, 256]);
        refused.forget(PID, page(1), 1);
        assert_eq!(rest(&mut refused), 4);
    }

    #[test]
    fn a_run_of_busy_pages_tells_of_the_rest_of_its_block_and_a_move_of_one_frees_all() {
        let mut refused = Refused::default();
        refused.next_turn();
        for index in 0..31 {
            assert!(!remember(&mut refused, index));
        }
        assert!(!rests(&refused, 31));
        assert!(remember(&mut refused, 31));
        assert!(rests(&refused, 32) && rests(&refused, 511) && !rests(&refused, 512));
        // Again after their rest: all still pinned.
        for _ in 0..FIRST_REST {
            refused.next_turn();
        }
        assert!((0..512).all(|index| !rests(&refused, index)));
        for index in 0..32 {
            remember(&mut refused, index);
        }
        assert!(rests(&refused, 400));
        // Let go: what is tried moves, and so may all.
        for _ in 0..64 {
            refused.next_turn();
            for index in 0..512 {
                if !rests(&refused, index) {
                    refused.forget(PID, page(index), 1);
                }
            }
        }
        assert!((0..512).all(|index| !rests(&refused, index)));
    }

    #[test]
    fn after_a_rest_few_of_a_block_are_tried_and_in_time_each() {
        let mut refused = Refused::default();
        refused.next_turn();
        // Every other page, so that none tells of its neighbours.
        let busy: Vec<u64> = (0..512).step_by(2).collect();
        let mut tries = 0;
        let mut seen = [false; 512];
        for turn in 0..20_000 {
            let mut tried = busy.clone();
            tried.retain(|&index| !rests(&refused, index));
            for index in tried {
                if turn > 10 {
                    tries += 1;
                    seen[usize::try_from(index).unwrap()] = true;
                }
                remember(&mut refused, index);
                refused.forget(PID, page(index + 1), 1);
            }
            refused.next_turn();
        }
        assert!(tries < 20_000 / 256 * 5 + 40, "{tries} tries");
        assert!(busy.iter().all(|&i| seen[usize::try_from(i).unwrap()]));
    }

    #[test]
    fn memory_is_bounded_and_what_is_pinned_still_rests() {
        let mut refused = Refused::default();
        refused.next_turn();
        // One page of every 2 MiB.
        for block in 0..3 * MOST as u64 {
            remember(&mut refused, block * BLOCK);
        }
        assert!(refused.blocks.len() <= MOST);
        assert_eq!(refused.order, 2);
        assert!((0..3 * MOST as u64).all(|block| rests(&refused, block * BLOCK)));
        assert!(!rests(&refused, 4), "not far from it");
        refused.forget_process(Pid(2));
        assert!(!refused.blocks.is_empty(), "another's");
        refused.forget_process(PID);
        refused.next_turn();
        assert_eq!(refused.order, 0);
        // What is never met again is forgotten.
        remember(&mut refused, 0);
        for _ in 0..=FIRST_REST + FORGOTTEN_AFTER {
            refused.next_turn();
        }
        assert!(refused.blocks.is_empty());
    }

    #[test]
    fn all_pages_of_a_folio_rest() {
        let mut refused = Refused::default();
        refused.next_turn();
        refused.remember(PID, page(512), 512, Held::Refused);
        assert!(rests(&refused, 512) && rests(&refused, 1023));
        assert!(!rests(&refused, 511) && !rests(&refused, 1024));
        refused.forget(PID, page(512), 512);
        assert!(!rests(&refused, 512) && !rests(&refused, 1023));
    }

    #[test]
    fn moves_to_a_node_that_takes_none_rest_longer_each_time() {
        let (mut refused, node) = (Refused::default(), NodeId(2));
        let mut tried = Vec::new();
        for turn in 1..64 {
            refused.next_turn();
            if refused.node_rests(PID, node).is_none() {
                refused.remember_node(PID, node, Fate::NoRoom);
                // Of the turn itself it says nothing.
                assert_eq!(refused.node_rests(PID, node), None);
                tried.push(turn);
            }
        }
        assert_eq!(tried, [1, 2, 4, 8, 16, 32, 48]);
        refused.forget_node(PID, node);
        assert_eq!(refused.node_rests(PID, node), None);
    }

    proptest! {
        #[test]
        fn a_page_that_did_not_move_is_not_tried_in_the_next_turn(
            pages in prop::collection::vec((0_u64..5000, 1_u64..64), 1..200),
        ) {
            let mut refused = Refused::default();
            refused.next_turn();
            for &(index, count) in &pages {
                if !rests(&refused, index) {
                    refused.remember(PID, page(index), count, Held::Pinned);
                }
            }
            refused.next_turn();
            for &(index, _) in &pages {
                prop_assert!(rests(&refused, index));
            }
        }
    }
}
