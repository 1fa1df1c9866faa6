//! What is written leaves a node that answers late for the place of what is read, by default.
//!
//! All is swept alike, so that nothing else is to be gained. It is swept line by line, so that bandwidth decides:
//! from the program's socket node 2 has 20 times less of it than node 1, for writes 50 times, on one bus. The daemon
//! asks that node from the other socket, so that it does not have to wait for the program's CPU.
//!
// vm: topology=4tier latency=asymmetric timeout=300

use hmkeeper::ports::PageMover;
use hmkeeper::sys::mover::SysMover;
use hmkeeper::sys::root::Root;
use hmkeeper::units::{Bytes, NodeId};

use serde_json::Value;

use crate::common::{
    Site, Workload, body, halves, in_guest, lines, locate, percent, pid_of, share, target,
};
use crate::place::{asked, limits};
use crate::tierlat::charged;

const BUFFER: Bytes = Bytes::from_mib(32);
/// Of what is written so much is on node 1 within so many epochs.
const COME: f64 = 0.5;
const WITHIN: usize = 40;
/// No other node takes part, node 1 has no room for more than what is read, and there is more overhead to spare than
/// by default: a write fault takes some 20 us here.
const CONFIG: &str = "overhead_limit = 0.5\n\
    [[tiers]]\nname = \"fast\"\nnodes = [1]\ncapacity = \"16MiB\"\n[[tiers]]\nname = \"slow\"\nnodes = [2]\n";

#[test]
fn what_is_written_leaves_a_node_that_answers_late() {
    if !in_guest() {
        return;
    }
    let mut workload = Workload::start(&[
        &format!("--bytes={}", BUFFER.0),
        "--hot=1",
        "--chunks=1",
        "--stray=0",
        "--lines=64",
        "--read-only=0.5",
        "--write-one-in=1",
        "--cpus=1",
        "--start-node=1",
        "--phases=1",
        "--phase-seconds=100000",
        "--wait",
    ]);
    let (read, written) = halves(workload.range);
    let begin = asked(pid_of(workload.pid()), written, NodeId(1), NodeId(2));
    let outcome = SysMover::new(&Root::host()).apply(&[begin], limits());
    assert_eq!(
        outcome.expect("moves").results[0].pages.moved,
        written.pages()
    );
    let site = Site::new();
    site.write_config(&body(workload.pid(), CONFIG));

    let (course, metrics, gained) = charged(true, || {
        // How late the node answers when nobody uses it is known before.
        let mut daemon = site.start();
        daemon.until_watching(workload.pid());
        daemon.epochs(1);
        workload.go();
        workload.phase();
        let before = workload.throughput(3);
        let mut course = Vec::new();
        for epoch in 0..WITHIN {
            let status = daemon.epochs(1);
            let [came, stayed] =
                [written, read].map(|half| share(&locate(workload.pid(), &[half]), &[1]));
            let late = &status["tiers"][1];
            course.push(format!(
                "epoch {epoch}: {} of what is written on node 1, {} of what is read; node 2 answers in {} ns, idle {}; \
                 {} written",
                percent(came),
                percent(stayed),
                late["latency_ns"],
                late["idle_latency_ns"],
                target(&status, workload.pid()).map_or(&Value::Null, |t| &t["written_bytes"]),
            ));
            if came >= COME {
                break;
            }
        }
        let metrics = daemon.metrics();
        daemon.stop();
        (course, metrics, workload.throughput(5) / before)
    });
    workload.assert_alive();
    println!("{}\n{gained:.2} times as fast", lines(course.clone()));
    let moved = |name, reason| metrics.sum(name, &[("reason", reason)]).unwrap_or(0.0);
    let came = moved("hmkeeper_promoted_bytes_total", "written");
    let gone = moved("hmkeeper_demoted_bytes_total", "read");
    let wanted = COME * written.bytes().as_f64();
    // Now and then what is written seems hotter for a moment, and some comes for that.
    assert!(
        course.len() < WITHIN && came >= 0.3 * wanted && gone >= 0.3 * wanted,
        "{came} and {gone} bytes of {wanted}\n{}",
        lines(course)
    );
    assert!(gained > 1.2, "{gained}");
}
