//! Files of machines and workloads that nobody meant: whatever is in them, there is no
//! panic, an error that says where, and what is accepted is bounded.

use proptest::prelude::*;

use super::file::FileError;
use super::hardware::{self, Hardware};
use super::program::Program;
use super::sweep;
use super::workload::{self, Workload};

/// Small enough to be run.
const PROGRAM: &str = r#"
name = "small"
folio = "2MiB"
time = "5s"
compute = "10ns"
cycles = 3
[[objects]]
name = "cold"
size = "300MiB"
parallel = 4
cached = true
pattern = { kind = "zipf", theta = 0.9, item = "4KiB", scattered = true }
[[objects]]
name = "hot"
size = "100MiB"
writes = 0.3
parallel = 2
pattern = { kind = "hot", share = 0.1, accesses = 0.9, chunks = 4, moves = true }
[[objects]]
name = "swept"
size = "100MiB"
parallel = 2
pattern = { kind = "sweep", window = 0.2, step = 0.25 }
[[phases]]
length = 1
accesses = { cold = 0.1, hot = 1 }
[[phases]]
length = 2
accesses = { swept = 1 }
"#;

/// Values for where they do not belong.
const VALUES: [&str; 28] = [
    "0",
    "-1",
    "1",
    "1e308",
    "-1e308",
    "5e-324",
    "nan",
    "inf",
    "-inf",
    "true",
    "\"\"",
    "[]",
    "{}",
    "9223372036854775807",
    "-9223372036854775808",
    "4294967295",
    "\"0B\"",
    "\"1B\"",
    "\"4095B\"",
    "\"16777215TiB\"",
    "\"18446744073709551615B\"",
    "\"0ns\"",
    "\"1ns\"",
    "\"5000000h\"",
    "\"0B/s\"",
    "\"1B/s\"",
    "\"18446744073709551615B/s\"",
    "[0, 0, 0]",
];

/// One change to a text.
#[derive(Clone, Debug)]
enum Change {
    /// The value of a key, as a whole.
    Value(prop::sample::Index, usize),
    /// A number among others, such as in a list.
    Number(prop::sample::Index, usize),
    /// A line again somewhere else.
    Twice(prop::sample::Index, prop::sample::Index),
    Without(prop::sample::Index),
    Char(prop::sample::Index, char),
}

fn change() -> impl Strategy<Value = Change> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        4 => (index(), 0..VALUES.len()).prop_map(|(at, v)| Change::Value(at, v)),
        4 => (index(), 0..VALUES.len()).prop_map(|(at, v)| Change::Number(at, v)),
        1 => (index(), index()).prop_map(|(from, to)| Change::Twice(from, to)),
        1 => index().prop_map(Change::Without),
        1 => (index(), any::<char>()).prop_map(|(at, c)| Change::Char(at, c)),
    ]
}

fn changed(text: &str, changes: &[Change]) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for change in changes {
        if lines.is_empty() {
            break;
        }
        match change {
            Change::Value(at, value) => {
                let keys: Vec<usize> = (0..lines.len())
                    .filter(|i| lines[*i].contains(" = "))
                    .collect();
                if !keys.is_empty() {
                    let line = &mut lines[keys[at.index(keys.len())]];
                    let key = line.split(" = ").next().unwrap_or_default().to_owned();
                    *line = format!("{key} = {}", VALUES[*value]);
                }
            }
            Change::Number(at, value) => {
                let with: Vec<usize> = (0..lines.len())
                    .filter(|i| lines[*i].contains(|c: char| c.is_ascii_digit()))
                    .collect();
                if !with.is_empty() {
                    let line = &mut lines[with[at.index(with.len())]];
                    let first = line.rfind(|c: char| c.is_ascii_digit()).unwrap_or(0);
                    let number = VALUES[*value].trim_matches(|c| "\"BTiBhns/s".contains(c));
                    line.replace_range(first..=first, number);
                }
            }
            Change::Twice(from, to) => {
                let line = lines[from.index(lines.len())].clone();
                lines.insert(to.index(lines.len()), line);
            }
            Change::Without(at) => drop(lines.remove(at.index(lines.len()))),
            Change::Char(at, c) => {
                let count = lines.len();
                lines[at.index(count)].push(*c);
            }
        }
    }
    lines.join("\n")
}

/// The error says where in `text`.
fn assert_located(text: &str, error: &FileError) -> Result<(), TestCaseError> {
    match error {
        FileError::Malformed {
            line,
            column,
            message,
        } => {
            prop_assert!((1..=text.lines().count() + 1).contains(line), "{}", error);
            prop_assert!(*column >= 1 && !message.is_empty(), "{}", error);
        }
        FileError::Contradiction { key, message } => {
            prop_assert!(!key.is_empty() && !message.is_empty(), "{}", error);
        }
    }
    prop_assert_eq!(error.to_string().lines().count(), 1, "{}", error);
    Ok(())
}

fn check_hardware(text: &str) -> Result<Option<Hardware>, TestCaseError> {
    match Hardware::parse(text) {
        Ok(hardware) => {
            prop_assert!((1..=16).contains(&hardware.nodes.len()));
            prop_assert_eq!(hardware.links().len(), hardware.nodes.len());
            if let Err(error) = hardware.tiers() {
                assert_located(text, &error)?;
                return Ok(None);
            }
            // Whatever it is, it has corners that can be run.
            for corner in sweep::corners(&hardware) {
                prop_assert!(corner.hardware.tiers().is_ok(), "{}", corner.name);
                let mut links = corner.hardware.nodes.iter().flat_map(|node| &node.links);
                let is_good = |link: &hardware::Link| {
                    link.latency.0 > 0 && link.read.0 > 0 && link.write.0 > 0
                };
                prop_assert!(links.all(is_good), "{}", corner.name);
                prop_assert!(corner.hardware.costs.huge_move.0 > 0, "{}", corner.name);
            }
            Ok(Some(hardware))
        }
        Err(error) => {
            assert_located(text, &error)?;
            Ok(None)
        }
    }
}

fn check_workload(text: &str) -> Result<Option<Workload>, TestCaseError> {
    match Workload::parse(text) {
        Ok(workload) => {
            let folios = workload.size().0 / workload.folio.0;
            prop_assert!(folios <= 1 << 24, "{} folios", folios);
            let steps = workload.steps();
            prop_assert!((1..=1 << 20).contains(&steps.len()), "{}", steps.len());
            let shares: f64 = steps.iter().map(|step| step.share).sum();
            prop_assert!((shares - 1.0).abs() < 1e-6, "{}", shares);
            Ok(Some(workload))
        }
        Err(error) => {
            assert_located(text, &error)?;
            Ok(None)
        }
    }
}

fn preset(presets: &'static [(&str, &str)]) -> impl Strategy<Value = &'static str> {
    (0..presets.len()).prop_map(move |i| presets[i].1)
}

proptest! {
    #[test]
    fn any_text_is_refused_with_its_place(text in "\\PC{0,200}") {
        check_hardware(&text)?;
        check_workload(&text)?;
    }

    #[test]
    fn any_toml_of_known_keys_is_refused_with_its_place(
        lines in prop::collection::vec(
            (
                prop::sample::select(vec![
                    "name", "folio", "time", "compute", "cycles", "objects", "phases", "size",
                    "initiators", "home", "cores", "threads", "cache", "costs", "nodes", "id",
                    "[[objects]]", "[[phases]]", "[[nodes]]", "[costs]", "length", "accesses",
                ]),
                0..VALUES.len(),
            ),
            0..20,
        ),
    ) {
        let line = |(key, value): &(&str, usize)| {
            if key.starts_with('[') { (*key).to_owned() } else { format!("{key} = {}", VALUES[*value]) }
        };
        let text = lines.iter().map(line).collect::<Vec<_>>().join("\n");
        check_hardware(&text)?;
        check_workload(&text)?;
    }

    #[test]
    fn a_changed_machine_is_accepted_within_bounds_or_refused_with_its_place(
        text in preset(&hardware::PRESETS),
        changes in prop::collection::vec(change(), 1..4),
    ) {
        check_hardware(&changed(text, &changes))?;
    }

    #[test]
    fn a_changed_workload_is_accepted_within_bounds_or_refused_with_its_place(
        text in preset(&workload::PRESETS),
        changes in prop::collection::vec(change(), 1..4),
    ) {
        check_workload(&changed(text, &changes))?;
    }

    /// What is accepted can be run: time goes on, and is a number.
    #[test]
    fn what_is_accepted_runs(
        machine in preset(&hardware::PRESETS),
        on_machine in prop::collection::vec(change(), 0..3),
        on_program in prop::collection::vec(change(), 0..3),
    ) {
        let Some(hardware) = check_hardware(&changed(machine, &on_machine))? else {
            return Ok(());
        };
        let Some(workload) = check_workload(&changed(PROGRAM, &on_program))? else {
            return Ok(());
        };
        // Others are only slow.
        let folios = workload.size().0 / workload.folio.0;
        if folios * workload.steps().len() as u64 > 1 << 20 {
            return Ok(());
        }
        let mut program = Program::new(workload, &hardware, 1);
        for _ in 0..3 {
            let rate = program.rate();
            prop_assert!(rate > 0.0 && rate.is_finite(), "{} accesses per second", rate);
            let took = program.advance(1.0);
            prop_assert!((0.0..=1.0 + 1e-9).contains(&took), "{} s", took);
        }
        let (ran, held) = program.seconds();
        prop_assert!(ran.is_finite() && held.is_finite());
    }
}

#[test]
fn what_these_tests_change_is_good() {
    Workload::parse(PROGRAM).unwrap();
    for (name, text) in hardware::PRESETS {
        assert!(Hardware::parse(text).is_ok(), "{name}");
    }
    for (name, text) in workload::PRESETS {
        assert!(Workload::parse(text).is_ok(), "{name}");
    }
}
