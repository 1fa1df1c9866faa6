//! Pages that the kernel refused to move, and for how long they are left alone.
//!
//! Those that are shared as the page map tells it are not among them: it costs
//! nothing to look whether they still are.

use std::collections::HashMap;

use crate::tiering::plan::PageCounts;
use crate::units::{Pid, VirtAddr};

/// Pages remembered at most: a few MiB of our memory.
const MOST: usize = 65_536;
/// Turns that the first rest lasts; each further refusal doubles it.
const FIRST_REST: u64 = 4;
/// The longest rest, in turns.
const LONGEST_REST: u64 = 256;

/// Why a page is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// Mapped by others too.
    Shared,
    /// Busy whenever it was tried.
    Pinned,
    /// The kernel will not.
    Refused,
}

impl Held {
    pub(super) fn count(self, pages: u64, counts: &mut PageCounts) {
        *match self {
            Self::Shared => &mut counts.shared,
            Self::Pinned => &mut counts.pinned,
            Self::Refused => &mut counts.refused,
        } += pages;
    }
}

/// One page's rest, in turns.
#[derive(Clone, Copy, Debug)]
struct Rest {
    until: u64,
    length: u64,
    why: Held,
}

/// The memory of refusals.
#[derive(Debug, Default)]
pub(super) struct Refused {
    turn: u64,
    pages: HashMap<(Pid, VirtAddr), Rest>,
}

impl Refused {
    /// Time passes.
    pub(super) fn next_turn(&mut self) {
        self.turn += 1;
    }

    /// Why a page is to be left alone in this turn, if it is.
    pub(super) fn rests(&self, pid: Pid, addr: VirtAddr) -> Option<Held> {
        if self.pages.is_empty() {
            // As nearly always: not even hashed.
            return None;
        }
        let rest = self.pages.get(&(pid, addr))?;
        (self.turn < rest.until).then_some(rest.why)
    }

    /// A page was refused now.
    pub(super) fn remember(&mut self, pid: Pid, addr: VirtAddr, why: Held) {
        let turn = self.turn;
        if self.pages.len() >= MOST {
            // First those that may be tried again anyway.
            self.pages.retain(|_, rest| turn < rest.until);
        }
        if self.pages.len() >= MOST {
            return;
        }
        let before = self.pages.get(&(pid, addr)).map_or(0, |rest| rest.length);
        let length = (before * 2).clamp(FIRST_REST, LONGEST_REST);
        let until = turn + length;
        self.pages.insert((pid, addr), Rest { until, length, why });
    }

    /// It moved after all.
    pub(super) fn forget(&mut self, pid: Pid, addr: VirtAddr) {
        if !self.pages.is_empty() {
            self.pages.remove(&(pid, addr));
        }
    }

    /// The process has ended: its number may become another one's.
    pub(super) fn forget_process(&mut self, pid: Pid) {
        self.pages.retain(|&(of, _), _| of != pid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: (Pid, VirtAddr) = (Pid(1), VirtAddr(4096));

    /// Turns until it may be tried again.
    fn rest(refused: &mut Refused) -> u64 {
        refused.remember(PAGE.0, PAGE.1, Held::Pinned);
        let mut turns = 0;
        while let Some(why) = refused.rests(PAGE.0, PAGE.1) {
            assert_eq!(why, Held::Pinned);
            refused.next_turn();
            turns += 1;
        }
        turns
    }

    #[test]
    fn each_rest_is_twice_as_long_up_to_a_bound() {
        let mut refused = Refused::default();
        let rests: Vec<u64> = (0..9).map(|_| rest(&mut refused)).collect();
        assert_eq!(rests, [4, 8, 16, 32, 64, 128, 256, 256, 256]);
        refused.forget(PAGE.0, PAGE.1);
        assert_eq!(rest(&mut refused), 4);
    }

    #[test]
    fn memory_is_bounded() {
        let mut refused = Refused::default();
        for page in 0..2 * MOST as u64 {
            refused.remember(Pid(1), VirtAddr(page << 12), Held::Refused);
        }
        assert_eq!(refused.pages.len(), MOST);
        for _ in 0..FIRST_REST {
            refused.next_turn();
        }
        refused.remember(Pid(2), VirtAddr(0), Held::Shared);
        assert_eq!(refused.pages.len(), 1);
        refused.forget_process(Pid(1));
        assert_eq!(refused.pages.len(), 1, "another's");
        refused.forget_process(Pid(2));
        assert!(refused.pages.is_empty());
    }
}
