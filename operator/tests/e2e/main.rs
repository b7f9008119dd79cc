//! MiniClusters on a cluster with nodes, where pods really run: the one that KUBECONFIG names, with the
//! operator installed (`.ci/e2e` does that). E2E_APP_IMAGE names an image with a shell, E2E_FLUX_IMAGE one with
//! Flux as well.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod examples;
mod gpus;
mod hostile;
mod pasted;
mod restarts;
mod sdk;
mod silent_node;
mod v1alpha1;

use std::time::{Duration, Instant};

use flux_shared::crd::v1alpha2::MiniCluster;
use futures::{AsyncBufReadExt, TryStreamExt};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use kube::ResourceExt;
use kube::api::{DeleteParams, LogParams};
use serde_json::json;
use test_support::node::{Fixture, test};

/// Deleting a running MiniCluster takes 4.3 s (`docs/migrating.md`). A busy machine gets 8 s, which is far less than
/// the grace period of 30 s.
const STOP: Duration = Duration::from_secs(8);

#[test]
fn hello_world_prints_live_and_ends_with_0() {
    test("hello", async |fixture| {
        let command = "sh -c 'echo hello from the job; sleep 5; echo good bye'";
        fixture.create("hello", 2, json!({ "command": command })).await;
        let lead = fixture
            .until("the lead runs", async || {
                let lead = fixture.lead("hello").await?;
                let status = lead
                    .status
                    .as_ref()?
                    .container_statuses
                    .as_ref()?
                    .first()?
                    .state
                    .as_ref()?;
                (status.running.is_some() || status.terminated.is_some()).then_some(lead)
            })
            .await;
        let parameters = LogParams {
            follow: true,
            ..LogParams::default()
        };
        let log = fixture
            .api::<Pod>()
            .log_stream(&lead.name_any(), &parameters)
            .await
            .unwrap();
        let mut lines = log.lines();
        let mut all = Vec::new();
        let mut hello = None;
        let mut bye = None;
        while let Some(line) = lines.try_next().await.unwrap() {
            hello = hello.or((line == "hello from the job").then(Instant::now));
            bye = bye.or((line == "good bye").then(Instant::now));
            all.push(line);
        }
        let (hello, bye) = (
            hello.unwrap_or_else(|| panic!("{all:#?}")),
            bye.unwrap_or_else(|| panic!("{all:#?}")),
        );
        assert!(
            bye - hello > Duration::from_secs(3),
            "the first line came while the job ran: {all:#?}"
        );

        let status = fixture.when_condition("hello", "Complete").await;
        assert_eq!(
            (&status["exitCode"], &status["phase"]),
            (&json!(0), &json!("Completed")),
            "{status:#}"
        );
        let lead = fixture.lead("hello").await.unwrap();
        assert_eq!(lead.status.unwrap().phase.as_deref(), Some("Succeeded"));
    });
}

/// The operator asks the other pods to end, by an annotation that the kubelet writes into a file of the pod. If
/// they kept running, the Job controller would delete them and their logs.
#[test]
fn pods_keep_their_logs_when_a_snippet_of_another_fails() {
    test("logs", async |fixture| {
        // Pod 1 fails only after the others have had time to print.
        let pre = "echo before of $JOB_COMPLETION_INDEX; [ $JOB_COMPLETION_INDEX != 1 ] || { sleep 3; cat /not/there; }";
        fixture
            .create(
                "logs",
                3,
                json!({ "command": "echo job", "commands": { "pre": pre } }),
            )
            .await;
        let status = fixture.when_condition("logs", "Failed").await;
        let message = status["message"].as_str().unwrap();
        assert!(
            status["failedIndex"] == 1 && message.contains("pre") && message.contains("/not/there"),
            "{status:#}"
        );
        for index in ["0", "1", "2"] {
            let pod = fixture
                .pod("logs", index)
                .await
                .unwrap_or_else(|| panic!("the pod of index {index} is gone"));
            let log = fixture.log(&pod).await;
            assert!(log.contains(&format!("before of {index}")), "{index}: {log}");
        }
    });
}

#[test]
fn delete_while_it_runs_leaves_nothing() {
    test("delete", async |fixture| {
        // The garbage collector looks for new kinds every 30 s, and collects no objects of a kind before
        // that. So the time of the first deletion does not count.
        fixture
            .create("first", 1, json!({ "command": "sleep 3600" }))
            .await;
        fixture.when_condition("first", "JobRequested").await;
        delete(&fixture, "first").await;

        fixture.create("mc", 2, json!({ "command": "sleep 3600" })).await;
        fixture.when_condition("mc", "Ready").await;
        let start = Instant::now();
        delete(&fixture, "mc").await;
        let took = start.elapsed();
        assert!(took < STOP, "it took {took:?}");
    });
}

/// Deletes the only MiniCluster, and waits until nothing is left of it.
async fn delete(fixture: &Fixture, name: &str) {
    fixture
        .api::<MiniCluster>()
        .delete(name, &DeleteParams::default())
        .await
        .unwrap();
    fixture
        .until("nothing is left", async || {
            let all = "app.kubernetes.io/managed-by=flux-framework-flux-operator";
            let left = fixture.list::<Pod>(all).await.len()
                + fixture.list::<Job>(all).await.len()
                + fixture.list::<Service>(all).await.len()
                + fixture.list::<ConfigMap>(all).await.len()
                + fixture.list::<Secret>(all).await.len();
            (left == 0).then_some(())
        })
        .await;
}
