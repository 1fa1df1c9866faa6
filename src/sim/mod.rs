//! A machine that exists only in memory: the ports over a model and a virtual
//! clock, so that the real engine and the real loop run without a kernel.
//!
//! The model knows pages of 4 KiB on nodes with a capacity, kept as runs, so that
//! terabytes are no trouble; processes whose pages are accessed at given rates that
//! may change with time; and what a scan and a move cost. It has no caches, no
//! bandwidth, and no noise but that of the accesses themselves, drawn from a seed.

mod extents;
mod machine;
mod ports;

pub use machine::{Machine, Process, Rate, Shared};
pub use ports::ports;
