//! The chart's schema and its checks reject wrong values.

use std::process::Command;

use serde_json::Value;

use crate::values::images;
use crate::{helms, repository};

/// The first line of each file is a comment with the path of the wrong value. The error must contain at least
/// the last part of the path: the errors of Helm's schema do not have the full path.
#[test]
fn wrong_values_are_refused() {
    let folder = repository().join("operator/tests/chart/bad");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() >= 12, "{files:?}");
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let value_path = text
            .lines()
            .next()
            .and_then(|line| line.strip_prefix("# "))
            .unwrap();
        let path = file.to_str().unwrap();
        for helm in helms() {
            let mut command = Command::new(&helm);
            command.args(["template", "a"]).arg(repository().join("chart"));
            command.arg("--values").arg(images()).args(["--values", path]);
            let output = command.output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            let name = value_path.rsplit('.').next().unwrap();
            assert!(!output.status.success(), "{path}: helm accepts it");
            assert!(error.contains(name), "{path}: helm reports {error}");
        }
    }
}

/// No registry has the images yet.
#[test]
fn chart_without_images_says_how_to_give_them() {
    for helm in helms() {
        for (values, missing) in [
            (&[][..], "image.repository: no release exists yet"),
            (
                &["--set", "image.repository=r.example/a"],
                "agent.image.repository: no release exists yet",
            ),
        ] {
            let mut command = Command::new(&helm);
            let output = command
                .args(["template", "a"])
                .arg(repository().join("chart"))
                .args(values)
                .output()
                .unwrap();
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && error.contains(missing), "{error}");
            assert!(
                error.contains("--set agent.image.repository=REGISTRY/flux-agent"),
                "{error}"
            );
        }
    }
}

#[test]
fn schema_has_exactly_the_values_of_the_chart() {
    let schema = std::fs::read_to_string(repository().join("chart/values.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let values = std::fs::read_to_string(repository().join("chart/values.yaml")).unwrap();
    let values: Value = serde_saphyr::from_str(&values).unwrap();
    // A parent chart passes its `global` values to this one.
    assert_eq!(
        schema["properties"]["global"],
        serde_json::json!({ "type": "object" })
    );
    assert_closed(&schema, &schema, &values, "", &["global", "enabled"]);
}

/// Asserts that `schema`, a part of `root`, has exactly these values, besides those of `allowed_extra`.
fn assert_closed(root: &Value, schema: &Value, values: &Value, path: &str, allowed_extra: &[&str]) {
    let Some(values) = values.as_object() else { return };
    let schema = match schema["$ref"].as_str() {
        Some(reference) => root.pointer(reference.trim_start_matches('#')).unwrap(),
        None => schema,
    };
    // A map whose keys the user chooses, or one without a default to compare.
    if schema["additionalProperties"].is_object() || values.is_empty() {
        return;
    }
    assert_eq!(
        schema["additionalProperties"], false,
        "{path}: any other value would be accepted"
    );
    let properties = schema["properties"].as_object().unwrap();
    for (name, value) in values {
        let path = format!("{path}.{name}");
        let property = properties
            .get(name)
            .unwrap_or_else(|| panic!("{path} is not in the schema"));
        assert_closed(root, property, value, &path, &[]);
    }
    // Kubernetes' own type. values.yaml has only a part of it.
    let is_kubernetes_type = path.ends_with("resources");
    let extra = properties
        .keys()
        .filter(|name| !values.contains_key(*name) && !allowed_extra.contains(&name.as_str()));
    assert!(
        is_kubernetes_type || extra.count() == 0,
        "{path}: the schema has values that values.yaml lacks"
    );
}
