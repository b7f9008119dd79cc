//! `stop`: shuts down the instance of a MiniCluster. If none has run yet, deletes or suspends the MiniCluster.

use std::time::Duration;

use flux_operator_core::previous_status;
use flux_operator_core::vocabulary::{ConditionType, Reason};
use flux_shared::crd::v1alpha2::{MiniCluster, MiniClusterStatus};
use flux_shared::queueing::QUEUE_NAME;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use serde::Serialize;
use serde_json::{Value, json};

use crate::connect;
use crate::failure::{self, Failure};
use crate::observed::{self, ContainerStart, Snapshot};
use crate::target::Target;

/// Most attempts to stop a MiniCluster, and the time between two of them: few seconds, since a user waits.
const ATTEMPTS: u32 = 6;
const PAUSE: Duration = Duration::from_secs(1);
/// The snippet that runs after Flux has ended.
const POST_SNIPPET: &str = "post";
/// Exit code of a command in a container that ended meanwhile: 128 + SIGKILL.
const KILLED: u8 = 137;
/// Reasons of restarts before which the program may have run. Before any other restart, the lead had not started.
const RESTARTED_AFTER_START: [Reason; 5] = [
    Reason::LeadLost,
    Reason::PodLost,
    Reason::JobDeleted,
    Reason::Suspended,
    Reason::Requeued,
];
/// States of a broker whose instance does not run yet: Flux refuses to shut it down.
const BEFORE_RUN: [&str; 6] = ["none", "load-builtins", "join", "config-sync", "init", "quorum"];

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
    /// Suspended, since the user has no permission to delete it. It then has no pods.
    Suspended,
    /// Suspended, since `run --keep` keeps it although no instance has run. It then has no pods.
    Kept,
    /// It had ended or was deleted before.
    HadEnded,
    /// Its job has ended. The steps after the job still run, or the operator has not reported the end yet.
    Ending,
}

impl Way {
    /// A sentence for the user.
    pub fn text(self, name: &str) -> String {
        match self {
            Way::ShutDown => format!("shutting down {name}: its programs get SIGTERM and the grace period"),
            Way::Deleted => format!("deleted {name}"),
            Way::Suspended => {
                format!("suspended {name}, which now has no pods (you have no permission to delete it)")
            }
            Way::Kept => format!(
                "suspended {name}, which now has no pods: no instance has run yet, and --keep keeps it"
            ),
            Way::HadEnded => format!("{name} has already ended"),
            Way::Ending => {
                format!(
                    "the job of {name} has already ended; its last steps (`post`, the archive) are not cut short"
                )
            }
        }
    }
}

/// Ends the MiniCluster: at once with `--now`, else in order.
pub async fn run(target: &Target, args: &Args) -> Result<Way, Failure> {
    if args.now {
        at_once(target, &args.name, None).await
    } else {
        in_order(target, &args.name, None, false).await
    }
}

/// Shuts the instance down, as `flux shutdown` does. If no instance has run yet, deletes the MiniCluster, since there is
/// nothing to lose; with `keep`, suspends it instead. Deletes nothing if the program may have run before, while the steps
/// after a job run, or if it is unknown what runs. `uid`: stop only the MiniCluster with this uid, since another one may
/// have the name by then.
pub async fn in_order(target: &Target, name: &str, uid: Option<&str>, keep: bool) -> Result<Way, Failure> {
    let mut attempts = Attempts {
        target,
        name,
        uid: uid.map(str::to_owned),
        keep,
        asked: None,
        has_ended: false,
        is_deleting: false,
        is_suspending: false,
        obstacle: String::new(),
    };
    let mut is_silent = false;
    for number in 0..ATTEMPTS {
        if number > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        match attempts.make().await {
            Ok(Some(way)) => return Ok(way),
            Ok(None) => {}
            // Another program in this pod would hang, too. The agent's command may still shut the instance down.
            Err(failure @ Failure::SilentAgent(_)) => {
                attempts.obstacle = failure.to_string();
                is_silent = true;
                break;
            }
            Err(failure) if failure.may_pass() => attempts.obstacle = failure.to_string(),
            Err(failure) => return Err(failure),
        }
    }
    if attempts.has_ended {
        return Ok(Way::Ending);
    }
    let outcome = if attempts.is_deleting {
        "It may be deleted already. If not, "
    } else if is_silent {
        "It may shut down all the same. If not, "
    } else {
        "Nothing was deleted: "
    };
    Err(not_stopped(target, name, &attempts.obstacle, outcome))
}

/// The failure to stop a MiniCluster, with the remedy. `outcome`: what came of the attempt.
fn not_stopped(target: &Target, name: &str, why: &str, outcome: &str) -> Failure {
    let end = if why.ends_with(['.', '?']) { "" } else { "." };
    Failure::Message(format!(
        "failed to stop {name}: {why}{end} {outcome}{} deletes it",
        target.access.command("stop --now", name)
    ))
}

/// The attempts to stop one MiniCluster.
struct Attempts<'a> {
    target: &'a Target,
    name: &'a str,
    /// The uid of the MiniCluster to stop; if none was given, that of the first one found.
    uid: Option<String>,
    /// As in [`in_order`].
    keep: bool,
    /// The start of the lead that was asked to shut down, perhaps without an answer.
    asked: Option<ContainerStart>,
    /// The lead has ended, and the operator has not reported it yet.
    has_ended: bool,
    /// An attempt to delete the MiniCluster was made, perhaps without an answer.
    is_deleting: bool,
    /// An attempt to suspend the MiniCluster was made, perhaps without an answer.
    is_suspending: bool,
    /// Why the last attempt failed.
    obstacle: String,
}

impl Attempts<'_> {
    /// Makes one attempt. None: try again.
    async fn make(&mut self) -> Result<Option<Way>, Failure> {
        let (target, name) = (self.target, self.name);
        let Some(cluster) = find(target, name, self.uid.as_deref()).await? else {
            let was_deleting = self.is_deleting;
            return Ok(Some(if was_deleting { Way::Deleted } else { Way::HadEnded }));
        };
        let uid = cluster.uid().unwrap_or_default();
        self.uid = Some(uid);
        if observed::is_finished(cluster.status.as_ref()) {
            let was_asked = self.asked.is_some();
            return Ok(Some(if was_asked { Way::ShutDown } else { Way::HadEnded }));
        }
        let lead = target.pod_of_index(&cluster, 0).await?;
        let lead = lead.as_ref();
        let snapshot = Snapshot {
            cluster: Some(cluster),
            ..Snapshot::default()
        };
        self.has_ended = false;
        // A suspended Job does not end when its instance is shut down: its program starts again when it is resumed.
        if self.asked.is_some() || lead.is_some_and(|lead| observed::started(lead).is_some()) {
            if snapshot.is_true(ConditionType::Suspended) {
                let is_ending =
                    |lead: &Pod| lead.metadata.deletion_timestamp.is_some() || !observed::is_running(lead);
                if lead.is_none_or(is_ending) {
                    return Err(self.suspended("it is suspended, and its pods are being stopped"));
                }
                // The Job was just suspended, or it was resumed, and the status is old.
                self.obstacle = "its status says that it is suspended, but its lead runs".to_owned();
                return Ok(None);
            }
            let cluster = snapshot.cluster.as_ref();
            if cluster.is_some_and(|cluster| is_to_be_suspended(cluster) && !is_queued(cluster)) {
                self.obstacle =
                    "its `spec.suspend` is true, and the operator has not suspended its Job yet".to_owned();
                return Ok(None);
            }
        }
        if let Some(asked) = &self.asked
            && lead.is_none_or(|lead| observed::is_over(lead, asked))
        {
            return Ok(Some(Way::ShutDown));
        }
        if lead.is_some_and(observed::was_shut_down) {
            let was_asked = self.asked.is_some();
            return Ok(Some(if was_asked { Way::ShutDown } else { Way::Ending }));
        }
        // The lead has not started, or its container waits to be started again: there is no broker to shut down.
        let Some((lead, start)) = lead.and_then(|lead| Some((lead, observed::started(lead)?))) else {
            return self.end_unless_begun(&snapshot, lead).await;
        };
        self.has_ended = !observed::is_running(lead);
        if self.has_ended {
            return Ok(None);
        }
        self.asked = Some(start);
        // The agent's command does not wait for the end of the instance.
        match connect::report(target, lead, &["stop"]).await {
            Ok((0, _)) => Ok(Some(Way::ShutDown)),
            Ok((code, output)) => {
                let output = String::from_utf8_lossy(&output).trim().to_owned();
                self.obstacle = if output.is_empty() {
                    format!("the lead's agent ended with {code}")
                } else {
                    output
                };
                self.when_not_shut_down(&snapshot, lead, code).await
            }
            // No other attempt would succeed: a permission is missing, or the agent does not answer.
            Err(failure @ (Failure::NoExec(_) | Failure::SilentAgent(_))) => Err(failure),
            Err(failure) => {
                self.obstacle = failure.to_string();
                Ok(None)
            }
        }
    }

    /// Decides what to do if the agent could not shut the instance down. Deletes the MiniCluster if no instance has run
    /// yet. `code`: the exit code of the agent's command `stop`. None: try again.
    async fn when_not_shut_down(
        &mut self,
        snapshot: &Snapshot,
        lead: &Pod,
        code: u8,
    ) -> Result<Option<Way>, Failure> {
        // The agent prints its status even if the broker does not answer. Its exit code is then 1.
        let answer = match connect::report(self.target, lead, &["status", "--json"]).await {
            Err(failure @ Failure::SilentAgent(_)) => return Err(failure),
            answer => answer.ok(),
        };
        let status: Option<Value> = answer.and_then(|(_, output)| serde_json::from_slice(&output).ok());
        let Some(status) = status else { return Ok(None) };
        if code != KILLED {
            // The lead has refused, so if it ends now, that is not because of this command.
            self.asked = None;
        }
        match (status.get("state"), status["snippet"].as_str()) {
            // The instance does not run yet: delete the MiniCluster.
            (Some(Value::String(state)), _) if BEFORE_RUN.contains(&state.as_str()) => {}
            (Some(Value::Null), _) if status["has_ended"] == true => return Ok(Some(Way::Ending)),
            // For an older agent without `has_ended`.
            (Some(Value::Null), Some(POST_SNIPPET)) => return Ok(Some(Way::Ending)),
            // The broker does not answer, so it is unknown what runs: try again.
            (Some(Value::Null), _) if status["has_broker"] == true => return Ok(None),
            // The instance was up. Its broker has ended: try again.
            (Some(Value::Null), None) if snapshot.has_been_up() => return Ok(None),
            // There is no broker yet. (An older agent without `has_broker` answers the same for a silent broker.)
            (Some(Value::Null), _) => {}
            _ => return Ok(None),
        }
        self.end_unless_begun(snapshot, Some(lead)).await
    }

    /// Deletes the MiniCluster, or suspends it if it is kept and can be suspended, unless its program may have run: its
    /// status and its logs would be lost. None: try again.
    async fn end_unless_begun(
        &mut self,
        snapshot: &Snapshot,
        lead: Option<&Pod>,
    ) -> Result<Option<Way>, Failure> {
        if may_have_run(snapshot, lead) {
            if snapshot.is_true(ConditionType::Suspended) {
                return Err(self.suspended("it is suspended, so nothing runs"));
            }
            self.obstacle =
                "its program may have run before, and its instance is not up again yet".to_owned();
            return Ok(None);
        }
        if self.has_unreported_lead(snapshot).await? {
            self.obstacle = "its lead runs, but the operator has not reported the Job yet".to_owned();
            return Ok(None);
        }
        // A queue could start a kept MiniCluster later, when nobody follows it.
        if self.keep
            && let Some(cluster) = &snapshot.cluster
            && (self.is_suspending || why_not_suspended(self.target, cluster).await?.is_none())
        {
            self.is_suspending = true;
            let spec = json!({ "suspend": true });
            change(self.target, self.name, self.uid.as_deref(), spec, "stop").await?;
            return Ok(Some(Way::Kept));
        }
        self.is_deleting = true;
        let way = at_once(self.target, self.name, self.uid.as_deref()).await?;
        Ok(Some(way))
    }

    /// The failure to stop a suspended MiniCluster.
    fn suspended(&self, why: &str) -> Failure {
        let outcome = "Nothing was deleted, since its program may have run before: ";
        not_stopped(self.target, self.name, why, outcome)
    }

    /// Whether the lead has started, although the status does not name its Job yet.
    async fn has_unreported_lead(&self, snapshot: &Snapshot) -> Result<bool, Failure> {
        if snapshot.status().is_some_and(|status| status.job_uid.is_some()) {
            return Ok(false);
        }
        let cluster = snapshot.cluster.as_ref();
        let Some(created) = cluster.and_then(|cluster| cluster.metadata.creation_timestamp.as_ref()) else {
            return Ok(false);
        };
        let mut pods = self.target.pods_named_of_index(self.name, 0).await?;
        // Older pods are those of another MiniCluster with the same name.
        pods.retain(|pod| observed::created(pod) >= Some(created.0));
        Ok(observed::lead_of(pods.iter()).is_some_and(|lead| observed::started(lead).is_some()))
    }
}

/// Whether the program may have run in an earlier start: in an earlier Job, pod or container of the lead.
fn may_have_run(snapshot: &Snapshot, lead: Option<&Pod>) -> bool {
    let status = snapshot.status();
    if status.is_some_and(may_have_run_before_restart) {
        return true;
    }
    match lead {
        // Of several ends of the container, only the last is known. But if the instance has been up, a program may have run.
        Some(lead) if observed::was_restarted(lead) => {
            snapshot.has_been_up()
                || !observed::has_failed_before_program(lead)
                || (observed::replaces(lead) && status.is_some_and(previous_status::has_begun))
        }
        Some(lead) if observed::started(lead).is_some() && !observed::replaces(lead) => false,
        // An earlier pod of the lead may have run.
        _ => status.is_some_and(previous_status::has_begun),
    }
}

/// Whether the program may have run before one of the restarts that the status counts.
fn may_have_run_before_restart(status: &MiniClusterStatus) -> bool {
    let is_after_start =
        |reason: &str| Reason::parse(reason).is_some_and(|reason| RESTARTED_AFTER_START.contains(&reason));
    // The pod shows the restarts of its container. Nothing is known of those of earlier pods, or of restarts that the
    // status does not list any more.
    let shown = usize::try_from(status.container_restarts).unwrap_or(0) + status.restarts.len();
    usize::try_from(status.restart_count).is_ok_and(|count| count > shown)
        || status
            .restarts
            .iter()
            .any(|restart| is_after_start(&restart.reason))
}

/// The MiniCluster. None: the one with this uid is gone, and another one may have the name now. Without a uid, it may
/// never have existed: then it is an error if there is none.
pub async fn find(target: &Target, name: &str, uid: Option<&str>) -> Result<Option<MiniCluster>, Failure> {
    match target.clusters().get(name).await {
        Err(error) if failure::is_code(&error, 404) && uid.is_some() => Ok(None),
        found => {
            let cluster = found.map_err(Failure::call(format!("get MiniCluster {name}")))?;
            let is_wanted = uid.is_none_or(|uid| cluster.metadata.uid.as_deref() == Some(uid));
            Ok(is_wanted.then_some(cluster))
        }
    }
}

/// Deletes the MiniCluster without waiting; its pods get SIGTERM and their grace period. If the user may not delete it,
/// suspends it, or asks the operator to delete it if it has finished. `uid`: delete only the MiniCluster with this uid,
/// which the caller has seen.
pub async fn at_once(target: &Target, name: &str, uid: Option<&str>) -> Result<Way, Failure> {
    let parameters = DeleteParams {
        preconditions: uid.map(|uid| Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: None,
        }),
        ..DeleteParams::background()
    };
    match target.clusters().delete(name, &parameters).await {
        Ok(_) => Ok(Way::Deleted),
        // It is gone: an attempt whose answer was lost may have deleted it. Without a uid, it may never have existed.
        Err(error) if failure::is_code(&error, 404) && uid.is_some() => Ok(Way::Deleted),
        // 403: no permission. 409: a conflict, for example with the uid.
        Err(error) if failure::is_code(&error, 403) || failure::is_code(&error, 409) => {
            let Some(cluster) = find(target, name, uid).await? else {
                return Ok(Way::HadEnded);
            };
            if failure::is_code(&error, 409) {
                return Err(Failure::call(format!("delete MiniCluster {name}"))(error));
            }
            if observed::is_finished(cluster.status.as_ref()) {
                // The operator deletes it.
                let cleanup = json!({ "cleanup": true });
                return change(target, name, uid, cleanup, "clean up")
                    .await
                    .map(|_| Way::Deleted);
            }
            if let Some(why) = why_not_suspended(target, &cluster).await? {
                return Err(Failure::call(format!("delete MiniCluster {name}, {why}"))(error));
            }
            change(target, name, uid, json!({ "suspend": true }), "stop")
                .await
                .map(|_| Way::Suspended)
        }
        Err(error) => Err(Failure::call(format!("delete MiniCluster {name}"))(error)),
    }
}

/// Why `spec.suspend` would not stop the MiniCluster. None: it would.
async fn why_not_suspended(target: &Target, cluster: &MiniCluster) -> Result<Option<&'static str>, Failure> {
    if is_queued(cluster) || target.is_job_queued(&cluster.name_any()).await? {
        return Ok(Some("which only its queue can suspend"));
    }
    // The operator applies `spec.suspend` only when it changes.
    if was_resumed_by_others(cluster) {
        return Ok(Some(
            "whose `spec.suspend` is true already, although its Job runs (suspend the Job)",
        ));
    }
    // If there is no Job yet, none is created before somebody sets `suspend` back.
    let status = cluster.status.as_ref().filter(|status| status.job_uid.is_some());
    let is_invalid = status.and_then(|status| status.reason.as_deref()) == Some(Reason::Invalid.name());
    Ok(is_invalid.then_some("whose Job follows `spec.suspend` only with a valid spec"))
}

/// Whether the MiniCluster is in a queue, where `spec.suspend` has no effect.
fn is_queued(cluster: &MiniCluster) -> bool {
    let labels = cluster.metadata.labels.iter().chain([&cluster.spec.job_labels]);
    labels.into_iter().any(|labels| labels.contains_key(QUEUE_NAME))
}

/// Whether somebody has resumed the Job of a suspended MiniCluster.
fn was_resumed_by_others(cluster: &MiniCluster) -> bool {
    let Some(status) = &cluster.status else {
        return false;
    };
    let is_suspended = previous_status::is_true(status, ConditionType::Suspended);
    cluster.spec.suspend == Some(true)
        && !is_to_be_suspended(cluster)
        && status.job_uid.is_some()
        && !is_suspended
}

/// Whether `spec.suspend` is true, and the status is older than the spec: the operator may be about to suspend the Job.
fn is_to_be_suspended(cluster: &MiniCluster) -> bool {
    let observed = cluster
        .status
        .as_ref()
        .and_then(|status| status.observed_generation);
    cluster.spec.suspend == Some(true) && observed < cluster.metadata.generation
}

/// Changes the MiniCluster's spec by a merge patch; returns the changed MiniCluster. `uid`: the API server rejects the
/// patch if the MiniCluster has another uid. `verb` completes "failed to …".
pub async fn change(
    target: &Target,
    name: &str,
    uid: Option<&str>,
    spec: Value,
    verb: &str,
) -> Result<MiniCluster, Failure> {
    let patched = patch(target, name, uid, spec).await;
    patched.map_err(Failure::call(format!("{verb} MiniCluster {name}")))
}

/// As `change`, with the error of the call.
pub async fn patch(
    target: &Target,
    name: &str,
    uid: Option<&str>,
    spec: Value,
) -> Result<MiniCluster, kube::Error> {
    let mut change = json!({ "spec": spec });
    if let Some(uid) = uid {
        change["metadata"] = json!({ "uid": uid });
    }
    let (clusters, parameters) = (target.clusters(), PatchParams::default());
    clusters.patch(name, &parameters, &Patch::Merge(change)).await
}

#[cfg(test)]
mod tests {
    use flux_shared::exit::Category;
    use flux_shared::names::{INDEX_DISRUPTIONS, INDEX_FAILURES};
    use flux_shared::termination::{Ender, Termination};

    use super::*;
    use crate::testing::{Answer, answering, failed, in_other};

    const EXEC_IN_LEAD: &str = "/pods/mc-0-x/exec";

    fn cluster(uid: &str) -> Value {
        json!({ "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster",
            "metadata": { "name": "mc", "uid": uid }, "spec": { "size": 1, "containers": [{ "image": "a" }] },
            "status": { "jobUid": "job", "phase": "Running" } })
    }

    /// A pod of index 0 of this Job, which runs.
    fn lead(name: &str, job: &str) -> Value {
        json!({ "metadata": { "name": name, "uid": "p", "labels": {
                "batch.kubernetes.io/job-completion-index": "0", "batch.kubernetes.io/controller-uid": job } },
            "spec": { "containers": [{ "name": "main" }] },
            "status": { "containerStatuses": [{ "name": "main", "image": "", "imageID": "", "ready": true,
                "restartCount": 0, "state": { "running": {} } }] } })
    }

    /// Stops `mc` with these pods. `exec`: the code of the answer to a request to run a program in a pod.
    async fn stopped(pods: &[Value], exec: u16, uid: Option<&str>) -> (Result<Way, Failure>, Vec<String>) {
        stopped_of(cluster("u"), pods, exec, uid).await
    }

    async fn stopped_of(
        cluster: Value,
        pods: &[Value],
        exec: u16,
        uid: Option<&str>,
    ) -> (Result<Way, Failure>, Vec<String>) {
        let pods = json!({ "metadata": {}, "items": pods });
        let (target, requests) = in_other(answering(move |request| {
            if request.contains("/exec") {
                failed(exec)
            } else if request.contains("/pods?") {
                Answer::Json(200, pods.clone())
            } else {
                Answer::Json(200, cluster.clone())
            }
        }));
        let way = in_order(&target, "mc", uid, false).await;
        let requests = requests.lock().unwrap().clone();
        (way, requests)
    }

    /// `cluster("u")` with this status.
    fn cluster_with(status: Value) -> Value {
        let mut cluster = cluster("u");
        cluster["status"] = status;
        cluster
    }

    fn count(requests: &[String], part: &str) -> usize {
        requests.iter().filter(|request| request.contains(part)).count()
    }

    #[tokio::test(start_paused = true)]
    async fn stop_deletes_nothing_when_exec_fails() {
        for code in [403, 404, 500, 503] {
            let (way, requests) = stopped(&[lead("mc-0-x", "job")], code, None).await;
            let failure = way.unwrap_err().to_string();
            if code == 403 {
                assert!(
                    failure.ends_with("failed to run a program in pod mc-0-x: refused"),
                    "{failure}"
                );
            } else {
                assert!(failure.contains("Nothing was deleted"), "{failure}");
                assert!(failure.contains("stop --now mc -n other`"), "{failure}");
                assert_eq!(
                    count(&requests, EXEC_IN_LEAD),
                    6,
                    "{code}: it is tried again: {requests:?}"
                );
            }
            assert_eq!(count(&requests, "DELETE"), 0, "{code}: {requests:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn stop_deletes_what_does_not_run_yet() {
        // The pod is that of another MiniCluster of this name.
        let (way, requests) = stopped(&[lead("mc-0-old", "old")], 500, None).await;
        assert_eq!(way.unwrap(), Way::Deleted);
        assert_eq!(count(&requests, "/exec"), 0, "{requests:?}");
    }

    /// A lead whose container ended with this termination, and waits to be started again.
    fn waiting_lead(is_shut_down: bool) -> Value {
        let termination = Termination {
            shut_down: is_shut_down,
            ..Termination::new(Ender::Program, 143)
        };
        lead_after(json!({ "exitCode": 143, "message": termination.encode() }))
    }

    /// A lead whose container has ended like this, and waits to be started again.
    fn lead_after(end: Value) -> Value {
        let mut lead = lead("mc-0-x", "job");
        let status = &mut lead["status"]["containerStatuses"][0];
        status["state"] = json!({ "waiting": { "reason": "CrashLoopBackOff" } });
        status["lastState"] = json!({ "terminated": end });
        lead
    }

    /// A lead whose container has ended with this termination for the third time, and waits to be started again.
    fn failing_lead(termination: &Termination) -> Value {
        let code = termination.code;
        let mut lead = lead_after(json!({ "exitCode": code, "message": termination.encode() }));
        lead["status"]["containerStatuses"][0]["restartCount"] = 2.into();
        lead
    }

    fn agents_failure(category: Category) -> Termination {
        Termination {
            category: Some(category),
            ..Termination::new(Ender::Agent, category.code())
        }
    }

    /// With `restartPolicy: OnFailure`, the container of a program that was shut down waits to be started again.
    #[tokio::test(start_paused = true)]
    async fn second_stop_deletes_nothing_after_a_shutdown() {
        let (way, requests) = stopped(&[waiting_lead(true)], 500, None).await;
        assert_eq!(way.unwrap(), Way::Ending);
        assert_eq!(count(&requests, "DELETE"), 0, "{requests:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn stop_deletes_nothing_between_two_starts() {
        let restarted = cluster_with(json!({ "phase": "Starting", "restartCount": 1 }));
        let listed = json!([restart("NotStarted"), restart("LeadLost"), restart("NotStarted")]);
        let lost = cluster_with(json!({ "restartCount": 3, "restarts": listed }));
        let running = json!({ "running": "2026-01-01T00:00:00Z" });
        let without_lead = cluster_with(json!({ "jobUid": "job", "timeline": running }));
        let ready = json!({ "ready": "2026-01-01T00:00:00Z" });
        let was_up = cluster_with(json!({ "jobUid": "job", "timeline": ready }));
        let after_program = Termination {
            program_code: Some(0),
            ..Termination::new(Ender::Snippet, 3)
        };
        for (cluster, pods) in [
            (cluster("u"), vec![waiting_lead(false)]),
            (cluster("u"), vec![failing_lead(&after_program)]),
            (
                cluster("u"),
                vec![failing_lead(&agents_failure(Category::LeadLost))],
            ),
            (
                cluster("u"),
                vec![failing_lead(&agents_failure(Category::Internal))],
            ),
            // The kernel has killed it.
            (
                cluster("u"),
                vec![lead_after(json!({ "exitCode": 137, "reason": "OOMKilled" }))],
            ),
            (
                was_up,
                vec![failing_lead(&agents_failure(Category::BrokerFailed))],
            ),
            (restarted, vec![]),
            (lost, vec![]),
            (without_lead, vec![]),
        ] {
            let (way, requests) = stopped_of(cluster, &pods, 500, None).await;
            let failure = way.unwrap_err().to_string();
            assert!(failure.contains("its program may have run before"), "{failure}");
            assert!(failure.contains("stop --now mc -n other`"), "{failure}");
            assert_eq!(count(&requests, "DELETE"), 0, "{requests:?}");
        }
    }

    fn restart(reason: &str) -> Value {
        json!({ "time": "", "reason": reason, "message": "" })
    }

    #[tokio::test(start_paused = true)]
    async fn stop_deletes_what_was_restarted_before_its_program_ran() {
        let running = json!({ "running": "2026-01-01T00:00:00Z" });
        let started = cluster_with(json!({ "jobUid": "job", "timeline": running, "restartCount": 2,
            "containerRestarts": 2 }));
        let listed = json!([restart("NotStarted"), restart("CreateContainerError")]);
        let replaced = cluster_with(json!({ "restartCount": 2, "restarts": listed }));
        let not_run = json!({ "exitCode": 128, "reason": "StartError", "message": "no such directory" });
        for (cluster, pods) in [
            (
                &started,
                vec![failing_lead(&agents_failure(Category::ViewMissing))],
            ),
            (
                &started,
                vec![failing_lead(&agents_failure(Category::BrokerFailed))],
            ),
            (&started, vec![failing_lead(&Termination::new(Ender::Snippet, 3))]),
            (&started, vec![lead_after(not_run)]),
            (&replaced, vec![]),
        ] {
            let (way, requests) = stopped_of(cluster.clone(), &pods, 500, None).await;
            assert_eq!(way.unwrap(), Way::Deleted, "{pods:?}");
            assert_eq!(count(&requests, "DELETE"), 1, "{requests:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn stop_of_a_suspended_job_says_that_nothing_runs() {
        for has_begun in [false, true] {
            let restarts = if has_begun {
                vec![restart("Suspended")]
            } else {
                vec![]
            };
            let suspended = json!({ "type": "Suspended", "status": "True", "lastTransitionTime": "", "reason": "",
                "message": "" });
            let cluster = cluster_with(
                json!({ "jobUid": "job", "restartCount": restarts.len(), "restarts": restarts,
                "conditions": [suspended] }),
            );
            let (way, requests) = stopped_of(cluster, &[], 500, None).await;
            if has_begun {
                let failure = way.unwrap_err().to_string();
                assert!(failure.contains("it is suspended, so nothing runs"), "{failure}");
                assert!(
                    failure.contains("stop --now mc -n other` deletes it"),
                    "{failure}"
                );
                assert_eq!(
                    count(&requests, "/pods?"),
                    1,
                    "it is not tried again: {requests:?}"
                );
            } else {
                assert_eq!(way.unwrap(), Way::Deleted);
            }
            assert_eq!(
                count(&requests, "DELETE"),
                usize::from(!has_begun),
                "{requests:?}"
            );
        }
    }

    /// The pods of a suspended Job still end, or the operator has not suspended it yet.
    #[tokio::test(start_paused = true)]
    async fn stop_while_a_suspended_lead_ends_asks_nothing() {
        for (is_reported, is_terminating, expected, attempts) in [
            (true, true, "it is suspended, and its pods are being stopped", 1),
            (
                true,
                false,
                "its status says that it is suspended, but its lead runs",
                6,
            ),
            (false, true, "the operator has not suspended its Job yet", 6),
        ] {
            let suspended = json!({ "type": "Suspended", "status": "True", "lastTransitionTime": "", "reason": "",
                "message": "" });
            let conditions: &[Value] = if is_reported { &[suspended] } else { &[] };
            let mut cluster = cluster_with(json!({ "jobUid": "job", "conditions": conditions,
                "observedGeneration": 1 + i32::from(is_reported) }));
            cluster["metadata"]["generation"] = 2.into();
            cluster["spec"]["suspend"] = true.into();
            let mut lead = lead("mc-0-x", "job");
            if is_terminating {
                lead["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            }
            let (way, requests) = stopped_of(cluster, &[lead], 500, None).await;
            let failure = way.unwrap_err().to_string();
            assert!(
                failure.contains(&format!("{expected}. Nothing was deleted")),
                "{failure}"
            );
            assert_eq!(
                (
                    count(&requests, "/exec"),
                    count(&requests, "DELETE"),
                    count(&requests, "/pods?")
                ),
                (0, 0, attempts),
                "{requests:?}"
            );
        }
    }

    /// As in a pod whose volume is stuck.
    #[tokio::test(start_paused = true)]
    async fn stop_ends_when_the_agent_does_not_answer() {
        let (target, requests) = in_other(answering(|request| {
            if request.contains("/exec") {
                Answer::Never
            } else if request.contains("/pods?") {
                Answer::Json(200, json!({ "metadata": {}, "items": [lead("mc-0-x", "job")] }))
            } else {
                Answer::Json(200, cluster("u"))
            }
        }));
        let stopping = tokio::time::timeout(Duration::from_secs(20), in_order(&target, "mc", None, false));
        let failure = stopping.await.expect("it ends in time").unwrap_err().to_string();
        let expected = "failed to stop mc: the lead's agent did not answer within 15 s; is a volume of the pod \
                        stuck? It may shut down all the same. If not, ";
        assert!(failure.starts_with(expected), "{failure}");
        assert!(
            failure.contains("stop --now mc -n other` deletes it"),
            "{failure}"
        );
        let requests = requests.lock().unwrap();
        assert_eq!(
            (count(&requests, EXEC_IN_LEAD), count(&requests, "DELETE")),
            (1, 0),
            "{requests:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn stop_spares_a_lead_before_the_status_names_its_job() {
        for (pod_created, expected) in [
            ("2026-01-01T00:00:05Z", None),
            ("2025-01-01T00:00:00Z", Some(Way::Deleted)),
        ] {
            let mut cluster = cluster("u");
            cluster["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
            cluster["status"] = json!({});
            let mut lead = lead("mc-0-x", "job");
            lead["metadata"]["creationTimestamp"] = pod_created.into();
            let (way, requests) = stopped_of(cluster, &[lead], 500, None).await;
            assert_eq!(
                count(&requests, "DELETE"),
                usize::from(expected.is_some()),
                "{requests:?}"
            );
            assert_eq!(way.ok(), expected);
        }
    }

    #[test]
    fn program_may_have_run_in_the_pod_that_the_lead_replaces() {
        let running = json!({ "running": "2026-01-01T00:00:00Z" });
        let started = cluster_with(json!({ "jobUid": "job", "timeline": running }));
        let snapshot = Snapshot {
            cluster: Some(serde_json::from_value(started).unwrap()),
            ..Snapshot::default()
        };
        for (annotation, expected) in [
            (INDEX_FAILURES.1, true),
            (INDEX_DISRUPTIONS.1, true),
            ("other", false),
        ] {
            let mut lead = lead("mc-0-x", "job");
            lead["metadata"]["annotations"] = json!({ annotation: "1" });
            let lead: Pod = serde_json::from_value(lead).unwrap();
            assert_eq!(may_have_run(&snapshot, Some(&lead)), expected, "{annotation}");
        }
    }

    /// The first attempt finds that the container has ended, and the others that it waits to be started again.
    #[tokio::test(start_paused = true)]
    async fn stop_of_a_job_that_restarts_does_not_report_its_end() {
        let mut lists = 0;
        let (target, _) = answering(move |request| {
            if !request.contains("/pods?") {
                return Answer::Json(200, cluster("u"));
            }
            lists += 1;
            let mut lead = waiting_lead(false);
            if lists == 1 {
                let status = &mut lead["status"]["containerStatuses"][0];
                status["state"] = json!({ "terminated": { "exitCode": 1 } });
            }
            Answer::Json(200, json!({ "metadata": {}, "items": [lead] }))
        });
        let failure = in_order(&target, "mc", None, false)
            .await
            .unwrap_err()
            .to_string();
        assert!(failure.contains("its program may have run before"), "{failure}");
    }

    /// Stops the MiniCluster at once, without the right to delete it. Returns the number of patches, too.
    async fn stopped_without_delete_right(cluster: Value) -> (Result<Way, Failure>, usize) {
        let (target, requests) = answering(move |request| {
            if request.starts_with("DELETE") {
                failed(403)
            } else if request.contains("/jobs/mc") {
                failed(404)
            } else {
                Answer::Json(200, cluster.clone())
            }
        });
        let way = at_once(&target, "mc", None).await;
        (way, count(&requests.lock().unwrap(), "PATCH"))
    }

    #[tokio::test]
    async fn resumed_job_is_an_error_of_stop_without_delete_right() {
        let suspended = |condition: &str, generation: i64| {
            let mut cluster = cluster("u");
            cluster["metadata"]["generation"] = 2.into();
            cluster["spec"]["suspend"] = true.into();
            cluster["status"]["observedGeneration"] = generation.into();
            cluster["status"]["conditions"] = json!([{ "type": "Suspended", "status": condition,
                "lastTransitionTime": "", "reason": "", "message": "" }]);
            cluster
        };
        let mut without_job = suspended("False", 2);
        without_job["status"]["jobUid"] = Value::Null;
        let (resumed, patches) = stopped_without_delete_right(suspended("False", 2)).await;
        let failure = resumed.unwrap_err().to_string();
        assert!(failure.contains("although its Job runs"), "{failure}");
        assert_eq!(patches, 0);
        // The last one is a spec that the operator has not read yet.
        for cluster in [suspended("True", 2), without_job, suspended("False", 1)] {
            let (way, patches) = stopped_without_delete_right(cluster).await;
            assert_eq!((way.unwrap(), patches), (Way::Suspended, 1));
        }
    }

    #[tokio::test]
    async fn invalid_minicluster_is_not_suspended_without_delete_right() {
        let mut cluster = cluster("u");
        cluster["status"]["reason"] = "Invalid".into();
        let (way, patches) = stopped_without_delete_right(cluster).await;
        let failure = way.unwrap_err().to_string();
        assert!(failure.contains("only with a valid spec"), "{failure}");
        assert_eq!(patches, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn stop_spares_another_minicluster_of_the_name() {
        let (way, requests) = stopped(&[], 500, Some("mine")).await;
        assert_eq!(way.unwrap(), Way::HadEnded);
        assert_eq!(count(&requests, "DELETE"), 0, "{requests:?}");
        let (target, _) = answering(|request| {
            if request.starts_with("DELETE") {
                failed(409)
            } else {
                Answer::Json(200, cluster("other"))
            }
        });
        assert_eq!(at_once(&target, "mc", Some("mine")).await.unwrap(), Way::HadEnded);
    }

    #[tokio::test]
    async fn minicluster_that_is_gone_has_ended_without_delete_right() {
        let answer = |request: &str| failed(if request.starts_with("DELETE") { 403 } else { 404 });
        let (target, _) = answering(answer);
        assert_eq!(at_once(&target, "mc", Some("mine")).await.unwrap(), Way::HadEnded);
        at_once(&target, "mistyped", None).await.unwrap_err();
        let (target, _) = answering(|_| failed(404));
        at_once(&target, "mistyped", None).await.unwrap_err();
    }

    /// The answer to the first deletion is lost, or to each.
    #[tokio::test(start_paused = true)]
    async fn stop_whose_answer_is_lost_has_deleted() {
        for lost in [1, ATTEMPTS] {
            let mut deletions = 0;
            let (target, _) = answering(move |request| {
                deletions += u32::from(request.starts_with("DELETE"));
                if request.starts_with("DELETE") && deletions <= lost {
                    failed(503)
                } else if deletions > 0 && lost == 1 {
                    failed(404)
                } else if request.contains("/pods?") {
                    Answer::Json(200, json!({ "metadata": {}, "items": [] }))
                } else {
                    Answer::Json(200, cluster("u"))
                }
            });
            let way = in_order(&target, "mc", None, false).await;
            if lost == 1 {
                assert_eq!(way.unwrap(), Way::Deleted);
                assert_eq!(at_once(&target, "mc", Some("u")).await.unwrap(), Way::Deleted);
            } else {
                let failure = way.unwrap_err().to_string();
                assert!(failure.contains("It may be deleted"), "{failure}");
            }
        }
    }

    #[tokio::test]
    async fn job_in_a_default_queue_is_not_suspended_without_delete_right() {
        let way = async |labels: Value| {
            let (target, requests) = answering(move |request| {
                if request.starts_with("DELETE") {
                    failed(403)
                } else if request.contains("/jobs/mc") {
                    Answer::Json(200, json!({ "metadata": { "name": "mc", "labels": labels } }))
                } else {
                    Answer::Json(200, cluster("u"))
                }
            });
            let way = at_once(&target, "mc", None).await;
            let patches = count(&requests.lock().unwrap(), "PATCH");
            (way, patches)
        };
        let (way_in_queue, patches) = way(json!({ QUEUE_NAME: "default" })).await;
        let failure = way_in_queue.unwrap_err().to_string();
        assert!(failure.contains("only its queue can suspend"), "{failure}");
        assert_eq!(patches, 0);
        let (way_without_queue, patches) = way(json!({})).await;
        assert_eq!((way_without_queue.unwrap(), patches), (Way::Suspended, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn kept_minicluster_is_suspended_unless_it_is_in_a_queue() {
        for labels in [json!({}), json!({ QUEUE_NAME: "default" })] {
            let is_queued = labels.get(QUEUE_NAME).is_some();
            let (target, requests) = answering(move |request| {
                if request.contains("/jobs/mc") {
                    Answer::Json(200, json!({ "metadata": { "name": "mc", "labels": labels } }))
                } else if request.contains("/pods?") {
                    Answer::Json(200, json!({ "metadata": {}, "items": [] }))
                } else {
                    Answer::Json(200, cluster("u"))
                }
            });
            let way = in_order(&target, "mc", Some("u"), true).await.unwrap();
            let requests = requests.lock().unwrap();
            let changes = (count(&requests, "PATCH"), count(&requests, "DELETE"));
            let expected = if is_queued {
                (Way::Deleted, (0, 1))
            } else {
                (Way::Kept, (1, 0))
            };
            assert_eq!((way, changes), expected, "{requests:?}");
        }
    }

    /// The answer to the first patch is lost, and the operator has read the spec before the Job is suspended.
    #[tokio::test(start_paused = true)]
    async fn kept_minicluster_is_not_deleted_when_an_answer_is_lost() {
        let mut patches = 0;
        let (target, requests) = answering(move |request| {
            if request.contains("/jobs/mc") {
                return failed(404);
            }
            if request.contains("/pods?") {
                return Answer::Json(200, json!({ "metadata": {}, "items": [] }));
            }
            patches += u32::from(request.starts_with("PATCH"));
            if request.starts_with("PATCH") && patches == 1 {
                return failed(503);
            }
            let mut cluster = cluster("u");
            cluster["metadata"]["generation"] = (1 + patches.min(1)).into();
            cluster["status"]["observedGeneration"] = cluster["metadata"]["generation"].clone();
            cluster["spec"]["suspend"] = (patches > 0).into();
            Answer::Json(200, cluster)
        });
        let way = in_order(&target, "mc", Some("u"), true).await.unwrap();
        let requests = requests.lock().unwrap();
        assert_eq!((way, count(&requests, "DELETE")), (Way::Kept, 0), "{requests:?}");
    }

    #[tokio::test]
    async fn finished_minicluster_is_cleaned_up_without_delete_right() {
        let mut finished = cluster("u");
        finished["status"]["phase"] = "Completed".into();
        // Also in a queue.
        finished["metadata"]["labels"] = json!({ QUEUE_NAME: "q" });
        let (target, requests) = answering(move |request| {
            if request.starts_with("DELETE") {
                failed(403)
            } else {
                Answer::Json(200, finished.clone())
            }
        });
        assert_eq!(at_once(&target, "mc", None).await.unwrap(), Way::Deleted);
        assert_eq!(count(&requests.lock().unwrap(), "PATCH"), 1);
    }
}
