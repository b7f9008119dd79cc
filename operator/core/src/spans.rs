//! The spans of a MiniCluster's trace (OpenTelemetry): one for the MiniCluster, and below it one for each step of its
//! start, one for the job, and for its first pods one for each run, with its stages. Pure.
//!
//! A MiniCluster's times come from its metadata and status, in whole seconds. A pod's times are in the second line of
//! its termination message. OpenTelemetry's tracing API measures code while it runs. These times were recorded earlier,
//! by Kubernetes, the operator and the agents, so this module has types of its own.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use flux_shared::crd::v1alpha2::MiniClusterStatus;
use flux_shared::phase::Phase;
use flux_shared::termination::Termination;
use flux_shared::timeline::PodTimeline;
use flux_shared::trace::{TRACED_PODS, TraceParent};
use k8s_openapi::api::core::v1::ContainerStateTerminated;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::labels;
use crate::observe::Key;
use crate::observe::pod::PodStatusObject;

/// If a pod is seen for the first time, its ends within this time (long enough for a change of leaders) get spans: it
/// may have ended while no operator led. If another leader has sent these spans already, they get the same ids again.
/// Earlier ends get no spans, since there may be thousands of them.
const RECENT: SignedDuration = SignedDuration::from_mins(5);

/// Most stages of a pod that get spans. The agent has about 18; a forged message has room for hundreds.
const MAX_STAGES: usize = 32;

/// A span. Times are since the epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    pub id: u64,
    /// None: the root of the trace.
    pub parent: Option<u64>,
    pub name: String,
    pub begin: Duration,
    pub end: Duration,
    pub attributes: Vec<(&'static str, Attribute)>,
    /// Why it failed. None: it did not fail.
    pub error: Option<String>,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attribute {
    Text(String),
    Number(i64),
}

impl From<&str> for Attribute {
    fn from(text: &str) -> Attribute {
        Attribute::Text(text.to_owned())
    }
}

impl From<i64> for Attribute {
    fn from(number: i64) -> Attribute {
        Attribute::Number(number)
    }
}

/// The spans of one trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Traced {
    /// The id of the trace.
    pub trace: u128,
    /// The program that measured the times.
    pub by: Program,
    pub spans: Vec<Span>,
}

/// A program that measures times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    Operator,
    Agent,
}

/// The spans of a MiniCluster that has ended with `status`. None: its uid is no UUID, so that there is no id for the
/// trace, or the status has no completion time.
pub fn build(key: &Key, uid: &str, created: Timestamp, status: &MiniClusterStatus) -> Option<Traced> {
    let root = TraceParent::of_uid(uid)?;
    let begin = since_epoch(created)?;
    let end = time(status.completion_time.as_deref())?.max(begin);
    let timeline = status.timeline.clone().unwrap_or_default();
    // Each step, and when it ended.
    // A restart changes no `start_time`, but the rest of the timeline is that of the last start.
    let restarted = status.restarts.last().map(|restart| restart.time.as_str());
    let steps = [
        ("earlier starts", time(restarted)),
        ("create the Job", time(status.start_time.as_deref())),
        ("schedule the pods", time(timeline.scheduled.as_deref())),
        ("start the lead", time(timeline.running.as_deref())),
        ("connect the brokers", time(timeline.ready.as_deref())),
        ("job", Some(end)),
    ];
    let phase = status.phase.clone().unwrap_or_default();
    let error = (phase == Phase::Failed.as_str()).then(|| {
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
        error,
    };
    let mut spans = vec![whole];
    let mut last = begin;
    for (number, (name, at)) in (1..).zip(steps) {
        // A step that was never reached has no span, and the job did not run before its brokers were ready.
        let Some(at) = at else { continue };
        if name == "job" && timeline.ready.is_none() {
            continue;
        }
        let at = at.clamp(last, end);
        spans.push(Span {
            // 0 is no valid id.
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
        by: Program::Operator,
        spans,
    })
}

/// The spans of a pod: an entry for each new end of the container that runs Flux. (A container that is restarted ends
/// several times.) `known`: how many of its ends were seen before. None: the pod was not seen before.
pub fn of_pod(pod: &PodStatusObject, known: Option<u32>, now: Timestamp) -> Vec<Traced> {
    let annotation = || pod.metadata.annotations.as_ref()?.get(labels::TRACE);
    let parent = annotation().and_then(|text| text.parse::<TraceParent>().ok());
    let pod_index = labels::completion_index(&pod.metadata);
    // Only the first pods of a MiniCluster have spans.
    let (Some(parent), Some(pod_index @ 0..TRACED_PODS)) = (parent, pod_index) else {
        return Vec::new();
    };
    // The operator's cache of pods (`observe::Index`) does not record the ends of pods without this label. So each
    // event of such a pod would send its spans again.
    let is_of_a_cluster = |labels: &BTreeMap<String, String>| labels.contains_key(labels::CLUSTER);
    if !pod.metadata.labels.as_ref().is_some_and(is_of_a_cluster) {
        return Vec::new();
    }
    let is_recent = |terminated: &ContainerStateTerminated| {
        let ended_at = terminated.finished_at.as_ref();
        ended_at.is_some_and(|at| now.duration_since(at.0) <= RECENT)
    };
    pod.runner_ends()
        .into_iter()
        .filter(|end| match known {
            Some(known) => end.number > known,
            None => is_recent(end.terminated),
        })
        .filter_map(|end| {
            Some(Traced {
                trace: parent.trace,
                by: Program::Agent,
                spans: pod_spans(pod, parent, pod_index, end.terminated)?,
            })
        })
        .collect()
}

/// One run of a pod's container as a span below `parent`, and its stages as spans below that one. None: the termination
/// message has no timeline. The timeline is not trusted, since any program in the pod can write a termination message.
fn pod_spans(
    pod: &PodStatusObject,
    parent: TraceParent,
    index: u32,
    terminated: &ContainerStateTerminated,
) -> Option<Vec<Span>> {
    let message = terminated.message.as_deref()?;
    let timeline = PodTimeline::decode(message)?;
    // The agent's code, if it reports one. After a restart of the node's runtime, that of the container may be a
    // placeholder.
    let code =
        Termination::decode(message).map_or(terminated.exit_code, |termination| termination.code.into());
    // The same run always gets the same ids, even if two leaders send its spans.
    // Number 0 is the run itself, and its stages follow from 1.
    let id = |number: usize| {
        let mut hasher = DefaultHasher::new();
        (parent.span, &pod.metadata.uid, timeline.started, number).hash(&mut hasher);
        // 0 is no valid id.
        hasher.finish().max(1)
    };
    let at = |micros: u64| Duration::from_micros(micros);
    let stages = (1..)
        .zip(timeline.stages.iter().take(MAX_STAGES))
        .map(|(number, stage)| {
            let begin = timeline.started.saturating_add_signed(stage.start);
            Span {
                id: id(number),
                parent: Some(id(0)),
                name: stage.name.clone(),
                begin: at(begin),
                end: at(begin.saturating_add(stage.lasted)),
                attributes: Vec::new(),
                error: None,
            }
        });
    let stages: Vec<Span> = stages.collect();
    let whole = Span {
        id: id(0),
        parent: Some(parent.span),
        name: format!("pod {index}"),
        // The stages of init containers begin before the agent's start.
        begin: stages
            .iter()
            .map(|stage| stage.begin)
            .fold(at(timeline.started), Duration::min),
        end: at(timeline.started.saturating_add(timeline.lasted)),
        attributes: vec![
            ("host.name", timeline.host.as_str().into()),
            (
                "k8s.pod.name",
                pod.metadata.name.as_deref().unwrap_or_default().into(),
            ),
            ("flux.role", timeline.role.as_str().into()),
            ("process.exit.code", i64::from(code).into()),
        ],
        error: (code != 0).then(|| format!("it ended with code {code}")),
    };
    Some([vec![whole], stages].concat())
}

/// The time in a status since the epoch. None: it is missing or cannot be parsed.
fn time(text: Option<&str>) -> Option<Duration> {
    since_epoch(text?.parse().ok()?)
}

/// The time since the epoch (1970). None: it is before the epoch.
fn since_epoch(time: Timestamp) -> Option<Duration> {
    Duration::try_from(time.as_duration()).ok()
}

#[cfg(test)]
mod tests {
    use flux_shared::termination::Ender;
    use flux_shared::timeline::{self, Stage};
    use serde_json::{Value, json};

    use super::*;
    use crate::observe::Index;
    use crate::observe::pod::PodSeen;

    fn spans(status: Value) -> Vec<Span> {
        let status = serde_json::from_value(status).unwrap();
        let created = "2026-01-01T00:00:00Z".parse().unwrap();
        let uid = "0af76519-16cd-43dd-8448-eb211c80319c";
        build(&Key::new("team", "mc"), uid, created, &status)
            .map(|traced| traced.spans)
            .unwrap_or_default()
    }

    #[test]
    fn steps_cover_the_span_of_their_minicluster_without_gaps() {
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
    fn unreached_steps_have_no_span() {
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

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-8448eb211c80319c-01";

    fn message(host: &str, code: u8) -> String {
        let stage = |name: &str, start, lasted| Stage {
            name: name.to_owned(),
            start,
            lasted,
        };
        let timeline = PodTimeline {
            version: timeline::VERSION,
            host: host.to_owned(),
            role: "lead".to_owned(),
            started: 5_000_000,
            lasted: 3_000_000,
            stages: vec![stage("view", -2_000_000, 1_500_000), stage("plan", 0, 250_000)],
        };
        Termination::new(Ender::Program, code).encode_with(&timeline)
    }

    fn ended(message: &str, finished: &str) -> Value {
        json!({ "terminated": { "exitCode": 1, "message": message, "finishedAt": finished } })
    }

    fn pod(annotation: &str, index: &str, status: Value) -> PodStatusObject {
        let mut runner =
            json!({ "name": "mc", "image": "i", "imageID": "i", "ready": false, "restartCount": 0 });
        runner
            .as_object_mut()
            .unwrap()
            .extend(status.as_object().unwrap().clone());
        serde_json::from_value(json!({
            "metadata": {
                "name": "mc-0-abcde", "uid": "u", "annotations": { labels::TRACE: annotation },
                "labels": { labels::COMPLETION_INDEX: index, labels::CLUSTER: "mc" },
            },
            "spec": {},
            "status": { "containerStatuses": [runner] },
        }))
        .unwrap()
    }

    fn now() -> Timestamp {
        "2026-01-01T00:10:00Z".parse().unwrap()
    }

    const THEN: &str = "2026-01-01T00:01:00Z";

    #[test]
    fn stages_are_spans_of_their_pod() {
        let pod = pod(PARENT, "3", json!({ "state": ended(&message("mc-3", 7), THEN) }));
        let [traced] = &of_pod(&pod, Some(0), now())[..] else {
            panic!("one end")
        };
        assert_eq!(traced.trace, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c);
        let [pod, view, plan] = &traced.spans[..] else {
            panic!("three spans")
        };
        assert_eq!(
            (pod.name.as_str(), pod.parent, pod.error.as_deref()),
            ("pod 3", Some(0x8448_eb21_1c80_319c), Some("it ended with code 7"))
        );
        assert_eq!(
            (view.parent, plan.parent, view.id == plan.id),
            (Some(pod.id), Some(pod.id), false)
        );
        let seconds = |span: &Span| (span.begin.as_secs_f64(), span.end.as_secs_f64());
        assert_eq!(
            (seconds(pod), seconds(view), seconds(plan)),
            ((3.0, 8.0), (3.0, 4.5), (5.0, 5.25))
        );
    }

    /// As the kubelet reports it: ended, waiting for its restart, running again, ended again.
    #[test]
    fn each_end_of_a_restarted_container_has_its_spans_once() {
        let (first, second) = (
            ended(&message("first", 1), THEN),
            ended(&message("second", 0), THEN),
        );
        let running = json!({ "running": {} });
        let waiting = json!({ "waiting": { "reason": "CrashLoopBackOff" } });
        let reports = [
            (json!({ "state": running }), None),
            (json!({ "state": first }), Some("first")),
            (json!({ "state": first }), None),
            (json!({ "state": waiting, "lastState": first }), None),
            (
                json!({ "state": running, "lastState": first, "restartCount": 1 }),
                None,
            ),
            (
                json!({ "state": second, "lastState": first, "restartCount": 1 }),
                Some("second"),
            ),
            (
                json!({ "state": second, "lastState": first, "restartCount": 1 }),
                None,
            ),
        ];
        let index = Index::default();
        for (status, want) in reports {
            let mut pod = pod(PARENT, "0", status);
            pod.metadata.namespace = Some("team".into());
            let known = index.runner_ends(&pod.metadata);
            let hosts: Vec<_> = of_pod(&pod, known, now())
                .iter()
                .map(|traced| traced.spans[0].attributes[0].1.clone())
                .collect();
            let want: Vec<_> = want.into_iter().map(Attribute::from).collect();
            assert_eq!(hosts, want, "{known:?} known");
            index.update_pod(&pod.metadata, PodSeen::of_object(&pod));
        }
        // An end that was never seen as the present state.
        let status = json!({ "state": running, "lastState": first, "restartCount": 1 });
        assert_eq!(of_pod(&pod(PARENT, "0", status), Some(0), now()).len(), 1);
    }

    #[test]
    fn ends_that_another_leader_may_have_sent_count_only_if_recent() {
        let spans = |finished| {
            let pod = pod(
                PARENT,
                "0",
                json!({ "state": ended(&message("mc-0", 0), finished) }),
            );
            of_pod(&pod, None, now())
        };
        assert!(spans(THEN).is_empty());
        let recent = spans("2026-01-01T00:09:00Z");
        assert_eq!(recent.len(), 1);
        assert_eq!(recent, spans("2026-01-01T00:08:00Z"), "the same ids");
    }

    #[test]
    fn pods_without_a_trace_or_with_a_forged_timeline_do_no_harm() {
        let count = |annotation, index, message: &str| {
            let pod = pod(annotation, index, json!({ "state": ended(message, THEN) }));
            of_pod(&pod, Some(0), now()).len()
        };
        let message = message("mc-0", 0);
        assert_eq!(count(PARENT, "63", &message), 1);
        assert_eq!(count(PARENT, "64", &message), 0, "only the first pods");
        assert_eq!(count("", "0", &message), 0, "it is not traced");
        for wrong in ["", "{}\n{}", "\n\n", &message[..message.len() - 1]] {
            assert_eq!(count(PARENT, "0", wrong), 0, "{wrong}");
        }
        let most = format!(
            "x\n{{\"timeline\":1,\"host\":\"\",\"role\":\"\",\"started\":{max},\"lasted\":{max},\"stages\":[[\"\",{low},{max}],[\"\",{high},{max}]]}}",
            max = u64::MAX,
            low = i64::MIN,
            high = i64::MAX
        );
        assert_eq!(count(PARENT, "0", &most), 1);
    }

    #[test]
    fn forged_pods_do_not_crowd_out_the_spans_of_others() {
        let stages = vec!["[\"\",0,1]"; 400].join(",");
        let message = format!(
            "x\n{{\"timeline\":1,\"host\":\"\",\"role\":\"\",\"started\":1,\"lasted\":1,\"stages\":[{stages}]}}"
        );
        let mut pod = pod(
            PARENT,
            "0",
            json!({ "state": ended(&message, "2026-01-01T00:09:00Z") }),
        );
        assert_eq!(of_pod(&pod, None, now())[0].spans.len(), 1 + MAX_STAGES);
        pod.metadata.labels.as_mut().unwrap().remove(labels::CLUSTER);
        assert!(
            of_pod(&pod, None, now()).is_empty(),
            "without the label, its spans would be sent with each event"
        );
    }
}
