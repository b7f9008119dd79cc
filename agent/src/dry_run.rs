//! What every pod of a MiniCluster would do, told on a laptop: no cluster, no root, no Flux.
//!
//! ```text
//! FILE ─► source (MiniCluster or AgentSpec) ─► AgentSpec + pretended facts ─► plan ─► text | JSON
//! ```
//!
//! The plans are those that `run` executes. Pods that do the same are told once.

#![expect(clippy::disallowed_methods, reason = "reads the files that it is given")]

mod pods;
mod source;
mod summary;
mod text;

use std::path::{Path, PathBuf};

use flux_shared::exit::Category;
use serde::Serialize;

use crate::facts::{Facts, FactsError};
use crate::plan::PlanError;
use pods::Pod;
use source::Kind;
pub use source::{Problems, Source};
pub use summary::paint;

/// Version of the JSON form, described by `agent/schema/dry-run.json`.
pub const VERSION: u32 = 1;

/// Show what every pod of a MiniCluster would do, without a cluster.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Args {
    /// A MiniCluster (YAML or JSON) or an AgentSpec (TOML); `-` reads standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Only the pod of this completion index, in full
    #[arg(long, value_name = "N")]
    pub index: Option<u32>,
    /// Every step of every pod; without it, a summary
    #[arg(long)]
    pub full: bool,
    /// text to read, json for programs
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Pretend a host: facts as TOML, YAML or JSON
    #[arg(long, value_name = "FILE")]
    pub facts: Option<PathBuf>,
    /// Pretend so many cores, 1 or more
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub cpus: Option<u32>,
    /// Pretend so many GPUs
    #[arg(long, value_name = "N")]
    pub gpus: Option<u32>,
    /// Pretend that the containers run as this user (without an entry in /etc/passwd unless it is 0)
    #[arg(long, value_name = "UID")]
    pub uid: Option<u32>,
    /// Pretend a view without Fluxion
    #[arg(long)]
    pub no_fluxion: bool,
    /// Pretend an image without a shell
    #[arg(long)]
    pub no_shell: bool,
}

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
            DryRunError::Read { .. } => Category::SpecUnreadable,
            DryRunError::Input { .. } | DryRunError::Facts { .. } | DryRunError::Index { .. } => Category::SpecInvalid,
            DryRunError::Plan { source, .. } => source.category(),
            DryRunError::Json { .. } => Category::Internal,
        }
    }

    /// Several problems: a line each, after what was read.
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
            DryRunError::Facts { .. } => {
                Some("every fact may be left out; `--format json` shows their names under source")
            }
            _ => None,
        }
    }
}

/// The plans of the file, printed.
pub fn run(args: &Args) -> Result<String, DryRunError> {
    let source = source(&args.file)?;
    let facts = facts(args, &source)?;
    let pods = pods::plan(&source, &facts, args.index)?;
    match args.format {
        Format::Text if args.full || args.index.is_some() => Ok(text::render(&source, &facts, &pods)),
        Format::Text => Ok(summary::render(&source, &facts, &pods)),
        Format::Json => json(&source, &facts, &pods).map_err(|source| DryRunError::Json { source }),
    }
}

/// The file, understood.
pub fn source(path: &Path) -> Result<Source, DryRunError> {
    Source::parse(&read(path)?).map_err(|problems| DryRunError::Input { path: path.to_owned(), source: problems })
}

fn read(path: &Path) -> Result<String, DryRunError> {
    let text = match path == Path::new("-") {
        true => std::io::read_to_string(std::io::stdin()),
        false => std::fs::read_to_string(path),
    };
    text.map_err(|source| DryRunError::Read { path: path.to_owned(), source })
}

/// The pretended host: a file's, else the usual pod with what the MiniCluster says of its container; flags count last.
fn facts(args: &Args, source: &Source) -> Result<Facts, DryRunError> {
    let mut facts = match &args.facts {
        Some(path) => {
            let text = read(path)?;
            Facts::parse(&text).map_err(|source| DryRunError::Facts { path: path.clone(), source })?
        }
        None => source.assumed_facts(),
    };
    if let Some(cores) = args.cpus {
        facts.cores = cores;
        facts.cpu_quota = None;
    }
    if let Some(uid) = args.uid {
        source::pretend_user(&mut facts, uid, uid);
    }
    facts.gpus = args.gpus.unwrap_or(facts.gpus);
    facts.view.fluxion &= !args.no_fluxion;
    if args.no_shell {
        facts.shell = None;
    }
    Ok(facts)
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
