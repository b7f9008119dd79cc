//! The MiniCluster as it is watched and kept between two reconciles.

use flux_shared::crd::v1alpha2::MiniCluster;
use kube::core::DeserializeGuard;
use kube::{Resource, ResourceExt};

/// A MiniCluster, or one whose shape does not fit: it must not stop the others from being read.
pub type Cluster = DeserializeGuard<MiniCluster>;

/// Longest spec that is kept between two reconciles, as JSON: there may be many thousand.
const KEPT_MAX: usize = 8 << 10;
/// Longest text about a MiniCluster whose shape does not fit.
const ERROR_MAX: usize = 1000;
/// In the cache alone, where there are no other annotations: how large the spec is that was left out.
const LEFT_OUT: &str = "flux-framework.org/left-out";

/// What is kept of a MiniCluster. A large spec is not: it is read again for each reconcile.
pub fn shrink(cluster: &mut Cluster) {
    let metadata = cluster.meta_mut();
    (metadata.managed_fields, metadata.annotations, metadata.labels) = (None, None, None);
    match &mut cluster.0 {
        Ok(whole) => {
            let mut size = Counted(0);
            // Counting cannot fail.
            let _ = serde_json::to_writer(&mut size, &whole.spec);
            if size.0 > KEPT_MAX
                && let Ok(nothing) = serde_json::from_value(serde_json::json!({ "containers": [] }))
            {
                whole.spec = nothing;
                whole.metadata.annotations = Some([(LEFT_OUT.to_owned(), size.0.to_string())].into());
            }
        }
        Err(invalid) => {
            let error: String = invalid.error.chars().take(ERROR_MAX).collect();
            invalid.error = error;
        }
    }
}

/// The size of the spec that was left out of the cache, if it was.
pub fn left_out(cluster: &Cluster) -> Option<usize> {
    cluster.meta().annotations.as_ref()?.get(LEFT_OUT)?.parse().ok()
}

/// Counts what is written.
struct Counted(usize);

impl std::io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The resourceVersion as a number, which it is by Kubernetes' API; 0 if some server disagrees.
pub fn version(object: &impl ResourceExt) -> u64 {
    object.resource_version().and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_spec_is_left_out_and_nobody_can_say_that_it_was() {
        let cluster = |script: usize| -> Cluster {
            let object = serde_json::json!({
                "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster",
                "metadata": { "name": "mc", "annotations": { LEFT_OUT: "7" }, "labels": { "a": "b" } },
                "spec": { "size": 3, "containers": [{ "image": "a", "commands": { "pre": "x".repeat(script) } }] },
            });
            let mut cluster = serde_json::from_value(object).unwrap();
            shrink(&mut cluster);
            cluster
        };
        let (small, large) = (cluster(100), cluster(100_000));
        assert_eq!((left_out(&small), small.0.unwrap().spec.size), (None, 3));
        assert!(left_out(&large).is_some_and(|size| (100_000..101_000).contains(&size)));
        assert!(serde_json::to_string(&large.0.unwrap().spec).unwrap().len() < 2000);
    }
}
