//! One MiniCluster, from what is to what should be.
//!
//! ```text
//! fetch ─► validate ─► decide ─► render ─► apply ─► status ─► one patch, events ─► when to look again
//! ```
//!
//! Each step may be the last before the process is killed: whoever comes next finds the same or does it then.
#![expect(clippy::disallowed_methods, reason = "the clock and the log of one reconcile")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use flux_shared::crd::v1alpha2::{LostPod, MiniClusterStatus};
use flux_shared::validate::{Problem, ValidMiniCluster};
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use kube::runtime::controller::Action;

use crate::health::panics::Panicked;
use crate::observe::job::{self, JobSeen};
use crate::observe::pod::Trouble;
use crate::observe::{Key, Observed};
use crate::reconcile::apply::ApplyError;
use crate::reconcile::context::Context;
use crate::reconcile::decide::next_action::{self, Todo};
use crate::reconcile::decide::restart::{self, Decision, Scene};
use crate::reconcile::decide::stuck::{self, Missing, Stuck};
use crate::reconcile::fetch::{Cluster, Target};
use crate::reconcile::render::services::Member;
use crate::reconcile::render::{Facts, RenderError};
use crate::reconcile::status::events;
use crate::reconcile::status::{Obstacle, Picture, Verdict, patch};

pub mod apply;
pub mod context;
pub mod decide;
pub mod fetch;
pub mod job_first;
pub mod keys;
pub mod render;
pub mod status;

/// How long after its Job was made a MiniCluster's status is written: its pods are there then, and one write tells all.
const TO_TELL: Duration = Duration::from_millis(100);

/// What [`make`] has left to do.
enum Done {
    All,
    /// There is a Job now, or will be: the rest is for the next reconcile, which others may go before.
    MadeJob,
    /// None is made any more: earlier starts have used up its time.
    OutOfTime,
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
    #[error("failed to get the MiniCluster, whose spec is too large to be kept")]
    Cluster(#[source] kube::Error),
    #[error("failed to get the version of Kubernetes")]
    Version(#[source] kube::Error),
    #[error(transparent)]
    Panicked(#[from] Panicked),
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
    if let Some(cluster) = checked.as_ref().ok().filter(|_| !target.deleting && !status::is_finished(&target.status)) {
        join_index(&target, cluster, &context);
    }
    let known = with_losses(&target, &context);
    let decision = decide(&target, checked.as_ref().ok(), &known, &context);
    if let Decision::Again { job_uid, is_there, .. } = &decision {
        let before = context.index.observed(&target.key);
        let now = context.writer.job_now(&context.index, &target.key).await?;
        if now.as_ref().map(|job| &job.uid) != is_there.then_some(job_uid)
            || decide(&target, checked.as_ref().ok(), &known, &context) != decision
        {
            tracing::info!(was = ?before.job.map(|job| job.uid), "the Job is not as it was seen: looking again");
            return Ok(Action::requeue(TO_TELL));
        }
        return start_anew(&object, &target, &known, &decision, &context).await;
    }
    let done = match &decision {
        Decision::Again { .. } | Decision::Over { .. } => Ok(Done::All),
        Decision::Wait => {
            let message = "pods of its Job, which somebody has deleted, still run: it starts again when they are gone";
            Err(ApplyError::from(Obstacle { reason: "WaitingForPods", message: message.to_owned() }).into())
        }
        Decision::Delete { job_uid } => {
            context.writer.delete_job(&target.key, job_uid).await.map(|()| Done::All).map_err(Into::into)
        }
        Decision::Fail { job_uid, reason, message } => {
            let now = status::rfc3339(Timestamp::now());
            tracing::info!(reason, message, "ended the Job");
            let failed = context.writer.fail_job(&target.key, job_uid, reason, &status::short(message), &now).await;
            failed.map(|()| Done::All).map_err(Into::into)
        }
        Decision::Goes => make(&target, checked.as_ref().ok(), &context).await,
    };
    if let Ok(Done::MadeJob) = done {
        context.made_job(&target.uid, Instant::now());
        context.succeeded(&target.key);
        return Ok(Action::requeue(TO_TELL));
    }
    let over = match (&decision, &done) {
        (Decision::Over { reason, message }, _) => Some(over(&target, reason, message)),
        (_, Ok(Done::OutOfTime)) => {
            Some(over(&target, "DeadlineExceeded", "deadlineSeconds were over before it could start again"))
        }
        _ => None,
    };
    let look = look(&target, checked.as_ref().ok(), &context).await?;
    let warning = look.as_ref().and_then(|(warning, _)| warning.as_ref());
    let after = describe(&target, &known, &checked, (done.as_ref().err(), over.as_ref()), warning, &context);
    let mut later = None;
    if let Some(change) = patch::patch(&target, &target.status, &after) {
        let pods_come = pods_come(&target, &after, &context);
        let is_first_of_job = pods_come && target.status.observed_generation.is_none();
        later = context
            .wait_to_write(&target.uid, pods_come, is_first_of_job, Instant::now())
            .filter(|_| is_first_of_job || !patch::is_telling(&target.status, &after));
        if later.is_none() {
            if let Some(version) = context.writer.status(&target.key, &change).await? {
                context.remember(&target.uid, version, &after, Instant::now());
                became_ready(&object, &target.status, &after, &context);
            }
            context.writer.tell(&object, &events::events(&target.status, &after)).await;
        }
    }
    done?;
    if later.is_none() {
        clean_up(&target, checked.as_ref().ok(), &after, &context).await?;
        copy_view(&target, &after, &context).await?;
    }
    let action = look_again(&target, &after, &context).await?;
    context.succeeded(&target.key);
    let sooner = later.or(look.map(|(_, wait)| wait));
    Ok(sooner.map_or(action, Action::requeue))
}

/// The status with what the watches have seen go since.
fn with_losses(target: &Target, context: &Context) -> MiniClusterStatus {
    let observed = context.index.observed(&target.key);
    let mut known = target.status.clone();
    let Some(job) = observed.job_of(&target.uid).or(observed.last_job.as_ref()) else { return known };
    if restart::is_given_up(&known, job) {
        return known;
    }
    let now = status::rfc3339(Timestamp::now());
    let is_new = |lost: &&LostPod| !target.status.lost_pods.iter().any(|it| it.name == lost.name);
    known
        .lost_pods
        .extend(observed.losses.iter().filter(is_new).map(|lost| LostPod { time: now.clone(), ..lost.clone() }));
    while known.lost_pods.len() > restart::LOST_KEPT {
        let follower = known.lost_pods.iter().position(|lost| lost.index > 0).unwrap_or(0);
        known.lost_pods.remove(follower);
    }
    known
}

fn decide(
    target: &Target,
    cluster: Option<&ValidMiniCluster>,
    known: &MiniClusterStatus,
    context: &Context,
) -> Decision {
    let Some(cluster) = cluster.filter(|_| !target.deleting) else { return Decision::Goes };
    let observed = context.index.observed(&target.key);
    let job = observed.job_of(&target.uid);
    if observed.job.is_some() && job.is_none() {
        return Decision::Goes;
    }
    let last_job = observed.last_job.as_ref().filter(|last| last.owner_uid.as_deref() == Some(&target.uid));
    let uid = job.or(last_job).map(|job| job.uid.clone()).or_else(|| known.job_uid.clone());
    restart::decide(&Scene {
        status: known,
        backoff_limit: cluster.backoff_limit,
        max_restarts: cluster.max_restarts,
        on_failure: cluster.pod.restart_policy.as_deref() == Some("OnFailure"),
        job,
        last_job,
        pods: observed.pods.values().filter(|pod| uid.is_some() && pod.job_uid == uid).collect(),
        gone: observed.gone_leads.iter().filter(|pod| pod.job_uid == uid).collect(),
        now: Timestamp::now(),
    })
}

/// Counts a start, and only then deletes the Job that it takes the place of: whoever is killed in between finds its uid in
/// the status.
async fn start_anew(
    object: &Cluster,
    target: &Target,
    known: &MiniClusterStatus,
    decision: &Decision,
    context: &Context,
) -> Result<Action, ReconcileError> {
    let Decision::Again { job_uid, is_there, reason, message, limit } = decision else {
        return Ok(Action::await_change());
    };
    let after = restart::counted(known, job_uid, reason, message, *limit, Timestamp::now());
    if let Some(change) = patch::patch(target, &target.status, &after) {
        let counted = context.writer.count(&target.key, target.resource_version, &change).await?;
        let Some(version) = counted else { return Ok(Action::await_change()) };
        context.remember(&target.uid, version, &after, Instant::now());
    }
    tracing::info!(reason, message, count = after.restart_count, "starting anew");
    if *is_there {
        context.writer.delete_job(&target.key, job_uid).await?;
    }
    context.writer.tell(object, events::started_anew(&after).as_slice()).await;
    context.succeeded(&target.key);
    Ok(Action::requeue(TO_TELL))
}

/// A Job that has ended, where there is none to say so.
fn over(target: &Target, reason: &str, message: &str) -> JobSeen {
    let now = Timestamp::now();
    let verdict = job::Verdict { reason: reason.to_owned(), message: message.to_owned(), since: Some(now) };
    let is_complete = reason == "Completed";
    JobSeen {
        uid: target.status.job_uid.clone().unwrap_or_default(),
        owner_uid: Some(target.uid.clone()),
        maximum_size: target.status.maximum_size.and_then(|size| u32::try_from(size).ok()),
        complete: is_complete.then(|| verdict.clone()),
        failed: (!is_complete).then_some(verdict),
        ..JobSeen::default()
    }
}

/// Whether the Job controller is still making pods, and nothing is known to be in its way.
fn pods_come(target: &Target, after: &MiniClusterStatus, context: &Context) -> bool {
    let observed = context.index.observed(&target.key);
    let job = observed.job_of(&target.uid).filter(|job| !job.is_finished() && !job.suspended && !job.deleting);
    let there = |job: &JobSeen| observed.pods_of(job).count();
    let comes = |job: &JobSeen| job.start_time.is_none() || there(job) < usize::try_from(job.completions).unwrap_or(0);
    after.reason.is_none() && job.is_some_and(comes)
}

/// Says in the status that we have panicked, and where: nothing of the spec is looked at, which may be what we panic at.
pub async fn tell_of_panic(object: &Cluster, context: &Context, panicked: &Panicked) {
    let target = context.latest(Target::of(object));
    let after = status::panicked(&target.status, target.generation, panicked, Timestamp::now());
    let Some(change) = patch::patch(&target, &target.status, &after) else { return };
    match context.writer.status(&target.key, &change).await {
        Ok(Some(version)) => context.remember(&target.uid, version, &after, Instant::now()),
        Ok(None) => return,
        Err(error) => crate::health::log::warn("failed to write a status", &error),
    }
    context.writer.tell(object, &events::events(&target.status, &after)).await;
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
    let headless = cluster.and_then(|cluster| context.index.headless(&next_action::headless_key(cluster)));
    let todo = next_action::todo(target, cluster, &observed, headless.as_deref());
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
            let Some(facts) = in_time(target, cluster, facts, context).await? else { return Ok(Done::OutOfTime) };
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
                let before = context.index.observed(&target.key).job.and_then(|job| job.rendered_hash);
                let fields = elastic.patch(&job_uid, before.as_deref(), facts.maximum_size.unwrap_or(elastic.size));
                context.writer.scale_job(&context.index, &target.key, &fields).await?;
                tracing::info!(size = elastic.size, suspend = elastic.suspend, "changed the Job");
            }
            if join {
                let service = next_action::headless_key(cluster);
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

/// What is left of `deadlineSeconds` since the first start; none: nothing. By the control plane's clock alone.
async fn in_time(
    target: &Target,
    cluster: &ValidMiniCluster,
    facts: Facts,
    context: &Context,
) -> Result<Option<Facts>, ReconcileError> {
    let first: Option<Timestamp> = target.status.start_time.as_ref().and_then(|time| time.parse().ok());
    let (Some(deadline), Some(first)) = (cluster.deadline_seconds, first) else { return Ok(Some(facts)) };
    let objects = objects(cluster, &facts, context)?;
    let would_be = context.writer.would_be(&objects.job, &target.key).await?;
    let now = would_be.metadata.creation_timestamp.map_or_else(Timestamp::now, |time| time.0);
    let left = deadline - (now.as_second() - first.as_second()).max(0);
    Ok((left > 0).then_some(Facts { deadline_left: Some(left), ..facts }))
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
    context.index.join(&next_action::headless_key(cluster), &target.key.name, cluster.flux.minimal_service);
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
    if context.waits(&target.key.namespace, &target.uid, stuck.uid(), target.status.reason.is_some(), Instant::now()) {
        match warning(&target.key.namespace, stuck, context).await {
            Ok(mut found) => {
                if let (Some(cluster), Some(found)) = (cluster, found.as_mut()) {
                    match stuck::missing(cluster, &target.uid, found) {
                        Some(Missing::ConfigMap) => {
                            let facts = next_action::facts(&target.uid, &target.status, job);
                            let objects = objects(cluster, &facts, context)?;
                            context.writer.config_map(&objects.config_map, &target.uid).await?;
                            tracing::info!("made the ConfigMap again, which somebody had deleted");
                        }
                        Some(Missing::Key(lost)) => *found = *lost,
                        None => {}
                    }
                }
                context.found(&target.uid, found);
            }
            Err(error) => crate::health::log::warn("failed to read events", &error),
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
    known: &MiniClusterStatus,
    checked: &Result<ValidMiniCluster, Vec<Problem>>,
    (error, over): (Option<&ReconcileError>, Option<&JobSeen>),
    warning: Option<&Trouble>,
    context: &Context,
) -> MiniClusterStatus {
    let observed: Observed = context.index.observed(&target.key);
    let there = observed.job_of(&target.uid).map(|job| restart::unless_given_up(known, job));
    let job = over.or(there.as_deref());
    status::without_panic(status::status(&Picture {
        name: &target.key.name,
        generation: target.generation,
        deleting: target.deleting,
        verdict: match checked {
            Ok(cluster) => Verdict::Valid(cluster),
            Err(problems) => Verdict::Invalid(problems),
        },
        previous: known,
        job,
        spec_hash: target.spec_hash().as_deref(),
        pods: job.map(|job| observed.pods_of(job).collect()).unwrap_or_default(),
        gone: observed
            .gone_leads
            .iter()
            .filter(|pod| job.is_some_and(|job| pod.job_uid.as_ref() == Some(&job.uid)))
            .collect(),
        obstacle: error.and_then(ReconcileError::obstacle),
        nodes_mount_images: context.index.nodes_mount_images(),
        disks: checked.as_ref().ok().and_then(|cluster| context.index.disks_of(cluster)),
        warning,
        now: Timestamp::now(),
    }))
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
    let goes_whole = next_action::seconds_to_live(spec, after, Timestamp::now()) == Some(0);
    if goes_whole || !next_action::is_to_be_cleaned_up(spec, after, &observed, &job.uid) {
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

/// Deletes a Job whose pods cannot mount the view's image, as the status says now. The next one copies; nothing has run yet.
async fn copy_view(target: &Target, after: &MiniClusterStatus, context: &Context) -> Result<(), ReconcileError> {
    let observed = context.index.observed(&target.key);
    let Some(job) = observed.job_of(&target.uid) else { return Ok(()) };
    if next_action::is_to_be_made_anew(after, job) {
        context.writer.delete_job(&target.key, &job.uid).await?;
        tracing::info!("deleted the Job, whose pods cannot mount the view's image, to make it with a copy");
    }
    Ok(())
}

/// Nothing is looked at again without a reason. A finished MiniCluster that has to go has one (and a status that waits).
async fn look_again(target: &Target, after: &MiniClusterStatus, context: &Context) -> Result<Action, ReconcileError> {
    let Some(spec) = target.spec.as_ref().ok().filter(|_| !target.deleting) else { return Ok(Action::await_change()) };
    match next_action::seconds_to_live(spec, after, Timestamp::now()) {
        None => Ok(Action::await_change()),
        Some(0) => {
            context.writer.delete(&target.key, &target.uid).await?;
            tracing::info!("deleted the MiniCluster: it has finished, and its time is over");
            Ok(Action::await_change())
        }
        Some(seconds) => Ok(Action::requeue(Duration::from_secs(seconds))),
    }
}
