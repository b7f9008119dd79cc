//! A MiniCluster in a queue. The test plays Kueue: it suspends the Job, admits it (or a part of it), and
//! takes the admission back.

use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use test_support::api_server::{Calls, Fixture, assert_message, condition, test, until};

use crate::change::gone;
use crate::gangs::kubernetes_minor;
use crate::restarts::{another_job, evict_lead};

mod why;

const QUEUE: &str = "kueue.x-k8s.io/queue-name";
const LEAST: &str = "kueue.x-k8s.io/job-min-parallelism";
const EQUAL: &str = "kueue.x-k8s.io/job-completions-equal-parallelism";
const ELASTIC: &str = "kueue.x-k8s.io/elastic-job";
const TOPOLOGY: &str = "kueue.x-k8s.io/podset-required-topology";

/// A MiniCluster in the queue `team`.
async fn queue(fixture: &Fixture, name: &str, annotations: Value, spec: Value) {
    let mut spec = spec;
    spec["containers"] = json!([{ "image": "app:1", "command": "hostname" }]);
    let labels = json!({ QUEUE: "team", "other": "not-the-queues" });
    let object = json!({
        "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster",
        "metadata": { "name": name, "labels": labels, "annotations": annotations }, "spec": spec,
    });
    fixture.add::<MiniCluster>(object).await;
    fixture.when_is(name, "reason", "Queued").await;
}

/// Kueue admits this many pods, on the nodes of a flavor.
async fn admit(fixture: &Fixture, name: &str, pods: u32) {
    let template = json!({ "metadata": { "labels": { "flavor": "spot" } }, "spec": { "nodeSelector": { "pool": "spot" } } });
    let spec = json!({ "suspend": false, "parallelism": pods, "completions": pods, "template": template });
    fixture.patch::<Job>(name, json!({ "spec": spec })).await.unwrap();
}

/// Kueue takes its admission back: it suspends the Job, then restores its template and the size that Kueue has recorded
/// (`pods`).
async fn take_back(fixture: &Fixture, name: &str, pods: u32) {
    fixture
        .patch::<Job>(name, json!({ "spec": { "suspend": true } }))
        .await
        .unwrap();
    until("its pods are gone", async || {
        fixture.reap(name).await;
        fixture.all_pods(name).await.is_empty().then_some(())
    })
    .await;
    // Kubernetes 1.35 rejects a change of the template while the Job is not suspended, or has a start time.
    let start = json!({ "status": { "startTime": null } });
    let started = fixture
        .api::<Job>()
        .patch_status(name, &PatchParams::default(), &Patch::Merge(start))
        .await;
    started.unwrap();
    let template = json!({ "metadata": { "labels": { "flavor": null } }, "spec": { "nodeSelector": null } });
    let spec = json!({ "parallelism": pods, "completions": pods, "template": template });
    fixture.patch::<Job>(name, json!({ "spec": spec })).await.unwrap();
}

/// Puts the pod on a node. A deleted pod that is on a node stays until its kubelet has ended it. The API server removes
/// one without a node at once.
pub(crate) async fn place(fixture: &Fixture, pod: &Pod, node: &str) {
    let name = pod.name_any();
    let target = json!({ "apiVersion": "v1", "kind": "Node", "name": node });
    let binding =
        json!({ "apiVersion": "v1", "kind": "Binding", "metadata": { "name": name }, "target": target });
    let bound: Result<Value, _> = fixture
        .api::<Pod>()
        .create_subresource("binding", &name, &PostParams::default(), &binding)
        .await;
    bound.unwrap();
}

async fn run(fixture: &Fixture, name: &str, count: usize) -> std::collections::BTreeMap<u32, Pod> {
    let pods = fixture.run_pods(name, count).await;
    fixture.when_condition(name, "Ready", "True").await;
    pods
}

/// The Job's `parallelism`, `completions` and `suspend`.
fn sizes(job: &Job) -> (Option<i32>, Option<i32>, Option<bool>) {
    let spec = job.spec.as_ref().unwrap();
    (spec.parallelism, spec.completions, spec.suspend)
}

#[test]
fn queue_labels_reach_job_and_pods_and_admission_comes_first() {
    test("queued", async |fixture| {
        let operator = fixture.operator().await;
        let annotations = json!({ TOPOLOGY: "rack", "provreq.kueue.x-k8s.io/maxRunDurationSeconds": "60", "other": "mine" });
        queue(
            &fixture,
            "mc",
            annotations,
            json!({ "size": 2, "suspend": false }),
        )
        .await;
        let job = fixture.job("mc").await;
        assert_eq!(sizes(&job), (Some(2), Some(2), Some(true)));
        assert_eq!(job.labels()[QUEUE], "team");
        assert!(!job.labels().contains_key("other"));
        let annotations = job.annotations();
        assert_eq!(
            (
                annotations[TOPOLOGY].as_str(),
                annotations["provreq.kueue.x-k8s.io/maxRunDurationSeconds"].as_str()
            ),
            ("rack", "60")
        );
        assert!(
            ![LEAST, EQUAL, ELASTIC, "other"]
                .iter()
                .any(|key| annotations.contains_key(*key)),
            "{annotations:?}"
        );
        // For pods, the queue has only annotations whose names begin with `podset-`.
        let of_pods = job
            .spec
            .as_ref()
            .unwrap()
            .template
            .metadata
            .clone()
            .unwrap()
            .annotations
            .unwrap();
        assert_eq!(of_pods.keys().collect::<Vec<_>>(), [TOPOLOGY]);
        assert!(fixture.all_pods("mc").await.is_empty());
        let waiting = fixture.status("mc").await;
        assert_eq!(waiting["phase"], "Suspended");
        assert!(
            waiting["message"]
                .as_str()
                .unwrap()
                .starts_with("waits in queue team"),
            "{waiting:#}"
        );
        assert_eq!(condition(&waiting, "Suspended")["reason"], "Queued");
        assert_eq!(condition(&waiting, "Ready")["reason"], "Queued");
        assert_eq!(
            condition(&waiting, "Valid")["reason"],
            "ValidWithNotes",
            "suspend has no effect"
        );

        admit(&fixture, "mc", 2).await;
        let pods = run(&fixture, "mc", 2).await;
        assert_eq!(
            pods[&0].spec.as_ref().unwrap().node_selector.as_ref().unwrap()["pool"],
            "spot"
        );
        assert_eq!(pods[&0].labels()["flavor"], "spot");
        operator.settled().await;
        let job = fixture.job("mc").await;
        assert_eq!(sizes(&job), (Some(2), Some(2), Some(false)));
        assert_eq!(
            job.spec.unwrap().template.spec.unwrap().node_selector.unwrap()["pool"],
            "spot",
            "what Kueue added stays"
        );
        let running = fixture.status("mc").await;
        assert_eq!(
            (
                &running["reason"],
                condition(&running, "Suspended")["status"].as_str()
            ),
            (&Value::Null, Some("False"))
        );
        operator.stop().await;
    });
}

/// Otherwise the pod would hold resources that no quota counts.
#[test]
fn the_services_pod_runs_while_the_queue_lets_the_job_run() {
    test("queued-services", async |fixture| {
        let operator = fixture.operator().await;
        let services = json!([{ "image": "db:1", "name": "db" }]);
        queue(
            &fixture,
            "mc",
            json!({}),
            json!({ "size": 1, "services": services }),
        )
        .await;
        operator.settled().await;
        let pod = async || fixture.find::<Pod>("mc-services").await;
        assert!(pod().await.is_none(), "nothing runs before it is admitted");
        admit(&fixture, "mc", 1).await;
        let first = until("its services run", pod).await.uid();
        run(&fixture, "mc", 1).await;
        take_back(&fixture, "mc", 1).await;
        until("its services are gone", async || {
            pod().await.is_none().then_some(())
        })
        .await;
        operator.settled().await;
        assert!(pod().await.is_none());
        admit(&fixture, "mc", 1).await;
        let second = until("its services run again", pod).await.uid();
        assert_ne!(first, second);
        operator.stop().await;
    });
}

fn with_services(size: u32) -> Value {
    json!({
        "size": size,
        "containers": [{ "image": "app:1", "command": "hostname" }],
        "services": [{ "image": "db:1", "name": "db" }],
    })
}

#[test]
fn services_pod_is_replaced_when_lost_and_stays_when_it_failed() {
    test("lost-services", async |fixture| {
        let operator = fixture.operator().await;
        let spec = with_services(1);
        fixture.create("mc", spec).await;
        let pod = async || fixture.find::<Pod>("mc-services").await;
        let first = until("its services run", pod).await.uid();
        let end = async |status| fixture.patch_pod_status(&pod().await.unwrap(), status).await;
        // No exit code is a sign of a loss, not even 255, the code of an end that nobody saw (`exit::UNSEEN`).
        let containers = json!([{
            "name": "db", "image": "db:1", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "terminated": { "exitCode": 255, "reason": "Error" } },
        }]);
        end(json!({ "status": { "phase": "Failed", "containerStatuses": containers } })).await;
        operator.settled().await;
        assert_eq!(pod().await.unwrap().uid(), first, "it ended by itself");
        end(json!({ "status": { "reason": "Evicted", "message": "The node was low on resource: memory." } }))
            .await;
        until("another services pod runs", async || {
            pod().await.filter(|pod| pod.uid() != first)
        })
        .await;
        operator.stop().await;
    });
}

/// A node shutdown ends the lead and the services pod. The next Job waits for the pods of the former one.
#[test]
fn services_pod_that_is_lost_between_two_jobs_is_replaced() {
    test("services-between", async |fixture| {
        let operator = fixture.operator().await;
        fixture.create("mc", with_services(2)).await;
        let services = async || fixture.find::<Pod>("mc-services").await;
        let first = until("its services run", services).await;
        let job = fixture.job("mc").await.uid();
        let pods = run(&fixture, "mc", 2).await;
        fixture.hold_pod(&pods[&1]).await;
        evict_lead(&fixture, &pods[&0], &pods[&1]).await;
        until("the Job is given up", async || {
            let job = fixture.find::<Job>("mc").await;
            job.is_none_or(|job| job.metadata.deletion_timestamp.is_some())
                .then_some(())
        })
        .await;
        let evicted = json!({ "status": { "phase": "Failed", "reason": "Evicted", "containerStatuses": [{
            "name": "db", "image": "db:1", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "terminated": { "exitCode": 137, "reason": "Error" } },
        }] } });
        fixture.patch_pod_status(&first, evicted).await;
        operator.settled().await;
        fixture.release_pod(&pods[&1]).await;
        another_job(&fixture, "mc", &job).await;
        until("another services pod runs", async || {
            services().await.filter(|pod| pod.uid() != first.uid())
        })
        .await;
        operator.stop().await;
    });
}

/// Otherwise the pod would run until somebody deletes the MiniCluster. It stays for the `post` of followers.
#[test]
fn services_pod_is_deleted_once_when_the_brokers_have_ended() {
    test("ended-services", async |fixture| {
        let operator = fixture.operator().await;
        for (name, code, deletes_so_far) in [("done", 0, 1), ("failed", 1, 2)] {
            let spec = with_services(2);
            fixture.create(name, spec).await;
            let services = format!("{name}-services");
            let pod = async || fixture.find::<Pod>(&services).await;
            let running = until("its services run", pod).await;
            let pods = run(&fixture, name, 2).await;
            // On a node, the deleted services pod stays until a kubelet has ended it, so that the test sees it.
            place(&fixture, &running, name).await;
            // The follower still runs its `post`.
            let follower = &pods[&1];
            fixture.hold_pod(follower).await;
            fixture.end_pod(&pods[&0], code, "Error", "").await;
            fixture.when_condition(name, "JobFinished", "True").await;
            operator.settled().await;
            assert!(pod().await.unwrap().metadata.deletion_timestamp.is_none());
            fixture.end_pod(follower, 0, "Completed", "").await;
            until("its services are deleted", async || {
                pod()
                    .await
                    .filter(|pod| pod.metadata.deletion_timestamp.is_some())
            })
            .await;
            // Another reconcile, which deletes nothing.
            fixture
                .edit(name, json!({ "ttlSecondsAfterFinished": 3600 }))
                .await;
            operator.settled().await;
            let calls = operator.calls.all();
            let deletes = calls.iter().filter(|call| call.verb == "deletecollection");
            assert_eq!(deletes.count(), deletes_so_far, "{calls:#?}");
            fixture.release_pod(follower).await;
        }
        operator.stop().await;
    });
}

/// The value `services.enabled: false` also takes the permissions for services pods from the operator.
#[test]
fn finished_minicluster_goes_after_services_are_disabled() {
    test("disabled-services", async |fixture| {
        let operator = fixture.operator().await;
        let spec = with_services(1);
        fixture.create("mc", spec).await;
        let services = async || fixture.find::<Pod>("mc-services").await;
        until("its services run", services).await;
        let pods = run(&fixture, "mc", 1).await;
        operator.stop().await;
        let disabled = json!({ "services": { "enabled": false } });
        let operator = fixture
            .operator_installed(Calls::default(), &disabled, |settings| {
                settings.options.services = false
            })
            .await;
        fixture.end_pod(&pods[&0], 0, "Completed", "").await;
        until("its services are deleted", async || {
            services().await.is_none().then_some(())
        })
        .await;
        fixture.edit("mc", json!({ "ttlSecondsAfterFinished": 0 })).await;
        gone(&fixture, "mc").await;
        operator.stop().await;
    });
}

#[test]
fn queue_holds_partially_admitted_size_until_requeue() {
    test("part", async |fixture| {
        let operator = fixture.operator().await;
        queue(&fixture, "mc", json!({}), json!({ "size": 4, "minSize": 2 })).await;
        let job = fixture.job("mc").await;
        assert_eq!(
            (
                job.annotations()[LEAST].as_str(),
                job.annotations()[EQUAL].as_str()
            ),
            ("2", "true")
        );
        admit(&fixture, "mc", 2).await;
        run(&fixture, "mc", 2).await;
        operator.settled().await;
        assert_eq!(
            sizes(&fixture.job("mc").await),
            (Some(2), Some(2), Some(false)),
            "nothing raises the admitted size"
        );
        assert_eq!(condition(&fixture.status("mc").await, "Valid")["reason"], "Valid");

        fixture.edit("mc", json!({ "size": 3 })).await;
        let held = fixture.when_condition("mc", "Valid", "False").await;
        assert_eq!(condition(&held, "Valid")["reason"], "SizeHeldByQueue");
        assert_message(&condition(&held, "Valid"), "is 3");
        operator.settled().await;
        assert_eq!(sizes(&fixture.job("mc").await), (Some(2), Some(2), Some(false)));
        fixture.edit("mc", json!({ "size": 4 })).await;
        fixture.when_condition("mc", "Valid", "True").await;

        fixture.edit("mc", json!({ "size": 2 })).await;
        take_back(&fixture, "mc", 4).await;
        let job = until("the Job has the new size, which is `minSize`", async || {
            let job = fixture.job("mc").await;
            (sizes(&job) == (Some(2), Some(2), Some(true))).then_some(job)
        })
        .await;
        assert!(
            ![LEAST, EQUAL]
                .iter()
                .any(|key| job.annotations().contains_key(*key)),
            "{:?}",
            job.annotations()
        );
        operator.stop().await;
    });
}

#[test]
fn evicted_cluster_waits_again_and_ends_with_its_own_code() {
    test("evicted", async |fixture| {
        let operator = fixture.operator().await;
        queue(&fixture, "mc", json!({}), json!({ "size": 2, "backoffLimit": 0 })).await;
        admit(&fixture, "mc", 2).await;
        run(&fixture, "mc", 2).await;
        let uid = fixture.job("mc").await.uid();
        take_back(&fixture, "mc", 2).await;
        let waiting = fixture.when_is("mc", "reason", "Queued").await;
        let restarts = waiting["restarts"].as_array().unwrap();
        assert_eq!(
            (restarts.len(), restarts[0]["reason"].as_str()),
            (1, Some("Requeued")),
            "{waiting:#}"
        );
        assert_eq!(
            (&waiting["restartCount"], &waiting["backoffLimitUsed"]),
            (&json!(1), &Value::Null)
        );
        assert!(
            waiting["lostPods"].as_array().is_none_or(Vec::is_empty),
            "{waiting:#}"
        );
        assert_eq!(
            waiting["exitCode"],
            Value::Null,
            "a stop by the queue is not the end"
        );

        admit(&fixture, "mc", 2).await;
        let pods = run(&fixture, "mc", 2).await;
        assert_eq!(fixture.job("mc").await.uid(), uid, "it is the same Job");
        fixture.end_pod(&pods[&0], 7, "Error", "").await;
        let ended = fixture.when_finished("mc", "Failed").await;
        assert_eq!(
            (&ended["exitCode"], &ended["reason"]),
            (&json!(7), &json!("NonZeroExitCode")),
            "{ended:#}"
        );
        assert_eq!(
            (&ended["restartCount"], &ended["backoffLimitUsed"]),
            (&json!(1), &Value::Null)
        );
        operator.stop().await;
    });
}

/// Kueue deletes a Job that it has deactivated if `objectRetentionPolicies` in its configuration says so.
#[test]
fn job_that_is_deleted_in_its_queue_is_not_recreated() {
    test("retention", async |fixture| {
        let operator = fixture.operator().await;
        queue(&fixture, "mc", json!({}), json!({ "size": 1 })).await;
        admit(&fixture, "mc", 1).await;
        run(&fixture, "mc", 1).await;
        take_back(&fixture, "mc", 1).await;
        fixture.when_is("mc", "reason", "Queued").await;
        fixture.delete::<Job>("mc").await;
        let status = fixture.when_finished("mc", "Failed").await;
        assert_eq!(
            (&status["reason"], &status["backoffLimitUsed"]),
            (&json!("JobDeleted"), &Value::Null),
            "{status:#}"
        );
        assert_message(&status, "waited in its queue");
        operator.settled().await;
        assert!(fixture.find::<Job>("mc").await.is_none());
        operator.stop().await;
    });
}

/// The pods that a suspension stops end before they are gone. The Job controller sees these ends, but they must not
/// count as failures.
#[test]
fn evicted_job_has_not_failed_and_starts_again_once_admitted() {
    test("judged", async |fixture| {
        let operator = fixture.operator().await;
        queue(
            &fixture,
            "mc",
            json!({ TOPOLOGY: "rack" }),
            json!({ "size": 2, "backoffLimit": 0, "deadlineSeconds": 900 }),
        )
        .await;
        admit(&fixture, "mc", 2).await;
        let pods = run(&fixture, "mc", 2).await;
        // Together with this label, the operator sets the condition by which the Job's failure policy recognises the
        // lead.
        until("the Job knows its lead", async || {
            let lead = fixture.api::<Pod>().get(&pods[&0].name_any()).await.unwrap();
            lead.labels().contains_key("job-index").then_some(())
        })
        .await;
        let uid = fixture.job("mc").await.uid();
        for pod in pods.values() {
            place(&fixture, pod, "node").await;
        }
        fixture
            .patch::<Job>("mc", json!({ "spec": { "suspend": true } }))
            .await
            .unwrap();
        until("its pods are being deleted", async || {
            let pods = fixture.all_pods("mc").await;
            pods.iter()
                .all(|pod| pod.metadata.deletion_timestamp.is_some())
                .then_some(())
        })
        .await;
        let stop = json!({ "version": 1, "by": "stop", "code": 143 }).to_string();
        for pod in pods.values() {
            fixture.end_pod(pod, 143, "Error", &stop).await;
        }
        let again = fixture.when_is("mc", "reason", "Queued").await;
        let restarts = again["restarts"].as_array().unwrap();
        assert_eq!(
            (restarts.len(), restarts[0]["reason"].as_str()),
            (1, Some("Requeued")),
            "{again:#}"
        );
        assert_eq!(
            (&again["restartCount"], &again["backoffLimitUsed"]),
            (&json!(1), &Value::Null)
        );
        until("its pods are gone", async || {
            fixture.reap("mc").await;
            fixture.all_pods("mc").await.is_empty().then_some(())
        })
        .await;
        // An index that has failed for good would never get another pod.
        let job = fixture.job("mc").await;
        assert_eq!(
            job.status
                .as_ref()
                .and_then(|status| status.failed_indexes.as_deref())
                .unwrap_or_default(),
            ""
        );
        assert_eq!((job.uid(), job.annotations()[TOPOLOGY].as_str()), (uid, "rack"));
        admit(&fixture, "mc", 2).await;
        fixture.pods("mc", 2).await;
        operator.stop().await;
    });
}

/// Without `minSize`, the command waits for as many brokers as the ConfigMap says, so that must be the new size.
#[test]
fn evicted_cluster_starts_with_the_size_that_was_held() {
    test("shrunk", async |fixture| {
        let operator = fixture.operator().await;
        queue(&fixture, "mc", json!({}), json!({ "size": 4 })).await;
        admit(&fixture, "mc", 4).await;
        run(&fixture, "mc", 4).await;
        fixture.edit("mc", json!({ "size": 2 })).await;
        fixture.when_condition("mc", "Valid", "False").await;
        let config = async || {
            let map = fixture.api::<ConfigMap>().get("mc-agent").await.unwrap();
            map.data.unwrap()["agent.toml"].parse::<toml::Table>().unwrap()
        };
        let size = async || config().await["size"].as_integer().unwrap();
        assert_eq!(size().await, 4);
        // As another version of the operator wrote it, for the agent of that version.
        let mut other_version = config().await;
        other_version.insert("other_field".into(), true.into());
        let data = json!({ "data": { "agent.toml": other_version.to_string() } });
        fixture.patch::<ConfigMap>("mc-agent", data).await.unwrap();
        take_back(&fixture, "mc", 4).await;
        until("the new size is written", async || {
            let job = fixture.job("mc").await;
            let initial_size = &job.annotations()["flux-framework.org/initial-size"];
            (sizes(&job) == (Some(2), Some(2), Some(true)) && initial_size == "2").then_some(())
        })
        .await;
        other_version.insert("size".into(), 2.into());
        other_version.insert("max_size".into(), 4.into());
        assert_eq!(config().await, other_version);
        admit(&fixture, "mc", 2).await;
        run(&fixture, "mc", 2).await;
        operator.stop().await;
    });
}

/// A queue admits an elastic Job only as a whole. So `minSize` has no effect on the Job, whether `size` equals it or
/// not, and is only noted.
#[test]
fn elastic_cluster_is_resized_while_it_runs() {
    test("elastic", async |fixture| {
        let operator = fixture.operator().await;
        for (name, spec, reason) in [
            ("all", json!({ "size": 1, "maxSize": 3 }), "Valid"),
            (
                "part",
                json!({ "size": 1, "minSize": 1, "maxSize": 8 }),
                "ValidWithNotes",
            ),
        ] {
            queue(&fixture, name, json!({}), spec).await;
            assert_eq!(fixture.job(name).await.annotations()[ELASTIC], "true");
            admit(&fixture, name, 1).await;
            let lead = run(&fixture, name, 1).await[&0].uid();
            fixture.edit(name, json!({ "size": 2 })).await;
            let pods = run(&fixture, name, 2).await;
            assert_eq!(pods[&0].uid(), lead);
            let job = fixture.job(name).await;
            assert_eq!(sizes(&job), (Some(2), Some(2), Some(false)));
            assert!(!job.annotations().contains_key(LEAST), "{:?}", job.annotations());
            let status = fixture.status(name).await;
            assert_eq!(condition(&status, "Valid")["reason"], reason, "{status:#}");
        }
        operator.stop().await;
    });
}

/// Its Job cannot mount the view, so another Job is created and queues again.
#[test]
fn another_job_of_the_same_cluster_queues_as_the_first_did() {
    // Before 1.35, Kubernetes has no image volumes by default, so no Job is created for this spec.
    if kubernetes_minor() < 35 {
        return;
    }
    test("requeued", async |fixture| {
        let operator = fixture.operator().await;
        let spec = json!({ "size": 1, "flux": { "container": { "source": "imageVolume" } } });
        queue(&fixture, "mc", json!({}), spec).await;
        admit(&fixture, "mc", 1).await;
        let uid = fixture.job("mc").await.uid();
        fixture.cannot_mount(&fixture.pods("mc", 1).await[&0]).await;
        let job = another_job(&fixture, "mc", &uid).await;
        assert_eq!(
            (job.labels()[QUEUE].as_str(), sizes(&job)),
            ("team", (Some(1), Some(1), Some(true)))
        );
        fixture.when_is("mc", "reason", "Queued").await;
        operator.stop().await;
    });
}

#[test]
fn contradictory_queue_settings_create_no_job() {
    test("contradicts", async |fixture| {
        let operator = fixture.operator().await;
        let object = json!({
            "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster",
            "metadata": { "name": "mc", "labels": { QUEUE: "team" }, "annotations": { TOPOLOGY: "rack" } },
            "spec": { "size": 2, "maxSize": 4, "containers": [{ "image": "app:1" }] },
        });
        fixture.add::<MiniCluster>(object).await;
        let status = fixture.when_is("mc", "reason", "Invalid").await;
        assert!(
            status["message"]
                .as_str()
                .unwrap()
                .starts_with("spec.maxSize: a queue cannot resize"),
            "{status:#}"
        );
        assert!(fixture.find::<Job>("mc").await.is_none());
        operator.stop().await;
    });
}

/// A change of labels or annotations does not raise the generation.
#[test]
fn job_is_created_once_a_queue_contradiction_is_removed() {
    test("remedied", async |fixture| {
        let operator = fixture.operator().await;
        // The operator keeps neither a large spec nor the metadata beside it.
        for (name, script) in [("mc", "hostname".to_owned()), ("large", "x".repeat(10_000))] {
            let object = json!({
                "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster",
                "metadata": { "name": name, "labels": { QUEUE: "team" }, "annotations": { LEAST: "2" } },
                "spec": { "size": 4, "containers": [{ "image": "app:1", "commands": { "script": script } }] },
            });
            fixture.add::<MiniCluster>(object).await;
            let status = fixture.when_is(name, "reason", "Invalid").await;
            assert_message(&status, "leave it out");
            operator.settled().await;
            let none = json!({ "metadata": { "annotations": { LEAST: null } } });
            fixture.patch::<MiniCluster>(name, none).await.unwrap();
            fixture.when_is(name, "reason", "Queued").await;
            assert_eq!(sizes(&fixture.job(name).await), (Some(4), Some(4), Some(true)));
        }
        // A change of other labels has no effect.
        operator.settled().await;
        let before = operator.calls.counted().len();
        fixture
            .patch::<MiniCluster>("mc", json!({ "metadata": { "labels": { "mine": "1" } } }))
            .await
            .unwrap();
        operator.settled().await;
        assert_eq!(operator.calls.counted().len(), before);
        operator.stop().await;
    });
}

#[test]
fn queue_labels_added_after_creation_do_not_change_the_job() {
    test("relabelled", async |fixture| {
        let operator = fixture.operator().await;
        let containers = json!([{ "image": "app:1", "command": "hostname" }]);
        fixture
            .create(
                "mc",
                json!({ "size": 3, "minSize": 2, "maxSize": 8, "containers": containers }),
            )
            .await;
        run(&fixture, "mc", 3).await;
        fixture
            .patch::<MiniCluster>("mc", json!({ "metadata": { "labels": { QUEUE: "team" } } }))
            .await
            .unwrap();
        let noted = |status: &Value| condition(status, "Valid")["reason"] == "ValidWithNotes";
        let now = fixture.when("mc", "noted", noted).await;
        assert_message(&condition(&now, "Valid"), "since the Job was created");
        assert_eq!(
            (&now["phase"], &condition(&now, "Stalled")),
            (&json!("Running"), &Value::Null),
            "{now:#}"
        );
        fixture.edit("mc", json!({ "size": 4 })).await;
        run(&fixture, "mc", 4).await;
        assert_eq!(sizes(&fixture.job("mc").await), (Some(4), Some(4), Some(false)));
        operator.stop().await;

        // The reverse case: the queue's label is removed while no operator runs. The annotation makes the Job not
        // elastic: an elastic one is admitted only as a whole.
        let operator = fixture.operator().await;
        queue(
            &fixture,
            "queued",
            json!({ ELASTIC: "false" }),
            json!({ "size": 4, "minSize": 2, "maxSize": 8 }),
        )
        .await;
        operator.stop().await;
        let none = json!({ "metadata": { "labels": { QUEUE: null }, "annotations": { ELASTIC: null } } });
        fixture.patch::<MiniCluster>("queued", none).await.unwrap();
        let operator = fixture.operator().await;
        fixture.when("queued", "noted", noted).await;
        admit(&fixture, "queued", 2).await;
        run(&fixture, "queued", 2).await;
        let now = fixture.status("queued").await;
        assert_eq!(
            (&now["phase"], &now["readySize"]),
            (&json!("Running"), &json!(2)),
            "{now:#}"
        );
        operator.stop().await;
    });
}

/// As MultiKueue sets it on what runs in another cluster.
#[test]
fn foreign_managed_by_is_ignored_and_immutable() {
    test("elsewhere", async |fixture| {
        let operator = fixture.operator().await;
        fixture
            .create(
                "other",
                json!({ "size": 1, "managedBy": "kueue.x-k8s.io/multikueue" }),
            )
            .await;
        // Of a large spec, the operator's cache keeps only `managedBy`.
        let large = json!([{ "image": "app:1", "commands": { "script": "x".repeat(100_000) } }]);
        let other =
            json!({ "size": 1, "managedBy": "example.org/other", "cleanup": true, "containers": large });
        fixture.create("large", other).await;
        fixture
            .create(
                "ours",
                json!({ "size": 1, "managedBy": "flux-framework.org/flux-operator" }),
            )
            .await;
        fixture.pods("ours", 1).await;
        // The other controller writes its status. The operator does not treat that status as its own: with the TTL
        // below, or with `cleanup`, it would delete a finished MiniCluster.
        let done = json!({ "status": { "phase": "Completed", "maximumSize": 1, "conditions": [{
            "type": "JobFinished", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "", "message": "",
        }] } });
        let api = fixture.api::<MiniCluster>();
        for name in ["other", "large"] {
            api.patch_status(name, &PatchParams::default(), &Patch::Merge(&done))
                .await
                .unwrap();
            fixture.edit(name, json!({ "ttlSecondsAfterFinished": 0 })).await;
        }
        operator.settled().await;
        for name in ["other", "large"] {
            let status = fixture.status(name).await;
            assert_eq!(
                (&status["phase"], &status["observedGeneration"]),
                (&json!("Completed"), &Value::Null),
                "{status:#}"
            );
            assert!(fixture.find::<Job>(name).await.is_none());
        }
        let about = |name: &str| {
            operator
                .calls
                .all()
                .into_iter()
                .filter(|call| call.name.contains(name))
                .count()
        };
        assert_eq!((about("other"), about("large")), (0, 0));
        for (name, change) in [
            ("other", json!(null)),
            ("other", json!("example.org/a")),
            ("ours", json!("example.org/a")),
        ] {
            let changed = fixture
                .patch::<MiniCluster>(name, json!({ "spec": { "managedBy": change } }))
                .await;
            let refused = changed.unwrap_err().to_string();
            assert!(refused.contains("cannot change"), "{refused}");
        }
        operator.stop().await;
    });
}
