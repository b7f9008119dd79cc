//! The Flux view: what it holds.

use serde::{Deserialize, Serialize};

/// What the view holds. Default: a current one with Fluxion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ViewFacts {
    /// `bin/flux` is there and leads to a program.
    pub flux: bool,
    /// Its newest `lib/python3.X` with site-packages, such as `python3.11`.
    pub python: Option<String>,
    /// Fluxion's modules are there (`lib/flux/modules/sched-fluxion-qmanager.so`).
    pub fluxion: bool,
    /// Fluxion comes with a file for `flux modprobe`; false: with an rc1 script, as before 2025.
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
