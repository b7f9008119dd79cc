//! Properties of the conversion that hold for every object that the schemas allow. The objects are generated
//! from the schemas.

use std::sync::LazyLock;

use proptest::prelude::*;
use proptest::strategy::Union;
use serde_json::{Map, Value, json};

use crate::crd::convert::{Version, convert, convert_spec};
use crate::crd::definition::{Conversion, WebhookClient, definition};
use crate::crd::v1alpha2::MiniClusterSpec;

static V1ALPHA1: LazyLock<Value> = LazyLock::new(|| schema(Version::V1alpha1));
static V1ALPHA2: LazyLock<Value> = LazyLock::new(|| schema(Version::V1alpha2));

fn schema(version: Version) -> Value {
    let client = WebhookClient::Url("https://a/b".into());
    let crd = definition(&Conversion::Webhook {
        client,
        ca_bundle: Vec::new(),
    })
    .unwrap();
    let crd = serde_json::to_value(crd).unwrap();
    let versions = crd["spec"]["versions"].as_array().unwrap();
    let found = versions
        .iter()
        .find(|entry| entry["name"] == version.name())
        .unwrap();
    found["schema"]["openAPIV3Schema"]["properties"]["spec"].clone()
}

/// Some values of this schema. Default values are among them, so explicit defaults are tested too.
fn arbitrary(schema: &Value) -> BoxedStrategy<Value> {
    if let Some(properties) = schema["properties"].as_object() {
        let required: Vec<&str> = schema["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let fields: Vec<BoxedStrategy<Option<(String, Value)>>> = properties
            .iter()
            .map(|(name, property)| {
                let is_required = required.contains(&name.as_str());
                let name = name.clone();
                let value = arbitrary(property).prop_map(move |value| (name.clone(), value));
                if is_required {
                    value.prop_map(Some).boxed()
                } else {
                    proptest::option::weighted(0.25, value).boxed()
                }
            })
            .collect();
        return fields
            .prop_map(|fields| Value::Object(fields.into_iter().flatten().collect()))
            .boxed();
    }
    if schema["additionalProperties"].is_object() {
        let entry = ("[a-c]", arbitrary(&schema["additionalProperties"]));
        return proptest::collection::vec(entry, 0..3)
            .prop_map(|entries| Value::Object(Map::from_iter(entries)))
            .boxed();
    }
    if schema["items"].is_object() {
        return proptest::collection::vec(arbitrary(&schema["items"]), 0..3)
            .prop_map(Value::Array)
            .boxed();
    }
    let values = match schema["type"].as_str() {
        Some("boolean") => vec![json!(true), json!(false)],
        Some("integer") => vec![json!(1), json!(6), json!(1000), json!(5000)],
        _ => vec![json!("a"), json!("flux"), json!("main"), json!("")],
    };
    let default = schema.get("default").cloned();
    Union::new(values.into_iter().chain(default).map(Just)).boxed()
}

/// The value with the schema's defaults, as the API server fills them in.
fn defaulted(schema: &Value, mut value: Value) -> Value {
    match &mut value {
        Value::Object(map) => {
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                if let Some(default) = property.get("default")
                    && !map.contains_key(name)
                {
                    map.insert(name.clone(), default.clone());
                }
                if let Some(inner) = map.get_mut(name) {
                    *inner = defaulted(property, inner.take());
                }
            }
            if schema["additionalProperties"].is_object() {
                for inner in map.values_mut() {
                    *inner = defaulted(&schema["additionalProperties"], inner.take());
                }
            }
        }
        Value::Array(list) => {
            for inner in list {
                *inner = defaulted(&schema["items"], inner.take());
            }
        }
        _ => {}
    }
    value
}

fn converted(mut spec: Value, to: Version) -> Value {
    convert_spec(&mut spec, to);
    spec
}

/// The meaning of a spec, in a form that both versions share: all defaults of its version are explicit.
fn meaning(schema: &Value, spec: &Value, version: Version) -> Value {
    // Defaults that depend on `older` differ between the versions: see the table in crd/convert.rs.
    let older = version == Version::V1alpha1;
    let mut spec = defaulted(schema, spec.clone());
    // Whether v1alpha1 would serve the Flux RESTful API by default.
    let serves = crate::crd::convert::spec::has_nothing_else_to_run(spec.as_object().unwrap());
    let runner = crate::crd::convert::spec::runner_index(spec.as_object().unwrap());
    let has_sidecar = spec["containers"].as_array().is_some_and(|all| all.len() > 1);
    let mut set_default = |pointer: &str, field: &str, value: Value| {
        let block = spec.pointer_mut(pointer).unwrap().as_object_mut().unwrap();
        block.entry(field).or_insert(value);
    };
    set_default("", "flux", json!({}));
    set_default("/flux", "installRoot", json!("/usr"));
    set_default("/flux", "submitCommand", json!("flux submit"));
    set_default("/flux", "logLevel", json!(6));
    set_default("/flux", "connectTimeout", json!("5s"));
    set_default("/flux", "container", json!({ "disable": older }));
    set_default("/flux/container", "disable", json!(false));
    set_default("/flux/container", "name", json!("flux-view"));
    set_default("/flux/container", "mountPath", json!("/mnt/flux"));
    if has_sidecar {
        set_default("/flux", "noWaitSocket", json!(older));
    }
    set_default("", "pod", json!({}));
    set_default("/pod", "automountServiceAccountToken", json!(older));
    if serves {
        set_default("", "fluxRestful", json!({ "disable": !older }));
    }
    if let Some(i) = runner {
        let container = &spec["containers"][i];
        if container.get("fluxUser").is_none() && container.get("fluxuser").is_none() {
            spec["containers"][i]["fluxUser"] = json!({ "disable": !older });
        }
    }
    for block in user_blocks(&mut spec) {
        for (field, value) in [
            ("disable", json!(false)),
            ("name", json!("flux")),
            ("uid", json!(1000)),
        ] {
            block.entry(field).or_insert(value);
        }
    }
    if let Some(block) = spec.get_mut("fluxRestful").and_then(Value::as_object_mut) {
        for (field, value) in [
            ("disable", json!(false)),
            ("branch", json!("main")),
            ("port", json!(5000)),
        ] {
            block.entry(field).or_insert(value);
        }
    }
    let take = |spec: &mut Value, field: &str| {
        spec.as_object_mut()
            .unwrap()
            .shift_remove(field)
            .unwrap_or(json!(false))
    };
    // v1alpha1's `cleanup` is about the pods, v1alpha2's about the whole MiniCluster.
    let (pods, whole) = if older {
        ("cleanup", "cleanupMiniCluster")
    } else {
        ("cleanupPods", "cleanup")
    };
    let (pods, whole) = (take(&mut spec, pods), take(&mut spec, whole));
    json!({ "spec": spec, "cleans pods": pods, "cleans all": whole })
}

/// The blocks `fluxUser` (`fluxuser`) of all containers and services.
fn user_blocks(spec: &mut Value) -> Vec<&mut Map<String, Value>> {
    let map = spec.as_object_mut().unwrap();
    let lists = map
        .iter_mut()
        .filter(|(name, _)| matches!(name.as_str(), "containers" | "services"));
    lists
        .flat_map(|(_, list)| list.as_array_mut().unwrap())
        .flat_map(|container| container.as_object_mut().unwrap())
        .filter(|(name, _)| matches!(name.as_str(), "fluxUser" | "fluxuser"))
        .filter_map(|(_, block)| block.as_object_mut())
        .collect()
}

/// A whole object as the API server passes it on, with the defaults of its version.
fn object(version: Version, spec: Value) -> Value {
    let schema = match version {
        Version::V1alpha1 => &V1ALPHA1,
        Version::V1alpha2 => &V1ALPHA2,
    };
    json!({
        "apiVersion": version.api_version(), "kind": "MiniCluster", "metadata": { "name": "a" },
        "spec": defaulted(schema, spec),
    })
}

/// The object in the other version, as the API server returns it with that version's defaults.
fn through(object: &Value, to: Version) -> Value {
    let converted = convert(object.clone(), to).unwrap();
    let with_defaults = self::object(to, converted["spec"].clone())["spec"].take();
    assert_eq!(
        converted["spec"], with_defaults,
        "the conversion sets all defaults itself"
    );
    converted
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn v1alpha1_survives_v1alpha2(spec in arbitrary(&V1ALPHA1)) {
        let (older, newer) = (&V1ALPHA1, &V1ALPHA2);
        let through = converted(spec.clone(), Version::V1alpha2);
        prop_assert!(serde_json::from_value::<MiniClusterSpec>(through.clone()).is_ok());
        prop_assert_eq!(meaning(newer, &through, Version::V1alpha2), meaning(older, &spec, Version::V1alpha1));
        let back = converted(through, Version::V1alpha1);
        prop_assert_eq!(meaning(older, &back, Version::V1alpha1), meaning(older, &spec, Version::V1alpha1));
    }

    #[test]
    fn v1alpha2_survives_v1alpha1(spec in arbitrary(&V1ALPHA2)) {
        let (older, newer) = (&V1ALPHA1, &V1ALPHA2);
        let through = converted(spec.clone(), Version::V1alpha1);
        prop_assert_eq!(meaning(older, &through, Version::V1alpha1), meaning(newer, &spec, Version::V1alpha2));
        let back = converted(through, Version::V1alpha2);
        prop_assert_eq!(meaning(newer, &back, Version::V1alpha2), meaning(newer, &spec, Version::V1alpha2));
    }

    /// Through the API server: an object that was applied in one version is read back unchanged. An object that
    /// is read in the other version and written back is stored unchanged.
    #[test]
    fn v1alpha1_is_read_back_and_stored_unchanged(spec in arbitrary(&V1ALPHA1)) {
        let applied = object(Version::V1alpha1, spec);
        let stored = through(&applied, Version::V1alpha2);
        let read = through(&stored, Version::V1alpha1);
        prop_assert_eq!(&read, &applied);
        prop_assert_eq!(through(&read, Version::V1alpha2), stored);
    }

    #[test]
    fn v1alpha2_is_unchanged_by_v1alpha1_write_back(spec in arbitrary(&V1ALPHA2)) {
        let stored = object(Version::V1alpha2, spec);
        let read = through(&stored, Version::V1alpha1);
        prop_assert_eq!(&through(&read, Version::V1alpha2), &stored);
    }

    /// Anybody can write the annotation that records a spelling. Even then, it only changes how defaults are written.
    #[test]
    fn forged_spelling_annotation_changes_no_meaning(spec in arbitrary(&V1ALPHA2), other in arbitrary(&V1ALPHA2)) {
        let mut read = through(&object(Version::V1alpha2, spec), Version::V1alpha1);
        let foreign: Map<String, Value> =
            other.as_object().unwrap().iter().map(|(name, value)| (format!("/{name}"), value.clone())).collect();
        let foreign = serde_json::to_string(&foreign).unwrap();
        read["metadata"]["annotations"] = json!({ "flux-framework.org/v1alpha2-spelling": foreign });
        let written = through(&read, Version::V1alpha2);
        prop_assert_eq!(
            meaning(&V1ALPHA2, &written["spec"], Version::V1alpha2),
            meaning(&V1ALPHA1, &read["spec"], Version::V1alpha1)
        );
    }
}
