//! Leader election: one replica holds a Lease; the others only watch whether it is renewed.
//!
//! ```text
//! look ─► free, ours, or not renewed for its duration? ─► take it ─► renew … ─► not renewed in time: lost, the process ends
//! ```
//!
//! Two that act at the same time would do no harm (creation is a POST, changes carry a uid), so this only
//! saves work.
//!
//! By hand: docs/decisions.md names what the crates lack.

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

/// Name of the Lease.
const NAME: &str = labels::OPERATOR;

/// A replica that wants to lead.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of this replica as holder; unique.
    pub identity: String,
    /// How long a Lease lives without being renewed; others wait so long.
    pub duration: Duration,
}

/// A Lease that is held.
#[derive(Debug)]
pub struct Held {
    candidate: Candidate,
    version: Option<String>,
    renewed: Instant,
}

/// How a try to take the Lease ended.
enum Attempt {
    Acquired {
        version: Option<String>,
    },
    /// By another replica, or it is about to be deleted.
    HeldByAnother,
}

/// The Lease as of its last change that we saw, and when we saw it.
struct LastChange {
    version: Option<String>,
    since: Instant,
    /// It is owned by the operator's Deployment and is deleted with it.
    is_owned: bool,
}

impl Candidate {
    /// Pause between renewals, a third of the duration: two may fail.
    fn pause(&self) -> Duration {
        self.duration / 3
    }

    /// Waits until the Lease is ours.
    pub async fn acquire(self, client: &Client) -> Held {
        // Other machines' clocks are not compared: what counts is for how long we have seen no change.
        let mut last_change = None;
        // Not `retry::until_done`: that another replica leads is no failure, and no reason for longer pauses.
        loop {
            let begin = Instant::now();
            match self.attempt(client, &mut last_change).await {
                Ok(Attempt::Acquired { version }) => {
                    return Held {
                        candidate: self,
                        version,
                        renewed: begin,
                    };
                }
                Ok(Attempt::HeldByAnother) => {}
                Err(error) => crate::health::log::warn("failed to get the lease", &error),
            }
            tokio::time::sleep(self.pause()).await;
        }
    }

    /// Takes the Lease if it is free.
    async fn attempt(&self, client: &Client, seen: &mut Option<LastChange>) -> Result<Attempt, kube::Error> {
        let api = self.leases(client);
        let Some(lease) = api.get_opt(NAME).await? else {
            return self
                .create(client, seen.as_ref().is_some_and(|seen| seen.is_owned))
                .await;
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
        let duration = Duration::from_secs(u64::try_from(duration).unwrap_or(0));
        let since = match seen {
            Some(seen) if seen.version == version => seen.since,
            _ => {
                let is_owned = !lease.owner_references().is_empty();
                seen.insert(LastChange {
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
        Ok(Attempt::HeldByAnother)
    }

    /// Creates the Lease, owned by the operator's Deployment. Not if `it_was_owned` and the Deployment is
    /// gone: a new Lease would never be deleted, and this process is about to be.
    async fn create(&self, client: &Client, it_was_owned: bool) -> Result<Attempt, kube::Error> {
        let owner = installed::owner(client, &self.namespace, NAME).await?;
        if owner.is_none() && it_was_owned {
            return Ok(Attempt::HeldByAnother);
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

    /// Writes the Lease if nobody has since it had `version`.
    async fn write(
        &self,
        api: &Api<Lease>,
        version: Option<String>,
        spec: &LeaseSpec,
    ) -> Result<Option<String>, kube::Error> {
        let change = json!({ "metadata": { "resourceVersion": version }, "spec": spec });
        let parameters = PatchParams {
            field_manager: Some(MANAGER.into()),
            ..PatchParams::default()
        };
        Ok(api
            .patch(NAME, &parameters, &Patch::Merge(change))
            .await?
            .resource_version())
    }
}

impl Held {
    /// Renews the Lease until another replica has written it or renewing fails for too long. Then another
    /// replica may lead.
    pub async fn keep(&mut self, client: &Client) {
        let api = self.candidate.leases(client);
        // The deadline is before others may take the Lease.
        let deadline = self.candidate.duration - self.candidate.pause() / 2;
        let mut pause = self.candidate.pause();
        loop {
            tokio::time::sleep(pause).await;
            pause = self.candidate.pause();
            let begin = Instant::now();
            let LeaseSpec { renew_time, .. } = self.candidate.spec();
            let spec = LeaseSpec {
                renew_time,
                ..LeaseSpec::default()
            };
            let left = deadline.saturating_sub(self.renewed.elapsed());
            match tokio::time::timeout(left, self.candidate.write(&api, self.version.clone(), &spec)).await {
                Ok(Ok(version)) => {
                    self.version = version;
                    self.renewed = begin;
                }
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => return,
                // Somebody has written it: this process, and the answer was lost, or another replica, which
                // leads now.
                Ok(Err(kube::Error::Api(status))) if status.code == 409 => {
                    match tokio::time::timeout(left, api.get_opt(NAME)).await {
                        Ok(Ok(Some(lease))) if self.is_holder_of(&lease) => {
                            self.version = lease.resource_version();
                            pause = Duration::ZERO;
                        }
                        Ok(Ok(_)) | Err(_) => return,
                        Ok(Err(error)) => crate::health::log::warn("failed to get the lease", &error),
                    }
                }
                Ok(Err(error)) => crate::health::log::warn("failed to renew the lease", &error),
                Err(_) => return,
            }
            if self.renewed.elapsed() >= deadline {
                return;
            }
        }
    }

    fn is_holder_of(&self, lease: &Lease) -> bool {
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_ref());
        holder == Some(&self.candidate.identity)
    }

    /// Gives the Lease up, so that another replica can lead at once.
    pub async fn release(self, client: &Client) {
        let api = self.candidate.leases(client);
        let spec = LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            ..LeaseSpec::default()
        };
        // If this fails, another replica leads a little later.
        let _ = tokio::time::timeout(
            self.candidate.pause(),
            self.candidate.write(&api, self.version, &spec),
        )
        .await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use kube::client::{Body, ClientBuilder};

    use super::*;

    /// A client of an API server whose Lease has this holder and another version than the one that is held,
    /// and the verbs that it was asked for. It takes a write to its own version.
    fn server(holder: &'static str) -> (Client, Arc<Mutex<Vec<String>>>) {
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = asked.clone();
        let version = Arc::new(Mutex::new(2));
        let service = tower::service_fn(move |request: http::Request<Body>| {
            log.lock().unwrap().push(request.method().to_string());
            let version = version.clone();
            async move {
                let is_get = request.method() == "GET";
                let sent = request.into_body().collect_bytes().await.unwrap();
                let sent: serde_json::Value = serde_json::from_slice(&sent).unwrap_or_default();
                let mut version = version.lock().unwrap();
                let fits = sent["metadata"]["resourceVersion"] == version.to_string();
                *version += u32::from(fits);
                let (code, body) = if is_get || fits {
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
                };
                let body = Body::from(body.to_string().into_bytes());
                Ok::<_, tower::BoxError>(http::Response::builder().status(code).body(body).unwrap())
            }
        });
        (ClientBuilder::new(service, "default").build(), asked)
    }

    fn held() -> Held {
        let (namespace, identity, duration) = ("ns".to_owned(), "me".to_owned(), Duration::from_secs(15));
        let candidate = Candidate {
            namespace,
            identity,
            duration,
        };
        Held {
            candidate,
            version: Some("1".into()),
            renewed: Instant::now(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn leader_whose_answer_was_lost_leads_on_and_no_other() {
        let (client, asked) = server("me");
        let lost = tokio::time::timeout(Duration::from_secs(60), held().keep(&client)).await;
        assert!(
            lost.is_err(),
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
}
