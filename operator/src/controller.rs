//! Wires watches, index and reconciles together. No decisions about MiniClusters are made here.
//!
//! ```text
//! watches ─► Wake ─► (wait for the first lists; take bursts together) ─► reconcile, several at a time ─► pause on error
//!         └► pods without their documented label ─► label
//! ```
#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "the controller owns the client, the pauses and the log"
)]

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use kube::Client;
use kube::runtime::controller::{self, Action, applier};
use kube::runtime::reflector::{ObjectRef, Store};
use tokio::sync::{mpsc, watch as signal};

use crate::apply::Writer;
use crate::context::Context;
use crate::fetch::Cluster;
use crate::observe::{Key, Unlabelled};
use crate::reconcile::{ReconcileError, reconcile};
use crate::render::Options;
use crate::watch::{self, KINDS, Outlets, Wake};

/// How long news about the same MiniCluster is collected.
const BURST: Duration = Duration::from_millis(100);
/// Reconciles at the same time. More would only queue up in the API server.
const CONCURRENCY: u16 = 32;
/// Labels written at the same time: less urgent than anything else.
const LABELLERS: usize = 4;

/// What to serve.
#[derive(Debug, Clone)]
pub struct Settings {
    /// None: all namespaces.
    pub namespace: Option<String>,
    pub options: Options,
}

/// Serves until `stop` resolves; reconciles that have begun are finished.
pub async fn run(client: Client, settings: Settings, stop: impl Future<Output = ()>) {
    let namespace = settings.namespace;
    let context = Arc::new(Context::new(Writer::new(client.clone()), settings.options));
    let (wake, woken) = mpsc::unbounded_channel();
    let (unlabelled_in, unlabelled) = mpsc::unbounded_channel();
    let (synced, is_synced) = signal::channel(0);
    let outlets = Outlets { wake, unlabelled: unlabelled_in, synced: Arc::new(synced) };

    let (store, clusters) = watch::clusters(&client, namespace.as_deref(), context.clone(), outlets.clone());
    let jobs = watch::jobs(client.clone(), namespace.clone(), context.clone(), outlets.clone());
    let pods = watch::pods(client.clone(), namespace.clone(), context.clone(), outlets.clone());
    let services = watch::services(client, namespace, context.clone(), outlets);
    let (queue_in, queue) = mpsc::channel(1024);
    let watches = async { tokio::join!(clusters, jobs, pods, services) };
    let background = async { tokio::join!(watches, dispatch(woken, is_synced, queue_in), label(&context, unlabelled)) };
    let reconciles = reconciles(store, context.clone(), queue, stop);
    tokio::select! {
        _ = background => tracing::error!("the watches ended"),
        () = reconciles => tracing::info!("stopped"),
    }
}

async fn reconciles(
    store: Store<Cluster>,
    context: Arc<Context>,
    mut queue: mpsc::Receiver<Key>,
    stop: impl Future<Output = ()>,
) {
    let queue = futures::stream::poll_fn(move |task| queue.poll_recv(task))
        .map(|key| Ok::<_, std::convert::Infallible>(ObjectRef::<Cluster>::new(&key.name).within(&key.namespace)))
        .take_until(stop);
    let config = controller::Config::default().concurrency(CONCURRENCY);
    let reconcile = |cluster, context| reconcile(cluster, context).boxed();
    let results = applier(reconcile, pause, context, store, queue, config);
    let log = |result: Result<_, controller::Error<ReconcileError, _>>| {
        match result {
            Ok(_) => {}
            // Gone between the watch and the reconcile.
            Err(controller::Error::ObjectNotFound(_)) => {}
            Err(controller::Error::ReconcilerFailed(error, object)) => {
                tracing::warn!(error = &error as &dyn std::error::Error, %object, "a reconcile failed; it will be tried again");
            }
            Err(error) => tracing::error!(error = &error as &dyn std::error::Error, "the queue failed"),
        }
        std::future::ready(())
    };
    results.for_each(log).await;
}

/// A failure delays its own object only.
fn pause(cluster: Arc<Cluster>, _: &ReconcileError, context: Arc<Context>) -> Action {
    Action::requeue(context.pause(&Key::of(kube::Resource::meta(&*cluster))))
}

/// Passes on who has to be reconciled, once everything has been listed: before that, nothing is known to be missing.
async fn dispatch(
    mut woken: mpsc::UnboundedReceiver<Wake>,
    mut is_synced: signal::Receiver<usize>,
    queue: mpsc::Sender<Key>,
) {
    if is_synced.wait_for(|synced| *synced >= KINDS).await.is_err() {
        return;
    }
    tracing::info!("all lists are complete");
    let mut later: HashSet<Key> = HashSet::new();
    // Runs from the first news of a burst, so that endless news delays nothing endlessly.
    let mut burst_ends = tokio::time::Instant::now();
    loop {
        let ready: Vec<Key> = tokio::select! {
            wake = woken.recv() => match wake {
                None => return,
                Some(Wake { key, at_once: true }) => vec![key],
                Some(Wake { key, at_once: false }) => {
                    if later.is_empty() {
                        burst_ends = tokio::time::Instant::now() + BURST;
                    }
                    later.insert(key);
                    continue;
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

/// Writes the documented label on pods, one call each.
async fn label(context: &Context, mut unlabelled: mpsc::UnboundedReceiver<Unlabelled>) {
    let pods = futures::stream::poll_fn(move |task| unlabelled.poll_recv(task));
    let write = |pod: Unlabelled| async move {
        if let Err(error) = context.writer.label(&pod).await {
            tracing::warn!(error = &error as &dyn std::error::Error, pod = pod.name, "failed to label a pod");
        }
    };
    pods.for_each_concurrent(LABELLERS, write).await;
}
