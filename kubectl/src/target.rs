//! The cluster and namespace of a command, and a client for them.

use std::path::PathBuf;
use std::time::Duration;

use flux_operator_client::config;
use flux_operator_client::credentials::CredentialPlugin;
use flux_operator_core::labels;
use flux_shared::causes::causes;
use flux_shared::command_words;
use flux_shared::crd::v1alpha2::MiniCluster;
use flux_shared::queueing::QUEUE_NAME;
use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::ListParams;
use kube::client::ClientBuilder;
use kube::client::retry::RetryPolicy;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Config, ResourceExt};
use tower::buffer::BufferLayer;
use tower::retry::RetryLayer;
use tower::util::{MapFutureLayer, MapResultLayer};

use crate::failure::{Failure, is_code};
use crate::login;
use crate::observed;

/// Longest time to connect to the API server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// Most calls that wait in the client to be sent. If there are more, their callers wait for a slot.
const MOST_WAITING: usize = 64;

/// Seconds after which a watch is opened again, so that a dead connection is noticed.
const WATCH_SECONDS: u32 = 50;

/// The events of a watch.
pub type Changes<K> = BoxStream<'static, watcher::Result<watcher::Event<K>>>;

/// The same options as kubectl's. [`Target::find`] ignores empty ones, such as `-n "$UNSET"`.
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

impl Access {
    /// Without empty options: as in kubectl, these count as not given.
    fn without_empty(mut self) -> Access {
        self.namespace = self.namespace.filter(|namespace| !namespace.is_empty());
        self.context = self.context.filter(|context| !context.is_empty());
        self.kubeconfig = self.kubeconfig.filter(|file| !file.as_os_str().is_empty());
        self
    }

    /// A command of this plugin for the MiniCluster `name`, to paste into a shell. `words`: the subcommand and its
    /// options. It has the same cluster and namespace: with others, it might act on another MiniCluster of this name.
    pub fn command(&self, words: &str, name: &str) -> String {
        format!("`kubectl minicluster {words} {name}{}`", self.options())
    }

    /// The options that were given, each after a blank, as the plugin and kubectl accept them.
    pub fn options(&self) -> String {
        let kubeconfig = self
            .kubeconfig
            .as_ref()
            .map(|file| file.to_string_lossy().into_owned());
        let all = [
            ("-n", self.namespace.as_ref()),
            ("--context", self.context.as_ref()),
            ("--kubeconfig", kubeconfig.as_ref()),
        ];
        let given = all
            .into_iter()
            .filter_map(|(option, value)| Some((option, value?)));
        given
            .map(|(option, value)| format!(" {option} {}", command_words::join(&[value])))
            .collect()
    }
}

/// A namespace, and a client for its cluster.
#[derive(Clone)]
pub struct Target {
    pub client: Client,
    /// The options that chose the cluster and the namespace. `run` adds the namespace of its file.
    pub access: Access,
    pub namespace: String,
    /// Address of the API server.
    pub server: String,
}

impl Target {
    /// The target of the options and the kubeconfig, or of the pod that runs this program. Calls no API server.
    pub async fn find(access: Access) -> Result<Target, Failure> {
        let access = access.without_empty();
        let config = config_of(&access).await.map_err(Failure::NoServer)?;
        let namespace = access
            .namespace
            .clone()
            .unwrap_or_else(|| config.default_namespace.clone());
        let server = config.cluster_url.to_string();
        let client = client_of(config).await?;
        let (kept, url) = (access.clone(), server.clone());
        let log_in = move || {
            let (access, url) = (kept.clone(), url.clone());
            async move {
                let config = config_of(&access).await?;
                // The user may have chosen another context meanwhile.
                if config.cluster_url.to_string() != url {
                    return Ok(None);
                }
                client_of(config)
                    .await
                    .map(Some)
                    .map_err(|failure| causes(&failure))
            }
        };
        Ok(Target {
            client: login::renewing(client, log_in),
            access,
            namespace,
            server,
        })
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
        self.clusters()
            .get(name)
            .await
            .map_err(Failure::call(format!("get MiniCluster {name}")))
    }

    /// Whether the MiniCluster's Job is in a queue, such as a default queue, which the MiniCluster does not name. False if
    /// there is no Job, or the user may not read it.
    pub async fn is_job_queued(&self, name: &str) -> Result<bool, Failure> {
        let jobs: Api<Job> = Api::namespaced(self.client.clone(), &self.namespace);
        match jobs.get_metadata(name).await {
            Ok(job) => Ok(job.labels().contains_key(QUEUE_NAME)),
            Err(error) if is_code(&error, 403) || is_code(&error, 404) => Ok(false),
            Err(error) => Err(Failure::call(format!("get Job {name}"))(error)),
        }
    }

    /// Watches the MiniCluster of this name; resumes after failures.
    pub fn watch(&self, name: &str) -> Changes<MiniCluster> {
        let of_name = watch_config().fields(&format!("metadata.name={name}"));
        watcher(self.clusters(), of_name).default_backoff().boxed()
    }

    /// Watches the pods of the brokers of all MiniClusters with this name, also of earlier ones.
    pub fn watch_pods_of(&self, name: &str) -> Changes<Pod> {
        watcher(self.pods(), watch_config().labels(&selector(name)))
            .default_backoff()
            .boxed()
    }

    /// The pods of the MiniCluster's brokers, without those of another MiniCluster with the same name.
    pub async fn pods_of(&self, cluster: &MiniCluster) -> Result<Vec<Pod>, Failure> {
        let mut pods = self.pods_named(&cluster.name_any()).await?;
        pods.retain(|pod| observed::belongs_to(pod, cluster));
        Ok(pods)
    }

    /// As `pods_of`, the latest pod of this index only. There may be thousands of others, so they are not listed.
    pub async fn pod_of_index(&self, cluster: &MiniCluster, index: u32) -> Result<Option<Pod>, Failure> {
        let mut pods = self.pods_named_of_index(&cluster.name_any(), index).await?;
        pods.retain(|pod| observed::belongs_to(pod, cluster));
        Ok(observed::latest_of(index, pods.iter()).cloned())
    }

    /// As `pods_named`, the pods of this index only.
    pub async fn pods_named_of_index(&self, name: &str, index: u32) -> Result<Vec<Pod>, Failure> {
        let selector = format!("{},{}={index}", selector(name), labels::COMPLETION_INDEX);
        self.list_pods(name, &selector).await
    }

    /// The pods of the brokers of all MiniClusters with this name: also of earlier ones, and of one that has no status
    /// yet.
    pub async fn pods_named(&self, name: &str) -> Result<Vec<Pod>, Failure> {
        self.list_pods(name, &selector(name)).await
    }

    /// The services pod of the MiniCluster, if there is one, without that of another MiniCluster with the same name.
    pub async fn services_pod_of(&self, cluster: &MiniCluster) -> Result<Vec<Pod>, Failure> {
        if cluster.spec.services.is_empty() {
            return Ok(Vec::new());
        }
        let name = cluster.name_any();
        let selector = format!("{}={name}", labels::SERVICES_OF);
        let mut pods = self.list_pods(&name, &selector).await?;
        pods.retain(|pod| observed::belongs_to(pod, cluster));
        Ok(pods)
    }

    async fn list_pods(&self, name: &str, selector: &str) -> Result<Vec<Pod>, Failure> {
        let pods = self.pods().list(&ListParams::default().labels(selector)).await;
        Ok(pods
            .map_err(Failure::call(format!("list the pods of {name}")))?
            .items)
    }
}

fn watch_config() -> watcher::Config {
    watcher::Config::default().timeout(WATCH_SECONDS)
}

/// Label selector of the pods of a MiniCluster's brokers.
fn selector(name: &str) -> String {
    format!("{}={name}", labels::CLUSTER)
}

/// A client. A credential plugin, which may take long, runs on another thread.
async fn client_of(config: Config) -> Result<Client, Failure> {
    let client = tokio::task::spawn_blocking(|| new_client(config)).await;
    client.map_err(|error| Failure::on_this_machine("log in")(error.into()))?
}

fn new_client(config: Config) -> Result<Client, Failure> {
    let plugin = CredentialPlugin::of(&config.auth_info);
    let has_plugin = config.auth_info.exec.is_some() || config.auth_info.auth_provider.is_some();
    let builder = ClientBuilder::try_from(config).map_err(|error| match plugin.failure(&error) {
        Some(why) => Failure::Message(format!("failed to log in: {why}")),
        None => Failure::NoServer(causes(&error)),
    })?;
    let limited = MapFutureLayer::new(login::limited(has_plugin));
    let naming = MapResultLayer::new(login::naming_failures_of(plugin));
    // `Retry` clones its service, which only a buffer allows.
    let builder = builder
        .with_layer(&limited)
        .with_layer(&naming)
        .with_layer(&BufferLayer::new(MOST_WAITING))
        .with_layer(&RetryLayer::new(RetryPolicy::default()));
    Ok(builder.build())
}

async fn config_of(access: &Access) -> Result<Config, String> {
    let mut config = config::config(access.kubeconfig.as_deref(), access.context.as_deref())
        .await
        .map_err(|error| causes(&error))?;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    // The retries of kube's default client take minutes, in which a command prints nothing. `client_of` adds a
    // policy with few and short ones.
    config.default_retry = false;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_has_the_options_that_were_given() {
        let access = Access {
            namespace: Some("other".into()),
            context: Some("my cluster".into()),
            kubeconfig: Some("/k".into()),
        };
        assert_eq!(
            access.command("stop --now", "mc"),
            "`kubectl minicluster stop --now mc -n other --context 'my cluster' --kubeconfig /k`"
        );
        assert_eq!(
            Access::default().command("logs", "mc"),
            "`kubectl minicluster logs mc`"
        );
    }

    #[tokio::test]
    async fn empty_options_count_as_not_given() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kubeconfig");
        let text = "{current-context: a, contexts: [{name: a, context: {cluster: a, namespace: team}}], \
                    clusters: [{name: a, cluster: {server: 'http://a'}}]}";
        std::fs::write(&file, text).unwrap();
        let access = Access {
            namespace: Some(String::new()),
            context: Some(String::new()),
            kubeconfig: Some(file.clone()),
        };
        let target = Target::find(access).await.unwrap();
        assert_eq!(target.namespace, "team");
        assert!(target.access.namespace.is_none() && target.access.context.is_none());
        let empty = Access {
            kubeconfig: Some(PathBuf::new()),
            ..Access::default()
        };
        assert_eq!(empty.without_empty().kubeconfig, None);
    }
}
