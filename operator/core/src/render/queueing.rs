//! Labels and annotations for a queue on the Job and its pods: those of the MiniCluster, and those that
//! follow from its sizes.

use std::collections::BTreeMap;

use flux_shared::queueing::{ELASTIC_JOB, EQUAL_PARALLELISM, MIN_PARALLELISM, Queueing};
use flux_shared::validate::ValidMiniCluster;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value, json};

use crate::labels;

/// Adds the labels and annotations for a queue to the Job's metadata.
pub(super) fn on_job(cluster: &ValidMiniCluster, metadata: &mut ObjectMeta) {
    let labels = metadata.labels.get_or_insert_default();
    for (key, value) in &cluster.queueing.labels {
        labels.entry(key.clone()).or_insert_with(|| value.clone());
    }
    let annotations = metadata.annotations.get_or_insert_default();
    // The MiniCluster's own labels and annotations with which this Job was created. If they change later, only the next
    // Job gets the new ones (`target.rs`). Labels of `jobLabels` are left out: validation adds them again from the
    // spec. A Job that names a queue always has this record: without one, the MiniCluster's present labels would count.
    let queueing = cluster.queueing.clone().without_job_labels(&cluster.job_labels);
    if queueing != Queueing::default() || cluster.queueing.queue().is_some() {
        annotations.insert(labels::QUEUEING.to_owned(), json!(queueing).to_string());
    }
    for (key, value) in &cluster.queueing.annotations {
        annotations.entry(key.clone()).or_insert_with(|| value.clone());
    }
    for (key, value) in of_size(cluster, cluster.size) {
        match value {
            Value::String(value) => annotations.insert(key, value),
            // The value is null: Kueue rejects a least number of pods that is not below the Job's size. (The annotation
            // to remove may be the author's own.)
            _ => annotations.remove(&key),
        };
    }
    if cluster.queueing.is_elastic(cluster.resizes) {
        annotations.insert(ELASTIC_JOB.to_owned(), "true".to_owned());
    }
}

/// Annotations that tell the queue how far it may reduce the number of pods. Empty without `minSize`, or if the queue
/// may not admit a part of the pods. If `minSize` is not below `size`, all pods are needed: the values are null, which
/// removes the annotations.
pub(super) fn of_size(cluster: &ValidMiniCluster, size: u32) -> Map<String, Value> {
    if !cluster.queueing.admits_parts(cluster.resizes) || cluster.min_size.is_none() {
        return Map::new();
    }
    let least = cluster.queueing.least(size, cluster.min_size, cluster.resizes);
    // If the queue reduces the number of pods, it has to change the Job's completions as well.
    let changes_completions = least.map(|_| Value::from("true"));
    [
        (MIN_PARALLELISM, least.map(|least| Value::from(least.to_string()))),
        (EQUAL_PARALLELISM, changes_completions),
    ]
    .map(|(key, value)| (key.to_owned(), value.unwrap_or_default()))
    .into_iter()
    .collect()
}

/// Annotations of the pods: the author's, and those for a queue's topology-aware scheduling.
pub(super) fn of_pods(cluster: &ValidMiniCluster) -> BTreeMap<String, String> {
    let mut annotations = cluster.pod.annotations.clone();
    annotations.extend(
        cluster
            .queueing
            .of_pods()
            .map(|(key, value)| (key.clone(), value.clone())),
    );
    annotations
}
