//! Wrong input: the API server rejects it where it can, and otherwise the operator reports it. It is never a
//! reason to stop serving others.

use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use k8s_openapi::api::events::v1::Event;
use serde_json::{Value, json};

use test_support::api_server::{Fixture, assert_message, condition, test, until};

async fn events(fixture: &Fixture, reason: &str) -> Vec<Event> {
    let all = fixture.all::<Event>().await;
    all.into_iter()
        .filter(|event| event.reason.as_deref() == Some(reason))
        .collect()
}

#[test]
fn api_server_rejects_what_the_rules_of_the_crd_forbid() {
    test("rules", async |fixture| {
        let one = |extra: Value| {
            let mut container = json!({ "image": "app:1" });
            container
                .as_object_mut()
                .unwrap()
                .extend(extra.as_object().unwrap().clone());
            json!({ "size": 2, "containers": [container] })
        };
        for (spec, field) in [
            (json!({ "size": 0 }), "spec.size"),
            (json!({ "size": 4, "maxSize": 2 }), "spec.maxSize"),
            (json!({ "size": 4, "minSize": 5 }), "spec.minSize"),
            (
                one(json!({ "batch": true, "launcher": true, "command": "a" })),
                "spec.containers[0].batch",
            ),
            (
                one(json!({ "command": "a", "commands": { "script": "b" } })),
                "spec.containers[0].commands",
            ),
            (
                one(json!({ "volumes": { "data": { "path": "/d" } } })),
                "every volume of a container has a source",
            ),
            (
                one(json!({ "volumes": { "m": { "emptyDir": true, "emptyDirSizeLimit": "64GB" } } })),
                "emptyDirSizeLimit",
            ),
            (
                json!({ "size": 1, "network": { "headlessName": "Not_A_Name" } }),
                "spec.network.headlessName",
            ),
            (
                json!({ "size": 1, "services": [{ "image": "a" }] }),
                "spec.services[0].name",
            ),
            (
                json!({ "size": 1, "services": [{ "image": "a", "name": "b", "runFlux": true }] }),
                "services run their image's entrypoint",
            ),
            (
                json!({ "size": 1, "containers": [{ "image": "a" }, { "image": "b" }] }),
                "spec.containers: ",
            ),
            (
                json!({ "size": 1, "containers": [{ "image": "a", "runFlux": true }, { "image": "b" }] }),
                "every container except the one that runs Flux needs a name",
            ),
        ] {
            let error = fixture
                .try_create("wrong", spec.clone())
                .await
                .err()
                .map(|error| error.to_string());
            let error = error.unwrap_or_else(|| panic!("accepted: {spec}"));
            assert!(error.contains(field), "{spec}: {error}");
        }
        for name in [&"a".repeat(55), "four.pods"] {
            let error = fixture
                .try_create(name, one(json!({})))
                .await
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("metadata.name must be 54 characters at most, lower case"),
                "{error}"
            );
        }
        fixture.create(&"a".repeat(54), one(json!({}))).await;
        // The Go operator also accepts a name that begins with a digit.
        let operator = fixture.operator().await;
        fixture.create("2024-run", one(json!({}))).await;
        fixture.pods("2024-run", 2).await;
        operator.stop().await;
    });
}

#[test]
fn spec_beyond_schema_rules_gets_condition_and_event_by_field() {
    test("invalid", async |fixture| {
        let operator = fixture.operator().await;
        let spec = json!({
            "size": 2,
            "containers": [{ "image": "app:1", "command": "echo \"open", "environment": { "A=B": "c" } }],
        });
        fixture.create("wrong", spec).await;
        let status = fixture.when_is("wrong", "phase", "Invalid").await;
        let valid = condition(&status, "Valid");
        assert_eq!(valid["status"], "False");
        for field in [
            "spec.containers[0].command",
            "spec.containers[0].environment[A=B]",
        ] {
            assert_message(&valid, field);
        }
        assert_eq!(
            status["maximumSize"],
            Value::Null,
            "the spec can still be put right"
        );
        let event = until("an event says so", async || {
            events(&fixture, "Invalid").await.pop()
        })
        .await;
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        assert!(event.note.unwrap().contains("spec.containers[0].command"));

        // Others are served, and the operator does not try again and again.
        fixture.create("right", json!({ "size": 1 })).await;
        fixture.pods("right", 1).await;
        fixture.when_is("right", "size", 1).await;
        let about_wrong = operator
            .calls
            .all()
            .into_iter()
            .filter(|call| call.name == "wrong")
            .count();
        assert_eq!(about_wrong, 1, "{:?}", operator.calls.all());

        fixture
            .edit(
                "wrong",
                json!({ "containers": [{ "image": "app:1", "command": "echo" }] }),
            )
            .await;
        fixture.pods("wrong", 2).await;
        let status = fixture.when_condition("wrong", "Valid", "True").await;
        assert_eq!(condition(&status, "Valid")["observedGeneration"], 2);
        operator.stop().await;
    });
}

#[test]
fn job_refused_by_api_server_is_reported_in_the_status() {
    test("refused-by-kubernetes", async |fixture| {
        let _operator = fixture.operator().await;
        // Only the API server knows which values of the pod's fields it accepts.
        let container =
            json!({ "image": "app:1", "securityContext": { "seccompProfile": { "type": "Sideways" } } });
        fixture
            .create("mc", json!({ "size": 1, "containers": [container] }))
            .await;
        let status = fixture.when_is("mc", "reason", "Refused").await;
        assert_message(&status, "seccompProfile");
        assert_eq!(status["phase"], "Pending");
        until("an event says so", async || {
            events(&fixture, "Refused").await.pop()
        })
        .await;
    });
}

/// `services` cannot change once the Job exists.
#[test]
fn invalid_services_pod_is_refused_before_the_job() {
    test("refused-services", async |fixture| {
        let _operator = fixture.operator().await;
        let spec = |limit: &str| {
            let resources = json!({ "requests": { "memory": "2Gi" }, "limits": { "memory": limit } });
            json!({ "size": 1, "services": [{ "image": "db:1", "name": "db", "resources": resources }] })
        };
        fixture.create("mc", spec("1Gi")).await;
        let status = fixture.when_is("mc", "reason", "Refused").await;
        assert_message(&status, "Pod mc-services: ");
        assert_message(&status, "must be less than or equal to memory limit");
        assert!(fixture.find::<Job>("mc").await.is_none());
        fixture.edit("mc", spec("2Gi")).await;
        fixture.pods("mc", 1).await;
        until("the services pod", async || {
            fixture.find::<Pod>("mc-services").await
        })
        .await;

        // A full quota may have room later, so it does not hold back the Job. The services pod is created then.
        let quota = json!({ "metadata": { "name": "no-pods" }, "spec": { "hard": { "pods": "0" } } });
        let quotas = fixture.api::<ResourceQuota>();
        fixture.add::<ResourceQuota>(quota).await;
        until("the quota is in force", async || {
            quotas.get("no-pods").await.unwrap().status?.hard
        })
        .await;
        fixture.create("waits", spec("2Gi")).await;
        until("the Job", async || fixture.find::<Job>("waits").await).await;
    });
}

#[test]
fn quoted_length_of_a_text_is_counted() {
    test("large", async |fixture| {
        let _operator = fixture.operator().await;
        let script = |text: String| json!({ "size": 1, "containers": [{ "image": "app:1", "commands": { "script": text } }] });
        let error = fixture
            .try_create("mc", script("\"".repeat(950_000)))
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("commands.script: ") && error.contains("1400000 bytes with its quoting"),
            "{error}"
        );
        assert!(error.len() < 2000, "it does not repeat the text");
        // The CRD limits a text as JSON quotes it. The ConfigMap has it in TOML, where most texts need no escapes, so that
        // what the CRD admits fits. A text that contains ''' needs them.
        fixture
            .create("mc", script(format!("'''{}", "\\".repeat(600_000))))
            .await;
        let status = fixture.when_is("mc", "reason", "TooLarge").await;
        assert_message(&status, "a ConfigMap holds 1048576");
        fixture.create("fits", script("\"\\\n".repeat(200_000))).await;
        fixture.pods("fits", 1).await;
    });
}

#[test]
fn a_field_that_this_kubernetes_would_drop_is_refused() {
    test("dropped", async |fixture| {
        let _operator = fixture.operator().await;
        let minor = fixture.minor().await;
        fixture
            .create("mc", json!({ "size": 1, "pod": { "resources": { "cpu": 1 } } }))
            .await;
        // Since Kubernetes 1.34, a pod's `resources` are enabled by default. An older API server drops them.
        if minor >= 34 {
            let job = until("the Job", async || fixture.api::<Job>().get("mc").await.ok()).await;
            assert!(job.spec.unwrap().template.spec.unwrap().resources.is_some());
        } else {
            let status = fixture.when_is("mc", "reason", "Unsupported").await;
            assert_message(&status, "spec.pod.resources");
        }
        // A newer API server rejects it with its own message: the pod must have its own user namespace.
        let reason = if minor >= 33 { "Refused" } else { "Unsupported" };
        let container = json!({ "image": "app:1", "securityContext": { "procMount": "Unmasked" } });
        fixture
            .create("unmasked", json!({ "size": 1, "containers": [container] }))
            .await;
        let status = fixture.when_is("unmasked", "reason", reason).await;
        assert_message(&status, "procMount");
    });
}

#[test]
fn fields_of_the_pods_cannot_change_once_the_job_exists() {
    test("fixed", async |fixture| {
        let _operator = fixture.operator().await;
        fixture.create("mc", json!({ "size": 1 })).await;
        // From then on, the API server rejects edits of fixed fields.
        fixture.when_is("mc", "maximumSize", 1).await;
        for change in [
            json!({ "containers": [{ "image": "other:1", "command": "hostname" }] }),
            json!({ "tasks": 4 }),
            json!({ "flux": { "logLevel": 7 } }),
            json!({ "maxSize": 9 }),
        ] {
            let error = fixture
                .patch::<MiniCluster>("mc", json!({ "spec": change }))
                .await
                .unwrap_err()
                .to_string();
            assert!(error.contains("cannot change"), "{error}");
        }
        let change = json!({ "spec": { "tasks": 4, "maxSize": 9, "size": 1 } });
        let error = fixture
            .patch::<MiniCluster>("mc", change)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("spec: Forbidden: maxSize tasks cannot change once the Job has been created"),
            "{error}"
        );
        fixture
            .edit("mc", json!({ "ttlSecondsAfterFinished": 60, "cleanup": false }))
            .await;
        assert_eq!(fixture.get("mc").await.metadata.generation, Some(2));
    });
}
