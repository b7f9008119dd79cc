//! Events, by which people are told.

use kube::Resource;
use kube::runtime::events::Event;

use super::Writer;
use crate::observe::cluster::Cluster;

/// Whether the call failed because the namespace is being deleted: nobody would read the event.
fn is_terminating(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let causes = status.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
    causes.iter().any(|cause| cause.reason == "NamespaceTerminating")
}

impl Writer {
    /// Writes events. Best effort: a failure is only logged.
    pub async fn write_events(&self, object: &Cluster, events: &[Event]) {
        if object.meta().deletion_timestamp.is_some() {
            return;
        }
        for event in events {
            if let Err(error) = self.recorder.publish(event, &object.object_ref(&())).await
                && !is_terminating(&error)
            {
                crate::health::log::warn("failed to write an event", &error);
            }
        }
    }
}
