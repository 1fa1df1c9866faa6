//! What a picture of a recording shows: hotness by address and time, and what follows from
//! it over time. Plain numbers; [`svg`](super::svg), [`html`](super::html) and
//! [`png`](super::png) draw them.
//!
//! **Unit.** Hotness as a share: of the scans of an epoch those that saw an access,
//! smoothed as the policy smooths it (0 to 1, whatever the number of scans was). Times are
//! the picture's ([`timeline`](super::timeline)). A cell holds byte·nanoseconds: how much
//! memory was watched there for how long.
//!
//! **Approach.** Time is cut into [`COLUMNS`] of one length; an epoch goes into all columns
//! that it touches, by its time in each. Addresses are cut into the rows of a
//! [`Layout`]; a region goes into all rows that it touches, by its bytes in each. So a cell
//! is a mean over its bytes and its time.
//!
//! **Bounds.** Columns, rows, tiers and targets have each a greatest number: the memory
//! needed does not depend on how long or how large a recording is.
//!
//! **Properties** (proptest below): all cells add up to all regions of all epochs, bytes as
//! well as hotness.

use std::sync::Arc;

use super::layout::Layout;
use super::timeline::Stretch;
use crate::units::{Bytes, Nanos, PageRange, Pid};

/// Columns of a picture.
pub const COLUMNS: usize = 960;
/// Tiers that are told apart; what is on others is shown as one.
const TIERS_MOST: usize = 8;
/// Their name.
const OTHER_TIERS: &str = "other tiers";

/// The columns of a time that begins at zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    span: Nanos,
}

impl Axis {
    /// Of so much time, at least a nanosecond for each column.
    pub fn new(span: Nanos) -> Self {
        Self {
            span: span.max(Nanos(COLUMNS as u64)),
        }
    }

    /// All of it.
    pub fn span(self) -> Nanos {
        self.span
    }

    /// When a column begins; that after the last: when the last one ends.
    #[allow(clippy::cast_possible_truncation)]
    pub fn start(self, column: usize) -> Nanos {
        // At most the span.
        let at = u128::from(self.span.0) * column.min(COLUMNS) as u128 / COLUMNS as u128;
        Nanos(at as u64)
    }

    /// Nanoseconds of each column that `stretch` touches.
    fn split(self, stretch: Stretch, mut to: impl FnMut(usize, f64)) {
        let column = u128::from(stretch.from.0) * COLUMNS as u128 / u128::from(self.span.0);
        let first = usize::try_from(column).unwrap_or(COLUMNS);
        for column in first..COLUMNS {
            let from = self.start(column).max(stretch.from);
            let until = self.start(column + 1).min(stretch.to);
            if from >= stretch.to {
                return;
            }
            if until > from {
                to(column, (until.0 - from.0) as f64);
            }
        }
    }
}

/// One cell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cell {
    /// Memory watched: byte·ns.
    pub watched: f64,
    /// The same times its hotness.
    pub hot: f64,
}

impl Cell {
    /// Mean hotness, 0 to 1; `None` where nothing was watched.
    pub fn hotness(self) -> Option<f64> {
        (self.watched > 0.0).then(|| (self.hot / self.watched).clamp(0.0, 1.0))
    }

    fn add(&mut self, other: Self, weight: f64) {
        self.watched += other.watched * weight;
        self.hot += other.hot * weight;
    }
}

/// What one epoch knows of a target beyond its regions: bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sizes<'a> {
    /// In regions whose hotness is at least half: the working set.
    pub hot: Bytes,
    /// That may be moved.
    pub eligible: Bytes,
    /// Present, by the tier's name.
    pub tiers: Vec<(&'a str, Bytes)>,
}

/// A quantity over time: its mean in each column, in bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Byte·ns.
    sums: Vec<f64>,
}

impl Default for Series {
    fn default() -> Self {
        Self {
            sums: vec![0.0; COLUMNS],
        }
    }
}

/// One target in the picture.
#[derive(Clone, Debug)]
pub struct TargetPicture {
    /// Its name.
    pub name: Arc<str>,
    /// Its process.
    pub pid: Pid,
    /// Which row is where.
    pub layout: Layout,
    axis: Axis,
    /// Row by row, the lowest addresses first.
    cells: Vec<Cell>,
    /// Nanoseconds of each column in which it was there.
    there: Vec<f64>,
    hot: Series,
    eligible: Series,
    /// By name, as they came.
    tiers: Vec<(String, Series)>,
    /// One epoch's rows: kept for its memory.
    rows: Vec<Cell>,
}

impl TargetPicture {
    /// Nothing of it yet.
    pub fn new(name: Arc<str>, pid: Pid, layout: Layout, axis: Axis) -> Self {
        let rows = layout.rows();
        Self {
            name,
            pid,
            axis,
            cells: vec![Cell::default(); rows * COLUMNS],
            there: vec![0.0; COLUMNS],
            hot: Series::default(),
            eligible: Series::default(),
            tiers: Vec::new(),
            rows: vec![Cell::default(); rows],
            layout,
        }
    }

    /// One epoch: its regions, ascending, with the hotness of each as a share, and sizes.
    pub fn add(
        &mut self,
        stretch: Stretch,
        regions: impl Iterator<Item = (PageRange, f64)>,
        sizes: &Sizes<'_>,
    ) {
        self.rows.fill(Cell::default());
        let mut from = 0;
        for (range, hotness) in regions {
            let rows = &mut self.rows;
            self.layout.split(range, &mut from, |row, bytes| {
                if let Some(cell) = rows.get_mut(row) {
                    cell.watched += bytes as f64;
                    cell.hot += bytes as f64 * hotness;
                }
            });
        }
        let tiers: Vec<(usize, f64)> = sizes
            .tiers
            .iter()
            .map(|(name, bytes)| (self.tier(name), bytes.as_f64()))
            .collect();
        let axis = self.axis;
        axis.split(stretch, |column, time| {
            self.there[column] += time;
            self.hot.sums[column] += sizes.hot.as_f64() * time;
            self.eligible.sums[column] += sizes.eligible.as_f64() * time;
            for &(tier, bytes) in &tiers {
                self.tiers[tier].1.sums[column] += bytes * time;
            }
            for (row, cell) in self.rows.iter().enumerate() {
                if cell.watched > 0.0 {
                    self.cells[row * COLUMNS + column].add(*cell, time);
                }
            }
        });
    }

    fn tier(&mut self, name: &str) -> usize {
        let at = |name: &str| self.tiers.iter().position(|(known, _)| known == name);
        let name = match at(name) {
            Some(tier) => return tier,
            None if self.tiers.len() + 1 < TIERS_MOST => name,
            None => OTHER_TIERS,
        };
        at(name).unwrap_or_else(|| {
            self.tiers.push((name.to_owned(), Series::default()));
            self.tiers.len() - 1
        })
    }

    /// The columns' times.
    pub fn axis(&self) -> Axis {
        self.axis
    }

    /// One cell; those beyond are empty.
    pub fn cell(&self, row: usize, column: usize) -> Cell {
        let index = row * COLUMNS + column;
        self.cells.get(index).copied().unwrap_or_default()
    }

    /// Several as one: half-open ranges of rows and columns.
    pub fn block(&self, rows: std::ops::Range<usize>, columns: std::ops::Range<usize>) -> Cell {
        let mut sum = Cell::default();
        for row in rows {
            for column in columns.clone() {
                sum.add(self.cell(row, column), 1.0);
            }
        }
        sum
    }

    fn means(&self, of: &Series) -> Vec<Option<f64>> {
        let pairs = of.sums.iter().zip(&self.there);
        pairs
            .map(|(sum, time)| (*time > 0.0).then(|| sum / time))
            .collect()
    }

    /// Bytes of the working set, by column; `None` while it was not watched.
    pub fn working_set(&self) -> Vec<Option<f64>> {
        self.means(&self.hot)
    }

    /// Bytes that may be moved, by column.
    pub fn eligible(&self) -> Vec<Option<f64>> {
        self.means(&self.eligible)
    }

    /// Bytes on each tier, by column.
    pub fn residency(&self) -> Vec<(&str, Vec<Option<f64>>)> {
        let tiers = self.tiers.iter();
        tiers
            .map(|(name, series)| (name.as_str(), self.means(series)))
            .collect()
    }
}

/// All that is drawn.
#[derive(Clone, Debug)]
pub struct Picture {
    /// The recording's name, for the title.
    pub file: String,
    /// The most memory over time first.
    pub targets: Vec<TargetPicture>,
    /// Epochs in it.
    pub epochs: u64,
    /// How often a daemon began.
    pub runs: u64,
    /// How long it is.
    pub axis: Axis,
    /// What is not in the picture, and what to know of it: a sentence each.
    pub notes: Vec<String>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::layout::Spread;
    use super::*;
    use crate::units::{PAGE_BYTES, VirtAddr};

    fn range(first: u64, pages: u64) -> PageRange {
        let at = |page: u64| VirtAddr(page * PAGE_BYTES);
        PageRange::new(at(first), at(first + pages)).unwrap()
    }

    fn picture(eligible: &[PageRange], span: Nanos) -> TargetPicture {
        let mut spread = Spread::default();
        spread.add(eligible);
        TargetPicture::new("t".into(), Pid(1), spread.layout(), Axis::new(span))
    }

    fn stretch(from: u64, to: u64) -> Stretch {
        Stretch {
            from: Nanos(from),
            to: Nanos(to),
        }
    }

    #[test]
    fn a_cell_is_the_mean_of_its_bytes_and_its_time() {
        // One row of two pages; columns of 10 ns.
        let rows = super::super::layout::ROWS as u64;
        let whole = range(0, 2 * rows);
        let mut picture = picture(&[whole], Nanos(10 * COLUMNS as u64));
        let sizes = |hot| Sizes {
            hot: Bytes(hot),
            eligible: Bytes(100),
            tiers: vec![("dram", Bytes(40)), ("cxl", Bytes(60))],
        };
        let halves = |low, high| [(range(0, 1), low), (range(1, 1), high)].into_iter();
        picture.add(stretch(0, 5), halves(1.0, 0.0), &sizes(10));
        picture.add(stretch(5, 25), halves(1.0, 1.0), &sizes(20));
        let of = |column| picture.cell(0, column).hotness();
        assert_eq!(of(0), Some(0.75));
        assert_eq!(of(1), Some(1.0));
        assert_eq!(of(2), Some(1.0));
        assert_eq!(of(3), None, "nobody watched");
        assert_eq!(picture.cell(1, 0).hotness(), None, "no region there");
        let watched = picture.cell(0, 2).watched;
        assert!((watched - 2.0 * 4096.0 * 5.0).abs() < 1e-6, "{watched}");
        let set = picture.working_set();
        assert_eq!(&set[..4], [Some(15.0), Some(20.0), Some(20.0), None]);
        let tiers = picture.residency();
        assert_eq!((tiers[0].0, tiers[0].1[1]), ("dram", Some(40.0)));
        assert_eq!((tiers[1].0, tiers[1].1[2]), ("cxl", Some(60.0)));
    }

    #[test]
    fn more_tiers_than_are_told_apart_are_one() {
        let mut picture = picture(&[range(0, 1)], Nanos(COLUMNS as u64));
        let names: Vec<String> = (0..20).map(|i| format!("tier{i}")).collect();
        let tiers = names.iter().map(|n| (n.as_str(), Bytes(1))).collect();
        let sizes = Sizes {
            tiers,
            ..Sizes::default()
        };
        picture.add(stretch(0, 5), std::iter::empty(), &sizes);
        let told = picture.residency();
        assert_eq!(told.len(), TIERS_MOST);
        assert_eq!(told[TIERS_MOST - 1].0, OTHER_TIERS);
        let all: f64 = told.iter().filter_map(|(_, s)| s[0]).sum();
        assert!((all - 20.0).abs() < 1e-9, "{all}");
    }

    proptest! {
        #[test]
        fn cells_add_up_to_all_regions_of_all_epochs(
            mappings in prop::collection::vec((1_u64..3000, 1_u64..3000), 1..8),
            epochs in prop::collection::vec(
                (1_u64..5_000_000, prop::collection::vec((1_u64..900, 0.0_f64..=1.0), 1..12)),
                1..20,
            ),
        ) {
            let mut at = 0;
            let mut eligible = Vec::new();
            for (gap, pages) in mappings {
                eligible.push(range(at + gap, pages));
                at += gap + pages;
            }
            let span: u64 = epochs.iter().map(|(time, _)| time).sum();
            let mut picture = picture(&eligible, Nanos(span));
            let (mut watched, mut hot, mut now) = (0.0, 0.0, 0);
            for (time, cuts) in &epochs {
                let mut regions = Vec::new();
                let mut turn = cuts.iter().cycle();
                for whole in &eligible {
                    let mut start = whole.start();
                    while start < whole.end() {
                        let (pages, hotness) = turn.next().unwrap();
                        let end = VirtAddr(start.0 + pages * PAGE_BYTES).min(whole.end());
                        regions.push((PageRange::new(start, end).unwrap(), *hotness));
                        start = end;
                    }
                }
                for (range, hotness) in &regions {
                    let part = range.bytes().as_f64() * *time as f64;
                    watched += part;
                    hot += part * hotness;
                }
                picture.add(stretch(now, now + time), regions.into_iter(), &Sizes::default());
                now += time;
            }
            let all = picture.block(0..picture.layout.rows(), 0..COLUMNS);
            // Where the time is shorter than the columns are many, all the same.
            prop_assert!((all.watched / watched - 1.0).abs() < 1e-9, "{} {}", all.watched, watched);
            prop_assert!((all.hot - hot).abs() <= 1e-9 * watched, "{} {}", all.hot, hot);
            let there: f64 = picture.there.iter().sum();
            prop_assert!((there - span as f64).abs() < 1e-3);
        }
    }
}
