//! `kubectl minicluster`: runs MiniClusters and shows what they do, for people who run jobs.
//!
//! ```text
//! cli ─► run: manifest (pure) ─► create ─► follow: watches ─► progress, log ─► exit code
//! cli ─► list, status, logs, wait, stop, scale, timeline, debug: read the state, or make one change
//! cli ─► connect, submit, jobs, top: the agent in a pod, by exec
//! cli ─► completion: names for the shell
//! used by several: target (client and namespace), login (a client for `target`), observed (the state of a
//!                  MiniCluster, pure), progress (pure), outages (pure), screen, output, input, failure
//! ```
//!
//! The plugin has only its user's permissions. In the cluster it needs only the operator.
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
mod login;
mod logs;
mod observed;
mod outages;
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
