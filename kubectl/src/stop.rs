//! Ends a MiniCluster: by a shutdown of its instance if there is one, else by suspending or deleting it.

use std::time::Duration;

use flux_shared::crd::v1alpha2::MiniCluster;
use flux_shared::exit::of_signal;
use flux_shared::queueing::QUEUE_NAME;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde::Serialize;
use serde_json::{Value, json};

use crate::connect;
use crate::failure::{self, Failure};
use crate::observed::{self, lead_of};
use crate::target::Target;

/// What a program in a container ends with that ends meanwhile.
const KILLED: u8 = of_signal(9);

/// Arguments of `stop`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Name of the MiniCluster
    pub name: String,
    /// Delete it and its pods without waiting; programs still get SIGTERM and the grace period
    #[arg(long)]
    pub now: bool,
}

/// How the MiniCluster was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Way {
    /// The instance shuts down; status and logs stay.
    ShutDown,
    Deleted,
    /// Suspended, since there is no permission to delete it: it has no pods.
    Suspended,
    /// It had ended before.
    HadEnded,
}

impl Way {
    /// A sentence for the person.
    pub fn text(self, name: &str) -> String {
        match self {
            Way::ShutDown => format!("shutting down {name}: its programs get SIGTERM and the grace period"),
            Way::Deleted => format!("deleted {name}"),
            Way::Suspended => {
                format!(
                    "suspended {name}, which now has no pods (you have no permission to delete it or to shut down its instance)"
                )
            }
            Way::HadEnded => format!("{name} has already ended"),
        }
    }
}

/// Ends the MiniCluster as the options say.
pub async fn stop(target: &Target, args: &Args) -> Result<Way, Failure> {
    if args.now {
        at_once(target, &args.name).await
    } else {
        in_order(target, &args.name).await
    }
}

/// Shuts the instance down, as `flux shutdown` does. If it does not run, the MiniCluster is deleted: there is
/// nothing to lose.
pub async fn in_order(target: &Target, name: &str) -> Result<Way, Failure> {
    let cluster = target.cluster(name).await?;
    if observed::is_finished(cluster.status.as_ref()) {
        return Ok(Way::HadEnded);
    }
    let pods = target.pods_of(name).await?;
    if let Some(lead) = lead_of(pods.iter()).filter(|lead| observed::is_running(lead)) {
        let is_shut_down = match connect::quietly(target, lead, &["stop"]).await {
            Ok(0) => true,
            // The container may end before the answer has come.
            Ok(KILLED) | Err(_) => ends_soon(target, name, lead).await?,
            Ok(_) => false,
        };
        if is_shut_down {
            return Ok(Way::ShutDown);
        }
    }
    at_once(target, name).await
}

/// Whether this start of the lead ends within the time that the kubelet takes to say so.
async fn ends_soon(target: &Target, name: &str, lead: &Pod) -> Result<bool, Failure> {
    let Some(start) = observed::started(lead) else {
        return Ok(false);
    };
    for pause in [0, 1, 2, 3].map(Duration::from_secs) {
        tokio::time::sleep(pause).await;
        let pods = target.pods_of(name).await?;
        if lead_of(pods.iter()).is_none_or(|lead| observed::is_over(lead, &start)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Deletes the MiniCluster without waiting; its pods get SIGTERM and their grace period.
pub async fn at_once(target: &Target, name: &str) -> Result<Way, Failure> {
    match target.clusters().delete(name, &DeleteParams::background()).await {
        Ok(_) => Ok(Way::Deleted),
        Err(error) if failure::is_code(&error, 404) => Ok(Way::HadEnded),
        Err(error) if failure::is_code(&error, 403) => {
            if is_queued(&target.cluster(name).await?) {
                return Err(Failure::call(format!(
                    "delete MiniCluster {name}, which only its queue can suspend"
                ))(error));
            }
            change(target, name, json!({ "spec": { "suspend": true } }), "stop")
                .await
                .map(|_| Way::Suspended)
        }
        Err(error) => Err(Failure::call(format!("delete MiniCluster {name}"))(error)),
    }
}

/// Whether it is in a queue, where `spec.suspend` has no effect.
fn is_queued(cluster: &MiniCluster) -> bool {
    let labels = cluster.metadata.labels.iter().chain([&cluster.spec.job_labels]);
    labels.into_iter().any(|labels| labels.contains_key(QUEUE_NAME))
}

/// Changes the MiniCluster by a merge patch; returns the new one.
pub async fn change(target: &Target, name: &str, change: Value, verb: &str) -> Result<MiniCluster, Failure> {
    let patched = target
        .clusters()
        .patch(name, &PatchParams::default(), &Patch::Merge(change))
        .await;
    patched.map_err(Failure::call(format!("{verb} MiniCluster {name}")))
}
