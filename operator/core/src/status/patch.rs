//! Builds the JSON patch that turns one status into another. It replaces the top-level fields that differ, each as a
//! whole.
//!
//! The crate json-patch is not used, since it refers to conditions by their index in the list. If somebody else has
//! written the status meanwhile, that index may be another condition's.

use std::collections::BTreeMap;

use flux_shared::crd::v1alpha2::MiniClusterStatus;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::target::Target;

/// The patch; None if nothing differs. It tests the uid, so that the API server rejects it if the MiniCluster was
/// replaced by another one of the same name. (A merge patch of a custom resource's status could not do this.) The first
/// status after the Job was created also tests the generation. From that status on the API server rejects most edits,
/// so the spec must still be the one that the Job was created from.
pub fn build(
    target: &Target,
    before: &MiniClusterStatus,
    after: &MiniClusterStatus,
) -> serde_json::Result<Option<Value>> {
    if before == after {
        return Ok(None);
    }
    let changes = changes(before, after)?;
    let mut operations = vec![json!({ "op": "test", "path": "/metadata/uid", "value": target.uid })];
    // The CRD's rules, too, take a maximum size as the sign that the Job was created.
    let is_first_of_job = before.maximum_size.is_none() && after.maximum_size.is_some();
    if is_first_of_job {
        operations.push(json!({ "op": "test", "path": "/metadata/generation", "value": target.generation }));
    }
    // If `before` has fields, an earlier patch has added the status since `target` was read.
    if !target.has_status && *before == MiniClusterStatus::default() {
        operations.push(json!({ "op": "add", "path": "/status", "value": {} }));
    }
    operations.extend(changes.into_iter().map(|(key, value)| match value {
        Value::Null => json!({ "op": "remove", "path": format!("/status/{key}") }),
        value => json!({ "op": "add", "path": format!("/status/{key}"), "value": value }),
    }));
    Ok(Some(Value::Array(operations)))
}

/// The fields that differ; null for a field that was removed.
fn changes(
    before: &MiniClusterStatus,
    after: &MiniClusterStatus,
) -> serde_json::Result<BTreeMap<String, Value>> {
    let (before, after) = (fields(before)?, fields(after)?);
    let mut changes = BTreeMap::new();
    for (key, text) in &after {
        if before.get(key).is_none_or(|earlier| earlier.get() != text.get()) {
            changes.insert(key.clone(), serde_json::from_str(text.get())?);
        }
    }
    let removed = before.into_keys().filter(|key| !after.contains_key(key));
    changes.extend(removed.map(|key| (key, Value::Null)));
    Ok(changes)
}

/// The fields of a status as JSON texts, so that only those that differ need to be parsed.
fn fields(status: &MiniClusterStatus) -> serde_json::Result<BTreeMap<String, Box<RawValue>>> {
    serde_json::from_str(&serde_json::to_string(status)?)
}

/// Whether the patch should be sent at once, since a user or a tool may wait for the change. Others can wait, such
/// as changes of pod counts, messages and the reasons of conditions (`status.reason` has the most important reason).
/// That all `wanted` pods are ready is not delayed: users wait for this after they have changed `size`.
pub fn is_news(before: &MiniClusterStatus, after: &MiniClusterStatus, wanted: u32) -> bool {
    let are_all_ready = |status: &MiniClusterStatus| {
        wanted > 0 && u32::try_from(status.ready_size).is_ok_and(|ready| ready == wanted)
    };
    if are_all_ready(after) && !are_all_ready(before) {
        return true;
    }
    let urgent_parts = |status: &MiniClusterStatus| {
        let conditions = status.conditions.iter().map(|condition| {
            (
                condition.type_.clone(),
                condition.status,
                condition.observed_generation,
            )
        });
        let MiniClusterStatus {
            phase,
            maximum_size,
            exit_code,
            reason,
            completion_time,
            ..
        } = status.clone();
        // The names are compared, not their number: when the list is full, a new name replaces an old one.
        let lost: Vec<String> = status.lost_pods.iter().map(|pod| pod.name.clone()).collect();
        (
            phase,
            maximum_size,
            exit_code,
            reason,
            completion_time,
            status.restart_count,
            lost,
            conditions.collect::<Vec<_>>(),
        )
    };
    urgent_parts(before) != urgent_parts(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_with_only_other_pod_counts_can_wait() {
        let before = MiniClusterStatus {
            size: 4,
            phase: Some("Pending".into()),
            ..MiniClusterStatus::default()
        };
        assert!(!is_news(
            &before,
            &MiniClusterStatus {
                size: 5,
                ready_size: 2,
                ..before.clone()
            },
            5
        ));
        assert!(is_news(
            &before,
            &MiniClusterStatus {
                phase: Some("Running".into()),
                ..before.clone()
            },
            5
        ));
    }

    #[test]
    fn ready_size_that_reaches_the_wanted_size_is_news() {
        let with = |size: i32, ready_size: i32| MiniClusterStatus {
            size,
            ready_size,
            ..MiniClusterStatus::default()
        };
        assert!(is_news(&with(4, 3), &with(4, 4), 4), "it has grown");
        assert!(is_news(&with(4, 4), &with(3, 2), 2), "it has shrunk");
        assert!(!is_news(&with(2, 2), &with(4, 3), 4));
        assert!(!is_news(&with(4, 4), &with(4, 3), 4));
        assert!(!is_news(&with(4, 4), &with(4, 3), 2));
        assert!(!is_news(&with(3, 2), &with(2, 2), 2));
        assert!(!is_news(&with(2, 0), &with(0, 0), 0), "there is no Job");
    }

    #[test]
    fn ninth_lost_pod_is_written_at_once_though_list_is_full() {
        use flux_shared::crd::v1alpha2::LostPod;
        let with = |names: std::ops::Range<u32>| MiniClusterStatus {
            lost_pods: names
                .map(|number| LostPod {
                    name: format!("mc-1-{number}"),
                    ..LostPod::default()
                })
                .collect(),
            ..MiniClusterStatus::default()
        };
        assert!(is_news(&with(0..8), &with(1..9), 4));
        assert!(!is_news(&with(0..8), &with(0..8), 4));
    }

    #[test]
    fn status_patch_has_only_differences_and_tests_the_uid() {
        let before = MiniClusterStatus {
            size: 4,
            reason: Some("a".into()),
            ..MiniClusterStatus::default()
        };
        let after = MiniClusterStatus {
            size: 4,
            ready_size: 2,
            ..MiniClusterStatus::default()
        };
        let mut target = crate::testing::target("uid", &before);
        let sent = build(&target, &before, &after);
        assert_eq!(
            sent.unwrap(),
            Some(json!([
                { "op": "test", "path": "/metadata/uid", "value": "uid" },
                { "op": "add", "path": "/status/readySize", "value": 2 },
                { "op": "remove", "path": "/status/reason" },
            ]))
        );
        assert_eq!(build(&target, &after, &after.clone()).unwrap(), None);

        target.has_status = false;
        let with_job = MiniClusterStatus {
            size: 4,
            maximum_size: Some(4),
            ..MiniClusterStatus::default()
        };
        let first = build(&target, &MiniClusterStatus::default(), &with_job);
        assert_eq!(
            first.unwrap(),
            Some(json!([
                { "op": "test", "path": "/metadata/uid", "value": "uid" },
                { "op": "test", "path": "/metadata/generation", "value": 1 },
                { "op": "add", "path": "/status", "value": {} },
                { "op": "add", "path": "/status/maximumSize", "value": 4 },
                { "op": "add", "path": "/status/size", "value": 4 },
            ]))
        );

        // `target` was read before the first patch.
        let without_pods = MiniClusterStatus {
            size: 0,
            ..with_job.clone()
        };
        let second = build(&target, &with_job, &without_pods).unwrap().unwrap();
        assert!(
            !second.to_string().contains(r#""/status""#),
            "it would empty the status: {second}"
        );
    }
}
