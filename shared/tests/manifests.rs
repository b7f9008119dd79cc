//! Manifests that users of the earlier operator have apply unchanged.
//!
//! They are not part of this repository: the test takes them where the folder stands beside the checkout (or where
//! `UPSTREAM_MANIFESTS` says), and says how many it took.

use std::collections::BTreeMap;
use std::path::PathBuf;

use flux_shared::agent_spec::AgentSpec;
use flux_shared::{derive, manifest, validate};

/// Manifests that cannot work as they are, each with the field that is named.
const BROKEN: &[(&str, &str)] = &[];

fn folder() -> PathBuf {
    match std::env::var_os("UPSTREAM_MANIFESTS") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/manifests"),
    }
}

/// The AgentSpec of a manifest, or all that is wrong with it.
fn take(text: &str) -> Result<AgentSpec, String> {
    let lines =
        |problems: Vec<validate::Problem>| problems.iter().map(ToString::to_string).collect::<Vec<String>>().join("; ");
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
    let folder = folder().join(version);
    let Ok(entries) = std::fs::read_dir(&folder) else {
        println!("no manifests at {}: none taken", folder.display());
        return;
    };
    let mut expected: BTreeMap<&str, &str> = broken.iter().copied().collect();
    let mut wrong = Vec::new();
    let mut taken = 0;
    for file in entries.map(|entry| entry.unwrap().path()) {
        let name = file.file_name().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(&file).unwrap();
        match (take(&text), expected.remove(name.as_str())) {
            (Ok(_), None) => taken += 1,
            (Err(why), Some(expected)) if why.contains(expected) => {}
            (Ok(_), Some(_)) => wrong.push(format!("{name}: stands in the list, but is taken")),
            (Err(why), _) => wrong.push(format!("{name}: {why}")),
        }
    }
    println!("{version}: {taken} manifests taken, {} refused for faults of their own", broken.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(expected.is_empty(), "in the list, but not in the folder: {expected:?}");
}

#[test]
fn v1alpha2_manifests_are_taken_unchanged() {
    take_all("v1alpha2", BROKEN);
}
