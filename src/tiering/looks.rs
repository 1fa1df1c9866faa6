//! Which of an epoch's samples each of its scans looks at.
//!
//! **Problem.** HM-Keeper scans each sample `num_scans` times (§1.2). Where a page
//! is one of many alike, the second and third look tell little: of memory that is
//! touched all the time, or never, the first says it all. But one look alone
//! cannot tell a hot page from a stray access.
//!
//! **Approach.** [`LookRule::Sequential`], ours, stops where a look has said all: what was
//! idle in a long window is idle in the shorter ones after it, too, as good as always
//! ([`windows`](super::windows)). The first scan looks at the sample of each region; the
//! others look again at what was accessed, which tells how often, or could not tell, and
//! with the looks that idle pages leave over at pages that nobody looked at yet: the gaps in
//! which edges lie, then regions that had no sample for want of them, then edges that are nearly known, then what is hidden in
//! cold memory.
//! Of cold memory the same number of looks sees almost `num_scans` times as many pages.
//! What is idle counts as idle in the scans after its first look. Of what a scan could not tell that one before it
//! could, what it told of the nearest is taken.
//!
//! [`LookRule::Fresh`] is group testing in two stages, in equal windows. Each scan looks at
//! pages of its own, and again at those whose earlier looks in this epoch contradicted what
//! their region is held to be; for each of these it leaves out a new one. What surprises is
//! looked at again, as far as scans are left.
//!
//! **Properties** (proptest below): but for [`LookRule::Repeated`] a scan never looks at more
//! than its share, nor at anything twice in itself.

use serde::{Deserialize, Serialize};

use super::observation::{AccessSet, Sample};
use super::settings::LookRule;

/// So far a scan's samples are near each other.
const NEAR: usize = 16;
/// At most this part of a scan's looks go to what was looked at before.
const AGAIN: usize = 2;

/// What a sample is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Role {
    /// Watched for its region, which is held to be cold.
    #[default]
    Cold,
    /// The same of one that is held to be hot.
    Hot,
    /// Watched for its region, but from a later scan on: there were not enough samples.
    Late,
    /// Looks for the edge of a region, from the second scan on.
    Edge,
    /// The same where it is nearly known.
    Narrow,
    /// Looks for what is hidden in a region, from the second scan on.
    Scout,
}

impl Role {
    /// Whether the first scan looks at it.
    pub(super) fn is_first(self) -> bool {
        !Self::LATER.contains(&self)
    }

    /// Those that come after the first scan, the most urgent first.
    const LATER: [Self; 4] = [Self::Edge, Self::Late, Self::Narrow, Self::Scout];
}

/// The looks of one epoch.
#[derive(Clone, Debug, Default)]
pub struct Looks {
    /// What each sample is for.
    roles: Vec<Role>,
    /// Looks of one scan.
    share: usize,
    /// Scans until every sample has had its first look, and which samples begin.
    stages: usize,
    turn: usize,
    /// Whose turn it is where a scan cannot look at all of them.
    epoch: usize,
    rule: LookRule,
    again: Vec<usize>,
    /// All samples with what was seen of each so far.
    whole: AccessSet,
    /// The scan of each one's first look, and of the first that could tell; `None`: it had
    /// none yet.
    first: Vec<Option<u8>>,
    told: Vec<Option<u8>>,
    /// Whether a scan could not tell what one before could, nor of any near it.
    is_partial: Vec<bool>,
    /// Those of the scan under way, and where they are in `whole`.
    part: AccessSet,
    indices: Vec<usize>,
}

impl Looks {
    /// At samples with these `roles`, in so many scans of so many looks each. `turn`
    /// differs from epoch to epoch: those that come last cannot be confirmed, and should
    /// not always be the same.
    pub fn new(
        samples: Vec<Sample>,
        roles: Vec<Role>,
        (scans, looks): (u8, u64),
        rule: LookRule,
        turn: u64,
    ) -> Self {
        let share = usize::try_from(looks).unwrap_or(usize::MAX).max(1);
        let scans = usize::from(scans.max(1));
        Self {
            first: vec![None; samples.len()],
            told: vec![None; samples.len()],
            is_partial: vec![false; samples.len()],
            share,
            stages: samples.len().div_ceil(share).clamp(1, scans),
            turn: usize::try_from(turn % scans as u64).unwrap_or(0),
            epoch: usize::try_from(turn % (1 << 32)).unwrap_or(0),
            whole: AccessSet::new(samples),
            roles,
            rule,
            ..Self::default()
        }
    }

    /// Whether there is nothing to look at.
    pub fn is_empty(&self) -> bool {
        self.whole.samples().is_empty()
    }

    /// Scans that have ended.
    pub fn scans(&self) -> u8 {
        self.whole.scans()
    }

    /// Begins the next scan: the samples that it looks at.
    pub fn begin(&mut self) -> &[Sample] {
        let mut indices = std::mem::take(&mut self.indices);
        self.choose(self.whole.scans(), &mut indices);
        self.part.pick(&self.whole, &indices);
        self.indices = indices;
        self.part.samples()
    }

    /// The samples of the scan under way, for their verdicts.
    pub fn part(&mut self) -> &mut AccessSet {
        &mut self.part
    }

    /// Ends the scan under way, which has had its verdicts. Those that are not
    /// `believed` are as if they could not tell.
    pub fn end(&mut self, believed: bool) {
        if !believed {
            self.part.forget();
        }
        let scan = self.whole.scans();
        self.whole.add(&self.part, &self.indices);
        for (at, &i) in self.indices.iter().enumerate() {
            let is_told = self.part.tallies()[at].known > 0;
            if self.rule == LookRule::Sequential && self.told[i].is_some() && !is_told {
                // Of unequal windows the long ones alone would say that it is accessed all the time,
                // and without it what is idle would seem more: as its neighbour.
                match nearest_told(&self.part, at) {
                    Some(accessed) => self.whole.assume(i, accessed),
                    None => self.is_partial[i] = true,
                }
            }
            self.first[i].get_or_insert(scan);
            if self.whole.tallies()[i].known > 0 {
                self.told[i].get_or_insert(scan);
            }
        }
    }

    /// All that was looked at.
    pub fn into_seen(mut self) -> AccessSet {
        if self.rule == LookRule::Sequential {
            self.whole.settle(&self.told);
        }
        let partial = (0..self.first.len()).filter(|&i| self.is_partial[i]);
        partial.for_each(|i| self.whole.forget_of(i));
        let looked: Vec<bool> = self.first.iter().map(Option::is_some).collect();
        self.whole.retain(&looked);
        self.whole
    }

    /// The indices, ascending, of the samples that scan number `scan` looks at.
    fn choose(&mut self, scan: u8, out: &mut Vec<usize>) {
        out.clear();
        match self.rule {
            LookRule::Repeated => out.extend(0..self.first.len()),
            LookRule::Sequential => self.choose_in_sequence(scan, out),
            LookRule::Fresh => self.choose_fresh(scan, out),
        }
    }

    fn choose_in_sequence(&mut self, scan: u8, out: &mut Vec<usize>) {
        let seen = self.whole.tallies();
        let all = seen.len();
        let has = |i: &usize, role| self.roles.get(*i) == Some(&role);
        if scan == 0 {
            let is_first = |i: &usize| self.roles.get(*i).is_none_or(|role| role.is_first());
            let first = || (0..all).filter(is_first);
            let count = first().count();
            in_turn(first(), count, self.share, self.epoch % count.max(1), out);
            return;
        }
        let is_open =
            |i: &usize| self.first[*i].is_some() && (seen[*i].accessed > 0 || seen[*i].known == 0);
        let again = || (0..all).filter(is_open);
        evenly(again(), again().count(), self.share, out);
        for role in Role::LATER {
            let left = self.share.saturating_sub(out.len());
            let fresh = || (0..all).filter(|i| self.first[*i].is_none() && has(i, role));
            evenly(fresh(), fresh().count(), left, out);
        }
        out.sort_unstable();
    }

    fn choose_fresh(&mut self, scan: u8, out: &mut Vec<usize>) {
        let seen = self.whole.tallies();
        let all = seen.len();
        let surprises = |i: &usize| {
            let tally = seen[*i];
            tally.known > 0
                && if self.roles.get(*i) == Some(&Role::Hot) {
                    tally.accessed < tally.known
                } else {
                    tally.accessed > 0
                }
        };
        let due = |i: &usize| (i + self.turn) % self.stages == usize::from(scan);
        let fresh = (0..all).filter(due);
        let fresh_count = fresh.clone().count();
        self.again.clear();
        self.again.extend((0..all).filter(surprises));
        let surprises = self.again.len();
        let again = surprises
            .min(self.share / AGAIN)
            .max(self.share.saturating_sub(fresh_count));
        evenly(self.again.iter().copied(), surprises, again, out);
        // What is left when all new ones have had their look goes to any other.
        let others =
            (0..all).filter(|i| self.first[*i].is_some() && self.again.binary_search(i).is_err());
        let count = others.clone().count();
        evenly(others, count, again.saturating_sub(surprises), out);
        let left = self.share.saturating_sub(out.len());
        evenly(fresh, fresh_count, left, out);
        out.sort_unstable();
    }
}

/// `wanted` of `count` items, or all of them, spread evenly.
fn evenly(items: impl Iterator<Item = usize>, count: usize, wanted: usize, out: &mut Vec<usize>) {
    in_turn(items, count, wanted, 0, out);
}

/// The same, others with each `turn` below `count`: all have had theirs after so many.
fn in_turn(
    items: impl Iterator<Item = usize>,
    count: usize,
    wanted: usize,
    turn: usize,
    out: &mut Vec<usize>,
) {
    let taken = |k: usize| (turn + k) * wanted.min(count) / count.max(1);
    out.extend(
        items
            .enumerate()
            .filter(|&(k, _)| taken(k + 1) > taken(k))
            .map(|(_, item)| item),
    );
}

/// What a scan saw of the nearest sample that it could tell, of a few.
fn nearest_told(part: &AccessSet, at: usize) -> Option<bool> {
    let tallies = part.tallies();
    let near = (1..=NEAR).flat_map(|by| [at.checked_sub(by), Some(at + by)]);
    let mut told = near.flatten().filter_map(|at| tallies.get(at));
    told.find(|tally| tally.known > 0)
        .map(|tally| tally.accessed > 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tiering::observation::{Seen, TargetId};
    use crate::units::{PAGE_BYTES, Pid, VirtAddr};

    const ROLES: [Role; 6] = [
        Role::Cold,
        Role::Hot,
        Role::Late,
        Role::Edge,
        Role::Narrow,
        Role::Scout,
    ];

    fn samples(count: usize) -> Vec<Sample> {
        (0..count as u64)
            .map(|page| Sample {
                target: TargetId(0),
                pid: Pid(1),
                addr: VirtAddr(page * PAGE_BYTES),
            })
            .collect()
    }

    fn pages(samples: &[Sample]) -> Vec<usize> {
        let page = |s: &Sample| usize::try_from(s.addr.page_index()).unwrap();
        samples.iter().map(page).collect()
    }

    /// Does a scan that sees `accessed` pages accessed; the pages that it looked at.
    fn scan(looks: &mut Looks, accessed: impl Fn(usize) -> bool) -> Vec<usize> {
        let pages = pages(looks.begin());
        for (i, &page) in pages.iter().enumerate() {
            let seen = if accessed(page) {
                Seen::Accessed
            } else {
                Seen::Idle
            };
            looks.part().record(i, seen);
        }
        looks.end(true);
        pages
    }

    #[test]
    fn what_surprises_is_looked_at_again() {
        let mut looks = Looks::new(
            samples(12),
            vec![Role::Cold; 12],
            (3, 4),
            LookRule::Fresh,
            0,
        );
        assert_eq!(scan(&mut looks, |page| page == 6), [0, 3, 6, 9]);
        let second = scan(&mut looks, |page| page == 6);
        assert_eq!(second.len(), 4);
        assert!(second.contains(&6) && !second.contains(&0), "{second:?}");
        scan(&mut looks, |page| page == 6);
        let seen = looks.into_seen();
        let six = seen
            .looked()
            .iter()
            .find(|(s, _)| s.addr.page_index() == 6)
            .unwrap();
        assert_eq!((six.1.accessed, six.1.known), (3, 3));
        assert_eq!(
            seen.samples().len(),
            10,
            "what was not looked at is left out"
        );
    }

    #[test]
    fn what_is_idle_leaves_its_looks_to_others() {
        use Role::{Cold, Edge, Hot, Late, Scout};
        let roles = vec![
            Cold, Hot, Scout, Scout, Cold, Scout, Edge, Scout, Cold, Late, Scout, Scout,
        ];
        let mut looks = Looks::new(samples(12), roles, (3, 4), LookRule::Sequential, 0);
        let hot = |page| page == 1 || page == 6;
        assert_eq!(scan(&mut looks, hot), [0, 1, 4, 8]);
        // Again what was accessed, then the edge, the late one, and one of the scouts.
        let second = scan(&mut looks, hot);
        assert!(second.len() == 4 && [1, 6, 9].iter().all(|i| second.contains(i)));
        let third = scan(&mut looks, hot);
        assert!(third.len() == 4 && [1, 6].iter().all(|i| third.contains(i)));
        let seen = looks.into_seen();
        let of = |page: u64| {
            let found = seen
                .looked()
                .iter()
                .find(|(s, _)| s.addr.page_index() == page);
            found.map(|(_, t)| (t.accessed, t.known))
        };
        assert_eq!(of(0), Some((0, 3)), "idle in the longest: idle in all");
        assert_eq!(of(9), Some((0, 2)), "idle in the second: idle in the third");
        assert_eq!([of(1), of(6)], [Some((3, 3)), Some((2, 2))]);
        assert_eq!(
            seen.samples().len(),
            9,
            "what there was no look for is left out"
        );
    }

    #[test]
    fn edges_come_before_late_samples_and_all_of_the_first_have_their_turn() {
        use Role::{Cold, Edge, Late, Scout};
        let roles = vec![Late, Scout, Edge, Cold, Cold, Cold];
        let mut first = std::collections::BTreeSet::new();
        for turn in 0..3 {
            let mut looks = Looks::new(
                samples(6),
                roles.clone(),
                (3, 1),
                LookRule::Sequential,
                turn,
            );
            first.extend(scan(&mut looks, |_| false));
            assert_eq!(scan(&mut looks, |_| false), [2]);
            assert_eq!(scan(&mut looks, |_| false), [0]);
        }
        assert_eq!(first.into_iter().collect::<Vec<_>>(), [3, 4, 5]);
    }

    #[test]
    fn what_a_window_cannot_tell_is_not_idle_in_it() {
        let roles = vec![Role::Cold; 2];
        let mut looks = Looks::new(samples(2), roles, (3, 2), LookRule::Sequential, 0);
        let verdicts = [
            [Seen::Unknown, Seen::Idle],
            [Seen::Idle; 2],
            [Seen::Idle; 2],
        ];
        for verdicts in verdicts {
            let count = looks.begin().len();
            for i in 0..count {
                let page = looks.part().samples()[i].addr.page_index();
                let seen = verdicts[usize::try_from(page).unwrap()];
                looks.part().record(i, seen);
            }
            looks.end(true);
        }
        let known: Vec<u8> = looks
            .into_seen()
            .looked()
            .iter()
            .map(|(_, t)| t.known)
            .collect();
        assert_eq!(known, [2, 3], "nobody saw the first in the longest window");
    }

    #[test]
    fn what_a_shorter_window_cannot_tell_is_not_accessed_all_the_time() {
        for rule in [LookRule::Sequential, LookRule::Repeated] {
            let mut looks = Looks::new(samples(2), vec![Role::Hot; 2], (3, 2), rule, 0);
            for last in [Seen::Accessed, Seen::Accessed, Seen::Unknown] {
                assert_eq!(looks.begin().len(), 2);
                looks.part().record(0, Seen::Accessed);
                looks.part().record(1, last);
                looks.end(true);
            }
            let seen = looks.into_seen();
            let known: Vec<u8> = seen.tallies().iter().map(|tally| tally.known).collect();
            // Equal windows tell as much as there are of them.
            let equal = rule == LookRule::Repeated;
            assert_eq!(known, if equal { vec![3, 2] } else { vec![3, 3] });
        }
        // As the nearest that could be told; where there is none, nothing is said.
        for (last, want) in [
            ([Seen::Idle, Seen::Unknown, Seen::Accessed], vec![2, 2, 3]),
            (
                [Seen::Unknown, Seen::Unknown, Seen::Accessed],
                vec![3, 3, 3],
            ),
            ([Seen::Unknown; 3], vec![0; 3]),
        ] {
            let roles = vec![Role::Hot; 3];
            let mut looks = Looks::new(samples(3), roles, (3, 3), LookRule::Sequential, 0);
            for scan in 0..3 {
                let count = looks.begin().len();
                for (i, last) in last.into_iter().enumerate().take(count) {
                    let seen = if scan == 2 { last } else { Seen::Accessed };
                    looks.part().record(i, seen);
                }
                looks.end(true);
            }
            let seen = looks.into_seen();
            let accessed: Vec<u8> = seen.tallies().iter().map(|t| t.accessed).collect();
            assert_eq!(accessed, want, "{last:?}");
        }
    }

    #[test]
    fn repeated_looks_are_the_papers() {
        let mut looks = Looks::new(
            samples(4),
            vec![Role::Hot; 4],
            (3, 4),
            LookRule::Repeated,
            0,
        );
        for _ in 0..3 {
            assert_eq!(scan(&mut looks, |page| page == 1), [0, 1, 2, 3]);
        }
        let seen = looks.into_seen();
        assert!(seen.tallies().iter().all(|t| t.known == 3));
        assert_eq!(seen.tallies()[1].accessed, 3);
    }

    proptest! {
        #[test]
        fn no_scan_takes_more_than_its_share(
            roles in prop::collection::vec(prop::sample::select(ROLES.to_vec()), 0..100),
            rule in prop::sample::select(vec![LookRule::Fresh, LookRule::Sequential]),
            accessed in prop::collection::vec(any::<bool>(), 100),
            scans in 1_u8..6,
            share in 1_usize..50,
            turn: u64,
        ) {
            let count = roles.len();
            let each = (scans, share as u64);
            let mut looks = Looks::new(samples(count), roles, each, rule, turn);
            let mut total = 0;
            for _ in 0..scans {
                let pages = scan(&mut looks, |page| accessed[page]);
                prop_assert!(pages.windows(2).all(|w| w[0] < w[1]));
                prop_assert!(pages.len() <= share);
                total += pages.len();
            }
            let seen = looks.into_seen();
            if rule == LookRule::Fresh && count <= share * usize::from(scans) && share > 1 {
                // Nothing that there is a look for is passed over but for a surprise.
                prop_assert!(seen.samples().len() * 2 >= count);
            }
            let known: usize = seen.tallies().iter().map(|t| usize::from(t.known)).sum();
            // What is idle counts as idle in the scans after its first look.
            prop_assert!(known == total || rule == LookRule::Sequential && known >= total);
            prop_assert!(seen.tallies().iter().all(|t| t.known > 0 && t.known <= scans));
        }
    }
}
