//! How fast a program gets on whose memory lies so.
//!
//! **Unit.** Seconds, bytes per second, accesses to memory per second of all threads
//! together.
//!
//! **Approach.** An access takes its program so long (loaded latency as Colloid observes it,
//! divided by the accesses under way at once as Alto does):
//!
//! `t = max( compute / threads + Σ over nodes share · L(u) / (parallel · threads),
//!           max over nodes busy / left )`
//!
//! where `L(u) = L₀ · (1 + 0.3 · u / (1 − u))` is the loaded latency at a utilisation `u` of
//! at most 0.95, `busy` the time that a node takes for what goes there, and `left` the
//! share of its time that moves leave. Nodes transfer side by side, so that only the one
//! with most to do holds up the program: what goes to two nodes has both bandwidths, which
//! is what spreading is for. Utilisation depends on how fast the program is, and that on
//! utilisation: the one rate that is true of both is found by halving.
//!
//! **Left out.** Reads and writes share a node's time, and nodes share no queue (traffic to
//! CXL memory can slow DRAM down, too).
//!
//! **Properties** (tests below): never faster than idle latency, nor than any node's
//! bandwidth allows; slower with whatever else uses a node.

/// Bytes of a cache line: what one access brings.
pub(super) const LINE: f64 = 64.0;
/// Growth of latency with utilisation, and the most utilisation that it is told for.
const QUEUEING: f64 = 0.3;
const UTILISATION_MAX: f64 = 0.95;
/// Halvings: enough for a millionth of the rate.
const HALVINGS: u32 = 24;

/// What a program asks of one node, per access of the program's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Demand {
    /// Accesses that go there, each divided by how many of its kind a thread has under
    /// way at once.
    pub(super) waits: f64,
    /// Bytes read and written there.
    pub(super) read: f64,
    pub(super) written: f64,
}

/// What a node offers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Supply {
    /// Seconds, idle.
    pub(super) latency: f64,
    /// Bytes per second.
    pub(super) read: f64,
    pub(super) write: f64,
    /// Share of its time that others take, 0 to 1.
    pub(super) taken: f64,
}

/// Accesses per second of a program of `threads` that computes `compute` seconds for each.
pub(super) fn rate(compute: f64, threads: f64, nodes: &[(Demand, Supply)]) -> f64 {
    let seconds = |rate: f64| {
        let waiting = nodes.iter().map(|node| waits(node, rate));
        let busy = nodes.iter().map(busy).fold(0.0, f64::max);
        ((compute + waiting.sum::<f64>()) / threads).max(busy)
    };
    let (mut low, mut high) = (0.0, 1.0 / seconds(0.0));
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if middle * seconds(middle) > 1.0 {
            high = middle;
        } else {
            low = middle;
        }
    }
    low
}

/// Seconds that a read takes from each node while the program gets on at this rate. Where
/// bandwidth holds it up, what its threads wait beyond that they wait for the node with most
/// to do (Little's law).
pub(super) fn latencies(
    compute: f64,
    threads: f64,
    nodes: &[(Demand, Supply)],
    rate: f64,
) -> Vec<f64> {
    let mut latencies: Vec<f64> = nodes.iter().map(|node| latency(node, rate)).collect();
    let waiting: f64 = nodes.iter().map(|node| waits(node, rate)).sum();
    let beyond = threads / rate - compute - waiting;
    let most = (0..nodes.len()).max_by(|&a, &b| busy(&nodes[a]).total_cmp(&busy(&nodes[b])));
    if let Some(most) = most.filter(|&at| beyond > 0.0 && nodes[at].0.waits > 0.0) {
        latencies[most] += beyond / nodes[most].0.waits;
    }
    latencies
}

/// Seconds that a read from a node takes at that rate.
fn latency((demand, supply): &(Demand, Supply), rate: f64) -> f64 {
    let used = (rate * demand.busy(supply) + supply.taken()).min(UTILISATION_MAX);
    supply.latency * (1.0 + QUEUEING * used / (1.0 - used))
}

/// Seconds per access that one thread waits for a node at that rate.
fn waits(node: &(Demand, Supply), rate: f64) -> f64 {
    node.0.waits * latency(node, rate)
}

/// Seconds per access that a node needs at least, beside what others ask of it.
fn busy((demand, supply): &(Demand, Supply)) -> f64 {
    demand.busy(supply) / (1.0 - supply.taken())
}

impl Demand {
    /// Seconds of the node's time per access.
    fn busy(&self, supply: &Supply) -> f64 {
        self.read / supply.read + self.written / supply.write
    }
}

impl Supply {
    /// Others never take all.
    fn taken(&self) -> f64 {
        self.taken.clamp(0.0, UTILISATION_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAM: Supply = Supply {
        latency: 90e-9,
        read: 95e9,
        write: 95e9,
        taken: 0.0,
    };

    fn reads(share: f64, parallel: f64) -> Demand {
        Demand {
            waits: share / parallel,
            read: share * LINE,
            written: 0.0,
        }
    }

    fn close(a: f64, b: f64) -> bool {
        (a / b - 1.0).abs() < 1e-2
    }

    #[test]
    fn one_thread_that_chases_waits_for_each() {
        let rate = rate(10e-9, 1.0, &[(reads(1.0, 1.0), DRAM)]);
        assert!(close(rate, 1.0 / 100e-9), "{rate}");
    }

    #[test]
    fn many_that_stream_are_held_by_bandwidth() {
        let rate = rate(0.1e-9, 48.0, &[(reads(1.0, 16.0), DRAM)]);
        // Close to the limit latency grows, so a little below.
        let most = 95e9 / LINE;
        assert!(rate < most && rate > 0.9 * most, "{rate} of {most}");
    }

    #[test]
    fn a_slow_node_serves_few_but_costs_much() {
        let slow = Supply {
            latency: 340e-9,
            read: 1e9,
            write: 1e9,
            taken: 0.0,
        };
        let near = rate(10e-9, 8.0, &[(reads(1.0, 4.0), DRAM)]);
        let far = rate(
            10e-9,
            8.0,
            &[(reads(0.9, 4.0), DRAM), (reads(0.1, 4.0), slow)],
        );
        // A tenth of the accesses at 1 GB/s: 156 million a second at most.
        assert!(far < 156.3e6 && far < near / 1.2, "{far}, {near}");
    }

    #[test]
    fn two_nodes_have_both_bandwidths() {
        let stream = |share| (reads(share, 64.0), DRAM);
        let one = rate(0.01e-9, 48.0, &[stream(1.0)]);
        let two = rate(0.01e-9, 48.0, &[stream(0.5), stream(0.5)]);
        assert!(two > 1.8 * one, "{two}, {one}");
    }

    #[test]
    fn all_that_threads_wait_is_latency_of_some_node() {
        let slow = Supply {
            latency: 340e-9,
            read: 10e9,
            write: 10e9,
            taken: 0.0,
        };
        // Chasing, both are idle; streaming, the slow one holds up all.
        for (parallel, late) in [(1.0, false), (64.0, true)] {
            let nodes = [(reads(0.8, parallel), DRAM), (reads(0.2, parallel), slow)];
            let (compute, threads) = (10e-9, 16.0);
            let rate = rate(compute, threads, &nodes);
            let now = latencies(compute, threads, &nodes, rate);
            let waited = (0.8 * now[0] + 0.2 * now[1]) / parallel;
            assert!(close(rate, threads / (compute + waited)), "{rate}, {now:?}");
            assert!(now[0] < 1.3 * DRAM.latency, "{now:?}");
            assert_eq!(now[1] > 3.0 * slow.latency, late, "{now:?}");
        }
    }

    #[test]
    fn what_moves_take_is_missing() {
        let program = |taken| {
            let node = (reads(1.0, 16.0), Supply { taken, ..DRAM });
            rate(0.1e-9, 48.0, &[node])
        };
        assert!(program(0.5) < 0.55 * program(0.0));
        assert!(program(1.0) > 0.0);
    }
}
