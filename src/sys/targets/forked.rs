//! What processes of one target share since a fork.
//!
//! **Unit.** A block: 2 MiB of addresses, or the part of it that several processes map as
//! private memory.
//!
//! **Problem.** After a fork all pages of both are the same until one of the two writes to
//! them. Each process would be watched and planned for by itself, and pages that two plan
//! for go to and fro between their sockets.
//!
//! **Approach.** The page maps of a family (processes of one `[[targets]]` that may use the
//! same nodes) are compared block by block. Pages of the same frame at the same address are
//! shared. A block of which a sixteenth is shared belongs to those that share it. A process keeps it beside
//! that while a sixteenth of it is its own: pages tell which of the two they belong to
//! ([`Sharers`](crate::sys::sharers)).
//!
//! **Properties.** Processes that are watched for less than [`SETTLED`] are left out: a child that
//! writes a snapshot is gone soon. The zero page, which untouched memory reads from, is
//! nobody's. One look reads so many entries at most ([`ENTRIES_MOST`]) and the next goes on
//! there; all looks together take a hundredth of the time.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::sys::clock::monotonic;
use crate::sys::kpageflags::{Flags, KpageFlags};
use crate::sys::pagemap::{Entry, Pagemap, Pfn};
use crate::sys::root::Root;
use crate::tiering::observation::TargetId;
use crate::units::{HUGE_PAGE_BYTES, Nanos, PageRange, Pid, VirtAddr};

/// A process counts from then on.
pub(super) const SETTLED: Nanos = Nanos::from_secs(20);
/// Entries of page maps that one look reads at most, some 0.2 s.
const ENTRIES_MOST: u64 = 1 << 21;
/// Looks may take this share of elapsed time, 1 in so many.
const COST_SHARE: u64 = 100;
/// And follow each other this soon at most.
const SOONEST: Nanos = Nanos::from_secs(5);
/// One page in so many of a block makes it shared, or a process's own.
const SOME: u64 = 16;
/// Processes of a family that are compared at most.
const FAMILY_MOST: usize = 256;

/// A process of a family, and its private memory that may be moved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Relative<'a> {
    pub(super) id: TargetId,
    pub(super) pid: Pid,
    pub(super) ranges: &'a [PageRange],
}

/// What was found of a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Block {
    /// Who shares how many pages of it.
    pub(super) sharers: BTreeMap<TargetId, u64>,
    /// Of these, who has some of it alone.
    pub(super) keepers: BTreeSet<TargetId>,
}

/// The blocks of a family that are shared.
#[derive(Debug)]
pub(super) struct Forked {
    blocks: BTreeMap<VirtAddr, (PageRange, Block)>,
    /// Where the next look begins.
    cursor: VirtAddr,
    next: Nanos,
    members: BTreeSet<TargetId>,
    /// Whether it was said that there are too many.
    told: bool,
}

impl Default for Forked {
    fn default() -> Self {
        Self {
            blocks: BTreeMap::new(),
            cursor: VirtAddr(0),
            next: Nanos::ZERO,
            members: BTreeSet::new(),
            told: false,
        }
    }
}

impl Forked {
    /// What is known to be shared, by address.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (PageRange, &Block)> {
        self.blocks.values().map(|(range, block)| (*range, block))
    }

    /// Looks at a family, if it is time for that.
    pub(super) fn look(&mut self, root: &Root, zero: &mut Zero, family: &[Relative<'_>]) {
        let now = monotonic();
        let members: BTreeSet<TargetId> = family.iter().map(|one| one.id).collect();
        if members != self.members {
            // Who has ended shares nothing any more, and frees what it shared.
            for (_, block) in self.blocks.values_mut() {
                block.sharers.retain(|id, _| members.contains(id));
            }
            self.blocks.retain(|_, (_, block)| block.sharers.len() > 1);
            self.members = members;
            self.cursor = VirtAddr(0);
        } else if now < self.next {
            return;
        }
        if family.len() > FAMILY_MOST && !std::mem::replace(&mut self.told, true) {
            tracing::warn!(
                "{} processes of one [[targets]] are watched, and up to {FAMILY_MOST} are compared: memory that \
                 these share since a fork is not moved; select fewer by a section",
                family.len()
            );
        }
        if family.len() < 2 || family.len() > FAMILY_MOST {
            self.blocks.clear();
            return;
        }
        let maps: HashMap<Pid, Pagemap> = (family.iter())
            .filter_map(|one| Some((one.pid, Pagemap::open(root, one.pid).ok()?)))
            .collect();
        let mut left = ENTRIES_MOST;
        let mut reached = self.cursor;
        let mut is_done = true;
        for (range, who) in common(family, self.cursor) {
            let entries = range.pages() * who.len() as u64;
            if entries > left {
                is_done = false;
                break;
            }
            left -= entries;
            // Blocks that are no longer cut as they were.
            self.forget(reached, range.end());
            reached = range.end();
            if let Some(block) = compare(range, &who, family, &maps, zero) {
                self.blocks.insert(range.start(), (range, block));
            }
        }
        if is_done {
            self.forget(reached, VirtAddr(u64::MAX));
        }
        self.cursor = if is_done { VirtAddr(0) } else { reached };
        let ended = monotonic();
        let rest = ended.saturating_sub(now).0.saturating_mul(COST_SHARE);
        self.next = ended + Nanos(rest).max(SOONEST);
    }

    fn forget(&mut self, from: VirtAddr, to: VirtAddr) {
        if from < to {
            let gone: Vec<VirtAddr> = self.blocks.range(from..to).map(|(at, _)| *at).collect();
            for at in gone {
                self.blocks.remove(&at);
            }
        }
    }
}

/// Frames of zeros that every process may map.
#[derive(Debug)]
pub(super) struct Zero {
    flags: Option<KpageFlags>,
    known: Option<Pfn>,
}

impl Zero {
    pub(super) fn new(root: &Root) -> Self {
        Self {
            flags: KpageFlags::open(root).ok(),
            known: None,
        }
    }

    fn is(&mut self, pfn: Pfn) -> bool {
        if self.known == Some(pfn) {
            return true;
        }
        let flags = self.flags.as_ref().and_then(|flags| flags.get(pfn).ok());
        let is_zero = flags.is_some_and(Flags::zero_page);
        if is_zero {
            self.known = Some(pfn);
        }
        is_zero
    }
}

/// The blocks from `start` on that two and more of a family have, with who they are (by place).
fn common(family: &[Relative<'_>], start: VirtAddr) -> Vec<(PageRange, Vec<usize>)> {
    // Where each one's ranges begin and end.
    let mut edges: Vec<(VirtAddr, bool, usize)> = Vec::new();
    for (at, one) in family.iter().enumerate() {
        for range in one.ranges.iter().filter(|range| range.end() > start) {
            edges.push((range.start().max(start), true, at));
            edges.push((range.end(), false, at));
        }
    }
    edges.sort_unstable();
    let mut found = Vec::new();
    let mut pages = 0;
    let mut here: BTreeSet<usize> = BTreeSet::new();
    let mut from = start;
    for (addr, begins, who) in edges {
        if here.len() > 1 && from < addr {
            let mut begin = from;
            while begin < addr && pages < ENTRIES_MOST {
                let end = VirtAddr((begin.0 / HUGE_PAGE_BYTES + 1) * HUGE_PAGE_BYTES).min(addr);
                if let Some(range) = PageRange::new(begin, end) {
                    pages += range.pages() * here.len() as u64;
                    found.push((range, here.iter().copied().collect()));
                }
                begin = end;
            }
        }
        if pages >= ENTRIES_MOST {
            break;
        }
        from = addr;
        if begins {
            here.insert(who);
        } else {
            here.remove(&who);
        }
    }
    found
}

/// What these processes share of a range; `None`: too little.
fn compare(
    range: PageRange,
    who: &[usize],
    family: &[Relative<'_>],
    maps: &HashMap<Pid, Pagemap>,
    zero: &mut Zero,
) -> Option<Block> {
    let pages = usize::try_from(range.pages()).ok()?;
    let mut read: Vec<(TargetId, Vec<Entry>)> = Vec::new();
    for &at in who {
        let one = &family[at];
        let mut entries = vec![Entry::default(); pages];
        let filled = maps
            .get(&one.pid)?
            .read_into(range.start().page_index(), &mut entries);
        if filled.unwrap_or(0) > 0 && entries.iter().any(|e| shares(*e)) {
            read.push((one.id, entries));
        }
    }
    if read.len() < 2 {
        return None;
    }
    let mut block = Block::default();
    let (mut shared, mut last) = (0, None);
    for page in 0..pages {
        let frames = read.iter().map(|(_, entries)| entries[page]);
        let Some(pfn) = frames.clone().find(|e| shares(*e)).and_then(Entry::pfn) else {
            continue;
        };
        // The same frame again is zeros, or merged by the kernel for being alike.
        let again = last.replace(pfn) == Some(pfn);
        let have = || frames.clone().map(|e| shares(e) && e.pfn() == Some(pfn));
        if again || have().filter(|has| *has).count() < 2 || zero.known == Some(pfn) {
            continue;
        }
        if shared == 0 && zero.is(pfn) {
            // All of a huge page of zeros is of frames of their own.
            let next = read.iter().find_map(|(_, e)| e.get(page + 1)?.pfn());
            if next == Some(Pfn(pfn.0 + 1)) {
                return None;
            }
            continue;
        }
        shared += 1;
        for ((id, _), has) in read.iter().zip(have()) {
            if has {
                *block.sharers.entry(*id).or_default() += 1;
            }
        }
    }
    if shared * SOME < range.pages() {
        return None;
    }
    for (id, entries) in &read {
        let own = entries
            .iter()
            .filter(|e| e.present() && e.exclusive())
            .count() as u64;
        if own * SOME >= range.pages() {
            block.keepers.insert(*id);
        }
    }
    Some(block)
}

/// Whether an entry is of private memory that another process maps too.
fn shares(entry: Entry) -> bool {
    entry.present() && !entry.exclusive() && !entry.file_or_shared()
}

#[cfg(test)]
#[allow(clippy::decimal_bitwise_operands, reason = "numbers of frames")]
mod tests {
    use super::*;
    use std::fs;

    const PRESENT: u64 = 1 << 63;
    const OWN: u64 = PRESENT | 1 << 56;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange::new(VirtAddr(start << 12), VirtAddr(end << 12)).unwrap()
    }

    fn host(maps: &[(i32, Vec<u64>)], zeros: &[usize]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let bytes =
            |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|w| w.to_ne_bytes()).collect() };
        for (pid, entries) in maps {
            let proc = dir.path().join(format!("proc/{pid}"));
            fs::create_dir_all(&proc).unwrap();
            fs::write(proc.join("pagemap"), bytes(entries)).unwrap();
        }
        let mut flags = vec![0; 8192];
        for &zero in zeros {
            flags[zero] = 1 << 24;
        }
        fs::write(dir.path().join("proc/kpageflags"), bytes(&flags)).unwrap();
        let root = Root::at(dir.path());
        (dir, root)
    }

    /// Blocks with how much each shares, and who keeps some.
    type Told = Vec<((u64, u64), Vec<(u32, u64)>, Vec<u32>)>;

    fn look(root: &Root, forked: &mut Forked, family: &[(i32, &[PageRange])]) -> Told {
        let relatives: Vec<Relative<'_>> = family
            .iter()
            .map(|&(pid, ranges)| Relative {
                id: TargetId(pid.cast_unsigned()),
                pid: Pid(pid),
                ranges,
            })
            .collect();
        forked.next = Nanos::ZERO;
        forked.look(root, &mut Zero::new(root), &relatives);
        let told = |(range, block): (PageRange, &Block)| {
            (
                (range.start().page_index(), range.end().page_index()),
                block.sharers.iter().map(|(id, n)| (id.0, *n)).collect(),
                block.keepers.iter().map(|id| id.0).collect(),
            )
        };
        forked.blocks().map(told).collect()
    }

    #[test]
    fn blocks_belong_to_who_shares_them_and_copies_to_who_wrote_them() {
        // Of 1, 2 and 3 the first block is shared, but that 3 has copies of half of it; the
        // second is shared by 1 and 2 alone; of the third each has its own.
        let frame = |page: u64, of: u64| 1 + page + 2000 * of;
        let map = |pid: u64| -> Vec<u64> {
            (0..1536)
                .map(|page| match (page, pid) {
                    (0..256 | 512..1024, 3) | (1024.., _) => OWN | frame(page, pid),
                    _ => PRESENT | frame(page, 0),
                })
                .collect()
        };
        let (_dir, root) = host(&[(1, map(1)), (2, map(2)), (3, map(3))], &[]);
        let all = [range(0, 1536)];
        let mut forked = Forked::default();
        let told = look(&root, &mut forked, &[(1, &all), (2, &all), (3, &all)]);
        assert_eq!(
            told,
            [
                ((0, 512), vec![(1, 512), (2, 512), (3, 256)], vec![3]),
                ((512, 1024), vec![(1, 512), (2, 512)], vec![]),
            ]
        );
        // One of the two has ended: nothing is shared but with 3.
        let told = look(&root, &mut forked, &[(1, &all), (3, &all)]);
        assert_eq!(told, [((0, 512), vec![(1, 256), (3, 256)], vec![3])]);
        assert_eq!(look(&root, &mut forked, &[(1, &all)]), []);
    }

    #[test]
    fn zeros_and_what_lies_elsewhere_is_nobodys() {
        let zeros: Vec<u64> = vec![PRESENT | 7; 512];
        let huge: Vec<u64> = (0..512).map(|page| PRESENT | (1024 + page)).collect();
        let both = [zeros, huge].concat();
        let (_dir, root) = host(&[(1, both.clone()), (2, both)], &[7, 1024]);
        let all = [range(0, 1024)];
        let told = look(&root, &mut Forked::default(), &[(1, &all), (2, &all)]);
        assert_eq!(told, []);
        // Not at the same address.
        let (_dir, root) = host(&[(1, vec![PRESENT | 5]), (2, vec![0, PRESENT | 5])], &[]);
        let all = [range(0, 2)];
        let told = look(&root, &mut Forked::default(), &[(1, &all), (2, &all)]);
        assert_eq!(told, []);
    }

    #[test]
    fn common_ranges_are_cut_at_blocks_and_at_who_has_them() {
        let of = |ranges: &'static [PageRange]| Relative {
            id: TargetId(0),
            pid: Pid(1),
            ranges,
        };
        let a: &[PageRange] = Box::leak(Box::new([range(0, 600)]));
        let b: &[PageRange] = Box::leak(Box::new([range(100, 700)]));
        let c: &[PageRange] = Box::leak(Box::new([range(650, 660)]));
        let family = [of(a), of(b), of(c)];
        let told = |start: u64| -> Vec<(u64, u64, Vec<usize>)> {
            common(&family, VirtAddr(start << 12))
                .into_iter()
                .map(|(r, who)| (r.start().page_index(), r.end().page_index(), who))
                .collect()
        };
        assert_eq!(
            told(0),
            [
                (100, 512, vec![0, 1]),
                (512, 600, vec![0, 1]),
                (650, 660, vec![1, 2])
            ]
        );
        assert_eq!(told(520)[0], (520, 600, vec![0, 1]));
    }
}
