//! The objects that the watches have reported, grouped by MiniCluster. Only the fields that decisions need are kept.
//!
//! ```text
//! watch event ─► JobSeen | PodSeen | ServiceSeen ─► Index ─► the MiniCluster to reconcile, if anything changed
//! ```
//!
//! Labels say to which MiniCluster an object belongs. Whether the operator created it is decided by its owner's uid,
//! since others can set labels too.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flux_shared::crd::v1alpha2::LostPod;
use flux_shared::validate::ValidMiniCluster;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::labels;
use pod_end::loss;
use storage::OwnedVolume;

pub mod cluster;
pub mod deleted;
pub mod event;
pub(crate) mod image;
pub mod job;
pub mod known_clusters;
mod members;
pub mod node;
mod objects;
pub mod partial;
pub mod pod;
pub mod pod_end;
pub mod pod_phase;
pub mod service;
pub mod storage;
pub mod workload;

pub use partial::{controller_uid, is_minicluster};

use job::JobSeen;
use members::Members;
use node::{NodeSeen, Nodes, Placement, ViewNodes};
use pod::{PodSeen, Trouble};
use service::ServiceSeen;
use storage::{DiskSeen, Storage, Volume};

/// Namespace and name of a MiniCluster, or of a Service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Key {
        Key {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// Namespace and name of an object.
    pub fn of(metadata: &ObjectMeta) -> Key {
        Key::new(
            metadata.namespace.clone().unwrap_or_default(),
            metadata.name.clone().unwrap_or_default(),
        )
    }

    /// The MiniCluster that an object's label names. None: the object lacks the label or has no namespace.
    fn cluster_of(metadata: &ObjectMeta, label: &str) -> Option<Key> {
        let name = metadata.labels.as_ref()?.get(label)?;
        Some(Key::new(metadata.namespace.clone()?, name.clone()))
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

fn uid(metadata: &ObjectMeta) -> String {
    metadata.uid.clone().unwrap_or_default()
}

/// The objects of one MiniCluster, as last seen.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observed {
    pub job: Option<JobSeen>,
    /// Pods by uid, not by index: an index may have a pod that has ended and the one that replaces it.
    /// Boxed to save memory: each node of a BTreeMap has room for eleven values, and most MiniClusters have fewer pods.
    pub pods: BTreeMap<String, Box<PodSeen>>,
    pub services_pod: Option<ServicesPodSeen>,
    /// Services of sidecars, by name.
    pub services: BTreeMap<String, ServiceSeen>,
    /// Lead pods of the Job that no longer exist, as last seen: the newest few.
    pub gone_leads: Vec<PodSeen>,
    /// The Job's pods that were removed while it ran, at most [`pod_end::LOST_KEPT`]. Their `time` is empty: this crate
    /// has no clock. The reconcile sets it when it adds them to the status.
    pub losses: Vec<LostPod>,
    /// The last Job, as last seen, if it no longer exists and no other Job was seen since.
    pub last_job: Option<Box<JobSeen>>,
    /// The newest resourceVersion seen of a Job, even of one that no longer exists. Older reports are ignored: the
    /// watch may lag behind the operator's own write, and the answer to a read may lag behind the watch.
    pub job_version: u64,
}

/// What the operator keeps of the services pod (the pod of `spec.services`).
#[derive(Debug, Clone, PartialEq)]
pub struct ServicesPodSeen {
    pub uid: String,
    pub controller_uid: Option<String>,
    pub is_deleting: bool,
    /// It ran, was evicted, and stays in the API server as a failed pod. The operator then recreates it. (A pod that
    /// its node never started does not count: it would be recreated again and again.)
    pub was_evicted: bool,
    /// Why it does not start, or which of its containers has failed. (A scheduling gate counts, too: Kueue gates pods
    /// that it takes for Jobs of their own.)
    pub trouble: Option<Box<Trouble>>,
    /// The queue in its label, which Kueue may have added.
    pub queue: Option<String>,
}

/// Kinds of objects that the index keeps for each MiniCluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Job,
    Pod,
    Service,
}

/// A lead's pod that still lacks the documented label `job-index`, and the condition by which the Job's failure policy
/// recognises it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unlabelled {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// What follows from the current state of a pod.
#[derive(Debug, Default)]
pub struct PodUpdate {
    /// The MiniCluster to reconcile, if the state has changed.
    pub woken: Option<Key>,
    /// The lead's pod, if the caller has to add its label and condition.
    pub unlabelled: Option<Unlabelled>,
}

/// All objects seen, by MiniCluster.
#[derive(Debug, Default)]
pub struct Index {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Shared with the reconciles that read them, since there may be thousands of pods. A change during such a read
    /// makes a copy.
    clusters: HashMap<Key, Arc<Observed>>,
    /// Headless Services, by their own name.
    headless: HashMap<Key, Arc<ServiceSeen>>,
    /// The MiniClusters that use each headless Service. They are reconciled when it is deleted.
    members: Members,
    /// Nodes on which pods can be scheduled, by name.
    nodes: Nodes,
    /// Names of the nodes that have stopped responding.
    silent_nodes: HashSet<String>,
    /// The operator's PersistentVolumes, and the storage classes.
    storage: Storage,
}

impl Index {
    fn state(&self) -> MutexGuard<'_, State> {
        // A poisoned lock may be used: no code that holds it can panic in the middle of a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The objects seen of `cluster`.
    pub fn observed(&self, cluster: &Key) -> Arc<Observed> {
        self.state().clusters.get(cluster).cloned().unwrap_or_default()
    }

    /// The Job with the MiniCluster's name, without its pods, which may be thousands.
    pub fn job(&self, cluster: &Key) -> Option<JobSeen> {
        self.state().clusters.get(cluster)?.job.clone()
    }

    /// The same, if the MiniCluster with this uid controls that Job.
    pub fn job_of(&self, cluster: &Key, uid: &str) -> Option<JobSeen> {
        self.state().clusters.get(cluster)?.job_of(uid).cloned()
    }

    /// Whether a Job with the MiniCluster's name has been seen.
    pub fn has_job(&self, cluster: &Key) -> bool {
        self.state()
            .clusters
            .get(cluster)
            .is_some_and(|observed| observed.job.is_some())
    }

    /// Whether `predicate` is true for the objects of any MiniCluster.
    pub fn any(&self, predicate: impl Fn(&Key, &Observed) -> bool) -> bool {
        self.state()
            .clusters
            .iter()
            .any(|(key, observed)| predicate(key, observed))
    }

    /// The headless Service of this namespace and name, if it was seen.
    pub fn headless(&self, service: &Key) -> Option<Arc<ServiceSeen>> {
        self.state().headless.get(service).cloned()
    }

    /// Records that the MiniCluster `cluster`, in the Service's namespace, uses this headless Service.
    pub fn join(&self, service: &Key, cluster: &str) {
        self.state().members.join(service, cluster);
    }

    /// Forgets a MiniCluster that no longer exists. Its objects may still exist: the watches report their deletion.
    pub fn forget_cluster(&self, cluster: &Key) {
        let mut state = self.state();
        if let Some(observed) = state.clusters.get_mut(cluster) {
            Arc::make_mut(observed).clear_history();
        }
        state.drop_empty(cluster);
        state.members.leave(cluster);
        state.shrink_clusters();
    }

    /// Stores the current state of a PersistentVolume; None if it no longer exists. If its disk has changed, returns the
    /// MiniClusters to reconcile.
    pub fn update_volume(&self, name: &str, metadata: Option<&ObjectMeta>) -> Vec<Key> {
        let volume = metadata.map(Volume::of).unwrap_or_default();
        self.state().storage.update_volume(name, volume)
    }

    /// Forgets the PersistentVolumes whose names are not in a complete list. Returns the MiniClusters to reconcile.
    pub fn keep_volumes(&self, listed: &HashSet<String>) -> Vec<Key> {
        self.state().storage.keep_volumes(listed)
    }

    /// Stores the names of all storage classes; None if the operator may not list them. If this is a change, returns
    /// the MiniClusters to reconcile.
    pub fn update_storage_classes(&self, names: Option<BTreeSet<String>>) -> Vec<Key> {
        self.state().storage.update_classes(names)
    }

    /// The CSI volumes of a MiniCluster. None if the volumes or storage classes have not been listed yet.
    pub fn disks_of(&self, cluster: &ValidMiniCluster) -> Option<Vec<DiskSeen>> {
        self.state().storage.disks_of(cluster)
    }

    /// Stores a node's current state. `node`: None if no pod can be scheduled on it, or it no longer exists. Wakes no
    /// MiniCluster: an existing Job does not change how its pods get the view.
    pub fn update_node(&self, name: &str, node: Option<NodeSeen>) {
        self.state().nodes.update(name, node);
    }

    /// Forgets the nodes whose names are not in a complete list. Returns the MiniClusters to reconcile.
    pub fn keep_nodes(&self, listed: &HashSet<String>) -> Vec<Key> {
        self.state().nodes.keep(listed);
        let silent: Vec<String> = self
            .state()
            .silent_nodes
            .iter()
            .filter(|name| !listed.contains(*name))
            .cloned()
            .collect();
        silent
            .iter()
            .flat_map(|name| self.update_silence(name, false))
            .collect()
    }

    /// Stores whether a node has stopped responding. If this is a change, returns the MiniClusters to reconcile: those
    /// with pods on this node that have not ended.
    pub fn update_silence(&self, name: &str, is_silent: bool) -> Vec<Key> {
        let mut state = self.state();
        let is_change = if is_silent {
            state.silent_nodes.insert(name.to_owned())
        } else {
            state.silent_nodes.remove(name)
        };
        if !is_change {
            return Vec::new();
        }
        let mut woken = Vec::new();
        let is_on_node = |pod: &PodSeen| pod.node.as_deref() == Some(name) && !pod.has_ended;
        for (key, observed) in state
            .clusters
            .iter_mut()
            .filter(|(_, observed)| observed.pods.values().any(|pod| is_on_node(pod)))
        {
            for pod in Arc::make_mut(observed)
                .pods
                .values_mut()
                .filter(|pod| is_on_node(pod))
            {
                pod.is_on_silent_node = is_silent;
            }
            woken.push(key.clone());
        }
        woken
    }

    /// Whether the nodes that pods with this placement may use can mount the view's image (the image with Flux) as a
    /// volume. `placement` is called only if the answer depends on it.
    pub fn view_nodes(&self, placement: impl FnOnce() -> Placement) -> ViewNodes {
        self.state().nodes.view_nodes(placement)
    }

    /// Whether a node is known that can mount images.
    pub fn has_node_for_images(&self) -> bool {
        self.state().nodes.has_node_for_images()
    }

    /// Whether a node is known that takes pods. False too if the operator may not list nodes.
    pub fn has_nodes(&self) -> bool {
        !self.state().nodes.is_empty()
    }

    /// The PersistentVolumes of the MiniCluster with the uid `owner`, which no longer exists.
    pub fn orphans(&self, owner: &str) -> Vec<OwnedVolume> {
        self.state().storage.of_owner(owner)
    }

    /// Stores a Job's current state. Returns the MiniCluster to reconcile if this is a change. Ignores a Job whose name
    /// is not the one in its label (the operator's Jobs have the name of their MiniCluster), and a report that is older
    /// than the last one.
    pub fn update_job(&self, metadata: &ObjectMeta, seen: JobSeen) -> Option<Key> {
        let key = Key::cluster_of(metadata, labels::CLUSTER).filter(|key| *key == Key::of(metadata))?;
        let version = cluster::version(metadata);
        let mut state = self.state();
        if state
            .clusters
            .get(&key)
            .is_some_and(|observed| version < observed.job_version)
        {
            return None;
        }
        let observed = state.observed_mut(&key);
        observed.job_version = version;
        let is_change = observed.job.as_ref() != Some(&seen);
        let before = observed.job.as_ref().or(observed.last_job.as_deref());
        let is_other = before.is_none_or(|before| before.uid != seen.uid);
        if before.is_some() && is_other {
            // These leads and losses belong to the Job before this one.
            observed.gone_leads.clear();
            observed.losses.clear();
        }
        observed.forget_losses_explained_by(&seen);
        observed.last_job = None;
        observed.job = Some(seen);
        if is_other {
            observed.add_losses_before_the_job();
        }
        is_change.then_some(key)
    }

    /// Stores a pod's current state.
    pub fn update_pod(&self, metadata: &ObjectMeta, mut seen: PodSeen) -> PodUpdate {
        if labels::is_services_pod(metadata)
            && let Some(key) = Key::cluster_of(metadata, labels::SERVICES_OF)
        {
            let services_pod = ServicesPodSeen {
                uid: uid(metadata),
                controller_uid: controller_uid(metadata).map(str::to_owned),
                is_deleting: seen.is_deleting,
                was_evicted: seen.has_ended && !seen.is_deleting && seen.exit.is_some() && seen.was_evicted(),
                trouble: seen.trouble,
                queue: partial::queue_of(metadata).map(str::to_owned),
            };
            let mut state = self.state();
            let stored = &mut state.observed_mut(&key).services_pod;
            let is_change = stored.as_ref() != Some(&services_pod);
            *stored = Some(services_pod);
            return PodUpdate {
                woken: is_change.then_some(key),
                unlabelled: None,
            };
        }
        let Some(key) = Key::cluster_of(metadata, labels::CLUSTER) else {
            return PodUpdate::default();
        };
        let mut state = self.state();
        // The pod's own conditions may have set this already. But they show it only if the pod was ready, and the node
        // may be unknown: the operator need not have the permission to list nodes.
        seen.is_on_silent_node |= !seen.has_ended
            && seen
                .node
                .as_ref()
                .is_some_and(|node| state.silent_nodes.contains(node));
        let observed = state.observed_mut(&key);
        let before = observed.pods.get(&uid(metadata)).map(Box::as_ref);
        seen.remember(before);
        // The watch reports a removed pod several times. Only the first report of its removal adds it.
        if !before.is_some_and(PodSeen::was_removed) && observed.is_loss(&seen) {
            observed.losses.push(loss(&seen));
            pod_end::shorten(&mut observed.losses);
        }
        // The same value again: the change above ended the first borrow.
        let before = observed.pods.get(&uid(metadata)).map(Box::as_ref);
        let is_of_job = observed
            .job
            .as_ref()
            .is_some_and(|job| seen.job_uid.as_deref() == Some(job.uid.as_str()));
        let unlabelled = (seen.needs_label() && is_of_job).then(|| Unlabelled {
            namespace: key.namespace.clone(),
            name: seen.name.clone(),
            uid: uid(metadata),
        });
        let is_change = before != Some(&seen);
        // The pod is returned only once, so it now counts as labelled: the caller adds the label.
        seen.is_labelled |= unlabelled.is_some();
        observed.pods.insert(uid(metadata), Box::new(seen));
        PodUpdate {
            woken: is_change.then_some(key),
            unlabelled,
        }
    }

    /// How often the container that runs Flux had ended when this pod was last seen. None: the pod was not seen before.
    pub fn runner_ends(&self, metadata: &ObjectMeta) -> Option<u32> {
        let key = Key::cluster_of(metadata, labels::CLUSTER)?;
        let state = self.state();
        Some(state.clusters.get(&key)?.pods.get(&uid(metadata))?.runner_ends)
    }

    /// The lead's pods that were seen before their Job and still need their label and condition. Each is returned only
    /// once.
    pub fn take_unlabelled(&self, cluster: &Key) -> Vec<Unlabelled> {
        let mut state = self.state();
        let Some(observed) = state
            .clusters
            .get_mut(cluster)
            .filter(|observed| observed.pods.values().any(|pod| pod.needs_label()))
        else {
            return Vec::new();
        };
        let Observed {
            job: Some(job), pods, ..
        } = Arc::make_mut(observed)
        else {
            return Vec::new();
        };
        let without_label = pods.iter_mut().filter(|(_, pod)| pod.needs_label());
        let of_job = without_label.filter(|(_, pod)| pod.job_uid.as_deref() == Some(job.uid.as_str()));
        let mark_labelled = |(uid, pod): (&String, &mut Box<PodSeen>)| {
            pod.is_labelled = true;
            Unlabelled {
                namespace: cluster.namespace.clone(),
                name: pod.name.clone(),
                uid: uid.clone(),
            }
        };
        of_job.map(mark_labelled).collect()
    }

    /// Stores a Service's current state. Returns the MiniClusters to reconcile: that of a changed Service of a sidecar,
    /// or all that use a headless Service that is being deleted.
    pub fn update_service(&self, metadata: &ObjectMeta, seen: ServiceSeen) -> Vec<Key> {
        let mut state = self.state();
        if let Some(key) = Key::cluster_of(metadata, labels::CLUSTER) {
            let services = &mut state.observed_mut(&key).services;
            let is_change = services
                .insert(metadata.name.clone().unwrap_or_default(), seen.clone())
                .as_ref()
                != Some(&seen);
            return is_change.then_some(key).into_iter().collect();
        }
        if !service::is_headless(metadata) {
            return Vec::new();
        }
        let key = Key::of(metadata);
        let is_deleting = seen.is_deleting;
        state.headless.insert(key.clone(), Arc::new(seen));
        // Only the deletion concerns all MiniClusters that use the Service. Its other changes are mostly of the list of
        // owners, when a MiniCluster begins or ends to use it.
        if is_deleting {
            state.members.of(&key)
        } else {
            Vec::new()
        }
    }

    /// Forgets an object that was deleted. Returns the MiniClusters to reconcile.
    pub fn remove(&self, kind: Kind, metadata: &ObjectMeta) -> Vec<Key> {
        let uid = uid(metadata);
        let mut state = self.state();
        match kind {
            Kind::Service if Key::cluster_of(metadata, labels::CLUSTER).is_none() => {
                let key = Key::of(metadata);
                if state.headless.get(&key).is_some_and(|seen| seen.uid == uid) {
                    state.headless.remove(&key);
                }
                state.members.of(&key)
            }
            _ => {
                let key = Key::cluster_of(metadata, labels::CLUSTER)
                    .or_else(|| Key::cluster_of(metadata, labels::SERVICES_OF));
                let Some(key) = key else { return Vec::new() };
                // `members` has the MiniClusters that exist: `forget_cluster` removes a deleted one.
                let is_alive = state.members.has(&key);
                let observed = state.clusters.get_mut(&key);
                let is_change = observed.is_some_and(|observed| {
                    Arc::make_mut(observed).forget(kind, is_alive, |known| known == uid)
                });
                state.drop_empty(&key);
                is_change.then_some(key).into_iter().collect()
            }
        }
    }

    /// Forgets the objects of `kind` whose uids are not in a complete list. Returns the MiniClusters to reconcile.
    pub fn keep_only(&self, kind: Kind, uids: &HashSet<String>) -> Vec<Key> {
        let mut state = self.state();
        let mut woken = Vec::new();
        let State {
            clusters, members, ..
        } = &mut *state;
        for (key, observed) in clusters {
            if !observed.lacks_any(kind, uids) {
                continue;
            }
            if Arc::make_mut(observed).forget(kind, members.has(key), |uid| !uids.contains(uid)) {
                woken.push(key.clone());
            }
        }
        for key in &woken {
            state.drop_empty(key);
        }
        if kind == Kind::Service {
            let gone: Vec<Key> = state
                .headless
                .iter()
                .filter(|(_, seen)| !uids.contains(&seen.uid))
                .map(|(key, _)| key.clone())
                .collect();
            for key in gone {
                state.headless.remove(&key);
                woken.extend(state.members.of(&key));
            }
        }
        woken
    }
}

impl State {
    fn observed_mut(&mut self, cluster: &Key) -> &mut Observed {
        Arc::make_mut(self.clusters.entry(cluster.clone()).or_default())
    }

    /// Removes the entry of a MiniCluster of which no object is left.
    fn drop_empty(&mut self, key: &Key) {
        if self.clusters.get(key).is_some_and(|observed| observed.is_empty()) {
            self.clusters.remove(key);
        }
    }

    /// Frees memory after many MiniClusters were deleted: a map does not shrink by itself. Only a large map that is
    /// mostly empty is worth a copy.
    fn shrink_clusters(&mut self) {
        if self.clusters.capacity() > 1024 && self.clusters.len() < self.clusters.capacity() / 4 {
            self.clusters.shrink_to(self.clusters.len() * 2);
        }
    }
}

#[cfg(test)]
mod tests;
