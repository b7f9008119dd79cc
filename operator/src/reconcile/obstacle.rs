//! What keeps the operator from its work, and what a person can do about it.

/// The API server does not take what lies over the pods: the spec is not valid.
pub const POD_TEMPLATE_REFUSED: &str = "PodTemplateRefused";

/// Another gang is being placed. It passes within a minute or so, and needs nobody's help.
pub const WAITING_FOR_GANG: &str = "WaitingForGang";

/// Why the operator could not do its part. It goes on trying, ever more slowly.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Obstacle {
    /// One word, of a closed set.
    pub reason: &'static str,
    /// What is in the way, and the remedy.
    pub message: String,
}
