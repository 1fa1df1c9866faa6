//! How often memory was accessed, epoch by epoch, as far as a recording tells.
//!
//! **Unit.** Touches of a page of 4 KiB in an epoch.
//!
//! **Approach.** The recording goes through the engine as it did when it was made. A region's
//! average count, of the samples that were watched of it in this epoch and those before,
//! stands for a rate of accesses ([`windows`](crate::tiering::windows)), of the folios that
//! were seen there. What was seen in all windows may have been accessed any number of times
//! more: it counts as what the shortest window can just tell.
//!
//! Of a region that was never accessed, half of it has to be present for it to count as memory
//! at all: heaps are mapped larger than they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Replay;
use super::file::{Reader, RecordError};
use super::timeline::Timeline;
use crate::tiering::region::Region;
use crate::tiering::windows::Rates;
use crate::units::{PAGE_BYTES, PageRange, Pid};

/// Processes that are told apart; a recording of more is of no one program.
const PROCESSES_MOST: usize = 256;
const TOO_MANY: &str = "more than 256 processes were recorded until there; record fewer";
/// Folios are of 2^0 to 2^9 pages.
const ORDERS: usize = 10;

/// What is told of one region in one epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Accessed {
    /// Of which process, from 0 on; a process keeps its number over several runs.
    pub process: u16,
    /// Its pages.
    pub range: PageRange,
    /// Touches of each of them in the epoch; 0 if it was only there.
    pub per_page: f64,
}

/// Goes through a recording.
pub struct Accesses {
    replay: Replay,
    time: Timeline,
    processes: BTreeMap<(Pid, Arc<str>), u16>,
    /// Bytes of the regions of each folio size, over all epochs.
    orders: [f64; ORDERS],
}

impl Accesses {
    /// Of the recording that `frames` reads.
    pub fn new(frames: Reader) -> Self {
        Self {
            replay: Replay::new(frames),
            time: Timeline::default(),
            processes: BTreeMap::new(),
            orders: [0.0; ORDERS],
        }
    }

    /// Puts what was accessed in the next epoch, and what was only there, in place of what
    /// is in `out`. Returns how many seconds it lasted; `None` at the end.
    ///
    /// # Errors
    /// When the recording cannot be read.
    pub fn next_epoch(&mut self, out: &mut Vec<Accessed>) -> Result<Option<f64>, RecordError> {
        out.clear();
        let Some(epoch) = self.replay.next_epoch()? else {
            return Ok(None);
        };
        let stretch = (self.time).next(epoch.run, epoch.seen.at, epoch.seen.cost.elapsed);
        let rates = epoch.engine.rates();
        let mut is_one_too_many = false;
        for target in &epoch.seen.targets {
            let known = self.processes.len();
            let who = (target.pid, Arc::clone(&target.name));
            let process = *self
                .processes
                .entry(who)
                .or_insert_with(|| u16::try_from(known).unwrap_or(u16::MAX));
            is_one_too_many |= self.processes.len() > PROCESSES_MOST;
            let Some(map) = epoch.engine.regions(target.id) else {
                continue;
            };
            for region in map.regions() {
                let range = region.range();
                if let Some(per_page) = per_page(region, rates) {
                    if region.is_fresh() {
                        let order = (region.folio_bytes() / PAGE_BYTES).trailing_zeros() as usize;
                        self.orders[order.min(ORDERS - 1)] += range.bytes().as_f64();
                    }
                    out.push(Accessed {
                        process,
                        range,
                        per_page,
                    });
                }
            }
        }
        if is_one_too_many {
            return Err(self.replay.frames.refused(TOO_MANY));
        }
        Ok(Some(stretch.to.saturating_sub(stretch.from).as_secs_f64()))
    }

    /// The size of folio that most of what was told so far is made of, as log2 of pages; of
    /// equals the smallest.
    pub fn order(&self) -> u8 {
        let orders: Vec<(u8, f64)> = (0..).zip(self.orders).collect();
        let most = orders.into_iter().rev().max_by(|a, b| a.1.total_cmp(&b.1));
        most.map_or(0, |(order, _)| order)
    }

    /// What to know of the recording: a sentence each.
    pub fn notes(&self) -> Vec<String> {
        super::notes(self.replay.torn(), self.replay.other_version())
    }
}

/// Touches of each page; `None` if it is held to be no memory.
fn per_page(region: &Region, rates: &Rates) -> Option<f64> {
    let touches = if region.is_known() {
        region.per_page(rates.of(f64::from(region.hotness())))
    } else {
        0.0
    };
    let is_there = touches > 0.0 || region.pages().total() * 2 >= region.range().pages();
    is_there.then_some(touches)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiering::settings::LookRule;
    use crate::tiering::windows::SPAN;
    use crate::units::{NodeId, VirtAddr};

    /// Of 1000 pages, so many of them present.
    fn region(hotness: f32, present: u64) -> Region {
        let range = PageRange::new(VirtAddr(0), VirtAddr(1000 * PAGE_BYTES)).unwrap();
        Region::for_test(range, hotness, &[(NodeId(0), present)])
    }

    #[test]
    fn a_count_stands_for_a_rate() {
        let rates = Rates::new(SPAN, 3, LookRule::Repeated);
        let of = |hotness| per_page(&region(hotness, 1000), &rates).unwrap();
        // One window in three, two, all of them: ever more than in proportion.
        assert!((of(1.0) / rates.of(1.0) - 1.0).abs() < 1e-9);
        assert!(of(0.0) <= 0.0 && of(2.0) > 2.0 * of(1.0) && of(3.0) > 50.0);
    }

    #[test]
    fn what_is_mostly_absent_and_never_accessed_is_no_memory() {
        let rates = Rates::new(SPAN, 3, LookRule::Repeated);
        assert_eq!(per_page(&region(0.0, 499), &rates), None);
        assert_eq!(per_page(&region(0.0, 500), &rates), Some(0.0));
        assert!(per_page(&region(0.5, 0), &rates).is_some());
    }
}
