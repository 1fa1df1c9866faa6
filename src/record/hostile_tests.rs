//! Files that no daemon wrote: whatever is in them, there is no panic, no memory without
//! end, and an error that says where.

use proptest::prelude::*;

use super::tests::{observation, recording, tiers};
use super::*;
use crate::record::rates::Accesses;
use crate::record::{Replay, compare, html, png, survey, svg};
use crate::tiering::observation::{AccessSet, RangeResidency, Sample, TargetId, TargetMap};
use crate::tiering::settings::{Asking, PageOutSettings, PolicyName, SplitRule};
use crate::tiering::tier::{MemoryKind, Node, Source, Tier};
use crate::units::{Bytes, HUGE_PAGE_BYTES, Nanos, NodeId, PAGE_BYTES, PageRange, Pid, VirtAddr};

/// A file with these payloads, each with checksums that are right.
fn file_of(payloads: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    for payload in payloads {
        let length = u32::try_from(payload.len()).unwrap().to_le_bytes();
        bytes.extend(length);
        bytes.extend(crc32fast::hash(&length).to_le_bytes());
        bytes.extend(crc32fast::hash(payload).to_le_bytes());
        bytes.extend(payload);
    }
    bytes
}

fn started(settings: EngineSettings) -> Frame {
    Frame::Started {
        hmkeeper: "0.0.0".into(),
        settings,
        tiers: two_tiers(),
        seed: 1,
    }
}

/// Two tiers, so that there is something to plan.
fn two_tiers() -> TierTable {
    let node = |id, kind, cpus: Vec<u32>| Node {
        id: NodeId(id),
        kind,
        size: Bytes::from_mib(64),
        cpus,
        kernel_tier: None,
    };
    let nodes = vec![
        node(0, MemoryKind::Dram, vec![0]),
        node(2, MemoryKind::Cxl, vec![]),
    ];
    let path = |to, latency| crate::tiering::tier::Path {
        from: NodeId(0),
        to: NodeId(to),
        distance: 10,
        latency: crate::tiering::tier::Figure {
            value: Nanos(latency),
            source: Source::Config,
        },
        bandwidth: None,
    };
    let paths = vec![path(0, 100), path(2, 300)];
    TierTable::new(TierTable::default_tiers(&nodes), nodes, paths).unwrap()
}

fn payloads(frames: &[Frame]) -> Vec<Vec<u8>> {
    let bytes = |frame| postcard::to_stdvec(frame).unwrap();
    frames.iter().map(bytes).collect()
}

/// Puts a file through the engine: epochs before its end or its fault, and that.
fn replay(bytes: &[u8], policy: Option<PolicyName>) -> (u64, Option<RecordError>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.rec");
    std::fs::write(&path, bytes).unwrap();
    let mut replay = match Reader::open(&path) {
        Ok(reader) => Replay::under(reader, policy),
        Err(error) => return (0, Some(error)),
    };
    let mut epochs = 0;
    loop {
        match replay.next_epoch() {
            Ok(Some(_)) => epochs += 1,
            Ok(None) => return (epochs, None),
            Err(error) => return (epochs, Some(error)),
        }
    }
}

/// An epoch of two targets of 128 MiB each, some of it hot, in which something was moved.
fn busy(at: u64) -> Observation {
    const BYTES: u64 = 128 << 20;
    let mut seen = observation(at * 10_000_000_000);
    let second = TargetMap {
        id: TargetId(4),
        pid: Pid(43),
        ..seen.targets[0].clone()
    };
    seen.targets.push(second);
    let (mut samples, mut tallies) = (Vec::new(), Vec::new());
    for target in &mut seen.targets {
        let start = 0x7f00_0000_0000 + u64::from(target.id.0) * (1 << 32);
        target.eligible = vec![
            range(start, start + BYTES / 2),
            range(start + BYTES, start + BYTES * 3 / 2),
        ];
        target.cpu_time = Nanos::from_secs(at * 9);
        target.memory_time = target.cpu_time;
        target.allowed_nodes = None;
        for i in 0..24 {
            let addr = start + i % 12 * (BYTES / 32) + i / 12 * BYTES + at * PAGE_BYTES;
            samples.push(Sample {
                target: target.id,
                pid: target.pid,
                addr: VirtAddr(addr),
            });
            let accessed: u8 = if i % 4 == 0 { 3 } else { 0 };
            tallies.push((accessed, 3_u8, 0_u8, Some(2_u32), false, false));
        }
    }
    let mut bytes = postcard::to_stdvec(&samples).unwrap();
    bytes.extend(postcard::to_stdvec(&(tallies, 3_u8)).unwrap());
    seen.accesses = postcard::from_bytes(&bytes).unwrap();
    seen.residency.clear();
    for target in &seen.targets {
        let start = target.eligible[0].start().0;
        seen.residency.extend((0..32).map(|i| RangeResidency {
            target: target.id,
            range: range(
                start + i * HUGE_PAGE_BYTES,
                start + (i + 1) * HUGE_PAGE_BYTES,
            ),
            pages_by_node: vec![(NodeId(0), 12), (NodeId(2), 500)],
        }));
    }
    let part = range(0x7f03_0000_0000, 0x7f03_0020_0000);
    let asked = &mut seen.outcome.results[0].asked;
    (asked.range, asked.limit) = (part, part.bytes());
    seen.cost.elapsed = Nanos::from_secs(10);
    seen
}

/// Draws a file, if it can be read: every format.
fn draw(bytes: &[u8]) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.rec");
    std::fs::write(&path, bytes).unwrap();
    let Ok(picture) = survey::picture(&path, || {}) else {
        return false;
    };
    png::encode(&png::draw(&picture)).unwrap();
    svg::draw(&picture).unwrap();
    html::draw(&picture).unwrap();
    true
}

/// Goes through what was accessed: epochs that could be read.
fn accessed(bytes: &[u8]) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.rec");
    std::fs::write(&path, bytes).unwrap();
    let mut accesses = Accesses::new(Reader::open(&path).unwrap());
    let (mut epochs, mut regions) = (0, Vec::new());
    while let Ok(Some(seconds)) = accesses.next_epoch(&mut regions) {
        epochs += 1;
        assert!(seconds > 0.0 && seconds.is_finite(), "{seconds} s");
        for seen in &regions {
            let per_page = seen.per_page;
            assert!(per_page >= 0.0 && per_page.is_finite(), "{per_page}");
            assert!(seen.process < 256 && accesses.order() <= 9);
        }
    }
    epochs
}

/// The fault of a recording that begins well and then says this.
fn fault_of(seen: &Observation) -> String {
    let frames = [
        started(EngineSettings::default()),
        Frame::Observed(Box::new(observation(1))),
        Frame::Observed(Box::new(seen.clone())),
    ];
    let (epochs, error) = replay(&file_of(&payloads(&frames)), None);
    assert_eq!(epochs, 1, "what is before is read");
    match error {
        Some(error @ RecordError::Damaged { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

/// It is none of the faults below, and makes the engine plan.
#[test]
fn what_these_tests_change_is_good() {
    let mut frames = vec![started(EngineSettings::default())];
    frames.extend((1..7).map(|at| Frame::Observed(Box::new(busy(at)))));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.rec");
    std::fs::write(&path, file_of(&payloads(&frames))).unwrap();
    let mut moving = 0;
    for (name, policy) in PolicyName::CHOICES {
        let mut replay = Replay::under(Reader::open(&path).unwrap(), Some(policy));
        let sum = compare::summarise(&mut replay).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(sum.epochs, 6);
        moving += u32::from(sum.moves > 0);
    }
    assert!(moving >= 5, "{moving} policies move anything");
}

fn range(start: u64, end: u64) -> PageRange {
    PageRange::new(VirtAddr(start), VirtAddr(end)).unwrap()
}

#[test]
fn what_no_daemon_observes_is_a_fault_with_its_place_and_reason() {
    let good = observation(2);
    let with = |change: &dyn Fn(&mut Observation)| {
        let mut seen = good.clone();
        change(&mut seen);
        fault_of(&seen)
    };
    let samples = |addrs: &[u64]| {
        let sample = |&addr: &u64| Sample {
            target: TargetId(3),
            pid: Pid(42),
            addr: VirtAddr(addr),
        };
        AccessSet::new(addrs.iter().map(sample).collect())
    };
    let first = |seen: &mut Observation, change: &dyn Fn(&mut TargetMap)| {
        change(&mut seen.targets[0]);
    };
    for (fault, needle) in [
        (
            with(&|seen| seen.targets.push(seen.targets[0].clone())),
            "target 3 is there twice",
        ),
        (
            with(&|seen| seen.accesses = samples(&[0x3000, 0x1000])),
            "samples do not ascend",
        ),
        (
            with(&|seen| seen.accesses = samples(&[0x3001])),
            "sample 0x3001 is no page",
        ),
        (
            with(&|seen| seen.accesses = samples(&[u64::MAX - 4095])),
            "is no page of a process",
        ),
        (
            with(&|seen| {
                let ranges = vec![range(0x1000, 0x5000), range(0x4000, 0x6000)];
                first(seen, &|t| t.eligible.clone_from(&ranges));
            }),
            "target 3: its ranges overlap",
        ),
        (
            with(&|seen| {
                let far = range(0x1000, u64::MAX - 4095);
                first(seen, &|t| t.eligible = vec![far]);
            }),
            "is beyond all addresses",
        ),
        (
            with(&|seen| first(seen, &|t| t.cpu_share = vec![(NodeId(0), f64::NAN)])),
            "is no number",
        ),
        (
            with(&|seen| seen.residency[0].pages_by_node = vec![(NodeId(0), u64::MAX); 3]),
            "no more fit",
        ),
        (
            with(&|seen| seen.outcome.results[0].pages.busy = u64::MAX),
            "more pages were moved",
        ),
        (with(&|seen| seen.at = Nanos(u64::MAX)), "146 years"),
        (
            with(&|seen| seen.cost.set_again = u64::MAX),
            "more was looked at",
        ),
    ] {
        assert!(fault.contains(needle), "{needle}: {fault}");
        assert!(
            fault.contains(": byte ") && fault.contains("truncate -s"),
            "{fault}"
        );
    }
}

#[test]
fn settings_that_no_configuration_has_are_a_fault() {
    let with = |change: &dyn Fn(&mut EngineSettings)| {
        let mut settings = EngineSettings::default();
        change(&mut settings);
        let (_, error) = replay(&file_of(&payloads(&[started(settings)])), None);
        error.map(|error| error.to_string()).unwrap_or_default()
    };
    assert_eq!(with(&|_| {}), "");
    for (fault, needle) in [
        (
            with(&|s| s.policy.hm_keeper.buckets = usize::MAX),
            "buckets",
        ),
        (
            with(&|s| s.profiling.initial_region = Bytes(0)),
            "size of a region",
        ),
        (
            with(&|s| s.profiling.minimum_region = Bytes(3)),
            "size of a region",
        ),
        (with(&|s| s.profiling.scans = 0), "scans"),
        (with(&|s| s.headroom = f64::NAN), "headroom"),
        (
            with(&|s| s.policy.adaptive.ema = f64::INFINITY),
            "adaptive.ema",
        ),
    ] {
        assert!(fault.contains(needle), "{needle}: {fault}");
    }
}

#[test]
fn what_a_terminal_would_obey_is_no_name() {
    let mut frame = started(EngineSettings::default());
    if let Frame::Started { hmkeeper, .. } = &mut frame {
        "0.1.0\u{1b}[2J".clone_into(hmkeeper);
    }
    let (_, error) = replay(&file_of(&payloads(&[frame])), None);
    let told = error.map(|e| e.to_string()).unwrap_or_default();
    assert!(
        told.contains("is no name") && !told.contains('\u{1b}'),
        "{told}"
    );
}

#[test]
fn types_check_what_they_can_when_they_are_read() {
    let read = |start: u64, end: u64| {
        let bytes = postcard::to_stdvec(&(VirtAddr(start), VirtAddr(end))).unwrap();
        postcard::from_bytes::<PageRange>(&bytes).is_ok()
    };
    assert!(read(0x1000, 0x2000));
    assert!(!read(0x2000, 0x1000) && !read(0x1000, 0x1000) && !read(0x1001, 0x2000));

    let sample = observation(0).accesses.samples()[0];
    let bytes = postcard::to_stdvec(&(vec![sample], Vec::<u8>::new(), 0_u8)).unwrap();
    assert!(postcard::from_bytes::<AccessSet>(&bytes).is_err());

    let table = |tiers: Vec<Tier>, nodes: Vec<Node>| {
        let paths: Vec<u8> = Vec::new();
        let bytes = postcard::to_stdvec(&(tiers, nodes, paths)).unwrap();
        postcard::from_bytes::<TierTable>(&bytes).is_ok()
    };
    let node = tiers().nodes()[0].clone();
    let tier = |name: &str, node: u32| Tier {
        name: name.into(),
        nodes: vec![NodeId(node)],
        capacity: None,
        latency: None,
    };
    assert!(table(vec![tier("a", 0)], vec![node.clone()]));
    // Nodes that are not there, a name or node twice, and more than a kernel can have.
    assert!(!table(vec![tier("a", 7)], vec![node.clone()]));
    assert!(!table(vec![tier("a", 0), tier("a", 0)], vec![node.clone()]));
    assert!(!table(vec![tier("a", 0)], vec![node; 2000]));
}

/// A terabyte of addresses costs twenty bytes of a file.
#[test]
fn memory_does_not_follow_what_a_file_claims() {
    for split in [SplitRule::Halves, SplitRule::Edges] {
        let mut settings = EngineSettings::default();
        settings.profiling.split = split;
        settings.profiling.initial_region = Bytes(PAGE_BYTES);
        settings.profiling.minimum_region = Bytes(PAGE_BYTES);
        settings.profiling.overhead_limit = 1.0;
        settings.profiling.overhead_control = split == SplitRule::Edges;
        let mut seen = observation(1);
        seen.targets[0].eligible = vec![range(0x1000, 1 << 57)];
        // A scan for nothing: as many samples as anybody can pay for.
        (seen.cost.scanned, seen.cost.scanning) = (1 << 47, Nanos(0));
        seen.accesses = AccessSet::default();
        let mut frames = vec![started(settings)];
        for at in 1..3 {
            seen.at = Nanos::from_secs(at * 10);
            seen.targets[0].cpu_time = Nanos::from_secs(at * 1000);
            seen.targets[0].memory_time = Nanos::from_secs(at * 1000);
            frames.push(Frame::Observed(Box::new(seen.clone())));
        }
        let bytes = file_of(&payloads(&frames));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.rec");
        std::fs::write(&path, bytes).unwrap();
        let mut replay = Replay::new(Reader::open(&path).unwrap());
        let mut epochs = 0;
        while let Some(epoch) = replay.next_epoch().unwrap() {
            epochs += 1;
            let regions = epoch.engine.regions(TargetId(3)).unwrap().regions().len();
            assert!(regions <= (1 << 20) + 2, "{split:?}: {regions} regions");
            let samples = epoch.plan.samples.len();
            assert!(samples <= 1 << 22, "{split:?}: {samples} samples");
        }
        assert_eq!(epochs, 2);
    }
}

fn any_policy() -> impl Strategy<Value = PolicyName> {
    (0..PolicyName::CHOICES.len()).prop_map(|i| PolicyName::CHOICES[i].1)
}

proptest! {
    #[test]
    fn any_bytes_after_the_head_are_read_without_a_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..2000),
    ) {
        let mut file = file_of(&[]);
        file.extend(bytes);
        let (epochs, _) = replay(&file, None);
        prop_assert_eq!(epochs, 0);
    }

    #[test]
    fn any_payload_with_the_right_checksums_is_a_fault_or_a_frame(
        parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..4),
    ) {
        let (epochs, _) = replay(&file_of(&parts), None);
        prop_assert_eq!(epochs, 0);
    }

    /// What is before the first flipped byte is read; what is wrong has a place.
    #[test]
    fn flipped_bytes_cost_what_is_behind_them(
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1_u8..), 1..6),
    ) {
        let (_dir, path) = recording(3);
        let mut bytes = std::fs::read(&path).unwrap();
        let whole = bytes.len();
        let mut first = whole;
        for (at, with) in flips {
            let at = at.index(whole);
            bytes[at] ^= with;
            if bytes[at] == std::fs::read(&path).unwrap()[at] {
                return Ok(());
            }
            first = first.min(at);
        }
        let (untouched, _) = replay(&std::fs::read(&path).unwrap()[..first.max(HEAD)], None);
        let (epochs, error) = replay(&bytes, None);
        if first < HEAD {
            prop_assert!(error.is_some());
        } else {
            prop_assert_eq!(epochs, untouched);
        }
        if let Some(RecordError::Damaged { at, .. }) = error {
            // Cut there, as it says, it is whole.
            let cut = usize::try_from(at).unwrap();
            prop_assert!(cut <= first);
            let (again, error) = replay(&bytes[..cut], None);
            prop_assert!(error.is_none());
            prop_assert_eq!(again, epochs);
        }
    }

    /// Bytes changed below the checksums: odd values that every type allows.
    #[test]
    fn odd_values_under_right_checksums_do_not_upset_the_engine(
        changes in prop::collection::vec(
            (0_usize..7, any::<prop::sample::Index>(), any::<u8>()),
            1..8,
        ),
        policy in any_policy(),
    ) {
        let mut frames = vec![started(EngineSettings::default())];
        frames.extend((1..7).map(|at| Frame::Observed(Box::new(busy(at)))));
        let mut payloads = payloads(&frames);
        for (frame, at, byte) in changes {
            let payload = &mut payloads[frame];
            let at = at.index(payload.len());
            payload[at] = byte;
        }
        let file = file_of(&payloads);
        let (epochs, error) = replay(&file, Some(policy));
        let (as_it_was, as_recorded) = replay(&file, None);
        prop_assert_eq!(accessed(&file), as_it_was);
        prop_assert_eq!(draw(&file), as_recorded.is_none());
        prop_assert!(epochs == 6 || error.is_some(), "{} epochs", epochs);
        if let Some(error) = error {
            prop_assert!(matches!(error, RecordError::Damaged { .. }), "{}", error);
        }
    }

}

proptest! {
    // Each is drawn as well.
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 8))]

    /// The same, whole fields at once.
    #[test]
    fn large_values_do_not_upset_the_engine(
        numbers in prop::collection::vec(prop_oneof![
            Just(0_u64), Just(1), Just(1 << 45), Just(1 << 62), Just(u64::MAX), any::<u64>(),
        ], 24),
        places in prop::collection::vec((1_u64..1 << 44, 1_u64..1 << 28), 3),
        seen_of in prop::collection::vec((0_u8..=20, 0_u8..=20, any::<u8>(), 0_u32..4), 100),
        split in 0_usize..3,
        policy in any_policy(),
    ) {
        let mut settings = EngineSettings::default();
        settings.profiling.split = SplitRule::CHOICES[split].1;
        settings.profiling.initial_region = Bytes(1 << 30);
        settings.profiling.writes = Asking::Always;
        settings.page_out = Some(PageOutSettings::default());
        let mut frames = vec![started(settings)];
        for at in 0..3_usize {
            let n = |i: usize| numbers[(at * 7 + i) % numbers.len()];
            let few = |i: usize| n(i) & ((1 << 40) - 1);
            let mut seen = observation(n(0) & ((1 << 62) - 1));
            let (start, span) = places[at];
            let start = start * PAGE_BYTES;
            seen.targets[0].eligible = vec![range(start, start + span * PAGE_BYTES)];
            seen.targets[0].cpu_time = Nanos(n(1) >> 2);
            seen.targets[0].memory_time = Nanos(n(8) >> 2);
            seen.capacity = n(2);
            seen.nodes[0].free = Bytes(n(3));
            seen.nodes[0].reserve = Bytes(n(4));
            seen.nodes[0].total = Bytes(n(5));
            seen.cost.scanning = Nanos(n(6) >> 2);
            seen.cost.scanned = few(7);
            seen.cost.swept = few(8);
            seen.cost.sweeping = Nanos(n(9) >> 2);
            seen.cost.migration = Nanos(n(10) >> 2);
            seen.cost.elapsed = Nanos(n(11) >> 2);
            seen.cost.set_again = few(12);
            seen.paging.results[0].pages = n(13) % 512;
            seen.paging.targets[0].faults = n(14);
            seen.cost.paging = Nanos(n(15) >> 2);
            seen.outcome.results[0].pages.moved = few(13);
            seen.outcome.results[0].pages.deferred = few(14);
            seen.outcome.results[0].asked.limit = Bytes(n(15));
            let sample = |i: u64| Sample {
                target: TargetId(3),
                pid: Pid(42),
                addr: VirtAddr(start + span / 100 * i * PAGE_BYTES),
            };
            let mut value = postcard::to_stdvec(
                &(0..100).map(sample).collect::<Vec<_>>(),
            ).unwrap();
            let tallies: Vec<(u8, u8, u8, Option<u32>, bool, bool)> = seen_of
                .iter()
                .map(|&(a, b, order, node)| (a.min(b), a.max(b), order, Some(node), a > 3, b > 3))
                .collect();
            value.extend(postcard::to_stdvec(&(tallies, 3_u8)).unwrap());
            seen.accesses = postcard::from_bytes(&value).unwrap();
            frames.push(Frame::Observed(Box::new(seen)));
        }
        let file = file_of(&payloads(&frames));
        let (epochs, error) = replay(&file, Some(policy));
        prop_assert!(error.is_none(), "{:?}", error);
        prop_assert!(draw(&file));
        prop_assert_eq!((epochs, accessed(&file)), (3, 3));
    }
}
