//! Namespaces that are being deleted. Nothing can be created in them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a namespace counts as being deleted after the API server has said so. After that, reconciles try to create
/// objects again, and the API server answers anew.
const VALID_FOR: Duration = Duration::from_secs(60);

/// Namespaces that are being deleted, and when the API server said so.
#[derive(Debug, Default)]
pub struct TerminatingNamespaces(Mutex<HashMap<String, Instant>>);

impl TerminatingNamespaces {
    /// Notes that a namespace is being deleted.
    pub fn note(&self, namespace: &str, now: Instant) {
        let mut terminating = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        terminating.retain(|_, since| now.saturating_duration_since(*since) < VALID_FOR);
        terminating.insert(namespace.to_owned(), now);
    }

    /// Whether the API server said within the last minute that the namespace is being deleted.
    pub fn contains(&self, namespace: &str, now: Instant) -> bool {
        let terminating = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        terminating
            .get(namespace)
            .is_some_and(|since| now.saturating_duration_since(*since) < VALID_FOR)
    }
}
