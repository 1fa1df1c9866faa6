//! What scans see, and what they cost.

use super::{Machine, Touch};
use crate::tiering::observation::Seen;
use crate::tiering::rng::Rng;
use crate::tiering::writes::WRITE_FAULT;
use crate::units::{Nanos, NodeId, PAGE_BYTES, Pid, VirtAddr};

/// Accesses expected beyond which there was one: e^-40 is below what is drawn.
const CERTAIN: f64 = 40.0;

impl Machine {
    /// Has a process forget what it wrote, and how long that took; `None` when it has ended.
    pub(in crate::sim) fn forget_written(&mut self, pid: Pid) -> Option<Nanos> {
        self.settle();
        let count = self.costs.count;
        let process = self.processes.iter_mut().find(|p| p.pid == pid)?;
        let mut took = Nanos::ZERO;
        if let Touch::Program(program) = &mut process.touch {
            let folios = program.folios().0 as u64;
            let faults = program.forget_written() * WRITE_FAULT.as_secs_f64();
            program.hold(faults / program.threads());
            took = Nanos(count.0 * folios);
            self.charge(took);
        }
        Some(took)
    }

    /// A scan begins or ends: programs have run until now.
    pub(in crate::sim) fn look_up(&mut self) {
        self.settle();
    }

    /// Whether a page was accessed in the window that ends now, or since it had so many
    /// touches; draws.
    pub(in crate::sim) fn look(
        &mut self,
        pid: Pid,
        addr: VirtAddr,
        window: Nanos,
        before: Option<f64>,
    ) -> Look {
        self.charge(self.costs.scan);
        let nothing = Look {
            seen: Seen::Unknown,
            is_written: false,
            order: self.order,
            node: None,
        };
        let Some(at) = self.owner(pid, addr) else {
            return nothing;
        };
        let process = &mut self.processes[at];
        let mut wrote = 0.0;
        let (node, order, expected) = match &process.touch {
            Touch::Rate(rate) => {
                let Some(node) = self.pages.get(&pid).and_then(|e| e.node(addr.page_index()))
                else {
                    return nothing;
                };
                let folio = addr.align_down(PAGE_BYTES << self.order);
                let expected = rate(folio, self.now) * window.as_secs_f64();
                (node, self.order, Some(expected))
            }
            Touch::Program(program) => {
                let order = program.order();
                let folio = process.folio(order, addr.page_index());
                let node = self.ids[usize::from(program.node_of(folio))];
                // Not armed: nothing is known of it.
                let expected = before.map(|before| program.touches(folio) - before);
                if program.tells_written() {
                    wrote = expected.map_or(0.0, |touches| program.is_written(folio, touches));
                }
                (node, order, expected)
            }
        };
        let mut seen = Seen::Unknown;
        if let Some(expected) = expected {
            // Poisson: none in the window with probability e^(-expected).
            let draw = draw(&mut self.rng);
            let accessed = expected > CERTAIN || draw >= (-expected).exp();
            seen = if accessed && !self.blind {
                Seen::Accessed
            } else {
                Seen::Idle
            };
        }
        if seen == Seen::Accessed
            && let Touch::Program(program) = &mut process.touch
        {
            program.hold(self.costs.accessed.as_secs_f64() / program.threads());
        }
        // Nothing is drawn where nobody asks: the same seed, the same run.
        let is_written = wrote > 0.0
            && seen == Seen::Accessed
            && draw(&mut self.rng) * probability(expected) < wrote;
        Look {
            seen,
            is_written,
            order,
            node: Some(node),
        }
    }
}

/// A number from 0 to 1.
fn draw(rng: &mut Rng) -> f64 {
    rng.next_u64() as f64 / u64::MAX as f64
}

/// With which probability there was any of so many that are expected.
fn probability(expected: Option<f64>) -> f64 {
    expected.map_or(0.0, |expected| -(-expected).exp_m1())
}

/// What a look at a page told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) struct Look {
    pub(in crate::sim) seen: Seen,
    /// Whether that was a write, of programs that were to forget what they wrote.
    pub(in crate::sim) is_written: bool,
    /// Of its folio, as log2 of pages.
    pub(in crate::sim) order: u8,
    pub(in crate::sim) node: Option<NodeId>,
}
