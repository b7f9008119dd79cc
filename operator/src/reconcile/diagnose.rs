//! Reads from events why a MiniCluster waits, if no status says why. Recreates a ConfigMap that was deleted, and
//! deletes a pod that its node never starts.

use std::time::{Duration, Instant};

use flux_operator_core::decide::next_action;
use flux_operator_core::decide::silent_wait::{self, Finding, Missing, SilentWait};
use flux_operator_core::observe::job::JobSeen;
use flux_operator_core::observe::pod::Trouble;
use flux_operator_core::target::Target;
use flux_shared::validate::ValidMiniCluster;
use k8s_openapi::api::core::v1::Event;

use super::create::objects;
use super::error::ReconcileError;
use crate::reconcile::context::Context;
use crate::reconcile::context::event_checks::Waiting;

/// What events show about an object that waits although no status says why.
pub(super) struct Diagnosis {
    /// The last warning about the object. None: there is none.
    pub(super) warning: Option<Trouble>,
    pub(super) until_next_check: Duration,
}

/// Diagnoses why an object waits although no status says why. None: no object waits like this. If the warning is about a
/// deleted ConfigMap of ours, creates it again. If what waits is a pod that its node never starts, deletes the pod.
pub(super) async fn diagnose_and_mend(
    target: &Target,
    cluster: Option<&ValidMiniCluster>,
    context: &Context,
) -> Result<Option<Diagnosis>, ReconcileError> {
    let observed = context.index.observed(&target.key);
    let job = if target.is_deleting {
        None
    } else {
        observed.job_of(&target.uid)
    };
    let (Some(job), Some(wait)) = (job, silent_wait::find(job, &observed)) else {
        context.miniclusters.forget_event_check(&target.uid);
        return Ok(None);
    };
    let waiting = Waiting {
        namespace: &target.key.namespace,
        uid: &target.uid,
        object: &wait.object(),
        first_check_after: wait.first_check_after(context.index.has_nodes()),
        was_reported: wait.was_reported(target.status.reason.as_deref()),
    };
    if context.miniclusters.are_events_due(waiting, Instant::now()) {
        // Not before the first check is due: until then, the pod's state may be out of date.
        if let SilentWait::NeverStarts { name, uid } = wait {
            let deleted = context
                .writer
                .delete_pod_that_never_starts(&target.key, name, uid)
                .await;
            if deleted.map_err(ReconcileError::from)? {
                tracing::info!(pod = name, "deleted a pod that its restarted node never starts");
            }
        }
        match read_warning(&target.key.namespace, wait, context).await {
            Ok(mut found) => {
                if let (Some(cluster), Some(found)) = (cluster, found.as_mut()) {
                    match silent_wait::missing(cluster, &target.uid, found) {
                        Some(Missing::ConfigMap) => {
                            let created = recreate_config_map(target, cluster, job, context).await;
                            created.inspect_err(|error| note_refusal(error, target, context))?;
                        }
                        // Report the lost Secret instead of the event's warning.
                        Some(Missing::Secret(trouble)) => *found = *trouble,
                        None => {}
                    }
                }
                context.miniclusters.note_finding(&target.uid, found);
            }
            Err(error) => crate::health::log::warn("failed to read events", &error),
        }
    }
    let last = context.miniclusters.last_finding(&target.uid, Instant::now());
    Ok(last.map(|(finding, until_next_check)| {
        let warning = match finding {
            // Not read yet, as after a restart: keep the status's trouble, if an earlier process read it from events.
            Finding::Unread => wait.trouble_of_earlier_events(&target.status, &job.uid),
            Finding::Nothing => None,
            Finding::Warning(warning) => Some(*warning),
        };
        Diagnosis {
            warning,
            until_next_check,
        }
    }))
}

async fn recreate_config_map(
    target: &Target,
    cluster: &ValidMiniCluster,
    job: &JobSeen,
    context: &Context,
) -> Result<(), ReconcileError> {
    let facts = next_action::facts(&target.uid, &target.status, job);
    let objects = objects(cluster, &facts, context)?;
    context
        .writer
        .create_config_map(&objects.config_map, &target.uid)
        .await?;
    tracing::info!("recreated the ConfigMap, which had been deleted");
    Ok(())
}

/// Keeps the error for the reconciles until the next check: only this reconcile returns it.
fn note_refusal(error: &ReconcileError, target: &Target, context: &Context) {
    let obstacle = error.as_obstacle();
    let why = Trouble {
        reason: obstacle.reason.into(),
        message: obstacle.message,
        ..Trouble::default()
    };
    context
        .miniclusters
        .note_refusal(&target.uid, why, Instant::now());
}

/// The last warning about the waiting object. The number of calls does not depend on the number of waiting pods.
async fn read_warning(
    namespace: &str,
    wait: SilentWait<'_>,
    context: &Context,
) -> Result<Option<Trouble>, kube::Error> {
    // The times of events are the API server's, if possible (`last_occurrence`).
    let now = context.metrics.server_clock.now();
    let is_cause = |event: &Event| {
        wait.is_explained_by(
            event.reason.as_deref().unwrap_or_default(),
            event.message.as_deref().unwrap_or_default(),
        )
    };
    let (first, second) = match wait {
        SilentWait::Starts(uid) => return context.reader.last_warning(namespace, uid, now, is_cause).await,
        // The pod's own state says why: its node has restarted (`PodSeen::never_starts`).
        SilentWait::NeverStarts { .. } => return Ok(None),
        SilentWait::InQueue(uid) => return context.reader.why_queued(namespace, uid, now).await.map(Some),
        SilentWait::Unnoticed {
            index,
            uid,
            scheduler,
            is_gang,
        } => {
            let event = context.reader.last_warning(namespace, uid, now, is_cause).await?;
            return Ok(Some(
                event.unwrap_or_else(|| silent_wait::unnoticed(index, scheduler, is_gang)),
            ));
        }
        SilentWait::Joins(first, second) => (first, second),
    };
    // One or two pods that are not ready, the lead first: each further one would cost a call.
    let mut found = Vec::new();
    for (index, uid) in [Some(first), second].into_iter().flatten() {
        found.extend(
            context
                .reader
                .last_probe_failure(namespace, uid, now)
                .await?
                .map(|trouble| (index, trouble)),
        );
    }
    Ok(silent_wait::not_ready(&found))
}

#[cfg(test)]
mod tests {
    use flux_operator_core::render::Options;
    use k8s_openapi::jiff::{Timestamp, ToSpan};
    use serde_json::json;

    use super::*;
    use crate::testing;

    #[tokio::test]
    async fn events_are_read_by_the_api_servers_clock() {
        for ahead in [-10, 10] {
            let server_time = Timestamp::now() + ahead.minutes();
            for (age, is_fresh) in [(6, true), (9, false)] {
                let event = json!({
                    "metadata": {}, "involvedObject": {}, "reason": "FailedMount", "message": "why",
                    "lastTimestamp": (server_time - age.minutes()).to_string(),
                });
                let client =
                    testing::client(move |_, _| Some((200, json!({ "metadata": {}, "items": [event] }))));
                let context = testing::context(client, Options::default());
                context.metrics.server_clock.note(&testing::date(server_time));
                let found = read_warning("ns", SilentWait::Starts("uid"), &context)
                    .await
                    .unwrap();
                assert_eq!(found.is_some(), is_fresh, "{ahead} minutes ahead, {age} old");
            }
        }
    }
}
