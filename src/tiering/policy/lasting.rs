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
//! eighth. A plan counts by how much of what it might have moved it wanted to, beside the
//! one that wanted most in the eight epochs before: what is left to do when nearly all lies
//! where it should says little of what comes next. What is looked up is the last epoch's
//! count alone, which did not make the page seem hot: of noise nothing is left at once.
//!
//! For each target there is one curve for exchanges of what is much hotter, one for what is
//! hotter and one for what is a little hotter: where all lies where it should, what is left
//! to exchange is noise, and says nothing of a set that becomes hot tomorrow. Each begins
//! as if two plans had lasted, so that a first change does not end everything.
//!
//! **Properties** (tests below): the area is between none and the horizon; noise has none,
//! and says nothing of what is much hotter.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::tiering::observation::TargetId;
use crate::units::VirtAddr;

/// Epochs after which an exchange is looked up again.
const LAGS: [u64; 4] = [1, 2, 4, 8];
/// Epochs that each of these stands for, with those since the one before.
const SPANS: [f64; 4] = [1.0, 1.0, 2.0, 4.0];
/// Weight of what is known already when the plan that wanted most is added.
const KEPT: f64 = 0.8;
/// A plan that wanted less counts as if it had wanted this share of the one that wanted most.
const LEAST_SHARE: f64 = 0.125;
/// What is left of noise, at most: it counts as nothing.
const NOISE: f64 = 0.2;
/// Epochs for which a verdict on a plan is new.
const NEW_FOR: u64 = 2;
/// Plans that are held to have lasted before any was looked up.
const PRIOR: f64 = 2.0;

/// How much hotter one is than the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Margin {
    Small,
    Medium,
    Large,
}

impl Margin {
    /// All of them, each at its number.
    pub(super) const ALL: [Self; 3] = [Self::Small, Self::Medium, Self::Large];

    /// Of two counts, as a share of the scans.
    pub(super) fn of(difference: f32) -> Self {
        match difference {
            difference if difference >= 2.0 / 3.0 => Self::Large,
            difference if difference >= 1.0 / 3.0 => Self::Medium,
            _ => Self::Small,
        }
    }
}

/// An exchange that a plan holds to be worth while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Trade {
    /// A page that seems hot.
    pub(super) hot: (TargetId, VirtAddr),
    /// One that would give way, unless there is room.
    pub(super) cold: Option<(TargetId, VirtAddr)>,
    /// Bytes of the plan that it stands for.
    pub(super) bytes: f64,
    /// What the one is worth, and by how much more than the other.
    pub(super) worth: f64,
    pub(super) promised: f64,
    /// How much hotter it is.
    pub(super) margin: Margin,
    /// Whether the plan makes it, and not only thinks of it.
    pub(super) is_made: bool,
}

/// A plan, as far as it is remembered.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// Of which epoch.
    pub(super) epoch: u64,
    /// What it holds to be worth while.
    pub(super) trades: Vec<Trade>,
    /// Bytes that it might have moved.
    pub(super) allowed: f64,
    /// Whether it is to move so much that what is left of it says whether more would last.
    pub(super) is_telling: bool,
}

/// What became of what the last plans moved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Told {
    /// What was left of what was promised, as a share of it.
    pub(super) left: f64,
    /// The same of what seemed hot, whatever became of what gave way.
    pub(super) hot: f64,
    /// Looked up just now, or an epoch ago.
    pub(super) is_new: bool,
}

/// The exchanges of a plan.
#[derive(Clone, Debug)]
struct Noted {
    epoch: u64,
    is_telling: bool,
    /// Targets of which it moves something up.
    moves: HashSet<TargetId>,
    trades: Vec<Trade>,
    /// Shares of what might have been moved.
    wanted: HashMap<Kind, f64>,
    /// That by what the largest of it and of those eight epochs before it wanted.
    weights: HashMap<Kind, f64>,
}

/// What has a curve: a target, whose memory is the hotter one, and a margin.
type Kind = (TargetId, Margin);

impl Trade {
    fn kind(&self) -> Kind {
        (self.hot.0, self.margin)
    }
}

/// Bytes of a plan's exchanges, as shares of what it might have moved: a plan that may do
/// little does not say less for that.
fn wanted(trades: &[Trade], allowed: f64) -> HashMap<Kind, f64> {
    let mut wanted = HashMap::new();
    for trade in trades {
        *wanted.entry(trade.kind()).or_default() += trade.bytes / allowed;
    }
    wanted
}

/// What is left after each of the [`LAGS`].
#[derive(Clone, Copy, Debug)]
struct Curve {
    /// Plans that were looked up, older ones counting less, and the sum of the shares of
    /// what they promised that were left.
    plans: [f64; LAGS.len()],
    left: [f64; LAGS.len()],
}

impl Curve {
    /// Of a plan that wanted this share of what another one did, this is left of what it promised.
    fn learn(&mut self, lag: usize, share: f64, left: f64) {
        // Where all but a little lies where it should, that little says less.
        let weight = share.clamp(LEAST_SHARE, 1.0);
        let kept = KEPT.powf(weight);
        self.plans[lag] = kept * self.plans[lag] + weight;
        // Of more than was promised nothing is made up.
        self.left[lag] = kept * self.left[lag] + weight * left.clamp(-1.0, 1.0);
    }
}

impl Default for Curve {
    fn default() -> Self {
        Self {
            plans: [PRIOR; LAGS.len()],
            left: [PRIOR; LAGS.len()],
        }
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Lasting {
    plans: VecDeque<Noted>,
    /// Of each target of which anything was looked up.
    curves: HashMap<TargetId, Curves>,
    /// When the last telling plans were looked up an epoch later, and what was left of what
    /// they promised of the targets of which they moved something; the newest first.
    told: [Option<(u64, f64, f64)>; 2],
}

/// One for each margin.
type Curves = [Curve; Margin::ALL.len()];

impl Lasting {
    /// Remembers a plan's exchanges.
    pub(super) fn note(&mut self, plan: Plan) {
        let Plan {
            epoch,
            trades,
            allowed,
            is_telling,
        } = plan;
        let wanted = wanted(&trades, allowed);
        let weights = wanted.iter().map(|(kind, &bytes)| {
            let before = self.plans.iter().filter_map(|plan| plan.wanted.get(kind));
            (*kind, bytes / before.copied().fold(bytes, f64::max))
        });
        self.plans.push_back(Noted {
            epoch,
            is_telling,
            weights: weights.collect(),
            moves: (trades.iter().filter(|trade| trade.is_made))
                .map(|trade| trade.hot.0)
                .collect(),
            wanted,
            trades,
        });
    }

    /// Looks up what is due in this epoch: `worth` of a page by its last count, `None`
    /// where that tells nothing.
    pub(super) fn follow(&mut self, epoch: u64, worth: impl Fn(TargetId, VirtAddr) -> Option<f64>) {
        while self
            .plans
            .front()
            .is_some_and(|plan| plan.epoch + LAGS[LAGS.len() - 1] < epoch)
        {
            self.plans.pop_front();
        }
        for plan in &self.plans {
            let Some(lag) = LAGS.iter().position(|lag| plan.epoch + lag == epoch) else {
                continue;
            };
            let mut sums: HashMap<Kind, (f64, f64)> = HashMap::new();
            // Of the targets of which it moved something.
            let mut made = (0.0, 0.0);
            let mut stayed = (0.0, 0.0);
            for trade in &plan.trades {
                let cold = match trade.cold {
                    Some((target, addr)) => worth(target, addr),
                    None => Some(0.0),
                };
                let hot = worth(trade.hot.0, trade.hot.1);
                if let (Some(hot), Some(cold)) = (hot, cold) {
                    let (promised, left) = sums.entry(trade.kind()).or_default();
                    let of_trade = [trade.promised, hot - cold].map(|worth| trade.bytes * worth);
                    *promised += of_trade[0];
                    *left += of_trade[1];
                    if plan.moves.contains(&trade.hot.0) {
                        made.0 += of_trade[0];
                        made.1 += of_trade[1];
                        stayed.0 += trade.bytes * trade.worth;
                        stayed.1 += trade.bytes * hot.min(trade.worth);
                    }
                }
            }
            if lag == 0 && plan.is_telling && made.0 > 0.0 {
                self.told = [
                    Some((epoch, made.1 / made.0, stayed.1 / stayed.0)),
                    self.told[0],
                ];
            }
            for (kind, (promised, left)) in sums {
                if promised > 0.0 {
                    let (target, margin) = kind;
                    let curve = &mut self.curves.entry(target).or_default()[margin as usize];
                    curve.learn(lag, plan.weights[&kind], left / promised);
                }
            }
        }
    }

    /// Forgets all targets but these.
    pub(super) fn keep(&mut self, targets: &[TargetId]) {
        self.curves.retain(|target, _| targets.contains(target));
    }

    /// What is left after each lag, as a share of what was promised: never more than
    /// before.
    fn shares(&self, target: TargetId, margin: Margin) -> [f64; LAGS.len()] {
        let curves = self.curves.get(&target).copied().unwrap_or_default();
        let curve = curves[margin as usize];
        let mut last = 1.0;
        std::array::from_fn(|lag| {
            let share = curve.left[lag] / curve.plans[lag];
            last = ((share - NOISE) / (1.0 - NOISE)).clamp(0.0, last);
            last
        })
    }

    /// Epochs for which a move of such a margin gains what it promises, at most `horizon`.
    pub(super) fn epochs(&self, target: TargetId, margin: Margin, horizon: u64) -> f64 {
        let shares = self.shares(target, margin);
        let seen: f64 = shares
            .iter()
            .zip(SPANS)
            .map(|(left, span)| left * span)
            .sum();
        let [_, _, fourth, eighth] = shares;
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

    /// What was left an epoch later of what the last two telling plans promised, of the one
    /// of which less was, if they were looked up lately; and whether one was just now. Beyond
    /// what is known of curves, which go on hoping.
    pub(super) fn told(&self, epoch: u64) -> Option<Told> {
        let lasts = LAGS[LAGS.len() - 1];
        let recent = (self.told.into_iter().flatten()).filter(|(at, ..)| at + lasts >= epoch);
        recent
            .map(|(at, left, hot)| Told {
                left,
                hot,
                is_new: at + NEW_FOR > epoch,
            })
            .reduce(|a, b| Told {
                left: a.left.min(b.left),
                hot: a.hot.min(b.hot),
                is_new: a.is_new || b.is_new,
            })
    }

    /// What is left after an epoch, as a share of what was promised.
    pub(super) fn first(&self, target: TargetId, margin: Margin) -> f64 {
        self.shares(target, margin)[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: TargetId = TargetId(1);

    fn plan(epoch: u64, trade: Trade, allowed: f64) -> Plan {
        Plan {
            epoch,
            trades: vec![trade],
            allowed,
            is_telling: true,
        }
    }

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
                worth: 1.0,
                promised: 1.0,
                margin: Margin::Large,
                is_made: true,
            };
            lasting.note(plan(epoch, trade, 1.0));
        }
        lasting
    }

    #[test]
    fn what_stays_hot_gains_as_long_as_one_looks_ahead() {
        assert!((Lasting::default().epochs(ID, Margin::Large, 64) - 64.0).abs() < 1e-9);
        let stays = after(20, |_| 1.0);
        assert!((stays.epochs(ID, Margin::Large, 64) - 64.0).abs() < 1e-9);
        assert!(stays.first(ID, Margin::Large) > 0.9);
    }

    #[test]
    fn what_is_gone_at_once_gains_nothing() {
        for left in [0.0, 0.1, -0.5] {
            let gone = after(20, |_| left);
            assert!(
                gone.epochs(ID, Margin::Large, 64) <= 0.0 && gone.first(ID, Margin::Large) <= 0.0,
                "{left}"
            );
        }
    }

    #[test]
    fn what_fades_gains_as_long_as_it_takes() {
        let fades = after(40, |age| 0.8_f64.powi(i32::try_from(age).expect("few")));
        // Its area is 4; a little less, for what is little counts as nothing.
        let epochs = fades.epochs(ID, Margin::Large, 64);
        assert!((1.5..4.5).contains(&epochs), "{epochs}");
        let slower = after(40, |age| 0.95_f64.powi(i32::try_from(age).expect("few")));
        assert!(slower.epochs(ID, Margin::Large, 64) > 2.0 * epochs);
    }

    #[test]
    fn noise_says_nothing_of_what_is_much_hotter() {
        let mut lasting = Lasting::default();
        for epoch in 1..40 {
            lasting.follow(epoch, |_, _| Some(0.0));
            let trade = Trade {
                hot: (ID, VirtAddr(epoch)),
                cold: None,
                bytes: 1.0,
                worth: 1.0,
                promised: 1.0,
                margin: Margin::of(0.1),
                is_made: true,
            };
            lasting.note(plan(epoch, trade, 1.0));
        }
        assert!(lasting.epochs(ID, Margin::Small, 64) <= 0.0);
        assert!((lasting.epochs(ID, Margin::of(0.9), 64) - 64.0).abs() < 1e-9);
    }

    #[test]
    fn what_is_left_to_do_at_the_end_says_less() {
        // Each set is hot for eight epochs; nearly all of it is moved in the first.
        let mut lasting = Lasting::default();
        let mut epochs = f64::INFINITY;
        for epoch in 1..200 {
            lasting.follow(epoch, |_, addr| {
                Some(f64::from(u8::from(addr.0 / 8 == epoch / 8)))
            });
            let trade = Trade {
                hot: (ID, VirtAddr(epoch)),
                cold: None,
                bytes: if epoch % 8 == 0 { 1.0 } else { 0.01 },
                worth: 1.0,
                promised: 1.0,
                margin: Margin::Large,
                is_made: true,
            };
            lasting.note(plan(epoch, trade, 1.0));
            if epoch > 100 {
                epochs = epochs.min(lasting.epochs(ID, Margin::Large, 64));
            }
        }
        assert!((2.5..8.0).contains(&epochs), "{epochs}");
    }

    #[test]
    fn of_two_plans_that_which_lasted_less_is_told() {
        let mut lasting = Lasting::default();
        let trade = |epoch, is_made| Trade {
            hot: (TargetId(if is_made { ID.0 } else { 2 }), VirtAddr(epoch)),
            cold: None,
            bytes: 1.0,
            worth: 1.0,
            promised: 1.0,
            margin: Margin::Large,
            is_made,
        };
        let told = |left, is_new| {
            Some(Told {
                left,
                hot: left,
                is_new,
            })
        };
        let least = [None, Some(0.9), Some(0.1), Some(0.1), Some(0.7)];
        for ((epoch, left), least) in (1..).zip([1.0, 0.9, 0.1, 0.8, 0.7]).zip(least) {
            // Targets of which nothing was moved are not asked.
            let worth = |target, _| Some(if target == ID { left } else { -1.0 });
            lasting.follow(epoch, worth);
            let least = least.and_then(|least| told(least, true));
            assert_eq!(lasting.told(epoch), least, "{epoch}");
            lasting.note(Plan {
                trades: vec![trade(epoch, true), trade(100 + epoch, false)],
                ..plan(epoch, trade(epoch, true), 1.0)
            });
        }
        // It is new for two epochs, and is not told for ever.
        for epoch in 6..30 {
            lasting.follow(epoch, |_, _| Some(0.8));
            let expected = match epoch {
                6..=7 => told(0.7, true),
                8..=13 => told(0.7, false),
                14 => told(0.8, false),
                _ => None,
            };
            assert_eq!(lasting.told(epoch), expected, "{epoch}");
        }
    }

    #[test]
    fn what_may_do_less_says_as_much() {
        // What may be moved is halved time and again, and all of it is used.
        let mut lasting = Lasting::default();
        for epoch in 1..10 {
            lasting.follow(epoch, |_, _| Some(0.0));
            let allowed = 0.5_f64.powi(i32::try_from(epoch).expect("few"));
            let trade = Trade {
                hot: (ID, VirtAddr(epoch)),
                cold: None,
                bytes: allowed,
                worth: 1.0,
                promised: 1.0,
                margin: Margin::Large,
                is_made: true,
            };
            lasting.note(plan(epoch, trade, allowed));
        }
        assert!(lasting.epochs(ID, Margin::Large, 64) <= 0.0);
    }

    #[test]
    fn a_page_of_which_nothing_is_told_says_nothing() {
        let mut lasting = Lasting::default();
        let trade = Trade {
            hot: (ID, VirtAddr(0)),
            cold: Some((ID, VirtAddr(1))),
            bytes: 1.0,
            worth: 1.0,
            promised: 1.0,
            margin: Margin::Large,
            is_made: true,
        };
        lasting.note(plan(1, trade, 1.0));
        lasting.follow(2, |_, addr| (addr.0 == 0).then_some(0.0));
        let before = lasting.epochs(ID, Margin::Large, 64);
        lasting.follow(3, |_, _| Some(0.0));
        assert!((before - 64.0).abs() < 1e-9);
        assert!(lasting.epochs(ID, Margin::Large, 64) < 48.0);
    }
}
