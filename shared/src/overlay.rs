//! Overlays of the user over the operator's pod templates (`spec.podTemplate`), merged like `kubectl patch --type
//! strategic` does, with the exceptions at [`identity`] and at `new_item` in `strategic_merge`.
//!
//! ```text
//! spec.podTemplate ─► Overlay::checked (forms, protected) ─► Overlay::over(rendered template) ─► the Job's template
//! ```
//!
//! The merge works on JSON, so that fields which these programs do not know reach the API server, which accepts or
//! rejects them. Own code: the only crate that knows the merge keys of lists (k8s-openapi's DeepMerge) works on types,
//! so it drops such fields, and it cannot delete.

use serde_json::Value;

use crate::problem::Problem;

mod forms;
mod protected;
mod strategic_merge;

pub use protected::{ContainerKind, RenderedPod};
pub(crate) use strategic_merge::drop_nulls;
pub use strategic_merge::{MERGED_LISTS, identity, merge_key};

/// A checked overlay: well formed, and without changes to what the operator or the agent relies on.
#[derive(Debug, Clone, PartialEq)]
pub struct Overlay(Value);

impl Overlay {
    /// Checks the overlay `value` of the field `field`: its form, then its content against the rendered pod.
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

    /// The overlay as the user wrote it.
    pub fn value(&self) -> &Value {
        &self.0
    }

    /// The paths of the mounts that the overlay adds to the container with this name.
    pub fn mount_paths<'a>(&'a self, container: &'a str) -> impl Iterator<Item = &'a str> + Clone {
        let items = |value: Option<&'a Value>| value.and_then(Value::as_array).into_iter().flatten();
        ["containers", "initContainers"]
            .into_iter()
            .flat_map(move |list| items(self.0.pointer(&format!("/spec/{list}"))))
            .filter(move |item| item.get("name").and_then(Value::as_str) == Some(container))
            .flat_map(move |item| items(item.get("volumeMounts")))
            .filter(|mount| mount.get(strategic_merge::PATCH).is_none())
            .filter_map(|mount| mount.get("mountPath")?.as_str())
    }

    /// Merges the overlay into `template`.
    pub fn over(&self, template: Value) -> Value {
        strategic_merge::merge(template, self.0.clone())
    }
}

#[cfg(test)]
mod tests;
