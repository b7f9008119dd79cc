//! What keeps the operator from doing its part, where a person can help.

/// Why the operator could not do its part. It goes on trying, ever more slowly.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Obstacle {
    /// One word, of a closed set.
    pub reason: &'static str,
    /// What is in the way, and the remedy.
    pub message: String,
}
