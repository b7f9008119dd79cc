//! Job output in `run` and `logs`, and stopping jobs while it is printed.

use std::time::Duration;

use flux_shared::crd::v1alpha2::MiniCluster;
use futures::FutureExt;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::Child;

use crate::front::{Front, LogRequest, Session};
use crate::in_pods::{agents, empty_logs, up};
use crate::user_account::{PluginOutput, RIGHTS, in_time, next_line, read_until};
use crate::{user_of, user_with};
use test_support::api_server::{Fixture, test, until};

#[test]
fn one_ctrl_c_stops_job_in_order_and_prints_its_last_output() {
    test("ctrl-c-once", async |fixture| {
        let operator = fixture.operator().await;
        let person = user_of(&fixture);
        let logs = |_: &LogRequest| {
            let lines = [(0, "begins"), (4, "tidies up")]
                .map(|(pause, line)| (Duration::from_secs(pause), line.to_owned()));
            Some(lines.into())
        };
        let (front, person) = Front::before(&person, agents(), logs).await;
        let mut run = person.start(&["run", "--name", "mc", "app:1", "--", "work"]);
        let pods = fixture.pods("mc", 1).await;
        fixture.run_pod(&pods[&0]).await;
        let mut out = BufReader::new(run.stdout.take().unwrap());
        let line = next_line(&mut out).await;
        assert_eq!(line, "begins\n");
        crate::runs::interrupt(&run);
        front.when_told(&["stop"]).await;
        fixture.end_pod(&pods[&0], 143, "Error", "").await;
        let mut rest = String::new();
        in_time("its output ends", out.read_to_string(&mut rest))
            .await
            .unwrap();
        let output = PluginOutput::when_over(run).await;
        assert_eq!((output.code, rest.as_str()), (143, "tidies up\n"), "{output:?}");
        assert!(
            output.err.contains("shutting down mc; press Ctrl-C again")
                && output.err.contains("shutting down mc: its programs"),
            "{output:?}"
        );
        operator.stop().await;
    });
}

#[test]
fn second_ctrl_c_deletes_without_waiting_for_the_stop() {
    test("ctrl-c-twice", async |fixture| {
        let operator = fixture.operator().await;
        // Without the right to delete, `run` would suspend the MiniCluster instead.
        let person = user_with(
            &fixture,
            "owner",
            &[
                ("miniclusters.flux-framework.org", "*"),
                ("pods", "*"),
                ("pods/exec,pods/log", "*"),
            ],
        );
        // The agent hangs, and its session stays open.
        let hangs = |session: Session| {
            async move {
                std::future::pending::<()>().await;
                drop(session);
            }
            .boxed()
        };
        let (front, person) = Front::before(&person, hangs, empty_logs).await;
        let mut run = person.start(&["run", "--name", "mc", "app:1", "--", "work"]);
        let pods = fixture.pods("mc", 1).await;
        fixture.run_pod(&pods[&0]).await;
        fixture.when_condition("mc", "Ready", "True").await;
        // Once `run` prints this line, it handles Ctrl-C.
        let mut err = BufReader::new(run.stderr.take().unwrap());
        let mut messages = read_until(&mut err, "pods: ").await;
        crate::runs::interrupt(&run);
        front.when_told(&["stop"]).await;
        crate::runs::interrupt(&run);
        in_time("it ends", err.read_to_string(&mut messages))
            .await
            .unwrap();
        assert_eq!(run.wait().await.unwrap().code(), Some(130), "{messages}");
        assert!(
            messages.contains("shutting down mc; press Ctrl-C again") && messages.contains("deleted mc"),
            "{messages}"
        );
        until("the MiniCluster is deleted", async || {
            let cluster = fixture.find::<MiniCluster>("mc").await;
            cluster
                .is_none_or(|cluster| cluster.metadata.deletion_timestamp.is_some())
                .then_some(())
        })
        .await;
        operator.stop().await;
    });
}

#[test]
fn run_prints_the_jobs_output_and_exits_with_its_code() {
    test("output", async |fixture| {
        let operator = fixture.operator().await;
        let person = user_of(&fixture);
        let logs = |request: &LogRequest| {
            // The last part of a pod's name is random. So only the first four characters are printed and compared.
            Some(vec![
                (Duration::ZERO, format!("hello from {}", &request.pod[..4])),
                (Duration::ZERO, "b  c".into()),
            ])
        };
        let (_front, person) = Front::before(&person, agents(), logs).await;
        for code in [0, 1, 42, 137, 255] {
            let name = format!("m{code}");
            let run = person.start(&["run", "--name", &name, "app:1", "--", "work"]);
            let pods = fixture.pods(&name, 1).await;
            fixture.run_pod(&pods[&0]).await;
            fixture.when_condition(&name, "Ready", "True").await;
            // Without the agent's report, 255 would mean that the node restarted.
            let report = serde_json::json!({ "version": 1, "by": "program", "code": code }).to_string();
            fixture.end_pod(&pods[&0], code, "Error", &report).await;
            let output = PluginOutput::when_over(run).await;
            assert_eq!(
                (output.code, output.out.as_str()),
                (
                    code,
                    format!("hello from {}\nb  c\n", &format!("{name}-0-")[..4]).as_str()
                ),
                "{output:?}"
            );
        }
        operator.stop().await;
    });
}

/// The output may come before the status reports that the job starts.
#[test]
fn pipe_has_no_progress_lines_after_the_first_output() {
    test("overtaken", async |fixture| {
        let operator = fixture.operator().await;
        let person = user_of(&fixture);
        let logs = |_: &LogRequest| Some(vec![(Duration::ZERO, "begins".to_owned())]);
        let (_front, person) = Front::before(&person, agents(), logs).await;
        let mut run = person.start(&["run", "--name", "mc", "--size", "2", "app:1", "--", "work"]);
        let pods = fixture.pods("mc", 2).await;
        fixture.run_pod(&pods[&0]).await;
        let mut out = BufReader::new(run.stdout.take().unwrap());
        assert_eq!(next_line(&mut out).await, "begins\n");
        fixture.run_pod(&pods[&1]).await;
        fixture.when_condition("mc", "Ready", "True").await;
        fixture.end_pod(&pods[&0], 0, "Completed", "").await;
        let output = PluginOutput::when_over(run).await;
        assert_eq!(output.code, 0, "{output:?}");
        assert!(output.err.contains("pods: "), "{output:?}");
        assert!(!output.err.contains("the job starts"), "{output:?}");
        operator.stop().await;
    });
}

#[test]
fn logs_options_follow_previous_index_and_all() {
    test("logs", async |fixture| {
        let operator = up(&fixture, 2).await;
        let person = user_of(&fixture);
        let logs = |request: &LogRequest| {
            let line = |pause, text: &str| (Duration::from_millis(pause), text.to_owned());
            let index = request.pod.split('-').nth(1).unwrap();
            match (request.previous, request.follow) {
                (true, _) if index == "0" => Some(vec![line(0, "the run before")]),
                (true, _) => None,
                (false, true) => Some(vec![line(0, "first"), line(2500, "second")]),
                (false, false) => Some(vec![line(0, &format!("I am {index}")), line(0, "")]),
            }
        };
        let (_front, person) = Front::before(&person, agents(), logs).await;
        assert_eq!(person.run(&["logs", "mc"]).await.out, "I am 0\n\n");
        assert_eq!(
            person.run(&["logs", "mc", "--index", "1"]).await.out,
            "I am 1\n\n"
        );
        let all = person.run(&["logs", "mc", "--all"]).await;
        let mut lines: Vec<&str> = all.out.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["0: ", "0: I am 0", "1: ", "1: I am 1"], "{all:?}");
        for arguments in [
            &["logs", "mc"][..],
            &["logs", "mc", "--all"],
            &["logs", "mc", "--all", "--follow"],
        ] {
            let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
            let printing = person.command(arguments).stdout(full).spawn().unwrap();
            let output = PluginOutput::when_over(printing).await;
            let is_reported = output
                .err
                .contains("failed to write the output: No space left on device");
            assert!(output.code == 1 && is_reported, "{arguments:?}: {output:?}");
        }
        let before = person.run(&["logs", "mc", "--previous"]).await;
        assert_eq!(
            (before.code, before.out.as_str()),
            (0, "the run before\n"),
            "{before:?}"
        );
        let none = person.run(&["logs", "mc", "--previous", "--index", "1"]).await;
        assert!(
            none.code == 1 && none.err.contains("previous terminated container not found"),
            "{none:?}"
        );
        let no_pod = person.run(&["logs", "mc", "--index", "7"]).await;
        assert!(
            no_pod.code == 1 && no_pod.err.contains("no pod with index 7"),
            "{no_pod:?}"
        );

        // `--follow` prints lines as they come, and ends with the container.
        let mut follow = person.start(&["logs", "mc", "--follow"]);
        let mut out = BufReader::new(follow.stdout.take().unwrap());
        let first = next_line(&mut out).await;
        assert_eq!(first, "first\n");
        assert!(
            follow.try_wait().unwrap().is_none(),
            "`logs --follow` ended early"
        );
        let pods = fixture.pods("mc", 2).await;
        fixture.end_pod(&pods[&0], 0, "Completed", "").await;
        let mut rest = String::new();
        in_time("its output ends", out.read_to_string(&mut rest))
            .await
            .unwrap();
        let output = PluginOutput::when_over(follow).await;
        assert_eq!((output.code, rest.as_str()), (0, "second\n"), "{output:?}");
        operator.stop().await;
    });
}

/// Like `kubectl minicluster run ... | head`. The exit code is 128 + SIGPIPE.
#[test]
fn closed_output_stops_the_job_and_ends_logs() {
    test("head", async |fixture| {
        let operator = fixture.operator().await;
        let person = user_of(&fixture);
        let logs = |_: &LogRequest| {
            Some(
                (0..200)
                    .map(|number| (Duration::from_millis(100), format!("line {number}")))
                    .collect(),
            )
        };
        let (front, person) = Front::before(&person, agents(), logs).await;
        let mut run = person.start(&["run", "--name", "mc", "app:1", "--", "work"]);
        let pods = fixture.pods("mc", 1).await;
        let mut follow = person.start(&["logs", "--follow", "mc"]);
        fixture.run_pod(&pods[&0]).await;
        for child in [&mut run, &mut follow] {
            let mut out = BufReader::new(child.stdout.take().unwrap());
            let first = next_line(&mut out).await;
            assert_eq!(first, "line 0\n");
            // Dropping `out` closes the pipe.
        }
        let follow = PluginOutput::when_over(follow).await;
        assert_eq!(
            (follow.code, follow.err.contains("closed")),
            (141, false),
            "{follow:?}"
        );
        front.when_told(&["stop"]).await;
        fixture.end_pod(&pods[&0], 143, "Error", "").await;
        let run = PluginOutput::when_over(run).await;
        assert_eq!(run.code, 141, "{run:?}");
        assert!(
            run.err.contains("nobody reads the output: shutting down mc"),
            "{run:?}"
        );
        operator.stop().await;
    });
}

/// Like `kubectl minicluster run ... | less`: the reader reads nothing for a while.
#[test]
fn ctrl_c_stops_the_job_while_nobody_reads_its_output() {
    test("less", async |fixture| {
        let text = output_read_after_ctrl_c(&fixture, false).await;
        let numbers: Vec<usize> = text.lines().filter_map(|line| line.parse().ok()).collect();
        assert_eq!(numbers, (0..60).collect::<Vec<_>>());
    });
}

/// Like `kubectl minicluster run ... 2>&1 | less`.
#[test]
fn ctrl_c_stops_the_job_while_nobody_reads_the_messages() {
    test("less-both", async |fixture| {
        let text = output_read_after_ctrl_c(&fixture, true).await;
        for message in [
            "created MiniCluster mc",
            "shutting down mc; press Ctrl-C again",
            "mc failed (Signalled)",
        ] {
            assert!(
                text.contains(message),
                "no `{message}`: {}",
                text.replace('0', "")
            );
        }
    });
}

/// Interrupts a run whose standard output is read only after the job has ended. Returns the output. `has_errors`:
/// standard error goes there, too.
async fn output_read_after_ctrl_c(fixture: &Fixture, has_errors: bool) -> String {
    let operator = fixture.operator().await;
    let person = user_of(fixture);
    // More than fits into a pipe.
    let lines = |_: &LogRequest| {
        let line = |number| (Duration::ZERO, format!("{number:010000}"));
        Some((0..60).map(line).collect())
    };
    let (front, person) = Front::before(&person, agents(), lines).await;
    let (mut out, writer) = std::io::pipe().unwrap();
    let mut command = person.command(&["run", "--name", "mc", "app:1", "--", "work"]);
    if has_errors {
        command.stderr(writer.try_clone().unwrap());
    }
    let run = command.stdout(writer).spawn().unwrap();
    // `command` holds the writing end of the pipe, too: until it is dropped, reading would not end.
    drop(command);
    let pods = fixture.pods("mc", 1).await;
    fixture.run_pod(&pods[&0]).await;
    // Gives `run` the time to fill the pipe.
    fixture.when_condition("mc", "Ready", "True").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    crate::runs::interrupt(&run);
    front.when_told(&["stop"]).await;
    fixture.end_pod(&pods[&0], 143, "Error", "").await;
    fixture.when_condition("mc", "JobFinished", "True").await;
    let read = tokio::task::spawn_blocking(move || std::io::read_to_string(&mut out));
    let text = in_time("its output ends", read).await.unwrap().unwrap();
    let output = PluginOutput::when_over(run).await;
    assert_eq!(output.code, 143, "{output:?}");
    operator.stop().await;
    text
}

/// A user without the right to run programs in pods cannot shut the instance down.
#[test]
fn run_ends_when_its_stop_fails() {
    test("stop-fails", async |fixture| {
        let operator = fixture.operator().await;
        let mut rights = RIGHTS.to_vec();
        rights.retain(|(resource, _)| *resource != "pods/exec");
        let person = user_with(&fixture, "reader", &rights);
        let logs = |_: &LogRequest| {
            Some(
                (0..2000)
                    .map(|number| (Duration::from_millis(100), format!("line {number}")))
                    .collect(),
            )
        };
        let (_front, person) = Front::before(&person, agents(), logs).await;
        // At its end, `run` sets `cleanup`, so that the operator deletes the MiniCluster. After SIGTERM, a stop that
        // fails ends `run` without this.
        for (name, code, cleanup) in [("head", 141, true), ("less", 141, true), ("terminated", 1, false)] {
            let mut run = person.start(&["run", "--name", name, "app:1", "--", "work"]);
            let pods = fixture.pods(name, 1).await;
            fixture.run_pod(&pods[&0]).await;
            let mut out = BufReader::new(run.stdout.take().unwrap());
            next_line(&mut out).await;
            if name == "terminated" {
                crate::runs::send("-TERM", &run);
            } else {
                if name == "less" {
                    // Like Ctrl-C in less, and then q.
                    crate::runs::interrupt(&run);
                    let mut errors = BufReader::new(run.stderr.as_mut().unwrap());
                    read_until(&mut errors, "`create` `pods/exec`").await;
                }
                drop(out);
            }
            let output = PluginOutput::when_over(run).await;
            assert_eq!(output.code, code, "{output:?}");
            assert!(output.err.contains("`create` `pods/exec`"), "{output:?}");
            assert_eq!(fixture.get(name).await.spec.cleanup, cleanup);
        }
        operator.stop().await;
    });
}

/// Creates `mc` of one pod, whose log is `hello`, and follows its log before the pod runs.
async fn follows_new_cluster(fixture: &Fixture) -> (Front, Child) {
    let person = user_of(fixture);
    let logs = |_: &LogRequest| Some(vec![(Duration::ZERO, "hello".to_owned())]);
    let (front, person) = Front::before(&person, agents(), logs).await;
    fixture.create("mc", serde_json::json!({ "size": 1 })).await;
    (front, person.start(&["logs", "-f", "mc"]))
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
                .when("mc", "one that reports the image", |status| {
                    // The reason stays while the kubelet alternates.
                    status["reason"] == "ErrImagePull" && status["message"].to_string().contains(&message)
                })
                .await;
            // `logs` reads the status once a second, so it sees each of the four.
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        fixture.run_pod(&pods[&0]).await;
        fixture.when_condition("mc", "Ready", "True").await;
        fixture.end_pod(&pods[&0], 0, "Completed", "").await;
        let output = PluginOutput::when_over(follow).await;
        assert_eq!((output.code, output.out.as_str()), (0, "hello\n"), "{output:?}");
        for obstacle in ["ErrImagePull of app:1", "ImagePullBackOff of app:1"] {
            assert_eq!(output.err.matches(obstacle).count(), 1, "{}", output.err);
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
        // Gives `logs` the time to see that the pod does not run yet.
        tokio::time::sleep(Duration::from_secs(2)).await;
        fixture.run_pod(&pods[&0]).await;
        fixture.when_condition("mc", "Ready", "True").await;
        fixture.end_pod(&pods[&0], 0, "Completed", "").await;
        let output = PluginOutput::when_over(follow).await;
        assert_eq!((output.code, output.out.as_str()), (0, "hello\n"), "{output:?}");
        assert!(
            output.err.starts_with("waiting for the pod with index 0 ("),
            "{output:?}"
        );
        operator.stop().await;
    });
}

/// The log of pod 0 has a line each 100 ms. That of pod 1 stays silent, or cannot be read.
#[test]
fn logs_of_all_do_not_wait_for_a_pod_whose_log_stays_open() {
    test("logs-all", async |fixture| {
        let operator = up(&fixture, 2).await;
        let person = user_of(&fixture);
        for is_readable in [true, false] {
            let logs = move |request: &LogRequest| {
                if request.pod.starts_with("mc-0-") {
                    let line = |number| (Duration::from_millis(100), format!("line {number}"));
                    return Some((0..2000).map(line).collect());
                }
                is_readable.then(|| vec![(Duration::from_secs(3600), "late".to_owned())])
            };
            let (_front, person) = Front::before(&person, agents(), logs).await;
            let mut follow = person.start(&["logs", "mc", "--all", "--follow"]);
            let mut out = BufReader::new(follow.stdout.take().unwrap());
            next_line(&mut out).await;
            if !is_readable {
                let mut errors = BufReader::new(follow.stderr.as_mut().unwrap());
                let mut message = String::new();
                let read = tokio::time::timeout(Duration::from_secs(30), errors.read_line(&mut message));
                read.await.expect("the message comes at once").unwrap();
                assert!(message.contains("failed to read the log of mc-1-"), "{message}");
            }
            drop(out);
            let ended = tokio::time::timeout(Duration::from_secs(30), follow.wait()).await;
            let status = ended.expect("it ends when nobody reads it").unwrap();
            assert_eq!(status.code(), Some(141));
        }
        operator.stop().await;
    });
}
