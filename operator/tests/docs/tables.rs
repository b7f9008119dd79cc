//! The tables of the reference that are not about fields: conditions, reasons, events, exit codes, metrics,
//! labels.

use std::collections::{BTreeMap, BTreeSet};

use flux_operator::health::families::{self, Family, Processes};
use flux_operator_core::render::gang::Served;
use flux_operator_core::render::{self, Options, RenderFacts};
use flux_operator_core::vocabulary::{self, ConditionType, Reason};
use flux_shared::curve::Certificate;
use flux_shared::exit::{Category, NOT_EXECUTABLE, NOT_FOUND, REPLACE};
use flux_shared::{manifest, validate};
use serde_json::Value;

use test_support::monitoring::alerts;
use test_support::pages::{is_committed, repository};

const MADE: &str = "<!-- made from the code by `make generate` -->";

#[test]
fn conditions_reasons_and_events_are_those_of_the_code() {
    let mut text = format!(
        "# Conditions, reasons and events\n\n{MADE}\n\n`kubectl wait --for=condition=TYPE minicluster/NAME` waits for a condition. \
         `kubectl get minicluster NAME -o wide` shows the most important reason (`status.reason`), and `kubectl describe` shows all \
         of them with the events.\n\n## Conditions\n\n| condition | true | false |\n| --- | --- | --- |\n"
    );
    for condition in ConditionType::ALL {
        let (when_true, when_false) = condition.meanings();
        text += &format!("| `{condition}` | {when_true} | {when_false} |\n");
    }
    text += "\n## Reasons\n\nA reason is one word, in a condition, `status.reason`, `status.restarts`, `status.lostPods` or an event. \
             A link leads to what to do ([troubleshooting](../troubleshooting.md)). The operator passes on further reasons \
             of Kubernetes unchanged. A job that runs but does not end has no reason of its own: see \
             [a job hangs](../troubleshooting.md#a-job-hangs).\n";
    let troubleshooting = std::fs::read_to_string(repository().join("docs/troubleshooting.md")).unwrap();
    for (subject, title) in vocabulary::Subject::ALL {
        text += &format!("\n### {title}\n\n| reason | meaning | event |\n| --- | --- | --- |\n");
        for reason in Reason::ALL.iter().filter(|reason| reason.subject() == subject) {
            let link = if troubleshooting.contains(&format!("\n### {reason}\n")) {
                format!(
                    "[{reason}](../troubleshooting.md#{})",
                    reason.name().to_lowercase()
                )
            } else {
                reason.to_string()
            };
            text += &format!(
                "| {link} | {} | {} |\n",
                reason.meaning(),
                reason
                    .event()
                    .map(|type_| format!("{type_:?}"))
                    .unwrap_or_default()
            );
        }
    }
    is_committed("conditions.md", &text);
}

#[test]
fn exit_codes_are_those_of_the_code() {
    let mut text = format!(
        "# Exit codes\n\n{MADE}\n\nThe lead's container and the MiniCluster's `status.exitCode` have the code of your command: 0 to 255, \
         128 + n if signal n ended it, {NOT_FOUND} if it was not found, {NOT_EXECUTABLE} if it could not be executed. A snippet that fails \
         ends the pod with the snippet's code, except `post`, and except with `logging.strict: false`.\n\nIf the agent \
         itself fails, it exits with one of the codes below. Your command may exit with the same number: the pod's termination message (one line of JSON) says who ended it, and so \
         does the reason of the status.\n\n| code | name | meaning |\n| --- | --- | --- |\n"
    );
    text += &format!(
        "| {REPLACE} | | only this follower was stopped (a smaller `size`, or a drain). This is no failure. If `size` still includes the pod, another one replaces it |\n"
    );
    for category in Category::ALL {
        let (code, name, reason) = (category.code(), category.name(), Reason::from(category));
        let (before, after) = reason
            .meaning()
            .split_once(&format!(" (exit code {code})"))
            .unwrap_or_else(|| panic!("the meaning of {reason} has no `(exit code {code})`"));
        // The reason LeadLost describes the loss of a pod. The code is of the pod that replaces it.
        let meaning = match category {
            Category::LeadLost => {
                "an earlier pod of this lead was lost and may have run the command, so this pod does not run it. The operator restarts the MiniCluster if `backoffLimit` allows".to_owned()
            }
            _ => format!("{before}{after}"),
        };
        text += &format!("| {code} | `{name}` | {meaning} |\n");
    }
    is_committed("exit-codes.md", &text);
}

#[test]
fn metrics_are_those_of_the_code() {
    let mut text = format!(
        "# Metrics\n\n{MADE}\n\nOperator and webhook answer on port 8080 of their pods, path `/metrics`, in Prometheus' text format \
         (option `--health`; the installation sets it). With the installation's NetworkPolicies, namespaces with the label \
         `flux-framework.org/metrics: allowed` reach it. A metric that controller-runtime has, too, has the same name here. \
         Every label has a fixed set of values, and none names an object. [Monitoring](../tasks/monitoring.md) explains how to collect the metrics, and \
         [alerts](../tasks/alerts.md) lists the alerts on them.\n"
    );
    for (processes, title) in [
        (Processes::Both, "Both"),
        (Processes::Operator, "The operator"),
        (Processes::Webhook, "The webhook"),
    ] {
        text += &format!("\n## {title}\n\n| metric | type | meaning | labels |\n| --- | --- | --- | --- |\n");
        for Family {
            name,
            help,
            kind,
            labels,
            ..
        } in families::ALL
            .iter()
            .filter(|family| family.processes == processes)
        {
            let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
            // In Markdown, a bare `<` may begin an HTML tag.
            let help = help.replace('<', "\\<").replace("/readyz", "`/readyz`");
            text += &format!(
                "| `{name}` | {} | {help} | {} |\n",
                kind.name(),
                labels.join(", ")
            );
        }
    }
    is_committed("metrics.md", &text);
}

#[test]
fn each_alert_has_a_section_with_severity_and_duration() {
    let page = std::fs::read_to_string(repository().join("docs/tasks/alerts.md")).unwrap();
    let sections: Vec<&str> = page.split("\n## ").skip(1).collect();
    let names: Vec<&str> = sections
        .iter()
        .map(|section| section.lines().next().unwrap())
        .collect();
    let alerts = alerts();
    assert_eq!(
        names,
        alerts.iter().map(|alert| alert.name.as_str()).collect::<Vec<_>>()
    );
    for (alert, section) in alerts.iter().zip(sections) {
        let severity = format!("{}{}", alert.severity[..1].to_uppercase(), &alert.severity[1..]);
        let lasts = match alert.lasts.split_at(alert.lasts.len() - 1) {
            ("0", "m") => ", at once".to_owned(),
            // So short that the page does not name it.
            ("1", "m") => String::new(),
            ("1", "h") => ", after an hour".to_owned(),
            (number, _) => format!(", after {number} minutes"),
        };
        let begin = format!("{severity}{lasts}. ");
        assert!(
            section.split("\n\n").nth(1).unwrap().starts_with(&begin),
            "{} begins with {begin}",
            alert.name
        );
    }
}

/// What the labels and annotations of a MiniCluster's objects are for. The page lists those that Kubernetes gives pods,
/// and those of the MiniCluster itself, below this table.
const LABELS: &[(&str, &str)] = &[
    (
        "app.kubernetes.io/managed-by",
        "`flux-framework-flux-operator`, for people and tools that group by it",
    ),
    ("app.kubernetes.io/name", "the MiniCluster's name"),
    (
        "flux-framework.org/minicluster",
        "the MiniCluster that an object belongs to: `kubectl get all -l flux-framework.org/minicluster=NAME`",
    ),
    (
        "flux-framework.org/services-of",
        "the MiniCluster whose services pod this is",
    ),
    (
        "flux-framework.org/headless",
        "the headless Service that gives the pod its name",
    ),
    ("app", "`flux-operator`, as the Go operator sets it"),
    (
        "job-index",
        "`services` on the services pod, `0` on the lead's, as the Go operator sets it",
    ),
    (
        "hpa-selector",
        "the MiniCluster's name: what `status.selector` names, for autoscalers",
    ),
    ("namespace", "the pod's namespace, as the Go operator sets it"),
    (
        "flux-framework.org/rendered-hash",
        "hash of the rendered object: if it differs, the object has to be written",
    ),
    (
        "flux-framework.org/maximum-size",
        "the largest size, fixed when the Job was created",
    ),
    (
        "flux-framework.org/initial-size",
        "the size when the Job was created, or when its size was last changed before a start",
    ),
    (
        "flux-framework.org/spec-hash",
        "hash of the part of the spec that the Job was made from",
    ),
    (
        "flux-framework.org/pod-template-hash",
        "hash of `podTemplate` and `servicesPodTemplate`, if one is set",
    ),
    (
        "flux-framework.org/queueing",
        "the MiniCluster's labels and annotations for a queue when the Job was created, if it had any or is in a queue",
    ),
    (
        "flux-framework.org/gang",
        "the object that makes the pods a gang, if there is one",
    ),
    ("flux-framework.org/view", "how the view gets into the pods"),
    (
        "flux-framework.org/namespace",
        "the namespace of the MiniCluster that the PersistentVolume was created for",
    ),
    (
        "flux-framework.org/traceparent",
        "the MiniCluster's span, if the operator sends traces",
    ),
    (
        "flux-framework.org/user-init-containers",
        "the init containers that come from `podTemplate`, if there are any",
    ),
    (
        "flux-framework.org/end",
        "the pod has to end because a snippet of another pod failed: the time of the request, and the cause",
    ),
    (
        "flux-framework.org/owner-uid",
        "the uid of the MiniCluster that the PersistentVolume was created for",
    ),
    (
        "flux-framework.org/keep",
        "the PersistentVolume is kept when its MiniCluster is deleted (`delete: false`)",
    ),
    (
        "flux-framework.org/disk",
        "the CSI driver and handle of a PersistentVolume",
    ),
    (
        "flux-framework.org/volume-uid",
        "the uid of the PersistentVolume that was created for the claim",
    ),
];

fn keys(value: &Value, found: &mut BTreeMap<String, BTreeSet<String>>, kind: &str) {
    if let Some(map) = value.as_object() {
        for field in ["labels", "annotations"] {
            for key in value["metadata"][field]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(key, _)| key)
            {
                found
                    .entry(key.clone())
                    .or_default()
                    .insert(format!("{kind}: {}", field.trim_end_matches('s')));
            }
        }
        for (name, inner) in map {
            keys(inner, found, if name == "template" { "pod" } else { kind });
        }
    }
}

#[test]
fn labels_and_annotations_are_those_of_what_is_rendered() {
    let (mut found, mut example_texts) = (BTreeMap::new(), String::new());
    for example in [
        "hello-world/minicluster",
        "services/minicluster",
        "volumes/made",
        "volumes/made-of-csi",
        "pod-template/host-network",
        "queue/minicluster",
    ] {
        let file = repository().join("examples").join(format!("{example}.yaml"));
        let text = std::fs::read_to_string(file).unwrap();
        let cluster = validate::validate(&manifest::parse(&text).unwrap()).unwrap();
        let certificate = Certificate::from_keys("page", &[1; 32], &[2; 32]);
        let gangs = Served {
            kubernetes: true,
            ..Served::default()
        };
        let facts = RenderFacts {
            // A UUID, from which the traceparent is made.
            uid: Some("0af76519-16cd-43dd-8448-eb211c80319c".into()),
            spec_hash: Some("hash".into()),
            gangs,
            ..RenderFacts::default()
        };
        // The objects, labels and annotations that depend on these options are listed, too.
        let options = Options {
            network_policy: true,
            gang: true,
            traces: Some("http://collector:4318".parse().unwrap()),
            ..Options::default()
        };
        let objects = render::objects(&cluster, &options, &facts, certificate).unwrap();
        let render::Objects {
            config_map,
            headless,
            services,
            job,
            services_pod,
            network_policy,
            volumes,
            ..
        } = objects;
        let mut add = |kind: &str, value: Value| keys(&value, &mut found, kind);
        example_texts.push_str(&text);
        add("ConfigMap", serde_json::to_value(config_map).unwrap());
        add("Service", serde_json::to_value(headless).unwrap());
        add("Job", serde_json::to_value(job).unwrap());
        add("NetworkPolicy", serde_json::to_value(network_policy).unwrap());
        add("services pod", serde_json::to_value(services_pod).unwrap());
        services
            .iter()
            .for_each(|service| add("Service", serde_json::to_value(service).unwrap()));
        for made in &volumes {
            add("PersistentVolume", serde_json::to_value(&made.volume).unwrap());
            add("claim", serde_json::to_value(&made.claim).unwrap());
        }
    }
    // The first is only on pods with init containers of a template. The operator sets the others after the objects exist.
    for (key, place) in [
        ("flux-framework.org/user-init-containers", "pod: annotation"),
        ("flux-framework.org/end", "pod: annotation"),
        ("job-index", "pod: label"),
        ("flux-framework.org/volume-uid", "claim: annotation"),
    ] {
        found.entry(key.into()).or_default().insert(place.into());
    }
    let own: BTreeSet<&str> = LABELS.iter().map(|(name, _)| *name).collect();
    // Labels that the examples' authors set do not count.
    let strange: Vec<_> = found
        .keys()
        .filter(|key| !own.contains(key.as_str()) && !example_texts.contains(&format!("{key}:")))
        .collect();
    assert!(
        strange.is_empty(),
        "rendered, and not explained here: {strange:?}"
    );
    let idle: Vec<_> = own.iter().filter(|key| !found.contains_key(**key)).collect();
    assert!(
        idle.is_empty(),
        "explained here, and not rendered by these examples: {idle:?}"
    );
    let mut text = format!(
        "# Labels and annotations\n\n{MADE}\n\nThe operator's values override the author's.\n\n| key | on | meaning |\n| --- | --- | --- |\n"
    );
    for (key, meaning) in LABELS {
        let places: Vec<&str> = found[*key].iter().map(String::as_str).collect();
        text += &format!("| `{key}` | {} | {meaning} |\n", places.join(", "));
    }
    text += "\nKubernetes itself gives every pod of a Job \
             `batch.kubernetes.io/job-name` and `batch.kubernetes.io/job-completion-index`: use these to select a pod.\n\nLabels and annotations of a MiniCluster whose domain is `kueue.x-k8s.io` or \
             `provreq.kueue.x-k8s.io` are put on its Job, and annotations that begin with `kueue.x-k8s.io/podset-` on its pods as well: \
             [queues](../tasks/queues.md).\n\nIf you read a MiniCluster in a version that cannot show which defaults its author wrote, it has the \
             annotation `flux-framework.org/v1alpha2-spelling` or `flux-framework.org/v1alpha1-spelling`, and is stored \
             unchanged when you write it back.\n";
    is_committed("labels.md", &text);
}
