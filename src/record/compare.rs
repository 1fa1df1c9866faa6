//! A recording under a policy, in figures: what it would have had moved, and how far that
//! is what the daemon did.
//!
//! **What is known of the daemon's own plans.** A recording holds what the engine was
//! told, no plans. But of each plan the next observation tells: the moves, all of them and
//! in their order, with what became of each; the ranges that were counted; and the samples
//! that were looked at. So a replay of the recorded policy is held against these, epoch by
//! epoch; the last plan of a run alone is never told of.
//!
//! **Unit.** Bytes that a plan wants moved: the limit of a move, at most its range.

use std::collections::BTreeMap;

use super::Replay;
use super::file::RecordError;
use crate::tiering::observation::{Observation, Sample};
use crate::tiering::plan::{Direction, Move, Plan, Reason};
use crate::tiering::settings::PolicyName;
use crate::tiering::tier::TierTable;
use crate::units::{Bytes, NodeId};

/// One way between two tiers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Way {
    /// The tier that is left; empty where a node is in none.
    pub from: String,
    /// The tier that is filled.
    pub to: String,
    /// Up or down, in the target's view.
    pub direction: Direction,
    /// Why.
    pub reason: Reason,
}

/// What a policy made of a recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Policies that decided when it was recorded: the first one first.
    pub recorded: Vec<PolicyName>,
    /// How often a daemon began.
    pub runs: u64,
    /// Epochs of all runs.
    pub epochs: u64,
    /// Moves planned.
    pub moves: u64,
    /// Bytes planned, by way. Where the recorded placement does not follow the policy, it
    /// wants the same bytes again in the next epoch, and they count again.
    pub planned: BTreeMap<Way, Bytes>,
    /// Epochs of whose plan the recording tells.
    pub compared: u64,
    /// Of these, those with the same moves in the same order.
    pub same_moves: u64,
    /// Of these, those in which also the samples and ranges to count are the same: as far
    /// as the recording tells, the same plan.
    pub same_plans: u64,
    /// Bytes that both plans of an epoch would move between the same nodes.
    pub both: Bytes,
    /// Bytes that either would.
    pub either: Bytes,
    /// Bytes at the end of the file that are no whole record.
    pub torn: u64,
    /// The version of hmkeeper that wrote it, if it was another.
    pub other_version: Option<String>,
}

impl Summary {
    /// Bytes planned in one direction.
    pub fn bytes(&self, direction: Direction) -> Bytes {
        let ways = self.planned.iter();
        ways.filter(|(way, _)| way.direction == direction)
            .map(|(_, bytes)| *bytes)
            .sum()
    }

    /// Share, 0 to 1, of the bytes that either plan would move which both would; `None`
    /// where neither would move any.
    pub fn agreement(&self) -> Option<f64> {
        (!self.either.is_zero()).then(|| self.both.as_f64() / self.either.as_f64())
    }
}

/// Puts all of a recording through the engine.
///
/// # Errors
/// When it cannot be read.
pub fn summarise(replay: &mut Replay) -> Result<Summary, RecordError> {
    let mut sum = Summary::default();
    let mut last: Option<Plan> = None;
    while let Some(epoch) = replay.next_epoch()? {
        sum.epochs += 1;
        if epoch.run != sum.runs {
            (sum.runs, last) = (epoch.run, None);
        }
        if let Some(plan) = &last {
            compare(&mut sum, plan, &epoch.seen);
        }
        let tiers = epoch.engine.tiers();
        for planned in &epoch.plan.moves {
            sum.moves += 1;
            let way = Way {
                from: tier_name(tiers, planned.from),
                to: tier_name(tiers, planned.to),
                direction: planned.direction,
                reason: planned.reason,
            };
            *sum.planned.entry(way).or_default() += wanted(planned);
        }
        last = Some(epoch.plan);
    }
    sum.recorded = replay.recorded().to_vec();
    sum.torn = replay.torn();
    sum.other_version = replay.other_version().map(str::to_owned);
    Ok(sum)
}

fn tier_name(tiers: &TierTable, node: NodeId) -> String {
    let tier = tiers.tier_of(node);
    tier.map_or_else(String::new, |tier| tiers.name(tier).to_owned())
}

/// Holds a plan against what the next observation tells of it.
fn compare(sum: &mut Summary, plan: &Plan, next: &Observation) {
    let asked: Vec<&Move> = next.outcome.results.iter().map(|r| &r.asked).collect();
    let looked = !next.residency.is_empty() || !next.accesses.samples().is_empty();
    // A turn that failed as a whole: nothing was done, and nothing is told.
    if asked.is_empty() && !looked && !(plan.moves.is_empty() && plan.samples.is_empty()) {
        return;
    }
    sum.compared += 1;
    let is_same = plan.moves.iter().eq(asked.iter().copied());
    sum.same_moves += u64::from(is_same);
    let counted = next.residency.iter().map(|c| (c.target, c.range));
    let swept = plan.sweeps.iter().map(|s| (s.target, s.range));
    let looks_same = !looked || counted.eq(swept) && within(next.accesses.samples(), &plan.samples);
    sum.same_plans += u64::from(is_same && looks_same);
    let (both, either) = overlap(plan.moves.iter(), asked.into_iter());
    sum.both += both;
    sum.either += either;
}

/// Whether all of `some` are in `all`, in the same order: which of its samples an epoch
/// looks at depends on what it sees.
fn within(some: &[Sample], all: &[Sample]) -> bool {
    let mut all = all.iter();
    some.iter().all(|sample| all.any(|other| other == sample))
}

/// Bytes that a move wants moved.
fn wanted(planned: &Move) -> Bytes {
    planned.limit.min(planned.range.bytes())
}

/// What is left of the moves of one range on one way.
#[derive(Clone, Copy)]
struct Left {
    key: (u32, NodeId, NodeId),
    start: u64,
    end: u64,
    bytes: u64,
}

/// In order of way and address, those of one range as one.
fn by_range<'a>(moves: impl Iterator<Item = &'a Move>) -> Vec<Left> {
    let mut left: Vec<Left> = moves
        .map(|m| Left {
            key: (m.target.0, m.from, m.to),
            start: m.range.start().0,
            end: m.range.end().0,
            bytes: wanted(m).0,
        })
        .collect();
    left.sort_by_key(|l| (l.key, l.start, l.end));
    left.dedup_by(|next, kept| {
        let is_same = (next.key, next.start, next.end) == (kept.key, kept.start, kept.end);
        if is_same {
            kept.bytes = kept.bytes.saturating_add(next.bytes);
            kept.bytes = kept.bytes.min(kept.end - kept.start);
        }
        is_same
    });
    left
}

/// Bytes that both would move between the same nodes, and bytes that either would.
fn overlap<'a>(
    ours: impl Iterator<Item = &'a Move>,
    theirs: impl Iterator<Item = &'a Move>,
) -> (Bytes, Bytes) {
    let (mut ours, mut theirs) = (by_range(ours), by_range(theirs));
    let all = |of: &[Left]| of.iter().map(|l| Bytes(l.bytes)).sum::<Bytes>();
    let either = all(&ours) + all(&theirs);
    let (mut i, mut j) = (0, 0);
    let mut both = 0_u64;
    while let (Some(a), Some(b)) = (ours.get_mut(i), theirs.get_mut(j)) {
        if a.key == b.key {
            let shared = a.end.min(b.end).saturating_sub(a.start.max(b.start));
            let shared = shared.min(a.bytes).min(b.bytes);
            a.bytes -= shared;
            b.bytes -= shared;
            both = both.saturating_add(shared);
        }
        // What ends first meets nothing more.
        if (a.key, a.end) <= (b.key, b.end) {
            i += 1;
        } else {
            j += 1;
        }
    }
    (Bytes(both), either.saturating_sub(Bytes(both)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tiering::observation::TargetId;
    use crate::units::{PAGE_BYTES, PageRange, Pid, VirtAddr};

    fn planned(first: u64, pages: u64, limit: u64, to: u32) -> Move {
        let at = |page: u64| VirtAddr(page * PAGE_BYTES);
        Move {
            target: TargetId(1),
            pid: Pid(1),
            range: PageRange::new(at(first), at(first + pages)).unwrap(),
            from: NodeId(9),
            to: NodeId(to),
            limit: Bytes::from_pages(limit),
            direction: Direction::Promotion,
            reason: Reason::Hot,
        }
    }

    fn pages(ours: &[Move], theirs: &[Move]) -> (u64, u64) {
        let (both, either) = overlap(ours.iter(), theirs.iter());
        (both.pages(), either.pages())
    }

    #[test]
    fn only_the_same_bytes_on_the_same_way_agree() {
        let one = [planned(0, 10, 10, 0)];
        assert_eq!(pages(&one, &one), (10, 10));
        assert_eq!(pages(&one, &[]), (0, 10));
        assert_eq!(pages(&one, &[planned(0, 10, 10, 1)]), (0, 20));
        assert_eq!(pages(&one, &[planned(8, 10, 10, 0)]), (2, 18));
        // A limit is what is wanted of the range, and no page is shared twice.
        assert_eq!(pages(&[planned(0, 10, 2, 0)], &one), (2, 10));
        let parts = [planned(0, 5, 5, 0), planned(5, 5, 5, 0)];
        assert_eq!(pages(&[planned(0, 10, 2, 0)], &parts), (2, 10));
        // The room of one range for two promotions: two moves of it.
        let twice = [planned(0, 10, 4, 0), planned(0, 10, 4, 0)];
        assert_eq!(pages(&twice, &one), (8, 10));
    }

    fn plan() -> impl Strategy<Value = Vec<Move>> {
        let one = (1_u64..20, 1_u64..20, 0_u64..25, 0_u32..2);
        prop::collection::vec(one, 0..12).prop_map(|parts| {
            let mut at = 0;
            let mut moves = Vec::new();
            for (gap, pages, limit, to) in parts {
                at += gap;
                moves.push(planned(at, pages, limit, to));
                at += pages;
            }
            moves
        })
    }

    proptest! {
        #[test]
        fn agreement_is_a_share_and_mutual(ours in plan(), theirs in plan()) {
            let (both, either) = overlap(ours.iter(), theirs.iter());
            prop_assert_eq!((both, either), overlap(theirs.iter(), ours.iter()));
            let all = |moves: &[Move]| moves.iter().map(wanted).sum::<Bytes>();
            prop_assert!(both <= all(&ours).min(all(&theirs)));
            prop_assert_eq!(both + either, all(&ours) + all(&theirs));
            let (both, either) = overlap(ours.iter(), ours.iter());
            prop_assert_eq!(both, either);
        }
    }
}
