//! flux-operator: creates Kubernetes objects for each MiniCluster, and reports their state in its status.
//!
//! ```text
//! cli ─► controller ─► observe (watches) ─► reconcile: flux_operator_core decides and renders ─► apply ─► one patch
//! cli ─► webhook, definition, delete_miniclusters; flux_operator_core::offline: validate, render;
//!        flux_operator_client: validate --server
//! api, health: used by most of these
//! ```
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")
)]

pub mod api;
pub mod cli;
pub mod controller;
pub mod definition;
pub mod delete_miniclusters;
pub mod health;
pub mod observe;
pub mod reconcile;
#[cfg(test)]
mod testing;
pub mod webhook;
