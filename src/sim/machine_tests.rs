use proptest::prelude::*;

use super::*;
use crate::sim::workload::Workload;
use crate::tiering::observation::Seen;

const PID: Pid = Pid(1);
const FIRST: u64 = 1 << 40;
const FOLIO: u64 = 2 << 20;
const PAGES: u64 = FOLIO / PAGE_BYTES;
/// Folios of the program, and of each node.
const FOLIOS: u64 = 32;
const ROOM: u64 = 24;

const WORKLOAD: &str = r#"
    name = "one"
    folio = "2MiB"
    time = "100s"
    compute = "20ns"
    [[objects]]
    name = "table"
    size = "64MiB"
    parallel = 2
    pattern = { kind = "uniform" }
    [[phases]]
    length = 1
    accesses = { table = 1 }
"#;

fn machine() -> Machine {
    let hardware = Hardware::parse(crate::sim::TWO_NODES).expect("a machine");
    let workload = Workload::parse(WORKLOAD).expect("a workload");
    let mut machine = Machine::of(&hardware, 1);
    let end = VirtAddr(FIRST + FOLIOS * FOLIO);
    let process = Process {
        id: TargetId(0),
        pid: PID,
        name: "one".into(),
        range: PageRange::new(VirtAddr(FIRST), end).expect("a range"),
        touch: Touch::Program(Box::new(Program::new(workload, &hardware, 1))),
        home: NodeId(0),
    };
    machine.start_on(process, &[NodeId(0), NodeId(1)]);
    machine
}

fn page(folio: u64) -> u64 {
    FIRST / PAGE_BYTES + folio * PAGES
}

/// Folios on each node, as they were placed and as nodes are used.
fn folios(machine: &mut Machine) -> [u64; 2] {
    let all = machine.processes[0].range;
    let mut placed = [0; 2];
    for (run, node) in machine.placed(PID, all) {
        placed[node.0 as usize] += (run.end - run.start) / PAGES;
    }
    let used = machine
        .usage(false)
        .into_iter()
        .map(|usage| usage.total.saturating_sub(usage.free).0 / FOLIO);
    assert!(used.eq(placed), "{placed:?}");
    placed
}

#[test]
fn hint_faults_hold_up_all_threads_alike() {
    let held = |faults: f64| {
        let mut machine = machine();
        machine.fault(faults);
        machine.wait(Nanos::from_secs(10));
        machine.program(PID).expect("a program").seconds().1
    };
    let threads = machine().program(PID).expect("a program").threads();
    assert!(held(0.0) <= 0.0);
    // Of 1 us.
    let held = held(2e6 * threads);
    assert!((held - 2.0).abs() < 1e-6, "{held}");
}

#[test]
fn first_touch_fills_the_nodes_in_their_order() {
    assert_eq!(folios(&mut machine()), [ROOM, FOLIOS - ROOM]);
}

#[test]
fn a_move_takes_time_and_slows_the_program_down() {
    let mut moving = machine();
    let mut quiet = machine();
    let before = moving.now();
    let moved = moving.move_pages(PID, page(0)..page(4), NodeId(1));
    assert_eq!(moved.done, 4 * PAGES);
    // 8 MiB at 10 GB/s take longer than four times the cost of a huge page.
    let took = moving.now().saturating_sub(before).as_secs_f64();
    assert!((took - 4.0 * FOLIO as f64 / 10e9).abs() < 1e-6, "{took}");
    assert_eq!(moving.spent().1, moving.now().saturating_sub(before));
    quiet.wait(moving.now().saturating_sub(before));
    let done = |machine: &mut Machine| {
        let program = machine.program(PID).expect("a program");
        program.served().iter().sum::<f64>()
    };
    assert!(done(&mut moving) < 0.99 * done(&mut quiet));
    assert_eq!(folios(&mut moving), [ROOM - 4, FOLIOS - ROOM + 4]);
}

#[test]
fn a_full_node_takes_what_it_has_room_for() {
    let mut machine = machine();
    let moved = machine.move_pages(PID, page(0)..page(20), NodeId(1));
    assert_eq!(moved.done, (2 * ROOM - FOLIOS) * PAGES);
    assert_eq!(moved.no_room, (20 - (2 * ROOM - FOLIOS)) * PAGES);
    assert_eq!(folios(&mut machine), [FOLIOS - ROOM, ROOM]);
}

#[test]
fn a_part_of_a_folio_moves_all_of_it() {
    let mut machine = machine();
    let moved = machine.move_pages(PID, page(1) + 3..page(1) + 5, NodeId(1));
    assert_eq!(moved.done, PAGES);
    assert_eq!(
        machine.node_of(PID, VirtAddr(FIRST + FOLIO)),
        Some(NodeId(1))
    );
    assert_eq!(machine.node_of(PID, VirtAddr(FIRST)), Some(NodeId(0)));
}

#[test]
fn arranged_memory_lies_where_it_is_told_and_nowhere_twice() {
    let mut machine = machine();
    let backwards: Vec<usize> = (0..32).rev().collect();
    machine.arrange(PID, &backwards, &[NodeId(0), NodeId(1)]);
    assert_eq!(folios(&mut machine), [ROOM, FOLIOS - ROOM]);
    assert_eq!(machine.node_of(PID, VirtAddr(FIRST)), Some(NodeId(1)));
}

#[test]
fn a_look_at_what_is_touched_sees_it_and_costs() {
    let mut machine = machine();
    let addr = VirtAddr(FIRST);
    let before = machine.touches(PID, addr);
    machine.wait(Nanos::from_secs(1));
    let look = machine.look(PID, addr, Nanos::from_secs(1), before);
    assert_eq!((look.seen, look.order), (Seen::Accessed, 9));
    assert_eq!(look.node, Some(NodeId(0)));
    assert_eq!(machine.spent().0, Nanos(1000));
    // Nothing was armed: nothing is known.
    let look = machine.look(PID, addr, Nanos::from_secs(1), None);
    assert_eq!(look.seen, Seen::Unknown);
    // Since a moment ago nothing can have happened.
    let now = machine.touches(PID, addr);
    let look = machine.look(PID, addr, Nanos::ZERO, now);
    assert_eq!(look.seen, Seen::Idle);
}

proptest! {
    #[test]
    fn no_page_is_lost_and_no_node_is_overfull(
        moves in prop::collection::vec((0..FOLIOS * PAGES, 1..4 * PAGES, 0..2_u32), 0..40),
    ) {
        let mut machine = machine();
        for (from, count, to) in moves {
            let pages = page(0) + from..page(0) + (from + count).min(FOLIOS * PAGES);
            for (run, node) in machine.placed(PID, page_range(&pages).expect("a range")) {
                if node != NodeId(to) {
                    machine.move_pages(PID, run, NodeId(to));
                }
            }
            let [fast, slow] = folios(&mut machine);
            prop_assert_eq!(fast + slow, FOLIOS);
            prop_assert!(fast <= ROOM && slow <= ROOM);
        }
    }
}

#[test]
fn cores_are_idle_for_what_neither_programs_nor_we_use() {
    let mut machine = machine();
    machine.idle = 2.0;
    let mut after = |wall: u64, ours: u64| {
        machine.cpu += Nanos::from_secs(ours);
        machine.wait(Nanos::from_secs(wall));
        machine.idle_time()
    };
    assert_eq!(after(10, 0), Nanos::from_secs(20));
    assert_eq!(after(10, 15), Nanos::from_secs(25));
    // More than is idle comes out of the program's.
    assert_eq!(after(10, 30), Nanos::from_secs(25));
    assert_eq!(after(0, 0), Nanos::from_secs(25));
}
