//! How late each memory node answers, by asking it.
//!
//! **Unit.** Nanoseconds of one read that no cache holds.
//!
//! **Approach.** A few short chains of reads, each of which needs what the one before brought:
//! they follow each other through a small buffer on the node, in an order that nothing
//! foresees. Where their pages are is looked up before. What was read is evicted again. The
//! median chain is believed, so that an interrupt or a busy CPU spoils nothing. Where there are
//! several sockets, a CPU of the nearest one asks. Idle is the least mean of [`BLOCK`] turns in a row, of which the first
//! follow each other when the probe is made: of single turns the least would be chance. It grows by [`RISES`] an hour.
//!
//! **Cost.** [`CHAINS`] × [`READS`] reads per node and turn, 50 to 200 µs of CPU time, and
//! [`SIZE`] of each node.
//!
//! **Source.** A pointer chase as lmbench's `lat_mem_rd`; that latency under load tells where
//! memory should lie is Colloid's.
//!
//! **Limits.** A node that has been busy whenever it was asked seems idle, and so does one that has been for so long that
//! idle has grown as far: 1.2 times as late is less than a tenth late after five hours, twice as late after thirty. One whose buffer was
//! moved away nevertheless is not asked. On CPUs whose caches a program cannot have give up a
//! line nobody is asked.

use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid as NixPid;

use super::move_pages;
use super::numa::{Buffer, HugePages, WORDS_PER_PAGE};
use crate::tiering::observation::{NodeUsage, ReadLatency};
use crate::tiering::rng::Rng;
use crate::tiering::tier::TierTable;
use crate::units::{Bytes, Nanos, NodeId, PAGE_BYTES, VirtAddr};

/// Chains of one turn, and reads of each.
const CHAINS: usize = 8;
const READS: usize = 64;
/// Turns whose mean may be idle.
const BLOCK: u32 = 8;
/// What idle grows by in an hour: a block that was quick by chance is not what others are measured by for ever.
const RISES: f64 = 1.02;
/// Of the buffer on each node.
const SIZE: Bytes = Bytes::from_mib(2);
/// A node has to have so many times that free, or is not asked. Not beyond its reserve: where the
/// page cache takes what is free, it never has more, and the kernel soon frees as much again.
const FREE: u64 = 8;
/// Words from one place to the next: two lines, since CPUs fetch them in pairs.
const STRIDE: usize = 16;

/// See the module.
#[derive(Debug)]
pub struct LatencyProbe {
    nodes: Vec<Probed>,
    /// Whether it matters which CPU asks.
    pins: bool,
}

#[derive(Debug)]
struct Probed {
    node: NodeId,
    /// CPUs nearest to it.
    cpus: Vec<u32>,
    buffer: Buffer,
    /// Its ring, in words, and where in it the next chain begins.
    order: Vec<u32>,
    at: usize,
    /// Nanoseconds of the turns of the block under way, how many these are, and when it began.
    block: (f64, u32),
    began: Instant,
    idle: f64,
}

impl LatencyProbe {
    /// Takes its buffers, on each node that has room for one.
    pub fn new(tiers: &TierTable, usage: &[NodeUsage]) -> Self {
        let has_room = |node: NodeId| {
            let usage = usage.iter().find(|usage| usage.node == node);
            let has = usage.is_some_and(|u| u.free.0 >= SIZE.0 * FREE);
            if !has {
                tracing::info!("node {node} is not asked how late it answers: it is full");
            }
            has
        };
        let ids = tiers.used().map(|node| node.id);
        let ids = ids.filter(|&node| CAN_EVICT && has_room(node));
        let mut probe = Self {
            nodes: ids.filter_map(|node| Probed::on(tiers, node)).collect(),
            pins: tiers.initiators().count() > 1,
        };
        for _ in 0..BLOCK {
            probe.ask(&mut usage.to_vec());
        }
        probe
    }

    /// Asks every node, and notes what each says with its usage.
    pub fn ask(&mut self, usage: &mut [NodeUsage]) {
        let itself = NixPid::from_raw(0);
        let allowed = if self.pins {
            // From whichever socket it happens to run on it would not be comparable.
            let Ok(allowed) = sched_getaffinity(itself) else {
                return;
            };
            Some(allowed)
        } else {
            None
        };
        for probed in &mut self.nodes {
            let Some(usage) = usage.iter_mut().find(|u| u.node == probed.node) else {
                continue;
            };
            if let Some(allowed) = &allowed {
                // Never where whoever started us did not want us to run: then from afar.
                let near = both(allowed, &probed.cpus).unwrap_or(*allowed);
                if sched_setaffinity(itself, &near).is_err() {
                    continue;
                }
            }
            usage.latency = probed.is_there().then(|| probed.ask());
        }
        if let Some(allowed) = allowed
            && let Err(error) = sched_setaffinity(itself, &allowed)
        {
            tracing::warn!(%error, "cannot go back to the CPUs that it ran on");
        }
    }
}

/// Of these CPUs those that are allowed, if any is.
fn both(allowed: &CpuSet, cpus: &[u32]) -> Option<CpuSet> {
    let mut set = CpuSet::new();
    let mut any = false;
    for &cpu in cpus {
        if allowed.is_set(cpu as usize).unwrap_or(false) {
            any |= set.set(cpu as usize).is_ok();
        }
    }
    any.then_some(set)
}

impl Probed {
    fn on(tiers: &TierTable, node: NodeId) -> Option<Self> {
        let latency = |from: NodeId| tiers.path(from, node).map(|path| path.latency.value);
        let nearest = tiers.initiators().min_by_key(|from| latency(from.id))?;
        let buffer = Buffer::new(SIZE, HugePages::Wanted).and_then(|buffer| {
            // Not so that the kernel had to reclaim until there is room on this very node.
            buffer.prefer(node)?;
            Ok(buffer)
        });
        let buffer = buffer
            .inspect_err(|error| tracing::debug!(%node, %error, "is not asked how late it answers"))
            .ok()?;
        let order = link(&buffer, u64::from(node.0));
        // The kernel's tiering demotes what is bound, too, but nothing that is locked.
        if let Err(error) = buffer.lock(buffer.page_count()) {
            tracing::debug!(%node, %error, "the probe's memory may be demoted");
        }
        let probed = Self {
            node,
            cpus: nearest.cpus.clone(),
            order,
            buffer,
            at: 0,
            block: (0.0, 0),
            began: Instant::now(),
            idle: f64::INFINITY,
        };
        let pages: Vec<VirtAddr> = probed.buffer.range().iter_pages().collect();
        if probed.are_there(&pages) {
            return Some(probed);
        }
        tracing::info!("node {node} is not asked how late it answers: it has no room for that");
        None
    }

    /// Whether what is asked next lies where it was put.
    fn is_there(&self) -> bool {
        let start = self.buffer.range().start().0;
        let ring = self.order.iter().cycle().skip(self.at).step_by(READS);
        let page = |&word: &u32| VirtAddr(start + 8 * u64::from(word)).align_down(PAGE_BYTES);
        let pages: Vec<VirtAddr> = ring.take(CHAINS).map(page).collect();
        self.are_there(&pages)
    }

    fn are_there(&self, pages: &[VirtAddr]) -> bool {
        move_pages::locate(None, pages)
            .is_ok_and(|nodes| nodes.iter().all(|&node| node == Some(self.node)))
    }

    fn ask(&mut self) -> ReadLatency {
        let mut chains = [0.0; CHAINS];
        for nanos in &mut chains {
            *nanos = self.chain();
        }
        chains.sort_by(f64::total_cmp);
        let now = chains[CHAINS / 2];
        self.block = (self.block.0 + now, self.block.1 + 1);
        if self.block.1 == BLOCK {
            let mean = self.block.0 / f64::from(BLOCK);
            let hours = self.began.elapsed().as_secs_f64() / 3600.0;
            self.idle = mean.min(RISES.powf(hours) * self.idle);
            (self.block, self.began) = ((0.0, 0), Instant::now());
        }
        let idle = if self.idle.is_finite() {
            self.idle
        } else {
            now
        };
        let nanos = |ns: f64| Nanos::from_secs_f64(ns / 1e9);
        ReadLatency {
            now: nanos(now),
            idle: nanos(idle),
        }
    }

    /// Nanoseconds of each read of one chain.
    fn chain(&mut self) -> f64 {
        let words = self.buffer.words();
        let ring = self.order.iter().cycle().skip(self.at);
        let places = || ring.clone().take(READS).map(|&word| word as usize);
        for place in places() {
            black_box(words[place / WORDS_PER_PAGE * WORDS_PER_PAGE].load(Relaxed));
        }
        let mut word = self.order[self.at] as usize;
        let began = Instant::now();
        for _ in 0..READS {
            word = usize::try_from(words[word].load(Relaxed)).unwrap_or(0);
        }
        black_box(word);
        let elapsed = began.elapsed();
        for place in places() {
            evict(words[place].as_ptr());
        }
        self.at = (self.at + READS) % self.order.len();
        elapsed.as_nanos() as f64 / READS as f64
    }
}

/// Links the places of a buffer to one ring, in an order that nothing foresees; returns it, in
/// words. The first place of each page is none: it is for having the page's translation at hand.
fn link(buffer: &Buffer, seed: u64) -> Vec<u32> {
    let words = buffer.words();
    let count = u32::try_from(words.len()).unwrap_or(u32::MAX);
    let places = (0..count).step_by(STRIDE);
    let is_first = |word: u32| (word as usize).is_multiple_of(WORDS_PER_PAGE);
    let mut order: Vec<u32> = places.filter(|&word| !is_first(word)).collect();
    let mut rng = Rng::new(seed);
    for last in (1..order.len()).rev() {
        let other = rng.below(last as u64 + 1);
        order.swap(last, usize::try_from(other).unwrap_or(last));
    }
    for (&from, &to) in order.iter().zip(order.iter().cycle().skip(1)) {
        words[from as usize].store(to.into(), Relaxed);
    }
    for &word in &order {
        evict(words[word as usize].as_ptr());
    }
    order
}

/// Whether a program can have a line leave all caches here.
const CAN_EVICT: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// Has the line of a word leave all caches.
fn evict(word: *const u64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it changes no content, and every x86-64 has it (SSE2).
    unsafe {
        std::arch::x86_64::_mm_clflush(word.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: it changes no content; Linux lets programs do it.
    unsafe {
        std::arch::asm!("dc civac, {}", in(reg) word, options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = word;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_goes_through_all_places() {
        let buffer = Buffer::new(Bytes(16 * PAGE_BYTES), HugePages::Refused).unwrap();
        let order = link(&buffer, 7);
        let words = buffer.words();
        assert_eq!(order.len(), 16 * (WORDS_PER_PAGE / STRIDE - 1));
        let mut at = order[0] as usize;
        let mut near = 0;
        for &place in &order {
            assert_eq!(at, place as usize);
            let next = usize::try_from(words[at].load(Relaxed)).unwrap();
            near += u32::from(next.abs_diff(at) == STRIDE);
            at = next;
        }
        assert_eq!(at, order[0] as usize, "it closes");
        assert!(near < 20, "in no order: {near} neighbours");
    }
}
