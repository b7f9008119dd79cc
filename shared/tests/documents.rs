//! The documents of the Go operator's users: every sample and every promise in them.
//!
//! They are not part of this repository: `UPSTREAM_DOCUMENTS` names their folder, or it is next to the
//! checkout. Each YAML sample is accepted unchanged (a sample that is part of a MiniCluster is completed), or
//! is rejected for a reason that is listed here and in COMPATIBILITY.md. `documents/promises.md` has a row for
//! each promise, with its section and the test that shows it. Both must exist.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "tests read files and print what they found"
)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use flux_shared::agent_spec::AgentSpec;
use flux_shared::validate::{Problem, validate};
use flux_shared::{derive, manifest};
use serde_json::{Value, json};
use test_support::upstream_manifests;

const DOCUMENTS: [(&str, &str); 2] = [("crd-v1alpha1.md", "v1alpha1"), ("crd-v1alpha2.md", "v1alpha2")];

/// Samples that cannot work unchanged, one in each of these sections: document, section, and a part of the
/// error.
const REFUSED: [(&str, &str, &str); 6] = [
    // A volume of a class other than hostpath needs a driver.
    (
        "crd-v1alpha1.md",
        "delete",
        "spec.volumes[myvolume].driver: is needed",
    ),
    (
        "crd-v1alpha1.md",
        "request storage size",
        "spec.volumes[myvolume].driver: is needed",
    ),
    (
        "crd-v1alpha1.md",
        "secret",
        "spec.volumes[myvolume].driver: is needed",
    ),
    // `mounter` is an attribute, but is indented as a field of the volume.
    ("crd-v1alpha1.md", "attributes", "spec.volumes[myvolume].mounter"),
    // `[exec]` is a table of broker.toml, not a part of a certificate.
    ("crd-v1alpha2.md", "curveCert", "spec.flux.curveCert: "),
    // The page misspells connectTimeout.
    ("crd-v1alpha2.md", "connectTimeout", "spec.flux.connextTimeout"),
];

/// None if the documents are not on this machine. Then the test is skipped, and reports this.
fn documents() -> Option<Vec<(&'static str, &'static str, String)>> {
    let folder = upstream_manifests::documents()?;
    let read = |(name, version)| (name, version, std::fs::read_to_string(folder.join(name)).unwrap());
    Some(DOCUMENTS.into_iter().map(read).collect())
}

/// A YAML sample of a page.
struct Sample<'a> {
    /// The heading above it.
    section: &'a str,
    /// The line of its first fence.
    line: usize,
    /// Its text, without lines that are only dots.
    text: String,
}

fn samples(page: &str) -> Vec<Sample<'_>> {
    let mut found: Vec<Sample> = Vec::new();
    let headings = headings(page);
    let mut section = "";
    let mut is_in_sample = false;
    for (at, line) in page.lines().enumerate() {
        if let Some((_, heading)) = headings.iter().find(|(heading_at, _)| *heading_at == at) {
            section = heading;
        }
        match line.trim_end() {
            "```yaml" if !is_in_sample => {
                is_in_sample = true;
                found.push(Sample {
                    section,
                    line: at + 1,
                    text: String::new(),
                });
            }
            "```" => is_in_sample = false,
            line if is_in_sample && line.trim() != "..." => {
                let text = &mut found.last_mut().unwrap().text;
                // A page has tabs in a sample. YAML allows none in an indentation.
                *text += &line.replace('\t', "  ");
                text.push('\n');
            }
            _ => {}
        }
    }
    found
}

/// Fields of a container. Samples show these alone, without the container.
const OF_A_CONTAINER: [&str; 15] = [
    "name",
    "cores",
    "command",
    "resources",
    "imagePullSecret",
    "workingDir",
    "pullAlways",
    "runFlux",
    "environment",
    "ports",
    "preCommand",
    "diagnostics",
    "lifeCycle",
    "fluxOptionFlags",
    "fluxLogLevel",
];

/// A MiniCluster that contains the sample at its place. None if the sample is not part of a MiniCluster.
/// `containers_at`: the line of the heading `containers`. Before it, `volumes` are those of the MiniCluster; after it,
/// those of a container.
fn completed(version: &str, line: usize, text: &str, containers_at: usize) -> Option<Value> {
    let document: Value = serde_saphyr::from_multiple(text)
        .unwrap_or_else(|why| panic!("line {line}: {why}"))
        .remove(0);
    let mut all = json!({
        "apiVersion": format!("flux-framework.org/{version}"),
        "kind": "MiniCluster",
        // A sample with a lead broker is of a bursted cluster, which the pages call burst-0. Without a hostlist, the
        // names of the clusters give the instance's hosts, so this cluster needs that name.
        "metadata": { "name": if text.contains("leadBroker") && !text.contains("hostlist") { "burst-0" } else { "flux-sample" } },
        "spec": { "size": 4, "containers": [{ "image": "rockylinux:9" }] },
    });
    let fields = document.as_object().unwrap().clone();
    if let Some(kind) = fields.get("kind") {
        if kind != "MiniCluster" {
            return None;
        }
        all["metadata"]["name"] = fields["metadata"]["name"].clone();
        merge(&mut all["spec"], fields.get("spec").cloned().unwrap_or_default());
        return Some(all);
    }
    for (name, value) in fields {
        match name.as_str() {
            // Configuration of the kubelet and of the machine.
            "kubeletConfig" | "linuxConfig" => return None,
            "spec" => merge(&mut all["spec"], value),
            // This sample shows only a volume of a container.
            "my-empty-dir" => all["spec"]["containers"][0]["volumes"] = json!({ name: value }),
            "volumes" if line < containers_at => {
                let mut volume = value["myvolume"].clone();
                // Later samples add to the volume of the first sample.
                if volume.get("path").is_none() {
                    volume["path"] = "/full/path/to/volume".into();
                }
                all["spec"]["volumes"] = json!({ "myvolume": volume });
                all["spec"]["containers"][0]["volumes"] = json!({ "myvolume": { "path": "/data" } });
            }
            "volumes" => {
                all["spec"]["volumes"] = json!({ "myvolume": { "path": "/full/path/to/volume" } });
                all["spec"]["containers"][0]["volumes"] = value;
            }
            field if OF_A_CONTAINER.contains(&field) => all["spec"]["containers"][0][field] = value,
            _ => merge(&mut all["spec"], json!({ name: value })),
        }
    }
    Some(all)
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                merge(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (_, Value::Null) => {}
        (into, from) => *into = from,
    }
}

/// Checks the MiniCluster. The error has all problems.
fn judged(minicluster: &Value) -> Result<(), String> {
    let lines = |problems: Vec<Problem>| {
        problems
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<String>>()
            .join("; ")
    };
    let manifest = manifest::parse(&minicluster.to_string()).map_err(lines)?;
    let spec = derive::agent_spec(&validate(&manifest).map_err(lines)?);
    let again = AgentSpec::from_toml(&spec.to_toml().unwrap()).map_err(|error| error.to_string())?;
    assert_eq!(again, spec);
    Ok(())
}

#[test]
fn every_sample_is_accepted_or_refused_for_a_listed_reason() {
    let Some(documents) = documents() else { return };
    let (mut wrong, mut accepted, mut refused) = (Vec::new(), 0, BTreeSet::new());
    for (name, version, page) in &documents {
        let containers_at = page.lines().position(|line| line == "### containers").unwrap();
        for Sample { section, line, text } in samples(page) {
            let Some(minicluster) = completed(version, line, &text, containers_at) else {
                continue;
            };
            let Err(why) = judged(&minicluster) else {
                accepted += 1;
                continue;
            };
            let listed = REFUSED.into_iter().find(|(document, refused_section, expected)| {
                (document, *refused_section) == (name, section) && why.contains(expected)
            });
            // Only one sample in each section may be rejected.
            if !listed.is_some_and(|entry| refused.insert(entry)) {
                wrong.push(format!("{name}:{line}, section {section:?}: {why}"));
            }
        }
    }
    println!("{accepted} samples accepted, {} refused", refused.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(accepted > 100, "{accepted}");
    assert_eq!(refused, BTreeSet::from(REFUSED), "a listed sample is accepted");
}

/// A row of `documents/promises.md`. The text of the promise is only for readers.
#[derive(Debug)]
struct Promise {
    document: String,
    section: String,
    test: String,
}

fn promises() -> Vec<Promise> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/documents/promises.md");
    let text = std::fs::read_to_string(file).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| ")).skip(2);
    rows.map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let &[document, section, promise, test] = cells.as_slice() else {
            panic!("not four cells: {line}");
        };
        assert!(!promise.is_empty(), "no promise: {line}");
        Promise {
            document: document.to_owned(),
            section: section.to_owned(),
            test: test.trim_matches('`').to_owned(),
        }
    })
    .collect()
}

/// The headings of a page with their line indexes, without comments in samples.
fn headings(page: &str) -> Vec<(usize, &str)> {
    let mut is_in_sample = false;
    let mut found = Vec::new();
    for (at, line) in page.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_in_sample = !is_in_sample;
        } else if !is_in_sample && line.starts_with('#') {
            found.push((at, line.trim_start_matches('#').trim()));
        }
    }
    found
}

/// The names of the functions without arguments, as tests are, in these folders.
fn functions() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut folders: Vec<PathBuf> = [
        "shared/src",
        "shared/tests",
        "agent/plan/src",
        "agent/src",
        "agent/tests",
        "operator/core/src",
        "operator/src",
        "operator/tests",
    ]
    .map(|folder| root.join(folder))
    .into();
    let mut found = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = std::fs::read_to_string(path).unwrap();
                let names = text
                    .lines()
                    .filter_map(|line| line.trim().split_once("fn ")?.1.split_once("()"));
                found.extend(names.map(|(name, _)| name.to_owned()));
            }
        }
    }
    found
}

#[test]
fn promises_name_a_test_and_a_section_of_their_document() {
    let (promises, functions) = (promises(), functions());
    assert!(promises.len() > 60, "{}", promises.len());
    let unknown: Vec<&Promise> = promises
        .iter()
        .filter(|promise| !functions.contains(&promise.test))
        .collect();
    assert!(unknown.is_empty(), "no such test: {unknown:#?}");
    let Some(documents) = documents() else { return };
    let is_section = |promise: &Promise| {
        let document = documents.iter().find(|(name, ..)| *name == promise.document);
        document.is_some_and(|(_, _, page)| {
            headings(page)
                .iter()
                .any(|(_, heading)| *heading == promise.section)
        })
    };
    let unknown: Vec<&Promise> = promises.iter().filter(|promise| !is_section(promise)).collect();
    assert!(unknown.is_empty(), "no such section: {unknown:#?}");
}
