//! Helpers for the tests and benchmarks of several workspace members. Only for development: no shipped program
//! depends on this crate.
//!
//! ```text
//! pages, pattern, committed, repository     documentation and generated files, compared
//! pasted                                    commands of the pages, and those that no test runs
//! mutate, upstream_manifests                inputs
//! field_values                              inputs: values of every field (feature `cluster`)
//! rendering                                 what the operator renders for a MiniCluster (feature `cluster`)
//! waiting                                   polls until a condition holds
//! history ─► promises                       how often a program started, and which documented promises were broken
//! collector                                 keeps the traces that it receives
//! report                                    the reports of benchmarks
//! helm                                      programs that the test node builds
//! installation                              what the chart renders, for a control plane
//! sdk                                       the Go operator's Python SDK
//! monitoring                                the chart's alerts and dashboard
//! operator_process                          the operator's program as a separate process
//! control_plane                             an API server without nodes
//! control_plane ─► api_server               the operator on it (feature `cluster`)
//! call                                      the operator's calls and their permissions (feature `cluster`)
//! node                                      a namespace of a cluster where pods really run (feature `cluster`)
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tests and benchmarks print"
)]
#![allow(missing_debug_implementations, reason = "tests")]

pub mod collector;
pub mod committed;
pub mod helm;
pub mod history;
pub mod installation;
pub mod monitoring;
pub mod mutate;
pub mod operator_process;
pub mod pages;
pub mod pasted;
pub mod pattern;
pub mod promises;
pub mod report;
pub mod repository;
pub mod sdk;
pub mod upstream_manifests;
pub mod waiting;

#[cfg(feature = "cluster")]
pub mod api_server;
#[cfg(feature = "cluster")]
pub mod call;
pub mod control_plane;
#[cfg(feature = "cluster")]
pub mod field_values;
#[cfg(feature = "cluster")]
pub mod node;
#[cfg(feature = "cluster")]
pub mod rendering;
