//! Conversion of JSON objects between the versions, without loss.
//!
//! Both versions have the same fields at the same places, except for the `cleanup` fields (below). So conversion leaves
//! most of an object as it is, also unknown fields, explicit defaults, and values of a wrong type.
//! What differs is the meaning of a missing field. So conversion adds a field whose absence would mean something else
//! in the other version, and removes it on the way back:
//!
//! | v1alpha1 | v1alpha2 |
//! |---|---|
//! | no `flux.container` | `flux.container: {disable: true}` |
//! | `flux.container: {}` | none |
//! | several containers, no `flux.noWaitSocket` | `true` |
//! | several containers, `flux.noWaitSocket: false` | none |
//! | no `pod.automountServiceAccountToken` | `true` |
//! | `pod.automountServiceAccountToken: false` | none |
//! | the Flux runner has no `fluxUser` | `fluxUser: {name: flux}` |
//! | `fluxUser: {disable: true}` | none |
//! | no `fluxRestful`, nothing else to run | `fluxRestful: {branch: main}` |
//! | `fluxRestful: {disable: true}`, nothing else to run | none |
//! | `flux` without `container` and `installRoot` | `flux.installRoot: /usr` |
//! | `flux.installRoot: /usr` beside a `container` | none |
//! | `cleanup` (of pods; missing: true) | `cleanupPods` (missing: false) |
//! | `cleanupMiniCluster` | `cleanup` (of the MiniCluster) |
//! | `status.jobid: ""` | none |
//!
//! Conversion writes the version's defaults into the blocks that the object has, as the API server would. So the API
//! server adds nothing, and an object that is read and applied again is unchanged. If conversion back would not yield
//! the author's spelling, an annotation records it (`spelling`).

use serde_json::{Value, json};

use super::v1alpha2;

mod block;
mod flux;
mod spec;
mod spelling;

/// A version of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    V1alpha1,
    V1alpha2,
}

impl Version {
    /// The short name, such as `v1alpha2`.
    pub const fn name(self) -> &'static str {
        match self {
            Version::V1alpha1 => "v1alpha1",
            Version::V1alpha2 => v1alpha2::VERSION,
        }
    }

    /// The value of `apiVersion`, such as `flux-framework.org/v1alpha2`.
    pub fn api_version(self) -> String {
        format!("{}/{}", v1alpha2::GROUP, self.name())
    }

    /// The version with this `apiVersion`. None: it is unknown.
    pub fn of(api_version: &str) -> Option<Version> {
        let (group, name) = api_version.split_once('/')?;
        let known = [Version::V1alpha1, Version::V1alpha2];
        known
            .into_iter()
            .find(|version| group == v1alpha2::GROUP && name == version.name())
    }
}

/// Why an object cannot be converted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    #[error("failed to convert an object: it is not a JSON object")]
    NoObject,
    #[error("failed to convert an object of kind `{0}`: only MiniCluster is known")]
    Kind(String),
    #[error(
        "failed to convert a MiniCluster of version `{0}`: flux-framework.org/v1alpha1 and v1alpha2 are known"
    )]
    Version(String),
}

/// Converts a MiniCluster to version `to`. Of its metadata, only the annotations of `spelling` change.
pub fn convert(mut value: Value, to: Version) -> Result<Value, ConvertError> {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let from = {
        let map = value.as_object().ok_or(ConvertError::NoObject)?;
        let kind = text(map.get("kind"));
        if kind != v1alpha2::KIND {
            return Err(ConvertError::Kind(kind));
        }
        let api_version = text(map.get("apiVersion"));
        Version::of(&api_version).ok_or(ConvertError::Version(api_version))?
    };
    if from != to {
        let map = value.as_object_mut().ok_or(ConvertError::NoObject)?;
        map.insert("apiVersion".into(), to.api_version().into());
        let spelling = spelling::take(map, to);
        if let Some(spec) = map.get_mut("spec") {
            let original = spec.clone();
            convert_spec(spec, to);
            // Before `note`, which records what conversion back of the restored spec would change.
            spelling::restore(spec, &spelling, &original, from);
            spelling::note(map, &original, from);
        }
        if let Some(status) = map.get_mut("status") {
            convert_status(status, to);
        }
    }
    Ok(value)
}

/// Converts a spec of the other version to version `to`, in place. A value that is not an object stays as it is.
pub fn convert_spec(value: &mut Value, to: Version) {
    let Some(spec) = value.as_object_mut() else { return };
    match to {
        Version::V1alpha1 => spec::to_v1alpha1(spec),
        Version::V1alpha2 => spec::to_v1alpha2(spec),
    }
}

/// Converts a status of the other version to version `to`, in place.
fn convert_status(value: &mut Value, to: Version) {
    let Some(status) = value.as_object_mut() else {
        return;
    };
    match to {
        Version::V1alpha1 => {
            status.entry("jobid").or_insert_with(|| json!(""));
        }
        Version::V1alpha2 => {
            if status.get("jobid") == Some(&json!("")) {
                status.shift_remove("jobid");
            }
        }
    }
}

#[cfg(test)]
mod tests;
