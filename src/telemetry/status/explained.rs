//! What reasons mean, and what would lift them: one line each, for the status and the log.

use crate::tiering::observation::Exclusion;
use crate::tiering::pageout::PagingRest;
use crate::tiering::report::{Hold, PauseReason, Unwatched};

/// Why nothing is moved, with its name.
pub(in crate::telemetry) fn explained(reason: PauseReason) -> String {
    let why = match reason {
        PauseReason::Operator => "`hmkeeper resume` goes on",
        PauseReason::DryRun => "plans are made and counted only",
        PauseReason::SamplerBlind => "busy, but no page is ever seen accessed",
        PauseReason::OneTier => "this machine has nothing to move to",
        PauseReason::Cpuset => {
            "its cpuset, or hmkeeper's own, allows one tier only: see cpuset.mems"
        }
        PauseReason::NoGain => "no exchange would pay for its move in the time that it lasts",
    };
    format!("{} ({why})", reason.as_str())
}

/// Why a mapping is never moved.
pub(in crate::telemetry) fn excluded(why: Exclusion) -> &'static str {
    match why {
        Exclusion::Shared => {
            "mapped as shared: a file; or shared memory, and `move_shared = false`"
        }
        Exclusion::File => "of files, such as programs; anonymous memory is moved",
        Exclusion::Locked => "mlocked by its program; `move_locked = true` of the target moves it",
        Exclusion::Hugetlb => "from the hugetlb pool; transparent huge pages are moved",
        Exclusion::Policy => "bound by its program; `move_bound = true` of the target moves it",
        Exclusion::Configured => "left out by `include` or `exclude` of the target",
        Exclusion::Special => "the kernel's, a device's, or without access",
    }
}

/// Why much of what a target has in memory is not watched.
pub(in crate::telemetry) fn unwatched(why: Unwatched) -> String {
    match why {
        Unwatched::Excluded(why) => format!("{} ({})", why.as_str(), excluded(why)),
        Unwatched::NotFound => {
            "not found in what it has mapped: see `pagemap-scan` of `hmkeeper check`".into()
        }
    }
}

/// Why nothing is paged out.
pub(in crate::telemetry) fn paging_rests(why: PagingRest) -> &'static str {
    match why {
        PagingRest::NoSwap => "this machine has no swap: zram or zswap would do",
        PagingRest::OnDisk => "swap is on a disk: `pageout.swap = \"any\"` takes it",
        PagingRest::Full => "a tenth of swap stays free for the kernel",
        PagingRest::GroupLimit => "its control group lets it swap no more (`memory.swap.max`)",
        PagingRest::NotPermitted => "the kernel refuses it: Linux 5.10 and CAP_SYS_NICE are needed",
        PagingRest::SamplerBlind => "busy, but no page is ever seen accessed",
        PagingRest::ComesBack => "too much of it was needed again: tried again later",
    }
}

/// Why memory cannot be moved for now.
pub(in crate::telemetry) fn held(why: Hold) -> &'static str {
    match why {
        Hold::Shared => "in another process too (fork, KSM): `follow_children` watches both",
        Hold::Pinned => "held by the kernel when last tried, as for I/O: tried again later",
    }
}
