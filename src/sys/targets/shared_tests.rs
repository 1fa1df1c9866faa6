use std::fs;

use proptest::prelude::*;

use super::super::maps;
use super::*;
use crate::tiering::observation::{Share, TargetKind};

const MIB: u64 = 1 << 20;

fn range(start: u64, end: u64) -> PageRange {
    PageRange::new(VirtAddr(start * MIB), VirtAddr(end * MIB)).unwrap()
}

/// Part of object `inode` from `offset` on, at these MiB.
fn mapping(inode: u64, start: u64, end: u64, offset: u64) -> Mapping {
    Mapping {
        device: 1,
        inode,
        range: range(start, end),
        offset: offset * MIB,
    }
}

/// A process as it is read once and again.
struct One {
    map: TargetMap,
    shared: Vec<Mapping>,
    there: Vec<PageRange>,
    age: Nanos,
    lent: Lent,
}

fn one(pid: i32, entry: u32, present: u64, shared: &[Mapping]) -> One {
    One {
        map: TargetMap {
            id: TargetId(pid.cast_unsigned()),
            pid: Pid(pid),
            name: "pool".into(),
            sharers: 0,
            kind: TargetKind::Generic,
            eligible: vec![range(1, 3)],
            cpu_time: Nanos::ZERO,
            memory_time: Nanos::ZERO,
            cpu_share: vec![(NodeId(pid.cast_unsigned() % 2), 1.0)],
            allowed_nodes: None,
            excluded: Vec::new(),
            mapped: Mapped {
                shared: Bytes(present * MIB),
                anonymous: Bytes(present * MIB),
                ..Mapped::default()
            },
            share: Share {
                entry,
                ..Share::default()
            },
        },
        shared: shared.to_vec(),
        there: shared.iter().map(|mapping| mapping.range).collect(),
        age: Nanos::from_secs(100),
        lent: Lent::default(),
    }
}

struct Bench {
    pools: Pools,
    next_id: u32,
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self {
            pools: Pools::new(&Root::at(dir.path())),
            next_id: 1000,
            dir,
        }
    }

    fn form(&mut self, all: &mut [One]) -> Vec<TargetMap> {
        let mut members: Vec<Member<'_>> = all
            .iter_mut()
            .map(|one| Member {
                map: &mut one.map,
                shared: &one.shared,
                there: &one.there,
                age: one.age,
                lent: &mut one.lent,
            })
            .collect();
        self.pools.form(&mut members, &mut self.next_id)
    }

    fn views(&self, id: TargetId) -> Vec<(i32, u64, u64, u64)> {
        let mib = |addr: VirtAddr| addr.0 / MIB;
        let told = |view: &View| {
            let (start, end) = (mib(view.range.start()), mib(view.range.end()));
            (view.pid.0, start, end, mib(view.locate(view.range.start())))
        };
        self.pools
            .sharing()
            .views(id)
            .unwrap()
            .iter()
            .map(told)
            .collect()
    }
}

#[test]
fn what_two_map_is_neithers_and_has_its_leads_addresses() {
    let mut bench = Bench::new();
    // 2 has most; 1 has only its second half, elsewhere.
    let mut all = [
        one(1, 0, 10, &[mapping(7, 100, 104, 4)]),
        one(2, 0, 30, &[mapping(7, 200, 208, 0)]),
        one(3, 0, 10, &[mapping(8, 300, 308, 0)]),
        one(4, 1, 40, &[mapping(7, 400, 408, 0)]),
    ];
    let pools = bench.form(&mut all);
    assert_eq!(pools.len(), 1);
    assert_eq!((pools[0].pid, pools[0].sharers), (Pid(2), 2));
    assert_eq!(pools[0].eligible, [range(200, 208)]);
    assert_eq!(
        bench.views(pools[0].id),
        [(2, 200, 208, 200), (1, 204, 208, 100)]
    );
    // What one maps alone, and what another target maps, is theirs.
    let own: Vec<usize> = all.iter().map(|one| one.map.eligible.len()).collect();
    assert_eq!(own, [1, 1, 2, 2]);
}

#[test]
fn a_pool_is_what_is_there_for_any_of_them() {
    let mut all = [
        one(1, 0, 10, &[mapping(7, 100, 200, 0)]),
        one(2, 0, 30, &[mapping(7, 300, 400, 0)]),
    ];
    all[0].there = vec![range(100, 110), range(150, 160)];
    all[1].there = vec![range(305, 320), range(399, 400)];
    let pools = Bench::new().form(&mut all);
    assert_eq!(pools[0].pid, Pid(2));
    assert_eq!(
        pools[0].eligible,
        [range(300, 320), range(350, 360), range(399, 400)]
    );
}

#[test]
fn a_pool_stays_and_another_leads_with_twice_as_much() {
    let mut bench = Bench::new();
    let buffers = [mapping(7, 100, 108, 0)];
    let mut all = |present: &[(i32, u64)]| -> Vec<(u32, i32)> {
        let mut all: Vec<One> = present
            .iter()
            .map(|&(p, n)| one(p, 0, n, &buffers))
            .collect();
        let pools = bench.form(&mut all);
        pools.iter().map(|map| (map.id.0, map.pid.0)).collect()
    };
    assert_eq!(all(&[(1, 10)]), []);
    assert_eq!(all(&[(1, 10), (2, 15)]), [(1000, 2)]);
    assert_eq!(all(&[(1, 29), (2, 15)]), [(1000, 2)]);
    assert_eq!(all(&[(1, 31), (2, 15)]), [(1000, 1)]);
    assert_eq!(all(&[(2, 15)]), [(1000, 2)], "the last one has it all");
    assert_eq!(all(&[]), []);
    assert_eq!(all(&[(1, 10), (2, 15)]), [(1001, 2)], "another one");
}

#[test]
fn one_process_that_maps_it_thrice_has_it_once() {
    let mut bench = Bench::new();
    let heap = [
        mapping(7, 100, 108, 0),
        mapping(7, 200, 208, 0),
        mapping(7, 300, 308, 0),
    ];
    let mut all = [one(1, 0, 24, &heap)];
    let pools = bench.form(&mut all);
    assert_eq!(pools[0].eligible, [range(100, 108)]);
    let views = bench.views(pools[0].id);
    assert_eq!(
        views,
        [(1, 100, 108, 100), (1, 100, 108, 200), (1, 100, 108, 300)]
    );
    assert_eq!(all[0].map.eligible, [range(1, 3)]);
    // Two halves of it are no such thing.
    let halves = [mapping(9, 100, 104, 0), mapping(9, 200, 204, 4)];
    let mut all = [one(2, 0, 8, &halves)];
    assert_eq!(bench.form(&mut all), []);
    assert_eq!(all[0].map.eligible.len(), 3);
}

#[test]
fn little_is_left_alone() {
    let small = Mapping {
        range: PageRange::new(VirtAddr(0), VirtAddr(4096)).unwrap(),
        ..mapping(7, 0, 1, 0)
    };
    let mut all = [one(1, 0, 1, &[small]), one(2, 0, 1, &[small])];
    assert_eq!(Bench::new().form(&mut all), []);
}

/// Two processes that share pages 256 to 1024 since a fork, of which 1 has written some.
fn forked(bench: &Bench, written: u64) -> [One; 2] {
    let root = bench.dir.path();
    for pid in [1_u64, 2] {
        let entries: Vec<u8> = (0..1024_u64)
            .map(|page| match page {
                0..256 => 0,
                _ if pid == 1 && page < 256 + written => 1 << 63 | 1 << 56 | (page + 5000),
                _ if page < 256 + written => 1 << 63 | 1 << 56 | page,
                _ => 1 << 63 | page,
            })
            .flat_map(u64::to_ne_bytes)
            .collect();
        let proc = root.join(format!("proc/{pid}"));
        fs::create_dir_all(&proc).unwrap();
        fs::write(proc.join("pagemap"), entries).unwrap();
    }
    let mut all = [one(1, 0, 4, &[]), one(2, 0, 4, &[])];
    for one in &mut all {
        one.map.eligible = vec![range(1, 4)];
        one.map.mapped.shared = Bytes::ZERO;
    }
    all
}

#[test]
fn what_is_shared_since_a_fork_is_a_pool_once_they_stay() {
    let mut bench = Bench::new();
    let mut all = forked(&bench, 0);
    all[1].age = Nanos::from_secs(1);
    assert_eq!(bench.form(&mut all), []);
    let mut all = forked(&bench, 0);
    let pools = bench.form(&mut all);
    assert_eq!(pools.len(), 1);
    assert_eq!(
        (pools[0].sharers, &pools[0].eligible),
        (2, &vec![range(1, 4)])
    );
    assert_eq!(all[0].map.eligible, []);
    assert_eq!(all[1].map.eligible, []);
    assert_eq!(bench.views(pools[0].id), [(1, 1, 4, 1), (2, 1, 4, 1)]);
    // With half of the first block each has a copy of: it is theirs, too.
    let mut bench = Bench::new();
    let mut all = forked(&bench, 128);
    let pools = bench.form(&mut all);
    assert_eq!(pools[0].eligible, [range(1, 4)]);
    assert_eq!(all[0].map.eligible, [range(1, 2)]);
    // All of it: nothing is shared.
    let mut bench = Bench::new();
    let mut all = forked(&bench, 768);
    assert_eq!(bench.form(&mut all), []);
    assert_eq!(all[0].map.eligible, [range(1, 4)]);
}

#[test]
fn ranges_are_taken_out_of_ranges() {
    let all = [range(1, 5), range(6, 9), range(20, 30)];
    let left = |lost: &[PageRange]| without(&all, lost.iter().copied());
    assert_eq!(left(&[]), all);
    assert_eq!(left(&[range(0, 40)]), []);
    assert_eq!(
        left(&[range(0, 2), range(4, 7), range(22, 24), range(25, 26)]),
        [
            range(2, 4),
            range(7, 9),
            range(20, 22),
            range(24, 25),
            range(26, 30)
        ]
    );
}

#[test]
fn files_of_a_disk_are_no_shared_memory() {
    let text = b"1000-2000 rw-s 00000000 00:01 1 /dev/zero (deleted)\n\
        2000-3000 rw-s 00000000 00:01 2 /SYSV00000000 (deleted)\n\
        3000-4000 rw-s 00000000 00:01 3 /memfd:pool (deleted)\n\
        4000-5000 rw-s 00000000 00:19 4 /dev/shm/buffers\n\
        5000-6000 rw-s 00000000 08:01 5 /var/lib/db/file\n\
        6000-7000 rw-p 00000000 00:01 3 /memfd:pool (deleted)\n";
    let shared: Vec<u64> = maps::lines(text)
        .filter(|&line| is_shared_memory(line))
        .map(|line| line.inode)
        .collect();
    assert_eq!(shared, [1, 2, 3, 4]);
}

proptest! {
    /// Whoever works how much on what: all of it counts once, and where it was done.
    #[test]
    fn cpu_time_is_counted_once(
        present in proptest::collection::vec((0_u64..20, 0_u64..20), 2..6),
        work in proptest::collection::vec(0_u64..100, 6),
    ) {
        let mut bench = Bench::new();
        let objects = [mapping(7, 100, 108, 0), mapping(8, 200, 204, 0)];
        let mut all: Vec<One> = (1..).zip(&present).map(|(pid, &(shared, anonymous))| {
            let mut one = one(pid, 0, shared, &objects);
            one.map.mapped.anonymous = Bytes(anonymous * MIB);
            one
        }).collect();
        bench.form(&mut all);
        for (one, &work) in all.iter_mut().zip(&work) {
            one.map.cpu_time += Nanos::from_millis(work);
            one.map.eligible.clear();
        }
        let pools = bench.form(&mut all);
        let counted: Nanos = all.iter().map(|one| one.map.memory_time)
            .chain(pools.iter().map(|pool| pool.memory_time)).sum();
        let worked: Nanos = (all.iter().map(|one| one.map.cpu_time)).sum();
        prop_assert!(counted.0.abs_diff(worked.0) < 1000, "{} of {}", counted, worked);
        for pool in pools {
            let sum: f64 = pool.cpu_share.iter().map(|(_, share)| share).sum();
            prop_assert!((sum - 1.0).abs() < 1e-6);
        }
    }
}
