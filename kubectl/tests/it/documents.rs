//! What people read of the plugin is true, and what it says of a file is what the other programs say.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::person::{PROGRAM, RIGHTS};
use test_support::pages;

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/hello-world/minicluster.yaml");

fn printed(arguments: &[&str]) -> String {
    let output = Command::new(PROGRAM).args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_reference_has_the_program_s_own_help() {
    pages::is_committed("kubectl-minicluster.md", &pages::help("kubectl minicluster", Path::new(PROGRAM)));
}

#[test]
fn what_is_said_of_a_file_is_what_the_other_programs_say() {
    let text = std::fs::read_to_string(EXAMPLE).unwrap();
    let options = flux_operator::reconcile::render::Options::default();
    assert_eq!(printed(&["render", EXAMPLE]), flux_operator::offline::render(&text, &options).unwrap());
    assert_eq!(printed(&["validate", EXAMPLE]), flux_operator::offline::validate(&text).unwrap());
    assert!(printed(&["dry-run", EXAMPLE]).contains("flux submit -N 4 -n 4 --quiet --watch echo hello world"));
}

#[test]
fn a_file_that_is_wrong_is_refused_with_every_problem() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("wrong.yaml");
    let text = std::fs::read_to_string(EXAMPLE).unwrap().replace("size: 4", "size: 0").replace("tasks: 4", "task: 4");
    std::fs::write(&file, text).unwrap();
    let output = Command::new(PROGRAM).arg("validate").arg(&file).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("did you mean tasks?") && said.contains("spec.size: "), "{said}");
}

#[test]
fn the_rights_that_the_page_names_are_those_that_the_tests_have() {
    let page = pages::blocks(&pages::repository().join("docs/tasks/kubectl.md"));
    let role = page.iter().find(|block| block.text.contains("kind: Role")).unwrap();
    let role: Value = serde_saphyr::from_str(&role.text).unwrap();
    let words = |list: &Value| -> Vec<String> {
        list.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    let rules = role["rules"].as_array().unwrap().iter().map(|rule| {
        let group = words(&rule["apiGroups"]).join("");
        let resource = words(&rule["resources"]).join(",");
        let resource = if group.is_empty() { resource } else { format!("{resource}.{group}") };
        (resource, words(&rule["verbs"]).join(","))
    });
    let tested = RIGHTS.iter().map(|(resource, verbs)| ((*resource).to_owned(), (*verbs).to_owned()));
    assert_eq!(rules.collect::<Vec<_>>(), tested.collect::<Vec<_>>());
}
