//! `kubectl minicluster`: runs MiniClusters and tells what they do, for people who run jobs.
//!
//! ```text
//! cli ─► run: manifest (pure) ─► create ─► follow: watches ─► progress, log ─► exit code
//! cli ─► list, status, logs, wait, stop, scale, timeline, debug: what is seen, or one change
//! cli ─► connect, submit, jobs, top: the agent in the lead's pod, by exec
//! cli ─► completion: names for the shell
//! below all: target (client and namespace), observed (what is known of a MiniCluster, pure), progress (pure), screen,
//!            output, input, failure
//! ```
//!
//! It needs no rights but its user's own, and nothing in the cluster but the operator.
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")
)]

pub mod cli;
mod completion;
mod connect;
mod debug;
mod failure;
mod input;
mod list;
mod logs;
mod observed;
mod output;
mod progress;
mod run;
mod screen;
mod signals;
mod status;
mod stop;
mod target;
#[cfg(test)]
mod testing;
mod timeline;
mod top;
mod wait;
