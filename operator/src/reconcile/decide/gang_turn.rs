//! Kubernetes 1.35 places a gang pod by pod, and holds each until the others have a place: of two that are made together each may
//! hold half of the nodes, and neither starts. So such gangs are made one after the other.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::observe::Observed;
use crate::reconcile::render::gang::{GangApi, GangObject, GangRef};

/// How long a gang without a place keeps others from being made: there may be no room for it, but for them.
const TURN: SignedDuration = SignedDuration::from_secs(60);

/// Whether a gang is made in its turn only.
pub fn takes_turns(gang: &GangObject) -> bool {
    gang.at.api == GangApi::WorkloadV1alpha1
}

/// Whether these are the objects of a gang whose turn it is: its pods are to be placed, none of them is, and it has not been tried for
/// too long.
pub fn has_turn(observed: &Observed, now: Timestamp) -> bool {
    let Some(job) = &observed.job else { return false };
    let gang = job.gang.as_deref().and_then(GangRef::read);
    let waits = !job.suspended && !job.deleting && !job.is_finished() && job.failing.is_none();
    let is_new = job.start_time.is_none_or(|start| now.duration_since(start) < TURN);
    gang.is_some_and(|gang| gang.api == GangApi::WorkloadV1alpha1)
        && job.completions > 1
        && waits
        && is_new
        && !observed.has_begun(job)
        && !observed.pods_of(job).any(|pod| pod.scheduled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::job::{JobSeen, Verdict};
    use crate::observe::pod::PodSeen;

    #[test]
    fn a_gang_keeps_its_turn_until_a_pod_has_a_place_or_a_minute_has_gone() {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let gang = Some("workloads.v1alpha1.scheduling.k8s.io/mc-0123".to_owned());
        let job = JobSeen { uid: "job".into(), gang, completions: 2, start_time: Some(start), ..JobSeen::default() };
        let pod = |scheduled| PodSeen { job_uid: Some("job".into()), scheduled, ..PodSeen::default() };
        let with = |job: &JobSeen, scheduled: &[bool]| Observed {
            job: Some(job.clone()),
            pods: scheduled.iter().enumerate().map(|(uid, it)| (uid.to_string(), pod(*it))).collect(),
            ..Observed::default()
        };
        let after = |seconds| start + SignedDuration::from_secs(seconds);
        assert!(!has_turn(&Observed::default(), start));
        assert!(has_turn(&with(&job, &[]), start) && has_turn(&with(&job, &[false, false]), after(59)));
        assert!(
            has_turn(&with(&JobSeen { start_time: None, ..job.clone() }, &[]), after(999)),
            "its controller is slow"
        );
        assert!(!has_turn(&with(&job, &[false, false]), after(60)), "there may be no room for it");
        assert!(!has_turn(&with(&job, &[true, false]), after(1)), "the others of it have a place, too");
        let verdict = Some(Verdict { reason: String::new(), message: String::new(), since: None });
        for other in [
            JobSeen { suspended: true, ..job.clone() },
            JobSeen { deleting: true, ..job.clone() },
            JobSeen { complete: verdict.clone(), ..job.clone() },
            JobSeen { failing: verdict, ..job.clone() },
            JobSeen { has_ended_pods: true, ..job.clone() },
            JobSeen { completions: 1, ..job.clone() },
            JobSeen { gang: None, ..job.clone() },
            JobSeen { gang: Some("podgroups.v1beta1.scheduling.k8s.io/mc".into()), ..job },
        ] {
            assert!(!has_turn(&with(&other, &[]), start), "{other:?}");
        }
    }
}
