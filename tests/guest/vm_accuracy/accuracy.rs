//! Scoring what a profiler believes against what a workload says is true, and others by
//! themselves: DAMON, and one sample per 2 MiB.

pub(crate) mod damon;
pub(crate) mod score;
pub(crate) mod thermostat;
