//! The words in the operator's source are those of the vocabulary, and each reason has its section in the
//! troubleshooting page, unless its meaning says all.

use std::collections::BTreeSet;
use std::path::Path;

use flux_operator_core::vocabulary::{ConditionType, Reason};
use flux_shared::exit::Category;

use test_support::pages::repository;

/// Words of Kubernetes' own objects and answers that appear in the operator's source and are also words of
/// ours.
const OF_KUBERNETES: &[&str] = &[
    // Conditions of a node, of a Job and of a Workload; a container's reason; a Service's clusterIP.
    "Ready",
    "Complete",
    "Failed",
    "Evicted",
    "Completed",
    "None",
];

/// Reasons whose meaning in the vocabulary says all: the troubleshooting page has no section for them, and
/// `kubectl minicluster why` and the Python package print the meaning.
const SELF_EXPLANATORY: &[Reason] = &[
    Reason::NotRequested,
    Reason::JobCreated,
    Reason::PodsStarting,
    Reason::PodsRunning,
    Reason::LeadRunning,
    Reason::LeadNotRunning,
    Reason::BrokersReady,
    Reason::NotFinished,
    Reason::NotSuspended,
    Reason::Completed,
    Reason::Saved,
    Reason::PostCompleted,
    Reason::None,
    Reason::Valid,
    Reason::ImageVolume,
    Reason::ImageVolumeUnsure,
    Reason::UnknownStorageClass,
    Reason::Refused,
    Reason::Unsupported,
    Reason::WaitingForPrevious,
    Reason::SchedulingGated,
    Reason::SchedulerError,
    Reason::InvalidImageName,
    Reason::ErrImageNeverPull,
    Reason::CreateContainerError,
    Reason::NotStarted,
    Reason::Stopped,
    Reason::DeadlineExceeded,
    Reason::Failed,
    Reason::JobFailed,
    Reason::LeadFailed,
    Reason::AgentFailed,
    Reason::BackoffLimitExceeded,
    Reason::MaxFailedIndexesExceeded,
    Reason::FailedIndexes,
    Reason::PodFailurePolicy,
    Reason::StartedAnew,
    Reason::Requeued,
    Reason::Deleted,
    Reason::Gone,
    Reason::Disrupted,
    Reason::NodeShutdown,
    Reason::Shutdown,
    Reason::Terminated,
    Reason::Preempting,
    Reason::ContainerStatusUnknown,
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
fn troubleshooting_covers_needed_reasons_and_all_exit_codes() {
    let page = std::fs::read_to_string(repository().join("docs/troubleshooting.md")).unwrap();
    let headings = page.lines().filter_map(|line| line.strip_prefix("### "));
    let named = headings.filter(|heading| heading.chars().all(|letter| letter.is_ascii_alphabetic()));
    let named: BTreeSet<String> = named.map(str::to_owned).collect();
    let explained: BTreeSet<String> = SELF_EXPLANATORY.iter().map(Reason::to_string).collect();
    let wanted: BTreeSet<String> = reasons().difference(&explained).cloned().collect();
    assert_eq!(wanted, named, "sections of reasons");
    for category in Category::ALL {
        let (reason, code) = (Reason::from(category), category.code());
        let section = page.split(&format!("\n### {reason}\n")).nth(1).unwrap();
        let section = section.split("\n#").next().unwrap();
        assert!(
            section.contains(&format!("Exit code {code}: ")),
            "{reason}: {code}"
        );
    }
}
