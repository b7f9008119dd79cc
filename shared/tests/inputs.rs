//! Each file of the folder `bad` breaks one rule. Its first lines name who rejects it, and the expected error.
//! `operator/tests/it/inputs.rs` checks who rejects it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "tests read files")]

use std::path::PathBuf;

use flux_shared::manifest;
use flux_shared::validate::validate;

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(folder);
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

#[test]
fn every_bad_input_is_refused_with_its_field_and_reason() {
    let mut wrong = Vec::new();
    for file in files("bad") {
        let text = std::fs::read_to_string(&file).unwrap();
        let expect = text
            .lines()
            .find_map(|line| line.strip_prefix("# expect: "))
            .expect("an expect line");
        let result = manifest::parse(&text).and_then(|manifest| validate(&manifest));
        let problems: Vec<String> = match result {
            Ok(_) => vec!["accepted".into()],
            Err(problems) => problems.iter().map(ToString::to_string).collect(),
        };
        if !problems.iter().any(|problem| problem.starts_with(expect)) {
            wrong.push(format!(
                "{}: wanted `{expect}`, got {problems:#?}",
                file.display()
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn all_problems_are_reported_at_once() {
    let text = "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {name: A}\nspec:\n  size: 0\n  tasks: -1\n  flux: {logLevel: 8}\n  containers: [{image: a, cores: -1}]\n";
    let problems = validate(&manifest::parse(text).unwrap()).unwrap_err();
    let fields: Vec<&str> = problems.iter().map(|problem| problem.field.as_str()).collect();
    for field in [
        "metadata.name",
        "spec.size",
        "spec.tasks",
        "spec.flux.logLevel",
        "spec.containers[0].cores",
    ] {
        assert!(fields.contains(&field), "{field} in {fields:?}");
    }
}
