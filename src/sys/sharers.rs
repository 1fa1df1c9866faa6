//! Who maps the pages that a process does not map alone.
//!
//! **Problem.** The page map tells that a page has other mappers, not who they are. What
//! a server's own processes share (a forked pool's memory, PostgreSQL's buffers) can be
//! moved for all of them at once; what somebody else maps too is not ours to move.
//!
//! **Approach.** `/proc/kpagecount` tells how many page tables map a frame. Those of
//! the target's [`Families`] are counted: what a fork or an inherited mapping shares has
//! the same address in all of them, so the same entry of each one's page map is compared.
//! As many as the kernel counts: nobody else maps it.
//!
//! **Properties.** A page that somebody outside maps, or one of ours at another address, is
//! never taken for ours alone. Between the count and the move somebody may begin to map it:
//! then it moves under them, which no program can tell but by its speed.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use super::pagemap::{Entry, Pagemap, Pfn};
use super::root::Root;
use crate::ports::Families;
use crate::units::Pid;

/// Processes compared at most: each is another page map to read.
const FAMILY_MOST: usize = 256;
/// Page maps held open at most.
const MAPS_HELD: usize = 512;
/// Frames of adjacent numbers whose counts one read fetches.
const RUN: usize = 512;
/// Entries between two shared pages that are read rather than skipped.
const MAX_GAP: usize = 16;
/// `CAP_SYS_NICE` of `linux/capability.h`: without it `MPOL_MF_MOVE_ALL` is refused.
const CAP_SYS_NICE: u32 = 23;

/// Tells pages that only a target's own processes map.
#[derive(Debug)]
pub(super) struct Sharers {
    root: Root,
    /// `None`: the kernel does not tell, or we may not move what others map.
    counts: Option<File>,
    families: Families,
    maps: HashMap<Pid, Option<Pagemap>>,
    theirs: Vec<Entry>,
    /// Whether it was said that a family is too large.
    told: bool,
}

impl Sharers {
    pub(super) fn new(root: &Root) -> Self {
        let counts = may_move_shared(root)
            .then(|| File::open(root.proc("kpagecount")).ok())
            .flatten();
        Self {
            root: root.clone(),
            counts,
            families: Families::default(),
            maps: HashMap::new(),
            theirs: Vec::new(),
            told: false,
        }
    }

    /// Who belongs together from now on. Page maps are opened anew.
    pub(super) fn relate(&mut self, families: &Families) {
        self.tell_limit(families);
        self.families.clone_from(families);
        self.let_go();
    }

    /// Says once that a family is too large to be compared.
    fn tell_limit(&mut self, families: &Families) {
        let most = families.largest();
        if most > FAMILY_MOST && !std::mem::replace(&mut self.told, true) {
            tracing::warn!(
                "{most} processes of one [[targets]] are watched, and up to {FAMILY_MOST} are compared: memory that \
                 these share with each other is not moved; select fewer by a section"
            );
        }
    }

    /// Closes the page maps: one that stays open tells nothing more once its process runs
    /// another program.
    pub(super) fn let_go(&mut self) {
        self.maps.clear();
    }

    /// Of a process's `entries`, from page `first` on, which are of pages that only its
    /// family maps: marked in `own`, one for each. Those that it maps alone are not
    /// looked at.
    pub(super) fn find_own(
        &mut self,
        pid: Pid,
        first: u64,
        entries: &[Entry],
        own: &mut Vec<bool>,
    ) {
        own.clear();
        own.resize(entries.len(), false);
        let Some(counts) = &self.counts else { return };
        let family = self.families.of_process(pid).unwrap_or_default();
        if family.is_empty() || family.len() > FAMILY_MOST {
            return;
        }
        let shared = |entry: &Entry| !entry.exclusive() && entry.pfn().is_some();
        if !entries.iter().any(shared) {
            return;
        }
        // How many mappings of each page are still to be found.
        let mut missing = mappings(counts, entries, shared);
        for missing in missing.iter_mut().flatten() {
            *missing -= 1;
        }
        let others: Vec<Pid> = family.iter().copied().filter(|&p| p != pid).collect();
        for other in others {
            let is_open = |m: &Option<u64>| m.is_some_and(|m| m > 0);
            if !missing.iter().any(is_open) {
                break;
            }
            if self.maps.len() >= MAPS_HELD {
                self.maps.clear();
            }
            let root = &self.root;
            let map = (self.maps.entry(other)).or_insert_with(|| Pagemap::open(root, other).ok());
            let Some(map) = map else { continue };
            for (begin, end) in stretches(missing.len(), |i| is_open(&missing[i])) {
                self.theirs.clear();
                self.theirs.resize(end - begin, Entry::default());
                let read = map.read_into(first + begin as u64, &mut self.theirs);
                let theirs = &self.theirs[..read.unwrap_or(0)];
                let mine = entries[begin..end].iter().zip(&mut missing[begin..end]);
                for ((mine, missing), theirs) in mine.zip(theirs) {
                    if let Some(missing) = missing
                        && mine.pfn() == theirs.pfn()
                    {
                        *missing = missing.saturating_sub(1);
                    }
                }
            }
        }
        for (own, missing) in own.iter_mut().zip(missing) {
            *own = missing == Some(0);
        }
    }
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
mod tests {
    use super::*;
    use crate::tiering::observation::{Mapped, Share, TargetId, TargetKind, TargetMap};
    use crate::units::{Nanos, NodeId};
    use proptest::prelude::*;

    const PRESENT: u64 = 1 << 63;
    const EXCLUSIVE: u64 = 1 << 56;

    fn target(pid: i32, entry: u32) -> TargetMap {
        TargetMap {
            id: TargetId(0),
            pid: Pid(pid),
            name: "pool".into(),
            kind: TargetKind::Generic,
            eligible: Vec::new(),
            cpu_time: Nanos::ZERO,
            memory_time: Nanos::ZERO,
            cpu_share: Vec::new(),
            allowed_nodes: None,
            excluded: Vec::new(),
            mapped: Mapped::default(),
            share: Share {
                entry,
                ..Share::default()
            },
        }
    }

    /// A host where these processes map these frames, page by page; 0 is none.
    fn host(maps: &[(i32, &[u64])], counts: &[u64]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let proc = dir.path().join("proc");
        let bytes =
            |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|w| w.to_ne_bytes()).collect() };
        fs::create_dir_all(proc.join("self")).unwrap();
        fs::write(proc.join("self/status"), "CapEff:\t0000000000800000\n").unwrap();
        fs::write(proc.join("kpagecount"), bytes(counts)).unwrap();
        for &(pid, frames) in maps {
            fs::create_dir_all(proc.join(pid.to_string())).unwrap();
            let entry = |&frame: &u64| if frame == 0 { 0 } else { PRESENT | frame };
            let entries: Vec<u64> = frames.iter().map(entry).collect();
            fs::write(proc.join(format!("{pid}/pagemap")), bytes(&entries)).unwrap();
        }
        let root = Root::at(dir.path());
        (dir, root)
    }

    fn own(root: &Root, families: &Families, entries: &[Entry]) -> Vec<bool> {
        let mut sharers = Sharers::new(root);
        sharers.relate(families);
        let mut own = Vec::new();
        sharers.find_own(Pid(1), 0, entries, &mut own);
        own
    }

    #[test]
    fn own_is_what_nobody_outside_of_the_family_maps() {
        // Frame 5 is mapped by 1 and 2; 6 by a stranger as well; 7 at another address of 2;
        // 8 by 1 alone; 9 by 2 and 3.
        let (_dir, root) = host(
            &[(2, &[5, 6, 0, 7, 9]), (3, &[0, 0, 0, 0, 9])],
            &[0, 0, 0, 0, 0, 2, 3, 2, 1, 3],
        );
        let entry = |frame, bits| Entry(PRESENT | bits | frame);
        let entries = [
            entry(5, 0),
            entry(6, 0),
            entry(7, 0),
            entry(8, EXCLUSIVE),
            entry(9, 0),
            Entry(0),
        ];
        let families = Families::of(&[target(1, 0), target(2, 0), target(3, 0), target(4, 0)]);
        assert_eq!(
            own(&root, &families, &entries),
            [true, false, false, false, true, false]
        );
        let without = Families::of(&[target(1, 0), target(2, 0), target(3, 1)]);
        assert!(!own(&root, &without, &entries)[4], "3 is somebody else's");
        let mut elsewhere = [target(1, 0), target(2, 0)];
        elsewhere[1].allowed_nodes = Some(vec![NodeId(1)]);
        assert_eq!(own(&root, &Families::of(&elsewhere), &entries), [false; 6]);
        let alone = Families::of(&[target(1, 0), target(2, 1)]);
        assert_eq!(own(&root, &alone, &entries), [false; 6]);
    }

    #[test]
    fn nothing_is_ours_without_the_right_to_move_it() {
        let (dir, root) = host(&[(2, &[1])], &[0, 2]);
        let families = Families::of(&[target(1, 0), target(2, 0)]);
        let entries = [Entry(PRESENT | 1)];
        assert_eq!(own(&root, &families, &entries), [true]);
        let status = dir.path().join("proc/self/status");
        fs::write(status, "CapEff:\t0000000000000000\n").unwrap();
        assert_eq!(own(&root, &families, &entries), [false]);
    }

    proptest! {
        /// Whatever is mapped where: a page is ours exactly if the family's page tables
        /// hold all of its mappings at that place.
        #[test]
        fn as_many_as_the_kernel_counts(
            maps in proptest::collection::vec(
                proptest::collection::vec(0_u64..12, 40), 1..4),
            outside in proptest::collection::vec(0_u64..2, 12),
        ) {
            let pids = [2, 3, 4];
            let held: Vec<(i32, &[u64])> =
                pids.iter().zip(&maps).map(|(&p, m)| (p, &m[..])).collect();
            let mine: Vec<u64> = (0..40).map(|page| page % 12).collect();
            let mut counts = outside.clone();
            for frame in maps.iter().flatten().chain(&mine) {
                counts[usize::try_from(*frame).unwrap()] += 1;
            }
            let (_dir, root) = host(&held, &counts);
            let mut all = vec![target(1, 0)];
            all.extend(held.iter().map(|&(pid, _)| target(pid, 0)));
            let entries: Vec<Entry> = mine.iter()
                .map(|&f| if f == 0 { Entry(0) } else { Entry(PRESENT | f) }).collect();
            let got = own(&root, &Families::of(&all), &entries);
            for (page, own) in got.into_iter().enumerate() {
                let frame = mine[page];
                let here = 1 + maps.iter().filter(|m| m[page] == frame).count() as u64;
                let count = counts[usize::try_from(frame).unwrap()];
                prop_assert_eq!(own, frame != 0 && here == count);
            }
        }
    }
}
