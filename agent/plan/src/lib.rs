//! Plans every pod of a MiniCluster as data, and prints the plans for `dry-run`. Pure.
//!
//! ```text
//! (AgentSpec, Facts) ─► plan ─► Plan ─► flux-agent executes it
//! MiniCluster or AgentSpec, assumed facts ─► dry_run: plan ─► text | JSON
//! known_paths, owner, file_format: used by several of these
//! ```
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        reason = "tests"
    )
)]

pub mod dry_run;
pub mod facts;
mod file_format;
pub mod known_paths;
pub mod owner;
pub mod plan;
