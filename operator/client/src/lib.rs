//! What `flux-operator` and `kubectl minicluster` both do with a file, a command line and the API server.
//!
//! ```text
//! input ─► flux_operator_core::offline ─► on_server ─► dry_run (the API server) ─► Judgement
//! choices: what an administrator chooses; retry: a call that is repeated until it succeeds
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
