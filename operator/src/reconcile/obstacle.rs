//! What keeps the operator from its work, and what a person can do about it.

/// The API server refuses a pod template of the spec: the spec is not valid.
pub const POD_TEMPLATE_REFUSED: &str = "PodTemplateRefused";

/// Another gang is being scheduled. This passes within a minute or so, without anybody's help.
pub const WAITING_FOR_GANG: &str = "WaitingForGang";

/// Why the operator cannot go on. It retries with growing pauses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Obstacle {
    /// The reason: one word of a closed set.
    pub reason: &'static str,
    /// What is in the way, and the remedy.
    pub message: String,
}
