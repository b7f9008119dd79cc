//! Follows a MiniCluster to its end: shows the progress of its start, then what its job prints. Reconnects after
//! lost connections.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::time::Duration;

use flux_operator_client::retry::until_done;
use flux_operator_core::vocabulary::ConditionType;
use flux_shared::causes::causes;
use flux_shared::crd::v1alpha2::{MiniCluster, MiniClusterStatus};
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::watcher::{self, Event};
use serde_json::json;

use crate::failure::{FAILED, Failure, UNREAD};
use crate::logs::{self, Resume};
use crate::observed::{self, ContainerStart, Snapshot, code_of};
use crate::outages::{Outage, Outages, Watched, refusal_text};
use crate::progress;
use crate::screen::{self, Screen};
use crate::signals::Interrupts;
use crate::stop::{self, Way};
use crate::target::{Access, Changes, Target};

use super::{MOST_ATTEMPTS, RETRY_PAUSE, retry};

/// `ttlSecondsAfterFinished` of a MiniCluster whose `run` got SIGTERM. `run` has it deleted earlier, unless `run` is killed.
const TIME_TO_LIVE: u32 = 300;
/// Longest time that setting it may delay the messages of a stop.
const EXPIRY_TIMEOUT: Duration = Duration::from_secs(10);
/// Exit code after an interruption, as in shells: 128 + SIGINT.
const INTERRUPTED: u8 = 130;

/// How `kubectl minicluster run` ended.
#[derive(Debug, Clone, PartialEq)]
pub enum RunEnd {
    Finished {
        exit_code: Option<i32>,
        is_complete: bool,
        reason: String,
        message: String,
    },
    /// The MiniCluster was deleted. `by_run`: because the user interrupted `run`.
    Deleted { by_run: bool },
    /// The MiniCluster was deleted while no events came, so its last state was not seen.
    Unseen,
    /// The user interrupted a second time, or the MiniCluster was suspended, because the user may not delete it or because
    /// of `--keep`. None: it is unknown what became of the MiniCluster.
    Interrupted(Option<Way>),
    /// The operator cannot use the MiniCluster's spec.
    Invalid(String),
    /// Standard output was closed, so `run` has stopped the job, or failed to.
    Unread,
}

impl RunEnd {
    pub fn code(&self) -> u8 {
        match self {
            RunEnd::Finished {
                exit_code,
                is_complete,
                ..
            } => code_of(*exit_code, *is_complete),
            RunEnd::Deleted { by_run: true } | RunEnd::Interrupted(_) => INTERRUPTED,
            RunEnd::Deleted { by_run: false } | RunEnd::Unseen | RunEnd::Invalid(_) => FAILED,
            RunEnd::Unread => UNREAD,
        }
    }

    /// The message for the user. None: there is nothing to report. `access`: as in [`Target`].
    pub fn text(&self, access: &Access, name: &str) -> Option<String> {
        match self {
            RunEnd::Finished {
                is_complete: true, ..
            } => None,
            RunEnd::Finished { reason, message, .. } => Some(format!("{name} failed ({reason}): {message}")),
            RunEnd::Deleted { by_run: true } => Some(format!("{name} was stopped")),
            RunEnd::Deleted { by_run: false } => Some(format!(
                "{name} was deleted before its job had ended, not by this command"
            )),
            RunEnd::Unseen => Some(format!(
                "{name} was deleted, not by this command, while no events came from the API server: how its job ended \
                 is unknown"
            )),
            // What `run --keep` prints about a MiniCluster that it keeps.
            RunEnd::Interrupted(Some(Way::Kept)) => Some(format!(
                "kept {name}: {}, {}",
                access.command("why", name),
                access.command("stop --now", name)
            )),
            RunEnd::Interrupted(Some(way)) => Some(way.text(name)),
            RunEnd::Interrupted(None) => {
                Some(format!("{name} may still run: {}", access.command("stop", name)))
            }
            RunEnd::Unread => None,
            RunEnd::Invalid(message) => Some(format!("{name} cannot run: {message}")),
        }
    }
}

type LogPrint<'a> = Pin<Box<dyn Future<Output = PrintedLog> + 'a>>;
type Stopping<'a> = Pin<Box<dyn Future<Output = Result<Way, Failure>> + 'a>>;

/// A log that was printed, to its end or until a failure.
struct PrintedLog {
    pod_uid: String,
    resume: Resume,
    result: Result<(), Failure>,
}

/// Name and uid of the MiniCluster that this run has created.
#[derive(Debug, Clone, Copy)]
pub struct ClusterId<'a> {
    pub name: &'a str,
    pub uid: &'a str,
}

/// What is known while a MiniCluster is followed.
struct FollowState<'a> {
    target: &'a Target,
    name: &'a str,
    uid: &'a str,
    screen: &'a Screen,
    /// As in [`until_end`].
    leftover: Leftover,
    snapshot: Snapshot,
    /// The pods of a list that is not complete yet, by name.
    listed: BTreeMap<String, Pod>,
    /// Starts of the lead whose logs were printed, or are being printed.
    read: BTreeSet<ContainerStart>,
    /// The uid of the pod whose log was read last, and how far it was read.
    resume: Option<(String, Resume)>,
    /// Whether all output was printed, as far as is known.
    is_whole: bool,
    /// Whether the pods were listed after the job's end.
    has_listed: bool,
    /// Number of restarts that were printed.
    restarts: i32,
    /// How many of these restarts the kubelet made, with restartPolicy OnFailure.
    container_restarts: i32,
    outages: Outages,
    /// Number of requests to stop: by Ctrl-C, by SIGTERM, or since standard output was closed.
    interrupts: u32,
    /// Whether the MiniCluster was deleted.
    is_gone: bool,
    /// Whether the MiniCluster was deleted while no events came.
    is_end_unseen: bool,
    /// Whether the last list of MiniClusters has it.
    is_listed: bool,
    /// Standard output is closed.
    is_unread: bool,
    /// Whether it was printed how to use an instance that stays up.
    has_told_use: bool,
}

/// How following ended.
pub struct Followed {
    pub end: RunEnd,
    /// Whether all output was printed.
    pub is_whole: bool,
    /// The MiniCluster was deleted, or its own `cleanup` deletes it.
    pub is_deleted: bool,
    /// The MiniCluster's `ttlSecondsAfterFinished`.
    pub time_to_live: Option<i32>,
}

/// What becomes of a MiniCluster that is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftover {
    /// `--keep`: it stays, even if no instance has run.
    Kept,
    /// After SIGTERM, the operator deletes it some time after its end, even if this program is killed.
    Expires,
    /// As its own `cleanup` and `ttlSecondsAfterFinished` say.
    AsInSpec,
}

/// Follows the MiniCluster to its end. `is_interrupted`: Ctrl-C was pressed while it was created.
pub async fn until_end(
    target: &Target,
    id: ClusterId<'_>,
    screen: &Screen,
    interrupts: &mut Interrupts,
    is_interrupted: bool,
    leftover: Leftover,
) -> Result<Followed, Failure> {
    let (mut clusters, mut pods) = (target.watch(id.name), target.watch_pods_of(id.name));
    let api = target.pods();
    let mut state = FollowState::new(target, id, screen);
    state.leftover = leftover;
    let stopping = is_interrupted.then(|| state.begin_stop(interrupts.is_terminated));
    let end = state
        .handle_events(&mut clusters, &mut pods, interrupts, stopping, &api)
        .await?;
    let cluster = state.snapshot.cluster.as_ref();
    Ok(Followed {
        end,
        is_whole: state.is_whole,
        is_deleted: state.is_gone || cluster.is_some_and(|cluster| cluster.spec.cleanup),
        time_to_live: cluster.and_then(|cluster| cluster.spec.ttl_seconds_after_finished),
    })
}

impl<'a> FollowState<'a> {
    fn new(target: &'a Target, id: ClusterId<'a>, screen: &'a Screen) -> FollowState<'a> {
        FollowState {
            target,
            name: id.name,
            uid: id.uid,
            screen,
            leftover: Leftover::AsInSpec,
            snapshot: Snapshot::default(),
            listed: BTreeMap::new(),
            read: BTreeSet::new(),
            resume: None,
            is_whole: true,
            has_listed: false,
            restarts: 0,
            container_restarts: 0,
            outages: Outages::default(),
            interrupts: 0,
            is_gone: false,
            is_end_unseen: false,
            is_listed: false,
            is_unread: false,
            has_told_use: false,
        }
    }

    /// Handles events until the MiniCluster has ended. `stopping`: a stop that has begun.
    async fn handle_events(
        &mut self,
        clusters: &mut Changes<MiniCluster>,
        pods: &mut Changes<Pod>,
        interrupts: &mut Interrupts,
        mut stopping: Option<Stopping<'a>>,
        api: &'a Api<Pod>,
    ) -> Result<RunEnd, Failure> {
        let (target, name, uid) = (self.target, self.name, self.uid);
        let mut log: Option<LogPrint<'a>> = None;
        // How this command has stopped the MiniCluster, if it has.
        let mut way = None;
        let mut operator_deadline = Some(Box::pin(tokio::time::sleep(observed::SILENT_OPERATOR)));
        loop {
            tokio::select! {
                Some(event) = clusters.next() => self.on_cluster_event(event),
                Some(event) = pods.next() => self.on_pod_event(event),
                printed = wait(&mut log), if log.is_some() => {
                    log = None;
                    self.resume = Some((printed.pod_uid, printed.resume));
                    match printed.result {
                        Ok(()) => {}
                        Err(Failure::Unread) => {
                            self.is_unread = true;
                            // An earlier stop that has failed is tried again.
                            if stopping.is_none() && way.is_none() {
                                self.interrupts += 1;
                                self.screen.say(&format!("nobody reads the output: shutting down {name}"));
                                stopping = Some(self.stop_in_order());
                            }
                        }
                        // The rest of the log is lost, but the status has the job's result.
                        Err(failure) => self.note_missing_output(&causes(&failure)),
                    }
                }
                () = wait(&mut operator_deadline), if operator_deadline.is_some() => {
                    operator_deadline = None;
                    if self.snapshot.cluster.is_some() && self.snapshot.status().is_none() {
                        self.screen.say(&format!("{name} waits: {}", observed::NO_OPERATOR));
                    }
                }
                stopped = wait(&mut stopping), if stopping.is_some() => {
                    stopping = None;
                    match stopped {
                        Ok(done_way) => {
                            self.screen.say(&done_way.text(name));
                            way = Some(done_way);
                        }
                        // The sender of SIGTERM waits for the end of this command, and does not ask again.
                        Err(failure) if interrupts.is_terminated => return Err(failure),
                        Err(failure) => {
                            self.screen.say(&causes(&failure));
                            // Standard output is closed, so following the MiniCluster any longer is of no use.
                            if self.is_unread {
                                return Ok(RunEnd::Unread);
                            }
                        }
                    }
                }
                () = tokio::time::sleep(screen::TURN), if self.screen.is_animated() => {}
                () = interrupts.next() => {
                    if self.interrupts > 0 {
                        // The API server may not answer. Another interrupt ends the command without waiting.
                        let done = tokio::select! {
                            done = retry(|| stop::at_once(target, name, Some(uid))) => done,
                            () = interrupts.next() => return Ok(RunEnd::Interrupted(None)),
                        };
                        if let Err(failure) = &done {
                            self.screen.say(&causes(failure));
                        }
                        return Ok(RunEnd::Interrupted(done.ok()));
                    }
                    stopping = Some(self.begin_stop(interrupts.is_terminated));
                }
            }
            if log.is_none() {
                log = self.next_log(api);
            }
            if let Some(ending) = self.ending(way, stopping.is_some())
                && log.is_none()
            {
                if self.is_unread {
                    return Ok(RunEnd::Unread);
                }
                if matches!(ending, RunEnd::Finished { .. }) && !self.has_listed {
                    tokio::select! {
                        () = self.list_pods() => {}
                        () = interrupts.next() => {
                            self.note_missing_output("interrupted before it was known whether all output was printed");
                            return Ok(ending);
                        }
                    }
                    log = self.next_log(api);
                    if log.is_some() {
                        continue;
                    }
                    self.note_unseen_lead();
                }
                return Ok(ending);
            }
            // The API server goes on sending a log when the credentials have expired.
            if log.is_none()
                && let Some(why) = self.outages.logged_out()
            {
                return Err(Failure::logged_out(name, why));
            }
            // Only the first start is shown, and nothing once the MiniCluster is being stopped.
            if self.snapshot.cluster.is_some() && self.interrupts == 0 && self.restarts == 0 {
                self.screen.show(&progress::stages(&self.snapshot));
                self.note_staying_up();
            }
        }
    }

    /// Prints that the MiniCluster is being shut down; returns the future that does it. `is_terminated`: by SIGTERM, after
    /// which this program may be killed at any time.
    fn begin_stop(&mut self, is_terminated: bool) -> Stopping<'a> {
        let (target, name, uid) = (self.target, self.name, self.uid);
        // After its end, it would be deleted at once, perhaps before its output is read.
        let has_ended = self
            .snapshot
            .cluster
            .as_ref()
            .is_some_and(|it| observed::is_finished(it.status.as_ref()));
        let should_expire = self.leftover == Leftover::Expires && is_terminated && !has_ended;
        self.interrupts += 1;
        self.screen.end();
        self.screen.say(&format!(
            "shutting down {name}; press Ctrl-C again to delete it without waiting"
        ));
        let expiring = async move {
            if should_expire {
                let spec = json!({ "ttlSecondsAfterFinished": TIME_TO_LIVE });
                // If this fails, `run` still has the MiniCluster deleted.
                let _ =
                    tokio::time::timeout(EXPIRY_TIMEOUT, stop::patch(target, name, Some(uid), spec)).await;
            }
        };
        let stopping = self.stop_in_order();
        Box::pin(async move { tokio::join!(expiring, stopping).1 })
    }

    fn stop_in_order(&self) -> Stopping<'a> {
        let is_kept = self.leftover == Leftover::Kept;
        Box::pin(stop::in_order(self.target, self.name, Some(self.uid), is_kept))
    }

    /// Records and prints that a part of the output was not printed.
    fn note_missing_output(&mut self, why: &str) {
        self.is_whole = false;
        self.screen.say(why);
    }

    fn on_cluster_event(&mut self, event: watcher::Result<Event<MiniCluster>>) {
        match event {
            Ok(event) => {
                self.note_event(Watched::Cluster, &event);
                match event {
                    Event::Apply(cluster) | Event::InitApply(cluster) if self.is_ours(&cluster) => {
                        self.note_restart(cluster.status.as_ref());
                        self.snapshot.cluster = Some(cluster);
                        self.is_listed = true;
                    }
                    Event::Delete(cluster) if self.is_ours(&cluster) => self.is_gone = true,
                    // A MiniCluster with another uid: the followed one is gone.
                    Event::Apply(_) | Event::InitApply(_) => self.note_missing_cluster(),
                    // The last state stays: if the MiniCluster is gone, it says whether the job had finished.
                    Event::Init => self.is_listed = false,
                    Event::InitDone if !self.is_listed => self.note_missing_cluster(),
                    Event::InitDone => {}
                    Event::Delete(_) => {}
                }
            }
            Err(error) => self.note_error(Watched::Cluster, &error),
        }
    }

    fn on_pod_event(&mut self, event: watcher::Result<Event<Pod>>) {
        if let Ok(event) = &event {
            self.note_event(Watched::Pods, event);
        }
        match event {
            // The last state stays until the new list is complete: a watch that has expired does not end pods.
            Ok(Event::Init) => self.listed.clear(),
            Ok(Event::InitApply(pod)) => {
                self.listed.insert(observed::name(&pod).to_owned(), pod);
            }
            Ok(Event::InitDone) => self.snapshot.pods = std::mem::take(&mut self.listed),
            Ok(Event::Apply(pod)) => {
                self.snapshot.pods.insert(observed::name(&pod).to_owned(), pod);
            }
            Ok(Event::Delete(pod)) => {
                self.snapshot.pods.remove(observed::name(&pod));
            }
            Err(error) => self.note_error(Watched::Pods, &error),
        }
    }

    /// Notes that the MiniCluster is gone, although no event said so.
    fn note_missing_cluster(&mut self) {
        self.is_end_unseen |= !self.is_gone;
        self.is_gone = true;
    }

    fn is_ours(&self, cluster: &MiniCluster) -> bool {
        cluster.metadata.uid.as_deref() == Some(self.uid)
    }

    fn note_error(&mut self, watched: Watched, error: &watcher::Error) {
        match self.outages.note_error(watched, error) {
            Some(Outage::Lost { why }) => self.screen.say(&format!(
                "no events from the API server ({why}); {} goes on, reconnecting",
                self.name
            )),
            Some(Outage::Refused { why }) => {
                self.screen.say(&refusal_text(self.name, watched, &why));
            }
            None => {}
        }
    }

    fn note_event<K>(&mut self, watched: Watched, event: &Event<K>) {
        if self.outages.note_event(watched, event) {
            self.screen.say("the API server answers again");
        }
    }

    /// Prints once how to use and to end an instance that stays up, since no program ends it.
    fn note_staying_up(&mut self) {
        if self.has_told_use || !self.snapshot.has_been_up() || self.snapshot.runs_program() {
            return;
        }
        self.has_told_use = true;
        let name = self.name;
        self.screen.say(&format!(
            "{name} is up and stays up: {} opens a shell in it; Ctrl-C ends it",
            self.target.access.command("connect", name)
        ));
    }

    /// Prints a restart that the status has and that was not printed yet.
    fn note_restart(&mut self, status: Option<&MiniClusterStatus>) {
        let Some(status) = status.filter(|status| status.restart_count > self.restarts) else {
            return;
        };
        let restart = restart_of(status, self.container_restarts);
        self.screen.say(&format!("{} {restart}", self.name));
        (self.restarts, self.container_restarts) = (status.restart_count, status.container_restarts);
    }

    /// A future that prints the log of a start of the lead that was not printed yet. Marks this start as printed.
    /// None: there is no such start.
    fn next_log(&mut self, api: &'a Api<Pod>) -> Option<LogPrint<'a>> {
        if self.is_unread {
            return None;
        }
        let (lead, mut start) = self.snapshot.started_lead()?;
        if self.read.contains(&start) {
            return None;
        }
        let (lead, screen) = (lead.clone(), self.screen);
        let earlier = |by: i32| ContainerStart {
            restarts: start.restarts - by,
            ..start.clone()
        };
        if start.restarts > 0 && !self.read.contains(&earlier(1)) {
            // The kubelet still has the log of the container before this one, and of no other.
            let is_lost = start.restarts > 1 && !self.read.contains(&earlier(2));
            start = earlier(1);
            if is_lost {
                let pod = observed::name(&lead);
                self.note_missing_output(&format!(
                    "failed to read the whole log of {pod}: its container has restarted twice meanwhile"
                ));
            }
        }
        self.read.insert(start.clone());
        let same_pod = self.resume.take().filter(|(pod, _)| *pod == start.pod_uid);
        let mut resume = same_pod.map(|(_, resume)| resume).unwrap_or_default();
        let log = async move {
            let put = async |bytes| {
                screen.end();
                screen::put_beside(bytes).await
            };
            let result = logs::follow(api, &lead, &start, &mut resume, put, |text| screen.say(text)).await;
            PrintedLog {
                pod_uid: start.pod_uid,
                resume,
                result,
            }
        };
        Some(log.boxed_local())
    }

    /// Lists the pods: a job may end before the watch has reported them.
    async fn list_pods(&mut self) {
        self.has_listed = true;
        let Some(cluster) = &self.snapshot.cluster else {
            return;
        };
        let mut tries = 1;
        // Failures while the API server is away do not count: the watches, too, are retried without a limit.
        let judge = |failure: Failure| {
            tries += u32::from(!failure.may_pass());
            if tries > MOST_ATTEMPTS {
                Err(failure)
            } else {
                Ok(())
            }
        };
        match until_done(RETRY_PAUSE, || self.target.pods_of(cluster), judge).await {
            Ok(pods) => {
                let named = pods.into_iter().map(|pod| (observed::name(&pod).to_owned(), pod));
                self.snapshot.pods = named.collect();
            }
            Err(failure) => self.note_missing_output(&causes(&failure)),
        }
    }

    /// Reports missing output if the lead has run and none of its logs was read.
    fn note_unseen_lead(&mut self) {
        let timeline = self.snapshot.status().and_then(|status| status.timeline.as_ref());
        let has_run = timeline.is_some_and(|timeline| timeline.running.is_some());
        if has_run && self.read.is_empty() && self.is_whole {
            self.note_missing_output(&format!(
                "failed to read the log of the lead of {}: its pod is gone",
                self.name
            ));
        }
    }

    /// How the MiniCluster ended; None: it has not. `is_stopping`: a stop by this command is under way.
    fn ending(&self, way: Option<Way>, is_stopping: bool) -> Option<RunEnd> {
        let status = self.snapshot.status();
        let text = |of: fn(&MiniClusterStatus) -> &Option<String>| {
            status.and_then(|status| of(status).clone()).unwrap_or_default()
        };
        if self.snapshot.is_true(ConditionType::JobFinished) {
            let exit_code = status.and_then(|status| status.exit_code);
            let is_complete = self.snapshot.is_true(ConditionType::Complete);
            return Some(RunEnd::Finished {
                exit_code,
                is_complete,
                reason: text(|status| &status.reason),
                message: text(|status| &status.message),
            });
        }
        if self.is_gone {
            let by_run = is_stopping || way == Some(Way::Deleted);
            return Some(if self.is_end_unseen && !by_run {
                RunEnd::Unseen
            } else {
                RunEnd::Deleted { by_run }
            });
        }
        // Without a Job, the condition never becomes true.
        let has_job = status.is_some_and(|status| status.job_uid.is_some());
        if matches!(way, Some(Way::Suspended | Way::Kept))
            && (self.snapshot.is_true(ConditionType::Suspended) || !has_job)
        {
            return Some(RunEnd::Interrupted(way));
        }
        self.snapshot
            .is_invalid()
            .then(|| RunEnd::Invalid(text(|status| &status.message)))
    }
}

/// Waits for the future; forever if there is none.
async fn wait<F: Future + ?Sized>(what: &mut Option<Pin<Box<F>>>) -> F::Output {
    match what {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// A description of the last restart. The status lists the operator's restarts; it only counts the kubelet's.
/// `container_restarts`: how many of the kubelet's were printed before.
fn restart_of(status: &MiniClusterStatus, container_restarts: i32) -> String {
    match status.restarts.last() {
        Some(last) if status.container_restarts <= container_restarts => {
            format!("restarts ({}): {}", last.reason, last.message)
        }
        _ => "restarts: the lead's container ended and runs again".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use flux_shared::crd::v1alpha2::Restart;
    use serde_json::Value;

    use super::*;
    use crate::testing::{Answer, Log, LogEnd, answering, failed, failing_plugin};

    /// Follows a MiniCluster with this status, whose own `cleanup` deletes it while no events come. `outages`: how
    /// often the API server is away when the pods are listed.
    async fn followed_until_gone(status: Value, mut outages: u32) -> Followed {
        let cluster = json!({ "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster",
            "metadata": { "name": "mc", "uid": "u" },
            "spec": { "size": 1, "cleanup": true, "containers": [{ "image": "a" }] }, "status": status });
        let mut lists = vec![json!([]), json!([cluster])];
        let (target, _) = answering(move |request| {
            let is_watch = request.contains("watch=true");
            if request.contains("/pods?") && is_watch {
                return Answer::Never;
            }
            if is_watch {
                // After this error, the watcher lists again.
                return Answer::Log(Log {
                    bytes: br#"{"type":"ERROR","object":{"status":"Failure","reason":"","message":"","code":410}}"#,
                    end: LogEnd::Whole,
                });
            }
            let items = if request.contains("/pods?") {
                if outages > 0 {
                    outages -= 1;
                    return failed(503);
                }
                json!([])
            } else {
                lists.pop().unwrap()
            };
            Answer::Json(
                200,
                json!({ "metadata": { "resourceVersion": "1" }, "items": items }),
            )
        });
        let id = ClusterId { name: "mc", uid: "u" };
        let (screen, mut interrupts) = (Screen::open(), Interrupts::listen().unwrap());
        until_end(&target, id, &screen, &mut interrupts, false, Leftover::AsInSpec)
            .await
            .unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn follow_fails_when_the_credentials_have_expired() {
        let (target, _) = answering(|_| failed(401));
        let id = ClusterId { name: "mc", uid: "u" };
        let (screen, mut interrupts) = (Screen::open(), Interrupts::listen().unwrap());
        let failure = until_end(&target, id, &screen, &mut interrupts, false, Leftover::AsInSpec)
            .await
            .err()
            .unwrap();
        assert!(failure.to_string().contains("Log in again"), "{failure}");
    }

    /// The plugin may fail for a while, for example because a VPN is down.
    #[tokio::test(start_paused = true)]
    async fn follow_fails_when_the_credential_plugin_fails_for_long() {
        let failing = failing_plugin();
        let (target, _) = answering(move |_| failing());
        let id = ClusterId { name: "mc", uid: "u" };
        let (screen, mut interrupts) = (Screen::open(), Interrupts::listen().unwrap());
        let begin = tokio::time::Instant::now();
        let failure = until_end(&target, id, &screen, &mut interrupts, false, Leftover::AsInSpec)
            .await
            .err()
            .unwrap();
        assert_eq!(
            failure.to_string(),
            "failed to watch MiniCluster mc, which goes on: the credential plugin aws printed no credentials. Log in again"
        );
        let seconds = begin.elapsed().as_secs();
        assert!((300..400).contains(&seconds), "{seconds}");
    }

    #[tokio::test(start_paused = true)]
    async fn end_that_was_not_seen_is_unknown_and_no_success() {
        let followed = followed_until_gone(json!({ "phase": "Running" }), 0).await;
        assert_eq!((&followed.end, followed.end.code()), (&RunEnd::Unseen, FAILED));
    }

    #[tokio::test(start_paused = true)]
    async fn end_that_was_seen_counts_when_cleanup_deletes() {
        let finished = json!({ "type": "JobFinished", "status": "True", "lastTransitionTime": "", "reason": "",
            "message": "" });
        let status = json!({ "phase": "Failed", "exitCode": 7, "conditions": [finished] });
        for outages in [0, 6 * MOST_ATTEMPTS] {
            let followed = followed_until_gone(status.clone(), outages).await;
            assert_eq!(followed.end.code(), 7);
            assert!(followed.is_whole && followed.is_deleted, "{outages}");
        }
    }

    #[tokio::test]
    async fn pods_stay_until_a_new_list_is_complete() {
        let pod =
            |name: &str| -> Pod { serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap() };
        let ((target, _), screen) = (answering(|_| Answer::Never), Screen::open());
        let mut state = FollowState::new(&target, ClusterId { name: "mc", uid: "u" }, &screen);
        for event in [
            Event::Init,
            Event::InitApply(pod("a")),
            Event::InitApply(pod("b")),
            Event::InitDone,
        ] {
            state.on_pod_event(Ok(event));
        }
        let names =
            |state: &FollowState<'_>| state.snapshot.pods.keys().cloned().collect::<Vec<_>>().concat();
        // The watch has expired, and a list fails halfway.
        for event in [
            Event::Init,
            Event::InitApply(pod("c")),
            Event::Init,
            Event::InitApply(pod("a")),
        ] {
            state.on_pod_event(Ok(event));
            assert_eq!(names(&state), "ab");
        }
        state.on_pod_event(Ok(Event::InitDone));
        assert_eq!(names(&state), "a");
        state.on_pod_event(Ok(Event::Apply(pod("d"))));
        assert_eq!(names(&state), "ad");
    }

    #[test]
    fn restart_by_the_kubelet_does_not_repeat_an_earlier_one() {
        let lost = Restart {
            time: String::new(),
            reason: "LeadLost".into(),
            message: "the node is off".into(),
            job_uid: None,
        };
        let mut status = MiniClusterStatus {
            restart_count: 1,
            restarts: vec![lost],
            ..MiniClusterStatus::default()
        };
        assert_eq!(restart_of(&status, 0), "restarts (LeadLost): the node is off");
        (status.restart_count, status.container_restarts) = (2, 1);
        let by_kubelet = "restarts: the lead's container ended and runs again";
        assert_eq!(restart_of(&status, 0), by_kubelet);
        status.restarts.clear();
        assert_eq!(restart_of(&status, 0), by_kubelet);
    }
}
