//! `hmkeeper demo`.
pub mod size;
pub mod workload;
