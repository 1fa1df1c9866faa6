//! Scoring what a profiler believes against what a workload says is true, and
//! DAMON by itself, as others use it.

pub(crate) mod damon;
pub(crate) mod score;
