//! How long what is hot stays so: what plans would have gained, carried out or not.
//!
//! **Unit.** Epochs; worth is whatever the policy reckons with, per byte.
//!
//! **Problem.** A move is paid for once, and gains as long as what was moved is hotter than
//! what gave way to it. On a sweep that is less than an epoch, on a database for days, and
//! of noise it is never. Peers that do not ask lose to first-touch on some programs
//! (HM-Keeper §1.6).
//!
//! **Approach.** Of each plan some exchanges are remembered: a page that seems hot, the one
//! that would give way, and by how much the one is worth more. One, two, four and eight
//! epochs later both are looked up again, wherever they lie by then and whether or not they
//! were moved. What is left of what was promised, as a share by the epochs that passed, is
//! a curve that begins at one; its area is the number of epochs for which a move gains what
//! it promises. Beyond eight epochs it goes on falling as it did from the fourth to the
//! eighth. What is looked up is the last epoch's count alone, which did not make the page
//! seem hot: of noise nothing is left at once.
//!
//! **Properties** (tests below): the area is between none and the horizon; noise has none.

use std::collections::VecDeque;

use crate::tiering::observation::TargetId;
use crate::units::VirtAddr;

/// Epochs after which an exchange is looked up again.
const LAGS: [u64; 4] = [1, 2, 4, 8];
/// Epochs that each of these stands for, with those since the one before.
const SPANS: [f64; 4] = [1.0, 1.0, 2.0, 4.0];
/// Weight of what is known already when an epoch is added.
const KEPT: f64 = 0.8;
/// What is left of noise, at most: it counts as nothing.
const NOISE: f64 = 0.2;

/// An exchange that a plan holds to be worth while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Trade {
    /// A page that seems hot.
    pub(super) hot: (TargetId, VirtAddr),
    /// One that would give way, unless there is room.
    pub(super) cold: Option<(TargetId, VirtAddr)>,
    /// How much of it there is.
    pub(super) bytes: f64,
    /// By how much the one is worth more than the other.
    pub(super) promised: f64,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Lasting {
    plans: VecDeque<(u64, Vec<Trade>)>,
    /// What was promised and what was left of it after each of the [`LAGS`].
    promised: [f64; LAGS.len()],
    left: [f64; LAGS.len()],
}

impl Lasting {
    /// Remembers the exchanges of the plan of this epoch.
    pub(super) fn note(&mut self, epoch: u64, trades: Vec<Trade>) {
        self.plans.push_back((epoch, trades));
    }

    /// Looks up what is due in this epoch: `worth` of a page by its last count, `None`
    /// where that tells nothing.
    pub(super) fn follow(&mut self, epoch: u64, worth: impl Fn(TargetId, VirtAddr) -> Option<f64>) {
        while self
            .plans
            .front()
            .is_some_and(|(at, _)| at + LAGS[LAGS.len() - 1] < epoch)
        {
            self.plans.pop_front();
        }
        for (at, trades) in &self.plans {
            let Some(lag) = LAGS.iter().position(|lag| at + lag == epoch) else {
                continue;
            };
            let (mut promised, mut left) = (0.0, 0.0);
            for trade in trades {
                let cold = match trade.cold {
                    Some((target, addr)) => worth(target, addr),
                    None => Some(0.0),
                };
                let hot = worth(trade.hot.0, trade.hot.1);
                if let (Some(hot), Some(cold)) = (hot, cold) {
                    promised += trade.bytes * trade.promised;
                    left += trade.bytes * (hot - cold);
                }
            }
            if promised > 0.0 {
                self.promised[lag] = KEPT * self.promised[lag] + promised;
                self.left[lag] = KEPT * self.left[lag] + left;
            }
        }
    }

    /// What is left after each lag, as a share of what was promised: never more than
    /// before; where nothing was looked up yet as much.
    fn curve(&self) -> [f64; LAGS.len()] {
        let mut last = 1.0;
        std::array::from_fn(|lag| {
            if self.promised[lag] > 0.0 {
                let share = self.left[lag] / self.promised[lag];
                last = ((share - NOISE) / (1.0 - NOISE)).clamp(0.0, last);
            }
            last
        })
    }

    /// Epochs for which a move gains what it promises, at most `horizon`.
    pub(super) fn epochs(&self, horizon: u64) -> f64 {
        let curve = self.curve();
        let seen: f64 = curve
            .iter()
            .zip(SPANS)
            .map(|(left, span)| left * span)
            .sum();
        let [_, _, fourth, eighth] = curve;
        let rest = horizon.saturating_sub(LAGS[LAGS.len() - 1]) as f64;
        let tail = if eighth <= 0.0 {
            0.0
        } else {
            let each = (eighth / fourth).powf(1.0 / SPANS[3]);
            if each >= 1.0 {
                eighth * rest
            } else {
                eighth * each * (1.0 - each.powf(rest)) / (1.0 - each)
            }
        };
        (seen + tail).min(horizon as f64)
    }

    /// Whether most of what was promised is still there an epoch later.
    pub(super) fn holds(&self) -> bool {
        self.curve()[0] > 0.5
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: TargetId = TargetId(1);

    /// As it is after so many epochs in which page `epoch` seems hot and has this left of
    /// it after so many epochs.
    fn after(epochs: u64, left: impl Fn(u64) -> f64) -> Lasting {
        let mut lasting = Lasting::default();
        for epoch in 1..=epochs {
            lasting.follow(epoch, |_, addr| Some(left(epoch - addr.0)));
            let trade = Trade {
                hot: (ID, VirtAddr(epoch)),
                cold: None,
                bytes: 1.0,
                promised: 1.0,
            };
            lasting.note(epoch, vec![trade]);
        }
        lasting
    }

    #[test]
    fn what_stays_hot_gains_as_long_as_one_looks_ahead() {
        assert!((Lasting::default().epochs(64) - 64.0).abs() < 1e-9);
        let stays = after(20, |_| 1.0);
        assert!((stays.epochs(64) - 64.0).abs() < 1e-9);
        assert!(stays.holds());
    }

    #[test]
    fn what_is_gone_at_once_gains_nothing() {
        for left in [0.0, 0.1, -0.5] {
            let gone = after(20, |_| left);
            assert!(gone.epochs(64) <= 0.0 && !gone.holds(), "{left}");
        }
    }

    #[test]
    fn what_fades_gains_as_long_as_it_takes() {
        let fades = after(40, |age| 0.8_f64.powi(i32::try_from(age).expect("few")));
        // Its area is 4; a little less, for what is little counts as nothing.
        let epochs = fades.epochs(64);
        assert!((1.5..4.5).contains(&epochs), "{epochs}");
        let slower = after(40, |age| 0.95_f64.powi(i32::try_from(age).expect("few")));
        assert!(slower.epochs(64) > 2.0 * epochs);
    }

    #[test]
    fn a_page_of_which_nothing_is_told_says_nothing() {
        let mut lasting = Lasting::default();
        let trade = Trade {
            hot: (ID, VirtAddr(0)),
            cold: Some((ID, VirtAddr(1))),
            bytes: 1.0,
            promised: 1.0,
        };
        lasting.note(1, vec![trade]);
        lasting.follow(2, |_, addr| (addr.0 == 0).then_some(0.0));
        assert!(lasting.holds());
        lasting.follow(3, |_, _| Some(0.0));
        assert!((lasting.epochs(8) - 1.0).abs() < 1e-9);
    }
}
