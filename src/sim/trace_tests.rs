use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;
use crate::sim::hardware::Hardware;
use crate::sim::program::Program;

fn of(text: &str) -> Result<Played, TraceError> {
    read(text.as_bytes())
}

fn fault(text: &str) -> String {
    of(text).expect_err(text).to_string()
}

fn program(text: &str) -> Program {
    let machine = Hardware::parse(crate::sim::TWO_NODES).expect("a machine");
    let played = of(text).expect("a trace");
    Program::new(played.workload("t".into(), String::new()), &machine, 1)
}

#[test]
fn a_trace_is_what_it_says() {
    let text = "# perf\n\nseconds,address,count,writes\r\n\
                100.5,0x7f0000001234,3,1\n100.55, 0x7f0000001fff\n\
                100.7,0x5000,4\n102.5,20480,2,2\n";
    assert!(is_trace(text.as_bytes()));
    let mut program = program(text);
    assert_eq!(program.folios(), (2, crate::units::Bytes(4096)));
    // Until 100.7, until 102.5, and as long again.
    let mut step = |seconds: f64| {
        program.advance(seconds);
        [program.touches(0), program.touches(1)].map(|touches| format!("{touches:.0}"))
    };
    assert_eq!(step(0.2), ["0", "4"]);
    assert_eq!(step(1.8), ["4", "4"]);
    assert_eq!(step(1.8), ["6", "4"]);
}

#[test]
fn what_is_written_is_known() {
    let played = of("1,0x5000,8,2\n2,0x5000,8,2\n").expect("a trace");
    let workload = played.workload("t".into(), String::new());
    assert!((workload.objects[0].writes - 0.25).abs() < 1e-9);
}

#[test]
fn faults_name_their_line_and_the_remedy() {
    for (text, says) in [
        (
            "1,0x5000\n1,7f00ab\n",
            "2: \"7f00ab\" is no address; write it as 0x",
        ),
        ("1,0x5000\nnow,0x5000\n", "2: \"now\" is no time"),
        ("1,0x5000\n-1,0x5000\n", "2: \"-1\" is no time"),
        ("1,0x5000\nnan,0x5000\n", "2: \"nan\" is no time"),
        ("1,0x5000\ninf,0x5000\n", "2: \"inf\" is no time"),
        (
            "5,0x5000\n\n3.9,0x5000\n",
            "3: is 1.1 s before the last; sort by time: sort",
        ),
        ("1,0x5000,0\n", "1: write a count of at least 1"),
        (
            "1,0x5000,2,3\n",
            "1: write a count of at least 1, and no more writes",
        ),
        ("1,0x5000,-2\n", "1: \"-2\" is no count"),
        ("1,0x5000,1,1,1\n", "1: write seconds,address,count,writes"),
        ("1\n", "1: write seconds,address"),
        (
            "1,0xffffffff81000000\n",
            "1: 0xffffffff81000000 is no address of a process",
        ),
        ("1,0\n", "1: 0 is in the page that nobody has"),
        (
            "1,0x5000\n9999999,0x5000\n",
            "2: lasts for more than 30 days",
        ),
        ("# nothing\n", "tells of no accesses"),
        ("", "tells of no accesses"),
    ] {
        assert!(fault(text).starts_with(says), "{text}: {}", fault(text));
    }
    let long = format!("1,0x5000\n{}\n", "1".repeat(300));
    assert!(fault(&long).starts_with("2: is longer than 256 bytes"));
    assert!(matches!(
        read(&b"1,0x5000\n\xff\xfe\n"[..]),
        Err(TraceError::Line { line: 2, .. })
    ));
}

#[test]
fn a_trace_is_told_from_a_program() {
    assert!(is_trace(b"0.5,0x1000"));
    assert!(is_trace(b"# c\n \n 12 ,0x1000\n"));
    assert!(is_trace(b"time,address\n"));
    for other in [
        &b"name = \"two\"\n"[..],
        b"# a, b\nname = \"two\"\n",
        b"[objects],\n",
        b"",
        b"\xff,\xfe",
        b"12.5\n",
    ] {
        assert!(!is_trace(other), "{other:?}");
    }
    for (name, text) in crate::sim::workload::PRESETS {
        assert!(!is_trace(text.as_bytes()), "{name}");
    }
}

/// A line as a trace may have it, or nearly so.
fn line() -> impl Strategy<Value = String> {
    let seconds = prop_oneof![
        (0.0_f64..100.0).prop_map(|s| s.to_string()),
        prop::sample::select(vec!["1e300", "1e15", "-0", "nan", "", "0x1"]).prop_map(str::to_owned),
    ];
    let address = prop_oneof![
        any::<u64>().prop_map(|a| format!("{a:#x}")),
        (0_u64..1 << 20).prop_map(|a| a.to_string()),
        "[0-9a-fx]{0,20}",
    ];
    let count = prop_oneof![
        any::<u64>().prop_map(|c| format!(",{c}")),
        (0_u64..9).prop_map(|c| format!(",{c},1")),
        Just(String::new()),
    ];
    prop_oneof![
        8 => (seconds, address, count).prop_map(|(s, a, c)| format!("{s},{a}{c}")),
        1 => "\\PC{0,40}",
        1 => Just("seconds,address".to_owned()),
    ]
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_with_its_place(
        lines in prop::collection::vec(line(), 0..12),
    ) {
        let text = lines.join("\n");
        match of(&text) {
            Ok(played) => {
                let workload = played.workload("t".into(), String::new());
                prop_assert!(workload.size().0 <= lines.len() as u64 * PAGE_BYTES);
                prop_assert!(workload.seconds > 0.0 && workload.seconds.is_finite());
                let machine = Hardware::parse(crate::sim::TWO_NODES).expect("a machine");
                let mut program = Program::new(workload, &machine, 1);
                program.advance(1.0);
                let (ran, held) = program.seconds();
                prop_assert!(ran.is_finite() && held.is_finite());
            }
            Err(TraceError::Line { line, message }) => {
                prop_assert!((1..=lines.len() as u64).contains(&line) && !message.is_empty());
                prop_assert_eq!(message.lines().count(), 1, "{}", message);
            }
            Err(error) => prop_assert!(matches!(error, TraceError::Play(PlayError::Empty)), "{}", error),
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        is_trace(&bytes);
        if let Err(TraceError::Line { line, .. }) = read(&bytes[..]) {
            prop_assert!(line >= 1);
        }
    }

    /// Ascending lines that are right are all counted, whatever their times are.
    #[test]
    fn nothing_is_lost(
        times in prop::collection::vec(0.0_f64..0.3, 1..200),
        pages in prop::collection::vec(1_u64..50, 200),
    ) {
        let (mut now, mut text) = (7.0, String::new());
        for (time, page) in times.iter().zip(&pages) {
            now += time;
            let _ = writeln!(text, "{now:.6},{:#x},2", page * PAGE_BYTES);
        }
        let mut program = program(&text);
        while !program.is_done() {
            program.advance(1.0);
        }
        let all: f64 = (0..program.folios().0).map(|folio| program.touches(folio)).sum();
        prop_assert!((all / (2.0 * times.len() as f64) - 1.0).abs() < 1e-3, "{}", all);
    }
}
