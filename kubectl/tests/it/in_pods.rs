//! Commands that run programs in pods and print their output: `top`, `jobs`, `submit`, `connect`, `stop` and `status`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, BufReader};

use crate::front::{Front, LogRequest, Session, SessionEvent};
use crate::runs::send;
use crate::user_account::{PluginOutput, UserAccount, next_line};
use crate::{user_of, user_with};
use test_support::api_server::{Fixture, Operator, test};

/// The usage of a small instance, as an agent prints it.
pub fn usage(running: u64) -> String {
    let host = |rank: u32, state: &str| json!({ "rank": rank, "name": format!("mc-{rank}"), "state": state, "cores": 4, "coresUsed": running });
    json!({
        "state": "run", "seconds": 61, "brokers": { "size": 2, "online": 1 },
        "resources": {
            "nodes": { "total": 2, "used": running, "free": 1 - running, "down": 1 },
            "cores": { "total": 8, "used": running, "free": 4 - running, "down": 4 },
            "gpus": { "total": 0, "used": 0, "free": 0, "down": 0 },
            "hosts": [host(0, "up"), host(1, "down")],
        },
        "jobs": { "waiting": 3, "running": running, "ended": 2, "successful": 2, "failed": 0, "canceled": 0, "timeout": 0 },
    })
    .to_string()
        + "\n"
}

/// Agents that do what the plugin requests. After the first request for the usage, a job runs.
pub fn agents() -> impl Fn(Session) -> BoxFuture<'static, ()> + Send + Sync {
    let looks = Arc::new(AtomicU64::new(0));
    move |mut session| {
        let looks = looks.clone();
        async move {
            let words: Vec<&str> = session.words.iter().map(String::as_str).collect();
            let code = match words.as_slice() {
                ["usage"] => {
                    let running = looks.fetch_add(1, Ordering::SeqCst).min(1);
                    session.say(&usage(running)).await;
                    0
                }
                ["status", "--json"] => {
                    session
                        .say(r#"{"lines":[["broker","mc-0 (rank 0) is in state run"]]}"#)
                        .await;
                    0
                }
                ["connect", "--", "flux", "submit", "--cc=1-2", ..] => {
                    session.say("ƒabc\n").await;
                    session
                        .complain("flux-submit: ERROR: the queue is closed\n")
                        .await;
                    1
                }
                ["connect", "--", "flux", "submit", ..] => {
                    session.say("ƒabc\n").await;
                    0
                }
                ["connect", "--", "flux", "jobs", "--json"] => {
                    session.say(r#"{"jobs":[{"id":1}]}"#).await;
                    0
                }
                ["connect", "--", "flux", "jobs"] => {
                    session.say("JOBID\nƒabc\n").await;
                    0
                }
                ["connect", "--", "exit", code] => {
                    let code = code.parse().unwrap();
                    session.complain("bye\n").await;
                    code
                }
                ["stop"] => 0,
                words => panic!("{words:?}"),
            };
            session.end(code).await;
        }
        .boxed()
    }
}

pub fn empty_logs(_: &LogRequest) -> Option<Vec<(Duration, String)>> {
    Some(Vec::new())
}

/// A MiniCluster `mc` with `size` running pods.
pub async fn up(fixture: &Fixture, size: usize) -> Operator {
    let operator = fixture.operator().await;
    fixture.create("mc", json!({ "size": size })).await;
    for pod in fixture.pods("mc", size).await.into_values() {
        fixture.run_pod(&pod).await;
    }
    fixture.when_condition("mc", "Ready", "True").await;
    operator
}

/// A user whose requests go to a proxy that runs these programs in its pods.
pub async fn with_programs(
    person: UserAccount,
    programs: impl Fn(Session) -> BoxFuture<'static, ()> + Send + Sync + 'static,
) -> (Front, UserAccount) {
    Front::before(&person, programs, empty_logs).await
}

#[test]
fn top_in_a_pipe_prints_once_without_colours() {
    test("top", async |fixture| {
        let operator = up(&fixture, 2).await;
        let (front, person) = with_programs(user_of(&fixture), agents()).await;
        let output = person.run(&["top", "mc"]).await;
        assert_eq!((output.code, output.err.as_str()), (0, ""), "{output:?}");
        assert!(
            output
                .out
                .starts_with("mc: state run for 61 s; 1 of 2 brokers online\n"),
            "{output:?}"
        );
        for part in [
            "nodes      2     0     1     1\n",
            "cores      8     0     4     4\n",
            "0 running, 3 waiting",
            "mc-1  down",
        ] {
            assert!(output.out.contains(part), "no `{part}`:\n{}", output.out);
        }
        assert!(!output.out.contains('\x1b'), "{output:?}");
        assert_eq!(front.started().len(), 1, "`top` runs one program");
        assert!(
            front.started()[0].pod.starts_with("mc-0-"),
            "it runs in the lead's pod"
        );
        let json = person.run(&["top", "mc", "-o", "json"]).await;
        let json: Value = serde_json::from_str(&json.out).unwrap();
        assert_eq!(
            (&json["name"], &json["resources"]["cores"]["used"]),
            (&json!("mc"), &json!(1))
        );
        let yaml = person.run(&["-o", "yaml", "top", "mc"]).await;
        assert!(
            yaml.out.contains("\n  hosts:\n") && yaml.out.contains("waiting: 3\n"),
            "{yaml:?}"
        );
        operator.stop().await;
    });
}

#[test]
fn top_without_usage_prints_cause_and_remedy() {
    test("top-why", async |fixture| {
        let operator = fixture.operator().await;
        let plain = user_of(&fixture);
        let early = |session: Session| {
            let mut session = session;
            async move {
                let words =
                    "flux-agent: not up: the broker is in state join: it waits for its parent broker\n";
                session.complain(words).await;
                session.end(1).await;
            }
            .boxed()
        };
        let old = |session: Session| {
            let mut session = session;
            async move {
                session.complain("error: unrecognized subcommand 'usage'\n").await;
                session.end(2).await;
            }
            .boxed()
        };
        let none = plain.run(&["top", "none"]).await;
        assert!(
            none.code == 1 && none.err.contains("failed to get MiniCluster none"),
            "{none:?}"
        );
        fixture.create("mc", json!({ "size": 1 })).await;
        let pods = fixture.pods("mc", 1).await;
        let output = plain.run(&["top", "mc"]).await;
        assert!(
            output.code == 1 && output.err.contains("does not run yet") && output.err.contains("why mc"),
            "{output:?}"
        );
        fixture.run_pod(&pods[&0]).await;
        fixture.when_condition("mc", "Ready", "True").await;
        let (_front, person) = Front::before(&plain, early, empty_logs).await;
        let output = person.run(&["top", "mc"]).await;
        assert!(
            output.code == 1
                && output
                    .err
                    .contains("no usage available of mc: not up: the broker is in state join"),
            "{output:?}"
        );
        let (_front, person) = Front::before(&plain, old, empty_logs).await;
        let output = person.run(&["top", "mc"]).await;
        assert!(
            output.code == 1 && output.err.contains("is older than this program"),
            "{output:?}"
        );
        fixture.end_pod(&pods[&0], 0, "Completed", "").await;
        fixture.when_condition("mc", "JobFinished", "True").await;
        let output = plain.run(&["top", "mc"]).await;
        assert!(
            output.code == 1 && output.err.contains("mc has ended (Completed)"),
            "{output:?}"
        );
        fixture.create("later", json!({ "suspend": true })).await;
        fixture.when_condition("later", "Suspended", "True").await;
        let output = plain.run(&["top", "later"]).await;
        assert!(
            output.code == 1
                && output.err.contains("later is suspended")
                && output.err.contains("suspend\":false"),
            "{output:?}"
        );
        operator.stop().await;
    });
}

#[test]
fn commands_in_pods_need_exec_permission_and_name_it() {
    test("exec-only", async |fixture| {
        let operator = up(&fixture, 2).await;
        // exec by WebSocket is a GET request, which needs `get`. Since Kubernetes 1.35 it needs `create`, too.
        let rights = [
            ("miniclusters.flux-framework.org", "get"),
            ("pods", "get,list"),
            ("pods/exec", "get,create"),
        ];
        let (_front, one) = with_programs(user_with(&fixture, "one", &rights), agents()).await;
        for (arguments, out) in [
            (&["top", "mc"][..], "mc: state run"),
            (&["jobs", "mc"], "ƒabc"),
            (&["submit", "mc", "--", "true"], "ƒabc\n"),
            (&["status", "mc"], "What the lead's agent says"),
            (&["timeline", "mc"], "the job runs"),
        ] {
            let output = one.run(arguments).await;
            assert!(
                output.code == 0 && output.out.contains(out),
                "{arguments:?}: {output:?}"
            );
        }
        let output = one.run(&["connect", "mc", "--", "exit", "7"]).await;
        assert_eq!((output.code, output.err.as_str()), (7, "bye\n"));
        for arguments in [
            &["scale", "mc", "3"][..],
            &["logs", "mc"],
            &["run", "-d", "app:1"],
        ] {
            let output = one.run(arguments).await;
            assert!(
                output.code == 1 && output.err.contains("is forbidden"),
                "{arguments:?}: {output:?}"
            );
        }
        let (front, other) = with_programs(user_with(&fixture, "other", &rights[..2]), agents()).await;
        for arguments in [
            &["top", "mc"][..],
            &["connect", "mc", "--", "true"],
            &["jobs", "mc"],
        ] {
            let output = other.run(arguments).await;
            assert_eq!((output.code, output.out.as_str()), (1, ""), "{output:?}");
            assert!(
                output.err.contains("is forbidden") && output.err.contains("`create` `pods/exec`"),
                "{output:?}"
            );
        }
        assert!(front.started().is_empty());
        operator.stop().await;
    });
}

#[test]
fn commands_print_json_or_yaml_or_refuse_the_option() {
    test("answers", async |fixture| {
        let operator = up(&fixture, 2).await;
        let (_front, person) = with_programs(user_of(&fixture), agents()).await;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mc.tar");
        let json = async |arguments: &[&str]| -> Value {
            let output = person.run(&[arguments, &["-o", "json"]].concat()).await;
            assert_eq!(
                (output.code, output.err.as_str()),
                (0, ""),
                "{arguments:?}: {output:?}"
            );
            serde_json::from_str(&output.out).unwrap()
        };
        assert_eq!(json(&["jobs", "mc"]).await["jobs"][0]["id"], 1);
        assert_eq!(json(&["why", "mc"]).await["pods"].as_array().unwrap().len(), 2);
        assert!(json(&["timeline", "mc"]).await.is_array());
        assert_eq!(
            json(&["debug", "mc", "--to", file.to_str().unwrap()]).await["files"][1],
            "minicluster.yaml"
        );
        let scaled = person.run(&["scale", "mc", "2", "-o", "yaml"]).await;
        assert!(scaled.out.contains("kind: MiniCluster\n"), "{scaled:?}");
        assert_eq!(
            json(&["stop", "mc"]).await,
            json!({ "name": "mc", "way": "shutDown" })
        );
        let submitted = person.run(&["submit", "mc", "-o", "json", "--", "true"]).await;
        assert_eq!(
            serde_json::from_str::<Value>(&submitted.out).unwrap(),
            json!({ "jobs": ["ƒabc"] })
        );
        // A bulk submission that fails after its first job.
        let bulk = ["submit", "mc", "-o", "json", "--", "--cc=1-2", "true"];
        let failed = person.run(&bulk).await;
        assert_eq!((failed.code, failed.out.as_str()), (1, ""), "{failed:?}");
        assert_eq!(failed.err, "ƒabc\nflux-submit: ERROR: the queue is closed\n");
        for arguments in [
            &["logs", "mc", "-o", "json"][..],
            &["wait", "mc", "-o", "json"],
            &["connect", "mc", "-o", "json"],
            &["completion", "-o", "json"],
            &["run", "-o", "json", "app:1", "--", "true"],
            &["submit", "mc", "--watch", "-o", "yaml", "--", "true"],
        ] {
            let output = person.run(arguments).await;
            assert!(
                output.code == 1 && output.err.contains("` takes no -o: it "),
                "{arguments:?}: {output:?}"
            );
        }
        operator.stop().await;
    });
}

#[test]
fn interrupted_submit_says_that_the_job_goes_on() {
    test("submit-interrupted", async |fixture| {
        let operator = up(&fixture, 1).await;
        let endless = |session: Session| {
            async move {
                std::future::pending::<()>().await;
                drop(session);
            }
            .boxed()
        };
        let (front, person) = with_programs(user_of(&fixture), endless).await;
        for (number, (signal, code)) in [("-INT", 130), ("-TERM", 143)].into_iter().enumerate() {
            let mut submit = person.start(&["submit", "mc", "--watch", "--", "sleep", "inf"]);
            while front.started().len() <= number {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            send(signal, &submit);
            let mut messages = String::new();
            let mut stderr = submit.stderr.take().unwrap();
            stderr.read_to_string(&mut messages).await.unwrap();
            assert_eq!(submit.wait().await.unwrap().code(), Some(code), "{messages}");
            assert!(
                messages.contains("a submitted job goes on; see `kubectl minicluster jobs mc -n "),
                "{messages}"
            );
        }
        operator.stop().await;
    });
}

/// The container ends with the instance, and so does the agent's program that requested the shutdown.
#[test]
fn stop_is_a_shutdown_even_if_its_answer_is_lost() {
    test("stop-lost", async |fixture| {
        let operator = up(&fixture, 1).await;
        let killed = |session: Session| session.end(137).boxed();
        let (front, person) = with_programs(user_of(&fixture), killed).await;
        let lead = fixture.pods("mc", 1).await.remove(&0).unwrap();
        let (output, ()) = tokio::join!(person.run(&["stop", "mc"]), async {
            front.when_told(&["stop"]).await;
            fixture.end_pod(&lead, 0, "Completed", "").await;
        });
        assert!(
            output.code == 0 && output.out.starts_with("shutting down mc"),
            "{output:?}"
        );
        assert_eq!(fixture.get("mc").await.spec.suspend, None);
        operator.stop().await;
    });
}

/// An agent that does not shut the instance down, and prints this status.
fn refusing(status: &'static str) -> impl Fn(Session) -> BoxFuture<'static, ()> + Send + Sync {
    move |mut session| {
        async move {
            match session.words.join(" ").as_str() {
                "stop" => session.complain("flux-shutdown: refused\n").await,
                "status --json" => session.say(status).await,
                words => panic!("{words}"),
            }
            session.end(1).await;
        }
        .boxed()
    }
}

/// The output of `stop` for an owner of `mc`, with this agent.
async fn stopped_by_owner(
    fixture: &Fixture,
    agent: impl Fn(Session) -> BoxFuture<'static, ()> + Send + Sync + 'static,
) -> PluginOutput {
    let owner = [("miniclusters.flux-framework.org", "*"), ("pods,pods/exec", "*")];
    let (_front, person) = with_programs(user_with(fixture, "owner", &owner), agent).await;
    person.run(&["stop", "mc"]).await
}

#[test]
fn refused_stop_is_no_shutdown_when_the_lead_restarts() {
    test("stop-refused", async |fixture| {
        let operator = up(&fixture, 1).await;
        let run = refusing(r#"{"status":1,"state":"run","snippet":null}"#);
        let (front, person) = with_programs(user_of(&fixture), run).await;
        let lead = fixture.pods("mc", 1).await.remove(&0).unwrap();
        let (output, ()) = tokio::join!(person.run(&["stop", "mc"]), async {
            // After the refusal, the plugin asks for the status.
            front.when_told(&["status", "--json"]).await;
            let restarted = json!({ "status": { "containerStatuses": [{
                "name": lead.spec.as_ref().unwrap().containers[0].name, "image": "i", "imageID": "i", "ready": true,
                "restartCount": 1, "state": { "running": {} } }] } });
            fixture.patch_pod_status(&lead, restarted).await;
        });
        assert!(
            output.code == 1 && output.err.contains("Nothing was deleted"),
            "{output:?}"
        );
        operator.stop().await;
    });
}

#[test]
fn stop_deletes_nothing_while_the_last_steps_run() {
    let ended = r#"{"status":1,"has_broker":false,"has_ended":true,"state":null,"snippet":null}"#;
    let of_older_agent = r#"{"status":1,"state":null,"snippet":"post"}"#;
    for (name, status) in [("stop-ended", ended), ("stop-post", of_older_agent)] {
        test(name, async |fixture| {
            let operator = up(&fixture, 1).await;
            let output = stopped_by_owner(&fixture, refusing(status)).await;
            assert!(
                output.code == 0
                    && output
                        .out
                        .contains("its last steps (`post`, the archive) are not cut short"),
                "{output:?}"
            );
            let cluster = fixture.get("mc").await;
            assert_eq!(
                (cluster.metadata.deletion_timestamp, cluster.spec.suspend),
                (None, None)
            );
            operator.stop().await;
        });
    }
}

#[test]
fn stop_deletes_nothing_while_the_broker_does_not_answer() {
    test("stop-silent", async |fixture| {
        let operator = fixture.operator().await;
        fixture.create("mc", json!({ "size": 1 })).await;
        let lead = fixture.pods("mc", 1).await.remove(&0).unwrap();
        test_support::api_server::until("the status names the Job", async || {
            fixture.get("mc").await.status?.job_uid
        })
        .await;
        // The operator stops before the pod runs. So the status does not say that the instance is up.
        operator.stop().await;
        fixture.run_pod(&lead).await;
        let silent = refusing(r#"{"status":1,"has_broker":true,"state":null,"snippet":null}"#);
        let output = stopped_by_owner(&fixture, silent).await;
        assert!(
            output.code == 1 && output.err.contains("Nothing was deleted"),
            "{output:?}"
        );
        assert_eq!(fixture.get("mc").await.metadata.deletion_timestamp, None);
    });
}

#[test]
fn stop_deletes_minicluster_that_waits_for_quorum() {
    test("stop-quorum", async |fixture| {
        let operator = up(&fixture, 1).await;
        let quorum = refusing(r#"{"status":1,"state":"quorum","snippet":null}"#);
        let output = stopped_by_owner(&fixture, quorum).await;
        assert_eq!(
            (output.code, output.out.as_str()),
            (0, "deleted mc\n"),
            "{output:?}"
        );
        operator.stop().await;
    });
}

#[test]
fn stop_spares_restarted_minicluster_that_waits_for_quorum() {
    test("stop-again", async |fixture| {
        let operator = up(&fixture, 1).await;
        let lead = fixture.pods("mc", 1).await.remove(&0).unwrap();
        let restarted = json!({ "status": { "containerStatuses": [{
            "name": lead.spec.as_ref().unwrap().containers[0].name, "image": "i", "imageID": "i", "ready": true,
            "restartCount": 1, "state": { "running": {} } }] } });
        fixture.patch_pod_status(&lead, restarted).await;
        let quorum = refusing(r#"{"status":1,"state":"quorum","snippet":null}"#);
        let output = stopped_by_owner(&fixture, quorum).await;
        assert!(
            output.code == 1 && output.err.contains("its program may have run before"),
            "{output:?}"
        );
        operator.stop().await;
    });
}

#[test]
fn stop_shuts_the_instance_down_and_reports_it() {
    test("stop", async |fixture| {
        let operator = up(&fixture, 2).await;
        let (front, person) = with_programs(user_of(&fixture), agents()).await;
        let output = person.run(&["stop", "mc"]).await;
        assert_eq!(
            (output.code, output.out.as_str()),
            (
                0,
                "shutting down mc: its programs get SIGTERM and the grace period\n"
            ),
            "{output:?}"
        );
        let started = front.started();
        assert!(
            started.len() == 1 && started[0].pod.starts_with("mc-0-") && started[0].words == ["stop"],
            "{started:?}"
        );
        assert_eq!(
            fixture.get("mc").await.spec.suspend,
            None,
            "its status and logs stay"
        );
        // This user may not delete the MiniCluster, so the plugin suspends it instead.
        let output = person.run(&["stop", "--now", "mc"]).await;
        assert!(
            output.code == 0 && output.out.contains("suspended mc, which now has no pods"),
            "{output:?}"
        );
        assert_eq!(fixture.get("mc").await.spec.suspend, Some(true));
        operator.stop().await;
    });
}

#[test]
fn sixty_four_brokers_fit_on_a_screen() {
    test("many", async |fixture| {
        let operator = fixture.operator().await;
        let (_front, person) = with_programs(user_of(&fixture), agents()).await;
        fixture.create("mc", json!({ "size": 64 })).await;
        let pods = fixture.pods("mc", 64).await;
        for index in (0..64).filter(|index| *index != 40) {
            fixture.run_pod(&pods[&index]).await;
        }
        fixture
            .when("mc", "one with 63 ready brokers", |status| {
                status["readySize"] == 63
            })
            .await;
        let output = person.run(&["status", "mc"]).await;
        assert_eq!(output.code, 0, "{output:?}");
        assert!(
            output.out.contains("63 of 64 brokers ready") && output.out.contains("and 48 more"),
            "{}",
            output.out
        );
        assert!(
            output.out.contains("mc-40-"),
            "the pod that does not run is not shown: {}",
            output.out
        );
        assert!(output.out.lines().count() < 40, "{}", output.out);
        let json = person.run(&["status", "mc", "-o", "json"]).await;
        let json: Value = serde_json::from_str(&json.out).unwrap();
        assert_eq!(
            (json["pods"].as_array().unwrap().len(), &json["pods"][0]["index"]),
            (64, &json!(40))
        );
        operator.stop().await;
    });
}

#[test]
fn connect_passes_input_and_its_end_to_the_program() {
    test("input", async |fixture| {
        let operator = up(&fixture, 2).await;
        let cat = |mut session: Session| {
            async move {
                while let Some(event) = session.hear().await {
                    match event {
                        SessionEvent::Input(bytes) => session.say(&String::from_utf8(bytes).unwrap()).await,
                        SessionEvent::EndOfInput => break,
                        SessionEvent::Size(size) => panic!("no terminal, no size: {size}"),
                    }
                }
                assert!(!session.terminal);
                session.end(3).await;
            }
            .boxed()
        };
        let (_front, person) = with_programs(user_of(&fixture), cat).await;
        let mut connect = person.command(&["connect", "mc", "--", "cat"]);
        let mut connect = connect.stdin(std::process::Stdio::piped()).spawn().unwrap();
        let mut input = connect.stdin.take().unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut input, b"a  b\n")
            .await
            .unwrap();
        drop(input);
        let output = PluginOutput::when_over(connect).await;
        assert_eq!((output.code, output.out.as_str()), (3, "a  b\n"), "{output:?}");
        operator.stop().await;
    });
}

/// The network failed, or the API server was restarted.
#[test]
fn commands_in_pods_end_when_the_connection_is_lost() {
    test("lost", async |fixture| {
        let operator = up(&fixture, 1).await;
        // The session is dropped: the connection breaks without an end.
        let lost = |mut session: Session| async move { session.say("a\n").await }.boxed();
        let (_front, person) = with_programs(user_of(&fixture), lost).await;
        for (arguments, code, out, err) in [
            (
                &["connect", "mc", "--", "a"][..],
                1,
                "a\n",
                "the connection was lost",
            ),
            (
                &["submit", "mc", "--watch", "--", "a"],
                1,
                "a\n",
                "the connection was lost",
            ),
            (&["jobs", "mc", "-o", "json"], 1, "", "the connection was lost"),
            (&["status", "mc"], 0, "mc Running", ""),
            (&["stop", "mc"], 1, "", "Nothing was deleted"),
        ] {
            let child = person.command(arguments).output();
            let output = tokio::time::timeout(Duration::from_secs(30), child).await;
            let output = PluginOutput::of(output.unwrap_or_else(|_| panic!("{arguments:?} hangs")).unwrap());
            assert_eq!(output.code, code, "{arguments:?}: {output:?}");
            assert!(
                output.out.starts_with(out) && output.err.contains(err),
                "{arguments:?}: {output:?}"
            );
        }
        operator.stop().await;
    });
}

/// Like `kubectl minicluster connect ... | head`: the program prints nothing on standard error, and does not end.
#[test]
fn commands_in_pods_end_when_their_output_is_closed() {
    test("head-in-pod", async |fixture| {
        let operator = up(&fixture, 1).await;
        let prints = |mut session: Session| {
            async move {
                for _ in 0..1000 {
                    session.say(&format!("{:099}\n", 0)).await;
                }
                while session.hear().await.is_some() {}
            }
            .boxed()
        };
        let (_front, person) = with_programs(user_of(&fixture), prints).await;
        for arguments in [
            &["connect", "mc", "--", "a"][..],
            &["submit", "mc", "--watch", "--", "a"],
        ] {
            let mut child = person.start(arguments);
            let mut out = BufReader::new(child.stdout.take().unwrap());
            next_line(&mut out).await;
            drop(out);
            let ended = tokio::time::timeout(Duration::from_secs(30), child.wait()).await;
            let status = ended.unwrap_or_else(|_| panic!("{arguments:?} hangs"));
            assert_eq!(status.unwrap().code(), Some(141), "{arguments:?}");
        }
        operator.stop().await;
    });
}
