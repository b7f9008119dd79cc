//! The `flux-agent` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    flux_agent::main(flux_shared::version!())
}
