//! Chosen sequences of events, and how they have to end.

use super::*;

/// Events until the pods of a Job run, followed by `then`. No watch has reported these pods yet.
fn once_running(then: &[Event]) -> Vec<Event> {
    let begin = [Event::Operator(9), Event::Controller, Event::Kubelets];
    [&begin[..], then].concat()
}

/// The lead was deleted, succeeded in its grace period and was gone before a new operator came. Then somebody
/// deletes the Job.
#[test]
fn success_reported_only_by_the_job_is_final() {
    let events = once_running(&[
        Event::Delete(0),
        Event::ProgramEnds(0),
        Event::Controller,
        Event::NewOperator(0),
        Event::DeleteJob,
    ]);
    assert_eq!(played(1, 0, &events).violation, None);
}

/// The program exits with the code by which a follower asks for a replacement. The Job replaces the lead, and is
/// deleted before an operator has acted on any of it.
#[test]
fn replacement_of_unseen_lead_does_not_start_in_another_job() {
    let events = once_running(&[
        Event::ProgramEnds(REPLACE),
        Event::Controller,
        Event::DeleteJob,
        Event::Controller,
        Event::NewOperator(0),
    ]);
    assert_eq!(played(1, 0, &events).violation, None);
}

/// An init container of the user's fails. Another Job would run it again.
#[test]
fn lead_whose_init_failed_is_not_rerun_when_job_is_deleted() {
    let lead = |is_users: bool| {
        let init = FailedInit {
            is_users,
            exit: Exit {
                code: 1,
                ..Exit::default()
            },
            ..FailedInit::default()
        };
        let trouble = Trouble {
            init: Some(init),
            ..Trouble::default()
        };
        PodSeen {
            has_ended: true,
            has_begun: true,
            trouble: Some(Box::new(trouble)),
            ..PodSeen::default()
        }
    };
    let decided = |is_users: bool| {
        let (lead, status) = (
            lead(is_users),
            MiniClusterStatus {
                job_uid: Some("job".into()),
                ..Default::default()
            },
        );
        decide(&Observation {
            status: &status,
            is_spec_valid: true,
            backoff_limit: 3,
            max_restarts: 0,
            lead_is_elsewhere: false,
            restarts_on_failure: false,
            min_size: None,
            job: None,
            last_job: None,
            pods: Vec::new(),
            gone: vec![&lead],
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
        })
    };
    assert!(
        matches!(decided(true), Decision::Ended { .. }),
        "{:?}",
        decided(true)
    );
    assert!(
        matches!(decided(false), Decision::Restart { .. }),
        "an init container of the operator's may be tried again: {:?}",
        decided(false)
    );
}

/// A follower was evicted, and the pod that replaces it fails. The watch has not yet reported that the lead's program
/// ended with 0.
#[test]
fn success_not_seen_yet_is_final_when_a_follower_fails() {
    let begin = [
        Event::Operator(1),
        Event::Controller,
        Event::Evict(1),
        Event::Kubelets,
        Event::Controller,
    ];
    let ends = [Event::ProgramEnds(0), Event::FollowerFails(3)];
    let news = [
        Event::NewsOfPods,
        Event::NewsOfPods,
        Event::NewsOfPods,
        Event::NewsOfJobs,
        Event::NewsOfPods,
        Event::Controller,
        Event::NewsOfPods,
        Event::NewsOfJobs,
        Event::Operator(1),
    ];
    let events = [&begin[..], &ends, &news].concat();
    assert_eq!(played(0, 1, &events).violation, None);
}

/// The runtime was down, and nobody saw the pod before it was gone. The Job names it, and stops its
/// followers.
#[test]
fn unseen_lead_is_not_restarted_for_stopped_followers() {
    let events = once_running(&[
        Event::Delete(0),
        Event::ProgramEndsUnseen(0),
        Event::NewsOfPods,
        Event::Controller,
        Event::NewOperator(0),
        Event::Kubelets,
        Event::NewsOfPods,
        Event::Operator(1),
    ]);
    assert_eq!(played(0, 1, &events).violation, None);
}

/// The agent reported 0, the runtime missed it, and the pod was being deleted. The Job counts a failure and
/// creates another pod, which runs nothing.
#[test]
fn success_that_the_job_has_replaced_ends_the_minicluster() {
    let events = once_running(&[Event::Delete(0), Event::ProgramEndsUnseen(0), Event::Operator(0)]);
    let world = played_with_size(1, 1, 0, &events);
    assert_eq!(world.violation, None);
    assert!(previous_status::is_finished(&world.status), "it waits for ever");
}

/// The Job reports the failure before the pods do.
#[test]
fn failed_follower_is_not_taken_for_lost_before_it_is_seen() {
    let events = [
        Event::Operator(1),
        Event::Controller,
        Event::FollowerFails(3),
        Event::Kubelets,
        Event::ProgramEnds(255),
        Event::Controller,
        // The third report of the Job has the failed index. The operator fails the Job, and then sees it failing.
        Event::NewsOfJobs,
        Event::NewsOfJobs,
        Event::NewsOfJobs,
        Event::Operator(9),
        Event::NewsOfJobs,
        Event::Operator(9),
    ];
    assert_eq!(played(0, 1, &events).violation, None);
}

/// The lead's index is the only one, so the Job fails with `FailedIndexes` (but it ignores an eviction).
#[test]
fn lead_without_followers_starts_again_when_deleted() {
    for event in [Event::Delete(0), Event::Kill(0), Event::Evict(0)] {
        let events = once_running(&[Event::NewsOfJobs, Event::NewsOfPods, event]);
        let world = played_with_size(1, 1, 0, &events);
        assert_eq!(world.violation, None, "{event:?}");
        assert!(
            world.running_lead().is_some(),
            "{event:?}: {:#?} {:#?}",
            world.job,
            world.status
        );
        assert_eq!(
            (world.starts, world.status.backoff_limit_used),
            (2, 1),
            "{event:?}"
        );
    }
}

/// `backoffLimit` limits the starts of the program. The program goes on when an idle follower is lost.
#[test]
fn idle_follower_is_replaced_however_often_it_is_lost() {
    for event in [Event::Reboot(1), Event::Delete(1), Event::Evict(1)] {
        let mut events = once_running(&[]);
        for _ in 0..5 {
            events.push(event);
            events.extend([Event::Kubelets, Event::Controller].repeat(3));
            events.extend([Event::NewsOfJobs, Event::NewsOfPods].repeat(9));
            events.push(Event::Operator(9));
        }
        let world = played(0, 0, &events);
        assert_eq!(world.violation, None, "{event:?}");
        let is_on = world.running_lead().is_some() && world.active(1).is_some();
        assert!(is_on, "{event:?}: {:#?} {:#?}", world.job, world.status);
        assert_eq!((world.starts, world.jobs), (1, 1), "{event:?}");
    }
}

/// The lead had not begun when the Job was suspended. It ends once the Job was resumed, which fails the Job.
#[test]
fn lead_stopped_before_resume_uses_no_restart() {
    let world = played_with_size(
        1,
        0,
        0,
        &[
            Event::Operator(9),
            Event::Controller,
            Event::NewsOfPods,
            Event::Suspend(true),
            Event::Controller,
            Event::Suspend(false),
            Event::Kubelets,
            Event::Controller,
        ],
    );
    assert_eq!(world.violation, None);
    assert!(world.running_lead().is_some(), "{:#?}", world.status);
    assert_eq!(world.status.backoff_limit_used, 0);
    assert_eq!(world.jobs, 2, "the first one has failed");
}

/// A program that traps SIGTERM, saves a checkpoint and exits with 0 runs again after a suspension, and can then be lost.
#[test]
fn program_that_exits_0_in_a_suspension_can_still_restart() {
    for event in [Event::Evict(0), Event::Kill(0), Event::DeleteJob] {
        let mut world = World {
            lead_stop_code: 0,
            ..World::new(1, 1, 0)
        };
        let suspended = [
            Event::NewsOfPods,
            Event::Suspend(true),
            Event::Controller,
            Event::Kubelets,
        ];
        for event in once_running(&suspended) {
            world.happen(event);
        }
        world.settle();
        assert_eq!((world.starts, world.jobs), (2, 1), "{event:?}");
        world.lead_stop_code = exit::of_signal(15);
        world.happen(event);
        world.settle();
        assert_eq!(world.violation, None, "{event:?}");
        assert!(world.running_lead().is_some(), "{event:?}: {:#?}", world.status);
        assert_eq!((world.starts, world.jobs), (3, 2), "{event:?}");
        assert_eq!(world.status.backoff_limit_used, 1, "{event:?}");
    }
}
