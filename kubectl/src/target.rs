//! The cluster and namespace of a command, and a client for them.
#![expect(clippy::disallowed_types, reason = "makes the client")]

use std::path::PathBuf;
use std::time::Duration;

use flux_operator::labels;
use flux_shared::crd::v1alpha2::MiniCluster;
use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Config};

use crate::failure::{Failure, chain};

/// Who does not even connect in this time is not there.
const CONNECT: Duration = Duration::from_secs(15);

/// A watch is made anew after so many seconds: no later is it known that a connection is dead.
const WATCH: u32 = 50;

/// What a watch tells.
pub type Changes<K> = BoxStream<'static, watcher::Result<watcher::Event<K>>>;

/// As kubectl has them.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Access {
    /// Namespace [default: the context's]
    #[arg(long, short, global = true, value_name = "NAME", help_heading = "Cluster")]
    pub namespace: Option<String>,
    /// Context of the kubeconfig [default: the current one]
    #[arg(long, global = true, value_name = "NAME", help_heading = "Cluster")]
    pub context: Option<String>,
    /// The kubeconfig [default: $KUBECONFIG, else ~/.kube/config]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Cluster")]
    pub kubeconfig: Option<PathBuf>,
}

/// A namespace of a cluster.
#[derive(Clone)]
pub struct Target {
    pub client: Client,
    pub namespace: String,
}

impl Target {
    /// As the options and the kubeconfig say. No call is made.
    pub async fn find(access: &Access) -> Result<Target, Failure> {
        let config = config(access).await.map_err(Failure::Config)?;
        let namespace = access.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| Failure::Config(chain(&error)))?;
        Ok(Target { client, namespace })
    }

    pub fn clusters(&self) -> Api<MiniCluster> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub fn events(&self) -> Api<Event> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The MiniCluster of this name.
    pub async fn cluster(&self, name: &str) -> Result<MiniCluster, Failure> {
        self.clusters().get(name).await.map_err(Failure::call(format!("get MiniCluster {name}")))
    }

    /// Its changes, as they come; it begins again by itself after a failure.
    pub fn watch(&self, name: &str) -> Changes<MiniCluster> {
        let of_name = watching().fields(&format!("metadata.name={name}"));
        watcher(self.clusters(), of_name).default_backoff().boxed()
    }

    /// Those of its brokers' pods.
    pub fn watch_pods_of(&self, name: &str) -> Changes<Pod> {
        watcher(self.pods(), watching().labels(&selector(name))).default_backoff().boxed()
    }

    /// Its brokers' pods.
    pub async fn pods_of(&self, name: &str) -> Result<Vec<Pod>, Failure> {
        let selector = ListParams::default().labels(&selector(name));
        let pods = self.pods().list(&selector).await;
        Ok(pods.map_err(Failure::call(format!("list the pods of {name}")))?.items)
    }
}

fn watching() -> watcher::Config {
    watcher::Config::default().timeout(WATCH)
}

/// Of the brokers' pods of a MiniCluster.
fn selector(name: &str) -> String {
    format!("{}={name}", labels::CLUSTER)
}

async fn config(access: &Access) -> Result<Config, String> {
    let options = KubeConfigOptions { context: access.context.clone(), ..KubeConfigOptions::default() };
    let mut config = match (&access.kubeconfig, &access.context) {
        (None, None) => Config::infer().await.map_err(|error| chain(&error))?,
        (Some(path), _) => {
            let kubeconfig = Kubeconfig::read_from(path).map_err(|error| chain(&error))?;
            Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| chain(&error))?
        }
        (None, Some(_)) => Config::from_kubeconfig(&options).await.map_err(|error| chain(&error))?,
    };
    config.connect_timeout = Some(CONNECT);
    Ok(config)
}
