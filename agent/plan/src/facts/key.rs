//! The inputs from which a job without an operator derives its curve certificate.

use serde::{Deserialize, Serialize};

/// Where the secret seed is, and what distinguishes this job from all others. Nothing here is secret. The
/// renamed fields are keys in the output of `flux-agent facts`, which `dry-run --facts` reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyInputs {
    /// Path of the file with the seed.
    #[serde(rename = "seed")]
    pub seed_file: String,
    /// Values that no two jobs or JobSets share, such as the uid and the number of the attempt.
    #[serde(rename = "of")]
    pub job_values: Vec<String>,
}
