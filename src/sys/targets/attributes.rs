//! What `maps` does not tell of a mapping: its memory policy and whether it
//! is locked.
//!
//! **Problem.** `numa_maps` and `smaps` tell, but they walk the target's page
//! tables with its address space locked: seconds for a terabyte.
//!
//! **Approach.** They are read when a mapping appears of which nothing is
//! known, and now and then for changes, never for more than [`COST_SHARE`] of
//! the time. In between, attributes are carried along: the kernel joins two
//! mappings only when policy and flags are equal and gives both halves of a
//! split what the whole had, so a mapping that overlaps one that is known has
//! its attributes. Several that differ: not known. `smaps` is left alone for as
//! long as `VmLck` says that nothing is locked.

use crate::sys::text::hex;
use crate::units::{Nanos, PageRange, VirtAddr};

/// Reading attributes may take this share of elapsed time: 1 in so many.
const COST_SHARE: u64 = 100;
/// Attributes are read again after this long, or later when that costs too much.
const REFRESH: Nanos = Nanos::from_secs(60);

/// What is known of one mapping: any of these may hold with any other.
#[allow(clippy::struct_excessive_bools)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Attributes {
    /// Bound, preferred or interleaved.
    pub(super) policy: bool,
    /// `mlock`ed.
    pub(super) locked: bool,
    /// From the hugetlb pool.
    pub(super) hugetlb: bool,
    /// Device memory and the like.
    pub(super) special: bool,
}

/// What is known of one target's mappings.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Sorted, disjoint.
    spans: Vec<(PageRange, Attributes)>,
    read_at: Option<Nanos>,
    cost: Nanos,
}

impl Known {
    /// Whether to read the attributes now: soon where something is `unknown`
    /// or was cut, else for the changes. `sharers` targets share the time for it.
    pub(super) fn is_due(&self, now: Nanos, unknown: bool, sharers: usize) -> bool {
        let Some(read_at) = self.read_at else {
            return true;
        };
        let sharers = u64::try_from(sharers.max(1)).unwrap_or(u64::MAX);
        let rest = Nanos(
            self.cost
                .0
                .saturating_mul(COST_SHARE)
                .saturating_mul(sharers),
        );
        let wait = if unknown { rest } else { rest.max(REFRESH) };
        now.saturating_sub(read_at) >= wait
    }

    /// Notes a reading: `attributes` of each mapping, `None` where it told none.
    pub(super) fn replace(
        &mut self,
        read: impl Iterator<Item = (PageRange, Option<Attributes>)>,
        now: Nanos,
        cost: Nanos,
    ) {
        self.spans.clear();
        self.spans
            .extend(read.filter_map(|(range, attributes)| Some((range, attributes?))));
        self.read_at = Some(now);
        self.cost = cost;
    }

    /// Carries what is known over to the mappings that there are now: sorted,
    /// disjoint. Afterwards `out` holds what is known of each. Returns whether
    /// one was cut: a new policy for a part of it would do that.
    pub(super) fn carry(&mut self, vmas: &[PageRange], out: &mut Vec<Option<Attributes>>) -> bool {
        out.clear();
        let mut cut = false;
        let mut from = 0;
        for vma in vmas {
            while self
                .spans
                .get(from)
                .is_some_and(|(r, _)| r.end() <= vma.start())
            {
                from += 1;
            }
            let overlapping = self.spans[from..]
                .iter()
                .take_while(|(r, _)| r.start() < vma.end());
            cut |= overlapping.clone().any(|&(r, _)| !vma.covers(r));
            let mut over = overlapping.map(|&(_, attributes)| attributes);
            let first = over.next();
            out.push(first.filter(|&first| over.all(|other| other == first)));
        }
        let known = vmas.iter().zip(out.iter());
        self.spans.clear();
        self.spans
            .extend(known.filter_map(|(&range, &attributes)| Some((range, attributes?))));
        cut
    }
}

/// Marks in `out` the mappings that `numa_maps` shows with a policy that binds
/// them. `starts` are those of the mappings, sorted; a mapping that the text
/// does not name stays `None`.
///
/// A mapping without a policy of its own shows its thread's, which is as much
/// the application's will. `default` and `local` bind nothing.
pub(super) fn read_numa_maps(text: &[u8], vmas: &[PageRange], out: &mut [Option<Attributes>]) {
    for (start, is_bound, mut fields) in told(text) {
        if let Some(index) = find(vmas, start) {
            let attributes = out[index].get_or_insert_default();
            attributes.policy = is_bound;
            attributes.hugetlb |= fields.any(|f| f == b"huge");
        }
    }
}

/// Of each mapping its start, and whether a policy binds it, as `numa_maps` shows them.
pub(in crate::sys) fn policies(text: &[u8]) -> impl Iterator<Item = (VirtAddr, bool)> {
    told(text).map(|(start, is_bound, _)| (start, is_bound))
}

/// The same, with the other fields.
fn told(text: &[u8]) -> impl Iterator<Item = (VirtAddr, bool, impl Iterator<Item = &[u8]>)> {
    text.split(|&b| b == b'\n').filter_map(|line| {
        let mut fields = line.split(|&b| b == b' ');
        let start = VirtAddr(fields.next().and_then(hex)?);
        let policy = fields.next()?;
        let is_bound = !(policy == b"default" || policy == b"local");
        Some((start, is_bound, fields))
    })
}

/// Marks in `out` what the `VmFlags` of `smaps` tell: `lo` locked, `ht`
/// hugetlb, `io`, `pf` and `mm` device memory.
pub(super) fn read_smaps(text: &[u8], vmas: &[PageRange], out: &mut [Option<Attributes>]) {
    let mut current = None;
    for line in text.split(|&b| b == b'\n') {
        if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            let Some(attributes) = current.and_then(|i: usize| out[i].as_mut()) else {
                continue;
            };
            for flag in flags.split(|&b| b == b' ') {
                match flag {
                    b"lo" => attributes.locked = true,
                    b"ht" => attributes.hugetlb = true,
                    b"io" | b"pf" | b"mm" => attributes.special = true,
                    _ => {}
                }
            }
        } else if let Some(dash) = line.iter().position(|&b| b == b'-')
            && let Some(start) = hex(&line[..dash])
        {
            current = find(vmas, VirtAddr(start));
        }
    }
}

fn find(vmas: &[PageRange], start: VirtAddr) -> Option<usize> {
    vmas.binary_search_by_key(&start, |r| r.start()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange::new(VirtAddr(start << 12), VirtAddr(end << 12)).unwrap()
    }

    const BOUND: Attributes = Attributes {
        policy: true,
        locked: false,
        hugetlb: false,
        special: false,
    };

    fn plain() -> Attributes {
        Attributes::default()
    }

    fn known(spans: &[(PageRange, Attributes)]) -> Known {
        let mut known = Known::default();
        let read = spans.iter().map(|&(r, a)| (r, Some(a)));
        known.replace(read, Nanos::ZERO, Nanos::from_millis(10));
        known
    }

    #[test]
    fn mappings_that_grow_shrink_or_split_keep_what_is_known() {
        let mut known = known(&[(range(10, 20), plain()), (range(30, 40), BOUND)]);
        let mut out = Vec::new();
        let now = [range(8, 25), range(30, 33), range(36, 50), range(60, 61)];
        assert!(known.carry(&now, &mut out), "30..40 was cut");
        assert_eq!(out, [Some(plain()), Some(BOUND), Some(BOUND), None]);
        // And from there on.
        known.carry(&[range(22, 24), range(45, 46)], &mut out);
        assert_eq!(out, [Some(plain()), Some(BOUND)]);
        // Growing alone cuts nothing.
        assert!(!known.carry(&[range(20, 28), range(45, 47)], &mut out));
    }

    #[test]
    fn one_over_two_that_differ_is_unknown() {
        let mut known = known(&[(range(10, 20), plain()), (range(20, 30), BOUND)]);
        let mut out = Vec::new();
        assert!(!known.carry(&[range(10, 30)], &mut out));
        assert_eq!(out, [None]);
    }

    #[test]
    fn reading_is_bounded_to_a_hundredth_of_the_time() {
        let known = known(&[]);
        // It cost 10 ms, so 1 s must pass; with four targets 4 s.
        assert!(!known.is_due(Nanos::from_millis(999), true, 1));
        assert!(known.is_due(Nanos::from_millis(1000), true, 1));
        assert!(!known.is_due(Nanos::from_millis(3999), true, 4));
        assert!(!known.is_due(Nanos::from_secs(59), false, 1));
        assert!(known.is_due(Nanos::from_secs(60), false, 1));
        assert!(Known::default().is_due(Nanos::ZERO, false, 1));
    }

    #[test]
    fn policies_and_flags_are_read() {
        let vmas = [
            range(1, 2),
            range(2, 3),
            range(3, 4),
            range(4, 5),
            range(5, 6),
        ];
        let mut out = [None; 5];
        read_numa_maps(
            b"1000 default heap anon=1 N0=1\n2000 bind:0-1 anon=3\n3000 interleave:0-3 anon=2\n4000 prefer (many):1\n",
            &vmas,
            &mut out,
        );
        let policies: Vec<Option<bool>> = out.iter().map(|a| a.map(|a| a.policy)).collect();
        assert_eq!(
            policies,
            [Some(false), Some(true), Some(true), Some(true), None]
        );
        read_smaps(
            b"1000-2000 rw-p 0 00:00 0 [heap]\nSize: 4 kB\nVmFlags: rd wr mr mw me lo ac\n2000-3000 rw-p 0 00:00 0\nVmFlags: rd wr\n",
            &vmas,
            &mut out,
        );
        assert!(out[0].unwrap().locked);
        assert!(!out[1].unwrap().locked);
        assert_eq!(out[4], None, "what numa_maps did not name stays unknown");
    }
}
