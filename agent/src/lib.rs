//! flux-agent: the entrypoint of a MiniCluster's pods, and commands for people, in a pod or without a cluster.
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")
)]

mod cli;
mod commands;
mod dry_run;
mod execute;
mod facts;
mod files;
mod flux_rpc;
mod in_instance;
mod install;
mod local;
mod metrics;
mod report;
mod run;
mod spec;
mod supervise;
mod system;
#[cfg(test)]
mod testing;
mod view;
mod wait;

use std::process::ExitCode;

/// Runs the program; returns its exit code. `version` is what `--version` prints.
pub fn main(version: &'static str) -> ExitCode {
    // Before signals are blocked: the real `flux`, which this process becomes, would inherit the blocked signals.
    if in_instance::flux_wrapper::is_called() {
        report::log::start();
        return in_instance::flux_wrapper::run();
    }
    // As early as possible: the kernel drops a stop signal that PID 1 neither blocks nor handles. An error is ignored
    // here: `system::runtime` blocks signals again and reports it.
    let _ = system::signals::block();
    report::log::start();
    let cli = cli::Cli::of_process(version);
    if !cli.handles_signals() {
        let _ = system::signals::unblock();
    }
    cli.run()
}
