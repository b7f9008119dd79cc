//! Whether a MiniCluster waits for something that no status names, and when to look into its events. Pure.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use flux_shared::names;
use flux_shared::validate::ValidMiniCluster;

use crate::observe::Observed;
use crate::observe::job::JobSeen;
use crate::observe::pod::Trouble;

/// Time that a start may take without a word.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest time between two looks.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// The uid of what waits: the Job, whose pods are not made, or the first pod that does not start.
pub fn stuck<'a>(job: Option<&'a JobSeen>, observed: &'a Observed) -> Option<&'a str> {
    let job = job.filter(|job| !job.is_finished() && !job.suspended && !job.deleting)?;
    let pods = || observed.pods.iter().filter(|(_, pod)| pod.job_uid.as_deref() == Some(job.uid.as_str()));
    let there: HashSet<u32> =
        pods().filter(|(_, pod)| !pod.ended || pod.has_succeeded()).map(|(_, pod)| pod.index).collect();
    if !(0..job.completions).all(|index| there.contains(&index)) {
        return Some(&job.uid);
    }
    let waits = |pod: &crate::observe::pod::PodSeen| {
        pod.scheduled && !pod.ended && !pod.running && !pod.deleting && pod.exit.is_none() && pod.trouble.is_none()
    };
    let first = pods().filter(|(_, pod)| waits(pod)).min_by_key(|(_, pod)| pod.index);
    first.map(|(uid, _)| uid.as_str())
}

/// A part of ours that a pod misses.
#[derive(Debug, PartialEq)]
pub enum Missing {
    /// It can be made again as it was.
    ConfigMap,
    /// A Secret, which was made once: what is to be said about it.
    Key(Trouble),
}

/// Whether a warning is about a part of ours that somebody has deleted.
pub fn missing(cluster: &ValidMiniCluster, warning: &Trouble) -> Option<Missing> {
    let lacks = |kind: &str, name: &str| warning.message.contains(&format!("{kind} \"{name}\" not found"));
    if lacks("configmap", &names::config_map(&cluster.name)) {
        return Some(Missing::ConfigMap);
    }
    let name = &cluster.name;
    let secrets = [names::curve_secret(name), names::users_secret(name), names::restful_secret(name)];
    let lost = secrets.into_iter().find(|secret| lacks("secret", secret))?;
    Some(Missing::Key(Trouble {
        reason: "SecretDeleted".into(),
        message: format!(
            "Secret {lost} was deleted, and what it held is lost: new pods cannot start; delete the MiniCluster and apply it again"
        ),
        ..warning.clone()
    }))
}

/// When one waiting object is looked at, and what was found.
#[derive(Debug, Clone)]
pub struct Look {
    object: String,
    begin: Instant,
    next: Instant,
    pub found: Option<Trouble>,
}

impl Look {
    /// `at_once`: it has waited before.
    pub fn new(object: &str, at_once: bool, now: Instant) -> Look {
        let next = if at_once { now } else { now + PATIENCE };
        Look { object: object.to_owned(), begin: now, next, found: None }
    }

    pub fn is_about(&self, object: &str) -> bool {
        self.object == object
    }

    /// Whether it is time to look. The next time is ever later.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.next;
        if is_due {
            self.next = now + ((now - self.begin) / 2).clamp(PATIENCE, LONGEST_PAUSE);
        }
        is_due
    }

    /// Time until the next look.
    pub fn wait(&self, now: Instant) -> Duration {
        self.next.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::pod::PodSeen;

    fn pod(index: u32, change: impl Fn(&mut PodSeen)) -> (String, PodSeen) {
        let mut pod =
            PodSeen { index, job_uid: Some("job".into()), scheduled: true, running: true, ..PodSeen::default() };
        change(&mut pod);
        (format!("pod-{index}"), pod)
    }

    fn who(pods: impl IntoIterator<Item = (String, PodSeen)>) -> Option<String> {
        let job = JobSeen { uid: "job".into(), completions: 2, ..JobSeen::default() };
        let observed = Observed { pods: pods.into_iter().collect(), ..Observed::default() };
        stuck(Some(&job), &observed).map(str::to_owned)
    }

    #[test]
    fn who_waits_without_a_word_is_found() {
        assert_eq!(who([pod(0, |_| {})]).as_deref(), Some("job"), "a pod is missing");
        assert_eq!(who([pod(0, |_| {}), pod(1, |_| {})]), None);
        assert_eq!(who([pod(0, |_| {}), pod(1, |it| it.running = false)]).as_deref(), Some("pod-1"));
        let unscheduled = pod(1, |it| (it.running, it.scheduled) = (false, false));
        assert_eq!(who([pod(0, |_| {}), unscheduled]), None, "the scheduler says why by itself");
        let done = pod(1, |it| {
            (it.running, it.ended) = (false, true);
            it.exit = Some(crate::observe::pod::Exit {
                code: 0,
                signal: None,
                reason: String::new(),
                message: String::new(),
                at: None,
            });
        });
        assert_eq!(who([pod(0, |_| {}), done]), None, "a worker that has completed is not made again");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any instant will do")]
    fn looks_are_ever_rarer() {
        let mut now = Instant::now();
        let begin = now;
        let mut look = Look::new("a", false, now);
        assert!(!look.is_due(now));
        let mut looks = 0;
        while now - begin < Duration::from_secs(3600) {
            now += look.wait(now);
            assert!(look.is_due(now));
            looks += 1;
        }
        assert!((10..30).contains(&looks), "{looks} in an hour");
    }
}
