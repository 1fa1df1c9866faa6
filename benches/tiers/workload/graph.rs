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
        let sum: f64 = self.graph.vertices.iter().map(|v| v.rank).sum();
        let is_one = (sum - 1.0).abs() < 1e-6;
        is_one
            .then_some(())
            .ok_or_else(|| format!("the ranks' sum is {sum} and not 1"))
    }
}

/// Searches from several roots, level by level.
pub(super) struct Bfs {
    graph: Graph,
    queue: Vec<u32>,
    roots: usize,
}

impl Bfs {
    pub(super) fn new(size: Size) -> Self {
        let graph = Graph::new(size);
        Self {
            queue: vec![0; graph.vertices.len()],
            graph,
            roots: size.work(32).div_ceil(32),
        }
    }

    /// Visits all that can be reached: gives how many, and the edges that were looked at.
    fn search(&mut self, root: usize) -> (usize, u64) {
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
        (tail, looked)
    }

    /// No edge out of what was reached leads further than one level.
    fn is_breadth_first(&self, reached: usize) -> bool {
        let level = |v: usize| self.graph.vertices[v].level;
        self.queue[..reached].iter().all(|&v| {
            let own = level(v as usize);
            let mut edges = self.graph.edges_of(v as usize);
            edges.all(|e| level(self.graph.edges[e] as usize) <= own + 1)
        })
    }
}

impl Workload for Bfs {
    fn work(&mut self, _: &mut Latencies) -> u64 {
        let mut all = 0;
        for root in 0..self.roots {
            all += self.search(root * 7919).1;
        }
        all
    }

    fn check(&mut self) -> Result<(), String> {
        let (reached, _) = self.search(0);
        if self.is_breadth_first(reached) {
            Ok(())
        } else {
            Err("an edge leads over more than one level".into())
        }
    }
}
