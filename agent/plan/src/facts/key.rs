//! The inputs from which a job without an operator derives its curve certificate.

use serde::{Deserialize, Serialize};

/// A secret seed, and what tells this job from all others. Nothing here is secret: the seed itself stays in
/// its file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyInputs {
    /// The file with the seed.
    pub seed: String,
    /// Values that no two jobs share, such as the job's uid and the number of its attempt.
    pub of: Vec<String>,
}
