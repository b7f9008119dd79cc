//! Checks the attributes of the pods.

use serde_json::Value;

use super::fields::{drop_empty, given, labels, object_name, quantities};
use super::report::Report;
use crate::choices::DNS_POLICIES;
use crate::crd::v1alpha2::{MiniClusterSpec, Pod, Toleration};
use crate::names::{self, DEFAULT_GRACE_PERIOD, LONGEST_GRACE_PERIOD};

/// Checks `spec.pod`, and returns it with None for empty texts. `cluster`: the MiniCluster's name.
pub(super) fn check(mut pod: Pod, cluster: &str, report: &mut Report) -> Pod {
    drop_empty(&mut [
        &mut pod.scheduler_name,
        &mut pod.service_account_name,
        &mut pod.restart_policy,
        &mut pod.runtime_class_name,
        &mut pod.dns_policy,
    ]);
    for toleration in &mut pod.tolerations {
        drop_empty(&mut [
            &mut toleration.key,
            &mut toleration.operator,
            &mut toleration.value,
            &mut toleration.effect,
        ]);
    }
    labels("spec.pod.labels", &pod.labels, report);
    for key in names::JOB_LABELS {
        // The Job has the MiniCluster's name, so this value changes nothing.
        let is_right = |value: &String| key.ends_with("job-name") && value == cluster;
        if pod.labels.get(key).is_some_and(|value| !is_right(value)) {
            report.problem(
                format!("spec.pod.labels[{key}]"),
                "is set by Kubernetes: the Job finds its pods by it",
            );
        }
    }
    labels("spec.pod.nodeSelector", &pod.node_selector, report);
    for key in pod
        .annotations
        .keys()
        .filter(|key| !names::is_annotation_key(key))
    {
        report.problem(
            format!("spec.pod.annotations[{key}]"),
            "is not an annotation's key",
        );
    }
    for (key, why) in pod
        .annotations
        .keys()
        .filter_map(|key| Some((key, names::reserved_annotation(key)?)))
    {
        report.problem(format!("spec.pod.annotations[{key}]"), why);
    }
    quantities("spec.pod.resources", &pod.resources, report);
    one_of(
        "spec.pod.restartPolicy",
        &pod.restart_policy,
        &["Never", "OnFailure"],
        report,
    );
    one_of("spec.pod.dnsPolicy", &pod.dns_policy, DNS_POLICIES, report);
    if let Some(seconds) = pod.termination_grace_period_seconds
        && !(1..=LONGEST_GRACE_PERIOD as i64).contains(&seconds)
    {
        report.problem(
            "spec.pod.terminationGracePeriodSeconds",
            format!("must be 1 to {LONGEST_GRACE_PERIOD}; leave it out for {DEFAULT_GRACE_PERIOD}"),
        );
    }
    for (field, name) in [
        ("spec.pod.schedulerName", &pod.scheduler_name),
        ("spec.pod.serviceAccountName", &pod.service_account_name),
        ("spec.pod.runtimeClassName", &pod.runtime_class_name),
    ] {
        if let Some(name) = name {
            report.take(field, object_name(name));
        }
    }
    tolerations(&pod.tolerations, report);
    for (key, values) in &pod.node_affinity {
        let field = format!("spec.pod.nodeAffinity[{key}]");
        if !names::is_label_key(key)
            || values.is_empty()
            || values.iter().any(|value| !names::is_label_value(value))
        {
            report.problem(field, "must be a label's key with a list of at least one value");
        }
    }
    pod.security_context = security_context(pod.security_context, report);
    pod
}

fn one_of(field: &str, value: &Option<String>, known: &[&str], report: &mut Report) {
    if let Some(value) = value
        && !known.contains(&value.as_str())
    {
        report.problem(
            field,
            format!("is `{value}`, must be one of {}", known.join(", ")),
        );
    }
}

fn tolerations(tolerations: &[Toleration], report: &mut Report) {
    for (i, toleration) in tolerations.iter().enumerate() {
        let field = format!("spec.pod.tolerations[{i}]");
        one_of(
            &format!("{field}.operator"),
            &toleration.operator,
            &["Equal", "Exists"],
            report,
        );
        one_of(
            &format!("{field}.effect"),
            &toleration.effect,
            &["NoSchedule", "PreferNoSchedule", "NoExecute"],
            report,
        );
        let exists = toleration.operator.as_deref() == Some("Exists");
        match &toleration.key {
            None if !exists => report.problem(
                format!("{field}.key"),
                "is needed, or operator: Exists for every taint",
            ),
            Some(key) if !names::is_label_key(key) => {
                report.problem(format!("{field}.key"), "is not a taint's key")
            }
            _ => {}
        }
        if toleration
            .value
            .as_ref()
            .is_some_and(|value| !names::is_label_value(value))
        {
            report.problem(format!("{field}.value"), "is not a taint's value");
        }
        if exists && toleration.value.is_some() {
            report.problem(format!("{field}.value"), "must be left out with operator: Exists");
        }
        if toleration.toleration_seconds.is_some() && toleration.effect.as_deref() != Some("NoExecute") {
            report.problem(format!("{field}.tolerationSeconds"), "needs effect: NoExecute");
        }
    }
}

/// Checks the pod's securityContext. None if it is empty.
fn security_context(context: Option<Value>, report: &mut Report) -> Option<Value> {
    let context = context.filter(|context| {
        !context.is_null() && context.as_object().is_none_or(|fields| !fields.is_empty())
    })?;
    if !context.is_object() {
        report.problem(
            "spec.pod.securityContext",
            "must be an object, as Kubernetes' securityContext of a pod",
        );
        return Some(context);
    }
    // The agent builds without `crd`, and so without Kubernetes' types.
    #[cfg(feature = "crd")]
    if let Err(error) =
        serde_json::from_value::<k8s_openapi::api::core::v1::PodSecurityContext>(context.clone())
    {
        report.problem("spec.pod.securityContext", error.to_string());
    }
    Some(context)
}

/// The architecture of the nodes, as in their label kubernetes.io/arch.
pub(super) fn arch(spec: &MiniClusterSpec, pod: &Pod, report: &mut Report) -> Option<String> {
    const LABEL: &str = "kubernetes.io/arch";
    let arch = given(&spec.flux.as_ref()?.arch)?;
    let arch = match arch.as_str() {
        // In a MiniCluster, `arm` means 64 bits. (32-bit nodes have the label `arm`, but there is no view for them.)
        "arm" | "aarch64" => "arm64".to_owned(),
        "x86_64" => "amd64".to_owned(),
        _ => arch,
    };
    if !names::is_label_value(&arch) {
        report.problem(
            "spec.flux.arch",
            "must be an architecture as nodes are labelled: amd64, arm64 (or arm)",
        );
    }
    if pod.node_selector.get(LABEL).is_some_and(|other| *other != arch) {
        report.problem(
            format!("spec.pod.nodeSelector[{LABEL}]"),
            format!("contradicts spec.flux.arch, which means {arch}: set only one"),
        );
    }
    Some(arch)
}
