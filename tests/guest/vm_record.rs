//! A daemon that records, is killed, and records on: the table of it shows the
//! hot memory where the workload says that it is.
//!
// vm: topology=4tier timeout=240

use std::path::Path;

use crate::common::{Site, Workload, body, hmkeeper, in_guest, output_of, show};

/// Hotness of a row from which on its memory is held to be hot.
const HOT: f64 = 0.5;

struct Row {
    at: u64,
    start: u64,
    end: u64,
    heat: f64,
}

fn rows(recording: &Path, table: &Path) -> Vec<Row> {
    let text = |path: &Path| path.to_str().expect("a path").to_owned();
    let args = ["report", &text(recording), "--out", &text(table)];
    let output = output_of(&args);
    assert!(output.status.success(), "{}", show(&output));
    let table = std::fs::read_to_string(table).expect("the table");
    let mut lines = table.lines();
    assert_eq!(lines.next(), Some(hmkeeper::record::csv::HEADER));
    lines
        .map(|line| {
            let cells: Vec<&str> = line.split(',').collect();
            let address = |cell: &str| {
                let digits = cell.strip_prefix("0x").expect("hexadecimal");
                u64::from_str_radix(digits, 16).expect("an address")
            };
            let number = |cell: &str| cell.parse::<f64>().expect("a number");
            Row {
                at: cells[0].parse().expect("a time"),
                start: address(cells[2]),
                end: address(cells[3]),
                heat: number(cells[4]) / number(cells[5]),
            }
        })
        .collect()
}

#[test]
fn a_recording_survives_its_daemon_and_shows_what_was_hot() {
    if !in_guest() {
        return;
    }
    let mut workload = Workload::start(&[
        "--bytes=256MiB",
        "--chunks=8",
        "--cpus=0",
        "--start-node=3",
        "--phases=1",
        "--phase-seconds=100000",
    ]);
    workload.phase();
    let site = Site::new();
    site.write_config(&body(workload.pid(), ""));
    let recording = site.path("a.rec");
    let start = || {
        let mut command = hmkeeper();
        command.args(["run", "--config"]).arg(site.config());
        command.arg("--record").arg(&recording);
        site.start_as(command)
    };
    let mut daemon = start();
    daemon.until_watching(workload.pid());
    daemon.epochs(4);
    daemon.kill();
    let first = rows(&recording, &site.path("first.csv"));
    let mut daemon = start();
    daemon.until_watching(workload.pid());
    daemon.epochs(6);
    daemon.stop();
    let both = rows(&recording, &site.path("both.csv"));
    let epochs = |rows: &[Row]| {
        let times: std::collections::BTreeSet<u64> = rows.iter().map(|row| row.at).collect();
        times.len()
    };
    println!("{} and then {} epochs", epochs(&first), epochs(&both));
    assert!(epochs(&first) >= 4, "{} epochs", epochs(&first));
    assert!(epochs(&both) >= epochs(&first) + 6, "{}", epochs(&both));

    // Put through the engine again, it decides what both daemons did.
    let replayed = output_of(&["replay", recording.to_str().expect("a path"), "--json"]);
    assert!(replayed.status.success(), "{}", show(&replayed));
    let json: serde_json::Value = serde_json::from_slice(&replayed.stdout).expect("JSON");
    println!("{}", json[0]);
    let of = |key: &str| json[0][key].as_u64().expect("a number");
    assert_eq!(of("runs"), 2);
    assert!(of("epochs") >= epochs(&both) as u64, "{}", json[0]);
    assert!(of("compared_epochs") + 2 >= of("epochs"), "{}", json[0]);
    assert_eq!(of("same_plan_epochs"), of("compared_epochs"));
    assert!(of("promoted_bytes") > 0);

    // The last epoch against what the workload says.
    let last = both.last().expect("a row").at;
    let hot = workload.classes[0].ranges.clone();
    let bytes = |start: u64, end: u64| {
        let overlap = hot.iter().map(|range| {
            let (low, high) = (range.start().0.max(start), range.end().0.min(end));
            high.saturating_sub(low)
        });
        overlap.sum::<u64>() as f64
    };
    let (mut called, mut hit) = (0.0, 0.0);
    for row in both.iter().filter(|row| row.at == last && row.heat >= HOT) {
        called += (row.end - row.start) as f64;
        hit += bytes(row.start, row.end);
    }
    let all = bytes(0, u64::MAX);
    let (precision, recall) = (hit / called, hit / all);
    println!("precision {precision:.3}, recall {recall:.3}");
    assert!(precision > 0.8 && recall > 0.8, "{precision} {recall}");
    workload.assert_alive();
}
