use proptest::prelude::*;

use super::*;

/// An object of 64 MiB that is touched evenly, and one that a window goes over.
const WORKLOAD: &str = r#"
    name = "two"
    folio = "2MiB"
    time = "100s"
    compute = "20ns"
    cycles = 2
    [[objects]]
    name = "table"
    size = "64MiB"
    writes = 0.25
    parallel = 2
    pattern = { kind = "uniform" }
    [[objects]]
    name = "log"
    size = "64MiB"
    parallel = 8
    pattern = { kind = "sweep", window = 0.25 }
    [[phases]]
    length = 1
    accesses = { table = 3, log = 1 }
"#;

fn hardware() -> Hardware {
    Hardware::parse(crate::sim::TWO_NODES).expect("a machine")
}

fn program(text: &str) -> Program {
    Program::new(Workload::parse(text).expect("a workload"), &hardware(), 1)
}

fn finish(program: &mut Program) -> f64 {
    let mut seconds = 0.0;
    while !program.is_done() {
        seconds += program.advance(1.0);
    }
    seconds
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-3 * b.abs()
}

#[test]
fn at_best_it_takes_the_time_that_its_file_says() {
    let mut program = program(WORKLOAD);
    let seconds = finish(&mut program);
    assert!(close(seconds, 100.0), "{seconds}");
    assert!(close(program.served()[0], program.accesses()));
}

#[test]
fn on_slow_memory_it_takes_longer_and_that_serves_it() {
    let mut slow = program(WORKLOAD);
    for folio in 0..slow.folios().0 {
        slow.place(folio, 1);
    }
    let seconds = finish(&mut slow);
    assert!(seconds > 150.0, "{seconds}");
    assert!(slow.served()[0] <= 0.0);
}

#[test]
fn what_others_take_of_a_node_is_missing() {
    let mut program = program(WORKLOAD);
    let alone = program.rate();
    program.share_nodes(&[0.5, 0.0]);
    let beside = program.rate();
    assert!(beside < alone, "{beside} {alone}");
    program.share_nodes(&[0.0, 0.5]);
    assert!(close(program.rate(), alone));
}

#[test]
fn who_is_held_up_gets_on_later() {
    let mut program = program(WORKLOAD);
    program.hold(10.0);
    let seconds = finish(&mut program);
    assert!(close(seconds, 110.0), "{seconds}");
    let (ran, held) = program.seconds();
    assert!(close(ran, 100.0) && close(held, 10.0), "{ran} {held}");
}

#[test]
fn what_is_to_come_is_what_comes() {
    let mut now = program(WORKLOAD);
    now.advance(30.0);
    let (coming, served) = (now.upcoming(f64::INFINITY), now.served().to_vec());
    finish(&mut now);
    let sum: f64 = coming.iter().map(|c| f64::from(*c)).sum();
    assert!(close(sum, now.served()[0] - served[0]), "{sum}");
    // The window comes by everywhere in what is left: more than a cycle.
    let quarter = now.folios().0 / 4;
    assert!(coming.iter().all(|c| *c > 0.0), "{coming:?}");
    assert!(close(f64::from(coming[0]), f64::from(coming[quarter])));
}

#[test]
fn touches_are_counted_across_steps() {
    let mut program = program(WORKLOAD);
    finish(&mut program);
    let touches: f64 = (0..program.folios().0).map(|at| program.touches(at)).sum();
    assert!(close(touches, program.accesses()), "{touches}");
}

#[test]
fn what_fits_the_last_level_cache_reaches_no_memory() {
    let small = WORKLOAD
        .replace("folio = \"2MiB\"", "folio = \"64KiB\"")
        .replace(
            "size = \"64MiB\"\n    writes",
            "size = \"512KiB\"\n    cached = true\n    writes",
        );
    let mut program = program(&small);
    finish(&mut program);
    // Only the log's quarter.
    let share = program.served()[0] / program.accesses();
    assert!(close(share, 0.25), "{share}");
}

#[test]
fn memory_behind_a_cache_serves_what_that_does_not_hold() {
    let even = WORKLOAD.replace("table = 3, log = 1", "table = 1");
    let served = |size: u64| {
        let mut program = program(&even);
        for folio in 0..program.folios().0 {
            program.place(folio, 1);
        }
        program.put_behind(0, Bytes::from_mib(size));
        let seconds = finish(&mut program);
        (program.served()[0] / program.accesses(), seconds)
    };
    let (all, best) = served(128);
    assert!(close(all, 1.0), "{all}");
    // Each place is shared by two folios of the table that are touched alike.
    let (half, slower) = served(32);
    assert!(
        close(half, 0.5) && slower > 1.2 * best,
        "{half} {slower} {best}"
    );
}

#[test]
fn what_is_said_to_be_read_once_is_read_about_once() {
    let preset = |presets: &[(&str, &'static str)], name: &str| {
        presets
            .iter()
            .find(|preset| preset.0 == name)
            .expect("a preset")
            .1
    };
    let machine = preset(&crate::sim::hardware::PRESETS, "optane-4tier");
    let hardware = Hardware::parse(machine).expect("a machine");
    for (name, object) in [
        ("bfs", "edges"),
        ("graph", "edges"),
        ("stream", "a"),
        ("terasort", "input"),
    ] {
        let workload = Workload::parse(preset(&crate::sim::workload::PRESETS, name));
        let workload = workload.expect("a workload");
        let at = workload
            .objects
            .iter()
            .position(|o| o.name == object)
            .expect("an object");
        let lines = workload.objects[at].size.as_f64() / LINE;
        let share: f64 = workload
            .phases
            .iter()
            .map(|p| p.length * p.accesses[at])
            .sum();
        let cycles = f64::from(workload.cycles);
        let program = Program::new(workload, &hardware, 1);
        let per_line = program.accesses() * share / cycles / lines;
        assert!((0.5..3.0).contains(&per_line), "{name}: {per_line}");
    }
}

#[test]
fn who_touches_a_folio_on_its_way_waits_until_it_is_there() {
    let program = program(WORKLOAD);
    // The table's share by its folios; four threads.
    let share = program.touched(0);
    let waits = |rate: f64| program.waits_for(0, rate / share * 4.0, 1.0);
    // Seldom: for half of the time, on average; all the time: for all of it.
    assert!((waits(0.01) - 0.005).abs() < 1e-4);
    assert!((waits(1e-9) / 5e-10 - 1.0).abs() < 1e-3);
    assert!(waits(1e3) > 0.99 && waits(1e3) <= 1.0);
}

proptest! {
    /// Sums that are kept up are those that are added up anew.
    #[test]
    fn however_it_came_there_memory_is_as_fast(
        moves in prop::collection::vec((0..64_usize, 0..2_u8), 0..200),
    ) {
        let mut kept = program(WORKLOAD);
        for (folio, to) in moves {
            kept.place(folio, to);
        }
        let mut anew = kept.clone();
        anew.add_up();
        prop_assert!(close(kept.rate(), anew.rate()));
    }
}
