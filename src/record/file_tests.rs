use super::*;
use crate::tiering::observation::{
    AccessSet, CacheUsage, EpochCost, Exclusion, Forgotten, Mapped, NodeUsage, RangeResidency,
    ReadLatency, Sample, Seen, Share, TargetId, TargetKind, TargetMap,
};
use crate::tiering::pageout::{PageOut, Pageable, PagedOut, Paging, Swap};
use crate::tiering::plan::{
    Direction, Move, MoveOutcome, MoveResult, PageCounts, Reason, Reclaimed,
};
use crate::tiering::tier::{MemoryKind, Node, TierTable};
use crate::units::{Bytes, Nanos, NodeId, PageRange, Pid, VirtAddr};

pub(super) fn tiers() -> TierTable {
    let node = Node {
        id: NodeId(0),
        kind: MemoryKind::Dram,
        size: Bytes::from_mib(64),
        cpus: vec![0, 1],
        kernel_tier: Some(4),
    };
    TierTable::new(
        TierTable::default_tiers(std::slice::from_ref(&node)),
        vec![node],
        Vec::new(),
    )
    .unwrap()
}

pub(super) fn observation(at: u64) -> Observation {
    let sample = |page: u64| Sample {
        target: TargetId(3),
        pid: Pid(42),
        addr: VirtAddr(0x7f00_0000_0000 + page * 4096),
    };
    let mut accesses = AccessSet::new((0..100).map(sample).collect());
    accesses.record(5, Seen::Accessed);
    accesses.place(5, 9, Some(NodeId(2)));
    accesses.end_scan();
    let range = PageRange::new(VirtAddr(0x7f00_0000_0000), VirtAddr(0x7f00_0020_0000)).unwrap();
    let target = TargetMap {
        id: TargetId(3),
        pid: Pid(42),
        name: "db".into(),
        sharers: 0,
        kind: TargetKind::Generic,
        eligible: vec![range],
        cpu_time: Nanos(5),
        memory_time: Nanos(5),
        cpu_share: vec![(NodeId(0), 1.0)],
        allowed_nodes: Some(vec![NodeId(0)]),
        excluded: vec![(Exclusion::Locked, Bytes(4096))],
        mapped: Mapped::default(),
        share: Share::default(),
    };
    let moved = MoveResult {
        asked: Move {
            target: target.id,
            pid: target.pid,
            range,
            from: NodeId(2),
            to: NodeId(0),
            limit: range.bytes(),
            direction: Direction::Promotion,
            reason: Reason::Hot,
        },
        pages: PageCounts {
            moved: 400,
            ..PageCounts::default()
        },
        is_whole: true,
    };
    let back = MoveResult {
        asked: Move {
            from: NodeId(0),
            to: NodeId(2),
            direction: Direction::Demotion,
            reason: Reason::Headroom,
            ..moved.asked.clone()
        },
        ..moved.clone()
    };
    let out = PagedOut {
        asked: PageOut {
            target: target.id,
            pid: target.pid,
            range,
            limit: range.bytes(),
        },
        pages: 300,
        is_whole: true,
    };
    Observation {
        at: Nanos(at),
        accesses,
        residency: vec![RangeResidency {
            target: target.id,
            range,
            pages_by_node: vec![(NodeId(2), 400)],
        }],
        forgotten: vec![Forgotten {
            target: target.id,
            took: Nanos(9),
            cost: Nanos(11),
        }],
        nodes: vec![NodeUsage {
            node: NodeId(0),
            total: Bytes(3 << 30),
            free: Bytes(2 << 30),
            reserve: Bytes(1 << 30),
            latency: Some(ReadLatency {
                now: Nanos(210),
                idle: Nanos(95),
            }),
            cache: Some(CacheUsage {
                idle: Bytes(1 << 29),
                refaults: 4,
            }),
        }],
        targets: vec![target],
        cost: EpochCost::default(),
        idle: Nanos(21),
        capacity: u64::MAX,
        shortest: Nanos::from_millis(20),
        outcome: MoveOutcome {
            results: vec![moved, back],
            reclaimed: vec![Reclaimed {
                node: NodeId(0),
                asked: Bytes(1 << 23),
                given: Bytes(1 << 22),
            }],
            ..MoveOutcome::default()
        },
        paging: Paging {
            results: vec![out],
            targets: vec![Pageable {
                target: TargetId(3),
                faults: 17,
                is_permitted: true,
                room: Some(Bytes(1 << 21)),
            }],
            swap: Some(Swap {
                total: Bytes(1 << 30),
                free: Bytes(1 << 29),
                is_memory: true,
            }),
        },
    }
}

fn frames(path: &Path) -> (Vec<Frame>, u64) {
    let mut reader = Reader::open(path).unwrap();
    let frames = std::iter::from_fn(|| reader.next_frame().unwrap()).collect();
    (frames, reader.torn())
}

/// A recording of `epochs`, in a directory of its own.
pub(super) fn recording(epochs: u64) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.rec");
    let mut writer = Writer::append(&path, 7).unwrap();
    writer.configured(&EngineSettings::default(), &tiers());
    for at in 0..epochs {
        writer.observed(&observation(at));
    }
    (dir, path)
}

#[test]
fn what_is_written_is_read() {
    let (_dir, path) = recording(2);
    let (read, torn) = frames(&path);
    let started = Frame::Started {
        hmkeeper: env!("CARGO_PKG_VERSION").into(),
        settings: EngineSettings::default(),
        tiers: tiers(),
        seed: 7,
    };
    let observed = |at| Frame::Observed(Box::new(observation(at)));
    assert_eq!(read, [started, observed(0), observed(1)]);
    assert_eq!(torn, 0);
}

#[test]
fn wherever_it_was_cut_off_it_is_read_up_to_there_and_goes_on() {
    let (dir, path) = recording(3);
    let whole = std::fs::read(&path).unwrap();
    let (all, _) = frames(&path);
    // Cut off in its head it begins anew; and so it does in zeros.
    let cut = dir.path().join("cut.rec");
    std::fs::write(&cut, &whole[..HEAD - 3]).unwrap();
    drop(Writer::append(&cut, 8).unwrap());
    assert_eq!(frames(&cut), (Vec::new(), 0));
    let zeros = [&whole[..], &[0; 100]].concat();
    std::fs::write(&cut, zeros).unwrap();
    assert_eq!(frames(&cut), (all.clone(), 100));
    let mut writer = Writer::append(&cut, 8).unwrap();
    writer.configured(&EngineSettings::default(), &tiers());
    drop(writer);
    assert_eq!(frames(&cut).0.len(), all.len() + 1);
    let mut seen = std::collections::BTreeSet::new();
    for length in HEAD..whole.len() {
        std::fs::write(&cut, &whole[..length]).unwrap();
        let (read, torn) = frames(&cut);
        assert_eq!(read, all[..read.len()], "at {length}");
        seen.insert(read.len());
        if length % 97 == 0 {
            let kept = length as u64 - torn;
            let mut writer = Writer::append(&cut, 8).unwrap();
            writer.configured(&EngineSettings::default(), &tiers());
            let (again, torn) = frames(&cut);
            assert_eq!(again.len(), read.len() + 1, "at {length}, kept {kept}");
            assert!(matches!(again.last(), Some(Frame::Started { seed: 8, .. })));
            assert_eq!(torn, 0);
        }
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
}

#[test]
fn a_flipped_bit_in_the_middle_is_found_and_costs_nothing_else() {
    let (_dir, path) = recording(3);
    let whole = std::fs::read(&path).unwrap();
    // In a payload, and in the length of the first record.
    for at in [whole.len() / 2, HEAD + 2] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let mut reader = Reader::open(&path).unwrap();
        let error = loop {
            match reader.next_frame() {
                Ok(Some(_)) => {}
                Ok(None) => panic!("nobody noticed byte {at}"),
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("checksum"), "{error}");
        // Nothing is cut off for it.
        let _ = Writer::append(&path, 1);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), whole.len() as u64);
    }
}

#[test]
fn two_do_not_write_to_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.rec");
    let first = Writer::append(&path, 1).unwrap();
    let error = Writer::append(&path, 1).err().unwrap();
    assert!(matches!(error, RecordError::Busy { .. }), "{error}");
    drop(first);
    // Another test may have forked just now: until its child executes, it has the
    // lock too.
    let free = || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        Writer::append(&path, 1).is_ok()
    };
    assert!((0..100).any(|_| free()));
}

/// The bytes of a recording: a change of any type in it shows here, and then
/// [`VERSION`] has to be another.
#[test]
fn the_format_is_that_of_its_version() {
    let started = Written::Started {
        hmkeeper: "0.0.0",
        settings: &EngineSettings::default(),
        tiers: &tiers(),
        seed: 7,
    };
    let mut bytes = record(&started).unwrap();
    bytes.extend(record(&Written::Observed(&observation(1))).unwrap());
    let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let lines: Vec<String> = hex.chunks(32).map(<[String]>::concat).collect();
    insta::assert_snapshot!(format!("version {VERSION}\n{}", lines.join("\n")));
}

#[test]
fn other_files_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notes.txt");
    let text = "something that somebody still needs, and longer than the head";
    std::fs::write(&path, text).unwrap();
    let error = Writer::append(&path, 1).err().unwrap();
    assert!(matches!(error, RecordError::Foreign { .. }), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    let mut later = MAGIC.to_vec();
    later.extend((VERSION + 1).to_le_bytes());
    std::fs::write(&path, later).unwrap();
    let error = Reader::open(&path).err().unwrap();
    let told = format!("version {}", VERSION + 1);
    assert!(error.to_string().contains(&told), "{error}");
}

#[test]
fn only_its_owner_may_read_it() {
    let (_dir, path) = recording(0);
    std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    drop(Writer::append(&path, 7).unwrap());
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// Some network file systems err about where a file ends, and so would we.
#[test]
fn a_record_goes_where_the_last_one_ended_wherever_the_file_does() {
    use std::io::Write;
    let (_dir, path) = recording(1);
    let mut writer = Writer::append(&path, 8).unwrap();
    let mut other = OpenOptions::new().append(true).open(&path).unwrap();
    other.write_all(&[7; 50]).unwrap();
    writer.configured(&EngineSettings::default(), &tiers());
    writer.observed(&observation(5));
    assert_eq!(frames(&path).0.len(), 4);
    assert_eq!(frames(&path).1, 0);
}

#[test]
fn a_head_that_was_written_twice_is_read_over() {
    let (dir, path) = recording(2);
    let (all, _) = frames(&path);
    let whole = std::fs::read(&path).unwrap();
    let twice = dir.path().join("twice.rec");
    std::fs::write(&twice, [&whole[..HEAD], &whole].concat()).unwrap();
    assert_eq!(frames(&twice), (all.clone(), 0));
    let mut writer = Writer::append(&twice, 8).unwrap();
    writer.configured(&EngineSettings::default(), &tiers());
    assert_eq!(frames(&twice).0.len(), all.len() + 1);
}

#[test]
fn the_remedy_of_a_damaged_one_throws_nothing_away() {
    let (dir, path) = recording(2);
    let mut bytes = std::fs::read(&path).unwrap();
    let damaged = dir.path().join("damaged.rec");
    let last = bytes.len() - 1;
    let told = |bytes: &[u8]| {
        std::fs::write(&damaged, bytes).unwrap();
        let mut reader = Reader::open(&damaged).unwrap();
        loop {
            match reader.next_frame() {
                Ok(Some(_)) => {}
                Ok(None) => panic!("not told"),
                Err(error) => return error.to_string(),
            }
        }
    };
    bytes.extend_from_slice(&[9; 40]);
    let text = told(&bytes);
    assert!(text.contains("a copy that is cut there"), "{text}");
    assert!(
        text.contains(&format!("truncate -s {}", last + 1)),
        "{text}"
    );
    bytes[HEAD] ^= 1;
    let text = told(&bytes);
    assert!(text.contains("nothing is before that; keep it"), "{text}");
}
