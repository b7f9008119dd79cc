//! `debug`: what a helper needs to know about a MiniCluster, in one file, without secrets.
//!
//! ```text
//! MiniCluster, pods, events, logs ─► redact (pure) ─► entries of a tar archive
//! ```

mod redact;

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::Pod;
use kube::api::LogParams;
use serde::Serialize;
use serde_json::Value;

use crate::failure::{self, Failure};
use crate::observed;
use crate::output::Output;
use crate::status;
use crate::target::Target;
use crate::timeline;

/// Most lines of a log, the last ones, and most bytes.
const LINES: i64 = 5000;
const BYTES: i64 = 4 * 1024 * 1024;
/// Most pods whose logs are collected: the first ones, with the lead.
const PODS: usize = 16;

/// Arguments of `debug`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Name of the MiniCluster
    pub name: String,
    /// Path of the bundle; an existing file is not overwritten [default: NAME-debug.tar]
    #[arg(long, value_name = "FILE")]
    pub to: Option<PathBuf>,
}

/// Files of the bundle: name and text.
type Entries = Vec<(String, String)>;

/// Collects everything, writes it, and prints where.
pub async fn debug(target: &Target, args: &Args, output: Output) -> Result<u8, Failure> {
    let name = &args.name;
    let path = args
        .to
        .clone()
        .unwrap_or_else(|| PathBuf::from(format!("{name}-debug.tar")));
    let entries = collect(target, name).await?;
    write(&path, &entries).map_err(|source| Failure::Write {
        path: path.display().to_string(),
        source,
    })?;
    let count = entries.len();
    let about = serde_json::json!({ "file": path, "files": entries.iter().map(|(name, _)| name).collect::<Vec<_>>() });
    let summary = || {
        format!(
            "{} has {count} files: the MiniCluster, its pods, warnings and logs. Environment values, passwords, tokens and \
             certificates are left out; check your program's own output before you share it\n",
            path.display()
        )
    };
    output.show(&about, summary).map(|()| 0)
}

async fn collect(target: &Target, name: &str) -> Result<Entries, Failure> {
    let cluster = target.cluster(name).await?;
    let mut pods = target.pods_of(name).await?;
    pods.sort_by_key(|pod| (observed::index(pod), observed::name(pod).to_owned()));
    let mut entries = vec![
        (
            "version.txt".to_owned(),
            format!(
                "kubectl-minicluster {}\n{}\n",
                env!("CARGO_PKG_VERSION"),
                server(target).await
            ),
        ),
        ("minicluster.yaml".to_owned(), yaml(&cluster)?),
        (
            "status.txt".to_owned(),
            redact::text(&status::text(target, &cluster, &pods).await),
        ),
        ("timeline.txt".to_owned(), timeline::text(&cluster)),
    ];
    for pod in &pods {
        entries.push((format!("pods/{}.yaml", observed::name(pod)), yaml(pod)?));
    }
    for pod in pods
        .iter()
        .filter(|pod| observed::index(pod).is_some())
        .take(PODS)
    {
        entries.extend(logs(target, pod).await);
    }
    Ok(entries)
}

async fn server(target: &Target) -> String {
    match target.client.apiserver_version().await {
        Ok(version) => format!("Kubernetes {}", version.git_version),
        Err(error) => failure::words(&error),
    }
}

fn yaml(object: &impl Serialize) -> Result<String, Failure> {
    let write_failed =
        |error: &dyn std::error::Error| Failure::Told(format!("failed to write an object: {error}"));
    let mut value: Value = serde_json::to_value(object).map_err(|error| write_failed(&error))?;
    redact::object(&mut value);
    flux_operator_core::yaml::document(&value).map_err(|error| write_failed(&error))
}

/// Logs of every container of the pod, and of its run before a restart. A log that cannot be read is replaced
/// by the reason.
async fn logs(target: &Target, pod: &Pod) -> Entries {
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
                tail_lines: Some(LINES),
                limit_bytes: Some(BYTES),
                timestamps: true,
                ..LogParams::default()
            };
            let log = target.pods().logs(observed::name(pod), &parameters).await;
            let log =
                log.unwrap_or_else(|error| format!("failed to read this log: {}\n", failure::words(&error)));
            let ending = if previous { "previous.log" } else { "log" };
            entries.push((
                format!("logs/{}.{}.{ending}", observed::name(pod), container.name),
                redact::text(&log),
            ));
        }
    }
    entries
}

/// Writes the archive, readable by its owner only.
fn write(path: &std::path::Path, entries: &Entries) -> std::io::Result<()> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    let mut archive = tar::Builder::new(file);
    for (name, text) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        archive.append_data(&mut header, name, text.as_bytes())?;
    }
    let mut file = archive.into_inner()?;
    file.flush()?;
    file.sync_all()
}
