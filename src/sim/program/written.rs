//! What a program writes, for who has it forgotten now and then.

use super::Program;

/// Touches of each folio when what was written before was forgotten.
#[derive(Clone, Debug)]
pub(super) struct Forgotten(Vec<f64>);

impl Program {
    /// Forgets what was written so far, so that the next write to each folio faults. Returns
    /// for how many that has happened since it last forgot; 0 the first time.
    pub fn forget_written(&mut self) -> f64 {
        let now: Vec<f64> = (0..self.node.len()).map(|at| self.touches(at)).collect();
        let faults = self.forgotten.as_ref().map_or(0.0, |Forgotten(before)| {
            let each = before.iter().zip(&now).enumerate();
            let faulted = |(folio, (before, now))| self.is_written(folio, now - before);
            each.map(faulted).sum::<f64>() * self.alike
        });
        self.forgotten = Some(Forgotten(now));
        faults
    }

    /// Whether it was ever asked to forget.
    pub fn tells_written(&self) -> bool {
        self.forgotten.is_some()
    }

    /// With which probability a folio that was touched so often was written.
    pub fn is_written(&self, folio: usize, touches: f64) -> f64 {
        let writes = self.parts[self.part_of(folio)].writes * touches;
        -(-writes).exp_m1()
    }
}
