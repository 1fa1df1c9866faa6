//! hmkeeper keeps the hot pages of running processes in the fastest memory of
//! a machine with several tiers of it (DRAM, PMM, CXL), transparently.
//!
//! One idea, once per epoch: **observe → decide → act**, the middle part pure.
//!
//! ```text
//! Targets, AccessSampler × scans, Residency ─► Observation
//! Engine::step(Observation)                 ─► Plan { moves, samples, sweeps, report }
//! PageMover                                 ─► MoveOutcome, part of the next Observation
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`units`] | bytes, pages, times, ids, each a type of its own |
//! | [`tiering`] | all decisions: regions, hotness, policies, plans; no I/O |
//! | [`ports`] | the seam: what the loop needs from a machine |
//! | [`epoch`] | one turn of the loop, over any ports |
//! | [`sys`] | the ports over the kernel; the only place for `unsafe` |
//! | [`config`] | `hmkeeper.toml`, checked, every fault at once |
//! | [`telemetry`] | logs, metrics, status, HTTP: all from the epoch's report |
//! | [`clients`] | clients of a socket, within bounds |
//! | [`files`] | files that a user names, opened and read within bounds |
//! | [`control`] | the control socket's protocol, both ends |
//! | [`daemon`] | wires everything; signals, reload, systemd |
//! | [`record`] | what the engine was told, in a file, and its decisions made again |
//! | [`sim`] | the ports over a model machine, for tests of the real loop |
//! | [`demo`] | a workload that counts for itself, the daemon beside it, a table |
//! | [`cli`] | the verbs and their exit codes |
//!
//! `tests/layering.rs` holds the modules to who may use whom.
#![deny(unsafe_code)]

pub mod cli;
pub mod clients;
pub mod config;
pub mod control;
pub mod daemon;
pub mod demo;
pub mod epoch;
pub mod files;
pub mod ports;
pub mod record;
pub mod sim;
pub mod sys;
pub mod telemetry;
pub mod tiering;
pub mod units;
