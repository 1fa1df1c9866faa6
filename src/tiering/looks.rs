//! Which of an epoch's samples each of its scans looks at.
//!
//! **Problem.** HM-Keeper scans each sample `num_scans` times (§1.2). Where a page
//! is one of many alike, the second and third look tell little: of memory that is
//! touched all the time, or never, the first says it all. But one look alone
//! cannot tell a hot page from a stray access.
//!
//! **Approach.** Group testing in two stages. Each scan looks at pages of its own,
//! and again at those whose earlier looks in this epoch contradicted what their
//! region is held to be; for each of these it leaves out a new one. So the same
//! number of looks sees up to `num_scans` times as many pages, and what surprises
//! is looked at again, as far as scans are left.
//!
//! **Properties** (proptest below): a scan never looks at more than its share, nor
//! at anything twice in itself.

use super::observation::{AccessSet, Sample};
use super::settings::LookRule;

/// At most this part of a scan's looks go to what was looked at before.
const AGAIN: usize = 2;

/// The looks of one epoch.
#[derive(Clone, Debug, Default)]
pub struct Looks {
    /// Whether each sample's region is held to be hot.
    expected: Vec<bool>,
    /// Looks of one scan.
    share: usize,
    /// Scans until every sample has had its first look, and which samples begin.
    stages: usize,
    turn: usize,
    rule: LookRule,
    again: Vec<usize>,
    /// All samples with what was seen of each so far.
    whole: AccessSet,
    looked: Vec<bool>,
    /// Those of the scan under way, and where they are in `whole`.
    part: AccessSet,
    indices: Vec<usize>,
}

impl Looks {
    /// At samples whose regions are held to be as `expected`, hot or not, in so
    /// many scans of so many looks each. `turn` differs from epoch to epoch: those
    /// that come last cannot be confirmed, and should not always be the same.
    pub fn new(
        samples: Vec<Sample>,
        expected: Vec<bool>,
        (scans, looks): (u8, u64),
        rule: LookRule,
        turn: u64,
    ) -> Self {
        let share = usize::try_from(looks).unwrap_or(usize::MAX).max(1);
        let scans = usize::from(scans.max(1));
        Self {
            looked: vec![false; samples.len()],
            share,
            stages: samples.len().div_ceil(share).clamp(1, scans),
            turn: usize::try_from(turn % scans as u64).unwrap_or(0),
            whole: AccessSet::new(samples),
            expected,
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
        self.whole.add(&self.part, &self.indices);
        for &i in &self.indices {
            self.looked[i] = true;
        }
    }

    /// All that was looked at.
    pub fn into_seen(mut self) -> AccessSet {
        self.whole.retain(&self.looked);
        self.whole
    }

    /// The indices, ascending, of the samples that scan number `scan` looks at.
    fn choose(&mut self, scan: u8, out: &mut Vec<usize>) {
        out.clear();
        let seen = self.whole.tallies();
        let all = seen.len();
        if self.rule == LookRule::Repeated {
            out.extend(0..all);
            return;
        }
        let surprises = |i: &usize| {
            let tally = seen[*i];
            tally.known > 0
                && if self.expected.get(*i).copied().unwrap_or(false) {
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
        let others = (0..all).filter(|i| self.looked[*i] && self.again.binary_search(i).is_err());
        let count = others.clone().count();
        evenly(others, count, again.saturating_sub(surprises), out);
        let left = self.share.saturating_sub(out.len());
        evenly(fresh, fresh_count, left, out);
        out.sort_unstable();
    }
}

/// `wanted` of `count` items, or all of them, spread evenly.
fn evenly(items: impl Iterator<Item = usize>, count: usize, wanted: usize, out: &mut Vec<usize>) {
    let taken = |k: usize| k * wanted.min(count) / count.max(1);
    out.extend(
        items
            .enumerate()
            .filter(|&(k, _)| taken(k + 1) > taken(k))
            .map(|(_, item)| item),
    );
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tiering::observation::{Seen, TargetId};
    use crate::units::{PAGE_BYTES, Pid, VirtAddr};

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
        let mut looks = Looks::new(samples(12), vec![false; 12], (3, 4), LookRule::Fresh, 0);
        assert_eq!(scan(&mut looks, |page| page == 6), [0, 3, 6, 9]);
        let second = scan(&mut looks, |page| page == 6);
        assert_eq!(second.len(), 4);
        assert!(second.contains(&6) && !second.contains(&0), "{second:?}");
        scan(&mut looks, |page| page == 6);
        let seen = looks.into_seen();
        let six = seen.iter().find(|(s, _)| s.addr.page_index() == 6).unwrap();
        assert_eq!((six.1.accessed, six.1.known), (3, 3));
        assert_eq!(
            seen.samples().len(),
            10,
            "what was not looked at is left out"
        );
    }

    #[test]
    fn repeated_looks_are_the_papers() {
        let mut looks = Looks::new(samples(4), vec![true; 4], (3, 4), LookRule::Repeated, 0);
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
            expected in prop::collection::vec(any::<bool>(), 0..100),
            accessed in prop::collection::vec(any::<bool>(), 100),
            scans in 1_u8..6,
            share in 1_usize..50,
            turn: u64,
        ) {
            let count = expected.len();
            let each = (scans, share as u64);
            let mut looks = Looks::new(samples(count), expected, each, LookRule::Fresh, turn);
            let mut total = 0;
            for _ in 0..scans {
                let pages = scan(&mut looks, |page| accessed[page]);
                prop_assert!(pages.windows(2).all(|w| w[0] < w[1]));
                prop_assert!(pages.len() <= share);
                total += pages.len();
            }
            let seen = looks.into_seen();
            if count <= share * usize::from(scans) && share > 1 {
                // Nothing that there is a look for is passed over but for a surprise.
                prop_assert!(seen.samples().len() * 2 >= count);
            }
            let known: usize = seen.tallies().iter().map(|t| usize::from(t.known)).sum();
            prop_assert_eq!(known, total);
            prop_assert!(seen.tallies().iter().all(|t| t.known > 0 && t.known <= scans));
        }
    }
}
