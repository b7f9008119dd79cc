//! A node that is back before its pods are evicted. The container runtime then finds containers that have
//! ended, and nobody knows how they ended.

use serde_json::{Value, json};

use crate::machines::{make_image, power_on, shut_down};
use crate::stage::{ExpectedEnd, Program, pod_template, sleep, test};
use crate::timeline::now;
use test_support::node::{app_image, has_flux_itself};

/// worker-2 goes down and comes back while it has a lead, a follower without a task, and followers with one.
/// The job `together` ends with its first failed task, as MPI jobs do, before the broker of that task has left.
pub fn reboots_of_each_kind_of_pod(name: &str, reboot: impl AsyncFnOnce()) {
    test(name, async |stage| {
        let lead = Program {
            name: "lead",
            lead_on: 2,
            ..Program::default()
        };
        let never = Program {
            name: "never",
            spec: json!({ "backoffLimit": 0 }),
            lead_on: 2,
            ..Program::default()
        };
        let follower = Program {
            name: "follower",
            lead_on: 3,
            followers_on: &[2],
            first_run: 60,
            ..Program::default()
        };
        stage.create_all(&[&lead, &never, &follower]).await;
        let across = |name, restarts| Program {
            name,
            lead_on: 3,
            followers_on: &[2],
            tasks: 2,
            spec: json!({ "maxRestarts": restarts }),
            ..Program::default()
        };
        let (may, may_not) = (across("may", 1), across("may-not", 0));
        let together = Program {
            spec: json!({ "maxRestarts": 1, "flux": { "optionFlags": "-o exit-on-error" } }),
            ..across("together", 1)
        };
        let with_flux = has_flux_itself("a job that loses a follower's node");
        if with_flux {
            stage.create_all(&[&may, &may_not, &together]).await;
        }
        reboot().await;

        stage
            .ended("lead", &ExpectedEnd::after_restart(&["LeadLost"]))
            .await;
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
        stage.ended("follower", &ExpectedEnd::undisturbed()).await;
        stage.assert_untouched("follower");
        if with_flux {
            for name in ["may", "together"] {
                stage.ended(name, &ExpectedEnd::after_restart(&["PodLost"])).await;
            }
            let status = stage.fixture.when_finished("may-not").await;
            assert_eq!(
                (&status["phase"], &status["reason"]),
                (&json!("Failed"), &json!("PodLost")),
                "{status:#}"
            );
            stage.history("may-not").assert_starts(1);
        }
    });
}

#[test]
fn orderly_reboot_is_never_the_users_failure() {
    reboots_of_each_kind_of_pod("reboot", async || {
        shut_down(2).await;
        sleep(5.0).await;
        power_on(2).await;
    });
}

/// With restartPolicy Never, the kubelet starts nothing in a pod whose first init container had ended before the
/// reboot. Another init container without its image keeps the pods in that state until the reboot.
#[test]
fn reboot_while_pods_start_replaces_them() {
    let folder =
        std::env::var("E2E_APP_FOLDER").expect("E2E_APP_FOLDER must name the root folder of an image");
    // The process ID makes the name new: no earlier run has left this image on a node.
    let image = format!("e2e/late-{}:1", std::process::id());
    let with_late_init = |program: Program| {
        let mut template = pod_template(&program);
        template["initContainers"] = json!([
            { "name": "first", "image": app_image(), "command": ["true"] },
            { "name": "late", "image": image, "command": ["true"] },
        ]);
        Program {
            spec: json!({ "podTemplate": { "spec": template } }),
            ..program
        }
    };
    test("starting", async |stage| {
        make_image(3, &image, &folder).await;
        let lead = with_late_init(Program {
            name: "lead",
            lead_on: 2,
            first_run: 3,
            ..Program::default()
        });
        let follower = with_late_init(Program {
            name: "follower",
            lead_on: 3,
            followers_on: &[2],
            tasks: 2,
            first_run: 3,
            ..Program::default()
        });
        let created_at = now();
        for program in [&lead, &follower] {
            stage.create(program).await;
        }
        for name in ["lead", "follower"] {
            let names_image = |status: &Value| {
                let message = status["message"].as_str().unwrap_or_default();
                message.contains("worker-2") && message.contains(&image)
            };
            stage
                .until_status(name, created_at, "node and image", names_image)
                .await;
        }
        shut_down(2).await;
        let rebooted_at = now();
        power_on(2).await;
        make_image(2, &image, &folder).await;
        for name in ["lead", "follower"] {
            stage.until_reason(name, rebooted_at, "NodeRestarted").await;
        }
        let restarted_before_it_started = ExpectedEnd {
            restarts: &["LeadLost"],
            ..ExpectedEnd::undisturbed()
        };
        stage.ended("lead", &restarted_before_it_started).await;
        stage.ended("follower", &ExpectedEnd::undisturbed()).await;
    });
}
