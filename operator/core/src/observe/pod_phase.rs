//! The phases of a pod, the values of its `status.phase`.

use k8s_openapi::api::core::v1::PodStatus;

/// The phase of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodPhase {
    Pending,
    Running,
    Succeeded,
    Failed,
    /// Kubernetes' own phase for a pod whose node does not answer. Also any phase that is not listed here.
    Unknown,
}

impl PodPhase {
    /// The phase in a pod's status. Without one, the pod is pending, as it is by the API server's default.
    pub fn of(status: &PodStatus) -> PodPhase {
        match status.phase.as_deref() {
            None | Some("" | "Pending") => PodPhase::Pending,
            Some("Running") => PodPhase::Running,
            Some("Succeeded") => PodPhase::Succeeded,
            Some("Failed") => PodPhase::Failed,
            Some(_) => PodPhase::Unknown,
        }
    }

    /// Whether all containers of the pod have ended, and none will be restarted.
    pub fn has_ended(self) -> bool {
        matches!(self, PodPhase::Succeeded | PodPhase::Failed)
    }
}
