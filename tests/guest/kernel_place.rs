//! Moving and finding pages on the kernel that runs the test.
//!
//! Needs several memory nodes and root; a test that lacks something says why
//! it skipped. One at a time: they fill nodes and count what is free.
#![allow(clippy::unwrap_used, unsafe_code)]

// vm: topology=4tier timeout=900

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use hmkeeper::ports::{MoveLimits, PageMover, Residency, TargetSpec, Targets, Threads, Topology};
use hmkeeper::sys::move_pages::{Which, locate, move_to};
use hmkeeper::sys::mover::SysMover;
use hmkeeper::sys::numa::{Buffer, HugePages, WORDS_PER_PAGE};
use hmkeeper::sys::residency::SysResidency;
use hmkeeper::sys::root::Root;
use hmkeeper::sys::targets::SysTargets;
use hmkeeper::sys::topology::SysTopology;
use hmkeeper::tiering::observation::{Exclusion, TargetId};
use hmkeeper::tiering::plan::{Move, PageCounts, Sweep};
use hmkeeper::units::{
    Bandwidth, Bytes, HUGE_PAGE_BYTES, Nanos, NodeId, PAGE_BYTES, PageRange, Pid, VirtAddr,
};

use crate::place::{
    Fork, Pinned, Registered, Setting, asked, bind_when_told, buffer_on, check_content, count,
    huge_bytes, limits, move_all, moved, nodes, pages, touch, us, usage,
};

#[test]
fn small_pages_move_between_all_pairs_of_nodes() {
    let Some((_guard, nodes)) = nodes() else {
        return;
    };
    let mib = Bytes::from_mib(2);
    for from in &nodes {
        let buffer = buffer_on(from.node, mib, HugePages::Refused);
        for to in nodes.iter().filter(|n| n.node != from.node) {
            assert_eq!(move_all(&buffer, from.node, to.node), moved(512));
            assert_eq!(count(&buffer, to.node), 512);
            check_content(&buffer);
            assert_eq!(move_all(&buffer, to.node, from.node), moved(512));
        }
        // Nothing is elsewhere now: nothing to do, and nothing counted.
        assert_eq!(
            move_all(&buffer, NodeId(u32::MAX >> 1), from.node),
            PageCounts::default()
        );
    }
}

#[test]
fn moves_of_one_range_find_pages_of_their_own() {
    let Some((_guard, nodes)) = nodes() else {
        return;
    };
    let (from, to) = (nodes[0].node, nodes[1].node);
    let buffer = buffer_on(from, Bytes::from_mib(2), HugePages::Refused);
    // As for two promotions that need its place: 200 pages, 300, and more than are left.
    let asked = [200, 300, 50].map(|pages| Move {
        limit: Bytes::from_pages(pages),
        ..asked(us(), buffer.range(), from, to)
    });
    let outcome = SysMover::new(&Root::host())
        .apply(&asked, limits())
        .unwrap();
    let told: Vec<_> = outcome
        .results
        .iter()
        .map(|r| (r.pages, r.is_whole))
        .collect();
    assert_eq!(
        told,
        [(moved(200), false), (moved(300), false), (moved(12), true)]
    );
    assert_eq!(count(&buffer, to), 512);
}

#[test]
fn huge_pages_move_as_one_and_stay_huge() {
    let Some((_guard, nodes)) = nodes() else {
        return;
    };
    let bytes = Bytes(4 * HUGE_PAGE_BYTES);
    let (first, last) = (nodes[0].node, nodes[nodes.len() - 1].node);
    let buffer = buffer_on(last, bytes, HugePages::Wanted);
    if huge_bytes(&buffer) != bytes.0 {
        eprintln!("skipped: no transparent huge pages to be had");
        return;
    }
    assert_eq!(move_all(&buffer, last, first), moved(2048));
    assert_eq!(count(&buffer, first), 2048);
    assert_eq!(huge_bytes(&buffer), bytes.0);
    check_content(&buffer);
    // A limit of one page takes one folio, the lowest.
    let one = Move {
        limit: Bytes(PAGE_BYTES),
        ..asked(us(), buffer.range(), first, last)
    };
    let outcome = SysMover::new(&Root::host())
        .apply(&[one], limits())
        .unwrap();
    assert_eq!(outcome.results[0].pages, moved(512));
    assert_eq!(count(&buffer, last), 512);
}

#[test]
fn folios_of_other_orders_move_as_one() {
    const SIZES: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled";
    let Some((_guard, nodes)) = nodes() else {
        return;
    };
    let Ok(_setting) = Setting::new(SIZES, "always") else {
        eprintln!("skipped: this kernel has no folios of 64 KiB");
        return;
    };
    let Ok(_small) = Setting::new(
        "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled",
        "never",
    ) else {
        eprintln!("skipped: huge pages cannot be turned off by size");
        return;
    };
    let (first, last) = (nodes[0].node, nodes[nodes.len() - 1].node);
    let buffer = buffer_on(last, Bytes::from_mib(4), HugePages::Wanted);
    let one = Move {
        limit: Bytes(PAGE_BYTES),
        ..asked(us(), buffer.range(), last, first)
    };
    let mut mover = SysMover::new(&Root::host());
    let outcome = mover.apply(&[one], limits()).unwrap();
    assert_eq!(outcome.results[0].pages, moved(16), "one folio of 64 KiB");
    assert_eq!(count(&buffer, first), 16);
    assert_eq!(move_all(&buffer, last, first), moved(1024 - 16));
    check_content(&buffer);
}

#[test]
fn a_full_destination_is_data_and_keeps_its_reserve() {
    let Some((_guard, nodes)) = nodes() else {
        return;
    };
    // The second node is filled: the first has most of what the kernel needs.
    let to = nodes[1];
    if to.free > Bytes::from_mib(4096) {
        eprintln!(
            "skipped: node {} is too large to be filled in a test",
            to.node
        );
        return;
    }
    let to = to.node;
    let others = nodes.iter().filter(|n| n.node != to);
    let from = others.max_by_key(|n| n.free).unwrap().node;
    let usage = |node| *usage().iter().find(|n| n.node == node).unwrap();
    // What the kernel frees of the page cache meanwhile would be room as well.
    let _ = std::fs::write("/proc/sys/vm/drop_caches", "3");
    let now = usage(to);
    // The kernel's own needs (page tables, page cache) come out of it too.
    let room = Bytes::from_mib(24);
    let fill = now.free.saturating_sub(now.reserve).saturating_sub(room);
    let _filler = buffer_on(to, fill, HugePages::Refused);
    let buffer = buffer_on(from, Bytes::from_mib(96), HugePages::Refused);
    let counts = move_all(&buffer, from, to);
    eprintln!("full: {counts:?}, {:?}", usage(to));
    assert_eq!(pages(counts), buffer.range().pages());
    assert!(counts.moved > 0, "{counts:?}");
    assert!(counts.no_room > 0, "{counts:?}");
    assert_eq!(counts.deferred, 0, "{counts:?}");
    let after = usage(to);
    let slack = Bytes::from_mib(8);
    assert!(after.free + slack >= after.reserve, "{after:?}");
    check_content(&buffer);
}

#[test]
fn pinned_pages_are_busy_and_the_others_move() {
    let Some((_guard, nodes)) = nodes() else {
        return;
    };
    let (first, last) = (nodes[0].node, nodes[nodes.len() - 1].node);
    let buffer = buffer_on(last, Bytes::from_mib(1), HugePages::Refused);
    let pinned = Pinned::new(&buffer, 8);
    let counts = move_all(&buffer, last, first);
    drop(pinned);
    assert_eq!(
        counts,
        PageCounts {
            moved: 248,
            busy: 8,
            ..PageCounts::default()
        }
    );
    assert_eq!(count(&buffer, first), 248);
}

#[test]
fn a_pinned_page_in_each_of_many_groups_keeps_no_other_from_moving() {
    let Some((_guard, nodes)) = nodes() else {
        return;
    };
    let (first, last) = (nodes[0].node, nodes[nodes.len() - 1].node);
    let buffer = buffer_on(last, Bytes::from_mib(4), HugePages::Refused);
    // Each ends the call that meets it: what comes behind it has another one.
    let pinned = Pinned::every(&buffer, 64, 16);
    let counts = move_all(&buffer, last, first);
    drop(pinned);
    let want = PageCounts {
        moved: 1008,
        busy: 16,
        ..PageCounts::default()
    };
    assert_eq!(counts, want);
    check_content(&buffer);
}

#[test]
fn pages_shared_by_fork_are_left_alone_until_the_child_ends() {
    let Some((_guard, nodes)) = nodes() else {
        return;
    };
    let (first, last) = (nodes[0].node, nodes[nodes.len() - 1].node);
    let buffer = buffer_on(last, Bytes::from_mib(1), HugePages::Refused);
    let child = Fork::new(|| {});
    let mut mover = SysMover::new(&Root::host());
    let moves = [asked(us(), buffer.range(), last, first)];
    let shared = PageCounts {
        shared: 256,
        ..PageCounts::default()
    };
    for _ in 0..3 {
        let outcome = mover.apply(&moves, limits()).unwrap();
        assert_eq!(outcome.results[0].pages, shared);
        assert_eq!(outcome.longest_call, Nanos::ZERO, "no call was made");
    }
    assert_eq!(count(&buffer, last), 256);
    // What we write is a copy of our own, wherever the kernel makes it.
    buffer.words()[0].store(1, Relaxed);
    let outcome = mover.apply(&moves, limits()).unwrap();
    assert_eq!(outcome.results[0].pages.shared, 255);
    child.end();
    let outcome = mover.apply(&moves, limits()).unwrap();
    assert_eq!(outcome.results[0].pages, moved(255), "at once");
    assert_eq!(count(&buffer, last), 0);
    check_content(&buffer);
}

#[test]
fn a_huge_page_shared_by_fork_is_left_alone_until_the_child_ends() {
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
    let mut mover = SysMover::new(&Root::host());
    let moves = [asked(us(), buffer.range(), last, first)];
    let outcome = mover.apply(&moves, limits()).unwrap();
    assert_eq!(outcome.results[0].pages.shared, 1024);
    assert_eq!(outcome.longest_call, Nanos::ZERO, "no call was made");
    child.end();
    let outcome = mover.apply(&moves, limits()).unwrap();
    assert_eq!(outcome.results[0].pages, moved(1024), "at once");
}

#[test]
fn pages_that_stay_busy_rest_as_pinned() {
    let Some((_guard, nodes)) = nodes() else {
        return;
    };
    let (first, last) = (nodes[0].node, nodes[nodes.len() - 1].node);
    let buffer = buffer_on(last, Bytes(8 * PAGE_BYTES), HugePages::Refused);
    let pinned = Pinned::new(&buffer, 8);
    let mut mover = SysMover::new(&Root::host());
    let moves = [asked(us(), buffer.range(), last, first)];
    let mut apply = || mover.apply(&moves, limits()).unwrap();
    assert_eq!(apply().results[0].pages.busy, 8);
    let again = apply();
    assert_eq!(again.results[0].pages.pinned, 8);
    assert_eq!(again.longest_call, Nanos::ZERO, "no call was made");
    drop(pinned);
    // Nobody tells that they are free: tried again after the rest of four turns.
    let turns = (0..4).map(|_| apply().results[0].pages.moved);
    assert_eq!(turns.sum::<u64>(), 8);
}

#[test]
fn memory_that_its_program_binds_after_the_plan_stays_and_is_left_out_of_the_next() {
    let Some((_guard, nodes)) = nodes() else {
        return;
    };
    let (first, last) = (nodes[0].node, nodes[nodes.len() - 1].node);
    let buffer = Buffer::new(Bytes::from_mib(8), HugePages::Refused).unwrap();
    buffer.bind(last).unwrap();
    let child = Fork::new(|| {
        touch(&buffer);
        buffer.unbind().unwrap();
        bind_when_told(&buffer, last);
    });
    let root = Root::host();
    let tiers = SysTopology::new(&root, None).read().unwrap();
    let mut targets = SysTargets::new(&root, &tiers);
    targets.select(&[TargetSpec::of_pid(child.pid())]);
    let covers = |targets: &mut SysTargets| {
        let maps = targets.read(&mut Vec::new()).unwrap();
        maps[0].eligible.iter().any(|r| r.covers(buffer.range()))
    };
    // Its policies are looked at now, and by itself not again for a minute.
    assert!(covers(&mut targets));
    let plan = [asked(child.pid(), buffer.range(), last, first)];
    let mut mover = SysMover::new(&root);
    child.tell();
    let pages = mover.apply(&plan, limits()).unwrap().results[0].pages;
    let deferred = PageCounts {
        deferred: 2048,
        ..PageCounts::default()
    };
    assert_eq!(pages, deferred);
    // Not before that reading is paid for, but then.
    let until = Instant::now() + Duration::from_secs(60);
    while covers(&mut targets) {
        assert!(Instant::now() < until, "it is still to be moved");
        std::thread::sleep(Duration::from_millis(200));
    }
    // A process that has ended is not acted on, whoever has its pid now.
    child.end();
    let pages = mover.apply(&plan, limits()).unwrap().results[0].pages;
    assert_eq!(pages, PageCounts::default());
}

/// Many turns, each too short for all, with pins as `pin` makes them.
fn pins_among_others(huge: HugePages, pin: impl Fn(&Buffer) -> (Registered, usize)) {
    let Some((_guard, nodes)) = nodes() else {
        return;
    };
    let (first, last) = (nodes[0].node, nodes[nodes.len() - 1].node);
    let buffer = buffer_on(last, Bytes::from_mib(32), huge);
    let (ring, pinned) = pin(&buffer);
    let mut mover = SysMover::new(&Root::host());
    let moves = [asked(us(), buffer.range(), last, first)];
    let limits = MoveLimits {
        time: Nanos::from_secs(4),
        ..limits()
    };
    let mut busy = 0;
    let apply = |mover: &mut SysMover| {
        let turn = mover.apply(&moves, limits).unwrap().results[0].pages;
        // Time in which it may try in vain again.
        std::thread::sleep(Duration::from_millis(100));
        turn
    };
    let all = buffer.page_count();
    let begin = Instant::now();
    for turn in 0.. {
        let told = apply(&mut mover);
        busy += told.busy;
        let left = count(&buffer, last);
        let cost = (mover.cpu_time(), mover.calls());
        eprintln!("turn {turn}: {told:?}, {left} left, {cost:?}");
        if left == pinned && told.busy == 0 {
            break;
        }
        assert!(
            turn < 120,
            "{left} of {all} did not move, {pinned} are pinned"
        );
    }
    // In as many turns as each rest allows, not in each.
    let (cpu, calls) = (mover.cpu_time(), mover.calls());
    for _ in 0..30 {
        busy += apply(&mut mover).busy;
    }
    let after = (mover.cpu_time().saturating_sub(cpu), mover.calls() - calls);
    eprintln!(
        "{busy} busy in {:?}, then {after:?} in 30 turns",
        begin.elapsed()
    );
    // All of it twice, and then a few of each block.
    assert!(busy <= 3 * pinned as u64, "{busy} tries of {pinned} pages");
    // As soon as they are free they move, if not at once.
    drop(ring);
    for turn in 0.. {
        apply(&mut mover);
        let left = count(&buffer, last);
        if left == 0 {
            break;
        }
        assert!(turn < 100, "{left} pages still rest");
    }
    check_content(&buffer);
}

#[test]
fn a_large_pin_costs_few_tries_and_the_others_move() {
    pins_among_others(HugePages::Refused, |buffer| {
        (Registered::every(buffer, 4096, 4096, 4096), 4096)
    });
}

#[test]
fn many_small_pins_cost_each_page_few_tries_and_the_others_move() {
    pins_among_others(HugePages::Refused, |buffer| {
        (Registered::every(buffer, 8, 3, 4096), 4096 / 8 * 3)
    });
}

#[test]
fn pinned_huge_pages_cost_few_tries_and_the_others_move() {
    pins_among_others(HugePages::Wanted, |buffer| {
        (Registered::every(buffer, 4096, 4096, 4096), 4096)
    });
}

#[test]
fn locked_pages_move() {
    let Some((_guard, nodes)) = nodes() else {
        return;
    };
    let (first, last) = (nodes[0].node, nodes[nodes.len() - 1].node);
    let buffer = buffer_on(last, Bytes::from_mib(1), HugePages::Refused);
    buffer.lock(buffer.page_count()).unwrap();
    assert_eq!(move_all(&buffer, last, first), moved(256));
}

#[test]
fn a_process_that_is_killed_in_the_middle_is_no_error() {
    let Some((_guard, nodes)) = nodes() else {
        return;
    };
    let (first, last) = (nodes[0].node, nodes[nodes.len() - 1].node);
    let buffer = Buffer::new(Bytes::from_mib(64), HugePages::Refused).unwrap();
    buffer.bind(last).unwrap();
    let child = Fork::new(|| touch(&buffer));
    let moves = [asked(child.pid(), buffer.range(), last, first)];
    let outcome = std::thread::scope(|scope| {
        let mover = scope.spawn(|| SysMover::new(&Root::host()).apply(&moves, limits()));
        std::thread::sleep(Duration::from_millis(60));
        child.end();
        mover.join().unwrap().unwrap()
    });
    let counts = outcome.results[0].pages;
    eprintln!("killed: {counts:?}");
    assert!(pages(counts) <= 16384, "{counts:?}");
    assert!(
        counts.moved < 16384,
        "it was over before the end: {counts:?}"
    );
    assert_eq!(counts.refused + counts.no_room, 0, "{counts:?}");
    let gone = SysMover::new(&Root::host())
        .apply(&moves, limits())
        .unwrap();
    assert_eq!(gone.results[0].pages.moved, 0);
}

#[test]
fn a_range_that_is_unmapped_in_the_middle_is_absent() {
    let Some((_guard, nodes)) = nodes() else {
        return;
    };
    let (first, last) = (nodes[0].node, nodes[nodes.len() - 1].node);
    let buffer = buffer_on(last, Bytes::from_mib(64), HugePages::Refused);
    let range = buffer.range();
    let outcome = std::thread::scope(|scope| {
        let moves = [asked(us(), range, last, first)];
        let mover = scope.spawn(move || {
            SysMover::new(&Root::host())
                .apply(&moves, limits())
                .unwrap()
        });
        std::thread::sleep(Duration::from_millis(60));
        drop(buffer);
        mover.join().unwrap()
    });
    let counts = outcome.results[0].pages;
    eprintln!("unmapped: {counts:?}");
    assert!(counts.moved < 16384, "{counts:?}");
    assert_eq!(counts.refused + counts.no_room, 0, "{counts:?}");
}

#[test]
fn a_cpuset_that_forbids_the_node_is_refused() {
    let Some((_guard, nodes)) = nodes() else {
        return;
    };
    let (first, last) = (nodes[0].node, nodes[nodes.len() - 1].node);
    let root = std::path::Path::new("/sys/fs/cgroup");
    let group = root.join(format!("hmk-cpuset-{}", std::process::id()));
    let made = std::fs::write(root.join("cgroup.subtree_control"), "+cpuset")
        .and_then(|()| std::fs::create_dir(&group))
        .and_then(|()| std::fs::write(group.join("cpuset.mems"), first.to_string()));
    if let Err(e) = made {
        eprintln!("skipped: no cpuset can be made: {e}");
        return;
    }
    let buffer = Buffer::new(Bytes::from_mib(1), HugePages::Refused).unwrap();
    let child = Fork::new(|| touch(&buffer));
    std::fs::write(group.join("cgroup.procs"), child.pid().to_string()).unwrap();
    let node = |pages: &[VirtAddr]| locate(Some(child.pid()), pages).unwrap()[0];
    let start = [buffer.range().start()];
    let from = node(&start).unwrap();
    let moves = [asked(child.pid(), buffer.range(), from, last)];
    let outcome = SysMover::new(&Root::host())
        .apply(&moves, limits())
        .unwrap();
    let counts = outcome.results[0].pages;
    let mut targets = targets(child.pid());
    let maps = targets.read(&mut Vec::new()).unwrap();
    child.end();
    let _ = std::fs::remove_dir(&group);
    assert_eq!(counts.refused, 256, "{counts:?}");
    assert_eq!(counts.moved, 0, "{counts:?}");
    assert_eq!(maps[0].allowed_nodes, Some(vec![first]));
}

fn targets(pid: Pid) -> SysTargets {
    let root = Root::host();
    let table = SysTopology::new(&root, None).read().unwrap();
    let mut targets = SysTargets::new(&root, &table);
    targets.select(&[TargetSpec::of_pid(pid)]);
    targets
}

#[test]
fn a_sweep_equals_the_query() {
    let Some((_guard, nodes)) = nodes() else {
        return;
    };
    let buffer = Buffer::new(Bytes::from_mib(8), HugePages::Refused).unwrap();
    // Every node in turn; every fifth page only read, which maps the zero
    // page; every seventh not at all.
    let all: Vec<VirtAddr> = buffer.range().iter_pages().collect();
    for (i, page) in buffer.words().chunks(WORDS_PER_PAGE).enumerate() {
        match i {
            _ if i % 7 == 0 => {}
            _ if i % 5 == 0 => assert_eq!(page[0].load(Relaxed), 0),
            _ => page[0].store(1, Relaxed),
        }
    }
    let mut mover = SysMover::new(&Root::host());
    let here = locate(None, &all).unwrap().iter().find_map(|n| *n).unwrap();
    for (i, node) in nodes.iter().enumerate() {
        let from = VirtAddr(buffer.range().start().0 + ((i as u64) << 20));
        let part = PageRange::new(from, VirtAddr(from.0 + (1 << 20))).unwrap();
        mover
            .apply(&[asked(us(), part, here, node.node)], limits())
            .unwrap();
    }
    let told = locate(None, &all).unwrap();
    let mut residency = SysResidency::new(&Root::host());
    let sweep = Sweep {
        target: TargetId(1),
        pid: us(),
        range: buffer.range(),
    };
    let swept = residency.sweep(sweep).unwrap().pages_by_node;
    for node in &nodes {
        let queried = told.iter().filter(|&&n| n == Some(node.node)).count();
        let counted = swept
            .iter()
            .find(|(n, _)| *n == node.node)
            .map_or(0, |c| c.1);
        assert_eq!(counted, queried as u64, "node {}", node.node);
    }
    let gone = Sweep {
        pid: Pid(1 << 22 | 1),
        ..sweep
    };
    assert_eq!(residency.sweep(gone).unwrap().pages_by_node, []);
}

#[test]
fn attributes_of_mappings_are_seen() {
    let Some((_guard, nodes)) = nodes() else {
        return;
    };
    let new = |mib| Buffer::new(Bytes::from_mib(mib), HugePages::Refused).unwrap();
    let (plain, locked, bound) = (new(2), new(4), new(6));
    let last = nodes[nodes.len() - 1].node;
    let child = Fork::new(|| {
        touch(&plain);
        locked.lock(locked.page_count()).unwrap();
        bound.bind(last).unwrap();
        touch(&bound);
    });
    let mut targets = targets(child.pid());
    let maps = targets.read(&mut Vec::new()).unwrap();
    let covers = |b: &Buffer| maps[0].eligible.iter().any(|r| r.covers(b.range()));
    let bytes = |why| {
        let found = maps[0].excluded.iter().find(|(w, _)| *w == why);
        found.map_or(Bytes::ZERO, |(_, b)| *b)
    };
    assert!(covers(&plain));
    assert!(!covers(&locked) && bytes(Exclusion::Locked) >= Bytes::from_mib(4));
    assert!(!covers(&bound) && bytes(Exclusion::Policy) >= Bytes::from_mib(6));
    drop(child);
    // And as configured.
    let child = Fork::new(|| {
        bound.bind(last).unwrap();
        touch(&bound);
    });
    targets.select(&[TargetSpec {
        move_bound: true,
        ..TargetSpec::of_pid(child.pid())
    }]);
    let maps = targets.read(&mut Vec::new()).unwrap();
    assert!(maps[0].eligible.iter().any(|r| r.covers(bound.range())));
}

#[test]
fn hugetlb_memory_is_left_alone() {
    let Some((_guard, _nodes)) = nodes() else {
        return;
    };
    let Ok(_pool) = Setting::new("/proc/sys/vm/nr_hugepages", "4") else {
        eprintln!("skipped: no hugetlb pool");
        return;
    };
    let child = Fork::new(|| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
        // SAFETY: a new mapping at an address of the kernel's choice.
        unsafe {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), 4 << 20, prot, flags, -1, 0);
        }
    });
    let maps = targets(child.pid()).read(&mut Vec::new()).unwrap();
    let found = maps[0].excluded.iter().find(|e| e.0 == Exclusion::Hugetlb);
    assert_eq!(found.map(|e| e.1), Some(Bytes::from_mib(4)));
}

#[test]
fn limits_are_kept() {
    let Some((_guard, nodes)) = nodes() else {
        return;
    };
    let (first, last) = (nodes[0].node, nodes[nodes.len() - 1].node);
    let buffer = buffer_on(last, Bytes::from_mib(16), HugePages::Refused);
    let mut mover = SysMover::new(&Root::host());
    let moves = [asked(us(), buffer.range(), last, first)];
    let mut apply = |limits| mover.apply(&moves, limits).unwrap();
    // Bytes.
    let outcome = apply(MoveLimits {
        bytes: Bytes::from_mib(2),
        ..limits()
    });
    let counts = outcome.results[0].pages;
    assert!(counts.moved <= 512, "{counts:?}");
    assert!(counts.moved > 0, "{counts:?}");
    assert_eq!(pages(counts), 4096, "{counts:?}");
    // A rate of 8 MiB a second for a quarter of a second: 2 MiB, and a batch.
    let rate = MoveLimits {
        rate: Bandwidth(8 << 20),
        time: Nanos::from_millis(250),
        ..limits()
    };
    let began = Instant::now();
    let outcome = apply(rate);
    let counts = outcome.results[0].pages;
    eprintln!("rate: {counts:?} in {:?}", began.elapsed());
    assert!(counts.moved <= 512 + 256, "{counts:?}");
    assert!(began.elapsed() < Duration::from_secs(1));
    // Time: nothing at all.
    let none = apply(MoveLimits {
        time: Nanos::ZERO,
        ..limits()
    });
    assert_eq!(none.results[0].pages.moved, 0);
    // Threads.
    let rest = apply(MoveLimits {
        threads: Threads::Exactly(2),
        ..limits()
    });
    eprintln!("longest call {}", rest.longest_call);
    assert_eq!(count(&buffer, first), 4096);
    assert!(mover.cpu_time() > Nanos::ZERO);
    check_content(&buffer);
}

/// Microseconds per unit of what a bare loop of calls takes for the same.
fn bare_loop(buffer: &Buffer, to: NodeId, step: u64, batch: usize) -> f64 {
    let units: Vec<VirtAddr> = buffer
        .range()
        .iter_pages()
        .filter(|a| a.0.is_multiple_of(step))
        .collect();
    let began = Instant::now();
    for chunk in units.chunks(batch) {
        move_to(us(), chunk, to, Which::Alone).unwrap();
    }
    began.elapsed().as_secs_f64() * 1e6 / units.len() as f64
}

#[test]
fn moving_costs_little_more_than_the_calls() {
    let Some((_guard, nodes)) = nodes() else {
        return;
    };
    let (first, last) = (nodes[0].node, nodes[nodes.len() - 1].node);
    for (huge, step, batch) in [
        (HugePages::Refused, PAGE_BYTES, 512),
        (HugePages::Wanted, HUGE_PAGE_BYTES, 1),
    ] {
        let buffer = buffer_on(last, Bytes::from_mib(32), huge);
        let mut mover = SysMover::new(&Root::host());
        let mut ours = f64::MAX;
        let mut bare = f64::MAX;
        for _ in 0..3 {
            bare = bare.min(bare_loop(&buffer, first, step, batch));
            bare_loop(&buffer, last, step, batch);
            let there = [asked(us(), buffer.range(), last, first)];
            let began = Instant::now();
            let outcome = mover.apply(&there, limits()).unwrap();
            let units = buffer.range().bytes().0 / step;
            ours = ours.min(began.elapsed().as_secs_f64() * 1e6 / units as f64);
            assert_eq!(outcome.results[0].pages, moved(buffer.page_count()));
            bare_loop(&buffer, last, step, batch);
        }
        eprintln!("{step} bytes: bare {bare:.1} us, mover {ours:.1} us");
        assert!(ours < 2.0 * bare, "{step}: bare {bare:.1}, mover {ours:.1}");
    }
}
