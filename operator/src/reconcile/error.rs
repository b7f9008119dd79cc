//! Why a reconcile failed and is retried.

use std::time::Duration;

use flux_operator_core::obstacle::Obstacle;
use flux_operator_core::render::RenderError;
use flux_operator_core::status::Panicked;
use flux_operator_core::vocabulary::Reason;

use crate::api::retry::retry_after;
use crate::health::metrics::ReconcileOutcome;
use crate::reconcile::apply::ApplyError;
use crate::reconcile::random;

/// Why a reconcile has to be repeated.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    #[error(transparent)]
    Apply(#[from] ApplyError),
    #[error(transparent)]
    Render(#[from] RenderError),
    /// No random certificate, password or key could be made.
    #[error(transparent)]
    Key(#[from] random::RandomError),
    #[error("failed to get the MiniCluster, whose spec is too large for the cache")]
    Cluster(#[source] kube::Error),
    #[error("failed to write the status as JSON")]
    Status(#[source] serde_json::Error),
    #[error("failed to get the version of Kubernetes")]
    Version(#[source] kube::Error),
    #[error("failed to find the APIs for gangs")]
    Gangs(#[source] kube::Error),
    #[error(
        "the API server answers slowly, and too many other MiniClusters wait for it; the operator retries"
    )]
    TooManySlow,
    #[error(transparent)]
    Panicked(#[from] Panicked),
}

impl From<Obstacle> for ReconcileError {
    fn from(obstacle: Obstacle) -> ReconcileError {
        ApplyError::from(obstacle).into()
    }
}

impl ReconcileError {
    /// The obstacle, which the status shows at once. None: the status shows this error only if it lasts.
    pub fn obstacle(&self) -> Option<&Obstacle> {
        match self {
            ReconcileError::Apply(ApplyError::Obstacle(obstacle) | ApplyError::NoPermission(obstacle)) => {
                Some(obstacle)
            }
            _ => None,
        }
    }

    /// The obstacle by which the status shows this error.
    pub fn as_obstacle(&self) -> Obstacle {
        if let Some(obstacle) = self.obstacle() {
            return obstacle.clone();
        }
        let source = self.of_api_server();
        let reason = if self.is_of_terminating_namespace() {
            Reason::NamespaceTerminating
        } else {
            Reason::ApiError
        };
        let cause = source.map(|source| format!(": {}. The operator retries", describe_cause(source)));
        Obstacle::new(reason, format!("{self}{}", cause.unwrap_or_default()))
    }

    /// What the metrics count for a reconcile that ended with this error.
    pub fn outcome(&self) -> ReconcileOutcome {
        match self {
            ReconcileError::Panicked(_) => ReconcileOutcome::Panic,
            // A retry alone does not help: nothing can be created there.
            ReconcileError::Apply(ApplyError::NamespaceTerminating) => ReconcileOutcome::Obstacle,
            ReconcileError::Apply(ApplyError::Obstacle(obstacle)) if obstacle.is_wait() => {
                ReconcileOutcome::Success
            }
            ReconcileError::Apply(ApplyError::Obstacle(obstacle)) if !obstacle.is_passing() => {
                ReconcileOutcome::Obstacle
            }
            _ => ReconcileOutcome::Error,
        }
    }

    /// Whether the namespace is being deleted.
    pub fn is_of_terminating_namespace(&self) -> bool {
        matches!(self, ReconcileError::Apply(ApplyError::NamespaceTerminating))
    }

    /// How long the API server asks to wait before the next call, 60 s at most. Zero if it does not ask.
    pub fn retry_after(&self) -> Duration {
        self.of_api_server()
            .map_or(Duration::ZERO, retry_after)
            .min(RETRY_AFTER_MAX)
    }

    /// The failed call to the API server.
    fn of_api_server(&self) -> Option<&kube::Error> {
        match self {
            ReconcileError::Apply(ApplyError::Api { source, .. }) => Some(source),
            ReconcileError::Cluster(source)
            | ReconcileError::Version(source)
            | ReconcileError::Gangs(source) => Some(source),
            _ => None,
        }
    }
}

/// The API server's message with its HTTP code, or an error of the connection with all its causes.
fn describe_cause(error: &kube::Error) -> String {
    match error {
        // Without the message's final dot, since the code follows it.
        kube::Error::Api(status) => format!("{} ({})", status.message.trim_end_matches('.'), status.code),
        other => {
            let causes = std::iter::successors(Some(other as &dyn std::error::Error), |error| error.source());
            causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
        }
    }
}

/// Longest pause that the operator accepts from the API server.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_that_ends_by_itself_counts_as_no_error() {
        let outcome = |reason| ReconcileError::from(Obstacle::new(reason, "")).outcome();
        let ends_by_itself = Obstacle::wait(Reason::WaitingForPods, "");
        assert_eq!(
            ReconcileError::from(ends_by_itself).outcome(),
            ReconcileOutcome::Success
        );
        assert_eq!(outcome(Reason::WaitingForPods), ReconcileOutcome::Obstacle);
        assert_eq!(outcome(Reason::WaitingForPrevious), ReconcileOutcome::Success);
        assert_eq!(outcome(Reason::ApiError), ReconcileOutcome::Error);
        assert_eq!(outcome(Reason::NameTaken), ReconcileOutcome::Obstacle);
        assert_eq!(
            ReconcileError::Apply(ApplyError::NamespaceTerminating).outcome(),
            ReconcileOutcome::Obstacle
        );
        assert_eq!(ReconcileError::TooManySlow.outcome(), ReconcileOutcome::Error);
    }

    #[test]
    fn retry_waits_as_the_api_server_asks_up_to_60_s() {
        let asks = |seconds| {
            let status = serde_json::json!({ "code": 429, "details": { "retryAfterSeconds": seconds } });
            kube::Error::Api(serde_json::from_value(status).unwrap())
        };
        let wait = |error: ReconcileError| error.retry_after().as_secs();
        assert_eq!(wait(ReconcileError::Version(asks(30))), 30);
        assert_eq!(wait(ReconcileError::Gangs(asks(30))), 30);
        assert_eq!(wait(ReconcileError::Cluster(asks(300))), 60);
        assert_eq!(wait(ReconcileError::TooManySlow), 0);
    }
}
