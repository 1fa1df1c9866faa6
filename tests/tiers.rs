//! What `make bench` makes of its measurements: rows, the file that keeps them, table and
//! charts. The runs themselves are its run set `smoke`.

#![allow(dead_code, reason = "the bench uses the rest of these modules")]

#[path = "../benches/tiers/chart.rs"]
mod chart;
#[path = "../benches/tiers/compare.rs"]
mod compare;
#[path = "../benches/tiers/results.rs"]
mod results;
#[path = "../benches/tiers/shares.rs"]
mod shares;
#[path = "../benches/tiers/stats.rs"]
mod stats;
#[path = "../benches/tiers/table.rs"]
mod table;

use compare::By;
use results::{Job, Measured, Row};

fn row(system: &str, pace: f64, run: u32, seconds: f64) -> Row {
    Row {
        set: "default".into(),
        workload: "gups".into(),
        system: system.into(),
        pace,
        run,
        relative_to_first_touch: None,
        host_others_cpu_seconds: 0.5,
        commit: "0123456789ab".into(),
        host: "here".into(),
        measured: Measured {
            seconds,
            operations: 10,
            misses_by_node: [(0, 30), (1, 0), (2, 70)].into(),
            moved_bytes: 3 << 20,
            daemon_cpu_seconds: seconds / 50.0,
            ..Measured::default()
        },
    }
}

#[test]
fn rows_survive_the_file_and_are_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep/tiers.json");
    assert_eq!(results::load(&path).unwrap(), []);
    let mut rows = vec![row("first-touch", 1.0, 1, 20.0), row("ial", 0.1, 1, 15.0)];
    results::relate(&mut rows);
    results::save(&path, &rows).unwrap();
    let loaded = results::load(&path).unwrap();
    assert_eq!(loaded, rows);
    assert_eq!(loaded[1].relative_to_first_touch, Some(0.75));
    let job = |system, pace| Job {
        set: "default",
        workload: "gups",
        system,
        pace,
        run: 1,
    };
    assert!(loaded[1].is(&job("ial", 0.1), "here"));
    assert!(!loaded[1].is(&job("ial", 1.0), "here"));
    assert!(!loaded[1].is(&job("ial", 0.1), "elsewhere"));

    let text = std::fs::read_to_string(&path).unwrap();
    let array: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    for key in [
        "workload",
        "system",
        "run",
        "seconds",
        "relative_to_first_touch",
        "misses_by_node",
        "moved_bytes",
        "daemon_cpu_seconds",
        "host",
    ] {
        assert!(array[0].get(key).is_some(), "{key} in {}", array[0]);
    }
    std::fs::write(&path, "[{}]").unwrap();
    let error = results::load(&path).unwrap_err().to_string();
    assert!(error.contains("tiers.json"), "{error}");
}

#[test]
fn each_run_is_related_to_first_touch_of_the_same_run() {
    let mut rows = vec![
        row("first-touch", 1.0, 1, 20.0),
        row("first-touch", 1.0, 2, 40.0),
        row("numab2", 1.0, 1, 10.0),
        row("numab2", 1.0, 2, 30.0),
        row("numab2", 1.0, 3, 30.0),
    ];
    let mut other_work = row("ial", 1.0, 1, 10.0);
    other_work.measured.operations = 11;
    let mut alone = [rows[0].clone(), other_work];
    results::relate(&mut alone);
    assert_eq!(alone[1].relative_to_first_touch, None);
    results::relate(&mut rows);
    let related: Vec<_> = rows.iter().map(|r| r.relative_to_first_touch).collect();
    assert_eq!(related, [Some(1.0), Some(1.0), Some(0.5), Some(0.75), None]);
    let cells = results::cells(&rows, 20.0);
    assert_eq!(cells.len(), 2);
    assert_eq!((cells[1].runs, cells[1].seconds), (3, 30.0));
    assert_eq!(cells[1].relative, Some(0.625));
    assert!((cells[1].shares[&2] - 0.7).abs() < 1e-9);
}

#[test]
fn machines_are_kept_apart() {
    let on = |host: &str, mut row: Row| {
        row.host = host.into();
        row.measured.waited_ms_by_node = [(0, 10.0)].into();
        row
    };
    let mut rows = [
        on("old", row("first-touch", 1.0, 1, 40.0)),
        on("old", row("numab2", 1.0, 1, 50.0)),
        on("old", row("ial", 1.0, 1, 30.0)),
        on("here", row("first-touch", 1.0, 1, 20.0)),
        on("here", row("numab2", 1.0, 1, 30.0)),
        on("", row("numab2", 1.0, 1, 30.0)),
    ];
    results::relate(&mut rows);
    let related: Vec<_> = rows.iter().map(|r| r.relative_to_first_touch).collect();
    let on_old = [Some(1.0), Some(1.25), Some(0.75)];
    assert_eq!(
        related,
        [&on_old[..], &[Some(1.0), Some(1.5), None]].concat()
    );
    assert_eq!(results::shown_host(&rows, "here"), "here");
    assert_eq!(results::shown_host(&rows, "nowhere"), "old");
    assert_eq!(results::shown_host(&[], "nowhere"), "nowhere");
    assert_eq!(results::cells(&rows[5..], 20.0)[0].modelled, None);
    let mut other = rows[1].clone();
    other.commit = "other".into();
    let rows = [&rows[..2], &[other]].concat();
    assert_eq!(results::commits(&rows), [("0123456789ab", 2), ("other", 1)]);
}

#[test]
fn an_order_that_is_not_the_same_twice_is_told() {
    let all = |ial: f64, numab2: f64, adaptive: f64| {
        let mut rows = [
            row("first-touch", 1.0, 1, 100.0),
            row("ial", 0.3, 1, ial),
            row("numab2", 1.0, 1, numab2),
            row("adaptive", 0.3, 1, adaptive),
        ];
        results::relate(&mut rows);
        results::cells(&rows, 20.0)
    };
    let first = all(80.0, 120.0, 78.0);
    assert_eq!(compare::compare(By::Clock, &first, &first), (5, vec![]));
    // `ial` and `adaptive` are level in both; `numab2` gets ahead of first touch.
    let (apart, turned) = compare::compare(By::Clock, &first, &all(77.0, 98.0, 79.0));
    assert_eq!(apart, 5);
    let [pair] = &turned[..] else {
        panic!("{turned:?}");
    };
    assert_eq!((&*pair.ahead, &*pair.behind), ("first-touch", "numab2"));
    assert!((pair.first - 0.2).abs() < 1e-9 && (pair.second + 0.02).abs() < 1e-9);
    let text = compare::text(By::Clock, apart, &turned);
    assert!(
        text.contains("gups: first-touch before numab2 by 20.0 %"),
        "{text}"
    );
    // What one of them lacks is not compared.
    assert_eq!(
        compare::compare(By::Clock, &first, &first[..1]),
        (0, vec![])
    );
    // They wait alike and the kernel does nothing: all else was the host.
    assert_eq!(compare::compare(By::Model, &first, &first), (0, vec![]));
}

#[test]
fn what_the_host_did_is_not_in_the_modelled_time() {
    // 100 ms of the machine are 2 s of the guest: first touch computes for 8 s.
    let waiting = |mut row: Row, ms: f64, kernel: f64| {
        row.measured.waited_ms_by_node = [(0, ms / 4.0), (2, 3.0 * ms / 4.0)].into();
        row.measured.workload_system_seconds = kernel;
        row
    };
    let rows = [
        waiting(row("first-touch", 1.0, 1, 10.0), 100.0, 0.0),
        waiting(row("ial", 1.0, 1, 99.0), 50.0, 0.0),
        waiting(row("numab2", 1.0, 1, 9.0), 50.0, 2.0),
        waiting(row("numab2", 1.0, 2, 9.0), 50.0, 2.0),
    ];
    let cells = results::cells(&rows, 20.0);
    let modelled: Vec<_> = cells.iter().map(|c| c.modelled).collect();
    assert_eq!(modelled, [Some(1.0), Some(0.9), Some(1.1)]);
    // An order by these times turns where the kernel does less, not where the host does.
    let busy = [&rows[..2], &[waiting(rows[2].clone(), 50.0, 2.0)]].concat();
    let mut less = [&rows[..2], &[waiting(rows[2].clone(), 50.0, 0.0)]].concat();
    less[1].measured.seconds = 9.0;
    let (busy, less) = (results::cells(&busy, 20.0), results::cells(&less, 20.0));
    let (apart, turned) = compare::compare(By::Model, &busy, &less);
    let names: Vec<_> = turned.iter().map(|t| (&*t.ahead, &*t.behind)).collect();
    assert_eq!((apart, names), (3, vec![("first-touch", "numab2")]));
}

#[test]
fn an_interval_of_few_runs_is_wide() {
    assert_eq!(stats::interval(&[1.0]), None);
    let (low, high) = stats::interval(&[0.9, 1.0, 1.1]).unwrap();
    // 4.303 standard errors of 0.1 / sqrt(3).
    assert!((low - 0.7516).abs() < 1e-3 && (high - 1.2484).abs() < 1e-3);
    assert_eq!(stats::interval(&[1.0; 30]), Some((1.0, 1.0)));
    let mean = stats::geometric_mean(&[0.5, 2.0]).unwrap();
    assert!((mean - 1.0).abs() < 1e-12);
    assert_eq!(stats::geometric_mean(&[]), None);
}

#[test]
fn of_several_paces_the_one_that_is_fastest_over_all_is_shown() {
    let mut slow_here = row("ial", 0.1, 1, 9.0);
    slow_here.workload = "zipf".into();
    let mut fast_here = row("ial", 1.0, 1, 5.0);
    fast_here.workload = "zipf".into();
    let rows = [
        row("first-touch", 1.0, 1, 20.0),
        row("ial", 0.1, 1, 10.0),
        row("ial", 1.0, 1, 12.0),
        slow_here,
        fast_here,
    ];
    // 10 * 9 is more than 12 * 5.
    let best = results::best_paces(&results::cells(&rows, 20.0));
    let paces: Vec<_> = best.iter().map(|c| (&*c.system, c.pace)).collect();
    assert_eq!(paces, [("first-touch", 1.0), ("ial", 1.0), ("ial", 1.0)]);
}

#[test]
fn results_that_cannot_be_are_told() {
    assert_eq!(row("ial", 1.0, 1, 3.0).fault(), None);
    assert_eq!(row("ial", 1.0, 1, 0.0).fault(), Some("no time"));
    assert!(row("ial", 1.0, 1, 3.0).is_disturbed());
    assert!(!row("ial", 1.0, 1, 6.0).is_disturbed());
    let mut blind = row("ial", 1.0, 1, 3.0);
    blind.measured.misses_by_node.clear();
    assert_eq!(blind.fault(), Some("no misses"));
    let mut bound = row("bound", 1.0, 1, 3.0);
    assert!(bound.fault().is_some_and(|fault| fault.contains("fastest")));
    bound.measured.misses_by_node = [(0, 999), (2, 1)].into();
    assert_eq!(bound.fault(), None);
}

#[test]
fn percentiles_are_medians_over_runs_and_the_longest_is_of_all() {
    let timed = |run, p99_us, max_us| {
        let mut row = row("ial", 0.3, run, 1.0);
        row.measured.latency = Some(results::Latency {
            p50_us: 10.0,
            p99_us,
            max_us,
        });
        row
    };
    let rows = [
        row("ial", 0.3, 9, 1.0),
        timed(1, 300.0, 9000.0),
        timed(2, 100.0, 4000.0),
        timed(3, 200.0, 5000.0),
    ];
    assert_eq!(table::latencies(&rows[..1]), "");
    let text = table::latencies(&rows);
    let words: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
    assert_eq!(words, ["gups", "ial", "x0.3", "x3", "10", "200", "9"]);
}

#[test]
fn table_and_charts_show_every_system() {
    let mut rows = vec![row("first-touch", 1.0, 1, 20.0), row("ial", 0.1, 1, 15.0)];
    results::relate(&mut rows);
    let line = table::line(&rows[1]);
    assert!(
        line.contains("ial x0.1") && line.contains("0.750"),
        "{line}"
    );
    assert!(line.contains("30.0  0.0 70.0"), "{line}");
    let cells = results::cells(&rows, 20.0);
    assert_eq!(table::all(&cells).lines().count(), 3);
    let means = table::means(&cells);
    let ial: Vec<&str> = means.lines().last().unwrap().split_whitespace().collect();
    assert_eq!(ial, ["ial", "x0.1", "0.750", "-"]);
    let charts = chart::all(&cells);
    let names: Vec<_> = charts.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["time", "misses", "moved", "cpu"]);
    for (name, svg) in charts {
        assert!(
            svg.starts_with("<?xml") && svg.ends_with("</svg>\n"),
            "{name}"
        );
        assert!(svg.contains(">ial x0.1</text>"), "{name}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{name}");
    }
}

#[test]
fn what_the_daemon_tells_stands_beside_what_was_counted() {
    let share = |node, misses, told, low, high| shares::Share {
        node,
        misses,
        told,
        low,
        high,
    };
    let mut one = row("adaptive", 1.0, 1, 15.0);
    assert_eq!(table::shares(std::slice::from_ref(&one)), "");
    one.measured.shares = vec![
        vec![share(0, 30, 0.2, 0.1, 0.4), share(2, 70, 0.8, 0.6, 0.9)],
        // Nothing was missed: nothing can be said of it.
        vec![share(0, 0, 1.0, 1.0, 1.0), share(2, 0, 0.0, 0.0, 0.0)],
        vec![share(0, 270, 1.0, 0.8, 1.0), share(2, 30, 0.0, 0.0, 0.2)],
    ];
    let times = || one.measured.shares.iter().map(Vec::as_slice);
    let all = shares::summary(times()).unwrap();
    assert_eq!((all.all, all.held), (4, 4));
    // 300 of 400; 0.2 of the first hundred and all of the other three.
    assert!((all.nodes[&0].counted - 0.75).abs() < 1e-9);
    assert!((all.nodes[&0].told - 0.8).abs() < 1e-9);
    assert!((all.width - 0.25).abs() < 1e-9);
    let text = table::shares(std::slice::from_ref(&one));
    assert!(text.contains("4 of 4"), "{text}");

    one.measured.shares[2][0].low = 0.95;
    let all = shares::summary(one.measured.shares.iter().map(Vec::as_slice)).unwrap();
    assert_eq!((all.all, all.held), (4, 3));
    assert_eq!(shares::summary(std::iter::empty()), None);
}
