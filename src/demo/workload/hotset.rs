//! Which pages the workload touches in a phase: pure, from a seed.
//!
//! Pages are counted from the buffer's start. A **class** is a set of pages of
//! one hotness, cut into chunks that lie scattered over the buffer on a grid of
//! slots; a slot holds one chunk at most. A new phase takes slots that the one
//! before did not use, so that nothing hot stays hot.

use std::collections::BTreeSet;
use std::time::Duration;

use super::random::Random;

/// How much of the buffer is touched, and how often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ClassSpec {
    /// Share of the buffer's pages, above 0 and at most 1.
    pub share: f64,
    /// Each page once in this time; `None`: swept all the time.
    pub period: Option<Duration>,
}

/// Where the pages of a class lie in each phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Layout {
    /// In chunks all over the buffer, in fresh places with each phase.
    #[default]
    Scattered,
    /// As one window, which goes on by half of itself with each phase.
    Sliding,
    /// At the buffer's start: half of its share at first, an eighth of it more with
    /// each phase, and from twice its share on an eighth less.
    Growing,
}

/// One class of one phase.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Class {
    /// As in its [`ClassSpec`].
    pub period: Option<Duration>,
    /// First page and number of pages of each chunk, ascending.
    pub chunks: Vec<(usize, usize)>,
    /// Every page of the chunks, in random order.
    pub order: Vec<u32>,
}

/// The buffer cannot hold what was asked.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{wanted} chunks of up to {chunk_pages} pages do not fit into {slots} slots of the buffer: \
     fewer or smaller chunks, or more bytes"
)]
pub(crate) struct NoRoom {
    wanted: usize,
    chunk_pages: usize,
    slots: usize,
}

/// `share` of `pages`, at least one.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a page count is a page count"
)]
pub(super) fn share_of(pages: usize, share: f64) -> usize {
    ((pages as f64 * share.clamp(0.0, 1.0)).round() as usize).clamp(1, pages)
}

/// Chooses the phases' pages, one phase after the other.
#[derive(Debug)]
pub(super) struct Chooser {
    pages: usize,
    specs: Vec<ClassSpec>,
    chunks: usize,
    slot_pages: usize,
    layout: Layout,
    phase: usize,
    used: BTreeSet<usize>,
    random: Random,
}

impl Chooser {
    /// For a buffer of `pages`, each class in `chunks` chunks that begin on
    /// multiples of `align_pages`.
    pub(super) fn new(
        pages: usize,
        specs: Vec<ClassSpec>,
        chunks: usize,
        align_pages: usize,
        seed: u64,
    ) -> Result<Self, NoRoom> {
        let chunk_pages = specs
            .iter()
            .map(|s| share_of(pages, s.share).div_ceil(chunks))
            .max()
            .unwrap_or(1);
        let slot_pages = chunk_pages.next_multiple_of(align_pages);
        let slots = pages / slot_pages;
        if slots < chunks * specs.len() {
            return Err(NoRoom {
                wanted: chunks * specs.len(),
                chunk_pages,
                slots,
            });
        }
        Ok(Self {
            pages,
            specs,
            chunks,
            slot_pages,
            layout: Layout::Scattered,
            phase: 0,
            used: BTreeSet::new(),
            random: Random::new(seed),
        })
    }

    /// The same with its first class, and that alone, laid out like this.
    pub(super) fn with_layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// The one window of a phase.
    fn window(&mut self, spec: ClassSpec) -> Class {
        let phase = self.phase;
        self.phase += 1;
        let size = share_of(self.pages, spec.share);
        let (first, size) = match self.layout {
            Layout::Growing => {
                // 4 to 16 eighths of the share, and back.
                let step = phase % 24;
                let eighths = 4 + step.min(24 - step);
                (0, (size * eighths / 8).clamp(1, self.pages))
            }
            Layout::Scattered | Layout::Sliding => (phase * (size / 2) % self.pages, size),
        };
        // A window over the end goes on at the start.
        let before = size.min(self.pages - first);
        let mut chunks = vec![(first, before)];
        if before < size {
            chunks.insert(0, (0, size - before));
        }
        self.class(spec, chunks)
    }

    fn class(&mut self, spec: ClassSpec, chunks: Vec<(usize, usize)>) -> Class {
        let mut order: Vec<u32> = chunks
            .iter()
            .flat_map(|&(first, count)| first..first + count)
            .map(|page| u32::try_from(page).unwrap_or(u32::MAX))
            .collect();
        self.random.shuffle(&mut order);
        Class {
            period: spec.period,
            chunks,
            order,
        }
    }

    /// The classes of the next phase.
    pub(super) fn next(&mut self) -> Vec<Class> {
        if self.layout != Layout::Scattered {
            let first = self.specs.first().copied();
            return first.map(|spec| self.window(spec)).into_iter().collect();
        }
        let slots = self.pages / self.slot_pages;
        let mut fresh: Vec<usize> = (0..slots).filter(|s| !self.used.contains(s)).collect();
        self.random.shuffle(&mut fresh);
        // Where the buffer is too small for all to be fresh, old ones come last.
        let mut old: Vec<usize> = self.used.iter().copied().collect();
        self.random.shuffle(&mut old);
        let mut free = fresh.into_iter().chain(old);
        self.used.clear();
        let mut classes = Vec::new();
        for spec in self.specs.clone() {
            let total = share_of(self.pages, spec.share);
            let mut slots: Vec<usize> = free.by_ref().take(self.chunks).collect();
            slots.sort_unstable();
            self.used.extend(&slots);
            let chunks: Vec<(usize, usize)> = slots
                .iter()
                .enumerate()
                // Sizes that add up to the class exactly.
                .map(|(i, slot)| {
                    let size = total * (i + 1) / self.chunks - total * i / self.chunks;
                    (slot * self.slot_pages, size)
                })
                .filter(|&(_, size)| size > 0)
                .collect();
            let class = self.class(spec, chunks);
            classes.push(class);
        }
        classes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOT: ClassSpec = ClassSpec {
        share: 0.1,
        period: None,
    };

    fn pages_of(classes: &[Class]) -> BTreeSet<u32> {
        classes.iter().flat_map(|c| c.order.clone()).collect()
    }

    #[test]
    fn a_tenth_in_64_chunks_jumps_to_fresh_pages() {
        // 1 GiB: 262144 pages, of which 26214 are hot, 409 or 410 a chunk.
        let mut chooser = Chooser::new(262_144, vec![HOT], 64, 1, 1).unwrap();
        let first = chooser.next();
        assert_eq!(first[0].chunks.len(), 64);
        assert_eq!(first[0].order.len(), 26_214);
        assert!(
            first[0]
                .chunks
                .iter()
                .all(|&(_, n)| (409..=410).contains(&n))
        );
        let before = pages_of(&first);
        assert_eq!(before.len(), 26_214, "no page twice");
        let after = pages_of(&chooser.next());
        assert!(before.is_disjoint(&after));
        // The third may come back to where the first was.
        assert!(after.is_disjoint(&pages_of(&chooser.next())));
    }

    #[test]
    fn windows_slide_and_grow() {
        let of = |layout| {
            let chooser = Chooser::new(1000, vec![HOT], 1, 1, 1).unwrap();
            let mut chooser = chooser.with_layout(layout);
            move || chooser.next().remove(0).chunks
        };
        let mut sliding = of(Layout::Sliding);
        assert_eq!(sliding(), [(0, 100)]);
        assert_eq!(sliding(), [(50, 100)]);
        for _ in 2..19 {
            sliding();
        }
        assert_eq!(sliding(), [(0, 50), (950, 50)]);
        assert_eq!(sliding(), [(0, 100)]);
        let mut growing = of(Layout::Growing);
        let sizes: Vec<usize> = (0..25).map(|_| growing()[0].1).collect();
        assert_eq!((sizes[0], sizes[1], sizes[12]), (50, 62, 200));
        assert_eq!((sizes[23], sizes[24]), (62, 50));
    }

    #[test]
    fn chunks_are_aligned_and_inside() {
        let mut chooser = Chooser::new(262_144, vec![HOT], 64, 512, 2).unwrap();
        for (first, count) in chooser.next().remove(0).chunks {
            assert!(first.is_multiple_of(512));
            assert!(first + count <= 262_144);
        }
    }

    #[test]
    fn classes_do_not_overlap() {
        let warm = ClassSpec {
            share: 0.2,
            period: Some(Duration::from_secs(1)),
        };
        let mut chooser = Chooser::new(100_000, vec![HOT, warm], 16, 1, 3).unwrap();
        for _ in 0..4 {
            let classes = chooser.next();
            assert_eq!(classes[0].order.len(), 10_000);
            assert_eq!(classes[1].order.len(), 20_000);
            assert_eq!(pages_of(&classes).len(), 30_000);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let spec = ClassSpec {
            share: 0.6,
            period: None,
        };
        let error = Chooser::new(1000, vec![spec, spec], 4, 1, 0).unwrap_err();
        assert!(error.to_string().contains("8 chunks"), "{error}");
    }

    #[test]
    fn a_seed_repeats() {
        let run = |seed| {
            let mut chooser = Chooser::new(4096, vec![HOT], 8, 1, seed).unwrap();
            (chooser.next(), chooser.next())
        };
        assert_eq!(run(5), run(5));
        assert_ne!(run(5), run(6));
    }
}
