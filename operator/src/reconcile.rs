//! One MiniCluster, from what is to what should be.
//!
//! ```text
//! fetch ─► validate ─► todo ─► render ─► apply ─► status ─► one patch, events ─► when to look again
//! ```
//!
//! Each step may be the last before the process is killed: whoever comes next finds the same or does it then.
#![expect(clippy::disallowed_methods, reason = "the clock and the log of one reconcile")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use flux_shared::crd::v1alpha2::MiniClusterStatus;
use flux_shared::validate::{Problem, ValidMiniCluster};
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use kube::runtime::controller::Action;

use crate::apply::ApplyError;
use crate::context::Context;
use crate::fetch::{Cluster, Target};
use crate::observe::pod::Trouble;
use crate::observe::{Key, Observed};
use crate::render::services::Member;
use crate::render::{self, Facts, RenderError};
use crate::status::{Obstacle, Picture, Verdict, patch};
use crate::stuck::{self, Missing, Stuck};
use crate::todo::{self, Todo};
use crate::{keys, notice, status};

/// How long after its Job was made a MiniCluster's status is written: its pods are there then, and one write tells all.
const TO_TELL: Duration = Duration::from_millis(100);

/// What [`make`] has left to do.
enum Done {
    All,
    /// There is a Job now, or will be: the rest is for the next reconcile, which others may go before.
    MadeJob,
}

/// Why a reconcile has to be repeated.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    #[error(transparent)]
    Apply(#[from] ApplyError),
    #[error(transparent)]
    Render(#[from] RenderError),
    #[error(transparent)]
    Key(#[from] keys::KeyError),
    #[error("failed to get the version of Kubernetes")]
    Version(#[source] kube::Error),
}

impl ReconcileError {
    /// What the status says about it, if a person can help.
    pub fn obstacle(&self) -> Option<&Obstacle> {
        match self {
            ReconcileError::Apply(ApplyError::Obstacle(obstacle)) => Some(obstacle),
            _ => None,
        }
    }

    /// How long the API server, which has too much to do, asks to wait.
    pub fn asked_to_wait(&self) -> Duration {
        let ReconcileError::Apply(ApplyError::Api { source, .. }) = self else { return Duration::ZERO };
        let kube::Error::Api(status) = source.as_ref() else { return Duration::ZERO };
        let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
        Duration::from_secs(seconds.min(60).into())
    }
}

/// Whether a MiniCluster waits for something to happen, and not only to be told of: it has no Job, or an edit is new.
pub fn is_first(object: &Cluster, context: &Context) -> bool {
    let status = object.0.as_ref().ok().and_then(|cluster| cluster.status.as_ref());
    match status.and_then(|status| status.observed_generation) {
        None => !context.index.has_job(&Key::of(object.meta())),
        generation => generation != object.meta().generation,
    }
}

/// One reconcile.
pub async fn reconcile(object: Arc<Cluster>, context: Arc<Context>) -> Result<Action, ReconcileError> {
    let target = context.latest(Target::of(&object));
    let checked = target.validate();
    let done = make(&target, checked.as_ref().ok(), &context).await;
    if let Ok(Done::MadeJob) = done {
        context.succeeded(&target.key);
        return Ok(Action::requeue(TO_TELL));
    }
    let look = look(&target, checked.as_ref().ok(), &context).await?;
    let warning = look.as_ref().and_then(|(warning, _)| warning.as_ref());
    let after = describe(&target, &checked, done.as_ref().err(), warning, &context);
    let mut later = None;
    if let Some(change) = patch::patch(&target, &target.status, &after) {
        later =
            context.wait_to_write(&target.uid, Instant::now()).filter(|_| !patch::is_telling(&target.status, &after));
        if later.is_some() {
            // Nothing yet.
        } else if let Some(version) = context.writer.status(&target.key, &change).await? {
            context.remember(&target.uid, version, &after, Instant::now());
            became_ready(&object, &target.status, &after, &context);
        }
        context.writer.tell(&object, &notice::events(&target.status, &after)).await;
    }
    done?;
    if later.is_none() {
        clean_up(&target, checked.as_ref().ok(), &after, &context).await?;
        make_anew(&object, &target, checked.as_ref().ok(), &after, &context).await?;
    }
    let action = look_again(&target, &after, &context).await?;
    context.succeeded(&target.key);
    let sooner = later.or(look.map(|(_, wait)| wait));
    Ok(sooner.map_or(action, Action::requeue))
}

fn became_ready(object: &Cluster, before: &MiniClusterStatus, after: &MiniClusterStatus, context: &Context) {
    let is_ready =
        |it| status::condition(it, "JobMiniClusterReady").is_some_and(|condition| condition.status == "True");
    if let Some(created) = object.meta().creation_timestamp.as_ref().filter(|_| is_ready(after) && !is_ready(before)) {
        let time = Timestamp::now().duration_since(created.0);
        context.metrics.ready_after(Duration::try_from(time).unwrap_or_default());
    }
}

/// Makes what is missing, and changes what may change.
async fn make(target: &Target, cluster: Option<&ValidMiniCluster>, context: &Context) -> Result<Done, ReconcileError> {
    let observed = context.index.observed(&target.key);
    let headless = cluster.and_then(|cluster| context.index.headless(&todo::headless_key(cluster)));
    let todo = todo::todo(target, cluster, &observed, headless.as_deref());
    let Some(cluster) = cluster else { return Ok(Done::All) };
    match todo {
        Todo::Nothing => Ok(Done::All),
        Todo::WaitForPrevious => {
            let message = format!("Job {} of an earlier MiniCluster is still being deleted", target.key.name);
            Err(ApplyError::from(Obstacle { reason: "WaitingForPrevious", message }).into())
        }
        Todo::NameTaken => {
            let name = &target.key.name;
            let message =
                format!("Job {name} was left behind by an earlier MiniCluster: delete it, or choose another name");
            Err(ApplyError::from(Obstacle { reason: "NameTaken", message }).into())
        }
        Todo::Create { facts } => {
            join_index(target, cluster, context);
            let objects = objects(cluster, &facts, context)?;
            check(&objects, &target.key, context).await?;
            context.writer.create_all(&context.index, &objects, &member(target, cluster)).await?;
            Ok(Done::MadeJob)
        }
        Todo::MakeAnew { job_uid } => {
            context.writer.delete_job(&target.key, &job_uid).await?;
            tracing::info!("deleted the Job, whose spec was edited before anything had begun, to make it anew");
            Ok(Done::MadeJob)
        }
        Todo::Keep { facts, job_uid, elastic, join, services, services_pod } => {
            join_index(target, cluster, context);
            if let Some(elastic) = elastic {
                let fields = elastic.patch(&target.key.namespace, &target.key.name, &job_uid);
                context.writer.scale_job(&context.index, &target.key, &fields).await?;
                tracing::info!(size = elastic.size, suspend = elastic.suspend, "changed the Job");
            }
            if join {
                let service = todo::headless_key(cluster);
                context.writer.join(&context.index, &service, &member(target, cluster)).await?;
            }
            if !services.is_empty() || services_pod {
                let objects = objects(cluster, &facts, context)?;
                for service in objects
                    .services
                    .iter()
                    .filter(|it| it.metadata.name.as_ref().is_some_and(|name| services.contains(name)))
                {
                    context.writer.service(&context.index, service, &target.uid).await?;
                }
                if let Some(pod) = objects.services_pod.filter(|_| services_pod) {
                    context.writer.services_pod(&context.index, &pod, &target.uid).await?;
                }
            }
            Ok(Done::All)
        }
    }
}

fn objects(cluster: &ValidMiniCluster, facts: &Facts, context: &Context) -> Result<render::Objects, ReconcileError> {
    let facts = Facts { nodes_mount_images: context.index.nodes_mount_images(), ..facts.clone() };
    Ok(render::objects(cluster, &context.options, &facts, keys::chance(cluster)?)?)
}

/// Refuses what this Kubernetes would drop, or has no room for.
async fn check(objects: &render::Objects, key: &Key, context: &Context) -> Result<(), ReconcileError> {
    if let Some(message) = render::needs::too_large(objects) {
        return Err(ApplyError::from(Obstacle { reason: "TooLarge", message }).into());
    }
    if !render::needs::beyond_floor(objects, context.index.nodes_mount_images()) {
        return Ok(());
    }
    let minor = context.reader.kubernetes_minor().await.map_err(ReconcileError::Version)?;
    let keeps_images = render::needs::image_is_a_try(objects, minor) && {
        let kept = context.writer.would_be(&objects.job, key).await?;
        render::needs::mounts_image(&kept)
    };
    match render::needs::unsupported(objects, minor, keeps_images) {
        Some(message) => Err(ApplyError::from(Obstacle { reason: "Unsupported", message }).into()),
        None => Ok(()),
    }
}

fn member(target: &Target, cluster: &ValidMiniCluster) -> Member {
    Member { name: cluster.name.clone(), uid: target.uid.clone(), minimal: cluster.flux.minimal_service }
}

fn join_index(target: &Target, cluster: &ValidMiniCluster, context: &Context) {
    context.index.join(&todo::headless_key(cluster), &target.key.name, cluster.flux.minimal_service);
}

/// The last warning about what waits without a word, and the time until it is looked at again. A part that somebody has
/// deleted is made again, if it can be.
async fn look(
    target: &Target,
    cluster: Option<&ValidMiniCluster>,
    context: &Context,
) -> Result<Option<(Option<Trouble>, Duration)>, ReconcileError> {
    let observed = context.index.observed(&target.key);
    let job = observed.job_of(&target.uid);
    let (Some(job), Some(stuck)) = (job, stuck::stuck(job, &observed).filter(|_| !target.deleting)) else {
        context.goes_on(&target.uid);
        return Ok(None);
    };
    if context.waits(&target.uid, stuck.uid(), target.status.reason.is_some(), Instant::now()) {
        match warning(&target.key.namespace, stuck, context).await {
            Ok(mut found) => {
                if let (Some(cluster), Some(found)) = (cluster, found.as_mut()) {
                    match stuck::missing(cluster, found) {
                        Some(Missing::ConfigMap) => {
                            let facts = todo::facts(&target.uid, &target.status, job);
                            let objects = objects(cluster, &facts, context)?;
                            context.writer.config_map(&objects.config_map, &target.uid).await?;
                            tracing::info!("made the ConfigMap again, which somebody had deleted");
                        }
                        Some(Missing::Key(lost)) => *found = lost,
                        None => {}
                    }
                }
                context.found(&target.uid, found);
            }
            Err(error) => crate::telemetry::warn("failed to read events", &error),
        }
    }
    Ok(context.look(&target.uid, Instant::now()))
}

/// What was said last about what waits: a call or two, however many wait.
async fn warning(namespace: &str, stuck: Stuck<'_>, context: &Context) -> Result<Option<Trouble>, kube::Error> {
    let now = Timestamp::now();
    let (first, second) = match stuck {
        Stuck::Starts(uid) => return context.reader.last(namespace, uid, now).await,
        Stuck::Joins(first, second) => (first, second),
    };
    let mut found = Vec::new();
    for (index, uid) in [Some(first), second].into_iter().flatten() {
        found.extend(context.reader.probe(namespace, uid, now).await?.map(|said| (index, said)));
    }
    Ok(stuck::not_ready(&found))
}

/// The status as it should be now.
fn describe(
    target: &Target,
    checked: &Result<ValidMiniCluster, Vec<Problem>>,
    error: Option<&ReconcileError>,
    warning: Option<&Trouble>,
    context: &Context,
) -> MiniClusterStatus {
    let observed: Observed = context.index.observed(&target.key);
    let job = observed.job_of(&target.uid);
    status::status(&Picture {
        name: &target.key.name,
        generation: target.generation,
        deleting: target.deleting,
        verdict: match checked {
            Ok(cluster) => Verdict::Valid(cluster),
            Err(problems) => Verdict::Invalid(problems),
        },
        previous: &target.status,
        job,
        spec_hash: target.spec_hash().as_deref(),
        pods: job.map(|job| observed.pods_of(job).collect()).unwrap_or_default(),
        obstacle: error.and_then(ReconcileError::obstacle),
        nodes_mount_images: context.index.nodes_mount_images(),
        disks: checked.as_ref().ok().and_then(|cluster| context.index.disks_of(cluster)),
        warning,
        now: Timestamp::now(),
    })
}

/// Deletes pods and volumes of a job that has completed, and then says so: who is killed in between does it again.
async fn clean_up(
    target: &Target,
    cluster: Option<&ValidMiniCluster>,
    after: &MiniClusterStatus,
    context: &Context,
) -> Result<(), ReconcileError> {
    let (Ok(spec), Some(cluster)) = (&target.spec, cluster.filter(|_| !target.deleting)) else { return Ok(()) };
    let observed = context.index.observed(&target.key);
    let Some(job) = observed.job_of(&target.uid) else { return Ok(()) };
    let goes_whole = todo::seconds_to_live(spec, after, Timestamp::now()) == Some(0);
    if goes_whole || !todo::is_to_be_cleaned_up(spec, after, &observed, &job.uid) {
        return Ok(());
    }
    let facts = Facts { uid: Some(target.uid.clone()), ..Facts::default() };
    let volumes = render::storage::volumes(cluster, &facts);
    let services_pod = observed.services_pod.as_ref().filter(|(_, owner)| owner.as_deref() == Some(&target.uid));
    context.writer.clean_up(&target.key, &job.uid, services_pod.map(|(uid, _)| uid), &volumes, &target.uid).await?;
    let cleaned = status::cleaned_up(after, Timestamp::now());
    if let Some(change) = patch::patch(target, after, &cleaned)
        && let Some(version) = context.writer.status(&target.key, &change).await?
    {
        context.remember(&target.uid, version, &cleaned, Instant::now());
        tracing::info!("cleaned up: the job has completed");
    }
    Ok(())
}

/// Deletes a Job that cannot go on: its pods cannot mount the view's image, as the status says now, or its lead waits for
/// followers that will never come. The next one copies, or has them.
async fn make_anew(
    object: &Cluster,
    target: &Target,
    cluster: Option<&ValidMiniCluster>,
    after: &MiniClusterStatus,
    context: &Context,
) -> Result<(), ReconcileError> {
    let observed = context.index.observed(&target.key);
    let Some(job) = observed.job_of(&target.uid) else { return Ok(()) };
    let lacks_followers = |cluster| todo::lacks_followers(cluster, job, &observed.pods_of(job).collect::<Vec<_>>());
    if todo::is_to_be_made_anew(after, job) {
        context.writer.delete_job(&target.key, &job.uid).await?;
        tracing::info!("deleted the Job, whose pods cannot mount the view's image, to make it with a copy");
    } else if cluster.filter(|_| !target.deleting).is_some_and(lacks_followers) {
        context.writer.delete_job(&target.key, &job.uid).await?;
        context.writer.tell(object, &[notice::started_anew()]).await;
        tracing::info!("deleted the Job, whose lead was lost, to make it anew with its followers");
    }
    Ok(())
}

/// Nothing is looked at again without a reason. A finished MiniCluster that has to go has one (and a status that waits).
async fn look_again(target: &Target, after: &MiniClusterStatus, context: &Context) -> Result<Action, ReconcileError> {
    let Some(spec) = target.spec.as_ref().ok().filter(|_| !target.deleting) else { return Ok(Action::await_change()) };
    match todo::seconds_to_live(spec, after, Timestamp::now()) {
        None => Ok(Action::await_change()),
        Some(0) => {
            context.writer.delete(&target.key, &target.uid).await?;
            tracing::info!("deleted the MiniCluster: it has finished, and its time is over");
            Ok(Action::await_change())
        }
        Some(seconds) => Ok(Action::requeue(Duration::from_secs(seconds))),
    }
}
