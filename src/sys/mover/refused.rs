//! Pages that the kernel refused to move, and for how long they are left alone.

use std::collections::HashMap;

use crate::units::{Pid, VirtAddr};

/// Pages remembered at most: a few MiB of our memory.
const MOST: usize = 65_536;
/// Turns that the first rest lasts; each further refusal doubles it.
const FIRST_REST: u64 = 4;
/// The longest rest, in turns.
const LONGEST_REST: u64 = 256;

/// The memory of refusals.
#[derive(Debug, Default)]
pub(super) struct Refused {
    turn: u64,
    /// Until when a page rests, and how long that rest is.
    pages: HashMap<(Pid, VirtAddr), (u64, u64)>,
}

impl Refused {
    /// Time passes.
    pub(super) fn next_turn(&mut self) {
        self.turn += 1;
    }

    /// Whether a page is to be left alone in this turn.
    pub(super) fn rests(&self, pid: Pid, addr: VirtAddr) -> bool {
        self.pages
            .get(&(pid, addr))
            .is_some_and(|&(until, _)| self.turn < until)
    }

    /// A page was refused now.
    pub(super) fn remember(&mut self, pid: Pid, addr: VirtAddr) {
        let turn = self.turn;
        if self.pages.len() >= MOST {
            // First those that may be tried again anyway.
            self.pages.retain(|_, &mut (until, _)| turn < until);
        }
        if self.pages.len() >= MOST {
            return;
        }
        let entry = self.pages.entry((pid, addr)).or_insert((0, 0));
        entry.1 = (entry.1 * 2).clamp(FIRST_REST, LONGEST_REST);
        entry.0 = turn + entry.1;
    }

    /// It moved after all.
    pub(super) fn forget(&mut self, pid: Pid, addr: VirtAddr) {
        self.pages.remove(&(pid, addr));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: (Pid, VirtAddr) = (Pid(1), VirtAddr(4096));

    /// Turns until it may be tried again.
    fn rest(refused: &mut Refused) -> u64 {
        refused.remember(PAGE.0, PAGE.1);
        let mut turns = 0;
        while refused.rests(PAGE.0, PAGE.1) {
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
            refused.remember(Pid(1), VirtAddr(page << 12));
        }
        assert_eq!(refused.pages.len(), MOST);
        for _ in 0..FIRST_REST {
            refused.next_turn();
        }
        refused.remember(Pid(2), VirtAddr(0));
        assert_eq!(refused.pages.len(), 1);
    }
}
