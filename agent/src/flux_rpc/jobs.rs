//! Stops or kills the jobs of an instance through its broker, in Flux's own messages, and finds out whether the
//! one that ended last lost a node.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};

use flux_shared::exit::of_signal;
use flux_shared::hostlist;
use serde_json::Value;

use crate::flux_rpc::connection::Broker;
use crate::flux_rpc::message::ANY;
use crate::flux_rpc::usage;

/// Jobs that have not begun: DEPEND, PRIORITY, SCHED (RFC 21).
const WAITING: u32 = 2 | 4 | 8;
/// Jobs in the state RUN.
const RUNNING: u32 = 16;
/// Jobs that end or have ended: CLEANUP, INACTIVE.
const ENDED: u32 = 32 | 64;
/// Once the tasks of a node that shuts down have ended, its broker leaves within this time, unless the node is busy. A
/// follower whose pod is removed while the instance stays up is no lost node: after its last job it stays for some
/// seconds (`IDLE_LOOKS` in `departure.rs`), which is longer.
const BROKER_LEAVES_WITHIN: Duration = Duration::from_millis(1500);
/// The same if a signal ended the tasks, as a node that shuts down sends it. Then a lost node is likely, and the watch
/// allows for a busy one.
const BROKER_LEAVES_AFTER_SIGNAL_WITHIN: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// A job that ended longer ago does not count as the one that ended the program.
const JUST_ENDED: Duration = Duration::from_secs(5);
/// The same for a job that lost a node. A script may clean up before it ends with the job's exit code. But if it
/// works on for longer, it has ignored the loss.
const ENDED_FOR_LOST_NODE: Duration = Duration::from_secs(300);

/// Cancels jobs that wait, and sends SIGTERM to those that run. False: no job runs, or the broker does not answer.
pub async fn stop(broker: &Broker) -> bool {
    cancel_waiting(broker, "the pod is to stop").await;
    signal(broker, libc::SIGTERM).await
}

/// The only job that was submitted after `since` (seconds since 1970) and has ended: its exit code, or 128 and the
/// number of the signal that ended it. None: there is no such job, there are several, another one waits or runs (the
/// program may wait for that one), it never began, or the broker does not answer.
pub async fn code_of_only_ended(broker: &Broker, since: f64) -> Option<u8> {
    // Two are enough: those that have not ended come first.
    let jobs = list(WAITING | RUNNING | ENDED, 2, broker).await;
    let has_ended = |job: &Value| {
        job["state"]
            .as_u64()
            .is_some_and(|state| state & u64::from(ENDED) != 0)
    };
    if !jobs.iter().all(has_ended) {
        return None;
    }
    let mut submitted_since = jobs
        .iter()
        .filter(|job| job["t_submit"].as_f64().is_some_and(|at| at >= since));
    let job = submitted_since.next()?;
    if submitted_since.next().is_some() {
        return None;
    }
    exit_code(job)
}

/// Cancels the jobs that wait. `note`: why.
pub async fn cancel_waiting(broker: &Broker, note: &str) {
    // User -1: the jobs of all users. Severity 0: the exception ends the job (RFC 21).
    let cancel = format!(
        r#"{{"dry_run":false,"userid":-1,"states":{WAITING},"severity":0,"type":"cancel","note":"{note}"}}"#
    );
    // If the broker does not know this message, waiting jobs are not cancelled.
    let _ = broker.ask(ANY, "job-manager.raiseall", &cancel).await;
}

/// Kills the jobs that run. False: no job runs, or the broker does not answer.
pub async fn kill(broker: &Broker) -> bool {
    signal(broker, libc::SIGKILL).await
}

/// Sends a signal to all jobs that run. False: no job runs, or the broker does not answer.
async fn signal(broker: &Broker, signal: i32) -> bool {
    // User -1: the jobs of all users.
    let all = format!(r#"{{"dry_run":false,"userid":-1,"signum":{signal}}}"#);
    let answer = broker
        .ask(ANY, "job-manager.killall", &all)
        .await
        .unwrap_or_default();
    answer["count"].as_u64().unwrap_or_default() > 0
}

/// Whether the job that ended last failed because a node of it was lost. Jobs that still wait do not count: a script
/// may have submitted them later.
///
/// A node that shuts down sends SIGTERM to tasks and brokers at once. Tasks can end a job before the broker
/// leaves, and Flux then sees failed tasks and no lost node. So if a job has just failed, this
/// watches for a moment whether a broker that ran its tasks leaves. `stop` ends the watch, since after it all brokers
/// leave.
pub async fn node_was_lost(broker: &Broker, stop: impl Future<Output = ()>) -> bool {
    // The list may lag behind the end of a job, and still say that the job runs. Running jobs are asked for first: one
    // that ends between the two questions is then in both answers, not in neither.
    let running = first_in(RUNNING, broker).await;
    let job = first_in(ENDED, broker).await;
    if has_lost_node(&job) && has_ended_within(&job["t_inactive"], ENDED_FOR_LOST_NODE, now()) {
        return true;
    }
    tokio::select! {
        biased;
        () = stop => false,
        is_lost = broker_leaves(broker, [&job, &running]) => is_lost,
    }
}

/// The first job in one of these states that Flux lists; null: there is none. Running jobs come before ended ones, and
/// those that ended last come first.
async fn first_in(states: u32, broker: &Broker) -> Value {
    list(states, 1, broker)
        .await
        .into_iter()
        .next()
        .unwrap_or_default()
}

/// The first `count` jobs in one of these states, in the order of [`first_in`].
async fn list(states: u32, count: usize, broker: &Broker) -> Vec<Value> {
    let query = format!(
        r#"{{"max_entries":{count},"attrs":["exception_type","exception_note","success","ranks","state","t_submit","t_cleanup","t_inactive","waitstatus"],"constraint":{{"states":[{states}]}}}}"#
    );
    let mut answer = broker.ask(ANY, "job-list.list", &query).await.unwrap_or_default();
    match answer["jobs"].take() {
        Value::Array(jobs) => jobs,
        _ => Vec::new(),
    }
}

/// Watches whether a broker leaves that ran the tasks of one of these jobs, if the job has just failed.
async fn broker_leaves(broker: &Broker, jobs: [&Value; 2]) -> bool {
    let failed: Vec<(&Value, BTreeSet<u32>)> = jobs
        .into_iter()
        .map(|job| (job, followers_of_failed(job, now())))
        .filter(|(_, followers)| !followers.is_empty())
        .collect();
    let followers: BTreeSet<u32> = failed.iter().flat_map(|(_, ranks)| ranks).copied().collect();
    if followers.is_empty() {
        return false;
    }
    let within = if failed.iter().any(|(job, _)| is_ended_by_shutdown_signal(job)) {
        BROKER_LEAVES_AFTER_SIGNAL_WITHIN
    } else {
        BROKER_LEAVES_WITHIN
    };
    let until = Instant::now() + within;
    loop {
        if let Some(online) = usage::online(broker).await
            && !followers.is_subset(&online)
        {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The ranks that ran a job, if the job has just failed. Empty for other jobs. The lead's is left out: this process
/// runs on that node, and would be lost with it.
fn followers_of_failed(job: &Value, now: f64) -> BTreeSet<u32> {
    if job["success"] == true || !has_ended_within(&job["t_cleanup"], JUST_ENDED, now) {
        return BTreeSet::new();
    }
    // Flux writes several ranks in brackets: `[0-1]`.
    let ranks = job["ranks"].as_str().map(|ranks| ranks.trim_matches(['[', ']']));
    let ranks = ranks.and_then(hostlist::idset);
    ranks.into_iter().flatten().filter(|rank| *rank > 0).collect()
}

/// Whether a job has ended within this time. `ended`: one of Flux's times of its end. At `t_cleanup` of a job with an
/// exception, tasks may still run. At `t_inactive` all have ended. Null (the list may lag behind the job's end) counts
/// as just ended.
fn has_ended_within(ended: &Value, time: Duration, now: f64) -> bool {
    ended
        .as_f64()
        .is_none_or(|ended| now - ended < time.as_secs_f64())
}

/// Whether SIGTERM or SIGKILL ended the job's tasks: a node that shuts down sends both. Not if somebody or the time
/// limit cancelled the job: then Flux sends them.
fn is_ended_by_shutdown_signal(job: &Value) -> bool {
    // Flux's shell exits with the code for the signal of a task.
    let is_by_signal = [libc::SIGTERM, libc::SIGKILL]
        .map(of_signal)
        .map(Some)
        .contains(&exit_code(job));
    let is_cancelled = matches!(job["exception_type"].as_str(), Some("cancel" | "timeout"));
    is_by_signal && !is_cancelled
}

/// The exit code of a job that has ended, or 128 and the number of the signal that ended its shell. None: it never ran.
fn exit_code(job: &Value) -> Option<u8> {
    let status = i32::try_from(job["waitstatus"].as_i64()?).ok()?;
    if libc::WIFSIGNALED(status) {
        return Some(of_signal(libc::WTERMSIG(status)));
    }
    u8::try_from(libc::WEXITSTATUS(status)).ok()
}

/// Seconds since 1970. Flux's job times are by the same clock, the lead's.
pub fn now() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

/// Whether a job lost a node: its exception is `node-failure` if it could go on without the node, else `exec`
/// with a note that says so (flux-core's `job-exec/bulkexec.c`).
fn has_lost_node(job: &Value) -> bool {
    let note = job["exception_note"].as_str().unwrap_or_default();
    job["exception_type"] == "node-failure"
        || (job["exception_type"] == "exec" && note.contains("node failure on "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::flux_rpc::connection::peer::{answer_of, questions_asked_by};

    /// Whether a node was lost, by these sets of connected ranks at each look, and the number of questions: two about
    /// jobs, then one for each look. `job`: the one that ended last. None runs.
    fn watch(job: Value, is_stopping: bool, online: &[&'static str]) -> (bool, usize) {
        watch_with(Value::Null, job, is_stopping, online)
    }

    /// The same while a job runs.
    fn watch_with(running: Value, job: Value, is_stopping: bool, online: &[&'static str]) -> (bool, usize) {
        let mut online: Vec<_> = online.iter().rev().copied().collect();
        let answer = move |question: &str| {
            if question.contains("job-list.list") && question.contains(r#""states":[16]"#) {
                return Some(answer_of(&json!({ "jobs": [running] }).to_string()));
            }
            if question.contains("job-list.list") {
                assert!(question.contains(r#""states":[96]"#), "{question}");
                return Some(answer_of(&json!({ "jobs": [job] }).to_string()));
            }
            let members = if online.len() > 1 {
                online.pop()
            } else {
                online.last().copied()
            };
            Some(answer_of(&json!({ "members": members.unwrap() }).to_string()))
        };
        let mut is_lost = false;
        let stop = async {
            if !is_stopping {
                std::future::pending::<()>().await;
            }
        };
        let work = async |broker| is_lost = node_was_lost(&broker, stop).await;
        let questions = questions_asked_by(work, answer);
        (is_lost, questions.len())
    }

    #[test]
    fn broker_that_leaves_after_its_tasks_is_a_lost_node() {
        let job = |ranks: &str| json!({ "success": false, "ranks": ranks, "t_cleanup": now() });
        assert_eq!(watch(job("[0-1]"), false, &["0-2", "0-2", "0,2"]), (true, 5));
        let (is_lost, questions) = watch(job("[0-1]"), false, &["0-1"]);
        assert!(!is_lost && questions > 6, "rank 2 ran nothing: {questions}");
        assert_eq!(
            watch(job("[0-1]"), true, &["0"]),
            (false, 2),
            "a stop ends the watch"
        );
        assert_eq!(watch(job("0"), false, &["0"]), (false, 2), "no follower ran it");
    }

    #[test]
    fn job_that_the_list_still_calls_running_may_have_lost_a_node() {
        let running = || json!({ "success": null, "ranks": "[0-1]", "t_cleanup": null });
        let earlier = |status: i32| json!({ "success": status == 0, "ranks": "[0-1]", "t_cleanup": now() - 900.0, "waitstatus": status });
        assert!(watch_with(running(), earlier(0), false, &["0-1", "0"]).0);
        // The signal that ended an earlier job says nothing about this one.
        let (is_lost, questions) = watch_with(running(), earlier(137 << 8), false, &["0-1"]);
        // It is watched for 1.5 s, with ten looks a second. After a signal it would be ten seconds.
        assert!(!is_lost && questions < 25, "{questions}");
    }

    #[test]
    fn loss_that_the_program_outlived_for_long_did_not_end_it() {
        for (ended, is_lost) in [
            (json!(now() - 200.0), true),
            (json!(now() - 400.0), false),
            (Value::Null, true),
        ] {
            // The job's exception may be much older than its end.
            let job = json!({ "exception_type": "node-failure", "success": false, "ranks": "0-1",
                "t_cleanup": now() - 900.0, "t_inactive": ended });
            assert_eq!(watch(job, false, &["0-1"]).0, is_lost, "{ended}");
        }
    }

    #[test]
    fn broker_of_a_busy_node_may_leave_later_after_a_signal() {
        // Two seconds at ten looks a second.
        let late: Vec<&str> = std::iter::repeat_n("0-1", 20).chain(["0"]).collect();
        let lost_after = |status: i32, exception: &str| {
            let job = json!({ "success": false, "ranks": "[0-1]", "t_cleanup": now(), "waitstatus": status,
                "exception_type": exception });
            watch(job, false, &late).0
        };
        for status in [143 << 8, 137 << 8, libc::SIGTERM] {
            assert!(lost_after(status, "exec"), "{status}");
        }
        assert!(!lost_after(143 << 8, "cancel"));
        assert!(!lost_after(1 << 8, "exec"));
    }

    #[test]
    fn only_brokers_of_a_job_that_has_just_failed_are_watched() {
        let followers = |job: Value| followers_of_failed(&job, 1000.0);
        let failed = json!({ "success": false, "ranks": "[0,2-3]", "t_cleanup": 999.0 });
        assert_eq!(followers(failed.clone()), [2, 3].into());
        let with = |field: &str, value: Value| {
            let mut job = failed.clone();
            job[field] = value;
            job
        };
        // The list may lag behind the job's end.
        assert_eq!(followers(with("t_cleanup", Value::Null)), [2, 3].into());
        assert!(followers(with("success", true.into())).is_empty());
        assert!(followers(with("t_cleanup", json!(900.0))).is_empty());
        assert!(followers(Value::Null).is_empty());
    }

    #[test]
    fn job_is_lost_only_by_a_node_failure() {
        for (job, lost) in [
            (
                r#"{"id":1,"exception_occurred":true,"exception_type":"node-failure","exception_note":"mc-1"}"#,
                true,
            ),
            (
                r#"{"id":1,"exception_type":"exec","exception_note":"node failure on mc-1 (rank 1)"}"#,
                true,
            ),
            (
                r#"{"id":1,"exception_type":"exec","exception_note":"task 0: start failed: x: No such file"}"#,
                false,
            ),
            (
                r#"{"id":1,"exception_type":"cancel","exception_note":"node failure on mc-1"}"#,
                false,
            ),
            (r#"{"id":1,"exception_occurred":false}"#, false),
        ] {
            assert_eq!(has_lost_node(&serde_json::from_str(job).unwrap()), lost, "{job}");
        }
    }
}
