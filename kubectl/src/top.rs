//! `top`: shows the usage of a running instance, on a terminal continuously.
//!
//! ```text
//! the lead's `flux-agent usage`, by exec ─► Usage ─► table (pure) ─► the terminal, or a pipe
//! ```

mod display;
mod table;

use std::time::Duration;

use flux_operator_core::vocabulary::{ConditionType, Reason};
use flux_shared::causes::causes;
use flux_shared::crd::v1alpha2::MiniCluster;
use flux_shared::usage::Usage;
use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};

use crate::connect;
use crate::failure::{self, Failure};
use crate::observed::{self, Snapshot};
use crate::output::Output;
use crate::screen;
use crate::signals::until_signalled;
use crate::target::{Access, Target};
use display::Display;

/// Exit code of an agent that does not know the command (clap's code for errors of usage).
const NO_SUCH_COMMAND: u8 = 2;
/// The byte of Ctrl-C, which the terminal passes on like any key in raw mode.
const CTRL_C: u8 = 3;

/// Arguments of `top`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Name of the MiniCluster
    pub name: String,
    /// Seconds between updates on a terminal
    #[arg(long, short, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    pub interval: u64,
    /// Print once and exit, on a terminal too
    #[arg(long)]
    pub once: bool,
}

#[derive(Debug, Serialize)]
struct TopReport<'a> {
    name: &'a str,
    namespace: &'a str,
    #[serde(flatten)]
    usage: &'a Usage,
}

/// Prints the usage once, or shows it continuously.
pub async fn run(target: &Target, args: &Args, output: Output) -> Result<u8, Failure> {
    let (lead, usage) = find_usage(target, &args.name)
        .await
        .map_err(|no_usage| no_usage.why)?;
    if output.format.is_none() && !args.once && screen::is_terminal() {
        return live(target, args, lead, usage).await;
    }
    let report = TopReport {
        name: &args.name,
        namespace: &target.namespace,
        usage: &usage,
    };
    output.show(&report, || {
        table::lines(&args.name, &usage, table::WHOLE).join("\n") + "\n"
    })?;
    Ok(0)
}

/// Why there is no usage.
struct NoUsage {
    why: Failure,
    /// The MiniCluster has ended or is gone, so there will be none.
    is_over: bool,
}

impl From<Failure> for NoUsage {
    fn from(why: Failure) -> NoUsage {
        NoUsage { why, is_over: false }
    }
}

/// The lead and the usage of its instance, or why there is none.
async fn find_usage(target: &Target, name: &str) -> Result<(Pod, Usage), NoUsage> {
    let cluster = target.clusters().get(name).await.map_err(|error| NoUsage {
        is_over: failure::is_code(&error, 404),
        why: Failure::call(format!("get MiniCluster {name}"))(error),
    })?;
    let lead = target.pod_of_index(&cluster, 0).await?;
    let lead = lead.filter(observed::is_running);
    let lead = lead_to_ask(&target.access, name, cluster, lead)?;
    let usage = ask(target, name, &lead).await?;
    Ok((lead, usage))
}

/// The lead, if it can be asked for the usage. `lead`: the lead if it runs.
fn lead_to_ask(access: &Access, name: &str, cluster: MiniCluster, lead: Option<Pod>) -> Result<Pod, NoUsage> {
    let snapshot = Snapshot {
        cluster: Some(cluster),
        ..Snapshot::default()
    };
    let status = snapshot.status();
    let phase = status
        .and_then(|status| status.phase.as_deref())
        .unwrap_or("not begun");
    // Not the phase alone: while a MiniCluster is being deleted, its phase is Terminating, even after its end.
    let is_over = snapshot.is_true(ConditionType::JobFinished) || observed::is_finished(status);
    let why = if is_over {
        format!(
            "{name} has ended ({phase}): no instance runs any more. {} and {} tell how it went",
            access.command("why", name),
            access.command("timeline", name)
        )
    } else if let Some(lead) = lead {
        return Ok(lead);
    } else if snapshot.is_true(ConditionType::Suspended) && snapshot.reason() == Some(Reason::Queued) {
        let queue_message = status
            .and_then(|status| status.message.as_deref())
            .unwrap_or_default();
        format!("{name} has no pods: it {queue_message}")
    } else if snapshot.is_true(ConditionType::Suspended) {
        format!(
            "{name} is suspended and has no pods: its Job was suspended, or its spec.suspend is true: \
             `kubectl patch minicluster {name}{} --type merge -p '{{\"spec\":{{\"suspend\":false}}}}'` resumes it",
            access.options()
        )
    } else {
        format!(
            "{name} does not run yet ({phase}): {} says why, {} waits for it",
            access.command("why", name),
            access.command("wait --for ready", name)
        )
    };
    Err(NoUsage {
        why: Failure::Message(why),
        is_over,
    })
}

/// Asks the lead's agent for the usage.
async fn ask(target: &Target, name: &str, lead: &Pod) -> Result<Usage, Failure> {
    let (code, output) = connect::report(target, lead, &["usage"]).await?;
    let message = || {
        String::from_utf8_lossy(&output)
            .trim()
            // The agent begins its error messages with its name.
            .trim_start_matches("flux-agent: ")
            .to_owned()
    };
    match code {
        0 => serde_json::from_slice(&output).map_err(|error| {
            Failure::Message(format!(
                "unexpected answer of the agent of {name} (another version?): {error}: {}",
                message()
            ))
        }),
        NO_SUCH_COMMAND => Err(Failure::Message(format!(
            "the agent in the pods of {name} is older than this program and does not report usage: use {}, or `flux top` \
             in {}",
            target.access.command("status", name),
            target.access.command("connect", name)
        ))),
        _ => Err(Failure::Message(format!(
            "no usage available of {name}: {}. {} waits until it is up",
            message().trim_end_matches('.'),
            target.access.command("wait --for ready", name)
        ))),
    }
}

/// Shows the usage and updates it, until q, Ctrl-C, a signal or the end of the input, or until the MiniCluster has
/// ended or is gone. The exit code is 0 in all these cases.
async fn live(target: &Target, args: &Args, mut lead: Pod, mut usage: Usage) -> Result<u8, Failure> {
    let mut resized = signal(SignalKind::window_change())
        .map_err(Failure::on_this_machine("listen for the terminal's size"))?;
    let mut terminated = until_signalled()?;
    let mut keys = tokio::io::stdin();
    let mut display = Display::begin()?;
    let (mut key, mut trouble) = ([0], None);
    let mut next = Box::pin(next_usage(target, args, lead.clone()));
    loop {
        display.show(
            |height| table::lines(&args.name, &usage, height),
            trouble.as_deref(),
            args.interval,
        )?;
        tokio::select! {
            read = keys.read(&mut key) => match (read, key[0]) {
                (Ok(1), b'q' | b'Q' | CTRL_C) | (Ok(0) | Err(_), _) => return Ok(0),
                _ => {}
            },
            _ = resized.recv() => {}
            _ = &mut terminated => return Ok(0),
            found = &mut next => {
                match found {
                    Ok(found) => ((lead, usage), trouble) = (found, None),
                    Err(NoUsage { why, is_over: true }) => {
                        // Restores the terminal first: the message would vanish with the alternate screen.
                        drop(display);
                        screen::tell(&causes(&why));
                        return Ok(0);
                    }
                    // The last usage stays on the screen.
                    Err(NoUsage { why, .. }) => trouble = Some(causes(&why)),
                }
                next.set(next_usage(target, args, lead.clone()));
            }
        }
    }
}

/// Waits for the interval, then asks for the usage again; looks for another lead if this one does not answer.
async fn next_usage(target: &Target, args: &Args, lead: Pod) -> Result<(Pod, Usage), NoUsage> {
    tokio::time::sleep(Duration::from_secs(args.interval)).await;
    match ask(target, &args.name, &lead).await {
        Ok(usage) => Ok((lead, usage)),
        Err(_) => find_usage(target, &args.name).await,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn why(status: Value, lead_runs: bool) -> Option<(String, bool)> {
        let cluster = serde_json::from_value(json!({
            "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": { "name": "mc" },
            "spec": { "containers": [{ "image": "a" }] }, "status": status,
        }));
        let lead = lead_runs.then(Pod::default);
        let access = Access {
            namespace: Some("other".into()),
            ..Access::default()
        };
        lead_to_ask(&access, "mc", cluster.unwrap(), lead)
            .err()
            .map(|no_usage| (no_usage.why.to_string(), no_usage.is_over))
    }

    #[test]
    fn top_without_usage_says_why() {
        let condition = |type_: &str| json!([{ "type": type_, "status": "True", "lastTransitionTime": "", "reason": "", "message": "" }]);
        let (ended, is_over) = why(
            json!({ "phase": "Failed", "conditions": condition("JobFinished") }),
            true,
        )
        .unwrap();
        assert!(
            is_over
                && ended.starts_with("mc has ended (Failed)")
                && ended.contains("minicluster why mc -n other`"),
            "{ended}"
        );
        let (suspended, is_over) = why(json!({ "conditions": condition("Suspended") }), false).unwrap();
        assert!(
            !is_over
                && suspended
                    .contains("minicluster mc -n other --type merge -p '{\"spec\":{\"suspend\":false}}'`"),
            "{suspended}"
        );
        let queued = json!({ "reason": "Queued", "message": "waits in queue team", "conditions": condition("Suspended") });
        assert_eq!(
            why(queued, false),
            Some(("mc has no pods: it waits in queue team".to_owned(), false))
        );
        let (early, is_over) = why(json!({ "phase": "Pending" }), false).unwrap();
        assert!(
            !is_over
                && early.contains("does not run yet (Pending)")
                && early.contains("wait --for ready mc -n other`"),
            "{early}"
        );
        assert_eq!(why(json!({ "phase": "Running" }), true), None);
    }
}
