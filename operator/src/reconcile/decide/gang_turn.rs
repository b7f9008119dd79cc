//! Kubernetes 1.35 places a gang pod by pod, and holds each until the others have a place: of two that are created together each may
//! hold half of the nodes, and neither starts. So such gangs are created one after the other.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::observe::{Key, Observed};
use crate::reconcile::render::gang::{GangApi, GangObject, GangRef};

/// How long a gang that is not scheduled keeps others from being created: there may be room for them, though not for it.
const TURN: SignedDuration = SignedDuration::from_secs(60);
/// A MiniCluster that has not asked for so long has left: it is gone or waits for something else. Each asks about once a second.
const ASKS: Duration = Duration::from_secs(5);

/// Whether gangs of this API are created one after the other.
pub fn takes_turns(gang: &GangObject) -> bool {
    gang.at.api == GangApi::WorkloadV1alpha1
}

/// Whether these are the objects of a gang that is being scheduled: none of its pods has a node yet, and it has not waited
/// for too long.
pub fn has_turn(observed: &Observed, now: Timestamp) -> bool {
    let Some(job) = &observed.job else { return false };
    // By the API server's clock: a Job that nobody starts must not keep all others waiting.
    let since = job.start_time.or(job.created);
    let waits = !job.suspended && !job.deleting && !job.is_finished() && job.failing.is_none() && job.completions > 1;
    waits
        && since.is_some_and(|since| now.duration_since(since) < TURN)
        && job.gang.as_deref().and_then(GangRef::read).is_some_and(|gang| gang.api == GangApi::WorkloadV1alpha1)
        && !observed.has_begun(job)
        && !observed.pods_of(job).any(|pod| pod.scheduled)
}

/// MiniClusters that wait to create a gang: since when, and when each asked last.
#[derive(Debug, Default)]
pub struct Waiting(HashMap<Key, (Instant, Instant)>);

impl Waiting {
    /// Notes that `key` asks, and returns whether it is its turn: the one that has waited longest comes first.
    pub fn ask_for_turn(&mut self, key: &Key, now: Instant) -> bool {
        self.0.retain(|_, (_, asked)| now.saturating_duration_since(*asked) < ASKS);
        self.0.entry(key.clone()).or_insert((now, now)).1 = now;
        self.0.iter().min_by_key(|(key, (since, _))| (*since, *key)).is_some_and(|(first, _)| first == key)
    }

    pub fn leave(&mut self, key: &Key) {
        self.0.remove(key);
    }
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
        let unstarted = JobSeen { start_time: None, created: Some(start), ..job.clone() };
        assert!(has_turn(&with(&unstarted, &[]), after(59)), "its controller is slow");
        assert!(!has_turn(&with(&unstarted, &[]), after(60)), "somebody may have made one that no controller starts");
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
    #[test]
    fn whoever_has_waited_longest_comes_first_unless_it_asks_no_more() {
        let mut waiting = Waiting::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let (one, two) = (Key::new("a", "one"), Key::new("b", "two"));
        assert!(waiting.ask_for_turn(&one, at(0)) && !waiting.ask_for_turn(&two, at(1)));
        assert!(!waiting.ask_for_turn(&two, at(4)) && waiting.ask_for_turn(&one, at(4)), "whoever asks first");
        assert!(!waiting.ask_for_turn(&two, at(8)));
        assert!(waiting.ask_for_turn(&two, at(9)), "one has not asked for five seconds");
        assert!(!waiting.ask_for_turn(&one, at(9)), "and begins anew");
        waiting.leave(&two);
        assert!(waiting.ask_for_turn(&one, at(10)));
    }
}
