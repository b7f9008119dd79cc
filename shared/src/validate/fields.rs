//! Checks of fields that several parts of a spec have.

use std::collections::BTreeMap;

use serde_json::Value;

use super::report::Report;
use crate::crd::v1alpha2::Resources;
use crate::names;
use crate::problem::Problem;
use crate::quantity::Quantity;

/// The text. An empty one counts as left out.
pub fn given(text: &Option<String>) -> Option<String> {
    text.clone().filter(|text| !text.is_empty())
}

/// Whether a text is given and not empty.
pub fn is_given(text: &Option<String>) -> bool {
    text.as_deref().is_some_and(|text| !text.is_empty())
}

/// Sets empty texts to None.
pub fn drop_empty(texts: &mut [&mut Option<String>]) {
    for text in texts.iter_mut().filter(|text| text.as_deref() == Some("")) {
        **text = None;
    }
}

/// Checks the keys and values of labels.
pub fn labels(field: &str, labels: &BTreeMap<String, String>, report: &mut Report) {
    for (key, value) in labels {
        report.problems.extend(label_problems(field, key, value));
    }
}

/// The problems with a label's key and value.
pub fn label_problems(field: &str, key: &str, value: &str) -> Vec<Problem> {
    let mut messages = Vec::new();
    if !names::is_label_key(key) {
        messages.push("is not a label's key".to_owned());
    }
    if !names::is_label_value(value) {
        messages.push(format!(
            "`{value}` is not a label's value: 63 letters, digits, `-`, `_`, `.` at most"
        ));
    }
    let problem = |message| Problem::new(format!("{field}[{key}]"), message);
    messages.into_iter().map(problem).collect()
}

/// Checks amounts of resources, and their names.
pub fn quantities(field: &str, quantities: &BTreeMap<String, Quantity>, report: &mut Report) {
    for (key, quantity) in quantities {
        report.take(format!("{field}[{key}]"), quantity.check());
        if !names::is_label_key(key) {
            report.problem(
                format!("{field}[{key}]"),
                "is not the name of a resource, such as memory or nvidia.com/gpu",
            );
        }
    }
}

/// The limits and requests, checked.
pub fn resources(field: &str, resources: &Option<Resources>, report: &mut Report) -> Resources {
    let resources = resources.clone().unwrap_or_default();
    quantities(&format!("{field}.limits"), &resources.limits, report);
    quantities(&format!("{field}.requests"), &resources.requests, report);
    resources
}

/// Checks for an absolute path other than `/`, without `.`, `..` and `:`. Returns it without repeated slashes and
/// slashes at the end, so that equal paths are equal texts. (Kubernetes' API allows no `:` in a `mountPath`.)
pub fn absolute(path: &str) -> Result<String, String> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let is_plain = !parts.iter().any(|part| matches!(*part, ".." | ".")) && !path.contains(':');
    if path.starts_with('/') && !parts.is_empty() && is_plain {
        Ok(format!("/{}", parts.join("/")))
    } else {
        Err(format!(
            "`{path}` must be an absolute path, not `/`, without `.`, `..` and `:`"
        ))
    }
}

/// The name of an image, if one is given. Without these checks, the MiniCluster would wait for a node that can pull it.
/// The API server checks the same (`IMAGE` in `crd/rules.rs`).
pub fn image(field: &str, image: &Option<String>, report: &mut Report) -> Option<String> {
    let image = given(image)?;
    let (name, digest) = image
        .split_once('@')
        .map_or((image.as_str(), None), |(name, digest)| (name, Some(digest)));
    // A registry's name may have capital letters, and so may a tag.
    let path = name.split_once('/').map_or(name, |(_, path)| path);
    let (path, tag) = path
        .split_once(':')
        .map_or((path, None), |(path, tag)| (path, Some(tag)));
    let is_digest = |digest: &str| {
        digest
            .split_once(':')
            .is_some_and(|(method, sum)| !method.is_empty() && !sum.is_empty() && !sum.contains('/'))
    };
    let is_tag = |tag: &str| !tag.is_empty() && !tag.contains('/');
    let why = if image.contains(char::is_whitespace) {
        "it contains a blank"
    } else if image.contains("://") {
        "leave out the scheme, such as docker://"
    } else if !digest.is_none_or(is_digest) {
        "after `@` comes a digest such as sha256:0a1b; a tag comes after `:`"
    } else if path.contains(|c: char| c.is_ascii_uppercase()) {
        "only the registry and the tag may have capital letters"
    } else if path.is_empty() || path.starts_with('/') || name.starts_with('/') || !tag.is_none_or(is_tag) {
        "write NAME:TAG or REGISTRY/NAME:TAG"
    } else {
        return Some(image);
    };
    report.problem(field, format!("`{image}` cannot be the name of an image: {why}"));
    Some(image)
}

/// Checks the name of a Kubernetes object.
pub fn object_name(name: &str) -> Result<(), String> {
    if names::is_dns_subdomain(name) {
        Ok(())
    } else {
        Err(format!(
            "`{name}` cannot be the name of an object: lower case letters, digits, `-` and `.`"
        ))
    }
}

/// Checks a container's SecurityContext, and returns it as Kubernetes has it: the older addCapabilities becomes
/// capabilities.add. None if it is empty.
pub fn security_context(field: &str, value: &Option<Value>, report: &mut Report) -> Option<Value> {
    let mut map = match value {
        None | Some(Value::Null) => return None,
        Some(Value::Object(map)) if map.is_empty() => return None,
        Some(Value::Object(map)) => map.clone(),
        Some(_) => {
            report.problem(field, "must be an object, as Kubernetes' securityContext");
            return None;
        }
    };
    if let Some(older) = map.shift_remove("addCapabilities") {
        let capabilities = map
            .entry("capabilities")
            .or_insert_with(|| Value::Object(serde_json::Map::new()));
        match (older, capabilities) {
            (Value::Array(names), Value::Object(capabilities)) if names.iter().all(Value::is_string) => {
                if capabilities.insert("add".into(), Value::Array(names)).is_some() {
                    report.problem(field, "has both addCapabilities and capabilities.add: use one");
                }
            }
            _ => report.problem(field, "addCapabilities must be a list of strings"),
        }
    }
    let value = Value::Object(map);
    // The agent builds without `crd`, and so without Kubernetes' types.
    #[cfg(feature = "crd")]
    if let Err(error) = serde_json::from_value::<k8s_openapi::api::core::v1::SecurityContext>(value.clone()) {
        report.problem(field, error.to_string());
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_absolute_paths_are_equal_texts() {
        for path in ["/data/x", "/data//x", "//data/x//"] {
            assert_eq!(absolute(path).as_deref(), Ok("/data/x"), "{path}");
        }
        for path in ["", "/", "//", "data", "/a/../b", "/a/./b", "/a:b"] {
            assert!(absolute(path).is_err(), "{path}");
        }
    }
}
