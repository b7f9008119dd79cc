//! The state that all reconciles share.

use std::sync::Arc;

use flux_operator_core::observe::{Index, Key};
use flux_operator_core::render::Options;

use crate::health::metrics::Metrics;
use crate::health::queue::QueueRecord;
use crate::health::traces::Traces;
use crate::reconcile::apply::Writer;
use crate::reconcile::context::miniclusters::MiniClusters;
use crate::reconcile::context::room::Room;
use crate::reconcile::context::terminating::TerminatingNamespaces;
use crate::reconcile::job_first::JobFirst;
use crate::reconcile::lookups::reader::Reader;

pub mod event_checks;
pub mod miniclusters;
pub mod pauses;
pub mod room;
mod statuses;
pub mod terminating;

/// State that all reconciles share.
#[derive(Debug)]
pub struct Context {
    pub writer: Writer,
    pub reader: Reader,
    pub index: Arc<Index>,
    pub options: Options,
    pub metrics: Arc<Metrics>,
    pub traces: Arc<Traces>,
    /// For the metrics: which MiniClusters wait for a reconcile, and which reconciles run.
    pub queue: QueueRecord<Key>,
    /// Lets Jobs be created before less urgent writes.
    pub job_first: JobFirst,
    pub miniclusters: MiniClusters,
    /// Memory for large specs.
    pub room: Room,
    pub terminating: TerminatingNamespaces,
}

impl Context {
    pub fn new(writer: Writer, reader: Reader, options: Options, metrics: Arc<Metrics>) -> Context {
        Context {
            writer,
            reader,
            index: Arc::default(),
            traces: Arc::new(Traces::new(options.traces.as_ref())),
            options,
            metrics,
            queue: QueueRecord::default(),
            job_first: JobFirst::default(),
            miniclusters: MiniClusters::default(),
            room: Room::default(),
            terminating: TerminatingNamespaces::default(),
        }
    }

    /// Forgets a MiniCluster that no longer exists.
    pub fn forget(&self, key: &Key, uid: &str) {
        self.miniclusters.forget(uid);
        self.index.forget_cluster(key);
    }
}
