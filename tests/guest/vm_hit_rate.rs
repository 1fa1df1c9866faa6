//! The tier hit rates that we export, and between what bounds, beside those that the latency
//! plugin counts from outside of the guest: misses of the target's own code, node by node.
//!
//! Hot and cold lie side by side on several nodes. In some forms rates are such that accessed bits
//! do not saturate; in others some memory is touched all the time, and the modelled caches, of
//! 1 MiB, hold a part of it.
//!
// vm: topology=4tier latency=hm-keeper timeout=200

use hmkeeper::sys::move_pages::{Which, move_to};
use hmkeeper::units::{NodeId, Pid, VirtAddr};

use crate::common::{
    Daemon, INTERVAL, Site, WHERE_MOVES_PAY, Workload, body_as_shipped, hmkeeper, in_guest, number,
    percent, short_or_full, target,
};
use crate::tierlat::{charged, served, watch};

const NODES: u32 = 4;
/// Epochs until regions are told apart, and those that are compared.
const SETTLES: u64 = 8;
/// How far a share may be from the truth where nothing saturates, over all epochs together.
const TOLERANCE: f64 = 0.05;
/// And how wide its bounds may be there, on average over epochs and nodes, with so many samples
/// in a whole epoch. How many are paid for follows the host, and the error of fewer is larger by
/// the square root. The short form's, whose regions had less time, are 24 to 31 % wide.
const NARROW: [f64; 2] = [0.35, 0.25];
/// The same where some memory saturates: of nodes that it is not on something is known all the same.
const NARROW_BESIDE: f64 = 0.7;
const SAMPLES: f64 = 500.0;
/// With fewer than this, on a host that does much else, the three classes' 24 chunks are not told
/// apart any more, and only the bounds are asked for.
const TELL_APART: f64 = 250.0;
/// In so many of the epochs and nodes the bounds hold the truth.
const COVERED: f64 = 0.9;

/// What a target does.
struct Form {
    what: &'static str,
    /// Share of the buffer and seconds between two touches of a page, of three classes.
    classes: [&'static str; 3],
    /// How much of the first class is on node 0, in percent; the rest is on node 3.
    on_first: usize,
    /// Whether some of it is touched all the time.
    saturates: bool,
}

const FORMS: [Form; 4] = [
    Form {
        what: "rates of 1 in 1, 4 and 40 s",
        classes: ["0.03:1", "0.12:4", "0.3:40"],
        on_first: 70,
        saturates: false,
    },
    Form {
        what: "rates of 1 in 0.3, 2 and 10 s",
        classes: ["0.03:0.3", "0.12:2", "0.3:10"],
        on_first: 70,
        saturates: false,
    },
    Form {
        what: "1.6 MiB all the time on node 0, beside 1 in 2 and 10 s",
        classes: ["0.005:0", "0.12:2", "0.3:10"],
        on_first: 100,
        saturates: true,
    },
    Form {
        what: "9.6 MiB all the time on nodes 0 and 3, beside 1 in 2 and 10 s",
        classes: ["0.03:0", "0.12:2", "0.3:10"],
        on_first: 70,
        saturates: true,
    },
];

/// What is exported of one node's share.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    ratio: f64,
    low: f64,
    high: f64,
}

/// Misses of the target that each node has served so far.
fn truth() -> Vec<f64> {
    let of = |node| {
        let served = served(NodeId(node));
        (served.watched_reads + served.watched_writes) as f64
    };
    (0..NODES).map(of).collect()
}

/// Shares of nodes 0 to 3 by what the daemon exports, in the epoch just over, and from how
/// many samples.
fn exported(daemon: &Daemon, pid: u32) -> (Vec<Told>, f64) {
    let status = daemon.epochs(1);
    let mut shares = vec![Told::default(); NODES as usize];
    let tiers = target(&status, pid).expect("the target")["tiers"].as_array();
    for tier in tiers.expect("tiers") {
        // As the guest's are named: by kind and their one node.
        let name = tier["tier"].as_str().expect("a name");
        let node = name.trim_start_matches(|c: char| !c.is_ascii_digit());
        let node: usize = node.parse().expect("a node");
        let of = |key: &str| tier[key].as_f64().expect("a share");
        shares[node] = Told {
            ratio: of("access_ratio"),
            low: of("access_ratio_low"),
            high: of("access_ratio_high"),
        };
    }
    // Shares are of as many epochs as last as long as a whole one.
    let length = status["epoch_seconds"].as_f64().expect("a length");
    let of_one = number(&status, pid, "samples") as f64;
    (shares, of_one * (INTERVAL.as_secs_f64() / length).max(1.0))
}

fn parts(values: &[f64]) -> Vec<f64> {
    let all: f64 = values.iter().sum();
    values.iter().map(|v| v / all).collect()
}

/// Puts the first part of a class on one node and the rest on another.
fn place(workload: &Workload, class: usize, percent: usize, nodes: [u32; 2]) {
    let ranges = &workload.classes[class].ranges;
    let pages: Vec<VirtAddr> = ranges.iter().flat_map(|r| r.iter_pages()).collect();
    let pid = Pid(i32::try_from(workload.pid()).expect("a pid"));
    let (first, rest) = pages.split_at(pages.len() * percent / 100);
    for (pages, node) in [(first, nodes[0]), (rest, nodes[1])] {
        for batch in pages.chunks(1024) {
            move_to(pid, batch, NodeId(node), Which::Alone).expect("placing its pages");
        }
    }
}

/// What a form came to.
struct Found {
    /// Of each node: its share of all misses, and of all that was exported.
    shares: Vec<(f64, f64)>,
    /// Epochs and nodes, and those of which the bounds hold the truth.
    all: u32,
    covered: u32,
    /// How wide they are, on average.
    width: f64,
    /// Samples in an epoch, on average.
    samples: f64,
}

impl Found {
    /// What it should not be.
    fn faults(&self, form: &Form) -> Vec<String> {
        let mut faults = Vec::new();
        let least = COVERED * f64::from(self.all);
        if f64::from(self.covered) < least {
            faults.push(format!("{} of {} within bounds", self.covered, self.all));
        }
        let narrow = if form.saturates {
            NARROW_BESIDE
        } else {
            short_or_full(NARROW[0], NARROW[1])
        };
        // Beyond nine tenths they would say next to nothing, whatever the host does.
        let widest = (narrow * (SAMPLES / self.samples).sqrt().max(1.0)).min(0.9);
        if self.width > widest {
            let (width, widest) = (percent(self.width), percent(widest));
            faults.push(format!("bounds are {width} wide, beyond {widest}"));
        }
        if form.saturates {
            return faults;
        }
        if self.samples < TELL_APART {
            println!("  skipped: how far shares are off, since so few samples were paid for");
            return faults;
        }
        for (node, (truth, told)) in self.shares.iter().enumerate() {
            if (truth - told).abs() > TOLERANCE {
                let (truth, told) = (percent(*truth), percent(*told));
                faults.push(format!(
                    "node {node}: {truth} by the plugin, {told} exported"
                ));
            }
        }
        faults
    }
}

fn compare(form: &Form) -> Found {
    let mut args = vec![
        "--pattern=classes".to_owned(),
        "--bytes=320MiB".to_owned(),
        "--chunks=8".to_owned(),
        "--cpus=0".to_owned(),
        "--start-node=3".to_owned(),
        "--phases=1".to_owned(),
        "--phase-seconds=100000".to_owned(),
    ];
    args.extend(form.classes.map(|class| format!("--class={class}")));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut workload = Workload::start(&args);
    workload.phase();
    place(&workload, 0, form.on_first, [0, 3]);
    place(&workload, 1, 50, [0, 2]);
    place(&workload, 2, 20, [1, 3]);
    watch(workload.range);
    let site = Site::new().every(INTERVAL);
    // It mostly sleeps, which pays for little; what is asked here is what scans can tell.
    // Of its own stack and heap, which are accessed all the time and mostly found in the
    // cache, nobody can tell how often they were missed: the buffer alone.
    let (start, end) = (workload.range.start().0, workload.range.end().0);
    let more = format!("overhead_limit = 0.5\n{WHERE_MOVES_PAY}");
    let config = body_as_shipped(INTERVAL, workload.pid(), &more);
    site.write_config(&format!("{config}include = [\"{start:#x}-{end:#x}\"]\n"));
    let mut command = hmkeeper();
    command
        .args(["run", "--dry-run", "--config"])
        .arg(site.config());
    let mut daemon = site.start_as(command);
    daemon.until_watching(workload.pid());
    daemon.epochs(SETTLES);
    let epochs = short_or_full(7, 30);
    let mut found = Found {
        shares: vec![(0.0, 0.0); NODES as usize],
        all: epochs * NODES,
        covered: 0,
        width: 0.0,
        samples: 0.0,
    };
    let first = truth();
    let mut before = first.clone();
    let mut bounds = vec![(0.0, 0.0); NODES as usize];
    for _ in 0..epochs {
        let (told, samples) = exported(&daemon, workload.pid());
        found.samples += samples / f64::from(epochs);
        let now = truth();
        let misses: Vec<f64> = now.iter().zip(&before).map(|(a, b)| a - b).collect();
        before = now;
        for (node, (truth, told)) in parts(&misses).into_iter().zip(told).enumerate() {
            found.shares[node].1 += told.ratio / f64::from(epochs);
            found.covered += u32::from(told.low <= truth && truth <= told.high);
            found.width += (told.high - told.low) / f64::from(found.all);
            bounds[node].0 += told.low / f64::from(epochs);
            bounds[node].1 += told.high / f64::from(epochs);
        }
    }
    workload.assert_alive();
    daemon.stop();
    let misses: Vec<f64> = before.iter().zip(first).map(|(a, b)| a - b).collect();
    println!("{}: {misses:.0?} misses", form.what);
    for (node, truth) in parts(&misses).into_iter().enumerate() {
        found.shares[node].0 = truth;
        println!(
            "  node {node}: {} by the plugin, {} exported, {} to {}",
            percent(truth),
            percent(found.shares[node].1),
            percent(bounds[node].0),
            percent(bounds[node].1)
        );
    }
    println!(
        "  {} of {} epochs and nodes within bounds, which are {} wide; {:.0} samples an epoch",
        found.covered,
        found.all,
        percent(found.width),
        found.samples
    );
    found
}

#[test]
fn exported_shares_are_those_of_the_misses_or_their_bounds_hold_them() {
    if !in_guest() {
        return;
    }
    let mut faults = Vec::new();
    for form in short_or_full(vec![&FORMS[0], &FORMS[2]], FORMS.iter().collect()) {
        // Where it runs all the time, on the machine that the daemon is told it is on.
        let found = charged(form.saturates, || compare(form));
        let of = |fault| format!("{}: {fault}", form.what);
        faults.extend(found.faults(form).into_iter().map(of));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
