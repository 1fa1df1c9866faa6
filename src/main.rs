//! hmkeeper: arguments in, exit code out.

use std::process::ExitCode;

fn main() -> ExitCode {
    hmkeeper::cli::run(std::env::args_os())
}
