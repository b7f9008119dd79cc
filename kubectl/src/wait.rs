//! `wait` for a MiniCluster's state, and `scale`.

use std::pin::pin;
use std::time::Duration;

use flux_operator_core::vocabulary::ConditionType;
use flux_shared::crd::v1alpha2::MiniClusterStatus;
use futures::StreamExt;
use kube::ResourceExt;
use kube::runtime::watcher;
use serde_json::json;

use crate::failure::{FAILED, Failure};
use crate::observed::{self, Obstacles, Snapshot, code_of};
use crate::outages::{Outage, Outages, Watched, refusal_text};
use crate::output::Output;
use crate::progress;
use crate::screen;
use crate::stop::change;
use crate::target::Target;

/// Exit code after a timeout, the same as that of timeout(1).
const TIMED_OUT: u8 = 124;

/// State to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum For {
    /// The job has ended; exits with the job's code
    Finished,
    /// The instance is up, or its job has completed; exits with 0, or with 1 if it failed
    Ready,
    /// The MiniCluster is gone; exits with 0
    Deleted,
}

/// Arguments of `wait`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Name of the MiniCluster
    pub name: String,
    /// State to wait for
    #[arg(long = "for", value_enum, value_name = "STATE", default_value_t = For::Finished)]
    pub until: For,
    /// Seconds to wait at most; then exits with 124 [default: no limit]
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u64>,
}

/// Arguments of `scale`.
#[derive(Debug, Clone, clap::Args)]
pub struct Scale {
    /// Name of the MiniCluster
    pub name: String,
    /// New number of pods
    #[arg(value_name = "N")]
    pub size: i32,
}

/// Waits for the state; returns the exit code.
pub async fn run(target: &Target, args: &Args) -> Result<u8, Failure> {
    // Only a wait for the deletion may begin without a MiniCluster.
    if args.until != For::Deleted {
        target.cluster(&args.name).await?;
    }
    until(target, args).await
}

/// The result of `reached`, or after `--timeout` the exit code of a timeout.
pub async fn in_time(args: &Args, reached: impl Future<Output = Result<u8, Failure>>) -> Result<u8, Failure> {
    let Some(seconds) = args.timeout else {
        return reached.await;
    };
    let reached = tokio::time::timeout(Duration::from_secs(seconds), reached).await;
    reached.unwrap_or_else(|_| {
        screen::tell(&format!("timed out after {seconds} s waiting for {}", args.name));
        Ok(TIMED_OUT)
    })
}

/// Watches the MiniCluster until it has reached the state; returns the exit code.
async fn until(target: &Target, args: &Args) -> Result<u8, Failure> {
    let mut events = target.watch(&args.name);
    let mut snapshot = Snapshot::default();
    let (mut uid, mut outages, mut obstacles) = (None, Outages::default(), Obstacles::default());
    let (mut operator_deadline, mut is_operator_awaited) =
        (pin!(tokio::time::sleep(observed::SILENT_OPERATOR)), true);
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = &mut operator_deadline, if is_operator_awaited => {
                is_operator_awaited = false;
                if args.until != For::Deleted && snapshot.cluster.is_some() && snapshot.status().is_none() {
                    screen::tell(&format!("{} waits: {}", args.name, observed::NO_OPERATOR));
                }
                continue;
            }
        };
        let Some(event) = event else {
            return Err(Failure::Message("the watch has ended".into()));
        };
        if let Ok(event) = &event
            && outages.note_event(Watched::Cluster, event)
        {
            screen::tell("the API server answers again");
        }
        match event {
            Ok(watcher::Event::Apply(cluster) | watcher::Event::InitApply(cluster)) => {
                // If the uid has changed, another MiniCluster has the name now.
                if *uid.get_or_insert(cluster.uid()) != cluster.uid() {
                    return gone(args);
                }
                snapshot.cluster = Some(cluster);
            }
            Ok(watcher::Event::Init) => snapshot.cluster = None,
            Ok(watcher::Event::Delete(_)) => return gone(args),
            Ok(watcher::Event::InitDone) if snapshot.cluster.is_none() => return gone(args),
            Ok(watcher::Event::InitDone) => {}
            Err(error) => match outages.note_error(Watched::Cluster, &error) {
                Some(Outage::Lost { why }) => {
                    screen::tell(&format!("no events from the API server ({why}); retrying"));
                }
                Some(Outage::Refused { why }) => {
                    screen::tell(&refusal_text(&args.name, Watched::Cluster, &why));
                }
                None => {}
            },
        }
        if let Some(why) = outages.logged_out() {
            return Err(Failure::logged_out(&args.name, why));
        }
        let (name, code) = (&args.name, code(&snapshot, args.until));
        if let Some(why) = progress::trouble(&snapshot)
            && args.until != For::Deleted
            && (code.is_none() || snapshot.is_invalid())
            && obstacles.is_new(observed::phase_of(snapshot.status()), &why)
        {
            let doing = if code.is_some() { "not waiting" } else { "waiting" };
            screen::tell(&format!("{doing} for {name} ({why})"));
        }
        if let Some(code) = code {
            return Ok(code);
        }
    }
}

/// The result if the MiniCluster does not exist any more.
fn gone(args: &Args) -> Result<u8, Failure> {
    match args.until {
        For::Deleted => Ok(0),
        _ => Err(Failure::Message(format!("MiniCluster {} is gone", args.name))),
    }
}

/// The exit code if the state is reached, or cannot be reached any more. None: not yet.
fn code(snapshot: &Snapshot, until: For) -> Option<u8> {
    let is_finished = snapshot.is_true(ConditionType::JobFinished);
    let ended = || {
        code_of(
            snapshot.status().and_then(|status| status.exit_code),
            snapshot.is_true(ConditionType::Complete),
        )
    };
    match until {
        // `gone` is called for a deleted MiniCluster.
        For::Deleted => None,
        _ if snapshot.is_invalid() => Some(FAILED),
        For::Finished => is_finished.then(ended),
        For::Ready if snapshot.is_true(ConditionType::Ready) => Some(0),
        // A job that has completed keeps the condition Ready, so this one has failed.
        For::Ready => is_finished.then_some(FAILED),
    }
}

/// Changes the MiniCluster's size.
pub async fn scale(target: &Target, args: &Scale, output: Output) -> Result<u8, Failure> {
    let cluster = target.cluster(&args.name).await?;
    let phase = cluster.status.as_ref().and_then(MiniClusterStatus::phase);
    if let Some(phase) = phase.filter(|phase| phase.is_finished()) {
        return Err(Failure::Message(format!(
            "{} is {phase}: it has no pods to scale. Create a new one",
            args.name
        )));
    }
    let changed = change(
        target,
        &args.name,
        cluster.metadata.uid.as_deref(),
        json!({ "size": args.size }),
        "scale",
    )
    .await?;
    output
        .show(&changed, || {
            format!("scaled {} to {} pods\n", args.name, args.size)
        })
        .map(|()| 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Answer, answering, failed, failing_plugin};

    #[tokio::test(start_paused = true)]
    async fn wait_fails_when_the_credentials_have_expired() {
        check_wait_without_credentials(|| failed(401)).await;
        check_wait_without_credentials(failing_plugin()).await;
    }

    async fn check_wait_without_credentials(answer_to_watch: impl Fn() -> Answer + Send + 'static) {
        let (target, _) = answering(move |request| {
            if request.contains('?') {
                return answer_to_watch();
            }
            let cluster = json!({ "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster",
                "metadata": { "name": "mc" }, "spec": { "containers": [] } });
            Answer::Json(200, cluster)
        });
        for until in [For::Finished, For::Ready, For::Deleted] {
            let args = Args {
                name: "mc".into(),
                until,
                timeout: None,
            };
            let failure = run(&target, &args).await.unwrap_err().to_string();
            assert!(
                failure.contains("mc, which goes on: ") && failure.ends_with("Log in again"),
                "{failure}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn timeout_holds_for_the_first_call() {
        let (target, requests) = answering(|_| Answer::Never);
        for until in [For::Finished, For::Ready, For::Deleted] {
            let args = Args {
                name: "mc".into(),
                until,
                timeout: Some(1),
            };
            assert_eq!(in_time(&args, run(&target, &args)).await.unwrap(), TIMED_OUT);
        }
        assert!(!requests.lock().unwrap().is_empty());
    }
}
