//! What may change while a MiniCluster lives, and how it is deleted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flux_operator_core::render::elastic::RESIZING;
use flux_shared::agent_spec::AgentSpec;
use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use k8s_openapi::jiff::SignedDuration;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use serde_json::json;

use test_support::api_server::{Call, Calls, Fault, Fixture, Namespaced, condition, test, until};

use crate::restarts;

/// The first statuses follow each other closely. This must not delay later ones.
#[test]
fn ready_size_follows_a_change_of_size_within_seconds() {
    test("ready-size", async |fixture| {
        let operator = fixture.operator().await;
        fixture.create("mc", json!({ "size": 2, "maxSize": 4 })).await;
        fixture.run_pods("mc", 2).await;
        fixture.when_condition("mc", "Ready", "True").await;

        fixture.edit("mc", json!({ "size": 4 })).await;
        // The pods run before their brokers are ready.
        for (index, pod) in fixture.pods("mc", 4).await {
            let runner = &pod.spec.as_ref().unwrap().containers[0].name;
            let running = json!({ "status": { "phase": "Running", "containerStatuses": [{
                "name": runner, "image": "i", "imageID": "i", "ready": false, "restartCount": 0, "started": true,
                "state": { "running": { "startedAt": "2026-01-01T00:00:00Z" } },
            }] } });
            if index >= 2 {
                fixture.patch_pod_status(&pod, running).await;
            }
        }
        let all_run = |status: &serde_json::Value| {
            status["size"] == 4 && condition(status, "JobWaitingForResources")["status"] == "False"
        };
        fixture.when("mc", "running", all_run).await;
        fixture.run_pods("mc", 4).await;
        let grown = Instant::now();
        fixture.when_is("mc", "readySize", 4).await;
        assert!(grown.elapsed() < Duration::from_secs(5), "{:?}", grown.elapsed());

        fixture.edit("mc", json!({ "size": 3 })).await;
        until("a pod goes", async || {
            fixture.reap("mc").await;
            (fixture.all_pods("mc").await.len() == 3).then_some(())
        })
        .await;
        let shrunk = Instant::now();
        fixture.when_is("mc", "readySize", 3).await;
        assert!(
            shrunk.elapsed() < Duration::from_secs(5),
            "{:?}",
            shrunk.elapsed()
        );
        operator.stop().await;
    });
}

#[test]
fn the_size_follows_the_spec_up_and_down_within_its_maximum() {
    test("scale", async |fixture| {
        let operator = fixture.operator().await;
        fixture.create("mc", json!({ "size": 2, "maxSize": 4 })).await;
        fixture.pods("mc", 2).await;
        fixture
            .when("mc", "its sizes", |status| {
                status["maximumSize"] == 4 && status["size"] == 2
            })
            .await;

        fixture.edit("mc", json!({ "size": 4 })).await;
        fixture.pods("mc", 4).await;
        fixture.when_is("mc", "size", 4).await;

        let refused = fixture
            .patch::<MiniCluster>("mc", json!({ "spec": { "size": 5 } }))
            .await
            .unwrap_err();
        assert!(
            refused.to_string().contains("size is 5, but cannot exceed 4"),
            "{refused}"
        );
        assert!(
            !refused.to_string().contains("must not be smaller than size"),
            "maxSize cannot change either: {refused}"
        );
        let new = json!({ "size": 5, "maxSize": 4 });
        let refused = fixture.try_create("too-small", new).await.unwrap_err();
        assert!(
            refused
                .to_string()
                .contains("is 4, but must not be smaller than size, which is 5"),
            "{refused}"
        );

        fixture.edit("mc", json!({ "size": 1 })).await;
        until("three pods go", async || {
            fixture.reap("mc").await;
            (fixture.all_pods("mc").await.len() == 1).then_some(())
        })
        .await;
        fixture.when_is("mc", "size", 1).await;
        let spec = ConfigMap::clone(&fixture.api().get("mc-agent").await.unwrap())
            .data
            .unwrap()["agent.toml"]
            .clone();
        assert!(
            spec.contains("size = 2\n") && spec.contains("max_size = 4\n"),
            "what the pods read is frozen: {spec}"
        );
        operator.stop().await;
    });
}

#[test]
fn size_beyond_maximum_sets_a_condition_and_is_never_used() {
    test("beyond", async |fixture| {
        fixture.create("mc", json!({ "size": 2 })).await;
        let operator = fixture.operator().await;
        // One pod has started, so it is too late for a larger Job.
        fixture.run_pod(&fixture.pods("mc", 2).await[&0]).await;
        fixture.when_is("mc", "maximumSize", 2).await;
        operator.stop().await;
        // The CRD's rule needs `maximumSize`. Without it, the API server accepts the larger size, and the operator
        // has to reject it.
        fixture
            .api::<MiniCluster>()
            .patch_status(
                "mc",
                &Default::default(),
                &kube::api::Patch::Merge(json!({ "status": { "maximumSize": null } })),
            )
            .await
            .unwrap();
        fixture.edit("mc", json!({ "size": 3 })).await;
        let _operator = fixture.operator().await;
        let status = fixture.when_condition("mc", "Valid", "False").await;
        assert_eq!(condition(&status, "Valid")["reason"], "SizeBeyondMaximum");
        assert_eq!(
            fixture.get("mc").await.spec.size,
            3,
            "the user's spec is never rewritten"
        );
        let first = fixture.job("mc").await;
        assert_eq!(first.spec.as_ref().unwrap().completions, Some(2));
        // The API server must accept later statuses, too, and a restart keeps the size that the Job had.
        let (lead, follower) = restarts::run(&fixture, "mc").await;
        restarts::evict_lead(&fixture, &lead, &follower).await;
        let second = restarts::another_job(&fixture, "mc", &first.uid()).await;
        assert_eq!(second.spec.unwrap().completions, Some(2));
        let config_map = fixture.api::<ConfigMap>().get("mc-agent").await.unwrap();
        AgentSpec::from_toml(&config_map.data.unwrap()["agent.toml"]).unwrap();
    });
}

#[test]
fn suspend_goes_both_ways_and_unset_is_left_to_others() {
    test("suspend", async |fixture| {
        let operator = fixture.operator().await;
        fixture.create("mc", json!({ "size": 1, "suspend": true })).await;
        let status = fixture.when_condition("mc", "Suspended", "True").await;
        assert_eq!(status["phase"], "Suspended");
        fixture.edit("mc", json!({ "suspend": false })).await;
        fixture.run_pods("mc", 1).await;
        fixture
            .when("mc", "started", |status| status["timeline"]["ready"].is_string())
            .await;
        fixture.edit("mc", json!({ "suspend": true })).await;
        let status = fixture.when_condition("mc", "Suspended", "True").await;
        assert_eq!(
            status["timeline"],
            serde_json::Value::Null,
            "the next start has its own"
        );

        fixture
            .create(
                "queued",
                json!({ "size": 1, "jobLabels": { "example.org/queue": "q" } }),
            )
            .await;
        fixture.pods("queued", 1).await;
        let job = fixture.job("queued").await;
        assert_eq!(job.labels()["example.org/queue"], "q");
        fixture
            .patch::<Job>("queued", json!({ "spec": { "suspend": true } }))
            .await
            .unwrap();
        fixture.when_condition("queued", "Suspended", "True").await;
        // Another field changes. The queue's decision stays.
        fixture
            .edit("queued", json!({ "ttlSecondsAfterFinished": 9 }))
            .await;
        fixture.when_is("queued", "observedGeneration", 2).await;
        assert_eq!(fixture.job("queued").await.spec.unwrap().suspend, Some(true));
        operator.stop().await;
    });
}

/// The new size is in the ConfigMap. Then the Job cannot be changed, and the user takes the size back.
#[test]
fn size_that_is_taken_back_is_in_the_config_map_again() {
    test("size-back", async |fixture| {
        let (is_refused, is_resized) = (Arc::new(AtomicBool::new(true)), AtomicBool::new(false));
        let refused = is_refused.clone();
        let calls = Calls::with_faults(move |call: &Call| {
            let is_patch = |resource: &str| call.verb == "patch" && call.resource == resource;
            if is_patch("configmaps") {
                is_resized.store(true, Ordering::SeqCst);
            }
            let is_failing = is_resized.load(Ordering::SeqCst) && refused.load(Ordering::SeqCst);
            (is_patch("jobs") && is_failing).then_some(Fault::Answer(500))
        });
        let operator = fixture.operator_of(calls, |_| {}).await;
        fixture.create("mc", json!({ "size": 4, "suspend": true })).await;
        fixture.when_condition("mc", "Suspended", "True").await;
        let has_size = async |size: u32| {
            let config_map = fixture.find::<ConfigMap>("mc-agent").await?;
            let spec = AgentSpec::from_toml(&config_map.data?["agent.toml"]).unwrap();
            (spec.size == size).then_some(())
        };
        fixture.edit("mc", json!({ "size": 2 })).await;
        until("the ConfigMap has the new size", async || has_size(2).await).await;
        assert_eq!(fixture.job("mc").await.spec.unwrap().completions, Some(4));
        fixture.edit("mc", json!({ "size": 4 })).await;
        is_refused.store(false, Ordering::SeqCst);
        until("the ConfigMap has the size again", async || has_size(4).await).await;
        fixture.edit("mc", json!({ "suspend": false })).await;
        fixture.pods("mc", 4).await;
        assert!(has_size(4).await.is_some());
        let hash = &fixture.job("mc").await.annotations()["flux-framework.org/rendered-hash"].clone();
        assert!(!hash.starts_with(RESIZING), "{hash}");
        operator.stop().await;
    });
}

#[test]
fn finished_cluster_is_deleted_by_cleanup_and_ttl() {
    test("ttl", async |fixture| {
        let _operator = fixture.operator().await;
        for (name, spec) in [
            ("cleanup", json!({ "size": 1, "cleanup": true })),
            ("ttl", json!({ "size": 1, "ttlSecondsAfterFinished": 1 })),
        ] {
            fixture.create(name, spec).await;
            let pods = fixture.pods(name, 1).await;
            fixture.end_pod(&pods[&0], 0, "Completed", "").await;
            gone(&fixture, name).await;
        }
    });
}

/// Kubernetes writes the end time. The operator's clock may be hours off.
#[test]
fn ttl_is_counted_by_the_api_servers_clock() {
    test("ttl-clock", async |fixture| {
        let calls = Calls::with_clock_ahead(SignedDuration::from_hours(3));
        let operator = fixture.operator_of(calls, |_| {}).await;
        for (name, ttl) in [("short", 2 * 3600), ("long", 4 * 3600)] {
            fixture
                .create(name, json!({ "size": 1, "ttlSecondsAfterFinished": ttl }))
                .await;
            let pods = fixture.pods(name, 1).await;
            fixture.end_pod(&pods[&0], 0, "Completed", "").await;
        }
        gone(&fixture, "short").await;
        fixture.when_condition("long", "Complete", "True").await;
        operator.settled().await;
        fixture.get("long").await;
        operator.stop().await;
    });
}

#[test]
fn background_and_foreground_delete_leave_nothing() {
    test("delete", async |fixture| {
        let _operator = fixture.operator().await;
        for (name, parameters) in [
            ("back", DeleteParams::background()),
            ("fore", DeleteParams::foreground()),
        ] {
            let spec = json!({
                "size": 2,
                "containers": [
                    { "image": "app:1", "command": "hostname", "runFlux": true },
                    { "image": "db:1", "name": format!("db-{name}"), "ports": [5432] },
                ],
                "services": [{ "image": "cache:1", "name": "cache" }],
            });
            fixture.create(name, spec).await;
            let pods = fixture.pods(name, 2).await;
            fixture.run_pod(&pods[&0]).await;
            until("the services pod is made", async || {
                fixture.find::<Pod>(&format!("{name}-services")).await
            })
            .await;
            fixture.api::<Service>().get(&format!("db-{name}")).await.unwrap();
            fixture.delete_with::<MiniCluster>(name, &parameters).await;
            gone(&fixture, name).await;
        }
    });
}

async fn count<K: Namespaced>(fixture: &Fixture, selected: &ListParams) -> usize {
    fixture.api::<K>().list(selected).await.unwrap().items.len()
}

/// Waits until nothing of a MiniCluster is left, while a kubelet ends its pods.
pub async fn gone(fixture: &Fixture, name: &str) {
    until(&format!("nothing is left of {name}"), async || {
        fixture.reap(name).await;
        let selector = format!("app.kubernetes.io/name={name}");
        let all = ListParams::default().labels(&selector);
        if fixture.find::<MiniCluster>(name).await.is_some() {
            return None;
        }
        let left = count::<Job>(fixture, &all).await
            + count::<Service>(fixture, &all).await
            + count::<ConfigMap>(fixture, &all).await
            + count::<Secret>(fixture, &all).await;
        let pods = fixture.api::<Pod>().list(&all).await.unwrap().items;
        for pod in &pods {
            // The services pod ends here: `reap` ends only pods of brokers.
            if pod.metadata.deletion_timestamp.is_some() {
                let now = DeleteParams::default().grace_period(0);
                let _ = fixture.api::<Pod>().delete(&pod.name_any(), &now).await;
            }
        }
        (left == 0 && pods.is_empty()).then_some(())
    })
    .await;
    until("the shared Service goes with its last member", async || {
        let members = fixture.all::<MiniCluster>().await;
        let service = fixture.find::<Service>("flux-service").await;
        (service.is_none() || !members.is_empty()).then_some(())
    })
    .await;
}

#[test]
fn the_same_name_can_be_used_again_at_once() {
    test("again", async |fixture| {
        let operator = fixture.operator().await;
        let mut keys = Vec::new();
        for round in 0..3 {
            let made = fixture.create("mc", json!({ "size": 1 })).await;
            until("the new one has its own Job and key", async || {
                fixture.reap("mc").await;
                let job = fixture.find::<Job>("mc").await?;
                let owner = job.metadata.owner_references.as_ref()?.first()?.uid.clone();
                let secret = fixture.secret("mc", "curve").await?;
                let is_own_key = Some(&secret.metadata.owner_references.as_ref()?.first()?.uid)
                    == made.metadata.uid.as_ref();
                (Some(&owner) == made.metadata.uid.as_ref() && is_own_key).then(|| keys.push(secret.data))
            })
            .await;
            if round < 2 {
                fixture.delete::<MiniCluster>("mc").await;
            }
        }
        assert!(keys[0] != keys[1] && keys[1] != keys[2]);
        let status = fixture.when_is("mc", "size", 1).await;
        assert_eq!(status["phase"], "Pending");
        operator.stop().await;
    });
}

#[test]
fn objects_of_the_same_name_by_others_are_never_changed() {
    test("foreign", async |fixture| {
        let foreign = |kind: &str, name: &str| json!({ "apiVersion": "v1", "kind": kind, "metadata": { "name": name, "labels": { "mine": "yes" } } });
        let mut service = foreign("Service", "flux-service");
        service["spec"] = json!({ "ports": [{ "port": 80 }], "selector": { "mine": "yes" } });
        let service: Service = fixture.add(service).await;
        let map: ConfigMap = fixture.add(foreign("ConfigMap", "two-agent")).await;

        let _operator = fixture.operator().await;
        fixture.create("one", json!({ "size": 1 })).await;
        fixture
            .create(
                "two",
                json!({ "size": 1, "network": { "headlessName": "other" } }),
            )
            .await;
        fixture
            .create(
                "three",
                json!({ "size": 1, "network": { "headlessName": "other" } }),
            )
            .await;
        for (name, kind) in [("one", "Service flux-service"), ("two", "ConfigMap two-agent")] {
            let status = fixture.when_is(name, "reason", "NameTaken").await;
            assert!(
                status["message"].as_str().unwrap().starts_with(kind),
                "{status:#}"
            );
            assert_eq!(condition(&status, "JobRequested")["reason"], "NameTaken");
        }
        fixture.pods("three", 1).await;
        assert_eq!(
            fixture.api::<Service>().get("flux-service").await.unwrap(),
            service
        );
        assert_eq!(fixture.api::<ConfigMap>().get("two-agent").await.unwrap(), map);
        let events = fixture.api::<k8s_openapi::api::events::v1::Event>();
        until("a warning says so", async || {
            let all = events.list(&ListParams::default()).await.unwrap().items;
            all.into_iter()
                .find(|event| event.reason.as_deref() == Some("NameTaken"))
        })
        .await;
        // Once the user follows the remedy, nothing else is needed.
        fixture.delete::<ConfigMap>("two-agent").await;
        fixture.pods("two", 1).await;
    });
}

#[test]
fn a_cluster_named_as_anothers_pod_is_not_taken_for_it() {
    test("alike", async |fixture| {
        let _operator = fixture.operator().await;
        for name in ["mc", "mc-0"] {
            fixture.create(name, json!({ "size": 1 })).await;
        }
        let (one, other) = (fixture.pods("mc", 1).await, fixture.pods("mc-0", 1).await);
        fixture.run_pod(&one[&0]).await;
        fixture.when_condition("mc", "Ready", "True").await;
        fixture.run_pod(&other[&0]).await;
        fixture.when_condition("mc-0", "Ready", "True").await;
        fixture.end_pod(&other[&0], 7, "Error", "").await;
        fixture.when_condition("mc-0", "Failed", "True").await;
        fixture.delete::<MiniCluster>("mc-0").await;
        gone(&fixture, "mc-0").await;
        let left = fixture.api::<Pod>().get(&one[&0].name_any()).await.unwrap();
        assert_eq!(left.labels()["flux-framework.org/minicluster"], "mc");
        let status = fixture.status("mc").await;
        assert_eq!(
            (&status["phase"], &status["readySize"]),
            (&json!("Running"), &json!(1)),
            "{status:#}"
        );
    });
}

#[test]
fn headless_service_is_shared_and_owned_by_all_clusters() {
    test("shared", async |fixture| {
        let operator = fixture.operator().await;
        let minimal = |yes: bool| json!({ "size": 1, "flux": { "minimalService": yes } });
        fixture.create("a", minimal(true)).await;
        fixture.pods("a", 1).await;
        let service = || async { fixture.api::<Service>().get("flux-service").await.unwrap() };
        let selector = |service: &Service| service.spec.clone().unwrap().selector.unwrap();
        assert!(selector(&service().await).contains_key("batch.kubernetes.io/job-completion-index"));
        fixture.create("b", minimal(false)).await;
        fixture.create("c", minimal(true)).await;
        let owned = until("all own it", async || {
            let service = service().await;
            (service.metadata.owner_references.as_ref()?.len() == 3).then_some(service)
        })
        .await;
        assert!(
            !selector(&owned).contains_key("batch.kubernetes.io/job-completion-index"),
            "b needs every name"
        );
        for name in ["a", "b"] {
            fixture.delete::<MiniCluster>(name).await;
        }
        until("it stays for c", async || {
            let owners = service().await.metadata.owner_references.unwrap();
            (owners.len() == 1 && owners[0].name == "c").then_some(())
        })
        .await;
        // Somebody deletes the Service, and it is created again.
        let uid = service().await.uid();
        fixture.delete::<Service>("flux-service").await;
        until("it is made again", async || {
            let again = fixture.find::<Service>("flux-service").await?;
            (again.uid() != uid).then_some(())
        })
        .await;
        fixture.delete::<MiniCluster>("c").await;
        gone(&fixture, "c").await;
        operator.stop().await;
    });
}

#[test]
fn orphaned_job_stays_and_blocks_a_new_minicluster() {
    test("orphan", async |fixture| {
        let _operator = fixture.operator().await;
        fixture.create("mc", json!({ "size": 1 })).await;
        let pod = fixture.pods("mc", 1).await.remove(&0).unwrap();
        fixture
            .delete_with::<MiniCluster>("mc", &DeleteParams::orphan())
            .await;
        let job = until("the Job has no owner", async || {
            let is_gone = fixture.find::<MiniCluster>("mc").await.is_none();
            let job = fixture.api::<Job>().get("mc").await.unwrap();
            (is_gone && job.metadata.owner_references.is_none()).then_some(job)
        })
        .await;
        fixture.create("mc", json!({ "size": 1 })).await;
        let status = fixture.when_is("mc", "reason", "NameTaken").await;
        assert_eq!(status["phase"], "Pending", "{status:#}");
        assert_eq!(
            fixture.api::<Job>().get("mc").await.unwrap().metadata.generation,
            job.metadata.generation
        );
        assert_eq!(fixture.pods("mc", 1).await[&0].uid(), pod.uid());
    });
}
