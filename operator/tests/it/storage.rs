//! Volumes that the operator creates, cleanup, users, and the Secret of the Flux RESTful API, on the real API
//! server, whose controllers bind and release volumes.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use flux_operator::observe::watch::KINDS;
use flux_shared::crd::v1alpha2::MiniCluster;
use futures::TryStreamExt;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use test_support::api_server::{
    Call, Calls, Fault, Fixture, Operator, SETTLE, assert_message, condition, test, until,
};
use test_support::call::assert_sufficient_and_all_used;
use test_support::installation::{Installation, Permission};

/// Only a deletion by the operator, PersistentVolumes whose owner is gone, and large specs need this permission.
fn read_past_the_cache() -> Permission {
    ("flux-framework.org".into(), "miniclusters".into(), "get".into())
}

pub(crate) fn spec(volume: Value) -> Value {
    json!({
        "size": 1,
        "volumes": { "data": volume },
        "containers": [{ "image": "app:1", "command": "ls /data", "volumes": { "data": { "path": "/data" } } }],
    })
}

pub(crate) fn volumes(fixture: &Fixture) -> Api<PersistentVolume> {
    Api::all(fixture.client.clone())
}

pub(crate) async fn volume(fixture: &Fixture, cluster: &str) -> Option<PersistentVolume> {
    volumes(fixture)
        .get_opt(&format!("{}.{cluster}.data", fixture.namespace))
        .await
        .unwrap()
}

pub(crate) async fn claim(fixture: &Fixture, cluster: &str) -> Option<PersistentVolumeClaim> {
    fixture.find(&format!("{cluster}.data")).await
}

fn phase(volume: &PersistentVolume) -> &str {
    volume
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

pub(crate) async fn bound(fixture: &Fixture, cluster: &str) -> PersistentVolume {
    until(&format!("the volume of {cluster} is bound"), async || {
        volume(fixture, cluster)
            .await
            .filter(|volume| phase(volume) == "Bound")
    })
    .await
}

async fn gone(fixture: &Fixture, cluster: &str) {
    until(&format!("volume and claim of {cluster} are gone"), async || {
        // Plays the kubelet: pods that are being deleted end, so that the claim is not in use.
        fixture.reap(cluster).await;
        (volume(fixture, cluster).await.is_none() && claim(fixture, cluster).await.is_none()).then_some(())
    })
    .await;
}

/// The scheduler sets a pod with an unbound claim aside, with a warning.
#[test]
fn job_is_created_once_its_claims_are_bound() {
    test("bound-first", async |fixture| {
        let version = |metadata: &ObjectMeta| {
            metadata
                .resource_version
                .as_ref()
                .unwrap()
                .parse::<u64>()
                .unwrap()
        };
        let jobs = fixture.api::<Job>();
        let begin = jobs
            .list_metadata(&ListParams::default())
            .await
            .unwrap()
            .metadata
            .resource_version
            .unwrap();
        let operator = fixture.operator().await;
        for number in 0..5 {
            let name = format!("mc-{number}");
            fixture.create(&name, spec(json!({ "path": "/tmp/data" }))).await;
            bound(&fixture, &name).await;
            let claim = until("the claim is bound", async || {
                let claim = claim(&fixture, &name).await?;
                claim
                    .status
                    .as_ref()
                    .is_some_and(|status| status.phase.as_deref() == Some("Bound"))
                    .then_some(claim)
            })
            .await;
            fixture.pods(&name, 1).await;
            // All objects share one sequence of versions: the bound claim's must be the lower one. Updates of the Job
            // have raised its version. Only a watch from `begin` still delivers the version of its creation.
            let mut events = pin!(jobs.watch(&WatchParams::default(), &begin).await.unwrap());
            let made = loop {
                match events.try_next().await.unwrap().expect("the watch goes on") {
                    WatchEvent::Added(job) if job.name_any() == name => break version(&job.metadata),
                    _ => {}
                }
            };
            assert!(
                version(&claim.metadata) < made,
                "{name}: bound at {:?}, Job at {made}",
                claim.resource_version()
            );
        }
        operator.stop().await;
    });
}

#[test]
fn volume_is_deleted_with_its_minicluster_only() {
    test("volumes", async |fixture| {
        let operator = fixture.operator().await;
        fixture.create("mc", spec(json!({ "path": "/tmp/data" }))).await;
        let made = bound(&fixture, "mc").await;
        let claim_ref = made.spec.as_ref().unwrap().claim_ref.as_ref().unwrap();
        assert_eq!(claim_ref.uid, claim(&fixture, "mc").await.unwrap().uid());
        let pods = fixture.pods("mc", 1).await;
        let source = pods[&0].spec.as_ref().unwrap().volumes.as_ref().unwrap();
        let claims: Vec<&str> = source
            .iter()
            .filter_map(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.as_str()))
            .collect();
        assert_eq!(claims, ["mc.data"]);

        // Somebody else's volume, with the name that the MiniCluster `other` needs.
        let mut foreign = made.clone();
        foreign.metadata = kube::api::ObjectMeta {
            name: Some(format!("{}.other.data", fixture.namespace)),
            ..Default::default()
        };
        foreign.spec.as_mut().unwrap().claim_ref = None;
        volumes(&fixture)
            .create(&PostParams::default(), &foreign)
            .await
            .unwrap();
        fixture
            .create("other", spec(json!({ "path": "/tmp/data" })))
            .await;
        let status = fixture.when_is("other", "reason", "NameTaken").await;
        assert_message(&status, "PersistentVolume");

        fixture.delete::<MiniCluster>("mc").await;
        fixture.delete::<MiniCluster>("other").await;
        gone(&fixture, "mc").await;
        let foreign_volume = volume(&fixture, "other").await.unwrap();
        assert_eq!(foreign_volume.metadata.deletion_timestamp, None);
        volumes(&fixture)
            .delete(&foreign_volume.name_any(), &DeleteParams::default())
            .await
            .unwrap();
        operator.stop().await;
    });
}

/// Kubernetes keeps a bound volume until its claim is gone.
#[test]
fn volume_edited_while_the_job_is_refused_is_replaced() {
    test("volumes-edit", async |fixture| {
        fixture.refuse_jobs().await;
        let operator = fixture.operator().await;
        fixture.create("mc", spec(json!({ "path": "/tmp/first" }))).await;
        bound(&fixture, "mc").await;
        fixture.when_is("mc", "reason", "Forbidden").await;
        fixture
            .edit("mc", json!({ "volumes": { "data": { "path": "/tmp/second" } } }))
            .await;
        fixture.allow_jobs().await;
        fixture.pods("mc", 1).await;
        let volume = bound(&fixture, "mc").await.spec.unwrap();
        assert_eq!(volume.host_path.unwrap().path, "/tmp/second");
        let claim_uid = claim(&fixture, "mc").await.unwrap().uid();
        assert_eq!(volume.claim_ref.unwrap().uid, claim_uid);
        operator.stop().await;
    });
}

/// Waits until the operator watches every kind, also volumes and storage classes. The watch of a kind begins after its
/// list.
pub async fn has_listed_everything(operator: &Operator) {
    until("it has listed everything", async || {
        // Volumes and storage classes are two more.
        (operator.calls.watched().len() >= KINDS + 2).then_some(())
    })
    .await;
}

/// Asserts that this operator, which was started again, writes nothing.
async fn writes_nothing_again(operator: &Operator) {
    has_listed_everything(operator).await;
    tokio::time::sleep(SETTLE).await;
    assert_eq!(operator.calls.counted(), [], "a restart writes nothing");
}

/// Volumes of the same name in two MiniClusters: each has its own. If both are the same disk, both
/// MiniClusters report this, for as long as it is the case.
#[test]
fn csi_volumes_bind_and_a_shared_disk_is_reported_to_both() {
    test("volumes-csi", async |fixture| {
        let operator = fixture.operator().await;
        let csi = json!({
            "storageClass": "csi-gcs", "driver": "gcs.csi.ofek.dev", "volumeName": "bucket/path", "secret": "keys",
            "secretNamespace": fixture.namespace, "attributes": { "mounter": "geesefs" }, "capacity": "25Gi",
            "claimAnnotations": { "gcs.csi.ofek.dev/bucket": "b" },
        });
        let mut names = BTreeSet::new();
        for cluster in ["one", "two"] {
            fixture.create(cluster, spec(csi.clone())).await;
            let made = bound(&fixture, cluster).await;
            names.insert(made.name_any());
            let source = serde_json::to_value(made.spec.unwrap()).unwrap()["csi"].clone();
            let keys = json!({ "name": "keys", "namespace": fixture.namespace });
            let wanted = json!({
                "driver": "gcs.csi.ofek.dev", "volumeHandle": "bucket/path", "volumeAttributes": { "mounter": "geesefs" },
                "nodePublishSecretRef": keys, "nodeStageSecretRef": keys, "controllerPublishSecretRef": keys,
            });
            assert_eq!(source, wanted);
            let claim = claim(&fixture, cluster).await.unwrap();
            assert_eq!(claim.annotations()["gcs.csi.ofek.dev/bucket"], "b");
            assert_eq!(claim.spec.unwrap().volume_name, Some(made.metadata.name.unwrap()));
        }
        assert_eq!(names.len(), 2);
        let message_of = async |cluster: &str, reason: &str| {
            let has_reason = |status: &Value| condition(status, "VolumesValid")["reason"] == reason;
            let status = fixture.when(cluster, reason, has_reason).await;
            condition(&status, "VolumesValid")["message"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        for (cluster, other) in [("one", "two"), ("two", "one")] {
            let message = message_of(cluster, "SharedHandle").await;
            let volume = format!("PersistentVolume {}.{other}.data ", fixture.namespace);
            assert!(
                message.contains("spec.volumes[data].volumeHandle: ") && message.contains(&volume),
                "{message}"
            );
            // No storage class of this name exists yet.
            assert!(message.contains("spec.volumes[data].storageClass: "), "{message}");
        }
        // A shared disk stops no pod.
        fixture.pods("two", 1).await;
        operator.settled().await;
        operator.stop().await;
        let operator = fixture.operator().await;
        writes_nothing_again(&operator).await;

        fixture.delete::<MiniCluster>("two").await;
        gone(&fixture, "two").await;
        message_of("one", "UnknownStorageClass").await;
        let classes: Api<StorageClass> = Api::all(fixture.client.clone());
        let class = json!({ "metadata": { "name": "csi-gcs" }, "provisioner": "gcs.csi.ofek.dev" });
        classes
            .create(&PostParams::default(), &serde_json::from_value(class).unwrap())
            .await
            .unwrap();
        message_of("one", "Valid").await;
        classes.delete("csi-gcs", &DeleteParams::default()).await.unwrap();
        message_of("one", "UnknownStorageClass").await;
        for reason in ["SharedHandle", "UnknownStorageClass"] {
            until(&format!("an event says {reason}"), async || {
                let events = fixture.all::<Event>().await;
                events
                    .into_iter()
                    .find(|event| event.reason.as_deref() == Some(reason))
            })
            .await;
        }
        fixture.delete::<MiniCluster>("one").await;
        gone(&fixture, "one").await;
        operator.stop().await;
    });
}

#[test]
fn volume_is_swept_by_the_next_operator() {
    test("swept", async |fixture| {
        let operator = fixture.operator().await;
        fixture.create("mc", spec(json!({ "path": "/tmp/data" }))).await;
        bound(&fixture, "mc").await;
        operator.stop().await;
        fixture.delete::<MiniCluster>("mc").await;
        until("the claim is gone", async || {
            fixture.reap("mc").await;
            claim(&fixture, "mc").await.is_none().then_some(())
        })
        .await;
        assert!(volume(&fixture, "mc").await.is_some());
        let operator = fixture.operator().await;
        gone(&fixture, "mc").await;
        operator.stop().await;
    });
}

#[test]
fn kept_volume_is_reused_and_a_foreign_one_refused() {
    test("kept", async |fixture| {
        let operator = fixture.operator().await;
        let kept = || spec(json!({ "path": "/tmp/data", "delete": false }));
        fixture.create("mc", kept()).await;
        let first = bound(&fixture, "mc").await;
        fixture.delete::<MiniCluster>("mc").await;
        until("it is released", async || {
            fixture.reap("mc").await;
            volume(&fixture, "mc")
                .await
                .filter(|volume| phase(volume) == "Released")
        })
        .await;
        fixture
            .create("mc", spec(json!({ "path": "/tmp/elsewhere", "delete": false })))
            .await;
        let status = fixture.when_is("mc", "reason", "NameTaken").await;
        assert_message(&status, "was kept");
        fixture.delete::<MiniCluster>("mc").await;
        fixture.until_gone::<MiniCluster>("mc").await;

        fixture.create("mc", spec(json!({ "path": "/tmp/data" }))).await;
        let again = bound(&fixture, "mc").await;
        assert_eq!(again.uid(), first.uid());
        fixture.delete::<MiniCluster>("mc").await;
        // This MiniCluster does not keep the volume.
        gone(&fixture, "mc").await;
        operator.stop().await;
    });
}

/// `--cascade=orphan` takes the owner from the claim, which then keeps its volume.
#[test]
fn orphaned_claim_is_named_until_somebody_deletes_it() {
    test("orphaned-claim", async |fixture| {
        let operator = fixture.operator().await;
        fixture.create("mc", spec(json!({ "path": "/tmp/data" }))).await;
        let first = bound(&fixture, "mc").await;
        fixture.pods("mc", 1).await;
        fixture
            .delete_with::<MiniCluster>("mc", &DeleteParams::orphan())
            .await;
        fixture.until_gone::<MiniCluster>("mc").await;
        fixture.delete::<Job>("mc").await;
        fixture.delete::<ConfigMap>("mc-agent").await;
        until("the Job and its pods are gone", async || {
            fixture.reap("mc").await;
            let is_gone =
                fixture.find::<Job>("mc").await.is_none() && fixture.all_pods("mc").await.is_empty();
            is_gone.then_some(())
        })
        .await;
        fixture.create("mc", spec(json!({ "path": "/tmp/data" }))).await;
        let status = fixture.when_is("mc", "reason", "NameTaken").await;
        assert_message(&status, "PersistentVolumeClaim mc.data was left behind");
        fixture.delete::<PersistentVolumeClaim>("mc.data").await;
        let second = until("another volume is bound", async || {
            let found = volume(&fixture, "mc").await?;
            (found.uid() != first.uid() && phase(&found) == "Bound").then_some(found)
        })
        .await;
        assert_eq!(second.metadata.deletion_timestamp, None);
        operator.stop().await;
    });
}

#[test]
fn refused_deletion_of_services_pod_does_not_delay_cleanup() {
    test("cleaned-services", async |fixture| {
        // The services pod comes first. A fault's answer is logged with status 0.
        let is_first = AtomicBool::new(true);
        let calls = Calls::with_faults(move |call: &Call| {
            let is_of_pods = (call.verb.as_str(), call.resource.as_str()) == ("deletecollection", "pods");
            (is_of_pods && is_first.swap(false, Ordering::SeqCst)).then_some(Fault::Answer(422))
        });
        let operator = fixture.operator_of(calls, |_| {}).await;
        let mut all = spec(json!({ "path": "/tmp/data" }));
        all["cleanupPods"] = json!(true);
        all["services"] = json!([{ "image": "cache:1", "name": "cache" }]);
        fixture.create("mc", all).await;
        bound(&fixture, "mc").await;
        until("its services pod exists", async || {
            fixture.find::<Pod>("mc-services").await
        })
        .await;
        let pods = fixture.run_pods("mc", 1).await;
        fixture.end_pod(&pods[&0], 0, "Completed", "").await;
        until("its services pod is deleted, too", async || {
            fixture.reap("mc").await;
            fixture.find::<Pod>("mc-services").await.is_none().then_some(())
        })
        .await;
        gone(&fixture, "mc").await;
        let deletions: Vec<(String, u16)> = operator
            .calls
            .all()
            .into_iter()
            .filter(|call| call.verb.starts_with("delete"))
            .map(|call| (call.resource, call.status))
            .collect();
        let of = |resource: &str, status: u16| (resource.to_owned(), status);
        assert_eq!(
            deletions,
            [
                of("pods", 0),
                of("pods", 200),
                of("persistentvolumeclaims", 200),
                of("persistentvolumes", 200),
                of("pods", 200),
            ]
        );
        operator.stop().await;
    });
}

#[test]
fn completed_job_is_cleaned_up_once_and_its_status_stays() {
    test("cleaned", async |fixture| {
        let operator = fixture.operator().await;
        let mut all = spec(json!({ "path": "/tmp/data" }));
        all["cleanupPods"] = json!(true);
        all["services"] = json!([{ "image": "cache:1", "name": "cache" }]);
        fixture.create("mc", all.clone()).await;
        bound(&fixture, "mc").await;
        let pods = fixture.run_pods("mc", 1).await;
        fixture.end_pod(&pods[&0], 0, "Completed", "").await;
        let status = fixture.when_condition("mc", "CleanedUp", "True").await;
        assert_eq!(
            (&status["phase"], &status["exitCode"], &status["size"]),
            (&json!("Completed"), &json!(0), &json!(0))
        );
        until("no pod is left", async || {
            for pod in [
                fixture.all_pods("mc").await,
                fixture.find::<Pod>("mc-services").await.into_iter().collect(),
            ]
            .concat()
            {
                // Plays the kubelet, for pods that the operator has deleted.
                if pod.metadata.deletion_timestamp.is_some() {
                    let _ = fixture
                        .api::<Pod>()
                        .delete(&pod.name_any(), &DeleteParams::default().grace_period(0))
                        .await;
                }
            }
            (fixture.all_pods("mc").await.is_empty() && fixture.find::<Pod>("mc-services").await.is_none())
                .then_some(())
        })
        .await;
        gone(&fixture, "mc").await;
        // The Job stays.
        fixture.job("mc").await;

        // The pods of a failed job stay.
        fixture.create("failed", all).await;
        let pods = fixture.pods("failed", 1).await;
        fixture.end_pod(&pods[&0], 3, "Error", "").await;
        fixture.when_condition("failed", "Failed", "True").await;
        operator.settled().await;
        operator.stop().await;
        assert_eq!(fixture.all_pods("failed").await.len(), 1);
        assert!(claim(&fixture, "failed").await.is_some());

        // Nothing is done twice.
        let next_operator = fixture.operator().await;
        has_listed_everything(&next_operator).await;
        tokio::time::sleep(SETTLE).await;
        let after = fixture.get("mc").await;
        assert_eq!(
            serde_json::to_value(after.status).unwrap()["conditions"],
            status["conditions"]
        );
        assert_eq!(next_operator.calls.counted(), [], "a restart does nothing");
        fixture.delete::<MiniCluster>("failed").await;
        gone(&fixture, "failed").await;
        next_operator.stop().await;
    });
}

#[test]
fn secrets_of_users_and_rest_api_are_created_once_and_named() {
    test("secrets", async |fixture| {
        let operator = fixture.operator().await;
        let spec = json!({
            "size": 1, "users": [{ "name": "ada", "password": "butter" }, { "name": "bob" }],
            "fluxRestful": { "token": "mine" }, "containers": [{ "image": "app:1" }],
        });
        fixture.create("mc", spec).await;
        let status = fixture
            .when("mc", "named", |status| status["usersSecret"].is_string())
            .await;
        let named = async |what: &str| fixture.secret("mc", what).await.unwrap().name_any();
        let (users, restful) = (named("users").await, named("restful").await);
        assert_eq!(
            (&status["usersSecret"], &status["fluxRestfulSecret"]),
            (&json!(users), &json!(restful))
        );
        let text = async |name: &str, key: &str| {
            let secret = fixture.api::<Secret>().get(name).await.unwrap();
            String::from_utf8(secret.data.unwrap()[key].0.clone()).unwrap()
        };
        assert_eq!(text(&users, "ada").await, "butter");
        let made = text(&users, "bob").await;
        assert!(made.len() >= 26, "128 bits of an alphabet of 32");
        assert_eq!(text(&restful, "token").await, "mine");
        assert_eq!(text(&restful, "secret-key").await.len(), 32);
        let pods = fixture.pods("mc", 1).await;
        let pod = pods[&0].spec.as_ref().unwrap();
        let volumes = pod.volumes.iter().flatten();
        let mounted: Vec<&str> = volumes
            .filter_map(|volume| volume.secret.as_ref()?.secret_name.as_deref())
            .collect();
        assert!(
            mounted.contains(&users.as_str()) && mounted.contains(&restful.as_str()),
            "{mounted:?}"
        );
        let runner = &pod.containers[0];
        let mounts: Vec<&str> = runner
            .volume_mounts
            .iter()
            .flatten()
            .map(|mount| mount.mount_path.as_str())
            .collect();
        assert!(
            mounts.contains(&"/etc/flux-agent/users") && mounts.contains(&"/etc/flux-agent/restful"),
            "{mounts:?}"
        );
        assert!(
            runner
                .ports
                .iter()
                .flatten()
                .any(|port| port.container_port == 5000)
        );
        operator.stop().await;

        let next_operator = fixture.operator().await;
        fixture.when_is("mc", "size", 1).await;
        assert_eq!(text(&users, "bob").await, made);
        next_operator.stop().await;
    });
}

#[test]
fn storage_uses_exactly_the_shipped_permissions() {
    test("storage-rbac", async |fixture| {
        let operator = fixture.operator().await;
        let make = async |name: &str, volume: Value, cleanup: bool| {
            let mut spec = spec(volume);
            spec["cleanupPods"] = json!(cleanup);
            spec["services"] = json!([{ "image": "cache:1", "name": "cache" }]);
            fixture.create(name, spec).await;
            bound(&fixture, name).await;
        };
        make("done", json!({ "path": "/tmp/a" }), true).await;
        make("kept", json!({ "path": "/tmp/b", "delete": false }), false).await;
        let pods = fixture.pods("done", 1).await;
        fixture.end_pod(&pods[&0], 0, "Completed", "").await;
        fixture.when_condition("done", "CleanedUp", "True").await;
        fixture.delete::<MiniCluster>("kept").await;
        until("it is released", async || {
            fixture.reap("kept").await;
            volume(&fixture, "kept")
                .await
                .filter(|volume| phase(volume) == "Released")
        })
        .await;
        // The operator patches the kept volume, to reserve it for the new claim.
        make("kept", json!({ "path": "/tmp/b", "delete": false }), false).await;
        make("swept", json!({ "path": "/tmp/c" }), false).await;
        fixture.delete::<MiniCluster>("swept").await;
        gone(&fixture, "swept").await;

        let mut seen = operator.calls.all();
        operator.stop().await;
        seen.extend(fixture.calls_about_what_exists().await);
        let installed = Installation::whole(&json!({}));
        let mut permissions = BTreeSet::from([read_past_the_cache()]);
        for role in [
            "flux-operator-services",
            "flux-operator-claims",
            "flux-operator-volumes",
        ] {
            permissions.extend(installed.permissions(role));
        }
        assert_sufficient_and_all_used(&seen, &permissions);
    });
}
