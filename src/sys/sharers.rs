//! Pages that several page tables map: through which of them each is looked at, and whether
//! anybody else maps it.
//!
//! **Problem.** What a pool of processes shares ([`Pool`]) is one target. A page of it is in
//! the page tables of those that have touched it, at one address or several, and some may
//! have a private copy instead. The page map tells that a page has other mappers, not who
//! they are; what somebody else maps too is not ours to move.
//!
//! **Approach.** A page is looked at through the first view that has it: present, and not a
//! copy of that process's own. What the process maps alone is its own target's, and the other
//! way round: no page is in both. `/proc/kpagecount` tells how many page tables map a frame.
//! The pool's views of it are counted. As many as the kernel counts: nobody else maps it.
//!
//! **Properties.** A page that somebody outside maps is never taken for the pool's alone.
//! Between the count and the move somebody may begin to map it: then it moves under them,
//! which no program can tell but by its speed.
//!
//! [`Pool`]: crate::ports::Pool

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use super::pagemap::{Entry, Pagemap, Pfn};
use super::root::Root;
use crate::ports::{Sharing, View};
use crate::tiering::observation::TargetId;
use crate::units::{PAGE_SHIFT, PageRange, Pid, VirtAddr};

/// Views of which one has a page that are asked at most; of the others it is not known.
const ASKED_MOST: usize = 16;
/// Page maps held open at most.
const MAPS_HELD: usize = 512;
/// Frames of adjacent numbers whose counts one read fetches.
const RUN: usize = 512;
/// Entries between two wanted ones that are read rather than skipped.
const MAX_GAP: usize = 16;
/// `CAP_SYS_NICE` of `linux/capability.h`: without it `MPOL_MF_MOVE_ALL` is refused.
const CAP_SYS_NICE: u32 = 23;

/// Looks at what is shared.
#[derive(Debug)]
pub(super) struct Sharers {
    root: Root,
    /// `None`: the kernel does not tell, or we may not move what others map.
    counts: Option<File>,
    sharing: Sharing,
    /// What each process maps of pools, in its own addresses.
    pooled: HashMap<Pid, Vec<PageRange>>,
    maps: HashMap<Pid, Option<Pagemap>>,
    theirs: Vec<Entry>,
}

impl Sharers {
    pub(super) fn new(root: &Root) -> Self {
        let counts = may_move_shared(root)
            .then(|| File::open(root.proc("kpagecount")).ok())
            .flatten();
        Self {
            root: root.clone(),
            counts,
            sharing: Sharing::default(),
            pooled: HashMap::new(),
            maps: HashMap::new(),
            theirs: Vec::new(),
        }
    }

    /// What is shared from now on. Page maps are opened anew.
    pub(super) fn relate(&mut self, sharing: &Sharing) {
        self.sharing.clone_from(sharing);
        self.pooled.clear();
        for view in sharing.pools().iter().flat_map(|pool| &pool.views) {
            let ends = (
                view.locate(view.range.start()),
                view.locate(view.range.end()),
            );
            let there = PageRange::new(ends.0, ends.1);
            self.pooled.entry(view.pid).or_default().extend(there);
        }
        self.let_go();
    }

    /// Closes the page maps: one that stays open tells nothing more once its process runs
    /// another program.
    pub(super) fn let_go(&mut self) {
        self.maps.clear();
    }

    /// Whether a target is a pool.
    pub(super) fn is_pool(&self, target: TargetId) -> bool {
        self.sharing.views(target).is_some()
    }

    /// Of a process's entries from page `first` on: empties those of pages that are a
    /// pool's.
    pub(super) fn hide(&self, pid: Pid, first: u64, entries: &mut [Entry]) {
        let Some(pooled) = self.pooled.get(&pid) else {
            return;
        };
        for range in pooled {
            for entry in part(entries, first, *range) {
                if entry.is_pooled() {
                    *entry = Entry::default();
                }
            }
        }
    }

    /// A pool's entries of the pages from `first` on: of each the first view's that has it,
    /// of `most` views at most; which one, by its place among all, is left in `via`.
    pub(super) fn gather(
        &mut self,
        target: TargetId,
        first: u64,
        most: Asked,
        entries: &mut [Entry],
        via: &mut Vec<usize>,
    ) {
        entries.fill(Entry::default());
        via.clear();
        via.resize(entries.len(), usize::MAX);
        let Some(views) = self.sharing.views(target).map(<[View]>::to_vec) else {
            return;
        };
        let mut left = match most {
            Asked::First => 1,
            Asked::Several => ASKED_MOST,
        };
        for (at, view) in views.iter().enumerate() {
            let open = |i: usize| !entries[i].present() && view.range.contains(page(first, i));
            let stretches = stretches(entries.len(), open);
            if stretches.is_empty() {
                continue;
            }
            for (begin, end) in stretches {
                let read = self.read(view, first + begin as u64, end - begin);
                for (i, entry) in (begin..end).zip(&self.theirs[..read]) {
                    let is_open = !entries[i].present() && view.range.contains(page(first, i));
                    if is_open && entry.is_pooled() {
                        entries[i] = *entry;
                        via[i] = at;
                    }
                }
            }
            left -= 1;
            if left == 0 {
                return;
            }
        }
    }

    /// Where a page of a pool is, as the view at this place has it.
    pub(super) fn through(
        &self,
        target: TargetId,
        via: usize,
        addr: VirtAddr,
    ) -> Option<(Pid, VirtAddr)> {
        let view = self.sharing.views(target)?.get(via)?;
        Some((view.pid, view.locate(addr)))
    }

    /// Of a pool's `entries` from page `first` on, which nobody outside maps: marked in
    /// `own`, one for each. Those that one process maps alone are not looked at.
    pub(super) fn find_own(
        &mut self,
        target: TargetId,
        first: u64,
        entries: &[Entry],
        own: &mut Vec<bool>,
    ) {
        own.clear();
        own.resize(entries.len(), false);
        let Some(counts) = &self.counts else { return };
        let Some(views) = self.sharing.views(target).map(<[View]>::to_vec) else {
            return;
        };
        let shared = |entry: &Entry| !entry.exclusive() && entry.pfn().is_some();
        if !entries.iter().any(shared) {
            return;
        }
        // How many mappings of each page are still to be found.
        let mut missing = mappings(counts, entries, shared);
        for view in &views {
            let open = |i: usize, missing: &[Option<u64>]| {
                missing[i].is_some_and(|m| m > 0) && view.range.contains(page(first, i))
            };
            for (begin, end) in stretches(missing.len(), |i| open(i, &missing)) {
                let read = self.read(view, first + begin as u64, end - begin);
                for (i, theirs) in (begin..end).zip(&self.theirs[..read]) {
                    if open(i, &missing) && entries[i].pfn() == theirs.pfn() {
                        missing[i] = missing[i].map(|m| m.saturating_sub(1));
                    }
                }
            }
        }
        for (own, missing) in own.iter_mut().zip(missing) {
            *own = missing == Some(0);
        }
    }

    /// Leaves in `theirs` what a view's process has of so many of the pool's pages. Returns
    /// how many could be read.
    fn read(&mut self, view: &View, first: u64, count: usize) -> usize {
        self.theirs.clear();
        self.theirs.resize(count, Entry::default());
        if self.maps.len() >= MAPS_HELD {
            self.maps.clear();
        }
        let (root, pid) = (&self.root, view.pid);
        let map = self
            .maps
            .entry(pid)
            .or_insert_with(|| Pagemap::open(root, pid).ok());
        let there = view.locate(VirtAddr(first << PAGE_SHIFT)).page_index();
        let read = map
            .as_ref()
            .map(|map| map.read_into(there, &mut self.theirs));
        read.and_then(Result::ok).unwrap_or(0)
    }
}

/// How many views are asked for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// The first one, of the process that the target is known by: the sampler sees no
    /// other's accesses.
    First,
    /// As many as it takes, within reason.
    Several,
}

fn page(first: u64, index: usize) -> VirtAddr {
    VirtAddr((first + index as u64) << PAGE_SHIFT)
}

/// The entries of pages within a range, of those from page `first` on.
fn part(entries: &mut [Entry], first: u64, range: PageRange) -> &mut [Entry] {
    let index = |addr: VirtAddr| {
        let at = addr.page_index().saturating_sub(first);
        usize::try_from(at).map_or(entries.len(), |at| at.min(entries.len()))
    };
    let (begin, end) = (index(range.start()), index(range.end()));
    &mut entries[begin..end.max(begin)]
}

/// How many page tables map the pages of these entries, where that is asked for and known.
fn mappings(counts: &File, entries: &[Entry], wanted: impl Fn(&Entry) -> bool) -> Vec<Option<u64>> {
    let mut found = vec![None; entries.len()];
    let mut index = 0;
    while index < entries.len() {
        let Some(Pfn(first)) = entries[index].pfn().filter(|_| wanted(&entries[index])) else {
            index += 1;
            continue;
        };
        let run = (entries[index..].iter().zip(first..))
            .take(RUN)
            .take_while(|(entry, pfn)| entry.pfn() == Some(Pfn(*pfn)))
            .count();
        let mut bytes = vec![0; run * size_of::<u64>()];
        if counts
            .read_exact_at(&mut bytes, first * size_of::<u64>() as u64)
            .is_ok()
        {
            let (words, _) = bytes.as_chunks();
            for (at, word) in (index..).zip(words) {
                let count = u64::from_ne_bytes(*word);
                // None: it has gone meanwhile.
                found[at] = (wanted(&entries[at]) && count > 0).then_some(count);
            }
        }
        index += run;
    }
    found
}

/// The stretches of indices below `count` that hold all wanted ones, small gaps included.
fn stretches(count: usize, wanted: impl Fn(usize) -> bool) -> Vec<(usize, usize)> {
    let mut found: Vec<(usize, usize)> = Vec::new();
    for index in (0..count).filter(|&i| wanted(i)) {
        match found.last_mut() {
            Some((_, end)) if index - *end <= MAX_GAP => *end = index + 1,
            _ => found.push((index, index + 1)),
        }
    }
    found
}

/// Whether we have `CAP_SYS_NICE`.
fn may_move_shared(root: &Root) -> bool {
    let status = fs::read_to_string(root.proc("self/status")).unwrap_or_default();
    let effective = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    effective
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|bits| bits >> CAP_SYS_NICE & 1 == 1)
}

#[cfg(test)]
#[allow(clippy::decimal_bitwise_operands, reason = "numbers of frames")]
mod tests {
    use super::*;
    use crate::ports::Pool;
    use proptest::prelude::*;

    const PRESENT: u64 = 1 << 63;
    const SHARED: u64 = 1 << 61;
    const EXCLUSIVE: u64 = 1 << 56;
    const POOL: TargetId = TargetId(9);

    /// A host where these processes have these entries, page by page.
    fn host(maps: &[(i32, &[u64])], counts: &[u64]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let proc = dir.path().join("proc");
        let bytes =
            |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|w| w.to_ne_bytes()).collect() };
        fs::create_dir_all(proc.join("self")).unwrap();
        fs::write(proc.join("self/status"), "CapEff:\t0000000000800000\n").unwrap();
        fs::write(proc.join("kpagecount"), bytes(counts)).unwrap();
        for &(pid, entries) in maps {
            fs::create_dir_all(proc.join(pid.to_string())).unwrap();
            fs::write(proc.join(format!("{pid}/pagemap")), bytes(entries)).unwrap();
        }
        let root = Root::at(dir.path());
        (dir, root)
    }

    fn view(pid: i32, pages: std::ops::Range<u64>, shift: i64) -> View {
        let range = PageRange::new(VirtAddr(pages.start << 12), VirtAddr(pages.end << 12));
        View {
            pid: Pid(pid),
            range: range.unwrap(),
            shift: (shift << 12).cast_unsigned(),
        }
    }

    fn sharers(root: &Root, views: Vec<View>) -> Sharers {
        let mut sharers = Sharers::new(root);
        let pool = Pool {
            target: POOL,
            views,
        };
        sharers.relate(&Sharing::of(vec![pool]));
        sharers
    }

    fn gathered(sharers: &mut Sharers, asked: Asked, pages: usize) -> Vec<(u64, usize)> {
        let (mut entries, mut via) = (vec![Entry::default(); pages], Vec::new());
        sharers.gather(POOL, 0, asked, &mut entries, &mut via);
        let frame = |e: &Entry| e.pfn().map_or(0, |pfn| pfn.0);
        entries.iter().map(frame).zip(via).collect()
    }

    #[test]
    fn each_page_is_seen_through_the_first_that_has_it_and_no_copy_of_its_own() {
        // After a fork: 1 has copies of page 1, 2 of page 2, nobody has touched page 3.
        let (own, both) = (PRESENT | EXCLUSIVE, PRESENT);
        let (_dir, root) = host(
            &[
                (1, &[both | 10, own | 21, both | 12, 0]),
                (2, &[both | 10, both | 11, own | 22, 0]),
                (3, &[both | 10, both | 11, both | 12, 0]),
            ],
            &[],
        );
        let views = [1, 2, 3].map(|pid| view(pid, 0..4, 0)).to_vec();
        let mut sharers = sharers(&root, views);
        let none = usize::MAX;
        let all = gathered(&mut sharers, Asked::Several, 4);
        assert_eq!(all, [(10, 0), (11, 1), (12, 0), (0, none)]);
        let first = gathered(&mut sharers, Asked::First, 4);
        assert_eq!(first, [(10, 0), (0, none), (12, 0), (0, none)]);
        // And a process's own are the others.
        let mut mine = [both | 10, own | 21, both | 12, 0].map(Entry);
        sharers.hide(Pid(1), 0, &mut mine);
        assert_eq!(mine, [0, own | 21, 0, 0].map(Entry));
        let mut strangers = [Entry(both | 10)];
        sharers.hide(Pid(4), 0, &mut strangers);
        assert_eq!(strangers, [Entry(both | 10)]);
    }

    #[test]
    fn shared_memory_is_seen_wherever_it_is_mapped_also_by_one_alone() {
        let shm = PRESENT | SHARED;
        // 2 maps it one page further on, and has alone what 1 has not touched.
        let (_dir, root) = host(
            &[
                (1, &[shm | 10, 0, shm | 12]),
                (2, &[0, shm | 10, shm | EXCLUSIVE | 11, 0]),
            ],
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 1, 2],
        );
        let views = vec![view(1, 0..3, 0), view(2, 0..3, 1)];
        let mut sharers = sharers(&root, views);
        let all = gathered(&mut sharers, Asked::Several, 3);
        assert_eq!(all, [(10, 0), (11, 1), (12, 0)]);
        let there = sharers.through(POOL, 1, VirtAddr(0x1000));
        assert_eq!(there, Some((Pid(2), VirtAddr(0x2000))));
        let (mut entries, mut via, mut own) = (vec![Entry::default(); 3], Vec::new(), Vec::new());
        sharers.gather(POOL, 0, Asked::Several, &mut entries, &mut via);
        sharers.find_own(POOL, 0, &entries, &mut own);
        // Whatever maps 12 beside 1 is nobody that we know.
        assert_eq!(own, [true, false, false]);
    }

    #[test]
    fn one_process_may_map_it_several_times() {
        let shm = PRESENT | SHARED;
        let (_dir, root) = host(
            &[(1, &[shm | 5, shm | 6, shm | 5, shm | 6, shm | 5, shm | 6])],
            &[0, 0, 0, 0, 0, 3, 4],
        );
        let views = [0, 2, 4].map(|shift| view(1, 0..2, shift)).to_vec();
        let mut sharers = sharers(&root, views);
        let entries = [Entry(shm | 5), Entry(shm | 6)];
        let mut own = Vec::new();
        sharers.find_own(POOL, 0, &entries, &mut own);
        assert_eq!(own, [true, false]);
    }

    #[test]
    fn nothing_is_ours_without_the_right_to_move_it() {
        let (dir, root) = host(&[(1, &[PRESENT | 1]), (2, &[PRESENT | 1])], &[0, 2]);
        let views = || vec![view(1, 0..1, 0), view(2, 0..1, 0)];
        let own = |sharers: &mut Sharers| {
            let mut own = Vec::new();
            sharers.find_own(POOL, 0, &[Entry(PRESENT | 1)], &mut own);
            own
        };
        assert_eq!(own(&mut sharers(&root, views())), [true]);
        let status = dir.path().join("proc/self/status");
        fs::write(status, "CapEff:\t0000000000000000\n").unwrap();
        assert_eq!(own(&mut sharers(&root, views())), [false]);
    }

    proptest! {
        /// Whatever is mapped where: a page is the pool's own exactly if its views have all
        /// of its mappings.
        #[test]
        fn as_many_as_the_kernel_counts(
            maps in proptest::collection::vec(
                proptest::collection::vec(0_u64..12, 40), 1..4),
            outside in proptest::collection::vec(0_u64..2, 12),
        ) {
            let entries: Vec<Vec<u64>> = maps.iter()
                .map(|m| m.iter().map(|&f| if f == 0 { 0 } else { PRESENT | f }).collect())
                .collect();
            let held: Vec<(i32, &[u64])> = (1..).zip(entries.iter().map(|e| &e[..])).collect();
            let mut counts = outside.clone();
            for frame in maps.iter().flatten() {
                counts[usize::try_from(*frame).unwrap()] += 1;
            }
            let (_dir, root) = host(&held, &counts);
            let views = held.iter().map(|&(pid, _)| view(pid, 0..40, 0)).collect();
            let mut sharers = sharers(&root, views);
            let (mut found, mut via, mut own) =
                (vec![Entry::default(); 40], Vec::new(), Vec::new());
            sharers.gather(POOL, 0, Asked::Several, &mut found, &mut via);
            sharers.find_own(POOL, 0, &found, &mut own);
            for (page, own) in own.into_iter().enumerate() {
                let frame = found[page].pfn().map_or(0, |pfn| pfn.0);
                let here = maps.iter().filter(|m| m[page] == frame).count() as u64;
                let count = counts[usize::try_from(frame).unwrap()];
                prop_assert_eq!(own, frame != 0 && here == count);
            }
        }
    }
}
