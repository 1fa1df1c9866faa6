//! How long programs take on a machine with four tiers of memory, under this project's daemon
//! and under what else places memory: `make bench`, or `benches/tiers/run SET`.
//!
//! **Unit.** Wall-clock seconds of a guest (`tests/vm`) in which each miss of a modelled
//! cache takes as long as the node behind it (`vm-run -l`). They say something beside each
//! other only.
//!
//! **Approach.** One program on both sides. On the host (`run`) it boots a guest for each
//! run, a fresh one, prints a table as it goes, keeps every result at once, does not do again
//! what is there, and draws charts. In the guest (`guest`) it starts a workload, which is
//! this program once more (`workload`), and a system, and measures. What misses which node is
//! counted outside of the guest, by the plugin.
//!
//! docs/benchmarks.md has the method, its limits and the results.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "sizes of this machine's memory, and drawing"
)]

mod boot;
mod chart;
mod compare;
mod guest;
mod host;
mod results;
mod run;
mod sets;
mod shares;
mod stats;
mod system;
mod table;
mod tierlat;
mod workload;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use workload::Size;

/// Compares programs under several systems that place memory.
#[derive(Parser)]
#[command(name = "tiers")]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run a set, or what of it is not there yet
    Run(run::Options),
    /// Show the results of a set, and draw them
    Show(run::Options),
    /// Compare the results of a set with others: whether pairs of systems keep their order
    Compare {
        /// The others
        with: std::path::PathBuf,
        #[command(flatten)]
        options: run::Options,
    },
    /// In the guest: measure workloads under systems, one after the other
    #[command(hide = true)]
    Guest {
        /// WORKLOAD,SYSTEM,PACE
        #[arg(required = true)]
        runs: Vec<guest::Run>,
        #[arg(long, value_enum, default_value = "normal")]
        size: Size,
        #[arg(long)]
        shares: bool,
    },
    /// In the guest: what its kernel lacks for these systems
    #[command(hide = true)]
    Missing { systems: Vec<String> },
    /// A workload
    #[command(hide = true)]
    Workload {
        name: String,
        #[arg(long, value_enum, default_value = "normal")]
        size: Size,
    },
}

fn main() -> ExitCode {
    // `cargo bench` and `cargo test` call every benchmark with --bench.
    let args = std::env::args_os().filter(|a| a != "--bench");
    let result = match Args::parse_from(args).verb {
        Verb::Run(options) => run::run(&options),
        Verb::Show(options) => run::show(&options),
        Verb::Compare { with, options } => run::compare(&options, &with),
        Verb::Guest { runs, size, shares } => guest::measure_all(&runs, size, shares),
        Verb::Missing { systems } => guest::missing_all(&systems),
        Verb::Workload { name, size } => workload::run(&name, size),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("tiers: {e}");
            ExitCode::FAILURE
        }
    }
}
