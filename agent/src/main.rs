//! flux-agent: the entrypoint of a MiniCluster's pods, and what explains it.
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods, reason = "tests")
)]
#![cfg_attr(not(feature = "laptop"), allow(dead_code, reason = "dry-run and local use more of what pods use"))]

mod cli;
#[cfg(feature = "laptop")]
mod dry_run;
mod elf;
mod ending;
mod execute;
mod facts;
mod failure;
mod glibc;
mod identity;
mod install;
#[cfg(feature = "laptop")]
mod local;
mod log;
mod mount_table;
mod netlink;
mod patience;
mod people;
mod plan;
mod restful;
mod run;
mod runtime;
mod spec;
mod stage;
mod supervise;
mod timing;
mod view;
mod wait;
mod wrap;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    cli::Cli::parse().run()
}
