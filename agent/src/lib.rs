//! flux-agent: the entrypoint of a MiniCluster's pods, and what explains it.
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

/// The whole program.
pub fn main(version: &'static str) -> ExitCode {
    if in_instance::flux_wrapper::is_called() {
        report::log::start();
        return in_instance::flux_wrapper::run();
    }
    // Before anything else: as PID 1, a stop signal that is not blocked is dropped by the kernel. A failure
    // shows again where the event loop starts.
    let _ = system::signals::block();
    report::log::start();
    let cli = cli::Cli::of_process(version);
    if !cli.takes_signals() {
        let _ = system::signals::unblock();
    }
    cli.run()
}
