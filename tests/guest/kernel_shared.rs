//! What several processes map, on the kernel that runs the test: moved for all of them
//! where all are of one target, and never else.
//!
//! Needs several memory nodes and root; a test that lacks something says why it skipped.
#![allow(clippy::unwrap_used, unsafe_code)]

use std::ffi::CStr;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use hmkeeper::ports::{Families, PageMover, Selector, TargetSpec, Targets, Topology};
use hmkeeper::sys::move_pages::locate;
use hmkeeper::sys::mover::SysMover;
use hmkeeper::sys::numa::{Buffer, HugePages};
use hmkeeper::sys::root::Root;
use hmkeeper::sys::targets::SysTargets;
use hmkeeper::sys::topology::SysTopology;
use hmkeeper::tiering::observation::{Exclusion, Mapped, Share, TargetId, TargetKind, TargetMap};
use hmkeeper::tiering::plan::PageCounts;
use hmkeeper::units::{Bytes, HUGE_PAGE_BYTES, Nanos, NodeId, Pid, VirtAddr};

use crate::place::{
    Fork, asked, buffer_on, check_content, count, huge_bytes, limits, moved, nodes, us,
};

/// Processes of one target.
fn family(pids: &[Pid]) -> Families {
    let target = |&pid: &Pid| TargetMap {
        id: TargetId(0),
        pid,
        name: "pool".into(),
        kind: TargetKind::Generic,
        eligible: Vec::new(),
        cpu_time: Nanos::ZERO,
        memory_time: Nanos::ZERO,
        cpu_share: Vec::new(),
        allowed_nodes: None,
        excluded: Vec::new(),
        mapped: Mapped::default(),
        share: Share::default(),
    };
    Families::of(&pids.iter().map(target).collect::<Vec<_>>())
}

/// Pages of a buffer on a node as another process maps them.
fn count_of(pid: Pid, buffer: &Buffer, node: NodeId) -> usize {
    let pages: Vec<VirtAddr> = buffer.range().iter_pages().collect();
    let found = locate(Some(pid), &pages).unwrap();
    found.iter().filter(|&&n| n == Some(node)).count()
}

/// Moves a buffer from one node to another as one of `pids`.
fn move_as(pids: &[Pid], buffer: &Buffer, from: NodeId, to: NodeId) -> PageCounts {
    let mut mover = SysMover::new(&Root::host());
    mover.relate(&family(pids));
    let moves = [asked(us(), buffer.range(), from, to)];
    let outcome = mover.apply(&moves, limits()).unwrap();
    outcome.results[0].pages
}

#[test]
fn what_a_fork_shares_moves_for_all_when_all_are_of_the_target() {
    let Some((_guard, nodes)) = nodes() else {
        return;
    };
    let (first, last) = (nodes[0].node, nodes[nodes.len() - 1].node);
    let buffer = buffer_on(last, Bytes::from_mib(1), HugePages::Refused);
    let children = [(); 2].map(|()| Fork::new(|| {}));
    let [a, b] = [children[0].pid(), children[1].pid()];
    let shared = PageCounts {
        shared: 256,
        ..PageCounts::default()
    };
    // One of them is nobody's here.
    assert_eq!(move_as(&[us(), a], &buffer, last, first), shared);
    assert_eq!(count(&buffer, last), 256);
    // A page of our own, and the one that the others have instead: no more and no less. It
    // would else lie where the CPU is that writes to it.
    buffer.bind(last).unwrap();
    buffer.words()[0].store(1, Relaxed);
    buffer.unbind().unwrap();
    assert_eq!(move_as(&[us(), a, b], &buffer, last, first), moved(256));
    for (pid, moved) in [(us(), 256), (a, 255), (b, 255)] {
        assert_eq!(count_of(pid, &buffer, first), moved);
    }
    check_content(&buffer);
    // And back.
    assert_eq!(move_as(&[b, a, us()], &buffer, first, last), moved(256));
    assert_eq!(count_of(a, &buffer, first), 0);
}

#[test]
fn huge_pages_that_a_fork_shares_move_as_a_whole() {
    let Some((_guard, nodes)) = nodes() else {
        return;
    };
    let (first, last) = (nodes[0].node, nodes[nodes.len() - 1].node);
    let bytes = Bytes(2 * HUGE_PAGE_BYTES);
    let buffer = buffer_on(last, bytes, HugePages::Wanted);
    if huge_bytes(&buffer) != bytes.0 {
        eprintln!("skipped: no transparent huge pages to be had");
        return;
    }
    let child = Fork::new(|| {});
    assert_eq!(move_as(&[us()], &buffer, last, first).shared, 1024);
    let both = [us(), child.pid()];
    assert_eq!(move_as(&both, &buffer, last, first), moved(1024));
    assert_eq!(huge_bytes(&buffer), bytes.0);
    assert_eq!(count_of(child.pid(), &buffer, first), 1024);
    check_content(&buffer);
}

/// 4 MiB that `mmap` maps as shared, touched by whoever calls it, on this node.
fn shared_memory() -> &'static [AtomicU8] {
    const LENGTH: usize = 4 << 20;
    // SAFETY: a mapping of our own that stays; zeros are what atomics may hold.
    unsafe {
        let addr = libc::mmap(
            std::ptr::null_mut(),
            LENGTH,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(addr, libc::MAP_FAILED);
        std::slice::from_raw_parts(addr.cast(), LENGTH)
    }
}

/// The command's name of the pool's processes.
const POOL: &CStr = c"hmk-test-pool";

fn content(page: usize) -> u8 {
    1 + page.to_le_bytes()[0] % 251
}

/// In a child, which may not allocate.
fn name_and_touch(memory: &[AtomicU8], pages: usize) {
    // SAFETY: a name that stays.
    unsafe { libc::prctl(libc::PR_SET_NAME, POOL.as_ptr()) };
    for (page, byte) in memory.iter().step_by(4096).take(pages).enumerate() {
        byte.store(content(page), Relaxed);
    }
}

#[test]
fn shared_memory_is_watched_and_moved_through_who_has_most_of_it() {
    let Some((_guard, nodes)) = nodes() else {
        return;
    };
    let memory = shared_memory();
    let start = VirtAddr(memory.as_ptr().addr() as u64);
    let root = Root::host();
    // The parent of a pool maps it and touches nothing; one worker all, another a tenth.
    let pool = [0, 1024, 100].map(|pages| Fork::new(|| name_and_touch(memory, pages)));
    let [parent, worker, little] = [&pool[0], &pool[1], &pool[2]].map(Fork::pid);
    let tiers = SysTopology::new(&root, None).read().unwrap();
    let mut targets = SysTargets::new(&root, &tiers);
    let mut read = |move_shared| {
        targets.select(&[TargetSpec {
            selector: Selector::Comm(POOL.to_str().unwrap().into()),
            move_shared,
            ..TargetSpec::of_pid(us())
        }]);
        let maps = targets.read(&mut Vec::new()).unwrap();
        let pids: Vec<Pid> = maps.iter().map(|m| m.pid).collect();
        assert_eq!(pids, [parent, worker, little]);
        maps
    };
    let owners = |maps: &[TargetMap]| -> Vec<Pid> {
        let has = |map: &&TargetMap| map.eligible.iter().any(|r| r.contains(start));
        maps.iter().filter(has).map(|m| m.pid).collect()
    };
    let excluded = |maps: &[TargetMap]| {
        let all = maps.iter().flat_map(|m| &m.excluded);
        let shared = all.filter(|(why, _)| *why == Exclusion::Shared);
        shared.map(|&(_, bytes)| bytes).sum::<Bytes>()
    };
    let maps = read(false);
    assert_eq!(
        (owners(&maps), excluded(&maps)),
        (vec![], Bytes::from_mib(12))
    );
    // Who is there first, and then who has most.
    assert_eq!(owners(&read(true)), [parent]);
    let maps = read(true);
    assert_eq!(
        (owners(&maps), excluded(&maps)),
        (vec![worker], Bytes::ZERO)
    );

    let mut mover = SysMover::new(&root);
    mover.relate(&Families::of(&maps));
    let range = maps[1].eligible.iter().find(|r| r.contains(start)).unwrap();
    let slow = nodes[nodes.len() - 1].node;
    let mut all_to = |to: NodeId| {
        let others = nodes.iter().map(|n| n.node).filter(|&n| n != to);
        let moves: Vec<_> = others.map(|from| asked(worker, *range, from, to)).collect();
        let outcome = mover.apply(&moves, limits()).unwrap();
        for (pid, pages) in [(worker, 1024), (little, 100)] {
            let pages_there: Vec<VirtAddr> =
                (0..pages).map(|p| VirtAddr(start.0 + p * 4096)).collect();
            let found = locate(Some(pid), &pages_there).unwrap();
            assert!(found.iter().all(|&n| n == Some(to)), "{pid}: {outcome:?}");
        }
    };
    all_to(slow);
    all_to(nodes[0].node);
    for (page, byte) in memory.iter().step_by(4096).enumerate() {
        assert_eq!(byte.load(Relaxed), content(page), "page {page}");
    }
}
