//! flux-operator: a MiniCluster becomes Kubernetes objects, and its status tells the truth about them.
//!
//! ```text
//! cli ─► controller ─► observe (watches) ─► reconcile: flux_operator_core decides and renders ─► apply ─► one patch
//! cli ─► webhook, definition, delete_miniclusters; flux_operator_client: validate, render
//! api, health: below all
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
pub mod webhook;
