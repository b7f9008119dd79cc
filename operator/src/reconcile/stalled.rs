//! Why a MiniCluster waits for something that no status names: read from events, and mended where that is possible.
#![expect(clippy::disallowed_methods, reason = "the clock")]

use std::time::{Duration, Instant};

use flux_shared::validate::ValidMiniCluster;
use k8s_openapi::jiff::Timestamp;

use super::create::objects;
use super::error::ReconcileError;
use crate::observe::pod::Trouble;
use crate::reconcile::context::Context;
use crate::reconcile::decide::next_action;
use crate::reconcile::decide::stuck::{self, Missing, Stuck};
use crate::reconcile::fetch::Target;

/// The last warning about what waits without a word, and the time until it is looked at again. A part that somebody has
/// deleted is made again, if it can be.
pub(super) async fn explain_wait(
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
    if context.waits(
        &target.key.namespace,
        &target.uid,
        &stuck.object(),
        target.status.reason.is_some(),
        Instant::now(),
    ) {
        match read_warning(&target.key.namespace, stuck, context).await {
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
async fn read_warning(namespace: &str, stuck: Stuck<'_>, context: &Context) -> Result<Option<Trouble>, kube::Error> {
    let now = Timestamp::now();
    let (first, second) = match stuck {
        Stuck::Starts(uid) => return context.reader.last(namespace, uid, now).await,
        Stuck::Waits(uid) => return context.reader.queued(namespace, uid, now).await.map(Some),
        Stuck::Joins(first, second) => (first, second),
    };
    let mut found = Vec::new();
    for (index, uid) in [Some(first), second].into_iter().flatten() {
        found.extend(context.reader.probe(namespace, uid, now).await?.map(|said| (index, said)));
    }
    Ok(stuck::not_ready(&found))
}
