//! The tests that need the guest of `tests/vm`, one program. `tests/vm/run-tests` runs each module
//! in the guest that its source names; what can be told on any machine of `kernel_*` is run there
//! as well. One at a time (`--test-threads=1`): they fill nodes and count what is free.

#![cfg(test)]

mod common;
mod place;
mod tierlat;
mod watched;

mod kernel_damon;
mod kernel_latency;
mod kernel_place;
mod kernel_sampler;
mod kernel_shared;
mod kernel_targets;
mod vm_accuracy;
mod vm_blind;
mod vm_budget;
mod vm_capacity;
mod vm_control;
mod vm_demo;
mod vm_errors;
mod vm_headroom;
mod vm_hit_rate;
mod vm_host;
mod vm_integrity;
mod vm_no_gain;
mod vm_one_node;
mod vm_overhead;
mod vm_page_cache;
mod vm_pageout;
mod vm_pressure;
mod vm_promotion;
mod vm_record;
mod vm_refusals;
mod vm_relief;
mod vm_shared;
mod vm_shares;
mod vm_simulator;
mod vm_sparse;
mod vm_systemd;
mod vm_tierlat;
mod vm_writes;
