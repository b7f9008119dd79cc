//! Why a cluster failed, or does not start: one word and one sentence.

use flux_shared::exit::{Category, REPLACE};

use super::{Facts, Picture, Verdict};
use crate::observe::pod::{Exit, PodSeen, Pull, Trouble};

/// The most telling fact. Empty words: nothing is wrong.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Index of the pod that failed first.
    pub(super) index: Option<i32>,
    pub(super) reason: String,
    pub(super) message: String,
}

impl Outcome {
    fn new(reason: impl Into<String>, message: impl Into<String>) -> Outcome {
        Outcome { index: None, reason: reason.into(), message: message.into() }
    }
}

pub(super) fn outcome(picture: &Picture, facts: &Facts) -> Outcome {
    if let Some(job) = picture.job {
        if job.complete.is_some() {
            return Outcome::new("Completed", "the job ended with exit code 0");
        }
        // What has failed it is told at once, while the other pods end.
        if let Some(failed) = job.failed.as_ref().or(job.failing.as_ref()) {
            return failure(picture, &failed.reason, &failed.message);
        }
    }
    if let Verdict::Invalid(problems) = picture.verdict {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        return Outcome::new("Invalid", lines.join("; "));
    }
    if let Some(obstacle) = picture.obstacle {
        return Outcome::new(obstacle.reason, obstacle.message.clone());
    }
    let Some(job) = picture.job else {
        return Outcome::default();
    };
    if job.suspended {
        return Outcome::new("Suspended", "the Job is suspended: it has no pods");
    }
    if let Some(lost) = lost(picture) {
        return lost;
    }
    let warning = || picture.warning.filter(|_| !facts.is_ready());
    let warned = || warning().map(|warning| Outcome::new(warning.reason.clone(), warning.message.clone()));
    trouble(picture, facts).or_else(|| fallen(picture, facts)).or_else(warned).unwrap_or_default()
}

/// The last pod that failed by itself before the cluster was ready, though it is made again: a follower's snippet, say.
fn fallen(picture: &Picture, facts: &Facts) -> Option<Outcome> {
    let by_itself = |pod: &&&PodSeen| {
        let is_disrupted = pod.trouble.as_ref().is_some_and(|trouble| trouble.disruption);
        let gives_way = pod.exit.as_ref().is_some_and(|exit| exit.code == i32::from(REPLACE));
        has_failed(pod) && !pod.deleting && !is_disrupted && !gives_way
    };
    let last = picture.pods.iter().filter(by_itself).max_by_key(|pod| (ended_at(pod), pod.index));
    last.filter(|_| !facts.is_ready()).map(|pod| of_pod(pod))
}

/// Pods whose node has stopped answering.
fn lost(picture: &Picture) -> Option<Outcome> {
    let lost = || picture.pods.iter().filter(|pod| pod.lost);
    let first = lost().min_by_key(|pod| pod.index)?;
    let others = match lost().count() - 1 {
        0 => String::new(),
        count => format!(" ({count} more pods are lost, too)"),
    };
    let node = first.node.as_deref().unwrap_or("unknown");
    Some(Outcome::new(
        "NodeLost",
        format!(
            "pod {} is on node {node}, which has stopped answering: nobody knows whether it runs{others}; Kubernetes takes it away after 5 minutes, and it is replaced when the node is back or was deleted (kubectl delete node {node})",
            first.name
        ),
    ))
}

/// A pod that keeps the cluster from starting.
fn trouble(picture: &Picture, facts: &Facts) -> Option<Outcome> {
    if facts.is_ready() {
        return None;
    }
    let living = picture.pods.iter().filter(|pod| !pod.ended);
    let troubled = living.filter_map(|pod| Some((pod.index, pod.trouble.as_ref()?)));
    let (index, trouble) = troubled.min_by_key(|(index, _)| *index)?;
    let whose = if is_of_the_view(picture, trouble) { VIEW_IMAGE } else { "" };
    Some(Outcome::new(trouble.reason.clone(), format!("pod {index}: {whose}{}", trouble.message)))
}

/// Before what the node says of the view's image.
const VIEW_IMAGE: &str = "the view's image cannot be pulled (spec.flux.container.image and imagePullSecret; without them, \
    the operator's --view-image): ";

/// Whether it is the view's image that cannot be pulled, to be mounted or to be copied from.
fn is_of_the_view(picture: &Picture, trouble: &Trouble) -> bool {
    match (&trouble.pull, picture.verdict) {
        (Some(Pull::Mounted), _) => picture.job.is_some_and(|job| job.mounts_view),
        (Some(Pull::Of(name)), Verdict::Valid(cluster)) => cluster.view.enabled && *name == cluster.view.name,
        _ => false,
    }
}

/// Why the Job failed. A limit of the Job itself says all; else the pod that failed it does: the first one that is not
/// made again, or, when it was tried too often, the last.
fn failure(picture: &Picture, reason: &str, message: &str) -> Outcome {
    let mut failed: Vec<&PodSeen> = picture.pods.iter().copied().filter(|pod| has_failed(pod)).collect();
    // Pods that were told to end when another one had failed come later; a pod that is being deleted was told to.
    failed.sort_by_key(|pod| (pod.deleting, ended_at(pod), pod.index));
    let culprit = match reason {
        "DeadlineExceeded" => None,
        "BackoffLimitExceeded" => failed.iter().rev().find(|pod| !pod.deleting).or(failed.last()),
        _ => failed.iter().find(|pod| !is_retried(pod)).or(failed.first()),
    };
    let Some(pod) = culprit else {
        let mut message = if message.is_empty() { "the Job failed".to_owned() } else { message.to_owned() };
        if reason == "PodFailurePolicy" && !picture.pods.iter().any(|pod| message.contains(&pod.name)) {
            message
                .push_str(" (that pod is gone: somebody has deleted it. A drained node would have had it made again)");
        }
        return Outcome::new(if reason.is_empty() { "JobFailed" } else { reason }, message);
    };
    let mut outcome = of_pod(pod);
    outcome.index = i32::try_from(pod.index).ok();
    if reason == "BackoffLimitExceeded" {
        outcome.message.push_str(" (tried again as often as backoffLimit allows)");
    }
    outcome
}

/// Whether the Job makes a pod that failed so again (`render::job`).
fn is_retried(pod: &PodSeen) -> bool {
    let init = pod.trouble.as_ref().and_then(|trouble| trouble.init.as_ref()).map(|(_, exit)| exit.code);
    let code = init.or(pod.exit.as_ref().map(|exit| exit.code));
    match code.and_then(Category::from_code) {
        Some(category) => category.is_retriable(),
        None => pod.trouble.as_ref().is_some_and(|trouble| trouble.disruption),
    }
}

fn has_failed(pod: &PodSeen) -> bool {
    pod.ended && (pod.trouble.is_some() || pod.exit.as_ref().is_some_and(|exit| exit.code != 0))
}

fn ended_at(pod: &PodSeen) -> Option<k8s_openapi::jiff::Timestamp> {
    let init = pod.trouble.as_ref().and_then(|trouble| trouble.init.as_ref()).and_then(|(_, exit)| exit.at);
    pod.exit.as_ref().and_then(|exit| exit.at).or(init)
}

fn of_pod(pod: &PodSeen) -> Outcome {
    let place = match pod.index {
        0 => "the lead (index 0)".to_owned(),
        index => format!("the pod of index {index}"),
    };
    match (&pod.trouble, &pod.exit) {
        (Some(trouble), _) => match &trouble.init {
            Some((container, exit)) => of_exit(exit, &format!("init container {container} of {place}")),
            None => Outcome::new(trouble.reason.clone(), format!("{place}: {}", trouble.message)),
        },
        (None, Some(exit)) => of_exit(exit, &place),
        (None, None) => Outcome::new("JobFailed", format!("{place} failed and left no status")),
    }
}

fn of_exit(exit: &Exit, place: &str) -> Outcome {
    let said = |text: String| match exit.message.is_empty() {
        true => text,
        false => format!("{text}: {}", exit.message),
    };
    let code = exit.code;
    if let Some(category) = Category::from_code(code) {
        return Outcome::new(pascal(category.name()), said(format!("the agent in {place} gave up")));
    }
    if exit.reason == "OOMKilled" {
        return Outcome::new("OOMKilled", said(format!("{place} used more memory than its limit allows")));
    }
    if let Some(signal) = exit.signal.or(signal_of(code)) {
        let how = if signal == 1 { ", as a program does whose Flux instance is shut down" } else { "" };
        return Outcome::new("Signalled", said(format!("{place} ended by signal {signal}{how}")));
    }
    if !matches!(exit.reason.as_str(), "" | "Error" | "Completed") {
        return Outcome::new(exit.reason.clone(), said(format!("{place} ended with exit code {code}")));
    }
    Outcome::new("NonZeroExitCode", said(format!("{place} ended with exit code {code}")))
}

/// The signal of a code as a shell gives it.
pub(super) fn signal_of(code: i32) -> Option<i32> {
    (129..=192).contains(&code).then(|| code - 128)
}

/// `view-missing` becomes `ViewMissing`.
fn pascal(kebab: &str) -> String {
    let word = |word: &str| {
        let mut letters = word.chars();
        letters.next().map(|first| first.to_ascii_uppercase().to_string() + letters.as_str()).unwrap_or_default()
    };
    kebab.split('-').map(word).collect()
}
