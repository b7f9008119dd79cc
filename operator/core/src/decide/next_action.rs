//! Decides which objects to create, change or delete next. Pure: the decision depends only on the observed objects.

use flux_shared::crd::v1alpha2::{MiniClusterSpec, MiniClusterStatus};
use flux_shared::validate::ValidMiniCluster;
use k8s_openapi::jiff::Timestamp;

use crate::decide::{remaining, restart};
use crate::observe::job::JobSeen;
use crate::observe::pod::PodSeen;
use crate::observe::pod_end::{PodEnd, end_of, end_of_lead};
use crate::observe::service::ServiceSeen;
use crate::observe::{Key, Observed};
use crate::previous_status;
use crate::render::elastic::Elastic;
use crate::render::{RenderFacts, spec_hash};
use crate::target::Target;
use crate::vocabulary::ConditionType;

/// The next action of a reconcile.
#[derive(Debug, Clone, PartialEq)]
pub enum NextAction {
    /// The MiniCluster is invalid, has ended, or is being deleted, or its Job is being deleted or was given up.
    Nothing,
    /// An earlier MiniCluster's Job of this name still exists: wait until it is gone.
    WaitForPrevious {
        /// A pod of this name that hangs while it is being deleted, or whose node has stopped responding, and what to do
        /// about it.
        stuck: Option<String>,
    },
    /// Pods of an earlier MiniCluster, or of an earlier Job, of this name may still run: wait until they have
    /// ended.
    WaitForPods {
        /// One of the pods, and what to do about it.
        message: String,
        /// The wait ends by itself: all these pods are being stopped, none is stuck, and their nodes respond.
        is_passing: bool,
    },
    /// A Job of this name was orphaned on purpose (`--cascade=orphan`). It is not touched.
    NameTaken,
    /// There is no Job: create everything.
    Create { facts: RenderFacts },
    /// The spec was edited after the Job was created, and no container has started: delete the Job. The next reconcile
    /// creates another one.
    RecreateJob { job_uid: String },
    /// The Job exists: create or change what is missing or differs.
    Keep(Differences),
}

/// What is missing or differs if the Job stays.
#[derive(Debug, Clone, PartialEq)]
pub struct Differences {
    /// What is needed to render the missing objects.
    pub facts: RenderFacts,
    pub job_uid: String,
    /// The Job's size and suspension, if they have to be written.
    pub elastic: Option<Elastic>,
    /// The Job starts next with another size than the one in the ConfigMap: the ConfigMap has to be written before
    /// `elastic`.
    pub is_new_start: bool,
    /// The headless Service is missing, or does not serve this MiniCluster yet.
    pub must_join: bool,
    /// Names of the sidecars whose Service is missing.
    pub services: Vec<String>,
    pub services_pod: ServicesPod,
}

/// What to do with the pod of `spec.services`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServicesPod {
    /// Nothing to do.
    Stays,
    Create,
    /// Delete the pod with this uid. Either the Job is suspended, and the pod would only hold resources, or the pod is
    /// lost, and a new one needs its name.
    Delete(String),
}

/// Decides what to do. `valid` is None if the spec is invalid. `headless` is the Service that gives the cluster's pods
/// their DNS names, if it exists. `now` is the API server's time.
pub fn decide(
    target: &Target,
    valid: Option<&ValidMiniCluster>,
    observed: &Observed,
    headless: Option<&ServiceSeen>,
    now: Timestamp,
) -> NextAction {
    let Target { uid, status, .. } = target;
    if target.is_deleting {
        return NextAction::Nothing;
    }
    let Some(cluster) = valid else {
        return NextAction::Nothing;
    };
    let Some(job_of_name) = &observed.job else {
        return without_job(target, cluster, observed, now);
    };
    let Some(job) = observed.job_of(uid) else {
        // The Job of this name belongs to another MiniCluster or to none.
        return if job_of_name.owner_uid.is_some() || job_of_name.is_deleting {
            // Its deletion waits for its pods, also for those that have ended.
            let pods = observed.pods.values().map(Box::as_ref);
            let stuck: Vec<&PodSeen> = pods
                .filter(|pod| pod.is_on_silent_node || remaining::is_stuck(pod, now))
                .collect();
            NextAction::WaitForPrevious {
                stuck: remaining::describe(&stuck, now),
            }
        } else {
            NextAction::NameTaken
        };
    };
    if is_over(target, job) {
        return NextAction::Nothing;
    }
    if is_edited(target, cluster, job) && !observed.has_begun(job) {
        return NextAction::RecreateJob {
            job_uid: job.uid.clone(),
        };
    }
    let facts = facts(uid, status, job);
    let maximum = facts.maximum_size;
    // A size beyond the maximum is ignored; a condition says so.
    let size = match maximum {
        Some(maximum) if cluster.size > maximum => job.completions,
        _ => cluster.size,
    };
    let wanted = Elastic::of(cluster, size, job);
    let is_applied = !job.is_resizing && job.rendered_hash.as_deref() == Some(wanted.hash().as_str());
    // A queue that evicts a partly admitted Job resets it to the size that the queue has recorded. That size may be
    // out of date.
    let is_reset_by_queue = job.waits_in().is_some() && job.completions != size;
    let differs = is_reset_by_queue || (!is_applied && !job.has_size_of_queue());
    // Without `minSize`, the command waits for as many brokers as the pods read in the ConfigMap. The ConfigMap stays
    // as it is while pods run, if somebody else has set the Job's size, and if the Job lacks the annotation with the
    // number (`initial_size` is None). With `maxSize`, more brokers may come later, so the command does not wait for
    // them. After an unfinished change, the ConfigMap may have any size.
    let is_stopped = job.is_suspended && observed.pods_of(job).all(|pod| pod.has_ended || pod.is_deleting);
    let waits_for_another_size =
        |initial: u32| job.is_resizing || size < initial || (size > initial && !cluster.resizes);
    let is_new_start = is_stopped
        && (differs || job.completions == size)
        && job.initial_size.is_some_and(waits_for_another_size);
    let with_ports = cluster
        .sidecars
        .iter()
        .filter(|sidecar| !sidecar.container.ports.is_empty());
    let names = with_ports.map(|sidecar| &sidecar.container.name);
    let has_service = |name: &&String| {
        observed
            .services
            .get(*name)
            .is_some_and(|service| service.controller_uid.as_deref() == Some(uid.as_str()))
    };
    NextAction::Keep(Differences {
        facts,
        job_uid: job.uid.clone(),
        elastic: (differs || is_new_start).then_some(wanted),
        is_new_start,
        must_join: !headless.is_some_and(|service| service.serves(uid, cluster.flux.minimal_service)),
        services: names.filter(|name| !has_service(name)).cloned().collect(),
        services_pod: services_pod(cluster, observed, uid, job),
    })
}

/// What to do if there is no Job.
fn without_job(
    target: &Target,
    cluster: &ValidMiniCluster,
    observed: &Observed,
    now: Timestamp,
) -> NextAction {
    let Target { uid, status, .. } = target;
    if previous_status::is_finished(status) {
        return NextAction::Nothing;
    }
    let living = observed.living();
    if let Some(message) = remaining::describe(&living, now) {
        let is_passing = remaining::end_by_themselves(&living, now);
        return NextAction::WaitForPods { message, is_passing };
    }
    // The operator adds what it has to look up: gang APIs, the rest of the deadline, and whether nodes mount images.
    let facts = RenderFacts {
        uid: Some(uid.to_owned()),
        maximum_size: status.maximum_size.and_then(|size| u32::try_from(size).ok()),
        image_volume_failed: previous_status::image_volume_failed(status),
        backoff_limit_used: u32::try_from(status.backoff_limit_used).unwrap_or(0),
        spec_hash: target.spec_hash(),
        attempt: u32::try_from(status.restart_count).unwrap_or(0),
        is_suspended: observed
            .last_job
            .as_deref()
            .and_then(|last| was_suspended(uid, cluster, last)),
        ..RenderFacts::default()
    };
    NextAction::Create { facts }
}

/// Whether the Job before the next one, `last`, was suspended. None if a queue decided, or the spec has changed since.
fn was_suspended(uid: &str, cluster: &ValidMiniCluster, last: &JobSeen) -> Option<bool> {
    let wanted = Elastic::of(cluster, cluster.size, last);
    let maximum = last.maximum_size.unwrap_or(cluster.max_size);
    let may_differ_from_spec = last.is_of(uid)
        && last.queue.is_none()
        && wanted.is_suspend_applied(last.rendered_hash.as_deref(), maximum);
    may_differ_from_spec.then_some(last.is_suspended)
}

/// When `deadlineSeconds`, counted from the first start, is over for a MiniCluster that waits for its next Job. (The
/// earlier Job was given up or deleted. It or its pods may still exist.) None: there is no deadline, no next Job is
/// awaited, or the next Job is created suspended: then the count restarts when the Job is resumed.
pub fn deadline_of_next_job(
    target: &Target,
    cluster: &ValidMiniCluster,
    observed: &Observed,
) -> Option<Timestamp> {
    let Target { uid, status, .. } = target;
    if target.is_deleting || previous_status::is_finished(status) || cluster.queueing.queue().is_some() {
        return None;
    }
    let last = match &observed.job {
        Some(job) if job.is_of(uid) && is_to_be_replaced(status, job, observed) => Some(job),
        // Another MiniCluster's Job, or one that is not replaced.
        Some(_) => return None,
        None => observed.last_job.as_deref(),
    };
    // Kueue adds its label to the Job if the namespace has a default queue. Then the MiniCluster's record names none.
    let is_in_default_queue = |last: &JobSeen| {
        let recorded = last.queueing.as_ref().and_then(|queueing| queueing.queue());
        last.is_of(uid) && last.queue.is_some() && recorded.is_none()
    };
    if last.is_some_and(is_in_default_queue) {
        return None;
    }
    let is_suspended = last
        .and_then(|last| was_suspended(uid, cluster, last))
        .or(cluster.suspend);
    if is_suspended == Some(true) {
        return None;
    }
    let first_start: Timestamp = status.start_time.as_ref()?.parse().ok()?;
    let deadline = first_start.as_second().saturating_add(cluster.deadline_seconds?);
    Some(Timestamp::from_second(deadline).unwrap_or(Timestamp::MAX))
}

/// Whether another Job follows this one: it was given up, or somebody deletes it before its program has a result.
fn is_to_be_replaced(status: &MiniClusterStatus, job: &JobSeen, observed: &Observed) -> bool {
    let leads = observed.pods_of(job).filter(|pod| pod.index == 0);
    let mut ends = leads
        .chain(observed.gone_leads_of(job))
        .filter_map(|pod| end_of_lead(pod, Some(job), false));
    let is_deleted_early = job.is_deleting
        && !job.is_finished()
        && !job.has_succeeded()
        && !ends.any(|end| end == PodEnd::Succeeded || restart::is_failure(end));
    is_deleted_early || restart::is_given_up(status, job)
}

/// Whether the Job ends or goes. `restart` decides whether another one is created.
fn is_over(target: &Target, job: &JobSeen) -> bool {
    let status = &target.status;
    job.is_deleting
        || job.is_finished()
        || previous_status::is_finished(status)
        || restart::is_given_up(status, job)
}

/// The services pod runs while the Job may have pods: not before the queue admits the Job, nor after the
/// queue has stopped it.
fn services_pod(cluster: &ValidMiniCluster, observed: &Observed, uid: &str, job: &JobSeen) -> ServicesPod {
    match observed.services_pod_of(uid) {
        Some(pod) if pod.is_deleting => ServicesPod::Stays,
        Some(pod) if job.is_suspended || pod.was_evicted => ServicesPod::Delete(pod.uid.clone()),
        None if !job.is_suspended && !cluster.services.is_empty() => ServicesPod::Create,
        _ => ServicesPod::Stays,
    }
}

/// The uid of the services pod that has to be deleted because the MiniCluster has ended: it would run forever. It is
/// deleted after a failure, too. (If its containers are restarted, as by default, it never ends by itself.) While a
/// broker pod still runs, its snippet `post` may need the services.
pub fn services_pod_to_end(
    target: &Target,
    status: &MiniClusterStatus,
    observed: &Observed,
) -> Option<String> {
    if target.is_deleting || !previous_status::is_finished(status) {
        return None;
    }
    let mut pods = observed.pods.values();
    if pods.any(|pod| end_of(pod).is_none() && !pod.is_on_silent_node) {
        return None;
    }
    let services_pod = observed.services_pod_of(&target.uid)?;
    (!services_pod.is_deleting).then(|| services_pod.uid.clone())
}

/// Whether the spec was edited after the Job was created, only in fields that a new Job can take over. This can
/// happen only before the first status is written: from then on the API server rejects such an edit.
fn is_edited(target: &Target, cluster: &ValidMiniCluster, job: &JobSeen) -> bool {
    // The first status that reports a Job has its maximum size.
    if target.status.maximum_size.is_some() {
        return false;
    }
    let hash = target.spec_hash();
    let same_objects = job
        .spec_hash
        .as_deref()
        .zip(hash.as_deref())
        .is_some_and(|(of_job, current)| spec_hash::is_of_the_same_objects(of_job, current));
    // The maximum size of a Job is fixed.
    let exceeds_maximum = job.maximum_size.is_some_and(|maximum| cluster.size > maximum);
    same_objects && (exceeds_maximum || job.differs_from(hash.as_deref()))
}

/// Whether the Job is being deleted before any of its containers has started and before the first status was written
/// (which would have a maximum size). The operator deletes such a Job after an edit of the spec. The Job then counts as
/// none: the next Job is the MiniCluster's first.
pub fn is_being_recreated(status: &MiniClusterStatus, job: &JobSeen, observed: &Observed) -> bool {
    job.is_deleting && status.maximum_size.is_none() && !observed.has_begun(job)
}

/// The facts to render missing objects beside an existing Job, whose sizes were fixed when it was created. The facts
/// that are left out matter only to the Job and its gang.
pub fn facts(uid: &str, status: &MiniClusterStatus, job: &JobSeen) -> RenderFacts {
    let maximum_size = job
        .maximum_size
        .or(status.maximum_size.and_then(|size| u32::try_from(size).ok()));
    RenderFacts {
        uid: Some(uid.to_owned()),
        initial_size: job.initial_size,
        maximum_size,
        ..RenderFacts::default()
    }
}

/// Namespace and name of a cluster's headless Service.
pub fn headless_key(cluster: &ValidMiniCluster) -> Key {
    Key::new(&cluster.namespace, &cluster.headless_name)
}

/// Whether pods and volumes have to be deleted (`cleanupPods`): the job has completed, all its pods were seen
/// to end, and the cleanup was not done before. A pod in which only a foreign container still runs (`kept_by`) counts
/// as ended. A failed job's pods stay for their logs.
pub fn is_to_be_cleaned_up(
    spec: &MiniClusterSpec,
    status: &MiniClusterStatus,
    observed: &Observed,
    job_uid: &str,
) -> bool {
    let completed = previous_status::is_true(status, ConditionType::Complete);
    let mut pods = observed
        .pods
        .values()
        .filter(|pod| pod.job_uid.as_deref() == Some(job_uid));
    spec.cleanup_pods
        && completed
        && !previous_status::is_cleaned_up(status)
        && pods.all(|pod| pod.has_ended || pod.kept_by.is_some())
}

/// Seconds until a finished MiniCluster has to be deleted, 0 if now. None: never, or it has not finished.
pub fn seconds_to_live(spec: &MiniClusterSpec, status: &MiniClusterStatus, now: Timestamp) -> Option<u64> {
    let end = previous_status::end(status)?;
    match (spec.cleanup, spec.ttl_seconds_after_finished) {
        (true, _) => Some(0),
        (false, Some(ttl)) => {
            let left = end.as_second() + i64::from(ttl) - now.as_second();
            Some(u64::try_from(left).unwrap_or(0))
        }
        (false, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::ServicesPodSeen;
    use crate::observe::pod::Exit;
    use crate::testing;
    use flux_shared::crd::v1alpha2::ConditionStatus;
    use flux_shared::queueing::Queueing;
    use flux_shared::termination::{Ender, Termination};
    use k8s_openapi::jiff::SignedDuration;

    fn now() -> Timestamp {
        "2026-01-01T00:10:00Z".parse().unwrap()
    }

    fn decide(spec: &str, status: &MiniClusterStatus, job: Option<JobSeen>, deleting: bool) -> NextAction {
        let cluster = testing::cluster(spec);
        let observed = Observed {
            job,
            ..Observed::default()
        };
        let service = ServiceSeen {
            owners: vec![("mc".into(), "uid".into())],
            ..ServiceSeen::default()
        };
        let target = Target {
            is_deleting: deleting,
            ..testing::target("uid", status)
        };
        super::decide(&target, Some(&cluster), &observed, Some(&service), now())
    }

    fn job(size: u32) -> JobSeen {
        JobSeen {
            uid: "job".into(),
            owner_uid: Some("uid".into()),
            completions: size,
            maximum_size: Some(4),
            initial_size: Some(2),
            rendered_hash: Some(Elastic { size, suspend: None }.hash()),
            ..JobSeen::default()
        }
    }

    fn elastic(action: NextAction) -> Option<Elastic> {
        match action {
            NextAction::Keep(Differences { elastic, .. }) => elastic,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn job_that_matches_its_spec_is_left_alone() {
        let none = MiniClusterStatus::default();
        let NextAction::Keep(Differences {
            elastic,
            must_join,
            services,
            services_pod,
            facts,
            ..
        }) = decide("size: 2", &none, Some(job(2)), false)
        else {
            panic!()
        };
        assert_eq!(
            (elastic, must_join, services_pod, services.len()),
            (None, false, ServicesPod::Stays, 0)
        );
        assert_eq!((facts.initial_size, facts.maximum_size), (Some(2), Some(4)));
    }

    #[test]
    fn deleted_or_finished_minicluster_gets_no_job() {
        let none = MiniClusterStatus::default();
        assert_eq!(decide("size: 2", &none, None, true), NextAction::Nothing);
        assert_eq!(
            decide(
                "size: 2",
                &none,
                Some(JobSeen {
                    complete: condition(),
                    ..job(2)
                }),
                false
            ),
            NextAction::Nothing
        );
        let mut over = MiniClusterStatus::default();
        over.conditions.push(testing::condition(
            ConditionType::JobFinished,
            ConditionStatus::True,
            "Completed",
        ));
        assert_eq!(
            decide("size: 2", &over, None, false),
            NextAction::Nothing,
            "a finished job does not run again"
        );
    }

    #[test]
    fn new_job_is_suspended_as_the_last_one_was() {
        let created = |spec: &str, applied: Option<bool>, change: fn(&mut JobSeen)| {
            let mut last = job(2);
            last.rendered_hash = Some(
                Elastic {
                    size: 3,
                    suspend: applied,
                }
                .hash(),
            );
            change(&mut last);
            let cluster = testing::cluster(spec);
            let observed = Observed {
                last_job: Some(Box::new(last)),
                ..Observed::default()
            };
            let target = testing::target("uid", &MiniClusterStatus::default());
            let NextAction::Create { facts } = super::decide(&target, Some(&cluster), &observed, None, now())
            else {
                panic!()
            };
            let job = crate::render::job::build(&cluster, &Default::default(), &facts).unwrap();
            let hash = job.metadata.annotations.unwrap()[crate::labels::RENDERED_HASH].clone();
            let of_spec = Elastic {
                size: 2,
                suspend: cluster.suspend,
            };
            assert_eq!(hash, of_spec.hash());
            job.spec.unwrap().suspend
        };
        let suspend: fn(&mut JobSeen) = |job| job.is_suspended = true;
        let resume: fn(&mut JobSeen) = |_| {};
        assert_eq!(created("size: 2", None, suspend), Some(true), "by somebody else");
        assert_eq!(created("size: 2\nsuspend: true", Some(true), resume), Some(false));
        assert_eq!(
            created("size: 2\nsuspend: false", Some(true), suspend),
            Some(false),
            "the spec was changed since"
        );
        let of_queue: fn(&mut JobSeen) = |job| (job.queue, job.is_suspended) = (Some("q".into()), true);
        assert_eq!(created("size: 2", None, of_queue), None);
    }

    #[test]
    fn deadline_runs_while_the_next_job_is_awaited() {
        let restart = flux_shared::crd::v1alpha2::Restart {
            time: "2026-01-01T00:00:30Z".into(),
            reason: "LeadLost".into(),
            message: String::new(),
            job_uid: Some("job".into()),
        };
        let restarting = MiniClusterStatus {
            start_time: Some("2026-01-01T00:00:00Z".into()),
            restarts: vec![restart],
            restart_count: 1,
            ..MiniClusterStatus::default()
        };
        let deadline_with = |spec: &str, status: &MiniClusterStatus, observed: &Observed| {
            let cluster = testing::cluster(spec);
            deadline_of_next_job(&testing::target("uid", status), &cluster, observed)
                .map(|deadline| deadline.to_string())
        };
        let deadline = |spec: &str, status: &MiniClusterStatus, job: Option<JobSeen>| {
            let observed = Observed {
                job,
                ..Observed::default()
            };
            deadline_with(spec, status, &observed)
        };
        let with = "size: 2\ndeadlineSeconds: 60";
        let end = Some("2026-01-01T00:01:00Z".to_owned());
        let given_up = JobSeen {
            is_deleting: true,
            ..job(2)
        };
        assert_eq!(deadline(with, &restarting, Some(given_up.clone())), end);
        assert_eq!(deadline(with, &restarting, None), end, "its pods may still run");
        let other = JobSeen {
            uid: "next".into(),
            ..job(2)
        };
        assert_eq!(
            deadline(with, &restarting, Some(other)),
            None,
            "the Job has its own deadline"
        );
        let suspended = JobSeen {
            is_suspended: true,
            ..given_up.clone()
        };
        assert_eq!(deadline(with, &restarting, Some(suspended.clone())), None);
        let queued = JobSeen {
            queue: Some("default".into()),
            ..given_up.clone()
        };
        assert_eq!(
            deadline(with, &restarting, Some(queued)),
            None,
            "the next Job waits in the default queue, too"
        );
        let taken_out = JobSeen {
            queue: Some("team".into()),
            queueing: Queueing::noted(r#"{"labels": {"kueue.x-k8s.io/queue-name": "team"}}"#),
            ..given_up.clone()
        };
        assert_eq!(deadline(with, &restarting, Some(taken_out)), end);
        // The given-up Job is not changed any more, but the next one follows the spec.
        for job in [None, Some(given_up.clone())] {
            let suspend = format!("{with}\nsuspend: true");
            assert_eq!(deadline(&suspend, &restarting, job), None);
        }
        let resume = format!("{with}\nsuspend: false");
        assert_eq!(deadline(&resume, &restarting, Some(suspended)), end);
        // Somebody deletes the Job, and a pod on a dead node holds it.
        let running = MiniClusterStatus {
            restarts: Vec::new(),
            restart_count: 0,
            ..restarting.clone()
        };
        assert_eq!(deadline(with, &running, Some(job(2))), None, "it is not deleted");
        assert_eq!(deadline(with, &running, Some(given_up.clone())), end);
        let lead = |has_succeeded: bool| PodSeen {
            job_uid: Some("job".into()),
            has_succeeded,
            ..PodSeen::default()
        };
        let failed = PodSeen {
            has_ended: true,
            exit: Some(Box::new(Exit {
                termination: Some(Termination::new(Ender::Program, 3)),
                ..Exit::default()
            })),
            ..lead(false)
        };
        for (lead, expected) in [(lead(false), end), (lead(true), None), (failed, None)] {
            let present = Observed {
                job: Some(given_up.clone()),
                pods: [(lead.name.clone(), Box::new(lead.clone()))].into(),
                ..Observed::default()
            };
            assert_eq!(deadline_with(with, &running, &present), expected, "{lead:?}");
            if expected.is_none() {
                let gone = Observed {
                    job: Some(given_up.clone()),
                    gone_leads: vec![lead],
                    ..Observed::default()
                };
                assert_eq!(deadline_with(with, &running, &gone), None);
            }
        }
        let succeeded = JobSeen {
            succeeding: condition(),
            ..given_up
        };
        assert_eq!(
            deadline(with, &running, Some(succeeded)),
            None,
            "no other follows"
        );
        assert_eq!(deadline("size: 2", &restarting, None), None);
        assert_eq!(
            deadline(with, &MiniClusterStatus::default(), None),
            None,
            "nothing has started"
        );
        let forever = "size: 2\ndeadlineSeconds: 18000000000";
        assert!(deadline(forever, &restarting, None).is_some());
    }

    fn condition() -> Option<crate::observe::job::TrueCondition> {
        Some(crate::observe::job::TrueCondition {
            reason: String::new(),
            message: String::new(),
            since: None,
        })
    }

    #[test]
    fn job_of_earlier_cluster_is_awaited_and_an_orphan_is_not() {
        let none = MiniClusterStatus::default();
        let other = JobSeen {
            owner_uid: Some("earlier".into()),
            ..job(2)
        };
        assert_eq!(
            decide("size: 2", &none, Some(other.clone()), false),
            NextAction::WaitForPrevious { stuck: None }
        );
        // The deletion of the Job also waits for a pod that has ended, such as one with a finalizer.
        let pod = PodSeen {
            name: "mc-0-abcde".into(),
            is_deleting: true,
            has_ended: true,
            grace_end: Some(now() - SignedDuration::from_mins(1)),
            ..PodSeen::default()
        };
        let on_silent_node = PodSeen {
            name: "mc-0-abcde".into(),
            node: Some("n1".into()),
            is_on_silent_node: true,
            ..PodSeen::default()
        };
        let target = testing::target("uid", &none);
        for pod in [pod, on_silent_node] {
            let observed = Observed {
                job: Some(other.clone()),
                pods: [("uid".to_owned(), Box::new(pod))].into(),
                ..Observed::default()
            };
            let action = super::decide(
                &target,
                Some(&testing::cluster("size: 2")),
                &observed,
                None,
                now(),
            );
            assert!(
                matches!(&action, NextAction::WaitForPrevious { stuck: Some(pod) } if pod.contains("mc-0-abcde")),
                "{action:?}"
            );
        }
        assert_eq!(
            decide(
                "size: 2",
                &none,
                Some(JobSeen {
                    is_deleting: true,
                    ..job(2)
                }),
                false
            ),
            NextAction::Nothing
        );
        assert_eq!(
            decide(
                "size: 2",
                &none,
                Some(JobSeen {
                    owner_uid: None,
                    ..job(2)
                }),
                false
            ),
            NextAction::NameTaken
        );
    }

    #[test]
    fn next_job_copies_the_view_if_the_last_could_not_mount_it() {
        let mut status = MiniClusterStatus::default();
        status.conditions.push(testing::condition(
            ConditionType::ViewMounted,
            ConditionStatus::False,
            "ImageVolumeFailed",
        ));
        let deleted = JobSeen {
            mounts_view: true,
            is_deleting: true,
            ..job(2)
        };
        assert_eq!(
            decide("size: 2", &status, Some(deleted), false),
            NextAction::Nothing
        );
        let NextAction::Create { facts } = decide("size: 2", &status, None, false) else {
            panic!()
        };
        assert!(facts.image_volume_failed);
    }

    /// The pods of both would have the same DNS names, and the program would run twice at the same time.
    #[test]
    fn job_is_not_created_beside_pods_of_its_name() {
        let pod = |pod: PodSeen| PodSeen {
            name: "mc-0-abcde".into(),
            node: Some("n1".into()),
            ..pod
        };
        let decide = |pod: PodSeen| {
            let observed = Observed {
                pods: [("uid".to_owned(), Box::new(pod))].into(),
                ..Observed::default()
            };
            let target = testing::target("new", &MiniClusterStatus::default());
            super::decide(
                &target,
                Some(&testing::cluster("size: 1")),
                &observed,
                None,
                now(),
            )
        };
        let waits = |seen: PodSeen| match decide(pod(seen)) {
            NextAction::WaitForPods { message, is_passing } => (message, is_passing),
            other => panic!("{other:?}"),
        };
        let earlier = || PodSeen {
            job_uid: Some("earlier".into()),
            ..PodSeen::default()
        };
        let (message, is_passing) = waits(PodSeen {
            is_deleting: true,
            ..earlier()
        });
        assert!(
            is_passing && message.contains("mc-0-abcde") && message.contains("node n1"),
            "{message}"
        );
        let (message, is_passing) = waits(PodSeen {
            is_deleting: true,
            is_on_silent_node: true,
            ..earlier()
        });
        assert!(
            !is_passing && message.contains("Only if the machine is off"),
            "{message}"
        );
        assert!(
            message.find("out-of-service") < message.find("kubectl delete node"),
            "{message}"
        );
        let (message, is_passing) = waits(PodSeen {
            is_deleting: true,
            grace_end: Some(now() - SignedDuration::from_mins(1)),
            ..earlier()
        });
        assert!(!is_passing && message.contains("finalizer"), "{message}");
        let (_, is_passing) = waits(earlier());
        assert!(is_passing, "the garbage collector deletes it in a moment");
        let (message, is_passing) = waits(PodSeen {
            is_orphan: true,
            ..earlier()
        });
        assert!(
            !is_passing && message.contains("delete it to stop it"),
            "{message}"
        );
        let ended = decide(PodSeen {
            has_ended: true,
            ..earlier()
        });
        assert!(matches!(ended, NextAction::Create { .. }), "{ended:?}");
    }

    #[test]
    fn next_job_gets_the_backoff_limit_that_is_left() {
        let reported = MiniClusterStatus {
            job_uid: Some("job".into()),
            ..MiniClusterStatus::default()
        };
        assert_eq!(
            decide(
                "size: 2",
                &reported,
                Some(JobSeen {
                    is_deleting: true,
                    ..job(2)
                }),
                false
            ),
            NextAction::Nothing,
            "`WaitForPrevious` is for an earlier MiniCluster's Job"
        );
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let counted =
            restart::with_counted_restart(&reported, "job", "LeadLost", "gone", restart::Limit::Backoff, now);
        assert_eq!(
            decide("size: 2", &counted, Some(job(2)), false),
            NextAction::Nothing
        );
        let NextAction::Create { facts } = decide("size: 2", &counted, None, false) else {
            panic!()
        };
        assert_eq!(facts.backoff_limit_used, 1);
    }

    #[test]
    fn job_of_another_spec_is_recreated_until_it_begins() {
        let spec = |image: &str| serde_json::json!({ "containers": [{ "image": image }] });
        let target = |image: &str, status: &MiniClusterStatus| Target {
            spec: Ok(serde_json::from_value(spec(image)).unwrap()),
            ..testing::target("uid", status)
        };
        let cluster = testing::cluster("size: 2");
        let none = MiniClusterStatus::default();
        let job = JobSeen {
            spec_hash: target("app:1", &none).spec_hash(),
            ..job(2)
        };
        let decide = |target: &Target, job: &JobSeen, pods: Vec<PodSeen>| {
            let pods = pods
                .into_iter()
                .map(|pod| (pod.name.clone(), Box::new(pod)))
                .collect();
            let observed = Observed {
                job: Some(job.clone()),
                pods,
                ..Observed::default()
            };
            matches!(
                super::decide(target, Some(&cluster), &observed, None, now()),
                NextAction::RecreateJob { .. }
            )
        };
        assert!(!decide(&target("app:1", &none), &job, Vec::new()));
        assert!(decide(&target("app:2", &none), &job, Vec::new()));
        let pod = PodSeen {
            job_uid: Some("job".into()),
            is_scheduled: true,
            ..PodSeen::default()
        };
        assert!(decide(&target("app:2", &none), &job, vec![pod.clone()]));
        assert!(!decide(
            &target("app:2", &none),
            &job,
            vec![PodSeen {
                has_begun: true,
                ..pod
            }]
        ));
        assert!(!decide(
            &target("app:2", &none),
            &JobSeen {
                has_ended_pods: true,
                ..job.clone()
            },
            Vec::new()
        ));
        assert!(
            !decide(
                &target("app:2", &none),
                &JobSeen {
                    spec_hash: None,
                    ..job.clone()
                },
                Vec::new()
            ),
            "unknown"
        );
        let frozen = MiniClusterStatus {
            maximum_size: Some(2),
            ..MiniClusterStatus::default()
        };
        assert!(
            !decide(&target("app:2", &frozen), &job, Vec::new()),
            "the API server rejects such an edit"
        );
        assert!(decide(
            &target("app:1", &none),
            &JobSeen {
                maximum_size: Some(1),
                ..job.clone()
            },
            Vec::new()
        ));
    }

    #[test]
    fn job_size_follows_the_spec_up_to_the_maximum() {
        let none = MiniClusterStatus::default();
        assert_eq!(
            elastic(decide("size: 4", &none, Some(job(2)), false)),
            Some(Elastic {
                size: 4,
                suspend: None
            })
        );
        assert_eq!(
            elastic(decide("size: 5", &none, Some(job(2)), false)),
            None,
            "beyond: it stays as it is"
        );
        let suspended = elastic(decide("size: 2\nsuspend: true", &none, Some(job(2)), false));
        assert_eq!(
            suspended,
            Some(Elastic {
                size: 2,
                suspend: Some(true)
            })
        );
    }

    #[test]
    fn size_that_a_queue_holds_is_written_once_it_evicts_the_job() {
        let none = MiniClusterStatus::default();
        let admitted = JobSeen {
            queue: Some("team".into()),
            ..job(2)
        };
        assert_eq!(
            elastic(decide("size: 3", &none, Some(admitted.clone()), false)),
            None
        );
        // The Job was created without a queue. Kueue added the namespace's default one, and admitted a part of the Job.
        let partly_admitted = JobSeen {
            rendered_hash: Some(
                Elastic {
                    size: 4,
                    suspend: Some(false),
                }
                .hash(),
            ),
            ..admitted.clone()
        };
        let spec = "size: 4\nminSize: 2\nsuspend: false";
        assert_eq!(elastic(decide(spec, &none, Some(partly_admitted), false)), None);
        let evicted = JobSeen {
            is_suspended: true,
            ..admitted
        };
        let size = |spec: &str, job: &JobSeen| {
            elastic(decide(spec, &none, Some(job.clone()), false)).map(|elastic| elastic.size)
        };
        assert_eq!(size("size: 3", &evicted), Some(3));
        let restored = JobSeen {
            completions: 4,
            ..evicted
        };
        assert_eq!(size("size: 2", &restored), Some(2), "the queue knew another size");
    }

    /// Without `minSize`, the command would wait for the brokers of the earlier size.
    #[test]
    fn suspended_job_starts_with_its_new_size() {
        let size_and_start = |spec: &str, job: JobSeen, pod: Option<PodSeen>| {
            let cluster = testing::cluster(spec);
            let pod = pod.map(|pod| PodSeen {
                job_uid: Some("job".into()),
                ..pod
            });
            let observed = Observed {
                job: Some(job),
                pods: pod
                    .into_iter()
                    .map(|pod| (String::new(), Box::new(pod)))
                    .collect(),
                ..Observed::default()
            };
            let target = testing::target("uid", &MiniClusterStatus::default());
            let NextAction::Keep(differences) =
                super::decide(&target, Some(&cluster), &observed, None, now())
            else {
                panic!()
            };
            let size = differences.elastic.map(|elastic| elastic.size);
            (size, differences.is_new_start)
        };
        let new_start = |job, pod| size_and_start("size: 4", job, pod);
        let suspended = |size: u32| JobSeen {
            is_suspended: true,
            ..job(size)
        };
        assert_eq!(new_start(suspended(2), None), (Some(4), true));
        assert_eq!(
            new_start(suspended(4), None),
            (Some(4), true),
            "the Job was resized before it was suspended, or while its pods ran"
        );
        let ending = PodSeen {
            is_deleting: true,
            ..PodSeen::default()
        };
        assert_eq!(new_start(suspended(4), Some(ending)), (Some(4), true));
        assert_eq!(
            new_start(suspended(2), Some(PodSeen::default())),
            (Some(4), false)
        );
        assert_eq!(
            new_start(suspended(4), Some(PodSeen::default())),
            (None, false),
            "this pod has read the size"
        );
        assert_eq!(new_start(job(2), None), (Some(4), false), "it runs");
        assert_eq!(new_start(job(4), None), (None, false));
        for initial_size in [None, Some(4)] {
            let done = JobSeen {
                initial_size,
                ..suspended(4)
            };
            assert_eq!(new_start(done, None), (None, false), "{initial_size:?}");
        }
        let shrunk = JobSeen {
            completions: 3,
            ..suspended(4)
        };
        assert_eq!(new_start(shrunk, None), (None, false), "by others");
        // With maxSize, further brokers may join later.
        let elastic = "size: 4\nmaxSize: 4";
        assert_eq!(size_and_start(elastic, suspended(2), None), (Some(4), false));
        assert_eq!(size_and_start(elastic, suspended(4), None), (None, false));
        let larger = JobSeen {
            initial_size: Some(4),
            ..suspended(4)
        };
        assert_eq!(
            size_and_start("size: 2\nmaxSize: 4", larger, None),
            (Some(2), true)
        );
    }

    #[test]
    fn services_run_while_the_job_may_have_pods() {
        let cluster = testing::cluster("size: 2\nservices: [{image: db, name: db}]");
        let decide = |pod: Option<(&str, bool)>, suspended: bool| {
            let services_pod = pod.map(|(owner, was_evicted)| ServicesPodSeen {
                uid: "pod".to_owned(),
                controller_uid: Some(owner.to_owned()),
                is_deleting: false,
                was_evicted,
                trouble: None,
                queue: None,
            });
            let job = JobSeen {
                is_suspended: suspended,
                queue: Some("team".into()),
                ..job(2)
            };
            let observed = Observed {
                job: Some(job),
                services_pod,
                ..Observed::default()
            };
            let target = testing::target("uid", &MiniClusterStatus::default());
            match super::decide(&target, Some(&cluster), &observed, None, now()) {
                NextAction::Keep(differences) => differences.services_pod,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(decide(None, true), ServicesPod::Stays, "it waits in its queue");
        assert_eq!(decide(None, false), ServicesPod::Create);
        assert_eq!(decide(Some(("uid", false)), false), ServicesPod::Stays);
        assert_eq!(
            decide(Some(("uid", true)), false),
            ServicesPod::Delete("pod".into()),
            "a new pod needs its name"
        );
        assert_eq!(
            decide(Some(("uid", false)), true),
            ServicesPod::Delete("pod".into()),
            "its queue has stopped it"
        );
        assert_eq!(
            decide(Some(("other", false)), true),
            ServicesPod::Stays,
            "another MiniCluster's"
        );
        assert_eq!(
            decide(Some(("other", false)), false),
            ServicesPod::Create,
            "the API server rejects the new pod until the other one is gone"
        );
    }

    #[test]
    fn services_pod_ends_with_the_minicluster() {
        let finished = MiniClusterStatus {
            conditions: vec![testing::condition(
                ConditionType::JobFinished,
                ConditionStatus::True,
                "NonZeroExitCode",
            )],
            ..MiniClusterStatus::default()
        };
        let beside = |pod: PodSeen, status: &MiniClusterStatus, owner: &str, is_deleting: bool| {
            let observed = Observed {
                pods: [("mc-1".to_owned(), Box::new(pod))].into(),
                services_pod: Some(ServicesPodSeen {
                    uid: "pod".to_owned(),
                    controller_uid: Some(owner.to_owned()),
                    is_deleting,
                    was_evicted: false,
                    trouble: None,
                    queue: None,
                }),
                ..Observed::default()
            };
            services_pod_to_end(&testing::target("uid", status), status, &observed)
        };
        let to_end = |status: &MiniClusterStatus, owner: &str, is_deleting: bool| {
            let ended = PodSeen {
                has_ended: true,
                ..PodSeen::default()
            };
            beside(ended, status, owner, is_deleting)
        };
        let ended = Some("pod".to_owned());
        assert_eq!(to_end(&finished, "uid", false), ended);
        let lost = PodSeen {
            is_on_silent_node: true,
            ..PodSeen::default()
        };
        let kept = PodSeen {
            kept_by: Some("proxy".into()),
            ..PodSeen::default()
        };
        for (pod, expected) in [(PodSeen::default(), None), (lost, ended.clone()), (kept, ended)] {
            assert_eq!(beside(pod.clone(), &finished, "uid", false), expected, "{pod:?}");
        }
        assert_eq!(to_end(&MiniClusterStatus::default(), "uid", false), None);
        assert_eq!(to_end(&finished, "other", false), None, "another MiniCluster's");
        assert_eq!(to_end(&finished, "uid", true), None, "it is deleted already");
    }

    /// This Job has no queue name. Its hash says that the operator has applied the spec, so the operator leaves later
    /// changes alone. (The size of a waiting Job with a queue name would be written: `is_reset_by_queue`.)
    #[test]
    fn job_that_others_suspend_or_shrink_is_not_overruled() {
        let none = MiniClusterStatus::default();
        let queued = JobSeen {
            is_suspended: true,
            completions: 1,
            ..job(2)
        };
        assert_eq!(elastic(decide("size: 2", &none, Some(queued), false)), None);
    }
}
