//! The command line: its subcommands and options.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use flux_operator_client::choices::Choices;
use flux_operator_client::config::{self, ConfigError};
use flux_operator_client::input;
use flux_operator_client::on_server::{self, ValidateArgs};
use flux_operator_core::offline::{self, Judgement, OfflineError};
use flux_operator_core::render::Options;
use tokio::signal::unix::{SignalKind, signal};

use crate::api::client;
use crate::api::lease::Candidate;
use crate::controller;
use crate::definition;
use crate::delete_miniclusters::{self, Deletion};
use crate::health::log;
use crate::health::metrics::Metrics;
use crate::webhook;
use crate::webhook::migrate;

#[derive(Debug, Parser)]
#[command(
    name = "flux-operator",
    version,
    about = "Runs Flux instances on Kubernetes, one for each MiniCluster"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the operator: watch MiniClusters and reconcile them
    // `agent_image` is an option in `Choices`, with a default. Here it is required.
    #[command(mut_arg("agent_image", |image| image.required(true).default_value(None)))]
    Run(Box<Run>),
    /// Run the webhook that converts MiniClusters between v1alpha1 and v1alpha2
    Webhook(Box<Webhook>),
    /// Print the CustomResourceDefinition
    Crd(definition::Options),
    /// Store every MiniCluster as v1alpha2, including those that an earlier operator stored as v1alpha1
    Migrate,
    /// Delete every MiniCluster of the cluster with its volumes and wait until their pods are gone. Run it
    /// before you delete the CustomResourceDefinition
    DeleteMiniclusters(Deletion),
    /// Print the objects that the operator creates for a MiniCluster, as YAML (keys redacted)
    Render {
        /// A file with a MiniCluster, or - for standard input
        file: PathBuf,
        #[command(flatten)]
        choices: Choices,
    },
    /// Check MiniClusters: list every problem with its field, and exit with 1 if there is one
    Validate(ValidateArgs),
}

#[derive(Debug, Args)]
struct Run {
    /// Watch this namespace only
    #[arg(long, env = "WATCH_NAMESPACE")]
    namespace: Option<String>,
    #[command(flatten)]
    log: log::Filter,
    /// Namespace of the Lease for leader election, which lets several replicas run [default: no election]
    #[arg(long, env = "LEASE_NAMESPACE", value_name = "NAMESPACE")]
    lease_namespace: Option<String>,
    /// This replica's name as holder of the Lease; must be unique
    #[arg(long, env = "POD_NAME", default_value = "flux-operator")]
    identity: String,
    /// Seconds after which a Lease that is not renewed expires
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u16).range(3..))]
    lease_seconds: u16,
    /// Address to serve /healthz, /readyz and /metrics at, such as 0.0.0.0:8080 [default: not served]
    #[arg(long, env = "HEALTH_ADDRESS", value_name = "ADDRESS:PORT")]
    health: Option<std::net::SocketAddr>,
    #[command(flatten)]
    choices: Choices,
}

#[derive(Debug, Args)]
struct Webhook {
    #[command(flatten)]
    log: log::Filter,
    #[command(flatten)]
    settings: webhook::WebhookSettings,
}

/// Why the program ends with an error.
#[derive(Debug, thiserror::Error)]
enum CliError {
    #[error("failed to read {path}")]
    Read { path: String, source: std::io::Error },
    #[error(transparent)]
    Offline(#[from] OfflineError),
    #[error(transparent)]
    Check(#[from] on_server::CheckError),
    #[error(transparent)]
    Crd(#[from] definition::CrdError),
    #[error("failed to register the metrics")]
    Metrics(#[from] prometheus::Error),
    #[error("failed to start")]
    Runtime(#[source] std::io::Error),
    #[error("failed to find the API server")]
    Config(#[from] ConfigError),
    #[error("failed to create a client for the API server")]
    Client(#[source] Box<kube::Error>),
    #[error(transparent)]
    Controller(#[from] controller::ControllerError),
    #[error(transparent)]
    Webhook(#[from] webhook::WebhookError),
    #[error(transparent)]
    Migrate(#[from] migrate::MigrateError),
    #[error(transparent)]
    Delete(#[from] delete_miniclusters::DeletionError),
    #[error("failed to write the output")]
    Write(#[from] std::io::Error),
}

/// Parses the command line and executes the command; returns the program's exit code.
pub fn main(version: &'static str) -> ExitCode {
    match execute(input::command_line::<Cli>(version).command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If standard error is closed, the error cannot be reported.
            let _ = writeln!(std::io::stderr(), "{}", log::causes(&error));
            ExitCode::FAILURE
        }
    }
}

/// Executes a command and prints its result, if it has one.
fn execute(command: Command) -> Result<(), CliError> {
    let text = match command {
        Command::Run(run) => return run_operator(*run),
        Command::Webhook(webhook) => return run_webhook(*webhook),
        Command::Crd(options) => definition::crd(&options)?,
        Command::Migrate => {
            block_on(async { Ok(migrate::migrate_all(connect(unserved_metrics()?).await?).await?) })?
        }
        Command::DeleteMiniclusters(deletion) => {
            log::start(&deletion.log);
            block_on(async {
                let client = connect(unserved_metrics()?).await?;
                Ok(delete_miniclusters::delete_all(&client, deletion.timeout).await?)
            })?
        }
        Command::Render { file, choices } => {
            let text = read(&file)?;
            for notice in offline::text_notices(&text) {
                // Without standard error, nobody reads the notices.
                let _ = writeln!(std::io::stderr(), "note: {notice}");
            }
            offline::render(&text, &choices.into())?
        }
        Command::Validate(ValidateArgs { files, server }) => {
            let judge = |file: &PathBuf| -> Result<Judgement, CliError> {
                let text = read(file)?;
                if server {
                    ask_server(&text)
                } else {
                    Ok(offline::judge(&text))
                }
            };
            let judgements = files.iter().map(|file| Ok((file.as_path(), judge(file)?)));
            Judgement::of_files(judgements.collect::<Result<_, CliError>>()?).text()?
        }
    };
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

fn read(file: &Path) -> Result<String, CliError> {
    input::read(file).map_err(|source| CliError::Read {
        path: file.display().to_string(),
        source,
    })
}

/// Validates MiniClusters by asking the API server, in the namespace of the kubeconfig.
fn ask_server(text: &str) -> Result<Judgement, CliError> {
    block_on(async {
        let client = connect(unserved_metrics()?).await?;
        let target = on_server::Target {
            namespace: client.default_namespace(),
            // The namespace is only a default: a file may name another one.
            is_asked_for: false,
        };
        // The installed operator's options are not known here, so its defaults count.
        Ok(on_server::judge(&client, target, text, &Options::default()).await?)
    })
}

/// Runs the operator until a signal ends it.
fn run_operator(run: Run) -> Result<(), CliError> {
    log::start(&run.log);
    let metrics = Arc::new(Metrics::new()?);
    let candidate = run.lease_namespace.map(|namespace| Candidate {
        namespace,
        identity: run.identity,
        duration: Duration::from_secs(run.lease_seconds.into()),
    });
    let settings = controller::ControllerSettings {
        namespace: run.namespace,
        options: run.choices.into(),
        candidate,
        health: run.health,
        metrics: metrics.clone(),
    };
    block_on(async {
        let client = connect(metrics).await?;
        Ok(controller::run(client, settings, stop_signal()?).await?)
    })
}

/// Runs the webhook until a signal ends it. After the signal it serves for `settings.drain` longer: API servers may
/// still send requests.
fn run_webhook(webhook: Webhook) -> Result<(), CliError> {
    log::start(&webhook.log);
    block_on(async {
        // With a certificate from files, the webhook makes no API call.
        let client = match webhook.settings.directory {
            Some(_) => None,
            None => {
                let metrics = unserved_metrics()?;
                Some((connect(metrics.clone()).await?, metrics))
            }
        };
        Ok(webhook::run(client, webhook.settings, stop_signal()?).await?)
    })
}

/// A future that resolves at SIGTERM or SIGINT.
fn stop_signal() -> Result<impl Future<Output = ()> + Send + use<>, CliError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(CliError::Runtime)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(CliError::Runtime)?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Runs `body` on a runtime with one thread, which is enough: it mostly waits for the API server.
fn block_on<T>(body: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(CliError::Runtime)?;
    runtime.block_on(body)
}

/// Metrics that nobody reads: the client needs them to count its calls. (The webhook serves other metrics, without
/// these calls.)
fn unserved_metrics() -> Result<Arc<Metrics>, CliError> {
    Ok(Arc::new(Metrics::new()?))
}

async fn connect(metrics: Arc<Metrics>) -> Result<kube::Client, CliError> {
    let config = config::config(None, None).await?;
    let builder = client::builder(config).map_err(|error| CliError::Client(Box::new(error)))?;
    Ok(client::build(builder, metrics))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_can_be_parsed() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }
}
