//! Commands that change nothing in the cluster: `why`, `status`, `debug`, `timeline`, completions, and `jobs`,
//! `connect` and `logs` if nothing runs.

use std::process::Command;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::user_account::PROGRAM;
use crate::user_of;
use test_support::api_server::{self, test, until};

#[test]
fn why_prints_the_reason_the_pods_and_the_remedy() {
    test("why", async |fixture| {
        let operator = fixture.operator().await;
        let person = user_of(&fixture);
        fixture.create("mc", json!({ "size": 2 })).await;
        let pods = fixture.pods("mc", 2).await;
        let waiting = json!({ "status": { "phase": "Pending", "initContainerStatuses": [{
            "name": "flux-agent", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "waiting": { "reason": "ImagePullBackOff", "message": "no such image" } },
        }] } });
        fixture.patch_pod_status(&pods[&1], waiting).await;
        fixture
            .when("mc", "one that reports the image", |status| {
                status["reason"] == "ImagePullBackOff"
            })
            .await;
        let output = person.run(&["why", "mc"]).await;
        assert_eq!(output.code, 0, "{output:?}");
        for part in [
            "mc Pending: 0 of 2 brokers ready",
            "\nImagePullBackOff: ",
            "flux-agent: ImagePullBackOff",
            "not scheduled",
        ] {
            assert!(output.out.contains(part), "no `{part}`:\n{}", output.out);
        }
        let remedy = output.out.split("What it means and what to do").nth(1).unwrap();
        assert!(
            remedy.contains("image") && !remedy.contains('`'),
            "{}",
            output.out
        );
        assert!(!output.out.contains('\x1b'), "no colours in a pipe");

        let json = person.run(&["status", "mc", "-o", "json"]).await;
        let report: Value = serde_json::from_str(&json.out).unwrap();
        assert_eq!(
            (&report["reason"], report["pods"].as_array().unwrap().len()),
            (&json!("ImagePullBackOff"), 2)
        );
        let yaml = person.run(&["status", "mc", "-o", "yaml"]).await;
        assert!(yaml.out.contains("reason: ImagePullBackOff\n"), "{yaml:?}");
        operator.stop().await;
    });
}

#[test]
fn why_and_debug_show_the_services_pod() {
    test("why-services", async |fixture| {
        let operator = fixture.operator().await;
        let person = user_of(&fixture);
        let spec = json!({ "size": 1, "services": [{ "image": "db:1", "name": "db" }] });
        fixture.create("mc", spec).await;
        fixture.run_pods("mc", 1).await;
        let services = until("the services pod", async || {
            fixture.find::<Pod>("mc-services").await
        })
        .await;
        let ended = json!({ "terminated": { "exitCode": 3, "reason": "Error" } });
        let broken = json!({ "status": { "phase": "Running", "containerStatuses": [{
            "name": "db", "image": "i", "imageID": "i", "ready": false, "restartCount": 1,
            "state": { "waiting": { "reason": "CrashLoopBackOff" } }, "lastState": ended,
        }] } });
        fixture.patch_pod_status(&services, broken).await;
        fixture.when_is("mc", "reason", "ServiceFailed").await;
        let output = person.run(&["why", "mc"]).await;
        for part in [
            "mc Running: 1 of 1 brokers ready",
            "ServiceFailed: services pod mc-services: container db ended with exit code 3",
            "-      mc-services",
            "db: CrashLoopBackOff",
        ] {
            assert!(output.out.contains(part), "no `{part}`:\n{}", output.out);
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mc.tar");
        let arguments = ["debug", "mc", "--to", file.to_str().unwrap(), "-o", "json"];
        let output = person.run(&arguments).await;
        let bundle: Value = serde_json::from_str(&output.out).unwrap();
        for name in ["pods/mc-services.yaml", "logs/mc-services.db.log"] {
            let files = bundle["files"].as_array().unwrap();
            assert!(files.contains(&json!(name)), "no {name}: {bundle}");
        }
        operator.stop().await;
    });
}

#[test]
fn connect_jobs_and_logs_report_a_cluster_without_pods() {
    test("idle", async |fixture| {
        let person = user_of(&fixture);
        fixture.create("mc", json!({})).await;
        for arguments in [
            &["connect", "mc"][..],
            &["jobs", "mc"],
            &["connect", "mc", "--index", "3"],
        ] {
            let output = person.run(arguments).await;
            assert_eq!(output.code, 1, "{output:?}");
            assert!(
                output.err.contains("does not run") && output.err.contains("kubectl minicluster why mc"),
                "{output:?}"
            );
        }
        let logs = person.run(&["logs", "mc"]).await;
        assert!(
            logs.code == 1 && logs.err.contains("mc has no pod with index 0"),
            "{logs:?}"
        );
        let none = person.run(&["status", "none"]).await;
        assert!(
            none.code == 1 && none.err.contains("failed to get MiniCluster none: "),
            "{none:?}"
        );
    });
}

#[test]
fn debug_bundle_has_no_secret() {
    test("debug", async |fixture| {
        let operator = fixture.operator().await;
        let person = user_of(&fixture);
        let container = json!({ "image": "app:1", "command": "work --token hunter2", "environment": { "KEY": "hunter2" } });
        let users = json!([{ "name": "ann", "password": "hunter2" }]);
        fixture
            .create(
                "mc",
                json!({ "size": 1, "containers": [container], "users": users }),
            )
            .await;
        fixture.pods("mc", 1).await;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mc.tar");
        let arguments = ["debug", "mc", "--to", file.to_str().unwrap()];
        let output = person.run(&arguments).await;
        assert!(
            output.code == 0 && output.out.contains("files: the MiniCluster"),
            "{output:?}"
        );
        let bytes = std::fs::read(&file).unwrap();
        let all = String::from_utf8_lossy(&bytes);
        for part in [
            "minicluster.yaml",
            "status.txt",
            "pods/mc-0-",
            "ann",
            "work --token (left out)",
            "KEY",
        ] {
            assert!(all.contains(part), "no `{part}`");
        }
        assert!(!all.contains("hunter2"), "{all}");
        let again = person.run(&arguments).await;
        assert!(
            again.code == 1
                && again
                    .err
                    .contains("it exists. Remove it, or choose another path with --to"),
            "nothing is overwritten: {again:?}"
        );
        operator.stop().await;
    });
}

#[test]
fn timeline_of_a_running_job_has_an_open_last_step() {
    test("timeline", async |fixture| {
        let operator = fixture.operator().await;
        let person = user_of(&fixture);
        fixture.create("mc", json!({})).await;
        let pods = fixture.pods("mc", 1).await;
        fixture.run_pod(&pods[&0]).await;
        fixture.when_condition("mc", "Ready", "True").await;
        let output = person.run(&["timeline", "mc"]).await;
        assert!(
            output.out.contains("the job runs") && output.out.contains("until the last step"),
            "{output:?}"
        );
        let output = person.run(&["timeline", "mc", "-o", "json"]).await;
        let steps: Vec<Value> = serde_json::from_str(&output.out).unwrap();
        assert_eq!(
            steps.last().unwrap()["seconds"],
            Value::Null,
            "the last step has an end: {output:?}"
        );
        operator.stop().await;
    });
}

#[test]
fn kubectl_completes_the_names_of_the_namespace() {
    test("complete", async |fixture| {
        let person = user_of(&fixture);
        for name in ["one", "other", "two"] {
            fixture.create(name, json!({})).await;
        }
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(PROGRAM, folder.path().join("kubectl-minicluster")).unwrap();
        let output = person.run(&["completion", folder.path().to_str().unwrap()]).await;
        assert!(
            output.code == 0
                && output
                    .out
                    .contains("kubectl_complete-minicluster. kubectl finds it"),
            "{output:?}"
        );
        let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
        let (program, first) = api_server::kubectl_program();
        let kubectl = |words: &[&str]| {
            let mut command = Command::new(&program);
            command
                .args([first, "__complete"])
                .args(words)
                .env("PATH", &path)
                .env("KUBECONFIG", &person.kubeconfig);
            String::from_utf8(command.output().unwrap().stdout).unwrap()
        };
        let names = kubectl(&["minicluster", "connect", "-n", &fixture.namespace, ""]);
        // `:4` tells the shell to offer no file names (cobra's protocol).
        assert_eq!(names, "one\nother\ntwo\n:4\n");
        assert_eq!(
            kubectl(&["minicluster", "connect", "-n", &fixture.namespace, "o"]),
            "one\nother\n:4\n"
        );
        assert!(
            kubectl(&["minicluster", "t"]).contains("timeline"),
            "commands are completed too"
        );
    });
}
