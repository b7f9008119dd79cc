//! Tests that fit into four minutes.

use serde_json::json;

use crate::long::reboot;
use crate::machines::{cut, power_off, power_on};
use crate::stage::{ExpectedEnd, Program, sleep, test};

#[test]
fn tasks_on_three_nodes_exchange_messages() {
    test("exchange", async |stage| {
        let fixture = &stage.fixture;
        let spec = json!({ "size": 3, "tasks": 3, "pod": { "nodeAffinity": { "kubernetes.io/hostname": ["worker-1", "worker-2", "worker-3"] } } });
        stage
            .apply(
                "hello",
                "sh -c 'sleep 3; echo hello from $(hostname)'",
                spec.clone(),
            )
            .await;
        stage
            .apply("ring", "bash /account/exchange.sh ring 3 100", spec)
            .await;
        // Look before the end: when the lead has ended, the Job controller deletes followers that still run.
        for name in ["hello", "ring"] {
            let mut nodes = stage.until_placed(name, 3).await;
            nodes.sort();
            assert_eq!(nodes, ["worker-1", "worker-2", "worker-3"], "{name}");
        }
        for (name, line) in [
            ("hello", "hello from hello-2"),
            ("ring", "100 rounds through 3 pods"),
        ] {
            let status = fixture.when_finished(name).await;
            assert_eq!(
                (&status["phase"], &status["exitCode"]),
                (&json!("Completed"), &json!(0)),
                "{status:#}"
            );
            let log = fixture.lead_log(name).await;
            assert_eq!(log.lines().filter(|printed| *printed == line).count(), 1, "{log}");
        }
    });
}

#[test]
fn power_loss_and_return_is_never_the_users_failure() {
    reboot::reboots_of_each_kind_of_pod("power-loss", async || {
        power_off(2).await;
        sleep(10.0).await;
        power_on(2).await;
    });
}

#[test]
fn job_goes_on_when_two_nodes_lose_each_other_for_14_s() {
    test("cut-14", async |stage| {
        // Brokers that reconnect after a cut of 14 s may have lost messages of that time (`cut_between_brokers` in
        // `chaos/schedule.rs`). If a job ended during the cut, Flux could miss its end. So both jobs end after it.
        let both = [
            Program {
                name: "across",
                followers_on: &[2],
                tasks: 2,
                first_run: 30,
                ..Program::default()
            },
            Program {
                name: "on-lead",
                followers_on: &[2],
                first_run: 30,
                ..Program::default()
            },
        ];
        stage.create_all(&[&both[0], &both[1]]).await;
        cut(1, "2", 14).end().await;
        for program in &both {
            stage.ended(program.name, &ExpectedEnd::undisturbed()).await;
            stage.assert_untouched(program.name);
        }
    });
}
