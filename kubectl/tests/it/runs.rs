//! `run`, `wait`, `stop` and `scale`.

use std::time::Duration;

use flux_shared::crd::v1alpha2::MiniCluster;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::user_account::Said;
use crate::user_of;
use test_support::api_server::{Fixture, condition, test, until};

/// Plays the operator: the job of `name` has ended with `code`.
async fn end(fixture: &Fixture, name: &str, code: u8) {
    let condition = |type_: &str, status: bool| {
        json!({ "type": type_, "status": if status { "True" } else { "False" }, "lastTransitionTime": "2026-01-01T00:00:00Z",
            "reason": "Played", "message": "played" })
    };
    let status = json!({ "status": {
        "phase": if code == 0 { "Completed" } else { "Failed" }, "exitCode": code, "reason": "NonZeroExitCode",
        "message": format!("the lead (index 0) ended with exit code {code}"), "size": 0, "readySize": 0,
        "conditions": [condition("JobFinished", true), condition("Complete", code == 0), condition("Failed", code != 0)],
    } });
    let clusters: Api<MiniCluster> = fixture.api();
    clusters
        .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
        .await
        .unwrap();
}

async fn made(fixture: &Fixture, name: &str) {
    until(&format!("{name} is made"), async || {
        fixture.api::<MiniCluster>().get_opt(name).await.unwrap()
    })
    .await;
}

#[test]
fn every_exit_code_is_that_of_run() {
    test("codes", async |fixture| {
        let (fixture, person) = (&fixture, &user_of(&fixture));
        let codes: Vec<u8> = (0..=255).collect();
        for some in codes.chunks(16) {
            let each = some.iter().map(|&code| async move {
                let name = format!("code-{code}");
                let run = person.starts(&["run", "--name", &name, "app:1", "--", "exit", &code.to_string()]);
                made(fixture, &name).await;
                end(fixture, &name, code).await;
                let said = Said::when_over(run).await;
                assert_eq!(said.code, i32::from(code), "{said:?}");
                assert_eq!(said.out, "", "the job's output is all of it");
            });
            futures::future::join_all(each).await;
        }
    });
}

#[test]
fn a_run_says_what_it_waits_for_and_leaves_nothing() {
    test("run", async |fixture| {
        let operator = fixture.operator().await;
        let person = user_of(&fixture);
        let run = person.starts(&[
            "run", "--name", "mc", "--size", "2", "app:1", "--", "sh", "-c", "exit 7",
        ]);
        let pods = fixture.pods("mc", 2).await;
        fixture.run_pod(&pods[&0]).await;
        fixture
            .when("mc", "told that one is ready", |status| status["readySize"] == 1)
            .await;
        fixture.run_pod(&pods[&1]).await;
        fixture.when_condition("mc", "Ready", "True").await;
        let command = fixture.get("mc").await.spec.containers[0].command.clone();
        fixture.end_pod(&pods[&0], 7, "Error", "").await;
        let said = Said::when_over(run).await;
        assert_eq!((said.code, said.out.as_str()), (7, ""), "{said:?}");
        assert_eq!(command.as_deref(), Some("sh -c 'exit 7'"));
        let position = |line: &str| {
            said.err
                .find(line)
                .unwrap_or_else(|| panic!("no `{line}`: {}", said.err))
        };
        let made = position("created MiniCluster mc with 2 pods\n");
        let pods = position("pods: ");
        let up = position("quorum: 2 brokers: the job starts\n");
        let failed = position("mc failed (NonZeroExitCode): ");
        assert!(made < pods && pods < up && up < failed, "{}", said.err);
        assert_eq!(
            said.err[up..].lines().count(),
            2,
            "the end of the pods is no start: {}",
            said.err
        );
        assert!(
            !said.err.contains('\x1b') && !said.err.contains('\r'),
            "plain lines in a pipe: {:?}",
            said.err
        );
        until("nothing is left", async || {
            fixture
                .api::<MiniCluster>()
                .get_opt("mc")
                .await
                .unwrap()
                .is_none()
                .then_some(())
        })
        .await;
        operator.stop().await;
    });
}

/// The pod of a follower on a dead node keeps the Job from ending, but neither `run` nor `wait`.
#[test]
fn run_and_wait_end_while_a_dead_node_keeps_a_pod() {
    test("dead-node", async |fixture| {
        let operator = fixture.operator().await;
        let person = user_of(&fixture);
        let run = person.starts(&[
            "run", "--name", "mc", "--size", "2", "--keep", "app:1", "--", "sh", "-c", "exit 7",
        ]);
        let pods = fixture.pods("mc", 2).await;
        for pod in pods.values() {
            fixture.run_pod(pod).await;
        }
        fixture.when_condition("mc", "Ready", "True").await;
        let wait = person.starts(&["wait", "mc"]);
        fixture.hold_pod(&pods[&1]).await;
        fixture.end_pod(&pods[&0], 7, "Error", "").await;
        for program in [run, wait] {
            let said = Said::when_over(program).await;
            assert_eq!(said.code, 7, "{said:?}");
        }
        let job = serde_json::to_value(fixture.job("mc").await).unwrap();
        assert_ne!(
            condition(&job["status"], "Failed")["status"],
            "True",
            "the Job waits for its pod"
        );
        fixture.release_pod(&pods[&1]).await;
        operator.stop().await;
    });
}

#[test]
fn kept_and_detached_runs_stay() {
    test("stays", async |fixture| {
        let person = user_of(&fixture);
        let detached = person.says(&["run", "--detach", "--size", "3", "app:1"]).await;
        assert_eq!(detached.code, 0, "{detached:?}");
        let name = detached.out.trim();
        assert!(
            name.starts_with("run-") && fixture.get(name).await.spec.size == 3,
            "{detached:?}"
        );
        let whole = person
            .says(&["run", "--detach", "-o", "json", "--name", "whole", "app:1"])
            .await;
        let whole: Value = serde_json::from_str(&whole.out).unwrap();
        assert_eq!(whole["metadata"]["name"], "whole");

        let run = person.starts(&["run", "--keep", "--name", "kept", "app:1", "--", "true"]);
        made(&fixture, "kept").await;
        end(&fixture, "kept", 0).await;
        assert_eq!(Said::when_over(run).await.code, 0);
        assert!(!fixture.get("kept").await.spec.cleanup);
        let again = person.says(&["run", "--name", "kept", "-d", "app:1"]).await;
        assert_eq!(again.code, 1);
        assert!(
            again
                .err
                .contains("the name is taken; choose another with --name"),
            "{again:?}"
        );
    });
}

#[test]
fn invalid_run_is_rejected_before_anything_is_created() {
    test("wrong", async |fixture| {
        let person = user_of(&fixture);
        let said = person
            .says(&["run", "--size", "0", "--tasks", "-1", "-d", "app:1"])
            .await;
        assert_eq!(said.code, 2, "clap takes -1 for an option: {said:?}");
        let said = person
            .says(&["run", "--size", "0", "--tasks=-1", "-d", "app:1"])
            .await;
        assert_eq!(said.code, 1);
        assert!(
            said.err.contains("spec.size: ") && said.err.contains("spec.tasks: "),
            "{said:?}"
        );
        let said = person.says(&["run", "app:1"]).await;
        assert!(
            said.code == 1 && said.err.contains("give a command after `--`"),
            "{said:?}"
        );
        assert!(
            fixture
                .api::<MiniCluster>()
                .list(&ListParams::default())
                .await
                .unwrap()
                .items
                .is_empty()
        );
    });
}

#[test]
fn wait_ends_as_the_job_did() {
    test("wait", async |fixture| {
        let person = user_of(&fixture);
        fixture.create("mc", json!({})).await.unwrap();
        let too_long = person.says(&["wait", "mc", "--timeout", "1"]).await;
        assert_eq!(too_long.code, 124, "{too_long:?}");
        let (finished, ready) = (
            person.starts(&["wait", "mc"]),
            person.starts(&["wait", "mc", "--for=ready"]),
        );
        end(&fixture, "mc", 77).await;
        assert_eq!(Said::when_over(finished).await.code, 77);
        assert_eq!(Said::when_over(ready).await.code, 1, "it never will be");
        let deleted = person.starts(&["wait", "mc", "--for=deleted"]);
        fixture
            .api::<MiniCluster>()
            .delete("mc", &Default::default())
            .await
            .unwrap();
        assert_eq!(Said::when_over(deleted).await.code, 0);
        let gone = person.says(&["wait", "mc"]).await;
        assert!(
            gone.code == 1 && gone.err.contains("\"mc\" not found"),
            "{gone:?}"
        );
    });
}

#[test]
fn scale_changes_the_size() {
    test("scale", async |fixture| {
        let person = user_of(&fixture);
        fixture
            .create("mc", json!({ "size": 1, "maxSize": 4 }))
            .await
            .unwrap();
        let said = person.says(&["scale", "mc", "3"]).await;
        assert_eq!((said.code, fixture.get("mc").await.spec.size), (0, 3), "{said:?}");
    });
}

/// Sends what Ctrl-C sends.
pub fn interrupt(child: &tokio::process::Child) {
    send("-INT", child);
}

pub fn send(signal: &str, child: &tokio::process::Child) {
    let pid = child.id().unwrap().to_string();
    assert!(
        std::process::Command::new("kill")
            .args([signal, &pid])
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn stop_before_start_stops_pods_without_delete_permission() {
    test("ctrl-c", async |fixture| {
        let operator = fixture.operator().await;
        let person = user_of(&fixture);
        let mut run = person.starts(&["run", "--name", "mc", "app:1", "--", "true"]);
        fixture.pods("mc", 1).await;
        // It listens from when it says what it waits for.
        let mut lines = tokio::io::BufReader::new(run.stderr.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("pods: ") {
            line.clear();
            assert!(
                tokio::io::AsyncBufReadExt::read_line(&mut lines, &mut line)
                    .await
                    .unwrap()
                    > 0
            );
        }
        interrupt(&run);
        let mut rest = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut lines, &mut rest)
            .await
            .unwrap();
        assert_eq!(run.wait().await.unwrap().code(), Some(130), "{rest}");
        assert!(
            rest.contains("shutting down mc; press Ctrl-C again")
                && rest.contains("suspended mc, which now has no pods"),
            "{rest}"
        );
        assert_eq!(fixture.get("mc").await.spec.suspend, Some(true));
        operator.stop().await;
    });
}

#[test]
fn a_run_that_somebody_deletes_is_no_success() {
    test("deleted", async |fixture| {
        let person = user_of(&fixture);
        let run = person.starts(&["run", "--name", "mc", "app:1", "--", "true"]);
        made(&fixture, "mc").await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        fixture
            .api::<MiniCluster>()
            .delete("mc", &Default::default())
            .await
            .unwrap();
        let said = Said::when_over(run).await;
        assert!(
            said.code == 1
                && said
                    .err
                    .contains("was deleted before its job had ended, not by this command"),
            "{said:?}"
        );
    });
}

#[test]
fn a_file_s_minicluster_runs_with_what_the_options_change() {
    test("file", async |fixture| {
        let person = user_of(&fixture);
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../examples/hello-world/minicluster.yaml"
        );
        let said = person
            .says(&["run", "-d", "--from", file, "--size", "2", "--name", "mine"])
            .await;
        assert_eq!(said.code, 0, "{said:?}");
        let made = fixture.get("mine").await;
        assert_eq!((made.spec.size, made.spec.tasks), (2, 4));
        assert_eq!(
            made.spec.containers[0].command.as_deref(),
            Some("echo hello world")
        );
        assert_eq!(made.name_any(), "mine");
    });
}

#[test]
fn run_says_that_no_operator_works_on_it() {
    test("no-operator", async |fixture| {
        let person = user_of(&fixture);
        let mut run = person.starts(&["run", "--name", "mc", "app:1", "--", "true"]);
        let mut lines = tokio::io::BufReader::new(run.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("the operator is not running") {
            line.clear();
            let read = tokio::io::AsyncBufReadExt::read_line(&mut lines, &mut line);
            assert!(crate::user_account::in_time("it says so", read).await.unwrap() > 0);
        }
        run.kill().await.unwrap();
    });
}

/// The deletion may be seen before the answer to the request that deletes.
#[test]
fn interrupted_run_exits_130_when_its_pods_have_not_started() {
    test("interrupted", async |fixture| {
        let operator = fixture.operator().await;
        let rights = [crate::user_account::RIGHTS, &[("miniclusters", "delete")]].concat();
        let rights: Vec<(&str, &str)> = rights
            .into_iter()
            .map(|(what, verbs)| {
                if what == "miniclusters" {
                    ("miniclusters.flux-framework.org", verbs)
                } else {
                    (what, verbs)
                }
            })
            .collect();
        let person = crate::user_with(&fixture, "deleter", &rights);
        for number in 0..6 {
            let name = format!("mc{number}");
            let run = person.starts(&["run", "--name", &name, "app:1", "--", "true"]);
            fixture.pods(&name, 1).await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            interrupt(&run);
            let said = Said::when_over(run).await;
            assert_eq!(said.code, 130, "{said:?}");
            assert!(!said.err.contains("not by this command"), "{said:?}");
        }
        operator.stop().await;
    });
}

#[test]
fn finished_minicluster_is_listed_and_cannot_be_scaled() {
    test("list", async |fixture| {
        let person = user_of(&fixture);
        let none = person.says(&["list"]).await;
        assert!(
            none.code == 0 && none.out.is_empty() && none.err.starts_with("no MiniClusters in "),
            "{none:?}"
        );
        fixture.create("mc", json!({ "size": 2 })).await.unwrap();
        end(&fixture, "mc", 7).await;
        let listed = person.says(&["list"]).await;
        let words: Vec<&str> = listed.out.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(
            (words[..5].to_vec(), words[6]),
            (vec!["mc", "Failed", "2", "0", "7"], "NonZeroExitCode")
        );
        let all: Value = serde_json::from_str(&person.says(&["ls", "-o", "json"]).await.out).unwrap();
        assert_eq!(all[0]["metadata"]["name"], "mc");
        let scaled = person.says(&["scale", "mc", "4"]).await;
        assert!(
            scaled.code == 1 && scaled.err.contains("mc is Failed"),
            "{scaled:?}"
        );
        assert_eq!(fixture.get("mc").await.spec.size, 2);
    });
}
