//! How late nodes answer, asked on the kernel that runs the test.
//!
//! Times are of a guest that its host may stop: what is held to are ratios within one run,
//! of medians. Latencies are charged: in an emulator no line leaves the host's caches for
//! being evicted, and what these happen to hold would be all that is told.
#![allow(clippy::unwrap_used)]

// vm: topology=4tier latency=asymmetric timeout=300

use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use hmkeeper::ports::{Residency, Topology};
use hmkeeper::sys::latency::LatencyProbe;
use hmkeeper::sys::numa::HugePages;
use hmkeeper::sys::residency::SysResidency;
use hmkeeper::sys::root::Root;
use hmkeeper::sys::topology::SysTopology;
use hmkeeper::tiering::observation::NodeUsage;
use hmkeeper::tiering::settings::Asking;
use hmkeeper::units::NodeId;

use crate::tierlat::{ALONE, BUFFER, Lines, Preset, charged, median, on_cpu, within_tries};

/// A probe, and the nodes that it can ask; `None` where there are not several.
fn probe() -> Option<(LatencyProbe, Vec<NodeUsage>)> {
    let root = Root::host();
    let tiers = SysTopology::new(&root, None).read().unwrap();
    let usage = SysResidency::new(&root).nodes(Asking::Never).unwrap();
    if usage.len() < 2 {
        eprintln!("skipped: one memory node");
        return None;
    }
    Some((LatencyProbe::new(&tiers, &usage), usage))
}

/// Medians of what each node says in so many turns, as a share of the least.
fn asked(probe: &mut LatencyProbe, usage: &mut [NodeUsage], turns: usize) -> Vec<(NodeId, f64)> {
    let mut ratios: Vec<(NodeId, Vec<f64>)> = usage.iter().map(|u| (u.node, vec![])).collect();
    for _ in 0..turns {
        probe.ask(usage);
        for (usage, (_, ratios)) in usage.iter().zip(&mut ratios) {
            let latency = usage.latency.expect("an answer");
            ratios.push(latency.now.as_secs_f64() / latency.idle.as_secs_f64());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let each = ratios.into_iter().map(|(node, all)| (node, median(all)));
    each.collect()
}

#[test]
fn idle_nodes_answer_alike_each_time() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if Preset::here().is_none() {
        return;
    }
    within_tries(|| {
        charged(true, || {
            let (mut probe, mut usage) = probe().expect("several nodes");
            let ratios = asked(&mut probe, &mut usage, 64);
            println!("{ratios:.2?}");
            let late = ratios.iter().find(|(_, ratio)| *ratio > 1.5);
            late.map_or(Ok(()), |late| Err(format!("{late:?}")))
        })
    });
}

#[test]
fn left_to_us_nodes_are_asked_again_only_when_that_costs_little() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if Preset::here().is_none() {
        return;
    }
    let root = Root::host();
    let tiers = SysTopology::new(&root, None).read().unwrap();
    let mut residency = SysResidency::new(&root).probing(tiers);
    let mut answers = |asking| {
        let nodes = residency.nodes(asking).unwrap();
        nodes.iter().filter(|u| u.latency.is_some()).count()
    };
    let all = charged(true, || answers(Asking::Auto));
    assert!(all > 1, "{all} nodes");
    // Here it takes milliseconds, and a 400th of the time would be seconds.
    assert_eq!(answers(Asking::Auto), 0);
    assert_eq!(answers(Asking::Always), all);
    assert_eq!(answers(Asking::Never), 0);
}

#[test]
fn a_node_whose_bandwidth_is_used_answers_late() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if Preset::here().is_none() {
        return;
    }
    let node = NodeId(3);
    let streamed = Lines::on(node, BUFFER, HugePages::Refused);
    within_tries(|| {
        charged(true, || {
            let (mut probe, mut usage) = probe().expect("several nodes");
            let before = asked(&mut probe, &mut usage, 20);
            let over = AtomicBool::new(false);
            let during = std::thread::scope(|scope| {
                scope.spawn(|| {
                    on_cpu(1, || {
                        while !over.load(Relaxed) {
                            streamed.read(0..streamed.count());
                        }
                    });
                });
                let during = on_cpu(0, || asked(&mut probe, &mut usage, 50));
                over.store(true, Relaxed);
                during
            });
            println!("before {before:.2?}, beside a stream {during:.2?}");
            let of = |all: &[(NodeId, f64)], node| all.iter().find(|(n, _)| *n == node).unwrap().1;
            let (late, other) = (of(&during, node), of(&during, NodeId(2)));
            if of(&before, node) < 1.5 && late > 1.5 && late > 1.3 * other {
                Ok(())
            } else {
                Err(format!("node {node}: {late:.2}, another {other:.2}"))
            }
        })
    });
}
