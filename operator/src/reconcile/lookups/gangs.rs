//! The APIs for gangs that the cluster serves. They are looked up when a Job is created that may be a gang,
//! and again when the answer is old: without gangs there is no call, and nothing is watched.

use std::time::{Duration, Instant};

use flux_operator_core::render::gang::{Alpha, GangApi, Served};
use kube::Client;
use tokio::sync::Mutex;

/// How long an answer is valid: an administrator may switch an API on, or upgrade the cluster.
const FRESH: Duration = Duration::from_secs(600);
/// How long an answer is valid for a MiniCluster that needs an API that the answer lacks.
const FRESH_WHERE_NEEDED: Duration = Duration::from_secs(10);

/// The last answer, and when it was given.
#[derive(Debug, Default)]
pub struct Known(Mutex<Option<(Instant, Served)>>);

impl Known {
    /// The APIs that are served. If `is_enough` is false of the known answer, it is asked again sooner.
    pub async fn served(
        &self,
        client: &Client,
        is_enough: impl Fn(Served) -> bool,
    ) -> Result<Served, kube::Error> {
        // Held while the API server is asked: if many are created at once, one asks for all.
        let mut known = self.0.lock().await;
        if let Some((time, served)) = *known {
            let limit = if is_enough(served) {
                FRESH
            } else {
                FRESH_WHERE_NEEDED
            };
            if time.elapsed() < limit {
                return Ok(served);
            }
        }
        let served = ask(client).await?;
        *known = Some((Instant::now(), served));
        Ok(served)
    }

    /// Forgets the answer, since an object of such an API could not be created.
    pub async fn forget(&self) {
        *self.0.lock().await = None;
    }
}

/// Asks the API server: one call for the groups, and one for each of their versions that we use.
async fn ask(client: &Client) -> Result<Served, kube::Error> {
    let groups = client.list_api_groups().await?.groups;
    let has_version = |group: &str, version: &str| {
        let group = groups.iter().find(|found| found.name == group);
        group.is_some_and(|group| group.versions.iter().any(|found| found.version == version))
    };
    let kubernetes = GangApi::Kubernetes.group();
    let alpha = Alpha::ALL
        .into_iter()
        .find(|alpha| has_version(kubernetes, alpha.version()));
    let mut served = Served {
        alpha,
        ..Served::default()
    };
    for api in GangApi::ALL {
        if !has_version(api.group(), api.version()) || !has_resource(client, api).await? {
            continue;
        }
        match api {
            GangApi::Kubernetes => served.kubernetes = true,
            GangApi::Coscheduling => served.coscheduling = true,
            GangApi::Volcano => served.volcano = true,
        }
    }
    Ok(served)
}

/// Whether a version of a group has the gang's kind: it may have others only, as scheduling.k8s.io has
/// PriorityClass.
async fn has_resource(client: &Client, api: GangApi) -> Result<bool, kube::Error> {
    let version = format!("{}/{}", api.group(), api.version());
    match client.list_api_group_resources(&version).await {
        Ok(list) => Ok(list
            .resources
            .iter()
            .any(|resource| resource.name == GangApi::PLURAL && resource.kind == GangApi::KIND)),
        // The version is gone since the first call.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}
