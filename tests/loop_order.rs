//! In which order the loop watches and moves, on the simulator's machine, and what it does where a
//! port fails.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use hmkeeper::epoch::{EpochLoop, LoopSettings};
use hmkeeper::ports::{
    AccessSampler, MoveLimits, PageMover, PortError, SamplerKind, TargetSpec, Threads,
};
use hmkeeper::sim::{self, Machine, Process, Shared, Touch};
use hmkeeper::tiering::observation::{AccessSet, Sample, TargetId};
use hmkeeper::tiering::plan::{Move, MoveOutcome};
use hmkeeper::tiering::settings::{EngineSettings, ProfilingSettings, WindowRule};
use hmkeeper::tiering::windows;
use hmkeeper::units::{Bytes, Nanos, NodeId, PAGE_BYTES, PageRange, Pid, VirtAddr};

const PID: Pid = Pid(7);
const INTERVAL: Nanos = Nanos::from_secs(2);
const START: VirtAddr = VirtAddr(0x7f00_0000_0000);
const BYTES: Bytes = Bytes::from_mib(1024);

#[derive(Clone, Debug, PartialEq)]
enum Step {
    /// With how many samples, and when.
    Arm(usize, Nanos),
    Collect(Nanos),
    Move(u64),
}

/// What the loop did, and after how many times arming fails, if at all.
#[derive(Clone, Default)]
struct Log {
    steps: Rc<RefCell<Vec<Step>>>,
    arms_left: Rc<Cell<Option<usize>>>,
}

impl Log {
    fn take(&self) -> Vec<Step> {
        std::mem::take(&mut self.steps.borrow_mut())
    }
}

struct Watched<T: ?Sized> {
    inner: Box<T>,
    log: Log,
    machine: Shared,
}

impl AccessSampler for Watched<dyn AccessSampler> {
    fn kind(&self) -> SamplerKind {
        self.inner.kind()
    }

    fn arm(&mut self, samples: &[Sample], window: Nanos) -> Result<(), PortError> {
        let left = self.log.arms_left.get();
        self.log
            .arms_left
            .set(left.map(|left| left.saturating_sub(1)));
        if left == Some(0) {
            return Err(PortError::Missing {
                what: "the sampler".into(),
                remedy: "bring it back".into(),
            });
        }
        let step = Step::Arm(samples.len(), self.machine.borrow().now());
        self.log.steps.borrow_mut().push(step);
        self.inner.arm(samples, window)
    }

    fn collect(&mut self, seen: &mut AccessSet) -> Result<(), PortError> {
        let step = Step::Collect(self.machine.borrow().now());
        self.log.steps.borrow_mut().push(step);
        self.inner.collect(seen)
    }

    fn resolution(&self) -> String {
        self.inner.resolution()
    }
}

impl PageMover for Watched<dyn PageMover> {
    fn apply(&mut self, moves: &[Move], limits: MoveLimits) -> Result<MoveOutcome, PortError> {
        let outcome = self.inner.apply(moves, limits)?;
        let moved = outcome.results.iter().map(|r| r.pages.moved).sum();
        self.log.steps.borrow_mut().push(Step::Move(moved));
        Ok(outcome)
    }

    fn cpu_time(&self) -> Nanos {
        self.inner.cpu_time()
    }
}

/// A program of 1 GiB on slow memory, of which the first tenth is hot, and the loop over it.
fn start(windows: WindowRule) -> (Log, EpochLoop) {
    let nodes = [
        (NodeId(0), Bytes::from_mib(256)),
        (NodeId(1), Bytes::from_mib(2048)),
    ];
    let mut machine = Machine::new(&nodes, 1);
    let end = VirtAddr(START.0 + BYTES.0);
    let hot = VirtAddr(START.0 + BYTES.0 / 10 / PAGE_BYTES * PAGE_BYTES);
    machine.start(
        Process {
            id: TargetId(0),
            pid: PID,
            name: "model".into(),
            range: PageRange::new(START, end).unwrap(),
            touch: Touch::Rate(Box::new(
                move |addr, _| if addr < hot { 50.0 } else { 0.05 },
            )),
            home: NodeId(0),
        },
        NodeId(1),
    );
    let tiers = machine.tiers([&[90, 275], &[275, 90]]).unwrap();
    let machine = machine.shared();
    let log = Log::default();
    let mut ports = sim::ports(&machine);
    ports.sampler = Box::new(Watched {
        inner: ports.sampler,
        log: log.clone(),
        machine: Rc::clone(&machine),
    });
    ports.mover = Box::new(Watched {
        inner: ports.mover,
        log: log.clone(),
        machine,
    });
    let settings = LoopSettings {
        engine: EngineSettings {
            profiling: ProfilingSettings {
                interval: INTERVAL,
                windows,
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
    };
    let mut epochs = EpochLoop::new(ports, tiers, settings, 1);
    epochs.select(&[TargetSpec::of_pid(PID)]);
    (log, epochs)
}

/// The steps from the decision on whose plan is the first that moves anything.
fn first_move(log: &Log, epochs: &mut EpochLoop) -> Vec<Step> {
    for _ in 0..10 {
        log.take();
        epochs.turn().unwrap();
        let mut steps = log.take();
        if let Some(at) = steps
            .iter()
            .position(|s| matches!(s, Step::Move(pages) if *pages > 0))
        {
            let last = steps[..at]
                .iter()
                .rposition(|s| matches!(s, Step::Collect(_)));
            steps.drain(..=last.unwrap());
            epochs.turn().unwrap();
            steps.extend(log.take());
            return steps;
        }
    }
    panic!("nothing was moved");
}

#[test]
fn pages_move_in_the_first_window_which_is_as_long_as_ever() {
    let (log, mut epochs) = start(WindowRule::Tapered);
    let steps = first_move(&log, &mut epochs);
    let [
        Step::Arm(samples, armed),
        Step::Move(_),
        Step::Collect(seen),
        ..,
    ] = steps[..]
    else {
        panic!("{steps:?}");
    };
    assert!(samples > 0);
    let interval = epochs.plan().unwrap().interval;
    let window = windows::length(windows::SPAN, interval, 3, 0);
    let waited = seen.saturating_sub(armed);
    assert!(
        waited.0.abs_diff(window.0) < window.0 / 20,
        "{waited} of {window}"
    );
}

#[test]
fn what_cores_idle_for_is_told() {
    // That machine's one program leaves others idle.
    let (_log, mut epochs) = start(WindowRule::Tapered);
    let spare = [(); 4].map(|()| epochs.turn().unwrap().report.unwrap().spare);
    assert!(spare[3] > 0.9, "{spare:?}");
}

#[test]
fn where_moving_may_take_longer_it_comes_first() {
    let (log, mut epochs) = start(WindowRule::Equal);
    let steps = first_move(&log, &mut epochs);
    assert!(
        matches!(
            steps[..],
            [Step::Move(_), Step::Arm(..), Step::Collect(_), ..]
        ),
        "{steps:?}"
    );
}

#[test]
fn a_sampler_that_fails_takes_neither_the_report_nor_the_moves() {
    let (log, mut epochs) = start(WindowRule::Tapered);
    epochs.turn().unwrap();
    log.take();
    // It arms for the second scan and the third, but not for the next epoch.
    log.arms_left.set(Some(2));
    let report = epochs.turn().unwrap().report.unwrap();
    assert!(report.targets[0].samples > 0);
    assert!(matches!(log.take()[..], [.., Step::Move(1..)]));
    let error = epochs.turn().unwrap_err();
    assert!(matches!(error, PortError::Missing { .. }), "{error}");
    // And goes on as soon as it works again.
    log.arms_left.set(None);
    epochs.turn().unwrap();
    assert!(epochs.turn().unwrap().report.unwrap().targets[0].samples > 0);
}
