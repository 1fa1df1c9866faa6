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
//! **Properties** (tests below): one where regions stay what they are, none where they are
//! hot in turns.

use std::collections::HashMap;

use super::View;
use crate::tiering::observation::TargetId;
use crate::tiering::region::Region;

/// Weight of the newest epoch in the slope.
const EMA: f64 = 0.1;
/// The same in what all memory comes to, once there were many.
const LEVEL_EMA: f64 = 0.02;
/// Epochs for which what is hot has to stay so.
const EPOCHS: i32 = 4;
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

    /// How hot a region is going to be that is so hot now.
    pub(super) fn heat(self, region: &Region, now: f32) -> f32 {
        if self.moment < 1.0 {
            let usual = self.usual(region);
            usual + self.moment * (now - usual)
        } else {
            now
        }
    }
}

/// Of each target.
#[derive(Clone, Debug, Default)]
pub(super) struct Outlooks(HashMap<TargetId, Slope>);

/// Sums over all memory; of what is above its average, in bytes times squares of counts.
#[derive(Clone, Copy, Debug, Default)]
struct Slope {
    /// What was so an epoch ago, times what it is now.
    still: f64,
    /// Times itself.
    was: f64,
    /// Epochs, and the mean over them of what all memory comes to, in bytes times counts.
    epochs: f64,
    all: f64,
}

impl Outlooks {
    /// Of each target in the view, by its place, after its epoch. Only where accesses wait for
    /// bandwidth, and what is written is known, can one region gain more than another that is
    /// usually as hot: elsewhere what is hot is held to stay so.
    pub(super) fn follow(&mut self, view: &View<'_>) -> Vec<Outlook> {
        let is_there = |id: TargetId| view.targets.iter().any(|target| target.id == id);
        self.0.retain(|&id, _| is_there(id));
        let each = view.targets.iter().map(|target| {
            let is_told = |region: &Region| region.written().is_some();
            if view.loaded.is_empty() || !target.regions.iter().any(is_told) {
                return Outlook::STAYS;
            }
            let slope = self.0.entry(target.id).or_default();
            slope.follow(target.regions)
        });
        each.collect()
    }
}

impl Slope {
    #[allow(clippy::cast_possible_truncation)]
    fn follow(&mut self, regions: &[Region]) -> Outlook {
        let sum = |of: fn(&Region) -> f32| -> f64 {
            let weighed = regions
                .iter()
                .map(|r| r.resident().as_f64() * f64::from(of(r)));
            weighed.sum()
        };
        self.epochs += 1.0;
        self.all += (sum(Region::latest) - self.all) * (1.0 / self.epochs).max(LEVEL_EMA);
        let grown = if self.all > 0.0 {
            (sum(Region::usual) / self.all).clamp(GROWN_LEAST, 1.0)
        } else {
            1.0
        };
        let (mut still, mut was) = (0.0, 0.0);
        for region in regions.iter().filter(|region| region.is_fresh()) {
            let (heat, usual) = region.an_epoch_ago();
            let usual = f64::from(usual) / grown;
            let above = f64::from(heat) - usual;
            let bytes = region.resident().as_f64();
            still += bytes * above * (f64::from(region.latest()) - usual);
            was += bytes * above * above;
        }
        self.still += EMA * (still - self.still);
        self.was += EMA * (was - self.was);
        let slope = if self.was > 0.0 {
            (self.still / self.was).clamp(0.0, 1.0)
        } else {
            1.0
        };
        Outlook {
            moment: slope.powi(EPOCHS) as f32,
            grown: grown as f32,
        }
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
        }
        let mut slope = Slope::default();
        let mut outlook = Outlook::STAYS;
        for epoch in 0..epochs {
            for (at, region) in regions.iter_mut().enumerate() {
                region.goes_on(heat(epoch, at));
            }
            outlook = slope.follow(&regions);
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
    fn of_idle_memory_nothing_is_told() {
        let (outlook, _) = after(10, |_, _| 0.0);
        assert_eq!(outlook, Outlook::STAYS);
    }
}
