//! Runs of blocks that are touched alike: lists that ascend and are disjoint.

use std::ops::Range;

/// Blocks that are touched alike in a step: half-open.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Run {
    pub(super) first: u64,
    pub(super) end: u64,
    /// Touches of each block.
    pub(super) each: f64,
}

/// Adds a run, as blocks of 2^`shift` of its own, to `runs`.
pub(super) fn into_blocks(run: Run, shift: u8, runs: &mut Vec<Run>) {
    let Run { first, end, each } = run;
    let unit = 1_u64 << shift;
    let mut add = |first: u64, end: u64, times: u64| {
        if first < end && times > 0 {
            let each = each * times as f64;
            runs.push(Run { first, end, each });
        }
    };
    let (low, high) = (first.div_ceil(unit), end / unit);
    if low > high {
        // Within one block.
        return add(high, low, end - first);
    }
    add(low.saturating_sub(1), low, low * unit - first);
    add(low, high, unit);
    add(high, high + 1, end - high * unit);
}

/// Adds a run behind all others.
pub(super) fn push(runs: &mut Vec<Run>, blocks: Range<u64>, each: f64) {
    match runs.last_mut() {
        Some(last) if last.end == blocks.start && last.each.to_bits() == each.to_bits() => {
            last.end = blocks.end;
        }
        _ => runs.push(Run {
            first: blocks.start,
            end: blocks.end,
            each,
        }),
    }
}

/// Touches of both; each ascends and is disjoint.
pub(super) fn sum(one: &[Run], other: &[Run]) -> Vec<Run> {
    let mut runs = Vec::with_capacity(one.len().max(other.len()));
    let (mut one, mut other) = (one.iter().copied(), other.iter().copied());
    let (mut a, mut b) = (one.next(), other.next());
    loop {
        match (&mut a, &mut b) {
            (Some(left), Some(right)) => {
                let start = left.first.min(right.first);
                let (in_left, in_right) = (left.first == start, right.first == start);
                let end = match (in_left, in_right) {
                    (true, true) => left.end.min(right.end),
                    (true, false) => left.end.min(right.first),
                    _ => right.end.min(left.first),
                };
                let of = |is: bool, run: &Run| if is { run.each } else { 0.0 };
                push(
                    &mut runs,
                    start..end,
                    of(in_left, left) + of(in_right, right),
                );
                if in_left {
                    left.first = end;
                }
                if in_right {
                    right.first = end;
                }
                if left.first == left.end {
                    a = one.next();
                }
                if right.first == right.end {
                    b = other.next();
                }
            }
            (Some(run), None) => {
                push(&mut runs, run.first..run.end, run.each);
                a = one.next();
            }
            (None, Some(run)) => {
                push(&mut runs, run.first..run.end, run.each);
                b = other.next();
            }
            (None, None) => return runs,
        }
    }
}

/// Adds a range that begins behind the beginning of all others.
pub(super) fn extend(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
        _ => ranges.push(range),
    }
}

pub(super) fn union(memory: &[Range<u64>], runs: &[Run]) -> Vec<Range<u64>> {
    let mut all = Vec::with_capacity(memory.len());
    let mut memory = memory.iter().cloned().peekable();
    for run in runs {
        while let Some(range) = memory.next_if(|range| range.start <= run.first) {
            extend(&mut all, range);
        }
        extend(&mut all, run.first..run.end);
    }
    memory.for_each(|range| extend(&mut all, range));
    all
}
