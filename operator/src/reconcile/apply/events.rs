//! Writes Kubernetes events about MiniClusters, for people.

use flux_operator_core::observe::cluster::Cluster;
use flux_operator_core::status::events::{Event, EventType};
use kube::Resource;
use kube::runtime::events;

use super::{Writer, is_of_terminating_namespace};

impl Writer {
    /// Writes events, unless the MiniCluster is being deleted: its objects are then deleted on purpose. Best effort:
    /// a failure is only logged.
    pub async fn write_events(&self, object: &Cluster, events: &[Event]) {
        if object.meta().deletion_timestamp.is_some() {
            return;
        }
        for event in events {
            if let Err(error) = self.recorder.publish(&to_kube(event), &object.object_ref(&())).await
                // In a namespace that is being deleted no event can be created, and nobody would read it.
                && !matches!(&error, kube::Error::Api(status) if is_of_terminating_namespace(status))
            {
                crate::health::log::warn("failed to write an event", &error);
            }
        }
    }
}

fn to_kube(event: &Event) -> events::Event {
    let Event {
        type_,
        reason,
        note,
        action,
    } = event.clone();
    let type_ = match type_ {
        EventType::Normal => events::EventType::Normal,
        EventType::Warning => events::EventType::Warning,
    };
    events::Event {
        type_,
        reason,
        note: Some(note),
        action,
        secondary: None,
    }
}
