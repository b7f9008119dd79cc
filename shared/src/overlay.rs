//! The overlay of a user over the operator's pods (`spec.podTemplate`): Kubernetes' strategic merge on JSON,
//! as `kubectl patch --type strategic` does it.
//!
//! ```text
//! spec.podTemplate ─► checked (forms, protected) ─► Overlay ─► over(the rendered template) ─► what is sent
//! ```
//!
//! JSON, so that a field which these programs do not know reaches the API server, which has the last word.
//! Own code: the only crate that knows the lists' keys (k8s-openapi's DeepMerge) is typed, so it drops such
//! fields, and it cannot delete.

use serde_json::Value;

use crate::problem::Problem;

mod forms;
mod protected;
mod strategic_merge;

pub use protected::{ContainerKind, RenderedPod};
pub(crate) use strategic_merge::drop_nulls;
pub use strategic_merge::{MERGED_LISTS, merge_key};

/// An overlay that may lie over a pod's template: well formed, and nothing of the operator's in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Overlay(Value);

impl Overlay {
    /// The overlay of `field`, or every problem. `pod`: what it lies over.
    pub fn checked(field: &str, value: &Value, pod: &RenderedPod) -> Result<Overlay, Vec<Problem>> {
        let mut problems = forms::problems(field, value);
        if problems.is_empty() {
            problems = pod.problems(field, value);
        }
        if problems.is_empty() {
            Ok(Overlay(value.clone()))
        } else {
            Err(problems)
        }
    }

    /// As the user wrote it.
    pub fn value(&self) -> &Value {
        &self.0
    }

    /// `template` with the overlay on it.
    pub fn over(&self, template: Value) -> Value {
        strategic_merge::merge(template, self.0.clone())
    }
}

#[cfg(test)]
mod tests;
