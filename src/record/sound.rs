//! What a recording may say: bounds within which the engine neither fails nor grows
//! without end. What any daemon writes is far inside of them; a file that somebody made,
//! or that was damaged in a way that its checksums do not show, may not be.
//!
//! Types check what they alone can know when they are read: ranges of whole pages, tiers
//! of nodes that are there, as many tallies as samples. Here is what takes a whole frame.

use std::collections::BTreeSet;

use super::file::Frame;
use crate::tiering::observation::{EpochCost, Observation, TargetMap};
use crate::tiering::pageout::Paging;
use crate::tiering::settings::{AdaptiveSettings, EngineSettings, HmKeeperSettings};
use crate::tiering::tier::TierTable;
use crate::units::text::printable;
use crate::units::{Bytes, Nanos, PAGE_BYTES, PageRange, VirtAddr};

/// No address of a process is beyond: five levels of page tables reach to 2^57.
const ADDRESS_END: VirtAddr = VirtAddr(1 << 57);
/// 146 years.
const TIME_MOST: Nanos = Nanos(1 << 62);
/// Of anything that is counted in one epoch: pages of all addresses and more.
const COUNT_MOST: u64 = 1 << 48;
/// 4 EiB.
const BYTES_MOST: Bytes = Bytes(1 << 62);
/// Windows of samplers.
const WINDOW: std::ops::RangeInclusive<Nanos> = Nanos(1_000)..=Nanos::from_secs(86_400);
/// As the configuration has it.
const INTERVAL: std::ops::RangeInclusive<Nanos> = Nanos::from_millis(1)..=Nanos::from_secs(86_400);
const SCANS: std::ops::RangeInclusive<u8> = 1..=20;
const REGION_MOST: Bytes = Bytes(1 << 30);
const EPOCHS_MOST: u64 = 1_000_000;

/// `Err` says what is wrong, and of what.
type Sound = Result<(), String>;

/// Whether the engine can be told this.
///
/// # Errors
/// The text says what cannot be.
pub(super) fn frame(frame: &Frame) -> Sound {
    match frame {
        Frame::Started {
            hmkeeper,
            settings,
            tiers,
            ..
        } => {
            shown(hmkeeper, "the version that wrote it")?;
            self::settings(settings)?;
            names(tiers)
        }
        Frame::Configured { settings, tiers } => {
            self::settings(settings)?;
            names(tiers)
        }
        Frame::Observed(seen) => observation(seen),
    }
}

fn check(holds: bool, what: &str) -> Sound {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

/// What is shown on terminals is text of one line. (The name of a process may be anything:
/// it is shown in pictures only.)
fn shown(text: &str, what: &str) -> Sound {
    const LONGEST: usize = 256;
    let is_plain = text.len() <= LONGEST && printable(text) == text;
    check(is_plain, &format!("{what} is no name"))
}

fn names(tiers: &TierTable) -> Sound {
    let mut tiers = tiers.tiers().iter();
    tiers.try_for_each(|tier| shown(&tier.name, "a tier's name"))
}

/// Not NaN either.
fn share(value: f64, most: f64, what: &str) -> Sound {
    check(
        (0.0..=most).contains(&value),
        &format!("{what} is {value}, not of 0 to {most}"),
    )
}

fn settings(settings: &EngineSettings) -> Sound {
    let profiling = &settings.profiling;
    check(
        INTERVAL.contains(&profiling.interval),
        "an epoch is of no length that can be",
    )?;
    check(
        SCANS.contains(&profiling.scans),
        "the scans of an epoch are not 1 to 20",
    )?;
    for region in [profiling.initial_region, profiling.minimum_region] {
        check(
            region.0.is_power_of_two() && (PAGE_BYTES..=REGION_MOST.0).contains(&region.0),
            "the size of a region is no power of two from a page to 1 GiB",
        )?;
    }
    share(profiling.overhead_limit, 1.0, "the overhead limit")?;
    share(profiling.merge_threshold, 1.0, "the merge threshold")?;
    share(profiling.split_threshold, 1.0, "the split threshold")?;
    share(settings.headroom, 1.0, "the headroom")?;
    if let Some(page_out) = settings.page_out {
        time(page_out.idle)?;
    }
    adaptive(&settings.policy.adaptive)?;
    hm_keeper(&settings.policy.hm_keeper)?;
    check(
        (12..=31).contains(&settings.policy.memory_tiering.time_bits),
        "memory-tiering.time_bits is not of 12 to 31",
    )
}

fn adaptive(adaptive: &AdaptiveSettings) -> Sound {
    share(adaptive.ema, 1.0, "adaptive.ema")?;
    share(adaptive.memory_bound, 1.0, "adaptive.memory_bound")?;
    share(adaptive.payback, 1e6, "adaptive.payback")?;
    share(adaptive.certainty, 1e6, "adaptive.certainty")?;
    share(
        adaptive.promotion_threshold,
        1.0,
        "adaptive.promotion_threshold",
    )?;
    share(adaptive.moving_limit, 1.0, "adaptive.moving_limit")?;
    check(
        adaptive.pace > 0.0 && adaptive.pace <= 1.0,
        "adaptive.pace is not above 0 and at most 1",
    )?;
    check(
        adaptive.horizon <= EPOCHS_MOST && adaptive.rest_epochs <= EPOCHS_MOST,
        "adaptive waits for more epochs than can be",
    )
}

fn hm_keeper(keeper: &HmKeeperSettings) -> Sound {
    share(keeper.ema, 1.0, "hm-keeper.ema")?;
    share(
        keeper.promotion_threshold,
        1.0,
        "hm-keeper.promotion_threshold",
    )?;
    share(keeper.eviction_margin, 1.0, "hm-keeper.eviction_margin")?;
    check(
        (1..=1024).contains(&keeper.buckets),
        "hm-keeper.buckets is not of 1 to 1024",
    )?;
    check(
        keeper.rest_epochs <= EPOCHS_MOST,
        "hm-keeper waits for more epochs than can be",
    )
}

fn observation(seen: &Observation) -> Sound {
    time(seen.at)?;
    let mut ids = BTreeSet::new();
    for target in &seen.targets {
        let id = target.id.0;
        check(ids.insert(id), &format!("target {id} is there twice"))?;
        self::target(target).map_err(|why| format!("target {id}: {why}"))?;
    }
    accesses(seen)?;
    for counted in &seen.residency {
        reachable(counted.range)?;
        let pages = counted.pages_by_node.iter().map(|(_, pages)| *pages);
        let pages = sum(pages);
        check(
            pages <= counted.range.pages(),
            &format!(
                "{}: {pages} pages are there, and no more fit",
                counted.range
            ),
        )?;
    }
    for forgotten in &seen.forgotten {
        time(forgotten.took)?;
        time(forgotten.cost)?;
    }
    cost(&seen.cost)?;
    time(seen.idle)?;
    check(
        WINDOW.contains(&seen.shortest),
        "the shortest window is none",
    )?;
    let mut pages = 0_u64;
    for result in &seen.outcome.results {
        reachable(result.asked.range)?;
        let counts = result.pages.labelled();
        pages = pages.saturating_add(sum(counts.iter().map(|(_, pages)| *pages)));
    }
    check(
        pages <= COUNT_MOST,
        "more pages were moved than there can be",
    )?;
    paging(&seen.paging)?;
    time(seen.outcome.elapsed)?;
    time(seen.outcome.longest_call)
}

fn paging(paging: &Paging) -> Sound {
    for out in &paging.results {
        reachable(out.asked.range)?;
        check(
            out.pages <= out.asked.range.pages(),
            &format!(
                "{}: {} pages were paged out, and no more fit",
                out.asked.range, out.pages
            ),
        )?;
    }
    let room = paging.swap.map_or(Bytes::ZERO, |swap| swap.total);
    check(room <= BYTES_MOST, "there is more swap than there can be")
}

fn target(target: &TargetMap) -> Sound {
    time(target.cpu_time)?;
    time(target.memory_time)?;
    for range in &target.eligible {
        reachable(*range)?;
    }
    let is_sorted = |pair: &[PageRange]| pair[0].end() <= pair[1].start();
    check(
        target.eligible.windows(2).all(is_sorted),
        "its ranges overlap, or do not ascend",
    )?;
    let is_share = |share: f64| share.is_finite() && share >= 0.0;
    check(
        target.cpu_share.iter().all(|(_, share)| is_share(*share)),
        "its share of a node's CPUs is no number",
    )
}

fn accesses(seen: &Observation) -> Sound {
    let samples = seen.accesses.samples();
    let key = |at: usize| (samples[at].target, samples[at].addr);
    check(
        (1..samples.len()).all(|at| key(at - 1) <= key(at)),
        "samples do not ascend",
    )?;
    for (sample, tally) in seen.accesses.looked().iter() {
        let addr = sample.addr;
        check(
            addr < ADDRESS_END && addr.page() == addr,
            &format!("sample {addr} is no page of a process"),
        )?;
        check(
            tally.accessed <= tally.known,
            &format!("sample {addr} was accessed more often than seen"),
        )?;
    }
    Ok(())
}

fn cost(cost: &EpochCost) -> Sound {
    for spent in [
        cost.profiling,
        cost.scanning,
        cost.sweeping,
        cost.forgetting,
        cost.kdamonds,
        cost.migration,
        cost.paging,
        cost.other,
        cost.elapsed,
    ] {
        time(spent)?;
    }
    let counts = [cost.scanned, cost.swept, cost.set_again];
    check(
        counts.iter().all(|count| *count <= COUNT_MOST),
        "more was looked at than there can be",
    )
}

fn time(time: Nanos) -> Sound {
    check(time <= TIME_MOST, "a time is beyond 146 years")
}

fn reachable(range: PageRange) -> Sound {
    check(
        range.end() <= ADDRESS_END,
        &format!("{range} is beyond all addresses of a process"),
    )
}

fn sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}
