//! The life of a MiniCluster as spans: the root of its trace. Pure.
//!
//! The pods' agents send theirs, which name this root by the same uid. Times are of whole seconds, as the API
//! server keeps them.

use std::time::Duration;

use flux_shared::crd::v1alpha2::MiniClusterStatus;
use flux_shared::trace::{Attribute, Span, TraceParent};
use k8s_openapi::jiff::Timestamp;

use crate::observe::Key;

/// The spans of one MiniCluster.
#[derive(Debug, Clone, PartialEq)]
pub struct Traced {
    pub trace: u128,
    pub spans: Vec<Span>,
}

/// The spans of a MiniCluster that has ended with `status`. None: it has no uid for the trace's id, or no
/// times.
pub fn spans(key: &Key, uid: &str, created: Timestamp, status: &MiniClusterStatus) -> Option<Traced> {
    let root = TraceParent::of_uid(uid)?;
    let begin = since_epoch(created)?;
    let end = time(status.completion_time.as_deref())?.max(begin);
    let timeline = status.timeline.clone().unwrap_or_default();
    let points = [
        ("create the Job", time(status.start_time.as_deref())),
        ("schedule the pods", time(timeline.scheduled.as_deref())),
        ("start the lead", time(timeline.running.as_deref())),
        ("connect the brokers", time(timeline.ready.as_deref())),
        ("job", Some(end)),
    ];
    let phase = status.phase.clone().unwrap_or_default();
    let failed = (phase == "Failed").then(|| {
        status
            .message
            .clone()
            .or(status.reason.clone())
            .unwrap_or(phase.clone())
    });
    let mut attributes = vec![
        ("k8s.namespace.name", Attribute::from(key.namespace.as_str())),
        ("flux.minicluster.name", key.name.as_str().into()),
        ("flux.minicluster.uid", uid.into()),
        ("flux.minicluster.phase", phase.as_str().into()),
        (
            "flux.minicluster.restarts",
            i64::from(status.restart_count).into(),
        ),
    ];
    attributes.extend(
        status
            .exit_code
            .map(|code| ("process.exit.code", i64::from(code).into())),
    );
    let whole = Span {
        id: root.span,
        parent: None,
        name: format!("MiniCluster {}/{}", key.namespace, key.name),
        begin,
        end,
        attributes,
        error: failed,
    };
    let mut spans = vec![whole];
    let mut last = begin;
    for (number, (name, at)) in (1..).zip(points) {
        // A step that was never reached has no span, and the job did not run before its brokers were ready.
        let Some(at) = at.filter(|_| name != "job" || timeline.ready.is_some()) else {
            continue;
        };
        let at = at.clamp(last, end);
        spans.push(Span {
            id: root.span.wrapping_add(number).max(1),
            parent: Some(root.span),
            name: name.to_owned(),
            begin: last,
            end: at,
            attributes: Vec::new(),
            error: None,
        });
        last = at;
    }
    Some(Traced {
        trace: root.trace,
        spans,
    })
}

fn time(text: Option<&str>) -> Option<Duration> {
    since_epoch(text?.parse().ok()?)
}

fn since_epoch(time: Timestamp) -> Option<Duration> {
    Duration::try_from(time.as_duration()).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spans(status: Value) -> Vec<Span> {
        let status = serde_json::from_value(status).unwrap();
        let created = "2026-01-01T00:00:00Z".parse().unwrap();
        let uid = "0af76519-16cd-43dd-8448-eb211c80319c";
        super::spans(&Key::new("team", "mc"), uid, created, &status)
            .map(|traced| traced.spans)
            .unwrap_or_default()
    }

    #[test]
    fn the_steps_of_a_life_follow_each_other_and_fill_it() {
        let spans = spans(json!({
            "phase": "Failed", "message": "it ended with code 7", "exitCode": 7, "restartCount": 1,
            "startTime": "2026-01-01T00:00:01Z", "completionTime": "2026-01-01T00:00:10Z",
            "timeline": { "scheduled": "2026-01-01T00:00:01Z", "running": "2026-01-01T00:00:04Z", "ready": "2026-01-01T00:00:05Z" },
        }));
        let (whole, steps) = spans.split_first().unwrap();
        assert_eq!(
            (whole.name.as_str(), whole.parent, whole.error.as_deref()),
            ("MiniCluster team/mc", None, Some("it ended with code 7"))
        );
        assert!(
            whole.attributes.contains(&("process.exit.code", 7.into())),
            "{whole:?}"
        );
        let seconds: Vec<_> = steps
            .iter()
            .map(|step| (step.end - step.begin).as_secs())
            .collect();
        assert_eq!(seconds, [1, 0, 3, 1, 5]);
        assert!(
            steps
                .iter()
                .all(|step| step.parent == Some(whole.id) && step.id != whole.id)
        );
        assert_eq!((steps[0].begin, steps[4].end), (whole.begin, whole.end));
    }

    #[test]
    fn what_was_never_reached_has_no_span() {
        let names = |status| {
            spans(status)
                .into_iter()
                .skip(1)
                .map(|span| span.name)
                .collect::<Vec<_>>()
        };
        let ended = json!({ "phase": "Failed", "startTime": "2026-01-01T00:00:01Z", "completionTime": "2026-01-01T00:00:03Z" });
        assert_eq!(names(ended), ["create the Job"]);
        assert!(
            spans(json!({ "phase": "Running" })).is_empty(),
            "it has not ended"
        );
    }
}
