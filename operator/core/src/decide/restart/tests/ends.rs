//! Decisions on given objects: which pod caused a failure, when the end is certain, and what restarts.

use super::*;
use crate::decide::ending;
use crate::testing;
use crate::vocabulary::ConditionType;
use flux_shared::crd::v1alpha2::ConditionStatus;

struct Seen {
    status: MiniClusterStatus,
    backoff_limit: i32,
    max_restarts: i32,
    lead_is_elsewhere: bool,
    job: JobSeen,
    pods: Vec<PodSeen>,
}

impl Seen {
    fn of(job: JobSeen, pods: Vec<PodSeen>) -> Seen {
        Seen {
            status: MiniClusterStatus::default(),
            backoff_limit: 100,
            max_restarts: 0,
            lead_is_elsewhere: false,
            job,
            pods,
        }
    }

    fn observation(&self) -> Observation<'_> {
        Observation {
            status: &self.status,
            is_spec_valid: true,
            backoff_limit: self.backoff_limit,
            max_restarts: self.max_restarts,
            lead_is_elsewhere: self.lead_is_elsewhere,
            restarts_on_failure: false,
            min_size: None,
            job: Some(&self.job),
            last_job: None,
            pods: self.pods.iter().collect(),
            gone: Vec::new(),
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
        }
    }

    fn decision(&self) -> Decision {
        decide(&self.observation())
    }

    fn ending(&self) -> JobSeen {
        let observation = self.observation();
        ending::with_decided_end(&observation, &self.job, observation.now).into_owned()
    }
}

fn job() -> JobSeen {
    JobSeen {
        uid: "job".into(),
        completions: 2,
        ..JobSeen::default()
    }
}

/// A Job that fails by this pod. Only the pod's name is read from the message.
fn failing(pod: &str) -> JobSeen {
    let message =
        format!("Container mc for pod ns/{pod} failed with exit code 137 matching FailJob rule at index 1");
    JobSeen {
        failing: condition("PodFailurePolicy").map(|condition| TrueCondition { message, ..condition }),
        ..job()
    }
}

fn pod(index: u32) -> PodSeen {
    let name = format!("mc-{index}-abcde");
    PodSeen {
        name,
        job_uid: Some("job".into()),
        index,
        has_begun: true,
        is_running: true,
        is_labelled: index == 0,
        ..PodSeen::default()
    }
}

fn ended(index: u32, exit: Exit) -> PodSeen {
    PodSeen {
        is_running: false,
        has_ended: true,
        exit: Some(Box::new(exit)),
        ..pod(index)
    }
}

fn by(by: Ender, code: u8) -> Exit {
    Exit {
        code: code.into(),
        termination: Some(Termination::new(by, code)),
        ..Exit::default()
    }
}

/// The exit of a lead whose job lost a node.
fn by_node_failure(by: Ender, code: u8) -> Exit {
    let termination = Termination {
        node_failure: true,
        ..Termination::new(by, code)
    };
    Exit {
        code: code.into(),
        termination: Some(termination),
        ..Exit::default()
    }
}

fn unseen() -> Exit {
    Exit {
        code: UNSEEN.into(),
        is_unseen: true,
        reason: "Unknown".into(),
        ..Exit::default()
    }
}

/// `kubectl delete pod --force` of a follower.
fn killed_follower() -> Vec<PodSeen> {
    let lead = ended(0, by_node_failure(Ender::Stop, 143));
    let killed = Exit {
        code: 137,
        reason: "Error".into(),
        ..Exit::default()
    };
    vec![
        PodSeen {
            is_deleting: true,
            ..lead
        },
        PodSeen {
            is_deleting: true,
            ..ended(1, killed)
        },
    ]
}

#[test]
fn lead_that_the_job_stops_for_a_killed_follower_is_not_lost() {
    // `is_remembered`: the status already lists the lead's pod as lost.
    for is_remembered in [false, true] {
        let mut seen = Seen::of(failing("mc-1-abcde"), killed_follower());
        if is_remembered {
            seen.status.lost_pods = vec![loss(&seen.pods[0])];
        }
        assert_eq!(seen.decision(), Decision::Continue, "maxRestarts is 0");
        assert!(seen.ending().failed.is_some(), "and that is the end");
        seen.max_restarts = 1;
        let decision = seen.decision();
        let Decision::Restart {
            limit,
            reason,
            message,
            ..
        } = &decision
        else {
            panic!("{decision:?}")
        };
        assert_eq!((*limit, reason.as_str()), (Limit::MaxRestarts, "PodLost"));
        assert!(message.contains("mc-1-abcde"), "{message}");
    }
}

#[test]
fn lead_whose_node_was_rebooted_restarts_all() {
    let seen = Seen::of(failing("mc-0-abcde"), vec![ended(0, unseen()), pod(1)]);
    let decision = seen.decision();
    let Decision::Restart {
        limit,
        reason,
        message,
        ..
    } = &decision
    else {
        panic!("{decision:?}")
    };
    assert_eq!((*limit, reason.as_str()), (Limit::Backoff, "LeadLost"));
    assert!(message.contains("NodeRestarted"), "{message}");
    let follower = Seen::of(job(), vec![pod(0), ended(1, unseen())]);
    assert_eq!(
        follower.decision(),
        Decision::Continue,
        "the Job replaces a follower"
    );
}

#[test]
fn job_fails_when_a_pod_ends_with_255_by_itself() {
    let snippet = Seen::of(job(), vec![pod(0), ended(1, by(Ender::Snippet, UNSEEN))]);
    assert!(
        matches!(snippet.decision(), Decision::EndPods { .. }),
        "the Job fails once the lead has ended"
    );
    let seen = Seen::of(job(), vec![pod(0), ended(1, by(Ender::Agent, UNSEEN))]);
    assert!(matches!(seen.decision(), Decision::Fail { reason, .. } if reason == "PodFailurePolicy"));
    // Without its label, the Job's failure policy takes the lead for a follower, and retries 255.
    let lead = Seen::of(
        job(),
        vec![PodSeen {
            is_labelled: false,
            ..ended(0, by(Ender::Program, UNSEEN))
        }],
    );
    assert!(
        matches!(lead.decision(), Decision::Fail { .. }),
        "the Job would replace the lead, which must not run again"
    );
}

#[test]
fn end_is_certain_while_a_dead_node_keeps_a_pod() {
    let on_dead_node = || PodSeen {
        is_on_silent_node: true,
        node: Some("worker-3".into()),
        ..pod(1)
    };
    let complete = Seen::of(
        JobSeen {
            succeeding: condition("SuccessPolicy"),
            ..job()
        },
        vec![
            PodSeen {
                has_succeeded: true,
                ..ended(0, by(Ender::Program, 0))
            },
            on_dead_node(),
        ],
    );
    let ending = complete.ending();
    assert!(ending.complete.is_some() && ending.has_living_pods, "{ending:?}");

    let lead = ended(0, by_node_failure(Ender::Program, 143));
    let mut failed = Seen::of(failing("mc-0-abcde"), vec![lead, on_dead_node()]);
    assert!(failed.ending().failed.is_some(), "no restart is left");
    failed.max_restarts = 1;
    assert!(
        matches!(failed.decision(), Decision::Restart { .. }),
        "{:?}",
        failed.decision()
    );
    assert_eq!(failed.ending().failed, None);
}

#[test]
fn end_is_not_certain_while_something_may_change_it() {
    let lives = Seen::of(
        failing("mc-1-abcde"),
        vec![pod(0), ended(1, by(Ender::Snippet, 3))],
    );
    assert_eq!(lives.ending().failed, None, "the lead's own end is awaited");
    // A follower that is terminating may turn out to be the cause.
    let mut own = Seen::of(
        failing("mc-0-abcde"),
        vec![ended(0, by(Ender::Program, 1)), pod(1)],
    );
    assert!(own.ending().failed.is_some());
    own.max_restarts = 1;
    assert_eq!(own.ending().failed, None);
    own.pods.pop();
    assert!(own.ending().failed.is_some());
    let unknown = Seen::of(failing("mc-0-abcde"), Vec::new());
    assert_eq!(unknown.ending().failed, None, "no lead has been seen");
}

/// The agent reports exit code 0, although the container has failed for the runtime, and so for the Job.
#[test]
fn success_that_the_runtime_did_not_see_completes() {
    let lead = || PodSeen {
        has_succeeded: true,
        ..ended(0, by(Ender::Program, 0))
    };
    let seen = Seen::of(
        JobSeen {
            failed: condition("PodFailurePolicy"),
            ..failing("mc-0-abcde")
        },
        vec![lead()],
    );
    let ending = seen.ending();
    assert!(ending.complete.is_some() && ending.failed.is_none(), "{ending:?}");
    assert_eq!(seen.decision(), Decision::Continue);
    let follower = Seen::of(
        failing("mc-1-abcde"),
        vec![lead(), ended(1, by(Ender::Snippet, 3))],
    );
    assert!(
        follower.ending().failed.is_some(),
        "a follower's own failure stays one"
    );
}

#[test]
fn decided_end_is_within_the_jobs_time_by_any_node_clock() {
    let time = |text: &str| Some(text.parse::<Timestamp>().unwrap());
    let start = time("2025-12-31T23:00:00Z");
    for (at, since) in [
        ("2020-01-01T00:00:00Z", start),
        ("2025-12-31T23:30:00Z", time("2025-12-31T23:30:00Z")),
        ("2027-01-01T00:00:00Z", time("2026-01-01T00:00:00Z")),
    ] {
        for code in [0, 3] {
            let exit = Exit {
                at: time(at),
                ..by(Ender::Program, code)
            };
            let lead = PodSeen {
                has_ended: false,
                has_succeeded: code == 0,
                kept_by: Some("aaa".into()),
                ..ended(0, exit)
            };
            let job = JobSeen {
                start_time: start,
                ..job()
            };
            let ending = Seen::of(job, vec![lead]).ending();
            let end = ending.complete.as_ref().or(ending.failed.as_ref()).unwrap();
            assert_eq!(end.since, since, "{at} {code}");
        }
    }
}

/// The lead's node lost power after the program had ended. It came back when the MiniCluster had been
/// suspended and resumed.
#[test]
fn success_of_a_lead_that_a_suspension_deleted_is_the_end() {
    let succeeded = PodSeen {
        is_deleting: true,
        has_succeeded: true,
        ..ended(0, by(Ender::Program, 0))
    };
    let next = PodSeen {
        name: "mc-0-next".into(),
        ..pod(0)
    };
    let mut seen = Seen::of(job(), vec![succeeded, next]);
    assert!(seen.ending().complete.is_some(), "the program may not run again");
    seen.status.conditions = vec![testing::condition(
        ConditionType::JobFinished,
        ConditionStatus::True,
        "Completed",
    )];
    let decision = seen.decision();
    assert!(
        matches!(&decision, Decision::Fail { reason, .. } if reason == ALREADY_ENDED),
        "{decision:?}"
    );
    seen.pods.pop();
    assert_eq!(seen.decision(), Decision::Continue, "no pod comes any more");
    seen.job.is_suspended = true;
    assert!(
        matches!(seen.decision(), Decision::Fail { .. }),
        "a queue would resume it"
    );
}

/// The Job does not count that end as a success, and runs the program again when it is resumed.
#[test]
fn exit_code_0_of_a_suspended_program_is_no_success() {
    let time = |text: &str| Some(text.parse::<Timestamp>().unwrap());
    let stopped = PodSeen {
        is_deleting: true,
        deletion_requested: time("2025-12-31T23:00:00Z"),
        has_succeeded: true,
        ..ended(0, by(Ender::Stop, 0))
    };
    let lost = PodSeen {
        name: "mc-0-next".into(),
        trouble: Some(Box::new(Trouble {
            reason: "Evicted".into(),
            is_disruption: true,
            ..Trouble::default()
        })),
        ..ended(0, by(Ender::Stop, 143))
    };
    let mut seen = Seen::of(job(), vec![lost]);
    seen.job.start_time = time("2025-12-31T23:30:00Z");
    seen.status.job_uid = Some("job".into());
    let reason = |observation: &Observation| match decide(observation) {
        Decision::Restart { reason, .. } => reason,
        other => panic!("{other:?}"),
    };
    let with_job = Observation {
        gone: vec![&stopped],
        ..seen.observation()
    };
    assert_eq!(reason(&with_job), "LeadLost");
    let without_job = Observation {
        job: None,
        last_job: Some(&seen.job),
        gone: vec![&stopped],
        ..seen.observation()
    };
    assert_eq!(reason(&without_job), "JobDeleted");
    // A deletion during this start, such as a drain: the Job counts the pod, and completes.
    let drained = PodSeen {
        deletion_requested: time("2025-12-31T23:45:00Z"),
        ..stopped.clone()
    };
    let drained = Observation {
        gone: vec![&drained],
        ..seen.observation()
    };
    assert_eq!(decide(&drained), Decision::Continue);
}

#[test]
fn end_of_a_lead_that_another_container_keeps_is_the_end() {
    let kept = |code: u8| PodSeen {
        has_ended: false,
        kept_by: Some("aaa".into()),
        ..ended(0, by(Ender::Program, code))
    };
    let succeeded = Seen::of(
        job(),
        vec![
            PodSeen {
                has_succeeded: true,
                ..kept(0)
            },
            pod(1),
        ],
    );
    assert!(succeeded.ending().complete.is_some() && succeeded.decision() == Decision::Continue);
    let failed = Seen::of(job(), vec![kept(7), pod(1)]);
    assert!(
        failed.ending().failed.is_some() && failed.decision() == Decision::Continue,
        "its pod stays for its log"
    );
    let follower = PodSeen { index: 1, ..kept(3) };
    let seen = Seen::of(job(), vec![pod(0), follower]);
    assert!(
        matches!(seen.decision(), Decision::Fail { .. }),
        "the Job would not notice"
    );
}

/// Nobody knows whether the program succeeded.
#[test]
fn job_that_was_deleted_while_no_operator_ran_is_not_restarted() {
    let status = MiniClusterStatus {
        job_uid: Some("job".into()),
        ..MiniClusterStatus::default()
    };
    // An operator reports this when it finds the Job deleted while pods still run.
    let status_after_deletion = MiniClusterStatus {
        reason: Some("WaitingForPods".into()),
        ..status.clone()
    };
    let decided_of = |status, last: Option<&JobSeen>, pods: Vec<&PodSeen>, gone: Vec<&PodSeen>| {
        decide(&Observation {
            status,
            is_spec_valid: true,
            backoff_limit: 3,
            max_restarts: 0,
            lead_is_elsewhere: false,
            restarts_on_failure: false,
            min_size: None,
            job: None,
            last_job: last,
            pods,
            gone,
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
        })
    };
    let decided = |last, gone| decided_of(&status, last, Vec::new(), gone);
    let unseen = decided(None, Vec::new());
    assert!(
        matches!(&unseen, Decision::Ended { reason, .. } if reason == "JobDeleted"),
        "{unseen:?}"
    );
    let lead = pod(0);
    assert!(
        matches!(decided(None, vec![&lead]), Decision::Restart { .. }),
        "its lead was seen running"
    );
    assert!(matches!(
        decided(Some(&job()), vec![&lead]),
        Decision::Restart { .. }
    ));
    let decided_after_deletion =
        |pods: Vec<&PodSeen>| decided_of(&status_after_deletion, None, pods, Vec::new());
    let restart = decided_after_deletion(Vec::new());
    assert!(
        matches!(restart, Decision::Restart { .. }),
        "an operator saw it deleted while it ran: {restart:?}"
    );
    // A success also counts while a follower of the deleted Job still runs. Otherwise it would be forgotten
    // with the lead's pod.
    let (succeeded, follower) = (
        PodSeen {
            has_succeeded: true,
            ..ended(0, by(Ender::Program, 0))
        },
        pod(1),
    );
    let complete = decided_after_deletion(vec![&succeeded, &follower]);
    assert!(
        matches!(&complete, Decision::Ended { reason, .. } if reason == "Completed"),
        "{complete:?}"
    );
    assert_eq!(decided_after_deletion(vec![&follower]), Decision::Wait);
}

/// Kueue deletes a Job that it has deactivated if `objectRetentionPolicies` says so. Another Job would queue again.
#[test]
fn job_that_was_deleted_in_its_queue_is_not_restarted() {
    let status = MiniClusterStatus {
        job_uid: Some("job".into()),
        ..MiniClusterStatus::default()
    };
    let stopped = PodSeen {
        is_deleting: true,
        deletion_requested: Some("2025-12-31T23:00:00Z".parse().unwrap()),
        ..ended(0, by(Ender::Stop, 143))
    };
    let waiting = JobSeen {
        queue: Some("team".into()),
        is_suspended: true,
        ..job()
    };
    let admitted = JobSeen {
        is_suspended: false,
        ..waiting.clone()
    };
    let suspended_by_hand = JobSeen {
        queue: None,
        ..waiting.clone()
    };
    for (last, has_run, is_restarted) in [
        (&waiting, true, false),
        (&waiting, false, false),
        (&admitted, true, true),
        (&suspended_by_hand, true, true),
        (&suspended_by_hand, false, true),
    ] {
        let decision = decide(&Observation {
            status: &status,
            is_spec_valid: true,
            backoff_limit: 3,
            max_restarts: 0,
            lead_is_elsewhere: false,
            restarts_on_failure: false,
            min_size: None,
            job: None,
            last_job: Some(last),
            pods: Vec::new(),
            gone: has_run.then_some(&stopped).into_iter().collect(),
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
        });
        let reason = match &decision {
            Decision::Restart { reason, .. } if is_restarted => reason,
            Decision::Ended { reason, .. } if !is_restarted => reason,
            other => panic!("{last:?} {has_run}: {other:?}"),
        };
        assert_eq!(reason, "JobDeleted");
    }
}

/// When a Job fails, the Job controller deletes its pods, and with them their logs.
#[test]
fn pods_keep_their_logs_when_a_snippet_of_another_fails() {
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let asked_to_end = |pod: PodSeen, seconds: i64| PodSeen {
        end_requested: Some(Timestamp::from_second(now.as_second() - seconds).unwrap()),
        ..pod
    };
    let failed = || ended(1, by(Ender::Snippet, 1));
    let names = |pods: Vec<PodSeen>| match Seen::of(job(), pods).decision() {
        Decision::EndPods { pods, message, .. } => {
            assert!(
                message.contains("of the pod of index 1 ended with exit code 1"),
                "{message}"
            );
            Some(pods)
        }
        Decision::Fail { reason, message, .. } => {
            assert_eq!(
                (reason.as_str(), message.as_str()),
                ("PodFailurePolicy", "the pod of index 1 ended with exit code 1")
            );
            None
        }
        other => panic!("{other:?}"),
    };
    let waits = Some(Vec::new());
    assert_eq!(
        names(vec![pod(2), failed(), pod(0)]),
        Some(vec!["mc-0-abcde".into(), "mc-2-abcde".into()])
    );
    assert_eq!(
        names(vec![asked_to_end(pod(0), 1), failed(), pod(2)]),
        Some(vec!["mc-2-abcde".into()]),
        "after an operator that was killed between two requests, only the remaining pod is asked"
    );
    assert_eq!(
        names(vec![asked_to_end(pod(0), 1), failed(), asked_to_end(pod(2), 1)]),
        waits
    );
    let lead = || asked_to_end(ended(0, by(Ender::Stop, 143)), 2);
    assert_eq!(names(vec![lead(), failed(), asked_to_end(pod(2), 1)]), waits);
    assert_eq!(
        names(vec![lead(), failed(), asked_to_end(pod(2), TIME_TO_END)]),
        None,
        "the pod does not end in time"
    );
    assert_eq!(
        names(vec![
            lead(),
            failed(),
            PodSeen {
                is_on_silent_node: true,
                ..asked_to_end(pod(2), 1)
            }
        ]),
        None
    );
    assert_eq!(
        names(vec![
            failed(),
            PodSeen {
                has_begun: false,
                ..pod(2)
            }
        ]),
        None,
        "the pod has no log"
    );
    // Of many pods, only a limited number is asked to end at once.
    let many = |asked_pods: Vec<PodSeen>, others: std::ops::Range<u32>| {
        let pods = [failed()].into_iter().chain(asked_pods).chain(others.map(pod));
        names(pods.collect()).map(|pods| pods.len())
    };
    let asked_since = |seconds: i64| {
        (2..18)
            .map(|index| asked_to_end(pod(index), seconds))
            .collect::<Vec<_>>()
    };
    let have_ended = |seconds: i64| {
        let ended = (2..18).map(|index| asked_to_end(ended(index, by(Ender::Stop, 143)), seconds));
        ended.collect::<Vec<_>>()
    };
    assert_eq!(many(Vec::new(), 2..40), Some(ENDING_AT_ONCE));
    assert_eq!(many(asked_since(1), 18..40), Some(0), "16 are ending");
    assert_eq!(many(have_ended(1), 18..40), Some(ENDING_AT_ONCE), "the next ones");
    assert_eq!(many(have_ended(1), 18..20), Some(2));
    assert_eq!(
        many(asked_since(TIME_TO_END), 18..20),
        Some(2),
        "a pod that does not end delays no other"
    );
    assert_eq!(many(asked_since(TIME_TO_END), 18..18), None);
    assert_eq!(
        many(have_ended(NOTIFY_WINDOW), 18..40),
        None,
        "the Job fails in the end"
    );
    assert_eq!(many(have_ended(1), 18..18), None, "all have ended");
    // The lead's snippet failed, and a follower waits for the lead.
    let lead = Seen::of(job(), vec![ended(0, by(Ender::Snippet, 1)), pod(1)]);
    assert!(matches!(lead.decision(), Decision::EndPods { pods, .. } if pods == ["mc-1-abcde"]));
    // Only a snippet's failure asks pods to end. By another cause the Job fails at once (on a follower, `Program` is the
    // end of the instance).
    for ender in [Ender::Program, Ender::Agent] {
        let seen = Seen::of(job(), vec![pod(0), ended(1, by(ender, 1))]);
        assert!(matches!(seen.decision(), Decision::Fail { .. }), "{ender:?}");
    }
    // Beside the lead's success, the Job goes on.
    let succeeded = PodSeen {
        has_succeeded: true,
        ..ended(0, by(Ender::Program, 0))
    };
    assert_eq!(
        Seen::of(job(), vec![succeeded, failed(), pod(2)]).decision(),
        Decision::Continue
    );
}

#[test]
fn index_that_has_failed_for_good_fails_the_job() {
    let failed = |index: u32, pods: Vec<PodSeen>| {
        let job = JobSeen {
            has_lead_index_failed: index == 0,
            failed_index: Some(index).filter(|index| *index > 0),
            ..job()
        };
        Seen::of(job, pods).decision()
    };
    let reason = |decision: Decision| match decision {
        Decision::Fail { reason, message, .. } => (reason, message),
        other => panic!("{other:?}"),
    };
    let init = Trouble {
        init: Some(FailedInit::default()),
        ..Trouble::default()
    };
    let not_started = PodSeen {
        has_ended: true,
        trouble: Some(Box::new(init)),
        ..pod(1)
    };
    assert_eq!(
        reason(failed(1, vec![pod(0), not_started])).0,
        "MaxFailedIndexesExceeded"
    );
    let stopped = ended(1, by(Ender::Stop, REPLACE));
    assert_eq!(
        reason(failed(1, vec![pod(0), stopped])).0,
        "MaxFailedIndexesExceeded"
    );
    let gone = reason(failed(1, vec![pod(0)]));
    assert_eq!(
        gone,
        (
            "PodFailurePolicy".to_owned(),
            "the pod of index 1 ended".to_owned()
        )
    );
    let condition = TrueCondition {
        reason: gone.0,
        message: gone.1,
        since: None,
    };
    assert_eq!(condition.index_of_pod(), Some(1));
    assert_eq!(
        failed(1, vec![pod(0), pod(1)]),
        Decision::Continue,
        "the watch of pods lags behind"
    );
    let deleted = PodSeen {
        is_deleting: true,
        ..ended(0, by(Ender::Stop, 143))
    };
    assert!(
        matches!(failed(0, vec![deleted, pod(1)]), Decision::Restart { .. }),
        "a lead that somebody deleted"
    );
}

/// No operator ran that could fail the Job, so it failed only when all its pods had ended.
#[test]
fn failed_indexes_decide_like_the_pod_failure_policy() {
    let job = || JobSeen {
        failed: condition("FailedIndexes"),
        failing: condition("FailedIndexes"),
        ..job()
    };
    let lead = ended(0, by_node_failure(Ender::Program, 1));
    let mut seen = Seen::of(
        job(),
        vec![
            lead,
            PodSeen {
                has_succeeded: true,
                ..ended(1, by(Ender::Program, 0))
            },
        ],
    );
    assert!(seen.ending().failed.is_some());
    seen.max_restarts = 1;
    assert!(
        matches!(seen.decision(), Decision::Restart { .. }),
        "{:?}",
        seen.decision()
    );
    // A pod with the code `REPLACE` is retried, so the index has failed by its limit of retries.
    let mut retries_used_up = Seen::of(job(), vec![ended(1, by(Ender::Stop, REPLACE))]);
    retries_used_up.max_restarts = 1;
    assert_eq!(retries_used_up.decision(), Decision::Continue);
}

/// When the Job is resumed, the Job controller creates no pod for an index that has failed.
#[test]
fn suspended_job_is_recreated_when_an_index_has_failed() {
    for job in [
        JobSeen {
            has_lead_index_failed: true,
            ..job()
        },
        JobSeen {
            failed_index: Some(1),
            ..job()
        },
    ] {
        let seen = Seen::of(
            JobSeen {
                is_suspended: true,
                ..job
            },
            Vec::new(),
        );
        assert!(
            matches!(
                seen.decision(),
                Decision::Restart {
                    limit: Limit::None,
                    ..
                }
            ),
            "{:?}",
            seen.decision()
        );
    }
    let without_failure = Seen::of(
        JobSeen {
            is_suspended: true,
            ..job()
        },
        Vec::new(),
    );
    assert_eq!(without_failure.decision(), Decision::Continue);
}

/// The Job's failure policy also looks at pods that a suspension has stopped. It fails the Job by a lead that had not
/// begun, or whose end the runtime did not see.
#[test]
fn job_failed_by_lead_from_before_resume_is_recreated() {
    let time = |text: &str| Some(text.parse::<Timestamp>().unwrap());
    let stopped = |exit: Option<Exit>| PodSeen {
        is_deleting: true,
        deletion_requested: time("2025-12-31T23:00:00Z"),
        has_ended: true,
        is_running: false,
        exit: exit.map(Box::new),
        ..pod(0)
    };
    let resumed = |start: &str| JobSeen {
        start_time: time(start),
        ..failing("mc-0-abcde")
    };
    let decided = |job: JobSeen, pods: Vec<PodSeen>| {
        let seen = Seen {
            backoff_limit: 1,
            ..Seen::of(job, pods)
        };
        match seen.decision() {
            Decision::Restart { limit, reason, .. } => Some((limit, reason)),
            _ => None,
        }
    };
    let by_suspension = Some((Limit::None, "Suspended".to_owned()));
    let lost = Some((Limit::Backoff, "LeadLost".to_owned()));
    let (after, before) = ("2025-12-31T23:00:05Z", "2025-12-31T22:00:00Z");
    for exit in [None, Some(unseen())] {
        assert_eq!(
            decided(resumed(after), vec![stopped(exit.clone())]),
            by_suspension
        );
        let before_controller_resumes = JobSeen {
            start_time: None,
            ..resumed(after)
        };
        assert_eq!(
            decided(before_controller_resumes, vec![stopped(exit.clone())]),
            by_suspension
        );
        assert_eq!(
            decided(resumed(before), vec![stopped(exit)]),
            lost,
            "deleted while it ran"
        );
    }
    // The next lead is lost while the one before it is still there.
    let next = PodSeen {
        name: "mc-0-next".into(),
        deletion_requested: time("2025-12-31T23:30:00Z"),
        ..stopped(None)
    };
    assert_eq!(decided(resumed(after), vec![stopped(None), next]), lost);
    let ended = Seen::of(resumed(after), vec![stopped(Some(by(Ender::Program, 3)))]);
    assert_eq!(ended.decision(), Decision::Continue, "its program had ended");
}

/// With `OnFailure`, each of the stopped pods counts against the Job's limit.
#[test]
fn stop_of_all_pods_restarts_although_it_uses_up_the_jobs_limit() {
    let failed = JobSeen {
        failing: condition("BackoffLimitExceeded"),
        ..job()
    };
    let time = |text: &str| Some(text.parse::<Timestamp>().unwrap());
    let seen = |is_suspended: bool, start: &str, is_disruption: bool| {
        let mut lead = ended(0, by(Ender::Stop, 143));
        lead.is_deleting = true;
        lead.deletion_requested = time("2025-12-31T23:00:00Z");
        lead.trouble = is_disruption.then(|| {
            Box::new(Trouble {
                is_disruption,
                ..Trouble::default()
            })
        });
        let job = JobSeen {
            is_suspended,
            start_time: time(start),
            ..failed.clone()
        };
        Seen::of(job, vec![lead, ended(1, by(Ender::Stop, REPLACE))])
    };
    let (before, after) = ("2025-12-31T22:00:00Z", "2025-12-31T23:00:05Z");
    for (is_suspended, start, is_disruption, limit) in [
        (true, before, false, Some(Limit::None)),
        (false, after, false, Some(Limit::None)),
        (false, before, true, Some(Limit::Backoff)),
        (false, before, false, None),
    ] {
        let seen = seen(is_suspended, start, is_disruption);
        let observation = Observation {
            restarts_on_failure: true,
            ..seen.observation()
        };
        let counted = match decide(&observation) {
            Decision::Restart { limit, .. } => Some(limit),
            _ => None,
        };
        assert_eq!(counted, limit, "{:?}", decide(&observation));
        assert_eq!(seen.decision(), Decision::Continue, "not with `Never`");
    }
    // The lead of the new start was stopped without a drain: it has used up the Job's limit, which is final, even if the
    // earlier lead was drained.
    for was_earlier_lead_drained in [false, true] {
        let mut later = seen(false, after, was_earlier_lead_drained);
        later.pods.push(PodSeen {
            name: "mc-0-next".into(),
            deletion_requested: time("2025-12-31T23:30:00Z"),
            trouble: None,
            ..later.pods[0].clone()
        });
        let observation = Observation {
            restarts_on_failure: true,
            ..later.observation()
        };
        assert_eq!(decide(&observation), Decision::Continue);
    }
}

#[test]
fn follower_that_does_not_start_is_tried_within_backoff_limit() {
    let not_started = |number: u32| PodSeen {
        name: format!("mc-1-{number}"),
        is_running: false,
        has_begun: false,
        has_ended: true,
        exit: None,
        ..pod(1)
    };
    let decision_of = |failures: u32, lost: u32, backoff_limit| {
        let mut pods = vec![pod(0)];
        pods.extend((0..failures).map(not_started));
        pods.extend((0..lost).map(|number| PodSeen {
            name: format!("mc-1-lost-{number}"),
            ..ended(1, unseen())
        }));
        Seen {
            backoff_limit,
            ..Seen::of(job(), pods)
        }
        .decision()
    };
    assert_eq!(decision_of(1, 5, 1), Decision::Continue);
    for (failures, limit) in [(1, 0), (2, 1)] {
        let decision = decision_of(failures, 0, limit);
        assert!(
            matches!(&decision, Decision::Fail { reason, message, .. }
                if reason == "MaxFailedIndexesExceeded" && message == "the pod of index 1 did not start"),
            "{decision:?}"
        );
    }
}

/// The exit of a lead whose instance somebody has shut down.
fn by_shutdown() -> Exit {
    let termination = Termination {
        program_code: Some(143),
        shut_down: true,
        ..Termination::new(Ender::Program, 143)
    };
    Exit {
        termination: Some(termination),
        ..by(Ender::Program, 143)
    }
}

/// With `OnFailure`, the kubelet would start the lead's container again. After a shutdown nothing may run, so the operator
/// fails the Job.
#[test]
fn shutdown_of_the_instance_fails_the_job_with_on_failure() {
    let decision_of = |lead: &PodSeen, job: JobSeen| {
        let seen = Seen {
            max_restarts: 1,
            ..Seen::of(job, vec![lead.clone(), pod(1)])
        };
        decide(&Observation {
            restarts_on_failure: true,
            ..seen.observation()
        })
    };
    let failed = PodSeen {
        has_ended: false,
        ..ended(0, by(Ender::Program, 143))
    };
    let shut_down = PodSeen {
        is_shut_down: true,
        has_ended: false,
        is_running: true,
        ..ended(0, by_shutdown())
    };
    assert_eq!(decision_of(&failed, job()), Decision::Continue);
    let fail = Decision::Fail {
        job_uid: "job".into(),
        reason: "LeadFailed".into(),
        message: "the lead (index 0) ended with exit code 143; it is not restarted".into(),
    };
    assert_eq!(decision_of(&shut_down, job()), fail);
    let failing = JobSeen {
        failing: condition("LeadFailed"),
        ..job()
    };
    assert_eq!(decision_of(&shut_down, failing), Decision::Continue);
}

/// The kubelet would have started its container again.
#[test]
fn lead_lost_while_it_waits_for_its_next_start_is_restarted() {
    let failed = || ended(0, by(Ender::Program, 1));
    let disrupted = |lead: PodSeen| PodSeen {
        trouble: Some(Box::new(Trouble {
            is_disruption: true,
            ..Trouble::default()
        })),
        ..lead
    };
    let deleted = PodSeen {
        is_deleting: true,
        ..failed()
    };
    let replacement = PodSeen {
        name: "mc-0-next".into(),
        index_failures: 1,
        ..pod(0)
    };
    let restarts = |pods: Vec<PodSeen>, restarts_on_failure| {
        let seen = Seen::of(job(), pods);
        let observation = Observation {
            restarts_on_failure,
            ..seen.observation()
        };
        matches!(decide(&observation), Decision::Restart { .. })
    };
    assert!(restarts(vec![disrupted(failed())], true));
    assert!(restarts(vec![deleted.clone(), replacement.clone()], true));
    assert!(!restarts(vec![disrupted(failed())], false));
    assert!(!restarts(vec![deleted, replacement], false));
    let shut_down = PodSeen {
        is_shut_down: true,
        ..ended(0, by_shutdown())
    };
    assert!(!restarts(vec![disrupted(shut_down)], true));
}

/// A new pod would exceed it, too.
#[test]
fn lead_beyond_its_own_storage_limit_is_not_restarted() {
    let restarts = |message: &str, exit: Exit| {
        let evicted = PodSeen {
            trouble: Some(Box::new(Trouble {
                reason: "Evicted".into(),
                message: message.into(),
                ..Trouble::default()
            })),
            ..ended(0, exit)
        };
        let seen = Seen::of(failing("mc-0-abcde"), vec![evicted, pod(1)]);
        matches!(seen.decision(), Decision::Restart { .. })
    };
    let killed = || Exit {
        code: 137,
        ..Exit::default()
    };
    for message in [
        "Usage of EmptyDir volume \"data\" exceeds the limit \"1Gi\". ",
        "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
        "Container mc exceeded its local ephemeral storage limit \"1Gi\". ",
    ] {
        assert!(!restarts(message, killed()), "{message}");
        assert!(!restarts(message, by(Ender::Stop, 143)), "{message}");
    }
    let of_node =
        "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 512Mi. ";
    assert!(restarts(of_node, killed()));
    assert!(restarts(of_node, by(Ender::Stop, 143)));
}

/// A follower may be lost while somebody shuts the instance down.
#[test]
fn shutdown_after_the_loss_of_a_follower_is_no_loss() {
    let restarts = |exit: Exit| {
        let lost = LostPod {
            name: "mc-1-earlier".into(),
            index: 1,
            time: "2025-12-31T23:59:00Z".into(),
            ..LostPod::default()
        };
        let mut seen = Seen {
            max_restarts: 1,
            ..Seen::of(job(), vec![ended(0, exit), pod(1)])
        };
        seen.status.lost_pods = vec![lost];
        matches!(seen.decision(), Decision::Restart { .. })
    };
    assert!(restarts(by(Ender::Program, 143)));
    assert!(!restarts(by_shutdown()));
}

/// `status.lostPods` keeps an entry also once another pod has replaced the lost one.
#[test]
fn node_failure_names_no_follower_replaced_long_ago() {
    let (long_ago, just_now) = ("2025-12-31T18:00:00Z", "2025-12-31T23:59:00Z");
    let ready = || PodSeen {
        is_ready: true,
        ..pod(1)
    };
    let silent = || PodSeen {
        is_on_silent_node: true,
        node: Some("worker-3".into()),
        ..pod(2)
    };
    for (time, completions, followers, expected) in [
        (long_ago, 3, vec![ready(), silent()], "worker-3"),
        (long_ago, 3, vec![ready(), pod(2)], "rank 2"),
        (just_now, 3, vec![ready(), pod(2)], "mc-1-earlier"),
        // The lost pod has not been replaced yet.
        (long_ago, 3, vec![pod(1), pod(2)], "mc-1-earlier"),
        (long_ago, 3, vec![pod(1), silent()], "worker-3"),
        // The MiniCluster has shrunk since.
        (long_ago, 1, vec![], "rank 2"),
    ] {
        let exit = Exit {
            message: "node failure on mc-2 (rank 2)".into(),
            ..by_node_failure(Ender::Program, 1)
        };
        let job = JobSeen { completions, ..job() };
        let pods = std::iter::once(ended(0, exit)).chain(followers).collect();
        let mut seen = Seen {
            max_restarts: 1,
            ..Seen::of(job, pods)
        };
        seen.status.lost_pods = vec![LostPod {
            name: "mc-1-earlier".into(),
            index: 1,
            time: time.into(),
            ..LostPod::default()
        }];
        let Decision::Restart { message, .. } = seen.decision() else {
            panic!("{:?}", seen.decision());
        };
        assert!(message.contains(expected), "{expected}: {message}");
        assert_eq!(message.contains("mc-1-earlier"), expected == "mc-1-earlier");
    }
}

#[test]
fn lost_follower_is_the_one_that_the_failing_job_names() {
    let lost = |index: i32| LostPod {
        name: format!("mc-{index}-earlier"),
        index,
        ..LostPod::default()
    };
    for (recorded, expected) in [
        (vec![lost(1)], "mc-2-abcde"),
        (vec![lost(2), lost(1)], "mc-2-earlier"),
    ] {
        let removed = PodSeen {
            index: 2,
            name: "mc-2-abcde".into(),
            ..killed_follower().remove(1)
        };
        let pods = vec![killed_follower().remove(0), removed];
        let mut seen = Seen {
            max_restarts: 1,
            ..Seen::of(failing("mc-2-abcde"), pods)
        };
        seen.status.lost_pods = recorded;
        let Decision::Restart { message, .. } = seen.decision() else {
            panic!("{:?}", seen.decision());
        };
        assert!(message.contains(expected), "{expected}: {message}");
    }
}

/// A kubelet may reject the lead's pod. The Job controller then creates another, which runs nothing.
#[test]
fn rejected_lead_is_named_when_no_restart_is_left() {
    let words = "not enough devices are left";
    let rejected = PodSeen {
        is_running: false,
        has_begun: false,
        has_ended: true,
        trouble: Some(Box::new(Trouble {
            reason: "UnexpectedAdmissionError".into(),
            message: words.into(),
            ..Trouble::default()
        })),
        ..pod(0)
    };
    let replacing = PodSeen {
        name: "mc-0-second".into(),
        index_failures: 1,
        ..pod(0)
    };
    let mut seen = Seen {
        backoff_limit: 1,
        ..Seen::of(job(), vec![rejected, replacing])
    };
    assert!(matches!(
        seen.decision(),
        Decision::Restart { reason, message, limit: Limit::Backoff, .. }
            if reason == "UnexpectedAdmissionError" && message.ends_with(words)
    ));
    seen.status.backoff_limit_used = 1;
    let expected = Decision::Fail {
        job_uid: "job".into(),
        reason: "UnexpectedAdmissionError".into(),
        message: format!(
            "the lead's pod, mc-0-abcde, did not start: {words}; no restart left: backoffLimit is 1"
        ),
    };
    assert_eq!(seen.decision(), expected);
}

/// The Job retries some exit codes of users' init containers: those of a pod that was deleted, or whose node was
/// rebooted.
#[test]
fn init_container_that_fails_by_itself_fails_the_job() {
    let failed = |index: u32, code: i32| {
        let exit = Exit {
            code,
            reason: "Error".into(),
            ..Exit::default()
        };
        let init = FailedInit {
            name: "fetch".into(),
            is_users: true,
            exit,
        };
        let trouble = Trouble {
            init: Some(init),
            ..Trouble::default()
        };
        PodSeen {
            is_running: false,
            has_ended: true,
            is_labelled: false,
            trouble: Some(Box::new(trouble)),
            ..pod(index)
        }
    };
    let replacement = |index: u32| PodSeen {
        name: format!("mc-{index}-next"),
        index_failures: 1,
        ..pod(index)
    };
    for (code, index) in [(143, 1), (137, 1), (255, 1), (143, 0), (255, 0)] {
        let by_itself = || failed(index, code);
        let deleted = PodSeen {
            is_deleting: true,
            ..by_itself()
        };
        let other = || pod(1 - index);
        assert_eq!(
            Seen::of(job(), vec![other(), deleted]).decision(),
            Decision::Continue,
            "the Job replaces the pod of index {index}"
        );
        for pods in [
            vec![other(), by_itself()],
            vec![other(), by_itself(), replacement(index)],
        ] {
            let decision = Seen::of(job(), pods).decision();
            assert!(
                matches!(decision, Decision::Fail { .. }),
                "{index} {code}: {decision:?}"
            );
        }
    }
}

#[test]
fn job_fails_instead_of_a_restart_with_an_invalid_spec() {
    let seen = Seen {
        max_restarts: 1,
        ..Seen::of(job(), vec![pod(0), pod(1)])
    };
    let suspended = JobSeen {
        is_suspended: true,
        ..job()
    };
    for limit in [Limit::Backoff, Limit::MaxRestarts, Limit::None] {
        let decide = |is_spec_valid, job, job_exists| {
            let observation = Observation {
                is_spec_valid,
                job,
                ..seen.observation()
            };
            let to_replace = JobToReplace {
                job_uid: "job".into(),
                job_exists,
                is_failing: false,
            };
            restart_or_end(
                &observation,
                to_replace,
                Reason::LeadLost,
                "it was lost".into(),
                limit,
            )
        };
        let decision_of = |is_spec_valid| decide(is_spec_valid, Some(&seen.job), true);
        assert!(matches!(decision_of(true), Decision::Restart { .. }));
        // Nothing runs: the spec may be corrected.
        assert_eq!(decide(false, Some(&suspended), true), Decision::Continue);
        assert_eq!(decide(false, None, false), Decision::Continue);
        let fail = Decision::Fail {
            job_uid: "job".into(),
            reason: "LeadLost".into(),
            message: "it was lost; no restart, because the spec is not valid".into(),
        };
        assert_eq!(decision_of(false), fail);
    }
}

/// The Job replaces index 0 like any follower if the lead is in another cluster.
#[test]
fn loss_of_index_0_restarts_nothing_under_a_remote_lead() {
    let drained = |index| {
        let disruption = Trouble {
            reason: "EvictionByEvictionAPI".into(),
            is_disruption: true,
            ..Trouble::default()
        };
        PodSeen {
            is_deleting: true,
            trouble: Some(Box::new(disruption)),
            ..ended(index, by(Ender::Stop, REPLACE))
        }
    };
    let deleted = PodSeen {
        is_deleting: true,
        ..ended(0, by(Ender::Stop, REPLACE))
    };
    let stopped_alone = ended(0, by(Ender::Stop, REPLACE));
    let replacing = |index_failures, index_disruptions| PodSeen {
        name: "mc-0-fghij".into(),
        index_failures,
        index_disruptions,
        ..pod(0)
    };
    let burst = |job: JobSeen, pods: Vec<PodSeen>| {
        let lost_pods = vec![loss(&drained(0))];
        Seen {
            status: MiniClusterStatus {
                lost_pods,
                ..MiniClusterStatus::default()
            },
            lead_is_elsewhere: true,
            ..Seen::of(job, pods)
        }
    };
    for pods in [
        vec![drained(0), pod(1)],
        vec![drained(0), replacing(0, 1), pod(1)],
        vec![deleted.clone(), pod(1)],
        vec![deleted, replacing(1, 0), pod(1)],
        vec![stopped_alone, pod(1)],
        vec![replacing(0, 1), pod(1)],
        vec![replacing(1, 0), pod(1)],
    ] {
        let seen = burst(job(), pods.clone());
        assert_eq!(seen.decision(), Decision::Continue, "{pods:#?}");
        assert_eq!(seen.ending(), seen.job, "{pods:#?}");
    }
    // Its own failure fails the Job, as that of any follower.
    let failed = burst(job(), vec![ended(0, by(Ender::Agent, 243)), pod(1)]);
    assert!(matches!(failed.decision(), Decision::Fail { .. }));
    let never_starts = PodSeen {
        is_running: false,
        has_begun: false,
        has_ended: true,
        exit: None,
        ..pod(0)
    };
    let mut no_retry = burst(job(), vec![never_starts, pod(1)]);
    no_retry.backoff_limit = 0;
    assert!(
        matches!(no_retry.decision(), Decision::Fail { reason, .. } if reason == "MaxFailedIndexesExceeded")
    );
    // The Job of an older operator has a rule for the lead even if the lead is elsewhere: it fails by the pod of index 0.
    let message =
        "Container mc for pod ns/mc-0-abcde failed with exit code 238 matching FailJob rule at index 2";
    let by_rule = JobSeen {
        failing: condition("PodFailurePolicy").map(|condition| TrueCondition {
            message: message.into(),
            ..condition
        }),
        ..job()
    };
    let restarts = burst(by_rule, vec![drained(0), pod(1)]).decision();
    assert!(
        matches!(&restarts, Decision::Restart { reason, .. } if reason == "LeadLost"),
        "{restarts:?}"
    );
    // The Job was deleted. The pod of index 0 replaced one whose end this operator has not seen, which would matter only
    // for a lead.
    let replacement = replacing(1, 0);
    let status = MiniClusterStatus::default();
    let job = job();
    let without_job = Observation {
        job: None,
        last_job: Some(&job),
        pods: Vec::new(),
        gone: vec![&replacement],
        status: &status,
        ..burst(job.clone(), Vec::new()).observation()
    };
    assert!(matches!(decide(&without_job), Decision::Restart { reason, .. } if reason == "JobDeleted"));
}

/// The status says that a pod could not mount the view's image. Before the Job is deleted, the node may mount it after
/// all; with `minSize`, the program may begin without this pod.
#[test]
fn job_that_cannot_mount_the_view_stays_once_begun() {
    let mut seen = Seen::of(
        JobSeen {
            mounts_view: true,
            ..job()
        },
        Vec::new(),
    );
    seen.status.conditions.push(testing::condition(
        ConditionType::ViewMounted,
        ConditionStatus::False,
        "ImageVolumeFailed",
    ));
    let job_uid = || "job".to_owned();
    let deleted = Decision::Delete { job_uid: job_uid() };
    let kept = Decision::KeepJob { job_uid: job_uid() };
    let waits = |index: u32| PodSeen {
        is_running: false,
        ..pod(index)
    };
    let decision_for = |pods: Vec<PodSeen>, gone: &[&PodSeen], min_size: Option<u32>| {
        let observation = Observation {
            pods: pods.iter().collect(),
            gone: gone.to_vec(),
            min_size,
            ..seen.observation()
        };
        decide(&observation)
    };
    assert_eq!(decision_for(vec![pod(0), waits(1)], &[], None), deleted);
    assert_eq!(
        decision_for(vec![pod(0), waits(1)], &[], Some(1)),
        kept,
        "the lead waits for no other"
    );
    assert_eq!(decision_for(vec![waits(0), pod(1)], &[], Some(1)), deleted);
    assert_eq!(decision_for(vec![pod(0), pod(1)], &[], None), kept);
    let failed = ended(0, by(Ender::Program, 7));
    assert_eq!(decision_for(vec![failed, waits(1)], &[], None), kept);
    let replacement = PodSeen {
        index_disruptions: 1,
        ..waits(0)
    };
    let pods = || vec![replacement.clone(), waits(1)];
    assert_eq!(
        decision_for(pods(), &[], None),
        kept,
        "the first lead was not seen"
    );
    assert_eq!(decision_for(pods(), &[&waits(0)], None), deleted);
    assert_eq!(decision_for(pods(), &[&pod(0)], None), kept);
    // The next status has no such condition, and the Job goes on.
    let pods = [ended(0, by(Ender::Program, 7)), pod(1)];
    let after = without_mount_failure(&seen.status, "job");
    let observation = Observation {
        status: &after,
        pods: pods.iter().collect(),
        ..seen.observation()
    };
    assert!(matches!(decide(&observation), Decision::Fail { .. }));
    // A counted restart is never taken back.
    seen.status = with_restart(&seen.status, Some("job"), "LeadLost", "", observation.now);
    seen.pods = vec![pod(0), pod(1)];
    assert_eq!(seen.decision(), deleted);
}
