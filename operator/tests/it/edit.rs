//! Edits before a status has the maximum size, after which the API server rejects them, and outdated statuses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flux_operator_core::observe::Key;
use flux_operator_core::status::patch;
use flux_operator_core::target::Target;
use flux_shared::crd::v1alpha2::{MiniCluster, MiniClusterStatus};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, Service};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Resource};
use serde_json::{Value, json};

use test_support::api_server::{Call, Calls, Fault, Fixture, assert_message, condition, test, until};

/// `spec.containers` with the edit `which`.
pub(crate) fn spec(which: &str) -> Value {
    json!([{ "image": "app:1", "command": format!("echo {which}"), "environment": { "WHICH": which } }])
}

/// The edit that the Job's pods would run: `which` of [`spec`]. The Job has it in a variable, and the ConfigMap in the
/// command. None: the two disagree, one is missing, or the Job is being deleted.
pub(crate) async fn of_job(fixture: &Fixture, name: &str) -> Option<String> {
    let job = fixture.find::<Job>(name).await?;
    if job.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let runner = &job.spec?.template.spec?.containers[0];
    let which = runner
        .env
        .as_ref()?
        .iter()
        .find(|variable| variable.name == "WHICH")?
        .value
        .clone()?;
    let config = fixture.find::<ConfigMap>(&format!("{name}-agent")).await?.data?;
    config["agent.toml"].contains(&which).then_some(which)
}

/// Whether the Job matches the spec, or the status reports that it does not.
async fn is_applied_or_reported(fixture: &Fixture, name: &str, which: &str) -> Option<()> {
    let cluster = fixture.get(name).await;
    let generation = cluster.meta().generation;
    let status = serde_json::to_value(cluster).unwrap()["status"].clone();
    // A status has a maximum size once the Job was created. From then on, the API server rejects edits.
    let is_seen = status["observedGeneration"].as_i64() == generation && status["maximumSize"] == 1;
    let is_reported = condition(&status, "Valid")["reason"] == "ChangedTooLate";
    (is_seen && (is_reported || of_job(fixture, name).await.as_deref() == Some(which))).then_some(())
}

#[test]
fn edit_during_job_creation_is_applied_or_reported() {
    test("edits", async |fixture| {
        let operator = fixture.operator().await;
        let mut accepted = 0;
        for round in 0..60_u64 {
            let name = format!("mc-{round}");
            fixture
                .create(&name, json!({ "size": 1, "containers": spec("first") }))
                .await;
            // Each round's edit comes at a later moment of the creation.
            tokio::time::sleep(Duration::from_millis(round * 2)).await;
            let edit = json!({ "spec": { "containers": spec("second") } });
            let which = match fixture.patch::<MiniCluster>(&name, edit).await {
                Ok(_) => "second",
                Err(error) => {
                    assert!(error.to_string().contains("cannot change once"), "{error}");
                    "first"
                }
            };
            accepted += usize::from(which == "second");
            until(&format!("{name} runs {which}"), async || {
                is_applied_or_reported(&fixture, &name, which).await
            })
            .await;
        }
        assert!(accepted > 5, "only {accepted} edits came in time");
        operator.stop().await;
    });
}

/// A Secret or Service that was created before the edit must not keep its former content once the Job exists.
#[test]
fn edit_of_a_cluster_whose_job_was_refused_is_in_all_objects() {
    test("refused-edit", async |fixture| {
        fixture.refuse_jobs().await;
        let operator = fixture.operator().await;
        let spec = |password: &str, port: u32| {
            let containers = json!([
                { "image": "app:1", "command": "hostname", "runFlux": true },
                { "image": "db:1", "name": "db", "ports": [port] },
            ]);
            let users = json!([{ "name": "ada", "password": password }]);
            json!({ "size": 1, "containers": containers, "users": users })
        };
        fixture.create("mc", spec("first", 80)).await;
        fixture.when_is("mc", "reason", "Forbidden").await;
        fixture.edit("mc", spec("second", 90)).await;
        fixture.allow_jobs().await;
        fixture.pods("mc", 1).await;
        let secret = fixture.secret("mc", "users").await.unwrap();
        assert_eq!(secret.data.unwrap()["ada"].0, b"second");
        let service = fixture.api::<Service>().get("db").await.unwrap();
        assert_eq!(service.spec.unwrap().ports.unwrap()[0].port, 90);
        operator.stop().await;
    });
}

/// The same if another object cannot be created: a volume, or the Service of another sidecar.
#[test]
fn edit_of_a_cluster_that_waits_for_a_name_is_in_its_service() {
    test("taken-edit", async |fixture| {
        let operator = fixture.operator().await;
        let volumes: Api<PersistentVolume> = Api::all(fixture.client.clone());
        let volume = format!("{}.volume.data", fixture.namespace);
        let foreign = json!({
            "metadata": { "name": volume },
            "spec": { "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteMany"], "hostPath": { "path": "/tmp/a" } },
        });
        let foreign = serde_json::from_value(foreign).unwrap();
        volumes.create(&PostParams::default(), &foreign).await.unwrap();
        let foreign = json!({ "metadata": { "name": "taken" }, "spec": { "ports": [{ "port": 80 }] } });
        fixture.add::<Service>(foreign).await;
        let spec = |name: &str, port: u32| {
            let containers = json!([
                { "image": "app:1", "command": "hostname", "runFlux": true },
                { "image": "db:1", "name": format!("db-{name}"), "ports": [port, 100] },
                { "image": "db:1", "name": "taken", "ports": if name == "service" { json!([80]) } else { json!([]) } },
            ]);
            let volumes = if name == "volume" {
                json!({ "data": { "path": "/tmp/b" } })
            } else {
                json!({})
            };
            json!({ "size": 1, "containers": containers, "volumes": volumes })
        };
        for name in ["volume", "service"] {
            fixture.create(name, spec(name, 80)).await;
            fixture.when_is(name, "reason", "NameTaken").await;
            fixture.edit(name, spec(name, 90)).await;
            fixture.when_is(name, "observedGeneration", 2).await;
        }
        volumes.delete(&volume, &DeleteParams::default()).await.unwrap();
        fixture.delete::<Service>("taken").await;
        for name in ["volume", "service"] {
            fixture.pods(name, 1).await;
            let service = fixture.api::<Service>().get(&format!("db-{name}")).await.unwrap();
            let ports = service.spec.unwrap().ports.unwrap();
            assert_eq!(ports.iter().map(|port| port.port).collect::<Vec<_>>(), [90, 100]);
        }
        operator.stop().await;
    });
}

#[test]
fn edit_after_pods_have_started_is_reported_as_too_late() {
    test("late-edit", async |fixture| {
        fixture
            .create("mc", json!({ "size": 1, "containers": spec("first") }))
            .await;
        let operator = fixture.operator().await;
        let pods = fixture.pods("mc", 1).await;
        fixture.when_is("mc", "maximumSize", 1).await;
        operator.stop().await;
        // As if the operator had been killed before its first status.
        fixture.run_pod(&pods[&0]).await;
        let none = kube::api::Patch::Merge(json!({ "status": null }));
        fixture
            .api::<MiniCluster>()
            .patch_status("mc", &Default::default(), &none)
            .await
            .unwrap();
        fixture.edit("mc", json!({ "containers": spec("second") })).await;
        let operator = fixture.operator().await;
        let status = fixture.when_condition("mc", "Valid", "False").await;
        let valid = condition(&status, "Valid");
        assert_eq!(valid["reason"], "ChangedTooLate", "{status:#}");
        assert_message(&valid, "delete and recreate the MiniCluster");
        assert_eq!(status["maximumSize"], 1, "no other edit comes in");
        assert_eq!(status["phase"], "Running");
        assert_eq!(of_job(&fixture, "mc").await.as_deref(), Some("first"));
        operator.stop().await;

        let next_operator = fixture.operator().await;
        fixture.end_pod(&pods[&0], 0, "Completed", "").await;
        let status = fixture.when_condition("mc", "Complete", "True").await;
        assert_eq!(
            condition(&status, "Valid")["reason"],
            "ChangedTooLate",
            "the condition stays"
        );
        next_operator.stop().await;
    });
}

#[test]
fn status_is_not_written_to_a_new_cluster_of_the_same_name() {
    test("same-name", async |fixture| {
        let first = fixture.create("mc", json!({ "size": 1 })).await;
        fixture.delete::<MiniCluster>("mc").await;
        fixture.until_gone::<MiniCluster>("mc").await;
        let second = fixture.create("mc", json!({ "size": 1 })).await;
        let (writer, key) = (fixture.writer().await, Key::new(&fixture.namespace, "mc"));
        let write = async |cluster: &MiniCluster, generation: i64| {
            // `Target::of` takes the operator's own type of a MiniCluster, which is read from JSON.
            let mut target =
                Target::of(&serde_json::from_str(&serde_json::to_string(cluster).unwrap()).unwrap());
            target.generation = Some(generation);
            // The first maximum size means that the Job was created. So the patch also tests the generation.
            let after = MiniClusterStatus {
                maximum_size: Some(1),
                ..MiniClusterStatus::default()
            };
            writer
                .patch_status(
                    &key,
                    &patch::build(&target, &target.status, &after).unwrap().unwrap(),
                )
                .await
        };
        assert!(write(&first, 1).await.is_err());
        assert!(
            write(&second, 2).await.is_err(),
            "a status with the first maximum size needs the generation that it was computed for"
        );
        assert_eq!(fixture.get("mc").await.status, None);
        assert!(write(&second, 1).await.unwrap().is_some());
        assert_eq!(fixture.get("mc").await.status.unwrap().maximum_size, Some(1));
    });
}

#[test]
fn job_recreated_after_an_edit_counts_as_no_restart() {
    test("edit-slow-deletion", async |fixture| {
        // The API server accepts the edit only before a status names the Job.
        let has_edited = Arc::new(AtomicBool::new(false));
        let may_write = has_edited.clone();
        let calls = Calls::with_faults(move |call: &Call| {
            let is_status = call.verb == "patch" && call.resource == "miniclusters/status";
            (is_status && !may_write.load(Ordering::SeqCst)).then_some(Fault::Answer(503))
        });
        let operator = fixture.operator_of(calls, |_| {}).await;
        fixture
            .create("mc", json!({ "size": 1, "containers": spec("first") }))
            .await;
        let first = fixture.job("mc").await.metadata.uid;
        // While the controller manager is down, a deleted Job stays. The finalizer has the same effect.
        let finalizers = |all: Value| json!({ "metadata": { "finalizers": all } });
        let kept = fixture
            .patch::<Job>("mc", finalizers(json!(["example.com/slow"])))
            .await;
        kept.unwrap();
        fixture.edit("mc", json!({ "containers": spec("second") })).await;
        until("the operator deletes the Job", async || {
            let job = fixture.job("mc").await;
            job.metadata.deletion_timestamp.map(drop)
        })
        .await;
        has_edited.store(true, Ordering::SeqCst);
        fixture.when_is("mc", "observedGeneration", 2).await;
        fixture.patch::<Job>("mc", finalizers(Value::Null)).await.unwrap();
        until("the second edit runs", async || {
            is_applied_or_reported(&fixture, "mc", "second").await
        })
        .await;
        assert_ne!(fixture.job("mc").await.metadata.uid, first);
        let status = fixture.status("mc").await;
        for field in ["restartCount", "backoffLimitUsed", "restarts"] {
            assert!(status[field].is_null(), "{field}: {status:#}");
        }
        operator.stop().await;
    });
}
