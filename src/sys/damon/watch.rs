//! What is watched of the samples: in which addresses, by which target of the kdamond.

use std::ops::Range;

use super::sysfs::Regions;
use crate::ports::SamplerKind;
use crate::sys::pagemap::Entry;
use crate::tiering::observation::Sample;
use crate::units::{PAGE_BYTES, Pid};

/// Which addresses DAMON is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Those of processes: it walks their page tables.
    Virtual,
    /// Those of page frames: it looks up who maps each (its reverse mapping).
    Physical,
}

impl Space {
    /// The kernel's name of its operations.
    pub(super) fn operations(self) -> &'static str {
        match self {
            Self::Virtual => "fvaddr",
            Self::Physical => "paddr",
        }
    }

    /// The sampler that it makes.
    pub(super) fn kind(self) -> SamplerKind {
        match self {
            Self::Virtual => SamplerKind::Damon,
            Self::Physical => SamplerKind::DamonPaddr,
        }
    }

    /// What the kernel must have been built with.
    pub(super) fn config(self) -> &'static str {
        match self {
            Self::Virtual => "CONFIG_DAMON_VADDR=y",
            Self::Physical => "CONFIG_DAMON_PADDR=y",
        }
    }

    /// What a verdict means.
    pub(in crate::sys) fn resolution(self) -> &'static str {
        match self {
            Self::Virtual => {
                "a folio is seen accessed if its page table was walked for it in the scan; at most \
                 8192 samples a scan"
            }
            Self::Physical => {
                "a folio is seen accessed if any process that maps it had a page table walked for \
                 it in the scan; at most 8192 samples a scan"
            }
        }
    }
}

/// What one target of the kdamond watches: a process, or of [`Space::Physical`] all of
/// them.
#[derive(Debug)]
pub(super) struct Watch {
    /// The process; `None` in physical addresses.
    pub(super) pid: Option<Pid>,
    /// Its samples.
    pub(super) samples: Range<usize>,
    /// The addresses of the pages that are watched, sorted.
    pub(super) pages: Vec<u64>,
    /// The same in the kernel's files.
    pub(super) regions: Regions,
    /// How often each page was seen accessed since the kdamond was started.
    pub(super) counts: Vec<u32>,
    /// What was told of each page in this scan: whether it was accessed.
    pub(super) told: Vec<Option<bool>>,
}

impl Watch {
    /// Watches nothing yet.
    pub(super) fn new(regions: Regions) -> Self {
        Self {
            pid: None,
            samples: 0..0,
            pages: Vec::new(),
            regions,
            counts: Vec::new(),
            told: Vec::new(),
        }
    }

    /// Watches these pages from now on, in any order, of which nothing was told yet.
    pub(super) fn set(&mut self, samples: Range<usize>, mut pages: Vec<u64>) {
        pages.sort_unstable();
        pages.dedup();
        self.samples = samples;
        self.counts.clear();
        self.counts.resize(pages.len(), 0);
        self.told.clear();
        self.told.resize(pages.len(), None);
        self.pages = pages;
    }

    /// What was told of the page at this address in this scan.
    pub(super) fn verdict(&self, page: u64) -> Option<bool> {
        let index = self.pages.binary_search(&page).ok()?;
        self.told[index]
    }
}

/// Where DAMON finds a sample: `None` where it has no page frame to look at.
pub(super) fn address(space: Space, sample: &Sample, entry: Entry) -> Option<u64> {
    match space {
        Space::Virtual => Some(sample.addr.page().0),
        Space::Physical => entry.pfn().map(|pfn| pfn.0 * PAGE_BYTES),
    }
}
