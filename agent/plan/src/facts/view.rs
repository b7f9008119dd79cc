//! Facts about the Flux view.

use serde::{Deserialize, Serialize};

/// The contents of the view. Default: a current Flux with Fluxion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ViewFacts {
    /// Whether `bin/flux` exists and is executable.
    pub flux: bool,
    /// The newest Python in `lib` that has site-packages, such as `python3.11`.
    pub python: Option<String>,
    /// Whether Fluxion's modules exist (`lib/flux/modules/sched-fluxion-qmanager.so`).
    pub fluxion: bool,
    /// Whether Fluxion has a file for `flux modprobe`. False: it has an rc1 script, as before 2025.
    pub fluxion_modprobe: bool,
}

impl Default for ViewFacts {
    fn default() -> Self {
        ViewFacts {
            flux: true,
            python: Some("python3.11".into()),
            fluxion: true,
            fluxion_modprobe: true,
        }
    }
}
