//! Manifests that users of the earlier operator have apply unchanged.
//!
//! They are not part of this repository: `test_support::upstream_manifests` says where they are. The test
//! says how many it took.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "tests look, and say what they saw"
)]

use std::collections::BTreeMap;
use test_support::upstream_manifests;

use flux_shared::agent_spec::AgentSpec;
use flux_shared::crd::convert::{Version, convert};
use flux_shared::{derive, manifest, validate};
use serde_json::{Map, Value, json};

/// Manifests that cannot work as they are, each with the field that is named.
const BROKEN: &[(&str, &str)] = &[];

/// The same, of 2023.
const BROKEN_2023_05: &[(&str, &str)] = &[];
const BROKEN_2023_09: &[(&str, &str)] = &[];

/// The AgentSpec of a manifest, or all that is wrong with it.
fn take(text: &str) -> Result<AgentSpec, String> {
    let lines = |problems: Vec<validate::Problem>| {
        problems
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<String>>()
            .join("; ")
    };
    let manifest = manifest::parse(text).map_err(lines)?;
    let cluster = validate::validate(&manifest).map_err(lines)?;
    let spec = derive::agent_spec(&cluster);
    let toml = spec.to_toml().map_err(|error| error.to_string())?;
    match AgentSpec::from_toml(&toml) {
        Ok(again) if again == spec => Ok(spec),
        Ok(_) => Err("the AgentSpec changed on its way through TOML".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// How many manifests of `version` were taken; all that was wrong otherwise.
fn take_all(version: &str, broken: &[(&str, &str)]) {
    let Some(folder) = upstream_manifests::manifests(version) else {
        return;
    };
    let entries = std::fs::read_dir(&folder).unwrap();
    let mut expected: BTreeMap<&str, &str> = broken.iter().copied().collect();
    let mut wrong = Vec::new();
    let mut taken = 0;
    for file in entries.map(|entry| entry.unwrap().path()) {
        let name = file.file_name().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(&file).unwrap();
        let result = if version.starts_with("v1alpha1") {
            take(&text).and_then(|spec| converts(&text).map(|()| spec))
        } else {
            take(&text)
        };
        match (result, expected.remove(name.as_str())) {
            (Ok(_), None) => taken += 1,
            (Err(why), Some(expected)) if why.contains(expected) => {}
            (Ok(_), Some(_)) => wrong.push(format!("{name}: stands in the list, but is taken")),
            (Err(why), _) => wrong.push(format!("{name}: {why}")),
        }
    }
    assert!(taken > 0, "{} has no manifests", folder.display());
    println!(
        "{version}: {taken} manifests taken, {} refused for faults of their own",
        broken.len()
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(
        expected.is_empty(),
        "in the list, but not in the folder: {expected:?}"
    );
}

/// What the API server writes out before the object reaches the webhook: defaults of v1alpha1.
fn write_out_defaults(spec: &mut Map<String, Value>) {
    let fill = |block: Option<&mut Value>, defaults: Value| {
        let Some(block) = block.and_then(Value::as_object_mut) else {
            return;
        };
        for (name, value) in defaults.as_object().unwrap() {
            block.entry(name).or_insert(value.clone());
        }
    };
    spec.entry("cleanup").or_insert(json!(true));
    fill(
        spec.get_mut("fluxRestful"),
        json!({ "branch": "main", "port": 5000 }),
    );
    fill(
        spec.get_mut("flux"),
        json!({ "installRoot": "/usr", "submitCommand": "flux submit", "logLevel": 6, "connectTimeout": "5s" }),
    );
    for container in spec["containers"].as_array_mut().unwrap() {
        fill(
            container.get_mut("fluxUser"),
            json!({ "name": "flux", "uid": 1000 }),
        );
    }
}

/// Every MiniCluster of a text goes through the other version and comes back; an edit there is kept.
fn converts(text: &str) -> Result<(), String> {
    let options = serde_saphyr::options! { duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins };
    let documents: Vec<Value> =
        serde_saphyr::from_multiple_with_options(text, options).map_err(|error| error.to_string())?;
    for mut applied in documents
        .into_iter()
        .filter(|document| document["kind"] == "MiniCluster")
    {
        write_out_defaults(applied["spec"].as_object_mut().ok_or("no spec")?);
        let stored = convert(applied.clone(), Version::V1alpha2).map_err(|error| error.to_string())?;
        let read = convert(stored.clone(), Version::V1alpha1).map_err(|error| error.to_string())?;
        if read != applied {
            return Err(format!("is read back as {read}, but was {applied}"));
        }
        let mut edited = stored;
        edited["spec"]["minSize"] = json!(1);
        let read = convert(edited.clone(), Version::V1alpha1).map_err(|error| error.to_string())?;
        if convert(read, Version::V1alpha2) != Ok(edited) {
            return Err("an edit in v1alpha2 does not survive v1alpha1".into());
        }
    }
    Ok(())
}

#[test]
fn manifests_of_may_2023_are_taken_unchanged() {
    take_all("v1alpha1-2023-05", BROKEN_2023_05);
}

#[test]
fn manifests_of_september_2023_are_taken_unchanged() {
    take_all("v1alpha1-2023-09", BROKEN_2023_09);
}

#[test]
fn v1alpha2_manifests_are_taken_unchanged() {
    take_all("v1alpha2", BROKEN);
}
