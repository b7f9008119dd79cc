//! Every example renders to objects, with the same bytes each time, and every field of the CRD has an
//! example.

use std::collections::BTreeSet;
use std::path::PathBuf;

use flux_operator_core::render::{self, Options, RenderFacts};
use flux_shared::crd;
use serde_json::Value;

use test_support::rendering::rendered;
use test_support::repository::{repository, yaml_files};

/// The first MiniCluster of each file below `examples/`, and the variants in other spellings.
fn examples() -> Vec<(PathBuf, Value)> {
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        let found = documents
            .into_iter()
            .find(|document| document["kind"] == "MiniCluster")?;
        Some((path, found))
    };
    ["examples", "shared/tests/spellings"]
        .iter()
        .flat_map(|folder| yaml_files(&repository().join(folder)))
        .filter_map(read)
        .collect()
}

#[test]
fn every_example_is_rendered_the_same_each_time() {
    let render = |document: &Value| {
        let objects = rendered(document, &Options::default(), &RenderFacts::default());
        // Secrets cannot be serialized. The other objects are not made with the default options.
        let render::Objects {
            config_map,
            headless,
            services,
            job,
            services_pod,
            volumes,
            ..
        } = objects;
        let volumes: Vec<_> = volumes.iter().map(|made| (&made.volume, &made.claim)).collect();
        serde_json::to_string(&(config_map, headless, services, job, services_pod, volumes)).unwrap()
    };
    let examples = examples();
    assert!(examples.len() > 60, "only {} found", examples.len());
    for (path, document) in examples {
        assert_eq!(render(&document), render(&document), "{}", path.display());
    }
}

/// Paths of properties, with `[]` for items and `{}` for values of maps. A `securityContext` is one leaf: Kubernetes
/// defines its fields.
fn of_schema(path: &str, schema: &Value, out: &mut BTreeSet<String>) {
    if let Some(properties) = schema["properties"].as_object()
        && !path.ends_with(".securityContext")
    {
        for (name, property) in properties {
            of_schema(&format!("{path}.{name}"), property, out);
        }
    } else if schema["items"].is_object() {
        of_schema(&format!("{path}[]"), &schema["items"], out);
    } else if schema["additionalProperties"].is_object() {
        of_schema(&format!("{path}{{}}"), &schema["additionalProperties"], out);
    } else {
        out.insert(path.to_owned());
    }
}

/// The leaves of the schema that a document sets.
fn of_document(path: &str, value: &Value, leaves: &BTreeSet<String>, out: &mut BTreeSet<String>) {
    if leaves.contains(path) {
        out.insert(path.to_owned());
        return;
    }
    match value {
        Value::Object(map) => {
            // Both paths are tried: the document does not say whether the schema has fields or a map here.
            for (key, value) in map {
                of_document(&format!("{path}.{key}"), value, leaves, out);
                of_document(&format!("{path}{{}}"), value, leaves, out);
            }
        }
        Value::Array(list) => list
            .iter()
            .for_each(|value| of_document(&format!("{path}[]"), value, leaves, out)),
        _ => {}
    }
}

#[test]
fn every_field_has_an_example() {
    let crd = serde_json::to_value(crd::definition::crd().unwrap()).unwrap();
    let versions = crd["spec"]["versions"].as_array().unwrap();
    let version = versions
        .iter()
        .find(|version| version["name"] == "v1alpha2")
        .unwrap();
    let mut leaves = BTreeSet::new();
    of_schema(
        "spec",
        &version["schema"]["openAPIV3Schema"]["properties"]["spec"],
        &mut leaves,
    );
    let mut shown = BTreeSet::new();
    for (_, document) in examples() {
        of_document("spec", &document["spec"], &leaves, &mut shown);
    }
    // A service is a container, and fluxuser is another spelling of fluxUser: an example of one is enough for
    // both.
    let same = |leaf: &str| {
        leaf.replace("spec.services", "spec.containers")
            .replace("fluxuser", "fluxUser")
    };
    let is_shown = |leaf: &String| shown.contains(leaf) || shown.contains(&same(leaf));
    let missing: Vec<&String> = leaves.iter().filter(|leaf| !is_shown(leaf)).collect();
    assert!(
        missing.is_empty(),
        "of {} fields these have no example: {missing:#?}",
        leaves.len()
    );
}
