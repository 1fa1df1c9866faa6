//! What the engine asks for once per epoch, and what became of it.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::looks::Role;
use super::observation::{Sample, TargetId};
use super::pageout::PageOut;
use super::report::EpochReport;
use super::settings::LookRule;
use crate::units::{Bytes, Nanos, NodeId, PageRange, Pid};

/// Up or down, in the view of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// To a slower tier. Ordered first: demotions make the room.
    Demotion,
    /// To a faster tier.
    Promotion,
}

/// Why a move is made. Logs and metrics name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// Hot enough for the tier that it goes to.
    Hot,
    /// Hot, where the faster tier answers later than the slower one: more is asked of it than
    /// it has bandwidth.
    Spread,
    /// Colder than what needs its place.
    Room,
    /// Cold, where allocations have used up what is to stay free for the next ones.
    Headroom,
    /// Written whenever it is accessed, on a node that answers late.
    Written,
    /// Read and never written, in the place of what is written.
    Read,
    /// Cold or, with nothing cold left, hot: others have used up what a node is to have free for them,
    /// between two decisions.
    Shortage,
}

impl Reason {
    /// Every reason, for registering metrics.
    pub const ALL: [Self; 7] = [
        Self::Hot,
        Self::Spread,
        Self::Room,
        Self::Headroom,
        Self::Written,
        Self::Read,
        Self::Shortage,
    ];

    /// The label in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Spread => "spread",
            Self::Room => "room",
            Self::Headroom => "headroom",
            Self::Shortage => "shortage",
            Self::Written => "written",
            Self::Read => "read",
        }
    }

    /// Where moves for it go; those for [`Shortage`](Self::Shortage) the other way where nothing slower has room.
    pub fn direction(self) -> Direction {
        match self {
            Self::Hot | Self::Written => Direction::Promotion,
            Self::Spread | Self::Room | Self::Headroom | Self::Shortage | Self::Read => {
                Direction::Demotion
            }
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Moves pages of one range that lie on one node to another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// Whose pages.
    pub target: TargetId,
    /// Its process.
    pub pid: Pid,
    /// Where they may lie. Pages of it that are not on `from` stay.
    pub range: PageRange,
    /// The node they leave.
    pub from: NodeId,
    /// The node they go to.
    pub to: NodeId,
    /// At most so many bytes, rounded up to a folio; the lowest addresses first.
    pub limit: Bytes,
    /// Up or down.
    pub direction: Direction,
    /// Why.
    pub reason: Reason,
}

/// What became of the pages of a move: 4 KiB pages by result.
/// Tried (the sum) and done (`moved`) are apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageCounts {
    /// On the destination now, and was not before.
    pub moved: u64,
    /// Pinned or under I/O: once more later.
    pub busy: u64,
    /// Busy before, or among many that are: left alone, for longer each time.
    pub pinned: u64,
    /// Not mapped (any more): forget.
    pub absent: u64,
    /// The destination is full: demote first.
    pub no_room: u64,
    /// Mapped by another process too, as after a fork: when it no longer is.
    pub shared: u64,
    /// The kernel will not: forbidden by a cpuset, or a page that cannot move.
    /// Remember.
    pub refused: u64,
    /// Not tried: the batch ended before it, for time; or its program has just bound it, or too
    /// much of its process was tried in vain.
    pub deferred: u64,
}

impl PageCounts {
    /// Each count with its label in metrics.
    pub fn labelled(self) -> [(&'static str, u64); 8] {
        [
            ("moved", self.moved),
            ("busy", self.busy),
            ("pinned", self.pinned),
            ("absent", self.absent),
            ("no_room", self.no_room),
            ("shared", self.shared),
            ("refused", self.refused),
            ("deferred", self.deferred),
        ]
    }

    /// Not moved, and perhaps still on the node that they were to leave.
    fn left(self) -> u64 {
        self.kept() + self.shared + self.no_room + self.deferred
    }

    /// Held where they are by the kernel, whoever maps them.
    pub fn kept(self) -> u64 {
        self.busy + self.pinned + self.refused
    }

    /// Adds `other`, result by result.
    pub fn add(&mut self, other: Self) {
        self.moved += other.moved;
        self.busy += other.busy;
        self.pinned += other.pinned;
        self.absent += other.absent;
        self.no_room += other.no_room;
        self.shared += other.shared;
        self.refused += other.refused;
        self.deferred += other.deferred;
    }
}

/// A move with what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveResult {
    /// The move as it was asked for.
    pub asked: Move,
    /// Its pages by result.
    pub pages: PageCounts,
    /// Whether its range was looked through to the end, together with those of its moves
    /// that were looked up with it: what is counted in none of the results of this range
    /// was not on the node that it was to leave.
    pub is_whole: bool,
}

/// What became of all moves of one plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveOutcome {
    /// In the order in which they were tried.
    pub results: Vec<MoveResult>,
    /// Wall-clock time that it took.
    pub elapsed: Nanos,
    /// The longest single system call, the bound of any stall that we caused.
    pub longest_call: Nanos,
    /// Page cache that was to give way, each node once.
    pub reclaimed: Vec<Reclaimed>,
}

/// What became of all moves of one range from one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeResult {
    /// Whose range.
    pub target: TargetId,
    /// The range.
    pub range: PageRange,
    /// The node that its pages were to leave.
    pub from: NodeId,
    /// Whether they know of all its pages there.
    pub is_whole: bool,
    /// Pages that are there now, at most; if they know of all.
    pub left: u64,
    tried: u64,
    /// Not tried, for want of room or time.
    untried: u64,
    shared: u64,
    refused: u64,
}

impl RangeResult {
    /// Whether nothing of it could be moved, and that is not for want of room or time.
    pub fn is_stuck(&self) -> bool {
        self.tried + self.untried == 0 && self.refused + self.shared > 0
    }

    /// Whether that is only because another process maps its pages too.
    pub fn is_shared(&self) -> bool {
        self.is_stuck() && self.refused == 0
    }
}

impl MoveOutcome {
    /// Adds what was done after it.
    pub fn add(&mut self, later: Self) {
        self.results.extend(later.results);
        self.elapsed += later.elapsed;
        self.longest_call = self.longest_call.max(later.longest_call);
        self.reclaimed.extend(later.reclaimed);
    }

    /// Pages of each range that the kernel kept where they were. Of what was not tried
    /// it says nothing.
    pub fn kept(&self) -> Vec<(TargetId, PageRange, u64)> {
        let mut ranges = BTreeMap::new();
        for MoveResult { asked, pages, .. } in &self.results {
            let untried = PageCounts {
                deferred: pages.deferred,
                ..PageCounts::default()
            };
            if pages.deferred > 0 && *pages == untried {
                continue;
            }
            let key = (asked.target, asked.range.start());
            ranges.entry(key).or_insert((asked.range, 0)).1 += pages.kept();
        }
        let each = |((target, _), (range, kept))| (target, range, kept);
        ranges.into_iter().map(each).collect()
    }

    /// Range by range: a range may have several moves from one node, one for each
    /// promotion that needs its room.
    pub fn of_ranges(&self) -> Vec<RangeResult> {
        let mut ranges = BTreeMap::new();
        for result in &self.results {
            let (asked, pages) = (&result.asked, result.pages);
            let range = ranges
                .entry((asked.target, asked.range.start(), asked.from))
                .or_insert(RangeResult {
                    target: asked.target,
                    range: asked.range,
                    from: asked.from,
                    is_whole: false,
                    left: 0,
                    tried: 0,
                    untried: 0,
                    shared: 0,
                    refused: 0,
                });
            range.is_whole |= result.is_whole;
            range.left += pages.left();
            range.tried += pages.moved + pages.busy;
            range.untried += pages.no_room + pages.deferred;
            range.shared += pages.shared;
            range.refused += pages.refused + pages.pinned;
        }
        // What came from another node, perhaps after this one was looked through.
        for result in &self.results {
            let asked = &result.asked;
            let key = (asked.target, asked.range.start(), asked.to);
            if let Some(range) = ranges.get_mut(&key) {
                range.left += result.pages.moved;
            }
        }
        ranges.into_values().collect()
    }
}

/// Page cache of a node that makes room for moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reclaim {
    /// Where.
    pub node: NodeId,
    /// So much of it.
    pub bytes: Bytes,
    /// What comes to the node before that needs none.
    pub after: Bytes,
}

/// Page cache of a node that the kernel was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reclaimed {
    /// Where.
    pub node: NodeId,
    /// So much.
    pub asked: Bytes,
    /// What it gave back, of this and of what else it keeps of files.
    pub given: Bytes,
}

/// A range whose residency the engine wants counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sweep {
    /// Whose range.
    pub target: TargetId,
    /// Its process.
    pub pid: Pid,
    /// The range.
    pub range: PageRange,
}

/// What to do until the next observation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The most urgent first; each demotion before the promotion that it makes
    /// room for.
    pub moves: Vec<Move>,
    /// Page cache that gives way to them, as far as they come to it.
    pub reclaims: Vec<Reclaim>,
    /// What goes to swap after them, the longest unused first.
    pub page_outs: Vec<PageOut>,
    /// Pages to watch in the next epoch, sorted by target and address.
    pub samples: Vec<Sample>,
    /// What each of these is for.
    pub roles: Vec<Role>,
    /// How many of them one scan may look at, and by which rule these are chosen.
    pub looks: u64,
    /// As it was when the samples were drawn.
    pub rule: LookRule,
    /// How many times as long as the last scan's window the first one's is.
    pub span: f64,
    /// Ranges to count in the next epoch.
    pub sweeps: Vec<Sweep>,
    /// Targets that forget what they wrote when the next epoch begins.
    pub forget: Vec<(TargetId, Pid)>,
    /// How long the next epoch is.
    pub interval: Nanos,
    /// What the epoch that ended was like.
    pub report: EpochReport,
}
