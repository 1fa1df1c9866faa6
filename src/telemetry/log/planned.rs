//! What a dry run would move: logged as what is moved is, where it is not what it was.

use std::collections::BTreeMap;

use tracing::info;

use crate::tiering::observation::TargetId;
use crate::tiering::plan::Direction;
use crate::tiering::report::{EpochReport, PauseReason, TargetReport};
use crate::tiering::tier::TierTable;
use crate::units::Bytes;

/// What was said last of each target that is there.
#[derive(Debug, Default)]
pub struct Planned(BTreeMap<TargetId, String>);

impl Planned {
    /// Logs what `report` has planned and a dry run leaves undone.
    pub fn log(&mut self, report: &EpochReport, tiers: &TierTable) {
        for line in self.news(report, tiers) {
            info!("{line}");
        }
    }

    fn news(&mut self, report: &EpochReport, tiers: &TierTable) -> Vec<String> {
        let there = |id| report.targets.iter().any(|t| t.id == id);
        self.0.retain(|&id, _| there(id));
        if !report.paused.contains(&PauseReason::DryRun) {
            self.0.clear();
            return Vec::new();
        }
        let mut lines = Vec::new();
        for target in &report.targets {
            let text = planned(target, tiers);
            if self.0.get(&target.id) == Some(&text) {
                continue;
            }
            let was_told = self.0.insert(target.id, text.clone()).is_some();
            if !text.is_empty() || was_told {
                let what = if text.is_empty() { "nothing" } else { &text };
                lines.push(format!(
                    "epoch {}: dry run: {} (pid {}): would move {what}",
                    report.epoch, target.name, target.pid
                ));
            }
        }
        lines
    }
}

/// As in "promote 8.0 MiB (hot mem3 → dram0 8.0 MiB)"; empty where nothing is planned.
fn planned(target: &TargetReport, tiers: &TierTable) -> String {
    let flows = || target.flows.iter().filter(|f| !f.planned.is_zero());
    if flows().next().is_none() {
        return String::new();
    }
    let sum = |direction| -> Bytes {
        let mine = flows().filter(|f| f.direction == direction);
        mine.map(|f| f.planned).sum()
    };
    let (up, down) = (sum(Direction::Promotion), sum(Direction::Demotion));
    let ways: Vec<String> = flows()
        .map(|f| {
            let (reason, from, to) = (f.reason.as_str(), tiers.name(f.from), tiers.name(f.to));
            format!("{reason} {from} → {to} {}", f.planned)
        })
        .collect();
    format!("{up} up, {down} down ({})", ways.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::testing::{report, table, target};

    #[test]
    fn a_dry_run_says_what_it_would_move_and_says_it_once() {
        let tiers = table();
        let mut planned = Planned::default();
        let mut dry = report(2, vec![target(1, "db")]);
        assert_eq!(
            planned.news(&dry, &tiers),
            Vec::<String>::new(),
            "it is moved"
        );
        dry.paused = vec![PauseReason::DryRun];
        let line = "epoch 2: dry run: db (pid 4001): would move 9.0 MiB up, 8.0 MiB down \
                    (room dram0 → cxl1 5.0 MiB, headroom dram0 → cxl1 3.0 MiB, \
                    hot cxl1 → dram0 9.0 MiB)";
        assert_eq!(planned.news(&dry, &tiers), [line]);
        assert_eq!(planned.news(&dry, &tiers), Vec::<String>::new(), "the same");
        dry.targets[0].flows.clear();
        let line = "epoch 2: dry run: db (pid 4001): would move nothing";
        assert_eq!(planned.news(&dry, &tiers), [line]);
        assert_eq!(planned.news(&dry, &tiers), Vec::<String>::new());
    }
}
