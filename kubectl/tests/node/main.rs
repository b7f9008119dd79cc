//! The plugin where pods really run: on the cluster that KUBECONFIG names, with the operator installed
//! (`.ci/e2e`). Who calls has no more rights than a person who runs jobs.
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
use user_account::{PROGRAM, Said, UserAccount};

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
    let in_namespace = |arguments: &[&str]| drop(fixture.kubectl(arguments, ""));
    in_namespace(&["create", "serviceaccount", "person"]);
    let account = format!("system:serviceaccount:{}:person", fixture.namespace);
    UserAccount::with(
        &fixture.namespace,
        "person",
        user_account::RIGHTS,
        kubeconfig_as(&account, folder),
        in_namespace,
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
            let said = person
                .says(&[
                    "run", "--size", "2", "--tasks", "1", &image, "--", "sh", "-c", &script,
                ])
                .await;
            assert_eq!(said.code.to_string(), code, "{said:?}");
            let mut lines: Vec<&str> = said.out.lines().collect();
            lines.sort_unstable();
            assert!(lines.contains(&"a 42") && lines.contains(&"b  c"), "{said:?}");
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
fn a_long_output_comes_whole_and_in_its_order() {
    test("plugin-long", async |fixture| {
        let folder = tempfile::tempdir().unwrap();
        let person = person(&fixture, folder.path());
        let said = person
            .says(&["run", &app_image(), "--", "seq", "1", "20000"])
            .await;
        let wanted: String = (1..=20000).map(|number| format!("{number}\n")).collect();
        assert_eq!(
            (said.code, said.out == wanted),
            (0, true),
            "{} bytes; {}",
            said.out.len(),
            said.err
        );
    });
}

#[test]
fn an_output_goes_on_where_the_connection_was_lost() {
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
        let mut run = person.starts(&["run", "--name", "mc", &app_image(), "--", "sh", "-c", script]);
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
        let said = Said::when_over(run).await;
        let wanted: Vec<String> = (1..=100).map(|number| format!("line {number}")).collect();
        assert_eq!((said.code, &all), (6, &wanted), "{}", said.err);
        assert_eq!(
            said.err.matches("the API server answers again").count(),
            2,
            "{}",
            said.err
        );
    });
}

/// The MiniCluster `mc` that stays up, as a person makes one.
async fn up(person: &UserAccount, size: &str) {
    let said = person
        .says(&["run", "--detach", "--name", "mc", "--size", size, &app_image()])
        .await;
    assert_eq!((said.code, said.out.as_str()), (0, "mc\n"), "{said:?}");
    let said = person
        .says(&["wait", "mc", "--for", "ready", "--timeout", "240"])
        .await;
    assert_eq!(said.code, 0, "{said:?}");
}

#[test]
fn top_has_the_figures_of_an_instance_that_runs() {
    test("plugin-top", async |fixture| {
        let folder = tempfile::tempdir().unwrap();
        let person = person(&fixture, folder.path());
        up(&person, "2").await;
        let said = person.says(&["top", "mc"]).await;
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{said:?}");
        assert!(said.out.starts_with("mc: state run for "), "{said:?}");
        for part in ["; 2 of 2 brokers online\n", "mc-0 ", "mc-1 "] {
            assert!(said.out.contains(part), "no `{part}`:\n{}", said.out);
        }
        let json = person.says(&["top", "mc", "-o", "json"]).await;
        let figures: Value = serde_json::from_str(&json.out).unwrap();
        assert_eq!(
            (&figures["name"], &figures["brokers"]["size"]),
            (&json!("mc"), &json!(2)),
            "{json:?}"
        );
    });
}

/// By the admission and the policies of a whole installation.
#[test]
fn the_api_server_tries_out_a_file_and_nothing_is_made() {
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
                .says(&["validate", "--server", file.to_str().unwrap()])
                .await
        };
        let said = validate(json!({ "size": 2, "containers": [{ "image": app_image() }] })).await;
        assert_eq!(said.code, 0, "{said:?}");
        assert!(
            said.out
                .contains("the API server would accept MiniCluster mc: MiniCluster\n"),
            "{said:?}"
        );
        // Not for this person: the policy of the installation.
        let volumes =
            json!({ "data": { "storageClass": "hostpath", "path": "/tmp/data", "capacity": "1Gi" } });
        let said =
            validate(json!({ "size": 2, "containers": [{ "image": app_image() }], "volumes": volumes }))
                .await;
        assert!(
            said.code == 1 && said.err.contains("PersistentVolumes, which you may not create"),
            "{said:?}"
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
            let said = person
                .says(&[
                    "connect",
                    "mc",
                    "--",
                    "sh",
                    "-c",
                    &format!("echo out; echo err >&2; exit {code}"),
                ])
                .await;
            assert_eq!(
                (said.code, said.out.as_str(), said.err.as_str()),
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
        let (_, said) = tokio::join!(
            async {
                input.write_all(text.as_bytes()).await.unwrap();
                drop(input);
            },
            Said::when_over(cat)
        );
        assert!(
            said.code == 0 && said.out == text,
            "{} of {} bytes, {}",
            said.out.len(),
            text.len(),
            said.err
        );
        let follower = person
            .says(&["connect", "mc", "--index", "1", "--", "hostname"])
            .await;
        assert_eq!(
            (follower.code, follower.out.as_str()),
            (0, "mc-1\n"),
            "{follower:?}"
        );

        let submitted = person
            .says(&["submit", "mc", "--watch", "--", "-n", "2", "echo", "a  b"])
            .await;
        assert!(
            submitted.code == 0 && submitted.out.contains("a  b\n"),
            "{submitted:?}"
        );
        let status = person.says(&["status", "mc"]).await;
        assert!(
            status.out.contains("2 of 2 brokers ready") && status.out.contains("What the lead's agent says"),
            "{status:?}"
        );
        let logs = person.says(&["logs", "mc", "--all"]).await;
        assert!(logs.code == 0, "{logs:?}");
        let of = |index: &str| logs.out.lines().any(|line| line.starts_with(index));
        assert!(of("0: ") && of("1: "), "{logs:?}");

        let stopped = person.says(&["stop", "mc"]).await;
        assert!(
            stopped.code == 0 && stopped.out.contains("shutting down mc: its programs"),
            "{stopped:?}"
        );
        let ended = person.says(&["wait", "mc", "--timeout", "240"]).await;
        assert_ne!(ended.code, 124, "{ended:?}");
    });
}

#[test]
fn ctrl_c_stops_a_job_in_order() {
    test("plugin-ctrl-c", async |fixture| {
        let folder = tempfile::tempdir().unwrap();
        let person = person(&fixture, folder.path());
        let script = "trap 'echo tidy; exit 5' TERM; echo up; sleep 1000 & wait";
        let mut run = person.starts(&["run", "--name", "mc", &app_image(), "--", "sh", "-c", script]);
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
        let said = Said::when_over(run).await;
        assert!(rest.contains("tidy"), "{rest} {said:?}");
        assert!(said.err.contains("shutting down mc: its programs"), "{said:?}");
        assert_ne!(said.code, 0, "{said:?}");
    });
}

/// As on a person's terminal, which script(1) plays.
#[test]
fn a_shell_has_a_real_terminal_of_the_same_size() {
    test("plugin-tty", async |fixture| {
        let folder = tempfile::tempdir().unwrap();
        let person = person(&fixture, folder.path());
        up(&person, "1").await;
        let line = format!(
            "stty rows 33 cols 77; {PROGRAM} -n {} connect mc -- sh -c 'sleep 1; tty; stty size; exit 9'",
            fixture.namespace
        );
        let mut script = tokio::process::Command::new("script");
        script
            .args(["-qec", &line, "/dev/null"])
            .env("KUBECONFIG", &person.kubeconfig)
            .stdin(Stdio::piped());
        let said = Said::of(script.output().await.unwrap());
        assert_eq!(said.code, 9, "{said:?}");
        assert!(
            said.out.contains("/dev/pts/") && said.out.contains("33 77"),
            "{said:?}"
        );
    });
}
