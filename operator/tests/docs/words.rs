//! The words in the operator's source are those of the vocabulary, and each has its section in the
//! troubleshooting page.

use std::collections::BTreeSet;
use std::path::Path;

use flux_operator_core::vocabulary::{CONDITIONS, REASONS};
use flux_shared::exit::{Category, REPLACE};

use test_support::pages::repository;

/// Words in capitals in the operator's source that are no condition and no reason: kinds, phases, values of
/// Kubernetes' fields.
const OTHERS: &[&str] = &[
    // Kinds and their parts.
    "ConversionReview",
    "CustomResourceDefinition",
    "Deployment",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "PodGroup",
    "Secret",
    "Service",
    "Workload",
    "MiniClusters",
    "PersistentVolumes",
    // A phase of a pod.
    "Succeeded",
    // Values of Kubernetes' fields.
    "Always",
    "ClusterFirstWithHostNet",
    "Default",
    "Directory",
    "DirectoryOrCreate",
    "FailIndex",
    "FailJob",
    "File",
    "Filesystem",
    "Ignore",
    "In",
    "Indexed",
    "Ingress",
    "Memory",
    "Merge",
    "MountOption",
    "Never",
    "NotIn",
    "Exists",
    "DoesNotExist",
    "Gt",
    "Lt",
    "PreferNoSchedule",
    "Status",
    "TooManyRequests",
    "OnFailure",
    "Opaque",
    "Bound",
    "PreferDualStack",
    "ReadWriteMany",
    "Retain",
    // Answers, conditions and states of Kubernetes (and Kueue) that are read, and not handed on.
    "Admitted",
    "Finished",
    "Inadmissible",
    "QuotaReserved",
    "AlreadyExists",
    "ContainerCreating",
    "ContainersReady",
    "DisruptionTarget",
    "Error",
    "Failure",
    "FailureTarget",
    "PodInitializing",
    "PodScheduled",
    "Success",
    "SuccessCriteriaMet",
    "True",
    "False",
    "Unknown",
    // What an event says was done.
    "Reconcile",
    "Run",
    "Save",
    "Start",
    "Validate",
    // The reason of a Job that the operator fails after its MiniCluster's end: the status keeps its own.
    "MiniClusterEnded",
    // Names of ours for a log or a debugger.
    "Generated",
    "Reader",
    "Writer",
];

/// Every literal of one word in capitals in the source, without the tests.
fn literals() -> BTreeSet<String> {
    let mut files = Vec::new();
    for folder in ["operator/src", "operator/core/src"] {
        collect(&repository().join(folder), &mut files);
    }
    let mut words = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        for literal in text.split('"') {
            let mut letters = literal.chars();
            let is_word = letters.next().is_some_and(|first| first.is_ascii_uppercase())
                && letters.any(|letter| letter.is_ascii_lowercase())
                && literal.chars().all(|letter| letter.is_ascii_alphabetic());
            if is_word {
                words.insert(literal.to_owned());
            }
        }
    }
    words
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
            // Names of alerts and pictures, which have a page of their own.
            _ if name.starts_with("test") || name == "monitoring" => {}
            true => collect(&path, files),
            false if name == "vocabulary.rs" || !name.ends_with(".rs") => {}
            false => files.push(path),
        }
    }
}

fn reasons() -> BTreeSet<String> {
    REASONS.iter().map(|reason| reason.name.to_owned()).collect()
}

/// `view-missing` becomes `ViewMissing`, as the status has it.
fn pascal(kebab: &str) -> String {
    let word = |word: &str| format!("{}{}", word[..1].to_uppercase(), &word[1..]);
    kebab.split('-').map(word).collect()
}

#[test]
fn vocabulary_has_exactly_the_words_of_the_source() {
    let conditions: BTreeSet<String> = CONDITIONS.iter().map(|it| it.name.to_owned()).collect();
    let others: BTreeSet<String> = OTHERS.iter().map(|&word| word.to_owned()).collect();
    let categories: BTreeSet<String> = Category::ALL.iter().map(|it| pascal(it.name())).collect();
    let known: BTreeSet<String> = reasons().union(&conditions).cloned().collect();
    let source: BTreeSet<String> = literals().difference(&others).cloned().collect();
    let missing: Vec<_> = source.difference(&known).collect();
    assert!(
        missing.is_empty(),
        "in the source, but not in vocabulary.rs (or among OTHERS here): {missing:?}"
    );
    let said: BTreeSet<String> = source.union(&categories).cloned().collect();
    let idle: Vec<_> = known.difference(&said).collect();
    assert!(
        idle.is_empty(),
        "in vocabulary.rs, but not in the source: {idle:?}"
    );
    let unused: Vec<_> = others.difference(&literals()).cloned().collect();
    assert!(
        unused.is_empty(),
        "among OTHERS, but not in the source: {unused:?}"
    );
    assert_eq!(REASONS.len(), reasons().len(), "a reason stands there twice");
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
        .map(|it| u32::from(it.code()))
        .chain([u32::from(REPLACE), 126, 127]);
    let wanted: BTreeSet<u32> = codes.collect();
    let told: BTreeSet<u32> = headings()
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
    assert_eq!(wanted, told, "sections of exit codes");
}
