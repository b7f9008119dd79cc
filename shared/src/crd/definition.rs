//! The CustomResourceDefinition: the schemas of the types, with upper bounds for all values and the rules of `rules`.
//!
//! v1alpha2 is stored. v1alpha1 is served too if the operator's webhook converts.

use k8s_openapi::ByteString;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Map, Value, json};

use super::convert::Version;
use super::rules::{
    ENUMS, EXISTING_VOLUME_RULES, FIXED, PATTERNS, RANGES, RULES, Rule, V1ALPHA2_RULES, VOLUME_RULES,
};
use super::{bounds, unchanged, v1alpha1, v1alpha2};

/// The pattern of a quantity, as controller-gen writes it into CRDs.
const QUANTITY: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// Description of `status.jobid` in v1alpha2.
pub(super) const JOBID_DESCRIPTION: &str = "Unused; accepted because clients of the Go operator send it.";

/// Why the definition could not be generated. This is always a bug, which the tests would find.
#[derive(Debug, thiserror::Error)]
pub enum DefinitionError {
    #[error("no schema at {0}")]
    NoSchema(String),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// What converts between the versions.
#[derive(Debug, Clone, PartialEq)]
pub enum Conversion {
    /// None: only v1alpha2 is served.
    None,
    /// The operator's webhook: both versions are served.
    Webhook {
        client: WebhookClient,
        /// PEM certificates of the authorities that sign the webhook's certificate. Empty: the webhook fills them in.
        ca_bundle: Vec<u8>,
    },
}

/// Where the webhook is.
#[derive(Debug, Clone, PartialEq)]
pub enum WebhookClient {
    /// A Service of the cluster.
    Service {
        namespace: String,
        name: String,
        path: String,
        port: i32,
    },
    /// An address that the API server reaches, `https://`.
    Url(String),
}

/// The definition without conversion: v1alpha2 alone.
pub fn crd() -> Result<CustomResourceDefinition, DefinitionError> {
    definition(&Conversion::None)
}

/// The definition with v1alpha2 and, if the webhook converts, v1alpha1.
pub fn definition(conversion: &Conversion) -> Result<CustomResourceDefinition, DefinitionError> {
    let mut current = serde_json::to_value(v1alpha2::MiniCluster::crd())?;
    let mut older = current.clone();
    let root = schema_root(&mut current)?;
    constrain(root, Version::V1alpha2)?;
    for rule in V1ALPHA2_RULES {
        add_rule(schema_at(root, rule.path)?, rule);
    }
    // Not in our types, but clients with the Go operator's types send it with every object.
    properties_at(root, "status")?.insert(
        "jobid".into(),
        json!({ "type": "string", "maxLength": 256, "description": JOBID_DESCRIPTION }),
    );
    if let Conversion::Webhook { client, ca_bundle } = conversion {
        let root = schema_root(&mut older)?;
        v1alpha1::change(root)?;
        constrain(root, Version::V1alpha1)?;
        let mut version = older
            .pointer_mut("/spec/versions/0")
            .map(Value::take)
            .unwrap_or_default();
        version["name"] = json!(Version::V1alpha1.name());
        version["storage"] = json!(false);
        if let Some(versions) = current
            .pointer_mut("/spec/versions")
            .and_then(Value::as_array_mut)
        {
            versions.push(version);
        }
        current["spec"]["conversion"] = webhook(client, ca_bundle)?;
    }
    Ok(serde_json::from_value(current)?)
}

/// The value of `spec.conversion` for a webhook.
fn webhook(client: &WebhookClient, ca_bundle: &[u8]) -> Result<Value, DefinitionError> {
    let mut config = match client {
        WebhookClient::Service {
            namespace,
            name,
            path,
            port,
        } => {
            json!({ "service": { "namespace": namespace, "name": name, "path": path, "port": port } })
        }
        WebhookClient::Url(url) => json!({ "url": url }),
    };
    if !ca_bundle.is_empty() {
        config["caBundle"] = serde_json::to_value(ByteString(ca_bundle.to_vec()))?;
    }
    Ok(
        json!({ "strategy": "Webhook", "webhook": { "clientConfig": config, "conversionReviewVersions": ["v1"] } }),
    )
}

/// The schema of the first version.
fn schema_root(definition: &mut Value) -> Result<&mut Value, DefinitionError> {
    let root = definition.pointer_mut("/spec/versions/0/schema/openAPIV3Schema");
    root.ok_or_else(|| DefinitionError::NoSchema("root".into()))
}

/// Adds bounds and rules to a version's schema. Only the rule about changed fields depends on the version.
fn constrain(root: &mut Value, version: Version) -> Result<(), DefinitionError> {
    add_bounds(root, "");
    // `kubectl explain minicluster` shows the description of the root. The text for it is at the type of the spec.
    let description = root.pointer("/properties/spec/description").cloned();
    root["description"] = description.unwrap_or_default();
    let spec = schema_at(root, "spec")?;
    spec.insert(
        "description".into(),
        json!("Desired state. Once the Job is created, only size, suspend, maxRestarts, ttlSecondsAfterFinished and the cleanup fields can change."),
    );
    for (path, low, high) in RANGES {
        let schema = schema_at(root, path)?;
        schema.insert("minimum".into(), json!(low));
        schema.insert("maximum".into(), json!(high));
    }
    for (path, values) in ENUMS {
        // An empty text counts as not set.
        let values: Vec<&str> = [""].into_iter().chain(values.iter().copied()).collect();
        schema_at(root, path)?.insert("enum".into(), json!(values));
    }
    for (path, pattern) in PATTERNS {
        schema_at(root, path)?.insert("pattern".into(), json!(pattern));
    }
    for rule in RULES {
        add_rule(schema_at(root, rule.path)?, rule);
    }
    for list in ["spec.containers", "spec.services"] {
        for rule in VOLUME_RULES {
            add_rule(schema_at(root, &format!("{list}.[].volumes.{{}}"))?, rule);
        }
        for rule in EXISTING_VOLUME_RULES {
            add_rule(schema_at(root, &format!("{list}.[].existingVolumes.{{}}"))?, rule);
        }
    }
    // In a list of this type, the API server rejects two users of the same name.
    let users = schema_at(root, "spec.users")?;
    users.insert("x-kubernetes-list-type".into(), json!("map"));
    users.insert("x-kubernetes-list-map-keys".into(), json!(["name"]));
    add_root_rules(schema_at(root, "")?, version);
    Ok(())
}

/// Adds the rules at the root. Two of them compare the spec with the previous one, and need the status, which only a
/// rule at the root can read.
fn add_root_rules(root: &mut Map<String, Value>, version: Version) {
    let spec = root
        .get("properties")
        .and_then(|fields| fields.get("spec"))
        .and_then(Value::as_object);
    let unchanged: Vec<String> = FIXED
        .iter()
        .filter_map(|field| unchanged::is_as_before(spec?, field, version))
        .collect();
    // For each fixed field, its name if it has changed.
    let changed_names: Vec<String> = FIXED
        .iter()
        .map(|field| format!("({} ? '' : '{field} ')", is_written_as_before(field)))
        .collect();
    // Whether a status has reported the Job: every such status has the Job's maximum size. (The Go operator stores 0
    // before there is a Job.)
    let has_job = "has(oldSelf.status) && has(oldSelf.status.maximumSize) && oldSelf.status.maximumSize > 0";
    // Then the rule about `maxSize` is not needed: a size beyond `maxSize` is beyond this maximum too, and is reported so.
    let has_own_maximum = "has(self.status) && has(self.status.maximumSize) && self.status.maximumSize > 0";
    let rules = json!([
        {
            "rule": "self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,52}[a-z0-9])?$')",
            "message": "metadata.name must be 54 characters at most, lower case letters, digits and `-`, and must not begin or end with `-`: hosts are named after it",
        },
        {
            // A size beyond the maximum may have been accepted before the status had the maximum. Then the next statuses
            // must still be accepted.
            "rule": format!("!({has_job}) || self.spec.size <= oldSelf.status.maximumSize || self.spec.size == oldSelf.spec.size"),
            "message": "size cannot exceed the larger of size and maxSize at creation",
            "messageExpression": "'size is %d, but cannot exceed %d (the larger of size and maxSize at creation): delete the MiniCluster and recreate it with a larger maxSize'.format([self.spec.size, oldSelf.status.maximumSize])",
            "fieldPath": ".spec.size",
            "reason": "FieldValueForbidden",
        },
        {
            "rule": format!("{has_own_maximum} || !has(self.spec.maxSize) || self.spec.maxSize == 0 || self.spec.maxSize >= self.spec.size"),
            "message": "must not be smaller than size",
            "messageExpression": "'is %d, but must not be smaller than size, which is %d'.format([self.spec.maxSize, self.spec.size])",
            "fieldPath": ".spec.maxSize",
        },
        // One rule for all fields, since every rule also costs time at each write of the status. There the specs are
        // equal, so the rule compares nothing else.
        {
            "rule": format!("!({has_job}) || self.spec == oldSelf.spec || ({})", unchanged.join(" && ")),
            "messageExpression": format!(
                "{} + 'cannot change once the Job has been created: delete and recreate the MiniCluster'",
                changed_names.join(" + "),
            ),
            "fieldPath": ".spec",
            "reason": "FieldValueForbidden",
        },
    ]);
    root.insert("x-kubernetes-validations".into(), rules);
}

/// CEL expression: whether a field of the spec is written exactly as before. Only for the message: it is shorter than
/// `unchanged::is_as_before`, but takes another way to write the same value for a change.
fn is_written_as_before(field: &str) -> String {
    let (new, old) = (format!("self.spec.{field}"), format!("oldSelf.spec.{field}"));
    format!("(has({new}) == has({old}) && (!has({new}) || {new} == {old}))")
}

/// Adds a rule to the schema that it belongs to.
fn add_rule(schema: &mut Map<String, Value>, rule: &Rule) {
    let mut entry = json!({ "rule": rule.rule, "message": rule.message });
    if !rule.message_expression.is_empty() {
        entry["messageExpression"] = json!(rule.message_expression);
    }
    if !rule.field.is_empty() {
        entry["fieldPath"] = json!(rule.field);
    }
    if let Value::Array(rules) = schema
        .entry("x-kubernetes-validations")
        .or_insert_with(|| json!([]))
    {
        rules.push(entry);
    }
}

/// The schema at a path of property names, `[]` (items) and `{}` (map values). The empty path is the root.
pub(super) fn schema_at<'a>(
    root: &'a mut Value,
    path: &str,
) -> Result<&'a mut Map<String, Value>, DefinitionError> {
    let missing = || DefinitionError::NoSchema(path.to_owned());
    let mut schema = root;
    for part in path.split('.').filter(|part| !part.is_empty()) {
        schema = match part {
            "[]" => schema.get_mut("items"),
            "{}" => schema.get_mut("additionalProperties"),
            name => schema
                .get_mut("properties")
                .and_then(|properties| properties.get_mut(name)),
        }
        .ok_or_else(missing)?;
    }
    schema.as_object_mut().ok_or_else(missing)
}

/// The fields of the object at a path of `schema_at`.
pub(super) fn properties_at<'a>(
    root: &'a mut Value,
    path: &str,
) -> Result<&'a mut Map<String, Value>, DefinitionError> {
    schema_at(root, path)?
        .get_mut("properties")
        .and_then(Value::as_object_mut)
        .ok_or_else(|| DefinitionError::NoSchema(path.to_owned()))
}

/// Gives every string, list and map an upper bound, and quantities their pattern. The API server needs the bounds to
/// estimate what rules cost. `name`: the field that `schema` belongs to; items and map values have the name of their
/// list or map.
fn add_bounds(schema: &mut Value, name: &str) {
    let Some(map) = schema.as_object_mut() else { return };
    if map.get("x-kubernetes-int-or-string") == Some(&json!(true)) {
        // In these fields an empty text counts as not set. The other quantities are in maps of resources.
        let may_be_empty = matches!(name, "emptyDirSizeLimit" | "capacity");
        let pattern = if may_be_empty {
            format!("^$|{QUANTITY}")
        } else {
            QUANTITY.to_owned()
        };
        map.insert("pattern".into(), json!(pattern));
        map.insert("maxLength".into(), json!(bounds::LONGEST_QUANTITY));
        return;
    }
    match map.get("type").and_then(Value::as_str) {
        Some("string") if !map.contains_key("maxLength") && !map.contains_key("enum") => {
            map.insert("maxLength".into(), json!(bounds::longest(name)));
        }
        Some("array") => {
            map.entry("maxItems").or_insert(json!(bounds::most_items(name)));
        }
        Some("object") if map.contains_key("additionalProperties") => {
            map.entry("maxProperties")
                .or_insert(json!(bounds::most_keys(name)));
        }
        _ => {}
    }
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        for (name, property) in properties.iter_mut() {
            add_bounds(property, name);
        }
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(inner) = map.get_mut(inner) {
            add_bounds(inner, name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition with both versions.
    fn both() -> Value {
        let client = WebhookClient::Url("https://127.0.0.1:9443/convert".into());
        let conversion = Conversion::Webhook {
            client,
            ca_bundle: b"PEM".to_vec(),
        };
        serde_json::to_value(definition(&conversion).unwrap()).unwrap()
    }

    fn schema<'a>(crd: &'a Value, version: &str) -> &'a Value {
        let versions = crd["spec"]["versions"].as_array().unwrap();
        &versions.iter().find(|entry| entry["name"] == version).unwrap()["schema"]["openAPIV3Schema"]
    }

    #[test]
    fn both_versions_are_served_and_v1alpha2_is_stored() {
        let crd = both();
        let versions = crd["spec"]["versions"].as_array().unwrap();
        let stored: Vec<_> = versions
            .iter()
            .map(|version| (&version["name"], &version["storage"]))
            .collect();
        assert_eq!(
            stored,
            [
                (&json!("v1alpha2"), &json!(true)),
                (&json!("v1alpha1"), &json!(false))
            ]
        );
        for version in versions {
            assert_eq!(version["served"], true);
            assert_eq!(version["subresources"]["scale"]["specReplicasPath"], ".spec.size");
            assert!(version["subresources"]["status"].is_object());
            assert_eq!(
                version["additionalPrinterColumns"],
                versions[0]["additionalPrinterColumns"]
            );
        }
        let client = &crd["spec"]["conversion"]["webhook"]["clientConfig"];
        assert_eq!(
            client,
            &json!({ "url": "https://127.0.0.1:9443/convert", "caBundle": "UEVN" })
        );
        assert!(
            !crd.to_string().contains("$ref"),
            "a CRD's schema must have no references"
        );
    }

    #[test]
    fn without_conversion_v1alpha2_alone_is_served() {
        let crd = serde_json::to_value(crd().unwrap()).unwrap();
        assert_eq!(crd["spec"]["versions"].as_array().unwrap().len(), 1);
        assert_eq!(crd["spec"].get("conversion"), None);
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
        let crd = both();
        let mut missing = Vec::new();
        for version in ["v1alpha1", "v1alpha2"] {
            let explained = schema(&crd, version)["description"].as_str().unwrap_or_default();
            assert!(
                explained.contains("Flux instance"),
                "kubectl explain minicluster: {explained}"
            );
            let properties = &schema(&crd, version)["properties"];
            walk(&properties["spec"], &format!("{version} spec"), &mut missing);
            walk(&properties["status"], &format!("{version} status"), &mut missing);
        }
        // The fields below a securityContext, and their descriptions, are Kubernetes' own.
        missing.retain(|path| !path.to_lowercase().contains("securitycontext."));
        assert!(missing.is_empty(), "{missing:?}");
    }
}
