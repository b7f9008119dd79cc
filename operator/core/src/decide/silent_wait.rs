//! Decides whether a MiniCluster waits for a cause that no status shows, and when to read its events. Pure.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use flux_shared::crd::v1alpha2::MiniClusterStatus;
use flux_shared::names;
use flux_shared::validate::ValidMiniCluster;

use crate::observe::Observed;
use crate::observe::job::JobSeen;
use crate::observe::pod::{DEFAULT_SCHEDULER, PodSeen, Trouble};
use crate::vocabulary::Reason;

/// Usual time from the begin of a wait until its events are first read (a check), and shortest pause after a check.
const FIRST_CHECK_AFTER: Duration = Duration::from_secs(10);
/// Longest pause between two checks of an object's events. ([`Turns`] may put a check off further.)
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// Longest time until the next check after a missing object could not be created.
const PAUSE_AFTER_REFUSAL: Duration = Duration::from_secs(30);

/// The message of the kubelet's event about a failing startup probe begins so.
pub const STARTUP_PROBE: &str = "Startup probe ";

/// An object that waits although no status says why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SilentWait<'a> {
    /// Uid of the Job if pods are missing, or of the first pod that does not start.
    Starts(&'a str),
    /// Uid of a Job that waits in a queue: the queue has not admitted it, has stopped it, or has not admitted all of
    /// its pods.
    InQueue(&'a str),
    /// The first pod on which no scheduler has reported.
    Unnoticed {
        index: u32,
        uid: &'a str,
        scheduler: &'a str,
        /// The Job's pods are a gang.
        is_gang: bool,
    },
    /// The first pod that its node never starts.
    NeverStarts { name: &'a str, uid: &'a str },
    /// Index and uid of the first one or two pods whose brokers are not ready, the lead first.
    Joins((u32, &'a str), Option<(u32, &'a str)>),
}

impl SilentWait<'_> {
    /// A key that identifies the wait: if it changes, another wait has begun.
    pub fn object(&self) -> String {
        match self {
            SilentWait::Starts(uid) => (*uid).to_owned(),
            SilentWait::Joins((_, uid), _) => format!("join of {uid}"),
            SilentWait::Unnoticed { uid, .. } => format!("scheduler of {uid}"),
            SilentWait::InQueue(uid) => format!("queue of {uid}"),
            SilentWait::NeverStarts { uid, .. } => format!("start of {uid}"),
        }
    }

    /// Whether this wait was reported before, by the reason in the status. An operator that has just started then reads
    /// the events at once. For a pod that no scheduler has reported on, only the reason SchedulerSilent counts: with
    /// another one, such as Queued, the pod may be new. A pod that never starts is not deleted at once: its state may
    /// be out of date.
    pub fn was_reported(&self, status_reason: Option<&str>) -> bool {
        match self {
            SilentWait::Unnoticed { .. } => {
                status_reason.and_then(Reason::parse) == Some(Reason::SchedulerSilent)
            }
            SilentWait::NeverStarts { .. } => false,
            _ => status_reason.is_some(),
        }
    }

    /// The trouble that the status shows, if it can only come from events of this object that were read before.
    /// `job`: the Job's uid.
    pub fn trouble_of_earlier_events(&self, status: &MiniClusterStatus, job: &str) -> Option<Trouble> {
        let reason = status.reason.as_deref()?;
        let known = Reason::parse(reason);
        let is_of_events = match self {
            SilentWait::Starts(uid) if *uid == job => known == Some(Reason::FailedCreate),
            // FailedCreate is a reason of a Job's events, and this object is a pod.
            SilentWait::Starts(_) if known == Some(Reason::FailedCreate) => false,
            // A reason of a pod's events, such as FailedMount, or the one that replaces it (`missing`).
            SilentWait::Starts(_) => {
                let message = status.message.as_deref().unwrap_or_default();
                self.is_explained_by(reason, message) || known == Some(Reason::SecretDeleted)
            }
            SilentWait::InQueue(_) => known == Some(Reason::Queued),
            SilentWait::Unnoticed { .. } => known == Some(Reason::SchedulerSilent),
            SilentWait::Joins(..) => known == Some(Reason::BrokersNotReady),
            // The pod's own state says it.
            SilentWait::NeverStarts { .. } => false,
        };
        let earlier_trouble = || Trouble {
            reason: reason.to_owned(),
            message: status.message.clone().unwrap_or_default(),
            ..Trouble::default()
        };
        is_of_events.then(earlier_trouble)
    }

    /// Whether a warning event with this reason and message says why the object waits. Policies and other programs write
    /// warnings, too, which do not delay it.
    pub fn is_explained_by(&self, event_reason: &str, message: &str) -> bool {
        let has_failed = event_reason.starts_with("Failed");
        match self {
            // The pod has a node, so an earlier failure to schedule is over. A missing pull Secret does not stop the
            // pull: if the image needs it, the pod's own state says so.
            SilentWait::Starts(_) => {
                let is_other = matches!(
                    event_reason,
                    "FailedScheduling" | "FailedToRetrieveImagePullSecret"
                );
                // An init container that goes on, such as a mesh's proxy, holds back the others until its startup probe
                // succeeds.
                let is_of_startup_probe = event_reason == "Unhealthy" && message.contains(STARTUP_PROBE);
                (has_failed && !is_other) || event_reason == "NetworkNotReady" || is_of_startup_probe
            }
            // Some schedulers write `Unschedulable`.
            SilentWait::Unnoticed { .. } => has_failed || event_reason == Reason::Unschedulable.name(),
            // The pod's own state, Kueue's Workload or a startup probe says why.
            SilentWait::InQueue(_) | SilentWait::NeverStarts { .. } | SilentWait::Joins(..) => false,
        }
    }

    /// How long the wait may last before its events are first read. While no node is known that takes pods, silence of
    /// the default scheduler does not mean that it is missing: it may itself wait for a node.
    pub fn first_check_after(&self, has_nodes: bool) -> Duration {
        match self {
            SilentWait::Unnoticed {
                scheduler: DEFAULT_SCHEDULER,
                ..
            } if !has_nodes => LONGEST_PAUSE,
            _ => FIRST_CHECK_AFTER,
        }
    }
}

/// What the MiniCluster waits for. None: it does not wait, or a status shows why it waits.
pub fn find<'a>(job: Option<&'a JobSeen>, observed: &'a Observed) -> Option<SilentWait<'a>> {
    let job = job?;
    if job.waits_in().is_some() {
        return Some(SilentWait::InQueue(&job.uid));
    }
    if job.is_finished() || job.is_suspended || job.is_deleting {
        return None;
    }
    let pods = || {
        observed
            .pods
            .iter()
            .filter(|(_, pod)| pod.job_uid.as_deref() == Some(job.uid.as_str()))
    };
    // This comes first: the operator can delete such a pod, even while other pods are missing.
    let never_started = pods().filter(|(_, pod)| pod.never_starts());
    if let Some((uid, pod)) = never_started.min_by_key(|(_, pod)| pod.index) {
        return Some(SilentWait::NeverStarts { name: &pod.name, uid });
    }
    // The Job creates no other pod for an index whose pod has ended with 0, so such a pod is not missing.
    let present: HashSet<u32> = pods()
        .filter(|(_, pod)| !pod.has_ended || pod.ended_with_code_zero())
        .map(|(_, pod)| pod.index)
        .collect();
    if !(0..job.completions).all(|index| present.contains(&index)) {
        return Some(SilentWait::Starts(&job.uid));
    }
    let unscheduled = || pods().filter(|(_, pod)| !pod.is_scheduled && !pod.has_ended && !pod.is_deleting);
    if job.queue.is_some() && unscheduled().any(|(_, pod)| pod.is_held_by_queue) {
        return Some(SilentWait::InQueue(&job.uid));
    }
    // Placed on a node, and nothing is known to be wrong.
    let is_silent = |pod: &PodSeen| {
        pod.is_scheduled
            && !pod.has_ended
            && !pod.is_deleting
            && !pod.is_on_silent_node
            && pod.exit.is_none()
            && pod.trouble.is_none()
    };
    // A pod with a node comes before one without: its node may have reported what is wrong.
    let first = pods()
        .filter(|(_, pod)| is_silent(pod) && !pod.is_running)
        .min_by_key(|(_, pod)| pod.index);
    if let Some((uid, _)) = first {
        return Some(SilentWait::Starts(uid));
    }
    if let Some((uid, pod)) = unscheduled()
        .filter(|(_, pod)| pod.is_unnoticed)
        .min_by_key(|(_, pod)| pod.index)
    {
        let scheduler = pod.scheduler.as_deref().unwrap_or(DEFAULT_SCHEDULER);
        return Some(SilentWait::Unnoticed {
            index: pod.index,
            uid,
            scheduler,
            is_gang: job.gang.is_some(),
        });
    }
    // This comes last: a broker cannot join before its parent's pod runs.
    let joining = || {
        pods()
            .filter(|(_, pod)| is_silent(pod) && !pod.has_joined)
            .map(|(uid, pod)| (pod.index, uid.as_str()))
    };
    let first = joining().min()?;
    Some(SilentWait::Joins(
        first,
        joining().filter(|other| *other != first).min(),
    ))
}

/// The trouble of a pod on which no scheduler has reported, and which has no other warning.
pub fn unnoticed(index: u32, scheduler: &str, is_gang: bool) -> Trouble {
    const OTHER_CAUSES: &str = "it may be busy, or wait for a volume of the pod";
    let check = match (is_gang, scheduler) {
        // While a gang lacks room, its scheduler may report nothing on the pods for which there is room.
        (true, _) => {
            "it may hold the pods until there is room for the whole gang; else check that it runs".to_owned()
        }
        (false, DEFAULT_SCHEDULER) => format!("check that it runs; {OTHER_CAUSES}"),
        (false, _) => {
            format!(
                "check the name (spec.pod.schedulerName or spec.podTemplate), and that it runs; {OTHER_CAUSES}"
            )
        }
    };
    let message = format!("scheduler {scheduler} has not reported on pod {index} yet: {check}");
    Trouble {
        reason: Reason::SchedulerSilent.into(),
        message,
        ..Trouble::default()
    }
}

/// Combines the startup probes' messages of one or two pods, by index, into one trouble. None: there are none.
pub fn not_ready(found: &[(u32, Trouble)]) -> Option<Trouble> {
    let line = |(index, trouble): &(u32, Trouble)| {
        // The kubelet puts the first of these before what the probe prints, the agent's probe the second.
        let text = trouble
            .message
            .trim_start_matches("Startup probe failed: ")
            .trim_start_matches("not ready: ");
        format!("pod {index}: {text}")
    };
    let message = found.iter().map(line).collect::<Vec<_>>().join("; ");
    (!found.is_empty()).then(|| Trouble {
        reason: Reason::BrokersNotReady.into(),
        message,
        ..Trouble::default()
    })
}

/// An object of the operator that a pod needs and that was deleted.
#[derive(Debug, PartialEq)]
pub enum Missing {
    /// It can be created again as it was.
    ConfigMap,
    /// A Secret, whose content is lost. The trouble is to be reported.
    Secret(Box<Trouble>),
}

/// The deleted object of the operator that `warning` is about, if any. `uid`: the MiniCluster's.
pub fn missing(cluster: &ValidMiniCluster, uid: &str, warning: &Trouble) -> Option<Missing> {
    // The kubelet writes this if it cannot mount a volume.
    let is_missing =
        |kind: &str, name: &str| warning.message.contains(&format!("{kind} \"{name}\" not found"));
    if is_missing("configmap", &names::config_map(&cluster.name)) {
        return Some(Missing::ConfigMap);
    }
    let (name, uid) = (&cluster.name, Some(uid));
    let secrets = [
        names::curve_secret(name, uid),
        names::users_secret(name, uid),
        names::restful_secret(name, uid),
    ];
    let lost = secrets.into_iter().find(|secret| is_missing("secret", secret))?;
    Some(Missing::Secret(Box::new(Trouble {
        reason: Reason::SecretDeleted.into(),
        message: format!(
            "Secret {lost} was deleted, and what it held is lost: new pods cannot start; delete the MiniCluster and apply it again"
        ),
        ..warning.clone()
    })))
}

/// What the events of a waiting object say.
#[derive(Debug, Clone, PartialEq)]
pub enum Finding {
    /// This operator has not read them yet.
    Unread,
    /// No warning is known about this wait.
    Nothing,
    /// The last warning, or why a missing object could not be created.
    Warning(Box<Trouble>),
}

/// When the events of a waiting object are read next, and what was found last.
#[derive(Debug, Clone)]
pub struct EventCheck {
    /// The key of the wait ([`SilentWait::object`]).
    object: String,
    begin: Instant,
    next: Instant,
    /// What is reserved for the check at `next`.
    pub turn: Turn,
    pub found: Finding,
}

impl EventCheck {
    pub fn new(object: &str, first_check_after: Duration, now: Instant) -> EventCheck {
        EventCheck {
            object: object.to_owned(),
            begin: now,
            next: now + first_check_after,
            turn: Turn::None,
            found: Finding::Unread,
        }
    }

    pub fn is_about(&self, object: &str) -> bool {
        self.object == object
    }

    pub fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    /// Puts the check off until `next`, since other checks go first. `turn`: what is reserved for it.
    pub fn defer_until(&mut self, next: Instant, turn: Turn) {
        (self.next, self.turn) = (next, turn);
    }

    /// Schedules the next check. The pause is half of the time waited so far, within bounds.
    pub fn schedule_next(&mut self, now: Instant) {
        self.next = now + ((now - self.begin) / 2).clamp(FIRST_CHECK_AFTER, LONGEST_PAUSE);
        self.turn = Turn::None;
    }

    /// Notes why a missing object could not be created. The next check comes soon and tries again.
    pub fn note_refusal(&mut self, why: Trouble, now: Instant) {
        self.found = Finding::Warning(Box::new(why));
        self.next = self.next.min(now + PAUSE_AFTER_REFUSAL);
    }

    /// Time until the next check.
    pub fn time_left(&self, now: Instant) -> Duration {
        self.next.saturating_duration_since(now)
    }
}

/// Time between two checks in one namespace.
const NAMESPACE_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two checks in any namespaces.
const TOTAL_INTERVAL: Duration = Duration::from_millis(100);

/// What is reserved for a deferred check. It needs a time within the limit of its namespace, and then one within the
/// limit for all namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn {
    /// Nothing.
    None,
    /// A time within the limit of its namespace.
    OfNamespace,
    /// A time within both limits: the check may run.
    OfAll,
}

/// Limits the rate of checks, so that a thousand waiting MiniClusters of one tenant neither flood the API server nor
/// delay other tenants. A deferred check gets a reserved time, so it rarely has to ask again.
#[derive(Debug, Default)]
pub struct Turns {
    /// The next free time of each namespace, unless it is past.
    of_namespace: HashMap<String, Instant>,
    /// The next free time within the limit for all namespaces. None: nothing was reserved so far.
    of_all: Option<Instant>,
}

impl Turns {
    /// Reserves a time for a check in this namespace. `turn`: what is reserved for it already. None: check now.
    /// Otherwise the time at which to ask again, and what is reserved at that time. Nothing is reserved for later than
    /// [`LONGEST_PAUSE`], since many reserved times are never used: the object starts, or is deleted.
    pub fn take_or_defer(&mut self, namespace: &str, turn: Turn, now: Instant) -> Option<(Instant, Turn)> {
        if turn == Turn::None {
            self.of_namespace.retain(|_, next| *next > now);
            let next = self.of_namespace.get(namespace).copied().unwrap_or(now);
            if next > now + LONGEST_PAUSE {
                return Some((now + LONGEST_PAUSE, Turn::None));
            }
            self.of_namespace
                .insert(namespace.to_owned(), next + NAMESPACE_INTERVAL);
            if next > now {
                return Some((next, Turn::OfNamespace));
            }
        }
        if turn == Turn::OfAll {
            return None;
        }
        let next = self.of_all.unwrap_or(now).max(now);
        if next > now + LONGEST_PAUSE {
            // The time within the limit of the namespace was taken above, or by an earlier call.
            return Some((now + LONGEST_PAUSE, turn.max(Turn::OfNamespace)));
        }
        self.of_all = Some(next + TOTAL_INTERVAL);
        (next > now).then_some((next, Turn::OfAll))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::pod::PodSeen;

    fn pod(index: u32, change: impl Fn(&mut PodSeen)) -> (String, PodSeen) {
        let mut pod = PodSeen {
            index,
            job_uid: Some("job".into()),
            is_scheduled: true,
            is_running: true,
            has_joined: true,
            ..PodSeen::default()
        };
        change(&mut pod);
        (format!("pod-{index}"), pod)
    }

    /// Describes the wait that is found for a Job of two pods.
    fn found(pods: impl IntoIterator<Item = (String, PodSeen)>) -> Option<String> {
        let job = JobSeen {
            uid: "job".into(),
            completions: 2,
            ..JobSeen::default()
        };
        let observed = Observed {
            pods: pods.into_iter().map(|(uid, pod)| (uid, Box::new(pod))).collect(),
            ..Observed::default()
        };
        let describe = |silent_wait| match silent_wait {
            SilentWait::Starts(uid) => uid.to_owned(),
            SilentWait::InQueue(_) => silent_wait.object(),
            SilentWait::NeverStarts { name, .. } => format!("{name} never starts"),
            SilentWait::Unnoticed { index, scheduler, .. } => format!("{scheduler} has not seen {index}"),
            SilentWait::Joins((_, first), second) => {
                format!("{first} joins {:?}", second.map(|(index, _)| index))
            }
        };
        find(Some(&job), &observed).map(describe)
    }

    #[test]
    fn silently_waiting_pod_or_job_is_found() {
        assert_eq!(
            found([pod(0, |_| {})]).as_deref(),
            Some("job"),
            "a pod is missing"
        );
        assert_eq!(found([pod(0, |_| {}), pod(1, |_| {})]), None);
        assert_eq!(
            found([pod(0, |_| {}), pod(1, |pod| pod.is_running = false)]).as_deref(),
            Some("pod-1")
        );
        let unscheduled = pod(1, |pod| {
            (pod.is_running, pod.is_scheduled, pod.has_joined) = (false, false, false)
        });
        assert_eq!(
            found([pod(0, |_| {}), unscheduled]),
            None,
            "the pod's own status says why"
        );
        let done = pod(1, |pod| {
            (pod.is_running, pod.has_ended) = (false, true);
            pod.exit = Some(Box::default());
        });
        assert_eq!(
            found([pod(0, |_| {}), done]),
            None,
            "the Job does not recreate a follower that ended with 0"
        );
        let never_starts = pod(1, |pod| {
            pod.is_running = false;
            pod.name = "mc-1".into();
            pod.trouble = Some(Box::new(Trouble {
                reason: Reason::NodeRestarted.into(),
                ..Trouble::default()
            }));
        });
        assert_eq!(
            found([never_starts]).as_deref(),
            Some("mc-1 never starts"),
            "the operator can replace this pod, although another is missing"
        );
        let waits = |index| pod(index, |pod| pod.has_joined = false);
        assert_eq!(
            found([pod(0, |_| {}), waits(1)]).as_deref(),
            Some("pod-1 joins None")
        );
        assert_eq!(
            found([waits(0), waits(1)]).as_deref(),
            Some("pod-0 joins Some(1)")
        );
        assert_eq!(
            found([waits(0), pod(1, |pod| pod.is_running = false)]).as_deref(),
            Some("pod-1"),
            "it cannot join yet"
        );
    }

    #[test]
    fn queued_job_is_looked_up_and_a_user_suspended_one_is_not() {
        let suspended = JobSeen {
            uid: "job".into(),
            is_suspended: true,
            ..JobSeen::default()
        };
        assert_eq!(find(Some(&suspended), &Observed::default()), None);
        let queued = JobSeen {
            queue: Some("team".into()),
            ..suspended
        };
        assert_eq!(
            find(Some(&queued), &Observed::default()),
            Some(SilentWait::InQueue("job"))
        );
        assert_ne!(
            SilentWait::InQueue("job").object(),
            SilentWait::Starts("job").object(),
            "the start of its pods is another wait"
        );
        assert_eq!(
            find(
                Some(&JobSeen {
                    is_deleting: true,
                    ..queued
                }),
                &Observed::default()
            ),
            None
        );
    }

    /// Any other trouble is in the pod's own status, and is over when it is no longer there.
    #[test]
    fn only_trouble_of_events_outlives_a_restart_of_the_operator() {
        let unseen = SilentWait::Unnoticed {
            index: 0,
            uid: "pod",
            scheduler: "nobody",
            is_gang: false,
        };
        for (wait, reason, is_kept) in [
            (SilentWait::Starts("pod"), "FailedMount", true),
            (SilentWait::Starts("pod"), "FailedCreate", false),
            (SilentWait::Starts("job"), "FailedCreate", true),
            (SilentWait::Starts("pod"), "ApiError", false),
            (SilentWait::Starts("pod"), "Unschedulable", false),
            (SilentWait::Starts("pod"), "FailedScheduling", false),
            (SilentWait::Starts("pod"), "Unhealthy", true),
            (SilentWait::InQueue("job"), "Queued", true),
            (SilentWait::InQueue("job"), "FailedMount", false),
            (unseen, "SchedulerSilent", true),
            (unseen, "Queued", false),
            (SilentWait::Joins((0, "pod"), None), "BrokersNotReady", true),
            (SilentWait::Joins((0, "pod"), None), "SchedulerSilent", false),
        ] {
            let status = MiniClusterStatus {
                reason: Some(reason.into()),
                message: Some("Startup probe failed".into()),
                ..MiniClusterStatus::default()
            };
            let trouble = wait.trouble_of_earlier_events(&status, "job");
            assert_eq!(trouble.is_some(), is_kept, "{wait:?} {reason}");
        }
        assert_eq!(
            unseen.trouble_of_earlier_events(&MiniClusterStatus::default(), "job"),
            None
        );
    }

    #[test]
    fn admitted_job_waits_in_queue_while_its_pods_are_gated() {
        let held = |pod: &mut PodSeen| {
            (pod.is_running, pod.is_scheduled, pod.has_joined) = (false, false, false);
            (pod.is_held_by_queue, pod.trouble) = (true, Some(Box::default()));
        };
        assert_eq!(
            found([pod(0, |_| {}), pod(1, held)]),
            None,
            "without a queue, the pod's own status names the gate"
        );
        let job = JobSeen {
            uid: "job".into(),
            completions: 2,
            queue: Some("team".into()),
            ..JobSeen::default()
        };
        let observed = |second: (String, PodSeen)| Observed {
            pods: [pod(0, |_| {}), second]
                .map(|(uid, pod)| (uid, Box::new(pod)))
                .into(),
            ..Observed::default()
        };
        assert_eq!(
            find(Some(&job), &observed(pod(1, held))),
            Some(SilentWait::InQueue("job"))
        );
        assert_eq!(find(Some(&job), &observed(pod(1, |_| {}))), None, "it goes on");
        let ended = crate::observe::job::TrueCondition {
            reason: String::new(),
            message: String::new(),
            since: None,
        };
        let ended = JobSeen {
            complete: Some(ended),
            ..job
        };
        assert_eq!(find(Some(&ended), &observed(pod(1, held))), None);
    }

    #[test]
    fn unseen_pods_wait_for_the_scheduler_that_they_name() {
        let unseen = |index, name: &'static str| {
            pod(index, move |pod| {
                (pod.is_running, pod.is_scheduled, pod.has_joined) = (false, false, false);
                (pod.is_unnoticed, pod.scheduler) = (true, Some(name.into()));
            })
        };
        assert_eq!(
            found([pod(0, |_| {}), unseen(1, "nobody")]).as_deref(),
            Some("nobody has not seen 1")
        );
        assert_eq!(
            found([unseen(0, "a"), unseen(1, "b")]).as_deref(),
            Some("a has not seen 0"),
            "the first"
        );
        assert_eq!(
            found([unseen(0, "a")]).as_deref(),
            Some("job"),
            "a pod is missing"
        );
        let stuck = pod(1, |pod| pod.is_running = false);
        assert_eq!(
            found([unseen(0, "a"), stuck]).as_deref(),
            Some("pod-1"),
            "its node may have reported what is wrong"
        );
        let joins = pod(1, |pod| pod.has_joined = false);
        assert_eq!(
            found([unseen(0, "a"), joins]).as_deref(),
            Some("a has not seen 0"),
            "pod 1 cannot join before pod 0 runs"
        );
        assert!(
            super::unnoticed(1, "nobody", false)
                .message
                .contains("scheduler nobody has not reported on pod 1")
        );
        assert!(
            !super::unnoticed(0, DEFAULT_SCHEDULER, false)
                .message
                .contains("spec."),
            "nobody chose it"
        );
        let of = |scheduler| SilentWait::Unnoticed {
            index: 0,
            uid: "a",
            scheduler,
            is_gang: false,
        };
        let first_check_after = |scheduler, has_nodes| of(scheduler).first_check_after(has_nodes);
        assert_eq!(first_check_after("a", false), FIRST_CHECK_AFTER);
        assert_eq!(first_check_after(DEFAULT_SCHEDULER, true), FIRST_CHECK_AFTER);
        assert_eq!(
            first_check_after(DEFAULT_SCHEDULER, false),
            LONGEST_PAUSE,
            "no node is known"
        );
        assert!(
            of("a").was_reported(Some("SchedulerSilent"))
                && SilentWait::InQueue("a").was_reported(Some("Queued"))
        );
        assert!(!of("a").was_reported(Some("Queued")), "its pods are new");
        assert!(
            super::unnoticed(0, "volcano", true)
                .message
                .contains("the whole gang"),
            "a gang's scheduler may wait on purpose"
        );
    }

    #[test]
    fn startup_probe_messages_become_reason_brokers_not_ready() {
        let unhealthy = |text: &str| Trouble {
            reason: "Unhealthy".into(),
            message: text.into(),
            ..Trouble::default()
        };
        assert_eq!(not_ready(&[]), None);
        let found = not_ready(&[
            (
                0,
                unhealthy("Startup probe failed: not ready: the broker is in state quorum: it waits"),
            ),
            (
                1,
                unhealthy("Startup probe failed: not ready: the snippet workerPre runs"),
            ),
        ]);
        let found = found.unwrap();
        assert_eq!(found.reason, "BrokersNotReady");
        assert_eq!(
            found.message,
            "pod 0: the broker is in state quorum: it waits; pod 1: the snippet workerPre runs"
        );
    }

    #[test]
    fn event_checks_become_rarer_over_time() {
        let mut now = Instant::now();
        let begin = now;
        let mut check = EventCheck::new("a", FIRST_CHECK_AFTER, now);
        assert!(!check.is_due(now));
        let mut pauses = Vec::new();
        while now - begin < Duration::from_secs(3600) {
            now += check.time_left(now);
            assert!(check.is_due(now));
            check.schedule_next(now);
            pauses.push(check.time_left(now));
        }
        assert!(pauses.is_sorted() && pauses.first() < pauses.last(), "{pauses:?}");
        assert!((10..30).contains(&pauses.len()), "{pauses:?} in an hour");
    }

    /// Each waiting MiniCluster whose time has come asks for a turn. After a check, it waits for `pause`. Returns how
    /// many have asked, and how many have checked.
    fn ask(
        turns: &mut Turns,
        waiting: &mut [(Instant, Turn)],
        namespaces: usize,
        pause: Duration,
        now: Instant,
    ) -> (usize, usize) {
        let (mut asked, mut checks) = (0, 0);
        for (number, (next, turn)) in waiting.iter_mut().enumerate() {
            if *next > now {
                continue;
            }
            asked += 1;
            let namespace = (number % namespaces).to_string();
            match turns.take_or_defer(&namespace, *turn, now) {
                Some(later) => (*next, *turn) = later,
                None => {
                    checks += 1;
                    (*next, *turn) = (now + pause, Turn::None);
                }
            }
        }
        (asked, checks)
    }

    #[test]
    fn lookups_of_one_tenant_are_1_per_second_and_delay_no_other() {
        let begin = Instant::now();
        let mut turns = Turns::default();
        let mut waiting: Vec<(Instant, Turn)> = vec![(begin, Turn::None); 1000];
        let (mut checks, mut other) = (0, 0);
        for tenths in 0..1000 {
            let now = begin + Duration::from_millis(100) * tenths;
            checks += ask(&mut turns, &mut waiting, 1, Duration::from_secs(10), now).1;
            if tenths % 50 == 49 {
                other += u32::from(turns.take_or_defer("quiet", Turn::None, now).is_none());
            }
        }
        assert!((90..=110).contains(&checks), "{checks} in 100 s");
        assert!(other >= 19, "{other} of 20");
    }

    /// 10,000 MiniClusters wait in 100 namespaces. A check takes at most three asks (`Turn`), and each MiniCluster may
    /// ask five times in vain. Without reserved times, those without a turn would ask again and again.
    #[test]
    fn waiting_in_many_namespaces_asks_a_few_times_for_each_check() {
        let begin = Instant::now();
        let mut turns = Turns::default();
        let mut waiting: Vec<(Instant, Turn)> = vec![(begin, Turn::None); 10_000];
        let (mut asked, mut checks) = (0, 0);
        for tenths in 0..6000 {
            let now = begin + Duration::from_millis(100) * tenths;
            let (asks, done) = ask(&mut turns, &mut waiting, 100, LONGEST_PAUSE, now);
            asked += asks;
            checks += done;
        }
        assert!((5900..=6100).contains(&checks), "{checks} in 600 s");
        assert!(asked <= 5 * 10_000 + 3 * checks, "{asked} for {checks}");
    }
}
