//! The CustomResourceDefinition: the types' schema, bounded, with the rules of `rules` in it.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Map, Value, json};

use super::rules::{ENUMS, FIXED, PATTERNS, RANGES, RULES, Rule, VOLUME_RULES};
use super::v1alpha2::MiniCluster;

/// A quantity as Kubernetes' own schema has it.
const QUANTITY: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// Why the definition could not be made: a defect, found by the tests.
#[derive(Debug, thiserror::Error)]
pub enum DefinitionError {
    #[error("no schema at {0}")]
    NoSchema(String),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// The definition that the operator installs.
pub fn crd() -> Result<CustomResourceDefinition, DefinitionError> {
    let mut value = serde_json::to_value(MiniCluster::crd())?;
    let root = value
        .pointer_mut("/spec/versions/0/schema/openAPIV3Schema")
        .ok_or_else(|| DefinitionError::NoSchema("root".into()))?;
    bound(root, "");
    for (path, low, high) in RANGES {
        let schema = at(root, path)?;
        schema.insert("minimum".into(), json!(low));
        schema.insert("maximum".into(), json!(high));
    }
    for (path, values) in ENUMS {
        at(root, path)?.insert("enum".into(), json!(values));
    }
    for (path, pattern) in PATTERNS {
        at(root, path)?.insert("pattern".into(), json!(pattern));
    }
    for rule in RULES {
        add_rule(at(root, rule.at)?, rule);
    }
    for place in ["spec.containers.[].volumes.{}", "spec.services.[].volumes.{}"] {
        for rule in VOLUME_RULES {
            add_rule(at(root, place)?, rule);
        }
    }
    lifetime_rules(at(root, "")?);
    Ok(serde_json::from_value(value)?)
}

/// Rules that compare with the object as it was: at the root, where the status can be seen.
fn lifetime_rules(root: &mut Map<String, Value>) {
    let mut rules = vec![
        json!({
            "rule": "self.metadata.name.size() <= 54 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            "message": "metadata.name must be lower case letters, digits and `-`, beginning with a letter, 54 at most: it names hosts and Services",
        }),
        json!({
        "rule": "!has(oldSelf.status) || !has(oldSelf.status.maximumSize) || self.spec.size <= oldSelf.status.maximumSize",
        "message": "size cannot exceed what the cluster was made for (the larger of size and maxSize then): delete it and create it with a larger maxSize",
        "fieldPath": ".spec.size",
        "reason": "FieldValueForbidden",
        }),
    ];
    for field in FIXED {
        let same = format!(
            "has(self.spec.{field}) == has(oldSelf.spec.{field}) && (!has(self.spec.{field}) || self.spec.{field} == oldSelf.spec.{field})"
        );
        rules.push(json!({
            "rule": format!("!has(oldSelf.status) || !has(oldSelf.status.maximumSize) || ({same})"),
            "message": format!("{field} cannot change once the cluster has been made: delete the MiniCluster and create it anew"),
            "fieldPath": format!(".spec.{field}"),
            "reason": "FieldValueForbidden",
        }));
    }
    root.insert("x-kubernetes-validations".into(), Value::Array(rules));
}

fn add_rule(schema: &mut Map<String, Value>, rule: &Rule) {
    let mut entry = json!({ "rule": rule.rule, "message": rule.message });
    if !rule.field.is_empty() {
        entry["fieldPath"] = json!(rule.field);
    }
    if let Value::Array(rules) = schema.entry("x-kubernetes-validations").or_insert_with(|| json!([])) {
        rules.push(entry);
    }
}

/// The schema at a path of property names, `[]` (items) and `{}` (map values).
fn at<'a>(root: &'a mut Value, path: &str) -> Result<&'a mut Map<String, Value>, DefinitionError> {
    let missing = || DefinitionError::NoSchema(path.to_owned());
    let mut schema = root;
    for part in path.split('.').filter(|part| !part.is_empty()) {
        schema = match part {
            "[]" => schema.get_mut("items"),
            "{}" => schema.get_mut("additionalProperties"),
            name => schema.get_mut("properties").and_then(|properties| properties.get_mut(name)),
        }
        .ok_or_else(missing)?;
    }
    schema.as_object_mut().ok_or_else(missing)
}

/// Gives every string, list and map an upper bound, which CEL's cost estimate needs, and quantities their pattern.
fn bound(schema: &mut Value, name: &str) {
    let Some(map) = schema.as_object_mut() else { return };
    if map.get("x-kubernetes-int-or-string") == Some(&json!(true)) {
        map.insert("pattern".into(), json!(QUANTITY));
        map.insert("maxLength".into(), json!(64));
        return;
    }
    match map.get("type").and_then(Value::as_str) {
        Some("string") if !map.contains_key("maxLength") && !map.contains_key("enum") => {
            map.insert("maxLength".into(), json!(longest(name)));
        }
        Some("array") => {
            map.entry("maxItems").or_insert(json!(if matches!(name, "containers" | "services") { 32 } else { 256 }));
        }
        Some("object") if map.contains_key("additionalProperties") => {
            map.entry("maxProperties").or_insert(json!(if name == "volumes" { 64 } else { 256 }));
        }
        _ => {}
    }
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        for (name, property) in properties.iter_mut() {
            bound(property, name);
        }
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(inner) = map.get_mut(inner) {
            bound(inner, name);
        }
    }
}

/// Bytes that a string of this name may have.
fn longest(name: &str) -> usize {
    match name {
        "command" | "script" | "init" | "pre" | "post" | "preCommand" | "brokerPre" | "preBroker" | "workerPre"
        | "preWorker" | "servicePre" | "brokerConfig" => 1_000_000,
        "environment" | "hostlist" | "message" => 65_536,
        "annotations" | "csiDriverAttributes" | "curveCert" => 16_384,
        _ => 4096,
    }
}

/// The schema of a container's securityContext: Kubernetes' own, and the older addCapabilities.
pub fn security_context(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut schema = generator.subschema_for::<k8s_openapi::api::core::v1::SecurityContext>();
    inline(&mut schema, generator);
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.insert(
            "addCapabilities".into(),
            json!({
                "type": "array",
                "items": { "type": "string" },
                "description": "Capabilities to add: the older spelling of capabilities.add.",
            }),
        );
    }
    schema
}

/// The schema of a pod's securityContext: Kubernetes' own.
pub fn pod_security_context(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut schema = generator.subschema_for::<k8s_openapi::api::core::v1::PodSecurityContext>();
    inline(&mut schema, generator);
    schema
}

/// Replaces a reference by what it refers to: a CRD's schema has no references.
fn inline(schema: &mut schemars::Schema, generator: &schemars::SchemaGenerator) {
    let name = schema.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next());
    if let Some(found) = name.and_then(|name| generator.definitions().get(name)).cloned()
        && let Ok(found) = schemars::Schema::try_from(found)
    {
        *schema = found;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_can_be_made_and_names_both_subresources() {
        let crd = serde_json::to_value(crd().unwrap()).unwrap();
        let version = &crd["spec"]["versions"][0];
        assert_eq!(version["name"], "v1alpha2");
        assert_eq!(version["subresources"]["scale"]["specReplicasPath"], ".spec.size");
        assert!(version["subresources"]["status"].is_object());
        let text = crd.to_string();
        assert!(!text.contains("$ref"), "a CRD's schema must have no references");
    }

    #[test]
    fn every_field_is_described() {
        fn walk(schema: &Value, path: &str, missing: &mut Vec<String>) {
            if let Some(properties) = schema["properties"].as_object() {
                for (name, property) in properties {
                    let path = format!("{path}.{name}");
                    if property["description"].as_str().unwrap_or_default().is_empty() {
                        missing.push(path.clone());
                    }
                    walk(property, &path, missing);
                }
            }
            for inner in ["items", "additionalProperties"] {
                if schema[inner].is_object() {
                    walk(&schema[inner], &format!("{path}.{inner}"), missing);
                }
            }
        }
        let crd = serde_json::to_value(crd().unwrap()).unwrap();
        let mut missing = Vec::new();
        let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        walk(spec, "spec", &mut missing);
        missing.retain(|path| !path.contains("ecurityContext."));
        assert!(missing.is_empty(), "{missing:?}");
    }
}
