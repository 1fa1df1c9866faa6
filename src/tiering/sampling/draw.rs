//! Draws the pages that an epoch looks at.

use super::{DENSEST, FREELY_DRAWN, SCOUTS_PER_GAP};
use crate::tiering::looks::Role;
use crate::tiering::observation::{Sample, TargetId};
use crate::tiering::region::{Aim, Region, RegionMap};
use crate::tiering::rng::Rng;
use crate::units::{PAGE_BYTES, PageRange, Pid, VirtAddr};

/// How to draw.
#[derive(Clone, Copy, Debug)]
pub(in crate::tiering) struct Drawing {
    /// Regions are held to be hot from this heat on.
    pub(in crate::tiering) hot: f32,
    /// Pages to draw beside the samples, for looks that these leave over; `None`: samples
    /// take all looks.
    pub(in crate::tiering) scouts: Option<u64>,
}

/// Pages with what they are drawn for, sorted by target and address.
#[derive(Debug, Default)]
pub(in crate::tiering) struct Drawn {
    pub(in crate::tiering) samples: Vec<Sample>,
    pub(in crate::tiering) roles: Vec<Role>,
}

/// Adds a target's pages for the next epoch: one random folio in each stratum of each
/// region, of small pages one in every [`DENSEST`], but in gaps that are no wider than that; with scouts also some that divide
/// the gaps that are looked into, and more of what is cold or was never seen.
pub(in crate::tiering) fn draw(
    map: &RegionMap,
    (target, pid): (TargetId, Pid),
    how: Drawing,
    rng: &mut Rng,
    out: &mut Drawn,
) {
    let mut spread = Spread::new(map, how);
    let mut pages: Vec<(u64, Role)> = Vec::new();
    for region in map.regions() {
        let places = Places::of(region);
        pages.clear();
        let role = if region.heat() >= how.hot {
            Role::Hot
        } else {
            Role::Cold
        };
        let doubted = region.doubted();
        pages.extend(
            doubted
                .filter(|_| region.aims[2] == Aim::Sample)
                .map(|page| (page, role)),
        );
        let is_aimed = is_aimed(region);
        if is_aimed {
            for gap in gaps(region, Aim::Sample) {
                // Somewhere in its middle half.
                let middle = gap.pages() / 4 + rng.below(gap.pages() / 2 + 1);
                pages.push((places.within(gap, middle), role));
            }
        }
        let quota = u64::from(region.quota()).saturating_sub(pages.len() as u64);
        places.strata(quota, rng, |page| pages.push((page, role)));
        if how.scouts.is_some() {
            if region.aims[2] == Aim::Scouts {
                let page = doubted.unwrap_or_else(|| places.page(0, places.count, rng));
                pages.push((page, Role::Late));
            }
            if is_aimed {
                for gap in gaps(region, Aim::Scouts) {
                    let is_narrow = gap.pages() < DENSEST;
                    let role = if is_narrow { Role::Narrow } else { Role::Edge };
                    for part in 1..=SCOUTS_PER_GAP {
                        let at = gap.pages() * part / (SCOUTS_PER_GAP + 1);
                        pages.push((places.within(gap, at), role));
                    }
                }
            }
            let more = spread.next(region);
            places.strata(more, rng, |page| pages.push((page, Role::Scout)));
        }
        // What was aimed at may have been drawn as well; all of a folio sees the same.
        if pages.len() > 1 {
            pages.sort_unstable_by_key(|&(page, role)| (page >> places.order, role, page));
            pages.dedup_by_key(|(page, _)| *page >> places.order);
        }
        let addr = |page: u64| VirtAddr(page.clamp(places.first, places.last) * PAGE_BYTES);
        out.samples.extend(pages.iter().map(|&(page, _)| Sample {
            target,
            pid,
            addr: addr(page),
        }));
        out.roles.extend(pages.iter().map(|(_, role)| *role));
    }
}

/// The gaps of a region that are looked into so.
fn gaps(region: &Region, aim: Aim) -> impl Iterator<Item = PageRange> {
    let sides = region.gaps().into_iter().zip(region.aims);
    sides.filter_map(move |(gap, aimed)| gap.filter(|_| aimed == aim))
}

/// Whether any gap of a region is looked into; of a million few are.
fn is_aimed(region: &Region) -> bool {
    region.aims[..2] != [Aim::None; 2]
}

/// Deals scouts out by length to the regions that may hide something: those that are cold,
/// or that nothing is known of. What is warm has to be looked at in all scans.
struct Spread {
    hot: f32,
    scouts: u64,
    pages: u64,
    due: u64,
}

impl Spread {
    fn new(map: &RegionMap, how: Drawing) -> Self {
        let mut this = Self {
            hot: how.hot,
            scouts: how.scouts.unwrap_or(0),
            pages: 0,
            due: 0,
        };
        if how.scouts.is_some() {
            for region in map.regions() {
                let gaps = if is_aimed(region) {
                    gaps(region, Aim::Scouts).count() as u64
                } else {
                    0
                };
                let taken = SCOUTS_PER_GAP * gaps + u64::from(region.aims[2] == Aim::Scouts);
                this.scouts = this.scouts.saturating_sub(taken);
                if this.may_hide(region) {
                    this.pages += region.range().pages();
                }
            }
        }
        this
    }

    fn may_hide(&self, region: &Region) -> bool {
        !region.is_known() || region.heat() < self.hot / 2.0
    }

    /// Scouts of the next region; what its share lacks to a whole one the next one gets.
    fn next(&mut self, region: &Region) -> u64 {
        if !self.may_hide(region) {
            return 0;
        }
        // Scouts times pages are far from 2^64.
        self.due = (self.due).saturating_add(self.scouts.saturating_mul(region.range().pages()));
        let more = self.due / self.pages.max(1);
        self.due %= self.pages.max(1);
        more
    }
}

/// Where the samples of a region may lie: on a grid, but beside an edge.
struct Places {
    first: u64,
    last: u64,
    origin: u64,
    /// Of a folio's pages, as log2: shifts are quicker than divisions, of which there were many.
    order: u32,
    is_coarse: bool,
    count: u64,
}

impl Places {
    fn of(region: &Region) -> Self {
        let range = region.range();
        let order = region.folio_bytes().max(PAGE_BYTES).ilog2() - PAGE_BYTES.ilog2();
        let first = range.start().page_index();
        let last = first + range.pages() - 1;
        let is_coarse = order == 0 && range.pages() > FREELY_DRAWN;
        let (origin, count) = if is_coarse {
            // Groups whose page lies in it; there are three at least.
            let (low, high) = (first / DENSEST, last / DENSEST);
            let low = low + u64::from(representative(low) < first);
            let high = high - u64::from(representative(high) > last);
            (low * DENSEST, high - low + 1)
        } else {
            (first, ((last - first) >> order) + 1)
        };
        Self {
            first,
            last,
            origin,
            order,
            is_coarse,
            count,
        }
    }

    /// The page of a random one of the places `low..high`, which are not none.
    fn page(&self, low: u64, high: u64, rng: &mut Rng) -> u64 {
        let place = low + rng.below(high - low);
        let page = if self.is_coarse {
            representative(self.origin / DENSEST + place)
        } else {
            // Any page of a huge one: where only some of the region is
            // huge, the others are to be seen too.
            let inside = if self.order > 0 {
                rng.below(1 << self.order)
            } else {
                0
            };
            self.origin + (place << self.order) + inside
        };
        page.clamp(self.first, self.last)
    }

    /// One of each of so many strata, or of every place.
    fn strata(&self, wanted: u64, rng: &mut Rng, mut put: impl FnMut(u64)) {
        let wanted = wanted.min(self.count);
        if wanted == 1 {
            // Nearly all regions, and without dividing.
            put(self.page(0, self.count, rng));
            return;
        }
        if wanted == 0 {
            return;
        }
        // The n-th begins at n * count / wanted.
        let (each, more) = (self.count / wanted, self.count % wanted);
        let (mut low, mut due) = (0, 0);
        for _ in 0..wanted {
            due += more;
            let high = low + each + u64::from(due >= wanted);
            due -= if due >= wanted { wanted } else { 0 };
            put(self.page(low, high, rng));
            low = high;
        }
    }

    /// The page that is watched for the one so far into a gap.
    fn within(&self, gap: PageRange, at: u64) -> u64 {
        let (start, end) = (gap.start().page_index(), gap.end().page_index());
        let page = start + at;
        // In a narrow gap they would all be the same one.
        let page = if self.is_coarse && gap.pages() >= DENSEST {
            // Of the group next to it where that one's lies outside.
            let group = page / DENSEST;
            let inside = |page: &u64| (start..end).contains(page);
            let near = [group, group + 1, group.saturating_sub(1)].map(representative);
            near.into_iter().find(inside).unwrap_or(page)
        } else {
            page
        };
        page.clamp(self.first, self.last)
    }
}

/// The page that is watched for a group of [`DENSEST`] of them, always the same
/// one, at a place that no stride of a program follows.
fn representative(group: u64) -> u64 {
    group * DENSEST + Rng::new(group).below(DENSEST)
}
