use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::SignedDuration;
use serde_json::{Value, json};

use super::*;
use crate::testing::{
    Answer, Log, LogEnd, Requests, answering, failed, failing_plugin, in_other, never_waiting, server,
};

fn args() -> Args {
    Args {
        name: "mc".into(),
        index: 0,
        all: true,
        follow: false,
        previous: false,
        container: None,
    }
}

/// A pod whose only container was restarted `restarts` times, and is in this state.
fn pod(restarts: i32, state: &str) -> Pod {
    let state = json!({ state: if state == "terminated" { json!({ "exitCode": 1 }) } else { json!({}) } });
    serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "mc-0-x", "uid": "u" },
        "spec": { "containers": [{ "name": "flux" }] },
        "status": { "containerStatuses": [{ "name": "flux", "image": "i", "imageID": "",
            "ready": false, "restartCount": restarts, "state": state }] },
    }))
    .unwrap()
}

/// A pod whose only container has ended.
fn ended_pod() -> Pod {
    pod(0, "terminated")
}

// Each read of a log repeats the last line of the read before. So if LATER alone follows LINE, lines are missing, or
// LATER is from the next container's log.
const LINE: &[u8] = b"2026-01-01T00:00:00.1Z a\n";
const LATER: &[u8] = b"2026-01-01T00:00:00.3Z c\n";

fn whole(bytes: &'static [u8]) -> Log {
    Log {
        bytes,
        end: LogEnd::Whole,
    }
}

fn stalled(bytes: &'static [u8]) -> Log {
    Log {
        bytes,
        end: LogEnd::Stalled,
    }
}

fn broken(bytes: &'static [u8]) -> Log {
    Log {
        bytes,
        end: LogEnd::Broken,
    }
}

/// Follows the log of a container that runs during the first read, and has ended after it. Returns the result, and
/// how many of `logs` were not read.
async fn followed(logs: Vec<Log>) -> (Result<(), Failure>, usize) {
    let (target, left, _) = server([Some(ended_pod())], logs);
    let start = start(0);
    let result = follow(
        &target.pods(),
        &pod(0, "running"),
        &start,
        &mut Resume::default(),
        screen::put_beside,
        |_| (),
    )
    .await;
    let left = left.lock().unwrap().len();
    (result, left)
}

/// The kubelet skips lines of a log that it rotates while somebody follows it.
#[tokio::test(start_paused = true)]
async fn follow_warns_of_a_log_that_was_probably_rotated() {
    for (lines, expected) in [(1_000, 0), (9_000, 1)] {
        let line = format!("2026-01-01T00:00:00.1Z {}\n", "a".repeat(1_000));
        let log: &'static [u8] = line.repeat(lines).leak().as_bytes();
        let (target, _, _) = server([Some(ended_pod())], vec![whole(log)]);
        let warnings = std::cell::Cell::new(0);
        let say =
            |text: &str| warnings.set(warnings.get() + u32::from(text.starts_with("lines may be missing")));
        let (pods, start) = (target.pods(), start(0));
        let put = async |_| Ok(());
        follow(&pods, &ended_pod(), &start, &mut Resume::default(), put, say)
            .await
            .unwrap();
        assert_eq!(warnings.get(), expected, "{lines}");
    }
}

fn start(restarts: i32) -> ContainerStart {
    ContainerStart {
        pod_uid: "u".to_owned(),
        container: "flux".to_owned(),
        restarts,
    }
}

/// Follows the log of a running pod's first start; later the API server sends `pods`. Returns the result, and the
/// requests for logs.
async fn followed_while_pod_becomes(
    pods: Vec<Option<Pod>>,
    logs: Vec<Log>,
    resume: &mut Resume,
) -> (Result<(), Failure>, Vec<String>) {
    let (target, _, requests) = server(pods, logs);
    let start = start(0);
    let result = follow(
        &target.pods(),
        &pod(0, "running"),
        &start,
        resume,
        screen::put_beside,
        |_| (),
    )
    .await;
    let mut requests = requests.lock().unwrap().clone();
    requests.retain(|request| request.contains("/log?"));
    (result, requests)
}

#[tokio::test(start_paused = true)]
async fn follow_fails_when_the_pod_goes_before_its_last_lines() {
    let (result, _) =
        followed_while_pod_becomes(vec![None], vec![broken(LINE)], &mut Resume::default()).await;
    let failure = result.unwrap_err().to_string();
    assert!(failure.contains("its pod is gone"), "{failure}");
    // The API server sent the whole log.
    let (result, _) = followed_while_pod_becomes(vec![None], vec![whole(LINE)], &mut Resume::default()).await;
    result.unwrap();
}

/// A kubelet that was just restarted does not know its pods yet, and answers 404.
#[tokio::test(start_paused = true)]
async fn follow_outlasts_a_restart_of_the_kubelet() {
    for is_whole in [true, false] {
        let mut logs = 0;
        let (target, _) = answering(move |request| {
            if !request.contains("/log?") {
                let state = if logs > 3 { "terminated" } else { "running" };
                return Answer::Json(200, serde_json::to_value(pod(0, state)).unwrap());
            }
            logs += 1;
            match logs {
                1 if is_whole => Answer::Log(whole(LINE)),
                1 => Answer::Log(broken(LINE)),
                2 | 3 => failed(404),
                _ => Answer::Log(whole(LINE)),
            }
        });
        let (pods, pod, start, mut resume) = (target.pods(), pod(0, "running"), start(0), Resume::default());
        let result = follow(&pods, &pod, &start, &mut resume, screen::put_beside, |_| ()).await;
        assert!(result.is_ok(), "{result:?}");
    }
}

/// The MiniCluster to which the pods of `with_index` belong.
fn cluster() -> Value {
    json!({
        "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster",
        "metadata": { "name": "mc", "uid": "c" }, "spec": { "size": 2, "containers": [] },
        "status": { "jobUid": "j" },
    })
}

fn with_index(index: &str) -> Value {
    let mut pod = serde_json::to_value(ended_pod()).unwrap();
    pod["metadata"]["name"] = format!("mc-{index}").into();
    pod["metadata"]["labels"] = json!({
        "batch.kubernetes.io/job-completion-index": index, "batch.kubernetes.io/controller-uid": "j",
    });
    pod
}

/// The API server is away for a while before the pod starts. The pods of other indices are not listed.
#[tokio::test(start_paused = true)]
async fn follow_waits_for_its_pod_through_an_outage() {
    let begin = Instant::now();
    let (target, requests) = answering(move |request| {
        let seconds = begin.elapsed().as_secs();
        if (5..35).contains(&seconds) {
            return failed(503);
        }
        if request.contains("/log?") {
            return Answer::Log(whole(LINE));
        }
        Answer::Json(
            200,
            if request.contains("/pods?") {
                let pods = if seconds < 5 {
                    vec![]
                } else {
                    vec![with_index("1")]
                };
                json!({ "metadata": {}, "items": pods })
            } else if request.contains("/pods/") {
                with_index("1")
            } else {
                cluster()
            },
        )
    });
    let args = Args {
        index: 1,
        all: false,
        follow: true,
        ..args()
    };
    assert_eq!(run(&target, &args).await.unwrap(), 0);
    let requests = requests.lock().unwrap();
    let mut lists = requests.iter().filter(|request| request.contains("/pods?"));
    assert!(
        lists.all(|request| request.contains("job-completion-index%3D1")),
        "{requests:?}"
    );
}

/// An API server that has just started may reject credentials (401) and not know all roles (403) yet.
#[tokio::test(start_paused = true)]
async fn follow_waits_for_its_pod_through_some_refusals() {
    for code in [401, 403] {
        for (refusals, is_found) in [(FAILURE_LIMIT - 1, true), (u32::MAX, false)] {
            let (mut requests, mut left) = (0, refusals);
            let (target, _) = answering(move |request| {
                requests += 1;
                if requests > 2 && left > 0 {
                    left -= 1;
                    return failed(code);
                }
                if request.contains("/log?") {
                    return Answer::Log(whole(LINE));
                }
                let pods = if requests > 2 {
                    vec![with_index("0")]
                } else {
                    vec![]
                };
                let answer = if request.contains("/pods?") {
                    json!({ "metadata": {}, "items": pods })
                } else if request.contains("/pods/") {
                    with_index("0")
                } else {
                    cluster()
                };
                Answer::Json(200, answer)
            });
            let args = Args {
                all: false,
                follow: true,
                ..args()
            };
            let result = tokio::time::timeout(Duration::from_secs(600), run(&target, &args)).await;
            assert_eq!(result.unwrap().is_ok(), is_found, "{code}: {refusals}");
        }
    }
}

/// Before its first answer, the address of the API server may be wrong.
#[tokio::test(start_paused = true)]
async fn follow_fails_when_the_first_call_is_unanswered() {
    let (target, _) = answering(|_| failed(503));
    let args = Args {
        all: false,
        follow: true,
        ..args()
    };
    run(&target, &args).await.unwrap_err();
}

#[tokio::test]
async fn logs_without_a_pod_name_the_remedy_with_its_namespace() {
    for (all, what) in [(true, "no pods"), (false, "no pod with index 0")] {
        let (target, _) = in_other(answering(|request| {
            if request.contains("/pods?") {
                Answer::Json(200, json!({ "metadata": {}, "items": [] }))
            } else {
                Answer::Json(200, cluster())
            }
        }));
        let failure = run(&target, &Args { all, ..args() }).await.unwrap_err();
        let text = format!("mc has {what}: `kubectl minicluster why mc -n other` says why");
        assert_eq!(failure.to_string(), text);
    }
}

#[tokio::test(start_paused = true)]
async fn all_logs_fail_if_one_cannot_be_read() {
    let (target, _) = answering(move |request| {
        if request.contains("mc-1/log?") {
            failed(403)
        } else if request.contains("/log?") {
            Answer::Log(whole(b"a\n"))
        } else if request.contains("/pods?") {
            let pods = [with_index("0"), with_index("1")];
            Answer::Json(200, json!({ "metadata": {}, "items": pods }))
        } else {
            Answer::Json(200, cluster())
        }
    });
    assert_eq!(run(&target, &args()).await.unwrap(), FAILED);
}

#[tokio::test(start_paused = true)]
async fn follow_fails_at_once_without_the_permission_to_read_logs() {
    let (target, _) = answering(|request| {
        assert!(request.contains("/log?"), "nothing else is asked: {request}");
        failed(403)
    });
    let result = follow(
        &target.pods(),
        &pod(0, "running"),
        &start(0),
        &mut Resume::default(),
        screen::put_beside,
        |_| (),
    )
    .await;
    let failure = result.unwrap_err().to_string();
    assert!(failure.contains("failed to read the whole log"), "{failure}");
}

/// An API server that has just started may reject credentials for a moment, too.
#[tokio::test(start_paused = true)]
async fn follow_fails_when_the_credentials_have_expired() {
    for (rejections, is_whole) in [(2, true), (u32::MAX, false)] {
        let (mut reads, mut left) = (0, rejections);
        let (target, _) = answering(move |request| {
            reads += 1;
            if reads > 1 && left > 0 {
                left -= 1;
                return failed(401);
            }
            if request.contains("/log?") {
                Answer::Log(whole(LINE))
            } else {
                Answer::Json(200, serde_json::to_value(ended_pod()).unwrap())
            }
        });
        let (pods, pod, start, mut resume) = (target.pods(), pod(0, "running"), start(0), Resume::default());
        let result = follow(&pods, &pod, &start, &mut resume, screen::put_beside, |_| ());
        let result = tokio::time::timeout(Duration::from_secs(600), result)
            .await
            .unwrap();
        assert_eq!(result.is_ok(), is_whole, "{result:?}");
        if let Err(failure) = result {
            assert!(failure.to_string().ends_with("Log in again"), "{failure}");
        }
    }
}

/// The plugin may fail for a while, for example because a VPN is down.
#[tokio::test(start_paused = true)]
async fn follow_fails_when_the_credential_plugin_fails_for_long() {
    let mut args = args();
    (args.all, args.follow) = (false, true);
    for has_started in [true, false] {
        let (failing, mut calls) = (failing_plugin(), 0);
        let (target, _) = answering(move |request| {
            calls += 1;
            if calls > 2 {
                failing()
            } else if request.contains("/pods?") {
                Answer::Json(200, json!({ "metadata": {}, "items": [] }))
            } else {
                Answer::Json(200, cluster())
            }
        });
        let begin = Instant::now();
        let failure = if has_started {
            let (pods, pod, start, mut resume) =
                (target.pods(), pod(0, "running"), start(0), Resume::default());
            follow(&pods, &pod, &start, &mut resume, screen::put_beside, |_| ())
                .await
                .unwrap_err()
        } else {
            run(&target, &args).await.unwrap_err()
        };
        let seconds = begin.elapsed().as_secs();
        assert!((300..400).contains(&seconds), "{seconds}");
        assert!(
            failure
                .to_string()
                .ends_with("printed no credentials. Log in again"),
            "{failure}"
        );
    }
}

/// The kubelet begins its answer with the first line, and a job may print nothing for long.
#[tokio::test(start_paused = true)]
async fn log_that_does_not_begin_is_requested_again() {
    for is_over in [false, true] {
        let mut reads = 0;
        let target = never_waiting(answering(move |request| {
            if request.contains("/log?") {
                reads += 1;
                return if reads > 9 {
                    Answer::Log(whole(LINE))
                } else {
                    Answer::Never
                };
            }
            let state = if is_over || reads > 8 {
                "terminated"
            } else {
                "running"
            };
            Answer::Json(200, serde_json::to_value(pod(0, state)).unwrap())
        }));
        let state = if is_over { "terminated" } else { "running" };
        let (pods, pod, start, mut resume) = (target.pods(), pod(0, state), start(0), Resume::default());
        let result = follow(&pods, &pod, &start, &mut resume, screen::put_beside, |text| {
            panic!("{text}")
        })
        .await;
        assert_eq!(result.is_ok(), !is_over, "{result:?}");
        if let Err(failure) = result {
            assert!(
                failure.to_string().ends_with("nothing came for 65 s"),
                "{failure}"
            );
        }
    }
}

/// A load balancer may answer for an API server that is away.
#[tokio::test(start_paused = true)]
async fn follow_waits_for_an_api_server_that_is_away() {
    for code in [429, 502, 503, 504] {
        let mut failures = 0;
        let (target, _) = answering(move |request| {
            failures += 1;
            if failures < 6 * FAILURE_LIMIT {
                failed(code)
            } else if request.contains("/log?") {
                Answer::Log(whole(LINE))
            } else {
                Answer::Json(200, serde_json::to_value(ended_pod()).unwrap())
            }
        });
        let (pods, pod, start, mut resume) = (target.pods(), ended_pod(), start(0), Resume::default());
        let result = follow(&pods, &pod, &start, &mut resume, screen::put_beside, |_| ()).await;
        assert!(result.is_ok(), "{code}: {result:?}");
    }
}

/// An API server that has just started may have no tunnel to the kubelets yet, nor know all roles.
#[tokio::test(start_paused = true)]
async fn follow_waits_for_an_api_server_that_settles() {
    for code in [403, 404, 500] {
        for (settling, is_whole) in [(50, true), (1000, false)] {
            let mut reads = 0;
            let (target, requests) = answering(move |request| {
                if !request.contains("/log?") {
                    return Answer::Json(200, serde_json::to_value(ended_pod()).unwrap());
                }
                reads += 1;
                if reads == 1 {
                    Answer::Log(broken(LINE))
                } else if reads <= 200 {
                    failed(503)
                } else if reads <= 200 + settling {
                    failed(code)
                } else {
                    Answer::Log(whole(LINE))
                }
            });
            let (pods, pod, start, mut resume) = (target.pods(), ended_pod(), start(0), Resume::default());
            let result = follow(&pods, &pod, &start, &mut resume, screen::put_beside, |_| ()).await;
            assert_eq!(result.is_ok(), is_whole, "{code}: {result:?}");
            let count = requests.lock().unwrap().len();
            assert!(
                count < 2 * (200 + 70),
                "{code}: it gives up after a minute: {count}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn follow_fails_when_lines_were_rotated_away() {
    let logs = vec![broken(LINE), whole(LATER)];
    let (result, _) = followed_while_pod_becomes(vec![Some(ended_pod())], logs, &mut Resume::default()).await;
    let failure = result.unwrap_err().to_string();
    assert!(failure.contains("does not have all lines any more"), "{failure}");
}

#[tokio::test(start_paused = true)]
async fn follow_succeeds_when_a_log_that_was_read_whole_is_rotated() {
    let logs = vec![whole(LINE), whole(b"")];
    let (result, _) = followed_while_pod_becomes(vec![Some(ended_pod())], logs, &mut Resume::default()).await;
    result.unwrap();
}

/// The kubelet rotates a log at 10 MiB. Then the new file does not repeat the last line.
#[tokio::test(start_paused = true)]
async fn follow_succeeds_when_a_log_is_rotated_before_a_silence() {
    for first in [stalled(LINE), whole(LINE)] {
        let pods = (0..4).map(|_| Some(pod(0, "running"))).chain([Some(ended_pod())]);
        let logs = vec![
            first,
            whole(b""),
            stalled(b""),
            whole(b""),
            whole(LATER),
            whole(LATER),
        ];
        let (result, requests) =
            followed_while_pod_becomes(pods.collect(), logs, &mut Resume::default()).await;
        assert_eq!(requests.len(), 6, "{requests:?}");
        result.unwrap();
    }
    // The connection was dead, and lines came meanwhile.
    let (result, _) = followed(vec![stalled(LINE), whole(LATER)]).await;
    let failure = result.unwrap_err().to_string();
    assert!(failure.contains("does not have all lines any more"), "{failure}");
}

/// A kubelet that evicts a pod removes its containers, and answers with a text.
#[tokio::test(start_paused = true)]
async fn follow_succeeds_when_a_log_that_was_read_whole_is_removed() {
    let logs = vec![whole(LINE), whole(b"unable to retrieve container logs")];
    followed(logs).await.0.unwrap();
    // The connection broke before.
    let refused = (0..FAILURE_LIMIT).map(|_| whole(b"unable to retrieve container logs"));
    let (result, _) = followed([broken(LINE)].into_iter().chain(refused).collect()).await;
    let failure = result.unwrap_err().to_string();
    assert!(failure.contains("unable to retrieve container logs"), "{failure}");
}

/// A node without a free inotify instance: the kubelet sends the lines, and then why it cannot wait for more.
#[tokio::test(start_paused = true)]
async fn follow_reads_on_when_the_kubelet_cannot_watch_a_log() {
    let (mut reads, begin) = (0, Instant::now());
    let (target, _) = answering(move |request| {
        if !request.contains("/log?") {
            let state = if reads > 20 { "terminated" } else { "running" };
            return Answer::Json(200, serde_json::to_value(pod(0, state)).unwrap());
        }
        reads += 1;
        Answer::Log(whole(if reads > 20 {
            b"2026-01-01T00:00:00.1Z a\n2026-01-01T00:00:00.3Z c\n"
        } else {
            b"2026-01-01T00:00:00.1Z a\nfailed to create fsnotify watcher: too many open files"
        }))
    });
    let (pods, pod, start, mut resume) = (target.pods(), pod(0, "running"), start(0), Resume::default());
    let (messages, mut printed) = (std::cell::RefCell::new(Vec::new()), Vec::new());
    let put = async |bytes: Vec<u8>| {
        printed.extend(bytes);
        Ok(())
    };
    let say = |text: &str| messages.borrow_mut().push(text.to_owned());
    follow(&pods, &pod, &start, &mut resume, put, say).await.unwrap();
    assert_eq!(printed, b"a\nc\n");
    let message = "failed to read the log of mc-0-x, container flux: failed to create fsnotify watcher: too many open \
        files; retrying";
    assert_eq!(messages.into_inner(), [message]);
    assert!(begin.elapsed() >= Duration::from_secs(20), "once a second");
}

#[tokio::test(start_paused = true)]
async fn follow_succeeds_when_the_next_container_falls_silent() {
    let mut resume = Resume::default();
    let pods = vec![Some(pod(0, "running")), Some(pod(1, "running"))];
    // The second read has a line of the next container. So nothing of the first one is missing, and no third read
    // follows.
    let logs = vec![whole(LINE), stalled(LATER), whole(LINE)];
    let (result, requests) = followed_while_pod_becomes(pods, logs, &mut resume).await;
    result.unwrap();
    assert_eq!(requests.len(), 2, "{requests:?}");
    resume.begin_log();
    resume.connect();
    assert_eq!(resume.feed(LATER), b"", "it was printed");
    assert!(!resume.end());
}

/// A regression test: lines of the next container were printed as the previous container's, and then again.
#[tokio::test(start_paused = true)]
async fn follow_reads_the_previous_container_after_a_restart() {
    let mut resume = Resume::default();
    let logs = vec![
        broken(LINE),
        whole(b"2026-01-01T00:00:00.1Z a\n2026-01-01T00:00:00.2Z b\n"),
    ];
    let (result, requests) =
        followed_while_pod_becomes(vec![Some(pod(1, "running"))], logs, &mut resume).await;
    result.unwrap();
    assert_eq!(requests.len(), 2, "{requests:?}");
    assert!(
        requests[0].contains("follow=true") && requests[1].contains("previous=true"),
        "{requests:?}"
    );
    let (target, ..) = server([Some(pod(1, "terminated"))], [whole(LATER)]);
    let start = start(1);
    follow(
        &target.pods(),
        &pod(1, "terminated"),
        &start,
        &mut resume,
        screen::put_beside,
        |_| (),
    )
    .await
    .unwrap();
    resume.connect();
    assert_eq!(resume.feed(LATER), b"", "it was printed");
}

#[tokio::test(start_paused = true)]
async fn follow_fails_when_the_container_has_restarted_twice() {
    let pods = vec![Some(pod(2, "running"))];
    let (result, _) = followed_while_pod_becomes(pods, vec![broken(LINE)], &mut Resume::default()).await;
    let failure = result.unwrap_err().to_string();
    assert!(failure.contains("restarted twice"), "{failure}");
}

#[tokio::test(start_paused = true)]
async fn follow_fails_when_the_last_read_stalls() {
    let stalls = (0..FAILURE_LIMIT).map(|_| stalled(b""));
    let (result, left) = followed([whole(LINE)].into_iter().chain(stalls).collect()).await;
    let failure = result.unwrap_err().to_string();
    assert!(failure.contains("no data came for 120 s"), "{failure}");
    assert_eq!(left, 0);
}

#[tokio::test(start_paused = true)]
async fn follow_reads_again_when_the_last_read_stalls() {
    let logs = vec![whole(LINE), stalled(LINE), stalled(b""), whole(LINE), whole(LINE)];
    let (result, left) = followed(logs).await;
    result.unwrap();
    assert_eq!(left, 1, "the last read was complete");
}

/// An API server with the MiniCluster of `cluster`. `pods`: its pods after so many seconds. `logs`: answers requests
/// for logs.
fn serving(
    pods: impl Fn(u64) -> Vec<Value> + Send + 'static,
    mut logs: impl FnMut(&str) -> Answer + Send + 'static,
) -> (Target, Requests) {
    let begin = Instant::now();
    answering(move |request| {
        let pods = pods(begin.elapsed().as_secs());
        if request.contains("/log?") {
            return logs(request);
        }
        Answer::Json(
            200,
            if request.contains("/pods?") {
                json!({ "metadata": {}, "items": pods })
            } else if request.contains("/pods/") {
                let is_named = |pod: &&Value| request.contains(pod["metadata"]["name"].as_str().unwrap());
                pods.iter().find(is_named).unwrap().clone()
            } else {
                cluster()
            },
        )
    })
}

/// The pod of this index, whose uid is its name, with its container in this state.
fn in_state(index: &str, state: &str) -> Value {
    let mut pod = with_index(index);
    pod["metadata"]["uid"] = pod["metadata"]["name"].clone();
    let details = if state == "terminated" {
        json!({ "exitCode": 0 })
    } else {
        json!({})
    };
    pod["status"]["containerStatuses"][0]["state"] = json!({ state: details });
    pod
}

/// The requests for logs.
fn log_requests(requests: &Requests) -> Vec<String> {
    let mut requests = requests.lock().unwrap().clone();
    requests.retain(|request| request.contains("/log?"));
    requests
}

#[tokio::test(start_paused = true)]
async fn follow_of_all_waits_for_each_pod() {
    let pods = |seconds| match seconds {
        0..5 => vec![],
        5..10 => vec![in_state("0", "waiting"), in_state("1", "waiting")],
        10..20 => vec![in_state("0", "terminated"), in_state("1", "waiting")],
        _ => vec![in_state("0", "terminated"), in_state("1", "terminated")],
    };
    let (target, requests) = serving(pods, |_| Answer::Log(whole(LINE)));
    let args = Args {
        follow: true,
        ..args()
    };
    let result = tokio::time::timeout(Duration::from_secs(60), run(&target, &args)).await;
    assert_eq!(result.unwrap().unwrap(), 0);
    let logs = log_requests(&requests);
    assert!(
        logs.len() == 2 && logs[0].contains("mc-0/") && logs[1].contains("mc-1/"),
        "{logs:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn follow_resumes_any_log_whose_connection_is_dead() {
    for (all, container) in [(true, None), (true, Some("flux")), (false, Some("flux"))] {
        let pods = |seconds| {
            let state = if seconds < 60 { "running" } else { "terminated" };
            vec![in_state("0", state), in_state("1", "terminated")]
        };
        let mut has_stalled = false;
        let (target, requests) = serving(pods, move |request| {
            if request.contains("mc-0/") && !std::mem::replace(&mut has_stalled, true) {
                return Answer::Log(stalled(LINE));
            }
            Answer::Log(whole(LINE))
        });
        let container = container.map(str::to_owned);
        let args = Args {
            all,
            container,
            follow: true,
            ..args()
        };
        let result = tokio::time::timeout(Duration::from_secs(600), run(&target, &args)).await;
        assert_eq!(result.unwrap().unwrap(), 0);
        let logs = log_requests(&requests);
        let of_lead = logs.iter().filter(|request| request.contains("mc-0/"));
        assert_eq!(of_lead.count(), 2, "{logs:?}");
    }
}

/// The runner waits for flux-view, an init container.
#[tokio::test(start_paused = true)]
async fn follow_waits_for_the_container_that_it_prints() {
    for (container, waits) in [("flux-view", true), ("unknown", false)] {
        let pods = |seconds| {
            let mut pod = in_state("0", "waiting");
            pod["spec"]["initContainers"] = json!([{ "name": "flux-view" }]);
            let state = match seconds {
                0..5 => "waiting",
                5..10 => "running",
                _ => "terminated",
            };
            let view = in_state("0", state)["status"]["containerStatuses"][0].take();
            pod["status"]["initContainerStatuses"] = json!([view]);
            pod["status"]["initContainerStatuses"][0]["name"] = "flux-view".into();
            vec![pod]
        };
        let begin = Instant::now();
        let (target, requests) = serving(pods, |request| {
            if request.contains("container=unknown") {
                return failed(400);
            }
            Answer::Log(whole(LINE))
        });
        let args = Args {
            all: false,
            follow: true,
            container: Some(container.into()),
            ..args()
        };
        let result = tokio::time::timeout(Duration::from_secs(60), run(&target, &args)).await;
        assert_eq!(result.unwrap().is_ok(), waits);
        assert_eq!(begin.elapsed().as_secs() >= 5, waits);
        assert!(log_requests(&requests)[0].contains(&format!("container={container}")));
    }
}

#[tokio::test(start_paused = true)]
async fn follow_says_once_that_a_running_log_is_unreadable() {
    let mut reads = 0;
    let (target, _) = answering(move |request| {
        if !request.contains("/log?") {
            let state = if reads > 20 { "terminated" } else { "running" };
            return Answer::Json(200, serde_json::to_value(pod(0, state)).unwrap());
        }
        reads += 1;
        if reads > 20 {
            return Answer::Log(whole(LINE));
        }
        failed(500)
    });
    let (pods, pod, start, mut resume) = (target.pods(), pod(0, "running"), start(0), Resume::default());
    let messages = std::cell::RefCell::new(Vec::new());
    let say = |text: &str| messages.borrow_mut().push(text.to_owned());
    follow(&pods, &pod, &start, &mut resume, screen::put_beside, say)
        .await
        .unwrap();
    let messages = messages.into_inner();
    assert_eq!(
        messages,
        ["failed to read the log of mc-0-x, container flux: refused; retrying"]
    );
}

#[test]
fn indexed_lines_are_whole_lines() {
    let mut lines = IndexedLines::new(3);
    assert_eq!(lines.feed(b"a\nb"), b"3: a\n");
    assert_eq!(lines.feed(b"c"), b"");
    assert_eq!(lines.feed(b"\n\n\xff"), b"3: bc\n3: \n");
    assert_eq!(lines.end(), b"3: \xff\n");
    assert_eq!(lines.end(), b"");
    let shown: usize = (0..100).map(|_| lines.feed(&[b'\r'; 1024]).len()).sum();
    assert!(shown > LINE_MAX, "a line without an end is printed in parts");
}

#[tokio::test]
async fn logs_print_bytes_that_are_no_utf_8() {
    let (target, ..) = server([Some(ended_pod())], [whole(b"a\xff\nb")]);
    let mut printed = Vec::new();
    let put = async |line: Vec<u8>| {
        printed.push(line);
        Ok(())
    };
    print_lines(&target.pods(), &ended_pod(), &args(), put)
        .await
        .unwrap();
    assert_eq!(printed, [b"a\xff\n".to_vec(), b"b\n".to_vec()]);
}

#[tokio::test(start_paused = true)]
async fn logs_fail_when_no_data_comes() {
    let (target, ..) = server([Some(ended_pod())], [stalled(b"a\n")]);
    let (pods, pod, args) = (target.pods(), ended_pod(), args());
    let printed = print_lines(&pods, &pod, &args, async |_| Ok(())).await;
    let failure = printed.unwrap_err().to_string();
    assert!(failure.contains("no data came for 120 s"), "{failure}");
}

/// A pod on a dead node keeps the state of its containers, and its log cannot be read.
#[tokio::test(start_paused = true)]
async fn follow_fails_when_the_pod_should_be_gone_long_ago() {
    for (seconds_ago, is_given_up) in [(70, true), (50, false), (-20, false)] {
        let mut deleted = pod(0, "running");
        let time = Timestamp::now() - SignedDuration::from_secs(seconds_ago);
        deleted.metadata.deletion_timestamp = Some(Time(time));
        let (target, _) = answering(move |request| {
            if request.contains("/log?") {
                failed(500)
            } else {
                Answer::Json(200, serde_json::to_value(&deleted).unwrap())
            }
        });
        let (pods, pod, start, mut resume) = (target.pods(), pod(0, "running"), start(0), Resume::default());
        let result = follow(&pods, &pod, &start, &mut resume, screen::put_beside, |_| ());
        let result = tokio::time::timeout(Duration::from_secs(60), result).await;
        assert_eq!(result.is_ok(), is_given_up, "{seconds_ago}: {result:?}");
        if let Ok(result) = result {
            let failure = result.unwrap_err().to_string();
            assert!(
                failure.contains("failed to read the whole log of mc-0-x"),
                "{failure}"
            );
        }
    }
}
