//! The `kubectl-minicluster` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    kubectl_minicluster::cli::main(flux_shared::version!())
}
