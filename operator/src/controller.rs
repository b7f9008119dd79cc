//! Connects the watches, the index and the reconciles. No decisions about MiniClusters are made here.
//!
//! ```text
//! watches ─► Wake ─► (wait for first lists; collect bursts) ─► reconcile, several at a time ─► pause after an error
//!         └► lead pods without their label ─► label it;  volumes without their MiniCluster ─► delete;
//!            Jobs of deleted MiniClusters ─► delete, with their pods
//! ```

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use flux_operator_core::observe::Key;
use flux_operator_core::observe::cluster::{self, Cluster};
use flux_operator_core::render::Options;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt, future};
use kube::Client;
use kube::runtime::controller::{self, Action, applier};
use kube::runtime::reflector::{ObjectRef, Store};
use tokio::sync::{mpsc, watch as watch_channel};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use crate::api::lease::Candidate;
use crate::api::version;
use crate::health::memory;
use crate::health::metrics::{Metrics, ReconcileOutcome};
use crate::health::panics;
use crate::health::server;
use crate::observe::watch::{self, KINDS, Outlets, Wake};
use crate::reconcile::apply::Writer;
use crate::reconcile::context::Context;
use crate::reconcile::context::pauses::LastOutcome;
use crate::reconcile::error::ReconcileError;
use crate::reconcile::job_first::MayCreateJob;
use crate::reconcile::lookups::reader::Reader;
use crate::reconcile::{has_priority, reconcile, report_overload, report_panic};

mod background;
mod health;
mod slots;

use background::{end_deleted, label_leads, sweep};
use health::OperatorHealth;
use slots::{ReconcileSlot, Slots};

/// How long changes of the same MiniCluster are collected before it is reconciled.
const BURST: Duration = Duration::from_millis(100);
/// A reconcile that takes longer than this counts as slow and leaves its slot (one that is given up keeps it until its
/// status is written). So a slow admission webhook, for example, does not delay other MiniClusters.
const SLOT_TIME: Duration = Duration::from_secs(2);
/// How long reconciles may run after a stop signal. A call to a slow API server takes longer, but 30 s after SIGTERM the
/// kubelet kills the operator. By then the operator must have released the Lease, so that another replica leads at once.
const FINISH_TIME: Duration = Duration::from_secs(20);

/// Settings of the controller.
#[derive(Debug, Clone)]
pub struct ControllerSettings {
    /// Namespace to watch. None: all namespaces.
    pub namespace: Option<String>,
    /// Settings for rendering, which apply to all MiniClusters.
    pub options: Options,
    /// For leader election. None: this process leads without an election.
    pub candidate: Option<Candidate>,
    /// Address of /healthz, /readyz and /metrics. None: they are not served.
    pub health: Option<SocketAddr>,
    pub metrics: Arc<Metrics>,
}

/// Why the controller ended without being stopped.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    #[error("failed to serve health on {address}")]
    Health {
        address: SocketAddr,
        source: std::io::Error,
    },
    #[error("lost the lease: another replica may lead")]
    LostLease,
    #[error("this is Kubernetes 1.{kubernetes}: 1.{floor} or newer is needed")]
    TooOld { kubernetes: u32, floor: u32 },
    #[error("the watches ended")]
    Watches,
}

/// Serves until `stop` resolves. Reconciles that run at that time may finish first, if they end soon.
pub async fn run(
    client: Client,
    settings: ControllerSettings,
    stop: impl Future<Output = ()>,
) -> Result<(), ControllerError> {
    let health = OperatorHealth::new(settings.metrics.clone());
    let listener = match settings.health {
        None => None,
        Some(address) => {
            let bound = server::bind(address).await;
            Some(bound.map_err(|source| ControllerError::Health { address, source })?)
        }
    };
    let health_server = async {
        match listener {
            Some(listener) => server::serve(listener, &health).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        never = health_server => match never {},
        result = lead(&client, &settings, &health, stop) => result,
        never = memory::give_back() => match never {},
    }
}

/// Waits for the leader lease, if there is an election. Then runs the controller until `stop` resolves or the
/// lease is lost.
async fn lead(
    client: &Client,
    settings: &ControllerSettings,
    health: &OperatorHealth,
    stop: impl Future<Output = ()>,
) -> Result<(), ControllerError> {
    let mut stop = std::pin::pin!(stop.fuse());
    let Some(candidate) = settings.candidate.clone() else {
        settings.metrics.set_leader(true);
        return control(client.clone(), settings, health, stop).await;
    };
    health.set_waiting(true);
    tracing::info!(identity = candidate.identity, "waiting for the leader lease");
    let mut held = tokio::select! {
        held = candidate.acquire(client) => held,
        () = &mut stop => return Ok(()),
    };
    health.set_waiting(false);
    settings.metrics.set_leader(true);
    tracing::info!("became leader");
    let result = tokio::select! {
        () = held.keep(client) => Err(ControllerError::LostLease),
        result = control(client.clone(), settings, health, stop) => result,
    };
    // After an error, the Lease is not released. It is lost already, or it expires unless this replica restarts and
    // takes it again.
    if result.is_ok() {
        held.release(client).await;
    }
    result
}

/// Starts the watches, and reconciles until `stop` resolves.
async fn control(
    client: Client,
    settings: &ControllerSettings,
    health: &OperatorHealth,
    stop: impl Future<Output = ()>,
) -> Result<(), ControllerError> {
    let mut stop = std::pin::pin!(stop);
    let kubernetes = tokio::select! {
        minor = version::minor_version(&client) => minor,
        () = &mut stop => return Ok(()),
    };
    if kubernetes < version::OLDEST_MINOR {
        return Err(ControllerError::TooOld {
            kubernetes,
            floor: version::OLDEST_MINOR,
        });
    }
    let namespace = settings.namespace.clone();
    let writer = Writer::new(client.clone());
    let reader = Reader::new(client.clone());
    let context = Arc::new(Context::new(
        writer,
        reader,
        settings.options.clone(),
        settings.metrics.clone(),
    ));
    let (wake, woken) = mpsc::unbounded_channel();
    let (unlabelled_in, unlabelled) = mpsc::unbounded_channel();
    let (synced, synced_kinds) = watch_channel::channel(0);
    let (orphans_in, orphans) = mpsc::unbounded_channel();
    let (deleted_in, deleted) = mpsc::unbounded_channel();
    let synced = Arc::new(synced);
    let outlets = Outlets {
        wake,
        unlabelled: unlabelled_in,
        orphans: orphans_in,
        deleted: deleted_in,
        synced,
    };

    let index = context.index.clone();
    let on_gone = {
        let context = context.clone();
        move |key: &Key, uid: &str| context.forget(key, uid)
    };
    let on_reported = {
        let context = context.clone();
        move |uid: &str, version: u64| context.miniclusters.note_reported(uid, version)
    };
    let (store, clusters) = watch::clusters(
        &client,
        namespace.as_deref(),
        index.clone(),
        on_reported,
        on_gone,
        outlets.clone(),
    );
    context.miniclusters.set_store(store.clone());
    let jobs = watch::jobs(client.clone(), namespace.clone(), index.clone(), outlets.clone());
    let pods = watch::pods(
        client.clone(),
        namespace.clone(),
        index.clone(),
        context.traces.clone(),
        outlets.clone(),
    );
    let services = watch::services(client.clone(), namespace.clone(), index.clone(), outlets.clone());
    let nodes = watch::nodes(client.clone(), index.clone(), outlets.clone());
    let classes = watch::storage_classes(client.clone(), index.clone(), outlets.clone());
    let volumes = watch::volumes(client, namespace, index, outlets);
    health.set_serving(store.clone(), synced_kinds.clone(), context.queue.clone());
    let listed = all_listed(synced_kinds.clone());
    // If 1024 keys wait, `dispatch` sends no more until there is room.
    let (queue_in, queue) = mpsc::channel(1024);
    // PersistentVolumes and storage classes are watched only if `spec.volumes` may be used.
    let has_volumes = settings.options.volumes;
    let storage = async move {
        if has_volumes {
            tokio::join!(classes, volumes);
        }
    };
    // Boxed, since these futures are large and are moved.
    let watches = [
        clusters.boxed(),
        jobs.boxed(),
        pods.boxed(),
        services.boxed(),
        nodes.boxed(),
        storage.boxed(),
    ];
    // Not `join_all`, which would poll all watches whenever one has an event.
    let watches = watches
        .into_iter()
        .collect::<FuturesUnordered<_>>()
        .for_each(|()| future::ready(()));
    let background = {
        let context = context.clone();
        async move {
            tokio::join!(
                watches,
                dispatch(&context, woken, synced_kinds, queue_in),
                label_leads(&context, unlabelled),
                end_deleted(&context, deleted)
            )
        }
    };
    // Both `sweeps` and `reconciles` wait until the store is ready, and the store wakes only the task that
    // asked last. So both must run in the same task.
    let sweeps = sweep(&context, &store, orphans);
    let reconciles = std::pin::pin!(reconciles(store.clone(), context.clone(), listed, queue, stop));
    tokio::select! {
        _ = future::join(in_own_task(background), sweeps) => Err(ControllerError::Watches),
        () = reconciles => {
            tracing::info!("stopped");
            Ok(())
        }
    }
}

/// Runs `work` in a task of its own, which is aborted when the returned future is dropped. kube's controller polls all
/// unfinished reconciles whenever one of them makes progress: with tasks, it polls only their handles.
fn in_own_task<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> impl Future<Output = T> + Unpin {
    AbortOnDropHandle::new(tokio::spawn(work)).map(|ended| match ended {
        Ok(result) => result,
        // Only a panic outside of `panics::catch` ends the task early.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    })
}

/// Returns when each kind that `KINDS` counts is listed or, for nodes, may not be read.
async fn all_listed(mut synced_kinds: watch_channel::Receiver<usize>) {
    // An error would mean that the sender is gone, which happens only when the process ends.
    let _ = synced_kinds.wait_for(|count| *count >= KINDS).await;
}

/// Reconciles the MiniClusters that come through `queue`, until `stop` resolves.
async fn reconciles(
    store: Store<Cluster>,
    context: Arc<Context>,
    listed: impl Future<Output = ()>,
    mut queue: mpsc::Receiver<Key>,
    stop: impl Future<Output = ()>,
) {
    let slots = Arc::new(Slots::default());
    let stopped = stop.map({
        let slots = slots.clone();
        // Ends the waits for a slot: thousands of MiniClusters may wait.
        move |()| slots.close()
    });
    let stopped = stopped.shared();
    // Nothing is reconciled before the first lists of all kinds are complete. Until then kube's controller would not
    // notice `stop`.
    tokio::select! {
        () = listed => {}
        () = stopped.clone() => return,
    }
    let queue = futures::stream::poll_fn(move |task| queue.poll_recv(task))
        .map(|key| {
            Ok::<_, std::convert::Infallible>(ObjectRef::<Cluster>::new(&key.name).within(&key.namespace))
        })
        .take_until(stopped.clone());
    let config = controller::Config::default();
    let next_id = AtomicU64::new(0);
    let reconcile = |cluster: Arc<Cluster>, context: Arc<Context>| {
        let id = next_id.fetch_add(1, Ordering::Relaxed);
        in_own_task(in_turn(cluster, context, slots.clone(), id))
    };
    let log_context = context.clone();
    let results = applier(reconcile, error_policy, context, store, queue, config);
    let log = |result: Result<_, controller::Error<ReconcileError, _>>| {
        match result {
            Ok(_) => {}
            // The MiniCluster was deleted between the watch and the reconcile.
            Err(controller::Error::ObjectNotFound(gone)) => {
                let key = Key::new(gone.namespace.unwrap_or_default(), gone.name);
                log_context.queue.remove(&key);
            }
            // That a namespace is being deleted is no failure of the operator.
            Err(controller::Error::ReconcilerFailed(error, object))
                if error.is_of_terminating_namespace() =>
            {
                tracing::debug!("{object}: {error}");
            }
            Err(controller::Error::ReconcilerFailed(error, object)) => {
                crate::health::log::warn(&format!("failed to reconcile {object}; retrying"), &error);
            }
            Err(error) => crate::health::log::warn("the queue failed", &error),
        }
        std::future::ready(())
    };
    tokio::select! {
        () = results.for_each(log) => {}
        () = stopped.then(|()| tokio::time::sleep(FINISH_TIME)) => {
            tracing::warn!("stopped before all reconciles were finished");
        }
    }
}

fn key_and_uid(cluster: &Cluster) -> (Key, String) {
    let metadata = kube::Resource::meta(cluster);
    (Key::of(metadata), metadata.uid.clone().unwrap_or_default())
}

/// Waits for the MiniCluster's turn, and reconciles it. MiniClusters without a Job go first, and only a few
/// large specs are reconciled at the same time. Thousands of MiniClusters may wait here, so the large future
/// of a reconcile is created only after the wait.
async fn in_turn(
    cluster: Arc<Cluster>,
    context: Arc<Context>,
    slots: Arc<Slots>,
    id: u64,
) -> Result<Action, ReconcileError> {
    let (key, uid) = key_and_uid(&cluster);
    // A retry does not come through `dispatch`, which notes the other MiniClusters.
    note_waiting(&context, &key);
    let large_size = cluster::left_out(&cluster);
    // A MiniCluster that failed has already waited for its pause. It gets no priority, and waits for no other Jobs. The
    // same holds for a large spec: if it had priority, small ones would wait until it has room.
    let last_outcome = context.miniclusters.last_outcome(&uid);
    let is_subject_to_priority = large_size.is_none() && last_outcome == LastOutcome::NotFailed;
    let priority =
        (is_subject_to_priority && has_priority(&cluster, &context)).then(|| context.job_first.begin());
    if priority.is_none() && is_subject_to_priority {
        context.job_first.wait_for_jobs().await;
    }
    // Only a few large specs are read at the same time. Small ones never wait for them.
    let room = match large_size {
        Some(size) => context.room.wait_for(size).await,
        None => None,
    };
    // The slot comes last, so that no MiniCluster holds a slot while it waits for anything above.
    let Some(slot) = slots.take(last_outcome).await else {
        // The operator stops. The next one reconciles every MiniCluster.
        return Ok(Action::await_change());
    };
    let begin = Instant::now();
    let in_progress = context.queue.start(&key, begin);
    context.metrics.dequeued_after(in_progress.waited);
    // The MiniCluster may have been edited or deleted while it waited. The pods of a deleted one would run without
    // an owner.
    let Some(cluster) = context.miniclusters.current(cluster) else {
        return Ok(Action::await_change());
    };
    let span = tracing::info_span!("reconcile", id, minicluster = %key);
    // A slow reconcile gives up its turn. It keeps its room: it still uses the memory.
    let turn = Turn {
        _slot: slot,
        _priority: priority,
    };
    let result = reconcile_in_turn(cluster, context.clone(), &slots, turn)
        .instrument(span)
        .boxed()
        .await;
    let outcome = match &result {
        Ok(_) => ReconcileOutcome::Success,
        Err(error) => error.outcome(),
    };
    drop((room, in_progress));
    context.metrics.reconciled(outcome, begin.elapsed());
    // The reconcile may have noted something about the MiniCluster after the watch reported its deletion.
    if context.miniclusters.is_gone(&key, &uid) {
        context.forget(&key, &uid);
    }
    result
}

/// What a reconcile holds that others wait for, until this is dropped.
struct Turn<'a> {
    _slot: ReconcileSlot<'a>,
    _priority: Option<MayCreateJob<'a>>,
}

/// Reconciles, and reports a panic in the MiniCluster's status. A reconcile that takes longer than
/// `SLOT_TIME` gives up its turn and continues, or is given up itself if too many others are slow.
async fn reconcile_in_turn(
    cluster: Arc<Cluster>,
    context: Arc<Context>,
    slots: &Slots,
    turn: Turn<'_>,
) -> Result<Action, ReconcileError> {
    let (_, uid) = key_and_uid(&cluster);
    let mut work = panics::catch(reconcile_with_spec(cluster.clone(), context.clone())).boxed();
    let result = match tokio::time::timeout(SLOT_TIME, &mut work).await {
        Ok(result) => {
            context.miniclusters.note_slowness(&uid, false);
            result
        }
        Err(_) => {
            context.miniclusters.note_slowness(&uid, true);
            let Some(_slow) = slots.take_slow() else {
                drop(work);
                // Computing the status may panic.
                let _ = panics::catch(report_overload(&cluster, &context)).await;
                return Err(ReconcileError::TooManySlow);
            };
            drop(turn);
            work.await
        }
    };
    match result {
        Ok(result) => result,
        Err(panicked) => {
            // The report may panic as well.
            let _ = panics::catch(report_panic(&cluster, &context, &panicked)).await;
            Err(panicked.into())
        }
    }
}

/// Notes for the metrics that a MiniCluster waits for its reconcile. Counts it, unless it was waiting already.
fn note_waiting(context: &Context, key: &Key) {
    if context.queue.enqueue(key, Instant::now()) {
        context.metrics.queued();
    }
}

/// Reconciles a MiniCluster. If its spec is too large for the cache, reads it from the API server first.
async fn reconcile_with_spec(cluster: Arc<Cluster>, context: Arc<Context>) -> Result<Action, ReconcileError> {
    if cluster::is_managed_elsewhere(&cluster) {
        return Ok(Action::await_change());
    }
    if cluster::left_out(&cluster).is_none() {
        return reconcile(cluster, context).await;
    }
    let metadata = kube::Resource::meta(&*cluster);
    let found = context
        .reader
        .cluster(&Key::of(metadata), metadata.uid.as_deref())
        .await;
    match found.map_err(ReconcileError::Cluster)? {
        Some(cluster) => reconcile(Arc::new(cluster), context).await,
        // It no longer exists; the watch will report this.
        None => Ok(Action::await_change()),
    }
}

/// Counts a failure, and returns the pause before the retry. Other MiniClusters do not wait for it.
fn error_policy(cluster: Arc<Cluster>, error: &ReconcileError, context: Arc<Context>) -> Action {
    let (key, uid) = key_and_uid(&cluster);
    let Some(pause) = context
        .miniclusters
        .after_failure(&key, &uid, error, Instant::now())
    else {
        // The MiniCluster was deleted meanwhile.
        return Action::await_change();
    };
    context.metrics.retried();
    Action::requeue(pause)
}

/// Queues the MiniClusters that the watches report as changed. Waits for all first lists: before they are
/// complete, an object that is not listed yet would count as missing.
async fn dispatch(
    context: &Context,
    mut woken: mpsc::UnboundedReceiver<Wake>,
    mut synced_kinds: watch_channel::Receiver<usize>,
    queue: mpsc::Sender<Key>,
) {
    if synced_kinds.wait_for(|count| *count >= KINDS).await.is_err() {
        return;
    }
    tracing::info!("caches are synced");
    let mut burst: HashSet<Key> = HashSet::new();
    // `BURST` after the first event of the burst. Later events do not move it, so a steady stream of events
    // delays nothing for ever.
    let mut burst_ends = tokio::time::Instant::now();
    loop {
        let ready: Vec<Key> = tokio::select! {
            wake = woken.recv() => match wake {
                None => return,
                Some(Wake { key, at_once }) => {
                    note_waiting(context, &key);
                    if !at_once {
                        if burst.is_empty() {
                            burst_ends = tokio::time::Instant::now() + BURST;
                        }
                        burst.insert(key);
                        continue;
                    }
                    vec![key]
                }
            },
            () = tokio::time::sleep_until(burst_ends), if !burst.is_empty() => burst.drain().collect(),
        };
        for key in ready {
            if queue.send(key).await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
