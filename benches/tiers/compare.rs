//! Two results of the same set beside each other: whether running it twice tells the same. Pure.

use std::collections::BTreeMap;

use crate::results::Cell;

/// Systems that are less apart are level.
const APART: f64 = 0.05;

/// Two systems on one workload whose order is not the same in both.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Turned {
    /// On what.
    pub(crate) workload: String,
    /// The one that is ahead in the first results, and how much longer the other takes there: 0.1 is a tenth.
    pub(crate) ahead: String,
    /// See above.
    pub(crate) behind: String,
    /// See above.
    pub(crate) first: f64,
    /// The same in the second results: below 0.
    pub(crate) second: f64,
}

/// Which of a cell's times are held against each other, all relative to first touch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum By {
    /// As measured: how fast the host was is in it.
    Clock,
    /// See [`Cell::modelled`].
    Model,
}

/// Of the pairs of systems that are more than 5 % apart in either result, how many there are and which turn.
pub(crate) fn compare(by: By, first: &[Cell], second: &[Cell]) -> (usize, Vec<Turned>) {
    let (first, second) = (by_workload(by, first), by_workload(by, second));
    let (mut apart, mut turned) = (0, Vec::new());
    for (workload, one) in &first {
        let Some(other) = second.get(workload) else {
            continue;
        };
        let names: Vec<&String> = one
            .keys()
            .filter(|name| other.contains_key(*name))
            .collect();
        for (at, a) in names.iter().enumerate() {
            for b in &names[at + 1..] {
                let (ahead, behind) = if one[*a] <= one[*b] { (a, b) } else { (b, a) };
                let later = |times: &BTreeMap<String, f64>| times[*behind] / times[*ahead] - 1.0;
                let (before, after) = (later(one), later(other));
                // As much the other way round.
                let is_apart = |by: f64| by > APART || 1.0 / (1.0 + by) - 1.0 > APART;
                if !is_apart(before) && !is_apart(after) {
                    continue;
                }
                apart += 1;
                if after < 0.0 && before > 0.0 {
                    turned.push(Turned {
                        workload: workload.clone(),
                        ahead: (*ahead).clone(),
                        behind: (*behind).clone(),
                        first: before,
                        second: after,
                    });
                }
            }
        }
    }
    (apart, turned)
}

/// Times relative to first touch: by workload, by system and pace.
fn by_workload(by: By, cells: &[Cell]) -> BTreeMap<String, BTreeMap<String, f64>> {
    let mut all: BTreeMap<String, BTreeMap<String, f64>> = BTreeMap::new();
    for cell in cells {
        let time = match by {
            By::Clock => cell.relative,
            By::Model => cell.modelled,
        };
        if let Some(relative) = time {
            let own = all.entry(cell.workload.clone()).or_default();
            own.insert(cell.name(), relative);
        }
    }
    all
}

/// As text.
pub(crate) fn text(by: By, apart: usize, turned: &[Turned]) -> String {
    let what = match by {
        By::Clock => "by the clock",
        By::Model => "by model, without what the host did",
    };
    let head = format!(
        "{what}: {apart} pairs of systems are more than {:.0} % apart in either; the order of {} turns\n",
        APART * 100.0,
        turned.len()
    );
    let lines = turned.iter().map(|pair| {
        let (first, second) = (pair.first * 100.0, pair.second * 100.0);
        let Turned {
            workload,
            ahead,
            behind,
            ..
        } = pair;
        format!(
            "  {workload}: {ahead} before {behind} by {first:.1} %, then behind: {second:.1} %\n"
        )
    });
    std::iter::once(head).chain(lines).collect()
}
