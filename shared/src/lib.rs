//! What the operator, the agent and the kubectl plugin must agree on. No I/O, no logging, no async.
//!
//! ```text
//! YAML ─► manifest::parse ─► Manifest ─► validate ─► ValidMiniCluster ─► derive::agent_spec ─► AgentSpec
//! ```
//!
//! The operator writes the [`agent_spec::AgentSpec`] into a ConfigMap, and the agent reads it. `flux-agent dry-run`
//! takes the same steps without a cluster.
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

/// The version of the package that uses this macro, with the commit if `.ci/dist` builds it. Use it in a `main.rs`
/// only: then a new commit causes no other file to be rebuilt.
#[macro_export]
macro_rules! version {
    () => {
        match option_env!("VERSION_WITH_COMMIT") {
            Some(version) => version,
            None => env!("CARGO_PKG_VERSION"),
        }
    };
}

pub mod agent_spec;
pub mod backoff;
pub mod broker_config;
pub mod causes;
pub mod choices;
pub mod command_words;
pub mod crd;
pub mod curve;
pub mod derive;
pub mod exit;
pub mod flux_duration;
pub mod hostlist;
pub mod manifest;
pub mod names;
pub mod overlay;
pub mod paths;
pub mod phase;
pub mod printable;
pub mod problem;
pub mod quantity;
pub mod queueing;
pub mod secret_names;
pub mod submission;
mod suggest;
pub mod termination;
pub mod timeline;
mod toml_error;
pub mod topology;
pub mod trace;
pub mod usage;
pub mod validate;
