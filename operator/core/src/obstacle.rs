//! Why a reconcile could not be completed, and what a person can do about it.

use crate::vocabulary::Reason;

/// Why the operator could not complete a reconcile. It retries with growing pauses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Obstacle {
    pub reason: Reason,
    /// The cause and the remedy, for the status.
    pub message: String,
    is_wait: bool,
}

impl Obstacle {
    pub fn new(reason: Reason, message: impl Into<String>) -> Obstacle {
        Obstacle {
            reason,
            message: message.into(),
            is_wait: reason == Reason::WaitingForPrevious,
        }
    }

    /// An obstacle that ends by itself, which its reason alone does not say.
    pub fn wait(reason: Reason, message: impl Into<String>) -> Obstacle {
        Obstacle {
            is_wait: true,
            ..Obstacle::new(reason, message)
        }
    }

    /// The obstacle while a reconcile takes longer than this many seconds.
    pub fn slow_for(seconds: u64) -> Obstacle {
        let message = format!(
            "the operator's calls for this MiniCluster have taken more than {seconds} s: the API server answers slowly or not at \
             all. Is an admission webhook slow or down (kubectl get \
             validatingwebhookconfigurations,mutatingwebhookconfigurations)?"
        );
        Obstacle::new(Reason::ApiError, message)
    }

    /// Whether the operator waits for something that ends by itself. This is no error.
    pub fn is_wait(&self) -> bool {
        self.is_wait
    }

    /// Whether it may end without a user's action. Then the condition `Stalled` is not set.
    pub fn is_passing(&self) -> bool {
        self.is_wait || matches!(self.reason, Reason::ApiError | Reason::NamespaceTerminating)
    }

    /// Whether a ResourceQuota has no room for an object now, but may have when other objects end. If nobody uses one of
    /// the exceeded resources (`used: pods=0`), the object alone exceeds the quota, and waiting does not help.
    pub fn is_full_quota(&self) -> bool {
        let exceeded = self.message.split_once(" is forbidden: exceeded quota: ");
        let used = exceeded.and_then(|(_, quota)| quota.split_once(", used: ")?.1.split_once(", limited: "));
        self.reason == Reason::Forbidden
            && exceeded.is_some()
            && used.is_none_or(|(used, _)| used.split(',').all(|resource| !resource.ends_with("=0")))
    }
}
