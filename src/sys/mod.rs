//! Kernel contact: the only module that may hold `unsafe`, and the only one
//! that knows of `/proc`, `/sys` and system calls.
#![allow(unsafe_code)]

mod bits_in_use;
mod cgroup;
pub mod clock;
pub mod damon;
mod denied;
mod frames;
mod glance;
mod holds;
mod idle_cores;
pub mod kpageflags;
mod large_folios;
pub mod latency;
mod locate;
mod mounts;
pub mod move_pages;
pub mod mover;
pub mod numa;
pub mod others;
pub mod own_nodes;
mod own_pages;
pub mod page_idle;
pub mod pagemap;
pub mod pager;
pub mod probe;
pub mod process;
pub mod referenced;
pub mod residency;
pub mod root;
pub mod sampler;
pub mod schedule;
mod sharers;
mod smaps;
pub mod soft_dirty;
mod state;
pub mod targets;
mod text;
pub mod topology;
mod trace;
