//! How somebody who may write MiniClusters, and nothing else, could try to reach others (the model is in
//! ARCHITECTURE.md).

use std::process::Stdio;
use std::time::{Duration, Instant};

use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::{operator_process, storage};
use test_support::api_server::{DEADLINE, Fixture, apply, condition, test, until};

async fn create(api: &Api<MiniCluster>, name: &str, spec: Value) -> Result<MiniCluster, kube::Error> {
    let object = json!({ "metadata": { "name": name }, "spec": spec });
    let object: MiniCluster = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await
}

#[test]
fn host_path_and_secret_volumes_need_own_permission() {
    test("tenant-volumes", async |fixture| {
        let tenant: Api<MiniCluster> = Api::namespaced(fixture.tenant().await, &fixture.namespace);
        for (name, volume) in [
            ("node", json!({ "path": "/etc" })),
            (
                "secret",
                json!({ "storageClass": "csi", "driver": "d.csi.io", "secret": "keys", "secretNamespace": "kube-system" }),
            ),
        ] {
            // The API server begins to use the policy a little after it has been applied.
            until("the tenant is refused", async || {
                match create(&tenant, name, storage::spec(volume.clone())).await {
                    Err(kube::Error::Api(status)) => {
                        assert!(
                            status.code == 403 && status.message.contains("PersistentVolumes"),
                            "{}",
                            status.message
                        );
                        Some(())
                    }
                    Err(error) => panic!("{error}"),
                    Ok(_) => {
                        tenant.delete(name, &Default::default()).await.unwrap();
                        None
                    }
                }
            })
            .await;
        }
        create(
            &tenant,
            "plain",
            json!({ "size": 1, "containers": [{ "image": "app:1" }] }),
        )
        .await
        .unwrap();
        let add = Patch::Merge(json!({ "spec": storage::spec(json!({ "path": "/etc" })) }));
        assert!(
            tenant
                .patch("plain", &PatchParams::default(), &add)
                .await
                .is_err(),
            "the tenant added a volume by a later change"
        );

        // The tenant may go on using what an administrator created.
        let given = storage::spec(json!({ "path": "/data" }));
        fixture.create("given", given).await;
        let change = Patch::Merge(json!({ "spec": { "ttlSecondsAfterFinished": 9 } }));
        tenant
            .patch("given", &PatchParams::default(), &change)
            .await
            .unwrap();
        let other = Patch::Merge(json!({ "spec": { "volumes": { "data": { "path": "/etc" } } } }));
        assert!(
            tenant
                .patch("given", &PatchParams::default(), &other)
                .await
                .is_err(),
            "the tenant changed the administrator's volume"
        );
    });
}

/// Asserts that the status of `victim` and its Job's spec have not changed.
async fn assert_unharmed(fixture: &Fixture, before: &Value, job: &Job) {
    let now = fixture.status("victim").await;
    for field in ["phase", "size", "readySize", "reason", "exitCode", "maximumSize"] {
        assert_eq!(now[field], before[field], "{field}: {now:#}");
    }
    for field in ["status", "lastTransitionTime", "message"] {
        assert_eq!(condition(&now, "Ready")[field], condition(before, "Ready")[field]);
    }
    assert_eq!(fixture.job("victim").await.spec, job.spec);
}

#[test]
fn labels_that_claim_another_cluster_are_ignored() {
    test("tenant-labels", async |fixture| {
        let operator = fixture.operator().await;
        let services = json!([{ "image": "cache:1", "name": "cache" }]);
        fixture
            .create("victim", json!({ "size": 2, "services": services }))
            .await;
        fixture.run_pods("victim", 2).await;
        let before = fixture.when_condition("victim", "Ready", "True").await;
        let job = fixture.job("victim").await;

        let claims = json!({
            "app.kubernetes.io/managed-by": "flux-framework-flux-operator", "app.kubernetes.io/name": "victim",
            "flux-framework.org/minicluster": "victim", "flux-framework.org/services-of": "victim",
            "flux-framework.org/headless": "flux-service", "hpa-selector": "victim", "job-index": "0",
        });
        // Through the fields of a MiniCluster.
        let spec = json!({
            "size": 1, "jobLabels": claims.clone(), "pod": { "labels": claims.clone() },
            "network": { "headlessName": "other" },
        });
        fixture.create("evil", spec).await;
        let evil = fixture.pods("evil", 1).await.remove(&0).unwrap();
        for (label, value) in [("minicluster", "evil"), ("headless", "other")] {
            assert_eq!(evil.labels()[&format!("flux-framework.org/{label}")], value);
        }
        fixture.end_pod(&evil, 9, "Error", "").await;
        fixture.when_condition("evil", "Failed", "True").await;

        // Through copies of its objects. Anybody who saves one to a file and changes the name creates such a
        // copy.
        let copy = |mut object: Value| {
            object["metadata"] = json!({ "name": "copy", "labels": claims.clone() });
            object["status"].take();
            object
        };
        let mut copied = serde_json::to_value(&job).unwrap();
        for key in ["selector", "suspend"] {
            copied["spec"].as_object_mut().unwrap().remove(key);
        }
        copied["spec"]["template"]["metadata"] = json!({ "labels": claims.clone() });
        fixture.add::<Job>(copy(copied)).await;
        let pod = json!({ "spec": { "containers": [{ "name": "a", "image": "a" }] } });
        fixture.add::<Pod>(copy(pod)).await;
        let service = json!({ "spec": { "ports": [{ "port": 1 }] } });
        fixture.add::<Service>(copy(service)).await;
        until("the copies' pods are there", async || {
            let all = fixture.all::<Pod>().await;
            // The victim has two pods and its services pod. There are also the evil one's pod, two pods of the copied
            // Job, and the copied pod.
            (all.len() >= 7).then_some(())
        })
        .await;
        fixture
            .edit("victim", json!({ "ttlSecondsAfterFinished": 600 }))
            .await;
        fixture.when_is("victim", "observedGeneration", 2).await;
        assert_unharmed(&fixture, &before, &job).await;
        let copy = fixture.api::<Job>().get("copy").await.unwrap();
        assert_eq!(copy.metadata.owner_references, None, "the copy has no owner");
        operator.stop().await;

        // An operator that sees the copies at its start ignores them, too.
        let next_operator = fixture.operator().await;
        fixture
            .edit("victim", json!({ "ttlSecondsAfterFinished": 601 }))
            .await;
        fixture.when_is("victim", "observedGeneration", 3).await;
        assert_unharmed(&fixture, &before, &job).await;
        next_operator.stop().await;
    });
}

/// The chart's memory limit for the operator is 384 MiB. The test allows about half of it, as the goal of the benches
/// does (`operator/benches/README.md`). Set `LARGE=500` for more MiniClusters: this takes half an
/// hour, and 12 GiB for API server and etcd.
#[test]
fn many_of_the_largest_size_fit_into_the_operators_memory() {
    test("tenant-large", async |fixture| {
        let count: usize = std::env::var("LARGE")
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(40);
        // Lines of 16 bytes, a little less than `MAX_TEXT` (900,000 bytes) in all.
        let script = "echo 0123456789\n".repeat(880_000 / 16);
        let spec =
            json!({ "size": 1, "containers": [{ "image": "app:1", "commands": { "script": script } }] });
        for number in 0..count {
            fixture.create(&format!("mc-{number}"), spec.clone()).await;
        }
        // The test waits for one MiniCluster after the other. To list all again and again would read hundreds of
        // megabytes. The operator may handle the first one last, so the limit for each grows with their number.
        let limit = DEADLINE + Duration::from_secs(2) * u32::try_from(count).unwrap();
        let all_have = async |what: &str, field: &str, wanted: u64| {
            for number in 0..count {
                fixture
                    .when_within(limit, &format!("mc-{number}"), what, |status| {
                        status[field] == wanted
                    })
                    .await;
            }
        };
        let begin = Instant::now();
        let program = operator_process::start(&fixture.namespace, "info", Stdio::null());
        all_have("with a Job", "maximumSize", 1).await;
        println!(
            "{count} Jobs in {:?}: {} MiB",
            begin.elapsed(),
            program.memory_kib("VmHWM") >> 10
        );
        let first_peak = program.memory_kib("VmHWM");
        drop(program);
        // An operator that starts among all of them, and has to report something about each.
        let program = operator_process::start(&fixture.namespace, "info", Stdio::null());
        for number in 0..count {
            let change = json!({ "ttlSecondsAfterFinished": 600 });
            fixture.edit(&format!("mc-{number}"), change).await;
        }
        all_have("seen again", "observedGeneration", 2).await;
        println!("after a restart: {} MiB", program.memory_kib("VmHWM") >> 10);
        assert!(
            first_peak.max(program.memory_kib("VmHWM")) < 200 << 10,
            "{} and {} MiB",
            first_peak >> 10,
            program.memory_kib("VmHWM") >> 10
        );
        drop(program);
        fixture
            .kubectl(&["delete", "miniclusters", "--all", "--wait=false"])
            .unwrap();
    });
}

/// FluxCD's operator is called flux-operator too, and labels its objects with this name.
#[test]
fn objects_of_another_flux_operator_are_not_touched() {
    test("fluxcd", async |fixture| {
        let theirs = |kind: &str, name: &str, more: Value| {
            let mut object = json!({
                "apiVersion": if kind == "Job" { "batch/v1" } else { "v1" }, "kind": kind,
                "metadata": { "name": name, "namespace": fixture.namespace, "labels": {
                    "app.kubernetes.io/managed-by": "flux-operator", "app.kubernetes.io/name": "mc",
                } },
            });
            object
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            serde_saphyr::to_string(&object).unwrap()
        };
        let pod = json!({ "restartPolicy": "Never", "containers": [{ "name": "a", "image": "a" }] });
        let volume = format!("{}.disk.data", fixture.namespace);
        let disk = json!({ "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteMany"], "hostPath": { "path": "/x" } });
        let objects = [
            theirs(
                "Job",
                "job",
                json!({ "spec": { "suspend": true, "template": { "spec": pod } } }),
            ),
            theirs(
                "Service",
                "flux-service",
                json!({ "spec": { "clusterIP": "None", "selector": { "a": "b" } } }),
            ),
            theirs("ConfigMap", "map-agent", json!({ "data": {} })),
            theirs("PersistentVolume", &volume, json!({ "spec": disk })),
        ];
        apply(&objects.join("\n---\n"));
        let without_status = |kind: &'static str, name: &str| {
            let text = fixture
                .kubectl(&["get", kind, name, "-o", "json", "--show-managed-fields=false"])
                .unwrap();
            let mut object: Value = serde_json::from_str(&text).unwrap();
            object["status"].take();
            object
        };
        let all = || {
            [
                ("job", "job"),
                ("service", "flux-service"),
                ("configmap", "map-agent"),
                ("persistentvolume", &volume),
            ]
            .map(|(kind, name)| without_status(kind, name))
        };
        let before = all();

        let operator = fixture.operator().await;
        // The default name of the headless Service, `flux-service`, is taken. So only `service` uses it.
        let own = |name: &str| json!({ "size": 1, "network": { "headlessName": format!("net-{name}") } });
        for (name, spec, kind) in [
            ("job", own("job"), "Job"),
            ("service", json!({ "size": 1 }), "Service"),
            ("map", own("map"), "ConfigMap"),
            (
                "disk",
                {
                    let mut spec = storage::spec(json!({ "path": "/x" }));
                    spec["network"] = own("disk")["network"].take();
                    spec
                },
                "PersistentVolume",
            ),
        ] {
            fixture.create(name, spec).await;
            let status = fixture.when_is(name, "reason", "NameTaken").await;
            assert!(
                status["message"].as_str().unwrap().starts_with(kind),
                "{status:#}"
            );
        }
        assert_eq!(all(), before, "nothing of theirs is touched");
        operator.stop().await;
    });
}

/// All that FluxCD's operator writes has the field manager `flux-operator`. If a server-side apply of another manager
/// leaves out a field that this manager owns too, the field stays. So the operator removes such a field by a merge
/// patch (`widen` in `reconcile/apply/headless.rs`). The managers of the Job, which only Kubernetes and the operator
/// write, show that the operator's own field manager has another name.
#[test]
fn service_fields_of_another_flux_operator_block_nobody() {
    test("fluxcd-fields", async |fixture| {
        let operator = fixture.operator().await;
        let spec = |minimal: bool| json!({ "size": 1, "network": { "disableAffinity": true }, "flux": { "minimalService": minimal } });
        fixture.create("lead-only", spec(true)).await;
        until("the Service names the lead only", async || {
            let service = fixture.find::<Service>("flux-service").await?;
            service
                .spec?
                .selector?
                .contains_key("batch.kubernetes.io/job-completion-index")
                .then_some(())
        })
        .await;
        let same = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "flux-service" },
            "spec": { "selector": { "batch.kubernetes.io/job-completion-index": "0" } },
        });
        let theirs = PatchParams::apply("flux-operator").force();
        fixture
            .api::<Service>()
            .patch("flux-service", &theirs, &Patch::Apply(same))
            .await
            .unwrap();
        fixture.create("all", spec(false)).await;
        let service = until("the Service names all pods", async || {
            let service = fixture.api::<Service>().get("flux-service").await.unwrap();
            let selector = service.spec.as_ref()?.selector.as_ref()?;
            (!selector.contains_key("batch.kubernetes.io/job-completion-index")).then_some(service)
        })
        .await;
        let job = fixture.job("all").await;
        let managers = |metadata: &ObjectMeta| -> Vec<String> {
            let fields = metadata.managed_fields.as_deref().unwrap_or_default();
            fields.iter().filter_map(|field| field.manager.clone()).collect()
        };
        assert!(
            managers(&job.metadata)
                .iter()
                .all(|manager| manager != "flux-operator"),
            "{:?}",
            managers(&job.metadata)
        );
        assert!(managers(&service.metadata).contains(&"flux-framework-flux-operator".to_owned()));
        operator.stop().await;
    });
}

#[test]
fn names_of_others_are_not_taken_over() {
    test("tenant-names", async |fixture| {
        let operator = fixture.operator().await;
        let with_service = |name: &str, headless: &str| {
            json!({
                "size": 1, "network": { "headlessName": headless },
                "containers": [
                    { "image": "app:1", "command": "hostname", "runFlux": true },
                    { "image": "db:1", "name": name, "ports": [5432] },
                ],
            })
        };
        fixture.create("victim", with_service("db", "net")).await;
        fixture.pods("victim", 1).await;
        let service = async |name: &str| fixture.api::<Service>().get(name).await.unwrap();
        let before = (service("db").await, service("net").await);
        // The victim has the Service `db` for its sidecar, and the headless Service `net`. Each of the others needs one
        // of these names, for its sidecar or for its headless Service.
        for (name, sidecar, headless) in [("a", "db", "own-a"), ("b", "net", "own-b"), ("c", "own-c", "db")] {
            fixture.create(name, with_service(sidecar, headless)).await;
            let status = fixture.when_is(name, "reason", "NameTaken").await;
            assert!(
                status["message"].as_str().unwrap().starts_with("Service "),
                "{status:#}"
            );
        }
        let after = (service("db").await, service("net").await);
        assert_eq!(
            (before.0.spec, before.0.metadata.owner_references),
            (after.0.spec, after.0.metadata.owner_references)
        );
        assert_eq!(
            (before.1.spec, before.1.metadata.owner_references),
            (after.1.spec, after.1.metadata.owner_references)
        );
        operator.stop().await;
    });
}
