//! A recording as a table: one row per epoch and region.

use std::io::{self, Write};

use super::Replay;
use super::file::RecordError;
use crate::tiering::region::Region;
use crate::tiering::tier::TierTable;

/// The columns: the time of the observation on the monotonic clock, the process,
/// the region's first byte and the one past its last, its hotness (the moving
/// average of HM-Keeper, Eq. 8.2, in scans) and the most that it can be, and the
/// tier that holds most of it, empty where that was not counted yet.
pub const HEADER: &str = "mono_ns,pid,start,end,hotness,max_hotness,tier";

/// Why there is no table.
#[derive(Debug, thiserror::Error)]
pub enum CsvError {
    /// The recording.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The table cannot be written.
    #[error("cannot be written: {0}")]
    Write(#[from] io::Error),
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Epochs of the recording.
    pub epochs: u64,
    /// Rows of the table.
    pub rows: u64,
}

/// Writes the table of `replay`'s recording.
///
/// # Errors
/// When one cannot be read or the other not be written.
pub fn write(replay: &mut Replay, out: &mut impl Write) -> Result<Written, CsvError> {
    let mut written = Written::default();
    writeln!(out, "{HEADER}")?;
    while let Some(epoch) = replay.next_epoch()? {
        written.epochs += 1;
        let tiers = epoch.engine.tiers();
        let most = epoch.engine.scans();
        for target in &epoch.seen.targets {
            let Some(map) = epoch.engine.regions(target.id) else {
                continue;
            };
            for region in map.regions() {
                let range = region.range();
                writeln!(
                    out,
                    "{},{},{:#x},{:#x},{:.3},{most},{}",
                    epoch.seen.at.0,
                    target.pid,
                    range.start().0,
                    range.end().0,
                    region.hotness(),
                    quoted(main_tier(region, tiers))
                )?;
                written.rows += 1;
            }
        }
    }
    out.flush()?;
    Ok(written)
}

fn main_tier<'a>(region: &Region, tiers: &'a TierTable) -> &'a str {
    let most = region.pages().iter().max_by_key(|(_, pages)| *pages);
    most.filter(|(_, pages)| *pages > 0)
        .and_then(|(node, _)| tiers.tier_of(node))
        .map_or("", |tier| tiers.name(tier))
}

/// A name as CSV has it (RFC 4180).
fn quoted(name: &str) -> std::borrow::Cow<'_, str> {
    if name.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", name.replace('"', "\"\"")).into()
    } else {
        name.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_csv_would_take_apart_are_quoted() {
        assert_eq!(quoted("dram"), "dram");
        assert_eq!(quoted("a,b"), "\"a,b\"");
        assert_eq!(quoted("the \"fast\" one"), "\"the \"\"fast\"\" one\"");
    }
}
