//! flux-operator: a MiniCluster becomes Kubernetes objects, and its status tells the truth about them.
//!
//! ```text
//! cli ─► controller ─► observe (watches, index) ─► reconcile: shared::validate ─► decide ─► render ─► apply ─► status
//! cli ─► webhook, install, offline, delete_miniclusters
//! api, health, input, labels, vocabulary, yaml: below all
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests"))]

pub mod api;
pub mod cli;
pub mod controller;
pub mod delete_miniclusters;
pub mod health;
pub mod input;
pub mod install;
pub mod labels;
pub mod observe;
pub mod offline;
pub mod on_server;
pub mod reconcile;
pub mod vocabulary;
pub mod webhook;
pub mod yaml;

#[cfg(test)]
mod testing;
