//! What several processes map, on the kernel that runs the test: moved for all of them
//! where all are of one target, and never else.
//!
//! Needs several memory nodes and root; a test that lacks something says why it skipped.
#![allow(clippy::unwrap_used, unsafe_code)]

use std::ffi::CStr;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use hmkeeper::ports::{
    PageMover, Pool, Residency, Selector, Sharing, TargetSpec, Targets, Topology, View,
};
use hmkeeper::sys::move_pages::locate;
use hmkeeper::sys::mover::SysMover;
use hmkeeper::sys::numa::{Buffer, HugePages};
use hmkeeper::sys::residency::SysResidency;
use hmkeeper::sys::root::Root;
use hmkeeper::sys::targets::SysTargets;
use hmkeeper::sys::topology::SysTopology;
use hmkeeper::tiering::observation::{Exclusion, TargetId, TargetMap};
use hmkeeper::tiering::plan::{PageCounts, Sweep};
use hmkeeper::units::{Bytes, HUGE_PAGE_BYTES, NodeId, PageRange, Pid, VirtAddr};

use crate::place::{
    Fork, asked, buffer_on, check_content, count, huge_bytes, limits, moved, nodes, shared_memory,
    us,
};

/// A buffer that these processes share, as target 1.
fn pool(pids: &[Pid], range: PageRange) -> Sharing {
    let view = |&pid: &Pid| View {
        pid,
        range,
        shift: 0,
    };
    Sharing::of(vec![Pool {
        target: TargetId(1),
        views: pids.iter().map(view).collect(),
    }])
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
    mover.relate(&pool(pids, buffer.range()));
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
    // A page of our own stays ours; the one that the others have instead moves for both.
    buffer.bind(last).unwrap();
    buffer.words()[0].store(1, Relaxed);
    buffer.unbind().unwrap();
    assert_eq!(move_as(&[us(), a, b], &buffer, last, first), moved(256));
    for (pid, moved) in [(us(), 255), (a, 256), (b, 256)] {
        assert_eq!(count_of(pid, &buffer, first), moved);
    }
    check_content(&buffer);
    // And back.
    assert_eq!(move_as(&[b, a, us()], &buffer, first, last), moved(256));
    assert_eq!(count_of(a, &buffer, first), 0);
    // What is counted and moved as ours is that page alone.
    let mut mover = SysMover::new(&Root::host());
    let mut residency = SysResidency::new(&Root::host());
    let sharing = pool(&[us(), a, b], buffer.range());
    mover.relate(&sharing);
    residency.relate(&sharing);
    let mut counted = |target| {
        let sweep = Sweep {
            target: TargetId(target),
            pid: us(),
            range: buffer.range(),
        };
        residency.sweep(sweep).unwrap().pages_by_node
    };
    assert_eq!(counted(1), [(last, 256)]);
    assert_eq!(counted(7), [(last, 1)]);
    let mut mine = asked(us(), buffer.range(), last, first);
    mine.target = TargetId(7);
    let outcome = mover.apply(&[mine], limits()).unwrap();
    assert_eq!(outcome.results[0].pages, moved(1));
    assert_eq!(count_of(us(), &buffer, first), 1);
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

/// The command's name of the pool's processes.
const POOL: &CStr = c"hmk-test-pool";

fn content(page: usize) -> u8 {
    1 + page.to_le_bytes()[0] % 251
}

/// In a child, which may not allocate.
fn name_and_touch(memory: &[AtomicU8], pages: Range<usize>) {
    // SAFETY: a name that stays.
    unsafe { libc::prctl(libc::PR_SET_NAME, POOL.as_ptr()) };
    for page in pages {
        memory[page * 4096].store(content(page), Relaxed);
    }
}

#[test]
fn shared_memory_is_one_target_for_all_who_map_it() {
    let Some((_guard, nodes)) = nodes() else {
        return;
    };
    let memory = shared_memory(4 << 20);
    let start = VirtAddr(memory.as_ptr().addr() as u64);
    let root = Root::host();
    // The parent of a pool maps it and touches nothing; two workers half of it each.
    let processes =
        [0..0, 0..512, 512..1024].map(|pages| Fork::new(|| name_and_touch(memory, pages)));
    let [parent, worker, other] = [&processes[0], &processes[1], &processes[2]].map(Fork::pid);
    let tiers = SysTopology::new(&root, None).read().unwrap();
    let mut targets = SysTargets::new(&root, &tiers);
    let mut read = |move_shared| {
        targets.select(&[TargetSpec {
            selector: Selector::Comm(POOL.to_str().unwrap().into()),
            move_shared,
            ..TargetSpec::of_pid(us())
        }]);
        let maps = targets.read(&mut Vec::new()).unwrap();
        (maps, targets.sharing())
    };
    let has = |map: &&TargetMap| map.eligible.iter().any(|r| r.contains(start));
    let excluded = |maps: &[TargetMap]| {
        let all = maps.iter().flat_map(|m| &m.excluded);
        let shared = all.filter(|(why, _)| *why == Exclusion::Shared);
        shared.map(|&(_, bytes)| bytes).sum::<Bytes>()
    };
    let (maps, sharing) = read(false);
    assert_eq!(maps.iter().filter(has).count(), 0);
    assert_eq!(
        (excluded(&maps), sharing),
        (Bytes::from_mib(12), Sharing::default())
    );
    let (maps, sharing) = read(true);
    let pids: Vec<Pid> = maps[..3].iter().map(|map| map.pid).collect();
    assert_eq!(pids, [parent, worker, other]);
    assert_eq!((maps.len(), excluded(&maps)), (4, Bytes::ZERO));
    assert_eq!(maps.iter().filter(has).count(), 1);
    let shared = &maps[3];
    assert_eq!(shared.sharers, 3);
    assert_eq!(shared.eligible[0].bytes(), Bytes::from_mib(4));
    let views = sharing.views(shared.id).unwrap();
    assert_eq!(views.len(), 3);
    let (again, same) = read(true);
    assert_eq!((again[3].id, &same), (shared.id, &sharing));

    let mut mover = SysMover::new(&root);
    mover.relate(&sharing);
    let slow = nodes[nodes.len() - 1].node;
    let mut all_to = |to: NodeId| {
        let others = nodes.iter().map(|n| n.node).filter(|&n| n != to);
        let to_node = |from| {
            let mut asked = asked(shared.pid, shared.eligible[0], from, to);
            asked.target = shared.id;
            asked
        };
        let moves: Vec<_> = others.map(to_node).collect();
        let outcome = mover.apply(&moves, limits()).unwrap();
        for (pid, pages) in [(worker, 0..512), (other, 512..1024)] {
            let pages: Vec<VirtAddr> = pages.map(|p| VirtAddr(start.0 + p * 4096)).collect();
            let found = locate(Some(pid), &pages).unwrap();
            assert!(found.iter().all(|&n| n == Some(to)), "{pid}: {outcome:?}");
        }
    };
    all_to(slow);
    all_to(nodes[0].node);
    for (page, byte) in memory.iter().step_by(4096).enumerate() {
        assert_eq!(byte.load(Relaxed), content(page), "page {page}");
    }
}
