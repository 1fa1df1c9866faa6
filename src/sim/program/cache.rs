//! The last-level cache in front of a program: Che's approximation.

use super::{LINE, Program};

/// Folios by which the time is estimated that a cache takes to be filled anew.
const CACHE_SAMPLE: usize = 8192;
/// Halvings until that time is known.
const CACHE_HALVINGS: u32 = 40;
/// Touches of a line, while the cache is filled anew, from which on none of them misses.
const ALWAYS_CACHED: f64 = 40.0;

impl Program {
    /// What of the accesses the last-level cache lets through.
    #[allow(clippy::cast_possible_truncation)]
    pub(super) fn filter(&mut self) {
        let lines = self.workload.folio.as_f64() / LINE;
        let time = self.cache_time(lines);
        for part in &self.parts {
            let (touched, missed) = (
                &self.touched[part.first..part.end],
                &mut self.missed[part.first..part.end],
            );
            if part.cached && time.is_finite() {
                for (missed, touched) in missed.iter_mut().zip(touched) {
                    let touched = f64::from(*touched);
                    let again = touched / lines * time;
                    // Most of the time goes into exponentials: of few.
                    *missed = if again > ALWAYS_CACHED {
                        0.0
                    } else {
                        (touched * (-again).exp()) as f32
                    };
                }
            } else if part.cached {
                missed.fill(0.0);
            } else {
                missed.copy_from_slice(touched);
            }
        }
    }

    /// Accesses in which the cache is filled anew; infinite if all of it fits.
    fn cache_time(&self, lines: f64) -> f64 {
        let cached: Vec<(usize, usize)> = self
            .parts
            .iter()
            .filter(|part| part.cached)
            .map(|part| (part.first, part.end))
            .collect();
        let folios: usize = cached.iter().map(|(first, end)| end - first).sum();
        if folios == 0 || folios as f64 * lines <= self.cache_lines {
            return f64::INFINITY;
        }
        let stride = folios.div_ceil(CACHE_SAMPLE);
        let sample: Vec<f64> = cached
            .iter()
            .flat_map(|&(first, end)| first..end)
            .step_by(stride)
            .map(|folio| f64::from(self.touched[folio]) / lines)
            .collect();
        let each = lines * folios as f64 / sample.len() as f64;
        let filled = |time: f64| {
            let shares = sample.iter().map(|rate| 1.0 - (-rate * time).exp());
            shares.sum::<f64>() * each
        };
        // Between one access and more than any line waits for its next.
        let (mut low, mut high) = (0.0_f64, 120.0_f64);
        for _ in 0..CACHE_HALVINGS {
            let middle = f64::midpoint(low, high);
            if filled(middle.exp2()) > self.cache_lines {
                high = middle;
            } else {
                low = middle;
            }
        }
        low.exp2()
    }
}
