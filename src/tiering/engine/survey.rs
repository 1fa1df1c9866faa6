//! What the regions of a target come to: what of it lies where, how hot.

use crate::tiering::region::Region;
use crate::tiering::windows::Rates;
use crate::units::{Bytes, NodeId};

/// Counts are told apart in so many steps.
const STEPS: usize = 64;
/// Of the scans: a count beyond that may stand for any rate.
const NEARLY_ALL: f64 = 0.9;

/// See the module. Added up region by region, in the pass that looks for hit rates.
#[derive(Clone, Debug)]
pub(super) struct Survey {
    scans: u8,
    epoch: u64,
    /// Pages on each node.
    pages_on: Vec<(NodeId, u64)>,
    /// Bytes by their average count, and pages of 4 KiB that are accessed as often as that says: of
    /// a larger folio one in so many.
    by_count: Vec<Bytes>,
    accessed: Vec<f64>,
    pub(super) hot: Bytes,
    written: Option<f64>,
    pub(super) shared: Bytes,
    pub(super) kept: Bytes,
}

impl Survey {
    /// Of no region yet, in this epoch of so many scans.
    pub(super) fn new(scans: u8, epoch: u64) -> Self {
        Self {
            scans,
            epoch,
            pages_on: Vec::new(),
            by_count: vec![Bytes::ZERO; STEPS + 1],
            accessed: vec![0.0; STEPS + 1],
            hot: Bytes::ZERO,
            written: None,
            shared: Bytes::ZERO,
            kept: Bytes::ZERO,
        }
    }

    /// Adds a region.
    pub(super) fn add(&mut self, region: &Region) {
        for (node, pages) in region.pages().iter() {
            match self.pages_on.iter_mut().find(|(n, _)| *n == node) {
                Some((_, sum)) => *sum += pages,
                None => self.pages_on.push((node, pages)),
            }
        }
        let resident = region.resident();
        let step = step(region.hotness().into(), self.scans);
        self.by_count[step] += resident;
        self.accessed[step] += region.per_page(1.0) * resident.pages() as f64;
        if region.heat() >= f32::from(self.scans) / 2.0 {
            self.hot += resident;
        }
        if let Some(share) = region.written() {
            let bytes = f64::from(share) * resident.as_f64();
            self.written = Some(self.written.unwrap_or(0.0) + bytes);
        }
        self.shared += region.shared();
        self.kept += region.kept(self.epoch);
    }

    /// What lies anywhere.
    pub(super) fn resident(&self) -> Bytes {
        Bytes::from_pages(self.pages_on.iter().map(|(_, pages)| pages).sum())
    }

    /// What lies on these nodes.
    pub(super) fn on(&self, nodes: &[NodeId]) -> Bytes {
        let there = self.pages_on.iter().filter(|(n, _)| nodes.contains(n));
        Bytes::from_pages(there.map(|(_, pages)| pages).sum())
    }

    /// What has an average count of this or more, to a step.
    pub(super) fn above(&self, count: f64) -> Bytes {
        let first = step(count, self.scans);
        self.by_count[first..].iter().copied().sum()
    }

    /// Which share of the accesses goes to folios that are accessed more often than that per
    /// epoch, or as often as counts can tell, to a step; `None` where nothing was seen accessed.
    pub(super) fn share_above(surveys: &[Self], rates: &Rates, rate: f64) -> Option<f64> {
        let (mut all, mut above) = (0.0, 0.0);
        for survey in surveys {
            let scans = f64::from(survey.scans);
            let least = rate.min(rates.of(NEARLY_ALL * scans));
            for (step, pages) in survey.accessed.iter().enumerate() {
                let each = rates.of(step as f64 / STEPS as f64 * scans);
                let accesses = each * pages;
                all += accesses;
                above += if each >= least { accesses } else { 0.0 };
            }
        }
        (all > 0.0).then(|| above / all)
    }

    /// What is written in an epoch, where that is known of any.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub(super) fn written(&self) -> Option<Bytes> {
        // `as` saturates, and a byte more or less is nothing.
        self.written.map(|bytes| Bytes(bytes as u64))
    }
}

/// The step of a count.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn step(count: f64, scans: u8) -> usize {
    // `as` saturates.
    ((count / f64::from(scans.max(1)) * STEPS as f64) as usize).min(STEPS)
}
