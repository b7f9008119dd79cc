//! Reads what no watch delivers, above all the last warning event of an object that waits. Only events show
//! that a quota is exceeded, or that a service account or a Secret is missing.

use std::sync::Arc;

use flux_operator_core::decide::silent_wait::STARTUP_PROBE;
use flux_operator_core::observe::Key;
use flux_operator_core::observe::cluster::Cluster;
use flux_operator_core::observe::event;
use flux_operator_core::observe::pod::Trouble;
use flux_operator_core::observe::workload::{self, Workload};
use flux_operator_core::previous_status::{MESSAGE_MAX, cut_middle};
use flux_operator_core::render::gang::Served;
use flux_operator_core::vocabulary::Reason;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::jiff::{Timestamp, ToSpan};
use kube::api::ListParams;
use kube::{Api, Client, Resource};

use crate::api::{pages, version};
use crate::reconcile::lookups::gangs;

/// A warning that is older than this many minutes counts as resolved. Kubernetes retries at least every two minutes. But
/// after 25 events about an object, client-go lets a component write only one every five minutes, with the next retry
/// (`EventSourceObjectSpamFilter`).
const FRESH_MINUTES: i64 = 8;

/// Events in one page of an answer. They come in the order of their names, so the newest may be on any page.
const EVENTS: u32 = 100;
/// Workloads in one page of an answer: each contains a pod template. A Job has one, and one more for each
/// time that it has grown.
const WORKLOADS: u32 = 10;
/// Most pages that are read of one list.
const PAGES: usize = 10;

/// What Pod Security's message for a rejected pod contains, and the remedy that is added to the message.
const POD_SECURITY_REMEDIES: [(&str, &str); 2] = [
    (
        "violates PodSecurity \"restricted:",
        " (examples/security-context has the fields that a restricted namespace needs)",
    ),
    (
        "violates PodSecurity \"baseline:",
        " (remove the fields that set this, or use a namespace that allows it)",
    ),
];

/// Reads the data that no watch delivers.
#[derive(Clone)]
pub struct Reader {
    client: Client,
    gangs: Arc<gangs::KnownApis>,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Reader")
    }
}

impl Reader {
    pub fn new(client: Client) -> Reader {
        Reader {
            client,
            gangs: Arc::default(),
        }
    }

    /// The last warning about the object with this uid that `is_cause` accepts. None: there is none, or it counts as
    /// resolved.
    pub async fn last_warning(
        &self,
        namespace: &str,
        uid: &str,
        now: Timestamp,
        is_cause: impl Fn(&Event) -> bool,
    ) -> Result<Option<Trouble>, kube::Error> {
        let field_selector = format!("type=Warning,involvedObject.uid={uid}");
        self.newest(namespace, &field_selector, now, is_cause).await
    }

    /// The last message of a failing startup probe of the pod with this uid.
    pub async fn last_probe_failure(
        &self,
        namespace: &str,
        uid: &str,
        now: Timestamp,
    ) -> Result<Option<Trouble>, kube::Error> {
        let field_selector = format!("type=Warning,reason=Unhealthy,involvedObject.uid={uid}");
        self.newest(namespace, &field_selector, now, is_of_startup_probe)
            .await
    }

    /// The newest event that matches the field selector and `is_cause`, if it is fresh.
    async fn newest(
        &self,
        namespace: &str,
        field_selector: &str,
        now: Timestamp,
        is_cause: impl Fn(&Event) -> bool,
    ) -> Result<Option<Trouble>, kube::Error> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let parameters = ListParams::default().fields(field_selector).limit(EVENTS);
        Ok(newest(
            pages::first(PAGES, &api, &parameters).await?,
            now - FRESH_MINUTES.minutes(),
            is_cause,
        ))
    }

    /// Why the Job with this uid waits in its queue.
    pub async fn why_queued(
        &self,
        namespace: &str,
        job_uid: &str,
        now: Timestamp,
    ) -> Result<Trouble, kube::Error> {
        let message = match self.workloads(namespace, job_uid).await {
            Ok(Some(workloads)) => workload::why(workloads),
            Ok(None) => workload::NOT_INSTALLED.to_owned(),
            // No permission for Workloads: use Kueue's last warning about the Job instead.
            Err(kube::Error::Api(status)) if status.code == 403 => {
                match self.last_warning(namespace, job_uid, now, is_of_kueue).await? {
                    Some(warning) => warning.message,
                    None if self.serves(workload::GROUP).await? => workload::NOT_FOR_US.to_owned(),
                    None => workload::NOT_INSTALLED.to_owned(),
                }
            }
            Err(error) => return Err(error),
        };
        Ok(Trouble {
            reason: Reason::Queued.into(),
            message,
            ..Trouble::default()
        })
    }

    /// Kueue's Workloads for the Job with this uid. None: Kueue is not installed, or serves no version that we know.
    async fn workloads(&self, namespace: &str, job_uid: &str) -> Result<Option<Vec<Workload>>, kube::Error> {
        let of_job = ListParams::default()
            .labels(&format!("{}={job_uid}", workload::JOB_UID))
            .limit(WORKLOADS);
        for version in workload::VERSIONS {
            let resource = workload::resource(version);
            let api: Api<Workload> = Api::namespaced_with(self.client.clone(), namespace, &resource);
            match pages::first(PAGES, &api, &of_job).await {
                Ok(found) => return Ok(Some(found)),
                // This version is not served: try the next one.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Whether the cluster serves this API group. By default, every account may ask (ClusterRole system:discovery).
    async fn serves(&self, group: &str) -> Result<bool, kube::Error> {
        let groups = self.client.list_api_groups().await?.groups;
        Ok(groups.iter().any(|served| served.name == group))
    }

    /// A MiniCluster from the API server, if it still has this uid.
    pub async fn cluster(&self, key: &Key, uid: Option<&str>) -> Result<Option<Cluster>, kube::Error> {
        let api: Api<Cluster> = Api::namespaced(self.client.clone(), &key.namespace);
        let found = api.get_opt(&key.name).await?;
        Ok(found.filter(|found| found.meta().uid.as_deref() == uid))
    }

    /// Which gang APIs the cluster serves. A known answer for which `is_enough` is false is used for a shorter time.
    pub async fn gangs(&self, is_enough: impl Fn(Served) -> bool) -> Result<Served, kube::Error> {
        self.gangs.served(&self.client, is_enough).await
    }

    /// Forgets which gang APIs are served: an API in the answer turned out not to be served.
    pub async fn forget_gangs(&self) {
        self.gangs.forget().await;
    }

    /// The minor version of the API server that answers this call. (Some providers write "31+" for 31.)
    pub async fn kubernetes_minor(&self) -> Result<u32, kube::Error> {
        Ok(version::minor(&self.client.apiserver_version().await?.minor))
    }
}

/// Whether Kueue wrote the event, as `batch/job-kueue-controller` for example.
fn is_of_kueue(event: &Event) -> bool {
    let source = event
        .source
        .as_ref()
        .and_then(|source| source.component.as_deref());
    [source, event.reporting_component.as_deref()]
        .into_iter()
        .flatten()
        .any(|writer| writer.contains("kueue"))
}

/// Whether a startup probe failed. A sidecar's readiness probe, for one, does not delay the brokers.
fn is_of_startup_probe(event: &Event) -> bool {
    let message = event.message.as_deref().unwrap_or_default();
    message.starts_with(STARTUP_PROBE)
}

/// The newest of the events that `is_cause` accepts, if it is newer than `not_before`. Of its message only the first
/// line is kept.
fn newest(events: Vec<Event>, not_before: Timestamp, is_cause: impl Fn(&Event) -> bool) -> Option<Trouble> {
    let (time, event) = events
        .into_iter()
        .filter(is_cause)
        .map(|event| (last_occurrence(&event), event))
        .max_by_key(|(time, _)| *time)?;
    (time? > not_before).then(|| {
        let (reason, message) = (
            event.reason.unwrap_or_default(),
            event.message.unwrap_or_default(),
        );
        let remedy = POD_SECURITY_REMEDIES
            .iter()
            .find(|(violation, _)| reason == Reason::FailedCreate && message.contains(violation))
            .map_or("", |(_, remedy)| *remedy);
        // Not cut shorter than a status allows: Pod Security lists missing fields up to the end of its message.
        // The remedy is added within the same limit.
        let line = message.trim().lines().next().unwrap_or_default();
        let kept = cut_middle(line, MESSAGE_MAX.saturating_sub(remedy.len()));
        Trouble {
            reason,
            message: kept + remedy,
            ..Trouble::default()
        }
    })
}

/// When the event last occurred. If possible, this is the API server's time of the event's last change, since
/// the clocks of nodes differ.
fn last_occurrence(event: &Event) -> Option<Timestamp> {
    let written = event
        .metadata
        .managed_fields
        .iter()
        .flatten()
        .filter_map(|entry| entry.time.as_ref())
        .max();
    written
        .map(|time| time.0)
        .or_else(|| event::last_occurrence(event))
}

#[cfg(test)]
mod tests {
    use flux_operator_core::decide::silent_wait::SilentWait;

    use super::*;

    #[test]
    fn newest_warning_event_counts_while_it_is_fresh() {
        let at = |minutes: i64| "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + minutes.minutes();
        let event = |reason: &str, minutes: i64| Event {
            reason: Some(reason.into()),
            message: Some("why\nand more".into()),
            last_timestamp: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(minutes))),
            ..Event::default()
        };
        let all = || vec![event("Old", 1), event("FailedMount", 9), event("Other", 5)];
        let found = newest(all(), at(7), |_| true).unwrap();
        assert_eq!(
            (found.reason.as_str(), found.message.as_str()),
            ("FailedMount", "why")
        );
        assert_eq!(newest(all(), at(10), |_| true), None);
        assert_eq!(newest(Vec::new(), at(10), |_| true), None);
    }

    fn event(reason: &str, message: &str, writer: &str) -> Event {
        Event {
            reason: Some(reason.into()),
            message: Some(message.into()),
            reporting_component: Some(writer.into()),
            ..Event::default()
        }
    }

    /// The newest of `events`, each later than the one before it, that `is_cause` accepts.
    fn last_of(events: &[Event], is_cause: impl Fn(&Event) -> bool) -> Option<String> {
        let before = Timestamp::now() - 1.minutes();
        let mut events = events.to_vec();
        for (i, event) in events.iter_mut().enumerate() {
            let time = before + i64::try_from(i).unwrap().seconds();
            event.last_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(time));
        }
        newest(events, before - 1.minutes(), is_cause).map(|found| found.message)
    }

    #[test]
    fn newer_warning_about_something_else_hides_no_cause() {
        let of = |reason: &str| event(reason, reason, "");
        let others = [
            "FailedScheduling",
            "FailedToRetrieveImagePullSecret",
            "PolicyViolation",
            "DNSConfigForming",
        ];
        let explains = |wait: SilentWait<'_>, event: &Event| {
            wait.is_explained_by(
                event.reason.as_deref().unwrap_or_default(),
                event.message.as_deref().unwrap_or_default(),
            )
        };
        let starts = |event: &Event| explains(SilentWait::Starts("pod"), event);
        let probes = ["Startup probe failed: x", "Readiness probe failed: x"];
        let probes = probes.map(|message| event("Unhealthy", message, ""));
        assert_eq!(
            last_of(&probes, starts).as_deref(),
            Some("Startup probe failed: x")
        );
        assert_eq!(last_of(&probes[1..], starts), None);
        for cause in [
            "FailedMount",
            "FailedCreatePodSandBox",
            "NetworkNotReady",
            "FailedCreate",
        ] {
            let mut events = vec![of(cause)];
            events.extend(others.map(of));
            assert_eq!(last_of(&events, starts).as_deref(), Some(cause));
        }
        assert_eq!(last_of(&others.map(of), starts), None);

        let unnoticed = || SilentWait::Unnoticed {
            index: 0,
            uid: "pod",
            scheduler: "volcano",
            is_gang: true,
        };
        let seen = |event: &Event| explains(unnoticed(), event);
        for cause in ["FailedScheduling", "Unschedulable"] {
            let events = [of(cause), of("PolicyViolation")];
            assert_eq!(last_of(&events, seen).as_deref(), Some(cause));
        }
        assert_eq!(last_of(&[of("PolicyViolation")], seen), None);
    }

    #[test]
    fn queue_and_probe_messages_are_of_kueue_and_startup_probes() {
        let of_kueue = Event {
            reporting_component: None,
            source: Some(k8s_openapi::api::core::v1::EventSource {
                component: Some("batch/job-kueue-controller".into()),
                ..Default::default()
            }),
            ..event("Pending", "no quota", "")
        };
        let events = [of_kueue, event("PolicyViolation", "policy", "kyverno-scan")];
        assert_eq!(last_of(&events, is_of_kueue).as_deref(), Some("no quota"));
        assert_eq!(last_of(&events[1..], is_of_kueue), None);

        let probe = |message: &str| event("Unhealthy", message, "kubelet");
        let startup = "Startup probe failed: not ready: the broker is in state join";
        let events = [
            probe(startup),
            probe("Readiness probe failed: HTTP probe failed with statuscode: 503"),
        ];
        assert_eq!(last_of(&events, is_of_startup_probe).as_deref(), Some(startup));
    }

    #[test]
    fn age_of_a_warning_is_by_the_api_servers_clock() {
        use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, Time};
        let written = "2026-01-01T12:00:00Z".parse::<Timestamp>().unwrap();
        let entry = ManagedFieldsEntry {
            time: Some(Time(written)),
            ..ManagedFieldsEntry::default()
        };
        for skew in [-60, 0, 60] {
            let event = Event {
                metadata: ObjectMeta {
                    managed_fields: Some(vec![entry.clone()]),
                    ..ObjectMeta::default()
                },
                reason: Some("FailedMount".into()),
                last_timestamp: Some(Time(written + skew.minutes())),
                ..Event::default()
            };
            let found = |after: i64| {
                newest(
                    vec![event.clone()],
                    written + after.minutes() - FRESH_MINUTES.minutes(),
                    |_| true,
                )
            };
            assert!(found(FRESH_MINUTES - 1).is_some(), "a clock {skew} minutes off");
            assert!(found(FRESH_MINUTES + 1).is_none(), "a clock {skew} minutes off");
        }
    }

    /// The message is that of Kubernetes 1.35. A shorter limit would cut out fields.
    #[test]
    fn message_of_pod_security_is_whole_and_names_the_example() {
        let containers = r#"containers "flux-agent", "flux-view", "work" must set securityContext"#;
        let message = format!(
            "Error creating: pods \"mc-0-abcde\" is forbidden: violates PodSecurity \"restricted:latest\": \
             allowPrivilegeEscalation != false ({containers}.allowPrivilegeEscalation=false), unrestricted capabilities \
             ({containers}.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or {containers}.runAsNonRoot=true), \
             seccompProfile (pod or {containers}.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")"
        );
        let found = failed_create(&message);
        assert!(
            found.starts_with(&message) && found.contains("examples/security-context"),
            "{found}"
        );
        assert!(found.len() <= MESSAGE_MAX);
    }

    /// Fields of the example do not help in a namespace that enforces `baseline`.
    #[test]
    fn remedy_of_baseline_is_to_remove_fields() {
        let message = "Error creating: pods \"mc-0-abcde\" is forbidden: violates PodSecurity \"baseline:latest\": \
             host namespaces (hostNetwork=true)";
        assert_eq!(
            failed_create(message),
            format!("{message} (remove the fields that set this, or use a namespace that allows it)")
        );
    }

    /// The kept message of an event with this one.
    fn failed_create(message: &str) -> String {
        let time = "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap();
        let event = Event {
            reason: Some("FailedCreate".into()),
            message: Some(message.into()),
            last_timestamp: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(time)),
            ..Event::default()
        };
        newest(vec![event], time - 1.minutes(), |_| true).unwrap().message
    }
}
