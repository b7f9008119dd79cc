//! The watches: events go into the index, and the MiniClusters to reconcile come out.
//!
//! Only objects with our label are watched. ConfigMaps and Secrets are not: once made they never change.
#![expect(clippy::disallowed_types, reason = "watches are clients")]

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::task::Poll;

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::runtime::reflector::Store;
use kube::runtime::watcher::{self, Event, watcher};
use kube::runtime::{WatchStreamExt, reflector};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};

use crate::health::log;
use crate::health::panics;
use crate::labels;
use crate::observe::cluster::{self, Cluster};
use crate::observe::deleted::{Deleted, Deletions, Propagation};
use crate::observe::job::{JobObject, JobSeen};
use crate::observe::node::{NodeInfo, NodeObject, NodeState};
use crate::observe::partial::Partial;
use crate::observe::pod::{PodSeen, PodStatusObject};
use crate::observe::service::{ServiceObject, ServiceSeen};
use crate::observe::storage::Disk;
use crate::observe::storage::Orphan;
use crate::observe::{Index, Key, Kind, Unlabelled};

/// A MiniCluster to reconcile. `at_once` is false for news of a Job's pods, which come in bursts and are taken together.
#[derive(Debug)]
pub struct Wake {
    pub key: Key,
    pub at_once: bool,
}

/// Channels by which the watches report.
#[derive(Debug, Clone)]
pub struct Outlets {
    pub wake: mpsc::UnboundedSender<Wake>,
    pub unlabelled: mpsc::UnboundedSender<Unlabelled>,
    /// Volumes whose MiniClusters may be gone.
    pub orphans: mpsc::UnboundedSender<Orphan>,
    /// Jobs whose MiniClusters are deleted.
    pub deleted: mpsc::UnboundedSender<Deleted>,
    /// Number of kinds whose first list is complete.
    pub synced: Arc<watch::Sender<usize>>,
}

/// Objects in one answer to a list: each may have 1.5 MiB, all of which is there at the same time.
const PAGE: u32 = 20;
/// Page size for MiniClusters, which are read whole.
const LARGE_PAGE: u32 = 10;

/// Number of kinds that must have been listed before anything is decided: Job, Pod, Service, Node.
pub const KINDS: usize = 4;

impl Outlets {
    fn wake(&self, keys: impl IntoIterator<Item = Key>, at_once: bool) {
        for key in keys {
            // Nobody listens any more when the process ends.
            let _ = self.wake.send(Wake { key, at_once });
        }
    }
}

fn api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

/// A watch of the objects that have a label of ours, whatever its value. The label has our domain: FluxCD's operator has
/// our operator's name.
fn labelled(label: &str) -> watcher::Config {
    watcher::Config::default().labels(label).page_size(PAGE)
}

/// An endless watch. If it cannot begin because its resourceVersion is too old, it begins again with a list; kube does that
/// only if the watch itself reports it.
fn watched<K>(api: Api<K>, config: watcher::Config) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let begin = move || watcher(api.clone(), config.clone()).boxed();
    let mut events = begin();
    let events = futures::stream::poll_fn(move |task| {
        let event = events.poll_next_unpin(task);
        if let Poll::Ready(Some(Err(watcher::Error::WatchStartFailed(kube::Error::Api(status))))) = &event
            && status.code == 410
        {
            events = begin();
        }
        event
    });
    events.default_backoff()
}

/// Watches MiniClusters, and returns the store in which they are kept. Endless. `forget` is called with key and uid of one
/// that is gone.
pub fn clusters<F: Fn(&Key, &str) + Send + 'static>(
    client: &Client,
    namespace: Option<&str>,
    index: Arc<Index>,
    forget: F,
    outlets: Outlets,
) -> (Store<Cluster>, impl Future<Output = ()> + use<F>) {
    let (store, writer) = reflector::store();
    let events = watched(api::<Cluster>(client, namespace), watcher::Config::default().page_size(LARGE_PAGE))
        .modify(cluster::shrink)
        .reflect(writer);
    // Generation of the spec, and hash of what is for a queue, as last seen: our own status patches are no news. A
    // deletion raises the generation, too; labels and annotations do not.
    let mut last_seen: HashMap<String, (Option<i64>, u64)> = HashMap::new();
    let mut deletions = Deletions::default();
    let tell = |index: &Index, outlets: &Outlets, cluster: &Cluster, propagation: Option<Propagation>| {
        let (key, uid) = (Key::of(cluster.meta()), cluster.uid().unwrap_or_default());
        if let Some(propagation) = propagation
            && !cluster::is_managed_elsewhere(cluster)
            && let Some(job) = index.job(&key).filter(|job| job.is_of(&uid))
        {
            let _ = outlets.deleted.send(Deleted { cluster: key, job: job.uid, propagation });
        }
    };
    let drive = events.for_each(move |event| {
        match event {
            Ok(Event::Apply(cluster) | Event::InitApply(cluster)) => {
                let metadata = cluster.meta();
                tell(&index, &outlets, &cluster, deletions.seen(metadata));
                let now = (metadata.generation, cluster::queueing_hash(&cluster));
                if last_seen.insert(cluster.uid().unwrap_or_default(), now) != Some(now) {
                    outlets.wake([Key::of(metadata)], true);
                }
            }
            Ok(Event::Delete(cluster)) => {
                let uid = cluster.uid().unwrap_or_default();
                last_seen.remove(&uid);
                tell(&index, &outlets, &cluster, deletions.gone(cluster.meta()));
                for orphan in index.orphans(&uid) {
                    let _ = outlets.orphans.send(orphan);
                }
                forget(&Key::of(cluster.meta()), &uid);
            }
            Ok(Event::Init | Event::InitDone) => {}
            Err(error) => crate::health::log::warn("the watch of MiniClusters failed", &error),
        }
        std::future::ready(())
    });
    (store, drive)
}

/// Follows one kind: `seen` puts an object into the index and says who has to know.
async fn follow<K: Resource>(
    kind: Kind,
    events: impl Stream<Item = watcher::Result<Event<K>>>,
    index: Arc<Index>,
    outlets: Outlets,
    seen: impl Fn(&K) -> Vec<Key>,
) {
    // An object that we panic at is skipped; the log reports the bug.
    let seen = |object: &K| panics::catch_call(|| seen(object)).unwrap_or_default();
    let mut listed: HashSet<String> = HashSet::new();
    let mut is_first = true;
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => {
                listed.extend(object.meta().uid.clone());
                outlets.wake(seen(&object), false);
            }
            Ok(Event::InitDone) => {
                outlets.wake(index.keep_only(kind, &std::mem::take(&mut listed)), false);
                if std::mem::take(&mut is_first) {
                    outlets.synced.send_modify(|synced| *synced += 1);
                }
            }
            Ok(Event::Apply(object)) => outlets.wake(seen(&object), false),
            Ok(Event::Delete(object)) => {
                // The last state of the object may be news.
                drop(seen(&object));
                outlets.wake(index.remove(kind, object.meta()), false);
            }
            Err(error) => {
                crate::health::log::warn(&format!("the watch of kind {kind:?} failed"), &error);
            }
        }
    }
}

/// Watches Jobs, without their templates. Endless.
pub async fn jobs(client: Client, namespace: Option<String>, index: Arc<Index>, outlets: Outlets) {
    let events = watched(api::<JobObject>(&client, namespace.as_deref()), labelled(labels::CLUSTER));
    let seen_in = index.clone();
    let pods = outlets.clone();
    follow(Kind::Job, events, index, outlets, move |job: &JobObject| {
        let key = seen_in.update_job(&job.metadata, JobSeen::of(job));
        // Pods may have been seen before their Job.
        for unlabelled in key.iter().flat_map(|key| seen_in.take_unlabelled(key)) {
            let _ = pods.unlabelled.send(unlabelled);
        }
        key.into_iter().collect()
    })
    .await;
}

/// Watches pods, without most of their specifications. Endless.
pub async fn pods(client: Client, namespace: Option<String>, index: Arc<Index>, outlets: Outlets) {
    let events = watched(api::<PodStatusObject>(&client, namespace.as_deref()), labelled(labels::HEADLESS));
    let seen_in = index.clone();
    let send = outlets.unlabelled.clone();
    follow(Kind::Pod, events, index, outlets, move |pod: &PodStatusObject| {
        let (key, unlabelled) = seen_in.update_pod(&pod.metadata, PodSeen::of_object(pod));
        if let Some(unlabelled) = unlabelled {
            let _ = send.send(unlabelled);
        }
        key.into_iter().collect()
    })
    .await;
}

/// Watches Services. Endless.
pub async fn services(client: Client, namespace: Option<String>, index: Arc<Index>, outlets: Outlets) {
    let events = watched(api::<ServiceObject>(&client, namespace.as_deref()), labelled(labels::HEADLESS));
    let seen_in = index.clone();
    follow(Kind::Service, events, index, outlets, move |service: &ServiceObject| {
        seen_in.update_service(&service.metadata, ServiceSeen::of(service))
    })
    .await;
}

/// Watches nodes, for whether they can mount images, which matters when a Job is created, and whether they answer. Ends if
/// the operator may not list them, as in an installation for one namespace.
pub async fn nodes(client: Client, index: Arc<Index>, outlets: Outlets) {
    let events = watched(Api::<NodeObject>::all(client), watcher::Config::default());
    let mut events = std::pin::pin!(events);
    let mut is_first = true;
    let synced = outlets.synced.clone();
    let mut listed = move || {
        if std::mem::take(&mut is_first) {
            synced.send_modify(|synced| *synced += 1);
        }
    };
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => index.forget_nodes(),
            Ok(Event::Apply(node) | Event::InitApply(node)) => {
                let info = node.status.as_ref().map(|status| &status.node_info);
                let mounts = info.is_some_and(NodeInfo::mounts_images);
                index.update_node(&node.name_any(), (!node.spec.unschedulable).then_some(mounts));
                let is_silent = node.status.as_ref().is_some_and(NodeState::is_silent);
                outlets.wake(index.update_silence(&node.name_any(), is_silent), false);
            }
            Ok(Event::Delete(node)) => {
                index.update_node(&node.name_any(), None);
                outlets.wake(index.update_silence(&node.name_any(), false), false);
            }
            Ok(Event::InitDone) => listed(),
            Err(watcher::Error::InitialListFailed(kube::Error::Api(status))) if status.code == 403 => {
                tracing::info!("no permission to watch nodes: the view is copied unless --view-source=imageVolume");
                listed();
                return;
            }
            Err(error) => log::warn("the watch of nodes failed", &error),
        }
    }
}

/// Watches PersistentVolumes of MiniClusters. Ends if the operator may not list them, as in an installation for one
/// namespace.
pub async fn volumes(client: Client, namespace: Option<String>, index: Arc<Index>, outlets: Outlets) {
    let mut selector = labels::CLUSTER.to_owned();
    if let Some(namespace) = namespace {
        selector.push_str(&format!(",{}={namespace}", labels::NAMESPACE));
    }
    let api: Api<Partial<PersistentVolume>> = Api::all(client);
    let events = watched(api, watcher::Config::default().labels(&selector));
    let mut events = std::pin::pin!(events);
    let mut listed: HashSet<String> = HashSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(volume) | Event::InitApply(volume)) => {
                let (name, orphan) = (volume.name_any(), Orphan::of(volume.meta()));
                index.update_volume(&name, orphan.as_ref());
                outlets.wake(index.update_disk(&name, Disk::of(volume.meta())), false);
                listed.insert(name);
                if let Some(orphan) = orphan {
                    let _ = outlets.orphans.send(orphan);
                }
            }
            Ok(Event::Delete(volume)) => {
                index.update_volume(&volume.name_any(), None);
                outlets.wake(index.update_disk(&volume.name_any(), None), false);
            }
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitDone) => outlets.wake(index.keep_disks(&std::mem::take(&mut listed)), false),
            Err(watcher::Error::InitialListFailed(kube::Error::Api(status))) if status.code == 403 => {
                tracing::info!("no permission to watch PersistentVolumes: spec.volumes is not supported");
                return;
            }
            Err(error) => log::warn("the watch of PersistentVolumes failed", &error),
        }
    }
}

/// Watches the names of storage classes, to report one that does not exist. Ends if the operator may not list them.
pub async fn storage_classes(client: Client, index: Arc<Index>, outlets: Outlets) {
    let api: Api<Partial<StorageClass>> = Api::all(client);
    let events = watched(api, watcher::Config::default());
    let mut events = std::pin::pin!(events);
    let mut names: BTreeSet<String> = BTreeSet::new();
    while let Some(event) = events.next().await {
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
            Err(watcher::Error::InitialListFailed(kube::Error::Api(status))) if status.code == 403 => {
                outlets.wake(index.update_storage_classes(None), false);
                return;
            }
            Err(error) => {
                log::warn("the watch of storage classes failed", &error);
                continue;
            }
        }
        outlets.wake(index.update_storage_classes(Some(names.clone())), false);
    }
}
