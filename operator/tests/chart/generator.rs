//! The chart's templates, made from the code of `flux-operator install`: it is asked for each combination of switches,
//! and what differs between its answers becomes conditions. So each combination's lines are exactly those of `install`.

use flux_operator::install::{self, Installation, Labelled, Pods, ServiceMonitor};
use serde_json::{Value, json};

use crate::merge::{Combinations, Mask, merge};

const HEAD: &str = "{{- /* Made from the code of `flux-operator install` by `make generate`: change that. */ -}}\n";

/// What stands for a value while `install` is asked, and the template's expression for it.
const TOKENS: &[(&str, &str)] = &[
    ("chart-namespace", ".Release.Namespace"),
    ("chart-image", r#"include "flux-operator.image" (dict "image" .Values.image "usual" .Chart.AppVersion)"#),
    (
        "chart-agent-image",
        r#"include "flux-operator.image" (dict "image" .Values.agent.image "usual" .Chart.AppVersion)"#,
    ),
    ("chart-view-image", r#"include "flux-operator.image" (dict "image" .Values.view.image "usual" "")"#),
    ("chart-view-source", ".Values.view.source"),
    ("chart-strict-snippets", ".Values.snippets.strict"),
    ("chart-headless-name", ".Values.headlessService.name"),
    ("chart-restful-repository", ".Values.restful.repository"),
    ("chart-otlp-endpoint", ".Values.tracing.endpoint"),
    ("chart-pull-policy", ".Values.image.pullPolicy"),
    ("chart-interval", ".Values.prometheus.serviceMonitor.interval"),
];
/// In the place of a mapping or list that a value holds; the value's path follows.
const BLOCK: &str = "chart-block ";
/// The fields that take such a block, or a text that may be empty.
const FIELDS: &[&str] =
    &["affinity", "imagePullSecrets", "labels", "nodeSelector", "priorityClassName", "resources", "tolerations"];

/// The values that are switches, in the order of the bits of a combination.
const SWITCHES: &[&str] = &[
    ".Values.namespaced",
    ".Values.v1alpha1.enabled",
    ".Values.certManager.enabled",
    ".Values.networkPolicy.miniclusters",
    ".Values.podDisruptionBudget.enabled",
    ".Values.affinity",
    ".Values.gang.enabled",
    ".Values.kueue.enabled",
    ".Values.tracing.endpoint",
    ".Values.volumes.enabled",
    ".Values.services.enabled",
];
const MONITORING_SWITCHES: &[&str] = &[
    ".Values.namespaced",
    ".Values.v1alpha1.enabled",
    ".Values.certManager.enabled",
    ".Values.prometheus.serviceMonitor.enabled",
    ".Values.prometheus.rules.enabled",
    ".Values.prometheus.dashboard.enabled",
];

/// `templates/install.yaml`.
pub fn objects() -> String {
    let combinations = combinations(SWITCHES);
    let mut answers = Vec::new();
    for number in combinations.numbers() {
        let on = |switch: usize| number & (1 << switch) != 0;
        let mut installation = installation(on(0), on(1), on(2));
        installation.minicluster_network_policy = on(3);
        installation.disruption_budget = on(4);
        installation.pods.affinity = if on(5) { affinity() } else { Value::Null };
        installation.gang = on(6);
        installation.kueue = on(7);
        (installation.volumes, installation.services) = (on(9), on(10));
        installation.otlp_endpoint = if on(8) { "chart-otlp-endpoint".into() } else { String::new() };
        answers.push((number, install::objects(&installation).unwrap()));
    }
    format!("{HEAD}{}", template(&combinations, answers))
}

/// `templates/monitoring.yaml`.
pub fn monitoring() -> String {
    let combinations = combinations(MONITORING_SWITCHES);
    let labels = |of: &str| json!({ "chart-block": format!("{BLOCK}.Values.prometheus.{of}.labels") });
    let labelled = |of: &str| Labelled { enabled: true, labels: labels(of) };
    let mut answers = Vec::new();
    for number in combinations.numbers() {
        let on = |switch: usize| number & (1 << switch) != 0;
        let mut installation = installation(on(0), on(1), on(2));
        let interval = "chart-interval".to_owned();
        installation.service_monitor =
            on(3).then(|| ServiceMonitor { enabled: true, interval, labels: labels("serviceMonitor") });
        installation.rules = on(4).then(|| labelled("rules"));
        installation.dashboard = on(5).then(|| labelled("dashboard"));
        answers.push((number, install::monitoring::manifests(&installation).unwrap()));
    }
    format!("{HEAD}{}", template(&combinations, answers))
}

/// `templates/deletion.yaml`: a Job that Helm makes when the release is to go, and the definition with it. What the Job
/// needs belongs to the release: Helm deletes other hooks as soon as it has given up waiting for the Job, which may go
/// on.
pub fn deletion() -> String {
    let mut installation = installation(false, true, false);
    installation.pods.affinity = affinity();
    let documents = install::deletion(&installation).unwrap();
    let answers = vec![(0, documents.iter().map(|document| hook(document)).collect())];
    let goes = "and .Values.crds.enabled (not .Values.crds.keep)";
    format!("{HEAD}{{{{- if {goes} }}}}\n{}{{{{- end }}}}\n", template(&combinations(&[]), answers))
}

/// The Job; all else is as it is.
fn hook(document: &str) -> String {
    let policy = "before-hook-creation,hook-succeeded";
    let annotations = format!("    helm.sh/hook: pre-delete\n    helm.sh/hook-delete-policy: {policy}\n");
    match document.contains("kind: Job\n") {
        true => annotated(document, &annotations),
        false => document.to_owned(),
    }
}

/// Those that the chart's checks let through: cert-manager needs a webhook.
fn combinations(switches: &'static [&'static str]) -> Combinations {
    Combinations::new(switches, |number| number & 0b100 == 0 || (number & 0b001 == 0 && number & 0b010 != 0))
}

fn annotated(document: &str, annotations: &str) -> String {
    let (bare, with) = ("\nmetadata:\n", "\nmetadata:\n  annotations:\n");
    let start = if document.contains(with) { with } else { bare };
    document.replacen(start, &format!("{with}{annotations}"), 1)
}

fn installation(namespaced: bool, v1alpha1: bool, cert_manager: bool) -> Installation {
    let block = |path: &str| format!("{BLOCK}.Values.{path}");
    Installation {
        image: "chart-image".into(),
        pull_policy: "chart-pull-policy".into(),
        agent_image: "chart-agent-image".into(),
        view_image: "chart-view-image".into(),
        view_source: "chart-view-source".into(),
        strict_snippets: "chart-strict-snippets".into(),
        headless_name: "chart-headless-name".into(),
        restful_repository: "chart-restful-repository".into(),
        namespaced,
        v1alpha1,
        cert_manager,
        resources: json!({ "limits": { "memory": block("resources") } }),
        webhook_resources: json!({ "limits": { "memory": block("webhook.resources") } }),
        pods: Pods {
            image_pull_secrets: json!([{ "name": block("imagePullSecrets") }]),
            node_selector: json!({ "a": block("nodeSelector") }),
            tolerations: json!([{ "key": block("tolerations") }]),
            affinity: Value::Null,
            priority_class_name: block("priorityClassName"),
        },
        ..Installation::usual("chart-namespace").unwrap()
    }
}

fn affinity() -> Value {
    let term = json!({ "topologyKey": format!("{BLOCK}.Values.affinity") });
    json!({ "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [term] } })
}

/// Documents that some answers have, with what differs inside of them.
fn template(combinations: &Combinations, answers: Vec<(usize, Vec<String>)>) -> String {
    let keyed = |documents: Vec<String>| documents.into_iter().map(|it| (key(&it), it)).collect::<Vec<_>>();
    let answers: Vec<_> = answers.into_iter().map(|(number, documents)| (number, keyed(documents))).collect();
    let names = |documents: &[(String, String)]| documents.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>();
    let keys = merge(answers.iter().map(|(number, documents)| (*number, names(documents))));
    let mut text = String::new();
    for (key, of_documents) in keys {
        let variants = answers.iter().filter_map(|(number, documents)| {
            let (_, document) = documents.iter().find(|it| it.0 == key)?;
            Some((*number, units(document)))
        });
        let lines = merge(variants);
        let mut inner = String::from("---\n");
        let mut open: Option<Mask> = None;
        for (line, of_line) in lines {
            let wanted = (of_line != of_documents).then_some(of_line);
            if wanted != open {
                inner += if open.is_some() { "{{- end }}\n" } else { "" };
                if let Some(wanted) = wanted {
                    inner += &format!("{{{{- if {} }}}}\n", combinations.expression(wanted, of_documents));
                }
                open = wanted;
            }
            inner += &line;
        }
        inner += if open.is_some() { "{{- end }}\n" } else { "" };
        text += &match of_documents == combinations.all() {
            true => inner,
            false => {
                let condition = combinations.expression(of_documents, combinations.all());
                format!("{{{{- if {condition} }}}}\n{inner}{{{{- end }}}}\n")
            }
        };
    }
    text
}

/// Kind and name, without reading all of it: the name is the first of its depth.
fn key(document: &str) -> String {
    let line = |start: &str| document.lines().find(|line| line.starts_with(start)).unwrap();
    format!("{} {}", line("kind: "), line("  name: "))
}

/// A document's lines as the template has them. A block that a value holds is one of them.
fn units(document: &str) -> Vec<String> {
    let lines: Vec<&str> = document.lines().collect();
    let mut units = Vec::new();
    let mut next = 0;
    while let Some(line) = lines.get(next) {
        let indent = depth(line);
        let field = line.trim_start().split(':').next().unwrap_or_default();
        let inside =
            |other: &&&str| depth(other) > indent || (depth(other) == indent && other.trim_start().starts_with("- "));
        let length = 1 + lines[next + 1..].iter().take_while(inside).count();
        let path =
            FIELDS.contains(&field).then(|| lines[next..next + length].iter().find_map(|it| it.split_once(BLOCK)));
        match path.flatten() {
            Some((_, path)) => {
                units.push(block(field, path.trim_end_matches(['"', '\'']), indent));
                next += length;
            }
            None => {
                units.push(format!("{}\n", expressions(line)));
                next += 1;
            }
        }
    }
    units
}

fn depth(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn block(field: &str, path: &str, indent: usize) -> String {
    let space = " ".repeat(indent);
    let value = match field {
        "priorityClassName" => " {{ . | quote }}".to_owned(),
        _ => format!("\n{space}  {{{{- toYaml . | nindent {} }}}}", indent + 2),
    };
    format!("{{{{- with {path} }}}}\n{space}{field}:{value}\n{{{{- end }}}}\n")
}

/// The line with its expressions, and with what Helm would take for one quoted.
fn expressions(line: &str) -> String {
    let mut line = line.replace("{{", "{{ \"{{\" }}");
    for (token, expression) in TOKENS {
        match line.strip_suffix(token).filter(|rest| rest.ends_with(": ") || rest.ends_with("- ")) {
            Some(rest) => line = format!("{rest}{{{{ {expression} | quote }}}}"),
            None => line = line.replace(token, &format!("{{{{ {expression} }}}}")),
        }
    }
    line
}
