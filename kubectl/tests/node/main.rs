//! Tests of the plugin with real pods, on the cluster that KUBECONFIG names and where the operator is installed
//! (`.ci/e2e`). The user has only the documented rights of a person who runs jobs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "../it/cut_connection.rs"]
mod cut_connection;
#[path = "../it/user_account.rs"]
#[allow(dead_code, reason = "shared with the tests without nodes")]
mod user_account;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use flux_shared::crd::v1alpha2::MiniCluster;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use cut_connection::Proxy;
use test_support::node::{Fixture, app_image, test};
use user_account::{PROGRAM, PluginOutput, UserAccount};

fn kubectl(arguments: &[&str]) -> String {
    test_support::node::kubectl(arguments, "").unwrap()
}

/// A kubeconfig of the administrator that impersonates this account.
fn kubeconfig_as(account: &str, folder: &Path) -> PathBuf {
    let mut config: Value = serde_json::from_str(&kubectl(&[
        "config",
        "view",
        "--raw",
        "--minify",
        "--flatten",
        "-o",
        "json",
    ]))
    .unwrap();
    config["users"][0]["user"]["as"] = json!(account);
    let path = folder.join("kubeconfig");
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

fn person(fixture: &Fixture, folder: &Path) -> UserAccount {
    fixture.kubectl(&["create", "serviceaccount", "person"], "");
    let account = format!("system:serviceaccount:{}:person", fixture.namespace);
    UserAccount::with(
        &fixture.namespace,
        "person",
        user_account::RIGHTS,
        kubeconfig_as(&account, folder),
        |arguments| fixture.try_kubectl(arguments, ""),
    )
}

#[test]
fn a_run_prints_the_job_s_output_and_ends_with_its_code() {
    test("plugin-run", async |fixture| {
        let folder = tempfile::tempdir().unwrap();
        let person = person(&fixture, folder.path());
        let image = app_image();
        for code in ["0", "1", "7", "137", "255"] {
            let script = format!("echo \"a $((20 + 22))\"; echo 'b  c' >&2; exit {code}");
            let output = person
                .run(&[
                    "run", "--size", "2", "--tasks", "1", &image, "--", "sh", "-c", &script,
                ])
                .await;
            assert_eq!(output.code.to_string(), code, "{output:?}");
            let lines: Vec<&str> = output.out.lines().collect();
            assert!(lines.contains(&"a 42") && lines.contains(&"b  c"), "{output:?}");
        }
        fixture
            .until("nothing is left", async || {
                let all = fixture
                    .api::<MiniCluster>()
                    .list(&Default::default())
                    .await
                    .unwrap();
                all.items.is_empty().then_some(())
            })
            .await;
    });
}

#[test]
fn run_prints_long_output_complete_and_in_order() {
    test("plugin-long", async |fixture| {
        let folder = tempfile::tempdir().unwrap();
        let person = person(&fixture, folder.path());
        let output = person
            .run(&["run", &app_image(), "--", "seq", "1", "20000"])
            .await;
        let wanted: String = (1..=20000).map(|number| format!("{number}\n")).collect();
        assert_eq!(
            (output.code, output.out == wanted),
            (0, true),
            "{} bytes; {}",
            output.out.len(),
            output.err
        );
    });
}

#[test]
fn run_output_resumes_after_a_lost_connection() {
    test("plugin-wire", async |fixture| {
        let folder = tempfile::tempdir().unwrap();
        let person = person(&fixture, folder.path());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut config: Value =
            serde_json::from_str(&std::fs::read_to_string(&person.kubeconfig).unwrap()).unwrap();
        let server = config["clusters"][0]["cluster"]["server"]
            .as_str()
            .unwrap()
            .trim_start_matches("https://")
            .to_owned();
        let wire = Proxy::to(server, listener).await;
        config["clusters"][0]["cluster"]["server"] = json!(format!("https://{}", wire.address));
        std::fs::write(&person.kubeconfig, config.to_string()).unwrap();

        let script = "for i in $(seq 1 100); do echo line $i; sleep 0.1; done; exit 6";
        let mut run = person.start(&["run", "--name", "mc", &app_image(), "--", "sh", "-c", script]);
        let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
        let mut all = Vec::new();
        while let Some(line) = lines.next_line().await.unwrap() {
            if line == "line 10" || line == "line 60" {
                wire.cut();
                tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
                wire.mend();
            }
            all.push(line);
        }
        let output = PluginOutput::when_over(run).await;
        let wanted: Vec<String> = (1..=100).map(|number| format!("line {number}")).collect();
        assert_eq!((output.code, &all), (6, &wanted), "{}", output.err);
        assert_eq!(
            output.err.matches("the API server answers again").count(),
            2,
            "{}",
            output.err
        );
    });
}

/// Creates the MiniCluster `mc`, which stays up, with the plugin.
async fn up(person: &UserAccount, size: &str) {
    let output = person
        .run(&["run", "--detach", "--name", "mc", "--size", size, &app_image()])
        .await;
    assert_eq!((output.code, output.out.as_str()), (0, "mc\n"), "{output:?}");
    let output = person
        .run(&["wait", "mc", "--for", "ready", "--timeout", "240"])
        .await;
    assert_eq!(output.code, 0, "{output:?}");
}

#[test]
fn top_prints_usage_of_a_running_instance() {
    test("plugin-top", async |fixture| {
        let folder = tempfile::tempdir().unwrap();
        let person = person(&fixture, folder.path());
        up(&person, "2").await;
        let output = person.run(&["top", "mc"]).await;
        assert_eq!((output.code, output.err.as_str()), (0, ""), "{output:?}");
        assert!(output.out.starts_with("mc: state run for "), "{output:?}");
        for part in ["; 2 of 2 brokers online\n", "mc-0 ", "mc-1 "] {
            assert!(output.out.contains(part), "no `{part}`:\n{}", output.out);
        }
        let json = person.run(&["top", "mc", "-o", "json"]).await;
        let usage: Value = serde_json::from_str(&json.out).unwrap();
        assert_eq!(
            (&usage["name"], &usage["brokers"]["size"]),
            (&json!("mc"), &json!(2)),
            "{json:?}"
        );
    });
}

/// The admission checks and policies of a complete installation apply.
#[test]
fn server_validation_creates_nothing_on_a_real_cluster() {
    test("plugin-validate", async |fixture| {
        let folder = tempfile::tempdir().unwrap();
        let person = person(&fixture, folder.path());
        let validate = async |spec: Value| {
            let cluster = json!({
                "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": { "name": "mc" }, "spec": spec,
            });
            let file = folder.path().join("mc.json");
            std::fs::write(&file, cluster.to_string()).unwrap();
            person
                .run(&["validate", "--server", file.to_str().unwrap()])
                .await
        };
        let output = validate(json!({ "size": 2, "containers": [{ "image": app_image() }] })).await;
        assert_eq!(output.code, 0, "{output:?}");
        assert!(
            output
                .out
                .contains("the API server would accept MiniCluster mc: MiniCluster\n"),
            "{output:?}"
        );
        // A policy of the installation forbids this for the user.
        let volumes =
            json!({ "data": { "storageClass": "hostpath", "path": "/tmp/data", "capacity": "1Gi" } });
        let output =
            validate(json!({ "size": 2, "containers": [{ "image": app_image() }], "volumes": volumes }))
                .await;
        assert!(
            output.code == 1 && output.err.contains("PersistentVolumes, which you may not create"),
            "{output:?}"
        );
        assert!(
            fixture
                .api::<MiniCluster>()
                .list(&Default::default())
                .await
                .unwrap()
                .items
                .is_empty()
        );
    });
}

#[test]
fn connect_runs_a_command_with_its_input_and_its_code() {
    test("plugin-connect", async |fixture| {
        let folder = tempfile::tempdir().unwrap();
        let person = person(&fixture, folder.path());
        up(&person, "2").await;
        for code in [0, 3, 255] {
            let output = person
                .run(&[
                    "connect",
                    "mc",
                    "--",
                    "sh",
                    "-c",
                    &format!("echo out; echo err >&2; exit {code}"),
                ])
                .await;
            assert_eq!(
                (output.code, output.out.as_str(), output.err.as_str()),
                (code, "out\n", "err\n")
            );
        }
        let mut cat = person
            .command(&["connect", "mc", "--", "cat"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = cat.stdin.take().unwrap();
        let text: String = (0..50_000).map(|number| format!("line {number}\n")).collect();
        let (_, output) = tokio::join!(
            async {
                input.write_all(text.as_bytes()).await.unwrap();
                drop(input);
            },
            PluginOutput::when_over(cat)
        );
        assert!(
            output.code == 0 && output.out == text,
            "{} of {} bytes, {}",
            output.out.len(),
            text.len(),
            output.err
        );
        let follower = person
            .run(&["connect", "mc", "--index", "1", "--", "hostname"])
            .await;
        assert_eq!(
            (follower.code, follower.out.as_str()),
            (0, "mc-1\n"),
            "{follower:?}"
        );

        let submitted = person
            .run(&["submit", "mc", "--watch", "--", "-n", "2", "echo", "a  b"])
            .await;
        assert!(
            submitted.code == 0 && submitted.out.contains("a  b\n"),
            "{submitted:?}"
        );
        let status = person.run(&["status", "mc"]).await;
        assert!(
            status.out.contains("2 of 2 brokers ready") && status.out.contains("What the lead's agent says"),
            "{status:?}"
        );
        let logs = person.run(&["logs", "mc", "--all"]).await;
        assert!(logs.code == 0, "{logs:?}");
        let has_line_of = |index: &str| logs.out.lines().any(|line| line.starts_with(index));
        assert!(has_line_of("0: ") && has_line_of("1: "), "{logs:?}");

        let stopped = person.run(&["stop", "mc"]).await;
        assert!(
            stopped.code == 0 && stopped.out.contains("shutting down mc: its programs"),
            "{stopped:?}"
        );
        let ended = person.run(&["wait", "mc", "--timeout", "240"]).await;
        assert_eq!(ended.code, 0, "{ended:?}");
    });
}

#[test]
fn ctrl_c_stops_a_job_in_order() {
    test("plugin-ctrl-c", async |fixture| {
        let folder = tempfile::tempdir().unwrap();
        let person = person(&fixture, folder.path());
        let script = "trap 'echo tidy; exit 5' TERM; echo up; sleep 1000 & wait";
        let mut run = person.start(&["run", "--name", "mc", &app_image(), "--", "sh", "-c", script]);
        let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
        while lines.next_line().await.unwrap().expect("it ended") != "up" {}
        assert!(
            Command::new("kill")
                .args(["-INT", &run.id().unwrap().to_string()])
                .status()
                .unwrap()
                .success()
        );
        let mut rest = String::new();
        lines.into_inner().read_to_string(&mut rest).await.unwrap();
        let output = PluginOutput::when_over(run).await;
        assert!(rest.contains("tidy"), "{rest} {output:?}");
        assert!(
            output.err.contains("shutting down mc: its programs"),
            "{output:?}"
        );
        assert_eq!(output.code, 5, "{output:?}");
    });
}

/// On a terminal, which script(1) provides.
#[test]
fn a_shell_has_a_real_terminal_of_the_same_size() {
    test("plugin-tty", async |fixture| {
        let folder = tempfile::tempdir().unwrap();
        let person = person(&fixture, folder.path());
        up(&person, "1").await;
        // `sleep 1`: the plugin sends the size of the terminal only once the program has started.
        let line = format!(
            "stty rows 33 cols 77; {PROGRAM} -n {} connect mc -- sh -c 'sleep 1; tty; stty size; exit 9'",
            fixture.namespace
        );
        let mut script = tokio::process::Command::new("script");
        script
            .args(["-qec", &line, "/dev/null"])
            .env("KUBECONFIG", &person.kubeconfig)
            .stdin(Stdio::piped());
        let output = PluginOutput::of(script.output().await.unwrap());
        assert_eq!(output.code, 9, "{output:?}");
        assert!(
            output.out.contains("/dev/pts/") && output.out.contains("33 77"),
            "{output:?}"
        );
    });
}
