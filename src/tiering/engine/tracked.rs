//! What is remembered of one target between epochs.

use super::accesses::Latest;
use super::charging::Charged;
use super::counted::Trust;
use super::stays::Stays;
use super::watched::Lack;
use crate::tiering::observation::{Forgotten, Looked, Mapped, TargetId};
use crate::tiering::pageout::Returns;
use crate::tiering::plan::Sweep;
use crate::tiering::region::{Adapted, Alike, Asked, Region, RegionMap, Thresholds};
use crate::tiering::sampling;
use crate::tiering::writes::{Extent, Patience, Savings};
use crate::units::{Bytes, HUGE_PAGE_BYTES, Nanos, NodeId, PAGE_BYTES, PageRange, Pid, VirtAddr};

/// What is remembered of one target.
#[derive(Debug)]
pub(super) struct Tracked {
    pub(super) map: RegionMap,
    /// Its process, and the nodes that its cpuset allows, as last seen.
    pub(super) pid: Pid,
    pub(super) allowed_nodes: Option<Vec<NodeId>>,
    /// How far τ1 is raised, in shares of the scans.
    pub(super) raised: f32,
    /// CPU time of its own, and for its memory, when it was seen last.
    pub(super) cpu_time: Option<(Nanos, Nanos)>,
    /// Epochs in a row in which it was busy and no sample was seen accessed; one in which
    /// samples were fewer than regions is as much less of one.
    pub(super) silent: f64,
    /// Where its threads run.
    pub(super) stays: Stays,
    /// Pages of regions of which nothing is known yet: those that came of a split
    /// know what their parent knew.
    pub(super) uncounted: u64,
    /// The same with those of which only some were seen to be there.
    unknown: u64,
    /// Pages that are known to be there.
    present: u64,
    /// The most samples that its regions can use.
    pub(super) useful: u64,
    /// Samples that it got last.
    pub(super) quota: u64,
    /// Pages that are looked at for each of them, of late.
    reach: f64,
    /// Whether what some region has is only derived.
    has_derived: bool,
    /// What asking for its writes has to look at, and what is saved up for that.
    pub(super) extent: Extent,
    pub(super) savings: Savings,
    /// Whether the last plan asks it.
    pub(super) is_asked: bool,
    pub(super) patience: Patience,
    /// How alike pages of its regions are.
    pub(super) alike: Alike,
    /// What of it came back from swap.
    pub(super) returns: Returns,
    /// What its hit rates rest on.
    pub(super) latest: Latest,
    /// What of it is not watched.
    pub(super) lack: Lack,
    /// What watching and moving it cost.
    pub(super) charged: Charged,
    /// How far its counts are to be trusted.
    pub(super) trust: Trust,
    /// Where the round of recounting residency goes on.
    recount: VirtAddr,
}

impl Default for Tracked {
    fn default() -> Self {
        Self {
            map: RegionMap::default(),
            pid: Pid(0),
            allowed_nodes: None,
            raised: 0.0,
            cpu_time: None,
            silent: 0.0,
            stays: Stays::default(),
            uncounted: 0,
            unknown: 0,
            present: 0,
            useful: 0,
            quota: 0,
            reach: 1.0,
            has_derived: false,
            extent: Extent::default(),
            savings: Savings::default(),
            is_asked: false,
            patience: Patience::default(),
            alike: Alike::default(),
            returns: Returns::default(),
            latest: Latest::default(),
            lack: Lack::default(),
            charged: Charged::default(),
            trust: Trust::default(),
            recount: VirtAddr(0),
        }
    }
}

/// Pages of which it is not known whether they are there are few if so many times as many are known to be.
const UNKNOWN: u64 = 16;

/// What the regions of a target come to.
#[derive(Default)]
struct Counted {
    uncounted: u64,
    /// Pages of regions of which only some were seen to be there, and the others not looked for yet.
    unknown: u64,
    present: u64,
    useful: u64,
    has_derived: bool,
    /// What is present of them, in how many entries of page tables; those of these that are written, and
    /// whether that is known.
    resident: Bytes,
    entries: u64,
    written: f64,
    is_known: bool,
}

impl Counted {
    fn add(&mut self, region: &Region, measures: bool) {
        self.useful += sampling::most(region);
        self.present += region.pages().total();
        if !region.is_counted() {
            self.has_derived = true;
            if region.pages().total() == 0 {
                self.uncounted += region.range().pages();
            }
            if region.pages().total() < region.range().pages() / 2 {
                self.unknown += region.range().pages();
            }
        }
        if measures {
            let folio = region.folio_bytes();
            let each = if folio < HUGE_PAGE_BYTES {
                PAGE_BYTES
            } else {
                HUGE_PAGE_BYTES
            };
            let mine = region.resident().0.div_ceil(each);
            self.resident += region.resident();
            self.entries += mine;
            self.is_known |= region.written().is_some();
            self.written += f64::from(region.written().unwrap_or(1.0)) * mine as f64;
        }
    }

    /// A walk goes through all that is `mapped`. What the regions lack of private memory is mostly of pages as theirs
    /// are; the rest counts in pages of 4 KiB.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn extent(&self, mapped: Mapped) -> Extent {
        let present = mapped.anonymous + mapped.shared;
        let others = present.saturating_sub(self.resident);
        let shared = others.min(mapped.shared);
        let private = others.saturating_sub(shared).pages() as f64;
        let entry = self.entries as f64 / self.resident.pages().max(1) as f64;
        let entry = if self.entries == 0 { 1.0 } else { entry };
        // Nobody looks at what of these is written: all may be.
        let may_be_written = shared.pages().saturating_add((private * entry) as u64);
        let never = (mapped.files + mapped.swapped).pages();
        Extent {
            entries: (self.entries)
                .saturating_add(may_be_written)
                .saturating_add(never),
            // `as` saturates, and a page more or less is nothing.
            written: (self.is_known)
                .then_some((self.written as u64).saturating_add(may_be_written)),
        }
    }
}

impl Tracked {
    /// Learns from an epoch's samples how hot regions are, and splits and merges them.
    pub(super) fn adapt(&mut self, samples: Looked<'_>, scans: u8, by: Thresholds) -> Adapted {
        let adapted = self.map.adapt(samples, scans, by);
        self.alike.learn(adapted.lone);
        adapted
    }

    /// Learns what samples tell beside how hot regions are, and brings up to date what
    /// follows from the regions; if it `measures` also what asking for its writes would cost, with all that
    /// is mapped. Shows `each` of the regions with its samples; tells how many were parted.
    pub(super) fn record(
        &mut self,
        samples: Looked<'_>,
        asked: Asked,
        measures: Option<Mapped>,
        mut each: impl FnMut(&Region, Looked<'_>),
    ) -> u64 {
        let mut counted = Counted::default();
        let parted = self.map.record(samples, asked, |region, mine| {
            counted.add(region, measures.is_some());
            each(region, mine);
        });
        (self.uncounted, self.useful) = (counted.uncounted, counted.useful);
        (self.unknown, self.present) = (counted.unknown, counted.present);
        self.has_derived = counted.has_derived;
        if let Some(mapped) = measures {
            self.extent = counted.extent(mapped);
        }
        parted
    }

    /// Whether it forgot what it had written when the epoch began; learns from that what asking takes, or that
    /// it is not to be asked.
    pub(super) fn has_forgotten(&mut self, id: TargetId, all: &[Forgotten]) -> bool {
        let mine = all.iter().find(|forgotten| forgotten.target == id);
        let was_asked = std::mem::take(&mut self.is_asked);
        if let Some(mine) = mine {
            self.patience.asks();
            self.savings.learn(mine, self.extent.entries);
        } else if was_asked {
            self.savings.refused();
            self.forget_writes();
        }
        mine.is_some()
    }

    /// What is not weighed is not known: it keeps no regions apart.
    pub(super) fn forget_writes(&mut self) {
        if self.extent.written.take().is_some() {
            self.map.forget_writes();
        }
    }

    /// Learns from an epoch in which so many pages were looked at.
    pub(super) fn learn_reach(&mut self, pages: u64, scans: u8) {
        if self.quota > 0 && pages > 0 {
            let reach = pages as f64 / self.quota as f64;
            let reach = reach.clamp(1.0, scans.max(1).into());
            self.reach = f64::midpoint(self.reach, reach);
        }
    }

    /// Pages that an epoch is going to look at: as many regions can be watched.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub(super) fn reached(&self) -> u64 {
        (self.quota as f64 * self.reach) as u64
    }

    /// Whether all but little of its pages were counted: of less than that it is not known what a walk of
    /// its page tables takes.
    pub(super) fn is_counted(&self) -> bool {
        self.unknown <= self.present / UNKNOWN
    }

    /// Whether any of it lies on one of these nodes.
    pub(super) fn has_on(&self, nodes: &[NodeId]) -> bool {
        let mut regions = self.map.regions().iter();
        !nodes.is_empty() && regions.any(|r| nodes.iter().any(|&node| r.pages().on(node) > 0))
    }

    /// Its part in what may be counted: above all what never was.
    pub(super) fn sweep_weight(&self) -> u64 {
        self.uncounted.saturating_add(self.map.page_count() / 16)
    }

    /// Chooses what to count: first what was never counted and is hot, then
    /// the rest of what was never counted, then all in turn.
    pub(super) fn sweep(
        &mut self,
        target: TargetId,
        pid: Pid,
        hot: f32,
        budget: u64,
        out: &mut Vec<Sweep>,
    ) {
        let mut left = budget;
        let regions = self.map.regions();
        let mut push = |range, left: &mut u64| {
            out.push(Sweep { target, pid, range });
            *left = left.saturating_sub(PageRange::pages(range));
        };
        if self.has_derived {
            for wanted in [true, false] {
                for region in regions {
                    if left == 0 {
                        return;
                    }
                    if !region.is_counted() && (region.heat() >= hot) == wanted {
                        push(region.next_sweep(left), &mut left);
                    }
                }
            }
        }
        let mut start = regions.partition_point(|r| r.range().start() < self.recount);
        if start == regions.len() {
            start = 0;
        }
        let (mut next, mut done) = (self.recount, 0);
        for region in regions[start..].iter().chain(&regions[..start]) {
            if left == 0 {
                break;
            }
            done += 1;
            if region.is_counted() {
                let range = region.next_sweep(left);
                push(range, &mut left);
                next = range.end();
                if next < region.range().end() {
                    // It goes on in the next epoch.
                    next = region.range().start();
                    done -= 1;
                }
            }
        }
        self.recount = next;
        if done > 0 && done >= regions.len() - start {
            self.trust.ends_round();
        }
    }
}

/// What samples come to.
#[derive(Default)]
pub(super) struct Totals {
    /// Looks that found them accessed.
    pub(super) looks: u64,
    /// Samples that were ever found accessed, and those of which nothing could be told.
    pub(super) accessed: u64,
    pub(super) unknown: u64,
}

impl Totals {
    /// In one pass: there may be millions.
    pub(super) fn of(samples: Looked<'_>) -> Self {
        let tallies = samples.tallies().iter();
        tallies.fold(Self::default(), |sum, tally| Self {
            looks: sum.looks + u64::from(tally.accessed),
            accessed: sum.accessed + u64::from(tally.accessed > 0),
            unknown: sum.unknown + u64::from(tally.known == 0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_of_recounts_ends_when_all_was_counted_again() {
        // Three regions of 512 pages, 400 an epoch: the fourth epoch ends the first round.
        const REGION: u64 = 2 << 20;
        let mut tracked = Tracked::default();
        let range = |from, to| PageRange::new(VirtAddr(from), VirtAddr(to)).unwrap();
        let all = range(0, 3 * REGION);
        tracked.map.sync(&[all], Bytes(REGION));
        for at in 0..3 {
            let one = range(at * REGION, (at + 1) * REGION);
            tracked.map.record_count(one, &[(NodeId(0), 512)]);
        }
        let mapped = Mapped {
            anonymous: all.bytes(),
            ..Mapped::default()
        };
        let mut ages = Vec::new();
        for epoch in 0..9 {
            let at = Nanos::from_secs(10 * epoch);
            tracked.trust.begin(at);
            let doubt = tracked.trust.told(at, (1536, 0), 1536, mapped);
            ages.push(doubt.age);
            let mut sweeps = Vec::new();
            tracked.sweep(TargetId(1), Pid(1), 1.0, 400, &mut sweeps);
            let pages: u64 = sweeps.iter().map(|sweep| sweep.range.pages()).sum();
            assert_eq!(pages, 400);
            for sweep in sweeps {
                let counted = [(NodeId(0), sweep.range.pages())];
                tracked.map.record_count(sweep.range, &counted);
            }
        }
        let seconds = [0, 10, 20, 30, 40, 50, 60, 70, 40];
        assert_eq!(ages, seconds.map(Nanos::from_secs));
    }

    #[test]
    fn what_regions_lack_is_of_pages_as_theirs_are_and_shared_memory_and_files_of_small_ones() {
        const MIB: Bytes = Bytes::from_mib(1);
        let of = |mib: u64| Bytes(mib * MIB.0);
        // A GiB in huge pages, a tenth of it written.
        let counted = Counted {
            resident: of(1024),
            entries: 512,
            written: 51.2,
            is_known: true,
            ..Counted::default()
        };
        let mapped = |anonymous, shared, files| Mapped {
            anonymous: of(anonymous),
            shared: of(shared),
            files: of(files),
            swapped: Bytes::ZERO,
        };
        let of = |mapped| {
            let extent = counted.extent(mapped);
            (extent.entries, extent.written)
        };
        assert_eq!(of(mapped(1024, 0, 0)), (512, Some(51)));
        assert_eq!(
            of(mapped(900, 0, 0)),
            (512, Some(51)),
            "less than was counted"
        );
        assert_eq!(of(mapped(3072, 0, 0)), (1536, Some(1075)));
        assert_eq!(of(mapped(1024, 1, 1)), (1024, Some(307)));
        // Half of it is shared memory of its own, which the regions have.
        assert_eq!(of(mapped(512, 512, 0)), (512, Some(51)));
        let none = Counted::default().extent(mapped(1, 0, 0));
        assert_eq!((none.entries, none.written), (256, None));
    }
}
