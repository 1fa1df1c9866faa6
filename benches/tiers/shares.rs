//! What the daemon says that each node serves, beside what the plugin counted there in the same
//! time. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One node in the time that the daemon spoke of.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Share {
    /// Which.
    pub(crate) node: u32,
    /// Misses of the workload that it served.
    pub(crate) misses: u64,
    /// The share of the workload's accesses that it is said to serve.
    pub(crate) told: f64,
    /// It is this at least, it is said.
    pub(crate) low: f64,
    /// And this at most.
    pub(crate) high: f64,
}

/// A node over the whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sum {
    /// Its share of all misses.
    pub(crate) counted: f64,
    /// What was said of it, on average over the same misses.
    pub(crate) told: f64,
}

/// What all times of a run, or of several, come to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Summary {
    /// By node.
    pub(crate) nodes: BTreeMap<u32, Sum>,
    /// How many times, and nodes in each, were told.
    pub(crate) all: usize,
    /// In how many of these the bounds hold what was counted.
    pub(crate) held: usize,
    /// How far apart the bounds are on average.
    pub(crate) width: f64,
}

/// `None` where nothing was told, or nothing missed.
pub(crate) fn summary<'a>(times: impl Iterator<Item = &'a [Share]>) -> Option<Summary> {
    let mut nodes: BTreeMap<u32, Sum> = BTreeMap::new();
    let (mut all, mut held, mut width, mut misses) = (0, 0, 0.0, 0.0);
    for time in times {
        let here = time.iter().map(|s| s.misses).sum::<u64>() as f64;
        if here == 0.0 {
            continue;
        }
        misses += here;
        for share in time {
            let counted = share.misses as f64 / here;
            let sum = nodes.entry(share.node).or_default();
            sum.counted += share.misses as f64;
            sum.told += share.told * here;
            all += 1;
            held += usize::from(share.low <= counted && counted <= share.high);
            width += share.high - share.low;
        }
    }
    for sum in nodes.values_mut() {
        sum.counted /= misses;
        sum.told /= misses;
    }
    (misses > 0.0).then(|| Summary {
        nodes,
        all,
        held,
        width: width / all as f64,
    })
}
