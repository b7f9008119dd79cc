//! Commands for people (`kubectl exec POD -- /mnt/flux/flux-agent …`): connect, status, usage, preflight, stop, facts.
//!
//! ```text
//! spec, facts ─► plan::instance ─► look (broker's socket, network, files) ─► judge (pure) ─► lines, exit code
//! ```
//!
//! The agent only reads here, but `stop` may note a shutdown in a file. `connect`, `stop` and `as-flux` (for snippets)
//! may replace this process by another program (exec), which nothing supervises.

mod completions;
mod connect;
mod container;
mod findings;
mod observe;
mod pod;
mod preflight;
mod status;

use std::time::Duration;

use crate::report::failure::Failure;
use crate::report::log::write_whole;
use crate::system::runtime;

pub use completions::{CompletionShell, script};
pub use connect::{as_flux, connect, stop};
pub use container::{Entrypoint, OwnContainer, facts, process_one};
use pod::Pod;
pub use pod::PodPlace;

/// `flux-agent status --ready`: exit code 0 if the broker is in its running state and the RESTful API, if this pod
/// serves it, answers; else 1 and the reason. Waits for up to `seconds`. A probe that waits this way succeeds as soon
/// as the pod is ready, and does not fail early in a start.
pub fn ready(place: &PodPlace, seconds: u64) -> Result<(String, u8), Failure> {
    run_as_owner(place, async |pod| {
        Ok(
            match observe::until_ready(pod, Duration::from_secs(seconds)).await {
                Ok(()) => (String::new(), 0),
                Err(why) => (format!("not ready: {why}\n"), 1),
            },
        )
    })
}

/// Everything known of the instance; exit code 1 if the broker does not answer.
pub fn status(place: &PodPlace, json: bool) -> Result<(String, u8), Failure> {
    run_as_owner(place, async |pod| {
        let (state, activity) = observe::state_and_activity(pod).await;
        let code = u8::from(state.is_err());
        let observed = observe::all(pod, state, activity).await;
        let report = status::report(&observed);
        Ok((if json { report.json() } else { report.text() }, code))
    })
}

/// The instance's usage as JSON; exit code 1 if the broker does not answer or has not joined yet.
pub fn usage(place: &PodPlace) -> Result<(String, u8), Failure> {
    run_as_owner(place, async |pod| match observe::usage(pod).await {
        Ok(usage) => {
            let text = serde_json::to_string(&usage);
            Ok((
                text.map_err(|error| {
                    Failure::internal(format!("failed to write the usage as JSON: {error}"))
                })? + "\n",
                0,
            ))
        }
        Err(why) => {
            // To standard error: standard output has only JSON. `kubectl minicluster top` shows this line.
            write_whole(format!("flux-agent: not up: {why}\n"));
            Ok((String::new(), 1))
        }
    })
}

/// Runs `look` as the instance's owner; returns what to print and the exit code.
fn run_as_owner(
    place: &PodPlace,
    look: impl AsyncFnOnce(&Pod) -> Result<(String, u8), Failure>,
) -> Result<(String, u8), Failure> {
    let pod = Pod::read(place)?;
    observe::become_owner(&pod)?;
    let mut text = String::new();
    let code = runtime::block_on_interruptible(Box::pin(async {
        let (found, code) = look(&pod).await?;
        text = found;
        Ok(code)
    }))?;
    Ok((text, code))
}

/// Checks whether this pod has what Flux and its jobs need; exit code 1 if a check fails.
/// `findings::collect` becomes the instance's owner itself.
pub fn preflight(place: &PodPlace) -> Result<(String, u8), Failure> {
    let pod = Pod::read(place)?;
    let checks = preflight::judge(&findings::collect(&pod)?);
    let failed = checks.iter().any(|check| check.level == preflight::Level::Fail);
    Ok((preflight::text(&checks), u8::from(failed)))
}
