//! Runs the operator's program as a process with its own log.

use std::path::Path;
use std::process::Stdio;

use test_support::api_server::operator_kubeconfig;
use test_support::operator_process::OperatorProcess;

/// Starts the program for one namespace.
pub fn start(namespace: &str, log: &str, errors: Stdio) -> OperatorProcess {
    let program = Path::new(env!("CARGO_BIN_EXE_flux-operator"));
    let arguments = ["--log", log, "--namespace", namespace];
    OperatorProcess::start(program, operator_kubeconfig(), &arguments, errors)
}
