//! What jobs print, by `run` and `logs`; and how they are stopped meanwhile.

use std::time::Duration;

use flux_shared::crd::v1alpha2::MiniCluster;
use futures::FutureExt;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::Child;

use crate::front::{Asked, Front, Session};
use crate::in_pods::{agents, no_logs, up};
use crate::user_account::{RIGHTS, Said, UserAccount, in_time};
use crate::{user_of, user_with};
use test_support::api_server::{Fixture, test, until};

#[test]
fn one_ctrl_c_stops_job_in_order_and_prints_its_last_output() {
    test("ctrl-c-once", async |fixture| {
        let operator = fixture.operator().await;
        let person = user_of(&fixture);
        let logs = |asked: &Asked| {
            let lines = [(0, "begins"), (4, "tidies up")]
                .map(|(pause, line)| (Duration::from_secs(pause), line.to_owned()));
            asked.follow.then(|| lines.to_vec()).or(Some(lines.to_vec()))
        };
        let (front, kubeconfig) = Front::before(&person.kubeconfig, agents(), logs).await;
        let person = UserAccount { kubeconfig, ..person };
        let mut run = person.starts(&["run", "--name", "mc", "app:1", "--", "work"]);
        let pods = fixture.pods("mc", 1).await;
        fixture.run_pod(&pods[&0]).await;
        let mut out = BufReader::new(run.stdout.take().unwrap());
        let mut line = String::new();
        in_time("it prints a line", out.read_line(&mut line))
            .await
            .unwrap();
        assert_eq!(line, "begins\n");
        crate::runs::interrupt(&run);
        test_support::api_server::until("it is told to stop", async || {
            front
                .started()
                .iter()
                .any(|it| it.words == ["stop"])
                .then_some(())
        })
        .await;
        fixture.end_pod(&pods[&0], 143, "Error", "").await;
        let mut rest = String::new();
        in_time("its output ends", out.read_to_string(&mut rest))
            .await
            .unwrap();
        let said = Said::when_over(run).await;
        assert_eq!((said.code, rest.as_str()), (143, "tidies up\n"), "{said:?}");
        assert!(
            said.err.contains("shutting down mc; press Ctrl-C again")
                && said.err.contains("shutting down mc: its programs"),
            "{said:?}"
        );
        operator.stop().await;
    });
}

#[test]
fn a_second_ctrl_c_waits_for_nothing() {
    test("ctrl-c-twice", async |fixture| {
        let operator = fixture.operator().await;
        let person = user_with(
            &fixture,
            "owner",
            &[
                ("miniclusters.flux-framework.org", "*"),
                ("pods", "*"),
                ("pods/exec,pods/log", "*"),
            ],
        );
        // The agent hangs.
        let hangs = |session: Session| {
            async move {
                std::future::pending::<()>().await;
                session.end(0).await;
            }
            .boxed()
        };
        let (front, kubeconfig) = Front::before(&person.kubeconfig, hangs, no_logs).await;
        let person = UserAccount { kubeconfig, ..person };
        let mut run = person.starts(&["run", "--name", "mc", "app:1", "--", "work"]);
        let pods = fixture.pods("mc", 1).await;
        fixture.run_pod(&pods[&0]).await;
        fixture.when_condition("mc", "Ready", "True").await;
        // It listens from when it says what it waits for.
        let mut err = BufReader::new(run.stderr.take().unwrap());
        let mut told = String::new();
        while !told.contains("pods: ") {
            assert!(
                in_time("it says what it waits for", err.read_line(&mut told))
                    .await
                    .unwrap()
                    > 0,
                "{told}"
            );
        }
        crate::runs::interrupt(&run);
        test_support::api_server::until("it stops in order", async || {
            (!front.started().is_empty()).then_some(())
        })
        .await;
        crate::runs::interrupt(&run);
        in_time("it ends", err.read_to_string(&mut told)).await.unwrap();
        assert_eq!(run.wait().await.unwrap().code(), Some(130), "{told}");
        assert!(
            told.contains("shutting down mc; press Ctrl-C again") && told.contains("deleted mc"),
            "{told}"
        );
        test_support::api_server::until("it is deleted", async || {
            let there = fixture.api::<MiniCluster>().get_opt("mc").await.unwrap();
            there
                .is_none_or(|it| it.metadata.deletion_timestamp.is_some())
                .then_some(())
        })
        .await;
        operator.stop().await;
    });
}

#[test]
fn the_job_s_output_and_code_are_those_of_run() {
    test("output", async |fixture| {
        let operator = fixture.operator().await;
        let person = user_of(&fixture);
        let logs = |asked: &Asked| {
            Some(vec![
                (Duration::ZERO, format!("hello from {}", &asked.pod[..4])),
                (Duration::ZERO, "b  c".into()),
            ])
        };
        let (_front, kubeconfig) = Front::before(&person.kubeconfig, agents(), logs).await;
        let person = UserAccount { kubeconfig, ..person };
        for code in [0, 1, 42, 137, 255] {
            let name = format!("m{code}");
            let run = person.starts(&["run", "--name", &name, "app:1", "--", "work"]);
            let pods = fixture.pods(&name, 1).await;
            fixture.run_pod(&pods[&0]).await;
            fixture.when_condition(&name, "Ready", "True").await;
            // A code of 255 without the agent's report is a node's restart, not the program's end.
            let report = serde_json::json!({ "version": 1, "by": "program", "code": code }).to_string();
            fixture.end_pod(&pods[&0], code, "Error", &report).await;
            let said = Said::when_over(run).await;
            assert_eq!(
                (said.code, said.out.as_str()),
                (
                    code,
                    format!("hello from {}\nb  c\n", &format!("{name}-0-")[..4]).as_str()
                ),
                "{said:?}"
            );
        }
        operator.stop().await;
    });
}

#[test]
fn logs_follow_and_of_a_run_before_and_of_all() {
    test("logs", async |fixture| {
        let operator = up(&fixture, 2).await;
        let person = user_of(&fixture);
        let logs = |asked: &Asked| {
            let line = |pause, text: &str| (Duration::from_millis(pause), text.to_owned());
            let index = asked.pod.split('-').nth(1).unwrap();
            match (asked.previous, asked.follow) {
                (true, _) if index == "0" => Some(vec![line(0, "the run before")]),
                (true, _) => None,
                (false, true) => Some(vec![line(0, "first"), line(2500, "second")]),
                (false, false) => Some(vec![line(0, &format!("I am {index}")), line(0, "")]),
            }
        };
        let (_front, kubeconfig) = Front::before(&person.kubeconfig, agents(), logs).await;
        let person = UserAccount { kubeconfig, ..person };
        assert_eq!(person.says(&["logs", "mc"]).await.out, "I am 0\n\n");
        assert_eq!(
            person.says(&["logs", "mc", "--index", "1"]).await.out,
            "I am 1\n\n"
        );
        let all = person.says(&["logs", "mc", "--all"]).await;
        let mut lines: Vec<&str> = all.out.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["0: ", "0: I am 0", "1: ", "1: I am 1"], "{all:?}");
        let before = person.says(&["logs", "mc", "--previous"]).await;
        assert_eq!(
            (before.code, before.out.as_str()),
            (0, "the run before\n"),
            "{before:?}"
        );
        let none = person.says(&["logs", "mc", "--previous", "--index", "1"]).await;
        assert!(
            none.code == 1 && none.err.contains("previous terminated container not found"),
            "{none:?}"
        );
        let no_pod = person.says(&["logs", "mc", "--index", "7"]).await;
        assert!(
            no_pod.code == 1 && no_pod.err.contains("no pod with index 7"),
            "{no_pod:?}"
        );

        // Lines come as they are printed, and it ends with the container.
        let mut follow = person.starts(&["logs", "mc", "--follow"]);
        let mut out = BufReader::new(follow.stdout.take().unwrap());
        let mut first = String::new();
        in_time("it prints a line", out.read_line(&mut first))
            .await
            .unwrap();
        assert_eq!(first, "first\n");
        assert!(follow.try_wait().unwrap().is_none(), "it goes on");
        let pods = fixture.pods("mc", 2).await;
        fixture.end_pod(&pods[&0], 0, "Completed", "").await;
        let mut rest = String::new();
        in_time("its output ends", out.read_to_string(&mut rest))
            .await
            .unwrap();
        let said = Said::when_over(follow).await;
        assert_eq!((said.code, rest.as_str()), (0, "second\n"), "{said:?}");
        operator.stop().await;
    });
}

/// As `| head` does.
#[test]
fn closed_output_stops_the_job_and_ends_logs() {
    test("head", async |fixture| {
        let operator = fixture.operator().await;
        let person = user_of(&fixture);
        let logs = |_: &Asked| {
            Some(
                (0..200)
                    .map(|number| (Duration::from_millis(100), format!("line {number}")))
                    .collect(),
            )
        };
        let (front, kubeconfig) = Front::before(&person.kubeconfig, agents(), logs).await;
        let person = UserAccount { kubeconfig, ..person };
        let mut run = person.starts(&["run", "--name", "mc", "app:1", "--", "work"]);
        let pods = fixture.pods("mc", 1).await;
        let mut follow = person.starts(&["logs", "--follow", "mc"]);
        fixture.run_pod(&pods[&0]).await;
        for child in [&mut run, &mut follow] {
            let mut out = BufReader::new(child.stdout.take().unwrap());
            let mut first = String::new();
            in_time("it prints a line", out.read_line(&mut first))
                .await
                .unwrap();
            assert_eq!(first, "line 0\n");
        }
        let follow = Said::when_over(follow).await;
        assert_eq!(
            (follow.code, follow.err.contains("closed")),
            (141, false),
            "{follow:?}"
        );
        until("it is stopped", async || {
            front
                .started()
                .iter()
                .any(|started| started.words == ["stop"])
                .then_some(())
        })
        .await;
        fixture.end_pod(&pods[&0], 143, "Error", "").await;
        let run = Said::when_over(run).await;
        assert_eq!(run.code, 141, "{run:?}");
        assert!(
            run.err.contains("nobody reads the output: shutting down mc"),
            "{run:?}"
        );
        operator.stop().await;
    });
}

/// Who may not run programs in pods cannot shut the instance down.
#[test]
fn run_ends_when_its_stop_fails() {
    test("stop-fails", async |fixture| {
        let operator = fixture.operator().await;
        let mut rights = RIGHTS.to_vec();
        rights.retain(|(resource, _)| *resource != "pods/exec");
        let person = user_with(&fixture, "reader", &rights);
        let logs = |_: &Asked| {
            Some(
                (0..2000)
                    .map(|number| (Duration::from_millis(100), format!("line {number}")))
                    .collect(),
            )
        };
        let (_front, kubeconfig) = Front::before(&person.kubeconfig, agents(), logs).await;
        let person = UserAccount { kubeconfig, ..person };
        for (name, code, cleanup) in [("head", 141, true), ("terminated", 1, false)] {
            let mut run = person.starts(&["run", "--name", name, "app:1", "--", "work"]);
            let pods = fixture.pods(name, 1).await;
            fixture.run_pod(&pods[&0]).await;
            let mut out = BufReader::new(run.stdout.take().unwrap());
            let mut first = String::new();
            in_time("it prints a line", out.read_line(&mut first))
                .await
                .unwrap();
            if name == "terminated" {
                crate::runs::send("-TERM", &run);
            } else {
                drop(out);
            }
            let said = Said::when_over(run).await;
            assert_eq!(said.code, code, "{said:?}");
            assert!(said.err.contains("`create` `pods/exec`"), "{said:?}");
            assert_eq!(fixture.get(name).await.spec.cleanup, cleanup);
        }
        operator.stop().await;
    });
}

/// Creates `mc` of one pod, whose log is `hello`, and follows its log before the pod runs.
async fn follows_new_cluster(fixture: &Fixture) -> (Front, Child) {
    let person = user_of(fixture);
    let logs = |_: &Asked| Some(vec![(Duration::ZERO, "hello".to_owned())]);
    let (front, kubeconfig) = Front::before(&person.kubeconfig, agents(), logs).await;
    let person = UserAccount { kubeconfig, ..person };
    fixture
        .create("mc", serde_json::json!({ "size": 1 }))
        .await
        .unwrap();
    (front, person.starts(&["logs", "-f", "mc"]))
}

#[test]
fn logs_follow_prints_each_obstacle_once() {
    test("obstacles", async |fixture| {
        let operator = fixture.operator().await;
        let (_front, follow) = follows_new_cluster(&fixture).await;
        let pods = fixture.pods("mc", 1).await;
        for reason in [
            "ErrImagePull",
            "ImagePullBackOff",
            "ErrImagePull",
            "ImagePullBackOff",
        ] {
            let message = format!("{reason} of app:1");
            let waiting = serde_json::json!({ "status": { "phase": "Pending", "initContainerStatuses": [{
                "name": "flux-agent", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                "state": { "waiting": { "reason": reason, "message": message } },
            }] } });
            fixture.patch_pod_status(&pods[&0], waiting).await;
            fixture
                .when("mc", "told of the image", |status| {
                    // The reason stays while the kubelet alternates.
                    status["reason"] == "ErrImagePull" && status["message"].to_string().contains(&message)
                })
                .await;
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        fixture.run_pod(&pods[&0]).await;
        fixture.when_condition("mc", "Ready", "True").await;
        fixture.end_pod(&pods[&0], 0, "Completed", "").await;
        let said = Said::when_over(follow).await;
        assert_eq!((said.code, said.out.as_str()), (0, "hello\n"), "{said:?}");
        for obstacle in ["ErrImagePull of app:1", "ImagePullBackOff of app:1"] {
            assert_eq!(said.err.matches(obstacle).count(), 1, "{}", said.err);
        }
        operator.stop().await;
    });
}

#[test]
fn logs_follow_waits_for_the_pod_to_start() {
    test("early", async |fixture| {
        let operator = fixture.operator().await;
        let (_front, follow) = follows_new_cluster(&fixture).await;
        let pods = fixture.pods("mc", 1).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        fixture.run_pod(&pods[&0]).await;
        fixture.when_condition("mc", "Ready", "True").await;
        fixture.end_pod(&pods[&0], 0, "Completed", "").await;
        let said = Said::when_over(follow).await;
        assert_eq!((said.code, said.out.as_str()), (0, "hello\n"), "{said:?}");
        assert!(
            said.err.starts_with("waiting for the pod with index 0 ("),
            "{said:?}"
        );
        operator.stop().await;
    });
}
