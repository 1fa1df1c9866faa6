//! A graph whose degrees follow a power law: PageRank over it, and breadth-first searches.
//!
//! Vertices are records of 64 bytes; edges are numbers of vertices, in the order of those
//! that name them. Half of all edges lead to a twentieth of the vertices, which
//! lie in blocks of 32 KiB all over the memory, as where vertices are numbered as they
//! were found.

use super::random::{Random, mix};
use super::{Latencies, Size, Workload};

/// 512 MiB of records; a power of two.
const VERTICES: usize = 8 << 20;
/// Degrees are 1, 2, 4, … up to 2 to this, each half as often as the one before.
const DEGREES: u32 = 5;
/// Neighbouring vertices that belong together: 32 KiB of records.
const BLOCK: usize = 512;
const DAMPING: f64 = 0.85;
const NOT_YET: u32 = u32::MAX;
/// Of so many vertices one has its rank checked.
const CHECKED: usize = 16;

/// A vertex's record.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
struct Vertex {
    /// Its edges begin here.
    first: u32,
    degree: u32,
    level: u32,
    /// Edges that come from it.
    outgoing: u32,
    rank: f64,
    next: f64,
    /// What it hands to each neighbour.
    part: f64,
}

struct Graph {
    vertices: Vec<Vertex>,
    edges: Vec<u32>,
}

impl Graph {
    fn new(size: Size) -> Self {
        let count = size.all(VERTICES);
        let mut random = Random::new(6);
        let mut vertices = vec![Vertex::default(); count];
        let mut edges = Vec::with_capacity(count * (DEGREES as usize / 2 + 2));
        for (v, vertex) in (0..).zip(&mut vertices) {
            let degree = 1_u32 << mix(v).trailing_zeros().min(DEGREES);
            vertex.first = edges.len() as u32;
            vertex.degree = degree;
            for _ in 0..degree {
                edges.push(skewed(&mut random, count) as u32);
            }
        }
        for &to in &edges {
            vertices[to as usize].outgoing += 1;
        }
        Self { vertices, edges }
    }

    fn edges_of(&self, v: usize) -> std::ops::Range<usize> {
        let vertex = &self.vertices[v];
        let first = vertex.first as usize;
        first..first + vertex.degree as usize
    }
}

/// A vertex, hubs more often: by the fourth power of an even choice, so that a twentieth of them
/// are chosen half of the times; blocks of hubs lie anywhere.
fn skewed(random: &mut Random, count: usize) -> usize {
    let unit = random.unit();
    let rank = ((count as f64 * unit.powi(4)) as usize).min(count - 1);
    let blocks = (count / BLOCK).max(1);
    // Odd, and so a permutation of a power of two.
    let block = (rank / BLOCK).wrapping_mul(0x9E37_79B1) & (blocks - 1);
    (block * BLOCK + rank % BLOCK) & (count - 1)
}

/// Every vertex gathers what those hand it that its edges name.
pub(super) struct PageRank {
    graph: Graph,
    rounds: usize,
}

impl PageRank {
    pub(super) fn new(size: Size) -> Self {
        let mut graph = Graph::new(size);
        let even = 1.0 / graph.vertices.len() as f64;
        for v in &mut graph.vertices {
            v.rank = even;
        }
        Self {
            graph,
            rounds: size.work(32).div_ceil(32),
        }
    }

    fn round(&mut self) {
        let count = self.graph.vertices.len();
        let mut dangling = 0.0;
        for v in &mut self.graph.vertices {
            if v.outgoing == 0 {
                dangling += v.rank;
            } else {
                v.part = v.rank / f64::from(v.outgoing);
            }
        }
        let base = (1.0 - DAMPING + DAMPING * dangling) / count as f64;
        for v in 0..count {
            let edges = &self.graph.edges[self.graph.edges_of(v)];
            let gathered: f64 = edges
                .iter()
                .map(|&to| self.graph.vertices[to as usize].part)
                .sum();
            self.graph.vertices[v].next = base + DAMPING * gathered;
        }
        for v in &mut self.graph.vertices {
            v.rank = v.next;
        }
    }
}

impl Workload for PageRank {
    fn work(&mut self, _: &mut Latencies) -> u64 {
        for _ in 0..self.rounds {
            self.round();
        }
        (self.rounds * self.graph.edges.len()) as u64
    }

    fn check(&mut self) -> Result<(), String> {
        let vertices = &self.graph.vertices;
        let sum: f64 = vertices.iter().map(|v| v.rank).sum();
        if (sum - 1.0).abs() >= 1e-6 {
            return Err(format!("the ranks' sum is {sum} and not 1"));
        }
        // Of the last round: what nobody handed on is what nobody names.
        let handed: f64 = (vertices.iter())
            .map(|v| v.part * f64::from(v.outgoing))
            .sum();
        let base = (1.0 - DAMPING + DAMPING * (1.0 - handed)) / vertices.len() as f64;
        for v in (0..vertices.len()).step_by(CHECKED) {
            let edges = &self.graph.edges[self.graph.edges_of(v)];
            let gathered: f64 = edges.iter().map(|&to| vertices[to as usize].part).sum();
            let (rank, wanted) = (vertices[v].rank, base + DAMPING * gathered);
            if (rank - wanted).abs() > 1e-6 * wanted {
                return Err(format!("the rank of vertex {v} is {rank} and not {wanted}"));
            }
        }
        Ok(())
    }
}

/// Searches from several roots, level by level.
pub(super) struct Bfs {
    graph: Graph,
    queue: Vec<u32>,
    roots: usize,
    /// Vertices that the last search reached, the first ones of the queue.
    reached: usize,
}

impl Bfs {
    pub(super) fn new(size: Size) -> Self {
        let graph = Graph::new(size);
        Self {
            queue: vec![0; graph.vertices.len()],
            graph,
            roots: size.work(32).div_ceil(32),
            reached: 0,
        }
    }

    /// Visits all that can be reached: gives how many edges were looked at.
    fn search(&mut self, root: usize) -> u64 {
        for v in &mut self.graph.vertices {
            v.level = NOT_YET;
        }
        let (mut head, mut tail, mut looked) = (0, 1, 0);
        self.queue[0] = root as u32;
        self.graph.vertices[root].level = 0;
        while head < tail {
            let v = self.queue[head] as usize;
            head += 1;
            let level = self.graph.vertices[v].level;
            for e in self.graph.edges_of(v) {
                let to = self.graph.edges[e] as usize;
                looked += 1;
                let neighbour = &mut self.graph.vertices[to];
                if neighbour.level == NOT_YET {
                    neighbour.level = level + 1;
                    self.queue[tail] = to as u32;
                    tail += 1;
                }
            }
        }
        self.reached = tail;
        looked
    }

    /// What is wrong with the levels that the last search has set, if anything.
    fn fault(&self) -> Option<&'static str> {
        let level = |v: u32| self.graph.vertices[v as usize].level;
        let (root, reached) = self.queue[..self.reached].split_first()?;
        let mut is_named = vec![false; self.graph.vertices.len()];
        for &v in &self.queue[..self.reached] {
            for &to in &self.graph.edges[self.graph.edges_of(v as usize)] {
                if level(to) > level(v) + 1 {
                    return Some("an edge leads over more than one level");
                }
                is_named[to as usize] |= level(to) == level(v) + 1;
            }
        }
        let all = self.graph.vertices.iter();
        match () {
            () if level(*root) != 0 => Some("the root is not on the first level"),
            () if all.filter(|v| v.level != NOT_YET).count() != self.reached => {
                Some("what was not reached has a level")
            }
            () if !reached.iter().all(|&v| is_named[v as usize]) => {
                Some("no edge from the level before leads to what was reached")
            }
            () => None,
        }
    }
}

impl Workload for Bfs {
    fn work(&mut self, _: &mut Latencies) -> u64 {
        let mut all = 0;
        for root in 0..self.roots {
            all += self.search(root * 7919);
        }
        all
    }

    fn check(&mut self) -> Result<(), String> {
        if self.reached == 0 {
            return Err("nothing was searched".into());
        }
        self.fault().map_or(Ok(()), |fault| Err(fault.into()))
    }
}
