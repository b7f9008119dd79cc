//! What keeps the operator from its work, and what a person can do about it.

/// The API server refuses a pod template of the spec: the spec is not valid.
pub const POD_TEMPLATE_REFUSED: &str = "PodTemplateRefused";

/// Pods of a Job that is gone still run.
pub const WAITING_FOR_PODS: &str = "WaitingForPods";

/// The API server, or an admission webhook behind it, fails again and again, or does not answer.
pub const API_ERROR: &str = "ApiError";

/// The namespace is being deleted: nothing can be created in it.
pub const NAMESPACE_TERMINATING: &str = "NamespaceTerminating";

/// The MiniCluster's own Job lacks the label by which the operator watches it.
pub const JOB_UNLABELLED: &str = "JobUnlabelled";

/// Reasons that pass without a person, or that somebody else is mending: the MiniCluster is not stalled.
pub const PASSING: [&str; 3] = ["WaitingForPrevious", API_ERROR, NAMESPACE_TERMINATING];

/// Why the operator cannot go on. It retries with growing pauses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Obstacle {
    /// The reason: one word of a closed set.
    pub reason: &'static str,
    /// What is in the way, and the remedy.
    pub message: String,
}

impl Obstacle {
    /// The API server has not answered for so many seconds.
    pub fn silent_api_server(seconds: u64) -> Obstacle {
        let message = format!(
            "creating the MiniCluster's objects: the API server has not answered for {seconds} s. Is an admission webhook slow \
             or down (kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations)?"
        );
        Obstacle {
            reason: API_ERROR,
            message,
        }
    }
}

/// A panic, by its file and line in our source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the operator panicked at {0}")]
pub struct Panicked(pub String);
