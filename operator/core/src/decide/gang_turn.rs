//! Kubernetes 1.35 places a gang pod by pod, and holds each until the others have a place: of two that are created
//! together each may hold half of the nodes, and neither starts. So such gangs are created one after the other.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::observe::{Key, Observed};
use crate::render::gang::{GangApi, GangObject, GangRef};
use crate::target::Target;

/// How long a gang that is not scheduled keeps others from being created: there may be room for them, though not for it.
const TURN: SignedDuration = SignedDuration::from_secs(60);
/// A MiniCluster that has not asked for so long has left. Each asks about once a second, or every ten seconds if
/// hundreds wait.
const ASKS: Duration = Duration::from_secs(30);
/// How long the last turn of a namespace counts: longer than many others' turns take.
const REMEMBERED: Duration = Duration::from_secs(3600);

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

/// MiniClusters that wait to create a gang.
#[derive(Debug, Default)]
pub struct Waiting {
    waiters: HashMap<Key, Waiter>,
    /// When a namespace last had a turn.
    last_turns: HashMap<String, Instant>,
    /// Who had the last turn, and when.
    last: Option<(Key, Instant)>,
    /// When somebody first asked. Whoever had a turn before that is not known here: another operator gave it.
    began: Option<Instant>,
}

#[derive(Debug)]
struct Waiter {
    uid: String,
    generation: Option<i64>,
    since: Instant,
    last_asked: Instant,
}

impl Waiting {
    /// Whether this generation of the MiniCluster waits. Its overlays were tried before it began to.
    pub fn has(&self, target: &Target, now: Instant) -> bool {
        self.waiters.get(&target.key).is_some_and(|waiter| waiter.waits(now) && waiter.is(target))
    }

    /// Notes that it asks, and returns whether it is its turn. The namespace whose last turn is longest ago comes
    /// first, so that nobody's many gangs keep others waiting; of its gangs, the one that has waited longest.
    pub fn ask_for_turn(&mut self, target: &Target, now: Instant) -> bool {
        self.waiters.retain(|_, waiter| waiter.waits(now));
        self.last_turns.retain(|_, turn| now.saturating_duration_since(*turn) < REMEMBERED);
        self.began.get_or_insert(now);
        let new = || Waiter { uid: String::new(), generation: None, since: now, last_asked: now };
        let waiter = self.waiters.entry(target.key.clone()).or_insert_with(new);
        (waiter.uid, waiter.generation, waiter.last_asked) = (target.uid.clone(), target.generation, now);
        let first = self.waiters.iter().min_by_key(|(key, waiter)| {
            // (None, a namespace that has had none, is less than any.)
            (self.last_turns.get(&key.namespace), waiter.since, *key)
        });
        first.is_some_and(|(first, _)| *first == target.key)
    }

    /// Notes that it creates its gang.
    pub fn took_turn(&mut self, key: &Key, now: Instant) {
        self.waiters.remove(key);
        self.last_turns.insert(key.namespace.clone(), now);
        self.last = Some((key.clone(), now));
    }

    /// Whether a gang that is being scheduled keeps others waiting: only in its turn, which ends by our own clock as
    /// well. Else Jobs that somebody creates, or suspends and resumes, would hold up all gangs for ever.
    pub fn holds_up(&self, key: &Key, now: Instant) -> bool {
        let is_in_time = |since: Instant| now.saturating_duration_since(since) < TURN.unsigned_abs();
        self.began.is_some_and(is_in_time)
            || self.last.as_ref().is_some_and(|(last, since)| last == key && is_in_time(*since))
    }

    /// It waits no more.
    pub fn leave(&mut self, key: &Key) {
        self.waiters.remove(key);
    }

    pub fn count(&self) -> usize {
        self.waiters.len()
    }
}

impl Waiter {
    fn waits(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last_asked) < ASKS
    }

    fn is(&self, target: &Target) -> bool {
        self.uid == target.uid && self.generation == target.generation
    }
}

#[cfg(test)]
mod tests {
    use flux_shared::crd::v1alpha2::MiniClusterStatus;

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

    fn target(namespace: &str, name: &str) -> Target {
        let uid = format!("{namespace}-{name}");
        Target { key: Key::new(namespace, name), ..crate::testing::target(&uid, &MiniClusterStatus::default()) }
    }

    #[test]
    fn whoever_has_waited_longest_comes_first_unless_it_asks_no_more() {
        let mut waiting = Waiting::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let (one, two) = (target("a", "one"), target("a", "two"));
        assert!(waiting.ask_for_turn(&one, at(0)) && !waiting.ask_for_turn(&two, at(1)));
        assert!(!waiting.ask_for_turn(&two, at(20)) && waiting.ask_for_turn(&one, at(20)), "whoever asks first");
        assert!(!waiting.ask_for_turn(&two, at(49)));
        assert!(waiting.ask_for_turn(&two, at(50)), "one has not asked for 30 seconds");
        assert!(!waiting.ask_for_turn(&one, at(50)), "and begins anew");
        waiting.leave(&two.key);
        assert!(waiting.ask_for_turn(&one, at(51)), "two is gone");
    }

    #[test]
    fn a_gang_holds_up_others_in_its_turn_alone() {
        let mut waiting = Waiting::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let (one, other) = (target("a", "one"), target("b", "other"));
        waiting.ask_for_turn(&one, at(0));
        assert!(waiting.holds_up(&other.key, at(59)), "the operator before this one may have given it a turn");
        assert!(!waiting.holds_up(&other.key, at(60)));
        waiting.took_turn(&one.key, at(100));
        assert!(waiting.holds_up(&one.key, at(159)) && !waiting.holds_up(&other.key, at(101)), "nobody gave it a turn");
        assert!(!waiting.holds_up(&one.key, at(160)), "however often its Job is resumed");
    }

    #[test]
    fn many_gangs_of_one_namespace_keep_no_other_waiting() {
        let mut waiting = Waiting::default();
        let start = Instant::now();
        let many: Vec<Target> = (0..100).map(|number| target("greedy", &format!("mc-{number:03}"))).collect();
        let all_ask = |waiting: &mut Waiting, now| -> Vec<usize> {
            (0..many.len()).filter(|number| waiting.ask_for_turn(&many[*number], now)).collect()
        };
        assert_eq!(all_ask(&mut waiting, start), [0]);
        waiting.took_turn(&many[0].key, start);
        let modest = target("modest", "mc");
        let now = start + Duration::from_secs(1);
        all_ask(&mut waiting, now);
        assert!(waiting.ask_for_turn(&modest, now), "it came last, and its namespace has had no turn");
        waiting.took_turn(&modest.key, now);
        let later = start + Duration::from_secs(3);
        assert_eq!(all_ask(&mut waiting, later), [1], "of these the one that has waited longest");
        assert!(!waiting.ask_for_turn(&target("modest", "again"), later), "each in its turn");
    }

    #[test]
    fn what_was_looked_at_before_it_waits_is_known_by_uid_and_generation() {
        let mut waiting = Waiting::default();
        let start = Instant::now();
        let one = Target { generation: Some(1), ..target("a", "one") };
        assert!(!waiting.has(&one, start));
        waiting.ask_for_turn(&one, start);
        assert!(waiting.has(&one, start + Duration::from_secs(29)));
        assert!(!waiting.has(&Target { generation: Some(2), ..one.clone() }, start), "its spec was edited");
        assert!(!waiting.has(&Target { uid: "other".into(), ..one.clone() }, start), "it was made anew");
        assert!(!waiting.has(&one, start + Duration::from_secs(30)), "it has not asked for long");
    }
}
