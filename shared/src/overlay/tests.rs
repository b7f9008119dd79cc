use serde_json::{Value, json};

use super::{ContainerKind, Overlay, RenderedPod};

fn pod() -> RenderedPod {
    let named = |name: &str, kind| (name.to_owned(), kind);
    RenderedPod {
        containers: vec![
            named("app", ContainerKind::Runner),
            // Sidecars are init containers of the pod, so that they end with it.
            named("side", ContainerKind::WrappedSidecar),
            named("db", ContainerKind::Sidecar),
            named("flux-agent", ContainerKind::Own),
            named("flux-view", ContainerKind::Own),
        ],
        own_volumes: vec!["flux-agent-bin".into(), "flux-view".into()],
        own_mounts: vec!["/mnt/flux".into(), "/opt/software".into()],
    }
}

fn template() -> Value {
    json!({
        "metadata": { "labels": { "app": "flux-operator" } },
        "spec": {
            "restartPolicy": "Never",
            "containers": [{
                "name": "app", "image": "app:1", "env": [{ "name": "A", "value": "1" }, { "name": "B", "value": "2" }],
                "volumeMounts": [{ "name": "flux-view", "mountPath": "/mnt/flux" }, { "name": "data", "mountPath": "/data" }],
            }],
            "initContainers": [{ "name": "flux-agent" }, { "name": "side" }],
            "volumes": [{ "name": "flux-view", "emptyDir": {} }, { "name": "data", "configMap": { "name": "c" } }],
            "tolerations": [{ "key": "a" }],
        },
    })
}

fn over(overlay: Value) -> Value {
    Overlay::checked("spec.podTemplate", &overlay, &pod())
        .unwrap()
        .over(template())
}

fn refused(overlay: &Value) -> Vec<String> {
    let problems = Overlay::checked("spec.podTemplate", overlay, &pod()).unwrap_err();
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn lists_with_keys_are_merged_and_others_are_taken_whole() {
    let merged = over(json!({ "spec": {
        "hostNetwork": true, "tolerations": [{ "key": "b" }],
        "containers": [{ "name": "app", "env": [{ "name": "C", "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } } },
            { "name": "B", "value": "3" }] }],
        "volumes": [{ "name": "scratch", "ephemeral": {} }],
    }}));
    let spec = &merged["spec"];
    assert_eq!(
        (&spec["hostNetwork"], &spec["restartPolicy"]),
        (&json!(true), &json!("Never"))
    );
    assert_eq!(spec["tolerations"], json!([{ "key": "b" }]));
    let env: Vec<_> = spec["containers"][0]["env"]
        .as_array()
        .unwrap()
        .iter()
        .map(|variable| variable["name"].as_str())
        .collect();
    assert_eq!(
        env,
        [Some("C"), Some("A"), Some("B")],
        "new entries come first, as in kubectl"
    );
    assert_eq!(spec["containers"][0]["env"][2]["value"], "3");
    assert_eq!(spec["containers"][0]["image"], "app:1");
    let volumes: Vec<_> = spec["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|volume| volume["name"].as_str())
        .collect();
    assert_eq!(volumes, [Some("scratch"), Some("flux-view"), Some("data")]);
}

#[test]
fn overlay_null_and_patch_directives_remove_values() {
    let merged = over(json!({ "spec": {
        "tolerations": null, "affinity": null,
        "containers": [{ "name": "app", "env": [{ "name": "A", "$patch": "delete" }],
            "volumeMounts": [{ "mountPath": "/data", "$patch": "delete" }] }],
        "volumes": [{ "name": "data", "$retainKeys": ["name", "secret"], "secret": { "secretName": "s" } }],
    }}));
    let spec = &merged["spec"];
    assert_eq!(spec.get("tolerations"), None);
    assert_eq!(spec.get("affinity"), None);
    assert_eq!(
        spec["containers"][0]["env"],
        json!([{ "name": "B", "value": "2" }])
    );
    assert_eq!(
        spec["containers"][0]["volumeMounts"],
        json!([{ "name": "flux-view", "mountPath": "/mnt/flux" }])
    );
    let data = spec["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .find(|volume| volume["name"] == "data")
        .unwrap();
    assert_eq!(data, &json!({ "name": "data", "secret": { "secretName": "s" } }));
    assert!(!merged.to_string().contains('$'));
}

#[test]
fn ports_and_spread_constraints_are_merged_by_two_fields() {
    let base = json!({ "spec": {
        "containers": [{ "name": "app", "ports": [
            { "containerPort": 53, "protocol": "TCP" }, { "containerPort": 80, "protocol": "TCP" },
        ] }],
        "topologySpreadConstraints": [{ "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 1 }],
    } });
    let merged = |overlay: Value| {
        Overlay::checked("spec.podTemplate", &overlay, &pod())
            .unwrap()
            .over(base.clone())
    };
    let ports =
        |ports: Value| merged(container(json!({ "ports": ports })))["spec"]["containers"][0]["ports"].take();
    let (dns, http) = (
        json!({ "containerPort": 53, "protocol": "TCP" }),
        json!({ "containerPort": 80, "protocol": "TCP" }),
    );
    let dns_by_udp = json!({ "containerPort": 53, "protocol": "UDP" });
    let named = json!({ "containerPort": 53, "protocol": "TCP", "name": "dns" });
    let https = ["TCP", "UDP"].map(|protocol| json!({ "containerPort": 443, "protocol": protocol }));
    for (overlay, wanted) in [
        (json!([dns_by_udp]), json!([dns_by_udp, dns, http])),
        (
            json!([{ "containerPort": 53, "name": "dns" }]),
            json!([named, http]),
        ),
        (json!(https), json!([https[0], https[1], dns, http])),
        (
            json!([{ "containerPort": 53, "$patch": "delete" }]),
            json!([http]),
        ),
        (
            json!([{ "containerPort": 53, "protocol": "UDP", "$patch": "delete" }]),
            json!([dns, http]),
        ),
    ] {
        assert_eq!(ports(overlay.clone()), wanted, "{overlay}");
    }
    let soft = json!({ "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "maxSkew": 2 });
    let constraints = merged(json!({ "spec": { "topologySpreadConstraints": [soft] } }));
    assert_eq!(
        constraints["spec"]["topologySpreadConstraints"],
        json!([soft, base["spec"]["topologySpreadConstraints"][0]])
    );
}

/// As `kubectl create job --dry-run=client -o yaml` writes them.
#[test]
fn empty_fields_of_a_generated_template_change_nothing() {
    let container = |name: &str| json!({ "name": name, "resources": { "limits": { "cpu": 1 } }, "securityContext": { "privileged": true } });
    let template = json!({
        "metadata": { "labels": { "a": "b" } },
        "spec": {
            "securityContext": { "runAsUser": 1 },
            "containers": [container("app")], "initContainers": [container("side"), container("db")],
        },
    });
    let empty = |name: &str| json!({ "name": name, "resources": {}, "securityContext": {} });
    let overlay = json!({
        "metadata": { "creationTimestamp": null },
        "spec": { "securityContext": {}, "containers": [empty("app")], "initContainers": [empty("side"), empty("db")] },
    });
    let overlay = Overlay::checked("spec.podTemplate", &overlay, &pod()).unwrap();
    assert_eq!(overlay.over(template.clone()), template);
}

fn container(fields: Value) -> Value {
    let mut container = json!({ "name": "app" });
    container
        .as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    json!({ "spec": { "containers": [container] } })
}

fn init(fields: Value) -> Value {
    json!({ "spec": { "initContainers": [fields] } })
}

/// Asserts that each overlay is rejected with one problem, which names the field.
fn all_refused(cases: &[(Value, &str)]) {
    for (overlay, field) in cases {
        let problems = refused(overlay);
        assert_eq!(problems.len(), 1, "{overlay}: {problems:?}");
        assert!(
            problems[0].starts_with(&format!("spec.podTemplate.{field}: ")),
            "{overlay}: {problems:?}"
        );
    }
}

#[test]
fn own_pod_fields_and_odd_directives_are_refused_with_place() {
    all_refused(&[
        (json!({ "spec": { "hostname": "a" } }), "spec.hostname"),
        (json!({ "spec": { "subdomain": null } }), "spec.subdomain"),
        (
            json!({ "spec": { "restartPolicy": "OnFailure" } }),
            "spec.restartPolicy",
        ),
        (
            json!({ "spec": { "securityContext": { "runAsUser": 0 } } }),
            "spec.securityContext",
        ),
        (
            json!({ "spec": { "terminationGracePeriodSeconds": 1 } }),
            "spec.terminationGracePeriodSeconds",
        ),
        (json!({ "spec": null }), "spec"),
        (json!({ "spec": { "$patch": "replace" } }), "spec"),
        (json!({ "$patch": "delete" }), "$patch"),
        (json!({ "status": {} }), "status"),
        (
            json!({ "metadata": { "labels": { "hpa-selector": "x" } } }),
            "metadata.labels[hpa-selector]",
        ),
        (
            json!({ "metadata": { "labels": { "flux-framework.org/services-of": "x" } } }),
            "metadata.labels[flux-framework.org/services-of]",
        ),
        (
            json!({ "metadata": { "labels": { "batch.kubernetes.io/job-name": "x" } } }),
            "metadata.labels[batch.kubernetes.io/job-name]",
        ),
        (json!({ "spec": { "hostname": null } }), "spec.hostname"),
        (
            json!({ "spec": { "securityContext": null } }),
            "spec.securityContext",
        ),
        (json!({ "metadata": { "labels": null } }), "metadata.labels"),
        (
            json!({ "metadata": { "creationTimestamp": "2026-01-01T00:00:00Z" } }),
            "metadata.creationTimestamp",
        ),
        (
            json!({ "metadata": { "finalizers": null } }),
            "metadata.finalizers",
        ),
        (
            json!({ "metadata": { "labels": { "$patch": "replace" } } }),
            "metadata.labels",
        ),
        (
            json!({ "spec": { "$retainKeys": ["containers"], "containers": [] } }),
            "spec",
        ),
        (json!({ "metadata": { "$retainKeys": [] } }), "metadata"),
        (
            json!({ "metadata": { "labels": { "$retainKeys": [] } } }),
            "metadata.labels",
        ),
        (json!({ "$retainKeys": ["spec"], "spec": {} }), "$retainKeys"),
        (
            json!({ "metadata": { "annotations": "x" } }),
            "metadata.annotations",
        ),
        (
            json!({ "metadata": { "finalizers": ["a/b"] } }),
            "metadata.finalizers",
        ),
        (
            json!({ "metadata": { "annotations": { "batch.kubernetes.io/job-index-failure-count": "0" } } }),
            "metadata.annotations[batch.kubernetes.io/job-index-failure-count]",
        ),
        (
            json!({ "spec": { "containers": [{ "env": [] }] } }),
            "spec.containers[0].name",
        ),
        (
            json!({ "spec": { "containers": { "name": "app" } } }),
            "spec.containers",
        ),
        (
            json!({ "spec": { "tolerations": [{ "$patch": "replace" }] } }),
            "spec.tolerations[0].$patch",
        ),
        (
            json!({ "spec": { "$setElementOrder/containers": [{ "name": "app" }] } }),
            "spec.$setElementOrder/containers",
        ),
        (
            json!({ "spec": { "affinity": { "$patch": "merge" } } }),
            "spec.affinity.$patch",
        ),
        (
            json!({ "spec": { "volumes": [{ "name": "v", "$retainKeys": ["name"], "emptyDir": {} }] } }),
            "spec.volumes[0].$retainKeys",
        ),
    ]);
    assert!(refused(&json!([]))[0].starts_with("spec.podTemplate: must be an object"));
}

#[test]
fn overlay_of_our_containers_or_volumes_is_refused_by_path() {
    all_refused(&[
        (json!({ "spec": { "containers": null } }), "spec.containers"),
        (
            json!({ "spec": { "containers": [{ "$patch": "replace" }] } }),
            "spec.containers",
        ),
        (
            json!({ "spec": { "containers": [{ "name": "app", "$patch": "delete" }] } }),
            "spec.containers[0]",
        ),
        (
            json!({ "spec": { "containers": [{ "name": "app", "$retainKeys": ["name", "tty"], "tty": true }] } }),
            "spec.containers[0]",
        ),
        (
            init(json!({ "name": "side", "$retainKeys": ["name"] })),
            "spec.initContainers[0]",
        ),
        (
            json!({ "spec": { "containers": [{ "name": "more", "image": "a" }] } }),
            "spec.containers[0].name",
        ),
        (
            json!({ "spec": { "containers": [{ "name": "side" }] } }),
            "spec.containers[0]",
        ),
        (
            json!({ "spec": { "volumes": [{ "name": "flux-agent-bin", "emptyDir": {} }] } }),
            "spec.volumes[0]",
        ),
        (
            json!({ "spec": { "volumes": [{ "$patch": "replace" }] } }),
            "spec.volumes",
        ),
        (
            init(json!({ "name": "flux-agent", "image": "mine" })),
            "spec.initContainers[0]",
        ),
        (
            init(json!({ "name": "flux-view", "$patch": "delete" })),
            "spec.initContainers[0]",
        ),
        (
            init(json!({ "name": "side", "command": ["sh"] })),
            "spec.initContainers[0].command",
        ),
        (
            init(json!({ "name": "db", "restartPolicy": null })),
            "spec.initContainers[0].restartPolicy",
        ),
        (init(json!({ "name": "app" })), "spec.initContainers[0]"),
        (
            init(
                json!({ "name": "new", "image": "a", "volumeMounts": [{ "name": "flux-view", "mountPath": "/x" }] }),
            ),
            "spec.initContainers[0].volumeMounts[0].name",
        ),
    ]);
}

#[test]
fn overlay_of_the_agents_container_fields_is_refused_by_path() {
    all_refused(&[
        (
            container(json!({ "command": ["sh"] })),
            "spec.containers[0].command",
        ),
        (container(json!({ "args": [] })), "spec.containers[0].args"),
        (container(json!({ "image": "b" })), "spec.containers[0].image"),
        (
            container(json!({ "securityContext": { "privileged": true } })),
            "spec.containers[0].securityContext",
        ),
        (
            container(json!({ "securityContext": { "$patch": "delete" } })),
            "spec.containers[0].securityContext",
        ),
        (
            container(json!({ "startupProbe": null })),
            "spec.containers[0].startupProbe",
        ),
        (
            container(json!({ "terminationMessagePath": "/x" })),
            "spec.containers[0].terminationMessagePath",
        ),
        (
            container(json!({ "restartPolicyRules": [] })),
            "spec.containers[0].restartPolicyRules",
        ),
        (
            container(json!({ "resources": { "limits": { "nvidia.com/gpu": 1 } } })),
            "spec.containers[0].resources.limits",
        ),
        (
            container(json!({ "resources": { "$retainKeys": ["claims"] } })),
            "spec.containers[0].resources.$retainKeys",
        ),
        (
            container(json!({ "env": [{ "name": "FLUX_AGENT_INDEX_FAILURES", "value": "0" }] })),
            "spec.containers[0].env[0]",
        ),
        (
            container(json!({ "env": [{ "name": "JOB_COMPLETION_INDEX", "value": "0" }] })),
            "spec.containers[0].env[0]",
        ),
        (
            json!({ "metadata": { "annotations": null } }),
            "metadata.annotations",
        ),
        (
            json!({ "metadata": { "annotations": { "$patch": "replace" } } }),
            "metadata.annotations",
        ),
        (
            container(json!({ "env": [{ "$patch": "replace" }] })),
            "spec.containers[0].env",
        ),
        (
            container(json!({ "volumeMounts": null })),
            "spec.containers[0].volumeMounts",
        ),
        (
            container(json!({ "volumeMounts": [{ "name": "mine", "mountPath": "/mnt//flux/" }] })),
            "spec.containers[0].volumeMounts[0].mountPath",
        ),
        // The agent's folder is protected in every pod, besides `own_mounts`.
        (
            container(
                json!({ "volumeMounts": [{ "name": "mine", "mountPath": "/etc/flux-agent/bin/./x" }] }),
            ),
            "spec.containers[0].volumeMounts[0].mountPath",
        ),
        (
            container(json!({ "volumeMounts": [{ "name": "mine", "mountPath": "/a/../mnt/flux" }] })),
            "spec.containers[0].volumeMounts[0].mountPath",
        ),
        (
            container(json!({ "volumeMounts": [{ "mountPath": "/mnt/flux", "$patch": "delete" }] })),
            "spec.containers[0].volumeMounts[0].mountPath",
        ),
    ]);
}

/// The limit is that of rules in a Job's failure policy. The services pod belongs to no Job.
#[test]
fn only_the_jobs_pods_have_a_limit_of_init_containers() {
    let many: Vec<Value> = (0..13)
        .map(|i| json!({ "name": format!("own-{i}"), "image": "a" }))
        .collect();
    let overlay = json!({ "spec": { "initContainers": many } });
    assert_eq!(refused(&overlay).len(), 1);
    let services = RenderedPod {
        containers: vec![("db".into(), ContainerKind::Service)],
        ..RenderedPod::default()
    };
    assert_eq!(services.problems("spec.servicesPodTemplate", &overlay).len(), 0);
}

#[test]
fn overlay_of_unprotected_fields_is_accepted() {
    for overlay in [
        // `aFieldOf`: only the API server knows whether a field exists, since it may be newer than we are.
        json!({ "spec": { "priorityClassName": "high", "resourceClaims": [{ "name": "gpu" }], "aFieldOf": { "2030": 1 } } }),
        json!({ "spec": { "containers": [{ "name": "app", "livenessProbe": {}, "resources": { "claims": [{ "name": "gpu" }] } }] } }),
        json!({ "spec": { "initContainers": [{ "name": "new", "image": "a", "command": ["x"] }, { "name": "side", "livenessProbe": {} }] } }),
        json!({ "spec": { "initContainers": [{ "name": "new", "image": "a", "$retainKeys": ["name", "image"] }] } }),
        json!({ "spec": { "affinity": { "$retainKeys": [] } } }),
        json!({ "metadata": { "annotations": { "a/b": "c" }, "labels": { "a/b": "c" } } }),
    ] {
        Overlay::checked("spec.podTemplate", &overlay, &pod()).unwrap();
    }
}

/// The operator serves all MiniClusters in one thread: a slow merge would delay all others.
#[test]
fn long_lists_are_merged_in_little_time_or_refused() {
    let named =
        |count: usize| -> Vec<Value> { (0..count).map(|i| json!({ "name": i.to_string() })).collect() };
    let keys = |count: usize| -> Value {
        let mut map: serde_json::Map<String, Value> = (0..count).map(|i| (i.to_string(), json!(1))).collect();
        map.insert("$retainKeys".into(), (0..count).map(|i| i.to_string()).collect());
        map.into()
    };
    let init = |count: usize| json!([{ "name": "mine", "env": named(count / 2) }, { "name": "mine", "env": named(count / 2) }]);
    let overlays = |count: usize| {
        [
            json!({ "spec": { "volumes": named(count) } }),
            json!({ "spec": { "affinity": keys(count) } }),
            json!({ "spec": { "initContainers": init(count) } }),
        ]
    };
    let begin = std::time::Instant::now();
    // A little below the limit of all items together, then far beyond it.
    for overlay in overlays(4900) {
        over(overlay);
    }
    for overlay in overlays(60_000) {
        let problems = refused(&overlay);
        assert!(
            problems.len() == 1 && problems[0].contains("and 5000 is the limit"),
            "{problems:?}"
        );
    }
    assert!(begin.elapsed().as_secs() < 60, "{:?}", begin.elapsed());
}
