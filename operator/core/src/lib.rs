//! The operator's decisions: computes a MiniCluster's objects and status from what the watches have reported.
//! Pure: no I/O, no logging, and the time is an argument.
//!
//! ```text
//! observe (types, index) ─► target ─► shared::validate ─► decide ─► render ─► status ─► spans
//! offline: validates and renders a file of MiniClusters, without a cluster
//! otlp_endpoint: parses the address to which the operator sends the spans
//! labels, vocabulary, yaml, obstacle, previous_status: used by the modules above
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
