//! What every pod of a MiniCluster would do, shown on a laptop: no cluster, no root, no Flux.
//!
//! ```text
//! FILE ─► source (MiniCluster or AgentSpec) ─► AgentSpec + pretended facts ─► plan ─► text | JSON
//! in a pod, --here: its own AgentSpec + its own facts                        ─► plan ─► text | JSON
//! ```
//!
//! The plans are those that `run` executes. Pods that do the same are shown once.

mod error;
mod file;
mod format;
mod here;
mod json;
mod pods;
mod source;
mod summary;
mod text;

pub use error::DryRunError;
pub use file::{Args, run, source};
pub use format::Format;
pub use here::here;
pub use source::{Problems, Source};
pub use summary::paint;

#[cfg(test)]
mod tests;
