//! Memory behind a cache that is memory itself (Optane's Memory Mode).
//!
//! **Unit.** Shares 0 to 1; accesses per line.
//!
//! **Approach.** The cache is direct-mapped: the lines of a folio share their places with
//! those of all folios that are a multiple of its size away, and the last to be touched is
//! there. Within a step accesses come at random: the first to a place finds what was there
//! before the step, each that follows its own line if that was the last before it, with the
//! probability of its share in the accesses to the place.

/// The cache, and what it holds.
#[derive(Clone, Debug)]
pub(super) struct Behind {
    /// The node that it is.
    pub(super) node: usize,
    /// Places for folios.
    places: usize,
    /// Share of each folio's lines that is there when the step begins.
    held: Vec<f32>,
}

impl Behind {
    /// An empty one with so many places, of at least one, for so many folios.
    pub(super) fn new(node: usize, places: usize, folios: usize) -> Self {
        Self {
            node,
            places: places.max(1),
            held: vec![0.0; folios],
        }
    }

    fn accesses_by_place(&self, accesses: &[f32]) -> Vec<f64> {
        let mut sums = vec![0.0; self.places];
        for (folio, accesses) in accesses.iter().enumerate() {
            sums[folio % self.places] += f64::from(*accesses);
        }
        sums
    }

    /// The share of the accesses to each folio that finds its line there, in a step with
    /// `per_line` accesses to a line of a folio that gets all of them.
    #[allow(clippy::cast_possible_truncation)]
    pub(super) fn hits(&self, accesses: &[f32], per_line: f64) -> Vec<f32> {
        let by_place = self.accesses_by_place(accesses);
        let hits = accesses.iter().enumerate().map(|(folio, mine)| {
            let all = by_place[folio % self.places];
            let held = f64::from(self.held[folio]);
            let count = all * per_line;
            if count <= 0.0 {
                return held as f32;
            }
            let first = -(-count).exp_m1() / count;
            (first * held + (1.0 - first) * f64::from(*mine) / all) as f32
        });
        hits.collect()
    }

    /// The step is over.
    #[allow(clippy::cast_possible_truncation)]
    pub(super) fn end_step(&mut self, accesses: &[f32], per_line: f64) {
        let by_place = self.accesses_by_place(accesses);
        for (folio, held) in self.held.iter_mut().enumerate() {
            let all = by_place[folio % self.places];
            if all > 0.0 {
                let stays = (-all * per_line).exp();
                let mine = f64::from(accesses[folio]) / all;
                *held = (stays * f64::from(*held) + (1.0 - stays) * mine) as f32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_shares_its_place_is_there_by_its_share() {
        let behind = Behind::new(0, 2, 4);
        let hits = behind.hits(&[0.6, 0.2, 0.2, 0.0], 1e6);
        assert!((hits[0] - 0.75).abs() < 1e-3, "{hits:?}");
        assert!((hits[2] - 0.25).abs() < 1e-3, "{hits:?}");
        assert!((hits[1] - 1.0).abs() < 1e-3, "{hits:?}");
    }

    #[test]
    fn what_comes_by_once_finds_nothing_there() {
        // Four folios go by two places, each line once.
        let mut behind = Behind::new(0, 2, 4);
        for turn in 0..8 {
            let mut accesses = [0.0_f32; 4];
            accesses[turn % 4] = 1.0;
            let hits = behind.hits(&accesses, 0.01);
            // The few that come twice.
            assert!(hits[turn % 4] < 0.02, "{hits:?}");
            behind.end_step(&accesses, 1e3);
        }
    }

    #[test]
    fn what_was_there_is_found_again() {
        let mut behind = Behind::new(0, 2, 4);
        behind.end_step(&[1.0, 0.0, 0.0, 0.0], 1e3);
        let hits = behind.hits(&[0.5, 0.0, 0.5, 0.0], 1e-3);
        assert!(hits[0] > 0.99 && hits[2] < 0.01, "{hits:?}");
    }
}
