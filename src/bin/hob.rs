//! The `hob` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    hob::cli::main()
}
