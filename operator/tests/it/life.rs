//! A MiniCluster's life on a real API server, from apply to its end, with pods whose status the test writes.

use flux_shared::agent_spec::AgentSpec;
use flux_shared::curve::Certificate;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::events::v1::Event;
use kube::api::{EvictParams, ListParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::gangs::kubernetes_minor;
use crate::restarts::agent_message;
use test_support::api_server::{
    Call, Calls, Fault, SETTLE, assert_message, condition, index, test, test_alone, until,
};

#[test]
fn minicluster_gets_its_objects_pods_and_a_ready_status() {
    test("made", async |fixture| {
        let operator = fixture.operator().await;
        fixture.create("mc", json!({ "size": 4 })).await;
        let pods = fixture.pods("mc", 4).await;

        let config: ConfigMap = fixture.api().get("mc-agent").await.unwrap();
        let spec = AgentSpec::from_toml(&config.data.unwrap()["agent.toml"]).unwrap();
        assert_eq!(
            (spec.name.as_str(), spec.size, spec.hostlist().as_str()),
            ("mc", 4, "mc-[0-3]")
        );
        let secret = fixture.secret("mc", "curve").await.unwrap();
        let text = String::from_utf8(secret.data.clone().unwrap()["curve.cert"].0.clone()).unwrap();
        Certificate::parse(&text).unwrap();
        let volumes = pods[&0].spec.as_ref().unwrap().volumes.iter().flatten();
        let mut secrets = volumes.filter_map(|volume| volume.secret.as_ref()?.secret_name.clone());
        assert!(secrets.any(|name| name == secret.name_any()));
        // The first call for the Job is a dry run.
        let calls = operator.calls.all();
        let created = calls.iter().filter(|call| call.verb == "create");
        let created: Vec<&str> = created.map(|call| call.resource.as_str()).collect();
        let job = created.iter().rposition(|kind| *kind == "jobs").unwrap();
        for kind in ["configmaps", "secrets"] {
            assert!(
                created[..job].contains(&kind),
                "{kind} before the Job: {created:?}"
            );
        }
        let service: Service = fixture.api().get("flux-service").await.unwrap();
        assert_eq!(service.spec.unwrap().publish_not_ready_addresses, Some(true));

        let waiting = fixture.when_is("mc", "size", 4).await;
        assert_eq!(waiting["phase"], "Pending", "{waiting:#}");
        assert_eq!(waiting["maximumSize"], 4);
        assert_eq!(waiting["selector"], "hpa-selector=mc");
        for (type_, wanted) in [
            ("Valid", "True"),
            ("JobRequested", "True"),
            ("JobWaitingForResources", "True"),
            ("JobRunning", "False"),
            ("JobMiniClusterReady", "False"),
            ("JobFinished", "False"),
            ("Ready", "False"),
            ("Suspended", "False"),
        ] {
            assert_eq!(
                condition(&waiting, type_)["status"],
                wanted,
                "{type_} in {waiting:#}"
            );
            assert_eq!(condition(&waiting, type_)["observedGeneration"], 1);
        }

        for pod in pods.values() {
            fixture.run_pod(pod).await;
        }
        let ready = fixture.when_condition("mc", "Ready", "True").await;
        assert_eq!(ready["phase"], "Running");
        assert_eq!(ready["readySize"], 4);
        for step in ["scheduled", "running", "ready"] {
            let at = &ready["timeline"][step];
            assert!(at.as_str() >= ready["startTime"].as_str(), "{step}: {at}");
        }
        assert_eq!(condition(&ready, "JobWaitingForResources")["status"], "False");
        assert_eq!(condition(&ready, "JobRunning")["status"], "True");
        let requested =
            |status: &serde_json::Value| condition(status, "JobRequested")["lastTransitionTime"].clone();
        assert_eq!(
            requested(&ready),
            requested(&waiting),
            "the transition time stays without a change"
        );

        // Only the lead has the documented label: a label on every pod would cost a call for each.
        until(
            "the lead has its index as a label, and the Job knows it",
            async || {
                let pods = fixture.all_pods("mc").await;
                let is_known = |pod: &Pod| {
                    let conditions = pod
                        .status
                        .clone()
                        .unwrap_or_default()
                        .conditions
                        .unwrap_or_default();
                    let is_marked = conditions.iter().any(|condition| {
                        condition.type_ == "flux-framework.org/Lead" && condition.status == "True"
                    });
                    assert_eq!(is_marked, pod.labels().contains_key("job-index"));
                    is_marked
                };
                let known: Vec<u32> = pods.iter().filter(|pod| is_known(pod)).map(index).collect();
                (known == [0]).then_some(())
            },
        )
        .await;
        operator.stop().await;
    });
}

/// The control plane of the tests has IPv4 and IPv6. The test node has only IPv4.
#[test]
fn pod_name_resolves_to_both_families_on_dual_stack() {
    test("families", async |fixture| {
        let operator = fixture.operator().await;
        fixture.create("mc", json!({ "size": 2 })).await;
        let pods = fixture.pods("mc", 2).await;
        let service: Service = fixture.api().get("flux-service").await.unwrap();
        assert_eq!(
            service.spec.unwrap().ip_families,
            Some(vec!["IPv4".to_owned(), "IPv6".to_owned()])
        );
        for (number, pod) in &pods {
            let (four, six) = (
                format!("198.18.9.{}", number + 1),
                format!("2001:2:0:9::{}", number + 1),
            );
            let addresses = json!({ "podIP": four, "podIPs": [{ "ip": four }, { "ip": six }] });
            fixture
                .patch_pod_status(pod, json!({ "status": addresses }))
                .await;
        }
        until("both pods have both addresses by name", async || {
            let slices = fixture
                .api::<EndpointSlice>()
                .list(&ListParams::default())
                .await
                .unwrap();
            let mut seen: Vec<(String, String, String)> = Vec::new();
            for slice in slices {
                for endpoint in slice.endpoints {
                    let host = endpoint.hostname.unwrap_or_default();
                    seen.extend(
                        endpoint
                            .addresses
                            .into_iter()
                            .map(|address| (slice.address_type.clone(), host.clone(), address)),
                    );
                }
            }
            seen.sort();
            let wanted = [
                ("IPv4", "mc-0", "198.18.9.1"),
                ("IPv4", "mc-1", "198.18.9.2"),
                ("IPv6", "mc-0", "2001:2:0:9::1"),
                ("IPv6", "mc-1", "2001:2:0:9::2"),
            ];
            (seen == wanted.map(|(family, host, address)| (family.into(), host.into(), address.into())))
                .then_some(())
        })
        .await;
        operator.stop().await;
    });
}

#[test]
fn broken_services_pod_is_in_status_and_events_until_it_is_well() {
    test("broken-services", async |fixture| {
        let operator = fixture.operator().await;
        let spec = json!({ "size": 1, "services": [{ "image": "db:1", "name": "db" }] });
        fixture.create("mc", spec).await;
        let services = until("the services pod", async || {
            fixture.find::<Pod>("mc-services").await
        })
        .await;
        let play = async |phase: &str, state: Value, last: Value| {
            let status = json!({ "name": "db", "image": "i", "imageID": "i", "ready": false, "restartCount": 1,
                "state": state, "lastState": last });
            let status = json!({ "status": { "phase": phase, "containerStatuses": [status] } });
            fixture.patch_pod_status(&services, status).await;
        };
        let pull = json!({ "waiting": { "reason": "ErrImagePull", "message": "db:1: not found" } });
        play("Pending", pull, json!({})).await;
        let status = fixture.when_is("mc", "reason", "ErrImagePull").await;
        assert_message(&status, "services pod mc-services: container db: db:1: not found");

        let pods = fixture.run_pods("mc", 1).await;
        let ended = json!({ "terminated": { "exitCode": 3, "reason": "Error" } });
        let back_off = json!({ "waiting": { "reason": "CrashLoopBackOff", "message": "back-off" } });
        play("Running", back_off, ended.clone()).await;
        let status = fixture
            .when("mc", "running beside a failed service", |status| {
                status["reason"] == "ServiceFailed" && status["phase"] == "Running"
            })
            .await;
        assert_message(
            &status,
            "services pod mc-services: container db ended with exit code 3",
        );
        for (type_, wanted) in [("Ready", "True"), ("Failed", "False"), ("Stalled", "")] {
            let now = condition(&status, type_)["status"].clone();
            assert_eq!(now.as_str().unwrap_or_default(), wanted, "{type_} in {status:#}");
        }
        until("its event", async || {
            let events = fixture.all::<Event>().await;
            let is_about = |event: &Event| event.reason.as_deref() == Some("ServiceFailed");
            events.iter().any(is_about).then_some(())
        })
        .await;

        let runs = json!({ "running": { "startedAt": "2026-01-01T00:00:00Z" } });
        play("Running", runs, ended.clone()).await;
        fixture.when_is("mc", "reason", Value::Null).await;

        play("Running", ended, json!({})).await;
        fixture.when_is("mc", "reason", "ServiceFailed").await;
        fixture.end_pod(&pods[&0], 0, "Completed", "").await;
        let status = fixture.when_finished("mc", "Complete").await;
        assert_eq!(status["reason"], "Completed", "{status:#}");
        operator.stop().await;
    });
}

#[test]
fn exit_code_0_of_the_lead_completes_the_cluster() {
    test("zero", async |fixture| {
        let _operator = fixture.operator().await;
        fixture.create("mc", json!({ "size": 2 })).await;
        let pods = fixture.run_pods("mc", 2).await;
        fixture.when_condition("mc", "Ready", "True").await;
        fixture.end_pod(&pods[&0], 0, "Completed", "").await;
        let status = fixture.when_finished("mc", "Complete").await;
        assert_eq!(status["exitCode"], 0, "{status:#}");
        assert_eq!(status["phase"], "Completed");
        assert_eq!(status["readySize"], 0);
        assert!(status["completionTime"].is_string() && status["startTime"].is_string());
        assert_eq!(condition(&status, "JobFinished")["status"], "True");
        assert_eq!(condition(&status, "Failed")["status"], "False");
        assert_eq!(condition(&status, "JobMiniClusterReady")["status"], "False");
        let ready = condition(&status, "Ready");
        assert_eq!(
            (&ready["status"], &ready["reason"]),
            (&json!("True"), &json!("Completed")),
            "a wait for Ready does not last forever"
        );
    });
}

#[test]
fn exit_code_7_of_the_lead_fails_the_cluster_at_once() {
    test("seven", async |fixture| {
        let _operator = fixture.operator().await;
        fixture.create("mc", json!({ "size": 2 })).await;
        let pods = fixture.run_pods("mc", 2).await;
        fixture
            .end_pod(&pods[&0], 7, "Error", "the job's own words\nmore")
            .await;
        let status = fixture.when_finished("mc", "Failed").await;
        assert_eq!(status["exitCode"], 7, "{status:#}");
        assert_eq!(status["phase"], "Failed");
        assert_eq!(status["failedIndex"], 0);
        assert_eq!(status["reason"], "NonZeroExitCode");
        assert_eq!(
            status["message"],
            "the lead (index 0) ended with exit code 7: the job's own words"
        );
        // The Job waits for its other pods first.
        let failed = until("the Job has failed, too", async || {
            fixture.reap("mc").await;
            let conditions = fixture.job("mc").await.status.unwrap().conditions.unwrap();
            conditions
                .into_iter()
                .find(|condition| condition.type_ == "Failed")
        })
        .await;
        assert_eq!(failed.reason.as_deref(), Some("PodFailurePolicy"));
        assert!(
            failed.message.as_ref().unwrap().contains("exit code 7"),
            "{failed:?}"
        );
    });
}

/// Any program may exit with the agent's own codes: in Python, `sys.exit` with the return code of a child that SIGSEGV
/// ended (-11) is 245.
#[test]
fn no_code_of_the_lead_is_retried_and_each_is_passed_on() {
    test("codes", async |fixture| {
        let _operator = fixture.operator().await;
        for code in [1, 137, 238, 239, 240, 243, 245, 248, 255] {
            let name = format!("mc-{code}");
            fixture
                .create(&name, json!({ "size": 1, "backoffLimit": 2 }))
                .await;
            let pod = fixture.run_pods(&name, 1).await.remove(&0).unwrap();
            // Otherwise the Job would replace a lead that ends with 238 or 255: it retries these codes of followers.
            until("the Job knows its lead", async || {
                fixture
                    .all_pods(&name)
                    .await
                    .iter()
                    .any(|pod| pod.labels().contains_key("job-index"))
                    .then_some(())
            })
            .await;
            let message = json!({ "version": 1, "by": "program", "code": code }).to_string();
            fixture.end_pod(&pod, code, "Error", &message).await;
            let status = fixture.when_condition(&name, "Failed", "True").await;
            assert_eq!(status["exitCode"], code, "{status:#}");
            assert_eq!(
                fixture.all_pods(&name).await.len(),
                1,
                "{code} is no reason to start again"
            );
        }
    });
}

#[test]
fn status_tells_out_of_memory_from_a_signal() {
    test("memory", async |fixture| {
        let _operator = fixture.operator().await;
        for (name, code, container_reason, status_reason, signal) in [
            ("oom", 137, "OOMKilled", "OOMKilled", 9),
            ("term", 143, "Error", "Signalled", 15),
        ] {
            fixture.create(name, json!({ "size": 1 })).await;
            let pod = fixture.pods(name, 1).await.remove(&0).unwrap();
            fixture.end_pod(&pod, code, container_reason, "").await;
            let status = fixture.when_condition(name, "Failed", "True").await;
            assert_eq!(status["reason"], status_reason, "{status:#}");
            assert_eq!(
                (&status["exitCode"], &status["signal"]),
                (&json!(code), &json!(signal))
            );
        }
    });
}

#[test]
fn a_pod_that_cannot_start_is_named() {
    test("stuck", async |fixture| {
        let _operator = fixture.operator().await;
        fixture.create("mc", json!({ "size": 2 })).await;
        let pods = fixture.pods("mc", 2).await;
        let waiting = |reason: &str, message: &str| {
            json!({ "status": { "phase": "Pending",
                "conditions": [{ "type": "PodScheduled", "status": "True" }],
                "containerStatuses": [{
                    "name": "mc", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                    "state": { "waiting": { "reason": reason, "message": message } },
                }],
            } })
        };
        fixture
            .patch_pod_status(&pods[&1], waiting("ErrImagePull", "no such image"))
            .await;
        let status = fixture.when_is("mc", "reason", "ErrImagePull").await;
        assert_eq!(status["phase"], "Starting");
        assert_eq!(status["message"], "pod 1: container mc: no such image");
        assert_eq!(
            condition(&status, "JobWaitingForResources")["reason"],
            "ErrImagePull"
        );
        for pod in pods.values() {
            fixture.run_pod(pod).await;
        }
        let status = fixture.when_condition("mc", "Ready", "True").await;
        assert_eq!(
            status["reason"],
            serde_json::Value::Null,
            "the reason is removed once the pods run: {status:#}"
        );
    });
}

#[test]
fn view_is_copied_with_reason_when_it_cannot_be_mounted() {
    test("mount", async |fixture| {
        let operator = fixture.operator().await;
        let view = async || {
            let job = fixture.find::<Job>("mc").await?;
            Some((job.uid()?, job.annotations()["flux-framework.org/view"].clone()))
        };
        fixture
            .create(
                "mc",
                json!({ "size": 2, "flux": { "container": { "source": "imageVolume" } } }),
            )
            .await;
        // Before 1.35, Kubernetes has no image volumes by default.
        if kubernetes_minor() < 35 {
            let status = fixture.when_is("mc", "reason", "Unsupported").await;
            assert_message(&status, "flux.container.source");
            return;
        }
        let pods = fixture.pods("mc", 2).await;
        let first = until("the Job is there", view).await;
        assert_eq!(first.1, "imageVolume");
        let volumes = pods[&0].spec.as_ref().unwrap().volumes.clone().unwrap();
        assert!(volumes.iter().any(|volume| volume.image.is_some()), "{volumes:?}");

        // Another error of the runtime is not about the image.
        fixture
            .cannot_create_container(&pods[&1], "failed to reserve container name")
            .await;
        let status = fixture.when_is("mc", "reason", "CreateContainerError").await;
        assert_message(&status, "failed to reserve container name");
        tokio::time::sleep(SETTLE).await;
        assert_eq!(view().await, Some(first.clone()), "the Job stays");

        fixture.cannot_mount(&pods[&1]).await;
        let second = until("another Job is there", async || {
            fixture.reap("mc").await;
            view().await.filter(|job| job.0 != first.0)
        })
        .await;
        assert_eq!(second.1, "copy");
        let status = fixture.when_condition("mc", "ViewMounted", "False").await;
        let mounted = condition(&status, "ViewMounted");
        assert_message(&mounted, "pod 1");
        assert_message(&mounted, "no such thing");

        for pod in fixture.pods("mc", 2).await.values() {
            assert!(
                pod.spec
                    .as_ref()
                    .unwrap()
                    .volumes
                    .iter()
                    .flatten()
                    .all(|volume| volume.image.is_none())
            );
            fixture.run_pod(pod).await;
        }
        let ready = fixture.when_condition("mc", "Ready", "True").await;
        assert_eq!(
            condition(&ready, "ViewMounted")["status"],
            "False",
            "the condition stays"
        );
        assert_eq!(until("the Job is there", view).await, second);
        operator.stop().await;
    });
}

/// The node mounts the view's image after all, before the operator could delete the Job.
#[test]
fn begun_program_is_not_repeated_to_copy_the_view() {
    if kubernetes_minor() < 35 {
        return;
    }
    test("mounts-late", async |fixture| {
        let calls = Calls::with_faults(|call: &Call| {
            let deletes_job = call.verb == "delete" && call.resource == "jobs";
            deletes_job.then_some(Fault::Answer(503))
        });
        let operator = fixture.operator_of(calls, |_| {}).await;
        let flux = json!({ "container": { "source": "imageVolume" } });
        fixture
            .create("mc", json!({ "size": 2, "backoffLimit": 0, "flux": flux }))
            .await;
        let pods = fixture.pods("mc", 2).await;
        let job = fixture.job("mc").await.uid();
        fixture.cannot_mount(&pods[&1]).await;
        fixture.when_condition("mc", "ViewMounted", "False").await;
        operator.stop().await;
        fixture.mounts_after_all(&pods[&1]).await;
        for pod in pods.values() {
            fixture.run_pod(pod).await;
        }
        fixture
            .end_pod(&pods[&0], 7, "Error", &agent_message("program", 7, json!({})))
            .await;
        let operator = fixture.operator().await;
        let status = fixture.when_finished("mc", "Failed").await;
        assert_eq!(
            (&status["exitCode"], &status["restartCount"]),
            (&json!(7), &Value::Null),
            "{status:#}"
        );
        assert_eq!(condition(&status, "ViewMounted")["status"], "True");
        assert_eq!(fixture.job("mc").await.uid(), job);
        operator.stop().await;
    });
}

/// A node whose runtime cannot mount images counts only if the pods may use it.
#[test]
fn view_is_copied_only_where_pods_may_use_an_old_node() {
    test_alone(&[], async |fixture, kubeconfig| {
        let nodes: Api<Node> = Api::all(fixture.client.clone());
        for (name, os, runtime, taints) in [
            ("new", "linux", "containerd://2.2.9", json!([])),
            // As in a cluster with Windows nodes. Only the taint keeps the pods away.
            (
                "old",
                "windows",
                "containerd://1.6.20",
                json!([{ "key": "os", "value": "windows", "effect": "NoSchedule" }]),
            ),
        ] {
            let node = json!({
                "metadata": { "name": name, "labels": { "kubernetes.io/os": os, "kubernetes.io/arch": "amd64" } },
                "spec": { "taints": taints },
                "status": { "nodeInfo": {
                    "architecture": "amd64", "operatingSystem": os, "kubeletVersion": "v1.35.4",
                    "containerRuntimeVersion": runtime, "bootID": "", "kernelVersion": "", "kubeProxyVersion": "",
                    "machineID": "", "osImage": "", "systemUUID": "",
                } },
            });
            let node = serde_json::from_value(node).unwrap();
            nodes.create(&PostParams::default(), &node).await.unwrap();
        }
        let operator = fixture.operator_as(&kubeconfig, Calls::default(), |_| {}).await;
        let view =
            async |name: &str| fixture.job(name).await.annotations()["flux-framework.org/view"].clone();
        fixture.create("mc", json!({ "size": 1 })).await;
        let tolerations = json!([{ "key": "os", "operator": "Exists" }]);
        let tolerant = json!({ "size": 1, "pod": { "tolerations": tolerations } });
        fixture.create("tolerant", tolerant).await;
        let is_mounted = kubernetes_minor() >= 35;
        let expected = if is_mounted { "imageVolume" } else { "copy" };
        assert_eq!(view("mc").await, expected);
        assert_eq!(view("tolerant").await, "copy");
        if is_mounted {
            let status = fixture.when_condition("tolerant", "ViewMounted", "False").await;
            assert_message(
                &condition(&status, "ViewMounted"),
                "node old (kubelet v1.35.4, containerd://1.6.20)",
            );
        }
        operator.stop().await;
    });
}

#[test]
fn stopped_follower_is_replaced_and_failed_one_ends_the_job() {
    test("follower", async |fixture| {
        let _operator = fixture.operator().await;
        fixture.create("mc", json!({ "size": 2 })).await;
        let pods = fixture.run_pods("mc", 2).await;
        fixture
            .end_pod(&pods[&1], flux_shared::exit::REPLACE.into(), "Error", "")
            .await;
        let replacement = until("the follower was replaced", async || {
            let all = fixture.all_pods("mc").await;
            all.into_iter()
                .find(|pod| index(pod) == 1 && pod.uid() != pods[&1].uid())
        })
        .await;
        assert_eq!(
            replacement.annotations()["batch.kubernetes.io/job-index-failure-count"],
            "1"
        );
        fixture.run_pod(&replacement).await;
        let status = fixture.when_condition("mc", "Ready", "True").await;
        assert_eq!(condition(&status, "Failed")["status"], "False", "{status:#}");
        fixture.end_pod(&replacement, 137, "OOMKilled", "").await;
        let status = fixture.when_finished("mc", "Failed").await;
        assert_eq!(
            (&status["failedIndex"], &status["reason"]),
            (&json!(1), &json!("OOMKilled")),
            "{status:#}"
        );
    });
}

#[test]
fn evicted_follower_is_replaced_and_nothing_fails() {
    test("evicted", async |fixture| {
        let operator = fixture.operator().await;
        fixture
            .create("mc", json!({ "size": 2, "backoffLimit": 0 }))
            .await;
        fixture.run_pods("mc", 2).await;
        fixture.when_condition("mc", "Ready", "True").await;
        for _ in 0..2 {
            let pod = fixture.pods("mc", 2).await[&1].clone();
            fixture
                .api::<Pod>()
                .evict(&pod.name_any(), &EvictParams::default())
                .await
                .unwrap();
            // Plays the kubelet: the pod was told to end.
            fixture.end_pod(&pod, 143, "Error", "").await;
            let replacement = until("the follower is replaced", async || {
                let all = fixture.all_pods("mc").await;
                all.into_iter().find(|other| {
                    index(other) == 1
                        && other.uid() != pod.uid()
                        && !test_support::api_server::has_ended(other)
                })
            })
            .await;
            let status = fixture.status("mc").await;
            assert_eq!(condition(&status, "Failed")["status"], "False", "{status:#}");
            fixture.run_pod(&replacement).await;
            let is_whole =
                |status: &serde_json::Value| status["readySize"] == 2 && status["exitCode"].is_null();
            fixture.when("mc", "whole", is_whole).await;
        }
        let status = fixture.status("mc").await;
        assert_eq!(
            status["restartCount"],
            serde_json::Value::Null,
            "the MiniCluster has not restarted: {status:#}"
        );
        operator.stop().await;
    });
}

#[test]
fn evicted_lead_restarts_with_followers_that_left_with_it() {
    test("evicted-lead", async |fixture| {
        let operator = fixture.operator().await;
        fixture.create("mc", json!({ "size": 2 })).await;
        let pods = fixture.run_pods("mc", 2).await;
        fixture.when_condition("mc", "Ready", "True").await;
        let (job, key) = (
            fixture.job("mc").await.uid(),
            fixture.secret("mc", "curve").await.unwrap().data,
        );
        fixture
            .api::<Pod>()
            .evict(&pods[&0].name_any(), &EvictParams::default())
            .await
            .unwrap();
        fixture.end_pod(&pods[&1], 0, "Completed", "").await;
        fixture.end_pod(&pods[&0], 143, "Error", "").await;
        until("there is another Job", async || {
            fixture.reap("mc").await;
            fixture
                .find::<Job>("mc")
                .await
                .filter(|current| current.uid() != job)
        })
        .await;
        let pods = fixture.run_pods("mc", 2).await;
        fixture.when_condition("mc", "Ready", "True").await;
        assert_eq!(fixture.secret("mc", "curve").await.unwrap().data, key);
        fixture.end_pod(&pods[&0], 0, "Completed", "").await;
        let status = fixture.when_finished("mc", "Complete").await;
        assert_eq!(status["exitCode"], 0, "{status:#}");
        operator.stop().await;
    });
}
