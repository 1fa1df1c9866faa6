//! Memory that several processes of a target share: one target of its own, a pool.
//!
//! **Problem.** Several processes of one `[[targets]]` map the same memory (PostgreSQL's
//! buffers, a pool's memfd, what a server's workers have from before their fork). Were it
//! eligible in each, its pages would be sampled, counted and planned several times, and go
//! to and fro between the sockets of those who use it. Through one process alone only that is
//! seen which it has touched itself.
//!
//! **Approach.** Each memory object that two and more processes of a family map (processes
//! of one `[[targets]]` that may use the same nodes), or one process several times, is a
//! pool; so is what a family shares since a fork ([`forked`](super::forked)). A pool has
//! addresses as its lead has them: the process with most of it present. The others' ways to it are
//! its views. Its CPU time is what all of them spend on it: of each one's time the part that
//! the pool is of all that it has present. So is where that is spent: the pool is placed
//! once, for all.
//!
//! **Properties.** What is a pool's is no process's. A pool stays one, with its lead, while anybody maps it, or
//! while two of those that shared it since a fork do; another one leads when it has twice as
//! much present.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::forked::{Forked, Relative, SETTLED, Zero};
use super::maps::Line;
use crate::ports::{Pool, Sharing, View};
use crate::sys::root::Root;
use crate::tiering::observation::{Mapped, TargetId, TargetMap};
use crate::units::{Bytes, Nanos, NodeId, PageRange, Pid, VirtAddr};

/// Pools kept at most; what else is shared is left alone.
const POOLS_MOST: usize = 1024;
/// Views of one pool at most.
const VIEWS_MOST: usize = 4096;
/// Less is not worth a target.
const LEAST: Bytes = Bytes::from_mib(1);
/// So much more must another one have present to lead.
const ADVANTAGE: u64 = 2;

/// Whether a mapping is of shared memory that only processes map, and no file of a disk:
/// `mmap(MAP_SHARED | MAP_ANONYMOUS)`, System V, memfd, POSIX.
pub(super) fn is_shared_memory(line: Line<'_>) -> bool {
    let names: [&[u8]; 4] = [b"/dev/zero", b"/SYSV", b"/memfd:", b"/dev/shm/"];
    line.perms[3] == b's' && names.iter().any(|name| line.name.starts_with(name))
}

/// A part of a memory object that a process maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) range: PageRange,
    /// Where in the object it begins.
    pub(super) offset: u64,
}

impl Mapping {
    fn object(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    /// What is added to an address of `other` to have it here, where both map it.
    fn beside(&self, other: &Self) -> Option<(PageRange, u64)> {
        let base = |m: &Self| m.range.start().0.wrapping_sub(m.offset);
        let shift = base(self).wrapping_sub(base(other));
        let here = |at: VirtAddr| VirtAddr(at.0.wrapping_sub(shift));
        let range = PageRange::new(here(self.range.start()), here(self.range.end()))?;
        Some((range.intersect(other.range)?, shift))
    }
}

/// A process as it was read now.
#[derive(Debug)]
pub(super) struct Member<'a> {
    /// Its private memory is eligible there; it gets what is shared and nobody else's.
    pub(super) map: &'a mut TargetMap,
    pub(super) shared: &'a [Mapping],
    /// What is there of that: sorted, disjoint.
    pub(super) there: &'a [PageRange],
    /// How long it has been watched.
    pub(super) age: Nanos,
    pub(super) lent: &'a mut Lent,
}

/// Processes of one `[[targets]]` that may use the same nodes.
type Family = (u32, Option<Vec<NodeId>>);

/// What is shared.
#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    /// A memory object, by device and inode.
    Object((u64, u64)),
    /// Memory from before a fork.
    Forked,
}

/// A pool that is known.
#[derive(Debug)]
struct Known {
    id: TargetId,
    name: Arc<str>,
    family: Family,
    what: What,
    lead: TargetId,
    members: BTreeSet<TargetId>,
    /// CPU time spent on it so far, and where it was spent last.
    time: Nanos,
    cpu_share: Vec<(NodeId, f64)>,
}

/// A pool as it is found now.
#[derive(Debug)]
struct Formed {
    family: Family,
    what: What,
    /// By member, what it has present of it.
    present: BTreeMap<TargetId, u64>,
    lead: TargetId,
    id: Option<TargetId>,
    ranges: Vec<PageRange>,
    views: Vec<View>,
}

/// All pools.
#[derive(Debug)]
pub(super) struct Pools {
    root: Root,
    known: Vec<Known>,
    forked: Vec<(Family, Forked)>,
    zero: Zero,
    sharing: Sharing,
}

impl Pools {
    pub(super) fn new(root: &Root) -> Self {
        Self {
            root: root.clone(),
            known: Vec::new(),
            forked: Vec::new(),
            zero: Zero::new(root),
            sharing: Sharing::default(),
        }
    }

    /// The ways to each.
    pub(super) fn sharing(&self) -> &Sharing {
        &self.sharing
    }

    /// Finds what these processes share, and takes it from them. New pools are numbered
    /// from `next_id` on.
    pub(super) fn form(&mut self, members: &mut [Member<'_>], next_id: &mut u32) -> Vec<TargetMap> {
        let mut families: Vec<(Family, Vec<usize>)> = Vec::new();
        for (at, member) in members.iter().enumerate() {
            let family = (member.map.share.entry, member.map.allowed_nodes.clone());
            match families.iter_mut().find(|(f, _)| *f == family) {
                Some((_, who)) => who.push(at),
                None => families.push((family, vec![at])),
            }
        }
        let mut formed = Vec::new();
        for (family, who) in &families {
            self.objects(family, who, members, &mut formed);
            self.forks(family, who, members, &mut formed);
        }
        let is_there = |f: &Family| families.iter().any(|(family, _)| family == f);
        self.forked.retain(|(family, _)| is_there(family));
        formed.truncate(POOLS_MOST);
        self.settle(formed, members, next_id)
    }

    /// Pools of memory objects; what of these is no pool's goes back to the process.
    fn objects(
        &self,
        family: &Family,
        who: &[usize],
        members: &mut [Member<'_>],
        formed: &mut Vec<Formed>,
    ) {
        let mut users: BTreeMap<(u64, u64), Vec<(usize, Mapping)>> = BTreeMap::new();
        for &at in who {
            for mapping in members[at].shared {
                let object = users.entry(mapping.object()).or_default();
                object.push((at, *mapping));
            }
        }
        for (object, users) in users {
            let bytes: Bytes = users
                .iter()
                .map(|(_, m)| m.range.bytes())
                .max()
                .unwrap_or_default();
            let known = self.known(family, &What::Object(object));
            let several = users.iter().any(|(at, m)| {
                let others = users.iter().filter(|(a, o)| a != at || o.range != m.range);
                others.clone().any(|(_, other)| m.beside(other).is_some())
            });
            if bytes < LEAST || !(several || known.is_some()) {
                for (at, mapping) in users {
                    let there = members[at].there.iter();
                    let mine: Vec<PageRange> = there
                        .filter_map(|range| range.intersect(mapping.range))
                        .collect();
                    members[at].map.eligible.extend(mine);
                }
                continue;
            }
            let parts = shared_out(&users, members);
            if known.is_none() && parts.values().all(|bytes| *bytes == 0) {
                // Nobody has touched it yet.
                continue;
            }
            let present = |at: usize| members[at].map.mapped.shared.0;
            let old =
                known.and_then(|k| users.iter().find(|(at, _)| members[*at].map.id == k.lead));
            let most = users
                .iter()
                .map(|(at, _)| *at)
                .max_by_key(|&at| (present(at), std::cmp::Reverse(at)));
            let Some(most) = most else { continue };
            let lead = match old {
                Some(&(old, _)) if present(most) <= present(old).saturating_mul(ADVANTAGE) => old,
                _ => most,
            };
            formed.push(Formed {
                family: family.clone(),
                what: What::Object(object),
                present: parts,
                lead: members[lead].map.id,
                id: known.map(|known| known.id),
                ..object_views(lead, &users, members)
            });
        }
        for &at in who {
            members[at]
                .map
                .eligible
                .sort_unstable_by_key(|range| range.start());
        }
    }

    /// Pools of what is shared since a fork, which the processes lose.
    fn forks(
        &mut self,
        family: &Family,
        who: &[usize],
        members: &mut [Member<'_>],
        formed: &mut Vec<Formed>,
    ) {
        let at = self.forked.iter().position(|(f, _)| f == family);
        let at = at.unwrap_or_else(|| {
            self.forked.push((family.clone(), Forked::default()));
            self.forked.len() - 1
        });
        let settled: Vec<usize> = who
            .iter()
            .copied()
            .filter(|&at| members[at].age >= SETTLED)
            .collect();
        let relatives: Vec<Relative<'_>> = settled
            .iter()
            .map(|&at| &*members[at].map)
            .map(|map| Relative {
                id: map.id,
                pid: map.pid,
                ranges: &map.eligible,
            })
            .collect();
        let forked = &mut self.forked[at].1;
        forked.look(&self.root, &mut self.zero, &relatives);
        let forked = &self.forked[at].1;
        let mut groups = groups(forked);
        // The largest first, so that it keeps its name if it is parted.
        groups.sort_by_key(|group| std::cmp::Reverse(group.len()));
        let mut taken = BTreeSet::new();
        for group in groups {
            let known = self.known.iter().find(|known| {
                let alike = known.what == What::Forked && known.family == *family;
                alike && !taken.contains(&known.id) && !known.members.is_disjoint(&group)
            });
            taken.extend(known.map(|known| known.id));
            let mut pool = fork_views(forked, &group, known.map(|k| k.lead), &settled, members);
            pool.family.clone_from(family);
            pool.id = known.map(|known| known.id);
            let bytes: Bytes = pool.ranges.iter().map(|range| range.bytes()).sum();
            if bytes >= LEAST || known.is_some() {
                formed.push(pool);
            }
        }
        let lost: Vec<(TargetId, PageRange)> = forked
            .blocks()
            .flat_map(|(range, block)| {
                let keeps = |id: &&TargetId| !block.keepers.contains(*id);
                block
                    .sharers
                    .keys()
                    .filter(keeps)
                    .map(move |id| (*id, range))
            })
            .collect();
        for &at in &settled {
            let map = &mut *members[at].map;
            let mine = lost
                .iter()
                .filter(|(id, _)| *id == map.id)
                .map(|(_, range)| *range);
            map.eligible = without(&map.eligible, mine);
        }
    }

    /// The first of `NAME (shared)`, `NAME (shared 2)` and so on that no pool has.
    fn free_name(&self, of: &str, before: &[Known]) -> Arc<str> {
        let is_free = |name: &String| {
            let mut all = self.known.iter().chain(before);
            all.all(|known| *known.name != **name)
        };
        let further = (2..).map(|number| format!("{of} (shared {number})"));
        let mut names = std::iter::once(format!("{of} (shared)")).chain(further);
        names.find(is_free).unwrap_or_default().into()
    }

    fn known(&self, family: &Family, what: &What) -> Option<&Known> {
        self.known
            .iter()
            .find(|known| known.what == *what && known.family == *family)
    }

    /// Names the pools, and counts the CPU time of all.
    fn settle(
        &mut self,
        formed: Vec<Formed>,
        members: &mut [Member<'_>],
        next_id: &mut u32,
    ) -> Vec<TargetMap> {
        let mut before = std::mem::take(&mut self.known);
        let mut lent: Vec<BTreeMap<NodeId, f64>> = vec![BTreeMap::new(); formed.len()];
        let mut time = vec![Nanos::ZERO; formed.len()];
        for member in members.iter_mut() {
            let (id, mapped) = (member.map.id, member.map.mapped);
            let present = (mapped.anonymous + mapped.shared).0.max(1) as f64;
            let parts = formed
                .iter()
                .map(|pool| pool.present.get(&id).copied().unwrap_or(0));
            let parts: Vec<f64> = parts.map(|bytes| bytes as f64 / present).collect();
            let all: f64 = parts.iter().sum();
            let new = member.lent.work(member.map.cpu_time, all.min(1.0));
            member.map.memory_time = member.lent.counted();
            for (pool, part) in parts.iter().enumerate().filter(|(_, part)| **part > 0.0) {
                let mine = new.as_secs_f64() * part / all;
                time[pool] += Nanos::from_secs_f64(mine);
                for &(node, share) in &member.map.cpu_share {
                    *lent[pool].entry(node).or_default() += mine * share;
                }
            }
        }
        let mut maps = Vec::new();
        let mut pools = Vec::new();
        for ((pool, lent), time) in formed.into_iter().zip(lent).zip(time) {
            let Some(lead) = members.iter().find(|member| member.map.id == pool.lead) else {
                continue;
            };
            let old = before.iter().position(|known| Some(known.id) == pool.id);
            let mut known = if let Some(at) = old {
                before.swap_remove(at)
            } else {
                *next_id = next_id.saturating_add(1);
                Known {
                    id: TargetId(*next_id - 1),
                    name: self.free_name(&lead.map.name, &before),
                    family: pool.family.clone(),
                    what: pool.what.clone(),
                    lead: pool.lead,
                    members: BTreeSet::new(),
                    time: Nanos::ZERO,
                    cpu_share: Vec::new(),
                }
            };
            known.lead = pool.lead;
            known.members = pool.present.keys().copied().collect();
            known.time += time;
            let all: f64 = lent.values().sum();
            if all > 0.0 {
                known.cpu_share = lent.into_iter().map(|(node, t)| (node, t / all)).collect();
            }
            if known.cpu_share.is_empty() {
                known.cpu_share.clone_from(&lead.map.cpu_share);
            }
            let present = pool.present.values().copied().max().unwrap_or(0);
            maps.push(TargetMap {
                id: known.id,
                name: Arc::clone(&known.name),
                sharers: u32::try_from(pool.present.len()).unwrap_or(u32::MAX),
                eligible: pool.ranges,
                cpu_time: known.time,
                memory_time: known.time,
                cpu_share: known.cpu_share.clone(),
                excluded: Vec::new(),
                mapped: Mapped {
                    shared: Bytes(present),
                    ..Mapped::default()
                },
                ..(*lead.map).clone()
            });
            pools.push(Pool {
                target: known.id,
                views: pool.views,
            });
            self.known.push(known);
        }
        self.sharing = Sharing::of(pools);
        maps
    }
}

/// What each has present of an object: of all its shared memory the part that its mappings
/// of this object are.
fn shared_out(users: &[(usize, Mapping)], members: &[Member<'_>]) -> BTreeMap<TargetId, u64> {
    let mut present = BTreeMap::new();
    for (at, mapping) in users {
        let member = &members[*at];
        let all: Bytes = member.shared.iter().map(|m| m.range.bytes()).sum();
        let part = mapping.range.bytes().as_f64() / all.as_f64().max(1.0);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let mine = (member.map.mapped.shared.as_f64() * part) as u64;
        *present.entry(member.map.id).or_default() += mine;
    }
    present
}

/// The addresses of an object as its lead maps them, each part once, and all ways to it: the
/// lead's first, then the others', those first that have most present.
fn object_views(lead: usize, users: &[(usize, Mapping)], members: &[Member<'_>]) -> Formed {
    let mut parts: Vec<Mapping> = Vec::new();
    let mut views: Vec<View> = Vec::new();
    for (_, mapping) in users.iter().filter(|(at, _)| *at == lead) {
        // What of it lies there already is another way to that.
        if parts.iter().any(|part| mapping.beside(part).is_some()) {
            continue;
        }
        parts.push(*mapping);
        views.push(View {
            pid: members[lead].map.pid,
            range: mapping.range,
            shift: 0,
        });
    }
    let mut others: Vec<&(usize, Mapping)> = users.iter().collect();
    others.sort_by_key(|(at, _)| std::cmp::Reverse(members[*at].map.mapped.shared));
    for (at, mapping) in others {
        for part in &parts {
            let Some((range, shift)) = mapping.beside(part) else {
                continue;
            };
            if (*at == lead && shift == 0) || views.len() >= VIEWS_MOST {
                continue;
            }
            views.push(View {
                pid: members[*at].map.pid,
                range,
                shift,
            });
        }
    }
    let ranges = there(&views, members);
    Formed {
        family: (0, None),
        what: What::Forked,
        present: BTreeMap::new(),
        lead: members[lead].map.id,
        id: None,
        ranges,
        views,
    }
}

/// What of a pool is there for any of its views.
fn there(views: &[View], members: &[Member<'_>]) -> Vec<PageRange> {
    let mut found: Vec<PageRange> = Vec::new();
    for view in views {
        let Some(member) = members.iter().find(|member| member.map.pid == view.pid) else {
            continue;
        };
        let back = |addr: VirtAddr| VirtAddr(addr.0.wrapping_sub(view.shift));
        for range in member.there {
            let here = PageRange::new(back(range.start()), back(range.end()));
            found.extend(here.and_then(|here| here.intersect(view.range)));
        }
    }
    found.sort_unstable_by_key(|range| range.start());
    let mut joined: Vec<PageRange> = Vec::new();
    for range in found {
        match joined.last_mut() {
            Some(last) if range.start() <= last.end() => {
                *last = PageRange::new(last.start(), range.end().max(last.end())).unwrap_or(*last);
            }
            _ => joined.push(range),
        }
    }
    joined
}

/// Those who share with each other, directly or through others.
fn groups(forked: &Forked) -> Vec<BTreeSet<TargetId>> {
    let mut groups: Vec<BTreeSet<TargetId>> = Vec::new();
    for (_, block) in forked.blocks() {
        let mut joined: BTreeSet<TargetId> = block.sharers.keys().copied().collect();
        groups.retain(|group| {
            let apart = group.is_disjoint(&joined);
            if !apart {
                joined.extend(group);
            }
            apart
        });
        groups.push(joined);
    }
    groups
}

/// The pool of a group, led by who led it before if that still shares half as much as
/// another one.
fn fork_views(
    forked: &Forked,
    group: &BTreeSet<TargetId>,
    before: Option<TargetId>,
    settled: &[usize],
    members: &[Member<'_>],
) -> Formed {
    let blocks = || {
        forked
            .blocks()
            .filter(|(_, block)| block.sharers.keys().any(|id| group.contains(id)))
    };
    let mut present: BTreeMap<TargetId, u64> = BTreeMap::new();
    for (id, pages) in blocks().flat_map(|(_, block)| &block.sharers) {
        *present.entry(*id).or_default() += Bytes::from_pages(*pages).0;
    }
    let most = present
        .iter()
        .max_by_key(|(id, bytes)| (**bytes, std::cmp::Reverse(**id)));
    let (&most, &bytes) = most.unwrap_or((&TargetId(0), &0));
    let held = before.and_then(|id| present.get(&id));
    let lead = match (before, held) {
        (Some(before), Some(held)) if bytes <= held.saturating_mul(ADVANTAGE) => before,
        _ => most,
    };
    let mut order: Vec<(TargetId, Pid)> = (settled.iter())
        .map(|&at| (members[at].map.id, members[at].map.pid))
        .filter(|(id, _)| group.contains(id))
        .collect();
    order.sort_by_key(|(id, _)| (*id != lead, *id));
    let mut views: Vec<View> = Vec::new();
    for (id, pid) in order {
        let mine = blocks().filter(|(_, block)| block.sharers.contains_key(&id));
        for range in joined(mine.map(|(range, _)| range)) {
            if views.len() < VIEWS_MOST {
                views.push(View {
                    pid,
                    range,
                    shift: 0,
                });
            }
        }
    }
    Formed {
        family: (0, None),
        what: What::Forked,
        present,
        lead,
        id: None,
        ranges: joined(blocks().map(|(range, _)| range)),
        views,
    }
}

/// Ranges in order, those that touch as one.
fn joined(ranges: impl Iterator<Item = PageRange>) -> Vec<PageRange> {
    let mut all: Vec<PageRange> = Vec::new();
    for range in ranges {
        match all
            .last_mut()
            .and_then(|last| Some((last.join(range)?, last)))
        {
            Some((longer, last)) => *last = longer,
            None => all.push(range),
        }
    }
    all
}

/// What is left of sorted, disjoint ranges without these, which are so too.
fn without(ranges: &[PageRange], lost: impl Iterator<Item = PageRange>) -> Vec<PageRange> {
    let mut lost = lost.peekable();
    let mut left = Vec::new();
    for &range in ranges {
        let mut from = range.start();
        while lost.next_if(|gone| gone.end() <= range.start()).is_some() {}
        while let Some(gone) = lost.peek().filter(|gone| gone.start() < range.end()) {
            left.extend(PageRange::new(from, gone.start()));
            from = from.max(gone.end());
            if gone.end() > range.end() {
                break;
            }
            lost.next();
        }
        left.extend(PageRange::new(from, range.end()));
    }
    left
}

/// A process's CPU time, and the part that works on what it shares.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lent {
    /// When it was looked at before.
    before: Option<Nanos>,
    /// What counts for its own memory so far.
    counted: Nanos,
}

impl Lent {
    /// It has used so much CPU time by now, of which `share` counts for pools from
    /// now on. Returns what it lends.
    fn work(&mut self, now: Nanos, share: f64) -> Nanos {
        let new = now.saturating_sub(self.before.unwrap_or(now));
        self.before = Some(now);
        let lent = Nanos::from_secs_f64(new.as_secs_f64() * share).min(new);
        self.counted += new.saturating_sub(lent);
        lent
    }

    /// What counts for its own memory since it was looked at first.
    fn counted(&self) -> Nanos {
        self.counted
    }
}

#[cfg(test)]
#[path = "shared_tests.rs"]
mod tests;
