//! `dry-run`: prints what every pod of a MiniCluster would do. It needs no cluster, no root and no Flux.
//!
//! ```text
//! FILE ─► source (MiniCluster or AgentSpec) ─► AgentSpec + assumed facts ─► plan ─► text | JSON
//! in a pod, --here: its own AgentSpec + its own facts                      ─► plan ─► text | JSON
//! ```
//!
//! The plans are those that `run` executes. Pods with the same steps are printed once.

mod args;
mod error;
mod format;
mod json;
mod pods;
mod source;
mod summary;
mod text;

pub use args::{Args, run};
pub use error::DryRunError;
pub use format::Format;
pub use json::render_json;
pub use pods::PlannedContainer;
pub use source::{Problems, Source};
pub use summary::paint;
pub use text::render_text;

#[cfg(test)]
mod tests;
