//! The watches: they put their events into the index, and report the MiniClusters to reconcile.
//!
//! Of Jobs, pods, Services and PersistentVolumes, only those with a label of the operator are watched. ConfigMaps and
//! Secrets are not watched: once the Job exists, the operator writes only the ConfigMap, and that rarely.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use flux_operator_core::labels;
use flux_operator_core::observe::cluster::{self, Cluster};
use flux_operator_core::observe::deleted::{Deleted, Deletions, Propagation};
use flux_operator_core::observe::job::{JobObject, JobSeen};
use flux_operator_core::observe::known_clusters::KnownClusters;
use flux_operator_core::observe::node::{NodeObject, NodeSeen, NodeStatusPart};
use flux_operator_core::observe::partial::Partial;
use flux_operator_core::observe::pod::{PodSeen, PodStatusObject};
use flux_operator_core::observe::service::{ServiceObject, ServiceSeen};
use flux_operator_core::observe::storage::OwnedVolume;
use flux_operator_core::observe::{Index, Key, Kind, Unlabelled};
use flux_operator_core::spans;
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector::Store;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, reflector};
use kube::{Api, Client, Resource, ResourceExt};
use tokio::sync::{mpsc, watch};

use crate::health::log;
use crate::health::panics;
use crate::health::traces::Traces;
use crate::observe::list_watch::{Selection, is_denied, list_watch};

/// A MiniCluster to reconcile.
#[derive(Debug)]
pub struct Wake {
    pub key: Key,
    /// True if the MiniCluster itself has changed. False if other objects have: their changes come in bursts, for
    /// which the controller waits a moment, so that one reconcile handles them all.
    pub at_once: bool,
}

/// Channels by which the watches report.
#[derive(Debug, Clone)]
pub struct Outlets {
    /// MiniClusters to reconcile.
    pub wake: mpsc::UnboundedSender<Wake>,
    /// Lead pods that lack the lead's label, which is written in the background.
    pub unlabelled: mpsc::UnboundedSender<Unlabelled>,
    /// Volumes whose MiniClusters may be gone.
    pub orphans: mpsc::UnboundedSender<OwnedVolume>,
    /// Jobs whose MiniClusters are deleted.
    pub deleted: mpsc::UnboundedSender<Deleted>,
    /// Number of the kinds in `KINDS` that are listed, or whose list is not waited for.
    pub synced: Arc<watch::Sender<usize>>,
}

/// Objects in the first page of a list. Each may have 1.5 MiB, and a page is in memory as a whole. If it is small,
/// `list_watch` doubles the next one.
const PAGE: u32 = 20;
/// MiniClusters in the first page of their list. They are fewer, since they are read with all their fields.
const LARGE_PAGE: u32 = 10;

/// Number of kinds whose lists the first reconcile waits for: MiniCluster, Job, Pod, Service, Node. The watches of
/// volumes and storage classes may not run (`Options::volumes`), so no reconcile waits for their lists.
pub const KINDS: usize = 5;

impl Outlets {
    /// Reports MiniClusters to reconcile. `at_once`: they have changed themselves, and not only other objects.
    fn wake(&self, keys: impl IntoIterator<Item = Key>, at_once: bool) {
        for key in keys {
            // Sending fails only when the process ends.
            let _ = self.wake.send(Wake { key, at_once });
        }
    }

    /// Counts a kind as listed: its first list is complete, or is not waited for. Only the first call with the same
    /// `is_first` counts.
    fn count_listed(&self, is_first: &mut bool) {
        if std::mem::take(is_first) {
            self.synced.send_modify(|synced| *synced += 1);
        }
    }
}

/// All objects of a kind in `namespace`. None: in all namespaces.
fn api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

/// The objects that this label selector selects. Its labels have the domain of this project: FluxCD's operator is
/// called flux-operator too, so a label with the operator's name could be on its objects.
fn labelled(selector: &str) -> Selection {
    Selection {
        labels: selector.to_owned(),
        page: PAGE,
    }
}

/// All objects: the empty label selector.
fn all() -> Selection {
    labelled("")
}

/// Watches MiniClusters. Returns the store in which they are kept, and the endless future that keeps it up to date.
/// `reported` is called with the uid and resourceVersion of each change that is in the store, `forget` with the key
/// and uid of each MiniCluster that is gone.
pub fn clusters<R: Fn(&str, u64) + Send + 'static, F: Fn(&Key, &str) + Send + 'static>(
    client: &Client,
    namespace: Option<&str>,
    index: Arc<Index>,
    reported: R,
    forget: F,
    outlets: Outlets,
) -> (Store<Cluster>, impl Future<Output = ()> + use<R, F>) {
    let (store, writer) = reflector::store();
    let selection = Selection {
        page: LARGE_PAGE,
        ..all()
    };
    let events = list_watch(api::<Cluster>(client, namespace), selection)
        .modify(cluster::shrink)
        .reflect(writer);
    let mut known = KnownClusters::default();
    let mut deletions = Deletions::default();
    // New or changed MiniClusters of an incomplete list. The store gets the list when it is complete, so they are
    // reconciled only then. If a list begins anew, they stay: `known` does not report them as news again.
    let mut listed_news: Vec<Key> = Vec::new();
    let mut is_first = true;
    // Reports the Job of a MiniCluster whose objects Kubernetes deletes, so that the operator deletes the pods sooner.
    // `propagation` is None if Kubernetes does not delete the objects (yet), or if this was reported before.
    let report_deletion =
        |index: &Index, outlets: &Outlets, cluster: &Cluster, propagation: Option<Propagation>| {
            let (key, uid) = (Key::of(cluster.meta()), cluster.uid().unwrap_or_default());
            if let Some(propagation) = propagation
                && !cluster::is_managed_elsewhere(cluster)
                && let Some(job) = index.job_of(&key, &uid)
            {
                let _ = outlets.deleted.send(Deleted {
                    cluster: key,
                    job: job.uid,
                    propagation,
                });
            }
        };
    let update = events.for_each(move |event| {
        let is_stored = matches!(event, Ok(Event::Apply(_)));
        // Key and uid of each MiniCluster that no longer exists.
        let gone = match event {
            Ok(Event::Apply(cluster) | Event::InitApply(cluster)) => {
                if is_stored {
                    let uid = cluster.uid().unwrap_or_default();
                    reported(&uid, cluster::version(cluster.meta()));
                }
                report_deletion(&index, &outlets, &cluster, deletions.seen(cluster.meta()));
                let seen = known.see(&cluster);
                if seen.is_news && is_stored {
                    outlets.wake([Key::of(cluster.meta())], true);
                } else if seen.is_news {
                    listed_news.push(Key::of(cluster.meta()));
                }
                // An earlier MiniCluster of this name no longer exists.
                seen.replaced.into_iter().collect()
            }
            Ok(Event::Delete(cluster)) => {
                report_deletion(&index, &outlets, &cluster, deletions.gone(cluster.meta()));
                known.remove(&cluster).into_iter().collect()
            }
            Ok(Event::Init) => {
                known.begin_list();
                Vec::new()
            }
            Ok(Event::InitDone) => {
                outlets.wake(std::mem::take(&mut listed_news), true);
                outlets.count_listed(&mut is_first);
                known.end_list()
            }
            Err(error) => {
                log::warn("the watch of MiniClusters failed", &error);
                Vec::new()
            }
        };
        for (key, uid) in gone {
            for orphan in index.orphans(&uid) {
                let _ = outlets.orphans.send(orphan);
            }
            deletions.forget(&uid);
            forget(&key, &uid);
        }
        std::future::ready(())
    });
    (store, update)
}

/// Follows the events of one kind. `update` puts an object into the index, and returns the MiniClusters to wake.
async fn follow<K: Resource>(
    kind: Kind,
    events: impl Stream<Item = watcher::Result<Event<K>>>,
    index: Arc<Index>,
    outlets: Outlets,
    update: impl Fn(&K) -> Vec<Key>,
) {
    // An object that causes a panic is skipped; the panic hook logs the bug.
    let update_safely = |object: &K| panics::catch_call(|| update(object)).unwrap_or_default();
    // Uids of the objects in the current list. When the list ends, the index drops all other objects of the kind.
    let mut listed: HashSet<String> = HashSet::new();
    let mut is_first = true;
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => {
                listed.extend(object.meta().uid.clone());
                outlets.wake(update_safely(&object), false);
            }
            Ok(Event::InitDone) => {
                outlets.wake(index.keep_only(kind, &std::mem::take(&mut listed)), false);
                outlets.count_listed(&mut is_first);
            }
            Ok(Event::Apply(object)) => outlets.wake(update_safely(&object), false),
            Ok(Event::Delete(object)) => {
                // The index remembers deleted Jobs and lead pods. So it first gets the last state, which may be new.
                drop(update_safely(&object));
                outlets.wake(index.remove(kind, object.meta()), false);
            }
            Err(error) => {
                crate::health::log::warn(&format!("the watch of kind {kind:?} failed"), &error);
            }
        }
    }
}

/// Watches Jobs; their pod templates are not kept. Endless.
pub async fn jobs(client: Client, namespace: Option<String>, index: Arc<Index>, outlets: Outlets) {
    let events = list_watch(
        api::<JobObject>(&client, namespace.as_deref()),
        labelled(labels::CLUSTER),
    );
    let updated_index = index.clone();
    let unlabelled_pods = outlets.unlabelled.clone();
    follow(Kind::Job, events, index, outlets, move |job: &JobObject| {
        let key = updated_index.update_job(&job.metadata, JobSeen::of(job));
        // `update_pod` returns an unlabelled lead only if it knows the lead's Job. Leads that were reported before
        // their Job are sent now.
        for unlabelled in key.iter().flat_map(|key| updated_index.take_unlabelled(key)) {
            let _ = unlabelled_pods.send(unlabelled);
        }
        key.into_iter().collect()
    })
    .await;
}

/// Watches pods; most of their specifications is not kept. Endless.
pub async fn pods(
    client: Client,
    namespace: Option<String>,
    index: Arc<Index>,
    traces: Arc<Traces>,
    outlets: Outlets,
) {
    let events = list_watch(
        api::<PodStatusObject>(&client, namespace.as_deref()),
        // All pods of MiniClusters have this label. The services pod lacks `CLUSTER`.
        labelled(labels::HEADLESS),
    );
    let updated_index = index.clone();
    let unlabelled_pods = outlets.unlabelled.clone();
    follow(Kind::Pod, events, index, outlets, move |pod: &PodStatusObject| {
        if traces.are_wanted() {
            // Read before `update_pod` overwrites it: only ends that are new become spans.
            let known_ends = updated_index.runner_ends(&pod.metadata);
            let traced = spans::of_pod(pod, known_ends, Timestamp::now());
            traced.into_iter().for_each(|traced| traces.send(traced));
        }
        let update = updated_index.update_pod(&pod.metadata, PodSeen::of_object(pod));
        if let Some(unlabelled) = update.unlabelled {
            let _ = unlabelled_pods.send(unlabelled);
        }
        update.woken.into_iter().collect()
    })
    .await;
}

/// Watches Services. Endless.
pub async fn services(client: Client, namespace: Option<String>, index: Arc<Index>, outlets: Outlets) {
    let events = list_watch(
        api::<ServiceObject>(&client, namespace.as_deref()),
        // All Services of the operator have this label, those of sidecars too. The headless Service lacks `CLUSTER`.
        labelled(labels::HEADLESS),
    );
    let updated_index = index.clone();
    follow(
        Kind::Service,
        events,
        index,
        outlets,
        move |service: &ServiceObject| {
            updated_index.update_service(&service.metadata, ServiceSeen::of(service))
        },
    )
    .await;
}

/// The names in a list that has begun and is not complete; otherwise None. Names in events of the watch are not
/// recorded: over months, there would be too many.
#[derive(Debug, Default)]
struct Listed(Option<HashSet<String>>);

impl Listed {
    fn begin(&mut self) {
        self.0 = Some(HashSet::new());
    }

    fn see(&mut self, name: String) {
        if let Some(names) = &mut self.0 {
            names.insert(name);
        }
    }

    fn end(&mut self) -> HashSet<String> {
        self.0.take().unwrap_or_default()
    }

    fn has_begun(&self) -> bool {
        self.0.is_some()
    }
}

/// Logs that the operator lacks the permission for a watch, as it may in an installation for one namespace. The watch
/// keeps trying, since the permission may be granted later.
struct Permission {
    /// The kind, in the plural.
    kind: &'static str,
    /// The consequence of the missing permission.
    without: &'static str,
    is_missing: bool,
}

impl Permission {
    fn new(kind: &'static str, without: &'static str) -> Permission {
        Permission {
            kind,
            without,
            is_missing: false,
        }
    }

    /// Logs that the permission is missing, or no longer is, once for each change. Also logs any other failure.
    fn log<K>(&mut self, event: &watcher::Result<Event<K>>) {
        let is_missing = match event {
            Ok(_) => false,
            Err(error) if is_denied(error) => true,
            Err(error) => return log::warn(&format!("the watch of {} failed", self.kind), error),
        };
        if is_missing && !self.is_missing {
            tracing::info!("no permission to watch {}: {}", self.kind, self.without);
        } else if self.is_missing && !is_missing {
            tracing::info!("{} can be watched", self.kind);
        }
        self.is_missing = is_missing;
    }
}

/// Watches nodes: whether they can mount images, which is used when a Job is created, and whether they respond.
/// Without the permission to list nodes, the operator starts without the list. Endless.
pub async fn nodes(client: Client, index: Arc<Index>, outlets: Outlets) {
    let events = list_watch(Api::<NodeObject>::all(client), all());
    let mut events = std::pin::pin!(events);
    let mut permission = Permission::new("nodes", "the view is copied unless --view-source=imageVolume");
    let mut names = Listed::default();
    let mut is_first = true;
    while let Some(event) = events.next().await {
        permission.log(&event);
        match event {
            Ok(Event::Init) => names.begin(),
            Ok(Event::Apply(node) | Event::InitApply(node)) => {
                names.see(node.name_any());
                index.update_node(&node.name_any(), NodeSeen::of(&node));
                let is_silent = node.status.as_ref().is_some_and(NodeStatusPart::is_silent);
                outlets.wake(index.update_silence(&node.name_any(), is_silent), false);
            }
            Ok(Event::Delete(node)) => {
                index.update_node(&node.name_any(), None);
                outlets.wake(index.update_silence(&node.name_any(), false), false);
            }
            Ok(Event::InitDone) => {
                let woken = index.keep_nodes(&names.end());
                outlets.wake(woken, false);
                outlets.count_listed(&mut is_first);
            }
            // In the middle of a list, the operator waits for the rest: it must not decide by a part of the nodes.
            Err(error) if is_denied(&error) && !names.has_begun() => outlets.count_listed(&mut is_first),
            Err(_) => {}
        }
    }
}

/// Watches PersistentVolumes of MiniClusters: to delete those of deleted MiniClusters, and to report those with the
/// same CSI volume. Endless.
pub async fn volumes(client: Client, namespace: Option<String>, index: Arc<Index>, outlets: Outlets) {
    // PersistentVolumes have no namespace: a label has the namespace of their MiniCluster.
    let mut selector = labels::CLUSTER.to_owned();
    if let Some(namespace) = namespace {
        selector.push_str(&format!(",{}={namespace}", labels::NAMESPACE));
    }
    let api: Api<Partial<PersistentVolume>> = Api::all(client);
    let events = list_watch(api, labelled(&selector));
    let mut events = std::pin::pin!(events);
    let mut permission = Permission::new("PersistentVolumes", "spec.volumes is not supported");
    let mut listed = Listed::default();
    while let Some(event) = events.next().await {
        permission.log(&event);
        match event {
            Ok(Event::Apply(volume) | Event::InitApply(volume)) => {
                let name = volume.name_any();
                outlets.wake(index.update_volume(&name, Some(volume.meta())), false);
                listed.see(name);
                // Its MiniCluster may have been deleted while no operator ran. The receiver finds out.
                if let Some(owned) = OwnedVolume::of(volume.meta()) {
                    let _ = outlets.orphans.send(owned);
                }
            }
            Ok(Event::Delete(volume)) => {
                outlets.wake(index.update_volume(&volume.name_any(), None), false);
            }
            Ok(Event::Init) => listed.begin(),
            Ok(Event::InitDone) => outlets.wake(index.keep_volumes(&listed.end()), false),
            Err(_) => {}
        }
    }
}

/// Watches the names of storage classes, to report one that does not exist. Endless.
pub async fn storage_classes(client: Client, index: Arc<Index>, outlets: Outlets) {
    let api: Api<Partial<StorageClass>> = Api::all(client);
    let events = list_watch(api, all());
    let mut events = std::pin::pin!(events);
    let mut permission = Permission::new("storage classes", "one that is missing is not reported");
    let mut names: BTreeSet<String> = BTreeSet::new();
    while let Some(event) = events.next().await {
        permission.log(&event);
        match event {
            Ok(Event::Init) => {
                names.clear();
                continue;
            }
            Ok(Event::InitApply(class)) => {
                names.insert(class.name_any());
                continue;
            }
            Ok(Event::InitDone) => {}
            Ok(Event::Apply(class)) => {
                names.insert(class.name_any());
            }
            Ok(Event::Delete(class)) => {
                names.remove(&class.name_any());
            }
            // None: it is unknown which classes exist. If only the watch is denied, the listed names stay, since no new
            // list follows.
            Err(watcher::Error::InitialListFailed(kube::Error::Api(status))) if status.code == 403 => {
                outlets.wake(index.update_storage_classes(None), false);
                continue;
            }
            Err(_) => continue,
        }
        outlets.wake(index.update_storage_classes(Some(names.clone())), false);
    }
}

#[cfg(test)]
mod tests;
