//! Precision, recall and order of what is held to be hot.

use hmkeeper::units::PageRange;

/// A stretch of addresses and how hot it is held to be, 0 to 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Belief {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) heat: f64,
}

/// What is true of a buffer: ranges with the accesses per second of each of their
/// pages. What is not named is cold.
#[derive(Clone, Debug)]
pub(crate) struct Truth {
    pub(crate) buffer: PageRange,
    pub(crate) rates: Vec<(PageRange, f64)>,
    /// From how many accesses per second on a page is hot.
    pub(crate) hot: f64,
}

/// One epoch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Score {
    pub(crate) precision: f64,
    pub(crate) recall: f64,
    pub(crate) f1: f64,
    /// Spearman's rank correlation of heats and rates; `None` where all of either
    /// are equal.
    pub(crate) order: Option<f64>,
}

/// Bytes, heat, rate.
type Piece = (f64, f64, f64);

/// The buffer cut where a belief or the truth changes; what nothing is believed
/// of is held to be cold.
fn pieces(truth: &Truth, beliefs: &[Belief]) -> Vec<Piece> {
    let (low, high) = (truth.buffer.start().0, truth.buffer.end().0);
    let mut cuts = vec![low, high];
    cuts.extend(beliefs.iter().flat_map(|b| [b.start, b.end]));
    let ends = |(range, _): &(PageRange, f64)| [range.start().0, range.end().0];
    cuts.extend(truth.rates.iter().flat_map(ends));
    cuts.retain(|cut| (low..=high).contains(cut));
    cuts.sort_unstable();
    cuts.dedup();
    let mut rates = truth.rates.clone();
    rates.sort_unstable_by_key(|(range, _)| range.start());
    let mut beliefs = beliefs.to_vec();
    beliefs.sort_unstable_by_key(|b| b.start);
    cuts.windows(2)
        .map(|cut| {
            let b = beliefs.partition_point(|b| b.end <= cut[0]);
            let heat = beliefs.get(b).filter(|b| b.start <= cut[0]);
            let r = rates.partition_point(|(range, _)| range.end().0 <= cut[0]);
            let rate = rates.get(r).filter(|(range, _)| range.start().0 <= cut[0]);
            (
                (cut[1] - cut[0]) as f64,
                heat.map_or(0.0, |b| b.heat),
                rate.map_or(0.0, |&(_, rate)| rate),
            )
        })
        .collect()
}

pub(crate) fn score(truth: &Truth, beliefs: &[Belief], threshold: f64) -> Score {
    let pieces = pieces(truth, beliefs);
    let sum =
        |of: &dyn Fn(&Piece) -> bool| -> f64 { pieces.iter().filter(|p| of(p)).map(|p| p.0).sum() };
    let called = sum(&|p| p.1 >= threshold);
    let hot = sum(&|p| p.2 >= truth.hot);
    let hit = sum(&|p| p.1 >= threshold && p.2 >= truth.hot);
    let share = |of: f64| if of > 0.0 { hit / of } else { 0.0 };
    let (precision, recall) = (share(called), share(hot));
    let both = precision + recall;
    Score {
        precision,
        recall,
        f1: if both > 0.0 {
            2.0 * precision * recall / both
        } else {
            0.0
        },
        order: order(&pieces),
    }
}

/// Ranks by `of`, each piece as many equal ones as it has bytes, ties sharing
/// their mean.
fn ranks(pieces: &[Piece], of: impl Fn(&Piece) -> f64) -> Vec<f64> {
    let mut sorted: Vec<usize> = (0..pieces.len()).collect();
    sorted.sort_by(|&a, &b| of(&pieces[a]).total_cmp(&of(&pieces[b])));
    let mut ranks = vec![0.0; pieces.len()];
    let mut below = 0.0;
    for equals in sorted.chunk_by(|&a, &b| of(&pieces[a]).total_cmp(&of(&pieces[b])).is_eq()) {
        let bytes: f64 = equals.iter().map(|&i| pieces[i].0).sum();
        for &i in equals {
            ranks[i] = below + bytes / 2.0;
        }
        below += bytes;
    }
    ranks
}

fn order(pieces: &[Piece]) -> Option<f64> {
    let (x, y) = (ranks(pieces, |p| p.1), ranks(pieces, |p| p.2));
    let all: f64 = pieces.iter().map(|p| p.0).sum();
    let mean = all / 2.0;
    let (mut xy, mut xx, mut yy) = (0.0, 0.0, 0.0);
    for ((piece, x), y) in pieces.iter().zip(x).zip(y) {
        let (x, y) = (x - mean, y - mean);
        xy += piece.0 * x * y;
        xx += piece.0 * x * x;
        yy += piece.0 * y * y;
    }
    (xx > 0.0 && yy > 0.0).then(|| xy / (xx * yy).sqrt())
}

#[cfg(test)]
mod tests {
    use hmkeeper::units::VirtAddr;

    use super::*;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange::new(VirtAddr(start << 12), VirtAddr(end << 12)).unwrap()
    }

    #[test]
    fn scores_count_bytes() {
        let truth = Truth {
            buffer: range(0, 100),
            rates: vec![(range(10, 20), 5.0)],
            hot: 1.0,
        };
        let belief = |start: u64, end: u64, heat| Belief {
            start: start << 12,
            end: end << 12,
            heat,
        };
        // Half of what is hot, and as much that is not.
        let half = score(&truth, &[belief(15, 25, 1.0), belief(200, 300, 1.0)], 0.5);
        assert!((half.precision - 0.5).abs() < 1e-9 && (half.recall - 0.5).abs() < 1e-9);
        assert!((half.f1 - 0.5).abs() < 1e-9);
        let right = score(&truth, &[belief(0, 10, 0.1), belief(10, 20, 0.9)], 0.5);
        assert!((right.f1 - 1.0).abs() < 1e-9);
        let perfect = score(&truth, &[belief(10, 20, 0.9)], 0.5);
        assert!((perfect.order.unwrap() - 1.0).abs() < 1e-9);
        assert!(score(&truth, &[], 0.5).order.is_none());
    }
}
