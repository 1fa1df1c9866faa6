//! `replay` and `report` of the real loop's recordings, by the binary itself.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use hmkeeper::epoch::{EpochLoop, LoopSettings};
use hmkeeper::ports::{Recorder, TargetSpec, Threads};
use hmkeeper::record::file::Writer;
use hmkeeper::sim::{self, Machine, Process, Touch};
use hmkeeper::tiering::observation::{
    AccessSet, EpochCost, Mapped, NodeUsage, Observation, Share, TargetId, TargetKind, TargetMap,
};
use hmkeeper::tiering::pageout::Paging;
use hmkeeper::tiering::plan::MoveOutcome;
use hmkeeper::tiering::settings::{EngineSettings, PolicyName, ProfilingSettings};
use hmkeeper::tiering::tier::{MemoryKind, Node, TierTable};
use hmkeeper::units::{Bytes, Nanos, NodeId, PAGE_BYTES, PageRange, Pid, VirtAddr};

const PID: Pid = Pid(7);
const BASE: u64 = 0x7f00_0000_0000;
const PAGES: u64 = 65_536;
/// A name that would end an element, an attribute and a cell.
const NAME: &str = "<b>&\"it's\", 2";
const EPOCHS: u64 = 8;

fn hmkeeper(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hmkeeper"))
        .args(args)
        .env_remove("HMKEEPER_LOG")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A recording of the loop on a model: of 256 MiB the second quarter is hot.
fn recording(dir: &Path) -> PathBuf {
    let nodes = [
        (NodeId(0), Bytes::from_mib(128)),
        (NodeId(1), Bytes::from_mib(512)),
        (NodeId(2), Bytes::from_mib(512)),
        (NodeId(3), Bytes::from_mib(512)),
    ];
    let mut machine = Machine::new(&nodes, 1);
    let range = PageRange::new(VirtAddr(BASE), VirtAddr(BASE + PAGES * PAGE_BYTES)).unwrap();
    let is_hot = |page: u64| (PAGES / 4..PAGES / 2).contains(&page);
    machine.start(
        Process {
            id: TargetId(0),
            pid: PID,
            name: NAME.into(),
            range,
            touch: Touch::Rate(Box::new(move |addr: VirtAddr, _| {
                let page = (addr.0 - BASE) / PAGE_BYTES;
                if is_hot(page) { 50.0 } else { 0.01 }
            })),
            home: NodeId(0),
        },
        NodeId(3),
    );
    let tiers = machine
        .tiers([&[90, 145, 275, 340], &[145, 90, 340, 275]])
        .unwrap();
    let machine = machine.shared();
    let mut engine = EngineSettings {
        profiling: ProfilingSettings {
            interval: Nanos::from_secs(2),
            ..ProfilingSettings::default()
        },
        headroom: 0.0,
        ..EngineSettings::default()
    };
    engine.policy.name = PolicyName::HmKeeper;
    let settings = LoopSettings {
        engine,
        moving: true,
        rate: None,
        threads: Threads::Exactly(1),
        call_time: Nanos::from_millis(20),
        migration_share: 0.5,
    };
    let mut epochs = EpochLoop::new(sim::ports(&machine), tiers, settings, 1);
    epochs.select(&[TargetSpec::of_pid(PID)]);
    let path = dir.join("a.rec");
    epochs.record(Box::new(Writer::append(&path, 1).unwrap()));
    for _ in 0..EPOCHS {
        epochs.turn().unwrap().report.expect("no interruption");
    }
    path
}

/// Writes a report; what is in it.
fn report(recording: &Path, name: &str) -> (Vec<u8>, Output) {
    let out = recording.with_file_name(name);
    let output = hmkeeper(&["report", &text(recording), "--out", &text(&out)]);
    assert!(output.status.success(), "{output:?}");
    (std::fs::read(&out).unwrap(), output)
}

#[test]
fn a_replay_says_that_it_agrees_and_what_others_would_do() {
    let dir = tempfile::tempdir().unwrap();
    let file = text(&recording(dir.path()));
    let json = |args: &[&str]| -> serde_json::Value {
        let output = hmkeeper(&[&["replay", &file, "--json"], args].concat());
        assert!(output.status.success(), "{output:?}");
        assert_eq!(stderr(&output), "");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let alone = json(&[]);
    let line = &alone[0];
    assert_eq!(line["policy"], "hm-keeper");
    assert_eq!(line["as_recorded"], true);
    assert_eq!(line["epochs"], EPOCHS);
    assert_eq!(line["compared_epochs"], EPOCHS - 1);
    assert_eq!(line["same_moves_epochs"], EPOCHS - 1);
    assert_eq!(line["same_plan_epochs"], EPOCHS - 1);
    assert_eq!(line["agreement"], 1.0);
    let promoted = line["promoted_bytes"].as_u64().unwrap();
    assert!(promoted >= 60 << 20, "a quarter of 256 MiB: {promoted}");
    let ways = line["ways"].as_array().unwrap();
    let up = ways.iter().filter(|way| way["direction"] == "promotion");
    let sum: u64 = up.map(|way| way["bytes"].as_u64().unwrap()).sum();
    assert_eq!(sum, promoted);
    assert!(ways.iter().any(|way| way["to_tier"] == "dram0"), "{ways:?}");

    let all = json(&["--policy", "all"]);
    let all = all.as_array().unwrap();
    let names: Vec<&str> = all.iter().map(|l| l["policy"].as_str().unwrap()).collect();
    assert_eq!(names, PolicyName::CHOICES.map(|(name, _)| name));
    let mut other = 0;
    for line in all {
        assert_eq!(line["as_recorded"], line["policy"] == "hm-keeper");
        other += u32::from(line["same_moves_epochs"] != line["compared_epochs"]);
    }
    assert!(other >= 5, "{other} policies decide otherwise: {all:?}");
    assert_eq!(all[1], alone[0], "by its name it is the same");

    let output = hmkeeper(&["replay", &file, "--policy", "hm-keeper,heat"]);
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.starts_with("POLICY "), "{table}");
    let row = |name: &str| table.lines().find(|l| l.starts_with(name)).unwrap();
    assert!(row("hm-keeper*").contains("7/7  100.0%"), "{table}");
    assert!(!row("heat ").contains("7/7"), "{table}");
    assert!(table.contains("* the recorded policy"), "{table}");
}

#[test]
fn unknown_policies_and_files_that_are_none_are_faults() {
    let dir = tempfile::tempdir().unwrap();
    let file = text(&recording(dir.path()));
    let output = hmkeeper(&["replay", &file, "--policy", "heat,magic"]);
    assert_eq!(output.status.code(), Some(2));
    let told = stderr(&output);
    assert!(
        told.contains("\"magic\"") && told.contains("memory-tiering"),
        "{told}"
    );
    assert_eq!(told.lines().count(), 1, "{told}");

    let output = hmkeeper(&["replay", "/nonexistent/a.rec"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/nonexistent/a.rec"), "{output:?}");
    let notes = dir.path().join("notes.txt");
    std::fs::write(&notes, "nothing of the kind, and longer than a head").unwrap();
    let output = hmkeeper(&["replay", &text(&notes), "--policy", "all"]);
    assert_eq!(output.status.code(), Some(1));
    let told = stderr(&output);
    assert!(told.contains("is not a recording"), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
}

/// Width, height and colour of each pixel.
fn decoded(bytes: &[u8]) -> (usize, Vec<[u8; 3]>) {
    let mut decoder = png::Decoder::new(std::io::Cursor::new(bytes));
    decoder.set_transformations(png::Transformations::EXPAND);
    let mut reader = decoder.read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!(info.color_type, png::ColorType::Rgb);
    let colours = pixels.chunks(3).map(|p| [p[0], p[1], p[2]]).collect();
    (info.width as usize, colours)
}

#[test]
fn a_png_is_light_where_the_memory_was_hot() {
    let dir = tempfile::tempdir().unwrap();
    let (bytes, output) = report(&recording(dir.path()), "a.png");
    assert_eq!(output.stdout, b"8 epochs, 1 targets\n");
    let (width, pixels) = decoded(&bytes);
    // The heat map is what the frame encloses: 960 columns, 384 rows for so many pages.
    let ink = [0x22; 3];
    let is_frame = |y: usize| {
        let row = &pixels[y * width..(y + 1) * width];
        row.iter().filter(|p| **p == ink).count() >= 960
    };
    let lines: Vec<usize> = (0..pixels.len() / width).filter(|y| is_frame(*y)).collect();
    let (top, bottom) = (lines[0], *lines.last().unwrap());
    assert_eq!(bottom - top, 385, "{lines:?}");
    let left = (0..width).find(|x| pixels[(top + 9) * width + x] == ink);
    let left = left.unwrap() + 1;
    let light = |percent: usize, column: usize| {
        let y = bottom - 1 - 384 * percent / 100;
        let [r, g, b] = pixels[y * width + left + column];
        u32::from(r) + u32::from(g) + u32::from(b)
    };
    // Towards the end; addresses grow upwards.
    for at in [5, 20, 60, 95] {
        assert!(light(at, 900) < 150, "cold at {at}: {}", light(at, 900));
    }
    for at in [30, 40, 45] {
        assert!(light(at, 900) > 500, "hot at {at}: {}", light(at, 900));
    }
}

/// Panics where elements do not end in the order in which they began.
fn assert_balanced(text: &str) {
    let mut open: Vec<&str> = Vec::new();
    for part in text.split('<').skip(1) {
        let (tag, _) = part.split_once('>').expect("a tag that ends");
        if tag.starts_with(['?', '!']) || tag.starts_with("meta ") || tag.ends_with('/') {
            continue;
        }
        match tag.strip_prefix('/') {
            Some(end) => assert_eq!(open.pop(), Some(end), "{part}"),
            None => open.push(tag.split_whitespace().next().unwrap()),
        }
    }
    assert_eq!(open, Vec::<&str>::new());
}

#[test]
fn svg_and_html_are_whole_stand_alone_and_quote_names() {
    let dir = tempfile::tempdir().unwrap();
    let recording = recording(dir.path());
    for name in ["a.svg", "a.html"] {
        let (bytes, _) = report(&recording, name);
        let text = String::from_utf8(bytes).unwrap();
        assert_balanced(&text);
        assert!(
            text.contains("&lt;b&gt;&amp;&quot;it&#39;s&quot;, 2 (pid 7)"),
            "{name}"
        );
        assert!(text.contains("0x7f0000000000") && text.contains("0x7f0010000000"));
        assert!(text.contains("time (s)") && text.contains("of scans"));
        // Nothing from elsewhere: the one address is the name of the format.
        let elsewhere = text.replace("http://www.w3.org/2000/svg", "");
        for word in [
            "http:", "https:", "src=\"", "url(", "<script", "@import", "<link",
        ] {
            assert!(!elsewhere.contains(word), "{name}: {word}");
        }
        let images = text.matches("href=\"").count();
        assert_eq!(
            images,
            text.matches("href=\"data:image/png;base64,iVBOR").count()
        );
        assert_eq!(images, 1);
        assert!(text.len() < 2 << 20, "{name}: {} bytes", text.len());
    }
    let html = std::fs::read_to_string(dir.path().join("a.html")).unwrap();
    assert!(
        html.contains("<title>0x7f0000000000 to 0x7f"),
        "values to point at"
    );
    assert!(html.contains("Working set") && html.contains("Residency"));
    for key in ["dram0", "working set", "may be moved", "200.0 MiB"] {
        assert!(html.contains(&format!(">{key}<")), "{key}");
    }
    assert!(html.contains("<td>8</td>"), "epochs");
}

#[test]
fn what_was_cut_off_is_said_and_the_rest_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let path = recording(dir.path());
    let whole = std::fs::metadata(&path).unwrap().len();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(whole - 5).unwrap();
    let (svg, output) = report(&path, "a.svg");
    let told = stderr(&output);
    assert!(told.contains("half a record, and left out"), "{told}");
    assert!(String::from_utf8(svg).unwrap().contains("half a record"));
    assert_eq!(output.stdout, b"7 epochs, 1 targets\n");
    let output = hmkeeper(&["replay", &text(&path)]);
    assert!(output.status.success());
    assert!(stderr(&output).contains("half a record"), "{output:?}");

    // One that was damaged is refused, and leaves no picture behind.
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let out = dir.path().join("b.png");
    let output = hmkeeper(&["report", &text(&path), "--out", &text(&out)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("the file was damaged"),
        "{output:?}"
    );
    assert!(!out.exists() && !dir.path().join("b.png.part").exists());
}

/// Weeks of terabytes are as large a picture as minutes of megabytes.
#[test]
fn a_picture_does_not_grow_with_its_recording() {
    const LONG: u64 = 100;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("long.rec");
    let node = Node {
        id: NodeId(0),
        kind: MemoryKind::Dram,
        size: Bytes(2 << 40),
        cpus: vec![0],
        kernel_tier: None,
    };
    let tiers = TierTable::default_tiers(std::slice::from_ref(&node));
    let tiers = TierTable::new(tiers, vec![node], vec![]).unwrap();
    let mut writer = Writer::append(&path, 1).unwrap();
    writer.configured(&EngineSettings::default(), &tiers);
    let target = |id: u32, at: u64| TargetMap {
        id: TargetId(id),
        pid: Pid(100 + i32::try_from(id).unwrap()),
        name: format!("t{id}").into(),
        sharers: 0,
        kind: TargetKind::Generic,
        // Mappings with gaps between, a new one in each epoch.
        eligible: (0..40 + at % 7)
            .map(|i| {
                let start = VirtAddr((i << 40) + (at << 21));
                PageRange::new(start, VirtAddr(start.0 + (32 << 30))).unwrap()
            })
            .collect(),
        cpu_time: Nanos::from_secs(at * 300),
        memory_time: Nanos::from_secs(at * 300),
        cpu_share: vec![],
        allowed_nodes: None,
        excluded: vec![],
        mapped: Mapped::default(),
        share: Share::default(),
    };
    for at in 1..=LONG {
        writer.observed(&Observation {
            // An epoch of two hours: more than a week.
            at: Nanos::from_secs(at * 7200),
            targets: (0..11).map(|id| target(id, at)).collect(),
            accesses: AccessSet::default(),
            residency: vec![],
            forgotten: vec![],
            nodes: vec![NodeUsage {
                node: NodeId(0),
                total: Bytes(2 << 40),
                free: Bytes(1 << 40),
                reserve: Bytes::ZERO,
                latency: None,
                cache: None,
            }],
            cost: EpochCost::default(),
            idle: Nanos::ZERO,
            capacity: 1 << 20,
            shortest: Nanos::from_millis(20),
            outcome: MoveOutcome::default(),
            paging: Paging::default(),
        });
    }
    drop(writer);
    for (name, most) in [("l.svg", 4 << 20), ("l.png", 1 << 20), ("l.html", 12 << 20)] {
        let (bytes, output) = report(&path, name);
        assert_eq!(output.stdout, b"100 epochs, 8 targets\n");
        assert!(stderr(&output).contains("3 targets with less memory are not shown"));
        assert!(bytes.len() < most, "{name}: {} bytes", bytes.len());
        if name == "l.png" {
            // Nobody looked: not cold, but unknown.
            let (_, pixels) = decoded(&bytes);
            let grey = pixels.iter().filter(|p| **p == [0xe6; 3]).count();
            assert!(grey * 2 > pixels.len(), "{grey} of {}", pixels.len());
        }
    }
}
