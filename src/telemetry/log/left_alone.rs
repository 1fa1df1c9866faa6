//! What stays where it is, and why: logged once for each target and reason, however many
//! pages and epochs it is about.

use std::collections::BTreeSet;

use tracing::{info, warn};

use crate::telemetry::status::{excluded, held, paging_rests, unwatched};
use crate::tiering::observation::{Exclusion, TargetId};
use crate::tiering::pageout::PagingRest;
use crate::tiering::report::{EpochReport, Hold, TargetReport};

/// A reason of which one line is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Why {
    Excluded(Exclusion),
    Held(Hold),
    /// By the label of its count.
    Result(&'static str),
    Cpuset,
    Paging(PagingRest),
    Unwatched,
}

/// What was said already, of targets that are there.
#[derive(Debug, Default)]
pub struct Told(BTreeSet<(TargetId, Why)>);

/// A line of the log.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    /// Somebody should look at it.
    is_warning: bool,
    text: String,
}

impl Told {
    /// Logs what is new in `report`.
    pub fn log(&mut self, report: &EpochReport) {
        for line in self.news(report) {
            if line.is_warning {
                warn!("{}", line.text);
            } else {
                info!("{}", line.text);
            }
        }
    }

    fn news(&mut self, report: &EpochReport) -> Vec<Line> {
        let there = |id| report.targets.iter().any(|t| t.id == id);
        self.0.retain(|&(id, _)| there(id));
        let mut lines = Vec::new();
        for target in &report.targets {
            for (why, text) in reasons(target) {
                if self.0.insert((target.id, why)) {
                    lines.push(Line {
                        is_warning: matches!(why, Why::Result("refused") | Why::Unwatched),
                        text: format!("{} (pid {}): {text}", target.name, target.pid),
                    });
                }
            }
        }
        lines
    }
}

/// All that holds for a target now, with its text.
fn reasons(target: &TargetReport) -> Vec<(Why, String)> {
    let mut all = Vec::new();
    for &(why, bytes) in &target.excluded {
        // Every process has the others, or the configuration says so.
        if matches!(
            why,
            Exclusion::Shared | Exclusion::Locked | Exclusion::Hugetlb | Exclusion::Policy
        ) {
            let text = format!("{bytes} not moved, {}: {}", why.as_str(), excluded(why));
            all.push((Why::Excluded(why), text));
        }
    }
    for &(why, bytes) in &target.held {
        if !bytes.is_zero() {
            let text = format!("{bytes} not moved for now, {}: {}", why.as_str(), held(why));
            all.push((Why::Held(why), text));
        }
    }
    if let Some(nodes) = &target.allowed_nodes {
        let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        let nodes = nodes.join(",");
        let text = format!("moved among nodes {nodes} only: its cpuset allows no other");
        all.push((Why::Cpuset, text));
    }
    if let Some(why) = target.watched.lacks {
        let (known, resident) = (target.watched.known, target.watched.resident);
        let why = unwatched(why);
        let text = format!("only {known} of {resident} that it has in memory is watched: {why}");
        all.push((Why::Unwatched, text));
    }
    if let Some(why) = target.paging_rests {
        let text = format!(
            "nothing is paged out, {}: {}",
            why.as_str(),
            paging_rests(why)
        );
        all.push((Why::Paging(why), text));
    }
    for (result, pages) in target.move_pages.labelled() {
        let why = match result {
            "no_room" => "the node that they were to go to is full; they are tried again later",
            "refused" => "the kernel forbids it, as after a change of its cpuset",
            "absent" => "they were unmapped meanwhile",
            _ => continue,
        };
        if pages > 0 {
            let text = format!("{pages} pages not moved, {result}: {why}");
            all.push((Why::Result(result), text));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::testing::{report, target};
    use crate::tiering::plan::PageCounts;
    use crate::tiering::report::{Unwatched, Watched};
    use crate::units::{Bytes, NodeId};

    fn texts(lines: &[Line]) -> Vec<&str> {
        lines.iter().map(|l| l.text.as_str()).collect()
    }

    #[test]
    fn each_reason_is_told_once_for_each_target() {
        let mut told = Told::default();
        let first = told.news(&report(1, vec![target(1, "db")]));
        assert_eq!(
            texts(&first),
            [
                "db (pid 4001): 5.0 MiB not moved, locked: mlocked by its program; \
                 `move_locked = true` of the target moves it",
                "db (pid 4001): 6.0 MiB not moved for now, shared: in another process too \
                 (fork, KSM): `follow_children` watches both",
            ]
        );
        let mut more = target(1, "db");
        more.held[0].1 = Bytes::from_mib(60);
        assert_eq!(told.news(&report(2, vec![more])), []);
        let both = vec![target(1, "db"), target(2, "db")];
        assert_eq!(told.news(&report(3, both)).len(), 2, "another process");
        // Once it is gone, its number says nothing of it.
        assert_eq!(told.news(&report(4, vec![])), []);
        assert!(told.0.is_empty());
    }

    #[test]
    fn what_became_of_moves_is_told_and_what_is_forbidden_is_a_warning() {
        let mut one = target(1, "db");
        one.excluded.clear();
        one.held = [(Hold::Shared, Bytes::ZERO), (Hold::Pinned, Bytes(4096))];
        one.watched = Watched {
            known: Bytes::from_mib(3),
            resident: Bytes::from_mib(64),
            lacks: Some(Unwatched::NotFound),
        };
        one.allowed_nodes = Some(vec![NodeId(1), NodeId(3)]);
        one.move_pages = PageCounts {
            moved: 9,
            busy: 1,
            absent: 2,
            no_room: 3,
            refused: 4,
            ..PageCounts::default()
        };
        let lines = Told::default().news(&report(1, vec![one]));
        let warnings: Vec<bool> = lines.iter().map(|l| l.is_warning).collect();
        assert_eq!(warnings, [false, false, true, false, false, true]);
        let texts = texts(&lines).join("\n");
        for words in [
            "4.0 KiB not moved for now, pinned: held by the kernel",
            "among nodes 1,3 only",
            "only 3.0 MiB of 64.0 MiB that it has in memory is watched: not found",
            "2 pages not moved, absent",
            "3 pages not moved, no_room",
            "4 pages not moved, refused: the kernel forbids it",
        ] {
            assert!(texts.contains(words), "{words} in {texts}");
        }
    }
}
