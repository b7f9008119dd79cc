use flux_shared::crd::v1alpha2::MiniClusterStatus;
use flux_shared::exit::Category;
use flux_shared::termination::{Ender, Termination};
use flux_shared::validate::{Problem, ValidMiniCluster};
use k8s_openapi::jiff::Timestamp;

use super::{Inputs, Obstacle, Verdict, condition, image_volume_failed, is_finished, status};
use crate::observe::job::{self, JobSeen};
use crate::observe::pod::{Exit, PodPlace, PodSeen, Trouble};
use crate::observe::storage::DiskSeen;
use crate::reconcile::status::events;

const NOW: &str = "2026-01-01T00:10:00Z";

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
    PodSeen { name: format!("mc-{index}"), job_uid: Some("job".into()), index, scheduled: true, ..PodSeen::default() }
}

fn ready(index: u32) -> PodSeen {
    PodSeen { running: true, joined: true, ready: true, ..pod(index) }
}

fn ended(index: u32, code: i32, minute: u32) -> PodSeen {
    let exit = Exit {
        code,
        reason: "Error".into(),
        at: Some(at(&format!("2026-01-01T00:{minute:02}:00Z"))),
        ..Exit::default()
    };
    PodSeen { ended: true, succeeded: code == 0, exit: Some(exit), ..pod(index) }
}

/// One of which the agent says how it ended.
fn said(index: u32, said: Termination) -> PodSeen {
    let exit = Exit { code: said.code.into(), said: Some(said), ..Exit::default() };
    PodSeen { ended: true, exit: Some(exit), ..pod(index) }
}

fn failed(reason: &str, message: &str) -> Option<job::Verdict> {
    Some(job::Verdict { reason: reason.into(), message: message.into(), since: Some(at("2026-01-01T00:09:00Z")) })
}

struct Observation {
    cluster: ValidMiniCluster,
    previous: MiniClusterStatus,
    job: Option<JobSeen>,
    pods: Vec<PodSeen>,
    obstacle: Option<Obstacle>,
    problems: Vec<Problem>,
    disks: Option<Vec<DiskSeen>>,
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
        obstacle: None,
        problems: Vec::new(),
        disks: None,
        warning: None,
        spec_hash: None,
        generation: 1,
        now: NOW,
    }
}

impl Observation {
    fn status(&self) -> MiniClusterStatus {
        status(&Inputs {
            name: "mc",
            generation: Some(self.generation),
            deleting: false,
            verdict: match self.problems.is_empty() {
                true => Verdict::Valid(&self.cluster),
                false => Verdict::Invalid(&self.problems),
            },
            previous: &self.previous,
            job: self.job.as_ref(),
            spec_hash: self.spec_hash,
            pods: self.pods.iter().collect(),
            gone: Vec::new(),
            nodes_mount_images: false,
            obstacle: self.obstacle.as_ref(),
            disks: self.disks.clone(),
            warning: self.warning.as_ref(),
            now: at(self.now),
        })
    }
}

fn is(status: &MiniClusterStatus, type_: &str) -> bool {
    condition(status, type_).unwrap().status == "True"
}

#[test]
fn followers_that_have_completed_are_not_waited_for() {
    let mut observation = observation("size: 3");
    observation.job = Some(job(3));
    observation.pods = vec![ready(0), ready(1), ended(2, 0, 5)];
    let status = observation.status();
    assert!(is(&status, "Ready") && !is(&status, "JobWaitingForResources"), "{status:#?}");
    assert_eq!((status.phase.as_deref(), status.ready_size), (Some("Running"), 2));
    assert!(condition(&status, "Ready").unwrap().message.starts_with("2 of 3 brokers are ready, 1 have completed"));
    observation.pods = vec![ready(0), ready(1), ended(2, 1, 5)];
    assert!(!is(&observation.status(), "Ready"), "one that failed comes back");
}

/// The watch of pods may be behind that of the Job.
#[test]
fn a_job_that_is_finished_has_no_ready_pods_whatever_was_seen_of_them_last() {
    for (complete, failed) in [(failed("CompletionsReached", ""), None), (None, failed("BackoffLimitExceeded", ""))] {
        let mut observation = observation("size: 3");
        observation.job = Some(JobSeen { complete, failed, ..job(3) });
        observation.pods = vec![ended(0, 0, 8), ready(1), ready(2)];
        let status = observation.status();
        assert_eq!((status.size, status.ready_size), (0, 0), "{status:#?}");
    }
}

#[test]
fn the_phase_is_one_word_for_where_it_stands() {
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
    observation.job = Some(JobSeen { suspended: true, ..job(2) });
    assert_eq!(phase(&observation), "Suspended");
    observation.job = Some(JobSeen { failed: failed("", ""), ..job(2) });
    assert_eq!(phase(&observation), "Failed");
    observation.job = Some(JobSeen { complete: failed("", ""), ..job(2) });
    assert_eq!(phase(&observation), "Completed");
}

#[test]
fn the_size_is_the_number_of_pods_that_have_not_ended() {
    let mut observation = observation("size: 2");
    (observation.job, observation.pods) = (Some(job(2)), vec![ready(0), ended(1, 0, 1)]);
    assert_eq!(observation.status().size, 1);
    observation.job = Some(JobSeen { complete: failed("", ""), ..job(2) });
    observation.pods = vec![ended(0, 0, 2), ended(1, 0, 1)];
    assert_eq!(observation.status().size, 0);
}

#[test]
fn a_minimum_size_is_enough_to_be_ready() {
    let mut observation = observation("size: 4\nminSize: 2");
    observation.job = Some(job(4));
    observation.pods = vec![ready(0), ready(1), pod(2), pod(3)];
    let status = observation.status();
    assert!(is(&status, "Ready") && is(&status, "JobMiniClusterReady") && is(&status, "JobWaitingForResources"));
    observation.pods = vec![pod(0), ready(1), ready(2), ready(3)];
    assert!(!is(&observation.status(), "Ready"), "nothing goes without the lead");
}

#[test]
fn each_condition_says_one_thing_in_every_phase() {
    let mut observation = observation("size: 2");
    let said = |observation: &Observation| {
        let status = observation.status();
        let told = status.conditions.iter().map(|it| format!("{} {} {}", it.type_, it.status, it.reason));
        told.collect::<Vec<_>>().join("\n")
    };
    let common = |pending: &str| format!("Valid True Valid\n{pending}");
    let all = |reason: &str, types: &[&str]| {
        types.iter().map(|type_| format!("{type_} False {reason}")).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(
        said(&observation),
        common(&all(
            "NotRequested",
            &[
                "JobRequested",
                "JobWaitingForResources",
                "JobRunning",
                "JobMiniClusterReady",
                "JobFinished",
                "Ready",
                "Complete",
                "Failed",
            ]
        )) + "\nSuspended False NotSuspended\nReconciling True NotRequested"
    );
    observation.job = Some(job(2));
    observation.pods = vec![ready(0), pod(1)];
    let not_ended = all("NotFinished", &["Complete", "Failed"]) + "\nSuspended False NotSuspended";
    assert_eq!(
        said(&observation),
        common(
            "JobRequested True JobCreated\nJobWaitingForResources True PodsStarting\nJobRunning True LeadRunning\nJobMiniClusterReady False BrokersNotReady\nJobFinished False NotFinished\nReady False BrokersNotReady\n"
        ) + &not_ended
            + "\nReconciling True PodsStarting"
    );
    observation.pods = vec![ready(0), ready(1)];
    assert_eq!(
        said(&observation),
        common(
            "JobRequested True JobCreated\nJobWaitingForResources False PodsRunning\nJobRunning True LeadRunning\nJobMiniClusterReady True BrokersReady\nJobFinished False NotFinished\nReady True BrokersReady\n"
        ) + &not_ended
    );
    let idle = |reason: &str| all(reason, &["JobWaitingForResources", "JobRunning", "JobMiniClusterReady"]);
    observation.job = Some(JobSeen { complete: failed("", ""), ..job(2) });
    assert_eq!(
        said(&observation),
        common("JobRequested True JobCreated\n")
            + &idle("Completed")
            + "\nJobFinished True Completed\nReady True Completed\nComplete True Completed\nFailed False Completed\nSuspended False NotSuspended"
    );
    observation.job = Some(JobSeen { failed: failed("DeadlineExceeded", "too long"), ..job(2) });
    assert_eq!(
        said(&observation),
        common("JobRequested True JobCreated\n")
            + &idle("Failed")
            + "\nJobFinished True DeadlineExceeded\nReady False Failed\nComplete False Failed\nFailed True DeadlineExceeded\nSuspended False NotSuspended\nStalled True DeadlineExceeded"
    );
    observation.job = Some(JobSeen { suspended: true, ..job(2) });
    assert_eq!(
        said(&observation),
        common("JobRequested True JobCreated\n")
            + &idle("Suspended")
            + "\nJobFinished False NotFinished\nReady False Suspended\nComplete False NotFinished\nFailed False NotFinished\nSuspended True Suspended"
    );
}

#[test]
fn a_node_that_stops_answering_is_named_and_its_pods_are_not_ready() {
    let conditions = |ready: &str, reason: Option<&str>| {
        serde_json::json!([
            { "type": "PodScheduled", "status": "True" },
            { "type": "ContainersReady", "status": "True" },
            { "type": "Ready", "status": ready, "reason": reason },
        ])
    };
    let seen = |conditions: serde_json::Value, going: bool| {
        let container = serde_json::json!({
            "name": "runner", "image": "i", "imageID": "i", "ready": true, "restartCount": 0, "started": true,
            "state": { "running": { "startedAt": "2026-01-01T00:00:00Z" } },
        });
        let status = serde_json::json!({
            "phase": "Running", "conditions": conditions, "containerStatuses": [container],
        });
        let going = going.then_some("2026-01-01T00:05:00Z");
        let metadata = serde_json::json!({ "name": "mc-0-x", "deletionTimestamp": going });
        let metadata = serde_json::from_value(metadata).unwrap();
        let place = PodPlace { node_name: Some("node-7".into()) };
        PodSeen::of(&metadata, serde_json::from_value(status).ok().as_ref()).on(&place)
    };
    let mut observation = observation("size: 1");
    observation.job = Some(job(1));
    observation.pods = vec![seen(conditions("True", None), false)];
    observation.previous = observation.status();
    assert!(is(&observation.previous, "Ready") && observation.previous.ready_size == 1);
    // As the node's controller writes it: the condition's status alone, and later it deletes the pod.
    for going in [false, true] {
        observation.pods = vec![seen(conditions("False", None), going)];
        let status = observation.status();
        assert!(!is(&status, "Ready") && status.ready_size == 0, "{status:#?}");
        assert_eq!(status.reason.as_deref(), Some("NodeLost"));
        let message = status.message.clone().unwrap();
        assert!(message.contains("mc-0-x") && message.contains("node node-7"), "{message}");
        assert_eq!(condition(&status, "JobRunning").unwrap().status, "Unknown");
        assert_eq!(status.phase.as_deref(), Some("Running"), "as far as anybody knows");
        assert!(events::events(&observation.previous, &status).iter().any(|event| event.reason == "NodeLost"));
    }
    observation.pods = vec![seen(conditions("False", Some("ReadinessGatesNotReady")), false)];
    assert_eq!(observation.status().reason, None, "the kubelet lives");
    observation.pods = vec![seen(conditions("True", None), true)];
    let going = observation.status();
    assert!(!is(&going, "Ready") && going.ready_size == 0, "a pod that goes is not ready");
}

#[test]
fn a_follower_that_fails_before_the_start_is_told_at_once() {
    let mut observation = observation("size: 2");
    observation.job = Some(job(2));
    let mut follower = ended(1, 3, 2);
    follower.exit.as_mut().unwrap().message = "the snippet workerPre ended with 3".into();
    observation.pods = vec![PodSeen { running: true, ..pod(0) }, follower, pod(1)];
    let status = observation.status();
    assert_eq!(status.reason.as_deref(), Some("NonZeroExitCode"), "{status:#?}");
    assert!(status.message.unwrap().contains("the pod of index 1 ended with exit code 3: the snippet workerPre"));
    assert_eq!(status.phase.as_deref(), Some("Starting"));
    observation.pods[1] = ended(1, 238, 2);
    assert_eq!(observation.status().reason, None, "it gave way to another");

    observation.pods = vec![ready(0), ended(1, 3, 2)];
    observation.job = Some(JobSeen { failing: failed("PodFailurePolicy", "x"), ..job(2) });
    observation.previous = observation.status();
    assert_eq!(observation.previous.reason.as_deref(), Some("NonZeroExitCode"), "while the lead ends");
    assert!(!is(&observation.previous, "Failed"));
    observation.job = Some(JobSeen { failed: failed("PodFailurePolicy", "x"), ..job(2) });
    assert!(events::events(&observation.previous, &observation.status()).is_empty(), "it was told");
}

#[test]
fn a_finished_cluster_has_seen_every_edit_whether_or_not_its_job_is_there() {
    let mut observation = observation("size: 1");
    observation.job = Some(JobSeen { complete: failed("", ""), ..job(1) });
    observation.previous = observation.status();
    observation.job = None;
    observation.generation = 2;
    let after = observation.status();
    assert_eq!(after.observed_generation, Some(2));
    assert!(after.conditions.iter().all(|it| it.observed_generation == Some(2)), "{after:#?}");
    assert!(is(&after, "Complete"));
}

#[test]
fn an_edit_that_came_too_late_is_said_until_a_new_job_has_it() {
    let mut observation = observation("size: 1");
    observation.job = Some(JobSeen { spec_hash: Some("a.b".into()), ..job(1) });
    observation.spec_hash = Some("c.b");
    observation.previous = observation.status();
    let valid = condition(&observation.previous, "Valid").unwrap();
    assert_eq!((valid.status.as_str(), valid.reason.as_str()), ("False", "ChangedTooLate"));
    assert!(is(&observation.previous, "Stalled"));
    assert_eq!(observation.previous.maximum_size, Some(1), "and no other comes in");
    assert_eq!(condition(&observation.status(), "Valid").unwrap().reason, "ChangedTooLate", "it stays said");
    observation.job = Some(JobSeen { spec_hash: Some("c.b".into()), ..job(1) });
    assert!(is(&observation.status(), "Valid"));
    observation.previous = observation.status();
    observation.job = Some(JobSeen { spec_hash: Some("of another version".into()), ..job(1) });
    assert!(is(&observation.status(), "Valid"), "nothing can have changed since the first status");
}

#[test]
fn the_same_facts_give_the_same_status_at_any_time() {
    let mut observation = observation("size: 2");
    observation.job = Some(job(2));
    observation.pods = vec![ready(0), pod(1)];
    observation.previous = observation.status();
    observation.now = "2026-01-02T00:00:00Z";
    assert_eq!(observation.status(), observation.previous);
    observation.pods = vec![ready(0), ready(1)];
    let after = observation.status();
    let since = |status, type_| condition(status, type_).unwrap().last_transition_time.clone();
    assert_eq!(since(&after, "JobRunning"), since(&observation.previous, "JobRunning"));
    assert_eq!(since(&after, "Ready"), "2026-01-02T00:00:00Z");
}

#[test]
fn the_end_has_the_jobs_own_time() {
    let mut observation = observation("size: 1");
    observation.job = Some(JobSeen { failed: failed("PodFailurePolicy", "x"), ..job(1) });
    observation.pods = vec![ended(0, 7, 8)];
    let status = observation.status();
    assert_eq!(condition(&status, "Failed").unwrap().last_transition_time, "2026-01-01T00:09:00Z");
    assert_eq!(status.completion_time.as_deref(), Some("2026-01-01T00:09:00Z"));
    assert!(is_finished(&status));
}

#[test]
fn the_pod_that_failed_the_job_is_named_and_no_other() {
    let cause = |reason: &str, pods: Vec<PodSeen>| {
        let mut observation = observation("size: 2");
        observation.job = Some(JobSeen { failed: failed(reason, "the Job's own words"), ..job(2) });
        observation.pods = pods;
        let status = observation.status();
        (status.failed_index, status.reason.unwrap(), status.message.unwrap())
    };
    let evicted = PodSeen {
        ended: true,
        trouble: Some(Trouble {
            reason: "EvictionByEvictionAPI".into(),
            message: "drained".into(),
            disruption: true,
            ..Trouble::default()
        }),
        ..pod(1)
    };
    let told_to_end = PodSeen { deleting: true, ..ended(1, 143, 1) };
    let init = PodSeen {
        ended: true,
        trouble: Some(Trouble {
            reason: "InitFailed".into(),
            init: Some(("flux-view".into(), ended(0, 242, 3).exit.unwrap())),
            ..Trouble::default()
        }),
        ..pod(1)
    };
    for (reason, pods, index, word, message) in [
        (
            "PodFailurePolicy",
            vec![ended(0, 7, 3)],
            Some(0),
            "NonZeroExitCode",
            "the lead (index 0) ended with exit code 7",
        ),
        (
            "PodFailurePolicy",
            vec![ended(0, 143, 4), ended(1, 3, 2)],
            Some(1),
            "NonZeroExitCode",
            "the pod of index 1 ended with exit code 3",
        ),
        (
            "PodFailurePolicy",
            vec![ended(0, 139, 4), told_to_end],
            Some(0),
            "Signalled",
            "the lead (index 0) ended by signal 11",
        ),
        (
            "PodFailurePolicy",
            vec![ended(0, 129, 4)],
            Some(0),
            "Signalled",
            "the lead (index 0) ended by signal 1, as a program does whose Flux instance is shut down",
        ),
        // The agent's own codes are any program's, unless the agent says that it gave up.
        (
            "PodFailurePolicy",
            vec![ended(0, 243, 1)],
            Some(0),
            "NonZeroExitCode",
            "the lead (index 0) ended with exit code 243",
        ),
        (
            "PodFailurePolicy",
            vec![said(0, Termination { category: Some(Category::ViewMissing), ..Termination::new(Ender::Agent, 242) })],
            Some(0),
            "ViewMissing",
            "the agent in the lead (index 0) gave up",
        ),
        (
            "PodFailurePolicy",
            vec![said(
                0,
                Termination {
                    program_code: Some(7),
                    snippet: Some("post".into()),
                    ..Termination::new(Ender::Snippet, 3)
                },
            )],
            Some(0),
            "NonZeroExitCode",
            "the program of the lead (index 0) ended with exit code 7; after it, snippet post ended with exit code 3",
        ),
        // What was made again did not fail the Job, though it came first.
        (
            "PodFailurePolicy",
            vec![evicted.clone(), ended(0, 2, 5)],
            Some(0),
            "NonZeroExitCode",
            "the lead (index 0) ended with exit code 2",
        ),
        (
            "PodFailurePolicy",
            vec![PodSeen { deleting: true, ..ended(0, 143, 5) }],
            Some(0),
            "LeadLost",
            "the lead's pod, mc-0, was taken away (Deleted: somebody has deleted it); backoffLimit (100) allows no further start",
        ),
        (
            "PodFailurePolicy",
            vec![said(0, Termination { node_failure: true, ..Termination::new(Ender::Program, 1) })],
            Some(0),
            "PodLost",
            "a follower was lost while the job ran on it; the lead ended with exit code 1; maxRestarts (0) allows no further start",
        ),
        (
            "PodFailurePolicy",
            vec![init],
            Some(1),
            "ViewMissing",
            "the agent in init container flux-view of the pod of index 1 gave up",
        ),
        (
            "MaxFailedIndexesExceeded",
            vec![ended(1, 238, 1), ended(1, 238, 2)],
            Some(1),
            "NonZeroExitCode",
            "the pod of index 1 ended with exit code 238 (tried again as often as backoffLimit allows)",
        ),
        ("LeadLost", vec![ended(0, 239, 3)], Some(0), "LeadLost", "the Job's own words"),
        ("DeadlineExceeded", vec![ended(0, 143, 3)], None, "DeadlineExceeded", "the Job's own words"),
        (
            "PodFailurePolicy",
            vec![],
            None,
            "PodFailurePolicy",
            "the Job's own words (that pod is gone: somebody has deleted it)",
        ),
        // Its end has not been seen yet.
        (
            "PodFailurePolicy",
            vec![PodSeen { name: "own".into(), ..pod(0) }],
            None,
            "PodFailurePolicy",
            "the Job's own words",
        ),
    ] {
        assert_eq!(cause(reason, pods), (index, word.to_owned(), message.to_owned()));
    }
}

#[test]
fn a_job_that_was_deleted_after_its_end_takes_nothing_back() {
    let mut observation = observation("size: 1");
    observation.job = Some(JobSeen { complete: failed("", ""), ..job(1) });
    observation.pods = vec![ended(0, 0, 8)];
    observation.previous = observation.status();
    assert_eq!(observation.previous.exit_code, Some(0));
    observation.job = None;
    observation.pods.clear();
    assert_eq!(observation.status(), observation.previous);
}

#[test]
fn an_obstacle_is_said_and_forgotten() {
    let mut observation = observation("size: 1");
    observation.obstacle = Some(Obstacle { reason: "NameTaken", message: "Service x exists".into() });
    let before = observation.status();
    assert_eq!((before.reason.as_deref(), before.message.as_deref()), (Some("NameTaken"), Some("Service x exists")));
    assert_eq!(condition(&before, "JobRequested").unwrap().reason, "NameTaken");
    observation.previous = before;
    observation.obstacle = None;
    observation.job = Some(job(1));
    let after = observation.status();
    assert_eq!(after.reason, None);
    assert_eq!(after.message.as_deref(), Some("of 1 pods 0 have a node, 0 run, 0 are ready"), "what it waits for now");
}

#[test]
fn events_tell_of_changes_only() {
    let reasons = |before: &MiniClusterStatus, after: &MiniClusterStatus| {
        events::events(before, after).into_iter().map(|event| event.reason).collect::<Vec<_>>()
    };
    let mut observation = observation("size: 1");
    let none = MiniClusterStatus::default();
    observation.problems = vec![Problem::new("spec.size", "no")];
    let invalid = observation.status();
    assert_eq!(reasons(&none, &invalid), ["Invalid"]);
    assert!(reasons(&invalid, &invalid).is_empty());
    observation.problems.clear();
    observation.job = Some(job(1));
    observation.pods = vec![pod(0)];
    let starting = observation.status();
    assert!(reasons(&none, &starting).is_empty(), "a start as it should be is no news");
    observation.pods[0].trouble =
        Some(Trouble { reason: "Unschedulable".into(), message: "no node".into(), ..Trouble::default() });
    let stuck = observation.status();
    assert_eq!(reasons(&starting, &stuck), ["Unschedulable"]);
    observation.job = Some(JobSeen { failed: failed("PodFailurePolicy", ""), ..job(1) });
    observation.pods = vec![ended(0, 7, 1)];
    assert_eq!(reasons(&stuck, &observation.status()), ["NonZeroExitCode"]);
    observation.job = Some(JobSeen { complete: failed("", ""), ..job(1) });
    observation.pods = vec![ended(0, 0, 1)];
    assert_eq!(reasons(&starting, &observation.status()), ["Completed"]);
}

#[test]
fn a_view_that_cannot_be_mounted_is_told_remembered_and_never_takes_a_job_away() {
    let mut observation = observation("size: 2");
    let mounted = |status: &MiniClusterStatus| condition(status, "ViewMounted").cloned();
    let copied = JobSeen { completions: 2, ..JobSeen::default() };
    let mounts = JobSeen { mounts_view: true, ..copied.clone() };
    observation.job = Some(copied.clone());
    assert_eq!(mounted(&observation.status()), None, "nothing is mounted, nothing is told");
    observation.job = Some(mounts.clone());
    assert_eq!(mounted(&observation.status()).unwrap().reason, "ImageVolumeUnsure", "the nodes are not known");

    let stuck = PodSeen { not_made: Some("path escapes from parent".into()), ..pod(1) };
    let ready = PodSeen { ready: true, joined: true, running: true, ..pod(0) };
    observation.pods = vec![ready, stuck.clone()];
    assert!(!image_volume_failed(&observation.status()), "the lead is ready: its job may have begun");
    observation.pods = vec![pod(0), stuck];
    let status = observation.status();
    assert!(image_volume_failed(&status));
    let told = mounted(&status).unwrap();
    assert!(
        told.message.contains("pod 1") && told.message.contains("source: copy") && told.message.contains("escapes")
    );

    (observation.previous, observation.job, observation.pods) = (status, Some(copied), vec![pod(0), pod(1)]);
    assert_eq!(mounted(&observation.status()).unwrap().message, told.message, "it stays, and so does the copy");
}

#[test]
fn a_view_whose_image_cannot_be_pulled_is_told_as_such_with_its_fields() {
    // As the test node's kubelet and containerd said it.
    let seen = |container: &str, image: &str, pulled: &str| {
        let message = format!("Back-off pulling image \"{pulled}\": ErrImagePull: failed to pull and unpack it");
        let waiting = serde_json::json!({ "waiting": { "reason": "ImagePullBackOff", "message": message } });
        let container = serde_json::json!({
            "name": container, "image": image, "imageID": "", "ready": false, "restartCount": 0, "state": waiting,
        });
        let status = serde_json::json!({ "phase": "Pending", "initContainerStatuses": [container] });
        PodSeen::of(&Default::default(), serde_json::from_value(status).ok().as_ref())
    };
    let told = |pod: PodSeen, mounts_view: bool| {
        let mut observation = observation("flux: {container: {name: view}}");
        (observation.job, observation.pods) = (Some(JobSeen { mounts_view, ..job(1) }), vec![pod]);
        let status = observation.status();
        assert_eq!(status.reason.as_deref(), Some("ImagePullBackOff"));
        assert_eq!(condition(&status, "JobWaitingForResources").unwrap().message, status.message.clone().unwrap());
        status.message.unwrap()
    };
    for (pod, mounts_view) in
        [(seen("flux-agent", "agent:1", "view:1"), true), (seen("view", "view:1", "view:1"), false)]
    {
        let message = told(pod, mounts_view);
        assert!(
            message.starts_with("pod 0: the view's image cannot be pulled (spec.flux.container.image"),
            "{message}"
        );
        assert!(message.contains("imagePullSecret") && message.contains("\"view:1\""), "{message}");
    }
    let message = told(seen("flux-agent", "agent:1", "agent:1"), true);
    assert!(message.starts_with("pod 0: container flux-agent: "), "{message}");
}

#[test]
fn a_disk_that_is_shared_and_a_class_that_is_not_there_are_told_and_stop_nothing() {
    let mut observation = observation("size: 1");
    (observation.job, observation.pods) = (Some(job(1)), vec![ready(0)]);
    assert_eq!(condition(&observation.status(), "VolumesValid"), None, "nothing is known");
    observation.disks = Some(Vec::new());
    assert_eq!(condition(&observation.status(), "VolumesValid"), None, "there are none");
    let disk = |shared: Option<&str>, missing: bool| DiskSeen {
        key: "data".into(),
        driver: "d.csi.io".into(),
        handle: "h".into(),
        class: "fast".into(),
        shared_with: shared.map(str::to_owned),
        is_class_missing: missing,
    };
    observation.disks = Some(vec![disk(Some("ns.other.data"), true)]);
    let told = observation.status();
    let volumes = condition(&told, "VolumesValid").unwrap();
    assert_eq!((volumes.status.as_str(), volumes.reason.as_str()), ("False", "SharedHandle"));
    for words in
        ["spec.volumes[data].volumeHandle: ", "ns.other.data", "spec.volumes[data].storageClass: ", "StorageClass fast"]
    {
        assert!(volumes.message.contains(words), "{words}: {}", volumes.message);
    }
    assert!(is(&told, "Ready") && told.reason.is_none());
    let warned = events::events(&MiniClusterStatus::default(), &told);
    assert!(warned.iter().any(|event| event.reason == "SharedHandle"));

    observation.previous = told;
    observation.disks = None;
    assert_eq!(
        condition(&observation.status(), "VolumesValid").unwrap().reason,
        "SharedHandle",
        "a new operator keeps it"
    );
    observation.disks = Some(vec![disk(None, true)]);
    assert_eq!(condition(&observation.status(), "VolumesValid").unwrap().reason, "UnknownStorageClass");
    observation.disks = Some(vec![disk(None, false)]);
    assert!(is(&observation.status(), "VolumesValid"));
}

#[test]
fn a_kubelet_that_knows_no_volumes_of_images_is_believed_and_nobody_else() {
    let mut observation = observation("size: 1");
    observation.job = Some(JobSeen { mounts_view: true, ..job(1) });
    observation.pods = vec![pod(0)];
    let mut says = |reason: &str, message: &str| {
        let (reason, message) = (reason.into(), message.into());
        observation.warning = Some(Trouble { reason, message, ..Trouble::default() });
        let status = observation.status();
        (image_volume_failed(&status), condition(&status, "ViewMounted").unwrap().message.clone())
    };
    // As kubelets of Kubernetes 1.31 to 1.35 say it without the feature.
    let plugin = |volume: &str| {
        format!(
            "Unable to attach or mount volumes: unmounted volumes=[{volume}], unattached volumes=[], failed to process \
             volumes=[{volume}]: failed to get Plugin from volumeSpec for volume \"{volume}\" err=no volume plugin matched"
        )
    };
    let (failed, message) = says("FailedMount", &plugin("flux-view-image"));
    assert!(failed && message.starts_with("a pod could not") && message.contains("no volume plugin matched"));
    assert!(!says("FailedMount", &plugin("data")).0, "a volume of the user's");
    assert!(!says("FailedMount", "MountVolume.SetUp failed for volume \"flux-view-image\" : busy").0);
    assert!(!says("Failed", "Failed to pull image \"view:1\"").0, "the copy would need it as well");
}

#[test]
fn the_archives_fate_is_told_once_it_is_known_and_where_one_is_asked_for() {
    use flux_shared::termination::{Ender, Termination};
    let program = |code| Termination { program_code: Some(code), ..Termination::new(Ender::Program, code) };
    let told = |spec: &str, said: Option<Termination>| {
        let mut observation = observation(spec);
        observation.job = Some(job(1));
        observation.pods = vec![ready(0)];
        let running = observation.status();
        assert_eq!(condition(&running, super::ARCHIVE_SAVED), None, "nobody knows yet");
        observation.pods = vec![ended(0, 0, 5)];
        observation.pods[0].exit.as_mut().unwrap().said = said;
        let after = observation.status();
        let events = events::events(&running, &after).into_iter();
        let warned = events.filter(|event| event.reason == "ArchiveNotSaved").count();
        let found = condition(&after, super::ARCHIVE_SAVED)?;
        assert_eq!(warned, usize::from(found.status == "False"));
        Some((found.status.clone(), found.message.clone()))
    };
    let with = "size: 1\narchive: {path: /state/a.tgz}";
    assert_eq!(told("size: 1", Some(program(0))), None);
    let text = |status: &str, message: &str| Some((status.to_owned(), message.to_owned()));
    assert_eq!(told(with, Some(program(0))), text("True", "the state of Flux was saved to /state/a.tgz"));
    let why = "the dump is not whole: its end is missing";
    let not_saved = Termination { archive_not_saved: Some(why.into()), ..program(0) };
    let kept = format!("the archive /state/a.tgz stays as it was: {why}");
    assert_eq!(told(with, Some(not_saved)), text("False", &kept));
    let gave_up = Termination::new(Ender::Agent, 245);
    assert_eq!(told(with, Some(gave_up)).unwrap().0, "False");
    assert_eq!(told(with, None).unwrap().0, "False");
}
