//! What every pod of a MiniCluster would do, shown on a laptop: no cluster, no root, no Flux.
//!
//! ```text
//! FILE ─► source (MiniCluster or AgentSpec) ─► AgentSpec + pretended facts ─► plan ─► text | JSON
//! in a pod, --here: its own AgentSpec + its own facts                        ─► plan ─► text | JSON
//! ```
//!
//! The plans are those that `run` executes. Pods that do the same are shown once.

#[cfg(feature = "laptop")]
mod file;
mod here;
mod pods;
mod source;
#[cfg(feature = "laptop")]
mod summary;
mod text;

use std::path::PathBuf;

use flux_shared::exit::Category;
use serde::Serialize;

use crate::facts::{Facts, FactsError};
use crate::plan::PlanError;
#[cfg(feature = "laptop")]
pub use file::{Args, run, source};
pub use here::here;
use pods::Pod;
use source::Kind;
pub use source::{Problems, Source};
#[cfg(feature = "laptop")]
pub use summary::paint;

/// Version of the JSON form, described by `agent/schema/dry-run.json`.
pub const VERSION: u32 = 1;

/// How the plans are printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    #[default]
    Text,
    Json,
}

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub enum DryRunError {
    #[error("not in a pod: --here is for flux-agent in a pod")]
    NotHere,
    #[error("failed to read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("failed to understand {}", path.display())]
    Input { path: PathBuf, source: Problems },
    #[error("failed to read the facts in {}", path.display())]
    Facts { path: PathBuf, source: FactsError },
    #[error("failed to find a pod of index {index}: there are {pods}")]
    Index { index: u32, pods: u32 },
    #[error("failed to plan for index {index}")]
    Plan { index: u32, source: PlanError },
    #[error("failed to write the plans as JSON")]
    Json { source: serde_json::Error },
}

impl DryRunError {
    /// The category that `run` would end with.
    pub fn category(&self) -> Category {
        match self {
            DryRunError::NotHere | DryRunError::Read { .. } => Category::SpecUnreadable,
            DryRunError::Input { .. } | DryRunError::Facts { .. } | DryRunError::Index { .. } => Category::SpecInvalid,
            DryRunError::Plan { source, .. } => source.category(),
            DryRunError::Json { .. } => Category::Internal,
        }
    }

    /// Several problems: a line each, after the name of the file.
    pub fn lines(&self) -> Option<String> {
        match self {
            DryRunError::Input { source, .. } if source.0.len() > 1 => Some(format!("{self}:\n{source}")),
            _ => None,
        }
    }

    /// What a person can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            DryRunError::Plan { source, .. } => Some(source.hint()),
            DryRunError::Facts { .. } => Some("all facts are optional; `--format json` lists their names under source"),
            _ => None,
        }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    source: About<'a>,
    notices: &'a [String],
    pods: &'a [Pod],
}

#[derive(Serialize)]
struct About<'a> {
    kind: Kind,
    name: &'a str,
    namespace: &'a str,
    size: u32,
    max_size: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    view: Option<&'a str>,
    facts: &'a Facts,
}

fn json(source: &Source, facts: &Facts, pods: &[Pod]) -> Result<String, serde_json::Error> {
    let spec = &source.spec;
    let about = About {
        kind: source.kind,
        name: &spec.name,
        namespace: &spec.namespace,
        size: spec.size,
        max_size: spec.max_size(),
        view: source.view.as_deref(),
        facts,
    };
    let document = Document { version: VERSION, source: about, notices: &source.notices, pods };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

#[cfg(test)]
mod tests;
