//! `debug`: writes what others need to diagnose a MiniCluster into one file, without secrets.
//!
//! ```text
//! MiniCluster, pods, events, logs ─► redact (pure) ─► entries of a tar archive
//! ```

mod redact;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;

use flux_shared::causes::causes;
use futures::{AsyncRead, AsyncReadExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::LogParams;
use serde::Serialize;
use serde_json::Value;

use crate::failure::{self, Failure};
use crate::observed;
use crate::output::Output;
use crate::screen;
use crate::status;
use crate::target::Target;
use crate::timeline;

/// Most lines and bytes of a log. Of a longer log, the last lines are collected. (The API server's `limitBytes` would
/// cut the end of the last `tailLines` lines, so the bytes are counted here.)
const MAX_LOG_LINES: i64 = 5000;
const MAX_LOG_BYTES: usize = 4 * 1024 * 1024;
/// Bytes of a log that are read at a time.
const CHUNK: usize = 64 * 1024;
/// Most pods whose logs are collected.
const MAX_PODS_WITH_LOGS: usize = 16;
/// Longest time without data from a log. The kubelet of a dead node does not answer at all.
const LONGEST_SILENCE: Duration = Duration::from_secs(15);

/// Arguments of `debug`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Name of the MiniCluster
    pub name: String,
    /// Path of the bundle; an existing file is not overwritten [default: NAME-debug.tar]
    #[arg(long, value_name = "FILE")]
    pub to: Option<PathBuf>,
}

/// A file of the bundle.
struct Entry {
    name: String,
    text: String,
}

impl Entry {
    fn new(name: impl Into<String>, text: String) -> Entry {
        Entry {
            name: name.into(),
            text,
        }
    }
}

/// Collects the files, writes the bundle, and prints its path.
pub async fn run(target: &Target, args: &Args, output: Output, plugin_version: &str) -> Result<u8, Failure> {
    let name = &args.name;
    let path = args
        .to
        .clone()
        .unwrap_or_else(|| PathBuf::from(format!("{name}-debug.tar")));
    let entries = collect(target, name, plugin_version).await?;
    write(&path, &entries)?;
    let count = entries.len();
    let names: Vec<&String> = entries.iter().map(|entry| &entry.name).collect();
    let about = serde_json::json!({ "file": path, "files": names });
    let summary = || {
        format!(
            "{} has {count} files: the MiniCluster, its pods, warnings and logs. Environment values, passwords, tokens and \
             certificates are left out; check your program's own output before you share it\n",
            path.display()
        )
    };
    output.show(&about, summary).map(|()| 0)
}

/// Collects the files of the bundle.
async fn collect(target: &Target, name: &str, plugin_version: &str) -> Result<Vec<Entry>, Failure> {
    let cluster = target.cluster(name).await?;
    // Also pods that may belong to an earlier MiniCluster: without a status, it is unknown which are this one's.
    let mut pods = target.pods_named(name).await?;
    pods.sort_by_key(|pod| (observed::index(pod), observed::name(pod).to_owned()));
    pods.extend(target.services_pod_of(&cluster).await?);
    let versions = versions(plugin_version, &server_version_line(target).await);
    // The status is about the pods of this MiniCluster only.
    let own_pods: Vec<Pod> = pods
        .iter()
        .filter(|pod| observed::belongs_to(pod, &cluster))
        .cloned()
        .collect();
    let status = redact::text(&screen::without_bold(
        &status::text(target, &cluster, &own_pods).await,
    ));
    let mut entries = vec![
        Entry::new("version.txt", versions),
        Entry::new("minicluster.yaml", yaml(&cluster)?),
        Entry::new("status.txt", status),
        // Only names of steps, and times: no secrets.
        Entry::new("timeline.txt", timeline::text(&cluster)),
    ];
    for pod in &pods {
        let name = format!("pods/{}.yaml", observed::name(pod));
        entries.push(Entry::new(name, yaml(pod)?));
    }
    for pod in with_logs(&pods) {
        entries.extend(logs(target, pod).await);
    }
    Ok(entries)
}

/// The pods whose logs are collected: the services pod, the latest pods of up to 12 indices, earlier pods, then other
/// latest ones. Every broker's pod has an index. Another pod without one is no broker's, although it has the label that
/// `pods_named` selects by.
fn with_logs(pods: &[Pod]) -> Vec<&Pod> {
    let mut latest_first: Vec<&Pod> = pods.iter().filter(|pod| observed::index(pod).is_some()).collect();
    latest_first.sort_by_key(|pod| (observed::index(pod), Reverse(observed::created(pod))));
    let mut indices = BTreeSet::new();
    let (latest, earlier): (Vec<&Pod>, Vec<&Pod>) = latest_first
        .iter()
        .partition(|pod| indices.insert(observed::index(pod)));
    // Four slots of a large MiniCluster are for earlier pods: those of the lead come first, as in `latest_first`.
    let (first, last) = latest.split_at(latest.len().min(MAX_PODS_WITH_LOGS - 4));
    let services = pods.iter().filter(|pod| observed::is_services_pod(pod));
    let brokers = first.iter().chain(&earlier).chain(last).copied();
    services.chain(brokers).take(MAX_PODS_WITH_LOGS).collect()
}

/// The text of `version.txt`: the plugin's version, and the line `server` about the API server.
fn versions(plugin_version: &str, server: &str) -> String {
    format!("kubectl-minicluster {plugin_version}\n{server}\n")
}

/// The version of Kubernetes, or why it is unknown.
async fn server_version_line(target: &Target) -> String {
    match target.client.apiserver_version().await {
        Ok(version) => format!("Kubernetes {}", version.git_version),
        Err(error) => failure::cause_of(&error),
    }
}

fn yaml_failed(error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::Message(format!("failed to write an object as YAML: {}", causes(error)))
}

fn yaml(object: &impl Serialize) -> Result<String, Failure> {
    let mut value: Value = serde_json::to_value(object).map_err(|error| yaml_failed(&error))?;
    redact::object(&mut value);
    flux_operator_core::yaml::document(&value).map_err(|error| yaml_failed(&error))
}

/// Logs of each init container and container of the pod that has a status, and of its previous run if it restarted.
/// After one that timed out, the others are left out: the kubelet does not answer.
async fn logs(target: &Target, pod: &Pod) -> Vec<Entry> {
    let status = pod.status.clone().unwrap_or_default();
    let containers = status
        .init_container_statuses
        .into_iter()
        .chain(status.container_statuses)
        .flatten();
    let mut entries = Vec::new();
    for container in containers {
        for previous in [false, true] {
            if previous && container.restart_count == 0 {
                continue;
            }
            let parameters = LogParams {
                container: Some(container.name.clone()),
                previous,
                tail_lines: Some(MAX_LOG_LINES),
                timestamps: true,
                ..LogParams::default()
            };
            let (log, is_silent) = log_text(target, observed::name(pod), &parameters).await;
            let suffix = if previous { "previous.log" } else { "log" };
            let name = format!("logs/{}.{}.{suffix}", observed::name(pod), container.name);
            entries.push(Entry::new(name, redact::text(&log)));
            if is_silent {
                let name = observed::name(pod);
                screen::tell(&format!("failed to read the logs of {name}: {}", silence()));
                return entries;
            }
        }
    }
    entries
}

/// The log. If it cannot be read to its end, the part that was read and the cause. Bytes that are not UTF-8 are
/// replaced. Also whether no data came for `LONGEST_SILENCE`.
async fn log_text(target: &Target, pod: &str, parameters: &LogParams) -> (String, bool) {
    let pods = target.pods();
    let log = match tokio::time::timeout(LONGEST_SILENCE, pods.log_stream(pod, parameters)).await {
        Ok(Ok(log)) => log,
        Ok(Err(error)) => {
            let why = failure::cause_of(&error);
            return (format!("failed to read this log: {why}\n"), false);
        }
        Err(_) => return (format!("failed to read this log: {}\n", silence()), true),
    };
    let (bytes, read) = read_last(log, MAX_LOG_BYTES).await;
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    let Err(error) = read else {
        return (text, false);
    };
    text.push_str(&format!("\nfailed to read the rest of this log: {error}\n"));
    (text, error.kind() == ErrorKind::TimedOut)
}

/// Why a log is not read any further, nor the pod's other logs.
fn silence() -> std::io::Error {
    let seconds = LONGEST_SILENCE.as_secs();
    let why = format!("no data came for {seconds} s; the pod's other logs are left out");
    std::io::Error::new(ErrorKind::TimedOut, why)
}

/// Reads a log to its end or to a failure. Returns its last lines, `most` bytes at most, and a line that says so if
/// there were more. They begin with a whole line, so that the name of a secret is not cut off from its value.
async fn read_last(mut log: impl AsyncRead + Unpin, most: usize) -> (Vec<u8>, std::io::Result<()>) {
    let (mut kept, mut chunk, mut is_cut) = (Vec::new(), vec![0; CHUNK], false);
    let read = loop {
        let read = tokio::time::timeout(LONGEST_SILENCE, log.read(&mut chunk)).await;
        match read.unwrap_or_else(|_| Err(silence())) {
            Ok(0) => break Ok(()),
            Ok(count) => kept.extend_from_slice(chunk.get(..count).unwrap_or_default()),
            Err(error) => break Err(error),
        }
        // Not for each chunk, since this moves all bytes that are kept.
        if kept.len() > 2 * most {
            kept.drain(..kept.len() - most);
            is_cut = true;
        }
    };
    let excess = kept.len().saturating_sub(most);
    if excess == 0 && !is_cut {
        return (kept, read);
    }
    let line_end = kept.iter().skip(excess).position(|byte| *byte == b'\n');
    let begin = line_end.map_or(kept.len(), |end| excess + end + 1);
    kept.splice(..begin, *b"(earlier lines are left out)\n");
    (kept, read)
}

/// Writes the archive, readable by its owner only.
fn write(path: &std::path::Path, entries: &[Entry]) -> Result<(), Failure> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    let path = path.display().to_string();
    match file {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(Failure::Message(format!(
            "failed to write {path}: it exists. Remove it, or choose another path with --to"
        ))),
        file => file
            .and_then(|file| write_to(file, entries))
            .map_err(|source| Failure::Write { path, source }),
    }
}

fn write_to(file: std::fs::File, entries: &[Entry]) -> std::io::Result<()> {
    let mut archive = tar::Builder::new(file);
    for Entry { name, text } in entries {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        archive.append_data(&mut header, name, text.as_bytes())?;
    }
    let mut file = archive.into_inner()?;
    file.flush()?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use flux_operator_core::yaml::YamlError;
    use serde::ser::Error;

    use super::*;
    use crate::testing::{self, Answer, Log, LogEnd};

    fn pod_with_status() -> Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": { "name": "mc-0-x" },
            "status": { "containerStatuses": [{ "name": "flux", "image": "i", "imageID": "", "ready": true,
                "restartCount": 0 }] },
        }))
        .unwrap()
    }

    #[test]
    fn logs_are_first_those_of_the_latest_pods() {
        let pod = |index: u32, hour: u32| -> Pod {
            serde_json::from_value(serde_json::json!({ "metadata": {
                "name": format!("mc-{index}-{hour}"), "creationTimestamp": format!("2026-01-01T{hour:02}:00:00Z"),
                "labels": { "batch.kubernetes.io/job-completion-index": index.to_string() },
            } }))
            .unwrap()
        };
        let mut pods: Vec<Pod> = (0..20).map(|hour| pod(1, hour)).collect();
        pods.extend([pod(2, 0), pod(0, 0)]);
        let chosen = with_logs(&pods);
        let names: Vec<&str> = chosen.iter().map(|pod| observed::name(pod)).collect();
        assert_eq!(names[..4], ["mc-0-0", "mc-1-19", "mc-2-0", "mc-1-18"]);
        assert_eq!(names.len(), MAX_PODS_WITH_LOGS);
        let mut large: Vec<Pod> = (0..20).map(|index| pod(index, 1)).collect();
        large.push(pod(0, 0));
        let has_earlier_lead = |pod: &&Pod| observed::name(pod) == "mc-0-0";
        assert!(with_logs(&large).iter().any(has_earlier_lead));
    }

    #[tokio::test]
    async fn debug_keeps_a_log_with_a_byte_that_is_no_utf_8() {
        let pod = pod_with_status();
        let log = Log {
            bytes: b"before\xff\nafter\xc3",
            end: LogEnd::Whole,
        };
        let (target, ..) = testing::server([Some(pod.clone())], [log]);
        let entries = logs(&target, &pod).await;
        let Entry { name, text } = entries.first().unwrap();
        assert_eq!(name, "logs/mc-0-x.flux.log");
        assert!(
            text.contains("before\u{fffd}") && text.contains("after"),
            "{text}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn debug_skips_the_logs_of_a_kubelet_that_is_silent() {
        let mut pod = pod_with_status();
        let status = pod.status.as_mut().unwrap();
        let containers = status.container_statuses.as_mut().unwrap();
        containers[0].restart_count = 1;
        for (end, text) in [
            (None, "failed to read this log: no data came for 15 s"),
            (
                Some(LogEnd::Stalled),
                "a\n\nfailed to read the rest of this log: no data came for 15 s",
            ),
        ] {
            let (target, requests) = testing::answering(move |_| {
                end.map_or(Answer::Never, |end| Answer::Log(Log { bytes: b"a\n", end }))
            });
            let entries = tokio::time::timeout(Duration::from_secs(20), logs(&target, &pod));
            let entries = entries.await.unwrap();
            assert!(entries[0].text.starts_with(text), "{}", entries[0].text);
            assert_eq!((entries.len(), requests.lock().unwrap().len()), (1, 1));
        }
    }

    #[tokio::test]
    async fn debug_keeps_the_end_of_a_log_with_too_many_bytes() {
        let all: String = (0..100_000).map(|line| format!("line {line}\n")).collect();
        for most in [1000, 100_000] {
            let (kept, read) = read_last(all.as_bytes(), most).await;
            let kept = String::from_utf8(kept).unwrap();
            let lines = kept.strip_prefix("(earlier lines are left out)\n").unwrap();
            assert!(read.is_ok() && lines.starts_with("line ") && all.ends_with(lines));
            // The lines have up to 11 bytes, and the one that was cut is left out.
            assert!((most - 11..=most).contains(&lines.len()), "{}", lines.len());
        }
        assert_eq!(read_last(&b"a\nb"[..], 3).await.0, b"a\nb");
        let (kept, _) = read_last(&b"--token hunter2"[..], 7).await;
        assert_eq!(kept, b"(earlier lines are left out)\n");
    }

    #[tokio::test]
    async fn debug_asks_for_no_limit_that_cuts_a_log_at_its_end() {
        let pod = pod_with_status();
        let log = Log {
            bytes: b"a\n",
            end: LogEnd::Whole,
        };
        let (target, _, requests) = testing::server([Some(pod.clone())], [log]);
        logs(&target, &pod).await;
        let requests = requests.lock().unwrap();
        assert!(requests[0].contains("tailLines=5000") && !requests[0].contains("limitBytes"));
    }

    #[test]
    fn bundle_names_the_version_that_the_program_has() {
        assert_eq!(
            versions("1.2.3+abcdef", "Kubernetes v1.35.0"),
            "kubectl-minicluster 1.2.3+abcdef\nKubernetes v1.35.0\n"
        );
    }

    #[test]
    fn failure_to_write_yaml_has_its_cause() {
        let error = YamlError::from(serde_saphyr::ser::Error::custom("too deep"));
        let text = yaml_failed(&error).to_string();
        assert!(text.contains("too deep"), "{text}");
    }
}
