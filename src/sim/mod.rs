//! A machine that exists only in memory: the ports over a model and a virtual
//! clock, so that the real engine and the real loop run without a kernel.
//!
//! The model knows nodes with a capacity, and what a scan and a move cost. Of processes
//! there are two kinds. Some have their pages accessed at given rates, which may change
//! with time, whatever happens to them: for tests of the loop. Their pages are kept as
//! runs, so that terabytes are no trouble. Others are programs ([`workload`]) that take as
//! long as where their memory lies makes them take, on a machine with latencies and
//! bandwidths ([`hardware`]). There is no noise but that of the accesses themselves, drawn
//! from a seed.

mod behind;
mod extents;
mod file;
pub mod hardware;
#[cfg(test)]
mod hostile_tests;
mod machine;
mod oracle;
pub mod played;
mod ports;
mod program;
pub mod run;
mod speed;
pub mod sweep;
pub mod trace;
mod weights;
pub mod workload;

pub use file::FileError;
pub use machine::{Eater, Machine, Process, Rate, Shared, Touch};
pub use ports::ports;
pub use program::Program;

/// The machine of the tests.
#[cfg(test)]
const TWO_NODES: &str = include_str!("../../tests/fixtures/two-nodes.toml");
