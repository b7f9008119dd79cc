//! Conversion between the versions: pure, total, without loss, on JSON as the API server hands it over and on
//! the types.
//!
//! Both versions have the same fields at the same places, so almost all of an object passes through
//! untouched: unknown fields, explicit defaults, and values that do not fit. What differs is the meaning of a
//! missing field, so conversion writes out in one version what goes without saying in the other, and takes it
//! away on the way back:
//!
//! | v1alpha1 | v1alpha2 |
//! |---|---|
//! | no `flux.container` | `flux.container: {disable: true}` |
//! | `flux.container: {}` | none |
//! | no `pod.automountServiceAccountToken` | `true` |
//! | `pod.automountServiceAccountToken: false` | none |
//! | the Flux runner has no `fluxUser` | `fluxUser: {name: flux}` |
//! | `fluxUser: {disable: true}` | none |
//! | no `fluxRestful`, nothing else to run | `fluxRestful: {branch: main}` |
//! | `fluxRestful: {disable: true}`, nothing else to run | none |
//! | `cleanup` (of pods; missing: true) | `cleanupPods` (missing: false) |
//! | `cleanupMiniCluster` | `cleanup` (of the MiniCluster) |
//! | `status.jobid: ""` | none |
//!
//! Blocks that are left in an object have the version's defaults written out, as the API server would do: so it
//! finds nothing to add, and an object that is read and applied again is unchanged. What conversion back would
//! write otherwise than its author is noted in an annotation (`spelling`).

use serde_json::{Value, json};

use super::{v1alpha1, v1alpha2};

mod block;
mod flux;
mod spec;
mod spelling;

/// A version that is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    V1alpha1,
    V1alpha2,
}

impl Version {
    /// Its short name, `v1alpha2`.
    pub const fn name(self) -> &'static str {
        match self {
            Version::V1alpha1 => v1alpha1::VERSION,
            Version::V1alpha2 => v1alpha2::VERSION,
        }
    }

    /// Its long name, `flux-framework.org/v1alpha2`.
    pub fn api_version(self) -> String {
        format!("{}/{}", v1alpha2::GROUP, self.name())
    }

    /// The version of a long name.
    pub fn of(api_version: &str) -> Option<Version> {
        let (group, name) = api_version.split_once('/')?;
        let known = [Version::V1alpha1, Version::V1alpha2];
        known
            .into_iter()
            .find(|version| group == v1alpha2::GROUP && name == version.name())
    }
}

/// Why an object could not be converted: it is no MiniCluster.
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

/// The MiniCluster in version `to`. Its metadata is untouched, but for an annotation that says how it was written
/// (`spelling`).
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
            spelling::restore(spec, &spelling, &original, from);
            spelling::note(map, &original, from);
        }
        if let Some(status) = map.get_mut("status") {
            convert_status(status, to);
        }
    }
    Ok(value)
}

/// A spec of the other version becomes one of version `to`.
pub fn convert_spec(value: &mut Value, to: Version) {
    let Some(spec) = value.as_object_mut() else { return };
    match to {
        Version::V1alpha1 => spec::to_v1alpha1(spec),
        Version::V1alpha2 => spec::to_v1alpha2(spec),
    }
}

/// A status of the other version becomes one of version `to`.
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

/// The spec as v1alpha2. Every spec that the type can hold is converted: an error would be a defect of these
/// types.
pub fn to_v1alpha2(spec: &v1alpha1::MiniClusterSpec) -> Result<v1alpha2::MiniClusterSpec, serde_json::Error> {
    let mut value = serde_json::to_value(spec)?;
    convert_spec(&mut value, Version::V1alpha2);
    serde_json::from_value(value)
}

/// The spec as v1alpha1. Every spec that the type can hold is converted: an error would be a defect of these
/// types.
pub fn to_v1alpha1(spec: &v1alpha2::MiniClusterSpec) -> Result<v1alpha1::MiniClusterSpec, serde_json::Error> {
    let mut value = serde_json::to_value(spec)?;
    convert_spec(&mut value, Version::V1alpha1);
    serde_json::from_value(value)
}

/// The status as v1alpha2.
pub fn status_to_v1alpha2(status: &v1alpha1::MiniClusterStatus) -> v1alpha2::MiniClusterStatus {
    status.status.clone()
}

/// The status as v1alpha1.
pub fn status_to_v1alpha1(status: &v1alpha2::MiniClusterStatus) -> v1alpha1::MiniClusterStatus {
    v1alpha1::MiniClusterStatus {
        jobid: String::new(),
        status: status.clone(),
    }
}

#[cfg(test)]
mod tests;
