//! The manifests of the Go operator's users still apply, unchanged.
//!
//! They are not part of this repository: `test_support::upstream_manifests` describes where they are. The test
//! prints how many it accepted.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "tests read files and print what they found"
)]

use test_support::upstream_manifests;

use flux_shared::agent_spec::AgentSpec;
use flux_shared::crd::convert::{Version, convert};
use flux_shared::validate::{Problem, validate};
use flux_shared::{derive, manifest};
use serde_json::{Map, Value, json};

/// The AgentSpec of a manifest, or all its problems.
fn accept(text: &str) -> Result<AgentSpec, String> {
    let lines = |problems: Vec<Problem>| {
        problems
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<String>>()
            .join("; ")
    };
    let manifest = manifest::parse(text).map_err(lines)?;
    let cluster = validate(&manifest).map_err(lines)?;
    let spec = derive::agent_spec(&cluster);
    let toml = spec.to_toml().map_err(|error| error.to_string())?;
    match AgentSpec::from_toml(&toml) {
        Ok(again) if again == spec => Ok(spec),
        Ok(_) => Err("the AgentSpec changed on its way through TOML".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// Asserts that every manifest of a folder is accepted, and prints their number.
fn assert_all_accepted(folder_name: &str) {
    let Some(folder) = upstream_manifests::manifests(folder_name) else {
        return;
    };
    let entries = std::fs::read_dir(&folder).unwrap();
    let mut wrong = Vec::new();
    let mut accepted = 0;
    for file in entries.map(|entry| entry.unwrap().path()) {
        let name = file.file_name().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(&file).unwrap();
        let mut result = accept(&text).map(drop);
        if folder_name.starts_with("v1alpha1") {
            result = result.and_then(|()| check_round_trip(&text));
        }
        match result {
            Ok(()) => accepted += 1,
            Err(why) => wrong.push(format!("{name}: {why}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(accepted > 0, "{} has no manifests", folder.display());
    println!("{folder_name}: {accepted} manifests accepted");
}

/// Adds defaults of v1alpha1's schema, as the API server does before it calls the webhook.
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
}

/// Converts every MiniCluster of a text to v1alpha2 and back, and checks that it is unchanged. An edit in
/// v1alpha2 must be kept as well.
fn check_round_trip(text: &str) -> Result<(), String> {
    // As in kubectl and in `manifest::parse`, the last of duplicate keys counts.
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
fn manifests_of_may_2023_are_accepted_unchanged() {
    assert_all_accepted("v1alpha1-2023-05");
}

#[test]
fn manifests_of_september_2023_are_accepted_unchanged() {
    assert_all_accepted("v1alpha1-2023-09");
}

#[test]
fn v1alpha2_manifests_are_accepted_unchanged() {
    assert_all_accepted("v1alpha2");
}
