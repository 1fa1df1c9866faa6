//! How far what is told of a target's residency is to be trusted.
//!
//! **Unit.** Pages of 4 KiB; time of the observation.
//!
//! **Problem.** Where pages are is counted a part at a time, as the limit pays for it. What we
//! move is known. The kernel moves, swaps and reclaims too, and the program maps and frees.
//!
//! **Approach.** Each recount shows by how much the count before it was wrong by then. The parts
//! that were not counted in this epoch are held to be as wrong, node by node, with its sign: what
//! a split gave to one half it took from the other. Beside that stands what is known without any
//! count: the kernel's own sum of resident memory has grown by more or less than ours since the
//! last round of recounts; pages were moved from where we had none; regions were never counted.
//!
//! **Limits.** What the kernel moves for the first time stays unseen until the round comes to it:
//! so the age of the oldest count is told with the error.

use super::Engine;
use super::survey::Survey;
use crate::tiering::observation::{Mapped, Observation};
use crate::tiering::region::Recount;
use crate::units::{Bytes, Nanos, NodeId};

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Trust {
    /// Pages that were recounted of late, those of the last round counting most, and by how much
    /// more there were on each node than was held.
    recounted: f64,
    off: Vec<(NodeId, f64)>,
    /// Pages counted at the end of this epoch.
    now: u64,
    /// Pages that were moved since the last round from where we had none.
    missed: u64,
    /// What the kernel's sum and ours were when a round of recounts had ended.
    base: (i128, i128),
    /// When the round under way and the one before it began.
    began: Option<Nanos>,
    before: Option<Nanos>,
    /// A round ends with the sweeps that are to come.
    ends: bool,
}

/// What is told of a target's residency, and how far that goes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Doubt {
    /// Pages that may be more or less on each of these nodes, and on every node.
    of: Vec<(NodeId, f64)>,
    everywhere: f64,
    /// How long ago the oldest count was made.
    pub(super) age: Nanos,
}

impl Trust {
    /// An epoch ends: its counts follow.
    pub(super) fn begin(&mut self, at: Nanos) {
        self.now = 0;
        if self.began.is_none() {
            (self.began, self.before) = (Some(at), Some(at));
        }
        if std::mem::take(&mut self.ends) {
            self.before = self.began.replace(at);
        }
    }

    /// The sweeps that were just planned end a round.
    pub(super) fn ends_round(&mut self) {
        self.ends = true;
    }

    /// Takes in what a count has shown.
    pub(super) fn learn(&mut self, recount: &Recount, all: u64) {
        self.now += recount.pages;
        if recount.is_first {
            return;
        }
        self.recounted += recount.pages as f64;
        for (pages, sign) in [(&recount.before, -1.0), (&recount.after, 1.0)] {
            for (node, count) in pages.iter() {
                let change = sign * count as f64;
                match self.off.iter_mut().find(|(n, _)| *n == node) {
                    Some((_, sum)) => *sum += change,
                    None => self.off.push((node, change)),
                }
            }
        }
        // About one round, or what happened once would be told for ever.
        let keep = (all.max(1) as f64 / self.recounted).min(1.0);
        if keep < 1.0 {
            self.recounted *= keep;
            self.off.iter_mut().for_each(|(_, sum)| *sum *= keep);
        }
    }

    /// So many pages were moved from where none were held to be.
    pub(super) fn missed(&mut self, pages: u64) {
        self.missed = self.missed.saturating_add(pages);
    }

    /// What that comes to, of so many pages of which some were never counted; `resident` are held
    /// to be there, and the kernel says what is `mapped`.
    pub(super) fn told(
        &mut self,
        at: Nanos,
        (all, uncounted): (u64, u64),
        resident: u64,
        mapped: Mapped,
    ) -> Doubt {
        let (theirs, ours) = (
            i128::from((mapped.anonymous + mapped.shared).pages()),
            i128::from(resident),
        );
        let is_whole = uncounted == 0 && self.now >= all;
        let is_round = self.began == Some(at) && self.before < self.began && uncounted == 0;
        if is_whole || is_round {
            self.base = (theirs, ours);
            self.missed = 0;
        }
        if is_whole {
            return Doubt::default();
        }
        let known = theirs > 0;
        let gap = (theirs - self.base.0) - (ours - self.base.1);
        let gap = if known {
            gap.unsigned_abs() as f64
        } else {
            0.0
        };
        let lacking = (theirs - ours).max(0) as f64;
        let unseen = if known {
            lacking.min(uncounted as f64)
        } else {
            uncounted as f64
        };
        let rest = all.saturating_sub(self.now).saturating_sub(uncounted) as f64;
        let share = if self.recounted > 0.0 {
            rest / self.recounted
        } else {
            0.0
        };
        let off = self.off.iter();
        Doubt {
            of: off.map(|(node, sum)| (*node, sum.abs() * share)).collect(),
            everywhere: gap.max(unseen) + self.missed as f64,
            age: at.saturating_sub(self.before.unwrap_or(at)),
        }
    }
}

impl Engine {
    /// How far what the surveys say of where memory lies is to be trusted.
    pub(super) fn doubts(&mut self, seen: &Observation, surveys: &[Survey]) -> Vec<Doubt> {
        let of = seen.targets.iter().zip(surveys);
        of.map(|(target, survey)| {
            let tracked = self.targets.entry(target.id).or_default();
            let pages = (tracked.map.page_count(), tracked.uncounted);
            tracked
                .trust
                .told(seen.at, pages, survey.total().pages(), target.mapped)
        })
        .collect()
    }
}

impl Doubt {
    /// By how much what is told of these nodes may be wrong.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub(super) fn on(&self, nodes: &[NodeId]) -> Bytes {
        let of = self.of.iter().filter(|(node, _)| nodes.contains(node));
        let pages = of.map(|(_, pages)| pages).sum::<f64>() + self.everywhere;
        // `as` saturates.
        Bytes::from_pages(pages.ceil() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiering::region::Pages;

    const FAST: NodeId = NodeId(0);
    const SLOW: NodeId = NodeId(1);

    fn at(seconds: u64) -> Nanos {
        Nanos::from_secs(seconds)
    }

    fn recount(before: [u64; 2], after: [u64; 2]) -> Recount {
        let pages = |[fast, slow]: [u64; 2]| Pages::from_counts(&[(FAST, fast), (SLOW, slow)]);
        Recount {
            before: pages(before),
            after: pages(after),
            pages: 512,
            is_first: false,
        }
    }

    fn mapped(pages: u64) -> Mapped {
        Mapped {
            anonymous: Bytes::from_pages(pages),
            ..Mapped::default()
        }
    }

    fn pages(doubt: &Doubt) -> [u64; 2] {
        [FAST, SLOW].map(|node| doubt.on(&[node]).pages())
    }

    #[test]
    fn what_is_counted_to_the_end_is_certain() {
        let mut trust = Trust::default();
        trust.begin(at(10));
        trust.learn(&recount([0, 512], [512, 0]), 512);
        let doubt = trust.told(at(10), (512, 0), 512, mapped(600));
        assert_eq!((pages(&doubt), doubt.age), ([0, 0], Nanos::ZERO));
    }

    #[test]
    fn what_was_not_counted_is_held_to_be_as_wrong_as_what_was() {
        let mut trust = Trust::default();
        trust.begin(at(10));
        // The kernel took 100 of 512 pages away: of 1536 others as many in each 512.
        trust.learn(&recount([512, 0], [412, 100]), 2048);
        let doubt = trust.told(at(10), (2048, 0), 2048, mapped(2048));
        assert_eq!(pages(&doubt), [300, 300]);
        // Halves of a split that were dealt wrong tell nothing of what is where.
        let mut trust = Trust::default();
        trust.begin(at(10));
        trust.learn(&recount([256, 256], [512, 0]), 2048);
        trust.learn(&recount([256, 256], [0, 512]), 2048);
        let doubt = trust.told(at(10), (2048, 0), 2048, mapped(2048));
        assert_eq!(pages(&doubt), [0, 0]);
    }

    #[test]
    fn what_happened_once_is_forgotten_in_a_few_rounds() {
        let mut trust = Trust::default();
        trust.begin(at(10));
        trust.learn(&recount([512, 0], [0, 512]), 1024);
        for second in 0..20 {
            trust.begin(at(20 + second));
            trust.learn(&recount([0, 512], [0, 512]), 1024);
        }
        let doubt = trust.told(at(40), (1024, 0), 1024, mapped(1024));
        assert_eq!(pages(&doubt), [1, 1]);
    }

    #[test]
    fn what_the_kernel_counts_beyond_ours_may_be_anywhere() {
        let mut trust = Trust::default();
        trust.begin(at(10));
        trust.learn(&recount([0, 512], [0, 512]), 512);
        // 88 pages beside are of what is never moved.
        trust.told(at(10), (512, 0), 512, mapped(600));
        trust.begin(at(20));
        let doubt = trust.told(at(20), (512, 0), 512, mapped(600));
        assert_eq!(pages(&doubt), [0, 0]);
        let doubt = trust.told(at(20), (512, 0), 512, mapped(650));
        assert_eq!(pages(&doubt), [50, 50]);
        let doubt = trust.told(at(20), (512, 0), 512, mapped(590));
        assert_eq!(pages(&doubt), [10, 10]);
        // And pages went from where none were.
        trust.missed(7);
        let doubt = trust.told(at(20), (512, 0), 512, mapped(600));
        assert_eq!(pages(&doubt), [7, 7]);
    }

    #[test]
    fn regions_never_counted_hold_no_more_than_is_there() {
        let mut trust = Trust::default();
        trust.begin(at(10));
        let doubt = trust.told(at(10), (1 << 30, 1 << 30), 0, mapped(600));
        assert_eq!(pages(&doubt), [600, 600]);
        // Where nobody tells what is there it may be all.
        let doubt = trust.told(at(10), (512, 512), 0, Mapped::default());
        assert_eq!(pages(&doubt), [512, 512]);
    }

    #[test]
    fn the_oldest_count_is_as_old_as_the_round_before() {
        let mut trust = Trust::default();
        let mut age = |second: u64, ends: bool| {
            trust.begin(at(second));
            let age = trust.told(at(second), (4096, 0), 4096, mapped(4096)).age;
            if ends {
                trust.ends_round();
            }
            age
        };
        assert_eq!(age(10, false), at(0));
        assert_eq!(age(20, true), at(10));
        // The first round ended: what was counted first was counted when it began.
        assert_eq!(age(30, false), at(20));
        assert_eq!(age(40, true), at(30));
        assert_eq!(age(50, false), at(20));
    }
}
