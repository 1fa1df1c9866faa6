//! Whether what is hot stays so, for [`adaptive`](super::adaptive): what the heat of the moment
//! says of what comes, beside how hot memory usually is.
//!
//! **Unit.** Scans that see a page accessed, per epoch.
//!
//! **Problem.** On a sweep all is hot in turns. What is hot now is not going to be, and no
//! exchange by that lasts; in the long run all is as hot. But where accesses wait for
//! bandwidth what is written gains more than what is read as often.
//!
//! **Approach.** How hot a region is going to be lies between how hot it usually is and how hot
//! it is now. Where between is told by what was above or below its average an epoch ago: how far
//! it still is, the slope of a regression through nothing over all that is in memory, smoothed
//! over epochs. What is moved is to stay for many, so that it is what of that is left after four.
//!
//! Averages begin with nothing ([`Region::usual`]), and are held against what all memory together
//! comes to: a program is as busy as it usually is, whatever of it is hot.
//!
//! Of what is steady but for the chance of samples the average says as much as the moment.
//!
//! **Properties** (tests below): one where regions stay what they are, none where they are
//! hot in turns.

use std::collections::HashMap;

use super::View;
use super::planner::MOSTLY;
use crate::tiering::observation::TargetId;
use crate::tiering::region::Region;
use crate::units::NodeId;

/// Weight of the newest epoch in the slope.
const EMA: f64 = 0.1;
/// The same in what all memory comes to, once there were many.
const LEVEL_EMA: f64 = 0.02;
/// Epochs for which what is hot has to stay so.
const EPOCHS: i32 = 4;
/// How far off an average may be, as a share of it, once it is one of as many epochs as it is
/// to be of.
const USUAL_ERROR: f32 = 0.1;
/// What is hot in turns need not be as hot on average to be promoted, but this share of it.
const WARM_LEAST: f32 = 0.1;
/// Epochs for which it is asked after accesses last waited: what was moved for that may have
/// ended it.
const WANTED_FOR: u8 = 8;
/// Averages are held to be this share of what they are going to be at least: one epoch's.
const GROWN_LEAST: f64 = 0.02;

/// What is to be expected of a target's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Outlook {
    /// What the heat of the moment weighs, 0 to 1.
    pub(super) moment: f32,
    /// How far the averages of regions have come to what they are going to be, above 0 to 1.
    pub(super) grown: f32,
}

impl Outlook {
    /// What is hot stays so.
    pub(super) const STAYS: Self = Self {
        moment: 1.0,
        grown: 1.0,
    };

    /// How hot a region usually is.
    pub(super) fn usual(self, region: &Region) -> f32 {
        region.usual() / self.grown
    }

    /// How hot a region is going to be that is so hot now; more than scans can tell where averages
    /// were taken for younger than they are.
    pub(super) fn heat(self, region: &Region, now: f32) -> f32 {
        if self.moment < 1.0 {
            let usual = self.usual(region);
            usual + self.moment * (now - usual)
        } else {
            now
        }
    }

    /// A standard error of that, where `of_now` is the one of how hot it is now.
    pub(super) fn error(self, region: &Region, of_now: f32) -> f32 {
        if self.moment < 1.0 {
            let of_usual = USUAL_ERROR * self.usual(region) / self.grown.sqrt();
            // Averages rest on as many samples more.
            let of_now = of_now * self.moment.max(USUAL_ERROR);
            of_now.hypot((1.0 - self.moment) * of_usual)
        } else {
            of_now
        }
    }

    /// From which share of what is hot on a region is hot enough to be promoted.
    pub(super) fn warm_from(self) -> f64 {
        f64::from(self.moment.max(WARM_LEAST))
    }
}

/// Of each target.
#[derive(Clone, Debug, Default)]
pub(super) struct Outlooks(HashMap<TargetId, Slope>);

#[derive(Clone, Copy, Debug, Default)]
struct Slope {
    /// Of fresh regions: how far they were above or below their average an epoch ago, times how
    /// far they are now, and times itself, in bytes times squares of counts.
    still: f64,
    was: f64,
    /// Epochs, and the mean over them of what all memory comes to, in bytes times counts.
    epochs: f64,
    all: f64,
    /// Epochs for which it is still asked.
    wanted_for: u8,
}

impl Outlooks {
    /// Of each target in the view, by its place, after its epoch. Only where accesses wait for
    /// bandwidth, and something is mostly written, can one region gain more than another that is
    /// usually as hot: elsewhere, and where that was so but long ago, what is hot is held to
    /// stay so.
    pub(super) fn follow(&mut self, view: &View<'_>) -> Vec<Outlook> {
        let is_there = |id: TargetId| view.targets.iter().any(|target| target.id == id);
        self.0.retain(|&id, _| is_there(id));
        let each = view.targets.iter().map(|target| {
            let is_late = |&(node, _): &(NodeId, f64)| target.tiers.rank_of(node).is_some();
            let known = self.0.get(&target.id).copied();
            let mut slope = if view.loaded.iter().any(is_late) {
                let slope = known.unwrap_or_default();
                Slope {
                    wanted_for: WANTED_FOR,
                    ..slope
                }
            } else {
                known.unwrap_or_default()
            };
            let outlook = (slope.wanted_for > 0).then(|| slope.follow(target.regions));
            if let Some(outlook) = outlook.flatten() {
                slope.wanted_for -= 1;
                self.0.insert(target.id, slope);
                outlook
            } else {
                self.0.remove(&target.id);
                Outlook::STAYS
            }
        });
        each.collect()
    }
}

impl Slope {
    /// After an epoch of these regions; `None` where none of them is mostly written.
    #[allow(clippy::cast_possible_truncation)]
    fn follow(&mut self, regions: &[Region]) -> Option<Outlook> {
        // There may be a million of them: one pass, and what `grown` is comes out at its end.
        let (mut latest, mut usual, mut is_written) = (0.0, 0.0, false);
        let (mut heat_now, mut heats, mut averages, mut squares, mut heat_average) =
            (0.0, 0.0, 0.0, 0.0, 0.0);
        for region in regions {
            let bytes = region.resident().as_f64();
            latest += bytes * f64::from(region.latest());
            usual += bytes * f64::from(region.usual());
            is_written |= region.written().is_some_and(|share| share > MOSTLY);
            let (heat, average) = region.an_epoch_ago();
            let (heat, average) = (f64::from(heat), f64::from(average));
            // Of what is new nothing was told an epoch ago.
            if region.is_fresh() && average > 0.0 {
                let now = f64::from(region.latest());
                heat_now += bytes * heat * now;
                heats += bytes * heat * heat;
                averages += bytes * average * now;
                heat_average += bytes * average * heat;
                squares += bytes * average * average;
            }
        }
        if !is_written {
            return None;
        }
        self.epochs += 1.0;
        self.all += (latest - self.all) * (1.0 / self.epochs).max(LEVEL_EMA);
        let grown = if self.all > 0.0 {
            (usual / self.all).clamp(GROWN_LEAST, 1.0)
        } else {
            1.0
        };
        // (heat - average / grown) times the same of now, and of itself.
        let squares = squares / (grown * grown);
        let still = heat_now - (averages + heat_average) / grown + squares;
        let was = heats - 2.0 * heat_average / grown + squares;
        self.still += EMA * (still - self.still);
        self.was += EMA * (was - self.was);
        let slope = if self.was > 0.0 {
            (self.still / self.was).clamp(0.0, 1.0)
        } else {
            1.0
        };
        Some(Outlook {
            moment: slope.powi(EPOCHS) as f32,
            grown: grown as f32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiering::policy::testing::regions;

    /// After so many epochs in which each of eight regions is as hot as this.
    fn after(epochs: u64, heat: impl Fn(u64, usize) -> f32) -> (Outlook, Vec<Region>) {
        let mut regions = regions(&[(0.0, 0); 8]);
        for region in &mut regions {
            region.usually(0.0);
            region.writes(1.0);
        }
        let mut slope = Slope::default();
        let mut outlook = Outlook::STAYS;
        for epoch in 0..epochs {
            for (at, region) in regions.iter_mut().enumerate() {
                region.goes_on(heat(epoch, at));
            }
            outlook = slope.follow(&regions).expect("all is written");
        }
        (outlook, regions)
    }

    #[test]
    fn what_stays_what_it_is_is_told_by_the_moment() {
        for epochs in [5, 20, 200] {
            let (outlook, regions) = after(epochs, |_, at| if at < 3 { 3.0 } else { 0.5 });
            assert!(outlook.moment > 0.9, "{epochs}: {outlook:?}");
            assert!((outlook.heat(&regions[0], 3.0) - 3.0).abs() < 0.1);
        }
    }

    #[test]
    fn what_is_hot_in_turns_is_told_by_its_average() {
        let turns = |epoch: u64, at: usize| {
            let is_its_turn = usize::try_from(epoch % 8).is_ok_and(|turn| turn == at);
            if is_its_turn { 3.0 } else { 0.0 }
        };
        for epochs in [8, 16, 200] {
            let (outlook, regions) = after(epochs, turns);
            assert!(outlook.moment < 0.05, "{epochs}: {outlook:?}");
            // Three scans of each eighth epoch, long before averages have grown.
            let heat: f32 = regions.iter().map(|r| outlook.heat(r, r.latest())).sum();
            assert!((2.0..4.0).contains(&heat), "{epochs}: {heat}");
        }
    }

    #[test]
    fn what_turns_steady_is_told_by_the_moment_again() {
        let (outlook, _) = after(120, |epoch, at| {
            let hot = if epoch < 60 { (epoch % 8) as usize } else { 5 };
            if at == hot { 3.0 } else { 0.0 }
        });
        assert!(outlook.moment > 0.5, "{outlook:?}");
    }

    #[test]
    fn where_nothing_is_written_nothing_is_asked() {
        let mut regions = regions(&[(3.0, 0), (1.0, 0)]);
        assert_eq!(Slope::default().follow(&regions), None);
        regions[0].writes(0.2);
        assert_eq!(Slope::default().follow(&regions), None);
        regions[1].writes(0.9);
        assert!(Slope::default().follow(&regions).is_some());
    }

    #[test]
    fn of_idle_memory_nothing_is_told() {
        let (outlook, _) = after(10, |_, _| 0.0);
        assert_eq!(outlook, Outlook::STAYS);
    }
}
