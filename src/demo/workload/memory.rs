//! The workload's buffer with what is known of it: where each page is, and how
//! often each node was asked.
//!
//! Every access is counted for the node that its page was on when the census
//! last asked the kernel (`move_pages` without nodes). The census goes round
//! all hot pages and a slice of the others, and never takes more than
//! 1/[`CENSUS_SHARE`] of one CPU, so that a count is wrong only for pages that
//! moved within the last round: [`Census::staleness`] says how long that is.

use std::io;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::hotset::Class;
use super::lines::ByNode;
use crate::ports::Residency;
use crate::sys::move_pages;
use crate::sys::numa::{self, Buffer, HugePages};
use crate::sys::residency::SysResidency;
use crate::sys::root::Root;
use crate::tiering::settings::Asking;
use crate::units::{Bytes, NodeId, PAGE_BYTES, VirtAddr};

/// The census may take one part in so many of one CPU's time.
const CENSUS_SHARE: u32 = 8;
/// No more often than this, however cheap it is.
const CENSUS_PAUSE: Duration = Duration::from_millis(20);
/// Pages asked for in one call: 4 to 20 ms in an emulated guest.
const CENSUS_PAGES: usize = 4096;
/// Each round also looks at one part in so many of the other pages.
const COLD_SLICE: usize = 8;
/// More free memory than this must remain on a node that is bound to, lest
/// the OOM killer come.
const BIND_MARGIN: Bytes = Bytes::from_mib(32);

/// What is free on a node. With `listed_beside` that includes what lies on CPUs' lists, as long as so much is free
/// beside it: what was just freed stays there for a while, tens of MiB of it, and is taken first.
pub(super) fn free_on(
    root: &Root,
    node: NodeId,
    listed_beside: Option<Bytes>,
) -> io::Result<Bytes> {
    let unlisted = numa::node_free(root, node)?;
    if listed_beside.is_none_or(|least| unlisted <= least) {
        return Ok(unlisted);
    }
    let all = SysResidency::new(root)
        .nodes(Asking::Never)
        .map_err(io::Error::other)?;
    let usage = all.iter().find(|usage| usage.node == node);
    Ok(usage.map_or(unlisted, |usage| usage.free))
}

/// A buffer, a map of its pages, and counters per node.
#[derive(Debug)]
pub(super) struct Memory {
    buffer: Buffer,
    /// Node of each page as last known; `unknown` when never seen.
    map: Vec<AtomicU16>,
    /// Accesses per node, the last entry for pages on an unknown node.
    counts: Vec<AtomicU64>,
}

impl Memory {
    /// Maps the buffer and calls `fill` for each page, in order, while the
    /// buffer is bound to `node`. Afterwards no policy of its own remains.
    pub(super) fn new(
        bytes: Bytes,
        huge: HugePages,
        node: Option<NodeId>,
        fill: impl Fn(&Buffer, usize),
    ) -> io::Result<Self> {
        let root = Root::host();
        let buffer = Buffer::new(bytes, huge)?;
        if let Some(node) = node {
            let free = numa::node_free(&root, node)
                .map_err(|e| io::Error::new(e.kind(), format!("memory node {node}: {e}")))?;
            let wanted = buffer.range().bytes();
            if free < wanted + BIND_MARGIN {
                return Err(io::Error::other(format!(
                    "memory node {node} has only {free} free, too little for a buffer of {wanted}"
                )));
            }
            buffer.bind(node)?;
        }
        for page in 0..buffer.page_count() {
            fill(&buffer, page);
        }
        if node.is_some() {
            buffer.unbind()?;
        }
        let nodes = usize::from(highest_node(&root)) + 1;
        let map = (0..buffer.page_count())
            .map(|_| AtomicU16::new(u16::try_from(nodes).unwrap_or(u16::MAX)))
            .collect();
        let counts = (0..=nodes).map(|_| AtomicU64::new(0)).collect();
        Ok(Self {
            buffer,
            map,
            counts,
        })
    }

    pub(super) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Entries that a thread's own counters need.
    pub(super) fn counter_count(&self) -> usize {
        self.counts.len()
    }

    /// The index of the counter for an access to `page`.
    #[inline]
    pub(super) fn counter(&self, page: usize) -> usize {
        usize::from(self.map[page].load(Ordering::Relaxed))
    }

    /// Adds a thread's own counters to the common ones and clears them.
    pub(super) fn flush(&self, local: &mut [u64]) {
        for (count, own) in self.counts.iter().zip(local) {
            if *own > 0 {
                count.fetch_add(*own, Ordering::Relaxed);
                *own = 0;
            }
        }
    }

    /// Accesses since the start. Those to pages on unknown nodes are left out;
    /// there are none once every page was asked for.
    pub(super) fn accesses(&self) -> ByNode {
        let mut all = ByNode::default();
        let known = self.counts.len() - 1;
        for (node, count) in (0..).zip(&self.counts[..known]) {
            all.add(NodeId(node), count.load(Ordering::Relaxed));
        }
        all
    }

    /// Where these pages were when last asked.
    pub(super) fn located(&self, pages: impl Iterator<Item = usize>) -> ByNode {
        let unknown = self.counts.len() - 1;
        let mut all = ByNode::default();
        let mut counts = vec![0_u64; self.counts.len()];
        for page in pages {
            counts[self.counter(page)] += 1;
        }
        for (node, &count) in (0..).zip(&counts[..unknown]) {
            all.add(NodeId(node), count);
        }
        all
    }

    /// Asks the kernel for these pages and notes the answers. A page in flight
    /// keeps its last known node.
    fn ask(&self, pages: &[usize]) -> io::Result<()> {
        let start = self.buffer.range().start().0;
        let addresses: Vec<VirtAddr> = pages
            .iter()
            .map(|&p| VirtAddr(start + p as u64 * PAGE_BYTES))
            .collect();
        for (&page, node) in pages.iter().zip(move_pages::locate(None, &addresses)?) {
            let node = node.and_then(|n| u16::try_from(n.0).ok());
            if let Some(node) = node
                && usize::from(node) + 1 < self.counts.len()
            {
                self.map[page].store(node, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

/// The highest number that a node of this machine can have.
fn highest_node(root: &Root) -> u8 {
    std::fs::read_to_string(root.sys("devices/system/node/possible"))
        .ok()
        .and_then(|list| {
            let last = list.trim().rsplit([',', '-']).next()?.parse().ok()?;
            Some(last)
        })
        .unwrap_or(0)
}

/// Goes round the pages, a few at a time.
#[derive(Debug)]
pub(super) struct Census {
    /// Pages of this round still to ask for.
    queue: Vec<usize>,
    hot: Vec<usize>,
    cold_at: usize,
    next: Instant,
    round: Instant,
    last_round: Instant,
}

impl Census {
    /// Asks for every page once.
    pub(super) fn new(memory: &Memory) -> io::Result<Self> {
        let pages: Vec<usize> = (0..memory.map.len()).collect();
        let now = Instant::now();
        for slice in pages.chunks(CENSUS_PAGES) {
            memory.ask(slice)?;
        }
        Ok(Self {
            queue: Vec::new(),
            hot: Vec::new(),
            cold_at: 0,
            next: now,
            round: now,
            last_round: now,
        })
    }

    /// These pages are asked for in every round from now on.
    pub(super) fn watch(&mut self, classes: &[Class]) {
        self.hot = classes
            .iter()
            .flat_map(|c| &c.chunks)
            .flat_map(|&(first, count)| first..first + count)
            .collect();
        self.queue.clear();
    }

    /// When the next step is due.
    pub(super) fn due(&self) -> Instant {
        self.next
    }

    /// How long ago the oldest answer about a hot page was asked for.
    pub(super) fn staleness(&self, now: Instant) -> Duration {
        now.duration_since(self.last_round)
    }

    /// Asks for the next few pages.
    pub(super) fn step(&mut self, memory: &Memory) -> io::Result<()> {
        let begin = Instant::now();
        if self.queue.is_empty() {
            self.last_round = self.round;
            self.round = begin;
            let pages = memory.map.len();
            let slice = pages.div_ceil(COLD_SLICE);
            let cold = self.cold_at..(self.cold_at + slice).min(pages);
            self.cold_at = if cold.end == pages { 0 } else { cold.end };
            self.queue.extend(cold);
            // Taken from the end: the hot ones first.
            self.queue.extend(&self.hot);
        }
        let from = self.queue.len().saturating_sub(CENSUS_PAGES);
        let pages = self.queue.split_off(from);
        memory.ask(&pages)?;
        let end = Instant::now();
        self.next = end + ((end - begin) * (CENSUS_SHARE - 1)).max(CENSUS_PAUSE);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_on_lists_is_free_while_enough_is_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        let put = |path: std::path::PathBuf, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put(
            root.sys("devices/system/node/node0/meminfo"),
            "Node 0 MemTotal: 4000 kB\nNode 0 MemFree: 400 kB\n",
        );
        put(root.sys("devices/system/node/has_memory"), "0\n");
        put(
            root.proc("zoneinfo"),
            "Node 0, zone Normal\n  pages free 100\n min 8\n high 10\n managed 1000\n count: 50\n",
        );
        let free = |beside: Option<u64>| {
            let beside = beside.map(|pages| Bytes(pages * PAGE_BYTES));
            free_on(&root, NodeId(0), beside).unwrap().pages()
        };
        assert_eq!(
            [free(None), free(Some(99)), free(Some(100))],
            [100, 150, 100]
        );
    }
}
