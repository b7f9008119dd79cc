use flux_shared::crd::v1alpha2::{Condition, ConditionStatus, MiniClusterStatus, Restart};
use flux_shared::exit::Category;
use flux_shared::termination::{Ender, Termination};
use flux_shared::validate::{Problem, ValidMiniCluster};
use k8s_openapi::jiff::Timestamp;

use super::{CheckedSpec, Inputs, Obstacle, compute, image_volume_failed, is_finished};
use crate::decide::restart;
use crate::observe::ServicesPodSeen;
use crate::observe::job::{self, JobSeen};
use crate::observe::pod::{Exit, FailedInit, PodSeen, PodSpecPart, Trouble};
use crate::observe::storage::DiskSeen;
use crate::render::elastic::Elastic;
use crate::status::events;
use crate::vocabulary::{ConditionType, Reason};

mod failures;
mod scheduling;
mod views_and_volumes;

const NOW: &str = "2026-01-01T00:10:00Z";

/// The condition of a type, by its name in the status.
fn condition<'a>(status: &'a MiniClusterStatus, type_: &str) -> Option<&'a Condition> {
    super::condition(status, ConditionType::parse(type_).unwrap())
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn job(size: u32) -> JobSeen {
    JobSeen {
        uid: "job".into(),
        completions: size,
        maximum_size: Some(size),
        start_time: Some(at("2026-01-01T00:00:00Z")),
        ..JobSeen::default()
    }
}

fn pod(index: u32) -> PodSeen {
    PodSeen {
        name: format!("mc-{index}"),
        job_uid: Some("job".into()),
        index,
        is_scheduled: true,
        ..PodSeen::default()
    }
}

fn ready(index: u32) -> PodSeen {
    PodSeen {
        is_running: true,
        has_joined: true,
        is_ready: true,
        ..pod(index)
    }
}

fn ended(index: u32, code: i32, minute: u32) -> PodSeen {
    let exit = Exit {
        code,
        reason: "Error".into(),
        at: Some(at(&format!("2026-01-01T00:{minute:02}:00Z"))),
        ..Exit::default()
    };
    PodSeen {
        has_ended: true,
        has_succeeded: code == 0,
        exit: Some(Box::new(exit)),
        ..pod(index)
    }
}

/// A pod whose agent reported how it ended.
fn with_termination(index: u32, termination: Termination) -> PodSeen {
    let exit = Exit {
        code: termination.code.into(),
        termination: Some(termination),
        ..Exit::default()
    };
    PodSeen {
        has_ended: true,
        exit: Some(Box::new(exit)),
        ..pod(index)
    }
}

/// A condition of the Job that has become true: for its field `failed`, and also for `complete`.
fn true_condition(reason: &str, message: &str) -> Option<job::TrueCondition> {
    Some(job::TrueCondition {
        reason: reason.into(),
        message: message.into(),
        since: Some(at("2026-01-01T00:09:00Z")),
    })
}

struct Observation {
    cluster: ValidMiniCluster,
    previous: MiniClusterStatus,
    job: Option<JobSeen>,
    pods: Vec<PodSeen>,
    gone: Vec<PodSeen>,
    services_pod: Option<ServicesPodSeen>,
    obstacle: Option<Obstacle>,
    problems: Vec<Problem>,
    disks: Option<Vec<DiskSeen>>,
    copied_for: Option<String>,
    warning: Option<Trouble>,
    spec_hash: Option<&'static str>,
    generation: i64,
    now: &'static str,
}

fn observation(spec: &str) -> Observation {
    Observation {
        cluster: crate::testing::cluster(spec),
        previous: MiniClusterStatus::default(),
        job: None,
        pods: Vec::new(),
        gone: Vec::new(),
        services_pod: None,
        obstacle: None,
        problems: Vec::new(),
        disks: None,
        copied_for: None,
        warning: None,
        spec_hash: None,
        generation: 1,
        now: NOW,
    }
}

impl Observation {
    fn status(&self) -> MiniClusterStatus {
        compute(&Inputs {
            name: "mc",
            generation: Some(self.generation),
            is_deleting: false,
            spec: if self.problems.is_empty() {
                CheckedSpec::Valid(&self.cluster)
            } else {
                CheckedSpec::Invalid(&self.problems)
            },
            view_image: self.cluster.view.image.as_deref().unwrap_or("view:1"),
            previous: &self.previous,
            job: self.job.as_ref(),
            spec_hash: self.spec_hash,
            pods: self.pods.iter().collect(),
            gone: self.gone.iter().collect(),
            services_pod: self.services_pod.as_ref(),
            nodes_mount_images: false,
            copied_for: self.copied_for.as_deref(),
            obstacle: self.obstacle.as_ref(),
            disks: self.disks.clone(),
            warning: self.warning.as_ref(),
            now: at(self.now),
            server_now: at(self.now),
        })
    }
}

fn is(status: &MiniClusterStatus, type_: &str) -> bool {
    condition(status, type_).unwrap().status == ConditionStatus::True
}

#[test]
fn followers_that_have_completed_are_not_waited_for() {
    let mut observation = observation("size: 3");
    observation.job = Some(job(3));
    observation.pods = vec![ready(0), ready(1), ended(2, 0, 5)];
    let status = observation.status();
    assert!(
        is(&status, "Ready") && !is(&status, "JobWaitingForResources"),
        "{status:#?}"
    );
    assert_eq!((status.phase.as_deref(), status.ready_size), (Some("Running"), 2));
    assert!(
        condition(&status, "Ready")
            .unwrap()
            .message
            .starts_with("2 of 3 brokers are ready, 1 completed")
    );
    observation.pods = vec![ready(0), ready(1), ended(2, 1, 5)];
    assert!(
        !is(&observation.status(), "Ready"),
        "the Job replaces a follower that failed"
    );
    let kept = PodSeen {
        has_ended: false,
        kept_by: Some("proxy".into()),
        ..ended(2, 0, 5)
    };
    observation.pods = vec![ready(0), ready(1), kept];
    assert!(
        is(&observation.status(), "Ready"),
        "another container keeps the pod"
    );
    observation.job = Some(job(2));
    observation.pods = vec![ready(0), ended(2, 0, 5)];
    assert!(!is(&observation.status(), "Ready"), "pod 2 is beyond the size");
    observation.job = Some(job(3));
    observation.pods = vec![ready(0), ended(2, 0, 5), ready(2)];
    assert!(
        !is(&observation.status(), "Ready"),
        "index 2 has a new pod, and pod 1 is missing"
    );
}

/// The watch of pods may lag behind that of the Job.
#[test]
fn finished_job_has_no_ready_pods_when_pod_watch_is_behind() {
    for (complete, failed) in [
        (true_condition("CompletionsReached", ""), None),
        (None, true_condition("BackoffLimitExceeded", "")),
    ] {
        let mut observation = observation("size: 3");
        observation.job = Some(JobSeen {
            complete,
            failed,
            ..job(3)
        });
        observation.pods = vec![ended(0, 0, 8), ready(1), ready(2)];
        let status = observation.status();
        assert_eq!((status.size, status.ready_size), (0, 0), "{status:#?}");
    }
}

#[test]
fn phase_follows_spec_job_and_pods() {
    let phase = |observation: &Observation| observation.status().phase.unwrap();
    let mut observation = observation("size: 2");
    assert_eq!(phase(&observation), "Pending");
    observation.problems = vec![Problem::new("spec.size", "no")];
    assert_eq!(phase(&observation), "Invalid");
    observation.problems.clear();
    observation.job = Some(job(2));
    assert_eq!(phase(&observation), "Pending");
    observation.pods = vec![pod(0), pod(1)];
    assert_eq!(phase(&observation), "Starting");
    observation.pods = vec![ready(0), pod(1)];
    assert_eq!(phase(&observation), "Starting");
    observation.pods = vec![ready(0), ready(1)];
    assert_eq!(phase(&observation), "Running");
    observation.job = Some(JobSeen {
        is_suspended: true,
        ..job(2)
    });
    assert_eq!(phase(&observation), "Suspended");
    observation.job = Some(JobSeen {
        failed: true_condition("", ""),
        ..job(2)
    });
    assert_eq!(phase(&observation), "Failed");
    observation.job = Some(JobSeen {
        complete: true_condition("", ""),
        ..job(2)
    });
    assert_eq!(phase(&observation), "Completed");
}

#[test]
fn status_size_is_the_number_of_pods_that_have_not_ended() {
    let mut observation = observation("size: 2");
    (observation.job, observation.pods) = (Some(job(2)), vec![ready(0), ended(1, 0, 1)]);
    assert_eq!(observation.status().size, 1);
    observation.job = Some(JobSeen {
        complete: true_condition("", ""),
        ..job(2)
    });
    observation.pods = vec![ended(0, 0, 2), ended(1, 0, 1)];
    assert_eq!(observation.status().size, 0);
}

#[test]
fn min_size_of_ready_pods_is_enough_to_be_ready() {
    let mut observation = observation("size: 4\nminSize: 2");
    observation.job = Some(job(4));
    observation.pods = vec![ready(0), ready(1), pod(2), pod(3)];
    let status = observation.status();
    assert!(
        is(&status, "Ready") && is(&status, "JobMiniClusterReady") && is(&status, "JobWaitingForResources")
    );
    observation.pods = vec![pod(0), ready(1), ready(2), ready(3)];
    assert!(
        !is(&observation.status(), "Ready"),
        "it is not ready without the lead"
    );
}

/// The command starts with as many brokers as the pods read when they started. A growth of the MiniCluster does not
/// change this number.
#[test]
fn initial_size_of_ready_pods_is_enough_after_growth() {
    let mut observation = observation("size: 4\nmaxSize: 8");
    observation.job = Some(JobSeen {
        initial_size: Some(2),
        ..job(4)
    });
    let full_node = Trouble {
        reason: "Unschedulable".into(),
        ..Trouble::default()
    };
    let waits = PodSeen {
        is_scheduled: false,
        trouble: Some(Box::new(full_node)),
        ..pod(3)
    };
    observation.pods = vec![ready(0), pod(1), pod(2), waits.clone()];
    assert_eq!(observation.status().phase.as_deref(), Some("Starting"));
    observation.pods = vec![ready(0), ready(1), pod(2), waits];
    // The status stays the same once the timeline has the time of the readiness.
    for _ in 0..2 {
        observation.previous = observation.status();
        let status = &observation.previous;
        assert_eq!(status.phase.as_deref(), Some("Running"));
        assert!(status.timeline.as_ref().unwrap().ready.is_some());
        assert!(
            is(status, "Ready") && is(status, "JobMiniClusterReady") && is(status, "JobWaitingForResources")
        );
        assert_eq!(
            condition(status, "Ready").unwrap().message,
            "2 of 4 brokers are ready (2 are enough)"
        );
        assert_eq!(
            status.reason.as_deref(),
            Some("Unschedulable"),
            "why the other pods are missing"
        );
    }
}

/// The conditions that are false with the reason NotRequested while the Job does not exist.
const NOT_REQUESTED: [&str; 8] = [
    "JobRequested",
    "JobWaitingForResources",
    "JobRunning",
    "JobMiniClusterReady",
    "JobFinished",
    "Ready",
    "Complete",
    "Failed",
];

fn all_false(reason: &str, types: &[&str]) -> String {
    types
        .iter()
        .map(|type_| format!("{type_} False {reason}"))
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn all_conditions_have_status_and_reason_in_every_phase() {
    let mut observation = observation("size: 2");
    let conditions_of = |observation: &Observation| {
        let status = observation.status();
        let lines = status
            .conditions
            .iter()
            .map(|condition| format!("{} {:?} {}", condition.type_, condition.status, condition.reason));
        lines.collect::<Vec<_>>().join("\n")
    };
    let common = |pending: &str| format!("Valid True Valid\n{pending}");
    assert_eq!(
        conditions_of(&observation),
        common(&all_false("NotRequested", &NOT_REQUESTED))
            + "\nSuspended False NotSuspended\nReconciling True NotRequested"
    );
    observation.job = Some(job(2));
    observation.pods = vec![ready(0), pod(1)];
    let not_ended = all_false("NotFinished", &["Complete", "Failed"]) + "\nSuspended False NotSuspended";
    assert_eq!(
        conditions_of(&observation),
        common(
            "JobRequested True JobCreated\nJobWaitingForResources True PodsStarting\nJobRunning True LeadRunning\nJobMiniClusterReady False BrokersNotReady\nJobFinished False NotFinished\nReady False BrokersNotReady\n"
        ) + &not_ended
            + "\nReconciling True PodsStarting"
    );
    observation.pods = vec![ready(0), ready(1)];
    assert_eq!(
        conditions_of(&observation),
        common(
            "JobRequested True JobCreated\nJobWaitingForResources False PodsRunning\nJobRunning True LeadRunning\nJobMiniClusterReady True BrokersReady\nJobFinished False NotFinished\nReady True BrokersReady\n"
        ) + &not_ended
    );
    let idle = |reason: &str| {
        all_false(
            reason,
            &["JobWaitingForResources", "JobRunning", "JobMiniClusterReady"],
        )
    };
    observation.job = Some(JobSeen {
        complete: true_condition("", ""),
        ..job(2)
    });
    assert_eq!(
        conditions_of(&observation),
        common("JobRequested True JobCreated\n")
            + &idle("Completed")
            + "\nJobFinished True Completed\nReady True Completed\nComplete True Completed\nFailed False Completed\nSuspended False NotSuspended"
    );
    observation.job = Some(JobSeen {
        failed: true_condition("DeadlineExceeded", "too long"),
        ..job(2)
    });
    assert_eq!(
        conditions_of(&observation),
        common("JobRequested True JobCreated\n")
            + &idle("Failed")
            + "\nJobFinished True DeadlineExceeded\nReady False Failed\nComplete False Failed\nFailed True DeadlineExceeded\nSuspended False NotSuspended\nStalled True DeadlineExceeded"
    );
    observation.job = Some(JobSeen {
        is_suspended: true,
        ..job(2)
    });
    assert_eq!(
        conditions_of(&observation),
        common("JobRequested True JobCreated\n")
            + &idle("Suspended")
            + "\nJobFinished False NotFinished\nReady False Suspended\nComplete False NotFinished\nFailed False NotFinished\nSuspended True Suspended"
    );
}

#[test]
fn finished_cluster_observes_edits_when_its_job_is_gone() {
    let mut observation = observation("size: 1");
    observation.job = Some(JobSeen {
        complete: true_condition("", ""),
        ..job(1)
    });
    observation.previous = observation.status();
    observation.job = None;
    observation.generation = 2;
    let after = observation.status();
    assert_eq!(after.observed_generation, Some(2));
    assert!(
        after
            .conditions
            .iter()
            .all(|condition| condition.observed_generation == Some(2)),
        "{after:#?}"
    );
    assert!(is(&after, "Complete"));
}

#[test]
fn late_edit_is_reported_until_a_new_job_has_it() {
    let mut observation = observation("size: 1");
    // A spec's hash is two hashes with a dot between (`render::spec_hash`). Only the first is compared here: that of all
    // fields that are fixed once there is a Job.
    observation.job = Some(JobSeen {
        spec_hash: Some("a.b".into()),
        ..job(1)
    });
    observation.spec_hash = Some("c.b");
    observation.previous = observation.status();
    let valid = condition(&observation.previous, "Valid").unwrap();
    assert_eq!(
        (valid.status, valid.reason.as_str()),
        (ConditionStatus::False, "ChangedTooLate")
    );
    assert!(is(&observation.previous, "Stalled"));
    assert_eq!(
        observation.previous.maximum_size,
        Some(1),
        "from now on, only the condition itself keeps the report"
    );
    assert_eq!(
        condition(&observation.status(), "Valid").unwrap().reason,
        "ChangedTooLate",
        "the condition stays"
    );
    observation.job = Some(JobSeen {
        spec_hash: Some("c.b".into()),
        ..job(1)
    });
    assert!(is(&observation.status(), "Valid"));
    observation.previous = observation.status();
    observation.job = Some(JobSeen {
        spec_hash: Some("of another version".into()),
        ..job(1)
    });
    // From the first status with a Job on, the API server rejects such edits. So this difference only comes from another
    // version of the operator, which computes hashes in another way.
    assert!(is(&observation.status(), "Valid"));
}

#[test]
fn same_inputs_give_the_same_status_at_any_time() {
    let mut observation = observation("size: 2");
    observation.job = Some(job(2));
    observation.pods = vec![ready(0), pod(1)];
    observation.previous = observation.status();
    observation.now = "2026-01-02T00:00:00Z";
    assert_eq!(observation.status(), observation.previous);
    observation.pods = vec![ready(0), ready(1)];
    let after = observation.status();
    let since = |status, type_| condition(status, type_).unwrap().last_transition_time.clone();
    assert_eq!(
        since(&after, "JobRunning"),
        since(&observation.previous, "JobRunning")
    );
    assert_eq!(since(&after, "Ready"), "2026-01-02T00:00:00Z");
}

#[test]
fn time_of_the_end_is_that_of_the_job() {
    let mut observation = observation("size: 1");
    observation.job = Some(JobSeen {
        failed: true_condition("PodFailurePolicy", "x"),
        ..job(1)
    });
    observation.pods = vec![ended(0, 7, 8)];
    let status = observation.status();
    assert_eq!(
        condition(&status, "Failed").unwrap().last_transition_time,
        "2026-01-01T00:09:00Z"
    );
    assert_eq!(status.completion_time.as_deref(), Some("2026-01-01T00:09:00Z"));
    assert!(is_finished(&status));
}

#[test]
fn status_stays_when_the_finished_job_is_deleted() {
    let mut observation = observation("size: 1");
    observation.job = Some(JobSeen {
        complete: true_condition("", ""),
        ..job(1)
    });
    observation.pods = vec![ended(0, 0, 8)];
    observation.previous = observation.status();
    assert_eq!(observation.previous.exit_code, Some(0));
    observation.job = None;
    observation.pods.clear();
    assert_eq!(observation.status(), observation.previous);
}

#[test]
fn obstacle_is_reported_until_it_is_gone() {
    let mut observation = observation("size: 1");
    observation.obstacle = Some(Obstacle::new(Reason::NameTaken, "Service x exists"));
    let before = observation.status();
    assert_eq!(
        (before.reason.as_deref(), before.message.as_deref()),
        (Some("NameTaken"), Some("Service x exists"))
    );
    assert_eq!(condition(&before, "JobRequested").unwrap().reason, "NameTaken");
    observation.previous = before;
    observation.obstacle = None;
    observation.job = Some(job(1));
    let after = observation.status();
    assert_eq!(after.reason, None);
    assert_eq!(
        after.message.as_deref(),
        Some("0/1 pods scheduled, 0 running, 0 ready"),
        "the message is the current wait"
    );
}

#[test]
fn queued_minicluster_names_its_queue_and_reason() {
    let mut observation = observation("size: 2");
    observation.job = Some(JobSeen {
        is_suspended: true,
        queue: Some("team".into()),
        ..job(2)
    });
    let status = observation.status();
    assert_eq!(
        (status.reason.as_deref(), status.message.as_deref()),
        (Some("Queued"), Some("waits in queue team"))
    );
    let (ready, suspended) = (
        condition(&status, "Ready").unwrap(),
        condition(&status, "Suspended").unwrap(),
    );
    assert_eq!(
        (ready.reason.as_str(), suspended.reason.as_str(), suspended.status),
        ("Queued", "Queued", ConditionStatus::True)
    );
    assert!(
        events::between(&MiniClusterStatus::default(), &status).is_empty(),
        "queueing is no event"
    );
    observation.warning = Some(Trouble {
        reason: "Queued".into(),
        message: "no cpu".into(),
        ..Trouble::default()
    });
    assert_eq!(
        observation.status().message.as_deref(),
        Some("waits in queue team: no cpu")
    );
    // An operator that has just started has not read Kueue's reason yet. Then `warning` is the message of the previous
    // status, perhaps about an earlier queue.
    for (earlier, kept) in [("team: no cpu", "team: no cpu"), ("other: no cpu", "team")] {
        observation.warning = Some(Trouble {
            reason: "Queued".into(),
            message: format!("waits in queue {earlier}"),
            ..Trouble::default()
        });
        assert_eq!(
            observation.status().message,
            Some(format!("waits in queue {kept}")),
            "only a reason about the same queue is kept"
        );
    }
    observation.job = Some(JobSeen {
        queue: Some("team".into()),
        ..job(2)
    });
    assert_eq!(
        observation.status().reason,
        None,
        "the reason of the wait is gone"
    );
}

#[test]
fn requeue_is_counted_once_and_uses_up_no_restart() {
    let mut observation = observation("size: 1");
    let queued = JobSeen {
        queue: Some("team".into()),
        ..job(1)
    };
    (observation.job, observation.pods) = (Some(queued.clone()), vec![ready(0)]);
    // This status records that the lead ran. Without that, a suspension counts no restart.
    observation.previous = observation.status();
    observation.job = Some(JobSeen {
        is_suspended: true,
        ..queued
    });
    observation.previous = observation.status();
    let after = observation.status();
    let reasons: Vec<&str> = after
        .restarts
        .iter()
        .map(|restart| restart.reason.as_str())
        .collect();
    assert_eq!(
        (reasons, after.restart_count, after.backoff_limit_used),
        (vec!["Requeued"], 1, 0)
    );
    // The Job has counted the stopped pods as failed, so another Job replaces it. That is the restart counted above.
    let limit = restart::Limit::None;
    let counted =
        restart::with_counted_restart(&after, "job", "Requeued", "the pods were stopped", limit, at(NOW));
    assert_eq!(
        (counted.restart_count, counted.restarts[0].job_uid.as_deref()),
        (1, Some("job"))
    );
    assert_eq!(counted.start_time, None, "the next start has a time of its own");
    let other = restart::with_counted_restart(
        &counted,
        "next",
        "Requeued",
        "the pods were stopped",
        limit,
        at(NOW),
    );
    assert_eq!(
        other.restart_count, 2,
        "the replacement of another Job counts, too"
    );
}

#[test]
fn start_time_of_a_resumed_job_is_new_also_after_a_restart() {
    let mut observation = observation("size: 1\ndeadlineSeconds: 60");
    (observation.job, observation.pods) = (Some(job(1)), vec![ready(0)]);
    observation.previous = MiniClusterStatus {
        backoff_limit_used: 1,
        start_time: Some("2025-12-31T23:00:00Z".into()),
        ..MiniClusterStatus::default()
    };
    let mut start_time_of = |job: JobSeen| {
        observation.job = Some(job);
        observation.previous = observation.status();
        observation.previous.start_time.clone()
    };
    let first = Some("2025-12-31T23:00:00Z".to_owned());
    assert_eq!(start_time_of(job(1)), first, "a restart does not change it");
    let suspended = JobSeen {
        is_suspended: true,
        ..job(1)
    };
    assert_eq!(
        start_time_of(suspended),
        first,
        "the MiniCluster may end while it is suspended"
    );
    let resumed = JobSeen {
        start_time: None,
        ..job(1)
    };
    assert_eq!(start_time_of(resumed), None);
    assert_eq!(start_time_of(job(1)).as_deref(), Some("2026-01-01T00:00:00Z"));
}

#[test]
fn suspension_and_resume_that_no_operator_saw_are_a_restart() {
    let mut observation = observation("size: 1");
    (observation.job, observation.pods) = (Some(job(1)), vec![ready(0)]);
    observation.previous = observation.status();
    let resumed = JobSeen {
        start_time: Some(at("2026-01-01T00:05:00Z")),
        ..job(1)
    };
    let ended = JobSeen {
        failed: true_condition("", ""),
        ..resumed.clone()
    };
    (observation.job, observation.pods) = (Some(ended), Vec::new());
    assert_eq!(observation.status().restart_count, 1);
    (observation.job, observation.pods) = (Some(resumed), vec![pod(0)]);
    for _ in 0..2 {
        observation.previous = observation.status();
        let status = &observation.previous;
        let reasons: Vec<&str> = status
            .restarts
            .iter()
            .map(|restart| restart.reason.as_str())
            .collect();
        assert_eq!((reasons, status.restart_count), (vec!["Suspended"], 1));
        let timeline = status.timeline.as_ref().unwrap();
        assert_eq!((&timeline.running, &timeline.ready), (&None, &None));
        assert_eq!(status.start_time.as_deref(), Some("2026-01-01T00:05:00Z"));
    }
}

/// The kubelet still ends the lead that the suspension has stopped.
#[test]
fn lead_from_before_a_resume_does_not_count_as_begun() {
    let mut observation = observation("size: 1");
    (observation.job, observation.pods) = (Some(job(1)), vec![ready(0)]);
    observation.previous = observation.status();
    let deleted = |time: &str| PodSeen {
        is_deleting: true,
        deletion_requested: Some(at(time)),
        is_ready: false,
        ..ready(0)
    };
    let suspended = JobSeen {
        is_suspended: true,
        ..job(1)
    };
    let started = |start: Option<&str>| JobSeen {
        start_time: start.map(at),
        ..job(1)
    };
    observation.pods = vec![deleted("2026-01-01T00:05:00Z")];
    let after = "2026-01-01T00:05:05Z";
    for job in [
        suspended.clone(),
        started(None),
        started(Some(after)),
        started(Some(after)),
    ] {
        observation.job = Some(job);
        observation.previous = observation.status();
        let status = &observation.previous;
        assert_eq!(status.restart_count, 1, "{status:#?}");
        let running = status
            .timeline
            .as_ref()
            .and_then(|timeline| timeline.running.as_ref());
        assert_eq!(running, None);
    }
    let limit = restart::Limit::None;
    let counted = restart::with_counted_restart(
        &observation.previous,
        "job",
        "Suspended",
        "the pods were stopped",
        limit,
        at(NOW),
    );
    assert_eq!(counted.restart_count, 1, "the restart is already counted");
    observation.job = Some(suspended);
    assert_eq!(observation.status().restart_count, 1, "nothing ran in between");
    // The next lead is drained right after its start, when no status has its start yet.
    observation.job = Some(started(Some(after)));
    observation.pods = vec![deleted("2026-01-01T00:06:00Z")];
    let timeline = observation.status().timeline.unwrap();
    assert!(timeline.running.is_some(), "its program may have run");
}

#[test]
fn end_while_suspended_takes_back_the_pending_restart() {
    for (queue, reason) in [(None, "Suspended"), (Some("team"), "Requeued")] {
        let mut observation = observation("size: 1");
        let running = JobSeen {
            queue: queue.map(str::to_owned),
            ..job(1)
        };
        let suspended = JobSeen {
            is_suspended: true,
            ..running.clone()
        };
        (observation.job, observation.pods) = (Some(running.clone()), vec![ready(0)]);
        observation.previous = observation.status();
        observation.job = Some(suspended.clone());
        observation.previous = observation.status();
        let counted = &observation.previous;
        assert_eq!(
            (counted.restart_count, counted.restarts[0].reason.as_str()),
            (1, reason)
        );
        let ended = |job: JobSeen| JobSeen {
            failed: true_condition("", ""),
            ..job
        };
        observation.job = Some(ended(running));
        assert_eq!(
            observation.status().restart_count,
            1,
            "the Job was resumed, so the program ran twice"
        );
        observation.job = Some(ended(suspended));
        observation.previous = observation.status();
        for status in [&observation.previous, &observation.status()] {
            assert_eq!(
                (status.restart_count, status.restarts.len()),
                (0, 0),
                "the program started once"
            );
        }
    }
}

#[test]
fn size_held_by_queue_is_reported_while_it_differs() {
    let valid_reason = |spec: &str, job: &JobSeen| {
        let mut observation = observation(spec);
        (observation.job, observation.pods) = (Some(job.clone()), vec![ready(0), ready(1)]);
        let status = observation.status();
        assert_eq!(
            condition(&status, "Stalled"),
            None,
            "the job runs well, and other tools take a stalled object for failed"
        );
        condition(&status, "Valid").unwrap().reason.clone()
    };
    let hash = Elastic {
        size: 4,
        suspend: None,
    }
    .hash();
    // The operator has applied the size 4, and the queue has admitted 2 pods.
    let part = JobSeen {
        queue: Some("team".into()),
        rendered_hash: Some(hash),
        maximum_size: Some(4),
        ..job(2)
    };
    assert_eq!(
        valid_reason("size: 4\nminSize: 2", &part),
        "Valid",
        "the queue has admitted a part"
    );
    assert_eq!(valid_reason("size: 3\nminSize: 2", &part), "SizeHeldByQueue");
    assert_eq!(
        valid_reason("size: 2\nminSize: 2", &part),
        "Valid",
        "this size already runs"
    );
    let beyond = JobSeen {
        maximum_size: Some(2),
        ..part.clone()
    };
    assert_eq!(valid_reason("size: 3", &beyond), "SizeBeyondMaximum");
    assert_eq!(
        valid_reason(
            "size: 3",
            &JobSeen {
                is_suspended: true,
                ..part
            }
        ),
        "Valid",
        "a suspended Job may be resized"
    );
}

#[test]
fn event_note_is_cut_to_the_bytes_that_the_api_server_accepts() {
    // Letters of two bytes each, after an odd number of bytes.
    let message = format!("a{}", "\u{e9}".repeat(1000));
    let mut observation = observation("size: 1");
    observation.obstacle = Some(Obstacle::new(Reason::Refused, message.clone()));
    let notes = events::between(&MiniClusterStatus::default(), &observation.status());
    let restarted = MiniClusterStatus {
        restarts: vec![Restart {
            time: NOW.into(),
            reason: "LeadLost".into(),
            message,
            job_uid: None,
        }],
        ..MiniClusterStatus::default()
    };
    let restart = events::of_restart(&restarted);
    for event in notes.iter().chain(&restart) {
        assert!(
            (1020..=1024).contains(&event.note.len()),
            "{} bytes",
            event.note.len()
        );
    }
    assert_eq!((notes.len(), restart.is_some()), (1, true));
}

#[test]
fn refused_pod_template_is_one_event() {
    let mut observation = observation("size: 1");
    observation.obstacle = Some(Obstacle::new(Reason::PodTemplateRefused, "spec.podTemplate: no"));
    let refused = observation.status();
    let reported = events::between(&MiniClusterStatus::default(), &refused);
    let reasons: Vec<&str> = reported.iter().map(|event| event.reason.as_str()).collect();
    assert_eq!(reasons, ["PodTemplateRefused"]);
}

/// Tools that wait by kstatus take `Stalled` for final.
#[test]
fn full_quota_does_not_stall_and_other_refusals_do() {
    for (cause, is_stalled) in [
        (
            "exceeded quota: jobs, requested: count/jobs.batch=1, used: count/jobs.batch=1, limited: count/jobs.batch=1",
            false,
        ),
        (
            "exceeded quota: none, requested: count/jobs.batch=1, used: count/jobs.batch=0, limited: count/jobs.batch=0",
            true,
        ),
        ("failed quota: compute: must specify limits.cpu", true),
        (
            "violates PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false",
            true,
        ),
        (
            "User \"o\" cannot create resource \"jobs\" in API group \"batch\" in the namespace \"a\"",
            true,
        ),
    ] {
        let message =
            format!("the API server refused to create Job mc: jobs.batch \"mc\" is forbidden: {cause}");
        let mut observation = observation("size: 1");
        observation.obstacle = Some(Obstacle::new(Reason::Forbidden, message));
        let status = observation.status();
        let has = |type_: &str| condition(&status, type_).is_some();
        assert_eq!(has("Stalled"), is_stalled, "{cause}");
        assert_eq!(has("Reconciling"), !is_stalled, "{cause}");
        assert_eq!(status.reason.as_deref(), Some("Forbidden"), "{cause}");
    }
}

#[test]
fn events_report_only_changes() {
    let reasons = |before: &MiniClusterStatus, after: &MiniClusterStatus| {
        events::between(before, after)
            .into_iter()
            .map(|event| event.reason)
            .collect::<Vec<_>>()
    };
    let mut observation = observation("size: 1");
    let none = MiniClusterStatus::default();
    observation.problems = vec![Problem::new("spec.size", "no")];
    let invalid = observation.status();
    assert_eq!(reasons(&none, &invalid), ["Invalid"]);
    assert!(reasons(&invalid, &invalid).is_empty());
    observation.problems.clear();
    let valid = observation.status();
    observation.cluster.notices = vec![Problem::new("spec.tasks", "more than cores")];
    let with_notes = observation.status();
    assert_eq!(reasons(&valid, &with_notes), ["ValidWithNotes"]);
    assert!(reasons(&with_notes, &with_notes).is_empty());
    observation.cluster.notices.clear();
    observation.job = Some(job(1));
    observation.pods = vec![pod(0)];
    let starting = observation.status();
    assert!(reasons(&none, &starting).is_empty(), "a normal start is no event");
    observation.pods[0].trouble = Some(Box::new(Trouble {
        reason: "Unschedulable".into(),
        message: "no node".into(),
        ..Trouble::default()
    }));
    let stuck = observation.status();
    assert_eq!(reasons(&starting, &stuck), ["Unschedulable"]);
    observation.job = Some(JobSeen {
        failed: true_condition("PodFailurePolicy", ""),
        ..job(1)
    });
    observation.pods = vec![ended(0, 7, 1)];
    let failed = observation.status();
    assert_eq!(reasons(&stuck, &failed), ["NonZeroExitCode"]);
    // The failure was reported while another pod hung.
    let earlier = MiniClusterStatus {
        reason: failed.reason.clone(),
        message: failed
            .message
            .clone()
            .map(|message| message + "; pod mc-1 is Terminating"),
        ..stuck.clone()
    };
    assert!(reasons(&earlier, &failed).is_empty());
    let other = MiniClusterStatus {
        message: Some("another failure".into()),
        ..earlier
    };
    assert_eq!(reasons(&other, &failed), ["NonZeroExitCode"]);
    observation.job = Some(JobSeen {
        complete: true_condition("", ""),
        ..job(1)
    });
    observation.pods = vec![ended(0, 0, 1)];
    assert_eq!(reasons(&starting, &observation.status()), ["Completed"]);
}

#[test]
fn long_note_of_an_event_keeps_its_end() {
    for filling in ["x", "é", "…", "🦀"] {
        let status = MiniClusterStatus {
            restart_count: 1,
            restarts: vec![Restart {
                reason: "PodLost".into(),
                message: format!("{}: field is immutable", filling.repeat(2000)),
                time: String::new(),
                job_uid: None,
            }],
            ..MiniClusterStatus::default()
        };
        let note = events::of_restart(&status).unwrap().note;
        assert!(
            note.starts_with("restart 1 (PodLost): ") && note.ends_with(": field is immutable"),
            "{note}"
        );
        assert!((900..=1024).contains(&note.len()), "{}", note.len());
    }
}

#[test]
fn ended_command_is_reported_while_its_pods_end() {
    let mut observation = observation("size: 2");
    observation.job = Some(job(2));
    observation.pods = vec![ended(0, 0, 9), ready(1)];
    let status = observation.status();
    assert_eq!(
        (status.phase.as_deref(), status.exit_code),
        (Some("Running"), Some(0))
    );
    assert_eq!(
        status.message.as_deref(),
        Some("the lead has ended with exit code 0; the pods are ending")
    );
    let is_true = |status: &MiniClusterStatus, type_: &str| {
        let mut conditions = status.conditions.iter();
        conditions.any(|condition| condition.type_ == type_ && condition.status == ConditionStatus::True)
    };
    let waits = |status: &MiniClusterStatus| {
        is_true(status, "JobWaitingForResources") || is_true(status, "Reconciling")
    };
    assert!(!waits(&status), "{status:#?}");
    observation.pods = vec![ended(0, 1, 9), ready(1)];
    let message = observation.status().message.unwrap();
    assert!(message.contains("ended with exit code 1"), "{message}");
}
