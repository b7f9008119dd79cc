//! Why a reconcile failed and is retried.

use std::time::Duration;

use crate::health::panics::Panicked;
use crate::reconcile::apply::ApplyError;
use crate::reconcile::obstacle::{Obstacle, WAITING_FOR_GANG};
use crate::reconcile::random;
use crate::reconcile::render::RenderError;

/// Why a reconcile has to be repeated.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    #[error(transparent)]
    Apply(#[from] ApplyError),
    #[error(transparent)]
    Render(#[from] RenderError),
    #[error(transparent)]
    Key(#[from] random::RandomError),
    #[error("failed to get the MiniCluster, whose spec is too large for the cache")]
    Cluster(#[source] kube::Error),
    #[error("failed to get the version of Kubernetes")]
    Version(#[source] kube::Error),
    #[error("failed to find the APIs for gangs")]
    Gangs(#[source] kube::Error),
    #[error(transparent)]
    Panicked(#[from] Panicked),
}

impl ReconcileError {
    /// What the status says about it, if a person can help.
    pub fn obstacle(&self) -> Option<&Obstacle> {
        match self {
            ReconcileError::Apply(ApplyError::Obstacle(obstacle)) => Some(obstacle),
            _ => None,
        }
    }

    /// Whether it waits for its turn to create a gang, which is no failure.
    pub fn waits_for_turn(&self) -> bool {
        self.obstacle().is_some_and(|obstacle| obstacle.reason == WAITING_FOR_GANG)
    }

    /// How long the API server asks to wait, if it is overloaded.
    pub fn asked_to_wait(&self) -> Duration {
        let ReconcileError::Apply(ApplyError::Api { source, .. }) = self else { return Duration::ZERO };
        let kube::Error::Api(status) = source.as_ref() else { return Duration::ZERO };
        let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
        Duration::from_secs(seconds.min(60).into())
    }
}
