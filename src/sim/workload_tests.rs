use proptest::prelude::*;

use super::*;

const FILE: &str = r#"
    name = "two"
    folio = "2MiB"
    time = "100s"
    compute = "10ns"
    cycles = 2
    [[objects]]
    name = "table"
    size = "1GiB"
    writes = 0.5
    parallel = 4
    cached = true
    pattern = { kind = "hot", share = 0.1, accesses = 0.9, chunks = 8, moves = true }
    [[objects]]
    name = "log"
    size = "256MiB"
    parallel = 16
    pattern = { kind = "sweep", window = 0.1 }
    [[phases]]
    length = 3
    accesses = { table = 1 }
    [[phases]]
    length = 1
    accesses = { table = 1, log = 1 }
"#;

#[test]
fn a_file_is_what_it_says() {
    let workload = Workload::parse(FILE).expect("a workload");
    assert_eq!(workload.size(), Bytes::from_mib(1280));
    assert_eq!(workload.phases[0].accesses, [1.0, 0.0]);
    assert_eq!(workload.phases[1].accesses, [0.5, 0.5]);
    let steps = workload.steps();
    // Two cycles of one step, and of twenty.
    assert_eq!(steps.len(), 42);
    assert!((steps.iter().map(|s| s.share).sum::<f64>() - 1.0).abs() < 1e-9);
    assert!((steps[0].share - 0.375).abs() < 1e-9);
    assert_eq!((steps[21].phase, steps[21].turn), (0, 2));
    let finer = FILE.replace("window = 0.1", "window = 0.1, step = 0.1");
    assert_eq!(Workload::parse(&finer).unwrap().steps().len(), 202);
    let twice = workload.scaled(2.0);
    assert_eq!(twice.size(), Bytes::from_mib(2560));
}

#[test]
fn faults_name_their_place() {
    for (part, other, says) in [
        (
            "chunks = 8",
            "chunks = 0",
            "object \"table\", pattern.chunks",
        ),
        ("\"1GiB\"", "\"1MiB\"", "object \"table\", size"),
        ("log = 1", "logs = 1", "phase 2: accesses names \"logs\""),
        ("length = 1", "length = -1", "phase 2: length"),
        ("cycles = 2", "cycle = 2", "cycle"),
        (
            "name = \"log\"",
            "name = \"table\"",
            "object \"table\": choose a name",
        ),
        ("length = 3", "length = 1e-9", "phase 1: is too short"),
        ("share = 0.1", "share = nan", "object \"table\", pattern"),
        (
            "window = 0.1",
            "window = 0.001",
            "object \"log\", pattern.window",
        ),
        ("window = 0.1", "window = 0.1, theta = 1", "theta"),
    ] {
        let fault = Workload::parse(&FILE.replace(part, other)).unwrap_err();
        assert!(fault.to_string().contains(says), "{fault}");
    }
    for step in ["0", "0.009", "1.5", "nan"] {
        let other = format!("window = 0.1, step = {step}");
        let fault = Workload::parse(&FILE.replace("window = 0.1", &other)).unwrap_err();
        let says = "object \"log\", pattern.step";
        assert!(fault.to_string().contains(says), "{fault}");
    }
}

#[test]
fn those_that_come_along_are_read() {
    for (name, text) in PRESETS {
        let workload = Workload::parse(text).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(workload.name, name);
        assert!(!workload.about.is_empty(), "{name}");
    }
}

proptest! {
    #[test]
    fn any_text_is_read_without_a_panic(at in 0..FILE.len(), text in "\\PC{0,12}") {
        let mut file = FILE.to_owned();
        if file.is_char_boundary(at) {
            file.insert_str(at, &text);
        }
        let _ = Workload::parse(&file);
    }
}
