//! What the page maps of all targets say of the samples, read in spans.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::pagemap::{self, Entry, Pagemap, Pfn};
use super::root::Root;
use super::sharers::{Asked, Sharers};
use crate::ports::Sharing;
use crate::tiering::observation::{Sample, TargetId};
use crate::units::Pid;

/// Entries of a page map between two samples that are read rather than
/// skipped: 16 cost about as much as another call (27-60 ns each).
const MAX_GAP: u64 = 16;
/// Entries read by one call at most: 64 KiB of buffer.
const MAX_SPAN: u64 = 8192;

/// A target's page map.
#[derive(Debug)]
struct Map {
    pid: Pid,
    /// `None`: could not be opened, or its address space is gone.
    open: Option<Pagemap>,
    used: bool,
}

/// The samples with their entries. Page maps stay open for as long as their
/// target has samples.
#[derive(Debug)]
pub(super) struct Frames {
    root: Root,
    maps: BTreeMap<TargetId, Map>,
    samples: Vec<Sample>,
    entries: Vec<Entry>,
    /// The samples that are being read.
    wanted: Vec<usize>,
    span: Vec<Entry>,
    via: Vec<usize>,
    sharers: Sharers,
    asked: Asked,
    /// Of pages of a pool that several map, whether nobody outside of it does.
    own: HashMap<(TargetId, Pfn), bool>,
}

impl Frames {
    pub(super) fn new(root: &Root) -> Self {
        Self {
            root: root.clone(),
            maps: BTreeMap::new(),
            samples: Vec::new(),
            entries: Vec::new(),
            wanted: Vec::new(),
            span: Vec::new(),
            via: Vec::new(),
            sharers: Sharers::new(root),
            asked: Asked::Several,
            own: HashMap::new(),
        }
    }

    /// Of a pool only what the process has by which it is known: the sampler sees no other's
    /// accesses.
    pub(super) fn of_one(root: &Root) -> Self {
        Self {
            asked: Asked::First,
            ..Self::new(root)
        }
    }

    pub(super) fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// One entry per sample, as read last; empty ones where nothing is mapped
    /// or the process has ended.
    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// What is shared from now on.
    pub(super) fn relate(&mut self, sharing: &Sharing) {
        self.sharers.relate(sharing);
        self.own.clear();
    }

    /// Whether somebody maps the page behind a sample who is not of its target. What was found
    /// of a page holds for as long as the samples stay.
    pub(super) fn is_shared(&mut self, index: usize) -> bool {
        let (sample, entry) = (self.samples[index], self.entries[index]);
        let Some(pfn) = entry.pfn().filter(|_| !entry.exclusive()) else {
            return !entry.exclusive();
        };
        let sharers = &mut self.sharers;
        !*self.own.entry((sample.target, pfn)).or_insert_with(|| {
            let mut own = Vec::new();
            sharers.find_own(sample.target, sample.addr.page_index(), &[entry], &mut own);
            own == [true]
        })
    }

    /// Takes the sample set over; `false` when it is the one at hand. Page maps
    /// of targets no longer in it are closed, those that had ended are tried
    /// anew: the target may run another program.
    pub(super) fn adopt(&mut self, samples: &[Sample]) -> bool {
        if self.samples == samples {
            return false;
        }
        self.samples.clear();
        self.samples.extend_from_slice(samples);
        self.own.clear();
        self.sharers.let_go();
        for map in self.maps.values_mut() {
            map.used = false;
        }
        let mut last = None;
        for sample in samples {
            if last == Some(sample.target) {
                continue;
            }
            last = Some(sample.target);
            let map = self.maps.entry(sample.target).or_insert(Map {
                pid: sample.pid,
                open: None,
                used: true,
            });
            map.used = true;
            if map.open.is_none() || map.pid != sample.pid {
                map.pid = sample.pid;
                map.open = open_map(&self.root, sample.pid);
            }
        }
        self.maps.retain(|_, map| map.used);
        true
    }

    /// Of a sample that had this entry a moment ago nothing is read.
    pub(super) fn keep(&mut self, index: usize, entry: Entry) {
        self.entries.resize(self.samples.len(), Entry::default());
        if let Some(place) = self.entries.get_mut(index) {
            *place = entry;
        }
    }

    /// Reads all entries anew.
    pub(super) fn locate(&mut self) {
        self.locate_where(|_| true);
    }

    /// Reads the entries of these samples anew; those of the others are as they were.
    pub(super) fn locate_where(&mut self, is_wanted: impl Fn(usize) -> bool) {
        self.entries.resize(self.samples.len(), Entry::default());
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.clear();
        wanted.extend((0..self.samples.len()).filter(|&i| is_wanted(i)));
        let mut rest = &wanted[..];
        while !rest.is_empty() {
            let (span, others) = rest.split_at(span_end(&self.samples, rest));
            self.read(span);
            rest = others;
        }
        self.wanted = wanted;
    }

    /// Reads the entries of these samples, which lie near each other, by one call.
    fn read(&mut self, span: &[usize]) {
        let (Some(&begin), Some(&end)) = (span.first(), span.last()) else {
            return;
        };
        let first = self.samples[begin].addr.page_index();
        // Samples come sorted, so the last is the highest.
        let pages = self.samples[end].addr.page_index() - first + 1;
        let pages = usize::try_from(pages).unwrap_or(0);
        let target = self.samples[begin].target;
        let mut count = 0;
        self.span.clear();
        self.span.resize(pages, Entry::default());
        if self.sharers.is_pool(target) {
            let (span, via) = (&mut self.span, &mut self.via);
            self.sharers.gather(target, first, self.asked, span, via);
            count = pages;
        } else if let Some(map) = self.maps.get_mut(&target)
            && let Some(open) = &map.open
        {
            // One process's trouble is not the others': its samples are unknown.
            count = open
                .read_into(first, &mut self.span)
                .inspect_err(|e| {
                    tracing::debug!(pid = %map.pid, error = %e, "reading its page map");
                })
                .unwrap_or(0);
            if count == 0 {
                map.open = None;
            }
            self.sharers.hide(map.pid, first, &mut self.span[..count]);
        }
        for &index in span {
            let at = self.samples[index].addr.page_index() - first;
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            self.entries[index] = self.span[..count].get(at).copied().unwrap_or_default();
        }
    }
}

/// The index ranges of samples of one target each.
pub(super) fn by_target(samples: &[Sample]) -> impl Iterator<Item = Range<usize>> {
    let mut begin = 0;
    std::iter::from_fn(move || {
        let first = samples.get(begin)?;
        let count = samples[begin..]
            .iter()
            .take_while(|sample| sample.target == first.target)
            .count();
        let range = begin..begin + count;
        begin += count;
        Some(range)
    })
}

/// How many of these samples, from the first on, one read of a page map serves.
fn span_end(samples: &[Sample], indices: &[usize]) -> usize {
    let near = |a: &Sample, b: &Sample| {
        let (before, page) = (a.addr.page_index(), b.addr.page_index());
        b.target == a.target && page >= before && page - before <= MAX_GAP
    };
    let Some(&begin) = indices.first() else {
        return 0;
    };
    let first = samples[begin].addr.page_index();
    let more = indices.windows(2).take_while(|pair| {
        let (last, next) = (&samples[pair[0]], &samples[pair[1]]);
        near(last, next) && next.addr.page_index() - first < MAX_SPAN
    });
    1 + more.count()
}

fn open_map(root: &Root, pid: Pid) -> Option<Pagemap> {
    match Pagemap::open(root, pid) {
        Ok(map) => Some(map),
        Err(e) => {
            if !pagemap::is_gone(&e) {
                tracing::warn!(%pid, error = %e, "cannot open the page map: nothing will be seen of this process");
            }
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{PAGE_BYTES, VirtAddr};
    use std::fs;

    fn sample(target: u32, page: u64) -> Sample {
        Sample {
            target: TargetId(target),
            pid: Pid(i32::try_from(target).unwrap() + 100),
            addr: VirtAddr(page * PAGE_BYTES),
        }
    }

    #[test]
    fn near_samples_share_a_read_and_far_ones_do_not() {
        let samples = [
            sample(1, 10),
            sample(1, 10 + MAX_GAP),
            sample(1, 11 + 2 * MAX_GAP),
            sample(2, 12 + 2 * MAX_GAP),
        ];
        let end = |indices: &[usize]| span_end(&samples, indices);
        assert_eq!(end(&[0, 1, 2, 3]), 2, "a gap one page too wide");
        assert_eq!(end(&[2, 3]), 1, "another target");
        assert_eq!(end(&[3]), 1);
        assert_eq!(end(&[0, 2]), 1, "what is between is not wanted");
        let dense: Vec<_> = (0..2 * MAX_SPAN).map(|page| sample(1, page)).collect();
        let all: Vec<usize> = (0..dense.len()).collect();
        assert_eq!(span_end(&dense, &all) as u64, MAX_SPAN);
    }

    #[test]
    fn each_sample_gets_its_own_entry() {
        let dir = tempfile::tempdir().unwrap();
        for pid in [101, 102] {
            let proc = dir.path().join(format!("proc/{pid}"));
            fs::create_dir_all(&proc).unwrap();
            let entries: Vec<u8> = (0..100_u64)
                .flat_map(|page| (1 << 63 | (pid * 1000 + page)).to_ne_bytes())
                .collect();
            fs::write(proc.join("pagemap"), entries).unwrap();
        }
        let mut frames = Frames::new(&Root::at(dir.path()));
        // 100 is past the end of the address space, target 3 does not exist.
        let pages = [(1, 0), (1, 5), (1, 60), (1, 99), (1, 100), (2, 7), (3, 7)];
        let samples: Vec<_> = pages.iter().map(|&(t, p)| sample(t, p)).collect();
        assert!(frames.adopt(&samples));
        frames.locate();
        let pfns: Vec<_> = frames
            .entries()
            .iter()
            .map(|e| e.pfn().map(|p| p.0))
            .collect();
        let want = [101_000, 101_005, 101_060, 101_099].map(Some);
        assert_eq!(pfns[..4], want);
        assert_eq!(pfns[4..], [None, Some(102_007), None]);
        assert!(!frames.adopt(&samples));
        assert!(frames.adopt(&samples[..1]));
        assert_eq!(frames.maps.len(), 1, "the maps of the others are closed");
    }
}
