//! A MiniCluster as the operator watches it and keeps it in its cache.

use std::borrow::Cow;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use flux_shared::crd::v1alpha2::{MiniCluster, MiniClusterSpec, MiniClusterStatus};
use flux_shared::queueing;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::Deserialize;
use serde::de::{Deserializer, Error};
use serde_json::value::RawValue;

use crate::observe::{deleted, partial};

/// Deepest nesting of an object that is parsed: `spec.podTemplate` may hold anything, and the JSON parser fails at 128
/// levels.
const DEPTH_MAX: usize = 100;
/// Most values of an object that is parsed. A value may have only two bytes of text, but takes more than a hundred
/// bytes of memory when it is parsed.
const VALUES_MAX: usize = 200_000;

/// A MiniCluster. An object that does not fit the type is kept with an error, since otherwise the whole list could
/// not be read. Spec and status stay the JSON text that the API server sent, which takes half the memory. Each
/// reconcile parses them.
#[derive(Debug, Clone)]
pub struct Cluster {
    metadata: ObjectMeta,
    status: Option<Box<RawValue>>,
    /// The error says why the object cannot be read.
    body: Result<Body, String>,
}

/// The spec's text, and values of the spec and the status that are needed without parsing them again.
#[derive(Debug, Clone)]
struct Body {
    spec: Box<RawValue>,
    is_managed_elsewhere: bool,
    phase: Option<Box<str>>,
    observed_generation: Option<i64>,
}

/// The parts of an object, not parsed yet. The metadata is read without `managedFields`, the largest part of it.
#[derive(Deserialize)]
struct Parts {
    #[serde(deserialize_with = "partial::metadata")]
    metadata: ObjectMeta,
    spec: Box<RawValue>,
    status: Option<Box<RawValue>>,
}

/// The parts of an object that can be read whatever its spec is.
#[derive(Deserialize)]
struct Readable {
    #[serde(deserialize_with = "partial::metadata")]
    metadata: ObjectMeta,
    status: Option<Box<RawValue>>,
}

impl<'de> Deserialize<'de> for Cluster {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Cluster, D::Error> {
        // Kept as text: the parser skips it, however deeply it is nested.
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let result = match excess(text.get()) {
            Some(why) => Err(why),
            None => read(text.get()).map_err(|error| error.to_string()),
        };
        result.or_else(|error| {
            // (kube's `DeserializeGuard` would buffer the whole object.)
            let Readable { metadata, status } = serde_json::from_str(text.get()).map_err(Error::custom)?;
            // An object that another controller manages need not fit our type.
            let body = managed_elsewhere(text.get()).ok_or(error);
            Ok(Cluster {
                metadata,
                status,
                body,
            })
        })
    }
}

/// Parses an object that fits the type.
fn read(text: &str) -> Result<Cluster, serde_json::Error> {
    let Parts {
        metadata,
        spec,
        status,
    } = serde_json::from_str(text)?;
    let is_managed_elsewhere = serde_json::from_str::<MiniClusterSpec>(spec.get())?.is_managed_elsewhere();
    let parsed_status: Option<MiniClusterStatus> = match &status {
        Some(status) => serde_json::from_str(status.get())?,
        None => None,
    };
    let parsed_status = parsed_status.unwrap_or_default();
    let body = Body {
        spec,
        is_managed_elsewhere,
        phase: parsed_status.phase.map(String::into_boxed_str),
        observed_generation: parsed_status.observed_generation,
    };
    Ok(Cluster {
        metadata,
        status,
        body: Ok(body),
    })
}

/// What is kept of an object that cannot be read, if another controller manages it.
fn managed_elsewhere(text: &str) -> Option<Body> {
    #[derive(Deserialize)]
    struct Object {
        spec: Spec,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Spec {
        managed_by: String,
    }
    let Object { spec } = serde_json::from_str(text).ok()?;
    let spec = spec_without_fields(Some(spec.managed_by))?;
    let is_managed_elsewhere = spec.is_managed_elsewhere();
    let body = Body {
        spec: serde_json::value::to_raw_value(&spec).ok()?,
        is_managed_elsewhere,
        phase: None,
        observed_generation: None,
    };
    is_managed_elsewhere.then_some(body)
}

/// A spec with `managed_by` and no other field set.
fn spec_without_fields(managed_by: Option<String>) -> Option<MiniClusterSpec> {
    let spec = serde_json::from_value(serde_json::json!({ "containers": [] })).ok()?;
    Some(MiniClusterSpec { managed_by, ..spec })
}

impl Cluster {
    /// Parses its spec. The error says why the object cannot be read.
    pub fn spec(&self) -> Result<MiniClusterSpec, String> {
        let body = self.body.as_ref().map_err(Clone::clone)?;
        serde_json::from_str(body.spec.get()).map_err(|error| error.to_string())
    }

    pub fn phase(&self) -> Option<&str> {
        self.body.as_ref().ok()?.phase.as_deref()
    }

    /// The generation that the status is about.
    pub fn observed_generation(&self) -> Option<i64> {
        self.body.as_ref().ok()?.observed_generation
    }

    /// Parses its status, even if the spec does not fit the type. None: it has none, or one that cannot be read.
    pub fn status(&self) -> Option<MiniClusterStatus> {
        serde_json::from_str(self.status.as_ref()?.get()).ok()?
    }

    /// Whether it has a status at all, even one that cannot be read.
    pub fn has_status(&self) -> bool {
        self.status.is_some()
    }
}

/// Why JSON text is too deep or too large to be parsed; None if it is not. Counts brackets and commas outside
/// strings.
fn excess(text: &str) -> Option<String> {
    let (mut depth, mut values) = (0_usize, 0_usize);
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => skip_string(&mut bytes),
            b'{' | b'[' => (depth, values) = (depth + 1, values + 1),
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' => values += 1,
            _ => {}
        }
        if depth > DEPTH_MAX {
            return Some(format!("it is nested more than {DEPTH_MAX} levels deep"));
        }
        if values > VALUES_MAX {
            return Some(format!("it has more than {VALUES_MAX} values"));
        }
    }
    None
}

/// Skips the rest of a string, with its closing quote.
fn skip_string(bytes: &mut std::str::Bytes) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return,
            b'\\' => drop(bytes.next()),
            _ => {}
        }
    }
}

impl Resource for Cluster {
    type DynamicType = ();
    type Scope = <MiniCluster as Resource>::Scope;

    fn kind(dynamic: &()) -> Cow<'_, str> {
        MiniCluster::kind(dynamic)
    }

    fn group(dynamic: &()) -> Cow<'_, str> {
        MiniCluster::group(dynamic)
    }

    fn version(dynamic: &()) -> Cow<'_, str> {
        MiniCluster::version(dynamic)
    }

    fn plural(dynamic: &()) -> Cow<'_, str> {
        MiniCluster::plural(dynamic)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Largest spec that the cache keeps, in bytes of JSON with the labels and annotations for a queue: there may be
/// thousands of MiniClusters.
const KEPT_MAX: usize = 8 << 10;
/// Longest error text, in characters, that is kept for a MiniCluster that cannot be read.
const ERROR_MAX: usize = 1000;
/// Annotation that exists in the cache only, on a MiniCluster whose spec was left out of the cache. Its value is the
/// size that `KEPT_MAX` bounds. (A user cannot forge it: the cache keeps no annotation of the MiniCluster with our
/// domain.)
const LEFT_OUT: &str = "flux-framework.org/left-out";
/// Annotation that exists in the cache only, too: hash of the labels and annotations for a queue, which are left out
/// together with the spec.
const LEFT_OUT_QUEUEING: &str = "flux-framework.org/left-out-queueing";

/// Reduces a MiniCluster to what the cache keeps: the labels and annotations for a queue, Kubernetes' finalizers, and
/// the spec unless it is large. Each reconcile reads a large spec from the API server.
pub fn shrink(cluster: &mut Cluster) {
    let Cluster { metadata, body, .. } = cluster;
    // Users can write any number of these.
    (metadata.owner_references, metadata.generate_name) = (None, None);
    metadata
        .finalizers
        .iter_mut()
        .for_each(|all| all.retain(|name| deleted::is_of_cascade(name)));
    metadata.finalizers.take_if(|all| all.is_empty());
    for entries in [&mut metadata.annotations, &mut metadata.labels] {
        entries
            .iter_mut()
            .for_each(|map| map.retain(|key, _| queueing::is_of_queue(key)));
        entries.take_if(|map| map.is_empty());
    }
    match body {
        Ok(body) => {
            let of_queue = [&metadata.annotations, &metadata.labels];
            let queueing_size = serde_json::to_string(&of_queue).map_or(0, |text| text.len());
            let size = body.spec.get().len() + queueing_size;
            if size > KEPT_MAX
                && let Some(spec) = spec_left_in_cache(body)
            {
                body.spec = spec;
                let queueing = hash_of_queueing(metadata).to_string();
                metadata.labels = None;
                metadata.annotations = Some(
                    [
                        (LEFT_OUT.to_owned(), size.to_string()),
                        (LEFT_OUT_QUEUEING.to_owned(), queueing),
                    ]
                    .into(),
                );
            }
        }
        // Without a spec nothing is rendered, so nobody needs the labels and annotations.
        Err(error) => {
            *error = error.chars().take(ERROR_MAX).collect();
            (metadata.annotations, metadata.labels) = (None, None);
        }
    }
}

/// The spec that the cache keeps of a large one: only `managedBy`, so that the operator need not read the
/// MiniClusters of other controllers.
fn spec_left_in_cache(body: &Body) -> Option<Box<RawValue>> {
    let spec: MiniClusterSpec = serde_json::from_str(body.spec.get()).ok()?;
    serde_json::value::to_raw_value(&spec_without_fields(spec.managed_by)?).ok()
}

/// The size in bytes of the spec that was left out of the cache, with its labels and annotations for a queue. None: the
/// cache has the spec.
pub fn left_out(cluster: &Cluster) -> Option<usize> {
    cluster.meta().annotations.as_ref()?.get(LEFT_OUT)?.parse().ok()
}

/// Hash of the labels and annotations for a queue, to notice that they have changed.
pub fn queueing_hash(cluster: &Cluster) -> u64 {
    let metadata = cluster.meta();
    let left_out = metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(LEFT_OUT_QUEUEING)?.parse().ok());
    left_out.unwrap_or_else(|| hash_of_queueing(metadata))
}

/// Hash of all labels and annotations: `shrink` has already removed those that are not for a queue.
fn hash_of_queueing(metadata: &ObjectMeta) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one((&metadata.labels, &metadata.annotations))
}

/// Whether another controller manages it (`spec.managedBy`): then it is left alone.
pub fn is_managed_elsewhere(cluster: &Cluster) -> bool {
    cluster.body.as_ref().is_ok_and(|body| body.is_managed_elsewhere)
}

/// The resourceVersion as a number; 0 if it is not one. (Kubernetes' API servers use numbers.)
pub fn version(metadata: &ObjectMeta) -> u64 {
    metadata
        .resource_version
        .as_ref()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt;

    use super::*;

    /// Otherwise one such MiniCluster would stop the operator from serving all others.
    #[test]
    fn object_too_deep_or_too_wide_hides_no_other() {
        let object = |name: &str, overlay: &str| {
            format!(
                r#"{{"apiVersion":"flux-framework.org/v1alpha2","kind":"MiniCluster","metadata":{{"name":"{name}"}},"spec":{{"containers":[{{"image":"a]}}\\\\"}}],"podTemplate":{overlay}}}}}"#
            )
        };
        let deep = format!("{}1{}", r#"{"a":["#.repeat(2000), "]}".repeat(2000));
        let wide = format!(r#"{{"spec":[{}0]}}"#, "0,".repeat(300_000));
        let items = [("deep", deep.as_str()), ("wide", &wide), ("good", "{}")]
            .map(|(name, overlay)| object(name, overlay));
        let list = format!(
            r#"{{"apiVersion":"v1","kind":"List","metadata":{{}},"items":[{}]}}"#,
            items.join(",")
        );
        let list: kube::core::ObjectList<Cluster> = serde_json::from_str(&list).unwrap();
        let errors: Vec<_> = list
            .items
            .iter()
            .map(|cluster| (cluster.name_any(), cluster.spec().err()))
            .collect();
        assert_eq!(
            errors[0],
            (
                "deep".into(),
                Some("it is nested more than 100 levels deep".into())
            )
        );
        assert_eq!(
            errors[1],
            ("wide".into(), Some("it has more than 200000 values".into()))
        );
        assert_eq!(errors[2], ("good".into(), None));
        let elsewhere = items[0].replace(
            r#""spec":{"#,
            r#""spec":{"managedBy":"kueue.x-k8s.io/multikueue","#,
        );
        let elsewhere: Cluster = serde_json::from_str(&elsewhere).unwrap();
        assert!(
            is_managed_elsewhere(&elsewhere) && elsewhere.name_any() == "deep",
            "the operator writes no status for it"
        );
        let event = format!(r#"{{"type":"ADDED","object":{}}}"#, items[0]);
        let event: kube::core::WatchEvent<Cluster> = serde_json::from_str(&event).unwrap();
        assert!(matches!(event, kube::core::WatchEvent::Added(cluster) if cluster.spec().is_err()));
    }

    /// Otherwise one namespace's MiniClusters could fill the operator's memory.
    #[test]
    fn shrunk_cluster_has_only_kubernetes_finalizers_and_no_owners() {
        let shrunk = |own: &[&str]| {
            let others = (0..1000).map(|number| format!("example.org/{number}"));
            let finalizers: Vec<String> = others.chain(own.iter().map(|name| (*name).to_owned())).collect();
            let owner = serde_json::json!({ "apiVersion": "v1", "kind": "A", "name": "a".repeat(10_000), "uid": "u" });
            let object = serde_json::json!({
                "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster",
                "metadata": { "name": "mc", "uid": "u", "generation": 2, "resourceVersion": "7",
                    "generateName": "g".repeat(10_000), "finalizers": finalizers, "ownerReferences": [owner] },
                "spec": { "containers": [{ "image": "a" }] },
            });
            let mut cluster: Cluster = serde_json::from_value(object).unwrap();
            shrink(&mut cluster);
            cluster.metadata
        };
        let wanted = |finalizers: Option<Vec<String>>| ObjectMeta {
            name: Some("mc".into()),
            uid: Some("u".into()),
            generation: Some(2),
            resource_version: Some("7".into()),
            finalizers,
            ..ObjectMeta::default()
        };
        assert_eq!(shrunk(&[]), wanted(None));
        let of_cascade = ["foregroundDeletion", "orphan"];
        assert_eq!(
            shrunk(&of_cascade),
            wanted(Some(of_cascade.map(str::to_owned).into()))
        );
    }

    #[test]
    fn large_spec_is_left_out_and_the_mark_cannot_be_forged() {
        let cluster = |script: usize, annotation: usize, managed_by: Option<&str>| -> Cluster {
            let object = serde_json::json!({
                "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster",
                "metadata": { "name": "mc", "annotations": { LEFT_OUT: "7", "kueue.x-k8s.io/a": "b".repeat(annotation) },
                    "labels": { "a": "b", "kueue.x-k8s.io/queue-name": "q" } },
                "spec": { "size": 3, "managedBy": managed_by, "containers": [{ "image": "a", "commands": { "pre": "x".repeat(script) } }] },
            });
            let mut cluster = serde_json::from_value(object).unwrap();
            shrink(&mut cluster);
            cluster
        };
        let (small, large) = (cluster(100, 1, None), cluster(100_000, 1, None));
        let kept = small.meta();
        assert_eq!(
            (
                kept.annotations.clone().unwrap().len(),
                kept.labels.clone().unwrap().len()
            ),
            (1, 1),
            "the queue's"
        );
        assert_eq!((left_out(&small), small.spec().unwrap().size), (None, 3));
        assert!(
            left_out(&cluster(100, 100_000, None)).is_some(),
            "annotations count, too"
        );
        assert!(left_out(&large).is_some_and(|size| (100_000..101_000).contains(&size)));
        assert!(large.body.unwrap().spec.get().len() < 2000);
        let elsewhere = cluster(100_000, 1, Some("example.org/other"));
        assert!(
            left_out(&elsewhere).is_some() && is_managed_elsewhere(&elsewhere),
            "without its spec, it is still known that another controller manages it"
        );
    }
}
