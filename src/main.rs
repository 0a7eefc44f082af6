//! The program: parse, run, exit code.

use clap::Parser as _;
use std::io::Write as _;
use std::process::ExitCode;

const FAILED: u8 = 2;

fn main() -> ExitCode {
    match fencepost::cli::run(fencepost::cli::Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            // Nothing more can be done if standard error is closed as well.
            match writeln!(std::io::stderr(), "fencepost: {error:#}") {
                Ok(()) | Err(_) => ExitCode::from(FAILED),
            }
        }
    }
}
