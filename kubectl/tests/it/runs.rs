//! `run`, `wait`, `stop`, `scale` and `list`.

use std::time::Duration;

use flux_shared::crd::v1alpha2::MiniCluster;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::process::Child;

use crate::user_account::{PluginOutput, RIGHTS, UserAccount, read_until};
use crate::{user_of, user_with};
use test_support::api_server::{Calls, Fixture, condition, test, until};

/// Plays the operator: sets the status of `name` to that of a job that ended with `code`.
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

async fn wait_until_created(fixture: &Fixture, name: &str) {
    until(&format!("{name} is created"), async || {
        fixture.find::<MiniCluster>(name).await
    })
    .await;
}

#[test]
fn run_exits_with_the_jobs_code_for_every_code() {
    test("codes", async |fixture| {
        let (fixture, person) = (&fixture, &user_of(&fixture));
        let codes: Vec<u8> = (0..=255).collect();
        for batch in codes.chunks(16) {
            let each = batch.iter().map(|&code| async move {
                let name = format!("code-{code}");
                let run = person.start(&["run", "--name", &name, "app:1", "--", "exit", &code.to_string()]);
                wait_until_created(fixture, &name).await;
                end(fixture, &name, code).await;
                let output = PluginOutput::when_over(run).await;
                assert_eq!(output.code, i32::from(code), "{output:?}");
                assert_eq!(output.out, "", "`run` prints only the job's output");
            });
            futures::future::join_all(each).await;
        }
    });
}

#[test]
fn run_prints_what_it_waits_for_and_deletes_the_cluster() {
    test("run", async |fixture| {
        let operator = fixture.operator().await;
        let person = user_of(&fixture);
        let run = person.start(&[
            "run", "--name", "mc", "--size", "2", "app:1", "--", "sh", "-c", "exit 7",
        ]);
        let pods = fixture.pods("mc", 2).await;
        fixture.run_pod(&pods[&0]).await;
        fixture
            .when("mc", "one with a ready broker", |status| status["readySize"] == 1)
            .await;
        fixture.run_pod(&pods[&1]).await;
        fixture.when_condition("mc", "Ready", "True").await;
        let command = fixture.get("mc").await.spec.containers[0].command.clone();
        fixture.end_pod(&pods[&0], 7, "Error", "").await;
        let output = PluginOutput::when_over(run).await;
        assert_eq!((output.code, output.out.as_str()), (7, ""), "{output:?}");
        assert_eq!(command.as_deref(), Some("sh -c 'exit 7'"));
        let position = |line: &str| {
            output
                .err
                .find(line)
                .unwrap_or_else(|| panic!("no `{line}`: {}", output.err))
        };
        let created = position("created MiniCluster mc with 2 pods\n");
        let pods = position("pods: ");
        let up = position("quorum: 2 brokers: the job starts\n");
        let failed = position("mc failed (NonZeroExitCode): ");
        assert!(created < pods && pods < up && up < failed, "{}", output.err);
        assert_eq!(
            output.err[up..].lines().count(),
            2,
            "the end of the pods is reported as a start: {}",
            output.err
        );
        assert!(
            !output.err.contains('\x1b') && !output.err.contains('\r'),
            "plain lines in a pipe: {:?}",
            output.err
        );
        fixture.until_gone::<MiniCluster>("mc").await;
        operator.stop().await;
    });
}

/// A follower's pod on a dead node keeps the Job from ending, but not `run` and `wait`.
#[test]
fn run_and_wait_end_while_a_dead_node_keeps_a_pod() {
    test("dead-node", async |fixture| {
        let operator = fixture.operator().await;
        let person = user_of(&fixture);
        let run = person.start(&[
            "run", "--name", "mc", "--size", "2", "--keep", "app:1", "--", "sh", "-c", "exit 7",
        ]);
        let pods = fixture.pods("mc", 2).await;
        for pod in pods.values() {
            fixture.run_pod(pod).await;
        }
        fixture.when_condition("mc", "Ready", "True").await;
        let wait = person.start(&["wait", "mc"]);
        fixture.hold_pod(&pods[&1]).await;
        fixture.end_pod(&pods[&0], 7, "Error", "").await;
        for program in [run, wait] {
            let output = PluginOutput::when_over(program).await;
            assert_eq!(output.code, 7, "{output:?}");
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
        let detached = person.run(&["run", "--detach", "--size", "3", "app:1"]).await;
        assert_eq!(detached.code, 0, "{detached:?}");
        let name = detached.out.trim();
        assert!(
            name.starts_with("run-") && fixture.get(name).await.spec.size == 3,
            "{detached:?}"
        );
        let whole = person
            .run(&["run", "--detach", "-o", "json", "--name", "whole", "app:1"])
            .await;
        let whole: Value = serde_json::from_str(&whole.out).unwrap();
        assert_eq!(whole["metadata"]["name"], "whole");

        let run = person.start(&["run", "--keep", "--name", "kept", "app:1", "--", "true"]);
        wait_until_created(&fixture, "kept").await;
        end(&fixture, "kept", 0).await;
        assert_eq!(PluginOutput::when_over(run).await.code, 0);
        assert!(!fixture.get("kept").await.spec.cleanup);
        let again = person.run(&["run", "--name", "kept", "-d", "app:1"]).await;
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
        let output = person
            .run(&["run", "--size", "0", "--tasks", "-1", "-d", "app:1"])
            .await;
        assert_eq!(output.code, 2, "clap parses -1 as an option: {output:?}");
        let output = person
            .run(&["run", "--size", "0", "--tasks=-1", "-d", "app:1"])
            .await;
        assert_eq!(output.code, 1);
        assert!(
            output.err.contains("spec.size: ") && output.err.contains("spec.tasks: "),
            "{output:?}"
        );
        let output = person.run(&["run", "app:1"]).await;
        assert!(
            output.code == 1 && output.err.contains("give a command after `--`"),
            "{output:?}"
        );
        assert!(fixture.all::<MiniCluster>().await.is_empty());
    });
}

#[test]
fn wait_ends_as_the_job_did() {
    test("wait", async |fixture| {
        let person = user_of(&fixture);
        fixture.create("mc", json!({})).await;
        let too_long = person.run(&["wait", "mc", "--timeout", "1"]).await;
        assert_eq!(too_long.code, 124, "{too_long:?}");
        let (finished, ready) = (
            person.start(&["wait", "mc"]),
            person.start(&["wait", "mc", "--for=ready"]),
        );
        end(&fixture, "mc", 77).await;
        assert_eq!(PluginOutput::when_over(finished).await.code, 77);
        assert_eq!(
            PluginOutput::when_over(ready).await.code,
            1,
            "a failed job is not ready"
        );
        let deleted = person.start(&["wait", "mc", "--for=deleted"]);
        fixture.delete::<MiniCluster>("mc").await;
        assert_eq!(PluginOutput::when_over(deleted).await.code, 0);
        let gone = person.run(&["wait", "mc"]).await;
        assert!(
            gone.code == 1 && gone.err.contains("\"mc\" not found"),
            "{gone:?}"
        );
    });
}

#[test]
fn wait_prints_each_obstacle_once() {
    test("wait-why", async |fixture| {
        let person = user_of(&fixture);
        fixture.create("mc", json!({})).await;
        let wait = person.start(&["wait", "mc"]);
        let clusters: Api<MiniCluster> = fixture.api();
        let pull = |reason| (reason, "registry.invalid has no such image");
        for (phase, (reason, message)) in [
            ("Pending", ("PodsStarting", "0 of 1 pods have started")),
            ("Starting", pull("ErrImagePull")),
            ("Starting", pull("ImagePullBackOff")),
            ("Starting", pull("ErrImagePull")),
            ("Suspended", ("Suspended", "the Job is suspended")),
        ] {
            let status = json!({ "status": { "phase": phase, "reason": reason, "message": message, "size": 1,
                "readySize": 0 } });
            clusters
                .patch_status("mc", &PatchParams::default(), &Patch::Merge(status))
                .await
                .unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        end(&fixture, "mc", 3).await;
        let output = PluginOutput::when_over(wait).await;
        let lines = "waiting for mc (ErrImagePull: registry.invalid has no such image)\n\
                     waiting for mc (ImagePullBackOff: registry.invalid has no such image)\n\
                     waiting for mc (Suspended: the Job is suspended)\n";
        assert_eq!((output.code, output.err.as_str()), (3, lines));
    });
}

#[test]
fn run_without_a_program_tells_how_to_use_the_instance() {
    test("stays-up", async |fixture| {
        let operator = fixture.operator().await;
        let person = user_of(&fixture);
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../examples/python-client/minicluster.yaml"
        );
        let mut run = person.start(&["run", "--name", "mc", "--size", "1", "--from", file]);
        let pods = fixture.pods("mc", 1).await;
        fixture.run_pod(&pods[&0]).await;
        let mut lines = tokio::io::BufReader::new(run.stderr.take().unwrap());
        let output = read_until(&mut lines, "Ctrl-C ends it").await;
        assert!(output.contains("`kubectl minicluster connect mc -n "), "{output}");
        assert!(!output.contains("the job starts"), "{output}");
        run.kill().await.unwrap();
        operator.stop().await;
    });
}

#[test]
fn scale_changes_the_size() {
    test("scale", async |fixture| {
        let person = user_of(&fixture);
        fixture.create("mc", json!({ "size": 1, "maxSize": 4 })).await;
        let output = person.run(&["scale", "mc", "3"]).await;
        assert_eq!(
            (output.code, fixture.get("mc").await.spec.size),
            (0, 3),
            "{output:?}"
        );
    });
}

/// Sends SIGINT, as Ctrl-C does.
pub fn interrupt(child: &Child) {
    send("-INT", child);
}

pub fn send(signal: &str, child: &Child) {
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
        let mut run = person.start(&["run", "--name", "mc", "app:1", "--", "true"]);
        fixture.pods("mc", 1).await;
        // When `run` prints this line, it follows the MiniCluster, and handles Ctrl-C.
        let mut lines = tokio::io::BufReader::new(run.stderr.take().unwrap());
        read_until(&mut lines, "pods: ").await;
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

/// `docker stop` and CI systems send SIGKILL soon after SIGTERM.
#[test]
fn stopped_run_leaves_no_minicluster_when_killed() {
    test("killed", async |fixture| {
        let person = user_of(&fixture);
        for (name, signal, more, time_to_live) in [
            ("mc", "-TERM", &[][..], Some(300)),
            ("kept", "-TERM", &["--keep"], None),
            ("interactive", "-INT", &[], None),
        ] {
            let arguments = [&["run", "--name", name], more, &["app:1", "--", "true"]].concat();
            let mut run = person.start(&arguments);
            let mut lines = tokio::io::BufReader::new(run.stderr.take().unwrap());
            read_until(&mut lines, "created MiniCluster").await;
            send(signal, &run);
            read_until(&mut lines, "suspended ").await;
            run.kill().await.unwrap();
            let spec = fixture.get(name).await.spec;
            assert_eq!(spec.ttl_seconds_after_finished, time_to_live, "{name}");
        }
    });
}

#[test]
fn run_fails_when_its_minicluster_is_deleted() {
    test("deleted", async |fixture| {
        let person = user_of(&fixture);
        let run = person.start(&["run", "--name", "mc", "app:1", "--", "true"]);
        wait_until_created(&fixture, "mc").await;
        // Gives `run` the time to begin its watch.
        tokio::time::sleep(Duration::from_millis(500)).await;
        fixture.delete::<MiniCluster>("mc").await;
        let output = PluginOutput::when_over(run).await;
        assert!(
            output.code == 1
                && output
                    .err
                    .contains("was deleted before its job had ended, not by this command"),
            "{output:?}"
        );
    });
}

#[test]
fn run_from_a_file_applies_the_command_lines_options() {
    test("file", async |fixture| {
        let person = user_of(&fixture);
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../examples/hello-world/minicluster.yaml"
        );
        let output = person
            .run(&["run", "-d", "--from", file, "--size", "2", "--name", "mine"])
            .await;
        assert_eq!(output.code, 0, "{output:?}");
        let cluster = fixture.get("mine").await;
        assert_eq!((cluster.spec.size, cluster.spec.tasks), (2, 4));
        assert_eq!(
            cluster.spec.containers[0].command.as_deref(),
            Some("echo hello world")
        );
        assert_eq!(cluster.name_any(), "mine");
    });
}

#[test]
fn run_reports_that_no_operator_is_running() {
    test("no-operator", async |fixture| {
        let person = user_of(&fixture);
        let mut run = person.start(&["run", "--name", "mc", "app:1", "--", "true"]);
        let mut lines = tokio::io::BufReader::new(run.stderr.take().unwrap());
        read_until(&mut lines, "the operator is not running").await;
        run.kill().await.unwrap();
    });
}

/// A user who may also delete MiniClusters.
fn deleter_of(fixture: &Fixture) -> UserAccount {
    let rights = [RIGHTS, &[("miniclusters.flux-framework.org", "delete")]].concat();
    user_with(fixture, "deleter", &rights)
}

/// Interrupts `run`, whose job has not started, and expects exit code 130.
async fn interrupted(run: Child) -> PluginOutput {
    // Gives `run` the time to begin its watch.
    tokio::time::sleep(Duration::from_millis(300)).await;
    interrupt(&run);
    let output = PluginOutput::when_over(run).await;
    assert_eq!(output.code, 130, "{output:?}");
    output
}

/// `run` may see the deletion before the answer to its own deletion request.
#[test]
fn interrupted_run_exits_130_when_its_pods_have_not_started() {
    test("interrupted", async |fixture| {
        let operator = fixture.operator().await;
        let person = deleter_of(&fixture);
        // Several times, since the order of the two varies.
        for number in 0..6 {
            let name = format!("mc{number}");
            let run = person.start(&["run", "--name", &name, "app:1", "--", "true"]);
            fixture.pods(&name, 1).await;
            let output = interrupted(run).await;
            assert!(!output.err.contains("not by this command"), "{output:?}");
        }
        operator.stop().await;
    });
}

/// What never starts is what its user wants to look at. It must not start later, when nobody follows it.
#[test]
fn run_with_keep_suspends_what_has_not_started() {
    test("keep", async |fixture| {
        let operator = fixture.operator().await;
        let person = deleter_of(&fixture);
        for (name, has_job) in [("mc", true), ("jobless", false)] {
            if !has_job {
                fixture.refuse_jobs().await;
            }
            let run = person.start(&["run", "--keep", "--name", name, "app:1", "--", "true"]);
            if has_job {
                fixture.pods(name, 1).await;
            } else {
                wait_until_created(&fixture, name).await;
            }
            let output = interrupted(run).await;
            let kept = format!("kept {name}: `kubectl minicluster why {name} -n ");
            assert!(
                output
                    .err
                    .contains(&format!("suspended {name}, which now has no pods"))
                    && output.err.contains(&kept),
                "{output:?}"
            );
            assert_eq!(fixture.get(name).await.spec.suspend, Some(true));
        }
        fixture.allow_jobs().await;
        operator.stop().await;
    });
}

#[test]
fn finished_minicluster_is_listed_and_cannot_be_scaled() {
    test("list", async |fixture| {
        let person = user_of(&fixture);
        let none = person.run(&["list"]).await;
        assert!(
            none.code == 0 && none.out.is_empty() && none.err.starts_with("no MiniClusters in "),
            "{none:?}"
        );
        fixture.create("mc", json!({ "size": 2 })).await;
        end(&fixture, "mc", 7).await;
        let listed = person.run(&["list"]).await;
        // The column that is not compared, 5, is the age.
        let words: Vec<&str> = listed.out.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(
            (words[..5].to_vec(), words[6]),
            (vec!["mc", "Failed", "2", "0", "7"], "NonZeroExitCode")
        );
        let all: Value = serde_json::from_str(&person.run(&["ls", "-o", "json"]).await.out).unwrap();
        assert_eq!(all[0]["metadata"]["name"], "mc");
        let scaled = person.run(&["scale", "mc", "4"]).await;
        assert!(
            scaled.code == 1 && scaled.err.contains("mc is Failed"),
            "{scaled:?}"
        );
        assert_eq!(fixture.get("mc").await.spec.size, 2);
    });
}

/// For example, the installation has no `spec.services`. Once it has, the MiniCluster would run unnoticed.
#[test]
fn run_leaves_no_invalid_minicluster_unless_it_is_kept() {
    test("invalid", async |fixture| {
        let operator = fixture
            .operator_of(Calls::default(), |settings| settings.options.services = false)
            .await;
        let owner = user_with(
            &fixture,
            "owner",
            &[("miniclusters.flux-framework.org", "*"), ("pods", "*")],
        );
        let person = user_of(&fixture);
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../examples/services/minicluster.yaml"
        );
        let run = async |user: &UserAccount, name: &str, more: &[&str], message: &str| {
            let arguments = [&["run", "--from", file, "--name", name], more].concat();
            let output = user.run(&arguments).await;
            assert!(
                output.code == 1
                    && output.err.contains(&format!("{name} cannot run: "))
                    && output.err.contains(message),
                "{output:?}"
            );
        };
        run(&owner, "own", &[], "deleted own\n").await;
        fixture.until_gone::<MiniCluster>("own").await;
        run(&person, "mc", &[], "suspended mc").await;
        assert_eq!(fixture.get("mc").await.spec.suspend, Some(true));
        run(
            &person,
            "kept",
            &["--keep"],
            "kubectl minicluster stop --now kept",
        )
        .await;
        assert_eq!(fixture.get("kept").await.spec.suspend, None);
        operator.stop().await;
    });
}

#[test]
fn stop_now_needs_no_delete_right_for_finished_minicluster() {
    test("stop-finished", async |fixture| {
        let operator = fixture.operator().await;
        let person = user_of(&fixture);
        let run = person.start(&["run", "--name", "mc", "--keep", "app:1", "--", "true"]);
        let pods = fixture.pods("mc", 1).await;
        fixture.run_pod(&pods[&0]).await;
        fixture.when_condition("mc", "Ready", "True").await;
        fixture.end_pod(&pods[&0], 0, "Completed", "").await;
        let run = PluginOutput::when_over(run).await;
        assert!(
            run.code == 0 && run.err.contains("kubectl minicluster stop --now mc"),
            "{run:?}"
        );
        let output = person.run(&["stop", "--now", "mc"]).await;
        assert_eq!(
            (output.code, output.out.as_str()),
            (0, "deleted mc\n"),
            "{output:?}"
        );
        fixture.until_gone::<MiniCluster>("mc").await;
        let mistyped = person.run(&["stop", "--now", "mistyped"]).await;
        assert!(
            mistyped.code == 1 && mistyped.err.contains("\"mistyped\" not found"),
            "{mistyped:?}"
        );
        operator.stop().await;
    });
}
