//! Below the slowest tier: what goes to swap, a coldest tier that need not be a node
//! (zswap, zram, or a disk).
//!
//! **Unit.** Bytes; pages of 4 KiB; a region's time without accesses in seconds.
//!
//! **Problem.** A page that is read back from swap costs its reader a fault of 10 µs from
//! compressed memory, and a thousand times that from a disk. A slower tier only takes
//! longer for each miss. So a region goes there only when it was left alone for much
//! longer than it takes to demote it, and what was a mistake has to show soon.
//!
//! **Approach.** [`choose`] takes regions that lie mostly on the slowest tier and in which
//! no sample was seen accessed for a set time, the longest first, at a set rate. Samples
//! of a large region miss a small hot part of it: [`Returns`] compares what was paged out
//! with the pages that the target has read back since, and lets a target rest of which
//! more than one in twenty came back; twice as long each time.
//!
//! **Limits.** The target's major faults are taken for pages that came back. Those of files
//! that it maps are among them: such a target rests without need. A page is not looked at
//! again before it is paged out, nor does `MADV_PAGEOUT` look at its accessed bit.
//!
//! **Properties** (proptest below): never more than the rate allows in an interval, nor than
//! swap has room for; nothing of what was accessed in the set time, nor of what is not
//! mostly on the slowest tier.

use serde::{Deserialize, Serialize};

use super::observation::TargetId;
use super::region::Region;
use super::settings::PageOutSettings;
use crate::units::{Bytes, Nanos, NodeId, PageRange, Pid};

/// One in so many bytes of swap stays free for the kernel's own need.
const KEPT_FREE: u64 = 10;
/// What is smaller is not worth a system call.
const LEAST: Bytes = Bytes::from_kib(64);
/// Share of what was paged out that may come back.
const MAY_RETURN: f64 = 0.05;
/// Pages that may come back however little was paged out.
const STRAY: f64 = 256.0;
/// Rests grow to so many doublings.
const DOUBLINGS: u8 = 6;

/// Pages out what is present of a range, or the first of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageOut {
    /// Whose.
    pub target: TargetId,
    /// Its process.
    pub pid: Pid,
    /// The range.
    pub range: PageRange,
    /// At most so many bytes, rounded up to a call; the lowest addresses first.
    pub limit: Bytes,
}

/// What became of a [`PageOut`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagedOut {
    /// As it was asked for.
    pub asked: PageOut,
    /// Pages that are no longer present.
    pub pages: u64,
    /// Whether its range was gone through to the end.
    pub is_whole: bool,
}

/// Swap as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swap {
    /// Of all of it.
    pub total: Bytes,
    /// Of that, free.
    pub free: Bytes,
    /// Whether what is paged out stays in memory, compressed: zswap, or nothing but zram.
    pub is_memory: bool,
}

/// A target, for its paging.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pageable {
    /// Who.
    pub target: TargetId,
    /// Pages that it had to have read in since it began (major faults).
    pub faults: u64,
    /// Whether the kernel has not refused yet.
    pub is_permitted: bool,
    /// What its control groups still let it swap; `None`: as much as there is. Targets of one group
    /// have it together, and each is told all of it.
    pub room: Option<Bytes>,
}

impl Pageable {
    /// Whether its control groups let it swap nothing to speak of.
    pub fn is_limited(&self) -> bool {
        self.room.is_some_and(|room| room < LEAST)
    }
}

/// What a decision on paging out may depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paging {
    /// What became of the last plan's.
    pub results: Vec<PagedOut>,
    /// The targets that are still there.
    pub targets: Vec<Pageable>,
    /// `None`: nobody asked.
    pub swap: Option<Swap>,
}

impl Paging {
    /// What is known of a target, if it is there.
    pub fn of(&self, target: TargetId) -> Option<&Pageable> {
        self.targets.iter().find(|t| t.target == target)
    }

    /// Pages of a target that are no longer present for what was paged out.
    pub fn pages_of(&self, target: TargetId) -> u64 {
        let mine = self.results.iter().filter(|r| r.asked.target == target);
        mine.map(|r| r.pages).sum()
    }
}

/// Why nothing of a target is paged out although that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PagingRest {
    /// There is no swap.
    NoSwap,
    /// Swap is on a disk, and the settings want memory.
    OnDisk,
    /// Swap is as good as full.
    Full,
    /// A control group of the target lets it swap no more (`memory.swap.max`).
    GroupLimit,
    /// The kernel does not let us.
    NotPermitted,
    /// Nothing is known of the target's accesses.
    SamplerBlind,
    /// Too much of what was paged out was needed again.
    ComesBack,
}

impl PagingRest {
    /// Every reason, for registering metrics.
    pub const ALL: [Self; 7] = [
        Self::NoSwap,
        Self::OnDisk,
        Self::Full,
        Self::GroupLimit,
        Self::NotPermitted,
        Self::SamplerBlind,
        Self::ComesBack,
    ];

    /// The label in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoSwap => "no-swap",
            Self::OnDisk => "on-disk",
            Self::Full => "full",
            Self::GroupLimit => "group-limit",
            Self::NotPermitted => "not-permitted",
            Self::SamplerBlind => "sampler-blind",
            Self::ComesBack => "comes-back",
        }
    }
}

/// Bytes that swap may be given now, or why none.
///
/// # Errors
/// With the reason that is the machine's, whoever the target is.
pub fn room(swap: Option<Swap>, settings: &PageOutSettings) -> Result<Bytes, PagingRest> {
    let swap = swap.unwrap_or(Swap {
        total: Bytes::ZERO,
        free: Bytes::ZERO,
        is_memory: false,
    });
    let room = swap.free.saturating_sub(Bytes(swap.total.0 / KEPT_FREE));
    match () {
        () if swap.total.is_zero() => Err(PagingRest::NoSwap),
        () if !swap.is_memory && !settings.any_swap => Err(PagingRest::OnDisk),
        () if room < LEAST => Err(PagingRest::Full),
        () => Ok(room),
    }
}

/// A target of which regions may be paged out.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Who.
    pub id: TargetId,
    /// Its process.
    pub pid: Pid,
    /// Its regions.
    pub regions: &'a [Region],
    /// The nodes of its slowest tier.
    pub slowest: &'a [NodeId],
    /// As much of it may be swapped.
    pub room: Bytes,
}

/// What to page out until the next decision: the longest unused first, `budget` at most, and of each
/// target no more than its room.
pub fn choose(
    targets: &[Candidate<'_>],
    settings: &PageOutSettings,
    budget: Bytes,
) -> Vec<PageOut> {
    let mut found: Vec<(usize, &Region)> = (targets.iter().enumerate())
        .flat_map(|(at, target)| target.regions.iter().map(move |region| (at, region)))
        .filter(|(at, region)| {
            region.quiet() >= settings.idle
                && region.resident() >= LEAST
                && is_mostly_on(region, targets[*at].slowest)
        })
        .collect();
    found.sort_by_key(|(at, region)| {
        let longest_first = std::cmp::Reverse(region.quiet());
        (longest_first, targets[*at].id, region.range().start())
    });
    let mut left = budget;
    let mut rooms: Vec<Bytes> = targets.iter().map(|target| target.room).collect();
    let mut chosen = Vec::new();
    for (at, region) in found {
        if left < LEAST {
            break;
        }
        let limit = region.resident().min(left).min(rooms[at]);
        if limit < LEAST {
            continue;
        }
        left = left.saturating_sub(limit);
        rooms[at] = rooms[at].saturating_sub(limit);
        chosen.push(PageOut {
            target: targets[at].id,
            pid: targets[at].pid,
            range: region.range(),
            limit,
        });
    }
    chosen
}

fn is_mostly_on(region: &Region, nodes: &[NodeId]) -> bool {
    let there: u64 = nodes.iter().map(|&node| region.pages().on(node)).sum();
    2 * there > region.pages().total()
}

/// What of one target came back.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Returns {
    /// Pages that were paged out and that came back, older ones counting less.
    out: f64,
    back: f64,
    /// Major faults when they were last told.
    faults: Option<u64>,
    /// How long it is still left alone.
    rest: Nanos,
    /// How often of late, and how long ago the last rest ended.
    times: u8,
    calm: Nanos,
}

impl Returns {
    /// In `elapsed`, `pages` were paged out; since its start the target had `faults`. Regions
    /// are paged out after being `idle` for so long.
    pub fn learn(&mut self, elapsed: Nanos, pages: u64, faults: Option<u64>, idle: Nanos) {
        let before = self.faults;
        self.faults = faults.or(before);
        let came = faults
            .zip(before)
            .map_or(0, |(now, then)| now.saturating_sub(then));
        // Half of it counts after twice the time that decides what is idle.
        let halves = elapsed.as_secs_f64() / (2.0 * idle.as_secs_f64()).max(1e-3);
        let kept = 0.5_f64.powf(halves);
        // Before anything was paged out nothing can come back.
        let came = if self.out >= 1.0 { came as f64 } else { 0.0 };
        self.out = self.out * kept + pages as f64;
        self.back = self.back * kept + came;
        if self.rest > Nanos::ZERO {
            self.rest = self.rest.saturating_sub(elapsed);
            return;
        }
        let longest = Nanos(idle.0.saturating_mul(1 << self.times));
        if self.back > STRAY.max(MAY_RETURN * self.out) {
            (self.out, self.back, self.calm) = (0.0, 0.0, Nanos::ZERO);
            self.rest = longest;
            self.times = (self.times + 1).min(DOUBLINGS);
            return;
        }
        self.calm += elapsed;
        if self.times > 0 && self.calm > longest {
            self.times -= 1;
            self.calm = Nanos::ZERO;
        }
    }

    /// Whether the target is left alone now.
    pub fn is_resting(&self) -> bool {
        self.rest > Nanos::ZERO
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::units::{Bandwidth, VirtAddr};

    const SLOWEST: NodeId = NodeId(3);
    const IDLE: Nanos = Nanos::from_secs(300);

    fn settings() -> PageOutSettings {
        PageOutSettings {
            idle: IDLE,
            rate: Bandwidth(10 << 20),
            any_swap: false,
        }
    }

    /// A region of so many MiB, of which so many pages lie on the slowest node.
    fn region(at_mib: u64, mib: u64, slow: u64, fast: u64, quiet: u64) -> Region {
        let start = VirtAddr(at_mib << 20);
        let range = PageRange::new(start, VirtAddr((at_mib + mib) << 20)).unwrap();
        let mut region = Region::for_test(range, 0.0, &[(NodeId(0), fast), (SLOWEST, slow)]);
        region.quiet_for(Nanos::from_secs(quiet));
        region
    }

    fn chosen(regions: &[Region], budget: Bytes) -> Vec<(u64, u64)> {
        let target = Candidate {
            id: TargetId(1),
            pid: Pid(1),
            regions,
            slowest: &[SLOWEST],
            room: Bytes(u64::MAX),
        };
        let chosen = choose(&[target], &settings(), budget);
        let mib = |out: &PageOut| (out.range.start().0 >> 20, out.limit.0 >> 20);
        chosen.iter().map(mib).collect()
    }

    #[test]
    fn the_longest_unused_goes_first_and_only_from_the_slowest_tier() {
        let regions = [
            region(0, 4, 1024, 0, 300),
            region(4, 4, 1024, 0, 299),
            region(8, 4, 1024, 0, 900),
            region(12, 4, 500, 524, 900),
            region(16, 4, 0, 1024, 900),
        ];
        assert_eq!(chosen(&regions, Bytes::from_mib(100)), [(8, 4), (0, 4)]);
        assert_eq!(chosen(&regions, Bytes::from_mib(5)), [(8, 4), (0, 1)]);
        assert_eq!(chosen(&regions, Bytes::ZERO), []);
    }

    #[test]
    fn swap_says_how_much_or_why_not() {
        let swap = |total, free, is_memory| {
            Some(Swap {
                total: Bytes::from_mib(total),
                free: Bytes::from_mib(free),
                is_memory,
            })
        };
        let any = PageOutSettings {
            any_swap: true,
            ..settings()
        };
        for (swap, settings, want) in [
            (None, settings(), Err(PagingRest::NoSwap)),
            (swap(0, 0, false), settings(), Err(PagingRest::NoSwap)),
            (swap(100, 100, false), settings(), Err(PagingRest::OnDisk)),
            (swap(100, 100, false), any, Ok(Bytes::from_mib(90))),
            (swap(100, 30, true), settings(), Ok(Bytes::from_mib(20))),
            (swap(100, 10, true), settings(), Err(PagingRest::Full)),
        ] {
            assert_eq!(room(swap, &settings), want, "{swap:?}");
        }
    }

    /// Epochs of 10 s, in each of which so many pages go out and so many come back.
    fn rests(returns: &mut Returns, faults: &mut u64, epochs: u64, out: u64, back: u64) -> u64 {
        let mut resting = 0;
        for _ in 0..epochs {
            *faults += back;
            let out = if returns.is_resting() { 0 } else { out };
            returns.learn(Nanos::from_secs(10), out, Some(*faults), IDLE);
            resting += u64::from(returns.is_resting());
        }
        resting
    }

    #[test]
    fn a_target_rests_when_too_much_comes_back() {
        let (mut returns, mut faults) = (Returns::default(), 1_000_000);
        // A few of what is paged out are needed, now and then.
        assert_eq!(rests(&mut returns, &mut faults, 200, 2560, 60), 0);
        // A tenth is: it rests, for 30 epochs first and longer each time.
        let resting = rests(&mut returns, &mut faults, 200, 2560, 300);
        assert!((100..200).contains(&resting), "{resting}");
        assert!(returns.times > 1, "{returns:?}");
        // When nothing comes back any more it is forgiven.
        rests(&mut returns, &mut faults, 2000, 2560, 0);
        assert_eq!((returns.times, returns.is_resting()), (0, false));
    }

    #[test]
    fn what_is_read_before_anything_was_paged_out_did_not_come_back() {
        let (mut returns, mut faults) = (Returns::default(), 0);
        assert_eq!(rests(&mut returns, &mut faults, 50, 0, 100_000), 0);
        returns.learn(Nanos::from_secs(10), 2560, None, IDLE);
        assert!(!returns.is_resting());
    }

    proptest! {
        #[test]
        fn only_what_may_is_chosen_and_no_more_than_that(
            all in prop::collection::vec((0_u64..2000, 0_u64..2000, 0_u64..1000), 0..40),
            budget in 0_u64..(64 << 20),
            room in 0_u64..(64 << 20),
        ) {
            let regions: Vec<Region> = (0..)
                .zip(&all)
                .map(|(at, &(slow, fast, quiet))| region(at * 32, 16, slow, fast, quiet))
                .collect();
            let room = Bytes(room);
            let target = Candidate { id: TargetId(1), pid: Pid(1), regions: &regions, slowest: &[SLOWEST], room };
            let chosen = choose(&[target], &settings(), Bytes(budget));
            let sum: u64 = chosen.iter().map(|out| out.limit.0).sum();
            prop_assert!(sum <= budget && sum <= room.0);
            for out in &chosen {
                let region = regions.iter().find(|r| r.range() == out.range).unwrap();
                prop_assert!(region.quiet() >= IDLE);
                prop_assert!(region.pages().on(SLOWEST) * 2 > region.pages().total());
                prop_assert!(out.limit <= region.resident());
            }
            let mut ranges: Vec<_> = chosen.iter().map(|out| out.range.start()).collect();
            ranges.sort_unstable();
            ranges.dedup();
            prop_assert_eq!(ranges.len(), chosen.len());
        }

        #[test]
        fn it_rests_for_a_bounded_time_whatever_is_told(
            told in prop::collection::vec((0_u64..1 << 40, 0_u64..1 << 50, prop::option::of(0_u64..1 << 60)), 0..200),
        ) {
            let mut returns = Returns::default();
            for (elapsed, pages, faults) in told {
                returns.learn(Nanos(elapsed), pages, faults, IDLE);
                prop_assert!(returns.out.is_finite() && returns.back.is_finite());
                prop_assert!(returns.rest.0 <= IDLE.0 << DOUBLINGS);
            }
        }
    }
}
