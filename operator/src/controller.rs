//! Wires watches, index and reconciles together. No decisions about MiniClusters are made here.
//!
//! ```text
//! watches ─► Wake ─► (wait for the first lists; take bursts together) ─► reconcile, several at a time ─► pause on error
//!         └► pods without their documented label ─► label;  volumes without their MiniCluster ─► sweep
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
use tokio::sync::{mpsc, watch as signal};
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
use crate::reconcile::context::pauses::Last;
use crate::reconcile::error::ReconcileError;
use crate::reconcile::lookups::warning::Reader;
use crate::reconcile::{has_priority, reconcile, report_overload, report_panic};

mod background;
mod health;
mod own_task;
mod slots;

use background::{end_deleted, label_leads, sweep};
use health::OperatorHealth;
use own_task::in_own_task;
use slots::Slots;

/// How long changes of the same MiniCluster are collected before it is reconciled.
const BURST: Duration = Duration::from_millis(100);
/// How long a reconcile may take a slot before it counts as slow: an admission webhook, say, must not delay
/// others.
const SLOT_TIME: Duration = Duration::from_secs(2);

/// What the controller watches and how it is reached.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Namespace to watch. None: all namespaces.
    pub namespace: Option<String>,
    pub options: Options,
    /// Leader election. None: this process leads without one.
    pub candidate: Option<Candidate>,
    /// Where /healthz, /readyz and /metrics are served. None: nowhere.
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

/// Serves until `stop` resolves; reconciles that have begun are finished.
pub async fn run(
    client: Client,
    settings: Settings,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ControllerError> {
    // In a task: a clone of `block_on`'s waker (tokio 1.54) need not compare equal to it, and then each poll
    // of a reconcile would be a full one.
    in_own_task(serve(client, settings, stop)).await
}

async fn serve(
    client: Client,
    settings: Settings,
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
    let answers = async {
        match listener {
            Some(listener) => server::serve(listener, &health).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = answers => Ok(()),
        result = lead(&client, &settings, &health, stop) => result,
        never = memory::give_back() => match never {},
    }
}

/// Waits to lead, then leads.
async fn lead(
    client: &Client,
    settings: &Settings,
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
    if result.is_ok() {
        held.release(client).await;
    }
    result
}

async fn control(
    client: Client,
    settings: &Settings,
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
    let (synced, is_synced) = signal::channel(0);
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
    let forget = {
        let context = context.clone();
        move |key: &Key, uid: &str| context.forget(key, uid)
    };
    let reported = {
        let context = context.clone();
        move |uid: &str, version: u64| context.statuses.note_reported(uid, version)
    };
    let (store, clusters) = watch::clusters(
        &client,
        namespace.as_deref(),
        index.clone(),
        reported,
        forget,
        outlets.clone(),
    );
    context.statuses.set_store(store.clone());
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
    health.set_serving(store.clone(), is_synced.clone(), context.queue.clone());
    let listed = all_listed(is_synced.clone());
    let (queue_in, queue) = mpsc::channel(1024);
    let has_volumes = settings.options.volumes;
    let storage = async move {
        if has_volumes {
            tokio::join!(classes, volumes);
        }
    };
    // Boxed: the futures of watches are large, and would be moved on the stack.
    let watches = [
        clusters.boxed(),
        jobs.boxed(),
        pods.boxed(),
        services.boxed(),
        nodes.boxed(),
        storage.boxed(),
    ];
    // `join_all` would poll all watches whenever one has an event.
    let watches = watches
        .into_iter()
        .collect::<FuturesUnordered<_>>()
        .for_each(|()| future::ready(()));
    let background = {
        let context = context.clone();
        async move {
            tokio::join!(
                watches,
                dispatch(&context, woken, is_synced, queue_in),
                label_leads(&context, unlabelled),
                end_deleted(&context, deleted)
            )
        }
    };
    // Sweeps and reconciles are one task: the store tells only the last task that asked when it is ready.
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

/// Returns when the first list of every kind is complete.
async fn all_listed(mut is_synced: signal::Receiver<usize>) {
    // An error would mean that the sender is gone, which ends only with the process.
    let _ = is_synced.wait_for(|synced| *synced >= KINDS).await;
}

async fn reconciles(
    store: Store<Cluster>,
    context: Arc<Context>,
    listed: impl Future<Output = ()>,
    mut queue: mpsc::Receiver<Key>,
    stop: impl Future<Output = ()>,
) {
    let mut stop = std::pin::pin!(stop);
    // Nothing is reconciled before the lists are complete, that of MiniClusters too, and kube's controller
    // would not notice `stop` meanwhile.
    tokio::select! {
        () = listed => {}
        () = &mut stop => return,
    }
    let queue = futures::stream::poll_fn(move |task| queue.poll_recv(task))
        .map(|key| {
            Ok::<_, std::convert::Infallible>(ObjectRef::<Cluster>::new(&key.name).within(&key.namespace))
        })
        .take_until(stop);
    let config = controller::Config::default();
    let slots = Arc::new(Slots::default());
    let number = AtomicU64::new(0);
    let reconcile = |cluster: Arc<Cluster>, context: Arc<Context>| {
        let id = number.fetch_add(1, Ordering::Relaxed);
        in_own_task(in_turn(cluster, context, slots.clone(), id))
    };
    let context_of_log = context.clone();
    let results = applier(reconcile, error_policy, context, store, queue, config);
    let log = |result: Result<_, controller::Error<ReconcileError, _>>| {
        match result {
            Ok(_) => {}
            // The MiniCluster was deleted between the watch and the reconcile.
            Err(controller::Error::ObjectNotFound(gone)) => {
                let key = Key::new(gone.namespace.unwrap_or_default(), gone.name);
                context_of_log.queue.remove(&key);
                // Of a reconcile that failed after the watch had reported the deletion.
                context_of_log.pauses.clear(&key);
            }
            // The end of a namespace is no failure.
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
    results.for_each(log).await;
}

/// Reconciles when it is the MiniCluster's turn: those without a Job go first, and large specs are limited.
/// Thousands may wait here, so what a reconcile needs is created only then.
async fn in_turn(
    cluster: Arc<Cluster>,
    context: Arc<Context>,
    slots: Arc<Slots>,
    id: u64,
) -> Result<Action, ReconcileError> {
    let key = Key::of(kube::Resource::meta(&*cluster));
    note_waiting(&context, &key);
    let large = cluster::left_out(&cluster);
    // A MiniCluster that has failed has already paused. It takes no priority, and waits for none.
    let last = context.pauses.last(&key);
    let may_order = large.is_none() && last == Last::Well;
    let first = (may_order && has_priority(&cluster, &context)).then(|| context.job_first.begin());
    if first.is_none() && may_order {
        context.job_first.wait_for_jobs().await;
    }
    // Only a few large specs are read at the same time. Small ones never wait for them.
    let room = match large {
        Some(size) => context.room.wait_for(size).await,
        None => None,
    };
    let slot = slots.take(last).await;
    let begin = Instant::now();
    let working = context.queue.start(&key, begin);
    context.metrics.dequeued_after(working.waited);
    // It may have been edited or deleted while it waited: what an owner that is gone owns would run.
    let Some(cluster) = context.statuses.current(cluster) else {
        return Ok(Action::await_change());
    };
    let span = tracing::info_span!("reconcile", id, minicluster = %key);
    let uid = kube::Resource::meta(&*cluster).uid.clone().unwrap_or_default();
    let result = reconcile_in_slot(cluster, context.clone(), &slots, (slot, first))
        .instrument(span)
        .boxed()
        .await;
    let outcome = match &result {
        Ok(_) => ReconcileOutcome::Success,
        Err(error) if error.obstacle().is_some() || error.is_of_terminating_namespace() => {
            ReconcileOutcome::Obstacle
        }
        Err(ReconcileError::Panicked(_)) => ReconcileOutcome::Panic,
        Err(_) => ReconcileOutcome::Error,
    };
    drop((room, working));
    context.metrics.reconciled(outcome, begin.elapsed());
    // What was noted of it since the watch has reported its end.
    if context.statuses.is_gone(&key, &uid) {
        context.forget(&key, &uid);
    }
    result
}

/// Reconciles; a panic is reported in the MiniCluster's status. What is slow leaves `slot` to others after
/// `SLOT_TIME`, and is given up if too many are slow.
async fn reconcile_in_slot(
    cluster: Arc<Cluster>,
    context: Arc<Context>,
    slots: &Slots,
    slot: impl Sized,
) -> Result<Action, ReconcileError> {
    let key = Key::of(kube::Resource::meta(&*cluster));
    let mut work = panics::catch(reconcile_whole(cluster.clone(), context.clone())).boxed();
    let result = match tokio::time::timeout(SLOT_TIME, &mut work).await {
        Ok(result) => {
            context.pauses.note_slowness(&key, false);
            result
        }
        Err(_) => {
            context.pauses.note_slowness(&key, true);
            let Some(_slow) = slots.take_slow() else {
                drop(work);
                report_overload(&cluster, &context).await;
                return Err(ReconcileError::Crowd);
            };
            drop(slot);
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

/// Notes for the metrics that a MiniCluster waits for its reconcile, and counts it if it did not wait yet.
fn note_waiting(context: &Context, key: &Key) {
    if context.queue.enqueue(key, Instant::now()) {
        context.metrics.queued();
    }
}

/// Reconciles a MiniCluster, after reading its whole spec where that is too large for the cache.
async fn reconcile_whole(cluster: Arc<Cluster>, context: Arc<Context>) -> Result<Action, ReconcileError> {
    if cluster::is_managed_elsewhere(&cluster) {
        return Ok(Action::await_change());
    }
    if cluster::left_out(&cluster).is_none() {
        return reconcile(cluster, context).await;
    }
    let metadata = kube::Resource::meta(&*cluster);
    let whole = context
        .reader
        .cluster(&Key::of(metadata), metadata.uid.as_deref())
        .await;
    match whole.map_err(ReconcileError::Cluster)? {
        Some(whole) => reconcile(Arc::new(whole), context).await,
        // It is gone; the watch will report it.
        None => Ok(Action::await_change()),
    }
}

/// The pause after a failure: of this object only.
fn error_policy(cluster: Arc<Cluster>, error: &ReconcileError, context: Arc<Context>) -> Action {
    context.metrics.retried();
    let key = Key::of(kube::Resource::meta(&*cluster));
    Action::requeue(context.pauses.after_failure(&key, error, Instant::now()))
}

/// Queues the MiniClusters that have news, once all lists are complete: before that, an object that is not
/// known yet would count as missing.
async fn dispatch(
    context: &Context,
    mut woken: mpsc::UnboundedReceiver<Wake>,
    mut is_synced: signal::Receiver<usize>,
    queue: mpsc::Sender<Key>,
) {
    if is_synced.wait_for(|synced| *synced >= KINDS).await.is_err() {
        return;
    }
    tracing::info!("caches are synced");
    let mut later: HashSet<Key> = HashSet::new();
    // From the burst's first event on, so that a steady stream does not delay it for ever.
    let mut burst_ends = tokio::time::Instant::now();
    loop {
        let ready: Vec<Key> = tokio::select! {
            wake = woken.recv() => match wake {
                None => return,
                Some(Wake { key, at_once }) => {
                    note_waiting(context, &key);
                    if !at_once {
                        if later.is_empty() {
                            burst_ends = tokio::time::Instant::now() + BURST;
                        }
                        later.insert(key);
                        continue;
                    }
                    vec![key]
                }
            },
            () = tokio::time::sleep_until(burst_ends), if !later.is_empty() => later.drain().collect(),
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
