//! Finding the targets and their mappings.
//!
//! **Who.** Selectors are looked up in `/proc` and below the cgroup root as
//! often as costs at most 1 % of the time ([`SCAN_SHARE`]). A process is held by its
//! pidfd and its start time, so that no other with the same pid is taken for
//! it, and by its open `maps`, which stays with one address space: when that
//! reads nothing though the process lives, it runs another program now. We
//! ourselves and kernel threads are never targets.
//!
//! **What.** [`eligible`] says which mappings; `maps` is read every time,
//! what it does not tell as [`attributes`] says. [`present`] says what of them is there.
//!
//! **Where it runs.** Each thread's last CPU, weighted with the CPU time that
//! the thread used since it was looked at before.
//!
//! A target ends for us when its process does, when it leaves the cgroup that
//! it was selected by, or when no selector names it any more; only the first
//! two are events.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::sync::Arc;

use super::clock::monotonic;
use super::holds::Hold;
use super::own_pages::own_pid;
use super::pagemap::Pagemap;
use super::root::Root;
use crate::ports::{PortError, Selector, Sharing, TargetEvent, TargetSpec, Targets};
use crate::tiering::observation::{Mapped, Share, TargetId, TargetMap};
use crate::tiering::tier::{Node, TierTable};
use crate::units::text::printable;
use crate::units::{Nanos, NodeId, PageRange, Pid};

mod attributes;
mod eligible;
mod forked;
mod glob;
pub(in crate::sys) mod maps;
mod present;
mod process;
mod select;
mod shared;

pub(in crate::sys) use attributes::policies;
use attributes::{Attributes, Known};
use eligible::Eligible;
use present::{Presence, Terms};
use process::Status;
pub use process::headless;
pub(in crate::sys) use process::{Handle, NANOS_PER_TICK, Stat, mems_allowed};
use shared::{Lent, Mapping, Member, Pools};

/// Looking for targets may take this share of elapsed time: 1 in so many.
const SCAN_SHARE: u64 = 100;
/// Threads of a target whose CPU is looked at, at most: of more every n-th.
const THREADS: usize = 1024;

/// A process that is watched.
#[derive(Debug)]
struct Watched {
    id: TargetId,
    start_time: u64,
    spec: TargetSpec,
    /// Its place among all.
    entry: u32,
    /// Found as the child of one that was selected.
    child: bool,
    name: Arc<str>,
    /// It may bear the name of what ran before still: an exec changes the memory first.
    is_new: bool,
    handle: Arc<Handle>,
    known: Known,
    presence: Presence,
    /// Locked memory when attributes were last read.
    locked_kib: u64,
    thread_times: HashMap<i32, Nanos>,
    cpu_share: Vec<(NodeId, f64)>,
    lent: Lent,
    /// The shared memory that it maps, and what is there of it.
    shared: Vec<Mapping>,
    there: Vec<PageRange>,
    /// When it was attached.
    since: Nanos,
}

/// What reading a target came to.
enum Reading {
    Map(Box<TargetMap>),
    Ended,
    /// It runs another program.
    Replaced,
    Unwatchable(String),
}

/// Processes below `/proc`.
#[derive(Debug)]
pub struct SysTargets {
    root: Root,
    /// Nodes with memory that is in the table.
    nodes: Vec<NodeId>,
    cpu_node: HashMap<u32, NodeId>,
    /// Nodes that our own cpuset allows, at the last look.
    own_nodes: Option<Vec<NodeId>>,
    specs: Vec<TargetSpec>,
    watched: BTreeMap<Pid, Watched>,
    next_id: u32,
    /// Not watchable, with their start time (0: there is none): told once.
    refused: BTreeMap<Pid, u64>,
    /// Named by pid, and gone: whoever gets the pid next is not meant.
    spent: BTreeSet<Pid>,
    next_scan: Nanos,
    /// Targets that share the time for reading attributes.
    sharers: usize,
    pools: Pools,
    text: Vec<u8>,
    vmas: Vec<PageRange>,
    attributes: Vec<Option<Attributes>>,
}

impl SysTargets {
    /// Over the kernel below `root`; `tiers` tells which CPU is on which node.
    pub fn new(root: &Root, tiers: &TierTable) -> Self {
        Self {
            root: root.clone(),
            nodes: tiers.used().map(|n| n.id).collect(),
            cpu_node: cpu_nodes(tiers),
            own_nodes: None,
            specs: Vec::new(),
            watched: BTreeMap::new(),
            next_id: 0,
            refused: BTreeMap::new(),
            spent: BTreeSet::new(),
            next_scan: Nanos::ZERO,
            sharers: 1,
            pools: Pools::new(root),
            text: Vec::new(),
            vmas: Vec::new(),
            attributes: Vec::new(),
        }
    }

    /// Brings the watched processes up to date with what the selectors mean.
    fn discover(&mut self, events: &mut Vec<TargetEvent>) -> Result<(), PortError> {
        let began = monotonic();
        let index_of = |spec: &TargetSpec| self.specs.iter().position(|s| s == spec);
        let roots: BTreeMap<Pid, usize> = self
            .watched
            .iter()
            .filter_map(|(&pid, w)| Some((pid, index_of(&w.spec)?)))
            .collect();
        let found = select::find(&self.root, &self.specs, &roots)?;
        let meant: BTreeSet<Pid> = found.iter().map(|f| f.pid).collect();
        for one in found {
            if !self.watched.contains_key(&one.pid) {
                self.attach(&one, events);
            }
        }
        self.leave_cgroups(&meant, events);
        self.refused.retain(|pid, _| meant.contains(pid));
        let ended = monotonic();
        let cost = ended.saturating_sub(began);
        self.next_scan = ended + Nanos(cost.0.saturating_mul(SCAN_SHARE));
        Ok(())
    }

    /// Lets go what was selected by its cgroup and is no longer there.
    fn leave_cgroups(&mut self, meant: &BTreeSet<Pid>, events: &mut Vec<TargetEvent>) {
        self.watched.retain(|&pid, w| {
            let by_cgroup = matches!(w.spec.selector, Selector::Cgroup(_) | Selector::Unit(_));
            let stays = w.child || !by_cgroup || meant.contains(&pid);
            if !stays {
                events.push(TargetEvent::Ended {
                    pid,
                    name: w.name.to_string(),
                });
            }
            stays
        });
    }

    fn attach(&mut self, found: &select::Found, events: &mut Vec<TargetEvent>) {
        let pid = found.pid;
        let spec = &self.specs[found.spec];
        let by_pid = !found.child && matches!(spec.selector, Selector::Pid(_));
        if by_pid && self.spent.contains(&pid) {
            return;
        }
        // A pattern that happens to fit a kernel thread or ourselves means
        // somebody else; only who named it should hear of it.
        let named = match &spec.selector {
            Selector::Pid(_) => by_pid,
            Selector::Comm(pattern) => glob::is_literal(pattern),
            _ => false,
        };
        let start_time = Stat::of(&self.root, pid).map_or(0, |s| s.start_time);
        let refusal = match self.open(pid, found, spec) {
            Ok(watched) => {
                self.refused.remove(&pid);
                self.next_id = self.next_id.saturating_add(1);
                events.push(TargetEvent::Attached {
                    pid,
                    name: watched.name.to_string(),
                });
                self.watched.insert(pid, watched);
                return;
            }
            Err(refusal) => refusal,
        };
        let why = match refusal {
            Refusal::Gone if by_pid => "no such process".to_owned(),
            Refusal::Gone => return,
            Refusal::NotMeant(_) if !named => return,
            Refusal::NotMeant(why) | Refusal::Forbidden(why) => why,
        };
        if self.refused.insert(pid, start_time) != Some(start_time) {
            events.push(TargetEvent::Unwatchable { pid, why });
        }
    }

    /// A hold on a process, unless it must not or cannot be had.
    fn open(&self, pid: Pid, found: &select::Found, spec: &TargetSpec) -> Result<Watched, Refusal> {
        let status = Status::of(&self.root, pid).ok_or(Refusal::Gone)?;
        let process = status.process.unwrap_or(pid);
        if self.root == Root::host() && u32::try_from(process.0) == Ok(std::process::id()) {
            return Err(Refusal::NotMeant("it is hmkeeper itself".into()));
        }
        if process != pid {
            return Err(Refusal::NotMeant(format!("it is a thread of {process}")));
        }
        let stat = Stat::of(&self.root, pid).ok_or(Refusal::Gone)?;
        if stat.kernel_thread {
            return Err(Refusal::NotMeant("it is a kernel thread".into()));
        }
        if stat.is_dead() {
            let headless = process::headless(&self.root, pid);
            return Err(headless.map_or(Refusal::Gone, Refusal::Forbidden));
        }
        let handle = Handle::open(&self.root, pid).map_err(|why| {
            if why.is_gone() {
                Refusal::Gone
            } else {
                Refusal::Forbidden(why.explained())
            }
        })?;
        // One that is ending has given its memory back before it is a zombie.
        if !handle.has_memory() {
            return Err(Refusal::Gone);
        }
        // The pid may have changed hands between the first look and the hold.
        match Stat::of(&self.root, pid) {
            Some(again) if again.start_time == stat.start_time && !handle.has_ended() => {}
            _ => return Err(Refusal::Gone),
        }
        Ok(Watched {
            id: TargetId(self.next_id),
            start_time: stat.start_time,
            name: name(spec, &stat),
            is_new: false,
            spec: spec.clone(),
            entry: entry(found.spec),
            child: found.child,
            handle: Arc::new(handle),
            known: Known::default(),
            presence: Presence::default(),
            locked_kib: 0,
            thread_times: HashMap::new(),
            cpu_share: Vec::new(),
            lent: Lent::default(),
            shared: Vec::new(),
            there: Vec::new(),
            since: monotonic(),
        })
    }

    /// Looks at one target now.
    fn read_one(&mut self, pid: Pid, watched: &mut Watched) -> Reading {
        let Some(stat) = Stat::of(&self.root, pid) else {
            return Reading::Ended;
        };
        if watched.handle.has_ended() || stat.start_time != watched.start_time {
            return Reading::Ended;
        }
        if std::mem::take(&mut watched.is_new) {
            watched.name = name(&watched.spec, &stat);
        }
        let Some(status) = Status::of(&self.root, pid) else {
            return Reading::Ended;
        };
        if let Err(e) = watched.handle.read_maps(&mut self.text) {
            return Reading::Unwatchable(e.to_string());
        }
        if self.text.is_empty() {
            if let Some(why) = stat
                .is_dead()
                .then(|| process::headless(&self.root, pid))
                .flatten()
            {
                // Told once: when it is found again it is known to be refused.
                self.refused.insert(pid, stat.start_time);
                return Reading::Unwatchable(why);
            }
            // While it is being torn down it has no memory but has not ended.
            return if stat.is_dead() || watched.handle.has_ended() {
                Reading::Ended
            } else {
                Reading::Replaced
            };
        }
        self.learn_attributes(pid, watched, &status);
        let mut eligible = Eligible::default();
        for (line, known) in maps::lines(&self.text).zip(&self.attributes) {
            eligible.add(line, *known, &watched.spec);
        }
        watched.shared = std::mem::take(&mut eligible.shared);
        self.share_cpu(pid, watched);
        let mapped = status.mapped();
        self.narrow(pid, watched, &mut eligible.ranges, mapped);
        let allowed = both(status.mems_allowed, self.own_nodes.as_deref())
            .filter(|allowed| !self.nodes.iter().all(|n| allowed.contains(n)))
            .map(|mut allowed| {
                allowed.retain(|n| self.nodes.contains(n));
                allowed
            });
        Reading::Map(Box::new(TargetMap {
            id: watched.id,
            pid,
            name: Arc::clone(&watched.name),
            sharers: 0,
            kind: watched.spec.kind,
            excluded: eligible.excluded(),
            eligible: eligible.ranges,
            cpu_time: process::cpu_time(&self.root, pid, &stat),
            memory_time: Nanos::ZERO,
            cpu_share: watched.cpu_share.clone(),
            allowed_nodes: allowed,
            mapped,
            share: Share {
                entry: watched.entry,
                weight: watched.spec.weight,
                floor: watched.spec.floor,
            },
        }))
    }

    /// Leaves of what may be moved what is there.
    fn narrow(&self, pid: Pid, watched: &mut Watched, ranges: &mut Vec<PageRange>, mapped: Mapped) {
        let terms = Terms {
            now: monotonic(),
            sharers: self.sharers,
            resident: mapped.anonymous + mapped.shared + mapped.swapped,
        };
        let handle = &watched.handle;
        let open = || {
            let map = Pagemap::open(&self.root, pid).ok()?;
            (!handle.has_ended()).then_some(map)
        };
        let process = (&self.root, pid);
        // Shared memory may be as full of holes: both together, and apart again.
        let shared = watched.shared.iter().map(|mapping| mapping.range);
        let mut all: Vec<PageRange> = ranges.iter().copied().chain(shared).collect();
        all.sort_unstable_by_key(|range| range.start());
        watched.presence.narrow(&mut all, process, terms, open);
        let within = |range: &PageRange| {
            let after = watched
                .shared
                .partition_point(|m| m.range.start() <= range.start());
            let mapping = after.checked_sub(1).map(|at| watched.shared[at].range);
            mapping.is_some_and(|mapping| mapping.covers(*range))
        };
        (watched.there, *ranges) = all.into_iter().partition(within);
    }

    /// Leaves in `self.attributes` what is known of each mapping in `self.text`.
    fn learn_attributes(&mut self, pid: Pid, watched: &mut Watched, status: &Status) {
        self.vmas.clear();
        self.vmas.extend(maps::lines(&self.text).map(|l| l.range));
        let cut = watched.known.carry(&self.vmas, &mut self.attributes);
        let unknown = maps::lines(&self.text)
            .zip(&self.attributes)
            .any(|(line, known)| known.is_none() && eligible::is_open(line, &watched.spec));
        let doubted = self.root.holds().is_doubted(pid);
        let urgent = unknown || cut || doubted || status.locked_kib != watched.locked_kib;
        let began = monotonic();
        if !watched.known.is_due(began, urgent, self.sharers) {
            if status.locked_kib > watched.locked_kib {
                // Some of it was locked, and it is not yet time to see which.
                self.attributes.fill(None);
            }
            return;
        }
        let mut read = vec![None; self.vmas.len()];
        match fs::read(self.root.proc(format!("{pid}/numa_maps"))) {
            Ok(text) => attributes::read_numa_maps(&text, &self.vmas, &mut read),
            // A kernel without NUMA has no policies either.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                read.fill(Some(Attributes::default()));
            }
            // It has ended, or may not be read: nothing is known.
            Err(_) => {}
        }
        if status.locked_kib > 0 {
            match fs::read(self.root.proc(format!("{pid}/smaps"))) {
                Ok(text) => attributes::read_smaps(&text, &self.vmas, &mut read),
                Err(_) => read.fill(None),
            }
        }
        let ended = monotonic();
        let pairs = self.vmas.iter().copied().zip(read.iter().copied());
        watched
            .known
            .replace(pairs, ended, ended.saturating_sub(began));
        watched.locked_kib = status.locked_kib;
        self.attributes = read;
        self.root.holds().is_settled(pid);
    }

    /// Brings `cpu_share` up to date: unchanged when no thread ran.
    fn share_cpu(&self, pid: Pid, watched: &mut Watched) {
        let threads = process::threads(&self.root, pid);
        let step = threads.len().div_ceil(THREADS).max(1);
        let mut times = HashMap::with_capacity(threads.len().min(THREADS));
        let mut used: BTreeMap<NodeId, u64> = BTreeMap::new();
        let mut present: BTreeMap<NodeId, u64> = BTreeMap::new();
        for &tid in threads.iter().step_by(step) {
            let Some(stat) = Stat::of_thread(&self.root, pid, tid) else {
                continue;
            };
            let time = process::thread_time(&self.root, pid, tid, &stat);
            let before = watched
                .thread_times
                .get(&tid)
                .copied()
                .unwrap_or(Nanos::ZERO);
            times.insert(tid, time);
            if let Some(&node) = self.cpu_node.get(&stat.processor) {
                *used.entry(node).or_default() += time.saturating_sub(before).0;
                *present.entry(node).or_default() += 1;
            }
        }
        watched.thread_times = times;
        let total: u64 = used.values().sum();
        if total > 0 {
            watched.cpu_share = shares(&used);
        } else if watched.cpu_share.is_empty() {
            watched.cpu_share = shares(&present);
        }
    }
}

/// Which CPU is on which node.
fn cpu_nodes(tiers: &TierTable) -> HashMap<u32, NodeId> {
    let on = |node: &Node| {
        node.cpus
            .iter()
            .map(|&cpu| (cpu, node.id))
            .collect::<Vec<_>>()
    };
    tiers.nodes().iter().flat_map(on).collect()
}

/// Nodes that a target may use and that we may move to: `None` is all.
fn both(theirs: Option<Vec<NodeId>>, own: Option<&[NodeId]>) -> Option<Vec<NodeId>> {
    match (theirs, own) {
        (Some(mut theirs), Some(own)) => {
            theirs.retain(|node| own.contains(node));
            Some(theirs)
        }
        (None, Some(own)) => Some(own.to_vec()),
        (theirs, None) => theirs,
    }
}

/// Why a process is not watched.
#[derive(Debug)]
enum Refusal {
    /// There is none.
    Gone,
    /// It is none that anybody can mean.
    NotMeant(String),
    /// It would be, but the kernel refuses.
    Forbidden(String),
}

/// Weights as parts of one.
fn shares(weights: &BTreeMap<NodeId, u64>) -> Vec<(NodeId, f64)> {
    let total: u64 = weights.values().sum();
    weights
        .iter()
        .filter(|&(_, &weight)| weight > 0)
        .map(|(&node, &weight)| (node, weight as f64 / total as f64))
        .collect()
}

/// The number of a selector by its place.
fn entry(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

fn name(spec: &TargetSpec, stat: &Stat) -> Arc<str> {
    printable(spec.name.as_deref().unwrap_or(&stat.comm)).into()
}

impl Targets for SysTargets {
    fn select(&mut self, specs: &[TargetSpec]) {
        specs.clone_into(&mut self.specs);
        // One that is still meant keeps its id, and what is known of it.
        self.watched.retain(|_, watched| {
            let same = |spec: &&TargetSpec| {
                spec.selector == watched.spec.selector && (!watched.child || spec.follow_children)
            };
            let Some(at) = specs.iter().position(|spec| same(&spec)) else {
                return false;
            };
            let spec = &specs[at];
            watched.spec = spec.clone();
            watched.entry = entry(at);
            if let Some(name) = &spec.name {
                watched.name = name.as_str().into();
            }
            true
        });
        let named: BTreeSet<Pid> = specs
            .iter()
            .filter_map(|spec| match spec.selector {
                Selector::Pid(pid) => Some(pid),
                _ => None,
            })
            .collect();
        self.spent.retain(|pid| named.contains(pid));
        self.next_scan = Nanos::ZERO;
    }

    fn retier(&mut self, tiers: &TierTable) {
        self.nodes = tiers.used().map(|n| n.id).collect();
        self.cpu_node = cpu_nodes(tiers);
    }

    fn read(&mut self, events: &mut Vec<TargetEvent>) -> Result<Vec<TargetMap>, PortError> {
        if monotonic() >= self.next_scan {
            self.discover(events)?;
        }
        self.own_nodes = process::mems_allowed(&self.root, own_pid());
        let mut watched = std::mem::take(&mut self.watched);
        self.sharers = watched.len();
        let mut all = Vec::with_capacity(watched.len());
        watched.retain(|&pid, one| {
            let mut reading = self.read_one(pid, one);
            if matches!(reading, Reading::Replaced) {
                reading = self.follow_exec(pid, one, events);
            }
            let name = one.name.to_string();
            match reading {
                Reading::Map(map) => {
                    all.push(*map);
                    return true;
                }
                Reading::Unwatchable(why) => events.push(TargetEvent::Unwatchable { pid, why }),
                Reading::Ended | Reading::Replaced => {
                    events.push(TargetEvent::Ended { pid, name });
                }
            }
            if matches!(one.spec.selector, Selector::Pid(named) if named == pid) {
                self.spent.insert(pid);
            }
            false
        });
        self.watched = watched;
        self.hold();
        self.pool(&mut all);
        all.sort_by_key(|t| t.id);
        Ok(all)
    }

    fn sharing(&self) -> Sharing {
        self.pools.sharing().clone()
    }
}

impl SysTargets {
    /// Tells whoever acts on targets who they are.
    fn hold(&self) {
        let all = self.watched.iter();
        let holds = all.map(|(&pid, one)| Hold::new(pid, &one.handle, one.spec.move_bound));
        self.root.holds().set(holds);
    }

    /// Takes what several of these share from them, as targets of its own.
    fn pool(&mut self, maps: &mut Vec<TargetMap>) {
        let now = monotonic();
        let mut members: Vec<Member<'_>> = Vec::with_capacity(maps.len());
        // Both are in the order of pids.
        let mut maps_by_pid = maps.iter_mut().peekable();
        for (pid, one) in &mut self.watched {
            if let Some(map) = maps_by_pid.next_if(|map| map.pid == *pid) {
                members.push(Member {
                    map,
                    shared: &one.shared,
                    there: &one.there,
                    age: now.saturating_sub(one.since),
                    lent: &mut one.lent,
                });
            }
        }
        let pools = self.pools.form(&mut members, &mut self.next_id);
        maps.extend(pools);
    }

    /// Takes hold of the program that a target runs now, under a new id.
    fn follow_exec(
        &mut self,
        pid: Pid,
        watched: &mut Watched,
        events: &mut Vec<TargetEvent>,
    ) -> Reading {
        let found = select::Found {
            pid,
            spec: 0,
            child: watched.child,
        };
        let spec = watched.spec.clone();
        let start_time = watched.start_time;
        match self.open(pid, &found, &spec) {
            // Ended, and the pid is somebody else's already.
            Ok(new) if new.start_time != start_time => Reading::Ended,
            Ok(new) => {
                self.next_id = self.next_id.saturating_add(1);
                *watched = new;
                events.push(TargetEvent::Replaced {
                    pid,
                    name: watched.name.to_string(),
                });
                let reading = self.read_one(pid, watched);
                watched.is_new = true;
                reading
            }
            Err(Refusal::Gone) => Reading::Ended,
            Err(Refusal::NotMeant(why) | Refusal::Forbidden(why)) => Reading::Unwatchable(why),
        }
    }
}
