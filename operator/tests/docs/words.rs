//! The operator uses every word of the vocabulary, and the sections of the troubleshooting page are called like reasons.

use std::path::Path;

use flux_operator_core::vocabulary::{ConditionType, Reason};

use test_support::pages::repository;

/// The section about reasons of other programs (`OTHERS` in `kubectl/src/status/remedy.rs`).
const OTHERS: &str = "Other reasons";

/// The operator's source, without the tests.
fn source() -> String {
    let mut files = Vec::new();
    for folder in ["operator/src", "operator/core/src"] {
        collect(&repository().join(folder), &mut files);
    }
    let mut source = String::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        source += text.split("#[cfg(test)]").next().unwrap_or_default();
    }
    source
}

fn collect(folder: &Path, files: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap()
            .to_owned();
        if name.starts_with("test") {
            continue;
        }
        if path.is_dir() {
            collect(&path, files);
        } else if name.ends_with(".rs") {
            files.push(path);
        }
    }
}

/// The reference explains every word of the vocabulary. The compiler does not see one that nothing uses, because of `ALL`.
#[test]
fn every_word_of_the_vocabulary_is_used_in_the_source() {
    let source = source();
    let reasons = Reason::ALL.iter().map(|reason| format!("Reason::{reason}"));
    let conditions = ConditionType::ALL
        .iter()
        .map(|condition| format!("ConditionType::{condition}"));
    for variant in reasons.chain(conditions) {
        let is_used = source
            .split(&variant)
            .skip(1)
            .any(|after| !after.starts_with(char::is_alphabetic));
        assert!(is_used, "in vocabulary.rs, but not in the source: {variant}");
    }
}

/// `kubectl minicluster why` and the Python package print the section of a reason, and look it up by its heading.
#[test]
fn sections_of_troubleshooting_are_called_like_reasons() {
    let page = std::fs::read_to_string(repository().join("docs/troubleshooting.md")).unwrap();
    let headings = page.lines().filter_map(|line| line.strip_prefix("### "));
    let unknown: Vec<&str> = headings
        .filter(|heading| *heading != OTHERS && Reason::parse(heading).is_none())
        .collect();
    assert!(unknown.is_empty(), "no reasons: {unknown:?}");
    assert!(page.contains(&format!("\n### {OTHERS}\n")));
}
