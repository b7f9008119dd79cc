//! Code that `flux-operator` and `kubectl minicluster` share: they read the command line and files, and ask the
//! API server about them.
//!
//! ```text
//! input ─► flux_operator_core::offline ─► on_server ─► dry_run (the API server) ─► Judgement
//! choices: options for all MiniClusters; retry: repeats a call until it succeeds
//! ```
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")
)]

pub mod choices;
pub mod dry_run;
pub mod input;
pub mod on_server;
pub mod retry;
