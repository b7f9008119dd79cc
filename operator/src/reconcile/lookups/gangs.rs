//! The APIs for gangs that the cluster serves. The operator asks for them when it may create or delete a gang, unless
//! it knows a recent answer. Without gangs there are no calls. Nothing is watched.

use std::time::{Duration, Instant};

use flux_operator_core::render::gang::{Alpha, GangApi, Served};
use kube::Client;
use tokio::sync::Mutex;

/// How long an answer is valid: an administrator may switch an API on, or upgrade the cluster.
const FRESH: Duration = Duration::from_secs(600);
/// How long an answer is valid for a MiniCluster that needs an API that the answer lacks.
const FRESH_WHERE_NEEDED: Duration = Duration::from_secs(10);

/// The last answer of the API server, and when it was given.
#[derive(Debug, Default)]
pub struct KnownApis(Mutex<Option<(Instant, Served)>>);

impl KnownApis {
    /// The APIs that are served. A known answer for which `is_enough` is false is used for a shorter time.
    pub async fn served(
        &self,
        client: &Client,
        is_enough: impl Fn(Served) -> bool,
    ) -> Result<Served, kube::Error> {
        // Locked during the calls: if many Jobs are created at the same time, only one of their reconciles asks.
        let mut known = self.0.lock().await;
        if let Some((time, served)) = *known {
            let valid_for = if is_enough(served) {
                FRESH
            } else {
                FRESH_WHERE_NEEDED
            };
            if time.elapsed() < valid_for {
                return Ok(served);
            }
        }
        let served = ask(client).await?;
        *known = Some((Instant::now(), served));
        Ok(served)
    }

    /// Forgets the answer: an API in it turned out not to be served.
    pub async fn forget(&self) {
        *self.0.lock().await = None;
    }
}

/// Asks the API server: one call for all API groups, and one for each API that we use and whose version is served.
async fn ask(client: &Client) -> Result<Served, kube::Error> {
    let groups = client.list_api_groups().await?.groups;
    let has_version = |group: &str, version: &str| {
        let group = groups.iter().find(|found| found.name == group);
        group.is_some_and(|group| group.versions.iter().any(|found| found.version == version))
    };
    // Alpha versions of Kubernetes' own API are not used: a message about a missing gang names the one that is served.
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

/// Whether the served version of the API's group has the gang's kind. It may have other kinds only:
/// scheduling.k8s.io also has PriorityClass.
async fn has_resource(client: &Client, api: GangApi) -> Result<bool, kube::Error> {
    let version = format!("{}/{}", api.group(), api.version());
    match client.list_api_group_resources(&version).await {
        Ok(list) => Ok(list
            .resources
            .iter()
            .any(|resource| resource.name == GangApi::PLURAL && resource.kind == GangApi::KIND)),
        // The version has been removed since the first call.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}
