//! Follows a MiniCluster to its end: shows what it waits for, then what its job prints. Survives lost
//! connections.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::time::Duration;

use flux_shared::causes::causes;
use flux_shared::crd::v1alpha2::{MiniCluster, MiniClusterStatus};
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::{self, Event};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::{FAILED, Failure, UNREAD};
use crate::logs;
use crate::observed::{self, Snapshot, Start, code_of};
use crate::progress;
use crate::screen::Screen;
use crate::stop::{self, Way};
use crate::target::{Changes, Target};

/// Time after which a MiniCluster without a status means that no operator works on it.
const SILENT_OPERATOR: Duration = Duration::from_secs(10);

/// Exit code after an interruption, as shells have it: 128 + SIGINT.
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
    /// The MiniCluster was deleted; whether by this command.
    Deleted { by_us: bool },
    /// The person interrupted a second time, or the MiniCluster was suspended since they may not delete it.
    Interrupted(Option<Way>),
    /// The operator cannot use its spec.
    Invalid(String),
    /// Nobody read the output, so the job was stopped.
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
            RunEnd::Deleted { by_us: true } | RunEnd::Interrupted(_) => INTERRUPTED,
            RunEnd::Deleted { by_us: false } | RunEnd::Invalid(_) => FAILED,
            RunEnd::Unread => UNREAD,
        }
    }

    /// What to tell the person; None after a success.
    pub fn text(&self, name: &str) -> Option<String> {
        match self {
            RunEnd::Finished {
                is_complete: true, ..
            } => None,
            RunEnd::Finished { reason, message, .. } => Some(format!("{name} failed ({reason}): {message}")),
            RunEnd::Deleted { by_us: true } => Some(format!("{name} was stopped")),
            RunEnd::Deleted { by_us: false } => Some(format!(
                "{name} was deleted before its job had ended, not by this command"
            )),
            RunEnd::Interrupted(Some(way)) => Some(way.text(name)),
            RunEnd::Interrupted(None) => {
                Some(format!("{name} may still run: `kubectl minicluster stop {name}`"))
            }
            RunEnd::Unread => None,
            RunEnd::Invalid(message) => Some(format!("{name} cannot run: {message}")),
        }
    }
}

type Log<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + 'a>>;
type Stopping<'a> = Pin<Box<dyn Future<Output = Result<Way, Failure>> + 'a>>;

struct Follower<'a> {
    target: &'a Target,
    name: &'a str,
    uid: &'a str,
    screen: &'a Screen,
    seen: Snapshot,
    /// Starts of the lead whose logs were printed.
    read: BTreeSet<Start>,
    restarts: i32,
    is_lost: bool,
    interrupts: u32,
    is_gone: bool,
    /// Standard output is closed.
    is_unread: bool,
}

/// Follows the MiniCluster of this name and uid to its end.
pub async fn follow(target: &Target, name: &str, uid: &str, screen: &Screen) -> Result<RunEnd, Failure> {
    let (mut clusters, mut pods) = (target.watch(name), target.watch_pods_of(name));
    let mut interrupted =
        signal(SignalKind::interrupt()).map_err(Failure::on_this_machine("listen for Ctrl-C"))?;
    let mut terminated =
        signal(SignalKind::terminate()).map_err(Failure::on_this_machine("listen for a signal to end"))?;
    let api = target.pods();
    let mut follower = Follower {
        target,
        name,
        uid,
        screen,
        seen: Snapshot::default(),
        read: BTreeSet::new(),
        restarts: 0,
        is_lost: false,
        interrupts: 0,
        is_gone: false,
        is_unread: false,
    };
    follower
        .until_the_end(&mut clusters, &mut pods, &mut interrupted, &mut terminated, &api)
        .await
}

impl<'a> Follower<'a> {
    async fn until_the_end(
        &mut self,
        clusters: &mut Changes<MiniCluster>,
        pods: &mut Changes<Pod>,
        interrupted: &mut Signal,
        told: &mut Signal,
        api: &'a kube_pods::Pods,
    ) -> Result<RunEnd, Failure> {
        let (target, name) = (self.target, self.name);
        let mut log: Option<Log<'a>> = None;
        let mut stopping: Option<Stopping<'a>> = None;
        let mut way = None;
        let mut operator = Some(Box::pin(tokio::time::sleep(SILENT_OPERATOR)));
        loop {
            tokio::select! {
                Some(event) = clusters.next() => self.on_cluster_event(event),
                Some(event) = pods.next() => self.on_pod_event(event),
                done = wait(&mut log), if log.is_some() => {
                    log = None;
                    match done {
                        Ok(()) => {}
                        Err(Failure::Unread) if self.interrupts == 0 => {
                            self.is_unread = true;
                            self.interrupts = 1;
                            self.screen.say(&format!("nobody reads the output: shutting down {name}"));
                            stopping = Some(Box::pin(stop::in_order(target, name)));
                        }
                        Err(Failure::Unread) => {}
                        // The failure is printed; how the job ended is known nevertheless.
                        Err(failure) => self.screen.say(&failure.to_string()),
                    }
                }
                () = wait(&mut operator), if operator.is_some() => {
                    operator = None;
                    if self.seen.cluster.is_some() && self.seen.status().is_none() {
                        self.screen.say(&format!("{name} waits: {}", observed::NO_OPERATOR));
                    }
                }
                done = wait(&mut stopping), if stopping.is_some() => {
                    stopping = None;
                    let done = done?;
                    self.screen.say(&done.text(name));
                    way = Some(done);
                }
                _ = async { tokio::select! { it = interrupted.recv() => it, it = told.recv() => it } } => {
                    self.interrupts += 1;
                    if self.interrupts > 1 {
                        return Ok(RunEnd::Interrupted(stop::at_once(target, name).await.ok()));
                    }
                    self.screen.end();
                    self.screen.say(&format!("shutting down {name}; press Ctrl-C again to delete it without waiting"));
                    stopping = Some(Box::pin(stop::in_order(target, name)));
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
                if self.read.is_empty() && matches!(ending, RunEnd::Finished { .. }) && self.list_pods().await
                {
                    log = self.next_log(api);
                    if log.is_some() {
                        continue;
                    }
                }
                return Ok(ending);
            }
            if self.seen.cluster.is_some() && self.interrupts == 0 && self.restarts == 0 {
                self.screen.show(&progress::stages(&self.seen));
            }
        }
    }

    fn on_cluster_event(&mut self, event: watcher::Result<Event<MiniCluster>>) {
        match event {
            Ok(event) => {
                self.note_reconnected();
                match event {
                    Event::Apply(cluster) | Event::InitApply(cluster) if self.is_ours(&cluster) => {
                        self.note_restart(cluster.status.as_ref());
                        self.seen.cluster = Some(cluster);
                    }
                    Event::Delete(cluster) if self.is_ours(&cluster) => self.is_gone = true,
                    // A MiniCluster with another uid: ours is gone.
                    Event::Apply(_) | Event::InitApply(_) => self.is_gone = true,
                    Event::Init => self.seen.cluster = None,
                    Event::InitDone => self.is_gone |= self.seen.cluster.is_none(),
                    Event::Delete(_) => {}
                }
            }
            Err(error) => self.note_disconnected(&error),
        }
    }

    fn on_pod_event(&mut self, event: watcher::Result<Event<Pod>>) {
        match event {
            Ok(Event::Init) => self.seen.pods.clear(),
            Ok(Event::Apply(pod) | Event::InitApply(pod)) => {
                self.seen.pods.insert(observed::name(&pod).to_owned(), pod);
            }
            Ok(Event::Delete(pod)) => {
                self.seen.pods.remove(observed::name(&pod));
            }
            Ok(Event::InitDone) => {}
            Err(error) => self.note_disconnected(&error),
        }
    }

    fn is_ours(&self, cluster: &MiniCluster) -> bool {
        cluster.metadata.uid.as_deref() == Some(self.uid)
    }

    fn note_disconnected(&mut self, error: &watcher::Error) {
        if !std::mem::replace(&mut self.is_lost, true) {
            let why = causes(error);
            self.screen.say(&format!(
                "no answer from the API server ({why}); {} goes on, reconnecting",
                self.name
            ));
        }
    }

    fn note_reconnected(&mut self) {
        if std::mem::replace(&mut self.is_lost, false) {
            self.screen.say("the API server answers again");
        }
    }

    fn note_restart(&mut self, status: Option<&MiniClusterStatus>) {
        let Some(status) = status.filter(|status| status.restart_count > self.restarts) else {
            return;
        };
        self.restarts = status.restart_count;
        if let Some(last) = status.restarts.last() {
            self.screen.say(&format!(
                "{} restarts ({}): {}",
                self.name, last.reason, last.message
            ));
        }
    }

    /// What prints the log of a lead's start that was not printed yet, and marks it as printed; None if there
    /// is none.
    fn next_log(&mut self, api: &'a kube_pods::Pods) -> Option<Log<'a>> {
        if self.is_unread {
            return None;
        }
        let (lead, start) = self.seen.started_lead()?;
        if self.read.contains(&start) {
            return None;
        }
        let (lead, screen) = (lead.clone(), self.screen);
        self.read.insert(start.clone());
        Some(async move { logs::follow(api, &lead, &start, || screen.end()).await }.boxed_local())
    }

    /// Lists the pods: a job may end before the watch has reported them.
    async fn list_pods(&mut self) -> bool {
        let Ok(pods) = self.target.pods_of(self.name).await else {
            return false;
        };
        self.seen.pods = pods
            .into_iter()
            .map(|pod| (observed::name(&pod).to_owned(), pod))
            .collect();
        true
    }

    /// How it ended, if it did. `is_stopping`: this command's stop is not answered yet.
    fn ending(&self, way: Option<Way>, is_stopping: bool) -> Option<RunEnd> {
        let status = self.seen.status();
        let text = |of: fn(&MiniClusterStatus) -> &Option<String>| {
            status.and_then(|status| of(status).clone()).unwrap_or_default()
        };
        if self.seen.is_true("JobFinished") {
            let exit_code = status.and_then(|status| status.exit_code);
            let is_complete = self.seen.is_true("Complete");
            return Some(RunEnd::Finished {
                exit_code,
                is_complete,
                reason: text(|status| &status.reason),
                message: text(|status| &status.message),
            });
        }
        if self.is_gone {
            return Some(RunEnd::Deleted {
                by_us: is_stopping || way == Some(Way::Deleted),
            });
        }
        if way == Some(Way::Suspended) && self.seen.is_true("Suspended") {
            return Some(RunEnd::Interrupted(way));
        }
        self.seen
            .is_invalid()
            .then(|| RunEnd::Invalid(text(|status| &status.message)))
    }
}

mod kube_pods {
    //! A name for the type, where clients are made nowhere.

    pub type Pods = kube::Api<k8s_openapi::api::core::v1::Pod>;
}

async fn wait<F: Future + ?Sized>(what: &mut Option<Pin<Box<F>>>) -> F::Output {
    match what {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
