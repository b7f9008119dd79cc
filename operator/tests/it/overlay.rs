//! `spec.podTemplate`: the overlay is merged into the pods as kubectl merges it, an error in it is reported
//! before a pod exists, and without an overlay it costs nothing.

use std::collections::BTreeSet;
use std::process::Command;

use flux_operator_core::render::{self, Options, RenderFacts};
use flux_shared::crd::v1alpha2::MiniCluster;
use flux_shared::overlay::MERGED_LISTS;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Map, Value, json};

use test_support::api_server::{assert_message, condition, kubeconfig, kubectl_program, test, until};
use test_support::rendering::rendered;
mod random;

/// A runner, a sidecar, and the user's volumes.
fn spec(overlay: Value) -> Value {
    json!({
        "size": 2, "podTemplate": overlay,
        "containers": [
            { "image": "app:1", "name": "app", "runFlux": true, "command": "hostname", "ports": [80], "environment": { "A": "1", "B": "2" },
              "volumes": { "data": { "path": "/data", "configMapName": "c" } } },
            { "image": "side:1", "name": "side", "command": "serve" },
        ],
    })
}

fn objects(spec: Value) -> render::Objects {
    let document = json!({
        "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": { "name": "mc" }, "spec": spec,
    });
    rendered(&document, &Options::default(), &RenderFacts::default())
}

#[test]
fn pod_overlay_is_applied_and_costs_one_call() {
    test("overlay", async |fixture| {
        let operator = fixture.operator().await;
        fixture.create("plain", json!({ "size": 1 })).await;
        fixture.pods("plain", 1).await;
        let before = operator
            .calls
            .counted()
            .iter()
            .filter(|call| call.resource == "jobs" && call.verb == "create")
            .count();
        assert_eq!(before, 1, "without an overlay, there is no dry run");

        let overlay = json!({
            "metadata": { "annotations": { "a/b": "c" } },
            "spec": {
                "hostNetwork": true,
                "topologySpreadConstraints": [{ "topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway" }],
                "containers": [{ "name": "app",
                    "env": [{ "name": "NODE", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } }, { "name": "B", "$patch": "delete" }],
                    "livenessProbe": { "exec": { "command": ["true"] } },
                    "volumeMounts": [{ "name": "scratch", "mountPath": "/scratch" }],
                }],
                "initContainers": [{ "name": "side", "terminationMessagePath": "/x" }, { "name": "first", "image": "busybox" }],
                "volumes": [{ "name": "scratch", "ephemeral": { "volumeClaimTemplate": { "spec": {
                    "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } } } }],
            },
        });
        fixture.create("mc", spec(overlay)).await;
        let pod = fixture.pods("mc", 2).await.remove(&1).unwrap();
        assert_eq!(pod.metadata.annotations.as_ref().unwrap()["a/b"], "c");
        let spec = pod.spec.unwrap();
        assert_eq!(
            (spec.host_network, spec.dns_policy.as_deref()),
            (Some(true), Some("ClusterFirstWithHostNet"))
        );
        assert_eq!(spec.topology_spread_constraints.unwrap()[0].topology_key, "zone");
        assert_eq!(spec.restart_policy.as_deref(), Some("Never"));
        let app = &spec.containers[0];
        let env: Vec<&str> = app
            .env
            .iter()
            .flatten()
            .map(|variable| variable.name.as_str())
            .collect();
        assert!(
            env.contains(&"NODE") && env.contains(&"A") && !env.contains(&"B"),
            "{env:?}"
        );
        assert!(app.liveness_probe.is_some() && app.startup_probe.is_some());
        let ports: Vec<_> = app
            .ports
            .iter()
            .flatten()
            .map(|port| (port.container_port, port.host_port))
            .collect();
        assert!(
            ports.contains(&(8050, Some(8050))),
            "a broker has its node's port for itself: {ports:?}"
        );
        let mounts: BTreeSet<&str> = app
            .volume_mounts
            .iter()
            .flatten()
            .map(|mount| mount.mount_path.as_str())
            .collect();
        assert!(
            mounts.contains("/scratch") && mounts.contains("/data") && mounts.contains("/mnt/flux"),
            "{mounts:?}"
        );
        let init: Vec<&str> = spec
            .init_containers
            .iter()
            .flatten()
            .map(|container| container.name.as_str())
            .collect();
        assert!(
            init.contains(&"first") && init.contains(&"flux-agent") && init.contains(&"side"),
            "{init:?}"
        );
        let creates = operator
            .calls
            .counted()
            .iter()
            .filter(|call| call.resource == "jobs" && call.verb == "create")
            .count();
        assert_eq!(creates, before + 2, "a dry run and the Job");
        let status = fixture.when_condition("mc", "Valid", "True").await;
        assert_eq!(status["maximumSize"], 2);
        operator.stop().await;
    });
}

#[test]
fn overlay_rejected_by_api_server_is_reported_before_creation() {
    test("overlay-wrong", async |fixture| {
        let _operator = fixture.operator().await;
        let app = |fields: Value| {
            let mut container = json!({ "name": "app" });
            container
                .as_object_mut()
                .unwrap()
                .extend(fields.as_object().unwrap().clone());
            json!({ "spec": { "containers": [container] } })
        };
        let cases = [
            (
                json!({ "spec": { "hostNetwrok": true } }),
                "unknown field \"spec.podTemplate.spec.hostNetwrok\"",
            ),
            (
                json!({ "spec": { "hostNetwork": "yes" } }),
                "spec.podTemplate.spec.hostNetwork of type bool",
            ),
            (
                app(json!({ "env": [{ "name": "X", "vaule": "1" }] })),
                "unknown field \"spec.podTemplate.spec.containers[0].env[0].vaule\"",
            ),
            (
                app(json!({ "livenessProbe": { "exec": {} } })),
                "spec.podTemplate.spec.containers[0].livenessProbe.exec.command: Required value",
            ),
            (
                app(json!({ "volumeMounts": [{ "name": "none", "mountPath": "/x" }] })),
                "spec.podTemplate.spec.containers[0].volumeMounts[0].name: Not found: \"none\"",
            ),
            (
                json!({ "spec": { "initContainers": [{ "name": "side", "ports": [{ "containerPort": 99999 }] }] } }),
                "spec.podTemplate.spec.initContainers[0].ports[0].containerPort: Invalid value: 99999",
            ),
            (
                json!({ "metadata": { "labels": { "a/b/c": "d" } } }),
                "spec.podTemplate.metadata.labels",
            ),
        ];
        for (i, (overlay, words)) in cases.iter().enumerate() {
            let name = format!("mc-{i}");
            fixture.create(&name, spec(overlay.clone())).await;
            let status = fixture.when_condition(&name, "Valid", "False").await;
            let valid = condition(&status, "Valid");
            let message = valid["message"].as_str().unwrap();
            assert_eq!(valid["reason"], "PodTemplateRefused", "{message}");
            assert!(
                message.starts_with("spec.podTemplate: ") && message.contains(words),
                "{words}: {message}"
            );
            // The API server's paths in the Job are replaced by paths in the overlay.
            assert!(!message.contains("spec.template"), "{message}");
            assert_eq!(status["reason"], "PodTemplateRefused");
            assert_eq!(condition(&status, "Stalled")["status"], "True");
        }
        assert!(fixture.all::<Job>().await.is_empty(), "nothing is created");
        assert!(fixture.find::<ConfigMap>("mc-0-agent").await.is_none());
        // The job starts once the overlay has been corrected.
        fixture
            .edit(
                "mc-0",
                json!({ "podTemplate": { "spec": { "hostNetwrok": null, "hostNetwork": true } } }),
            )
            .await;
        fixture.pods("mc-0", 2).await;
        fixture.when_condition("mc-0", "Valid", "True").await;
    });
}

/// Its cause may be any field of the spec, such as an image.
#[test]
fn policy_denial_is_not_blamed_on_the_pod_template() {
    test("overlay-policy", async |fixture| {
        let policy = json!({
            "metadata": { "name": fixture.namespace },
            "spec": {
                "matchConstraints": { "resourceRules": [
                    { "apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["jobs"] },
                ] },
                "validations": [{ "expression": "false", "message": "images must come from registry.site" }],
            },
        });
        let binding = json!({
            "metadata": { "name": fixture.namespace },
            "spec": {
                "policyName": fixture.namespace, "validationActions": ["Deny"],
                "matchResources": { "namespaceSelector": {
                    "matchLabels": { "kubernetes.io/metadata.name": fixture.namespace },
                } },
            },
        });
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(fixture.client.clone());
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(fixture.client.clone());
        let [parameters, dry_run] = [false, true].map(|dry_run| PostParams {
            dry_run,
            ..PostParams::default()
        });
        policies
            .create(&parameters, &serde_json::from_value(policy).unwrap())
            .await
            .unwrap();
        bindings
            .create(&parameters, &serde_json::from_value(binding).unwrap())
            .await
            .unwrap();
        let overlay = json!({ "spec": { "hostNetwork": true } });
        let mut job = objects(spec(overlay.clone())).job.rendered;
        job.metadata.namespace = Some(fixture.namespace.clone());
        // The API server begins to use the policy a little after it has been created.
        until("the policy denies Jobs", async || {
            let tried = fixture.api::<Job>().create(&dry_run, &job).await;
            tried
                .is_err_and(|error| error.to_string().contains("registry.site"))
                .then_some(())
        })
        .await;

        let operator = fixture.operator().await;
        fixture.create("mc", spec(overlay.clone())).await;
        let status = fixture.when_is("mc", "reason", "Refused").await;
        assert_message(&status, "images must come from registry.site");
        assert_eq!(condition(&status, "Valid")["status"], "True", "{status:#}");
        operator.stop().await;

        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("other.yaml");
        let document = json!({
            "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster",
            "metadata": { "name": "other", "namespace": fixture.namespace }, "spec": spec(overlay),
        });
        std::fs::write(&file, document.to_string()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_flux-operator"));
        command
            .args(["validate", "--server"])
            .arg(&file)
            .env("KUBECONFIG", kubeconfig());
        let error = String::from_utf8(command.output().unwrap().stderr).unwrap();
        assert!(
            error.starts_with("spec: the API server rejects its Job: "),
            "{error}"
        );
        bindings
            .delete(&fixture.namespace, &DeleteParams::default())
            .await
            .unwrap();
        policies
            .delete(&fixture.namespace, &DeleteParams::default())
            .await
            .unwrap();
    });
}

/// A field of a disabled feature: the API server accepts it, and drops it.
#[test]
fn overlay_field_dropped_by_api_server_is_reported() {
    test("overlay-dropped", async |fixture| {
        // Only Kubernetes 1.35 has the field `workloadRef`.
        if fixture.minor().await != 35 {
            return;
        }
        let _operator = fixture.operator().await;
        fixture
            .create(
                "mc",
                spec(json!({ "spec": { "workloadRef": { "name": "w", "podGroup": "p" } } })),
            )
            .await;
        let status = fixture.when_condition("mc", "Valid", "False").await;
        let message = condition(&status, "Valid")["message"].clone();
        assert!(
            message
                .as_str()
                .unwrap()
                .starts_with("spec.podTemplate.spec.workloadRef: the API server drops it"),
            "{message}"
        );
        assert!(fixture.find::<Job>("mc").await.is_none());
    });
}

#[test]
fn overlay_sets_no_operator_field_and_cannot_change_later() {
    test("overlay-fixed", async |fixture| {
        let _operator = fixture.operator().await;
        let wrong =
            json!({ "spec": { "hostname": "a", "containers": [{ "name": "app", "command": ["sh"] }] } });
        fixture.create("wrong", spec(wrong)).await;
        let status = fixture.when_is("wrong", "phase", "Invalid").await;
        let valid = condition(&status, "Valid");
        for part in [
            "spec.podTemplate.spec.hostname: the pod is found by it",
            "spec.podTemplate.spec.containers[0].command: the agent is the entrypoint",
        ] {
            assert_message(&valid, part);
        }
        fixture
            .create("mc", spec(json!({ "spec": { "hostNetwork": true } })))
            .await;
        // Once the status has the maximum size, the API server rejects a change of a fixed field.
        fixture.when_is("mc", "maximumSize", 2).await;
        let change = |value: Value| Patch::Merge(json!({ "spec": { "podTemplate": { "spec": value } } }));
        let api = fixture.api::<MiniCluster>();
        let refused = api
            .patch(
                "mc",
                &PatchParams::default(),
                &change(json!({ "priorityClassName": "x" })),
            )
            .await
            .unwrap_err();
        assert!(
            refused
                .to_string()
                .contains("podTemplate cannot change once the Job has been created"),
            "{refused}"
        );
        // One key replaces another: the API server's rule misses this (k8s.io/apiserver,
        // unstructuredMap.Equal), but the operator does not.
        match api
            .patch(
                "mc",
                &PatchParams::default(),
                &change(json!({ "hostNetwork": null, "hostPID": true })),
            )
            .await
        {
            Err(refused) => assert!(refused.to_string().contains("cannot change"), "{refused}"),
            Ok(_) => {
                let status = fixture.when_condition("mc", "Valid", "False").await;
                let valid = condition(&status, "Valid");
                assert_eq!(valid["reason"], "ChangedTooLate", "{valid}");
                assert_eq!(
                    fixture.pods("mc", 2).await[&0]
                        .spec
                        .as_ref()
                        .unwrap()
                        .host_network,
                    Some(true)
                );
            }
        }
    });
}

#[test]
fn the_services_pod_has_an_overlay_of_its_own() {
    test("overlay-services", async |fixture| {
        let _operator = fixture.operator().await;
        let with = |overlay: Value| json!({ "size": 1, "services": [{ "image": "cache:1", "name": "cache" }], "servicesPodTemplate": overlay });
        let overlay = json!({ "spec": { "containers": [{ "name": "cache", "args": ["--all"] }], "hostNetwork": true } });
        fixture.create("mc", with(overlay)).await;
        let pod = until("the services pod", async || {
            fixture.find::<Pod>("mc-services").await
        })
        .await;
        let spec = pod.spec.unwrap();
        assert_eq!(
            (spec.host_network, spec.containers[0].args.clone()),
            (Some(true), Some(vec!["--all".to_owned()]))
        );
        assert_eq!(
            fixture.pods("mc", 1).await[&0]
                .spec
                .as_ref()
                .unwrap()
                .host_network,
            None
        );
        fixture
            .create(
                "wrong",
                with(json!({ "spec": { "containers": [{ "name": "cache", "argz": ["--all"] }] } })),
            )
            .await;
        let status = fixture.when_condition("wrong", "Valid", "False").await;
        assert_message(
            &condition(&status, "Valid"),
            "\"spec.servicesPodTemplate.spec.containers[0].argz\"",
        );
    });
}

/// A list cannot be read if one object in it is nested deeper than a parser goes. Without a check, anybody who may
/// create a MiniCluster could stop the operator from serving all others.
#[test]
fn deeply_nested_overlay_is_reported_and_hides_no_other() {
    test("overlay-deep", async |fixture| {
        let deep = format!("{}1{}", r#"{"a":["#.repeat(1500), "]}".repeat(1500));
        let body = format!(
            r#"{{"apiVersion":"flux-framework.org/v1alpha2","kind":"MiniCluster","metadata":{{"name":"deep"}},"spec":{{"containers":[{{"image":"a"}}],"podTemplate":{{"spec":{deep}}}}}}}"#
        );
        let uri = format!(
            "/apis/flux-framework.org/v1alpha2/namespaces/{}/miniclusters",
            fixture.namespace
        );
        let request = http::Request::post(&uri)
            .header("content-type", "application/json")
            .body(body.into_bytes());
        fixture.client.request_text(request.unwrap()).await.unwrap();
        // The operator starts only now, so its first list contains the object.
        let operator = fixture.operator().await;
        fixture.create("good", json!({ "size": 1 })).await;
        fixture.pods("good", 1).await;
        let phase_and_message = async || {
            let path = "jsonpath={.status.phase}: {.status.conditions[?(@.type==\"Valid\")].message}";
            fixture
                .kubectl(&[
                    "get",
                    "miniclusters.v1alpha2.flux-framework.org",
                    "deep",
                    "-o",
                    path,
                ])
                .ok()
        };
        let message = until("the status says that it is invalid", async || {
            phase_and_message()
                .await
                .filter(|text| text.starts_with("Invalid"))
        })
        .await;
        assert!(message.contains("nested more than 100 levels deep"), "{message}");
        fixture
            .kubectl(&["delete", "miniclusters.v1alpha2.flux-framework.org", "deep"])
            .unwrap();
        operator.stop().await;
    });
}

/// Pod Security checks the pods with the overlay, so nobody gets a privileged pod through it.
#[test]
fn pod_security_applies_to_pods_with_an_overlay() {
    test("overlay-restricted", async |fixture| {
        let _operator = fixture.operator().await;
        let label = json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "baseline" } } });
        let namespaces: kube::Api<k8s_openapi::api::core::v1::Namespace> =
            kube::Api::all(fixture.client.clone());
        namespaces
            .patch(&fixture.namespace, &PatchParams::default(), &Patch::Merge(label))
            .await
            .unwrap();
        let overlay = json!({ "spec": { "volumes": [{ "name": "etc", "hostPath": { "path": "/etc" } }], "hostPID": true } });
        fixture.create("mc", spec(overlay)).await;
        let status = fixture.when_is("mc", "reason", "FailedCreate").await;
        for words in ["violates PodSecurity", "hostPath", "host namespaces"] {
            assert_message(&status, words);
        }
        assert!(fixture.all_pods("mc").await.is_empty());
    });
}

/// Kubernetes' own types say which lists are merged, and by which key.
#[test]
fn merge_keys_of_lists_are_those_of_kubernetes() {
    test("overlay-keys", async |fixture| {
        let request = http::Request::get("/openapi/v3/api/v1").body(Vec::new()).unwrap();
        let api: Value = fixture.client.request(request).await.unwrap();
        let schemas = &api["components"]["schemas"];
        let mut found = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let mut next = vec!["io.k8s.api.core.v1.PodSpec".to_owned()];
        while let Some(name) = next.pop() {
            if !seen.insert(name.clone()) {
                continue;
            }
            for (field, property) in schemas[&name]["properties"].as_object().into_iter().flatten() {
                if let Some(key) = property["x-kubernetes-patch-merge-key"].as_str() {
                    found.insert((field.clone(), key.to_owned()));
                }
                let text = property.to_string();
                let refs = text
                    .split("#/components/schemas/")
                    .skip(1)
                    .filter_map(|part| part.split('"').next());
                // Metadata of ephemeral volumes' claims: none of our fields are in it.
                next.extend(
                    refs.filter(|name| !name.ends_with("ObjectMeta"))
                        .map(str::to_owned),
                );
            }
        }
        let known: BTreeSet<(String, String)> = MERGED_LISTS
            .iter()
            .map(|(list, key)| ((*list).to_owned(), (*key).to_owned()))
            .collect();
        let missing: Vec<_> = found.difference(&known).collect();
        assert!(
            missing.is_empty() && found.len() >= 13,
            "{missing:?} of {found:?}"
        );
        // Lists that only a newer Kubernetes has.
        let newer: Vec<_> = known.difference(&found).map(|(list, _)| list.as_str()).collect();
        assert!(newer.is_empty() || newer == ["evictionResponders"], "{newer:?}");
    });
}
