//! The operator's decisions: what was observed of a MiniCluster becomes its objects and its status. Pure.
//!
//! ```text
//! observe (types, index) ─► target ─► shared::validate ─► decide ─► render ─► status ─► spans
//! offline: a file of MiniClusters, judged and rendered for a person
//! labels, vocabulary, yaml, obstacle, previous_status: below all
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

pub mod decide;
pub mod labels;
pub mod observe;
pub mod obstacle;
pub mod offline;
pub mod otlp_endpoint;
pub mod previous_status;
pub mod render;
pub mod spans;
pub mod status;
pub mod target;
pub mod vocabulary;
pub mod yaml;

#[cfg(test)]
mod testing;
