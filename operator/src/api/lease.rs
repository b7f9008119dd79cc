//! Leader election: one replica holds a Lease; the others check whether it is renewed.
//!
//! ```text
//! get ─► free, held by this replica, or expired? ─► take it ─► renew … ─► not renewed in time: lost, the process ends
//! ```
//!
//! Two replicas that lead at the same time would do no harm (creation is a POST, changes carry a uid): the
//! election only saves work.
//!
//! docs/decisions.md says why no crate is used for this.

use std::time::Duration;

use flux_operator_core::labels::{self, MANAGER};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::Instant;

use super::installed;

/// Name of the Lease, and of the operator's Deployment.
const NAME: &str = labels::OPERATOR;

/// A replica that wants to lead.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of this replica as holder; unique.
    pub identity: String,
    /// A Lease that is not renewed for this long has expired: another replica may take it.
    pub duration: Duration,
}

/// A Lease that is held.
#[derive(Debug)]
pub struct HeldLease {
    candidate: Candidate,
    /// resourceVersion of the Lease.
    version: Option<String>,
    /// When the last successful request to renew it was sent (not when its answer came).
    renewed: Instant,
}

/// Result of an attempt to take the Lease.
enum Attempt {
    Acquired {
        /// resourceVersion of the Lease.
        version: Option<String>,
    },
    /// Another replica holds the Lease, or the operator is being uninstalled.
    NotAcquired,
}

/// The last change of the Lease that this replica noticed.
struct LastChange {
    /// resourceVersion of the Lease.
    version: Option<String>,
    /// When this replica first saw this version.
    since: Instant,
    /// The operator's Deployment owns the Lease: both are deleted together.
    is_owned: bool,
}

impl Candidate {
    /// Pause between renewals, a third of the duration: two renewals may fail before the Lease expires.
    fn pause(&self) -> Duration {
        self.duration / 3
    }

    /// How long the holder leads after it has sent a request to take or renew the Lease. This is shorter than
    /// the duration, by half a pause, so that it stops before another replica can take the Lease.
    fn time_to_lead(&self) -> Duration {
        self.duration - self.pause() / 2
    }

    /// Waits until this replica holds the Lease.
    pub async fn acquire(self, client: &Client) -> HeldLease {
        // The times in the Lease come from other machines' clocks, so they are not used: a Lease has expired if
        // this replica has seen no change of it for its duration.
        let mut last_change = None;
        // Not `flux_operator_client::retry::until_done`: a Lease that another replica holds is not an error.
        loop {
            let renewed = Instant::now();
            match self.attempt(client, &mut last_change).await {
                // The answer came too late: another replica may have taken the Lease since.
                Ok(Attempt::Acquired { .. }) if renewed.elapsed() >= self.time_to_lead() => continue,
                Ok(Attempt::Acquired { version }) => {
                    return HeldLease {
                        candidate: self,
                        version,
                        renewed,
                    };
                }
                Ok(Attempt::NotAcquired) => {}
                Err(error) => crate::health::log::warn("failed to get the lease", &error),
            }
            tokio::time::sleep(self.pause()).await;
        }
    }

    /// Takes the Lease if it is free, expired, or held by this replica. (With the chart, the identity is the pod's
    /// name: an earlier container of the pod may have taken the Lease. An answer may also have been lost.)
    async fn attempt(
        &self,
        client: &Client,
        last_change: &mut Option<LastChange>,
    ) -> Result<Attempt, kube::Error> {
        let api = self.leases(client);
        let Some(lease) = api.get_opt(NAME).await? else {
            let was_owned = last_change.as_ref().is_some_and(|last| last.is_owned);
            return self.create(client, was_owned).await;
        };
        let version = lease.resource_version();
        let holder = lease
            .spec
            .as_ref()
            .and_then(|spec| spec.holder_identity.clone())
            .unwrap_or_default();
        let duration = lease
            .spec
            .as_ref()
            .and_then(|spec| spec.lease_duration_seconds)
            .unwrap_or(0);
        // Without a duration, the Lease counts as expired.
        let duration = Duration::from_secs(u64::try_from(duration).unwrap_or(0));
        let since = match last_change {
            Some(last) if last.version == version => last.since,
            _ => {
                let is_owned = !lease.owner_references().is_empty();
                last_change
                    .insert(LastChange {
                        version: version.clone(),
                        since: Instant::now(),
                        is_owned,
                    })
                    .since
            }
        };
        if holder.is_empty() || holder == self.identity || since.elapsed() >= duration {
            let version = self.write(&api, version, &self.spec()).await?;
            return Ok(Attempt::Acquired { version });
        }
        Ok(Attempt::NotAcquired)
    }

    /// Creates the Lease, owned by the operator's Deployment. If `was_owned` and the Deployment is gone, the
    /// operator is being uninstalled: nothing is created, since nobody would delete the new Lease.
    async fn create(&self, client: &Client, was_owned: bool) -> Result<Attempt, kube::Error> {
        let owner = installed::owner(client, &self.namespace, NAME).await?;
        if owner.is_none() && was_owned {
            return Ok(Attempt::NotAcquired);
        }
        let owner_references = owner.map(|owner| vec![owner]);
        let metadata = ObjectMeta {
            name: Some(NAME.into()),
            owner_references,
            ..ObjectMeta::default()
        };
        let lease = Lease {
            metadata,
            spec: Some(self.spec()),
        };
        let created = self.leases(client).create(&PostParams::default(), &lease).await?;
        Ok(Attempt::Acquired {
            version: created.resource_version(),
        })
    }

    fn leases(&self, client: &Client) -> Api<Lease> {
        Api::namespaced(client.clone(), &self.namespace)
    }

    /// A Lease that this replica takes now.
    fn spec(&self) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(self.duration.as_secs()).ok(),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            ..LeaseSpec::default()
        }
    }

    /// Writes the Lease unless it has changed since `version` (409). Returns its new resourceVersion.
    async fn write(
        &self,
        api: &Api<Lease>,
        version: Option<String>,
        spec: &LeaseSpec,
    ) -> Result<Option<String>, kube::Error> {
        let change = json!({ "metadata": { "resourceVersion": version }, "spec": spec });
        let parameters = PatchParams::apply(MANAGER);
        Ok(api
            .patch(NAME, &parameters, &Patch::Merge(change))
            .await?
            .resource_version())
    }
}

impl HeldLease {
    /// Renews the Lease. Returns when another replica has taken it, when it was deleted or restored from a snapshot, or
    /// when it could not be renewed for too long: another replica may lead then.
    pub async fn keep(&mut self, client: &Client) {
        let mut pause = self.pause_since(self.renewed);
        // The pause and the calls together may not exceed the time to lead.
        while let Ok(Some(next)) = tokio::time::timeout_at(
            self.renewed + self.candidate.time_to_lead(),
            self.renew(client, pause),
        )
        .await
        {
            pause = next;
        }
    }

    /// Renews the Lease once, after `pause`. Returns the next pause. None: the Lease is lost.
    async fn renew(&mut self, client: &Client, pause: Duration) -> Option<Duration> {
        tokio::time::sleep(pause).await;
        let api = self.candidate.leases(client);
        let begin = Instant::now();
        // Only the time of the renewal is written: the patch leaves the other fields.
        let LeaseSpec { renew_time, .. } = self.candidate.spec();
        let spec = LeaseSpec {
            renew_time,
            ..LeaseSpec::default()
        };
        match self.candidate.write(&api, self.version.clone(), &spec).await {
            Ok(version) => {
                self.version = version;
                self.renewed = begin;
            }
            Err(kube::Error::Api(status)) if status.code == 404 => return None,
            // The Lease has changed: either this process wrote it but the answer was lost, or another replica
            // took it.
            Err(kube::Error::Api(status)) if status.code == 409 => match api.get_opt(NAME).await {
                Ok(Some(lease)) if self.is_holder_of(&lease) => {
                    if self.is_newer_than(&lease) {
                        tracing::warn!(
                            "the Lease is older than the one that this process has written: etcd was restored from a snapshot"
                        );
                        return None;
                    }
                    self.version = lease.resource_version();
                    return Some(Duration::ZERO);
                }
                Ok(_) => return None,
                Err(error) => crate::health::log::warn("failed to get the lease", &error),
            },
            Err(error) => crate::health::log::warn("failed to renew the lease", &error),
        }
        Some(self.pause_since(begin))
    }

    /// What is left of the pause between renewals, which began with the request sent at `sent`.
    fn pause_since(&self, sent: Instant) -> Duration {
        self.candidate.pause().saturating_sub(sent.elapsed())
    }

    fn is_holder_of(&self, lease: &Lease) -> bool {
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_ref());
        holder == Some(&self.candidate.identity)
    }

    /// Whether etcd was restored from a snapshot since this process last wrote the Lease. Then what the watches have
    /// reported is newer than the cluster, and new reports would count as old: only another process, with new lists,
    /// can lead.
    fn is_newer_than(&self, lease: &Lease) -> bool {
        let number = |version: Option<&String>| version.and_then(|version| version.parse::<u64>().ok());
        let current = number(lease.metadata.resource_version.as_ref());
        current.is_some_and(|current| number(self.version.as_ref()).is_some_and(|last| current < last))
    }

    /// Releases the Lease, so that another replica can lead at once.
    pub async fn release(self, client: &Client) {
        let api = self.candidate.leases(client);
        // A Lease with an empty holder is free, whatever its duration. Kubernetes' Go client writes 1 s too.
        let spec = LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            ..LeaseSpec::default()
        };
        let write = async {
            let written = self.candidate.write(&api, self.version.clone(), &spec).await;
            // Perhaps this process wrote the Lease, but gave up the renewal before the answer.
            if matches!(&written, Err(kube::Error::Api(status)) if status.code == 409)
                && let Ok(Some(lease)) = api.get_opt(NAME).await
                && self.is_holder_of(&lease)
            {
                let _ = self.candidate.write(&api, lease.resource_version(), &spec).await;
            }
        };
        // If this fails, another replica leads a little later.
        let _ = tokio::time::timeout(self.candidate.pause(), write).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use kube::client::{Body, ClientBuilder};

    use super::*;
    use crate::testing;

    /// A client of an API server whose Lease has this holder, and the methods of the requests. The server accepts only
    /// writes to the Lease's current version, which is 2 at first. `held` has version 1.
    fn server(holder: &'static str) -> (Client, Arc<Mutex<Vec<String>>>) {
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = asked.clone();
        let mut version = 2;
        let client = testing::client(move |request, sent| {
            log.lock().unwrap().push(request.method.to_string());
            let fits = sent["metadata"]["resourceVersion"].as_str() == Some(&version.to_string());
            version += u32::from(fits);
            Some(if request.method == "GET" || fits {
                let metadata = json!({ "name": NAME, "resourceVersion": version.to_string() });
                (
                    200,
                    json!({ "metadata": metadata, "spec": { "holderIdentity": holder } }),
                )
            } else {
                (
                    409,
                    json!({ "kind": "Status", "status": "Failure", "code": 409, "reason": "Conflict" }),
                )
            })
        });
        (client, asked)
    }

    fn candidate() -> Candidate {
        Candidate {
            namespace: "ns".into(),
            identity: "me".into(),
            duration: Duration::from_secs(15),
        }
    }

    fn held() -> HeldLease {
        HeldLease {
            candidate: candidate(),
            version: Some("1".into()),
            renewed: Instant::now(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn leader_goes_on_after_a_conflict_only_if_it_is_holder() {
        let (client, asked) = server("me");
        let kept = tokio::time::timeout(Duration::from_secs(60), held().keep(&client)).await;
        assert!(
            kept.is_err(),
            "it gave up although it holds the Lease: {:?}",
            asked.lock().unwrap()
        );
        assert_eq!(
            asked.lock().unwrap()[..4],
            ["PATCH", "GET", "PATCH", "PATCH"],
            "and goes on"
        );
        let (client, _) = server("other");
        assert!(
            tokio::time::timeout(Duration::from_secs(60), held().keep(&client))
                .await
                .is_ok(),
            "another leads"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn lease_is_released_after_a_conflict_only_by_its_holder() {
        let (client, asked) = server("me");
        held().release(&client).await;
        assert_eq!(asked.lock().unwrap()[..], ["PATCH", "GET", "PATCH"]);
        let (client, asked) = server("other");
        held().release(&client).await;
        assert_eq!(asked.lock().unwrap()[..], ["PATCH", "GET"]);
    }

    #[tokio::test(start_paused = true)]
    async fn leader_stops_when_etcd_is_restored_from_a_snapshot() {
        let (client, asked) = server("me");
        let mut held = HeldLease {
            version: Some("5".into()),
            ..held()
        };
        let kept = tokio::time::timeout(Duration::from_secs(60), held.keep(&client)).await;
        assert!(kept.is_ok(), "it leads on: {:?}", asked.lock().unwrap());
    }

    /// A client of an API server that accepts every request, and answers the first write only after `delay`.
    fn slow_server(delay: Duration) -> Client {
        let writes = Arc::new(Mutex::new(0));
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let is_first = request.method() == "PATCH" && {
                let mut writes = writes.lock().unwrap();
                *writes += 1;
                *writes == 1
            };
            async move {
                if is_first {
                    tokio::time::sleep(delay).await;
                }
                let lease = json!({ "metadata": { "name": NAME, "resourceVersion": "1" } });
                Ok::<_, tower::BoxError>(http::Response::new(Body::from(lease.to_string().into_bytes())))
            }
        });
        ClientBuilder::new(service, "default").build()
    }

    #[tokio::test(start_paused = true)]
    async fn lease_is_taken_again_if_the_answer_comes_too_late() {
        // `time_to_lead` is 12.5 s.
        let held = candidate().acquire(&slow_server(Duration::from_secs(14))).await;
        assert!(
            held.renewed.elapsed() < Duration::from_secs(1),
            "{:?}",
            held.renewed.elapsed()
        );
        let held = candidate().acquire(&slow_server(Duration::from_secs(9))).await;
        assert_eq!(
            held.renewed.elapsed(),
            Duration::from_secs(9),
            "the request counts, not the answer"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn leader_stops_before_its_unrenewed_lease_expires() {
        let unreachable = tower::service_fn(|_: http::Request<Body>| async {
            Err::<http::Response<Body>, _>(tower::BoxError::from("no route"))
        });
        let begin = Instant::now();
        held()
            .keep(&ClientBuilder::new(unreachable, "default").build())
            .await;
        assert_eq!(begin.elapsed(), Duration::from_millis(12_500));

        // The answer by which the Lease was acquired took 9 s.
        let mut late = held();
        late.renewed -= Duration::from_secs(9);
        let begin = Instant::now();
        late.keep(&slow_server(Duration::from_secs(60))).await;
        assert_eq!(begin.elapsed(), Duration::from_millis(3_500));
    }
}
