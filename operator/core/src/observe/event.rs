//! When an event of Kubernetes last occurred.

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::jiff::Timestamp;

/// The latest time that the event's author states. (An event of the scheduler that occurs again has only the time of its
/// `series`.)
pub fn last_occurrence(event: &Event) -> Option<Timestamp> {
    let series = event
        .series
        .as_ref()
        .and_then(|series| series.last_observed_time.as_ref())
        .map(|time| time.0);
    let last = event.last_timestamp.as_ref().map(|time| time.0);
    series.max(last).or(event.event_time.as_ref().map(|time| time.0))
}
