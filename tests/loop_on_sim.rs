//! The real loop and engine on the simulator's machine: four tiers, a hot set
//! in scattered chunks that jumps.

use hmkeeper::epoch::{EpochLoop, LoopSettings};
use hmkeeper::ports::{MoveLimits, TargetSpec, Threads};
use hmkeeper::sim::{self, Eater, Machine, Process, Shared, Touch};
use hmkeeper::tiering::observation::TargetId;
use hmkeeper::tiering::plan::{Direction, Move, Reason};
use hmkeeper::tiering::report::{EpochReport, PauseReason};
use hmkeeper::tiering::rng::Rng;
use hmkeeper::tiering::settings::{EngineSettings, PolicyName, ProfilingSettings};
use hmkeeper::units::{Bandwidth, Bytes, Nanos, NodeId, PAGE_BYTES, PageRange, Pid, VirtAddr};

const PID: Pid = Pid(7);
const BASE: u64 = 0x7f00_0000_0000;
const PAGES: u64 = 262_144;
const CHUNK: u64 = 410;
const CHUNKS: u64 = 64;

fn range() -> PageRange {
    let start = VirtAddr(BASE);
    PageRange::new(start, VirtAddr(BASE + PAGES * PAGE_BYTES)).unwrap()
}

/// 64 chunks of 410 pages (1.6 MiB), a tenth of 1 GiB, drawn per phase.
fn chunks(phase: u64) -> Vec<u64> {
    let mut rng = Rng::new(phase + 1);
    let slot = PAGES / CHUNKS;
    (0..CHUNKS)
        .map(|i| i * slot + rng.below(slot - CHUNK))
        .collect()
}

fn is_hot(starts: &[u64], addr: VirtAddr) -> bool {
    let page = (addr.0 - BASE) / PAGE_BYTES;
    let at = starts.partition_point(|&s| s <= page);
    at > 0 && page - starts[at - 1] < CHUNK
}

fn settings() -> LoopSettings {
    LoopSettings {
        engine: EngineSettings {
            profiling: ProfilingSettings {
                interval: Nanos::from_secs(2),
                ..ProfilingSettings::default()
            },
            headroom: 0.0,
            ..EngineSettings::default()
        },
        moving: true,
        rate: None,
        threads: Threads::Exactly(1),
        call_time: Nanos::from_millis(20),
        migration_share: 0.5,
    }
}

/// A machine whose fastest node has room for `fast` bytes, and a loop that
/// watches a process of 1 GiB, all of it on the slowest.
fn start(
    fast: Bytes,
    rate: impl Fn(VirtAddr, Nanos) -> f64 + 'static,
    settings: LoopSettings,
) -> (Shared, EpochLoop) {
    let nodes = [
        (NodeId(0), fast),
        (NodeId(1), Bytes::from_mib(768)),
        (NodeId(2), Bytes::from_mib(2048)),
        (NodeId(3), Bytes::from_mib(2048)),
    ];
    let mut machine = Machine::new(&nodes, 1);
    machine.start(
        Process {
            id: TargetId(0),
            pid: PID,
            name: "model".into(),
            range: range(),
            touch: Touch::Rate(Box::new(rate)),
            home: NodeId(0),
        },
        NodeId(3),
    );
    let tiers = machine
        .tiers([&[90, 145, 275, 340], &[145, 90, 340, 275]])
        .unwrap();
    let machine = machine.shared();
    let mut epochs = EpochLoop::new(sim::ports(&machine), tiers, settings, 1);
    epochs.select(&[TargetSpec::of_pid(PID)]);
    (machine, epochs)
}

fn turn(epochs: &mut EpochLoop) -> EpochReport {
    let turn = epochs.turn().unwrap();
    turn.report.expect("the model never interrupts")
}

/// Share of the hot pages that are on the fastest node.
fn placed(machine: &Shared, starts: &[u64]) -> f64 {
    let machine = machine.borrow();
    let hot: Vec<VirtAddr> = range()
        .iter_pages()
        .filter(|&a| is_hot(starts, a))
        .collect();
    let fast = hot
        .iter()
        .filter(|&&a| machine.node_of(PID, a) == Some(NodeId(0)))
        .count();
    fast as f64 / hot.len() as f64
}

fn moved(report: &EpochReport) -> Bytes {
    let flows = report.targets.iter().flat_map(|t| &t.flows);
    flows.map(|f| f.moved).sum()
}

#[test]
fn a_jumping_hot_set_is_on_the_fastest_node_within_eight_epochs() {
    const PHASE: Nanos = Nanos::from_secs(40);
    let sets: Vec<Vec<u64>> = (0..4).map(chunks).collect();
    let of = sets.clone();
    let rate = move |addr: VirtAddr, at: Nanos| {
        let phase = usize::try_from(at.0 / PHASE.0).unwrap().min(3);
        if is_hot(&of[phase], addr) { 50.0 } else { 0.01 }
    };
    // Room for one and a half hot sets.
    let hot = Bytes::from_pages(CHUNK * CHUNKS);
    let (machine, mut epochs) = start(Bytes(hot.0 * 3 / 2), rate, settings());
    for (phase, starts) in (0..).zip(&sets) {
        let end = Nanos(PHASE.0 * phase) + Nanos::from_secs(17);
        while machine.borrow().now() < end {
            turn(&mut epochs);
        }
        let share = placed(&machine, starts);
        assert!(share >= 0.9, "phase {phase}: {share:.3} of the hot pages");
        let end = Nanos(PHASE.0 * (phase + 1));
        while machine.borrow().now() < end {
            turn(&mut epochs);
        }
    }
    // Without the last jump: the estimate and the truth agree.
    let report = turn(&mut epochs);
    let truth = machine.borrow().true_shares(PID)[&NodeId(0)];
    let estimate = report.targets[0].accesses.ratio[0];
    assert!(truth > 0.9, "{truth}");
    assert!((truth - estimate).abs() < 0.1, "{truth} {estimate}");
}

#[test]
fn more_hot_than_fits_comes_to_rest_hottest_first() {
    // A tenth is touched all the time, another two tenths now and then.
    let hot = chunks(0);
    let (h, w) = (hot.clone(), chunks(9));
    let rate = move |addr: VirtAddr, _| {
        if is_hot(&h, addr) {
            50.0
        } else if is_hot(&w, addr) {
            1.0
        } else {
            0.0
        }
    };
    let size = Bytes::from_pages(CHUNK * CHUNKS);
    let (machine, mut epochs) = start(Bytes(size.0 * 5 / 4), rate, settings());
    for _ in 0..25 {
        turn(&mut epochs);
    }
    assert!(placed(&machine, &hot) > 0.9);
    let most = Bytes(range().bytes().0 / 100);
    for _ in 0..10 {
        let bytes = moved(&turn(&mut epochs));
        assert!(bytes < most, "still moving {bytes}");
    }
}

#[test]
fn what_was_touched_while_the_machine_stood_still_is_not_hot() {
    // Seen in about every sixth scan; but in all when one takes a minute.
    let (machine, mut epochs) = start(Bytes::from_mib(512), |_, _| 0.25, settings());
    for _ in 0..5 {
        turn(&mut epochs);
    }
    let now = machine.borrow().now();
    machine.borrow_mut().pause = Some((now + Nanos::from_millis(300), Nanos::from_secs(60)));
    let ends = [(); 5].map(|()| {
        let bytes = moved(&turn(&mut epochs));
        assert!(bytes < Bytes::from_mib(10), "moved {bytes}");
        machine.borrow().now()
    });
    // Nor is that made up for by epochs in which nothing has time to be touched.
    let least = Nanos(settings().engine.profiling.interval.0 / 4);
    assert!(ends[4] > now + Nanos::from_secs(60));
    assert!(ends.is_sorted_by(|a, b| *b > *a + least), "{ends:?}");
}

#[test]
fn the_first_samples_are_as_many_as_the_limit_pays_for() {
    let (_machine, mut epochs) = start(Bytes::from_mib(512), |_, _| 1.0, settings());
    // Samples of each second of the epoch after the next `turns`.
    let mut samples = |turns: u32| {
        let before = (0..turns).map(|_| turn(&mut epochs)).last();
        let length = before.expect("an epoch").interval;
        turn(&mut epochs).targets[0].samples as f64 / length.as_secs_f64()
    };
    // The first turn finds the target; a scan's cost was learnt before.
    let (first, usual) = (samples(1), samples(8));
    assert!(first * 2.0 > usual, "{first} at first, {usual} later");
}

#[test]
fn a_blind_sampler_is_recognised_and_nothing_moves() {
    let hot = chunks(0);
    let rate = move |addr: VirtAddr, _| if is_hot(&hot, addr) { 50.0 } else { 0.0 };
    let (machine, mut epochs) = start(Bytes::from_mib(512), rate, settings());
    machine.borrow_mut().blind = true;
    let mut last = EpochReport::default();
    for _ in 0..8 {
        last = turn(&mut epochs);
        assert_eq!(moved(&last), Bytes::ZERO);
    }
    assert_eq!(last.paused, [PauseReason::SamplerBlind]);
    machine.borrow_mut().blind = false;
    for _ in 0..3 {
        last = turn(&mut epochs);
    }
    assert_eq!(last.paused, []);
}

#[test]
fn a_dry_run_plans_and_counts_but_moves_nothing() {
    let hot = chunks(0);
    let rate = move |addr: VirtAddr, _| if is_hot(&hot, addr) { 50.0 } else { 0.0 };
    let dry = LoopSettings {
        moving: false,
        ..settings()
    };
    let (machine, mut epochs) = start(Bytes::from_mib(512), rate, dry);
    let mut planned = Bytes::ZERO;
    for _ in 0..6 {
        let report = turn(&mut epochs);
        assert_eq!(report.paused, [PauseReason::DryRun]);
        assert_eq!(moved(&report), Bytes::ZERO);
        planned += report
            .targets
            .iter()
            .flat_map(|t| &t.flows)
            .map(|f| f.planned)
            .sum();
    }
    assert!(planned > Bytes::from_mib(50), "{planned}");
    let machine = machine.borrow();
    assert!(
        range()
            .iter_pages()
            .all(|a| machine.node_of(PID, a) == Some(NodeId(3)))
    );
}

#[test]
fn the_configured_rate_bounds_what_is_moved() {
    let hot = chunks(0);
    let rate = move |addr: VirtAddr, _| if is_hot(&hot, addr) { 50.0 } else { 0.0 };
    let slow = LoopSettings {
        rate: Some(Bandwidth(5 << 20)),
        ..settings()
    };
    let (_machine, mut epochs) = start(Bytes::from_mib(512), rate, slow);
    let mut any = false;
    for _ in 0..12 {
        let bytes = moved(&turn(&mut epochs));
        assert!(bytes <= Bytes::from_mib(10), "{bytes} in 2 s at 5 MiB/s");
        any |= !bytes.is_zero();
    }
    assert!(any);
}

#[test]
fn a_target_that_ends_is_an_event() {
    let (machine, mut epochs) = start(Bytes::from_mib(512), |_, _| 1.0, settings());
    for _ in 0..3 {
        turn(&mut epochs);
    }
    machine.borrow_mut().end(PID);
    let last = epochs.turn().unwrap();
    assert_eq!(last.events.len(), 1);
    assert_eq!(last.report.unwrap().targets, []);
    // And the loop goes on.
    assert_eq!(turn(&mut epochs).targets, []);
}

#[test]
fn the_same_seed_gives_the_same_epochs() {
    let run = || {
        let hot = chunks(3);
        let rate = move |addr: VirtAddr, _| if is_hot(&hot, addr) { 3.0 } else { 0.1 };
        let (_machine, mut epochs) = start(Bytes::from_mib(300), rate, settings());
        (0..8).map(|_| turn(&mut epochs)).collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}

#[test]
fn a_recording_makes_the_same_decisions_again() {
    use hmkeeper::record::Replay;
    use hmkeeper::record::file::{Reader, Writer};

    let starts = chunks(0);
    let rate = move |addr: VirtAddr, _: Nanos| if is_hot(&starts, addr) { 50.0 } else { 0.01 };
    let (_machine, mut epochs) = start(Bytes::from_mib(150), rate, settings());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.rec");
    epochs.record(Box::new(Writer::append(&path, 1).unwrap()));
    let mut live = Vec::new();
    for epoch in 0..12 {
        if epoch == 6 {
            // A reload, which changes what is decided from there on.
            let mut settings = settings();
            settings.engine.profiling.overhead_limit = 0.01;
            let tiers = epochs.tiers().clone();
            epochs.configure(settings, tiers);
        }
        live.push(turn(&mut epochs));
    }
    let mut replay = Replay::new(Reader::open(&path).unwrap());
    let mut again = Vec::new();
    while let Some(epoch) = replay.next_epoch().unwrap() {
        again.push(epoch.plan.report);
    }
    assert_eq!(again, live);
    assert!(live.iter().any(|report| moved(report) > Bytes::ZERO));

    let mut table = Vec::new();
    let mut replay = Replay::new(Reader::open(&path).unwrap());
    let written = hmkeeper::record::csv::write(&mut replay, &mut table).unwrap();
    let regions: u64 = live
        .iter()
        .flat_map(|r| &r.targets)
        .map(|t| t.regions)
        .sum();
    assert_eq!((written.epochs, written.rows), (12, regions));
    let table = String::from_utf8(table).unwrap();
    let last = table.lines().last().unwrap();
    assert_eq!(last.split(',').count(), 7, "{last}");
    assert!(table.lines().any(|row| row.ends_with(",3,dram0")), "{last}");
}

#[test]
fn a_replay_plans_byte_for_byte_what_was_planned_live() {
    use hmkeeper::record::file::{Reader, Writer};
    use hmkeeper::record::{Replay, compare};
    use hmkeeper::tiering::settings::PolicyName;

    const EPOCHS: u64 = 10;
    let dir = tempfile::tempdir().unwrap();
    let mut moving = 0;
    for (name, policy) in PolicyName::CHOICES {
        let starts = chunks(0);
        let rate = move |addr: VirtAddr, _: Nanos| if is_hot(&starts, addr) { 50.0 } else { 0.05 };
        let mut settings = settings();
        settings.engine.policy.name = policy;
        let (_machine, mut epochs) = start(Bytes::from_mib(150), rate, settings.clone());
        let path = dir.path().join(name);
        epochs.record(Box::new(Writer::append(&path, 1).unwrap()));
        let mut live = Vec::new();
        for epoch in 0..EPOCHS {
            // Also over a reload, and where what is planned is not done.
            if epoch == 6 {
                settings.engine.profiling.scans = 4;
                let tiers = epochs.tiers().clone();
                epochs.configure(settings.clone(), tiers);
            }
            epochs.pause(epoch == 3);
            turn(&mut epochs);
            let mut plan = epochs.plan().expect("a plan").clone();
            // That is the loop's word, not the engine's.
            plan.report.paused.retain(|p| *p != PauseReason::Operator);
            live.push(postcard::to_stdvec(&plan).unwrap());
        }
        let mut replay = Replay::new(Reader::open(&path).unwrap());
        let mut again = Vec::new();
        while let Some(epoch) = replay.next_epoch().unwrap() {
            again.push(postcard::to_stdvec(&epoch.plan).unwrap());
        }
        assert!(again == live, "{name}: other plans than live");

        // And the recording alone tells so.
        let of = |policy| {
            let mut replay = Replay::under(Reader::open(&path).unwrap(), policy);
            compare::summarise(&mut replay).unwrap()
        };
        let sum = of(None);
        assert_eq!(
            (sum.runs, sum.epochs, sum.compared),
            (1, EPOCHS, EPOCHS - 1)
        );
        assert_eq!(
            (sum.same_moves, sum.same_plans),
            (sum.compared, sum.compared)
        );
        assert_eq!(sum.recorded, [policy]);
        assert_eq!(of(Some(policy)), sum, "{name} by its name");
        if sum.moves > 0 && sum.compared > 0 {
            moving += 1;
            assert!(sum.agreement().is_none_or(|share| share >= 1.0), "{name}");
        }
        // One that does nothing of the kind is told apart.
        if policy == PolicyName::HmKeeper {
            let other = of(Some(PolicyName::Age));
            assert!(other.same_moves < other.compared, "{other:?}");
            assert!(other.agreement().is_some_and(|share| share < 1.0));
        }
    }
    assert!(moving >= 8, "{moving} policies move anything");
}

#[test]
fn a_small_limit_stretches_epochs_and_holds() {
    const LIMIT: f64 = 0.005;
    let starts = chunks(0);
    let rate = move |addr: VirtAddr, _: Nanos| if is_hot(&starts, addr) { 50.0 } else { 0.01 };
    let mut small = settings();
    small.engine.profiling.overhead_limit = LIMIT;
    small.moving = false;
    let (machine, mut epochs) = start(Bytes::from_mib(150), rate, small);
    // 10 ms are all that an epoch of 2 s has.
    machine.borrow_mut().map_cost = Nanos::from_millis(20);
    for _ in 0..6 {
        turn(&mut epochs);
    }
    let (mut spent, mut elapsed) = (Nanos::ZERO, Nanos::ZERO);
    for _ in 0..20 {
        let report = turn(&mut epochs);
        assert!(report.interval > Nanos::from_secs(3), "{}", report.interval);
        assert!(report.targets[0].samples > 0);
        spent += report.cost.profiling;
        elapsed += report.cost.elapsed;
    }
    let share = spent.as_secs_f64() / elapsed.as_secs_f64();
    assert!(share <= LIMIT * 1.02, "{share}");
    assert!(share >= LIMIT * 0.5, "{share}");
    // A reload with a larger limit does not wait for the end of a long epoch.
    let before = machine.borrow().now();
    epochs.configure(settings(), epochs.tiers().clone());
    let report = turn(&mut epochs);
    assert!(report.interval <= Nanos::from_secs(2));
    let took = machine.borrow().now().saturating_sub(before);
    assert!(took < Nanos::from_secs(3), "{took}");
}

/// What becomes of a program that grows by 48 MiB of hot memory now and then: the share of
/// each that lies on the fastest node at once, and the bytes that went for headroom.
fn bursts(headroom: f64) -> (Vec<f64>, Bytes) {
    const FAST: Bytes = Bytes::from_mib(512);
    const BURST: Bytes = Bytes::from_mib(48);
    let nodes: Vec<NodeId> = (0..4).map(NodeId).collect();
    let sizes = [FAST, Bytes::from_mib(768), range().bytes(), range().bytes()];
    let sized: Vec<(NodeId, Bytes)> = nodes.iter().copied().zip(sizes).collect();
    let mut machine = Machine::new(&sized, 1);
    // It begins with an eighth of it, and what it allocates later is hot. What is cold comes
    // first, and fills the fastest node.
    let cold = range().bytes().0 / 8 * 7;
    let hot = move |addr: VirtAddr| addr.0 >= BASE + cold;
    let process = Process {
        id: TargetId(0),
        pid: PID,
        name: "grows".into(),
        range: range(),
        touch: Touch::Rate(Box::new(move |addr, _| if hot(addr) { 50.0 } else { 0.0 })),
        home: NodeId(0),
    };
    machine.start_on(process, &nodes);
    let latencies: [&[u64]; 2] = [&[90, 145, 275, 340], &[145, 90, 340, 275]];
    let tiers = machine.tiers(latencies).unwrap();
    let machine = machine.shared();
    let mut settings = settings();
    settings.engine.headroom = headroom;
    let mut epochs = EpochLoop::new(sim::ports(&machine), tiers, settings, 1);
    epochs.select(&[TargetSpec::of_pid(PID)]);

    let mut restored = Bytes::ZERO;
    let mut turn = || {
        let report = turn(&mut epochs);
        let flows = report.targets.iter().flat_map(|t| &t.flows);
        let of = |reason| flows.clone().filter(move |f| f.reason == reason);
        // What is missing of the headroom beyond what a burst takes goes with the next plan, the rest at once.
        restored += of(Reason::Headroom).map(|f| f.moved).sum();
        restored += of(Reason::Shortage).map(|f| f.moved).sum();
        moved(&report)
    };
    let mut shares = Vec::new();
    let mut end = range().end();
    for _ in 0..3 {
        for _ in 0..12 {
            turn();
        }
        for _ in 0..4 {
            let moved = turn();
            assert!(moved < Bytes::from_mib(2), "still moving {moved}");
        }
        machine.borrow_mut().grow(PID, BURST, &nodes);
        let new = PageRange::new(end, VirtAddr(end.0 + BURST.0)).unwrap();
        end = new.end();
        let placed = machine.borrow().placed(PID, new);
        let fast = placed.iter().filter(|(_, node)| *node == NodeId(0));
        let fast: u64 = fast.map(|(run, _)| run.end - run.start).sum();
        shares.push(fast as f64 / BURST.pages() as f64);
    }
    (shares, restored)
}

#[test]
fn what_a_program_allocates_in_bursts_lies_on_the_fastest_node_at_once() {
    // An eighth of 512 MiB, and of that all but an eighth, is more than each burst takes.
    let (shares, restored) = bursts(0.125);
    assert_eq!(shares, [1.0; 3]);
    // What stays free at first, and most of what two bursts took of it: what made room at once rests.
    assert!(restored >= Bytes::from_mib(120), "{restored}");
    assert!(restored <= Bytes::from_mib(176), "{restored}");
    let (shares, restored) = bursts(0.0);
    assert_eq!(shares, [0.0; 3]);
    assert_eq!(restored, Bytes::ZERO);
}

/// Another program that may use the fastest node only takes 250 MiB of it, at so many MiB a second, where
/// `hot` MiB were promoted: bytes that made room, and bytes promoted within half a minute.
fn eaten(policy: PolicyName, rate: u64, hot: u64) -> (Bytes, Bytes) {
    const FAST: Bytes = Bytes::from_mib(512);
    const WANTED: Bytes = Bytes::from_mib(250);
    let end = BASE + (hot << 20);
    let mut settings = settings();
    settings.engine.headroom = 0.02;
    settings.engine.policy.name = policy;
    let touch = move |addr: VirtAddr, _| if addr.0 < end { 50.0 } else { 0.0 };
    let (machine, mut epochs) = start(FAST, touch, settings);
    for _ in 0..20 {
        turn(&mut epochs);
    }
    let on_fast = |machine: &Machine| {
        let placed = machine.placed(PID, range());
        let fast = placed.iter().filter(|(_, node)| *node == NodeId(0));
        Bytes::from_pages(fast.map(|(run, _)| run.end - run.start).sum())
    };
    let before = on_fast(&machine.borrow());
    let most = FAST.saturating_sub(Bytes::from_mib(50));
    assert!(before <= most, "{before} of {most}");
    assert!(before >= most.min(Bytes::from_mib(hot - 8)), "{before}");
    let from = machine.borrow().now();
    let rate = Bandwidth(rate << 20);
    (machine.borrow_mut()).add_eater(Eater::new(NodeId(0), from, rate, WANTED));
    let mut promoted = Bytes::ZERO;
    let mut made_room = Bytes::ZERO;
    let takes = WANTED.as_f64() / rate.0 as f64;
    loop {
        let report = turn(&mut epochs);
        let flows = report.targets.iter().flat_map(|t| &t.flows);
        let of = |reason| flows.clone().filter(move |f| f.reason == reason);
        made_room += of(Reason::Shortage).map(|f| f.moved).sum();
        // What has cooled goes with the next plan.
        made_room += of(Reason::Headroom).map(|f| f.moved).sum();
        if made_room > Bytes::ZERO {
            // What changes places takes nothing of anybody.
            let up: Bytes = of(Reason::Hot).map(|f| f.moved).sum();
            let down = of(Reason::Room).map(|f| f.moved).sum();
            promoted += up.saturating_sub(down);
        }
        let eater = machine.borrow_mut().eaters()[0];
        assert!(!eater.starved, "{policy:?} {rate:?}: {eater:?}");
        let passed = machine.borrow().now().saturating_sub(from);
        if passed.as_secs_f64() > takes + 25.0 {
            assert_eq!(eater.has, WANTED);
            return (made_room, promoted);
        }
    }
}

#[test]
fn who_can_only_allocate_on_the_fastest_node_never_finds_it_full() {
    let policies = [
        PolicyName::Adaptive,
        PolicyName::HmKeeper,
        PolicyName::MemoryTiering,
    ];
    for policy in policies {
        for rate in [100, 20, 5] {
            let (made_room, promoted) = eaten(policy, rate, 440);
            // What does not fit beside 440 MiB.
            let lacked = Bytes::from_mib(170);
            assert!(made_room >= lacked, "{policy:?} {rate}: {made_room}");
            let most = Bytes::from_mib(290);
            assert!(made_room <= most, "{policy:?} {rate}: {made_room}");
            // Not to and fro.
            assert!(
                promoted <= Bytes::from_mib(16),
                "{policy:?} {rate}: {promoted}"
            );
        }
    }
    // With room for both nothing leaves.
    let (made_room, _) = eaten(PolicyName::Adaptive, 100, 128);
    assert_eq!(made_room, Bytes::ZERO);
}

/// Moves a range in the model, whatever the policy thinks of it.
fn place(machine: &Shared, range: PageRange, to: NodeId) {
    let limits = MoveLimits {
        time: Nanos::from_secs(1000),
        rate: Bandwidth(u64::MAX),
        bytes: Bytes(u64::MAX),
        call_time: Nanos::from_secs(1),
        threads: Threads::Exactly(1),
    };
    let asked = Move {
        target: TargetId(0),
        pid: PID,
        range,
        from: NodeId(3),
        to,
        limit: range.bytes(),
        direction: Direction::Promotion,
        reason: Reason::Hot,
    };
    let mut ports = sim::ports(machine);
    ports.mover.apply(&[asked], limits).unwrap();
}

#[test]
fn exported_shares_are_right_where_hot_and_cold_lie_side_by_side() {
    // Touched once a second, once in three, and once in twenty: too alike to be cut apart.
    let (hot, warm) = (chunks(0), chunks(9));
    let (h, w) = (hot.clone(), warm.clone());
    let rate = move |addr: VirtAddr, _| {
        if is_hot(&h, addr) {
            1.0
        } else if is_hot(&w, addr) {
            0.3
        } else {
            0.05
        }
    };
    let mut settings = settings();
    settings.moving = false;
    settings.engine.profiling.overhead_limit = 0.5;
    let (machine, mut epochs) = start(Bytes::from_mib(512), rate, settings);
    let of = |start: &u64| {
        let at = |page: u64| VirtAddr(BASE + (start + page) * PAGE_BYTES);
        PageRange::new(at(0), at(CHUNK)).unwrap()
    };
    for (at, start) in hot.iter().enumerate() {
        place(&machine, of(start), NodeId(if at % 3 == 0 { 2 } else { 0 }));
    }
    for (at, start) in warm.iter().enumerate() {
        place(&machine, of(start), NodeId(u32::from(at % 2 == 0)));
    }
    for _ in 0..10 {
        turn(&mut epochs);
    }
    let truth = machine.borrow().true_shares(PID);
    let mut sums = [0.0; 4];
    let (mut covered, mut width) = (0, 0.0);
    for _ in 0..20 {
        let report = turn(&mut epochs);
        let told = &report.targets[0].accesses;
        for (tier, sum) in sums.iter_mut().enumerate() {
            let node = NodeId(u32::try_from(tier).unwrap());
            let (low, high) = (told.low[tier], told.high[tier]);
            *sum += told.ratio[tier] / 20.0;
            covered += u32::from(low <= truth[&node] && truth[&node] <= high);
            width += (high - low) / 80.0;
        }
    }
    for (node, told) in (0..).zip(sums) {
        let truth = truth[&NodeId(node)];
        println!("node {node}: {truth:.3}, told {told:.3}");
        assert!(
            (truth - told).abs() < 0.05,
            "node {node}: {truth}, told {told}"
        );
    }
    println!("{covered} of 80 within bounds, {width:.3} wide on average");
    assert!(covered >= 72, "{covered} of 80 within bounds");
    assert!(width < 0.25, "{width}");
}
