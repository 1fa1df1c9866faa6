//! Which addresses of a target may be moved, and why the others may not.

use super::attributes::Attributes;
use super::glob;
use super::maps::Line;
use super::shared::{Mapping, is_shared_memory};
use crate::ports::{MappingFilter, TargetSpec};
use crate::tiering::observation::Exclusion;
use crate::units::{Bytes, PageRange};

/// The name by which filters know a mapping that has none.
const UNNAMED: &[u8] = b"[anon]";

/// The eligible ranges of one target while they are gathered.
#[derive(Debug, Default)]
pub(super) struct Eligible {
    pub(super) ranges: Vec<PageRange>,
    /// Shared memory, which may be another process's too.
    pub(super) shared: Vec<Mapping>,
    excluded: Vec<(Exclusion, Bytes)>,
}

impl Eligible {
    /// Adds one mapping; they come in order. One whose attributes are not
    /// known is neither eligible nor excluded.
    pub(super) fn add(&mut self, line: Line<'_>, known: Option<Attributes>, spec: &TargetSpec) {
        let is_shared = may_be_pooled(line, spec);
        if let Some(why) = by_line(line).filter(|_| !is_shared) {
            self.exclude(why, line.range.bytes());
            return;
        }
        let Some(known) = known else { return };
        if let Some(why) = by_attributes(known, spec) {
            self.exclude(why, line.range.bytes());
            return;
        }
        let mut left = line.range.bytes();
        for range in filtered(line, spec) {
            left = left.saturating_sub(range.bytes());
            if is_shared {
                let into = range.start().0 - line.range.start().0;
                self.shared.push(Mapping {
                    device: line.device,
                    inode: line.inode,
                    range,
                    offset: line.offset.saturating_add(into),
                });
                continue;
            }
            match self.ranges.last_mut() {
                Some(last) if last.end() == range.start() => {
                    *last = last.join(range).unwrap_or(*last);
                }
                _ => self.ranges.push(range),
            }
        }
        self.exclude(Exclusion::Configured, left);
    }

    /// What was left out, by why, in a fixed order.
    pub(super) fn excluded(&mut self) -> Vec<(Exclusion, Bytes)> {
        self.excluded.sort_unstable();
        std::mem::take(&mut self.excluded)
    }

    fn exclude(&mut self, why: Exclusion, bytes: Bytes) {
        if bytes.is_zero() {
            return;
        }
        match self.excluded.iter_mut().find(|(w, _)| *w == why) {
            Some((_, sum)) => *sum += bytes,
            None => self.excluded.push((why, bytes)),
        }
    }
}

/// Whether its line forbids nothing.
pub(super) fn is_open(line: Line<'_>, spec: &TargetSpec) -> bool {
    may_be_pooled(line, spec) || by_line(line).is_none()
}

/// Whether it may be moved with all who map it.
fn may_be_pooled(line: Line<'_>, spec: &TargetSpec) -> bool {
    spec.move_shared && is_shared_memory(line)
}

/// What the line alone forbids.
fn by_line(line: Line<'_>) -> Option<Exclusion> {
    if line.name.starts_with(b"/anon_hugepage") {
        return Some(Exclusion::Hugetlb);
    }
    if line.perms[3] == b's' {
        return Some(Exclusion::Shared);
    }
    if line.has_file || line.name.starts_with(b"/") {
        return Some(Exclusion::File);
    }
    // vdso, vvar, uprobes…; heap, stack and what the program named stay.
    let kernels_own = line.name.starts_with(b"[v") || line.name == b"[uprobes]";
    // Without access there is nothing to be hot: guard pages, reserved space.
    if kernels_own || !(line.perms[0] == b'r' || line.perms[1] == b'w') {
        return Some(Exclusion::Special);
    }
    None
}

fn by_attributes(known: Attributes, spec: &TargetSpec) -> Option<Exclusion> {
    if known.hugetlb {
        Some(Exclusion::Hugetlb)
    } else if known.special {
        Some(Exclusion::Special)
    } else if known.locked && !spec.move_locked {
        Some(Exclusion::Locked)
    } else if known.policy && !spec.move_bound {
        Some(Exclusion::Policy)
    } else {
        None
    }
}

/// The parts of a mapping that the configuration wants, in order.
fn filtered(line: Line<'_>, spec: &TargetSpec) -> Vec<PageRange> {
    let name = if line.name.is_empty() {
        UNNAMED
    } else {
        line.name
    };
    let part = |filter: &MappingFilter| match filter {
        MappingFilter::Range(range) => range.intersect(line.range),
        MappingFilter::Name(pattern) => glob::matches(pattern, name).then_some(line.range),
    };
    let mut wanted: Vec<PageRange> = if spec.include.is_empty() {
        vec![line.range]
    } else {
        spec.include.iter().filter_map(part).collect()
    };
    wanted.sort_unstable_by_key(|r| r.start());
    let mut cursor = line.range.start();
    let mut left = Vec::with_capacity(wanted.len());
    for range in wanted {
        // Includes may overlap: each address once.
        if let Some(rest) = PageRange::new(range.start().max(cursor), range.end()) {
            cursor = rest.end();
            left.push(rest);
        }
    }
    for without in spec.exclude.iter().filter_map(part) {
        left = left
            .into_iter()
            .flat_map(|range| {
                let before = PageRange::new(range.start(), range.end().min(without.start()));
                let after = PageRange::new(range.start().max(without.end()), range.end());
                [before, after].into_iter().flatten()
            })
            .collect();
    }
    left
}

#[cfg(test)]
mod tests {
    use super::super::maps;
    use super::*;
    use crate::units::{Pid, VirtAddr};

    fn spec() -> TargetSpec {
        TargetSpec::of_pid(Pid(1))
    }

    /// Page numbers of ranges, and pages by why they are left out.
    type Gathered = (Vec<(u64, u64)>, Vec<(Exclusion, u64)>);

    fn gather(text: &str, known: Option<Attributes>, spec: &TargetSpec) -> Gathered {
        let mut eligible = Eligible::default();
        for line in maps::lines(text.as_bytes()) {
            eligible.add(line, known, spec);
        }
        let excluded = eligible.excluded();
        let pages = |r: &PageRange| (r.start().page_index(), r.end().page_index());
        (
            eligible.ranges.iter().map(pages).collect(),
            excluded.into_iter().map(|(e, b)| (e, b.pages())).collect(),
        )
    }

    const MAPS: &str = "\
1000-3000 r-xp 00000000 08:02 17 /usr/bin/app
3000-5000 rw-p 00000000 00:00 0 [heap]
5000-6000 rw-p 00000000 00:00 0 [anon:arena]
7000-9000 rw-s 00000000 00:01 5 /dev/zero (deleted)
9000-a000 rw-p 00000000 00:0f 6 /anon_hugepage (deleted)
b000-c000 ---p 00000000 00:00 0 
c000-d000 rw-p 00000000 00:00 0 
e000-f000 r-xp 00000000 00:00 0 [vdso]
";

    #[test]
    fn private_anonymous_memory_is_eligible_and_nothing_else() {
        let mut spec = spec();
        spec.move_shared = false;
        let (ranges, excluded) = gather(MAPS, Some(Attributes::default()), &spec);
        assert_eq!(ranges, [(3, 6), (0xc, 0xd)]);
        assert_eq!(
            excluded,
            [
                (Exclusion::Shared, 2),
                (Exclusion::File, 2),
                (Exclusion::Hugetlb, 1),
                (Exclusion::Special, 2),
            ]
        );
    }

    #[test]
    fn shared_memory_is_told_apart() {
        let (ranges, excluded) = gather(MAPS, Some(Attributes::default()), &spec());
        assert_eq!(ranges, [(3, 6), (0xc, 0xd)]);
        assert!(excluded.iter().all(|&(why, _)| why != Exclusion::Shared));
        let mut spec = spec();
        let part = PageRange::new(VirtAddr(0x8000), VirtAddr(0x9000));
        spec.include = vec![MappingFilter::Range(part.unwrap())];
        let mut eligible = Eligible::default();
        for line in maps::lines(MAPS.as_bytes()) {
            eligible.add(line, Some(Attributes::default()), &spec);
        }
        let [shared] = eligible.shared[..] else {
            panic!("{:?}", eligible.shared);
        };
        assert_eq!(Some(shared.range), part);
        assert_eq!(shared.offset, 0x1000, "a page into what is mapped");
    }

    #[test]
    fn what_is_not_known_is_not_touched() {
        let (ranges, _) = gather(MAPS, None, &spec());
        assert_eq!(ranges, []);
    }

    #[test]
    fn locked_and_bound_memory_is_the_owners_unless_configured() {
        let both = Attributes {
            locked: true,
            policy: true,
            ..Attributes::default()
        };
        let line = "3000-5000 rw-p 00000000 00:00 0 \n";
        let (_, excluded) = gather(line, Some(both), &spec());
        assert_eq!(excluded, [(Exclusion::Locked, 2)]);
        let mut spec = spec();
        spec.move_locked = true;
        let (_, excluded) = gather(line, Some(both), &spec);
        assert_eq!(excluded, [(Exclusion::Policy, 2)]);
        spec.move_bound = true;
        assert_eq!(gather(line, Some(both), &spec).0, [(3, 5)]);
    }

    #[test]
    fn filters_cut_by_address_and_by_name() {
        let range = |s: u64, e: u64| {
            MappingFilter::Range(PageRange::new(VirtAddr(s), VirtAddr(e)).unwrap())
        };
        let mut spec = spec();
        spec.include = vec![
            range(0x3000, 0x4000),
            MappingFilter::Name("\\[anon*".into()),
        ];
        spec.exclude = vec![range(0xc000, 0x1_0000)];
        let (ranges, excluded) = gather(MAPS, Some(Attributes::default()), &spec);
        assert_eq!(ranges, [(3, 4), (5, 6)]);
        assert!(excluded.contains(&(Exclusion::Configured, 4)));
    }
}
