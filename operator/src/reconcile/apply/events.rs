//! Events, by which people are told.

use kube::Resource;
use kube::runtime::events::Event;

use super::{Writer, is_of_terminating_namespace};
use crate::observe::cluster::Cluster;

impl Writer {
    /// Writes events. Best effort: a failure is only logged.
    pub async fn write_events(&self, object: &Cluster, events: &[Event]) {
        if object.meta().deletion_timestamp.is_some() {
            return;
        }
        for event in events {
            if let Err(error) = self.recorder.publish(event, &object.object_ref(&())).await
                // Nobody would read it in a namespace that is being deleted.
                && !matches!(&error, kube::Error::Api(status) if is_of_terminating_namespace(status))
            {
                crate::health::log::warn("failed to write an event", &error);
            }
        }
    }
}
