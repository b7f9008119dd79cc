//! What keeps the operator from its work, and what a person can do about it.

use crate::vocabulary::Reason;

/// Why the operator cannot go on. It retries with growing pauses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Obstacle {
    pub reason: Reason,
    /// What is in the way, and the remedy.
    pub message: String,
}

impl Obstacle {
    pub fn api_server_silent_for(seconds: u64) -> Obstacle {
        let message = format!(
            "creating the MiniCluster's objects: the API server has not answered for {seconds} s. Is an admission webhook slow \
             or down (kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations)?"
        );
        Obstacle {
            reason: Reason::ApiError,
            message,
        }
    }

    /// Whether it passes without a user's action. Then the condition `Stalled` is not set.
    pub fn is_passing(&self) -> bool {
        matches!(
            self.reason,
            Reason::WaitingForPrevious | Reason::ApiError | Reason::NamespaceTerminating
        )
    }
}
