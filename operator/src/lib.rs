//! flux-operator: a MiniCluster becomes Kubernetes objects, and its status tells the truth about them.
//!
//! ```text
//! fetch ─► shared::validate ─► todo ─► render ─► apply ─► status
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests"))]

pub mod apply;
pub mod chores;
pub mod cli;
pub mod client;
pub mod context;
pub mod controller;
pub mod fetch;
pub mod install;
pub mod keys;
pub mod lease;
pub mod metrics;
pub mod migrate;
pub mod notice;
pub mod observe;
pub mod panics;
pub mod precedence;
pub mod reconcile;
pub mod render;
pub mod restart;
pub mod server;
pub mod status;
pub mod stuck;
pub mod telemetry;
pub mod todo;
pub mod version;
pub mod watch;
pub mod webhook;
pub mod yaml;

#[cfg(test)]
mod testing;
