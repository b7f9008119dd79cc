//! flux-operator: a MiniCluster becomes Kubernetes objects, and its status tells the truth about them.
//!
//! ```text
//! fetch ─► shared::validate ─► render ─► apply ─► status
//! ```

pub mod cli;
pub mod install;
pub mod render;
pub mod yaml;

#[cfg(test)]
mod testing;
