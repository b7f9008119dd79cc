//! `status` and `why`: one screen on what a MiniCluster is doing or why it failed, and the remedy.

mod remedy;

use comfy_table::{Table, presets};
use flux_operator_core::observe::event;
use flux_operator_core::observe::pod_phase::PodPhase;
use flux_shared::crd::v1alpha2::{MiniCluster, MiniClusterStatus};
use flux_shared::phase::Phase;
use flux_shared::printable::printable;
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use serde::Serialize;
use serde_json::Value;

use crate::connect;
use crate::failure::Failure;
use crate::observed::{self, lead_of};
use crate::output::Output;
use crate::screen;
use crate::target::Target;

/// Most pods that the text lists. Pods that do not run come first.
const MOST_PODS: usize = 16;
/// Most warnings that are listed, the latest ones.
const MOST_WARNINGS: usize = 6;
/// Kubernetes' reasons for a container that waits without a known problem.
const STARTING: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// Arguments of `status`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Name of the MiniCluster
    pub name: String,
}

/// The report that `status` prints.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusReport {
    name: String,
    namespace: String,
    phase: String,
    size: i32,
    ready: i32,
    exit_code: Option<i32>,
    reason: Option<String>,
    message: Option<String>,
    restarts: i32,
    pods: Vec<PodLine>,
    events: Vec<EventLine>,
    /// The agent's status of the instance, from the lead.
    instance: Option<Value>,
    /// For people: why there is no status of the instance, if the agent was silent.
    #[serde(skip)]
    silence: Option<String>,
    remedy: Option<String>,
}

#[derive(Debug, Serialize)]
struct PodLine {
    /// None: the services pod, which runs no broker.
    index: Option<u32>,
    name: String,
    node: String,
    state: String,
}

#[derive(Debug, Serialize)]
struct EventLine {
    object: String,
    reason: String,
    message: String,
    count: i32,
}

/// Prints the report.
pub async fn run(target: &Target, args: &Args, output: Output) -> Result<u8, Failure> {
    let cluster = target.cluster(&args.name).await?;
    let mut pods = target.pods_of(&cluster).await?;
    pods.extend(target.services_pod_of(&cluster).await?);
    let report = ask_for_report(target, &cluster, &pods).await;
    output
        .show(&report, || screen::fitted(&report_text(&report), screen::width()))
        .map(|()| 0)
}

/// The report as text.
pub async fn text(target: &Target, cluster: &MiniCluster, pods: &[Pod]) -> String {
    report_text(&ask_for_report(target, cluster, pods).await)
}

/// Reads the events, asks the lead's agent for its status, and makes the report.
async fn ask_for_report(target: &Target, cluster: &MiniCluster, pods: &[Pod]) -> StatusReport {
    let lead = lead_of(pods.iter());
    let events = events(target, cluster, pods).await;
    let (mut instance, mut silence) = (None, None);
    if let Some(lead) = lead.filter(|lead| observed::is_running(lead)) {
        match connect::report(target, lead, &["status", "--json"]).await {
            // The agent prints its status even if the broker does not answer. Its exit code is then 1.
            Ok((_, output)) => instance = serde_json::from_slice(&output).ok(),
            Err(failure @ Failure::SilentAgent(_)) => silence = Some(failure.to_string()),
            Err(_) => {}
        }
    }
    StatusReport {
        silence,
        ..report(target, cluster, pods, &events, instance)
    }
}

/// Events of the MiniCluster, its Job, its lead and its services pod, oldest first. They are selected by uid, since
/// earlier objects may have had the same names. Empty without permission to read events.
async fn events(target: &Target, cluster: &MiniCluster, pods: &[Pod]) -> Vec<Event> {
    let mut all = Vec::new();
    for uid in uids(cluster, pods) {
        let of_object = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
        all.extend(
            target
                .events()
                .list(&of_object)
                .await
                .map(|list| list.items)
                .unwrap_or_default(),
        );
    }
    all.sort_by_key(last_time);
    all
}

/// When an event has last occurred, as far as it says so, or was created.
fn last_time(event: &Event) -> Option<Timestamp> {
    let created = event.metadata.creation_timestamp.as_ref().map(|time| time.0);
    event::last_occurrence(event).or(created)
}

fn uids<'a>(cluster: &'a MiniCluster, pods: &'a [Pod]) -> Vec<&'a String> {
    let job = cluster.status.as_ref().and_then(|status| status.job_uid.as_ref());
    let services = pods.iter().find(|pod| observed::is_services_pod(pod));
    let pods = [lead_of(pods.iter()), services].into_iter().flatten();
    [cluster.metadata.uid.as_ref(), job]
        .into_iter()
        .chain(pods.map(|pod| pod.metadata.uid.as_ref()))
        .flatten()
        .collect()
}

/// Whether the MiniCluster has no problem now. Earlier warnings are then out of date.
fn is_healthy(status: &MiniClusterStatus, size: i32) -> bool {
    match status.phase() {
        Some(Phase::Completed) => true,
        Some(Phase::Running) => status.reason.is_none() && status.ready_size >= size,
        _ => false,
    }
}

fn report(
    target: &Target,
    cluster: &MiniCluster,
    pods: &[Pod],
    events: &[Event],
    instance: Option<Value>,
) -> StatusReport {
    let status = cluster.status.clone().unwrap_or_default();
    let is_healthy = is_healthy(&status, cluster.spec.size);
    let is_complete = status.phase() == Some(Phase::Completed);
    let MiniClusterStatus {
        ready_size,
        exit_code,
        reason,
        message,
        restart_count,
        ..
    } = status;
    let mut lines: Vec<PodLine> = pods.iter().filter_map(pod_line).collect();
    lines.sort_by_key(|line| (line.state == "running", line.index));
    let warnings = events
        .iter()
        .filter(|event| !is_healthy && event.type_.as_deref() == Some("Warning"));
    let warnings: Vec<EventLine> = warnings.map(event_line).collect();
    let skipped = warnings.len().saturating_sub(MOST_WARNINGS);
    StatusReport {
        name: cluster.metadata.name.clone().unwrap_or_default(),
        namespace: target.namespace.clone(),
        size: cluster.spec.size,
        ready: ready_size,
        exit_code,
        remedy: match &reason {
            Some(_) if is_complete => None,
            Some(reason) => remedy::of(reason),
            None if cluster.status.is_none() => Some(observed::NO_OPERATOR.into()),
            None => None,
        },
        phase: observed::phase_of(cluster.status.as_ref()).to_owned(),
        reason,
        message,
        restarts: restart_count,
        pods: lines,
        events: warnings.into_iter().skip(skipped).collect(),
        instance,
        silence: None,
    }
}

/// None: the pod has no index, so it runs no broker, and is not the services pod.
fn pod_line(pod: &Pod) -> Option<PodLine> {
    let index = observed::index(pod);
    (index.is_some() || observed::is_services_pod(pod)).then(|| PodLine {
        index,
        name: observed::name(pod).to_owned(),
        node: pod
            .spec
            .as_ref()
            .and_then(|spec| spec.node_name.clone())
            .unwrap_or_default(),
        state: state(pod),
    })
}

/// The pod's state in a few words.
fn state(pod: &Pod) -> String {
    let status = pod.status.clone().unwrap_or_default();
    if pod.metadata.deletion_timestamp.is_some() {
        return "is being deleted".into();
    }
    let containers = status
        .init_container_statuses
        .iter()
        .chain(&status.container_statuses)
        .flatten();
    for container in containers {
        let Some(state) = &container.state else { continue };
        let waiting_reason = state
            .waiting
            .as_ref()
            .and_then(|waiting| waiting.reason.as_deref());
        if let Some(reason) = waiting_reason.filter(|reason| !STARTING.contains(reason)) {
            return format!("{}: {reason}", container.name);
        }
        if let Some(end) = state.terminated.as_ref().filter(|end| end.exit_code != 0) {
            return format!("{} ended with {}", container.name, end.exit_code);
        }
    }
    match PodPhase::of(&status) {
        PodPhase::Succeeded => "ended with 0".into(),
        // Some services may have ended with 0 already.
        PodPhase::Running if observed::is_services_pod(pod) || observed::is_running(pod) => "running".into(),
        PodPhase::Failed => status.reason.unwrap_or_else(|| "failed".into()),
        _ if !observed::is_scheduled(pod) => "not scheduled".into(),
        _ => match observed::initializing(pod) {
            Some((container, _)) => format!("starting: {container}"),
            None => "starting".into(),
        },
    }
}

fn event_line(event: &Event) -> EventLine {
    let about = &event.involved_object;
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let series = event.series.as_ref().and_then(|series| series.count);
    EventLine {
        object: format!("{} {}", text(&about.kind), text(&about.name)),
        reason: text(&event.reason),
        message: text(&event.message),
        count: series.or(event.count).unwrap_or(1),
    }
}

/// The report for people. Terminal codes are removed from the parts that may be from a job, a user or a pod.
fn report_text(report: &StatusReport) -> String {
    let StatusReport {
        name,
        phase,
        size,
        ready,
        exit_code,
        reason,
        message,
        restarts,
        pods,
        events,
        instance,
        silence,
        remedy,
        ..
    } = report;
    let mut text = format!("{} {}", screen::bold(&printable(name)), printable(phase));
    if !Phase::parse(phase).is_some_and(Phase::is_finished) {
        text += &format!(": {ready} of {size} brokers ready");
    }
    text += &exit_code
        .map(|code| format!(", exit code {code}"))
        .unwrap_or_default();
    match restarts {
        ..=0 => {}
        1 => text += ", restarted once",
        2.. => text += &format!(", restarted {restarts} times"),
    }
    text.push('\n');
    if reason.is_some() || message.is_some() {
        let parts: Vec<&str> = [reason, message]
            .into_iter()
            .flatten()
            .map(String::as_str)
            .collect();
        text += &printable(&format!("{}\n", parts.join(": ")));
    }
    text += &printable(&pods_table(pods));
    if let Some(lines) = instance
        .as_ref()
        .and_then(|instance| instance["lines"].as_array())
    {
        text += &format!("\n{}\n", screen::bold("What the lead's agent says"));
        for line in lines {
            // Each line is a pair: its topic, such as `broker`, and its text.
            let part = |column: usize| line[column].as_str().unwrap_or_default();
            text += &printable(&format!("  {:<10} {}\n", part(0), part(1)));
        }
    }
    if let Some(silence) = silence {
        text += &format!("\n{silence}\n");
    }
    if !events.is_empty() {
        text += &format!("\n{}\n", screen::bold("Warnings"));
        for EventLine {
            object,
            reason,
            message,
            count,
        } in events
        {
            let times = if *count > 1 {
                format!(" ({count} times)")
            } else {
                String::new()
            };
            text += &printable(&format!("  {object}: {reason}{times}: {}\n", message.trim_end()));
        }
    }
    if let Some(remedy) = remedy {
        text += &format!("\n{}\n", screen::bold("What it means and what to do"));
        remedy
            .lines()
            .for_each(|line| text += &format!("{}\n", format!("  {line}").trim_end()));
    }
    text
}

fn pods_table(pods: &[PodLine]) -> String {
    if pods.is_empty() {
        return String::new();
    }
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(["INDEX", "POD", "NODE", "STATE"]);
    for line in pods.iter().take(MOST_PODS) {
        let index = line.index.map_or("-".to_owned(), |index| index.to_string());
        table.add_row([&index, &line.name, &line.node, &line.state]);
    }
    let rest = pods.len().saturating_sub(MOST_PODS);
    let more = if rest > 0 {
        format!("and {rest} more\n")
    } else {
        String::new()
    };
    format!("\n{}\n{more}", screen::lines_of(&table).join("\n"))
}

#[cfg(test)]
mod tests {
    use flux_operator_core::labels;
    use serde_json::json;

    use super::*;
    use crate::testing::{Answer, answering};

    fn cluster(status: &Value) -> MiniCluster {
        let cluster = json!({
            "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": { "name": "work", "uid": "new" },
            "spec": { "size": 2, "containers": [{ "image": "a" }] }, "status": status,
        });
        serde_json::from_value(cluster).unwrap()
    }

    #[test]
    fn event_that_occurs_again_is_a_late_one() {
        let time = |text: &str| {
            let event: Event = serde_json::from_str(text).unwrap();
            last_time(&event).map(|time| time.as_second())
        };
        let about = r#""involvedObject": {}, "metadata": { "creationTimestamp": "1970-01-01T00:00:09Z" }"#;
        let of = |times: &str| time(&format!("{{ {times} {about} }}"));
        assert_eq!(of(""), Some(9));
        assert_eq!(of(r#""lastTimestamp": "1970-01-01T00:00:20Z","#), Some(20));
        let again = r#""eventTime": "1970-01-01T00:00:10.000000Z",
            "series": { "count": 3, "lastObservedTime": "1970-01-01T00:00:30.000000Z" },"#;
        assert_eq!(of(again), Some(30));
    }

    #[test]
    fn events_are_those_of_minicluster_job_lead_and_services_pod() {
        let pod = |uid: &str, of: &str, index: &str| -> Pod {
            let labels = json!({ (of): "work", "batch.kubernetes.io/job-completion-index": index });
            serde_json::from_value(json!({ "metadata": { "uid": uid, "labels": labels } })).unwrap()
        };
        // With `minimalService`, the services pod has the lead's index.
        let pods = [
            pod("services", labels::SERVICES_OF, "0"),
            pod("lead", labels::CLUSTER, "0"),
            pod("follower", labels::CLUSTER, "1"),
        ];
        let cluster = cluster(&json!({ "jobUid": "job" }));
        assert_eq!(uids(&cluster, &pods), ["new", "job", "lead", "services"]);
    }

    #[tokio::test(start_paused = true)]
    async fn status_names_a_lead_whose_agent_never_answers() {
        let (target, requests) = answering(|request| {
            if request.contains("/exec?") {
                Answer::Never
            } else {
                Answer::Json(200, json!({ "metadata": {}, "items": [] }))
            }
        });
        let lead: Pod = serde_json::from_value(json!({
            "metadata": { "name": "work-0-a", "labels": { "batch.kubernetes.io/job-completion-index": "0" } },
            "spec": { "containers": [{ "name": "flux" }] },
            "status": { "phase": "Running", "containerStatuses": [{ "name": "flux", "image": "i", "imageID": "",
                "ready": true, "restartCount": 0, "state": { "running": {} } }] },
        }))
        .unwrap();
        let text = text(&target, &cluster(&json!({ "phase": "Running" })), &[lead]).await;
        assert!(
            text.contains("the lead's agent did not answer within 15 s"),
            "{text}\n{requests:?}"
        );
    }

    #[test]
    fn report_shows_no_terminal_codes_from_the_cluster() {
        let code = "\x1b]0;title\x07\r\u{9b}2J".to_owned();
        let line = PodLine {
            index: Some(0),
            name: code.clone(),
            node: code.clone(),
            state: code.clone(),
        };
        let event = EventLine {
            object: code.clone(),
            reason: code.clone(),
            message: format!("a\tb\n{code}"),
            count: 1,
        };
        let report = StatusReport {
            name: code.clone(),
            namespace: code.clone(),
            phase: code.clone(),
            size: 1,
            ready: 0,
            exit_code: None,
            reason: Some(code.clone()),
            message: Some(code.clone()),
            restarts: 0,
            pods: vec![line],
            events: vec![event],
            instance: Some(json!({ "lines": [["broker", code]] })),
            silence: None,
            remedy: None,
        };
        let text = report_text(&report);
        let is_code = |character: char| character.is_control() && !"\n\t".contains(character);
        assert!(!screen::without_bold(&text).contains(is_code), "{text:?}");
        assert!(text.contains("a\tb\n\u{fffd}]0;title"), "{text:?}");
    }

    #[tokio::test]
    async fn warning_whose_cause_is_gone_is_not_shown() {
        let (target, _) = answering(|_| Answer::Never);
        let warning = json!({ "type": "Warning", "metadata": {}, "involvedObject": {} });
        let events: [Event; 1] = [serde_json::from_value(warning).unwrap()];
        let is_shown = |status: Value| {
            let report = report(&target, &cluster(&status), &[], &events, None);
            !report.events.is_empty()
        };
        assert!(!is_shown(json!({ "phase": "Running", "readySize": 2 })));
        assert!(!is_shown(json!({ "phase": "Completed", "reason": "Completed" })));
        assert!(is_shown(json!({ "phase": "Running", "readySize": 1 })));
        assert!(is_shown(
            json!({ "phase": "Starting", "readySize": 2, "reason": "BrokersNotReady" })
        ));
    }
}
