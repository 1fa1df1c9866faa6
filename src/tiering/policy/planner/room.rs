//! Where what is to be promoted finds room.
//!
//! **Order.** Free memory costs nothing. What is worth less costs a move, and lies one tier down afterwards.
//! Page cache costs little now, and a read from a disk if somebody wants it again: it comes last.

use super::{Place, Planner, Victim};
use crate::tiering::tier::Rank;
use crate::units::{Bytes, NodeId};

/// Room for what is to be promoted.
#[derive(Clone, Copy)]
pub(super) struct Room {
    pub(super) to: NodeId,
    pub(super) bytes: Bytes,
    pub(super) victim: Option<Victim>,
    /// Whether page cache makes it.
    pub(super) is_cache: bool,
}

impl Planner<'_, '_> {
    /// Where on a rank so much, which is worth so much at least, finds room: free memory, or what is worth
    /// less, or page cache.
    /// `no_victim`: what is worth less is worth too much.
    pub(super) fn room_on(
        &mut self,
        rank: &Rank,
        (place, worth): (Place, f64),
        left: Bytes,
        no_victim: bool,
    ) -> Option<Room> {
        let most = self.terms.left;
        let without = |(to, bytes): (NodeId, Bytes), is_cache| Room {
            to,
            bytes: bytes.min(most),
            victim: None,
            is_cache,
        };
        if let Some(found) = self.free.roomiest(rank) {
            return Some(without(found, false));
        }
        // What gives way is moved, too.
        let want = left.min(Bytes(most.0 / 2));
        let cache = self.cache.roomiest(rank);
        if !no_victim
            && let Some((to, victim)) = self.victim(&rank.nodes, place, worth, want)
            // Another target's warm memory is worth more than what files left.
            && (!victim.is_due || cache.is_none())
        {
            return Some(Room {
                to,
                bytes: victim.bytes,
                victim: Some(victim),
                is_cache: false,
            });
        }
        Some(without(cache?, true))
    }
}

#[cfg(test)]
#[path = "room_tests.rs"]
mod tests;
