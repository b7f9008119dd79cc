//! Errors of `dry-run`.

use std::path::PathBuf;

use flux_shared::exit::Category;

use super::source::Problems;
use crate::facts::FactsError;
use crate::plan::PlanError;

/// Why `dry-run` cannot print the plans.
#[derive(Debug, thiserror::Error)]
pub enum DryRunError {
    #[error("not in a pod: --here is for flux-agent in a pod")]
    NotInPod,
    #[error("failed to read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("failed to understand {}", path.display())]
    Input { path: PathBuf, source: Problems },
    #[error("failed to read the facts in {}", path.display())]
    Facts { path: PathBuf, source: FactsError },
    /// `pods`: the number of pods, whose indexes count from 0.
    #[error("failed to find a pod with index {index}: the highest index is {}", pods.saturating_sub(1))]
    Index { index: u32, pods: u32 },
    /// `index`: the pod that cannot be planned. None: the error is not about one pod, or the pod's
    /// index is unknown.
    #[error("failed to plan{}", index.map(|index| format!(" for index {index}")).unwrap_or_default())]
    Plan { index: Option<u32>, source: PlanError },
    #[error("failed to write the plans as JSON")]
    Json { source: serde_json::Error },
}

impl DryRunError {
    /// The category, which decides the exit code. An error that `flux-agent run` can have too has the same
    /// category there.
    pub fn category(&self) -> Category {
        match self {
            DryRunError::NotInPod | DryRunError::Read { .. } => Category::SpecUnreadable,
            DryRunError::Input { .. } | DryRunError::Facts { .. } | DryRunError::Index { .. } => {
                Category::SpecInvalid
            }
            DryRunError::Plan { source, .. } => source.category(),
            DryRunError::Json { .. } => Category::Internal,
        }
    }

    /// If the input has several problems: the message of the error, then each problem on its own line. None for a
    /// single problem and for other errors.
    pub fn listed_problems(&self) -> Option<String> {
        match self {
            DryRunError::Input { source, .. } if source.has_several() => Some(format!("{self}:\n{source}")),
            _ => None,
        }
    }

    /// What the user can do about the error.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            DryRunError::Plan { source, .. } => Some(source.hint()),
            DryRunError::Facts { .. } => {
                Some("all facts are optional; `--format json` lists their names under source.facts")
            }
            _ => None,
        }
    }
}
