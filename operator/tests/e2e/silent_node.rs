//! A node that stops answering while its pods keep running. The test runs alone (`.ci/e2e`): no other pod
//! starts meanwhile.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::restarts::{Counter, Runs, SLEEPS_THEN_SUCCEEDS};
use test_support::node::{app_image, test};

/// How long the kubelet is silent: longer than Kubernetes waits (50 s since 1.32, 40 s before), and shorter
/// than the time until pods are evicted (300 s after that).
const SILENCE: Duration = Duration::from_secs(100);

#[test]
#[ignore = "stops the node's kubelet: `.ci/e2e` runs it last and alone"]
fn silent_node_is_named_and_nothing_runs_twice() {
    test("silent-node", async |fixture| {
        let counter = Counter::new(&fixture).await;
        counter
            .create("stays", 2, json!({ "maxRestarts": 2 }), SLEEPS_THEN_SUCCEEDS)
            .await;
        let ends = Runs {
            first: "sleep 30; exit 5",
            later: "exit 0",
        };
        counter
            .create(
                "ends-meanwhile",
                2,
                json!({ "backoffLimit": 2, "maxRestarts": 2 }),
                ends,
            )
            .await;
        let both = ["stays", "ends-meanwhile"];
        for name in both {
            counter.started(name, 1).await;
            fixture.when_condition(name, "Ready").await;
        }

        let signal = |name| {
            format!(
                "for folder in $(grep -lx kubelet /proc/[0-9]*/comm); do folder=${{folder%/comm}}; kill -{name} ${{folder#/proc/}}; done"
            )
        };
        // Without the last `sleep`, the container would restart, and stop the kubelet again.
        let command = format!(
            "sleep 3; {}; sleep {}; {}; sleep 3600",
            signal("STOP"),
            SILENCE.as_secs(),
            signal("CONT")
        );
        let stopper: Value = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "stopper" },
            "spec": {
                "hostPID": true,
                "nodeSelector": { "kubernetes.io/hostname": counter.node },
                "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "stopper", "image": app_image(), "command": ["sh", "-c", command],
                    "securityContext": { "privileged": true },
                }],
            },
        });
        fixture.create_object::<Pod>(stopper).await;

        for name in both {
            let status = fixture
                .until(&format!("{name} reports its silent node"), async || {
                    let status = fixture.status(name).await;
                    let is_ready = status["readySize"].as_u64().is_some_and(|ready| ready > 0);
                    (status["reason"] == "NodeLost" && !is_ready).then_some(status)
                })
                .await;
            assert!(
                status["message"].as_str().unwrap().contains(&counter.node),
                "{status:#}"
            );
            assert!(
                status["exitCode"].is_null() && status["phase"] != "Failed",
                "{status:#}"
            );
        }

        let status = counter.ended("ends-meanwhile", "Failed", 1, 0).await;
        assert_eq!(
            (&status["exitCode"], &status["failedIndex"]),
            (&json!(5), &json!(0)),
            "{status:#}"
        );
        fixture
            .until("the other one runs on", async || {
                let status = fixture.status("stays").await;
                (status["reason"] != "NodeLost" && status["readySize"] == 2).then_some(())
            })
            .await;
        assert_eq!(counter.starts("stays"), 1);
        assert!(fixture.status("stays").await["restarts"].is_null());
    });
}
