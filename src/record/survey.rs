//! From a recording to its [`Picture`]: it is gone through twice, for a picture's size has
//! to be known before anything is put into it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::Replay;
use super::file::{Frame, Reader, RecordError};
use super::heatmap::{Axis, Picture, Sizes, TargetPicture};
use super::layout::Spread;
use super::timeline::Timeline;
use crate::tiering::observation::TargetMap;
use crate::tiering::report::TargetReport;
use crate::tiering::tier::TierTable;
use crate::units::{Bytes, Nanos, Pid};

/// Targets in a picture at most.
const SHOWN: usize = 8;
/// Targets to choose them from; of more those with the least memory are forgotten.
const CANDIDATES: usize = 256;

/// A process; the same over several runs of the daemon.
type Who = (Pid, Arc<str>);

/// What a target needs of the picture.
#[derive(Default)]
struct Candidate {
    spread: Spread,
    /// Byte·seconds that it had eligible.
    weight: f64,
}

/// What a recording holds.
#[derive(Default)]
struct Survey {
    epochs: u64,
    runs: u64,
    span: Nanos,
    candidates: BTreeMap<Who, Candidate>,
    forgotten: u64,
    /// Bytes at its end that are no whole record.
    torn: u64,
}

impl Survey {
    fn add(&mut self, target: &TargetMap, seconds: f64) {
        let who = (target.pid, Arc::clone(&target.name));
        if !self.candidates.contains_key(&who) && self.candidates.len() >= CANDIDATES {
            let weights = self.candidates.iter();
            let least = weights.min_by(|a, b| a.1.weight.total_cmp(&b.1.weight));
            if let Some(least) = least.map(|(who, _)| who.clone()) {
                self.candidates.remove(&least);
                self.forgotten += 1;
            }
        }
        let candidate = self.candidates.entry(who).or_default();
        candidate.spread.add(&target.eligible);
        let bytes: Bytes = target.eligible.iter().map(|range| range.bytes()).sum();
        candidate.weight += bytes.as_f64() * seconds;
    }
}

/// The picture of `file`. `progress` is told of each epoch, in both turns.
///
/// # Errors
/// When the recording cannot be read.
pub fn picture(file: &Path, mut progress: impl FnMut()) -> Result<Picture, RecordError> {
    let survey = survey(&mut Reader::open(file)?, &mut progress)?;
    let axis = Axis::new(survey.span);
    let mut chosen: Vec<(Who, Candidate)> = survey.candidates.into_iter().collect();
    chosen.sort_by(|a, b| b.1.weight.total_cmp(&a.1.weight));
    let left_out = survey.forgotten + chosen.len().saturating_sub(SHOWN) as u64;
    chosen.truncate(SHOWN);
    let mut targets: Vec<TargetPicture> = chosen
        .into_iter()
        .map(|((pid, name), c)| TargetPicture::new(name, pid, c.spread.layout(), axis))
        .collect();

    let mut replay = Replay::new(Reader::open(file)?);
    let mut time = Timeline::default();
    let mut left = survey.epochs;
    // A daemon may be recording still: what came since has no room.
    while left > 0
        && let Some(epoch) = replay.next_epoch()?
    {
        left -= 1;
        progress();
        let stretch = time.next(epoch.run, epoch.seen.at, epoch.seen.cost.elapsed);
        let scans = f64::from(epoch.engine.scans().max(1));
        for (target, report) in epoch.seen.targets.iter().zip(&epoch.plan.report.targets) {
            let mut all = targets.iter_mut();
            let mine = all.find(|t| (t.pid, &t.name) == (target.pid, &target.name));
            if let (Some(mine), Some(map)) = (mine, epoch.engine.regions(target.id)) {
                // Where nothing could be told, nothing is cold.
                let regions = map.regions().iter().filter(|r| r.is_known());
                let hotness = regions.map(|r| (r.range(), f64::from(r.hotness()) / scans));
                mine.add(stretch, hotness, &sizes(report, epoch.engine.tiers()));
            }
        }
    }
    let mut notes = super::notes(survey.torn, replay.other_version());
    if left_out > 0 {
        notes.push(format!(
            "{left_out} targets with less memory are not shown; {SHOWN} are at most"
        ));
    }
    if survey.epochs == 0 {
        notes.push("it has no epochs yet".into());
    }
    let name = file.file_name().unwrap_or(file.as_os_str());
    Ok(Picture {
        file: name.to_string_lossy().into_owned(),
        targets,
        epochs: survey.epochs,
        runs: survey.runs,
        axis,
        notes,
    })
}

/// The first turn: no engine.
fn survey(frames: &mut Reader, progress: &mut impl FnMut()) -> Result<Survey, RecordError> {
    let mut survey = Survey::default();
    let mut time = Timeline::default();
    while let Some(frame) = frames.next_frame()? {
        match frame {
            Frame::Started { .. } => survey.runs += 1,
            Frame::Configured { .. } => {}
            Frame::Observed(seen) => {
                progress();
                survey.epochs += 1;
                let stretch = time.next(survey.runs, seen.at, seen.cost.elapsed);
                survey.span = stretch.to;
                let seconds = stretch.to.saturating_sub(stretch.from).as_secs_f64();
                for target in &seen.targets {
                    survey.add(target, seconds);
                }
            }
        }
    }
    survey.torn = frames.torn();
    Ok(survey)
}

fn sizes<'a>(report: &TargetReport, tiers: &'a TierTable) -> Sizes<'a> {
    let resident = tiers.ids().zip(&report.resident);
    Sizes {
        hot: report.hot,
        eligible: report.eligible,
        tiers: resident
            .map(|(tier, bytes)| (tiers.name(tier), *bytes))
            .collect(),
    }
}
