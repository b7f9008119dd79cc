//! A node that an administrator drains.

use serde_json::json;

use crate::machines::{cordon, kubectl, node};
use crate::stage::{ExpectedEnd, Program, sleep, test};
use crate::timeline::now;
use test_support::node::has_flux_itself;

/// Like the drain in `examples/restarts/README.md`, but it evicts the pods of all MiniClusters.
async fn drain(worker: u8) {
    let words = [
        "--ignore-daemonsets",
        "--delete-emptydir-data",
        "--pod-selector=flux-framework.org/minicluster",
        "--timeout=120s",
    ];
    kubectl(&[&["drain", &node(worker)], words.as_slice()].concat()).await;
}

#[test]
fn drained_follower_is_replaced_and_the_leads_job_goes_on() {
    test("drain-follower", async |stage| {
        let on_lead = Program {
            name: "on-lead",
            lead_on: 3,
            followers_on: &[2],
            may_use: &[1],
            first_run: 60,
            ..Program::default()
        };
        stage.create_all(&[&on_lead]).await;
        let across = Program {
            name: "across",
            tasks: 2,
            first_run: 3600,
            spec: json!({ "maxRestarts": 1 }),
            ..on_lead
        };
        let with_flux = has_flux_itself("a job whose follower is drained");
        if with_flux {
            stage.create_all(&[&across]).await;
        }
        drain(2).await;
        stage
            .fixture
            .until("the follower is on worker-1", async || {
                (stage.node_of("on-lead", "1").await == "worker-1"
                    && stage.fixture.status("on-lead").await["readySize"] == 2)
                    .then_some(())
            })
            .await;
        stage.ended("on-lead", &ExpectedEnd::undisturbed()).await;
        stage.assert_untouched("on-lead");
        if with_flux {
            let status = stage
                .ended("across", &ExpectedEnd::after_restart(&["PodLost"]))
                .await;
            let message = status["restarts"][0]["message"].as_str().unwrap();
            assert!(message.contains("worker-2"), "{status:#}");
        }
    });
}

#[test]
fn drained_lead_restarts_on_another_node() {
    test("drain-lead", async |stage| {
        let may = Program {
            name: "may",
            lead_on: 2,
            may_use: &[1],
            ..Program::default()
        };
        // The drain does not evict the follower of this one. A restart of the lead replaces it, too.
        let of_two = Program {
            name: "of-two",
            followers_on: &[3],
            ..may.clone()
        };
        let never = Program {
            name: "never",
            lead_on: 2,
            spec: json!({ "backoffLimit": 0 }),
            ..Program::default()
        };
        stage.create_all(&[&may, &of_two, &never]).await;
        let drained_at = now();
        drain(2).await;
        for name in ["may", "of-two"] {
            stage
                .ended(name, &ExpectedEnd::after_restart(&["LeadLost"]))
                .await;
            let seconds = stage.history(name).runs()[1].from - drained_at;
            eprintln!("{name}: its program starts again {seconds:.1} s after the drain began");
            // It takes 33 s on a quiet machine.
            assert!(seconds < 60.0, "{}", stage.account(name));
        }
        assert_eq!(stage.node_of("may", "0").await, "worker-1");
        // Before its pod was gone, the program ended after SIGTERM, so its code is known.
        let lost = ExpectedEnd {
            phase: "Failed",
            code: Some(143),
            reason: Some("LeadLost"),
            starts: 1,
            restarts: &[],
        };
        stage.ended("never", &lost).await;
    });
}

#[test]
fn drained_pod_without_another_node_waits_and_says_why() {
    test("drain-nowhere", async |stage| {
        let program = Program {
            name: "mc",
            lead_on: 2,
            ..Program::default()
        };
        stage.create_all(&[&program]).await;
        let drained_at = now();
        drain(2).await;
        stage.until_reason("mc", drained_at, "Unschedulable").await;
        sleep(2.0).await;
        stage.history("mc").assert_starts(1);
        cordon(&stage.fixture.client, 2, false).await;
        stage
            .ended("mc", &ExpectedEnd::after_restart(&["LeadLost"]))
            .await;
    });
}
