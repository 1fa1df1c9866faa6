//! What is written leaves a slow node of which much bandwidth is asked.
//!
//! **Unit.** Worth, as [`Worth`](super::Worth) has it, of how hot regions are over some fifty epochs.
//!
//! **Problem.** Where a program sweeps, nothing stays hotter than anything else, so that exchanges of what is hot now
//! gain nothing. But each line that is written goes back to memory, too, and slow memory mostly takes longer to write
//! than to read: where bandwidth is short, what is written takes most of it.
//!
//! **Approach.** Where a node answers late, what is written there whenever it is accessed changes places with what is
//! read on a faster node that is less late. What is read is held to be at least as hot as what comes for it, and is not much hotter. So the exchange gains what
//! writing takes beyond reading, by the share of the time of accesses that they wait for bandwidth; and it does for as long as is looked ahead, since what a
//! sweep writes the next one writes as well. What is worth most changes places with what is worth least. One plan moves a part of it, and of each region the same part: were it whole
//! regions, what a program sweeps at one moment would all lie on one node, and what it sweeps at the next on the other.
//!
//! **Source.** Ours.
//!
//! **Properties** (tests below): nothing moves while all answer in time, nor where nobody was asked what it writes;
//! only what is written comes, and only what is read goes; no node is filled beyond its room.

use std::collections::HashSet;

use super::{Place, Planner, latency, numbered};
use crate::tiering::plan::{Direction, Reason};
use crate::tiering::policy::TargetView;
use crate::units::{Bytes, NodeId};

/// What is written of what is accessed, at least, of what leaves, and at most, of what comes for it.
const WRITTEN: f32 = 0.8;
const READ: f32 = 0.2;
/// Part of what is written on a node that one plan brings off it at most, which is less where the other node is nearly
/// as late: how late they answer then is known epochs later.
const STEP: f64 = 0.25;
/// Where a node is full, one in so many of the bytes that would come goes to a slower one, and what leaves then
/// makes room for the rest.
const MAKES_ROOM: u64 = 8;

/// What of a region lies on a node, and how much each byte of it would be worth if all that is accessed of
/// it were read.
#[derive(Clone, Copy)]
struct Steady {
    place: Place,
    bytes: Bytes,
    worth: f64,
}

impl Planner<'_, '_> {
    /// Brings what is written off nodes that answer late, the latest first.
    pub(super) fn relieve(&mut self) {
        let planned: Bytes = self.moves.iter().map(|m| m.limit).sum();
        self.terms.relief = self
            .terms
            .relief
            .min(self.terms.all.saturating_sub(planned));
        let is_told = |t: &TargetView<'_>| t.regions.iter().any(|r| r.writing().is_some());
        if self.view.late.is_empty() || !self.view.targets.iter().any(is_told) {
            return;
        }
        let mut late = self.view.late.clone();
        late.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        for (node, _) in late {
            for (target, _) in numbered(&self.view.targets) {
                self.relieve_of(target, node);
            }
        }
    }

    /// The same of one target and one node: by the nearest faster one that is less late and with which it pays.
    fn relieve_of(&mut self, target: u32, node: NodeId) {
        let t = &self.idle.targets[target as usize];
        let Some(slow) = t.tiers.rank_of(node) else {
            return;
        };
        let written = self.steady(target, (node, Direction::Promotion), |w| w > WRITTEN);
        let better = t.tiers.ranks()[..slow].iter();
        for &to in better.flat_map(|rank| &rank.nodes) {
            if written.is_empty() || self.terms.relief.is_zero() {
                return;
            }
            let is_sooner = self.answers(target, to) < self.answers(target, node);
            if self.late(to) >= self.late(node) || !is_sooner {
                continue;
            }
            let read = self.steady(target, (to, Direction::Demotion), |w| w < READ);
            if self.change_places((node, &written), (to, &read), target) {
                return;
            }
        }
    }

    /// The regions of a target on a node of which such a share is written, and that may go this way; but for
    /// what moves in this plan already.
    fn steady(
        &self,
        target: u32,
        (node, way): (NodeId, Direction),
        is: fn(f32) -> bool,
    ) -> Vec<Steady> {
        let t = &self.view.targets[target as usize];
        let moves = self.moves.iter().filter(|m| m.target == t.id);
        let moved: HashSet<_> = moves.map(|m| m.range.start()).collect();
        let may_go = numbered(t.regions).filter(|(_, r)| {
            r.writing().is_some_and(is)
                && r.is_known()
                && r.pages().on(node) > 0
                && !moved.contains(&r.range().start())
                && !self.worth.rests(r, way)
        });
        let all = may_go.map(|(region, _)| {
            let place = Place { target, region };
            Steady {
                place,
                bytes: self.left_on(place, node),
                worth: self.worth.steady(place),
            }
        });
        all.collect()
    }

    /// A part of what is written on one node for as much of what is read on the other, as far as
    /// that pays; whether anything was.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn change_places(
        &mut self,
        (node, written): (NodeId, &[Steady]),
        (to, read): (NodeId, &[Steady]),
        target: u32,
    ) -> bool {
        let saved = self.answers(target, node) - self.answers(target, to);
        let late = self.late(node);
        let pays = |up, down| self.relief_pays((up, down), late, saved);
        let (up, down) = matched(written, read, pays);
        let (ups, downs) = (sum(&up), sum(&down));
        let step = (1.0 - self.late(to) / late).min(STEP);
        let most = (step * ups.as_f64())
            .min(downs.as_f64())
            .min(self.terms.relief.as_f64() / 2.0);
        let mut up = self.parts(&up, most / ups.as_f64().max(1.0));
        let mut down = self.parts(&down, most / downs.as_f64().max(1.0));
        up.reverse();
        down.reverse();
        let first = most.max(0.0) as u64 / MAKES_ROOM;
        let gained = (1.0 - 1.0 / late) * saved;
        let mut moved = Bytes::ZERO;
        // As much comes as goes, a piece after the other: it may end at any of them.
        while let (Some((hot, come)), Some((cold, gone))) = (up.last_mut(), down.last_mut()) {
            let folio = |place: Place| place.region_in(self.view).folio_bytes();
            let folio = folio(*hot).max(folio(*cold));
            let whole = |bytes: Bytes| Bytes(bytes.0 / folio * folio);
            let both = (*come).min(*gone);
            let mut bytes = whole(both.min(self.free.on(node)));
            let mut down_to = node;
            let enough = whole(both.min(Bytes(first.max(folio))));
            // By itself a node that is all but full would have as many exchanges as it has room for one.
            let least = whole(both.min(Bytes((first / MAKES_ROOM).max(folio))));
            if bytes < enough
                && let Some(third) = self.beyond((target, node), enough, gained)
            {
                // What leaves the node makes room there for what follows.
                bytes = enough;
                down_to = third;
            }
            if bytes.is_zero() || bytes < least {
                // Less than a folio is left of one of them, or no room anywhere.
                if come < gone {
                    up.pop();
                } else {
                    down.pop();
                }
                continue;
            }
            let (hot, cold) = (*hot, *cold);
            *come = come.saturating_sub(bytes);
            *gone = gone.saturating_sub(bytes);
            self.go(cold, (to, down_to), bytes, Reason::Read);
            self.go(hot, (node, to), bytes, Reason::Written);
            moved += Bytes(2 * bytes.0);
        }
        self.relieved += moved;
        self.terms.relief = self.terms.relief.saturating_sub(moved);
        !moved.is_zero()
    }

    /// The next node slower than this one that has so much room and is not later, unless what waits longer there
    /// loses more than the rest gains, a byte of each.
    fn beyond(&self, (target, node): (u32, NodeId), bytes: Bytes, gained: f64) -> Option<NodeId> {
        let tiers = self.idle.targets[target as usize].tiers;
        let rank = tiers.rank_of(node)?;
        let mut slower = tiers.ranks()[rank + 1..].iter();
        slower.find_map(|rank| {
            let (found, room) = self.free.roomiest(rank)?;
            let longer = self.answers(target, found) - self.answers(target, node);
            let pays = longer / (MAKES_ROOM as f64) < gained;
            (pays && room >= bytes && self.late(found) <= self.late(node)).then_some(found)
        })
    }

    /// This part of each, in whole folios: what is less than one goes to the next.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn parts(&self, all: &[Steady], part: f64) -> Vec<(Place, Bytes)> {
        let mut carry = 0.0;
        let parts = all.iter().map(|steady| {
            let folio = steady.place.region_in(self.view).folio_bytes();
            carry += part * steady.bytes.as_f64();
            let mine = Bytes(carry.min(steady.bytes.as_f64()) as u64 / folio * folio);
            carry -= mine.as_f64();
            (steady.place, mine)
        });
        parts.filter(|(_, bytes)| !bytes.is_zero()).collect()
    }

    /// How many times as late as when idle a node answers.
    fn late(&self, node: NodeId) -> f64 {
        let mut nodes = self.view.late.iter();
        nodes
            .find(|(n, _)| *n == node)
            .map_or(1.0, |(_, late)| *late)
    }

    /// The latency of a node for a target, now.
    fn answers(&self, target: u32, node: NodeId) -> f64 {
        latency(&self.idle.targets[target as usize], node) * self.late(node)
    }

    /// Whether what is written gains more by the place of what is read than both moves cost: a byte of each, with
    /// what it would be worth if all that is accessed of it were read, where the node that the one leaves is so late and the
    /// other one answers so many nanoseconds sooner.
    fn relief_pays(&self, (up, down): (f64, f64), late: f64, saved: f64) -> bool {
        let settings = &self.worth.settings;
        let seconds = settings.horizon as f64 * self.view.interval.as_secs_f64();
        // What is written is worth more by as much as accesses wait for bandwidth.
        let more = up * (1.0 - 1.0 / late);
        // By chance what is swept seems colder here than there, of which nothing is gained.
        let lost = (down - up).max(0.0);
        let gained = more - lost;
        lost <= more / 2.0 && gained * saved * seconds >= settings.payback * 2.0 * self.terms.cost
    }
}

fn sum(all: &[Steady]) -> Bytes {
    all.iter().map(|steady| steady.bytes).sum()
}

/// Of what is written and of what is read all that pays with the other as it is on average, where the average is of
/// what would change places if what is worth most of the one did so first, with what is worth least of the other. In the
/// order of addresses.
fn matched(
    written: &[Steady],
    read: &[Steady],
    pays: impl Fn(f64, f64) -> bool,
) -> (Vec<Steady>, Vec<Steady>) {
    let (mut up, mut down) = (written.to_vec(), read.to_vec());
    up.sort_by(|a, b| b.worth.total_cmp(&a.worth));
    down.sort_by(|a, b| a.worth.total_cmp(&b.worth));
    let (mut ups, mut downs) = (0, 0);
    let (mut come, mut gone) = (Bytes::ZERO, Bytes::ZERO);
    while let (Some(hot), Some(cold)) = (up.get(ups), down.get(downs)) {
        if !pays(hot.worth, cold.worth) {
            break;
        }
        if come + hot.bytes <= gone + cold.bytes {
            come += hot.bytes;
            ups += 1;
        } else {
            gone += cold.bytes;
            downs += 1;
        }
    }
    // Of what would go as a part only, if that is all.
    let mean = |all: &[Steady], count: usize| mean(&all[..count.max(1).min(all.len())]);
    let (hot, cold) = (mean(&up, ups), mean(&down, downs));
    let up = written.iter().filter(|s| pays(s.worth, cold));
    let down = read.iter().filter(|s| pays(hot, s.worth));
    (up.copied().collect(), down.copied().collect())
}

/// What a byte of these is worth.
fn mean(all: &[Steady]) -> f64 {
    let worth: f64 = all.iter().map(|s| s.worth * s.bytes.as_f64()).sum();
    worth / sum(all).as_f64().max(1.0)
}

#[cfg(test)]
#[path = "relief_tests.rs"]
mod tests;
