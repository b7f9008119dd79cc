//! A node that is off or cut off while pods on it are evicted, deleted or ended. Kubernetes removes none of them until
//! the node is back, is deleted, or is marked as certainly off: until then nobody knows whether a program runs there.

use serde_json::{Value, json};

use crate::machines::{cut, kubectl, node, power_off, power_on, taint_out_of_service};
use crate::stage::{ExpectedEnd, Program, Stage, sleep, test, until};
use crate::timeline::now;
use test_support::node::has_flux_itself;

/// Kubernetes needs 50 s to see that a node is gone. A busy machine gets 25 s more.
const NOTICED: f64 = 75.0;
const EVICTED_AFTER: u32 = 5;

/// Checks that the status names the node, within `NOTICED` after its loss.
async fn says_node_lost(stage: &Stage, name: &str, lost_at: f64, worker: u8) {
    let is_named = |status: &Value| {
        let message = status["message"].as_str().unwrap_or_default();
        status["reason"] == "NodeLost" && message.contains(&node(worker))
    };
    let seconds = stage
        .until_status(name, lost_at, "NodeLost, with the node's name", is_named)
        .await;
    assert!(seconds < NOTICED, "{seconds}\n{}", stage.account(name));
}

#[test]
fn evicted_pods_restart_once_when_their_node_is_back() {
    test("evicted", async |stage| {
        let lead = Program {
            name: "lead",
            lead_on: 2,
            evicted_after: EVICTED_AFTER,
            ..Program::default()
        };
        let of_two = Program {
            name: "of-two",
            followers_on: &[3],
            ..lead.clone()
        };
        let follower = Program {
            name: "follower",
            lead_on: 3,
            followers_on: &[2],
            // It must still run after the 90 s below.
            first_run: 150,
            evicted_after: EVICTED_AFTER,
            ..Program::default()
        };
        stage.create_all(&[&lead, &of_two, &follower]).await;
        let lost_at = now();
        power_off(2).await;
        for name in ["lead", "of-two", "follower"] {
            says_node_lost(stage, name, lost_at, 2).await;
        }
        // The pods are evicted 55 s after the loss. Nothing may start while nobody knows whether the lead
        // runs.
        until(lost_at, 90.0).await;
        for name in ["lead", "of-two", "follower"] {
            stage.history(name).assert_starts(1);
            let status = stage.fixture.status(name).await;
            assert_eq!(status["phase"], "Running", "{status:#}");
        }
        power_on(2).await;
        stage
            .ended("lead", &ExpectedEnd::after_restart(&["LeadLost"]))
            .await;
        stage
            .ended("of-two", &ExpectedEnd::after_restart(&["LeadLost"]))
            .await;
        stage.ended("follower", &ExpectedEnd::undisturbed()).await;
        stage.assert_untouched("follower");
    });
}

#[test]
fn restart_goes_on_elsewhere_when_the_node_is_out_of_service() {
    test("out-of-service", async |stage| {
        let with = |name, spec| Program {
            name,
            lead_on: 2,
            may_use: &[3],
            evicted_after: EVICTED_AFTER,
            spec,
            ..Program::default()
        };
        let (may, never) = (
            with("may", json!({})),
            with("never", json!({ "backoffLimit": 0 })),
        );
        // The follower of this one still runs when the lead is lost.
        let of_two = Program {
            followers_on: &[1],
            ..with("of-two", json!({}))
        };
        stage.create_all(&[&may, &of_two, &never]).await;
        let lost_at = now();
        power_off(2).await;
        says_node_lost(stage, "may", lost_at, 2).await;
        let remedy = |status: &Value| {
            status["message"]
                .as_str()
                .is_some_and(|message| message.contains("out-of-service"))
        };
        stage.until_status("may", lost_at, "the remedy", remedy).await;
        stage.history("may").assert_starts(1);
        taint_out_of_service(2, true).await;
        let tainted_at = now();
        for name in ["may", "of-two"] {
            stage
                .ended(name, &ExpectedEnd::after_restart(&["LeadLost"]))
                .await;
            let seconds = stage.history(name).runs()[1].from - tainted_at;
            eprintln!("{name}: its program starts again {seconds:.1} s after the taint");
            assert!((0.0..45.0).contains(&seconds), "{}", stage.account(name));
        }
        let lost = ExpectedEnd {
            phase: "Failed",
            code: None,
            reason: Some("LeadLost"),
            starts: 1,
            restarts: &[],
        };
        let status = stage.ended("never", &lost).await;
        assert!(
            status["message"].as_str().unwrap().contains("backoffLimit is 0"),
            "{status:#}"
        );
        taint_out_of_service(2, false).await;
        power_on(2).await;
        sleep(10.0).await;
        for name in ["may", "of-two"] {
            stage.history(name).assert_starts(2);
        }
        stage.history("never").assert_starts(1);
    });
}

#[test]
fn ended_job_is_reported_while_a_followers_node_is_dead() {
    test("decided", async |stage| {
        let ends = |name, code| Program {
            name,
            lead_on: 3,
            followers_on: &[2],
            first_run: 30,
            code,
            ..Program::default()
        };
        let (well, badly) = (ends("well", 0), ends("badly", 5));
        stage.create_all(&[&well, &badly]).await;
        let across = Program {
            name: "across",
            tasks: 2,
            spec: json!({ "maxRestarts": 0 }),
            first_run: 3600,
            ..ends("across", 0)
        };
        let with_flux = has_flux_itself("a job that loses a follower's node for good");
        if with_flux {
            stage.create(&across).await;
            stage.until_running(&across, 1).await;
        }
        power_off(2).await;
        let lost_at = now();
        for (program, phase) in [(&well, "Completed"), (&badly, "Failed")] {
            let reason = if phase == "Failed" {
                Some("NonZeroExitCode")
            } else {
                None
            };
            let end = ExpectedEnd {
                phase,
                code: Some(program.code),
                reason,
                starts: 1,
                restarts: &[],
            };
            stage.ended(program.name, &end).await;
            let ended_at = stage.container_ended_at(program.name).await;
            let seconds = stage
                .until_status(program.name, ended_at, phase, |status| status["phase"] == phase)
                .await;
            assert!(seconds < 10.0, "{seconds}\n{}", stage.account(program.name));
        }
        if with_flux {
            let seconds = stage
                .until_status("across", lost_at, "Failed", |status| status["phase"] == "Failed")
                .await;
            assert!(seconds < NOTICED, "{seconds}\n{}", stage.account("across"));
            let status = stage.fixture.status("across").await;
            assert_eq!(status["reason"], "PodLost", "{status:#}");
        }
        power_on(2).await;
        sleep(15.0).await;
        for name in ["well", "badly"] {
            stage.history(name).assert_starts(1);
        }
        let status = stage.fixture.status("badly").await;
        assert_eq!(
            status["reason"], "NonZeroExitCode",
            "a final reason stays: {status:#}"
        );
    });
}

#[test]
fn same_name_waits_for_the_old_pod_on_a_node_that_is_cut_off() {
    test("same-name", async |stage| {
        let program = Program {
            name: "twin",
            lead_on: 1,
            may_use: &[2],
            ..Program::default()
        };
        stage.create_all(&[&program]).await;
        let cut_off = cut(1, "api", 60);
        // `cut` does not wait until its script has cut the node off.
        sleep(2.0).await;
        kubectl(&[
            "--namespace",
            &stage.fixture.namespace,
            "delete",
            "minicluster",
            "twin",
        ])
        .await;
        let submitted_at = now();
        stage.submit(&program).await;
        let names_what_runs = |status: &Value| {
            status["message"]
                .as_str()
                .is_some_and(|message| message.contains("twin-0") && message.contains(&node(1)))
        };
        stage
            .until_status(
                "twin",
                submitted_at,
                "that a pod of the earlier one may run",
                names_what_runs,
            )
            .await;
        stage.history("twin").assert_starts(1);
        cut_off.end().await;
        // Both MiniClusters write the same account (`stage.rs`), so the start of the second one counts as start 2,
        // although nothing was restarted.
        stage
            .ended(
                "twin",
                &ExpectedEnd {
                    starts: 2,
                    ..ExpectedEnd::undisturbed()
                },
            )
            .await;
    });
}
