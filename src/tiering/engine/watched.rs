//! Whether what a target has in memory is what its regions lie over.
//!
//! **Unit.** Bytes that are present.
//!
//! **Problem.** What is not watched is neither hot nor cold: nothing of it is ever moved, and
//! nothing else in a report says so. It may be meant so, by the program or the configuration,
//! or it may be that it was not found in what is mapped.
//!
//! **Approach.** Private and shared memory as the kernel counts it for the process, beside what
//! regions are known to hold. What lacks is told when it is more than a tenth, and [`SURELY`],
//! in [`PATIENCE`] epochs in a row. Where much may not be moved for a reason of somebody's, that
//! is the cause. Else memory counts as not found only where the regions are too small for it, or
//! so large that nothing in them can be met: what is merely not counted yet is no news.
//!
//! What others of the same `[[targets]]` share is a target of its own. Of a process that may
//! share it, no more is due than it has.

use crate::tiering::observation::{Exclusion, TargetMap};
use crate::tiering::report::{Unwatched, Watched};
use crate::units::Bytes;

/// Less is not worth a word.
const SURELY: Bytes = Bytes::from_mib(16);
/// Epochs in a row.
const PATIENCE: u8 = 8;
/// More than a tenth.
const PART: u64 = 10;
/// Regions over so many times what is present meet nothing of it.
const LOST: u64 = 4;
/// Why somebody wants memory left alone.
const WANTED: [Exclusion; 4] = [
    Exclusion::Shared,
    Exclusion::Locked,
    Exclusion::Policy,
    Exclusion::Configured,
];

/// For how long a target has lacked something.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lack {
    epochs: u8,
}

impl Lack {
    /// So much of it is known to be in its regions; `all` may be of its family.
    pub(super) fn follow(
        &mut self,
        target: &TargetMap,
        known: Bytes,
        all: &[TargetMap],
    ) -> Watched {
        let family = |other: &TargetMap| other.share.entry == target.share.entry;
        let shares = all.iter().any(|other| other.sharers > 0 && family(other));
        let resident = target.mapped.anonymous + target.mapped.shared;
        let due = if shares && target.sharers == 0 {
            known
        } else {
            resident
        };
        let why = why(target, known, due);
        self.epochs = why.map_or(0, |_| self.epochs.saturating_add(1));
        Watched {
            known,
            resident,
            lacks: why.filter(|_| self.epochs >= PATIENCE),
        }
    }
}

/// Why not all that is `due` is known, if much is not.
fn why(target: &TargetMap, known: Bytes, due: Bytes) -> Option<Unwatched> {
    let is_much = |lacking: Bytes| lacking >= SURELY && lacking.0 > due.0 / PART;
    let lacking = due.saturating_sub(known);
    if !is_much(lacking) {
        return None;
    }
    let half = |of: &&(Exclusion, Bytes)| of.1.0 >= lacking.0 / 2;
    let left_out = target.excluded.iter().filter(half);
    let wanted = (left_out.clone()).filter(|(why, _)| WANTED.contains(why));
    if let Some(&(why, _)) = wanted.max_by_key(|(_, bytes)| *bytes) {
        return Some(Unwatched::Excluded(why));
    }
    let covered: Bytes = target.eligible.iter().map(|r| r.bytes()).sum();
    let is_outside = is_much(due.saturating_sub(covered));
    if is_outside && let Some(&(why, _)) = left_out.max_by_key(|(_, bytes)| *bytes) {
        // Private pages of a file that were written, or memory that is without access now.
        return Some(Unwatched::Excluded(why));
    }
    let is_lost = covered.0 / LOST > due.0;
    (is_outside || is_lost).then_some(Unwatched::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiering::observation::{Mapped, Share, TargetId, TargetKind};
    use crate::units::{Nanos, PageRange, Pid, VirtAddr};

    fn mib(mib: u64) -> Bytes {
        Bytes::from_mib(mib)
    }

    fn target(covers: u64, anonymous: u64, shared: u64) -> TargetMap {
        TargetMap {
            id: TargetId(1),
            pid: Pid(1),
            name: "db".into(),
            sharers: 0,
            kind: TargetKind::Generic,
            eligible: PageRange::new(VirtAddr(0), VirtAddr(covers << 20))
                .into_iter()
                .collect(),
            cpu_time: Nanos::ZERO,
            memory_time: Nanos::ZERO,
            cpu_share: Vec::new(),
            allowed_nodes: None,
            excluded: Vec::new(),
            mapped: Mapped {
                anonymous: mib(anonymous),
                shared: mib(shared),
                ..Mapped::default()
            },
            share: Share::default(),
        }
    }

    #[test]
    fn what_is_not_found_is_told_after_some_epochs_and_what_is_not_counted_yet_is_not() {
        // 64 MiB in 8 GiB: what the regions lie over has nearly nothing that is known.
        let lost = target(8192, 64, 0);
        let mut lack = Lack::default();
        let told: Vec<_> = (0..10)
            .map(|_| lack.follow(&lost, mib(3), &[]).lacks)
            .collect();
        assert_eq!(told[..7], [None; 7]);
        assert_eq!(told[7..], [Some(Unwatched::NotFound); 3]);
        let watched = lack.follow(&lost, mib(60), &[]);
        assert_eq!((watched.known, watched.resident), (mib(60), mib(64)));
        assert_eq!(watched.lacks, None);
        let why = |covers, known, anonymous| {
            super::why(&target(covers, anonymous, 0), mib(known), mib(anonymous))
        };
        assert_eq!(why(1100, 10, 1000), None, "to be counted yet");
        assert_eq!(why(800, 800, 1000), Some(Unwatched::NotFound));
        assert_eq!(why(910, 905, 1000), None, "less than a tenth");
        assert_eq!(why(0, 0, 15), None, "little");
    }

    #[test]
    fn who_wants_it_left_alone_is_the_cause() {
        let mut one = target(100, 1000, 0);
        one.excluded = vec![
            (Exclusion::File, mib(4000)),
            (Exclusion::Locked, mib(100)),
            (Exclusion::Policy, mib(900)),
            (Exclusion::Special, mib(1 << 24)),
        ];
        let why = |of: &TargetMap| super::why(of, mib(100), mib(1000));
        assert_eq!(why(&one), Some(Unwatched::Excluded(Exclusion::Policy)));
        one.excluded.retain(|(why, _)| *why != Exclusion::Policy);
        assert_eq!(why(&one), Some(Unwatched::Excluded(Exclusion::Special)));
        one.excluded.clear();
        assert_eq!(why(&one), Some(Unwatched::NotFound));
    }

    #[test]
    fn what_is_shared_in_the_family_nobody_has_to_have() {
        let worker = target(50, 50, 1000);
        let of = |shares| {
            let mut lack = Lack {
                epochs: PATIENCE - 1,
            };
            let mut pool = worker.clone();
            pool.sharers = u32::from(shares) * 2;
            lack.follow(&worker, mib(48), &[worker.clone(), pool])
        };
        assert_eq!(of(true).lacks, None);
        assert_eq!(of(false).lacks, Some(Unwatched::NotFound));
        assert_eq!(of(true).resident, mib(1050));
    }
}
