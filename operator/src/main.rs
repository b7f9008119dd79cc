//! The `flux-operator` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    flux_operator::cli::main(flux_shared::version!())
}
