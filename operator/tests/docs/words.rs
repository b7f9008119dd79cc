//! The words in the operator's source are those of the vocabulary, and each has its section in the
//! troubleshooting page.

use std::collections::BTreeSet;
use std::path::Path;

use flux_operator_core::vocabulary::{ConditionType, Reason};
use flux_shared::exit::{Category, REPLACE};

use test_support::pages::repository;

/// Words of Kubernetes' own objects and answers that appear in the operator's source and are also words of
/// ours.
const OF_KUBERNETES: &[&str] = &[
    // Conditions of a node, of a Job and of a Workload; a container's reason; a Service's clusterIP.
    "Ready",
    "Complete",
    "Failed",
    "Suspended",
    "Evicted",
    "Completed",
    "None",
];

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
        match path.is_dir() {
            _ if name.starts_with("test") => {}
            true => collect(&path, files),
            false if !name.ends_with(".rs") => {}
            false => files.push(path),
        }
    }
}

fn reasons() -> BTreeSet<String> {
    Reason::ALL.iter().map(Reason::to_string).collect()
}

#[test]
fn source_has_every_word_of_the_vocabulary_and_none_as_text() {
    let source = source();
    let reasons = Reason::ALL
        .iter()
        .map(|reason| (reason.name(), format!("Reason::{reason}")));
    let conditions = ConditionType::ALL
        .iter()
        .map(|condition| (condition.name(), format!("ConditionType::{condition}")));
    for (word, variant) in reasons.chain(conditions) {
        let is_used = source
            .split(&variant)
            .skip(1)
            .any(|after| !after.starts_with(char::is_alphabetic));
        assert!(is_used, "in vocabulary.rs, but not in the source: {variant}");
        let is_text = source.contains(&format!("\"{word}\""));
        assert_eq!(
            is_text,
            OF_KUBERNETES.contains(&word),
            "\"{word}\" as text: use {variant}"
        );
    }
}

#[test]
fn troubleshooting_covers_every_reason_event_and_exit_code() {
    let page = std::fs::read_to_string(repository().join("docs/troubleshooting.md")).unwrap();
    let headings = || page.lines().filter_map(|line| line.strip_prefix("### "));
    let named = headings().filter(|heading| heading.chars().all(|letter| letter.is_ascii_alphabetic()));
    let named: BTreeSet<String> = named.map(str::to_owned).collect();
    let missing: Vec<String> = reasons().difference(&named).cloned().collect();
    assert!(missing.is_empty(), "no section: {missing:?}");
    let strange: Vec<String> = named.difference(&reasons()).cloned().collect();
    assert!(strange.is_empty(), "a section of no reason: {strange:?}");
    let codes = Category::ALL
        .iter()
        .map(|category| u32::from(category.code()))
        .chain([u32::from(REPLACE), 126, 127]);
    let wanted: BTreeSet<u32> = codes.collect();
    let documented: BTreeSet<u32> = headings()
        .filter_map(|heading| {
            heading
                .strip_prefix("Exit code ")?
                .split(' ')
                .next()?
                .trim_end_matches(':')
                .parse()
                .ok()
        })
        .collect();
    assert_eq!(wanted, documented, "sections of exit codes");
}
