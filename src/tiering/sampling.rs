//! Which pages to watch, of as many as the governor allots.
//!
//! **Unit.** Quotas are samples per epoch.
//!
//! **Problem.** `num_ps` samples (HM-Keeper, Eq. 8.1;
//! [`governor`](super::governor)) may be watched over all regions. They have to
//! find both the edges of what is hot and a hot set that jumped to where nothing
//! was hot before.
//!
//! **Approach.**
//! [`deal`] keeps one sample of each region at a page that was seen accessed and gives
//! what merges freed to the five regions whose count changed
//! most (§1.2), at most one sample per [`DENSEST`] pages each, and spreads the
//! rest by length, so that a jump into a large cold region is seen too.
//! [`deal_to_edges`] gives up to half of what is to spare to the gaps in which
//! the edges between hot and cold lie.
//! [`draw()`] divides a region into as many equal strata as it has samples and
//! takes a random page of each, anew in every epoch: a fixed sample can
//! neither split a region nor notice that the hot set moved; [`deal`]'s is one of
//! several, where there are several. Beside the samples come scouts, for looks that
//! idle samples leave over ([`looks`](super::looks)): in gaps, and where memory is cold. But in gaps that are
//! narrower, only one page in every [`DENSEST`] is ever drawn: an idle mark on cold memory stays, and a
//! read of the bitmap walks the page tables of all marked frames of its word,
//! 64 of them in the end if every page had its turn, so 4. Beside an edge it is a few more.
//!
//! **Properties** (proptest below): the quotas sum to at most `num_ps`;
//! samples are distinct, sorted and inside their region.

mod draw;

pub(super) use draw::{Drawing, Drawn, draw};

use super::region::{Aim, Region, RegionMap, Thresholds};
use super::rng::Rng;
use crate::units::PAGE_BYTES;

/// Regions that get what merges freed (HM-Keeper §1.2).
const CHANGED_MOST: usize = 5;
/// No region is watched more closely than one page in so many: neighbours
/// that near are hot or cold together, and another region learns more.
const DENSEST: u64 = 16;
/// Nothing is looked for.
const NONE: [Aim; 3] = [Aim::None; 3];
/// Scouts that divide a gap: it is a quarter as wide after an epoch.
const SCOUTS_PER_GAP: u64 = 3;
/// Regions of at most so many pages are sampled anywhere.
const FREELY_DRAWN: u64 = 4 * DENSEST;

/// The most samples that a region can use.
pub(super) fn most(region: &Region) -> u64 {
    let unit = region.folio_bytes().max(PAGE_BYTES);
    let folios = region.range().bytes().0.div_ceil(unit);
    if unit > PAGE_BYTES {
        folios
    } else {
        folios.div_ceil(DENSEST)
    }
}

/// Deals `total` samples out to the regions. `turn` rotates who goes without
/// when there are more regions than samples.
pub(super) fn deal(map: &mut RegionMap, total: u64, turn: u64) {
    let regions = map.regions_mut();
    let count = regions.len() as u64;
    if count == 0 || count >= total {
        take_turns(regions, total, turn, again);
        return;
    }
    // Everybody keeps its share, as far as it can use it and the total allows.
    let mut sum = 0;
    for region in regions.iter_mut() {
        region.aims = again(region);
        let quota = u64::from(region.quota).clamp(1, most(region));
        region.quota = saturate(quota);
        sum += quota;
    }
    if sum > total {
        // Everybody has one; what is above that shrinks in proportion.
        let (above, room) = (sum - count, total - count);
        sum = 0;
        for region in regions.iter_mut() {
            let extra = u64::from(region.quota - 1);
            let kept = u128::from(extra) * u128::from(room) / u128::from(above.max(1));
            region.quota = 1 + u32::try_from(kept).unwrap_or(0);
            sum += u64::from(region.quota);
        }
    }
    let mut free = total - sum;

    // A running list of the few that changed most; nothing is sorted.
    let mut changed: Vec<usize> = Vec::with_capacity(CHANGED_MOST + 1);
    for (i, region) in regions.iter().enumerate() {
        let at = changed.partition_point(|&j| regions[j].change() >= region.change());
        if region.change() > 0.0 && at < CHANGED_MOST {
            changed.insert(at, i);
            changed.truncate(CHANGED_MOST);
        }
    }
    let share = free / (CHANGED_MOST as u64);
    for i in changed {
        let region = &mut regions[i];
        let more = share.min(most(region).saturating_sub(u64::from(region.quota)));
        region.quota = saturate(u64::from(region.quota) + more);
        free -= more;
    }
    spread(regions, free);
}

/// Deals `total` samples out to the regions where the hotness of neighbours
/// differs: one to each, then one to each page in doubt and to each side of an edge
/// that is not yet known as closely as edges lie, as long as these take no more than half
/// of what is left, then the rest by length. Where there are scouts, up to so
/// many, edges are for them, and so are regions that get no sample. Edges that are known to within
/// [`DENSEST`] pages have up to half of what the others leave, where every region has a sample.
pub(super) fn deal_to_edges(
    map: &mut RegionMap,
    (total, scouts): (u64, u64),
    turn: u64,
    thresholds: Thresholds,
) {
    let regions = map.regions_mut();
    let count = regions.len() as u64;
    if count >= total && scouts == 0 {
        take_turns(regions, total, turn, |_| NONE);
        return;
    }
    // Regions and sides, 2 being what is in doubt: these are the first.
    let (mut edges, mut sides, mut narrow) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..regions.len() {
        regions[i].aims = NONE;
        regions[i].quota = 1;
        if regions[i].doubted().is_some() {
            edges.push((i, 2));
        }
        let Some(before) = i.checked_sub(1) else {
            continue;
        };
        let (low, high) = (&regions[before], &regions[i]);
        let touch = low.range().end() == high.range().start();
        if !touch || (low.latest() - high.latest()).abs() < thresholds.merge {
            continue;
        }
        for (region, side) in [(before, 1), (i, 0)] {
            let r = &regions[region];
            let Some(gap) = r.gaps()[side].map(|gap| gap.bytes().0) else {
                continue;
            };
            let unit = thresholds.unit(r.folio_bytes());
            if gap >= unit.max(DENSEST * PAGE_BYTES) {
                sides.push((region, side));
            } else if gap >= unit
                // Where nothing is present nothing can be moved, and there is no end to looking.
                && low.is_known()
                && high.is_known()
                // Smaller ones are not cut.
                && r.range().bytes() > thresholds.minimum
            {
                narrow.push((region, side));
            }
        }
    }
    let mut left = scouts;
    if scouts > 0 {
        let most = total.min(scouts) / SCOUTS_PER_GAP;
        let mut aim = |&(region, side): &(usize, usize)| {
            regions[region].aims[side] = Aim::Scouts;
        };
        let mut gaps = in_turn(&sides, most, turn, &mut aim);
        if count < total {
            gaps += in_turn(&narrow, (most - gaps) / 2, turn, &mut aim);
        }
        left -= SCOUTS_PER_GAP * gaps;
    } else {
        edges.extend(sides);
    }
    if count >= total {
        take_turns(regions, total, turn, |region| {
            let [low, high, _] = region.aims;
            [low, high, again(region)[2]]
        });
        // The next ones by turn have a scout each.
        let count = regions.len() as u64;
        for (at, region) in by_turn(count, total, turn).zip(regions.iter_mut()) {
            if at >= total && at - total < left {
                region.aims[2] = Aim::Scouts;
            }
        }
        return;
    }
    let free = total - count;
    let mut aim = |&(region, side): &(usize, usize)| {
        regions[region].aims[side] = Aim::Sample;
        regions[region].quota += 1;
    };
    let mut share = in_turn(&edges, free / 2, turn, &mut aim);
    if scouts == 0 {
        share += in_turn(&narrow, (free / 2 - share) / 2, turn, &mut aim);
    }
    spread(regions, free - share);
}

/// Has at most `most` of these their turn; how many had.
fn in_turn<T>(all: &[T], most: u64, turn: u64, mut of: impl FnMut(&T)) -> u64 {
    let count = all.len() as u64;
    let share = count.min(most);
    for (k, one) in (0..).zip(all) {
        if turn.wrapping_mul(share).wrapping_add(k) % count < share {
            of(one);
        }
    }
    share
}

/// Deals each of `total` samples to the region of a page drawn from all pages:
/// the ablation of HM-Keeper §1.6.
pub(super) fn deal_at_random(map: &mut RegionMap, total: u64, rng: &mut Rng) {
    let regions = map.regions_mut();
    let pages: u64 = regions.iter().map(|r| r.range().pages()).sum();
    if pages == 0 {
        return;
    }
    let mut drawn: Vec<u64> = (0..total).map(|_| rng.below(pages)).collect();
    drawn.sort_unstable();
    let (mut end, mut taken) = (0, 0);
    for region in regions.iter_mut() {
        end += region.range().pages();
        let until = drawn.partition_point(|&page| page < end);
        region.aims = NONE;
        region.quota = saturate((until - taken) as u64);
        taken = until;
    }
}

/// Looks again at what is in doubt, if anything is.
fn again(region: &Region) -> [Aim; 3] {
    let aim = region.doubted().map_or(Aim::None, |_| Aim::Sample);
    [Aim::None, Aim::None, aim]
}

/// With more regions than samples everybody has one now and then, with its aims.
fn take_turns(regions: &mut [Region], total: u64, turn: u64, aims: impl Fn(&Region) -> [Aim; 3]) {
    let count = regions.len() as u64;
    for (at, region) in by_turn(count, total, turn).zip(regions.iter_mut()) {
        let is_next = at < total;
        region.quota = u32::from(is_next);
        region.aims = aims(region);
        if !is_next {
            region.aims[2] = Aim::None;
        }
    }
}

/// Of each of `count` regions, how many come before it by turn, where `total` have a sample in
/// each.
fn by_turn(count: u64, total: u64, turn: u64) -> impl Iterator<Item = u64> {
    let start = turn.wrapping_mul(total) % count.max(1);
    (count - start..count).chain(0..count - start)
}

/// Adds `free` samples by length.
fn spread(regions: &mut [Region], mut free: u64) {
    // What a full region cannot take is left for others
    // in the next round; a few rounds suffice.
    for _ in 0..3 {
        if free == 0 {
            break;
        }
        let open: u64 = regions
            .iter()
            .filter(|r| u64::from(r.quota) < most(r))
            .map(|r| r.range().pages())
            .sum();
        if open == 0 {
            break;
        }
        // Error diffusion: what one region's share lacks to a whole sample
        // the next one gets.
        let (pool, mut due) = (free, 0_u64);
        for region in regions.iter_mut() {
            let room = most(region).saturating_sub(u64::from(region.quota));
            if room == 0 {
                continue;
            }
            // Samples times pages are far from 2^64.
            due = due.saturating_add(pool.saturating_mul(region.range().pages()));
            let more = (due / open).min(room).min(free);
            due %= open;
            region.quota = saturate(u64::from(region.quota) + more);
            free -= more;
        }
    }
}

fn saturate(quota: u64) -> u32 {
    u32::try_from(quota).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
